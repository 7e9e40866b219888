// Random numbers by Philox; see core/abi/philox.h. A thread takes the four elements of one counter.
#pragma once

#include "core/abi/philox.h"
#include "prelude.cuh"

namespace aicf {

/// Calls use(i, words) for each element i of n.
template <class Use>
__device__ __forceinline__ void each_random(const Grid& grid, int64_t n, int64_t seed, int64_t step,
                                            int64_t stream, Use use) {
    const uint64_t key = random_key(static_cast<uint64_t>(seed), static_cast<uint64_t>(stream));
    const int64_t stride = int64_t(grid.blocks) * grid.threads * 4;
    for (int64_t i = (int64_t(grid.block) * grid.threads + grid.thread()) * 4; i < n; i += stride) {
        const Philox4 words =
            philox(static_cast<uint64_t>(i) / 4, static_cast<uint64_t>(step), key);
        for (int k = 0; k < 4; k++)
            if (i + k < n) use(i + k, words);
    }
}

template <class Y, class E>
__device__ __forceinline__ void random_uniform(const Grid& grid, E* y, int64_t n, int64_t seed,
                                               int64_t step, double low, double high,
                                               int64_t stream, double last) {
    const auto a = static_cast<Wide<E>>(low), b = static_cast<Wide<E>>(high),
               top = static_cast<Wide<E>>(last);
    each_random(grid, n, seed, step, stream, [&](int64_t i, const Philox4& words) {
        y[Y::at(i)] = narrow<E>(uniform_in(words.word[i & 3], a, b, top));
    });
}

template <class Y, class E>
__device__ __forceinline__ void random_normal(const Grid& grid, E* y, int64_t n, int64_t seed,
                                              int64_t step, double mean, double deviation,
                                              int64_t stream, double) {
    const auto a = static_cast<Wide<E>>(mean), b = static_cast<Wide<E>>(deviation);
    each_random(grid, n, seed, step, stream, [&](int64_t i, const Philox4& words) {
        const Wide<E> z = normal_from(words, static_cast<int>(i & 3));
        y[Y::at(i)] = narrow<E>(scalar::fma(z, b, a));
    });
}

template <class X, class Y, class E>
__device__ __forceinline__ void dropout(const Grid& grid, E* y, const E* x, int64_t n, int64_t seed,
                                        int64_t step, double p, int64_t stream) {
    const float limit = static_cast<float>(p);
    const Wide<E> scale = static_cast<Wide<E>>(1.0 / (1.0 - p));
    each_random(grid, n, seed, step, stream, [&](int64_t i, const Philox4& words) {
        const Wide<E> v = widen(x[X::at(i)]);
        y[Y::at(i)] = narrow<E>(uniform_from(words.word[i & 3]) >= limit ? v * scale : Wide<E>(0));
    });
}

}  // namespace aicf
