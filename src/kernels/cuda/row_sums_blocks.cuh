// Gradients of wide rows, which the blocks of a cluster hold together, and the sums over rows
// beside them (row_sums.cuh): a warp has a leaf of each row, its threads the same columns of all.
#pragma once

#include "copies.cuh"
#include "row_clusters.cuh"
#include "row_sums.cuh"

namespace aicf {

/// body(k, i) for all pieces of a thread, those too that lie behind the row's end: where they do no
/// harm they cost less than a branch for each.
template <class Row, class Body>
__device__ __forceinline__ void every_piece(const Body& body) {
#pragma unroll
    for (int line = 0; line < Row::lines; line++) body(line, Row::first(0, line));
}

/// The next row, in registers.
template <class Team, class Made, bool Together>
struct LeavesToRegisters {
    typedef typename Team::Row Row;
    static constexpr int ahead = 1, V = Row::side;
    typedef typename Made::template Some<V> Some;
    Some next[Row::lines];
    __device__ __forceinline__ static constexpr int bytes(int) { return 0; }
    __device__ __forceinline__ explicit LeavesToRegisters(char*) {}
    __device__ __forceinline__ void ask(const Made& row, uint32_t, bool there) {
        if (!there) return;
        each_piece<Row>([&](int k, int i) { next[k] = row.template across<V, Together>(i); });
    }
    __device__ __forceinline__ void ask_beside(const Made&) {}
    __device__ __forceinline__ void wait(uint32_t) const {}
    /// body(k, what piece k is made from)
    template <class Body>
    __device__ __forceinline__ void each(const Made&, uint32_t, const Body& body) const {
        each_piece<Row>([&](int k, int) { body(k, next[k]); });
    }
    __device__ __forceinline__ void done(uint32_t) const {}
};

/// The next rows, `Slots` of them, in shared memory, where each warp has its own leaf of them. What
/// is asked of rows is as RowsToShared has it; threads copy.
template <class Team, class Made, int Slots, bool Together>
struct LeavesToShared {
    typedef typename Team::Row Row;
    static constexpr int ahead = Slots, V = Row::side, span = int(kTreeLeaf),
                         slot = span * Made::copied;
    static_assert(slot % 16 == 0 && Row::turns == 1 && V == 4);
    __device__ __forceinline__ static constexpr int bytes(int threads) {
        return threads / 32 * Slots * slot;
    }
    typedef typename Made::template Some<V> Some;
    typename Made::Beside next = {}, beside = {};
    char* const slots;
    const int begin, lane;  // of the leaf, of the warp

    __device__ __forceinline__ explicit LeavesToShared(char* shared)
        : slots(shared + int(threadIdx.x) / 32 * Slots * slot),
          begin(int(held(uint32_t(Row::leaf_of(0) * span)))),
          lane(int(held(threadIdx.x % 32))) {}
    /// For the `number`-th row, whose slot all of the warp are done with, if it is `there`.
    __device__ __forceinline__ void ask(const Made& row, uint32_t number, bool there) {
        char* const to = slots + number % Slots * slot;
        if (there)
            row.each_copied([&](const void* x, int size, int before) {
                if constexpr (Together) {
                    copy(to + before * span, static_cast<const char*>(x), size);
                } else {
                    each_piece<Row>([&](int k, int i) {
                        auto* const own = reinterpret_cast<uint16_t*>(at(to, k, size, before));
                        const auto* const from = static_cast<const uint16_t*>(x) + i * size / 2;
#pragma unroll
                        for (int j = 0; j < V * size / 2; j++) own[j] = from[j];
                    });
                }
            });
        commit_copies();
    }
    /// Of the row behind the current one.
    __device__ __forceinline__ void ask_beside(const Made& row) { next = row.beside(); }
    __device__ __forceinline__ void wait(uint32_t) {
        beside = next;
        wait_copies<Slots - 1>();
        __syncwarp();  // what other lanes have copied, too
    }
    template <class Body>
    __device__ __forceinline__ void each(const Made& row, uint32_t number, const Body& body) const {
        char* const from = slots + number % Slots * slot;
        every_piece<Row>([&](int k, int) {
            body(k, row.template with<V>(
                        [&](int size, int before) { return at(from, k, size, before); }, beside));
        });
    }
    __device__ __forceinline__ void done(uint32_t) const { __syncwarp(); }

