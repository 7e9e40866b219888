// Losses alone of rows in 16 bits: what is stored is all that a thread keeps of a row. Its largest
// and smallest elements are found two at a time, in words; numbers are made of these where an
// exponential is, which is added as it comes. Rows of small elements, as RowExps16 has it, do not
// wait for their largest one.
#pragma once

#include "copies.cuh"
#include "copy_engine.cuh"
#include "kept_rows.cuh"

namespace aicf {

/// The largest and the smallest of elements, two at a time. The smallest is none of NaN.
template <class E>
struct Extremes {
    static constexpr uint32_t infinity = same_type<E, Brain> ? 0x7f807f80u : 0x7c007c00u;
    Two<E> most = {infinity | 0x80008000u}, least = {infinity};

    template <int V>
    __device__ __forceinline__ void take(const Words<E, V>& x) {
#pragma unroll
        for (int j = 0; j < V / 2; j++) {
            const Two<E> two = {x.words.at[j]};
            most = largest(most, two);
            least = smallest(least, two);
        }
    }
    /// Of both places.
    __device__ __forceinline__ static float single(Two<E> two, bool high) {
        float v[2];
        Words<E, 2>{{two.word}}.open(v);
        return v[high];
    }
    __device__ __forceinline__ static float largest_of(Two<E> two) {
        return MaxOf<float>::join(single(two, false), single(two, true));
    }
    /// Whether all are near `most`, as kNearBits has it.
    __device__ __forceinline__ bool are_near(float most) const {
        const uint32_t low = below(single(least, false), most),
                       high = below(single(least, true), most);
        return is_near<scalar::RowExps16>(low > high ? low : high, most);
    }
    /// Whether all are small, and none is NaN.
    __device__ __forceinline__ bool are_small() const {
        return largest_of(largest(most, {least.word ^ 0x80008000u})) <= scalar::RowExps16::kSmall;
    }
};
/// The largest of those of `Lanes` neighbouring threads.
template <int Lanes, class E>
__device__ __forceinline__ Two<E> largest_of_lanes(Two<E> all) {
#pragma unroll
    for (int d = Lanes / 2; d > 0; d /= 2)
        all = largest(all, {__shfl_xor_sync(0xffffffffu, all.word, d)});
    return all;
}
/// Exponentials of elements below `most`; `Near`: all are near.
template <bool Near, class E, int V>
__device__ __forceinline__ void exps_of_words(Words<E, V> x, float most, float (&v)[V]) {
#ifdef __CUDACC_RTC__
    // Or numbers would be made of all words before the first exponential.
#pragma unroll
    for (int j = 0; j < V / 2; j++) asm volatile("" : "+r"(x.words.at[j]));
#endif
    x.open(v);
    const auto exps = scalar::RowExps16::of(most);
#pragma unroll
    for (int j = 0; j < V; j++) v[j] = Near ? exps.near(v[j]) : exps(v[j]);
}

/// The losses of the rows that a block takes one after the other, of `Leaves` leaves. Behind a
/// row's barrier a warp joins its sums, while the others go on.
template <class A, class E, int Leaves, int Warps, class Own>
struct BlockLosses {
    static constexpr int words = (Warps + 4) / 4 * 4;  // of `largest_of`
    uint32_t* const largest_of;                        // warps, and a ticket, of two rows in turn
    A* const sums;                                     // of leaves, likewise
    Own& own;
    int side = 0;

    __device__ __forceinline__ BlockLosses(void* shared, Own& own)
        : largest_of(static_cast<uint32_t*>(shared)),
          sums(reinterpret_cast<A*>(largest_of + 2 * words)),
          own(own) {}

