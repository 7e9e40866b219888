// Products of narrow layers over many rows, each of the one before it: a block takes its rows
// through all of them, 16 a warp or two warps that have half the columns each, which wait for no
// other's but for the weights. What a member makes for the next one stays in shared memory, too,
// and the next one's weights come while it works.
#pragma once

#include "near_mma.cuh"

namespace aicf {

// What a gradient multiplies dy by.
namespace scalar {
__device__ __forceinline__ float silu_slope(float x) { return silu_bwd(x, 1.0f); }
__device__ __forceinline__ float gelu_tanh_slope(float x) { return gelu_tanh_bwd(x, 1.0f); }
__device__ __forceinline__ float gelu_tanh_slope_16(float x) { return gelu_tanh_bwd_16(x, 1.0f); }
__device__ __forceinline__ float gelu_erf_slope(float x) { return gelu_erf_bwd(x, 1.0f); }
__device__ __forceinline__ float gelu_erf_slope_16(float x) { return gelu_erf_bwd_16(x, 1.0f); }
}  // namespace scalar

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

/// Warps that share 16 rows wait for each other.
template <int Warps>
__device__ __forceinline__ void meet() {
    if constexpr (Warps == 1)
        __syncwarp();
    else
        wait_for(1 + threadIdx.x / (32 * Warps), 32 * Warps);
}

/// Where a warp's 8 rows of 32 sums lie: the halves of 8 neighbours change places in every other
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
    const uint32_t own = sum_place(uint32_t(row) % 8, uint32_t(col) % 32);
#pragma unroll
    for (uint32_t y = 0; y < 8; y += 4)
        *reinterpret_cast<Pack<float, 4>*>(sums +
                                           (own ^ y)) = {{v[y], v[y + 1], v[y + 2], v[y + 3]}};
}
/// Of these rows the sums that a tree of 128 lanes has in a column and 64 lanes on: its leaf is 8
/// rows of 64 columns.
__device__ __forceinline__ float column_sum(const float* sums) {
    float lanes[2];
#pragma unroll
    for (uint32_t odd = 0; odd < 2; odd++) {
        lanes[odd] = sums[sum_place(odd, threadIdx.x % 32)];
#pragma unroll
        for (uint32_t j = 2; j < 8; j += 2)
            lanes[odd] += sums[sum_place(odd + j, threadIdx.x % 32)];
    }
    return lanes[0] + lanes[1];
}

/// What follows a warp's 16 rows of sums, BN columns from `col` on: 8 neighbours a lane, 8 rows of
/// 32 columns at a time, by way of shared memory. The text stands there once; what the next ones
/// need is on its way meanwhile, of the first ones while k runs.
template <int BN, int Columns, int Warps, class Put>
struct LinkCells {
    static constexpr uint32_t turns = ((BN < Columns ? BN : Columns) + 31) / 32 * 2;
    const Put& put;
    int row, rows, col;
    bool packed = false;
    typename OperandsOf<Put::packs, Put>::type next = {};

