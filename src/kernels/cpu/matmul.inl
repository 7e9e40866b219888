// C[b][i][j] = sum over k of A[b][i][k] * B[b][k][j] in the order chain(c) of abi.h.
//
// One kernel, `tile` of tile.inl, computes R rows by NV vectors of C over one chunk of k. Lanes run
// over columns of C, never over k, so each element sees exactly the declared order whatever R, NV,
// the vector width, the blocking or the split over threads. Everything else only decides where the
// tile reads from: the operand itself when its layout suits, or a packed copy that holds a strip of
// `width` columns (B) or R rows (A) as [k][width].
//
// Included once per instruction set; see isa.cpp. No standard-library templates here.

namespace aicf::cpu::AICF_ISA {
namespace mm {

AICF_HD int64_t min(int64_t a, int64_t b) { return a < b ? a : b; }
AICF_HD int64_t max(int64_t a, int64_t b) { return a > b ? a : b; }
AICF_HD int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// ---- packing ------------------------------------------------------------------------------------

struct Half {
    uint16_t bits;
};
struct Brain {
    uint16_t bits;
};

AICF_HD float widen(Half x) { return scalar::half_to_f32(x.bits); }
AICF_HD float widen(Brain x) { return scalar::bfloat_to_f32(x.bits); }
// An f32 operand that is rounded before it is multiplied; see gemm's `math`.
struct AsTf32 {
    float x;
};
struct AsHalf {
    float x;
};
struct AsBrain {
    float x;
};
struct AsLimbs {
    float x;
};
AICF_HD float widen(AsTf32 x) { return scalar::f32_to_tf32(x.x); }
AICF_HD float widen(AsHalf x) { return scalar::half_to_f32(scalar::f32_to_half(x.x)); }
AICF_HD float widen(AsBrain x) { return scalar::bfloat_to_f32(scalar::f32_to_bfloat(x.x)); }

template <class A, class B>
constexpr bool kSame = false;
template <class A>
constexpr bool kSame<A, A> = true;

AICF_HD void narrow(float x, Half* to) { to->bits = scalar::f32_to_half(x); }
AICF_HD void narrow(float x, Brain* to) { to->bits = scalar::f32_to_bfloat(x); }

#if defined(__clang__)
#define AICF_SHUFFLE(M, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define AICF_SHUFFLE(M, a, b, ...) __builtin_shuffle(a, b, M{__VA_ARGS__})
#endif

// Transposes the square that each 16-byte lane of the rows v holds: 4 x 4 floats or 2 x 2 doubles.
template <class Q>
AICF_HD void transpose(Q (&v)[4]) {
    using M = Vec<int32_t, sizeof(Q)>;
    if constexpr (sizeof(Q) == 64) {
        const auto low = [](Q x, Q y) __attribute__((always_inline)) {
            return AICF_SHUFFLE(M, x, y, 0, 16, 1, 17, 4, 20, 5, 21, 8, 24, 9, 25, 12, 28, 13, 29);
        };
        const auto high = [](Q x, Q y) __attribute__((always_inline)) {
            return AICF_SHUFFLE(M, x, y, 2, 18, 3, 19, 6, 22, 7, 23, 10, 26, 11, 27, 14, 30, 15,
                                31);
        };
        const auto low_pairs = [](Q x, Q y) __attribute__((always_inline)) {
            return AICF_SHUFFLE(M, x, y, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29);
        };
        const auto high_pairs = [](Q x, Q y) __attribute__((always_inline)) {
            return AICF_SHUFFLE(M, x, y, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30,
                                31);
        };
        const Q a = low(v[0], v[1]), b = high(v[0], v[1]);
        const Q c = low(v[2], v[3]), d = high(v[2], v[3]);
        v[0] = low_pairs(a, c), v[1] = high_pairs(a, c);
        v[2] = low_pairs(b, d), v[3] = high_pairs(b, d);
    } else if constexpr (sizeof(Q) == 32) {
        const Q a = AICF_SHUFFLE(M, v[0], v[1], 0, 8, 1, 9, 4, 12, 5, 13);
        const Q b = AICF_SHUFFLE(M, v[0], v[1], 2, 10, 3, 11, 6, 14, 7, 15);
        const Q c = AICF_SHUFFLE(M, v[2], v[3], 0, 8, 1, 9, 4, 12, 5, 13);
        const Q d = AICF_SHUFFLE(M, v[2], v[3], 2, 10, 3, 11, 6, 14, 7, 15);
        v[0] = AICF_SHUFFLE(M, a, c, 0, 1, 8, 9, 4, 5, 12, 13);
        v[1] = AICF_SHUFFLE(M, a, c, 2, 3, 10, 11, 6, 7, 14, 15);
        v[2] = AICF_SHUFFLE(M, b, d, 0, 1, 8, 9, 4, 5, 12, 13);
        v[3] = AICF_SHUFFLE(M, b, d, 2, 3, 10, 11, 6, 7, 14, 15);
    } else {
        const Q a = AICF_SHUFFLE(M, v[0], v[1], 0, 4, 1, 5),
                b = AICF_SHUFFLE(M, v[0], v[1], 2, 6, 3, 7);
        const Q c = AICF_SHUFFLE(M, v[2], v[3], 0, 4, 1, 5),
                d = AICF_SHUFFLE(M, v[2], v[3], 2, 6, 3, 7);
        v[0] = AICF_SHUFFLE(M, a, c, 0, 1, 4, 5), v[1] = AICF_SHUFFLE(M, a, c, 2, 3, 6, 7);
        v[2] = AICF_SHUFFLE(M, b, d, 0, 1, 4, 5), v[3] = AICF_SHUFFLE(M, b, d, 2, 3, 6, 7);
    }
}
template <class Q>
AICF_HD void transpose(Q (&v)[2]) {
    using M = Vec<int64_t, sizeof(Q)>;
    const Q a = v[0], b = v[1];
    if constexpr (sizeof(Q) == 64) {
        v[0] = AICF_SHUFFLE(M, a, b, 0, 8, 2, 10, 4, 12, 6, 14);
        v[1] = AICF_SHUFFLE(M, a, b, 1, 9, 3, 11, 5, 13, 7, 15);
    } else if constexpr (sizeof(Q) == 32)
        v[0] = AICF_SHUFFLE(M, a, b, 0, 4, 2, 6), v[1] = AICF_SHUFFLE(M, a, b, 1, 5, 3, 7);
    else
        v[0] = AICF_SHUFFLE(M, a, b, 0, 2), v[1] = AICF_SHUFFLE(M, a, b, 1, 3);
}
#undef AICF_SHUFFLE

// One 16-byte lane from p and, where Q has two, one from q; where it has four, two more from where
// the same step leads.
template <class Q, class T>
AICF_HD Q load_lanes(const T* p, [[maybe_unused]] const T* q) {
#if defined(__AVX512F__)
    if constexpr (sizeof(Q) == 64) {
        const auto lane = [&](int i) __attribute__((always_inline)) {
            return (__m128)load<Vec<T, 16>>(p + i * (q - p));
        };
        const __m512 low = _mm512_insertf32x4(_mm512_castps128_ps512(lane(0)), lane(1), 1);
        return (Q)_mm512_insertf32x4(_mm512_insertf32x4(low, lane(2), 2), lane(3), 3);
    }
#endif
#if defined(__AVX__)
    if constexpr (sizeof(Q) == 32) {
        const __m128 low = (__m128)load<Vec<T, 16>>(p), high = (__m128)load<Vec<T, 16>>(q);
        return (Q)_mm256_insertf128_ps(_mm256_castps128_ps256(low), high, 1);
    }
#endif
    return load<Q>(p);
}
constexpr int kDotBytes = kWidths.square;

template <class T>
struct Packer {
    using V = Vec<T, kBytes>;
    using Lane = Vec<T, 16>;
    static constexpr int64_t L = 16 / sizeof(T), kMainWidth = 2 * kBytes / sizeof(T);

