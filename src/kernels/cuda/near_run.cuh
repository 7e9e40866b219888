// What products in small tiles share (near.cuh, near_mma.cuh): how operands lie in shared memory,
// where a group of a block's threads finds its run of k, and how it brings a step of both.
#pragma once

#include "matmul.cuh"

namespace aicf {

/// A tile of one operand: `Wide` rows or columns of a product, Depth of k. Step is how far apart
/// two of them lie in memory, Next two neighbours along k. It lies in shared memory as in global
/// memory, in lines of k or across it, `Along` or `Across` elements longer than what they hold, so
/// that copies take 16 bytes. With Zeros what does not exist is 0, else lines of it are left out.
template <class E, int Wide, int Depth, int64_t Step, int64_t Next, int Along, int Across,
          bool Zeros = true>
struct NearLines {
    typedef E Element;
    static constexpr bool along = Step != 1;  // lines are of k, unless those across it are dense
    static constexpr int lines = along ? Wide : Depth, length = along ? Depth : Wide,
                         pitch = length + (along ? Along : Across), elements = lines * pitch;
    static constexpr int64_t line_step = along ? Step : Next, step = along ? Next : 1;
    static constexpr int pack = 16 / sizeof(E);
    static constexpr bool packs = step == 1 && line_step % pack == 0;
    static constexpr int per = 4 / sizeof(E);  // elements of a word
    static constexpr bool words = per == 1 || (step == 1 && line_step % per == 0);
    static_assert(pitch % pack == 0 && (Zeros || sizeof(E) == 4));

    /// By `Threads` threads, of which this is number t; `wide` and `depth` of the tile exist, all
    /// of them where it is Whole. `aligned`: lines begin at multiples of 16 bytes.
    template <int Threads, bool Whole>
    __device__ __forceinline__ static void fetch(E* to, const E* from, int t, int wide, int depth,
                                                 bool aligned) {
        constexpr int across = length / pack, at_once = Threads / across;
        static_assert(Threads % across == 0 && lines % at_once == 0);
        static_assert(lines * length % (Threads * per) == 0);
        const int some = along ? wide : depth, filled = along ? depth : wide;
        if (packs && aligned) {
            const int e = t % across * pack, first = t / across;
            const E* const x = from + first * line_step + e;
            const uint32_t y = shared_address(to + first * pitch + e);
            if (Whole || (some == lines && filled == length)) {
#pragma unroll
                for (int line = 0; line < lines; line += at_once)
                    copy_async_filled(y + int(sizeof(E)) * line * pitch, x + line * line_step, 16);
            } else {
                const int left = filled - e < 0 ? 0 : filled - e < pack ? filled - e : pack;
#pragma unroll 1
                for (int line = 0; Zeros ? line < lines : first + line < some; line += at_once) {
                    const int count = first + line < some ? left : 0;
                    copy_async_filled(y + int(sizeof(E)) * line * pitch,
                                      count ? x + line * line_step : from, int(sizeof(E)) * count);
                }
            }
        } else if constexpr (!Zeros) {
#pragma unroll 4
            for (int u = t; u < lines * length; u += Threads) {
                const int line = u / length, e = u % length;
                if (Whole || (line < some && e < filled))
                    copy_async<sizeof(E)>(to + line * pitch + e,
                                          from + line * line_step + e * step);
            }
        } else if (words && (sizeof(E) == 4 || !(reinterpret_cast<uint64_t>(from) & 3))) {
            // Copies of a word each, so that what several steps need is on its way together.
#pragma unroll 4
            for (int p = 0; p < lines * length / per; p += Threads) {
                const int u = p + t, line = u / (length / per), e = u % (length / per) * per;
                const int there = line < some ? filled - e : 0, count = Whole || there > per ? per
                                                                        : there < 0 ? 0
                                                                                    : there;
                copy_async_word(shared_address(to + line * pitch + e),
                                count ? from + line * line_step + e * step : from,
                                int(sizeof(E)) * count);
            }
        } else {
#pragma unroll 4
            for (int p = 0; p < lines * length; p += Threads) {
                const int u = p + t, line = u / length, e = u % length;
                const bool exists = Whole || (line < some && e < filled);
                to[line * pitch + e] = exists ? from[line * line_step + e * step] : E{};
            }
        }
    }
};

/// A tile BM x BN of a product, of which a group of `Threads` takes `Depth` terms of k, BK at a
/// time.
template <int BM, int BN, int BK, int Threads, int Depth, class Shape, class TileA, class TileB>
struct NearRun {
    static constexpr int k = int(Shape::k);
    static constexpr uint32_t down = uint32_t((Shape::m + BM - 1) / BM),
                              side = uint32_t((Shape::n + BN - 1) / BN),
                              tiles = uint32_t(Shape::batches) * down * side;
    static constexpr int stage = TileA::elements + TileB::elements;
    typedef typename TileA::Element E;

