// Rows and the teams that take them: some lanes of a warp, a warp, or a block. A kernel is written
// once, over what a team makes of a row: take() the row; map() it or combine() two, element by
// element; reduce() it in the order of the tree; put() it. A row that fits is Held in registers, so
// that memory is read once, or kept in shared memory; a Streamed one is made anew at each use.
#pragma once

#include "reduce.cuh"

namespace aicf {

// ---- rows in registers --------------------------------------------------------------------------

/// Elements of a row of N: those of lanes V t to V t + V - 1 of a leaf are thread t's. `Lanes`:
/// threads of a leaf, fewer than a warp where V times as many hold the row, or a power of two of
/// such lines of it, or the leaf's 128 lanes; `Warps`: of the team, so many threads of which take a
/// leaf at a time, and those go round; `Soon`: as join_lanes has it. `Blocks`: of a cluster that
/// hold a row together, each by `Warps` warps and leaves that lie side by side.
template <class A, int64_t N, int Lanes, int Warps, bool Soon, int V, int Blocks = 1>
struct Held {
    static constexpr int leaves = int((N + kTreeLeaf - 1) / kTreeLeaf),
                         own = Warps > 1 ? Warps * 32 / Lanes : 1,  // leaves of a block
        together = own * Blocks, turns = (leaves + together - 1) / together,
                         span = Lanes * V < int(kTreeLanes) ? Lanes * V : int(kTreeLanes),
                         lines = N >= kTreeLeaf ? 4 : int((N + span - 1) / span);
    /// Pieces of V elements that a thread may have something of, turn after turn.
    static constexpr int some = Warps > 1 ? turns * lines : int((N + span - 1) / span);
    static constexpr bool short_lines = lines > 1 && span < int(kTreeLanes);  // which halve, too
    static_assert(!short_lines || (lines & (lines - 1)) == 0);
    static constexpr bool whole =  // no thread's share reaches beyond the row
        leaves > 1 ? N % (kTreeLeaf * together) == 0 : N == V * Lanes * lines;
    static_assert(V == 4 || (N % V == 0 && Lanes * V <= kTreeLanes));
    static_assert(leaves == 1 || Lanes * V == kTreeLanes);
    static constexpr int side = V;
    A a[turns][lines][V];

