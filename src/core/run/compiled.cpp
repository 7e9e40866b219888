// Steps from graphs: the part that needs the compiler.
#include "core/base/float_mode.h"
#include "core/run/step.h"

namespace aicf {

Step::Step(Graph graph, const Options& options) : seed_(options.seed) {
    const FloatMode mode;
    std::clock_t last = 0;
    const OnStage stage = stages_from(last);
    share_cells(options, graph.values);
    CompileOptions compiling = options.compile;
    for (const auto& [id, cell] : cells_) compiling.shared.push_back(graph.values[id].name);
    compiling.planned = [this](const Plan& plan) { check_aligned(plan); };
    plan_ = compile(std::move(graph), machine_->backend->target(), compiling, stage);
    compiled_ = options.compile;
    start(options, stage);
}

Step::Step(Plan plan, const Options& options) : seed_(options.seed) {
    const FloatMode mode;
    std::clock_t last = 0;
    const OnStage stage = stages_from(last);
    share_cells(options, plan.values);
    plan_ = std::move(plan);
    check_aligned(plan_);
    start(options, stage);
}

std::vector<std::vector<char>> evaluate(const Graph& graph) {
    Step step(graph, {.capture = false});
    step.run({});
    std::vector<std::vector<char>> results;
    for (const GraphOutput& output : graph.outputs) {
        const TensorRef tensor = step.read_output(step.output(output.name));
        const auto* data = static_cast<const char*>(tensor.data);
        results.emplace_back(data, data + byte_count(graph.value(output.value).type));
    }
    return results;
}

}  // namespace aicf
