#include "core/compile/group.h"

#include <queue>

namespace aicf {

namespace {

/// CSE of casts within a region: several members may bring the same one.
void share_casts(LoweredOp& region) {
    const int outer = static_cast<int>(region.inputs.size() + region.outputs.size());
    for (size_t i = 0; i < region.body.size(); i++) {
        const RegionStep step = region.body[i];
        if (step.def->name != "cast" || step.outputs[0] < outer) continue;
        const auto same = [&](const RegionStep& other) {
            return other.def == step.def && other.inputs == step.inputs &&
                   other.outputs[0] >= outer &&
                   same_layout(region.operand(other.outputs[0]), region.operand(step.outputs[0])) &&
                   region.operand(other.outputs[0]).dtype == region.operand(step.outputs[0]).dtype;
        };
        const auto end = region.body.begin() + static_cast<std::ptrdiff_t>(i);
        const auto found = std::find_if(region.body.begin(), end, same);
        if (found == end) continue;
        const int kept = found->outputs[0], gone = step.outputs[0];
        region.body.erase(end);
        region.inner.erase(region.inner.begin() + (gone - outer));
        for (RegionStep& other : region.body)
            for (auto* numbers : {&other.inputs, &other.outputs})
                for (int& number : *numbers)
                    number = number == gone ? kept : number > gone ? number - 1 : number;
        i--;
    }
}

}  // namespace

size_t operand_bytes(const View& view) {
    return 4 + sizeof(Operand) + 16 * static_cast<size_t>(view.shape.rank());
}

bool number_update(const LoweredOp& op) {
    return op.def->optimizer && op.def->numbers == 0 && op.body.empty();
}

LoweredOp group_of(const std::vector<LoweredOp>& ops, const std::vector<int>& members) {
    LoweredOp result;
    result.def = group_def();
    result.node = ops[members.back()].node;
    for (int member : members) {
        for (const View& view : ops[member].inputs)
            if (find_view(result.inputs, view) < 0) result.inputs.push_back(view);
        for (const View& view : ops[member].outputs) result.outputs.push_back(view);
        result.members.push_back(ops[member]);
    }
    return result;
}

Groups::Groups(Lowered& lowered, const Target& target) : ops_(lowered.ops), machine_(target) {
    const size_t count = ops_.size();
    producer_.assign(lowered.values.size(), -1);
    kept_.assign(lowered.values.size(), 0);
    target_.assign(lowered.values.size(), kNone);
    next_of_.assign(lowered.values.size(), kNone);
    seen_.assign(count, 0);
    std::vector<std::pair<int, int>> reads, edges, back;  // (value, op), (op, op)
    for (size_t i = 0; i < count; i++) {
        const int at = static_cast<int>(i);
        group_.push_back(at);
        members_.push_back({at});
        for (const View& view : ops_[i].outputs)
            if (const int before = std::exchange(producer_[view.value], at);
                before >= 0 && before != at)
                edges.emplace_back(before, at);  // writers of parts of a value, in order
        for (const View& view : ops_[i].inputs) {
            reads.emplace_back(view.value, at);
            if (const int from = producer_[view.value]; from >= 0) edges.emplace_back(from, at);
        }
    }
    readers_ = Lists(lowered.values.size(), reads);
    for (const Lowered::Output& output : lowered.outputs) kept_[output.value] = 1;
    for (const Assign& assign : lowered.assigns) {
        kept_[assign.source] = 1;
        target_[assign.source] = assign.target;
        next_of_[assign.target] = assign.source;
        const int writer = producer_[assign.source];
        for (int reader : readers_[assign.target])
            if (reader != writer) edges.emplace_back(reader, writer);
    }
    for (auto [from, to] : edges) back.emplace_back(to, from);
    successors_ = Lists(count, edges);
    predecessors_ = Lists(count, back);
    for (size_t i = 0; i < count; i++) known_.add(predecessors_[static_cast<int>(i)]);
    before_ = before_host_calls(lowered);
}

Groups::Merge Groups::merge(int a, int b, bool (*means)(const LoweredOp&), int last) {
    poll();
    if (!together(a, b)) return Merge::forbidden;
    std::vector<int> merged;
    std::merge(members_[a].begin(), members_[a].end(), members_[b].begin(), members_[b].end(),
               std::back_inserter(merged));
    const LoweredOp op = compose(merged, a, b);
    if (!means(op) || overwrites(op)) return Merge::forbidden;
    if (!machine_.fits(op)) return Merge::too_large;
    if (makes_cycle(a, b, last) || makes_cycle(b, a, last)) return Merge::forbidden;
    join(a, b, std::move(merged));
    return Merge::done;
}

void Groups::join(int a, int b, std::vector<int> merged) {
    for (int member : members_[b]) group_[member] = a;
    members_[a] = std::move(merged);
    members_[b].clear();
}

void Groups::emit() {
    const size_t count = ops_.size();
    std::vector<std::vector<int>> next(count);
    std::vector<int> waits(count, 0);
    for (size_t i = 0; i < count; i++)
        for (int to : successors_[static_cast<int>(i)])
            if (group_[i] != group_[to]) {
                next[group_[i]].push_back(group_[to]);
                waits[group_[to]]++;
            }
    using Ready = std::pair<int, int>;  // place, group
    std::priority_queue<Ready, std::vector<Ready>, std::greater<>> ready;
    for (size_t g = 0; g < count; g++)
        if (!members_[g].empty() && waits[g] == 0)
            ready.emplace(stands_at(static_cast<int>(g)), static_cast<int>(g));
    std::vector<LoweredOp> result;
    while (!ready.empty()) {
        const int group = ready.top().second;
        ready.pop();
        const std::vector<int>& members = members_[group];
        result.push_back(members.size() == 1 ? std::move(ops_[members[0]])
                                             : compose(members, group, group));
        for (int to : next[group])
            if (--waits[to] == 0) ready.emplace(stands_at(to), to);
    }
    const auto left = std::count_if(members_.begin(), members_.end(),
                                    [](const auto& members) { return !members.empty(); });
    check(result.size() == static_cast<size_t>(left), "fuse: groups wait for each other");
    ops_ = std::move(result);
}

int Groups::stands_at(int group) const {
    for (int member : members_[group])
        if (const LoweredDef& kind = anchor(ops_[member]);
            kind.reduction || kind.gemm || !kind.rows.empty())
            return member;
    return members_[group].back();
}

bool Groups::whole_reads(int reader, int from) const {
    for (int member : members_[reader])
        for (const View& view : ops_[member].inputs)
            if (const int at = producer_[view.value];
                at >= 0 && group_[at] == from && !same_layout(view, ops_[at].outputs[0]))
                return false;
    return true;
}

bool Groups::overwrites(const LoweredOp& op) const {
    std::optional<std::vector<std::pair<int, int>>> allowed;
    for (int out = 0; out < static_cast<int>(op.outputs.size()); out++) {
        const ValueId target = target_[op.outputs[out].value];
        for (int in = 0; target != kNone && in < static_cast<int>(op.inputs.size()); in++) {
            if (op.inputs[in].value != target) continue;
            if (!allowed) allowed = inplace_of(op);
            if (std::find(allowed->begin(), allowed->end(), std::pair(out, in)) == allowed->end() ||
                !same_layout(op.outputs[out], op.inputs[in]))
                return true;
        }
    }
    return false;
}

bool Groups::known_path(int from, int to) const {
    for (int upper : members_[from])
        for (int lower : members_[to])
            if (known_.above(upper, lower)) return true;
    return false;
}

bool Groups::makes_cycle(int a, int b, int last) {
    const int from_a = ++now_, from_b = ++now_;
    std::vector<int> on = {a}, back = {b};
    for (size_t i = 0;; i++) {
        if (i == on.size()) return false;
        for (int member : members_[on[i]])
            for (int next : successors_[member]) {
                const int to = group_[next];
                if (next > last || to == a || seen_[to] == from_a) continue;
                if (to == b) {
                    if (on[i] == a) continue;
                    return true;
                }
                if (seen_[to] == from_b || known_path(to, b)) return true;
                seen_[to] = from_a;
                on.push_back(to);
            }
        if (i == back.size()) return false;
        for (int member : members_[back[i]])
            for (int before : predecessors_[member]) {
                const int from = group_[before];
                if (from == b || seen_[from] == from_b) continue;
                if (from == a) {
                    if (back[i] == b) continue;
                    return true;
                }
                if (seen_[from] == from_a || known_path(a, from)) return true;
                seen_[from] = from_b;
                back.push_back(from);
            }
    }
}

LoweredOp Groups::region(const std::vector<int>& members, int a, int b) const {
    LoweredOp result;
    result.def = region_def();
    result.node = ops_[members.back()].node;
    const auto inside = [&](int op) { return group_[op] == a || group_[op] == b; };
    for (int member : members) {
        for (const View& out : ops_[member].outputs) {
            const auto& readers = readers_[out.value];
            const bool leaves =
                kept_[out.value] || !std::all_of(readers.begin(), readers.end(), inside);
            (leaves ? result.outputs : result.inner).push_back(out);
        }
        for (const View& view : ops_[member].inner) result.inner.push_back(view);
        for (const View& view : ops_[member].inputs)
            if (const int from = producer_[view.value];
                (from < 0 || !inside(from)) && find_view(result.inputs, view) < 0)
                result.inputs.push_back(view);
    }
    const int inputs = static_cast<int>(result.inputs.size()),
              outputs = static_cast<int>(result.outputs.size());
    const auto number = [&](const View& view) {
        if (const int in = find_view(result.inputs, view); in >= 0) return in;
        const int out = find_view(result.outputs, view);
        return inputs + (out >= 0 ? out : outputs + find_view(result.inner, view));
    };
    for (int member : members) {
        const LoweredOp& op = ops_[member];
        std::vector<RegionStep> steps = op.body;
        if (steps.empty()) steps.push_back({op.def, {}, {}, op.attrs, op.node});
        for (RegionStep& step : steps) {
            const auto renumber = [&](std::vector<int>& numbers, const std::vector<View>& own) {
                if (op.body.empty())
                    for (const View& view : own) numbers.push_back(number(view));
                else
                    for (int& i : numbers) i = number(op.operand(i));
            };
            renumber(step.inputs, op.inputs);
            renumber(step.outputs, op.outputs);
            result.body.push_back(std::move(step));
        }
    }
    share_casts(result);
    return result;
}

}  // namespace aicf
