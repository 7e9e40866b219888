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

template <bool Staged, class Put>
constexpr bool packs_of = false;
template <class Put>
constexpr bool packs_of<true, Put> = Put::packs;
template <bool Packs, class Put>
struct OperandsOf {
    struct type {};
};
template <class Put>
struct OperandsOf<true, Put> {
    typedef typename Put::Operands type;
};

/// What follows a tile's sums, which lie in shared memory: 8 neighbours at a time. The text stands
/// there once; what the next ones need is on its way meanwhile, of the first ones while k runs.
template <int BM, int BN, int Threads, bool Packs, class Put>
struct NearCells {
    typename OperandsOf<Packs, Put>::type next = {};
    bool packed = false;

    template <class Run>
    __device__ __forceinline__ void load(const Put& put, const Run& at, int cell) {
        if constexpr (Packs) {
            const int i = cell / (BN / 8), j = cell % (BN / 8) * 8;
            if (packed && i < at.rows && j < at.cols)
                next = put.operands(at.batch, at.row + i, at.col + j);
        }
    }
    template <class Run>
    __device__ __forceinline__ void begin(const Put& put, const Run& at, int t) {
        if constexpr (Packs) packed = put.packed();
        load(put, at, t);
    }
    template <class Run>
    __device__ __forceinline__ void finish(const Put& put, const Run& at, int t, const float* sums,
                                           int pitch) {
#pragma unroll 1
        for (int cell = t; cell < BM * BN / 8; cell += Threads) {
            const auto now = next;
            load(put, at, cell + Threads);
            const int i = cell / (BN / 8), j = cell % (BN / 8) * 8;
            if (i >= at.rows || j >= at.cols) continue;
            float v[8];
#pragma unroll
            for (int y = 0; y < 8; y += 4) {
                const auto four =
                    *reinterpret_cast<const Pack<float, 4>*>(sums + i * pitch + j + y);
#pragma unroll
                for (int z = 0; z < 4; z++) v[y + z] = four.at[z];
            }
            if constexpr (Packs)
                if (packed) {
                    put.finish(now, at.batch, at.row + i, at.col + j, v);
                    continue;
                }
            (void)now;
            put(at.batch, at.row + i, at.col + j, v);
        }
    }
};

/// A block makes BM x BN, a warp WM x WN of it. Each of `Groups` groups of warps takes a run of
/// cuts; with several their sums meet in shared memory, where they are added in ascending order.
/// Staged: what follows takes the sums from shared memory, 8 neighbours at a time.
template <int BM, int BN, int WM, int WN, int BK, int Groups, int Stages, class Shape, bool Staged,
          class Put, class E>
__device__ __forceinline__ void gemm_near_mma(const Grid& grid, const Put& put, const E* a,
                                              const E* b) {
    typedef typename Shape::As As;
    constexpr int threads = 32 * (BM / WM) * (BN / WN), each = step_terms<As>;
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
    static_assert(!(in_place || Staged) || BM * pitch * sizeof(float) <= ring * sizeof(E));
    static_assert(!Staged || Groups == 1);
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
#pragma unroll 1
        for (int s = 0; s < ahead; s++) {
            if (s < steps) fetch(s);
            commit_copies();
        }
        NearCells<BM, BN, threads, packs_of<Staged, Put>, Put> cells;
        if constexpr (Staged) cells.begin(put, at, t);
#pragma unroll 1
        for (int s = 0; s < steps; s++) {
            wait_copies<ahead - 1>();
            wait();
            if (ahead < Stages && s + ahead < steps) fetch(s + ahead);
            commit_copies();
            const E* const as = own + s % Stages * Run::stage;
            const E* const bs = as + TileA::elements;
#pragma unroll
            for (int p = 0; p < BK; p += each) {
                uint32_t av[WM / 16][4], bv[WN / 16][4];
#pragma unroll
                for (int x = 0; x < WM / 16; x++) TileA::words(av[x], as, row + 16 * x, p);
#pragma unroll
                for (int z = 0; z < WN / 16; z++) TileB::words(bv[z], bs, col + 16 * z, p);
#pragma unroll
                for (int x = 0; x < WM / 16; x++)
#pragma unroll
                    for (int z = 0; z < WN / 8; z++)
                        mma<As>(acc[x][z], av[x], bv[z / 2][z % 2], bv[z / 2][z % 2 + 2]);
            }
            if ((s + 1) % cut_steps && s + 1 < steps) continue;
            const int number = group * run + s / cut_steps;  // of the cut that is done
            if constexpr (Groups > 1 && in_place) wait();
#pragma unroll
            for (int x = 0; x < WM / 16; x++)
#pragma unroll
                for (int z = 0; z < WN / 8; z++) {
                    if constexpr (Groups > 1) {
                        float* const to =
                            sums_of(number) + (own_row + 16 * x) * pitch + own_col + 8 * z;
                        *reinterpret_cast<Pack<float, 2>*>(to) = {{acc[x][z][0], acc[x][z][1]}};
                        *reinterpret_cast<Pack<float, 2>*>(to + 8 * pitch) = {
                            {acc[x][z][2], acc[x][z][3]}};
                    }
#pragma unroll
                    for (int y = 0; y < 4; y++) {
                        total[x][z][y] = number == 0 ? acc[x][z][y] : total[x][z][y] + acc[x][z][y];
                        acc[x][z][y] = 0.0f;
                    }
                }
        }
        if constexpr (Groups > 1) {
            __syncthreads();
#pragma unroll 1
            for (int e = threadIdx.x; e < BM * BN / 2; e += Groups * threads) {
                const int i = e / (BN / 2), j = e % (BN / 2) * 2;
                auto v = *reinterpret_cast<const Pack<float, 2>*>(sums_of(0) + i * pitch + j);
#pragma unroll
                for (int c = 1; c < cuts; c++) {
                    const auto next =
                        *reinterpret_cast<const Pack<float, 2>*>(sums_of(c) + i * pitch + j);
#pragma unroll
                    for (int y = 0; y < 2; y++) v.at[y] = v.at[y] + next.at[y];
                }
                if (i < at.rows && j < at.cols) put(at.batch, at.row + i, at.col + j, v.at);
            }
        } else if constexpr (Staged) {
            __syncthreads();  // the sums lie where operands did
            float* const sums = reinterpret_cast<float*>(room);
#pragma unroll
            for (int x = 0; x < WM / 16; x++)
#pragma unroll
                for (int high = 0; high < 2; high++)
#pragma unroll
                    for (int z = 0; z < WN / 8; z++)
                        *reinterpret_cast<Pack<float, 2>*>(
                            sums + (own_row + 16 * x + 8 * high) * pitch + own_col +
                            8 * z) = {{total[x][z][2 * high], total[x][z][2 * high + 1]}};
            __syncthreads();
            cells.finish(put, at, t, sums, pitch);
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
