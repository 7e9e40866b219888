// Products of which one side has few rows, at most 8: a warp brings its rows of the other side, the
// wide one, through a ring of its own in shared memory, each element once. Thin says which
// operand is which: T thin rows, the strides of both, and by put() where a result belongs.
#pragma once

#include "mma.cuh"

namespace aicf {

/// Adds the results of one or several rounds of cuts, a warp's of the block's `Slices` in each, in
/// ascending order: `sums` is the warp's of one round. Those of `Kept` rounds are `held` before the
/// warps wait for one another, so that the rings of those that are ahead keep running. In the warp
/// of slice 0 `total` has the sum of all behind the last round.
template <int Slices, int Kept, int Rounds, int Count, class A>
__device__ __forceinline__ void add_slices(A (&total)[Count], const A (&sums)[Count], A* held,
                                           int slice, int round, int cuts) {
    const int lane = threadIdx.x % 32, first = round - round % Kept;
    const auto add = [&](const A(&one)[Count], bool start) {
#pragma unroll
        for (int x = 0; x < Count; x++) total[x] = start ? one[x] : total[x] + one[x];
    };
    if constexpr (Slices == 1) return add(sums, round == 0);
    A* const own = held + (round % Kept * Slices + slice) * Count * 32;
#pragma unroll
    for (int x = 0; x < Count; x++) own[x * 32 + lane] = sums[x];
    if (round % Kept < Kept - 1 && round < Rounds - 1) return;
    __syncthreads();
    if (slice == 0) {
        const int left = cuts - first * Slices, count = left < Kept * Slices ? left : Kept * Slices;
        for (int s = 0; s < count; s++) {
            A one[Count];
#pragma unroll
            for (int x = 0; x < Count; x++) one[x] = held[(s * Count + x) * 32 + lane];
            add(one, first + s == 0);
        }
    }
    __syncthreads();
}

/// A stage of a warp's ring: of 32, 16 or 8 wide rows, and of the thin ones behind them, some
/// elements of k. Wide lines are 128 bytes along k, or where the rows' axis lies side by side all
/// rows of one k; cells of 16 bytes are permuted so that what lanes read together meets no bank
/// twice.
template <class Thin, class E>
struct ThinStage {
    static constexpr int per = 16 / int(sizeof(E));  // elements of a cell
    static constexpr int lines = int(Thin::lines);
    static constexpr int line = Thin::along_k ? 128 : lines * int(sizeof(E));
    static constexpr int depth = Thin::along_k ? 8 * per : 32;  // of k
    static constexpr int thin_line = depth * int(sizeof(E));
    static constexpr int wide_lines = Thin::along_k ? lines : depth;
    static constexpr int wide_bytes = wide_lines * line,
                         bytes = wide_bytes + int(Thin::rows) * thin_line;
    static_assert(lines == 32 || lines == 16 || (lines == 8 && Thin::along_k));
    static_assert(line == 64 || line == 128);
    static_assert(thin_line == 64 || thin_line == 128);

    template <int Line>
    __device__ __forceinline__ static uint32_t cell(int i, int c) {
        return i * Line + 16 * (c ^ (Line == 128 ? i % 8 : i / 2 % 4));
    }
    __device__ __forceinline__ static uint32_t wide_at(int i, int c) { return cell<line>(i, c); }
    __device__ __forceinline__ static uint32_t thin_at(int t, int c) {
        return wide_bytes + cell<thin_line>(t, c);
    }

    /// A cell to shared memory: at once where it lies together, else element by element, of which
    /// some exist.
    __device__ __forceinline__ static void bring(uint32_t to, const E* from, int64_t step,
                                                 bool together, int64_t exist = per) {
        if (together) {
            return copy_async_filled(to, from, 16);
        }
        union {
            E each[per];
            uint32_t word[4];
        } cell;
#pragma unroll
        for (int x = 0; x < per; x++) cell.each[x] = from[(x < exist ? x : exist - 1) * step];
        asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(cell.word[0]),
                     "r"(cell.word[1]), "r"(cell.word[2]), "r"(cell.word[3])
                     : "memory");
    }

