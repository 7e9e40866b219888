// The loops of sums, means and extrema over any axes, in the orders of abi.h.
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

struct ReducePlan {
    Walk reduced;                  // reduced.total elements make one result
    int64_t results, chain;        // chain: c, or 0 for the tree
    int64_t units, strips, strip;  // strip: results to a unit; of one row of results, if `columns`
    int64_t groups, group;         // group: elements of a result that one unit takes
    int32_t kept_rank;
    bool columns, bundles;
    bool streamed;   // from memory, as no cache holds it
    bool ascending;  // how columns ask for the rows of a leaf
    int64_t kept[kMaxDims], from[kMaxDims], to[kMaxDims];
};

AICF_INLINE const ReducePlan& reduce_plan(const ArgBlock& args) {
    return *static_cast<const ReducePlan*>(args.tail_ptr());
}

/// Cuts long reductions with few results into groups: a power of two of leaves each.
void plan_groups(ReducePlan& p, int64_t work) {
    p.group = power_of_two_from((work + p.strip - 1) / p.strip);
    if (p.group < kTreeLeaf) p.group = kTreeLeaf;
    p.groups = p.chain == 0 && p.units < kFewUnits ? (p.reduced.total + p.group - 1) / p.group : 1;
    if (p.groups < 2) {
        p.groups = 1;
        p.group = p.reduced.total;
    }
    p.units *= p.groups;
}

/// Units and groups, once it is known where elements and results lie.
/// `size`: bytes that a result is computed in. `most`: results to a unit of columns, which reads
/// rows in pieces so long; 0 leaves it open.
void plan_units(ReducePlan& p, int64_t size, int64_t most = 0) {
    const int last = p.kept_rank - 1;
    const int64_t n = p.reduced.total;
    if (p.results == 0 || n == 0) p.columns = false;
    p.streamed = p.chain == 0 && p.results * n >= kStreamed;
    if (p.columns) {
        // Wide strips suit the memory, the more so where they take whole pages of each row; narrow
        // ones give every thread some where there are few.
        const bool many = p.results >= kManyStrips * kWideStrip || n >= kManyLeaves * kTreeLeaf;
        const bool pages = p.streamed && p.kept[last] * size >= kPageBytes;
        p.ascending = most > 0 || !pages;
        if (most == 0)
            most = p.streamed             ? (pages ? 4 * kPageBytes : kPageBytes / 2) / size
                   : p.chain == 0 && many ? kWideStrip
                                          : kStrip;
        const auto shares = [&] {
            const int64_t strips = (p.kept[last] + most - 1) / most;
            return p.results / p.kept[last] * strips * ((n + kTreeLeaf - 1) / kTreeLeaf);
        };
        while (most > 0 && pages && most * size > kPageBytes && shares() < kShares) most /= 2;
        p.strips = (p.kept[last] + most - 1) / most;
        p.strip = (p.kept[last] + p.strips - 1) / p.strips;
        p.units = p.results / p.kept[last] * p.strips;
    } else {
        p.strips = 1;
        const bool several = kDrawsAbreast && p.streamed && p.results >= kManyStrips * kAbreast;
        p.strip = n > 0 && n < kTile ? (kTile + n - 1) / n : several ? kAbreast : 1;
        p.units = (p.results + p.strip - 1) / p.strip;
    }
    plan_groups(p, kGroupWork);
    p.bundles = p.groups == 1 && p.chain == 0 && p.reduced.rank <= 1 && n > 0 && n <= kShortRow;
}

