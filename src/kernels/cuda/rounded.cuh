// Products by wgmma of operands in f32 that it cannot read where they lie: as words of tf32 that do
// not lie along k, or in 16 bits. Blocks first copy both operands, or B, rounded, to the workspace:
// tf32 along k, 16 bits in the lines in which the operand lies; of limbs a copy is three planes of
// bfloat16. Rounding or turning a tile in shared memory instead would cost more of its bandwidth
// than the products leave.
#pragma once

#include "wgmma.cuh"

namespace aicf {

/// How an operand is copied, as Of::As, to lines of Of::inner elements: a warp takes 4 lines of
/// 128, or where the operand's own lines are across those of the copy 32 of 16. A lane takes 16
/// elements, `side` of them side by side, of 16 bytes at most, in which Of::pitch is whole.
template <class Of>
struct Copied {
    static constexpr bool turned = Of::outer_step == 1 && Of::inner_step != 1;
    static constexpr int rows = turned ? 32 : 4, depth = 512 / rows,
                         side = turned || same_type<typename Of::As, Tf32> ? 4 : 8;
    static constexpr int64_t across = (Of::outer + rows - 1) / rows,
                             deep = (Of::inner + depth - 1) / depth,
                             tiles = Of::batches * across * deep;
    // The first ones are copied before products are made: some whole lines, or the beginnings of
    // all.
    static constexpr bool by_depth = Of::first_depth < Of::inner,
                          by_lines = Of::first_lines < Of::outer;
    static constexpr int64_t first = by_lines   ? Of::first_lines / rows * deep
                                     : by_depth ? Of::first_depth / depth * across
                                                : tiles;
    static_assert(tiles < int64_t{1} << 31 && !(by_lines && by_depth));
    static_assert(first == tiles || Of::batches == 1);
    static_assert(!by_lines || Of::first_lines % rows == 0);
    static_assert(!by_depth || Of::first_depth % depth == 0);
};

/// What a copy as As consists of.
template <class As>
struct Planes {
    typedef As Element;
    static constexpr int count = 1;
};
template <>
struct Planes<scalar::Limbs> {
    typedef Brain Element;
    static constexpr int count = 3;
};
template <class Of>
using CopyElement = typename Planes<typename Of::As>::Element;

/// The limbs of two numbers, as f32_to_limbs makes them. False where a number may be none of those
/// that are simply rounded three times: what is left of an infinity, of a NaN and of what rounds to
/// an infinity is a NaN then, and of what the first limb loses as a whole it is all.
__device__ __forceinline__ bool limbs_of_two(uint32_t (&limb)[3], float low, float high) {
    const auto lower = [](uint32_t two) { return scalar::from_bits(two << 16); };
    const auto upper = [](uint32_t two) { return scalar::from_bits(two & 0xffff0000u); };
    limb[0] = narrow_two<Brain>(low, high);
    low -= lower(limb[0]), high -= upper(limb[0]);
    limb[1] = narrow_two<Brain>(low, high);
    low -= lower(limb[1]), high -= upper(limb[1]);
    limb[2] = narrow_two<Brain>(low, high);
    return scalar::abs(low) <= scalar::abs(lower(limb[0])) &&
           scalar::abs(high) <= scalar::abs(upper(limb[0]));
}

/// V neighbours of a copy, in each plane.
template <class As, int V>
struct Copies {
    typedef Planes<As> P;
    static constexpr int words = V * int(sizeof(typename P::Element)) / 4;
    typedef Pack<uint32_t, words> Line;
    Line plane[P::count];
    /// Of the bits of an f32 each. False: of some the limbs are others.
    __device__ __forceinline__ bool set(const uint32_t (&word)[V]) {
        bool all = true;
#pragma unroll
        for (int x = 0; x < words; x++) {
            if constexpr (same_type<As, Tf32>) {
                plane[0].at[x] = word[x];  // which the copy engine rounds
            } else {
                const float low = scalar::from_bits(word[2 * x]),
                            high = scalar::from_bits(word[2 * x + 1]);
                if constexpr (same_type<As, scalar::Limbs>) {
                    uint32_t limb[3];
                    all &= limbs_of_two(limb, low, high);
#pragma unroll
                    for (int p = 0; p < 3; p++) plane[p].at[x] = limb[p];
                } else {
                    plane[0].at[x] = narrow_two<As>(low, high);
                }
            }
        }
        return all;
    }
};

/// A warp's tile of the copy of an operand.
template <class Of>
struct CopyTile {
    typedef Copied<Of> C;
    typedef CopyElement<Of> Element;
    static constexpr int side = C::side, lots = 16 / side, lanes = C::depth / side;
    static_assert(Of::pitch % side == 0);
    static constexpr int64_t plane = Of::batches * Of::outer * Of::pitch;
    int64_t line0, at0;  // of the warp's first element
    const float* from;
    Element* to;
    bool wide;  // all of it exists, and four neighbours may be read together
    __device__ __forceinline__ CopyTile(uint32_t tile, const float* all, Element* copy) {
        constexpr auto cells = uint32_t(C::across * C::deep);
        const uint32_t batch = Of::batches > 1 ? tile / cells : 0, cell = tile - batch * cells;
        constexpr auto short_axis = uint32_t(C::by_depth ? C::across : C::deep);
        const uint32_t far = cell / short_axis, near = cell % short_axis;
        line0 = int64_t(C::by_depth ? near : far) * C::rows;
        at0 = int64_t(C::by_depth ? far : near) * C::depth;
        from = all + (Of::batches > 1 ? Of::Batch::at(batch) : 0);
        to = copy + int64_t(batch) * Of::outer * Of::pitch;
        const bool whole = (Of::outer % C::rows == 0 || line0 + C::rows <= Of::outer) &&
                           (Of::inner % C::depth == 0 || at0 + C::depth <= Of::inner);
        wide = (C::turned ? Of::inner_step : Of::outer_step) % 4 == 0 &&
               (C::turned || Of::inner_step == 1) && whole && aligned16(from);
    }
    /// A lane's first line and element of it, of those of its lot `x`. Turned: its lines are four.
    __device__ __forceinline__ int64_t line(int x) const {
        const int lane = threadIdx.x % 32;
        return line0 + (C::turned ? lane % 8 * 4 : (x * 32 + lane) / lanes);
    }
    __device__ __forceinline__ int64_t at(int x) const {
        const int lane = threadIdx.x % 32;
        return at0 + (C::turned ? lane / 8 * 4 : (x * 32 + lane) % lanes * side);
    }
    __device__ __forceinline__ const float* source(int64_t line, int64_t at) const {
        return from + line * Of::outer_step + at * Of::inner_step;
    }
    __device__ __forceinline__ void read(uint32_t (&word)[lots][side]) const {
        if (!wide) return;
#pragma unroll
        for (int x = 0; x < lots; x++)
#pragma unroll
            for (int y = 0; y < side; y += 4) {
                const auto four = *reinterpret_cast<const Pack<float, 4>*>(
                    C::turned ? source(line(0), at(0) + x) : source(line(x), at(x) + y));
#pragma unroll
                for (int z = 0; z < 4; z++) word[x][y + z] = scalar::bits(four.at[z]);
            }
    }
    /// Stores `side` neighbours, one by one where their limbs are not those of most numbers.
    __device__ __forceinline__ void put(const uint32_t (&word)[side], int64_t line,
                                        int64_t at) const {
        typedef Copies<typename Of::As, side> All;
        All all;
        const bool usual = all.set(word);
        Element* const there = to + line * Of::pitch + at;
#pragma unroll
        for (int p = 0; p < Planes<typename Of::As>::count; p++)
            *reinterpret_cast<typename All::Line*>(there + p * plane) = all.plane[p];
        if constexpr (same_type<typename Of::As, scalar::Limbs>) {
            if (usual) return;
#pragma unroll 1
            for (int y = 0; y < side && at + y < Of::inner; y++) {
                const scalar::Limbs limbs = scalar::f32_to_limbs(*source(line, at + y));
#pragma unroll
                for (int p = 0; p < 3; p++) there[p * plane + y] = Brain{limbs.at[p]};
            }
        }
    }
    __device__ __forceinline__ void write(const uint32_t (&word)[lots][side]) const {
        if (wide) {
#pragma unroll
            for (int x = 0; x < lots; x++) {
                if constexpr (C::turned) {
                    const uint32_t of[4] = {word[0][x], word[1][x], word[2][x], word[3][x]};
                    put(of, line(0) + x, at(0));
                } else {
                    put(word[x], line(x), at(x));
                }
            }
            return;
        }
#pragma unroll 1
        for (int x = 0; x < lots; x++) {
            const int64_t own = line(x) + (C::turned ? x : 0), first = at(x);
            if (own >= Of::outer || first >= Of::pitch) continue;
            uint32_t of[side];
#pragma unroll
            for (int y = 0; y < side; y++)
                of[y] = first + y < Of::inner ? scalar::bits(*source(own, first + y)) : 0;
            put(of, own, first);
        }
    }
};

/// `Lots` tiles of an operand, from `tile` on and before `end`, whose loads are under way together.
template <class Of, int Lots>
__device__ __forceinline__ void copy_tiles(uint32_t tile, uint32_t end, const float* from,
                                           CopyElement<Of>* to) {
    if constexpr (Copied<Of>::tiles > 0) {
        typedef CopyTile<Of> Tile;
        uint32_t word[Lots][Tile::lots][Tile::side];
#pragma unroll
        for (int x = 0; x < Lots; x++)
            if (tile + x < end) Tile(tile + x, from, to).read(word[x]);
#pragma unroll
        for (int x = 0; x < Lots; x++)
            if (tile + x < end) Tile(tile + x, from, to).write(word[x]);
    }
}

/// Of an operand that is read where it lies.
struct Uncopied {
    typedef Tf32 As;
    static constexpr int64_t outer = 0, inner = 1, batches = 1, pitch = 1, outer_step = 1,
                             inner_step = 1, first_lines = 0, first_depth = 1;
};

/// How both operands are copied: a piece is some turns of a block, in each of which a warp has
/// `lots` tiles. Each block takes the next piece from one counter, so the first ones, as many as
/// `Blocks`, are long where there is much to do; the others, of one turn, are done at about the
/// same time. The rest is copied beside products, by warps that make none; their pieces are theirs.
template <class A, class B, int Warps, int64_t Blocks>
struct Pieces {
    static constexpr int64_t each = Warps * Blocks, all = Copied<A>::first + Copied<B>::first;
    static constexpr int lots = all >= 4 * each ? 2 : 1, turn = Warps * lots;
    static constexpr int64_t of_a = (Copied<A>::first + lots - 1) / lots * lots;
    static constexpr auto turns = uint32_t(all * 5 / 8 / (each * lots));
    static constexpr int64_t longs = turns > 1 ? Blocks : 0, in_longs = longs * turns * turn,
                             count = longs + (of_a + Copied<B>::first - in_longs + turn - 1) / turn;