    // L columns of as many rows at s (stride `row`) as Q has elements, transposed to d.
    template <class Q>
    static AICF_HD void turn(const T* s, int64_t row, T* d, int64_t width) {
        Q q[L];
#pragma GCC unroll 4
        for (int r = 0; r < L; ++r) q[r] = load_lanes<Q>(s + r * row, s + (r + L) * row);
        transpose(q);
#pragma GCC unroll 4
        for (int r = 0; r < L; ++r) store(d + r * width, q[r]);
    }

    // pack() of rows that lie side by side; k >= L.
    template <class Q = V>
    static void turn_all(const T* s, int64_t x_step, int64_t k, int64_t count, int64_t width,
                         T* out) {
        constexpr int64_t W = sizeof(Q) / sizeof(T);
        if constexpr (sizeof(Q) > 16)
            if (count < W) return turn_all<Vec<T, sizeof(Q) / 2>>(s, x_step, k, count, width, out);
        for (int64_t x = 0;; x = x + 2 * W <= count ? x + W : count - W) {
            const T* sx = s + x * x_step;
            T* dx = out + x;
            for (int64_t p = 0; p + L <= k; p += L) turn<Q>(sx + p, x_step, dx + p * width, width);
            turn<Q>(sx + k - L, x_step, dx + (k - L) * width, width);
            if (x + W == count) return;
        }
    }

