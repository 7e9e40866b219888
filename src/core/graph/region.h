// What regions must be for kernels to follow them.
#pragma once

#include "core/graph/op.h"

namespace aicf {

/// A product whose result lies as its own shape says.
bool plain_product(const View& a, const View& b, const Dims& result);

/// The first step is the one product, of operands that no other step reads. It is made where the
/// first output lies, so that must have its dtype and be written by the last step that needs it.
bool product_region(const LoweredOp& op);
/// Cross entropy and its gradient, of the same rows: the second takes what the first has one a row
/// of. A cast from 16 bits may come before them, one to 16 bits behind.
bool loss_region(const LoweredOp& op);

/// The end of a network whose logits are few: their product, what is pointwise behind it, their
/// loss and its gradient, then, if it is there, the gradient's product with the same weights and
/// what is pointwise behind that. Logits lie nowhere; all is f32, of two axes.
bool tail_region(const LoweredOp& op);
/// The steps of such a region: of the loss, whose gradient is behind it, and of the second product,
/// the number of steps where there is none.
struct TailSteps {
    size_t loss, product;
};
TailSteps tail_steps(const LoweredOp& op);

/// What a region may hold at most: operands and steps, with a product or without; flops of what
/// makes an element of a row.
struct RegionLimits {
    size_t operands, steps, product_operands, product_steps;
    double row_flops;
};
bool within(const LoweredOp& region, const RegionLimits& limits);

}  // namespace aicf
