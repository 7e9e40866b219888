// Products of float32 that few tiles cover, on tensor cores of 9.0 in the orders mma8(Chunk) and
// mma16(Chunk): tiles small enough for all processors to have one, cuts of k side by side on groups
// of warps of a block. Operands lie in shared memory as in global memory and are rounded in
// registers, so that no copy of them is made first.
#pragma once

#include "mma.cuh"

namespace aicf {

/// A tile of one operand: `Wide` rows or columns of a product, Depth of k. Step is how far apart
/// two of them lie in memory, Next two neighbours along k. Where k runs along the lines a lane
/// reads two terms together, else two lines: lines are as far apart as keeps a warp's words in
/// banks of their own.
template <class As, int Wide, int Depth, int64_t Step, int64_t Next>
struct MmaTile {
    static constexpr bool along = Step != 1;  // lines are of k, unless those across it are dense
    static constexpr int lines = along ? Wide : Depth, length = along ? Depth : Wide,
                         pitch = length + (along ? 8 : 4), floats = lines * pitch;
    static constexpr int64_t line_step = along ? Step : Next, step = along ? Next : 1;
    static constexpr bool packs = step == 1 && line_step % 4 == 0;
    static_assert(Depth % 32 == 0 && Wide % 8 == 0);

    /// By `Threads` threads, of which this is number t; `wide` and `depth` of the tile exist, all
    /// of them where it is Whole; the rest is 0. `aligned`: lines begin at multiples of 16 bytes.
    template <int Threads, bool Whole>
    __device__ __forceinline__ static void fetch(uint32_t to, const float* from, int t, int wide,
                                                 int depth, bool aligned) {
        constexpr int fours = length / 4, at_once = Threads / fours;
        static_assert(Threads % fours == 0 && lines % at_once == 0);
        const int some = along ? wide : depth, filled = along ? depth : wide;
        if (packs && aligned) {
            const int e = t % fours * 4, first = t / fours;
            const float* const x = from + first * line_step + e;
            const uint32_t y = to + 4 * (first * pitch + e);
            if (Whole || (some == lines && filled == length)) {
#pragma unroll
                for (int line = 0; line < lines; line += at_once)
                    copy_async_filled(y + 4 * line * pitch, x + line * line_step, 16);
            } else {
                const int left = filled - e < 0 ? 0 : filled - e < 4 ? filled - e : 4;
#pragma unroll 1
                for (int line = 0; line < lines; line += at_once) {
                    const int count = first + line < some ? left : 0;
                    copy_async_filled(y + 4 * line * pitch, count ? x + line * line_step : from,
                                      4 * count);
                }
            }
        } else {
#pragma unroll 4
            for (int u = t; u < lines * length; u += Threads) {
                const int line = u / length, e = u % length;
                const bool exists = Whole || (line < some && e < filled);
                copy_async_word(to + 4 * (line * pitch + e),
                                exists ? from + line * line_step + e * step : from, exists);
            }
        }
    }

