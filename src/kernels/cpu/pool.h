// The threads of the CPU backend. One parallel region at a time in a process; a caller that finds
// the pool busy does its work alone, with the same bits.
#pragma once

#include <cstdint>

namespace aicf::cpu {

using RegionFn = void (*)(const void* context, int64_t begin, int64_t end, int thread);

/// Runs fn over [0, units), cut into one share for each of at most `threads` threads.
void run_parallel(RegionFn fn, const void* context, int64_t units, int threads);

}  // namespace aicf::cpu
