// C = A B on the tensor cores of 9.0 by wgmma, the same steps of k in the same order as mma.cuh, so
// the same bits. One warp asks the copy engine for tiles, through maps of the operands that the
// host leaves in the argument block; warpgroups multiply them where they arrive.
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

// ---- results ------------------------------------------------------------------------------------

/// What threads wrote to shared memory before is seen by products and copies that come after.
__device__ __forceinline__ void show_to_engines() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// Two neighbours as they are stored. Of NaN this is narrow() for the one that sums can be.
template <class E>
__device__ __forceinline__ uint32_t narrow_two(float low, float high) {
    uint32_t word;
    if constexpr (same_type<E, Half>)
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
}

/// A warp's 16 rows of sums to lines in memory of which `rows` and `columns` exist, by the copy
/// engine: it goes on while the warp's next products run. A multiple of 16 bytes exist of a line.
template <class E, int Count>
__device__ __forceinline__ void store_lines(const float (&sums)[Count], uint32_t room, E* to,
                                            int64_t step, int64_t rows, int64_t columns) {
    constexpr int all = 2 * Count, most = 256 / int(sizeof(E));
    constexpr int width = all / ((all + most - 1) / most);  // of one load of the room
    static_assert(all % width == 0 && width % 16 == 0);
    constexpr int pitch = width * int(sizeof(E)) + 16;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int first = 0; first < all; first += width) {
        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");  // the room is free
        __syncwarp();
        if constexpr (sizeof(E) == 2) {
#pragma unroll
            for (int x = 0; x < width; x += 16) {
                const float* const of = &sums[(first + x) / 2];
                asm volatile(
                    "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                        room + lane % 16 * pitch + (x + lane / 16 * 8) * 2),
                    "r"(narrow_two<E>(of[0], of[1])), "r"(narrow_two<E>(of[2], of[3])),
                    "r"(narrow_two<E>(of[4], of[5])), "r"(narrow_two<E>(of[6], of[7]))
                    : "memory");
            }
        } else {
#pragma unroll
            for (int x = 0; x < width; x += 8)
#pragma unroll
                for (int high = 0; high < 2; high++)
                    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(
                                     room + (8 * high + lane / 4) * pitch + (x + lane % 4 * 2) * 4),
                                 "f"(sums[(first + x) / 2 + 2 * high]),
                                 "f"(sums[(first + x) / 2 + 2 * high + 1])
                                 : "memory");
        }
        show_to_engines();
        __syncwarp();
        const int64_t left = columns - first;
        if (lane < 16 && lane < rows && left > 0)
            asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                             to + lane * step + first),
                         "r"(room + lane * pitch),
                         "r"(int(left < width ? left : width) * int(sizeof(E)))
                         : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    }
}

