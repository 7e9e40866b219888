// Every pointwise function, written once, compiled by the C++ compiler and by NVRTC: those of f32
// and of all types here, those of f64 in scalar64.h, of 16 bits in scalar16.h, over the vocabulary
// of ieee.h. Each has the same bits on any CPU and GPU, the payload of a NaN excepted.
//
// Bodies are straight-line code with selects, so that a loop over them vectorises; only the
// reduction of huge arguments of sin and cos branches. Coefficients: own weighted minimax fits,
// rounded to f32 one at a time from the lowest degree, the rest refitted.
#pragma once

#include "core/abi/elementary.h"
#include "core/abi/formats.h"
#include "core/abi/scalar16.h"

namespace aicf::scalar {

// ---- arithmetic, comparison, selection ---------------------------------------------------------

// Integers wrap. Of 16 bits a plain product would be one of signed ints, which may not overflow.
#define AICF_ARITHMETIC(name, op)                                                               \
    template <class T>                                                                          \
    AICF_HD T name(T a, T b) {                                                                  \
        if constexpr (is_float<T>)                                                              \
            return a op b;                                                                      \
        else                                                                                    \
            return static_cast<T>(1u * static_cast<BitsOf<T>>(a) op static_cast<BitsOf<T>>(b)); \
    }
AICF_ARITHMETIC(add, +)
AICF_ARITHMETIC(sub, -)
AICF_ARITHMETIC(mul, *)
#undef AICF_ARITHMETIC

template <class T>
AICF_HD T neg(T a) {
    if constexpr (is_float<T>)
        return -a;
    else
        return sub(T(0), a);
}
template <class T>
AICF_HD T abs(T a) {
    return a <= T(0) ? neg(a) : a;
}

// A zero keeps its sign, NaN stays NaN.
template <class T>
AICF_HD T sign(T a) {
    return a > T(0) ? T(1) : (a == T(0) || a != a ? a : neg(T(1)));
}

#define AICF_COMPARE(name, op)    \
    template <class T>            \
    AICF_HD bool name(T a, T b) { \
        return a op b;            \
    }
AICF_COMPARE(eq, ==)
AICF_COMPARE(ne, !=)
AICF_COMPARE(lt, <)
AICF_COMPARE(le, <=)
AICF_COMPARE(gt, >)
AICF_COMPARE(ge, >=)
#undef AICF_COMPARE

AICF_HD bool logical_and(bool a, bool b) { return a & b; }
AICF_HD bool logical_or(bool a, bool b) { return a | b; }
AICF_HD bool logical_xor(bool a, bool b) { return a != b; }
AICF_HD bool logical_not(bool a) { return a != true; }
#define AICF_BITWISE(name, op)         \
    template <class T>                 \
    AICF_HD T name(T a, T b) {         \
        return static_cast<T>(a op b); \
    }
AICF_BITWISE(bitwise_and, &)
AICF_BITWISE(bitwise_or, |)
AICF_BITWISE(bitwise_xor, ^)
#undef AICF_BITWISE
// By as many places as there are, or by fewer than none, every bit is shifted out.
template <class T>
AICF_HD T bitwise_left_shift(T a, T places) {
    const bool some = (places >= T(0)) & (places < T(8 * sizeof(T)));
    const auto moved = static_cast<T>(static_cast<BitsOf<T>>(a) << (some ? places : T(0)));
    return some ? moved : T(0);
}
template <class T>
AICF_HD T bitwise_right_shift(T a, T places) {
    const bool some = (places >= T(0)) & (places < T(8 * sizeof(T)));
    const T out = a < T(0) ? static_cast<T>(-1) : T(0);
    return some ? static_cast<T>(a >> (some ? places : T(0))) : out;
}
template <class T>
AICF_HD bool isnan(T a) {
    return a != a;
}
// The condition is widened by hand: a select on a bool from memory does not vectorise.
template <class T>
AICF_HD T where(bool c, T a, T b) {
    const auto wide = static_cast<BitsOf<T>>(bit_cast<uint8_t>(c));
    return wide != 0 ? a : b;
}

// Equal floats differ in bits only as zeros of two signs: `and` of the bits is +0, `or` is -0.
template <class T>
AICF_HD T maximum(T a, T b) {
    if constexpr (is_float<T>) {
        const T zero = bit_cast<T>(bit_cast<BitsOf<T>>(a) & bit_cast<BitsOf<T>>(b));
        const T rest = a == b ? zero : a + b;
        return a > b ? a : (a < b ? b : rest);
    } else {
        return a > b ? a : b;
    }
}
template <class T>
AICF_HD T minimum(T a, T b) {
    if constexpr (is_float<T>) {
        const T zero = bit_cast<T>(bit_cast<BitsOf<T>>(a) | bit_cast<BitsOf<T>>(b));
        const T rest = a == b ? zero : a + b;
        return a < b ? a : (a > b ? b : rest);
    } else {
        return a < b ? a : b;
    }
}
template <class T>
AICF_HD T copy(T x) {
    return x;
}
template <class T>
AICF_HD T bias_add(T x, T b) {
    return add(x, b);
}
template <class T>
AICF_HD T clip(T x, T lo, T hi) {
    const T y = x < lo ? lo : x;
    return y > hi ? hi : y;
}
template <class T>
AICF_HD T relu(T x) {
    return x <= T(0) ? T(0) : x;
}
template <class T>
AICF_HD T leaky_relu(T x, T slope) {
    return x > T(0) ? x : x * slope;
}

// 1/sqrt(x) as a rounded quotient, then one Newton step whose residual is exact to second order.
AICF_HD float rsqrt(float x) {
    const float y = div(1.0f, sqrt(x));
    const float t = x * y;
    const float e = fma(-t, y, 1.0f) - fma(x, y, -t) * y;
    const float r = fma(0.5f * y, e, y);
    return x > 0.0f && x <= 0x1.fffffep127f ? r : y;
}

// Constants that meet a second one in an instruction: a GPU's loop holds them in registers.
struct Constants {
    float log2e = 1.44269502f, exp_last = 0.00138634886f;
    float half = 0.5f, twice_log2e = 2.0f * 1.44269502f, tanh_last = 0.0445771515f;
    float inverse_pi = 0.318309886f, sin_last = -2.55032848e-08f;
};

// ---- exp and what is made of it ----------------------------------------------------------------

struct ExpReduced {  // x = r + (e >> 23) log 2
    float r;
    uint32_t e;
};
AICF_HD ExpReduced exp_reduce(float x) {
    const float magic = 0x1.8p23f;  // adding it rounds to an integer, kept in the low bits
    const float big = fma(x, 1.44269502f, magic);
    const float k = big - magic;
    return {fma(k, 0x1.05c61p-29f, fma(k, -0x1.62e43p-1f, x)), bits(big) << 23};
}

AICF_HD float exp_poly(float r, const Constants& c = {}) {  // (e^r - 1)/r
    return horner(r, 1.0f, 0.5f, 0.166665331f, 0.0416672453f, 0.00836762041f, c.exp_last);
}

// e^(x + x_lo) = (hi + lo) * 2^(e >> 23) for |x| <= 120, x_lo far below x; hi in [0.7, 1.42].
struct ExpParts {
    float hi, lo;
    uint32_t e;
};
AICF_HD ExpParts exp_parts(ExpReduced v, float x_lo) {
    const float r = v.r - x_lo, p = exp_poly(r), hi = fma(p, r, 1.0f);
    return {hi, fma(p, r, 1.0f - hi), v.e};
}
AICF_HD ExpParts exp_parts(float x, float x_lo) { return exp_parts(exp_reduce(x), x_lo); }

// p * 2^(e >> 23), |e >> 23| <= 250, in two factors so that only the last product rounds.
AICF_HD float scale2(float p, uint32_t e) {
    const uint32_t half =
        (static_cast<uint32_t>(static_cast<int32_t>(e) >> 24) << 23) + 0x3f800000u;
    return p * from_bits(half) * from_bits(e - half + 0x7f000000u);
}
// The same for e >> 23 from -180 to 32, whose first factor is at hand.
AICF_HD float scale_down(float p, uint32_t e) { return p * from_bits(e + 0x5f800000u) * 0x1p-64f; }
AICF_HD float pow2(uint32_t e) { return from_bits(e + 0x3f800000u); }

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
AICF_HD ExpReduced exp_begin(float x) { return exp_reduce(at_most(at_least(x, -104.0f), 89.0f)); }
AICF_HD float exp_end(float, ExpReduced v) { return scale2(exp_parts(v, 0.0f).hi, v.e); }
#else
AICF_HD ExpReduced exp_begin(float x) {
    // Clamped as integers, which cost a vector unit less than selects: those of floats above +0
    // ascend with them, those of floats below -0 as they fall. Only NaN is lost.
    const int32_t top = bit_cast<int32_t>(89.0f), u = bit_cast<int32_t>(x);
    const uint32_t low = bits(-104.0f), v = static_cast<uint32_t>(u < top ? u : top);
    return exp_reduce(from_bits(v < low ? v : low));
}
AICF_HD float exp_end(float x, ExpReduced v) {
    const uint32_t nan = (bits(x) & 0x7fffffffu) > 0x7f800000u ? ~0u : 0u;
    return from_bits(bits(scale2(exp_parts(v, 0.0f).hi, v.e)) | nan);
}
#endif
AICF_HD float exp(float x) { return exp_end(x, exp_begin(x)); }

// e^x - 1 for x <= 88, accurate near 0.
AICF_HD float expm1_below(float x) {
    const auto [r, e] = exp_reduce(x < -25.0f ? -25.0f : x);
    const float p = horner(r, 0.5f, 0.166666657f, 0.0416664593f, 0.00833356474f, 0.00139354623f,
                           0.000197456189f);
    const float q = fma(r * r, p, r);
    const float s = pow2(e);
    const float y = fma(s, q, s - 1.0f);
    return abs(x) < 0x1p-26f ? x : y;
}

AICF_HD float expm1(float x) {
    const float y = expm1_below(x > 88.0f ? 88.0f : x);
    return x > 88.0f ? exp(x) : y;
}

// sigmoid(-a) = s * 2^(e >> 23) for a >= 0; a_lo continues a. The residual corrects the quotient.
struct Tail {
    float s;
    uint32_t e;
};
AICF_HD Tail sigmoid_tail(float a, float a_lo) {
    const float c = a > 110.0f ? 110.0f : a;
    const ExpParts e = exp_parts(-c, a_lo);
    // z 2^-64 is taken unrounded: below a normal number it changes neither sum.
    const float z = e.hi * from_bits(e.e + 0x5f800000u);
    const float d = fma(z, 0x1p-64f, 1.0f), d_lo = fma(z, 0x1p-64f, 1.0f - d);
    const float inv = reciprocal(d);
    const float q = e.hi * inv;
    const float rem = fma(-q, d, e.hi) + fma(-q, d_lo, e.lo);
    return {fma(rem, inv, q), e.e};
}
// 1/(1 + z), z = e^-x. What 1 - z q differs from q by, q the rounded quotient, corrects q by what
// the sum and the quotient were rounded by. z and 1 have a factor 2^-64 here, for results below
// 2^-126.
AICF_HD float sigmoid(float x) {
    const ExpReduced v = exp_reduce(-at_most(at_least(x, -104.0f), 40.0f));
    const float z = fma(exp_poly(v.r), v.r, 1.0f) * from_bits(v.e + 0x1f800000u);
    const float q = reciprocal(z + 0x1p-64f);
    return fma(fma(-q, 0x1p-64f, fma(-q, z, 1.0f)), q, q) * 0x1p-64f;
}

// x*sigmoid(v) = max(x, 0) - |x|*sigmoid(-|v|), v of x's sign: no cancellation, no overflow.
AICF_HD float gate(float x, float v, float v_lo) {
    const float a = abs(x) > 110.0f ? 110.0f : abs(x);
    const Tail t = sigmoid_tail(abs(v), v_lo);
    return (x < 0.0f ? -0.0f : x) - scale_down(a * t.s, t.e);
}
AICF_HD float silu(float x) { return gate(x, x, 0.0f); }

// 0.5 x (1 + tanh(u)) = x sigmoid(2u), 2u = x (1.59576912 + 0.0713548163 x^2). The tail magnifies
// an error of 2u by 2u, so the factor is kept as c + low, its constants' own rounding included.
AICF_HD float gelu_tanh(float x) {
    const float a = abs(x) > 110.0f ? 110.0f : abs(x);
    const float a2 = a * a, a2_low = fma(a, a, -a2);
    const float p = 0.0713548163f * a2, p_low = fma(0.0713548163f, a2, -p);
    const float c = p + 1.59576912f, q = c - p;
    const float c_low = (p - (c - q)) + (1.59576912f - q);
    const float low =
        c_low + fma(0.0713548163f, a2_low, p_low) + fma(2.39883240e-9f, a2, -4.53406803e-8f);
    const float v = a * c;
    return gate(x, v, v > 110.0f ? 0.0f : fma(a, low, fma(a, c, -v)));
}

// Phi(-a) = s * 2^(e >> 23) for a in [0, 14.75], as e^(-a^2/2) times a polynomial in
// w = 1/(1 + 0.3 a). Callers clamp: a second limit here would cost selects that nothing folds.
struct NormalTail {
    float s;
    float density;  // e^(-a^2/2) without the power of 2
    uint32_t e;
};
AICF_HD NormalTail normal_tail(float a) {
    const float h = a * a;
    const ExpParts e = exp_parts(-0.5f * h, 0.5f * fma(a, a, -h));
    const float w = reciprocal(fma(0.3f, a, 1.0f));
    const float p =
        w * horner(w, 0.1196867f, 0.119571611f, 0.110237084f, 0.0783820003f, 0.0961787254f,
                   -0.0794639066f, 0.191832751f, -0.22824952f, 0.112450808f, -0.0206262562f);
    return {fma(p, e.hi, p * e.lo), e.hi, e.e};
}
AICF_HD float gelu_erf(float x) {
    const float a = abs(x) > 14.5f ? 14.5f : abs(x);
    const NormalTail t = normal_tail(a);
    return (x < 0.0f ? -0.0f : x) - scale_down(a * t.s, t.e);
}

// n/(1 + n), n = (e^(2 a) - 1)/2, a = |x| = r + k log(2)/2: n = 2^k r + (2^k - 1)/2 + 2^k r^2 p(r).
// The first two are exact where n is small; n - q is, too, so that 1 + n need not be.
AICF_HD float tanh_of(const Constants& c, float a, float x) {  // a = |x|, 9.5 at most
    const float magic = 0x1.8p23f, big = fma(a, c.twice_log2e, magic), k = big - magic;
    const float r = fma(k, -0x1.62e43p-2f, a), s = from_bits((bits(big) << 23) + 0x3f800000u);
    const float p = horner(r, 1.00000012f, 0.666662574f, 0.333324224f, 0.133816704f, c.tanh_last);
    const float n = fma(s * (r * r), p, fma(s, r, fma(s, c.half, -0.5f)));
    const float inv = reciprocal(n + 1.0f), q = n * inv;
    return from_bits(bits(fma(fma(-q, n, n - q), inv, q)) | (bits(x) & 0x80000000u));
}
AICF_HD float tanh(const Constants& c, float x) { return tanh_of(c, at_most(abs(x), 9.5f), x); }
AICF_HD float tanh(float x) { return tanh({}, x); }

AICF_HD float erf(float x) {
    const float a = abs(x) > 4.0f ? 4.0f : abs(x), s = a * a;
    const float p = horner(s, 0.128379166f, -0.376126289f, 0.112836257f, -0.0268557295f,
                           0.00519239297f, -0.000804953044f, 7.99517511e-05f);
    const float small = fma(a, p, a);
    // -log(erfc(a))/a; even and odd powers apart for the latency
    const float even = horner(s, 1.12855518f, 0.105294883f, 0.00295188534f, -4.399311e-05f);
    const float odd = horner(s, 0.635609031f, -0.0227087103f, -5.75714803e-05f, 4.80637163e-06f);
    const ExpParts e = exp_parts(-a * fma(odd, a, even), 0.0f);
    const float large = fma(-e.hi, pow2(e.e), 1.0f);
    return copysign(a < 0.925f ? small : large, x);
}

template <class T>
AICF_HD T elu(T x, T alpha) {
    return x > T(0) ? x : alpha * expm1_below(x > T(0) ? T(0) : x);
}

// ---- log ---------------------------------------------------------------------------------------

// log(1 + f) - f over f^2, for |f| <= 1/3.
AICF_HD float log1p_poly(float f) {
    return horner(f, -0.5f, 0.333332151f, -0.249998048f, 0.200104445f, -0.16680181f, 0.140053391f,
                  -0.121883415f, 0.139867246f, -0.128745109f);
}
AICF_HD float log(float x) {
    const bool tiny = x < 0x1p-126f;
    const uint32_t u = bits(tiny ? x * 0x1p23f : x);
    const float bias = tiny ? -23.0f : 0.0f;
    const uint32_t e = (u - 0x3f2aaaabu) & 0xff800000u;  // puts m into [2/3, 4/3)
    const float f = from_bits(u - e) - 1.0f;
    const float k = fma(static_cast<float>(static_cast<int32_t>(e)), 0x1p-23f, bias);
    const float r = fma(f * f, log1p_poly(f), f);
    const float y = fma(k, 0x1.62e43p-1f, r);
    const float edge = x == 0.0f ? from_bits(0xff800000u) : (x > 0.0f ? x : from_bits(0x7fc00000u));
    return x > 0.0f && x <= 0x1.fffffep127f ? y : edge;
}

// The parts of a log in f32, as scalar64.h has them: x = m 2^k of a normal x, log(1 + f) = hi + lo.
struct Split32 {
    float m, k;
};
struct Sum32 {
    float hi, lo;
};
AICF_HD Split32 split(float x, float low) {
    const uint32_t e = (bits(x) - bits(low)) & 0xff800000u;
    return {from_bits(bits(x) - e), static_cast<float>(static_cast<int32_t>(e)) * 0x1p-23f};
}
AICF_HD Sum32 log1p_parts(float f) { return {f, f * f * log1p_poly(f)}; }

// log(sum + lost), where 1 + x = sum + lost exactly and sum = m 2^k; x itself where k = 0.
template <class T>
AICF_HD T log1p(T x) {
    constexpr bool wide = sizeof(T) == 8;
    constexpr T ln2_high = wide ? T(kLn2High) : T(0x1.62e4p-1);
    constexpr T ln2_low = wide ? T(kLn2Low) : T(0x1.7f7d1cp-20);
    const T sum = T(1) + x, back = sum - T(1);
    const auto v = split(sum, T(0x1.5555555555555p-1));
    const T lost = ((T(1) - (sum - back)) + (x - back)) * div(v.m, sum);
    const T f = (v.m - T(1)) + lost, f_lo = lost - (f - (v.m - T(1)));
    const auto l = log1p_parts(f);
    const T b = v.k * ln2_high, hi = b + l.hi;
    const T y = hi + (((b - hi) + l.hi) + fma(v.k, ln2_low, l.lo + fma(-f, f_lo, f_lo)));
    const T edge = x == T(-1) ? T(-kInf64) : (x < T(-1) ? T(kNaN64) : x);  // +-0, inf and NaN
    return (x > T(-1)) & (x != T(0)) & (x < T(kInf64)) ? y : edge;
}

// max(x, 0) + log1p(e^-|x|), at every x: PyTorch's threshold of 20 is 1e-10 off in float64.
AICF_HD float softplus(float x) {
    const float a = abs(x) > 104.0f ? 104.0f : abs(x);
    const ExpParts e = exp_parts(-a, 0.0f);
    const float z = scale_down(e.hi, e.e);
    const bool big = z > 0.333333343f;
    const float f = big ? fma(z, 0.5f, -0.5f) : z, shift = big ? 0x1.62e43p-1f : 0.0f;
    const float l = fma(f * f, log1p_poly(f), f);
    return (x < 0.0f ? 0.0f : x) + (l + shift);
}

// ---- sin and cos -------------------------------------------------------------------------------

struct Angle {  // x = hi + lo + quarter * pi/2, |hi| <= 0.8
    float hi, lo;
    uint32_t quarter;
};
constexpr float kSinFastLimit = 65536.0f;

// Cody-Waite in three words. t is a multiple of 2^-23 or of x's last place, and so of that of the
// second product p: what t + p is rounded by is exact without asking which one is larger, and with
// what p was rounded by one operation.
AICF_HD Angle reduce_fast(float x) {
    const float magic = 0x1.8p23f;
    const float big = fma(x, 0.636619747f, magic);
    const float k = big - magic;
    const float t = fma(k, -0x1.921fb6p0f, x);
    const float hi = t + k * 0x1.777a5cp-25f;
    const float lo = fma(k, 0x1.777a5cp-25f, -(hi - t));
    return {hi, fma(k, 0x1.ee59dap-50f, lo), bits(big)};
}

// Payne-Hanek: 24 bits of x times the 96 bits of 2/pi that matter modulo 4.
AICF_HD uint32_t two_over_pi(uint32_t i) {
    return i == 0   ? 0u
           : i == 1 ? 0xa2f9836eu
           : i == 2 ? 0x4e441529u
           : i == 3 ? 0xfc2757d1u
           : i == 4 ? 0xf534ddc0u
           : i == 5 ? 0xdb629599u
                    : 0x3c439041u;
}
AICF_HD Angle reduce_huge(float x) {
    const uint32_t u = bits(x) & 0x7fffffffu;
    const uint32_t at = (u >> 23) - 128u;  // first wanted bit of the table, its zero word included
    const uint32_t word = at >> 5, shift = at & 31u;
    const uint64_t w0 = two_over_pi(word), w1 = two_over_pi(word + 1);
    const uint64_t w2 = two_over_pi(word + 2), w3 = two_over_pi(word + 3);
    const uint32_t h = static_cast<uint32_t>(((w0 << 32 | w1) << shift) >> 32);
    const uint32_t m = static_cast<uint32_t>(((w1 << 32 | w2) << shift) >> 32);
    const uint32_t l = static_cast<uint32_t>(((w2 << 32 | w3) << shift) >> 32);
    const uint32_t i = ((u & 0x7fffffu) | 0x800000u) << 8;
    uint64_t v = static_cast<uint64_t>(i * h) << 32;
    v += static_cast<uint64_t>(i) * m + (static_cast<uint64_t>(i) * l >> 32);
    v += 1ull << 61;  // to the nearest quarter
    const int64_t rest = static_cast<int64_t>(v & (~0ull >> 2)) - (1ll << 61);
    const double d = static_cast<double>(rest) * 0x1.921fb54442d18p-62;
    const double s = x < 0.0f ? -d : d;
    const float hi = static_cast<float>(s);
    const uint32_t quarter = static_cast<uint32_t>(v >> 62);
    return {hi, static_cast<float>(s - hi), x < 0.0f ? 0u - quarter : quarter};
}

// sin(x) for quarter_shift 0, cos(x) for 1.
AICF_HD float sin_of(Angle a, uint32_t quarter_shift) {
    const uint32_t q = a.quarter + quarter_shift;
    const float s = a.hi * a.hi;
    const float p = horner(s, -0.166666672f, 0.00833337847f, -0.000198525624f, 2.82634278e-06f);
    const float sine = a.hi + fma(s, fma(a.hi, p, -0.5f * a.lo), a.lo);
    const float c = horner(s, 0.0416666456f, -0.00138873013f, 2.44306648e-05f);
    const float w = fma(-0.5f, s, 1.0f), w_lo = fma(-0.5f, s, 1.0f - w);
    const float cosine = w + fma(s * s, c, fma(-a.hi, a.lo, w_lo));
    const float w2 = from_bits(q << 30);  // +-0 or +-2
    return from_bits(bits(w2 != 0.0f ? cosine : sine) ^ (bits(w2) & 0x80000000u));
}

// x = hi + k pi, and a sixth of what hi^2 is rounded by. k pi's first part is exact, and so is what
// it leaves; its factors are positive, which keeps the sign of a zero.
AICF_HD Angle reduce_half(float x, const Constants& c = {}) {
    const float magic = 0x1.8p23f, big = fma(x, c.inverse_pi, magic), k = big - magic;
    const float t = fma(k, -0x1.921fb4p1f, x);
    const float hi = fma(k, -0x1.84698ap-47f, fma(k, -0x1.4442d0p-23f, t));
    return {hi, 0.166666667f * fma(-hi, hi, hi * hi), bits(big)};
}

// sin and cos where |x| <= kSinFastLimit, a = reduce_half(x) and reduce_fast(x).
AICF_HD float sin_fast(float, Angle a, const Constants& c = {}) {
    const float s = a.hi * a.hi;
    const float p =
        horner(s, -0.166666672f, 0.00833335053f, -0.000198430935f, 2.76270612e-06f, c.sin_last);
    return from_bits(bits(fma(fma(s, p, a.lo), a.hi, a.hi)) + (a.quarter << 31));
}
AICF_HD float cos_fast(float, Angle a) { return sin_of(a, 1); }
AICF_HD float sin(float x) {
    if (abs(x) <= kSinFastLimit) return sin_fast(x, reduce_half(x));
    if (!(abs(x) <= 0x1.fffffep127f)) return x - x;
    return sin_of(reduce_huge(x), 0);
}
AICF_HD float cos(float x) {
    if (abs(x) <= kSinFastLimit) return cos_fast(x, reduce_fast(x));
    if (!(abs(x) <= 0x1.fffffep127f)) return x - x;
    return sin_of(reduce_huge(x), 1);
}
AICF_HD float sin_brain(float x) { return abs(x) <= kSinFastLimit ? sin_brain_fast(x) : sin(x); }
AICF_HD float cos_brain(float x) { return abs(x) <= kSinFastLimit ? cos_brain_fast(x) : cos(x); }

// ---- pow ---------------------------------------------------------------------------------------

// 2^(y log2|x|) in double, plain IEEE arithmetic only, so one rounding to f32 matters.
AICF_HD float pow(float x, float y) {
    const float ax = abs(x);
    const bool tiny = ax < 0x1p-126f;
    const uint32_t u = bits(tiny ? ax * 0x1p23f : ax);
    const float bias = tiny ? -23.0f : 0.0f;
    const uint32_t e = (u - 0x3f3504f3u) & 0xff800000u;  // puts m into [sqrt(1/2), sqrt(2))
    const double m = from_bits(u - e);
    const float k = fma(static_cast<float>(static_cast<int32_t>(e)), 0x1p-23f, bias);
    const double s = div(m - 1.0, m + 1.0), s2 = s * s;
    const double p = horner(s2, 2.8853900817778495, 0.9617966941143099, 0.57707794207112373,
                            0.41220928271311863, 0.31990443782823813, 0.28291828045074302);
    double t = static_cast<double>(y) * fma(s, p, static_cast<double>(k));
    t = t > 200.0 ? 200.0 : t;
    t = t < -200.0 ? -200.0 : t;
    const double big = t + 0x1.8p52;
    const double r = t - (big - 0x1.8p52);
    const double g = horner(r, 0.99999999996168254, 0.6931471807284546, 0.24022651198155009,
                            0.055504103534243544, 0.0096180272543247309, 0.0013333922590295351,
                            0.00015469290899221765, 1.5201913707082301e-05);
    const double scale = bit_cast<double>((bit_cast<uint64_t>(big) + 1023u) << 52);
    float z = static_cast<float>(g * scale);

    const float inf = from_bits(0x7f800000u);
    const bool integer = floor(y) == y, odd = integer & (floor(0.5f * y) != 0.5f * y);
    z = ax == 0.0f ? (y < 0.0f ? inf : 0.0f) : z;
    z = ax == inf ? (y < 0.0f ? 0.0f : inf) : z;
    z = ax == 1.0f ? 1.0f : z;
    z = from_bits(bits(z) | (odd ? bits(x) & 0x80000000u : 0u));
    z = (x < 0.0f) & !integer & (ax != inf) ? from_bits(0x7fc00000u) : z;
    z = (x != x) | (y != y) ? x + y : z;
    return (y == 0.0f) | (x == 1.0f) ? 1.0f : z;
}

// ---- derivatives, times dy ---------------------------------------------------------------------

template <class T>
AICF_HD T relu_bwd(T x, T dy) {
    return x <= T(0) ? T(0) : dy;  // a NaN lets dy through
}
template <class T>
AICF_HD T leaky_relu_bwd(T x, T dy, T slope) {
    return x > T(0) ? dy : dy * slope;
}
template <class T>
AICF_HD T elu_bwd(T x, T dy, T alpha) {
    return x > T(0) ? dy : dy * (alpha * exp(x > T(0) ? T(0) : x));
}
template <class T>
AICF_HD T clip_bwd(T x, T dy, T lo, T hi) {
    return (x >= lo) & (x <= hi) ? dy : T(0);
}
template <class T>
AICF_HD T tanh_bwd(T y, T dy) {
    return dy * fma(-y, y, T(1));
}
template <class T>
AICF_HD T sigmoid_bwd(T y, T dy) {
    return dy * ((T(1) - y) * y);
}
template <class T>
AICF_HD T softplus_bwd(T x, T dy) {
    return dy * sigmoid(x);
}
template <class T>
AICF_HD T maximum_bwd(T a, T b, T dy) {
    return a == b ? dy * T(0.5) : (a < b ? T(0) : dy);
}
template <class T>
AICF_HD T minimum_bwd(T a, T b, T dy) {
    return a == b ? dy * T(0.5) : (a > b ? T(0) : dy);
}

template <class T>
AICF_HD T mse_grad(T y, T t, T scale) {
    return (y - t) * scale;
}

// The slope at -a, a >= 0, is the stable one to compute; the slope at a is 1 minus it, since
// f(x) - f(-x) = x for each of these.
template <class T>
AICF_HD T silu_bwd(T x, T dy) {
    const T a = abs(x) > T(800) ? T(800) : abs(x);
    const T s = sigmoid(-a);
    const T left = s * fma(-a, T(1) - s, T(1));
    return dy * (x < T(0) ? left : T(1) - left);
}
template <class T>
AICF_HD T gelu_tanh_bwd(T x, T dy) {
    const T a = abs(x) > T(40) ? T(40) : abs(x), a2 = a * a;
    const T v = a * fma(T(0.071354816272600249), a2, T(1.5957691216057308));
    const T dv = a * fma(T(0.21406444881780073), a2, T(1.5957691216057308));
    const T s = sigmoid(-v);
    const T left = s * fma(-dv, T(1) - s, T(1));
    return dy * (x < T(0) ? left : T(1) - left);
}
AICF_HD float gelu_erf_bwd(float x, float dy) {
    const float a = abs(x) > 14.75f ? 14.75f : abs(x);  // the limit is 0
    const NormalTail t = normal_tail(a);
    const float left = scale_down(fma(-a * 0.398942292f, t.density, t.s), t.e);
    return dy * (x < 0.0f ? left : 1.0f - left);
}

// ---- gradients of softmax, whose forward is in softmax.h -------------------------------------

// `sum` is the row's tree sum: of y dy for softmax, of dy for log_softmax.
template <class T>
AICF_HD T softmax_bwd(T y, T dy, T sum) {
    return y * (dy - sum);
}
template <class T>
AICF_HD T log_softmax_bwd(T y, T dy, T sum) {
    return fma(-exp(y), sum, dy);
}

// ---- attention ----------------------------------------------------------------------------------

// 2^x of a score, x <= 1 or little more; what is below -125, and NaN, is taken as -125: to 1.1 ULP.
AICF_HD float weight(float x) {
#ifdef __CUDACC_RTC__
    float a;
    asm("max.f32 %0, %1, %2;" : "=f"(a) : "f"(x), "f"(-125.0f));
#else
    const float a = x > -125.0f ? x : -125.0f;
#endif
    const float magic = 0x1.8p23f, big = a + magic, f = a - (big - magic);
    const float p = horner(f, 1.0f, 0.693147242f, 0.240226552f, 0.0555027276f, 0.00961702596f,
                           0.00134185038f, 0.000158371156f);
    return from_bits(bits(p) + (bits(big) << 23));
}
// A weight of 16 bits, 2^(score factor + offset), an exponent of 9 or less: by `scale` and `start`,
// made of these two, in eight operations, nine for float16 (Half). Exactly 1 at 0; from -127 down,
// and of NaN, exactly 0. Its relative error before it is rounded is at most 2^-13.1, 2^-16 of Half.
AICF_HD float weight_scale(float factor) { return factor * 0x1p-8f; }
AICF_HD float weight_start(float offset) { return fma(offset, 0x1p-8f, 127.0f * 0x1p-8f); }
template <bool Half>
AICF_HD float weight_16(float score, float scale, float start) {
    const float u = saturated_fma(score, scale, start);  // (exponent + 127) / 256, from 0 to 1
    // The low bits of a sum with it are the nearest integer to 256 u, less 127.
    const float magic = 0x1.8p15f - 127.0f * 0x1p-8f;
    const float big = u + magic, f = u - (big - magic);
    const float p = Half ? horner(f, 1.0f, 177.437637f, 15743.2617f, 938999.438f, 41651892.0f)
                         : horner(f, 1.0f, 177.480423f, 15873.5371f, 922896.688f);
    return from_bits(bits(p) + (bits(big) << 23));
}
// The whole power of two above the largest score of a row, whose scores are `most` and below: then
// sums are moved from one to another without rounding. Of -inf, which hides all, -inf.
AICF_HD float weight_top(float most, float factor) { return 0.0f - floor(-(most * factor)); }
// Weights of 16 bits stay below such a power of scores before where theirs is at most 2^8 above it:
// sums that seldom move are seldom multiplied. NaN stays.
AICF_HD float weight_limit(float top) { return top + 8.0f; }
AICF_HD float weight_rise(float top, float next) {
    return next <= weight_limit(top) ? top : maximum(top, next);
}
// 2^(before - after) of such powers, before <= after; 0 from 2^-127 down and where one is none.
AICF_HD float weight_step(float before, float after) {
    const float d = before - after;
    const float kept = d >= -126.0f ? d : -127.0f;
    return from_bits(static_cast<uint32_t>(static_cast<int32_t>(kept) + 127) << 23);
}
// What a row's weights are divided by, as one factor: NaN if a score was none, 0 if all is hidden.
AICF_HD float weight_share(float top, float sum) {
    return top == from_bits(0xff800000u) ? 0.0f : div(1.0f, sum + (top - top));
}
// -log2 of it, from which the gradient makes the weights again.
AICF_HD float weight_offset(float top, float sum) {
    return top == from_bits(0xff800000u) ? top : -(top + log(sum) * 1.44269502f);
}

// ---- optimizers --------------------------------------------------------------------------------

template <class T>
AICF_HD T sgd_p(T p, T grad, T lr) {
    return fma(-lr, grad, p);
}
template <class T>
AICF_HD T adam_m(T m, T grad, T beta1) {
    return fma(beta1, m, (T(1) - beta1) * grad);
}
template <class T>
AICF_HD T adam_v(T v, T grad, T beta2) {
    return fma(beta2, v, ((T(1) - beta2) * grad) * grad);
}
template <class T>
AICF_HD T adam_p(T p, T m, T v, T bc1_inv, T bc2_inv, T lr, T eps) {
    return fma(-lr, div(m * bc1_inv, sqrt(v * bc2_inv) + eps), p);
}

// 1 / (1 - beta^step), by squaring; four at a time: a branch takes longer than an unneeded square.
AICF_HD double bias_corr(double beta, int32_t step) {
    constexpr int lot = 4;
    double power = 1.0;
    for (uint32_t n = step > 0 ? static_cast<uint32_t>(step) : 0u; n != 0; n >>= lot)
        for (int i = 0; i < lot; i++) {
            if ((n >> i & 1u) != 0) power = power * beta;
            beta = beta * beta;
        }
    return div(1.0, 1.0 - power);
}

}  // namespace aicf::scalar

