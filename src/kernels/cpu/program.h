// Builds programs of elementwise instructions (kernels.h) for lowered ops.
#pragma once

#include <algorithm>
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

inline bool names(const std::vector<int>& numbers, int number) {
    return std::find(numbers.begin(), numbers.end(), number) != numbers.end();
}
/// Whether some step reads, or writes, the operand of a number.
bool reads(const std::vector<ProgramStep>& steps, int number);
bool writes(const std::vector<ProgramStep>& steps, int number);
/// Steps [first, last) of an op's body, which are pointwise.
std::vector<ProgramStep> program_steps(const LoweredOp& op, size_t first, size_t last);

/// Where a program runs that is a part of a kernel.
struct ProgramSpace {
    Dims shape;
    std::vector<const View*> views;  // of that shape, by operand; null: no step names it
    std::vector<int> given;          // values that lie where the kernel says
    bool any_start;                  // it begins at any position
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
/// The same of steps around an op's anchor, over a space of their own.
std::vector<char> build_program(const Table& table, const LoweredOp& op,
                                const std::vector<ProgramStep>& steps, const ProgramSpace& space);
/// The program of an op that is one instruction, or of a region of pointwise steps or a product;
/// empty when there is none.
std::vector<char> build_program(const Table& table, const LoweredOp& op);
/// The tail of an optimizer's update; empty when some instruction does not exist.
std::vector<char> build_batch(const Table& table, const LoweredOp& op);
/// Fills the pointers of the program at `at` of the tail from the block's operands.
void bind_program(ArgBlock& args, uint32_t at);

}  // namespace aicf::cpu
