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
    static constexpr bool ordered = Op::ordered;
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
    static constexpr int count = sizeof(E) * V > 8 ? int(sizeof(E)) * V / 8 : 1, each = V / count;
    typedef typename WordOf<int(sizeof(E)) * each>::type Word;
    static_assert(sizeof(Word) * count == sizeof(E) * V);
    Pack<Word, count> words;
    template <bool Together, bool Here = false>
    __device__ __forceinline__ static Stored load(const E* x) {
        if constexpr (Together && Here && sizeof(words) == 8)
            return {load_here(reinterpret_cast<const Pack<Word, count>*>(x))};
        if constexpr (Together || V == 1) return {*reinterpret_cast<const Pack<Word, count>*>(x)};
        typedef typename WordOf<sizeof(E)>::type One;
        Stored all = {};
#pragma unroll
        for (int j = 0; j < V; j++)
            all.words.at[j / each] |= Word(reinterpret_cast<const One*>(x)[j])
                                      << (8 * int(sizeof(E)) * (j % each) % 64);
        return all;
    }
    __device__ __forceinline__ E operator[](int j) const {
        typedef typename WordOf<sizeof(E)>::type One;
        return scalar::bit_cast<E>(
            One(words.at[j / each] >> (8 * int(sizeof(E)) * (j % each) % 64)));
    }
    /// As pairs; one for all is two of each.
    template <int Count>
    __device__ __forceinline__ void twos(Two<E> (&a)[Count]) const {
#pragma unroll
        for (int j = 0; j < Count; j++)
            a[j].word = V == 1 ? uint32_t(words.at[0]) * 0x10001u
                               : uint32_t(words.at[2 * j / each] >> (16 * (2 * j % each)));
    }
};

/// How rows in global memory, which nothing reads again, are loaded: as the compiler likes; past
/// the first cache; where it stands (8 bytes); to stay in the second cache (16 bits).
enum class Loads { any, once, here, lasting };

/// Element i of a row as type A; `some` gives elements i to i + V - 1, i a multiple of V. `Alike`:
/// all rows begin at the same place of so many elements, up to 16 bytes; 0: they need not. `Asks`:
/// aligned() says for a whole row how it is read, instead of each access for itself.
template <class A, class E, class Elem, int Alike, bool Asks = is_16_bit<E>, Loads How = Loads::any>
struct RowOf {
    const E* x;
    __device__ __forceinline__ explicit RowOf(const E* base) : x(base) {}
    __device__ __forceinline__ A operator()(int64_t i) const {
        return static_cast<A>(widen(x[Elem::at(i)]));
    }
    static constexpr bool asks = Asks && sizeof(E) >= 2 && Elem::step == 1 && Alike > 0,
                          lasting = How == Loads::lasting;
    template <int V>
    static constexpr int at_once = V < Alike                 ? V
                                   : Alike > 0               ? Alike
                                   : V < 16 / int(sizeof(E)) ? V
                                                             : 16 / int(sizeof(E));
    /// Whether elements are loaded so. Of 16 bits that is slower.
    template <int V>
    static constexpr bool once = How == Loads::once && asks && sizeof(E) == 4 && V == 4;
    /// Whether some<V, true>() may be called.
    template <int V>
    __device__ __forceinline__ bool aligned() const {
        if constexpr (asks) return aligned_for<at_once<V>>(x);
        return true;
    }
    template <int V, bool Aligned = false>
    __device__ __forceinline__ void some(int64_t i, A (&a)[V]) const {
        if constexpr (Elem::step == 1 && sizeof(E) >= 2) {
            constexpr int each = at_once<V>;
            const bool wide = (asks && Aligned) || (Alike > 0 && aligned_for<each>(x));
#pragma unroll
            for (int part = 0; part < V; part += each) {
                Wide<E> v[each];
                const E* const from = x + Elem::at(i + part);
                if (once<each> && wide) {
                    const auto pack = load_once(reinterpret_cast<const Pack<E, each>*>(from));
#pragma unroll
                    for (int j = 0; j < each; j++) v[j] = widen(pack.at[j]);
                } else {
                    load_dense<each, E, lasting>(v, from, 0, each, wide && !once<each>);
                }
#pragma unroll
                for (int j = 0; j < each; j++) a[part + j] = static_cast<A>(v[j]);
            }
        } else if constexpr (Elem::step == 0) {
            const A one = (*this)(i);
#pragma unroll
            for (int j = 0; j < V; j++) a[j] = one;
        } else {
#pragma unroll
            for (int j = 0; j < V; j++) a[j] = (*this)(i + j);
        }
    }
    /// Element i of this row and of the V - 1 behind it as they are stored, or the one that all
    /// share: In says where rows begin. Or of this row i to i + V - 1: then In is Elem. `Together`:
    /// by one load.
    template <int V, class In, bool Together>
    __device__ __forceinline__ Stored<E, In::step == 0 ? 1 : V> across(int64_t i) const {
        static_assert(V == 1 || In::step >= 0);
        typedef Stored<E, In::step == 0 ? 1 : V> Neighbours;
        return Neighbours::template load<Together, How == Loads::here>(x + Elem::at(i));
    }
    template <int V, class In>
    __device__ __forceinline__ bool together() const {
        return V == 1 || In::step == 0 || (Alike % V == 0 && Alike > 0 && aligned_for<V>(x));
    }
};

