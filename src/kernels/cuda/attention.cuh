// Attention on tensor cores by mma.sync, devices of 8.0 and newer, in the order mma16(c) as abi.h
// has it for attention. A warp takes 16 rows, a block some warps' rows and what they need of the
// other operands, which pass through shared memory.
#pragma once

#include "mma.cuh"

namespace aicf {

/// Lines of Width elements in shared memory, an odd number of 16 bytes apart: eight lanes that read
/// a cell of 16 bytes of as many lines meet no bank twice.
template <int Width>
struct HeadLines {
    static constexpr int pitch = 2 * Width + 16;  // bytes
    static_assert(Width % 16 == 0);
    __device__ __forceinline__ static constexpr int bytes(int lines) { return lines * pitch; }

    /// Brings `lines` of Lines lines of Size elements, what is missing as zeros.
    template <int Lines, int Threads, int Size, class At, class E>
    __device__ __forceinline__ static void fetch(uint32_t to, const E* from, int lines) {
        constexpr int cells = Width / 8, all = Lines * cells;
        constexpr bool may_be_wide = At::col == 1 && At::row % 8 == 0 && Size % 8 == 0;
        if constexpr (may_be_wide) {
            if (aligned16(from)) {
#pragma unroll
                for (int x = 0; x < (all + Threads - 1) / Threads; x++) {
                    const int cell = threadIdx.x + x * Threads;
                    if (all % Threads != 0 && cell >= all) break;
                    const int r = cell / cells, c = cell % cells;
                    const bool there = r < lines && 8 * c < Size;
                    copy_async_filled(to + r * pitch + 16 * c,
                                      there ? from + r * int64_t(At::row) + 8 * c : from,
                                      there ? 16 : 0);
                }
                return;
            }
        }
#pragma unroll 1
        for (int cell = threadIdx.x; cell < all; cell += Threads) {
            const int r = cell / cells, c = cell % cells;
            uint32_t word[4] = {};
#pragma unroll
            for (int e = 0; e < 8; e++)
                if (r < lines && 8 * c + e < Size)
                    word[e / 2] |= uint32_t(from[r * int64_t(At::row) + (8 * c + e) * At::col].bits)
                                   << (e % 2 * 16);
            asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to + r * pitch + 16 * c),
                         "r"(word[0]), "r"(word[1]), "r"(word[2]), "r"(word[3])
                         : "memory");
        }
    }
    /// 16 lines by 16 columns as the first operand of a product along the columns.
    __device__ __forceinline__ static void first(uint32_t (&word)[4], uint32_t from, int line,
                                                 int column) {
        const int lane = threadIdx.x % 32;
        load_matrices<false>(word,
                             from + (line + lane % 16) * pitch + (column + lane / 16 * 8) * 2);
    }
    /// The same as two second operands, of 8 lines each.
    __device__ __forceinline__ static void second(uint32_t (&word)[4], uint32_t from, int line,
                                                  int column) {
        const int lane = threadIdx.x % 32;
        load_matrices<false>(word, from + (line + lane / 16 * 8 + lane % 8) * pitch +
                                       (column + lane / 8 % 2 * 8) * 2);
    }
    /// The same of a product along the lines, of 8 columns each.
    __device__ __forceinline__ static void second_across(uint32_t (&word)[4], uint32_t from,
                                                         int line, int column) {
        const int lane = threadIdx.x % 32;
        load_matrices<true>(word, from + (line + lane % 16) * pitch + (column + lane / 16 * 8) * 2);
    }
};

/// 16 lines of an operand that a warp multiplies again and again: in registers, where there is
/// room.
template <int Width, bool Held>
struct WarpLines {
    uint32_t word[Held ? Width / 16 : 1][4];
    uint32_t from;
    int line;
    __device__ __forceinline__ void set(uint32_t at, int first) {
        from = at;
        line = first;
        if constexpr (Held) {
#pragma unroll
            for (int k = 0; k < Width / 16; k++)
                HeadLines<Width>::first(word[k], at, first, 16 * k);
        }
    }
    __device__ __forceinline__ void get(uint32_t (&to)[4], int k) const {
        if constexpr (Held) {
#pragma unroll
            for (int w = 0; w < 4; w++) to[w] = word[k][w];
        } else {
            HeadLines<Width>::first(to, from, line, 16 * k);
        }
    }
};

