// Ops that compute where to read: gathers over the result, so that no two threads write one place.
#pragma once

#include "prelude.cuh"

namespace aicf {

// ---- copies -------------------------------------------------------------------------------------

/// Count elements from where X says to where Y says, V side by side and Lots of those a thread,
/// whose loads are all on their way before the first is waited for. A chunk is what a block moves
/// so: this one's are `chunk` and those `grid.blocks` further on. Returns the first one past the
/// end.
template <int V, int Lots, int64_t Count, class X, class Y, class T>
__device__ __forceinline__ int64_t copy_part(const Grid& grid, int64_t chunk, T* y, const T* x) {
    if constexpr (V > 1)
        if (!aligned_for<V>(x) || !aligned_for<V>(y))
            return copy_part<1, Lots, Count, X, Y>(grid, chunk, y, x);
    constexpr int64_t total = Count / V;
    typedef Counter<total + (int64_t{1} << 20)> N;
    const int64_t each = int64_t(grid.threads) * Lots, chunks = N(total + each - 1) / N(each);
#pragma unroll 1  // or the turns were counted first, by a division
    for (; chunk < chunks; chunk += grid.blocks) {
        const int64_t first = chunk * each + grid.thread();
        Pack<T, V> kept[Lots];
#pragma unroll
        for (int k = 0; k < Lots; k++)
            if (const int64_t i = first + int64_t(k) * grid.threads; i < total)
                kept[k] = *reinterpret_cast<const Pack<T, V>*>(x + X::at(i * V));
#pragma unroll
        for (int k = 0; k < Lots; k++)
            if (const int64_t i = first + int64_t(k) * grid.threads; i < total)
                *reinterpret_cast<Pack<T, V>*>(y + Y::at(i * V)) = kept[k];
    }
    return chunk - chunks;
}

/// y[i] = x[from] where `find(i, &from)`, elsewhere `fill`; V elements side by side are found
/// alike.
template <int V, int Lots, int64_t Count, class Y, class T, class Find>
__device__ __forceinline__ void copy_where(const Grid& grid, T* y, const T* x, T fill, Find find) {
    if constexpr (V > 1)
        if (!aligned_for<V>(x) || !aligned_for<V>(y))
            return copy_where<1, Lots, Count, Y>(grid, y, x, fill, find);
    constexpr int64_t total = Count / V;
    const int64_t each = int64_t(grid.threads) * Lots;
#pragma unroll 1  // or the turns were counted first, by a division
    for (int64_t first = grid.block * each + grid.thread(); first < total;
         first += grid.blocks * each) {
        Pack<T, V> kept[Lots];
#pragma unroll
        for (int k = 0; k < Lots; k++) {
#pragma unroll
            for (int j = 0; j < V; j++) kept[k].at[j] = fill;
            const int64_t i = first + int64_t(k) * grid.threads;
            int64_t from = 0;
            if (i < total && find(static_cast<Counter<Count>>(i * V), from))
                kept[k] = *reinterpret_cast<const Pack<T, V>*>(x + from);
        }
#pragma unroll
        for (int k = 0; k < Lots; k++)
            if (const int64_t i = first + int64_t(k) * grid.threads; i < total)
                *reinterpret_cast<Pack<T, V>*>(y + Y::at(i * V)) = kept[k];
    }
}

// ---- rows of a table ----------------------------------------------------------------------------

/// y[u, w] = table[indices[u], w], `missing` where the index is out of range: V elements at a time,
/// Lots of those a thread.
template <int V, int Lots, int64_t Count, int64_t Width, int64_t Rows, int64_t Step, class Index,
          class Rest, class Y, class T, class I>
__device__ __forceinline__ void take(const Grid& grid, T* y, const T* table, const I* indices,
                                     T missing) {
    if constexpr (V > 1)
        if (!aligned_for<V>(table) || !aligned_for<V>(y))
            return take<1, Lots, Count, Width, Rows, Step, Index, Rest, Y>(grid, y, table, indices,
                                                                           missing);
    typedef Counter<Count * Width> N;
    constexpr int64_t across = Width / V, total = Count * across;
    const int64_t each = int64_t(grid.threads) * Lots;
#pragma unroll 1  // or the turns were counted first, by a division
    for (int64_t first = grid.block * each + grid.thread(); first < total;
         first += grid.blocks * each) {
        int64_t row[Lots];
        Pack<T, V> kept[Lots];
#pragma unroll
        for (int k = 0; k < Lots; k++) {
            const int64_t i = first + int64_t(k) * grid.threads;
            row[k] = i < total ? int64_t(indices[Index::at(N(i) / N(across))]) : -1;
        }
#pragma unroll
        for (int k = 0; k < Lots; k++) {
#pragma unroll
            for (int j = 0; j < V; j++) kept[k].at[j] = missing;
            const N w = N(first + int64_t(k) * grid.threads) % N(across) * V;
            if (row[k] >= 0 && row[k] < Rows)
                kept[k] = *reinterpret_cast<const Pack<T, V>*>(table + row[k] * Step + Rest::at(w));
        }
#pragma unroll
        for (int k = 0; k < Lots; k++)
            if (const int64_t i = first + int64_t(k) * grid.threads; i < total)
                *reinterpret_cast<Pack<T, V>*>(y + Y::at(i * V)) = kept[k];
    }
}

/// Of few positions. A warp a row of the table: it finds the row's positions in ascending order, 32
/// at a look, and sums their dy in chain(Chunk), 8 elements a lane at a time.
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
template <class P>
__device__ __forceinline__ P window_of(P at, P k, P stride, P dilation, P windows) {
    const P off = at - k * dilation;
    return off >= 0 && off % stride == 0 && off / stride < windows ? off / stride : P(-1);
}

/// Element u of planes of images: its plane, row and column.
template <class G>
struct PixelOf {
    static constexpr int64_t count = G::planes * G::out0 * G::out1;
    typedef Counter<count> N;
    int64_t plane, h, c;
    __device__ __forceinline__ explicit PixelOf(int64_t u) {
        const N row = N(u) / N(G::out1), image = row / N(G::out0);
        c = N(u) - row * N(G::out1);
        h = row - image * N(G::out0);
        plane = image;
    }
};

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
#pragma unroll 1
    for (int64_t i = grid.begin(); i < PixelOf<G>::count; i += grid.step()) {
        const auto [plane, h, c] = PixelOf<G>(i);
        A value;
        largest_in<A, G>(x + G::X::at(plane) + h * G::stride0 * G::x0 + c * G::stride1 * G::x1,
                         &value);
        y[G::Y::at(plane) + h * G::y0 + c * G::y1] = narrow<E>(value);
    }
}