    __device__ __forceinline__ static int leaf_of(int turn) {
        if constexpr (Blocks > 1)
            return (int(blockIdx.x) % Blocks * turns + turn) * own + int(threadIdx.x / Lanes);
        return Warps == 1 ? turn : turn * own + int(threadIdx.x / Lanes);
    }
    __device__ __forceinline__ static int first(int turn, int line) {
        return leaf_of(turn) * int(kTreeLeaf) + line * span + V * int(threadIdx.x % Lanes);
    }
    __device__ __forceinline__ static bool has(int i) { return whole || i < int(N); }
    /// Whether there is element c of V from i on, which all are there or none where N has whole V.
    __device__ __forceinline__ static bool has(int i, int c) { return has(N % V == 0 ? i : i + c); }
    /// Whether a warp's row has something of a line; of the others nothing is made.
    __device__ __forceinline__ static constexpr bool some_of(int turn, int line) {
        return Warps > 1 || turn * int(kTreeLeaf) + line * span < int(N);
    }
    /// some(i, a) for V elements from i on, or one(i, a) for each where fewer are left. Lanes of
    /// short rows that do not end with four take one element at a time, without a branch.
    template <class Row, class Some, class One>
    __device__ __forceinline__ static void each(Row& row, Some some, One one) {
#pragma unroll
        for (int turn = 0; turn < turns; turn++)
#pragma unroll
            for (int line = 0; line < lines; line++) {
                const int i = first(turn, line);
                if constexpr (Lanes < 32 && N % V != 0) {
#pragma unroll
                    for (int c = 0; c < 4; c++)
                        if (has(i + c)) one(i + c, row.a[turn][line][c]);
                } else if (N % V == 0 || whole ? has(i) : i + V <= int(N)) {
                    some(i, row.a[turn][line]);
                } else if (N % V != 0) {
#pragma unroll
                    for (int c = 0; c < 3; c++)
                        if (has(i + c)) one(i + c, row.a[turn][line][c]);
                }
            }
    }
    /// What this thread has of the lanes of its leaf of a turn, V of them. `All`: elements behind
    /// the row's end are there, which change nothing.
    template <class Op, bool All = false>
    __device__ __forceinline__ void lane_results(int turn, A (&s)[V]) const {
        if constexpr (short_lines) {
#pragma unroll
            for (int c = 0; c < V; c++) {
                A of_line[lines];
#pragma unroll
                for (int line = 0; line < lines; line++)
                    of_line[line] =
                        All || has(first(turn, line), c) ? a[turn][line][c] : Op::missing();
                s[c] = halved<Op>(of_line);
            }
        } else {
#pragma unroll
            for (int c = 0; c < V; c++)
                s[c] = All || has(first(turn, 0), c) ? a[turn][0][c] : Op::missing();
#pragma unroll
            for (int line = 1; line < lines; line++)
#pragma unroll
                for (int c = 0; c < V; c++)
                    if (All || has(first(turn, line), c)) s[c] = Op::join(s[c], a[turn][line][c]);
        }
    }
    /// What each leaf that this thread has a part of comes to.
    template <class Op, bool All = false>
    __device__ __forceinline__ void leaf_results(A (&v)[turns]) const {
#pragma unroll
        for (int turn = 0; turn < turns; turn++) {
            A s[V];
            lane_results<Op, All>(turn, s);
            v[turn] = join_lanes<Op, Lanes, Soon>(s);
        }
    }
    /// The same of two rows at a time.
    template <class Op, bool All = false>
    __device__ __forceinline__ static void leaf_results(const Held& x, const Held& y,
                                                        A (&v)[2][turns]) {
#pragma unroll
        for (int turn = 0; turn < turns; turn++) {
            A s[2][V], of[2];
            x.template lane_results<Op, All>(turn, s[0]);
            y.template lane_results<Op, All>(turn, s[1]);
            join_lanes_of_two<Op, Lanes, Soon>(s, of);
            v[0][turn] = of[0];
            v[1][turn] = of[1];
        }
    }
};

/// Until all of a warp or a block have come here.
template <int Warps>
__device__ __forceinline__ void sync_warps() {
    if constexpr (Warps == 1)
        __syncwarp();
    else
        __syncthreads();
}

/// What counts rows: 32 bits where they are few.
template <bool Few>
struct RowNumber {
    typedef int type;
};
template <>
struct RowNumber<false> {
    typedef int64_t type;
};

/// A team that holds its rows.
template <class A, int64_t N, int Lanes, int Warps, bool Soon = false, int V = 4, int Blocks = 1>
struct HolderOf {
    typedef Held<A, N, Lanes, Warps, Soon, V, Blocks> Row;
    static constexpr int blocks = Blocks;
    static constexpr bool holds = true, keeps = false, copies = false,
                          pairs = Warps == 1 && N % V == 0;  // rows have none but whole pieces
    static constexpr int lanes = Lanes;
    static constexpr int words = Warps > 1 ? (2 * Row::leaves + 3) / 4 * 4 : 0;  // of `shared`
    static constexpr int beside = 0;  // bytes that shared memory has for a thread besides
    A* shared;     // of two reductions in turn, so that one barrier does for each
    int side = 0;  // whose turn it is

