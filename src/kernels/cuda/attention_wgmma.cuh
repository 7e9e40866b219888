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
    // Of two units, one of which is loaded while the other is at work.
    static constexpr int queries = 0, query_bytes = Boxes * Groups * 64 * line;
    static constexpr int key_bytes = Boxes * box;
    static constexpr int key_stages = 2 * query_bytes;
    // Behind the columns of values come columns of ones, which add the weights: of two boxes a
    // third, of one the same lines for all steps.
    static constexpr int ones_bytes = Boxes == 1 ? 2048 : box;
    static constexpr int value_bytes = key_bytes + (Boxes == 1 ? 0 : ones_bytes);
    static constexpr int value_stages = key_stages + Stages * key_bytes;
    static constexpr int ones = value_stages + Stages * value_bytes;
    static constexpr int barriers = ones + (Boxes == 1 ? ones_bytes : 0);
    // Of many stages each has the keys and the values of a block; and two numbers a lane, which
    // three warpgroups have no registers for.
    static constexpr bool joint = Stages >= 4;
    static constexpr int lanes = barriers + 8 * (4 + 4 * Stages);
    // Where four units are: one that is being stored, two whose queries are here, and one to spare.
    static constexpr int places = lanes + (joint ? 8 * 128 * Groups : 0);
    static constexpr int bytes = places + 4 * 16;
};

/// The tiles of all heads in the order in which blocks take them: `Cohort` heads after `Cohort`
/// heads, so that their keys and values stay in the L2 cache, of these the longest tiles first.
/// Every second round goes the other way, so that whoever had a long tile gets a short one.
template <uint32_t Tiles, uint32_t Heads, uint32_t Cohort>
struct TileTurn {
    uint32_t unit, head, tile;  // the tile: how many of the head are longer
    __device__ __forceinline__ TileTurn(const Grid& grid, uint32_t round)
        : TileTurn(round * uint32_t(grid.blocks) +
                   uint32_t(round % 2 ? grid.blocks - 1 - grid.block : grid.block)) {}
    __device__ __forceinline__ explicit TileTurn(uint32_t of) : unit(of) {
        const uint32_t first = unit / (Tiles * Cohort) * Cohort, at = unit % (Tiles * Cohort);
        constexpr uint32_t rest =
            Heads % Cohort ? Heads % Cohort : Cohort;  // heads of the last cohort
        const bool whole = rest == Cohort || Heads - first >= Cohort;
        tile = whole ? at / Cohort : at / rest;
        head = first + at - tile * (whole ? Cohort : rest);
    }
    __device__ __forceinline__ bool there() const { return unit < Tiles * Heads; }
};

/// The descriptor of a tile, to which others are linear: where the compiler knew its bits, it made
/// each anew by two instructions for one addition.
__device__ __forceinline__ uint64_t first_tile(uint32_t at, uint32_t leading) {
    uint64_t tile = tile_descriptor(at, leading);
    asm("" : "+l"(tile));
    return tile;
}

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

