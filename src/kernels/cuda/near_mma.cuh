// Products that few tiles cover, on tensor cores of 9.0 in the orders mma8(Chunk) and mma16(Chunk):
// tiles small enough for all processors to have one, cuts of k side by side on groups of warps of a
// block. Operands of float32 are rounded in registers, so that no copy of them is made first.
#pragma once

#include "mma.cuh"
#include "near_run.cuh"

namespace aicf {

/// Of one operand. Where k runs along the lines a lane reads two terms of float32 together, else
/// two lines; of 16 bits a warp reads whole matrices. Lines are as far apart as keeps its words in
/// banks of their own.
template <class E, class As, int Wide, int Depth, int64_t Step, int64_t Next>
struct MmaTile : NearLines<E, Wide, Depth, Step, Next, 8, sizeof(E) == 4 ? 4 : 8> {
    typedef NearLines<E, Wide, Depth, Step, Next, 8, sizeof(E) == 4 ? 4 : 8> Lines;
    using Lines::along;
    using Lines::pitch;
    static_assert(Depth % 32 == 0 && Wide % 16 == 0);

    /// Two neighbours along k, as they are in memory.
    __device__ __forceinline__ static Pack<float, 2> two(const float* tile, int i, int p) {
        if constexpr (along) return *reinterpret_cast<const Pack<float, 2>*>(tile + i * pitch + p);
        return {{tile[p * pitch + i], tile[(p + 1) * pitch + i]}};
    }
    /// What a lane holds of rows or columns i to i + 15 for the step of k that begins at p: the
    /// lower half of the terms of the first eight, of the others, the upper half of both.
    __device__ __forceinline__ static void words(uint32_t (&word)[4], const E* tile, int i, int p) {
        const int lane = threadIdx.x % 32;
        if constexpr (sizeof(E) == 4) {
            const int first = p + lane % 4 * 2, own = i + lane / 4;
#pragma unroll
            for (int half = 0; half < 2; half++)
                step_words<As>(word[half], word[half + 2],
                               [=](int at) { return two(tile, own + 8 * half, first + at); });
        } else {
            const int other = i + lane / 8 % 2 * 8, term = p + lane / 16 * 8;
            const int line = along ? other + lane % 8 : term + lane % 8;
            load_matrices<!along>(word,
                                  shared_address(tile + line * pitch + (along ? term : other)));
        }
    }
};

/// BK terms of k onto a warp's sums, of tiles in shared memory from a row and a column on.
template <class TileA, class TileB, class As, int BK, int Rows, int Columns, class E>
__device__ __forceinline__ void near_products(float (&acc)[Rows][Columns][4], const E* as,
                                              const E* bs, int row, int col) {
#pragma unroll
    for (int p = 0; p < BK; p += step_terms<As>) {
        uint32_t av[Rows][4], bv[Columns / 2][4];
#pragma unroll
        for (int x = 0; x < Rows; x++) TileA::words(av[x], as, row + 16 * x, p);
#pragma unroll
        for (int z = 0; z < Columns / 2; z++) TileB::words(bv[z], bs, col + 16 * z, p);
#pragma unroll
        for (int x = 0; x < Rows; x++)
#pragma unroll
            for (int z = 0; z < Columns; z++)
                mma<As>(acc[x][z], av[x], bv[z / 2][z % 2], bv[z / 2][z % 2 + 2]);
    }
}
/// Adds a cut's sums, which begin at 0 again, to those before, if there are any.
template <int Rows, int Columns>
__device__ __forceinline__ void add_cut(float (&total)[Rows][Columns][4],
                                        float (&acc)[Rows][Columns][4], bool first) {
#pragma unroll
    for (int x = 0; x < Rows; x++)
#pragma unroll
        for (int z = 0; z < Columns; z++)
#pragma unroll
            for (int y = 0; y < 4; y++) {
                total[x][z][y] = first ? acc[x][z][y] : total[x][z][y] + acc[x][z][y];
                acc[x][z][y] = 0.0f;
            }
}

/// A block makes BM x BN, a warp WM x WN of it. Each of `Groups` groups of warps takes a run of
/// cuts; with several their sums meet in shared memory, where they are added in ascending order.
template <int BM, int BN, int WM, int WN, int BK, int Groups, int Stages, class Shape, class Put,
          class E>
__device__ __forceinline__ void gemm_near_mma(const Grid& grid, const Put& put, const E* a,
                                              const E* b) {
    typedef typename Shape::As As;
    constexpr int threads = 32 * (BM / WM) * (BN / WN);
    constexpr int k = int(Shape::k), cut = int(Shape::chunk), cuts = (k + cut - 1) / cut,
                  run = (cuts + Groups - 1) / Groups, cut_steps = cut / BK,
                  most_steps = (run * cut < k ? run * cut + BK - 1 : k + BK - 1) / BK,
                  ahead = most_steps <= Stages ? Stages : Stages - 1;  // all that there is at once
    typedef MmaTile<E, As, BM, BK, Shape::a_row, Shape::a_col> TileA;
    typedef MmaTile<E, As, BN, BK, Shape::b_col, Shape::b_row> TileB;
    typedef NearRun<BM, BN, BK, threads, run * cut, Shape, TileA, TileB> Run;
    static_assert(cut % BK == 0 || cuts == 1);
    constexpr int ring = Stages * Run::stage, pitch = BN + 8;  // of sums: rows in other banks
    constexpr bool in_place = run == 1;  // sums lie where the cut's operands did
    static_assert(!in_place || BM * pitch * sizeof(float) <= ring * sizeof(E));
    extern __shared__ __align__(128) char room[];
    const int group = Groups == 1 ? 0 : threadIdx.x / threads, t = threadIdx.x % threads;
    const int lane = t % 32, warp = t / 32;
    const int row = warp % (BM / WM) * WM, col = warp / (BM / WM) * WN, own_row = row + lane / 4,
              own_col = col + lane % 4 * 2;  // of the sums that a lane holds
    E* const own = reinterpret_cast<E*>(room) + group * ring;
    const auto sums_of = [=](int number) {
        const int at = in_place ? number * ring * int(sizeof(E))
                                : Groups * ring * int(sizeof(E)) + number * (BM * pitch) * 4;
        return reinterpret_cast<float*>(room + at);
    };
    const auto wait = [=] {
        if constexpr (threads == 32)
            __syncwarp();
        else
            wait_for(1 + group, threads);
    };
    for (uint32_t u = grid.block; u < Run::tiles; u += grid.blocks) {
        const Run at(u, group, a, b);
        const int steps = at.steps;
        const auto fetch = [&](int s) { at.fetch(own + s % Stages * Run::stage, s, t); };
        float acc[WM / 16][WN / 8][4] = {}, total[WM / 16][WN / 8][4] = {};
        constexpr bool gathers = Put::updates || Groups > 1;  // sums go through shared memory
        at.template begin<ahead>(own, t, put, false, [] {});
#pragma unroll 1
        for (int s = 0; s < steps; s++) {
            wait_copies<ahead - 1>();
            wait();
            if (ahead < Stages && s + ahead < steps) fetch(s + ahead);
            commit_copies();
            const E* const as = own + s % Stages * Run::stage;
            near_products<TileA, TileB, As, BK>(acc, as, as + TileA::elements, row, col);
            if ((s + 1) % cut_steps && s + 1 < steps) continue;
            const int number = group * run + s / cut_steps;  // of the cut that is done
            if constexpr (Groups > 1 && in_place) wait();
            if constexpr (Groups > 1) {
                float* const to = sums_of(number) + own_row * pitch + own_col;
#pragma unroll
                for (int x = 0; x < WM / 16; x++)
#pragma unroll
                    for (int z = 0; z < WN / 8; z++)
#pragma unroll
                        for (int high = 0; high < 2; high++)
                            *reinterpret_cast<Pack<float, 2>*>(to + (16 * x + 8 * high) * pitch +
                                                               8 * z) = {
                                {acc[x][z][2 * high], acc[x][z][2 * high + 1]}};
            }
            add_cut(total, acc, number == 0);
        }
        if constexpr (!Put::updates) begin_kernel();  // before anything else is read, or stored
        if constexpr (gathers) {
            static_assert(!Put::updates || BM * pitch * sizeof(float) <= ring * sizeof(E));
            __syncthreads();
            if constexpr (Groups == 1) {
#pragma unroll
                for (int x = 0; x < WM / 16; x++)
#pragma unroll
                    for (int high = 0; high < 2; high++)
#pragma unroll
                        for (int z = 0; z < WN / 8; z++)
                            *reinterpret_cast<Pack<float, 2>*>(
                                reinterpret_cast<float*>(room) +
                                (own_row + 16 * x + 8 * high) * pitch + own_col +
                                8 * z) = {{total[x][z][2 * high], total[x][z][2 * high + 1]}};
                __syncthreads();
            }
            put_sums<BM, BN, Groups * threads, float>(
                put, threadIdx.x, at.batch, at.row, at.col, at.rows, at.cols,
                [=](int i, int j, float (&v)[4]) {
                    add_fours<(Groups > 1 ? cuts : 1)>(v, [=](int c) {
                        return (Groups > 1 ? sums_of(c) : reinterpret_cast<float*>(room)) +
                               i * pitch + j;
                    });
                });
        } else {
#pragma unroll
            for (int x = 0; x < WM / 16; x++)
#pragma unroll
                for (int high = 0; high < 2; high++)
#pragma unroll
                    for (int z = 0; z < WN / 8; z++) {
                        const int i = own_row + 16 * x + 8 * high, j = own_col + 8 * z;
                        const float v[2] = {total[x][z][2 * high], total[x][z][2 * high + 1]};
                        if (i < at.rows && j < at.cols) put(at.batch, at.row + i, at.col + j, v);
                    }
        }
        __syncthreads();  // the next tile's copies go where this one was read
    }
}

}  // namespace aicf