    /// Starts the copies of [k, k + depth), of which what lies before `end` exists, of wide rows
    /// from w0 on, thin ones, or both. Rows that do not exist are some that do.
    __device__ __forceinline__ static void fetch(uint32_t to, const E* wide, const E* thin,
                                                 int64_t w0, int k, int end, bool packs,
                                                 bool thin_packs, bool of_wide, bool of_thin) {
        constexpr int cells = line / 16, thin_cells = thin_line / 16;
        const int lane = threadIdx.x % 32;
        if (of_wide) {
#pragma unroll
            for (int p = 0; p < wide_lines * cells / 32; p++) {
                const int c = lane % cells, i = lane / cells + p * (32 / cells);
                if constexpr (Thin::along_k) {
                    const int64_t w = w0 + i < Thin::wide ? w0 + i : Thin::wide - 1;
                    if (k + c * per < end)
                        bring(to + wide_at(i, c), wide + w * Thin::wide_step + k + c * per, 1,
                              packs);
                } else {
                    const int64_t w = w0 + c * per < Thin::wide ? w0 + c * per : 0;
                    if (k + i < end)
                        bring(to + wide_at(i, c), wide + (k + i) * Thin::wide_step + w, 1, packs,
                              Thin::wide - w);
                }
            }
        }
        if (!of_thin) return;
#pragma unroll
        for (int x = lane; x < int(Thin::rows) * thin_cells; x += 32) {
            const int t = x / thin_cells, c = x % thin_cells;
            if (k + c * per < end)
                bring(to + thin_at(t, c),
                      thin + t * Thin::thin_row + (k + c * per) * Thin::thin_col, Thin::thin_col,
                      thin_packs);
        }
    }
};

/// What the blocks of a thin product do: `Groups` times the rows of a stage each, of which `Slices`
/// warps take one cut of k at a time. multiply(sums, stage, depth) adds `depth` of k to a warp's
/// sums, finish(batch, w0, total) takes those of all cuts.
template <class Thin, int Groups, int Slices, int Stages, int Count, class Shape, class A, class E,
          class Multiply, class Finish>
