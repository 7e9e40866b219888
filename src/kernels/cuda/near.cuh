// Products that few tiles cover, in the order chain(Chunk) of f32: tiles small enough for all
// processors to have one, chunks of k side by side on groups of threads of a block. Operands lie in
// shared memory as in global memory, lines of k or across it, so that copies take 16 bytes.
#pragma once

#include "matmul.cuh"

namespace aicf {

/// A tile of one operand: `Wide` rows or columns of a product, Depth of k. Step is how far apart
/// two of them lie in memory, Next two neighbours along k.
template <int Wide, int Depth, int64_t Step, int64_t Next>
struct NearTile {
    static constexpr bool along = Step != 1;  // lines are of k, unless those across it are dense
    static constexpr int lines = along ? Wide : Depth, length = along ? Depth : Wide,
                         pitch = length + 4, floats = lines * pitch;
    static constexpr int64_t line_step = along ? Step : Next, step = along ? Next : 1;
    static constexpr bool packs = step == 1 && line_step % 4 == 0;

    /// By `Threads` threads, of which this is number t; `wide` and `depth` of the tile exist, all
    /// of them where it is Whole. `aligned`: lines begin at multiples of 16 bytes.
    template <int Threads, bool Whole>
    __device__ __forceinline__ static void fetch(float* to, const float* from, int t, int wide,
                                                 int depth, bool aligned) {
        constexpr int fours = length / 4, at_once = Threads / fours;
        static_assert(Threads % fours == 0 && lines % at_once == 0);
        const int some = along ? wide : depth, filled = along ? depth : wide;
        if (packs && aligned) {
            const int e = t % fours * 4, first = t / fours;
            const float* const x = from + first * line_step + e;
            float* const y = to + first * pitch + e;
            if (Whole || (some == lines && filled == length)) {
#pragma unroll
                for (int line = 0; line < lines; line += at_once)
                    copy_async<16>(y + line * pitch, x + line * line_step);
            } else {
#pragma unroll 1
                for (int line = 0; first + line < some; line += at_once)
                    if (e + 4 <= filled)
                        copy_async<16>(y + line * pitch, x + line * line_step);
                    else
                        for (int j = 0; e + j < filled; j++)
                            copy_async<4>(y + line * pitch + j, x + line * line_step + j);
            }
        } else {
#pragma unroll 4
            for (int u = t; u < lines * length; u += Threads) {
                const int line = u / length, e = u % length;
                if (Whole || (line < some && e < filled))
                    copy_async<4>(to + line * pitch + e, from + line * line_step + e * step);
            }
        }
    }
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
#pragma unroll
            for (int q = 0; q < 4; q++) {
                const auto pack =
                    *reinterpret_cast<const Pack<float, N>*>(tile + (p + q) * pitch + first);
#pragma unroll
                for (int i = 0; i < N; i++) v[q][i] = pack.at[i];
            }
        }
    }
    __device__ __forceinline__ static float one(const float* tile, int i, int p) {
        return along ? tile[i * pitch + p] : tile[p * pitch + i];
    }
};

