// The threads that share loops which run often: the ops of the CPU backend, copies of the host. One
// parallel region at a time in a process; a caller that finds the pool busy does its work alone,
// with the same bits.
#pragma once

#include <cstdint>

namespace aicf {

using RegionFn = void (*)(const void* context, int64_t begin, int64_t end, int thread);

/// Runs fn over [0, units) in parts, on at most `threads` threads; `thread` says on which, and may
/// take several parts or none.
void run_parallel(RegionFn fn, const void* context, int64_t units, int threads);

/// How many threads a region may use: the affinity mask, at most AICF_NUM_THREADS, unless set.
/// GraphError for an AICF_NUM_THREADS that is no such number.
int cpu_threads();
void set_cpu_threads(int count);  // 0: unset

}  // namespace aicf
