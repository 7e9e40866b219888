// C = A B by wgmma where k has cuts and there are fewer tiles than half of the processors: the
// blocks of a cluster share the cuts of one tile, in ascending order. The sum of the cuts before
// goes from block to block through shared memory, so the bits are those of wgmma.cuh.
#pragma once

#include "wgmma_runs.cuh"

namespace aicf {

/// How such a kernel lies in shared memory. The sums that the block before hands on have a place of
/// their own, since stages are in use when they arrive; results leave by the same place.
template <class Layout>
struct Handed {
    static constexpr int depth = Layout::depth, consumers = 2, warps = 8;
    static constexpr int a_bytes = Layout::rows * 128, b_bytes = Layout::columns * 128;
    static constexpr int stage_bytes = a_bytes + b_bytes;
    static constexpr int pieces = Layout::columns / 32;  // of a warp's sums
    static constexpr int piece_bytes = 16 * 32 * 4;
    static constexpr int handed = Layout::stages * stage_bytes;  // where sums arrive
    static constexpr int barriers = handed + warps * pieces * piece_bytes;
    static constexpr int arrived = barriers + 16 * Layout::stages;
    static constexpr int shared = arrived + 8 * warps * pieces;
    static constexpr int producer_registers = 40, consumer_registers = 232;
    static_assert(shared == Layout::shared && Layout::rows == 128 && Layout::columns == 128);
};

/// Four sums to the shared memory of another block, whose barrier counts their bytes.
__device__ __forceinline__ void hand_sums(uint32_t to, const float* four, uint32_t barrier) {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
        "[%5];" ::"r"(to),
        "f"(four[0]), "f"(four[1]), "f"(four[2]), "f"(four[3]), "r"(barrier)
        : "memory");
}

/// Cuts of a tile that a block of a cluster takes: of the last ones most, since they wait for those
/// before.
template <class Layout, class Shape>
struct Share {
    static constexpr int blocks = Layout::cluster;
    static constexpr int all_steps = int((Shape::k + Layout::depth - 1) / Layout::depth),
                         cut_steps = int(Shape::chunk / Layout::depth),
                         cuts = (all_steps + cut_steps - 1) / cut_steps;
    static constexpr int least = cuts / blocks, most = (cuts + blocks - 1) / blocks;
    static_assert(blocks > 1 && least > 0 && most <= 3 && Shape::chunk % Layout::depth == 0);
    int from, to;
    __device__ __forceinline__ explicit Share(uint32_t rank)
        : from(int(rank) * cuts / blocks), to(int(rank + 1) * cuts / blocks) {}
    __device__ __forceinline__ static int steps_before(int cut) {
        return cut * cut_steps < all_steps ? cut * cut_steps : all_steps;
    }
};

/// The products of `Count` cuts from `from` on, of a consumer's warpgroup, each in registers of its
/// own, so that none waits for the sum of those before.
template <class Layout, class Mine, int Count>
__device__ __forceinline__ void multiply_cuts(float (&part)[Count][Layout::columns / 2],
                                              uint32_t room, int from) {
    typedef Handed<Layout> R;
    const uint32_t full = room + R::barriers, empty = full + 8 * Layout::stages;
    const uint32_t group = threadIdx.x / 128 - 1;
    const auto release = [&](int s) {
        if (threadIdx.x % 32 == 0) arrive_at<1>(empty + 8 * s, 0);
    };
    int stage = 0, before = 0;
    uint32_t phase = 0;
    const auto next_stage = [&] {
        before = stage;
        if (++stage == Layout::stages) stage = 0, phase ^= 1;
    };
#pragma unroll
    for (int x = 0; x < Count; x++) {
        const int steps = Mine::steps_before(from + x + 1) - Mine::steps_before(from + x);
        hold(part[x]);
        wait_barrier(full + 8 * stage, phase);
        multiply_stage<Layout>(part[x], room + stage * R::stage_bytes, group, false);
        if (x > 0) {
            wait_products<1>();
            hold(part[x > 0 ? x - 1 : 0]);
            release(before);
        }
        next_stage();
#pragma unroll 1
        for (int s = 1; s < steps; s++) {
            wait_barrier(full + 8 * stage, phase);
            multiply_stage<Layout>(part[x], room + stage * R::stage_bytes, group, true);
            wait_products<1>();
            release(before);
            next_stage();
        }
    }
    wait_products<0>();
    hold(part[Count - 1]);
}

/// Adds a warp's sums of `Count` cuts to those that the block before hands on, a piece as it
/// arrives, and hands them on, or leaves them in part[0].
template <class Layout, int Count>
__device__ __forceinline__ void add_cuts(float (&part)[Count][Layout::columns / 2], uint32_t room,
                                         uint32_t rank) {
    typedef Handed<Layout> R;
    const bool last = rank + 1 == Layout::cluster;
    const uint32_t mine = (threadIdx.x / 32 - 4) * R::pieces;
    const uint32_t from = room + R::handed + mine * R::piece_bytes + threadIdx.x % 32 * 16,
                   arrived = room + R::arrived + 8 * mine;
    const uint32_t to = address_in(from, last ? rank : rank + 1),
                   there = address_in(arrived, last ? rank : rank + 1);
#pragma unroll
    for (int piece = 0; piece < R::pieces; piece++) {
        if (rank > 0) wait_barrier_of_cluster(arrived + 8 * piece, 0);
#pragma unroll
        for (int lot = 0; lot < 4; lot++) {
            const int first = 16 * piece + 4 * lot;
            const uint32_t at = piece * R::piece_bytes + lot * 512;
            float four[4] = {0, 0, 0, 0};  // no cut's is -0
            if (rank > 0)
                asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                             : "=f"(four[0]), "=f"(four[1]), "=f"(four[2]), "=f"(four[3])
                             : "r"(from + at)
                             : "memory");
#pragma unroll
            for (int x = 0; x < Count; x++)
#pragma unroll
                for (int y = 0; y < 4; y++) four[y] += part[x][first + y];
            if (!last) hand_sums(to + at, four, there + 8 * piece);
#pragma unroll
            for (int y = 0; y < 4; y++) part[0][first + y] = four[y];
        }
    }
}

