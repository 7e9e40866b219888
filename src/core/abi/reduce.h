// The reductions of all backends: the table of ops, and the combine functions.
#pragma once

#include "core/abi/scalar.h"

// X(name of the lowered op, reducer, whether the result is divided by the count).
#define AICF_REDUCTIONS(X)    \
    X(reduce_sum, Sum, false) \
    X(reduce_mean, Sum, true) \
    X(reduce_max, Max, false) \
    X(reduce_min, Min, false) \
    X(reduce_prod, Prod, false)

// A reducer has join(a, b) (S provides largest and smallest of two V, a vector or an element);
// missing(), the identity, bit for bit; empty(), the result of no elements; ordered, whether
// results depend on the order. Integers wrap in their unsigned type.
namespace aicf::reducers {

template <class A>
AICF_HD A lowest() {
    if constexpr (scalar::is_float<A>)
        return static_cast<A>(-scalar::kInf64);
    else
        return static_cast<A>(scalar::BitsOf<A>(1) << (8 * sizeof(A) - 1));
}

struct Sum {
    static constexpr bool ordered = true;
    template <class S, class V>
    AICF_HD static V join(V a, V b) {
        return a + b;
    }
    template <class A>
    AICF_HD static A missing() {
        return scalar::is_float<A> ? static_cast<A>(-0.0) : A(0);
    }
    template <class A>
    AICF_HD static A empty() {
        return A(0);
    }
};

struct Prod {
    static constexpr bool ordered = true;
    template <class S, class V>
    AICF_HD static V join(V a, V b) {
        return a * b;
    }
    template <class A>
    AICF_HD static A missing() {
        return A(1);
    }
    template <class A>
    AICF_HD static A empty() {
        return A(1);
    }
};

struct Max {
    static constexpr bool ordered = false;
    template <class S, class V>
    AICF_HD static V join(V a, V b) {
        return S::largest(a, b);
    }
    template <class A>
    AICF_HD static A missing() {
        return lowest<A>();
    }
    template <class A>
    AICF_HD static A empty() {
        return missing<A>();
    }
};

struct Min {
    static constexpr bool ordered = false;
    template <class S, class V>
    AICF_HD static V join(V a, V b) {
        return S::smallest(a, b);
    }
    template <class A>
    AICF_HD static A missing() {
        if constexpr (scalar::is_float<A>)
            return -lowest<A>();
        else
            return static_cast<A>(~lowest<A>());
    }
    template <class A>
    AICF_HD static A empty() {
        return missing<A>();
    }
};

}  // namespace aicf::reducers
