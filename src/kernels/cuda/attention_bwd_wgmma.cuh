// Gradients of attention on the tensor cores of 9.0 by wgmma, the same products in the same order
// as attention.cuh. A warpgroup takes 64 queries (of dq) or keys (of dk and dv) against blocks of
// the others, which the copy engine brings; weights and slopes never leave registers.
#pragma once

#include "attention_wgmma.cuh"

namespace aicf {

/// No scale is NaN, which the assembler does not know. A branch by it that may write weights, as
/// one by hidden keys does, keeps their making before a wait for products behind it: else the
/// assembler waits first.
__device__ __forceinline__ bool is_nan(float factor) { return !(factor == factor); }

/// Two operands of a unit's own rows, of the unit at work and the next, and a ring of each of the
/// others' two, the first with numbers of its rows.
template <int Boxes, int Block, int First, int Second>
struct GradientRoom {
    static constexpr int rows = 128, line = 128, first = First, second = Second;
    static constexpr int own_bytes = Boxes * rows * line, other_bytes = Boxes * Block * line;
    static constexpr int number_bytes = 8 * Block;
    static constexpr int ring = 4 * own_bytes;
    static constexpr int numbers = ring + (first + second) * other_bytes;
    static constexpr int barriers = numbers + first * number_bytes;
    static constexpr int bytes = barriers + 8 * (4 + 2 * (first + second));
};

/// The barriers of such a room: of the own operands, and of each stage of the first and the second
/// of the others.
template <class Room>
struct GradientBarriers {
    uint32_t at;
    __device__ __forceinline__ uint32_t full_own(uint32_t s) const { return at + 8 * s; }
    __device__ __forceinline__ uint32_t empty_own(uint32_t s) const { return at + 16 + 8 * s; }
    __device__ __forceinline__ uint32_t full(int which, int s) const {
        return at + 32 + 8 * (which * Room::first + s);
    }
    __device__ __forceinline__ uint32_t empty(int which, int s) const {
        return full(which, s) + 8 * (Room::first + Room::second);
    }
    /// `writers`: threads that write numbers beside the copies of the first, which all lanes read.
    __device__ __forceinline__ void init(int writers) const {
        for (uint32_t s = 0; s < 2; s++) {
            init_barrier(full_own(s), 1);
            init_barrier(empty_own(s), 8);
        }
        for (int which = 0; which < 2; which++)
            for (int s = 0; s < (which ? Room::second : Room::first); s++) {
                init_barrier(full(which, s), which ? 1 : 1 + writers);
                init_barrier(empty(which, s), !which && writers ? 8 * 32 : 8);
            }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
};

/// What numbers_of() makes a query's numbers of, loaded some time before it is needed and without
/// one load waiting for another.
template <class Shape>
struct QueryNumbers {
    float most, sum, delta;
    bool there;
    __device__ __forceinline__ void load(const float* from_most, const float* from_sum,
                                         const float* from_delta, int batch, int head, int r) {
        there = r < Shape::t;
        const int64_t at = there ? r : Shape::t - 1;
        most = from_most[Shape::Most::at(batch, head) + at * Shape::Most::row];
        sum = from_sum[Shape::Sum::at(batch, head) + at * Shape::Sum::row];
        delta = from_delta[Shape::Delta::at(batch, head) + at * Shape::Delta::row];
    }
    __device__ __forceinline__ float start() const {
        return scalar::weight_start(there ? scalar::weight_offset(most, sum)
                                          : scalar::from_bits(0xff800000u));
    }
    __device__ __forceinline__ float mean() const { return there ? delta : 0.0f; }
};
/// Sums that a product is to write: what was in them is nobody's.
template <int Count>
__device__ __forceinline__ void fresh(float (&sums)[Count]) {
#pragma unroll
    for (int x = 0; x < Count; x++) asm volatile("" : "=f"(sums[x])::"memory");
}
/// The tiles of a room: 64 lines of a unit's own operand `which`, and a block of the ring as second
/// operand along its columns, or along its lines.
template <class Room, int Block>
struct GradientTiles {
    uint64_t own_tiles, ring_tiles;
    __device__ __forceinline__ explicit GradientTiles(uint32_t room)
        : own_tiles(first_tile(room, 16)), ring_tiles(first_tile(room + Room::ring, 16)) {}
    __device__ __forceinline__ uint64_t own(uint32_t round, int half) const {
        return own_tiles +
               (round % 2 * (Room::own_bytes / 8) + uint32_t(half) * (64 * Room::line / 16));
    }
    __device__ __forceinline__ uint64_t lines(int s, int which) const {
        return ring_tiles + uint32_t(which * Room::first + s) * (Room::other_bytes / 16);
    }
    __device__ __forceinline__ uint64_t across(int s, int which) const {
        constexpr uint64_t leading = (Block * Room::line / 16 - 1) << 16;
        return lines(s, which) + leading;
    }
};
/// sums = 64 lines of `a` by the lines of a block, along their columns.
template <class Layout, int OwnBox, int OtherBox, int Count>
__device__ __forceinline__ void multiply_lines(float (&sums)[Count], uint64_t a, uint64_t b) {
    begin_products();
#pragma unroll
    for (int k = 0; k < 4 * Layout::boxes; k++)
        Layout::scores(sums, a + k / 4 * (OwnBox / 16) + k % 4 * 2,
                       b + k / 4 * (OtherBox / 16) + k % 4 * 2, k > 0);
    commit_products();
}
/// sums += weights times the lines of a block.
template <class Layout, int Steps, int Count>
__device__ __forceinline__ void multiply_weights(float (&sums)[Count],
                                                 const uint32_t (&weights)[Steps][4], uint64_t b,
                                                 bool adds) {
    begin_products();
#pragma unroll
    for (int k = 0; k < Steps; k++) Layout::values(sums, weights[k], b + k * 128, k > 0 || adds);
    commit_products();
}
template <class Layout, class Shape, class E>
__device__ __forceinline__ void attention_dq_wgmma(const Grid& grid, E* dq, const float* most,
                                                   const float* sum, const float* delta,
                                                   const char* map_q, const char* map_k,
                                                   const char* map_v, const char* map_dy,
                                                   float factor, float scale) {
    constexpr int boxes = Layout::boxes, block = Layout::block, width = 64 * boxes;
    typedef GradientRoom<boxes, block, Layout::stages, Layout::seconds> Room;
    constexpr int own_box = Room::rows * Room::line, other_box = block * Room::line;
    constexpr auto tiles = uint32_t((Shape::t + Room::rows - 1) / Room::rows);
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
        bool there;
        __device__ __forceinline__ Place(const Grid& grid, uint32_t round) {
            const TileTurn<tiles, uint32_t(Shape::heads * Shape::batches), Layout::cohort> turn(
                grid, round);
            there = turn.there();
            head = int(turn.head % uint32_t(Shape::heads));
            batch = int(turn.head / uint32_t(Shape::heads));
            i0 = int(tiles - 1 - turn.tile) * Room::rows;
            const int last = i0 + Room::rows;
            const int end = !Shape::causal || last >= Shape::s ? int(Shape::s) : last;
            blocks = (end + block - 1) / block;
        }
    };
    // Of values, where these are asked for a block later than keys.
    constexpr bool both = Layout::ahead;
    int stage = 0, value_stage = 0;
    uint32_t phase = 0, value_phase = 0;
    const auto next = [&] {
        if (++stage == Room::first) stage = 0, phase ^= 1;
    };
    const auto next_value = [&] {
        if (++value_stage == Room::second) value_stage = 0, value_phase ^= 1;
    };
    const auto ring = [&](int s, int which) {
        return room + Room::ring + (which * Room::first + s) * Room::other_bytes;
    };
    if (warp < 4) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Layout::producer_registers));
        if (leads_copies(threadIdx.x / 32)) {
            for (uint32_t round = 0;; round++) {
                const Place place(grid, round);
                if (!place.there) break;
                const int group = place.head / int(Shape::share);
                const uint32_t mine = round % 2, to = room + mine * 2 * Room::own_bytes,
                               full = barriers.full_own(mine);
                wait_barrier(barriers.empty_own(mine), round / 2 % 2 ^ 1);
                arrive_expecting(full, 2 * Room::own_bytes);
                for (int b = 0; b < boxes; b++) {
                    copy_box(to + b * own_box, map_q, Layout::q_x(place.head) + 64 * b, place.i0,
                             Layout::q_z(place.batch, place.head), full);
                    copy_box(to + Room::own_bytes + b * own_box, map_dy,
                             Layout::dy_x(place.head) + 64 * b, place.i0,
                             Layout::dy_z(place.batch, place.head), full);
                }
                for (int j = 0; j < place.blocks; j++, next()) {
                    wait_barrier(barriers.empty(0, stage), phase ^ 1);
                    arrive_expecting(barriers.full(0, stage), Room::other_bytes);
                    for (int b = 0; b < boxes; b++)
                        copy_box(ring(stage, 0) + b * other_box, map_k, Layout::k_x(group) + 64 * b,
                                 j * block, Layout::k_z(place.batch, group),
                                 barriers.full(0, stage));
                    wait_barrier(barriers.empty(1, value_stage), value_phase ^ 1);
                    arrive_expecting(barriers.full(1, value_stage), Room::other_bytes);
                    for (int b = 0; b < boxes; b++)
                        copy_box(ring(value_stage, 1) + b * other_box, map_v,
                                 Layout::v_x(group) + 64 * b, j * block,
                                 Layout::v_z(place.batch, group), barriers.full(1, value_stage));
                    next_value();
                }
            }
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Layout::consumer_registers));
    const int own = __shfl_sync(~0u, warp / 4 - 1, 0);
    const auto release = [&](uint32_t barrier) {
        if (lane == 0) arrive_at<1>(barrier, 0);
    };
    // Queries that are there see a key, so a unit has a block.
    // Every second unit the other half of the queries: of causal units the upper one has less to
    // do.
    const auto half_of = [&](uint32_t round) { return own ^ int(round % 2); };
    const auto row_of = [&](const Place& of, uint32_t round) {
        return of.i0 + 64 * half_of(round) + 16 * (warp % 4);
    };
    // The blocks that the half sees, where there are stages enough to run ahead of the other.
    const auto seen_of = [&](const Place& of, uint32_t round) {
        const int end = of.i0 + 64 * half_of(round) + 64;
        return Shape::causal && both && end < Shape::s ? (end + block - 1) / block : of.blocks;
    };
    const auto pass = [&](int count) {
#pragma unroll 1
        for (int x = 0; x < count; x++, next()) {
            wait_barrier(barriers.full(0, stage), phase);
            wait_barrier(barriers.full(1, stage), phase);
            __syncwarp();  // no lane waits for what has been and gone
            release(barriers.empty(0, stage));
            release(barriers.empty(1, stage));
        }
    };
    QueryNumbers<Shape> of_rows[2];
    const auto load_numbers = [&](const Place& of, uint32_t round) {
#pragma unroll
        for (int high = 0; high < 2; high++)
            of_rows[high].load(most, sum, delta, of.batch, of.head,
                               row_of(of, round) + lane / 4 + 8 * high);
    };
    const GradientTiles<Room, block> tiles_of(room);
    const auto queries_at = [&](uint32_t round) { return tiles_of.own(round, half_of(round)); };
    const auto scores = [&](float (&p)[block / 2], uint64_t queries, int at) {
        multiply_lines<Layout, own_box, other_box>(p, queries, tiles_of.lines(at, 0));
    };
    const auto upstream = [&](float (&s)[block / 2], uint64_t queries, int at) {
        multiply_lines<Layout, own_box, other_box>(s, queries + Room::own_bytes / 16,
                                                   tiles_of.lines(at, 1));
    };
    for (uint32_t round = 0;; round++) {
        Place place(grid, round);
        if (!place.there) break;
        float acc[width / 2], even_p[block / 2], odd_p[block / 2], even_s[block / 2],
            odd_s[block / 2];
        uint32_t slopes[block / 16][4];
        const float by = scalar::weight_scale(factor);
        float start[2], mean[2];
        load_numbers(place, round);
#pragma unroll
        for (int high = 0; high < 2; high++) {
            start[high] = of_rows[high].start();
            mean[high] = of_rows[high].mean();
        }
        bool goes_on = true;
        uint32_t keys_there = 0, values_there = 0;  // asked of the next turn's before it
        int j = 0, row = row_of(place, round), seen = seen_of(place, round), now = stage,
            done = stage;
        wait_barrier(barriers.full_own(round % 2), round / 2 % 2);
        wait_barrier(barriers.full(0, stage), phase);
        fresh(even_p);
        fresh(even_s);
        uint64_t queries = queries_at(round);
        scores(even_p, queries, stage);
        if constexpr (both) {
            wait_barrier(barriers.full(1, stage), phase);
            upstream(even_s, queries, stage);
        }
        wait_products<0>();
        hold(even_p);
        if constexpr (both) hold(even_s);
        next();
        // Through one unit after the other: the products of the next block, of this unit or the
        // next, are asked for before the slopes of this one are made. True at the last of a unit.
        const auto one_block = [&](float (&p)[block / 2], float (&s)[block / 2],
                                   float (&next_p)[block / 2], float (&next_s)[block / 2]) {
            const int at = now, value_at = both ? now : value_stage;
            fresh(next_p);
            if constexpr (both) {
                fresh(next_s);
            } else {
                wait_barrier(barriers.full(1, value_stage), value_phase, values_there);
                fresh(s);
                upstream(s, queries, value_stage);
            }
            const bool last = j + 1 == seen;
            goes_on = true;
            if (last) {
                const uint32_t of = round + 1;
                const Place after(grid, of);
                goes_on = after.there;
                queries = queries_at(of);
                if (goes_on) {
                    load_numbers(after, of);
                    wait_barrier(barriers.full_own(of % 2), of / 2 % 2);
                }
            }
            if (goes_on) {
                if (last && seen < place.blocks) {
                    pass(place.blocks - seen);
                    keys_there = values_there = 0;
                }
                wait_barrier(barriers.full(0, stage), phase, keys_there);
                if constexpr (both) wait_barrier(barriers.full(1, stage), phase, values_there);
            }
            now = stage;
            scores(next_p, queries, stage);  // where none follows, of what lies there
            if constexpr (both) upstream(next_s, queries, stage);
            wait_products<3>();
            hold(p);
            if (goes_on) next();
            keys_there = is_over(barriers.full(0, stage), phase);
            if (!both) next_value();
            values_there = both ? is_over(barriers.full(1, stage), phase)
                                : is_over(barriers.full(1, value_stage), value_phase);
            const int j0 = j * block;
#pragma unroll
            for (int x = 0; x < block / 2; x++) p[x] = weight_of<E>(p[x], by, start[x % 4 / 2]);
            if (__any_sync(~0u, j0 + block > Shape::s || (Shape::causal && j0 + block - 1 > row) ||
                                    is_nan(factor))) {
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
            wait_products<both ? 2 : 1>();
            hold(s);
            hold(acc);
            release(barriers.empty(1, value_at));
            if (last) release(barriers.empty_own(round % 2));
#pragma unroll
            for (int x = 0; x < block / 2; x++) s[x] = p[x] * (s[x] - mean[x % 4 / 2]);
            if (j > 0) release(barriers.empty(0, done));
            done = at;
            pack_lines<E>(slopes, s);
            multiply_weights<Layout>(acc, slopes, tiles_of.across(at, 0), j > 0);
            j++;
            return last;
        };
        // The end of a unit, beside the products of the next one's first block; false of the last.
        const auto end_unit = [&](float (&next_p)[block / 2], float (&next_s)[block / 2]) {
            wait_products<0>();
            hold(acc);
            hold(next_p);
            if constexpr (both) hold(next_s);
            release(barriers.empty(0, done));
            const float factors[2] = {scale, scale};
            store_rows<typename Shape::Dq, width, Shape::t % Room::rows == 0>(
                acc, factors, dq + Shape::Dq::at(place.batch, place.head), row, int(Shape::t));
            if (!goes_on) return false;
            round++;
            place = Place(grid, round);
            row = row_of(place, round);
            seen = seen_of(place, round);
            j = 0;
#pragma unroll
            for (int high = 0; high < 2; high++) {
                start[high] = of_rows[high].start();
                mean[high] = of_rows[high].mean();
            }
            return true;
        };
        for (;;) {
            auto& other_s = both ? odd_s : even_s;
            if (one_block(even_p, even_s, odd_p, other_s) && !end_unit(odd_p, other_s)) break;
            if (one_block(odd_p, other_s, even_p, even_s) && !end_unit(even_p, even_s)) break;
        }
        pass(place.blocks - seen);
    }
}

