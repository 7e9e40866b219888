// Vertical fusion: pointwise chains, and pointwise prologues and epilogues of products, reductions
// and row ops, become regions. Horizontal fusion of pointwise ops with a common operand.
#include <climits>
#include <utility>

#include "core/compile/group.h"
#include "core/graph/region.h"

namespace aicf {

namespace {

/// Pointwise, with one result and operands of its shape (broadcasts are strides of 0).
bool fusable(const LoweredOp& op) {
    return op.def->pointwise && op.outputs.size() == 1 &&
           std::all_of(op.inputs.begin(), op.inputs.end(),
                       [&](const View& view) { return view.shape == op.outputs[0].shape; });
}

// ---- pointwise ----------------------------------------------------------------------------------

/// An op joins its producers' groups where the iteration shapes are equal.
class Pointwise : Groups {
  public:
    using Groups::Groups;
    void run() {
        for (int at = 0; at < static_cast<int>(ops_.size()); at++) {
            if (!fusable(ops_[at])) continue;
            for (const View& view : ops_[at].inputs)
                if (const int from = producer_[view.value];
                    from >= 0 && group_[from] != group_[at] && fusable(ops_[from]) &&
                    compatible(group_[from], group_[at]))
                    merge(group_[from], group_[at], any_region, at);
        }
        emit();
    }

  private:
    bool compatible(int a, int b) const {
        const std::vector<int>&first = members_[a], &second = members_[b];
        // A lone copy changes the layout for its reader, so it must reach memory.
        if (first.size() == 1 && ops_[first[0]].def->name == "copy") return false;
        return ops_[first[0]].outputs[0].shape == ops_[second[0]].outputs[0].shape &&
               whole_reads(b, a);
    }
};

/// Multi-output fusion: pointwise ops of one shape that read the same view of a value become one,
/// so that it is loaded once. Only at equal topological level, so that fusing lengthens no path.
class MultiOutput : Groups {
  public:
    using Groups::Groups;
    void run() {
        std::vector<int> level(ops_.size(), 0);
        std::vector<std::vector<int>> latest(
            producer_.size());  // by value: the last op that reads each of its views
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
                    ops_[other].outputs[0].shape == shape && outlives(group_[other], at))
                    merge(group_[other], group_[at], any_region, at);
            }
        }
        emit();
    }

  private:
    static constexpr size_t kViews = 4;  // tracked per value

    /// Pointwise only, and no copy, which would change the layout.
    static bool elementwise(const LoweredOp& op) {
        if (op.body.empty()) return fusable(op) && op.def->name != "copy";
        return std::all_of(op.body.begin(), op.body.end(),
                           [](const RegionStep& step) { return step.def->pointwise; });
    }
    /// Whether all results of a group are live after `at`; fusing would extend the live range of
    /// others.
    bool outlives(int group, int at) const {
        for (int member : members_[group])
            for (const View& out : ops_[member].outputs)
                if (const auto readers = readers_[out.value];
                    !kept_[out.value] && (readers.empty() || readers.back() <= at))
                    return false;
        return true;
    }
    /// No axis is broadcast.
    static bool whole(const View& view) {
        for (int d = 0; d < view.shape.rank(); d++)
            if (view.shape[d] > 1 && view.strides[d] == 0) return false;
        return true;
    }
};

// ---- legal regions with an anchor ---------------------------------------------------------

bool is_product(const LoweredOp& op) {
    return op.def->gemm && plain_product(op.inputs[0], op.inputs[1], op.outputs[0].shape);
}

/// One reduction whose prologue's results have no other reader, so they are never materialised. All
/// operands of the prologue must be contiguous, or broadcast, along one common axis: else some
/// loads would be strided.
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
    const auto contiguous = [&](const View* view) {
        return fast < 0 || view->strides[fast] == 0 || fast_axis(*view) == fast;
    };
    return std::all_of(read.begin(), read.end(), contiguous);
}

/// One row op (softmax, norm, loss) with pointwise prologue and epilogue, whose operands are
/// contiguous, or broadcast, along the row axis. Row statistics, one number a row, are operands of
/// the region; no pointwise step reads or makes one.
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
    const auto contiguous = [&](const View& view) {
        const int fast = fast_axis(view);
        return view.shape == x.shape && (fast < 0 || fast == axis || view.strides[axis] == 0);
    };
    std::vector<char> statistic(results + op.inner.size(), 0);  // by operand: a row statistic
    for (int k = 0; k < takes; k++)
        if (!elements(k) && row.inputs[k] >= inputs) return false;
    for (size_t k = 0; k < row.outputs.size(); k++)
        statistic[row.outputs[k]] = !elements(takes + static_cast<int>(k));
    for (size_t i = 0; i < op.body.size(); i++) {
        const RegionStep& step = op.body[i];
        if (i == at) continue;
        if (!step.def->pointwise) return false;
        for (const auto* numbers : {&step.inputs, &step.outputs})
            for (int number : *numbers)
                if (statistic[number] || (number < results && !contiguous(op.operand(number))))
                    return false;
    }
    return true;
}

