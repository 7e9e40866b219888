// Losses alone of rows in 16 bits: what is stored is all that a thread keeps of a row. Its largest
// and smallest elements are found two at a time, in words; numbers are made of these where an
// exponential is, which is added as it comes.
#pragma once

#include "copies.cuh"
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
        return (low > high ? low : high) <= kNearBits;
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
#pragma unroll
    for (int j = 0; j < V; j++)
        v[j] = Near ? scalar::exp_shifted(v[j] - most, 0.0f) : exp_below(v[j], most);
}

/// The loss of one row, which a thread makes when others have one, too.
template <class A, class Shape, class Make, class Labels, class Loss, class Most, class Sum>
struct OwnLoss {
    const Make& make;
    const Labels& labels;
    const Loss& loss;
    const Most& set_most;
    const Sum& set_sum;
    int64_t row = -1;  // or none
    LossParts<A> parts = {A(0), A(0)};

    __device__ __forceinline__ OwnLoss(const Make& make, const Labels& labels, const Loss& loss,
                                       const Most& set_most, const Sum& set_sum)
        : make(make), labels(labels), loss(loss), set_most(set_most), set_sum(set_sum) {}
    __device__ __forceinline__ void take(int64_t r, A most, A sum) {
        row = r;
        parts = {most, sum};
    }
    __device__ __forceinline__ void store() {
        if (row >= 0) store_loss<A, Shape>(parts, row, make, labels, loss, set_most, set_sum);
        row = -1;
    }
};

/// The losses of the rows that a block takes one after the other, of `Leaves` leaves. A row waits
/// for one barrier, behind which its largest element is known, and the sum of the one before.
template <class A, class E, int Leaves, int Warps, class Own>
struct BlockLosses {
    static constexpr int words = (Warps + 4) / 4 * 4;  // of `largest_of`
    uint32_t* const largest_of;                        // warps, and a ticket, of two rows in turn
    A* const sums;                                     // of leaves, likewise
    Own& own;
    int side = 0, turn = -1;  // whose loss the last row's is, -1: there is none
    int64_t before = 0;       // that row
    A most_before = A(0);

    __device__ __forceinline__ BlockLosses(void* shared, Own& own)
        : largest_of(static_cast<uint32_t*>(shared)),
          sums(reinterpret_cast<A*>(largest_of + 2 * words)),
          own(own) {}

    /// The largest element of row r, of which this thread has seen some; `ticket` becomes the first
    /// thread's.
    __device__ __forceinline__ A most(int64_t r, Two<E> seen, uint32_t& ticket) {
        uint32_t* const here = largest_of + side * words;
        seen = largest_of_lanes<32>(seen);
        if (threadIdx.x % 32 == 0) here[threadIdx.x / 32] = seen.word;
        if (threadIdx.x == 0) here[Warps] = ticket;
        __syncthreads();
        Two<E> all = {here[0]};
#pragma unroll
        for (int w = 0; w < words; w += 4) {
            const auto four = *reinterpret_cast<const Pack<uint32_t, 4>*>(here + w);
#pragma unroll
            for (int c = 0; c < 4; c++)
                if (w + c < Warps)
                    all = largest(all, {four.at[c]});
                else if (w + c == Warps)
                    ticket = four.at[c];
        }
        end_row();
        side ^= 1;
        turn++;
        before = r;
        most_before = Extremes<E>::largest_of(all);
        return most_before;
    }
    /// What a leaf of that row comes to.
    __device__ __forceinline__ void leaf(int leaf, A sum) { sums[side * Leaves + leaf] = sum; }
    /// Once the rows are through.
    __device__ __forceinline__ void end() {
        __syncthreads();
        end_row();
        own.store();
    }

