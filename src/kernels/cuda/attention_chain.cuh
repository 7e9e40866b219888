// Attention by fma, in the order chain(64) as abi.h has it for attention: 16 x 16 threads take some
// rows against 64 of the others, each some of its 16th rows and the columns x, x + 16, ...
#pragma once

#include "prelude.cuh"

namespace aicf {

/// Where a block keeps Rows lines of Size numbers: 8 lanes that read four of as many lines meet no
/// bank twice.
template <int Size>
struct ChainLines {
    static constexpr int padded = (Size + 3) / 4 * 4, pitch = padded / 4 % 2 ? padded : padded + 4;

    template <int Rows, class At, class E>
    __device__ __forceinline__ static void fetch(float* to, const E* from, int64_t rows) {
        for (int x = threadIdx.x; x < Rows * padded; x += 256) {
            const int r = x / padded, c = x % padded;
            to[r * pitch + c] = r < rows && c < Size
                                    ? float(widen(from[r * int64_t(At::row) + c * At::col]))
                                    : 0.0f;
        }
    }
};

constexpr int kChainKeys = 64, kChainPitch = kChainKeys + 4;

/// sums[i][j] = line (16th y, i) of `own` times line x + 16 j of `other`.
template <int Size, int Lots>
__device__ __forceinline__ void chain_scores(float (&sums)[Lots][4], const float* own,
                                             const float* other) {
    typedef ChainLines<Size> Lines;
    typedef Pack<float, 4> Four;
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;
#pragma unroll
    for (int i = 0; i < Lots; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) sums[i][j] = 0;
#pragma unroll 2
    for (int c = 0; c < Size; c += 4) {
        Four a[Lots], b[4];
#pragma unroll
        for (int i = 0; i < Lots; i++)
            a[i] = *reinterpret_cast<const Four*>(own + (y * Lots + i) * Lines::pitch + c);
#pragma unroll
        for (int j = 0; j < 4; j++)
            b[j] = *reinterpret_cast<const Four*>(other + (x + 16 * j) * Lines::pitch + c);
#pragma unroll
        for (int e = 0; e < 4; e++) {
            if (c + e >= Size) break;
#pragma unroll
            for (int i = 0; i < Lots; i++)
#pragma unroll
                for (int j = 0; j < 4; j++)
                    sums[i][j] = scalar::fma(a[i].at[e], b[j].at[e], sums[i][j]);
        }
    }
}

/// sums[i][c] += of 64 lines, their weights times column x + 16 c.
template <int Size, int Lots, int Columns>
__device__ __forceinline__ void chain_add(float (&sums)[Lots][Columns], const float* weights,
                                          const float* lines) {
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;
    float part[Lots][Columns] = {};
#pragma unroll 4
    for (int k = 0; k < kChainKeys; k++) {
        float w[Lots];
#pragma unroll
        for (int i = 0; i < Lots; i++) w[i] = weights[(y * Lots + i) * kChainPitch + k];
#pragma unroll
        for (int c = 0; c < Columns; c++) {
            const int at = x + 16 * c;
            const float b = at < Size ? lines[k * ChainLines<Size>::pitch + at] : 0.0f;
#pragma unroll
            for (int i = 0; i < Lots; i++) part[i][c] = scalar::fma(w[i], b, part[i][c]);
        }
    }
#pragma unroll
    for (int i = 0; i < Lots; i++)
#pragma unroll
        for (int c = 0; c < Columns; c++) sums[i][c] += part[i][c];
}

template <int Lots>
__device__ __forceinline__ void leave_weights(float* to, const float (&weights)[Lots][4]) {
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;
#pragma unroll
    for (int i = 0; i < Lots; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) to[(y * Lots + i) * kChainPitch + x + 16 * j] = weights[i][j];
}

template <class At, int Size, int Lots, int Columns, class E>
__device__ __forceinline__ void store_chain(const float (&sums)[Lots][Columns],
                                            const float (&factor)[Lots], E* to, int64_t first,
                                            int64_t rows) {
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;
#pragma unroll
    for (int i = 0; i < Lots; i++) {
        const int64_t r = first + y * Lots + i;
        if (r >= rows) continue;
#pragma unroll
        for (int c = 0; c < Columns; c++)
            if (x + 16 * c < Size)  // no result is -0, whoever passed over hidden keys
                to[r * At::row + (x + 16 * c) * At::col] = narrow<E>(sums[i][c] * factor[i] + 0.0f);
    }
}

template <class Shape>
__device__ __forceinline__ bool chain_sees(const bool* mask, int64_t query, int64_t key) {
    if (key >= Shape::s || query >= Shape::t || (Shape::causal && key > query)) return false;
    if constexpr (Shape::masked) return mask[query * Shape::Mask::row + key * Shape::Mask::col];
    return true;
}

template <int Lots, class Shape, class E>
__device__ __forceinline__ void attention_chain(const Grid& grid, E* o, float* most, float* sum,
                                                const E* q, const E* k, const E* v,
                                                const bool* mask, float factor) {
    constexpr int rows = 16 * Lots, columns = (Shape::d + 15) / 16;
    const float none = scalar::from_bits(0xff800000u);
    typedef ChainLines<Shape::d> Lines;
    extern __shared__ __align__(16) float numbers[];
    float *const queries = numbers, *const others = queries + rows * Lines::pitch,
                 *const weights = others + kChainKeys * Lines::pitch;
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;
    constexpr int64_t tiles = (Shape::t + rows - 1) / rows;
    for (int64_t u = grid.block; u < tiles * Shape::heads * Shape::batches; u += grid.blocks) {
        const int64_t head = u / tiles % Shape::heads, batch = u / tiles / Shape::heads;
        const int64_t i0 = (tiles - 1 - u % tiles) * rows;
        const E* const kp = k + Shape::K::at(batch, head / Shape::share);
        const E* const vp = v + Shape::V::at(batch, head / Shape::share);
        const bool* const seen = Shape::masked ? mask + Shape::Mask::at(batch, head) : nullptr;
        const int64_t end = !Shape::causal || i0 + rows >= Shape::s ? int64_t(Shape::s) : i0 + rows;
        __syncthreads();
        Lines::template fetch<rows, typename Shape::Q>(
            queries, q + Shape::Q::at(batch, head) + i0 * Shape::Q::row, Shape::t - i0);
        float acc[Lots][columns] = {}, total[Lots] = {}, top[Lots];
#pragma unroll
        for (int i = 0; i < Lots; i++) top[i] = none;
#pragma unroll 1
        for (int64_t j0 = 0; j0 < end; j0 += kChainKeys) {
            Lines::template fetch<kChainKeys, typename Shape::K>(others, kp + j0 * Shape::K::row,
                                                                 Shape::s - j0);
            __syncthreads();
            float s[Lots][4];
            chain_scores<Shape::d>(s, queries, others);
#pragma unroll
            for (int i = 0; i < Lots; i++) {
                bool in[4];
                float m = none;
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    in[j] = chain_sees<Shape>(seen, i0 + y * Lots + i, j0 + x + 16 * j);
                    m = in[j] ? scalar::maximum(m, s[i][j]) : m;
                }
#pragma unroll
                for (int lane = 8; lane > 0; lane /= 2)
                    m = scalar::maximum(m, __shfl_xor_sync(~0u, m, lane));
                const float next = scalar::maximum(top[i], scalar::weight_top(m, factor));
                const float used = next == none ? 0.0f : next;
                const float step = scalar::weight_step(top[i], next);
                top[i] = next;
                total[i] *= step;
#pragma unroll
                for (int c = 0; c < columns; c++) acc[i][c] *= step;
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const float w = scalar::weight(scalar::fma(s[i][j], factor, -used));
                    s[i][j] = in[j] ? w : 0.0f;
                    total[i] += s[i][j];
                }
            }
            leave_weights(weights, s);
            __syncthreads();
            Lines::template fetch<kChainKeys, typename Shape::V>(others, vp + j0 * Shape::V::row,
                                                                 Shape::s - j0);
            __syncthreads();
            chain_add<Shape::d>(acc, weights, others);
            __syncthreads();
        }
        float share[Lots];
#pragma unroll
        for (int i = 0; i < Lots; i++) {
#pragma unroll
            for (int lane = 8; lane > 0; lane /= 2)
                total[i] += __shfl_xor_sync(~0u, total[i], lane);
            share[i] = scalar::weight_share(top[i], total[i]);
            const int64_t r = i0 + y * Lots + i;
            if (x == 0 && r < Shape::t) {
                most[Shape::Most::at(batch, head) + r * Shape::Most::row] = top[i];
                sum[Shape::Sum::at(batch, head) + r * Shape::Sum::row] = total[i];
            }
        }
        store_chain<typename Shape::O, Shape::d>(acc, share, o + Shape::O::at(batch, head), i0,
                                                 Shape::t);
    }
}

