// Products that few tiles cover, on tensor cores of 9.0 in the orders mma16(Chunk) of 16 bits and
// mma8(Chunk) of float32, which is rounded on the way: near_mma.cuh's tiles and warps, a cut of k
// each, but all that a block reads is asked of the copy engine at once, which brings twice as many
// bytes in the same time. Of float32 B may lie across k.
#pragma once

#include "copy_engine.cuh"
#include "mma.cuh"

namespace aicf {

/// Lines of 128 bytes, whose cells of 16 the copy engine permutes within 8 lines.
template <class As>
struct BoxLines {
    static constexpr int line = 128, cell = same_type<As, Tf32> ? 4 : 8, depth = 8 * cell;

    /// What a lane holds of lines i to i + 15, along k, for the step of k that begins at p.
    __device__ __forceinline__ static void words(uint32_t (&word)[4], uint32_t box, int i, int p) {
        const int lane = threadIdx.x % 32, own = i + lane % 16, at = p / cell + lane / 16;
        load_matrices<false>(word, box + own * line + ((at ^ own % 8) * 16));
    }
};
/// The same of float32 beside an operand whose lines lie across k: two terms that are neighbours.
struct BoxPairs : BoxLines<Tf32> {
    __device__ __forceinline__ static void words(uint32_t (&word)[4], const char* box, int i,
                                                 int p) {
        const int lane = threadIdx.x % 32, first = p + lane % 4 * 2;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int own = i + lane / 4 + 8 * half;
            const auto two = *reinterpret_cast<const Pack<uint32_t, 2>*>(
                box + own * line + ((first / cell ^ own % 8) * 16) + first % cell * 4);
            word[half] = two.at[0];
            word[half + 2] = two.at[1];
        }
    }
    /// Of boxes of 32 columns side by side. The terms of four lanes lie in lines whose cells are
    /// permuted by 0, 2, 4 and 6, so that a warp reads each bank once.
    __device__ __forceinline__ static void words_across(uint32_t (&word)[4], const char* box, int i,
                                                        int p) {
        const int lane = threadIdx.x % 32, first = p + lane % 4 * 2;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int own = i + lane / 4 + 8 * half, at = own % depth;
#pragma unroll
            for (int q = 0; q < 2; q++) {
                const int term = first + q;
                word[half + 2 * q] = *reinterpret_cast<const uint32_t*>(
                    box + (own / depth * depth + term) * line + ((at / cell ^ term % 8) * 16) +
                    at % cell * 4);
            }
        }
    }
};