    static constexpr int rest_lots = Planes<typename B::As>::count > 1 ? 1 : 2;
    static constexpr int64_t rest_of_a = (Copied<A>::tiles - Copied<A>::first + rest_lots - 1) /
                                         rest_lots * rest_lots,
                             rest = rest_of_a + Copied<B>::tiles - Copied<B>::first;
    static constexpr int rest_turn = 8;  // tiles of a piece, a few: the last ones are waited for
    static constexpr int64_t rest_count = (rest + rest_turn - 1) / rest_turn;
};

/// Copies of both operands, or of B, which the copy engine reads. First says of what rows, columns
/// and terms there are copies before products are made, 0: of all. Of `counters` the first is the
/// next piece, the second how many are copied, the third and fourth the same of the rest, the last
/// how many warps are done with all of them; the last of these leaves them at 0.
template <class A, class B, class First, int Warps, int64_t Blocks>
struct Rounded {
    typedef Pieces<A, B, Warps, Blocks> P;
    static constexpr bool elects = true;
    static constexpr int beside = P::rest > 0 ? 3 : 0;  // warps
    static constexpr int more = P::rest > 0 ? 32 : 0;   // registers of theirs
    const float *a, *b;
    CopyElement<A>* a_to;
    CopyElement<B>* b_to;
    uint32_t* counters;
    uint32_t blocks;