/// f of one or two rows, element by element.
template <class A, class F, class Row, class Other>
struct Mapped {
    F f;
    Row row;
    Other other;
    __device__ __forceinline__ A operator()(int64_t i) const { return f(row(i), other(i)); }
    template <int V>
    __device__ __forceinline__ bool aligned() const {
        return row.template aligned<V>() && other.template aligned<V>();
    }
    template <int V, bool Aligned = false>
    __device__ __forceinline__ void some(int64_t i, A (&a)[V]) const {
        A b[V];
        row.template some<V, Aligned>(i, a);
        other.template some<V, Aligned>(i, b);
#pragma unroll
        for (int j = 0; j < V; j++) a[j] = f(a[j], b[j]);
    }
};
/// A row after f, which alters some elements at once.
template <class A, class F, class Row>
struct Altered {
    F f;
    Row row;
    __device__ __forceinline__ A operator()(int64_t i) const {
        A a[1] = {row(i)};
        f(a);
        return a[0];
    }
    template <int V>
    __device__ __forceinline__ bool aligned() const {
        return row.template aligned<V>();
    }
    template <int V, bool Aligned = false>
    __device__ __forceinline__ void some(int64_t i, A (&a)[V]) const {
        row.template some<V, Aligned>(i, a);
        f(a);
    }
};
template <class A>
struct Nothing {
    __device__ __forceinline__ A operator()(int64_t) const { return A(0); }
    template <int V>
    __device__ __forceinline__ bool aligned() const {
        return true;
    }
    template <int V, bool Aligned = false>
    __device__ __forceinline__ void some(int64_t, A (&)[V]) const {}
};
template <class A, class F, class Row, class Other>
__device__ __forceinline__ Mapped<A, F, Row, Other> mapped(F f, Row row, Other other) {
    return {f, row, other};
}

/// A row that is aligned: asked once and not at each access, loads are under way together.
template <class Row>
struct AlignedRow {
    const Row& row;
    __device__ __forceinline__ auto operator()(int64_t i) const { return row(i); }
    template <int V, class A>
    __device__ __forceinline__ void some(int64_t i, A (&a)[V]) const {
        row.template some<V, true>(i, a);
    }
};
// ---- the tree ----------------------------------------------------------------------------------

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

