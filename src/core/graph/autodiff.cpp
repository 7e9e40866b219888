// Reverse-mode differentiation: gradient rules append ordinary nodes, from the loss backwards.
#include <algorithm>
#include <cstring>
#include <map>

#include "core/base/interrupt.h"
#include "core/graph/op.h"

namespace aicf {

// ---- formulas ----------------------------------------------------------------------------------

Var emit(const std::string& op, const std::vector<Var>& inputs, const Attrs& attrs) {
    std::vector<ValueId> ids;
    for (const Var& v : inputs) ids.push_back(v.id);
    Graph* graph = inputs.at(0).graph;
    return {graph, graph->emit(op, ids, attrs)[0]};
}

Var number_like(Var v, double number) { return {v.graph, v.graph->scalar(v.type().dtype, number)}; }

std::optional<double> number_of(Var v) {
    const Value& value = v.graph->value(v.id);
    if (value.role != Role::constant || value.init.kind != Init::data ||
        value.type.shape.rank() != 0 || !is_float(value.type.dtype))
        return std::nullopt;
    const auto as = [&](auto element) {
        std::memcpy(&element, value.init.bytes->data(), sizeof element);
        return element;
    };
    switch (value.type.dtype) {
        case DType::f64:
            return as(double());
        case DType::f32:
            return as(float());
        case DType::f16:
            return half_to_float(as(uint16_t()));
        default:
            return bfloat_to_float(as(uint16_t()));
    }
}

Var operator+(Var a, Var b) { return emit("Add", {a, b}); }
Var operator-(Var a, Var b) { return emit("Sub", {a, b}); }
Var operator*(Var a, Var b) { return emit("Mul", {a, b}); }
Var operator/(Var a, Var b) { return emit("Div", {a, b}); }
Var operator-(Var a) { return emit("Neg", {a}); }
Var operator*(Var a, double number) { return a * number_like(a, number); }
Var operator+(Var a, double number) { return a + number_like(a, number); }

Var reshape(Var v, const Dims& shape) {
    return v.shape() == shape ? v : emit("Reshape", {v}, {{"shape", shape.vector()}});
}

Var broadcast_to(Var v, const Dims& shape) {
    return v.shape() == shape ? v : emit("BroadcastTo", {v}, {{"shape", shape.vector()}});
}

Var zeros_like(Var v) { return broadcast_to(number_like(v, 0), v.shape()); }

Var sum_to(Var v, const Dims& shape) {
    if (v.shape() == shape) return v;
    const int extra = v.shape().rank() - shape.rank();
    std::vector<int64_t> axes;
    for (int i = 0; i < v.shape().rank(); i++)
        if (i < extra || (shape[i - extra] == 1 && v.shape()[i] != 1)) axes.push_back(i);
    Var summed = axes.empty() ? v : emit("Sum", {v}, {{"axes", axes}, {"keepdims", true}});
    return reshape(summed, shape);
}

// ---- one rule ----------------------------------------------------------------------------------

GradContext::GradContext(Graph& graph, const Node& node, std::vector<ValueId> output_grads,
                         std::vector<char> needed)
    : graph_(graph),
      node_(node),
      output_grads_(std::move(output_grads)),
      needed_(std::move(needed)),
      result_(node.inputs.size(), kNone) {}

bool GradContext::dy_is_one(int i) const {
    return output_grads_[i] != kNone && output_grads_[i] == graph_.seed_one;
}

std::vector<ValueId> GradContext::own_rule() const {
    const Attr* const name = attrs().find("op");  // a custom op's name
    if (!graph_.own_rule)
        raise(ErrorKind::graph, "backward: ", node_.op->fn,
              name ? cat(" ", std::get<std::string>(*name)) : "", " at node ", node_.id,
              " has no gradient here; need one where it is defined, the graph it was built in and, "
              "in the ",
              "body of a loop, no third derivative");
    return (*graph_.own_rule)(node_.outputs[0], output_grads_);
}

void GradContext::set(int i, Var grad) {
    if (!needs(i)) return;
    check(grad.type().dtype == in(i).type().dtype, "gradient: dtype differs from the input's");
    grad = sum_to(grad, in(i).shape());
    result_[i] = grad.id;
}

std::vector<Var> GradContext::emit_all(const std::string& op, const std::vector<Var>& inputs,
                                       const Attrs& attrs) const {
    std::vector<ValueId> ids;
    for (const Var& v : inputs) ids.push_back(v.id);
    std::vector<Var> result;
    for (ValueId id : graph_.emit(op, ids, attrs)) result.push_back({&graph_, id});
    return result;
}

// ---- the walk ----------------------------------------------------------------------------------

namespace {

using Losses = std::span<const ValueId>;

/// By value, whether a loss depends on it.
std::vector<char> ancestors(const Graph& graph, Losses losses) {
    std::vector<char> reached(graph.values.size(), 0);
    for (ValueId loss : losses) reached[graph.value(loss).id] = 1;
    for (size_t n = graph.nodes.size(); n-- > 0;) {
        const Node& node = graph.nodes[n];
        if (std::any_of(node.outputs.begin(), node.outputs.end(),
                        [&](ValueId id) { return reached[id]; }))
            for (ValueId id : node.inputs) reached[id] = 1;
    }
    return reached;
}

/// Removes what a failing gradient rule appended.
class Rollback {
  public:
    explicit Rollback(Graph& graph) : graph_(graph), before_(graph.mark()) {}
    ~Rollback() {
        graph_.differentiating = differentiating_;
        graph_.seed_one = seed_one_;
        graph_.own_rule = own_rule_;
        if (!done) graph_.rollback(before_);
    }
    bool done = false;