    /// Of a block of so many threads.
    __device__ __forceinline__ static constexpr int count(int threads) {
        return threads / (Warps > 1 ? 32 * Warps : Lanes);
    }
    /// body(r, mine) for the team's rows. All threads of a warp go along; `mine`: with a row of
    /// its own, and not for company.
    template <int64_t Rows, class Body>
    __device__ __forceinline__ static void each(const Grid& grid, Body body) {
        typedef typename RowNumber<(Rows < (1 << 30))>::type Number;
        constexpr auto rows = Number(Rows);
        if constexpr (Warps > 1) {
            for (auto r = Number(grid.block); r < rows; r += Number(grid.blocks)) body(r, true);
        } else {
            constexpr int together = 32 / Lanes;
            const auto warps = Number(grid.threads / 32),
                       step = Number(grid.blocks) * warps * together;
            for (auto at = (Number(grid.block) * warps + Number(grid.thread() / 32)) * together;
                 at < rows; at += step) {
                const Number r = at + int(threadIdx.x % 32) / Lanes;
                const bool mine = together == 1 || r < rows;
                body(mine ? r : rows - 1, mine);
            }
        }
    }
    __device__ __forceinline__ static bool leads() {
        return (Warps > 1 ? threadIdx.x : threadIdx.x % Lanes) == 0 && blockIdx.x % Blocks == 0;
    }
    __device__ __forceinline__ static void sync() { sync_warps<Warps>(); }
    template <class Make>
    __device__ __forceinline__ static void fill(Row& row, const Make& make) {
        Row::each(
            row, [&](int i, A(&a)[V]) { make.some(i, a); }, [&](int i, A& a) { a = make(i); });
    }
    template <class Make>
    __device__ __forceinline__ static Row take(const Make& make) {
        Row row = {};
        if (make.template aligned<V>())
            fill(row, AlignedRow<Make>{make});
        else
            fill(row, make);
        return row;
    }
    template <class F>
    __device__ __forceinline__ static Row map(Row row, F f) {
        return combine(row, row, [=](A a, A) { return f(a); });
    }
    __device__ __forceinline__ static Row off(const Row& row, A mean) {
        return map(row, [mean](A v) { return v - mean; });
    }
    template <class F>
    __device__ __forceinline__ static void visit(const Row& row, F f) {
#pragma unroll
        for (int turn = 0; turn < Row::turns; turn++)
#pragma unroll
            for (int line = 0; line < Row::lines; line++)
                if (Row::some_of(turn, line))
#pragma unroll
                    for (int c = 0; c < V; c++) f(row.a[turn][line][c]);
    }
    template <class F>
    __device__ __forceinline__ static Row combine(Row row, const Row& other, F f) {
#pragma unroll
        for (int turn = 0; turn < Row::turns; turn++)
#pragma unroll
            for (int line = 0; line < Row::lines; line++)
                if (Row::some_of(turn, line))
#pragma unroll
                    for (int c = 0; c < V; c++)
                        row.a[turn][line][c] = f(row.a[turn][line][c], other.a[turn][line][c]);
        return row;
    }
    /// The largest of elements that are bfloat16 numbers, two at a time.
    __device__ __forceinline__ static float largest_brain(const Row& row) {
        Two<Brain> all = {0xff80ff80u};
#pragma unroll
        for (int turn = 0; turn < Row::turns; turn++)
#pragma unroll
            for (int line = 0; line < Row::lines; line++)
                if (Row::some_of(turn, line) && Row::has(Row::first(turn, line)))
#pragma unroll
                    for (int c = 0; c < V; c += 2)
                        all =
                            largest(all, {scalar::bits(row.a[turn][line][c]) >> 16 |
                                          (scalar::bits(row.a[turn][line][c + 1]) & 0xffff0000u)});
#pragma unroll
        for (int d = Lanes / 2; d > 0; d /= 2)
            all = largest(all, {__shfl_xor_sync(0xffffffffu, all.word, d)});
        return MaxOf<float>::join(scalar::from_bits(all.word << 16),
                                  scalar::from_bits(all.word & 0xffff0000u));
    }
    /// What leaves that a thread has one after the other come to.
    template <class Op>
    __device__ __forceinline__ static A of_turns(A (&v)[Row::turns]) {
#pragma unroll
        for (int s = 1; s < Row::turns; s *= 2)
#pragma unroll
            for (int i = 0; i + s < Row::turns; i += 2 * s) v[i] = Op::join(v[i], v[i + s]);
        return v[0];
    }
    /// Every thread of the team gets the result.
    template <class Op>
    __device__ __forceinline__ A reduce(const Row& row) {
        constexpr int turns = Row::turns, leaves = Row::leaves;
        A v[turns];
        row.template leaf_results<Op>(v);
        if constexpr (Warps == 1) {
            return of_turns<Op>(v);
        } else {
            static_assert(leaves <= 32 && Blocks == 1);
            A* const here = shared + side * leaves;
            side ^= 1;
            const int lane = threadIdx.x & 31;
#pragma unroll
            for (int turn = 0; turn < turns; turn++)
                if (const int leaf = Row::leaf_of(turn); threadIdx.x % Lanes == 0 && leaf < leaves)
                    here[leaf] = v[turn];
            __syncthreads();
            A mine = lane < leaves ? here[lane] : Op::missing();
#pragma unroll
            for (int s = 1; s < leaves; s *= 2)
                mine = Op::join(mine, __shfl_xor_sync(0xffffffffu, mine, s));
            return __shfl_sync(0xffffffffu, mine, 0);
        }
    }
    template <class Out>
    __device__ __forceinline__ static void put(const Row& row, const Out& out) {
        if constexpr (Out::spans && N % V == 0) {
            // Asked once for all of a row's stores.
            if (out.template together<V>()) {
                Row::each(
                    row, [&](int i, const A(&a)[V]) { out.template across<V, true>(i, a); },
                    [](int, const A&) {});
                return;
            }
        }
        Row::each(
            row, [&](int i, const A(&a)[V]) { out.some(i, a); },
            [&](int i, const A& a) { out(i, a); });
    }
};

/// body(k, i) for the pieces of V neighbours of a row that are this thread's: the k-th begins at i.
template <class Row, class Body>
__device__ __forceinline__ void each_piece(const Body& body) {
#pragma unroll
    for (int turn = 0; turn < Row::turns; turn++)
#pragma unroll
        for (int line = 0; line < Row::lines; line++)
            if (const int i = Row::first(turn, line); Row::has(i))
                body(turn * Row::lines + line, i);
}

/// How blocks come by rows: in turn, or each takes its next one by a counter, 0 before and after.
/// Some processors have a larger share of the memory's bandwidth than others.
struct InTurn {
    static constexpr bool counts = false;
};
struct ByCounter {
    static constexpr bool counts = true;
    uint32_t* counter;
};

/// The rows of a team, as each() has them, of which the next is on its way as it is stored. Blocks
/// of so many threads, which go on to further rows.
template <class Team, int64_t Rows, int Threads, class Make>
struct AheadRows {
    typedef typename Team::Row Row;
    typedef typename RowNumber<(Rows < (1 << 30))>::type Number;
    static constexpr int V = Row::side, pieces = Row::turns * Row::lines,
                         teams = Team::count(Threads),
                         near = teams == 1 ? 1 : teams / (Threads / 32);  // a warp's at a time
    static constexpr auto rows = Number(Rows);
    typedef decltype(static_cast<const Make*>(nullptr)->operator()(0)) Made;
    typedef typename Made::template Some<V> Some;
    const Make& make;
    const bool together;
    const Number step;
    Number r, first;
    Some next[pieces];

