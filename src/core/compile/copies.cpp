// Copy elision: what is copied into another order is made in that order, or read there.
#include <algorithm>
#include <climits>
#include <optional>
#include <set>

#include "core/base/interrupt.h"
#include "core/compile/passes.h"

namespace aicf {

bool covers(const View& view, const Type& type) {
    return view.offset == 0 && view.dtype == type.dtype &&
           is_contiguous(view.shape, view.strides) &&
           element_count(view.shape) == element_count(type.shape);
}

namespace {

/// A view of a value in C order, seen as a walk through the axes of a shape that covers the value.
/// Its axes are split where a step would carry from one of those to another.
class Walk {
  public:
    struct Piece {
        int from = 0;       // the view's axis
        int64_t size = 1;   // outer pieces of an axis come first
        int axis = -1;      // of the shape; -1: it stays where it is
        int64_t steps = 0;  // along that axis
    };

    /// Empty where strides cannot say it.
    static std::optional<Walk> of(const View& view, const Dims& shape) {
        Walk walk(shape);
        for (int k = 0; k < shape.rank(); k++)
            walk.begin_[k] = view.offset / walk.strides_[k] % shape[k];
        Dims last = walk.begin_;  // the furthest place along each axis
        for (int d = 0; d < view.shape.rank(); d++)
            if (!walk.split(d, view.shape[d], view.strides[d], last)) return std::nullopt;
        for (int k = 0; k < shape.rank(); k++)
            if (last[k] >= shape[k]) return std::nullopt;
        if (walk.pieces_.size() > kMaxDims) return std::nullopt;
        return walk;
    }

    /// Another view of the shape, walked the same way.
    View through(const View& view) const {
        View result = view;
        result.shape = result.strides = Dims();
        for (int k = 0; k < shape_.rank(); k++) result.offset += begin_[k] * view.strides[k];
        for (const Piece& piece : pieces_) {
            result.shape.push(piece.size);
            result.strides.push(piece.axis < 0 ? 0 : piece.steps * view.strides[piece.axis]);
        }
        return result;
    }
    /// A view of the walking view's shape, whose axes are split as its are.
    View split(const View& view) const {
        View result = view;
        result.shape = result.strides = Dims(static_cast<int>(pieces_.size()), 0);
        for (int i = static_cast<int>(pieces_.size()) - 1; i >= 0; i--) {
            const Piece& piece = pieces_[static_cast<size_t>(i)];
            const bool inner = i + 1 < static_cast<int>(pieces_.size()) &&
                               pieces_[static_cast<size_t>(i) + 1].from == piece.from;
            result.shape[i] = piece.size;
            result.strides[i] =
                inner ? result.strides[i + 1] * result.shape[i + 1] : view.strides[piece.from];
        }
        return result;
    }

  private:
    explicit Walk(const Dims& shape)
        : shape_(shape), strides_(contiguous_strides(shape)), begin_(shape.rank(), 0) {}

    bool split(int from, int64_t size, int64_t stride, Dims& last) {
        std::vector<Piece> pieces;  // inner ones first
        if (size == 1 || stride == 0) pieces.push_back({from, size});
        while (size > 1 && stride != 0) {
            int axis = 0;
            while (axis < shape_.rank() && (shape_[axis] == 1 || strides_[axis] > stride)) axis++;
            if (axis == shape_.rank() || stride < 0 || stride % strides_[axis] != 0) return false;
            const int64_t steps = stride / strides_[axis], room = shape_[axis] / steps;
            int64_t some = size;
            if (size > room) {
                if (room < 2 || shape_[axis] % steps != 0 || size % room != 0) return false;
                some = room;
            }
            pieces.push_back({from, some, axis, steps});
            last[axis] += (some - 1) * steps;
            size /= some;
            stride *= some;
        }
        pieces_.insert(pieces_.end(), pieces.rbegin(), pieces.rend());
        return true;
    }

    Dims shape_, strides_, begin_;
    std::vector<Piece> pieces_;
};

/// Whether the axis along which elements lie closest is the innermost that matters.
bool runs_inward(const View& view) {
    int64_t least = 0, inner = 0;
    for (int d = 0; d < view.shape.rank(); d++) {
        const int64_t stride = view.strides[d];
        if (view.shape[d] == 1 || stride == 0) continue;
        inner = stride;
        if (least == 0 || stride < least) least = stride;
    }
    return inner == least;
}

/// Operations of an element.
double flops_of(const LoweredOp& op) {
    return cost_of(op).flops / std::max<double>(1, double(element_count(op.outputs[0].shape)));
}

class CopyElision {
  public:
    CopyElision(Lowered& lowered, bool moves)
        : lowered_(lowered),
          moves_(moves),
          reads_(lowered.values.size(), 0),
          writers_(lowered.values.size(), 0),
          producer_(lowered.values.size(), -1),
          overwritten_(lowered.values.size(), INT_MAX),
          gone_(lowered.ops.size(), 0) {
        for (size_t i = 0; i < lowered.ops.size(); i++) {
            for (const View& view : lowered.ops[i].inputs) reads_[at(view.value)]++;
            for (const View& view : lowered.ops[i].outputs) {
                writers_[at(view.value)]++;
                producer_[at(view.value)] = static_cast<int>(i);
            }
        }
        for (const Lowered::Output& output : lowered.outputs)
            for (ValueId id : {output.value, output.ring, output.position}) keep(id);
        for (const Assign& assign : lowered.assigns) {
            keep(assign.source);
            assigned_.insert({assign.source, assign.target});
            overwritten_[at(assign.target)] = producer_[at(assign.source)];
        }
        for (const auto& [param, grad] : lowered.param_grads) keep(grad);
    }