// One row per pointwise function: X(name, arity, kind, trailing scalar attributes).
//   num     any numeric dtype, result the same       flt    float dtypes only, result the same
//   cmp     two of any dtype, bool too -> bool       logic  bool -> bool
//   test    float dtype -> bool                      select (bool, T, T) -> T, any dtype
//   any     any dtype, bool too, result the same     whole  integer dtypes, result the same
// f16 and bf16 are computed as float, some in forms of their own (scalar16.h). Scalars are of the
// type computed in.
#define AICF_POINTWISE(X)               \
    X(copy, 1, any, 0)                  \
    X(neg, 1, num, 0)                   \
    X(abs, 1, num, 0)                   \
    X(sign, 1, num, 0)                  \
    X(floor, 1, flt, 0)                 \
    X(round, 1, flt, 0)                 \
    X(exp, 1, flt, 0)                   \
    X(log, 1, flt, 0)                   \
    X(log1p, 1, flt, 0)                 \
    X(expm1, 1, flt, 0)                 \
    X(exp2, 1, flt, 0)                  \
    X(log2, 1, flt, 0)                  \
    X(log10, 1, flt, 0)                 \
    X(sqrt, 1, flt, 0)                  \
    X(rsqrt, 1, flt, 0)                 \
    X(sin, 1, flt, 0)                   \
    X(cos, 1, flt, 0)                   \
    X(tan, 1, flt, 0)                   \
    X(asin, 1, flt, 0)                  \
    X(acos, 1, flt, 0)                  \
    X(atan, 1, flt, 0)                  \
    X(sinh, 1, flt, 0)                  \
    X(cosh, 1, flt, 0)                  \
    X(asinh, 1, flt, 0)                 \
    X(acosh, 1, flt, 0)                 \
    X(atanh, 1, flt, 0)                 \
    X(tanh, 1, flt, 0)                  \
    X(sigmoid, 1, flt, 0)               \
    X(silu, 1, flt, 0)                  \
    X(gelu_tanh, 1, flt, 0)             \
    X(gelu_erf, 1, flt, 0)              \
    X(erf, 1, flt, 0)                   \
    X(softplus, 1, flt, 0)              \
    X(relu, 1, num, 0)                  \
    X(leaky_relu, 1, flt, 1)            \
    X(elu, 1, flt, 1)                   \
    X(clip, 1, num, 2)                  \
    X(add, 2, num, 0)                   \
    X(bias_add, 2, num, 0)              \
    X(sub, 2, num, 0)                   \
    X(mul, 2, num, 0)                   \
    X(div, 2, flt, 0)                   \
    X(pow, 2, flt, 0)                   \
    X(atan2, 2, flt, 0)                 \
    X(hypot, 2, flt, 0)                 \
    X(fmod, 2, num, 0)                  \
    X(floor_divide, 2, num, 0)          \
    X(maximum, 2, num, 0)               \
    X(minimum, 2, num, 0)               \
    X(bitwise_and, 2, whole, 0)         \
    X(bitwise_or, 2, whole, 0)          \
    X(bitwise_xor, 2, whole, 0)         \
    X(bitwise_left_shift, 2, whole, 0)  \
    X(bitwise_right_shift, 2, whole, 0) \
    X(eq, 2, cmp, 0)                    \
    X(ne, 2, cmp, 0)                    \
    X(lt, 2, cmp, 0)                    \
    X(le, 2, cmp, 0)                    \
    X(gt, 2, cmp, 0)                    \
    X(ge, 2, cmp, 0)                    \
    X(logical_and, 2, logic, 0)         \
    X(logical_or, 2, logic, 0)          \
    X(logical_xor, 2, logic, 0)         \
    X(logical_not, 1, logic, 0)         \
    X(isnan, 1, test, 0)                \
    X(where, 3, select, 0)              \
    X(relu_bwd, 2, num, 0)              \
    X(leaky_relu_bwd, 2, flt, 1)        \
    X(elu_bwd, 2, flt, 1)               \
    X(clip_bwd, 2, flt, 2)              \
    X(tanh_bwd, 2, flt, 0)              \
    X(sigmoid_bwd, 2, flt, 0)           \
    X(silu_bwd, 2, flt, 0)              \
    X(gelu_tanh_bwd, 2, flt, 0)         \
    X(gelu_erf_bwd, 2, flt, 0)          \
    X(softplus_bwd, 2, flt, 0)          \
    X(mse_grad, 2, flt, 1)              \
    X(maximum_bwd, 3, flt, 0)           \
    X(minimum_bwd, 3, flt, 0)
