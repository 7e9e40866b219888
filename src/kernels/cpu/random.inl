// Random numbers by Philox; see core/abi/philox.h and core/graph/ops_random.cpp. An element's
// number depends on (seed, stream, step, element) alone, so any split over threads gives the same
// bits. Included once per instruction set; see isa.cpp. No standard-library templates here.

namespace aicf::cpu::AICF_ISA {

int64_t random_units(const ArgBlock& args, int) {
    const Operand& y = args.out(0);
    return (count_of(y, 0, y.rank) + kRandomUnit - 1) / kRandomUnit;
}

/// The words of elements [first, first + n), first a multiple of 4: block first / 4 + i gives four.
__attribute__((noinline)) void fill_words(uint64_t first, int64_t n, uint64_t step, uint64_t key,
                                          uint32_t* words) {
    for (int64_t i = 0; i < (n + 3) / 4; i++) {
        const Philox4 four = philox(first / 4 + static_cast<uint64_t>(i), step, key);
        for (int k = 0; k < 4; k++) words[4 * i + k] = four.word[k];
    }
}

Walk walk_of(const Operand& o) {
    Walk w;
    walk_start(w);
    for (int d = 0; d < o.rank; d++) walk_axis(w, o.shape()[d], o.strides()[d]);
    return w;
}

/// Writes elements [pos, pos + n) of an operand.
template <class A, class E>
AICF_INLINE void put_row(const Operand& y, const Walk& w, int64_t pos, int64_t n, const A* from) {
    E* to = static_cast<E*>(y.ptr);
    if (w.dense) return narrow_row(from, n, to + pos);
    for (int64_t i = 0; i < n; i++) put(to + place_of(y, pos + i, y.rank), from[i]);
}

/// Fills the units of out(0): make(pos, n, words, to) gives the values of elements [pos, pos + n)
/// from a word each, n at most kBlock and pos a multiple of 4.
template <class A, class E, class Make>
AICF_INLINE void each_random(const ArgBlock& args, int first, int64_t stream, int64_t begin,
                             int64_t end, Make make) {
    const uint64_t key =
        random_key(static_cast<uint64_t>(*static_cast<const int64_t*>(args.in(first).ptr)),
                   static_cast<uint64_t>(stream));
    const uint64_t step =
        static_cast<uint64_t>(*static_cast<const int64_t*>(args.in(first + 1).ptr));
    const Operand& y = args.out(0);
    const Walk walk = walk_of(y);
    const int64_t stop = min64(end * kRandomUnit, walk.total);
    alignas(64) uint32_t words[kBlock];
    alignas(64) A values[kBlock];
    for (int64_t pos = begin * kRandomUnit, n; pos < stop; pos += n) {
        n = min64(kBlock, stop - pos);
        fill_words(static_cast<uint64_t>(pos), n, step, key, words);
        make(pos, n, words, values);
        put_row<A, E>(y, walk, pos, n, values);
    }
}

// Scalars: shape[8], dtype, a, b, stream, last.
template <class A, class E>
void uniform_units(const ArgBlock& args, int64_t begin, int64_t end) {
    const A low = static_cast<A>(args.scalar(9).f), high = static_cast<A>(args.scalar(10).f),
            last = static_cast<A>(args.scalar(12).f);
    each_random<A, E>(args, 0, args.scalar(11).i, begin, end,
                      [&](int64_t, int64_t n, const uint32_t* words, A* to) {
                          AICF_LOOP to[i] = uniform_in(words[i], low, high, last);
                      });
}

template <class A, class E>
void normal_units(const ArgBlock& args, int64_t begin, int64_t end) {
    const A mean = static_cast<A>(args.scalar(9).f), deviation = static_cast<A>(args.scalar(10).f);
    each_random<A, E>(args, 0, args.scalar(11).i, begin, end,
                      [&](int64_t, int64_t n, const uint32_t* words, A* to) {
                          for (int64_t i = 0; i < n; i++) {
                              const uint32_t* four = words + (i & ~int64_t(3));
                              const A z = normal_from({{four[0], four[1], four[2], four[3]}},
                                                      static_cast<int>(i & 3));
                              to[i] = scalar::fma(z, deviation, mean);
                          }
                      });
}

// Scalars: p, stream.
template <class A, class E>
void dropout_units(const ArgBlock& args, int64_t begin, int64_t end) {
    const float p = static_cast<float>(args.scalar(0).f);
    const A scale = static_cast<A>(1.0 / (1.0 - args.scalar(0).f));
    const E* x = static_cast<const E*>(args.in(0).ptr);
    const Walk walk = walk_of(args.in(0));
    each_random<A, E>(args, 1, args.scalar(1).i, begin, end,
                      [&](int64_t pos, int64_t n, const uint32_t* words, A* to) {
                          alignas(64) A buffer[kBlock];
                          const A* v = fetch<A>(walk, x, pos, n, buffer);
                          AICF_LOOP to[i] = uniform_from(words[i]) >= p ? v[i] * scale : A(0);
                      });
}

void random_uniform_run(const ArgBlock& args, int64_t begin, int64_t end, int, int) {
    AICF_BY_FLOAT(args.out(0).dtype, uniform_units, args, begin, end)
}
void random_normal_run(const ArgBlock& args, int64_t begin, int64_t end, int, int) {
    AICF_BY_FLOAT(args.out(0).dtype, normal_units, args, begin, end)
}
void dropout_run(const ArgBlock& args, int64_t begin, int64_t end, int, int) {
    AICF_BY_FLOAT(args.out(0).dtype, dropout_units, args, begin, end)
}

/// The first two words of blocks first to first + n - 1, as philox() gives them: a round at a time
/// of all, so that the compiler makes vectors of them.
constexpr int64_t kDrawn = 128;
struct Drawn {
    alignas(64) uint32_t word[4][kDrawn];
};
AICF_INLINE void draw_words(uint64_t first, int64_t n, uint64_t key, Drawn& drawn) {
    uint32_t *c0 = drawn.word[0], *c1 = drawn.word[1], *c2 = drawn.word[2], *c3 = drawn.word[3];
    AICF_LOOP {
        c0[i] = uint32_t(first + uint64_t(i));
        c1[i] = uint32_t((first + uint64_t(i)) >> 32);
        c2[i] = c3[i] = 0;
    }
    uint32_t k0 = uint32_t(key), k1 = uint32_t(key >> 32);
    constexpr int kRounds = 10;
    for (int round = 0; round < kRounds; round++) {
        AICF_LOOP {
            const uint64_t p0 = uint64_t(0xD2511F53u) * c0[i], p1 = uint64_t(0xCD9E8D57u) * c2[i];
            c0[i] = uint32_t(p1 >> 32) ^ c1[i] ^ k0;
            c2[i] = uint32_t(p0 >> 32) ^ c3[i] ^ k1;
            c1[i] = uint32_t(p1);
            c3[i] = uint32_t(p0);
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
}

/// See DrawFn.
void draw(bool normal, float a, float b, uint64_t key, uint64_t first, int64_t count, float* to) {
    Drawn drawn;
    for (int64_t n; count > 0; count -= n, first += uint64_t(n), to += n) {
        n = min64(kDrawn, count);
        draw_words(first, n, key, drawn);
        const uint32_t *one = drawn.word[0], *two = drawn.word[1];
        if (normal) {
            static_assert(6.2831853f <= scalar::kSinFastLimit);
            AICF_LOOP {  // normal_from() of lane 0
                const float radius = scalar::sqrt(-2.0f * scalar::log(open_uniform_from(one[i])));
                const float angle = 6.2831853f * uniform_from(two[i]);
                to[i] = a + b * (radius * scalar::cos_fast(angle, scalar::reduce_fast(angle)));
            }
        } else {
            AICF_LOOP to[i] = a + (b - a) * uniform_from(one[i]);
        }
    }
}

void register_random(Table& table) {
    table.draw = draw;
    table.add(CpuKernel{"random_uniform", kAnyDType, random_uniform_run, random_units});
    table.add(CpuKernel{"random_normal", kAnyDType, random_normal_run, random_units});
    table.add(CpuKernel{"dropout", kFloats, dropout_run, random_units});
}

}  // namespace aicf::cpu::AICF_ISA
