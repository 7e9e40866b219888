// What every generated kernel stands on: the block it receives, element types, loads and stores.
#pragma once

#include "core/abi/near.h"
#include "core/abi/softmax.h"

namespace aicf {

/// The argument block by value. Generated code knows the offsets: they follow from the ranks.
template <int Bytes>
struct alignas(64) Block {
    char bytes[Bytes];
    template <class T>
    __device__ __forceinline__ T* ptr(int offset) const {
        return static_cast<T*>(*reinterpret_cast<void* const*>(bytes + offset));
    }
    /// The block of a member of a group.
    template <int Size>
    __device__ __forceinline__ const Block<Size>& part(int offset) const {
        return *reinterpret_cast<const Block<Size>*>(bytes + offset);
    }
    __device__ __forceinline__ int64_t integer(int offset) const {
        return *reinterpret_cast<const int64_t*>(bytes + offset);
    }
    __device__ __forceinline__ uint32_t word(int offset) const {
        return *reinterpret_cast<const uint32_t*>(bytes + offset);
    }
    __device__ __forceinline__ double number(int offset) const {
        return *reinterpret_cast<const double*>(bytes + offset);
    }
    /// Elements of an operand whose shape begins at `offset`.
    template <int Rank>
    __device__ __forceinline__ int64_t count(int offset) const {
        int64_t n = 1;
        for (int d = 0; d < Rank; d++) n *= integer(offset + 8 * d);
        return n;
    }
};

/// Behind a programmatic edge of a graph, or launched with programmatic stream serialization: this
/// kernel goes on when what it waits for is done, and then those that wait for it may get ready. As
/// each waits before it lets others begin, all that came earlier is done when a kernel begins:
/// behind an edge, before its own wait, it may read what the one that it waits for does not write,
/// past the first cache, which may be stale. Elsewhere nothing.
__device__ __forceinline__ void begin_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}
/// Its first half: of threads of a block whose other ones let others begin.
__device__ __forceinline__ void wait_before_kernel() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// The blocks that run one kernel body: those of a launch, or some of them; or, of one block that
/// runs a whole step, warps that stand for blocks.
struct Grid {
    uint32_t block, blocks, threads;  // this block, how many there are, threads of each
    uint32_t first = 0;               // of the launched block's threads, the one that begins it
    __device__ __forceinline__ uint32_t thread() const { return threadIdx.x - first; }
    /// Of things that all threads share out one at a time: this thread's first, and how far its
    /// next is.
    __device__ __forceinline__ int64_t begin() const { return int64_t(block) * threads + thread(); }
    __device__ __forceinline__ int64_t step() const { return int64_t(blocks) * threads; }
};

struct Half {
    uint16_t bits;
};
struct Brain {
    uint16_t bits;
};

template <class E>
__device__ __forceinline__ E widen(E x) {
    return x;
}
__device__ __forceinline__ float widen(Half x) {
    float wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x.bits));
    return wide;
}
__device__ __forceinline__ float widen(Brain x) { return scalar::bfloat_to_f32(x.bits); }
template <class E>
using Wide = decltype(widen(E{}));

template <class A, class B>
constexpr bool same_type = false;
template <class A>
constexpr bool same_type<A, A> = true;

/// Those of scalar.h, but for the payload of a NaN. (Of one value alone the instruction is slow.)
__device__ __forceinline__ Half narrow_half(float x) {
#if __CUDA_ARCH__ >= 800
    uint32_t two;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(0.0f), "f"(x));
    return Half{static_cast<uint16_t>(two)};
#else
    return Half{scalar::f32_to_half(x)};
#endif
}
__device__ __forceinline__ Brain narrow_brain(float x) {
#if __CUDA_ARCH__ >= 800
    uint32_t two;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(two) : "f"(0.0f), "f"(x));
    return Brain{static_cast<uint16_t>(two)};
#else
    return Brain{scalar::f32_to_bfloat(x)};
#endif
}
template <class E, class C>
__device__ __forceinline__ E narrow(C x) {
    if constexpr (same_type<E, Half>)
        return narrow_half(x);
    else if constexpr (same_type<E, Brain>)
        return narrow_brain(x);
    else
        return static_cast<E>(x);
}
/// Two neighbours as they are stored.
template <class E>
__device__ __forceinline__ uint32_t narrow_two(float low, float high) {
#if __CUDA_ARCH__ >= 800
    uint32_t word;
    if constexpr (same_type<E, Half>)
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
    return word;
#else
    return uint32_t{narrow<E>(high).bits} << 16 | narrow<E>(low).bits;
#endif
}