/// Joins lanes V t to V t + V - 1 of each of `Lanes` neighbouring threads t, the rest of the leaf's
/// lanes being missing; all threads get the result. Partners share the work of the first halvings;
/// `Soon`: they don't, which takes exchanges less one after the other, and more in all. Where the
/// order is none of the result's, a thread joins its own first.
template <class Op, int Lanes, bool Soon = false, class A, int V>
__device__ __forceinline__ A join_lanes(const A (&s)[V]) {
    const auto of_partner = [](A v, int d) { return __shfl_xor_sync(0xffffffffu, v, d); };
    A v[V];
#pragma unroll
    for (int c = 0; c < V; c++) v[c] = s[c];
    if constexpr (!Op::ordered) {
        A all = halved<Op>(v);
#pragma unroll
        for (int d = Lanes / 2; d > 0; d /= 2) all = Op::join(all, of_partner(all, d));
        return all;
    } else if constexpr (Lanes >= 4 && !Soon) {
        // A halving of threads leaves half of the elements to each of two partners, a later one of
        // these elements finds the other half with the partner: of `shared` neighbours. A thread
        // joins the rest of its own before.
        constexpr int shared = Lanes < V ? Lanes : V, left = V / shared;
#pragma unroll
        for (int part = 2; part <= shared; part *= 2) {
            const bool high = threadIdx.x & Lanes / part;
            const int half = shared / part;
#pragma unroll
            for (int own = 0; own < left; own++)
#pragma unroll
                for (int c = own * shared; c < own * shared + half; c++) {
                    const A kept = high ? v[c + half] : v[c], given = high ? v[c] : v[c + half];
                    v[c] = Op::join(kept, of_partner(given, Lanes / part));
                }
        }
        A rest[left];
#pragma unroll
        for (int own = 0; own < left; own++) {
            rest[own] = v[own * shared];
#pragma unroll
            for (int d = Lanes / shared / 2; d > 0; d /= 2)
                rest[own] = Op::join(rest[own], of_partner(rest[own], d));
        }
        A all = halved<Op>(rest);
#pragma unroll
        for (int part = 2; part <= shared; part *= 2)
            all = Op::join(all, of_partner(all, Lanes / part));
        return all;
    } else {
#pragma unroll
        for (int d = Lanes / 2; d > 0; d /= 2)
#pragma unroll
            for (int c = 0; c < V; c++) v[c] = Op::join(v[c], of_partner(v[c], d));
        return halved<Op>(v);
    }
}

/// The same of two at a time: each half of the threads goes on with one of them.
template <class Op, int Lanes, bool Soon, class A, int V>
__device__ __forceinline__ void join_lanes_of_two(const A (&s)[2][V], A (&all)[2]) {
    if constexpr (Lanes >= 4 && !Soon && Op::ordered) {
        const bool high = threadIdx.x & Lanes / 2;
        A v[V];
#pragma unroll
        for (int c = 0; c < V; c++) {
            const A kept = high ? s[1][c] : s[0][c], given = high ? s[0][c] : s[1][c];
            v[c] = Op::join(kept, __shfl_xor_sync(0xffffffffu, given, Lanes / 2));
        }
        const A own = join_lanes<Op, Lanes / 2>(v),
                other = __shfl_xor_sync(0xffffffffu, own, Lanes / 2);
        all[0] = high ? other : own;
        all[1] = high ? own : other;
    } else {
#pragma unroll
        for (int k = 0; k < 2; k++) all[k] = join_lanes<Op, Lanes, Soon>(s[k]);
    }
}

