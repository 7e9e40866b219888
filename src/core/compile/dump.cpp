// Dumps of lowered lists and plans: text for people, JSON for programs.
#include "core/compile/plan.h"
#include "core/graph/text.h"

namespace aicf {

namespace {

/// f32[64, 8], with strides unless contiguous.
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
    std::string text = "op=" + title(op);
    if (!op.attrs.items().empty()) text += " attrs=" + to_string(op.attrs);
    return text + cat(" (", joined(op.inputs, view_text), ") -> (", joined(op.outputs, view_text),
                      ")", op.candidate.empty() ? "" : cat(" candidate=", op.candidate));
}

/// A line for each step of a region or member of a group.
std::string body_text(const LoweredOp& op, const std::string& indent = "      ") {
    std::string text;
    if (op.loop)
        for (const LoweredOp& inside : op.loop->ops)
            text += cat(indent, op_text(inside), "\n", body_text(inside, indent + "      "));
    for (const LoweredOp& member : op.members)
        text += cat(indent, op_text(member), "\n", body_text(member, indent + "      "));
    const auto operand_text = [&](int number) { return view_text(op.operand(number)); };
    const auto id_text = [&](int number) { return cat("%", op.operand(number).value); };
    for (const RegionStep& step : op.body) {
        text += cat(indent, joined(step.outputs, operand_text), " = ", step.def->name, "(",
                    joined(step.inputs, id_text), ")");
        if (!step.attrs.items().empty()) text += " " + to_string(step.attrs);
        text += "\n";
    }
    return text;
}

std::string int_text(double whole) { return cat(static_cast<int64_t>(whole)); }

std::string index_text(size_t i) { return cat(i < 10 ? "0" : "", i); }

std::string cost_json(const Cost& cost) {
    return cat("\"flops\": ", int_text(cost.flops), ", \"bytes_moved\": ", int_text(cost.bytes));
}

std::string op_json(const LoweredOp& op) {
    const auto view_json = [](const View& view) {
        return cat("{\"value\": ", view.value, ", \"dtype\": ", quoted(dtype_name(view.dtype)),
                   ", \"shape\": ", int_list(view.shape), ", \"strides\": ", int_list(view.strides),
                   ", \"offset\": ", view.offset, "}");
    };
    std::string text = cat("\"op\": ", quoted(op.def->name), ", \"node\": ", op.node,
                           op.body.empty() || anchor(op).pointwise
                               ? ""
                               : cat(", \"anchor\": ", quoted(anchor(op).name)),
                           ", \"inputs\": [", joined(op.inputs, view_json), "], \"outputs\": [",
                           joined(op.outputs, view_json), "], \"attrs\": ", to_string(op.attrs));
    if (!op.candidate.empty())
        text += cat(", \"candidate\": ", quoted(op.candidate),
                    ", \"signature\": ", quoted(signature(op)));
    text += ", " + cost_json(cost_of(op));
    if (op.loop) {
        const auto inside_json = [](const LoweredOp& inside) {
            return "{" + op_json(inside) + "}";
        };
        std::vector<ValueId> results;
        for (const Lowered::Output& output : op.loop->outputs) results.push_back(output.value);
        return text + cat(", \"operands\": ", int_list(loop_inputs(op.loop->values)),
                          ", \"results\": ", int_list(results), ", \"loop\": [",
                          joined(op.loop->ops, inside_json), "]");
    }
    if (!op.members.empty()) {
        const auto member_json = [](const LoweredOp& member) {
            return "{" + op_json(member) + "}";
        };
        return text + cat(", \"members\": [", joined(op.members, member_json), "]");
    }
    if (op.body.empty()) return text;
    const std::vector<Cost> costs = step_costs(op);
    const auto step_json = [&](const RegionStep& step) {
        return cat("{\"op\": ", quoted(step.def->name), ", \"node\": ", step.node,
                   ", \"inputs\": ", int_list(step.inputs),
                   ", \"outputs\": ", int_list(step.outputs),
                   ", \"attrs\": ", to_string(step.attrs), ", ",
                   cost_json(costs[static_cast<size_t>(&step - op.body.data())]), "}");
    };
    return text + cat(", \"inner\": [", joined(op.inner, view_json), "], \"body\": [",
                      joined(op.body, step_json), "]");
}

}  // namespace