  private:
    Graph& graph_;
    const Graph::Mark before_;
    // state of the enclosing backward, if a user's rule called this one
    const int differentiating_ = graph_.differentiating;
    const ValueId seed_one_ = graph_.seed_one;
    const OwnRule* const own_rule_ = graph_.own_rule;
};

/// Why a node cannot be differentiated; empty: it can.
std::string no_gradient(const Graph& graph, const Node& node) {
    std::string why = node.op->no_grad;
    for (ValueId out : node.outputs)
        if (const DType dtype = graph.value(out).type.dtype; why.empty() && !is_float(dtype))
            why = cat("the result is ", dtype_name(dtype));
    return why;
}

/// By value, whether a path of differentiable ops leads from it to a loss, among the first `nodes`.
std::vector<char> differentiable_values(const Graph& graph, Losses losses, int nodes) {
    std::vector<char> differentiable(graph.values.size(), 0);
    for (ValueId loss : losses) differentiable[loss] = 1;
    for (int n = nodes - 1; n >= 0; n--) {
        const Node& node = graph.nodes[n];
        if (!no_gradient(graph, node).empty()) continue;
        if (std::any_of(node.outputs.begin(), node.outputs.end(),
                        [&](ValueId out) { return differentiable[out]; }))
            for (ValueId in : node.inputs) differentiable[in] = 1;
    }
    return differentiable;
}

/// By value, whether a loss depends on it other than through non-float operands of gradient nodes
/// (comparisons, indices), which are piecewise constant.
std::vector<char> carries_slope(const Graph& graph, Losses losses) {
    std::vector<char> read(graph.values.size(), 0);
    for (ValueId loss : losses) read[loss] = 1;
    for (size_t n = graph.nodes.size(); n-- > 0;) {
        const Node& node = graph.nodes[n];
        if (std::any_of(node.outputs.begin(), node.outputs.end(),
                        [&](ValueId out) { return read[out]; }))
            for (ValueId in : node.inputs)
                read[in] |= node.forward < 0 || is_float(graph.value(in).type.dtype);
    }
    return read;
}

/// Raises if a path from `id` to the loss passes a non-differentiable op among the nodes [first,
/// last).
void refuse_blocked(const Graph& graph, ValueId id, Losses losses, const std::vector<char>& reached,
                    int first, int last) {
    const std::vector<char> read = carries_slope(graph, losses);
    std::vector<char> from(graph.values.size(), 0);
    from[id] = 1;
    for (int n = 0; n < last; n++) {
        const Node& node = graph.nodes[n];
        if (std::none_of(node.inputs.begin(), node.inputs.end(),
                         [&](ValueId in) { return from[in]; }) ||
            std::none_of(node.outputs.begin(), node.outputs.end(),
                         [&](ValueId out) { return reached[out]; }))
            continue;
        for (ValueId out : node.outputs)
            from[out] = reached[out] && is_float(graph.value(out).type.dtype) && !node.op->detaches;
        const std::string why = no_gradient(graph, node);
        const bool counts = std::any_of(node.outputs.begin(), node.outputs.end(),
                                        [&](ValueId out) { return read[out]; });
        if (n >= first && !why.empty() && counts)
            raise(ErrorKind::graph, "backward: ", node.op->fn, " has no gradient (", why,
                  ") and stands between \"", graph.value(id).name, "\" and the loss %", losses[0],
                  " at node ", node.id, node.where.empty() ? "" : cat(" (", node.where, ")"),
                  "; take another op or leave it out of wrt");
    }
}

void check_backward(const Graph& graph, ValueId loss, std::span<const ValueId> wrt, ValueId seed,
                    const std::vector<char>& reached, bool record) {
    const Type type = graph.value(loss).type;
    if (!is_float(type.dtype))
        raise(ErrorKind::dtype, "backward: loss is ", graph.describe(loss), "; need a float dtype");
    if (seed == kNone && type.shape.rank() != 0)
        raise(ErrorKind::shape, "backward: loss is ", graph.describe(loss),
              "; need rank 0 (sum or mean it), or give its gradient with grad=");
    if (seed != kNone && !(graph.value(seed).type == type))
        raise(ErrorKind::shape, "backward: grad is ", graph.describe(seed), ", loss is ",
              graph.describe(loss), "; need equal shape and dtype");
    for (ValueId id : wrt) {
        const Value& value = graph.value(id);
        if (record && !reached[id])
            raise(ErrorKind::graph, "backward: loss %", loss, " does not depend on \"", value.name,
                  "\" ", graph.describe(id), "; leave it out of wrt");
        if (!is_float(value.type.dtype))
            raise(ErrorKind::dtype, "backward: \"", value.name, "\" is ", graph.describe(id),
                  "; need a float value, others have no gradient");
    }
}

/// By value, whether it lies on a path of float values from `wrt` to the loss.
std::vector<char> values_between(const Graph& graph, std::span<const ValueId> wrt,
                                 const std::vector<char>& reached) {
    std::vector<char> between(graph.values.size(), 0);
    for (ValueId id : wrt) between[id] = 1;
    for (const Node& node : graph.nodes) {
        const auto is_between = [&](ValueId id) { return between[id] && reached[id]; };
        if (std::any_of(node.inputs.begin(), node.inputs.end(), is_between))
            for (ValueId id : node.outputs)
                between[id] |=
                    reached[id] && is_float(graph.value(id).type.dtype) && !node.op->detaches;
    }
    return between;
}

/// Accumulates gradients during the reverse walk. Contributions to a value are added in reverse
/// order of its readers. If all readers are slices that partition it, their gradients are
/// concatenated instead of padded and added.
class Gradients {
  public:
    Gradients(Graph& graph) : graph_(graph), sum_(graph.values.size(), kNone) {}

