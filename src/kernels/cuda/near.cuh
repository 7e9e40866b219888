// Products that few tiles cover, in the order chain(Chunk) of f32: tiles small enough for all
// processors to have one, chunks of k side by side on groups of threads of a block. Operands lie in
// shared memory as in global memory.
#pragma once

#include "near_run.cuh"

namespace aicf {

/// Of one operand, of which only terms and results that exist are read.
template <int Wide, int Depth, int64_t Step, int64_t Next>
struct NearTile : NearLines<float, Wide, Depth, Step, Next, 4, 4, false> {
    typedef NearLines<float, Wide, Depth, Step, Next, 4, 4, false> Lines;
    using Lines::along;
    using Lines::pitch;
    /// Terms p to p + 3 of N elements that begin at `first`, `Apart` apart.
    template <int N, int Apart>
    __device__ __forceinline__ static void four(float (&v)[4][N], const float* tile, int first,
                                                int p) {
        if constexpr (along) {
#pragma unroll
            for (int i = 0; i < N; i++) {
                const auto pack = *reinterpret_cast<const Pack<float, 4>*>(
                    tile + (first + i * Apart) * pitch + p);
#pragma unroll
                for (int q = 0; q < 4; q++) v[q][i] = pack.at[q];
            }
        } else {
            static_assert(Apart == 1);
            constexpr int some = N < 4 ? N : 4;
#pragma unroll
            for (int q = 0; q < 4; q++)
#pragma unroll
                for (int i = 0; i < N; i += some) {
                    const auto pack = *reinterpret_cast<const Pack<float, some>*>(
                        tile + (p + q) * pitch + first + i);
#pragma unroll
                    for (int x = 0; x < some; x++) v[q][i + x] = pack.at[x];
                }
        }
    }
    __device__ __forceinline__ static float one(const float* tile, int i, int p) {
        return along ? tile[i * pitch + p] : tile[p * pitch + i];
    }
};

/// A thread makes R x C of a tile BM x BN. Each of `Groups` groups takes a run of chunks; with
/// several their sums meet in shared memory, where they are added in ascending order: where the
/// operands of a group's one chunk were, or behind all operands.
template <int BM, int BN, int R, int C, int Groups, int Stages, class Shape, class Put>
__device__ __forceinline__ void gemm_near(const Grid& grid, const Put& put, const float* a,
                                          const float* b) {
    constexpr int BK = 32, across = BN / C, threads = across * (BM / R);
    constexpr int k = int(Shape::k), chunk = int(Shape::chunk), chunks = (k + chunk - 1) / chunk,
                  run = (chunks + Groups - 1) / Groups, chunk_steps = chunk / BK;
    typedef NearTile<BM, BK, Shape::a_row, Shape::a_col> TileA;
    typedef NearTile<BN, BK, Shape::b_col, Shape::b_row> TileB;
    // Columns of neighbouring threads are neighbours where k runs along the lines of b: theirs lie
    // in banks of their own. So are rows, where a warp has four or more.
    constexpr bool rows_apart = TileA::along && across <= 8;
    constexpr int under = rows_apart ? BM / R : 1, apart = TileB::along ? across : 1;
    typedef NearRun<BM, BN, BK, threads, run * chunk, Shape, TileA, TileB> Run;
    constexpr bool in_place = Groups > 1 && run == 1;
    constexpr int ring = Stages * Run::stage, apart_sums = in_place ? ring : BM * BN;
    static_assert(!in_place || BM * BN <= ring);
    extern __shared__ __align__(16) char shared[];
    const int group = Groups == 1 ? 0 : threadIdx.x / threads, t = threadIdx.x % threads;
    const int tx = t % across, ty = t / across;
    const int row = rows_apart ? ty : ty * R, col = TileB::along ? tx : tx * C;
    float* const own = reinterpret_cast<float*>(shared) + group * ring;
    float* const sums = reinterpret_cast<float*>(shared) + (in_place ? 0 : Groups * ring);
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
        float acc[R][C] = {}, total[R][C] = {};
        // What updates read fills too many registers to be there while the product is made.
        constexpr bool gathers = Put::updates || Groups > 1, early = gathers && !Put::updates;
        [[maybe_unused]] TileLot<BM, BN, Groups * threads, Put> lot;
        at.template begin<Stages - 1>(own, t, put, early, [&] {
            if constexpr (early)
                lot.read(put, threadIdx.x, at.batch, at.row, at.col, at.rows, at.cols);
        });
#pragma unroll 1
        for (int s = 0; s < steps; s++) {
            wait_copies<Stages - 2>();
            wait();
            if (s + Stages - 1 < steps) fetch(s + Stages - 1);
            commit_copies();
            const float* const as = own + s % Stages * Run::stage;
            const float* const bs = as + TileA::elements;
            const int depth = at.depth - s * BK;
            if (k % BK == 0 || depth >= BK) {
                float av[2][4][R], bv[2][4][C];
                TileA::template four<R, under>(av[0], as, row, 0);
                TileB::template four<C, apart>(bv[0], bs, col, 0);
#pragma unroll
                for (int p = 0; p < BK; p += 4) {
                    const int now = p / 4 % 2;
                    if (p + 4 < BK) {
                        TileA::template four<R, under>(av[1 - now], as, row, p + 4);
                        TileB::template four<C, apart>(bv[1 - now], bs, col, p + 4);
                    }
#pragma unroll
                    for (int q = 0; q < 4; q++)
#pragma unroll
                        for (int r = 0; r < R; r++)
#pragma unroll
                            for (int c = 0; c < C; c++)
                                acc[r][c] = scalar::fma(av[now][q][r], bv[now][q][c], acc[r][c]);
                }
            } else {
                int p = 0;
#pragma unroll 1
                for (; p + 4 <= depth; p += 4) {
                    float av[4][R], bv[4][C];
                    TileA::template four<R, under>(av, as, row, p);
                    TileB::template four<C, apart>(bv, bs, col, p);
#pragma unroll
                    for (int q = 0; q < 4; q++)
#pragma unroll
                        for (int r = 0; r < R; r++)
#pragma unroll
                            for (int c = 0; c < C; c++)
                                acc[r][c] = scalar::fma(av[q][r], bv[q][c], acc[r][c]);
                }
#pragma unroll 1
                for (; p < depth; p++)
#pragma unroll
                    for (int r = 0; r < R; r++)
#pragma unroll
                        for (int c = 0; c < C; c++)
                            acc[r][c] = scalar::fma(TileA::one(as, row + r * under, p),
                                                    TileB::one(bs, col + c * apart, p), acc[r][c]);
            }
            if ((s + 1) % chunk_steps && s + 1 < steps) continue;
            const int number = group * run + s / chunk_steps;  // of the chunk that is done
            if constexpr (in_place) wait();
#pragma unroll
            for (int r = 0; r < R; r++)
#pragma unroll
                for (int c = 0; c < C; c++) {
                    if constexpr (Groups > 1)
                        sums[number * apart_sums + (row + r * under) * BN + col + c * apart] =
                            acc[r][c];
                    else
                        total[r][c] = number == 0 ? acc[r][c] : total[r][c] + acc[r][c];
                    acc[r][c] = 0.0f;
                }
        }
        if constexpr (!Put::updates) begin_kernel();  // before anything else is read, or stored
        if constexpr (gathers) {
            __syncthreads();
            float* const tile = Groups > 1 ? sums : reinterpret_cast<float*>(shared);
            if constexpr (Groups == 1) {
#pragma unroll
                for (int r = 0; r < R; r++)
#pragma unroll
                    for (int c = 0; c < C; c++)
                        tile[(row + r * under) * BN + col + c * apart] = total[r][c];
                __syncthreads();
            }
            const auto value = [=](int i, int j, float (&v)[4]) {
                add_fours<(Groups > 1 ? chunks : 1)>(
                    v, [=](int c) { return tile + c * apart_sums + i * BN + j; });
            };
            if constexpr (early)
                put_sums<BM, BN, Groups * threads, float>(put, lot, at.batch, at.row, at.col,
                                                          at.rows, at.cols, value);
            else
                put_sums<BM, BN, Groups * threads, float>(put, threadIdx.x, at.batch, at.row,
                                                          at.col, at.rows, at.cols, value);
        } else {
#pragma unroll
            for (int r = 0; r < R; r++) {
                if (row + r * under >= at.rows) continue;
                if constexpr (apart == 1) {
                    if (col < at.cols)
                        put(at.batch, at.row + row + r * under, at.col + col, total[r]);
                } else {
#pragma unroll
                    for (int c = 0; c < C; c++) {
                        const float v[1] = {total[r][c]};
                        if (col + c * apart < at.cols)
                            put(at.batch, at.row + row + r * under, at.col + col + c * apart, v);
                    }
                }
            }
        }
        __syncthreads();  // the next tile's copies go where this one was read
    }
}

}  // namespace aicf
