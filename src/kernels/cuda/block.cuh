// A whole step in one block: its values lie in shared memory, warps share out the ops.
#pragma once

#include "matmul.cuh"

namespace aicf {

/// Where a value begins in shared memory, whose address is `base`.
template <class T>
__device__ __forceinline__ T* held_at(uint32_t base, int place, int64_t element) {
    return static_cast<T*>(__builtin_assume_aligned(near_at<T>(base + place), 16)) + element;
}

__device__ __forceinline__ bool aligned4(const void* p) {
    return reinterpret_cast<uint64_t>(p) % 4 == 0;
}

/// take(i) for every element of `Size` bytes of `Bytes`, at byte i, by some warps, of which this is
/// one.
template <int Bytes, int Warps, int Size, class Take>
__device__ __forceinline__ void for_each(uint32_t warp, Take take) {
    constexpr int step = Warps * 32 * Size, turns = (Bytes + step - 1) / step;
    const int first = int(warp * 32 + (threadIdx.x & 31)) * Size;
#pragma unroll turns < 5 ? turns : 4
    for (int turn = 0; turn < turns; turn++)
        if (const int i = first + turn * step; Bytes % step == 0 || i < Bytes) take(i);
}
/// What goes at a time: words, or 16 bytes where that is worth it, or a byte where nothing else
/// fits.
template <int Bytes, int Warps>
constexpr int copy_size = Bytes % 4                                ? 1
                          : Bytes % 16 == 0 && Bytes > Warps * 256 ? 16
                                                                   : 4;
/// Where byte i lies in rows of `Length` bytes, `Pitch` apart; 0: there are none.
template <int Length, int Pitch>
__device__ __forceinline__ int in_rows(int i) {
    return Length ? i + i / (Length ? Length : 1) * (Pitch - Length) : i;
}

/// A value's way into shared memory, by some warps; finish_copies() waits for all. `Element`: bytes
/// of one, all that memory of a caller's own is sure to be aligned to.
template <int Bytes, int Warps, int Element, int Length = 0, int Pitch = 0>
__device__ __forceinline__ void copy_in(char* to, const char* from, uint32_t warp) {
    constexpr int Size = copy_size<Bytes, Warps>;
    if constexpr (Size == 16)
        if (aligned16(from))
            return for_each<Bytes, Warps, 16>(
                warp, [=](int i) { copy_async<16>(to + in_rows<Length, Pitch>(i), from + i); });
    if constexpr (Size > 1)
        if (Element >= 4 || aligned4(from))
            return for_each<Bytes, Warps, 4>(
                warp, [=](int i) { copy_async<4>(to + in_rows<Length, Pitch>(i), from + i); });
    if constexpr (Size == 1 || Element < 4)
        for_each<Bytes, Warps, 1>(warp, [=](int i) { to[i] = from[i]; });
}
/// The same of what is there before the kernel begins: past the first cache, which may be stale.
template <int Bytes, int Warps, int Length = 0, int Pitch = 0>
__device__ __forceinline__ void copy_in_by16(char* to, const char* from, uint32_t warp) {
    static_assert(Bytes % 16 == 0 && Length % 16 == 0 && Pitch % 16 == 0);
    for_each<Bytes, Warps, 16>(
        warp, [=](int i) { copy_async<16>(to + in_rows<Length, Pitch>(i), from + i); });
}
__device__ __forceinline__ void finish_copies() {
    commit_copies();
    wait_copies<0>();
    __syncthreads();
}
/// A value that lies dense, to where it is read.
template <int Bytes, int Warps, int Length = 0, int Pitch = 0>
__device__ __forceinline__ void spread(char* to, const char* from, uint32_t warp) {
    if constexpr (Bytes % 4 == 0)
        for_each<Bytes, Warps, 4>(warp, [=](int i) {
            *reinterpret_cast<uint32_t*>(to + in_rows<Length, Pitch>(i)) =
                *reinterpret_cast<const uint32_t*>(from + i);
        });
    else
        for_each<Bytes, Warps, 1>(warp, [=](int i) { to[i] = from[i]; });
}
/// And back.
template <int Bytes, int Warps, int Element, int Length = 0, int Pitch = 0>
__device__ __forceinline__ void copy_out(char* to, const char* from, uint32_t warp) {
    typedef Pack<uint32_t, 4> Four;
    constexpr int Size = copy_size<Bytes, Warps>;
    if constexpr (Size == 16)
        if (aligned16(to))
            return for_each<Bytes, Warps, 16>(warp, [=](int i) {
                *reinterpret_cast<Four*>(to + i) =
                    *reinterpret_cast<const Four*>(from + in_rows<Length, Pitch>(i));
            });
    if constexpr (Size > 1)
        if (Element >= 4 || aligned4(to))
            return for_each<Bytes, Warps, 4>(warp, [=](int i) {
                *reinterpret_cast<uint32_t*>(to + i) =
                    *reinterpret_cast<const uint32_t*>(from + in_rows<Length, Pitch>(i));
            });
    if constexpr (Size == 1 || Element < 4)
        for_each<Bytes, Warps, 1>(warp, [=](int i) { to[i] = from[i]; });
}

}  // namespace aicf