    /// The accumulated gradient of a value; kNone: none.
    ValueId of(ValueId id) {
        if (const auto found = parts_.find(id); found != parts_.end()) {
            const std::vector<Node> slices = std::move(found->second);
            parts_.erase(found);
            if (!join(id, slices))
                for (const Node& slice : slices) apply(slice, {1});
        }
        return sum_[id];
    }
    void add(ValueId id, ValueId grad) {
        ValueId& sum = sum_[id];
        sum = sum == kNone ? grad : graph_.emit("Add", {sum, grad})[0];
    }

    /// Applies a node's gradient rule.
    void differentiate(const Node& node, const std::vector<char>& inputs_needed) {
        for (ValueId id : node.inputs) {
            if (node.op->name == "Slice" && sum_[id] == kNone) {
                parts_[id].push_back(node);  // deferred until all readers are known
                return;
            }
            of(id);
        }
        apply(node, inputs_needed);
    }

  private:
    void apply(const Node& node, const std::vector<char>& inputs_needed) {
        std::vector<ValueId> output_grads;
        for (ValueId id : node.outputs) output_grads.push_back(of(id));
        graph_.differentiating = node.id;
        GradContext context(graph_, node, output_grads, inputs_needed);
        node.op->grad(context);
        for (size_t i = 0; i < node.inputs.size(); i++)
            if (context.result()[i] != kNone) add(node.inputs[i], context.result()[i]);
        graph_.differentiating = -1;
    }

