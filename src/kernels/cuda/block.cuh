// A whole step in one block: its values lie in shared memory, warps share out the ops.
#pragma once

#include "matmul.cuh"

namespace aicf {

/// Where a value begins in shared memory.
template <class T>
__device__ __forceinline__ T* held_at(char* shared, int place, int64_t element) {
    return static_cast<T*>(__builtin_assume_aligned(shared + place, 16)) + element;
}

/// A value's way into shared memory, by some warps, of which this is one; finish_copies() waits for
/// all. Lines of `length` bytes, of which there may be one, begin `pitch` bytes apart there. One
/// function for all values, as each would take its share of the compiler's time.
__device__ __noinline__ void copy_in(char* to, const char* from, int bytes, int warps, int warp,
                                     int length, int pitch) {
    const int first = warp * 32 + int(threadIdx.x & 31), step = warps * 32;
    const uint64_t lies = reinterpret_cast<uint64_t>(from) | uint64_t(bytes | length | pitch);
    if (lies % 16 == 0) {
#pragma unroll 1
        for (int i = first * 16; i < bytes; i += step * 16)
            copy_async<16>(to + i + i / length * (pitch - length), from + i);
    } else if (lies % 4 == 0) {
#pragma unroll 1
        for (int i = first * 4; i < bytes; i += step * 4)
            copy_async<4>(to + i + i / length * (pitch - length), from + i);
    } else {
#pragma unroll 1
        for (int i = first; i < bytes; i += step) to[i] = from[i];
    }
}
__device__ __forceinline__ void finish_copies() {
    commit_copies();
    wait_copies<0>();
    __syncthreads();
}
/// And back.
__device__ __noinline__ void copy_out(char* to, const char* from, int bytes, int warps, int warp,
                                      int length, int pitch) {
    typedef Pack<uint32_t, 4> Four;
    const int first = warp * 32 + int(threadIdx.x & 31), step = warps * 32;
    const uint64_t lies = reinterpret_cast<uint64_t>(to) | uint64_t(bytes | length | pitch);
    if (lies % 16 == 0) {
#pragma unroll 1
        for (int i = first * 16; i < bytes; i += step * 16)
            *reinterpret_cast<Four*>(to + i) =
                *reinterpret_cast<const Four*>(from + i + i / length * (pitch - length));
    } else if (lies % 4 == 0) {
#pragma unroll 1
        for (int i = first * 4; i < bytes; i += step * 4)
            *reinterpret_cast<uint32_t*>(to + i) =
                *reinterpret_cast<const uint32_t*>(from + i + i / length * (pitch - length));
    } else {
#pragma unroll 1
        for (int i = first; i < bytes; i += step) to[i] = from[i];
    }
}

}  // namespace aicf