/// Two neighbours of 16 bits. A sum, a difference or a product has the bits that one of float32
/// has once it is rounded, which has more than twice their digits.
template <class E>
struct Two {
    uint32_t word;
};
#if __CUDA_ARCH__ >= 800
template <class E>
__device__ __forceinline__ Two<E> largest(Two<E> a, Two<E> b) {
    Two<E> most;
    if constexpr (same_type<E, Brain>)
        asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(most.word) : "r"(a.word), "r"(b.word));
    else
        asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(most.word) : "r"(a.word), "r"(b.word));
    return most;
}
/// Of a number and NaN the number.
template <class E>
__device__ __forceinline__ Two<E> smallest(Two<E> a, Two<E> b) {
    Two<E> least;
    if constexpr (same_type<E, Brain>)
        asm("min.bf16x2 %0, %1, %2;" : "=r"(least.word) : "r"(a.word), "r"(b.word));
    else
        asm("min.f16x2 %0, %1, %2;" : "=r"(least.word) : "r"(a.word), "r"(b.word));
    return least;
}
#endif
#if __CUDA_ARCH__ >= 900
namespace scalar {
template <class E>
__device__ __forceinline__ Two<E> add(Two<E> a, Two<E> b) {
    Two<E> y;
    if constexpr (same_type<E, Brain>)
        asm("add.rn.bf16x2 %0, %1, %2;" : "=r"(y.word) : "r"(a.word), "r"(b.word));
    else
        asm("add.rn.f16x2 %0, %1, %2;" : "=r"(y.word) : "r"(a.word), "r"(b.word));
    return y;
}
template <class E>
__device__ __forceinline__ Two<E> bias_add(Two<E> a, Two<E> b) {
    return add(a, b);
}
template <class E>
__device__ __forceinline__ Two<E> sub(Two<E> a, Two<E> b) {
    return add(a, Two<E>{b.word ^ 0x80008000u});
}
template <class E>
__device__ __forceinline__ Two<E> mul(Two<E> a, Two<E> b) {
    Two<E> y;
    if constexpr (same_type<E, Brain>)
        asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(y.word) : "r"(a.word), "r"(b.word));
    else
        asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(y.word) : "r"(a.word), "r"(b.word));
    return y;
}
}  // namespace scalar
#endif

/// x as it reads once it has been stored as an E.
template <class E, class C>
__device__ __forceinline__ Wide<E> rounded(C x) {
    if constexpr (same_type<E, Brain>)  // the upper one of two reads as it stands
        return scalar::from_bits(narrow_two<Brain>(0.0f, static_cast<float>(x)));
    else
        return widen(narrow<E>(x));
}
template <class E>
__device__ __forceinline__ Two<E> rounded(Two<E> x) {
    return x;
}

template <class T, int V>
struct alignas(sizeof(T) * V) Pack {
    T at[V];
};

template <class T>
__device__ __forceinline__ bool aligned16(const T* p) {
    return (reinterpret_cast<uint64_t>(p) & 15) == 0;
}

/// Whether V elements that begin at p may move together.
template <int V, class T>
__device__ __forceinline__ bool aligned_for(const T* p) {
    return reinterpret_cast<uint64_t>(p) % (V * sizeof(T)) == 0;
}

/// A number that the compiler does not know to be x (grids are one block deep): it branches around
/// what it would otherwise put into the common path, an instruction for each element.
__device__ __forceinline__ int hidden(int x) { return x * int(gridDim.z); }

/// 0, of which the compiler does not know that all threads have it (blocks are one thread deep).
/// What is loaded from there it does not make a number of the whole warp, and wait for at once.
__device__ __forceinline__ uint32_t own_zero() {
#ifdef __CUDACC_RTC__
    return threadIdx.y;
#else
    return 0;
#endif
}

/// That the second cache gives up last what is read so, what is written meanwhile before it.
__device__ __forceinline__ uint64_t lasting_policy() {
    uint64_t policy;
    asm("createpolicy.fractional.L2::evict_last.b64 %0;" : "=l"(policy));
    return policy;
}
/// An object of 8 or 16 bytes in global memory, read with lasting_policy().
template <class T>
__device__ __forceinline__ T load_lasting(const T* x) {
    static_assert(sizeof(T) == 8 || sizeof(T) == 16);
    union {
        uint32_t word[4];
        T value;
    };
    const uint64_t policy = lasting_policy();
    if constexpr (sizeof(T) == 16)
        asm volatile("ld.global.L1::evict_last.L2::cache_hint.v4.u32 {%0, %1, %2, %3}, [%4], %5;"
                     : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                     : "l"(x), "l"(policy));
    else
        asm volatile("ld.global.L1::evict_last.L2::cache_hint.v2.u32 {%0, %1}, [%2], %3;"
                     : "=r"(word[0]), "=r"(word[1])
                     : "l"(x), "l"(policy));
    return value;
}

