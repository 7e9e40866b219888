// Kernels of custom ops: sources that the system's compiler makes a library of, and callbacks.
#pragma once

#include "kernels/cpu/families.h"

namespace aicf::cpu {

/// The kernel of a custom op. GraphError for a source that the compiler refuses, DeviceUnavailable
/// where there is no compiler. Code once made is kept as long as the process lives, and on disk.
std::shared_ptr<BoundKernel> custom_kernel(const LoweredOp& op);
/// The kernel of a call of the host.
std::shared_ptr<BoundKernel> host_kernel(const LoweredOp& op);

}  // namespace aicf::cpu
