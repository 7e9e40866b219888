// Norms over axes that lie apart: their rows are read and written where they are.
//
// A norm takes rows that lie side by side, so that of x[N, C, H, W] over all axes but C reads a
// copy in the order [C, N, H, W] and writes another. Here it takes the shape of the copy, rows
// being its last axes, and reads what was copied. Pointwise ops around it go through their elements
// in that order, too, so that they can join it; those that don't go back to their own.
#include <algorithm>
#include <climits>
#include <optional>
#include <set>

#include "core/compile/passes.h"

namespace aicf {

namespace {

using Order = std::vector<int>;  // of axes: which one comes first, ...

View in_order(const View& view, const Order& order) {
    View result = view;
    for (size_t d = 0; d < order.size(); d++) {
        result.shape[static_cast<int>(d)] = view.shape[order[d]];
        result.strides[static_cast<int>(d)] = view.strides[order[d]];
    }
    return result;
}
void turn(LoweredOp& op, const Order& order) {
    for (auto* views : {&op.inputs, &op.outputs, &op.inner})
        for (View& view : *views) view = in_order(view, order);
}

/// In which order of its axes a view shows elements of a value as `other` does.
std::optional<Order> order_of(const View& view, const View& other) {
    if (view.offset != other.offset || view.shape.rank() != other.shape.rank()) return std::nullopt;
    Order order;
    std::set<int> left;
    for (int d = 0; d < view.shape.rank(); d++) left.insert(d);
    for (int d = 0; d < other.shape.rank(); d++) {
        const auto same = [&](int axis) {
            return view.shape[axis] == other.shape[d] &&
                   (other.shape[d] == 1 || view.strides[axis] == other.strides[d]);
        };
        const auto at = std::find_if(left.begin(), left.end(), same);
        if (at == left.end()) return std::nullopt;
        order.push_back(*at);
        left.erase(at);
    }
    return order;
}

bool pointwise(const LoweredOp& op) {
    return op.body.empty() && op.def->pointwise && op.outputs.size() == 1 &&
           op.def->name != "copy" &&
           std::all_of(op.inputs.begin(), op.inputs.end(),
                       [&](const View& view) { return view.shape == op.outputs[0].shape; });
}
bool lone_copy(const LoweredOp& op) { return op.def->name == "copy" && op.body.empty(); }

/// How many of the last axes have n elements together; 0: none.
int last_axes(const Dims& shape, int64_t n) {
    int64_t count = 1;
    for (int axes = 1; axes <= shape.rank(); axes++) {
        count *= shape[shape.rank() - axes];
        if (count == n && axes > 1) return axes;
    }
    return 0;
}

/// Whether elements of rows of the last axes lie side by side in runs of 128 bytes, each of which
/// begins at a multiple of four elements.
bool in_runs(const View& view, int axes) {
    int d = view.shape.rank() - 1;
    if (view.strides[d] != 1) return false;
    const int first = view.shape.rank() - axes;
    int64_t run = view.shape[d];
    for (; d > first && view.strides[d - 1] == run; d--) run *= view.shape[d - 1];
    for (int axis = d - 1; axis >= first; axis--)
        if (view.shape[axis] > 1 && view.strides[axis] % 4 != 0) return false;
    return run % 4 == 0 && run * dtype_size(view.dtype) >= 128;
}

class RowViews {
  public:
    RowViews(Lowered& lowered, const Target& target)
        : lowered_(lowered),
          target_(target),
          ops_(lowered.ops),
          producer_(lowered.values.size(), -1),
          readers_(lowered.values.size()),
          overwritten_(lowered.values.size(), INT_MAX),
          gone_(lowered.ops.size(), 0) {
        for (size_t i = 0; i < ops_.size(); i++) {
            for (const View& view : ops_[i].inputs) readers(view).insert(static_cast<int>(i));
            for (const View& view : ops_[i].outputs)
                producer_[at(view.value)] = static_cast<int>(i);
        }
        for (const Lowered::Output& output : lowered.outputs)
            for (ValueId id : {output.value, output.ring, output.position})
                if (id != kNone) kept_.insert(id);
        for (const Assign& assign : lowered.assigns) {
            kept_.insert(assign.source);
            next_.insert(assign.source);
            overwritten_[at(assign.target)] = producer_[at(assign.source)];
        }
        for (const auto& [param, grad] : lowered.param_grads) kept_.insert(grad);
    }

    void run() {
        for (size_t i = 0; i < ops_.size(); i++)
            if (ops_[i].body.empty() &&
                (ops_[i].def->name == "normalize" || ops_[i].def->name == "normalize_bwd") &&
                target_.spreads(ops_[i]))
                spread(static_cast<int>(i));
        size_t left = 0;
        for (size_t i = 0; i < ops_.size(); i++)
            if (!gone_[i]) {
                if (left != i) ops_[left] = std::move(ops_[i]);
                left++;
            }
        ops_.resize(left);
    }

  private:
    static size_t at(ValueId id) { return static_cast<size_t>(id); }
    std::set<int>& readers(const View& view) { return readers_[at(view.value)]; }
    const Type& type(ValueId id) const { return lowered_.values[at(id)].type; }
    LoweredOp& op_at(int i) { return ops_[static_cast<size_t>(i)]; }

    /// Of an input that is a copy of this shape, or of any: what was copied, if op i may read it.
    const View* copied(int i, const View& view) {
        const int from = producer_[at(view.value)];
        if (from < 0 || !lone_copy(op_at(from))) return nullptr;
        const View &read = op_at(from).inputs[0], &made = op_at(from).outputs[0];
        const bool still = overwritten_[at(read.value)] > i;
        return still && covers(made, type(view.value)) && read.dtype == made.dtype ? &read
                                                                                   : nullptr;
    }
    bool elements(const LoweredOp& op, size_t position) const {
        const std::vector<int>& rows = op.def->rows;
        return std::find(rows.begin(), rows.end(), static_cast<int>(position)) != rows.end();
    }