    /// What a leaf of the row comes to.
    __device__ __forceinline__ void leaf(int leaf, A sum) { own_sums()[leaf] = sum; }
    __device__ __forceinline__ A* own_sums() const { return sums + side * Leaves; }
    /// Behind the row's leaves: whether all of its elements are small. `ticket` becomes the first
    /// thread's.
    __device__ __forceinline__ bool are_small(const Extremes<E>& seen, uint32_t& ticket) {
        uint32_t* const here = largest_of + side * words;
        const Two<E> most = largest_of_lanes<32>(seen.most);
        if (threadIdx.x % 32 == 0) here[threadIdx.x / 32] = most.word;
        if (threadIdx.x == 0) here[Warps] = ticket;
        const bool all = !__syncthreads_or(!seen.are_small());
        ticket = here[Warps];
        return all;
    }
    /// Behind that: the row's largest element.
    __device__ __forceinline__ A most() const {
        const uint32_t* const here = largest_of + side * words;
        Two<E> all = {here[0]};
#pragma unroll
        for (int w = 1; w < Warps; w++) all = largest(all, {here[w]});
        return Extremes<E>::largest_of(all);
    }
    /// Row r is through.
    __device__ __forceinline__ void end_row(int64_t r, bool small) {
        if (int(threadIdx.x) / 32 == own.turn % Warps) {
            const A largest = most(), sum = join_leaves<SumOf<A>, Leaves>(own_sums());
            if (int(threadIdx.x % 32) == own.turn / Warps)
                own.take(r, {largest, small ? scalar::RowExps16::scaled_sum(largest, sum)
                                            : scalar::row_sum(largest, sum)});
        }
        side ^= 1;
        own.next(32 * Warps);
    }
};

/// What a block has of a row in shared memory, of which each thread reads the elements alone that
/// it asks for: V beside each other, in the place of which those of the next row come. `Lanes`
/// threads have a leaf.
template <class E, int N, int Warps, int Lanes, int V>
struct OwnPieces {
    static constexpr int lines = 4, leaves = (N + int(kTreeLeaf) - 1) / int(kTreeLeaf),
                         together = Warps * 32 / Lanes, turns = (leaves + together - 1) / together,
                         span = V * Lanes, parts = int(kTreeLanes) / span,  // of a line
        groups = turns * lines;                                             // of copies
    static_assert(N % V == 0 && parts * span == kTreeLanes);
    E* const row;

