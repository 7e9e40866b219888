// Gradients of rows together with sums over rows of what they are made from: a norm's, whose weight
// and bias take sums of each column. Rows are read once. A block takes rows that one subtree of the
// tree's order joins, a lane of a leaf after the other, and keeps the sums of its columns; what
// blocks leave is joined by all of them at the end.
#pragma once

#include "columns.cuh"
#include "coming_rows.cuh"
#include "nn.cuh"
#include "twos.cuh"

namespace aicf {

/// i, below Count, with its bits in reverse.
template <int Count>
__device__ __forceinline__ int reversed(int i) {
    int low = 0;
#pragma unroll
    for (int bit = 1; bit < Count; bit *= 2) low += i & bit ? Count / 2 / bit : 0;
    return low;
}

/// Which rows a team takes: of each leaf those lanes that are `own` modulo `apart`, in the order in
/// which halving joins them.
template <int Apart>
struct LanesOf {
    static constexpr int count = int(kTreeLanes) / Apart;
    static constexpr int levels = count > 64   ? 7
                                  : count > 32 ? 6
                                  : count > 16 ? 5
                                  : count > 8  ? 4
                                  : count > 4  ? 3
                                  : count > 2  ? 2
                                  : count > 1  ? 1
                                               : 0;
    /// The row of a leaf that comes at place `at`, 4 of each lane.
    __device__ __forceinline__ static int row(int at) {
        const int lane = reversed<count>(at / 4);
        return Apart * lane + int(kTreeLanes) * (at % 4);
    }
};

/// The sums of columns that a thread has elements of: of the lane that it is at, and, in shared
/// memory, of subtrees that wait for their other half.
template <class A, class Row, int Sums, int Threads>
struct ColumnSums {
    static constexpr int V = Row::side, pieces = Row::turns * Row::lines, fours = V / 4;
    typedef Pack<A, 4> Four;
    A now[Sums][pieces][V];

