// Ops along one axis that go by position: a thread an element of the result, but for sorting, where
// a block sorts a run of a line.
#pragma once

#include "core/abi/paths.h"
#include "core/abi/sort.h"
#include "prelude.cuh"

namespace aicf {

/// Line l of an operand begins at `At::at(l)`, its elements are `Step` apart.
template <class At, int64_t Step>
struct LineOf {
    __device__ __forceinline__ static int64_t at(int64_t line, int64_t i) {
        return At::at(line) + i * Step;
    }
};

// Result i is at place j of line l: lines are numbered in row-major order of the other axes, of
// which those behind the axis have `Inner` places.
template <int64_t Inner, int64_t Size, int64_t Count>
struct PlaceOf {
    typedef Counter<Count> N;
    int64_t line, j;
    __device__ __forceinline__ explicit PlaceOf(int64_t of) {
        const N i = static_cast<N>(of), outer = i / N(Inner * Size),
                rest = i - outer * N(Inner * Size), at = rest / N(Inner);
        j = at;
        line = outer * N(Inner) + (rest - at * N(Inner));
    }
};

// ---- by index -----------------------------------------------------------------------------------

/// Lots elements a thread, whose loads are on their way together.
template <class Place, int64_t Count, int64_t N, int Lots, class X, class I, class Y, class T,
          class Index>
__device__ __forceinline__ void gather(const Grid& grid, T* y, const T* x, const Index* indices,
                                       T missing) {
    const int64_t each = int64_t(grid.threads) * Lots;
#pragma unroll 1  // or the turns were counted first, by a division
    for (int64_t first = grid.block * each + grid.thread(); first < Count;
         first += grid.blocks * each) {
        int64_t index[Lots];
        T kept[Lots];
#pragma unroll
        for (int k = 0; k < Lots; k++) {
            const int64_t i = first + int64_t(k) * grid.threads;
            const Place p(i);
            index[k] = i < Count ? int64_t(indices[I::at(p.line, p.j)]) : -1;
        }
#pragma unroll
        for (int k = 0; k < Lots; k++) {
            const Place p(first + int64_t(k) * grid.threads);
            kept[k] = missing;
            if (index[k] >= 0 && index[k] < N) kept[k] = x[X::at(p.line, index[k])];
        }
#pragma unroll
        for (int k = 0; k < Lots; k++) {
            const int64_t i = first + int64_t(k) * grid.threads;
            const Place p(i);
            if (i < Count) y[Y::at(p.line, p.j)] = kept[k];
        }
    }
}

template <class A, class Place, int64_t Count, int64_t N, int64_t Chunk, class X, class I, class Y,
          class E, class Index>
__device__ __forceinline__ void scatter_add(const Grid& grid, E* y, const E* x,
                                            const Index* indices) {
    for (int64_t i = grid.begin(); i < Count; i += grid.step()) {
        const Place p(i);
        A sum = A(0), before = A(0);
        int64_t seen = 0;
        for (int64_t k = 0; k < N; k++) {
            if (indices[I::at(p.line, k)] != p.j) continue;
            if (seen % Chunk == 0 && seen > 0) before = static_cast<A>(before + sum), sum = A(0);
            sum = static_cast<A>(sum + static_cast<A>(widen(x[X::at(p.line, k)])));
            seen++;
        }
        y[Y::at(p.line, p.j)] = narrow<E>(static_cast<A>(before + sum));
    }
}

template <class Place, int64_t Count, int64_t N, class I, class Y, class Index>
__device__ __forceinline__ void scatter_last(const Grid& grid, int64_t* y, const Index* indices) {
    for (int64_t i = grid.begin(); i < Count; i += grid.step()) {
        const Place p(i);
        int64_t k = N - 1;
        while (k >= 0 && indices[I::at(p.line, k)] != p.j) k--;
        y[Y::at(p.line, p.j)] = k;
    }
}

// ---- by order -----------------------------------------------------------------------------------

/// How many of N elements of a sorted line stand before a key, or with `Right` before or at it.
template <bool Right, class Key>
__device__ __forceinline__ int64_t count_before(uint64_t key, int64_t n, Key key_of) {
    int64_t low = 0, high = n;
    while (low < high) {
        const int64_t mid = (low + high) / 2;
        const uint64_t other = key_of(mid);
        const bool before = other < key || (Right && other == key);
        low = before ? mid + 1 : low;
        high = before ? high : mid;
    }
    return low;
}

template <class Place, int64_t Count, int64_t N, bool Right, class S, class X, class Y, class E>
__device__ __forceinline__ void searchsorted(const Grid& grid, int64_t* y, const E* sorted,
                                             const E* x) {
    for (int64_t i = grid.begin(); i < Count; i += grid.step()) {
        const Place p(i);
        y[Y::at(p.line, p.j)] = count_before<Right>(
            sort_key(widen(x[X::at(p.line, p.j)]), false), N,
            [&](int64_t k) { return sort_key(widen(sorted[S::at(p.line, k)]), false); });
    }
}

/// A block a run of kSortRun, by a bitonic network of Width >= its elements; what is missing comes
/// last. Keys and positions together are unique, so that it is stable.
template <int64_t Lines, int64_t N, int Width, bool Descending, class X, class Y, class E>
__device__ __forceinline__ void argsort(const Grid& grid, int64_t* y, const E* x) {
    extern __shared__ __align__(16) char sort_room[];
    auto* key = reinterpret_cast<uint64_t*>(sort_room);
    auto* at = reinterpret_cast<uint32_t*>(sort_room + 8 * Width);
    constexpr int64_t runs = (N + kSortRun - 1) / kSortRun;
    for (int64_t u = grid.block; u < Lines * runs; u += grid.blocks) {
        const int64_t line = u / runs, first = (u - line * runs) * kSortRun;
        const int64_t left = N - first, n = left < kSortRun ? left : kSortRun;
        __syncthreads();
        for (int i = threadIdx.x; i < Width; i += grid.threads) {
            key[i] = i < n ? sort_key(widen(x[X::at(line, first + i)]), Descending) : ~uint64_t(0);
            at[i] = i < n ? i : 0xffffffffu;
        }
        for (int size = 2; size <= Width; size *= 2)
            for (int step = size / 2; step > 0; step /= 2) {
                __syncthreads();
                for (int t = threadIdx.x; t < Width / 2; t += grid.threads) {
                    const int i = 2 * t - (t & (step - 1)), j = i + step;
                    const bool up = (i & size) == 0;
                    const bool greater = key[i] > key[j] || (key[i] == key[j] && at[i] > at[j]);
                    if (greater == up) {
                        const uint64_t k = key[i];
                        const uint32_t a = at[i];
                        key[i] = key[j], at[i] = at[j];
                        key[j] = k, at[j] = a;
                    }
                }
            }
        __syncthreads();
        for (int i = threadIdx.x; i < n; i += grid.threads)
            y[Y::at(line, first + i)] = first + at[i];
    }
}

/// An element of a run goes to its place in the run, plus how many of the other run are before it.
template <class Place, int64_t Count, int64_t N, int64_t Run, bool Descending, class X, class P,
          class Y, class E>
__device__ __forceinline__ void argsort_merge(const Grid& grid, int64_t* y, const E* x,
                                              const int64_t* positions) {
    for (int64_t i = grid.begin(); i < Count; i += grid.step()) {
        const Place p(i);
        const int64_t pair = p.j / (2 * Run) * (2 * Run), middle = pair + Run;
        const bool in_left = p.j < middle;
        const int64_t other = in_left ? middle : pair, end = other + Run;
        const int64_t n = other >= N ? 0 : (end < N ? Run : N - other);
        const auto key_of = [&](int64_t k) {  // positions may be anyone's
            const int64_t at = positions[P::at(p.line, k)], inside = at >= 0 && at < N ? at : 0;
            return sort_key(widen(x[X::at(p.line, inside)]), Descending);
        };
        const uint64_t key = key_of(p.j);
        const auto of_other = [&](int64_t k) { return key_of(other + k); };
        const int64_t before =
            in_left ? count_before<false>(key, n, of_other) : count_before<true>(key, n, of_other);
        const int64_t own = p.j - (in_left ? pair : middle);
        y[Y::at(p.line, pair + own + before)] = positions[P::at(p.line, p.j)];
    }
}

// ---- running ------------------------------------------------------------------------------------

template <class A, int64_t Lines, int64_t N, class X, class Y, class E>
__device__ __forceinline__ void cumprod(const Grid& grid, E* y, const E* x) {
    for (int64_t line = grid.begin(); line < Lines; line += grid.step()) {
        A product = A(1);
        for (int64_t i = 0; i < N; i++) {
            product = static_cast<A>(product * static_cast<A>(widen(x[X::at(line, i)])));
            y[Y::at(line, i)] = narrow<E>(product);
        }
    }
}

template <class A, int64_t Lines, int64_t N, bool Reverse, bool Lagged, class X, class B, class Y,
          class E>
__device__ __forceinline__ void recurrence(const Grid& grid, E* y, const E* a, const E* b) {
    for (int64_t line = grid.begin(); line < Lines; line += grid.step()) {
        A h = A(0);
        for (int64_t k = 0; k < N; k++) {
            const int64_t i = Reverse ? N - 1 - k : k, before = Reverse ? i + 1 : i - 1;
            A term = static_cast<A>(widen(b[B::at(line, i)]));
            if (k > 0) {
                const A product =
                    static_cast<A>(static_cast<A>(widen(a[X::at(line, Lagged ? before : i)])) * h);
                term = static_cast<A>(product + term);
            }
            h = term;
            y[Y::at(line, i)] = narrow<E>(h);
        }
    }
}

template <int64_t Lines, int64_t N, bool Smallest, class X, class Y, class E>
__device__ __forceinline__ void cumarg(const Grid& grid, int64_t* y, const E* x) {
    for (int64_t line = grid.begin(); line < Lines; line += grid.step()) {
        int64_t best = 0;
        for (int64_t i = 0; i < N; i++) {
            const auto v = widen(x[X::at(line, i)]), most = widen(x[X::at(line, best)]);
            const bool reaches = Smallest ? v <= most : v >= most;
            best = v != v || (reaches && most == most) ? i : best;
            y[Y::at(line, i)] = best;
        }
    }
}

// ---- paths: a block the states of one batch member ----------------------------------------------

/// How an operand on [times, members, states], or [members, states], is stepped through.
template <int64_t Time, int64_t Member, int64_t State>
struct StatesOf {
    template <class F>
    __device__ __forceinline__ static States<F> at(F* x, int64_t t, int64_t n) {
        return {x + t * Time + n * Member, State};
    }
};

template <int64_t Times, int64_t Batch, int64_t Size, class E, class Skip, class Alpha, class F>
__device__ __forceinline__ void ctc_paths(const Grid& grid, F* alpha, const F* e,
                                          const bool* skip) {
    for (int64_t n = grid.block; n < Batch; n += grid.blocks)
        for (int64_t t = 0; t < Times; t++) {
            const auto to = Alpha::at(alpha, t, n);
            const States<const F> said = E::at(e, t, n);
            States<const F> before = {nullptr, 0};
            if (t > 0) before = Alpha::at(static_cast<const F*>(alpha), t - 1, n);
            const auto skips = Skip::at(skip, 0, n);
            for (int64_t s = threadIdx.x; s < Size; s += grid.threads)
                to[s] = ctc_path<F>(before, said[s], skips[s], s);
            __syncthreads();
        }
}

template <int64_t Times, int64_t Batch, int64_t Size, class Dy, class E, class Skip, class Alpha,
          class De, class F>
__device__ __forceinline__ void ctc_paths_bwd(const Grid& grid, F* de, const F* dy, const F* e,
                                              const bool* skip, const F* alpha) {
    for (int64_t n = grid.block; n < Batch; n += grid.blocks)
        for (int64_t t = Times - 1; t >= 0; t--) {
            const auto to = De::at(de, t, n);
            const States<const F> given = Dy::at(dy, t, n), paths = Alpha::at(alpha, t, n);
            States<const F> slopes = {nullptr, 0}, said = {nullptr, 0}, next = {nullptr, 0};
            if (t + 1 < Times) {
                slopes = De::at(static_cast<const F*>(de), t + 1, n);
                said = E::at(e, t + 1, n);
                next = Alpha::at(alpha, t + 1, n);
            }
            const auto skips = Skip::at(skip, 0, n);
            for (int64_t s = threadIdx.x; s < Size; s += grid.threads)
                to[s] = ctc_slope<F>(given[s], paths[s], slopes, said, next, skips, s, Size);
            __syncthreads();
        }
}

}  // namespace aicf
