// Products of narrow layers over many rows, each of the one before it: a block takes its rows
// through all of them. What a member makes for the next one stays in shared memory, too, and the
// next one's weights come while it works.
#pragma once

#include "near_mma.cuh"

namespace aicf {

/// A member's tiles, all of k at once.
template <int BM, int BN, int BK, class Shape, class E>
struct LinkTiles {
    typedef MmaTile<E, typename Shape::As, BM, BK, Shape::a_row, Shape::a_col> A;
    typedef MmaTile<E, typename Shape::As, BN, BK, Shape::b_col, Shape::b_row> B;
    static constexpr int k = int(Shape::k), steps = (k + BK - 1) / BK;
    static constexpr bool whole_a = k % BK == 0 && Shape::m % BM == 0,
                          whole_b = k % BK == 0 && Shape::n % BN == 0;
    __device__ __forceinline__ static int left(int s) { return k - s * BK < BK ? k - s * BK : BK; }
};

/// Asks for a member's weights.
template <int BM, int BN, int BK, int Threads, class Shape, class E>
__device__ __forceinline__ void fetch_weights(char* to, const E* b) {
    typedef LinkTiles<BM, BN, BK, Shape, E> Tiles;
    const bool aligned = aligned16(b);
#pragma unroll 1
    for (int s = 0; s < Tiles::steps; s++)
        Tiles::B::template fetch<Threads, Tiles::whole_b>(
            reinterpret_cast<E*>(to) + s * Tiles::B::elements, b + s * BK * Shape::b_row,
            int(threadIdx.x), int(Shape::n), Tiles::left(s), aligned);
}

template <bool Packs, class Put>
struct OperandsOf {
    struct type {};
};
template <class Put>
struct OperandsOf<true, Put> {
    typedef typename Put::Operands type;
};

/// What follows a block's sums, which lie in shared memory: 8 neighbours at a time. The text stands
/// there once; what the next ones need is on its way meanwhile, of the first ones while k runs.
template <int BN, int Columns, int Threads, class Put>
struct LinkCells {
    const Put& put;
    int row, rows;
    bool packed = false;
    typename OperandsOf<Put::packs, Put>::type next = {};

    __device__ __forceinline__ LinkCells(const Put& put, int row, int rows)
        : put(put), row(row), rows(rows) {
        if constexpr (Put::packs) packed = put.packed();
        load(threadIdx.x);
    }
    __device__ __forceinline__ void load(int cell) {
        if constexpr (Put::packs) {
            const int i = cell / (BN / 8), j = cell % (BN / 8) * 8;
            if (packed && i < rows && j < Columns) next = put.operands(0, row + i, j);
        }
    }
    __device__ __forceinline__ void finish(const float* sums, int pitch, int count) {
#pragma unroll 1
        for (int cell = threadIdx.x; cell < count; cell += Threads) {
            const auto now = next;
            load(cell + Threads);
            const int i = cell / (BN / 8), j = cell % (BN / 8) * 8;
            if (i >= rows || j >= Columns) continue;
            float v[8];
#pragma unroll
            for (int y = 0; y < 8; y += 4) {
                const auto four =
                    *reinterpret_cast<const Pack<float, 4>*>(sums + i * pitch + j + y);
#pragma unroll
                for (int z = 0; z < 4; z++) v[y + z] = four.at[z];
            }
            if constexpr (Put::packs)
                if (packed) {
                    put.finish(now, 0, row + i, j, v);
                    continue;
                }
            (void)now;
            put(0, row + i, j, v);
        }
    }
};

/// A member: a block's BM rows of A times weights that were asked for, a warp WM x WN of the
/// result. `held`: A lies in `as`, where the member before left it; whether this one has done so.
/// `own` has the weights, and the sums behind them. next() asks for the next member's weights.
template <int BM, int BN, int WM, int WN, int BK, class Shape, class Put, class Next, class E>
__device__ __forceinline__ bool chain_link(const Grid& grid, const Put& put, const E* a, bool held,
                                           char* as, char* own, const Next& next) {
    typedef LinkTiles<BM, BN, BK, Shape, E> Tiles;
    typedef typename Tiles::A TileA;
    typedef typename Tiles::B TileB;
    constexpr int threads = 32 * (BM / WM) * (BN / WN), steps = Tiles::steps, pitch = BN + 8,
                  cut_steps = int(Shape::chunk) / BK;
    static_assert(Shape::chunk % BK == 0);
    const int t = threadIdx.x, lane = t % 32, warp = t / 32;
    const int row = warp % (BM / WM) * WM, col = warp / (BM / WM) * WN;
    static_assert(Shape::m < (1 << 30));
    const int first = int(grid.block) * BM,
              rows = int(Shape::m) - first < BM ? int(Shape::m) - first : BM;
    E* const at = reinterpret_cast<E*>(as);
    const E* const bs = reinterpret_cast<const E*>(own);
    if (!held) {
        const E* const from = a + first * Shape::a_row;
        const bool aligned = aligned16(from);
#pragma unroll 1
        for (int s = 0; s < steps; s++)
            TileA::template fetch<threads, Tiles::whole_a>(at + s * TileA::elements,
                                                           from + s * BK * Shape::a_col, t, rows,
                                                           Tiles::left(s), aligned);
    }
    commit_copies();
    next();
    commit_copies();
    LinkCells<BN, int(Shape::n), threads, Put> cells(put, first, rows);
    wait_copies<1>();
    __syncthreads();
    float acc[WM / 16][WN / 8][4] = {};
    const auto add_steps = [&](int begin, int end) {
#pragma unroll 1
        for (int s = begin; s < end; s++)
            near_products<TileA, TileB, typename Shape::As, BK>(acc, at + s * TileA::elements,
                                                                bs + s * TileB::elements, row, col);
    };
    if constexpr (steps <= cut_steps) {
        add_steps(0, steps);
    } else {
        float total[WM / 16][WN / 8][4];
#pragma unroll 1
        for (int s = 0; s < steps; s += cut_steps) {
            add_steps(s, s + cut_steps < steps ? s + cut_steps : steps);
            add_cut(total, acc, s == 0);
        }
#pragma unroll
        for (int x = 0; x < WM / 16; x++)
#pragma unroll
            for (int z = 0; z < WN / 8; z++)
#pragma unroll
                for (int y = 0; y < 4; y++) acc[x][z][y] = total[x][z][y];
    }
    __syncthreads();
    float* const sums =
        reinterpret_cast<float*>(own) + (row + lane / 4) * pitch + col + lane % 4 * 2;
#pragma unroll
    for (int x = 0; x < WM / 16; x++)
#pragma unroll
        for (int high = 0; high < 2; high++)
#pragma unroll
            for (int z = 0; z < WN / 8; z++)
                *reinterpret_cast<Pack<float, 2>*>(sums + (16 * x + 8 * high) * pitch + 8 * z) = {
                    {acc[x][z][2 * high], acc[x][z][2 * high + 1]}};
    __syncthreads();
    cells.finish(reinterpret_cast<const float*>(own), pitch, BM * BN / 8);
    __syncthreads();  // the next member reads what this one wrote, and writes where it read
    return Put::keeps && put.packed();
}

/// The block's shared memory.
__device__ __forceinline__ char* chain_room() {
    extern __shared__ __align__(128) char room[];
    return room;
}

}  // namespace aicf