    // out[p * width + x] = s[p * k_step + x * x_step] for x < count, 0 up to width.
    static void pack(const T* s, int64_t k_step, int64_t x_step, int64_t k, int64_t count,
                     int64_t width, T* out) {
        if (count < width) {
            for (int64_t p = 0; p < k; ++p)
                for (int64_t x = count; x < width; ++x) out[p * width + x] = T(0);
        }
        if (x_step == 1 && count == kMainWidth) {
            for (int64_t p = 0; p < k; ++p, s += k_step, out += width) {
                const V low = load<V>(s), high = load<V>(s + kMainWidth / 2);
                store(out, low);
                store(out + kMainWidth / 2, high);
            }
            return;
        }
        // The last group of L overlaps the one before it: only counts below L go one by one.
        if (x_step == 1 && count >= L) {
            for (int64_t p = 0; p < k; ++p, s += k_step, out += width) {
                for (int64_t x = 0; x + L <= count; x += L) store(out + x, load<Lane>(s + x));
                store(out + count - L, load<Lane>(s + count - L));
            }
        } else if (k_step == 1 && count >= L && k >= L) {
            turn_all(s, x_step, k, count, width, out);
        } else {
            for (int64_t p = 0; p < k; ++p)
                for (int64_t x = 0; x < count; ++x) out[p * width + x] = s[p * k_step + x * x_step];
        }
    }
};

template <class S, class T>
void pack(const S* s, int64_t k_step, int64_t x_step, int64_t k, int64_t count, int64_t width,
          T* out) {
    if constexpr (kSame<S, T>) {
        Packer<T>::pack(s, k_step, x_step, k, count, width, out);
    } else {
        for (int64_t p = 0; p < k; ++p) {
            for (int64_t x = 0; x < count; ++x)
                out[p * width + x] = widen(s[p * k_step + x * x_step]);
            for (int64_t x = count; x < width; ++x) out[p * width + x] = T(0);
        }
    }
}

// Prefetches part t of `parts` of what pack(), or a tile in its stead, will read.
template <class S>
AICF_HD void fetch(const S* s, int64_t k_step, int64_t x_step, int64_t k, int64_t count, int64_t t,
                   int64_t parts) {
    if (count <= 0) return;
    if (k_step == 1) {
        for (int64_t x = count * t / parts; x < count * (t + 1) / parts; ++x)
            for (int64_t p = 0; p < k; p += 64 / sizeof(S))
                __builtin_prefetch(s + x * x_step + p, 0, 2);
    } else {
        for (int64_t p = k * t / parts; p < k * (t + 1) / parts; ++p)
            for (int64_t x = count - 1; x >= 0; x -= int64_t(64 / sizeof(S)))
                __builtin_prefetch(s + p * k_step + x, 0, 2);
    }
}

// ---- matrix times vector ------------------------------------------------------------------------

// c[j] for G vectors of columns of B, each column contiguous in k: squares of B are transposed in
// registers, so that lanes are columns here too. All chunks are summed before c is written.
template <class T, int G>
void dots(const T* x, const T* b, int64_t b_col, T* c, int64_t c_col, int64_t k, int64_t chunk) {
    using Q = Vec<T, kDotBytes>;
    constexpr int W = kDotBytes / sizeof(T), L = 16 / sizeof(T), kLine = 64 / sizeof(T);
    auto square = [&](int g, int64_t p, Q acc) __attribute__((always_inline)) {
        const T *s = b + g * W * b_col + p, *lane = s + L * b_col;
        // Else the compiler keeps a pointer per column, and few of them in registers.
        asm("" : "+r"(s), "+r"(lane));
        Q row[L];
#pragma GCC unroll 4
        for (int r = 0; r < L; ++r) row[r] = load_lanes<Q>(s + r * b_col, lane + r * b_col);
        transpose(row);
#pragma GCC unroll 4
        for (int r = 0; r < L; ++r) acc = fma<T, kDotBytes>(splat<Q>(x[p + r]), row[r], acc);
        return acc;
    };
    Q total[G] = {};
    for (int64_t p0 = 0; p0 < k; p0 += chunk) {
        const int64_t end = p0 + min(chunk, k - p0);
        Q acc[G] = {};
        int64_t p = p0;
        // A cache line of each column at a time: all columns may fall into one set of the cache.
        for (; p + kLine <= end; p += kLine) {
#pragma GCC unroll 4
            for (int g = 0; g < G; ++g) {
#pragma GCC unroll 8
                for (int q = 0; q < kLine; q += L) acc[g] = square(g, p + q, acc[g]);
            }
        }
        for (; p + L <= end; p += L) {
#pragma GCC unroll 4
            for (int g = 0; g < G; ++g) acc[g] = square(g, p, acc[g]);
        }
        for (; p < end; ++p) {
#pragma GCC unroll 4
            for (int g = 0; g < G; ++g) {
                Q v;
                for (int w = 0; w < W; ++w) v[w] = b[(g * W + w) * b_col + p];
                acc[g] = fma<T, kDotBytes>(splat<Q>(x[p]), v, acc[g]);
            }
        }
#pragma GCC unroll 4
        for (int g = 0; g < G; ++g) total[g] = p0 ? total[g] + acc[g] : acc[g];
    }
#pragma GCC unroll 4
    for (int g = 0; g < G; ++g)
        for (int w = 0; w < W; ++w) c[(g * W + w) * c_col] = total[g][w];
}

// ---- few k --------------------------------------------------------------------------------------

// One strip of C, all rows, the K rows of B held in registers: a row costs K fma and a store.
template <class T, int Bytes, int K>
void thin(const T* a, int64_t a_row, const T* b, int64_t b_row, T* c, int64_t c_row, int64_t m) {
    using V = Vec<T, Bytes>;
    V bv[K];
#pragma GCC unroll 8
    for (int p = 0; p < K; ++p) bv[p] = load<V>(b + p * b_row);
    for (int64_t i = 0; i < m; ++i, a += a_row, c += c_row) {
        V acc = {};
#pragma GCC unroll 8
        for (int p = 0; p < K; ++p) acc = fma<T, Bytes>(splat<V>(a[p]), bv[p], acc);
        store(c, acc);
    }
}

template <class T, int Bytes, int K = 1>
void thin(int64_t k, const T* a, int64_t a_row, const T* b, int64_t b_row, T* c, int64_t c_row,
          int64_t m) {
    if (k == K) return thin<T, Bytes, K>(a, a_row, b, b_row, c, c_row, m);
    if constexpr (K < kThin) thin<T, Bytes, K + 1>(k, a, a_row, b, b_row, c, c_row, m);
}

// ---- blocking -----------------------------------------------------------------------------------

template <class T>
constexpr int64_t kResident = kResidentBytes / sizeof(T);

// A panel of k holds whole chunks, because a chunk's accumulators never leave the registers; the
// last one also what would be a panel of few terms.
struct Blocks {
    int64_t m, n, k, deepest;  // deepest: the most terms of a panel
};
template <class T>
AICF_HD Blocks blocks(int64_t k, int64_t chunk) {
    constexpr int64_t kA = kBlockA * 4 / sizeof(T), kB = kBlockB * 4 / sizeof(T);
    const int64_t kc = min(k, chunk >= kPanel ? chunk : kPanel / chunk * chunk);
    const int64_t deepest = min(k, kc + kFewTerms);
    if (kc <= kPanel / 2) return {2 * kA / kPanel, kB / kPanel, kc, deepest};
    if (kc <= kPanel) return {kA / kPanel, kB / kPanel, kc, deepest};  // the usual: no division
    return {max(kA / kc, 2 * kMainRows), max(kB / kc / 64 * 64, 64), kc, deepest};
}

template <class T>
AICF_HD bool between_pages(int64_t step) {
    return step * int64_t(sizeof(T)) % kPageBytes != 0;
}

// Bytes of packing space; also enough for any part of the same product, and for its transpose.
template <class T>
int64_t share(int64_t m, int64_t n, int64_t k, int64_t chunk) {
    const Blocks s = blocks<T>(k, chunk);
    const int64_t pad = kBytes / sizeof(T) * 2;
    const int64_t straight = min(m, s.m) + min(n + pad, s.n),
                  swapped = min(n, s.m) + min(m + pad, s.n);
    return (max(straight, swapped) * s.deepest * int64_t(sizeof(T)) + 127) / 64 * 64;
}

// Two shapes that need no tiles; false for all others.
template <class T>
bool special(const T* a, int64_t a_row, int64_t a_col, const T* b, int64_t b_row, int64_t b_col,
             T* c, int64_t c_row, int64_t c_col, int64_t m, int64_t n, int64_t k, int64_t chunk,
             T* packed_b) {
    constexpr int64_t W = kDotBytes / sizeof(T);
    if (m == 1 && a_col == 1 && b_row == 1 && b_col != 1 && n >= W) {
        int64_t j = 0;
        for (; j + kDotGroups * W <= n; j += kDotGroups * W)
            dots<T, kDotGroups>(a, b + j * b_col, b_col, c + j * c_col, c_col, k, chunk);
        for (; j < n; j += W) {
            j = min(j, n - W);  // the last group overlaps: the same columns give the same bits
            dots<T, 1>(a, b + j * b_col, b_col, c + j * c_col, c_col, k, chunk);
        }
        return true;
    }
    const int strip = n >= int64_t(kBytes / sizeof(T)) ? kSingle : kHalf;
    const int64_t width = width_of<T>(strip);
    if (k > min(kThin, chunk) || a_col != 1 || c_col != 1 || (n & (width - 1)) != 0 ||
        n > kThinStrips * width || m < kThinRows)
        return false;
    for (int64_t j = 0; j < n; j += width) {
        const T* bt = b + j * b_col;
        if (b_col != 1) pack(bt, b_row, b_col, k, width, width, packed_b), bt = packed_b;
        const int64_t b_step = b_col != 1 ? width : b_row;
        if (strip == kSingle)
            thin<T, kBytes>(k, a, a_row, bt, b_step, c + j, c_row, m);
        else
            thin<T, kShapes[kHalf].bytes>(k, a, a_row, bt, b_step, c + j, c_row, m);
    }
    return true;
}

// A product in tiles: C in panels of columns, k in blocks, rows in bands. Type T of the sums and of
// C, type S of the operands (others than T are converted while packing).
template <class T, class S>
struct Tiling {
    const S *a, *b;
    T* c;
    int64_t a_row, a_col, b_row, b_col, c_row, c_col, m, n, k, chunk;
    T *packed_a, *packed_b;
    Blocks s;
    bool pack_a, pack_b, row_a;

