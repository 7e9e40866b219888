// C = A B on tensor cores (mma.sync m16n8k16 of 16-bit operands, m16n8k8 of tf32, sums in float),
// devices of 8.0 and newer, in the order mma16(c) or mma8(c) with c = Shape::chunk.
#pragma once

#include "matmul.cuh"

namespace aicf {

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

__device__ __forceinline__ uint32_t load_word(uint32_t from) {
    uint32_t word;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(from) : "memory");
    return word;
}

/// d (16 x 8) += a (16 x 16) b (16 x 8), of tf32 half as deep. Lane l holds of d the columns
/// 2 * (l % 4) + {0, 1} of rows l / 4 and l / 4 + 8.
template <class E>
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
    if constexpr (same_type<E, Tf32>)
        asm volatile(
            "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else if constexpr (same_type<E, Half>)
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

/// What a lane holds of a row or column of f32 for one step: two(at) are terms 2 * (lane % 4) + at
/// and the next. A step of 8 takes its terms in any order on 9.0, so that neighbours serve.
template <class As, class Two>
__device__ __forceinline__ void step_words(uint32_t& low, uint32_t& high, const Two& two) {
    const Pack<float, 2> x = two(0);
    if constexpr (same_type<As, Tf32>) {
        low = scalar::bits(x.at[0]), high = scalar::bits(x.at[1]);
        round_word(low), round_word(high);
    } else {
        const Pack<float, 2> y = two(8);
        low = narrow_two<As>(x.at[0], x.at[1]), high = narrow_two<As>(y.at[0], y.at[1]);
    }
}
/// Terms of k that a step takes.
template <class As>
constexpr int step_terms = same_type<As, Tf32> ? 8 : 16;

/// How a tile of an operand, Rows of its own axis by BK of k, lies in shared memory: as in global
/// memory, in 16-byte cells along k, or along the rows if only those are side by side. The cells of
/// a line are permuted so that what a warp reads together meets no bank twice. Elements are E
/// outside and As here, but f32 is rounded to Tf32 later, so that its copies need no register.
template <int Rows, int BK, int Threads, bool WholeRows, bool WholeK, int64_t RowStep,
          int64_t KStep, class E, class As>
struct OperandTile {
    static constexpr bool tf32 = same_type<As, Tf32>, as_it_is = tf32 || same_type<As, E>;
    static constexpr bool along_k = KStep == 1 || RowStep != 1;
    static constexpr int per = 16 / sizeof(As), depth_of_product = 2 * per;
    static constexpr bool may_be_wide =  // in whole cells
        as_it_is && (along_k ? KStep == 1 && RowStep % per == 0 : KStep % per == 0);
    static constexpr int bytes = Rows * BK * sizeof(As), line = (along_k ? BK : Rows) / per;
    static constexpr int cells = Rows * BK / per / Threads;  // a thread copies
    static_assert(line == 4 || line % 8 == 0);
    static_assert(Threads % line == 0 && Rows * BK % (per * Threads) == 0 && Rows % 64 == 0);

    /// Byte offset of the cell that begins at (r, k).
    __device__ __forceinline__ static uint32_t offset(int r, int k) {
        const int swap = along_k ? (line == 4 ? r / 2 % 4 : r % 8) : (tf32 ? 2 * k : k) % 8;
        return 16 * (along_k ? r * line + (k / per ^ swap) : k * line + (r / per ^ swap));
    }

    /// Brings the tile at `from`, of which `rows` x `depth` exist, the rest as zeros.
    __device__ __forceinline__ static void fetch(uint32_t to, const E* from, int rows, int depth,
                                                 bool wide) {
        if constexpr (tf32) {
            if (!may_be_wide || !wide) return fetch_words(to, from, rows, depth);
        }
        const int cell = threadIdx.x % line * per, first = threadIdx.x / line;
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
                        const int count = left < 0 ? 0 : left < per ? left : per;
                        copy_async_filled(at, count ? x : from, int(sizeof(As)) * count);
                    }
                    continue;
                }
            }
            if constexpr (!tf32) {
                uint32_t word[4];
#pragma unroll
                for (int w = 0; w < 4; w++) {
                    word[w] = 0;
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        const int e = 2 * w + h, er = along_k ? r : r + e, ek = along_k ? k + e : k;
                        if ((WholeRows || er < rows) && (WholeK || ek < depth))
                            word[w] |=
                                uint32_t(rounded_to<As>(x[e * (along_k ? KStep : RowStep)]).bits)
                                << (16 * h);
                    }
                }
                asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(word[0]),
                             "r"(word[1]), "r"(word[2]), "r"(word[3])
                             : "memory");
            }
        }
    }

    /// The same element by element, neighbouring lanes along what lies side by side.
    __device__ __forceinline__ static void fetch_words(uint32_t to, const E* from, int rows,
                                                       int depth) {
        static_assert(Threads % Rows == 0 && Threads % BK == 0);
        const int t = threadIdx.x;
#pragma unroll
        for (int p = 0; p < Rows * BK / Threads; p++) {
            const int r = along_k ? t / BK + p * (Threads / BK) : t % Rows;
            const int k = along_k ? t % BK : t / Rows + p * (Threads / Rows);
            const bool exists = (WholeRows || r < rows) && (WholeK || k < depth);
            copy_async_word(to + offset(r, k) + (along_k ? k : r) % per * 4,
                            exists ? from + r * RowStep + k * KStep : from, exists ? 4 : 0);
        }
    }

    /// Where a lane finds its row of the four matrices that make 16 rows by two cells of k. A takes
    /// them in the order (0, 0), (8, 0), (0, 1), (8, 1) of (row, cell), B with the middle two
    /// exchanged. Of tf32 that does not lie along k no instruction turns the matrices: a lane reads
    /// its words, in 8 rows and the next 8.
    template <int Width, bool IsA>
    struct Reader {
        static constexpr bool words = tf32 && !along_k;
        static constexpr int count = along_k ? BK / depth_of_product : Width / (words ? 8 : 16);
        uint32_t at[count];
        __device__ __forceinline__ explicit Reader(int row) {
            const int lane = threadIdx.x % 32;
            if constexpr (words) {
#pragma unroll
                for (int x = 0; x < count; x++)
                    at[x] = offset(row + 8 * x + lane / 4, lane % 4) + lane / 4 % per * 4;
            } else {
                const int q = lane / 8, l = lane % 8;
                const int dr = (IsA ? q % 2 : q / 2) * 8, dk = (IsA ? q / 2 : q % 2) * per;
#pragma unroll
                for (int x = 0; x < count; x++)
                    at[x] = along_k ? offset(row + dr + l, depth_of_product * x + dk)
                                    : offset(row + 16 * x + dr, dk + l);
            }
        }
        __device__ __forceinline__ void read(uint32_t (&word)[Width / 16][4], uint32_t tile,
                                             int step) const {
            if constexpr (words) {
#pragma unroll
                for (int x = 0; x < Width / 16; x++)
#pragma unroll
                    for (int q = 0; q < 4; q++) {
                        const int high = IsA ? q % 2 : q / 2, deep = IsA ? q / 2 : q % 2;
                        const int k = step * depth_of_product + deep * per;
                        word[x][q] = load_word(tile + at[2 * x + high] + k * line * 16);
                    }
            } else {
#pragma unroll
                for (int x = 0; x < Width / 16; x++)
                    load_matrices<!along_k>(word[x],
                                            tile + (along_k ? at[step] + 16 * x * line * 16
                                                            : at[x] + 16 * step * line * 16));
            }
        }
    };
};