  private:
    __device__ __forceinline__ char* at(char* from, int k, int size, int before) const {
        return from + before * span + (k * int(kTreeLanes) + V * lane) * size;
    }
    /// 16 bytes a lane.
    __device__ __forceinline__ void copy(char* to, const char* x, int size) const {
        to += 16 * lane;
        x += begin * size + 16 * lane;
#pragma unroll
        for (int k = 0; k < span * size / 512; k++)
            if (Row::has(begin + (16 * lane + 512 * k) / size))
                copy_async<16>(to + 512 * k, x + 512 * k);
    }
};

/// The same, of rows that begin at multiples of 16 bytes: each warp has the copy engine bring its
/// own leaf of them. One more warp of the block puts what there is one of for all of a row.
template <class A, class Team, class Made, int N, int Slots>
struct LeavesByEngine {
    typedef typename Team::Row Row;
    static constexpr int ahead = Slots, V = Row::side, span = int(kTreeLeaf),
                         slot = span * Made::copied, places = 2 * Slots;
    static_assert(slot % 16 == 0 && Row::turns == 1 && V == 4);
    typedef typename Made::template Some<V> Some;
    struct alignas(16) Beside {
        typename Made::Beside beside;
        A scale;
    };
    __device__ __forceinline__ static constexpr int bytes(int threads) {
        return (threads / 32 * Slots * (slot + 8) + places * int(sizeof(Beside)) + 15) / 16 * 16;
    }
    char* const slots;
    Beside* const besides;
    const uint32_t barriers;  // of this warp's slots
    const int own;            // where this lane's elements of a slot begin
    const int begin, count;   // of the leaf's elements

    __device__ __forceinline__ explicit LeavesByEngine(char* shared)
        : slots(shared + int(uniform(threadIdx.x / 32)) * Slots * slot),
          besides(reinterpret_cast<Beside*>(shared + Row::own * Slots * slot)),
          barriers(shared_address(besides + places) + int(uniform(threadIdx.x / 32)) * Slots * 8),
          own(V * int(held(threadIdx.x % 32))),
          begin(int(uniform(uint32_t(Row::leaf_of(0) * span)))),
          count(N - begin > span ? span
                : N - begin > 0  ? N - begin
                                 : 0) {
        if (threadIdx.x % 32 == 0 && int(threadIdx.x) < 32 * Row::own)
            for (int s = 0; s < Slots; s++) init_barrier(barriers + 8 * s, 1);
    }
    /// For the `number`-th row, whose slot all of the warp are done with, if it is `there`.
    __device__ __forceinline__ void ask(const Made& row, uint32_t number, bool there) const {
        if (!there || count == 0 || !elected()) return;
        const uint32_t at = number % Slots, barrier = barriers + 8 * at;
        arrive_expecting(barrier, count * Made::copied);
        row.each_copied([&](const void* x, int size, int before) {
            copy_kept_bytes(shared_address(slots + at * slot + before * span),
                            static_cast<const char*>(x) + begin * size, count * size, barrier);
        });
    }
    /// By the one more warp, of the same row: all others are done with the one `places` before it.
    __device__ __forceinline__ void put_beside(const Beside& beside, uint32_t number) const {
        if (elected()) besides[number % places] = beside;
        __syncwarp();
    }
    __device__ __forceinline__ void wait(uint32_t number) const {
        if (count > 0) wait_barrier_together(barriers + number % Slots * 8, number / Slots % 2);
    }
    __device__ __forceinline__ A scale(uint32_t number) const {
        return besides[number % places].scale;
    }
    template <class Body>
    __device__ __forceinline__ void each(const Made& row, uint32_t number, const Body& body) const {
        const char* const from = slots + number % Slots * slot;
        const typename Made::Beside beside = besides[number % places].beside;
        every_piece<Row>([&](int k, int) {
            body(k, row.template with<V>(
                        [&](int size, int before) {
                            return from + before * span + (own + k * int(kTreeLanes)) * size;
                        },
                        beside));
        });
    }
    __device__ __forceinline__ void done(uint32_t) const { __syncwarp(); }
};

/// As ColumnSums, of the columns of a leaf.
template <class A, class Row, int Sums, int Threads>
struct LeafSums {
    static constexpr int lines = Row::lines;
    typedef Pack<A, 4> Four;
    A now[Sums][lines][4];