    AICF_INLINE void choose_packing() {
        constexpr bool convert = !kSame<S, T>;
        s = blocks<T>(k, chunk);
        // B is read where it lies if few tiles share a strip; so are the columns of a transposed A
        // where a tile's rows are most of a cache line.
        const bool few_tiles = m <= kFewTiles * kMainRows && between_pages<T>(b_row);
        const bool columns_of_a = a_row == 1 && kBytes == 64 && between_pages<T>(a_col);
        pack_a =
            convert || (a_row != 1 && a_col != 1) || (n > kPackedColumns && m > 1 && !columns_of_a);
        pack_b = convert || b_col != 1 ||
                 (m > kMainRows && n * min(k, s.k) > kPackedElements && !few_tiles);
        row_a = !pack_a && a_row != 1;
        packed_a = packed_b + min(n + kBytes / sizeof(T) * 2, s.n) * s.deepest;
    }

    // Terms [p0, p0 + kb) of the band of rows [i0, i0 + mb) and the panel of columns [j0, j0 + nb).
    struct Block {
        int64_t j0, nb, p0, kb, i0, mb;
        int64_t b_apart;             // elements from a packed column of B to the next
        bool far;                    // the operands come from memory
        int64_t tiles, low, taller;  // of the band: of `low` rows, the first `taller` of one more
    };

