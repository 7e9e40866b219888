// Functions of 16-bit operands and a 16-bit result in fewer steps than those of scalar.h, which are
// made for f32: before they are rounded, results lie within 2^-18 of the exact ones, of a sum of
// two terms within 2^-18 of the larger one. Each has the same bits on any CPU and GPU, the payload
// of a NaN excepted; those of bfloat16 alone have them once they are rounded.
#pragma once

#include "core/abi/ieee.h"

namespace aicf::scalar {

// 2^(t + Shift), which is a normal number where t + Shift lies between -125 and 125.
template <int Shift>
AICF_HD float shifted_exp2(float t) {
    // The low bits of a sum with it are the nearest integer plus Shift.
    const float magic = 0x1.8p23f + static_cast<float>(Shift);
    const float big = t + magic, f = t - (big - magic);
    const float p =
        horner(f, 1.0f, 0.693147004f, 0.240222469f, 0.0555071123f, 0.00967129413f, 0.00132694072f);
    return from_bits(bits(p) + (bits(big) << 23));
}

// sigmoid(v) for v = -t log 2, t from -85 to 165, and sigmoid(-v).
struct Sides {
    float at, opposite;
};
AICF_HD Sides sigmoid_sides(float t) {
    const float z = shifted_exp2<-40>(t), q = reciprocal(z + 0x1p-40f);
    return {q * 0x1p-40f, z * q};
}

// x sigmoid(2u), 2u = x (1.59576912 + 0.0713548163 x^2). From 8 on sigmoid(2u) is 1 to f32's
// digits; from -11 down it is 0.
AICF_HD float gelu_tanh_16(float x) {
    const float low = at_least(x, -11.0f), c = at_most(low, 8.0f);
    const float t = c * fma(-0.102943240f, c * c, -2.30220819f);
    return low * sigmoid_sides(t).at;
}
AICF_HD float gelu_tanh_bwd_16(float x, float dy) {
    const float c = at_most(at_least(x, -11.0f), 8.0f), c2 = c * c;
    const Sides s = sigmoid_sides(c * fma(-0.102943240f, c2, -2.30220819f));
    const float dv = c * fma(0.214064449f, c2, 1.59576912f);
    return dy * (s.at * fma(dv, s.opposite, 1.0f));
}

// Phi(-a) and e^(-a^2/2) for a from 0 to 14: of the one a polynomial in 1/(1 + 0.36 a) times the
// other.
struct Normal {
    float tail, density;
};
AICF_HD Normal normal_16(float a) {
    const float z = shifted_exp2<40>(a * a * -0.721347520f) * 0x1p-40f;
    const float w = reciprocal(fma(0.36f, a, 1.0f));
    const float p = horner(w, 0.143713042f, 0.141772509f, 0.13971892f, 0.0265503656f, 0.1809524f,
                           -0.179763466f, 0.0470559262f);
    return {w * z * p, z};
}
AICF_HD float gelu_erf_16(float x) {
    const float a = at_most(abs(x), 14.0f);
    return (x < 0.0f ? -0.0f : x) - a * normal_16(a).tail;
}
AICF_HD float gelu_erf_bwd_16(float x, float dy) {
    const float a = at_most(abs(x), 14.0f);
    const Normal n = normal_16(a);
    const float left = fma(a * -0.398942292f, n.density, n.tail);
    return dy * (x < 0.0f ? left : 1.0f - left);
}

// Of bfloat16 alone: of each of its 65,536 numbers what scalar.h's own form is, once both are
// rounded, wherever within their bounds near_exp2 and near_reciprocal lie, which tests look
// through. Some of the exact results lie closer to the middle of two numbers than those bounds:
// arguments and factors are off by what brings all of these to their side.
AICF_HD float exp_brain(float x) {
    const float half = near_exp2(fma(x, 0.72134745f, -27.999998f));
    return half * 0x1p56f * half;
}
// sigmoid(x) by way of 2^(shift - x / log 2); `unit` is 2^shift. Around 0 it is a line.
AICF_HD float sigmoid_near_half(float x, float shift, float unit, float scale) {
    const float q = near_reciprocal(near_exp2(fma(x, -1.44269502f, shift)) + unit) * scale;
    return abs(x) < 0x1p-5f ? fma(x, 0.249969482f, 0.5f) : q;
}
AICF_HD float sigmoid_brain(float x) {
    return sigmoid_near_half(x, -31.9999981f, 0x1p-32f, 0x1p-32f);
}
AICF_HD float silu_brain(float x) {
    return at_least(x, -104.0f) * sigmoid_near_half(x, -24.0000019f, 0x1p-24f, 0x1.fffff4p-25f);
}
// A quotient of Pade's; from 5 on tanh is 1 to bfloat16's digits.
AICF_HD float tanh_brain(float x) {
    const float c = at_most(at_least(x, -5.0f), 5.0f), s = c * c;
    const float over = horner(s, 135135.0f, 17325.0f, 378.0f, 1.0f);
    return c * over * near_reciprocal(horner(s, 135135.0f, 62370.0f, 3150.0f, 28.0f));
}
// (-1)^n sin(x - k pi) for k up to 2^15; n stands in the lowest bit of `last`. Both factors of k
// are positive, which keeps the sign of a zero.
AICF_HD float sin_brain_of(float x, float k, uint32_t last) {
    const float r = fma(k, -0x1.4442d2p-23f, fma(k, -0x1.921fb4p1f, x)), s = r * r;
    const float y = r * horner(s, 0.999999046f, -0.16665554f, 0.008311891f, -0.00018487878f);
    return from_bits(bits(y) + (last << 31));
}
// sin and cos of |x| <= kSinFastLimit.
AICF_HD float sin_brain_fast(float x) {
    const float magic = 0x1.8p23f, big = fma(x, 0.318309886f, magic);
    return sin_brain_of(x, big - magic, bits(big));
}
AICF_HD float cos_brain_fast(float x) {
    const float magic = 0x1.8p23f, big = fma(x, 0.318309886f, 0.5f) + magic;
    return sin_brain_of(x, big - magic - 0.5f, bits(big));
}

}  // namespace aicf::scalar

// The pointwise functions of one operand with such a form where operand and result are bfloat16.
#define AICF_POINTWISE_BRAIN(X) X(exp) X(sigmoid) X(silu) X(tanh) X(sin) X(cos)

// The pointwise functions with such a form: X(name, arity). They take it where operands and result
// have 16 bits, and that of scalar.h, rounded, elsewhere.
#define AICF_POINTWISE_16(X) \
    X(gelu_tanh, 1)          \
    X(gelu_erf, 1)           \
    X(gelu_tanh_bwd, 2)      \
    X(gelu_erf_bwd, 2)