// ---- prologues and epilogues --------------------------------------------------------------------

/// How pointwise ops fuse with a kind of anchor.
struct AnchorRule {
    bool (*anchors)(const LoweredOp&);            // the ops that are anchors
    bool (*legal)(const LoweredOp&);              // regions with the same semantics as their ops
    bool prologue;                                // producers of the anchor join, too
    bool adds_waits;                              // an epilogue may add dependences to the anchor
    bool (*widened)(const LoweredOp&) = nullptr;  // legal where that brings something
};

/// Prologue and epilogue fusion: pointwise producers and consumers join an anchor.
class AnchorFusion : Groups {
  public:
    AnchorFusion(Lowered& lowered, const Target& target, const AnchorRule& rule)
        : Groups(lowered, target), rule_(rule) {}
    void run() {
        level_.assign(ops_.size(), 0);
        widens_.assign(ops_.size(), 0);
        for (int at = 0; at < static_cast<int>(ops_.size()); at++) {
            if (rule_.prologue && rule_.anchors(ops_[at]))
                while (absorb_producer(at)) {  // then that one's producers
                }
            level_[at] = level_of(group_[at]);
            if (fusable(ops_[at]) && !(rule_.adds_waits && is_upcast_for_prologue(at)))
                join_producer(at);
        }
        emit();
    }

  private:
    /// An upcast from 16 bits whose only consumer, through pointwise ops, can take it as prologue.
    /// As a product's epilogue it would be stored, twice as wide.
    bool is_upcast_for_prologue(int at) const {
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

    /// The topological level of a group: its longest path from the start of the step.
    int level_of(int group) const {
        int level = 0;
        for (int member : members_[group])
            for (const View& view : ops_[member].inputs)
                if (const int from = producer_[view.value]; from >= 0 && group_[from] != group)
                    level = std::max(level, level_[from] + 1);
        return level;
    }

    /// Merges one producer of the group of `at` into it as prologue. Not a copy, which changes the
    /// layout for its reader.
    bool absorb_producer(int at) {
        for (int member : members_[group_[at]])
            for (const View& view : ops_[member].inputs)
                if (const int from = producer_[view.value];
                    from >= 0 && group_[from] != group_[at] && members_[group_[from]].size() == 1 &&
                    fusable(ops_[from]) && ops_[from].def->name != "copy" &&
                    whole_reads(group_[at], group_[from]) &&
                    merge(group_[at], group_[from], rule_.legal, at) == Merge::done)
                    return true;
        return false;
    }

    /// Merges `at` into a producer's group as epilogue; unless the rule permits it, only if its
    /// other operands are at a lower level than the anchor, so that the anchor waits for nothing
    /// new.
    void join_producer(int at) {
        for (const View& view : ops_[at].inputs) {
            const int from = producer_[view.value];
            if (from < 0) continue;
            const int group = group_[from];
            const auto anchors = [&](int member) { return rule_.anchors(ops_[member]); };
            const auto available = [&](const View& other) {
                const int maker = producer_[other.value];
                return maker < 0 || group_[maker] == group || level_[maker] < level_[from];
            };
            if (std::any_of(members_[group].begin(), members_[group].end(), anchors) &&
                (rule_.adds_waits ||
                 std::all_of(ops_[at].inputs.begin(), ops_[at].inputs.end(), available)) &&
                whole_reads(group_[at], group) && joins(at, group)) {
                level_[at] = level_[from];
                return;
            }
        }
    }

    /// Merges `at` into a group, which an upcast before a sum that is stored anyway may widen.
    bool joins(int at, int group) {
        if (merge(group, group_[at], rule_.legal, at) == Merge::done) return true;
        const LoweredOp& op = ops_[at];
        const auto widens = [&](const View& view) {
            return producer_[view.value] >= 0 && widens_[producer_[view.value]];
        };
        const auto adds_wide = [&](int member) {
            return rule_.anchors(ops_[member]) && machine_.adds_wide(ops_[member]);
        };
        const bool upcast =
            op.def->name == "cast" && op.outputs[0].dtype == DType::f32 &&
            std::any_of(members_[group].begin(), members_[group].end(), adds_wide) &&
            makes_stored_sum(op, ops_, readers_);
        if (!rule_.widened ||
            !(upcast || std::any_of(op.inputs.begin(), op.inputs.end(), widens)) ||
            merge(group, group_[at], rule_.widened, at) != Merge::done)
            return false;
        widens_[at] = upcast;
        return true;
    }

    const AnchorRule& rule_;
    std::vector<int> level_;    // by op
    std::vector<char> widens_;  // by op: an upcast behind a product
};

constexpr AnchorRule kProducts{is_product, product_region, false, true, widened_product};
constexpr AnchorRule kReductions{[](const LoweredOp& op) { return op.def->streams; },
                                 reduction_region, true, false};
constexpr AnchorRule kRows{[](const LoweredOp& op) { return !op.def->rows.empty(); }, row_region,
                           true, false};

/// Fuses a cross entropy with its gradient where both read the same logits and labels, and with
/// functions of the gradient that nothing else reads.
class LossFusion : Groups {
  public:
    using Groups::Groups;
    void run() {
        for (int at = 0; at < static_cast<int>(ops_.size()); at++) {
            if (anchor(ops_[at]).name != "cross_entropy" || !ops_[at].members.empty()) continue;
            const int grad = gradient_of(at);
            if (grad < 0 || merge(group_[at], group_[grad], loss_region, INT_MAX) != Merge::done)
                continue;
            for (int last = grad; last >= 0;) last = absorb_reader(last);
        }
        emit();
    }

