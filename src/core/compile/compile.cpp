#include "core/compile/compile.h"

namespace aicf {

namespace {

/// Runs the passes of one level, verifying after each.
template <class Level, class... Given>
void run_passes(Level& level, void (*Pass::*on)(Level&, const Given&...),
                const std::vector<const Pass*>& passes, const char* verified, const OnStage& done,
                const std::function<void(const Pass*, const Level&)>& watch,
                const Given&... given) {
    for (const Pass* pass : passes) {
        if (!(pass->*on)) continue;
        (pass->*on)(level, given...);
        tell(done, pass->name);
        verify(level).require("after pass " + pass->name);
        tell(done, verified);
        if (watch) watch(pass, level);
    }
}

/// IR passes run inside loop bodies, never across their boundary.
void run_inside(Graph& graph, const std::vector<const Pass*>& passes, const OnStage& done) {
    for (Node& node : graph.nodes)
        if (const Attr* attr = node.attrs.find("body")) {
            Graph body = **std::get_if<Body>(attr);
            run_inside(body, passes, done);
            run_passes(body, &Pass::on_graph, passes, "verify", done, {});
            node.attrs.set("body", Body(std::make_shared<const Graph>(std::move(body))));
        }
}
/// Likewise the lowered passes.
void run_inside(Lowered& lowered, const std::vector<const Pass*>& passes, const OnStage& done,
                const Target& target) {
    for (LoweredOp& op : lowered.ops)
        if (op.loop) {
            Lowered body = *op.loop;
            run_inside(body, passes, done, target);
            run_passes(body, &Pass::on_lowered, passes, "verify lowered", done, {}, target);
            op.loop = std::make_shared<const Lowered>(std::move(body));
        }
}

}  // namespace

Lowered rewrite(Graph graph, const Target& target, const CompileOptions& options,
                const OnStage& done, const PassWatch& watch) {
    const int own = target.tensor_cores();
    if (own && options.tensor_cores && own != options.tensor_cores)
        raise(ErrorKind::graph, "compile: tensor_cores is \"sm_", options.tensor_cores,
              "0\", the device has those of \"sm_", own, "0\"; need these, or None");
    verify(graph).require("compile");
    if (watch.given) watch.given(graph);
    tell(done, "verify");
    const auto passes = select_passes(options.passes);
    if (options.math == "mixed") {
        store_in_16_bits(graph);
        tell(done, "mixed");
        verify(graph).require("after math \"mixed\"");
        tell(done, "verify");
    }
    if (options.stored) options.stored(graph);
    if (watch.graph) watch.graph(nullptr, graph);
    run_inside(graph, passes, done);
    run_passes(graph, &Pass::on_graph, passes, "verify", done, watch.graph);
    Lowered lowered = lower(graph, options.math, own ? own : options.tensor_cores);
    tell(done, "lower");
    verify(lowered).require("compile");
    tell(done, "verify lowered");
    run_inside(lowered, passes, done, target);
    run_passes(lowered, &Pass::on_lowered, passes, "verify lowered", done, watch.lowered, target);
    host_calls_first(lowered);
    verify(lowered).require("after calls of the host were put first");
    return lowered;
}

Plan compile(Graph graph, const Target& target, const CompileOptions& options,
             const OnStage& done) {
    std::vector<IndexUse> indices;
    PassWatch watch;
    if (options.check_indices)
        watch.given = [&](const Graph& sound) { indices = index_uses(sound).leaves; };
    Lowered lowered = rewrite(std::move(graph), target, options, done, watch);
    choose_candidates(lowered, options.candidates, target);
    tell(done, "candidates");
    Plan plan = make_plan(lowered, target, options.shared, done);
    plan.math = options.math;
    plan.deterministic = options.deterministic;
    plan.indices = std::move(indices);
    verify(plan).require("compile");
    tell(done, "verify plan");
    if (options.planned) options.planned(plan);
    if (options.code) target.build(plan.kernels());
    tell(done, "code");
    return plan;
}

std::vector<Stage> trace_passes(const Graph& graph, const Target& target,
                                const CompileOptions& options) {
    std::vector<Stage> stages;
    const int cores = target.tensor_cores();
    const auto note = [&](const Pass* pass, const Lowered& lowered, std::string text) {
        const Plan plan = make_plan(lowered, target, options.shared);
        stages.push_back({pass ? pass->name : "", !pass || pass->keeps_bits, std::move(text),
                          static_cast<int64_t>(plan.ops.size()), plan.cost(), plan.peak_bytes()});
    };
    rewrite(graph, target, options, {},
            {[&](const Pass* pass, const Graph& now) {
                 note(pass, lower(now, options.math, cores), to_text(now));
             },
             [&](const Pass* pass, const Lowered& now) { note(pass, now, to_text(now)); }});
    return stages;
}

}  // namespace aicf
