// C = A B by wgmma, and a long body behind it: two warpgroups multiply, and hand their sums,
// rounded to C's 16 bits, to warps of their own that take them through put() and store, while the
// next tile is multiplied. The order of k and the bits are those of wgmma.cuh.
#pragma once

#include "wgmma.cuh"

namespace aicf {

/// How such a kernel lies in shared memory, and how registers are dealt out.
template <class Layout>
struct Handing {
    static constexpr int depth = Layout::depth, consumers = 2, writers = Layout::writers;
    static constexpr int a_bytes = Layout::rows * 128, b_bytes = Layout::columns * 128;
    static constexpr int stage_bytes = a_bytes + b_bytes;
    static constexpr int staging = Layout::stages * stage_bytes;
    static constexpr int half_bytes = 64 * Layout::columns * 2;  // of a consumer's results
    static constexpr int barriers = staging + 2 * half_bytes;
    static constexpr int shared = barriers + 16 * Layout::stages + 32;
    static_assert(shared == Layout::shared);
    static_assert(Layout::rows == 128 && Layout::columns % 64 == 0 && Layout::parts == 1);
    static constexpr int groups = 1 + consumers + writers;
    static constexpr int all_registers = 65536 / (128 * groups) / 8 * 8 * groups;
    static constexpr int producer_registers = 32, consumer_registers = Layout::columns / 2 + 40;
    static constexpr int writer_registers =
        (all_registers - producer_registers - 2 * consumer_registers) / writers / 8 * 8;
    static constexpr bool writers_give = writer_registers <= all_registers / groups;
};

/// A sum that has been rounded to E.
template <class E>
struct Once {
    float value;
    __device__ __forceinline__ operator float() const { return value; }
};
template <class E>
__device__ __forceinline__ float rounded(Once<E> x) {
    return x.value;
}

/// Where the first 8 neighbours of a lane lie; its other lots are 4 rows further each.
struct Spot {
    int64_t batch, row, column;
    /// Whether a lot exists, of tiles of Rows x Columns.
    template <class Shape, int Rows, int Columns>
    __device__ __forceinline__ bool there(int lot) const {
        return (Shape::m % Rows == 0 || row + 4 * lot < Shape::m) &&
               (Shape::n % Columns == 0 || column < Shape::n);
    }
};

/// The copies of every tile's operands, by one thread.
template <class Layout, class Shape, class Place>
__device__ __forceinline__ void copy_tiles(uint32_t room, uint32_t first, uint32_t stride,
                                           uint32_t high, const void* map_a, const void* map_b) {
    typedef Handing<Layout> R;
    constexpr int Stages = Layout::stages, Pair = Layout::pair;
    int stage = 0;
    uint32_t phase = 1;
    for (uint32_t u = first; u < Place::tiles; u += stride) {
        const Place place(u);
        const int i0 = int(place.i0) + int(high) * Layout::rows, j0 = int(place.j0);
        const int az = Layout::a_batched ? int(place.batch) : 0,
                  bz = Layout::b_batched ? int(place.batch) : 0;
#pragma unroll 1
        for (int k0 = 0; k0 < int(Shape::k); k0 += R::depth) {
            const uint32_t as = room + stage * R::stage_bytes,
                           full = room + R::barriers + 8 * stage;
            wait_barrier(full + 8 * Stages, phase);
            arrive_expecting(full, R::stage_bytes);
            copy_tile<R, Layout::rows, Layout::a_along_k>(as, map_a, i0, k0, az, full);
            copy_tile<R, Layout::columns, Layout::b_along_k, 128, Pair>(
                as + R::a_bytes, map_b, j0, k0, bz, full, high, (1u << Pair) - 1);
            if (++stage == Stages) stage = 0, phase ^= 1;
        }
    }
}

/// A consumer's warp's 16 rows of sums, rounded, to where writers find them.
template <class E, int Columns, int Count>
__device__ __forceinline__ void hand_over(const float (&sums)[Count], uint32_t half) {
    const int lane = threadIdx.x % 32, row = threadIdx.x / 32 % 4 * 16 + lane % 16;
    const uint32_t at = half + row * 128, turned = (lane / 16 ^ (row & 7)) * 16;
#pragma unroll
    for (int x = 0; x < Columns; x += 16) {
        const float* const of = &sums[x / 2];
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                         at + x / 64 * 8192 + (turned ^ x % 64 * 2)),
                     "r"(narrow_two<E>(of[0], of[1])), "r"(narrow_two<E>(of[2], of[3])),
                     "r"(narrow_two<E>(of[4], of[5])), "r"(narrow_two<E>(of[6], of[7]))
                     : "memory");
    }
}
/// Eight neighbours of row `row` of a piece of 64 columns.
template <class E>
__device__ __forceinline__ void take_over(uint32_t piece, int row, Once<E> (&to)[8]) {
    Words<E, 8> words;
    uint32_t (&word)[4] = words.words.at;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                 : "r"(piece + row * 128 + (threadIdx.x % 8 ^ row & 7) * 16)
                 : "memory");
    float wide[8];
    words.open(wide);
