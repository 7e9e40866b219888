// Which team takes the rows of a row op, and what its kernels are made of (nn.cpp, row_sums.cpp).
#pragma once

#include <algorithm>

#include "kernels/cuda/rows.h"

namespace aicf::cuda {

/// What an op does to rows: by itself, or with a body one step of it.
struct RowOp {
    const LoweredDef* def;
    const Attrs* attrs;
    std::vector<int> operands;  // of the step, inputs first
    int takes = 0;              // how many of them are inputs
    size_t at = 0;              // the step
    const View* x = nullptr;
    int axis = 0;  // the last of a row's
    int axes = 1;
    Dims others;  // the shape of x without them
    int64_t n = 0;

    bool elements(int position) const {
        return std::find(def->rows.begin(), def->rows.end(), position) != def->rows.end();
    }
    int first() const { return axis - axes + 1; }
};
RowOp row_op_of(const LoweredOp& op);
/// Whether losses are all that is made of rows that lie in memory, in 16 bits, of which two numbers
/// are compared at a time (loss_rows.cuh).
bool losses_alone(const LoweredOp& op, const RowOp& row, const Limits& limits);
/// The inputs that make the elements of an operand of the row op.
std::vector<int> row_reads(const LoweredOp& op, const RowOp& row, int position);
Team row_team(const LoweredOp& op, const RowOp& row, const Limits& limits);
/// A team whose next rows, stored as x is, are copied to shared memory while it is at one
/// (copied_rows.cuh). `side`: elements that are read at once, with which the results of all rows
/// take `beside` bytes. `tells`: it may be one of told_rows.cuh, where a processor has a block of
/// it with room for all that.
Team copying_team(const RowOp& row, int side, int64_t beside, bool tells, const Limits& limits);
/// Blocks that keep a row of logits as they are stored (kept_rows.cuh); of no warps: they don't.
struct KeptTeam {
    std::string type;
    int64_t warps = 0, bytes = 0;  // of a block, of its shared memory
    int blocks = 1, resident = 1;  // of a row, of a processor
};
KeptTeam kept_team(const LoweredOp& op, const RowOp& row, const Limits& limits);

/// Blocks that keep rows and fill them ahead (filled_rows.cuh); of no warps: they don't.
struct FilledTeam {
    int64_t warps = 0, bytes = 0;  // of shared memory
    int resident = 1;
};
/// Of two rows of 16 bits at a time, from which up to two sums are made.
FilledTeam filled_team(const RowOp& row, int64_t rows, const Limits& limits);
/// The same of losses alone, of one row.
FilledTeam filled_losses(const RowOp& row, int64_t rows, const Limits& limits);

/// The parts of a kernel that makes sums beside a row op (row_sums.cpp): where operands lie, what
/// there is one of for each row, what becomes of elements, the shape; @_terms0, ... of what the
/// rows' elements are.
std::string row_parts(const LoweredOp& op, const Limits& limits);

}  // namespace aicf::cuda