    /// Concatenates the slices' gradients if they partition the value along one axis.
    bool join(ValueId id, std::vector<Node> slices) {
        constexpr size_t kMost = 16;  // operands of an argument block
        if (slices.size() < 2 || slices.size() > kMost) return false;
        const Dims whole = graph_.value(id).type.shape;
        int axis = -1;
        for (int d = 0; d < whole.rank(); d++)
            if (graph_.value(slices[0].outputs[0]).type.shape[d] != whole[d]) {
                if (axis >= 0) return false;
                axis = d;
            }
        if (axis < 0) return false;
        const auto along = static_cast<size_t>(axis);
        const auto start = [&](const Node& slice) { return slice.attrs.ints("start")[along]; };
        std::sort(slices.begin(), slices.end(),
                  [&](const Node& a, const Node& b) { return start(a) < start(b); });
        int64_t at = 0;
        std::vector<ValueId> grads;
        for (const Node& slice : slices) {
            const Dims shape = graph_.value(slice.outputs[0]).type.shape;
            const std::vector<int64_t>& steps = slice.attrs.ints("step");
            if (start(slice) != at ||
                std::any_of(steps.begin(), steps.end(), [](int64_t step) { return step != 1; }))
                return false;
            for (int d = 0; d < whole.rank(); d++)
                if (d != axis && shape[d] != whole[d]) return false;
            at += shape[axis];
            grads.push_back(sum_[slice.outputs[0]]);
        }
        if (at != whole[axis]) return false;
        graph_.differentiating = slices[0].id;
        sum_[id] = graph_.emit("Concat", grads, {{"axis", static_cast<int64_t>(axis)}})[0];
        graph_.differentiating = -1;
        return true;
    }

