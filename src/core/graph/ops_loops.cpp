// Loops: a body that runs once a turn. Each turn takes a row of some operands, hands its carries to
// the next turn, and gives a row of each result.
#include <algorithm>

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

/// Of a Scan: the parts of its operands and results.
struct Parts {
    const Graph& body;
    int carries, slices, wholes, stacked;  // operands; results with a row a turn
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

// Scan: [*carries, *slices, *wholes] -> [*carries after the last turn, *rows of a turn's other
// results, *rows of the carries after each turn].
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

/// By row what a carry was before that turn, of what it was at first and after each turn.
Var before_turns(Var first, Var after, const Parts& parts) {
    const Var row = reshape(first, rows_of(first.type(), 1, "scan").shape);
    if (parts.length == 1) return row;
    const Var others = row_range(after, parts.reverse ? 1 : 0, parts.length - 1);
    return emit("Concat", parts.reverse ? std::vector{others, row} : std::vector{row, others},
                {{"axis", 0}});
}

// The gradient is a loop over the turns from the last to the first. Each makes the forward turn
// again from its carries, and then its gradient: those of the carries are handed on, and those of
// what all turns read whole are added up, from +0, in the order in which the turns run back.
void scan_grad(GradContext& g) {
    const Parts parts(g.attrs());
    const int carries = parts.carries, slices = parts.slices, rows = carries + parts.stacked;
    const auto is_float_result = [&](int i) { return is_float(parts.result(i).dtype); };
    auto body = std::make_shared<Graph>(parts.body.name + "_grad");
    std::vector<Var> operands;
    int count = 0;
    const auto input = [&](Var outer, const Type& type) {
        operands.push_back(outer);
        return body->input(cat("in", count++), type);
    };
    std::vector<ValueId> slopes(static_cast<size_t>(carries), kNone);  // of carries
    for (int i = 0; i < carries; i++)
        if (is_float_result(i))
            slopes[static_cast<size_t>(i)] =
                input(g.dy(i) ? g.dy(i) : zeros_like(g.in(i)), parts.operand(i));
    std::vector<std::pair<int, ValueId>> sums;  // of what is read whole
    for (int k = carries + slices; k < g.inputs(); k++)
        if (g.needs(k)) sums.emplace_back(k, input(zeros_like(g.in(k)), parts.operand(k)));
    const int carried = count;
    std::vector<ValueId> forward;
    for (int i = 0; i < carries; i++)
        forward.push_back(input(before_turns(g.in(i), g.out(rows + i), parts), parts.operand(i)));
    for (int j = carries; j < carries + slices; j++)
        forward.push_back(input(g.in(j), parts.operand(j)));
    std::vector<std::pair<int, ValueId>> given;  // gradients of rows, by the result of a turn
    for (int m = carries; m < rows; m++)
        if (g.dy(m)) given.emplace_back(m, input(g.dy(m), parts.result(m)));
    for (int i = 0; i < carries; i++)
        if (g.dy(rows + i)) given.emplace_back(i, input(g.dy(rows + i), parts.result(i)));
    const int sliced = count - carried;
    for (int k = carries + slices; k < g.inputs(); k++)
        forward.push_back(input(g.in(k), parts.operand(k)));

    const std::vector<ValueId> made = append_body(*body, parts.body, forward);
    std::vector<ValueId> results, seeds, wrt;
    for (int i = 0; i < carries; i++)
        if (slopes[static_cast<size_t>(i)] != kNone) {
            results.push_back(made[static_cast<size_t>(i)]);
            seeds.push_back(slopes[static_cast<size_t>(i)]);
            wrt.push_back(forward[static_cast<size_t>(i)]);
        }
    for (const auto& [result, dy] : given) {
        results.push_back(made[static_cast<size_t>(result)]);
        seeds.push_back(dy);
    }
    for (const auto& [k, sum] : sums) wrt.push_back(forward[static_cast<size_t>(k)]);
    for (int j = carries; j < carries + slices; j++)
        if (g.needs(j)) wrt.push_back(forward[static_cast<size_t>(j)]);
    const std::vector<ValueId> grads = backward(*body, results, seeds, wrt);
    size_t at = 0;
    const auto output = [&](ValueId id) {
        body->add_output({cat("out", body->outputs.size()), id, 1});
    };
    for (ValueId slope : slopes)
        if (slope != kNone) output(grads[at++]);
    for (const auto& [k, sum] : sums) output(body->emit("Add", {sum, grads[at++]})[0]);
    for (; at < grads.size(); at++) output(grads[at]);

    const std::vector<Var> back = g.emit_all("Scan", operands,
                                             {{"length", parts.length},
                                              {"carries", carried},
                                              {"slices", sliced},
                                              {"reverse", !parts.reverse},
                                              {"body", Body(std::move(body))}});
    size_t next = 0;
    for (int i = 0; i < carries; i++)
        if (slopes[static_cast<size_t>(i)] != kNone) g.set(i, back[next++]);
    for (const auto& [k, sum] : sums) g.set(k, back[next++]);
    for (int j = carries; j < carries + slices; j++)
        if (g.needs(j)) g.set(j, back[next++]);
}

Attrs loop_attrs(const Parts& parts, const std::vector<int64_t>& histories) {
    return {{"turns", parts.length},
            {"carries", parts.carries},
            {"slices", parts.slices},
            {"reverse", parts.reverse},
            {"histories", histories}};
}

/// Kernels on tensor cores take a factor from where it is only if it begins at a multiple of 16
/// bytes, as a row may not: a turn packs it first.
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
    // What is constant in a turn is so in all of them, and has its place beside the loop.
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

const LoweredDef* loop_def() {
    static const LoweredDef* const def = find_lowered("loop");
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
    define(LoweredDef{.name = "loop",
                      .inputs = {"operands*"},
                      .outputs = {"results*"},
                      .attrs = {{"turns", 1, true},
                                {"carries", 0, true},
                                {"slices", 0, true},
                                {"reverse", false},
                                {"histories", std::vector<int64_t>()}},
                      .infer = no_loop});
}

}  // namespace aicf
