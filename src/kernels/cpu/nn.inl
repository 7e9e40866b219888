// Row-wise softmax, losses. A row is taken 512 elements at a time; its sums follow the tree of
// abi.h. Included once per instruction set; see isa.cpp. No standard-library templates here.

namespace aicf::cpu::AICF_ISA {

// ---- softmax ------------------------------------------------------------------------------------

template <class A, class E>
A row_max(const Walk& w, const E* x, int64_t n) {
    alignas(64) A buffer[kTreeLeaf];
    A most = A(0);
    for (int64_t at = 0; at < n; at += kTreeLeaf) {
        const int64_t m = min64(kTreeLeaf, n - at);
        const A v = leaf<reducers::Max>(fetch<A>(w, x, at, m, buffer), m);
        most = at == 0 ? v : scalar::maximum(most, v);
    }
    return most;
}

template <class A, class E>
using Exps = typename scalar::ExpsOf<A, sizeof(E)>::type;

/// An exponential of a row of which much may be -inf. That of what a mask left out is 0, and is not
/// computed by way of numbers below the normal ones, which take a processor a hundred times as
/// long.
template <class A, class Of>
AICF_INLINE A exp_of_masked(const Of& exps, A x) {
    if constexpr (same_bits<Of, scalar::RowExps<float>>) {
        const float v = x - exps.most;
        const bool none = v < -104.0f;
        const float y = scalar::exp(none ? 0.0f : v);
        return none ? 0.0f : y;
    } else {
        return exps(x);
    }
}

/// The sum of a row's exponentials; `keep`, where given, receives these; `masked`: much may be
/// -inf.
template <class A, class E>
A row_exp_sum(const Walk& w, const E* x, int64_t n, A most, bool masked, A* keep = nullptr) {
    alignas(64) A buffer[kTreeLeaf], terms[kTreeLeaf];
    Tree<reducers::Sum, Simd<A, 0>> tree;
    const auto exps = Exps<A, E>::of(most);
    for (int64_t at = 0; at < n; at += kTreeLeaf) {
        const int64_t m = min64(kTreeLeaf, n - at);
        const A* v = fetch<A>(w, x, at, m, buffer);
        A* e = keep ? keep + at : terms;
        if (masked)
#pragma GCC ivdep
            for (int64_t i = 0; i < m; i++) e[i] = exp_of_masked(exps, v[i]);
        else
#pragma GCC ivdep
            for (int64_t i = 0; i < m; i++) e[i] = exps(v[i]);
        tree.push(leaf<reducers::Sum>(e, m));
    }
    return exps.total(most, tree.result());
}

/// t[i] = div(t[i], sum[i % R]) of t in [0, 1.5]: the correctly rounded quotient by its residuals
/// (Markstein, 2000), which take a fifth of a division's time where fma is an instruction. q is
/// within an ulp before the last step, whose residual is exact where nothing underflows.
template <class A>
__attribute__((noinline)) void divide_rows(A* t, int64_t n, const A* sum) {
    constexpr int R = kBundle<A>;
    int64_t done = 0;
#if defined(__FMA__)
    if constexpr (sizeof(A) == 4) {
        constexpr int piece = 4 * R;
        constexpr float least = 0x1p-96f, most = 0x1p20f;
        alignas(64) float inverse[R];
        bool usual = true;
        for (int i = 0; i < R; i++) {
            inverse[i] = scalar::div(1.0f, sum[i]);
            usual = usual && sum[i] >= 0.5f && sum[i] <= most;
        }
        for (; usual && done + piece <= n; done += piece) {
            float* const x = t + done;
            uint32_t low = ~0u;  // 0 wraps to the largest: its quotient is 0 either way
            for (int i = 0; i < piece; i++) {
                const uint32_t u = scalar::bits(x[i]) - 1;
                low = u < low ? u : low;
            }
            if (low < scalar::bits(least) - 1) {
                for (int l = 0; l < piece; l += R)
                    for (int i = 0; i < R; i++) x[l + i] = scalar::div(x[l + i], sum[i]);
                continue;
            }
            for (int l = 0; l < piece; l += R)
                for (int i = 0; i < R; i++) {
                    const float a = x[l + i], b = sum[i], y = inverse[i], q = a * y,
                                near = scalar::fma(scalar::fma(-q, b, a), y, q);
                    x[l + i] = scalar::fma(scalar::fma(-near, b, a), y, near);
                }
        }
    }
#endif
    for (; done + R <= n; done += R)
        for (int i = 0; i < R; i++) t[done + i] = scalar::div(t[done + i], sum[i]);
    for (int i = 0; done + i < n; i++) t[done + i] = scalar::div(t[done + i], sum[i]);
}

template <class A, class E, bool Log>
void softmax_row(const RowPlan& p, bool masked, const E* x, E* y) {
    alignas(64) A buffer[kTreeLeaf], out[kTreeLeaf];
    A most = row_max<A>(p.walk[0], x, p.n);
    if (masked) most = scalar::masked_most(most);
    if constexpr (!Log && same_bits<E, A>) {
        if (p.walk[1].dense) {  // y holds the terms meanwhile
            A sum = row_exp_sum<A>(p.walk[0], x, p.n, most, masked, y);
            if (masked) sum = scalar::masked_sum(sum);
            alignas(64) A sums[kBundle<A>];
            for (A& one : sums) one = sum;
            divide_rows(y, p.n, sums);
            return;
        }
    }
    A sum = row_exp_sum<A>(p.walk[0], x, p.n, most, masked);
    if (masked) sum = scalar::masked_sum(sum);
    const auto exps = Exps<A, E>::of(most);
    const A log_sum = Log ? exps.log_sum(most, sum) : A(0);
    for (int64_t at = 0; at < p.n; at += kTreeLeaf) {
        const int64_t m = min64(kTreeLeaf, p.n - at);
        const A* v = fetch<A>(p.walk[0], x, at, m, buffer);
        if constexpr (Log)
            for (int64_t i = 0; i < m; i++) out[i] = (v[i] - most) - log_sum;
        else
            for (int64_t i = 0; i < m; i++) out[i] = scalar::div(exp_of_masked(exps, v[i]), sum);
        store_block(p.walk[1], y, at, m, out);
    }
}

template <class A, class E, bool Log>
void softmax_bwd_row(const RowPlan& p, const E* y, const E* dy, E* dx) {
    alignas(64) A first[kTreeLeaf], second[kTreeLeaf], out[kTreeLeaf];
    Tree<reducers::Sum, Simd<A, 0>> tree;
    for (int64_t at = 0; at < p.n; at += kTreeLeaf) {
        const int64_t m = min64(kTreeLeaf, p.n - at);
        const A* g = fetch<A>(p.walk[1], dy, at, m, second);
        if constexpr (Log) {
            tree.push(leaf<reducers::Sum>(g, m));
        } else {
            const A* v = fetch<A>(p.walk[0], y, at, m, first);
            for (int64_t i = 0; i < m; i++) out[i] = v[i] * g[i];
            tree.push(leaf<reducers::Sum>(out, m));
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

// ---- short rows, in bundles: t[element][row], vectors over rows ---------------------------------

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

/// The exponentials of each row.
template <class A, class Of>
struct BundleExps {
    static constexpr int R = kBundle<A>;
    alignas(64) A most[R];
    AICF_INLINE explicit BundleExps(const A* of) { memcpy(most, of, sizeof(most)); }
    AICF_INLINE Of operator[](int i) const { return {most[i]}; }
};
template <>
struct BundleExps<float, scalar::RowExps16> {
    static constexpr int R = kBundle<float>;
    alignas(64) float base[R], low[R], shift[R];
    AICF_INLINE explicit BundleExps(const float* of) {
        for (int i = 0; i < R; i++) {
            const auto one = scalar::RowExps16::of(of[i]);
            base[i] = one.base;
            low[i] = one.low;
            shift[i] = one.shift;
        }
    }
    AICF_INLINE scalar::RowExps16 operator[](int i) const { return {base[i], low[i], shift[i]}; }
};

/// t = the exponentials of t, sum = each row's sum of them.
template <class A, class E>
AICF_INLINE void bundle_exp_sum(A* t, int64_t n, const A* most, A* sum, bool masked = false) {
    constexpr int R = kBundle<A>;
    alignas(64) A halves[kShortRow * R];
    const BundleExps<A, Exps<A, E>> exps(most);
    for (int64_t l = 0; masked && l < n; l++)
        for (int i = 0; i < R; i++) t[l * R + i] = exp_of_masked(exps[i], t[l * R + i]);
    for (int64_t l = 0; !masked && l < n; l++)
        for (int i = 0; i < R; i++) t[l * R + i] = exps[i](t[l * R + i]);
    memcpy(halves, t, size_t(n) * R * sizeof(A));
    bundle_leaf<reducers::Sum>(halves, n, sum);
    for (int i = 0; i < R; i++) sum[i] = Exps<A, E>::total(most[i], sum[i]);
}

template <class A, class E, bool Log>
void softmax_bundle(const RowPlan& p, bool masked, const E* x, E* y, const int64_t* from,
                    const int64_t* to, int count) {
    constexpr int R = kBundle<A>;
    alignas(64) A t[kShortRow * R], most[R], sum[R];
    load_bundle(t, x, from, count, walk_step(p.walk[0]), p.n);
    bundle_max(t, p.n, most);
    for (int i = 0; masked && i < R; i++) most[i] = scalar::masked_most(most[i]);
    if constexpr (Log) {
        alignas(64) A e[kShortRow * R];
        memcpy(e, t, size_t(p.n) * R * sizeof(A));
        bundle_exp_sum<A, E>(e, p.n, most, sum);
        for (int i = 0; i < R; i++) sum[i] = Exps<A, E>::log_sum(most[i], sum[i]);
        for (int64_t l = 0; l < p.n; l++)
            for (int i = 0; i < R; i++) t[l * R + i] = (t[l * R + i] - most[i]) - sum[i];
    } else {
        bundle_exp_sum<A, E>(t, p.n, most, sum, masked);
        for (int i = 0; masked && i < R; i++) sum[i] = scalar::masked_sum(sum[i]);
        if (p.n >= kShortRow / 2)
            divide_rows(t, p.n * R, sum);
        else  // of few columns, which take less time than the checks before a division by fma
            for (int64_t l = 0; l < p.n; l++)
                for (int i = 0; i < R; i++) t[l * R + i] = scalar::div(t[l * R + i], sum[i]);
    }
    store_bundle(t, y, to, count, walk_step(p.walk[1]), p.n);
}

template <class A, class E, bool Log>
void softmax_bwd_bundle(const RowPlan& p, const E* y, const E* dy, E* dx, const int64_t* y_at,
                        const int64_t* dy_at, const int64_t* dx_at, int count) {
    constexpr int R = kBundle<A>;
    alignas(64) A t[kShortRow * R], g[kShortRow * R], product[kShortRow * R], sum[R];
    load_bundle(t, y, y_at, count, walk_step(p.walk[0]), p.n);
    load_bundle(g, dy, dy_at, count, walk_step(p.walk[1]), p.n);
    for (int64_t i = 0; i < p.n * R; i++) product[i] = Log ? g[i] : t[i] * g[i];
    bundle_leaf<reducers::Sum>(product, p.n, sum);
    for (int64_t l = 0; l < p.n; l++)
        for (int i = 0; i < R; i++) {
            const A v = t[l * R + i], d = g[l * R + i];
            t[l * R + i] =
                Log ? scalar::log_softmax_bwd(v, d, sum[i]) : scalar::softmax_bwd(v, d, sum[i]);
        }
    store_bundle(t, dx, dx_at, count, walk_step(p.walk[2]), p.n);
}

template <class A, class E, bool Log, bool Bwd>
void softmax_rows(const RowCall& call, int64_t r, int64_t end) {
    constexpr int R = kBundle<A>, N = Bwd ? 3 : 2;
    const RowPlan& p = row_plan(call);
    if (p.n == 0) return;
    const bool masked = !Log && !Bwd && call.scalars[1].i != 0;  // scalars: axis, masked, order
    const E *x = static_cast<const E*>(call.at[0]), *dy = static_cast<const E*>(call.at[1]);
    E* y = static_cast<E*>(call.at[Bwd ? 2 : 1]);
    // A leaf of whole vectors takes less than rows that are turned.
    for (; p.n < kShortRow && end - r >= R / 4; r += R) {
        int64_t at[N][R];
        const int count = int(min64(R, end - r));
        place_bundle(call, r, count, at);
        if constexpr (Bwd)
            softmax_bwd_bundle<A, E, Log>(p, x, dy, y, at[0], at[1], at[2], count);
        else
            softmax_bundle<A, E, Log>(p, masked, x, y, at[0], at[1], count);
    }
    for (; r < end; r++) {
        int64_t at[N];
        place_row(call, r, at);
        if constexpr (Bwd)
            softmax_bwd_row<A, E, Log>(p, x + at[0], dy + at[1], y + at[2]);
        else
            softmax_row<A, E, Log>(p, masked, x + at[0], y + at[1]);
    }
}

template <bool Log, bool Bwd>
void softmax_any(const RowCall& call, int64_t begin, int64_t end) {
    switch (call.dtype[0]) {
        case DType::f32:
            return softmax_rows<float, float, Log, Bwd>(call, begin, end);
        case DType::f64:
            return softmax_rows<double, double, Log, Bwd>(call, begin, end);
        case DType::f16:
            return softmax_rows<float, F16, Log, Bwd>(call, begin, end);
        case DType::bf16:
            return softmax_rows<float, BF16, Log, Bwd>(call, begin, end);
        default:
            return;
    }
}

// ---- normalize ----------------------------------------------------------------------------------

/// mean over a row of f(i-th element), by the tree; that of no elements is NaN.
template <class A, class Value>
AICF_INLINE A row_mean(int64_t n, Value value) {
    if (n == 0) return scalar::div(A(0), A(0));
    alignas(64) A out[kTreeLeaf];
    Tree<reducers::Sum, Simd<A, 0>> tree;
    for (int64_t at = 0; at < n; at += kTreeLeaf) {
        const int64_t m = min64(kTreeLeaf, n - at);
        value(at, m, out);
        tree.push(leaf<reducers::Sum>(out, m));
    }
    return scalar::div(tree.result(), static_cast<A>(n));
}

// Scalars: eps, center, order.
template <class A, class E>
void normalize_rows(const RowCall& call, int64_t begin, int64_t end) {
    const RowPlan& p = row_plan(call);
    alignas(64) A buffer[kTreeLeaf], out[kTreeLeaf];
    const A eps = static_cast<A>(call.scalars[0].f);
    const bool center = call.scalars[1].i != 0;
    for (int64_t r = begin; r < end; r++) {
        int64_t at[3];
        place_row(call, r, at);
        const E* x = static_cast<const E*>(call.at[0]) + at[0];
        E* y = static_cast<E*>(call.at[1]) + at[1];
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
        if (call.at[2]) static_cast<A*>(call.at[2])[at[2]] = rstd;
    }
}

template <class A, class E>
void normalize_bwd_rows(const RowCall& call, int64_t begin, int64_t end) {
    const RowPlan& p = row_plan(call);
    alignas(64) A first[kTreeLeaf], second[kTreeLeaf], out[kTreeLeaf];
    const bool center = call.scalars[1].i != 0;
    for (int64_t r = begin; r < end; r++) {
        int64_t at[4];
        place_row(call, r, at);
        const E *y = static_cast<const E*>(call.at[0]) + at[0],
                *dy = static_cast<const E*>(call.at[2]) + at[2];
        const A rstd = static_cast<const A*>(call.at[1])[at[1]];
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
            store_block(p.walk[3], static_cast<E*>(call.at[3]) + at[3], i, m, out);
        }
    }
}

template <bool Bwd>
void normalize_any(const RowCall& call, int64_t begin, int64_t end) {
    switch (call.dtype[0]) {
        case DType::f32:
            return Bwd ? normalize_bwd_rows<float, float>(call, begin, end)
                       : normalize_rows<float, float>(call, begin, end);
        case DType::f64:
            return Bwd ? normalize_bwd_rows<double, double>(call, begin, end)
                       : normalize_rows<double, double>(call, begin, end);
        case DType::f16:
            return Bwd ? normalize_bwd_rows<float, F16>(call, begin, end)
                       : normalize_rows<float, F16>(call, begin, end);
        case DType::bf16:
            return Bwd ? normalize_bwd_rows<float, BF16>(call, begin, end)
                       : normalize_rows<float, BF16>(call, begin, end);
        default:
            return;
    }
}

// ---- cross entropy ------------------------------------------------------------------------------

AICF_INLINE int64_t label_at(const RowCall& call, int64_t at) {
    return call.dtype[1] == DType::i32 ? static_cast<const int32_t*>(call.at[1])[at]
                                       : static_cast<const int64_t*>(call.at[1])[at];
}

/// `at`: where each operand has the rows, R of them or the first `count`.
template <class A, class E, int R>
AICF_INLINE void put_loss(const RowCall& call, const int64_t (*at)[R], int count, const A* most,
                          const A* sum) {
    const RowPlan& p = row_plan(call);
    A loss[R];
    const int64_t step = walk_step(p.walk[0]);
    for (int i = 0; i < count; i++) {
        const int64_t label = label_at(call, at[1][i]);
        loss[i] = label >= 0 && label < p.n
                      ? Exps<A, E>::loss(
                            A(widen(static_cast<const E*>(call.at[0])[at[0][i] + label * step])),
                            most[i], sum[i])
                      : static_cast<A>(__builtin_nanf(""));
    }
    const A* const results[] = {loss, most, sum};
    for (int o = 2; o < 5; o++)
        for (int i = 0; call.at[o] && i < count; i++)
            static_cast<A*>(call.at[o])[at[o][i]] = results[o - 2][i];
}

template <class A, class E>
void cross_entropy_rows(const RowCall& call, int64_t r, int64_t end) {
    constexpr int R = kBundle<A>;
    const RowPlan& p = row_plan(call);
    const E* x = static_cast<const E*>(call.at[0]);
    for (; p.n <= kShortRow && end - r >= R / 4; r += R) {
        alignas(64) A t[kShortRow * R], most[R], sum[R];
        int64_t at[5][R];
        const int count = int(min64(R, end - r));
        place_bundle(call, r, count, at);
        load_bundle(t, x, at[0], count, walk_step(p.walk[0]), p.n);
        bundle_max(t, p.n, most);
        bundle_exp_sum<A, E>(t, p.n, most, sum);
        put_loss<A, E, R>(call, at, count, most, sum);
    }
    for (; r < end; r++) {
        int64_t at[5][1];
        place_bundle(call, r, 1, at);
        const A most = row_max<A>(p.walk[0], x + at[0][0], p.n),
                sum = row_exp_sum<A>(p.walk[0], x + at[0][0], p.n, most, false);
        put_loss<A, E, 1>(call, at, 1, &most, &sum);
    }
}

template <class A, class E>
void cross_entropy_grad_rows(const RowCall& call, int64_t r, int64_t end) {
    constexpr int R = kBundle<A>;
    const RowPlan& p = row_plan(call);
    const E* x = static_cast<const E*>(call.at[0]);
    const A *mosts = static_cast<const A*>(call.at[2]), *sums = static_cast<const A*>(call.at[3]);
    E* y = static_cast<E*>(call.at[4]);
    const int64_t n = p.n, step = walk_step(p.walk[0]);
    const A scale = static_cast<A>(call.scalars[0].f);
    if (n == 0) return;
    alignas(64) A t[kShortRow * R], most[R], sum[R], share[R], own[R];
    for (; n <= kShortRow && end - r >= R / 4; r += R) {
        int64_t at[5][R], label[R];
        const int count = int(min64(R, end - r));
        place_bundle(call, r, count, at);
        for (int i = 0; i < R; i++) {
            label[i] = label_at(call, at[1][i]);
            const int64_t known = label[i] >= 0 && label[i] < n ? label[i] : 0;
            own[i] = widen(x[at[0][i] + known * step]);
            most[i] = mosts[at[2][i]];
            sum[i] = sums[at[3][i]];
        }
        const BundleExps<A, Exps<A, E>> exps(most);
        for (int i = 0; i < R; i++) {
            share[i] = scalar::div(scale, sum[i]);
            own[i] = scalar::cross_entropy_grad_of_label(exps[i], own[i], sum[i], share[i]);
        }
        load_bundle(t, x, at[0], count, step, n);
        for (int64_t l = 0; l < n; l++)
            for (int i = 0; i < R; i++)
                t[l * R + i] = scalar::cross_entropy_grad(exps[i], t[l * R + i], share[i]);
        for (int i = 0; i < count; i++) {
            if (label[i] >= 0 && label[i] < n)
                t[label[i] * R + i] = own[i];
            else
                for (int64_t l = 0; l < n; l++) t[l * R + i] = A(0);
        }
        store_bundle(t, y, at[4], count, walk_step(p.walk[4]), n);
    }
    A* grad = t;  // at least a leaf
    alignas(64) A buffer[kTreeLeaf];
    for (; r < end; r++) {
        int64_t row[5];
        place_row(call, r, row);
        const int64_t label = label_at(call, row[1]);
        const bool known = label >= 0 && label < n;
        const A row_most = mosts[row[2]], row_sum = sums[row[3]],
                part = scalar::div(scale, row_sum);
        const auto exps = Exps<A, E>::of(row_most);
        for (int64_t at = 0; at < n; at += kTreeLeaf) {
            const int64_t m = min64(kTreeLeaf, n - at), hit = known ? label - at : -1;
            const A* v = fetch<A>(p.walk[0], x + row[0], at, m, buffer);
            if (known)
                for (int64_t i = 0; i < m; i++)
                    grad[i] = scalar::cross_entropy_grad(exps, v[i], part);
            else
                for (int64_t i = 0; i < m; i++) grad[i] = A(0);
            if (hit >= 0 && hit < m)
                grad[hit] = scalar::cross_entropy_grad_of_label(exps, v[hit], row_sum, part);
            store_block(p.walk[4], y + row[4], at, m, grad);
        }
    }
}

template <bool Grad>
void cross_entropy_any(const RowCall& call, int64_t begin, int64_t end) {
#define AICF_CASE(dtype, A, E)                                            \
    case DType::dtype:                                                    \
        if (Grad) return cross_entropy_grad_rows<A, E>(call, begin, end); \
        return cross_entropy_rows<A, E>(call, begin, end);
    switch (call.dtype[0]) {
        AICF_CASE(f32, float, float)
        AICF_CASE(f64, double, double)
        AICF_CASE(f16, float, F16)
        AICF_CASE(bf16, float, BF16)
        default:
            return;
    }
#undef AICF_CASE
}

// ---- fused row ops ------------------------------------------------------------------------------

AICF_INLINE const FusedRows& fused_rows_head(const ArgBlock& args) {
    return *reinterpret_cast<const FusedRows*>(&row_plan(args) + 1);
}

AICF_INLINE const Program* row_program(const FusedRows& head, uint32_t at) {
    return at ? reinterpret_cast<const Program*>(reinterpret_cast<const char*>(&head) + at)
              : nullptr;
}

/// Bytes of what a thread holds: values of a unit, then the programs' buffers; and where they lie.
AICF_INLINE int64_t place_held(const ArgBlock& args, int64_t (&value)[kMaxHeld],
                               int64_t (&buffers)[2]) {
    const RowPlan& p = row_plan(args);
    const FusedRows& head = fused_rows_head(args);
    int64_t bytes = 0;
    const auto take = [&](int64_t size) {
        const int64_t at = bytes;
        bytes += (size + 63) / 64 * 64;
        return at;
    };
    for (int k = 0; k < head.held; k++) value[k] = take(p.grain * p.n * head.size[k]);
    for (int i = 0; i < 2; i++) {
        const Program* program = row_program(head, i == 0 ? head.before : head.after);
        buffers[i] = take(program ? program->buffer_bytes : 0);
    }
    return bytes;
}

void fused_rows_prepare(ArgBlock& args) {
    RowPlan& p = *const_cast<RowPlan*>(&row_plan(args));
    const FusedRows& head = fused_rows_head(args);
    const int32_t outer = args.inputs + args.outputs;
    plan_rows(p, args.operand(head.like), head.axis);
    for (int o = 0; o < head.operands; o++)
        plan_row_operand(p,
                         head.operand[o] >= 0 && head.operand[o] < outer
                             ? &args.operand(head.operand[o])
                             : nullptr,
                         head.axis);
    if (p.n == 0 || p.rows == 0) return;
    // Few units where they can be: each starts the programs anew.
    const int64_t share = min64(p.rows * p.n / kRowUnits, kMaxRowUnit),
                  unit = share < kRowUnit ? kRowUnit : share;
    p.grain = p.n < unit ? unit / p.n : 1;
    constexpr int64_t bundle = kBundle<float>;  // those of wider elements have fewer rows
    if (p.n <= kShortRow) p.grain = p.grain < bundle ? bundle : p.grain / bundle * bundle;
    // A unit begins where the blocks of either program may begin.
    for (int i = 0; i < 2; i++) {
        const Program* program = row_program(head, i == 0 ? head.before : head.after);
        if (!program || program->rows) continue;
        const int64_t rows = program->shape[program->rank - 1] / p.n;
        p.grain = (p.grain + rows - 1) / rows * rows;
    }
}

uint64_t fused_rows_workspace(const ArgBlock& args, int threads) {
    int64_t value[kMaxHeld], buffers[2];
    return uint64_t(place_held(args, value, buffers)) * uint64_t(threads);
}

void fused_rows_run(const ArgBlock& args, int64_t begin, int64_t end, int, int thread) {
    const RowPlan& p = row_plan(args);
    const FusedRows& head = fused_rows_head(args);
    const int32_t outer = args.inputs + args.outputs;
    int64_t value[kMaxHeld], buffers[2];
    const int64_t bytes = place_held(args, value, buffers);
    char* const memory = static_cast<char*>(args.workspace) + thread * bytes;

    const Program* const programs[] = {row_program(head, head.before),
                                       row_program(head, head.after)};
    char* slots[2][kMaxSlots];
    struct Given {
        char* memory;
        int slot, size;
    } given[2][kMaxHeld];
    int givens[2] = {};
    for (int i = 0; i < 2 && p.n > 0; i++) {
        if (!programs[i]) continue;
        start_slots(*programs[i], memory + buffers[i], slots[i]);
        for (int s = 0; s < programs[i]->slots; s++)
            if (const Slot& slot = programs[i]->slot()[s]; slot.mode == SlotMode::given)
                given[i][givens[i]++] = {memory + value[slot.buffer], s, slot.size};
    }
    const auto run = [&](int i, int64_t first, int64_t last) {
        if (!programs[i] || p.n == 0) return;
        const int64_t pos = first * p.n;
        run_range(*programs[i], slots[i], pos, last * p.n, [&](int64_t block) {
            for (int k = 0; k < givens[i]; k++)
                slots[i][given[i][k].slot] = given[i][k].memory + (block - pos) * given[i][k].size;
        });
    };

    RowCall call{};
    call.plan = &p;
    call.scalars = &args.scalar(head.scalars);
    for (int o = 0; o < head.operands; o++) {
        const int32_t number = head.operand[o];
        call.dtype[o] = head.dtype[o];
        if (number >= 0)
            call.at[o] = number < outer ? args.operand(number).ptr : memory + value[number - outer];
    }
    for (int64_t u = begin; u < end; u++) {
        const int64_t first = u * p.grain, last = min64(first + p.grain, p.rows);
        for (int o = 0; o < head.operands; o++)
            call.skip[o] = head.operand[o] >= outer ? first * p.n : 0;
        run(0, first, last);
        head.run(call, first, last);
        run(1, first, last);
    }
}

// ---- mean squared error -------------------------------------------------------------------------

struct MsePlan {
    Walk y, t;
};

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
    Tree<reducers::Sum, Simd<A, 0>> tree;
    if (begin >= end) return A(0);
    for (int64_t at = begin; at < end; at += kTreeLeaf) {
        const int64_t n = min64(kTreeLeaf, end - at);
        const A *a = fetch<A>(p.y, y, at, n, first), *b = fetch<A>(p.t, t, at, n, second);
        for (int64_t i = 0; i < n; i++) square[i] = (a[i] - b[i]) * (a[i] - b[i]);
        tree.push(leaf<reducers::Sum>(square, n));
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
        Tree<reducers::Sum, Simd<A, 0>> tree;
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

template <RowFn Rows>
void register_rows(Table& table, const char* op, void (*prepare)(ArgBlock&)) {
    table.add(CpuKernel{op, kFloats, run_rows<Rows>, row_units, nullptr, sizeof(RowPlan), prepare,
                        1, Rows});
}

void register_nn(Table& table) {
    register_rows<softmax_any<false, false>>(table, "softmax", row_prepare);
    register_rows<softmax_any<true, false>>(table, "log_softmax", row_prepare);
    register_rows<softmax_any<false, true>>(table, "softmax_bwd", row_prepare);
    register_rows<softmax_any<true, true>>(table, "log_softmax_bwd", row_prepare);
    register_rows<normalize_any<false>>(table, "normalize", last_prepare);
    register_rows<normalize_any<true>>(table, "normalize_bwd", last_prepare);
    register_rows<cross_entropy_any<false>>(table, "cross_entropy", last_prepare);
    register_rows<cross_entropy_any<true>>(table, "cross_entropy_grad", last_prepare);
    table.add(CpuKernel{"fused_rows", kAnyDType, fused_rows_run, row_units, fused_rows_workspace,
                        sizeof(RowPlan), fused_rows_prepare});
    table.add(CpuKernel{"mse_loss", kFloats, mse_run, mse_units, mse_workspace, sizeof(MsePlan),
                        mse_prepare, 2});
}

}  // namespace aicf::cpu::AICF_ISA
