// Epilogue fusion of an optimizer: each update of a small net is made where its gradient is, by the
// product or the sum that makes it, so that no launch waits for all of them.
#include "core/compile/group.h"
#include "core/graph/region.h"

namespace aicf {

namespace {

constexpr size_t kMostUpdates = 32;

bool any_numbers(const LoweredOp&) { return true; }

/// The updates of a multi-tensor op, one by one, of the shapes of their gradients; none where one
/// of these is made in it.
std::vector<LoweredOp> apart(const LoweredOp& op) {
    if (op.body.empty()) return {op};
    std::vector<LoweredOp> updates;
    for (const RegionStep& step : op.body) {
        if (step.def->numbers <= 0 || step.inputs[kGradient] >= static_cast<int>(op.inputs.size()))
            return {};
        LoweredOp update;
        update.def = step.def;
        update.attrs = step.attrs;
        update.node = step.node;
        for (int number : step.inputs) update.inputs.push_back(op.operand(number));
        for (int number : step.outputs) update.outputs.push_back(op.operand(number));
        updates.push_back(std::move(update));
    }
    return updates;
}

bool is_tensor_update(const LoweredOp& op) {
    return anchor(op).optimizer && anchor(op).numbers > 0 && op.members.empty();
}

/// Gives the tensors of an update the layout that what makes its gradient writes: they are whole in
/// memory, so their axes merge and part as they need.
bool take_layout(LoweredOp& update, const View& made) {
    const auto numbers = static_cast<size_t>(update.def->numbers);
    for (auto* views : {&update.inputs, &update.outputs})
        for (size_t k = 0; k < views->size() && (views == &update.outputs || k < numbers); k++) {
            View& view = (*views)[k];
            if (view.dtype != made.dtype ||
                element_count(view.shape) != element_count(made.shape) ||
                !is_contiguous(view.shape, view.strides) ||
                !is_contiguous(made.shape, made.strides))
                return false;
            view.shape = made.shape;
            view.strides = made.strides;
        }
    return true;
}

class UpdateEpilogues : Groups {
  public:
    using Groups::Groups;
    /// False where an update finds no place: the list is then as it was.
    bool run() {
        for (int at = 0; at < static_cast<int>(ops_.size()); at++)
            if (is_tensor_update(ops_[at]) && !joins(at)) return false;
        for (int at = 0; at < static_cast<int>(ops_.size()); at++) gather_numbers(at);
        emit();
        return true;
    }

  private:
    bool joins(int at) {
        const View& grad = ops_[at].inputs[kGradient];
        const int from = producer_[grad.value];
        return from >= 0 && !is_16_bit(grad.dtype) && !kept_[grad.value] &&
               readers_[grad.value].size() == 1 && members_[group_[from]].size() == 1 &&
               same_layout(grad, ops_[from].outputs[0]) && machine_.takes_update(ops_[from]) &&
               merge(group_[from], group_[at], update_region, INT_MAX) == Merge::done;
    }
    /// What makes numbers of updates and what follows from them are one small op.
    void gather_numbers(int at) {
        if (anchor(ops_[at]).numbers != 0) return;
        for (const View& view : ops_[at].inputs)
            if (const int from = producer_[view.value];
                from >= 0 && anchor(ops_[from]).numbers == 0 && group_[from] != group_[at])
                merge(group_[from], group_[at], any_numbers, INT_MAX);
    }
};

/// The updates of a step one by one, by the op that holds them; nothing where one cannot be an
/// epilogue, or all are too much.
std::optional<std::map<size_t, std::vector<LoweredOp>>> all_updates(const Lowered& lowered,
                                                                    const GroupLimits& limits) {
    std::map<ValueId, std::pair<size_t, View>> made;
    std::map<size_t, std::vector<LoweredOp>> found;
    size_t count = 0;
    int64_t elements = 0;
    double flops = 0;
    for (size_t at = 0; at < lowered.ops.size(); at++) {
        const LoweredOp& op = lowered.ops[at];
        for (const View& out : op.outputs) made[out.value] = {at, out};
        if (!is_tensor_update(op)) continue;
        std::vector<LoweredOp> updates = apart(op);
        if (updates.empty()) return std::nullopt;
        for (LoweredOp& update : updates) {
            const auto from = made.find(update.inputs[kGradient].value);
            if (from == made.end() || !take_layout(update, from->second.second))
                return std::nullopt;
            elements += element_count(from->second.second.shape);
            flops += cost_of(lowered.ops[from->second.first]).flops;
        }
        count += updates.size();
        found[at] = std::move(updates);
        if (count > kMostUpdates || elements >= limits.epilogue_elements ||
            flops > limits.epilogue_flops)
            return std::nullopt;
    }
    return found;
}

}  // namespace

void fuse_update_epilogues(Lowered& lowered, const Target& target) {
    if (!target.pace()) return;
    auto updates = all_updates(lowered, target.group_limits());
    if (!updates || updates->empty()) return;
    Lowered trial = lowered;
    trial.ops.clear();
    for (size_t at = 0; at < lowered.ops.size(); at++)
        if (const auto own = updates->find(at); own != updates->end())
            std::move(own->second.begin(), own->second.end(), std::back_inserter(trial.ops));
        else
            trial.ops.push_back(lowered.ops[at]);
    if (!UpdateEpilogues(trial, target).run()) return;
    trial.param_grads.clear();  // they are never materialised
    lowered = std::move(trial);
}

}  // namespace aicf