/// The same of x whose bits a loop then keeps in a register, rather than make them in each turn
/// (blocks are one thread deep).
__device__ __forceinline__ uint32_t held(uint32_t x) {
#ifdef __CUDACC_RTC__
    asm volatile("add.u32 %0, %0, %1;" : "+r"(x) : "r"(threadIdx.y));
#endif
    return x;
}
__device__ __forceinline__ float held(float x) { return scalar::from_bits(held(scalar::bits(x))); }
__device__ __forceinline__ scalar::Constants held(const scalar::Constants& c) {
    static_assert(sizeof(c) == 7 * sizeof(float));  // each by its place
    return {held(c.log2e),     held(c.exp_last),   held(c.half),    held(c.twice_log2e),
            held(c.tanh_last), held(c.inverse_pi), held(c.sin_last)};
}

/// x, of which all lanes of a warp have the same, as the compiler then knows.
__device__ __forceinline__ uint32_t uniform(uint32_t x) { return __shfl_sync(0xffffffffu, x, 0); }

/// V neighbours of 16 bits, two to a word.
template <class E>
constexpr bool is_16_bit = same_type<E, Half> || same_type<E, Brain>;
template <class E, int V>
struct Words {
    static_assert(is_16_bit<E> && V % 2 == 0);
    Pack<uint32_t, V / 2> words;
    /// Of x; those past `left` are 0. `wide`: all exist and may move together. `Lasting`: then as
    /// load_lasting() loads them.
    template <bool Lasting = false>
    __device__ __forceinline__ void load(const E* x, int left, bool wide) {
        if (wide) {
            const auto* const all = reinterpret_cast<const Pack<uint32_t, V / 2>*>(x);
            if constexpr (Lasting && V >= 4)
                words = load_lasting(all);
            else
                words = *all;
            return;
        }
        left = hidden(left);
#pragma unroll
        for (int j = 0; j < V; j += 2)
            words.at[j / 2] =
                (j < left ? x[j].bits : 0u) | (j + 1 < left ? uint32_t{x[j + 1].bits} << 16 : 0u);
    }
    __device__ __forceinline__ void store(E* y, int left, bool wide) const {
        if (wide) {
            *reinterpret_cast<Pack<uint32_t, V / 2>*>(y) = words;
            return;
        }
        left = hidden(left);
#pragma unroll
        for (int j = 0; j < V; j++)
            if (j < left) y[j] = E{static_cast<uint16_t>(words.at[j / 2] >> 16 * (j % 2))};
    }
    __device__ __forceinline__ void open(float (&a)[V]) const {
#pragma unroll
        for (int j = 0; j < V; j++) {
            const uint32_t word = words.at[j / 2];
            if constexpr (same_type<E, Brain>)
                a[j] = scalar::from_bits(j % 2 ? word & 0xffff0000u : word << 16);
            else
                a[j] = widen(E{static_cast<uint16_t>(word >> 16 * (j % 2))});
        }
    }
    template <class C>
    __device__ __forceinline__ static Words of(const C (&a)[V]) {
        Words all;
#pragma unroll
        for (int j = 0; j < V; j += 2)
            all.words.at[j / 2] =
                narrow_two<E>(static_cast<float>(a[j]), static_cast<float>(a[j + 1]));
        return all;
    }
    __device__ __forceinline__ static Words of(const Two<E> (&a)[V / 2]) {
        Words all;
#pragma unroll
        for (int j = 0; j < V / 2; j++) all.words.at[j] = a[j].word;
        return all;
    }
    __device__ __forceinline__ void twos(Two<E> (&a)[V / 2]) const {
#pragma unroll
        for (int j = 0; j < V / 2; j++) a[j].word = words.at[j];
    }
};

/// Element i at offset i * Step. `step`: how far apart elements i to i + 3 lie, i a multiple of 4,
/// where that is 0 or 1; else -1.
template <int64_t Step>
struct Line {
    static constexpr int step = Step == 0 || Step == 1 ? int(Step) : -1;
    __device__ __forceinline__ static int64_t at(int64_t i) { return i * Step; }
};

