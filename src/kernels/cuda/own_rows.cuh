// Sums over rows of which each block has few positions: it finds those of its rows among all, sorts
// them in shared memory, reads what lies there and waits for no other block. Blocks whose rows have
// more sort them as order.cuh does, and what rows of several chunks sum is shared out among all
// that are still there.
#pragma once

#include "order.cuh"

namespace aicf {

/// Positions of a block's rows, as row << 32 | position in any order, then sorted; where those of
/// each row begin.
template <class O>
struct OwnRoom {
    uint64_t found[O::here];
    uint32_t position[O::here], begin[O::split + 1], count;
};

/// Keys of positions h, h + step, ..., of which a thread has kSortLots; -1 past the end.
template <class O, class I>
__device__ __forceinline__ void load_keys(const I* indices, uint32_t h, uint32_t step,
                                          int64_t (&key)[kSortLots]) {
#pragma unroll
    for (int k = 0; k < kSortLots; k++)
        key[k] = h + k * step < uint32_t(O::n) ? int64_t(indices[O::index(h + k * step)]) : -1;
}

/// Counts the positions of rows [row0, row0 + rows), of which `room` gets O::here at most; a
/// thread's first keys are at hand.
template <class O, class I>
__device__ __forceinline__ void find_own(const Grid& grid, OwnRoom<O>& room, const I* indices,
                                         uint32_t row0, uint32_t rows, int64_t (&key)[kSortLots]) {
    for (uint32_t h = grid.thread(); h < uint32_t(O::n);) {
#pragma unroll
        for (int k = 0; k < kSortLots; k++) {
            const uint64_t row = uint64_t(key[k]) - row0;
            if (row >= rows) continue;
            const uint32_t to = atomicAdd(&room.count, 1u);
            if (to < O::here) room.found[to] = row << 32 | (h + k * grid.threads);
        }
        h += kSortLots * grid.threads;
        load_keys<O>(indices, h, grid.threads, key);
    }
    __syncthreads();
}

template <class O>
__device__ __forceinline__ void sort_own(const Grid& grid, OwnRoom<O>& room, uint32_t rows) {
    const uint32_t t = grid.thread(), count = room.count;
    for (uint32_t e = t; e < count; e += grid.threads) {
        const uint64_t own = room.found[e];
        uint32_t before = 0;
        for (uint32_t i = 0; i < count; i++) before += room.found[i] < own;
        room.position[before] = uint32_t(own);
    }
    for (uint32_t r = grid.threads - 1 - t; r <= rows; r += grid.threads) {  // by other warps
        uint32_t before = 0;
        for (uint32_t i = 0; i < count; i++) before += uint32_t(room.found[i] >> 32) < r;
        room.begin[r] = before;
    }
    __syncthreads();
}

/// y[row0 + r, w] for r < rows: what x has at the positions [begin, end) of `found(r)`, of which
/// `position(h)` is one, added up; rows of several chunks are left out. Some rows at a time: the
/// first terms of all are on their way before one is added.
template <class A, int V, int Lanes, int64_t Width, class O, class From, class Elem, class To,
          class Place, class E, class FoundOf, class Position>
__device__ __forceinline__ void sum_own(const Grid& grid, E* y, const E* x, uint32_t row0,
                                        uint32_t rows, FoundOf found, Position position) {
    constexpr int words = V * int(sizeof(A)) / 4, many = words > 4 ? 2 : words == 2 ? 3 : 4;
    constexpr int64_t tiles = (Width + Lanes * V - 1) / (Lanes * V);
    typedef Counter<O::split * tiles + (int64_t{1} << 24)> N;
    const N teams = grid.threads / Lanes, units = rows * N(tiles);
    const auto lane = grid.thread() % Lanes;
    for (N u0 = grid.thread() / Lanes; u0 < units; u0 += many * teams) {
        Pack<E, V> lot[many] = {};
        uint32_t at[many];
#pragma unroll
        for (int k = 0; k < many; k++) {
            const N u = u0 + k * teams < units ? u0 + k * teams : u0, r = u / N(tiles);
            const int64_t w = (int64_t(u - r * N(tiles)) * Lanes + lane) * V;
            const Found own = found(uint32_t(r));
            at[k] = w < Width && own.begin < own.end ? position(own.begin) : ~0u;
            if (at[k] != ~0u)
                lot[k] = *reinterpret_cast<const Pack<E, V>*>(x + From::at(at[k]) + Elem::at(w));
        }
#pragma unroll
        for (int k = 0; k < many; k++) {
            const N u = u0 + k * teams, r = u / N(tiles);
            const int64_t w = (int64_t(u - r * N(tiles)) * Lanes + lane) * V;
            if (u >= units || w >= Width) continue;
            const Found own = found(uint32_t(r));
            if (own.end - own.begin > O::chunk) continue;
            A sum[V] = {};
            if (own.begin < own.end) add_vector(sum, lot[k], !O::zero);
#pragma unroll 1
            for (uint32_t h = own.begin + 1; h < own.end; h += 2) {
                Pack<E, V> next[2] = {};
                const bool two = h + 1 < own.end;
                const E* const rest = x + Elem::at(w);
                const int64_t at0 = From::at(position(h)),
                              at1 = From::at(position(two ? h + 1 : h));
                next[0] = *reinterpret_cast<const Pack<E, V>*>(rest + at0);
                if (two) next[1] = *reinterpret_cast<const Pack<E, V>*>(rest + at1);
                add_vector(sum, next[0], false);
                if (two) add_vector(sum, next[1], false);
            }
            store_vector(y + int64_t(row0 + uint32_t(r)) * To::step + Place::at(w), sum);
        }
    }
}

/// Chunks of rows that have several, by teams that take one after another.
template <class A, int V, int Lanes, int64_t Width, class O, class From, class Elem, class To,
          class Place, class E>
__device__ __noinline__ void sum_crowded(const Grid& grid, const Order<O>& order, E* y,
                                         const E* x) {
    constexpr int64_t tiles = (Width + Lanes * V - 1) / (Lanes * V);
    const uint32_t units = *static_cast<const volatile uint32_t*>(order.counters) * uint32_t(tiles);
    const uint32_t mates = mates_of<Lanes>();
    for (;;) {
        uint32_t u = 0;
        if (grid.thread() % Lanes == 0) u = atomicAdd(order.counters + 4, 1u);
        u = __shfl_sync(mates, u, 0, Lanes);
        if (u >= units) return;
        const uint32_t slot = u / uint32_t(tiles);
        sum_slot<A, V, Lanes, Width, From, Elem, To, Place>(grid, order, y, x, slot,
                                                            u - slot * uint32_t(tiles));
    }
}

/// The same rows where they have more positions than a block keeps.
template <class A, int V, int Lanes, int64_t Width, class O, class From, class Elem, class To,
          class Place, class E, class I>
__device__ __noinline__ void own_many(const Grid& grid, const Order<O>& order, const I* indices,
                                      E* y, const E* x, uint32_t task, uint32_t rows) {
    if (grid.thread() == 0) atomicAdd(order.counters + 5, 1u);
    split_rows(grid, order, indices, task);
    if (grid.thread() == 0) add_release(order.counters + 3, 1u);
    const uint32_t row0 = task * uint32_t(O::split);
    sum_own<A, V, Lanes, Width, O, From, Elem, To, Place>(
        grid, y, x, row0, rows, [&](uint32_t r) { return order.found()[row0 + r]; },
        [&](uint32_t h) { return order.position(h); });
}

/// y[row, w] = the sum of x[position, w] over the row's positions, in chunks that are added up in
/// ascending order. Counters: [2] the next task, [3] how many are sorted, [4] chunks that are
/// taken, [5] whether some block has rows with many positions.
template <class A, int V, int Lanes, int64_t Width, class O, class From, class Elem, class To,
          class Place, class E, class I>
__device__ __forceinline__ void own_rows(const Grid& grid, const Order<O>& order, const I* indices,
                                         E* y, const E* x) {
    constexpr auto all = uint32_t(Order<O>::rows), split = uint32_t(O::split),
                   tasks = Order<O>::tasks;
    auto& room = sort_room<OwnRoom<O>>();
    __shared__ uint32_t taken;
    __shared__ uint32_t crowded;
    for (bool more = true; more; more = !O::once) {
        if (grid.thread() == 0) taken = atomicAdd(order.counters + 2, 1u), room.count = 0;
        int64_t key[kSortLots];  // on their way meanwhile
        load_keys<O>(indices, grid.thread(), grid.threads, key);
        __syncthreads();
        if (taken >= tasks) break;
        const uint32_t row0 = taken * split, rows = all - row0 < split ? all - row0 : split;
        find_own(grid, room, indices, row0, rows, key);
        if (room.count <= O::here) {
            if (grid.thread() == 0) add_release(order.counters + 3, 1u);
            sort_own(grid, room, rows);
            sum_own<A, V, Lanes, Width, O, From, Elem, To, Place>(
                grid, y, x, row0, rows,
                [&](uint32_t r) { return Found{room.begin[r], room.begin[r + 1]}; },
                [&](uint32_t h) { return room.position[h]; });
        } else {
            __syncthreads();  // all have seen how many there are, which gives way to the sort
            own_many<A, V, Lanes, Width, O, From, Elem, To, Place>(grid, order, indices, y, x,
                                                                   taken, rows);
        }
        __syncthreads();
    }
    if (grid.thread() == 0) {
        crowded = load_acquire(order.counters + 5);
        if (crowded) wait_count(order.counters + 3, tasks);
    }
    __syncthreads();
    if (crowded) sum_crowded<A, V, Lanes, Width, O, From, Elem, To, Place>(grid, order, y, x);
}

}  // namespace aicf
