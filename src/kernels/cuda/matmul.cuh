// C = A B in the order chain(Chunk): an accumulator takes k by fma in ascending order from +0, the
// chunk results are added in ascending order. Shape says the sizes and strides of one product and
// where the operands of batch b begin.
#pragma once

#include "prelude.cuh"

namespace aicf {

/// One thread an element, `Slices` chunks of k at a time: for products too small to fill tiles.
template <class A, int Slices, class Shape, class E>
__device__ __forceinline__ void gemm_small(E* c, const E* a, const E* b) {
    constexpr int64_t chunks = (Shape::k + Shape::chunk - 1) / Shape::chunk,
                      count = Shape::batches * Shape::m * Shape::n;
    __shared__ A held[Slices][32];
    const int x = threadIdx.x & 31, slice = threadIdx.x / 32;
    for (int64_t first = int64_t(blockIdx.x) * 32; first < count;
         first += int64_t(gridDim.x) * 32) {
        const int64_t u = first + x < count ? first + x : count - 1;
        const int64_t batch = u / (Shape::m * Shape::n), at = u - batch * (Shape::m * Shape::n);
        const int64_t i = at / Shape::n, j = at - i * Shape::n;
        const E* const ap = a + Shape::A::at(batch) + i * Shape::a_row;
        const E* const bp = b + Shape::B::at(batch) + j * Shape::b_col;
        A total = A(0);
        for (int64_t round = 0; round < chunks; round += Slices) {
            const int64_t begin = (round + slice) * Shape::chunk;
            const int64_t end = Shape::k - begin < Shape::chunk ? Shape::k : begin + Shape::chunk;
            A acc = A(0);
            int64_t k = begin;
            for (; k + 8 <= end; k += 8) {
                A av[8], bv[8];
#pragma unroll
                for (int p = 0; p < 8; p++) {
                    av[p] = widen(ap[(k + p) * Shape::a_col]);
                    bv[p] = widen(bp[(k + p) * Shape::b_row]);
                }
#pragma unroll
                for (int p = 0; p < 8; p++) acc = scalar::fma(av[p], bv[p], acc);
            }
            for (; k < end; k++)
                acc = scalar::fma(A(widen(ap[k * Shape::a_col])), A(widen(bp[k * Shape::b_row])),
                                  acc);
            if constexpr (Slices == 1) {
                total = round == 0 ? acc : total + acc;
            } else {
                held[slice][x] = acc;
                __syncthreads();
                if (slice == 0)
                    for (int s = 0; s < Slices && round + s < chunks; s++)
                        total = round + s == 0 ? held[0][x] : total + held[s][x];
                __syncthreads();
            }
        }
        if (slice == 0 && first + x < count)
            c[Shape::C::at(batch) + i * Shape::c_row + j * Shape::c_col] = narrow<E>(total);
    }
}

/// A block of 256 computes tiles of BM x BN, a thread (BM / 16) x (BN / 16) of it, with tiles of A
/// and B of depth BK in shared memory while the next ones are on their way.
template <class A, int BM, int BN, int BK, class Shape, class E>
__device__ __forceinline__ void gemm_tiled(E* c, const E* a, const E* b) {
    constexpr int TM = BM / 16, TN = BN / 16, threads = 256;
    constexpr int PA = BM * BK / threads, PB = BN * BK / threads, pad = 4;
    constexpr bool several = Shape::k > Shape::chunk;
    __shared__ __align__(16) A as[2][BK][BM + pad];
    __shared__ __align__(16) A bs[2][BK][BN + pad];
    const int t = threadIdx.x, tx = t % 16, ty = t / 16;
    constexpr int64_t rows = (Shape::m + BM - 1) / BM, cols = (Shape::n + BN - 1) / BN;
    constexpr int64_t steps = (Shape::k + BK - 1) / BK;

    for (int64_t u = blockIdx.x; u < Shape::batches * rows * cols; u += gridDim.x) {
        const int64_t batch = u / (rows * cols), cell = u - batch * (rows * cols);
        const int64_t i0 = cell / cols * BM, j0 = cell % cols * BN;
        const E* const ap = a + Shape::A::at(batch);
        const E* const bp = b + Shape::B::at(batch);
        // Neighbouring threads fetch neighbours in memory: along k, or across it.
        const auto a_k = [t](int p) {
            return Shape::a_col == 1 ? (t + p * threads) % BK : (t + p * threads) / BM;
        };
        const auto a_i = [t](int p) {
            return Shape::a_col == 1 ? (t + p * threads) / BK : (t + p * threads) % BM;
        };
        const auto b_k = [t](int p) {
            return Shape::b_row == 1 ? (t + p * threads) % BK : (t + p * threads) / BN;
        };
        const auto b_j = [t](int p) {
            return Shape::b_row == 1 ? (t + p * threads) / BK : (t + p * threads) % BN;
        };
        E ra[PA], rb[PB];
        const auto fetch = [&](int64_t k0) {
#pragma unroll
            for (int p = 0; p < PA; p++) {
                const int64_t k = k0 + a_k(p), i = i0 + a_i(p);
                ra[p] =
                    k < Shape::k && i < Shape::m ? ap[i * Shape::a_row + k * Shape::a_col] : E{};
            }
#pragma unroll
            for (int p = 0; p < PB; p++) {
                const int64_t k = k0 + b_k(p), j = j0 + b_j(p);
                rb[p] =
                    k < Shape::k && j < Shape::n ? bp[k * Shape::b_row + j * Shape::b_col] : E{};
            }
        };
        const auto put = [&](int buffer) {
#pragma unroll
            for (int p = 0; p < PA; p++) as[buffer][a_k(p)][a_i(p)] = widen(ra[p]);
#pragma unroll
            for (int p = 0; p < PB; p++) bs[buffer][b_k(p)][b_j(p)] = widen(rb[p]);
        };

        A acc[TM][TN] = {}, total[several ? TM : 1][several ? TN : 1];
        // A thread's rows and columns come in fours, 64 apart.
        const auto row_of = [ty](int x) { return x / 4 * 64 + ty * 4 + x % 4; };
        const auto col_of = [tx](int x) { return x / 4 * 64 + tx * 4 + x % 4; };
        const auto multiply = [&](int buffer, int p) {
            A av[TM], bv[TN];
#pragma unroll
            for (int x = 0; x < TM; x++) av[x] = as[buffer][p][row_of(x)];
#pragma unroll
            for (int x = 0; x < TN; x++) bv[x] = bs[buffer][p][col_of(x)];
#pragma unroll
            for (int x = 0; x < TM; x++)
#pragma unroll
                for (int z = 0; z < TN; z++) acc[x][z] = scalar::fma(av[x], bv[z], acc[x][z]);
        };
        const auto end_chunk = [&](bool first) {
            if constexpr (several) {
#pragma unroll
                for (int x = 0; x < TM; x++)
#pragma unroll
                    for (int z = 0; z < TN; z++) {
                        total[x][z] = first ? acc[x][z] : total[x][z] + acc[x][z];
                        acc[x][z] = A(0);
                    }
            }
        };
        fetch(0);
        put(0);
        __syncthreads();
        for (int64_t s = 0; s < steps; s++) {
            const int buffer = s & 1;
            if (s + 1 < steps) fetch((s + 1) * BK);
            if (Shape::k % BK == 0 || s + 1 < steps) {
#pragma unroll
                for (int p = 0; p < BK; p++) multiply(buffer, p);
            } else {  // never past k: adding a zero could change the sign of another
                for (int p = 0; p < int(Shape::k % BK); p++) multiply(buffer, p);
            }
            if (several && ((s + 1) * BK % Shape::chunk == 0 || s + 1 == steps))
                end_chunk((s * BK) / Shape::chunk == 0);
            if (s + 1 < steps) put(buffer ^ 1);
            __syncthreads();
        }
        E* const cp = c + Shape::C::at(batch);
#pragma unroll
        for (int x = 0; x < TM; x++)
#pragma unroll
            for (int z = 0; z < TN; z++) {
                const int64_t i = i0 + row_of(x), j = j0 + col_of(z);
                A v;
                if constexpr (several)
                    v = total[x][z];
                else
                    v = acc[x][z];
                if (i < Shape::m && j < Shape::n)
                    cp[i * Shape::c_row + j * Shape::c_col] = narrow<E>(v);
            }
    }
}

}  // namespace aicf