/// A block makes BM x BN, each of its warps one cut of k, or all of it where there is one. Their
/// sums meet in shared memory, where they are added in ascending order.
template <int BM, int BN, bool AlongB, bool BatchedA, bool BatchedB, class Shape, class Put>
__device__ __forceinline__ void gemm_near_boxes(const Grid& grid, const Put& put, const void* map_a,
                                                const void* map_b) {
    typedef typename Shape::As As;
    typedef BoxLines<As> Lines;
    constexpr int k = int(Shape::k), cut = int(Shape::chunk < Shape::k ? Shape::chunk : Shape::k),
                  cuts = (k + cut - 1) / cut, depth = Lines::depth,
                  boxes = (cut + depth - 1) / depth,
                  all_boxes = (cuts - 1) * boxes + (k - (cuts - 1) * cut + depth - 1) / depth,
                  pitch = BN + 8;  // of sums
    constexpr int box_bytes = (BM + BN) * Lines::line, ring = boxes * box_bytes;
    constexpr uint32_t down = uint32_t((Shape::m + BM - 1) / BM),
                       side = uint32_t((Shape::n + BN - 1) / BN),
                       tiles = uint32_t(Shape::batches) * down * side;
    static_assert(cuts == 1 || cut % depth == 0);
    static_assert(AlongB || (same_type<As, Tf32> && BN % depth == 0));
    static_assert(BM * pitch * 4 <= box_bytes && box_bytes % 1024 == 0 && BM % 16 == 0 &&
                  BN % 16 == 0);
    extern __shared__ __align__(1024) char room[];
    if (grid.block >= tiles) return;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t at = grid.block % (down * side),
                   batch = Shape::batches == 1 ? 0 : grid.block / (down * side);
    const int row = int(at / side) * BM, col = int(at % side) * BN, begin = warp * cut,
              terms = k - begin < cut ? k - begin : cut, own_boxes = (terms + depth - 1) / depth;
    const uint32_t own = shared_address(room) + warp * ring,
                   barriers = shared_address(room) + all_boxes * box_bytes + warp * (8 * boxes);
    const auto ask_b = [&] {
#pragma unroll
        for (int s = 0; s < boxes; s++) {
            if (s >= own_boxes) break;
            const uint32_t to = own + s * box_bytes + BM * Lines::line;
            const int at = begin + s * depth, z = BatchedB ? int(batch) : 0;
            if constexpr (AlongB)
                copy_box(to, map_b, at, col, z, barriers + 8 * s);
            else
#pragma unroll
                for (int x = 0; x < BN; x += depth)
                    copy_box(to + x * Lines::line, map_b, col + x, at, z, barriers + 8 * s);
        }
    };
    const bool b_is_late = put.b_is_late();
    if (elected()) {
#pragma unroll
        for (int s = 0; s < boxes; s++) init_barrier(barriers + 8 * s, 1);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#pragma unroll
        for (int s = 0; s < boxes; s++)
            if (s < own_boxes) arrive_expecting(barriers + 8 * s, box_bytes);
        if (!b_is_late) ask_b();  // before what the kernel waits for is done
    }
    __syncwarp();
    const int rows = Shape::m - row < BM ? int(Shape::m - row) : BM,
              cols = Shape::n - col < BN ? int(Shape::n - col) : BN;
    TileLot<BM, BN, 32 * cuts, Put> lot;
    const bool rest_is_late = put.rest_is_late();
    if (!rest_is_late) lot.read(put, threadIdx.x, batch, row, col, rows, cols);
    begin_kernel();
    if (elected()) {
        if (b_is_late) ask_b();
#pragma unroll
        for (int s = 0; s < boxes; s++)
            if (s < own_boxes)
                copy_box(own + s * box_bytes, map_a, begin + s * depth, row,
                         BatchedA ? int(batch) : 0, barriers + 8 * s);
    }
    if (rest_is_late) lot.read(put, threadIdx.x, batch, row, col, rows, cols);
    __syncwarp();
    float acc[BM / 16][BN / 8][4] = {};
#pragma unroll
    for (int s = 0; s < boxes; s++) {
        if (s >= own_boxes) break;
        wait_barrier(barriers + 8 * s, 0);
        const uint32_t box = own + s * box_bytes;
        const char* const here = room + warp * ring + s * box_bytes;
#pragma unroll
        for (int p = 0; p < depth; p += step_terms<As>) {
            uint32_t av[BM / 16][4], bv[BN / 16][4];
#pragma unroll
            for (int x = 0; x < BM / 16; x++)
                if constexpr (AlongB)
                    Lines::words(av[x], box, 16 * x, p);
                else
                    BoxPairs::words(av[x], here, 16 * x, p);
#pragma unroll
            for (int z = 0; z < BN / 16; z++)
                if constexpr (AlongB)
                    Lines::words(bv[z], box + BM * Lines::line, 16 * z, p);
                else
                    BoxPairs::words_across(bv[z], here + BM * Lines::line, 16 * z, p);
#pragma unroll
            for (int x = 0; x < BM / 16; x++)
#pragma unroll
                for (int z = 0; z < BN / 8; z++)
                    mma<As>(acc[x][z], av[x], bv[z / 2][z % 2], bv[z / 2][z % 2 + 2]);
        }
    }
    __syncwarp();  // sums lie where the cut's operands did
    const auto sums_of = [=](int number) { return reinterpret_cast<float*>(room + number * ring); };
    float* const to = sums_of(warp) + lane / 4 * pitch + lane % 4 * 2;
#pragma unroll
    for (int x = 0; x < BM / 16; x++)
#pragma unroll
        for (int z = 0; z < BN / 8; z++)
#pragma unroll
            for (int high = 0; high < 2; high++)
                *reinterpret_cast<Pack<float, 2>*>(to + (16 * x + 8 * high) * pitch + 8 * z) = {
                    {acc[x][z][2 * high], acc[x][z][2 * high + 1]}};
    __syncthreads();
    put_sums<BM, BN, 32 * cuts, float>(
        put, lot, batch, row, col, rows, cols, [=](int i, int j, float (&v)[4]) {
            add_fours<cuts>(v, [=](int c) { return sums_of(c) + i * pitch + j; });
        });
}

}  // namespace aicf
