// Dumps: text for people, JSON for programs, DOT for pictures. Ids are the same in all of them.
#include <cstring>

#include "core/graph/op.h"
#include "core/graph/text.h"

namespace aicf {

namespace {

std::string ids(const std::vector<ValueId>& list) {
    return joined(list, [](ValueId id) { return cat("%", id); });
}

constexpr const char* kInitNames[] = {"zeros", "constant", "uniform", "normal", "seed", "data"};

std::string hex(const std::vector<char>& bytes) {
    constexpr const char* kHex = "0123456789abcdef";
    std::string text;
    for (char c : bytes) {
        text += kHex[c >> 4 & 15];
        text += kHex[c & 15];
    }
    return text;
}

/// What a constant of one number is, and what a state of one begins as; of others nothing.
std::string content_text(const Value& value) {
    const Init& init = value.init;
    if (value.type.shape.rank() != 0) return "";
    if (init.kind == Init::constant) return " begins as " + number_text(init.a);
    if (value.role != Role::constant || init.kind != Init::data || !init.bytes ||
        std::ssize(*init.bytes) != byte_count(value.type))
        return "";
    const auto as = [&](auto element) {
        std::memcpy(&element, init.bytes->data(), sizeof element);
        return element;
    };
    switch (value.type.dtype) {
        case DType::f64:
            return " = " + number_text(as(double()));
        case DType::f32:
            return " = " + float_text(as(float()));
        case DType::f16:
            return " = " + float_text(half_to_float(as(uint16_t())));
        case DType::bf16:
            return " = " + float_text(bfloat_to_float(as(uint16_t())));
        case DType::i64:
            return cat(" = ", as(int64_t()));
        case DType::i32:
            return cat(" = ", as(int32_t()));
        case DType::boolean:
            return as(uint8_t()) ? " = true" : " = false";
        default:
            return "";
    }
}

std::string value_json(const Value& value) {
    std::string text = cat("{\"id\": ", value.id, ", \"name\": ", quoted(value.name),
                           ", \"shape\": ", int_list(value.type.shape),
                           ", \"dtype\": ", quoted(dtype_name(value.type.dtype)),
                           ", \"device\": \"any\", \"role\": ", quoted(role_name(value.role)));
    if (value.role != Role::temp && value.role != Role::input) {
        const Init& init = value.init;
        text += cat(", \"init\": {\"kind\": ", quoted(kInitNames[init.kind]));
        if (init.kind == Init::data)
            text += cat(", \"bytes\": ", quoted(hex(*init.bytes)));
        else if (init.kind != Init::zeros)
            text += cat(", \"a\": ", number_text(init.a), ", \"b\": ", number_text(init.b));
        text += "}";
    }
    if (value.moment_of != kNone)
        text += cat(", \"moment_of\": ", value.moment_of, ", \"slot\": ", value.moment_slot);
    return text + "}";
}

}  // namespace

std::string to_string(const Attrs& attrs) {
    return "{" +
           joined(attrs.items(),
                  [](const auto& item) {
                      return quoted(item.first) + ": " + attr_text(item.second);
                  }) +
           "}";
}

// ---- graph -------------------------------------------------------------------------------------

namespace {

/// A node's attributes without its body, which is printed below it.
Attrs plain_attrs(const Attrs& attrs, Body& body) {
    Attrs plain;
    for (const auto& [key, attr] : attrs.items())
        if (const auto* graph = std::get_if<Body>(&attr))
            body = *graph;
        else
            plain.set(key, attr);
    return plain;
}

std::string indented(const std::string& text, const char* indent) {
    std::string result;
    for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
        result += indent + text.substr(at, end - at);
        at = end;
    }
    return result;
}

}  // namespace