/// Four words of each of a row's four lanes: the first lane gets the first word of each.
__device__ __forceinline__ void turn_words(uint32_t (&word)[4], int lane) {
#pragma unroll
    for (int by = 1; by < 4; by *= 2) {
        const bool upper = lane & by;
#pragma unroll
        for (int x = 0; x < 4; x++) {
            if (x & by) continue;
            const uint32_t other = __shfl_xor_sync(~0u, upper ? word[x] : word[x + by], by);
            (upper ? word[x] : word[x + by]) = other;
        }
    }
}
/// Sums of a warp's 16 rows from `row` on, of which `rows` exist, each row times a factor, as pairs
/// of neighbours; where rows begin at 16 bytes, as so many at a time. The exchanges between lanes
/// come before all stores, that one need not wait for another. Full: all rows exist.
template <class At, int Columns, bool Full, class E, int Count>
__device__ __forceinline__ void store_rows(const float (&sums)[Count], const float (&factor)[2],
                                           E* to, int row, int rows) {
    constexpr int fours = Columns / 32;
    uint32_t thread = threadIdx.x;
    asm volatile("" : "+r"(thread));  // nothing of this is kept while products need registers
    const int lane = int(thread % 32), first = row + lane / 4;
    uint32_t words[2 * fours][4];
#pragma unroll
    for (int x = 0; x < 2 * fours; x++)
#pragma unroll
        for (int y = 0; y < 4; y++) {
            const int high = x / fours;
            const float* const two = &sums[4 * (x % fours * 4 + y) + 2 * high];
            words[x][y] = narrow_two<E>(two[0] * factor[high], two[1] * factor[high]);
        }
    E* const line = to + first * int64_t(At::row);
    if (At::row % 8 == 0 && aligned16(to)) {
#pragma unroll
        for (int x = 0; x < 2 * fours; x++) turn_words(words[x], lane);
        E* const at = line + lane % 4 * 8;
#pragma unroll
        for (int x = 0; x < 2 * fours; x++)
            if (Full || first + 8 * (x / fours) < rows)
                asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(
                                 at + x / fours * 8 * int64_t(At::row) + x % fours * 32),
                             "r"(words[x][0]), "r"(words[x][1]), "r"(words[x][2]), "r"(words[x][3])
                             : "memory");
    } else {
        E* const at = line + lane % 4 * 2;
#pragma unroll
        for (int x = 0; x < 2 * fours; x++)
            if (Full || first + 8 * (x / fours) < rows)
#pragma unroll
                for (int y = 0; y < 4; y++)
                    *reinterpret_cast<uint32_t*>(at + x / fours * 8 * int64_t(At::row) +
                                                 8 * (x % fours * 4 + y)) = words[x][y];
    }
}