#pragma unroll
    for (int j = 0; j < 8; j++) to[j].value = wide[j];
}

/// What writers do. A warp takes 4 Lots rows of 64 columns at a time, the more the less it waits
/// for its own results. Packed: 8 neighbours lie together in all that put() reads and writes.
template <class Layout, class Shape, class Place, int Lots, bool Packed, class Put>
__device__ __forceinline__ void write_tiles(const Put& put, uint32_t room, uint32_t first,
                                            uint32_t stride, uint32_t high) {
    typedef Handing<Layout> R;
    constexpr int BM = Layout::rows, BN = Layout::columns, warps = 4 * R::writers;
    constexpr int rows = 4 * Lots, high_units = 64 / rows, all = BN / 64 * high_units,
                  units = all / warps;  // of a half, each warp's
    static_assert(all % warps == 0);
    const int warp = threadIdx.x / 32 - 12, lane = threadIdx.x % 32;
    const uint32_t filled = room + R::barriers + 16 * Layout::stages, drained = filled + 16;
    const auto row_of = [&](int q) {
        return (warp + q % units * warps) % high_units * rows + lane / 8;
    };
    const auto piece_of = [&](int q) { return (warp + q % units * warps) / high_units; };
    const auto spot_of = [&](const Place& place, int q) {
        return Spot{place.batch, place.i0 + int64_t(high) * BM + q / units * 64 + row_of(q),
                    place.j0 + piece_of(q) * 64 + lane % 8 * 8};
    };
    const auto there = [](const Spot& spot, int lot) {
        return spot.template there<Shape, BM * Layout::pair, BN>(lot);
    };
    typename Put::Operands now[Lots], then[Lots];
    const auto load = [&](typename Put::Operands(&to)[Lots], const Spot& spot) {
#pragma unroll
        for (int x = 0; x < Lots; x++)
            if (there(spot, x)) to[x] = put.operands(spot.batch, spot.row + 4 * x, spot.column);
    };
    if (Packed && first < Place::tiles) load(now, spot_of(Place(first), 0));
    uint32_t parity = 0;
    for (uint32_t u = first; u < Place::tiles; u += stride, parity ^= 1) {
        const Place place(u), after(u + stride < Place::tiles ? u + stride : u);
#pragma unroll 1
        for (int q = 0; q < 2 * units; q++) {
            const int half = q / units;
            const Spot spot = spot_of(place, q);
            // What the next one reads beside the sums comes meanwhile.
            if constexpr (Packed)
                load(then, q + 1 < 2 * units ? spot_of(place, q + 1) : spot_of(after, 0));
            if (q % units == 0) wait_barrier(filled + 8 * half, parity);
            const uint32_t piece = room + R::staging + half * R::half_bytes + piece_of(q) * 8192;
            Once<typename Shape::As> sums[Lots][8];
#pragma unroll
            for (int x = 0; x < Lots; x++) take_over(piece, row_of(q) + 4 * x, sums[x]);
            if (q % units == units - 1) {
                __syncwarp();
                if (lane == 0) arrive_at<1>(drained + 8 * half, 0);
            }
#pragma unroll
            for (int x = 0; x < Lots; x++) {
                if (there(spot, x)) {
                    if constexpr (Packed)
                        put.finish(now[x], spot.batch, spot.row + 4 * x, spot.column, sums[x]);
                    else
                        put(spot.batch, spot.row + 4 * x, spot.column, sums[x]);
                }
                if constexpr (Packed) now[x] = then[x];
            }
        }
    }
}

