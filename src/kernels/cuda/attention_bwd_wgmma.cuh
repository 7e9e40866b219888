// Gradients of attention on the tensor cores of 9.0 by wgmma, the same products in the same order
// as attention.cuh. A warpgroup takes 64 queries (of dq) or keys (of dk and dv) against blocks of
// the others, which the copy engine brings; weights and slopes never leave registers.
#pragma once

#include "attention_wgmma.cuh"

namespace aicf {

/// Two operands of a block's own rows, and a ring of two of the others' with numbers of their rows.
template <int Boxes, int Block>
struct GradientRoom {
    static constexpr int rows = 128, line = 128, stages = 2;
    static constexpr int own_bytes = Boxes * rows * line, other_bytes = Boxes * Block * line;
    static constexpr int number_bytes = 8 * Block;
    static constexpr int ring = 2 * own_bytes, stage_bytes = 2 * other_bytes;
    static constexpr int numbers = ring + stages * stage_bytes;
    static constexpr int barriers = numbers + stages * number_bytes;
    static constexpr int bytes = barriers + 8 * (2 + 4 * stages);
};

/// The barriers of such a room: of the own operands, and of each stage of the first and the second
/// of the others.
template <class Room>
struct GradientBarriers {
    uint32_t at;
    __device__ __forceinline__ uint32_t full_own() const { return at; }
    __device__ __forceinline__ uint32_t empty_own() const { return at + 8; }
    __device__ __forceinline__ uint32_t full(int which, int s) const {
        return at + 16 + 8 * (which * Room::stages + s);
    }
    __device__ __forceinline__ uint32_t empty(int which, int s) const {
        return at + 16 + 8 * ((2 + which) * Room::stages + s);
    }
    /// `writers`: threads that write numbers beside the copies of the second.
    __device__ __forceinline__ void init(int writers) const {
        init_barrier(full_own(), 1);
        init_barrier(empty_own(), 8);
        for (int s = 0; s < Room::stages; s++) {
            init_barrier(full(0, s), 1 + writers);
            init_barrier(full(1, s), 1);
            init_barrier(empty(0, s), 8);
            init_barrier(empty(1, s), 8);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
};

/// sums = 64 lines of `own` by the lines of a block, along their columns.
template <class Layout, int OwnBox, int OtherBox, int Count>
__device__ __forceinline__ void multiply_lines(float (&sums)[Count], uint32_t own, uint32_t other) {
    const uint64_t a = tile_descriptor(own, 16), b = tile_descriptor(other, 16);
    begin_products();
#pragma unroll
    for (int k = 0; k < 4 * Layout::boxes; k++)
        Layout::scores(sums, a + k / 4 * (OwnBox / 16) + k % 4 * 2,
                       b + k / 4 * (OtherBox / 16) + k % 4 * 2, k > 0);
    commit_products();
}
/// sums += weights times the lines of a block.
template <class Layout, int OtherBox, int Steps, int Count>
__device__ __forceinline__ void multiply_weights(float (&sums)[Count],
                                                 const uint32_t (&weights)[Steps][4],
                                                 uint32_t other, bool adds) {
    const uint64_t b = tile_descriptor(other, OtherBox);
    begin_products();
#pragma unroll
    for (int k = 0; k < Steps; k++) Layout::values(sums, weights[k], b + k * 128, k > 0 || adds);
    commit_products();
}
template <class At, class E, int Count>
__device__ __forceinline__ void store_sums(const float (&sums)[Count], float factor, E* to, int row,
                                           int rows) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int high = 0; high < 2; high++) {
        const int r = row + lane / 4 + 8 * high;
        if (r >= rows) continue;
#pragma unroll
        for (int x = 0; x < Count / 4; x++)
            *reinterpret_cast<uint32_t*>(to + r * int64_t(At::row) + 8 * x + lane % 4 * 2) =
                narrow_two<E>(sums[4 * x + 2 * high] * factor, sums[4 * x + 2 * high + 1] * factor);
    }
}

template <class Layout, class Shape, class E>
__device__ __forceinline__ void attention_dq_wgmma(const Grid& grid, E* dq, const float* most,
                                                   const float* sum, const float* delta,
                                                   const char* map_q, const char* map_k,
                                                   const char* map_v, const char* map_dy,
                                                   float factor, float scale) {
    constexpr int boxes = Layout::boxes, block = Layout::block, width = 64 * boxes;
    typedef GradientRoom<boxes, block> Room;
    constexpr int own_box = Room::rows * Room::line, other_box = block * Room::line;
    constexpr uint32_t tiles = uint32_t((Shape::t + Room::rows - 1) / Room::rows);
    constexpr uint32_t units = uint32_t(tiles * Shape::heads * Shape::batches);
    extern __shared__ __align__(1024) char room_of_all[];
    const uint32_t room = shared_address(room_of_all);
    const GradientBarriers<Room> barriers{room + Room::barriers};
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (const char* map : {map_q, map_k, map_v, map_dy}) fetch_map(map);
        barriers.init(0);
    }
    __syncthreads();
    struct Place {
        int head, batch, i0, blocks;
        __device__ __forceinline__ explicit Place(uint32_t u) {
            const uint32_t of = u / tiles;
            head = int(of % uint32_t(Shape::heads));
            batch = int(of / uint32_t(Shape::heads));
            i0 = int(tiles - 1 - u % tiles) * Room::rows;
            const int last = i0 + Room::rows;
            const int end = !Shape::causal || last >= Shape::s ? int(Shape::s) : last;
            blocks = (end + block - 1) / block;
        }
    };
    int stage = 0;
    uint32_t phase = 0, unit_phase = 0;
    const auto next = [&] {
        if (++stage == Room::stages) stage = 0, phase ^= 1;
    };
    const auto ring = [&](int s, int which) {
        return room + Room::ring + s * Room::stage_bytes + which * Room::other_bytes;
    };
    if (warp < 4) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Layout::producer_registers));
        if (threadIdx.x == 0) {
            for (uint32_t u = grid.block; u < units; u += grid.blocks, unit_phase ^= 1) {
                const Place place(u);
                const int group = place.head / int(Shape::share);
                wait_barrier(barriers.empty_own(), unit_phase ^ 1);
                arrive_expecting(barriers.full_own(), 2 * Room::own_bytes);
                for (int b = 0; b < boxes; b++) {
                    copy_box<1>(room + b * own_box, map_q, Layout::q_x(place.head) + 64 * b,
                                place.i0, Layout::q_z(place.batch, place.head),
                                barriers.full_own());
                    copy_box<1>(room + Room::own_bytes + b * own_box, map_dy,
                                Layout::dy_x(place.head) + 64 * b, place.i0,
                                Layout::dy_z(place.batch, place.head), barriers.full_own());
                }
                for (int j = 0; j < place.blocks; j++, next()) {
                    wait_barrier(barriers.empty(0, stage), phase ^ 1);
                    arrive_expecting(barriers.full(0, stage), Room::other_bytes);
                    for (int b = 0; b < boxes; b++)
                        copy_box<1>(ring(stage, 0) + b * other_box, map_k,
                                    Layout::k_x(group) + 64 * b, j * block,
                                    Layout::k_z(place.batch, group), barriers.full(0, stage));
                    wait_barrier(barriers.empty(1, stage), phase ^ 1);
                    arrive_expecting(barriers.full(1, stage), Room::other_bytes);
                    for (int b = 0; b < boxes; b++)
                        copy_box<1>(ring(stage, 1) + b * other_box, map_v,
                                    Layout::v_x(group) + 64 * b, j * block,
                                    Layout::v_z(place.batch, group), barriers.full(1, stage));
                }
            }
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Layout::consumer_registers));
    const int own = warp / 4 - 1;
    const auto release = [&](uint32_t barrier) {
        if (lane == 0) arrive_at<1>(barrier, 0);
    };
    const uint32_t queries = room + own * 64 * Room::line, upstream = queries + Room::own_bytes;
    for (uint32_t u = grid.block; u < units; u += grid.blocks, unit_phase ^= 1) {
        const Place place(u);
        const int row = place.i0 + 64 * own + 16 * (warp % 4);
        float offset[2], mean[2];
#pragma unroll
        for (int high = 0; high < 2; high++) {
            const int r = row + lane / 4 + 8 * high;
            numbers_of<Shape>(offset[high], mean[high], most, sum, delta, place.batch, place.head,
                              r, r < Shape::t);
        }
        // Where registers do not hold the next scores beside what these products read.
        constexpr bool waits = width / 2 + block + block / 4 > 208;
        float acc[width / 2], p[block / 2], s[block / 2];
        uint32_t slopes[block / 16][4];
        wait_barrier(barriers.full_own(), unit_phase);
        const auto begin = [&] {
            wait_barrier(barriers.full(0, stage), phase);
            hold(p);
            multiply_lines<Layout, own_box, other_box>(p, queries, ring(stage, 0));
            wait_barrier(barriers.full(1, stage), phase);
            hold(s);
            multiply_lines<Layout, own_box, other_box>(s, upstream, ring(stage, 1));
        };
        if (place.blocks == 0) {
#pragma unroll
            for (int x = 0; x < width / 2; x++) acc[x] = 0;
        }
        int before = stage;
#pragma unroll 1
        for (int j = 0; j < place.blocks; j++) {
            const int j0 = j * block;
            begin();
            wait_products<1>();
            hold(p);
            if (j > 0) release(barriers.empty(0, before));
            before = stage;
#pragma unroll
            for (int x = 0; x < block / 2; x++)
                p[x] = scalar::weight<false>(scalar::fma(p[x], factor, offset[x % 4 / 2]));
            if (j0 + block > Shape::s || (Shape::causal && j0 + block - 1 > row)) {
                const int key = j0 + lane % 4 * 2;
#pragma unroll
                for (int high = 0; high < 2; high++) {
                    int seen = int(Shape::s) - key;
                    const int own_last = row + lane / 4 + 8 * high + 1 - key;
                    if (Shape::causal && own_last < seen) seen = own_last;
#pragma unroll
                    for (int x = 0; x < block / 4; x++)
                        if (x / 2 * 8 + x % 2 >= seen) p[x / 2 * 4 + 2 * high + x % 2] = 0.0f;
                }
            }
            wait_products<0>();
            hold(s);
            hold(acc);
            release(barriers.empty(1, stage));
#pragma unroll
            for (int x = 0; x < block / 2; x++) s[x] = p[x] * (s[x] - mean[x % 4 / 2]);
            pack_lines<E>(slopes, s);
            multiply_weights<Layout, other_box>(acc, slopes, ring(stage, 0), j > 0);
            if constexpr (waits) {
                wait_products<0>();
                hold(acc);
            }
            next();
        }
        wait_products<0>();
        hold(acc);
        if (place.blocks > 0) release(barriers.empty(0, before));
        release(barriers.empty_own());
        store_sums<typename Shape::Dq>(acc, scale, dq + Shape::Dq::at(place.batch, place.head), row,
                                       int(Shape::t));
    }
}

