// One step of the forward and backward recursions of CTC, in log space.
#pragma once

#include "core/abi/scalar.h"

namespace aicf {

/// The states at one time of one batch element, `step` elements apart; null: none.
template <class F>
struct States {
    F* at;
    int64_t step;
    AICF_HD F& operator[](int64_t s) const { return at[s * step]; }
};

/// The forward variable of state s: logsumexp of the previous ones at s, s - 1 and, if `skip`, s -
/// 2, in that order, plus the emission e. `before`: null at the first time, where paths begin in
/// states 0 and 1.
template <class F>
AICF_HD F ctc_path(States<const F> before, F e, bool skip, int64_t s) {
    const F none = F(scalar::from_bits(0xff800000u));
    if (!before.at) return s < 2 ? e : none;
    const F a = before[s], b = s > 0 ? before[s - 1] : none,
            c = s > 1 && skip ? before[s - 2] : none;
    const F ab = b > a ? b : a, most = c > ab ? c : ab;
    if (a != a || b != b || c != c) return a + b + c;
    if (most == none) return none;
    const F sum = scalar::exp(a - most) + scalar::exp(b - most) + scalar::exp(c - most);
    return (most + scalar::log(sum)) + e;
}

/// The gradient of forward variable `alpha` of state s from the gradients g at the next time;
/// unreachable states contribute nothing.
template <class F>
AICF_HD F ctc_slope(F dy, F alpha, States<const F> g, States<const F> e, States<const F> next,
                    States<const bool> skip, int64_t s, int64_t states) {
    const F none = F(scalar::from_bits(0xff800000u));
    F sum = alpha == none ? F(0) : dy;
    for (int64_t to = s; g.at && to < states && to < s + 3; to++)
        if (g[to] != F(0) && next[to] != none && (to < s + 2 || skip[to]))
            sum = sum + g[to] * scalar::exp((alpha + e[to]) - next[to]);
    return sum;
}

}  // namespace aicf
