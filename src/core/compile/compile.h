// The only pipeline: verify, passes, lower, passes, candidates, plan, code. It needs no device and
// keeps nothing between two graphs.
#pragma once

#include "core/compile/passes.h"
#include "core/compile/plan.h"

namespace aicf {

struct CompileOptions {
    std::vector<std::string> passes;
    std::string math = "fp32";   // how products of f32 are computed: gemm's `math`, or "mixed"
    int tensor_cores = 0;        // whose order products take, as product_order(); 0: the target's
    bool deterministic = true;   // false admits kernels whose order of terms may vary
    Candidates candidates;       // as another plan chose them
    bool code = true;            // false: the kernels stay text
    bool check_indices = false;  // the plan says which elements must be in range
    std::vector<std::string> shared;     // leaves that live elsewhere, by name
    std::function<void(Graph&)> stored;  // may change the graph, as the math stores its values
    std::function<void(const Plan&)> planned;  // sees the plan before its code is compiled
};

/// Sees what each pass has left; no pass: what was there before the first.
struct PassWatch {
    std::function<void(const Pass*, const Graph&)> graph = {};
    std::function<void(const Pass*, const Lowered&)> lowered = {};
    std::function<void(const Graph&)> given = {};  // verified, before the math stores its values
};

/// The first half: the list of lowered ops, after the passes.
Lowered rewrite(Graph graph, const Target& target, const CompileOptions& options,
                const OnStage& done = {}, const PassWatch& watch = {});

/// The whole: what a step is made of, on any device of the target.
Plan compile(Graph graph, const Target& target, const CompileOptions& options,
             const OnStage& done = {});

/// What a pass has left, and what that costs once lowered and planned.
struct Stage {
    std::string pass;  // empty: before any
    bool keeps_bits = true;
    std::string text;  // of the graph, or of the lowered list after a pass of that level
    int64_t ops = 0;   // lowered
    Cost cost;         // of all ops; bytes are those their operands move
    int64_t peak_bytes = 0;
};
/// The graph before any pass, made ready for the options' math, and after each.
std::vector<Stage> trace_passes(const Graph& graph, const Target& target,
                                const CompileOptions& options);

}  // namespace aicf