    __device__ __forceinline__ LinkCells(const Put& put, int row, int rows, int col)
        : put(put), row(row), rows(rows), col(col) {
        if constexpr (Put::packs) packed = put.packed();
        load(0);
    }
    __device__ __forceinline__ static int row_of(uint32_t turn) {
        return int(turn % 2 * 8 + threadIdx.x % 32 / 4);
    }
    __device__ __forceinline__ int column_of(uint32_t turn) const {
        return col + int(turn / 2 * 32 + threadIdx.x % 4 * 8);
    }
    __device__ __forceinline__ void load(uint32_t turn) {
        if constexpr (Put::packs) {
            const int i = row_of(turn), j = column_of(turn);
            if (packed && i < rows && j < Columns) next = put.operands(0, row + i, j);
        }
    }
    /// A turn's of what the lanes hold to shared memory.
    __device__ __forceinline__ static void leave(const float (&acc)[BN / 8][4], uint32_t turn,
                                                 float* sums) {
        const uint32_t lane = threadIdx.x % 32;
#pragma unroll
        for (uint32_t of = 0; of < turns; of++) {  // registers have no index
            if (of != turn) continue;
#pragma unroll
            for (uint32_t z = 0; z < 4; z++)
                *reinterpret_cast<Pack<float, 2>*>(sums +
                                                   sum_place(lane / 4, 8 * z + lane % 4 * 2)) = {
                    {acc[of / 2 * 4 + z][of % 2 * 2], acc[of / 2 * 4 + z][of % 2 * 2 + 1]}};
        }
    }
    /// `parts`: where the sums of squares go.
    __device__ __forceinline__ void finish(const float (&acc)[BN / 8][4], float* sums,
                                           float* parts) {
        float leaves[2] = {};  // sums of squares in each 8 rows
        const uint32_t own = sum_place(threadIdx.x % 32 / 4, threadIdx.x % 4 * 8);
#pragma unroll 1
        for (uint32_t turn = 0; turn < turns; turn++) {
            __syncwarp();
            leave(acc, turn, sums);
            __syncwarp();
            const auto now = next;
            if (turn + 1 < turns) load(turn + 1);
            cell(now, turn, sums, own);
            if constexpr (Put::squares) {
                __syncwarp();
                const float sum = column_sum(sums);
                if (turn % 2)
                    leaves[1] = turn < 2 ? sum : leaves[1] + sum;
                else
                    leaves[0] = turn < 2 ? sum : leaves[0] + sum;
            }
        }
        if constexpr (Put::squares) add_squares(leaves, sums, parts);
        (void)leaves;
    }
    template <class Operands>
    __device__ __forceinline__ void cell(const Operands& now, uint32_t turn, const float* sums,
                                         uint32_t own) const {
        const int i = row_of(turn), j = column_of(turn);
        if (i >= rows || j >= Columns) return;
        float v[8];
#pragma unroll
        for (uint32_t y = 0; y < 8; y += 4) {
            const auto four = *reinterpret_cast<const Pack<float, 4>*>(sums + (own ^ y));
#pragma unroll
            for (int z = 0; z < 4; z++) v[y + z] = four.at[z];
        }
        if constexpr (Put::packs)
            if (packed) {
                put.finish(now, 0, row + i, j, v);
                return;
            }
        put(0, row + i, j, v);
    }
    /// The rest of two leaves of the tree, which joins them first.
    __device__ __forceinline__ void add_squares(float (&leaves)[2], float* sums,
                                                float* parts) const {
        static_assert(Columns == 64);
        constexpr uint32_t other = Warps == 1 ? 0 : 8 * kSumPitch;  // where the next warp's lie
        const uint32_t lane = threadIdx.x % 32;
        if constexpr (Warps > 1) {
            __syncwarp();
            if (col > 0)
#pragma unroll
                for (uint32_t k = 0; k < 2; k++) sums[32 * k + lane] = leaves[k];
            meet<Warps>();
            if (col > 0) return;
        }
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            if constexpr (Warps > 1) leaves[k] += sums[other + 32 * k + lane];
#pragma unroll
            for (int d = 16; d > 0; d /= 2) leaves[k] += __shfl_xor_sync(0xffffffffu, leaves[k], d);
        }
        if (rows > 0 && lane == 0) parts[row / 16] = leaves[0] + leaves[1];
    }
};

