// C = A B on the tensor cores of 9.0 by wgmma, the same steps of k in the same order as mma.cuh, so
// the same bits. One warp asks the copy engine for tiles, through maps of the operands that the
// host leaves in the argument block; two warpgroups multiply them where they arrive.
#pragma once

#include "matmul.cuh"

namespace aicf {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// ---- barriers in shared memory ------------------------------------------------------------------

__device__ __forceinline__ void init_barrier(uint32_t barrier, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
/// Waits for the end of the phase of this parity.
__device__ __forceinline__ void wait_barrier(uint32_t barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra over;\nbra again;\nover:\n}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}
/// Arrives, and makes the phase wait for so many bytes of copies.
__device__ __forceinline__ void arrive_expecting(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
/// Arrives at the barrier that lies at the same place in block `rank` of the cluster. It publishes
/// nothing: of a release to the cluster the fence would cost more than a stage's products.
template <int Cluster>
__device__ __forceinline__ void arrive_at(uint32_t barrier, uint32_t rank) {
    if constexpr (Cluster == 1)
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
    else
        asm volatile(
            "{\n.reg .b32 there;\n"
            "mapa.shared::cluster.u32 there, %0, %1;\n"
            "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier),
            "r"(rank)
            : "memory");
}
__device__ __forceinline__ uint32_t cluster_rank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
__device__ __forceinline__ void sync_cluster() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}
/// A barrier of some threads of a block, of which id 0 is __syncthreads.
template <int Id, int Threads>
__device__ __forceinline__ void sync_some() {
    asm volatile("bar.sync %0, %1;" ::"n"(Id), "n"(Threads) : "memory");
}

// ---- copies -------------------------------------------------------------------------------------

/// The box of a map that begins at (x, y, z), to shared memory of every block in `mask`.
template <int Cluster>
__device__ __forceinline__ void copy_box(uint32_t to, const void* map, int x, int y, int z,
                                         uint32_t barrier) {
    if constexpr (Cluster == 1)
        asm volatile(
            "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
            "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
            "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier)
            : "memory");
    else
        asm volatile(
            "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
            ".multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
            "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier), "h"(uint16_t((1 << Cluster) - 1))
            : "memory");
}
__device__ __forceinline__ void fetch_map(const void* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// ---- products -----------------------------------------------------------------------------------

/// How wgmma finds a tile of 128-byte lines, permuted by the copy engine within 8 lines.
__device__ __forceinline__ uint64_t tile_descriptor(uint32_t at, uint32_t leading) {
    constexpr uint64_t eight_lines = 1024 >> 4, permuted = 1;
    return uint64_t((at & 0x3ffff) >> 4) | uint64_t(leading >> 4) << 16 | eight_lines << 32 |
           permuted << 62;
}
__device__ __forceinline__ void begin_products() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void commit_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits for all groups of products but the newest `Newest`.
template <int Newest>
__device__ __forceinline__ void wait_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Newest) : "memory");
}
/// The sums are not read before the wait above this, nor written after the fence below.
template <int Count>
__device__ __forceinline__ void hold(float (&sums)[Count]) {
#pragma unroll
    for (int x = 0; x < Count; x++) asm volatile("" : "+f"(sums[x])::"memory");
}

/// How the kernel is laid out; the host asks for `shared` bytes.
template <int BM, int BN, int Stages>
struct Ring {
    static constexpr int depth = 64, consumers = 2, threads = 128 * (consumers + 1);
    static constexpr int a_bytes = BM * 128, b_bytes = BN * 128, stage_bytes = a_bytes + b_bytes;
    static constexpr int warp_bytes = 4096;  // a consumer's warp's, for sums on their way out
    static constexpr int staging = Stages * stage_bytes;
    static constexpr int barriers = staging + warp_bytes * 4 * consumers;
    static constexpr int flag = barriers + 16 * Stages, shared = flag + 16;
    static_assert(BM == 64 * consumers && BN % 64 == 0 && BN <= 256);
};

/// A block computes BM x BN of C; `Cluster` of them, one above the other, share the tile of B. Of
/// an operand that lies along k (AlongK) a line holds 64 of k, of another 64 of its own axis.
/// Cuts of k are units of their own if Parts > 1, else a block takes all and keeps their sum in
/// `parts`. Mma::step is the instruction for BN columns.
template <int BM, int BN, int Stages, int Cluster, int Parts, bool AAlongK, bool BAlongK,
          bool ABatched, bool BBatched, class Mma, class Shape, class Put>