__device__ __forceinline__ float largest(float a, float b) {
    float c;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
    return c;
}

/// The weight of a score, from the numbers of its row or column.
template <class E>
__device__ __forceinline__ float weight_of(float score, float by, float start) {
    return scalar::weight_16<same_type<E, Half>>(score, by, start);
}

/// sums[16][8 Count] = lines by lines of `from`, from +0.
template <class E, int Width, int Count, bool Held>
__device__ __forceinline__ void scores_of(float (&sums)[Count][4],
                                          const WarpLines<Width, Held>& lines, uint32_t from) {
    static_assert(Count % 2 == 0);
#pragma unroll
    for (int x = 0; x < Count; x++)
#pragma unroll
        for (int y = 0; y < 4; y++) sums[x][y] = 0;
#pragma unroll
    for (int k = 0; k < Width / 16; k++) {
        uint32_t a[4];
        lines.get(a, k);
#pragma unroll
        for (int x = 0; x < Count / 2; x++) {
            uint32_t b[4];
            HeadLines<Width>::second(b, from, 16 * x, 16 * k);
            mma<E>(sums[2 * x], a, b[0], b[1]);
            mma<E>(sums[2 * x + 1], a, b[2], b[3]);
        }
    }
}

/// sums[16][Width] += weights[16][16 Steps] times lines of `from`, the weights rounded to E.
template <class E, int Width, int Steps>
__device__ __forceinline__ void add_weighted(float (&sums)[Width / 8][4],
                                             const uint32_t (&weights)[Steps][4], uint32_t from) {
#pragma unroll
    for (int k = 0; k < Steps; k++)
#pragma unroll
        for (int x = 0; x < Width / 16; x++) {
            uint32_t b[4];
            HeadLines<Width>::second_across(b, from, 16 * k, 16 * x);
            mma<E>(sums[2 * x], weights[k], b[0], b[1]);
            mma<E>(sums[2 * x + 1], weights[k], b[2], b[3]);
        }
}

/// Sums of 16 rows by 8 columns each as the first operand of a product along the columns.
template <class E, int Count>
__device__ __forceinline__ void as_operand(uint32_t (&word)[Count / 2][4],
                                           const float (&sums)[Count][4]) {
#pragma unroll
    for (int k = 0; k < Count / 2; k++)
#pragma unroll
        for (int w = 0; w < 4; w++)
            word[k][w] =
                narrow_two<E>(sums[2 * k + w / 2][w % 2 * 2], sums[2 * k + w / 2][w % 2 * 2 + 1]);
}

/// A warp's sums times a factor a row to memory; rows from `row` on, of which `rows` are there.
template <class At, int Size, class E, int Count>
__device__ __forceinline__ void store_head(const float (&sums)[Count][4], float upper, float lower,
                                           E* to, int64_t row, int64_t rows) {
    const int lane = threadIdx.x % 32;
    constexpr bool pairs = At::col == 1 && At::row % 2 == 0 && Size % 2 == 0;
    const bool wide = pairs && reinterpret_cast<uint64_t>(to) % 4 == 0;
#pragma unroll
    for (int high = 0; high < 2; high++) {
        const int64_t r = row + lane / 4 + 8 * high;
        if (r >= rows) continue;
#pragma unroll
        for (int x = 0; x < Count; x++) {
            const int c = 8 * x + lane % 4 * 2;
            if (c >= Size) continue;
            const float factor = high ? lower : upper;
            const float a = sums[x][2 * high] * factor, b = sums[x][2 * high + 1] * factor;
            E* const at = to + r * At::row + c * At::col;
            if (wide) {
                *reinterpret_cast<uint32_t*>(at) = narrow_two<E>(a, b);
            } else {
                *at = narrow<E>(a);
                if (c + 1 < Size) at[At::col] = narrow<E>(b);
            }
        }
    }
}