/// A member: 16 of a block's BM rows of A times weights that were asked for, by `Warps` warps.
/// `held`: A lies in `as`, where the member before left it; whether this one has done so. `as` is
/// the rows' own, `sums` the warp's. next() asks for the next member's weights.
template <int BM, int BN, int BK, int Warps, class Shape, class Put, class Next, class E>
__device__ __forceinline__ bool chain_link(const Grid& grid, const Put& put, const E* a, bool held,
                                           E* as, const E* weights, float* sums, const Next& next,
                                           float* parts = nullptr) {
    typedef LinkTiles<16, BN, BK, Shape, E> Tiles;
    typedef typename Tiles::A TileA;
    typedef typename Tiles::B TileB;
    constexpr int steps = Tiles::steps, cut_steps = int(Shape::chunk) / BK, own = BN / Warps,
                  threads = 32 * Warps;
    static_assert(Shape::chunk % BK == 0 && BM % 16 == 0 && Shape::m < (1 << 30));
    const int first = int(grid.block) * BM + int(threadIdx.x) / threads * 16,
              col = int(threadIdx.x) / 32 % Warps * own, left = int(Shape::m) - first,
              rows = left < 0    ? 0
                     : left < 16 ? left
                                 : 16;
    if (!held && rows > 0) {
        const E* const from = a + first * Shape::a_row;
        const bool aligned = aligned16(from);
#pragma unroll 1
        for (int s = 0; s < steps; s++)
            TileA::template fetch<threads, Tiles::whole_a>(
                as + s * TileA::elements, from + s * BK * Shape::a_col, int(threadIdx.x) % threads,
                rows, Tiles::left(s), aligned);
    }
    commit_copies();
    LinkCells<own, int(Shape::n), Warps, Put> cells(put, first, rows, col);
    wait_copies<0>();
    __syncthreads();  // the weights are there, and all are done with those before
    next();
    commit_copies();
    float acc[1][own / 8][4] = {};
    const auto add_steps = [&](int begin, int end) {
#pragma unroll 1
        for (int s = begin; s < end; s++)
            near_products<TileA, TileB, typename Shape::As, BK>(
                acc, as + s * TileA::elements, weights + s * TileB::elements, 0, col);
    };
    if constexpr (steps <= cut_steps) {
        add_steps(0, steps);
    } else {
        float total[1][own / 8][4];
#pragma unroll 1
        for (int s = 0; s < steps; s += cut_steps) {
            add_steps(s, s + cut_steps < steps ? s + cut_steps : steps);
            add_cut(total, acc, s == 0);
        }
#pragma unroll
        for (int z = 0; z < own / 8; z++)
#pragma unroll
            for (int y = 0; y < 4; y++) acc[0][z][y] = total[0][z][y];
    }
    if constexpr (Warps > 1 && Put::keeps) meet<Warps>();  // the rows were read
    cells.finish(acc[0], sums, parts);
    meet<Warps>();  // the next member reads what this one wrote, and writes where it read
    return Put::keeps && put.packed();
}

/// A cast as a member: 16 of a block's BM rows, for the next one in tiles of BK terms, too.
template <int BM, int BK, int Warps, int Rows, int Columns, int64_t Step, bool Keeps, class E,
          class Next>
__device__ __forceinline__ bool chain_cast(const Grid& grid, const float* x, E* y, E* rows,
                                           const Next& next) {
    __syncthreads();
    next();
    commit_copies();
    constexpr int line = Columns < 8 ? 1 : Columns / 8, threads = 32 * Warps, lots = 4 / Warps;
    const int lane = threadIdx.x % threads,
              first = int(grid.block) * BM + int(threadIdx.x) / threads * 16,
              left = Rows - first < 16 ? Rows - first : 16;
    const bool packed = Columns % 8 == 0 && Step % 4 == 0 && aligned16(x) && aligned16(y);
    if (!packed) {
        for (int u = lane; u < left * Columns; u += threads)
            y[int64_t(first) * Columns + u] =
                narrow<E>(x[(first + u / Columns) * Step + u % Columns]);
        meet<Warps>();
        return false;
    }
#pragma unroll 1
    for (int from = lane; from < left * line; from += threads * lots) {
        Pack<float, 4> read[lots][2];
#pragma unroll
        for (int lot = 0; lot < lots; lot++) {
            const int cell = from + threads * lot, i = cell / line, j = cell % line * 8;
#pragma unroll
            for (int half = 0; half < 2 && cell < left * line; half++)
                read[lot][half] =
                    *reinterpret_cast<const Pack<float, 4>*>(x + (first + i) * Step + j + 4 * half);
        }
#pragma unroll
        for (int lot = 0; lot < lots; lot++) {
            const int cell = from + threads * lot, i = cell / line, j = cell % line * 8;
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
    meet<Warps>();
    return Keeps;
}

/// The block's shared memory.
__device__ __forceinline__ char* chain_room() {
    extern __shared__ __align__(128) char room[];
    return room;
}

}  // namespace aicf
