// What memory a plan's ops access, and what its segments hold at most: what making a plan, fitting
// kernels into it and checking it have in common.
#pragma once

#include <array>
#include <vector>

#include "core/compile/memory.h"
#include "core/compile/plan.h"

namespace aicf {

/// An op's workspace, written.
MemoryAccess scratch_of(const PlannedOp& planned);
/// The bytes of a value; one without a place of its own has a space of its own.
MemoryAccess access_of(const Plan& plan, ValueId id, bool write);
/// All of an op's: operands and scratch.
std::vector<MemoryAccess> accesses(const Plan& plan, const PlannedOp& planned);

/// Refuses a plan of more than kMostBytes.
[[noreturn]] void too_large();
/// The sum of two counts of bytes, unless it is too large.
int64_t add_bytes(int64_t a, int64_t b);

/// Computes the waits: for each op, the transitive reduction of its hazards with earlier ops.
void order_ops(Plan& plan);

/// By segment, an upper bound of its size: the sum of its values; for temporaries and counters,
/// which are shared, the largest end.
std::array<int64_t, kSegments> most_bytes(const Plan& plan);

}  // namespace aicf