/// A block computes BM x BN, a warp WM x WN of it, from Stages tiles of depth BK of which all but
/// one are on their way. With Parts > 1 it takes one cut of k and leaves its sums in `parts`, else
/// one cut after the other and keeps the sum of those before there.
template <int BM, int BN, int WM, int WN, int BK, int Stages, int Parts, class Shape, class E,
          class Put>
__device__ __forceinline__ void gemm_mma(const Grid& grid, const Put& put, const E* a, const E* b,
                                         float* parts, uint32_t* counters) {
    typedef typename Shape::As As;
    constexpr int threads = 32 * (BM / WM) * (BN / WN), inner = BK * int(sizeof(As)) / 32;
    constexpr int lots = WM / 16 * (WN / 8);
    constexpr int all_steps = int((Shape::k + BK - 1) / BK);
    constexpr int cut_steps =
        int((Shape::chunk < Shape::k ? Shape::chunk : Shape::k) + BK - 1) / BK;
    constexpr int cuts = (all_steps + cut_steps - 1) / cut_steps;
    constexpr int run = Parts == cuts ? cut_steps : all_steps;
    constexpr bool keeps = Parts == 1 && cuts > 1;
    typedef Piece<Shape, BM, BN> Place;
    typedef Pack<float, 4> Four;
    typedef OperandTile<BM, BK, threads, Shape::m % BM == 0, Shape::k % BK == 0, Shape::a_row,
                        Shape::a_col, E, As>
        TileA;
    typedef OperandTile<BN, BK, threads, Shape::n % BN == 0, Shape::k % BK == 0, Shape::b_col,
                        Shape::b_row, E, As>
        TileB;
    static_assert((Parts == 1 || Parts == cuts) && (cuts == 1 || Shape::chunk % BK == 0));
    static_assert(inner % 2 == 0 && WM % 16 == 0 && WN % 16 == 0);
    extern __shared__ __align__(128) char room[];
    const auto as = static_cast<uint32_t>(__cvta_generic_to_shared(room));
    const uint32_t bs = as + Stages * TileA::bytes;

    const auto unit = [&](int64_t u) {
        const Place place(u);
        const E* const ap = a + Shape::A::at(place.batch) + place.i0 * Shape::a_row;
        const E* const bp = b + Shape::B::at(place.batch) + place.j0 * Shape::b_col;
        const bool a_wide = aligned16(ap), b_wide = aligned16(bp);
        const int rows = Shape::m - place.i0 < BM ? int(Shape::m - place.i0) : BM;
        const int cols = Shape::n - place.j0 < BN ? int(Shape::n - place.j0) : BN;
        const int begin = place.part * run,
                  steps = all_steps - begin < run ? all_steps - begin : run;
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

#pragma unroll 1
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
                if constexpr (TileA::tf32) {
#pragma unroll
                    for (int w = 0; w < 4; w++) {
                        for (auto& words : av[step & 1]) round_word(words[w]);
                        for (auto& words : bv[step & 1]) round_word(words[w]);
                    }
                }
#pragma unroll
                for (int x = 0; x < WM / 16; x++)
#pragma unroll
                    for (int z = 0; z < WN / 8; z++)
                        mma<As>(acc[x][z], av[step & 1][x], bv[step & 1][z / 2][z % 2 * 2],
                                bv[step & 1][z / 2][z % 2 * 2 + 1]);
            }
            stage = after;
            next = next + 1 == Stages ? 0 : next + 1;
            if constexpr (keeps) {
                if ((s + 1) % cut_steps == 0 || s + 1 == steps) {
                    Four* const kept = reinterpret_cast<Four*>(parts) +
                                       int64_t(grid.block) * lots * threads + threadIdx.x;
                    if (s >= cut_steps) {
#pragma unroll
                        for (int lot = 0; lot < lots; lot++) {
                            const Four four = kept[lot * threads];
#pragma unroll
                            for (int y = 0; y < 4; y++) {
                                float& sum = acc[lot / (WN / 8)][lot % (WN / 8)][y];
                                sum = four.at[y] + sum;
                            }
                        }
                    }
                    if (s + 1 < steps) {
#pragma unroll
                        for (int lot = 0; lot < lots; lot++) {
                            Four four;
#pragma unroll
                            for (int y = 0; y < 4; y++) {
                                float& sum = acc[lot / (WN / 8)][lot % (WN / 8)][y];
                                four.at[y] = sum;
                                sum = 0;
                            }
                            kept[lot * threads] = four;
                        }
                    }
                }
            }
        }
        if constexpr (Parts > 1) {
            const auto part_of = [&](int part) {
                return reinterpret_cast<Four*>(parts) +
                       (place.tile * Parts + part) * lots * threads + threadIdx.x;
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
#pragma unroll 1
        for (int eight = 0; eight < WM / 8; eight++) {
            float line[WN / 8][2];
#pragma unroll
            for (int of = 0; of < WM / 8; of++) {  // registers have no index
                if (of != eight) continue;
#pragma unroll
                for (int z = 0; z < WN / 8; z++)
#pragma unroll
                    for (int y = 0; y < 2; y++) line[z][y] = acc[of / 2][z][of % 2 * 2 + y];
            }
            const int64_t i = place.i0 + row + 8 * eight + lane / 4;
#pragma unroll
            for (int z = 0; z < WN / 8; z++) {
                const int64_t j = place.j0 + col + 8 * z + lane % 4 * 2;
                if (i < Shape::m && j < Shape::n) put(place.batch, i, j, line[z]);
            }
        }
    };
    if constexpr (keeps) {
        for (int64_t u = grid.block; u < Place::tiles; u += grid.blocks) {
            unit(u);
            __syncthreads();  // the next tile's copies go where this one was read
        }
    } else {
        unit(grid.block);
    }
}

}  // namespace aicf