/// A block computes Layout::rows x Layout::columns of C, of k in one cut; Layout as in wgmma.cuh,
/// with the warpgroups of `writers`.
template <class Layout, class Shape, class Put, class Ready>
__device__ __forceinline__ void gemm_wgmma_writers(const Grid& grid, const Put& put,
                                                   const void* map_a, const void* map_b,
                                                   const Ready& ready) {
    typedef Handing<Layout> R;
    typedef typename Shape::As E;
    constexpr int BN = Layout::columns, Stages = Layout::stages, Pair = Layout::pair;
    typedef Piece<Shape, Layout::rows * Pair, BN, (Shape::n > Shape::m)> Place;
    constexpr int steps = int((Shape::k + R::depth - 1) / R::depth), threads = 256;
    static_assert(Put::packs && Shape::chunk >= Shape::k && Place::tiles < 1 << 30);
    extern __shared__ __align__(1024) char ring_room[];
    const uint32_t room = shared_address(ring_room), full = room + R::barriers,
                   empty = full + 8 * Stages, filled = empty + 8 * Stages, drained = filled + 16;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        fetch_map(map_a);
        fetch_map(map_b);
        for (int s = 0; s < Stages; s++) {
            init_barrier(full + 8 * s, 1);
            init_barrier(empty + 8 * s, 8 * Pair);
        }
        for (int half = 0; half < 2; half++) {
            init_barrier(filled + 8 * half, 4);
            init_barrier(drained + 8 * half, 4 * R::writers);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if constexpr (Pair > 1)
        meet_cluster();
    else
        __syncthreads();
    const uint32_t high = Pair > 1 ? cluster_rank() : 0;
    const uint32_t first = grid.block / Pair, stride = grid.blocks / Pair;
    if (warp < 4) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(R::producer_registers));
        if (warp > 0) ready.begin();
        if (leads_copies(warp)) {
            ready();
            copy_tiles<Layout, Shape, Place>(room, first, stride, high, map_a, map_b);
        }
        __syncwarp();
    } else if (warp < 12) {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(R::consumer_registers));
        const uint32_t group = warp / 4 - 1;
        const auto release = [&](int s) {
            if (lane < Pair) arrive_at<Pair>(empty + 8 * s, lane);
        };
        int stage = 0, before = 0;
        uint32_t phase = 0, parity = 1;
        // The second group stays some steps behind: the tensor cores have its products while the
        // first hands over.
        const bool several = Place::tiles > stride;
        bool leads = several && group == 0;
        if (several && group == 1) sync_some<2, threads>();
        float acc[BN / 2];
        for (uint32_t u = first; u < Place::tiles; u += stride) {
            hold(acc);
#pragma unroll 1
            for (int s = 0; s < steps; s++) {
                wait_barrier(full + 8 * stage, phase);
                const uint32_t as = room + stage * R::stage_bytes;
                constexpr int a_step = Layout::a_along_k ? 2 : 128,
                              b_step = Layout::b_along_k ? 2 : 128;
                const uint64_t a =
                    tile_descriptor(as + group * 8192, Layout::a_along_k ? 16 : 8192);
                const uint64_t b = tile_descriptor(as + R::a_bytes, Layout::b_along_k ? 16 : 8192);
                begin_products();
#pragma unroll
                for (int k = 0; k < 4; k++)
                    Layout::template step<0>(acc, a + k * a_step, b + k * b_step, k > 0 || s > 0);
                commit_products();
                if (s > 0) {
                    wait_products<1>();
                    release(before);
                }
                before = stage;
                if (++stage == Stages) stage = 0, phase ^= 1;
                if (leads && (s + 1 == Stages / 2 || s + 1 == steps)) {
                    arrive_as<threads>(2);
                    leads = false;
                }
            }
            wait_products<0>();
            hold(acc);
            release(before);
            wait_barrier(drained + 8 * group, parity);
            parity ^= 1;
            hand_over<E, BN>(acc, room + R::staging + group * R::half_bytes);
            __syncwarp();
            if (lane == 0) arrive_at<1>(filled + 8 * group, 0);
        }
    } else {
        if constexpr (R::writers_give)
            asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(R::writer_registers));
        else
            asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(R::writer_registers));
        wait_before_kernel();
        if (put.packed())
            write_tiles<Layout, Shape, Place, R::writers == 1 ? 4 : 2, true>(put, room, first,
                                                                             stride, high);
        else
            write_tiles<Layout, Shape, Place, 1, false>(put, room, first, stride, high);
    }
    if constexpr (Pair > 1)
        sync_cluster();  // no block leaves while another writes or arrives there
}

}  // namespace aicf
