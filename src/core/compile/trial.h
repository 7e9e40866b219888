// What a tuner times: one op of a lowered list by itself, by a kernel of its choice.
#pragma once

#include "core/compile/plan.h"

namespace aicf {

/// Ops of one signature, for which the target has several kernels.
struct Choice {
    std::string signature, title;
    std::vector<std::string> names;  // the one chosen by itself first
    int64_t ops = 0;                 // in the list, turns of loops apart
    Cost cost;                       // of one
    int64_t operand_bytes = 0;       // of the values it reads and writes
};
std::vector<Choice> choices_of(const Lowered& lowered, const Target& target);

/// A step of `copies` such ops, one after another, each on random params of its own and by the
/// kernel `name`.
Plan trial_plan(const Lowered& lowered, const std::string& signature, const std::string& name,
                int copies, const Target& target);

}  // namespace aicf
