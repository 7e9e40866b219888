// The kernel families of a GPU: which source makes the kernel of a lowered op.
#include "core/compile/families.h"

#include <algorithm>

#include "core/compile/target.h"
#include "core/graph/custom.h"
#include "core/graph/region.h"
#include "kernels/cuda/codegen.h"
#include "kernels/cuda/thresholds.h"

namespace aicf::cuda {

namespace {

bool alone(const LoweredOp& op) { return op.body.empty(); }

/// Whether all steps but the anchors are known functions.
bool functions_around(const LoweredOp& op) {
    const auto known = [](const RegionStep& step) {
        return !step.def->pointwise || is_function(*step.def);
    };
    return std::all_of(op.body.begin(), op.body.end(), known);
}

bool updates_only(const LoweredOp& op) {
    DType narrow = DType::f32;  // of gradients that are cast: one type, for a thread reads either
    const int inputs = static_cast<int>(op.inputs.size());
    const auto known = [&](const RegionStep& step) {
        if (is_update(*step.def)) return !is_16_bit(op.operand(step.outputs[0]).dtype);
        if (step.def->name == "add") return step.inputs[1] < inputs;  // to what may be cast
        if (step.def->name == "reduce_sum") return adds_cuts(op, step);
        if (step.def->name != "cast") return is_scalar_update(*step.def);
        const DType from = op.operand(step.inputs[0]).dtype, to = op.operand(step.outputs[0]).dtype,
                    own = is_16_bit(to) ? to : from;
        if (narrow == DType::f32) narrow = own;
        return is_16_bit(own) && own == narrow;
    };
    return !alone(op) && anchor(op).optimizer && std::all_of(op.body.begin(), op.body.end(), known);
}

using Family = KernelFamily<KernelText, Limits>;

constexpr Family kFamilies[] = {
    {"tails",
     [](const LoweredOp& op, const Limits& limits) {
         return functions_around(op) && tail_fits(op, limits);
     },
     tail_text},
    {"numbers", [](const LoweredOp& op, const Limits&) { return numbers_region(op); },
     numbers_text},
    {"updates", [](const LoweredOp& op, const Limits&) { return updates_only(op); }, updates_text},
    {"pointwise",
     [](const LoweredOp& op, const Limits&) {
         return functions_around(op) &&
                (is_function(anchor(op)) || (alone(op) && is_update(*op.def)));
     },
     pointwise_text},
    {"matmul",
     [](const LoweredOp& op, const Limits&) {
         return functions_around(op) && anchor(op).gemm && (alone(op) || !tail_region(op));
     },
     gemm_text, gemm_candidates},
    {"attention",
     [](const LoweredOp& op, const Limits&) { return alone(op) && is_attention(*op.def); },
     attention_text, attention_candidates},
    {"reduce",
     [](const LoweredOp& op, const Limits&) {
         return functions_around(op) && is_reduction(anchor(op));
     },
     reduce_text},
    {"subtrees",
     [](const LoweredOp& op, const Limits& limits) {
         return op.def->name == "subtree_mean" && !limits.one_block &&
                op.inputs[0].shape[0] <= kMostChainRows / 16;
     },
     subtree_mean_text},
    {"rows",
     [](const LoweredOp& op, const Limits&) {
         return functions_around(op) && is_row_op(anchor(op)) && (alone(op) || !tail_region(op));
     },
     row_text},
    {"random", [](const LoweredOp& op, const Limits&) { return alone(op) && is_random(*op.def); },
     random_text},
    {"small", [](const LoweredOp& op, const Limits&) { return alone(op) && is_small(*op.def); },
     small_text},
    {"indexed", [](const LoweredOp& op, const Limits&) { return alone(op) && is_indexed(*op.def); },
     indexed_text},
    {"custom", [](const LoweredOp& op, const Limits&) { return alone(op) && is_custom(*op.def); },
     custom_text},
    {"lines", [](const LoweredOp& op, const Limits&) { return alone(op) && is_line_op(*op.def); },
     line_text},
};

const Family* family_of(const LoweredOp& op, const Limits& limits) {
    return find_family<KernelText, Limits>(kFamilies, op, limits);
}

}  // namespace

KernelText body_text(const LoweredOp& op, const Limits& limits) {
    const Family* family = family_of(op, limits);
    if (is_host_call(*op.def))
        raise(ErrorKind::unsupported, title(op),
              ": it calls Python on the host, which a step on a ",
              "GPU never waits for; need device=\"cpu\", or two steps with the call between them");
    if (!family) no_kernel(op, "cuda", "an op that it knows, or device \"cpu\"");
    return family->emit(op, limits);
}

std::vector<std::string> candidates(const LoweredOp& op, const Limits& limits) {
    const Family* family = op.members.empty() ? family_of(op, limits) : nullptr;
    return family && family->candidates ? family->candidates(op, limits)
                                        : std::vector<std::string>();
}

bool has_kernel(const LoweredOp& op, const Limits& limits) {
    if (is_one_block(op)) return block_fits(op, limits);
    if (loss_chain(op)) return loss_chain_fits(op, limits);
    if (op.def == chain_def()) return chain_fits(op, limits);
    const auto known = [&](const LoweredOp& one) { return family_of(one, limits) != nullptr; };
    return op.members.empty() ? known(op)
                              : std::all_of(op.members.begin(), op.members.end(), known);
}

bool worth_fusing(const LoweredOp& region) {
    // Operands and values that are alive at a time are registers of a thread. Elements of a row are
    // made again on each pass over it, up to three: that is to cost less than reading them would
    // (an exponential is 10 flops).
    constexpr RegionLimits kLimits{16, 32, 12, 9, 8};
    constexpr size_t kMaxLive = 40;
    if (anchor(region).optimizer || updates_behind(region)) return true;
    if (!within(region, kLimits)) return false;

    const size_t operands = region.inputs.size() + region.outputs.size();
    std::vector<size_t> last(operands + region.inner.size(), 0);  // step that names a value
    for (size_t i = 0; i < region.body.size(); i++)
        for (const auto* numbers : {&region.body[i].inputs, &region.body[i].outputs})
            for (int number : *numbers) last[static_cast<size_t>(number)] = i;
    size_t live = operands, most = operands;
    for (size_t i = 0; i < region.body.size(); i++) {
        for (int number : region.body[i].outputs) live += static_cast<size_t>(number) >= operands;
        most = std::max(most, live);
        for (size_t number = operands; number < last.size(); number++) live -= last[number] == i;
    }
    return most <= kMaxLive;
}

}  // namespace aicf::cuda
