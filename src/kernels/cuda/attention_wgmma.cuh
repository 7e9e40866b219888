// Attention on the tensor cores of 9.0 by wgmma, the same products in the same order as
// attention.cuh, so the same bits. One warp asks the copy engine for queries, keys and values;
// each warpgroup takes 64 queries against blocks of 128 keys, and makes the weights of one block
// while the products of the block before are on their way.
#pragma once

#include "attention.cuh"
#include "wgmma.cuh"

namespace aicf {

/// Where things lie in the shared memory of a block, all in lines of 64 columns.
template <int Boxes, int Groups, int Stages>
struct AttentionRoom {
    static constexpr int keys = 128, line = 128, box = keys * line;
    static constexpr int queries = 0, query_bytes = Boxes * Groups * 64 * line;
    static constexpr int key_bytes = Boxes * box;
    static constexpr int key_stages = query_bytes;
    // Behind the columns of values come columns of ones, which add the weights: of two boxes a
    // third, of one the same lines for all steps.
    static constexpr int ones_bytes = Boxes == 1 ? 2048 : box;
    static constexpr int value_bytes = key_bytes + (Boxes == 1 ? 0 : ones_bytes);
    static constexpr int value_stages = key_stages + Stages * key_bytes;
    static constexpr int ones = value_stages + Stages * value_bytes;
    static constexpr int barriers = ones + (Boxes == 1 ? ones_bytes : 0);
    static constexpr int bytes = barriers + 8 * (2 + 4 * Stages);
};

/// Sums of 64 rows as the first operand of a product along the columns.
template <class E, int Count>
__device__ __forceinline__ void pack_lines(uint32_t (&to)[Count / 8][4],
                                           const float (&from)[Count]) {
#pragma unroll
    for (int k = 0; k < Count / 8; k++)
#pragma unroll
        for (int w = 0; w < 4; w++)
            to[k][w] = narrow_two<E>(from[8 * k + 2 * w], from[8 * k + 2 * w + 1]);
}

/// A row's share of a block's scores to weights: what attention.cuh does, of sums of a warpgroup.
template <class Layout, class Shape, class E>
__device__ __forceinline__ void attention_wgmma(const Grid& grid, E* o, float* most, float* sum,
                                                const char* map_q, const char* map_k,
                                                const char* map_v, float factor) {
    constexpr int boxes = Layout::boxes, groups = Layout::groups, stages = Layout::stages;
    typedef AttentionRoom<boxes, groups, stages> Room;
    constexpr int rows = 64 * groups, width = 64 * boxes, columns = width / 2 + 4;
    constexpr int64_t tiles = (Shape::t + rows - 1) / rows;
    constexpr uint32_t units = uint32_t(tiles * Shape::heads * Shape::batches);
    extern __shared__ __align__(1024) char room_of_all[];
    const uint32_t room = shared_address(room_of_all), barriers = room + Room::barriers;
    const uint32_t full_q = barriers, empty_q = barriers + 8;
    const auto full_k = [&](int s) { return barriers + 16 + 8 * s; };
    const auto full_v = [&](int s) { return barriers + 16 + 8 * (stages + s); };
    const auto empty_k = [&](int s) { return barriers + 16 + 8 * (2 * stages + s); };
    const auto empty_v = [&](int s) { return barriers + 16 + 8 * (3 * stages + s); };
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        fetch_map(map_q);
        fetch_map(map_k);
        fetch_map(map_v);
        init_barrier(full_q, 1);
        init_barrier(empty_q, 4 * groups);
        for (int s = 0; s < stages; s++) {
            init_barrier(full_k(s), 1);
            init_barrier(full_v(s), 1);
            init_barrier(empty_k(s), 4 * groups);
            init_barrier(empty_v(s), 4 * groups);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    constexpr uint32_t one = same_type<E, Half> ? 0x3c003c00u : 0x3f803f80u;
    for (int s = 0; s < (boxes == 1 ? 1 : stages); s++) {
        const uint32_t to = boxes == 1
                                ? room + Room::ones
                                : room + Room::value_stages + s * Room::value_bytes + 2 * Room::box;
        for (int x = threadIdx.x; x < Room::ones_bytes / 4; x += 128 * (groups + 1))
            asm volatile("st.shared.b32 [%0], %1;" ::"r"(to + 4 * x), "r"(one) : "memory");
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();

    struct Place {
        int head, batch, i0, blocks;
        __device__ __forceinline__ explicit Place(uint32_t u) {
            // The tiles of a head together, those with most keys first.
            const uint32_t of = u / uint32_t(tiles);
            head = int(of % uint32_t(Shape::heads));
            batch = int(of / uint32_t(Shape::heads));
            i0 = int(uint32_t(tiles) - 1 - u % uint32_t(tiles)) * rows;
            blocks = blocks_of(i0 + rows);
        }
        /// How many blocks of keys the queries before `last` see.
        __device__ __forceinline__ static int blocks_of(int last) {
            const int end = !Shape::causal || last >= Shape::s ? int(Shape::s) : last;
            return (end + Room::keys - 1) / Room::keys;
        }
    };
    int stage = 0;
    uint32_t phase = 0, unit_phase = 0;
    const auto next = [&] {
        if (++stage == stages) stage = 0, phase ^= 1;
    };
    if (warp < 4) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Layout::producer_registers));
        if (threadIdx.x == 0) {
            for (uint32_t u = grid.block; u < units; u += grid.blocks, unit_phase ^= 1) {
                const Place place(u);
                const auto copy = [&](uint32_t to, const char* map, int lot, int x, int y, int z,
                                      uint32_t barrier) {
#pragma unroll
                    for (int b = 0; b < boxes; b++)
                        copy_box<1>(to + b * lot, map, x + 64 * b, y, z, barrier);
                };
                wait_barrier(empty_q, unit_phase ^ 1);
                arrive_expecting(full_q, Room::query_bytes);
                copy(room + Room::queries, map_q, rows * Room::line, Layout::q_x(place.head),
                     place.i0, Layout::q_z(place.batch, place.head), full_q);
                const int group = place.head / int(Shape::share);
                for (int j = 0; j < place.blocks; j++, next()) {
                    wait_barrier(empty_k(stage), phase ^ 1);
                    arrive_expecting(full_k(stage), Room::key_bytes);
                    copy(room + Room::key_stages + stage * Room::key_bytes, map_k, Room::box,
                         Layout::k_x(group), j * Room::keys, Layout::k_z(place.batch, group),
                         full_k(stage));
                    wait_barrier(empty_v(stage), phase ^ 1);
                    arrive_expecting(full_v(stage), Room::key_bytes);
                    copy(room + Room::value_stages + stage * Room::value_bytes, map_v, Room::box,
                         Layout::v_x(group), j * Room::keys, Layout::v_z(place.batch, group),
                         full_v(stage));
                }
            }
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Layout::consumer_registers));
    const float none = scalar::from_bits(0xff800000u);
    const int own = warp / 4 - 1;
    const auto release = [&](uint32_t barrier) {
        if (lane == 0) arrive_at<1>(barrier, 0);
    };
    for (uint32_t u = grid.block; u < units; u += grid.blocks, unit_phase ^= 1) {
        const Place place(u);
        const int row = place.i0 + 64 * own + 16 * (warp % 4);
        // Of queries that are there, the blocks that some of the warpgroup's see.
        const int needed =
            place.i0 + 64 * own < Shape::t ? Place::blocks_of(place.i0 + 64 * own + 64) : 0;
        float acc[columns], s[64], top[2] = {none, none}, step[2];
        uint32_t weights[8][4];
        bool moves;
        const uint64_t queries = tile_descriptor(room + Room::queries + own * 64 * Room::line, 16);
        const auto score = [&](int at) {
            const uint64_t keys =
                tile_descriptor(room + Room::key_stages + at * Room::key_bytes, 16);
            begin_products();
#pragma unroll
            for (int k = 0; k < 4 * boxes; k++)
                Layout::scores(s, queries + k / 4 * (rows * Room::line / 16) + k % 4 * 2,
                               keys + k / 4 * (Room::box / 16) + k % 4 * 2, k > 0);
            commit_products();
        };
        const auto add = [&](int at, bool adds) {
            const uint32_t from = room + Room::value_stages + at * Room::value_bytes;
            const uint64_t values =
                tile_descriptor(from, boxes == 1 ? room + Room::ones - from : Room::box);
            // Of one box the ones lie where they are, however far the step.
            constexpr uint64_t along = 128 - (boxes == 1 ? uint64_t(128) << 16 : 0);
            begin_products();
#pragma unroll
            for (int k = 0; k < 8; k++)
                Layout::values(acc, weights[k], values + k * along, k > 0 || adds);
            commit_products();
        };
        // Scores to weights of type float, in their place; sums are to be multiplied by `step`.
        const auto weigh = [&](int j) {
            const int j0 = j * Room::keys;
            const bool edge =
                j0 + Room::keys > Shape::s || (Shape::causal && j0 + Room::keys - 1 > row);
            const auto hide = [&](float value) {
                const int key = j0 + lane % 4 * 2, query = row + lane / 4;
#pragma unroll
                for (int high = 0; high < 2; high++) {
                    // How many keys from the lane's first on the row sees.
                    int seen = int(Shape::s) - key;
                    if (Shape::causal && query + 8 * high + 1 - key < seen)
                        seen = query + 8 * high + 1 - key;
#pragma unroll
                    for (int x = 0; x < 32; x++)
                        if (x / 2 * 8 + x % 2 >= seen) s[x / 2 * 4 + 2 * high + x % 2] = value;
                }
            };
            if (edge) hide(none);
            moves = false;
            float used[2];
#pragma unroll
            for (int high = 0; high < 2; high++) {
                float m = none;
#pragma unroll
                for (int x = 0; x < 64; x += 4)
                    m = largest(m, largest(s[x + 2 * high], s[x + 2 * high + 1]));
                m = largest(m, __shfl_xor_sync(~0u, m, 1));
                m = largest(m, __shfl_xor_sync(~0u, m, 2));
                const float next_top = largest(top[high], scalar::weight_top(m, factor));
                moves |= !(next_top == top[high]);
                step[high] = scalar::weight_step(top[high], next_top);
                top[high] = next_top;
                used[high] = next_top == none ? 0.0f : next_top;
            }
#pragma unroll
            for (int x = 0; x < 64; x++)
                s[x] = scalar::weight<false>(scalar::fma(s[x], factor, -used[x % 4 / 2]));
            if (edge) hide(0.0f);
        };
        wait_barrier(full_q, unit_phase);
        if (needed > 0) {
            wait_barrier(full_k(stage), phase);
            hold(s);
            score(stage);
            wait_products<0>();
            hold(s);
            release(empty_k(stage));
            weigh(0);
            pack_lines<E>(weights, s);
            int before = stage;
            uint32_t before_phase = phase;
            next();
#pragma unroll 1
            for (int j = 1; j < needed; j++) {
                wait_barrier(full_k(stage), phase);
                hold(s);
                score(stage);
                wait_barrier(full_v(before), before_phase);
                hold(acc);
                add(before, j > 1);
                wait_products<1>();
                hold(s);
                release(empty_k(stage));
                weigh(j);
                wait_products<0>();
                hold(acc);
                release(empty_v(before));
                if (__any_sync(~0u, moves)) {
#pragma unroll
                    for (int x = 0; x < columns; x++) acc[x] *= step[x % 4 / 2];
                }
                pack_lines<E>(weights, s);
                before = stage;
                before_phase = phase;
                next();
            }
            wait_barrier(full_v(before), before_phase);
            hold(acc);
            add(before, needed > 1);
            wait_products<0>();
            hold(acc);
            release(empty_v(before));
        } else {
#pragma unroll
            for (int x = 0; x < columns; x++) acc[x] = 0;
        }
        release(empty_q);
        for (int j = needed; j < place.blocks; j++, next()) {
            wait_barrier(full_k(stage), phase);
            release(empty_k(stage));
            wait_barrier(full_v(stage), phase);
            release(empty_v(stage));
        }
        const float shares[2] = {scalar::weight_share(top[0], acc[columns - 4]),
                                 scalar::weight_share(top[1], acc[columns - 2])};
        E* const to = o + Shape::O::at(place.batch, place.head);
#pragma unroll
        for (int high = 0; high < 2; high++) {
            const int64_t r = row + lane / 4 + 8 * high;
            if (r >= Shape::t) continue;
#pragma unroll
            for (int x = 0; x < width / 8; x++)
                *reinterpret_cast<uint32_t*>(to + r * Shape::O::row + 8 * x + lane % 4 * 2) =
                    narrow_two<E>(acc[4 * x + 2 * high] * shares[high],
                                  acc[4 * x + 2 * high + 1] * shares[high]);
            if (lane % 4 == 0) {
                most[Shape::Most::at(place.batch, place.head) + r * Shape::Most::row] = top[high];
                sum[Shape::Sum::at(place.batch, place.head) + r * Shape::Sum::row] =
                    acc[columns - 4 + 2 * high];
            }
        }
    }
}

}  // namespace aicf
