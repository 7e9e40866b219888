// Structural predicates of regions that kernels rely on.
#pragma once

#include "core/graph/op.h"

namespace aicf {

/// Where a pass asks nothing of a region.
inline bool any_region(const LoweredOp&) { return true; }

/// Whether a product's result has the shape of its rows and columns, not reshaped.
bool plain_product(const View& a, const View& b, const Dims& result);

/// A product with an epilogue: the first step is the only product, and no other step reads its
/// operands. The product is accumulated in the storage of the first output, which must therefore
/// have its dtype and be overwritten only after the last read of the product; behind updates, which
/// are no function of it alone, it never lies in memory.
bool product_region(const LoweredOp& op);
/// A product of 16 bits, of which nothing is stored but, at the end, a wider copy of what follows
/// it, or that and an operand added.
bool widened_product(const LoweredOp& op);
/// Whether an update is the last step behind an anchor of another kind.
bool updates_behind(const LoweredOp& op);
/// A product with an epilogue, or a reduction, whose last step is an optimizer's update by what it
/// makes, or by a cast of that, which nothing else reads.
bool update_region(const LoweredOp& op);
/// Whether a step of updates adds a gradient's cuts [cuts, elements], whole in memory, one after
/// the other.
bool adds_cuts(const LoweredOp& op, const RegionStep& step);
/// Steps that make scalars of updates, alone.
bool numbers_region(const LoweredOp& op);
/// Cross entropy and its gradient on the same logits and labels; the gradient reads the row
/// statistics (maximum and sum) of the loss. Pointwise steps may make the logits, such as an
/// upcast, and others follow the gradient, such as a product with what the loss is weighted by or a
/// downcast; of these and the gradient the last alone is stored.
bool loss_region(const LoweredOp& op);
/// The step of such a region that makes the loss; the next one makes the gradient.
size_t loss_step(const LoweredOp& op);

/// Whether the last member of a chain adds what another one makes, by subtrees.
bool sums_squares(const LoweredOp& member);
/// Whether the members of a chain are products with epilogues, of the same rows, which read no
/// other rows of each other's results.
bool row_chain(const LoweredOp& op);

/// A chain of two: cross entropy of rows, or a loss_region, and the mean of the losses, with
/// functions of it, which reads nothing else that the first makes.
bool loss_chain(const LoweredOp& op);
/// The losses of the rows, an output of such a member; -1: it is none.
int row_losses(const LoweredOp& loss);

/// The end of a network with few logits: the product that makes them and its epilogue, cross
/// entropy and its gradient, then optionally the gradient's product with the transposed weights and
/// its epilogue. Logits are never materialised. All of rank 2, in f32, or products in 16 bits and
/// casts around the loss.
bool tail_region(const LoweredOp& op);
/// Step indices of such a region: of the loss, of what makes the gradient that leaves it (its own
/// or a cast's), and of the second product (the number of steps if there is none).
struct TailSteps {
    size_t loss, gradient, product;
};
TailSteps tail_steps(const LoweredOp& op);

/// Operands and steps of a region at most: backends number them in one byte.
constexpr size_t kMostOperands = 255, kMostSteps = 255;
/// A target's limits of a region: operands and steps, with or without a product; flops per element
/// of a row op's prologue.
struct RegionLimits {
    size_t operands, steps, product_operands, product_steps;
    double row_flops;
};
bool within(const LoweredOp& region, const RegionLimits& limits);

}  // namespace aicf