/// What a warp of consumers does with the `Count` cuts of its block.
template <int Count, class Layout, class Shape, class Place, class Put>
__device__ __forceinline__ void take_share(const Place& place, const Put& put, uint32_t room,
                                           uint32_t rank) {
    typedef Handed<Layout> R;
    typedef Share<Layout, Shape> Mine;
    const int warp = threadIdx.x / 32 - 4;
    float part[Count][Layout::columns / 2];
    multiply_cuts<Layout, Mine>(part, room, Mine(rank).from);
    add_cuts<Layout>(part, room, rank);
    if (rank + 1 < Layout::cluster) return;
    __syncwarp();  // all have read what lies where the results leave by
    wait_before_kernel();
    const uint32_t mine_room = room + R::handed + warp * R::pieces * R::piece_bytes;
    const int64_t row0 = place.i0 + warp / 4 * 64 + warp % 4 * 16;
    if constexpr (Put::lines) {
        if (aligned16(put.line(0, 0, 0))) {
            store_lines(part[0], mine_room, put.line(place.batch, row0, place.j0), Put::step,
                        Shape::m - row0, Shape::n - place.j0);
            return;
        }
    }
    put_lines<Shape, true, Layout::columns>(part[0], mine_room, put, put.packed(), place.batch,
                                            row0, place.j0);
}

/// The copies of a block's share of a tile, by one thread.
template <class Layout, class Shape, class Place>
__device__ __forceinline__ void copy_share(const Place& place, const Share<Layout, Shape>& share,
                                           uint32_t room, const void* map_a, const void* map_b) {
    typedef Handed<Layout> R;
    const int az = Layout::a_batched ? int(place.batch) : 0,
              bz = Layout::b_batched ? int(place.batch) : 0;
    const int last = share.steps_before(share.to);
    int stage = 0;
    uint32_t phase = 1;
#pragma unroll 1
    for (int s = share.steps_before(share.from); s < last; s++) {
        const uint32_t as = room + stage * R::stage_bytes, full = room + R::barriers + 8 * stage;
        wait_barrier(full + 8 * Layout::stages, phase);
        arrive_expecting(full, R::stage_bytes);
        copy_tile<R, Layout::rows, Layout::a_along_k>(as, map_a, int(place.i0), s * R::depth, az,
                                                      full);
        copy_tile<R, Layout::columns, Layout::b_along_k>(as + R::a_bytes, map_b, int(place.j0),
                                                         s * R::depth, bz, full);
        if (++stage == Layout::stages) stage = 0, phase ^= 1;
    }
}

/// A block computes its share of a tile's cuts, adds them to the sum of those before and hands that
/// on, the last one to put(); see gemm_wgmma.
template <class Layout, class Shape, class Put, class Ready>
__device__ __forceinline__ void gemm_wgmma_cluster(const Grid& grid, const Put& put,
                                                   const void* map_a, const void* map_b,
                                                   const Ready& ready) {
    typedef Handed<Layout> R;
    typedef Share<Layout, Shape> Mine;
    typedef Piece<Shape, Layout::rows, Layout::columns, (Shape::n > Shape::m)> Place;
    static_assert(Layout::columns % R::depth == 0 || Layout::b_along_k);  // lines of 128 bytes
    extern __shared__ __align__(1024) char ring_room[];
    const uint32_t room = shared_address(ring_room), rank = cluster_rank();
    const Mine share(rank);
    const Place place(grid.block / Mine::blocks);
    if (threadIdx.x == 0) {
        fetch_map(map_a);
        fetch_map(map_b);
        for (int s = 0; s < Layout::stages; s++) {
            init_barrier(room + R::barriers + 8 * s, 1);
            init_barrier(room + R::barriers + 8 * (Layout::stages + s), R::warps);
        }
        for (int x = 0; x < R::warps * R::pieces; x++) {
            init_barrier(room + R::arrived + 8 * x, 1);
            arrive_expecting(room + R::arrived + 8 * x, R::piece_bytes);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    sync_cluster();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(R::producer_registers));
        if (threadIdx.x >= 32) ready.begin();
        if (leads_copies(threadIdx.x / 32)) {
            ready();
            copy_share(place, share, room, map_a, map_b);
        }
        __syncwarp();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(R::consumer_registers));
        if (share.to - share.from == Mine::most)
            take_share<Mine::most, Layout, Shape>(place, put, room, rank);
        else
            take_share<Mine::least, Layout, Shape>(place, put, room, rank);
    }
}

}  // namespace aicf
