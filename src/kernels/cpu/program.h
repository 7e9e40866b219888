// Builds programs of elementwise instructions (kernels.h) for lowered ops.
#pragma once

#include <vector>

#include "core/graph/op.h"
#include "kernels/cpu/kernels.h"

namespace aicf::cpu {

/// One step of a program. Operand numbers: inputs of the op, then its outputs, then temporaries,
/// each written by one step before others read it.
struct ProgramStep {
    std::string name;
    std::vector<int> outputs, inputs;
    std::vector<double> scalars;
};

/// The bytes of a program's tail with null pointers, or empty when some instruction does not exist.
/// `temps` are the dtypes of the values that never leave the block.
std::vector<char> build_program(const Table& table, const LoweredOp& op,
                                const std::vector<ProgramStep>& steps,
                                const std::vector<DType>& temps);
/// The program of an op that is one instruction, or of a fused op; empty when there is none.
std::vector<char> build_program(const Table& table, const LoweredOp& op);
/// What follows the plan of a fused reduction or row op in its tail, and where in it programs
/// begin; empty when some instruction does not exist.
struct AroundBytes {
    std::vector<char> bytes;
    std::vector<uint32_t> programs;
};
AroundBytes build_reduction(const Table& table, const LoweredOp& op);
AroundBytes build_rows(const Table& table, const LoweredOp& op);
/// The tail of an optimizer's update; empty when some instruction does not exist.
std::vector<char> build_batch(const Table& table, const LoweredOp& op);
/// Fills the pointers of the program at `at` of the tail from the block's operands.
void bind_program(ArgBlock& args, uint32_t at);

}  // namespace aicf::cpu
