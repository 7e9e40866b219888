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

/// The losses of the rows that a block takes one after the other, of `Leaves` leaves. A row waits
/// for one barrier, behind which its largest element is known, and the sum of the one before; the
/// losses wait until each thread has one to make.
template <class A, class E, int Leaves, int Warps, class Store>
struct BlockLosses {
    static constexpr int words = (Warps + 3) / 4 * 4;  // of `largest`
    uint32_t* const largest_of;                        // warps, of two rows in turn
    A* const sums;                                     // of leaves, likewise
    const Store& store;                                // of parts and a row
    int side = 0, turn = 0;
    int64_t before = -1, own = -1;  // the row that is not yet done, the one whose loss this makes
    A most_before = A(0);
    LossParts<A> parts = {A(0), A(0)};

    __device__ __forceinline__ BlockLosses(void* shared, const Store& store)
        : largest_of(static_cast<uint32_t*>(shared)),
          sums(reinterpret_cast<A*>(largest_of + 2 * words)),
          store(store) {}

    /// The largest element of row r, of which this thread has seen some.
    __device__ __forceinline__ A most(int64_t r, Two<E> seen) {
        uint32_t* const here = largest_of + side * words;
        seen = largest_of_lanes<32>(seen);
        if (threadIdx.x % 32 == 0) here[threadIdx.x / 32] = seen.word;
        __syncthreads();
        Two<E> all = {here[0]};
#pragma unroll
        for (int w = 0; w < words; w += 4) {
            const auto four = *reinterpret_cast<const Pack<uint32_t, 4>*>(here + w);
#pragma unroll
            for (int c = 0; c < 4; c++)
                if (w + c < Warps) all = largest(all, {four.at[c]});
        }
        end_row();
        side ^= 1;
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
        if (own >= 0) store(parts, own);
    }

  private:
    __device__ __forceinline__ void end_row() {
        if (before < 0) return;
        if (int(threadIdx.x) / 32 == turn % Warps) {
            const A sum = join_leaves<SumOf<A>, Leaves>(sums + side * Leaves);
            if (int(threadIdx.x % 32) == turn / Warps) {
                parts = {most_before, most_before - most_before == A(0)
                                          ? sum
                                          : static_cast<A>(scalar::from_bits(0x7fc00000u))};
                own = before;
            }
        }
        if (++turn == 32 * Warps) {
            store(parts, own);
            own = -1;
            turn = 0;
        }
    }
};

/// A row that a block has in shared memory, of which each thread reads the elements alone that it
/// asks for: eight beside each other, in the place of which those of the next row come. `Lanes`
/// threads have a leaf.
template <class E, int N, int Warps, int Lanes>
struct OwnPieces {
    static constexpr int V = 8, lines = 4, leaves = (N + int(kTreeLeaf) - 1) / int(kTreeLeaf),
                         together = Warps * 32 / Lanes, turns = (leaves + together - 1) / together,
                         span = V * Lanes, parts = int(kTreeLanes) / span;  // of a line
    static_assert(N % V == 0 && parts * span == kTreeLanes);
    E* const row;