/// A thread makes R x C of a tile BM x BN. Each of `Groups` groups takes a run of chunks; with
/// several their sums meet in shared memory, where they are added in ascending order.
template <int BM, int BN, int R, int C, int Groups, int Stages, class Shape, class Put>
__device__ __forceinline__ void gemm_near(const Grid& grid, const Put& put, const float* a,
                                          const float* b) {
    constexpr int BK = 32, across = BN / C, threads = across * (BM / R);
    constexpr int k = int(Shape::k), chunk = int(Shape::chunk), chunks = (k + chunk - 1) / chunk,
                  run = (chunks + Groups - 1) / Groups, chunk_steps = chunk / BK;
    typedef NearTile<BM, BK, Shape::a_row, Shape::a_col> TileA;
    typedef NearTile<BN, BK, Shape::b_col, Shape::b_row> TileB;
    // Columns of neighbouring threads are neighbours where k runs along the lines of b: theirs lie
    // in banks of their own.
    constexpr int apart = TileB::along ? across : 1;
    constexpr uint32_t down = uint32_t((Shape::m + BM - 1) / BM),
                       side = uint32_t((Shape::n + BN - 1) / BN),
                       tiles = uint32_t(Shape::batches) * down * side;
    extern __shared__ __align__(16) char shared[];
    const int group = Groups == 1 ? 0 : threadIdx.x / threads, t = threadIdx.x % threads;
    const int tx = t % across, ty = t / across;
    const int row = ty * R, col = TileB::along ? tx : tx * C;
    float* const own =
        reinterpret_cast<float*>(shared) + group * Stages * (TileA::floats + TileB::floats);
    float* const sums =
        reinterpret_cast<float*>(shared) + Groups * Stages * (TileA::floats + TileB::floats);
    const auto wait = [=] {
        if constexpr (threads == 32)
            __syncwarp();
        else
            wait_for(1 + group, threads);
    };
    for (uint32_t u = grid.block; u < tiles; u += grid.blocks) {
        const uint32_t batch = Shape::batches == 1 ? 0 : u / (down * side), at = u % (down * side);
        const int64_t i0 = int64_t(at / side) * BM, j0 = int64_t(at % side) * BN;
        const int rows = Shape::m - i0 < BM ? int(Shape::m - i0) : BM,
                  cols = Shape::n - j0 < BN ? int(Shape::n - j0) : BN;
        const int begin = group * run * chunk,
                  end = begin + run * chunk < k ? begin + run * chunk : k;
        const int steps = end > begin ? (end - begin + BK - 1) / BK : 0;
        const float* const ap = a + Shape::A::at(batch) + i0 * Shape::a_row + begin * Shape::a_col;
        const float* const bp = b + Shape::B::at(batch) + j0 * Shape::b_col + begin * Shape::b_row;
        const bool a_aligned = aligned16(ap), b_aligned = aligned16(bp);
        const auto fetch = [&](int s) {
            float* const to = own + s % Stages * (TileA::floats + TileB::floats);
            const int depth = end - begin - s * BK < BK ? end - begin - s * BK : BK;
            TileA::template fetch<threads, k % BK == 0 && Shape::m % BM == 0>(
                to, ap + s * BK * Shape::a_col, t, rows, depth, a_aligned);
            TileB::template fetch<threads, k % BK == 0 && Shape::n % BN == 0>(
                to + TileA::floats, bp + s * BK * Shape::b_row, t, cols, depth, b_aligned);
        };
        float acc[R][C] = {}, total[R][C] = {};
#pragma unroll 1
        for (int s = 0; s < Stages - 1; s++) {
            if (s < steps) fetch(s);
            commit_copies();
        }
#pragma unroll 1
        for (int s = 0; s < steps; s++) {
            wait_copies<Stages - 2>();
            wait();
            if (s + Stages - 1 < steps) fetch(s + Stages - 1);
            commit_copies();
            const float* const as = own + s % Stages * (TileA::floats + TileB::floats);
            const float* const bs = as + TileA::floats;
            const int depth = end - begin - s * BK;
            if (k % BK == 0 || depth >= BK) {
                float av[2][4][R], bv[2][4][C];
                TileA::template four<R, 1>(av[0], as, row, 0);
                TileB::template four<C, apart>(bv[0], bs, col, 0);
#pragma unroll
                for (int p = 0; p < BK; p += 4) {
                    const int now = p / 4 % 2;
                    if (p + 4 < BK) {
                        TileA::template four<R, 1>(av[1 - now], as, row, p + 4);
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
                    TileA::template four<R, 1>(av, as, row, p);
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
                            acc[r][c] = scalar::fma(TileA::one(as, row + r, p),
                                                    TileB::one(bs, col + c * apart, p), acc[r][c]);
            }
            if ((s + 1) % chunk_steps && s + 1 < steps) continue;
            const int number = group * run + s / chunk_steps;  // of the chunk that is done
#pragma unroll
            for (int r = 0; r < R; r++)
#pragma unroll
                for (int c = 0; c < C; c++) {
                    if constexpr (Groups > 1)
                        sums[number * (BM * BN) + (row + r) * BN + col + c * apart] = acc[r][c];
                    else
                        total[r][c] = number == 0 ? acc[r][c] : total[r][c] + acc[r][c];
                    acc[r][c] = 0.0f;
                }
        }
        if constexpr (Groups > 1) {
            __syncthreads();
#pragma unroll 1
            for (int e = threadIdx.x; e < BM * BN; e += Groups * threads) {
                float v[1] = {sums[e]};
#pragma unroll
                for (int i = 1; i < chunks; i++) v[0] = v[0] + sums[i * (BM * BN) + e];
                if (e / BN < rows && e % BN < cols) put(batch, i0 + e / BN, j0 + e % BN, v);
            }
        } else {
#pragma unroll
            for (int r = 0; r < R; r++) {
                if (row + r >= rows) continue;
                if constexpr (apart == 1) {
                    if (col < cols) put(batch, i0 + row + r, j0 + col, total[r]);
                } else {
#pragma unroll
                    for (int c = 0; c < C; c++) {
                        const float v[1] = {total[r][c]};
                        if (col + c * apart < cols)
                            put(batch, i0 + row + r, j0 + col + c * apart, v);
                    }
                }
            }
        }
        __syncthreads();  // the next tile's copies go where this one was read
    }
}

}  // namespace aicf