    __device__ __forceinline__ static Four& at(A* held, int depth, int sum, int line) {
        return reinterpret_cast<Four*>(
            held)[((depth * Sums + sum) * lines + line) * Threads + threadIdx.x];
    }
    __device__ __forceinline__ Four four(int sum, int line) const {
        Four own;
#pragma unroll
        for (int c = 0; c < 4; c++) own.at[c] = now[sum][line][c];
        return own;
    }
    __device__ __forceinline__ void join(A* held, int depth) {
#pragma unroll
        for (int sum = 0; sum < Sums; sum++)
#pragma unroll
            for (int line = 0; line < lines; line++) {
                const Four before = at(held, depth, sum, line);
#pragma unroll
                for (int c = 0; c < 4; c++) now[sum][line][c] = before.at[c] + now[sum][line][c];
            }
    }
    /// Lane `i` is done, and not the last.
    __device__ __forceinline__ void carry(A* held, int i) {
        int depth = 0;
        for (; i >> depth & 1; depth++) join(held, depth);
#pragma unroll
        for (int sum = 0; sum < Sums; sum++)
#pragma unroll
            for (int line = 0; line < lines; line++) at(held, depth, sum, line) = four(sum, line);
    }
    /// Nothing has been added: -0 leaves any number as it is.
    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int sum = 0; sum < Sums; sum++)
#pragma unroll
            for (int line = 0; line < lines; line++)
#pragma unroll
                for (int c = 0; c < 4; c++) now[sum][line][c] = A(-0.0f);
    }
    /// Those of a sum to where columns lie side by side.
    __device__ __forceinline__ void put(A* to, int sum) const {
        each_piece<Row>(
            [&](int line, int i) { *reinterpret_cast<Four*>(to + i) = four(sum, line); });
    }
};

/// The sums of a row that its gradient takes, over N elements each: of g, where `Center`, and of
/// g v. Warps show all blocks what their leaves come to, and go on to the next row; in each block
/// the warp whose turn it is, or one more, joins these and tells the others. Four rows in turn have
/// barriers and places of their own, since who asks for row r may be while others are at r + 2, and
/// what these send comes in any order. Every warp shows something of each row, if it has a leaf of
/// it or not: where all of row r + 2 is there, all warps have what they asked of row r.
template <class A, class Team, bool Center, int64_t N>
struct LeafTotals {
    typedef typename Team::Row Row;
    static constexpr int count = Center ? 2 : 1, leaves = Row::leaves, places = 4, warps = Row::own,
                         shown = Row::together,  // of all warps
        // Of neighbouring leaves a lane reads `near` one after the other, all lanes side by side.
        near = leaves > 64   ? 4
               : leaves > 32 ? 2
                             : 1,
                         lanes = (shown + near - 1) / near, room = near * lanes,
                         told = (places * count * room + 3) / 4 * 4,
                         words = told + 2 * places + 4 * places;
    static_assert(lanes <= 32);
    typedef Pack<A, count> Both;
    A* shared;
    // Kept, not made again for each row.
    const uint32_t thread, place0, barriers, own;  // own: where this warp's part of a row lies
    int turn;  // of this warp to join a row, after so many others

