#include "core/compile/passes.h"

#include <algorithm>
#include <numeric>
#include <unordered_map>

#include "core/base/near.h"
#include "core/compile/plan.h"

namespace aicf {

Substitution::Substitution(const Graph& graph) : now_(graph.values.size()) {
    std::iota(now_.begin(), now_.end(), 0);
}

void Substitution::rename(Node& node) const {
    for (ValueId& id : node.inputs) id = (*this)[id];
}

void Substitution::finish(Graph& graph) const {
    for (GraphOutput& output : graph.outputs) output.value = (*this)[output.value];
    for (Assign& assign : graph.assigns) assign.source = (*this)[assign.source];
    for (Gradient& gradient : graph.gradients) {
        gradient.loss = (*this)[gradient.loss];
        gradient.value = (*this)[gradient.value];
        if (gradient.seed != kNone) gradient.seed = (*this)[gradient.seed];
        // If CSE merged a gradient into a forward node, the record keeps the backward node, which
        // names the node it differentiates.
        const ValueId grad = (*this)[gradient.grad];
        const int producer = graph.value(grad).producer;
        if (producer < 0 || graph.nodes[producer].forward >= 0 || grad == gradient.seed)
            gradient.grad = grad;
    }
}

std::vector<char> linked_values(const Graph& graph) {
    std::vector<char> linked(graph.values.size(), 0);
    for (const Gradient& gradient : graph.gradients)
        linked[gradient.loss] = linked[gradient.value] = 1;
    return linked;
}

namespace {

template <class T>
void append_bytes(std::string& key, const T& item) {
    key.append(reinterpret_cast<const char*>(&item), sizeof item);
}

/// A node's hash key: op, inputs and attributes, numbers by their bits.
std::string key_of(const Node& node) {
    std::string key;
    append_bytes(key, node.op);
    append_bytes(key, node.inputs.size());
    for (ValueId id : node.inputs) append_bytes(key, id);
    for (const auto& [name, attr] : node.attrs.items()) {
        key.append(name.c_str(), name.size() + 1);
        append_bytes(key, attr.index());
        const auto append = [&key](const auto& value) {
            if constexpr (std::is_same_v<std::decay_t<decltype(value)>, Body>) {
                append_bytes(key, value.get());
            } else if constexpr (requires { value.data(); }) {
                append_bytes(key, value.size());
                key.append(reinterpret_cast<const char*>(value.data()),
                           value.size() * sizeof(*value.data()));
            } else {
                append_bytes(key, value);
            }
        };
        std::visit(append, attr);
    }
    return key;
}

/// Common subexpression elimination: merges equal constants and equal nodes. Nodes with effects are
/// kept; random nodes differ by their stream.
void merge_common(Graph& graph) {
    Substitution now(graph);
    std::unordered_map<std::string_view, std::vector<ValueId>> constants;
    for (const Value& value : graph.values) {
        if (value.role != Role::constant) continue;
        auto& alike = constants[{value.init.bytes->data(), value.init.bytes->size()}];
        const auto same = [&](ValueId id) { return graph.value(id).type == value.type; };
        const auto at = std::find_if(alike.begin(), alike.end(), same);
        if (at == alike.end())
            alike.push_back(value.id);
        else
            now.replace(value.id, *at);
    }
    std::unordered_map<std::string, const Node*> kept;
    std::vector<int> merged(graph.nodes.size());  // by node: the one it was merged into
    for (Node& node : graph.nodes) {
        merged[node.id] = node.id;
        if (node.forward >= 0) node.forward = merged[node.forward];
        now.rename(node);
        if (node.op->effect) continue;
        const auto [at, fresh] = kept.emplace(key_of(node), &node);
        if (fresh) continue;
        const Node& other = *at->second;
        merged[node.id] = other.id;
        for (size_t i = 0; i < node.outputs.size(); i++)
            now.replace(node.outputs[i], other.outputs[i]);
    }
    now.finish(graph);
}

}  // namespace

const std::vector<Pass>& all_passes() {
    static const std::vector<Pass> passes = {
        {"fold", true, fold_constants, nullptr},  // makes constants for simplify
        {"simplify", true, simplify, nullptr},    // makes nodes equal
        {"cse", true, merge_common, nullptr},     // leaves true reader counts
        {"reduce_prepass", true, simplify_reductions,
         nullptr},  // may move a reduction's only reader
        {"shapes", true, nullptr, adopt_product_shapes},
        {"clone_upcasts", true, nullptr,
         [](Lowered& lowered, const Target&) { clone_upcasts(lowered); }},
        {"epilogue", true, nullptr, fuse_products},
        {"reductions", true, nullptr,
         fuse_reductions},  // before fuse merges their single-use producers
        {"rows", true, nullptr, fuse_rows},
        {"fuse", true, nullptr, fuse_pointwise},
        {"copies", true, nullptr, elide_copies},
        {"outputs", true, nullptr, fuse_outputs},
        {"optimizers", true, nullptr, fuse_updates},
        {"merge_upcasts", true, nullptr,
         [](Lowered& lowered, const Target&) { merge_upcasts(lowered); }},
        {"loops", true, nullptr, fuse_loops},
        {"block", true, nullptr, fuse_step},
        {"tails", true, nullptr, fuse_tails},  // of steps that are no sequence
        {"chains", true, nullptr, fuse_chains},
        {"losses", true, nullptr, fuse_losses},
        {"row_sums", true, nullptr, fuse_row_sums},
        {"update_epilogues", true, nullptr, fuse_update_epilogues},
        {"cuts", true, nullptr, leave_cuts},  // of updates that are no epilogues
        {"horizontal", true, nullptr, fuse_horizontally},
        {"scalars", true, nullptr, fuse_scalars},
        {"concats", true, nullptr, [](Lowered& lowered, const Target&) { elide_concats(lowered); }},
    };
    return passes;
}

std::vector<const Pass*> select_passes(const std::vector<std::string>& names) {
    std::vector<const Pass*> result;
    for (const std::string& name : names) {
        std::string known;
        std::vector<std::string> all;
        const Pass* found = nullptr;
        for (const Pass& pass : all_passes()) {
            known += (known.empty() ? "" : ", ") + pass.name;
            all.push_back(pass.name);
            if (pass.name == name) found = &pass;
        }
        if (!found)
            raise(ErrorKind::graph, "passes: unknown pass \"", name, "\"", is_it(name, all),
                  "; need one of ", known);
        result.push_back(found);
    }
    return result;
}

}  // namespace aicf