/// Elements [i, i + V) of n, widened; what lies past the end is not read.
template <int V, class E, bool Lasting = false>
__device__ __forceinline__ void load_dense(Wide<E> (&a)[V], const E* x, int64_t i, int64_t n,
                                           bool wide) {
    if constexpr (V == 1) {
        a[0] = widen(x[i]);
    } else if constexpr (is_16_bit<E>) {
        Words<E, V> words;
        words.template load<Lasting>(x + i, n - i < V ? int(n - i) : V, wide && i + V <= n);
        words.open(a);
    } else if (wide && i + V <= n) {
        const Pack<E, V> pack = *reinterpret_cast<const Pack<E, V>*>(x + i);
#pragma unroll
        for (int j = 0; j < V; j++) a[j] = widen(pack.at[j]);
    } else {
#pragma unroll
        for (int j = 0; j < V; j++) a[j] = i + j < n ? widen(x[i + j]) : Wide<E>{};
    }
}
/// The same where V elements share one row: side by side (Step 1) or one for all (Step 0).
template <int V, int Step, class E>
__device__ __forceinline__ void load_inner(Wide<E> (&a)[V], const E* x, bool wide) {
    if constexpr (Step == 0) {
        const Wide<E> one = widen(*x);
#pragma unroll
        for (int j = 0; j < V; j++) a[j] = one;
    } else {
        load_dense<V, E>(a, x, 0, V, wide);
    }
}
/// What is known of V elements of a row.
enum class Row { nothing, whole, aligned };  // that all exist; and lie at a multiple of V of them

