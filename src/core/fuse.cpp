// Pointwise fusion: ops that hand each other whole results become one op with a body of steps, so
// that what only they read never reaches memory.
//
// Groups of ops grow along the list: an op joins the groups of what it reads when the iteration
// shapes are equal and no path leaves the group and comes back. Paths follow values, and run from
// every reader of a param or state to the op that writes its next content.
#include <algorithm>
#include <queue>

#include "core/passes.h"

namespace aicf {

namespace {

bool is_16_bit(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; }

/// Pointwise, one result, and every operand steps through the result's shape.
bool fusable(const LoweredOp& op) {
    return op.def->pointwise && !op.def->optimizer && !op.def->random && op.body.empty() &&
           op.outputs.size() == 1 &&
           std::all_of(op.inputs.begin(), op.inputs.end(),
                       [&](const View& view) { return view.shape == op.outputs[0].shape; });
}

/// What every backend can hold of one op: operands and live values in a GPU thread's registers, and
/// in the argument block the program the CPU interprets, where a 16-bit value takes a second slot
/// for its f32 form, and an instruction to make it and one to round it.
bool fits(const LoweredOp& op) {
    constexpr size_t kMaxOperands = 16, kMaxSteps = 32, kMaxSlots = 40;
    const size_t operands = op.inputs.size() + op.outputs.size(), all = operands + op.inner.size();
    const auto dtype = [&](size_t number) { return op.operand(static_cast<int>(number)).dtype; };
    std::vector<const FusedStep*> last(all, nullptr);
    size_t instrs = op.body.size(), slots = operands + 2, scalars = 0;
    for (size_t i = 0; i < all; i++) instrs += is_16_bit(dtype(i)) ? 2 : 0;
    for (size_t i = 0; i < operands; i++) slots += is_16_bit(dtype(i));
    for (const FusedStep& step : op.body) {
        scalars += step.attrs.items().size();
        instrs += step.def->name == "cast";
        for (int i : step.inputs) last[i] = &step;
    }
    size_t live[9] = {}, most[9] = {};  // inner values by size: a slot is used again for its size
    for (const FusedStep& step : op.body) {
        const auto made = static_cast<size_t>(step.outputs[0]);
        const auto count = [&](size_t number, size_t by) {
            if (is_16_bit(dtype(number))) live[4] += by;
            live[dtype_size(dtype(number))] += by;
        };
        if (made >= operands) count(made, 1);
        for (size_t size = 1; size < 9; size++) most[size] = std::max(most[size], live[size]);
        for (size_t i = operands; i < all; i++)
            if (last[i] == &step) count(i, static_cast<size_t>(-1));
    }
    for (size_t count : most) slots += count;
    const auto rank = static_cast<size_t>(op.outputs[0].shape.rank());
    const size_t bytes = 384 + operands * (20 + 24 * rank) + 8 * scalars + 24 * slots + 40 * instrs;
    return operands <= kMaxOperands && op.body.size() <= kMaxSteps && slots <= kMaxSlots &&
           bytes <= kMaxArgBytes;
}

class Fuser {
  public:
    explicit Fuser(Lowered& lowered) : ops_(lowered.ops) {
        const size_t count = ops_.size();
        producer_.assign(lowered.values.size(), -1);
        readers_.resize(lowered.values.size());
        kept_.assign(lowered.values.size(), 0);
        target_.assign(lowered.values.size(), kNone);
        successors_.resize(count);
        seen_.assign(count, 0);
        for (size_t i = 0; i < count; i++) {
            const int at = static_cast<int>(i);
            group_.push_back(at);
            members_.push_back({at});
            for (const View& view : ops_[i].outputs) producer_[view.value] = at;
            for (const View& view : ops_[i].inputs) {
                readers_[view.value].push_back(at);
                if (const int from = producer_[view.value]; from >= 0)
                    successors_[from].push_back(at);
            }
        }
        for (const Lowered::Output& output : lowered.outputs) kept_[output.value] = 1;
        for (const Assign& assign : lowered.assigns) {
            kept_[assign.source] = 1;
            target_[assign.source] = assign.target;
            const int writer = producer_[assign.source];
            for (int reader : readers_[assign.target])
                if (reader != writer) successors_[reader].push_back(writer);
        }
    }

    void run() {
        for (int at = 0; at < static_cast<int>(ops_.size()); at++) {
            if (!fusable(ops_[at])) continue;
            for (const View& view : ops_[at].inputs)
                if (const int from = producer_[view.value];
                    from >= 0 && group_[from] != group_[at] && fusable(ops_[from]))
                    try_merge(group_[from], group_[at], at);
        }
        emit();
    }

  private:
    /// `at` is the last op looked at: all behind it still stand alone.
    void try_merge(int a, int b, int at) {
        const std::vector<int>&first = members_[a], &second = members_[b];
        // A copy alone is there because its source does not lie as the reader needs it.
        if (first.size() == 1 && ops_[first[0]].def->name == "copy") return;
        const View& out = ops_[second[0]].outputs[0];
        if (!(ops_[first[0]].outputs[0].shape == out.shape)) return;
        for (int member : second)
            for (const View& view : ops_[member].inputs)
                if (const int from = producer_[view.value];
                    from >= 0 && group_[from] == a && !same_layout(view, ops_[from].outputs[0]))
                    return;
        std::vector<int> merged;
        std::merge(first.begin(), first.end(), second.begin(), second.end(),
                   std::back_inserter(merged));
        const LoweredOp op = fused(merged, a, b);
        if (!fits(op) || overwrites(op) || detour(a, b, at)) return;
        for (int member : second) group_[member] = a;
        members_[a] = std::move(merged);
        members_[b].clear();
    }

