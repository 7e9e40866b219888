// Reductions in the order of the tree of results that lie side by side: neighbouring threads take
// neighbouring results, one or as many as 16 bytes hold, all lanes of few elements or some lanes of
// a leaf.
#pragma once

#include "reduce.cuh"

namespace aicf {

/// Lanes g, g + Groups, ..., below 128, of a leaf of a column. Nothing stands between the loads of
/// a whole leaf, so that they are all under way at once.
template <class Op, class Shape, bool Whole, int Groups, int Own, class A, class Row>
__device__ __forceinline__ void column_lanes(A (&s)[Own], const Row& row, int64_t first,
                                             int64_t end) {
#pragma unroll
    for (int k = 0; k < Own; k++)
        s[k] = Whole || first + Groups * k < end ? row(first + Groups * k) : Op::missing();
#pragma unroll Shape::unroll
    for (int j = 1; j < 4; j++)
#pragma unroll
        for (int k = 0; k < Own; k++) {
            const int64_t l = first + Groups * k + kTreeLanes * j;
            if (Whole || l < end) s[k] = Op::join(s[k], row(l));
        }
}

/// part(0), ..., part(Count - 1) as the tree joins them; a few are all under way at once.
template <class Op, int Count, class Part>
__device__ __forceinline__ auto joined(Part part) {
    typedef decltype(part(0)) A;
    if constexpr (Count <= 32) {
        A v[Count];
#pragma unroll
        for (int p = 0; p < Count; p++) v[p] = part(p);
#pragma unroll
        for (int s = 1; s < Count; s *= 2)
#pragma unroll
            for (int p = 0; p + s < Count; p += 2 * s) v[p] = Op::join(v[p], v[p + s]);
        return v[0];
    } else {
        Subtrees<Op, A, 0> all;
#pragma unroll 8
        for (int p = 0; p < Count; p++) all.take(part(p));
        return all.total();
    }
}

/// What pieces come to, of which load(p) is a thread's part of piece p: by `Teams` teams of a
/// block, of `Columns` threads; the first gets them. `held`: one for each thread.
template <class Op, int Columns, int Pieces, int Teams, class T, class Load>
__device__ __forceinline__ T join_pieces_of(T* held, const Load& load) {
    constexpr int share = [] {
        int each = 1;
        while (each * Teams < Pieces) each *= 2;
        return each;
    }();
    constexpr int used = (Pieces + share - 1) / share;
    const int column = threadIdx.x % Columns, team = threadIdx.x / Columns, from = team * share;
    constexpr int lot = share < 16 ? share : 16;  // on their way at once
    if (team < used) {
        Subtrees<Op, T, share / lot> all;
#pragma unroll 1
        for (int at = from; at < from + share; at += lot)
            all.take(joined<Op, lot>(
                [&](int p) { return at + p < Pieces ? load(at + p) : Op::missing(); }));
        held[team * Columns + column] = all.total();
    }
    __syncthreads();
    T total = {};
    if (team == 0) total = joined<Op, used>([&](int q) { return held[q * Columns + column]; });
    __syncthreads();
    return total;
}

/// The same of parts that lie Step apart, one after the other for `Columns` results side by side,
/// of which the first `there` exist: a thread for each result.
template <class Op, int Columns, int Pieces, int64_t Step,
          int Teams = Columns < 16 ? 16 : 256 / Columns, class A>
__device__ __forceinline__ A join_pieces(A* held, const A* parts, int64_t there) {
    const int column = threadIdx.x % Columns;
    const bool exists = Step % Columns == 0 || column < there;
    return join_pieces_of<Op, Columns, Pieces, Teams>(
        held, [&](int p) { return exists ? __ldcg(parts + p * Step + column) : Op::missing(); });
}

/// Op of four numbers, each by itself.
template <class Op, class A>
struct FourOf {
    typedef Pack<A, 4> Four;
    __device__ __forceinline__ static Four missing() {
        return {Op::missing(), Op::missing(), Op::missing(), Op::missing()};
    }
    __device__ __forceinline__ static Four join(const Four& a, const Four& b) {
        Four all;
#pragma unroll
        for (int c = 0; c < 4; c++) all.at[c] = Op::join(a.at[c], b.at[c]);
        return all;
    }
    /// As __ldcg() loads them.
    __device__ __forceinline__ static Four load(const A* x) {
        static_assert(sizeof(A) == 4);
        Four all;
#ifdef __CUDACC_RTC__
        asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(all.at[0]), "=f"(all.at[1]), "=f"(all.at[2]), "=f"(all.at[3])
                     : "l"(x)
                     : "memory");
#else
        all = __ldcg(reinterpret_cast<const Four*>(x));
#endif
        return all;
    }
};

