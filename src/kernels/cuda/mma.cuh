// C = A B of 16-bit operands on tensor cores (mma.sync m16n8k16, sums in float), devices of 8.0 and
// newer. k is taken in ascending steps of 16 inside each piece of k, the pieces are added in
// ascending order: which block runs when changes no bit.
#pragma once

#include "matmul.cuh"

namespace aicf {

/// A 16-byte copy to shared memory of which the first `bytes` exist; the rest becomes zero.
__device__ __forceinline__ void copy_async_filled(uint32_t to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}

/// Four 8x8 matrices: lane l gives the address of row l % 8 of matrix l / 8 and receives in word q
/// the elements (l / 4, 2 * (l % 4) + {0, 1}) of matrix q, or of its transpose.
template <bool Transposed>
__device__ __forceinline__ void load_matrices(uint32_t (&word)[4], uint32_t from) {
    if constexpr (Transposed)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                     : "r"(from)
                     : "memory");
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                     : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                     : "r"(from)
                     : "memory");
}

/// d (16 x 8) += a (16 x 16) b (16 x 8). Lane l holds of d the columns 2 * (l % 4) + {0, 1} of rows
/// l / 4 and l / 4 + 8.
template <class E>
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
    if constexpr (same_type<E, Half>)
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// How a tile of an operand, Rows of its own axis by BK of k, lies in shared memory: as in global
/// memory, in 16-byte cells of eight elements along k, or along the rows if only those are side by
/// side. The cells of a line are permuted so that the eight cells of a matrix meet no bank twice.
template <int Rows, int BK, int Threads, bool WholeRows, bool WholeK, int64_t RowStep,
          int64_t KStep, class E>
struct OperandTile {
    static constexpr bool along_k = KStep == 1 || RowStep != 1;
    static constexpr bool may_be_wide =
        along_k ? KStep == 1 && RowStep % 8 == 0 : KStep % 8 == 0;  // in whole cells
    static constexpr int bytes = Rows * BK * 2, line = (along_k ? BK : Rows) / 8;
    static constexpr int cells = Rows * BK / 8 / Threads;  // a thread copies
    static_assert(BK == 32 || BK == 64);
    static_assert(Threads % line == 0 && Rows * BK % (8 * Threads) == 0 && Rows % 64 == 0);

    /// Byte offset of the cell that begins at (r, k).
    __device__ __forceinline__ static uint32_t offset(int r, int k) {
        const int swap = along_k ? (BK == 32 ? r / 2 % 4 : r % 8) : k % 8;
        return 16 * (along_k ? r * line + (k / 8 ^ swap) : k * line + (r / 8 ^ swap));
    }

