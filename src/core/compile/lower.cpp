// Lowering: each IR node by its op's rule; outputs and assigns become plain data flow.
#include <algorithm>

#include "core/base/interrupt.h"
#include "core/graph/custom.h"
#include "core/graph/op.h"

namespace aicf {

namespace {

LoweredOp copy_op(const View& from, const View& to) {
    return {find_lowered("copy"), {from}, {to}, {}, -1};
}

/// Gives each output its own storage, readable after the step.
void lower_outputs(Lowered& lowered, const Graph& graph) {
    std::vector<char> taken(lowered.values.size(), 0);
    std::vector<LoweredOp>
        early;  // copies of leaves, which must read the content at the start of the step
    for (const GraphOutput& output : graph.outputs) {
        const View view = lowered.views[output.value];
        const Value root = lowered.values[view.value];  // a copy: append_value moves the values
        const Type type = graph.value(output.value).type;
        Lowered::Output result{output.name, view.value, output.keep};
        if (output.keep > 1) {
            Dims shape = type.shape;
            shape.insert(0, output.keep);
            result.ring =
                append_value(lowered, {type.dtype, shape}, "output." + output.name + ".ring");
            result.position =
                append_value(lowered, {DType::i64, {}}, "output." + output.name + ".position");
            for (ValueId id : {result.ring, result.position}) lowered.values[id].role = Role::ring;
            const ValueId ring = append_value(lowered, {type.dtype, shape}, "ring");
            const ValueId position = append_value(lowered, {DType::i64, {}}, "position");
            lowered.ops.push_back(
                {find_lowered("ring_push"),
                 {view, lowered.views[result.ring], lowered.views[result.position]},
                 {lowered.views[ring], lowered.views[position]},
                 {},
                 -1});
            lowered.assigns.push_back({result.ring, ring});
            lowered.assigns.push_back({result.position, position});
            result.value = result.ring;
        } else if (root.role != Role::temp || taken[view.value] || !view.whole(root.type) ||
                   !(root.type == type)) {  // a reshape: the type is the storage's
            result.value = append_value(lowered, type, output.name);
            auto& list = root.role == Role::temp ? lowered.ops : early;
            list.push_back(copy_op(view, lowered.views[result.value]));
        }
        taken.resize(lowered.values.size(), 0);
        taken[result.value] = 1;
        lowered.outputs.push_back(result);
    }
    lowered.ops.insert(lowered.ops.begin(), early.begin(), early.end());
}

/// Makes the source of every assign a value that an op writes and no other assign or output claims,
/// so that the plan can place it on the target's storage. Inserts copies where needed.
void lower_assigns(Lowered& lowered, const Graph& graph) {
    std::vector<char> claimed(lowered.values.size(), 0);
    for (const Lowered::Output& output : lowered.outputs) claimed[output.value] = 1;
    std::vector<LoweredOp> early;
    for (const Assign& assign : graph.assigns) {
        View view = lowered.views[assign.source];
        const Value root = lowered.values[view.value];
        if (root.role == Role::temp && view.whole(root.type) && !claimed[view.value]) {
            claimed[view.value] = 1;
            lowered.assigns.push_back({assign.target, view.value});
            continue;
        }
        const Type type = graph.value(assign.target).type;
        if (root.role == Role::param ||
            root.role == Role::state) {  // read before it is overwritten
            const View kept = lowered.views[append_value(lowered, type, "kept")];
            early.push_back(copy_op(view, kept));
            view = kept;
        }
        const ValueId next = append_value(lowered, type, graph.value(assign.target).name);
        lowered.ops.push_back(copy_op(view, lowered.views[next]));
        lowered.assigns.push_back({assign.target, next});
        claimed.resize(lowered.values.size(), 0);
        claimed[next] = 1;
    }
    lowered.ops.insert(lowered.ops.begin(), early.begin(), early.end());
}

/// Writing in place is legal if every read of the target precedes the write or is its in-place
/// operand (no WAR hazard); otherwise the new value is copied over at the end.
void settle_assigns(Lowered& lowered) {
    std::vector<LoweredOp> late;
    std::vector<int> producers(lowered.values.size(), -1);
    std::vector<std::vector<int>> readers(lowered.values.size());
    for (int i = 0; i < static_cast<int>(lowered.ops.size()); i++) {
        for (const View& view : lowered.ops[i].outputs) producers[view.value] = i;
        for (const View& view : lowered.ops[i].inputs)
            if (auto& list = readers[view.value]; list.empty() || list.back() != i)
                list.push_back(i);
    }
    for (Assign& assign : lowered.assigns) {
        const int producer = producers[assign.source];
        check(producer >= 0, "lower: an assign's source has no producer");
        bool legal = true;
        const std::vector<int>& reading = readers[assign.target];
        for (auto at = std::lower_bound(reading.begin(), reading.end(), producer);
             at != reading.end(); ++at) {
            const int i = *at;
            const LoweredOp& op = lowered.ops[i];
            for (int j = 0; j < static_cast<int>(op.inputs.size()); j++) {
                if (op.inputs[j].value != assign.target) continue;
                bool in_place = false;
                for (int out = 0; i == producer && out < static_cast<int>(op.outputs.size()); out++)
                    in_place |= op.outputs[out].value == assign.source && may_overwrite(op, out, j);
                legal &= in_place;
            }
        }
        if (legal) continue;
        const Value target = lowered.values[assign.target];
        const ValueId next = append_value(lowered, target.type, target.name);
        View from = lowered.views[next];  // whole, maybe reshaped
        from.value = assign.source;
        late.push_back(copy_op(from, lowered.views[next]));
        assign.source = next;
    }
    lowered.ops.insert(lowered.ops.end(), late.begin(), late.end());
}

}  // namespace

static bool calls_host(const LoweredOp& op) {
    return is_host_call(*op.def) ||
           (op.loop && std::any_of(op.loop->ops.begin(), op.loop->ops.end(), calls_host));
}

std::vector<char> before_host_calls(const Lowered& lowered) {
    const size_t count = lowered.ops.size();
    std::vector<char> first(count, 0);
    for (size_t i = 0; i < count; i++) first[i] = calls_host(lowered.ops[i]);
    if (std::count(first.begin(), first.end(), 0) == std::ssize(first)) return {};
    std::vector<ValueId> target(lowered.values.size(), kNone);
    std::vector<std::vector<size_t>> producers(lowered.values.size()), readers = producers;
    for (const Assign& assign : lowered.assigns) target[assign.source] = assign.target;
    for (size_t i = 0; i < count; i++) {
        for (const View& view : lowered.ops[i].outputs) producers[view.value].push_back(i);
        for (const View& view : lowered.ops[i].inputs) readers[view.value].push_back(i);
    }
    for (size_t i = count; i-- > 0;) {  // reverse topological order
        if (!first[i]) continue;
        for (const View& view : lowered.ops[i].inputs)
            for (size_t producer : producers[view.value]) first[producer] = 1;
        for (const View& view : lowered.ops[i].outputs)
            if (target[view.value] != kNone)
                for (size_t reader : readers[target[view.value]]) first[reader] = 1;
    }
    return first;
}

void host_calls_first(Lowered& lowered) {
    const std::vector<char> first = before_host_calls(lowered);
    if (first.empty()) return;
    std::vector<LoweredOp> ordered;
    for (const char wanted : {1, 0})
        for (size_t i = 0; i < first.size(); i++)
            if (first[i] == wanted) ordered.push_back(std::move(lowered.ops[i]));
    lowered.ops = std::move(ordered);
}

Lowered lower(const Graph& graph, const std::string& math, int tensor_cores) {
    Lowered lowered;
    lowered.name = graph.name;
    lowered.values = graph.values;
    for (const Value& value : graph.values) lowered.views.push_back(whole_view(value));
    const std::vector<char> live = live_nodes(graph);
    std::vector<char> used(graph.values.size(), 0);
    for (const GraphOutput& output : graph.outputs) used[output.value] = 1;
    for (const Assign& assign : graph.assigns) used[assign.source] = 1;
    for (const Node& node : graph.nodes)
        if (live[node.id])
            for (ValueId id : node.inputs) used[id] = 1;
    for (const Node& node : graph.nodes) {
        if (!live[node.id]) continue;
        poll();
        LowerContext context(lowered, graph, node, used, {math, tensor_cores, lower});
        node.op->lower(context);
        if (node.op->effect && node.inputs.size() > 1 &&
            graph.value(node.inputs[0]).role == Role::param)
            lowered.param_grads.emplace_back(node.inputs[0], lowered.views[node.inputs[1]].value);
    }
    lower_outputs(lowered, graph);
    lower_assigns(lowered, graph);
    settle_assigns(lowered);
    for (LoweredOp& op : lowered.ops)  // 16-bit and f64 products have no modes
        if (op.attrs.find("math") && op.inputs[0].dtype == DType::f32 && math != "mixed")
            op.attrs.set("math", math);
    for (LoweredOp& op : lowered.ops)
        if (anchor(op).gemm)
            set_product_order(op, tensor_cores);
        else if (op.def->attention)
            op.attrs.set("order", attention_order(op, tensor_cores));
    return lowered;
}

}  // namespace aicf
