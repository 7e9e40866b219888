// The primitives of the scalar functions: correctly rounded IEEE 754 operations and bit casts.
// Functions composed of these use no libm, libdevice or approximate instruction, so they have the
// same bits everywhere. Units that include this are compiled with -ffp-contract=off or
// --fmad=false.
#pragma once

#include "core/abi/abi.h"

namespace aicf::scalar {

template <class To, class From>
AICF_HD To bit_cast(From x) {
    return __builtin_bit_cast(To, x);
}

#ifdef __CUDACC_RTC__
AICF_HD float fma(float a, float b, float c) { return __fmaf_rn(a, b, c); }
AICF_HD double fma(double a, double b, double c) { return __fma_rn(a, b, c); }
AICF_HD float sqrt(float x) { return __fsqrt_rn(x); }
AICF_HD double sqrt(double x) { return __dsqrt_rn(x); }
AICF_HD float floor(float x) { return ::floorf(x); }
AICF_HD double floor(double x) { return ::floor(x); }
AICF_HD float round(float x) { return ::rintf(x); }
AICF_HD double round(double x) { return ::rint(x); }
AICF_HD float div(float a, float b) { return __fdiv_rn(a, b); }
// 1/d for d in [2^-126, 2^125]: the steps of __frcp_rn without its branch, which would prevent
// interleaving a thread's elements.
AICF_HD float reciprocal(float d) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(d));
    return __fmaf_rn(r, __fmaf_rn(-d, r, 1.0f), r);
}
// 2^t within 2^-22 of it and 1/d within 2^-23, both 0 where they are below 2^-126, in one
// instruction whose bits no one promises: for results that no error so small changes once they are
// rounded.
AICF_HD float near_exp2(float t) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(t));
    return y;
}
AICF_HD float near_reciprocal(float d) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(d));
    return y;
}
// sqrt(x) for x = 0 and from 2^-101 on, and a/d for a = +0 and of 2^-96 to 2^60, d of 2^-64 to
// 2^30, or a of up to 2^100, d of 1/2 to 2: the steps of __fsqrt_rn and __fdiv_rn without theirs.
AICF_HD float plain_sqrt(float x) {
    float r;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    const float y = x * r;
    return x == 0.0f ? x : __fmaf_rn(__fmaf_rn(-y, y, x), 0.5f * r, y);
}
AICF_HD float plain_div(float a, float d) {
    const float r = reciprocal(d), q = a * r;
    return __fmaf_rn(r, __fmaf_rn(-d, q, a), q);
}
AICF_HD double div(double a, double b) { return __ddiv_rn(a, b); }
#else
AICF_HD float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
AICF_HD double fma(double a, double b, double c) { return __builtin_fma(a, b, c); }
AICF_HD float sqrt(float x) { return __builtin_sqrtf(x); }
AICF_HD double sqrt(double x) { return __builtin_sqrt(x); }
AICF_HD float floor(float x) { return __builtin_floorf(x); }
AICF_HD double floor(double x) { return __builtin_floor(x); }
AICF_HD float round(float x) { return __builtin_rintf(x); }
AICF_HD double round(double x) { return __builtin_rint(x); }
AICF_HD float div(float a, float b) { return a / b; }
AICF_HD float reciprocal(float d) { return 1.0f / d; }
AICF_HD float near_exp2(float t) { return __builtin_exp2f(t); }
AICF_HD float near_reciprocal(float d) { return 1.0f / d; }
AICF_HD float plain_sqrt(float x) { return __builtin_sqrtf(x); }
AICF_HD float plain_div(float a, float d) { return a / d; }
AICF_HD double div(double a, double b) { return a / b; }
#endif

AICF_HD uint32_t bits(float x) { return bit_cast<uint32_t>(x); }
AICF_HD uint64_t bits(double x) { return bit_cast<uint64_t>(x); }
AICF_HD float from_bits(uint32_t u) { return bit_cast<float>(u); }
AICF_HD double from_bits(uint64_t u) { return bit_cast<double>(u); }

constexpr uint64_t kSign64 = uint64_t(1) << 63;

#ifdef __CUDACC_RTC__
AICF_HD float abs(float a) { return ::fabsf(a); }  // what reads it takes it as it is, for nothing
#else
AICF_HD float abs(float a) { return from_bits(bits(a) & 0x7fffffffu); }
#endif
AICF_HD double abs(double a) { return from_bits(bits(a) & ~kSign64); }
AICF_HD float copysign(float mag, float sign) {
    // One mask for both: a GPU chooses bits in one instruction.
    return from_bits(((bits(mag) ^ bits(sign)) & 0x7fffffffu) ^ bits(sign));
}
AICF_HD double copysign(double mag, double sign) {
    return from_bits((bits(mag) & ~kSign64) | (bits(sign) & kSign64));
}

// a b + c, rounded once, what is below 0 or above 1 taken as these, and NaN as 0.
AICF_HD float saturated_fma(float a, float b, float c) {
#ifdef __CUDACC_RTC__
    float y;
    asm("fma.rn.sat.f32 %0, %1, %2, %3;" : "=f"(y) : "f"(a), "f"(b), "f"(c));
    return y;
#else
    const float y = fma(a, b, c), low = y > 0.0f ? y : 0.0f;
    return low < 1.0f ? low : 1.0f;
#endif
}

// NaN stays NaN; the limit is no zero.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
AICF_HD float at_least(float x, float least) {
    float y;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(least));
    return y;
}
AICF_HD float at_most(float x, float most) {
    float y;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(x), "f"(most));
    return y;
}
#else
AICF_HD float at_least(float x, float least) { return x < least ? least : x; }
AICF_HD float at_most(float x, float most) { return x > most ? most : x; }
#endif

template <class T>
constexpr bool is_bool = static_cast<T>(2) == static_cast<T>(1);
template <class T>
constexpr bool is_float = !is_bool<T> && static_cast<T>(0.5) != static_cast<T>(0);

template <int bytes>
struct Bits;  // the unsigned type of a size, where integer arithmetic wraps without UB
template <>
struct Bits<1> {
    using type = uint8_t;
};
template <>
struct Bits<2> {
    using type = uint16_t;
};
template <>
struct Bits<4> {
    using type = uint32_t;
};
template <>
struct Bits<8> {
    using type = uint64_t;
};
template <class T>
using BitsOf = typename Bits<sizeof(T)>::type;

// low + x (next + x (...)), coefficients in ascending order.
template <class T>
AICF_HD T horner(T, T low) {
    return low;
}
template <class T, class... High>
AICF_HD T horner(T x, T low, High... high) {
    return fma(horner(x, high...), x, low);
}

}  // namespace aicf::scalar
