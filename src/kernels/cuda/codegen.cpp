#include "kernels/cuda/codegen.h"

#include <algorithm>

#include "core/abi/scalar.h"
#include "core/compile/target.h"
#include "core/graph/region.h"

namespace aicf::cuda {

BlockLayout::BlockLayout(const LoweredOp& op) {
    const auto round = [](size_t size, size_t to) {
        return static_cast<int>((size + to - 1) / to * to);
    };
    int used = round(sizeof(ArgBlock) + 4 * (op.inputs.size() + op.outputs.size()), 8);
    for (const auto* views : {&op.inputs, &op.outputs})
        for (const View& view : *views) {
            operand.push_back(used);
            used += static_cast<int>(sizeof(Operand)) + 16 * view.shape.rank();
        }
    scalars = used;
    tail = round(static_cast<size_t>(used) + 8 * pack_scalars(op).size(), 64);
    bytes = tail + static_cast<int>(tail_bytes(op));
    if (is_one_block(op)) return;  // its members' numbers stand in the text
    for (const LoweredOp& member : op.members) {
        parts.push_back(bytes);
        bytes += BlockLayout(member).bytes;
    }
}

SequenceTail::SequenceTail(const LoweredOp& op)
    : operands(static_cast<uint32_t>(kept + 8 * op.attrs.ints("fed").size())),
      bytes(static_cast<uint32_t>(operands + 8 * (op.inputs.size() + op.outputs.size()) + 63) / 64 *
            64) {}

uint32_t tail_bytes(const LoweredOp& op) {
    if (op.def == group_def() || op.def == chain_def()) return 0;
    if (op.def == sequence_def()) return SequenceTail(op).bytes;
    const uint32_t parts = anchor(op).name == "attention_grads" ? 2 : 1;
    return kTailBytes + (op.members.empty() && anchor(op).gemm ? 2 * kMapBytes
                         : op.members.empty() && anchor(op).attention
                             ? parts * kAttentionMaps * kMapBytes
                             : 0);
}

const char* cuda_type(DType dtype) {
    constexpr const char* names[kDTypes] = {"float",   "double",  "Half", "Brain",  "int32_t",
                                            "int64_t", "uint8_t", "bool", "int8_t", "int16_t"};
    return names[static_cast<int>(dtype)];
}

const char* wide_type(DType dtype) {
    return dtype == DType::f16 || dtype == DType::bf16 ? "float" : cuda_type(dtype);
}

std::string exps_type(DType dtype) {
    return is_16_bit(dtype) ? "scalar::RowExps16" : cat("scalar::RowExps<", wide_type(dtype), ">");
}

const char* raw_type(DType dtype) {
    switch (dtype_size(dtype)) {
        case 1:
            return "uint8_t";
        case 2:
            return "uint16_t";
        case 4:
            return "uint32_t";
        default:
            return "uint64_t";
    }
}

const char* sum_type(DType dtype) {
    return !is_integer(dtype) ? wide_type(dtype) : dtype == DType::i64 ? "uint64_t" : "uint32_t";
}

Iteration::Iteration(const Dims& full, const std::vector<Dims>& operands)
    : strides(operands.size()) {
    for (int d = 0; d < full.rank(); d++) {
        if (full[d] == 1) continue;
        const int last = shape.rank() - 1;
        bool merges = last >= 0;
        for (size_t k = 0; k < operands.size() && merges; k++)
            merges = strides[k][last] == operands[k][d] * full[d];
        if (merges)
            shape[last] *= full[d];
        else
            shape.push(full[d]);
        for (size_t k = 0; k < operands.size(); k++) {
            if (merges)
                strides[k][last] = operands[k][d];
            else
                strides[k].push(operands[k][d]);
        }
    }
}

namespace {

/// How far apart elements i to i + 3 of an iteration lie, i a multiple of 4, where that is 0 or 1;
/// else -1.
int64_t step_of(const Dims& sizes, const Dims& steps) {
    const int rank = sizes.rank();
    if (rank == 0) return 0;
    const int64_t inner = steps[rank - 1];
    bool fours = (rank == 1 || sizes[rank - 1] % 4 == 0) && (inner == 0 || inner == 1);
    for (int d = 0; inner == 1 && d < rank - 1; d++) fours &= steps[d] % 4 == 0;
    return fours ? inner : -1;
}

}  // namespace

int64_t place_step(const Dims& shape, const Dims& strides) {
    const Iteration merged(shape, {strides});
    return element_count(shape) == 0 ? 0 : step_of(merged.shape, merged.strides[0]);
}

std::string place_struct(const std::string& name, const Dims& shape, const Dims& strides) {
    const Iteration merged(shape, {strides});
    const Dims &sizes = merged.shape, &steps = merged.strides[0];
    const int rank = sizes.rank();
    if (rank == 0 || element_count(shape) == 0) return cat("struct ", name, " : Line<0> {};\n");
    if (rank == 1) return cat("struct ", name, " : Line<", steps[0], "> {};\n");
    const bool small = element_count(shape) < (int64_t{1} << 31);
    std::string text =
        cat("struct ", name, " {\n    static constexpr int step = ", step_of(sizes, steps), ";\n",
            "    __device__ __forceinline__ static int64_t at(int64_t i) {\n        ",
            small ? "uint32_t r = uint32_t(i);" : "uint64_t r = uint64_t(i);", " int64_t o = 0;\n");
    const char* suffix = small ? "u" : "ull";
    for (int d = rank - 1; d > 0; d--)
        text += cat("        o += int64_t(r % ", sizes[d], suffix, ") * ", steps[d],
                    "; r /= ", sizes[d], suffix, ";\n");
    return text + cat("        return o + int64_t(r) * ", steps[0], ";\n    }\n};\n");
}

std::string body_head() {
    return "__device__ __forceinline__ void @_body(const @_Block& block, const Grid& grid) {\n";
}

std::string block_type(int bytes) { return cat("typedef Block<", bytes, "> @_Block;\n"); }

std::string ahead_body_head() {
    return "__device__ __forceinline__ void @_body(const @_Block& block, const @_Ahead& ahead) "
           "{\n";
}

std::string ahead_head() {
    return "__device__ __forceinline__ @_Ahead @_ahead(const @_Block& block, const Grid& grid) "
           "{\n";
}

std::string body_head(const LoweredOp& op, const BlockLayout& layout, bool raw) {
    return body_head() + pointers_of(op, layout, raw);
}

std::string pointers_of(const LoweredOp& op, const BlockLayout& layout, bool raw) {
    std::string text;
    size_t at = 0;
    for (size_t k = 0; k < op.inputs.size(); k++, at++) {
        const DType dtype = op.inputs[k].dtype;
        text += cat("    const auto* x", k, " = block.ptr<const ",
                    raw ? raw_type(dtype) : cuda_type(dtype), ">(", layout.operand[at], ");\n");
    }
    for (size_t k = 0; k < op.outputs.size(); k++, at++) {
        const DType dtype = op.outputs[k].dtype;
        text += cat("    auto* y", k, " = block.ptr<", raw ? raw_type(dtype) : cuda_type(dtype),
                    ">(", layout.operand[at], ");\n");
    }
    return text;
}

LoweredOp copy_op(DType dtype, const Dims& shape, const Dims& strides) {
    LoweredOp op;
    op.def = find_lowered("copy");
    View from, to;
    from.dtype = to.dtype = dtype;
    from.shape = to.shape = shape;
    from.strides = strides;
    to.strides = contiguous_strides(shape);
    op.inputs = {from};
    op.outputs = {to};
    return op;
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
    for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
        text.replace(at, from.size(), to);
    return text;
}

std::string element_literal(DType dtype, double number) {
    const auto text = [&](auto bits) {
        return cat("static_cast<", raw_type(dtype), ">(", bits, "ull)");
    };
    switch (dtype) {
        case DType::f32:
            return text(scalar::bit_cast<uint32_t>(static_cast<float>(number)));
        case DType::f64:
            return text(scalar::bit_cast<uint64_t>(number));
        case DType::f16:
            return text(scalar::f32_to_half(static_cast<float>(number)));
        case DType::bf16:
            return text(scalar::f32_to_bfloat(static_cast<float>(number)));
#define AICF_TEXT(dtype, type) \
    case DType::dtype:         \
        return text(static_cast<scalar::BitsOf<type>>(scalar::cast<type>(number)));
            AICF_INTEGERS(AICF_TEXT)
#undef AICF_TEXT
        default:
            return text(number != 0 ? 1 : 0);
    }
}

namespace {

constexpr const char* kBegin = "begin_kernel();\n        ";

/// Members of a group whose bodies are the same text.
struct Alike {
    std::string body;
    int bytes = 0, threads = 0;  // of the argument block, of a block
    bool begins = false;         // the body says begin_kernel()
    struct Member {
        size_t number;
        int64_t first, blocks;  // of the group's blocks
        int place;              // of its argument block
    };
    std::vector<Member> members;
};
/// From how many on there is one text for all: its argument block lies somewhere then, not at a
/// place that the text says, which few members would feel and many do not.
constexpr size_t kManyAlike = 4;

/// The call of a body by the blocks of its members, each at its place.
std::string calls_of(const Alike& alike) {
    const auto within = [](const Alike::Member& one) {
        return cat(one.first ? cat("b >= ", one.first, "u && ") : "", "b < ",
                   one.first + one.blocks, "u");
    };
    const auto call = [&](const Alike::Member& one, const std::string& place,
                          const std::string& first, const std::string& blocks) {
        return cat("        ", alike.begins ? "" : kBegin, "@_", one.number, "_body(block.part<",
                   alike.bytes, ">(", place, "), Grid{b - ", first, ", ", blocks, ", ",
                   alike.threads, "u});\n");
    };
    std::string text;
    if (alike.members.size() < kManyAlike) {
        for (const Alike::Member& one : alike.members)
            text +=
                cat("    if (", within(one), " && threadIdx.x < ", alike.threads, ") {\n",
                    call(one, std::to_string(one.place), cat(one.first, "u"), cat(one.blocks, "u")),
                    "    }\n");
        return text;
    }
    // Which member's block b is, by halving.
    const auto find = [&](const auto& self, size_t begin, size_t end) -> std::string {
        const size_t middle = begin + (end - begin) / 2;
        const Alike::Member& one = alike.members[middle];
        if (begin == middle)
            return cat("if (", within(one), ") {\n            first = ", one.first,
                       "u, blocks = ", one.blocks, "u, place = ", one.place, ";\n        }");
        return cat("if (b < ", one.first, "u) {\n        ", self(self, begin, middle),
                   "\n        } else {\n        ", self(self, middle, end), "\n        }");
    };
    return cat("    {\n        uint32_t first = 0, blocks = 0;\n        int place = 0;\n        ",
               find(find, 0, alike.members.size()), "\n        if (blocks > 0 && threadIdx.x < ",
               alike.threads, ") {\n    ", call(alike.members[0], "place", "first", "blocks"),
               "    }}\n");
}

bool updates_product(const LoweredOp& op) { return updates_behind(op) && anchor(op).gemm; }

/// Limits of the members of a group. Blocks of products with updates behind them are as small as
/// the products allow: more threads were idle, and their registers in the way of other blocks.
Limits member_limits(const LoweredOp& op, Limits limits) {
    constexpr int kFewWarps = 4;
    limits.most_warps = kGroupThreads / 32;
    int most = 0;
    for (const LoweredOp& member : op.members)
        if (updates_product(member)) most = std::max(most, body_text(member, limits).threads / 32);
    if (most > 0) limits.most_warps = std::max(most, kFewWarps);
    return limits;
}

/// The order in which members have the blocks of a group. Where some have updates behind them those
/// with the most to do in each block are first, and the others fill up; roughly, a byte takes as
/// long as 16 operations.
std::vector<size_t> order_of_blocks(const LoweredOp& op, const std::vector<KernelText>& parts) {
    std::vector<size_t> order = steps_between(0, parts.size());
    if (std::none_of(op.members.begin(), op.members.end(), updates_behind)) return order;
    std::vector<double> work;
    for (size_t k = 0; k < parts.size(); k++) {
        const Cost cost = cost_of(op.members[k]);
        work.push_back((cost.flops + 16 * cost.bytes) /
                       static_cast<double>(std::max<int64_t>(parts[k].blocks, 1)));
    }
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return work[a] > work[b]; });
    return order;
}

