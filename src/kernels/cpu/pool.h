// The threads of the CPU backend. One parallel region at a time in a process; a caller that finds
// the pool busy does its work alone, with the same bits.
#pragma once

#include <cstdint>

namespace aicf::cpu {

using RegionFn = void (*)(const void* context, int64_t begin, int64_t end, int thread);

/// Runs fn over [0, units) in parts, on at most `threads` threads; `thread` says on which, and may
/// take several parts or none.
void run_parallel(RegionFn fn, const void* context, int64_t units, int threads);

}  // namespace aicf::cpu