    __device__ __forceinline__ static int leaf_of(int turn) {
        return turn * together + int(threadIdx.x) / Lanes;
    }
    __device__ __forceinline__ static int place(int turn, int line, int part) {
        return leaf_of(turn) * int(kTreeLeaf) + line * int(kTreeLanes) + part * span +
               V * int(threadIdx.x % Lanes);
    }
    static constexpr bool all = N % (together * int(kTreeLeaf)) == 0;  // threads have whole leaves
    __device__ __forceinline__ static bool whole(int turn) {
        return all || (leaf_of(turn) + 1) * int(kTreeLeaf) <= N;
    }
    __device__ __forceinline__ static bool has(int i) { return all || i < N; }
    __device__ __forceinline__ Words<E, V> at(int i) const {
        return {*reinterpret_cast<const Pack<uint32_t, V / 2>*>(row + i)};
    }
    /// Asks for pieces of row x, if there is one and copies can bring it.
    __device__ __forceinline__ void ask_line(const E* x, bool together, int turn, int line) const {
#pragma unroll
        for (int part = 0; part < parts; part++)
            if (const int i = place(turn, line, part); together && has(i))
                copy_async<2 * V>(row + i, x + i);
        commit_copies();
    }
    __device__ __forceinline__ void ask(const E* x, bool together) const {
#pragma unroll
        for (int turn = 0; turn < turns; turn++)
#pragma unroll
            for (int line = 0; line < lines; line++) ask_line(x, together, turn, line);
    }
    /// Brings a row that copies cannot.
    __device__ __forceinline__ void bring(const E* x) const {
#pragma unroll 1
        for (int turn = 0; turn < turns; turn++)
#pragma unroll 1
            for (int line = 0; line < lines * parts; line++)
                if (const int i = place(turn, line / parts, line % parts); has(i))
#pragma unroll
                    for (int j = 0; j < V; j++) row[i + j] = x[i + j];
    }
    /// put(leaf, sum) of the exponentials of this thread's leaves, as those of small elements are
    /// made; asks for row `next` if it comes `together`. `Later`: groups of copies that have been
    /// asked for since those of a line.
    template <class A, int Later, class Put>
    __device__ __forceinline__ void sums(Extremes<E>& seen, const E* next, bool together,
                                         const Put& put) const {
#pragma unroll 1
        for (int turn = 0; turn < turns; turn++) {
            const A of_leaf = sum<A, Later>(turn, seen, next, together);
            if (const int leaf = leaf_of(turn); threadIdx.x % Lanes == 0 && (all || leaf < leaves))
                put(leaf, of_leaf);
        }
    }
    template <class A, int Later>
    __device__ __forceinline__ A sum(int turn, Extremes<E>& seen, const E* next,
                                     bool together) const {
        A s[parts][V];
        if (whole(turn)) {
#pragma unroll
            for (int line = 0; line < lines; line++) {
                Words<E, V> x[parts];
                wait_copies<Later>();
#pragma unroll
                for (int part = 0; part < parts; part++) {
                    x[part] = at(place(turn, line, part));
                    seen.take(x[part]);
                }
                ask_line(next, together, turn, line);
#pragma unroll
                for (int part = 0; part < parts; part++) {
                    A v[V];
                    exps_of_words<true>(x[part], A(0), v);
#pragma unroll
                    for (int c = 0; c < V; c++)
                        s[part][c] = line == 0 ? v[c] : SumOf<A>::join(s[part][c], v[c]);
                }
            }
        } else {
#pragma unroll
            for (int part = 0; part < parts; part++)
#pragma unroll
                for (int c = 0; c < V; c++) s[part][c] = SumOf<A>::missing();
#pragma unroll 1
            for (int line = 0; line < lines; line++) {
                wait_copies<Later>();
#pragma unroll
                for (int part = 0; part < parts; part++) {
                    const int i = place(turn, line, part);
                    if (!has(i)) break;
                    const Words<E, V> x = at(i);
                    seen.take(x);
                    A v[V];
                    exps_of_words<true>(x, A(0), v);
#pragma unroll
                    for (int c = 0; c < V; c++) s[part][c] = SumOf<A>::join(s[part][c], v[c]);
                }
                ask_line(next, together, turn, line);
            }
        }
        __syncwarp();
        A all[V];
#pragma unroll
        for (int c = 0; c < V; c++) {
            A of_part[parts];
#pragma unroll
            for (int part = 0; part < parts; part++) of_part[part] = s[part][c];
            all[c] = halved<SumOf<A>>(of_part);
        }
        return join_lanes<SumOf<A>, Lanes>(all);
    }
};

/// The sum of each leaf's exponentials, of a row of N elements in memory: a warp takes a leaf at a
/// time. `together`: four neighbours may move at once.
template <class A, int N, int Warps, class E>
__device__ __noinline__ void sums_again(const E* row, bool together, A most, A* sums) {
    const auto exps = scalar::RowExps16::of(most);
#pragma unroll 1
    for (int leaf = threadIdx.x / 32; leaf < (N + int(kTreeLeaf) - 1) / int(kTreeLeaf);
         leaf += Warps) {
        const int first = leaf * int(kTreeLeaf) + 4 * int(threadIdx.x % 32);
        Words<E, 4> x[4];
        A s[4];
#pragma unroll
        for (int line = 0; line < 4; line++)
            if (const int i = first + line * int(kTreeLanes); i < N)
                x[line].load(row + i, 4, together);
#pragma unroll
        for (int c = 0; c < 4; c++) s[c] = SumOf<A>::missing();
#pragma unroll
        for (int line = 0; line < 4; line++) {
            if (first + line * int(kTreeLanes) >= N) break;
            A v[4];
            x[line].open(v);
#pragma unroll
            for (int c = 0; c < 4; c++) s[c] = SumOf<A>::join(s[c], exps(v[c]));
        }
        __syncwarp();
        const A sum = join_lanes<SumOf<A>, 32>(s);
        if (threadIdx.x % 32 == 0) sums[leaf] = sum;
    }
}

/// cross_entropy_rows of long rows, of which a block has one in shared memory. Each warp has as
/// many lots of four leaves as the others, and at most one leaf more of the rest at a time. A block
/// begins with two rows of its own and takes further ones by a counter, 0 before and after: some
/// processors have a larger share of the memory's bandwidth than others.
template <class A, int Warps, class E, class Shape, class Make, class Labels, class Loss,
          class Most, class Sum, class Put>
__device__ __forceinline__ void cross_entropy_filled(const Grid& grid, Make make, Labels labels,
                                                     Loss loss, Most set_most, Sum set_sum, Put,
                                                     uint32_t* counter) {
    typedef typename RowNumber<(Shape::rows < (1 << 30))>::type Number;
    constexpr int n = int(Shape::n), leaf = int(kTreeLeaf), lot = 4 * leaf,
                  in_lots = n / (Warps * lot) * (Warps * lot), leaves = (n + leaf - 1) / leaf;
    static_assert(leaves <= 128);
    typedef OwnPieces<E, in_lots, Warps, 8, 8> Lots;
    typedef OwnPieces<E, n - in_lots, Warps, 32, 4> Rest;
    extern __shared__ __align__(16) char bytes[];
    E* const kept = reinterpret_cast<E*>(bytes);
    const Lots lots{kept};
    const Rest rest{kept + in_lots};
    const auto element = [&](int64_t r) { return element_of_label<A, Shape>(make, r, labels(r)); };
    typedef LaneLosses<A, Shape, decltype(element), Loss, Most, Sum> Own;
    Own own(element, loss, set_most, set_sum);
    BlockLosses<A, E, leaves, Warps, Own> losses(kept + n, own);
    constexpr int later = Lots::groups + Rest::groups - 1;
    constexpr auto rows = Number(Shape::rows);
    const auto step = Number(grid.blocks);
    auto r = Number(grid.block), after = r + step;
    const E* row = make(r).own();
    const bool together = aligned_for<8>(row);  // as all rows are, or none
    lots.ask(row, together);
    rest.ask(row + in_lots, together);
    while (r < rows) {
        if (!together) {
            lots.bring(row);
            rest.bring(row + in_lots);
        }
        uint32_t ticket = 0;
        if (threadIdx.x == 0) ticket = atomicAdd(counter, 1u);
        const bool more = after < rows;
        const E* const next = make(more ? after : r).own();
        Extremes<E> seen;
        lots.template sums<A, later>(seen, next, together && more,
                                     [&](int leaf, A sum) { losses.leaf(leaf, sum); });
        rest.template sums<A, later>(seen, next + in_lots, together && more, [&](int leaf, A sum) {
            losses.leaf(in_lots / int(kTreeLeaf) + leaf, sum);
        });
        const bool small = losses.are_small(seen, ticket);
        if (!small) {
            sums_again<A, n, Warps>(row, together, losses.most(), losses.own_sums());
            __syncthreads();
        }
        losses.end_row(r, small);
        if (threadIdx.x == 0 && ticket == uint32_t(rows) - 1) clear_counter(counter);
        row = next;
        r = after;
        after = 2 * step + Number(ticket);
    }
    own.store();
}

/// What a team's threads hold of a row.
template <class A, class Team, class E>
struct HeldWords {
    typedef typename Team::Row Row;
    static constexpr int V = Row::side, lines = Row::lines, pieces = Row::turns * lines;
    Words<E, V> words[pieces];
    Extremes<E> seen;

