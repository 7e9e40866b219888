// Ops that compute where to read: pad, concat, take, pick, windows, argmax, cumsum.
#include <algorithm>
#include <bit>

#include "kernels/cuda/codegen.h"
#include "kernels/cuda/thresholds.h"

namespace aicf::cuda {

namespace {

int64_t blocks_for(int64_t count, int processors) {
    return std::min<int64_t>((count + 255) / 256, int64_t{processors} * 64);
}

Dims part(const Dims& dims, int begin, int end) {
    Dims result;
    for (int d = begin; d < end; d++) result.push(dims[d]);
    return result;
}

std::string number(const char* name, int64_t value) {
    return cat("    static constexpr int64_t ", name, " = ", value, ";\n");
}

}  // namespace

bool worth_sorting(const Sorted& sorted, const Limits& limits) {
    constexpr int64_t kMost = int64_t{1} << 31;
    return !limits.one_block && sorted.n > kLookedThrough && sorted.lines * sorted.n < kMost &&
           sorted.lines * sorted.size > 0 && sorted.lines * sorted.size < kMost;
}

namespace {

/// How many rows a block sorts the positions of by itself, of all positions of their lines, where
/// that are so many blocks; 0 where passes of all blocks are sooner.
int64_t split_for(const Sorted& sorted, int64_t blocks, const Limits& limits) {
    const int64_t rows = sorted.lines * sorted.size, processors = std::max(limits.processors, 1);
    int64_t split = std::clamp<int64_t>(ceil_div(rows, blocks), 1, kBoundRows);
    if (sorted.lines > 1 && sorted.size <= kBoundRows)
        split = std::max<int64_t>(split / sorted.size, 1) * sorted.size;
    const int64_t lines = std::min(sorted.lines, ceil_div(split, sorted.size) + 1),
                  waves = ceil_div(ceil_div(rows, split), 2 * processors);
    return lines * sorted.n * waves <= kSplitPositions ? split : 0;
}

/// The same where blocks also sum their rows: if they have few positions, most of them.
int64_t own_split(const Sorted& sorted, const Limits& limits) {
    if (sorted.lines > 1 || sorted.width == 1 || sorted.chunk < kOwnPositions) return 0;
    const int64_t split = split_for(sorted, 2 * std::max(limits.processors, 1), limits);
    const bool counted = (2 * (sorted.n / sorted.chunk) + 1) * sorted.tiles < int64_t{1} << 30;
    return counted && 2 * sorted.n * split <= kOwnPositions * sorted.size ? split : 0;
}
int64_t split_of(const Sorted& sorted, const Limits& limits) {
    const int64_t own = own_split(sorted, limits);
    return own ? own : split_for(sorted, std::max(limits.processors, 1), limits);
}

}  // namespace

std::string order_struct(KernelText& text, const Sorted& sorted, const std::string& index,
                         const Limits& limits) {
    const int64_t rows = sorted.lines * sorted.size, count = sorted.lines * sorted.n;
    const int64_t split = split_of(sorted, limits);
    const bool own = own_split(sorted, limits) > 0;
    const int64_t width = std::bit_width(static_cast<uint64_t>((split ? split : rows) - 1)),
                  passes = split ? 1 : std::max<int64_t>(ceil_div(width, kSortBits), 1),
                  bits = std::max<int64_t>(ceil_div(width, passes), 1);
    const int64_t digits = split ? split : std::min(int64_t{1} << bits, rows),
                  tiles = ceil_div(count, kSortTile);
    const int64_t slots = sorted.chunk ? 2 * (count / sorted.chunk) + 1 : 0;
    std::string text_of =
        cat("struct @_O {\n    static constexpr int64_t lines = ", sorted.lines, ", n = ", sorted.n,
            ", size = ", sorted.size, ", chunk = ", sorted.chunk, ", tiles = ", sorted.tiles,
            ", tile = ", kSortTile, ", bound = ", kBoundRows, ", split = ", split,
            ", here = ", own ? kOwnPositions : 0);
    int64_t bytes = 0;
    const auto place = [&](const char* name, int64_t size) {
        text_of += cat(", ", name, " = ", bytes);
        bytes = (bytes + size + 15) / 16 * 16;
    };
    place("found", 8 * rows);
    place("first", 8 * count);
    place("second", passes > 1 ? 8 * count : 0);
    place("counts", split ? 0 : 4 * digits * tiles);
    place("totals", split ? 0 : 4 * digits);
    place("kept", 4);
    place("slots", 8 * slots);
    place("arrivals", 4 * slots * sorted.tiles);
    place("parts", slots * sorted.width * sorted.part);
    text.workspace = static_cast<uint64_t>(bytes);
    text.counters = static_cast<int>(own ? 6 : 2 + 2 * ((split ? 0 : 3 * passes) + 1));
    text.threads = kSortThreads;
    text.resident = 2;
    text.blocks = 2 * std::max(limits.processors, 1);
    if (own) text.blocks = std::min(text.blocks, ceil_div(rows, split));
    // A group has more blocks, of fewer threads.
    const bool once = own && text.blocks == ceil_div(rows, split) && limits.most_warps == 32;
    constexpr int64_t warps = kSortThreads / 32;
    text.shared = static_cast<uint32_t>(
        std::max(4 * (digits + warps) + 2 * (warps + 1) * digits + 2,
                 own ? 12 * kOwnPositions + 4 * (split + 2) : 4 * (kBoundRows + 1)));
    return text_of + cat(";\n    static constexpr int passes = ", passes, ", bits = ", bits,
                         ", warps = ", warps,
                         ";\n    static constexpr bool zero = ", sorted.zero ? "true" : "false",
                         ", once = ", once ? "true" : "false",
                         ";\n    __device__ __forceinline__ static int64_t index(int64_t p) { ",
                         "return ", index, "; }\n};\n");
}

std::string order_body(const BlockLayout& layout, const std::string& sums) {
    return cat("    const Order<@_O> order{block.ptr<char>(16), block.ptr<uint32_t>(", layout.tail,
               ")};\n    ", sums, "    leave(grid, order);\n}\n");
}
std::string sorted_first(const std::string& keys, const std::string& sums) {
    return cat("sort_positions(grid, order, ", keys, ");\n    ", sums);
}

int vector_of(int64_t size, const Dims& shape, const std::vector<Dims>& operands,
              std::initializer_list<int64_t> at) {
    const Iteration merged(shape, operands);
    const int last = merged.shape.rank() - 1;
    if (last < 0 || element_count(shape) == 0) return 1;
    const auto fits = [&](int64_t v) {
        bool whole = merged.shape[last] % v == 0;
        for (const Dims& strides : merged.strides) {
            whole &= strides[last] == 1;
            for (int d = 0; d < last; d++) whole &= strides[d] % v == 0;
        }
        for (int64_t place : at) whole &= place % v == 0;
        return whole;
    };
    int64_t v = 16 / size;
    while (v > 1 && !fits(v)) v /= 2;
    return static_cast<int>(v);
}

int lots_of(int64_t vectors, int processors) {
    const int64_t threads = kMostThreads * std::max(processors, 1);
    return vectors >= 8 * threads ? 4 : vectors >= 4 * threads ? 2 : 1;
}

int64_t lanes_of(int64_t width, int64_t v) {
    int64_t lanes = 1;
    while (lanes < 32 && lanes * v < width) lanes *= 2;
    return lanes;
}

std::string row_sums(const Sorted& sorted, const std::string& keys, const std::string& a, int64_t v,
                     int64_t lanes, const Limits& limits) {
    const bool own = own_split(sorted, limits) > 0;
    const auto sums = [&](int64_t size) {
        return cat(own ? "own_rows<" : "sum_rows<", a, ", ", size, ", ", lanes, ", ", sorted.width,
                   ", @_O, @_P, @_D, @_R, @_E>(grid, order, ", own ? keys + ", " : "",
                   "y0, x0);\n");
    };
    const std::string both = v == 1
                                 ? sums(1)
                                 : cat("if (aligned_for<", v, ">(x0) && aligned_for<", v,
                                       ">(y0))\n        ", sums(v), "    else\n        ", sums(1));
    return own ? both : sorted_first(keys, both);
}

namespace {

/// The loop over a result's elements: `value` computes element i of y0 from the statements before
/// it.
std::string each(const View& y, const std::string& statements, const std::string& value) {
    return cat("    for (int64_t i = grid.begin(); i < ", element_count(y.shape),
               "; i += grid.step()) {\n", statements, "        y0[@_Y::at(i)] = ", value,
               ";\n    }\n}\n");
}

int64_t chunks_of(int64_t vectors, int lots) {
    return std::min<int64_t>((vectors + 256 * lots - 1) / (256 * lots), INT32_MAX);
}

void pad(KernelText& text, const LoweredOp& op, const BlockLayout& layout, const Limits& limits) {
    const View &x = op.inputs[0], &y = op.outputs[0];
    const auto &start = op.attrs.ints("start"), &step = op.attrs.ints("step");
    const int last = y.shape.rank() - 1;
    const int64_t count = element_count(y.shape);
    int v = 1;
    if (count >= kSmall && step[static_cast<size_t>(last)] == 1) {  // lines inside or outside
        const auto in_lines = [&](const View& view) {
            return vector_of(dtype_size(y.dtype), view.shape, {view.strides},
                             {start[static_cast<size_t>(last)], view.shape[last]});
        };
        v = std::min(in_lines(x), in_lines(y));
    }
    const int lots = lots_of(count / v, limits.processors);
    std::string find;
    for (int d = last; d >= 0; d--) {
        const int64_t by = step[static_cast<size_t>(d)];
        find += cat("        { const int64_t off = int64_t(r % ", y.shape[d], "u) - ",
                    start[static_cast<size_t>(d)], ", at = ", by == 1 ? "off" : cat("off / ", by),
                    "; r /= ", y.shape[d],
                    "u; inside &= ", by == 1 ? "" : cat("at * ", by, " == off && "),
                    "at >= 0 && at < ", x.shape[d], "; from += at * ", x.strides[d], "; }\n");
    }
    text.blocks = chunks_of(count / v, lots);
    text.body = place_struct("@_Y", y.shape, y.strides) + body_head(op, layout, true) +
                cat("    copy_where<", v, ", ", lots, ", ", count, ", @_Y>(grid, y0, x0, ",
                    element_literal(y.dtype, op.attrs.number("value")), ", [&](Counter<", count,
                    "> r, int64_t& from) {\n        bool inside = true;\n", find,
                    "        return inside;\n    });\n}\n");
}

void concat(KernelText& text, const LoweredOp& op, const BlockLayout& layout,
            const Limits& limits) {
    const View& y = op.outputs[0];
    const int axis = row_axis(op.attrs, op.inputs[0].shape.rank());
    std::string calls;
    int64_t begin = 0;
    text.blocks = 0;
    for (size_t k = 0; k < op.inputs.size(); k++) {
        const View& x = op.inputs[k];
        const int64_t count = element_count(x.shape), at = begin * y.strides[axis];
        begin += x.shape[axis];
        if (count == 0) continue;
        const int v = element_count(y.shape) < kSmall
                          ? 1
                          : vector_of(dtype_size(y.dtype), x.shape, {x.strides, y.strides}, {at});
        const int lots = lots_of(element_count(y.shape) / v, limits.processors);
        text.body += place_struct(cat("@_X", k), x.shape, x.strides) +
                     place_struct(cat("@_Y", k), x.shape, y.strides);
        calls += cat("    chunk = copy_part<", v, ", ", lots, ", ", count, ", @_X", k, ", @_Y", k,
                     ">(grid, chunk, y0 + ", at, ", x", k, ");\n");
        text.blocks += chunks_of(count / v, lots);
    }
    text.blocks = std::min<int64_t>(text.blocks, INT32_MAX);
    text.body += body_head(op, layout, true) + "    int64_t chunk = grid.block;\n" + calls + "}\n";
}

/// Rows of a table and what says where they are: both operands of take and of its gradient.
struct TableRows {
    int64_t count, rows, width;
    Dims rest;  // of a row
};
TableRows table_rows(const View& table, const View& indices) {
    const Dims rest = part(table.shape, 1, table.shape.rank());
    return {element_count(indices.shape), table.shape[0], element_count(rest), rest};
}

/// `head<arguments>(grid, y0, x0, x1` of a kernel that has elements of these types.
std::string table_call(const LoweredOp& op, const BlockLayout& layout, const std::string& kernel,
                       const char* element) {
    return cat(body_head(), "    ", kernel, ">(grid, block.ptr<", element, ">(", layout.operand[2],
               "), block.ptr<const ", element, ">(", layout.operand[0], "), block.ptr<const ",
               cuda_type(op.inputs[1].dtype), ">(", layout.operand[1], ")");
}

void take(KernelText& text, const LoweredOp& op, const BlockLayout& layout, const Limits& limits) {
    const View &table = op.inputs[0], &indices = op.inputs[1], &y = op.outputs[0];
    const auto [count, rows, width, rest] = table_rows(table, indices);
    const Dims steps = part(table.strides, 1, table.shape.rank());
    text.body = place_struct("@_I", indices.shape, indices.strides) +
                place_struct("@_Y", y.shape, y.strides) + place_struct("@_T", rest, steps);
    const double missing = is_float(y.dtype) ? __builtin_nan("") : 0.0;
    int v = 1;
    if (count * width >= kSmall)
        v = std::min(vector_of(dtype_size(y.dtype), rest, {steps}, {table.strides[0]}),
                     vector_of(dtype_size(y.dtype), y.shape, {y.strides}, {width}));
    const int lots = lots_of(count * width / v, limits.processors);
    text.blocks = chunks_of(count * width / v, lots);
    text.body += table_call(op, layout,
                            cat("take<", v, ", ", lots, ", ", count, ", ", width, ", ", rows, ", ",
                                table.strides[0], ", @_I, @_T, @_Y"),
                            raw_type(y.dtype)) +
                 cat(", ", element_literal(y.dtype, missing), ");\n}\n");
}

/// The gradient by way of sorted positions; `v` elements of a row at once.
void sorted_take_bwd(KernelText& text, const LoweredOp& op, const BlockLayout& layout,
                     const Limits& limits, const Sorted& sorted, int64_t v) {
    const View &dy = op.inputs[0], &y = op.outputs[0];
    const int lead = op.inputs[1].shape.rank();
    const Dims rest = part(y.shape, 1, y.shape.rank()), to = part(y.strides, 1, y.shape.rank()),
               own = part(dy.strides, lead, dy.shape.rank());
    const std::string a = wide_type(y.dtype), step = std::to_string(y.strides[0]);
    text.includes = {"own_rows.cuh"};
    text.body += place_struct("@_P", part(dy.shape, 0, lead), part(dy.strides, 0, lead)) +
                 place_struct("@_D", rest, own) + place_struct("@_E", rest, to) +
                 cat("struct @_R {\n    static constexpr int64_t step = ", step, ";\n};\n") +
                 order_struct(text, sorted, "@_I::at(p)", limits) +
                 cat("struct @_T {\n    __device__ __forceinline__ static int64_t at(int64_t row) ",
                     "{ return row * ", step, "; }\n};\n");
    const std::string sums =
        sorted.width == 1
            ? sorted_first("x1", cat("sum_numbers<", a, ", @_O, @_P, @_T>(grid, order, y0, x0);\n"))
            : row_sums(sorted, "x1", a, v, lanes_of(sorted.width, v), limits);
    text.body += body_head(op, layout) + order_body(layout, sums);
}

void take_bwd(KernelText& text, const LoweredOp& op, const BlockLayout& layout,
              const Limits& limits) {
    const View &dy = op.inputs[0], &indices = op.inputs[1], &y = op.outputs[0];
    const auto [count, rows, width, rest] = table_rows(y, indices);
    const std::string order = op.attrs.text("order");
    const int64_t chunk = order.starts_with("chain(") ? std::atoll(order.c_str() + 6) : kChainChunk;
    const int lead = indices.shape.rank();
    int64_t v =
        vector_of(dtype_size(y.dtype), rest,
                  {part(dy.strides, lead, dy.shape.rank()), part(y.strides, 1, y.shape.rank())},
                  {y.strides[0]});
    for (int d = 0; d < lead; d++)
        while (dy.shape[d] > 1 && dy.strides[d] % v != 0) v /= 2;
    const int64_t tiles = ceil_div(width, lanes_of(width, v));  // of one element at a time
    const Sorted sorted{1, count, rows, chunk, width, tiles, dtype_size(y.dtype) == 8 ? 8 : 4};
    text.body = place_struct("@_I", indices.shape, indices.strides) +
                place_struct("@_Y", y.shape, y.strides);
    if (worth_sorting(sorted, limits)) return sorted_take_bwd(text, op, layout, limits, sorted, v);
    text.blocks = blocks_for(rows * ((width + 255) / 256) * 32, limits.processors);
    text.body += place_struct("@_D", dy.shape, dy.strides) +
                 table_call(op, layout,
                            cat("take_bwd<", wide_type(y.dtype), ", ", count, ", ", width, ", ",
                                rows, ", ", chunk, ", @_I, @_D, @_Y"),
                            cuda_type(y.dtype)) +
                 ");\n}\n";
}

void pick(KernelText& text, const LoweredOp& op, const BlockLayout& layout, const Limits&) {
    const View &x = op.inputs[0], &labels = op.inputs[1], &y = op.outputs[0];
    const bool backward = op.def->name == "pick_bwd";
    const std::string raw = raw_type(y.dtype);
    text.body = place_struct("@_Y", y.shape, y.strides);
    text.body += body_head() + cat("    auto* y0 = block.ptr<", raw, ">(", layout.operand[2],
                                   ");\n    const auto* x0 = block.ptr<const ", raw, ">(",
                                   layout.operand[0], ");\n    const auto* x1 = block.ptr<const ",
                                   cuda_type(labels.dtype), ">(", layout.operand[1], ");\n");
    const std::string label = cat("x1[row * ", labels.strides[0], "]");
    if (backward)
        text.body += each(y,
                          cat("        const int64_t row = i / ", y.shape[1], ", c = i - row * ",
                              y.shape[1], ", label = ", label, ";\n"),
                          cat("c == label ? x0[row * ", x.strides[0], "] : ", raw, "(0)"));
    else
        text.body += each(
            y, cat("        const int64_t row = i, label = ", label, ";\n"),
            cat("label >= 0 && label < ", x.shape[1], " ? x0[row * ", x.strides[0], " + label * ",
                x.strides[1], "] : ", element_literal(y.dtype, __builtin_nan(""))));
}

/// Whether windows lie side by side and show every element of an image once, few enough to be held
/// each by a thread: then how many elements of a row of one move together, else 0.
int64_t apart_windows(const LoweredOp& op) {
    const View &x = op.inputs[0], &dx = op.outputs[0], &dy = op.inputs[2];
    const int lead = dx.shape.rank() - 2;
    int64_t terms = 1;
    for (int d = 0; d < 2; d++) {
        const auto axis = static_cast<size_t>(d);
        const int64_t size = op.attrs.ints("kernel")[axis];
        if (op.attrs.ints("stride")[axis] != size || op.attrs.ints("dilation")[axis] != 1 ||
            dy.shape[lead + d] * size != dx.shape[lead + d] || size > 16)
            return 0;
        terms *= size;
    }
    if (terms > 16) return 0;
    const int64_t width = op.attrs.ints("kernel")[1];
    int64_t v = vector_of(dtype_size(dx.dtype), dx.shape, {x.strides, dx.strides});
    while (width % v != 0) v /= 2;
    return v;
}

void windows(KernelText& text, const LoweredOp& op, const BlockLayout& layout,
             const Limits& limits) {
    const std::string& name = op.def->name;
    const View &x = op.inputs[0], &y = op.outputs[0];
    const int lead = y.shape.rank() - 2;
    const auto planes = [&](const char* place, const View& view) {
        return place_struct(place, part(view.shape, 0, lead), part(view.strides, 0, lead));
    };
    text.body = planes("@_X", x) + planes("@_Y", y);
    std::string g = "struct @_G {\n    typedef @_X X;\n    typedef @_Y Y;\n";
    for (const char* list : {"kernel", "stride", "dilation"})
        for (size_t d = 0; d < 2; d++) g += number(cat(list, d).c_str(), op.attrs.ints(list)[d]);
    for (int d = 0; d < x.shape.rank() - lead; d++)
        g += number(cat("x", d).c_str(), x.strides[lead + d]);
    for (int d = 0; d < 2; d++) {
        g += number(cat("y", d).c_str(), y.strides[lead + d]);
        g += number(cat("out", d).c_str(), y.shape[lead + d]);
    }
    if (name == "fold")
        for (int d = 0; d < 2; d++) g += number(cat("windows", d).c_str(), x.shape[lead + 2 + d]);
    if (name == "max_pool_bwd") {
        const View& dy = op.inputs[2];
        text.body += planes("@_D", dy);
        g += "    typedef @_D D;\n";
        for (int d = 0; d < 2; d++) {
            g += number(cat("windows", d).c_str(), dy.shape[lead + d]);
            g += number(cat("d", d).c_str(), dy.strides[lead + d]);
        }
    }
    g += number("planes", element_count(part(y.shape, 0, lead))) + "};\n";
    text.body += g + body_head(op, layout);
    if (const int64_t v = name == "max_pool_bwd" ? apart_windows(op) : 0) {
        const int64_t count = element_count(op.inputs[2].shape);
        text.blocks = blocks_for(count, limits.processors);
        text.body += cat("    max_pool_bwd_apart<", wide_type(y.dtype), ", @_G, ", v,
                         ">(grid, y0, x0, x2);\n}\n");
        return;
    }
    text.body += cat("    ", name, "<", wide_type(y.dtype), ", @_G>(grid, y0, x0",
                     name == "max_pool_bwd" ? ", x2" : "", ");\n}\n");
}

void argmax(KernelText& text, const LoweredOp& op, const BlockLayout& layout,
            const Limits& limits) {
    const View &x = op.inputs[0], &y = op.outputs[0];
    const int rank = x.shape.rank();
    int64_t axis = op.attrs.ints("axes")[0];
    if (axis < 0) axis += rank;
    const int a = static_cast<int>(axis);
    Dims shape = x.shape, from = x.strides, to = y.strides;
    shape.erase(a);
    from.erase(a);
    if (to.rank() == rank) to.erase(a);
    const int64_t results = element_count(shape), n = x.shape[a];
    // Neighbours in memory are a warp's: elements of a result, or results.
    const int lanes = n > 1 && x.strides[a] == 1 ? 32 : 1;
    const int64_t strips = (results * lanes + 255) / 256;
    const int64_t pieces = limits.one_block
                               ? 1
                               : std::clamp<int64_t>(4 * limits.processors / strips, 1,
                                                     (n + lanes * kWarp - 1) / (lanes * kWarp));
    text.blocks = std::min<int64_t>(strips * pieces, INT32_MAX);
    if (pieces > 1) {
        text.workspace = static_cast<uint64_t>(16 * results * pieces);
        text.counters = static_cast<int>(strips);
    }
    text.body =
        place_struct("@_X", shape, from) + place_struct("@_Y", shape, to) + body_head(op, layout);
    text.body +=
        cat("    argmax<", lanes, ", ", pieces, ", ", results, ", ", n, ", ", x.strides[a],
            ", @_X, @_Y>(grid, y0, x0, ",
            pieces > 1 ? cat("block.ptr<char>(16), block.ptr<uint32_t>(", layout.tail, "));\n}\n")
                       : "(char*)nullptr, (uint32_t*)nullptr);\n}\n");
}

/// Running sums of lines, totals of their chunks, or running sums of chunks behind those totals'.
void scan(KernelText& text, const LoweredOp& op, const BlockLayout& layout, const Limits& limits) {
    const View &x = op.inputs[0], &y = op.outputs[0];
    const bool totals = op.def->name == "chunk_sums", behind = op.def->name == "cumsum_chunks";
    const View& before = behind ? op.inputs[1] : y;
    const int a = static_cast<int>(op.attrs.integer("axis"));
    const auto beside = [&](Dims dims) {
        dims.erase(a);
        return dims;
    };
    const Dims shape = beside(x.shape);
    const int64_t results = element_count(shape), n = x.shape[a],
                  chunk = totals || behind ? kScanChunk : std::max<int64_t>(n, 1),
                  lines = results * ((n + chunk - 1) / chunk);
    text.body = place_struct("@_X", shape, beside(x.strides)) +
                place_struct("@_Y", shape, beside(y.strides)) +
                place_struct("@_B", shape, beside(before.strides)) + body_head(op, layout);
    const std::string kind = totals   ? "kTotals"
                             : behind ? "kChunks"
                                      : "kWhole",
                      rest = cat(y.strides[a], ", ", before.strides[a], ", ",
                                 op.attrs.flag("reverse") ? "true" : "false",
                                 ", @_X, @_Y, @_B>(grid, y0, x0, ", behind ? "x1" : "(const ",
                                 behind ? "" : cat(wide_type(x.dtype), "*)nullptr"), ");\n}\n");
    if (!limits.one_block && n >= kLineTerms && x.strides[a] == 1 &&
        (totals || y.strides[a] == 1)) {
        const int64_t warps = int64_t{kLineWarps} * limits.processors;
        const int own = lines >= 32 * warps ? 32 : lines >= warps ? 8 : 1;
        const int64_t size = std::max<int64_t>(dtype_size(x.dtype), 4);
        text.threads = 128;
        text.shared = static_cast<uint32_t>(4 * (1024 + own) * size);
        text.blocks = std::min<int64_t>((lines + 4 * own - 1) / (4 * own), INT32_MAX);
        text.body += cat("    cumsum_lines<", sum_type(x.dtype), ", ", kind, ", ", own, ", ",
                         results, ", ", n, ", ", chunk, ", ", rest);
        return;
    }
    text.blocks = (lines + 255) / 256;
    text.body += cat("    cumsum<", sum_type(x.dtype), ", ", kind, ", ", results, ", ", n, ", ",
                     chunk, ", ", x.strides[a], ", ", rest);
    if (n == 0) text.blocks = 0;
}

/// Writes the body of a kernel.
struct Writer {
    std::string_view name;
    void (*write)(KernelText& text, const LoweredOp& op, const BlockLayout& layout,
                  const Limits& limits);
};
constexpr Writer kWriters[] = {
    {"pad", pad},
    {"concat", concat},
    {"take", take},
    {"take_bwd", take_bwd},
    {"pick", pick},
    {"pick_bwd", pick},
    {"fold", windows},
    {"max_pool", windows},
    {"max_pool_bwd", windows},
    {"cumsum", scan},
    {"chunk_sums", scan},
    {"cumsum_chunks", scan},
    {"reduce_argmax", argmax},
};

const Writer* find_writer(std::string_view name) {
    const auto at = std::find_if(std::begin(kWriters), std::end(kWriters),
                                 [&](const Writer& writer) { return writer.name == name; });
    return at == std::end(kWriters) ? nullptr : at;
}

}  // namespace

bool is_indexed(const LoweredDef& def) { return find_writer(def.name) != nullptr; }

KernelText indexed_text(const LoweredOp& op, const Limits& limits) {
    const std::string& name = op.def->name;
    const BlockLayout layout(op);
    const View& y = op.outputs[0];
    const int64_t count = element_count(y.shape);
    KernelText text;
    text.includes = {"indexed.cuh"};
    text.name = cat(name, "_", dtype_abbrev(y.dtype));
    text.blocks = blocks_for(count, limits.processors);
    if (count == 0) return text;
    find_writer(name)->write(text, op, layout, limits);
    return text;
}

bool is_random(const LoweredDef& def) {
    return def.name == "dropout" || def.name == "random_uniform" || def.name == "random_normal";
}

KernelText random_text(const LoweredOp& op, const Limits& limits) {
    const std::string& name = op.def->name;
    const BlockLayout layout(op);
    const View& y = op.outputs[0];
    const int64_t count = element_count(y.shape);
    KernelText text;
    text.includes = {"random.cuh"};
    text.name = cat(name, "_", dtype_abbrev(y.dtype));
    text.blocks = blocks_for((count + 3) / 4, limits.processors);
    text.body = place_struct("@_Y", y.shape, y.strides);
    const auto scalar = [&](int at, bool whole) {
        return cat(whole ? "block.integer(" : "block.number(", layout.scalars + 8 * at, ")");
    };
    if (name == "dropout") {
        text.body +=
            place_struct("@_X", op.inputs[0].shape, op.inputs[0].strides) + body_head(op, layout);
        text.body += cat("    dropout<@_X, @_Y>(grid, y0, x0, ", count, ", *x1, *x2, ",
                         scalar(0, false), ", ", scalar(1, true), ");\n}\n");
        return text;
    }
    // Scalars: shape[8], dtype, a, b, stream, last.
    text.body += body_head(op, layout);
    text.body +=
        cat("    ", name, "<@_Y>(grid, y0, ", count, ", *x0, *x1, ", scalar(9, false), ", ",
            scalar(10, false), ", ", scalar(11, true), ", ", scalar(12, false), ");\n}\n");
    return text;
}

}  // namespace aicf::cuda
