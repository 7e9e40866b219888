// The kernels of a reduction or row op with a body: the op itself, between the programs (program.h)
// of the steps before and behind it.
#pragma once

#include <cstdint>
#include <vector>

#include "core/graph/op.h"
#include "kernels/cpu/kernels.h"

namespace aicf::cpu {

/// What follows the plan of a reduction or row op with a body in its tail, and where in it programs
/// begin; empty when some instruction does not exist, or a thread would hold too much of a row.
struct FusedPrograms {
    std::vector<char> bytes;
    std::vector<uint32_t> programs;
};
FusedPrograms build_reduction(const Table& table, const LoweredOp& op);
FusedPrograms build_rows(const Table& table, const LoweredOp& op);

}  // namespace aicf::cpu
