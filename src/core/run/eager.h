// One lowered op on the caller's own tensors: every check first, then one launch. Nothing is
// written when a check raises.
#pragma once

#include <optional>

#include "core/run/backend.h"

namespace aicf {

/// True when two tensors share a byte. Exact for every stride, but for layouts so irregular that
/// deciding would take too long: those count as overlapping.
bool overlaps(const TensorRef& a, const TensorRef& b);
/// True when two elements of one tensor share an address; exact within the same limit.
bool overlaps_itself(const TensorRef& tensor);

/// The call as the op a backend selects a kernel for: attributes completed, inputs of a pointwise
/// op broadcast by stride 0. Raises GraphError, ShapeError, DTypeError, DeviceUnavailable or
/// Unsupported, naming the op, the operand, the values and what would be right.
LoweredOp check_call(const LoweredDef& def, const std::vector<TensorRef>& inputs,
                     const std::vector<TensorRef>& outputs, const Attrs& attrs);

/// Runs one op on tensors of one device. With `none` and `event` the tensors are kept alive until
/// the device is next waited for. `stream`: what it holds comes before, what it gets later after.
void op_call(const LoweredDef& def, const std::vector<TensorRef>& inputs,
             const std::vector<TensorRef>& outputs, const Attrs& attrs, SyncPolicy sync,
             std::optional<intptr_t> stream);
/// Waits for every op_call on the device.
void eager_synchronize(Device device);
/// Waits and gives back what eager calls hold on every device; a later call opens it anew.
void eager_close();

/// Bytes the kernel for inputs of such types, all in C order, borrows during a call.
uint64_t workspace_bytes(const LoweredDef& def, const std::vector<TensorRef>& inputs,
                         const Attrs& attrs, Device device);

}  // namespace aicf
