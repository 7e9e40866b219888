// Attention and its gradients: which kernel takes them, and how their operands lie.
#include <algorithm>

#include "kernels/cuda/codegen.h"
#include "kernels/cuda/thresholds.h"

namespace aicf::cuda {

namespace {

/// How the rows of an operand lie, [batch, head, row, column] or without columns: a struct.
/// `inside`: it is [batch, row, head, column].
std::string head_struct(const char* name, const View& view, bool inside) {
    const int rank = view.shape.rank();
    return cat(
        "struct @_", name, " {\n    static constexpr int64_t row = ", view.strides[inside ? 1 : 2],
        ", col = ", rank > 3 ? view.strides[3] : 0,
        ";\n    __device__ __forceinline__ static int64_t at(int64_t batch, int64_t head) {\n"
        "        return batch * ",
        view.strides[0], "ll + head * ", view.strides[inside ? 2 : 1], "ll;\n    }\n};\n");
}

/// What an op's operands are called in the kernel.
struct Named {
    const View* view;
    size_t at;
    const char *type, *name;
};

std::vector<Named> operands_of(const LoweredOp& op) {
    const std::string& name = op.def->name;
    const bool forward = name == "attention";
    std::vector<const char*> types = {"Q", "K", "V"};
    if (!forward) types.insert(types.end(), {"Most", "Sum", "Delta", "Dy"});
    if (op.inputs.size() > types.size()) types.push_back("Mask");
    if (forward) types.insert(types.end(), {"O", "Most", "Sum"});
    if (name == "attention_dq") types.push_back("Dq");
    if (name == "attention_dkv") types.insert(types.end(), {"Dk", "Dv"});
    std::vector<Named> all;
    for (size_t k = 0; k < types.size(); k++)
        all.push_back({k < op.inputs.size() ? &op.inputs[k] : &op.outputs[k - op.inputs.size()], k,
                       types[k], types[k]});
    return all;
}

/// How the copy engine reads the rows of an operand by boxes of 64 columns, and the struct's two
/// functions that say where a head begins; none where it cannot.
struct HeadMap {
    TensorMap map;
    std::string places;
};
std::optional<HeadMap> head_map(const LoweredOp& op, int input, const char* name, int box) {
    constexpr int64_t unit = 8, most = int64_t{1} << 31;  // 16 bytes; what a map counts with
    const View& view = op.inputs[static_cast<size_t>(input)];
    const int64_t batches = view.shape[0], heads = view.shape[1], rows = view.shape[2],
                  d = view.shape[3], b = view.strides[0], h = view.strides[1], r = view.strides[2];
    if (dtype_size(view.dtype) != 2 || d % 64 != 0 || view.strides[3] != 1 || rows < 1)
        return std::nullopt;
    for (int64_t step : {b, h, r, view.offset})
        if (step < 0 || step % unit != 0 || step >= most) return std::nullopt;
    if (rows >= most || batches * heads >= most || r < d) return std::nullopt;
    const auto places = [&](const std::string& x, const std::string& z) {
        const auto place = [&](const char* of, const std::string& arguments,
                               const std::string& value) {
            return cat("    __device__ __forceinline__ static int ", name, of, "(", arguments,
                       ") {\n        return int(", value, ");\n    }\n");
        };
        return place("_x", "int64_t head", x) + place("_z", "int64_t batch, int64_t head", z);
    };
    // Heads one after the other as batches are, or inside a line.
    if (heads == 1 || batches == 1 || b == h * heads) {
        const int64_t step = heads == 1 ? b : h;
        if (batches * heads == 1 || step >= d)
            return HeadMap{{input, view.dtype, d, rows, batches * heads, r,
                            batches * heads == 1 ? r : step, box},
                           places("0", cat("batch * ", heads, " + head"))};
    }
    const int64_t line = (heads - 1) * h + d;
    if (line > r || (batches > 1 && b < 1)) return std::nullopt;
    return HeadMap{{input, view.dtype, line, rows, batches, r, batches == 1 ? r : b, box},
                   places(cat("head * ", h), batches == 1 ? "0" : "batch")};
}

/// A function that multiplies 64 rows by wgmma: `a` and `b` are what it is called with and what the
/// instruction says of them.
std::string step_text(const char* name, int columns, DType type, bool held, bool across) {
    const int sums = columns / 2;
    std::string list, operands;
    for (int x = 0; x < sums; x++) {
        list += cat(x ? ", %" : "%", x);
        operands += cat(x ? ", \"+f\"(d[" : "\"+f\"(d[", x, "])");
    }
    const char* kind = type == DType::f16 ? "f16" : "bf16";
    std::string first = cat("%", sums), values = "\"l\"(a)";
    int next = sums + 1;
    if (held) {
        first = cat("{%", sums, ", %", sums + 1, ", %", sums + 2, ", %", sums + 3, "}");
        values = "\"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3])";
        next = sums + 4;
    }
    return cat("    __device__ __forceinline__ static void ", name, "(float (&d)[", sums, "], ",
               held ? "const uint32_t (&a)[4]" : "uint64_t a",
               ", uint64_t b, bool add) {\n        asm volatile(\"{\\n.reg .pred p;\\nsetp.ne.b32 "
               "p, %",
               next + 1, ", 0;\\n\"\n            \"wgmma.mma_async.sync.aligned.m64n", columns,
               "k16.f32.", kind, ".", kind, " {", list, "}, ", first, ", %", next, ", p, 1, 1",
               held ? "" : ", 0", across ? ", 1" : ", 0", ";\\n}\"\n            : ", operands,
               "\n            : ", values, ", \"l\"(b), \"r\"(int(add)));\n    }\n");
}

/// Whether rows of a result lie so that a lane stores two neighbours at once, wherever it begins.
bool stores_pairs(const View& view) {
    bool pairs = view.strides[3] == 1 && view.offset % 2 == 0;
    for (int axis = 0; axis < 3; axis++) pairs = pairs && view.strides[axis] % 2 == 0;
    return pairs;
}

/// How the tiles of heads are dealt to the blocks of a persistent grid, as TileTurn has it.
struct Deal {
    int64_t lot, blocks;
};
/// The deal whose busiest block has least to do. `costs`: of the tiles of a head, the longest
/// first; `bytes`: what a head's tiles read in common.
Deal deal(const std::vector<int64_t>& costs, int64_t heads, int64_t bytes, int processors) {
    constexpr int64_t cached = 24 << 20, looked_at = 1 << 16;
    const auto tiles = static_cast<int64_t>(costs.size());
    const int64_t units = tiles * heads, all = std::max(processors, 1);
    const int64_t most = std::clamp(cached / std::max<int64_t>(bytes, 1), int64_t{1}, heads);
    Deal best{1, std::min(units, all)};
    if (costs.front() == costs.back() || units > looked_at) {
        best.lot = std::clamp(ceil_div(2 * all, tiles), int64_t{1}, most);
        return best;
    }
    int64_t least = INT64_MAX;
    for (const int64_t blocks : {all, std::max(all / tiles * tiles, all / 2)})
        for (int64_t lot = 1, last = 0; last < most;
             last = lot, lot = std::min(most, lot + std::max<int64_t>(lot / 8, 1))) {
            std::vector<int64_t> loads(static_cast<size_t>(std::min(units, blocks)));
            const auto width = static_cast<int64_t>(loads.size());
            for (int64_t unit = 0; unit < units; unit++) {
                const int64_t round = unit / width, at = unit % width,
                              first = unit / (tiles * lot) * lot;
                loads[static_cast<size_t>(round % 2 ? width - 1 - at : at)] +=
                    costs[static_cast<size_t>(unit % (tiles * lot) / std::min(lot, heads - first))];
            }
            const int64_t busiest = *std::max_element(loads.begin(), loads.end());
            if (busiest < least) {
                least = busiest;
                best = {lot, width};
            }
        }
    return best;
}

/// What the tiles of `rows` rows of a head cost, the longest first, in blocks of `block` others.
std::vector<int64_t> tile_costs(const LoweredOp& op, int64_t rows, int64_t block, bool of_keys) {
    const int64_t t = op.inputs[0].shape[2], s = op.inputs[1].shape[2];
    const bool causal = op.attrs.flag("causal");
    std::vector<int64_t> costs;
    if (of_keys)
        for (int64_t j = 0; j < s; j += rows)
            costs.push_back(1 + ceil_div(causal ? std::max<int64_t>(t - j, 0) : t, block));
    else
        for (int64_t i = 0; i < t; i += rows)
            costs.insert(costs.begin(), 1 + ceil_div(causal ? std::min(i + rows, s) : s, block));
    return costs;
}

/// The forward kernel of 9.0 of heads of 64 or 128 without a mask; false where it is none.
bool forward_roles(KernelText& text, const LoweredOp& op, const BlockLayout& layout,
                   const Limits& limits, const std::string& results) {
    const View& q = op.inputs[0];
    const int64_t d = q.shape[3], t = q.shape[2];
    if (limits.major != 9 || op.inputs.size() > 3 || (d != 64 && d != 128) || t < kRolesRows ||
        op.inputs[1].shape[2] < kRolesRows || !stores_pairs(op.outputs[0]))
        return false;
    const bool ahead = d == 64;  // registers hold the scores of two blocks
    const int groups = 2, stages = ahead ? 4 : 2, boxes = static_cast<int>(d / 64);
    const auto queries = head_map(op, 0, "q", 64 * groups), keys = head_map(op, 1, "k", 128),
               values = head_map(op, 2, "v", 128);
    if (!queries || !keys || !values) return false;
    const int64_t heads = q.shape[0] * q.shape[1], tiles = ceil_div(t, 64 * groups) * heads;
    if (tiles >= INT32_MAX) return false;
    const Deal dealt = deal(tile_costs(op, 64 * groups, 128, false), heads,
                            op.inputs[1].shape[2] * d * 4, limits.processors);
    text.name = cat("attention_wgmma_", dtype_abbrev(q.dtype));
    text.includes = {"attention_wgmma.cuh"};
    text.threads = 128 * (groups + 1);
    text.blocks = dealt.blocks;
    text.maps = {queries->map, keys->map, values->map};
    // As AttentionRoom has it.
    const int64_t box = 128 * 128, ones = boxes == 1 ? 2048 : box,
                  value = boxes * box + (boxes == 1 ? 0 : ones);
    text.shared =
        static_cast<uint32_t>(2 * boxes * groups * 64 * 128 + stages * (boxes * box + value) +
                              (boxes == 1 ? ones : 0) + 8 * (4 + 4 * stages));
    text.body += cat("struct @_Layout {\n    static constexpr int boxes = ", boxes,
                     ", groups = ", groups, ", stages = ", stages,
                     ", producer_registers = 24, consumer_registers = 240;\n"
                     "    static constexpr uint32_t lot = ",
                     dealt.lot, ";\n    static constexpr bool ahead = ", ahead ? "true" : "false",
                     ", turns = ", ahead ? "false" : "true", ";\n", queries->places, keys->places,
                     values->places, step_text("scores", 128, q.dtype, false, false),
                     step_text("values", static_cast<int>(d) + 8, q.dtype, true, true), "};\n");
    text.body += body_head();
    std::string maps;
    for (int k = 0; k < 3; k++)
        maps += cat("block.bytes + ", layout.tail + int(kTailBytes) + k * int(kMapBytes), ", ");
    text.body +=
        cat("    attention_wgmma<@_Layout, @_Shape, ", cuda_type(q.dtype), ">(grid, ", results,
            maps, "float(block.number(", layout.scalars, ") * 1.4426950408889634));\n}\n");
    return true;
}

/// The same of gradients: a block has 128 rows of its own against blocks of the others.
bool gradient_roles(KernelText& text, const LoweredOp& op, const BlockLayout& layout,
                    const Limits& limits, const std::string& results) {
    const View &q = op.inputs[0], &k = op.inputs[1];
    const int64_t d = q.shape[3], t = q.shape[2], s = k.shape[2];
    const bool of_keys = op.def->name == "attention_dkv";
    if (limits.major != 9 || op.inputs.size() > 7 || (d != 64 && d != 128) || t < kRolesRows ||
        s < kRolesRows || !std::all_of(op.outputs.begin(), op.outputs.end(), stores_pairs))
        return false;
    const int rows = 128, block = 64, boxes = static_cast<int>(d / 64), stages = 5 - boxes;
    const bool ahead = d == 64;  // as far as registers hold the next scores
    const int of_q = of_keys ? block : rows, of_k = of_keys ? rows : block;
    const auto queries = head_map(op, 0, "q", of_q), keys = head_map(op, 1, "k", of_k),
               values = head_map(op, 2, "v", of_k), upstream = head_map(op, 6, "dy", of_q);
    if (!queries || !keys || !values || !upstream) return false;
    const int64_t heads = q.shape[0] * (of_keys ? k : q).shape[1],
                  tiles = ceil_div(of_keys ? s : t, rows) * heads;
    if (tiles >= INT32_MAX) return false;
    const Deal dealt =
        deal(tile_costs(op, rows, block, of_keys), heads,
             4 * d * (of_keys ? t * (q.shape[1] / k.shape[1]) : s), limits.processors);
    text.name = cat(op.def->name, "_wgmma_", dtype_abbrev(q.dtype));
    text.includes = {"attention_bwd_wgmma.cuh"};
    text.threads = 384;
    text.blocks = dealt.blocks;
    text.maps = {queries->map, keys->map, values->map, upstream->map};
    // As GradientRoom has it.
    text.shared = static_cast<uint32_t>(4 * boxes * rows * 128 + stages * 2 * boxes * block * 128 +
                                        stages * 8 * block + 8 * (4 + 4 * stages));
    text.body += cat("struct @_Layout {\n    static constexpr int boxes = ", boxes,
                     ", block = ", block, ", stages = ", stages,
                     ", producer_registers = 40, consumer_registers = 232;\n"
                     "    static constexpr uint32_t lot = ",
                     dealt.lot, ";\n    static constexpr bool ahead = ", ahead ? "true" : "false",
                     ";\n", queries->places, keys->places, values->places, upstream->places,
                     step_text("scores", block, q.dtype, false, false),
                     step_text("values", static_cast<int>(d), q.dtype, true, true), "};\n");
    text.body += body_head();
    const auto number = [&](int input) {
        return cat("block.ptr<const float>(", layout.operand[static_cast<size_t>(input)], "), ");
    };
    std::string maps;
    for (int x = 0; x < 4; x++)
        maps += cat("block.bytes + ", layout.tail + int(kTailBytes) + x * int(kMapBytes), ", ");
    const std::string scale = cat("block.number(", layout.scalars, ")");
    text.body += cat("    ", op.def->name, "_wgmma<@_Layout, @_Shape, ", cuda_type(q.dtype),
                     ">(grid, ", results, number(3), number(4), number(5), maps, "float(", scale,
                     " * 1.4426950408889634), float(", scale, "));\n}\n");
    return true;
}

bool with_roles(KernelText& text, const LoweredOp& op, const BlockLayout& layout,
                const Limits& limits, const std::string& results) {
    return (op.def->name == "attention" ? forward_roles : gradient_roles)(text, op, layout, limits,
                                                                          results);
}

}  // namespace

bool is_attention(const LoweredDef& def) { return def.attention; }

std::vector<std::string> attention_candidates(const LoweredOp& op, const Limits& limits) {
    KernelText text;
    if (op.attrs.text("order").starts_with("chain(") ||
        !with_roles(text, op, BlockLayout(op), limits, ""))
        return {};
    if (op.inputs[0].shape[2] < kRolesLength || op.inputs[1].shape[2] < kRolesLength)
        return {kPlainAttention, kRolesAttention};
    return {kRolesAttention, kPlainAttention};
}

KernelText attention_text(const LoweredOp& op, const Limits& limits) {
    const std::string &name = op.def->name, &order = op.attrs.text("order");
    const View &q = op.inputs[0], &k = op.inputs[1];
    const int64_t batches = q.shape[0], heads = q.shape[1], t = q.shape[2], d = q.shape[3],
                  groups = k.shape[1], s = k.shape[2];
    const bool chain = order.starts_with("chain("), forward = name == "attention",
               keys = name == "attention_dkv";
    if (const std::string own = tensor_order(limits.major, false);
        !chain && (limits.major < 8 || !order.starts_with(own + "(")))
        raise(ErrorKind::unsupported, title(op), ": order is \"", order,
              "\", a device of compute capability ", limits.major, ".x computes ",
              limits.major < 8 ? "none of tensor cores" : own + "(c)", "; need ",
              limits.major < 8 ? "" : "that, or ", "\"chain(64)\"");
    const bool masked = op.inputs.size() > (forward ? 3u : 7u);
    const BlockLayout layout(op);
    KernelText text;
    text.name = cat(name, chain ? "_chain_" : "_mma_", dtype_abbrev(q.dtype));
    std::string shape =
        cat("struct @_Shape {\n    static constexpr int64_t batches = ", batches,
            ", heads = ", heads, ", share = ", groups ? heads / groups : 1, ", t = ", t,
            ", s = ", s, ";\n    static constexpr int d = ", d,
            ";\n    static constexpr bool causal = ", op.attrs.flag("causal") ? "true" : "false",
            ", masked = ", masked ? "true" : "false", ";\n");
    std::string results, reads;
    const bool inside = op.attrs.flag("inside");
    for (const Named& one : operands_of(op)) {
        const bool input = one.at < op.inputs.size();
        text.body +=
            head_struct(one.type, *one.view, inside && !input && one.view->shape.rank() == 4);
        shape += cat("    typedef @_", one.type, " ", one.type, ";\n");
        (input ? reads : results) +=
            cat("block.ptr<", input ? "const " : "", cuda_type(one.view->dtype), ">(",
                layout.operand[one.at], "), ");
    }
    if (!masked) {
        reads += "(const bool*)nullptr, ";
        shape += "    typedef @_Q Mask;\n";  // named, never read
    }
    text.body += shape + "};\n";
    if (!chain && op.candidate == kRolesAttention && with_roles(text, op, layout, limits, results))
        return text;
    text.body += body_head();
    text.body +=
        cat("    const float scale = float(block.number(", layout.scalars,
            ")), factor = float(block.number(", layout.scalars, ") * 1.4426950408889634);\n");
    const int64_t own = keys ? s : t, sides = batches * (keys ? groups : heads);
    const std::string tail =
        cat("@_Shape>(grid, ", results, reads, "factor", forward ? "" : ", scale", ");\n");
    int64_t rows;
    if (chain) {
        // Lines as ChainLines has them.
        const int lots = d > kWideHead ? 2 : 4;
        const int64_t padded = (d + 3) / 4 * 4, pitch = padded / 4 % 2 ? padded : padded + 4;
        rows = 16 * lots;
        text.includes = {"attention_chain.cuh"};
        text.threads = 256;
        text.shared =
            static_cast<uint32_t>(4 * (((forward ? 1 : 2) * rows + 64) * pitch + rows * (64 + 4)));
        text.body += cat("    ", name, "_chain<", lots, ", ", tail);
    } else {
        const int64_t width = (d + 15) / 16 * 16, pitch = 2 * width + 16;
        const int warps = forward && d > 64 ? 8 : 4;
        const int64_t other = forward ? attention_block(d) : 64;
        rows = 16 * warps;
        text.includes = {"attention.cuh"};
        text.threads = 32 * warps;
        text.resident = forward && d <= 64 ? 3 : warps == 8 || d > kWideHead ? 1 : 2;
        text.shared = static_cast<uint32_t>(forward ? (rows + 2 * other) * pitch
                                                    : (2 * rows + 4 * other) * pitch +
                                                          (keys ? 2 * 8 * other : 0));
        const auto call = [&](const char* parts) {
            return cat("    ", name, "_mma<", warps, ", ", other, ", ", parts, tail);
        };
        if (!keys)
            text.body += call("");
        else if (d <= kWideHead)
            text.body += call("true, true, ");
        else  // the sums of both are more than registers hold
            text.body += call("false, true, ") + call("true, false, ");
    }
    text.body += "}\n";
    text.blocks = std::min<int64_t>(ceil_div(own, rows) * sides, INT32_MAX);
    if (d == 0) text.blocks = 0;
    return text;
}

}  // namespace aicf::cuda