/// The weight of a score, of a row with these numbers.
__device__ __forceinline__ float chain_weight(float score, float factor, float top, float share) {
    return scalar::weight(scalar::fma(score, factor, -top)) * share;
}

template <int Lots, class Shape, class E>
__device__ __forceinline__ void attention_dq_chain(const Grid& grid, E* dq, const E* q, const E* k,
                                                   const E* v, const float* most, const float* sum,
                                                   const float* delta, const E* dy,
                                                   const bool* mask, float factor, float scale) {
    constexpr int rows = 16 * Lots, columns = (Shape::d + 15) / 16;
    typedef ChainLines<Shape::d> Lines;
    extern __shared__ __align__(16) float numbers[];
    float *const queries = numbers, *const upstream = queries + rows * Lines::pitch,
                 *const others = upstream + rows * Lines::pitch,
                 *const weights = others + kChainKeys * Lines::pitch;
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;
    constexpr int64_t tiles = (Shape::t + rows - 1) / rows;
    for (int64_t u = grid.block; u < tiles * Shape::heads * Shape::batches; u += grid.blocks) {
        const int64_t head = u / tiles % Shape::heads, batch = u / tiles / Shape::heads;
        const int64_t i0 = (tiles - 1 - u % tiles) * rows;
        const E* const kp = k + Shape::K::at(batch, head / Shape::share);
        const E* const vp = v + Shape::V::at(batch, head / Shape::share);
        const bool* const seen = Shape::masked ? mask + Shape::Mask::at(batch, head) : nullptr;
        const int64_t end = !Shape::causal || i0 + rows >= Shape::s ? int64_t(Shape::s) : i0 + rows;
        __syncthreads();
        Lines::template fetch<rows, typename Shape::Q>(
            queries, q + Shape::Q::at(batch, head) + i0 * Shape::Q::row, Shape::t - i0);
        Lines::template fetch<rows, typename Shape::Dy>(
            upstream, dy + Shape::Dy::at(batch, head) + i0 * Shape::Dy::row, Shape::t - i0);
        float acc[Lots][columns] = {}, top[Lots], share[Lots], mean[Lots], by[Lots];
#pragma unroll
        for (int i = 0; i < Lots; i++) {
            const int64_t r = i0 + y * Lots + i;
            const bool in = r < Shape::t;
            const float m = in ? most[Shape::Most::at(batch, head) + r * Shape::Most::row] : 0.0f;
            share[i] =
                in ? scalar::weight_share(m, sum[Shape::Sum::at(batch, head) + r * Shape::Sum::row])
                   : 0.0f;
            top[i] = m == scalar::from_bits(0xff800000u) ? 0.0f : m;
            mean[i] = in ? delta[Shape::Delta::at(batch, head) + r * Shape::Delta::row] : 0.0f;
            by[i] = scale;
        }
#pragma unroll 1
        for (int64_t j0 = 0; j0 < end; j0 += kChainKeys) {
            Lines::template fetch<kChainKeys, typename Shape::K>(others, kp + j0 * Shape::K::row,
                                                                 Shape::s - j0);
            __syncthreads();
            float p[Lots][4], s[Lots][4];
            chain_scores<Shape::d>(p, queries, others);
            __syncthreads();
            Lines::template fetch<kChainKeys, typename Shape::V>(others, vp + j0 * Shape::V::row,
                                                                 Shape::s - j0);
            __syncthreads();
            chain_scores<Shape::d>(s, upstream, others);
            __syncthreads();
            Lines::template fetch<kChainKeys, typename Shape::K>(others, kp + j0 * Shape::K::row,
                                                                 Shape::s - j0);
#pragma unroll
            for (int i = 0; i < Lots; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const bool in = chain_sees<Shape>(seen, i0 + y * Lots + i, j0 + x + 16 * j);
                    const float w = chain_weight(p[i][j], factor, top[i], share[i]);
                    s[i][j] = (in ? w : 0.0f) * (s[i][j] - mean[i]);
                }
            leave_weights(weights, s);
            __syncthreads();
            chain_add<Shape::d>(acc, weights, others);
            __syncthreads();
        }
        store_chain<typename Shape::Dq, Shape::d>(acc, by, dq + Shape::Dq::at(batch, head), i0,
                                                  Shape::t);
    }
}

