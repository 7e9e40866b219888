#include <algorithm>
#include <map>

#include "harness.h"
#include "kernels/cpu/backend.h"

namespace aicf::harness {

namespace {

using Ints = std::vector<int64_t>;
using Values = std::vector<ValueId>;

ValueId emit1(Graph& g, const std::string& op, const Values& inputs, const Attrs& attrs = {}) {
    return g.emit(op, inputs, attrs)[0];
}

ValueId number(Graph& g, const std::string& name, double value) {
    return g.state(name, {DType::f32, {}}, {Init::constant, value, 0, {}});
}

ValueId weight(Graph& g, const std::string& name, const Dims& shape) {
    return g.param(name, {DType::f32, shape}, {Init::uniform, -0.3, 0.3, {}});
}

void adam(Graph& g, ValueId loss) {
    const Values params = reached_params(g, loss), grads = backward(g, loss, params);
    const ValueId step = g.state("opt.step", {DType::i32, {}}, {});
    const ValueId after = emit1(g, "StepInc", {step});
    g.assign(step, after);
    const ValueId lr = number(g, "opt.lr", 1e-3), beta1 = number(g, "opt.beta1", 0.9),
                  beta2 = number(g, "opt.beta2", 0.999), eps = number(g, "opt.eps", 1e-8);
    const Values bias = g.emit("BiasCorr", {after, beta1, beta2});
    for (size_t i = 0; i < params.size(); i++) {
        const Value param = g.value(params[i]);
        const ValueId m = g.state("opt.m." + param.name, param.type, {}),
                      v = g.state("opt.v." + param.name, param.type, {});
        g.mark_moment(m, param.id, 0);
        g.mark_moment(v, param.id, 1);
        const Values next =
            g.emit("AdamStep", {param.id, grads[i], m, v, bias[0], bias[1], lr, beta1, beta2, eps});
        g.assign(param.id, next[0]);
        g.assign(m, next[1]);
        g.assign(v, next[2]);
    }
}

/// The loss and the mean square of its slope by a value.
ValueId with_slope(Graph& g, ValueId loss, ValueId by) {
    const ValueId slope = backward(g, loss, Values{by}, kNone, false)[0];
    Ints axes;
    for (int i = 0; i < g.value(by).type.shape.rank(); i++) axes.push_back(i);
    return emit1(g, "Add",
                 {loss, emit1(g, "Mean", {emit1(g, "Mul", {slope, slope})}, {{"axes", axes}})});
}

struct Rng {
    ValueId seed, step;
};

Rng counters(Graph& g) {
    const ValueId seed = g.state("rng.seed", {DType::i64, {}}, {Init::seed, 0, 0, {}}),
                  step = g.state("rng.step", {DType::i64, {}}, {});
    g.assign(step, emit1(g, "Add", {step, g.scalar(DType::i64, 1)}));
    return {seed, step};
}

Graph convolution() {
    Graph g("convolution");
    const ValueId x = g.input("x", {DType::f32, {2, 3, 7, 7}}), w = weight(g, "w", {4, 27});
    const ValueId padded = emit1(
        g, "Pad", {x},
        {{"shape", Ints{2, 3, 9, 9}}, {"start", Ints{0, 0, 1, 1}}, {"step", Ints{1, 1, 1, 1}}});
    const ValueId windows = emit1(g, "Windows", {padded}, {{"kernel", Ints{3, 3}}});
    const ValueId columns = emit1(g, "Reshape", {windows}, {{"shape", Ints{2, 27, 49}}});
    const ValueId y =
        emit1(g, "Reshape", {emit1(g, "MatMul", {w, columns})}, {{"shape", Ints{2, 4, 7, 7}}});
    const ValueId pooled = emit1(g, "MaxPool", {emit1(g, "ReLU", {y})},
                                 {{"kernel", Ints{2, 2}}, {"stride", Ints{2, 2}}});
    const ValueId loss =
        emit1(g, "Mean", {emit1(g, "Mul", {pooled, pooled})}, {{"axes", Ints{0, 1, 2, 3}}});
    adam(g, with_slope(g, loss, x));
    g.output("pooled", pooled, 1);
    g.output("loss", loss, 3);
    return g;
}

/// Tokens and labels are out of range now and then.
Graph language() {
    Graph g("language");
    const ValueId tokens = g.input("tokens", {DType::i64, {5, 6}}),
                  labels = g.input("labels", {DType::i32, {30}});
    const ValueId table = weight(g, "table", {7, 8}), head = weight(g, "head", {9, 8});
    const Rng rng = counters(g);
    ValueId h = emit1(g, "Take", {table, tokens});
    h = emit1(g, "Dropout", {h, rng.seed, rng.step}, {{"p", 0.25}, {"stream", int64_t{0}}});
    const ValueId turned = emit1(g, "Transpose", {h}, {{"axes", Ints{0, 2, 1}}});
    const ValueId scores = emit1(g, "Softmax", {emit1(g, "MatMul", {h, turned})});
    h = g.emit("Normalize", {emit1(g, "Add", {h, emit1(g, "MatMul", {scores, h})})})[0];
    h = emit1(g, "GeluErf", {emit1(g, "Reshape", {h}, {{"shape", Ints{30, 8}}})});
    const ValueId logits = emit1(g, "Linear", {h, head}, {{"bias", false}});
    const ValueId loss = g.emit("CrossEntropy", {logits, labels})[0];
    adam(g, with_slope(g, loss, table));
    g.output("loss", loss, 1);
    g.output("best", emit1(g, "ArgMax", {logits}, {{"axes", Ints{1}}}), 2);
    g.output("log", emit1(g, "LogSoftmax", {logits}), 1);
    return g;
}

/// Large enough for the pool, in every float dtype, with views of a common storage.
Graph wide() {
    Graph g("wide");
    const ValueId x = g.input("x", {DType::f32, {130, 515}});
    const Rng rng = counters(g);
    const ValueId noise = emit1(g, "RandomNormal", {rng.seed, rng.step},
                                {{"shape", Ints{130, 515}}, {"stream", int64_t{3}}});
    ValueId y = emit1(g, "Add", {emit1(g, "Tanh", {x}), noise});
    const ValueId left =
        emit1(g, "Slice", {y},
              {{"start", Ints{129, 0}}, {"size", Ints{130, 257}}, {"step", Ints{-1, 2}}});
    const ValueId turned = emit1(g, "Transpose", {left}, {{"axes", Ints{1, 0}}});
    const ValueId few = emit1(
        g, "Slice", {left}, {{"start", Ints{0, 9}}, {"size", Ints{130, 9}}, {"step", Ints{1, 3}}});
    g.output("product", emit1(g, "MatMul", {turned, few}), 1);
    for (const char* dtype : {"float16", "bfloat16", "float64"}) {
        const ValueId cast = emit1(g, "Cast", {left}, {{"dtype", std::string(dtype)}});
        const ValueId sum = emit1(g, "Sum", {emit1(g, "Exp", {cast})}, {{"axes", Ints{1}}});
        g.output(dtype, emit1(g, "CumSum", {sum}, {{"axis", int64_t{0}}}), 1);
        const ValueId row = emit1(g, "Softmax", {emit1(g, "Mul", {cast, cast})});
        const ValueId normal = g.emit("Normalize", {emit1(g, "Add", {row, cast})})[0];
        g.output(cat(dtype, " rows"), emit1(g, "Mul", {normal, cast}), 1);
    }
    g.output("joined", emit1(g, "Concat", {turned, turned}, {{"axis", int64_t{1}}}), 2);
    return g;
}

// ---- running ------------------------------------------------------------------------------------

Block input_block(const Value& value, Random& random) {
    Block block = c_order(value.type);
    fill(block, random, false);
    return block;
}

Step::Inputs draw_inputs(const Step& step, Random& random) {
    Step::Inputs inputs;
    for (const Value& value : step.plan().values)
        if (value.role == Role::input)
            inputs.emplace_back(value.id, input_block(value, random).tensor);
    return inputs;
}

/// What a step holds; rings belong to one Step, so sharing Steps have one of their own each.
uint64_t content(Step& step, bool rings) {
    Sum sum;
    const auto add = [&](const TensorRef& tensor) {
        for (int64_t size : tensor.shape) sum.add(static_cast<uint64_t>(size));
        each_element(tensor, [&](const char* at, int64_t) { sum.add(tensor.dtype, at); });
    };
    for (const Value& value : step.plan().values)
        if ((value.role == Role::param || value.role == Role::state) &&
            step.plan().places[value.id].storage != kNone)
            add(step.read(value.id));
    for (const Lowered::Output& output : step.plan().outputs) {
        if (output.keep > 1 && !rings) continue;
        const TensorRef host = step.read_output(output), there = step.snapshot(output);
        Sum one, other;
        each_element(host, [&](const char* at, int64_t) { one.add(host.dtype, at); });
        each_element(there, [&](const char* at, int64_t) { other.add(there.dtype, at); });
        expect(one.value() == other.value(), "graphs: snapshot of ", output.name,
               " is not what read gives");
        add(host);
    }
    return sum.value();
}

constexpr int kSteps = 4;
enum class Way { call, run, replay, bound, shared };

/// Everything that has a name on memory of the caller's, which lives exactly as long as it is
/// bound.
void bind_all(Step& step) {
    std::vector<ValueId> ids;
    for (const Value& value : step.plan().values)
        if (is_leaf(value) && step.plan().places[value.id].storage != kNone)
            ids.push_back(value.id);
    for (const Lowered::Output& output : step.plan().outputs)
        if (output.keep == 1) ids.push_back(step.bindable(output.name));
    for (ValueId id : ids) {
        const TensorRef now = step.read(id);
        Block block = c_order({now.dtype, now.shape});
        if (block.size) std::memcpy(block.bytes, now.data, static_cast<size_t>(block.size));
        step.bind(id, block.tensor);
    }
}

uint64_t run_way(const Graph& graph, Way way, const std::vector<std::string>& passes, bool rings) {
    Step::Options options;
    options.seed = 7;
    options.compile.passes = passes;
    options.capture = way != Way::run;
    auto step = std::make_unique<Step>(graph, options);
    std::unique_ptr<Step> other;
    if (way == Way::shared) {
        options.share = {step.get()};
        other = std::make_unique<Step>(graph, options);
    }
    Random random(5);
    for (int i = 0; i < kSteps; i++) {
        const Step::Inputs inputs = draw_inputs(*step, random);
        if (way == Way::bound) {
            bind_all(*step);
            step->write(inputs);
            step->replay(1);
        } else if (way == Way::run) {
            step->run(inputs);
        } else if (way == Way::replay) {
            step->reset();
            step->write(inputs);
            step->capture();
            step->replay(1);
        } else if (way == Way::shared && i == kSteps - 1) {
            step->call(inputs);
        } else if (way == Way::shared) {  // the storage outlives the Step that first had it
            if (i == 1) bind_all(*other);
            other->call(inputs);
            if (i == 2) bind_all(*step);
        } else {
            step->call(inputs);
        }
    }
    return content(*step, rings);
}

/// Through every dump, and through the reader that a file goes through.
void check_files(const Graph& graph) {
    GraphReader reader(graph.name, true);
    for (Value value : graph.values) {
        value.producer = -1;
        reader.value(std::move(value));
    }
    for (const Node& node : graph.nodes)
        reader.node(node.op_name, node.inputs, node.outputs, node.attrs, node.forward, node.where);
    for (const GraphOutput& output : graph.outputs)
        reader.output(output.name, output.value, output.keep);
    for (const Assign& assign : graph.assigns) reader.assign(assign.target, assign.source);
    for (const Gradient& one : graph.gradients) reader.gradient(one);
    const Graph back = reader.finish();
    expect(to_json(back) == to_json(graph), "graphs: ", graph.name, " changed in the reader");
    expect(to_text(back) == to_text(graph) && to_dot(back) == to_dot(graph), "graphs: ", graph.name,
           " changed in a dump");
    const Step step(graph, {});
    expect(!to_text(step.plan()).empty() && !to_json(step.plan()).empty(), "graphs: no dump");
    expect(step.trace().size() == step.plan().ops.size(), "graphs: the trace is not the plan");
}

}  // namespace

Graph perceptron(int64_t batch, int64_t width) {
    Graph g("perceptron");
    const ValueId x = g.input("x", {DType::f32, {batch, width}}),
                  t = g.input("t", {DType::f32, {batch, width}});
    const ValueId h = emit1(
        g, "ReLU",
        {emit1(g, "Linear", {x, weight(g, "0.W", {width, width}), weight(g, "0.b", {width})})});
    const ValueId y =
        emit1(g, "Linear", {h, weight(g, "2.W", {width, width}), weight(g, "2.b", {width})});
    const ValueId loss = emit1(g, "MseLoss", {y, t});
    adam(g, loss);
    g.output("loss", loss, 1);
    g.output("y", y, 3);
    return g;
}

uint64_t run_graphs() {
    std::vector<std::string> all;
    for (const Pass& pass : all_passes()) all.push_back(pass.name);
    Sum sum;
    for (const Graph& graph :
         {perceptron(8, 8), perceptron(33, 18), convolution(), language(), wide()}) {
        check_files(graph);
        const uint64_t want[] = {run_way(graph, Way::call, all, false),
                                 run_way(graph, Way::call, all, true)};
        sum.add(want[1]);
        for (Way way : {Way::call, Way::run, Way::replay, Way::bound, Way::shared})
            for (const auto& passes : {all, {}}) {
                const bool rings = way != Way::shared;
                expect(run_way(graph, way, passes, rings) == want[rings], "graphs: ", graph.name,
                       " run in way ", static_cast<int>(way), " with ", passes.size(),
                       " passes gives other bits");
            }
    }
    return sum.value();
}

}  // namespace aicf::harness