    /// Of row x in shared memory. Lines of short rows are halved, so that row `number` of a warp
    /// may have them in an order of its own, neighbouring rows' in different banks.
    __device__ __forceinline__ HeldWords(const E* x, int number) {
        static_assert(Row::short_lines && Row::whole);
        const int turned = number % lines * Row::span * 2;  // bytes
        const char* const from = reinterpret_cast<const char*>(x);
        each_piece<Row>([&](int k, int i) {
            words[k] = {*reinterpret_cast<const Pack<uint32_t, V / 2>*>(from + (2 * i ^ turned))};
            seen.take(words[k]);
        });
    }
    template <class Make, class Some>
    __device__ __forceinline__ HeldWords(const Make& row, const Some (&stored)[pieces]) {
        each_piece<Row>([&](int k, int) {
            words[k] = row.template words<V>(stored[k]);
            seen.take(words[k]);
        });
    }
    /// What the loss is made of; done() once the words are read. If `Kept`, the row's largest
    /// element, and otherwise 0 where all of the warp's are small.
    template <bool Kept, class Done>
    __device__ __forceinline__ LossParts<A> parts(const Done& done) const {
        const bool small = !__any_sync(0xffffffffu, !seen.are_small());
        A most = A(0), v[Row::turns];
        if (Kept || !small)
            most = Extremes<E>::largest_of(largest_of_lanes<Team::lanes>(seen.most));
        leaf_sums(small ? A(0) : most, small || seen.are_near(most), v, done);
        const A sum = Team::template of_turns<SumOf<A>>(v);
        return {most, Kept && small ? scalar::RowExps16::scaled_sum(most, sum)
                                    : scalar::row_sum(most, sum)};
    }

