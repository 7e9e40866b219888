// What warps with roles of 9.0 do beside their products: barriers in shared memory, of clusters and
// of some threads of a block, and copies of tiles by the copy engine.
#pragma once

#include "prelude.cuh"

namespace aicf {

// ---- barriers in shared memory ------------------------------------------------------------------

__device__ __forceinline__ void init_barrier(uint32_t barrier, uint32_t count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
/// Waits for the end of the phase of this parity.
__device__ __forceinline__ void wait_barrier(uint32_t barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra over;\nbra again;\nover:\n}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}
/// The same of a barrier that another block of the cluster completes.
__device__ __forceinline__ void wait_barrier_of_cluster(uint32_t barrier, uint32_t parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
        "@done bra over;\nbra again;\nover:\n}" ::"r"(barrier),
        "r"(parity)
        : "memory");
}
/// The same two by all lanes of a warp, which go on together: else each shuffle behind it first
/// asks if they do, and nothing is moved over it.
__device__ __forceinline__ void wait_barrier_together(uint32_t barrier, uint32_t parity) {
    uint32_t over;
    do {
        asm volatile(
            "{\n.reg .pred done;\n"
            "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
            "selp.u32 %0, 1, 0, done;\n}"
            : "=r"(over)
            : "r"(barrier), "r"(parity)
            : "memory");
    } while (__any_sync(0xffffffffu, !over));
}
__device__ __forceinline__ void wait_barrier_of_cluster_together(uint32_t barrier,
                                                                 uint32_t parity) {
    uint32_t over;
    do {
        asm volatile(
            "{\n.reg .pred done;\n"
            "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%1], %2;\n"
            "selp.u32 %0, 1, 0, done;\n}"
            : "=r"(over)
            : "r"(barrier), "r"(parity)
            : "memory");
    } while (__any_sync(0xffffffffu, !over));
}
/// Whether the phase is over, asked before it is needed: the answer takes some time.
__device__ __forceinline__ uint32_t is_over(uint32_t barrier, uint32_t parity) {
    uint32_t over;
    asm volatile(
        "{\n.reg .pred done;\n"
        "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
        "selp.u32 %0, 1, 0, done;\n}"
        : "=r"(over)
        : "r"(barrier), "r"(parity)
        : "memory");
    return over;
}
/// Waits, unless it was over when asked.
__device__ __forceinline__ void wait_barrier(uint32_t barrier, uint32_t parity, uint32_t over) {
    asm volatile(
        "{\n.reg .pred done;\nsetp.ne.u32 done, %2, 0;\n@done bra over;\nagain:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra over;\nbra again;\nover:\n}" ::"r"(barrier),
        "r"(parity), "r"(over)
        : "memory");
}
/// Arrives, and makes the phase wait for so many bytes of copies.
__device__ __forceinline__ void arrive_expecting(uint32_t barrier, uint32_t bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}
/// Arrives at the barrier that lies at the same place in block `rank` of the cluster. It publishes
/// nothing: of a release to the cluster the fence would cost more than a stage's products.
template <int Cluster>
__device__ __forceinline__ void arrive_at(uint32_t barrier, uint32_t rank) {
    if constexpr (Cluster == 1)
        asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
    else
        asm volatile(
            "{\n.reg .b32 there;\n"
            "mapa.shared::cluster.u32 there, %0, %1;\n"
            "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier),
            "r"(rank)
            : "memory");
}
/// Whether this lane is the one that acts for a whole warp. Of a branch on it the assembler knows
/// that a single lane takes it; in any other it goes around for each lane at every copy that is
/// asked for, which costs more than a small stage's products.
__device__ __forceinline__ bool elected() {
    uint32_t yes;
    asm volatile(
        "{\n.reg .pred one;\n"
        "elect.sync _|one, 0xffffffff;\n"
        "selp.u32 %0, 1, 0, one;\n}"
        : "=r"(yes));
    return yes;
}
/// Whether this thread asks for a block's copies, one of the first warp, all of whose lanes are
/// here.
__device__ __forceinline__ bool leads_copies(int warp) { return warp == 0 && elected(); }
__device__ __forceinline__ uint32_t cluster_rank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
/// Where in block `rank` of the cluster lies what this one has at an address of shared memory.
__device__ __forceinline__ uint32_t address_in(uint32_t at, uint32_t rank) {
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
    return there;
}
/// Four bytes to the shared memory of a block of the cluster, whose barrier counts them.
__device__ __forceinline__ void send(uint32_t to, uint32_t word, uint32_t barrier) {
    asm volatile(
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to),
        "r"(word), "r"(barrier)
        : "memory");
}
/// A barrier of all threads of a cluster: what each did before is done for those behind it.
__device__ __forceinline__ void sync_cluster() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}
/// The same, of which nothing is published: blocks that copy into each other begin. Where they
/// leave it does not do, for it does not come after what they sent to each other.
__device__ __forceinline__ void meet_cluster() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::
                     : "memory");
}
/// A barrier of some threads of a block, of which id 0 is __syncthreads.
template <int Id, int Threads>
__device__ __forceinline__ void sync_some() {
    asm volatile("bar.sync %0, %1;" ::"n"(Id), "n"(Threads) : "memory");
}
/// The same where the barrier is known when it runs; and some arrive who need not wait.
template <int Threads>
__device__ __forceinline__ void sync_as(uint32_t id) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(Threads) : "memory");
}
template <int Threads>
__device__ __forceinline__ void arrive_as(uint32_t id) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "n"(Threads) : "memory");
}

// ---- copies -------------------------------------------------------------------------------------

/// The box of a map that begins at (x, y, z), to shared memory.
__device__ __forceinline__ void copy_box(uint32_t to, const void* map, int x, int y, int z,
                                         uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(to),
        "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier)
        : "memory");
}
/// The same, to shared memory of the blocks of a cluster whose bits are set.
__device__ __forceinline__ void copy_box_among(uint32_t to, const void* map, int x, int y, int z,
                                               uint32_t barrier, uint32_t blocks) {
    asm volatile(
        "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".multicast::cluster [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(to),
        "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier), "h"(uint16_t(blocks))
        : "memory");
}
/// Bytes that lie side by side, which the kernel does not write before they have come, or of which
/// nothing is then used.
__device__ __forceinline__ void copy_kept_bytes(uint32_t to, const void* from, uint32_t bytes,
                                                uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}
/// The same, read with lasting_policy().
__device__ __forceinline__ void copy_lasting_bytes(uint32_t to, const void* from, uint32_t bytes,
                                                   uint32_t barrier) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
        "[%0], [%1], %2, [%3], %4;" ::"r"(to),
        "l"(from), "r"(bytes), "r"(barrier), "l"(lasting_policy())
        : "memory");
}
/// As copy_kept_bytes(), of which other threads' writes were acquired before.
__device__ __forceinline__ void copy_bytes(uint32_t to, const void* from, uint32_t bytes,
                                           uint32_t barrier) {
    asm volatile("fence.proxy.async.global;" ::: "memory");
    copy_kept_bytes(to, from, bytes, barrier);
}
__device__ __forceinline__ void fetch_map(const void* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

}  // namespace aicf