    void run() {
        for (size_t i = 0; i < lowered_.ops.size(); i++) {
            poll();
            while (moves_ && pull(static_cast<int>(i))) {
            }
            if (lone_copy(lowered_.ops[i])) gone_[i] = place(lowered_.ops[i]);
        }
        size_t left = 0;
        for (size_t i = 0; i < gone_.size(); i++)
            if (!gone_[i]) {
                if (left != i) lowered_.ops[left] = std::move(lowered_.ops[i]);
                left++;
            }
        lowered_.ops.resize(left);
    }

  private:
    static size_t at(ValueId id) { return static_cast<size_t>(id); }
    void keep(ValueId id) {
        if (id != kNone) kept_.insert(id);
    }
    const Type& type(ValueId id) const { return lowered_.values[at(id)].type; }

    static bool lone_copy(const LoweredOp& op) { return op.def->name == "copy" && op.body.empty(); }
    /// Of one result, each element of which is made from one of each operand.
    static bool elementwise(const LoweredOp& op) {
        const auto alike = [&](const View& view) { return view.shape == op.outputs[0].shape; };
        return op.outputs.size() == 1 && op.members.empty() && !op.loop &&
               std::all_of(op.inputs.begin(), op.inputs.end(), alike) &&
               std::all_of(op.inner.begin(), op.inner.end(), alike) &&
               (op.body.empty()
                    ? op.def->pointwise
                    : std::all_of(op.body.begin(), op.body.end(),
                                  [](const RegionStep& step) { return step.def->pointwise; }));
    }
    /// A value that is one op's result and no more.
    bool inner_value(ValueId id) const {
        return lowered_.values[at(id)].role == Role::temp && writers_[at(id)] == 1 &&
               !kept_.contains(id);
    }

    /// Op i, a copy of what one op makes, makes it itself, of what that op reads.
    bool pull(int i) {
        LoweredOp& copy = lowered_.ops[static_cast<size_t>(i)];
        if (!lone_copy(copy) || element_count(copy.outputs[0].shape) == 0) return false;
        const View& read = copy.inputs[0];
        if (!inner_value(read.value)) return false;
        const int from = producer_[at(read.value)];
        LoweredOp& maker = lowered_.ops[static_cast<size_t>(from)];
        if (!elementwise(maker) || !covers(maker.outputs[0], type(read.value))) return false;
        const bool alone = reads_[at(read.value)] == 1;
        if (!lone_copy(maker)) {
            const bool again =
                element_count(copy.outputs[0].shape) > element_count(maker.outputs[0].shape);
            if (!alone || (again && flops_of(maker) > kCheap)) return false;
        }
        for (const View& view : maker.inputs)  // which is still what it was
            if (overwritten_[at(view.value)] <= i) return false;
        const auto walk = Walk::of(read, maker.outputs[0].shape);
        if (!walk) return false;
        LoweredOp made = maker;
        for (View& view : made.inputs) {
            view = walk->through(view);
            if (!runs_inward(view)) return false;
        }
        made.outputs[0] = walk->split(copy.outputs[0]);
        if (!runs_inward(made.outputs[0])) return false;
        for (View& view : made.inner) {
            view.shape = made.outputs[0].shape;
            view.strides = contiguous_strides(view.shape);
        }
        reads_[at(read.value)]--;
        for (const View& view : made.inputs) reads_[at(view.value)]++;
        if (alone) {
            for (const View& view : maker.inputs) reads_[at(view.value)]--;
            gone_[static_cast<size_t>(from)] = 1;
        }
        copy = std::move(made);
        return true;
    }

    /// A copy of a whole value in C order: whoever writes the one writes the other.
    bool place(const LoweredOp& copy) {
        const View &read = copy.inputs[0], &to = copy.outputs[0];
        if (!inner_value(read.value) || !covers(read, type(read.value)) ||
            !covers(to, type(to.value)) || assigned_.contains(to.value) ||
            lowered_.values[at(to.value)].role != Role::temp || writers_[at(to.value)] != 1)
            return false;
        const ValueId from = read.value, now = to.value;
        for (LoweredOp& op : lowered_.ops)
            for (auto* views : {&op.inputs, &op.outputs})
                for (View& view : *views)
                    if (view.value == from) view.value = now;
        reads_[at(now)] += reads_[at(from)] - 1;
        producer_[at(now)] = producer_[at(from)];
        return true;
    }

    static constexpr double kCheap = 4;  // operations that are done again rather than stored
    Lowered& lowered_;
    const bool moves_;
    std::vector<int> reads_, writers_, producer_;  // by value
    std::vector<int> overwritten_;                 // by value, by which op
    std::vector<char> gone_;                       // by op
    std::set<ValueId> kept_, assigned_;
};

}  // namespace

void elide_copies(Lowered& lowered, const Target& target) {
    CopyElision(lowered, target.kind() == Device::Kind::cuda).run();
}

}  // namespace aicf