template <bool Short>
struct WholeOf {
    typedef int32_t type;
};
template <>
struct WholeOf<false> {
    typedef int64_t type;
};

/// Sums over all windows that show image element (h, c), in ascending position in the kernel.
template <class A, class G, class F>
__device__ __forceinline__ A over_windows(int64_t h, int64_t c, F term) {
    constexpr int64_t most = int64_t{1} << 30;
    constexpr bool small = G::out0 < most && G::out1 < most && G::stride0 < most &&
                           G::stride1 < most && G::dilation0 < most && G::dilation1 < most;
    typedef typename WholeOf<small>::type P;
    A sum = A(0);
    for (int64_t i = 0; i < G::kernel0; i++) {
        const int64_t oh = window_of<P>(P(h), P(i), P(G::stride0), P(G::dilation0), P(G::windows0));
        if (oh < 0) continue;
        for (int64_t j = 0; j < G::kernel1; j++) {
            const int64_t ow =
                window_of<P>(P(c), P(j), P(G::stride1), P(G::dilation1), P(G::windows1));
            if (ow >= 0) term(i, j, oh, ow, &sum);
        }
    }
    return sum;
}

template <class A, class G, class E>
__device__ __forceinline__ void fold(const Grid& grid, E* y, const E* w) {
    for (int64_t u = grid.begin(); u < PixelOf<G>::count; u += grid.step()) {
        const auto [plane, h, c] = PixelOf<G>(u);
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
    for (int64_t u = grid.begin(); u < PixelOf<G>::count; u += grid.step()) {
        const auto [plane, h, c] = PixelOf<G>(u);
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

/// The same of windows side by side, which show every element once: a thread takes a window, V
/// elements of a row of it at a time.
template <class A, class G, int V, class E>
__device__ __forceinline__ void max_pool_bwd_apart(const Grid& grid, E* dx, const E* x,
                                                   const E* dy) {
    if constexpr (V > 1)
        if (!aligned_for<V>(x) || !aligned_for<V>(dx))
            return max_pool_bwd_apart<A, G, 1>(grid, dx, x, dy);
    constexpr int rows = int(G::kernel0), lots = int(G::kernel1) / V;
    constexpr int64_t count = G::planes * G::windows0 * G::windows1;
    typedef Counter<count> N;
    for (int64_t u = grid.begin(); u < count; u += grid.step()) {
        const N row = N(u) / N(G::windows1), plane = row / N(G::windows0);
        const int64_t ow = N(u) - row * N(G::windows1), oh = row - plane * N(G::windows0);
        const E* const from = x + G::X::at(plane) + oh * rows * G::x0 + ow * G::kernel1 * G::x1;
        E* const to = dx + G::Y::at(plane) + oh * rows * G::y0 + ow * G::kernel1 * G::y1;
        const E arriving = dy[G::D::at(plane) + oh * G::d0 + ow * G::d1];
        Pack<E, V> lot[rows][lots];
#pragma unroll
        for (int i = 0; i < rows; i++)
#pragma unroll
            for (int k = 0; k < lots; k++)
                lot[i][k] = *reinterpret_cast<const Pack<E, V>*>(from + i * G::x0 + k * V * G::x1);
        int best = 0;
        A most = widen(lot[0][0].at[0]);
#pragma unroll
        for (int p = 1; p < rows * lots * V; p++) {
            const A v = widen(lot[p / (lots * V)][p / V % lots].at[p % V]);
            const bool larger = v > most || (v != v && most == most);
            most = larger ? v : most;
            best = larger ? p : best;
        }
        const E sum = narrow<E>(A(0) + widen(arriving)), none = narrow<E>(A(0));
#pragma unroll
        for (int i = 0; i < rows; i++)
#pragma unroll
            for (int k = 0; k < lots; k++) {
                Pack<E, V> out;
#pragma unroll
                for (int j = 0; j < V; j++) out.at[j] = best == (i * lots + k) * V + j ? sum : none;
                *reinterpret_cast<Pack<E, V>*>(to + i * G::y0 + k * V * G::y1) = out;
            }
    }
}

// ---- along one axis -----------------------------------------------------------------------------

/// The largest element of some, and where it is; NaN is larger than all, and of equal ones the
/// first counts, so that any order finds the same.
template <class A>
struct Largest {
    A value;
    int64_t at;  // -1: of none
    __device__ __forceinline__ void join(const Largest& other) {
        const bool has_nan = value != value, is_nan = other.value != other.value;
        const bool larger = is_nan ? !has_nan : !has_nan && other.value > value;
        const bool alike = is_nan ? has_nan : other.value == value;
        if (other.at >= 0 && (at < 0 || larger || (alike && other.at < at))) *this = other;
    }
    /// The same of all lanes of a warp, in each.
    __device__ __forceinline__ void join_lanes() {
        for (int d = 16; d > 0; d /= 2)
            join({__shfl_xor_sync(0xffffffffu, value, d), __shfl_xor_sync(0xffffffffu, at, d)});
    }
};

/// y[r] = where the largest of N elements `Step` apart lies, by `Lanes` threads each, who take
/// elements in turn; of several pieces of a result the last one joins them.
template <int Lanes, int Pieces, int64_t Results, int64_t N, int64_t Step, class X, class Y,
          class E>
__device__ __forceinline__ void argmax(const Grid& grid, int64_t* y, const E* x, char* parts,
                                       uint32_t* counters) {
    typedef decltype(+widen(E{})) A;
    typedef Counter<N> At;
    constexpr int lots = 8;
    constexpr int64_t span = (N + Pieces - 1) / Pieces;
    const int lane = threadIdx.x % Lanes;
    const int64_t width = grid.threads / Lanes, strips = (Results + width - 1) / width;
    auto* const part = reinterpret_cast<Largest<A>*>(parts);
    for (int64_t u = grid.block; u < strips * Pieces; u += grid.blocks) {
        const int64_t strip = u / Pieces, piece = u - strip * Pieces;
        const int64_t r = strip * width + grid.thread() / Lanes;
        const E* const from = x + X::at(r < Results ? r : 0);
        const At begin = At(piece * span), end = At(begin + span < N ? begin + span : N);
        A most{};
        At best = end;
        for (At i = begin + lane; i < end; i += lots * Lanes) {
            A lot[lots];
#pragma unroll
            for (int k = 0; k < lots; k++) {
                const At at = i + k * Lanes;
                lot[k] = widen(from[int64_t(at < end ? at : i) * Step]);
            }
#pragma unroll
            for (int k = 0; k < lots; k++) {  // the first again where there are no more
                const A v = lot[k];
                const bool larger = best == end || v > most || (v != v && most == most);
                most = larger ? v : most;
                best = larger ? i + k * Lanes : best;
            }
        }
        Largest<A> found{most, best < end ? int64_t(best) : -1};
        if constexpr (Lanes == 32) found.join_lanes();
        if constexpr (Pieces == 1) {
            if (lane == 0 && r < Results) y[Y::at(r)] = found.at;
        } else {
            if (lane == 0 && r < Results) part[r * Pieces + piece] = found;
            if (!arrive_last(counters + strip, Pieces)) continue;
            found.at = -1;
            for (int p = lane; p < Pieces && r < Results; p += Lanes) {
                const Largest<A>* const one = part + r * Pieces + p;
                found.join({__ldcg(&one->value), __ldcg(&one->at)});
            }
            if constexpr (Lanes == 32) found.join_lanes();
            if (lane == 0 && r < Results) y[Y::at(r)] = found.at;
        }
    }
}

/// Running sums along lines of N, cut into chunks of Chunk (N where they are not cut): of X, the
/// operand, by the place of a line and the step along it, and of what they begin with. Lines of all
/// results come first, then their next chunks, so that neighbours in memory are a warp's.
enum ScanKind { kWhole, kTotals, kChunks };

/// The running sum of a line's chunk before this one.
template <ScanKind Kind, int64_t Step, class B, class A, class W>
__device__ __forceinline__ A scan_begin(const W* before, int64_t line, int64_t chunk) {
    if constexpr (Kind == kChunks)
        if (chunk > 0) return static_cast<A>(before[B::at(line) + (chunk - 1) * Step]);
    return A(0);
}

template <class A, ScanKind Kind, int64_t Results, int64_t N, int64_t Chunk, int64_t From,
          int64_t To, int64_t Step, bool Reverse, class X, class Y, class B, class O, class E,
          class W>
__device__ __forceinline__ void cumsum(const Grid& grid, O* y, const E* x, const W* before) {
    constexpr int64_t chunks = (N + Chunk - 1) / Chunk;
    for (int64_t u = grid.begin(); u < Results * chunks; u += grid.step()) {
        const int64_t r = u % Results, chunk = u / Results, at = chunk * Chunk;
        const int64_t end = at + Chunk < N ? at + Chunk : N;
        const A begin = scan_begin<Kind, Step, B, A>(before, r, chunk);
        A sum = A(0);
        for (int64_t i = at; i < end; i++) {
            const int64_t k = Reverse ? N - 1 - i : i;
            const A v = static_cast<A>(widen(x[X::at(r) + k * From]));
            sum = i == at ? v : static_cast<A>(sum + v);
            if (Kind != kTotals)
                y[Y::at(r) + k * To] =
                    narrow<O>(Kind == kChunks && chunk > 0 ? static_cast<A>(begin + sum) : sum);
        }
        if (Kind == kTotals) y[Y::at(r) + chunk * To] = narrow<O>(sum);
    }
}

/// Element k of 32 that this lane has in lines first to first + Own - 1 from position `at` of
/// theirs on: found(k, line, element, place). Lines are chunks, side by side in memory.
template <int Own, int64_t Results, int64_t N, int64_t Chunk, bool Reverse, class F>
__device__ __forceinline__ void each_in_lines(int64_t first, int64_t at, F found) {
    constexpr int length = 1024 / Own;
    constexpr int64_t chunks = (N + Chunk - 1) / Chunk;
#pragma unroll
    for (int k = 0; k < 32; k++) {
        const int e = 32 * k + int(threadIdx.x % 32), row = e / length, column = e % length;
        const int64_t line = (first + row) / chunks,
                      p = (first + row) % chunks * Chunk + at + column;
        if (line < Results && at + column < Chunk && p < N)
            found(k, line, Reverse ? N - 1 - p : p, row * (length + 1) + column);
    }
}

/// The same where elements of a line are neighbours: a warp takes Own chunks, 1024 elements of
/// theirs at a time by way of shared memory, which a lane a chunk adds up; the next ones are on
/// their way.
template <class A, ScanKind Kind, int Own, int64_t Results, int64_t N, int64_t Chunk, int64_t To,
          int64_t Step, bool Reverse, class X, class Y, class B, class O, class E, class W>
__device__ __forceinline__ void cumsum_lines(const Grid& grid, O* y, const E* x, const W* before) {
    constexpr int length = 1024 / Own, pitch = length + 1;
    constexpr int64_t chunks = (N + Chunk - 1) / Chunk, lines = Results * chunks;
    extern __shared__ __align__(16) char line_room[];
    const int lane = threadIdx.x % 32, warp = grid.thread() / 32;
    A* const room = reinterpret_cast<A*>(line_room) + warp * Own * pitch;
    const int64_t warps = int64_t(grid.blocks) * (grid.threads / 32);
    for (int64_t u = int64_t(grid.block) * (grid.threads / 32) + warp; u * Own < lines;
         u += warps) {
        A coming[32], sum = A(0);
        const auto read = [&](int k, int64_t line, int64_t p, int) {
            coming[k] = static_cast<A>(widen(x[X::at(line) + p]));
        };
        const auto keep = [&](int k, int64_t, int64_t, int place) { room[place] = coming[k]; };
        const auto write = [&](int, int64_t line, int64_t p, int place) {
            y[Y::at(line) + p] = narrow<O>(room[place]);
        };
        const int64_t mine = u * Own + lane, line = mine / chunks, chunk = mine % chunks;
        const bool adds = lane < Own && mine < lines;
        const int64_t terms = N - chunk * Chunk < Chunk ? N - chunk * Chunk : Chunk;
        A begin = A(0);
        if (adds) begin = scan_begin<Kind, Step, B, A>(before, line, chunk);
        each_in_lines<Own, Results, N, Chunk, Reverse>(u * Own, 0, read);
        for (int64_t at = 0; at < Chunk; at += length) {
            each_in_lines<Own, Results, N, Chunk, Reverse>(u * Own, at, keep);
            __syncwarp();
            if (at + length < Chunk)
                each_in_lines<Own, Results, N, Chunk, Reverse>(u * Own, at + length, read);
            if (adds && at < terms) {
                A* const own = room + lane * pitch;
                const int count = terms - at < length ? int(terms - at) : length;
                if (at == 0) sum = own[0];
                if (at == 0 && Kind == kChunks && chunk > 0) own[0] = static_cast<A>(begin + sum);
#pragma unroll 8
                for (int i = at == 0; i < count; i++) {
                    sum = static_cast<A>(sum + own[i]);
                    if (Kind != kTotals)
                        own[i] = Kind == kChunks && chunk > 0 ? static_cast<A>(begin + sum) : sum;
                }
            }
            __syncwarp();
            if constexpr (Kind != kTotals) {
                each_in_lines<Own, Results, N, Chunk, Reverse>(u * Own, at, write);
                __syncwarp();
            }
        }
        if (Kind == kTotals && adds) y[Y::at(line) + chunk * To] = narrow<O>(sum);
    }
}

}  // namespace aicf