/// The keys that some query before `last` sees end here.
template <class Shape, class Index>
__device__ __forceinline__ Index end_of(Index last) {
    return !Shape::causal || last >= Shape::s ? Index(Shape::s) : last;
}

/// What of the score of a query and a key counts.
template <class Shape>
__device__ __forceinline__ bool is_seen(const bool* mask, int64_t query, int64_t key) {
    if (key >= Shape::s || (Shape::causal && key > query)) return false;
    if constexpr (Shape::masked)
        return query >= Shape::t || mask[query * Shape::Mask::row + key * Shape::Mask::col];
    return true;
}

/// o = weights times v, and of each row the power of two and the sum of what its weights are made.
template <int Warps, int Keys, class Shape, class E>
__device__ __forceinline__ void attention_mma(const Grid& grid, E* o, float* most, float* sum,
                                              const E* q, const E* k, const E* v, const bool* mask,
                                              float factor) {
    constexpr int rows = 16 * Warps, width = (Shape::d + 15) / 16 * 16, threads = 32 * Warps;
    constexpr int lots = Keys / 8, columns = width / 8;
    constexpr uint32_t one = same_type<E, Half> ? 0x3c003c00u : 0x3f803f80u;
    const float none = scalar::from_bits(0xff800000u), by = scalar::weight_scale(factor);
    typedef HeadLines<width> Lines;
    extern __shared__ __align__(128) char room[];
    const auto q_room = static_cast<uint32_t>(__cvta_generic_to_shared(room));
    const uint32_t k_room = q_room + Lines::bytes(rows), v_room = k_room + Lines::bytes(Keys);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    constexpr int64_t tiles = (Shape::t + rows - 1) / rows;

    for (int64_t u = grid.block; u < tiles * Shape::heads * Shape::batches; u += grid.blocks) {
        // The tiles of a head together, those with most keys first.
        const int64_t head = u / tiles % Shape::heads, batch = u / tiles / Shape::heads;
        const int64_t i0 = (tiles - 1 - u % tiles) * rows, row = i0 + 16 * warp;
        const E* const kp = k + Shape::K::at(batch, head / Shape::share);
        const E* const vp = v + Shape::V::at(batch, head / Shape::share);
        const bool* const seen = Shape::masked ? mask + Shape::Mask::at(batch, head) : nullptr;
        const int blocks = int((end_of<Shape>(i0 + rows) + Keys - 1) / Keys);
        const int64_t own_end = end_of<Shape>(row + 16);
        const auto left = [](int64_t of, int64_t from, int most_lines) {
            return of - from < most_lines ? int(of - from) : most_lines;
        };
        Lines::template fetch<rows, threads, Shape::d, typename Shape::Q>(
            q_room, q + Shape::Q::at(batch, head) + i0 * Shape::Q::row, left(Shape::t, i0, rows));
        if (blocks > 0)
            Lines::template fetch<Keys, threads, Shape::d, typename Shape::K>(
                k_room, kp, left(Shape::s, 0, Keys));
        commit_copies();
        wait_copies<0>();
        __syncthreads();
        WarpLines<width, width <= 128> queries;
        queries.set(q_room, 16 * warp);
        float acc[columns][4] = {}, total[4] = {}, top[2] = {none, none};
#pragma unroll 1
        for (int j = 0; j < blocks; j++) {
            const int64_t j0 = int64_t(j) * Keys;
            if (j > 0) {
                wait_copies<0>();
                __syncthreads();
            }
            Lines::template fetch<Keys, threads, Shape::d, typename Shape::V>(
                v_room, vp + j0 * Shape::V::row, left(Shape::s, j0, Keys));
            commit_copies();
            uint32_t weights[lots / 2][4];
            const bool needed = j0 < own_end;
            if (needed) {
                float s[lots][4];
                scores_of<E, width>(s, queries, k_room);
                const bool edge =
                    Shape::masked || j0 + Keys > Shape::s || (Shape::causal && j0 + Keys - 1 > row);
                if (edge) {
#pragma unroll
                    for (int x = 0; x < lots; x++)
#pragma unroll
                        for (int y = 0; y < 4; y++)
                            if (!is_seen<Shape>(seen, row + lane / 4 + y / 2 * 8,
                                                j0 + 8 * x + lane % 4 * 2 + y % 2))
                                s[x][y] = none;
                }
                float start[2];
                bool moves = false;
                float step[2];
#pragma unroll
                for (int high = 0; high < 2; high++) {
                    float m = none;
#pragma unroll
                    for (int x = 0; x < lots; x++)
                        m = largest(m, largest(s[x][2 * high], s[x][2 * high + 1]));
                    m = largest(m, __shfl_xor_sync(~0u, m, 1));
                    m = largest(m, __shfl_xor_sync(~0u, m, 2));
                    const float next =
                        scalar::weight_rise(top[high], scalar::weight_top(m, factor));
                    moves |= !(next == top[high]);
                    step[high] = scalar::weight_step(top[high], next);
                    top[high] = next;
                    start[high] = scalar::weight_start(next == none ? 0.0f : -next);
                }
                // By 1 where it stays: sums are as they were.
                if (__any_sync(~0u, moves)) {
#pragma unroll
                    for (int high = 0; high < 2; high++) {
                        total[2 * high] *= step[high];
                        total[2 * high + 1] *= step[high];
#pragma unroll
                        for (int x = 0; x < columns; x++) {
                            acc[x][2 * high] *= step[high];
                            acc[x][2 * high + 1] *= step[high];
                        }
                    }
                }
#pragma unroll
                for (int x = 0; x < lots; x++)
#pragma unroll
                    for (int y = 0; y < 4; y++) s[x][y] = weight_of<E>(s[x][y], by, start[y / 2]);
                as_operand<E>(weights, s);
            }
            wait_copies<0>();
            __syncthreads();
            if (j + 1 < blocks)
                Lines::template fetch<Keys, threads, Shape::d, typename Shape::K>(
                    k_room, kp + (j0 + Keys) * Shape::K::row, left(Shape::s, j0 + Keys, Keys));
            commit_copies();
            if (needed) {
#pragma unroll
                for (int x = 0; x < lots / 2; x++) mma<E>(total, weights[x], one, one);
                add_weighted<E, width>(acc, weights, v_room);
            }
        }
        const float upper = scalar::weight_share(top[0], total[0]),
                    lower = scalar::weight_share(top[1], total[2]);
        store_head<typename Shape::O, Shape::d>(acc, upper, lower, o + Shape::O::at(batch, head),
                                                row, Shape::t);
        if (lane % 4 == 0)
#pragma unroll
            for (int high = 0; high < 2; high++) {
                const int64_t r = row + lane / 4 + 8 * high;
                if (r >= Shape::t) continue;
                most[Shape::Most::at(batch, head) + r * Shape::Most::row] = top[high];
                sum[Shape::Sum::at(batch, head) + r * Shape::Sum::row] = total[2 * high];
            }
        __syncthreads();
    }
}

