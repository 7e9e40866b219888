// Parallel loops for compilation, on threads created for the call.
#pragma once

#include <cstddef>
#include <functional>

namespace aicf {

/// The number of processors in this thread's affinity mask.
int processors();

/// Calls job(0) to job(count - 1), unordered, on at most processors() threads, this one included.
/// The first error cancels jobs not yet started and is rethrown when the others have finished. Jobs
/// must be idempotent: a child forked meanwhile repeats unfinished ones.
void in_parallel(size_t count, const std::function<void(size_t)>& job);

}  // namespace aicf
