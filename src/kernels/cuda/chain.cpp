// Products of narrow layers over many rows in one launch: a block takes its rows through all.
#include "core/graph/region.h"
#include "kernels/cuda/codegen.h"
#include "kernels/cuda/thresholds.h"
#include "kernels/cuda/tilings.h"

namespace aicf::cuda {

namespace {

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
    return chunk % 64 == 0 && m >= kChainRows && m <= kMostChainRows && n <= kChainColumns &&
           k <= kChainTerms;
}

/// Members one behind the other whose bodies are the same text: one for all.
struct Alike {
    size_t first, count;
    int place, bytes;  // of the first one's argument block, of each
    std::string body;
};

}  // namespace

bool chain_fits(const LoweredOp& op, const Limits& limits) {
    if (op.def != chain_def()) return is_link(op, limits);
    return std::ssize(op.members) <= kChainMembers && row_chain(op) &&
           std::all_of(op.members.begin(), op.members.end(),
                       [&](const LoweredOp& member) { return is_link(member, limits); });
}

KernelText chain_text(const LoweredOp& op, const Limits& limits) {
    check(chain_fits(op, limits), "cuda: a chain of other ops than its products");
    const BlockLayout layout(op);
    Limits own_limits = limits;
    own_limits.chain = true;
    KernelText text;
    text.name = cat("chain_", dtype_abbrev(op.members[0].inputs[0].dtype), "_", op.members.size());
    std::vector<Alike> kinds;
    for (size_t k = 0; k < op.members.size(); k++) {
        KernelText part = body_text(op.members[k], own_limits);
        check(k == 0 || (part.blocks == text.blocks && part.threads == text.threads),
              "cuda: members of a chain of other blocks");
        text.includes.insert(part.includes.begin(), part.includes.end());
        text.blocks = part.blocks;
        text.threads = part.threads;
        text.resident = part.resident;
        text.shared = std::max(text.shared, part.shared);
        const BlockLayout own(op.members[k]);
        const std::string body = block_type(own) + part.body;
        if (!kinds.empty() && kinds.back().body == body && kinds.back().bytes == own.bytes)
            kinds.back().count++;
        else
            kinds.push_back({k, 1, layout.parts[k], own.bytes, body});
        text.parts.push_back(std::move(part));
    }
    std::string calls;
    for (const Alike& kind : kinds) {
        text.body += replaced(kind.body, "@", cat("@_", kind.first));
        // A member's last barrier stands before the next one reads what it wrote.
        calls += cat("#pragma unroll 1\n    for (int i = 0; i < ", kind.count, "; i++)\n        @_",
                     kind.first, "_body(block.part<", kind.bytes, ">(", kind.place, " + i * ",
                     kind.bytes, "), grid);\n");
    }
    text.body += body_head() + calls + "}\n";
    return text;
}

}  // namespace aicf::cuda
