// Fusion: ops become one op with a body of steps.
//
// Groups of ops grow where no path leaves a group and comes back. Paths follow values, and run from
// every reader of a param or state to the op that writes its next content. What is read outside a
// group, an output, or a next content stays an output of its op; the rest never reaches memory.
#include <algorithm>
#include <climits>
#include <map>
#include <optional>
#include <queue>

#include "core/backend.h"
#include "core/interrupt.h"
#include "core/passes.h"
#include "core/paths.h"

namespace aicf {

namespace {

/// A list of ints for each of a range of keys, in the order of the pairs that it is made from.
class Lists {
  public:
    Lists() = default;
    Lists(size_t keys, const std::vector<std::pair<int, int>>& pairs)
        : begin_(keys + 2, 0), items_(pairs.size()) {
        for (auto [key, item] : pairs) begin_[key + 2]++;
        for (size_t key = 2; key < begin_.size(); key++) begin_[key] += begin_[key - 1];
        for (auto [key, item] : pairs) items_[begin_[key + 1]++] = item;
    }
    std::span<const int> operator[](int key) const {
        return {items_.data() + begin_[key], items_.data() + begin_[key + 1]};
    }

  private:
    std::vector<int> begin_, items_;
};

/// The ops of a list in groups, each to become one op.
class Groups {
  public:
    explicit Groups(Lowered& lowered) : ops_(lowered.ops) {
        const size_t count = ops_.size();
        producer_.assign(lowered.values.size(), -1);
        kept_.assign(lowered.values.size(), 0);
        target_.assign(lowered.values.size(), kNone);
        next_of_.assign(lowered.values.size(), kNone);
        seen_.assign(count, 0);
        def_.assign(count, nullptr);
        std::vector<std::pair<int, int>> reads, edges, back;  // (value, op), (op, op)
        for (size_t i = 0; i < count; i++) {
            const int at = static_cast<int>(i);
            group_.push_back(at);
            members_.push_back({at});
            for (const View& view : ops_[i].outputs) producer_[view.value] = at;
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
    }

  protected:
    /// Makes one group of two, unless a path, a limit or an operand in the way forbids it.
    /// `last`: all ops behind it still stand alone; -1 where no path can be in the way.
    bool merge(int a, int b, const LoweredDef* def, bool (*fits)(const LoweredOp&), int last) {
        poll();
        std::vector<int> merged;
        std::merge(members_[a].begin(), members_[a].end(), members_[b].begin(), members_[b].end(),
                   std::back_inserter(merged));
        const LoweredOp op = compose(def, merged, a, b);
        if (!fits(op) || overwrites(op) || detour(a, b, last) || detour(b, a, last)) return false;
        join(a, b, def, std::move(merged));
        return true;
    }
    void join(int a, int b, const LoweredDef* def, std::vector<int> merged) {
        for (int member : members_[b]) group_[member] = a;
        members_[a] = std::move(merged);
        members_[b].clear();
        def_[a] = def;
    }

    /// The list again, each group where its last member stood unless something waits for it there.
    void emit() {
        const size_t count = ops_.size();
        std::vector<std::vector<int>> next(count);
        std::vector<int> waits(count, 0);
        for (size_t i = 0; i < count; i++)
            for (int to : successors_[static_cast<int>(i)])
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
            result.push_back(members.size() == 1 ? std::move(ops_[members[0]])
                                                 : compose(def_[group], members, group, group));
            for (int to : next[group])
                if (--waits[to] == 0) ready.emplace(members_[to].back(), to);
        }
        const auto left = std::count_if(members_.begin(), members_.end(),
                                        [](const auto& members) { return !members.empty(); });
        check(result.size() == static_cast<size_t>(left), "fuse: groups wait for each other");
        ops_ = std::move(result);
    }