__device__ __forceinline__ void gemm_wgmma(const Grid& grid, const Put& put, const void* map_a,
                                           const void* map_b, float* parts, uint32_t* counters) {
    typedef Ring<BM, BN, Stages> R;
    typedef Piece<Shape, BM * Cluster, BN> Place;
    typedef Pack<float, 4> Four;
    constexpr int depth = R::depth, sums = BN / 2, lots = sums / 4, threads = 128 * R::consumers;
    constexpr int all_steps = int((Shape::k + depth - 1) / depth);
    constexpr int cut_steps = int((Shape::chunk + depth - 1) / depth);
    constexpr int cuts = (all_steps + cut_steps - 1) / cut_steps;
    constexpr int64_t units = Place::tiles * Parts;
    static_assert(Parts == 1 || Parts == cuts);
    static_assert(BAlongK || BN / Cluster % 64 == 0);
    static_assert(cuts == 1 || Shape::chunk % depth == 0);
    extern __shared__ __align__(1024) char ring_room[];
    const uint32_t room = shared_address(ring_room);
    const auto full = [&](int s) { return room + R::barriers + 8 * s; };
    const auto empty = [&](int s) { return room + R::barriers + 8 * (Stages + s); };
    const uint32_t rank = Cluster > 1 ? cluster_rank() : 0;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    if (threadIdx.x == 0) {
        fetch_map(map_a);
        fetch_map(map_b);
        for (int s = 0; s < Stages; s++) {
            init_barrier(full(s), 1);
            init_barrier(empty(s), 4 * R::consumers * Cluster);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if constexpr (Cluster > 1)
        sync_cluster();
    else
        __syncthreads();

    const auto steps_of = [&](int cut) {
        const int left = all_steps - cut * cut_steps;
        return left < cut_steps ? left : cut_steps;
    };
    int stage = 0;
    uint32_t phase = 0;
    const auto next_stage = [&] {
        if (++stage == Stages) stage = 0, phase ^= 1;
    };
    if (warp < 4) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) {
            for (int64_t u = grid.block / Cluster; u < units; u += grid.blocks / Cluster) {
                const Place place(u);
                const int i0 = int(place.i0) + int(rank) * BM, j0 = int(place.j0);
                const int az = ABatched ? int(place.batch) : 0,
                          bz = BBatched ? int(place.batch) : 0;
                const int steps = Parts == 1 ? all_steps : steps_of(place.part);
#pragma unroll 1
                for (int s = 0; s < steps; s++, next_stage()) {
                    const int k0 = (place.part * cut_steps + s) * depth;
                    const uint32_t as = room + stage * R::stage_bytes, bs = as + R::a_bytes;
                    wait_barrier(empty(stage), phase ^ 1);
                    arrive_expecting(full(stage), R::stage_bytes);
                    if constexpr (AAlongK) {
                        copy_box<1>(as, map_a, k0, i0, az, full(stage));
                    } else {
#pragma unroll
                        for (int x = 0; x < BM; x += 64)
                            copy_box<1>(as + x * 128, map_a, i0 + x, k0, az, full(stage));
                    }
                    const int part = BN / Cluster, first = int(rank) * part;
                    if constexpr (BAlongK) {
                        copy_box<Cluster>(bs + first * 128, map_b, k0, j0 + first, bz, full(stage));
                    } else {
#pragma unroll
                        for (int x = 0; x < part; x += 64)
                            copy_box<Cluster>(bs + (first + x) * 128, map_b, j0 + first + x, k0, bz,
                                              full(stage));
                    }
                }
            }
        }
        __syncwarp();
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const int mine = threadIdx.x - 128, group = mine / 128;
        float acc[sums];
        const auto release = [&](int s) {
            if (lane < Cluster) arrive_at<Cluster>(empty(s), lane);
        };
        for (int64_t u = grid.block / Cluster; u < units; u += grid.blocks / Cluster) {
            const Place place(u);
            Four* const kept =
                reinterpret_cast<Four*>(parts) + int64_t(grid.block) * lots * threads + mine;
#pragma unroll 1
            for (int cut = 0; cut < (Parts == 1 ? cuts : 1); cut++) {
                const int steps = steps_of(Parts == 1 ? cut : place.part);
                int before = 0;
                hold(acc);
#pragma unroll 1
                for (int s = 0; s < steps; s++, next_stage()) {
                    wait_barrier(full(stage), phase);
                    const uint32_t as = room + stage * R::stage_bytes, bs = as + R::a_bytes;
                    const uint64_t a = tile_descriptor(as + group * 8192, AAlongK ? 16 : 8192);
                    const uint64_t b = tile_descriptor(bs, BAlongK ? 16 : 8192);
                    begin_products();
#pragma unroll
                    for (int k = 0; k < depth / 16; k++)
                        Mma::step(acc, a + k * (AAlongK ? 2 : 128), b + k * (BAlongK ? 2 : 128),
                                  k > 0 || s > 0);
                    commit_products();
                    if (s > 0) {
                        wait_products<1>();
                        release(before);
                    }
                    before = stage;
                }
                wait_products<0>();
                hold(acc);
                release(before);
                if constexpr (Parts == 1 && cuts > 1) {
                    if (cut > 0) {
#pragma unroll
                        for (int lot = 0; lot < lots; lot++) {
                            const Four four = kept[lot * threads];
#pragma unroll
                            for (int y = 0; y < 4; y++)
                                acc[4 * lot + y] = four.at[y] + acc[4 * lot + y];
                        }
                    }
                    if (cut + 1 < cuts) {
#pragma unroll
                        for (int lot = 0; lot < lots; lot++) {
                            Four four;
#pragma unroll
                            for (int y = 0; y < 4; y++) four.at[y] = acc[4 * lot + y];
                            kept[lot * threads] = four;
                        }
                    }
                }
            }
            if constexpr (Parts > 1) {
                const int64_t tile = place.tile * Cluster + rank;
                const auto part_of = [&](int part) {
                    return reinterpret_cast<Four*>(parts) + (tile * Parts + part) * lots * threads +
                           mine;
                };
                Four* const to = part_of(place.part);
#pragma unroll
                for (int lot = 0; lot < lots; lot++) {
                    Four four;
#pragma unroll
                    for (int y = 0; y < 4; y++) four.at[y] = acc[4 * lot + y];
                    to[lot * threads] = four;
                }
                auto* const last = reinterpret_cast<volatile uint32_t*>(ring_room + R::flag);
                __threadfence();
                sync_some<1, threads>();
                if (mine == 0) {
                    *last = atomicAdd(counters + tile, 1u) == Parts - 1;
                    if (*last) counters[tile] = 0;
                }
                sync_some<1, threads>();
                const bool mine_to_add = *last;
                sync_some<1, threads>();  // all have read it before the next unit's is written
                if (!mine_to_add) continue;
                __threadfence();
                for (int part = 0; part < Parts; part++) {
                    const Four* const from = part_of(part);
#pragma unroll
                    for (int lot = 0; lot < lots; lot++) {
                        const Four four = from[lot * threads];
#pragma unroll
                        for (int y = 0; y < 4; y++) {
                            float& sum = acc[4 * lot + y];
                            sum = part == 0 ? four.at[y] : sum + four.at[y];
                        }
                    }
                }
            }
            // A warp turns its 16 rows, 64 columns at a time, into runs of 4 neighbours a thread.
            // Cells of 16 bytes are permuted so that what lanes touch together meets no bank twice.
            const int64_t row0 = place.i0 + int64_t(rank) * BM + group * 64 + warp % 4 * 16;
            const uint32_t mine_room = room + R::staging + (warp - 4) * R::warp_bytes;
            const auto cell_at = [&](int row, int cell) {
                return mine_room + row * 256 + 16 * (cell ^ 2 * (row & 3));
            };
#pragma unroll 1
            for (int piece = 0; piece < BN; piece += 64) {
                __syncwarp();
#pragma unroll
                for (int of = 0; of < BN; of += 64) {  // registers have no index
                    if (of != piece) continue;
#pragma unroll
                    for (int x = 0; x < 8; x++)
#pragma unroll
                        for (int high = 0; high < 2; high++) {
                            const float* const pair = &acc[(of / 8 + x) * 4 + 2 * high];
                            asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(
                                             cell_at(8 * high + lane / 4, 2 * x + lane % 4 / 2) +
                                             lane % 2 * 8),
                                         "f"(pair[0]), "f"(pair[1])
                                         : "memory");
                        }
                }
                __syncwarp();
#pragma unroll 4
                for (int row = 0; row < 16; row += 2) {
                    float some[4];
                    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                                 : "=f"(some[0]), "=f"(some[1]), "=f"(some[2]), "=f"(some[3])
                                 : "r"(cell_at(row + lane / 16, lane % 16))
                                 : "memory");
                    const int64_t i = row0 + row + lane / 16, j = place.j0 + piece + lane % 16 * 4;
                    if (i < Shape::m && j < Shape::n) put(place.batch, i, j, some);
                }
            }
        }
    }
    if constexpr (Cluster > 1) sync_cluster();  // no block leaves while another writes into it
}

}  // namespace aicf
