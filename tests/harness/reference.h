// A target whose kernels are plain loops over elements.
#pragma once

#include <cstdint>

namespace aicf::harness {

/// Training steps on it must have the CPU's bits; returns their sum.
uint64_t run_reference();

}  // namespace aicf::harness