/// The members' bodies, each run by blocks of its own.
KernelText group_text(const LoweredOp& op, const Limits& limits) {
    const BlockLayout layout(op);
    const Limits own_limits = member_limits(op, limits);
    KernelText text;
    text.blocks = text.threads = 0;
    for (size_t k = 0; k < op.members.size(); k++) {
        KernelText part = body_text(op.members[k], own_limits);
        check(part.maps.empty() || (part.threads <= kGroupThreads && part.cluster == 1),
              "cuda: a kernel of more warps with roles than a member of a group has");
        if (part.threads > kGroupThreads) {  // as many threads, in more blocks
            part.blocks = (part.blocks * part.threads + kGroupThreads - 1) / kGroupThreads;
            part.threads = kGroupThreads;
        }
        text.name += (k ? "_" : "") + part.name;
        text.parts.push_back(std::move(part));
    }
    std::vector<Alike> kinds;
    for (size_t k : order_of_blocks(op, text.parts)) {
        KernelText& part = text.parts[k];
        if (part.blocks == 0) continue;
        text.includes.insert(part.includes.begin(), part.includes.end());
        const BlockLayout own(op.members[k]);
        const int bytes = own.bytes;
        part.body = block_type(own.bytes) + part.body;
        auto kind = std::find_if(kinds.begin(), kinds.end(), [&](const Alike& one) {
            return one.body == part.body && one.bytes == bytes && one.threads == part.threads;
        });
        if (kind == kinds.end())
            kind = kinds.insert(kind, Alike{part.body, bytes, part.threads, part.begins, {}});
        kind->members.push_back({k, text.blocks, part.blocks, layout.parts[k]});
        text.blocks += part.blocks;
        text.threads = std::max(text.threads, part.threads);
        text.shared = std::max(text.shared, part.shared);
    }
    std::string calls;
    for (const Alike& kind : kinds) {
        for (const Alike::Member& one : kind.members) {
            text.body += replaced(kind.body, "@", cat("@_", one.number));
            if (kind.members.size() >= kManyAlike) break;
        }
        calls += calls_of(kind);
    }
    const auto narrow = [](const LoweredOp& one) {
        return updates_product(one) && is_16_bit(one.inputs[0].dtype);
    };
    if (limits.major == 9 && std::any_of(op.members.begin(), op.members.end(), updates_product)) {
        const int64_t room = text.includes.contains("near_mma.cuh") ? kTensorUpdateThreads
                             : std::any_of(op.members.begin(), op.members.end(), narrow)
                                 ? kNarrowUpdateThreads
                                 : kUpdateThreads;
        text.resident = static_cast<int>(std::max<int64_t>(1, room / text.threads));
    }
    text.begins = true;
    text.body += body_head() + "    const uint32_t b = grid.block;\n" + calls + "}\n";
    return text;
}

