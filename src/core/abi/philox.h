// Philox-4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011):
// four random words from a 128-bit counter and a 64-bit key, integer arithmetic only.
#pragma once

#include "core/abi/abi.h"
#include "core/abi/scalar.h"

namespace aicf {

struct Philox4 {
    uint32_t word[4];
};

AICF_HD Philox4 philox(uint64_t counter_low, uint64_t counter_high, uint64_t key) {
    uint32_t c0 = uint32_t(counter_low), c1 = uint32_t(counter_low >> 32);
    uint32_t c2 = uint32_t(counter_high), c3 = uint32_t(counter_high >> 32);
    uint32_t k0 = uint32_t(key), k1 = uint32_t(key >> 32);
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = uint64_t(0xD2511F53u) * c0, p1 = uint64_t(0xCD9E8D57u) * c2;
        const uint32_t n0 = uint32_t(p1 >> 32) ^ c1 ^ k0, n2 = uint32_t(p0 >> 32) ^ c3 ^ k1;
        c1 = uint32_t(p1);
        c3 = uint32_t(p0);
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return {{c0, c1, c2, c3}};
}

/// 24 random bits as a multiple of 2^-24 in [0, 1).
AICF_HD float uniform_from(uint32_t word) { return float(word >> 8) * 0x1p-24f; }
/// That number in [low, high); `last` is the largest one below high that the result's dtype has.
template <class T>
AICF_HD T uniform_in(uint32_t word, T low, T high, T last) {
    const T x = scalar::fma(T(uniform_from(word)), high - low, low);
    return x < last ? x : last;
}
/// 24 random bits moved into (0, 1]: safe under a logarithm.
AICF_HD float open_uniform_from(uint32_t word) { return float((word >> 8) + 1) * 0x1p-24f; }

/// The key of a graph's random node: streams of one seed are apart.
AICF_HD uint64_t random_key(uint64_t seed, uint64_t stream) {
    return seed ^ (stream + 1) * 0x9E3779B97F4A7C15u;
}

/// Normal number `lane` (0 to 3) of four words: two Box-Muller pairs.
AICF_HD float normal_from(const Philox4& words, int lane) {
    const int pair = lane & 2;
    const float radius = scalar::sqrt(-2.0f * scalar::log(open_uniform_from(words.word[pair])));
    const float angle = 6.2831853f * uniform_from(words.word[pair + 1]);
    return radius * scalar::sin_of(scalar::reduce_fast(angle), lane & 1 ? 0 : 1);
}

}  // namespace aicf