    /// The op of some members, all those of groups a and b: one with a body, if nothing else.
    virtual LoweredOp compose(const LoweredDef* def, const std::vector<int>& members, int a,
                              int b) const {
        return fused(def, members, a, b);
    }
    /// Whether all that group `reader` takes from group `from` are whole results.
    bool whole_reads(int reader, int from) const {
        for (int member : members_[reader])
            for (const View& view : ops_[member].inputs)
                if (const int at = producer_[view.value];
                    at >= 0 && group_[at] == from && !same_layout(view, ops_[at].outputs[0]))
                    return false;
        return true;
    }
    ~Groups() = default;

    std::vector<LoweredOp>& ops_;
    Lists successors_, predecessors_;        // by op
    std::vector<int> producer_;              // by value: the op that writes it
    Lists readers_;                          // by value
    std::vector<int> group_;                 // by op
    std::vector<std::vector<int>> members_;  // by group, ascending
    std::vector<char> kept_;                 // by value: an output or a next content
    std::vector<ValueId> target_;            // by value: whose next content it is
    std::vector<ValueId> next_of_;           // by value: its next content

  private:
    /// Whether the op would write a param or state while a step still reads it.
    bool overwrites(const LoweredOp& op) const {
        std::optional<std::vector<std::pair<int, int>>> allowed;
        for (int out = 0; out < static_cast<int>(op.outputs.size()); out++) {
            const ValueId target = target_[op.outputs[out].value];
            for (int in = 0; target != kNone && in < static_cast<int>(op.inputs.size()); in++) {
                if (op.inputs[in].value != target) continue;
                if (!allowed) allowed = inplace_of(op);
                if (std::find(allowed->begin(), allowed->end(), std::pair(out, in)) ==
                        allowed->end() ||
                    !same_layout(op.outputs[out], op.inputs[in]))
                    return true;
            }
        }
        return false;
    }

    /// Whether a path of single ops is known to lead from one group to another.
    bool known_path(int from, int to) const {
        for (int upper : members_[from])
            for (int lower : members_[to])
                if (known_.above(upper, lower)) return true;
        return false;
    }