    // The tile of number t in the strip that begins at column j; where the next strip begins.
    AICF_INLINE int64_t tile(const Block& at, int64_t t, int64_t j, int strip) const {
        const int64_t kb = at.kb, i = t * at.low + min(t, at.taller),
                      rows = at.low + (t < at.taller);
        const int64_t width = width_of<T>(strip), cols = min(width, at.nb - j);
        const bool own_b = pack_b || cols < width;  // padded, so that loads stay inside
        const S* as = a + (at.i0 + i) * a_row + at.p0 * a_col;
        const S* bs = b + at.p0 * b_row + (at.j0 + j) * b_col;
        T *const ap = packed_a + i * kb, *const bp = packed_b + j * at.b_apart;
        if (pack_a && j == 0) pack(as, a_col, a_row, kb, rows, rows, ap);
        if (own_b && at.i0 + i == 0) pack(bs, b_row, b_col, kb, cols, width, bp);
        const T* const from_a = pack_a ? ap : reinterpret_cast<const T*>(as);
        const T* const from_b = own_b ? bp : reinterpret_cast<const T*>(bs);
        const int64_t a_step = pack_a ? rows : (row_a ? a_row : a_col);
        const int64_t b_step = own_b ? width : b_row;
        T* const ct = c + (at.i0 + i) * c_row + (at.j0 + j) * c_col;
        const TileFn<T> fn = kTiles<T>.at[strip][row_a][own_b][rows];
        // What the next strip and tile are made of arrives while this one computes.
        if (at.far) {
            if (at.i0 == 0)
                fetch(bs + width * b_col, b_row, b_col, kb, min(width, at.nb - j - width), t,
                      at.tiles);
            if (pack_a && j == 0)
                fetch(as + rows * a_row, a_col, a_row, kb, min(rows, at.mb - i - rows), 0, 1);
        }
        const bool whole = cols == width && c_col == 1;
        const bool add = at.p0 > 0;
        if (whole) {
            fn(kb, chunk, from_a, a_step, from_b, b_step, ct, c_row, add);
            return j + width;
        }
        T cut[kMaxTile / sizeof(T)];
        if (add) copy(ct, c_row, c_col, cut, width, 1, rows, cols);
        fn(kb, chunk, from_a, a_step, from_b, b_step, cut, width, add);
        copy(cut, width, 1, ct, c_row, c_col, rows, cols);
        return j + width;
    }

