// Products of which one side has few rows, at most 8: a warp reads its rows of the other side, the
// wide one, straight from memory, each element once. Thin says which operand is which: T thin rows,
// the strides of both, and by put() where a result belongs.
#pragma once

#include "mma.cuh"

namespace aicf {

/// Four 16-bit neighbours as two words; together where `wide`.
template <class E>
__device__ __forceinline__ void load_four(uint32_t (&word)[2], const E* from, bool wide) {
    if (wide) {
        const auto pack = *reinterpret_cast<const Pack<uint32_t, 2>*>(from);
        word[0] = pack.at[0];
        word[1] = pack.at[1];
    } else {
#pragma unroll
        for (int x = 0; x < 2; x++)
            word[x] = from[2 * x].bits | uint32_t(from[2 * x + 1].bits) << 16;
    }
}
template <class T>
__device__ __forceinline__ bool aligned_for(const T* p, int bytes) {
    return reinterpret_cast<uint64_t>(p) % bytes == 0;
}

/// Adds the cuts of a warp's results, of which `Slices` warps of the block hold one each, in
/// ascending order; true in the warp that then has the sums of all.
template <int Slices, int Count, class A>
__device__ __forceinline__ void add_slices(A (&total)[Count], const A (&sums)[Count], A* held,
                                           int slice, int round, int cuts) {
    const int lane = threadIdx.x % 32;
    if constexpr (Slices == 1) {
#pragma unroll
        for (int x = 0; x < Count; x++) total[x] = round == 0 ? sums[x] : total[x] + sums[x];
    } else {
        if (slice > 0) {
#pragma unroll
            for (int x = 0; x < Count; x++) held[(slice * Count + x) * 32 + lane] = sums[x];
        }
        __syncthreads();
        if (slice == 0) {
#pragma unroll
            for (int x = 0; x < Count; x++) {
                total[x] = round == 0 ? sums[x] : total[x] + sums[x];
                for (int s = 1; s < Slices && round + s < cuts; s++)
                    total[x] += held[(s * Count + x) * 32 + lane];
            }
        }
        __syncthreads();
    }
}

/// In the order mma16(c) of 9.0, whose steps take their 16 products in any order: so a lane has
/// four neighbours of k, or of the wide side, of each line it reads. A warp takes 16 wide rows
/// where k lies side by side, else 32; a block `Groups` times as many, by `Slices` cuts of k at a
/// time.
template <class Thin, int Groups, int Slices, class Shape, class E, class Put>
__device__ __forceinline__ void gemm_thin_mma(const Grid& grid, const Put& put, const E* thin,
                                              const E* wide) {
    constexpr int rows = Thin::along_k ? 16 : 32, tiles = rows / 16, ahead = Thin::along_k ? 16 : 8;
    constexpr int64_t blocks_of = (Thin::wide + rows * Groups - 1) / (rows * Groups);
    constexpr int cut = int(Shape::chunk < Shape::k ? Shape::chunk : Shape::k);
    constexpr int cuts = int((Shape::k + cut - 1) / cut);
    static_assert(Shape::k % 16 == 0 && cut % 16 == 0);
    __shared__ float held[Groups][Slices * tiles * 4 * 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4;
    const int group = warp / Slices, slice = warp % Slices;
    for (int64_t u = grid.block; u < Shape::batches * blocks_of; u += grid.blocks) {
        const int64_t batch = u / blocks_of, w0 = (u % blocks_of * Groups + group) * rows;
        const E* const tp = thin + Thin::thin_at(batch);
        const E* const wp = wide + Thin::wide_at(batch);
        const bool packs = Thin::packs && aligned_for(wp, 8);
        const bool thin_packs = Thin::thin_packs && aligned_for(tp, 8);
        float total[4 * tiles];
        for (int round = 0; round < cuts; round += Slices) {
            const int begin = (round + slice) * cut;
            const int end = Shape::k - begin < cut ? int(Shape::k) : begin + cut;
            float acc[tiles][4] = {};
            for (int k0 = begin; k0 < end; k0 += 16 * ahead) {
                uint32_t a[ahead][Thin::along_k ? 2 : 4][2], b[ahead][2];
#pragma unroll
                for (int s = 0; s < ahead; s++) {
                    const int k = k0 + 16 * s + 4 * q;
                    if (k >= end) continue;
#pragma unroll
                    for (int x = 0; x < (Thin::along_k ? 2 : 4); x++) {
                        const int64_t w = Thin::along_k ? w0 + g + 8 * x : w0 + 4 * g;
                        const int64_t most = Thin::wide - (Thin::along_k ? 1 : 4);
                        const int64_t row = w < most ? w : most;
                        if constexpr (Thin::along_k)
                            load_four(a[s][x], wp + row * Thin::wide_step + k, packs);
                        else
                            load_four(a[s][x], wp + (k + x) * Thin::wide_step + row, packs);
                    }
                    b[s][0] = b[s][1] = 0;
                    if (g >= Thin::rows) continue;
                    if (thin_packs) {
                        load_four(b[s], tp + g * Thin::thin_row + k, true);
                    } else {
#pragma unroll
                        for (int x = 0; x < 4; x++)
                            b[s][x / 2] |=
                                uint32_t(tp[g * Thin::thin_row + (k + x) * Thin::thin_col].bits)
                                << 16 * (x % 2);
                    }
                }
#pragma unroll
                for (int s = 0; s < ahead; s++) {
                    if (k0 + 16 * s >= end) continue;
                    if constexpr (Thin::along_k) {
                        const uint32_t word[4] = {a[s][0][0], a[s][1][0], a[s][0][1], a[s][1][1]};
                        mma<E>(acc[0], word, b[s][0], b[s][1]);
                    } else {
#pragma unroll
                        for (int t = 0; t < 2; t++) {
                            uint32_t word[4];
#pragma unroll
                            for (int y = 0; y < 4; y++)
                                word[y] = __byte_perm(a[s][y / 2 * 2][t], a[s][y / 2 * 2 + 1][t],
                                                      y % 2 ? 0x7632 : 0x5410);
                            mma<E>(acc[t], word, b[s][0], b[s][1]);
                        }
                    }
                }
            }
            float sums[4 * tiles];
#pragma unroll
            for (int x = 0; x < 4 * tiles; x++) sums[x] = acc[x / 4][x % 4];
            add_slices<Slices>(total, sums, held[group], slice, round, cuts);
        }
        if (slice > 0) continue;
#pragma unroll
        for (int x = 0; x < 4 * tiles; x++) {
            const int high = x / 2 % 2, t = 2 * q + x % 2;
            int64_t w = w0 + g + 8 * high, first = w;
            if constexpr (!Thin::along_k) {  // the last four were read where they are whole
                first = w0 + 4 * g;
                w = (first < Thin::wide - 4 ? first : Thin::wide - 4) + 2 * (x / 4) + high;
            }
            const float one[1] = {total[x]};
            if (w >= first && w < Thin::wide && t < Thin::rows) Thin::put(put, batch, t, w, one);
        }
    }
}

/// In the order chain(c), where k lies side by side: a lane takes one wide row, which it reads 16
/// bytes at a time.
template <class A, class Thin, int Groups, int Slices, class Shape, class E, class Put>
__device__ __forceinline__ void gemm_thin_chain(const Grid& grid, const Put& put, const E* thin,
                                                const E* wide) {
    constexpr int lot = 16 / int(sizeof(E));
    constexpr int64_t blocks_of = (Thin::wide + 32 * Groups - 1) / (32 * Groups);
    constexpr int cut = int(Shape::chunk < Shape::k ? Shape::chunk : Shape::k);
    constexpr int cuts = int((Shape::k + cut - 1) / cut);
    static_assert(Thin::along_k && Shape::k % 32 == 0 && cut % 32 == 0);
    __shared__ A held[Groups][Slices * Thin::rows * 32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int group = warp / Slices, slice = warp % Slices;
    for (int64_t u = grid.block; u < Shape::batches * blocks_of; u += grid.blocks) {
        const int64_t batch = u / blocks_of, w = (u % blocks_of * Groups + group) * 32 + lane;
        const E* const tp = thin + Thin::thin_at(batch);
        const E* const lines = wide + Thin::wide_at(batch);
        const E* const wp = lines + (w < Thin::wide ? w : Thin::wide - 1) * Thin::wide_step;
        const bool packs = Thin::packs && aligned16(lines);
        const bool thin_packs = Thin::thin_packs && aligned16(tp);
        const auto read = [&](E(&to)[32], const E* from, int64_t step, bool together) {
#pragma unroll
            for (int x = 0; x < 32; x += lot) {
                if (together) {
                    const auto pack = *reinterpret_cast<const Pack<E, lot>*>(from + x);
#pragma unroll
                    for (int y = 0; y < lot; y++) to[x + y] = pack.at[y];
                } else {
#pragma unroll
                    for (int y = 0; y < lot; y++) to[x + y] = from[(x + y) * step];
                }
            }
        };
        A total[Thin::rows];
        for (int round = 0; round < cuts; round += Slices) {
            const int begin = (round + slice) * cut;
            const int end = Shape::k - begin < cut ? int(Shape::k) : begin + cut;
            A acc[Thin::rows] = {};
            for (int k = begin; k < end; k += 32) {
                E of_wide[32], of_thin[32];
                read(of_wide, wp + k, 1, packs);
#pragma unroll
                for (int t = 0; t < Thin::rows; t++) {
                    read(of_thin, tp + t * Thin::thin_row + k * Thin::thin_col, Thin::thin_col,
                         thin_packs);
#pragma unroll
                    for (int x = 0; x < 32; x++)
                        acc[t] = scalar::fma(A(of_thin[x]), A(of_wide[x]), acc[t]);
                }
            }
            add_slices<Slices>(total, acc, held[group], slice, round, cuts);
        }
        if (slice > 0 || w >= Thin::wide) continue;
#pragma unroll
        for (int t = 0; t < Thin::rows; t++) {
            const A one[1] = {total[t]};
            Thin::put(put, batch, t, w, one);
        }
    }
}

}  // namespace aicf