template <class Layout, class Shape, class E>
__device__ __forceinline__ void attention_dkv_wgmma(const Grid& grid, E* dk, E* dv,
                                                    const float* most, const float* sum,
                                                    const float* delta, const char* map_q,
                                                    const char* map_k, const char* map_v,
                                                    const char* map_dy, float factor, float scale) {
    constexpr int boxes = Layout::boxes, block = Layout::block, width = 64 * boxes;
    typedef GradientRoom<boxes, block> Room;
    constexpr int own_box = Room::rows * Room::line, other_box = block * Room::line;
    constexpr uint32_t tiles = uint32_t((Shape::s + Room::rows - 1) / Room::rows),
                       groups = uint32_t(Shape::heads / Shape::share);
    constexpr uint32_t units = uint32_t(tiles * groups * Shape::batches);
    constexpr int blocks = int((Shape::t + block - 1) / block);
    extern __shared__ __align__(1024) char room_of_all[];
    const uint32_t room = shared_address(room_of_all);
    const GradientBarriers<Room> barriers{room + Room::barriers};
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (const char* map : {map_q, map_k, map_v, map_dy}) fetch_map(map);
        barriers.init(32);
    }
    __syncthreads();
    struct Place {
        int group, batch, j0, skipped, turns;
        __device__ __forceinline__ explicit Place(uint32_t u) {
            const uint32_t of = u / tiles;
            group = int(of % groups);
            batch = int(of / groups);
            j0 = int(u % tiles) * Room::rows;
            // Blocks of queries from the first that sees a key on, of one head after the other.
            skipped = Shape::causal ? (j0 / block < blocks ? j0 / block : blocks) : 0;
            turns = (blocks - skipped) * int(Shape::share);
        }
        /// The queries of a turn, and those of the next: after the last the first of another head.
        __device__ __forceinline__ int first() const { return skipped * block; }
        __device__ __forceinline__ int after(int i0) const {
            return i0 + block < blocks * block ? i0 + block : first();
        }
    };
    int stage = 0;
    uint32_t phase = 0, unit_phase = 0;
    const auto next = [&] {
        if (++stage == Room::stages) stage = 0, phase ^= 1;
    };
    const auto ring = [&](int s, int which) {
        return room + Room::ring + s * Room::stage_bytes + which * Room::other_bytes;
    };
    const auto numbers = [&](int s) { return room + Room::numbers + s * Room::number_bytes; };
    if (warp < 4) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Layout::producer_registers));
        if (threadIdx.x == 0) {
            for (uint32_t u = grid.block; u < units; u += grid.blocks, unit_phase ^= 1) {
                const Place place(u);
                wait_barrier(barriers.empty_own(), unit_phase ^ 1);
                arrive_expecting(barriers.full_own(), 2 * Room::own_bytes);
                for (int b = 0; b < boxes; b++) {
                    copy_box<1>(room + b * own_box, map_k, Layout::k_x(place.group) + 64 * b,
                                place.j0, Layout::k_z(place.batch, place.group),
                                barriers.full_own());
                    copy_box<1>(room + Room::own_bytes + b * own_box, map_v,
                                Layout::v_x(place.group) + 64 * b, place.j0,
                                Layout::v_z(place.batch, place.group), barriers.full_own());
                }
                int head = place.group * int(Shape::share), i0 = place.first();
                for (int turn = 0; turn < place.turns; turn++, next()) {
                    wait_barrier(barriers.empty(0, stage), phase ^ 1);
                    arrive_expecting(barriers.full(0, stage), Room::other_bytes);
                    for (int b = 0; b < boxes; b++)
                        copy_box<1>(ring(stage, 0) + b * other_box, map_q,
                                    Layout::q_x(head) + 64 * b, i0, Layout::q_z(place.batch, head),
                                    barriers.full(0, stage));
                    wait_barrier(barriers.empty(1, stage), phase ^ 1);
                    arrive_expecting(barriers.full(1, stage), Room::other_bytes);
                    for (int b = 0; b < boxes; b++)
                        copy_box<1>(ring(stage, 1) + b * other_box, map_dy,
                                    Layout::dy_x(head) + 64 * b, i0,
                                    Layout::dy_z(place.batch, head), barriers.full(1, stage));
                    i0 = place.after(i0);
                    head += i0 == place.first();
                }
            }
        } else if (warp == 1) {  // the numbers of the queries
            for (uint32_t u = grid.block; u < units; u += grid.blocks) {
                const Place place(u);
                int head = place.group * int(Shape::share), i0 = place.first();
                for (int turn = 0; turn < place.turns; turn++, next()) {
                    wait_barrier(barriers.empty(0, stage), phase ^ 1);
#pragma unroll 1
                    for (int x = lane; x < block; x += 32) {
                        const int i = i0 + x;
                        float offset, mean;
                        numbers_of<Shape>(offset, mean, most, sum, delta, place.batch, head, i,
                                          i < Shape::t);
                        asm volatile(
                            "st.shared.v2.f32 [%0], {%1, %2};" ::"r"(numbers(stage) + 8 * x),
                            "f"(offset), "f"(mean)
                            : "memory");
                    }
                    arrive_at<1>(barriers.full(0, stage), 0);
                    i0 = place.after(i0);
                    head += i0 == place.first();
                }
            }
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Layout::consumer_registers));
    const int own = warp / 4 - 1;
    const auto release = [&](uint32_t barrier) {
        if (lane == 0) arrive_at<1>(barrier, 0);
    };
    const uint32_t keys = room + own * 64 * Room::line, values = keys + Room::own_bytes;
    for (uint32_t u = grid.block; u < units; u += grid.blocks, unit_phase ^= 1) {
        const Place place(u);
        const int row = place.j0 + 64 * own + 16 * (warp % 4);
        constexpr bool waits = width + block + block / 2 > 208;
        float key_acc[width / 2], value_acc[width / 2], p[block / 2], s[block / 2];
        uint32_t weights[block / 16][4], slopes[block / 16][4];
        wait_barrier(barriers.full_own(), unit_phase);
        const auto begin = [&] {
            wait_barrier(barriers.full(0, stage), phase);
            hold(p);
            multiply_lines<Layout, own_box, other_box>(p, keys, ring(stage, 0));
            wait_barrier(barriers.full(1, stage), phase);
            hold(s);
            multiply_lines<Layout, own_box, other_box>(s, values, ring(stage, 1));
        };
        if (place.turns == 0) {
#pragma unroll
            for (int x = 0; x < width / 2; x++) key_acc[x] = value_acc[x] = 0;
        }
        int before = stage, i0 = place.first();
#pragma unroll 1
        for (int turn = 0; turn < place.turns; turn++, i0 = place.after(i0)) {
            const uint32_t own_numbers = numbers(stage) + lane % 4 * 16;
            begin();
            wait_products<1>();
            hold(p);
            if (turn > 0) {
                release(barriers.empty(0, before));
                release(barriers.empty(1, before));
            }
            before = stage;
#pragma unroll
            for (int x = 0; x < block / 8; x++) {
                float number[4];
                asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                             : "=f"(number[0]), "=f"(number[1]), "=f"(number[2]), "=f"(number[3])
                             : "r"(own_numbers + 64 * x)
                             : "memory");
#pragma unroll
                for (int y = 0; y < 4; y++)
                    p[4 * x + y] =
                        scalar::weight<false>(scalar::fma(p[4 * x + y], factor, number[y % 2 * 2]));
            }
            if (Shape::causal && row + 15 > i0) {
#pragma unroll
                for (int high = 0; high < 2; high++) {
                    const int hidden = row + lane / 4 + 8 * high - i0 - lane % 4 * 2;
#pragma unroll
                    for (int x = 0; x < block / 4; x++)
                        if (x / 2 * 8 + x % 2 < hidden) p[x / 2 * 4 + 2 * high + x % 2] = 0.0f;
                }
            }
            wait_products<0>();
            hold(s);
            hold(key_acc);
            hold(value_acc);
#pragma unroll
            for (int x = 0; x < block / 8; x++) {
                float number[4];
                asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                             : "=f"(number[0]), "=f"(number[1]), "=f"(number[2]), "=f"(number[3])
                             : "r"(own_numbers + 64 * x)
                             : "memory");
#pragma unroll
                for (int y = 0; y < 4; y++)
                    s[4 * x + y] = p[4 * x + y] * (s[4 * x + y] - number[y % 2 * 2 + 1]);
            }
            pack_lines<E>(weights, p);
            multiply_weights<Layout, other_box>(value_acc, weights, ring(stage, 1), turn > 0);
            pack_lines<E>(slopes, s);
            multiply_weights<Layout, other_box>(key_acc, slopes, ring(stage, 0), turn > 0);
            if constexpr (waits) {
                wait_products<0>();
                hold(key_acc);
                hold(value_acc);
            }
            next();
        }
        wait_products<0>();
        hold(key_acc);
        hold(value_acc);
        if (place.turns > 0) {
            release(barriers.empty(0, before));
            release(barriers.empty(1, before));
        }
        release(barriers.empty_own());
        store_sums<typename Shape::Dk>(key_acc, scale, dk + Shape::Dk::at(place.batch, place.group),
                                       row, int(Shape::s));
        store_sums<typename Shape::Dv>(
            value_acc, 1.0f, dv + Shape::Dv::at(place.batch, place.group), row, int(Shape::s));
    }
}

}  // namespace aicf
