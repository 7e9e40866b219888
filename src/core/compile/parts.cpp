// What a concat joins is written where it lies in the result.
#include <algorithm>
#include <optional>
#include <set>

#include "core/base/interrupt.h"
#include "core/compile/passes.h"

namespace aicf {

namespace {

/// Ops that write their results in any layout at no loss: of attention, whose results are rows.
bool writes_anywhere(const LoweredOp& op) { return op.def->attention && op.body.empty(); }

/// The layout of a value's elements, seen by `view`, where rows of `width` of them begin `row`
/// elements apart, the first at `at` of another value.
std::optional<View> spread(const View& view, ValueId value, int64_t width, int64_t row,
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

class Parts {
  public:
    explicit Parts(Lowered& lowered)
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
            gone[i] = join(lowered_.ops[i]);
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

    /// What the concat joins is written where it lies in the result, if all of it can be.
    bool join(const LoweredOp& op) {
        if (op.def->name != "concat" || op.inputs.size() < 2) return false;
        const View& out = op.outputs[0];
        // The next content of a param takes the place of this one, which others read till then.
        if (assigned_.contains(out.value)) return false;
        const int axis = static_cast<int>(op.attrs.integer("axis"));
        int64_t behind = 1, from = 0;
        for (int d = axis + 1; d < out.shape.rank(); d++) behind *= out.shape[d];
        struct Move {
            View* view;
            View to;
        };
        std::vector<Move> moves;
        for (const View& in : op.inputs) {
            const Value& value = lowered_.values[at(in.value)];
            LoweredOp* const maker = producer_[at(in.value)];
            const int64_t width = in.shape[axis] * behind;
            if (value.role != Role::temp || assigned_.contains(in.value) ||
                reads_[at(in.value)] != 1 || !maker || !writes_anywhere(*maker) ||
                !in.whole(value.type) || element_count(in.shape) == 0)
                return false;
            const auto made =
                std::find_if(maker->outputs.begin(), maker->outputs.end(),
                             [&](const View& view) { return view.value == in.value; });
            if (!made->whole(value.type)) return false;
            const auto to = spread(*made, out.value, width, out.shape[axis] * behind, from);
            if (!to) return false;
            moves.push_back({&*made, *to});
            from += width;
        }
        for (const Move& move : moves) *move.view = move.to;
        return true;
    }

    Lowered& lowered_;
    std::vector<int> reads_;            // by value
    std::vector<LoweredOp*> producer_;  // by value
    std::set<ValueId> assigned_;
};

}  // namespace

void write_parts(Lowered& lowered) { Parts(lowered).run(); }

}  // namespace aicf
