// Functions of f32 for several numbers at a time, without a branch and with few operations for
// each.
#pragma once

#include "core/abi/scalar.h"

namespace aicf::scalar {

// The bits of sin, cos, exp and sigmoid where these need no long reduction and no bounds. `near`
// says whether all numbers were such ones, none a NaN; other types have no such forms.
#define AICF_NEAR(fn)                 \
    template <class T>                \
    AICF_HD T fn##_near(bool&, T x) { \
        return fn(x);                 \
    }
AICF_NEAR(sin)
AICF_NEAR(cos)
AICF_NEAR(exp)
AICF_NEAR(sigmoid)
#undef AICF_NEAR
AICF_HD float sin_near(bool& near, float x) {
    near &= abs(x) <= kSinFastLimit;
    return sin_fast(x, reduce_half(x));
}
AICF_HD float cos_near(bool& near, float x) {
    near &= abs(x) <= kSinFastLimit;
    return cos_fast(x, reduce_fast(x));
}
// e^x 2^more, a normal number: the exponent is added to by one operation.
AICF_HD float exp_shifted(float x, float more) {
    const float magic = 0x1.8p23f + more, big = fma(x, 1.44269502f, magic), k = big - magic;
    const float r = fma(k, 0x1.05c61p-29f, fma(k, -0x1.62e43p-1f, x));
    return from_bits(bits(fma(exp_poly(r), r, 1.0f)) + (bits(big) << 23));
}
AICF_HD float exp_near(bool& near, float x) {
    near &= x <= 44.0f;
    return exp_shifted(at_least(x, -104.0f), 64.0f) * 0x1p-64f;
}
AICF_HD float sigmoid_near(bool& near, float x) {
    near &= abs(x) <= 86.0f;
    const float z = exp_shifted(-x, 0.0f), q = reciprocal(z + 1.0f);
    return fma(fma(-q, z, 1.0f) - q, q, q);
}

// Up to where |x| may lie for |x| scale + shift to stay below `most`, whatever the roundings; -1
// where that is not known.
AICF_HD float near_limit(float most, float scale, float shift) {
    const float limit = (0.99f * most - shift) * 0.99f * reciprocal(scale);
    return limit > 0.0f ? limit : -1.0f;
}

}  // namespace aicf::scalar
