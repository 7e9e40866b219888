// More functions of f64 for scalar.h, within 1 ULP (docs/accuracy.md), and remainders of all types.
// Those of f32 are these, rounded. Higher precision is a double-double hi + lo, as in scalar64.h.
#pragma once

#include "core/abi/scalar64.h"

namespace aicf::scalar {

// a + b = hi + lo exactly; the quick one for |a| >= |b|, and for a = 0.
AICF_HD Sum64 two_sum(double a, double b) {
    const double s = a + b, c = s - a;
    return {s, (a - (s - c)) + (b - c)};
}
AICF_HD Sum64 quick_sum(double a, double b) {
    const double s = a + b;
    return {s, (a - s) + b};
}
AICF_HD Sum64 plus(Sum64 a, double low) { return {a.hi, a.lo + low}; }
AICF_HD Sum64 two_product(double a, double b) {
    const double p = a * b;
    return {p, fma(a, b, -p)};
}
AICF_HD Sum64 quotient(Sum64 n, Sum64 d) {
    const double q = div(n.hi, d.hi);
    return {q, div(fma(-q, d.hi, n.hi) + (n.lo - q * d.lo), d.hi)};
}
AICF_HD Sum64 root(Sum64 u) {
    const double c = sqrt(u.hi);
    return {c, c > 0.0 ? div(fma(-c, c, u.hi) + u.lo, c + c) : 0.0};
}

// ---- powers and logarithms ----------------------------------------------------------------------

// e^x - 1 = hi + lo for |x| <= 700.
AICF_HD Sum64 expm1_any(double x) {
    const Exp64Reduced v = exp_reduce(x);
    const double s = pow2(v.n), a = s - 1.0;
    return expm1_sum(v, s, a, s > 1.0 ? (s - a) - 1.0 : (-1.0 - a) + s);
}
AICF_HD double expm1(double x) {
    const double a = x < -40.0 ? -40.0 : x;
    const double y = expm1_any(a > 700.0 ? 0.0 : a).hi;
    return x > 700.0 ? exp(x) : (abs(x) < 0x1p-54 ? x : y);
}

AICF_HD double exp2(double x) {
    const double a = x > 1030.0 ? 1030.0 : x, c = a < -1080.0 ? -1080.0 : a;
    const double magic = 0x1.8p52, big = c + magic;
    const double r = c - (big - magic);
    const Sum64 t = plus(two_product(r, 0x1.62e42fefa39efp-1), r * 0x1.abc9e3b39803fp-56);
    const double one = 1.0 + t.hi;
    const double rest = fma(t.lo, one, fma(t.hi * t.hi, exp_poly(t.hi), (1.0 - one) + t.hi));
    return scale2(one + rest, bits(big) - bits(magic));
}

// log x times c + c_lo.
AICF_HD double log_times(double x, double c, double c_lo) {
    const Sum64 l = log_parts(x);
    const double p = l.hi * c;
    const double y = p + (fma(l.hi, c, -p) + fma(l.hi, c_lo, l.lo * c));
    const double edge = x == 0.0 ? -kInf64 : (x > 0.0 ? x : kNaN64);
    return (x > 0.0) & (x < kInf64) ? y : edge;
}
AICF_HD double log2(double x) { return log_times(x, 0x1.71547652b82fep0, 0x1.777d0ffda0d24p-56); }
AICF_HD double log10(double x) { return log_times(x, 0x1.bcb7b1526e50ep-2, 0x1.95355baaafad3p-57); }

// log(1 + x + x_lo) for x >= 0.
AICF_HD Sum64 log1p_sum(Sum64 x) {
    const double sum = 1.0 + x.hi, back = sum - 1.0;
    const Split64 v = split(sum, 0x1.5555555555555p-1);
    const double rounded = (1.0 - (sum - back)) + (x.hi - back);
    const double lost = (rounded + x.lo) * div(v.m, sum);
    const double f = (v.m - 1.0) + lost, f_lo = lost - (f - (v.m - 1.0));
    const Sum64 l = log1p_parts(f);
    const double b = v.k * kLn2High, hi = b + l.hi;
    return {hi, ((b - hi) + l.hi) + fma(v.k, kLn2Low, l.lo + fma(-f, f_lo, f_lo))};
}

// ---- hyperbolic functions and their inverses ----------------------------------------------------

// (E + E/(1 + E))/2 with E = e^|x| - 1, from 40 on e^|x|/2.
AICF_HD double sinh(double x) {
    const double a = abs(x), near = a > 40.0 ? 40.0 : a, far = a > 720.0 ? 720.0 : a;
    const Sum64 e = expm1_any(near), q = quotient(e, plus(two_sum(1.0, e.hi), e.lo));
    const Sum64 s = quick_sum(e.hi, q.hi);
    const double y = 0.5 * (s.hi + (s.lo + (e.lo + q.lo)));
    const Exp64 z = exp_parts(far, 0.0);
    const double large = scale2(z.hi, z.n - 1);
    return a < 0x1p-27 ? x : copysign(a > 40.0 ? large : y, x);
}
AICF_HD double cosh(double x) {
    const double a = abs(x), near = a > 40.0 ? 40.0 : a, far = a > 720.0 ? 720.0 : a;
    const Exp64 e = exp_parts(near, 0.0);
    const double s = pow2(e.n), z = e.hi * s;
    const double y = 0.5 * (z + (div(1.0, z) + e.lo * s));
    const Exp64 w = exp_parts(far, 0.0);
    const double large = scale2(w.hi, w.n - 1);
    return a > 40.0 ? large : y;
}

// log(2 a) of a large a: log1p(a - 1) + log 2.
constexpr double kFar = 0x1p28;
AICF_HD double log_twice(Sum64 l) {
    const Sum64 s = quick_sum(l.hi, kLn2High);
    return s.hi + (s.lo + (l.lo + kLn2Low));
}
// log1p(a + a^2/(1 + sqrt(1 + a^2)))
AICF_HD double asinh(double x) {
    const double a = abs(x), near = a > kFar ? 1.0 : a;
    const Sum64 s = two_product(near, near), u = two_sum(1.0, s.hi);
    const Sum64 c = root(plus(u, s.lo)), d = two_sum(1.0, c.hi);
    const Sum64 w = quotient(s, plus(d, c.lo)), v = quick_sum(near, w.hi);
    const Sum64 l = log1p_sum(a > kFar ? two_sum(a, -1.0) : plus(v, w.lo));
    const double y = a > kFar ? log_twice(l) : l.hi + l.lo;
    return (a < 0x1p-27) | (a == kInf64) ? x : copysign(y, x);
}
// log1p(t + sqrt(x^2 - 1)), t = x - 1
AICF_HD double acosh(double x) {
    const double near = x > kFar ? 1.0 : x;
    const Sum64 t = two_sum(x, -1.0), s = two_product(near, near), u = two_sum(s.hi, -1.0);
    const Sum64 c = root(quick_sum(u.hi, u.lo + s.lo)), v = two_sum(t.hi, c.hi);
    const Sum64 l = log1p_sum(x > kFar ? t : plus(v, t.lo + c.lo));
    const double y = x > kFar ? log_twice(l) : l.hi + l.lo;
    return x < 1.0 ? kNaN64 : (x == kInf64 ? x : y);
}
// log1p(2 a/(1 - a))/2
AICF_HD double atanh(double x) {
    const double a = abs(x);
    const Sum64 l = log1p_sum(quotient({a + a, 0.0}, quick_sum(1.0, -a)));
    const double edge = a == 1.0 ? kInf64 : kNaN64, y = a < 1.0 ? 0.5 * (l.hi + l.lo) : edge;
    return a < 0x1p-27 ? x : copysign(y, x);
}

// ---- angles -------------------------------------------------------------------------------------

// The quotient of sine and cosine, or of minus cosine and sine.
AICF_HD double tan_of(Angle64 a) {
    const double s = a.hi * a.hi, s_lo = fma(a.hi, a.hi, -s);
    const double p = horner(s, -0.16666666666666666, 0.008333333333333099, -0.00019841269841054562,
                            2.755731912790872e-06, -2.5052085628723108e-08, 1.6056208374960527e-10,
                            -7.483046026953345e-13);
    const Sum64 sine = quick_sum(a.hi, fma(s, fma(a.hi, p, -0.5 * a.lo), a.lo));
    const double c =
        horner(s, 0.041666666666666595, -0.0013888888888873405, 2.480158728905816e-05,
               -2.755731423476818e-07, 2.0875707765771012e-09, -1.1358862542475662e-11);
    const double w = fma(-0.5, s, 1.0), w_lo = fma(-0.5, s, 1.0 - w);
    const double low = fma(-0.5, s_lo, fma(-a.hi, a.lo, w_lo));
    const Sum64 cosine = quick_sum(w, fma(s * s, c, low));
    const bool odd = (a.quarter & 1u) != 0;
    const Sum64 n = odd ? Sum64{-cosine.hi, -cosine.lo} : sine, d = odd ? sine : cosine;
    const Sum64 q = quotient(n, d);
    return q.hi + q.lo;
}
AICF_HD double tan_fast(double x, Angle64 a) {
    const double y = tan_of(a);
    return abs(x) < 0x1p-27 ? x : y;
}
AICF_HD double tan(double x) {
    if (abs(x) <= kSinFastLimit64) return tan_fast(x, reduce_fast(x));
    if (!(abs(x) < kInf64)) return x - x;
    return tan_of(reduce_huge(x));
}

// atan(y/x) = hi + lo for y, x >= 0, not both 0. The argument is reduced to the quotient <= 1 (pi/2
// minus its angle), and above tan(pi/8) to (n - d)/(n + d) (pi/4 more). Fit of (atan(t) - t)/t^3:
// 2^-63.
AICF_HD Sum64 angle(Sum64 y, Sum64 x) {
    const bool steep = y.hi > x.hi;
    const Sum64 n = steep ? x : y, d = steep ? y : x;
    const bool half = n.hi > 0x1.a827999fcef32p-2 * d.hi;
    const Sum64 less = plus(two_sum(n.hi, -d.hi), n.lo - d.lo),
                more = plus(two_sum(n.hi, d.hi), n.lo + d.lo);
    const Sum64 t = quotient(half ? less : n, half ? more : d);
    const double z = t.hi * t.hi;
    const double p = horner(z, -0.33333333333333326, 0.19999999999997253, -0.14285714285347026,
                            0.11111111086071077, -0.09090908079823629, 0.0769228148535913,
                            -0.06666210123082585, 0.05876875865027374, -0.05217554279588021,
                            0.04500395563057309, -0.03340700825560634, 0.015131865622120017);
    const double low = fma(t.hi * z, p, fma(-t.lo, z, t.lo));
    const double whole = steep ? 2.0 : 0.0, eighths = half ? 1.0 : whole;
    const Sum64 r = quick_sum(eighths * (0.5 * kHalfPi1), steep ? -t.hi : t.hi);
    return plus(r, fma(eighths, 0.5 * kHalfPi2, steep ? -low : low));
}
AICF_HD double half_turn_less(Sum64 r) {  // pi - r
    const Sum64 s = quick_sum(2.0 * kHalfPi1, -r.hi);
    return s.hi + (s.lo + (2.0 * kHalfPi2 - r.lo));
}

AICF_HD double atan(double x) {
    const double a = abs(x) > 0x1p100 ? 0x1p100 : abs(x);
    const Sum64 r = angle({a, 0.0}, {1.0, 0.0});
    return copysign(r.hi + r.lo, x);
}
AICF_HD Sum64 cosine_of(double sine) {  // sqrt(1 - sine^2)
    const Sum64 s = two_product(sine, sine);
    const Sum64 u = quick_sum(1.0, -s.hi);
    return root(quick_sum(u.hi, u.lo - s.lo));
}
AICF_HD double asin(double x) {
    const Sum64 r = angle({abs(x), 0.0}, cosine_of(x));
    return copysign(r.hi + r.lo, x);
}
AICF_HD double acos(double x) {
    const Sum64 r = angle(cosine_of(x), {abs(x), 0.0});
    return x < 0.0 ? half_turn_less(r) : r.hi + r.lo;
}
AICF_HD double atan2(double y, double x) {
    const double ay = abs(y), ax = abs(x), most = ay > ax ? ay : ax;
    const double scale = most > 0x1p1000 ? 0.25 : (most < 0x1p-900 ? 0x1p100 : 1.0);
    const bool far = most == kInf64;
    const double n = far ? (ay == kInf64 ? 1.0 : 0.0) : ay * scale;
    const double d = far ? (ax == kInf64 ? 1.0 : 0.0) : (most == 0.0 ? 1.0 : ax * scale);
    const Sum64 r = angle({n, 0.0}, {d, 0.0});
    const bool behind = (bits(x) & kSign64) != 0;
    const double turned = copysign(behind ? half_turn_less(r) : r.hi + r.lo, y);
    return (x != x) | (y != y) ? x + y : turned;
}

AICF_HD double hypot(double x, double y) {
    const double ax = abs(x), ay = abs(y), most = ax > ay ? ax : ay, least = ax > ay ? ay : ax;
    const bool high = most > 0x1p500, low = most < 0x1p-500;
    const double scale = high ? 0x1p-600 : (low ? 0x1p600 : 1.0);
    const double back = high ? 0x1p600 : (low ? 0x1p-600 : 1.0);
    const Sum64 a = two_product(most * scale, most * scale);
    const Sum64 b = two_product(least * scale, least * scale);
    const Sum64 s = quick_sum(a.hi, b.hi), r = root(plus(s, a.lo + b.lo));
    const double y0 = (r.hi + r.lo) * back;
    const double nan = (x != x) | (y != y) ? x + y : y0;
    return (ax == kInf64) | (ay == kInf64) ? kInf64 : nan;
}

// ---- division with a remainder ------------------------------------------------------------------

// a - b trunc(a / b), exactly; of integers by 0 it is 0.
AICF_HD double fmod(double a, double b) {
    const double d = abs(b);
    double r = abs(a);
    if (!(r < kInf64) | !(d > 0.0)) return kNaN64;
    while (r >= d) {
        double t = d;
        while (t < r * 0x1p-50) t = t * 0x1p50;
        const double rest = fma(-floor(div(r, t)), t, r);
        r = rest < 0.0 ? rest + t : rest;
    }
    return copysign(r, a);
}
// floor(a / b) as in Python; beyond 2^53 the quotient itself; of integers by 0 it is 0. If the
// quotient was rounded up to an integer, the remainder has the other sign.
AICF_HD double floor_divide(double a, double b) {
    const double plain = div(a, b), q = floor(plain), r = fma(-q, b, a);
    const bool up = (abs(q) < 0x1p53) & (r != 0.0) & ((r < 0.0) != (b < 0.0));
    const double below = (a != 0.0) & ((a < 0.0) != (b < 0.0)) ? -1.0 : plain;
    const double y = abs(b) == kInf64 ? below : (up ? q - 1.0 : q);
    const double some = (abs(a) < kInf64) & (b == b) ? y : kNaN64;
    return b == 0.0 ? plain : some;
}
template <class T>
AICF_HD T fmod(T a, T b) {
    constexpr bool is_signed = static_cast<T>(-1) < static_cast<T>(1);
    const bool plain = (b != T(0)) & !(is_signed & (b == static_cast<T>(-1)));
    return plain ? static_cast<T>(a % (plain ? b : T(1))) : T(0);
}
template <class T>
AICF_HD T floor_divide(T a, T b) {
    constexpr bool is_signed = static_cast<T>(-1) < static_cast<T>(1);
    const bool minus = is_signed & (b == static_cast<T>(-1)), plain = (b != T(0)) & !minus;
    const T by = plain ? b : T(1), q = static_cast<T>(a / by), r = static_cast<T>(a % by);
    const T down = static_cast<T>(q - ((r != T(0)) & ((r < T(0)) != (b < T(0))) ? T(1) : T(0)));
    const T negative = static_cast<T>(BitsOf<T>(0) - static_cast<BitsOf<T>>(a));
    return plain ? down : (minus ? negative : T(0));
}

// ---- of f32 -------------------------------------------------------------------------------------

#define AICF_ROUNDED1(fn) \
    AICF_HD float fn(float x) { return static_cast<float>(fn(static_cast<double>(x))); }
#define AICF_ROUNDED2(fn)                                                              \
    AICF_HD float fn(float x, float y) {                                               \
        return static_cast<float>(fn(static_cast<double>(x), static_cast<double>(y))); \
    }
AICF_ROUNDED1(exp2)
AICF_ROUNDED1(log2)
AICF_ROUNDED1(log10)
AICF_ROUNDED1(tan)
AICF_ROUNDED1(asin)
AICF_ROUNDED1(acos)
AICF_ROUNDED1(atan)
AICF_ROUNDED1(sinh)
AICF_ROUNDED1(cosh)
AICF_ROUNDED1(asinh)
AICF_ROUNDED1(acosh)
AICF_ROUNDED1(atanh)
AICF_ROUNDED2(atan2)
AICF_ROUNDED2(hypot)
AICF_ROUNDED2(fmod)
AICF_ROUNDED2(floor_divide)
#undef AICF_ROUNDED1
#undef AICF_ROUNDED2

}  // namespace aicf::scalar