/// Where a query's weights start, made of its scores again, and what is subtracted from their
/// slopes; of a query that is not there no weight and 0.
template <class Shape, class Index>
__device__ __forceinline__ void numbers_of(float& start, float& mean, const float* most,
                                           const float* sum, const float* delta, Index batch,
                                           Index head, Index r, bool there) {
    start = scalar::weight_start(
        there ? scalar::weight_offset(most[Shape::Most::at(batch, head) + r * Shape::Most::row],
                                      sum[Shape::Sum::at(batch, head) + r * Shape::Sum::row])
              : scalar::from_bits(0xff800000u));
    mean = there ? delta[Shape::Delta::at(batch, head) + r * Shape::Delta::row] : 0.0f;
}

/// dq = scale times (weights (dy v^T - delta)) k.
template <int Warps, int Keys, class Shape, class E>
__device__ __forceinline__ void attention_dq_mma(const Grid& grid, E* dq, const E* q, const E* k,
                                                 const E* v, const float* most, const float* sum,
                                                 const float* delta, const E* dy, const bool* mask,
                                                 float factor, float scale) {
    constexpr int rows = 16 * Warps, width = (Shape::d + 15) / 16 * 16, threads = 32 * Warps;
    constexpr int lots = Keys / 8, columns = width / 8;
    const float by = scalar::weight_scale(factor);
    typedef HeadLines<width> Lines;
    extern __shared__ __align__(128) char room[];
    const auto q_room = static_cast<uint32_t>(__cvta_generic_to_shared(room));
    const uint32_t dy_room = q_room + Lines::bytes(rows), stages = dy_room + Lines::bytes(rows);
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    constexpr int64_t tiles = (Shape::t + rows - 1) / rows;

    for (int64_t u = grid.block; u < tiles * Shape::heads * Shape::batches; u += grid.blocks) {
        const int64_t head = u / tiles % Shape::heads, batch = u / tiles / Shape::heads;
        const int64_t i0 = (tiles - 1 - u % tiles) * rows, row = i0 + 16 * warp;
        const E* const kp = k + Shape::K::at(batch, head / Shape::share);
        const E* const vp = v + Shape::V::at(batch, head / Shape::share);
        const bool* const seen = Shape::masked ? mask + Shape::Mask::at(batch, head) : nullptr;
        const int blocks = int((end_of<Shape>(i0 + rows) + Keys - 1) / Keys);
        const int64_t own_end = end_of<Shape>(row + 16);
        const auto left = [](int64_t of, int64_t from, int most_lines) {
            return of - from < most_lines ? int(of - from) : most_lines;
        };
        const auto fetch = [&](int j) {
            const int64_t j0 = int64_t(j) * Keys;
            const uint32_t to = stages + j % 2 * 2 * Lines::bytes(Keys);
            Lines::template fetch<Keys, threads, Shape::d, typename Shape::K>(
                to, kp + j0 * Shape::K::row, left(Shape::s, j0, Keys));
            Lines::template fetch<Keys, threads, Shape::d, typename Shape::V>(
                to + Lines::bytes(Keys), vp + j0 * Shape::V::row, left(Shape::s, j0, Keys));
        };
        const int there = left(Shape::t, i0, rows);
        Lines::template fetch<rows, threads, Shape::d, typename Shape::Q>(
            q_room, q + Shape::Q::at(batch, head) + i0 * Shape::Q::row, there);
        Lines::template fetch<rows, threads, Shape::d, typename Shape::Dy>(
            dy_room, dy + Shape::Dy::at(batch, head) + i0 * Shape::Dy::row, there);
        if (blocks > 0) fetch(0);
        commit_copies();
        float start[2], mean[2];
#pragma unroll
        for (int high = 0; high < 2; high++) {
            const int64_t r = row + lane / 4 + 8 * high;
            numbers_of<Shape>(start[high], mean[high], most, sum, delta, batch, head, r,
                              r < Shape::t);
        }
        WarpLines<width, width <= 64> queries, upstream;
        float acc[columns][4] = {};
#pragma unroll 1
        for (int j = 0; j < blocks; j++) {
            const int64_t j0 = int64_t(j) * Keys;
            wait_copies<0>();
            __syncthreads();
            if (j + 1 < blocks) fetch(j + 1);
            commit_copies();
            if (j == 0) {
                queries.set(q_room, 16 * warp);
                upstream.set(dy_room, 16 * warp);
            }
            if (j0 >= own_end) continue;
            const uint32_t k_room = stages + j % 2 * 2 * Lines::bytes(Keys),
                           v_room = k_room + Lines::bytes(Keys);
            float p[lots][4], s[lots][4];
            scores_of<E, width>(p, queries, k_room);
            scores_of<E, width>(s, upstream, v_room);
            const bool edge =
                Shape::masked || j0 + Keys > Shape::s || (Shape::causal && j0 + Keys - 1 > row);
#pragma unroll
            for (int x = 0; x < lots; x++)
#pragma unroll
                for (int y = 0; y < 4; y++) {
                    float w = weight_of<E>(p[x][y], by, start[y / 2]);
                    if (edge && !is_seen<Shape>(seen, row + lane / 4 + y / 2 * 8,
                                                j0 + 8 * x + lane % 4 * 2 + y % 2))
                        w = 0.0f;
                    s[x][y] = w * (s[x][y] - mean[y / 2]);
                }
            uint32_t slopes[lots / 2][4];
            as_operand<E>(slopes, s);
            add_weighted<E, width>(acc, slopes, k_room);
        }
        store_head<typename Shape::Dq, Shape::d>(acc, scale, scale, dq + Shape::Dq::at(batch, head),
                                                 row, Shape::t);
        wait_copies<0>();
        __syncthreads();
    }
}

