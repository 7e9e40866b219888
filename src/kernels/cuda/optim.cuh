// The small ops around an optimizer's update.
#pragma once

#include "prelude.cuh"

namespace aicf {

template <class E>
__device__ __forceinline__ void bias_corr(E* out, const E* beta, int32_t step) {
    *out =
        narrow<E>(static_cast<Wide<E>>(scalar::bias_corr(static_cast<double>(widen(*beta)), step)));
}

/// ring' = ring with x at `position` modulo Keep, position' = position + 1; by one block, or one
/// warp, which reads the position before any thread writes it.
template <int64_t Keep, int64_t Row, class X, class From, class To, class E>
__device__ __forceinline__ void ring_push(const Grid& grid, E* to, int64_t* next, const E* x,
                                          const E* ring, const int64_t* position) {
    const int64_t now = *position, at = (now % Keep + Keep) % Keep;
    if (grid.threads == 32)
        __syncwarp();
    else
        __syncthreads();
    if (ring != to)
        for (int64_t i = grid.thread(); i < Keep * Row; i += grid.threads)
            if (i / Row != at) to[To::at(i)] = ring[From::at(i)];
    for (int64_t i = grid.thread(); i < Row; i += grid.threads)
        to[To::at(at * Row + i)] = x[X::at(i)];
    if (grid.thread() == 0) *next = scalar::add(now, int64_t{1});
}

}  // namespace aicf
