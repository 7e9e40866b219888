// Products of 16 bits that few tiles cover, on tensor cores of 9.0 in the order mma16(Chunk), whose
// operands lie along k: near_mma.cuh's tiles and warps, a cut of k each, but all that a block reads
// is asked of the copy engine at once, which brings twice as many bytes in the same time.
#pragma once

#include "copy_engine.cuh"
#include "mma.cuh"

namespace aicf {

/// Lines of 64 terms, 128 bytes, whose cells the copy engine permutes within 8 lines.
struct BoxLines {
    static constexpr int depth = 64, line = 128;

    /// What a lane holds of lines i to i + 15 for the step of k that begins at p.
    __device__ __forceinline__ static void words(uint32_t (&word)[4], uint32_t box, int i, int p) {
        const int lane = threadIdx.x % 32, own = i + lane % 16, cell = p / 8 + lane / 16;
        load_matrices<false>(word, box + own * line + ((cell ^ own % 8) * 16));
    }
};

/// A block makes BM x BN, each of its warps one cut of k, or all of it where there is one. Their
/// sums meet in shared memory, where they are added in ascending order.
template <int BM, int BN, bool BatchedA, bool BatchedB, class Shape, class Put>
__device__ __forceinline__ void gemm_near_boxes(const Grid& grid, const Put& put, const void* map_a,
                                                const void* map_b) {
    typedef typename Shape::As As;
    constexpr int k = int(Shape::k), cut = int(Shape::chunk < Shape::k ? Shape::chunk : Shape::k),
                  cuts = (k + cut - 1) / cut, depth = BoxLines::depth,
                  boxes = (cut + depth - 1) / depth, pitch = BN + 8;  // of sums
    constexpr int box_bytes = (BM + BN) * BoxLines::line, ring = boxes * box_bytes;
    constexpr uint32_t down = uint32_t((Shape::m + BM - 1) / BM),
                       side = uint32_t((Shape::n + BN - 1) / BN),
                       tiles = uint32_t(Shape::batches) * down * side;
    static_assert(cuts == 1 || cut % depth == 0);
    static_assert(BM * pitch * 4 <= ring && ring % 1024 == 0 && BM % 16 == 0 && BN % 16 == 0);
    extern __shared__ __align__(1024) char room[];
    if (grid.block >= tiles) return;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t at = grid.block % (down * side),
                   batch = Shape::batches == 1 ? 0 : grid.block / (down * side);
    const int row = int(at / side) * BM, col = int(at % side) * BN, begin = warp * cut,
              terms = k - begin < cut ? k - begin : cut, own_boxes = (terms + depth - 1) / depth;
    const uint32_t own = shared_address(room) + warp * ring,
                   barriers = shared_address(room) + cuts * ring + warp * (8 * boxes);
    const auto ask_b = [&] {
#pragma unroll
        for (int s = 0; s < boxes; s++)
            if (s < own_boxes)
                copy_box<1>(own + s * box_bytes + BM * BoxLines::line, map_b, begin + s * depth,
                            col, BatchedB ? int(batch) : 0, barriers + 8 * s);
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
                copy_box<1>(own + s * box_bytes, map_a, begin + s * depth, row,
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
#pragma unroll
        for (int p = 0; p < depth; p += 16) {
            uint32_t av[BM / 16][4], bv[BN / 16][4];
#pragma unroll
            for (int x = 0; x < BM / 16; x++) BoxLines::words(av[x], box, 16 * x, p);
#pragma unroll
            for (int z = 0; z < BN / 16; z++)
                BoxLines::words(bv[z], box + BM * BoxLines::line, 16 * z, p);
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
