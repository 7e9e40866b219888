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

/// What a region may hold at most: operands and steps, with a product or without; flops of what
/// makes an element of a row.
struct RegionLimits {
    size_t operands, steps, product_operands, product_steps;
    double row_flops;
};
bool within(const LoweredOp& region, const RegionLimits& limits);

}  // namespace aicf
