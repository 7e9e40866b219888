// A whole step as one op, where a target runs it in one block of threads.
#include <map>
#include <set>

#include "core/compile/passes.h"

namespace aicf {

namespace {

/// All ops of a list as one sequence.
LoweredOp sequence_of(const Lowered& lowered) {
    std::set<ValueId> kept;
    std::map<ValueId, ValueId> target;  // by the source of an assign
    for (const Lowered::Output& output : lowered.outputs) {
        kept.insert(output.value);
        if (output.position != kNone) kept.insert(output.position);
    }
    for (const Assign& assign : lowered.assigns) {
        kept.insert(assign.source);
        target[assign.source] = assign.target;
    }
    LoweredOp result;
    result.def = sequence_def();
    result.node = lowered.ops.back().node;
    std::map<ValueId, int64_t> inputs;
    std::vector<int64_t> fed;
    std::set<ValueId> made;
    for (const LoweredOp& op : lowered.ops) {
        for (const View& view : op.inputs) {
            if (made.contains(view.value) || inputs.contains(view.value)) continue;
            const auto number = static_cast<int64_t>(result.inputs.size());
            inputs.emplace(view.value, number);
            if (lowered.values[view.value].role == Role::input) fed.push_back(number);
            result.inputs.push_back(whole_view(lowered.values[view.value]));
        }
        for (const View& view : op.outputs) {
            made.insert(view.value);
            const View whole = whole_view(lowered.values[view.value]);
            (kept.contains(view.value) ? result.outputs : result.inner).push_back(whole);
        }
        result.members.push_back(op);
    }
    std::vector<int64_t> carried;
    for (const View& view : result.outputs) {
        const auto to = target.find(view.value);
        const auto at = to == target.end() ? inputs.end() : inputs.find(to->second);
        carried.push_back(at == inputs.end() ? -1 : at->second);
    }
    result.attrs = {{"carried", carried}, {"fed", fed}};
    return result;
}

}  // namespace

void fuse_step(Lowered& lowered, const Target& target) {
    constexpr size_t kMostMembers = 64;  // of what may be worth one block
    if (lowered.ops.size() < 2 || lowered.ops.size() > kMostMembers) return;
    LoweredOp sequence = sequence_of(lowered);
    if (sequence.outputs.empty()) return;
    const std::vector<int64_t>& carried = sequence.attrs.ints("carried");
    for (size_t k = 0; k < carried.size(); k++)  // a next content may have another shape
        if (carried[k] >= 0 &&
            !same_layout(sequence.outputs[k], sequence.inputs[static_cast<size_t>(carried[k])]))
            return;
    if (!target.fits_block(sequence)) return;
    std::set<ValueId> inner;
    for (const View& view : sequence.inner) inner.insert(view.value);
    std::erase_if(lowered.param_grads,
                  [&](const auto& pair) { return inner.contains(pair.second); });
    lowered.ops = {std::move(sequence)};
}

}  // namespace aicf
