// Lots of one tensor that the warps of a block take in turn.
#pragma once

#include "copies.cuh"

namespace aicf {

/// Lots of `Vectors` vectors of V elements a thread, of which each warp of a block takes the next
/// as soon as it has made one: a processor favours some of its warps, and those that it does not
/// would be left at the end. While a warp makes a lot its next one is copied to shared memory,
/// where each lane reads what it has copied itself. Loads to registers the assembler moves down to
/// just before their use, also where registers are free, and the warp waits for memory; copies stay
/// before an access to shared memory that follows them.
template <int V, int Vectors, class E, class R>
struct Turns {
    static constexpr uint32_t apart = 32 * V, lot = Vectors * apart;
    static constexpr uint32_t kRow = 32 * 16, kSlots = Vectors + 1;
    typedef Pack<E, V> Vector;
    static_assert(sizeof(Vector) == 16 && Vectors > 1);
    const E* const x;
    R* const y;
    const uint32_t lane, slots, ends, taken, most_taken, start, step, whole;
    // Of the lane, and where its last vector lies: one of two addresses, whose sum is `ends`.
    uint32_t i, end;

    /// Of `most` elements; `tickets` and `room` are the block's own. A thread has 16 bytes there
    /// for each vector of a lot and 16 more: the last has two places, since its copy begins before
    /// the one before it has been read. All threads of the block take part.
    __device__ __forceinline__ Turns(const E* from, R* to, uint32_t most, const Grid& grid,
                                     uint32_t (&tickets)[32], char* room)
        : x(from),
          y(to),
          lane(grid.thread() % 32),
          slots(held(shared_address(room) + grid.thread() / 32 * (kSlots * kRow) + lane * 16)),
          ends(held(2 * slots + (2 * Vectors - 1) * kRow)),
          taken(held(shared_address(tickets + lane))),
          most_taken(held(~0u >> 1)),
          start(held(grid.block * lot + lane * V)),
          step(held(grid.blocks * lot)),
          whole(most / lot * lot) {
        if (grid.thread() < 32) tickets[lane] = 0;
        __syncthreads();
        i = at(ticket());
        end = slots + (Vectors - 1) * kRow;
        if (i < whole) copy(x + i, end);
    }
    /// Makes lots until one is far for a thread of the warp, or not whole: where that lies, which
    /// is left to the caller. Lots are asked for until one lies behind the last element. What
    /// `make` says of a vector: whether it is near, and the largest of some numbers, which is to be
    /// below `below`.
    template <class Make>
    __device__ __forceinline__ uint32_t left(const Make& make, uint32_t below) {
#pragma unroll 1
        while (i < whole) {
            const uint32_t now = i, next = ticket();
            Wide<R> made[Vectors][V];
            bool near = true;
            uint32_t largest = 0;
            wait_copies<0>();
#pragma unroll
            for (int k = 0; k < Vectors; k++) {
                const Vector vector = *near_at<Vector>(k + 1 < Vectors ? slots + k * kRow : end);
                if (k + 2 == Vectors) {
                    i = at(next);
                    copy(x + (i < whole ? i : now), ends - end);
                }
                Wide<E> a[V];
#pragma unroll
                for (int j = 0; j < V; j++) a[j] = widen(vector.at[j]);
                make(near, largest, a, made[k]);
            }
            end = ends - end;
            if (__any_sync(~0u, !near || largest >= below)) return now - lane * V;
#pragma unroll
            for (int k = 0; k < Vectors; k++)
                store_dense<V>(y + now + int64_t{k} * apart, made[k], 0, V, true);
        }
        wait_copies<0>();  // before a block ends
        const uint32_t last = i - lane * V;
        i = at(ticket());
        return last;
    }

  private:
    /// The next ticket, by which at() takes lane 0's for all lanes. The others count in words of
    /// their own that nothing depends on: a branch for lane 0 alone takes more instructions, to
    /// bring the lanes together again.
    __device__ __forceinline__ uint32_t ticket() const {
        uint32_t got;
        asm volatile("atom.shared.inc.u32 %0, [%1], %2;"
                     : "=r"(got)
                     : "r"(taken), "r"(most_taken)
                     : "memory");
        return got;
    }
    __device__ __forceinline__ uint32_t at(uint32_t got) const {
        return start + __shfl_sync(~0u, got, 0) * step;
    }
    __device__ __forceinline__ void copy(const E* from, uint32_t last) const {
#pragma unroll
        for (int k = 0; k < Vectors; k++)
            copy_async<16>(near_at<Vector>(k + 1 < Vectors ? slots + k * kRow : last),
                           from + int64_t{k} * apart);
        commit_copies();
    }
};

}  // namespace aicf