    __device__ __forceinline__ static uint32_t place_of(int leaf) {
        return leaf % near * lanes + leaf / near;
    }
    __device__ __forceinline__ explicit LeafTotals(A* from)
        : shared(from),
          thread(held(threadIdx.x)),
          place0(held(shared_address(from))),
          barriers(place0 + 4 * (told + 2 * places)),
          own(held(place_of(Row::leaf_of(0)))),
          turn(int(uniform(threadIdx.x / 32))) {
        static_assert(Row::turns == 1 && sizeof(A) == 4 && Team::blocks > 1);
        if (thread == 0)
            for (int k = 0; k < 2 * places; k++) init_barrier(barriers + 8 * k, 1);
    }
    /// Of what all warps show of a row.
    __device__ __forceinline__ uint32_t barrier(uint32_t number) const {
        return barriers + number % places * 8;
    }
    /// Of what that comes to.
    __device__ __forceinline__ uint32_t known(uint32_t number) const {
        return barriers + (places + number % places) * 8;
    }
    __device__ __forceinline__ Both& total(uint32_t number) const {
        return reinterpret_cast<Both*>(shared + told)[number % places];
    }
    /// Of row `number`.
    __device__ __forceinline__ void show(Team& team, const Row& v, const Row& g, uint32_t number) {
        const Row product = team.combine(g, v, [](A a, A b) { return a * b; });
        A of[count][1];
        if constexpr (Center)
            Row::template leaf_results<SumOf<A>, true>(g, product, of);
        else
            product.template leaf_results<SumOf<A>, true>(of[0]);
        const uint32_t place = number % places * room + own;
        __syncwarp();  // all lanes have read the sums of rows before, which others may now replace
        Both both;
#pragma unroll
        for (int k = 0; k < count; k++) both.at[k] = of[k][0];
        if (const uint32_t rank = thread % 32; rank < Team::blocks) {
            const uint32_t to = address_in(place0 + uint32_t(sizeof(both)) * place, rank),
                           there = address_in(barrier(number), rank);
            if constexpr (Center)
                send(to, both, there);
            else
                send(to, scalar::bits(both.at[0]), there);
        }
        // One thread of the block waits for all of a row.
        if (thread == 0) arrive_expecting(barrier(number), 4 * count * shown);
    }
    /// Once for each row, before get(): what it comes to, if it is this warp's turn.
    __device__ __forceinline__ void join_in_turn(uint32_t number) {
        if (turn-- > 0) return;
        turn = warps - 1;
        join(number);
    }
    /// The same by whoever does that for all rows.
    __device__ __forceinline__ void join(uint32_t number) const {
        // What was shown lies in shared memory, which an acquire of the block's scope orders.
        wait_barrier_together(barrier(number), number / places % 2);
        const Both* const here = reinterpret_cast<const Both*>(shared) + number % places * room;
        const int lane = thread % 32;
        A of[count][near];
#pragma unroll
        for (int c = 0; c < near; c++) {
            const bool there = near * lane + c < leaves;
            const Both both = here[c * lanes + (there ? lane : 0)];
#pragma unroll
            for (int k = 0; k < count; k++) of[k][c] = there ? both.at[k] : SumOf<A>::missing();
        }
#pragma unroll
        for (int k = 0; k < count; k++)
#pragma unroll
            for (int s = 1; s < near; s *= 2)
#pragma unroll
                for (int c = 0; c < near; c += 2 * s)
                    of[k][c] = SumOf<A>::join(of[k][c], of[k][c + s]);
        // Of two sums each of two neighbours goes on with one.
        const bool odd = count == 2 && lane % 2;
        const A own = odd ? of[count - 1][0] : of[0][0],
                other = count == 1 || odd ? of[0][0] : of[count - 1][0];
        A one = SumOf<A>::join(own, __shfl_xor_sync(0xffffffffu, other, 1));
#pragma unroll
        for (int s = 2; s * near < leaves; s *= 2)
            one = SumOf<A>::join(one, __shfl_xor_sync(0xffffffffu, one, s));
        if (lane < count) total(number).at[lane] = by_count<N>(one);
        __syncwarp();
        if (lane == 0) arrive_at<1>(known(number), 0);
    }
    /// Those sums over N.
    __device__ __forceinline__ Both get(uint32_t number) const {
        wait_barrier_together(known(number), number / places % 2);
        return total(number);
    }
};

/// normalize_bwd_sums of rows that clusters hold, where V neighbours may move together, or may not.
template <class A, class Team, bool Center, int Sums, int Parts, int Threads, class E, bool Behind,
          int Slots, bool Led, bool Together, class Shape, class Make, class Rstd, class Put,
          class Ends>