std::string to_text(const Graph& graph) {
    std::vector<char> live(graph.nodes.size(), 1);  // without outputs, every node may still be used
    if (!graph.outputs.empty() || !graph.assigns.empty()) live = live_nodes(graph);
    const auto dead = std::count(live.begin(), live.end(), 0);
    std::string text =
        cat("graph ", quoted(graph.name), ": ", graph.values.size(), " values, ",
            graph.nodes.size(), " nodes", dead ? cat(", ", dead, " of them dead") : "", "\n");
    for (const Value& value : graph.values)
        if (value.role != Role::temp)
            text += cat("  %", value.id, " ", role_name(value.role), " ", to_string(value.type),
                        " ", quoted(value.name), content_text(value), "\n");
    for (const Node& node : graph.nodes) {
        text += cat("  ", joined(node.outputs, [&](ValueId id) { return graph.describe(id); }),
                    " = ", node.op_name, "(", ids(node.inputs), ")");
        Body body;
        if (const Attrs plain = plain_attrs(node.attrs, body); !plain.items().empty())
            text += " " + to_string(plain);
        if (node.forward >= 0) text += cat(" of node ", node.forward);
        text += cat(live[node.id] ? "  # node " : "  # dead node ", node.id,
                    node.where.empty() ? "" : ", " + node.where, "\n");
        if (body) text += indented(to_text(*body), "      ");
    }
    for (const Assign& assign : graph.assigns)
        text += cat("  assign %", assign.target, " <- %", assign.source, "\n");
    for (const GraphOutput& output : graph.outputs)
        text += cat("  output ", quoted(output.name), " = %", output.value,
                    output.keep > 1 ? cat(", last ", output.keep) : "", "\n");
    return text;
}

std::string nodes_json(const Graph& graph, size_t first) {
    const auto id_list = [](const std::vector<ValueId>& list) { return int_list(list); };
    return joined(
        std::span(graph.nodes).subspan(std::min(first, graph.nodes.size())),
        [&](const Node& node) {
            return cat("{\"id\": ", node.id, ", \"op\": ", quoted(node.op_name),
                       ", \"inputs\": ", id_list(node.inputs),
                       ", \"outputs\": ", id_list(node.outputs),
                       ", \"attrs\": ", to_string(node.attrs),
                       node.forward >= 0 ? cat(", \"grad_of\": ", node.forward) : "",
                       node.where.empty() ? "" : ", \"where\": " + quoted(node.where), "}");
        },
        ",\n");
}

std::string to_json(const Graph& graph) {
    std::string text =
        cat("{\n\"graph\": ", quoted(graph.name), ",\n\"version\": 1,\n\"values\": {\n");
    text += joined(
        graph.values,
        [](const Value& value) { return cat("\"", value.id, "\": ", value_json(value)); }, ",\n");
    text += "\n},\n\"nodes\": [\n";
    text += nodes_json(graph, 0);
    text += "\n],\n\"outputs\": [";
    text += joined(graph.outputs, [](const GraphOutput& o) {
        return cat("{\"name\": ", quoted(o.name), ", \"value\": ", o.value, ", \"keep\": ", o.keep,
                   "}");
    });
    text += "],\n\"assigns\": [";
    text += joined(graph.assigns, [](const Assign& a) {
        return cat("{\"target\": ", a.target, ", \"source\": ", a.source, "}");
    });
    text += "],\n\"gradients\": [";
    text += joined(graph.gradients, [](const Gradient& g) {
        return cat("{\"loss\": ", g.loss, ", \"value\": ", g.value, ", \"grad\": ", g.grad,
                   g.seed == kNone ? "" : cat(", \"seed\": ", g.seed), "}");
    });
    return text + "]\n}\n";
}

std::string to_dot(const Graph& graph) {
    std::string text =
        cat("digraph ", quoted(graph.name), " {\n  rankdir=TB; node [fontname=\"monospace\"];\n");
    for (const Value& value : graph.values)
        if (value.role != Role::temp)
            text += cat("  v", value.id, " [shape=ellipse, label=",
                        quoted(cat("%", value.id, " ", value.name, " ", to_string(value.type))),
                        "];\n");
    for (const Node& node : graph.nodes) {
        text += cat("  n", node.id, " [shape=box, label=", quoted(node.op_name),
                    node.forward >= 0 ? ", style=dashed" : "", "];\n");
        for (ValueId id : node.inputs) {
            const int producer = graph.value(id).producer;
            text += producer >= 0 ? cat("  n", producer, " -> n", node.id,
                                        " [label=", quoted(graph.describe(id)), "];\n")
                                  : cat("  v", id, " -> n", node.id, ";\n");
        }
    }
    for (const Assign& assign : graph.assigns)
        if (const int producer = graph.value(assign.source).producer; producer >= 0)
            text += cat("  n", producer, " -> v", assign.target,
                        " [style=dotted, label=\"assign\"];\n");
    return text + "}\n";
}

