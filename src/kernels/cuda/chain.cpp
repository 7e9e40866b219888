// Products of narrow layers over many rows in one launch: a block takes its rows through all.
#include <span>

#include "core/graph/region.h"
#include "kernels/cuda/block.h"
#include "kernels/cuda/codegen.h"
#include "kernels/cuda/thresholds.h"
#include "kernels/cuda/tilings.h"

namespace aicf::cuda {

namespace {

/// Whether the last member adds the squares that another one makes, the last inner value, which lie
/// where that one's sums do.
bool has_squares(const LoweredOp& op) {
    return !op.members.empty() && sums_squares(op.members.back());
}

/// A block's shared memory: rows by 16, which one warp has or two, two members' weights, the sums
/// that a warp takes through what follows its product, and inner values.
struct ChainRoom {
    static constexpr int64_t sums_bytes = kChainTile.part_m / 2 * 40 * 4;  // of a warp
    int64_t teams;                                                         // of 16 rows
    int64_t rows = 0, weights = 0, inner = 0, count = 0;  // inner: each of a team's `count` values

    explicit ChainRoom(const LoweredOp& op, const Tiling& tile = kChainTile)
        : teams(tile.m / tile.part_m) {
        if (op.members.empty()) {
            add(op);
            return;
        }
        for (const LoweredOp& member : op.members) add(member);
        count = std::ssize(op.inner) - (has_squares(op) ? 1 : 0);
        for (const View& view : std::span(op.inner).first(static_cast<size_t>(count)))
            inner = std::max<int64_t>(inner, kChainTile.part_m * ceil_div(view.shape[1], 32) * 32 *
                                                 dtype_size(view.dtype));
    }
    void add(const LoweredOp& op) {
        if (!anchor(op).gemm) return;  // its rows are those of the product behind it
        const LinkRoom one = link_room(op);
        rows = std::max(rows, one.rows);
        weights = std::max(weights, one.weights);
    }
    int64_t weights_at(int64_t which) const { return teams * rows + which * weights; }
    int64_t sums_at() const { return weights_at(2); }
    int64_t inner_at() const { return sums_at() + 2 * teams * sums_bytes; }
    int64_t bytes() const { return inner_at() + teams * count * inner; }
};

/// Whether one tile has all columns, by tensor cores whose step takes its terms in any order.
bool is_link(const LoweredOp& op, const Limits& limits) {
    if (limits.major != 9 || limits.one_block || !op.members.empty() || op.loop ||
        !anchor(op).gemm || (!op.body.empty() && (tail_region(op) || !product_region(op))))
        return false;
    const View &a = op.inputs[0], &c = op.outputs[0];
    if (c.shape.rank() != 2 || a.shape.rank() != 2 || a.dtype == DType::f64) return false;
    const Attrs& attrs = anchor_attrs(op);
    const std::string &order = attrs.text("order"), &math = attrs.text("math");
    if (math == "fp32x" || !order.starts_with(tensor_order(limits.major, math == "tf32") + "("))
        return false;
    const int64_t m = c.shape[0], n = c.shape[1], k = a.shape[1],
                  chunk = std::atoll(order.c_str() + order.find('(') + 1);
    if (chunk % 64 != 0 || m < kChainRows || m > kMostChainRows || n > kChainColumns ||
        k > kChainTerms)
        return false;
    return ChainRoom(op).bytes() <= shared_bytes(limits);
}

/// Whether a cast makes rows of 16 bits for the products behind it.
bool is_row_cast(const LoweredOp& op, const Limits& limits) {
    if (limits.major != 9 || limits.one_block || !op.body.empty() || op.def->name != "cast")
        return false;
    const View &x = op.inputs[0], &y = op.outputs[0];
    return x.dtype == DType::f32 && is_16_bit(y.dtype) && y.shape.rank() == 2 &&
           y.shape[0] >= kChainRows && y.shape[0] <= kMostChainRows && y.shape[1] <= kChainTerms &&
           x.strides[1] == 1 && x.strides[0] >= x.shape[1] && is_contiguous(y.shape, y.strides);
}

/// Whether a warp has whole subtrees of the squares: of 64 columns its 16 rows are one.
bool adds_squares(const LoweredOp& op, const LoweredOp& chain) {
    if (!sums_squares(op) || &op != &chain.members.back() || chain.inner.empty()) return false;
    const View& x = op.inputs[0];
    return x.shape.rank() == 2 && x.shape[1] == kChainColumns &&
           x.shape[0] % kChainTile.part_m == 0 && x.value == chain.inner.back().value;
}

/// Members one behind the other whose bodies are the same text: one for all.
struct RepeatedLink {
    size_t first, count;
    int place, bytes;  // of the first one's argument block, of each
    std::string body;
    int inner;          // the inner value that the first one writes or reads, -1: none
    std::string parts;  // where the sums of its squares go
    int step = 0;       // from one's inner value to the next one's

