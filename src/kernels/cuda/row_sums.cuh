// Gradients of rows together with sums over rows of what they are made from: a norm's, whose weight
// and bias take sums of each column. Rows are read once. A block takes rows that one subtree of the
// tree's order joins, a lane of a leaf after the other, and keeps the sums of its columns; what
// blocks leave is joined by all of them at the end.
#pragma once

#include "columns.cuh"
#include "nn.cuh"

namespace aicf {

/// i, below Count, with its bits in reverse.
template <int Count>
__device__ __forceinline__ int reversed(int i) {
    int low = 0;
#pragma unroll
    for (int bit = 1; bit < Count; bit *= 2) low += i & bit ? Count / 2 / bit : 0;
    return low;
}

/// Which rows a team takes: of each leaf those lanes that are `own` modulo `apart`, in the order in
/// which halving joins them.
template <int Apart>
struct LanesOf {
    static constexpr int count = int(kTreeLanes) / Apart;
    static constexpr int levels = count > 64   ? 7
                                  : count > 32 ? 6
                                  : count > 16 ? 5
                                  : count > 8  ? 4
                                  : count > 4  ? 3
                                  : count > 2  ? 2
                                  : count > 1  ? 1
                                               : 0;
    /// The row of a leaf that comes at place `at`, 4 of each lane.
    __device__ __forceinline__ static int row(int at) {
        const int lane = reversed<count>(at / 4);
        return Apart * lane + int(kTreeLanes) * (at % 4);
    }
};

/// The sums of columns that a thread has elements of: of the lane that it is at, and, in shared
/// memory, of subtrees that wait for their other half.
template <class A, class Row, int Sums, int Threads>
struct ColumnSums {
    static constexpr int V = Row::side, pieces = Row::turns * Row::lines, fours = V / 4;
    static constexpr int level = Sums * pieces * V * Threads;  // elements of shared memory
    typedef Pack<A, 4> Four;
    A now[Sums][pieces][V];

