// Two elements at a time: of 16 bits as a Two, which sums and products take in one instruction, of
// float32 as Both.
#pragma once

#include "reduce.cuh"

namespace aicf {

struct Both {
    float low, high;
};
template <class E>
__device__ __forceinline__ Both both(Two<E> x) {
    if constexpr (same_type<E, Brain>)
        return {scalar::from_bits(x.word << 16), scalar::from_bits(x.word & 0xffff0000u)};
    else
        return {widen(E{uint16_t(x.word)}), widen(E{uint16_t(x.word >> 16)})};
}

namespace scalar {
__device__ __forceinline__ Both add(Both a, Both b) {
    return {add(a.low, b.low), add(a.high, b.high)};
}
__device__ __forceinline__ Both bias_add(Both a, Both b) { return add(a, b); }
__device__ __forceinline__ Both sub(Both a, Both b) {
    return {sub(a.low, b.low), sub(a.high, b.high)};
}
__device__ __forceinline__ Both mul(Both a, Both b) {
    return {mul(a.low, b.low), mul(a.high, b.high)};
}
template <class To, class E>
__device__ __forceinline__ Both cast(Two<E> x) {
    static_assert(same_type<To, float>);
    return both(x);
}
template <class To>
__device__ __forceinline__ Both cast(Both x) {
    static_assert(same_type<To, float>);
    return x;
}
template <class E>
__device__ __forceinline__ Both narrowing(Two<E> x) {
    return both(x);
}
__device__ __forceinline__ Both narrowing(Both x) { return x; }
}  // namespace scalar

template <class E>
__device__ __forceinline__ auto rounded(Both x) {
    if constexpr (is_16_bit<E>)
        return Two<E>{narrow_two<E>(x.low, x.high)};
    else
        return x;
}

/// Two elements of E.
template <class E>
struct TwosOf {
    typedef Two<E> type;
};
template <>
struct TwosOf<float> {
    typedef Both type;
};
template <class E>
using Twos = typename TwosOf<E>::type;

/// All that is stored, or one for all.
template <class E, int W, int Count>
__device__ __forceinline__ void twos_of(const Stored<E, W>& x, Twos<E> (&a)[Count]) {
    if constexpr (is_16_bit<E>) {
        x.twos(a);
    } else {
#pragma unroll
        for (int j = 0; j < Count; j++)
            a[j] = {widen(x[W == 1 ? 0 : 2 * j]), widen(x[W == 1 ? 0 : 2 * j + 1])};
    }
}
template <class Out, class X>
__device__ __forceinline__ Out in_twos(X x) {
    if constexpr (same_type<Out, X>)
        return x;
    else
        return both(x);
}

}  // namespace aicf