    AICF_INLINE void run() const {
        for (int64_t j0 = 0; j0 < n; j0 += s.n) {
            const int64_t nb = min(s.n, n - j0);
            for (int64_t p0 = 0, kb; p0 < k; p0 += kb) {
                kb = k - p0 <= s.deepest ? k - p0 : s.k;
                // The operand that stays in the first-level cache is the inner one's partner: a
                // strip of B under all rows, or, where the whole panel of B is small, a band of C
                // written in one go. A strip that no later band reads gives its place to the next.
                const bool strips = kb * nb > kResident<T>, again = strips && m > s.m;
                const bool far = again || (strips && n * k * int64_t(sizeof(S)) > kFarBytes);
                for (int64_t i0 = 0; i0 < m; i0 += s.m) {
                    const int64_t mb = min(s.m, m - i0);
                    // Rows are dealt out evenly: 8 as 4 + 4, not 6 + 2.
                    const int64_t most = kShapes[strip_for<T>(m, nb)].rows,
                                  tiles = mb <= most ? 1 : ceil_div(mb, most);
                    const int64_t low = tiles == 1 ? mb : mb / tiles;
                    const Block at = {j0,
                                      nb,
                                      p0,
                                      kb,
                                      i0,
                                      mb,
                                      strips && !again ? 0 : kb,
                                      far,
                                      tiles,
                                      low,
                                      mb - low * tiles};
                    if (strips)
                        strip_by_strip(at);
                    else
                        row_by_row(at);
                }
            }
        }
    }
    AICF_INLINE void row_by_row(const Block& at) const {
        for (int64_t t = 0; t < at.tiles; ++t)
            for (int64_t j = 0; j < at.nb;) j = tile(at, t, j, strip_for<T>(m, at.nb - j));
    }
    AICF_INLINE void strip_by_strip(const Block& at) const {
        for (int64_t j = 0; j < at.nb;) {
            const int strip = strip_for<T>(m, at.nb - j);
            int64_t next = j;
            for (int64_t t = 0; t < at.tiles; ++t) next = tile(at, t, j, strip);
            j = next;
        }
    }
};

template <class T, class S>
void product(const S* a, int64_t a_row, int64_t a_col, const S* b, int64_t b_row, int64_t b_col,
             T* c, int64_t c_row, int64_t c_col, int64_t m, int64_t n, int64_t k, int64_t chunk,
             void* workspace) {
    if (m <= 0 || n <= 0) return;
    if (k <= 0) {
        for (int64_t i = 0; i < m; ++i)
            for (int64_t j = 0; j < n; ++j) c[i * c_row + j * c_col] = T(0);
        return;
    }
    // Lanes should run along the unit stride of C, and never along a single column.
    if ((n == 1 && m > 1) || (c_col != 1 && c_row == 1 && m > 1))
        return product<T, S>(b, b_col, b_row, a, a_col, a_row, c, c_col, c_row, n, m, k, chunk,
                             workspace);
    T* const packed =
        reinterpret_cast<T*>((reinterpret_cast<uintptr_t>(workspace) + 63) & ~uintptr_t(63));
    if constexpr (kSame<S, T>)
        if (special(a, a_row, a_col, b, b_row, b_col, c, c_row, c_col, m, n, k, chunk, packed))
            return;
    Tiling<T, S> tiling = {a,     b, c, a_row, a_col, b_row,   b_col, c_row,
                           c_col, m, n, k,     chunk, nullptr, packed};
    tiling.choose_packing();
    tiling.run();
}

}  // namespace mm
}  // namespace aicf::cpu::AICF_ISA
