// Fusion: pointwise chains, what follows a product, what is around a reduction or an op on rows
// become one op with a body of steps.
#include "core/compile/group.h"

namespace aicf {

namespace {

// ---- pointwise ----------------------------------------------------------------------------------

/// Pointwise, one result, and every operand steps through the result's shape.
bool fusable(const LoweredOp& op) {
    return op.def->pointwise && !op.def->optimizer && !op.def->random && op.body.empty() &&
           op.outputs.size() == 1 &&
           std::all_of(op.inputs.begin(), op.inputs.end(),
                       [&](const View& view) { return view.shape == op.outputs[0].shape; });
}

}  // namespace

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

namespace {

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

}  // namespace

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

}  // namespace aicf
