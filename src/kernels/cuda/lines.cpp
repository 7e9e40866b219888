// Ops along one axis that go by position: gather, scatter, searches, sorting, running products.
#include <algorithm>

#include "core/abi/sort.h"
#include "kernels/cuda/codegen.h"

namespace aicf::cuda {

namespace {

constexpr std::string_view kLineOps[] = {
    "gather",  "scatter_add", "scatter_last", "searchsorted", "argsort",      "argsort_merge",
    "cumprod", "cumarg",      "recurrence",   "ctc_paths",    "ctc_paths_bwd"};

/// The structs @_<name>At and, for the lines of an operand, the type LineOf.
std::string line_of(std::string& text, const char* name, const View& view, int axis) {
    Dims shape = view.shape, strides = view.strides;
    shape.erase(axis);
    strides.erase(axis);
    text += place_struct(cat("@_", name), shape, strides);
    return cat("LineOf<@_", name, ", ", view.strides[axis], ">");
}

const char* yes_no(bool yes) { return yes ? "true" : "false"; }

/// The same for scatter_add and scatter_last with many positions, which are sorted first; false
/// where they are not.
bool sorted_text(KernelText& text, const LoweredOp& op, const BlockLayout& layout,
                 const Limits& limits, int axis) {
    const bool last = op.def->name == "scatter_last";
    const View &x = op.inputs[0], &indices = op.inputs.back(), &y = op.outputs[0];
    Dims rest = y.shape, own = x.strides, keys = indices.strides, to = y.strides;
    for (Dims* dims : {&rest, &own, &keys, &to}) dims->erase(axis);
    bool shared = !last && rest.rank() > 0;  // one line of indices for all
    for (int d = 0; d < rest.rank(); d++) shared &= rest[d] == 1 || keys[d] == 0;
    const int64_t others = element_count(rest), n = x.shape[axis], size = y.shape[axis];
    shared &= others > 1;
    Sorted sorted{shared ? 1 : others, n, size};
    sorted.chunk = last ? 0 : kChainChunk;
    sorted.zero = true;
    sorted.part = dtype_size(y.dtype) == 8 ? 8 : 4;
    int64_t v = 1, lanes = 1;
    if (shared) {
        v = vector_of(dtype_size(y.dtype), rest, {own, to}, {x.strides[axis], y.strides[axis]});
        lanes = lanes_of(others, v);
        sorted.width = others;
        sorted.tiles = (others + lanes - 1) / lanes;
    }
    if (!worth_sorting(sorted, limits)) return false;
    text.includes = {"order.cuh", "lines.cuh"};
    const std::string line = line_of(text.body, "B", indices, axis);
    text.body += order_struct(
        text, sorted,
        shared || others == 1 ? cat(line, "::at(0, p)")
                              : cat(line, "::at(uint32_t(p) / ", n, "u, uint32_t(p) % ", n, "u)"),
        limits);
    std::string sums;
    if (shared) {
        text.body += cat("struct @_P : Line<", x.strides[axis], "> {};\nstruct @_R {\n    static ",
                         "constexpr int64_t step = ", y.strides[axis], ";\n};\n") +
                     place_struct("@_D", rest, own) + place_struct("@_E", rest, to);
        sums = row_sums(sum_type(y.dtype), v, lanes, others);
    } else {
        const auto place_of = [&](const char* name, const char* operand, const View& view,
                                  int64_t length) {  // of element i of all lines
            const std::string type = line_of(text.body, operand, view, axis);
            text.body +=
                cat("struct ", name, " {\n    __device__ __forceinline__ static int64_t at(",
                    "uint32_t i) { return ", type, "::at(",
                    others == 1 ? std::string("0, i") : cat("i / ", length, "u, i % ", length, "u"),
                    "); }\n};\n");
        };
        place_of("@_T", "Y", y, size);
        if (!last) place_of("@_P", "A", x, n);
        sums = last ? std::string("last_positions<@_O, @_T>(grid, order, y0);\n")
                    : cat("sum_numbers<", sum_type(y.dtype),
                          ", @_O, @_P, @_T>(grid, order, y0, x0);\n");
    }
    text.body += body_head(op, layout) + order_body(layout, last ? "x0" : "x1", sums);
    return true;
}

}  // namespace

bool is_line_op(const LoweredDef& def) {
    return std::find(std::begin(kLineOps), std::end(kLineOps), def.name) != std::end(kLineOps);
}

KernelText line_text(const LoweredOp& op, const Limits& limits) {
    const std::string& name = op.def->name;
    const View& y = op.outputs[0];
    const int64_t count = element_count(y.shape);
    const BlockLayout layout(op);
    KernelText text;
    text.includes = {"lines.cuh"};
    text.name = cat(name, "_", dtype_abbrev(op.inputs[0].dtype));
    if (count == 0) {
        text.blocks = 0;
        return text;
    }
    if (name.starts_with("ctc_paths")) {  // a block a member of the batch
        const int64_t states = y.shape[2];
        std::string operands;
        const auto add = [&](const View& view) {
            const int last = view.shape.rank() - 1;
            operands += cat(", StatesOf<", last < 2 ? 0 : view.strides[0], ", ",
                            view.strides[last - 1], ", ", view.strides[last], ">");
        };
        for (const View& view : op.inputs) add(view);
        add(y);
        text.threads = static_cast<int>(std::min<int64_t>((states + 31) / 32 * 32, 256));
        text.blocks = std::min<int64_t>(y.shape[1], int64_t{limits.processors} * 64);
        text.body +=
            body_head(op, layout) +
            cat("    ", name, "<", y.shape[0], ", ", y.shape[1], ", ", states, operands,
                ">(grid, y0", op.inputs.size() == 2 ? ", x0, x1" : ", x0, x1, x2, x3", ");\n}\n");
        return text;
    }
    const int rank = y.shape.rank(),
              axis = name == "searchsorted" ? rank - 1 : static_cast<int>(op.attrs.integer("axis"));
    if (name.starts_with("scatter") && sorted_text(text, op, layout, limits, axis)) return text;
    int64_t inner = 1;
    for (int d = axis + 1; d < rank; d++) inner *= y.shape[d];
    const int64_t size = y.shape[axis], lines = count / size, n = op.inputs[0].shape[axis];
    const std::string place = cat("PlaceOf<", inner, ", ", size, ", ", count, ">");
    std::string operands, call;
    for (size_t k = 0; k < op.inputs.size(); k++)
        operands += line_of(text.body, k == 0 ? "A" : "B", op.inputs[k], axis) + ", ";
    operands += line_of(text.body, "Y", y, axis);
    const auto pass = [&](const char* given) {
        return cat(", ", operands, ">(grid, y0", given, ");\n}\n");
    };
    const auto blocks_for = [&](int64_t threads) {
        return std::min<int64_t>((threads + 255) / 256, int64_t{limits.processors} * 64);
    };
    const std::string each = cat(place, ", ", count, ", ", n);
    text.blocks = blocks_for(count);
    const bool raw = name == "gather";
    const auto flag = [&](const char* attr) { return yes_no(op.attrs.flag(attr)); };
    if (name == "gather") {
        const bool zero = op.attrs.flag("zero") || !is_float(y.dtype);
        const int lots = lots_of(count, limits.processors);
        text.blocks = std::min<int64_t>((count + 256 * lots - 1) / (256 * lots), INT32_MAX);
        call = cat("gather<", each, ", ", lots,
                   pass(cat(", x0, block.ptr<const ", cuda_type(op.inputs[1].dtype), ">(",
                            layout.operand[1], "), ",
                            element_literal(y.dtype, zero ? 0.0 : __builtin_nan("")))
                            .c_str()));
    } else if (name == "scatter_add") {
        call =
            cat("scatter_add<", sum_type(y.dtype), ", ", each, ", ", kChainChunk, pass(", x0, x1"));
    } else if (name == "scatter_last") {
        call = cat("scatter_last<", each, pass(", x0"));
    } else if (name == "searchsorted") {
        call = cat("searchsorted<", each, ", ", flag("right"), pass(", x0, x1"));
    } else if (name == "argsort_merge") {
        call = cat("argsort_merge<", each, ", ", op.attrs.integer("run"), ", ", flag("descending"),
                   pass(", x0, x1"));
    } else if (name == "argsort") {
        int width = 2;
        while (width < std::min(n, kSortRun)) width *= 2;
        text.shared = static_cast<uint32_t>(12 * width);
        text.blocks = std::min<int64_t>(lines * ((n + kSortRun - 1) / kSortRun),
                                        int64_t{limits.processors} * 64);
        call = cat("argsort<", lines, ", ", n, ", ", width, ", ", flag("descending"), pass(", x0"));
    } else if (name == "recurrence") {
        text.blocks = blocks_for(lines);
        call = cat("recurrence<", sum_type(y.dtype), ", ", lines, ", ", n, ", ", flag("reverse"),
                   ", ", flag("lagged"), pass(", x0, x1"));
    } else {
        text.blocks = blocks_for(lines);
        call = name == "cumprod" ? cat("cumprod<", sum_type(y.dtype), ", ", lines, ", ", n)
                                 : cat("cumarg<", lines, ", ", n, ", ", flag("smallest"));
        call += pass(", x0");
    }
    text.body += body_head(op, layout, raw) + "    " + call;
    return text;
}

}  // namespace aicf::cuda