__device__ __forceinline__ void each_thin(const Grid& grid, const E* thin, const E* wide,
                                          bool wide_is_late, const Multiply& multiply,
                                          const Finish& finish) {
    typedef ThinStage<Thin, E> Stage;
    constexpr int64_t lines = Thin::lines;
    constexpr int64_t blocks_of = (Thin::wide + lines * Groups - 1) / (lines * Groups);
    constexpr int cut = int(Shape::chunk < Shape::k ? Shape::chunk : Shape::k);
    constexpr int cuts = int((Shape::k + cut - 1) / cut), last = int(Shape::k) - (cuts - 1) * cut;
    constexpr int rounds = (cuts + Slices - 1) / Slices;
    constexpr auto steps_of = [](int length) { return (length + Stage::depth - 1) / Stage::depth; };
    static_assert(Shape::k % (2 * Stage::per) == 0 && cut % Stage::depth % (2 * Stage::per) == 0);
    extern __shared__ __align__(128) char thin_room[];
    // Sums of as many rounds as 8 KiB hold, of all groups.
    constexpr int round_bytes = Groups * Slices * Count * 32 * int(sizeof(A));
    constexpr int room_of = 8192 / round_bytes > 1 ? 8192 / round_bytes : 1;
    constexpr int kept = room_of < rounds ? room_of : rounds;
    __shared__ A held[Groups][kept * Slices * Count * 32];
    const int warp = threadIdx.x / 32, group = warp / Slices, slice = warp % Slices;
    const auto room =
        static_cast<uint32_t>(__cvta_generic_to_shared(thin_room)) + warp * (Stages * Stage::bytes);
    // Of the warp's cuts, one a round; the last of all may be shorter.
    int all = 0;
#pragma unroll
    for (int round = 0; round < rounds; round++) {
        const int mine = round * Slices + slice;
        if (mine < cuts) all += steps_of(mine == cuts - 1 ? last : cut);
    }
    for (int64_t u = grid.block; u < Shape::batches * blocks_of; u += grid.blocks) {
        const int64_t batch = u / blocks_of, w0 = (u % blocks_of * Groups + group) * lines;
        const E* const tp = thin + Thin::thin_at(batch);
        const E* const wp = wide + Thin::wide_at(batch);
        const bool packs = Thin::packs && aligned16(wp);
        const bool thin_packs = Thin::thin_packs && aligned16(tp);
        // Of the wide operand, the thin one, or both.
        const auto fetch = [&](int s, bool of_wide, bool of_thin) {
            if (s >= all) return;
            const int mine = s / steps_of(cut) * Slices + slice, begin = mine * cut;
            const int end = mine == cuts - 1 ? int(Shape::k) : begin + cut;
            const auto bring = [&](bool wide_too, bool thin_too) {
                Stage::fetch(room + s % Stages * Stage::bytes, wp, tp, w0,
                             begin + s % steps_of(cut) * Stage::depth, end, packs, thin_packs,
                             wide_too, thin_too);
            };
            if constexpr (!Thin::begins) return bring(true, true);
            if (of_wide) bring(true, false);
            if (of_thin) bring(false, true);
        };
        __syncwarp();
        // The first stages of a right operand that the kernel before does not write come before
        // that is done: by copies that go past the first cache, which may hold what was there
        // before.
        const bool early = Thin::begins && packs && !wide_is_late && u == grid.block;
        if (early) {
            for (int s = 0; s < Stages - 1; s++) {
                fetch(s, true, false);
                commit_copies();
            }
        }
        if (Thin::begins && u == grid.block) begin_kernel();
        for (int s = 0; s < Stages - 1; s++) {
            fetch(s, !early, true);
            if (!early) commit_copies();
        }
        if (early) commit_copies();
        A total[Count];
        int s = 0;
        for (int round = 0; round < rounds; round++) {
            const int mine = round * Slices + slice;
            const int length = mine < cuts - 1 ? cut : mine == cuts - 1 ? last : 0;
            A sums[Count] = {};
            for (int k = 0; k < length; k += Stage::depth, s++) {
                if (early && s == 0)
                    wait_copies<0>();
                else
                    wait_copies<Stages - 2>();
                __syncwarp();
                fetch(s + Stages - 1, true, true);
                commit_copies();
                const int left = length - k;
                multiply(sums, room + s % Stages * Stage::bytes,
                         left < Stage::depth ? left : Stage::depth);
            }
            add_slices<Slices, kept, rounds>(total, sums, held[group], slice, round, cuts);
        }
        if (slice == 0) finish(batch, w0, total);
    }
}