std::string signature(const LoweredOp& op) {
    std::string text = op.def->name;
    for (const RegionStep& step : op.body)
        text += cat(" ", step.def->name, " ", to_string(step.attrs), " ", int_list(step.inputs),
                    int_list(step.outputs));
    if (op.body.empty()) text += " " + to_string(op.attrs);
    const auto operand_text = [&](const View& view) {
        const int64_t past = view.offset * dtype_size(view.dtype) % 16;
        return layout_text(view) + (past ? cat(" ", past, " bytes past 16") : "");
    };
    return text + cat(" (", joined(op.inputs, operand_text), ") -> (",
                      joined(op.outputs, operand_text), ")");
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

namespace {

std::string ops_text(const Plan& plan, const std::string& indent, const char* word) {
    std::string text;
    for (size_t i = 0; i < plan.ops.size(); i++) {
        const PlannedOp& op = plan.ops[i];
        text += cat(indent, "[", word, " ", index_text(i), "] ", op_text(op.op),
                    " kernel=", op.kernel->name, " lane=", op.lane, " waits=", int_list(op.waits),
                    op.kernel->workspace_bytes
                        ? cat(" scratch=temps+", op.scratch, "[", op.kernel->workspace_bytes, "]")
                        : "",
                    "\n",
                    op.body ? ops_text(*op.body, indent + "      ", "turn")
                            : body_text(op.op, indent + "      "));
    }
    return text;
}

}  // namespace

std::string to_text(const Plan& plan) {
    std::string text =
        cat("plan ", quoted(plan.name), " on ", kind_name(plan.device), ": ", plan.ops.size(),
            " launches, ", int_text(plan.cost().bytes), " bytes moved, peak ", plan.peak_bytes(),
            " bytes, math ", plan.math, plan.deterministic ? ", deterministic" : "", "\n");
    for (int r = 0; r < kSegments; r++)
        if (plan.segment_bytes[r])
            text += cat("  region ", segment_name(static_cast<Segment>(r)), " ",
                        plan.segment_bytes[r], " bytes",
                        static_cast<Segment>(r) == Segment::temps
                            ? cat(" (", plan.temps_without_reuse, " without reuse)")
                            : "",
                        "\n");
    for (const Value& value : plan.values) {
        const Place& place = plan.places[value.id];
        if (place.storage == kNone) continue;
        text +=
            cat("  %", value.id, " ", to_string(value.type), " ", quoted(value.name), " ",
                place.offset < 0 ? "shared" : cat(segment_name(place.segment), "+", place.offset),
                place.storage == value.id ? "" : cat(" in place of %", place.storage), "\n");
    }
    return text + ops_text(plan, "", "plan");
}

std::string to_json(const Plan& plan) {
    std::string regions, values;
    for (int r = 0; r < kSegments; r++)
        regions += cat(r ? ", " : "", quoted(segment_name(static_cast<Segment>(r))), ": ",
                       plan.segment_bytes[r]);
    for (const Value& value : plan.values) {
        const Place& place = plan.places[value.id];
        if (place.storage == kNone) continue;
        values += cat(
            values.empty() ? "" : ",\n", "\"", value.id, "\": {\"name\": ", quoted(value.name),
            ", \"region\": ", quoted(segment_name(place.segment)), ", \"offset\": ", place.offset,
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
                           ", \"scratch\": ", op.scratch,
                           ", \"scratch_bytes\": ", op.kernel->workspace_bytes, "}");
            },
            ",\n"),
        "\n]\n}\n");
}

}  // namespace aicf
