#include "core/passes.h"

#include <algorithm>

namespace aicf {

namespace {

/// Merges nodes that say the same of the same values. Effects and random nodes stay apart.
void merge_common(Graph& graph) {
    std::vector<ValueId> now(graph.values.size());
    for (size_t i = 0; i < now.size(); i++) now[i] = static_cast<ValueId>(i);
    std::vector<const Node*> kept;
    std::vector<int> merged(graph.nodes.size());  // by node: what computes its outputs now
    for (Node& node : graph.nodes) {
        merged[node.id] = node.id;
        if (node.forward >= 0) node.forward = merged[node.forward];
        for (ValueId& id : node.inputs) id = now[id];
        if (node.op->effect) continue;
        const auto same = [&](const Node* other) {
            return other->op == node.op && other->inputs == node.inputs &&
                   other->attrs == node.attrs;
        };
        const auto at = std::find_if(kept.begin(), kept.end(), same);
        if (at == kept.end()) {
            kept.push_back(&node);
            continue;
        }
        merged[node.id] = (*at)->id;
        for (size_t i = 0; i < node.outputs.size(); i++) now[node.outputs[i]] = (*at)->outputs[i];
    }
    for (GraphOutput& output : graph.outputs) output.value = now[output.value];
    for (Assign& assign : graph.assigns) assign.source = now[assign.source];
    for (Gradient& gradient : graph.gradients) {
        gradient.grad = now[gradient.grad];
        gradient.loss = now[gradient.loss];
        gradient.value = now[gradient.value];
    }
}

}  // namespace

const std::vector<Pass>& all_passes() {
    static const std::vector<Pass> passes = {
        {"cse", true, merge_common, nullptr},        {"epilogue", true, nullptr, fuse_epilogues},
        {"fuse", true, nullptr, fuse_pointwise},     {"optimizers", true, nullptr, fuse_optimizers},
        {"siblings", true, nullptr, group_siblings},
        {"numbers", true, nullptr, fuse_numbers},
    };
    return passes;
}

std::vector<const Pass*> select_passes(const std::vector<std::string>& names) {
    std::vector<const Pass*> result;
    for (const std::string& name : names) {
        std::string known;
        const Pass* found = nullptr;
        for (const Pass& pass : all_passes()) {
            known += (known.empty() ? "" : ", ") + pass.name;
            if (pass.name == name) found = &pass;
        }
        if (!found)
            raise(ErrorKind::graph, "passes: unknown pass \"", name, "\"; need one of ", known);
        result.push_back(found);
    }
    return result;
}

void run_passes(Graph& graph, const std::vector<const Pass*>& passes) {
    for (const Pass* pass : passes) {
        if (!pass->on_graph) continue;
        pass->on_graph(graph);
        verify(graph).require("after pass " + pass->name);
    }
}

void run_passes(Lowered& lowered, const std::vector<const Pass*>& passes) {
    for (const Pass* pass : passes) {
        if (!pass->on_lowered) continue;
        pass->on_lowered(lowered);
        verify(lowered).require("after pass " + pass->name);
    }
}

}  // namespace aicf
