// Epilogue fusion of an optimizer: each update of a small net is made where its gradient is, by the
// product or the sum that makes it, so that no launch waits for all of them.
#include "core/compile/group.h"
#include "core/graph/region.h"

namespace aicf {

namespace {

constexpr size_t kMostUpdates = 32;
// Longer sums of 16 bits are faster cut along k by kernels with warp roles: 128-128-128-128 with
// 4,096 rows in mixed takes an H100 48.0 us with its updates behind them, 38.6 without.
constexpr int64_t kMostNarrowTerms = 1024;

/// Whether a product has many results of long sums, which is better made beside the product before
/// it than in one launch with all others: 128-128-128-10 with 1,024 rows takes an H200 33.4 us with
/// its updates behind all of them, 29.1 behind the last, 256-256-256-10 78 and 46; in tf32 39 and
/// 42, but 512-512-512-10 with 512 rows 53 and 46.
bool is_long(const LoweredOp& op) {
    constexpr int64_t results = 1 << 14, terms = 1024, tensor_results = 1 << 18, tensor_terms = 512;
    const View &out = op.outputs[0], &in = op.inputs[0];
    const bool tensor = anchor_attrs(op).text("order").starts_with("mma");
    return element_count(out.shape) >= (tensor ? tensor_results : results) &&
           in.shape[in.shape.rank() - 1] >= (tensor ? tensor_terms : terms);
}

bool is_cast(const LoweredOp& op) { return op.body.empty() && op.def->name == "cast"; }

/// The updates of a multi-tensor op and the casts of their gradients, one by one; none where it
/// makes gradients otherwise.
std::vector<LoweredOp> apart(const LoweredOp& op) {
    if (op.body.empty()) return {op};
    std::vector<LoweredOp> parts;
    for (const RegionStep& step : op.body) {
        if (step.def->numbers <= 0 && step.def->name != "cast") return {};
        LoweredOp part;
        part.def = step.def;
        part.attrs = step.attrs;
        part.node = step.node;
        for (int number : step.inputs) part.inputs.push_back(op.operand(number));
        for (int number : step.outputs) part.outputs.push_back(op.operand(number));
        parts.push_back(std::move(part));
    }
    return parts;
}

bool is_tensor_update(const LoweredOp& op) {
    return anchor(op).optimizer && anchor(op).numbers > 0 && op.members.empty();
}

/// Gives the tensors of an update, or of its gradient's cast, the layout that what makes the
/// gradient writes: they are whole in memory, so their axes merge and part as they need.
bool take_layout(LoweredOp& op, const View& made) {
    const size_t tensors = is_cast(op) ? 1 : static_cast<size_t>(op.def->numbers);
    for (auto* views : {&op.inputs, &op.outputs})
        for (size_t k = 0; k < views->size() && (views == &op.outputs || k < tensors); k++) {
            View& view = (*views)[k];
            if ((!is_cast(op) && view.dtype != made.dtype) ||
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
    /// `parts_of`: by op, which op it was a part of before updates were apart.
    UpdateEpilogues(Lowered& lowered, const Target& target, std::vector<size_t> parts_of)
        : Groups(lowered, target), parts_of_(std::move(parts_of)) {}
    /// False where an update finds no place: the list is then as it was.
    bool run() {
        return finish([this](int at) { return joins(at); });
    }
    /// The same of the last product, and of sums of what it reads, whose launch the others share:
    /// nothing of the step waits for all gradients then, and the products before stay beside
    /// others.
    bool run_last() {
        const int last = last_product();
        if (last < 0 || !machine_.updates_alike(ops_[last])) return false;
        const auto is_late = [&](int maker) {
            return maker == last || (maker >= 0 && anchor(ops_[maker]).reduction &&
                                     ops_[maker].inputs[0].value == ops_[last].inputs[0].value);
        };
        std::map<size_t, int> rest;  // by what they were a part of
        return finish([&](int at) {
            if (is_late(alone(ops_[at].inputs[kGradient]))) return joins(at);
            const auto [first, fresh] = rest.emplace(parts_of_[static_cast<size_t>(at)], at);
            return fresh ||
                   merge(group_[first->second], group_[at], any_region, INT_MAX) == Merge::done;
        });
    }

  private:
    template <class Place>
    bool finish(const Place& place) {
        for (int at = 0; at < static_cast<int>(ops_.size()); at++)
            if (is_tensor_update(ops_[at]) && !place(at)) return false;
        for (int at = 0; at < static_cast<int>(ops_.size()); at++) gather_numbers(at);
        emit();
        return true;
    }
    /// The product whose gradient is there last, if nothing else is in the way; -1: none.
    int last_product() const {
        std::vector<double> end(ops_.size(), 0);  // in microseconds
        int last = -1;
        for (int at = 0; at < static_cast<int>(ops_.size()); at++) {
            for (int from : predecessors_[at]) end[at] = std::max(end[at], end[from]);
            end[at] += machine_.pace()->launch + machine_.microseconds(ops_[at]);
            if (!is_tensor_update(ops_[at])) continue;
            const int maker = alone(ops_[at].inputs[kGradient]);
            if (maker >= 0 && anchor(ops_[maker]).gemm && (last < 0 || end[maker] > end[last]))
                last = maker;
        }
        return last;
    }
    bool joins(int at) {
        const View& grad = ops_[at].inputs[kGradient];
        int from = alone(grad);
        if (from < 0 || is_16_bit(grad.dtype)) return false;
        if (is_cast(ops_[from])) {
            const int made = alone(ops_[from].inputs[0]);
            if (made < 0 || merge(group_[from], group_[at], any_region, INT_MAX) != Merge::done)
                return false;
            from = made;
        }
        return machine_.takes_update(ops_[from]) &&
               merge(group_[from], group_[at], update_region, INT_MAX) == Merge::done;
    }
    /// What makes an operand that one op alone reads, as it was written; -1: nothing does.
    int alone(const View& view) const {
        const int from = producer_[view.value];
        const bool own = from >= 0 && !kept_[view.value] && readers_[view.value].size() == 1 &&
                         members_[group_[from]].size() == 1 &&
                         same_layout(view, ops_[from].outputs[0]);
        return own ? from : -1;
    }
    /// What makes numbers of updates and what follows from them are one small op.
    void gather_numbers(int at) {
        if (anchor(ops_[at]).numbers != 0) return;
        for (const View& view : ops_[at].inputs)
            if (const int from = producer_[view.value];
                from >= 0 && anchor(ops_[from]).numbers == 0 && group_[from] != group_[at])
                merge(group_[from], group_[at], any_region, INT_MAX);
    }

    const std::vector<size_t> parts_of_;
};

/// The updates of a step one by one, by the op that holds them.
struct Updates {
    std::map<size_t, std::vector<LoweredOp>> parts;
    bool all = true;  // whether each is better behind what makes its gradient
};

/// Nothing where one cannot be an epilogue, or all are too much.
std::optional<Updates> all_updates(const Lowered& lowered, const GroupLimits& limits) {
    std::map<ValueId, std::pair<size_t, View>> made;
    Updates found;
    size_t count = 0;
    int64_t elements = 0;
    double flops = 0;
    for (size_t at = 0; at < lowered.ops.size(); at++) {
        const LoweredOp& op = lowered.ops[at];
        for (const View& out : op.outputs) made[out.value] = {at, out};
        if (!is_tensor_update(op)) continue;
        std::vector<LoweredOp> parts = apart(op);
        if (parts.empty()) return std::nullopt;
        for (LoweredOp& part : parts) {
            const bool casts = is_cast(part);
            const auto from = made.find(part.inputs[casts ? 0 : kGradient].value);
            if (from == made.end() || !take_layout(part, from->second.second)) return std::nullopt;
            if (casts) {
                made[part.outputs[0].value] = {from->second.first, part.outputs[0]};
                continue;
            }
            const LoweredOp& maker = lowered.ops[from->second.first];
            if (anchor(maker).gemm && is_16_bit(maker.inputs[0].dtype) &&
                maker.inputs[0].shape[maker.inputs[0].shape.rank() - 1] > kMostNarrowTerms)
                return std::nullopt;
            if (anchor(maker).gemm && maker.inputs[0].dtype == DType::f32 && is_long(maker))
                found.all = false;
            elements += element_count(from->second.second.shape);
            flops += cost_of(maker).flops;
            count++;
        }
        found.parts[at] = std::move(parts);
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
    if (!updates || updates->parts.empty()) return;
    Lowered trial = lowered;
    trial.ops.clear();
    std::vector<size_t> parts_of;
    for (size_t at = 0; at < lowered.ops.size(); at++) {
        if (const auto own = updates->parts.find(at); own != updates->parts.end())
            std::move(own->second.begin(), own->second.end(), std::back_inserter(trial.ops));
        else
            trial.ops.push_back(lowered.ops[at]);
        parts_of.resize(trial.ops.size(), at);
    }
    UpdateEpilogues found(trial, target, std::move(parts_of));
    if (!(updates->all ? found.run() : found.run_last())) return;
    trial.param_grads.clear();  // they are never materialised
    lowered = std::move(trial);
}

}  // namespace aicf