    /// Op i takes rows of several axes, if that saves a copy.
    void spread(int i) {
        const LoweredOp& op = op_at(i);
        for (const auto* views : {&op.inputs, &op.outputs})
            for (const View& view : *views)
                if (!covers(view, type(view.value)) || element_count(view.shape) == 0) return;
        const Dims& rows = op.inputs[0].shape;
        for (size_t k = 0; k < op.inputs.size(); k++) {
            const View* read = elements(op, k) ? copied(i, op.inputs[k]) : nullptr;
            const int axes = read ? last_axes(read->shape, rows[rows.rank() - 1]) : 0;
            if (axes > 0 && in_runs(*read, axes)) return spread(i, Dims(read->shape), axes);
        }
    }
    void spread(int i, const Dims& shape, int axes) {
        LoweredOp& op = op_at(i);
        const size_t inputs = op.inputs.size();
        for (size_t k = 0; k < inputs + op.outputs.size(); k++) {
            View& view = k < inputs ? op.inputs[k] : op.outputs[k - inputs];
            const View* read = k < inputs && elements(op, k) ? copied(i, view) : nullptr;
            if (read && read->shape == shape && in_runs(*read, axes)) {
                reads_copied(i, view, *read);
                continue;
            }
            view.shape = shape;
            for (int d = shape.rank() - axes; !elements(op, k) && d < shape.rank(); d++)
                view.shape[d] = 1;
            view.strides = contiguous_strides(view.shape);
        }
        op.def = find_lowered(op.outputs.size() == 2 ? "normalize_axes" : "normalize_axes_bwd");
        Attrs attrs = op.attrs;
        attrs.set("row_axes", int64_t{axes});
        op.attrs = complete_attrs(op.def->attrs, attrs, op.def->name);
        for (const View& view : op.inputs) turn_makers(view);
        write_copied(i, op.outputs[0], axes);
        turn_readers(op.outputs[0]);
    }

    void reads_copied(int i, View& view, const View& read) {
        const int copy = producer_[at(view.value)];
        readers(view).erase(i);
        if (readers(view).empty() && !kept_.contains(view.value)) {
            gone_[static_cast<size_t>(copy)] = 1;
            readers(read).erase(copy);
        }
        view = read;
        readers(view).insert(i);
    }

    /// What makes a view for one reader alone, and pointwise, goes through its elements as that
    /// does.
    void turn_makers(const View& view) {
        const int from = producer_[at(view.value)];
        if (from < 0 || !pointwise(op_at(from)) || readers(view).size() != 1 ||
            kept_.contains(view.value))
            return;
        const auto order = order_of(op_at(from).outputs[0], view);
        if (!order) return;
        const std::vector<View> before = op_at(from).inputs;
        turn(op_at(from), *order);
        for (size_t k = 0; k < before.size(); k++) {
            const int maker = producer_[at(before[k].value)];
            if (maker >= 0 && same_layout(before[k], op_at(maker).outputs[0]))
                turn_makers(op_at(from).inputs[k]);
        }
    }

    /// A result that is copied alone is written as the copy.
    void write_copied(int i, View& view, int axes) {
        if (readers(view).size() != 1 || kept_.contains(view.value)) return;
        const int to = *readers(view).begin();
        if (!lone_copy(op_at(to))) return;
        const auto order = order_of(op_at(to).inputs[0], view);
        const View& made = op_at(to).outputs[0];
        if (!order || made.dtype != view.dtype || !covers(made, type(made.value)) ||
            lowered_.values[at(made.value)].role != Role::temp || next_.contains(made.value))
            return;
        const View turned = in_order(made, *order);
        if (!in_runs(turned, axes)) return;
        gone_[static_cast<size_t>(to)] = 1;
        readers(view).clear();
        view = turned;
        producer_[at(view.value)] = i;
    }

    /// The first pointwise reader of a view goes through its elements as they lie there, and so do
    /// the first reader of its result, ...
    void turn_readers(const View& view) {
        for (int reader : readers(view)) {
            LoweredOp& op = op_at(reader);
            if (gone_[static_cast<size_t>(reader)] || !pointwise(op)) continue;
            const auto read =
                std::find_if(op.inputs.begin(), op.inputs.end(),
                             [&](const View& other) { return other.value == view.value; });
            const auto order = order_of(*read, view);
            if (!order) return;
            turn(op, *order);
            return turn_readers(op.outputs[0]);
        }
    }

    Lowered& lowered_;
    const Target& target_;
    std::vector<LoweredOp>& ops_;
    std::vector<int> producer_;           // by value
    std::vector<std::set<int>> readers_;  // by value: the ops
    std::vector<int> overwritten_;        // by value, by which op
    std::vector<char> gone_;              // by op
    std::set<ValueId> kept_, next_;
};

}  // namespace

void spread_rows(Lowered& lowered, const Target& target) { RowViews(lowered, target).run(); }

void restore_order(Lowered& lowered) {
    for (LoweredOp& op : lowered.ops) {
        if (!pointwise(op)) continue;
        const View& made = op.outputs[0];
        if (is_contiguous(made.shape, made.strides)) continue;
        Order order;
        for (int d = 0; d < made.shape.rank(); d++) order.push_back(d);
        std::stable_sort(order.begin(), order.end(),
                         [&](int a, int b) { return made.strides[a] > made.strides[b]; });
        const View sorted = in_order(made, order);
        if (is_contiguous(sorted.shape, sorted.strides)) turn(op, order);
    }
}

}  // namespace aicf
