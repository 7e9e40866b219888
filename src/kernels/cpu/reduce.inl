// Sums, means, extrema over any axes, in the orders of abi.h.
//
// Two shapes of work. "Rows": the elements of one result are brought together, 512 at a time (in
// place when they lie so), and a leaf is summed with lanes in vectors. "Columns": neighbouring
// results lie in neighbouring addresses, so vectors run over results and each lane follows the
// declared order by itself. A long reduction with few results is cut into groups of whole subtrees
// that units compute apart and a second phase joins.
//
// Included once per instruction set; see isa.cpp. No standard-library templates here.

namespace aicf::cpu::AICF_ISA {

// ---- the plan of a reduction --------------------------------------------------------------------

// Neighbouring results to a unit of columns, at most: rows are read in pieces so long.
constexpr int64_t kStrip = 256, kNarrowStrip = 64;

struct ReducePlan {
    Walk reduced;                  // reduced.total elements make one result
    int64_t results, chain;        // chain: c, or 0 for the tree
    int64_t units, strips, strip;  // strip: results to a unit; of one row of results, if `columns`
    int64_t groups, group;         // group: elements of a result that one unit takes
    int32_t kept_rank;
    bool columns, bundles;
    int64_t kept[kMaxDims], from[kMaxDims], to[kMaxDims];
};

AICF_INLINE const ReducePlan& reduce_plan(const ArgBlock& args) {
    return *static_cast<const ReducePlan*>(args.tail_ptr());
}

/// Cuts long reductions with few results into groups: a power of two of leaves each.
void plan_groups(ReducePlan& p, int64_t work) {
    p.group = power_of_two_from((work + p.strip - 1) / p.strip);
    if (p.group < kTreeLeaf) p.group = kTreeLeaf;
    p.groups = p.chain == 0 && p.units < 16 ? (p.reduced.total + p.group - 1) / p.group : 1;
    if (p.groups < 2) {
        p.groups = 1;
        p.group = p.reduced.total;
    }
    p.units *= p.groups;
}

void reduce_prepare(ArgBlock& args, bool ordered) {
    ReducePlan& p = *const_cast<ReducePlan*>(&reduce_plan(args));
    const Operand &x = args.in(0), &y = args.out(0);
    const int64_t axes = args.scalar(0).i, keepdims = args.scalar(1).i;
    p.chain = ordered ? args.scalar(2).i : 0;
    p.results = 1;
    p.kept_rank = 0;
    walk_start(p.reduced);
    for (int d = 0, o = 0; d < x.rank; d++) {
        const int64_t size = x.shape()[d], from = x.strides()[d];
        if ((axes >> d & 1) != 0) {
            walk_axis(p.reduced, size, from);
            if (keepdims) o++;
            continue;
        }
        const int64_t to = y.strides()[o++];
        p.results *= size;
        if (size == 1) continue;
        const int last = p.kept_rank - 1;
        if (last >= 0 && p.from[last] == from * size && p.to[last] == to * size) {
            p.kept[last] *= size;
            p.from[last] = from;
            p.to[last] = to;
        } else {
            p.kept[p.kept_rank] = size;
            p.from[p.kept_rank] = from;
            p.to[p.kept_rank++] = to;
        }
    }
    const int last = p.kept_rank - 1;
    const int64_t n = p.reduced.total;
    p.columns = last >= 0 && p.from[last] == 1 && p.reduced.rank == 1 && p.reduced.stride[0] != 1;
    if (p.results == 0 || n == 0) p.columns = false;
    if (p.columns) {
        // Wide strips suit the memory; narrow ones give every thread some where there are few.
        const bool many = p.results >= 16 * kStrip || n >= 16 * kTreeLeaf;
        const int64_t most = p.chain == 0 && many ? kStrip : kNarrowStrip;
        p.strips = (p.kept[last] + most - 1) / most;
        p.strip = (p.kept[last] + p.strips - 1) / p.strips;
        p.units = p.results / p.kept[last] * p.strips;
    } else {
        p.strips = 1;
        p.strip = n > 0 && n < 4096 ? (4096 + n - 1) / n : 1;
        p.units = (p.results + p.strip - 1) / p.strip;
    }
    plan_groups(p, 65536);
    p.bundles = p.groups == 1 && p.chain == 0 && p.reduced.rank <= 1 && n > 0 && n <= kShortRow;
}

template <class Plan>
AICF_INLINE void place_result(const Plan& p, int64_t result, int64_t* from, int64_t* to) {
    if (p.kept_rank <= 1) {
        *from = p.kept_rank ? result * p.from[0] : 0;
        *to = p.kept_rank ? result * p.to[0] : 0;
        return;
    }
    *from = *to = 0;
    for (int d = p.kept_rank - 1; d >= 0; d--) {
        const int64_t next = result / p.kept[d], index = result - next * p.kept[d];
        *from += index * p.from[d];
        *to += index * p.to[d];
        result = next;
    }
}

// ---- rows ---------------------------------------------------------------------------------------

template <class Op, class A, class E>
A reduce_row(const Walk& w, const E* x, int64_t begin, int64_t end, int64_t chain) {
    typedef Simd<A, 0> S;
    alignas(64) A buffer[kTreeLeaf];
    if (begin >= end) return A(0);
    if (chain == 0) {
        if (end - begin <= kTreeLeaf)
            return leaf<Op>(fetch<A>(w, x, begin, end - begin, buffer), end - begin);
        Tree<Op, S> tree;
        for (int64_t at = begin; at < end; at += kTreeLeaf) {
            const int64_t n = min64(kTreeLeaf, end - at);
            tree.push(leaf<Op>(fetch<A>(w, x, at, n, buffer), n));
        }
        return tree.result();
    }
    A total = A(0), part = A(0);
    for (int64_t at = begin; at < end;) {
        const int64_t in_chunk = at % chain,
                      n = min64(min64(kTreeLeaf, end - at), chain - in_chunk);
        const A* v = fetch<A>(w, x, at, n, buffer);
        int64_t i = 0;
        if (in_chunk == 0) part = v[i++];
        for (; i < n; i++) part = Op::template join<S>(part, v[i]);
        at += n;
        if (at % chain == 0 || at == end)
            total = at <= chain ? part : Op::template join<S>(total, part);
    }
    return total;
}

// ---- columns ------------------------------------------------------------------------------------

constexpr int64_t kMaxVectors = kStrip / 2;  // of a strip

/// Where the vectors of a strip begin. The last overlaps the one before it: shared lanes repeat the
/// same work.
struct Strip {
    int64_t step, vectors;
    int64_t at[kMaxVectors];
};

/// N vectors from v on, over elements [begin, end), in one chain per chunk.
template <class Op, class S, int N, class A, class E>
AICF_INLINE void column_chain(const Strip& strip, int64_t v, const E* x, int64_t begin, int64_t end,
                              int64_t chain, A* to) {
    typedef typename S::V V;
    const int64_t* at = strip.at + v;
    V total[N] = {};
    for (int64_t c = begin; c < end; c += chain) {
        const int64_t stop = min64(end, c + chain);
        const E* row = x + c * strip.step;
        V part[N];
#pragma GCC unroll 8
        for (int i = 0; i < N; i++) part[i] = S::load(row + at[i]);
        for (int64_t r = c + 1; r < stop; r++) {
            row += strip.step;
#pragma GCC unroll 8
            for (int i = 0; i < N; i++)
                part[i] = Op::template join<S>(part[i], S::load(row + at[i]));
        }
#pragma GCC unroll 8
        for (int i = 0; i < N; i++)
            total[i] = c == begin ? part[i] : Op::template join<S>(total[i], part[i]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < N; i++) S::get(total[i], to + at[i]);
}

/// One leaf of n elements; the lanes of abi.h are rows of t, and its first halving is done on the
/// way in.
template <class Op, class S, class E>
__attribute__((noinline)) void column_leaf(const Strip& strip, const E* x, int64_t n,
                                           typename S::V* to) {
    typedef typename S::V V;
    const int64_t step = strip.step, vectors = strip.vectors, leap = kTreeLanes * step;
    const int64_t lanes = min64(n, kTreeLanes), half = power_of_two_from(lanes) / 2;
    const auto lane = [&](int64_t l, const E* row) __attribute__((always_inline)) {
        V s = S::load(row);
        for (l += kTreeLanes; l < n; l += kTreeLanes)
            s = Op::template join<S>(s, S::load(row += leap));
        return s;
    };
    if (half == 0) {
        for (int64_t v = 0; v < vectors; v++) to[v] = S::load(x + strip.at[v]);
        return;
    }
    V t[kTreeLanes / 2 * (S::lanes > 1 ? kStrip / S::lanes : 4)];
    for (int64_t l = 0; l < half; l++) {
        for (int64_t v = 0; v < vectors; v++) {
            const E* row = x + l * step + strip.at[v];
            V s;
            if (n == kTreeLeaf) {
                const E* far = row + half * step;
                s = Op::template join<S>(S::load(row), S::load(row + leap));
                s = Op::template join<S>(s, S::load(row + 2 * leap));
                s = Op::template join<S>(s, S::load(row + 3 * leap));
                V other = Op::template join<S>(S::load(far), S::load(far + leap));
                other = Op::template join<S>(other, S::load(far + 2 * leap));
                s = Op::template join<S>(s, Op::template join<S>(other, S::load(far + 3 * leap)));
            } else {
                s = lane(l, row);
                if (l + half < lanes)
                    s = Op::template join<S>(s, lane(l + half, row + half * step));
            }
            t[l * vectors + v] = s;
        }
    }
    for (int64_t h = half / 2; h > 0; h /= 2)
        for (int64_t i = 0; i < h * vectors; i++)
            t[i] = Op::template join<S>(t[i], t[h * vectors + i]);
    for (int64_t v = 0; v < vectors; v++) to[v] = t[v];
}

template <class Op, class S, class A, class E>
void column_tree(const Strip& strip, const E* x, int64_t begin, int64_t end, A* to) {
    typedef typename S::V V;
    const int64_t n = strip.vectors;
    V part[40 * (S::lanes > 1 ? kStrip / S::lanes : 4)];
    V* top = part;
    uint64_t count = 0;
    const auto carry = [&]() __attribute__((always_inline)) {
        top -= n;
        for (int64_t v = 0; v < n; v++) top[v - n] = Op::template join<S>(top[v - n], top[v]);
    };
    for (int64_t r = begin; r < end; r += kTreeLeaf) {
        column_leaf<Op, S>(strip, x + r * strip.step, min64(kTreeLeaf, end - r), top);
        top += n;
        for (uint64_t c = ++count; (c & 1) == 0; c >>= 1) carry();
    }
    while (top > part + n) carry();
    for (int64_t v = 0; v < n; v++) S::get(part[v], to + strip.at[v]);
}

template <class Op, class A>
constexpr bool rounds =
    same_bits<Op, SumOp> && scalar::is_float<A>;  // else any order gives the same

template <class Op, class A, class E>
void reduce_columns(const ReducePlan& p, const E* x, int64_t width, int64_t begin, int64_t end,
                    A* to) {
    const auto run = [&](auto vector) {
        typedef decltype(vector) S;
        Strip strip;
        strip.step = p.reduced.stride[0];
        strip.vectors = (width + S::lanes - 1) / S::lanes;
        for (int64_t v = 0; v < strip.vectors; v++)
            strip.at[v] = min64(v * S::lanes, width - S::lanes);
        if constexpr (rounds<Op, A>)
            if (p.chain == 0) return column_tree<Op, S>(strip, x, begin, end, to);
        const int64_t chain = rounds<Op, A> ? p.chain : end - begin;
        int64_t v = 0;
        if constexpr (same_bits<E, A> && S::lanes > 1) {
            for (; v + 8 <= strip.vectors; v += 8)
                column_chain<Op, S, 8>(strip, v, x, begin, end, chain, to);
            for (; v + 2 <= strip.vectors; v += 2)
                column_chain<Op, S, 2>(strip, v, x, begin, end, chain, to);
        }
        for (; v < strip.vectors; v++) column_chain<Op, S, 1>(strip, v, x, begin, end, chain, to);
    };
    const int64_t bytes = width * int64_t(sizeof(A));
    if (bytes < 16) return run(Simd<A, 0>{});
    if constexpr (kVectorBytes > 16)
        if (bytes < 32) return run(Simd<A, 16>{});
    if constexpr (kVectorBytes > 32)
        if (bytes < 64) return run(Simd<A, 32>{});
    run(Simd<A, kVectorBytes>{});
}

// ---- the kernel ---------------------------------------------------------------------------------

template <class E, class A>
AICF_INLINE void finish(E* to, A value, bool mean, int64_t n) {
    if constexpr (scalar::is_float<A>)
        if (mean) value = scalar::div(value, static_cast<A>(n));
    put(to, value);
}

template <class Op, class E, class A>
void reduce_units(const ArgBlock& args, int64_t begin, int64_t end, int phase, bool mean = false) {
    const ReducePlan& p = reduce_plan(args);
    const E* x = static_cast<const E*>(args.in(0).ptr);
    E* y = static_cast<E*>(args.out(0).ptr);
    A* parts = static_cast<A*>(args.workspace);  // [groups][results]
    const int64_t n = p.reduced.total;
    int64_t from, to;
    if (phase == 1) {
        for (int64_t r = begin * 256; r < min64(end * 256, p.results); r++) {
            Tree<Op, Simd<A, 0>> tree;
            for (int64_t g = 0; g < p.groups; g++) tree.push(parts[g * p.results + r]);
            place_result(p, r, &from, &to);
            finish(y + to, tree.result(), mean, n);
        }
        return;
    }
    for (int64_t u = begin; u < end; u++) {
        const int64_t block = u / p.groups, g = u - block * p.groups;
        const int64_t first = g * p.group, stop = min64(n, first + p.group);
        if (p.columns) {
            const int64_t width = p.kept[p.kept_rank - 1], row = block / p.strips;
            const int64_t c0 = (block - row * p.strips) * p.strip, c1 = min64(width, c0 + p.strip);
            const int64_t result = row * width + c0;
            if (c0 >= c1) continue;
            alignas(64) A strip[kStrip];
            place_result(p, result, &from, &to);
            reduce_columns<Op, A>(p, x + from, c1 - c0, first, stop, strip);
            const int64_t step = p.to[p.kept_rank - 1];
            if (p.groups > 1)
                for (int64_t i = 0; i < c1 - c0; i++) parts[g * p.results + result + i] = strip[i];
            else
                for (int64_t i = 0; i < c1 - c0; i++) finish(y + to + i * step, strip[i], mean, n);
            continue;
        }
        int64_t r = block * p.strip;
        const int64_t last = min64(p.results, r + p.strip);
        if (p.bundles) {
            alignas(64) A t[kShortRow * kBundle<A>], results[kBundle<A>];
            int64_t at[kBundle<A>], put_at[kBundle<A>];
            const int64_t step = p.reduced.rank ? p.reduced.stride[0] : 0;
            for (; last - r >= kBundle<A> / 4; r += kBundle<A>) {
                const int count = int(min64(kBundle<A>, last - r));
                for (int i = 0; i < count; i++) place_result(p, r + i, &at[i], &put_at[i]);
                load_bundle(t, x, at, count, step, n);
                bundle_leaf<Op>(t, n, results);
                for (int i = 0; i < count; i++) finish(y + put_at[i], results[i], mean, n);
            }
        }
        for (; r < last; r++) {
            place_result(p, r, &from, &to);
            const A value = reduce_row<Op, A>(p.reduced, x + from, first, stop, p.chain);
            if (p.groups > 1)
                parts[g * p.results + r] = value;
            else
                finish(y + to, value, mean, n);
        }
    }
}

template <class E>
struct SumOf {
    typedef typename ComputeOf<E>::type type;
};
template <>
struct SumOf<int32_t> {
    typedef uint32_t type;
};
template <>
struct SumOf<int64_t> {
    typedef uint64_t type;
};
template <>
struct SumOf<uint8_t> {
    typedef uint32_t type;
};
template <class E>
struct ExtremumOf {
    typedef typename ComputeOf<E>::type type;
};
template <>
struct ExtremumOf<uint8_t> {
    typedef int32_t type;
};

template <class Op, template <class> class AccOf, bool Mean>
void reduce_run(const ArgBlock& args, int64_t begin, int64_t end, int phase, int) {
    switch (DType(args.in(0).dtype)) {
        case DType::f32:
            return reduce_units<Op, float, float>(args, begin, end, phase, Mean);
        case DType::f64:
            return reduce_units<Op, double, double>(args, begin, end, phase, Mean);
        case DType::f16:
            return reduce_units<Op, F16, float>(args, begin, end, phase, Mean);
        case DType::bf16:
            return reduce_units<Op, BF16, float>(args, begin, end, phase, Mean);
        default:
            break;
    }
    if constexpr (!Mean) {
        switch (DType(args.in(0).dtype)) {
            case DType::i32:
                return reduce_units<Op, int32_t, typename AccOf<int32_t>::type>(args, begin, end,
                                                                                phase);
            case DType::i64:
                return reduce_units<Op, int64_t, typename AccOf<int64_t>::type>(args, begin, end,
                                                                                phase);
            case DType::u8:
                return reduce_units<Op, uint8_t, typename AccOf<uint8_t>::type>(args, begin, end,
                                                                                phase);
            default:
                return;
        }
    }
}

int64_t reduce_unit_count(const ArgBlock& args, int phase) {
    const ReducePlan& p = reduce_plan(args);
    if (phase == 0) return p.units;
    return p.groups > 1 ? (p.results + 255) / 256 : 0;
}

uint64_t reduce_workspace(const ArgBlock& args, int) {
    const ReducePlan& p = reduce_plan(args);
    return p.groups > 1 ? uint64_t(p.groups * p.results) * 8 : 0;
}

void sum_prepare(ArgBlock& args) { reduce_prepare(args, true); }
void extremum_prepare(ArgBlock& args) { reduce_prepare(args, false); }

void register_reduce(Table& table) {
    const auto add = [&](const char* op, uint32_t dtypes, auto run, auto prepare) {
        table.add(CpuKernel{op, dtypes, run, reduce_unit_count, reduce_workspace,
                            sizeof(ReducePlan), prepare, 2});
    };
    add("reduce_sum", kNumbers, reduce_run<SumOp, SumOf, false>, sum_prepare);
    add("reduce_mean", kFloats, reduce_run<SumOp, SumOf, true>, sum_prepare);
    add("reduce_max", kNumbers, reduce_run<MaxOp, ExtremumOf, false>, extremum_prepare);
    add("reduce_min", kNumbers, reduce_run<MinOp, ExtremumOf, false>, extremum_prepare);
}

}  // namespace aicf::cpu::AICF_ISA