    Graph& graph_;
    std::vector<ValueId> sum_;  // by value
    std::map<ValueId, std::vector<Node>>
        parts_;  // by value: deferred slices, its only readers so far
};

}  // namespace

std::vector<ValueId> sources(const Graph& graph, ValueId value, std::span<const ValueId> known,
                             const Graph::Mark& mark) {
    std::vector<char> wanted(graph.values.size(), 0);
    wanted[graph.value(value).id] = 1;
    for (ValueId id : known) wanted[id] = 0;
    const auto is_source = [&](const Value& v) {
        return v.id < static_cast<ValueId>(mark.values) || v.producer < 0;
    };
    for (size_t n = graph.nodes.size(); n-- > mark.nodes;) {
        const Node& node = graph.nodes[n];
        if (!node.op->detaches && std::any_of(node.outputs.begin(), node.outputs.end(),
                                              [&](ValueId out) { return wanted[out]; }))
            for (ValueId in : node.inputs)
                wanted[in] = std::find(known.begin(), known.end(), in) == known.end();
    }
    std::vector<ValueId> found;
    for (const Value& v : graph.values)
        if (wanted[v.id] && is_source(v) && v.role != Role::constant && is_float(v.type.dtype))
            found.push_back(v.id);
    return found;
}

std::vector<ValueId> reached_params(const Graph& graph, ValueId loss) {
    const std::vector<char> reached = ancestors(graph, {&loss, 1});
    std::vector<ValueId> params;
    for (const Value& value : graph.values)
        if (value.role == Role::param && reached[value.id] && is_float(value.type.dtype))
            params.push_back(value.id);
    return params;
}

namespace {

/// The reverse walk from the losses; `seeds` are their gradients.
std::vector<ValueId> walk(Graph& graph, Losses losses, Losses seeds, std::span<const ValueId> wrt,
                          const std::vector<char>& reached) {
    const std::vector<char> between = values_between(graph, wrt, reached);
    const int first_new = static_cast<int>(graph.nodes.size());
    Gradients grads(graph);
    for (size_t i = 0; i < losses.size(); i++) grads.add(losses[i], seeds[i]);
    for (int n = first_new - 1; n >= 0; n--) {
        poll();
        const Node node = graph.nodes[n];  // a copy: emitting may move the nodes
        std::vector<char> inputs_needed;
        for (ValueId id : node.inputs) inputs_needed.push_back(between[id]);
        const auto has_grad = [&](ValueId id) { return grads.of(id) != kNone; };
        if (std::none_of(node.outputs.begin(), node.outputs.end(), has_grad) ||
            std::count(inputs_needed.begin(), inputs_needed.end(), 0) == std::ssize(inputs_needed))
            continue;
        if (node.op->grad)
            grads.differentiate(node, inputs_needed);
        else
            for (ValueId id : wrt) refuse_blocked(graph, id, losses, reached, n, n + 1);
    }

    std::vector<ValueId> result;
    std::vector<char> differentiable;
    for (ValueId id : wrt) {
        ValueId grad = grads.of(id);
        if (grad == kNone) {  // a zero derivative (floor, sign, ...), or none at all
            if (differentiable.empty())
                differentiable = differentiable_values(graph, losses, first_new);
            if (reached[id] && !differentiable[id])
                refuse_blocked(graph, id, losses, reached, 0, first_new);
            graph.differentiating = graph.value(losses[0]).producer;
            grad = zeros_like(Var{&graph, id}).id;
            graph.differentiating = -1;
        }
        result.push_back(grad);
    }
    return result;
}

}  // namespace

std::vector<ValueId> backward(Graph& graph, ValueId loss, std::span<const ValueId> wrt,
                              ValueId seed, bool record, const OwnRule* own_rule) {
    if (graph.loose) verify(graph).require("backward");
    const Losses losses(&loss, 1);
    const std::vector<char> reached = ancestors(graph, losses);
    check_backward(graph, loss, wrt, seed, reached, record);

    Rollback rollback(graph);
    graph.own_rule = own_rule;
    const ValueId given = seed;
    if (seed == kNone) graph.seed_one = seed = graph.scalar(graph.value(loss).type.dtype, 1, "one");
    const std::vector<ValueId> grads = walk(graph, losses, {&seed, 1}, wrt, reached);
    for (size_t i = 0; record && i < wrt.size(); i++)
        graph.gradients.push_back({loss, wrt[i], grads[i], given});
    rollback.done = true;
    return grads;
}

std::vector<ValueId> backward(Graph& graph, Losses results, Losses seeds,
                              std::span<const ValueId> wrt) {
    check(results.size() == seeds.size(), "backward: each result needs its gradient");
    if (results.empty()) {
        std::vector<ValueId> zeros;
        for (ValueId id : wrt) zeros.push_back(zeros_like(Var{&graph, id}).id);
        return zeros;
    }
    Rollback rollback(graph);
    graph.seed_one = kNone;
    const std::vector<ValueId> grads = walk(graph, results, seeds, wrt, ancestors(graph, results));
    rollback.done = true;
    return grads;
}

}  // namespace aicf