    __device__ __forceinline__ static Four& at(A* held, int depth, int sum, int piece, int four) {
        return reinterpret_cast<Four*>(
            held)[(((depth * Sums + sum) * pieces + piece) * fours + four) * Threads + threadIdx.x];
    }
    /// body(four of now, sum, piece, four)
    template <class Body>
    __device__ __forceinline__ void each(const Body& body) {
#pragma unroll
        for (int sum = 0; sum < Sums; sum++)
            each_piece<Row>([&](int piece, int) {
#pragma unroll
                for (int four = 0; four < fours; four++)
                    body(now[sum][piece] + 4 * four, sum, piece, four);
            });
    }
    __device__ __forceinline__ void join(A* held, int depth) {
        each([&](A* own, int sum, int piece, int four) {
            const Four before = at(held, depth, sum, piece, four);
#pragma unroll
            for (int c = 0; c < 4; c++) own[c] = before.at[c] + own[c];
        });
    }
    /// Lane `i` is done, and not the last.
    __device__ __forceinline__ void carry(A* held, int i) {
        int depth = 0;
        for (; i >> depth & 1; depth++) join(held, depth);
        each([&](const A* own, int sum, int piece, int four) {
            at(held, depth, sum, piece, four) = {own[0], own[1], own[2], own[3]};
        });
    }
    /// Those of a sum to where columns lie side by side.
    __device__ __forceinline__ void put(A* to, int sum) const {
        each_piece<Row>([&](int piece, int i) {
#pragma unroll
            for (int four = 0; four < fours; four++) {
                const A* const own = now[sum][piece] + 4 * four;
                *reinterpret_cast<Four*>(to + i + 4 * four) = {own[0], own[1], own[2], own[3]};
            }
        });
    }
};

/// Sum `Which` of some columns, once all parts are there: ends.put<Which>(column, v).
template <int Sums, int Which, int Columns, int Pieces, int64_t N, int Threads, class A, class Ends>
__device__ __forceinline__ void end_sums(A* held, A* const (&parts)[Sums], int which, int strip,
                                         const Ends& ends) {
    if constexpr (Which < Sums) {
        if (which != Which)
            return end_sums<Sums, Which + 1, Columns, Pieces, N, Threads>(held, parts, which, strip,
                                                                          ends);
        const int64_t first = int64_t(strip) * Columns, there = N - first;
        const A total = join_pieces<SumOf<A>, Columns, Pieces, N, Threads / Columns>(
            held, parts[Which] + first, there);
        if (int(threadIdx.x) < Columns && int(threadIdx.x) < there)
            ends.template put<Which>(first + threadIdx.x, total);
    }
}

/// normalize_bwd_rows with sums. Of row = make(r), row.across<V, Together>(i) reads what elements i
/// to i + V - 1 are made from, row.open(some, y, dy, terms) makes the row's two and what is summed.
/// A leaf's rows are Parts parts. Three counters.
template <class A, class Team, bool Center, int Sums, int Parts, int Threads, class Shape,
          class Make, class Rstd, class Put, class Ends>
__device__ __forceinline__ void normalize_bwd_sums(const Grid& grid, A* const (&parts)[Sums],
                                                   uint32_t* counters, Make make, Rstd rstd,
                                                   Put put, Ends ends) {
    typedef typename Team::Row Row;
    constexpr int V = Row::side, pieces = Row::turns * Row::lines, n = int(Shape::n);
    typedef typename decltype(make(0))::template Some<V> Some;
    constexpr int teams = Team::count(Threads),
                  leaves = int((Shape::rows + kTreeLeaf - 1) / kTreeLeaf), units = leaves * Parts;
    typedef LanesOf<teams * Parts> Lanes;
    typedef ColumnSums<A, Row, Sums, Threads> Columns;
    constexpr bool even = Shape::rows % kTreeLeaf == 0;
    extern __shared__ __align__(16) char bytes[];
    __shared__ uint32_t taken;
    A* const held = reinterpret_cast<A*>(bytes) + Team::words;
    Team team{reinterpret_cast<A*>(bytes)};
    const bool together = make(0).template together<V>();
    const int own = teams == 1 ? 0 : int(threadIdx.x) / (Threads / teams);
    for (;;) {
        if (threadIdx.x == 0) taken = atomicAdd(counters, 1u);
        __syncthreads();
        const int unit = int(taken);
        if (unit >= units) break;
        const int leaf = leaves - 1 - unit / Parts, part = unit % Parts;
        const int64_t first = leaf * kTreeLeaf + own * Parts + part;
        Columns sums;
        Some next[pieces];
        A next_scale = A(0);
        const auto exists = [&](int64_t r) { return even || r < Shape::rows; };
        const auto load = [&](int at) {
            int64_t r = first + Lanes::row(at);
            r = exists(r) ? r : Shape::rows - 1;
            const auto row = make(r);
            if (together)
                each_piece<Row>([&](int k, int i) { next[k] = row.template across<V, true>(i); });
            else
                each_piece<Row>([&](int k, int i) { next[k] = row.template across<V, false>(i); });
            next_scale = rstd(r);
        };
        load(0);
#pragma unroll 1
        for (int i = 0; i < Lanes::count; i++) {
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int64_t r = first + Lanes::row(4 * i + j);
                const bool there = exists(r);
                const auto row = make(0);
                Row v = {}, g = {};
                each_piece<Row>([&](int k, int) {
                    A t[Sums][V];
                    row.open(next[k], v.a[k / Row::lines][k % Row::lines],
                             g.a[k / Row::lines][k % Row::lines], t);
#pragma unroll
                    for (int s = 0; s < Sums; s++)
#pragma unroll
                        for (int c = 0; c < V; c++) {
                            A& sum = sums.now[s][k][c];
                            if (j == 0)
                                sum = there ? t[s][c] : A(-0.0f);
                            else if (there)
                                sum = sum + t[s][c];
                        }
                });
                const A scale = next_scale;
                if (j < 3 || i + 1 < Lanes::count) load(4 * i + j + 1);
                A shift = A(0);
                if constexpr (Center) shift = by_count<Shape::n>(team.template reduce<SumOf<A>>(g));
                const A slope = by_count<Shape::n>(team.template reduce<SumOf<A>>(
                    team.combine(g, v, [](A a, A b) { return a * b; })));
                const auto dx =
                    team.combine(g, v, [=](A a, A b) { return scale * ((a - shift) - b * slope); });
                if (there) team.put(dx, put(r));
            }
            if (i + 1 < Lanes::count) sums.carry(held, i);
        }
#pragma unroll
        for (int depth = 0; depth < Lanes::levels; depth++) sums.join(held, depth);
        const int64_t to = int64_t(leaf * Parts + reversed<Parts>(part)) * n;
        if constexpr (teams == 1) {
#pragma unroll
            for (int s = 0; s < Sums; s++) sums.put(parts[s] + to, s);
        } else {
            __syncthreads();  // all are done with subtrees
#pragma unroll
            for (int s = 0; s < Sums; s++) sums.put(held + (own * Sums + s) * n, s);
            __syncthreads();
#pragma unroll
            for (int s = 0; s < Sums; s++)
                for (int i = threadIdx.x; i < n; i += Threads) {
                    A v[teams];
#pragma unroll
                    for (int t = 0; t < teams; t++) v[t] = held[(t * Sums + s) * n + i];
                    parts[s][to + i] = halved<SumOf<A>>(v);
                }
        }
        __syncthreads();
        if (threadIdx.x == 0) add_release(counters + 1, 1u);
    }
    constexpr int columns = units > 1024  ? 8
                            : units > 512 ? 16
                                          : 32,
                  strips = (n + columns - 1) / columns;
    if (int(grid.block) < Sums * strips) {
        if (threadIdx.x == 0) wait_count(counters + 1, uint32_t(units));
        __syncthreads();
        for (int task = int(grid.block); task < Sums * strips; task += int(grid.blocks))
            end_sums<Sums, 0, columns, units, n, Threads>(held, parts, task / strips, task % strips,
                                                          ends);
    }
    if (threadIdx.x == 0 && atomicAdd(counters + 2, 1u) == grid.blocks - 1)
        for (int k = 0; k < 3; k++) clear_counter(counters + k);
}

}  // namespace aicf