    /// Whether a path leads from group a to group b through an op of neither: looked for from both
    /// ends by turns, as one of them may lead far.
    bool detour(int a, int b, int last) {
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

    LoweredOp fused(const LoweredDef* def, const std::vector<int>& members, int a, int b) const {
        LoweredOp result;
        result.def = def;
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
            std::vector<FusedStep> steps = op.body;
            if (steps.empty()) steps.push_back({op.def, {}, {}, op.attrs, op.node});
            for (FusedStep& step : steps) {
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
        return result;
    }

    Forest known_;                        // by op, below one that it comes after
    std::vector<int> seen_;               // by group
    std::vector<const LoweredDef*> def_;  // by group of several
    int now_ = 0;
};

// ---- pointwise ----------------------------------------------------------------------------------

/// Pointwise, one result, and every operand steps through the result's shape.
bool fusable(const LoweredOp& op) {
    return op.def->pointwise && !op.def->optimizer && !op.def->random && op.body.empty() &&
           op.outputs.size() == 1 &&
           std::all_of(op.inputs.begin(), op.inputs.end(),
                       [&](const View& view) { return view.shape == op.outputs[0].shape; });
}

/// What an op asks of a backend: operands and live values are a GPU thread's registers; the
/// argument block holds the program that the CPU interprets, in which a 16-bit value takes a second
/// slot for its f32 form, and an instruction to make it and one to round it.
struct Needs {
    size_t operands = 0, slots = 0, bytes = 0;
};

Needs needs_of(const LoweredOp& op) {
    Needs needs;
    needs.operands = op.inputs.size() + op.outputs.size();
    size_t sizes = 0;
    for (const auto* views : {&op.inputs, &op.outputs})
        for (const View& view : *views) sizes += 8 * static_cast<size_t>(view.shape.rank());
    needs.bytes = 224 + 20 * needs.operands + 2 * sizes + 8 * pack_scalars(op).size();
    if (op.def->optimizer) needs.bytes += 64 + 40 * op.body.size();
    const bool walks = !op.def->pointwise && !op.def->gemm && !op.def->optimizer;
    if (walks) needs.bytes += 1408;  // where the CPU finds the rows of a reduction
    if (op.def->optimizer || ((walks || op.def->gemm) && op.body.empty())) return needs;

    const size_t all = needs.operands + op.inner.size();
    const auto dtype = [&](size_t number) { return op.operand(static_cast<int>(number)).dtype; };
    std::vector<const FusedStep*> last(all, nullptr);
    size_t instrs = std::max<size_t>(op.body.size(), 1);
    needs.slots = needs.operands + 2;
    for (size_t i = 0; i < all; i++) instrs += is_16_bit(dtype(i)) ? 2 : 0;
    for (size_t i = 0; i < needs.operands; i++) needs.slots += is_16_bit(dtype(i));
    for (const FusedStep& step : op.body) {
        instrs += step.def->name == "cast";
        for (int i : step.inputs) last[i] = &step;
    }
    size_t live[9] = {}, most[9] = {};  // inner values by size: a slot is used again for its size
    for (const FusedStep& step : op.body) {
        const auto count = [&](size_t number, size_t by) {
            if (is_16_bit(dtype(number))) live[4] += by;
            live[dtype_size(dtype(number))] += by;
        };
        for (int made : step.outputs)
            if (static_cast<size_t>(made) >= needs.operands) count(static_cast<size_t>(made), 1);
        for (size_t size = 1; size < 9; size++) most[size] = std::max(most[size], live[size]);
        for (size_t i = needs.operands; i < all; i++)
            if (last[i] == &step) count(i, static_cast<size_t>(-1));
    }
    for (size_t count : most) needs.slots += count;
    size_t tables = 192 + sizes + 24 * needs.slots;
    if (walks) {  // a program for the elements, and one for the results
        const auto rank = static_cast<size_t>(op.operand(op.body[0].inputs[0]).shape.rank());
        tables = 2 * (192 + 8 * rank * (needs.operands + 1) + 24 * (needs.slots + 1)) + 64;
    }
    needs.bytes += tables + 40 * instrs;
    return needs;
}

bool fits_block(const LoweredOp& op) {
    constexpr size_t kMaxOperands = 16, kMaxSteps = 32, kMaxSlots = 40;
    const Needs needs = needs_of(op);
    return needs.operands <= kMaxOperands && op.body.size() <= kMaxSteps &&
           needs.slots <= kMaxSlots && needs.bytes <= kMaxArgBytes;
}

/// An op joins the groups of what it reads where the iteration shapes are equal.
class Pointwise : Groups {
  public:
    using Groups::Groups;
    void run() {
        const LoweredDef* def = find_lowered("fused");
        for (int at = 0; at < static_cast<int>(ops_.size()); at++) {
            if (!fusable(ops_[at])) continue;
            for (const View& view : ops_[at].inputs)
                if (const int from = producer_[view.value];
                    from >= 0 && group_[from] != group_[at] && fusable(ops_[from]) &&
                    alike(group_[from], group_[at]))
                    merge(group_[from], group_[at], def, fits_block, at);
        }
        emit();
    }

  private:
    bool alike(int a, int b) const {
        const std::vector<int>&first = members_[a], &second = members_[b];
        // A copy alone is there because its source does not lie as the reader needs it.
        if (first.size() == 1 && ops_[first[0]].def->name == "copy") return false;
        return ops_[first[0]].outputs[0].shape == ops_[second[0]].outputs[0].shape &&
               whole_reads(b, a);
    }
};

// ---- epilogues ----------------------------------------------------------------------------------

/// A product whose result lies as its own shape says.
bool fusable_gemm(const LoweredOp& op) {
    if (!op.def->gemm || !op.body.empty()) return false;
    const Dims& b = op.inputs[1].shape;
    Dims shape = op.inputs[0].shape;
    shape[shape.rank() - 1] = b[b.rank() - 1];
    return op.outputs[0].shape == shape;
}

/// The first step is the one product, of operands that no other step reads. It is made where the
/// first output lies, so that must have its dtype and be written by the last step that needs it.
bool fits_epilogue(const LoweredOp& op) {
    constexpr size_t kMaxSteps = 9, kMaxOperands = 12;
    const FusedStep& gemm = op.body[0];
    const int product = gemm.outputs[0], first = static_cast<int>(op.inputs.size());
    if (!gemm.def->gemm || gemm.inputs != std::vector<int>{0, 1} || op.body.size() > kMaxSteps ||
        op.inputs.size() + op.outputs.size() > kMaxOperands || !fits_block(op) ||
        op.outputs[0].dtype != op.operand(product).dtype)
        return false;
    bool written = false;
    for (size_t i = 1; i < op.body.size(); i++) {
        const FusedStep& step = op.body[i];
        for (int number : step.inputs)
            if (number < 2 || (written && product != first && number == product)) return false;
        written |= step.outputs[0] == first;
    }
    return true;
}

/// Pointwise ops join the product they follow.
class Epilogues : Groups {
  public:
    using Groups::Groups;
    void run() {
        const LoweredDef* def = find_lowered("fused_gemm");
        for (int at = 0; at < static_cast<int>(ops_.size()); at++) {
            if (!fusable(ops_[at])) continue;
            for (const View& view : ops_[at].inputs)
                if (const int from = producer_[view.value];
                    from >= 0 && group_[from] != group_[at] && members_[group_[at]].size() == 1 &&
                    fusable_gemm(ops_[members_[group_[from]][0]]) &&
                    whole_reads(group_[at], group_[from]))
                    merge(group_[from], group_[at], def, fits_epilogue, at);
        }
        emit();
    }
};

// ---- reductions ---------------------------------------------------------------------------------

/// One reduction, of elements that the steps before it make for it alone: they lie nowhere. Along
/// one axis each of their operands has its neighbours or is one element, or a backend would read
/// some of them across.
bool fits_reduction(const LoweredOp& op) {
    const auto inputs = static_cast<int>(op.inputs.size()),
               results = inputs + static_cast<int>(op.outputs.size());
    std::vector<char> element(results + op.inner.size(), 0);
    std::vector<const View*> read;
    bool behind = false;
    for (const FusedStep& step : op.body) {
        if (behind && step.def->reduction) return false;
        for (int number : step.inputs) {
            if (behind && element[number]) return false;
            if (!behind && number < inputs) read.push_back(&op.inputs[number]);
        }
        behind |= step.def->reduction;
        if (!behind && step.outputs[0] < results) return false;
        element[step.outputs[0]] = !behind;
    }
    const int fast = fast_axis(*largest_view(read));
    const auto along = [&](const View* view) {
        return fast < 0 || view->strides[fast] == 0 || fast_axis(*view) == fast;
    };
    return std::all_of(read.begin(), read.end(), along) && fits_block(op);
}

/// A GPU makes the elements again on each of its passes over a row, up to three: that is to cost
/// less than reading them would (an exponential is 10).
constexpr double kCheapFlops = 8;
/// What the CPU holds of a row between the steps is to stay near.
constexpr int64_t kNearBytes = 256 << 10;
constexpr size_t kMaxHeld = 8;  // values between the steps

/// One op on rows, of elements that cheap steps make and with steps that take elements of its
/// result; neighbours lie along the row in all that these steps read and write. What the op has
/// one a row of comes from outside and goes there.
bool fits_rows(const LoweredOp& op) {
    const auto inputs = static_cast<int>(op.inputs.size()),
               results = inputs + static_cast<int>(op.outputs.size());
    const size_t core = core_step(op);
    if (core == op.body.size()) return false;
    const FusedStep& row = op.body[core];
    const auto takes = static_cast<int>(row.inputs.size());
    const View& x = op.operand(row.inputs[row.def->rows[0]]);
    const int axis = row_axis(row.attrs, x.shape.rank());
    const auto elements = [&](int position) {
        const std::vector<int>& rows = row.def->rows;
        return std::find(rows.begin(), rows.end(), position) != rows.end();
    };
    const auto along = [&](const View& view) {
        const int fast = fast_axis(view);
        return view.shape == x.shape && (fast < 0 || fast == axis || view.strides[axis] == 0);
    };

    // By operand: the part of the body that makes it and the last that names it; one a row.
    std::vector<size_t> made(results + op.inner.size(), 0), used(made.size(), 0);
    std::vector<char> apart(made.size(), 0);
    for (int k = 0; k < takes; k++)
        if (!elements(k) && row.inputs[k] >= inputs) return false;
    for (size_t k = 0; k < row.outputs.size(); k++)
        apart[row.outputs[k]] = !elements(takes + static_cast<int>(k));
    double flops = 0;
    for (size_t i = 0; i < op.body.size(); i++) {
        const FusedStep& step = op.body[i];
        if (i != core && !step.def->pointwise) return false;
        const size_t part = i < core ? 0 : i == core ? 1 : 2;
        if (part == 0) flops += step.def->flops_per_element;
        for (const auto* numbers : {&step.inputs, &step.outputs})
            for (int number : *numbers) {
                const bool outer = number < results;
                if (part != 1 && (apart[number] || (outer && !along(op.operand(number)))))
                    return false;
                used[number] = part;
            }
        for (int number : step.outputs) made[number] = part;
    }
    size_t held = 0;
    int64_t bytes = 0;  // of an element
    for (size_t number = static_cast<size_t>(results); number < made.size(); number++)
        if (!apart[number] && (made[number] == 1 || made[number] != used[number])) {
            held++;
            bytes += dtype_size(op.operand(static_cast<int>(number)).dtype);
        }
    return flops <= kCheapFlops && held <= kMaxHeld && bytes * x.shape[axis] <= kNearBytes &&
           fits_block(op);
}

/// Pointwise ops join the op that reads their results, and the one whose result they read: one of
/// those that `core` tells, into an op of `def` that `fits` allows.
class Around : Groups {
  public:
    Around(Lowered& lowered, const char* def, bool (*core)(const LoweredDef&),
           bool (*fits)(const LoweredOp&))
        : Groups(lowered), def_(find_lowered(def)), core_(core), fits_(fits) {}
    void run() {
        level_.assign(ops_.size(), 0);
        for (int at = 0; at < static_cast<int>(ops_.size()); at++) {
            if (core_(*ops_[at].def))
                while (takes_element(at)) {  // what made it may follow
                }
            level_[at] = level_of(group_[at]);
            if (fusable(ops_[at])) follow(at);
        }
        emit();
    }

  private:
    /// The distance from the start of the step to what a group waits for.
    int level_of(int group) const {
        int level = 0;
        for (int member : members_[group])
            for (const View& view : ops_[member].inputs)
                if (const int from = producer_[view.value]; from >= 0 && group_[from] != group)
                    level = std::max(level, level_[from] + 1);
        return level;
    }

    /// An op that makes an element for `at`, or an operand of one that does, joins. A copy
    /// is there because its source does not lie as the reader needs it.
    bool takes_element(int at) {
        for (int member : members_[group_[at]])
            for (const View& view : ops_[member].inputs)
                if (const int from = producer_[view.value];
                    from >= 0 && group_[from] != group_[at] && members_[group_[from]].size() == 1 &&
                    fusable(ops_[from]) && ops_[from].def->name != "copy" &&
                    whole_reads(group_[at], group_[from]) &&
                    merge(group_[at], group_[from], def_, fits_, at))
                    return true;
        return false;
    }

    /// Joins the op it reads, unless that would have to wait for another of its operands.
    void follow(int at) {
        for (const View& view : ops_[at].inputs) {
            const int from = producer_[view.value];
            if (from < 0) continue;
            const int group = group_[from];
            const auto core = [&](int member) { return core_(*ops_[member].def); };
            const auto early = [&](const View& other) {
                const int maker = producer_[other.value];
                return maker < 0 || group_[maker] == group || level_[maker] < level_[from];
            };
            if (std::any_of(members_[group].begin(), members_[group].end(), core) &&
                std::all_of(ops_[at].inputs.begin(), ops_[at].inputs.end(), early) &&
                whole_reads(group_[at], group) && merge(group, group_[at], def_, fits_, at)) {
                level_[at] = level_[from];
                return;
            }
        }
    }

    const LoweredDef* def_;
    bool (*core_)(const LoweredDef&);
    bool (*fits_)(const LoweredOp&);
    std::vector<int> level_;  // by op
};

// ---- optimizers ---------------------------------------------------------------------------------

/// From here on a launch of its own costs a tensor's update nothing, and making the numbers again
/// in every block costs it 15 % (Adam on an H200).
constexpr int64_t kLargeTensor = 1 << 22;

/// Updates of tensors in f32 or f64, whole in memory.
bool tensor_update(const LoweredOp& op) {
    const DType dtype = op.outputs[0].dtype;
    if (!op.def->optimizer || op.def->numbers <= 0 || !op.body.empty() || is_16_bit(dtype) ||
        element_count(op.outputs[0].shape) >= kLargeTensor)
        return false;
    const auto packed = [](const View& view) { return is_contiguous(view.shape, view.strides); };
    return std::all_of(op.inputs.begin(), op.inputs.end(), packed) &&
           std::all_of(op.outputs.begin(), op.outputs.end(), packed);
}

bool number_update(const LoweredOp& op) {
    return op.def->optimizer && op.def->numbers == 0 && op.body.empty();
}

/// Tensors are updated side by side, so a step may wait for numbers alone; and all must fit the
/// argument block, with what the CPU notes about each step.
bool fits_update(const LoweredOp& op) {
    std::vector<char> made(op.inputs.size() + op.outputs.size() + op.inner.size(), 0);
    for (const FusedStep& step : op.body) {
        for (int number : step.inputs)
            if (made[number]) return false;
        for (int number : step.outputs) made[number] = step.def->numbers > 0;
    }
    return needs_of(op).bytes <= kMaxArgBytes;
}

/// Updates with the same numbers become one op.
class Optimizers : Groups {
  public:
    using Groups::Groups;
    void run() {
        const LoweredDef* def = find_lowered("update");
        std::map<std::string, Alike> known;
        std::vector<Alike*> alike(ops_.size(), nullptr);
        std::vector<size_t> bytes(ops_.size(), 0);
        for (size_t at = 0; at < ops_.size(); at++) {
            if (!tensor_update(ops_[at])) continue;
            alike[at] = &known[numbers_of(ops_[at])];
            bytes[at] = growth(static_cast<int>(at));
            alike[at]->least = std::min(alike[at]->least, bytes[at]);
        }
        for (size_t at = 0; at < ops_.size(); at++)
            if (alike[at]) place(static_cast<int>(at), bytes[at], *alike[at], def);
        emit();
        // As rows of elements the tensors take the least room in the argument block.
        for (LoweredOp& op : ops_)
            if (op.def == def)
                for (auto* views : {&op.inputs, &op.outputs})
                    for (View& view : *views)
                        if (view.shape.rank() > 1) {
                            view.shape = {element_count(view.shape)};
                            view.strides = {1};
                        }
    }

  private:
    struct Head {  // the first op of a group
        int op;
        size_t bytes;  // the least that the group's argument block takes
    };
    struct Alike {                    // updates of the same numbers
        size_t least = kMaxArgBytes;  // that any of them adds to a block
        std::vector<Head> heads;      // of groups that have room for it
    };

    /// An update joins the latest group that takes it.
    void place(int at, size_t bytes, Alike& alike, const LoweredDef* def) {
        std::vector<Head>& heads = alike.heads;
        for (size_t i = heads.size(); i-- > 0;) {
            Head& head = heads[i];
            if (head.bytes + bytes > kMaxArgBytes ||
                !merge(group_[head.op], group_[at], def, fits_update, INT_MAX))
                continue;
            head.bytes += bytes;
            if (head.bytes + alike.least > kMaxArgBytes)
                heads.erase(heads.begin() + static_cast<std::ptrdiff_t>(i));
            return;
        }
        heads.push_back({at, block(ops_[at]) + bytes});
    }

    /// What an argument block of updates takes beside what each adds.
    static size_t block(const LoweredOp& op) {
        size_t bytes = 224 + 64;
        for (size_t i = static_cast<size_t>(op.def->numbers); i < op.inputs.size(); i++)
            if (find_view(op.inputs, op.inputs[i]) == static_cast<int>(i)) bytes += 20;
        return bytes;
    }

    /// What two updates must share: the op, the dtype and the numbers.
    static std::string numbers_of(const LoweredOp& op) {
        std::string key = cat(op.def->name, " ", dtype_name(op.outputs[0].dtype));
        for (size_t i = static_cast<size_t>(op.def->numbers); i < op.inputs.size(); i++) {
            const View& view = op.inputs[i];
            key += cat(" ", view.value, " ", dtype_size(view.dtype), " ", to_string(view.shape),
                       " ", to_string(view.strides), " ", view.offset);
        }
        return key;
    }

    /// What an update adds at the least: its operands that no other update has.
    size_t growth(int at) const {
        const LoweredOp& op = ops_[at];
        const auto update = [&](int other) { return other != at && ops_[other].def->optimizer; };
        const auto bytes_of = [](const View& view) {
            return 20 + 16 * static_cast<size_t>(view.shape.rank());
        };
        size_t bytes = 40 + 8 * pack_scalars(op).size();
        for (size_t i = 0; i < static_cast<size_t>(op.def->numbers); i++) {
            const ValueId id = op.inputs[i].value;
            const auto same = [&](const View& view) { return view.value == id; };
            const auto& readers = readers_[id];
            if (std::count_if(op.inputs.begin(), op.inputs.end(), same) == 1 &&
                !(producer_[id] >= 0 && update(producer_[id])) &&
                std::none_of(readers.begin(), readers.end(), update))
                bytes += bytes_of(op.inputs[i]);
        }
        for (const View& view : op.outputs)
            if (kept_[view.value]) bytes += bytes_of(view);
        return bytes;
    }
};

/// What makes an update's numbers joins it, unless it shares a launch with others: those that come
/// early cost the step nothing there, and at its end they are waited for.
class Numbers : Groups {
  public:
    using Groups::Groups;
    void run() {
        const LoweredDef* def = find_lowered("update");
        for (int at = 0; at < static_cast<int>(ops_.size()); at++)
            if (ops_[at].def == def || tensor_update(ops_[at]))
                while (joins(at, def)) {  // its own numbers may follow
                }
        emit();
    }

  private:
    bool joins(int at, const LoweredDef* def) {
        for (int member : members_[group_[at]])
            for (const View& view : ops_[member].inputs)
                if (const int from = producer_[view.value];
                    from >= 0 && number_update(ops_[from]) && group_[from] != group_[at] &&
                    members_[group_[from]].size() == 1 &&
                    merge(group_[at], group_[from], def, fits_update, INT_MAX))
                    return true;
        return false;
    }
};

// ---- siblings -----------------------------------------------------------------------------------

/// Below this a launch costs more than what it runs, so that ops gain by sharing one. Above,
/// whoever waits for one of them should not wait for the others too: a GPU runs kernels side by
/// side anyhow.
constexpr double kSmallBytes = 256 << 10, kSmallFlops = 1 << 20;

bool small(const LoweredOp& op) {
    const Cost cost = cost_of(op);
    return cost.bytes <= kSmallBytes && cost.flops <= kSmallFlops;
}

/// What a member adds to a group's argument block: its own block, and its operands once more.
size_t bytes_in_group(const LoweredOp& op) {
    size_t bytes = needs_of(op).bytes;
    for (const auto* views : {&op.inputs, &op.outputs})
        for (const View& view : *views) bytes += 20 + 16 * static_cast<size_t>(view.shape.rank());
    return bytes;
}

/// Small ops at the same distance from the start of the step, so that none waits for another, share
/// a launch.
class Siblings : Groups {
  public:
    using Groups::Groups;
    void run() {
        const LoweredDef* def = find_lowered("group");
        // An estimate: backends keep things of their own in a block.
        constexpr size_t kMostBytes = kMaxGroupBytes / 2, kTries = 4;
        std::vector<int> level(ops_.size(), 0);
        std::vector<size_t> bytes(ops_.size(), 0);         // by the first op of a group
        std::vector<std::vector<int>> heads(ops_.size());  // by level: the first op of each group
        for (int at = 0; at < static_cast<int>(ops_.size()); at++) {
            poll();
            for (int next : successors_[at]) level[next] = std::max(level[next], level[at] + 1);
            if (!small(ops_[at])) continue;
            const size_t own = bytes_in_group(ops_[at]);
            std::vector<int>& known = heads[level[at]];
            const size_t oldest = known.size() < kTries ? 0 : known.size() - kTries;
            bool joined = false;
            for (size_t i = known.size(); i-- > oldest && !joined;) {
                const int head = known[i];
                // No path leaves a level and comes back to it.
                joined = bytes[head] + own <= kMostBytes && apart(at, head);
                if (!joined) continue;
                std::vector<int> merged = std::move(members_[head]);
                merged.push_back(at);
                join(head, at, def, std::move(merged));
                bytes[head] += own;
            }
            if (joined) continue;
            known.push_back(at);
            bytes[at] = 224 + own;
        }
        emit();
    }

  private:
    /// Whether neither an op writes a param or state that a group reads, nor the group one that the
    /// op reads.
    bool apart(int op, int group) const {
        const auto inside = [&](int other) { return other >= 0 && group_[other] == group; };
        for (const View& view : ops_[op].outputs)
            if (const ValueId target = target_[view.value]; target != kNone)
                if (std::any_of(readers_[target].begin(), readers_[target].end(), inside))
                    return false;
        for (const View& view : ops_[op].inputs)
            if (const ValueId next = next_of_[view.value]; next != kNone)
                if (inside(producer_[next])) return false;
        return true;
    }

    LoweredOp compose(const LoweredDef* def, const std::vector<int>& members, int,
                      int) const override {
        LoweredOp result;
        result.def = def;
        result.node = ops_[members.back()].node;
        for (int member : members) {
            for (const View& view : ops_[member].inputs)
                if (find_view(result.inputs, view) < 0) result.inputs.push_back(view);
            for (const View& view : ops_[member].outputs) result.outputs.push_back(view);
            result.members.push_back(ops_[member]);
        }
        return result;
    }
};

}  // namespace

void fuse_numbers(Lowered& lowered) { Numbers(lowered).run(); }
void group_siblings(Lowered& lowered) { Siblings(lowered).run(); }
void fuse_pointwise(Lowered& lowered) { Pointwise(lowered).run(); }
void fuse_epilogues(Lowered& lowered) { Epilogues(lowered).run(); }
void fuse_reductions(Lowered& lowered) {
    const auto streams = [](const LoweredDef& def) { return def.streams; };
    Around(lowered, "fused_reduce", streams, fits_reduction).run();
}
void fuse_rows(Lowered& lowered) {
    const auto rows = [](const LoweredDef& def) { return !def.rows.empty(); };
    Around(lowered, "fused_rows", rows, fits_rows).run();
}
void fuse_optimizers(Lowered& lowered) { Optimizers(lowered).run(); }

}  // namespace aicf
