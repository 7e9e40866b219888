// Row-wise softmax, losses. A row is taken 512 elements at a time; its sums follow the tree of
// abi.h. Included once per instruction set; see isa.cpp. No standard-library templates here.

namespace aicf::cpu::AICF_ISA {

// ---- rows along one axis ------------------------------------------------------------------------

constexpr int kRowOperands = 4;  // of row ops: inputs and output

struct RowPlan {
    int64_t rows, n, grain;
    int32_t rank, pad;
    int64_t shape[kMaxDims];
    Walk walk[kRowOperands];
    int64_t stride[kRowOperands][kMaxDims];
};

AICF_INLINE const RowPlan& row_plan(const ArgBlock& args) {
    return *static_cast<const RowPlan*>(args.tail_ptr());
}

/// The rows of the first operand along `axis`, and where every operand has them.
void plan_rows(ArgBlock& args, int64_t axis) {
    RowPlan& p = *const_cast<RowPlan*>(&row_plan(args));
    const Operand& x = args.in(0);
    p.rows = 1;
    p.rank = 0;
    const int operands = args.inputs + args.outputs;
    for (int o = 0; o < operands; o++) {
        walk_start(p.walk[o]);
        walk_axis(p.walk[o], x.shape()[axis], args.operand(o).strides()[axis]);
    }
    for (int d = 0; d < x.rank; d++) {
        if (d == axis) continue;
        p.rows *= x.shape()[d];
        p.shape[p.rank] = x.shape()[d];
        for (int o = 0; o < operands; o++) p.stride[o][p.rank] = args.operand(o).strides()[d];
        p.rank++;
    }
    p.n = x.shape()[axis];
    p.grain = p.n == 0 ? 1024 : p.n < 1024 ? (1024 + p.n - 1) / p.n : 1;
}

void row_prepare(ArgBlock& args) {
    const int64_t axis = args.scalar(0).i;
    plan_rows(args, axis < 0 ? axis + args.in(0).rank : axis);
}

int64_t row_units(const ArgBlock& args, int) {
    const RowPlan& p = row_plan(args);
    return (p.rows + p.grain - 1) / p.grain;  // empty rows too: normalize has a result for each
}

AICF_INLINE void place_row(const RowPlan& p, int64_t row, int operands, int64_t* at) {
    for (int o = 0; o < operands; o++) at[o] = p.rank == 1 ? row * p.stride[o][0] : 0;
    for (int d = p.rank == 1 ? -1 : p.rank - 1; d >= 0; d--) {
        const int64_t next = row / p.shape[d], index = row - next * p.shape[d];
        for (int o = 0; o < operands; o++) at[o] += index * p.stride[o][d];
        row = next;
    }
}

/// Stores n elements of a block at `pos` of the walk.
template <class A, class E>
AICF_INLINE void store_block(const Walk& w, E* base, int64_t pos, int64_t n, const A* v) {
    const int64_t step = w.rank ? w.stride[0] : 0;
    E* y = base + pos * step;
    if (step == 1)
        narrow_row(v, n, y);
    else
        for (int64_t i = 0; i < n; i++) put(y + i * step, v[i]);
}

template <class A, class E>
A row_max(const Walk& w, const E* x, int64_t n) {
    alignas(64) A buffer[kTreeLeaf];
    A most = A(0);
    for (int64_t at = 0; at < n; at += kTreeLeaf) {
        const int64_t m = min64(kTreeLeaf, n - at);
        const A v = leaf<MaxOp>(fetch<A>(w, x, at, m, buffer), m);
        most = at == 0 ? v : scalar::maximum(most, v);
    }
    return most;
}

/// The sum of exp(x - most); `keep`, where given, receives the terms.
template <class A, class E>
A row_exp_sum(const Walk& w, const E* x, int64_t n, A most, A* keep = nullptr) {
    alignas(64) A buffer[kTreeLeaf], terms[kTreeLeaf];
    Tree<SumOp, Simd<A, 0>> tree;
    for (int64_t at = 0; at < n; at += kTreeLeaf) {
        const int64_t m = min64(kTreeLeaf, n - at);
        const A* v = fetch<A>(w, x, at, m, buffer);
        A* e = keep ? keep + at : terms;
#pragma GCC ivdep
        for (int64_t i = 0; i < m; i++) e[i] = scalar::exp(v[i] - most);
        tree.push(leaf<SumOp>(e, m));
    }
    return tree.result();
}

template <class A, class E, bool Log>
void softmax_row(const RowPlan& p, const E* x, E* y) {
    alignas(64) A buffer[kTreeLeaf], out[kTreeLeaf];
    const A most = row_max<A>(p.walk[0], x, p.n);
    if constexpr (!Log && same_bits<E, A>) {
        if (p.walk[1].dense) {  // y holds the terms meanwhile
            const A sum = row_exp_sum<A>(p.walk[0], x, p.n, most, y);
            for (int64_t i = 0; i < p.n; i++) y[i] = scalar::div(y[i], sum);
            return;
        }
    }
    const A sum = row_exp_sum<A>(p.walk[0], x, p.n, most);
    const A log_sum = Log ? scalar::log(sum) : A(0);
    for (int64_t at = 0; at < p.n; at += kTreeLeaf) {
        const int64_t m = min64(kTreeLeaf, p.n - at);
        const A* v = fetch<A>(p.walk[0], x, at, m, buffer);
        if constexpr (Log)
            for (int64_t i = 0; i < m; i++) out[i] = (v[i] - most) - log_sum;
        else
            for (int64_t i = 0; i < m; i++) out[i] = scalar::div(scalar::exp(v[i] - most), sum);
        store_block(p.walk[1], y, at, m, out);
    }
}

template <class A, class E, bool Log>
void softmax_bwd_row(const RowPlan& p, const E* y, const E* dy, E* dx) {
    alignas(64) A first[kTreeLeaf], second[kTreeLeaf], out[kTreeLeaf];
    Tree<SumOp, Simd<A, 0>> tree;
    for (int64_t at = 0; at < p.n; at += kTreeLeaf) {
        const int64_t m = min64(kTreeLeaf, p.n - at);
        const A* g = fetch<A>(p.walk[1], dy, at, m, second);
        if constexpr (Log) {
            tree.push(leaf<SumOp>(g, m));
        } else {
            const A* v = fetch<A>(p.walk[0], y, at, m, first);
            for (int64_t i = 0; i < m; i++) out[i] = v[i] * g[i];
            tree.push(leaf<SumOp>(out, m));
        }
    }
    const A sum = tree.result();
    for (int64_t at = 0; at < p.n; at += kTreeLeaf) {
        const int64_t m = min64(kTreeLeaf, p.n - at);
        const A *v = fetch<A>(p.walk[0], y, at, m, first),
                *g = fetch<A>(p.walk[1], dy, at, m, second);
        if constexpr (Log)
            for (int64_t i = 0; i < m; i++) out[i] = scalar::log_softmax_bwd(v[i], g[i], sum);
        else
            for (int64_t i = 0; i < m; i++) out[i] = scalar::softmax_bwd(v[i], g[i], sum);
        store_block(p.walk[2], dx, at, m, out);
    }
}

// ---- short rows, in bundles: t[element][row], vectors over rows
// ----------------------------------

template <class A>
AICF_INLINE void bundle_max(const A* t, int64_t n, A* most) {
    constexpr int R = kBundle<A>;
    typedef Simd<A, kVectorBytes> S;
    for (int i = 0; i < R; i += S::lanes) {
        typename S::V v = S::load(t + i);
        for (int64_t l = 1; l < n; l++) v = S::largest(v, S::load(t + l * R + i));
        S::get(v, most + i);
    }
}

/// t = exp(t - most), sum = each row's sum of it.
template <class A>
AICF_INLINE void bundle_exp_sum(A* t, int64_t n, const A* most, A* sum) {
    constexpr int R = kBundle<A>;
    alignas(64) A halves[kShortRow * R];
    for (int64_t l = 0; l < n; l++)
        for (int i = 0; i < R; i++) t[l * R + i] = scalar::exp(t[l * R + i] - most[i]);
    memcpy(halves, t, size_t(n) * R * sizeof(A));
    bundle_leaf<SumOp>(halves, n, sum);
}

template <class A, class E, bool Log>
void softmax_bundle(const RowPlan& p, const E* x, E* y, const int64_t* from, const int64_t* to,
                    int count) {
    constexpr int R = kBundle<A>;
    alignas(64) A t[kShortRow * R], most[R], sum[R];
    load_bundle(t, x, from, count, p.walk[0].stride[0], p.n);
    bundle_max(t, p.n, most);
    if constexpr (Log) {
        alignas(64) A e[kShortRow * R];
        memcpy(e, t, size_t(p.n) * R * sizeof(A));
        bundle_exp_sum(e, p.n, most, sum);
        for (int i = 0; i < R; i++) sum[i] = scalar::log(sum[i]);
        for (int64_t l = 0; l < p.n; l++)
            for (int i = 0; i < R; i++) t[l * R + i] = (t[l * R + i] - most[i]) - sum[i];
    } else {
        bundle_exp_sum(t, p.n, most, sum);
        for (int64_t l = 0; l < p.n; l++)
            for (int i = 0; i < R; i++) t[l * R + i] = scalar::div(t[l * R + i], sum[i]);
    }
    store_bundle(t, y, to, count, p.walk[1].stride[0], p.n);
}

template <class A, class E, bool Log>
void softmax_bwd_bundle(const RowPlan& p, const E* y, const E* dy, E* dx, const int64_t* y_at,
                        const int64_t* dy_at, const int64_t* dx_at, int count) {
    constexpr int R = kBundle<A>;
    alignas(64) A t[kShortRow * R], g[kShortRow * R], product[kShortRow * R], sum[R];
    load_bundle(t, y, y_at, count, p.walk[0].stride[0], p.n);
    load_bundle(g, dy, dy_at, count, p.walk[1].stride[0], p.n);
    for (int64_t i = 0; i < p.n * R; i++) product[i] = Log ? g[i] : t[i] * g[i];
    bundle_leaf<SumOp>(product, p.n, sum);
    for (int64_t l = 0; l < p.n; l++)
        for (int i = 0; i < R; i++) {
            const A v = t[l * R + i], d = g[l * R + i];
            t[l * R + i] =
                Log ? scalar::log_softmax_bwd(v, d, sum[i]) : scalar::softmax_bwd(v, d, sum[i]);
        }
    store_bundle(t, dx, dx_at, count, p.walk[2].stride[0], p.n);
}

template <class A, class E, bool Log, bool Bwd>
void softmax_rows(const ArgBlock& args, int64_t begin, int64_t end) {
    constexpr int R = kBundle<A>, operands = Bwd ? 3 : 2;
    const RowPlan& p = row_plan(args);
    const E *x = static_cast<const E*>(args.in(0).ptr),
            *dy = static_cast<const E*>(args.in(Bwd ? 1 : 0).ptr);
    E* y = static_cast<E*>(args.out(0).ptr);
    const int64_t stop = min64(end * p.grain, p.rows);
    int64_t r = begin * p.grain;
    for (; p.n <= kShortRow && stop - r >= R / 4; r += R) {
        int64_t at[kRowOperands][R];
        const int count = int(min64(R, stop - r));
        for (int i = 0; i < count; i++) {
            int64_t row[kRowOperands];
            place_row(p, r + i, operands, row);
            for (int o = 0; o < operands; o++) at[o][i] = row[o];
        }
        if constexpr (Bwd)
            softmax_bwd_bundle<A, E, Log>(p, x, dy, y, at[0], at[1], at[2], count);
        else
            softmax_bundle<A, E, Log>(p, x, y, at[0], at[1], count);
    }
    for (; r < stop; r++) {
        int64_t at[kRowOperands];
        place_row(p, r, operands, at);
        if constexpr (Bwd)
            softmax_bwd_row<A, E, Log>(p, x + at[0], dy + at[1], y + at[2]);
        else
            softmax_row<A, E, Log>(p, x + at[0], y + at[1]);
    }
}

template <bool Log, bool Bwd>
void softmax_run(const ArgBlock& args, int64_t begin, int64_t end, int, int) {
    switch (DType(args.in(0).dtype)) {
        case DType::f32:
            return softmax_rows<float, float, Log, Bwd>(args, begin, end);
        case DType::f64:
            return softmax_rows<double, double, Log, Bwd>(args, begin, end);
        case DType::f16:
            return softmax_rows<float, F16, Log, Bwd>(args, begin, end);
        case DType::bf16:
            return softmax_rows<float, BF16, Log, Bwd>(args, begin, end);
        default:
            return;
    }
}

// ---- normalize ----------------------------------------------------------------------------------

void norm_prepare(ArgBlock& args) { plan_rows(args, args.in(0).rank - 1); }

/// mean over a row of f(i-th element), by the tree; that of no elements is NaN.
template <class A, class Value>
AICF_INLINE A row_mean(int64_t n, Value value) {
    if (n == 0) return scalar::div(A(0), A(0));
    alignas(64) A out[kTreeLeaf];
    Tree<SumOp, Simd<A, 0>> tree;
    for (int64_t at = 0; at < n; at += kTreeLeaf) {
        const int64_t m = min64(kTreeLeaf, n - at);
        value(at, m, out);
        tree.push(leaf<SumOp>(out, m));
    }
    return scalar::div(tree.result(), static_cast<A>(n));
}

// Scalars: eps, center, order.
template <class A, class E>
void normalize_rows(const ArgBlock& args, int64_t begin, int64_t end) {
    const RowPlan& p = row_plan(args);
    alignas(64) A buffer[kTreeLeaf], out[kTreeLeaf];
    const A eps = static_cast<A>(args.scalar(0).f);
    const bool center = args.scalar(1).i != 0;
    for (int64_t r = begin * p.grain; r < min64(end * p.grain, p.rows); r++) {
        int64_t at[kRowOperands];
        place_row(p, r, 3, at);
        const E* x = static_cast<const E*>(args.in(0).ptr) + at[0];
        E* y = static_cast<E*>(args.out(0).ptr) + at[1];
        const A mean = !center ? A(0) : row_mean<A>(p.n, [&](int64_t i, int64_t m, A* to) {
            const A* v = fetch<A>(p.walk[0], x, i, m, buffer);
            for (int64_t k = 0; k < m; k++) to[k] = v[k];
        });
        const A variance = row_mean<A>(p.n, [&](int64_t i, int64_t m, A* to) {
            const A* v = fetch<A>(p.walk[0], x, i, m, buffer);
            for (int64_t k = 0; k < m; k++) to[k] = (v[k] - mean) * (v[k] - mean);
        });
        const A rstd = scalar::div(A(1), scalar::sqrt(variance + eps));
        for (int64_t i = 0; i < p.n; i += kTreeLeaf) {
            const int64_t m = min64(kTreeLeaf, p.n - i);
            const A* v = fetch<A>(p.walk[0], x, i, m, buffer);
            for (int64_t k = 0; k < m; k++) out[k] = (v[k] - mean) * rstd;
            store_block(p.walk[1], y, i, m, out);
        }
        put(static_cast<E*>(args.out(1).ptr) + at[2], rstd);
    }
}

template <class A, class E>
void normalize_bwd_rows(const ArgBlock& args, int64_t begin, int64_t end) {
    const RowPlan& p = row_plan(args);
    alignas(64) A first[kTreeLeaf], second[kTreeLeaf], out[kTreeLeaf];
    const bool center = args.scalar(1).i != 0;
    for (int64_t r = begin * p.grain; r < min64(end * p.grain, p.rows); r++) {
        int64_t at[kRowOperands];
        place_row(p, r, 4, at);
        const E *y = static_cast<const E*>(args.in(0).ptr) + at[0],
                *dy = static_cast<const E*>(args.in(2).ptr) + at[2];
        const A rstd = widen(static_cast<const E*>(args.in(1).ptr)[at[1]]);
        const A shift = !center ? A(0) : row_mean<A>(p.n, [&](int64_t i, int64_t m, A* to) {
            const A* g = fetch<A>(p.walk[2], dy, i, m, second);
            for (int64_t k = 0; k < m; k++) to[k] = g[k];
        });
        const A slope = row_mean<A>(p.n, [&](int64_t i, int64_t m, A* to) {
            const A *v = fetch<A>(p.walk[0], y, i, m, first),
                    *g = fetch<A>(p.walk[2], dy, i, m, second);
            for (int64_t k = 0; k < m; k++) to[k] = g[k] * v[k];
        });
        for (int64_t i = 0; i < p.n; i += kTreeLeaf) {
            const int64_t m = min64(kTreeLeaf, p.n - i);
            const A *v = fetch<A>(p.walk[0], y, i, m, first),
                    *g = fetch<A>(p.walk[2], dy, i, m, second);
            for (int64_t k = 0; k < m; k++) out[k] = rstd * ((g[k] - shift) - v[k] * slope);
            store_block(p.walk[3], static_cast<E*>(args.out(0).ptr) + at[3], i, m, out);
        }
    }
}

template <bool Bwd>
void normalize_run(const ArgBlock& args, int64_t begin, int64_t end, int, int) {
    switch (DType(args.in(0).dtype)) {
        case DType::f32:
            return Bwd ? normalize_bwd_rows<float, float>(args, begin, end)
                       : normalize_rows<float, float>(args, begin, end);
        case DType::f64:
            return Bwd ? normalize_bwd_rows<double, double>(args, begin, end)
                       : normalize_rows<double, double>(args, begin, end);
        case DType::f16:
            return Bwd ? normalize_bwd_rows<float, F16>(args, begin, end)
                       : normalize_rows<float, F16>(args, begin, end);
        case DType::bf16:
            return Bwd ? normalize_bwd_rows<float, BF16>(args, begin, end)
                       : normalize_rows<float, BF16>(args, begin, end);
        default:
            return;
    }
}

// ---- cross entropy ------------------------------------------------------------------------------

AICF_INLINE int64_t label_at(const Operand& labels, int64_t row) {
    const int64_t at = row * labels.strides()[0];
    return DType(labels.dtype) == DType::i32 ? static_cast<const int32_t*>(labels.ptr)[at]
                                             : static_cast<const int64_t*>(labels.ptr)[at];
}

AICF_INLINE int64_t class_grain(const Operand& logits) {
    const int64_t n = logits.shape()[1];
    return n > 0 && n < 1024 ? (1024 + n - 1) / n : 1;
}

int64_t class_units(const ArgBlock& args, int phase) {
    if (phase > 0) return 0;
    const Operand& logits = args.in(0);
    const int64_t grain = class_grain(logits);
    return (logits.shape()[0] + grain - 1) / grain;
}

template <class A, class E>
AICF_INLINE void put_loss(const ArgBlock& args, int64_t r, A log_sum) {
    const Operand &logits = args.in(0), &loss = args.out(0), &lse = args.out(1);
    const int64_t label = label_at(args.in(1), r), n = logits.shape()[1];
    A value = static_cast<A>(__builtin_nanf(""));
    if (label >= 0 && label < n)
        value = log_sum - widen(static_cast<const E*>(
                              logits.ptr)[r * logits.strides()[0] + label * logits.strides()[1]]);
    put(static_cast<E*>(loss.ptr) + r * loss.strides()[0], value);
    put(static_cast<E*>(lse.ptr) + r * lse.strides()[0], log_sum);
}

template <class A, class E>
void cross_entropy_rows(const ArgBlock& args, int64_t begin, int64_t end) {
    constexpr int R = kBundle<A>;
    const Operand& logits = args.in(0);
    const E* x = static_cast<const E*>(logits.ptr);
    const int64_t n = logits.shape()[1], row = logits.strides()[0];
    int64_t r = begin;
    for (; n <= kShortRow && end - r >= R / 4; r += R) {
        alignas(64) A t[kShortRow * R], most[R], sum[R];
        int64_t at[R];
        const int count = int(min64(R, end - r));
        for (int i = 0; i < count; i++) at[i] = (r + i) * row;
        load_bundle(t, x, at, count, logits.strides()[1], n);
        bundle_max(t, n, most);
        bundle_exp_sum(t, n, most, sum);
        for (int i = 0; i < R; i++) sum[i] = most[i] + scalar::log(sum[i]);
        for (int i = 0; i < count; i++) put_loss<A, E>(args, r + i, sum[i]);
    }
    Walk w{};
    walk_start(w);
    walk_axis(w, n, logits.strides()[1]);
    for (; r < end; r++) {
        const A most = row_max<A>(w, x + r * row, n);
        put_loss<A, E>(args, r, most + scalar::log(row_exp_sum<A>(w, x + r * row, n, most)));
    }
}

template <class A, class E>
void cross_entropy_grad_rows(const ArgBlock& args, int64_t begin, int64_t end) {
    constexpr int R = kBundle<A>;
    const Operand &logits = args.in(0), &lse = args.in(2), &out = args.out(0);
    const E *x = static_cast<const E*>(logits.ptr), *sums = static_cast<const E*>(lse.ptr);
    E* y = static_cast<E*>(out.ptr);
    const int64_t n = logits.shape()[1];
    const A scale = static_cast<A>(args.scalar(0).f);
    alignas(64) A t[kShortRow * R], log_sum[R];
    int64_t r = begin;
    for (; n <= kShortRow && end - r >= R / 4; r += R) {
        int64_t from[R], to[R];
        const int count = int(min64(R, end - r));
        for (int i = 0; i < R; i++) {
            const int64_t at = r + (i < count ? i : 0);
            from[i] = at * logits.strides()[0];
            to[i] = at * out.strides()[0];
            log_sum[i] = widen(sums[at * lse.strides()[0]]);
        }
        load_bundle(t, x, from, count, logits.strides()[1], n);
        for (int64_t l = 0; l < n; l++)
            for (int i = 0; i < R; i++)
                t[l * R + i] = scalar::cross_entropy_grad(t[l * R + i], log_sum[i], false, scale);
        for (int i = 0; i < count; i++) {
            const int64_t label = label_at(args.in(1), r + i);
            if (label >= 0 && label < n) {
                const A v = widen(x[from[i] + label * logits.strides()[1]]);
                t[label * R + i] = scalar::cross_entropy_grad(v, log_sum[i], true, scale);
            } else {
                for (int64_t l = 0; l < n; l++) t[l * R + i] = A(0);
            }
        }
        store_bundle(t, y, to, count, out.strides()[1], n);
    }
    Walk w{}, wo{};
    walk_start(w);
    walk_axis(w, n, logits.strides()[1]);
    walk_start(wo);
    walk_axis(wo, n, out.strides()[1]);
    A* grad = t;  // at least a leaf
    alignas(64) A buffer[kTreeLeaf];
    for (; r < end; r++) {
        const int64_t label = label_at(args.in(1), r);
        const bool known = label >= 0 && label < n;
        const A sum = widen(sums[r * lse.strides()[0]]);
        for (int64_t at = 0; at < n; at += kTreeLeaf) {
            const int64_t m = min64(kTreeLeaf, n - at), hit = known ? label - at : -1;
            const A* v = fetch<A>(w, x + r * logits.strides()[0], at, m, buffer);
            for (int64_t i = 0; i < m; i++)
                grad[i] = known ? scalar::cross_entropy_grad(v[i], sum, false, scale) : A(0);
            if (hit >= 0 && hit < m)
                grad[hit] = scalar::cross_entropy_grad(v[hit], sum, true, scale);
            store_block(wo, y + r * out.strides()[0], at, m, grad);
        }
    }
}

template <bool Grad>
void cross_entropy_run(const ArgBlock& args, int64_t begin, int64_t end, int, int) {
    const Operand& logits = args.in(0);
    const int64_t grain = class_grain(logits), r0 = begin * grain,
                  r1 = min64(end * grain, logits.shape()[0]);
#define AICF_CASE(dtype, A, E)                                        \
    case DType::dtype:                                                \
        if (Grad) return cross_entropy_grad_rows<A, E>(args, r0, r1); \
        return cross_entropy_rows<A, E>(args, r0, r1);
    switch (DType(logits.dtype)) {
        AICF_CASE(f32, float, float)
        AICF_CASE(f64, double, double)
        AICF_CASE(f16, float, F16)
        AICF_CASE(bf16, float, BF16)
        default:
            return;
    }
#undef AICF_CASE
}

// ---- mean squared error -------------------------------------------------------------------------

struct MsePlan {
    Walk y, t;
};
constexpr int64_t kMseGroup = 65536;  // elements to a unit: whole subtrees

void mse_prepare(ArgBlock& args) {
    MsePlan& p = *const_cast<MsePlan*>(static_cast<const MsePlan*>(args.tail_ptr()));
    for (int o = 0; o < 2; o++) {
        const Operand& x = args.in(o);
        Walk& w = o == 0 ? p.y : p.t;
        walk_start(w);
        for (int d = 0; d < x.rank; d++) walk_axis(w, x.shape()[d], x.strides()[d]);
    }
}

AICF_INLINE int64_t mse_groups(const MsePlan& p) { return (p.y.total + kMseGroup - 1) / kMseGroup; }

int64_t mse_units(const ArgBlock& args, int phase) {
    const int64_t groups = mse_groups(*static_cast<const MsePlan*>(args.tail_ptr()));
    return phase == 0 ? (groups > 1 ? groups : 0) : 1;
}

uint64_t mse_workspace(const ArgBlock& args, int) {
    const int64_t groups = mse_groups(*static_cast<const MsePlan*>(args.tail_ptr()));
    return groups > 1 ? uint64_t(groups) * 8 : 0;
}

template <class A, class E>
A mse_sum(const MsePlan& p, const E* y, const E* t, int64_t begin, int64_t end) {
    alignas(64) A first[kTreeLeaf], second[kTreeLeaf], square[kTreeLeaf];
    Tree<SumOp, Simd<A, 0>> tree;
    if (begin >= end) return A(0);
    for (int64_t at = begin; at < end; at += kTreeLeaf) {
        const int64_t n = min64(kTreeLeaf, end - at);
        const A *a = fetch<A>(p.y, y, at, n, first), *b = fetch<A>(p.t, t, at, n, second);
        for (int64_t i = 0; i < n; i++) square[i] = (a[i] - b[i]) * (a[i] - b[i]);
        tree.push(leaf<SumOp>(square, n));
    }
    return tree.result();
}

template <class A, class E>
void mse_units_of(const ArgBlock& args, int64_t begin, int64_t end, int phase) {
    const MsePlan& p = *static_cast<const MsePlan*>(args.tail_ptr());
    const E *y = static_cast<const E*>(args.in(0).ptr), *t = static_cast<const E*>(args.in(1).ptr);
    A* parts = static_cast<A*>(args.workspace);
    const int64_t n = p.y.total, groups = mse_groups(p);
    if (phase == 0) {
        for (int64_t g = begin; g < end; g++)
            parts[g] = mse_sum<A>(p, y, t, g * kMseGroup, min64(n, (g + 1) * kMseGroup));
        return;
    }
    if (begin >= end) return;
    A sum;
    if (groups > 1) {
        Tree<SumOp, Simd<A, 0>> tree;
        for (int64_t g = 0; g < groups; g++) tree.push(parts[g]);
        sum = tree.result();
    } else {
        sum = mse_sum<A>(p, y, t, 0, n);
    }
    put(static_cast<E*>(args.out(0).ptr), scalar::div(sum, static_cast<A>(n)));
}

void mse_run(const ArgBlock& args, int64_t begin, int64_t end, int phase, int) {
    switch (DType(args.in(0).dtype)) {
        case DType::f32:
            return mse_units_of<float, float>(args, begin, end, phase);
        case DType::f64:
            return mse_units_of<double, double>(args, begin, end, phase);
        case DType::f16:
            return mse_units_of<float, F16>(args, begin, end, phase);
        case DType::bf16:
            return mse_units_of<float, BF16>(args, begin, end, phase);
        default:
            return;
    }
}

void register_nn(Table& table) {
    const auto rows = [&](const char* op, auto run) {
        table.add(CpuKernel{op, kFloats, run, row_units, nullptr, sizeof(RowPlan), row_prepare});
    };
    rows("softmax", softmax_run<false, false>);
    rows("log_softmax", softmax_run<true, false>);
    rows("softmax_bwd", softmax_run<false, true>);
    rows("log_softmax_bwd", softmax_run<true, true>);
    const auto norm = [&](const char* op, auto run) {
        table.add(CpuKernel{op, kFloats, run, row_units, nullptr, sizeof(RowPlan), norm_prepare});
    };
    norm("normalize", normalize_run<false>);
    norm("normalize_bwd", normalize_run<true>);
    table.add(CpuKernel{"cross_entropy", kFloats, cross_entropy_run<false>, class_units});
    table.add(CpuKernel{"cross_entropy_grad", kFloats, cross_entropy_run<true>, class_units});
    table.add(CpuKernel{"mse_loss", kFloats, mse_run, mse_units, mse_workspace, sizeof(MsePlan),
                        mse_prepare, 2});
}

}  // namespace aicf::cpu::AICF_ISA
