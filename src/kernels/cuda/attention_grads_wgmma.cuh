// All gradients of attention in five products by wgmma, the same in the same order as
// attention.cuh. A block takes 128 keys against blocks of 64 queries, or 128 for heads of 64, and
// adds to the gradient of these, too: blocks hand the sums of a block of queries on to the block of
// the next keys.
#pragma once

#include "attention_bwd_wgmma.cuh"

namespace aicf {

/// Keys and values of a unit, a ring of queries and upstream gradients with numbers of their rows,
/// slopes of one turn or two, 64 queries after the others, and the sums of a turn's queries.
/// `Owns`: two where the next unit's keys and values are loaded beside those at work.
template <int Boxes, int Block, int Stages, int Seconds, int Slopes, int Owns>
struct JointRoom {
    static constexpr int rows = 128, line = 128, first = Stages, second = Seconds;
    static constexpr int own_bytes = Boxes * rows * line, other_bytes = Boxes * Block * line;
    static constexpr int slope_box = rows * line, slope_bytes = Block / 64 * slope_box,
                         sum_bytes = Boxes * Block * 256;
    static constexpr int number_bytes = 8 * Block;
    static constexpr int ring = 2 * Owns * own_bytes,
                         slopes = ring + (Stages + Seconds) * other_bytes;
    static constexpr int sums = slopes + Slopes * slope_bytes, numbers = sums + sum_bytes;
    static constexpr int place = numbers + Stages * number_bytes;
    static constexpr int barriers = place + 16;
    static constexpr int bytes = barriers + 8 * (13 + 2 * (Stages + Seconds));
};

/// Of a unit: whether its keys and values are there, whoever needs them or its place is done with
/// both, and its place is told. Of a turn: whether sums are there and read, and slopes are read for
/// queries; of each of two, whether sums are stored, and that was seen.
template <class Room>
struct JointBarriers {
    uint32_t at;
    __device__ __forceinline__ uint32_t full_own(uint32_t s) const { return at + 8 * s; }
    __device__ __forceinline__ uint32_t empty_own(uint32_t s) const { return at + 16 + 8 * s; }
    __device__ __forceinline__ uint32_t told(uint32_t s) const { return at + 32 + 8 * s; }
    __device__ __forceinline__ uint32_t sums_full() const { return at + 48; }
    __device__ __forceinline__ uint32_t sums_empty() const { return at + 56; }
    __device__ __forceinline__ uint32_t slopes_empty() const { return at + 64; }
    __device__ __forceinline__ uint32_t stored(uint32_t t) const { return at + 72 + t % 2 * 8; }
    __device__ __forceinline__ uint32_t seen(uint32_t t) const { return at + 88 + t % 2 * 8; }
    __device__ __forceinline__ uint32_t full(int which, int s) const {
        return at + 104 + 8 * (which * Room::first + s);
    }
    __device__ __forceinline__ uint32_t empty(int which, int s) const {
        return full(which, s) + 8 * (Room::first + Room::second);
    }
    __device__ __forceinline__ void init() const {
        init_barrier(sums_full(), 1);
        init_barrier(sums_empty(), 8);
        init_barrier(slopes_empty(), 8);
        for (uint32_t s = 0; s < 2; s++) {
            init_barrier(full_own(s), 1);
            init_barrier(empty_own(s),
                         8 + 3);  // warps that multiply, and that need the place alone
            init_barrier(told(s), 1);
            init_barrier(stored(s), 8);
            init_barrier(seen(s), 1);
        }
        for (int which = 0; which < 2; which++)
            for (int s = 0; s < (which ? Room::second : Room::first); s++) {
                init_barrier(full(which, s), which ? 1 : 33);
                init_barrier(empty(which, s), 8);
            }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
};

/// Where the keys of a unit are, and which blocks of queries see them.
template <class Layout, class Shape>
struct JointPlace {
    static constexpr int rows = 128, block = Layout::block;
    static constexpr auto tiles = uint32_t((Shape::s + rows - 1) / rows),
                          groups = uint32_t(Shape::heads / Shape::share),
                          units = tiles * groups * uint32_t(Shape::batches);
    static constexpr int blocks = int((Shape::t + block - 1) / block);
    int group, batch, tile, skipped, turns;
    bool there;
    __device__ __forceinline__ explicit JointPlace(uint32_t unit) {
        const TileTurn<tiles, groups * uint32_t(Shape::batches), Layout::cohort> turn(unit);
        there = turn.there();
        group = int(turn.head % groups);
        batch = int(turn.head / groups);
        tile = int(turn.tile);
        // Blocks of queries from the first that sees a key on, of one head after the other.
        skipped =
            Shape::causal ? (tile * (rows / block) < blocks ? tile * (rows / block) : blocks) : 0;
        turns = (blocks - skipped) * int(Shape::share);
    }
    __device__ __forceinline__ int j0() const { return tile * rows; }
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

/// The turns of a unit: which queries of which head, and where their sums are between two blocks.
/// Of `slots` heads there is room at a time: whoever begins a head waits for the end of the one
/// that was there before.
template <class Layout, class Shape>
struct JointTurn {
    typedef JointPlace<Layout, Shape> Place;
    static constexpr uint32_t slots = Layout::slots;
    int head, i0;
    __device__ __forceinline__ explicit JointTurn(const Place& place)
        : head(place.group * int(Shape::share)), i0(place.first()) {}
    __device__ __forceinline__ void next(const Place& place) {
        i0 = place.after(i0);
        head += i0 == place.first();
    }
    __device__ __forceinline__ uint32_t number(const Place& place) const {
        return uint32_t(place.batch) * uint32_t(Shape::heads) + uint32_t(head);
    }
    /// How many tiles of keys the queries see.
    __device__ __forceinline__ uint32_t givers() const {
        const uint32_t own = uint32_t(i0) / Place::rows + 1;
        return Shape::causal && own < Place::tiles ? own : Place::tiles;
    }
    __device__ __forceinline__ bool last(const Place& place) const {
        return uint32_t(place.tile) + 1 == givers();
    }
    /// Which counter is theirs, and what it says when it is the unit's turn.
    __device__ __forceinline__ uint32_t at(const Place& place) const {
        return number(place) % slots * uint32_t(Place::blocks) + uint32_t(i0) / Layout::block;
    }
    __device__ __forceinline__ uint32_t due(const Place& place) const {
        return number(place) / slots * givers() + uint32_t(place.tile);
    }
};

/// Of `counters` the first is the next unit's number, the second how many blocks are done, the
/// others how many tiles of keys a block of queries has had. Units are dealt in ascending order and
/// a unit waits for units of smaller numbers alone, which blocks have begun with: blocks need not
/// run together. One warpgroup loads, its warps in different roles; two multiply.
template <class Layout, class Shape, class E>
__device__ __forceinline__ void attention_grads_wgmma(
    const Grid& grid, E* dq, E* dk, E* dv, const float* most, const float* sum, const float* delta,
    const char* map_q, const char* map_k, const char* map_v, const char* map_dy, float* parts,
    uint32_t* counters, float factor, float scale) {
    constexpr int boxes = Layout::boxes, block = Layout::block, width = 64 * boxes;
    constexpr uint32_t owns = Layout::owns;
    typedef JointRoom<boxes, block, Layout::stages, Layout::seconds, Layout::slopes, owns> Room;
    typedef JointPlace<Layout, Shape> Place;
    typedef JointTurn<Layout, Shape> Turn;
    typedef Pack<float, 4> Four;
    constexpr int own_box = Room::rows * Room::line, other_box = block * Room::line;
    extern __shared__ __align__(1024) char room_of_all[];
    const uint32_t room = shared_address(room_of_all);
    const JointBarriers<Room> barriers{room + Room::barriers};
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (const char* map : {map_q, map_k, map_v, map_dy}) fetch_map(map);
        barriers.init();
    }
    __syncthreads();
    int stage = 0;
    uint32_t phase = 0;
    constexpr bool even_rings = Room::first == Room::second;
    const auto next = [&] {
        if (++stage == Room::first) stage = 0, phase ^= 1;
    };
    const auto ring = [&](int s, int which) {
        return room + Room::ring + (which * Room::first + s) * Room::other_bytes;
    };
    const auto numbers = [&](int s) { return room + Room::numbers + s * Room::number_bytes; };
    // The unit of a round, once it is known.
    const auto unit_of = [&](uint32_t round) {
        wait_barrier(barriers.told(round % owns), round / owns % 2);
        uint32_t unit = 0;
        if (lane == 0)  // which alone gives the place back
            asm volatile("ld.shared.b32 %0, [%1];"
                         : "=r"(unit)
                         : "r"(room + Room::place + 4 * (round % owns))
                         : "memory");
        return __shfl_sync(~0u, unit, 0);
    };
    // The sums of a turn's queries between blocks, as lanes hold them.
    const auto sums_of = [&](const Place& place, const Turn& of) {
        return reinterpret_cast<Four*>(parts) + int64_t(of.at(place)) * (Room::sum_bytes / 16);
    };
    if (warp < 4) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Layout::producer_registers));
        // Of a warp that a unit's place is all it needs of its own operands.
        const auto place_told = [&](uint32_t round) {
            const uint32_t unit = unit_of(round);
            __syncwarp();
            if (lane == 0) arrive_at<1>(barriers.empty_own(round % owns), 0);
            return Place(unit);
        };
        if (leads_copies(warp)) {
            // Tells the unit of a round and loads its keys and values.
            const auto tell = [&](uint32_t round, uint32_t unit) {
                const Place place(unit);
                const uint32_t mine = round % owns, full = barriers.full_own(mine),
                               to = room + mine * 2 * Room::own_bytes;
                wait_barrier(barriers.empty_own(mine), round / owns % 2 ^ 1);
                asm volatile("st.shared.b32 [%0], %1;" ::"r"(room + Room::place + 4 * mine),
                             "r"(unit)
                             : "memory");
                arrive_at<1>(barriers.told(mine), 0);
                if (!place.there) {
                    arrive_at<1>(full, 0);
                    return;
                }
                arrive_expecting(full, 2 * Room::own_bytes);
                for (int b = 0; b < boxes; b++) {
                    copy_box(to + b * own_box, map_k, Layout::k_x(place.group) + 64 * b, place.j0(),
                             Layout::k_z(place.batch, place.group), full);
                    copy_box(to + Room::own_bytes + b * own_box, map_v,
                             Layout::v_x(place.group) + 64 * b, place.j0(),
                             Layout::v_z(place.batch, place.group), full);
                }
            };
            uint32_t unit = atomicAdd(counters, 1u), t = 0;
            tell(0, unit);
            for (uint32_t round = 0;; round++) {
                const Place place(unit);
                if (!place.there) break;
                // The next unit is taken late, that none waits for a block that is not free yet.
                const int asks = place.turns > 2 ? place.turns - 2 : 0;
                if (place.turns == 0) {
                    unit = atomicAdd(counters, 1u);
                    if (owns == 2) tell(round + 1, unit);
                }
                Turn of(place);
                for (int turn = 0; turn < place.turns; turn++, next(), of.next(place)) {
                    if (turn == asks) {
                        unit = atomicAdd(counters, 1u);
                        if (owns == 2) tell(round + 1, unit);
                    }
                    wait_barrier(barriers.empty(0, stage), phase ^ 1);
                    arrive_expecting(barriers.full(0, stage), Room::other_bytes);
                    for (int b = 0; b < boxes; b++)
                        copy_box(ring(stage, 0) + b * other_box, map_q,
                                 Layout::q_x(of.head) + 64 * b, of.i0,
                                 Layout::q_z(place.batch, of.head), barriers.full(0, stage));
                    const int second = even_rings ? stage : int(t % 2);
                    wait_barrier(barriers.empty(1, second), (even_rings ? phase : t / 2 % 2) ^ 1);
                    arrive_expecting(barriers.full(1, second), Room::other_bytes);
                    for (int b = 0; b < boxes; b++)
                        copy_box(ring(second, 1) + b * other_box, map_dy,
                                 Layout::dy_x(of.head) + 64 * b, of.i0,
                                 Layout::dy_z(place.batch, of.head), barriers.full(1, second));
                    t++;
                }
                if (owns == 1) tell(round + 1, unit);
            }
        } else if (warp == 1) {  // the numbers of the queries
            for (uint32_t round = 0;; round++) {
                const Place place = place_told(round);
                if (!place.there) break;
                Turn of(place);
#pragma unroll 1
                for (int turn = 0; turn < place.turns; turn++, next(), of.next(place)) {
                    QueryNumbers<Shape> now[block / 32];
#pragma unroll
                    for (int x = 0; x < block / 32; x++)
                        now[x].load(most, sum, delta, place.batch, of.head, of.i0 + 32 * x + lane);
                    wait_barrier(barriers.empty(0, stage), phase ^ 1);
#pragma unroll
                    for (int x = 0; x < block / 32; x++) {
                        const uint32_t to = numbers(stage) + 4 * (32 * x + lane);
                        asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(now[x].start())
                                     : "memory");
                        asm volatile("st.shared.f32 [%0], %1;" ::"r"(to + 4 * block),
                                     "f"(now[x].mean())
                                     : "memory");
                    }
                    arrive_at<1>(barriers.full(0, stage), 0);
                }
            }
        } else if (warp == 2) {  // loads sums as soon as they are there
            uint32_t t = 0;
            for (uint32_t round = 0;; round++) {
                const Place place = place_told(round);
                if (!place.there) break;
                Turn of(place);
                if (lane == 0)
#pragma unroll 1
                    for (int turn = 0; turn < place.turns; turn++, of.next(place)) {
                        const uint32_t now = t + uint32_t(turn);
                        wait_barrier(barriers.sums_empty(), now % 2 ^ 1);
                        const uint32_t due = of.due(place), full = barriers.sums_full();
                        if (due > 0) wait_count(counters + 2 + of.at(place), due);
                        if (place.tile > 0) {
                            arrive_expecting(full, Room::sum_bytes);
                            copy_bytes(room + Room::sums, sums_of(place, of), Room::sum_bytes,
                                       full);
                        } else {
                            arrive_at<1>(full, 0);
                        }
                    }
                __syncwarp();
                t += uint32_t(place.turns);
            }
        } else if (warp == 3) {  // says that sums are stored
            uint32_t t = 0;
            for (uint32_t round = 0;; round++) {
                const Place place = place_told(round);
                if (!place.there) break;
                Turn of(place);
                if (lane == 0)
#pragma unroll 1
                    for (int turn = 0; turn < place.turns; turn++, of.next(place)) {
                        const uint32_t now = t + uint32_t(turn);
                        wait_barrier(barriers.stored(now), now / 2 % 2);
                        arrive_at<1>(barriers.seen(now), 0);
                        add_release(counters + 2 + of.at(place), 1u);
                    }
                __syncwarp();
                t += uint32_t(place.turns);
            }
            // The last block leaves all counters at 0.
            uint32_t last = 0;
            if (lane == 0) last = add_acq_rel(counters + 1, 1u) == grid.blocks - 1;
            const bool clears = __shfl_sync(~0u, last, 0);
            __syncwarp();  // what the first lane acquired comes before all lanes' stores
            if (clears)
                for (uint32_t x = lane; x < 2 + Turn::slots * uint32_t(Place::blocks); x += 32)
                    clear_counter(counters + x);
        }
        return;
    }
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Layout::consumer_registers));
    const int own = __shfl_sync(~0u, warp / 4 - 1, 0);
    // Its number as a warp's lanes tell each other: the register that has it would else be read
    // anew in every turn, which takes as long as 300 instructions.
    const uint32_t thread = __shfl_xor_sync(~0u, threadIdx.x ^ 1, 1) % 128;
    const auto release = [&](uint32_t barrier) {
        if (thread % 32 == 0) arrive_at<1>(barrier, 0);
    };
    const GradientTiles<Room, block> tiles_of(room);
    const uint64_t slope_tiles = first_tile(room + Room::slopes, 16);
    const auto slopes_at = [&](uint32_t t) {
        return slope_tiles + t % Layout::slopes * (Room::slope_bytes / 16);
    };
    // Where a lane has four sums of a box after the other.
    const auto lane_at = [&](int box) { return uint32_t(box) * 1024 + thread; };
    const auto load_sums = [&](float (&sums)[32], int box) {
        const uint32_t from = room + Room::sums + lane_at(box) * 16;
#pragma unroll
        for (int x = 0; x < 8; x++)
            asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                         : "=f"(sums[4 * x]), "=f"(sums[4 * x + 1]), "=f"(sums[4 * x + 2]),
                           "=f"(sums[4 * x + 3])
                         : "r"(from + x * 2048)
                         : "memory");
    };
    // To the next tile of keys, of the last to memory.
    const auto hand_on = [&](const float (&sums)[32], const Place& place, const Turn& of, int box) {
        if (of.last(place)) {
            const float factors[2] = {scale, scale};
            store_rows<typename Shape::Dq, 64, Shape::t % block == 0>(
                sums, factors,
                dq + Shape::Dq::at(place.batch, of.head) + (boxes == 1 ? 0 : 64 * int64_t(box)),
                of.i0 + (boxes == 1 ? 64 * box : 0) + 16 * int(thread / 32), int(Shape::t));
        } else {
            Four* const to = sums_of(place, of) + lane_at(box);
#pragma unroll
            for (int x = 0; x < 8; x++) {
                Four four;
#pragma unroll
                for (int y = 0; y < 4; y++) four.at[y] = sums[4 * x + y];
                to[x * 128] = four;
            }
        }
    };
    const auto multiply_queries = [&](float (&sums)[32], const Place& place, uint32_t t,
                                      uint32_t round, uint64_t keys) {
        // In every second round the slopes of the lower half of the keys lie behind the others.
        const uint64_t slopes =
            slopes_at(t) + (boxes == 1 ? uint32_t(own) * (Room::slope_box / 16) : 0);
        const uint64_t a[2] = {slopes + round % 2 * 512, slopes + (round + 1) % 2 * 512};
        begin_products();
#pragma unroll
        for (int k = 0; k < Room::rows / 16; k++)
            Layout::queries(sums, a[k / 4] + k % 4 * 128, keys + k * 128, k > 0 || place.tile > 0);
        commit_products();
    };
    // Every second unit the other half of the keys: of causal units the upper one has less to do.
    const auto half_of = [&](uint32_t round) { return own ^ int(round % 2); };
    const auto row_of = [&](const Place& of, uint32_t round) {
        return of.j0() + 64 * half_of(round) + 16 * int(thread / 32);
    };
    const auto keys_at = [&](uint32_t round) { return tiles_of.own(round % owns, half_of(round)); };
    // The first queries of a head may see no key of the upper half.
    const auto hidden = [&](uint32_t round) {
        return Shape::causal && block == 64 ? half_of(round) : 0;
    };
    // What a lane needs of the queries' numbers, starts or means, of the x-th eight of a block.
    const auto two_numbers = [&](float (&two)[2], int at, int which, int x) {
        asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                     : "=f"(two[0]), "=f"(two[1])
                     : "r"(numbers(at) + thread % 4 * 8 + 4 * block * which + 32 * x)
                     : "memory");
    };
    // Read some time before they are needed: products leave shared memory little time for others.
    constexpr int eights = block / 8, ahead = 4, means_ahead = 4;
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
        constexpr bool uneven = Shape::s % Room::rows != 0;
        if (__any_sync(~0u, (Shape::causal && row + 15 > i0) || (uneven && row + 15 >= Shape::s) ||
                                is_nan(factor))) {
#pragma unroll
            for (int high = 0; high < 2; high++) {
                const int key = row + int(thread % 32 / 4) + 8 * high;
                int hidden = Shape::causal ? key - i0 - int(thread % 4 * 2) : 0;
                // Asked of all keys where nothing else may hide one, see is_nan().
                if ((!Shape::causal || uneven) && key >= Shape::s) hidden = block;
#pragma unroll
                for (int x = 0; x < block / 4; x++)
                    if (x / 2 * 8 + x % 2 < hidden) p[x / 2 * 4 + 2 * high + x % 2] = 0.0f;
            }
        }
    };
    // Slopes of 16 queries to a warp's lines, a key a line: a lane says where 8 of a key go.
    const auto leave_words = [&](const uint32_t (&words)[4], uint32_t lines, uint32_t k) {
        const uint32_t line = thread % 16, to = lines + line * Room::line,
                       eight = k % 4 * 2 + thread % 32 / 16;
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                         to + k / 4 * Room::slope_box + (eight ^ line % 8) * 16),
                     "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                     : "memory");
    };
    const auto leave_none = [&](uint32_t lines) {
        const uint32_t none[4] = {};
        for (uint32_t k = 0; k < block / 16; k++) leave_words(none, lines, k);
    };
    // Products of upstream gradients to slopes, which leave registers at once, and weights to what
    // multiplies: 16 queries at a time, that registers hold the next.
    const auto slopes_of = [&](float (&s)[block / 2], const float (&p)[block / 2],
                               uint32_t (&weights)[block / 16][4], int at, uint32_t lines) {
#pragma unroll
        for (uint32_t k = 0; k < block / 16; k++) {
#pragma unroll
            for (int x = 2 * k; x < 2 * k + 2; x++) {
#pragma unroll
                for (int y = 0; y < 4; y++)
                    s[4 * x + y] = p[4 * x + y] * (s[4 * x + y] - means[x][y % 2]);
                if (x + means_ahead < eights)
                    two_numbers(means[x + means_ahead], at, 1, x + means_ahead);
            }
            const uint32_t words[4] = {narrow_two<E>(s[8 * k], s[8 * k + 1]),
                                       narrow_two<E>(s[8 * k + 2], s[8 * k + 3]),
                                       narrow_two<E>(s[8 * k + 4], s[8 * k + 5]),
                                       narrow_two<E>(s[8 * k + 6], s[8 * k + 7])};
            leave_words(words, lines, k);
#pragma unroll
            for (int w = 0; w < 4; w++) {
                weights[k][w] = narrow_two<E>(p[8 * k + 2 * w], p[8 * k + 2 * w + 1]);
                asm volatile("" : "+r"(weights[k][w])::"memory");
            }
        }
    };
    // A warpgroup's lines stay the same, that no other writes where its products may still read.
    const auto lines_of = [&](uint32_t t) {
        return room + Room::slopes + t % Layout::slopes * Room::slope_bytes +
               uint32_t(64 * own + 16 * int(thread / 32)) * Room::line;
    };
    const auto multiply_slopes = [&](float (&sums)[width / 2], uint32_t t, uint64_t b, bool adds) {
        const uint64_t a = slopes_at(t) + uint32_t(own) * (64 * Room::line / 16);
        begin_products();
#pragma unroll
        for (int k = 0; k < block / 16; k++)
            Layout::keys(sums, a + k / 4 * (Room::slope_box / 16) + k % 4 * 2, b + k * 128,
                         k > 0 || adds);
        commit_products();
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
    // Of one turn's lines none is written anew before both warpgroups have added what it says.
    constexpr bool anew = Layout::slopes == 1;
    static_assert(!anew || block == 128, "a block passed over has slopes beside another's");
    const auto may_leave = [&](uint32_t t) {
        if (anew) wait_barrier(barriers.slopes_empty(), t % 2 ^ 1);
    };
    // The other way: each warpgroup adds to 64 columns of the queries, or to 64 queries, once both
    // have slopes.
    // Where a block may be passed over they come from several places (meet_at).
    // What lanes read, sums and numbers, they have read before, so one of a warp gives it back.
    const auto meet = [&] {
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        if constexpr (block == 64)
            meet_at(1, 256);
        else
            sync_as<256>(1);
    };
    const auto keys_of_queries = [&](uint32_t round) {
        return tiles_of.own(round % owns, 0) + (boxes == 1 ? 0 : uint32_t(own) * (own_box / 16));
    };
    const auto add_slopes = [&](float (&sums)[32], const Place& place, uint32_t t, uint32_t round) {
        hold(sums);
        multiply_queries(sums, place, t, round, keys_of_queries(round));
        release(barriers.sums_empty());
    };
    const auto end_adding = [&](const float (&sums)[32], const Place& place, const Turn& of,
                                uint32_t t) {
        if (anew) release(barriers.slopes_empty());
        hand_on(sums, place, of, own);
        wait_barrier(barriers.seen(t), t / 2 % 2 ^ 1);
        __syncwarp();
        release(barriers.stored(t));
    };
    const auto pass_adding = [&](int count, uint32_t t, const Place& place, Turn& of,
                                 uint32_t round) {
        if constexpr (block != 64) return;
#pragma unroll 1
        for (int x = 0; x < count; x++, next(), t++, of.next(place)) {
            wait_barrier(barriers.full(0, stage), phase);
            wait_barrier(barriers.full(1, stage), phase);
            leave_none(lines_of(t));
            float sums[32];
            wait_barrier(barriers.sums_full(), t % 2);
            load_sums(sums, own);
            meet();
            release(barriers.empty(0, stage));
            release(barriers.empty(1, stage));
            add_slopes(sums, place, t, round);
            wait_products<0>();
            hold(sums);
            end_adding(sums, place, of, t);
        }
    };
    uint32_t t = 0;
    for (uint32_t round = 0;; round++) {
        uint32_t unit = unit_of(round);
        Place place(unit);
        if (!place.there) break;
        int skips = hidden(round), turns = place.seen(skips), turn = 0, row = row_of(place, round);
        wait_barrier(barriers.full_own(round % owns), round / owns % 2);
        Turn of_turn(place);
        if (turns == 0) {
            pass_adding(place.turns, t, place, of_turn, round);
            t += uint32_t(place.turns);
            __syncwarp();
            release(barriers.empty_own(round % owns));
            const float zeros[width / 2] = {};
            store(place, row, zeros, zeros);
            continue;
        }
        float key_acc[width / 2], value_acc[width / 2];
        float p[block / 2], s[block / 2];
        uint32_t weights[block / 16][4];
        const uint64_t keys = keys_at(round);
        if (skips > 0) {
            pass_adding(1, t, place, of_turn, round);
            t++;
        }
        int done = stage;
        wait_barrier(barriers.full(0, stage), phase);
        hold(p);
        multiply_lines<Layout, own_box, other_box>(p, keys, tiles_of.lines(stage, 0));
        wait_products<0>();
        hold(p);
#pragma unroll 1
        for (bool last = false; !last;) {
            float sums[32];
            const int at = stage, at_second = even_rings ? at : int(t % 2);
            last = turn + 1 == turns;
            read_starts(at);
            wait_barrier(barriers.full(1, at_second), even_rings ? phase : t / 2 % 2);
            hold(s);
            multiply_lines<Layout, own_box, other_box>(s, keys + Room::own_bytes / 16,
                                                       tiles_of.lines(at_second, 1));
            weigh(p, at, of_turn.i0, row);
            wait_products<0>();
            hold(s);
            hold(key_acc);
            if (turn > 0) release(barriers.empty(0, done));
            done = at;
            may_leave(t);
            slopes_of(s, p, weights, at, lines_of(t));
            multiply_weights<Layout>(value_acc, weights, tiles_of.across(at_second, 1), turn > 0);
            wait_barrier(barriers.sums_full(), t % 2);
            load_sums(sums, own);
            meet();
            next();
            // The next scores, of the last what lies there: of another head's first queries
            // the half may see none.
            const bool passes = !last && skips > 0 && of_turn.i0 + block >= Place::blocks * block;
            const bool wraps = passes && stage + 1 == Room::first;
            const int then = passes ? (wraps ? 0 : stage + 1) : stage;
            add_slopes(sums, place, t, round);
            wait_products<1>();
            hold(value_acc);
            release(barriers.empty(1, at_second));
            if (!last) wait_barrier(barriers.full(0, then), wraps ? phase ^ 1 : phase);
            hold(p);
            multiply_lines<Layout, own_box, other_box>(p, keys, tiles_of.lines(then, 0));
            wait_products<1>();
            hold(sums);
            end_adding(sums, place, of_turn, t);
            of_turn.next(place);
            uint32_t passed = 0;
            if constexpr (Shape::causal && Shape::share > 1 && block == 64) {
                wait_products<0>();
                hold(p);
                if (passes) {
                    pass_adding(1, t + 1, place, of_turn, round);
                    passed = 1;
                }
            }
            multiply_slopes(key_acc, t, tiles_of.across(at, 0), turn > 0);
            wait_products<1>();
            hold(p);
            turn++;
            t += 1 + passed;
        }
        wait_products<0>();
        hold(p);
        hold(key_acc);
        release(barriers.empty(0, done));
        release(barriers.empty_own(round % owns));
        // Made anew: registers do not hold the place beside all sums.
        asm volatile("" : "+r"(unit));
        const Place was(unit);
        store(was, row_of(was, round), key_acc, value_acc);
    }
}

}  // namespace aicf
