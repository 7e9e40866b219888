// Norms' gradients with the sums over rows beside them.
#include "core/compile/group.h"

namespace aicf {

namespace {

/// A row op's gradient and sums over rows of what it reads become a group, where the target has one
/// kernel for them: the gradients of a norm's input, weight and bias.
class RowSums : Groups {
  public:
    using Groups::Groups;
    void run() {
        for (int at = 0; at < static_cast<int>(ops_.size()); at++) {
            if (ops_[at].def->alone || anchor(ops_[at]).rows.empty()) continue;
            for (const View& view : ops_[at].inputs)
                for (int reader : readers_[view.value])
                    if (reader != at && members_[group_[reader]].size() == 1 &&
                        anchor(ops_[reader]).streams && beside(at, reader))
                        merge(group_[at], group_[reader], any, INT_MAX);
        }
        emit();
    }

  private:
    static bool any(const LoweredOp&) { return true; }

    /// Whether the target takes the sum into the group, and neither waits for the other.
    bool beside(int at, int sum) const {
        std::vector<int> members = members_[group_[at]];
        for (int member : members)
            for (const auto& [from, to] : {std::pair(member, sum), std::pair(sum, member)})
                for (const View& out : ops_[from].outputs)
                    for (const View& in : ops_[to].inputs)
                        if (in.value == out.value) return false;
        std::erase(members, at);
        members.insert(members.begin(), at);
        members.push_back(sum);
        return machine_.sums_beside(group_of(ops_, members));
    }
    int stands_at(int group) const override {
        for (int member : members_[group])
            if (!anchor(ops_[member]).rows.empty()) return member;
        return Groups::stands_at(group);
    }
    /// The row op comes first.
    LoweredOp compose(const std::vector<int>& members, int, int) const override {
        std::vector<int> order = members;
        std::stable_partition(order.begin(), order.end(),
                              [&](int member) { return !anchor(ops_[member]).rows.empty(); });
        return group_of(ops_, order);
    }
};

/// What makes a norm's result again: from its operand, less a mean of the row where it has a
/// center, times one number a row.
struct Remade {
    View y, x, scale;
    std::optional<View> mean;
};

/// A norm whose result is stored for a group alone, and the value's place in it.
struct StoredNorm {
    LoweredOp* op = nullptr;
    size_t result = 0;  // of its outputs
    Remade from;
};

/// Whether anything but `reader` needs a value in memory.
bool read_elsewhere(const Lowered& lowered, ValueId value, const LoweredOp& reader) {
    const auto of = [&](const View& view) { return view.value == value; };
    return std::any_of(lowered.ops.begin(), lowered.ops.end(),
                       [&](const LoweredOp& op) {
                           return &op != &reader &&
                                  std::any_of(op.inputs.begin(), op.inputs.end(), of);
                       }) ||
           std::any_of(lowered.outputs.begin(), lowered.outputs.end(),
                       [&](const Lowered::Output& output) { return output.value == value; }) ||
           std::any_of(lowered.assigns.begin(), lowered.assigns.end(),
                       [&](const Assign& assign) { return assign.source == value; });
}

std::optional<StoredNorm> stored_norm(Lowered& lowered, const LoweredOp& group) {
    const LoweredOp& row = group.members[0];
    if (anchor(row).name != "normalize_bwd") return std::nullopt;
    const RegionStep own{row.def, {0, 1, 2}, {3}, row.attrs, row.node};
    const RegionStep& gradient = row.body.empty() ? own : row.body[anchor_step(row)];
    const auto inputs = static_cast<int>(row.inputs.size());
    if (gradient.inputs[0] >= inputs || gradient.inputs[1] >= inputs) return std::nullopt;
    StoredNorm norm;
    norm.from.y = row.operand(gradient.inputs[0]);
    norm.from.scale = row.operand(gradient.inputs[1]);
    for (LoweredOp& op : lowered.ops)
        for (size_t k = 0; k < op.outputs.size(); k++)
            if (op.outputs[k].value == norm.from.y.value) norm.op = &op, norm.result = k;
    if (!norm.op || norm.op->body.empty() || anchor(*norm.op).name != "normalize" ||
        read_elsewhere(lowered, norm.from.y.value, group))
        return std::nullopt;
    const RegionStep& step = norm.op->body[anchor_step(*norm.op)];
    const int results = static_cast<int>(norm.op->inputs.size()),
              inner = results + static_cast<int>(norm.op->outputs.size());
    if (step.outputs[0] != results + static_cast<int>(norm.result) || step.inputs[0] >= inner ||
        norm.op->operand(step.outputs[1]).value != norm.from.scale.value)
        return std::nullopt;
    norm.from.x = norm.op->operand(step.inputs[0]);
    const ValueId x = norm.from.x.value;
    if (norm.from.x.dtype != norm.from.y.dtype || !(norm.from.x.shape == norm.from.y.shape) ||
        !same_layout(norm.op->outputs[norm.result], norm.from.y) ||
        std::any_of(lowered.assigns.begin(), lowered.assigns.end(),
                    [&](const Assign& assign) { return assign.target == x; }))
        return std::nullopt;
    const int last = norm.from.x.shape.rank() - 1;
    norm.from.scale.shape = norm.from.x.shape;
    norm.from.scale.strides[last] = 0;
    return norm;
}

/// A member with the norm's result made from what that was made from.
LoweredOp remade(Lowered& lowered, LoweredOp op, const Remade& from) {
    const int at = find_view(op.inputs, from.y);
    if (at < 0) return op;
    if (op.body.empty()) {
        RegionStep step{op.def, {}, {}, op.attrs, op.node};
        for (size_t k = 0; k < op.inputs.size() + op.outputs.size(); k++)
            (k < op.inputs.size() ? step.inputs : step.outputs).push_back(static_cast<int>(k));
        op.def = region_def();
        op.attrs = {};
        op.body = {step};
    }
    const int scale = static_cast<int>(op.inputs.size()), more = from.mean ? 2 : 1;
    op.inputs[static_cast<size_t>(at)] = from.x;
    op.inputs.push_back(from.scale);
    if (from.mean) op.inputs.push_back(*from.mean);
    std::vector<RegionStep> steps;
    const auto make = [&](const char* name, std::vector<int> inputs, DType dtype,
                          const Attrs& attrs) {
        View view = from.y;
        view.dtype = dtype;
        view.offset = 0;
        view.strides = contiguous_strides(view.shape);
        view.value = append_value(lowered, {dtype, view.shape}, "norm_again");
        op.inner.push_back(view);
        const auto number =
            static_cast<int>(op.inputs.size() + op.outputs.size() + op.inner.size());
        steps.push_back({find_lowered(name), std::move(inputs), {number - 1}, attrs, op.node});
        return number - 1;
    };
    const auto cast = [&](int number, DType dtype) {
        return make("cast", {number}, dtype, {{"dtype", std::string(dtype_name(dtype))}});
    };
    const DType dtype = from.y.dtype, wide = from.scale.dtype;
    int y = dtype == wide ? at : cast(at, wide);
    if (from.mean) y = make("sub", {y, scale + 1}, wide, {});
    y = make("mul", {y, scale}, wide, {});
    if (dtype != wide) y = cast(y, dtype);
    for (RegionStep& step : op.body)
        for (auto* numbers : {&step.inputs, &step.outputs})
            for (int& number : *numbers)
                number = number == at ? y : number + (number >= scale ? more : 0);
    op.body.insert(op.body.begin(), steps.begin(), steps.end());
    return op;
}

/// The norm's result has no memory any more, but its mean where gradients take it.
void store_mean_alone(StoredNorm& norm) {
    LoweredOp& op = *norm.op;
    const auto inputs = static_cast<int>(op.inputs.size());
    const int result = inputs + static_cast<int>(norm.result),
              end = inputs + static_cast<int>(op.outputs.size()), more = norm.from.mean ? 1 : 0,
              last = end + static_cast<int>(op.inner.size()) - 1 + more;
    RegionStep& step = op.body[anchor_step(op)];
    View mean = op.operand(step.outputs[1]);
    for (RegionStep& one : op.body)
        for (auto* numbers : {&one.inputs, &one.outputs})
            for (int& number : *numbers)
                number = number == result ? last
                         : number < end   ? number - (number > result)
                                          : number - 1 + more;
    op.inner.push_back(op.outputs[norm.result]);
    op.outputs.erase(op.outputs.begin() + static_cast<ptrdiff_t>(norm.result));
    if (!norm.from.mean) return;
    mean.value = norm.from.mean->value;
    op.outputs.push_back(mean);
    step.def = find_lowered("normalize_mean");
    step.outputs.push_back(end - 1);
}

/// A norm whose result only its gradients read does not store it: they read its operand in its
/// place, which lies in memory, and make it again.
void remake_norms(Lowered& lowered, const Target& target) {
    for (size_t at = 0; at < lowered.ops.size(); at++) {
        if (!target.sums_beside(lowered.ops[at])) continue;
        std::optional<StoredNorm> norm = stored_norm(lowered, lowered.ops[at]);
        if (!norm || find_view(lowered.ops[at].inputs, norm->from.x) >= 0) continue;
        const auto of_norm = static_cast<size_t>(norm->op - lowered.ops.data());
        const size_t values = lowered.values.size();
        if (anchor_attrs(*norm->op).flag("center")) {
            const Type rows = lowered.values[static_cast<size_t>(norm->from.scale.value)].type;
            norm->from.mean = norm->from.scale;
            norm->from.mean->value = append_value(lowered, rows, "mean");
        }
        std::vector<LoweredOp> members;
        std::vector<int> all;
        for (const LoweredOp& member : lowered.ops[at].members) {
            all.push_back(static_cast<int>(members.size()));
            members.push_back(remade(lowered, member, norm->from));
        }
        LoweredOp group = group_of(members, all);
        const auto is_result = [&](const View& view) { return view.value == norm->from.y.value; };
        if (std::any_of(group.inputs.begin(), group.inputs.end(), is_result) ||  // another view
            !target.sums_beside(group) || !target.fits(group)) {
            lowered.values.resize(values);
            continue;
        }
        lowered.ops[at] = std::move(group);
        norm->op = &lowered.ops[of_norm];
        store_mean_alone(*norm);
    }
}

}  // namespace

void fuse_row_sums(Lowered& lowered, const Target& target) {
    RowSums(lowered, target).run();
    remake_norms(lowered, target);
}

}  // namespace aicf
