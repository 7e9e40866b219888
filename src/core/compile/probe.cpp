#include "core/compile/probe.h"

#include <cmath>

#include "core/compile/indices.h"

namespace aicf {

namespace {

/// Dead code elimination; values keep their ids.
void drop_dead(Graph& graph) {
    const std::vector<char> live = live_nodes(graph);
    std::vector<Node> nodes = std::move(graph.nodes);
    std::vector<int> place(nodes.size(), -1);
    graph.nodes.clear();
    for (Node& node : nodes) {
        const bool lives = live[node.id] != 0;
        if (lives) {
            const int next = static_cast<int>(graph.nodes.size());
            place[node.id] = next;
            node.id = next;
        }
        for (ValueId id : node.outputs) graph.values[id].producer = lives ? node.id : -1;
        if (node.forward >= 0) node.forward = place[node.forward];
        if (lives) graph.nodes.push_back(std::move(node));
    }
}

}  // namespace

void probe(Graph& graph, const std::vector<ValueId>& values) {
    Graph::Mark bare = graph.mark();
    bare.outputs = bare.assigns = bare.gradients = 0;
    graph.rollback(bare);
    std::vector<char> wanted(graph.values.size(), 0);
    const auto add = [&](ValueId id) {
        wanted[id] = 1;
        graph.add_output({std::to_string(graph.outputs.size()), id, 1});
    };
    for (ValueId id : values) add(id);
    const std::vector<char> live = live_nodes(graph);
    for (const Node& node : graph.nodes)
        if (live[node.id])
            for (ValueId id : node.inputs) wanted[id] = 1;
    for (const Node& node : graph.nodes)
        for (ValueId id : node.outputs)
            if (live[node.id] && node.op->effect && !wanted[id]) add(id);
    drop_dead(graph);
}

Checks::Checks(Graph& graph, Of of)
    : graph_(graph), of_value_(graph.values.size(), -1), of_node_(graph.nodes.size(), -1) {
    std::vector<ValueId> numbers;
    const auto look_at_index = [&](const Node& node) {
        of_node_[node.id] = static_cast<int>(numbers.size());
        numbers.push_back(outside(graph, node));
    };
    if (of == Of::computed_indices) {
        for (int node : index_uses(graph_).computed)
            look_at_index(graph_.nodes[static_cast<size_t>(node)]);
        count_ = numbers.size();
        probe(graph, numbers);
        return;
    }
    const std::vector<char> live = live_nodes(graph_);
    const auto look_at = [&](ValueId id) {
        const Type& type = graph_.value(id).type;
        if (of_value_[id] >= 0 || !is_float(type.dtype) || element_count(type.shape) == 0) return;
        of_value_[id] = static_cast<int>(numbers.size());
        numbers.push_back(largest(graph, id));
    };
    const auto leaf = [&](ValueId id) {
        if (graph_.value(id).role != Role::temp) look_at(id);
    };
    for (const Node& node : graph_.nodes) {
        if (!live[node.id]) continue;
        for (ValueId id : node.inputs) leaf(id);
        if (node.op->rows && element_count(graph_.value(node.inputs[node.op->indices]).type.shape))
            look_at_index(node);
        if (!node.op->is_view)
            for (ValueId id : node.outputs) look_at(id);
    }
    for (const auto& output : graph_.outputs) leaf(output.value);
    for (const auto& assign : graph_.assigns) leaf(assign.source);
    count_ = numbers.size();
    probe(graph, numbers);
}

/// The largest magnitude, as an f32 of rank 0; NaN propagates.
ValueId Checks::largest(Graph& graph, ValueId value) const {
    const Type type = graph.value(value).type;
    std::vector<int64_t> axes;
    for (int axis = 0; axis < type.shape.rank(); axis++) axes.push_back(axis);
    ValueId x = graph.emit("Abs", {value})[0];
    if (!axes.empty()) x = graph.emit("Max", {x}, {{"axes", axes}, {"keepdims", false}})[0];
    if (type.dtype == DType::f64)  // clamped to the range of f32
        x = graph.emit("Mul", {x, graph.scalar(DType::f64, std::ldexp(1.0, -900))})[0];
    if (type.dtype == DType::f32) return x;
    return graph.emit("Cast", {x}, {{"dtype", "float32"}})[0];
}

/// 1 if any index is out of range, else 0.
ValueId Checks::outside(Graph& graph, const Node& node) const {
    const ValueId indices = node.inputs[node.op->indices];
    const Type type = graph.value(indices).type;
    const int64_t rows = node.op->rows(graph_.value(node.inputs[0]).type.shape, node.attrs);
    ValueId x = graph.emit("Lt", {indices, graph.scalar(type.dtype, 0)})[0];
    if (holds(type.dtype, static_cast<double>(rows))) {  // else no index can be out of range
        const ValueId most = graph.scalar(type.dtype, static_cast<double>(rows));
        x = graph.emit("LogicalOr", {x, graph.emit("Ge", {indices, most})[0]})[0];
    }
    x = graph.emit("Cast", {x}, {{"dtype", "float32"}})[0];
    std::vector<int64_t> axes;
    for (int axis = 0; axis < type.shape.rank(); axis++) axes.push_back(axis);
    if (axes.empty()) return x;
    return graph.emit("Max", {x}, {{"axes", axes}, {"keepdims", false}})[0];
}

/// The source of a chain of reshapes, which is the value the user named.
ValueId Checks::as_given(ValueId id) const {
    for (int made = graph_.value(id).producer; made >= 0; made = graph_.value(id).producer) {
        const Node& node = graph_.nodes[made];
        if (node.op_name != "Reshape") break;
        id = node.inputs[0];
    }
    return id;
}

std::optional<Finding> Checks::find(const std::vector<float>& numbers) const {
    struct Holds {
        bool nan = false, infinity = false;
        void add(double number) {
            nan |= std::isnan(number);
            infinity |= std::isinf(number);
        }
        void add(const Holds& other) {
            nan |= other.nan;
            infinity |= other.infinity;
        }
    };
    std::vector<Holds> holds(graph_.values.size());
    const auto number = [&](int at) { return at < 0 ? 0.0f : numbers[static_cast<size_t>(at)]; };
    for (const Value& value : graph_.values) {
        if (value.role == Role::temp) continue;
        Holds& now = holds[value.id];
        now.add(number(of_value_[value.id]));
        // A state may start at infinity (a running minimum), a constant may be a mask.
        const bool wide = value.role == Role::input || value.role == Role::param;
        if (now.nan && value.role != Role::constant) return Finding{Finding::nan, -1, value.id};
        if (now.infinity && wide) return Finding{Finding::infinity, -1, value.id};
    }
    for (const Node& node : graph_.nodes) {
        if (number(of_node_[node.id]) > 0)
            return Finding{Finding::index, node.id, as_given(node.inputs[node.op->indices])};
        Holds before;
        for (ValueId id : node.inputs) before.add(holds[id]);
        for (const auto& [name, attr] : node.attrs.items())
            if (const auto* written = std::get_if<double>(&attr)) before.add(*written);
        for (ValueId id : node.outputs) {
            Holds& now = holds[id];
            if (of_value_[id] < 0) {
                now = before;
                continue;
            }
            now.add(number(of_value_[id]));
            if (now.nan && !before.nan) return Finding{Finding::nan, node.id, id};
            if (now.infinity && !before.infinity && !before.nan)
                return Finding{Finding::infinity, node.id, id};
        }
    }
    return std::nullopt;
}

}  // namespace aicf