    /// Copies pieces until none is left. Whoever waits for others has taken none that it did not
    /// copy, so that blocks need not run together.
    __device__ __forceinline__ void copy() const {
        extern __shared__ __align__(1024) char ring_room[];
        auto* const taken = reinterpret_cast<volatile uint32_t*>(ring_room);  // before it is a ring
        if (threadIdx.x == 0) taken[0] = atomicAdd(counters, 1u);
        __syncthreads();
        uint32_t piece = taken[0], copied = 0;
        for (; piece < P::count; copied++) {
            uint32_t next = 0;  // comes while this one is copied
            if (threadIdx.x == 0) next = atomicAdd(counters, 1u);
            const bool is_long = int64_t(piece) < P::longs;
            uint32_t tile =
                (is_long ? piece * (P::turns * P::turn)
                         : uint32_t(P::in_longs) + (piece - uint32_t(P::longs)) * P::turn) +
                threadIdx.x / 32 * P::lots;
#pragma unroll 1
            for (uint32_t left = is_long ? P::turns : 1; left > 0; left--, tile += P::turn) {
                if (P::of_a > 0 && tile < P::of_a)
                    copy_tiles<A, P::lots>(tile, uint32_t(Copied<A>::first), a, a_to);
                else
                    copy_tiles<B, P::lots>(tile - uint32_t(P::of_a), uint32_t(Copied<B>::first), b,
                                           b_to);
            }
            const int place = (copied + 1) % 2;  // read in the turn before it is written again
            if (threadIdx.x == 0) taken[place] = next;
            __syncthreads();
            piece = taken[place];
        }
        // What each thread wrote is read by copy engines, of other processors too; and where
        // `taken` was this one's engine will write.
        asm volatile("fence.proxy.async;" ::: "memory");
        __syncthreads();
        if (threadIdx.x == 0 && copied > 0) add_release(counters + 1, copied);
    }
    __device__ __forceinline__ void begin() const {}
    /// Waits for the first copies, for what the copy engine reads from then on.
    __device__ __forceinline__ void operator()() const { wait(counters + 1, P::count); }
    /// And for the rest where a tile reads beyond them, up to such a row, column or term. `all`:
    /// it was waited for.
    __device__ __forceinline__ void reach(bool& all, int row, int column, int term) const {
        const bool within = P::rest == 0 || ((First::rows == 0 || row <= First::rows) &&
                                             (First::columns == 0 || column <= First::columns) &&
                                             (First::terms == 0 || term <= First::terms));
        if (within || all) return;
        all = true;
        wait(counters + 3, P::rest_count);
    }
    /// What a warp does that makes no products.
    __device__ __forceinline__ void copy_rest() const {
        for (;;) {
            uint32_t piece = 0;
            if (threadIdx.x % 32 == 0) piece = atomicAdd(counters + 2, 1u);
            piece = __shfl_sync(~0u, piece, 0);
            if (piece >= P::rest_count) break;
            uint32_t tile = piece * P::rest_turn;
            const uint32_t end =
                tile + P::rest_turn < P::rest ? tile + P::rest_turn : uint32_t(P::rest);
#pragma unroll 1
            for (; tile < end; tile += P::rest_lots) {
                if (P::rest_of_a > 0 && tile < P::rest_of_a)
                    copy_tiles<A, P::rest_lots>(uint32_t(Copied<A>::first) + tile,
                                                uint32_t(Copied<A>::tiles), a, a_to);
                else
                    copy_tiles<B, P::rest_lots>(
                        uint32_t(Copied<B>::first) + (tile - uint32_t(P::rest_of_a)),
                        uint32_t(Copied<B>::tiles), b, b_to);
            }
            asm volatile("fence.proxy.async;" ::: "memory");
            __syncwarp();
            if (threadIdx.x % 32 == 0) add_release(counters + 3, 1u);
        }
        if (threadIdx.x % 32 == 0) end();
    }
    /// Of a warp that takes and waits for nothing more.
    __device__ __forceinline__ void end() const {
        if (atomicAdd(counters + 4, 1u) != (1 + beside) * blocks - 1) return;
        for (int x = 0; x < 5; x++) clear_counter(counters + x);
    }

  private:
    __device__ __forceinline__ static void wait(const uint32_t* counter, int64_t count) {
        wait_count(counter, uint32_t(count));
        asm volatile("fence.proxy.async;" ::: "memory");
    }
};

}  // namespace aicf
