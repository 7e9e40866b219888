// Rows of softmax and losses. A team, one warp or one block, takes a row.
#pragma once

#include "reduce.cuh"

namespace aicf {

/// A row's reduction by a team: a warp (Warps 1) or the block.
template <class Op, class A, int Warps, int Group, class Row>
__device__ __forceinline__ A team_tree(const Row& row, int64_t n, A* shared) {
    if constexpr (Warps == 1)
        return warp_tree<Op, A>(row, 0, n);
    else
        return block_tree<Op, A, Group>(row, 0, n, shared, Warps * 32);
}

template <int Warps>
struct Team {
    static constexpr int size = Warps * 32;
    __device__ __forceinline__ static int rank() {
        return Warps == 1 ? threadIdx.x & 31 : threadIdx.x;
    }
    __device__ __forceinline__ static int64_t first(const Grid& grid) {
        return Warps == 1 ? int64_t(grid.block) * (grid.threads / 32) + threadIdx.x / 32
                          : grid.block;
    }
    __device__ __forceinline__ static int64_t step(const Grid& grid) {
        return Warps == 1 ? int64_t(grid.blocks) * (grid.threads / 32) : grid.blocks;
    }
    /// Each thread of the team must be done reading before any writes.
    __device__ __forceinline__ static void sync() {
        if constexpr (Warps == 1)
            __syncwarp();
        else
            __syncthreads();
    }
};

template <class A, int Warps, int Group, class Row>
__device__ __forceinline__ A exp_sum(const Row& row, int64_t n, A most, A* shared) {
    const auto f = [most](A v, A) { return scalar::exp(v - most); };
    return team_tree<SumOp<A>, A, Warps, Group>(mapped<A>(f, row, Nothing<A>{}), n, shared);
}

template <class A, int Warps, int Group, bool Log, class Shape, class E>
__device__ __forceinline__ void softmax_rows(const Grid& grid, E* y, const E* x) {
    extern __shared__ __align__(16) char bytes[];
    A* const shared = reinterpret_cast<A*>(bytes);
    typedef Team<Warps> T;
    for (int64_t r = T::first(grid); r < Shape::rows; r += T::step(grid)) {
        const RowOf<A, E, typename Shape::Elem0> row(x + Shape::Row0::at(r));
        E* const out = y + Shape::Row1::at(r);
        const A most = team_tree<MaxOp<A>, A, Warps, Group>(row, Shape::n, shared);
        const A sum = exp_sum<A, Warps, Group>(row, Shape::n, most, shared);
        const A log_sum = Log ? scalar::log(sum) : A(0);
        T::sync();
        for (int64_t i = T::rank(); i < Shape::n; i += T::size) {
            const A v = row(i);
            out[Shape::Elem1::at(i)] =
                narrow<E>(Log ? (v - most) - log_sum : scalar::div(scalar::exp(v - most), sum));
        }
    }
}

template <class A, int Warps, int Group, bool Log, class Shape, class E>
__device__ __forceinline__ void softmax_bwd_rows(const Grid& grid, E* dx, const E* y, const E* dy) {
    extern __shared__ __align__(16) char bytes[];
    A* const shared = reinterpret_cast<A*>(bytes);
    typedef Team<Warps> T;
    for (int64_t r = T::first(grid); r < Shape::rows; r += T::step(grid)) {
        const RowOf<A, E, typename Shape::Elem0> v(y + Shape::Row0::at(r));
        const RowOf<A, E, typename Shape::Elem1> g(dy + Shape::Row1::at(r));
        E* const out = dx + Shape::Row2::at(r);
        const auto f = [](A a, A b) { return a * b; };
        A sum;
        if constexpr (Log)
            sum = team_tree<SumOp<A>, A, Warps, Group>(g, Shape::n, shared);
        else
            sum = team_tree<SumOp<A>, A, Warps, Group>(mapped<A>(f, v, g), Shape::n, shared);
        T::sync();
        for (int64_t i = T::rank(); i < Shape::n; i += T::size) {
            if constexpr (Log)
                out[Shape::Elem2::at(i)] = narrow<E>(scalar::log_softmax_bwd(v(i), g(i), sum));
            else
                out[Shape::Elem2::at(i)] = narrow<E>(scalar::softmax_bwd(v(i), g(i), sum));
        }
    }
}

/// Operands: x, y, rstd (one a row).
template <class A, int Warps, int Group, bool Center, class Shape, class E>
__device__ __forceinline__ void normalize_rows(const Grid& grid, E* y, E* rstd, const E* x, A eps) {
    extern __shared__ __align__(16) char bytes[];
    A* const shared = reinterpret_cast<A*>(bytes);
    typedef Team<Warps> T;
    for (int64_t r = T::first(grid); r < Shape::rows; r += T::step(grid)) {
        const RowOf<A, E, typename Shape::Elem0> row(x + Shape::Row0::at(r));
        E* const out = y + Shape::Row1::at(r);
        A mean = A(0);
        if constexpr (Center)
            mean = scalar::div(team_tree<SumOp<A>, A, Warps, Group>(row, Shape::n, shared),
                               static_cast<A>(Shape::n));
        const auto f = [mean](A v, A) { return (v - mean) * (v - mean); };
        const A sum =
            team_tree<SumOp<A>, A, Warps, Group>(mapped<A>(f, row, Nothing<A>{}), Shape::n, shared);
        const A scale =
            scalar::div(A(1), scalar::sqrt(scalar::div(sum, static_cast<A>(Shape::n)) + eps));
        T::sync();
        for (int64_t i = T::rank(); i < Shape::n; i += T::size)
            out[Shape::Elem1::at(i)] = narrow<E>((row(i) - mean) * scale);
        if (T::rank() == 0) rstd[Shape::Row2::at(r)] = narrow<E>(scale);
    }
}

/// Operands: y, rstd, dy, dx.
template <class A, int Warps, int Group, bool Center, class Shape, class E>
__device__ __forceinline__ void normalize_bwd_rows(const Grid& grid, E* dx, const E* y,
                                                   const E* rstd, const E* dy) {
    extern __shared__ __align__(16) char bytes[];
    A* const shared = reinterpret_cast<A*>(bytes);
    typedef Team<Warps> T;
    for (int64_t r = T::first(grid); r < Shape::rows; r += T::step(grid)) {
        const RowOf<A, E, typename Shape::Elem0> v(y + Shape::Row0::at(r));
        const RowOf<A, E, typename Shape::Elem2> g(dy + Shape::Row2::at(r));
        E* const out = dx + Shape::Row3::at(r);
        const A scale = widen(rstd[Shape::Row1::at(r)]), n = static_cast<A>(Shape::n);
        A shift = A(0);
        if constexpr (Center)
            shift = scalar::div(team_tree<SumOp<A>, A, Warps, Group>(g, Shape::n, shared), n);
        const auto f = [](A a, A b) { return a * b; };
        const A slope = scalar::div(
            team_tree<SumOp<A>, A, Warps, Group>(mapped<A>(f, g, v), Shape::n, shared), n);
        T::sync();
        for (int64_t i = T::rank(); i < Shape::n; i += T::size)
            out[Shape::Elem3::at(i)] = narrow<E>(scale * ((g(i) - shift) - v(i) * slope));
    }
}

/// Operands: logits [N, C], labels [N], row_loss [N], lse [N].
template <class A, int Warps, int Group, class Shape, class E, class Label>
__device__ __forceinline__ void cross_entropy_rows(const Grid& grid, E* loss, E* lse, const E* x,
                                                   const Label* labels) {
    extern __shared__ __align__(16) char bytes[];
    A* const shared = reinterpret_cast<A*>(bytes);
    typedef Team<Warps> T;
    for (int64_t r = T::first(grid); r < Shape::rows; r += T::step(grid)) {
        const RowOf<A, E, typename Shape::Elem0> row(x + Shape::Row0::at(r));
        const A most = team_tree<MaxOp<A>, A, Warps, Group>(row, Shape::n, shared);
        const A log_sum = most + scalar::log(exp_sum<A, Warps, Group>(row, Shape::n, most, shared));
        if (T::rank() != 0) continue;
        const int64_t label = labels[Shape::Row1::at(r)];
        const A nan = static_cast<A>(scalar::from_bits(0x7fc00000u));
        const A value = label >= 0 && label < Shape::n ? log_sum - row(label) : nan;
        loss[Shape::Row2::at(r)] = narrow<E>(value);
        lse[Shape::Row3::at(r)] = narrow<E>(log_sum);
    }
}

/// Operands: logits [N, C], labels [N], lse [N], dlogits [N, C].
template <class A, class Shape, class E, class Label>
__device__ __forceinline__ void cross_entropy_grad(const Grid& grid, E* out, const E* x,
                                                   const Label* labels, const E* lse, A scale) {
    const int64_t count = Shape::rows * Shape::n, step = int64_t(grid.blocks) * grid.threads;
    for (int64_t u = int64_t(grid.block) * grid.threads + threadIdx.x; u < count; u += step) {
        const int64_t r = u / Shape::n, i = u - r * Shape::n, label = labels[Shape::Row1::at(r)];
        A grad = A(0);
        if (label >= 0 && label < Shape::n)
            grad = scalar::cross_entropy_grad(
                static_cast<A>(widen(x[Shape::Row0::at(r) + Shape::Elem0::at(i)])),
                static_cast<A>(widen(lse[Shape::Row2::at(r)])), i == label, scale);
        out[Shape::Row3::at(r) + Shape::Elem3::at(i)] = narrow<E>(grad);
    }
}

}  // namespace aicf
