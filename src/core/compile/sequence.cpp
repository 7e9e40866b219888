// Single-block fusion: a whole step, or a loop, as one launch of one thread block.
#include <map>
#include <set>

#include "core/compile/passes.h"

namespace aicf {

namespace {

/// All ops of the list as one sequence.
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

/// The ops of a list, with groups and sequences expanded.
std::vector<LoweredOp> flat_ops(const Lowered& lowered) {
    std::vector<LoweredOp> flat;
    for (const LoweredOp& op : lowered.ops)
        if (op.def == sequence_def() || op.def == group_def())
            flat.insert(flat.end(), op.members.begin(), op.members.end());
        else
            flat.push_back(op);
    return flat;
}

/// A loop as a block_loop; values of its body are appended to the outer list.
LoweredOp block_loop_of(const LoweredOp& loop, Lowered& lowered) {
    const Lowered& body = *loop.loop;
    LoweredOp result;
    result.def = block_loop_def();
    result.node = loop.node;
    result.inputs = loop.inputs;
    result.outputs = loop.outputs;
    result.attrs = loop.attrs;
    std::map<ValueId, ValueId> own;  // outer value by the body's
    const auto add = [&](ValueId id) {
        const Value& value = body.values[static_cast<size_t>(id)];
        const ValueId mine = append_value(lowered, value.type, value.name);
        own[id] = mine;
        result.inner.push_back(whole_view(lowered.values[static_cast<size_t>(mine)]));
    };
    for (const ValueId id : loop_inputs(body.values)) add(id);
    for (const Lowered::Output& output : body.outputs) add(output.value);
    result.members = flat_ops(body);
    for (LoweredOp& member : result.members)
        for (auto* views : {&member.inputs, &member.outputs, &member.inner})
            for (View& view : *views) {
                // Inner values of a member region are not inner values of the loop.
                if (!own.contains(view.value)) {
                    if (views == &member.inner)
                        own[view.value] =
                            append_value(lowered, body.values[static_cast<size_t>(view.value)].type,
                                         body.values[static_cast<size_t>(view.value)].name);
                    else
                        add(view.value);
                }
                view.value = own[view.value];
            }
    return result;
}

constexpr size_t kMostMembers = 64;  // more are never worth one block

}  // namespace

void fuse_loops(Lowered& lowered, const Target& target) {
    for (LoweredOp& op : lowered.ops) {
        if (!op.loop || op.loop->ops.size() > kMostMembers) continue;
        const size_t values = lowered.values.size();
        LoweredOp one = block_loop_of(op, lowered);
        if (one.members.size() <= kMostMembers && target.fits_block(one)) {
            op = std::move(one);
        } else {
            lowered.values.resize(values);
            lowered.views.resize(values);
        }
    }
}

void fuse_step(Lowered& lowered, const Target& target) {
    if (lowered.ops.size() < 2 || lowered.ops.size() > kMostMembers) return;
    LoweredOp sequence = sequence_of(lowered);
    if (sequence.outputs.empty()) return;
    const std::vector<int64_t>& carried = sequence.attrs.ints("carried");
    for (size_t k = 0; k < carried.size(); k++)  // it may have another shape
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
