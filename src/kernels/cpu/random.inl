// Random numbers by Philox; see kernels/philox.h and core/ops_random.cpp. An element's number
// depends on (seed, stream, step, element) alone, so any split over threads gives the same bits.
// Included once per instruction set; see isa.cpp. No standard-library templates here.

namespace aicf::cpu::AICF_ISA {

constexpr int64_t kRandomUnit = 4096;  // elements

int64_t random_units(const ArgBlock& args, int) {
    const Operand& y = args.out(0);
    return (count_of(y, 0, y.rank) + kRandomUnit - 1) / kRandomUnit;
}

/// Calls use(i, words of element i's block of four) for each element of the units.
template <class Use>
AICF_INLINE void each_random(const ArgBlock& args, int first, int64_t stream, int64_t begin,
                             int64_t end, Use use) {
    const uint64_t key =
        random_key(static_cast<uint64_t>(*static_cast<const int64_t*>(args.in(first).ptr)),
                   static_cast<uint64_t>(stream));
    const uint64_t step =
        static_cast<uint64_t>(*static_cast<const int64_t*>(args.in(first + 1).ptr));
    const Operand& y = args.out(0);
    const int64_t stop = min64(end * kRandomUnit, count_of(y, 0, y.rank));
    for (int64_t i = begin * kRandomUnit; i < stop; i += 4) {
        const Philox4 words = philox(static_cast<uint64_t>(i) / 4, step, key);
        for (int64_t k = i; k < min64(i + 4, stop); k++) use(k, words);
    }
}

// Scalars: shape[8], dtype, a, b, stream, last.
template <class A, class E>
void uniform_units(const ArgBlock& args, int64_t begin, int64_t end) {
    const Operand& y = args.out(0);
    const A low = static_cast<A>(args.scalar(9).f), high = static_cast<A>(args.scalar(10).f),
            last = static_cast<A>(args.scalar(12).f);
    each_random(args, 0, args.scalar(11).i, begin, end, [&](int64_t i, const Philox4& words) {
        put(static_cast<E*>(y.ptr) + place_of(y, i, y.rank),
            uniform_in(words.word[i & 3], low, high, last));
    });
}

template <class A, class E>
void normal_units(const ArgBlock& args, int64_t begin, int64_t end) {
    const Operand& y = args.out(0);
    const A mean = static_cast<A>(args.scalar(9).f), deviation = static_cast<A>(args.scalar(10).f);
    each_random(args, 0, args.scalar(11).i, begin, end, [&](int64_t i, const Philox4& words) {
        const A z = normal_from(words, static_cast<int>(i & 3));
        put(static_cast<E*>(y.ptr) + place_of(y, i, y.rank), scalar::fma(z, deviation, mean));
    });
}

// Scalars: p, stream.
template <class A, class E>
void dropout_units(const ArgBlock& args, int64_t begin, int64_t end) {
    const Operand &x = args.in(0), &y = args.out(0);
    const float p = static_cast<float>(args.scalar(0).f);
    const A scale = static_cast<A>(1.0 / (1.0 - args.scalar(0).f));
    each_random(args, 1, args.scalar(1).i, begin, end, [&](int64_t i, const Philox4& words) {
        const A v = widen(static_cast<const E*>(x.ptr)[place_of(x, i, x.rank)]);
        put(static_cast<E*>(y.ptr) + place_of(y, i, y.rank),
            uniform_from(words.word[i & 3]) >= p ? v * scale : A(0));
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

void register_random(Table& table) {
    table.add(CpuKernel{"random_uniform", kAnyDType, random_uniform_run, random_units});
    table.add(CpuKernel{"random_normal", kAnyDType, random_normal_run, random_units});
    table.add(CpuKernel{"dropout", kFloats, dropout_run, random_units});
}

}  // namespace aicf::cpu::AICF_ISA
