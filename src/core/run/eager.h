// Eager execution of one lowered op on the caller's tensors: all checks, then one launch. If a
// check raises, nothing is written.
#pragma once

#include <optional>
#include <span>

#include "core/run/backend.h"

namespace aicf {

using Tensors = std::span<const TensorRef>;

/// Whether two tensors share a byte. Exact for any strides, except layouts too irregular to decide
/// in time, which count as overlapping.
bool overlaps(const TensorRef& a, const TensorRef& b);
/// Whether two elements of one tensor share an address; exact within the same limit.
bool overlaps_itself(const TensorRef& tensor);

/// The lowered op of the call: attributes completed, inputs of a pointwise op broadcast by stride
/// 0. Raises GraphError, ShapeError, DTypeError, DeviceUnavailable or Unsupported, naming the op,
/// the operand, the values and what would be right.
LoweredOp check_call(const LoweredDef& def, Tensors inputs, Tensors outputs, const Attrs& attrs);

/// Runs one op on tensors of one device; of a GPU on `stream`, where the tensors are ready, none:
/// the legacy default one. The owners of tensors are let go as the call returns, but for those that
/// do not say that their framework works on that stream: these are kept until a later call, or
/// eager_synchronize(), has waited for this one.
void op_call(const LoweredDef& def, Tensors inputs, Tensors outputs, const Attrs& attrs,
             SyncPolicy sync, std::optional<intptr_t> stream);
/// Waits for the last call on the device with `event`, and all before it that keep tensors.
void eager_synchronize(Device device);
/// Waits, then frees the resources of eager calls on all devices; a later call reopens them.
void eager_close();

/// Workspace bytes of the kernel for contiguous inputs of these types.
uint64_t workspace_bytes(const LoweredDef& def, Tensors inputs, const Attrs& attrs, Device device);

}  // namespace aicf
