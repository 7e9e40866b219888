// Bit-exact rewrites of single nodes, as a table with a proof sketch for each, over signed zeros,
// infinities, subnormals and wrapping integers; a NaN stays a NaN.
//
// Missing because inexact: x + 0 and 0 - x change the sign of a zero; x * 0 and x - x are not 0 for
// infinities and NaN.
#include <algorithm>
#include <cstring>

#include "core/compile/passes.h"

namespace aicf {

namespace {

bool is_order_free(const OpDef& op, DType dtype) {
    const LoweredDef* def = find_lowered(op.lowered);
    const auto orders = [](const AttrDef& attr) { return attr.name == "order"; };
    return !is_float(dtype) || std::none_of(def->attrs.begin(), def->attrs.end(), orders);
}

/// Sum, Mean, Max, Min over `axes`.
bool is_reduction(const Node& node) {
    const LoweredDef* def = find_lowered(node.op->lowered);
    return def && def->reduction && node.attrs.find("axes") && node.attrs.find("keepdims");
}

std::vector<char> reduced_axes(const Node& node, const Dims& shape) {
    std::vector<char> reduced(static_cast<size_t>(shape.rank()), 0);
    for (int64_t axis : node.attrs.ints("axes")) reduced[axis < 0 ? axis + shape.rank() : axis] = 1;
    return reduced;
}

/// A node and the actions of a rule. Its inputs are already rewritten.
class Site {
  public:
    Site(Graph& graph, Node& node, Substitution& now, const std::vector<char>& linked)
        : graph_(graph), node_(node), now_(now), linked_(linked) {}

    const std::string& op() const { return node_.op_name; }
    const Attrs& attrs() const { return node_.attrs; }
    const Node& node() const { return node_; }
    ValueId in(int i) const { return node_.inputs[i]; }
    int inputs() const { return static_cast<int>(node_.inputs.size()); }
    const Type& type(ValueId id) const { return graph_.value(id).type; }
    const Type& out() const { return type(node_.outputs[0]); }

    /// The producer of a value, if it is of that op.
    const Node* made_by(ValueId id, std::string_view op) const {
        const int producer = graph_.value(id).producer;
        return producer >= 0 && graph_.nodes[producer].op_name == op ? &graph_.nodes[producer]
                                                                     : nullptr;
    }
    const Node* maker(ValueId id) const {
        const int producer = graph_.value(id).producer;
        return producer >= 0 ? &graph_.nodes[producer] : nullptr;
    }

    /// Whether a value is a constant, or a view of one, whose elements all have these bits.
    bool all_are(ValueId id, double number) const {
        for (;;) {
            const Node* view = maker(id);
            if (!view) break;
            if (view->op_name != "BroadcastTo" && view->op_name != "Reshape" &&
                view->op_name != "Transpose")
                return false;
            id = view->inputs[0];
        }
        const Value& value = graph_.value(id);
        if (value.role != Role::constant || linked_[id]) return false;
        const std::vector<char> bytes = number_bytes(value.type.dtype, number);
        const std::vector<char>& all = *value.init.bytes;
        for (size_t at = 0; at < all.size(); at += bytes.size())
            if (std::memcmp(&all[at], bytes.data(), bytes.size()) != 0) return false;
        return true;
    }

    /// Replaces the result by a value, broadcast if smaller.
    bool becomes(ValueId id) {
        if (!(type(id).shape == out().shape))
            return becomes("BroadcastTo", {id}, {{"shape", out().shape.vector()}});
        now_.replace(node_.outputs[0], id);
        return true;
    }
    /// Replaces the node by another that defines the same id.
    bool becomes(const std::string& op, std::vector<ValueId> inputs, const Attrs& attrs = {}) {
        node_.op = find_op(op);
        node_.op_name = op;
        node_.inputs = std::move(inputs);
        node_.attrs = complete_attrs(node_.op->attrs, attrs, node_.op->fn);
        return true;
    }
    /// Replaces each result by the operand of the same position.
    bool becomes_operands() {
        for (size_t i = 0; i < node_.outputs.size(); i++)
            now_.replace(node_.outputs[i], node_.inputs[i]);
        return true;
    }
    bool becomes_reshaped(ValueId id) {
        if (type(id).shape == out().shape) return becomes(id);
        return becomes("Reshape", {id}, {{"shape", out().shape.vector()}});
    }