/// V elements `Step` apart, of which `left` exist; together where they may be.
template <int V, int64_t Step, class E, Row Known = Row::nothing>
__device__ __forceinline__ void load_row(Wide<E> (&a)[V], const E* x, int64_t left) {
    if constexpr (Step == 0) {
        const Wide<E> one = widen(*x);
#pragma unroll
        for (int j = 0; j < V; j++) a[j] = one;
        return;
    }
    if constexpr (Step == 1 && V > 1 && V * sizeof(E) <= 16) {
        const bool wide = Known == Row::aligned ||
                          (left >= V && reinterpret_cast<uint64_t>(x) % (V * sizeof(E)) == 0);
        if constexpr (is_16_bit<E>) {
            Words<E, V> words;
            words.load(x, Known != Row::nothing || left > V ? V : int(left), wide);
            words.open(a);
            return;
        }
        if (wide) {
            const Pack<E, V> pack = *reinterpret_cast<const Pack<E, V>*>(x);
#pragma unroll
            for (int j = 0; j < V; j++) a[j] = widen(pack.at[j]);
            return;
        }
    }
#pragma unroll
    for (int j = 0; j < V; j++)
        a[j] = Known != Row::nothing || j < left ? widen(x[j * Step]) : Wide<E>{};
}
template <int V, int64_t Step, Row Known = Row::nothing, class E, class C>
__device__ __forceinline__ void store_row(E* y, const C (&a)[V], int64_t left) {
    if constexpr (Step == 1 && V > 1 && V * sizeof(E) <= 16) {
        const bool wide = Known == Row::aligned ||
                          (left >= V && reinterpret_cast<uint64_t>(y) % (V * sizeof(E)) == 0);
        if constexpr (is_16_bit<E>) {
            Words<E, V>::of(a).store(y, Known != Row::nothing || left > V ? V : int(left), wide);
            return;
        }
        if (wide) {
            Pack<E, V> pack;
#pragma unroll
            for (int j = 0; j < V; j++) pack.at[j] = narrow<E>(a[j]);
            *reinterpret_cast<Pack<E, V>*>(y) = pack;
            return;
        }
    }
#pragma unroll
    for (int j = 0; j < V; j++)
        if (Known != Row::nothing || j < left) y[j * Step] = narrow<E>(a[j]);
}
/// An object of 2, 4, 8 or 16 bytes as it is past the first cache.
template <class T>
__device__ __forceinline__ T load_far(const T* x) {
    static_assert(sizeof(T) == 2 || sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16);
    union {
        uint32_t word[4];
        T value;
    };
    if constexpr (sizeof(T) == 16) {
        asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                     : "l"(x));
    } else if constexpr (sizeof(T) == 8) {
        asm volatile("ld.global.cg.v2.u32 {%0, %1}, [%2];" : "=r"(word[0]), "=r"(word[1]) : "l"(x));
    } else if constexpr (sizeof(T) == 4) {
        asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(word[0]) : "l"(x));
    } else {
        asm volatile("ld.global.cg.u16 %0, [%1];" : "=r"(word[0]) : "l"(x));
    }
    return value;
}
/// An object in global memory that is read once: of 16 bytes the first cache keeps nothing.
template <class T>
__device__ __forceinline__ T load_once(const T* x) {
    if constexpr (sizeof(T) == 16) {
        union {
            uint32_t word[4];
            T value;
        };
        asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                     : "l"(x));
        return value;
    } else {
        return *x;
    }
}
/// One that is loaded where this stands, which the compiler leaves there.
template <class T>
__device__ __forceinline__ T load_here(const T* x) {
    static_assert(sizeof(T) == 8);
    union {
        uint32_t word[2];
        T value;
    };
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(word[0]), "=r"(word[1]) : "l"(x));
    return value;
}
/// load_row() past the first cache, which may hold what was there before this kernel waited.
template <int V, int64_t Step, class E>
__device__ __forceinline__ void load_row_far(Wide<E> (&a)[V], const E* x, int64_t left) {
    constexpr int size = V * sizeof(E);
    if constexpr (Step == 1 && V > 1 && size <= 16) {
        if (left >= V && reinterpret_cast<uint64_t>(x) % size == 0) {
            const auto pack = load_far(reinterpret_cast<const Pack<E, V>*>(x));
#pragma unroll
            for (int j = 0; j < V; j++) a[j] = widen(pack.at[j]);
            return;
        }
    }
#pragma unroll
    for (int j = 0; j < V; j++) a[j] = j < left ? widen(load_far(x + j * Step)) : Wide<E>{};
}
/// Elements i to i + V - 1 of a row whose elements lie as Elem says; all exist.
template <int V, class Elem, class E>
__device__ __forceinline__ void load_some(Wide<E> (&a)[V], const E* x, int64_t i) {
    if constexpr (Elem::step >= 0) {
        load_row<V, Elem::step, E, Row::whole>(a, x + Elem::at(i), V);
    } else {
#pragma unroll
        for (int j = 0; j < V; j++) a[j] = widen(x[Elem::at(i + j)]);
    }
}
template <int V, class Elem, class E, class C>
__device__ __forceinline__ void store_some(E* y, const C (&a)[V], int64_t i) {
    if constexpr (Elem::step == 1) {
        store_row<V, 1, Row::whole>(y + Elem::at(i), a, V);
    } else {
#pragma unroll
        for (int j = 0; j < V; j++) y[Elem::at(i + j)] = narrow<E>(a[j]);
    }
}
template <int V, class At, class E>
__device__ __forceinline__ void load_each(Wide<E> (&a)[V], const E* x, int64_t i, int64_t n) {
#pragma unroll
    for (int j = 0; j < V; j++) a[j] = V == 1 || i + j < n ? widen(x[At::at(i + j)]) : Wide<E>{};
}
template <int V, class E, class C>
__device__ __forceinline__ void store_dense(E* y, const C (&a)[V], int64_t i, int64_t n,
                                            bool wide) {
    if constexpr (V == 1) {
        y[i] = narrow<E>(a[0]);
    } else if constexpr (is_16_bit<E>) {
        Words<E, V>::of(a).store(y + i, n - i < V ? int(n - i) : V, wide && i + V <= n);
    } else if (wide && i + V <= n) {
        Pack<E, V> pack;
#pragma unroll
        for (int j = 0; j < V; j++) pack.at[j] = narrow<E>(a[j]);
        *reinterpret_cast<Pack<E, V>*>(y + i) = pack;
    } else {
#pragma unroll
        for (int j = 0; j < V; j++)
            if (i + j < n) y[i + j] = narrow<E>(a[j]);
    }
}
/// `Lots` vectors of V elements that all exist and may move together, each `Apart` elements behind
/// the one before.
template <int V, int Lots, int Apart, class E>
__device__ __forceinline__ void load_lots(Wide<E> (&a)[Lots * V], const E* x) {
#pragma unroll
    for (int k = 0; k < Lots; k++) {
        Wide<E> some[V];
        load_dense<V, E>(some, x + k * Apart, 0, V, true);
#pragma unroll
        for (int j = 0; j < V; j++) a[k * V + j] = some[j];
    }
}
template <int V, int Lots, int Apart, class E, class C>
__device__ __forceinline__ void store_lots(E* y, const C (&a)[Lots * V]) {
#pragma unroll
    for (int k = 0; k < Lots; k++) {
        C some[V];
#pragma unroll
        for (int j = 0; j < V; j++) some[j] = a[k * V + j];
        store_dense<V>(y + k * Apart, some, 0, V, true);
    }
}
template <int V, class At, class E, class C>
__device__ __forceinline__ void store_each(E* y, const C (&a)[V], int64_t i, int64_t n) {
#pragma unroll
    for (int j = 0; j < V; j++)
        if (V == 1 || i + j < n) y[At::at(i + j)] = narrow<E>(a[j]);
}

