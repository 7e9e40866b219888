// The order of sorted elements, once for every backend: numbers ascend, both zeros are equal, NaN
// counts as larger than all others.
#pragma once

#include "core/abi/scalar.h"

namespace aicf {

constexpr int64_t kSortRun = 2048;  // elements that are sorted in one go; longer lines by merging

/// A number that ascends with x, or descends.
template <class T>
AICF_HD uint64_t sort_key(T x, bool descending) {
    using Word = scalar::BitsOf<T>;
    constexpr Word top = static_cast<Word>(Word(1) << (8 * sizeof(T) - 1));
    uint64_t key;
    if constexpr (scalar::is_float<T>) {
        const Word u = scalar::bit_cast<Word>(x == T(0) ? T(0) : x);
        const Word turned = (u & top) != 0 ? static_cast<Word>(~u) : static_cast<Word>(u | top);
        key = x != x ? ~uint64_t(0) : static_cast<uint64_t>(turned);
    } else {
        constexpr bool is_signed = static_cast<T>(-1) < static_cast<T>(1);
        key = static_cast<Word>(static_cast<Word>(x) ^ (is_signed ? top : Word(0)));
    }
    return descending ? ~key : key;
}

}  // namespace aicf