    __device__ __forceinline__ static Four& at(A* held, int depth, int sum, int piece, int four) {
        return reinterpret_cast<Four*>(
            held)[(((depth * Sums + sum) * Row::some + piece) * fours + four) * Threads +
                  threadIdx.x];
    }
    /// body(four of now, sum, piece, four)
    template <class Body>
    __device__ __forceinline__ void each(const Body& body) {
#pragma unroll
        for (int sum = 0; sum < Sums; sum++)
            each_piece<Row>([&](int piece, int) {
#pragma unroll
                for (int four = 0; four < fours; four++)
                    body(now[sum][piece] + 4 * four, sum, piece, four);
            });
    }
    __device__ __forceinline__ void join(A* held, int depth) {
        each([&](A* own, int sum, int piece, int four) {
            const Four before = at(held, depth, sum, piece, four);
#pragma unroll
            for (int c = 0; c < 4; c++) own[c] = before.at[c] + own[c];
        });
    }
    /// Lane `i` is done, and not the last.
    __device__ __forceinline__ void carry(A* held, int i) {
        int depth = 0;
        for (; i >> depth & 1; depth++) join(held, depth);
        each([&](const A* own, int sum, int piece, int four) {
            at(held, depth, sum, piece, four) = {own[0], own[1], own[2], own[3]};
        });
    }
    /// Nothing has been added: -0 leaves any number as it is.
    __device__ __forceinline__ void clear() {
        each([&](A* own, int, int, int) {
#pragma unroll
            for (int c = 0; c < 4; c++) own[c] = A(-0.0f);
        });
    }
    /// Those of a sum to where columns lie side by side.
    __device__ __forceinline__ void put(A* to, int sum) const {
        each_piece<Row>([&](int piece, int i) {
#pragma unroll
            for (int four = 0; four < fours; four++) {
                const A* const own = now[sum][piece] + 4 * four;
                *reinterpret_cast<Four*>(to + i + 4 * four) = {own[0], own[1], own[2], own[3]};
            }
        });
    }
};

/// Sum `Which` of some columns, once all parts are there: ends.put<Which>(column, v). `Each`: of a
/// thread, one or four.
template <int Sums, int Which, int Columns, int Each, int Pieces, int64_t N, int Threads, class A,
          class Ends>
__device__ __forceinline__ void end_sums(A* held, A* const (&parts)[Sums], int which, int strip,
                                         const Ends& ends) {
    if constexpr (Which < Sums) {
        if (which != Which)
            return end_sums<Sums, Which + 1, Columns, Each, Pieces, N, Threads>(held, parts, which,
                                                                                strip, ends);
        const int64_t first = int64_t(strip) * Columns * Each, there = N - first;
        if constexpr (Each == 4) {
            const Pack<A, 4> total =
                join_pieces_of_four<SumOf<A>, Columns, Pieces, N, Threads / Columns>(
                    held, parts[Which] + first, there);
            if (const int i = 4 * int(threadIdx.x); i < 4 * Columns && i < there)
#pragma unroll
                for (int c = 0; c < 4; c++) ends.template put<Which>(first + i + c, total.at[c]);
        } else {
            const A total = join_pieces<SumOf<A>, Columns, Pieces, N, Threads / Columns>(
                held, parts[Which] + first, there);
            if (int(threadIdx.x) < Columns && int(threadIdx.x) < there)
                ends.template put<Which>(first + threadIdx.x, total);
        }
    }
}

/// All sums of columns, by all blocks, once `Units` units are there, of which each of `Blocks`
/// blocks has left a part. Three counters: units that are taken, parts that are there, blocks that
/// are done.
template <int Sums, int Units, int Blocks, int Each, int N, int Threads, class A, class Ends>
__device__ __forceinline__ void join_units(const Grid& grid, A* held, A* const (&parts)[Sums],
                                           uint32_t* counters, Ends ends) {
    constexpr int columns = Units > 1024  ? 8
                            : Units > 512 ? 16
                                          : 32,
                  strips = (N + columns * Each - 1) / (columns * Each);
    if (int(grid.block) < Sums * strips) {
        if (threadIdx.x == 0) wait_count(counters + 1, uint32_t(Units * Blocks));
        __syncthreads();
        for (int task = int(grid.block); task < Sums * strips; task += int(grid.blocks))
            end_sums<Sums, 0, columns, Each, Units, N, Threads>(held, parts, task / strips,
                                                                task % strips, ends);
    }
    if (threadIdx.x == 0 && atomicAdd(counters + 2, 1u) == grid.blocks - 1)
        for (int k = 0; k < 3; k++) clear_counter(counters + k);
}

/// The sums of a row that its gradient takes: of g, where `Center`, and of g v. A warp has them at
/// once. Warps of a block show each other what leaves come to, and go on to the next row before
/// they ask for the sums: four rows in turn have barriers and places of their own, since who asks
/// for row r may be while others are at r + 2.
template <class A, class Team, bool Center>
struct RowTotals {
    typedef typename Team::Row Row;
    static constexpr bool block = Team::words > 0;
    static constexpr int count = Center ? 2 : 1, leaves = Row::leaves, places = 4,
                         each = count * leaves,
                         words = block ? (places * each + 3) / 4 * 4 + 2 * places : 0;
    struct Known {
        A of[block ? 1 : count];
    };
    A* shared;
    uint32_t place0, barriers;