template <int Lots, class Shape, class E>
__device__ __forceinline__ void attention_dkv_chain(const Grid& grid, E* dk, E* dv, const E* q,
                                                    const E* k, const E* v, const float* most,
                                                    const float* sum, const float* delta,
                                                    const E* dy, const bool* mask, float factor,
                                                    float scale) {
    constexpr int rows = 16 * Lots, columns = (Shape::d + 15) / 16;
    typedef ChainLines<Shape::d> Lines;
    extern __shared__ __align__(16) float numbers[];
    float *const keys = numbers, *const values = keys + rows * Lines::pitch,
                 *const others = values + rows * Lines::pitch,
                 *const weights = others + kChainKeys * Lines::pitch;
    const int x = threadIdx.x % 16, y = threadIdx.x / 16;
    constexpr int64_t tiles = (Shape::s + rows - 1) / rows, groups = Shape::heads / Shape::share;
    for (int64_t u = grid.block; u < tiles * groups * Shape::batches; u += grid.blocks) {
        const int64_t group = u / tiles % groups, batch = u / tiles / groups;
        const int64_t j0 = u % tiles * rows;
        __syncthreads();
        Lines::template fetch<rows, typename Shape::K>(
            keys, k + Shape::K::at(batch, group) + j0 * Shape::K::row, Shape::s - j0);
        Lines::template fetch<rows, typename Shape::V>(
            values, v + Shape::V::at(batch, group) + j0 * Shape::V::row, Shape::s - j0);
        float key_acc[Lots][columns] = {}, value_acc[Lots][columns] = {}, by[Lots], whole[Lots];
#pragma unroll
        for (int i = 0; i < Lots; i++) {
            by[i] = scale;
            whole[i] = 1.0f;
        }
#pragma unroll 1
        for (int64_t head = group * Shape::share; head < (group + 1) * Shape::share; head++) {
            const E* const qp = q + Shape::Q::at(batch, head);
            const E* const dyp = dy + Shape::Dy::at(batch, head);
            const bool* const seen = Shape::masked ? mask + Shape::Mask::at(batch, head) : nullptr;
#pragma unroll 1
            for (int64_t i0 = Shape::causal ? j0 / kChainKeys * kChainKeys : 0; i0 < Shape::t;
                 i0 += kChainKeys) {
                __syncthreads();
                Lines::template fetch<kChainKeys, typename Shape::Q>(
                    others, qp + i0 * Shape::Q::row, Shape::t - i0);
                __syncthreads();
                float p[Lots][4], s[Lots][4], mean[4];
                chain_scores<Shape::d>(p, keys, others);
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const int64_t r = i0 + x + 16 * j;
                    const bool there = r < Shape::t;
                    const float m =
                        there ? most[Shape::Most::at(batch, head) + r * Shape::Most::row] : 0.0f;
                    const float share =
                        there ? scalar::weight_share(
                                    m, sum[Shape::Sum::at(batch, head) + r * Shape::Sum::row])
                              : 0.0f;
                    mean[j] =
                        there ? delta[Shape::Delta::at(batch, head) + r * Shape::Delta::row] : 0.0f;
                    const float top = m == scalar::from_bits(0xff800000u) ? 0.0f : m;
#pragma unroll
                    for (int i = 0; i < Lots; i++) {
                        const bool in = chain_sees<Shape>(seen, r, j0 + y * Lots + i);
                        const float w = chain_weight(p[i][j], factor, top, share);
                        p[i][j] = in ? w : 0.0f;
                    }
                }
                leave_weights(weights, p);
                __syncthreads();
                Lines::template fetch<kChainKeys, typename Shape::Dy>(
                    others, dyp + i0 * Shape::Dy::row, Shape::t - i0);
                __syncthreads();
                chain_add<Shape::d>(value_acc, weights, others);
                chain_scores<Shape::d>(s, values, others);
#pragma unroll
                for (int i = 0; i < Lots; i++)
#pragma unroll
                    for (int j = 0; j < 4; j++) s[i][j] = p[i][j] * (s[i][j] - mean[j]);
                __syncthreads();
                leave_weights(weights, s);
                Lines::template fetch<kChainKeys, typename Shape::Q>(
                    others, qp + i0 * Shape::Q::row, Shape::t - i0);
                __syncthreads();
                chain_add<Shape::d>(key_acc, weights, others);
            }
        }
        store_chain<typename Shape::Dk, Shape::d>(key_acc, by, dk + Shape::Dk::at(batch, group), j0,
                                                  Shape::s);
        store_chain<typename Shape::Dv, Shape::d>(value_acc, whole,
                                                  dv + Shape::Dv::at(batch, group), j0, Shape::s);
    }
}

}  // namespace aicf