    __device__ __forceinline__ AheadRows(const Grid& grid, const Make& make)
        : make(make), together(make(0).template together<V>()), step(Number(grid.blocks) * teams) {
        const int own = teams == 1 ? 0 : int(threadIdx.x) / (Threads / teams);
        r = Number(grid.block) * teams + own;
        first = r - own % near;
        if (first < rows) load(r);
    }
    __device__ __forceinline__ void load(Number r) {
        const auto row = make(r < rows ? r : rows - 1);
        if (together)
            each_piece<Row>([&](int k, int i) { next[k] = row.template across<V, true>(i); });
        else
            each_piece<Row>([&](int k, int i) { next[k] = row.template across<V, false>(i); });
    }
    /// The row that has come.
    __device__ __forceinline__ Row open() const {
        const auto row = make(0);
        Row x = {};
        each_piece<Row>(
            [&](int k, int) { row.open(next[k], x.a[k / Row::lines][k % Row::lines]); });
        return x;
    }
    /// Has the row behind the current one come in its place.
    __device__ __forceinline__ void ask() {
        if (first + step < rows) load(r + step);
    }
    /// body(r, mine) for each row, which asks for the next.
    template <class Body>
    __device__ __forceinline__ void each(const Body& body) {
        for (; first < rows; first += step, r += step) {
            const bool mine = near == 1 || rows % near == 0 || r < rows;
            body(mine ? r : rows - 1, mine);
        }
    }
    /// body(r, mine, x) for rows that each block, a team, takes by a counter. It begins with two
    /// rows of its own, and with each row it asks for the one after the next, so that the counter
    /// is asked once for each row.
    template <class Body>
    __device__ __forceinline__ void each_counted(uint32_t* counter, const Body& body) {
        static_assert(teams == 1);
        __shared__ uint32_t given;
        for (Number after = r + step; r < rows;) {
            const Row x = open();
            if (after < rows) load(after);
            const uint32_t ticket = threadIdx.x == 0 ? atomicAdd(counter, 1u) : 0;
            body(r, true, x);
            if (threadIdx.x == 0) {
                given = ticket;
                if (ticket == uint32_t(rows) - 1) clear_counter(counter);
            }
            __syncthreads();
            r = after;
            after = 2 * step + Number(given);
        }
    }
};
/// body(r, mine, x) for the team's rows, as each() has them, of which the next is on its way
/// meanwhile as it is stored. Blocks of so many threads, which go on to further rows.
template <class Team, int64_t Rows, int Threads, class Make, class Body, class Order = InTurn>
__device__ __forceinline__ void each_ahead(const Grid& grid, const Make& make, const Body& body,
                                           const Order& order = {}) {
    if constexpr (Team::copies) {
        Team::template each_copied<Rows>(grid, make, body);
    } else {
        AheadRows<Team, Rows, Threads, Make> ahead(grid, make);
        if constexpr (Order::counts)
            ahead.each_counted(order.counter, body);
        else
            ahead.each([&](int64_t r, bool mine) {
                const auto x = ahead.open();
                ahead.ask();
                body(r, mine, x);
            });
    }
}

// ---- rows in memory -----------------------------------------------------------------------------

template <class Make>
struct Streamed {
    Make make;
};

/// A team that takes each element from memory as often as it needs it: a warp (Warps 1), or the
/// block.
template <class A, int64_t N, int Warps, int Group>
struct StreamerOf {
    static constexpr bool holds = false, keeps = false, pairs = false;
    static constexpr int size = Warps * 32;
    A* shared;

