// Rows of softmax and losses.
//
// What a kernel reads and writes are functions. Of elements, make(r) is row r, whose element i is
// row(i), made anew each time; put(r)(i, v) does what is left to do with element i of the result,
// after the team's last reading of other elements. Of what a row has one of: get(r) and set(r, v).
#pragma once

#include "rows.cuh"

namespace aicf {

/// A result that nobody wants.
struct Nowhere {
    template <class A>
    __device__ __forceinline__ void operator()(int64_t, A) const {}
};

/// Masked: a row of -inf alone is 0.
template <class A, class Team, bool Log, bool Masked, class Shape, class Make, class Put>
__device__ __forceinline__ void softmax_rows(const Grid& grid, Make make, Put put) {
    extern __shared__ __align__(16) char bytes[];
    Team team{reinterpret_cast<A*>(bytes)};
    Team::template each<Shape::rows>(grid, [&](int64_t r, bool mine) {
        const auto x = team.take(make(r));
        A most = team.template reduce<MaxOf<A>>(x);
        if constexpr (Masked) most = scalar::masked_most(most);
        const auto exps = team.map(x, [most](A v) { return scalar::exp(v - most); });
        A sum = team.template reduce<SumOf<A>>(exps);
        if constexpr (Masked) sum = scalar::masked_sum(sum);
        if constexpr (Log) {
            const A log_sum = scalar::log(sum);
            const auto y = team.map(x, [=](A v) { return (v - most) - log_sum; });
            if (mine) team.put(y, put(r));
        } else {
            const auto y = team.map(exps, [sum](A v) { return scalar::div(v, sum); });
            if (mine) team.put(y, put(r));
        }
    });
}

template <class A, class Team, bool Log, class Shape, class Y, class Dy, class Put>
__device__ __forceinline__ void softmax_bwd_rows(const Grid& grid, Y y, Dy dy, Put put) {
    extern __shared__ __align__(16) char bytes[];
    Team team{reinterpret_cast<A*>(bytes)};
    Team::template each<Shape::rows>(grid, [&](int64_t r, bool mine) {
        const auto v = team.take(y(r));
        const auto g = team.take(dy(r));
        A sum;
        if constexpr (Log)
            sum = team.template reduce<SumOf<A>>(g);
        else
            sum =
                team.template reduce<SumOf<A>>(team.combine(v, g, [](A a, A b) { return a * b; }));
        const auto dx = team.combine(v, g, [sum](A a, A b) {
            if constexpr (Log)
                return scalar::log_softmax_bwd(a, b, sum);
            else
                return scalar::softmax_bwd(a, b, sum);
        });
        if (mine) team.put(dx, put(r));
    });
}

template <class A, class Team, bool Center, class Shape, class Make, class Put, class Set>
__device__ __forceinline__ void normalize_rows(const Grid& grid, Make make, Put put, Set rstd,
                                               A eps) {
    extern __shared__ __align__(16) char bytes[];
    Team team{reinterpret_cast<A*>(bytes)};
    Team::template each<Shape::rows>(grid, [&](int64_t r, bool mine) {
        const auto x = team.take(make(r));
        const A n = static_cast<A>(Shape::n);
        A mean = A(0);
        if constexpr (Center) mean = scalar::div(team.template reduce<SumOf<A>>(x), n);
        const A sum = team.template reduce<SumOf<A>>(
            team.map(x, [mean](A v) { return (v - mean) * (v - mean); }));
        const A scale = scalar::div(A(1), scalar::sqrt(scalar::div(sum, n) + eps));
        const auto y = team.map(x, [=](A v) { return (v - mean) * scale; });
        if (mine) team.put(y, put(r));
        if (mine && team.leads()) rstd(r, scale);
    });
}

template <class A, class Team, bool Center, class Shape, class Y, class Rstd, class Dy, class Put>
__device__ __forceinline__ void normalize_bwd_rows(const Grid& grid, Y y, Rstd rstd, Dy dy,
                                                   Put put) {
    extern __shared__ __align__(16) char bytes[];
    Team team{reinterpret_cast<A*>(bytes)};
    Team::template each<Shape::rows>(grid, [&](int64_t r, bool mine) {
        const auto v = team.take(y(r));
        const auto g = team.take(dy(r));
        const A scale = rstd(r), n = static_cast<A>(Shape::n);
        A shift = A(0);
        if constexpr (Center) shift = scalar::div(team.template reduce<SumOf<A>>(g), n);
        const A slope = scalar::div(
            team.template reduce<SumOf<A>>(team.combine(g, v, [](A a, A b) { return a * b; })), n);
        const auto dx =
            team.combine(g, v, [=](A a, A b) { return scale * ((a - shift) - b * slope); });
        if (mine) team.put(dx, put(r));
    });
}

/// e^(x - most) where x is `most` at most: neither has to be kept below what overflows. Not of
/// NaN, of which the sum is NaN where `most` is not finite.
template <class A>
__device__ __forceinline__ A exp_below(A x, A most) {
    if constexpr (same_type<A, float>) {
        const uint32_t low = scalar::bits(-104.0f), u = scalar::bits(x - most);
        const auto v = scalar::exp_reduce(scalar::from_bits(u < low ? u : low));
        return scalar::scale_down(scalar::exp_parts(v, 0.0f).hi, v.e);
    } else {
        return scalar::exp(x - most);
    }
}
template <class A, class Team, class Row>
__device__ __forceinline__ A sum_of_exps(Team& team, const Row& x, A most) {
    const A sum =
        team.template reduce<SumOf<A>>(team.map(x, [most](A v) { return exp_below(v, most); }));
    return most - most == A(0) ? sum : static_cast<A>(scalar::from_bits(0x7fc00000u));
}

/// `put`: of the logits, where they are made here and stored.
template <class A, class Team, class Shape, class Make, class Labels, class Loss, class Most,
          class Sum, class Put>
__device__ __forceinline__ void cross_entropy_rows(const Grid& grid, Make make, Labels labels,
                                                   Loss loss, Most set_most, Sum set_sum, Put put) {
    extern __shared__ __align__(16) char bytes[];
    Team team{reinterpret_cast<A*>(bytes)};
    Team::template each<Shape::rows>(grid, [&](int64_t r, bool mine) {
        const auto row = make(r);
        const auto x = team.take(row);
        const A most = team.template reduce<MaxOf<A>>(x);
        const A sum = sum_of_exps(team, x, most);
        if (mine && team.leads()) {
            const int64_t label = labels(r);
            const A nan = static_cast<A>(scalar::from_bits(0x7fc00000u));
            loss(r, label >= 0 && label < Shape::n
                        ? scalar::cross_entropy_loss(row(label), most, scalar::log(sum))
                        : nan);
            set_most(r, most);
            set_sum(r, sum);
        }
        if constexpr (Put::stores) {
            Team::sync();  // the label's element is read before logits take the place of what it is
            if (mine) team.put(team.map(x, [](A) { return A(0); }), put(r));
        }
    });
}

/// What becomes of the elements of a row of logits: its part of the gradient.
template <class A, int64_t N, class Out>
struct GradientRow {
    Out out;
    A most, sum, share;
    int64_t label;
    __device__ __forceinline__ A of(int64_t i, A v) const {
        const A grad = scalar::cross_entropy_grad_of_label(v, most, i == label ? sum : A(0), share);
        return label >= 0 && label < N ? grad : A(0);
    }
    __device__ __forceinline__ void four(int64_t i, const A (&v)[4]) const {
        A grad[4];
#pragma unroll
        for (int j = 0; j < 4; j++) grad[j] = of(i + j, v[j]);
        out.four(i, grad);
    }
    __device__ __forceinline__ void operator()(int64_t i, A v) const { out(i, of(i, v)); }
};

/// Cross entropy and its gradient, which `put` takes and which may lie where the logits do.
template <class A, class Team, class Shape, class Make, class Labels, class Loss, class Most,
          class Sum, class Put>
__device__ __forceinline__ void cross_entropy_with_grad(const Grid& grid, Make make, Labels labels,
                                                        Loss loss, Most set_most, Sum set_sum,
                                                        Put put, A scale) {
    extern __shared__ __align__(16) char bytes[];
    Team team{reinterpret_cast<A*>(bytes)};
    Team::template each<Shape::rows>(grid, [&](int64_t r, bool mine) {
        const auto row = make(r);
        const auto x = team.take(row);
        const A most = team.template reduce<MaxOf<A>>(x);
        const A sum = sum_of_exps(team, x, most);
        const int64_t label = labels(r);
        if (mine && team.leads()) {
            const A nan = static_cast<A>(scalar::from_bits(0x7fc00000u));
            loss(r, label >= 0 && label < Shape::n
                        ? scalar::cross_entropy_loss(row(label), most, scalar::log(sum))
                        : nan);
            set_most(r, most);
            set_sum(r, sum);
        }
        Team::sync();  // the label's element is read before its gradient takes its place
        const auto out = put(r);
        if (mine)
            team.put(x, GradientRow<A, Shape::n, decltype(put(r))>{out, most, sum,
                                                                   scalar::div(scale, sum), label});
    });
}

/// A warp takes `Lot` times four elements a lane of one row, whose share is divided out once; of
/// Lot 0, short rows, a thread takes an element.
template <class A, int Lot, class Shape, class Make, class Labels, class Most, class Sum, class Put>
__device__ __forceinline__ void cross_entropy_grad(const Grid& grid, Make make, Labels labels,
                                                   Most most, Sum sum, Put put, A scale) {
    constexpr int64_t n = Shape::n, span = Lot ? 128 * Lot : 1, units = (n + span - 1) / span;
    typedef Counter<Shape::rows * units> Number;
    const int64_t thread = int64_t(grid.block) * grid.threads + grid.thread(),
                  step = int64_t(grid.blocks) * grid.threads;
    for (int64_t u = Lot ? thread / 32 : thread; u < Shape::rows * units;
         u += Lot ? step / 32 : step) {
        const int64_t r = Number(u) / Number(units),
                      first = (u - r * units) * span + (Lot ? 4 * (threadIdx.x & 31) : 0);
        const auto row = make(r);
        const A total = A(sum(r));
        const auto out = put(r);
        const GradientRow<A, n, decltype(put(r))> grad{out, A(most(r)), total,
                                                       scalar::div(scale, total), labels(r)};
        if constexpr (Lot == 0) {
            grad(first, row(first));
        } else {
            A x[Lot][4];
            const auto has = [&](int k) { return first + 128 * k + 4 <= n; };
#pragma unroll
            for (int k = 0; k < Lot; k++)  // without a branch, so that all are on their way
                row.four(has(k) ? first + 128 * k : n / 4 * 4 - 4, x[k]);
#pragma unroll
            for (int k = 0; k < Lot; k++) {
                const int64_t i = first + 128 * k;
                if (has(k))
                    grad.four(i, x[k]);
                else if (n % 4 != 0)
                    for (int j = 0; j < 3 && i + j < n; j++) grad(i + j, row(i + j));
            }
        }
    }
}

}  // namespace aicf
