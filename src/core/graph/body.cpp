// Outlining and inlining of loop bodies.
#include <algorithm>
#include <map>

#include "core/graph/op.h"

namespace aicf {

namespace {

/// Copies nodes of one graph into another, under new ids.
class Transfer {
  public:
    Transfer(const Graph& from, Graph& to)
        : from_(from), to_(to), now_(from.values.size(), kNone) {}

    void set(ValueId id, ValueId there) { now_[static_cast<size_t>(id)] = there; }
    /// The new id of a value; constants are copied on first use.
    ValueId operator()(ValueId id) {
        ValueId& there = now_[static_cast<size_t>(id)];
        if (there != kNone) return there;
        const Value& value = from_.values[static_cast<size_t>(id)];
        check(value.role == Role::constant, "body: a value comes from nowhere");
        if (value.type.shape.rank() == 0) {
            const auto& bytes = *value.init.bytes;
            const std::string key(bytes.begin(), bytes.end());
            const auto [at, fresh] = numbers_.emplace(std::pair(value.type.dtype, key), kNone);
            if (fresh) at->second = to_.constant(value.type, bytes, value.name);
            return there = at->second;
        }
        Value copy;
        copy.name = value.name;
        copy.type = value.type;
        copy.role = value.role;
        copy.init = value.init;
        return there = to_.add_value(std::move(copy));
    }
    void add(const Node& node) {
        Node copy;
        copy.id = static_cast<int>(to_.nodes.size());
        copy.op = node.op;
        copy.op_name = node.op_name;
        copy.attrs = node.attrs;
        copy.where = node.where;
        const auto forward = nodes_.find(node.forward);
        copy.forward = forward == nodes_.end() ? to_.differentiating : forward->second;
        for (ValueId id : node.inputs) copy.inputs.push_back((*this)(id));
        for (ValueId id : node.outputs) {
            const Value& value = from_.values[static_cast<size_t>(id)];
            Value made;
            made.name = value.name;
            made.type = value.type;
            made.producer = copy.id;
            copy.outputs.push_back(to_.add_value(std::move(made)));
            set(id, copy.outputs.back());
        }
        nodes_.emplace(node.id, copy.id);
        to_.add_node(std::move(copy));
    }

  private:
    const Graph& from_;
    Graph& to_;
    std::vector<ValueId> now_;
    std::map<std::pair<DType, std::string>, ValueId> numbers_;
    std::map<int, int> nodes_;
};

}  // namespace

ValueId Graph::placeholder(const Type& type) {
    Value value;
    value.name = "operand";
    value.type = type;
    return add_value(std::move(value));
}

Cut cut_body(Graph& graph, const std::string& where, const Graph::Mark& mark,
             std::span<const ValueId> inputs, std::span<const ValueId> outputs) {
    if (graph.outputs.size() > mark.outputs || graph.assigns.size() > mark.assigns)
        raise(ErrorKind::graph, where,
              ": the function makes an output or assigns to a state; need that outside of it, of "
              "its results");
    for (size_t i = mark.values; i < graph.values.size(); i++)
        if (is_leaf(graph.values[i]))
            raise(ErrorKind::graph, where, ": the function makes ", role_name(graph.values[i].role),
                  " \"", graph.values[i].name, "\"; need it before, to be used inside");
    std::vector<char> wanted(graph.values.size(), 0), live(graph.nodes.size(), 0);
    for (ValueId id : outputs) wanted[static_cast<size_t>(graph.value(id).id)] = 1;
    for (size_t n = graph.nodes.size(); n-- > mark.nodes;) {
        const Node& node = graph.nodes[n];
        live[n] = std::any_of(node.outputs.begin(), node.outputs.end(),
                              [&](ValueId id) { return wanted[static_cast<size_t>(id)]; });
        if (live[n])
            for (ValueId id : node.inputs) wanted[static_cast<size_t>(id)] = 1;
    }
    auto body = std::make_shared<Graph>("body");
    body->where = graph.where;
    Transfer transfer(graph, *body);
    Cut result;
    std::vector<Value> constants;  // made since the mark
    for (size_t i = 0; i < inputs.size(); i++)
        transfer.set(inputs[i], body->input(cat("in", i), graph.value(inputs[i]).type));
    size_t count = inputs.size();
    for (size_t i = 0; i < graph.values.size(); i++) {
        const Value& value = graph.values[i];
        const bool constant = value.role == Role::constant && value.type.shape.rank() > 0;
        const bool before = i < mark.values && value.role != Role::constant;
        if (!wanted[i] || !(constant || before)) continue;
        transfer.set(value.id, body->input(cat("in", count++), value.type));
        if (i < mark.values)
            result.captured.push_back(value.id);
        else
            constants.push_back(value);
    }
    for (size_t n = mark.nodes; n < graph.nodes.size(); n++)
        if (live[n]) transfer.add(graph.nodes[n]);
    for (size_t i = 0; i < outputs.size(); i++)
        body->add_output({cat("out", i), transfer(outputs[i]), 1});
    graph.rollback(mark);
    for (Value& value : constants) result.captured.push_back(graph.add_value(std::move(value)));
    result.body = std::move(body);
    return result;
}

std::vector<ValueId> append_body(Graph& graph, const Graph& body, std::span<const ValueId> inputs) {
    const std::vector<ValueId> own = loop_inputs(body.values);
    if (own.size() != inputs.size())
        raise(ErrorKind::graph, "body: got ", inputs.size(), " operands; need ", own.size());
    Transfer transfer(body, graph);
    for (size_t i = 0; i < own.size(); i++) {
        if (!(body.value(own[i]).type == graph.value(inputs[i]).type))
            raise(ErrorKind::graph, "body: operand ", i, " is ", graph.describe(inputs[i]),
                  "; need ", to_string(body.value(own[i]).type));
        transfer.set(own[i], inputs[i]);
    }
    for (const Node& node : body.nodes) transfer.add(node);
    std::vector<ValueId> results;
    for (const GraphOutput& output : body.outputs) results.push_back(transfer(output.value));
    return results;
}

int operands_of(const Graph& body) { return static_cast<int>(loop_inputs(body.values).size()); }

std::string body_problem(const Graph& body) {
    for (const Value& value : body.values) {
        if (value.role == Role::param || value.role == Role::state)
            return cat("it has ", role_name(value.role), " \"", value.name, "\"");
        if (value.role == Role::input && value.id > 0 &&
            body.values[static_cast<size_t>(value.id) - 1].role != Role::input)
            return cat("operand %", value.id, " does not stand among its first values");
    }
    if (!body.assigns.empty()) return "it assigns to a state";
    for (const GraphOutput& output : body.outputs)
        if (output.keep != 1) return cat("output \"", output.name, "\" keeps steps");
    for (const Node& node : body.nodes) {
        if (!node.op) return cat("op ", node.op_name, " is unknown");
        if (node.op->effect) return cat(node.op->fn, " updates a state");
    }
    return "";
}

}  // namespace aicf
