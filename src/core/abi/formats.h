// Conversions between number formats, with the same bits on any CPU and GPU. 16-bit formats are
// computed in f32.
#pragma once

#include "core/abi/ieee.h"

namespace aicf::scalar {

// ---- f16 and bf16, as bits ---------------------------------------------------------------------

AICF_HD float half_to_f32(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000u) << 16;
    const uint32_t mag = static_cast<uint32_t>(h & 0x7fffu) << 13;
    // 2^112 moves the exponent to its f32 bias and normalises a subnormal exactly.
    const uint32_t finite = bits(from_bits(mag) * 0x1p112f);
    const uint32_t special = mag | 0x7f800000u;
    return from_bits((mag >= 0x0f800000u ? special : finite) | sign);
}

AICF_HD uint16_t f32_to_half(float x) {
    const uint32_t u = bits(x), mag = u & 0x7fffffffu;
    // Adding 0.5 rounds to multiples of 2^-24, the subnormal spacing of f16.
    const uint32_t tiny = bits(from_bits(mag) + 0.5f) - 0x3f000000u;
    const uint32_t normal = (mag - 0x38000000u + 0xfffu + ((mag >> 13) & 1u)) >> 13;
    const uint32_t nan = 0x7e00u | ((mag >> 13) & 0x3ffu);
    uint32_t r = mag < 0x38800000u ? tiny : normal;
    r = mag >= 0x477ff000u ? 0x7c00u : r;
    r = mag > 0x7f800000u ? nan : r;
    return static_cast<uint16_t>(r | ((u >> 16) & 0x8000u));
}

AICF_HD float bfloat_to_f32(uint16_t b) { return from_bits(static_cast<uint32_t>(b) << 16); }

AICF_HD uint16_t f32_to_bfloat(float x) {
    const uint32_t u = bits(x);
    const uint32_t r = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    const uint32_t nan = (u >> 16) | 0x40u;
    return static_cast<uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? nan : r);
}

// Rounds an f32 to tf32, 10 bits of mantissa; ties to even, as copy engines of GPUs round.
AICF_HD float f32_to_tf32(float x) {
    const uint32_t u = bits(x);
    const uint32_t r =
        (u & 0x7fffffffu) > 0x7f800000u ? u | 0x400000u : u + 0xfffu + ((u >> 13) & 1u);
    return from_bits(r & 0xffffe000u);
}

// An f32 as the sum of three bfloat16, as bits: each is the nearest to what those before leave. The
// sum is exact from 2^-110 on, and below within 2^-134. Of an infinity or a NaN the last is it, so
// that it meets no 0 of another limb: the last one is multiplied by the first alone, which for that
// reason is 0 of zeros and NaN only.
struct Limbs {
    uint16_t at[3];
};
AICF_HD Limbs f32_to_limbs(float x) {
    const uint32_t mag = bits(x) & 0x7fffffffu;
    const auto sign = static_cast<uint16_t>(bits(x) >> 16 & 0x8000u);
    if (mag > 0x7f800000u) return {{sign, 0, 0x7fc0}};
    if (mag == 0x7f800000u)
        return {{static_cast<uint16_t>(sign | 0x3f80u), 0, static_cast<uint16_t>(sign | 0x7f80u)}};
    uint16_t first = f32_to_bfloat(x);
    if ((first & 0x7fffu) == 0x7f80u) first = static_cast<uint16_t>(sign | 0x7f7fu);
    if ((first & 0x7fffu) == 0 && mag) first = static_cast<uint16_t>(sign | 1u);
    const float rest = x - bfloat_to_f32(first);
    const uint16_t second = f32_to_bfloat(rest);
    return {{first, second, f32_to_bfloat(rest - bfloat_to_f32(second))}};
}

// ---- cast --------------------------------------------------------------------------------------

// Float to integer truncates, saturates, and takes NaN to 0; to bool is x != 0; integers wrap.
template <class To, class From>
AICF_HD To cast(From x) {
    if constexpr (is_bool<To>) {
        return x != From(0);
    } else if constexpr (is_bool<From>) {
        return static_cast<To>(static_cast<int32_t>(bit_cast<uint8_t>(x)));
    } else if constexpr (is_float<From> && !is_float<To>) {
        constexpr bool is_signed = static_cast<To>(-1) < static_cast<To>(1);
        constexpr To hi = static_cast<To>(static_cast<BitsOf<To>>(-1) >> (is_signed ? 1 : 0));
        constexpr To lo = is_signed ? static_cast<To>(-hi - 1) : To(0);
        constexpr From past = From(2) * static_cast<From>(hi / 2 + 1);
        const bool in = (x >= static_cast<From>(lo)) & (x < past);
        const From safe = in ? x : From(0);
        To r;
        if constexpr (sizeof(To) < 4)
            r = static_cast<To>(static_cast<int32_t>(safe));
        else
            r = static_cast<To>(safe);
        const To over = x >= past ? hi : (x < static_cast<From>(lo) ? lo : To(0));
        return in ? r : over;
    } else {
        return static_cast<To>(x);
    }
}

// Rounds to float by round-to-odd, so that a second rounding to 16 bits equals one rounding of `x`.
AICF_HD float narrowing(double x) {
    const float near = static_cast<float>(x);
    const double back = static_cast<double>(near);
    const uint32_t away = (x > 0.0 ? back > x : back < x) ? 1u : 0u;
    const uint32_t inexact = (back < x) | (back > x) ? 1u : 0u;
    return from_bits((bits(near) - away) | inexact);
}
AICF_HD float narrowing(int32_t x) { return narrowing(static_cast<double>(x)); }
AICF_HD float narrowing(int64_t x) {
    const bool large = (x >= (1ll << 53)) | (x <= -(1ll << 53));  // not exact in a double
    const int64_t odd = (x & ~0x7ffll) | ((x & 0x7ffll) != 0 ? 0x400ll : 0ll);
    return narrowing(static_cast<double>(large ? odd : x));
}
template <class T>
AICF_HD float narrowing(T x) {
    return cast<float>(x);
}

}  // namespace aicf::scalar
