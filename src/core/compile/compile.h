// The pipeline: verify, IR passes, lower, lowered passes, candidates, plan, code. It needs no
// device and is stateless.
#pragma once

#include "core/compile/passes.h"
#include "core/compile/plan.h"

namespace aicf {

struct CompileOptions {
    std::vector<std::string> passes;
    std::string math = "fp32";  // how products of f32 are computed: gemm's `math`, or "mixed"
    int tensor_cores =
        0;  // whose summation order products take, see product_order(); 0: the target's
    bool deterministic = true;           // false admits kernels with a varying summation order
    Candidates candidates;               // kernels by name, as in another plan
    bool code = true;                    // false: kernels are not compiled
    bool check_indices = false;          // the plan lists index operands to check
    std::vector<std::string> shared;     // leaves stored by another step, by name
    std::function<void(Graph&)> stored;  // may rewrite the graph after the math mode has
    std::function<void(const Plan&)> planned;  // called before code generation
};

/// Called after each pass with its result; a null pass: before the first.
struct PassWatch {
    std::function<void(const Pass*, const Graph&)> graph = {};
    std::function<void(const Pass*, const Lowered&)> lowered = {};
    std::function<void(const Graph&)> given =
        {};  // called once verified, before the rewrite for the math mode
};

/// The first half: the lowered list after all passes.
Lowered rewrite(Graph graph, const Target& target, const CompileOptions& options,
                const OnStage& done = {}, const PassWatch& watch = {});

/// The whole pipeline: a plan for any device of the target.
Plan compile(Graph graph, const Target& target, const CompileOptions& options,
             const OnStage& done = {});

/// A dump after a pass, and its cost once lowered and planned.
struct Stage {
    std::string pass;  // empty: before the first
    bool keeps_bits = true;
    std::string text;  // of the graph, or of the lowered list after a pass of that level
    int64_t ops = 0;   // lowered
    Cost cost;         // of all ops; bytes are those their operands move
    int64_t peak_bytes = 0;
};
/// Dumps of the graph before the passes (after the rewrite for the math mode) and after each.
std::vector<Stage> trace_passes(const Graph& graph, const Target& target,
                                const CompileOptions& options);

}  // namespace aicf
