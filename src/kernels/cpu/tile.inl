// The inner loop of matrix products: R rows by NV vectors of C over chunks of k, each accumulated
// by fma from +0 in registers, then stored (first chunk) or added (later chunks).
//
// Included once per instruction set; see isa.cpp. No standard-library templates here.
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "core/abi/abi.h"
#include "core/abi/scalar.h"

namespace aicf::cpu::AICF_ISA {
namespace mm {

// ---- vectors ------------------------------------------------------------------------------------

template <class T, int Bytes>
struct VecOf {
    typedef T type __attribute__((vector_size(Bytes), aligned(sizeof(T)), may_alias));
};
template <class T, int Bytes>
using Vec = typename VecOf<T, Bytes>::type;

template <class V, class T>
AICF_HD V load(const T* p) {
    return *reinterpret_cast<const V*>(p);
}
template <class V, class T>
AICF_HD void store(T* p, V v) {
    *reinterpret_cast<V*>(p) = v;
}

// x - 0 keeps every x, -0 included, and compiles to a broadcast.
template <class V, class T>
AICF_HD V splat(T x) {
    return x - V{};
}

template <class T, int Bytes>
AICF_HD Vec<T, Bytes> fma(Vec<T, Bytes> a, Vec<T, Bytes> b, Vec<T, Bytes> c) {
#if defined(__AVX512F__)
    if constexpr (Bytes == 64 && sizeof(T) == 4)
        return (Vec<T, Bytes>)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
    if constexpr (Bytes == 64 && sizeof(T) == 8)
        return (Vec<T, Bytes>)_mm512_fmadd_pd((__m512d)a, (__m512d)b, (__m512d)c);
#endif
#if defined(__FMA__)
    if constexpr (Bytes == 32 && sizeof(T) == 4)
        return (Vec<T, Bytes>)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
    if constexpr (Bytes == 32 && sizeof(T) == 8)
        return (Vec<T, Bytes>)_mm256_fmadd_pd((__m256d)a, (__m256d)b, (__m256d)c);
    if constexpr (Bytes == 16 && sizeof(T) == 4)
        return (Vec<T, Bytes>)_mm_fmadd_ps((__m128)a, (__m128)b, (__m128)c);
    if constexpr (Bytes == 16 && sizeof(T) == 8)
        return (Vec<T, Bytes>)_mm_fmadd_pd((__m128d)a, (__m128d)b, (__m128d)c);
#endif
    for (int i = 0; i < Bytes / int(sizeof(T)); ++i) {
        if constexpr (sizeof(T) == 4)
            c[i] = __builtin_fmaf(a[i], b[i], c[i]);
        else
            c[i] = __builtin_fma(a[i], b[i], c[i]);
    }
    return c;
}

// ---- the tile -----------------------------------------------------------------------------------

// Rows by cols elements, to or from the dense tile that stands for one which the edge of C cuts, or
// whose C is strided.
template <class T>
__attribute__((noinline)) void copy(const T* from, int64_t from_row, int64_t from_col, T* to,
                                    int64_t to_row, int64_t to_col, int64_t rows, int64_t cols) {
    for (int64_t i = 0; i < rows; ++i, from += from_row, to += to_row)
        if (from_col == 1 && to_col == 1)
            for (int64_t j = 0; j < cols; ++j) to[j] = from[j];
        else
            for (int64_t j = 0; j < cols; ++j) to[j * to_col] = from[j * from_col];
}

// acc = fma(a, b, acc) where acc is: the compiler would move accumulators around an unrolled loop.
template <class T, int Bytes>
AICF_HD void accumulate(Vec<T, Bytes>& acc, Vec<T, Bytes> a, Vec<T, Bytes> b) {
#if defined(__FMA__)
    if constexpr (sizeof(T) == 4)
        asm("vfmadd231ps %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
    else
        asm("vfmadd231pd %2, %1, %0" : "+v"(acc) : "v"(a), "v"(b));
#else
    acc = fma<T, Bytes>(a, b, acc);
#endif
}

// RowA: A is read as a[r * a_step + p]; otherwise as a[r + p * a_step]. Packed: B's step is the
// strip's width.
template <class T, int Bytes, int NV, int R, bool RowA, bool Packed>
void tile(int64_t k, int64_t chunk, const T* a, int64_t a_step, const T* b, int64_t b_step, T* c,
          int64_t c_row, bool add) {
    using V = Vec<T, Bytes>;
    constexpr int L = Bytes / sizeof(T), kTurn = Packed ? 4 : 1;  // terms of k in a turn
    if constexpr (Packed) b_step = NV * L;
    // One pointer serves three rows: p, p + step and p + 2 * step are addresses of one instruction.
    const T* at[(R + 2) / 3];
    for (int g = 0; g < (R + 2) / 3; ++g) at[g] = a + 3 * g * a_step;
    V acc[R][NV];
    if (add) {
        T* d = c;
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r, d += c_row) {
            asm("" : "+r"(d));  // one running pointer, not R addresses kept in memory
            for (int x = 0; x < NV * Bytes; x += 64)
                __builtin_prefetch(reinterpret_cast<char*>(d) + x, 1);
        }
    }
    const auto turn = [&](int terms) __attribute__((always_inline)) {
#pragma GCC unroll 4
        for (int u = 0; u < terms; ++u) {
            V bv[NV];
#pragma GCC unroll 16
            for (int v = 0; v < NV; ++v) bv[v] = load<V>(b + u * b_step + v * L);
#pragma GCC unroll 16
            for (int r = 0; r < R; ++r) {
                const V av = splat<V>(RowA ? at[r / 3][r % 3 * a_step + u] : a[r]);
#pragma GCC unroll 16
                for (int v = 0; v < NV; ++v) accumulate<T, Bytes>(acc[r][v], av, bv[v]);
            }
            if constexpr (!RowA) {
                a += a_step;
                asm("" : "+r"(a));  // one running pointer here too
            }
        }
        if constexpr (RowA) {
#pragma GCC unroll 16
            for (int g = 0; g < (R + 2) / 3; ++g) {
                at[g] += terms;
                asm("" : "+r"(at[g]));  // else the compiler rebuilds all R addresses each time
            }
        }
        b += terms * b_step;
    };
    do {
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
            for (int v = 0; v < NV; ++v) acc[r][v] = V{};
        int64_t terms = k < chunk ? k : chunk;
        k -= terms;
        for (; terms >= kTurn; terms -= kTurn) turn(kTurn);
        if constexpr (kTurn > 1)
            for (; terms > 0; --terms) turn(1);
        T* d = c;
#pragma GCC unroll 16
        for (int r = 0; r < R; ++r, d += c_row) {
            asm("" : "+r"(d));
#pragma GCC unroll 16
            for (int v = 0; v < NV; ++v)
                store(d + v * L, add ? load<V>(d + v * L) + acc[r][v] : acc[r][v]);
        }
        add = true;
    } while (k > 0);
}

template <class T>
using TileFn = void (*)(int64_t, int64_t, const T*, int64_t, const T*, int64_t, T*, int64_t, bool);

constexpr int kBytes = kWidths.vector, kMainRows = kWidths.main_rows, kSlimRows = kWidths.slim_rows;
constexpr int kMaxTile = kBytes * 2 * 16;  // bytes

enum Strip { kVector, kWide, kMain, kSingle, kHalf, kStrips };

struct Shape {
    int bytes, vectors, rows;
};
constexpr Shape kShapes[kStrips] = {{kBytes, kVectorVectors, 1},
                                    {kBytes, kWideVectors, kWideRows},
                                    {kBytes, 2, kMainRows},
                                    {kBytes, 1, kSlimRows},
                                    {kBytes > 16 ? kBytes / 2 : 16, 1, kSlimRows}};

// Every tile there is, by strip, by how A and B are read, and by the number of rows.
template <class T>
struct Tiles {
    TileFn<T> at[kStrips][2][2][kSlimRows + 1] = {};
    constexpr Tiles() { fill<0, kShapes[0].rows>(); }
    template <int S, int R>
    constexpr void fill() {
        at[S][0][0][R] = tile<T, kShapes[S].bytes, kShapes[S].vectors, R, false, false>;
        at[S][0][1][R] = tile<T, kShapes[S].bytes, kShapes[S].vectors, R, false, true>;
        at[S][1][0][R] = tile<T, kShapes[S].bytes, kShapes[S].vectors, R, true, false>;
        at[S][1][1][R] = tile<T, kShapes[S].bytes, kShapes[S].vectors, R, true, true>;
        if constexpr (R > 1)
            fill<S, R - 1>();
        else if constexpr (S + 1 < kStrips)
            fill<S + 1, kShapes[S + 1].rows>();
    }
};
template <class T>
constexpr Tiles<T> kTiles;

template <class T>
AICF_HD int64_t width_of(int strip) {
    return kShapes[strip].bytes / int64_t(sizeof(T)) * kShapes[strip].vectors;
}

// The widest strip that the columns left fill, few rows wanting more; else the narrowest around
// them.
template <class T>
AICF_HD int strip_for(int64_t rows, int64_t cols) {
    constexpr int64_t L = kBytes / sizeof(T);
    if (rows == 1 && cols >= kVectorVectors * L) return kVector;
    if (rows <= kWideRows && cols >= kWideVectors * L) return kWide;
    if (cols > L) return kMain;
    return cols > L / 2 || kBytes == 16 ? kSingle : kHalf;
}

}  // namespace mm
}  // namespace aicf::cpu::AICF_ISA