__device__ __forceinline__ void normalize_bwd_blocks(const Grid& grid, A* const (&parts)[Sums],
                                                     uint32_t* counters, Make make, Rstd rstd,
                                                     Put put, Ends ends) {
    typedef typename Team::Row Row;
    constexpr int V = Row::side, n = int(Shape::n);
    typedef decltype(make(0)) Made;
    // One more warp of the block, if `Led`, brings rows and joins what leaves come to, where rows
    // begin so that the copy engine may bring them.
    constexpr bool led = Led && Together;
    typedef
        typename OneOf<led, LeavesByEngine<A, Team, Made, n, Slots>,
                       typename OneOf<(Slots > 0), LeavesToShared<Team, Made, Slots, Together>,
                                      LeavesToRegisters<Team, Made, Together>>::type>::type Coming;
    constexpr int leaves = int((Shape::rows + kTreeLeaf - 1) / kTreeLeaf), units = leaves * Parts,
                  ahead = Coming::ahead;
    typedef LanesOf<Parts> Lanes;
    typedef LeafTotals<A, Team, Center, Shape::n> Totals;
    static_assert(Lanes::count > 1 && ahead <= 4 && V == 4 && (!led || Behind));
    constexpr bool even = Shape::rows % kTreeLeaf == 0;
    typedef typename RowNumber<(Shape::rows < (1 << 30))>::type Number;
    extern __shared__ __align__(16) char bytes[];
    __shared__ __align__(16) uint32_t place[4];
    Coming coming(bytes + Totals::words * int(sizeof(A)));
    A* const held = reinterpret_cast<A*>(bytes + Coming::bytes(Threads)) + Totals::words;
    typename Made::template Same<V> same[Row::lines];
    if (!Led || int(threadIdx.x) < Threads)
        each_piece<Row>([&](int k, int i) { same[k] = make(0).template alike<V, Together>(i); });
    Team team{reinterpret_cast<A*>(bytes)};
    Taken<Team::blocks, led ? Threads : 0> taken(place);
    Totals totals(reinterpret_cast<A*>(bytes));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    meet_cluster();

    const auto exists = [&](Number r) { return even || r < Number(Shape::rows); };
    const auto kept = [&](Number r) { return exists(r) ? r : Number(Shape::rows - 1); };
    const auto first_of = [&](int unit) {
        return Number(leaves - 1 - unit / Parts) * Number(kTreeLeaf) + unit % Parts;
    };
    A next_scale = A(0);
    const uint32_t zero = aicf::held(own_zero());
    const auto load_beside = [&](Number r) {
        if constexpr (!led) {
            r = kept(r) + zero;
            coming.ask_beside(make(r));
            next_scale = rstd(r);
        }
    };
    struct Begun {
        StoredRow<E, Row> v, g;
        A scale;
        Number r;
    } before = {};
    const auto opened = [](const StoredRow<E, Row>& stored) {
        Row all = {};
        every_piece<Row>([&](int k, int) {
            if constexpr (same_type<E, float>) {
#pragma unroll
                for (int c = 0; c < V; c++) all.a[0][k][c] = stored.piece[k][c];
            } else {
                stored.piece[k].open(all.a[0][k]);
            }
        });
        return all;
    };
    // Behind the row's end nothing is added to either sum.
    const bool beyond =
        !Row::whole && int(uniform(uint32_t(Row::leaf_of(0) + 1))) * int(kTreeLeaf) > n;
    const auto end_row = [](Begun& row) {
#pragma unroll
        for (int k = 0; k < Row::lines; k++)
            if (!Row::has(Row::first(0, k))) {
                row.v.fill(k, 0.0f);
                row.g.fill(k, -0.0f);
            }
    };
    const auto finish = [&](const Begun& row, uint32_t its_number) {
        const auto of = totals.get(its_number);
        const A shift = Center ? of.at[0] : A(0), slope = of.at[Totals::count - 1],
                scale = row.scale;
        const auto dx = team.combine(opened(row.g), opened(row.v),
                                     [=](A a, A b) { return scale * ((a - shift) - b * slope); });
        if (!exists(row.r)) return;
        const auto out = put(row.r);
        if constexpr (Together && decltype(put(0))::spans)
            each_piece<Row>([&](int k, int i) { out.template across<V, true>(i, dx.a[0][k]); });
        else
            team.put(dx, out);
    };
    // All units are taken by the counter: none waits for a cluster that has not begun.
    taken.ask(counters);
    taken.tell();
    int unit = int(uniform(uint32_t(taken.next())));
    Number next = 0;  // the first row of the lane behind this one
    if (Led && int(uniform(threadIdx.x / 32)) == Threads / 32) {
        if constexpr (led) {
            uint32_t number = 0;
            while (unit < units) {
#pragma unroll 1
                for (int i = 0; i < Lanes::count; i++) {
                    if (i == 0) taken.ask(counters);
#pragma unroll 1
                    for (int j = 0; j < 4; j++, number++) {
                        const Number r =
                            kept(first_of(unit) + Lanes::row(4 * i) + int(kTreeLanes) * j) + zero;
                        coming.put_beside({make(r).beside(), rstd(r)}, number);
                        // Others come to the row once they know the sums of the one `ahead` before
                        // it, which are told behind this, or, to the first ones, once all meet.
                        if (number == ahead - 1) sync_some<2, Threads + 32>();
                        if (number >= ahead) totals.join(number - ahead);
                    }
                    if (i == 0) taken.tell();
                }
                unit = int(uniform(uint32_t(taken.next())));
            }
            for (int k = ahead; k > 0 && number > 0; k--) totals.join(number - k);
        }
        unit = units;
    }
    if (unit < units) {
        next = first_of(unit);
#pragma unroll
        for (int k = 0; k < ahead; k++) coming.ask(make(kept(next + int(kTreeLanes) * k)), k, true);
        load_beside(next);
        if constexpr (led) sync_some<2, Threads + 32>();
    }
    uint32_t turn = 0;  // of rows, four at a time
    while (unit < units) {
        const int current = unit;
        LeafSums<A, Row, Sums, Threads> sums;
#pragma unroll 1
        for (int i = 0; i < Lanes::count; i++, turn++) {
            const Number base = next;
            if (!led && i == 0) taken.ask(counters);
            if (i + 1 == Lanes::count) {
                unit = int(uniform(uint32_t(taken.next())));
                if (unit < units) next = first_of(unit);
            } else {
                next = first_of(current) + Lanes::row(4 * (i + 1));
            }
            const bool more = unit < units;
            sums.clear();
#pragma unroll(led ? 2 : 1)
            for (int j = 0; j < 4; j++) {
                const uint32_t number = 4 * turn + j;
                const Made row = make(0);
                Begun now = {};
                now.r = base + int(kTreeLanes) * j;
                const bool there = exists(now.r);
                const bool first_row = j == 0 && turn == 0;
                coming.wait(number);
                coming.each(row, number, [&](int k, const typename Coming::Some& some) {
                    A t[Sums][V];
                    row.open(some, same[k], now.v.piece[k], now.g.piece[k], t);
#pragma unroll
                    for (int s = 0; s < Sums; s++)
#pragma unroll
                        for (int c = 0; c < V; c++) {
                            A& sum = sums.now[s][k][c];
                            if (there) sum = sum + t[s][c];
                        }
                });
                if constexpr (led)
                    now.scale = coming.scale(number);
                else
                    now.scale = next_scale;
                coming.done(number);
                if (beyond) end_row(now);
                const auto behind = [&](int k) {
                    return j + k < 4 ? base + int(kTreeLanes) * (j + k)
                                     : next + int(kTreeLanes) * (j + k - 4);
                };
                coming.ask(make(kept(behind(ahead))), number + ahead, j + ahead < 4 || more);
                load_beside(behind(1));
                if (!led && Behind && !first_row) totals.join_in_turn(number - 1);
                totals.show(team, opened(now.v), opened(now.g), number);
                if constexpr (Behind) {
                    if (!first_row) finish(before, number - 1);
                    before = now;
                } else {
                    if (!led) totals.join_in_turn(number);
                    finish(now, number);
                }
            }
            if (!led && i == 0) taken.tell();
            if (i + 1 < Lanes::count) sums.carry(held, i);
        }
#pragma unroll
        for (int depth = 0; depth < Lanes::levels; depth++) sums.join(held, depth);
        const int64_t to =
            int64_t((leaves - 1 - current / Parts) * Parts + reversed<Parts>(current % Parts)) * n;
#pragma unroll
        for (int s = 0; s < Sums; s++) sums.put(parts[s] + to, s);
        sync_some<1, Threads>();
        if (threadIdx.x == 0) add_release(counters + 1, 1u);
    }
    if (Behind && turn > 0) {
        if (!led) totals.join_in_turn(4 * turn - 1);
        finish(before, 4 * turn - 1);
    }
    sync_cluster();  // none is gone while others send to it
    join_units<Sums, units, Team::blocks, 4, n, Threads>(grid, held, parts, counters, ends);
}

/// normalize_bwd_sums of rows that clusters hold.
template <class A, class Team, bool Center, int Sums, int Parts, int Threads, class E, bool Behind,
          int Slots, bool Led, class Shape, class Make, class Rstd, class Put, class Ends>
__device__ __forceinline__ void normalize_bwd_block_sums(const Grid& grid, A* const (&parts)[Sums],
                                                         uint32_t* counters, Make make, Rstd rstd,
                                                         Put put, Ends ends) {
    constexpr int V = Team::Row::side;
    bool together = make(0).template together<V>();
    if constexpr (decltype(put(0))::spans) together = together && put(0).template together<V>();
    if constexpr (Slots > 0)
        make(0).each_copied([&](const void* x, int, int) {
            together = together && reinterpret_cast<uint64_t>(x) % 16 == 0;
        });
    if (together)
        normalize_bwd_blocks<A, Team, Center, Sums, Parts, Threads, E, Behind, Slots, Led, true,
                             Shape>(grid, parts, counters, make, rstd, put, ends);
    else
        normalize_bwd_blocks<A, Team, Center, Sums, Parts, Threads, E, Behind, Slots, Led, false,
                             Shape>(grid, parts, counters, make, rstd, put, ends);
}

}  // namespace aicf