    /// Brings the tile at `from`, of which `rows` x `depth` exist, the rest as zeros.
    __device__ __forceinline__ static void fetch(uint32_t to, const E* from, int rows, int depth,
                                                 bool wide) {
        const int cell = threadIdx.x % line * 8, first = threadIdx.x / line;
#pragma unroll
        for (int p = 0; p < cells; p++) {
            const int other = first + p * (Threads / line);
            const int r = along_k ? other : cell, k = along_k ? cell : other;
            const E* const x = from + r * RowStep + k * KStep;
            const uint32_t at = to + offset(r, k);
            if constexpr (may_be_wide) {
                if (wide) {
                    if constexpr (WholeRows && WholeK) {
                        copy_async_filled(at, x, 16);
                    } else {
                        const bool in = along_k ? r < rows : k < depth;
                        const int left = in ? (along_k ? depth - k : rows - r) : 0;
                        const int count = left < 0 ? 0 : left < 8 ? left : 8;
                        copy_async_filled(at, count ? x : from, 2 * count);
                    }
                    continue;
                }
            }
            uint32_t word[4];
#pragma unroll
            for (int w = 0; w < 4; w++) {
                word[w] = 0;
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const int e = 2 * w + h, er = along_k ? r : r + e, ek = along_k ? k + e : k;
                    if ((WholeRows || er < rows) && (WholeK || ek < depth))
                        word[w] |= uint32_t(x[e * (along_k ? KStep : RowStep)].bits) << (16 * h);
                }
            }
            asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(word[0]),
                         "r"(word[1]), "r"(word[2]), "r"(word[3])
                         : "memory");
        }
    }

    /// Where a lane finds its row of the four matrices that make 16 rows by 16 of k. A takes them
    /// in the order (0, 0), (8, 0), (0, 8), (8, 8) of (row, k), B with the middle two exchanged.
    template <int Width, bool IsA>
    struct Reader {
        static constexpr int count = along_k ? BK / 16 : Width / 16;
        uint32_t at[count];
        __device__ __forceinline__ explicit Reader(int row) {
            const int q = threadIdx.x / 8 % 4, l = threadIdx.x % 8;
            const int low = q % 2 * 8, high = q / 2 * 8, dr = IsA ? low : high,
                      dk = IsA ? high : low;
#pragma unroll
            for (int x = 0; x < count; x++)
                at[x] =
                    along_k ? offset(row + dr + l, 16 * x + dk) : offset(row + 16 * x + dr, dk + l);
        }
        __device__ __forceinline__ void read(uint32_t (&word)[Width / 16][4], uint32_t tile,
                                             int step) const {
#pragma unroll
            for (int x = 0; x < Width / 16; x++)
                load_matrices<!along_k>(word[x], tile + (along_k ? at[step] + 16 * x * line * 16
                                                                 : at[x] + 16 * step * line * 16));
        }
    };
};

/// A block computes BM x BN, a warp WM x WN of it, from Stages tiles of depth BK of which all but
/// one are on their way. With Parts > 1 it takes one piece of k and leaves its sums in `parts`.
template <int BM, int BN, int WM, int WN, int BK, int Stages, int Parts, class Shape, class E,
          class Put>
