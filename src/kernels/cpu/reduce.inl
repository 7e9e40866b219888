// Sums, means, extrema over any axes, in the orders of abi.h.
//
// Two shapes of work. "Rows": the elements of one result are brought together, 512 at a time (in
// place when they lie so), and a leaf is summed with lanes in vectors. "Columns": neighbouring
// results lie in neighbouring addresses, so vectors run over results and each lane follows the
// declared order by itself. A long reduction with few results is cut into groups of whole subtrees
// that units compute apart and a second phase joins.
//
// Included once per instruction set; see isa.cpp. No standard-library templates here.

namespace aicf::cpu::AICF_ISA {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

// ---- element types ------------------------------------------------------------------------------

struct F16 {
    uint16_t bits;
};
struct BF16 {
    uint16_t bits;
};

AICF_INLINE float widen(F16 x) { return scalar::half_to_f32(x.bits); }
AICF_INLINE float widen(BF16 x) { return scalar::bfloat_to_f32(x.bits); }
template <class T>
AICF_INLINE T widen(T x) {
    return x;
}
AICF_INLINE void put(F16* to, float x) { to->bits = scalar::f32_to_half(x); }
AICF_INLINE void put(BF16* to, float x) { to->bits = scalar::f32_to_bfloat(x); }
template <class T, class A>
AICF_INLINE void put(T* to, A x) {
    *to = static_cast<T>(x);
}

/// The type an element is computed in.
template <class E>
struct ComputeOf {
    typedef E type;
};
template <>
struct ComputeOf<F16> {
    typedef float type;
};
template <>
struct ComputeOf<BF16> {
    typedef float type;
};

template <class E, class A>
constexpr bool same_bits = false;
template <class T>
constexpr bool same_bits<T, T> = true;
template <>
constexpr bool same_bits<int32_t, uint32_t> = true;
template <>
constexpr bool same_bits<int64_t, uint64_t> = true;

// ---- vectors ------------------------------------------------------------------------------------

template <class A>
struct IntOf;
template <>
struct IntOf<float> {
    typedef int32_t type;
};
template <>
struct IntOf<double> {
    typedef int64_t type;
};
template <>
struct IntOf<uint32_t> {
    typedef int32_t type;
};
template <>
struct IntOf<int32_t> {
    typedef int32_t type;
};
template <>
struct IntOf<uint64_t> {
    typedef int64_t type;
};
template <>
struct IntOf<int64_t> {
    typedef int64_t type;
};

template <class A, int Bytes>
struct Simd {
    typedef A V __attribute__((vector_size(Bytes), aligned(sizeof(A)), may_alias));
    typedef typename IntOf<A>::type I __attribute__((vector_size(Bytes), aligned(sizeof(A)), may_alias));
    static constexpr int lanes = Bytes / int(sizeof(A));
    template <class E>
    static AICF_INLINE V load(const E* p) {
        if constexpr (same_bits<E, A>) {
            return *reinterpret_cast<const V*>(p);
        } else {
            V v;
            for (int i = 0; i < lanes; i++) v[i] = static_cast<A>(widen(p[i]));
            return v;
        }
    }
    static AICF_INLINE V splat(A x) {
        V v;
        for (int i = 0; i < lanes; i++) v[i] = x;
        return v;
    }
    static AICF_INLINE void get(const V& v, A* to) { *reinterpret_cast<V*>(to) = v; }
    static AICF_INLINE V largest(V a, V b) {
        V r = a > b ? a : b;
        if constexpr (scalar::is_float<A>) {
            r = a != a ? a : r;
            r = a == b ? (V)((I)a & (I)b) : r;
        }
        return r;
    }
    static AICF_INLINE V smallest(V a, V b) {
        V r = a < b ? a : b;
        if constexpr (scalar::is_float<A>) {
            r = a != a ? a : r;
            r = a == b ? (V)((I)a | (I)b) : r;
        }
        return r;
    }
};
template <class A>
struct Simd<A, 0> {  // a single lane
    typedef A V;
    static constexpr int lanes = 1;
    template <class E>
    static AICF_INLINE V load(const E* p) {
        return static_cast<A>(widen(*p));
    }
    static AICF_INLINE V splat(A x) { return x; }
    static AICF_INLINE void get(V v, A* to) { *to = v; }
    static AICF_INLINE V largest(V a, V b) { return scalar::maximum(a, b); }
    static AICF_INLINE V smallest(V a, V b) { return scalar::minimum(a, b); }
};

// ---- how two partial results join ---------------------------------------------------------------

struct SumOp {
    template <class S, class V>
    static AICF_INLINE V join(V a, V b) {
        return a + b;
    }
    /// Changes nothing it is joined with.
    template <class S, class V>
    static AICF_INLINE V missing(V) {
        return S::splat(-0.0);
    }
};
struct MaxOp {
    template <class S, class V>
    static AICF_INLINE V join(V a, V b) {
        return S::largest(a, b);
    }
    template <class S, class V>
    static AICF_INLINE V missing(V any) {
        return any;
    }
};
struct MinOp {
    template <class S, class V>
    static AICF_INLINE V join(V a, V b) {
        return S::smallest(a, b);
    }
    template <class S, class V>
    static AICF_INLINE V missing(V any) {
        return any;
    }
};

/// Joins leaves, given in ascending order, into the tree of abi.h: equal subtrees as a counter
/// carries, what is left over from the right.
template <class Op, class S>
struct Tree {
    typedef typename S::V V;
    V part[40];
    int depth = 0;
    uint64_t count = 0;
    AICF_INLINE void push(V v) {
        for (uint64_t c = ++count; (c & 1) == 0; c >>= 1) v = Op::template join<S>(part[--depth], v);
        part[depth++] = v;
    }
    AICF_INLINE V result() {
        V v = part[--depth];
        while (depth > 0) v = Op::template join<S>(part[--depth], v);
        return v;
    }
};

AICF_INLINE int64_t power_of_two_from(int64_t n) {
    return n <= 1 ? 1 : int64_t(1) << (64 - __builtin_clzll(uint64_t(n - 1)));
}

/// One leaf of n in [1, 512] elements.
template <class Op, class A>
A leaf(const A* x, int64_t n) {
    typedef Simd<A, kVectorBytes> S;
    typedef typename S::V V;
    constexpr int L = S::lanes, N = int(kTreeLanes) / L;
    if (n == kTreeLeaf) {
        V v[N / 2];
        const auto lane = [&](int i) __attribute__((always_inline)) {
            const A* at = x + i * L;
            V s = Op::template join<S>(S::load(at), S::load(at + kTreeLanes));
            s = Op::template join<S>(s, S::load(at + 2 * kTreeLanes));
            return Op::template join<S>(s, S::load(at + 3 * kTreeLanes));
        };
#pragma GCC unroll 32
        for (int i = 0; i < N / 2; i++) v[i] = Op::template join<S>(lane(i), lane(i + N / 2));
#pragma GCC unroll 8
        for (int h = N / 4; h > 0; h /= 2) {
#pragma GCC unroll 32
            for (int i = 0; i < h; i++) v[i] = Op::template join<S>(v[i], v[i + h]);
        }
        A t[L];
        S::get(v[0], t);
#pragma GCC unroll 8
        for (int h = L / 2; h > 0; h /= 2) {
#pragma GCC unroll 16
            for (int i = 0; i < h; i++) t[i] = Op::template join<Simd<A, 0>>(t[i], t[i + h]);
        }
        return t[0];
    }
    alignas(64) A t[kTreeLanes];
    const int64_t lanes = min64(n, kTreeLanes), width = power_of_two_from(lanes);
    for (int64_t l = 0; l < lanes; l++) t[l] = x[l];
    const A pad = Op::template missing<Simd<A, 0>>(x[0]);
    for (int64_t l = lanes; l < width; l++) t[l] = pad;
    for (int64_t at = kTreeLanes; at < n; at += kTreeLanes) {
        const int64_t m = min64(n - at, kTreeLanes);
        for (int64_t l = 0; l < m; l++) t[l] = Op::template join<Simd<A, 0>>(t[l], x[at + l]);
    }
    for (int64_t h = width / 2; h > 0; h /= 2)
        for (int64_t l = 0; l < h; l++) t[l] = Op::template join<Simd<A, 0>>(t[l], t[l + h]);
    return t[0];
}

// ---- walking an operand -------------------------------------------------------------------------

/// Some axes of an operand in row-major order, merged where they step as one.
struct Walk {
    int64_t total;
    int32_t rank;
    int32_t dense;  // elements lie side by side
    int64_t shape[kMaxDims], stride[kMaxDims];
};

void walk_start(Walk& w) {
    w.total = 1;
    w.rank = 0;
    w.dense = 1;
}
void walk_axis(Walk& w, int64_t size, int64_t stride) {
    w.total *= size;
    if (size == 1) return;
    if (w.rank > 0 && w.stride[w.rank - 1] == stride * size) {
        w.shape[w.rank - 1] *= size;
        w.stride[w.rank - 1] = stride;
    } else {
        w.shape[w.rank] = size;
        w.stride[w.rank++] = stride;
    }
    w.dense = w.rank == 1 && w.stride[0] == 1;
}

/// Elements [pos, pos + n) of the walk, as type A: in place or in `buffer`.
template <class A, class E>
AICF_INLINE const A* fetch(const Walk& w, const E* base, int64_t pos, int64_t n, A* buffer) {
    if constexpr (same_bits<E, A>)
        if (w.dense) return reinterpret_cast<const A*>(base + pos);
    if (w.rank <= 1) {
        const int64_t step = w.rank ? w.stride[0] : 0;
        const E* x = base + pos * step;
        if (step == 1)
            for (int64_t i = 0; i < n; i++) buffer[i] = static_cast<A>(widen(x[i]));
        else
            for (int64_t i = 0; i < n; i++) buffer[i] = static_cast<A>(widen(x[i * step]));
        return buffer;
    }
    const int inner = w.rank - 1;
    int64_t index[kMaxDims];
    const E* x = base;
    for (int d = inner; d >= 0; d--) {
        index[d] = pos % w.shape[d];
        pos /= w.shape[d];
        x += index[d] * w.stride[d];
    }
    const int64_t step = w.stride[inner];
    for (int64_t done = 0;;) {
        const int64_t run = min64(n - done, w.shape[inner] - index[inner]);
        for (int64_t i = 0; i < run; i++) buffer[done + i] = static_cast<A>(widen(x[i * step]));
        done += run;
        if (done == n) return buffer;
        x -= index[inner] * step;
        index[inner] = 0;
        for (int d = inner - 1; d >= 0; d--) {
            x += w.stride[d];
            if (++index[d] < w.shape[d]) break;
            x -= w.shape[d] * w.stride[d];
            index[d] = 0;
        }
    }
}

// ---- the plan of a reduction --------------------------------------------------------------------

struct ReducePlan {
    Walk reduced;                   // reduced.total elements make one result
    int64_t results, chain;         // chain: c, or 0 for the tree
    int64_t units, strips, strip;   // strip: results to a unit; of one row of results, if `columns`
    int64_t groups, group;          // group: elements of a result that one unit takes
    int32_t kept_rank, columns;
    int64_t kept[kMaxDims], from[kMaxDims], to[kMaxDims];
};

AICF_INLINE const ReducePlan& reduce_plan(const ArgBlock& args) {
    return *static_cast<const ReducePlan*>(args.tail_ptr());
}

/// Cuts long reductions with few results into groups: a power of two of leaves each.
void plan_groups(ReducePlan& p, int64_t work) {
    p.group = power_of_two_from((work + p.strip - 1) / p.strip);
    if (p.group < kTreeLeaf) p.group = kTreeLeaf;
    p.groups = p.chain == 0 && p.units < 16 ? (p.reduced.total + p.group - 1) / p.group : 1;
    if (p.groups < 2) {
        p.groups = 1;
        p.group = p.reduced.total;
    }
    p.units *= p.groups;
}

void reduce_prepare(ArgBlock& args, bool ordered) {
    ReducePlan& p = *const_cast<ReducePlan*>(&reduce_plan(args));
    const Operand &x = args.in(0), &y = args.out(0);
    const int64_t axes = args.scalar(0).i, keepdims = args.scalar(1).i;
    p.chain = ordered ? args.scalar(2).i : 0;
    p.results = 1;
    p.kept_rank = 0;
    walk_start(p.reduced);
    for (int d = 0, o = 0; d < x.rank; d++) {
        const int64_t size = x.shape()[d], from = x.strides()[d];
        if ((axes >> d & 1) != 0) {
            walk_axis(p.reduced, size, from);
            if (keepdims) o++;
            continue;
        }
        const int64_t to = y.strides()[o++];
        p.results *= size;
        if (size == 1) continue;
        const int last = p.kept_rank - 1;
        if (last >= 0 && p.from[last] == from * size && p.to[last] == to * size) {
            p.kept[last] *= size;
            p.from[last] = from;
            p.to[last] = to;
        } else {
            p.kept[p.kept_rank] = size;
            p.from[p.kept_rank] = from;
            p.to[p.kept_rank++] = to;
        }
    }
    const int last = p.kept_rank - 1;
    const int64_t n = p.reduced.total;
    p.columns = last >= 0 && p.from[last] == 1 && p.reduced.rank == 1 && p.reduced.stride[0] != 1;
    if (p.results == 0 || n == 0) p.columns = 0;
    if (p.columns) {
        p.strips = (p.kept[last] + 63) / 64;
        p.strip = (p.kept[last] + p.strips - 1) / p.strips;
        p.units = p.results / p.kept[last] * p.strips;
    } else {
        p.strips = 1;
        p.strip = n > 0 && n < 4096 ? (4096 + n - 1) / n : 1;
        p.units = (p.results + p.strip - 1) / p.strip;
    }
    plan_groups(p, 65536);
}

template <class Plan>
AICF_INLINE void place_result(const Plan& p, int64_t result, int64_t* from, int64_t* to) {
    *from = *to = 0;
    for (int d = p.kept_rank - 1; d >= 0; d--) {
        const int64_t next = result / p.kept[d], index = result - next * p.kept[d];
        *from += index * p.from[d];
        *to += index * p.to[d];
        result = next;
    }
}

// ---- rows ---------------------------------------------------------------------------------------

template <class Op, class A, class E>
A reduce_row(const Walk& w, const E* x, int64_t begin, int64_t end, int64_t chain) {
    typedef Simd<A, 0> S;
    alignas(64) A buffer[kTreeLeaf];
    if (begin >= end) return A(0);
    if (chain == 0) {
        if (end - begin <= kTreeLeaf)
            return leaf<Op>(fetch<A>(w, x, begin, end - begin, buffer), end - begin);
        Tree<Op, S> tree;
        for (int64_t at = begin; at < end; at += kTreeLeaf) {
            const int64_t n = min64(kTreeLeaf, end - at);
            tree.push(leaf<Op>(fetch<A>(w, x, at, n, buffer), n));
        }
        return tree.result();
    }
    A total = A(0), part = A(0);
    for (int64_t at = begin; at < end;) {
        const int64_t in_chunk = at % chain, n = min64(min64(kTreeLeaf, end - at), chain - in_chunk);
        const A* v = fetch<A>(w, x, at, n, buffer);
        int64_t i = 0;
        if (in_chunk == 0) part = v[i++];
        for (; i < n; i++) part = Op::template join<S>(part, v[i]);
        at += n;
        if (at % chain == 0 || at == end) total = at <= chain ? part : Op::template join<S>(total, part);
    }
    return total;
}

// ---- columns ------------------------------------------------------------------------------------

/// N vectors of neighbouring results, each over elements [begin, end) in one chain per chunk.
template <class Op, class S, int N, class E>
AICF_INLINE void column_chain(const E* x, int64_t step, int64_t begin, int64_t end, int64_t chain,
                              const int64_t* at, typename S::V* total) {
    typedef typename S::V V;
    for (int64_t c = begin; c < end; c += chain) {
        const int64_t stop = min64(end, c + chain);
        const E* row = x + c * step;
        V part[N];
#pragma GCC unroll 8
        for (int v = 0; v < N; v++) part[v] = S::load(row + at[v]);
        for (int64_t i = c + 1; i < stop; i++) {
            row += step;
#pragma GCC unroll 8
            for (int v = 0; v < N; v++) part[v] = Op::template join<S>(part[v], S::load(row + at[v]));
        }
#pragma GCC unroll 8
        for (int v = 0; v < N; v++) total[v] = c == begin ? part[v] : Op::template join<S>(total[v], part[v]);
    }
}

/// One vector of neighbouring results over one leaf of n elements. Lanes are visited in bit-reversed
/// order, so that the halving of abi.h becomes a counter's carries.
template <class Op, class S, class E>
AICF_INLINE typename S::V column_leaf(const E* x, int64_t step, int64_t n) {
    typedef typename S::V V;
    const int64_t width = power_of_two_from(min64(n, kTreeLanes));
    V part[8];
    int depth = 0;
    int64_t lane = 0;
    for (int64_t r = 0; r < width; r++) {
        V v;
        if (lane < n) {
            const E* at = x + lane * step;
            v = S::load(at);
            for (int64_t l = lane + kTreeLanes; l < n; l += kTreeLanes) {
                at += kTreeLanes * step;
                v = Op::template join<S>(v, S::load(at));
            }
        } else {
            v = Op::template missing<S>(S::load(x));
        }
        for (int64_t c = r + 1; (c & 1) == 0 && depth > 0; c >>= 1) v = Op::template join<S>(part[--depth], v);
        part[depth++] = v;
        int64_t bit = width >> 1;  // lane = bit reversal of r + 1
        for (; bit > 0 && (lane & bit) != 0; bit >>= 1) lane ^= bit;
        lane |= bit;
    }
    return part[0];
}

template <class Op, class S, class A, class E>
void reduce_strip(const ReducePlan& p, const E* x, int64_t width, int64_t begin, int64_t end, A* to) {
    typedef typename S::V V;
    constexpr int L = S::lanes;
    constexpr bool ordered = same_bits<Op, SumOp>;
    const int64_t step = p.reduced.stride[0], vectors = (width + L - 1) / L;
    // The last vector overlaps the one before it: its lanes repeat the same work.
    const auto at = [&](int64_t v) { return min64(v * L, width - L); };
    if (!ordered || p.chain != 0) {
        const int64_t chain = ordered ? p.chain : end - begin;
        int64_t v = 0;
        for (; v < vectors;) {
            const int64_t four[4] = {at(v), at(v + 1), at(v + 2), at(v + 3)};
            V total[4] = {};
            if (v + 4 <= vectors) {
                column_chain<Op, S, 4>(x, step, begin, end, chain, four, total);
                for (int i = 0; i < 4; i++) S::get(total[i], to + four[i]);
                v += 4;
            } else {
                column_chain<Op, S, 1>(x, step, begin, end, chain, four, total);
                S::get(total[0], to + four[0]);
                v++;
            }
        }
        return;
    }
    if (end - begin <= kTreeLeaf) {
        for (int64_t v = 0; v < vectors; v++)
            S::get(column_leaf<Op, S>(x + begin * step + at(v), step, end - begin), to + at(v));
        return;
    }
    Tree<Op, S> trees[64 / (L > 64 ? 64 : L) + 1];
    for (int64_t r = begin; r < end; r += kTreeLeaf)
        for (int64_t v = 0; v < vectors; v++)
            trees[v].push(column_leaf<Op, S>(x + r * step + at(v), step, min64(kTreeLeaf, end - r)));
    for (int64_t v = 0; v < vectors; v++) S::get(trees[v].result(), to + at(v));
}

template <class Op, class A, class E>
void reduce_columns(const ReducePlan& p, const E* x, int64_t width, int64_t begin, int64_t end, A* to) {
    if (width * int64_t(sizeof(A)) >= kVectorBytes) reduce_strip<Op, Simd<A, kVectorBytes>>(p, x, width, begin, end, to);
    else if (width * int64_t(sizeof(A)) >= 16) reduce_strip<Op, Simd<A, 16>>(p, x, width, begin, end, to);
    else reduce_strip<Op, Simd<A, 0>>(p, x, width, begin, end, to);
}

// ---- the kernel ---------------------------------------------------------------------------------

template <class E, class A, bool Mean>
AICF_INLINE void finish(E* to, A value, int64_t n) {
    if constexpr (Mean) put(to, value / static_cast<A>(n));
    else put(to, value);
}

template <class Op, class E, class A, bool Mean>
void reduce_units(const ArgBlock& args, int64_t begin, int64_t end, int phase) {
    const ReducePlan& p = reduce_plan(args);
    const E* x = static_cast<const E*>(args.in(0).ptr);
    E* y = static_cast<E*>(args.out(0).ptr);
    A* parts = static_cast<A*>(args.workspace);  // [groups][results]
    const int64_t n = p.reduced.total;
    int64_t from, to;
    if (phase == 1) {
        for (int64_t r = begin * 256; r < min64(end * 256, p.results); r++) {
            Tree<Op, Simd<A, 0>> tree;
            for (int64_t g = 0; g < p.groups; g++) tree.push(parts[g * p.results + r]);
            place_result(p, r, &from, &to);
            finish<E, A, Mean>(y + to, tree.result(), n);
        }
        return;
    }
    for (int64_t u = begin; u < end; u++) {
        const int64_t block = u / p.groups, g = u - block * p.groups;
        const int64_t first = g * p.group, stop = min64(n, first + p.group);
        if (p.columns) {
            const int64_t width = p.kept[p.kept_rank - 1], row = block / p.strips;
            const int64_t c0 = (block - row * p.strips) * p.strip, c1 = min64(width, c0 + p.strip);
            const int64_t result = row * width + c0;
            if (c0 >= c1) continue;
            alignas(64) A strip[64];
            place_result(p, result, &from, &to);
            reduce_columns<Op, A>(p, x + from, c1 - c0, first, stop, strip);
            const int64_t step = p.to[p.kept_rank - 1];
            if (p.groups > 1)
                for (int64_t i = 0; i < c1 - c0; i++) parts[g * p.results + result + i] = strip[i];
            else
                for (int64_t i = 0; i < c1 - c0; i++) finish<E, A, Mean>(y + to + i * step, strip[i], n);
            continue;
        }
        for (int64_t r = block * p.strip; r < min64(p.results, (block + 1) * p.strip); r++) {
            place_result(p, r, &from, &to);
            const A value = reduce_row<Op, A>(p.reduced, x + from, first, stop, p.chain);
            if (p.groups > 1) parts[g * p.results + r] = value;
            else finish<E, A, Mean>(y + to, value, n);
        }
    }
}

template <class E>
struct SumOf {
    typedef typename ComputeOf<E>::type type;
};
template <>
struct SumOf<int32_t> {
    typedef uint32_t type;
};
template <>
struct SumOf<int64_t> {
    typedef uint64_t type;
};
template <>
struct SumOf<uint8_t> {
    typedef uint32_t type;
};
template <class E>
struct ExtremumOf {
    typedef typename ComputeOf<E>::type type;
};
template <>
struct ExtremumOf<uint8_t> {
    typedef int32_t type;
};

template <class Op, template <class> class AccOf, bool Mean>
void reduce_run(const ArgBlock& args, int64_t begin, int64_t end, int phase, int) {
    switch (DType(args.in(0).dtype)) {
        case DType::f32: return reduce_units<Op, float, float, Mean>(args, begin, end, phase);
        case DType::f64: return reduce_units<Op, double, double, Mean>(args, begin, end, phase);
        case DType::f16: return reduce_units<Op, F16, float, Mean>(args, begin, end, phase);
        case DType::bf16: return reduce_units<Op, BF16, float, Mean>(args, begin, end, phase);
        default: break;
    }
    if constexpr (!Mean) {
        switch (DType(args.in(0).dtype)) {
            case DType::i32:
                return reduce_units<Op, int32_t, typename AccOf<int32_t>::type, false>(args, begin, end, phase);
            case DType::i64:
                return reduce_units<Op, int64_t, typename AccOf<int64_t>::type, false>(args, begin, end, phase);
            case DType::u8:
                return reduce_units<Op, uint8_t, typename AccOf<uint8_t>::type, false>(args, begin, end, phase);
            default: return;
        }
    }
}

int64_t reduce_unit_count(const ArgBlock& args, int phase) {
    const ReducePlan& p = reduce_plan(args);
    if (phase == 0) return p.units;
    return p.groups > 1 ? (p.results + 255) / 256 : 0;
}

uint64_t reduce_workspace(const ArgBlock& args, int) {
    const ReducePlan& p = reduce_plan(args);
    return p.groups > 1 ? uint64_t(p.groups * p.results) * 8 : 0;
}

void sum_prepare(ArgBlock& args) { reduce_prepare(args, true); }
void extremum_prepare(ArgBlock& args) { reduce_prepare(args, false); }

void register_reduce(Table& table) {
    const auto add = [&](const char* op, uint32_t dtypes, auto run, auto prepare) {
        table.add(CpuKernel{op, dtypes, run, reduce_unit_count, reduce_workspace, sizeof(ReducePlan), prepare, 2});
    };
    add("reduce_sum", kNumbers, reduce_run<SumOp, SumOf, false>, sum_prepare);
    add("reduce_mean", kFloats, reduce_run<SumOp, SumOf, true>, sum_prepare);
    add("reduce_max", kNumbers, reduce_run<MaxOp, ExtremumOf, false>, extremum_prepare);
    add("reduce_min", kNumbers, reduce_run<MinOp, ExtremumOf, false>, extremum_prepare);
}

}  // namespace aicf::cpu::AICF_ISA
