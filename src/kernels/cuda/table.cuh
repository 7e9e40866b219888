// Functions of one number of 16 bits, which have 65,536 values: blocks make them all between them,
// by what else computes an element, and look up those of the elements in shared memory.
#pragma once

#include "prelude.cuh"

namespace aicf {

constexpr uint32_t kTableValues = 1 << 16;

/// value(i) of all i in the block's `held`, by way of `all` in memory. Blocks take pieces as they
/// come, so that none waits for one that has not begun. Three counters.
template <uint32_t Threads, class Value>
__device__ __forceinline__ void make_table(const Grid& grid, uint16_t* held, uint16_t* all,
                                           uint32_t* counters, const Value& value) {
    constexpr uint32_t pieces = kTableValues / Threads, words = kTableValues / 4;
    __shared__ uint32_t taken;
    const uint32_t t = grid.thread();
    for (;;) {
        if (t == 0) taken = atomicAdd(counters, 1u);
        __syncthreads();
        const uint32_t piece = taken;
        if (piece >= pieces) break;
        all[piece * Threads + t] = value(piece * Threads + t);
        __syncthreads();
        if (t == 0) add_release(counters + 1, 1u);
    }
    if (t == 0) wait_count(counters + 1, pieces);
    __syncthreads();
    const auto* const from = reinterpret_cast<const uint64_t*>(all);
    auto* const to = reinterpret_cast<uint64_t*>(held);
#pragma unroll
    for (uint32_t i = 0; i < words; i += Threads) to[i + t] = __ldcg(from + i + t);
    if (t == 0 && atomicAdd(counters + 2, 1u) == grid.blocks - 1)
        for (int k = 0; k < 3; k++) clear_counter(counters + k);
    __syncthreads();
}

/// y[i] = value(x[i]) of n elements as they are stored; `memory` holds a table.
template <uint32_t Threads, int Lots, class Value>
__device__ __forceinline__ void look_up(const Grid& grid, uint16_t* y, const uint16_t* x, int64_t n,
                                        uint16_t* memory, uint32_t* counters, const Value& value) {
    extern __shared__ __align__(16) char bytes[];
    auto* const held = reinterpret_cast<uint16_t*>(bytes);
    typedef Pack<uint32_t, 4> Eight;
    const bool wide = aligned16(x) && aligned16(y);
    const int64_t packs = wide ? n / 8 : 0, step = int64_t(grid.blocks) * Threads,
                  first = int64_t(grid.block) * Threads + grid.thread();
    Eight lot[Lots];
    const auto load = [&](int64_t at) {
#pragma unroll
        for (int k = 0; k < Lots; k++)
            if (at + k * step < packs) lot[k] = reinterpret_cast<const Eight*>(x)[at + k * step];
    };
    load(first);  // so that they are on their way meanwhile
    make_table<Threads>(grid, held, memory, counters, value);
    for (int64_t at = first; at < packs; at += Lots * step) {
        Eight now[Lots];
#pragma unroll
        for (int k = 0; k < Lots; k++) now[k] = lot[k];
        load(at + Lots * step);
#pragma unroll
        for (int k = 0; k < Lots; k++) {
#pragma unroll
            for (int j = 0; j < 4; j++)
                now[k].at[j] = held[now[k].at[j] & 0xffffu] | uint32_t{held[now[k].at[j] >> 16]}
                                                                  << 16;
            if (at + k * step < packs) reinterpret_cast<Eight*>(y)[at + k * step] = now[k];
        }
    }
    for (int64_t i = packs * 8 + first; i < n; i += step) y[i] = held[x[i]];
}

}  // namespace aicf