    uint32_t batch;
    int64_t row, col;  // of the tile's first element
    int rows, cols;    // that exist
    int depth, steps;  // terms of k, steps of BK
    const E *ap, *bp;
    bool a_aligned, b_aligned;

    __device__ __forceinline__ NearRun(uint32_t tile, int group, const E* a, const E* b) {
        const uint32_t at = tile % (down * side);
        batch = Shape::batches == 1 ? 0 : tile / (down * side);
        row = int64_t(at / side) * BM, col = int64_t(at % side) * BN;
        rows = Shape::m - row < BM ? int(Shape::m - row) : BM;
        cols = Shape::n - col < BN ? int(Shape::n - col) : BN;
        const int begin = group * Depth, end = begin + Depth < k ? begin + Depth : k;
        depth = end - begin;
        steps = depth > 0 ? (depth + BK - 1) / BK : 0;
        ap = a + Shape::A::at(batch) + row * Shape::a_row + begin * Shape::a_col;
        bp = b + Shape::B::at(batch) + col * Shape::b_col + begin * Shape::b_row;
        a_aligned = aligned16(ap), b_aligned = aligned16(bp);
    }
    /// Step s of both operands, by thread t of the group.
    __device__ __forceinline__ void fetch(E* to, int s, int t) const {
        fetch_a(to, s, t);
        fetch_b(to, s, t);
    }
    __device__ __forceinline__ int left(int s) const {
        return depth - s * BK < BK ? depth - s * BK : BK;
    }
    __device__ __forceinline__ void fetch_a(E* to, int s, int t) const {
        TileA::template fetch<Threads, k % BK == 0 && Shape::m % BM == 0>(
            to, ap + s * BK * Shape::a_col, t, rows, left(s), a_aligned);
    }
    __device__ __forceinline__ void fetch_b(E* to, int s, int t) const {
        TileB::template fetch<Threads, k % BK == 0 && Shape::n % BN == 0>(
            to + TileA::elements, bp + s * BK * Shape::b_row, t, cols, left(s), b_aligned);
    }
    /// The first steps, a group of copies each, by thread t. An operand that the kernel before does
    /// not write is read before that is done, where copies go past the first cache, which may hold
    /// what was there before; so is what read() reads, if it `reads`, and else before the product.
    /// Where all are, the kernel has not waited yet.
    template <int Steps, class Put, class Read>
    __device__ __forceinline__ void begin(E* to, int t, const Put& put, bool reads,
                                          const Read& read) const {
        bool a_early = false, b_early = false;
#if __CUDA_ARCH__ >= 900
        a_early = TileA::packs && a_aligned && !put.a_is_late();
        b_early = TileB::packs && b_aligned && !put.b_is_late();
#endif
        const bool both = a_early && b_early, late = reads && put.rest_is_late();
        if (a_early || b_early)
#pragma unroll 1
            for (int s = 0; s < Steps; s++) {
                if (s < steps && a_early) fetch_a(to + s * stage, s, t);
                if (s < steps && b_early) fetch_b(to + s * stage, s, t);
                if (both) commit_copies();
            }
        if (!late) read();
        if (both && !late) return;
        begin_kernel();
        if (late) read();
        if (both) return;
#pragma unroll 1
        for (int s = 0; s < Steps; s++) {
            if (s < steps && !a_early) fetch_a(to + s * stage, s, t);
            if (s < steps && !b_early) fetch_b(to + s * stage, s, t);
            commit_copies();
        }
    }
};

}  // namespace aicf