/// Scores of 64 queries to weights, what attention.cuh does, of sums of a warpgroup, 64 keys at a
/// time. A turn in which no row's power of two moves compares, and has nothing else to do.
template <class Shape, class E>
struct RowWeights {
    float top[2], limit[2], start[2] = {}, step[2], factor, by;
    bool moves = false;  // sums are to be multiplied by `step`
    __device__ __forceinline__ explicit RowWeights(float of)
        : factor(of), by(scalar::weight_scale(of)) {
        begin();
    }
    __device__ __forceinline__ void begin() {
        top[0] = top[1] = scalar::from_bits(0xff800000u);
        limit[0] = limit[1] = scalar::from_bits(0x7fc00000u);
    }
    __device__ __forceinline__ static bool hides(int j0, int row) {
        return j0 + 64 > Shape::s || (Shape::causal && j0 + 63 > row);
    }
    __device__ __forceinline__ static void hide(float (&s)[32], int j0, int row, float value) {
        const int lane = threadIdx.x % 32, key = j0 + lane % 4 * 2, query = row + lane / 4;
#pragma unroll
        for (int high = 0; high < 2; high++) {
            // How many keys from the lane's first on the row sees.
            int seen = int(Shape::s) - key;
            if (Shape::causal && query + 8 * high + 1 - key < seen)
                seen = query + 8 * high + 1 - key;
            // And how many of its 16, two of every eight; bits become predicates seven at a time.
            const int keys = seen < 0    ? 0
                             : seen > 64 ? 64
                                         : seen,
                      own = keys / 8 * 2 + (keys % 8 < 2 ? keys % 8 : 2);
            const uint32_t hidden = ~0u << own;
#pragma unroll
            for (int x = 0; x < 16; x++)
                if (hidden & (1u << x)) s[x / 2 * 4 + 2 * high + x % 2] = value;
        }
    }
    __device__ __forceinline__ static int larger(int a, int b) { return a > b ? a : b; }
    /// The largest scores of a lane's two rows by their bits as integers: three at a time, where
    /// floats are compared two at a time. Right where one is +0 or above, and of the NaN that
    /// products make; else some number of at most 0.
    __device__ __forceinline__ static void largest_of_first(int (&of)[2],
                                                            const float (&first)[32]) {
#pragma unroll
        for (int high = 0; high < 2; high++)
            of[high] = larger_bits(first, high, int(scalar::bits(first[2 * high])), 1);
    }
    __device__ __forceinline__ static void largest_with_last(int (&of)[2],
                                                             const float (&last)[32]) {
#pragma unroll
        for (int high = 0; high < 2; high++) of[high] = larger_bits(last, high, of[high], 0);
    }
    /// And of `most`; `from`: one of the first two of `s` that is not `most`.
    __device__ __forceinline__ static int larger_bits(const float (&s)[32], int high, int most,
                                                      int from) {
        int m[2] = {most, int(scalar::bits(s[2 * high + from]))};  // side by side
#pragma unroll
        for (int x = from + 1; x < 16; x++) {
            int& to = m[x / 2 % 2];
            to = larger(to, int(scalar::bits(s[x / 2 * 4 + x % 2 + 2 * high])));
        }
        return larger(m[0], m[1]);
    }
    __device__ __forceinline__ static float largest_float(const float (&s)[32], int high) {
        float m = largest(s[2 * high], s[2 * high + 1]);
#pragma unroll
        for (int x = 4; x < 32; x += 4)
            m = largest(m, largest(s[x + 2 * high], s[x + 2 * high + 1]));
        return m;
    }
    /// Whether the warp's rows keep their powers: each lane compares its own scores. Where a limit
    /// is below 0, whose scores are to be seen as floats, it is kept as NaN.
    __device__ __forceinline__ bool keeps(const int (&most)[2]) const {
        const float first = scalar::from_bits(uint32_t(most[0])) * factor,
                    second = scalar::from_bits(uint32_t(most[1])) * factor;
        return !__any_sync(~0u, !(first <= limit[0]) || !(second <= limit[1]));
    }
    /// `most`: as largest_with_last() has it, which says it where no row's is below 0.
    __device__ __forceinline__ void rise(const float (&first)[32], const float (&last)[32],
                                         const int (&most)[2]) {
        const float none = scalar::from_bits(0xff800000u);
        int row_most[2];
#pragma unroll
        for (int high = 0; high < 2; high++) {
            const int two = larger(most[high], __shfl_xor_sync(~0u, most[high], 1));
            row_most[high] = larger(two, __shfl_xor_sync(~0u, two, 2));
        }
        float of_rows[2] = {scalar::from_bits(uint32_t(row_most[0])),
                            scalar::from_bits(uint32_t(row_most[1]))};
        if (__any_sync(~0u, (row_most[0] | row_most[1]) < 0)) {
#pragma unroll
            for (int high = 0; high < 2; high++) {
                float m = largest(largest_float(first, high), largest_float(last, high));
                m = largest(m, __shfl_xor_sync(~0u, m, 1));
                of_rows[high] = largest(m, __shfl_xor_sync(~0u, m, 2));
            }
        }
        bool moved = false;
#pragma unroll
        for (int high = 0; high < 2; high++) {
            const float m = of_rows[high];
            const float next = scalar::weight_rise(top[high], scalar::weight_top(m, factor));
            moved |= !(next == top[high]);
            step[high] = scalar::weight_step(top[high], next);
            top[high] = next;
            start[high] = scalar::weight_start(next == none ? 0.0f : -next);
            limit[high] = scalar::weight_limit(next);
            if (!(limit[high] >= 0.0f)) limit[high] = scalar::from_bits(0x7fc00000u);
        }
        moves = __any_sync(~0u, moved);
    }
    /// Weights of the scores from `From` on; of hidden ones, which are -inf, 0.
    template <int From, int To, int Count>
    __device__ __forceinline__ void weights_of(float (&w)[Count], const float (&s)[32]) const {
#pragma unroll
        for (int x = From; x < To; x++) w[x] = weight_of<E>(s[x], by, start[x % 4 / 2]);
    }
    template <int Count>
    __device__ __forceinline__ void move(float (&sums)[Count]) const {
#pragma unroll
        for (int x = 0; x < Count; x++) sums[x] *= step[x % 4 / 2];
    }
};

