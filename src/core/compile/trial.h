// Microbenchmarks for the tuner: one op of a lowered list with a given kernel.
#pragma once

#include "core/compile/plan.h"

namespace aicf {

/// Ops of one signature for which the target has several kernels.
struct Choice {
    std::string signature, title;
    std::vector<std::string> names;  // the default first
    int64_t ops = 0;                 // in the list; a loop body counts once
    Cost cost;                       // of one
    int64_t operand_bytes = 0;       // of its operands
};
std::vector<Choice> choices_of(const Lowered& lowered, const Target& target);

/// A plan of `copies` such ops in series, each on its own random params, with the kernel `name`.
Plan trial_plan(const Lowered& lowered, const std::string& signature, const std::string& name,
                int copies, const Target& target);

/// The kernels `wanted` (signature, name), compiled side by side: so are those of trials while
/// somebody holds them.
using Wanted = std::vector<std::pair<std::string, std::string>>;
Kernels build_trials(const Lowered& lowered, const Wanted& wanted, const Target& target);

}  // namespace aicf
