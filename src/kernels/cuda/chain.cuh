// Products of narrow layers over many rows, each of the one before it: a block takes its rows
// through all of them, each of its warps 16, which wait for no other's but for the weights. What a
// member makes for the next one stays in shared memory, too, and the next one's weights come while
// it works.
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

/// Where a lane has 8 neighbours of a warp's 16 rows, each of the lanes its own.
__device__ __forceinline__ uint32_t inner_place(uint32_t row, uint32_t col) {
    return ((col / 32 * 2 + row / 8 % 2) * 32 + row % 8 * 4 + col / 8 % 4) * 8;
}

/// Where a warp's 16 rows of 32 sums lie: the halves of 8 neighbours change places in every other
/// row, which lies in the same banks.
constexpr uint32_t kSumPitch = 40;
__device__ __forceinline__ uint32_t sum_place(uint32_t row, uint32_t col) {
    return row * kSumPitch + (col ^ row % 2 * 4);
}
/// 8 neighbours of what a warp adds, where their sums lay.
template <int V>
__device__ __forceinline__ void leave_squares(float* sums, int64_t row, int64_t col,
                                              const float (&v)[V]) {
    static_assert(V == 8);
    const uint32_t own = sum_place(uint32_t(row) % 16, uint32_t(col) % 32);
#pragma unroll
    for (uint32_t y = 0; y < 8; y += 4)
        *reinterpret_cast<Pack<float, 4>*>(sums +
                                           (own ^ y)) = {{v[y], v[y + 1], v[y + 2], v[y + 3]}};
}
/// Of 8 of these rows the sums that a tree of 128 lanes has in a column and 64 lanes on: its leaf
/// is 8 rows of 64 columns.
__device__ __forceinline__ float column_sum(const float* sums, uint32_t first) {
    float lanes[2];
#pragma unroll
    for (uint32_t odd = 0; odd < 2; odd++) {
        lanes[odd] = sums[sum_place(first + odd, threadIdx.x % 32)];
#pragma unroll
        for (uint32_t j = 2; j < 8; j += 2)
            lanes[odd] += sums[sum_place(first + odd + j, threadIdx.x % 32)];
    }
    return lanes[0] + lanes[1];
}

/// What follows a warp's 16 rows of sums: 8 neighbours a lane, 8 rows of 32 columns at a time, by
/// way of shared memory. The text stands there once; what the next ones need is on its way
/// meanwhile, of the first ones while k runs.
template <int BN, int Columns, class Put>
struct LinkCells {
    static constexpr uint32_t pitch = kSumPitch, turns = (Columns + 31) / 32 * 2;
    const Put& put;
    int row, rows;
    bool packed = false;
    typename OperandsOf<Put::packs, Put>::type next = {};