    template <int64_t Rows, class Body>
    __device__ __forceinline__ static void each(const Grid& grid, Body body) {
        const int64_t first = Warps == 1
                                  ? int64_t(grid.block) * (grid.threads / 32) + grid.thread() / 32
                                  : grid.block,
                      step = Warps == 1 ? int64_t(grid.blocks) * (grid.threads / 32) : grid.blocks;
        for (int64_t r = first; r < Rows; r += step) body(r, true);
    }
    __device__ __forceinline__ static int rank() {
        return Warps == 1 ? threadIdx.x & 31 : threadIdx.x;
    }
    __device__ __forceinline__ static bool leads() { return rank() == 0; }
    __device__ __forceinline__ static void sync() { sync_warps<Warps>(); }
    template <class Make>
    __device__ __forceinline__ static Streamed<Make> take(const Make& make) {
        return {make};
    }
    template <class Make, class F>
    __device__ __forceinline__ static auto map(const Streamed<Make>& row, F f) {
        const auto first = [=](A a, A) { return f(a); };
        return take(mapped<A>(first, row.make, Nothing<A>{}));
    }
    template <class Make, class Other, class F>
    __device__ __forceinline__ static auto combine(const Streamed<Make>& row,
                                                   const Streamed<Other>& other, F f) {
        return take(mapped<A>(f, row.make, other.make));
    }
    template <class Make, class F>
    __device__ __forceinline__ static auto alter(const Streamed<Make>& row, F f) {
        return take(Altered<A, F, Make>{f, row.make});
    }
    template <class Op, class Make>
    __device__ __forceinline__ A reduce(const Streamed<Make>& row) const {
        if constexpr (Warps == 1)
            return warp_tree<Op, A>(row.make, 0, N);
        else
            return block_tree<Op, A, Group>(row.make, 0, N, shared, size);
    }
    template <class Make, class Out>
    __device__ __forceinline__ static void move(const Make& make, const Out& out) {
        for (int64_t i = 4 * rank(); i < N; i += 4 * size)
            if (N % 4 == 0 || i + 4 <= N) {
                A a[4];
                make.some(i, a);
                out.some(i, a);
            } else {
                for (int64_t j = i; j < N; j++) out(j, make(j));
            }
    }
    template <class Make, class Out>
    __device__ __forceinline__ static void put(const Streamed<Make>& row, const Out& out) {
        sync();  // each thread is done reading before any writes
        if (row.make.template aligned<4>())
            move(AlignedRow<Make>{row.make}, out);
        else
            move(row.make, out);
    }
};

// ---- rows in shared memory ----------------------------------------------------------------------

/// Elements that a block keeps, as type E, which holds each of them.
template <class A, class E>
struct KeptRow {
    const E* x;
    __device__ __forceinline__ A operator()(int64_t i) const { return static_cast<A>(widen(x[i])); }
    template <int V>
    __device__ __forceinline__ bool aligned() const {
        return true;
    }
    template <int V, bool Aligned = false>
    __device__ __forceinline__ void some(int64_t i, A (&a)[V]) const {
        const Pack<E, V> pack = *reinterpret_cast<const Pack<E, V>*>(x + i);
#pragma unroll
        for (int j = 0; j < V; j++) a[j] = static_cast<A>(widen(pack.at[j]));
    }
};

/// Elements of a type that holds them; of Brain they are what a load of them was made from.
template <class E, class A>
__device__ __forceinline__ Pack<E, 4> as_stored(const A (&a)[4]) {
    if constexpr (same_type<E, Brain>) {
        const auto both = [&](int j) {
            return uint64_t(scalar::bits(a[j]) >> 16 | (scalar::bits(a[j + 1]) & 0xffff0000u));
        };
        return scalar::bit_cast<Pack<E, 4>>(both(0) | both(2) << 32);
    } else {
        Pack<E, 4> pack;
#pragma unroll
        for (int j = 0; j < 4; j++) pack.at[j] = narrow<E>(a[j]);
        return pack;
    }
}

/// A block that keeps the rows which it is at, `Rows` of them, in shared memory, behind what their
/// leaves come to: each is read from memory once. A thread takes in what it will put.
template <class A, int64_t N, int Warps, class E, int Rows>
struct KeeperOf : StreamerOf<A, N, Warps, 1> {
    typedef StreamerOf<A, N, Warps, 1> Streamer;
    static constexpr bool keeps = true;
    static constexpr int64_t leaves = (N + kTreeLeaf - 1) / kTreeLeaf,
                             first = (leaves * int64_t(sizeof(A)) + 15) / 16 * 16,
                             bytes = (N * int64_t(sizeof(E)) + 15) / 16 * 16;
    int taken = 0;

