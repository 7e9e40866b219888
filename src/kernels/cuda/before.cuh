// What a kernel makes before its own work begins, which waits for all of it.
#pragma once

#include "prelude.cuh"

namespace aicf {

/// body(Grid) for Units units of a warp, whichever warp is there for it, then waits until all are
/// done: a unit is taken by a warp that runs, so that none waits for a block that has no processor
/// yet. Three counters.
template <uint32_t Units, class Body>
__device__ __forceinline__ void units_before(const Grid& grid, uint32_t* counters,
                                             const Body& body) {
    const bool leads = threadIdx.x % 32 == 0;
    for (;;) {
        uint32_t unit = leads ? atomicAdd(counters, 1u) : 0;
        unit = __shfl_sync(0xffffffffu, unit, 0);
        if (unit >= Units) break;
        body(Grid{unit, Units, 32, threadIdx.x & ~31u});
        __syncwarp();
        if (leads) add_release(counters + 1, 1u);
    }
    if (leads) {
        wait_count(counters + 1, Units);
        if (atomicAdd(counters + 2, 1u) == grid.blocks * (grid.threads / 32) - 1)
            for (int k = 0; k < 3; k++) clear_counter(counters + k);
    }
    __syncwarp();
}

}  // namespace aicf
