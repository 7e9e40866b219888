// The IR verifier. Every rule fails closed: what is not known to be right is an error.
#include <algorithm>
#include <set>

#include "core/base/interrupt.h"
#include "core/graph/op.h"

namespace aicf {

bool Report::ok() const {
    return std::all_of(lines.begin(), lines.end(), [](const ReportLine& line) { return line.ok; });
}

void Report::require(const std::string& where) const {
    if (ok()) return;
    raise(ErrorKind::graph, where, ": the graph does not verify; every [FAIL] line needs mending",
          failures());
}

std::string Report::failures() const {
    constexpr size_t kLines = 6, kText = 300;  // to fit into a message
    std::string text;
    size_t count = 0;
    for (const ReportLine& line : lines)
        if (!line.ok && ++count <= kLines)
            text += cat("\n[FAIL] [", line.area, "] ", line.text.substr(0, kText),
                        line.text.size() > kText ? "..." : "");
    return count <= kLines ? text : cat(text, "\nand ", count - kLines, " more [FAIL] lines");
}

std::string Report::text() const {
    std::string text;
    for (const ReportLine& line : lines)
        text += cat(line.ok ? "[OK] [" : "[FAIL] [", line.area, "] ", line.text, "\n");
    return text;
}

namespace {

class Verifier {
  public:
    explicit Verifier(const Graph& graph) : graph_(graph) {}

    Report run() {
        const bool usable = check_ids();
        if (!usable) return report_;
        check_ops();
        check_topology();
        check_shapes();
        check_roles();
        check_effects();
        check_links();
        note_unused();
        return report_;
    }

  private:
    std::string node_text(const Node& node) const {
        return cat("node ", node.id, " ", node.op_name,
                   node.where.empty() ? "" : cat(" (", node.where, ")"));
    }
    template <class... Parts>
    void fail(const Parts&... parts) {
        failures_++;
        report_.fail("ir", cat(parts...));
    }
    void close(const std::string& text) {  // the area's OK line, if it had no failures
        if (failures_ == 0) report_.pass("ir", text);
        failures_ = 0;
    }
    bool exists(ValueId id) const {
        return id >= 0 && id < static_cast<ValueId>(graph_.values.size());
    }

    bool check_ids() {
        for (const Node& node : graph_.nodes) {
            for (const auto* list : {&node.inputs, &node.outputs})
                for (ValueId id : *list)
                    if (!exists(id))
                        fail(node_text(node), " names %", id, ", which is not in the graph");
            if (node.forward >= static_cast<int>(graph_.nodes.size()))
                fail(node_text(node), " belongs to node ", node.forward,
                     ", which is not in the graph");
        }
        for (const GraphOutput& output : graph_.outputs)
            if (!exists(output.value))
                fail("output \"", output.name, "\" names %", output.value,
                     ", which is not in the graph");
        for (const Assign& assign : graph_.assigns)
            if (!exists(assign.target) || !exists(assign.source))
                fail("assign %", assign.target, " = %", assign.source,
                     " names a value that is not in the graph");
        for (const Gradient& g : graph_.gradients)
            if (!exists(g.loss) || !exists(g.value) || !exists(g.grad) ||
                (g.seed != kNone && !exists(g.seed)))
                fail("gradient of %", g.value, " names a value that is not in the graph");
        const bool usable = failures_ == 0;
        failures_ = 0;
        return usable;
    }

    void check_ops() {
        std::set<std::string> names;
        for (const Node& node : graph_.nodes) {
            if (!node.op) fail("ops: ", node_text(node), ": unknown op \"", node.op_name, "\"");
            names.insert(node.op_name);
        }
        close(cat("ops OK: ", graph_.nodes.size(), " nodes of ", names.size(), " known ops"));
    }

    void check_topology() {
        std::vector<int> producer(graph_.values.size(), -1);
        std::vector<char> reported(graph_.values.size(), 0), made(graph_.values.size(), 0);
        for (const Node& node : graph_.nodes)
            for (ValueId id : node.outputs) made[id] = 1;
        for (const Value& value : graph_.values)
            producer[value.id] = value.role == Role::temp ? -1 : -2;  // -2: leaf
        for (const Node& node : graph_.nodes) {
            for (size_t i = 0; i < node.inputs.size(); i++) {
                const ValueId id = node.inputs[i];
                if (producer[id] != -1 || reported[id]) continue;
                reported[id] = 1;
                const bool later = made[id] != 0;
                fail(
                    "topo: ", node_text(node), " reads ", graph_.describe(id), " \"",
                    graph_.value(id).name, "\", ",
                    later
                        ? "which a later node produces"
                        : "which no node produces and which is no input, param, state or constant");
            }
            for (ValueId id : node.outputs) {
                if (producer[id] == -2)
                    fail("topo: ", node_text(node), " writes the leaf ", graph_.describe(id));
                else if (producer[id] >= 0)
                    fail("topo: ", graph_.describe(id), " has two producers: node ", producer[id],
                         " and ", node_text(node));
                else
                    producer[id] = node.id;
                if (graph_.value(id).producer != node.id && producer[id] == node.id)
                    fail("topo: ", graph_.describe(id), " records producer ",
                         graph_.value(id).producer, "; need ", node.id);
            }
        }
        for (const GraphOutput& output : graph_.outputs)
            if (producer[output.value] == -1)
                fail("topo: output \"", output.name, "\" is ", graph_.describe(output.value),
                     ", which no node produces");
        for (const Assign& assign : graph_.assigns)
            if (producer[assign.source] == -1)
                fail("topo: ", graph_.describe(assign.target), " is assigned ",
                     graph_.describe(assign.source), ", which no node produces");
        close("topo OK: single-producer SSA + use-after-define, no dangling operand");
    }

