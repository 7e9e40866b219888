// Dumps: text for people, JSON for programs, DOT for pictures. Ids are the same in all of them.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/float_mode.h"
#include "core/plan.h"

namespace aicf {

namespace {

std::string number_text(double number) {
    if (std::isnan(number)) return "\"NaN\"";  // as text: JSON has no such numbers
    if (std::isinf(number)) return number > 0 ? "\"Infinity\"" : "\"-Infinity\"";
    const FloatMode mode;  // to_chars would write a subnormal as 0
    char buffer[32];
    const auto end = std::to_chars(buffer, buffer + sizeof buffer, number)
                         .ptr;  // shortest that reads back equal
    std::string text(buffer, end);
    if (text.find_first_of(".e") == std::string::npos) text += ".0";
    return text;
}

std::string quoted(const std::string& text) {
    std::string result = "\"";
    for (char c : text) {
        if (c == '"' || c == '\\') result += '\\';
        if (static_cast<unsigned char>(c) < 0x20) {
            constexpr const char* kHex = "0123456789abcdef";
            result += cat("\\u00", std::string(1, kHex[c >> 4 & 15]), std::string(1, kHex[c & 15]));
        } else {
            result += c;
        }
    }
    return result + "\"";
}

template <class List, class Text>
std::string joined(const List& list, Text text, const char* between = ", ") {
    std::string result;
    for (const auto& item : list) result += (result.empty() ? "" : between) + text(item);
    return result;
}

std::string int_list(const auto& list) {
    return "[" + joined(list, [](int64_t i) { return std::to_string(i); }) + "]";
}

std::string attr_text(const Attr& attr) {
    if (const auto* flag = std::get_if<bool>(&attr)) return *flag ? "true" : "false";
    if (const auto* integer = std::get_if<int64_t>(&attr)) return std::to_string(*integer);
    if (const auto* number = std::get_if<double>(&attr)) return number_text(*number);
    if (const auto* text = std::get_if<std::string>(&attr)) return quoted(*text);
    return int_list(std::get<std::vector<int64_t>>(attr));
}

std::string ids(const std::vector<ValueId>& list) {
    return joined(list, [](ValueId id) { return cat("%", id); });
}

/// f32[64, 8], with strides where the operand is not its value as it lies.
std::string layout_text(const View& view) {
    std::string text = type_string(view.dtype, view.shape);
    if (!is_contiguous(view.shape, view.strides)) text += cat(" strides ", to_string(view.strides));
    return text;
}

/// %7 f32[64, 8], with an offset too.
std::string view_text(const View& view) {
    return cat("%", view.value, " ", layout_text(view),
               view.offset ? cat(" offset ", view.offset) : "");
}

std::string op_text(const LoweredOp& op) {
    std::string text = cat("op=", op.def->name);
    if (!op.members.empty())
        text += "(" + joined(op.members, [](const LoweredOp& member) { return member.def->name; }) +
                ")";
    if (!op.body.empty())
        text += "(" + joined(op.body, [](const FusedStep& step) { return step.def->name; }) + ")";
    if (!op.attrs.items().empty()) text += " attrs=" + to_string(op.attrs);
    return text + cat(" (", joined(op.inputs, view_text), ") -> (", joined(op.outputs, view_text),
                      ")", op.candidate.empty() ? "" : cat(" candidate=", op.candidate));
}

/// A line a step of a fused op; inner values are named as the graph names them. Of a group the ops.
std::string body_text(const LoweredOp& op, const std::string& indent = "      ") {
    std::string text;
    for (const LoweredOp& member : op.members)
        text += cat(indent, op_text(member), "\n", body_text(member, indent + "      "));
    const auto operand_text = [&](int number) { return view_text(op.operand(number)); };
    const auto id_text = [&](int number) { return cat("%", op.operand(number).value); };
    for (const FusedStep& step : op.body) {
        text += cat(indent, joined(step.outputs, operand_text), " = ", step.def->name, "(",
                    joined(step.inputs, id_text), ")");
        if (!step.attrs.items().empty()) text += " " + to_string(step.attrs);
        text += "\n";
    }
    return text;
}

std::string int_text(double whole) { return cat(static_cast<int64_t>(whole)); }

std::string index_text(size_t i) { return cat(i < 10 ? "0" : "", i); }

std::string op_json(const LoweredOp& op) {
    const auto view_json = [](const View& view) {
        return cat("{\"value\": ", view.value, ", \"dtype\": ", quoted(dtype_name(view.dtype)),
                   ", \"shape\": ", int_list(view.shape), ", \"strides\": ", int_list(view.strides),
                   ", \"offset\": ", view.offset, "}");
    };
    std::string text = cat("\"op\": ", quoted(op.def->name), ", \"node\": ", op.node,
                           ", \"inputs\": [", joined(op.inputs, view_json), "], \"outputs\": [",
                           joined(op.outputs, view_json), "], \"attrs\": ", to_string(op.attrs));
    if (!op.candidate.empty())
        text += cat(", \"candidate\": ", quoted(op.candidate),
                    ", \"signature\": ", quoted(signature(op)));
    if (!op.members.empty()) {
        const auto member_json = [](const LoweredOp& member) {
            return "{" + op_json(member) + "}";
        };
        return text + cat(", \"members\": [", joined(op.members, member_json), "]");
    }
    if (op.body.empty()) return text;
    const auto step_json = [](const FusedStep& step) {
        return cat("{\"op\": ", quoted(step.def->name), ", \"node\": ", step.node,
                   ", \"inputs\": ", int_list(step.inputs),
                   ", \"outputs\": ", int_list(step.outputs),
                   ", \"attrs\": ", to_string(step.attrs), "}");
    };
    return text + cat(", \"inner\": [", joined(op.inner, view_json), "], \"body\": [",
                      joined(op.body, step_json), "]");
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

std::string to_text(const Graph& graph) {
    std::vector<char> live(graph.nodes.size(), 1);  // without any output yet, all may come to be
    if (!graph.outputs.empty() || !graph.assigns.empty()) live = live_nodes(graph);
    const auto dead = std::count(live.begin(), live.end(), 0);
    std::string text =
        cat("graph ", quoted(graph.name), ": ", graph.values.size(), " values, ",
            graph.nodes.size(), " nodes", dead ? cat(", ", dead, " of them dead") : "", "\n");
    for (const Value& value : graph.values)
        if (value.role != Role::temp)
            text += cat("  %", value.id, " ", role_name(value.role), " ", to_string(value.type),
                        " ", quoted(value.name), "\n");
    for (const Node& node : graph.nodes) {
        text += cat("  ", joined(node.outputs, [&](ValueId id) { return graph.describe(id); }),
                    " = ", node.op_name, "(", ids(node.inputs), ")");
        if (!node.attrs.items().empty()) text += " " + to_string(node.attrs);
        if (node.forward >= 0) text += cat(" of node ", node.forward);
        text += cat(live[node.id] ? "  # node " : "  # dead node ", node.id,
                    node.where.empty() ? "" : ", " + node.where, "\n");
    }
    for (const Assign& assign : graph.assigns)
        text += cat("  assign %", assign.target, " <- %", assign.source, "\n");
    for (const GraphOutput& output : graph.outputs)
        text += cat("  output ", quoted(output.name), " = %", output.value,
                    output.keep > 1 ? cat(", last ", output.keep) : "", "\n");
    return text;
}

std::string to_json(const Graph& graph) {
    const auto id_list = [](const std::vector<ValueId>& list) { return int_list(list); };
    std::string text =
        cat("{\n\"graph\": ", quoted(graph.name), ",\n\"version\": 1,\n\"values\": {\n");
    text += joined(
        graph.values,
        [](const Value& value) { return cat("\"", value.id, "\": ", value_json(value)); }, ",\n");
    text += "\n},\n\"nodes\": [\n";
    text += joined(
        graph.nodes,
        [&](const Node& node) {
            return cat("{\"id\": ", node.id, ", \"op\": ", quoted(node.op_name),
                       ", \"inputs\": ", id_list(node.inputs),
                       ", \"outputs\": ", id_list(node.outputs),
                       ", \"attrs\": ", to_string(node.attrs),
                       node.forward >= 0 ? cat(", \"grad_of\": ", node.forward) : "",
                       node.where.empty() ? "" : ", \"where\": " + quoted(node.where), "}");
        },
        ",\n");
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

// ---- lowered list and plan ---------------------------------------------------------------------

std::string signature(const LoweredOp& op) {
    std::string text = op.def->name;
    for (const FusedStep& step : op.body)
        text += cat(" ", step.def->name, " ", to_string(step.attrs), " ", int_list(step.inputs),
                    int_list(step.outputs));
    if (op.body.empty()) text += " " + to_string(op.attrs);
    const auto operand_text = [&](const View& view) {
        const int64_t past = view.offset * dtype_size(view.dtype) % 16;
        return layout_text(view) + (op.def->gemm && past ? cat(" ", past, " bytes past 16") : "");
    };
    return text + cat(" (", joined(op.inputs, operand_text), ") -> (",
                      joined(op.outputs, layout_text), ")");
}

std::string to_text(const Lowered& lowered) {
    std::string text;
    for (size_t i = 0; i < lowered.ops.size(); i++)
        text += cat("[lower ", index_text(i), "] ", op_text(lowered.ops[i]), "\n",
                    body_text(lowered.ops[i]));
    return text;
}

std::string to_json(const Lowered& lowered) {
    return cat("{\n\"graph\": ", quoted(lowered.name), ",\n\"ops\": [\n",
               joined(
                   lowered.ops, [](const LoweredOp& op) { return "{" + op_json(op) + "}"; }, ",\n"),
               "\n]\n}\n");
}

std::string to_text(const Plan& plan) {
    std::string text =
        cat("plan ", quoted(plan.name), " on ", kind_name(plan.device), ": ", plan.ops.size(),
            " launches, ", int_text(plan.cost().bytes), " bytes moved, peak ", plan.peak_bytes(),
            " bytes, math ", plan.math, plan.deterministic ? ", deterministic" : "", "\n");
    for (int r = 0; r < kRegions; r++)
        if (plan.region_bytes[r])
            text += cat("  region ", region_name(static_cast<Region>(r)), " ", plan.region_bytes[r],
                        " bytes",
                        static_cast<Region>(r) == Region::temps
                            ? cat(" (", plan.temps_without_reuse, " without reuse)")
                            : "",
                        "\n");
    for (const Value& value : plan.values) {
        const Place& place = plan.places[value.id];
        if (place.storage == kNone) continue;
        text += cat("  %", value.id, " ", to_string(value.type), " ", quoted(value.name), " ",
                    place.offset < 0 ? "shared" : cat(region_name(place.region), "+", place.offset),
                    place.storage == value.id ? "" : cat(" in place of %", place.storage), "\n");
    }
    for (size_t i = 0; i < plan.ops.size(); i++) {
        const PlannedOp& op = plan.ops[i];
        text +=
            cat("[plan ", index_text(i), "] ", op_text(op.op), " kernel=", op.kernel->name,
                " lane=", op.lane, " waits=", int_list(op.waits),
                op.kernel->workspace_bytes ? cat(" workspace=", op.kernel->workspace_bytes) : "",
                "\n", body_text(op.op));
    }
    return text;
}

std::string to_json(const Plan& plan) {
    std::string regions, values;
    for (int r = 0; r < kRegions; r++)
        regions += cat(r ? ", " : "", quoted(region_name(static_cast<Region>(r))), ": ",
                       plan.region_bytes[r]);
    for (const Value& value : plan.values) {
        const Place& place = plan.places[value.id];
        if (place.storage == kNone) continue;
        values +=
            cat(values.empty() ? "" : ",\n", "\"", value.id, "\": {\"name\": ", quoted(value.name),
                ", \"region\": ", quoted(region_name(place.region)), ", \"offset\": ", place.offset,
                ", \"bytes\": ", place.bytes, ", \"storage\": ", place.storage, "}");
    }
    return cat(
        "{\n\"graph\": ", quoted(plan.name), ",\n\"device\": ", quoted(kind_name(plan.device)),
        ",\n\"math\": ", quoted(plan.math),
        ",\n\"deterministic\": ", plan.deterministic ? "true" : "false",
        ",\n\"bytes_moved\": ", int_text(plan.cost().bytes),
        ",\n\"flops\": ", int_text(plan.cost().flops), ",\n\"peak_bytes\": ", plan.peak_bytes(),
        ",\n\"regions\": {", regions, "},\n\"values\": {\n", values, "\n},\n\"ops\": [\n",
        joined(
            plan.ops,
            [](const PlannedOp& op) {
                return cat("{", op_json(op.op), ", \"kernel\": ", quoted(op.kernel->name),
                           ", \"lane\": ", op.lane, ", \"waits\": ", int_list(op.waits),
                           ", \"workspace\": ", op.kernel->workspace_bytes, "}");
            },
            ",\n"),
        "\n]\n}\n");
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
        node.attrs = std::move(attrs);  // for verify to name
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
