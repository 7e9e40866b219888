// Vertical fusion: pointwise chains, and the pointwise prologues and epilogues of products,
// reductions and ops on rows, become regions.
#include <climits>
#include <optional>
#include <set>
#include <utility>

#include "core/compile/group.h"
#include "core/graph/region.h"

namespace aicf {

namespace {

/// Pointwise, one result, and every operand steps through the result's shape.
bool fusable(const LoweredOp& op) {
    return op.def->pointwise && op.outputs.size() == 1 &&
           std::all_of(op.inputs.begin(), op.inputs.end(),
                       [&](const View& view) { return view.shape == op.outputs[0].shape; });
}

// ---- pointwise ----------------------------------------------------------------------------------

bool any_region(const LoweredOp&) { return true; }

/// An op joins the groups of what it reads where the iteration shapes are equal.
class Pointwise : Groups {
  public:
    using Groups::Groups;
    void run() {
        for (int at = 0; at < static_cast<int>(ops_.size()); at++) {
            if (!fusable(ops_[at])) continue;
            for (const View& view : ops_[at].inputs)
                if (const int from = producer_[view.value];
                    from >= 0 && group_[from] != group_[at] && fusable(ops_[from]) &&
                    alike(group_[from], group_[at]))
                    merge(group_[from], group_[at], any_region, at);
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

/// Multi-output fusion: pointwise ops of one shape join the one before them that reads the same
/// elements of a value, so that these are read once. They must be as far from the start of the
/// step: then neither waits for the other, nor for what the other waits for.
class MultiOutput : Groups {
  public:
    using Groups::Groups;
    void run() {
        std::vector<int> level(ops_.size(), 0);
        std::vector<std::vector<int>> latest(producer_.size());  // by value: of each view of it
        for (int at = 0; at < static_cast<int>(ops_.size()); at++) {
            for (int before : predecessors_[at]) level[at] = std::max(level[at], level[before] + 1);
            if (!elementwise(ops_[at])) continue;
            const Dims& shape = ops_[at].outputs[0].shape;
            for (const View& view : ops_[at].inputs) {
                if (!whole(view)) continue;
                std::vector<int>& known = latest[view.value];
                const auto reads = [&](int other) {
                    return find_view(ops_[other].inputs, view) >= 0;
                };
                const auto same = std::find_if(known.begin(), known.end(), reads);
                if (same == known.end()) {
                    if (known.size() < kViews) known.push_back(at);
                    continue;
                }
                const int other = std::exchange(*same, at);
                if (level[other] == level[at] && group_[other] != group_[at] &&
                    ops_[other].outputs[0].shape == shape && live_on(group_[other], at))
                    merge(group_[other], group_[at], any_region, at);
            }
        }
        emit();
    }

  private:
    static constexpr size_t kViews = 4;  // of a value that are told apart

    /// Pointwise steps alone, none of which is there to change where elements lie.
    static bool elementwise(const LoweredOp& op) {
        if (op.body.empty()) return fusable(op) && op.def->name != "copy";
        return std::all_of(op.body.begin(), op.body.end(),
                           [](const RegionStep& step) { return step.def->pointwise; });
    }
    /// Whether all results of a group live behind an op in any case: else there would be memory for
    /// more of them at a time.
    bool live_on(int group, int at) const {
        for (int member : members_[group])
            for (const View& out : ops_[member].outputs)
                if (const auto readers = readers_[out.value];
                    !kept_[out.value] && (readers.empty() || readers.back() <= at))
                    return false;
        return true;
    }
    /// Nothing of it is read twice in any case.
    static bool whole(const View& view) {
        for (int d = 0; d < view.shape.rank(); d++)
            if (view.shape[d] > 1 && view.strides[d] == 0) return false;
        return true;
    }
};

// ---- what regions with an anchor may be ---------------------------------------------------------

bool begins_product(const LoweredOp& op) {
    return op.def->gemm && plain_product(op.inputs[0], op.inputs[1], op.outputs[0].shape);
}

/// One reduction, of elements that the steps before it make for it alone: they lie nowhere. Along
/// one axis each of their operands has its neighbours or is one element, or a backend would read
/// some of them across.
bool reduction_region(const LoweredOp& op) {
    const auto inputs = static_cast<int>(op.inputs.size()),
               results = inputs + static_cast<int>(op.outputs.size());
    std::vector<char> element(results + op.inner.size(), 0);
    std::vector<const View*> read;
    bool behind = false;
    for (const RegionStep& step : op.body) {
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
    return std::all_of(read.begin(), read.end(), along);
}

/// One op on rows, with a prologue that makes elements for it and an epilogue that takes elements
/// of its result; neighbours lie along the row in all that these steps read and write. What the op
/// has one a row of comes from outside and goes there.
bool row_region(const LoweredOp& op) {
    const auto inputs = static_cast<int>(op.inputs.size()),
               results = inputs + static_cast<int>(op.outputs.size());
    const size_t at = anchor_step(op);
    if (at == op.body.size()) return false;
    const RegionStep& row = op.body[at];
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
    std::vector<char> apart(results + op.inner.size(), 0);  // by operand: one a row
    for (int k = 0; k < takes; k++)
        if (!elements(k) && row.inputs[k] >= inputs) return false;
    for (size_t k = 0; k < row.outputs.size(); k++)
        apart[row.outputs[k]] = !elements(takes + static_cast<int>(k));
    for (size_t i = 0; i < op.body.size(); i++) {
        const RegionStep& step = op.body[i];
        if (i == at) continue;
        if (!step.def->pointwise) return false;
        for (const auto* numbers : {&step.inputs, &step.outputs})
            for (int number : *numbers)
                if (apart[number] || (number < results && !along(op.operand(number)))) return false;
    }
    return true;
}

// ---- prologues and epilogues --------------------------------------------------------------------

/// Which pointwise ops join an op of a kind.
struct AnchorRule {
    bool (*anchors)(const LoweredOp&);  // the ops that may be anchors
    bool (*means)(const LoweredOp&);    // the regions that mean what their ops did apart
    bool prologue;                      // what makes elements for the anchor joins, too
    bool waits;                         // an epilogue may wait for more than the anchor does
};

/// Prologue and epilogue fusion: pointwise ops join the anchor that reads their results, and the
/// one whose result they read.
class AnchorFusion : Groups {
  public:
    AnchorFusion(Lowered& lowered, const Target& target, const AnchorRule& rule)
        : Groups(lowered, target), rule_(rule) {}
    void run() {
        level_.assign(ops_.size(), 0);
        for (int at = 0; at < static_cast<int>(ops_.size()); at++) {
            if (rule_.prologue && rule_.anchors(ops_[at]))
                while (takes_element(at)) {  // what made it may follow
                }
            level_[at] = level_of(group_[at]);
            if (fusable(ops_[at]) && !(rule_.waits && widens_for_rows(at))) follow(at);
        }
        emit();
    }

  private:
    /// A cast from 16 bits on its way to an op that makes its elements as it goes: behind a product
    /// it would be stored.
    bool widens_for_rows(int at) const {
        const LoweredOp& op = ops_[at];
        if (op.def->name != "cast" ||
            dtype_size(op.outputs[0].dtype) <= dtype_size(op.inputs[0].dtype))
            return false;
        for (int now = at; fusable(ops_[now]);) {
            const View& out = ops_[now].outputs[0];
            const auto& readers = readers_[out.value];
            if (kept_[out.value] || readers.empty() || readers.front() != readers.back())
                return false;
            now = readers[0];
            const LoweredDef& def = *ops_[now].def;
            if (def.streams || def.optimizer || !def.rows.empty()) return true;
        }
        return false;
    }

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
                    merge(group_[at], group_[from], rule_.means, at) == Merge::done)
                    return true;
        return false;
    }

    /// Joins the anchor it reads, by the rule unless that would have to wait for another of its
    /// operands.
    void follow(int at) {
        for (const View& view : ops_[at].inputs) {
            const int from = producer_[view.value];
            if (from < 0) continue;
            const int group = group_[from];
            const auto anchors = [&](int member) { return rule_.anchors(ops_[member]); };
            const auto early = [&](const View& other) {
                const int maker = producer_[other.value];
                return maker < 0 || group_[maker] == group || level_[maker] < level_[from];
            };
            if (std::any_of(members_[group].begin(), members_[group].end(), anchors) &&
                (rule_.waits ||
                 std::all_of(ops_[at].inputs.begin(), ops_[at].inputs.end(), early)) &&
                whole_reads(group_[at], group) &&
                merge(group, group_[at], rule_.means, at) == Merge::done) {
                level_[at] = level_[from];
                return;
            }
        }
    }

    const AnchorRule& rule_;
    std::vector<int> level_;  // by op
};

constexpr AnchorRule kProducts{begins_product, product_region, false, true};
constexpr AnchorRule kReductions{[](const LoweredOp& op) { return op.def->streams; },
                                 reduction_region, true, false};
constexpr AnchorRule kRows{[](const LoweredOp& op) { return !op.def->rows.empty(); }, row_region,
                           true, false};

/// A cross entropy, or its gradient: by itself, or with what widens the logits and what narrows
/// the gradient.
struct LossPart {
    const RegionStep* widens = nullptr;
    const RegionStep* narrows = nullptr;
    const LoweredDef* def = nullptr;
    const Attrs* attrs = nullptr;
    int node = -1;
    std::vector<View> inputs, outputs;  // of the loss or the gradient itself
    View logits, result;                // as they are stored
};

std::optional<LossPart> loss_part(const LoweredOp& op, std::string_view name) {
    LossPart part;
    if (op.body.empty()) {
        if (op.def->name != name) return std::nullopt;
        part.def = op.def;
        part.attrs = &op.attrs;
        part.node = op.node;
        part.inputs = op.inputs;
        part.outputs = op.outputs;
        part.logits = op.inputs[0];
        part.result = op.outputs[0];
        return part;
    }
    const size_t at = anchor_step(op);
    if (at > 1 || op.body.size() > at + 2 || op.body[at].def->name != name) return std::nullopt;
    const RegionStep& step = op.body[at];
    part.def = step.def;
    part.attrs = &step.attrs;
    part.node = step.node;
    for (int number : step.inputs) part.inputs.push_back(op.operand(number));
    for (int number : step.outputs) part.outputs.push_back(op.operand(number));
    part.logits = part.inputs[0];
    part.result = part.outputs[0];
    const auto outer = static_cast<int>(op.inputs.size() + op.outputs.size());
    const auto cast = [&](const RegionStep& one, int between) {
        return one.def->name == "cast" && between >= outer;
    };
    if (at == 1) {
        part.widens = &op.body[0];
        if (!cast(*part.widens, step.inputs[0]) || part.widens->outputs[0] != step.inputs[0])
            return std::nullopt;
        part.logits = op.operand(part.widens->inputs[0]);
    }
    if (op.body.size() == at + 2) {
        part.narrows = &op.body[at + 1];
        if (!cast(*part.narrows, step.outputs[0]) || part.narrows->inputs[0] != step.outputs[0])
            return std::nullopt;
        part.result = op.operand(part.narrows->outputs[0]);
    }
    return part;
}

/// A cross entropy and its gradient as one op, in the place of the first. What the two alone hand
/// to each other lies nowhere.
LoweredOp loss_and_gradient(const LossPart& loss, const LossPart& grad,
                            const std::set<ValueId>& read) {
    LoweredOp region;
    region.def = region_def();
    region.node = grad.node;
    region.inputs = {loss.logits, loss.inputs[1]};
    struct Made {
        View view;
        bool outside;
    };
    std::vector<Made>
        all;  // the loss, the largest, the sum, the gradient, logits, what it is cast to
    for (size_t k = 0; k < 3; k++)
        all.push_back({loss.outputs[k], k == 0 || read.contains(loss.outputs[k].value)});
    all.push_back({grad.outputs[0], grad.narrows == nullptr});
    if (loss.widens) all.push_back({loss.inputs[0], false});
    if (grad.narrows) all.push_back({grad.result, true});
    std::vector<int> numbers(all.size());
    const int inputs = static_cast<int>(region.inputs.size());
    for (const bool outside : {true, false})
        for (size_t k = 0; k < all.size(); k++) {
            if (outside != all[k].outside) continue;
            numbers[k] = inputs + static_cast<int>(region.outputs.size() + region.inner.size());
            (outside ? region.outputs : region.inner).push_back(all[k].view);
        }
    const int logits = loss.widens ? numbers[4] : 0;
    if (loss.widens)
        region.body.push_back(
            {loss.widens->def, {0}, {logits}, loss.widens->attrs, loss.widens->node});
    region.body.push_back(
        {loss.def, {logits, 1}, {numbers[0], numbers[1], numbers[2]}, *loss.attrs, loss.node});
    region.body.push_back(
        {grad.def, {logits, 1, numbers[1], numbers[2]}, {numbers[3]}, *grad.attrs, grad.node});
    if (grad.narrows)
        region.body.push_back({grad.narrows->def,
                               {numbers[3]},
                               {numbers.back()},
                               grad.narrows->attrs,
                               grad.narrows->node});
    return region;
}

/// The gradient of a cross entropy joins it where both take the same logits and labels.
void join_losses(Lowered& lowered, const Target& target) {
    std::vector<LoweredOp>& ops = lowered.ops;
    const auto alike = [](const View& a, const View& b) {
        return a.value == b.value && same_layout(a, b);
    };
    for (size_t at = 0; at < ops.size(); at++) {
        const std::optional<LossPart> loss = loss_part(ops[at], "cross_entropy");
        if (!loss || loss->narrows) continue;
        std::optional<LossPart> grad;
        const auto gradient = [&](const LoweredOp& op) {
            grad = loss_part(op, "cross_entropy_grad");
            return grad && !grad->widens == !loss->widens && alike(grad->logits, loss->logits) &&
                   alike(grad->inputs[1], loss->inputs[1]) &&
                   alike(grad->inputs[2], loss->outputs[1]) &&
                   alike(grad->inputs[3], loss->outputs[2]);
        };
        const auto from = ops.begin() + static_cast<ptrdiff_t>(at);
        const auto found = std::find_if(from, ops.end(), gradient);
        if (found == ops.end()) continue;
        std::set<ValueId> read;
        for (const LoweredOp& op : ops)
            for (const View& view : op.inputs)
                if (&op != &*found) read.insert(view.value);
        for (const Lowered::Output& output : lowered.outputs) read.insert(output.value);
        for (const Assign& assign : lowered.assigns) read.insert(assign.source);
        LoweredOp region = loss_and_gradient(*loss, *grad, read);
        if (!loss_region(region) || !target.fits(region)) continue;
        ops[at] = std::move(region);
        ops.erase(found);
    }
}

/// A loss and its gradient join the product that made the logits for them alone, and the one that
/// takes the gradient to what the logits are made of.
class LossTail : Groups {
  public:
    using Groups::Groups;
    void run() {
        for (int at = 0; at < static_cast<int>(ops_.size()); at++) {
            if (!loss_region(ops_[at]) || ops_[at].body.size() != 2) continue;
            const View& logits = ops_[at].inputs[0];
            const int from = producer_[logits.value];
            if (from < 0 || !anchor(ops_[from]).gemm || !gives(from, logits) ||
                merge(group_[from], group_[at], tail_region, INT_MAX) != Merge::done)
                continue;
            const View& grad = ops_[at].operand(ops_[at].body[1].outputs[0]);
            for (int reader : readers_[grad.value])
                if (const LoweredOp& op = ops_[reader];
                    anchor(op).gemm && op.inputs[0].value == grad.value &&
                    same_layout(op.inputs[0], grad) && members_[group_[reader]].size() == 1 &&
                    merge(group_[at], group_[reader], tail_region, INT_MAX) == Merge::done)
                    break;
        }
        emit();
    }

  private:
    bool gives(int op, const View& view) const {
        return std::any_of(ops_[op].outputs.begin(), ops_[op].outputs.end(), [&](const View& out) {
            return out.value == view.value && same_layout(out, view);
        });
    }
};

}  // namespace

void fuse_tails(Lowered& lowered, const Target& target) { LossTail(lowered, target).run(); }
void fuse_pointwise(Lowered& lowered, const Target& target) { Pointwise(lowered, target).run(); }
void fuse_outputs(Lowered& lowered, const Target& target) { MultiOutput(lowered, target).run(); }
void fuse_products(Lowered& lowered, const Target& target) {
    AnchorFusion(lowered, target, kProducts).run();
}
void fuse_reductions(Lowered& lowered, const Target& target) {
    AnchorFusion(lowered, target, kReductions).run();
}
void fuse_rows(Lowered& lowered, const Target& target) {
    AnchorFusion(lowered, target, kRows).run();
    join_losses(lowered, target);
}

}  // namespace aicf
