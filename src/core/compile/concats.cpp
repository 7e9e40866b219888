// Concat elision: producers write their results directly into the concat's result.
#include <algorithm>
#include <optional>
#include <set>

#include "core/base/interrupt.h"
#include "core/compile/passes.h"

namespace aicf {

namespace {

/// Ops that store with any strides at no cost: attention, whose results are rows.
bool writes_any_strides(const LoweredOp& op) { return op.def->attention && op.body.empty(); }

/// `view` of a contiguous value, moved into `value`: the rows of `width` elements, which were
/// adjacent, begin `row` elements apart there, the first at offset `at`. Empty where strides cannot
/// say it.
std::optional<View> view_inside(const View& view, ValueId value, int64_t width, int64_t row,
                                int64_t at) {
    View result = view;
    result.value = value;
    result.offset = at;
    for (int d = 0; d < view.shape.rank(); d++) {
        const int64_t step = view.strides[d];
        if (view.shape[d] == 1 || step * view.shape[d] <= width) continue;
        if (step % width != 0) return std::nullopt;
        result.strides[d] = step / width * row;
    }
    return result;
}

class ConcatElision {
  public:
    explicit ConcatElision(Lowered& lowered)
        : lowered_(lowered),
          reads_(lowered.values.size(), 0),
          producer_(lowered.values.size(), nullptr) {
        for (LoweredOp& op : lowered.ops) {
            for (const View& view : op.inputs) reads_[at(view.value)]++;
            for (const View& view : op.outputs) producer_[at(view.value)] = &op;
        }
        for (const Assign& assign : lowered.assigns) assigned_.insert(assign.source);
        for (const Lowered::Output& output : lowered.outputs) reads_[at(output.value)]++;
        for (const auto& [param, grad] : lowered.param_grads) reads_[at(grad)]++;
    }

    void run() {
        std::vector<char> gone(lowered_.ops.size(), 0);
        for (size_t i = 0; i < lowered_.ops.size(); i++) {
            poll();
            gone[i] = elide(lowered_.ops[i]);
        }
        size_t left = 0;
        for (size_t i = 0; i < gone.size(); i++)
            if (!gone[i]) {
                if (left != i) lowered_.ops[left] = std::move(lowered_.ops[i]);
                left++;
            }
        lowered_.ops.resize(left);
    }

  private:
    static size_t at(ValueId id) { return static_cast<size_t>(id); }

    /// Redirects all operands' producers into the result, or none.
    bool elide(const LoweredOp& op) {
        if (op.def->name != "concat" || op.inputs.size() < 2) return false;
        const View& out = op.outputs[0];
        // An assigned result is stored over its target, which earlier ops may still read.
        if (assigned_.contains(out.value)) return false;
        const int axis = static_cast<int>(op.attrs.integer("axis"));
        int64_t behind = 1, from = 0;
        for (int d = axis + 1; d < out.shape.rank(); d++) behind *= out.shape[d];
        struct Redirect {
            View* view;
            View to;
        };
        std::vector<Redirect> redirects;
        for (const View& in : op.inputs) {
            const Value& value = lowered_.values[at(in.value)];
            LoweredOp* const maker = producer_[at(in.value)];
            const int64_t width = in.shape[axis] * behind;
            if (value.role != Role::temp || assigned_.contains(in.value) ||
                reads_[at(in.value)] != 1 || !maker || !writes_any_strides(*maker) ||
                !in.whole(value.type) || element_count(in.shape) == 0)
                return false;
            const auto made =
                std::find_if(maker->outputs.begin(), maker->outputs.end(),
                             [&](const View& view) { return view.value == in.value; });
            if (!made->whole(value.type)) return false;
            const auto to = view_inside(*made, out.value, width, out.shape[axis] * behind, from);
            if (!to) return false;
            redirects.push_back({&*made, *to});
            from += width;
        }
        for (const Redirect& redirect : redirects) *redirect.view = redirect.to;
        return true;
    }

    Lowered& lowered_;
    std::vector<int> reads_;            // by value
    std::vector<LoweredOp*> producer_;  // by value
    std::set<ValueId> assigned_;
};

}  // namespace

void elide_concats(Lowered& lowered) { ConcatElision(lowered).run(); }

}  // namespace aicf