  private:
    /// What its leaves' exponentials come to.
    template <class Done>
    __device__ __forceinline__ void leaf_sums(A most, bool near, A (&sums)[Row::turns],
                                              const Done& done) const {
        A all[Row::turns][V];
        if (near)
            lane_sums<true>(most, all);
        else
            lane_sums<false>(most, all);
        done();
#pragma unroll
        for (int turn = 0; turn < Row::turns; turn++)
            sums[turn] = join_lanes<SumOf<A>, Team::lanes>(all[turn]);
    }
    template <bool Near>
    __device__ __forceinline__ void lane_sums(A most, A (&all)[Row::turns][V]) const {
#pragma unroll
        for (int turn = 0; turn < Row::turns; turn++) {
            // Lines of short rows are halved, those of a leaf added one to the other: in an order
            // in which two halves follow each other, so that few sums wait.
            constexpr int apart = Row::short_lines ? lines : 1;
            A s[V][waiting(apart)];
#pragma unroll
            for (int k = 0; k < lines; k++) {
                const int line = apart > 1 ? reversed(k, lines) : k;
                A v[V];
                const bool has = Row::has(Row::first(turn, line));
                if (has) exps_of_words<Near>(words[turn * lines + line], most, v);
#pragma unroll
                for (int c = 0; c < V; c++) {
                    if (!has) v[c] = SumOf<A>::missing();
                    if constexpr (apart == 1) {
                        s[c][0] = k == 0 ? v[c] : has ? SumOf<A>::join(s[c][0], v[c]) : s[c][0];
                        keep_made(s[c][0]);
                    } else {
                        int level = 0;
#pragma unroll
                        for (int half = 1; k & half; half *= 2)
                            v[c] = SumOf<A>::join(s[c][level++], v[c]);
                        s[c][level] = v[c];
                        keep_made(s[c][level]);
                    }
                }
            }
#pragma unroll
            for (int c = 0; c < V; c++) all[turn][c] = s[c][waiting(apart) - 1];
        }
    }
    /// How many sums wait at most where so many are halved.
    __device__ __forceinline__ static constexpr int waiting(int count) {
        int sums = 1;
        for (; count > 1; count /= 2) sums++;
        return sums;
    }
    /// The bits of k in reverse, of as many as numbers below `count` have.
    __device__ __forceinline__ static constexpr int reversed(int k, int count) {
        int all = 0;
        for (; count > 1; count /= 2, k /= 2) all = 2 * all + k % 2;
        return all;
    }
    /// So that a number is made before others are begun, which would all take registers.
    __device__ __forceinline__ static void keep_made(A& x) {
#ifdef __CUDACC_RTC__
        asm volatile("" : "+f"(x));
#endif
    }
};

/// cross_entropy_rows of rows of lanes of a warp, which read ahead, by blocks of so many threads.
/// `Late`: only when they are done with what a row has stored, which takes fewer registers.
template <class A, class Team, int Threads, class E, bool Late, class Shape, class Make,
          class Labels, class Loss, class Most, class Sum, class Put>
__device__ __forceinline__ void cross_entropy_ahead(const Grid& grid, Make make, Labels labels,
                                                    Loss loss, Most set_most, Sum set_sum, Put) {
    typedef typename Team::Row Row;
    typedef HeldWords<A, Team, E> Held;
    const auto element = [&](int64_t r) { return element_of_label<A, Shape>(make, r, labels(r)); };
    LaneLosses<A, Shape, decltype(element), Loss, Most, Sum> own(element, loss, set_most, set_sum);
    constexpr int lanes = Team::lanes;
    constexpr bool kept = !same_type<Most, Nowhere> || !same_type<Sum, Nowhere>;
    const int lane = threadIdx.x % lanes;
    AheadRows<Team, Shape::rows, Threads, Make> ahead(grid, make);
    ahead.each([&](int64_t r, bool mine) {
        const Held held(make(0), ahead.next);
        if (!Late) ahead.ask();
        const LossParts<A> parts = held.template parts<kept>([&] {
            if (Late) ahead.ask();
        });
        if (mine && lane == own.turn) own.take(r, parts);
        own.next(lanes);
    });
    own.store();
}

/// The next rows of a warp in shared memory, `Together` of N at a time, brought by the copy engine.
template <class E, int N, int Together, int Warps>
struct BroughtRows {
    static constexpr int count = Together * N,  // elements
        bytes = 2 * Warps * count + (8 * Warps + 15) / 16 * 16;
    E* const rows;
    const uint32_t barrier;
    const bool aligned, in_line;  // the copy engine can; rows lie one behind the other
    uint32_t phase = 0;