/// What counts to Count: divisions of 32 bits take a fraction of the instructions.
template <bool Short>
struct CounterOf {
    typedef uint32_t type;
};
template <>
struct CounterOf<false> {
    typedef uint64_t type;
};
template <int64_t Count>
using Counter = typename CounterOf<(Count < (int64_t{1} << 31))>::type;

/// How many of `count` things to take at a time, from `least` to `most`, so that few are left over.
__device__ constexpr int lot_of(int64_t count, int least, int most) {
    if (count <= most) return count > 0 ? int(count) : 1;
    int best = most;
    for (int lot = most; lot >= least; lot--)
        if (count % lot < count % best) best = lot;
    return best;
}

/// Until so many threads of the block, whole warps, have come to barrier `id`.
__device__ __forceinline__ void wait_for(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/// The same where warps come from several places in the text: `bar.sync` is right there, too, but
/// synccheck reports each warp that comes from another place than the first.
__device__ __forceinline__ void meet_at(int id, int threads) {
    asm volatile("barrier.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/// x, of which the compiler knows nothing: worked out before a loop, it stays in a register there,
/// where it would otherwise be worked out again in each turn.
__device__ __forceinline__ uint32_t in_register(uint32_t x) {
    asm volatile("" : "+r"(x));
    return x;
}
__device__ __forceinline__ uint32_t shared_address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
/// What lies at an address in shared memory. Not by __cvta_shared_to_generic, which NVRTC links
/// from a library of its own, and not into every program.
template <class T>
__device__ __forceinline__ T* near_at(uint32_t address) {
    return static_cast<T*>(__nv_cvta_shared_to_generic_impl(address));
}

// Hand-overs between blocks, by counters in memory, as the memory model of PTX has them: what a
// thread wrote, and what others wrote before a barrier that it has passed since, comes before its
// release; that is seen by a thread whose acquire reads the release's count or a later one, and by
// others behind a barrier that comes after the acquire. A shuffle is no barrier.

__device__ __forceinline__ void add_release(uint32_t* counter, uint32_t by) {
    asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(by) : "memory");
}
/// Releases and acquires; returns what the counter was.
__device__ __forceinline__ uint32_t add_acq_rel(uint32_t* counter, uint32_t by) {
    uint32_t before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
                 : "=r"(before)
                 : "l"(counter), "r"(by)
                 : "memory");
    return before;
}
__device__ __forceinline__ uint32_t load_acquire(const uint32_t* counter) {
    uint32_t value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(counter) : "memory");
    return value;
}
/// Back to 0 for the next launch, by the last block. Relaxed, since blocks come to their end by
/// what they read in counters: none can still look at one.
__device__ __forceinline__ void clear_counter(uint32_t* counter) {
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(counter), "r"(0) : "memory");
}
/// Acquires, when a counter has reached a count.
__device__ __forceinline__ void wait_count(const uint32_t* counter, uint32_t count) {
    while (load_acquire(counter) < count) {
    }
}
/// True in every thread of the block that is the last of `count` to arrive; what the others wrote
/// before is visible to it. The counter is back at 0 afterwards.
__device__ __forceinline__ bool arrive_last(uint32_t* counter, uint32_t count) {
    __shared__ bool last;
    __syncthreads();
    if (threadIdx.x == 0) {
        last = add_acq_rel(counter, 1u) == count - 1;
        if (last) clear_counter(counter);
    }
    __syncthreads();
    return last;
}
/// The same without shared memory, all of which may be a row's. Loops around it need more
/// registers: a sum over axis 0 spilled some and took a sixth more.
__device__ __forceinline__ bool arrive_last_unshared(uint32_t* counter, uint32_t count) {
    bool last = false;
    __syncthreads();
    if (threadIdx.x == 0) {
        last = add_acq_rel(counter, 1u) == count - 1;
        if (last) clear_counter(counter);
    }
    return __syncthreads_or(last);
}

}  // namespace aicf
