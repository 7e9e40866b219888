// How the next rows of a team, a warp or some of its lanes, come while it is at one: to registers,
// or by the copy engine to shared memory, where room for more of them does not cost registers.
#pragma once

#include "copy_engine.cuh"
#include "nn.cuh"

namespace aicf {

/// Yes or No.
template <bool First, class Yes, class No>
struct OneOf {
    typedef Yes type;
};
template <class Yes, class No>
struct OneOf<false, Yes, No> {
    typedef No type;
};

/// One row, in registers. Of row = make(r): row.across<V, Together>(i) reads what elements i to
/// i + V - 1 are made from.
template <class Team, class Made, bool Together>
struct RowsToRegisters {
    typedef typename Team::Row Row;
    static constexpr int ahead = 1, V = Row::side, pieces = Row::turns * Row::lines;
    __device__ __forceinline__ static constexpr int bytes(int) { return 0; }
    typedef typename Made::template Some<V> Some;
    Some next[pieces];

    __device__ __forceinline__ explicit RowsToRegisters(char*) {}
    template <int Apart, bool Whole, class Make, class Number>
    __device__ __forceinline__ void ask(const Make& make, Number r, uint32_t) {
        const Made row = make(r);
        each_piece<Row>([&](int k, int i) { next[k] = row.template across<V, Together>(i); });
    }
    __device__ __forceinline__ void ask_beside(const Made&) {}
    __device__ __forceinline__ void wait(uint32_t) const {}
    __device__ __forceinline__ Some get(const Made&, uint32_t, int k, int) const { return next[k]; }
    __device__ __forceinline__ void done() {}
};

/// `Slots` rows of N, in shared memory; each warp has its own. Of row = make(r): row.each_copied
/// calls body(x, size, before) for what is copied, of whose elements of `size` bytes others take
/// `before` bytes ahead of it, and Made::copied bytes in all; row.beside() reads what there is one
/// of for all of a row; row.with<V>(place, beside) is what elements are made from that lie at
/// place(size, before).
/// `Together`: rows begin at multiples of 16 bytes; else threads copy, each what it will read.
template <class Team, class Made, int N, int Slots, bool Together>
struct RowsToShared {
    typedef typename Team::Row Row;
    static constexpr int ahead = Slots, V = Row::side, lanes = Team::lanes, rows = 32 / lanes,
                         slot_bytes = rows * N * Made::copied;
    static_assert(slot_bytes % 16 == 0 && Team::words == 0);
    __device__ __forceinline__ static constexpr int bytes(int threads) {
        return threads / 32 * (Slots * slot_bytes + (8 * Slots + 15) / 16 * 16);
    }
    typedef typename Made::template Some<V> Some;
    typename Made::Beside next = {}, beside = {};
    char* const slots;
    const uint32_t barriers;

    __device__ __forceinline__ explicit RowsToShared(char* shared)
        : slots(shared + int(threadIdx.x) / 32 * Slots * slot_bytes),
          barriers(shared_address(shared) + int(blockDim.x) / 32 * Slots * slot_bytes +
                   int(threadIdx.x) / 32 * ((8 * Slots + 15) / 16 * 16)) {
        if (threadIdx.x % 32 == 0) {
            for (int s = 0; s < Slots; s++) init_barrier(barriers + 8 * s, 1);
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
        __syncwarp();
    }
    /// For row r of this team, its `number`-th, whose slot all of the warp are done with. Those of
    /// a warp's teams lie `Apart` rows apart; `Whole`: they all exist.
    template <int Apart, bool Whole, class Make, class Number>
    __device__ __forceinline__ void ask(const Make& make, Number r, uint32_t number) {
        const int own = rows == 1 ? 0 : int(threadIdx.x) % 32 / lanes;
        char* const slot = slots + number % Slots * slot_bytes;
        const uint32_t barrier = barriers + number % Slots * 8;
        if constexpr (!Together) {
            const Made row = make(r);
            each_piece<Row>([&](int, int i) {
                row.each_copied([&](const void* x, int size, int before) {
                    auto* const to = reinterpret_cast<uint16_t*>(at(slot, own, i, size, before));
                    const auto* const from = static_cast<const uint16_t*>(x) + i * size / 2;
#pragma unroll
                    for (int j = 0; j < V * size / 2; j++) to[j] = from[j];
                });
            });
        }
        if (!elected()) return;
        if constexpr (!Together) {
            arrive_at<1>(barrier, 0);
            return;
        }
        arrive_expecting(barrier, slot_bytes);
        constexpr bool once = rows == 1 || (Apart == 1 && Whole && Made::in_line);
#pragma unroll
        for (int k = 0; k < (once ? 1 : rows); k++)
            make(r + (k - own) * Apart).each_copied([&](const void* x, int size, int before) {
                copy_kept_bytes(shared_address(at(slot, k, 0, size, before)), x,
                                (once ? rows : 1) * N * size, barrier);
            });
    }
    /// Of the row behind the current one.
    __device__ __forceinline__ void ask_beside(const Made& row) { next = row.beside(); }
    /// For the next row.
    __device__ __forceinline__ void wait(uint32_t number) {
        beside = next;
        wait_barrier(barriers + number % Slots * 8, number / Slots % 2);
    }
    __device__ __forceinline__ Some get(const Made& row, uint32_t number, int, int i) const {
        const int own = rows == 1 ? 0 : int(threadIdx.x) % 32 / lanes;
        char* const slot = slots + number % Slots * slot_bytes;
        return row.template with<V>(
            [&](int size, int before) { return at(slot, own, i, size, before); }, beside);
    }
    /// With the row that has come.
    __device__ __forceinline__ void done() const { __syncwarp(); }

  private:
    __device__ __forceinline__ static char* at(char* slot, int own, int i, int size, int before) {
        return slot + before * rows * N + (own * N + i) * size;
    }
};

}  // namespace aicf