    __device__ __forceinline__ LinkCells(const Put& put, int row, int rows)
        : put(put), row(row), rows(rows) {
        if constexpr (Put::packs) packed = put.packed();
        load(0);
    }
    __device__ __forceinline__ static int row_of(uint32_t turn) {
        return int(turn % 2 * 8 + threadIdx.x % 32 / 4);
    }
    __device__ __forceinline__ static int column_of(uint32_t turn) {
        return int(turn / 2 * 32 + threadIdx.x % 4 * 8);
    }
    __device__ __forceinline__ void load(uint32_t turn) {
        if constexpr (Put::packs) {
            const int i = row_of(turn), j = column_of(turn);
            if (packed && i < rows && j < Columns) next = put.operands(0, row + i, j);
        }
    }
    /// 32 columns of what the lanes hold to shared memory.
    __device__ __forceinline__ static void leave(const float (&acc)[BN / 8][4], uint32_t piece,
                                                 float* sums) {
        const uint32_t lane = threadIdx.x % 32;
#pragma unroll
        for (uint32_t of = 0; of < BN / 32; of++) {  // registers have no index
            if (of != piece) continue;
#pragma unroll
            for (uint32_t z = 0; z < 4; z++)
#pragma unroll
                for (uint32_t high = 0; high < 2; high++)
                    *reinterpret_cast<Pack<float, 2>*>(
                        sums + sum_place(8 * high + lane / 4, 8 * z + lane % 4 * 2)) = {
                        {acc[4 * of + z][2 * high], acc[4 * of + z][2 * high + 1]}};
        }
    }
    /// `parts`: where the sums of squares go.
    __device__ __forceinline__ void finish(const float (&acc)[BN / 8][4], float* sums,
                                           float* parts) {
        float before[2] = {};  // of the first 32 columns' squares, in each 8 rows
        const uint32_t own = sum_place(threadIdx.x % 32 / 4, threadIdx.x % 4 * 8);
#pragma unroll 1
        for (uint32_t turn = 0; turn < turns; turn++) {
            if (turn % 2 == 0) {
                __syncwarp();
                if constexpr (Put::squares)
                    if (turn == 2) {
                        before[0] = column_sum(sums, 0);
                        before[1] = column_sum(sums, 8);
                        __syncwarp();
                    }
                leave(acc, turn / 2, sums);
                __syncwarp();
            }
            const auto now = next;
            if (turn + 1 < turns) load(turn + 1);
            const int i = row_of(turn), j = column_of(turn);
            if (i >= rows || j >= Columns) continue;
            float v[8];
#pragma unroll
            for (uint32_t y = 0; y < 8; y += 4) {
                const auto four = *reinterpret_cast<const Pack<float, 4>*>(
                    sums + (turn % 2 * 8 * pitch + (own ^ y)));
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
        if constexpr (Put::squares) add_squares(before, sums, parts);
        (void)before;
    }
    /// The rest of two leaves of the tree, which joins them first.
    __device__ __forceinline__ void add_squares(const float (&before)[2], const float* sums,
                                                float* parts) const {
        static_assert(Columns == 64);
        __syncwarp();
        float leaves[2];
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            leaves[k] = before[k] + column_sum(sums, 8 * k);
#pragma unroll
            for (int d = 16; d > 0; d /= 2) leaves[k] += __shfl_xor_sync(0xffffffffu, leaves[k], d);
        }
        if (rows > 0 && threadIdx.x % 32 == 0) parts[row / 16] = leaves[0] + leaves[1];
    }
};

/// A member: a warp's 16 of a block's BM rows of A times weights that were asked for. `held`: A
/// lies in `as`, where the member before left it; whether this one has done so. `as` and `sums` are
/// the warp's own. next() asks for the next member's weights.
template <int BM, int BN, int BK, class Shape, class Put, class Next, class E>
__device__ __forceinline__ bool chain_link(const Grid& grid, const Put& put, const E* a, bool held,
                                           E* as, const E* weights, float* sums, const Next& next,
                                           float* parts = nullptr) {
    typedef LinkTiles<16, BN, BK, Shape, E> Tiles;
    typedef typename Tiles::A TileA;
    typedef typename Tiles::B TileB;
    constexpr int steps = Tiles::steps, cut_steps = int(Shape::chunk) / BK;
    static_assert(Shape::chunk % BK == 0 && BM % 16 == 0 && Shape::m < (1 << 30));
    const int first = int(grid.block) * BM + int(threadIdx.x) / 32 * 16,
              left = int(Shape::m) - first,
              rows = left < 0    ? 0
                     : left < 16 ? left
                                 : 16;
    if (!held && rows > 0) {
        const E* const from = a + first * Shape::a_row;
        const bool aligned = aligned16(from);
#pragma unroll 1
        for (int s = 0; s < steps; s++)
            TileA::template fetch<32, Tiles::whole_a>(
                as + s * TileA::elements, from + s * BK * Shape::a_col, int(threadIdx.x) % 32, rows,
                Tiles::left(s), aligned);
    }
    commit_copies();
    LinkCells<BN, int(Shape::n), Put> cells(put, first, rows);
    wait_copies<0>();
    __syncthreads();  // the weights are there, and all are done with those before
    next();
    commit_copies();
    float acc[1][BN / 8][4] = {};
    const auto add_steps = [&](int begin, int end) {
#pragma unroll 1
        for (int s = begin; s < end; s++)
            near_products<TileA, TileB, typename Shape::As, BK>(
                acc, as + s * TileA::elements, weights + s * TileB::elements, 0, 0);
    };
    if constexpr (steps <= cut_steps) {
        add_steps(0, steps);
    } else {
        float total[1][BN / 8][4];
#pragma unroll 1
        for (int s = 0; s < steps; s += cut_steps) {
            add_steps(s, s + cut_steps < steps ? s + cut_steps : steps);
            add_cut(total, acc, s == 0);
        }
#pragma unroll
        for (int z = 0; z < BN / 8; z++)
#pragma unroll
            for (int y = 0; y < 4; y++) acc[0][z][y] = total[0][z][y];
    }
    cells.finish(acc[0], sums, parts);
    __syncwarp();  // the next member reads what this one wrote, and writes where it read
    return Put::keeps && put.packed();
}

/// A cast as a member: a warp's 16 of a block's BM rows, for the next one in tiles of BK terms,
/// too.
template <int BM, int BK, int Rows, int Columns, int64_t Step, bool Keeps, class E, class Next>
__device__ __forceinline__ bool chain_cast(const Grid& grid, const float* x, E* y, E* rows,
                                           const Next& next) {
    __syncthreads();
    next();
    commit_copies();
    constexpr int line = Columns < 8 ? 1 : Columns / 8, lots = 4;
    const int lane = threadIdx.x % 32, first = int(grid.block) * BM + int(threadIdx.x) / 32 * 16,
              left = Rows - first < 16 ? Rows - first : 16;
    const bool packed = Columns % 8 == 0 && Step % 4 == 0 && aligned16(x) && aligned16(y);
    if (!packed) {
        for (int u = lane; u < left * Columns; u += 32)
            y[int64_t(first) * Columns + u] =
                narrow<E>(x[(first + u / Columns) * Step + u % Columns]);
        __syncwarp();
        return false;
    }
#pragma unroll 1
    for (int from = lane; from < left * line; from += 32 * lots) {
        Pack<float, 4> read[lots][2];
#pragma unroll
        for (int lot = 0; lot < lots; lot++) {
            const int cell = from + 32 * lot, i = cell / line, j = cell % line * 8;
#pragma unroll
            for (int half = 0; half < 2 && cell < left * line; half++)
                read[lot][half] =
                    *reinterpret_cast<const Pack<float, 4>*>(x + (first + i) * Step + j + 4 * half);
        }
#pragma unroll
        for (int lot = 0; lot < lots; lot++) {
            const int cell = from + 32 * lot, i = cell / line, j = cell % line * 8;
            if (cell >= left * line) continue;
            float v[8];
#pragma unroll
            for (int z = 0; z < 8; z++) v[z] = read[lot][z / 4].at[z % 4];
            const auto all = Words<E, 8>::of(v);
            all.store(y + int64_t(first + i) * Columns + j, 8, true);
            if constexpr (Keeps)
                all.store(rows + j / BK * (16 * (BK + 8)) + i * (BK + 8) + j % BK, 8, true);
        }
    }
    __syncwarp();
    return Keeps;
}

/// The block's shared memory.
__device__ __forceinline__ char* chain_room() {
    extern __shared__ __align__(128) char room[];
    return room;
}

}  // namespace aicf
