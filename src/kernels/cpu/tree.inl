// What every reduction is made of: element types, vectors, the tree of abi.h, walks over strided
// operands, bundles of short rows.
// Included once per instruction set; see isa.cpp. No standard-library templates here.

namespace aicf::cpu::AICF_ISA {

constexpr int kVectorBytes = kWidths.vector;

// ---- element types ------------------------------------------------------------------------------

struct F16 {
    uint16_t bits;
};
struct BF16 {
    uint16_t bits;
};

/// Elements as the type they are computed in.
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

/// What sums and products of elements are in: integers wrap in their unsigned type.
template <class E, bool Float>
struct WrapOf {
    typedef E type;
};
template <class E>
struct WrapOf<E, false> {
    typedef scalar::BitsOf<E> type;
};
template <class E>
struct SumOf {
    typedef typename ComputeOf<E>::type A;
    typedef typename WrapOf<A, scalar::is_float<A>>::type type;
};

/// run(element) with some element of a dtype; those of bool are bytes.
template <class Run>
AICF_INLINE void by_number(DType dtype, Run run) {
    switch (dtype) {
        case DType::f32:
            return run(float());
        case DType::f64:
            return run(double());
        case DType::f16:
            return run(F16());
        case DType::bf16:
            return run(BF16());
#define AICF_RUN(dtype, type) \
    case DType::dtype:        \
        return run(type());
            AICF_INTEGERS(AICF_RUN)
#undef AICF_RUN
        case DType::boolean:
            return run(uint8_t());
    }
}

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
    typedef typename IntOf<A>::type I
        __attribute__((vector_size(Bytes), aligned(sizeof(A)), may_alias));
    static constexpr int lanes = Bytes / int(sizeof(A));
    template <class E>
    static AICF_INLINE V load(const E* p) {
        if constexpr (same_bits<E, A>) {
            return *reinterpret_cast<const V*>(p);
        } else {
#if defined(__F16C__)
            if constexpr (same_bits<E, F16>) {
                if constexpr (lanes == 4)
                    return (V)_mm_cvtph_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
#if defined(__AVX512F__)
                if constexpr (lanes == 16)
                    return (V)_mm512_maskz_cvtph_ps(
                        0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#endif
                if constexpr (lanes == 8)
                    return (V)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
            }
#endif
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

// ---- how partial results join -------------------------------------------------------------------

/// Joins leaves, given in ascending order, into the tree of abi.h: equal subtrees as a counter
/// carries, what is left over from the right.
template <class Op, class S>
struct Tree {
    typedef typename S::V V;
    V part[40];
    int depth = 0;
    uint64_t count = 0;
    AICF_INLINE void push(V v) {
        for (uint64_t c = ++count; (c & 1) == 0; c >>= 1)
            v = Op::template join<S>(part[--depth], v);
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

/// Halves the lanes of a vector until one is left.
template <class Op, class A, int Bytes>
AICF_INLINE A halve_vector(typename Simd<A, Bytes>::V v) {
    typedef Simd<A, (Bytes > 16 ? Bytes / 2 : 0)> Half;
    A t[Bytes / int(sizeof(A))];
    Simd<A, Bytes>::get(v, t);
    if constexpr (Bytes > 16) {
        const auto low = Half::load(t), high = Half::load(t + Half::lanes);
        return halve_vector<Op, A, Bytes / 2>(Op::template join<Half>(low, high));
    } else {
#pragma GCC unroll 2
        for (int h = Bytes / int(sizeof(A)) / 2; h > 0; h /= 2) {
#pragma GCC unroll 2
            for (int i = 0; i < h; i++) t[i] = Op::template join<Half>(t[i], t[i + h]);
        }
        return t[0];
    }
}

/// Halves the lanes that N vectors hold until one is left.
template <class Op, class A, int N>
AICF_INLINE A halve_lanes(typename Simd<A, kVectorBytes>::V (&v)[N]) {
    typedef Simd<A, kVectorBytes> S;
#pragma GCC unroll 8
    for (int h = N / 2; h > 0; h /= 2) {
#pragma GCC unroll 32
        for (int i = 0; i < h; i++) v[i] = Op::template join<S>(v[i], v[i + h]);
    }
    return halve_vector<Op, A, kVectorBytes>(v[0]);
}

/// A leaf of all lanes, `Rows` elements each; inline, so that the next one's loads go on while its
/// lanes are halved.
template <class Op, class A, int Rows = int(kTreeLeaf / kTreeLanes)>
AICF_INLINE A whole_leaf(const A* x) {
    typedef Simd<A, kVectorBytes> S;
    typedef typename S::V V;
    constexpr int L = S::lanes, N = int(kTreeLanes) / L;
    V v[N / 2];
    const auto lane = [&](int i) __attribute__((always_inline)) {
        const A* at = x + i * L;
        V s = S::load(at);
#pragma GCC unroll 4
        for (int r = 1; r < Rows; r++) s = Op::template join<S>(s, S::load(at + r * kTreeLanes));
        return s;
    };
#pragma GCC unroll 32
    for (int i = 0; i < N / 2; i++) v[i] = Op::template join<S>(lane(i), lane(i + N / 2));
    return halve_lanes<Op, A>(v);
}

/// One leaf of n in [1, 512] elements.
template <class Op, class A>
__attribute__((noinline)) A leaf(const A* x, int64_t n) {
    typedef Simd<A, 0> One;
    if (n == kTreeLeaf) return whole_leaf<Op>(x);
    if (n == kTreeLanes) return whole_leaf<Op, A, 1>(x);
    if (n == 2 * kTreeLanes) return whole_leaf<Op, A, 2>(x);
    // A missing element changes nothing, so it is left out.
    alignas(64) A t[kTreeLanes];
    const int64_t lanes = min64(n, kTreeLanes);
    for (int64_t l = 0; l < lanes; l++) t[l] = x[l];
    for (int64_t at = kTreeLanes; at < n; at += kTreeLanes) {
        const int64_t m = min64(n - at, kTreeLanes);
        for (int64_t l = 0; l < m; l++) t[l] = Op::template join<One>(t[l], x[at + l]);
    }
    for (int64_t left = lanes, h; left > 1; left = h) {
        h = power_of_two_from(left) / 2;
        for (int64_t l = 0; l < left - h; l++) t[l] = Op::template join<One>(t[l], t[l + h]);
    }
    return t[0];
}

/// Streams that are read side by side, a few hundred bytes of each in turn: a processor may fetch
/// ahead of all of them, and so draw more from the memory than along one. Loads of whole lines draw
/// as much from one, or more.
constexpr bool kDrawsAbreast = kVectorBytes < 64;

/// A whole leaf of each of kAbreast streams.
template <class Op, class A>
__attribute__((noinline)) void leaves_abreast(const A* const* x, int64_t at, A* results) {
    typedef Simd<A, kVectorBytes> S;
    typedef typename S::V V;
    constexpr int N = int(kTreeLanes) / S::lanes, kPiece = 256 / kVectorBytes;
    V v[kAbreast][N];
    for (int first = 0; first < 4 * N; first += kPiece) {
        const int to = first % N;
        for (int s = 0; s < kAbreast; s++) {
            const A* from = x[s] + at + first * S::lanes;
            if (first < N) {
#pragma GCC unroll 16
                for (int i = 0; i < kPiece; i++) v[s][to + i] = S::load(from + i * S::lanes);
            } else {
#pragma GCC unroll 16
                for (int i = 0; i < kPiece; i++)
                    v[s][to + i] = Op::template join<S>(v[s][to + i], S::load(from + i * S::lanes));
            }
        }
    }
    for (int s = 0; s < kAbreast; s++) results[s] = halve_lanes<Op, A>(v[s]);
}

/// The trees of kAbreast streams of n elements.
template <class Op, class A>
__attribute__((noinline)) void trees_abreast(const A* const* x, int64_t n, A* results) {
    Tree<Op, Simd<A, 0>> trees[kAbreast];
    A parts[kAbreast];
    int64_t at = 0;
    for (; at + kTreeLeaf <= n; at += kTreeLeaf) {
        leaves_abreast<Op>(x, at, parts);
        for (int s = 0; s < kAbreast; s++) trees[s].push(parts[s]);
    }
    for (int s = 0; s < kAbreast; s++) {
        if (at < n) trees[s].push(leaf<Op>(x[s] + at, n - at));
        results[s] = trees[s].result();
    }
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

AICF_INLINE void widen_row(const F16* x, int64_t n, float* to) {
    widen_halves(reinterpret_cast<const uint16_t*>(x), n, to);
}
template <class A, class E>
AICF_INLINE void widen_row(const E* x, int64_t n, A* to) {
    for (int64_t i = 0; i < n; i++) to[i] = static_cast<A>(widen(x[i]));
}
AICF_INLINE void narrow_row(const float* x, int64_t n, F16* to) {
    narrow_halves(x, n, reinterpret_cast<uint16_t*>(to));
}
template <class A, class E>
AICF_INLINE void narrow_row(const A* x, int64_t n, E* to) {
    for (int64_t i = 0; i < n; i++) put(to + i, x[i]);
}

template <class A, class E>
__attribute__((noinline)) void gather_walk(const Walk& w, const E* base, int64_t pos, int64_t n,
                                           A* buffer) {
    if (w.rank <= 1) {
        const int64_t step = w.rank ? w.stride[0] : 0;
        const E* x = base + pos * step;
        if (step == 1)
            widen_row(x, n, buffer);
        else
            for (int64_t i = 0; i < n; i++) buffer[i] = static_cast<A>(widen(x[i * step]));
        return;
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
        if (done == n) return;
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

/// Elements [pos, pos + n) of the walk, as type A: in place or in `buffer`.
template <class A, class E>
AICF_INLINE const A* fetch(const Walk& w, const E* base, int64_t pos, int64_t n, A* buffer) {
    if constexpr (same_bits<E, A>)
        if (w.dense) return reinterpret_cast<const A*>(base + pos);
    gather_walk(w, base, pos, n, buffer);
    return buffer;
}

// ---- bundles ------------------------------------------------------------------------------------

/// Rows of at most 128 elements are taken R at a time and turned, t[element][row], so that vectors
/// run over rows.
template <class A>
constexpr int kBundle = kBundleBytes / int(sizeof(A));

/// t[l][i] = row i's element l; rows past `count` repeat the first.
template <class A, class E>
__attribute__((noinline)) void load_bundle(A* t, const E* base, const int64_t* at, int count,
                                           int64_t step, int64_t n) {
    constexpr int R = kBundle<A>;
    const E* rows[R];
    for (int i = 0; i < R; i++) rows[i] = base + at[i < count ? i : 0];
    int64_t done = 0;
    if constexpr (same_bits<E, A> && sizeof(A) == 4) {
        if (step == 1)
            for (; done + 4 <= n; done += 4)
#pragma GCC unroll 4
                for (int i = 0; i < R; i += 4) {
                    const E* const four[4] = {rows[i] + done, rows[i + 1] + done,
                                              rows[i + 2] + done, rows[i + 3] + done};
                    E* to = reinterpret_cast<E*>(t) + done * R + i;
                    E* const turned[4] = {to, to + R, to + 2 * R, to + 3 * R};
                    turn_4x4(four, turned);
                }
    }
    for (; done < n; done++)
        for (int i = 0; i < R; i++) t[done * R + i] = static_cast<A>(widen(rows[i][done * step]));
}

template <class A, class E>
__attribute__((noinline)) void store_bundle(const A* t, E* base, const int64_t* at, int count,
                                            int64_t step, int64_t n) {
    constexpr int R = kBundle<A>;
    int first = 0;
    if constexpr (same_bits<E, A> && sizeof(A) == 4) {
        if (step == 1)
            for (; first + 4 <= count; first += 4) {
                E* rows[4];
                for (int i = 0; i < 4; i++) rows[i] = base + at[first + i];
                int64_t l = 0;
                for (; l + 4 <= n; l += 4) {
                    const E* from = reinterpret_cast<const E*>(t) + l * R + first;
                    const E* const four[4] = {from, from + R, from + 2 * R, from + 3 * R};
                    E* const turned[4] = {rows[0] + l, rows[1] + l, rows[2] + l, rows[3] + l};
                    turn_4x4(four, turned);
                }
                for (; l < n; l++)
                    for (int i = 0; i < 4; i++) put(rows[i] + l, t[l * R + first + i]);
            }
    }
    for (; first < count; first++)
        for (int64_t l = 0; l < n; l++) put(base + at[first] + l * step, t[l * R + first]);
}

/// Each row's leaf of n in [1, 128] elements; overwrites t.
template <class Op, class A>
__attribute__((noinline)) void bundle_leaf(A* t, int64_t n, A* result) {
    constexpr int R = kBundle<A>;
    typedef Simd<A, kVectorBytes> S;
    for (int64_t left = n, h; left > 1; left = h) {
        h = power_of_two_from(left) / 2;
        for (int64_t i = 0; i < (left - h) * R; i += S::lanes)
            S::get(Op::template join<S>(S::load(t + i), S::load(t + h * R + i)), t + i);
    }
    for (int i = 0; i < R; i++) result[i] = t[i];
}

}  // namespace aicf::cpu::AICF_ISA
