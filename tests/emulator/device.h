// What a kernel's text finds when it is compiled for the host: CUDA's words, and under a name of
// its own each PTX instruction that the text has in assembly (rewrite.cpp makes calls of those).
// Threads are fibers of one host thread, which emulator.cpp switches where they wait for others.
// No header with names of types is included, so that the text's own are the only ones.
#pragma once

#include <initializer_list>

#include "api.h"

#define __device__
#define __host__
#define __global__
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(...)
#define __cluster_dims__(...)

extern "C" float fabsf(float);
extern "C" float floorf(float);
extern "C" double floor(double);
extern "C" float rintf(float);
extern "C" double rint(double);
extern "C" double exp2(double);
extern "C" double strtod(const char*, char**);
extern "C" char* getenv(const char*);

namespace emulated {

extern "C" {
__attribute__((visibility("default"))) Api emulated_api = {};
__attribute__((visibility("default"))) u32 emulated_static_shared = 0;
}

inline Self& self() { return *emulated_api.self; }

template <class T>
T* dynamic_shared() {
    return reinterpret_cast<T*>(self().shared);
}
inline u32 claim(u32 bytes, u32 alignment) {
    const u32 at = (emulated_static_shared + alignment - 1) / alignment * alignment;
    emulated_static_shared = at + bytes;
    return kDynamic + at;
}
template <class T>
T& static_shared() {
    static const u32 at = claim(sizeof(T), alignof(T) < 16 ? 16 : alignof(T));
    return *reinterpret_cast<T*>(self().shared + at);
}
inline char* shared_at(u32 address) { return self().shared + address; }

template <class T>
const T& from_lane(const char* all, u32 lane) {
    return *reinterpret_cast<const T*>(all + 64 * lane);
}
inline u32 lane() { return self().thread.x & 31; }
template <class T>
const char* exchange(u32 mask, const T& mine) {
    static_assert(sizeof(T) <= 64);
    return emulated_api.exchange(mask, &mine, sizeof(T), false);
}
/// Until all lanes have come, which orders nothing.
inline void together() { exchange(~0u, 0); }

// Not of what a kernel does to memory: its barriers, atomic accesses.
#define EMULATED_UNWATCHED __attribute__((no_sanitize("thread")))

#ifdef __SANITIZE_THREAD__
EMULATED_UNWATCHED inline void touched(const void* at, u32 bytes, u32 access, const void* where) {
    if (static_cast<u64>(static_cast<const char*>(at) - emulated_api.self->shared) < kShared)
        emulated_api.touched(at, bytes, access, where);
}
#define EMULATED_TOUCHES(name, bytes, access)                    \
    extern "C" EMULATED_UNWATCHED void __tsan_##name(void* at) { \
        touched(at, bytes, access, __builtin_return_address(0)); \
    }
