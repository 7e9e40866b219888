// Reductions in the orders of abi.h. A leaf of the tree is one warp's: thread t holds lanes 4t to
// 4t + 3, so that a row in C order is read 16 bytes at a time; the lanes halve by shuffles, which
// commute, so every thread ends with the sum.
#pragma once

#include "core/abi/reduce.h"
#include "prelude.cuh"

namespace aicf {

/// A reducer of elements of type A.
template <class Op, class A>
struct ReducerOf {
    // Of float32 there are instructions that say the same, but for the payload of a NaN.
    __device__ __forceinline__ static A largest(A a, A b) {
#if __CUDA_ARCH__ >= 800
        if constexpr (same_type<A, float>) {
            float most;
            asm("max.NaN.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
            return most;
        }
#endif
        return scalar::maximum(a, b);
    }
    __device__ __forceinline__ static A smallest(A a, A b) {
#if __CUDA_ARCH__ >= 800
        if constexpr (same_type<A, float>) {
            float least;
            asm("min.NaN.f32 %0, %1, %2;" : "=f"(least) : "f"(a), "f"(b));
            return least;
        }
#endif
        return scalar::minimum(a, b);
    }
    __device__ __forceinline__ static A join(A a, A b) {
        return Op::template join<ReducerOf>(a, b);
    }
    __device__ __forceinline__ static A missing() { return Op::template missing<A>(); }
    __device__ __forceinline__ static A empty() { return Op::template empty<A>(); }
};
template <class A>
using SumOf = ReducerOf<reducers::Sum, A>;
template <class A>
using MaxOf = ReducerOf<reducers::Max, A>;

// ---- what a row's elements are -----------------------------------------------------------------

/// Neighbours as one word, which takes no more registers than they have bytes.
template <int Bytes>
struct WordOf {
    typedef uint64_t type;
};
template <>
struct WordOf<1> {
    typedef uint8_t type;
};
template <>
struct WordOf<2> {
    typedef uint16_t type;
};
template <>
struct WordOf<4> {
    typedef uint32_t type;
};
template <class E, int V>
struct Stored {
    typedef typename WordOf<int(sizeof(E)) * V>::type Word;
    static_assert(sizeof(Word) == sizeof(E) * V);
    Word word;
    template <bool Together>
    __device__ __forceinline__ static Stored load(const E* x) {
        if constexpr (Together || V == 1) return {*reinterpret_cast<const Word*>(x)};
        typedef typename WordOf<sizeof(E)>::type One;
        Word word = 0;
#pragma unroll
        for (int j = 0; j < V; j++)
            word |= Word(reinterpret_cast<const One*>(x)[j]) << (8 * int(sizeof(E)) * j % 64);
        return {word};
    }
    __device__ __forceinline__ E operator[](int j) const {
        typedef typename WordOf<sizeof(E)>::type One;
        return scalar::bit_cast<E>(One(word >> (8 * int(sizeof(E)) * j % 64)));
    }
};

/// Element i of a row as type A; `four` gives elements i to i + 3, i a multiple of 4. `Alike`: all
/// rows begin at the same place of 16 bytes.
template <class A, class E, class Elem, bool Alike>
struct RowOf {
    const E* x;
    bool wide;
    __device__ __forceinline__ explicit RowOf(const E* base)
        : x(base),
          wide(Elem::step == 1 && Alike &&
               reinterpret_cast<uint64_t>(base) % (sizeof(E) < 4 ? 4 * sizeof(E) : 16) == 0) {}
    __device__ __forceinline__ A operator()(int64_t i) const {
        return static_cast<A>(widen(x[Elem::at(i)]));
    }
    __device__ __forceinline__ void four(int64_t i, A (&a)[4]) const {
        if constexpr (Elem::step == 1 && sizeof(E) >= 2) {
            Wide<E> v[4];
            load_dense<4, E>(v, x + Elem::at(i), 0, 4, wide);
#pragma unroll
            for (int j = 0; j < 4; j++) a[j] = static_cast<A>(v[j]);
        } else if constexpr (Elem::step == 0) {
            const A one = (*this)(i);
#pragma unroll
            for (int j = 0; j < 4; j++) a[j] = one;
        } else {
#pragma unroll
            for (int j = 0; j < 4; j++) a[j] = (*this)(i + j);
        }
    }
    /// Element i of this row and of the V - 1 behind it as they are stored, or the one that all
    /// share: In says where rows begin. Or of this row i to i + V - 1: then In is Elem. `Together`:
    /// by one load.
    template <int V, class In, bool Together>
    __device__ __forceinline__ Stored<E, In::step == 0 ? 1 : V> across(int64_t i) const {
        static_assert(V == 1 || In::step >= 0);
        return Stored < E, In::step == 0 ? 1 : V > ::template load<Together>(x + Elem::at(i));
    }
    template <int V, class In>
    __device__ __forceinline__ bool together() const {
        return V == 1 || In::step == 0 || (Alike && aligned_for<V>(x));
    }
};

/// f of one or two rows, element by element.
template <class A, class F, class Row, class Other>
struct Mapped {
    F f;
    Row row;
    Other other;
    __device__ __forceinline__ A operator()(int64_t i) const { return f(row(i), other(i)); }
    __device__ __forceinline__ void four(int64_t i, A (&a)[4]) const {
        A b[4];
        row.four(i, a);
        other.four(i, b);
#pragma unroll
        for (int j = 0; j < 4; j++) a[j] = f(a[j], b[j]);
    }
};
template <class A>
struct Nothing {
    __device__ __forceinline__ A operator()(int64_t) const { return A(0); }
    __device__ __forceinline__ void four(int64_t, A (&)[4]) const {}
};
template <class A, class F, class Row, class Other>
__device__ __forceinline__ Mapped<A, F, Row, Other> mapped(F f, Row row, Other other) {
    return {f, row, other};
}

// ---- the tree ----------------------------------------------------------------------------------

/// Joins lanes 4t to 4t + 3 of each of `Lanes` neighbouring threads t, the rest of the leaf's lanes
/// being missing; all threads get the result. Partners share the work of the first two halvings;
/// `Soon`: they don't, which takes two exchanges less one after the other, and 20 in all for 8.
template <class Op, int Lanes, bool Soon = false, class A>
__device__ __forceinline__ A join_lanes(const A (&s)[4]) {
    const auto of_partner = [](A v, int d) { return __shfl_xor_sync(0xffffffffu, v, d); };
    if constexpr (Lanes >= 4 && !Soon) {
        constexpr int one = Lanes / 2, two = Lanes / 4;
        const bool high = threadIdx.x & one, odd = threadIdx.x & two;
        const A even = Op::join(high ? s[2] : s[0], of_partner(high ? s[0] : s[2], one)),
                other = Op::join(high ? s[3] : s[1], of_partner(high ? s[1] : s[3], one));
        A v = Op::join(odd ? other : even, of_partner(odd ? even : other, two));
#pragma unroll
        for (int d = two / 2; d > 0; d /= 2) v = Op::join(v, of_partner(v, d));
        v = Op::join(v, of_partner(v, one));
        return Op::join(v, of_partner(v, two));
    } else {
        A v[4] = {s[0], s[1], s[2], s[3]};
#pragma unroll
        for (int d = Lanes / 2; d > 0; d /= 2)
#pragma unroll
            for (int c = 0; c < 4; c++) v[c] = Op::join(v[c], of_partner(v[c], d));
        return Op::join(Op::join(v[0], v[2]), Op::join(v[1], v[3]));
    }
}

/// One leaf of n elements, n in [1, 512], by a whole warp; `Whole`: n is 512.
template <class Op, class A, bool Whole, class Row>
__device__ __forceinline__ A leaf(const Row& row, int64_t begin, int64_t n) {
    const int lane = threadIdx.x & 31;
    A s[4], e[4];
    if constexpr (Whole) {
        row.four(begin + 4 * lane, s);
#pragma unroll
        for (int j = 1; j < 4; j++) {
            row.four(begin + 4 * lane + kTreeLanes * j, e);
#pragma unroll
            for (int c = 0; c < 4; c++) s[c] = Op::join(s[c], e[c]);
        }
    } else {
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const int l = 4 * lane + c;
            s[c] = l < n ? row(begin + l) : Op::missing();
        }
#pragma unroll
        for (int j = 1; j < 4; j++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const int l = 4 * lane + c + int(kTreeLanes) * j;
                if (l < n) s[c] = Op::join(s[c], row(begin + l));
            }
    }
    return join_lanes<Op, 32>(s);
}

/// Joins what equal subtrees come to, one after the other; the last may be less than whole.
/// `Count`: how many there are at most, where that is known; else 0. Of few each level has a
/// register, which holds a subtree of 2^level where that bit of the count is set.
template <class Op, class A, int64_t Count>
struct Subtrees {
    static constexpr bool few = Count > 0 && Count <= 64;
    static constexpr int levels = !few         ? 40
                                  : Count > 32 ? 7
                                  : Count > 16 ? 6
                                  : Count > 8  ? 5
                                  : Count > 4  ? 4
                                  : Count > 2  ? 3
                                  : Count > 1  ? 2
                                               : 1;
    A part[levels] = {};
    int depth = 0;
    uint64_t count = 0;
    __device__ __forceinline__ void take(A v) {
        if constexpr (few) {
            const auto before = uint32_t(count++);
            bool moves = true;
#pragma unroll
            for (int level = 0; level < levels; level++) {
                const bool held = before >> level & 1;
                const A both = Op::join(part[level], v);
                part[level] = moves && !held ? v : part[level];
                v = moves && held ? both : v;
                moves = moves && held;
            }
        } else {
            for (uint64_t c = ++count; (c & 1) == 0; c >>= 1) v = Op::join(part[--depth], v);
            part[depth++] = v;
        }
    }
    __device__ __forceinline__ A total() {
        if constexpr (few) {
            A v = part[0];
            bool has = count & 1;
#pragma unroll
            for (int level = 1; level < levels; level++) {
                const bool held = count >> level & 1;
                v = !held ? v : has ? Op::join(part[level], v) : part[level];
                has = has || held;
            }
            return v;
        } else {
            A v = part[--depth];
            while (depth > 0) v = Op::join(part[--depth], v);
            return v;
        }
    }
};

/// Elements [begin, end) by one warp; begin is where a subtree of at least this size begins.
template <class Op, class A, class Row>
__device__ __forceinline__ A warp_tree(const Row& row, int64_t begin, int64_t end) {
    if (end - begin < kTreeLeaf) return leaf<Op, A, false>(row, begin, end - begin);
    if (end - begin == kTreeLeaf) return leaf<Op, A, true>(row, begin, kTreeLeaf);
    Subtrees<Op, A, 0> subtrees;
    for (int64_t at = begin; at < end; at += kTreeLeaf)
        subtrees.take(end - at < kTreeLeaf ? leaf<Op, A, false>(row, at, end - at)
                                           : leaf<Op, A, true>(row, at, kTreeLeaf));
    return subtrees.total();
}

/// Joins v[0, count) as the tree does, by a whole block; the result stands in v[0].
template <class Op, class A>
__device__ __forceinline__ void join_shared(A* v, int count, int threads) {
    __syncthreads();
    for (int s = 1; s < count; s *= 2) {
        for (int i = threadIdx.x * 2 * s; i + s < count; i += threads * 2 * s)
            v[i] = Op::join(v[i], v[i + s]);
        __syncthreads();
    }
}

/// Elements [begin, end) by a whole block: each warp takes groups of `Group` leaves, a power of
/// two. `shared` holds one value a group. Every thread gets the result; `shared` may be used again
/// at once.
template <class Op, class A, int Group, class Row>
__device__ __forceinline__ A block_tree(const Row& row, int64_t begin, int64_t end, A* shared,
                                        int threads) {
    constexpr int64_t span = Group * kTreeLeaf;
    const int groups = int((end - begin + span - 1) / span), warps = threads / 32;
    for (int g = threadIdx.x / 32; g < groups; g += warps) {
        const int64_t at = begin + g * span, stop = end - at < span ? end : at + span;
        A v;
        if constexpr (Group == 1)
            v = stop - at < span ? leaf<Op, A, false>(row, at, stop - at)
                                 : leaf<Op, A, true>(row, at, span);
        else
            v = warp_tree<Op, A>(row, at, stop);
        if ((threadIdx.x & 31) == 0) shared[g] = v;
    }
    join_shared<Op>(shared, groups, threads);
    const A result = shared[0];
    __syncthreads();
    return result;
}

// ---- kernels ------------------------------------------------------------------------------------
//
// Shape says rows and n; make(r) is row r; put(r, v) does what is left to do with its result.

/// The chunk of `Count` elements from `begin` on. A lot is on its way while the one before is
/// added.
template <class Op, class A, int Count, class Row>
__device__ __forceinline__ A chunk_of(const Row& row, int begin) {
    constexpr int Lot = lot_of(Count - 1, 5, 8), lots = (Count - 1) / Lot, rest = (Count - 1) % Lot;
    A part = row(begin), s[Lot];
    int i = begin + 1;
    if constexpr (lots > 0) {
#pragma unroll
        for (int q = 0; q < Lot; q++) s[q] = row(i + q);
#pragma unroll 2  // so that a lot need not move to where the one before it was
        for (int lot = 1; lot < lots; lot++) {
            A next[Lot];
            i += Lot;
#pragma unroll
            for (int q = 0; q < Lot; q++) next[q] = row(i + q);
#pragma unroll
            for (int q = 0; q < Lot; q++) part = Op::join(part, s[q]), s[q] = next[q];
        }
        i += Lot;
    }
    A last[rest + 1];
#pragma unroll
    for (int q = 0; q < rest; q++) last[q] = row(i + q);
    if constexpr (lots > 0)
#pragma unroll
        for (int q = 0; q < Lot; q++) part = Op::join(part, s[q]);
#pragma unroll
    for (int q = 0; q < rest; q++) part = Op::join(part, last[q]);
    return part;
}

/// chain(Chunk) by a thread a row.
template <class Op, class A, int64_t Chunk, class Shape, class Make, class Put>
__device__ __forceinline__ void reduce_threads(const Grid& grid, Make make, Put put) {
    constexpr int n = int(Shape::n), chunk = int(Chunk), rest = n % chunk;
    for (int r = int(grid.block * grid.threads + grid.thread()); r < int(Shape::rows);
         r += int(grid.blocks * grid.threads)) {
        const auto row = make(r);
        A total = Op::empty();
#pragma unroll 1
        for (int begin = 0; begin + chunk <= n; begin += chunk) {
            const A part = chunk_of<Op, A, chunk>(row, begin);
            total = begin == 0 ? part : Op::join(total, part);
        }
        if constexpr (rest > 0) {
            const A part = chunk_of<Op, A, rest>(row, n - rest);
            total = n < chunk ? part : Op::join(total, part);
        }
        put(r, total);
    }
}

/// Many blocks a row: each reduces `Span` elements, whole subtrees, and the last one of a row
/// joins.
template <class Op, class A, int Group, int64_t Span, class Shape, class Make, class Put>
__device__ __forceinline__ void reduce_split(const Grid& grid, A* parts, uint32_t* counters,
                                             Make make, Put put) {
    extern __shared__ __align__(16) char shared[];
    A* const held = reinterpret_cast<A*>(shared);
    constexpr int pieces = int((Shape::n + Span - 1) / Span);
    for (int64_t u = grid.block; u < Shape::rows * pieces; u += grid.blocks) {
        const int64_t r = u / pieces, piece = u - r * pieces;
        const int64_t begin = piece * Span, end = Shape::n - begin < Span ? Shape::n : begin + Span;
        const A v = block_tree<Op, A, Group>(make(r), begin, end, held, grid.threads);
        if (threadIdx.x == 0) parts[u] = v;
        if (!arrive_last(counters + r, pieces)) continue;
        for (int i = threadIdx.x; i < pieces; i += grid.threads)
            held[i] = __ldcg(parts + r * pieces + i);
        join_shared<Op>(held, pieces, grid.threads);
        if (threadIdx.x == 0) put(r, held[0]);
        __syncthreads();
    }
}

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

/// Lanes 0 to Count - 1, a power of two, halved.
template <class Op, int Count, class A>
__device__ __forceinline__ A halved(A (&s)[Count]) {
#pragma unroll
    for (int h = Count / 2; h > 0; h /= 2)
#pragma unroll
        for (int k = 0; k < Count / 2; k++)
            if (k < h) s[k] = Op::join(s[k], s[k + h]);
    return s[0];
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

/// The same of V results side by side that one word holds: 32 threads and 8 groups of them. A
/// thread takes its 16 lanes in the order in which halving needs them, Lot of them at a time, while
/// the next are on their way as they are stored.
template <class Op, int V, int Lot, bool Whole, bool Together, class A, class Row>
__device__ __forceinline__ void lanes_across(A (&s)[V], const Row& row, int64_t first,
                                             int64_t end) {
    constexpr int groups = 8, lots = int(kTreeLanes) / groups / Lot;
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

template <class Op, class A, int V, int Lot, int64_t Span, class Shape, class Make, class Put>
__device__ __forceinline__ void reduce_wide_columns(const Grid& grid, A* parts, uint32_t* counters,
                                                    Make make, Put put) {
    constexpr int groups = 8, columns = 32 * V, pieces = int((Shape::n + Span - 1) / Span);
    __shared__ A held[2][groups][columns];  // of two leaves in turn
    constexpr int64_t strips = (Shape::rows + columns - 1) / columns,
                      leaves = ((pieces > 1 ? Span : Shape::n) + kTreeLeaf - 1) / kTreeLeaf;
    const int own = int(threadIdx.x), c = own % 32 * V, g = own / 32;
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
                lanes_across<Op, V, Lot, true, true>(s, row, at + g, end);
            else if (together && Shape::n % kTreeLeaf != 0)
                lanes_across<Op, V, Lot, false, true>(s, row, at + g, end);
            else
                lanes_across<Op, V, 2, false, false>(s, row, at + g, end);
            A(&here)[groups][columns] = held[side];
            side ^= 1;
#pragma unroll
            for (int k = 0; k < V; k++) here[g][c + k] = s[k];
            __syncthreads();
            if (own < columns) {
                A lanes[groups];
#pragma unroll
                for (int k = 0; k < groups; k++) lanes[k] = here[k][own];
                subtrees.take(halved<Op>(lanes));
            }
        }
        A total = A(0);
        if (mine) total = subtrees.total();
        if constexpr (pieces > 1) {
            if (mine) parts[piece * Shape::rows + first + own] = total;
            if (!arrive_last(counters + strip, pieces)) continue;
            if (mine) {
                const A* const column = parts + first + own;
                total = joined<Op, pieces>([&](int p) { return __ldcg(column + p * Shape::rows); });
            }
        }
        if (mine) put(first + own, total);
    }
}

/// total takes held[0], held[Width], ... in ascending order; `begins`: it is the first itself.
template <class Op, int Width, int Most, class A>
__device__ __forceinline__ void join_held(A& total, const A* held, int count, bool begins) {
    total = begins ? held[0] : Op::join(total, held[0]);
    if (count == Most) {
#pragma unroll 16
        for (int i = 1; i < Most; i++) total = Op::join(total, held[i * Width]);
    } else {
        for (int i = 1; i < count; i++) total = Op::join(total, held[i * Width]);
    }
}

/// chain(Chunk): a block of 256 makes elements of a chunk for `Width` results in shared memory, all
/// threads at once, and a thread a result adds them. The block that is last to be done with a chunk
/// of these results adds the chunks.
template <class Op, class A, int64_t Chunk, int Most, int Width, class Shape, class Make, class Put>
__device__ __forceinline__ void reduce_chain(const Grid& grid, A* parts, uint32_t* counters,
                                             Make make, Put put) {
    extern __shared__ __align__(16) char shared[];
    A* const held = reinterpret_cast<A*>(shared);  // Most x Width
    constexpr int64_t n = Shape::n, chunks = n > 0 ? (n + Chunk - 1) / Chunk : 1,
                      strips = (Shape::rows + Width - 1) / Width;
    constexpr int groups = 256 / Width, turns = (Most + groups - 1) / groups,
                  Lot = Shape::unroll == 1 ? 4
                        : turns < 16       ? turns
                                           : 16;
    const int c = threadIdx.x % Width, g = threadIdx.x / Width;
    const auto some_of = [](int64_t left) {  // of what lies ahead: as many as there is room for
        constexpr bool whole = n % Most == 0 && (n <= Chunk || Chunk % Most == 0);
        return whole || left > Most ? Most : int(left);
    };
    for (int64_t u = grid.block; u < strips * chunks; u += grid.blocks) {
        const int64_t strip = u / chunks, chunk = u - strip * chunks, r = strip * Width + c;
        const bool mine = r < Shape::rows;
        const auto row = make(mine ? r : 0);  // a thread without a result repeats another's
        const int64_t begin = chunk * Chunk, end = n - begin < Chunk ? n : begin + Chunk;
        A total = Op::empty();
        for (int64_t at = begin; at < end; at += Most) {
            const int count = some_of(end - at);
#pragma unroll 1
            for (int turn = 0; turn < turns; turn += Lot) {
                A s[Lot];
#pragma unroll
                for (int k = 0; k < Lot; k++)
                    if (const int i = g + (turn + k) * groups; i < count) s[k] = row(at + i);
#pragma unroll
                for (int k = 0; k < Lot; k++)
                    if (const int i = g + (turn + k) * groups; i < count)
                        held[i * Width + c] = s[k];
            }
            __syncthreads();
            if (g == 0) join_held<Op, Width, Most>(total, held + c, count, at == begin);
            __syncthreads();
        }
        if constexpr (chunks > 1) {
            if (g == 0 && mine) parts[chunk * Shape::rows + r] = total;
            if (!arrive_last(counters + strip, uint32_t(chunks))) continue;
            for (int64_t at = 0; at < chunks; at += Most) {
                const int count = chunks - at < Most ? int(chunks - at) : Most;
#pragma unroll 8
                for (int i = g; i < count; i += groups)
                    if (mine) held[i * Width + c] = __ldcg(parts + (at + i) * Shape::rows + r);
                __syncthreads();
                if (g == 0) join_held<Op, Width, 0>(total, held + c, count, at == 0);
                __syncthreads();
            }
        }
        if (g == 0 && mine) put(r, total);
    }
}

/// The chain of `count` elements from `begin` on of V rows side by side. Lot of them are always on
/// their way, as they are stored, so that what is made of them takes no registers meanwhile.
template <class Op, int V, int Lot, bool Together, class A, class Row>
__device__ __forceinline__ void chain_across(A (&part)[V], const Row& row, int64_t begin,
                                             int count) {
    typedef typename Row::template Some<V> Some;
    const auto take = [&](const Some& some, bool first) {
        A v[V];
        row.template open<V>(some, v);
#pragma unroll
        for (int j = 0; j < V; j++) part[j] = first ? v[j] : Op::join(part[j], v[j]);
    };
    const auto load = [&](int i) { return row.template across<V, Together>(begin + i); };
    int at = 0;
    if (count >= Lot) {
        Some s[Lot];
#pragma unroll
        for (int q = 0; q < Lot; q++) s[q] = load(q);
#pragma unroll 1
        for (; at + 2 * Lot <= count; at += Lot)
#pragma unroll
            for (int q = 0; q < Lot; q++) {
                take(s[q], q == 0 && at == 0);
                s[q] = load(at + Lot + q);
            }
#pragma unroll
        for (int q = 0; q < Lot; q++) take(s[q], q == 0 && at == 0);
        at += Lot;
    }
#pragma unroll 1
    for (; at < count; at++) take(load(at), at == 0);
}

/// chain(Chunk) of tall columns: a thread takes V results side by side through a chunk, straight
/// from memory; Width threads stand side by side, teams of so many take chunks that follow each
/// other. The block that is last to be done with these results adds their chunks, Stage at a time.
template <class Op, class A, int64_t Chunk, int V, int Width, int Teams, int Lot, int Stage,
          class Shape, class Make, class Put>
__device__ __forceinline__ void reduce_tall(const Grid& grid, A* parts, uint32_t* counters,
                                            Make make, Put put) {
    extern __shared__ __align__(16) char shared[];
    A* const held = reinterpret_cast<A*>(shared);  // Stage x columns
    constexpr int columns = Width * V, threads = Width * Teams;
    static_assert(columns <= threads);
    constexpr int64_t n = Shape::n, chunks = (n + Chunk - 1) / Chunk,
                      pieces = (chunks + Teams - 1) / Teams,
                      strips = (Shape::rows + columns - 1) / columns;
    const int own = int(threadIdx.x);
    for (int64_t u = grid.block; u < strips * pieces; u += grid.blocks) {
        const int64_t piece = u / strips, strip = u - piece * strips, first = strip * columns,
                      r = first + own % Width * V, chunk = piece * Teams + own / Width;
        if (r < Shape::rows && chunk < chunks) {
            const auto row = make(r);
            const int64_t begin = chunk * Chunk;
            const int count = n % Chunk == 0 || n - begin >= Chunk ? int(Chunk) : int(n - begin);
            A part[V];
            if (row.template together<V>())
                chain_across<Op, V, Lot, true>(part, row, begin, count);
            else
                chain_across<Op, V, 8, false>(part, row, begin, count);
#pragma unroll
            for (int j = 0; j < V; j++) parts[chunk * Shape::rows + r + j] = part[j];
        }
        if (!arrive_last(counters + strip, uint32_t(pieces))) continue;
        const bool mine = own < columns && first + own < Shape::rows;
        A total = Op::empty();
        for (int64_t at = 0; at < chunks; at += Stage) {
            const int count = chunks - at < Stage ? int(chunks - at) : Stage;
#pragma unroll 8
            for (int i = own; i < count * columns; i += threads)
                if (first + i % columns < Shape::rows)
                    held[i] =
                        __ldcg(parts + (at + i / columns) * Shape::rows + first + i % columns);
            __syncthreads();
            if (mine) join_held<Op, columns, Stage>(total, held + own, count, at == 0);
            __syncthreads();
        }
        if (mine) put(first + own, total);
    }
}

}  // namespace aicf