    __device__ __forceinline__ explicit RowTotals(A* from) : shared(from), place0(0), barriers(0) {
        if constexpr (block) {
            place0 = shared_address(from);
            barriers = place0 + 4 * (words - 2 * places);
            if (threadIdx.x == 0)
                for (int k = 0; k < places; k++) init_barrier(barriers + 8 * k, blockDim.x / 32);
        }
    }
    __device__ __forceinline__ uint32_t barrier(uint32_t number) const {
        return barriers + number % places * 8;
    }
    /// Of the team's row `number`.
    __device__ __forceinline__ Known show(Team& team, const Row& v, const Row& g, uint32_t number) {
        const Row product = team.combine(g, v, [](A a, A b) { return a * b; });
        Known known = {};
        if constexpr (block) {
            A of[count][Row::turns];
            if constexpr (Center) g.template leaf_results<SumOf<A>>(of[0]);
            product.template leaf_results<SumOf<A>>(of[count - 1]);
            const uint32_t place = number % places * each;
            __syncwarp();  // all have read what was here
            if (threadIdx.x % 32 == 0) {
#pragma unroll
                for (int k = 0; k < count; k++)
#pragma unroll
                    for (int turn = 0; turn < Row::turns; turn++)
                        if (const int leaf = Row::leaf_of(turn); leaf < leaves)
                            shared[place + k * leaves + leaf] = of[k][turn];
                arrive_at<1>(barrier(number), 0);
            }
        } else {
            if constexpr (Center) known.of[0] = team.template reduce<SumOf<A>>(g);
            known.of[count - 1] = team.template reduce<SumOf<A>>(product);
        }
        return known;
    }
    __device__ __forceinline__ void get(const Known& known, uint32_t number,
                                        A (&sums)[count]) const {
        if constexpr (block) {
            wait_barrier(barrier(number), number / places % 2);
            const A* const here = shared + number % places * each;
            const int lane = threadIdx.x % 32;
            constexpr bool both = count == 2 && leaves <= 16;  // by a half of the warp each
            constexpr int asked = both ? 1 : count;
#pragma unroll
            for (int k = 0; k < asked; k++) {
                const int leaf = both ? lane % 16 : lane;
                A mine = leaf < leaves ? here[(both ? lane / 16 : k) * leaves + leaf]
                                       : SumOf<A>::missing();
#pragma unroll
                for (int s = 1; s < leaves; s *= 2)
                    mine = SumOf<A>::join(mine, __shfl_xor_sync(0xffffffffu, mine, s));
                sums[k] = __shfl_sync(0xffffffffu, mine, 0);
                if constexpr (both) sums[1] = __shfl_sync(0xffffffffu, mine, 16);
            }
        } else {
#pragma unroll
            for (int k = 0; k < count; k++) sums[k] = known.of[k];
        }
    }
};

/// What a block, or a cluster, takes next, the first that no other has taken. A thread asks for it,
/// of a cluster's first block, tells all once it knows, and all go on meanwhile. It tells when all
/// have the one before.
template <int Blocks, int Asker = 0>
struct Taken {
    uint32_t (&shared)[4];
    uint32_t place, turn = 0, answer = 0;
    __device__ __forceinline__ explicit Taken(uint32_t (&room)[4])
        : shared(room), place(shared_address(room)) {
        if (threadIdx.x == 0) init_barrier(place + 8, 1);
    }
    __device__ __forceinline__ void ask(uint32_t* counter) {
        if (threadIdx.x == Asker && blockIdx.x % Blocks == 0) answer = atomicAdd(counter, 1u);
    }
    __device__ __forceinline__ void tell() {
        if (threadIdx.x != Asker) return;
        if constexpr (Blocks == 1) {
            shared[0] = answer;
            arrive_at<1>(place + 8, 0);
        } else {
            arrive_expecting(place + 8, 4);
            if (blockIdx.x % Blocks == 0)
                for (int rank = 0; rank < Blocks; rank++)
                    send(address_in(place, rank), answer, address_in(place + 8, rank));
        }
    }
    __device__ __forceinline__ int next() {
        if constexpr (Blocks == 1)
            wait_barrier(place + 8, turn++ % 2);
        else
            wait_barrier_of_cluster_together(place + 8, turn++ % 2);
        return int(shared[0]);
    }
};

/// A row of numbers of E, in so many bits each.
template <class E, class Row>
struct StoredRow {
    static constexpr int V = Row::side;
    Words<E, V> piece[Row::turns * Row::lines];
    __device__ __forceinline__ Row row() const {
        Row all = {};
        each_piece<Row>([&](int k, int) { piece[k].open(all.a[k / Row::lines][k % Row::lines]); });
        return all;
    }
    __device__ __forceinline__ void fill(int k, float x) {
        float all[V];
#pragma unroll
        for (int c = 0; c < V; c++) all[c] = x;
        piece[k] = Words<E, V>::of(all);
    }
};
template <class Row>
struct StoredRow<float, Row> {
    float piece[Row::turns * Row::lines][Row::side];
    __device__ __forceinline__ Row row() const {
        Row all = {};
        each_piece<Row>([&](int k, int) {
#pragma unroll
            for (int c = 0; c < Row::side; c++)
                all.a[k / Row::lines][k % Row::lines][c] = piece[k][c];
        });
        return all;
    }
    __device__ __forceinline__ void fill(int k, float x) {
#pragma unroll
        for (int c = 0; c < Row::side; c++) piece[k][c] = x;
    }
};

/// What is the same for all rows: a thread's pieces in registers, or those of all lanes of a team
/// in shared memory.
template <class Row, class Same, bool Shared, int Lanes>
struct SameOfRows {
    static constexpr int bytes = 0;
    Same same[Row::turns * Row::lines];
    __device__ __forceinline__ explicit SameOfRows(char*) {}
    __device__ __forceinline__ Same& at(int k) { return same[k]; }
    __device__ __forceinline__ static bool puts() { return true; }
};
template <class Row, class Same, int Lanes>
struct SameOfRows<Row, Same, true, Lanes> {
    static constexpr int bytes = (Row::some * Lanes * int(sizeof(Same)) + 15) / 16 * 16;
    Same* const same;
    __device__ __forceinline__ explicit SameOfRows(char* shared)
        : same(reinterpret_cast<Same*>(shared) + threadIdx.x % Lanes) {}
    __device__ __forceinline__ Same& at(int k) { return same[k * Lanes]; }
    __device__ __forceinline__ static bool puts() { return threadIdx.x < Lanes; }
};

/// normalize_bwd_sums where V neighbours may move together, or may not.
template <class A, class Team, bool Center, int Sums, int Parts, int Threads, class E, bool Behind,
          int Slots, bool Together, class Shape, class Make, class Rstd, class Put, class Ends>
__device__ __forceinline__ void normalize_bwd_parts(const Grid& grid, A* const (&parts)[Sums],
                                                    uint32_t* counters, Make make, Rstd rstd,
                                                    Put put, Ends ends) {
    typedef typename Team::Row Row;
    constexpr int V = Row::side, pieces = Row::turns * Row::lines, n = int(Shape::n);
    typedef decltype(make(0)) Made;
    typedef typename Made::template Same<V> Same;
    typedef typename OneOf<(Slots > 0), RowsToShared<Team, Made, n, Slots, Together>,
                           RowsToRegisters<Team, Made, Together>>::type Coming;
    constexpr int teams = Team::count(Threads),
                  leaves = int((Shape::rows + kTreeLeaf - 1) / kTreeLeaf), units = leaves * Parts;
    typedef LanesOf<teams * Parts> Lanes;
    typedef ColumnSums<A, Row, Sums, Threads> Columns;
    typedef RowTotals<A, Team, Center> Totals;
    constexpr int total = 4 * Lanes::count;  // rows of a team in a unit
    static_assert(Coming::ahead + 1 < total || (Coming::ahead == total && teams > 1));
    constexpr bool even = Shape::rows % kTreeLeaf == 0;
    typedef typename RowNumber<(Shape::rows < (1 << 30))>::type Number;
    extern __shared__ __align__(16) char bytes[];
    __shared__ __align__(16) uint32_t place[4];
    Coming coming(bytes + Totals::words * int(sizeof(A)));
    const int own = teams == 1 ? 0 : int(threadIdx.x) / (Threads / teams);

    const auto exists = [&](Number r) { return even || r < Number(Shape::rows); };
    const auto first_of = [&](int unit) {
        return Number(leaves - 1 - unit / Parts) * Number(kTreeLeaf) + own * Parts + unit % Parts;
    };
    const auto made = [&](Number r) { return make(exists(r) ? r : Number(Shape::rows - 1)); };
    A next_scale = A(0);
    const auto load_beside = [&](Number r) {
        r = (exists(r) ? r : Number(Shape::rows - 1)) + own_zero();
        coming.ask_beside(make(r));
        next_scale = rstd(r);
    };
    typedef SameOfRows<Row, Same, (Slots > 0), Team::lanes> Sames;
    Sames same(bytes + Totals::words * int(sizeof(A)) + Coming::bytes(Threads));
    A* const held =
        reinterpret_cast<A*>(bytes + Coming::bytes(Threads) + Sames::bytes) + Totals::words;
    Team team{reinterpret_cast<A*>(bytes)};
    Taken<1> taken(place);
    Totals totals(reinterpret_cast<A*>(bytes));
    begin_kernel();
    // A block has no unit of its own: one that finds no room yet must not keep others waiting.
    taken.ask(counters);
    if (Sames::puts())
        each_piece<Row>([&](int k, int i) { same.at(k) = make(0).template alike<V, Together>(i); });
    __syncthreads();
    taken.tell();
    int unit = taken.next();
    if constexpr (teams > 1) __syncthreads();  // all have it before a thread tells of the next
    Number asked_from = first_of(unit), rows[Coming::ahead + 1];  // this row and those that come
    if (unit < units) {
        load_beside(asked_from + Lanes::row(0));
#pragma unroll
        for (int k = 0; k < Coming::ahead; k++) {
            rows[k] = asked_from + Lanes::row(k);
            coming.template ask<Parts, even>(made, rows[k], k);
        }
    }
    struct Begun {
        StoredRow<E, Row> v, g;
        typename Totals::Known known;
        A scale;
        Number r;
    } before = {};
    const auto finish = [&](const Begun& row, uint32_t its_number, bool stores) {
        A of[Totals::count];
        totals.get(row.known, its_number, of);
        A shift = A(0);
        if constexpr (Center) shift = by_count<Shape::n>(of[0]);
        const A slope = by_count<Shape::n>(of[Totals::count - 1]), scale = row.scale;
        const auto dx = team.combine(row.g.row(), row.v.row(),
                                     [=](A a, A b) { return scale * ((a - shift) - b * slope); });
        if (!stores || !exists(row.r)) return;
        const auto out = put(row.r);
        if constexpr (Together && decltype(put(0))::spans)
            each_piece<Row>([&](int k, int i) {
                out.template across<V, true>(i, dx.a[k / Row::lines][k % Row::lines]);
            });
        else
            team.put(dx, out);
    };
    uint32_t turn = 0;  // of rows, four at a time
    while (unit < units) {
        const int leaf = leaves - 1 - unit / Parts, part = unit % Parts;
        Columns sums;
#pragma unroll 1
        for (int i = 0; i < Lanes::count; i++, turn++) {
            sums.clear();
#pragma unroll(Together&& Slots == 0 && pieces * V <= 8 ? 4 : 1)
            for (int j = 0; j < 4; j++) {
                const int at = 4 * i + j;
                const uint32_t number = 4 * turn + j;
                const Made row = make(0);
                Begun now = {};
                now.r = rows[0];
                const bool there = exists(now.r);
                coming.wait(number);
                now.scale = next_scale;
                each_piece<Row>([&](int k, int i) {
                    A t[Sums][V];
                    row.open(coming.get(row, number, k, i), same.at(k), now.v.piece[k],
                             now.g.piece[k], t);
#pragma unroll
                    for (int s = 0; s < Sums; s++)
#pragma unroll
                        for (int c = 0; c < V; c++) {
                            A& sum = sums.now[s][k][c];
                            if (there) sum = sum + t[s][c];
                        }
                });
                coming.done();
                if (at == 0) {
                    taken.ask(counters);
                    if constexpr (Coming::ahead == total) taken.tell();
                }
                if (at == total - Coming::ahead) {
                    unit = taken.next();
                    if (unit < units) asked_from = first_of(unit);
                }
                rows[Coming::ahead] = asked_from + Lanes::row((at + Coming::ahead) % total);
                load_beside(rows[1]);
                if (unit < units)
                    coming.template ask<Parts, even>(made, rows[Coming::ahead],
                                                     number + Coming::ahead);
#pragma unroll
                for (int k = 0; k < Coming::ahead; k++) rows[k] = rows[k + 1];
                now.known = totals.show(team, now.v.row(), now.g.row(), number);
                if constexpr (Behind) {
                    // A warp makes something of nothing before its first row, rather than wait at a
                    // branch for its own sums.
                    if (!Totals::block || number > 0) finish(before, number - 1, number > 0);
                    before = now;
                } else {
                    finish(now, number, true);
                }
                if constexpr (Coming::ahead < total)
                    if (at == 1) taken.tell();  // before next(), at total - ahead
            }
            if (i + 1 < Lanes::count) sums.carry(held, i);
        }
#pragma unroll
        for (int depth = 0; depth < Lanes::levels; depth++) sums.join(held, depth);
        const int64_t to = int64_t(leaf * Parts + reversed<Parts>(part)) * n;
        if constexpr (teams == 1) {
#pragma unroll
            for (int s = 0; s < Sums; s++) sums.put(parts[s] + to, s);
        } else {
            __syncthreads();  // all are done with subtrees
            // Where they go is no register's business while rows are taken.
            A* const to_join = held + int(aicf::held(uint32_t(own))) * Sums * n;
#pragma unroll
            for (int s = 0; s < Sums; s++) sums.put(to_join + s * n, s);
            __syncthreads();
#pragma unroll
            for (int s = 0; s < Sums; s++)
                for (int i = threadIdx.x; i < n; i += Threads) {
                    A v[teams];
#pragma unroll
                    for (int t = 0; t < teams; t++) v[t] = held[(t * Sums + s) * n + i];
                    parts[s][to + i] = halved<SumOf<A>>(v);
                }
        }
        __syncthreads();
        if (threadIdx.x == 0) add_release(counters + 1, 1u);
    }
    if (Behind && turn > 0) finish(before, 4 * turn - 1, true);
    join_units<Sums, units, 1, 1, n, Threads>(grid, held, parts, counters, ends);
}

/// normalize_bwd_rows with sums. Of row = make(r), row.across<V, Together>(i) reads what elements i
/// to i + V - 1 are made from, row.alike<V, Together>(i) what of it is the same for all rows, and
/// row.open(some, same, y, dy, terms) makes the row's two, numbers of E, and what is summed. A
/// leaf's rows are Parts parts. `Behind`: a row's gradient is made once the sums of the next row
/// have begun, so that nothing waits for its own. Three counters.
template <class A, class Team, bool Center, int Sums, int Parts, int Threads, class E, bool Behind,
          int Slots, class Shape, class Make, class Rstd, class Put, class Ends>
__device__ __forceinline__ void normalize_bwd_sums(const Grid& grid, A* const (&parts)[Sums],
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
        normalize_bwd_parts<A, Team, Center, Sums, Parts, Threads, E, Behind, Slots, true, Shape>(
            grid, parts, counters, make, rstd, put, ends);
    else
        normalize_bwd_parts<A, Team, Center, Sums, Parts, Threads, E, Behind, Slots, false, Shape>(
            grid, parts, counters, make, rstd, put, ends);
}

}  // namespace aicf