__device__ __forceinline__ void gemm_mma(const Put& put, const E* a, const E* b, float* parts,
                                         uint32_t* counters) {
    constexpr int threads = 32 * (BM / WM) * (BN / WN), inner = BK / 16;
    constexpr int lots = WM / 16 * (WN / 8);
    constexpr int all_steps = int((Shape::k + BK - 1) / BK), run = (all_steps + Parts - 1) / Parts;
    typedef Pack<float, 4> Four;
    typedef OperandTile<BM, BK, threads, Shape::m % BM == 0, Shape::k % BK == 0, Shape::a_row,
                        Shape::a_col, E>
        TileA;
    typedef OperandTile<BN, BK, threads, Shape::n % BN == 0, Shape::k % BK == 0, Shape::b_col,
                        Shape::b_row, E>
        TileB;
    static_assert((Parts - 1) * run < all_steps);
    static_assert(inner % 2 == 0 && WM % 16 == 0 && WN % 16 == 0);
    extern __shared__ __align__(128) char room[];
    const auto as = static_cast<uint32_t>(__cvta_generic_to_shared(room));
    const uint32_t bs = as + Stages * TileA::bytes;

    const Piece<Shape, BM, BN> place(blockIdx.x);
    const E* const ap = a + Shape::A::at(place.batch) + place.i0 * Shape::a_row;
    const E* const bp = b + Shape::B::at(place.batch) + place.j0 * Shape::b_col;
    const bool a_wide = aligned16(ap), b_wide = aligned16(bp);
    const int rows = Shape::m - place.i0 < BM ? int(Shape::m - place.i0) : BM;
    const int cols = Shape::n - place.j0 < BN ? int(Shape::n - place.j0) : BN;
    const int begin = place.part * run, steps = all_steps - begin < run ? all_steps - begin : run;
    const auto fetch = [&](int s, int stage) {
        const int64_t k0 = int64_t(begin + s) * BK;
        const int depth = Shape::k - k0 < BK ? int(Shape::k - k0) : BK;
        TileA::fetch(as + stage * TileA::bytes, ap + k0 * Shape::a_col, rows, depth, a_wide);
        TileB::fetch(bs + stage * TileB::bytes, bp + k0 * Shape::b_row, cols, depth, b_wide);
    };

    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int row = warp % (BM / WM) * WM, col = warp / (BM / WM) * WN;
    const typename TileA::template Reader<WM, true> read_a(row);
    const typename TileB::template Reader<WN, false> read_b(col);
    float acc[WM / 16][WN / 8][4] = {};
    uint32_t av[2][WM / 16][4], bv[2][WN / 16][4];
    const auto read = [&](int set, int stage, int step) {
        read_a.read(av[set], as + stage * TileA::bytes, step);
        read_b.read(bv[set], bs + stage * TileB::bytes, step);
    };

#pragma unroll
    for (int s = 0; s < Stages - 1; s++) {
        if (s < steps) fetch(s, s);
        commit_copies();
    }
    wait_copies<Stages - 2>();
    __syncthreads();
    read(0, 0, 0);
    int stage = 0, next = Stages - 1;
    for (int s = 0; s < steps; s++) {
        const int after = stage + 1 == Stages ? 0 : stage + 1;
#pragma unroll
        for (int step = 0; step < inner; step++) {
            // The operands of the next product are read while this one's is on its way.
            if (step + 1 < inner) {
                read((step + 1) & 1, stage, step + 1);
            } else {
                wait_copies<Stages - 2>();
                __syncthreads();
                if (s + 1 < steps) read(0, after, 0);
            }
            if (step == 0) {  // into the stage that all warps left before the last barrier
                if (s + Stages - 1 < steps) fetch(s + Stages - 1, next);
                commit_copies();
            }
#pragma unroll
            for (int x = 0; x < WM / 16; x++)
#pragma unroll
                for (int z = 0; z < WN / 8; z++)
                    mma<E>(acc[x][z], av[step & 1][x], bv[step & 1][z / 2][z % 2 * 2],
                           bv[step & 1][z / 2][z % 2 * 2 + 1]);
        }
        stage = after;
        next = next + 1 == Stages ? 0 : next + 1;
    }
    if constexpr (Parts > 1) {
        const auto part_of = [&](int part) {
            return reinterpret_cast<Four*>(parts) + (place.tile * Parts + part) * lots * threads +
                   threadIdx.x;
        };
        Four* const own = part_of(place.part);
#pragma unroll
        for (int lot = 0; lot < lots; lot++) {
            Four four;
#pragma unroll
            for (int y = 0; y < 4; y++) four.at[y] = acc[lot / (WN / 8)][lot % (WN / 8)][y];
            own[lot * threads] = four;
        }
        if (!arrive_last(counters + place.tile, Parts)) return;
        for (int part = 0; part < Parts; part++) {
            const Four* const from = part_of(part);
#pragma unroll
            for (int lot = 0; lot < lots; lot++) {
                const Four four = from[lot * threads];
#pragma unroll
                for (int y = 0; y < 4; y++) {
                    float& sum = acc[lot / (WN / 8)][lot % (WN / 8)][y];
                    sum = part == 0 ? four.at[y] : sum + four.at[y];
                }
            }
        }
    }
#pragma unroll
    for (int x = 0; x < WM / 16; x++)
#pragma unroll
        for (int high = 0; high < 2; high++) {
            const int64_t i = place.i0 + row + 16 * x + 8 * high + lane / 4;
#pragma unroll
            for (int z = 0; z < WN / 8; z++) {
                const int64_t j = place.j0 + col + 8 * z + lane % 4 * 2;
                const float pair[2] = {acc[x][z][2 * high], acc[x][z][2 * high + 1]};
                if (i < Shape::m && j < Shape::n) put(place.batch, i, j, pair);
            }
        }
}

}  // namespace aicf