  private:
    Graph& graph_;
    Node& node_;
    Substitution& now_;
    const std::vector<char>& linked_;
};

/// Whether the cast is exact, so that a further cast can start from its operand. No float casts to
/// an integer exactly (-0).
bool holds(DType to, DType from) {
    if (to == from || from == DType::boolean) return true;
    if (is_integer(from)) {
        const auto [low, high] = range_of(from);
        if (is_integer(to)) return range_of(to).first <= low && high <= range_of(to).second;
        const int digits = to == DType::f64   ? 53
                           : to == DType::f32 ? 24
                           : to == DType::f16 ? 11
                                              : 8;
        return is_float(to) && high >> digits == 0;
    }
    switch (from) {
        case DType::f16:
        case DType::bf16:
            return to == DType::f32 || to == DType::f64;
        case DType::f32:
            return to == DType::f64;
        default:
            return false;
    }
}

// ---- the table ----------------------------------------------------------------------------------

bool times_one(Site& s) {
    for (int i = 0; i < 2; i++)
        if (s.all_are(s.in(i), 1)) return s.becomes(s.in(1 - i));
    return false;
}

bool over_one(Site& s) { return s.all_are(s.in(1), 1) && s.becomes(s.in(0)); }

bool minus_zero(Site& s) { return s.all_are(s.in(1), 0.0) && s.becomes(s.in(0)); }

bool plus_negative_zero(Site& s) {
    for (int i = 0; i < 2; i++)
        if (s.all_are(s.in(i), -0.0)) return s.becomes(s.in(1 - i));
    return false;
}

bool to_the_one(Site& s) { return s.all_are(s.in(1), 1) && s.becomes(s.in(0)); }

bool twice_negated(Site& s) {
    const Node* inner = s.made_by(s.in(0), "Neg");
    return inner && s.becomes(inner->inputs[0]);
}

bool plus_negated(Site& s) {
    for (int i : {1, 0})
        if (const Node* negated = s.made_by(s.in(i), "Neg"))
            return s.becomes("Sub", {s.in(1 - i), negated->inputs[0]});
    return false;
}

bool minus_negated(Site& s) {
    const Node* negated = s.made_by(s.in(1), "Neg");
    return negated && s.becomes("Add", {s.in(0), negated->inputs[0]});
}

bool size_of_negated(Site& s) {
    const bool has_sign = !is_integer(s.out().dtype) || range_of(s.out().dtype).first < 0;
    const Node* negated = s.made_by(s.in(0), "Neg");
    return has_sign && negated && s.becomes("Abs", {negated->inputs[0]});
}

bool done_already(Site& s) {
    const Node* inner = s.made_by(s.in(0), s.op());
    return inner && inner->attrs == s.attrs() && s.becomes(s.in(0));
}

bool of_itself(Site& s) { return s.in(0) == s.in(1) && s.becomes(s.in(0)); }

bool either_way(Site& s) { return s.in(1) == s.in(2) && s.becomes(s.in(1)); }

bool to_its_own_dtype(Site& s) {
    return s.type(s.in(0)).dtype == s.out().dtype && s.becomes(s.in(0));
}

bool by_way_of_wider(Site& s) {
    const Node* inner = s.made_by(s.in(0), "Cast");
    if (!inner) return false;
    const ValueId x = inner->inputs[0];
    const DType from = s.type(x).dtype, way = s.type(s.in(0)).dtype, to = s.out().dtype;
    if (!holds(way, from)) return false;
    // Integers wrap, but saturate when cast through a float.
    if (is_integer(from) && is_float(way) && is_integer(to) && !holds(to, from)) return false;
    return from == to ? s.becomes(x) : s.becomes("Cast", {x}, s.attrs());
}

bool same_shape(Site& s) { return s.type(s.in(0)).shape == s.out().shape && s.becomes(s.in(0)); }

bool reshaped_again(Site& s) {
    const Node* inner = s.made_by(s.in(0), "Reshape");
    return inner && s.becomes_reshaped(inner->inputs[0]);
}

bool broadcast_again(Site& s) {
    const Node* inner = s.made_by(s.in(0), "BroadcastTo");
    return inner && s.becomes(inner->inputs[0]);
}

bool in_place_already(Site& s) {
    const std::vector<int64_t>& axes = s.attrs().ints("axes");
    return std::is_sorted(axes.begin(), axes.end()) && s.becomes(s.in(0));
}

bool transposed_again(Site& s) {
    const Node* inner = s.made_by(s.in(0), "Transpose");
    if (!inner) return false;
    std::vector<int64_t> axes;
    for (int64_t axis : s.attrs().ints("axes")) axes.push_back(inner->attrs.ints("axes")[axis]);
    if (std::is_sorted(axes.begin(), axes.end())) return s.becomes(inner->inputs[0]);
    return s.becomes("Transpose", {inner->inputs[0]}, {{"axes", axes}});
}

bool whole_slice(Site& s) {
    const std::vector<int64_t>& steps = s.attrs().ints("step");
    return s.type(s.in(0)).shape == s.out().shape &&
           std::all_of(steps.begin(), steps.end(), [](int64_t step) { return step == 1; }) &&
           s.becomes(s.in(0));
}

bool of_one(Site& s) { return s.inputs() == 1 && s.becomes(s.in(0)); }

bool over_one_element(Site& s) {
    const Dims& shape = s.type(s.in(0)).shape;
    const std::vector<char> reduced = reduced_axes(s.node(), shape);
    for (int i = 0; i < shape.rank(); i++)
        if (reduced[i] && shape[i] != 1) return false;
    return s.becomes_reshaped(s.in(0));
}

bool differentiated(Site& s) { return s.becomes_operands(); }

struct Rule {
    const char* name;
    std::vector<std::string> ops;  // nodes it matches
    const char* reason;
    bool (*apply)(Site&);
};

const std::vector<Rule>& rule_table() {
    static const std::vector<Rule> rules = {
        {"x * 1", {"Mul"}, "a product by one is exact", times_one},
        {"x / 1", {"Div"}, "a quotient by one is exact", over_one},
        {"x - 0", {"Sub"}, "-0 - (+0) is -0; so it is not with 0 the other way round", minus_zero},
        {"x + -0",
         {"Add"},
         "+0 + (-0) is +0 and -0 + (-0) is -0; so it is not with +0",
         plus_negative_zero},
        {"x ** 1", {"Pow"}, "our power gives it back exactly", to_the_one},
        {"-(-x)", {"Neg"}, "a sign turned twice; integers wrap both times", twice_negated},
        {"a + -b",
         {"Add"},
         "that is how a difference is defined, its zeros included",
         plus_negated},
        {"a - -b", {"Sub"}, "the same, the other way round", minus_negated},
        {"abs(-x)",
         {"Abs"},
         "abs clears the sign; the least integer is its own negative, and unsigned ones have no "
         "sign",
         size_of_negated},
        {"f(f(x))",
         {"Abs", "ReLU", "Sign", "Floor", "Round", "Clip"},
         "f gives back its own results",
         done_already},
        {"max(x, x)",
         {"Maximum", "Minimum"},
         "of equal operands it is either, sign included",
         of_itself},
        {"where(c, x, x)", {"Where"}, "it selects and computes nothing", either_way},
        {"cast to itself", {"Cast"}, "no bit changes", to_its_own_dtype},
        {"cast by way of a wider dtype",
         {"Cast"},
         "the first cast is exact, so the second rounds x itself",
         by_way_of_wider},
        {"reshape to itself", {"Reshape", "BroadcastTo"}, "the same elements", same_shape},
        {"reshape of reshape", {"Reshape"}, "C order before, between and after", reshaped_again},
        {"broadcast of broadcast", {"BroadcastTo"}, "repeated either way", broadcast_again},
        {"transpose of nothing", {"Transpose"}, "the same elements", in_place_already},
        {"transpose of transpose",
         {"Transpose"},
         "one permutation after another",
         transposed_again},
        {"slice of all", {"Slice"}, "the same elements", whole_slice},
        {"concat of one", {"Concat"}, "the same elements", of_one},
        {"reduction of one element",
         {"Sum", "Mean", "Max", "Min"},
         "a sum begins with its first term, not with 0, and is divided by 1",
         over_one_element},
        {"detach",
         {"Detach", "CustomGradient", "KeptGradient"},
         "it speaks to backward, which has run",
         differentiated},
    };
    return rules;
}

// ---- reductions ---------------------------------------------------------------------------------

/// Attributes of a reduction of `shape` over the marked axes whose result has the shape `wanted`;
/// axes of size 1 may be reduced or kept. Empty if there are none.
std::optional<Attrs> attrs_for(const Dims& shape, const std::vector<char>& reduced,
                               const Dims& wanted) {
    std::vector<int64_t> axes, every;
    int at = 0;
    Dims kept = shape;
    bool dropped = true;
    for (int i = 0; i < shape.rank(); i++) {
        const bool one = shape[i] == 1;
        if (reduced[i]) kept[i] = 1;
        if (reduced[i] || one) every.push_back(i);
        if (!reduced[i] || one) {
            const bool fits = at < wanted.rank() && wanted[at] == shape[i];
            at += fits;
            if (fits) continue;
            dropped &= one;
        }
        axes.push_back(i);
    }
    if (dropped && at == wanted.rank()) return Attrs{{"axes", axes}, {"keepdims", false}};
    if (kept == wanted) return Attrs{{"axes", every}, {"keepdims", true}};
    return std::nullopt;
}

/// Maps the reduced axes of a reshape `shown` to axes of its source `beneath`. False if a reduced
/// and a kept axis share a source axis.
bool through_reshape(const Dims& beneath, const Dims& shown, const std::vector<char>& reduced,
                     std::vector<char>& result) {
    int i = 0, j = 0;
    while (i < beneath.rank() || j < shown.rank()) {
        // The shortest runs of axes on both sides with equal products.
        int64_t below = 1, above = 1;
        const int from_i = i, from_j = j;
        while (i < beneath.rank() && beneath[i] == 1) i++;
        while (j < shown.rank() && shown[j] == 1) j++;
        if (i < beneath.rank()) below = beneath[i++];
        if (j < shown.rank()) above = shown[j++];
        while (below != above) {
            if (below < above)
                below *= beneath[i++];
            else
                above *= shown[j++];
        }
        int marked = 0, kept = 0;
        for (int k = from_j; k < j; k++)
            if (shown[k] != 1) (reduced[k] ? marked : kept)++;
        if (marked && kept) return false;
        for (int k = from_i; k < i; k++) result[k] = marked && beneath[k] != 1;
    }
    return true;
}

/// The same for a transpose. The order of summands, and of the results, must not change.
bool through_transpose(const Dims& beneath, const std::vector<int64_t>& axes,
                       const std::vector<char>& reduced, bool order_free,
                       std::vector<char>& result) {
    int64_t last[2] = {-1, -1};
    for (size_t j = 0; j < axes.size(); j++) {
        if (beneath[static_cast<int>(axes[j])] == 1) continue;
        int64_t& before = last[reduced[j] ? 1 : 0];
        if (axes[j] < before && !(reduced[j] && order_free)) return false;
        before = std::max(before, axes[j]);
        result[axes[j]] = reduced[j];
    }
    return true;
}

/// By value, its uses by live nodes, outputs and assigns.
std::vector<int> readers(const Graph& graph) {
    std::vector<int> count(graph.values.size(), 0);
    const std::vector<char> live = live_nodes(graph);
    for (const Node& node : graph.nodes)
        if (live[node.id])
            for (ValueId id : node.inputs) count[id]++;
    for (const GraphOutput& output : graph.outputs) count[output.value]++;
    for (const Assign& assign : graph.assigns) count[assign.source]++;
    return count;
}

/// Folds a reshape or transpose into the reduction that reads it.
bool reduce_beneath(Site& s) {
    const Node* view = s.maker(s.in(0));
    if (!view || (view->op_name != "Reshape" && view->op_name != "Transpose")) return false;
    const Dims &shown = s.type(s.in(0)).shape, &beneath = s.type(view->inputs[0]).shape;
    if (element_count(beneath) == 0) return false;
    const std::vector<char> reduced = reduced_axes(s.node(), shown);
    std::vector<char> below(static_cast<size_t>(beneath.rank()), 0);
    const bool same = view->op_name == "Reshape"
                          ? through_reshape(beneath, shown, reduced, below)
                          : through_transpose(beneath, view->attrs.ints("axes"), reduced,
                                              is_order_free(*s.node().op, s.out().dtype), below);
    if (!same) return false;
    const std::optional<Attrs> attrs = attrs_for(beneath, below, s.out().shape);
    return attrs && s.becomes(s.op(), {view->inputs[0]}, *attrs);
}

/// Folds a reshape of a reduction's result that only adds or drops axes of size 1 (keepdims).
bool reshape_of_reduction(Site& s, const Node& reduction) {
    const Dims& shape = s.type(reduction.inputs[0]).shape;
    const std::optional<Attrs> attrs =
        element_count(shape) == 0 ? std::nullopt
                                  : attrs_for(shape, reduced_axes(reduction, shape), s.out().shape);
    const std::string op = reduction.op_name;
    return attrs && s.becomes(op, {reduction.inputs[0]}, *attrs);
}

/// Reductions of 16-bit tensors accumulate in f32 and round once, so casts around them are
/// redundant.
bool narrow_of_wide_reduction(Site& s, const Node& reduction) {
    const Node* widened = s.made_by(reduction.inputs[0], "Cast");
    const DType narrow = s.out().dtype;
    if (!widened || (narrow != DType::f16 && narrow != DType::bf16) ||
        s.type(reduction.inputs[0]).dtype != DType::f32 ||
        s.type(widened->inputs[0]).dtype != narrow)
        return false;
    const std::string op = reduction.op_name;
    const Attrs attrs = reduction.attrs;
    return s.becomes(op, {widened->inputs[0]}, attrs);
}

}  // namespace

std::vector<std::pair<std::string, std::string>> simplify_rules() {
    std::vector<std::pair<std::string, std::string>> rules;
    for (const Rule& rule : rule_table()) rules.emplace_back(rule.name, rule.reason);
    return rules;
}

void simplify(Graph& graph) {
    Substitution now(graph);
    const std::vector<char> linked = linked_values(graph);
    for (Node& node : graph.nodes) {
        now.rename(node);
        Site site(graph, node, now, linked);
        // Repeated until nothing matches; each iteration shortens the chain of operands.
        for (bool again = true; again;) {
            again = false;
            for (const Rule& rule : rule_table()) {
                const auto at = std::find(rule.ops.begin(), rule.ops.end(), node.op_name);
                if (at == rule.ops.end() || !rule.apply(site)) continue;
                again = now[node.outputs[0]] == node.outputs[0];
                break;
            }
        }
    }
    now.finish(graph);
}

void simplify_reductions(Graph& graph) {
    Substitution now(graph);
    const std::vector<int> read = readers(graph);
    const std::vector<char> linked = linked_values(graph);
    for (Node& node : graph.nodes) {
        Site site(graph, node, now, linked);
        if (is_reduction(node)) {
            while (reduce_beneath(site)) {
            }
            continue;
        }
        if (node.op_name != "Reshape" && node.op_name != "Cast") continue;
        // With other readers the reduction would be computed twice.
        const Node* reduction = site.maker(site.in(0));
        if (!reduction || !is_reduction(*reduction) || read[site.in(0)] != 1) continue;
        if (node.op_name == "Reshape" ? reshape_of_reduction(site, *reduction)
                                      : narrow_of_wide_reduction(site, *reduction))
            while (reduce_beneath(site)) {
            }
    }
}

}  // namespace aicf