  private:
    int gradient_of(int loss) const {
        for (const View& out : ops_[loss].outputs)
            for (int reader : readers_[out.value])
                if (anchor(ops_[reader]).name == "cross_entropy_grad" &&
                    members_[group_[reader]].size() == 1)
                    return reader;
        return -1;
    }
    /// Merges a function of what op `from` makes into its group: the function, or -1.
    int absorb_reader(int from) {
        const View& made = ops_[from].outputs.back();
        const auto& readers = readers_[made.value];
        if (kept_[made.value] || readers.empty() || readers.front() != readers.back()) return -1;
        const int at = readers.front();
        const auto along_rows = [](const View& view) {
            const int axis = view.shape.rank() - 1, fast = fast_axis(view);
            return fast < 0 || fast == axis || view.strides[axis] == 0;
        };
        const bool joins =
            fusable(ops_[at]) && ops_[at].def->name != "copy" && members_[group_[at]].size() == 1 &&
            std::all_of(ops_[at].inputs.begin(), ops_[at].inputs.end(), along_rows) &&
            whole_reads(group_[at], group_[from]) &&
            merge(group_[from], group_[at], loss_region, INT_MAX) == Merge::done;
        return joins ? at : -1;
    }
};

/// Fuses a loss and its gradient with the product that makes the logits and, if possible, the one
/// that propagates the gradient to that product's input.
class NetworkTail : Groups {
  public:
    using Groups::Groups;
    void run() {
        for (int at = 0; at < static_cast<int>(ops_.size()); at++) {
            if (!loss_region(ops_[at])) continue;
            const View& logits = ops_[at].inputs[0];
            const int from = producer_[logits.value];
            if (from < 0 || !anchor(ops_[from]).gemm || !writes(from, logits) ||
                merge(group_[from], group_[at], tail_region, INT_MAX) != Merge::done)
                continue;
            const View& grad = ops_[at].operand(ops_[at].body.back().outputs[0]);
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
    bool writes(int op, const View& view) const {
        return std::any_of(ops_[op].outputs.begin(), ops_[op].outputs.end(), [&](const View& out) {
            return out.value == view.value && same_layout(out, view);
        });
    }
};

}  // namespace

void fuse_tails(Lowered& lowered, const Target& target) { NetworkTail(lowered, target).run(); }
void fuse_pointwise(Lowered& lowered, const Target& target) { Pointwise(lowered, target).run(); }
void fuse_outputs(Lowered& lowered, const Target& target) { MultiOutput(lowered, target).run(); }
void fuse_products(Lowered& lowered, const Target& target) {
    AnchorFusion(lowered, target, kProducts).run();
}
void fuse_reductions(Lowered& lowered, const Target& target) {
    AnchorFusion(lowered, target, kReductions).run();
}
void fuse_rows(Lowered& lowered, const Target& target) {
    spread_rows(lowered, target);
    AnchorFusion(lowered, target, kRows).run();
    restore_order(lowered);
    LossFusion(lowered, target).run();
}

}  // namespace aicf