// ---- reading -----------------------------------------------------------------------------------

void GraphReader::known(ValueId id, const std::string& where) const {
    if (id < 0 || id >= static_cast<ValueId>(graph_.values.size()))
        raise(ErrorKind::format, where, ": names value ", id, "; the file has values 0 to ",
              graph_.values.size() - 1);
}

void GraphReader::value(Value value) {
    const std::string where = cat("values[", graph_.values.size(), "]");
    if (value.id != static_cast<ValueId>(graph_.values.size()))
        raise(ErrorKind::format, where, ": id is ", value.id,
              "; need ids 0, 1, 2, ... without gaps or repeats");
    int64_t bytes = 16;
    for (int64_t size : value.type.shape)
        if (size < 0 || (size > 0 && __builtin_mul_overflow(bytes, size, &bytes)))
            raise(ErrorKind::format, where, ": shape ", to_string(value.type.shape),
                  " is negative or has more than 2**63 bytes");
    if (const std::string problem = init_problem(value.init, value.type, value.role);
        !problem.empty())
        raise(ErrorKind::format, where, ": ", problem);
    graph_.add_value(std::move(value));
}

void GraphReader::node(const std::string& op, std::vector<ValueId> inputs,
                       std::vector<ValueId> outputs, Attrs attrs, int forward,
                       const std::string& where) {
    const std::string at = cat("nodes[", graph_.nodes.size(), "] ", op);
    Node node;
    node.id = static_cast<int>(graph_.nodes.size());
    node.op = find_op(op);
    node.op_name = op;
    node.forward = forward;
    node.where = where;
    if (!node.op && strict_) raise(ErrorKind::format, at, ": unknown op");
    if (forward < -1 || forward >= node.id)
        raise(ErrorKind::format, at, ": grad_of is ", forward, "; need a node before it");
    for (const auto* list : {&inputs, &outputs})
        for (ValueId id : *list) known(id, at);
    try {
        node.attrs = node.op ? complete_attrs(node.op->attrs, attrs, op) : attrs;
    } catch (const Error& error) {
        if (strict_) raise(ErrorKind::format, at, ": ", error.what());
        node.attrs = std::move(attrs);  // reported by verify
    }
    for (ValueId id : outputs)
        if (graph_.values[id].producer < 0) graph_.values[id].producer = node.id;
    node.inputs = std::move(inputs);
    node.outputs = std::move(outputs);
    graph_.add_node(std::move(node));
}

void GraphReader::output(const std::string& name, ValueId value, int keep) {
    known(value, "outputs");
    if (keep < 1 || keep > 1 << 20)
        raise(ErrorKind::format, "outputs: keep is ", keep, "; need 1 to 1048576");
    graph_.add_output({name, value, keep});
}

void GraphReader::assign(ValueId target, ValueId source) {
    known(target, "assigns");
    known(source, "assigns");
    graph_.add_assign({target, source});
}

void GraphReader::gradient(const Gradient& gradient) {
    for (ValueId id : {gradient.loss, gradient.value, gradient.grad}) known(id, "gradients");
    if (gradient.seed != kNone) known(gradient.seed, "gradients");
    graph_.gradients.push_back(gradient);
}

Graph GraphReader::finish() {
    for (const Value& value : graph_.values)
        if (value.moment_of != kNone)
            known(value.moment_of, cat("values[", value.id, "] moment_of"));
    if (strict_) {
        const Report report = verify(graph_);
        if (!report.ok())
            raise(ErrorKind::format, "from_json: the graph does not verify", report.failures());
    }
    graph_.loose = !strict_;
    return std::move(graph_);
}

}  // namespace aicf
