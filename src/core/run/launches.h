// The launches of a plan, one after another: those of a loop's body once a turn.
#pragma once

#include "core/compile/plan.h"

namespace aicf {

/// Where an operand begins: so many bytes behind an operand of a plan's op, or, where that is -1,
/// behind the beginning of the temporaries.
struct Source {
    int operand;
    int64_t bytes;
};

struct Launch {
    const PlannedOp* planned;
    int op;                       // of the plan, whose operands `sources` count
    int kernel;                   // in Plan::kernels()
    std::vector<Source> sources;  // inputs first
    int64_t scratch, counters;    // bytes into their segments
    std::vector<int> waits;       // launches before
};

/// `plan` must outlive them.
std::vector<Launch> launches_of(const Plan& plan);

}  // namespace aicf
