// The CPU backend. Everything else of it is reached through core/run/backend.h.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/graph/tensor.h"

namespace aicf::cpu {

/// Lets this process make kernels of custom ops. `call` gets the argument block of a call of the
/// host, and may throw. What a compiler refuses of a source is a GraphError; DeviceUnavailable
/// where there is no compiler. Code is kept as long as the process lives, and on disk.
using HostCall = void (*)(const ArgBlock& args);
void set_host_call(HostCall call);

/// Makes open_backend({Device::cpu}) work.
void register_cpu_backend();

/// Instruction set in use: "baseline", "avx2" or "avx512".
/// Bytes that Steps hold now, and the most they ever held.
std::pair<uint64_t, uint64_t> cpu_memory();
const char* cpu_isa();

/// A size at which kernels go another way: `value` of `quantity`, in the kernels of an instruction
/// set on elements of `size` bytes.
struct Threshold {
    std::string set;
    int64_t size;
    std::string quantity;
    int64_t value;
};
std::vector<Threshold> thresholds();

}  // namespace aicf::cpu