/// `y`: null where results are not stored one by one.
void plan_operand(ReducePlan& p, const Operand& x, int64_t axes, bool keepdims, const Operand* y) {
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
        const int64_t to = y ? y->strides()[o++] : 0;
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
    p.columns = last >= 0 && p.from[last] == 1 && p.reduced.rank == 1 && p.reduced.stride[0] != 1;
    const DType dtype = DType(x.dtype);
    plan_units(p, dtype == DType::f64 || dtype == DType::i64 ? 8 : 4);
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

/// row(at, n, buffer): elements [at, at + n), n <= 512, as type A, in place or in the buffer.
template <class Op, class A, class Row>
A reduce_row(Row row, int64_t begin, int64_t end, int64_t chain) {
    typedef Simd<A, 0> S;
    alignas(64) A buffer[kTreeLeaf];
    if (begin >= end) return Op::template empty<A>();
    if (chain == 0) {
        if (end - begin <= kTreeLeaf) return leaf<Op>(row(begin, end - begin, buffer), end - begin);
        Tree<Op, S> tree;
        for (int64_t at = begin; at < end; at += kTreeLeaf) {
            const int64_t n = min64(kTreeLeaf, end - at);
            tree.push(leaf<Op>(row(at, n, buffer), n));
        }
        return tree.result();
    }
    A total = A(0), part = A(0);
    for (int64_t at = begin; at < end;) {
        const int64_t in_chunk = at % chain,
                      n = min64(min64(kTreeLeaf, end - at), chain - in_chunk);
        const A* v = row(at, n, buffer);
        int64_t i = 0;
        if (in_chunk == 0) part = v[i++];
        for (; i < n; i++) part = Op::template join<S>(part, v[i]);
        at += n;
        if (at % chain == 0 || at == end)
            total = at <= chain ? part : Op::template join<S>(total, part);
    }
    return total;
}

/// The tree of n > 0 elements that lie side by side.
template <class Op, class A>
A dense_tree(const A* x, int64_t n, bool abreast) {
    typedef Simd<A, 0> S;
    if (kDrawsAbreast && abreast &&
        n >= kAbreast * kFarLeaves * kTreeLeaf) {  // the first subtree, by its quarters
        int64_t quarter = kFarLeaves * kTreeLeaf;
        while (quarter * 2 * kAbreast <= n) quarter *= 2;
        const A* const from[kAbreast] = {x, x + quarter, x + 2 * quarter, x + 3 * quarter};
        A part[kAbreast];
        trees_abreast<Op>(from, quarter, part);
        const A whole = Op::template join<S>(Op::template join<S>(part[0], part[1]),
                                             Op::template join<S>(part[2], part[3]));
        const int64_t done = kAbreast * quarter;
        if (done == n) return whole;
        return Op::template join<S>(whole, dense_tree<Op>(x + done, n - done, true));
    }
    Tree<Op, S> tree;
    int64_t at = 0;
    for (; at + kTreeLeaf <= n; at += kTreeLeaf) tree.push(whole_leaf<Op>(x + at));
    if (at < n) tree.push(leaf<Op>(x + at, n - at));
    return tree.result();
}

// ---- columns ------------------------------------------------------------------------------------

constexpr int64_t kMaxVectors = 256;  // of a strip whose rows are made; of others, four times that

/// Where the vectors of a strip begin. The last overlaps the one before it: shared lanes repeat the
/// same work.
struct Strip {
    int64_t vectors;
    int64_t at[4 * kMaxVectors];
    static_assert(4 * kMaxVectors * 16 >= 4 * kPageBytes);
};

/// N vectors from v on, over elements [begin, end), in one chain per chunk.
template <class Op, class S, int N, class A, class E>
AICF_INLINE void column_chain(const Strip& strip, int64_t v, const E* x, int64_t step, int64_t n,
                              int64_t chain, A* to) {
    typedef typename S::V V;
    const int64_t* at = strip.at + v;
    V total[N] = {};
    for (int64_t c = 0; c < n; c += chain) {
        const int64_t stop = min64(n, c + chain);
        const E* row = x + c * step;
        V part[N];
#pragma GCC unroll 8
        for (int i = 0; i < N; i++) part[i] = S::load(row + at[i]);
        for (int64_t r = c + 1; r < stop; r++) {
            row += step;
#pragma GCC unroll 8
            for (int i = 0; i < N; i++)
                part[i] = Op::template join<S>(part[i], S::load(row + at[i]));
        }
#pragma GCC unroll 8
        for (int i = 0; i < N; i++)
            total[i] = c == 0 ? part[i] : Op::template join<S>(total[i], part[i]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < N; i++) S::get(total[i], to + at[i]);
}

/// The same of n rows that come one by one.
template <class Op, class S, class A, class Rows>
void column_chain(const Strip& strip, Rows& rows, int64_t begin, int64_t end, int64_t chain,
                  A* to) {
    typename S::V part[kMaxVectors] = {}, total[kMaxVectors] = {};
    for (int64_t r = begin; r < end; r++) {
        const auto* row = rows.row(0, r, end);
        const int64_t in_chunk = (r - begin) % chain;
        for (int64_t v = 0; v < strip.vectors; v++) {
            const auto x = S::load(row + strip.at[v]);
            part[v] = in_chunk == 0 ? x : Op::template join<S>(part[v], x);
        }
        if (in_chunk != chain - 1 && r != end - 1) continue;
        for (int64_t v = 0; v < strip.vectors; v++)
            total[v] = r - begin < chain ? part[v] : Op::template join<S>(total[v], part[v]);
    }
    for (int64_t v = 0; v < strip.vectors; v++) S::get(total[v], to + strip.at[v]);
}

/// Of a leaf, while its rows come in ascending order or not.
constexpr int64_t held_lanes(bool ascending) { return ascending ? kTreeLanes / 2 : 8; }
/// Elements for the leaves and the tree of a strip, those of its last vector included.
int64_t column_scratch(const ReducePlan& p, bool ascending) {
    const int64_t leaves = p.group / kTreeLeaf + 1, parts = 65 - __builtin_clzll(uint64_t(leaves));
    return (held_lanes(ascending) + parts) * (p.strip + 16);
}

/// One leaf of n rows; the lanes of abi.h are rows of t, and its first halving is done on the way
/// in. Those of a long strip come in the order in which lanes are halved, that of their bits
/// reversed, so that t has to hold no more than one for each halving.
template <class Op, class S, bool Ascending, class Rows>
__attribute__((noinline)) void column_leaf(const Strip& strip, Rows& rows, int64_t begin, int64_t n,
                                           typename S::V* t, typename S::V* to) {
    typedef typename S::V V;
    const int64_t vectors = strip.vectors;
    const int64_t lanes = min64(n, kTreeLanes), half = power_of_two_from(lanes) / 2;
    const auto load = [&](const auto* row, int64_t v)
                          __attribute__((always_inline)) { return S::load(row + strip.at[v]); };
    if (half == 0) {
        const auto* row = rows.row(0, begin, begin + n);
        for (int64_t v = 0; v < vectors; v++) to[v] = load(row, v);
        return;
    }
    V* top = t;
    for (int64_t k = 0; k < half; k++, top += vectors) {
        int64_t l = Ascending ? k : 0;
        const int64_t joins = Ascending ? 0 : __builtin_ctzll(uint64_t(k + 1));
        for (int64_t bit = half / 2, rest = Ascending ? 0 : k; rest > 0; bit /= 2, rest /= 2)
            l += rest % 2 * bit;
        decltype(rows.row(0, 0, 0)) near[4], far[4];
        int nears = 0, fars = 0;
        for (int64_t r = l; r < n; r += kTreeLanes, nears++)
            near[nears] = rows.row(nears, begin + r, begin + n);
        for (int64_t r = l + half; l + half < lanes && r < n; r += kTreeLanes, fars++)
            far[fars] = rows.row(4 + fars, begin + r, begin + n);
        for (int64_t v = 0; v < vectors; v++) {
            V s = load(near[0], v);
            if (n == kTreeLeaf) {
                s = Op::template join<S>(s, load(near[1], v));
                s = Op::template join<S>(s, load(near[2], v));
                s = Op::template join<S>(s, load(near[3], v));
                V other = Op::template join<S>(load(far[0], v), load(far[1], v));
                other = Op::template join<S>(other, load(far[2], v));
                s = Op::template join<S>(s, Op::template join<S>(other, load(far[3], v)));
            } else {
                for (int j = 1; j < nears; j++) s = Op::template join<S>(s, load(near[j], v));
                if (fars > 0) {
                    V other = load(far[0], v);
                    for (int j = 1; j < fars; j++)
                        other = Op::template join<S>(other, load(far[j], v));
                    s = Op::template join<S>(s, other);
                }
            }
            if constexpr (!Ascending) {
                const V* held = top + v;
                for (int64_t j = 0; j < joins; j++) s = Op::template join<S>(*(held -= vectors), s);
            }
            top[v - joins * vectors] = s;
        }
        top -= joins * vectors;
    }
    for (int64_t h = Ascending ? half / 2 : 0; h > 0; h /= 2)
        for (int64_t i = 0; i < h * vectors; i++)
            t[i] = Op::template join<S>(t[i], t[h * vectors + i]);
    for (int64_t v = 0; v < vectors; v++) to[v] = t[v];
}

/// `scratch`: room for a leaf's lanes and the tree's parts, column_scratch() results.
template <class Op, class S, class A, class Rows>
void column_tree(const Strip& strip, Rows& rows, bool ascending, int64_t begin, int64_t end,
                 A* scratch, A* to) {
    typedef typename S::V V;
    const int64_t n = strip.vectors;
    V* const t = reinterpret_cast<V*>(scratch);
    V* const part = t + held_lanes(ascending) * n;
    V* top = part;
    uint64_t count = 0;
    const auto carry = [&]() __attribute__((always_inline)) {
        top -= n;
        for (int64_t v = 0; v < n; v++) top[v - n] = Op::template join<S>(top[v - n], top[v]);
    };
    for (int64_t r = begin; r < end; r += kTreeLeaf) {
        const int64_t many = min64(kTreeLeaf, end - r);
        rows.begin(r, many);
        if (ascending)
            column_leaf<Op, S, true>(strip, rows, r, many, t, top);
        else
            column_leaf<Op, S, false>(strip, rows, r, many, t, top);
        top += n;
        for (uint64_t c = ++count; (c & 1) == 0; c >>= 1) carry();
    }
    while (top > part + n) carry();
    for (int64_t v = 0; v < n; v++) S::get(part[v], to + strip.at[v]);
}

template <class Op, class A>
constexpr bool rounds = Op::ordered && scalar::is_float<A>;  // else any order gives the same

template <class Op, class E, class A, class Rows>
void reduce_columns(Rows& rows, bool ascending, int64_t chain_of, int64_t width, int64_t begin,
                    int64_t end, A* scratch, A* to) {
    const auto run = [&](auto vector) {
        typedef decltype(vector) S;
        Strip strip;
        strip.vectors = (width + S::lanes - 1) / S::lanes;
        for (int64_t v = 0; v < strip.vectors; v++)
            strip.at[v] = min64(v * S::lanes, width - S::lanes);
        if constexpr (rounds<Op, A>)
            if (chain_of == 0)
                return column_tree<Op, S>(strip, rows, ascending, begin, end, scratch, to);
        const int64_t chain = rounds<Op, A> ? chain_of : end - begin;
        if (rows.apart()) return column_chain<Op, S>(strip, rows, begin, end, chain, to);
        // In memory all at once, else as many as a leaf holds.
        const int64_t most = rows.fused ? min64(chain, kTreeLeaf) : end - begin;
        for (int64_t r = begin, n; r < end; r += n) {
            n = min64(most, end - r);
            rows.begin(r, n);
            const E* x = rows.row(0, r, end);
            A* const result = r == begin ? to : scratch;
            int64_t v = 0;
            if constexpr (same_bits<E, A> && S::lanes > 1) {
                for (; v + 8 <= strip.vectors; v += 8)
                    column_chain<Op, S, 8>(strip, v, x, rows.step, n, chain, result);
                for (; v + 2 <= strip.vectors; v += 2)
                    column_chain<Op, S, 2>(strip, v, x, rows.step, n, chain, result);
            }
            for (; v < strip.vectors; v++)
                column_chain<Op, S, 1>(strip, v, x, rows.step, n, chain, result);
            for (int64_t i = 0; r != begin && i < width; i++)
                to[i] = Op::template join<Simd<A, 0>>(to[i], scratch[i]);
        }
    };
    const int64_t bytes = width * int64_t(sizeof(A));
    if (bytes < 16) return run(Simd<A, 0>{});
    if constexpr (kVectorBytes > 16)
        if (bytes < 32) return run(Simd<A, 16>{});
    if constexpr (kVectorBytes > 32)
        if (bytes < 64) return run(Simd<A, 32>{});
    run(Simd<A, kVectorBytes>{});
}

}  // namespace aicf::cpu::AICF_ISA
