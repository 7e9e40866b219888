// Long work that no step waits for in turns: shared out among threads made for it alone.
#pragma once

#include <cstddef>
#include <functional>

namespace aicf {

/// How many processors this thread may run on.
int processors();

/// Calls job(0) to job(count - 1), in no order, on that many threads at most; this is one of them.
/// Of the errors the first is thrown here, once what was begun is over; nothing is begun after it.
/// A job may be done again: in the child of a fork, what the others had begun.
void in_parallel(size_t count, const std::function<void(size_t)>& job);

}  // namespace aicf
