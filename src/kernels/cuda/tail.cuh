// The end of a network of few classes in one launch: the product that makes logits, their loss and
// its gradient, and the product that takes this back to what the logits are made of. A block takes
// some rows at a time; the weights lie in its shared memory. Tail says where things lie and what is
// done with an element of each product.
#pragma once

#include "losses.cuh"
#include "mma.cuh"

namespace aicf {

/// A row in shared memory.
template <class A>
struct RowHere {
    const A* x;
    __device__ __forceinline__ A operator()(int64_t i) const { return x[i]; }
    template <int V>
    __device__ __forceinline__ bool aligned() const {
        return true;
    }
    template <int V, bool Aligned = false>
    __device__ __forceinline__ void some(int64_t i, A (&a)[V]) const {
#pragma unroll
        for (int c = 0; c < V; c++) a[c] = x[i + c];
    }
};

/// The gradient of a row's logits: kept here as the second product reads it, and stored where the
/// row is one.
template <class Tail>
struct GradientHere {
    static constexpr bool spans = false;
    const Tail& tail;
    float* here;
    int64_t row;
    bool stored;
    __device__ __forceinline__ void operator()(int64_t i, float v) const {
        here[i] = v = tail.kept(v);
        if (stored) tail.grad(row, i, v);
    }
    template <int V>
    __device__ __forceinline__ void some(int64_t i, const float (&v)[V]) const {
#pragma unroll
        for (int c = 0; c < V; c++) (*this)(i + c, v[c]);
    }
};

template <int Rows, int N, class Of>
struct TailShape {
    static constexpr int64_t rows = Rows, n = N;
    static constexpr bool many = false, narrow = false;
    typedef Of Exps;
};

/// Lines of K numbers, `Pitch` floats apart here and `Step` there; 16 bits become floats.
template <int K, int Pitch, int64_t Step, int Threads, class E>
__device__ __forceinline__ void bring_lines(float* to, const E* from, int lines) {
    constexpr int pack = 16 / sizeof(E), packs = K / pack > 0 ? K / pack : 1;
    if (K % pack == 0 && Step % pack == 0 && aligned16(from)) {
#pragma unroll 4
        for (int u = threadIdx.x; u < lines * packs; u += Threads) {
            const int line = u / packs, e = u % packs * pack;
            float* const y = to + line * Pitch + e;
            const E* const x = from + line * Step + e;
            if constexpr (sizeof(E) == 4) {
                copy_async<16>(y, x);
            } else {
                float a[pack];
                load_dense<pack, E>(a, x, 0, pack, true);
#pragma unroll
                for (int half = 0; half < 2; half++)
                    *reinterpret_cast<Pack<float, 4>*>(y + 4 * half) = {
                        {a[4 * half], a[4 * half + 1], a[4 * half + 2], a[4 * half + 3]}};
            }
        }
    } else {
        for (int u = threadIdx.x; u < lines * K; u += Threads) {
            const int line = u / K, e = u % K;
            if constexpr (sizeof(E) == 4)
                copy_async<4>(to + line * Pitch + e, from + line * Step + e);
            else
                to[line * Pitch + e] = widen(from[line * Step + e]);
        }
    }
}

/// The sums of the chunks of k of each logit, in the order chain(chunk).
template <int Threads, int Rows, class Tail>
__device__ __forceinline__ void logits_by_chains(float* sums, const float* ws, const float* xs) {
    typedef typename Tail::As As;
    constexpr int k = int(Tail::k), n = int(Tail::n), chunk = int(Tail::chunk),
                  chunks = (k + chunk - 1) / chunk, pitch = int(Tail::pitch),
                  at_once = Rows < 2 ? 1 : 2,  // rows of a thread, which share what it reads of w
        lot = 4 / at_once;                     // fours that are on their way while others are used
    static_assert(Rows % at_once == 0 && pitch % 4 == 0 && chunk % 4 == 0);
    for (int u = threadIdx.x; u < n * chunks * (Rows / at_once); u += Threads) {
        const int j = u % n, c = u / n % chunks, r = u / (n * chunks) * at_once;
        const int end = (c + 1) * chunk < k ? (c + 1) * chunk : k;
        const float *const wp = ws + j * pitch, *const xp = xs + r * pitch;
        float acc[at_once] = {};
        int p = c * chunk;
        if constexpr (k % chunk == 0 && chunk % (8 * lot) == 0) {
            Pack<float, 4> b[2][lot], a[2][lot][at_once];
            const auto load = [&](int set, int from) {
#pragma unroll
                for (int l = 0; l < lot; l++) {
                    b[set][l] = *reinterpret_cast<const Pack<float, 4>*>(wp + from + 4 * l);
#pragma unroll
                    for (int i = 0; i < at_once; i++)
                        a[set][l][i] =
                            *reinterpret_cast<const Pack<float, 4>*>(xp + i * pitch + from + 4 * l);
                }
            };
            const auto multiply = [&](int set) {
#pragma unroll
                for (int l = 0; l < lot; l++)
#pragma unroll
                    for (int i = 0; i < at_once; i++)
#pragma unroll
                        for (int q = 0; q < 4; q++)
                            acc[i] = scalar::fma(operand<As>(a[set][l][i].at[q]),
                                                 operand<As>(b[set][l].at[q]), acc[i]);
            };
            load(0, p);
#pragma unroll 1
            for (; p < end; p += 8 * lot) {
                load(1, p + 4 * lot);
                multiply(0);
                if (p + 8 * lot < end) load(0, p + 8 * lot);
                multiply(1);
            }
        }
#pragma unroll 8
        for (; p + 4 <= end; p += 4) {
            const auto b = *reinterpret_cast<const Pack<float, 4>*>(wp + p);
#pragma unroll
            for (int i = 0; i < at_once; i++) {
                const auto a = *reinterpret_cast<const Pack<float, 4>*>(xp + i * pitch + p);
#pragma unroll
                for (int q = 0; q < 4; q++)
                    acc[i] = scalar::fma(operand<As>(a.at[q]), operand<As>(b.at[q]), acc[i]);
            }
        }
#pragma unroll 1
        for (; p < end; p++)
#pragma unroll
            for (int i = 0; i < at_once; i++)
                acc[i] = scalar::fma(operand<As>(xp[i * pitch + p]), operand<As>(wp[p]), acc[i]);
#pragma unroll
        for (int i = 0; i < at_once; i++) sums[(c * Rows + r + i) * n + j] = acc[i];
    }
}

/// The same on tensor cores of 9.0, in the order mma8(chunk) or mma16(chunk): a warp takes 16
/// classes by 8 rows of a cut.
template <int Threads, int Rows, class Tail>
__device__ __forceinline__ void logits_by_tensor_cores(float* sums, const float* ws,
                                                       const float* xs) {
    typedef typename Tail::As As;
    constexpr int k = int(Tail::k), n = int(Tail::n), chunk = int(Tail::chunk),
                  chunks = (k + chunk - 1) / chunk, pitch = int(Tail::pitch), each = step_terms<As>,
                  high = (n + 15) / 16, wide = (Rows + 7) / 8;
    const int lane = threadIdx.x % 32, own = lane / 4, pair = lane % 4 * 2;
    const auto line = [=](const float* from, int i, int lines) {
        return from + (i < lines ? i : lines - 1) * pitch;  // what is made of others is left out
    };
    for (int u = threadIdx.x / 32; u < high * wide * chunks; u += Threads / 32) {
        const int j = u % high * 16 + own, r = u / high % wide * 8, c = u / (high * wide);
        const float *const w0 = line(ws, j, n), *const w1 = line(ws, j + 8, n),
                           *const x0 = line(xs, r + own, Rows);
        const int end = (c + 1) * chunk < k ? (c + 1) * chunk : k;
        float acc[4] = {};
#pragma unroll 4
        for (int p = c * chunk; p < end; p += each) {
            const auto two = [=](const float* from, int at) -> Pack<float, 2> {
                const int first = p + pair + at;
                if (k % each == 0 || first + 2 <= k)
                    return *reinterpret_cast<const Pack<float, 2>*>(from + first);
                return {{first < k ? from[first] : 0.0f, 0.0f}};
            };
            uint32_t a[4], b[2];
            step_words<As>(a[0], a[2], [=](int at) { return two(w0, at); });
            step_words<As>(a[1], a[3], [=](int at) { return two(w1, at); });
            step_words<As>(b[0], b[1], [=](int at) { return two(x0, at); });
            mma<As>(acc, a, b[0], b[1]);
        }
#pragma unroll
        for (int y = 0; y < 4; y++) {
            const int class_of = j + y / 2 * 8, row = r + pair + y % 2;
            if (class_of < n && row < Rows) sums[(c * Rows + row) * n + class_of] = acc[y];
        }
    }
}

/// By blocks of `Threads`, which take Rows rows at a time. Lanes: of a team that takes the loss of
/// one.
template <int Threads, int Rows, int Lanes, class Tail, class E>
__device__ __forceinline__ void loss_tail(const Grid& grid, const Tail& tail, const E* x,
                                          const E* w, float scale) {
    typedef typename Tail::BackAs BackAs;  // what operands of the second product are rounded to
    constexpr int k = int(Tail::k), n = int(Tail::n), chunk = int(Tail::chunk),
                  chunks = (k + chunk - 1) / chunk, pitch = int(Tail::pitch);
    extern __shared__ __align__(16) char shared[];
    float* const ws = reinterpret_cast<float*>(shared);
    float* const xs = ws + n * pitch;
    float* const sums = xs + Rows * pitch;
    float* const logits = sums + chunks * Rows * n;
    float* const grads = logits + Rows * n;
    __shared__ int64_t labels[Rows];
    // By copies past the first cache, which may hold what was there before.
    const bool early = sizeof(E) == 4 && k % 4 == 0 && Tail::w_step % 4 == 0 && aligned16(w);
    if (early) bring_lines<k, pitch, Tail::w_step, Threads>(ws, w, n);
    begin_kernel();
    if (!early) bring_lines<k, pitch, Tail::w_step, Threads>(ws, w, n);
    for (int64_t r0 = int64_t(grid.block) * Rows; r0 < Tail::m; r0 += int64_t(grid.blocks) * Rows) {
        const int rows = Tail::m - r0 < Rows ? int(Tail::m - r0) : Rows;
        const auto row_of = [=](int r) { return r0 + (r < rows ? r : rows - 1); };
        bring_lines<k, pitch, Tail::x_step, Threads>(xs, x + r0 * Tail::x_step, rows);
        commit_copies();
        // What else is read of memory is on its way meanwhile.
        const int own = threadIdx.x < Rows * n ? int(threadIdx.x) : 0;
        const typename Tail::OfLogit of_own = tail.of_logit(row_of(own / n), own % n);
        const int64_t own_label = tail.label(row_of(threadIdx.x % Rows));
        if (threadIdx.x < Rows) labels[threadIdx.x] = own_label;
        wait_copies<0>();
        __syncthreads();
        if constexpr (Tail::tensor)
            logits_by_tensor_cores<Threads, Rows, Tail>(sums, ws, xs);
        else
            logits_by_chains<Threads, Rows, Tail>(sums, ws, xs);
        __syncthreads();
        for (int u = threadIdx.x; u < Rows * n; u += Threads) {
            float total = sums[u];
#pragma unroll
            for (int c = 1; c < chunks; c++) total = total + sums[c * Rows * n + u];
            logits[u] = tail.logit(u == own ? of_own : tail.of_logit(row_of(u / n), u % n), total);
        }
        __syncthreads();
        if (threadIdx.x < 32) {
            const auto make = [=](int64_t r) { return RowHere<float>{logits + r * n}; };
            const auto put = [&](int64_t r) {
                return GradientHere<Tail>{tail, grads + r * n, row_of(int(r)), r < rows};
            };
            cross_entropy_with_grad<float, HolderOf<float, n, Lanes, 1>, 0,
                                    TailShape<Rows, n, typename Tail::Exps>>(
                Grid{0, 1, 32}, make, [&](int64_t r) { return labels[r]; },
                [&](int64_t r, float v) {
                    if (r < rows) tail.loss(r0 + r, v);
                },
                [&](int64_t r, float v) {
                    if (r < rows) tail.most(r0 + r, v);
                },
                [&](int64_t r, float v) {
                    if (r < rows) tail.sum(r0 + r, v);
                },
                put, scale);
        }
        __syncthreads();
        if constexpr (Tail::back) {
            constexpr int side = k % 4 == 0 ? 4 : 1, across = k / side;
            for (int u = threadIdx.x; u < rows * across; u += Threads) {
                const int r = u / across, col = u % across * side;
                float v[side] = {};
#pragma unroll
                for (int j = 0; j < n; j++) {
                    const float g = operand<BackAs>(grads[r * n + j]);
                    const auto b =
                        *reinterpret_cast<const Pack<float, side>*>(ws + j * pitch + col);
#pragma unroll
                    for (int c = 0; c < side; c++)
                        v[c] = scalar::fma(g, operand<BackAs>(b.at[c]), v[c]);
                }
                tail(r0 + r, col, v, xs + r * pitch + col);
            }
            __syncthreads();  // the next rows lie where these did
        }
    }
}

}  // namespace aicf