/// A kernel that gets ready while another runs would have two blocks on the processors that this
/// leaves first, and none on the last. Where a block has so much shared memory that it is busy
/// alone it gets more than half.
void keep_apart(KernelText& text, const Limits& limits) {
    constexpr uint32_t third = 75 << 10, half = 114 << 10;
    if (text.blocks <= limits.processors && text.shared > third && text.shared < half)
        text.shared = half;
}

}  // namespace

KernelText kernel_text(const LoweredOp& op, const Limits& limits) {
    KernelText text = op.def == sequence_def()     ? block_text(op, limits)
                      : op.def == block_loop_def() ? block_loop_text(op, limits)
                      : loss_chain(op)             ? loss_chain_text(op, limits)
                      : op.def == chain_def()      ? chain_text(op, limits)
                      : op.members.empty()         ? body_text(op, limits)
                      : sums_beside(op, limits)    ? row_sums_text(op, limits)
                                                   : group_text(op, limits);
    if (text.begins && limits.major == 9) keep_apart(text, limits);
    const bool tail = op.def == sequence_def();
    text.body =
        block_type(tail ? static_cast<int>(tail_bytes(op)) : BlockLayout(op).bytes) + text.body;
    text.body +=
        cat("extern \"C\" __global__ void ",
            text.cluster > 1 ? cat("__cluster_dims__(", text.cluster, ", 1, 1) ") : "",
            "__launch_bounds__(", text.bound ? text.bound : text.threads,
            text.resident > 1 || !text.maps.empty() ? cat(", ", text.resident) : "",
            ") @(const __grid_constant__ @_Block block) {\n    ", text.begins ? "" : kBegin,
            "@_body(block, Grid{blockIdx.x, "
            "gridDim.x, blockDim.x});\n}\n");
    return text;
}

}  // namespace aicf::cuda
