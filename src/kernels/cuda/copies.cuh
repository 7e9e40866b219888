// Copies to shared memory that a thread goes on beside.
#pragma once

#include "prelude.cuh"

namespace aicf {

/// Starts a copy to shared memory that wait_copies() sees the end of. `Lasting`: of 16 bytes,
/// read with lasting_policy().
template <int Bytes, bool Lasting = false>
__device__ __forceinline__ void copy_async(void* to, const void* from) {
#if __CUDA_ARCH__ >= 800
    const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(to));
    if constexpr (Bytes == 16 && Lasting) {
        asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;" ::"r"(at),
                     "l"(from), "l"(lasting_policy())
                     : "memory");
    } else if constexpr (Bytes == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at), "l"(from), "n"(Bytes)
                     : "memory");
    }
#else
    typedef Pack<uint32_t, Bytes / 4> Words;
    *static_cast<Words*>(to) = *static_cast<const Words*>(from);
#endif
}
/// A 16-byte copy to shared memory of which the first `bytes` exist; the rest becomes zero.
__device__ __forceinline__ void copy_async_filled(uint32_t to, const void* from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}
/// The same of 4 bytes.
__device__ __forceinline__ void copy_async_word(uint32_t to, const void* from, int bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes)
                 : "memory");
}
__device__ __forceinline__ void commit_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}
/// Waits for all groups of copies of this thread but the newest `Newest`.
template <int Newest>
__device__ __forceinline__ void wait_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(Newest) : "memory");
#endif
}

}  // namespace aicf