    void check_shapes() {
        std::set<std::string> names;
        for (size_t n = 0; n < graph_.nodes.size(); n++) {
            poll();  // its callback may append nodes
            const Node& node = graph_.nodes[n];
            if (!node.op) continue;
            names.insert(node.op_name);
            try {
                const Attrs attrs = complete_attrs(node.op->attrs, node.attrs, node.op->fn);
                if (!(attrs == node.attrs))
                    fail("shape: ", node_text(node), " has attributes ", to_string(node.attrs),
                         "; need ", to_string(attrs));
                std::vector<Type> types;
                for (ValueId id : node.inputs) types.push_back(graph_.value(id).type);
                check_arity(node.op->inputs, types.size(), node.op->fn);
                const InferContext context(node.op->fn.c_str(), node.op->inputs, std::move(types),
                                           node.inputs, attrs);
                const std::vector<Type> results = node.op->infer(context);
                if (results.size() != node.outputs.size())
                    fail("shape: ", node_text(node), " has ", node.outputs.size(),
                         " outputs; need ", results.size());
                for (size_t i = 0; i < std::min(results.size(), node.outputs.size()); i++)
                    if (!(results[i] == graph_.value(node.outputs[i]).type))
                        fail("shape: ", node_text(node), ": output ", i, " is ",
                             graph_.describe(node.outputs[i]), "; need ", to_string(results[i]));
            } catch (const Error& error) {
                fail("shape: ", node_text(node), ": ", error.what());
            }
        }
        std::string list;
        for (const std::string& name : names) list += (list.empty() ? "" : "/") + name;
        close("shape consistency OK: " + list);
    }

    void check_roles() {
        std::set<std::string> leaf_names;
        std::set<std::pair<ValueId, int>> moments;
        for (const Value& value : graph_.values) {
            const bool leaf = value.role != Role::temp;
            if (value.role == Role::input || value.role == Role::param || value.role == Role::state)
                if (!leaf_names.insert(value.name).second)
                    fail("role: two leaves are named \"", value.name, "\"");
            if (leaf && value.role != Role::input)
                if (const std::string problem = init_problem(value.init, value.type, value.role);
                    !problem.empty())
                    fail("role: ", graph_.describe(value.id), " \"", value.name, "\" has ",
                         problem);
            if (value.moment_of == kNone) continue;
            if (value.role != Role::state || !exists(value.moment_of) ||
                graph_.value(value.moment_of).role != Role::param ||
                !(graph_.value(value.moment_of).type == value.type) || value.moment_slot < 0 ||
                value.moment_slot > 7)
                fail("role: ", role_name(value.role), " \"", value.name, "\" is moment ",
                     value.moment_slot, " of %", value.moment_of,
                     "; need a state, and a param of its type");
            if (!moments.emplace(value.moment_of, value.moment_slot).second)
                fail("role: state \"", value.name, "\" is moment ", value.moment_slot, " of %",
                     value.moment_of, ", as another state is; need one each");
        }
        std::set<std::string> output_names;
        for (const GraphOutput& output : graph_.outputs)
            if (!output_names.insert(output.name).second || output.keep < 1)
                fail("role: output \"", output.name, "\" is named twice or keeps ", output.keep,
                     " steps");
        std::set<ValueId> targets;
        for (const Assign& assign : graph_.assigns) {
            const Value &to = graph_.value(assign.target), &from = graph_.value(assign.source);
            if (to.role != Role::param && to.role != Role::state)
                fail("alias: assign to ", graph_.describe(to.id), ", a ", role_name(to.role),
                     "; need a param or a state");
            if (!targets.insert(assign.target).second)
                fail("alias: \"", to.name, "\" ", graph_.describe(to.id), " has two writers");
            if (!(to.type == from.type))
                fail("alias: assign of ", graph_.describe(from.id), " to ", graph_.describe(to.id),
                     "; need equal types");
        }
        close(cat("roles OK: unique names, ", graph_.assigns.size(),
                  " assigns with one writer each"));
    }