    bool goes_on(const RepeatedLink& next) {
        if (next.body != body || next.bytes != bytes || (next.inner < 0) != (inner < 0) ||
            !parts.empty() || !next.parts.empty())
            return false;
        if (count == 1) step = next.inner - inner;
        return next.inner == inner + step * static_cast<int>(count);
    }
};

/// A member's operand that is an inner value of the chain, outputs behind inputs, and which value;
/// none where it is more than one, or not only a function behind the product reads it.
struct InnerOperand {
    int operand = -1, value = -1;
};
std::optional<InnerOperand> inner_operand(const LoweredOp& chain, const LoweredOp& member) {
    InnerOperand found;
    if (sums_squares(member)) return found;
    const auto inputs = static_cast<int>(member.inputs.size());
    for (int k = 0; k < inputs + static_cast<int>(member.outputs.size()); k++) {
        const int value = find_view(chain.inner, member.operand(k));
        if (value < 0) continue;
        if (found.operand >= 0 || k < 2 || !anchor(member).gemm) return std::nullopt;
        found = {k, value};
    }
    return found;
}

/// Whether shared memory has room for a chain; for two blocks, where it has inner values.
bool has_room(const LoweredOp& op, const Limits& limits) {
    const ChainRoom room(op);
    return room.bytes() <= (room.count ? kHalfShared : shared_bytes(limits)) &&
           std::all_of(op.members.begin(), op.members.end(), [&](const LoweredOp& member) {
               return inner_operand(op, member).has_value();
           });
}

/// The output of a member that the next one takes as its rows; -1: none.
int handed_on(const LoweredOp& op, const LoweredOp& next) {
    const View& rows = next.inputs[0];
    for (size_t k = 0; k < op.outputs.size(); k++)
        if (op.outputs[k].value == rows.value && same_layout(op.outputs[k], rows) &&
            holds_rows(next))
            return static_cast<int>(k);
    return -1;
}

/// Whether the last member may leave an output that nobody reads, for it to have the text of the
/// others: where there is room as for its own rows.
bool leaves_like(const LoweredOp& last, int kept) {
    return kept >= 0 && kept < static_cast<int>(last.outputs.size()) &&
           last.outputs[static_cast<size_t>(kept)].dtype == last.inputs[0].dtype &&
           last.outputs[0].shape[1] <= last.inputs[0].shape[1];
}

/// A cast as a member, with the functions that a product has (add_link in matmul.cpp).
KernelText cast_text(const LoweredOp& op, int kept, const Tiling& t) {
    const BlockLayout layout(op);
    const View &x = op.inputs[0], &y = op.outputs[0];
    const char* type = cuda_type(y.dtype);
    KernelText text;
    text.name = "cast_link";
    text.includes = {"chain.cuh"};
    text.threads = t.threads;
    text.resident = t.resident;
    text.blocks = ceil_div(y.shape[0], t.m);
    text.body = cat(
        "__device__ __forceinline__ void @_weights(const @_Block&, char*) {}\ntemplate <class "
        "Next>\n__device__ __forceinline__ bool @_body(const @_Block& block, const Grid& grid, "
        "bool, char* rows, const char*, float*, char*, const Next& next) {\n    return chain_cast<",
        t.m, ", ", t.k, ", ", t.n / t.part_n, ", ", y.shape[0], ", ", y.shape[1], ", ",
        x.strides[0], ", ", kept >= 0 ? "true" : "false", ">(grid, block.ptr<const float>(",
        layout.operand[0], "), block.ptr<", type, ">(", layout.operand[1], "), reinterpret_cast<",
        type, "*>(rows), next);\n}\n");
    return text;
}

/// Of the member that adds squares: where its result goes; its text, which is its neighbour's.
std::string sums_of_squares(const LoweredOp& op, const BlockLayout& layout) {
    const BlockLayout own(op.members.back());
    return cat("block.part<", own.bytes, ">(", layout.parts.back(), ").ptr<float>(", own.operand[1],
               ")");
}
KernelText squares_text(const KernelText& chain) {
    KernelText text;
    text.name = "squares_link";
    text.threads = chain.threads;
    text.blocks = chain.blocks;
    return text;
}

/// The calls of members of one text, each of which asks for the weights of the one behind it.
std::string link_calls(const RepeatedLink& kind, const RepeatedLink* after, const ChainRoom& room) {
    const auto weights = [&](const RepeatedLink& of, const std::string& place) {
        return cat("@_", of.first, "_weights(block.part<", of.bytes, ">(", place, "), to);\n");
    };
    const std::string place = cat(kind.place, " + i * ", kind.bytes);
    const auto weights_of = [&](const char* more) {
        return cat("room + ", room.weights_at(0), " + (", kind.first, " + i", more, ") % 2 * ",
                   room.weights);
    };
    const std::string inner =
        !kind.parts.empty() ? cat("reinterpret_cast<char*>(", kind.parts, ")")
        : kind.inner < 0 ? "nullptr"
                         : cat("inner + (", kind.inner, " + i * ", kind.step, ") * ", room.inner);
    std::string next = cat("            char* const to = ", weights_of(" + 1"),
                           ";\n            if (i + 1 < ", kind.count, ")\n                ",
                           weights(kind, cat(kind.place, " + (i + 1) * ", kind.bytes)));
    if (after)
        next += cat("            else\n                ", weights(*after, cat(after->place)));
    return cat("#pragma unroll 1\n    for (int i = 0; i < ", kind.count,
               "; i++) {\n        const auto next = [&] {\n", next, "        };\n        held = @_",
               kind.first, "_body(block.part<", kind.bytes, ">(", place,
               "), grid, held && handed >> (", kind.first, " + i) & 1, rows, ", weights_of(""),
               ", sums, ", inner, ", next);\n    }\n");
}

/// What the blocks of a chain have.
const Tiling& chain_tile(const LoweredOp& op, const Limits& limits) {
    const auto words = [](const LoweredOp& member) {
        return anchor(member).gemm && member.inputs[0].dtype == DType::f32;
    };
    const int64_t rows = op.members[0].outputs[0].shape[0];
    if (ceil_div(rows, kShortChainTile.m) <= limits.processors) return kShortChainTile;
    const bool alone = rows > kPairRows && std::any_of(op.members.begin(), op.members.end(), words);
    return alone ? kLongChainTile : kChainTile;
}

}  // namespace

bool chain_fits(const LoweredOp& op, const Limits& limits) {
    if (op.def != chain_def()) return is_link(op, limits) || is_row_cast(op, limits);
    return std::ssize(op.members) <= kChainMembers && row_chain(op) &&
           std::all_of(op.members.begin(), op.members.end(),
                       [&](const LoweredOp& member) {
                           return is_link(member, limits) || is_row_cast(member, limits) ||
                                  adds_squares(member, op);
                       }) &&
           std::count_if(op.members.begin(), op.members.end(),
                         [](const LoweredOp& member) { return anchor(member).gemm; }) > 1 &&
           has_room(op, limits);
}

KernelText chain_text(const LoweredOp& chain, const Limits& limits) {
    check(chain_fits(chain, limits), "cuda: a chain of other ops than its products");
    LoweredOp op = with_slopes(chain);
    if (ChainRoom(op).bytes() > kHalfShared) op = chain;
    const BlockLayout layout(op);
    Limits own_limits = limits;
    own_limits.chain = &chain_tile(op, limits);
    KernelText text;
    text.name = cat("chain_", dtype_abbrev(op.members[0].outputs[0].dtype), "_", op.members.size());
    std::vector<RepeatedLink> kinds;
    const Tiling& tile = *own_limits.chain;
    const ChainRoom room(op, tile);
    uint32_t handed = 0;  // by member, whether the one before it hands its rows on
    const size_t links = op.members.size() - (has_squares(op) ? 1 : 0);
    for (size_t k = 0; k < links; k++) {
        if (k + 1 < links)
            own_limits.kept = handed_on(op.members[k], op.members[k + 1]);
        else if (!leaves_like(op.members[k], own_limits.kept))
            own_limits.kept = -1;
        if (k + 1 < links && own_limits.kept >= 0) handed |= 2u << k;
        const InnerOperand inner = *inner_operand(op, op.members[k]);
        own_limits.inner = inner.operand;
        own_limits.squares = links < op.members.size() && inner.value == std::ssize(op.inner) - 1;
        KernelText part = anchor(op.members[k]).gemm
                              ? gemm_text(op.members[k], own_limits)
                              : cast_text(op.members[k], own_limits.kept, tile);
        check(k == 0 || (part.blocks == text.blocks && part.threads == text.threads),
              "cuda: members of a chain of other blocks");
        text.includes.insert(part.includes.begin(), part.includes.end());
        text.blocks = part.blocks;
        text.threads = part.threads;
        text.resident = part.resident;
        const BlockLayout own(op.members[k]);
        const std::string body = block_type(own.bytes) + part.body;
        RepeatedLink kind{k, 1, layout.parts[k], own.bytes, body, inner.value, ""};
        if (own_limits.squares) kind.parts = sums_of_squares(op, layout);
        if (!kinds.empty() && kinds.back().goes_on(kind))
            kinds.back().count++;
        else
            kinds.push_back(std::move(kind));
        text.parts.push_back(std::move(part));
    }
    if (links < op.members.size()) text.parts.push_back(squares_text(text));
    text.shared = static_cast<uint32_t>(room.bytes());
    std::string calls;
    for (size_t k = 0; k < kinds.size(); k++) {
        text.body += replaced(kinds[k].body, "@", cat("@_", kinds[k].first));
        calls += link_calls(kinds[k], k + 1 < kinds.size() ? &kinds[k + 1] : nullptr, room);
    }
    text.body +=
        cat(body_head(),
            "    char* const room = chain_room();\n    const int warp = int(threadIdx.x) / 32, "
            "team = warp / ",
            text.threads / (32 * room.teams), ";\n    char* const rows = room + team * ", room.rows,
            ";\n    float* const sums = reinterpret_cast<float*>(room + ", room.sums_at(),
            " + warp * ", ChainRoom::sums_bytes, ");\n",
            room.count ? cat("    char* const inner = room + ", room.inner_at(), " + team * ",
                             room.count * room.inner, ";\n")
                       : "",
            "    constexpr uint32_t handed = ", handed,
            "u;\n    bool held = false;\n    @_0_weights(block.part<", kinds[0].bytes, ">(",
            kinds[0].place, "), room + ", room.weights_at(0), ");\n", calls, "}\n");
    return text;
}

}  // namespace aicf::cuda
