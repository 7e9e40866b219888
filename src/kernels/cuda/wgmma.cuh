// C = A B on the tensor cores of 9.0 by wgmma, the same steps of k in the same order as mma.cuh, so
// the same bits. One warp asks the copy engine for tiles, through maps of the operands that the
// host leaves in the argument block; warpgroups multiply them where they arrive.
#pragma once

#include "wgmma_results.cuh"

namespace aicf {

// ---- products -----------------------------------------------------------------------------------

/// How wgmma finds a tile of lines of 128 bytes, or 64, permuted by the copy engine within 8 lines.
template <int Line = 128>
__device__ __forceinline__ uint64_t tile_descriptor(uint32_t at, uint32_t leading) {
    static_assert(Line == 128 || Line == 64);
    constexpr uint64_t eight_lines = 8 * Line >> 4, permuted = Line == 128 ? 1 : 2;
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

// ---- the kernel ---------------------------------------------------------------------------------

/// How a kernel lies in shared memory. Layout, which the host writes, says: a tile's rows and
/// columns, depth, stages, how many blocks one above the other share the tile of B (pair), how many
/// side by side that of A (wide), the parts of k that are units of their own, whether the sum of
/// the cuts before stays in registers (holds), whether each warpgroup has tiles of its own (own),
/// whether A is words of f32 that go through registers (words), whether operands and tiles are
/// those of the transpose (turned), how the operands lie, the bytes it asks for, and by step() the
/// instruction.
template <class Layout>
struct Ring {
    static constexpr int depth = Layout::depth;  // elements of a line of 128 bytes
    static constexpr int consumers = Layout::rows / 64, warps = 4 * consumers;
    static constexpr int readers = Layout::own ? 4 : warps;  // of a stage
    static constexpr int a_bytes = Layout::rows * 128, b_bytes = Layout::columns * 128;
    static constexpr int stage_bytes = a_bytes + b_bytes;
    static constexpr int warp_bytes = 16 * 272;  // a consumer's warp's, for sums on their way out
    static constexpr int staging = Layout::stages * stage_bytes;
    static constexpr int barriers = staging + warp_bytes * warps;
    static constexpr int queue = barriers + 16 * Layout::stages, shared = queue + 48;
    static_assert(shared == Layout::shared);
    // Registers are dealt out anew where sums take many; two blocks share a processor otherwise.
    static constexpr bool deals = consumers == 2;
    static constexpr int producer_registers = 40;
    static constexpr int consumer_registers = 232;
    static constexpr bool staggers =
        !Layout::own && consumers == 2 && Layout::columns >= 128 && Layout::parts == 1;
    static constexpr int word_steps = Layout::columns <= 192 ? 4 : 2;  // of words of A at a time
    // Bytes of a line of B: across k half of 128 where those do not divide the columns.
    static constexpr int b_line = !Layout::b_along_k && Layout::columns % depth != 0 ? 64 : 128;
    static_assert(consumers <= 2 && Layout::columns % 32 == 0 && Layout::columns <= 256);
    static_assert(!Layout::own || (consumers == 2 && Layout::columns <= 128 && !Layout::words));
};

/// The tile of an operand, `Rows` of its own axis from i and one line of k, by its map, whose boxes
/// have lines of `Line` bytes. Of `Shares` blocks of a cluster that need it each brings one to all
/// in `blocks`: some of its lines along k, or across k some of the boxes that lie side by side, or
/// of too few boxes some lines of each.
template <class R, int Rows, bool AlongK, int Line = 128, int Shares = 1>
__device__ __forceinline__ void copy_tile(uint32_t to, const void* map, int i, int k, int batch,
                                          uint32_t barrier, uint32_t which = 0,
                                          uint32_t blocks = 1) {
    constexpr int box = AlongK ? Rows : R::depth * Line / 128, boxes = Rows / box;
    constexpr bool lines = boxes % Shares != 0;  // of each box
    constexpr int each = lines ? boxes : boxes / Shares,
                  high = (AlongK ? Rows : R::depth) / (lines ? Shares : 1);
    const int x0 = lines ? 0 : int(which) * each, y0 = lines ? int(which) * high : 0;
#pragma unroll
    for (int x = 0; x < each; x++) {
        const uint32_t at = to + (x0 + x) * (R::depth * Line) + y0 * Line;
        const int own = i + (AlongK ? y0 : (x0 + x) * box), deep = k + (AlongK ? 0 : y0);
        const int first = AlongK ? deep : own, second = AlongK ? own : deep;
        if constexpr (Shares == 1)
            copy_box(at, map, first, second, batch, barrier);
        else
            copy_box_among(at, map, first, second, batch, barrier, blocks);
    }
}

/// A stage's words of A as a lane holds them for `Steps` of its four steps, from a warpgroup's 64
/// lines of k, or lines of 32 rows. Of the transpose the rows of a warp are those of
/// turned_row(), whose words meet no bank twice.
template <class Layout, int Steps>
__device__ __forceinline__ void read_words(uint32_t (&a)[Steps][4], uint32_t tile, int begin) {
    uint32_t thread = threadIdx.x;
    if constexpr (Steps < 4) asm volatile("" : "+r"(thread));  // no address is kept, but made anew
    const uint32_t lane = thread % 32, first = thread / 32 % 4 * 16;
#pragma unroll
    for (int y = 0; y < Steps; y++) {
        const uint32_t step = begin + y;
        if constexpr (Layout::a_along_k) {  // 8 rows of 4 words at a time, from each lane's line
            const uint32_t i = first + lane % 16, cell = 2 * step + lane / 16;
            asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                         : "=r"(a[y][0]), "=r"(a[y][1]), "=r"(a[y][2]), "=r"(a[y][3])
                         : "r"(tile + i * 128 + (cell ^ i % 8) * 16)
                         : "memory");
        } else if constexpr (Layout::turned) {
            const uint32_t i =
                turned_row(thread / 32 % 4) + lane / 4 % 2 * 2 + lane / 8 % 2 * 16 + lane / 16 * 4;
#pragma unroll
            for (uint32_t x = 0; x < 2; x++) {
                const uint32_t k = step * 8 + x * 4 + lane % 4;
                asm volatile(
                    "ld.shared.v2.b32 {%0, %1}, [%2];"
                    : "=r"(a[y][2 * x]), "=r"(a[y][2 * x + 1])
                    : "r"(tile + i / 32 * 4096 + k * 128 + (i % 32 / 4 ^ k % 8) * 16 + i % 4 * 4)
                    : "memory");
            }
        } else {
#pragma unroll
            for (uint32_t x = 0; x < 4; x++) {
                const uint32_t i = first + lane / 4 + x % 2 * 8,
                               k = step * 8 + x / 2 * 4 + lane % 4;
                asm volatile(
                    "ld.shared.b32 %0, [%1];"
                    : "=r"(a[y][x])
                    : "r"(tile + i / 32 * 4096 + k * 128 + (i % 32 / 4 ^ k % 8) * 16 + i % 4 * 4)
                    : "memory");
            }
        }
    }
}

/// Turn t of a kernel whose parts of k are units of their own: one part of one tile is multiplied,
/// or some of a tile's sums are added over its parts. Tiles go in rounds; the sums of one are added
/// behind the products of the next, while they are in the cache. Whoever adds waits for turns
/// before its own alone, and those are all taken, so that blocks need not run together.
template <class Layout, int64_t Tiles>
struct Turn {
    static constexpr uint32_t parts = Layout::parts, adders = Layout::adders;
    static constexpr uint32_t round = Layout::round < Tiles ? Layout::round : Tiles;
    static constexpr uint32_t rounds = (Tiles + round - 1) / round,
                              rest = Tiles - (rounds - 1) * round;
    static constexpr uint32_t last =  // where the last additions begin
        rounds == 1 ? Tiles * parts
                    : round * parts + (rounds - 2) * round * (parts + adders) + rest * parts +
                          round * adders;
    static constexpr uint32_t end = last + rest * adders;
    uint32_t tile, which;  // part, or share of the tile's sums
    bool adds;
    __device__ __forceinline__ explicit Turn(uint32_t t) {
        if (t >= last) {
            set((rounds - 1) * round, t - last, true);
            return;
        }
        if (t < round * parts) {
            set(0, t, false);
            return;
        }
        t -= round * parts;
        const uint32_t of = t / (round * (parts + adders)) + 1, at = t % (round * (parts + adders));
        const uint32_t products = (of + 1 == rounds ? rest : round) * parts;
        if (at < products)
            set(of * round, at, false);
        else
            set((of - 1) * round, at - products, true);
    }
    __device__ __forceinline__ void set(uint32_t first, uint32_t at, bool added) {
        adds = added;
        tile = first + at / (added ? adders : parts);
        which = at % (added ? adders : parts);
    }
};

/// The product that tiles are of: a Shape's, or its transpose.
template <class Shape, bool Turned>
struct Tiled {
    typedef Shape Of;
};
template <class Shape>
struct Tiled<Shape, true> {
    struct Of : Shape {
        static constexpr int64_t m = Shape::n, n = Shape::m;
    };
};

/// Of operands that lie where they are read: before what the kernel waits for is done, unless that
/// writes one, which is `late` then. Threads that copy nothing say begin().
struct Present {
    static constexpr bool elects = true;
    static constexpr int beside = 0, more = 0;
    bool late;
    __device__ __forceinline__ void operator()() const {
        if (late) wait_before_kernel();
    }
    __device__ __forceinline__ void begin() const { begin_kernel(); }
    __device__ __forceinline__ void reach(bool&, int, int, int) const {}
    __device__ __forceinline__ void copy_rest() const {}
    __device__ __forceinline__ void end() const {}
};

/// A block computes Layout::rows x Layout::columns of C. With Layout::parts == 1 it takes all cuts
/// of k and adds them, in registers or in `parts`. Otherwise a cut is a unit of its own that is
/// left in `parts`, and blocks add shares of a tile once all its cuts lie there; of `counters` the
/// first is the next turn, the second how many blocks are done, the others how many warps left
/// their sums. A thread calls ready(), which returns when the operands are there, before it copies.
/// All that is read or written beside waits for the kernel's beginning.
template <class Layout, class Shape, class Put, class Ready>
__device__ __forceinline__ void gemm_wgmma(const Grid& grid, const Put& put, const void* map_a,
                                           const void* map_b, float* parts, uint32_t* counters,
                                           const Ready& ready) {
    typedef Ring<Layout> R;
    constexpr int BM = Layout::rows, BN = Layout::columns, Stages = Layout::stages;
    constexpr int Pair = Layout::pair, Wide = Layout::wide, Group = Pair * Wide,
                  Parts = Layout::parts;
    typedef typename Tiled<Shape, Layout::turned>::Of Sides;
    typedef Piece<Sides, BM * Pair, BN * Wide, (Sides::n > Sides::m)> Place;
    typedef Pack<float, 4> Four;
    constexpr int depth = R::depth, heights = Layout::own ? BM / 64 : 1;
    constexpr int sums = heights * BN / 2, lots = sums / 4, threads = 128 * R::consumers;
    constexpr int all_steps = int((Shape::k + depth - 1) / depth);
    constexpr int cut_steps = int((Shape::chunk + depth - 1) / depth);
    constexpr int cuts = (all_steps + cut_steps - 1) / cut_steps;
    constexpr bool split = Parts > 1;
    typedef Turn<Layout, Place::tiles> Turns;
    static_assert(!split || (Parts == cuts && Group == 1));
    static_assert(Wide == 1 || (!Layout::own && !Layout::words && !Layout::turned));
    static_assert(cuts == 1 || Shape::chunk % depth == 0);
    static_assert(Place::tiles < 1 << 30);
    extern __shared__ __align__(1024) char ring_room[];
    const uint32_t room = shared_address(ring_room);
    const auto full = [&](int s) { return room + R::barriers + 8 * s; };
    const auto empty = [&](int s) { return room + R::barriers + 8 * (Stages + s); };
    // Two turns on their way from the warp that takes them to those that multiply.
    const auto taken = [&](int s) { return room + R::queue + 8 * s; };
    const auto passed = [&](int s) { return room + R::queue + 16 + 8 * s; };
    auto* const turns = reinterpret_cast<volatile uint32_t*>(ring_room + R::queue + 32);
    const uint32_t rank = Group > 1 ? cluster_rank() : 0, high = rank / Wide, across = rank % Wide;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    // What lies in the workspace is not touched before the kernel begins.
    constexpr bool at_once = split || (cuts > 1 && !Layout::holds);
    if constexpr (at_once) ready.begin();
    uint32_t own = 0;  // of the first warp
    if (threadIdx.x == 0) {
        if constexpr (split) own = atomicAdd(counters, 1u);
        fetch_map(map_a);
        fetch_map(map_b);
        for (int s = 0; s < Stages; s++) {
            init_barrier(full(s), 1);
            init_barrier(empty(s), R::readers * (Pair + Wide - 1));
        }
        for (int s = 0; split && s < 2; s++) {
            init_barrier(taken(s), 1);
            init_barrier(passed(s), R::warps);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if constexpr (Group > 1)
        meet_cluster();
    else
        __syncthreads();

    const uint32_t first = grid.block / Group, stride = grid.blocks / Group;
    const auto steps_of = [&](int cut) {
        const int left = all_steps - cut * cut_steps;
        return left < cut_steps ? left : cut_steps;
    };
    int stage = 0, slot = 0;
    uint32_t phase = 0, slot_phase = 0;
    const auto next_stage = [&] {
        if (++stage == Stages) stage = 0, phase ^= 1;
    };
    const auto next_slot = [&] {
        if (slot ^= 1; slot == 0) slot_phase ^= 1;
    };
    if (warp < 4) {
        if constexpr (R::deals)
            asm volatile(
                "setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(R::producer_registers + Ready::more));
        if constexpr (split) own = __shfl_sync(~0u, own, 0);
        if (!at_once && warp > 0) ready.begin();
        if (Ready::elects ? leads_copies(warp) : threadIdx.x == 0) {
            bool all = false;
            const auto copy = [&](const Place& place, int begin, int steps) {
                const int i0 = int(place.i0) + int(high) * BM,
                          j0 = int(place.j0) + int(across) * BN;
                uint32_t every_row = 0;
#pragma unroll
                for (int y = 0; y < Pair; y++) every_row |= 1u << y * Wide;
                const uint32_t row_blocks = ((1u << Wide) - 1) << high * Wide,
                               column_blocks = every_row << across;
                const int az = Layout::a_batched ? int(place.batch) : 0,
                          bz = Layout::b_batched ? int(place.batch) : 0;
#pragma unroll 1
                for (int s = 0; s < steps; s++, next_stage()) {
                    const int k0 = (begin + s) * depth;
                    const uint32_t as = room + stage * R::stage_bytes, bs = as + R::a_bytes;
                    ready.reach(all, i0 + BM, j0 + BN, k0 + depth);
                    wait_barrier(empty(stage), phase ^ 1);
                    arrive_expecting(full(stage), R::stage_bytes);
                    copy_tile<R, BM, Layout::a_along_k, 128, Wide>(as, map_a, i0, k0, az,
                                                                   full(stage), across, row_blocks);
                    copy_tile<R, BN, Layout::b_along_k, R::b_line, Pair>(
                        bs, map_b, j0, k0, bz, full(stage), high, column_blocks);
                }
            };
            ready();
            if constexpr (split) {
                for (;; next_slot()) {
                    wait_barrier(passed(slot), slot_phase ^ 1);
                    turns[slot] = own;
                    arrive_at<1>(taken(slot), 0);
                    if (own >= Turns::end) break;
                    const uint32_t next =
                        atomicAdd(counters, 1u);  // comes while this one is copied
                    const Turns turn(own);
                    if (!turn.adds)
                        copy(Place(turn.which * Place::tiles + turn.tile),
                             int(turn.which) * cut_steps, steps_of(int(turn.which)));
                    own = next;
                }
            } else {
                for (uint32_t u = first; u < Place::tiles; u += stride)
                    copy(Place(u), 0, all_steps);
            }
            ready.end();
        } else if (Ready::beside > 0 && warp > 0) {
            ready.copy_rest();
        }
        __syncwarp();
    } else {
        if constexpr (R::deals)
            asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(R::consumer_registers -
                                                                     Ready::more / 2));
        const uint32_t mine = threadIdx.x - 128, group = mine / 128;
        const uint32_t mine_room = room + R::staging + (warp - 4) * R::warp_bytes;
        const bool packed = put.packed();
        int before = 0;
        const auto release = [&](int s) {
            if constexpr (Layout::words) __syncwarp();  // every lane has read its words
            if constexpr (Wide == 1) {
                if (lane < Pair) arrive_at<Pair>(empty(s), lane);
            } else {  // at all that may copy to this one: its column, and the others of its row
                const uint32_t other = lane - Pair;
                if (lane < Pair + Wide - 1)
                    arrive_at<Group>(empty(s), lane < Pair
                                                   ? lane * Wide + across
                                                   : high * Wide + other + (other >= across));
            }
        };
        // A stage's products onto some sums, to which they are added but for the first of a cut.
        const auto multiply = [&](float (&to)[sums], bool adds) {
            wait_barrier(full(stage), phase);
            const uint32_t as = room + stage * R::stage_bytes, bs = as + R::a_bytes;
            constexpr int a_step = Layout::a_along_k ? 2 : 128,
                          b_step = Layout::b_along_k ? 2 : R::b_line;
            const uint64_t b =
                tile_descriptor<R::b_line>(bs, Layout::b_along_k ? 16 : 64 * R::b_line);
            if constexpr (Layout::words) {
                // In other registers than the products before, which still read theirs: beside the
                // most sums there are some for half a stage, whose products are waited for.
#pragma unroll
                for (int begin = 0; begin < 4; begin += R::word_steps) {
                    uint32_t a[R::word_steps][4];
                    read_words<Layout>(a, as + group * 8192, begin);
                    begin_products();
#pragma unroll
                    for (int y = 0; y < R::word_steps; y++) {
                        const int k = begin + y;
                        Layout::template step<0>(to, a[y], b + k * b_step, k > 0 || adds);
                    }
                    if constexpr (R::word_steps < 4) {
                        commit_products();
                        wait_products<1>();
                    }
                }
                if constexpr (R::word_steps < 4) return;
            } else {
                const uint64_t a = tile_descriptor(Layout::own ? as : as + group * 8192,
                                                   Layout::a_along_k ? 16 : 8192);
                begin_products();
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    Layout::template step<0>(to, a + k * a_step, b + k * b_step, k > 0 || adds);
                    if constexpr (Layout::own)
                        Layout::template step<sums / 2>(to, a + 512 + k * a_step, b + k * b_step,
                                                        k > 0 || adds);
                }
            }
            commit_products();
        };
        const auto keep = [&](const float (&acc)[sums], Four* to) {
#pragma unroll
            for (int lot = 0; lot < lots; lot++) {
                Four four;
#pragma unroll
                for (int y = 0; y < 4; y++) four.at[y] = acc[4 * lot + y];
                to[lot * threads] = four;
            }
        };
        const auto row_of = [&](const Place& place, int of) {
            const int64_t row = Layout::turned ? turned_row(of % 4) : of % 4 * 16;
            return place.i0 + int64_t(high) * BM + of / 4 * 64 + row;
        };
        if constexpr (split) {
            constexpr int pieces = R::warps * (BN / 64),
                          share = (pieces + Layout::adders - 1) / Layout::adders;
            static_assert(share <= R::warps);
            for (;; next_slot()) {
                wait_barrier(taken(slot), slot_phase);
                __syncwarp();  // no lane still waits when another lets the slot be filled again
                uint32_t t = 0;
                if (lane == 0) {
                    t = turns[slot];
                    arrive_at<1>(passed(slot), 0);
                }
                t = __shfl_sync(~0u, t, 0);
                if (t >= Turns::end) break;
                const Turns turn(t);
                const auto part_of = [&](int part) {
                    return reinterpret_cast<Four*>(parts) +
                           (int64_t(turn.tile) * Parts + part) * lots * threads;
                };
                if (!turn.adds) {
                    const int steps = steps_of(int(turn.which));
                    float acc[sums];
                    hold(acc);
#pragma unroll(Layout::words&& R::word_steps == 4 ? 2 : 1)
                    for (int s = 0; s < steps; s++, next_stage()) {
                        multiply(acc, s > 0);
                        if (s > 0) {
                            wait_products<1>();
                            release(before);
                        }
                        before = stage;
                    }
                    wait_products<0>();
                    hold(acc);
                    release(before);
                    keep(acc, part_of(int(turn.which)) + mine);
                    __syncwarp();
                    if (lane == 0) add_release(counters + 2 + turn.tile, 1u);
                    continue;
                }
                // A warp adds 16 rows of 64 columns, which another held.
                const int piece = int(turn.which) * share + warp - 4;
                if (warp - 4 >= share || piece >= pieces) continue;
                const int of = piece % R::warps, column = piece / R::warps;
                if (lane == 0) wait_count(counters + 2 + turn.tile, Parts * R::warps);
                __syncwarp();
#pragma unroll(R::deals ? 2 : 1)
                for (int lot = 0; lot < 8; lot++) {
                    Four from[Parts];
#pragma unroll
                    for (int part = 0; part < Parts; part++)
                        from[part] = part_of(part)[(8 * column + lot) * threads + of * 32 + lane];
#pragma unroll
                    for (int part = 1; part < Parts; part++)
#pragma unroll
                        for (int y = 0; y < 4; y++) from[0].at[y] += from[part].at[y];
                    (Layout::turned ? leave_turned : leave_sums)(from[0].at, mine_room, lot);
                }
                const Place place(turn.tile);
                const int64_t row0 = row_of(place, of), col0 = place.j0 + 64 * column;
                if constexpr (Layout::turned)
                    put_turned<Shape>(mine_room, put, place.batch, col0, row0);
                else
                    put_cells<Shape, R::deals && Put::few>(mine_room, put, packed, place.batch,
                                                           row0, col0);
            }
            // The last block leaves all counters at 0.
            auto* const last = turns + 2;
            sync_some<1, threads>();
            if (mine == 0) *last = atomicAdd(counters + 1, 1u) == grid.blocks - 1;
            sync_some<1, threads>();
            if (*last)
                for (int64_t x = mine; x < Place::tiles + 2; x += threads)
                    clear_counter(counters + x);
            return;
        }
        if constexpr (Layout::own) {
            // Tiles come to the warpgroups in turns: while one's results leave, the tensor cores
            // have the other's stages. One begins when the other has all of its own: a stage is
            // waited for in its next phase alone.
            static_assert(cuts == 1 && heights == 2);
            const auto pass = [&] {  // over the stages of a tile of the other
                stage += all_steps % Stages;
                phase ^= all_steps / Stages % 2;
                if (stage >= Stages) stage -= Stages, phase ^= 1;
            };
            float acc[sums];
            if (group == 1) pass();
            for (uint32_t u = first + group * stride; u < Place::tiles; u += 2 * stride, pass()) {
                hold(acc);
                if (u != first) sync_as<threads>(2 + group);
#pragma unroll 1
                for (int s = 0; s < all_steps; s++, next_stage()) {
                    multiply(acc, s > 0);
                    if (s > 0) {
                        wait_products<1>();
                        release(before);
                    }
                    before = stage;
                }
                if (Place::tiles - u > stride) arrive_as<threads>(3 - group);
                wait_products<0>();
                hold(acc);
                release(before);
                wait_before_kernel();
                const Place place(u);
                const int64_t row0 = row_of(place, warp % 4);
                if constexpr (Put::lines) {
                    if (aligned16(put.line(0, 0, 0))) {
#pragma unroll
                        for (int y = 0; y < 2; y++) {
                            float half[sums / 2];
#pragma unroll
                            for (int x = 0; x < sums / 2; x++) half[x] = acc[y * sums / 2 + x];
                            const int64_t row = row0 + 64 * y;
                            store_lines(half, mine_room, put.line(place.batch, row, place.j0),
                                        Put::step, Shape::m - row, Shape::n - place.j0);
                        }
                        continue;
                    }
                }
                put_lines<Shape, R::deals, BN, Layout::turned>(acc, mine_room, put, packed,
                                                               place.batch, row0, place.j0);
            }
        } else {
            // A cut of many steps begins in other registers, each as text of its own: else the
            // assembler would let products wait for each other. Of 192 columns there are too few.
            constexpr bool alternates =
                cuts > 1 && Layout::holds && cut_steps >= 8 && BN <= 128 && !Layout::words;
            constexpr bool alternate_words = Layout::words && R::word_steps == 4;
            float acc[sums], other[alternates ? sums : 1], total[Layout::holds ? sums : 1];
            // The second group begins some steps behind the first and stays there: while one stores
            // its sums the other has the tensor cores to itself.
            const bool several = R::staggers && Place::tiles > stride;
            bool leads = several && group == 0;
            if (several && group == 1) sync_some<2, threads>();
            const auto lead = [&](bool now) {
                if (leads && now) {
                    arrive_as<threads>(2);
                    leads = false;
                }
            };
            for (uint32_t u = first; u < Place::tiles; u += stride) {
                const Place place(u);
                if constexpr (alternates) {
#pragma unroll
                    for (int x = 0; x < sums; x++) total[x] = other[x] = 0;  // no cut's is -0
                    // The sums of a cut are added while the next one's first products run.
                    const auto one_cut = [&](float (&now)[sums], float (&then)[sums], int cut) {
                        const int steps = steps_of(cut);
                        hold(now);
                        multiply(now, false);
                        wait_products<1>();
                        hold(then);
                        if (cut > 0) release(before);
#pragma unroll
                        for (int x = 0; x < sums; x++) total[x] += then[x];
                        before = stage;
                        lead(steps == 1);
                        next_stage();
#pragma unroll 1
                        for (int s = 1; s < steps; s++, next_stage()) {
                            multiply(now, true);
                            wait_products<1>();
                            release(before);
                            before = stage;
                            lead(s + 1 == Stages / 2 || s + 1 == steps);
                        }
                    };
#pragma unroll
                    for (int cut = 0; cut + 1 < cuts; cut += 2) {
                        one_cut(acc, other, cut);
                        one_cut(other, acc, cut + 1);
                    }
                    if constexpr (cuts % 2) one_cut(acc, other, cuts - 1);
                    wait_products<0>();
                    hold(acc);
                    hold(other);
                    release(before);
#pragma unroll
                    for (int x = 0; x < sums; x++) acc[x] = total[x] + (cuts % 2 ? acc : other)[x];
                } else {
                    Four* const kept =
                        reinterpret_cast<Four*>(parts) + (grid.block * (lots * threads) + mine);
#pragma unroll 1
                    for (int cut = 0; cut < cuts; cut++) {
                        const int steps = steps_of(cut);
                        hold(acc);
                        const auto one_step = [&](int s) {
                            multiply(acc, s > 0);
                            if (s > 0) {
                                wait_products<1>();
                                release(before);
                            }
                            before = stage;
                            lead(s + 1 == Stages / 2 || s + 1 == steps);
                            next_stage();
                        };
                        // Words of A lie in other registers from step to step. Where one of an odd
                        // number were left over, of which the assembler does not know whether it is
                        // there, products would wait for each other: that is the first one.
                        int s = 0;
                        if constexpr (alternate_words && cuts > 1) {
                            if (steps % 2) {
                                one_step(s++);
                                wait_products<0>();
                                hold(acc);
                            }
#pragma unroll 1
                            for (; s < steps; s += 2) {
                                one_step(s);
                                one_step(s + 1);
                            }
                        } else {
#pragma unroll(alternate_words ? 2 : 1)
                            for (; s < steps; s++) one_step(s);
                        }
                        wait_products<0>();
                        hold(acc);
                        release(before);
                        if constexpr (cuts > 1 && Layout::holds) {
#pragma unroll
                            for (int x = 0; x < sums; x++)
                                total[x] = (cut > 0 ? total[x] : 0) + acc[x];
                        } else if constexpr (cuts > 1) {
                            if (cut > 0) {
#pragma unroll
                                for (int lot = 0; lot < lots; lot++) {
                                    const Four four = kept[lot * threads];
#pragma unroll
                                    for (int y = 0; y < 4; y++)
                                        acc[4 * lot + y] = four.at[y] + acc[4 * lot + y];
                                }
                            }
                            if (cut + 1 < cuts) keep(acc, kept);
                        }
                    }
                    if constexpr (cuts > 1 && Layout::holds) {
#pragma unroll
                        for (int x = 0; x < sums; x++) acc[x] = total[x];
                    }
                }
                wait_before_kernel();
                const int64_t row0 = row_of(place, warp - 4),
                              col0 = place.j0 + int64_t(across) * BN;
                if constexpr (Put::lines) {
                    if (aligned16(put.line(0, 0, 0))) {
                        store_lines(acc, mine_room, put.line(place.batch, row0, col0), Put::step,
                                    Shape::m - row0, Shape::n - col0);
                        continue;
                    }
                }
                put_lines<Shape, R::deals, BN, Layout::turned>(acc, mine_room, put, packed,
                                                               place.batch, row0, col0);
            }
        }
    }
    if constexpr (Group > 1)
        sync_cluster();  // no block leaves while another writes or arrives there
}

}  // namespace aicf