/// join_pieces() of four results side by side to a thread. N: how many there are.
template <class Op, int Columns, int Pieces, int64_t N, int Teams, class A>
__device__ __forceinline__ Pack<A, 4> join_pieces_of_four(A* held, const A* parts, int64_t there) {
    typedef FourOf<Op, A> Fours;
    static_assert(N % 4 == 0);
    const int column = 4 * int(threadIdx.x % Columns);
    const bool exists = N % (4 * Columns) == 0 || column < there;
    return join_pieces_of<Fours, Columns, Pieces, Teams>(
        reinterpret_cast<Pack<A, 4>*>(held),
        [&](int p) { return exists ? Fours::load(parts + p * N + column) : Fours::missing(); });
}

/// Few elements a result, which a thread joins; results side by side are neighbours', who take Lots
/// of them each, all of whose elements are under way at once.
template <class Op, class A, int Lots, class Shape, class Make, class Put>
__device__ __forceinline__ void reduce_few(const Grid& grid, Make make, Put put) {
    constexpr int n = int(Shape::n);
    constexpr int half = n > 16 ? 16 : n > 8 ? 8 : n > 4 ? 4 : n > 2 ? 2 : 1;
    const int64_t each = int64_t(grid.threads) * Lots;
    for (int64_t first = grid.block * each + grid.thread(); first < Shape::rows;
         first += grid.blocks * each) {
        A s[Lots][n];
#pragma unroll
        for (int k = 0; k < Lots; k++) {
            const int64_t r = first + int64_t(k) * grid.threads;
            const auto row = make(Lots == 1 || r < Shape::rows ? r : first);
#pragma unroll
            for (int i = 0; i < n; i++) s[k][i] = row(i);
        }
#pragma unroll
        for (int k = 0; k < Lots; k++) {
#pragma unroll
            for (int h = half; h > 0; h /= 2)
#pragma unroll
                for (int l = 0; l < h && l + h < n; l++) s[k][l] = Op::join(s[k][l], s[k][l + h]);
            const int64_t r = first + int64_t(k) * grid.threads;
            if (Lots == 1 || r < Shape::rows) put(r, s[k][0]);
        }
    }
}

/// Neighbouring results lie side by side: Width of them to a block of 256, whose thread (c, g)
/// holds lanes g, g + Groups, ... of result c. Halving down to so many lanes stays inside a thread.
template <class Op, class A, int Width, int64_t Span, class Shape, class Make, class Put>
__device__ __forceinline__ void reduce_columns(const Grid& grid, A* parts, uint32_t* counters,
                                               Make make, Put put) {
    constexpr int groups = 256 / Width, own = int(kTreeLanes) / groups;
    __shared__ A
        held[2][groups][Width + 1];  // of two leaves in turn, so that one barrier does for each
    constexpr int pieces = int((Shape::n + Span - 1) / Span);
    constexpr int64_t strips = (Shape::rows + Width - 1) / Width,
                      leaves = ((pieces > 1 ? Span : Shape::n) + kTreeLeaf - 1) / kTreeLeaf;
    const int c = threadIdx.x % Width, g = threadIdx.x / Width;
    int side = 0;
    for (int64_t u = grid.block; u < strips * pieces; u += grid.blocks) {
        const int64_t strip = u / pieces, piece = u - strip * pieces, r = strip * Width + c;
        const bool mine = r < Shape::rows;
        const auto row = make(mine ? r : 0);  // a thread without a result repeats another's
        const int64_t begin = piece * Span, end = Shape::n % Span != 0 && Shape::n - begin < Span
                                                      ? Shape::n
                                                      : begin + Span;
        Subtrees<Op, A, leaves> subtrees;
#pragma unroll(leaves <= 4 ? int(leaves) : 1)
        for (int64_t at = begin; at < end; at += kTreeLeaf) {
            A s[own];
            if (Shape::n % kTreeLeaf == 0 || end - at >= kTreeLeaf)
                column_lanes<Op, Shape, true, groups>(s, row, at + g, end);
            else
                column_lanes<Op, Shape, false, groups>(s, row, at + g, end);
            A(&here)[groups][Width + 1] = held[side];
            side ^= 1;
            here[g][c] = halved<Op>(s);
            __syncthreads();
            if (g == 0) {
                A lanes[groups];
#pragma unroll
                for (int k = 0; k < groups; k++) lanes[k] = here[k][c];
                subtrees.take(halved<Op>(lanes));
            }
        }
        A total = A(0);
        if (g == 0) total = subtrees.total();
        if constexpr (pieces > 1) {
            if (g == 0 && mine) parts[piece * Shape::rows + r] = total;
            if (!arrive_last(counters + strip, pieces)) continue;
            if (g == 0 && mine) {
                const A* const column = parts + r;
                total = joined<Op, pieces>([&](int p) { return __ldcg(column + p * Shape::rows); });
            }
        }
        if (g == 0 && mine) put(r, total);
    }
}

