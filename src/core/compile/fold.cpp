// Constant folding, by running the constant subgraph on the CPU.
#include <algorithm>

#include "core/compile/passes.h"
#include "core/compile/target.h"

namespace aicf {

namespace {

Evaluator evaluator = nullptr;

constexpr double kMostFlops = 1 << 26;  // bounds compile time to about 0.1 s an op

/// The constant subgraph, as a graph of its own.
class Ahead {
  public:
    explicit Ahead(const Graph& graph)
        : graph_(graph), ahead_(graph.name), there_(graph.values.size(), kNone) {
        collect();
        choose();
        want();
    }

    /// The values that the rest of the graph reads: (id there, bytes).
    std::vector<std::pair<ValueId, std::vector<char>>> run() {
        std::vector<std::pair<ValueId, std::vector<char>>> results;
        ahead_.outputs.clear();
        for (ValueId id = 0; id < static_cast<ValueId>(there_.size()); id++)
            if (there_[id] != kNone && frontier_[there_[id]])
                ahead_.outputs.push_back({cat(id), there_[id], 1}), results.push_back({id, {}});
        if (results.empty()) return results;
        check(evaluator != nullptr, "fold: nobody evaluates graphs");
        std::vector<std::vector<char>> outputs = evaluator(ahead_);
        for (size_t i = 0; i < results.size(); i++) results[i].second = std::move(outputs[i]);
        return results;
    }

  private:
    void collect() {
        const std::vector<char> live = live_nodes(graph_), linked = linked_values(graph_);
        const auto known = [&](ValueId id) {
            return there_[id] != kNone || (graph_.value(id).role == Role::constant && !linked[id]);
        };
        const auto is_linked = [&](ValueId id) { return linked[id] != 0; };
        for (const Node& node : graph_.nodes) {
            if (!live[node.id] || node.op->effect ||
                std::any_of(node.outputs.begin(), node.outputs.end(), is_linked) ||
                !std::all_of(node.inputs.begin(), node.inputs.end(), known))
                continue;
            std::vector<ValueId> inputs;
            for (ValueId id : node.inputs) {
                if (there_[id] == kNone) there_[id] = ahead_.add_value(graph_.value(id));
                inputs.push_back(there_[id]);
            }
            const std::vector<ValueId> outputs = ahead_.emit(node.op_name, inputs, node.attrs);
            for (size_t i = 0; i < outputs.size(); i++) {
                there_[node.outputs[i]] = outputs[i];
                ahead_.outputs.push_back({cat(outputs[i]), outputs[i], 1});
            }
        }
    }

    /// Decides which nodes may be folded: all ops they lower to are portable, the work is bounded,
    /// and the result is no larger than its operands.
    void choose() {
        const Lowered lowered = lower(ahead_);
        std::vector<char> portable(ahead_.nodes.size(), 1);
        std::vector<double> flops(ahead_.nodes.size(), 0);
        is_view_.assign(ahead_.nodes.size(), 1);
        for (const LoweredOp& op : lowered.ops) {
            if (op.node < 0) continue;
            is_view_[op.node] = 0;
            portable[op.node] &= op.def->portable;
            flops[op.node] += cost_of(op).flops;
        }
        may_fold_.assign(ahead_.values.size(), 1);
        double left = kMostFlops;
        for (const Node& node : ahead_.nodes) {
            bool may = portable[node.id] != 0;
            int64_t reads = 0, writes = 0;
            std::vector<ValueId> roots;
            for (ValueId id : node.inputs) {
                may &= may_fold_[id] != 0;
                roots.push_back(lowered.views[id].value);
            }
            std::sort(roots.begin(), roots.end());
            roots.erase(std::unique(roots.begin(), roots.end()), roots.end());
            for (ValueId id : roots) reads += byte_count(lowered.values[id].type);
            for (ValueId id : node.outputs) writes += byte_count(ahead_.value(id).type);
            // Any value takes at least kArenaAlign bytes.
            may &= is_view_[node.id] || writes <= std::max(reads, kArenaAlign);
            may &= flops[node.id] <= left;
            if (may) left -= flops[node.id];
            for (ValueId id : node.outputs) may_fold_[id] = may;
        }
    }

    /// The constant values that other nodes read. A view costs nothing, so it stays a node and its
    /// source is folded instead.
    void want() {
        const auto made = [&](ValueId id) {
            return there_[id] != kNone && ahead_.value(there_[id]).producer >= 0 &&
                   may_fold_[there_[id]];
        };
        frontier_.assign(ahead_.values.size(), 0);
        const std::vector<char> live = live_nodes(graph_);
        for (const Node& node : graph_.nodes)
            if (live[node.id] && !made(node.outputs[0]))
                for (ValueId id : node.inputs)
                    if (made(id)) frontier_[there_[id]] = 1;
        for (const GraphOutput& output : graph_.outputs)
            if (made(output.value)) frontier_[there_[output.value]] = 1;
        for (const Assign& assign : graph_.assigns)
            if (made(assign.source)) frontier_[there_[assign.source]] = 1;
        for (size_t n = ahead_.nodes.size(); n-- > 0;) {
            const Node& node = ahead_.nodes[n];
            if (!is_view_[n] || !frontier_[node.outputs[0]]) continue;
            frontier_[node.outputs[0]] = 0;
            for (ValueId id : node.inputs) frontier_[id] = ahead_.value(id).producer >= 0;
        }
    }

    const Graph& graph_;
    Graph ahead_;
    std::vector<ValueId> there_;             // id in the subgraph, by value of the graph
    std::vector<char> is_view_;              // by subgraph node: it lowers to a view
    std::vector<char> may_fold_, frontier_;  // by subgraph value
};

}  // namespace

void register_evaluator(Evaluator given) { evaluator = given; }

void fold_constants(Graph& graph) {
    Substitution now(graph);
    for (auto& [id, bytes] : Ahead(graph).run()) {
        const Value value = graph.value(id);
        now.replace(id, graph.constant(value.type, std::move(bytes), value.name));
    }
    for (Node& node : graph.nodes) now.rename(node);
    now.finish(graph);
}

}  // namespace aicf