  private:
    __device__ __forceinline__ void end_row() {
        if (turn < 0) return;
        if (int(threadIdx.x) / 32 == turn % Warps) {
            const A sum = join_leaves<SumOf<A>, Leaves>(sums + side * Leaves);
            if (int(threadIdx.x % 32) == turn / Warps)
                own.take(before, most_before, sum_below(most_before, sum));
        }
        if (turn == 32 * Warps - 1) {
            own.store();
            turn = -1;
        }
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
    /// What the row that has been asked for has at its extremes; `Later`: groups of copies that
    /// have been asked for since.
    template <int Later, int Group = 0>
    __device__ __forceinline__ void look(Extremes<E>& seen) const {
        if constexpr (Group < groups) {
            wait_copies<Later + groups - Group - 1>();
#pragma unroll
            for (int part = 0; part < parts; part++)
                if (const int i = place(Group / lines, Group % lines, part); has(i))
                    seen.take(at(i));
            look<Later, Group + 1>(seen);
        }
    }
    /// put(leaf, sum) of the exponentials of this thread's leaves; asks for row `next` if it comes
    /// `together`.
    template <class A, class Put>
    __device__ __forceinline__ void sums(A most, bool near, const E* next, bool together,
                                         const Put& put) const {
#pragma unroll 1
        for (int turn = 0; turn < turns; turn++) {
            const A of_leaf = sum(turn, most, near, next, together);
            if (const int leaf = leaf_of(turn); threadIdx.x % Lanes == 0 && (all || leaf < leaves))
                put(leaf, of_leaf);
        }
    }
    template <class A>
    __device__ __forceinline__ A sum(int turn, A most, bool near, const E* next,
                                     bool together) const {
        A s[parts][V];
        if (near && whole(turn)) {
#pragma unroll
            for (int line = 0; line < lines; line++) {
                Words<E, V> x[parts];
#pragma unroll
                for (int part = 0; part < parts; part++) x[part] = at(place(turn, line, part));
                ask_line(next, together, turn, line);
#pragma unroll
                for (int part = 0; part < parts; part++) {
                    A v[V];
                    exps_of_words<true>(x[part], most, v);
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
#pragma unroll
                for (int part = 0; part < parts; part++) {
                    const int i = place(turn, line, part);
                    if (!has(i)) break;
                    A v[V];
                    exps_of_words<false>(at(i), most, v);
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
    typedef OwnLoss<A, Shape, Make, Labels, Loss, Most, Sum> Own;
    Own own(make, labels, loss, set_most, set_sum);
    BlockLosses<A, E, leaves, Warps, Own> losses(kept + n, own);
    constexpr auto rows = Number(Shape::rows);
    const auto step = Number(grid.blocks);
    auto r = Number(grid.block), after = r + step;
    const E* next = make(r).own();
    const bool together = aligned_for<8>(next);  // as all rows are, or none
    lots.ask(next, together);
    rest.ask(next + in_lots, together);
    uint32_t ticket = 0;
    for (bool first = true; r < rows; first = false) {
        if (!together) {
            lots.bring(next);
            rest.bring(next + in_lots);
        }
        Extremes<E> seen;
        lots.template look<Rest::groups>(seen);
        rest.template look<0>(seen);
        const A most = losses.most(r, seen.most, ticket);
        if (!first) after = 2 * step + Number(ticket);
        if (threadIdx.x == 0) {
            if (!first && ticket == uint32_t(rows) - 1) clear_counter(counter);
            ticket = atomicAdd(counter, 1u);
        }
        const bool near = seen.are_near(most), more = after < rows;
        next = make(more ? after : r).own();
        lots.sums(most, near, next, together && more,
                  [&](int leaf, A sum) { losses.leaf(leaf, sum); });
        rest.sums(most, near, next + in_lots, together && more,
                  [&](int leaf, A sum) { losses.leaf(in_lots / int(kTreeLeaf) + leaf, sum); });
        r = after;
    }
    if (threadIdx.x == 0 && ticket == uint32_t(rows) - 1) clear_counter(counter);
    losses.end();
}

/// What a team's threads hold of a row.
template <class A, class Team, class E>
struct HeldWords {
    typedef typename Team::Row Row;
    static constexpr int V = Row::side, lines = Row::lines, pieces = Row::turns * lines;
    Words<E, V> words[pieces];
    Extremes<E> seen;

    template <class Make, class Some>
    __device__ __forceinline__ HeldWords(const Make& row, const Some (&stored)[pieces]) {
        each_piece<Row>([&](int k, int) {
            words[k] = row.template words<V>(stored[k]);
            seen.take(words[k]);
        });
    }
    /// What its leaves' exponentials come to; done() once the words are read.
    template <class Done>
    __device__ __forceinline__ void leaf_sums(A most, A (&sums)[Row::turns],
                                              const Done& done) const {
        A all[Row::turns][V];
        if (seen.are_near(most))
            lane_sums<true>(most, all);
        else
            lane_sums<false>(most, all);
        done();
#pragma unroll
        for (int turn = 0; turn < Row::turns; turn++)
            sums[turn] = join_lanes<SumOf<A>, Team::lanes>(all[turn]);
    }

  private:
    template <bool Near>
    __device__ __forceinline__ void lane_sums(A most, A (&all)[Row::turns][V]) const {
#pragma unroll
        for (int turn = 0; turn < Row::turns; turn++) {
            // Lines of short rows are halved, those of a leaf added one to the other.
            constexpr int apart = Row::short_lines ? lines : 1;
            A s[V][apart];
#pragma unroll
            for (int line = 0; line < lines; line++) {
                A v[V];
                const bool has = Row::has(Row::first(turn, line));
                if (has) exps_of_words<Near>(words[turn * lines + line], most, v);
#pragma unroll
                for (int c = 0; c < V; c++) {
                    A& to = s[c][line % apart];
                    if (!has) v[c] = SumOf<A>::missing();
                    to = line < apart ? v[c] : has ? SumOf<A>::join(to, v[c]) : to;
                    keep_made(to);
                }
            }
#pragma unroll
            for (int c = 0; c < V; c++) all[turn][c] = halved<SumOf<A>>(s[c]);
        }
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
    typedef OwnLoss<A, Shape, Make, Labels, Loss, Most, Sum> Own;
    Own own(make, labels, loss, set_most, set_sum);
    constexpr int lanes = Team::lanes;
    const int lane = threadIdx.x % lanes;
    int turn = 0;
    AheadRows<Team, Shape::rows, Threads, Make> ahead(grid, make);
    ahead.each([&](int64_t r, bool mine) {
        const Held held(make(0), ahead.next);
        if (!Late) ahead.ask();
        const A most = Extremes<E>::largest_of(largest_of_lanes<lanes>(held.seen.most));
        A v[Row::turns];
        held.leaf_sums(most, v, [&] {
            if (Late) ahead.ask();
        });
        const A sum = sum_below(most, Team::template of_turns<SumOf<A>>(v));
        if (mine && lane == turn) own.take(r, most, sum);
        if (++turn == lanes) {
            own.store();
            turn = 0;
        }
    });
    own.store();
}

}  // namespace aicf