/// The same through put(), which takes 4 neighbours at a time. Cells of 16 bytes are permuted so
/// that what lanes touch together meets no bank twice.
template <class Shape, int Count, class Put>
__device__ __forceinline__ void put_lines(const float (&sums)[Count], uint32_t room, const Put& put,
                                          int64_t batch, int64_t row0, int64_t col0) {
    const int lane = threadIdx.x % 32;
    const auto cell_at = [&](int row, int cell) {
        return room + row * 256 + 16 * (cell ^ 2 * (row & 3));
    };
#pragma unroll 1
    for (int piece = 0; piece < 2 * Count; piece += 64) {
        __syncwarp();
#pragma unroll
        for (int of = 0; of < 2 * Count; of += 64) {  // registers have no index
            if (of != piece) continue;
#pragma unroll
            for (int x = 0; x < 8; x++)
#pragma unroll
                for (int high = 0; high < 2; high++) {
                    const float* const pair = &sums[(of / 8 + x) * 4 + 2 * high];
                    asm volatile(
                        "st.shared.v2.f32 [%0], {%1, %2};" ::"r"(
                            cell_at(8 * high + lane / 4, 2 * x + lane % 4 / 2) + lane % 2 * 8),
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
            const int64_t i = row0 + row + lane / 16, j = col0 + piece + lane % 16 * 4;
            if (i < Shape::m && j < Shape::n) put(batch, i, j, some);
        }
    }
}

// ---- the kernel ---------------------------------------------------------------------------------

/// How the kernel is laid out; the host asks for `shared` bytes. Way says: a tile's rows and
/// columns, stages, how many blocks one above the other share the tile of B (pair), parts of k, how
/// the operands lie, and by step() the instruction.
template <class Way>
struct Ring {
    static constexpr int depth = 64;  // elements of a line of 128 bytes
    static constexpr int consumers = Way::rows / 64;
    static constexpr int a_bytes = Way::rows * 128, b_bytes = Way::columns * 128;
    static constexpr int stage_bytes = a_bytes + b_bytes;
    static constexpr int warp_bytes = 16 * 272;  // a consumer's warp's, for sums on their way out
    static constexpr int staging = Way::stages * stage_bytes;
    static constexpr int barriers = staging + warp_bytes * 4 * consumers;
    static constexpr int flag = barriers + 16 * Way::stages, shared = flag + 16;
    // Of small tiles the sum of the cuts so far stays in registers.
    static constexpr bool holds = Way::columns <= 128;
    // Registers are dealt out anew where sums take many; two blocks share a processor otherwise.
    static constexpr bool deals = consumers == 2;
    static constexpr bool staggers = consumers == 2 && Way::columns >= 128 && Way::parts == 1;
    static_assert(consumers <= 2 && Way::columns % 64 == 0 && Way::columns <= 256);
};

/// The tile of an operand, `rows` of its own axis from i and one line of k, by its map.
template <class R, int Rows, bool AlongK, int Blocks>
__device__ __forceinline__ void copy_tile(uint32_t to, const void* map, int i, int k, int batch,
                                          uint32_t barrier) {
    if constexpr (AlongK) {
        copy_box<Blocks>(to, map, k, i, batch, barrier);
    } else {
#pragma unroll
        for (int x = 0; x < Rows; x += R::depth)
            copy_box<Blocks>(to + x * 128, map, i + x, k, batch, barrier);
    }
}

/// A block computes Way::rows x Way::columns of C. Cuts of k are units of their own if Way::parts >
/// 1, else a block takes all and adds them, in registers or in `parts`.
template <class Way, class Shape, class Put>
__device__ __forceinline__ void gemm_wgmma(const Grid& grid, const Put& put, const void* map_a,
                                           const void* map_b, float* parts, uint32_t* counters) {
    typedef Ring<Way> R;
    constexpr int BM = Way::rows, BN = Way::columns, Stages = Way::stages, Pair = Way::pair;
    constexpr int Parts = Way::parts;
    typedef Piece<Shape, BM * Pair, BN, (Shape::n > Shape::m)> Place;
    typedef Pack<float, 4> Four;
    constexpr int depth = R::depth, sums = BN / 2, lots = sums / 4, threads = 128 * R::consumers;
    constexpr int all_steps = int((Shape::k + depth - 1) / depth);
    constexpr int cut_steps = int((Shape::chunk + depth - 1) / depth);
    constexpr int cuts = (all_steps + cut_steps - 1) / cut_steps;
    constexpr int64_t units = Place::tiles * Parts;
    static_assert(Parts == 1 || Parts == cuts);
    static_assert(Way::b_along_k || BN / Pair % R::depth == 0);
    static_assert(cuts == 1 || Shape::chunk % depth == 0);
    extern __shared__ __align__(1024) char ring_room[];
    const uint32_t room = shared_address(ring_room);
    const auto full = [&](int s) { return room + R::barriers + 8 * s; };
    const auto empty = [&](int s) { return room + R::barriers + 8 * (Stages + s); };
    const uint32_t high = Pair > 1 ? cluster_rank() : 0;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    if (threadIdx.x == 0) {
        fetch_map(map_a);
        fetch_map(map_b);
        for (int s = 0; s < Stages; s++) {
            init_barrier(full(s), 1);
            init_barrier(empty(s), 4 * R::consumers * Pair);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if constexpr (Pair > 1)
        sync_cluster();
    else
        __syncthreads();

    const int64_t first = grid.block / Pair, stride = grid.blocks / Pair;
    const auto steps_of = [&](int cut) {
        const int left = all_steps - cut * cut_steps;
        return left < cut_steps ? left : cut_steps;
    };
    const auto steps_at = [&](const Place& place) {
        return Parts == 1 ? all_steps : steps_of(place.part);
    };
    int stage = 0;
    uint32_t phase = 0;
    const auto next_stage = [&] {
        if (++stage == Stages) stage = 0, phase ^= 1;
    };
    if (warp < 4) {
        if constexpr (R::deals) asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
        if (threadIdx.x == 0) {
            for (int64_t u = first; u < units; u += stride) {
                const Place place(u);
                const int i0 = int(place.i0) + int(high) * BM, j0 = int(place.j0);
                const int az = Way::a_batched ? int(place.batch) : 0,
                          bz = Way::b_batched ? int(place.batch) : 0;
                const int steps = steps_at(place);
#pragma unroll 1
                for (int s = 0; s < steps; s++, next_stage()) {
                    const int k0 = (place.part * cut_steps + s) * depth;
                    const int part = BN / Pair, from = int(high) * part;
                    const uint32_t as = room + stage * R::stage_bytes, bs = as + R::a_bytes;
                    wait_barrier(empty(stage), phase ^ 1);
                    arrive_expecting(full(stage), R::stage_bytes);
                    copy_tile<R, BM, Way::a_along_k, 1>(as, map_a, i0, k0, az, full(stage));
                    copy_tile<R, BN / Pair, Way::b_along_k, Pair>(bs + from * 128, map_b, j0 + from,
                                                                  k0, bz, full(stage));
                }
            }
        }
        __syncwarp();
    } else {
        if constexpr (R::deals) asm volatile("setmaxnreg.inc.sync.aligned.u32 232;");
        const int mine = threadIdx.x - 128, group = mine / 128;
        float acc[sums], total[R::holds ? sums : 1];
        const auto release = [&](int s) {
            if (lane < Pair) arrive_at<Pair>(empty(s), lane);
        };
        // The second group begins some steps behind the first and stays there: while one stores its
        // sums the other has the tensor cores to itself.
        bool leads = R::staggers && units > stride && group == 0;
        if (R::staggers && units > stride && group == 1) sync_some<2, threads>();
        for (int64_t u = first; u < units; u += stride) {
            const Place place(u);
            Four* const kept =
                reinterpret_cast<Four*>(parts) + int64_t(grid.block) * lots * threads + mine;
            const auto keep = [&](Four* to) {
#pragma unroll
                for (int lot = 0; lot < lots; lot++) {
                    Four four;
#pragma unroll
                    for (int y = 0; y < 4; y++) four.at[y] = acc[4 * lot + y];
                    to[lot * threads] = four;
                }
            };
            if constexpr (R::holds) {
#pragma unroll
                for (float& sum : total) sum = 0;  // no cut's is -0
            }
#pragma unroll 1
            for (int cut = 0; cut < (Parts == 1 ? cuts : 1); cut++) {
                const int steps = steps_of(Parts == 1 ? cut : place.part);
                int before = 0;
                hold(acc);
#pragma unroll 1
                for (int s = 0; s < steps; s++, next_stage()) {
                    wait_barrier(full(stage), phase);
                    const uint32_t as = room + stage * R::stage_bytes, bs = as + R::a_bytes;
                    const uint64_t a =
                        tile_descriptor(as + group * 8192, Way::a_along_k ? 16 : 8192);
                    const uint64_t b = tile_descriptor(bs, Way::b_along_k ? 16 : 8192);
                    begin_products();
#pragma unroll
                    for (int k = 0; k < 4; k++)
                        Way::step(acc, a + k * (Way::a_along_k ? 2 : 128),
                                  b + k * (Way::b_along_k ? 2 : 128), k > 0 || s > 0);
                    commit_products();
                    if (s > 0) {
                        wait_products<1>();
                        release(before);
                    }
                    before = stage;
                    if (leads && (s + 1 == Stages / 2 || s + 1 == steps)) {
                        asm volatile("bar.arrive 2, %0;" ::"n"(threads) : "memory");
                        leads = false;
                    }
                }
                wait_products<0>();
                hold(acc);
                release(before);
                if constexpr (Parts == 1 && cuts > 1 && R::holds) {
#pragma unroll
                    for (int x = 0; x < sums; x++) total[x] += acc[x];
                } else if constexpr (Parts == 1 && cuts > 1) {
                    if (cut > 0) {
#pragma unroll
                        for (int lot = 0; lot < lots; lot++) {
                            const Four four = kept[lot * threads];
#pragma unroll
                            for (int y = 0; y < 4; y++)
                                acc[4 * lot + y] = four.at[y] + acc[4 * lot + y];
                        }
                    }
                    if (cut + 1 < cuts) keep(kept);
                }
            }
            if constexpr (Parts == 1 && cuts > 1 && R::holds) {
#pragma unroll
                for (int x = 0; x < sums; x++) acc[x] = total[x];
            }
            const int64_t row0 = place.i0 + int64_t(high) * BM + group * 64 + warp % 4 * 16;
            if constexpr (Parts > 1) {
                const int64_t tile = place.tile * Pair + high;
                const auto part_of = [&](int part) {
                    return reinterpret_cast<Four*>(parts) + (tile * Parts + part) * lots * threads +
                           mine;
                };
                keep(part_of(place.part));
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
                const auto add_part = [&](int part, bool set) {
                    const Four* const from = part_of(part);
#pragma unroll
                    for (int lot = 0; lot < lots; lot++) {
                        const Four four = from[lot * threads];
#pragma unroll
                        for (int y = 0; y < 4; y++) {
                            float& sum = acc[4 * lot + y];
                            sum = set ? four.at[y] : sum + four.at[y];
                        }
                        // Loads ahead of all sums would have no registers.
                        if (lot % 4 == 3) asm volatile("" ::: "memory");
                    }
                };
                add_part(0, true);
#pragma unroll 1
                for (int part = 1; part < Parts; part++) add_part(part, false);
            }
            const uint32_t mine_room = room + R::staging + (warp - 4) * R::warp_bytes;
            if constexpr (Put::lines && Parts == 1) {
                if (aligned16(put.line(0, 0, 0))) {
                    store_lines(acc, mine_room, put.line(place.batch, row0, place.j0), Put::step,
                                Shape::m - row0, Shape::n - place.j0);
                    continue;
                }
            }
            put_lines<Shape>(acc, mine_room, put, place.batch, row0, place.j0);
        }
        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");  // before the room is gone
    }
    if constexpr (Pair > 1) sync_cluster();  // no block leaves while another writes into it
}

}  // namespace aicf