template <class Layout, class Shape, class E>
__device__ __forceinline__ void attention_dkv_wgmma(const Grid& grid, E* dk, E* dv,
                                                    const float* most, const float* sum,
                                                    const float* delta, const char* map_q,
                                                    const char* map_k, const char* map_v,
                                                    const char* map_dy, float factor, float scale) {
    constexpr int boxes = Layout::boxes, block = Layout::block, width = 64 * boxes;
    typedef GradientRoom<boxes, block, Layout::stages, Layout::seconds> Room;
    constexpr int own_box = Room::rows * Room::line, other_box = block * Room::line;
    constexpr auto tiles = uint32_t((Shape::s + Room::rows - 1) / Room::rows),
                   groups = uint32_t(Shape::heads / Shape::share);
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
        bool there;
        __device__ __forceinline__ Place(const Grid& grid, uint32_t round) {
            const TileTurn<tiles, groups * uint32_t(Shape::batches), Layout::cohort> turn(grid,
                                                                                          round);
            there = turn.there();
            group = int(turn.head % groups);
            batch = int(turn.head / groups);
            j0 = int(turn.tile) * Room::rows;
            // Blocks of queries from the first that sees a key on, of one head after the other.
            skipped = Shape::causal ? (j0 / block < blocks ? j0 / block : blocks) : 0;
            turns = (blocks - skipped) * int(Shape::share);
        }
        /// The turns of a warpgroup that passes over the first `skips` blocks of every head.
        __device__ __forceinline__ int seen(int skips) const {
            return blocks - skipped > skips ? turns - skips * int(Shape::share) : 0;
        }
        /// The queries of a turn, and those of the next: after the last the first of another head.
        __device__ __forceinline__ int first() const { return skipped * block; }
        __device__ __forceinline__ int after(int i0) const {
            return i0 + block < blocks * block ? i0 + block : first();
        }
    };
    int stage = 0;
    uint32_t phase = 0;
    const auto next = [&] {
        if (++stage == Room::first) stage = 0, phase ^= 1;
    };
    const auto ring = [&](int s, int which) {
        return room + Room::ring + (which * Room::first + s) * Room::other_bytes;
    };
    const auto numbers = [&](int s) { return room + Room::numbers + s * Room::number_bytes; };
    if (warp < 4) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Layout::producer_registers));
        if (leads_copies(threadIdx.x / 32)) {
            for (uint32_t round = 0;; round++) {
                const Place place(grid, round);
                if (!place.there) break;
                const uint32_t mine = round % 2, to = room + mine * 2 * Room::own_bytes,
                               full = barriers.full_own(mine);
                wait_barrier(barriers.empty_own(mine), round / 2 % 2 ^ 1);
                arrive_expecting(full, 2 * Room::own_bytes);
                for (int b = 0; b < boxes; b++) {
                    copy_box(to + b * own_box, map_k, Layout::k_x(place.group) + 64 * b, place.j0,
                             Layout::k_z(place.batch, place.group), full);
                    copy_box(to + Room::own_bytes + b * own_box, map_v,
                             Layout::v_x(place.group) + 64 * b, place.j0,
                             Layout::v_z(place.batch, place.group), full);
                }
                int head = place.group * int(Shape::share), i0 = place.first();
                for (int turn = 0; turn < place.turns; turn++, next()) {
                    wait_barrier(barriers.empty(0, stage), phase ^ 1);
                    arrive_expecting(barriers.full(0, stage), Room::other_bytes);
                    for (int b = 0; b < boxes; b++)
                        copy_box(ring(stage, 0) + b * other_box, map_q, Layout::q_x(head) + 64 * b,
                                 i0, Layout::q_z(place.batch, head), barriers.full(0, stage));
                    wait_barrier(barriers.empty(1, stage), phase ^ 1);
                    arrive_expecting(barriers.full(1, stage), Room::other_bytes);
                    for (int b = 0; b < boxes; b++)
                        copy_box(ring(stage, 1) + b * other_box, map_dy,
                                 Layout::dy_x(head) + 64 * b, i0, Layout::dy_z(place.batch, head),
                                 barriers.full(1, stage));
                    i0 = place.after(i0);
                    head += i0 == place.first();
                }
            }
        } else if (warp == 1) {  // the numbers of the queries
            for (uint32_t round = 0;; round++) {
                const Place place(grid, round);
                if (!place.there) break;
                int head = place.group * int(Shape::share), i0 = place.first();
                QueryNumbers<Shape> now[block / 32], following[block / 32];
                const auto load = [&](QueryNumbers<Shape>(&to)[block / 32]) {
#pragma unroll
                    for (int x = 0; x < block / 32; x++)
                        to[x].load(most, sum, delta, place.batch, head, i0 + 32 * x + lane);
                };
                if (place.turns > 0) load(now);
#pragma unroll 1
                for (int turn = 0; turn < place.turns; turn++, next()) {
                    i0 = place.after(i0);
                    head += i0 == place.first();
                    if (turn + 1 < place.turns) load(following);
                    wait_barrier(barriers.empty(0, stage), phase ^ 1);
#pragma unroll
                    for (int x = 0; x < block / 32; x++) {
                        const uint32_t to = numbers(stage) + 4 * (32 * x + lane);
                        asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(now[x].start())
                                     : "memory");
                        asm volatile("st.shared.f32 [%0], %1;" ::"r"(to + 4 * block),
                                     "f"(now[x].mean())
                                     : "memory");
                        now[x] = following[x];
                    }
                    arrive_at<1>(barriers.full(0, stage), 0);
                }
            }
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Layout::consumer_registers));
    const int own = __shfl_sync(~0u, warp / 4 - 1, 0);
    const auto release = [&](uint32_t barrier) {
        if (lane == 0) arrive_at<1>(barrier, 0);
    };
    // Every second unit the other half of the keys: of causal units the upper one has less to do.
    const auto half_of = [&](uint32_t round) { return own ^ int(round % 2); };
    const auto row_of = [&](const Place& of, uint32_t round) {
        return of.j0 + 64 * half_of(round) + 16 * (warp % 4);
    };
    const GradientTiles<Room, block> tiles_of(room);
    const auto keys_at = [&](uint32_t round) { return tiles_of.own(round, half_of(round)); };
    // The first queries of a head may see no key of the upper half.
    const auto hidden = [&](uint32_t round) {
        return Shape::causal && block == 64 ? half_of(round) : 0;
    };
    // What a lane needs of the queries' numbers, starts or means, of the x-th eight of a block.
    const auto two_numbers = [&](float (&two)[2], int at, int which, int x) {
        asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                     : "=f"(two[0]), "=f"(two[1])
                     : "r"(numbers(at) + lane % 4 * 8 + 4 * block * which + 32 * x)
                     : "memory");
    };
    // Read some time before they are needed: products leave shared memory little time for others.
    constexpr int eights = block / 8, ahead = 4, means_ahead = boxes == 1 ? eights : ahead;
    float starts[eights][2], means[eights][2];
    const auto read_starts = [&](int at) {
#pragma unroll
        for (int x = 0; x < ahead; x++) two_numbers(starts[x], at, 0, x);
    };
    // Scores to weights, by the numbers of the queries; reads what slope() needs.
    const float by = scalar::weight_scale(factor);
    const auto weigh = [&](float (&p)[block / 2], int at, int i0, int row) {
#pragma unroll
        for (int x = 0; x < eights; x++) {
#pragma unroll
            for (int y = 0; y < 4; y++)
                p[4 * x + y] = weight_of<E>(p[4 * x + y], by, starts[x][y % 2]);
            if (x + ahead < eights) two_numbers(starts[x + ahead], at, 0, x + ahead);
            if (x >= eights - means_ahead)
                two_numbers(means[x - eights + means_ahead], at, 1, x - eights + means_ahead);
        }
        if (__any_sync(~0u, (Shape::causal && row + 15 > i0) || is_nan(factor))) {
#pragma unroll
            for (int high = 0; high < 2; high++) {
                const int hidden =
                    Shape::causal ? row + lane / 4 + 8 * high - i0 - lane % 4 * 2 : block;
#pragma unroll
                for (int x = 0; x < block / 4; x++)
                    if (x / 2 * 8 + x % 2 < hidden) p[x / 2 * 4 + 2 * high + x % 2] = 0.0f;
            }
        }
    };
    const auto slope = [&](float (&s)[block / 2], const float (&p)[block / 2], int at) {
#pragma unroll
        for (int x = 0; x < eights; x++) {
#pragma unroll
            for (int y = 0; y < 4; y++)
                s[4 * x + y] = p[4 * x + y] * (s[4 * x + y] - means[x][y % 2]);
            if (x + means_ahead < eights)
                two_numbers(means[x + means_ahead], at, 1, x + means_ahead);
        }
    };
    const auto store = [&](const Place& place, int row, const float (&key_acc)[width / 2],
                           const float (&value_acc)[width / 2]) {
        const float scales[2] = {scale, scale}, ones[2] = {1.0f, 1.0f};
        constexpr bool full = Shape::s % Room::rows == 0;
        store_rows<typename Shape::Dk, width, full>(
            key_acc, scales, dk + Shape::Dk::at(place.batch, place.group), row, int(Shape::s));
        store_rows<typename Shape::Dv, width, full>(
            value_acc, ones, dv + Shape::Dv::at(place.batch, place.group), row, int(Shape::s));
    };
    const auto release_both = [&](int at) {
        // racecheck takes no lane's arrival for another's, and all arrive in the time of one.
        arrive_at<1>(barriers.empty(0, at), 0);
        __syncwarp();  // every lane has waited for what lies there
        release(barriers.empty(1, at));
    };
    const auto pass = [&](int count) {
#pragma unroll 1
        for (int x = 0; x < count; x++, next()) {
            wait_barrier(barriers.full(0, stage), phase);
            wait_barrier(barriers.full(1, stage), phase);
            release_both(stage);
        }
    };
    for (uint32_t round = 0;; round++) {
        Place place(grid, round);
        if (!place.there) break;
        int skips = hidden(round), turns = place.seen(skips), turn = 0, row = row_of(place, round),
            i0 = place.first() + skips * block;
        wait_barrier(barriers.full_own(round % 2), round / 2 % 2);
        if (turns == 0) {
            pass(place.turns);
            __syncwarp();
            release(barriers.empty_own(round % 2));
            const float zeros[width / 2] = {};
            store(place, row, zeros, zeros);
            continue;
        }
        float key_acc[width / 2], value_acc[width / 2], s[block / 2];
        uint32_t weights[block / 16][4], slopes[block / 16][4];
        if constexpr (Layout::ahead) {
            float even[block / 2], odd[block / 2];
            pass(skips);
            int now = stage;
            uint32_t now_phase = phase;
            wait_barrier(barriers.full(0, stage), phase);
            hold(even);
            uint64_t keys = keys_at(round);
            multiply_lines<Layout, own_box, other_box>(even, keys, tiles_of.lines(stage, 0));
            wait_products<0>();
            hold(even);
            next();
            int done = stage;                                // the stage of the block before
            uint32_t queries_there = 0, upstream_there = 0;  // asked of the next turn's before it
            // Through one unit after the other: the scores of the next block are asked for before
            // the weights of this one are made. False at the last before the end or a unit without
            // blocks.
            const auto one_block = [&](float (&p)[block / 2], float (&next_p)[block / 2]) {
                const int at = now;
                const uint32_t at_phase = now_phase;
                const bool last = turn + 1 == turns, ends = i0 + block >= blocks * block;
                bool goes_on = true;
                uint32_t of = round;
                read_starts(at);
                wait_barrier(barriers.full(1, at), at_phase, upstream_there);
                hold(s);
                hold(next_p);
                multiply_lines<Layout, own_box, other_box>(s, keys + Room::own_bytes / 16,
                                                           tiles_of.lines(at, 1));
                if (last) {
                    const Place after(grid, round + 1);
                    of++;
                    keys = keys_at(of);
                    goes_on = after.there && after.seen(hidden(of)) > 0;
                    if (goes_on) wait_barrier(barriers.full_own(of % 2), of / 2 % 2);
                }
                if (goes_on) {
                    if (ends && hidden(of) > 0) {
                        pass(hidden(of));
                        queries_there = 0;
                    }
                    wait_barrier(barriers.full(0, stage), phase, queries_there);
                }
                now = stage;
                now_phase = phase;
                // Where none follows, of what lies there.
                multiply_lines<Layout, own_box, other_box>(next_p, keys, tiles_of.lines(stage, 0));
                wait_products<4>();
                hold(p);
                if (goes_on) next();
                queries_there = is_over(barriers.full(0, stage), phase);
                upstream_there = is_over(barriers.full(1, now), now_phase);
                weigh(p, at, i0, row);
                wait_products<1>();
                hold(s);
                hold(key_acc);
                hold(value_acc);
                if (turn > 0) release_both(done);
                done = at;
                if (last) release(barriers.empty_own(round % 2));
                slope(s, p, at);
                pack_lines<E>(weights, p);
                multiply_weights<Layout>(value_acc, weights, tiles_of.across(at, 1), turn > 0);
                pack_lines<E>(slopes, s);
                multiply_weights<Layout>(key_acc, slopes, tiles_of.across(at, 0), turn > 0);
                turn++;
                i0 = ends ? place.first() + skips * block : i0 + block;
                if (last) {
                    wait_products<0>();
                    hold(key_acc);
                    hold(value_acc);
                    hold(next_p);
                    release_both(at);
                    store(place, row, key_acc, value_acc);
                    if (!goes_on) return false;
                    round++;
                    place = Place(grid, round);
                    skips = hidden(round);
                    turns = place.seen(skips);
                    turn = 0;
                    i0 = place.first() + skips * block;
                    row = row_of(place, round);
                }
                return true;
            };
#pragma unroll 1
            while (one_block(even, odd) && one_block(odd, even)) {
            }
        } else {
            float p[block / 2];
            const uint64_t keys = keys_at(round);
            i0 = place.first();
#pragma unroll 1
            for (; turn < turns; turn++, i0 = place.after(i0)) {
                if (i0 == place.first()) {
                    pass(skips);
                    i0 += skips * block;
                }
                wait_barrier(barriers.full(0, stage), phase);
                read_starts(stage);
                hold(p);
                hold(s);
                multiply_lines<Layout, own_box, other_box>(p, keys, tiles_of.lines(stage, 0));
                wait_barrier(barriers.full(1, stage), phase);
                multiply_lines<Layout, own_box, other_box>(s, keys + Room::own_bytes / 16,
                                                           tiles_of.lines(stage, 1));
                wait_products<1>();
                hold(p);
                weigh(p, stage, i0, row);
                pack_lines<E>(weights, p);
                multiply_weights<Layout>(value_acc, weights, tiles_of.across(stage, 1), turn > 0);
                wait_products<1>();
                hold(s);
                if (turn + 1 == turns) release(barriers.empty_own(round % 2));
                slope(s, p, stage);
                pack_lines<E>(slopes, s);
                multiply_weights<Layout>(key_acc, slopes, tiles_of.across(stage, 0), turn > 0);
                // Registers do not hold what these read beside the next scores.
                wait_products<0>();
                hold(key_acc);
                hold(value_acc);
                release_both(stage);
                next();
            }
            // Made anew: registers do not hold the place beside all sums.
            uint32_t of = round;
            asm volatile("" : "+r"(of));
            const Place was(grid, of);
            store(was, row_of(was, of), key_acc, value_acc);
        }
    }
}

}  // namespace aicf
