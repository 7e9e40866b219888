// Loops (scan): a body that runs once a turn, with loop-carried values, sliced operands of which
// each turn reads a row, and stacked results of which each turn writes a row.
#include <algorithm>
#include <map>

#include "core/graph/op.h"

namespace aicf {

LoopShape::LoopShape(const Attrs& attrs)
    : turns(attrs.integer("turns")),
      carries(static_cast<int>(attrs.integer("carries"))),
      slices(static_cast<int>(attrs.integer("slices"))),
      reverse(attrs.flag("reverse")),
      history(static_cast<size_t>(std::max(carries, 0)), 0) {
    for (int64_t carry : attrs.ints("histories"))
        if (carry >= 0 && carry < carries) history[static_cast<size_t>(carry)] = 1;
}

std::vector<ValueId> loop_inputs(const std::vector<Value>& values) {
    std::vector<ValueId> ids;
    for (const Value& value : values)
        if (value.role == Role::input) ids.push_back(value.id);
    return ids;
}

namespace {

/// The signature of a Scan.
struct Parts {
    const Graph& body;
    int carries, slices, wholes, stacked;  // operands; stacked results
    int64_t length;
    bool reverse;
    explicit Parts(const Attrs& attrs)
        : body(*attrs.get<Body>("body")),
          carries(static_cast<int>(attrs.integer("carries"))),
          slices(static_cast<int>(attrs.integer("slices"))),
          wholes(operands_of(body) - carries - slices),
          stacked(static_cast<int>(body.outputs.size()) - carries),
          length(attrs.integer("length")),
          reverse(attrs.flag("reverse")) {}
    const Type& operand(int i) const { return body.values[static_cast<size_t>(i)].type; }
    const Type& result(int i) const {
        return body.value(body.outputs[static_cast<size_t>(i)].value).type;
    }
};

Type rows_of(const Type& type, int64_t rows, const char* where) {
    if (type.shape.rank() == kMaxDims)
        raise(ErrorKind::shape, where, ": a turn gives ", to_string(type), "; need at most ",
              kMaxDims - 1, " axes, for the turns are one more");
    Type all = type;
    all.shape.insert(0, rows);
    return all;
}

// Scan: [*carries, *slices, *wholes] -> [*carries after the last turn, *other results, stacked,
// *carries after each turn, stacked].
std::vector<Type> infer_scan(const InferContext& c) {
    const Body& body = c.attrs.get<Body>("body");
    if (!body) c.value_error("it has no body; need one");
    if (const std::string problem = body_problem(*body); !problem.empty())
        c.value_error("the body cannot be one: ", problem, "; need that outside");
    const Parts parts(c.attrs);
    if (parts.carries < 0 || parts.slices < 0 || parts.wholes < 0 || parts.stacked < 0 ||
        c.count() != operands_of(parts.body))
        c.value_error("got ", c.count(), " operands, ", parts.carries, " carries, ", parts.slices,
                      " slices and a body of ", operands_of(parts.body), " operands and ",
                      parts.body.outputs.size(), " results; need these to fit");
    if (parts.length < 1) c.value_error("length is ", parts.length, "; need at least one turn");
    std::vector<Type> types;
    for (int i = 0; i < c.count(); i++) {
        const bool slice = i >= parts.carries && i < parts.carries + parts.slices;
        const Type need =
            slice ? rows_of(parts.operand(i), parts.length, c.where()) : parts.operand(i);
        if (!(c.in(i) == need))
            c.shape_error(c.describe(i), "; the body of ", parts.length, " turns needs ",
                          to_string(need));
        if (i >= parts.carries) continue;
        if (!(parts.result(i) == need))
            c.shape_error("a turn makes carry ", i, " ", to_string(parts.result(i)),
                          " of one that begins as ", to_string(need), "; need equal types");
        types.push_back(need);
    }
    for (int k = 0; k < parts.stacked; k++)
        types.push_back(rows_of(parts.result(parts.carries + k), parts.length, c.where()));
    for (int i = 0; i < parts.carries; i++)
        types.push_back(rows_of(parts.operand(i), parts.length, c.where()));
    return types;
}

Var row_range(Var v, int64_t first, int64_t count) {
    std::vector<int64_t> start(static_cast<size_t>(v.shape().rank()), 0), step(start.size(), 1),
        size = v.shape().vector();
    start[0] = first;
    size[0] = count;
    return emit("Slice", {v}, {{"start", start}, {"size", size}, {"step", step}});
}

/// A carry before each turn, stacked, from its initial value and its values after each turn.
Var before_turns(Var first, Var after, const Parts& parts) {
    const Var row = reshape(first, rows_of(first.type(), 1, "scan").shape);
    if (parts.length == 1) return row;
    const Var others = row_range(after, parts.reverse ? 1 : 0, parts.length - 1);
    return emit("Concat", parts.reverse ? std::vector{others, row} : std::vector{row, others},
                {{"axis", 0}});
}

/// The gradient loop under construction.
struct Reverse {
    std::shared_ptr<Graph> body;
    std::vector<Var> operands;  // outside
    int carried = 0, sliced = 0;
    std::vector<ValueId> forward;               // operands of the forward turn, in the body
    std::vector<ValueId> carries;               // gradients of the float ones
    std::vector<std::pair<int, ValueId>> sums;  // by invariant operand, the sum so far ...
    std::vector<std::pair<int, ValueId>> whole_grads, slice_grads;  // ... and a turn's gradient
};

/// The gradient of a loop-invariant weight or bias whose only reader is one linear layer of the
/// body.
struct LayerGradient {
    int operand, weight;  // operands of the Scan: the one differentiated, and the weight
    int node;             // the LinearBwd in the body
    size_t result;        // its result: 1 for the weight, 2 for the bias
};

/// Builds the reverse body; gradients of operands in `hoisted` are not accumulated in the loop.
Reverse reverse_body(GradContext& g, const Parts& parts,
                     const std::vector<LayerGradient>& hoisted) {
    const int carries = parts.carries, slices = parts.slices, rows = carries + parts.stacked;
    Reverse back;
    back.body = std::make_shared<Graph>(parts.body.name + "_grad");
    Graph& body = *back.body;
    const auto input = [&](Var outer, const Type& type) {
        back.operands.push_back(outer);
        return body.input(cat("in", back.operands.size() - 1), type);
    };
    const auto count = [&] { return static_cast<int>(back.operands.size()); };
    std::vector<std::pair<int, ValueId>> given;  // gradients by the result of a turn
    for (int i = 0; i < carries; i++)
        if (is_float(parts.result(i).dtype))
            given.emplace_back(i, input(g.dy(i) ? g.dy(i) : zeros_like(g.in(i)), parts.operand(i)));
    const size_t handed_on = given.size();
    const auto is_hoisted = [&](int k) {
        return std::any_of(hoisted.begin(), hoisted.end(),
                           [&](const LayerGradient& product) { return product.operand == k; });
    };
    for (int k = carries + slices; k < g.inputs(); k++)
        if (g.needs(k) && !is_hoisted(k))
            back.sums.emplace_back(k, input(zeros_like(g.in(k)), parts.operand(k)));
    back.carried = count();
    for (int i = 0; i < carries; i++)
        back.forward.push_back(
            input(before_turns(g.in(i), g.out(rows + i), parts), parts.operand(i)));
    for (int j = carries; j < carries + slices; j++)
        back.forward.push_back(input(g.in(j), parts.operand(j)));
    for (int m = carries; m < rows; m++)
        if (g.dy(m)) given.emplace_back(m, input(g.dy(m), parts.result(m)));
    for (int i = 0; i < carries; i++)
        if (g.dy(rows + i)) given.emplace_back(i, input(g.dy(rows + i), parts.result(i)));
    back.sliced = count() - back.carried;
    for (int k = carries + slices; k < g.inputs(); k++)
        back.forward.push_back(input(g.in(k), parts.operand(k)));

    const std::vector<ValueId> made = append_body(body, parts.body, back.forward);
    std::vector<ValueId> results, seeds, wrt;
    for (const auto& [result, dy] : given) {
        results.push_back(made[static_cast<size_t>(result)]);
        seeds.push_back(dy);
    }
    const auto ask = [&](int operand) {
        wrt.push_back(back.forward[static_cast<size_t>(operand)]);
    };
    for (size_t i = 0; i < handed_on; i++) ask(given[i].first);
    for (int j = carries; j < g.inputs(); j++)
        if (g.needs(j)) ask(j);
    const std::vector<ValueId> grads = backward(body, results, seeds, wrt);
    size_t at = 0;
    for (; at < handed_on; at++) back.carries.push_back(grads[at]);
    for (int j = carries; j < g.inputs(); j++)
        if (g.needs(j))
            (j < carries + slices ? back.slice_grads : back.whole_grads)
                .emplace_back(j, grads[at++]);
    return back;
}

std::vector<LayerGradient> hoisted_products(const Reverse& back, const Parts& parts) {
    std::vector<LayerGradient> found;
    if (parts.length == 1) return found;
    const Graph& body = *back.body;
    const auto whole = [&](ValueId id) {  // the invariant operand of the Scan; -1: none
        const auto first = back.forward.begin() + parts.carries + parts.slices;
        const auto at = std::find(first, back.forward.end(), id);
        return at == back.forward.end() ? -1 : static_cast<int>(at - back.forward.begin());
    };
    for (const auto& [k, grad] : back.whole_grads) {
        const int producer = body.value(grad).producer;
        if (producer < 0) continue;
        const Node& node = body.nodes[static_cast<size_t>(producer)];
        if (node.op_name != "LinearBwd" || whole(node.inputs[0]) >= 0) continue;
        const int weight = whole(node.inputs[1]);
        const size_t result = node.outputs[1] == grad ? 1 : 2;
        if (weight >= 0 && node.outputs[0] != grad && (result == 2 || weight == k))
            found.push_back({k, weight, producer, result});
    }
    return found;
}

// The gradient is a loop over the turns in reverse. Each recomputes the forward turn from its
// carries, then its gradient. Gradients of carries are carried; those of invariants are accumulated
// from +0 in that order. A weight or bias with one linear layer as only reader is hoisted: its
// gradient is one product over the stacked rows, after the loop.
void scan_grad(GradContext& g) {
    const Parts parts(g.attrs());
    const Reverse back =
        reverse_body(g, parts, hoisted_products(reverse_body(g, parts, {}), parts));
    const std::vector<LayerGradient> hoisted = hoisted_products(back, parts);
    Graph& body = *back.body;
    const auto output = [&](ValueId id) {
        body.add_output({cat("out", body.outputs.size()), id, 1});
        return body.outputs.size() - 1;
    };
    for (ValueId grad : back.carries) output(grad);
    for (const auto& [k, sum] : back.sums)
        for (const auto& [operand, grad] : back.whole_grads)
            if (operand == k) output(body.emit("Add", {sum, grad})[0]);
    for (const auto& [j, grad] : back.slice_grads) output(grad);
    // Stacked values of the turns: an operand of the loop, or a new result.
    std::map<ValueId, size_t> given;
    const auto is_read = [&](ValueId id) {
        return id >= back.carried && id < back.carried + back.sliced;
    };
    for (const LayerGradient& product : hoisted) {
        const std::vector<ValueId> of = body.nodes[static_cast<size_t>(product.node)].inputs;
        for (ValueId id : {of[0], of[2]})
            if (!is_read(id) && !given.contains(id)) given.emplace(id, output(id));
    }
    const std::vector<Var> made = g.emit_all("Scan", back.operands,
                                             {{"length", parts.length},
                                              {"carries", back.carried},
                                              {"slices", back.sliced},
                                              {"reverse", !parts.reverse},
                                              {"body", Body(back.body)}});
    size_t next = 0;
    for (int i = 0; i < parts.carries; i++)
        if (is_float(parts.result(i).dtype)) g.set(i, made[next++]);
    for (const auto& [k, sum] : back.sums) g.set(k, made[next++]);
    for (const auto& [j, grad] : back.slice_grads) g.set(j, made[next++]);
    const auto rows = [&](ValueId id) {
        return is_read(id) ? back.operands[static_cast<size_t>(id)] : made[given.at(id)];
    };
    std::map<int, std::vector<Var>> products;  // by node of the body
    for (const LayerGradient& product : hoisted) {
        const std::vector<ValueId>& of = body.nodes[static_cast<size_t>(product.node)].inputs;
        std::vector<Var>& results = products[product.node];
        if (results.empty())
            results = g.emit_all("LinearBwd", {rows(of[0]), g.in(product.weight), rows(of[2])});
        g.set(product.operand, results[product.result]);
    }
}

Attrs loop_attrs(const Parts& parts, const std::vector<int64_t>& histories) {
    return {{"turns", parts.length},
            {"carries", parts.carries},
            {"slices", parts.slices},
            {"reverse", parts.reverse},
            {"histories", histories}};
}

/// Tensor-core kernels need operands aligned to 16 bytes, which a row may not be: the body copies
/// such product operands first.
void pack_factors(Lowered& list, const std::vector<View>& outer, const LoopShape& shape) {
    constexpr int64_t kFactorAlign = 16;
    const std::vector<ValueId> own = loop_inputs(list.values);
    std::vector<LoweredOp> packing;
    for (size_t i = 0; i < own.size(); i++) {
        const Value value = list.values[static_cast<size_t>(own[i])];
        const auto carries = static_cast<size_t>(shape.carries);
        const bool rows =
            i < carries ? shape.history[i] != 0 : i < carries + static_cast<size_t>(shape.slices);
        const int64_t begins = outer[i].offset * dtype_size(value.type.dtype);
        if ((rows ? byte_count(value.type) : 0) % kFactorAlign == 0 && begins % kFactorAlign == 0)
            continue;
        View packed;
        for (LoweredOp& op : list.ops)
            for (View& view : op.inputs) {
                const bool cores = is_16_bit(value.type.dtype) ||
                                   (op.attrs.find("math") && op.attrs.text("math") != "fp32");
                if (!op.def->gemm || !cores || view.value != value.id) continue;
                if (packed.value == kNone) {
                    packed = list.views[append_value(list, value.type, "packed")];
                    packing.push_back(
                        {find_lowered("copy"), {list.views[value.id]}, {packed}, {}, op.node});
                }
                view.value = packed.value;
            }
    }
    list.ops.insert(list.ops.begin(), packing.begin(), packing.end());
}

void scan_lower(LowerContext& c) {
    const Parts parts(c.attrs());
    const int rows = parts.carries + parts.stacked;
    Graph body = parts.body;
    std::vector<GraphOutput> kept;
    std::vector<View> inputs, outputs;
    std::vector<int64_t> histories;
    for (int i = 0; i < parts.carries; i++) {
        kept.push_back(body.outputs[static_cast<size_t>(i)]);
        if (!c.used(rows + i)) {
            outputs.push_back(c.out(i));
            continue;
        }
        histories.push_back(i);
        outputs.push_back(c.out(rows + i));
        View last = c.out(rows + i);
        const int64_t row = element_count(parts.operand(i).shape);
        last.shape = parts.operand(i).shape;
        last.strides = contiguous_strides(last.shape);
        last.offset = parts.reverse ? 0 : row * (parts.length - 1);
        c.alias(i, last);
    }
    for (int m = parts.carries; m < rows; m++)
        if (c.used(m)) {
            kept.push_back(body.outputs[static_cast<size_t>(m)]);
            outputs.push_back(c.out(m));
        }
    body.outputs = std::move(kept);
    auto list = std::make_shared<Lowered>(c.body(body));
    for (int i = 0; i < c.inputs(); i++) inputs.push_back(c.in(i));
    pack_factors(*list, inputs, LoopShape(loop_attrs(parts, histories)));
    // Constants of the body are loop-invariant and belong to the outer list.
    std::vector<char> read(list->values.size(), 0);
    for (const LoweredOp& op : list->ops)
        for (const View& view : op.inputs) read[static_cast<size_t>(view.value)] = 1;
    for (Value& value : list->values) {
        if (value.role == Role::constant && read[static_cast<size_t>(value.id)]) {
            inputs.push_back(c.constant(value));
            value.role = Role::input;
            value.name = cat("constant", value.id);
        }
        value.init = {};
    }
    c.loop(std::move(list), std::move(inputs), std::move(outputs), loop_attrs(parts, histories));
}

std::vector<Type> no_loop(const InferContext& c) {
    c.value_error("it has no body; need one, as aicf.scan makes it");
}

}  // namespace

std::vector<Type> infer_loop(const LoweredOp& op) {
    const LoopShape shape(op.attrs);
    const Lowered& body = *op.loop;
    const std::vector<ValueId> own = loop_inputs(body.values);
    const auto carries = static_cast<size_t>(std::max(shape.carries, 0));
    if (op.def != loop_def() || shape.turns < 1 || shape.carries < 0 || shape.slices < 0 ||
        op.inputs.size() != own.size() || op.outputs.size() != body.outputs.size() ||
        carries + static_cast<size_t>(shape.slices) > own.size() || carries > op.outputs.size())
        raise(ErrorKind::graph, op.def->name, ": ", shape.turns, " turns of ", op.inputs.size(),
              " operands and ", op.outputs.size(), " results, and a body of ", own.size(), " and ",
              body.outputs.size(), "; need at least one turn, and these to fit");
    const auto need = [&](const View& view, const Type& type, const char* what, size_t i) {
        if (!(Type{view.dtype, view.shape} == type))
            raise(ErrorKind::graph, op.def->name, ": ", what, " ", i, " is ",
                  type_string(view.dtype, view.shape), "; need ", to_string(type));
        if (!is_contiguous(view.shape, view.strides))
            raise(ErrorKind::graph, op.def->name, ": ", what, " ", i, " has strides ",
                  to_string(view.strides), "; need C order");
    };
    for (size_t i = 0; i < own.size(); i++) {
        const Type& type = body.values[static_cast<size_t>(own[i])].type;
        const bool slice = i >= carries && i < carries + static_cast<size_t>(shape.slices);
        need(op.inputs[i], slice ? rows_of(type, shape.turns, "loop") : type, "operand", i);
    }
    std::vector<Type> types;
    for (size_t k = 0; k < op.outputs.size(); k++) {
        const Lowered::Output& output = body.outputs[k];
        const Type& type = body.values[static_cast<size_t>(output.value)].type;
        if (k < carries && !(type == body.values[static_cast<size_t>(own[k])].type))
            raise(ErrorKind::graph, op.def->name, ": carry ", k, " ends a turn as ",
                  to_string(type), "; need the type it begins with");
        if (output.keep != 1)
            raise(ErrorKind::graph, op.def->name, ": result ", k, " keeps steps; need one");
        const bool whole = k < carries && !shape.history[k];
        types.push_back(whole ? type : rows_of(type, shape.turns, "loop"));
    }
    return types;
}

std::vector<Type> infer_block_loop(const LoweredOp& op) {
    const LoopShape shape(op.attrs);
    const size_t ins = op.inputs.size(), outs = op.outputs.size();
    const auto carries = static_cast<size_t>(std::max(shape.carries, 0));
    if (shape.turns < 1 || shape.carries < 0 || shape.slices < 0 || op.inner.size() < ins + outs ||
        carries + static_cast<size_t>(shape.slices) > ins || carries > outs)
        raise(ErrorKind::graph, op.def->name, ": ", shape.turns, " turns of ", ins,
              " operands and ", outs, " results, and ", op.inner.size(),
              " inner values; need at least one turn, and these to fit");
    const auto need = [&](const View& view, const Type& type, const char* what, size_t i) {
        if (!(Type{view.dtype, view.shape} == type) || !is_contiguous(view.shape, view.strides))
            raise(ErrorKind::graph, op.def->name, ": ", what, " ", i, " is ",
                  type_string(view.dtype, view.shape), " with strides ", to_string(view.strides),
                  "; need ", to_string(type), " in C order");
    };
    const auto own = [&](size_t i) { return Type{op.inner[i].dtype, op.inner[i].shape}; };
    const auto rows = [&](size_t i) { return rows_of(own(i), shape.turns, "block_loop"); };
    for (size_t i = 0; i < ins; i++) {
        const bool slice = i >= carries && i < carries + static_cast<size_t>(shape.slices);
        need(op.inputs[i], slice ? rows(i) : own(i), "operand", i);
    }
    std::vector<Type> types;
    for (size_t k = 0; k < outs; k++) {
        if (k < carries) need(op.inner[ins + k], own(k), "what a turn leaves of carry", k);
        const bool whole = k < carries && !shape.history[k];
        types.push_back(whole ? own(ins + k) : rows(ins + k));
        need(op.outputs[k], types.back(), "result", k);
    }
    return types;
}

const LoweredDef* loop_def() {
    static const LoweredDef* const def = find_lowered("loop");
    return def;
}

const LoweredDef* block_loop_def() {
    static const LoweredDef* const def = find_lowered("block_loop");
    return def;
}

void define_loop_ops() {
    define(OpDef{.name = "Scan",
                 .fn = "scan",
                 .inputs = {"operands*"},
                 .outputs = {"results*"},
                 .attrs = {{"length", 1, true},
                           {"carries", 0, true},
                           {"slices", 0, true},
                           {"reverse", false},
                           {"body", Body(), true}},
                 .infer = infer_scan,
                 .grad = scan_grad,
                 .lower = scan_lower});
    for (const char* name : {"loop", "block_loop"})
        define(LoweredDef{.name = name,
                          .inputs = {"operands*"},
                          .outputs = {"results*"},
                          .attrs = {{"turns", 1, true},
                                    {"carries", 0, true},
                                    {"slices", 0, true},
                                    {"reverse", false},
                                    {"histories", std::vector<int64_t>()}},
                          .infer = no_loop,
                          .alone = true});
}

}  // namespace aicf