    __device__ __forceinline__ static int leaf_of(int turn) {
        return turn * together + int(threadIdx.x) / Lanes;
    }
    __device__ __forceinline__ static int place(int turn, int line, int part) {
        return leaf_of(turn) * int(kTreeLeaf) + line * int(kTreeLanes) + part * span +
               V * int(threadIdx.x % Lanes);
    }
    __device__ __forceinline__ static bool whole(int turn) {
        return N % (together * int(kTreeLeaf)) == 0 || (leaf_of(turn) + 1) * int(kTreeLeaf) <= N;
    }
    __device__ __forceinline__ Words<E, V> at(int i) const {
        return {*reinterpret_cast<const Pack<uint32_t, V / 2>*>(row + i)};
    }
    /// Asks for a piece of row x.
    __device__ __forceinline__ void ask(const E* x, int i) const {
        if (aligned_for<V>(x)) {
            copy_async<16>(row + i, x + i);
        } else {
#pragma unroll 1
            for (int j = 0; j < V; j++) row[i + j] = x[i + j];
        }
    }
    __device__ __forceinline__ void ask_all(const E* x) const {
#pragma unroll
        for (int turn = 0; turn < turns; turn++)
#pragma unroll
            for (int line = 0; line < lines; line++) {
#pragma unroll
                for (int part = 0; part < parts; part++)
                    if (const int i = place(turn, line, part); x != nullptr && i < N) ask(x, i);
                commit_copies();
            }
    }
    /// What the row that has been asked for has at its extremes.
    template <int Turn = 0, int Line = 0>
    __device__ __forceinline__ void look(Extremes<E>& seen) const {
        wait_copies<(turns - Turn) * lines - Line - 1>();
#pragma unroll
        for (int part = 0; part < parts; part++)
            if (const int i = place(Turn, Line, part); i < N) seen.take(at(i));
        if constexpr (Line + 1 < lines)
            look<Turn, Line + 1>(seen);
        else if constexpr (Turn + 1 < turns)
            look<Turn + 1, 0>(seen);
    }
    /// The sum of a leaf's exponentials; asks for `next`, if there is one.
    template <class A>
    __device__ __forceinline__ A sum(int turn, A most, bool near, const E* next) const {
        A s[parts][V];
        if (near && whole(turn)) {
#pragma unroll
            for (int line = 0; line < lines; line++) {
#pragma unroll
                for (int part = 0; part < parts; part++) {
                    const int i = place(turn, line, part);
                    const Words<E, V> x = at(i);
                    A v[V];
                    exps_of_words<true>(x, most, v);
                    if (next != nullptr) ask(next, i);
#pragma unroll
                    for (int c = 0; c < V; c++)
                        s[part][c] = line == 0 ? v[c] : SumOf<A>::join(s[part][c], v[c]);
                }
                commit_copies();
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
                    if (i >= N) break;
                    A v[V];
                    exps_of_words<false>(at(i), most, v);
                    if (next != nullptr) ask(next, i);
#pragma unroll
                    for (int c = 0; c < V; c++) s[part][c] = SumOf<A>::join(s[part][c], v[c]);
                }
                commit_copies();
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

/// cross_entropy_rows of long rows, of which a block has one in shared memory.
template <class A, int Warps, int Lanes, class E, class Shape, class Make, class Labels, class Loss,
          class Most, class Sum, class Put>
__device__ __forceinline__ void cross_entropy_filled(const Grid& grid, Make make, Labels labels,
                                                     Loss loss, Most set_most, Sum set_sum, Put) {
    typedef OwnPieces<E, int(Shape::n), Warps, Lanes> Row;
    typedef typename RowNumber<(Shape::rows < (1 << 30))>::type Number;
    extern __shared__ __align__(16) char bytes[];
    const Row row{reinterpret_cast<E*>(bytes)};
    const auto store = [&](const LossParts<A>& parts, int64_t r) {
        store_loss<A, Shape>(parts, r, make, labels, loss, set_most, set_sum);
    };
    BlockLosses<A, E, Row::leaves, Warps, decltype(store)> losses(row.row + Shape::n, store);
    constexpr auto rows = Number(Shape::rows);
    const auto step = Number(grid.blocks);
    auto r = Number(grid.block);
    row.ask_all(r < rows ? make(r).own() : nullptr);
    for (; r < rows; r += step) {
        const E* const next = r + step < rows ? make(r + step).own() : nullptr;
        Extremes<E> seen;
        row.look(seen);
        const A most = losses.most(r, seen.most);
        const bool near = seen.are_near(most);
#pragma unroll 1
        for (int turn = 0; turn < Row::turns; turn++) {
            const A sum = row.sum(turn, most, near, next);
            const int leaf = Row::leaf_of(turn);
            if (threadIdx.x % Lanes == 0 && leaf < Row::leaves) losses.leaf(leaf, sum);
        }
    }
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
    template <bool Near>
    __device__ __forceinline__ void exps(A most, Row& x) const {
        each_piece<Row>(
            [&](int k, int) { exps_of_words<Near>(words[k], most, x.a[k / lines][k % lines]); });
    }
    __device__ __forceinline__ Row exps(A most) const {
        Row x = {};
        if (seen.are_near(most))
            exps<true>(most, x);
        else
            exps<false>(most, x);
        return x;
    }
};

/// cross_entropy_rows of rows that a team holds and reads ahead, by blocks of so many threads.
template <class A, class Team, int Threads, class E, class Shape, class Make, class Labels,
          class Loss, class Most, class Sum, class Put>
__device__ __forceinline__ void cross_entropy_ahead(const Grid& grid, Make make, Labels labels,
                                                    Loss loss, Most set_most, Sum set_sum, Put) {
    extern __shared__ __align__(16) char bytes[];
    typedef typename Team::Row Row;
    typedef HeldWords<A, Team, E> Held;
    AheadRows<Team, Shape::rows, Threads, Make> ahead(grid, make);
    const auto store = [&](const LossParts<A>& parts, int64_t r) {
        store_loss<A, Shape>(parts, r, make, labels, loss, set_most, set_sum);
    };
    if constexpr (Team::words > 0) {
        BlockLosses<A, E, Row::leaves, Threads / 32, decltype(store)> losses(bytes, store);
        ahead.each([&](int64_t r, bool) {
            const Held held(make(0), ahead.next);
            ahead.ask();
            const A most = losses.most(r, held.seen.most);
            A v[Row::turns];
            held.exps(most).template leaf_results<SumOf<A>>(v);
#pragma unroll
            for (int turn = 0; turn < Row::turns; turn++) {
                const int leaf = Row::leaf_of(turn);
                if (Row::first(turn, 0) % int(kTreeLeaf) == 0 && leaf < Row::leaves)
                    losses.leaf(leaf, v[turn]);
            }
        });
        losses.end();
    } else {
        constexpr int lanes = Threads / Team::count(Threads);
        Team team{nullptr};
        LossParts<A> parts = {A(0), A(0)};
        int64_t own = -1;
        int turn = 0;
        ahead.each([&](int64_t r, bool mine) {
            const Held held(make(0), ahead.next);
            ahead.ask();
            const A most = Extremes<E>::largest_of(largest_of_lanes<lanes>(held.seen.most)),
                    sum = sum_where(team, held.exps(most), most);
            if (mine && int(threadIdx.x % lanes) == turn) parts = {most, sum}, own = r;
            if (++turn == lanes) {
                if (own >= 0) store(parts, own);
                own = -1;
                turn = 0;
            }
        });
        if (own >= 0) store(parts, own);
    }
}

}  // namespace aicf
