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

/// A cluster of so many blocks, each of which has two barriers in shared memory. They take turns:
/// a block that is told of for the next time has read what it was told the time before.
template <int Blocks>
struct RowCluster {
    static constexpr int bytes = 32;
    uint32_t barriers = 0, side = 0, parity = 0;  // where they lie; whose turn it is; of its phase
    uint32_t* given = nullptr;  // by the first thread to all, with what is told in either turn
    uint32_t gives = 0;

    __device__ __forceinline__ static int rank() {
        return Blocks > 1 ? int(blockIdx.x % Blocks) : 0;
    }
    __device__ __forceinline__ static bool leads() { return threadIdx.x == 0 && rank() == 0; }
    /// Makes the barriers, before any block of the cluster tells another.
    __device__ __forceinline__ void meet(void* here) {
        barriers = shared_address(here);
        given = static_cast<uint32_t*>(here) + 4;
        if (threadIdx.x == 0) {
            init_barrier(barriers, 1);
            init_barrier(barriers + 8, 1);
            asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        }
        sync_cluster();
    }
    /// A barrier of all threads of the cluster, behind which each block has all numbers: `Runs`
    /// times so many of each block, of which it has set its own. One block's are read before it
    /// tells them again, between which it has told others.
    template <int Runs, int Each>
    __device__ __forceinline__ void tell(float* all) {
        constexpr int pairs = Each / 2;
        static_assert(Blocks == 1 || (Each % 2 == 0 && Runs * pairs <= 32));
        if (leads()) given[2 * side] = gives;
        __syncthreads();
        if constexpr (Blocks == 1) {
            side ^= 1;
            return;
        }
        const uint32_t barrier = barriers + 8 * side;
        // One warp sends all: a barrier takes messages one by one.
        if (const int t = threadIdx.x; t < Runs * pairs) {
            const auto* const two = reinterpret_cast<const Pack<float, 2>*>(all) +
                                    (t / pairs * Blocks + rank()) * pairs + t % pairs;
            const auto send_all = [&](const void* what) {
                const uint32_t to = shared_address(what);
#pragma unroll
                for (uint32_t other = 1; other < Blocks; other++) {
                    const uint32_t there = uint32_t(rank()) ^ other;
                    send(address_in(to, there), *static_cast<const Pack<float, 2>*>(what),
                         address_in(barrier, there));
                }
            };
            if (t == 0) {
                arrive_expecting(barrier, (Runs * pairs * (Blocks - 1) + (rank() ? 1 : 0)) * 8);
                if (rank() == 0) send_all(given + 2 * side);
            }
            send_all(two);
        }
        wait_barrier(barrier, parity);
        parity ^= side;
        side ^= 1;
    }
    /// What was given last.
    __device__ __forceinline__ uint32_t told() const { return given[2 * (side ^ 1)]; }
};

}  // namespace aicf