/// A column of few lanes, N of them, by a thread that has V results side by side: Lot lanes at a
/// time, in the order in which halving needs them, while the next are on their way.
template <class Op, class A, int V, bool Together, int N, class Row>
__device__ __forceinline__ void few_across(A (&total)[V], const Row& row) {
    constexpr int lot = 8,
                  all = N > 64   ? 128
                        : N > 32 ? 64
                        : N > 16 ? 32
                        : N > 8  ? 16
                                 : 8,
                  lots = all / lot;
    typename Row::template Some<V> held[lot];
    const auto start = [](int i) {  // the bits of i reversed
        int low = 0;
#pragma unroll
        for (int bit = 1; bit < lots; bit *= 2) low += i & bit ? lots / 2 / bit : 0;
        return low;
    };
    const auto load = [&](int i) {
#pragma unroll
        for (int q = 0; q < lot; q++)
            if (start(i) + lots * q < N)
                held[q] = row.template across<V, Together>(start(i) + lots * q);
    };
    Subtrees<Op, A, lots> halves[V];
    load(0);
#pragma unroll
    for (int i = 0; i < lots; i++) {
        A v[V][lot];
#pragma unroll
        for (int q = 0; q < lot; q++) {
            A e[V];
            if (start(i) + lots * q < N) row.template open<V>(held[q], e);
#pragma unroll
            for (int c = 0; c < V; c++) v[c][q] = start(i) + lots * q < N ? e[c] : Op::missing();
        }
        if (i + 1 < lots) load(i + 1);
#pragma unroll
        for (int c = 0; c < V; c++) halves[c].take(halved<Op>(v[c]));
    }
#pragma unroll
    for (int c = 0; c < V; c++) total[c] = halves[c].total();
}
template <class Op, class A, int V, class Shape, class Make, class Put>
__device__ __forceinline__ void reduce_few_across(const Grid& grid, Make make, Put put) {
    for (int64_t first = (int64_t(grid.block) * grid.threads + grid.thread()) * V;
         first < Shape::rows; first += int64_t(grid.blocks) * grid.threads * V) {
        const auto row = make(first);
        A total[V];
        if (row.template together<V>())
            few_across<Op, A, V, true, int(Shape::n)>(total, row);
        else
            few_across<Op, A, V, false, int(Shape::n)>(total, row);
#pragma unroll
        for (int c = 0; c < V; c++) put(first + c, total[c]);
    }
}

