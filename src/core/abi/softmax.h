// What softmax and cross entropy make of the elements of a row whose largest is known.
#pragma once

#include "core/abi/near.h"

namespace aicf::scalar {

// Exponentials of the elements of a row: e^(x - most).
template <class T>
struct RowExps {
    T most;

    AICF_HD static RowExps of(T most) { return {most}; }
    AICF_HD T operator()(T x) const { return exp(x - most); }
    // The same where x - most >= -87.
    AICF_HD T near(T x) const { return exp(x - most); }
    // Whether the row's exponentials have that form.
    AICF_HD static bool has_near(T) { return true; }
    // The sum of exponentials as it came; of those of NaN and infinities it is NaN.
    AICF_HD static T total(T, T sum) { return sum; }
    // log of the sum of e^(x - most), of which `sum` is that of the row's exponentials.
    AICF_HD static T log_sum(T, T sum) { return log(sum); }
    AICF_HD static T loss(T x, T most, T sum) { return log(sum) - (x - most); }
};
template <>
AICF_HD float RowExps<float>::near(float x) const {
    return exp_shifted(x - most, 0.0f);
}

// 2^(x log2(e) - M), a normal number, for shift = 0x1.8p23 - M; to 2 ULP but for log2(e), which is
// off by 2e-8: by a factor that elements of about the same size share.
AICF_HD float exp_by_shift(float x, float shift) {
    const float big = fma(x, 1.44269502f, shift), f = fma(x, 1.44269502f, shift - big);
    const float p =
        horner(f, 1.0f, 0.693147004f, 0.240222469f, 0.0555071086f, 0.00967129227f, 0.00132695353f);
    return from_bits(bits(p) + (bits(big) << 23));
}
// log(x 2^n) of a normal x; NaN of NaN.
AICF_HD float log_shifted(float x, float n) {
    const uint32_t u = bits(x), e = (u - 0x3f2aaaabu) & 0xff800000u;  // as log has them
    const float f = from_bits(u - e) - 1.0f;
    const float k = fma(static_cast<float>(static_cast<int32_t>(e)), 0x1p-23f, n);
    const float y = fma(k, 0x1.62e43p-1f, fma(f * f, log1p_poly(f), f));
    return x == x ? y : x;
}

// The sum of a row's exponentials, or NaN where `most` is not finite, as where an element is NaN.
template <class T>
AICF_HD T row_sum(T most, T sum) {
    return most - most == T(0) ? sum : static_cast<T>(from_bits(0x7fc00000u));
}
// Exponentials of rows of 16-bit elements: 2^(x log2(e) - M), where M is the whole number next to
// most log2(e): e^(x - most) times a factor from 0.7 to 1.42 that all of the row share. It is gone
// from quotients of exponentials and sums of them, and another M gives the same bits times a power
// of two as long as nothing underflows. So one product reduces an exponent, and a row of moderate
// elements needs no M. An exponential 86.5 or more below the largest element is 0: none lies below
// the normal numbers.
struct RowExps16 {
    static constexpr float kMagic = 0x1.8p23f;  // adding it rounds to an integer
    static constexpr float kSpan = 86.5f;
    static constexpr float kLarge = 0x1p16f;  // a larger `most` is taken off the elements
    static constexpr float kSmall = 43.0f;    // a row of these or smaller needs no M

    float base, low, shift;

    AICF_HD static float shift_of(float most) {
        return kMagic - (fma(most, 1.44269502f, kMagic) - kMagic);
    }
    AICF_HD static RowExps16 of(float most) {
        const float base = has_near(most) ? 0.0f : most, top = most - base;
        return {base, top - kSpan, shift_of(top)};
    }
    AICF_HD float operator()(float x) const {
        const float v = x - base;
        const bool some = v > low;
        const float y = exp_by_shift(some ? v : low, shift);
        return some ? y : 0.0f;
    }
    AICF_HD float near(float x) const { return exp_by_shift(x, shift); }
    AICF_HD static bool has_near(float most) { return abs(most) <= kLarge; }
    AICF_HD static float total(float most, float sum) { return row_sum(most, sum); }
    // A sum of exponentials with M = 0, with that of `most`.
    AICF_HD static float scaled_sum(float most, float sum) {
        return from_bits(bits(sum) + ((bits(shift_of(most)) - bits(kMagic)) << 23));
    }
    AICF_HD static float log_sum(float most, float sum) {
        const RowExps16 exps = of(most);
        return exps.log_quotient(sum, most - exps.base);
    }
    AICF_HD static float loss(float x, float most, float sum) {
        const RowExps16 exps = of(most);
        const float v = x - exps.base;
        const bool some = v > exps.low;  // or what its exponential lacks is added
        const float y = exps.log_quotient(sum, some ? v : most - exps.base);
        return some ? y : y - (x - most);
    }

  private:
    // log(sum / exponential) of x + base.
    AICF_HD float log_quotient(float sum, float x) const {
        const float n = kMagic - fma(x, 1.44269502f, kMagic);  // e^x = 2^-n p, p from 0.7 to 1.42
        return log_shifted(plain_div(sum, exp_by_shift(x, kMagic + n)), n + (kMagic - shift));
    }
};

// Those of elements of so many bytes.
template <class T, int Bytes>
struct ExpsOf {
    typedef RowExps<T> type;
};
template <>
struct ExpsOf<float, 2> {
    typedef RowExps16 type;
};

// `sum` is that of the row's exponentials, `share` scale / sum.
template <class Exps, class T>
AICF_HD T cross_entropy_grad(const Exps& exps, T x, T share) {
    return exps(x) * share;
}
template <class Exps, class T>
AICF_HD T cross_entropy_grad_of_label(const Exps& exps, T x, T sum, T share) {
    return (exps(x) - sum) * share;
}

// A masked row of -inf alone gets terms of 0, and these a sum that they can be divided by.
template <class T>
AICF_HD T masked_most(T most) {
    return most == static_cast<T>(from_bits(0xff800000u)) ? T(0) : most;
}
template <class T>
AICF_HD T masked_sum(T sum) {
    return sum == T(0) ? T(1) : sum;
}

}  // namespace aicf::scalar
