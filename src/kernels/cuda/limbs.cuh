// Products of f32 in the order limbs(64) by wgmma, of copies of the operands as three planes of
// bfloat16 each. A piece of k takes three places of the ring, one for each limb of both operands.
#pragma once

#include "core/abi/mma_step.h"
#include "rounded.cuh"

namespace aicf {

/// Limbs come in the order in which they are done with: the last is multiplied by the first alone.
constexpr int kLimbs = 3;

/// A place of the ring and the parity of its phase.
template <int Stages>
struct RingPlace {
    int slot = 0;
    uint32_t phase = 0;
    __device__ __forceinline__ void advance() {
        if (++slot == Stages) slot = 0, phase ^= 1;
    }
};

/// What the copying warp does: for each tile and piece of k the limbs' tiles, the last limb first.
template <class Layout, class Shape, class CopyA, class CopyB, class Place, class Ready>
__device__ __forceinline__ void copy_limbs(const Grid& grid, uint32_t room, const void* map_a,
                                           const void* map_b, const Ready& ready) {
    typedef Ring<Layout> R;
    constexpr int BM = Layout::rows, BN = Layout::columns, Pair = Layout::pair;
    const int high = Pair > 1 ? int(cluster_rank()) : 0;
    const uint32_t full = room + R::barriers, empty = full + 8 * Layout::stages;
    RingPlace<Layout::stages> at;
    bool all = false;
    for (uint32_t u = grid.block / Pair; u < Place::tiles; u += grid.blocks / Pair) {
        const Place place(u);
        const int i0 = int(place.i0) + high * BM;
        const int az = Layout::a_batched ? int(place.batch) : 0,
                  bz = Layout::b_batched ? int(place.batch) : 0;
#pragma unroll 1
        for (int64_t k0 = 0; k0 < Shape::k; k0 += R::depth)
#pragma unroll 1
            for (int limb = kLimbs - 1; limb >= 0; limb--, at.advance()) {
                const uint32_t as = room + at.slot * R::stage_bytes, bs = as + R::a_bytes;
                const uint32_t arrived = full + 8 * at.slot;
                ready.reach(all, i0 + BM, int(place.j0) + BN, int(k0) + R::depth);
                wait_barrier(empty + 8 * at.slot, at.phase ^ 1);
                arrive_expecting(arrived, R::stage_bytes);
                copy_tile<R, BM, Layout::a_along_k>(as, map_a, i0, int(k0),
                                                    limb * int(CopyA::batches) + az, arrived);
                copy_tile<R, BN, Layout::b_along_k, 128, Pair>(
                    bs, map_b, int(place.j0), int(k0), limb * int(CopyB::batches) + bz, arrived,
                    uint32_t(high), (1u << Pair) - 1);
            }
    }
}

/// A piece of k: the products of its limbs onto sums that begin at +0. A limb's place is free for
/// the next but one piece as soon as it is done with.
template <class Layout, int Count>
__device__ __forceinline__ void multiply_limbs(float (&acc)[Count], uint32_t room,
                                               RingPlace<Layout::stages>& at) {
    typedef Ring<Layout> R;
    constexpr int Pair = Layout::pair, a_step = Layout::a_along_k ? 2 : 128,
                  b_step = Layout::b_along_k ? 2 : 128;
    const int group = int(threadIdx.x) / 128 - 1, lane = threadIdx.x % 32;
    const uint32_t full = room + R::barriers, empty = full + 8 * Layout::stages;
    uint64_t a[kLimbs], b[kLimbs];
    int slot[kLimbs];
#pragma unroll
    for (int limb = kLimbs - 1; limb >= 0; limb--, at.advance()) {
        wait_barrier(full + 8 * at.slot, at.phase);
        const uint32_t as = room + at.slot * R::stage_bytes;
        a[limb] = tile_descriptor(as + group * 8192, Layout::a_along_k ? 16 : 8192);
        b[limb] = tile_descriptor(as + R::a_bytes, Layout::b_along_k ? 16 : 8192);
        slot[limb] = at.slot;
    }
    const auto release = [&](int limb) {
        if (lane < Pair) arrive_at<Pair>(empty + 8 * slot[limb], lane);
    };
    hold(acc);
    begin_products();
#pragma unroll
    for (int pair = 0; pair < 6; pair++) {
        const int of_a = scalar::kLimbPairs[pair][0], of_b = scalar::kLimbPairs[pair][1];
#pragma unroll
        for (int k = 0; k < 4; k++)
            Layout::template step<0>(acc, a[of_a] + a_step * k, b[of_b] + b_step * k,
                                     pair > 0 || k > 0);
        if (pair == 1) commit_products();  // of what reads the third
        if (pair == 4) {                   // of what reads the second
            commit_products();
            wait_products<1>();
            release(2);
        }
    }
    commit_products();
    wait_products<1>();
    release(1);
    wait_products<0>();
    hold(acc);
    release(0);
}

/// A block computes Layout::rows x Layout::columns of C; how it is made, see gemm_wgmma. The sums
/// of the pieces of k so far stay in registers.
template <class Layout, class Shape, class CopyA, class CopyB, class Put, class Ready>
__device__ __forceinline__ void gemm_limbs(const Grid& grid, const Put& put, const void* map_a,
                                           const void* map_b, const Ready& ready) {
    typedef Ring<Layout> R;
    constexpr int BM = Layout::rows, BN = Layout::columns, Pair = Layout::pair;
    typedef Piece<Shape, BM * Pair, BN, (Shape::n > Shape::m)> Place;
    constexpr int sums = BN / 2;
    static_assert(Shape::chunk == R::depth && Layout::stages > kLimbs && Layout::parts == 1);
    static_assert(Place::tiles < 1 << 30);
    extern __shared__ __align__(1024) char ring_room[];
    const uint32_t room = shared_address(ring_room), full = room + R::barriers;
    const int warp = threadIdx.x / 32;
    if (threadIdx.x == 0) {
        fetch_map(map_a);
        fetch_map(map_b);
        for (int s = 0; s < Layout::stages; s++) {
            init_barrier(full + 8 * s, 1);
            init_barrier(full + 8 * (Layout::stages + s), R::readers * Pair);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if constexpr (Pair > 1)
        meet_cluster();
    else
        __syncthreads();
    if (warp < 4) {
        if constexpr (R::deals)
            asm volatile(
                "setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(R::producer_registers + Ready::more));
        if (leads_copies(warp)) {
            ready();
            copy_limbs<Layout, Shape, CopyA, CopyB, Place>(grid, room, map_a, map_b, ready);
            ready.end();
        } else if (Ready::beside > 0 && warp > 0) {
            ready.copy_rest();
        }
        __syncwarp();
    } else {
        if constexpr (R::deals)
            asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(R::consumer_registers -
                                                                     Ready::more / 2));
        const uint32_t mine_room = room + R::staging + (warp - 4) * R::warp_bytes;
        const uint32_t high = Pair > 1 ? cluster_rank() : 0;
        const bool packed = put.packed();
        RingPlace<Layout::stages> at;
        for (uint32_t u = grid.block / Pair; u < Place::tiles; u += grid.blocks / Pair) {
            const Place place(u);
            float total[sums], acc[sums];
#pragma unroll
            for (int x = 0; x < sums; x++) total[x] = 0;  // no piece's is -0
#pragma unroll 1
            for (int64_t k0 = 0; k0 < Shape::k; k0 += R::depth) {
                multiply_limbs<Layout>(acc, room, at);
#pragma unroll
                for (int x = 0; x < sums; x++) total[x] += acc[x];
            }
            const int64_t row0 =
                place.i0 + int64_t(high) * BM + (warp - 4) / 4 * 64 + (warp - 4) % 4 * 16;
            if constexpr (Put::lines) {
                if (aligned16(put.line(0, 0, 0))) {
                    store_lines(total, mine_room, put.line(place.batch, row0, place.j0), Put::step,
                                Shape::m - row0, Shape::n - place.j0);
                    continue;
                }
            }
            put_lines<Shape, R::deals, BN>(total, mine_room, put, packed, place.batch, row0,
                                           place.j0);
        }
    }
    if constexpr (Pair > 1)
        sync_cluster();  // no block leaves while another writes or arrives there
}

}  // namespace aicf
