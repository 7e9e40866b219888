// The flat launch list of a plan, with loops unrolled.
#pragma once

#include "core/compile/plan.h"

namespace aicf {

/// The address of an operand: a byte offset into an operand of a plan's op or, for -1, into the
/// segment of temporaries.
struct Source {
    int operand;
    int64_t bytes;
};

struct Launch {
    const PlannedOp* planned;
    int op;                       // of the plan; `sources` index its operands
    int kernel;                   // in Plan::kernels()
    std::vector<Source> sources;  // inputs first
    int64_t scratch, counters;    // bytes into their segments
    std::vector<int> waits;       // earlier launches
};

/// `plan` must outlive them.
std::vector<Launch> launches_of(const Plan& plan);

}  // namespace aicf
