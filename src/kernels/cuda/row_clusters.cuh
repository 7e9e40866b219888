// What the blocks of a cluster that share rows tell each other.
#pragma once

#include "copy_engine.cuh"

namespace aicf {

/// Two numbers to the shared memory of another block of the cluster, whose barrier counts their
/// bytes.
__device__ __forceinline__ void send(uint32_t to, const Pack<float, 2>& two, uint32_t barrier) {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(
            to),
        "f"(two.at[0]), "f"(two.at[1]), "r"(barrier)
        : "memory");
}

/// What each warp of the blocks of a cluster tells all others of a row, `Count` numbers, none of
/// which waits before it needs what the others told. `Places` take turns, each with a barrier. Of
/// two: who tells of a third row has waited for what all told of the second, so that none still
/// reads of the first. Of four a warp may tell of a row before it asks for the one before it.
template <int Warps, int Blocks, int Count, int Places = 2>
struct RowExchange {
    static_assert((Count % 2 == 0 && Count <= 64) || Count == 1);
    static_assert((Blocks & (Blocks - 1)) == 0);
    static constexpr int numbers = Warps * Blocks * Count, bytes = Places * (4 * numbers + 8);
    char* room;  // of so many bytes

    /// Makes the barriers, before any block of the cluster tells another.
    __device__ __forceinline__ void begin() const {
        if (threadIdx.x == 0)
            for (uint32_t place = 0; place < Places; place++) init_barrier(barrier(place), Warps);
    }
    /// Of the warp among those of all blocks.
    __device__ __forceinline__ static int warp() { return rank() * Warps + int(threadIdx.x / 32); }
    __device__ __forceinline__ float* all(uint32_t turn) const {
        return reinterpret_cast<float*>(room) + turn % Places * numbers;
    }
    /// The warp's own numbers, which some lane writes.
    __device__ __forceinline__ float* own(uint32_t turn) const {
        return all(turn) + warp() * Count;
    }
    /// Tells the others the warp's own.
    __device__ __forceinline__ void tell(uint32_t turn) const {
        constexpr int parts = Count == 1 ? 1 : Count / 2;
        const int lane = threadIdx.x % 32;
        __syncwarp();
        if constexpr (Blocks > 1)
            if (lane < parts) send_part(own(turn) + 2 * lane, barrier(turn));
        if (lane != 0) return;
        if constexpr (Blocks > 1)
            arrive_expecting(barrier(turn), 4 * Count * (Blocks - 1));
        else
            arrive_at<1>(barrier(turn), 0);
    }
    /// Until all have told. It lies in this block's shared memory, which an acquire of the block's
    /// scope orders; one of the cluster's would empty the first cache, too.
    __device__ __forceinline__ const float* told(uint32_t turn) const {
        wait_barrier(barrier(turn), turn / Places % 2);
        return all(turn);
    }

    __device__ __forceinline__ static int rank() {
        return Blocks > 1 ? int(blockIdx.x % Blocks) : 0;
    }
    __device__ __forceinline__ static bool leads() { return threadIdx.x == 0 && rank() == 0; }

  private:
    __device__ __forceinline__ uint32_t barrier(uint32_t turn) const {
        return shared_address(room) + 4 * Places * numbers + turn % Places * 8;
    }
    /// One number, or two, to where they lie in the other blocks.
    __device__ __forceinline__ static void send_part(const float* part, uint32_t barrier) {
        const uint32_t from = shared_address(part), rank = RowExchange::rank();
#pragma unroll
        for (uint32_t other = 1; other < Blocks; other++) {
            const uint32_t there = rank ^ other, to = address_in(from, there);
            if constexpr (Count == 1)
                send(to, scalar::bits(*part), address_in(barrier, there));
            else
                send(to, *reinterpret_cast<const Pack<float, 2>*>(part),
                     address_in(barrier, there));
        }
    }
};

/// Behind it all blocks of a cluster have made their barriers.
template <int Blocks>
__device__ __forceinline__ void barriers_made() {
    if constexpr (Blocks > 1) {
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        sync_cluster();
    } else {
        __syncthreads();
    }
}

}  // namespace aicf
