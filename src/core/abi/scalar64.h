// The transcendental functions of f64 for scalar.h: 1 ULP, composed ones 5 (docs/accuracy.md).
//
// Bodies are straight-line code except for huge arguments of sin and cos. Higher precision is a
// double-double hi + lo, |lo| <= ulp(hi), whose low part is the rounding error found by fma.
// Coefficients: weighted least squares at Chebyshev points, rounded to f64 one at a time from the
// lowest degree with the rest refitted; each fit states its error.
#pragma once

#include "core/abi/ieee.h"

namespace aicf::scalar {

constexpr double kInf64 = __builtin_bit_cast(double, uint64_t(0x7ff) << 52);
constexpr double kNaN64 = __builtin_bit_cast(double, uint64_t(0x7ff8) << 48);

// As rsqrt(float).
AICF_HD double rsqrt(double x) {
    const double y = div(1.0, sqrt(x));
    const double t = x * y;
    const double e = fma(-t, y, 1.0) - fma(x, y, -t) * y;
    const double r = fma(0.5 * y, e, y);
    return (x > 0.0) & (x <= 0x1.fffffffffffffp1023) ? r : y;
}

// ---- exp and what is made of it ----------------------------------------------------------------

constexpr double kLn2High = 0x1.62e42fefa38p-1;  // 42 bits: its products with exponents are exact
constexpr double kLn2Low = 0x1.ef35793c7673p-45;

struct Exp64Reduced {  // x = r + r_lo + n log 2
    double r, r_lo;
    uint64_t n;  // of two's complement
};
AICF_HD Exp64Reduced exp_reduce(double x) {
    const double magic = 0x1.8p52;  // adding it rounds to an integer, kept in the low bits
    const double big = fma(x, 0x1.71547652b82fep0, magic);
    const double k = big - magic;
    const double t = fma(k, -kLn2High, x);
    const double r = fma(k, -kLn2Low, t);
    return {r, fma(k, -kLn2Low, t - r), bits(big) - bits(magic)};
}

// (e^r - 1 - r) / r^2 for |r| <= 0.3466, 2^-63 of e^r.
AICF_HD double exp_poly(double r) {
    return horner(r, 0.5, 0.16666666666666685, 0.041666666666666526, 0.008333333333315995,
                  0.001388888888896799, 0.00019841269898513087, 2.4801587155298254e-05,
                  2.7557233040793945e-06, 2.755741765165109e-07, 2.5112593413361816e-08,
                  2.087108069346467e-09);
}

// e^(x + x_lo) = (hi + lo) * 2^n for |x| <= 1000, x_lo far below x; hi in [0.7, 1.42].
struct Exp64 {
    double hi, lo;
    uint64_t n;
};
AICF_HD Exp64 exp_parts(double x, double x_lo) {
    const Exp64Reduced v = exp_reduce(x);
    const double low = v.r_lo + x_lo, r = v.r + low, r_lo = (v.r - r) + low;
    const double one = 1.0 + r;
    const double rest = fma(r_lo, one, fma(r * r, exp_poly(r), (1.0 - one) + r));
    const double hi = one + rest;
    return {hi, (one - hi) + rest, v.n};
}

AICF_HD double pow2(uint64_t n) { return from_bits((n + 1023u) << 52); }
// p * 2^n, |n| <= 2000, in two factors so that only the last product rounds.
AICF_HD double scale2(double p, uint64_t n) {
    const uint64_t half = ((n + 4096u) >> 1) - 2048u;
    return p * pow2(half) * pow2(n - half);
}

AICF_HD double exp(double x) {
    const double a = x > 710.0 ? 710.0 : x;
    const Exp64 e = exp_parts(a < -746.0 ? -746.0 : a, 0.0);
    return scale2(e.hi, e.n);
}

struct Sum64 {
    double hi, lo;
};
// e^x - 1 = hi + lo; of expm1_parts for x <= 0. s = 2^v.n, s - 1 = a + a_lo.
AICF_HD Sum64 expm1_sum(Exp64Reduced v, double s, double a, double a_lo) {
    const double b = s * v.r, c = a + b;
    const double rest = fma(v.r * v.r, exp_poly(v.r), fma(v.r, v.r_lo, v.r_lo));
    const double low = fma(s, rest, ((a - c) + b) + a_lo);
    const double hi = c + low;
    return {hi, (c - hi) + low};
}
AICF_HD Sum64 expm1_parts(double x) {
    const Exp64Reduced v = exp_reduce(x < -40.0 ? -40.0 : x);
    const double s = pow2(v.n), a = s - 1.0;
    return expm1_sum(v, s, a, (-1.0 - a) + s);
}
AICF_HD double expm1_below(double x) {  // x <= 0
    const double y = expm1_parts(x).hi;
    return abs(x) < 0x1p-54 ? x : y;
}

// With E = e^-2|x| - 1, -E / (2 + E); the residual corrects the quotient.
AICF_HD double tanh(double x) {
    const double a = abs(x) > 20.0 ? 20.0 : abs(x);
    const Sum64 e = expm1_parts(-a - a);
    const double d = 2.0 + e.hi, d_lo = (e.hi - (d - 2.0)) + e.lo;
    const double inv = div(1.0, d), q = e.hi * inv;
    const double rest = fma(-q, d, e.hi) + fma(-q, d_lo, e.lo);
    return copysign(fma(rest, inv, q), x);
}

// sigmoid(-a) = s * 2^n for a >= 0; a_lo continues a. The residual corrects the quotient.
struct Tail64 {
    double s;
    uint64_t n;
};
AICF_HD Tail64 sigmoid_tail(double a, double a_lo) {
    const double c = a > 760.0 ? 760.0 : a;
    const Exp64 e = exp_parts(-c, -a_lo);
    const double z = scale2(e.hi, e.n);
    const double d = 1.0 + z, d_lo = z - (d - 1.0);
    const double inv = div(1.0, d), q = e.hi * inv;
    const double rest = fma(-q, d, e.hi) + fma(-q, d_lo, e.lo);
    return {fma(rest, inv, q), e.n};
}
AICF_HD double sigmoid(double x) {
    const Tail64 t = sigmoid_tail(abs(x), 0.0);
    const double s = scale2(t.s, t.n);
    return x > 0.0 ? 1.0 - s : s;
}

// As gate(float).
AICF_HD double gate(double x, double v, double v_lo) {
    const double a = abs(x) > 760.0 ? 760.0 : abs(x);
    const Tail64 t = sigmoid_tail(abs(v), v_lo);
    return (x < 0.0 ? -0.0 : x) - scale2(a * t.s, t.n);
}
AICF_HD double silu(double x) { return gate(x, x, 0.0); }

// Its derivative times dy, dv = |x| v' >= 0: at -a the stable one, at a 1 minus that.
AICF_HD double gate_bwd(double x, double v, double v_lo, double dv, double dy) {
    const Tail64 t = sigmoid_tail(v, v_lo);
    const double left = scale2(t.s * fma(-dv, 1.0 - scale2(t.s, t.n), 1.0), t.n);
    return dy * (x < 0.0 ? left : 1.0 - left);
}
AICF_HD double silu_bwd(double x, double dy) {
    const double a = abs(x) > 760.0 ? 760.0 : abs(x);
    return gate_bwd(x, a, 0.0, a, dy);
}

// As gelu_tanh(float): 2u = a (c1 + c3 a^2) with the constants and the products carried in two
// parts.
constexpr double kGelu1 = 0x1.9884533d43651p0, kGelu3 = 0x1.2444f2a4d8b4bp-4;
AICF_HD Sum64 gelu_angle(double a) {
    const double a2 = a * a, a2_lo = fma(a, a, -a2);
    const double p = kGelu3 * a2, p_lo = fma(kGelu3, a2, -p);
    const double c = p + kGelu1, q = c - p;
    const double c_lo = (p - (c - q)) + (kGelu1 - q);
    const double low =
        c_lo + fma(kGelu3, a2_lo, p_lo) + fma(-0x1.6c843a29d1c7p-61, a2, -0x1.cbc0d30ebfd15p-54);
    const double v = a * c;
    return {v, v > 760.0 ? 0.0 : fma(a, low, fma(a, c, -v))};
}
AICF_HD double gelu_tanh(double x) {
    const Sum64 v = gelu_angle(abs(x) > 40.0 ? 40.0 : abs(x));
    return gate(x, v.hi, v.lo);
}
AICF_HD double gelu_tanh_bwd(double x, double dy) {
    const double a = abs(x) > 40.0 ? 40.0 : abs(x);
    const Sum64 v = gelu_angle(a);
    return gate_bwd(x, v.hi, v.lo, a * fma(3.0 * kGelu3, a * a, kGelu1), dy);
}

// Phi(-a) e^(a^2/2) for 0 <= a <= 39, Phi the normal distribution: over 1/(1 + a) a polynomial in
// (a - 4)/(a + 4), 2^-56.
AICF_HD Sum64 normal_ratio(double a) {
    const double up = a + 4.0, low = a + 1.0, w = div(1.0, up * low);
    const double t = (a - 4.0) * low * w, inv = up * w;
    const double p = horner(t, -0.02794679349015532, -0.0967034773265258, 0.01399963472442551,
                            0.028600364053550258, -0.03219783742808902, 0.017936097479690834,
                            -0.00500237859098879, -0.00028562309821314035, 0.0006948971039777195,
                            -9.443025211390736e-05, -8.785317967396374e-05, 2.1250041684168143e-05,
                            1.3626852203962544e-05, -3.4321790501481723e-06, -2.612861404756178e-06,
                            4.044534853000599e-07, 5.519257378977278e-07, 1.4902422520193471e-09,
                            -1.1093076484571893e-07, -1.990892030847191e-08, 1.760870952593042e-08,
                            6.231658923349305e-09, -1.5321559077621623e-09, -7.836664222674957e-10);
    const double g = fma(inv, p, 0.5 * inv);
    const double back = low - a, low_lo = (a - (low - back)) + (1.0 - back);
    return {g, g * (fma(-inv, low, 1.0) - inv * low_lo)};
}
// Phi(-a) = s * 2^n for a in [0, 39].
struct NormalTail64 {
    double s;
    double density;  // e^(-a^2/2) without the power of 2
    uint64_t n;
};
AICF_HD NormalTail64 normal_tail(double a) {
    const double h = a * a;
    const Exp64 e = exp_parts(-0.5 * h, -0.5 * fma(a, a, -h));
    const Sum64 g = normal_ratio(a);
    return {fma(g.hi, e.hi, fma(g.hi, e.lo, g.lo * e.hi)), e.hi, e.n};
}
AICF_HD double gelu_erf(double x) {
    const double a = abs(x) > 39.0 ? 39.0 : abs(x);
    const NormalTail64 t = normal_tail(a);
    return (x < 0.0 ? -0.0 : x) - scale2(a * t.s, t.n);
}
AICF_HD double gelu_erf_bwd(double x, double dy) {
    const double a = abs(x) > 39.0 ? 39.0 : abs(x);
    const NormalTail64 t = normal_tail(a);
    const double left = scale2(fma(-a * 0.3989422804014327, t.density, t.s), t.n);
    return dy * (x < 0.0 ? left : 1.0 - left);
}

AICF_HD double erf(double x) {
    const double a = abs(x) > 6.0 ? 6.0 : abs(x), s = a * a;
    // (erf(a)/a - 2/sqrt(pi))/a^2 up to 1, in 2^-61 of erf(a)/a
    const double u = horner(s, -0.3761263890318375, 0.1128379167095487, -0.026866170645074277,
                            0.005223977624791964, -0.0008548326979348804, 0.00012055331059157176,
                            -1.4925594054810975e-05, 1.646098184970394e-06, -1.6350123406114734e-07,
                            1.4658554262739266e-08, -1.1368316994714035e-09, 5.949804397516033e-11);
    const double top = 0x1.20dd750429b6dp0, t = s * u, sum = top + t;
    const double sum_lo = ((top - sum) + t) + (fma(s, u, -t) + 0x1.1ae3a914fed80p-56);
    const double small = fma(a, sum, a * sum_lo);
    const Exp64 e = exp_parts(-s, -fma(a, a, -s));
    const Sum64 g = normal_ratio(a * 0x1.6a09e667f3bcdp0);
    const double half = pow2(e.n + 1), p = -half * g.hi;
    const double tail = p * e.hi, tail_lo = fma(p, e.hi, -tail) + fma(p, e.lo, -half * g.lo * e.hi);
    const double one = 1.0 + tail, large = one + (((1.0 - one) + tail) + tail_lo);
    return copysign(a < 0.85 ? small : large, x);
}

// ---- log ---------------------------------------------------------------------------------------

// x = m 2^k for x > 0, m in [low, 2 low).
struct Split64 {
    double m, k;
};
AICF_HD Split64 split(double x, double low) {
    const bool tiny = x < 0x1p-1022;
    const uint64_t u = bits(tiny ? x * 0x1p54 : x);
    const uint64_t e = (u - bits(low) + (uint64_t(1024) << 52)) >> 52;  // k + 1024
    const double k = from_bits(e | bits(0x1p52)) - (0x1p52 + 1024.0);
    return {from_bits(u - ((e - 1024u) << 52)), tiny ? k - 54.0 : k};
}

// log(1 + f) = hi + lo for -1/3 <= f <= 1/2, by s = f/(2 + f): f - f^2/2 + s (f^2/2 + R(s^2)); the
// fit of R(s^2)/s^2 is 2^-61.
AICF_HD Sum64 log1p_parts(double f) {
    const double s = div(f, 2.0 + f), z = s * s;
    const double r = z * horner(z, 0.666666666666666, 0.4000000000005667, 0.2857142855582956,
                                0.22222224296516227, 0.18181665859844565, 0.15391112895803089,
                                0.1317357638500592, 0.138432390054763);
    const double half = 0.5 * f, h = half * f, h_lo = fma(half, f, -h);
    const double w = f - h, w_lo = (f - w) - h;
    return {w, fma(s, h + r, w_lo - h_lo)};
}
AICF_HD double log(double x) {
    const Split64 v = split(x, 0x1.5555555555555p-1);
    const Sum64 l = log1p_parts(v.m - 1.0);
    const double b = v.k * kLn2High, hi = b + l.hi;
    const double y = hi + (((b - hi) + l.hi) + fma(v.k, kLn2Low, l.lo));
    const double edge = x == 0.0 ? -kInf64 : (x > 0.0 ? x : kNaN64);
    return (x > 0.0) & (x < kInf64) ? y : edge;
}

// max(x, 0) + log1p(e^-|x|), at every x.
AICF_HD double softplus(double x) {
    const double a = abs(x) > 760.0 ? 760.0 : abs(x);
    const Exp64 e = exp_parts(-a, 0.0);
    const double z = scale2(e.hi, e.n);
    const bool big = z > 0.5;
    const Sum64 l = log1p_parts(big ? fma(z, 0.5, -0.5) : z);
    const double shift = big ? 0x1.62e42fefa39efp-1 : 0.0;
    const double hi = shift + l.hi, lo = ((shift - hi) + l.hi) + l.lo;
    return (x < 0.0 ? 0.0 : x) + (hi + lo);
}

// ---- sin and cos -------------------------------------------------------------------------------

struct Angle64 {  // x = hi + lo + quarter * pi/2, |hi| <= 0.8
    double hi, lo;
    uint64_t quarter;
};
constexpr double kSinFastLimit64 = 0x1p30;
constexpr double kHalfPi1 = 0x1.921fb54442d18p0, kHalfPi2 = 0x1.1a62633145c07p-54;
constexpr double kHalfPi3 = -0x1.f1976b7ed8fbcp-110;

// Cody-Waite in three words; the second product and its subtraction are carried exactly.
AICF_HD Angle64 reduce_fast(double x) {
    const double magic = 0x1.8p52;
    const double big = fma(x, 0x1.45f306dc9c883p-1, magic);
    const double k = big - magic;
    const double t = fma(k, -kHalfPi1, x);
    const double p = k * -kHalfPi2, p_lo = fma(k, -kHalfPi2, -p);
    const double hi = t + p, back = hi - t;
    const double lo = ((t - (hi - back)) + (p - back)) + p_lo;
    return {hi, fma(k, -kHalfPi3, lo), bits(big)};
}

AICF_HD uint64_t mul_high(uint64_t a, uint64_t b) {
    const uint64_t a0 = a & 0xffffffffu, a1 = a >> 32, b0 = b & 0xffffffffu, b1 = b >> 32;
    const uint64_t mid = a1 * b0 + (a0 * b0 >> 32);
    return a1 * b1 + (mid >> 32) + ((a0 * b1 + (mid & 0xffffffffu)) >> 32);
}

// Payne-Hanek: 53 bits of |x| >= 2^30 times the 192 bits of 2/pi that matter modulo 4. No f64 is
// nearer to a multiple of pi/2 than 2^-61, so 2^-124 of a quarter is enough.
AICF_HD Angle64 reduce_huge(double x) {
    const uint64_t two_over_pi[] = {0,
                                    0xa2f9836e4e441529u,
                                    0xfc2757d1f534ddc0u,
                                    0xdb6295993c439041u,
                                    0xfe5163abdebbc561u,
                                    0xb7246e3a424dd2e0u,
                                    0x06492eea09d1921cu,
                                    0xfe1deb1cb129a73eu,
                                    0xe88235f52ebb4484u,
                                    0xe99c7026b45f7e41u,
                                    0x3991d639835339f4u,
                                    0x9c845f8bbdf9283bu,
                                    0x1ff897ffde05980fu,
                                    0xef2f118b5a0a6d1fu,
                                    0x6d367ecf27cb09b7u,
                                    0x4f463f669e5fea2du,
                                    0x7527bac7ebe5f17bu,
                                    0x3d0739f78a5292eau,
                                    0x6bfb5fb11f8d5d08u};
    const uint64_t u = bits(abs(x));
    const uint64_t at = (u >> 52) - 1024u;  // first wanted bit of the table, its zero word included
    const uint64_t* const word = two_over_pi + (at >> 6);
    const uint64_t left = at & 63u, right = 63u - left;
    const uint64_t w0 = word[0] << left | word[1] >> 1 >> right;
    const uint64_t w1 = word[1] << left | word[2] >> 1 >> right;
    const uint64_t w2 = word[2] << left | word[3] >> 1 >> right;
    const uint64_t i = (u << 11) | kSign64;
    const uint64_t low = mul_high(i, w2), mid = i * w1;
    uint64_t l = low + mid;
    uint64_t h = i * w0 + mul_high(i, w1) + (l < low ? 1u : 0u);
    const uint64_t turned = h + (uint64_t(1) << 61);  // to the nearest quarter
    const bool below = ((h >> 61) & 1u) != 0;         // the rest is negative
    h &= ~uint64_t(0) >> 3;
    if (below) {  // 2^125 - (h, l)
        h = (uint64_t(1) << 61) - h - (l != 0 ? 1u : 0u);
        l = 0 - l;
    }
    uint64_t zeros = 0;
    for (uint64_t step = 32; step != 0; step >>= 1) {
        const bool shift = h >> (64 - step) == 0;
        h = shift ? h << step | l >> (64 - step) : h;
        l = shift ? l << step : l;
        zeros += shift ? step : 0;
    }
    const double scale = pow2(0 - zeros);
    const double a = static_cast<double>(static_cast<int64_t>(h >> 11)) * 0x1p-51 * scale;
    const double b =
        static_cast<double>(static_cast<int64_t>((h << 53 | l >> 11) >> 11)) * 0x1p-104 * scale;
    const double hi = a * kHalfPi1;
    const double lo = fma(a, kHalfPi1, -hi) + fma(a, kHalfPi2, b * kHalfPi1);
    const uint64_t quarter = turned >> 62;
    const bool negative = below != (x < 0.0);
    return {negative ? -hi : hi, negative ? -lo : lo, x < 0.0 ? 0 - quarter : quarter};
}

// sin(x) for quarter_shift 0, cos(x) for 1.
AICF_HD double sin_of(Angle64 a, uint64_t quarter_shift) {
    const uint64_t q = a.quarter + quarter_shift;
    const double s = a.hi * a.hi, s_lo = fma(a.hi, a.hi, -s);
    // (sin x - x)/x^3 in 2^-62 of sin x, (cos x - 1 + x^2/2)/x^4 in 2^-64
    const double p = horner(s, -0.16666666666666666, 0.008333333333333099, -0.00019841269841054562,
                            2.755731912790872e-06, -2.5052085628723108e-08, 1.6056208374960527e-10,
                            -7.483046026953345e-13);
    const double sine = a.hi + fma(s, fma(a.hi, p, -0.5 * a.lo), a.lo);
    const double c =
        horner(s, 0.041666666666666595, -0.0013888888888873405, 2.480158728905816e-05,
               -2.755731423476818e-07, 2.0875707765771012e-09, -1.1358862542475662e-11);
    const double w = fma(-0.5, s, 1.0), w_lo = fma(-0.5, s, 1.0 - w);
    const double low = fma(-0.5, s_lo, fma(-a.hi, a.lo, w_lo));
    const double cosine = w + fma(s * s, c, low);
    const double y = (q & 1u) != 0 ? cosine : sine;
    return from_bits(bits(y) ^ ((q & 2u) << 62));
}

// sin and cos where |x| <= kSinFastLimit64, a = reduce_fast(x).
AICF_HD double sin_fast(double x, Angle64 a) {
    const double y = sin_of(a, 0);
    return abs(x) < 0x1p-27 ? x : y;
}
AICF_HD double cos_fast(double, Angle64 a) { return sin_of(a, 1); }

AICF_HD double sin(double x) {
    if (abs(x) <= kSinFastLimit64) return sin_fast(x, reduce_fast(x));
    if (!(abs(x) < kInf64)) return x - x;
    return sin_of(reduce_huge(x), 0);
}
AICF_HD double cos(double x) {
    if (abs(x) <= kSinFastLimit64) return cos_fast(x, reduce_fast(x));
    if (!(abs(x) < kInf64)) return x - x;
    return sin_of(reduce_huge(x), 1);
}

// ---- pow ---------------------------------------------------------------------------------------

// log x = hi + lo to 2^-68 for x > 0: with s = (m - 1)/(m + 1), 2 s (1 + s^2 (1/3 + s^2 (1/5 +
// ...))), all in two parts but the dots.
AICF_HD Sum64 log_parts(double x) {
    const Split64 v = split(x, 0x1.6a09e667f3bcdp-1);
    const double f = v.m - 1.0, d = 1.0 + v.m, d_lo = v.m - (d - 1.0);
    const double inv = div(1.0, d), s = f * inv;
    const double s_lo = fma(-s, d_lo, fma(-s, d, f)) * inv;
    const double z = s * s, z_lo = fma(s + s, s_lo, fma(s, s, -z));
    const double p = z * horner(z, 0.1428571428571672, 0.11111111109957247, 0.0909090930957317,
                                0.07692285958845577, 0.0666790063809753, 0.05842136855568743,
                                0.05958625564625837);
    const double q = 0.2 + p, q_lo = ((0.2 - q) + p) + -0x1.999999999999ap-57;
    const double third = 0x1.5555555555555p-2;
    const double t = z * q, t_lo = fma(z, q, -t) + fma(z, q_lo, z_lo * q);
    const double g = third + t, g_lo = ((third - g) + t) + (t_lo + 0x1.5555555555555p-56);
    const double e = z * g, e_lo = fma(z, g, -e) + fma(z, g_lo, z_lo * g);
    const double two = s + s;
    const double u = two * e, u_lo = fma(two, e, -u) + fma(two, e_lo, (s_lo + s_lo) * e);
    const double h = two + u, h_lo = ((two - h) + u) + (u_lo + (s_lo + s_lo));
    const double b = v.k * kLn2High, hi = b + h;
    return {hi, ((b - hi) + h) + fma(v.k, kLn2Low, h_lo)};
}

// e^(y log|x|), then the special values of IEEE 754.
AICF_HD double pow(double x, double y) {
    const double ax = abs(x);
    const Sum64 l = log_parts(ax);
    const double t = y * l.hi, t_lo = fma(y, l.hi, -t) + y * l.lo;
    const bool far = abs(t) > 760.0;
    const double most = t > 0.0 ? 760.0 : -760.0;
    const Exp64 v = exp_parts(far ? most : t, far ? 0.0 : t_lo);
    double z = scale2(v.hi, v.n);

    const bool integer = floor(y) == y, odd = integer & (floor(0.5 * y) != 0.5 * y);
    z = ax == 0.0 ? (y < 0.0 ? kInf64 : 0.0) : z;
    z = ax == kInf64 ? (y < 0.0 ? 0.0 : kInf64) : z;
    z = ax == 1.0 ? 1.0 : z;
    z = from_bits(bits(z) | (odd ? bits(x) & kSign64 : 0u));
    z = (x < 0.0) & !integer & (ax != kInf64) ? kNaN64 : z;
    z = (x != x) | (y != y) ? x + y : z;
    return (y == 0.0) | (x == 1.0) ? 1.0 : z;
}

}  // namespace aicf::scalar