/// dv = weights^T dy and dk = scale times (weights (dy v^T - delta))^T q, a warp 16 keys.
template <int Warps, int Queries, bool Keys, bool Values, class Shape, class E>
__device__ __forceinline__ void attention_dkv_mma(const Grid& grid, E* dk, E* dv, const E* q,
                                                  const E* k, const E* v, const float* most,
                                                  const float* sum, const float* delta, const E* dy,
                                                  const bool* mask, float factor, float scale) {
    constexpr int rows = 16 * Warps, width = (Shape::d + 15) / 16 * 16, threads = 32 * Warps;
    constexpr int lots = Queries / 8, columns = width / 8;
    const float by = scalar::weight_scale(factor);
    typedef HeadLines<width> Lines;
    extern __shared__ __align__(128) char room[];
    const auto k_room = static_cast<uint32_t>(__cvta_generic_to_shared(room));
    const uint32_t v_room = k_room + Lines::bytes(rows), stages = v_room + Lines::bytes(rows);
    constexpr int stage = 2 * Lines::bytes(Queries) + 8 * Queries;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    constexpr int64_t tiles = (Shape::s + rows - 1) / rows, groups = Shape::heads / Shape::share;
    constexpr int blocks = int((Shape::t + Queries - 1) / Queries);

    for (int64_t u = grid.block; u < tiles * groups * Shape::batches; u += grid.blocks) {
        const int64_t group = u / tiles % groups, batch = u / tiles / groups;
        const int64_t j0 = u % tiles * rows, row = j0 + 16 * warp;
        const auto left = [](int64_t of, int64_t from, int most_lines) {
            return of - from < most_lines ? int(of - from) : most_lines;
        };
        // Blocks of queries from the first that sees a key on, of one head after the other.
        const int skipped = Shape::causal ? int(j0 / Queries < blocks ? j0 / Queries : blocks) : 0;
        const int each = blocks - skipped, turns = each * int(Shape::share);
        const auto fetch = [&](int turn) {
            const int64_t head = group * Shape::share + turn / each;
            const int64_t i0 = int64_t(skipped + turn % each) * Queries;
            const uint32_t to = stages + turn % 2 * stage;
            const int there = left(Shape::t, i0, Queries);
            Lines::template fetch<Queries, threads, Shape::d, typename Shape::Q>(
                to, q + Shape::Q::at(batch, head) + i0 * Shape::Q::row, there);
            Lines::template fetch<Queries, threads, Shape::d, typename Shape::Dy>(
                to + Lines::bytes(Queries), dy + Shape::Dy::at(batch, head) + i0 * Shape::Dy::row,
                there);
            for (int x = threadIdx.x; x < Queries; x += threads) {
                float start, mean;
                numbers_of<Shape>(start, mean, most, sum, delta, batch, head, i0 + x, x < there);
                asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(
                                 to + 2 * Lines::bytes(Queries) + 8 * x),
                             "f"(start), "f"(mean)
                             : "memory");
            }
        };
        Lines::template fetch<rows, threads, Shape::d, typename Shape::K>(
            k_room, k + Shape::K::at(batch, group) + j0 * Shape::K::row, left(Shape::s, j0, rows));
        Lines::template fetch<rows, threads, Shape::d, typename Shape::V>(
            v_room, v + Shape::V::at(batch, group) + j0 * Shape::V::row, left(Shape::s, j0, rows));
        if (turns > 0) fetch(0);
        commit_copies();
        WarpLines<width, width <= 64> keys, values;
        float key_acc[Keys ? columns : 1][4] = {}, value_acc[Values ? columns : 1][4] = {};
#pragma unroll 1
        for (int turn = 0; turn < turns; turn++) {
            wait_copies<0>();
            __syncthreads();
            if (turn + 1 < turns) fetch(turn + 1);
            commit_copies();
            if (turn == 0) {
                keys.set(k_room, 16 * warp);
                values.set(v_room, 16 * warp);
            }
            const int64_t i0 = int64_t(skipped + turn % each) * Queries;
            if (Shape::causal && i0 + Queries <= row) continue;
            const uint32_t q_room = stages + turn % 2 * stage,
                           dy_room = q_room + Lines::bytes(Queries),
                           numbers = dy_room + Lines::bytes(Queries) + lane % 4 * 16;
            const bool* const seen =
                Shape::masked ? mask + Shape::Mask::at(batch, group * Shape::share + turn / each)
                              : nullptr;
            float p[lots][4], mean[lots][2];
            scores_of<E, width>(p, keys, q_room);
            const bool edge = Shape::masked || (Shape::causal && row + 15 > i0);
#pragma unroll
            for (int x = 0; x < lots; x++) {
                float start[2];
                asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                             : "=f"(start[0]), "=f"(mean[x][0]), "=f"(start[1]), "=f"(mean[x][1])
                             : "r"(numbers + 64 * x)
                             : "memory");
#pragma unroll
                for (int y = 0; y < 4; y++) {
                    p[x][y] = weight_of<E>(p[x][y], by, start[y % 2]);
                    const int64_t query = i0 + 8 * x + lane % 4 * 2 + y % 2,
                                  key = row + lane / 4 + y / 2 * 8;
                    if (edge && key < Shape::s && !is_seen<Shape>(seen, query, key)) p[x][y] = 0.0f;
                }
            }
            if constexpr (Values) {
                uint32_t weights[lots / 2][4];
                as_operand<E>(weights, p);
                add_weighted<E, width>(value_acc, weights, dy_room);
            }
            if constexpr (Keys) {
                float s[lots][4];
                scores_of<E, width>(s, values, dy_room);
#pragma unroll
                for (int x = 0; x < lots; x++)
#pragma unroll
                    for (int y = 0; y < 4; y++) s[x][y] = p[x][y] * (s[x][y] - mean[x][y % 2]);
                uint32_t slopes[lots / 2][4];
                as_operand<E>(slopes, s);
                add_weighted<E, width>(key_acc, slopes, q_room);
            }
        }
        if constexpr (Keys)
            store_head<typename Shape::Dk, Shape::d>(
                key_acc, scale, scale, dk + Shape::Dk::at(batch, group), row, Shape::s);
        if constexpr (Values)
            store_head<typename Shape::Dv, Shape::d>(
                value_acc, 1.0f, 1.0f, dv + Shape::Dv::at(batch, group), row, Shape::s);
        wait_copies<0>();
        __syncthreads();
    }
}

}  // namespace aicf
