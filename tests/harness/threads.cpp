#include <atomic>
#include <thread>

#include "harness.h"
#include "kernels/cpu/backend.h"

namespace aicf::harness {

namespace {

/// Runs fn(i) on many threads at once; the first error of any is raised.
template <class Fn>
void at_once(int threads, Fn fn) {
    std::atomic<int> ready = 0;
    std::vector<std::string> errors(static_cast<size_t>(threads));
    std::vector<std::thread> running;
    for (int i = 0; i < threads; i++)
        running.emplace_back([&, i] {
            ready++;
            while (ready < threads) std::this_thread::yield();
            try {
                fn(i);
            } catch (const std::exception& error) {
                errors[static_cast<size_t>(i)] = error.what();
            }
        });
    for (std::thread& thread : running) thread.join();
    for (const std::string& error : errors) expect(error.empty(), "threads: ", error);
}

Step::Options options(const std::vector<const Step*>& share = {}) {
    Step::Options made;
    made.seed = 7;
    made.share.assign(share.begin(), share.end());
    for (const Pass& pass : all_passes()) made.compile.passes.push_back(pass.name);
    return made;
}

Step::Inputs batch(const Step& step, uint64_t seed) {
    Random random(seed);
    Step::Inputs inputs;
    for (const char* name : {"x", "t"}) {
        const Value& value = step.leaf(name);
        Block block = c_order(value.type);
        fill(block, random, false);
        inputs.emplace_back(value.id, block.tensor);
    }
    return inputs;
}

uint64_t weights(Step& step) {
    std::vector<ValueId> ids;
    for (const Value& value : step.plan().values)
        if (value.role == Role::param || value.role == Role::state) ids.push_back(value.id);
    Sum sum;
    for (const TensorRef& tensor : step.read(ids))
        each_element(tensor, [&](const char* at, int64_t) { sum.add(tensor.dtype, at); });
    return sum.value();
}

/// Little work in each element, and enough elements for the pool.
Graph averages() {
    Graph g("averages");
    const Type type{DType::f32, {160, 128}};
    const ValueId x = g.input("x", type), t = g.input("t", type), p = g.param("0.W", type, {});
    const auto two = [&](const char* op, ValueId a, ValueId b) { return g.emit(op, {a, b})[0]; };
    const ValueId next = two("Sub", two("Mul", two("Add", p, x), g.scalar(DType::f32, 0.5)), t);
    g.assign(p, next);
    g.output("y", g.emit("Sum", {next}, {{"axes", std::vector<int64_t>{1}}})[0], 3);
    return g;
}

/// What `steps` steps on one batch give.
uint64_t alone(const Graph& graph, int64_t steps, uint64_t seed) {
    Step step(graph, options());
    step.write(batch(step, seed));
    step.replay(steps);
    return weights(step);
}

/// Each thread has a Step of its own.
void independent(const Graph& graph, int threads, int steps) {
    std::vector<uint64_t> want, got(static_cast<size_t>(threads));
    for (int i = 0; i < threads; i++) want.push_back(alone(graph, steps, static_cast<uint64_t>(i)));
    at_once(threads, [&](int i) {
        Step step(graph, options());
        const Step::Inputs inputs = batch(step, static_cast<uint64_t>(i));
        for (int n = 0; n < steps; n++) step.call(inputs);
        got[static_cast<size_t>(i)] = weights(step);
    });
    expect(got == want, "threads: Steps of their own disturb each other");
}

/// All threads take the same training further, on one Step or on Steps that share its storage, in
/// any order; meanwhile they read it, bind its input anew, capture, and make and drop other Steps.
uint64_t common(const Graph& graph, int threads, int steps) {
    Step first(graph, options()), second(graph, options({&first}));
    const Step::Inputs inputs = batch(first, 3);
    for (Step* step : {&first, &second}) step->write(inputs);
    at_once(threads, [&](int i) {
        Step& step = i % 2 ? first : second;
        std::unique_ptr<Step> own;
        for (int n = 0; n < steps; n++) {
            const int turn = (n + i) % 64;
            if (turn == 1) own = std::make_unique<Step>(graph, options({&first}));
            if (turn == 2 && own) {
                own->reset();
                own->call(inputs);
                continue;
            }
            if (turn == 3) own.reset();
            if (turn == 4) {
                const auto& [id, tensor] = inputs[0];
                Block block = c_order({tensor.dtype, tensor.shape});
                std::memcpy(block.bytes, tensor.data, static_cast<size_t>(block.size));
                step.bind(id, block.tensor);
            }
            if (turn == 5) {
                const TensorRef weight = step.view(step.leaf("0.W").id);
                expect(weight.data != nullptr && weight.owner != nullptr, "no storage");
            }
            if (turn == 6) step.read_output(step.output("y"));
            if (turn == 7) step.snapshot(step.output("y"));
            if (turn == 8) step.capture();
            if (turn == 9) {
                step.run(inputs);
                continue;
            }
            if (turn == 10)
                expect(step.captured() && step.trace().size() == step.plan().ops.size(),
                       "no trace");
            if (turn == 11) step.synchronize();
            step.call(inputs);
        }
    });
    expect(first.generation() + second.generation() <= uint64_t(threads) * uint64_t(steps),
           "threads: more steps than were asked for");
    const uint64_t got = weights(first);
    expect(got == weights(second), "threads: sharing Steps hold different storage");
    expect(got == alone(graph, int64_t{threads} * steps, 3), "threads: ", threads, " x ", steps,
           " steps give other bits than so many in a row");
    return got;
}

/// A Step that shares with Steps of two machines, while these run, bind and go away.
void two_machines(int threads, int steps) {
    Graph left("left"), right("right"), both("both");
    const Type type{DType::f32, {33}};
    const Init zeros;
    const auto count = [&](Graph& g, const char* name) {
        const ValueId p = g.param(name, type, zeros);
        g.assign(p, g.emit("Add", {p, g.scalar(DType::f32, 1)})[0]);
    };
    count(left, "a");
    count(right, "b");
    count(both, "a");
    count(both, "b");
    auto a = std::make_unique<Step>(left, options()), b = std::make_unique<Step>(right, options());
    Step joined(both, options({a.get(), b.get()}));
    std::atomic<int64_t> steps_of_a = 0;
    at_once(threads, [&](int i) {
        for (int n = 0; n < steps; n++) {
            if (i % 4 == 0) steps_of_a += a->replay(1) > 0;
            if (i % 4 == 1) {
                b->replay(1);
                Block block = c_order(type);
                std::memset(block.bytes, 0, static_cast<size_t>(block.size));
                b->bind(b->leaf("b").id, block.tensor);
            }
            if (i % 4 == 2) steps_of_a += joined.replay(1) > 0;
            if (i % 4 == 3) {
                const TensorRef seen = joined.view(joined.leaf("b").id);
                expect(seen.data != nullptr && seen.owner != nullptr, "no storage");
                Step own(both, options({&joined}));
            }
        }
    });
    a.reset();
    b.reset();
    joined.replay(1);
    const TensorRef value = joined.read(joined.leaf("a").id);
    each_element(value, [&](const char* at, int64_t) {
        float element = 0;
        std::memcpy(&element, at, sizeof element);
        expect(element == static_cast<float>(steps_of_a + 1), "threads: ", steps_of_a + 1,
               " steps counted ", element);
    });
}

/// Eager calls of all threads share a desk.
void eager(int threads, int steps) {
    const LoweredDef& def = *find_lowered("gemm");
    std::vector<uint64_t> sums(static_cast<size_t>(threads));
    at_once(threads, [&](int i) {
        Random random(9);
        Block a = c_order({DType::f32, {40, 300}}), b = c_order({DType::f32, {300, 40}}),
              c = c_order({DType::f32, {40, 40}});
        fill(a, random, false);
        fill(b, random, false);
        const TensorRef inputs[] = {a.tensor, b.tensor}, outputs[] = {c.tensor};
        for (int n = 0; n < std::max(steps / 50, 2); n++) {
            op_call(def, inputs, outputs, {}, n % 2 ? SyncPolicy::none : SyncPolicy::full, {});
            if (n % 16 == i) eager_synchronize({});
        }
        eager_synchronize({});
        Sum sum;
        each_element(c.tensor, [&](const char* at, int64_t) { sum.add(DType::f32, at); });
        sums[static_cast<size_t>(i)] = sum.value();
    });
    for (uint64_t sum : sums) expect(sum == sums[0], "threads: eager calls disturb each other");
}

}  // namespace

uint64_t run_threads(int threads, int steps) {
    const Graph small = perceptron(8, 8);
    independent(small, threads, steps);
    const uint64_t sum = common(small, threads, steps);
    const Graph large = averages();
    independent(large, 4, steps / 10 + 2);
    common(large, 4, steps / 10 + 12);
    two_machines(threads, steps / 4 + 2);
    eager(threads, steps);
    return sum;
}

}  // namespace aicf::harness