    __device__ __forceinline__ BroughtRows(void* shared, const E* first, const E* second)
        : rows(static_cast<E*>(shared) + int(threadIdx.x) / 32 * count),
          barrier(shared_address(static_cast<E*>(shared) + Warps * count) +
                  int(threadIdx.x) / 32 * 8),
          aligned(aligned_for<8>(first)),  // as all rows are, or none
          in_line(second - first == N) {
        if (threadIdx.x % 32 == 0) {
            init_barrier(barrier, 1);
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
        __syncwarp();
    }
    /// By a thread of the warp: row(k) is the k-th.
    template <class Row>
    __device__ __forceinline__ void ask(const Row& row) const {
        arrive_expecting(barrier, 2 * count);
        if (in_line)
            copy_kept_bytes(shared_address(rows), row(0), 2 * count, barrier);
        else
#pragma unroll 1
            for (int k = 0; k < Together; k++)
                copy_kept_bytes(shared_address(rows + k * N), row(k), 2 * N, barrier);
    }
    __device__ __forceinline__ void wait() {
        wait_barrier(barrier, phase);
        phase ^= 1;
    }
};

/// cross_entropy_rows of short rows that the copy engine brings, as many as are whole leaves of the
/// tree, which blocks take; `sums` gets what the losses of each come to.
template <class A, class Team, int Threads, class E, class Shape, class Make, class Labels,
          class Loss, class Most, class Sum, class Put>
__device__ __forceinline__ void cross_entropy_leaves(const Grid& grid, Make make, Labels labels,
                                                     Loss loss, Most set_most, Sum set_sum, Put,
                                                     A* sums) {
    typedef typename Team::Row Row;
    typedef typename RowNumber<(Shape::rows < (1 << 30))>::type Number;
    constexpr int lanes = Team::lanes, near = 32 / lanes, n = int(Shape::n), warps = Threads / 32,
                  of_leaf = int(kTreeLeaf), each = of_leaf / (near * warps);  // turns of a warp
    constexpr bool kept = !same_type<Most, Nowhere> || !same_type<Sum, Nowhere>;
    static_assert(Shape::rows % of_leaf == 0 && each % lanes == 0);
    constexpr auto rows = Number(Shape::rows);
    extern __shared__ __align__(16) char bytes[];
    typedef BroughtRows<E, n, near, warps> Brought;
    Brought brought(bytes, make(0).own(), make(1).own());
    A* losses = reinterpret_cast<A*>(bytes + Brought::bytes);  // of two leaves in turn
    int other = of_leaf;
    const int lane = threadIdx.x % lanes, number = int(threadIdx.x % 32) / lanes,
              warp = int(threadIdx.x) / 32;
    // Where the rows begin that the warp takes in turn i.
    const auto begin = [&](int i) {
        return (Number(grid.block) + i / each * Number(grid.blocks)) * of_leaf +
               (i % each * warps + warp) * near;
    };
    const auto ask = [&](Number first) {
        __syncwarp();
        if (brought.aligned && first < rows && elected())
            brought.ask([&](int k) { return make(first + k).own(); });
    };
    // Of `lanes` turns each lane makes the losses of one, whose labels come a time ahead.
    const auto label_from = [&](int i) {
        const Number r = begin(i + lane) + number;
        return r < rows ? int64_t{labels(r)} : int64_t{-1};
    };
    ask(begin(0));
    int64_t next = label_from(0);
    int turn = 0, label = -1;
    Number row = 0;  // whose loss this lane makes
    LossParts<A> parts = {A(0), A(0)};
    const A nan = static_cast<A>(scalar::from_bits(0x7fc00000u));
    A of_label = nan;
    Number first = begin(0);
    for (int i = 0; first < rows; first = begin(++i)) {
        if (turn == 0) {
            label = next >= 0 && next < n ? int(next) : -1;
            next = label_from(i + lanes);
        }
        E* const x = brought.rows + number * n;
        if (brought.aligned) {
            brought.wait();
        } else {
            const E* const from = make(first + number).own();
            each_piece<Row>([&](int, int i) {
#pragma unroll
                for (int j = 0; j < Row::side; j++) x[i + j] = from[i + j];
            });
            __syncwarp();
        }
        const HeldWords<A, Team, E> held(x, number);
        const A at_label = static_cast<A>(widen(x[label >= 0 ? label : 0]));
        ask(begin(i + 1));
        const LossParts<A> made = held.template parts<kept>([] {});
        if (lane == turn) {
            row = first + number;
            parts = made;
            of_label = at_label;
        }
        if (++turn == lanes) {
            const auto put = [&](Number r, A made) {
                loss(r, made);
                losses[r % of_leaf] = made;
            };
            store_loss<A, scalar::RowExps16>(parts, row, label >= 0 ? of_label : nan, put, set_most,
                                             set_sum);
            turn = 0;
        }
        if (i % each == each - 1) {
            __syncthreads();
            if (warp == i / each % warps) {
                const A total =
                    leaf<SumOf<A>, A, true>(RowOf<A, A, Line<1>, 4>(losses), 0, of_leaf);
                if (threadIdx.x % 32 == 0) sums[first / of_leaf] = total;
            }
            losses += other;
            other = -other;
        }
    }
}

/// The sum of leaves that a kernel's blocks have stored, by the last of them to come here.
template <class A, int Count, class Put>
__device__ __forceinline__ void add_leaves(const Grid& grid, const A* leaves, uint32_t* counter,
                                           Put put) {
    constexpr int of_warp = 128, lots = (Count + of_warp - 1) / of_warp;
    extern __shared__ __align__(16) char bytes[];
    A* const sums = reinterpret_cast<A*>(bytes);
    if (!arrive_last_unshared(counter, grid.blocks)) return;
    for (int lot = int(threadIdx.x) / 32; lot < lots; lot += int(grid.threads) / 32) {
        const A sum = join_leaves_of<SumOf<A>, of_warp>([&](int i) {
            const int leaf = lot * of_warp + i;
            return leaf < Count ? __ldcg(leaves + leaf) : SumOf<A>::missing();
        });
        if (threadIdx.x % 32 == 0) sums[lot] = sum;
    }
    join_shared<SumOf<A>>(sums, lots, int(grid.threads));
    if (threadIdx.x == 0) put(0, sums[0]);
}

}  // namespace aicf