    template <class Make>
    __device__ __forceinline__ auto take(const Make& make) {
        E* const kept =
            reinterpret_cast<E*>(reinterpret_cast<char*>(this->shared) + first + taken * bytes);
        taken = (taken + 1) % Rows;
        if (make.template aligned<4>())
            keep(AlignedRow<Make>{make}, kept);
        else
            keep(make, kept);
        return Streamer::take(KeptRow<A, E>{kept});
    }
    template <class Make>
    __device__ __forceinline__ static void keep(const Make& make, E* kept) {
        constexpr int n = int(N), step = 4 * Streamer::size;
#pragma unroll 8  // loads that are on their way together
        for (int i = 4 * Streamer::rank(); i <= n - 4; i += step) {
            A a[4];
            make.some(i, a);
            *reinterpret_cast<Pack<E, 4>*>(kept + i) = as_stored<E>(a);
        }
        if constexpr (n % 4 != 0)
            if (n / 4 % Streamer::size == Streamer::rank())
                for (int i = n / 4 * 4; i < n; i++) kept[i] = narrow<E>(make(i));
    }
    /// One leaf, by a warp.
    template <class Op, bool Whole, class Row>
    __device__ __forceinline__ static A leaf_of(const Row& row, int begin) {
        constexpr int left = int(N % kTreeLeaf);
        if constexpr (!Whole && left % 4 != 0) return leaf<Op, A, false>(row, begin, left);
        const int lane = 4 * (threadIdx.x & 31);
        A s[4];
#pragma unroll
        for (int c = 0; c < 4; c++) s[c] = Op::missing();
#pragma unroll
        for (int line = 0; line < 4; line++) {
            const int i = lane + line * int(kTreeLanes);
            if (!Whole && i >= left) break;
            A a[4];
            row.some(begin + i, a);
#pragma unroll
            for (int c = 0; c < 4; c++) s[c] = line == 0 ? a[c] : Op::join(s[c], a[c]);
        }
        return join_lanes<Op, 32>(s);
    }
    /// In any order: each thread begins with what it has taken.
    template <class Op, class Row>
    __device__ __forceinline__ A own(const Row& row) const {
        A s[4];
#pragma unroll
        for (int c = 0; c < 4; c++) s[c] = Op::missing();
#pragma unroll 4
        for (int i = 4 * Streamer::rank(); i < int(N); i += 4 * Streamer::size) {
            A a[4];
            row.some(i, a);
#pragma unroll
            for (int c = 0; c < 4; c++) s[c] = Op::join(s[c], a[c]);
        }
        A* const v = this->shared;
        const int lane = threadIdx.x & 31;
        const A of_warp = join_lanes<Op, 32>(s);
        __syncthreads();
        if (lane == 0) v[threadIdx.x / 32] = of_warp;
        __syncthreads();
        const A all[1] = {lane < Warps ? v[lane] : Op::missing()};
        return join_lanes<Op, 32>(all);
    }
    template <class Op, class Make>
    __device__ __forceinline__ A reduce(const Streamed<Make>& row) const {
        constexpr int count = int(leaves), whole = int(N / kTreeLeaf), each = count > 128 ? 8 : 4;
        static_assert(count <= 32 * each);
        const AlignedRow<Make> aligned{row.make};
        const int lane = threadIdx.x & 31;
        A* const v = this->shared;
        if constexpr (!Op::ordered && N % 4 == 0) return own<Op>(aligned);
        __syncthreads();  // all have taken, and are done with what was reduced before
        for (int l = threadIdx.x / 32; l < count; l += Warps) {
            const A of_leaf = l < whole ? leaf_of<Op, true>(aligned, l * int(kTreeLeaf))
                                        : leaf_of<Op, false>(aligned, l * int(kTreeLeaf));
            if (lane == 0) v[l] = of_leaf;
        }
        __syncthreads();
        A part[each];
#pragma unroll
        for (int c = 0; c < each; c++)
            part[c] = each * lane + c < count ? v[each * lane + c] : Op::missing();
#pragma unroll
        for (int s = 1; s < each; s *= 2)
#pragma unroll
            for (int c = 0; c < each; c += 2 * s) part[c] = Op::join(part[c], part[c + s]);
#pragma unroll
        for (int d = 1; d < 32; d *= 2)
            part[0] = Op::join(part[0], __shfl_xor_sync(0xffffffffu, part[0], d));
        return part[0];
    }
    template <class Make, class Out>
    __device__ __forceinline__ static void put(const Streamed<Make>& row, const Out& out) {
        Streamer::move(AlignedRow<Make>{row.make}, out);
    }
};

// ---- reductions ---------------------------------------------------------------------------------

/// Short rows, Lots of them for each team of some lanes, that are all under way at once.
template <class Op, class A, class Team, int Lanes, int Lots, class Shape, class Make, class Put>
__device__ __forceinline__ void reduce_short(const Grid& grid, Make make, Put put) {
    constexpr int V = Team::Row::side;
    const int64_t step = int64_t(grid.blocks) * grid.threads / Lanes;
    const int64_t team = (int64_t(grid.block) * grid.threads + grid.thread()) / Lanes;
    // All lanes of a warp go along.
    for (int64_t at = team; at - int(threadIdx.x % 32) / Lanes < Shape::rows; at += Lots * step) {
        typename Team::Row held[Lots] = {};
        const auto row = [&](int k) {
            const int64_t r = at + k * step;
            return make(r < Shape::rows ? r : Shape::rows - 1);
        };
        if (row(0).template aligned<V>()) {  // as all rows are, or none
#pragma unroll
            for (int k = 0; k < Lots; k++)
                Team::fill(held[k], AlignedRow<decltype(row(k))>{row(k)});
        } else {
#pragma unroll
            for (int k = 0; k < Lots; k++) Team::fill(held[k], row(k));
        }
#pragma unroll
        for (int k = 0; k < Lots; k++) {
            Team own{nullptr};
            const A v = own.template reduce<Op>(held[k]);
            const int64_t r = at + k * step;
            if (r < Shape::rows && Team::leads()) put(r, v);
        }
    }
}

/// A row from element `begin` on.
template <class Row>
struct RowFrom {
    const Row& row;
    int64_t begin;
    __device__ __forceinline__ auto operator()(int64_t i) const { return row(begin + i); }
    template <int V>
    __device__ __forceinline__ bool aligned() const {
        return row.template aligned<V>();
    }
    template <int V, bool Aligned = false, class A>
    __device__ __forceinline__ void some(int64_t i, A (&a)[V]) const {
        row.template some<V, Aligned>(begin + i, a);
    }
};
/// What `Count` parts come to, joined as the tree does by the first warp of a block.
template <class Op, int Count, class A>
__device__ __forceinline__ A join_parts(const A* parts) {
    constexpr int least = (Count + 31) / 32, each = least > 8   ? 16
                                                    : least > 4 ? 8
                                                    : least > 2 ? 4
                                                                : least;
    static_assert(least <= 16);
    A part[each];
#pragma unroll
    for (int i = 0; i < each; i++) {
        const int at = int(threadIdx.x) * each + i;
        part[i] = at < Count ? __ldcg(parts + at) : Op::missing();
    }
#pragma unroll
    for (int s = 1; s < each; s *= 2)
#pragma unroll
        for (int i = 0; i < each; i += 2 * s) part[i] = Op::join(part[i], part[i + s]);
#pragma unroll
    for (int d = 1; d < 32; d *= 2)
        part[0] = Op::join(part[0], __shfl_xor_sync(0xffffffffu, part[0], d));
    return part[0];
}

/// reduce_split of teams that hold what they take of a row: `Each` of it one after the other.
template <class Op, class A, class Team, int Each, class Shape, class Make, class Put>
__device__ __forceinline__ void reduce_pieces(const Grid& grid, A* parts, uint32_t* counters,
                                              Make make, Put put) {
    extern __shared__ __align__(16) char shared[];
    A* const held = reinterpret_cast<A*>(shared);
    constexpr int64_t n = Shape::n, piece = int64_t(Team::Row::leaves) * kTreeLeaf,
                      span = Each * piece;
    constexpr int pieces = int((n + span - 1) / span);
    typedef decltype(make(0)) Row;
    Team team{held};
    for (int64_t u = grid.block; u < Shape::rows * pieces; u += grid.blocks) {
        const int64_t r = u / pieces, begin = (u - r * pieces) * span,
                      end = n - begin < span ? n : begin + span;
        const Row row = make(r);
        Subtrees<Op, A, Each> subtrees;
#pragma unroll 1
        for (int64_t at = begin; at < end; at += piece)
            if (n % piece == 0 || end - at >= piece)
                subtrees.take(team.template reduce<Op>(team.take(RowFrom<Row>{row, at})));
            else if constexpr (n % piece != 0) {
                __syncthreads();  // all are done with what the team has in `held`
                subtrees.take(block_tree<Op, A, 1>(row, at, end, held, grid.threads));
            }
        if (threadIdx.x == 0) parts[u] = subtrees.total();
        if (!arrive_last(counters + r, pieces)) continue;
        if constexpr (pieces <= 512) {
            if (threadIdx.x < 32) {
                const A all = join_parts<Op, pieces>(parts + r * pieces);
                if (threadIdx.x == 0) put(r, all);
            }
        } else {
            for (int i = threadIdx.x; i < pieces; i += grid.threads)
                held[i] = __ldcg(parts + r * pieces + i);
            join_shared<Op>(held, pieces, grid.threads);
            if (threadIdx.x == 0) put(r, held[0]);
            __syncthreads();
        }
    }
}

/// A team a row: Shape, make(r) and put(r, v) as in reduce.cuh.
template <class Op, class A, class Team, class Shape, class Make, class Put>
__device__ __forceinline__ void reduce_rows(const Grid& grid, Make make, Put put) {
    extern __shared__ __align__(16) char bytes[];
    Team team{reinterpret_cast<A*>(bytes)};
    Team::template each<Shape::rows>(grid, [&](int64_t r, bool mine) {
        A v = Op::empty();
        if constexpr (Shape::n > 0) v = team.template reduce<Op>(team.take(make(r)));
        if (mine && team.leads()) put(r, v);
    });
}

}  // namespace aicf