    /// Two neighbours along k, as they are in memory.
    __device__ __forceinline__ static Pack<float, 2> two(const float* tile, int i, int p) {
        if constexpr (along) return *reinterpret_cast<const Pack<float, 2>*>(tile + i * pitch + p);
        return {{tile[p * pitch + i], tile[(p + 1) * pitch + i]}};
    }
    /// What a lane holds of row or column i for the step of k that begins at p.
    __device__ __forceinline__ static void words(uint32_t& low, uint32_t& high, const float* tile,
                                                 int i, int p) {
        const int first = p + threadIdx.x % 4 * 2;
        step_words<As>(low, high, [=](int at) { return two(tile, i, first + at); });
    }
};

/// A block makes BM x BN, a warp WM x WN of it. Each of `Groups` groups of warps takes a run of
/// cuts; with several their sums meet in shared memory, where they are added in ascending order.
template <int BM, int BN, int WM, int WN, int BK, int Groups, int Stages, class Shape, class Put>
__device__ __forceinline__ void gemm_near_mma(const Grid& grid, const Put& put, const float* a,
                                              const float* b) {
    typedef typename Shape::As As;
    constexpr int threads = 32 * (BM / WM) * (BN / WN), each = step_terms<As>;
    constexpr int k = int(Shape::k), cut = int(Shape::chunk), cuts = (k + cut - 1) / cut,
                  run = (cuts + Groups - 1) / Groups, cut_steps = cut / BK,
                  most_steps = (run * cut < k ? run * cut + BK - 1 : k + BK - 1) / BK,
                  ahead = most_steps <= Stages ? Stages : Stages - 1;  // all that there is at once
    typedef MmaTile<As, BM, BK, Shape::a_row, Shape::a_col> TileA;
    typedef MmaTile<As, BN, BK, Shape::b_col, Shape::b_row> TileB;
    static_assert(cut % BK == 0 || cuts == 1);
    constexpr uint32_t down = uint32_t((Shape::m + BM - 1) / BM),
                       side = uint32_t((Shape::n + BN - 1) / BN),
                       tiles = uint32_t(Shape::batches) * down * side;
    constexpr int stage = TileA::floats + TileB::floats, ring = Stages * stage,
                  pitch = BN + 8;        // of sums: rows of a warp lie in banks of their own
    constexpr bool in_place = run == 1;  // sums lie where the cut's operands did
    static_assert(!in_place || BM * pitch <= ring);
    extern __shared__ __align__(128) char room[];
    float* const all = reinterpret_cast<float*>(room);
    const int group = Groups == 1 ? 0 : threadIdx.x / threads, t = threadIdx.x % threads;
    const int lane = t % 32, warp = t / 32;
    const int row = warp % (BM / WM) * WM + lane / 4, col = warp / (BM / WM) * WN + lane / 4,
              out = warp / (BM / WM) * WN + lane % 4 * 2;
    float* const own = all + group * ring;
    const auto sums_of = [=](int number) {
        return in_place ? all + number * ring : all + Groups * ring + number * (BM * pitch);
    };
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
        const int begin = group * run * cut, end = begin + run * cut < k ? begin + run * cut : k;
        const int steps = end > begin ? (end - begin + BK - 1) / BK : 0;
        const float* const ap = a + Shape::A::at(batch) + i0 * Shape::a_row + begin * Shape::a_col;
        const float* const bp = b + Shape::B::at(batch) + j0 * Shape::b_col + begin * Shape::b_row;
        const bool a_aligned = aligned16(ap), b_aligned = aligned16(bp);
        const auto fetch = [&](int s) {
            const uint32_t to = shared_address(own + s % Stages * stage);
            const int depth = end - begin - s * BK < BK ? end - begin - s * BK : BK;
            TileA::template fetch<threads, k % BK == 0 && Shape::m % BM == 0>(
                to, ap + s * BK * Shape::a_col, t, rows, depth, a_aligned);
            TileB::template fetch<threads, k % BK == 0 && Shape::n % BN == 0>(
                to + 4 * TileA::floats, bp + s * BK * Shape::b_row, t, cols, depth, b_aligned);
        };
        float acc[WM / 16][WN / 8][4] = {}, total[WM / 16][WN / 8][4] = {};
#pragma unroll 1
        for (int s = 0; s < ahead; s++) {
            if (s < steps) fetch(s);
            commit_copies();
        }
#pragma unroll 1
        for (int s = 0; s < steps; s++) {
            wait_copies<ahead - 1>();
            wait();
            if (ahead < Stages && s + ahead < steps) fetch(s + ahead);
            commit_copies();
            const float* const as = own + s % Stages * stage;
            const float* const bs = as + TileA::floats;
#pragma unroll
            for (int p = 0; p < BK; p += each) {
                uint32_t av[WM / 16][4], bv[WN / 8][2];
#pragma unroll
                for (int x = 0; x < WM / 16; x++) {
                    TileA::words(av[x][0], av[x][2], as, row + 16 * x, p);
                    TileA::words(av[x][1], av[x][3], as, row + 16 * x + 8, p);
                }
#pragma unroll
                for (int z = 0; z < WN / 8; z++)
                    TileB::words(bv[z][0], bv[z][1], bs, col + 8 * z, p);
#pragma unroll
                for (int x = 0; x < WM / 16; x++)
#pragma unroll
                    for (int z = 0; z < WN / 8; z++) mma<As>(acc[x][z], av[x], bv[z][0], bv[z][1]);
            }
            if ((s + 1) % cut_steps && s + 1 < steps) continue;
            const int number = group * run + s / cut_steps;  // of the cut that is done
            if constexpr (Groups > 1 && in_place) wait();
#pragma unroll
            for (int x = 0; x < WM / 16; x++)
#pragma unroll
                for (int z = 0; z < WN / 8; z++) {
                    if constexpr (Groups > 1) {
                        float* const to = sums_of(number) + (row + 16 * x) * pitch + out + 8 * z;
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
                if (i < rows && j < cols) put(batch, i0 + i, j0 + j, v.at);
            }
        } else {
#pragma unroll
            for (int x = 0; x < WM / 16; x++)
#pragma unroll
                for (int high = 0; high < 2; high++)
#pragma unroll
                    for (int z = 0; z < WN / 8; z++) {
                        const int i = row + 16 * x + 8 * high, j = out + 8 * z;
                        const float v[2] = {total[x][z][2 * high], total[x][z][2 * high + 1]};
                        if (i < rows && j < cols) put(batch, i0 + i, j0 + j, v);
                    }
        }
        __syncthreads();  // the next tile's copies go where this one was read
    }
}

}  // namespace aicf
