// Products by wgmma of operands in f32 that it cannot read where they lie: as words of tf32 that do
// not lie along k, or in 16 bits. Blocks first copy both operands, or B, along k, in 16 bits
// rounded, to the workspace; of limbs a copy is three planes of bfloat16. Rounding or turning a
// tile in shared memory instead would cost more of its bandwidth than the products leave.
#pragma once

#include "wgmma.cuh"

namespace aicf {

/// How an operand is copied, as Of::As: a warp takes 4 rows by 128 of k, or where the rows' axis
/// lies side by side 32 rows by 16 of k, 16 words a lane.
template <class Of>
struct Copied {
    static constexpr bool turned = Of::own_step == 1 && Of::k_step != 1;
    static constexpr int rows = turned ? 32 : 4, depth = turned ? 16 : 128;
    static constexpr int64_t across = (Of::own + rows - 1) / rows,
                             deep = (Of::k + depth - 1) / depth,
                             tiles = Of::batches * across * deep;
};

/// Four words that begin at `from`, `step` apart, of which `count` exist; the rest become zeros.
__device__ __forceinline__ void read_words(uint32_t (&to)[4], const float* from, int64_t step,
                                           int64_t count, bool wide) {
    if (wide && count >= 4) {
        const auto four = *reinterpret_cast<const Pack<float, 4>*>(from);
#pragma unroll
        for (int y = 0; y < 4; y++) to[y] = scalar::bits(four.at[y]);
    } else {
#pragma unroll
        for (int y = 0; y < 4; y++) to[y] = y < count ? scalar::bits(from[y * step]) : 0;
    }
}

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

/// Four neighbours of a copy, in each plane, of the bits of an f32 each.
template <class As>
struct FourCopies {
    Pack<typename Planes<As>::Element, 4> plane[Planes<As>::count];
    __device__ __forceinline__ void set(int y, uint32_t word) {
        if constexpr (same_type<As, Tf32>) {
            plane[0].at[y] = Tf32{word};  // which the copy engine rounds
        } else if constexpr (same_type<As, scalar::Limbs>) {
            const scalar::Limbs limbs = scalar::f32_to_limbs(scalar::from_bits(word));
#pragma unroll
            for (int x = 0; x < 3; x++) plane[x].at[y] = Brain{limbs.at[x]};
        } else {
            plane[0].at[y] = narrow<As>(scalar::from_bits(word));
        }
    }
};

/// A warp's tile of the copy of an operand.
template <class Of>
struct CopyTile {
    typedef Copied<Of> C;
    int64_t batch, i, k;  // of the lane's first element
    __device__ __forceinline__ explicit CopyTile(int64_t tile) {
        const int lane = threadIdx.x % 32;
        batch = tile / (C::across * C::deep);
        const auto cell = static_cast<uint32_t>(tile % (C::across * C::deep));
        i = int64_t(cell / uint32_t(C::deep)) * C::rows + (C::turned ? lane % 8 * 4 : 0);
        k = int64_t(cell % uint32_t(C::deep)) * C::depth + (C::turned ? lane / 8 : lane) * 4;
    }
    __device__ __forceinline__ void read(uint32_t (&word)[4][4], const float* from) const {
        constexpr int64_t side_step = C::turned ? Of::own_step : Of::k_step,
                          other_step = C::turned ? Of::k_step : Of::own_step;
        const float* const first = from + Of::Batch::at(batch);
        const bool wide = side_step == 1 && other_step % 4 == 0 && aligned16(first);
#pragma unroll
        for (int x = 0; x < 4; x++) {  // of the axis that does not lie side by side
            const int64_t row = C::turned ? i : i + x, deep = C::turned ? k + x : k;
            const int64_t left =
                C::turned ? (deep < Of::k ? Of::own - row : 0) : (row < Of::own ? Of::k - deep : 0);
            read_words(word[x], first + row * Of::own_step + deep * Of::k_step, side_step, left,
                       wide);
        }
    }
    __device__ __forceinline__ void write(const uint32_t (&word)[4][4], CopyElement<Of>* to) const {
        constexpr int64_t plane = Of::batches * Of::own * Of::pitch;
        CopyElement<Of>* const at = to + (batch * Of::own + i) * Of::pitch + k;
#pragma unroll
        for (int x = 0; x < 4; x++) {
            if (i + x >= Of::own || k >= Of::pitch) continue;
            FourCopies<typename Of::As> four;
#pragma unroll
            for (int y = 0; y < 4; y++) four.set(y, C::turned ? word[y][x] : word[x][y]);
#pragma unroll
            for (int p = 0; p < Planes<typename Of::As>::count; p++)
                *reinterpret_cast<Pack<CopyElement<Of>, 4>*>(at + p * plane + x * Of::pitch) =
                    four.plane[p];
        }
    }
};

/// `Lots` tiles of one operand, from `tile` on, on their way through registers.
template <class Of, int Lots>
__device__ __forceinline__ void read_tiles(uint32_t (&word)[Lots][4][4], const float* from,
                                           int64_t tile) {
    if constexpr (Copied<Of>::tiles > 0) {
#pragma unroll
        for (int x = 0; x < Lots; x++)
            if (tile + x < Copied<Of>::tiles) CopyTile<Of>(tile + x).read(word[x], from);
    }
}
template <class Of, int Lots>
__device__ __forceinline__ void write_tiles(const uint32_t (&word)[Lots][4][4], CopyElement<Of>* to,
                                            int64_t tile) {
    if constexpr (Copied<Of>::tiles > 0) {
#pragma unroll
        for (int x = 0; x < Lots; x++)
            if (tile + x < Copied<Of>::tiles) CopyTile<Of>(tile + x).write(word[x], to);
    }
}

/// Of an operand that is read where it lies.
struct Uncopied {
    struct Batch {
        __device__ __forceinline__ static int64_t at(int64_t) { return 0; }
    };
    typedef Tf32 As;
    static constexpr int64_t k = 1, own = 0, batches = 1, pitch = 1, k_step = 1, own_step = 1;
};

/// Waits until all pieces are copied, for what the copy engine reads from then on. Of `counters`
/// the first is the next piece, the second how many are copied, the third how many blocks know it;
/// the last of these leaves them at 0.
template <int64_t Count>
struct Rounded {
    static constexpr bool elects = false;  // which would cost registers that there are not
    __device__ __forceinline__ void begin() const {}
    uint32_t* counters;
    uint32_t blocks;
    __device__ __forceinline__ void operator()() const {
        wait_count(counters + 1, uint32_t(Count));
        asm volatile("fence.proxy.async;" ::: "memory");
        if (atomicAdd(counters + 2, 1u) != blocks - 1) return;
        for (int x = 0; x < 3; x++) clear_counter(counters + x);
    }
};

/// How both operands are copied: a piece is a tile or two of every warp. `Warps` and `Blocks` at
/// least.
template <class A, class B, int Warps, int Blocks>
struct Pieces {
    static constexpr int64_t all = Copied<A>::tiles + Copied<B>::tiles,
                             each = int64_t(Warps) * Blocks;
    static constexpr int lots = all >= 8 * each ? 2 : 1;
    static constexpr int64_t a_lots = (Copied<A>::tiles + lots - 1) / lots,
                             b_lots = (Copied<B>::tiles + lots - 1) / lots,
                             count = (a_lots + b_lots + Warps - 1) / Warps;
};

/// Copies pieces until none is left, the loads of the next one on their way before one is written.
/// Whoever waits for others has taken none that it did not copy, so that blocks need not run
/// together.
template <class A, class B, int Warps, int Blocks>
__device__ __forceinline__ void round_operands(const float* a, const float* b, CopyElement<A>* a_to,
                                               CopyElement<B>* b_to, uint32_t* counters) {
    typedef Pieces<A, B, Warps, Blocks> P;
    extern __shared__ __align__(1024) char ring_room[];
    auto* const taken = reinterpret_cast<volatile uint32_t*>(ring_room);  // before it is a ring
    uint32_t word[2][P::lots][4][4];
    const auto lot_of = [&](uint32_t piece) { return int64_t(piece) * Warps + threadIdx.x / 32; };
    const auto read = [&](uint32_t (&to)[P::lots][4][4], uint32_t piece) {
        const int64_t lot = lot_of(piece);
        if (lot < P::a_lots)
            read_tiles<A>(to, a, lot * P::lots);
        else if (lot < P::a_lots + P::b_lots)
            read_tiles<B>(to, b, (lot - P::a_lots) * P::lots);
    };
    const auto write = [&](const uint32_t (&from)[P::lots][4][4], uint32_t piece) {
        const int64_t lot = lot_of(piece);
        if (lot < P::a_lots)
            write_tiles<A>(from, a_to, lot * P::lots);
        else if (lot < P::a_lots + P::b_lots)
            write_tiles<B>(from, b_to, (lot - P::a_lots) * P::lots);
    };
    // A place of `taken` is read in the turn before it is written again.
    const auto take = [&](int place) {
        if (threadIdx.x == 0) taken[place] = atomicAdd(counters, 1u);
        __syncthreads();
        return taken[place];
    };
    uint32_t now = take(0), copied = 0;
    if (now < P::count) {
        read(word[0], now);
        uint32_t next = take(1);
        int place = 2;
        const auto turn = [&](uint32_t (&these)[P::lots][4][4], uint32_t (&those)[P::lots][4][4]) {
            uint32_t after = 0;  // comes while these are written
            if (threadIdx.x == 0) after = atomicAdd(counters, 1u);
            if (next < P::count) read(those, next);
            write(these, now);
            if (threadIdx.x == 0) taken[place] = after;
            __syncthreads();
            now = next;
            next = taken[place];
            place = place == 2 ? 0 : place + 1;
            copied++;
        };
        for (;;) {
            turn(word[0], word[1]);
            if (now >= P::count) break;
            turn(word[1], word[0]);
            if (now >= P::count) break;
        }
    }
    // What each thread wrote is read by copy engines, of other processors too; and where `taken`
    // was this one's engine will write.
    asm volatile("fence.proxy.async;" ::: "memory");
    __syncthreads();
    if (threadIdx.x == 0 && copied > 0) add_release(counters + 1, copied);
}

}  // namespace aicf