#define EMULATED_TOUCHES_OF(bytes)                    \
    EMULATED_TOUCHES(read##bytes, bytes, 0)           \
    EMULATED_TOUCHES(write##bytes, bytes, 1)          \
    EMULATED_TOUCHES(unaligned_read##bytes, bytes, 0) \
    EMULATED_TOUCHES(unaligned_write##bytes, bytes, 1)
EMULATED_TOUCHES_OF(1)
EMULATED_TOUCHES_OF(2)
EMULATED_TOUCHES_OF(4)
EMULATED_TOUCHES_OF(8)
EMULATED_TOUCHES_OF(16)
extern "C" EMULATED_UNWATCHED void __tsan_read_range(void* at, u64 bytes) {
    touched(at, static_cast<u32>(bytes), 0, __builtin_return_address(0));
}
extern "C" EMULATED_UNWATCHED void __tsan_write_range(void* at, u64 bytes) {
    touched(at, static_cast<u32>(bytes), 1, __builtin_return_address(0));
}
extern "C" void __tsan_init() {}
extern "C" void __tsan_vptr_update(void*, void*) {}
#endif

}  // namespace emulated

#define threadIdx (emulated::self().thread)
#define blockIdx (emulated::self().block)
#define blockDim (emulated::self().threads)
#define gridDim (emulated::self().blocks)

/// A GPU's NaN, which the host's differs from in what integer operations make of it.
inline float gpu_nan() {
    const unsigned bits = 0x7fffffff;
    float nan;
    __builtin_memcpy(&nan, &bits, 4);
    return nan;
}
inline float __fmaf_rn(float a, float b, float c) {
    const float y = __builtin_fmaf(a, b, c);
    return y == y ? y : gpu_nan();
}
inline double __fma_rn(double a, double b, double c) { return __builtin_fma(a, b, c); }
inline float __fsqrt_rn(float x) { return __builtin_sqrtf(x); }
inline double __dsqrt_rn(double x) { return __builtin_sqrt(x); }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline int __popc(emulated::u32 x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
template <class T>
T __ldcg(const T* at) {
    return *at;
}
inline emulated::u64 __cvta_generic_to_shared(const void* at) {
    return static_cast<emulated::u64>(static_cast<const char*>(at) - emulated::self().shared);
}
inline void* __nv_cvta_shared_to_generic_impl(emulated::u64 at) {
    return emulated::self().shared + at;
}

inline void __syncthreads() { emulated::emulated_api.barrier(0, 0, true); }
inline int __syncthreads_or(int one) { return emulated::emulated_api.any(one != 0); }
inline void __syncwarp(emulated::u32 mask = ~0u) {
    emulated::emulated_api.exchange(mask, "", 1, true);
}
template <class T>
T __shfl_sync(emulated::u32 mask, T x, int from, int width = 32) {
    const emulated::u32 lane = emulated::lane(), first = lane / width * width;
    return emulated::from_lane<T>(emulated::exchange(mask, x), first + from % width);
}
template <class T>
T __shfl_xor_sync(emulated::u32 mask, T x, int with, int width = 32) {
    const emulated::u32 lane = emulated::lane(), from = lane ^ with;
    return emulated::from_lane<T>(emulated::exchange(mask, x),
                                  from / width == lane / width ? from : lane);
}
template <class T>
T __shfl_up_sync(emulated::u32 mask, T x, emulated::u32 by, int width = 32) {
    const emulated::u32 lane = emulated::lane();
    return emulated::from_lane<T>(emulated::exchange(mask, x),
                                  lane % width >= by ? lane - by : lane);
}
template <class T>
emulated::u32 __match_any_sync(emulated::u32 mask, T x) {
    const char* all = emulated::exchange(mask, x);
    emulated::u32 same = 0;
    for (int l = 0; l < 32; l++)
        if (mask >> l & 1 && emulated::from_lane<T>(all, l) == x) same |= 1u << l;
    return same;
}
inline emulated::u32 __ballot_sync(emulated::u32 mask, bool x) {
    return __match_any_sync(mask, x) ^ (x ? 0 : mask);
}
inline bool __any_sync(emulated::u32 mask, bool x) { return __ballot_sync(mask, x) != 0; }

template <class T, class U>
EMULATED_UNWATCHED T atomicAdd(T* at, U by) {
#ifdef __SANITIZE_THREAD__
    emulated::touched(at, sizeof(T), 2, __builtin_return_address(0));
#endif
    const T before = *at;
    *at = static_cast<T>(before + by);
    return before;
}

// ---- PTX: of an instruction with its operands as they are written, braces left out, {%0, %1} as
// two operands and [%0] as one; "." in its name is "_" ------------------------------------------

namespace ptx {

using namespace emulated;

inline void griddepcontrol_launch_dependents() {}
inline void griddepcontrol_wait() { emulated_api.settled(); }
inline void fence_proxy_async() {}
inline float flushed(float x) { return x > -0x1p-126f && x < 0x1p-126f ? 0.0f : x; }
/// What an approximation lies off: of its bound, as much as EMULATED_ERROR says, from -1 to 1.
inline double error_of(double bound) {
    const char* const error = getenv("EMULATED_ERROR");
    return error ? strtod(error, nullptr) * bound : 0.0;
}
inline void rcp_approx_ftz_f32(float& to, float x) {
    const double bound = error_of(0x1p-23);
    to = bound == 0.0 ? 1.0f / x : flushed(static_cast<float>((1.0 - bound) / flushed(x)));
}
inline void ex2_approx_ftz_f32(float& to, float x) {
    to = flushed(static_cast<float>(exp2(flushed(x)) * (1.0 + error_of(0x1p-22))));
}
inline void rsqrt_approx_ftz_f32(float& to, float x) { to = 1.0f / __builtin_sqrtf(x); }
inline void cvt_f32_f16(float& to, u16 x) {
    _Float16 half;
    __builtin_memcpy(&half, &x, 2);
    to = static_cast<float>(half);
}
inline u32 half_of(float x) {
    const auto half = static_cast<_Float16>(x);
    u16 bits;
    __builtin_memcpy(&bits, &half, 2);
    return x == x ? bits : 0x7fff;
}
inline u32 bfloat_of(float x) {
    u32 bits;
    __builtin_memcpy(&bits, &x, 4);
    return x == x ? (bits + 0x7fff + (bits >> 16 & 1)) >> 16 : 0x7fff;
}
inline void cvt_rn_f16x2_f32(u32& to, float high, float low) {
    to = half_of(high) << 16 | half_of(low);
}
/// As 9.0 rounds f32: 10 bits of mantissa, ties to even; one NaN for all.
inline u32 to_tf32(u32 x) {
    if ((x & 0x7fffffff) > 0x7f800000) return 0x7fffe000;
    return (x + 0xfff + (x >> 13 & 1)) & 0xffffe000;
}
inline void cvt_rn_tf32_f32(u32& to, float from) {
    u32 word;
    __builtin_memcpy(&word, &from, 4);
    to = to_tf32(word);
}
inline void cvt_rn_bf16x2_f32(u32& to, float high, float low) {
    to = bfloat_of(high) << 16 | bfloat_of(low);
}
inline float high_bfloat(u32 word) {
    float x;
    word &= 0xffff0000u;
    __builtin_memcpy(&x, &word, 4);
    return x;
}
inline void add_rn_bf16x2(u32& to, u32 a, u32 b) {
    to = bfloat_of(high_bfloat(a) + high_bfloat(b)) << 16 |
         bfloat_of(high_bfloat(a << 16) + high_bfloat(b << 16));
}
inline void mul_rn_bf16x2(u32& to, u32 a, u32 b) {
    to = bfloat_of(high_bfloat(a) * high_bfloat(b)) << 16 |
         bfloat_of(high_bfloat(a << 16) * high_bfloat(b << 16));
}
inline float of_half(u32 bits) {
    float x;
    cvt_f32_f16(x, static_cast<u16>(bits));
    return x;
}
inline void add_rn_f16x2(u32& to, u32 a, u32 b) {
    to = half_of(of_half(a >> 16) + of_half(b >> 16)) << 16 | half_of(of_half(a) + of_half(b));
}
inline void mul_rn_f16x2(u32& to, u32 a, u32 b) {
    to = half_of(of_half(a >> 16) * of_half(b >> 16)) << 16 | half_of(of_half(a) * of_half(b));
}
inline void max_NaN_f32(float& to, float a, float b) {
    to = a != a || b != b ? gpu_nan() : a > b ? a : b > a ? b : __builtin_signbit(a) ? b : a;
}
inline void max_NaN_bf16x2(u32& to, u32 a, u32 b) {
    float high, low;
    max_NaN_f32(high, high_bfloat(a), high_bfloat(b));
    max_NaN_f32(low, high_bfloat(a << 16), high_bfloat(b << 16));
    to = bfloat_of(high) << 16 | bfloat_of(low);
}
inline void max_NaN_f16x2(u32& to, u32 a, u32 b) {
    float high, low;
    max_NaN_f32(high, of_half(a >> 16), of_half(b >> 16));
    max_NaN_f32(low, of_half(a & 0xffff), of_half(b & 0xffff));
    to = half_of(high) << 16 | half_of(low);
}
inline float lesser(float a, float b) {
    float least;
    if (a != a || b != b) return a == a ? a : b;
    max_NaN_f32(least, -a, -b);
    return -least;
}
inline void min_bf16x2(u32& to, u32 a, u32 b) {
    to = bfloat_of(lesser(high_bfloat(a), high_bfloat(b))) << 16 |
         bfloat_of(lesser(high_bfloat(a << 16), high_bfloat(b << 16)));
}
inline void min_f16x2(u32& to, u32 a, u32 b) {
    to = half_of(lesser(of_half(a >> 16), of_half(b >> 16))) << 16 |
         half_of(lesser(of_half(a & 0xffff), of_half(b & 0xffff)));
}
inline void min_NaN_f32(float& to, float a, float b) {
    max_NaN_f32(to, -a, -b);
    to = -to;
}
inline void add_u32(u32& to, u32 a, u32 b) { to = a + b; }
inline void max_f32(float& to, float a, float b) {
    if (a == a && b == b)
        max_NaN_f32(to, a, b);
    else
        to = a == a ? a : b;
}
inline void fma_rn_sat_f32(float& to, float a, float b, float c) {
    const float y = __builtin_fmaf(a, b, c);
    to = y > 1.0f ? 1.0f : y > 0.0f ? y : 0.0f;
}
inline void bar_sync(u32 id, u32 threads) { emulated_api.barrier(id, threads, true); }
inline void barrier_sync(u32 id, u32 threads) { emulated_api.barrier(id, threads, true); }
inline void red_release_gpu_global_add_u32(u32* at, u32 by) {
    emulated_api.global(at);
    *at += by;
}
inline void atom_acq_rel_gpu_global_add_u32(u32& before, u32* at, u32 by) {
    emulated_api.global(at);
    before = *at;
    *at += by;
}
EMULATED_UNWATCHED inline void atom_shared_inc_u32(u32& before, u32 place, u32 most) {
    u32* const at = reinterpret_cast<u32*>(shared_at(place));
#ifdef __SANITIZE_THREAD__
    touched(at, sizeof *at, 2, __builtin_return_address(0));
#endif
    before = *at;
    *at = before >= most ? 0 : before + 1;
}
template <class T>
void ld_global_cg_v4_u32(u32& a, u32& b, u32& c, u32& d, const T* at) {
    emulated_api.global(at);
    u32 word[4];
    __builtin_memcpy(word, at, 16);
    a = word[0], b = word[1], c = word[2], d = word[3];
}
inline void ld_global_cg_v4_f32(float& a, float& b, float& c, float& d, const float* at) {
    emulated_api.global(at);
    a = at[0], b = at[1], c = at[2], d = at[3];
}
template <class T>
void ld_global_L1__no_allocate_v4_u32(u32& a, u32& b, u32& c, u32& d, const T* at) {
    ld_global_cg_v4_u32(a, b, c, d, at);
}
inline void createpolicy_fractional_L2__evict_last_b64(u64& policy) { policy = 0; }
template <class T>
void ld_global_L1__evict_last_L2__cache_hint_v4_u32(u32& a, u32& b, u32& c, u32& d, const T* at,
                                                    u64) {
    ld_global_cg_v4_u32(a, b, c, d, at);
}
template <class T>
void ld_global_cg_v2_u32(u32& a, u32& b, const T* at) {
    emulated_api.global(at);
    u32 word[2];
    __builtin_memcpy(word, at, 8);
    a = word[0], b = word[1];
}
template <class T>
void ld_global_v2_u32(u32& a, u32& b, const T* at) {
    ld_global_cg_v2_u32(a, b, at);
}
template <class T>
void ld_global_L1__evict_last_L2__cache_hint_v2_u32(u32& a, u32& b, const T* at, u64) {
    ld_global_cg_v2_u32(a, b, at);
}
template <class T>
void ld_global_cg_u32(u32& to, const T* at) {
    emulated_api.global(at);
    __builtin_memcpy(&to, at, 4);
}
template <class T>
void ld_global_cg_u16(u32& to, const T* at) {
    emulated_api.global(at);
    u16 half;
    __builtin_memcpy(&half, at, 2);
    to = half;
}
inline void st_relaxed_gpu_global_u32(u32* at, u32 value) {
    emulated_api.global(at);
    *at = value;
}
template <class T>
void ld_acquire_gpu_global_u32(u32& seen, const T* at) {
    emulated_api.global(at);
    const auto* word = reinterpret_cast<const volatile u32*>(at);
    seen = *word;
    emulated_api.looked(word, seen);
}

inline void cp_async_cg_shared_global(u32 to, const void* from, u32 room, u32 bytes) {
    emulated_api.copy(to, from, room, bytes);
}
inline void cp_async_cg_shared_global(u32 to, const void* from, u32 room) {
    emulated_api.copy(to, from, room, room);
}
inline void cp_async_cg_shared_global_L2__cache_hint(u32 to, const void* from, u32 room, u64) {
    emulated_api.copy(to, from, room, room);
}
inline void cp_async_cg_shared_global_L2__256B(u32 to, const void* from, u32 room) {
    emulated_api.copy(to, from, room, room);
}
inline void cp_async_ca_shared_global(u32 to, const void* from, u32 room, u32 bytes) {
    emulated_api.copy(to, from, room, bytes);
}
inline void cp_async_ca_shared_global(u32 to, const void* from, u32 room) {
    emulated_api.copy(to, from, room, room);
}
inline void cp_async_commit_group() { emulated_api.commit(); }
inline void cp_async_wait_group(u32 newest) { emulated_api.arrived(newest); }

template <class... T>
void load(u32 from, T&... to) {
    const char* at = shared_at(from);
    ((__builtin_memcpy(&to, at, sizeof to), at += sizeof to), ...);
}
template <class... T>
void store(u32 to, const T&... from) {
    char* at = shared_at(to);
    ((__builtin_memcpy(at, &from, sizeof from), at += sizeof from), ...);
}
inline void ld_shared_b32(u32& to, u32 from) { load(from, to); }
inline void ld_shared_v2_f32(float& a, float& b, u32 from) { load(from, a, b); }
inline void ld_shared_v4_f32(float& a, float& b, float& c, float& d, u32 from) {
    load(from, a, b, c, d);
}
inline void st_shared_v4_b32(u32 to, u32 a, u32 b, u32 c, u32 d) { store(to, a, b, c, d); }
inline void st_shared_f32(u32 to, float a) { store(to, a); }
inline void st_shared_v2_f32(u32 to, float a, float b) { store(to, a, b); }

/// Four tiles of 8 x 8 pairs of bytes, of whose lines 8 l to 8 l + 7 lanes 8 l and on say where
/// they lie; a lane gets of each the pairs 2 (lane % 4) and the next of line lane / 4, or of the
/// transposed tile.
template <bool Transposed>
void ldmatrix(u32& a, u32& b, u32& c, u32& d, u32 line) {
    const char* all = exchange(~0u, line);
    u32* const to[] = {&a, &b, &c, &d};
    for (u32 tile = 0; tile < 4; tile++) {
        u16 two[2];
        for (u32 i = 0; i < 2; i++) {
            const u32 row = lane() / 4, column = lane() % 4 * 2 + i;
            const u32 from = Transposed ? column : row, at = Transposed ? row : column;
            __builtin_memcpy(two + i, shared_at(from_lane<u32>(all, 8 * tile + from)) + 2 * at, 2);
        }
        *to[tile] = static_cast<u32>(two[1]) << 16 | two[0];
    }
}
inline void ldmatrix_sync_aligned_m8n8_x4_shared_b16(u32& a, u32& b, u32& c, u32& d, u32 line) {
    ldmatrix<false>(a, b, c, d, line);
}
inline void ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16(u32& a, u32& b, u32& c, u32& d,
                                                           u32 line) {
    ldmatrix<true>(a, b, c, d, line);
}

/// d (16 x 8) = a b + c, 8 words of 4 bytes deep: a lane holds of d and c the columns
/// 2 (lane % 4) and the next of rows lane / 4 and 8 more, of a words lane % 4 and 4 more of these
/// rows, of b the same words of column lane / 4.
inline void mma(int kind, float& d0, float& d1, float& d2, float& d3, u32 a0, u32 a1, u32 a2,
                u32 a3, u32 b0, u32 b1, float c0, float c1, float c2, float c3) {
    struct Mine {
        u32 a[4], b[2];
    };
    const char* all = exchange(~0u, Mine{{a0, a1, a2, a3}, {b0, b1}});
    float* const d[] = {&d0, &d1, &d2, &d3};
    const float c[] = {c0, c1, c2, c3};
    for (u32 i = 0; i < 4; i++) {
        u32 a[8], b[8];
        for (u32 w = 0; w < 8; w++) {
            const auto& row = from_lane<Mine>(all, lane() / 4 * 4 + w % 4);
            a[w] = row.a[w / 4 * 2 + i / 2];
            b[w] = from_lane<Mine>(all, (lane() % 4 * 2 + i % 2) * 4 + w % 4).b[w / 4];
        }
        *d[i] = emulated_api.mma(kind, c[i], a, b);
    }
}
template <class... T>
void mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32(T&&... all) {
    mma(0, all...);
}
template <class... T>
void mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32(T&&... all) {
    mma(1, all...);
}
/// tf32: 8 words are 8 elements; a's and b's order in k is that of the words.
template <class... T>
void mma_sync_aligned_m16n8k8_row_col_f32_tf32_tf32_f32(T&&... all) {
    mma(2, all...);
}

}  // namespace ptx

#include "hopper.h"
