// Ops that compute where to read: gathers over the result, so that no two threads write one place.
#pragma once

#include "prelude.cuh"

namespace aicf {

#define AICF_EACH(i, count)                                                           \
    for (int64_t i = int64_t(grid.block) * grid.threads + grid.thread(); i < (count); \
         i += int64_t(grid.blocks) * grid.threads)

// ---- rows of a table ----------------------------------------------------------------------------

/// y[u, w] = table[indices[u], w], `missing` where the index is out of range.
template <int64_t Count, int64_t Width, int64_t Rows, int64_t Step, class Index, class Rest,
          class Y, class T, class I>
__device__ __forceinline__ void take(const Grid& grid, T* y, const T* table, const I* indices,
                                     T missing) {
    AICF_EACH(i, Count * Width) {
        const int64_t u = i / Width, index = indices[Index::at(u)];
        y[Y::at(i)] =
            index >= 0 && index < Rows ? table[index * Step + Rest::at(i - u * Width)] : missing;
    }
}

/// A warp a row of the table: it finds the row's positions in ascending order, 32 at a look, and
/// sums their dy in chain(Chunk), 8 elements a lane at a time.
template <class A, int64_t Count, int64_t Width, int64_t Rows, int64_t Chunk, class Index, class Dy,
          class Y, class E, class I>
__device__ __forceinline__ void take_bwd(const Grid& grid, E* y, const E* dy, const I* indices) {
    constexpr int per = 8;
    constexpr int64_t tiles = (Width + 32 * per - 1) / (32 * per);
    const int lane = threadIdx.x & 31;
    const int64_t warps = int64_t(grid.blocks) * (grid.threads / 32);
    for (int64_t u = int64_t(grid.block) * (grid.threads / 32) + threadIdx.x / 32; u < Rows * tiles;
         u += warps) {
        const int64_t row = u / tiles, w0 = (u - row * tiles) * 32 * per + lane;
        A part[per], total[per];
        for (int p = 0; p < per; p++) part[p] = total[p] = A(0);
        int64_t seen = 0;
        for (int64_t at = 0; at < Count; at += 32) {
            const bool hit = at + lane < Count && indices[Index::at(at + lane)] == row;
            for (uint32_t hits = __ballot_sync(0xffffffffu, hit); hits != 0; hits &= hits - 1) {
                const int64_t position = at + __ffs(hits) - 1;
                for (int p = 0; p < per; p++) {
                    const int64_t w = w0 + 32 * p;
                    if (w >= Width) break;
                    const A v = widen(dy[Dy::at(position * Width + w)]);
                    if (seen % Chunk == 0 && seen > 0)
                        total[p] = seen == Chunk ? part[p] : total[p] + part[p];
                    part[p] = seen % Chunk == 0 ? v : part[p] + v;
                }
                seen++;
            }
        }
        for (int p = 0; p < per; p++) {
            const int64_t w = w0 + 32 * p;
            if (w < Width)
                y[Y::at(row * Width + w)] = narrow<E>(seen > Chunk ? total[p] + part[p] : part[p]);
        }
    }
}

// ---- windows over the last two axes -------------------------------------------------------------

/// Which window holds image position `at` as its kernel position k; -1 when none does.
__device__ __forceinline__ int64_t window_of(int64_t at, int64_t k, int64_t stride,
                                             int64_t dilation, int64_t windows) {
    const int64_t off = at - k * dilation;
    return off >= 0 && off % stride == 0 && off / stride < windows ? off / stride : -1;
}

/// Position in the kernel of a window's first largest element; the first NaN if there is one.
template <class A, class G, class E>
__device__ __forceinline__ int64_t largest_in(const E* window, A* value) {
    int64_t best = 0;
    A most = widen(*window);
    for (int64_t i = 0; i < G::kernel0; i++)
        for (int64_t j = 0; j < G::kernel1; j++) {
            const A v = widen(window[i * G::dilation0 * G::x0 + j * G::dilation1 * G::x1]);
            if (v > most || (v != v && most == most)) {
                most = v;
                best = i * G::kernel1 + j;
            }
        }
    *value = most;
    return best;
}

template <class A, class G, class E>
__device__ __forceinline__ void max_pool(const Grid& grid, E* y, const E* x) {
    AICF_EACH(i, G::planes * G::out0 * G::out1) {
        const int64_t c = i % G::out1, h = i / G::out1 % G::out0, plane = i / (G::out0 * G::out1);
        A value;
        largest_in<A, G>(x + G::X::at(plane) + h * G::stride0 * G::x0 + c * G::stride1 * G::x1,
                         &value);
        y[G::Y::at(plane) + h * G::y0 + c * G::y1] = narrow<E>(value);
    }
}

/// Sums over all windows that show image element (h, c), in ascending position in the kernel.
template <class A, class G, class F>
__device__ __forceinline__ A over_windows(int64_t h, int64_t c, F term) {
    A sum = A(0);
    for (int64_t i = 0; i < G::kernel0; i++) {
        const int64_t oh = window_of(h, i, G::stride0, G::dilation0, G::windows0);
        if (oh < 0) continue;
        for (int64_t j = 0; j < G::kernel1; j++) {
            const int64_t ow = window_of(c, j, G::stride1, G::dilation1, G::windows1);
            if (ow >= 0) term(i, j, oh, ow, &sum);
        }
    }
    return sum;
}

template <class A, class G, class E>
__device__ __forceinline__ void fold(const Grid& grid, E* y, const E* w) {
    AICF_EACH(u, G::planes * G::out0 * G::out1) {
        const int64_t c = u % G::out1, h = u / G::out1 % G::out0, plane = u / (G::out0 * G::out1);
        const E* from = w + G::X::at(plane);
        const A sum =
            over_windows<A, G>(h, c, [&](int64_t i, int64_t j, int64_t oh, int64_t ow, A* to) {
                *to = *to + widen(from[i * G::x0 + j * G::x1 + oh * G::x2 + ow * G::x3]);
            });
        y[G::Y::at(plane) + h * G::y0 + c * G::y1] = narrow<E>(sum);
    }
}

template <class A, class G, class E>
__device__ __forceinline__ void max_pool_bwd(const Grid& grid, E* dx, const E* x, const E* dy) {
    AICF_EACH(u, G::planes * G::out0 * G::out1) {
        const int64_t c = u % G::out1, h = u / G::out1 % G::out0, plane = u / (G::out0 * G::out1);
        const E* image = x + G::X::at(plane);
        const E* grad = dy + G::D::at(plane);
        const A sum =
            over_windows<A, G>(h, c, [&](int64_t i, int64_t j, int64_t oh, int64_t ow, A* to) {
                A value;
                const int64_t best = largest_in<A, G>(
                    image + oh * G::stride0 * G::x0 + ow * G::stride1 * G::x1, &value);
                if (best == i * G::kernel1 + j) *to = *to + widen(grad[oh * G::d0 + ow * G::d1]);
            });
        dx[G::Y::at(plane) + h * G::y0 + c * G::y1] = narrow<E>(sum);
    }
}

// ---- along one axis -----------------------------------------------------------------------------

template <int64_t Results, int64_t N, int64_t Step, class X, class Y, class E>
__device__ __forceinline__ void argmax(const Grid& grid, int64_t* y, const E* x) {
    AICF_EACH(r, Results) {
        const E* from = x + X::at(r);
        int64_t best = 0;
        auto most = widen(*from);
        for (int64_t i = 1; i < N; i++) {
            const auto v = widen(from[i * Step]);
            if (v > most || (v != v && most == most)) {
                most = v;
                best = i;
            }
        }
        y[Y::at(r)] = best;
    }
}

template <class A, int64_t Results, int64_t N, int64_t From, int64_t To, bool Reverse, class X,
          class Y, class E>
__device__ __forceinline__ void cumsum(const Grid& grid, E* y, const E* x) {
    AICF_EACH(r, Results) {
        A sum = A(0);
        for (int64_t i = 0; i < N; i++) {
            const int64_t k = Reverse ? N - 1 - i : i;
            const A v = static_cast<A>(widen(x[X::at(r) + k * From]));
            sum = i == 0 ? v : static_cast<A>(sum + v);
            y[Y::at(r) + k * To] = narrow<E>(sum);
        }
    }
}

}  // namespace aicf