/// One leaf of n elements, n in [1, 512], by a whole warp; `Whole`: n is 512.
template <class Op, class A, bool Whole, class Row>
__device__ __forceinline__ A leaf(const Row& row, int64_t begin, int64_t n) {
    const int lane = threadIdx.x & 31;
    A s[4], e[4];
    if constexpr (Whole) {
        row.some(begin + 4 * lane, s);
#pragma unroll
        for (int j = 1; j < 4; j++) {
            row.some(begin + 4 * lane + kTreeLanes * j, e);
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
__device__ __forceinline__ A subtree(const Row& row, int64_t begin, int64_t end) {
    if (end - begin < kTreeLeaf) return leaf<Op, A, false>(row, begin, end - begin);
    if (end - begin == kTreeLeaf) return leaf<Op, A, true>(row, begin, kTreeLeaf);
    Subtrees<Op, A, 0> subtrees;
    for (int64_t at = begin; at < end; at += kTreeLeaf)
        subtrees.take(end - at < kTreeLeaf ? leaf<Op, A, false>(row, at, end - at)
                                           : leaf<Op, A, true>(row, at, kTreeLeaf));
    return subtrees.total();
}
template <class Op, class A, class Row>
__device__ __forceinline__ A warp_tree(const Row& row, int64_t begin, int64_t end) {
    if (row.template aligned<4>()) return subtree<Op, A>(AlignedRow<Row>{row}, begin, end);
    return subtree<Op, A>(row, begin, end);
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

/// What groups of `Group` leaves, a power of two, come to, of elements [begin, end), by the warps
/// of a block.
template <class Op, class A, int Group, class Row>
__device__ __forceinline__ void groups_of_leaves(const Row& row, int64_t begin, int64_t end,
                                                 A* shared, int groups, int warps) {
    constexpr int64_t span = Group * kTreeLeaf;
    for (int g = threadIdx.x / 32; g < groups; g += warps) {
        const int64_t at = begin + g * span, stop = end - at < span ? end : at + span;
        A v;
        if constexpr (Group == 1)
            v = stop - at < span ? leaf<Op, A, false>(row, at, stop - at)
                                 : leaf<Op, A, true>(row, at, span);
        else
            v = subtree<Op, A>(row, at, stop);
        if ((threadIdx.x & 31) == 0) shared[g] = v;
    }
}

/// Elements [begin, end) by a whole block. `shared` holds one value a group. Every thread gets the
/// result; `shared` may be used again at once.
template <class Op, class A, int Group, class Row>
__device__ __forceinline__ A block_tree(const Row& row, int64_t begin, int64_t end, A* shared,
                                        int threads) {
    constexpr int64_t span = Group * kTreeLeaf;
    const int groups = int((end - begin + span - 1) / span), warps = threads / 32;
    if (row.template aligned<4>())
        groups_of_leaves<Op, A, Group>(AlignedRow<Row>{row}, begin, end, shared, groups, warps);
    else
        groups_of_leaves<Op, A, Group>(row, begin, end, shared, groups, warps);
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

/// The mean of what subtrees of `Each` elements come to, which the first block joins.
template <int Count, int Each>
__device__ __forceinline__ void mean_of_subtrees(const Grid& grid, float* mean, const float* sums) {
    extern __shared__ __align__(16) char shared[];
    float* const held = reinterpret_cast<float*>(shared);
    constexpr int64_t n = int64_t{Count} * Each;
    if (grid.block != 0) return;
    for (int i = threadIdx.x; i < Count; i += grid.threads) held[i] = sums[i];
    join_shared<SumOf<float>>(held, Count, grid.threads);
    if (threadIdx.x == 0)
        *mean = (n & (n - 1)) == 0 ? held[0] * (1.0f / float(n)) : scalar::div(held[0], float(n));
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

/// chain(Chunk): a block of `Threads` makes elements of a chunk for `Width` results in shared
/// memory, all at once, and a thread a result adds them. The block that is last to be done with a
/// chunk of these results adds the chunks.
template <class Op, class A, int64_t Chunk, int Most, int Width, int Threads, class Shape,
          class Make, class Put>
__device__ __forceinline__ void reduce_chain(const Grid& grid, A* parts, uint32_t* counters,
                                             Make make, Put put) {
    extern __shared__ __align__(16) char shared[];
    A* const held = reinterpret_cast<A*>(shared);  // Most x Width
    constexpr int64_t n = Shape::n, chunks = n > 0 ? (n + Chunk - 1) / Chunk : 1,
                      strips = (Shape::rows + Width - 1) / Width;
    constexpr int groups = Threads / Width, turns = (Most + groups - 1) / groups,
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