/// Lanes of a leaf of V results side by side. A thread takes those of its group in the order in
/// which halving needs them, Lot of them at a time, while the next are on their way as they are
/// stored.
template <class Op, int V, int Lot, int groups, bool Whole, bool Together, class A, class Row>
__device__ __forceinline__ void lanes_across(A (&s)[V], const Row& row, int64_t first,
                                             int64_t end) {
    constexpr int lots = int(kTreeLanes) / groups / Lot;
    typename Row::template Some<V> held[Lot][4];
    // Lane q of lot i comes after as many others as its bits reversed say: what halving joins
    // first is half of all lanes apart.
    const auto start = [&](int i) {
        int low = 0;
#pragma unroll
        for (int bit = 1; bit < lots; bit *= 2) low += i & bit ? lots / 2 / bit : 0;
        return first + groups * low;
    };
    const auto step = [](int q, int j) {
        int high = 0;
#pragma unroll
        for (int bit = 1; bit < Lot; bit *= 2) high += q & bit ? Lot / 2 / bit : 0;
        return groups * lots * high + int(kTreeLanes) * j;
    };
    const auto load = [&](int64_t at) {
#pragma unroll
        for (int q = 0; q < Lot; q++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (Whole || at + step(q, j) < end)
                    held[q][j] = row.template across<V, Together>(at + step(q, j));
    };
    Subtrees<Op, A, lots> halves[V];
    int64_t at = start(0);
    load(at);
#pragma unroll 1  // so that loads need not wait for the sums before them
    for (int i = 0; i < lots; i++) {
        A v[Lot][V];
#pragma unroll
        for (int q = 0; q < Lot; q++) {
#pragma unroll
            for (int c = 0; c < V; c++) v[q][c] = Op::missing();
#pragma unroll
            for (int j = 0; j < 4; j++)
                if (Whole || at + step(q, j) < end) {
                    A e[V];
                    row.template open<V>(held[q][j], e);
#pragma unroll
                    for (int c = 0; c < V; c++) v[q][c] = j == 0 ? e[c] : Op::join(v[q][c], e[c]);
                }
        }
        if (i + 1 < lots) load(at = start(i + 1));
#pragma unroll
        for (int h = 1; h < Lot; h *= 2)
#pragma unroll
            for (int q = 0; q + h < Lot; q += 2 * h)
#pragma unroll
                for (int c = 0; c < V; c++) v[q][c] = Op::join(v[q][c], v[q + h][c]);
#pragma unroll
        for (int c = 0; c < V; c++) halves[c].take(v[0][c]);
    }
#pragma unroll
    for (int c = 0; c < V; c++) s[c] = halves[c].total();
}

/// Neighbouring results side by side, `Across` threads of V of them; the warps and what else of a
/// warp there is are groups, which have their own lanes of each leaf.
template <class Op, class A, int V, int Lot, int Across, int64_t Span, class Shape, class Make,
          class Put>
__device__ __forceinline__ void reduce_wide_columns(const Grid& grid, A* parts, uint32_t* counters,
                                                    Make make, Put put) {
    constexpr int warps = 8, groups = warps * (32 / Across), columns = Across * V,
                  pieces = int((Shape::n + Span - 1) / Span);
    __shared__ A held[2][warps][columns];  // of two leaves in turn
    constexpr int64_t strips = (Shape::rows + columns - 1) / columns,
                      leaves = ((pieces > 1 ? Span : Shape::n) + kTreeLeaf - 1) / kTreeLeaf;
    const int own = int(threadIdx.x), lane = own % 32, warp = own / 32, c = lane % Across * V,
              g = lane / Across * warps + warp;
    int side = 0;
    for (int64_t u = grid.block; u < strips * pieces; u += grid.blocks) {
        const int64_t strip = u / pieces, piece = u - strip * pieces, first = strip * columns;
        const bool mine = own < columns && first + own < Shape::rows;
        const auto row = make(first + c < Shape::rows ? first + c : 0);
        const bool together = row.template together<V>();
        const int64_t begin = piece * Span, end = Shape::n % Span != 0 && Shape::n - begin < Span
                                                      ? Shape::n
                                                      : begin + Span;
        Subtrees<Op, A, leaves> subtrees;
        for (int64_t at = begin; at < end; at += kTreeLeaf) {
            const bool whole = Shape::n % kTreeLeaf == 0 || end - at >= kTreeLeaf;
            A s[V];
            if (whole && together)
                lanes_across<Op, V, Lot, groups, true, true>(s, row, at + g, end);
            else if (together && Shape::n % kTreeLeaf != 0)
                lanes_across<Op, V, Lot, groups, false, true>(s, row, at + g, end);
            else
                lanes_across < Op, V, Lot<2 ? Lot : 2, groups, false, false>(s, row, at + g, end);
#pragma unroll
            for (int d = 16; d >= Across; d /= 2)
#pragma unroll
                for (int k = 0; k < V; k++)
                    s[k] = Op::join(s[k], __shfl_xor_sync(0xffffffffu, s[k], d));
            A(&here)[warps][columns] = held[side];
            side ^= 1;
            if (lane < Across)
#pragma unroll
                for (int k = 0; k < V; k++) here[warp][c + k] = s[k];
            __syncthreads();
            if (own < columns) {
                A lanes[warps];
#pragma unroll
                for (int k = 0; k < warps; k++) lanes[k] = here[k][own];
                subtrees.take(halved<Op>(lanes));
            }
        }
        A total = A(0);
        if (mine) total = subtrees.total();
        if constexpr (pieces > 1) {
            if (mine) parts[piece * Shape::rows + first + own] = total;
            if (!arrive_last(counters + strip, pieces)) continue;
            total = join_pieces<Op, columns, pieces, Shape::rows>(&held[0][0][0], parts + first,
                                                                  Shape::rows - first);
        }
        if (mine) put(first + own, total);
    }
}

}  // namespace aicf