/// o = weights times v. The scores of a block's first 64 keys give way to those of the next block
/// as soon as they are weights, and so do those of the last 64; so registers hold one block's
/// scores, and enough others to make several weights side by side.
template <class Layout, class Shape, class E>
__device__ __forceinline__ void attention_wgmma(const Grid& grid, E* o, float* most, float* sum,
                                                const char* map_q, const char* map_k,
                                                const char* map_v, float factor) {
    constexpr int boxes = Layout::boxes, groups = Layout::groups, stages = Layout::stages;
    typedef AttentionRoom<boxes, groups, stages> Room;
    constexpr int rows = 64 * groups, width = 64 * boxes, columns = width / 2 + 4;
    constexpr auto tiles = uint32_t((Shape::t + rows - 1) / rows);
    // Of tiles that are not all full the first is not: of a causal head it has least to do.
    constexpr int before_first = int(tiles) * rows - int((Shape::t + 63) / 64) * 64;
    extern __shared__ __align__(1024) char room_of_all[];
    const uint32_t room = shared_address(room_of_all), barriers = room + Room::barriers;
    const auto full_q = [&](uint32_t s) { return barriers + 8 * s; };
    const auto empty_q = [&](uint32_t s) { return barriers + 16 + 8 * s; };
    const auto full_k = [&](int s) { return barriers + 32 + 8 * s; };
    constexpr bool joint = Room::joint;
    const auto full_v = [&](int s) { return barriers + 32 + 8 * (joint ? s : stages + s); };
    const auto empty_k = [&](int s) { return barriers + 32 + 8 * (2 * stages + s); };
    const auto empty_v = [&](int s) { return barriers + 32 + 8 * ((joint ? 2 : 3) * stages + s); };
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        fetch_map(map_q);
        fetch_map(map_k);
        fetch_map(map_v);
        for (int s = 0; s < 2; s++) {
            init_barrier(full_q(s), 1);
            init_barrier(empty_q(s), 4 * groups);
        }
        for (int s = 0; s < stages; s++) {
            init_barrier(full_k(s), 1);
            if (!joint) init_barrier(full_v(s), 1);
            init_barrier(empty_k(s), 4 * groups);
            if (!joint) init_barrier(empty_v(s), 4 * groups);
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
        bool there;
        /// As the thread that loads has left it.
        __device__ __forceinline__ explicit Place(uint32_t at) {
            uint32_t told[4];
            asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(told[0]), "=r"(told[1]), "=r"(told[2]), "=r"(told[3])
                         : "r"(at)
                         : "memory");
            head = int(told[0]);
            batch = int(told[1]);
            i0 = int(told[2]);
            blocks = int(told[3]);
            there = blocks > 0;
        }
        __device__ __forceinline__ Place(const Grid& grid, uint32_t round) {
            const TileTurn<tiles, uint32_t(Shape::heads * Shape::batches), Layout::cohort> turn(
                grid, round);
            there = turn.there();
            head = int(turn.head % uint32_t(Shape::heads));
            batch = int(turn.head / uint32_t(Shape::heads));
            i0 = int(tiles - 1 - turn.tile) * rows - before_first;
            blocks = blocks_of(i0 + rows);
        }
        /// How many blocks of keys the queries before `last` see.
        __device__ __forceinline__ static int blocks_of(int last) {
            const int end = !Shape::causal || last >= Shape::s ? int(Shape::s) : last;
            return (end + Room::keys - 1) / Room::keys;
        }
        /// Of a warpgroup, none where its queries are none.
        __device__ __forceinline__ int needed(int half) const {
            const int first = i0 + 64 * half;
            return first >= 0 && first < Shape::t ? blocks_of(first + 64) : 0;
        }
    };
    const auto place_at = [&](uint32_t round) { return room + Room::places + round % 4 * 16; };
    const auto place_of = [&](uint32_t round) { return Place(place_at(round)); };
    int stage = 0;
    uint32_t phase = 0;
    const auto next = [&] {
        if (++stage == stages) stage = 0, phase ^= 1;
    };
    if (warp < 4) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Layout::producer_registers));
        if (leads_copies(threadIdx.x / 32)) {
            const auto copy = [&](uint32_t to, const char* map, int lot, int x, int y, int z,
                                  uint32_t barrier) {
#pragma unroll
                for (int b = 0; b < boxes; b++)
                    copy_box(to + b * lot, map, x + 64 * b, y, z, barrier);
            };
            // Says where a unit is and loads its queries.
            const auto ask = [&](uint32_t round) {
                const Place place(grid, round);
                const uint32_t q = round % 2;
                wait_barrier(empty_q(q), round / 2 % 2 ^ 1);
                asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(place_at(round)),
                             "r"(uint32_t(place.head)), "r"(uint32_t(place.batch)),
                             "r"(uint32_t(place.i0)), "r"(uint32_t(place.there ? place.blocks : 0))
                             : "memory");
                if (place.there) {
                    arrive_expecting(full_q(q), Room::query_bytes);
                    copy(room + Room::queries + q * Room::query_bytes, map_q, rows * Room::line,
                         Layout::q_x(place.head), place.i0, Layout::q_z(place.batch, place.head),
                         full_q(q));
                } else {
                    arrive_at<1>(full_q(q), 0);
                }
                return place;
            };
            // Queries of the next unit are asked for as soon as those of the last are done with:
            // of few stages the last keys of a unit are too late.
            constexpr bool early = !joint;
            Place place = ask(0);
            for (uint32_t round = 1; place.there; round++) {
                Place following = place;
                const int group = place.head / int(Shape::share);
                for (int j = 0; j < place.blocks; j++, next()) {
                    wait_barrier(empty_k(stage), phase ^ 1);
                    arrive_expecting(full_k(stage), (joint ? 2 : 1) * Room::key_bytes);
                    copy(room + Room::key_stages + stage * Room::key_bytes, map_k, Room::box,
                         Layout::k_x(group), j * Room::keys, Layout::k_z(place.batch, group),
                         full_k(stage));
                    if (early && j == 1) following = ask(round);
                    if (!joint) {
                        wait_barrier(empty_v(stage), phase ^ 1);
                        arrive_expecting(full_v(stage), Room::key_bytes);
                    }
                    copy(room + Room::value_stages + stage * Room::value_bytes, map_v, Room::box,
                         Layout::v_x(group), j * Room::keys, Layout::v_z(place.batch, group),
                         full_v(stage));
                }
                if (!early || place.blocks < 2) following = ask(round);
                place = following;
            }
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Layout::consumer_registers));
    const int own = __shfl_sync(~0u, warp / 4 - 1, 0);
    const auto release = [&](uint32_t barrier) {
        if (lane == 0) arrive_at<1>(barrier, 0);
    };
    float acc[columns];
    float low[32], high[32];  // scores of a block's first 64 keys and of its last
    uint32_t low_weights[4][4], high_weights[4][4];
    RowWeights<Shape, E> rows_of(factor);
    // By turns another part of the queries: of causal units the upper ones have less to do.
    const auto half_of = [&](uint32_t round) {
        if (groups == 2) return own ^ int(round % 2);
        const int part = own + int(round % groups);
        return part >= groups ? part - groups : part;
    };
    const auto row_of = [&](const Place& place, uint32_t round) {
        return place.i0 + 64 * half_of(round) + 16 * (warp % 4);
    };
    const auto sees_half = [&](int j, int row) {
        return Shape::causal && row - 16 * (warp % 4) <= j * Room::keys;
    };
    const uint64_t first_queries = first_tile(room + Room::queries, 16),
                   first_keys = first_tile(room + Room::key_stages, 16),
                   first_values =
                       first_tile(room + Room::value_stages,
                                  boxes == 1 ? Room::ones - Room::value_stages : Room::box);
    const auto queries_of = [&](uint32_t round) {
        return first_queries + (round % 2 * (Room::query_bytes / 16) +
                                uint32_t(half_of(round)) * (64 * Room::line / 16));
    };
    const auto score = [&](float (&s)[32], uint64_t queries, int at, int half) {
        const uint64_t keys =
            first_keys + (uint32_t(at) * (Room::key_bytes / 16) + half * 64 * Room::line / 16);
        begin_products();
#pragma unroll
        for (int k = 0; k < 4 * boxes; k++)
            Layout::scores(s, queries + k / 4 * (rows * Room::line / 16) + k % 4 * 2,
                           keys + k / 4 * (Room::box / 16) + k % 4 * 2, k > 0);
        commit_products();
    };
    const auto add = [&](const uint32_t (&weights)[4][4], int at, int half, bool adds) {
        // Of one box the ones lie where they are, however far the values.
        constexpr uint64_t line = boxes == 1 ? 1 - (uint64_t(1) << 16) : 1, along = 128 * line;
        const uint64_t values = first_values + uint32_t(at) * (Room::value_bytes / 16 * line);
        begin_products();
#pragma unroll
        for (int k = 0; k < 4; k++)
            Layout::values(acc, weights[k], values + (4 * half + k) * along, k > 0 || adds);
        commit_products();
    };
    float last_top[2] = {};  // of the unit before, where they are in registers
    const uint32_t lane_numbers = room + Room::lanes;
    const auto keep_top = [&] {
        if constexpr (joint)
            asm volatile(
                "st.shared.v2.f32 [%0], {%1, %2};" ::"r"(lane_numbers + 8 * (threadIdx.x - 128)),
                "f"(rows_of.top[0]), "f"(rows_of.top[1])
                : "memory");
        else
            last_top[0] = rows_of.top[0], last_top[1] = rows_of.top[1];
    };
    const auto kept_top = [&](float (&top)[2]) {
        if constexpr (joint)
            asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                         : "=f"(top[0]), "=f"(top[1])
                         : "r"(lane_numbers + 8 * (threadIdx.x - 128))
                         : "memory");
        else
            top[0] = last_top[0], top[1] = last_top[1];
    };
    const auto store = [&](const Place& place, int row) {
        float top[2];
        kept_top(top);
        const float shares[2] = {scalar::weight_share(top[0], acc[columns - 4]),
                                 scalar::weight_share(top[1], acc[columns - 2])};
        store_rows<typename Shape::O, width, Shape::t % 64 == 0>(
            acc, shares, o + Shape::O::at(place.batch, place.head), row, int(Shape::t));
#pragma unroll
        for (int high = 0; high < 2; high++) {
            const int64_t r = row + lane / 4 + 8 * high;
            if (r < Shape::t && lane % 4 == 0) {
                most[Shape::Most::at(place.batch, place.head) + r * Shape::Most::row] = top[high];
                sum[Shape::Sum::at(place.batch, place.head) + r * Shape::Sum::row] =
                    acc[columns - 4 + 2 * high];
            }
        }
    };
    // Blocks of keys that other warpgroups need alone.
    const auto pass = [&](const Place& place, int from) {
#pragma unroll 1
        for (int j = from; j < place.blocks; j++, next()) {
            wait_barrier(full_k(stage), phase);
            if (!joint) wait_barrier(full_v(stage), phase);
            __syncwarp();  // no lane waits for what has been and gone
            if (!joint) release(empty_k(stage));
            release(empty_v(stage));
        }
    };
    for (uint32_t round = 0;; round++) {
        wait_barrier(full_q(round % 2), round / 2 % 2);
        Place place = place_of(round);
        if (!place.there) break;
        int needed = place.needed(half_of(round)), j = 0, row = row_of(place, round);
        if (needed == 0) {
            __syncwarp();
            release(empty_q(round % 2));
            pass(place, 0);
            continue;
        }
        wait_barrier(full_k(stage), phase);
        hold(low);
        hold(high);
        uint64_t queries = queries_of(round);
        score(low, queries, stage, 0);
        commit_products();  // none, in place of what a turn adds
        score(high, queries, stage, 1);
        commit_products();
        rows_of.begin();
        int at = stage, before = stage;  // where the keys and values of the block at work lie
        uint32_t at_phase = phase;
        next();
        // From here on through one unit after the other: the next scores, of this unit or the next,
        // are asked for as soon as registers are free, and the sums of a unit are stored where
        // those of a block before would be multiplied. All products are waited for on the one way
        // round: where some end on another, the assembler lets none go on beyond the end of a turn.
        bool ended = false, goes_on = true;  // the unit before; there is a block at work
#pragma unroll 1
        for (;;) {
            const bool last = goes_on && j + 1 == needed;
            const int j0 = j * Room::keys;
            bool follows = goes_on, half = false, hidden = false;
            if (last) {
                // Votes, of which the compiler knows that a warp goes one way. Of all blocks of a
                // unit the last alone has hidden keys.
                half = Shape::causal && __any_sync(~0u, sees_half(j, row));
                hidden = __any_sync(~0u, RowWeights<Shape, E>::hides(j0 + 64, row));
                const uint32_t of = round + 1;
                // Of few stages the next unit's loads may wait for what this one has yet to
                // release.
                follows = needed == place.blocks || stages >= 4;
                if (follows) {
                    wait_barrier(full_q(of % 2), of / 2 % 2);
                    const Place after = place_of(of);
                    follows = __any_sync(~0u, after.there && after.needed(half_of(of)) > 0);
                }
                queries = queries_of(of);
            }
            const float none = scalar::from_bits(0xff800000u);
            // Of causal blocks the first half is hidden in part where the last is wholly.
            const bool hidden_first =
                hidden && (!Shape::causal || Shape::s % Room::keys != 0 || half);
            int most_bits[2];
            rows_of.moves = false;
            // Some weights are made beside the vote, of two warpgroups some even before the last
            // scores are there, again where it says that rows rise. At first they do; zeros, lest
            // registers hold the weights of one turn until the next.
            constexpr int beside = 14, ahead = groups == 2 ? 6 : 0;
            float weights[beside];
            bool keeps = false;
            if constexpr (ahead > 0) {
                wait_products<3>();
                hold(low);
                if (hidden_first) rows_of.hide(low, j0, row, none);
                rows_of.largest_of_first(most_bits, low);
                asm volatile("" : "+r"(most_bits[0]), "+r"(most_bits[1]));  // before the wait
                if (j > 0) rows_of.template weights_of<0, ahead>(weights, low);
            }
            wait_products<1>();
            hold(high);
            if (!joint && goes_on) release(empty_k(at));
            if constexpr (ahead == 0) {
                hold(low);
                if (hidden_first) rows_of.hide(low, j0, row, none);
                rows_of.largest_of_first(most_bits, low);
            }
            if (hidden) rows_of.hide(high, j0 + 64, row, none);
            rows_of.largest_with_last(most_bits, high);
            if (j > 0) {
                keeps = rows_of.keeps(most_bits);
                rows_of.template weights_of<ahead, beside>(weights, low);
            } else {
#pragma unroll
                for (int x = 0; x < beside; x++) {
                    uint32_t zero;
                    asm volatile("mov.u32 %0, 0;" : "=r"(zero));
                    weights[x] = scalar::from_bits(zero);
                }
            }
            if (!keeps) {
                rows_of.rise(low, high, most_bits);
                rows_of.template weights_of<0, beside>(weights, low);
            }
            const uint32_t keys_there = last ? 0 : is_over(full_k(stage), phase);
            const uint32_t values_there = joint || is_over(full_v(at), at_phase);
#pragma unroll
            for (int x = 0; x < beside; x++) low[x] = weights[x];
            rows_of.template weights_of<beside, 32>(low, low);
            pack_lines<E>(low_weights, low);
            wait_products<0>();
            hold(acc);
            if (ended) {
                release(empty_v(before));
                const uint32_t of_ended = goes_on ? round - 1 : round;
                const Place was = place_of(of_ended);
                store(was, row_of(was, of_ended));
                if (!goes_on) break;
                ended = false;
            } else if (j > 0) {
                release(empty_v(before));
                if (rows_of.moves) rows_of.move(acc);
            }
            if (follows) {
                if (last && stages >= 4) pass(place, needed);
                wait_barrier(full_k(stage), phase, keys_there);
            }
            hold(low);
            score(low, queries, stage, 0);  // where none follows, of what lies there
            if (!joint) wait_barrier(full_v(at), at_phase, values_there);
            hold(acc);
            add(low_weights, at, 0, j > 0);
            if (half) {
#pragma unroll
                for (int x = 0; x < 16; x++) high_weights[x / 4][x % 4] = 0;
            } else {
                rows_of.template weights_of<0, 32>(high, high);
                pack_lines<E>(high_weights, high);
            }
            hold(high);
            score(high, queries, stage, 1);
            add(high_weights, at, 1, true);
            before = at;
            at = stage;
            at_phase = phase;
            if (follows) next();
            j++;
            if (last) {
                ended = true;
                goes_on = follows;
                keep_top();
                release(empty_q(round % 2));
                rows_of.begin();
                if (follows) {
                    round++;
                    place = place_of(round);
                    needed = place.needed(half_of(round));
                    row = row_of(place, round);
                    j = 0;
                }
            }
        }
        pass(place, needed);
    }
}

}  // namespace aicf
