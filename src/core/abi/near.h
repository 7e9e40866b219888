// Functions of f32 for several numbers at a time, without a branch and with few operations for
// each.
#pragma once

#include "core/abi/scalar.h"

namespace aicf::scalar {

// The bits of sin, cos, exp and sigmoid, and of the short forms of the first two, where these need
// no long reduction and no bounds. `near` says whether all numbers were such ones, none a NaN;
// other types have no such forms.
#define AICF_NEAR(fn)                                   \
    template <class T>                                  \
    AICF_HD T fn##_near(const Constants&, bool&, T x) { \
        return fn(x);                                   \
    }
AICF_NEAR(sin)
AICF_NEAR(cos)
AICF_NEAR(exp)
AICF_NEAR(sigmoid)
AICF_NEAR(sin_brain)
AICF_NEAR(cos_brain)
#undef AICF_NEAR
template <class T>
AICF_HD T tanh(const Constants&, T x) {
    return tanh(x);
}
// The bits of tanh for x from -9.5 to 9.5, and NaN for NaN.
template <class T>
AICF_HD T tanh_bounded(const Constants&, T x) {
    return tanh(x);
}
AICF_HD float tanh_bounded(const Constants& c, float x) { return tanh_of(c, abs(x), x); }
AICF_HD float sin_near(const Constants& c, bool& near, float x) {
    near &= abs(x) <= kSinFastLimit;
    return sin_fast(x, reduce_half(x, c), c);
}
AICF_HD float cos_near(const Constants&, bool& near, float x) {
    near &= abs(x) <= kSinFastLimit;
    return cos_fast(x, reduce_fast(x));
}
AICF_HD float sin_brain_near(const Constants&, bool& near, float x) {
    near &= abs(x) <= kSinFastLimit;
    return sin_brain_fast(x);
}
AICF_HD float cos_brain_near(const Constants&, bool& near, float x) {
    near &= abs(x) <= kSinFastLimit;
    return cos_brain_fast(x);
}
// e^x 2^more, a normal number: the exponent is added to by one operation.
AICF_HD float exp_shifted(float x, float more, const Constants& c = {}) {
    const float magic = 0x1.8p23f + more, big = fma(x, c.log2e, magic), k = big - magic;
    const float r = fma(k, 0x1.05c61p-29f, fma(k, -0x1.62e43p-1f, x));
    return from_bits(bits(fma(exp_poly(r, c), r, 1.0f)) + (bits(big) << 23));
}
AICF_HD float exp_near(const Constants& c, bool& near, float x) {
    near &= x <= 44.0f;
    return exp_shifted(at_least(x, -104.0f), 64.0f, c) * 0x1p-64f;
}
// The same of x from -87 to 88, which asks for nothing.
template <class T>
AICF_HD T exp_normal(const Constants&, T x) {
    return exp(x);
}
AICF_HD float exp_normal(const Constants& c, float x) { return exp_shifted(x, 0.0f, c); }
AICF_HD float sigmoid_near(const Constants& c, bool& near, float x) {
    near &= abs(x) <= 86.0f;
    const float z = exp_shifted(-x, 0.0f, c), q = reciprocal(z + 1.0f);
    return fma(fma(-q, z, 1.0f) - q, q, q);
}
// A step of Adam whose root and quotient need no branch.
template <class T>
AICF_HD T adam_p_near(bool&, T p, T m, T v, T bc1_inv, T bc2_inv, T lr, T eps) {
    return adam_p(p, m, v, bc1_inv, bc2_inv, lr, eps);
}
AICF_HD float adam_p_near(bool& near, float p, float m, float v, float bc1_inv, float bc2_inv,
                          float lr, float eps) {
    const float a = m * bc1_inv, x = v * bc2_inv, d = plain_sqrt(x) + eps;
    near &= bits(x) - 1u >= 0x0cffffffu;          // 0, or 2^-101 and above
    near &= d >= 0x1p-64f && d <= 0x1p30f;        // so x was none below 0, and no NaN
    near &= abs(a) >= 0x1p-96f || bits(a) == 0u;  // -0 over d is -0
    near &= abs(a) <= 0x1p60f;
    return fma(-lr, plain_div(a, d), p);
}

// Up to where |x| may lie for |x| scale + shift to stay below `most`, whatever the roundings, x
// itself being finite; -1 where that is not known, as of numbers that are no finite ones.
AICF_HD float near_limit(float most, float scale, float shift) {
    const float limit = (0.99f * most - shift) * 0.99f * reciprocal(scale);
    return limit > 0.0f && scale >= 0x1p-100f ? at_most(limit, 0x1p100f) : -1.0f;
}

// |x| < limit if bits(x * x) is below this. It is 0, which no bits are below, unless limit > 0.
AICF_HD uint32_t square_below(float limit) { return limit > 0.0f ? bits(limit * limit) : 0u; }

}  // namespace aicf::scalar
