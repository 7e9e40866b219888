// Builds programs of elementwise instructions (kernels.h) for lowered ops.
#pragma once

#include <optional>
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

/// Whether the table has the instruction of that name, for some dtypes.
bool is_instruction(const Table& table, std::string_view name);
/// The reducer of a reduction; empty for one that there is none for.
std::optional<Reducer> reducer_of(const LoweredDef& def);
/// The bytes of a program's tail with null pointers, or empty when some instruction does not exist.
/// `temps` are the dtypes of the values that never leave the block.
std::vector<char> build_program(const Table& table, const LoweredOp& op,
                                const std::vector<ProgramStep>& steps,
                                const std::vector<DType>& temps);
/// The program of an op that is one instruction, or of a region of pointwise steps or a product;
/// empty when there is none.
std::vector<char> build_program(const Table& table, const LoweredOp& op);
/// What follows the plan of a reduction or row op with a body in its tail, and where in it programs
/// begin; empty when some instruction does not exist, or a thread would hold too much of a row.
struct FusedPrograms {
    std::vector<char> bytes;
    std::vector<uint32_t> programs;
};
FusedPrograms build_reduction(const Table& table, const LoweredOp& op);
FusedPrograms build_rows(const Table& table, const LoweredOp& op);
/// The tail of an optimizer's update; empty when some instruction does not exist.
std::vector<char> build_batch(const Table& table, const LoweredOp& op);
/// Fills the pointers of the program at `at` of the tail from the block's operands.
void bind_program(ArgBlock& args, uint32_t at);

}  // namespace aicf::cpu
