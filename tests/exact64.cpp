// Exact values of the float64 functions for exact64.py: long double and, where an argument needs
// more digits than that has, __float128.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

namespace {

using Long = long double;
using Quad = __float128;

constexpr Quad kSqrtHalf = 0.70710678118654752440084436210484904Q;
constexpr Quad kGelu1 = 1.595769121605730711759784239737527474Q;  // 2 sqrt(2/pi)
constexpr Quad kGelu3 = 0.071354816272600248776338752279863541Q;  // 0.044715 of that
constexpr Long kTwoOverRootPi = 1.12837916709551257389615890312154517L;
constexpr Long kDensity = 0.398942280401432677939946059934381868L;  // 1/sqrt(2 pi)

/// A value, and the size of the terms it is the sum of: an error counts in units of that.
struct Exact {
    Long value, size;
    Exact(Long v) : value(v), size(v) {}
    Exact(Long v, Long terms) : value(v), size(fabsl(v) > terms ? fabsl(v) : terms) {}
};

Long sigmoid(Long x) { return 1 / (1 + expl(-x)); }

struct Parts {
    Long high, low;
};
Parts parts(Quad x) {
    const Long high = static_cast<Long>(x);
    return {high, fabsl(high) < 1e5L ? static_cast<Long>(x - high) : 0};
}
Parts gelu_angle(double x) { return parts(kGelu1 * x + kGelu3 * x * x * x); }

Long normal(double x) {
    const Parts z = parts(-kSqrtHalf * x);
    return (erfcl(z.high) - kTwoOverRootPi * expl(-z.high * z.high) * z.low) / 2;
}

// x s where s may be 0 or 1, for s of x = -inf too.
Long gated(double x, Long s) { return std::isinf(x) ? (x < 0 ? -0.0L : Long(x)) : x * s; }

// s + v s (1 - s), s = 1/(1 + e^-u): v is u', times x.
Exact gated_slope(Parts u, Long v) {
    const Long e = expl(-fabsl(u.high)) * (1 - copysignl(1, u.high) * u.low);
    const Long s = 1 / (1 + e), left = e / (1 + e);  // of |u|, -|u|
    if (left == 0) return std::isnan(u.high) ? u.high : u.high > 0 ? 1.0L : -0.0L;
    const Long turn = fabsl(v) * left * s;
    return u.high > 0 ? Exact(s + turn, 1) : Exact(left - turn, turn);
}

Exact gelu_tanh_bwd(double x) {
    return gated_slope(gelu_angle(x), Long(x) * (Long(kGelu1) + 3 * Long(kGelu3) * x * x));
}
Exact gelu_erf_bwd(double x) {
    const Parts h = parts(-Quad(x) * x / 2);
    const Long turn = std::isinf(x) ? 0 : x * kDensity * expl(h.high) * (1 + h.low);
    const Long value = normal(x) + turn;
    return {value == 0 ? -0.0L : value, fabsl(turn)};
}

using Function = Exact (*)(double, double);
struct Named {
    const char* name;
    Function at;
};
const Named kFunctions[] = {
    {"exp", [](double x, double) -> Exact { return expl(x); }},
    {"log", [](double x, double) -> Exact { return logl(x); }},
    {"log1p", [](double x, double) -> Exact { return log1pl(x); }},
    {"expm1", [](double x, double) -> Exact { return expm1l(x); }},
    {"exp2", [](double x, double) -> Exact { return exp2l(x); }},
    {"log2", [](double x, double) -> Exact { return log2l(x); }},
    {"log10", [](double x, double) -> Exact { return log10l(x); }},
    {"tan", [](double x, double) -> Exact { return tanl(x); }},
    {"asin", [](double x, double) -> Exact { return asinl(x); }},
    {"acos", [](double x, double) -> Exact { return acosl(x); }},
    {"atan", [](double x, double) -> Exact { return atanl(x); }},
    {"sinh", [](double x, double) -> Exact { return sinhl(x); }},
    {"cosh", [](double x, double) -> Exact { return coshl(x); }},
    {"asinh", [](double x, double) -> Exact { return asinhl(x); }},
    {"acosh", [](double x, double) -> Exact { return acoshl(x); }},
    {"atanh", [](double x, double) -> Exact { return atanhl(x); }},
    {"atan2", [](double x, double y) -> Exact { return atan2l(x, y); }},
    {"hypot", [](double x, double y) -> Exact { return hypotl(x, y); }},
    {"rsqrt", [](double x, double) -> Exact { return 1 / sqrtl(x); }},
    {"sin", [](double x, double) -> Exact { return sinl(x); }},
    {"cos", [](double x, double) -> Exact { return cosl(x); }},
    {"tanh", [](double x, double) -> Exact { return tanhl(x); }},
    {"erf", [](double x, double) -> Exact { return erfl(x); }},
    {"pow", [](double x, double y) -> Exact { return powl(x, y); }},
    {"elu", [](double x, double) -> Exact { return x > 0 ? x : expm1l(x); }},
    {"sigmoid", [](double x, double) -> Exact { return sigmoid(x); }},
    {"softplus",
     [](double x, double) -> Exact { return (x < 0 ? 0 : x) + log1pl(expl(-fabsl(x))); }},
    {"silu", [](double x, double) -> Exact { return gated(x, sigmoid(x)); }},
    {"gelu_tanh",
     [](double x, double) -> Exact {
         const Parts u = gelu_angle(x);
         return gated(x, 1 / (1 + expl(-u.high) * (1 - u.low)));
     }},
    {"gelu_erf", [](double x, double) -> Exact { return gated(x, normal(x)); }},
    {"tanh_bwd", [](double x, double) -> Exact { return (1 - Long(x)) * (1 + Long(x)); }},
    {"sigmoid_bwd", [](double x, double) -> Exact { return (1 - Long(x)) * x; }},
    {"elu_bwd", [](double x, double) -> Exact { return x > 0 ? 1 : expl(x); }},
    {"softplus_bwd", [](double x, double) -> Exact { return sigmoid(x); }},
    {"silu_bwd", [](double x, double) -> Exact { return gated_slope({x, 0}, x); }},
    {"gelu_tanh_bwd", [](double x, double) -> Exact { return gelu_tanh_bwd(x); }},
    {"gelu_erf_bwd", [](double x, double) -> Exact { return gelu_erf_bwd(x); }},
};

Function find(const char* name) {
    for (const Named& f : kFunctions)
        if (std::strcmp(f.name, name) == 0) return f.at;
    __builtin_trap();
}

double error(double got, const Exact& want) {
    const double wrong = std::numeric_limits<double>::infinity();
    const Long value = want.value;
    if (std::isnan(value) || std::isnan(got))
        return std::isnan(value) == std::isnan(got) ? 0 : wrong;
    if (got == 0 && value == 0) return std::signbit(got) == std::signbit(value) ? 0 : wrong;
    if (got == 0 && std::signbit(got) != std::signbit(value) && want.size == value) return wrong;
    if (std::isinf(got) && fabsl(value) >= 0x1.fffffffffffff8p1023L)
        return (got > 0) == (value > 0) ? 0 : wrong;
    if (std::isinf(value) || want.size == 0) return wrong;
    int e;
    frexpl(want.size, &e);
    const Long of = std::isinf(got) ? copysignl(0x1p1024L, got) : Long(got);
    e = e > 1024 ? 1024 : e < -1021 ? -1021 : e;
    return static_cast<double>(fabsl(of - value) / ldexpl(1, e - 53));
}

}  // namespace

extern "C" {

/// The largest error of `got` in units in the last place of the exact result; where it is. A wrong
/// NaN or sign of zero counts as infinite.
double worst(const char* name, const double* x, const double* y, const double* got, int64_t n,
             int64_t* at) {
    const Function f = find(name);
    double most = -1;
    for (int64_t i = 0; i < n; i++) {
        const double one = error(got[i], f(x[i], y[i]));
        if (one > most) most = one, *at = i;
    }
    return most;
}

/// The exact values as sums of two doubles.
void values(const char* name, const double* x, const double* y, double* high, double* low,
            int64_t n) {
    const Function f = find(name);
    for (int64_t i = 0; i < n; i++) {
        const Long v = f(x[i], y[i]).value;
        high[i] = static_cast<double>(v);
        low[i] = static_cast<double>(v - high[i]);
    }
}
}