    /// Whether the op would write a param or state while a step still reads it.
    bool overwrites(const LoweredOp& op) const {
        for (int out = 0; out < static_cast<int>(op.outputs.size()); out++)
            for (int in = 0; in < static_cast<int>(op.inputs.size()); in++)
                if (target_[op.outputs[out].value] == op.inputs[in].value &&
                    !may_overwrite(op, out, in))
                    return true;
        return false;
    }

    /// Whether a path leads from group a to group b through an op of neither.
    bool detour(int a, int b, int last) {
        now_++;
        std::vector<int> open;
        const auto visit = [&](int group) {
            for (int member : members_[group])
                for (int next : successors_[member]) {
                    const int to = group_[next];
                    if (next > last || to == a || seen_[to] == now_) continue;
                    if (to == b) {
                        if (group == a) continue;
                        return true;
                    }
                    seen_[to] = now_;
                    open.push_back(to);
                }
            return false;
        };
        if (visit(a)) return true;
        while (!open.empty()) {
            const int group = open.back();
            open.pop_back();
            if (visit(group)) return true;
        }
        return false;
    }

    /// The op of a group: those of groups a and b.
    LoweredOp fused(const std::vector<int>& members, int a, int b) const {
        LoweredOp result;
        result.def = find_lowered("fused");
        result.node = ops_[members.back()].node;
        std::vector<std::pair<ValueId, int>> inner;
        for (int member : members) {
            const View& out = ops_[member].outputs[0];
            const bool leaves =
                kept_[out.value] ||
                std::any_of(readers_[out.value].begin(), readers_[out.value].end(),
                            [&](int op) { return group_[op] != a && group_[op] != b; });
            (leaves ? result.outputs : result.inner).push_back(out);
            for (const View& view : ops_[member].inputs)
                if (const int from = producer_[view.value];
                    (from < 0 || (group_[from] != a && group_[from] != b)) &&
                    find(result.inputs, view) < 0)
                    result.inputs.push_back(view);
        }
        const int inputs = static_cast<int>(result.inputs.size()),
                  outputs = static_cast<int>(result.outputs.size());
        const auto made = [&](const View& view) {
            const int out = find(result.outputs, view);
            return inputs + (out >= 0 ? out : outputs + find(result.inner, view));
        };
        for (int member : members) {
            const LoweredOp& op = ops_[member];
            FusedStep step{op.def, {}, {made(op.outputs[0])}, op.attrs, op.node};
            for (const View& view : op.inputs) {
                const int in = find(result.inputs, view);
                step.inputs.push_back(in >= 0 ? in : made(view));
            }
            result.body.push_back(std::move(step));
        }
        return result;
    }

    static int find(const std::vector<View>& list, const View& view) {
        for (size_t i = 0; i < list.size(); i++)
            if (list[i].value == view.value && list[i].dtype == view.dtype &&
                same_layout(list[i], view))
                return static_cast<int>(i);
        return -1;
    }

    /// The list again, each group where its last member stood unless something waits for it there.
    void emit() {
        const size_t count = ops_.size();
        std::vector<std::vector<int>> next(count);
        std::vector<int> waits(count, 0);
        for (size_t i = 0; i < count; i++)
            for (int to : successors_[i])
                if (group_[i] != group_[to]) {
                    next[group_[i]].push_back(group_[to]);
                    waits[group_[to]]++;
                }
        using Ready = std::pair<int, int>;  // last member, group
        std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready;
        for (size_t g = 0; g < count; g++)
            if (!members_[g].empty() && waits[g] == 0)
                ready.emplace(members_[g].back(), static_cast<int>(g));
        std::vector<LoweredOp> result;
        while (!ready.empty()) {
            const int group = ready.top().second;
            ready.pop();
            const std::vector<int>& members = members_[group];
            result.push_back(members.size() == 1 ? ops_[members[0]] : fused(members, group, group));
            for (int to : next[group])
                if (--waits[to] == 0) ready.emplace(members_[to].back(), to);
        }
        const auto left = std::count_if(members_.begin(), members_.end(),
                                        [](const auto& members) { return !members.empty(); });
        check(result.size() == static_cast<size_t>(left), "fuse: groups wait for each other");
        ops_ = std::move(result);
    }

    std::vector<LoweredOp>& ops_;
    std::vector<int> producer_;                           // by value: the op that writes it
    std::vector<std::vector<int>> readers_;               // by value
    std::vector<char> kept_;                              // by value: an output or a next content
    std::vector<ValueId> target_;                         // by value: whose next content it is
    std::vector<std::vector<int>> successors_, members_;  // by op; by group, ascending
    std::vector<int> group_, seen_;                       // by op; by group
    int now_ = 0;
};

}  // namespace

void fuse_pointwise(Lowered& lowered) { Fuser(lowered).run(); }

}  // namespace aicf
