// What a tensor core of the family sm_90 computes at a time, in integers: an accumulator and the
// products of 16 pairs of 16 bits, or of 8 pairs of tf32, summed as one. All terms are cut toward
// zero to 25 bits behind the point of the largest, added exactly, and the sum is cut toward zero to
// an f32. Zeros take no part in what is largest, and 2^-133 is the least that counts as such.
#pragma once

#include "core/abi/scalar.h"

namespace aicf::scalar {

/// An operand as mantissa * 2^(exponent - 10). Of a zero the exponent is so low, and of an infinity
/// (mantissa 1 or -1) or a NaN (mantissa 0) so high, that it shows in that of any product.
struct MmaTerm {
    int32_t mantissa, exponent;
};

/// The pairs of limbs whose products limbs(c) adds, in its order, an operand's in each column.
constexpr int kLimbPairs[6][2] = {{2, 0}, {0, 2}, {1, 1}, {1, 0}, {0, 1}, {0, 0}};

constexpr int32_t kMmaNever = -1000, kMmaSpecial = 4000, kMmaLeast = -133, kMmaPoint = 25;

/// Of the bits of a float of 1 + Exponent + Fraction bits, Fraction <= 10.
template <int Exponent, int Fraction>
AICF_HD MmaTerm mma_term(uint32_t x) {
    constexpr int32_t top = (1 << Exponent) - 1, bias = top / 2;
    const auto biased = int32_t(x >> Fraction & uint32_t(top));
    const auto fraction = int32_t(x & ((1u << Fraction) - 1));
    const int32_t sign = x >> (Exponent + Fraction) & 1 ? -1 : 1;
    if (biased == top) return {fraction ? 0 : sign, kMmaSpecial};
    if (biased == 0 && fraction == 0) return {0, kMmaNever};
    const int32_t whole = biased ? fraction | 1 << Fraction : fraction;
    return {sign * (whole << (10 - Fraction)), (biased ? biased : 1) - bias};
}
AICF_HD MmaTerm mma_half(uint16_t x) { return mma_term<5, 10>(x); }
AICF_HD MmaTerm mma_bfloat(uint16_t x) { return mma_term<8, 7>(x); }
AICF_HD MmaTerm mma_tf32(uint32_t x) { return mma_term<8, 10>(x >> 13); }

/// The result where a term is an infinity or none.
template <int Depth>
AICF_HD float mma_special(float acc, const MmaTerm* a, const MmaTerm* b) {
    bool none = false, plus = false, minus = false;
    if ((bits(acc) & 0x7f800000u) == 0x7f800000u) {
        none = bits(acc) & 0x7fffffu;
        (bits(acc) >> 31 ? minus : plus) = true;
    }
    for (int p = 0; p < Depth; p++) {
        if (a[p].exponent != kMmaSpecial && b[p].exponent != kMmaSpecial) continue;
        const int32_t product = a[p].mantissa * b[p].mantissa;  // 0: of a NaN, or by zero
        none |= product == 0;
        plus |= product > 0;
        minus |= product < 0;
    }
    return from_bits(none || (plus && minus) ? 0x7fffffffu : plus ? 0x7f800000u : 0xff800000u);
}

/// A magnitude of that exponent in units of the last bit that the largest keeps.
AICF_HD int32_t mma_kept(int32_t magnitude, int32_t exponent, int32_t largest) {
    const int32_t drop = largest - exponent;
    return magnitude >> (drop < 31 ? drop : 31);
}

/// acc + a[0] b[0] + ... + a[Depth - 1] b[Depth - 1].
template <int Depth>
AICF_HD float mma_step(float acc, const MmaTerm* a, const MmaTerm* b) {
    const uint32_t sum_bits = bits(acc);
    const auto biased = int32_t(sum_bits >> 23 & 0xff);
    const int32_t whole = int32_t(sum_bits & 0x7fffffu) | (biased ? 1 << 23 : 0);
    const int32_t acc_exponent = whole ? (biased ? biased : 1) - 127 : kMmaNever;
    int32_t largest = acc_exponent > kMmaLeast ? acc_exponent : kMmaLeast;
    for (int p = 0; p < Depth; p++) {
        const int32_t exponent = a[p].exponent + b[p].exponent;
        largest = exponent > largest ? exponent : largest;
    }
    if (largest > kMmaSpecial / 2 || biased == 0xff) return mma_special<Depth>(acc, a, b);
    int64_t sum = mma_kept(whole << (kMmaPoint - 23), acc_exponent, largest);
    if (sum_bits >> 31) sum = -sum;
    for (int p = 0; p < Depth; p++) {
        const int32_t product = a[p].mantissa * b[p].mantissa;
        const int32_t kept = mma_kept((product < 0 ? -product : product) << (kMmaPoint - 20),
                                      a[p].exponent + b[p].exponent, largest);
        sum += product < 0 ? -kept : kept;
    }
    if (sum == 0) return 0.0f;
    const uint32_t sign = sum < 0 ? 0x80000000u : 0;
    const auto magnitude = uint64_t(sum < 0 ? -sum : sum);  // in units of 2^unit
    const int32_t unit = largest - kMmaPoint;
    const int32_t highest = int32_t(bit_cast<uint64_t>(double(magnitude)) >> 52) - 1023;
    const int32_t lowest = unit + highest - 23 > -149 ? unit + highest - 23 : -149;
    const int32_t drop = lowest - unit;
    const auto mantissa = uint32_t(drop > 0 ? magnitude >> drop : magnitude << -drop);
    if (mantissa == 0) return 0.0f;
    if (lowest + 23 > 127) return from_bits(sign | 0x7f800000u);
    return from_bits(sign | uint32_t(mantissa >> 23 ? lowest + 150 : 0) << 23 |
                     (mantissa & 0x7fffffu));
}

}  // namespace aicf::scalar
