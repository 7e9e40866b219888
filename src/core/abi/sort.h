// The sort order of all backends: both zeros are equal, NaN is the largest.
#pragma once

#include "core/abi/scalar.h"

namespace aicf {

constexpr int64_t kSortRun =
    2048;  // elements sorted at once; longer lines are merged from such runs

/// An unsigned key whose order is that of x, or the reverse.
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