/// In the order mma16(c) of 9.0, or mma8(c) where As is Tf32.
template <class Thin, int Groups, int Slices, int Stages, class Shape, class E, class Put>
__device__ __forceinline__ void gemm_thin_mma(const Grid& grid, const Put& put, const E* thin,
                                              const E* wide) {
    typedef ThinStage<Thin, E> Stage;
    typedef typename Shape::As As;
    constexpr bool tf32 = same_type<As, Tf32>;
    static_assert(Thin::along_k || !tf32);
    const int lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    constexpr int tiles = Stage::lines / 16, count = 4 * tiles;
    const auto multiply = [&](float (&sums)[count], uint32_t stage, int depth) {
        float (&acc)[tiles][4] = reinterpret_cast<float (&)[tiles][4]>(sums);
        const auto step = [&](int s, uint32_t b0, uint32_t b1) {
            if (2 * s * Stage::per >= depth) return;
#pragma unroll
            for (int t = 0; t < tiles; t++) {
                uint32_t a[4];
                if constexpr (Thin::along_k)
                    load_matrices<false>(
                        a, stage + Stage::wide_at(16 * t + lane % 16, 2 * s + lane / 16));
                else
                    load_matrices<true>(a, stage + Stage::wide_at(16 * s + lane % 8 + lane / 16 * 8,
                                                                  2 * t + lane / 8 % 2));
                if constexpr (tf32) {
#pragma unroll
                    for (int x = 0; x < 4; x++) round_word(a[x]);
                }
                mma<As>(acc[t], a, b0, b1);
            }
        };
#pragma unroll
        for (int s = 0; s < Stage::thin_line / 32; s += 2) {
            const int t = lane % 8 < Thin::rows ? lane % 8 : int(Thin::rows) - 1;
            uint32_t b[4];
            load_matrices<false>(b, stage + Stage::thin_at(t, 2 * s + lane / 8));
            if constexpr (tf32) {
#pragma unroll
                for (int x = 0; x < 4; x++) round_word(b[x]);
            }
            step(s, b[0], b[1]);
            step(s + 1, b[2], b[3]);
        }
    };
    const auto finish = [&](int64_t batch, int64_t w0, const float (&total)[count]) {
#pragma unroll
        for (int x = 0; x < count; x++) {
            const int64_t w = w0 + 16 * (x / 4) + g + 8 * (x / 2 % 2);
            const int t = 2 * q + x % 2;
            const float one[1] = {total[x]};
            if (w < Thin::wide && t < Thin::rows) Thin::put(put, batch, t, w, one);
        }
    };
    each_thin<Thin, Groups, Slices, Stages, count, Shape, float>(grid, thin, wide, put.b_is_late(),
                                                                 multiply, finish);
}

/// In the order chain(c): a lane takes one wide row.
template <class Thin, int Groups, int Slices, int Stages, class Shape, class Put>
__device__ __forceinline__ void gemm_thin_chain(const Grid& grid, const Put& put, const float* thin,
                                                const float* wide) {
    typedef ThinStage<Thin, float> Stage;
    constexpr int rows = int(Thin::rows);
    const int lane = threadIdx.x % 32;
    const auto read = [](float (&to)[4], uint32_t from) {
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(to[0]), "=f"(to[1]), "=f"(to[2]), "=f"(to[3])
                     : "r"(from)
                     : "memory");
    };
    const auto multiply = [&](float (&sums)[rows], uint32_t stage, int depth) {
#pragma unroll
        for (int c = 0; c < Stage::depth / 4; c++) {
            if (4 * c >= depth) return;
            float of_wide[4], of_thin[4];
            const int own = lane % Stage::lines;
            if constexpr (Thin::along_k) {
                read(of_wide, stage + Stage::wide_at(own, c));
            } else {
#pragma unroll
                for (int x = 0; x < 4; x++)
                    of_wide[x] = scalar::from_bits(
                        load_word(stage + Stage::wide_at(4 * c + x, own / 4) + own % 4 * 4));
            }
#pragma unroll
            for (int t = 0; t < rows; t++) {
                read(of_thin, stage + Stage::thin_at(t, c));
#pragma unroll
                for (int x = 0; x < 4; x++) sums[t] = scalar::fma(of_thin[x], of_wide[x], sums[t]);
            }
        }
    };
    const auto finish = [&](int64_t batch, int64_t w0, const float (&total)[rows]) {
#pragma unroll
        for (int t = 0; t < rows; t++) {
            const float one[1] = {total[t]};
            if (lane < Stage::lines && w0 + lane < Thin::wide)
                Thin::put(put, batch, t, w0 + lane, one);
        }
    };
    each_thin<Thin, Groups, Slices, Stages, rows, Shape, float>(grid, thin, wide, put.b_is_late(),
                                                                multiply, finish);
}

}  // namespace aicf