    void check_effects() {
        std::vector<char> read(graph_.values.size(), 0);
        for (const Node& node : graph_.nodes)
            for (ValueId id : node.inputs) read[id] = 1;
        for (const GraphOutput& output : graph_.outputs) read[output.value] = 1;
        for (const Assign& assign : graph_.assigns) read[assign.source] = 1;
        int effects = 0;
        for (const Node& node : graph_.nodes) {
            if (!node.op || !node.op->effect) continue;
            effects++;
            for (ValueId id : node.outputs)
                if (!read[id])
                    fail("effect: ", node_text(node), " makes ", graph_.describe(id), " \"",
                         graph_.value(id).name, "\", which nobody assigns or reads");
        }
        close(cat("effects OK: ", effects, " state updates, each assigned or read"));
    }

    /// By value, a bit mask of the losses, 64 at a time, that depend on it.
    std::vector<uint64_t> influence(std::span<const ValueId> losses) const {
        std::vector<uint64_t> on(graph_.values.size(), 0);
        for (size_t i = 0; i < losses.size(); i++) on[losses[i]] |= uint64_t{1} << i;
        for (size_t n = graph_.nodes.size(); n-- > 0;) {
            uint64_t any = 0;
            for (ValueId id : graph_.nodes[n].outputs) any |= on[id];
            for (ValueId id : graph_.nodes[n].inputs) on[id] |= any;
        }
        return on;
    }

    /// By gradient, whether its loss depends on its value; losses are few.
    std::vector<char> dependent() const {
        std::vector<ValueId> losses;
        for (const Gradient& g : graph_.gradients) losses.push_back(g.loss);
        std::sort(losses.begin(), losses.end());
        losses.erase(std::unique(losses.begin(), losses.end()), losses.end());
        std::vector<char> result(graph_.gradients.size(), 0);
        for (size_t first = 0; first < losses.size(); first += 64) {
            const auto part =
                std::span(losses).subspan(first, std::min<size_t>(64, losses.size() - first));
            const std::vector<uint64_t> on = influence(part);
            for (size_t i = 0; i < result.size(); i++) {
                const Gradient& g = graph_.gradients[i];
                const auto at = std::lower_bound(part.begin(), part.end(), g.loss);
                if (at != part.end() && *at == g.loss)
                    result[i] = on[g.value] >> (at - part.begin()) & 1;
            }
        }
        return result;
    }

    /// A recorded gradient's loss must depend on its value, and its producer must differentiate a
    /// node, unless it is the loss's own.
    void check_links() {
        int linked = 0;
        for (const Node& node : graph_.nodes) {
            if (node.forward < 0) continue;
            linked++;
            if (node.forward >= node.id)
                fail("links: ", node_text(node), " differentiates node ", node.forward,
                     ", which does not come before it");
        }
        const std::vector<char> depends = dependent();
        for (size_t i = 0; i < graph_.gradients.size(); i++) {
            const Gradient& g = graph_.gradients[i];
            if (!depends[i])
                fail("links: gradient ", graph_.describe(g.grad), ": loss %", g.loss,
                     " does not depend on %", g.value);
            if (!is_float(graph_.value(g.loss).type.dtype))
                fail("links: gradient ", graph_.describe(g.grad), ": loss ",
                     graph_.describe(g.loss), " is no float");
            if (!(graph_.value(g.grad).type == graph_.value(g.value).type))
                fail("links: gradient ", graph_.describe(g.grad), " belongs to ",
                     graph_.describe(g.value), "; need equal types");
            const Value& grad = graph_.value(g.grad);
            if (grad.producer < 0) {
                if (grad.role == Role::temp)
                    fail("links: gradient ", graph_.describe(g.grad), " of %", g.value,
                         " has no producer");
                continue;
            }
            if (g.grad == g.seed) continue;  // the seed itself
            const Node& node = graph_.nodes[grad.producer];
            if (node.forward < 0)
                fail("links: gradient ", graph_.describe(g.grad), " comes from ", node_text(node),
                     ", which differentiates no node");
        }
        if (!graph_.gradients.empty())
            close(cat("links OK: ", graph_.gradients.size(), " gradients and ", linked,
                      " backward nodes are connected to the forward graph"));
        failures_ = 0;
    }

    void note_unused() {
        const std::vector<char> live = live_nodes(graph_);
        std::vector<char> read(graph_.values.size(), 0);
        for (const Node& node : graph_.nodes)
            if (live[node.id])
                for (ValueId id : node.inputs) read[id] = 1;
        for (const GraphOutput& output : graph_.outputs) read[output.value] = 1;
        for (const Assign& assign : graph_.assigns) read[assign.source] = read[assign.target] = 1;
        std::string unused;
        for (const Value& value : graph_.values)
            if ((value.role == Role::input || value.role == Role::param) && !read[value.id])
                unused +=
                    cat(unused.empty() ? "" : ", ", role_name(value.role), " \"", value.name, "\"");
        if (!unused.empty()) report_.pass("ir", "unused: " + unused);
        const auto dead = std::count(live.begin(), live.end(), 0);
        if (dead)
            report_.pass("ir", cat("dead: ", dead,
                                   " nodes reach no output and no state; they are not lowered"));
    }

    const Graph& graph_;
    Report report_;
    int failures_ = 0;
};

}  // namespace

Report verify(const Graph& graph) { return Verifier(graph).run(); }

}  // namespace aicf
