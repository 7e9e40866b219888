// Rows of softmax and losses. A team, one warp or one block, takes a row.
//
// What a kernel reads and writes are functions. Of elements, make(r) is row r, whose element i is
// row(i), made anew each time; put(r)(i, v) does what is left to do with element i of the result,
// after the team's last reading of other elements. Of what a row has one of: get(r) and set(r, v).
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
        return Warps == 1 ? int64_t(grid.block) * (grid.threads / 32) + grid.thread() / 32
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
    return team_tree<SumOf<A>, A, Warps, Group>(mapped<A>(f, row, Nothing<A>{}), n, shared);
}

/// A result that nobody wants.
struct Nowhere {
    template <class A>
    __device__ __forceinline__ void operator()(int64_t, A) const {}
};

/// Masked: a row of -inf alone is 0.
template <class A, int Warps, int Group, bool Log, bool Masked, class Shape, class Make, class Put>
__device__ __forceinline__ void softmax_rows(const Grid& grid, Make make, Put put) {
    extern __shared__ __align__(16) char bytes[];
    A* const shared = reinterpret_cast<A*>(bytes);
    typedef Team<Warps> T;
    for (int64_t r = T::first(grid); r < Shape::rows; r += T::step(grid)) {
        const auto row = make(r);
        const auto out = put(r);
        A most = team_tree<MaxOf<A>, A, Warps, Group>(row, Shape::n, shared);
        if constexpr (Masked) most = scalar::masked_most(most);
        A sum = exp_sum<A, Warps, Group>(row, Shape::n, most, shared);
        if constexpr (Masked) sum = scalar::masked_sum(sum);
        const A log_sum = Log ? scalar::log(sum) : A(0);
        T::sync();
        for (int64_t i = T::rank(); i < Shape::n; i += T::size) {
            const A v = row(i);
            out(i, Log ? (v - most) - log_sum : scalar::div(scalar::exp(v - most), sum));
        }
    }
}

template <class A, int Warps, int Group, bool Log, class Shape, class Y, class Dy, class Put>
__device__ __forceinline__ void softmax_bwd_rows(const Grid& grid, Y y, Dy dy, Put put) {
    extern __shared__ __align__(16) char bytes[];
    A* const shared = reinterpret_cast<A*>(bytes);
    typedef Team<Warps> T;
    for (int64_t r = T::first(grid); r < Shape::rows; r += T::step(grid)) {
        const auto v = y(r);
        const auto g = dy(r);
        const auto out = put(r);
        const auto f = [](A a, A b) { return a * b; };
        A sum;
        if constexpr (Log)
            sum = team_tree<SumOf<A>, A, Warps, Group>(g, Shape::n, shared);
        else
            sum = team_tree<SumOf<A>, A, Warps, Group>(mapped<A>(f, v, g), Shape::n, shared);
        T::sync();
        for (int64_t i = T::rank(); i < Shape::n; i += T::size) {
            if constexpr (Log)
                out(i, scalar::log_softmax_bwd(v(i), g(i), sum));
            else
                out(i, scalar::softmax_bwd(v(i), g(i), sum));
        }
    }
}

template <class A, int Warps, int Group, bool Center, class Shape, class Make, class Put, class Set>
__device__ __forceinline__ void normalize_rows(const Grid& grid, Make make, Put put, Set rstd,
                                               A eps) {
    extern __shared__ __align__(16) char bytes[];
    A* const shared = reinterpret_cast<A*>(bytes);
    typedef Team<Warps> T;
    for (int64_t r = T::first(grid); r < Shape::rows; r += T::step(grid)) {
        const auto row = make(r);
        const auto out = put(r);
        A mean = A(0);
        if constexpr (Center)
            mean = scalar::div(team_tree<SumOf<A>, A, Warps, Group>(row, Shape::n, shared),
                               static_cast<A>(Shape::n));
        const auto f = [mean](A v, A) { return (v - mean) * (v - mean); };
        const A sum =
            team_tree<SumOf<A>, A, Warps, Group>(mapped<A>(f, row, Nothing<A>{}), Shape::n, shared);
        const A scale =
            scalar::div(A(1), scalar::sqrt(scalar::div(sum, static_cast<A>(Shape::n)) + eps));
        T::sync();
        for (int64_t i = T::rank(); i < Shape::n; i += T::size) out(i, (row(i) - mean) * scale);
        if (T::rank() == 0) rstd(r, scale);
    }
}

template <class A, int Warps, int Group, bool Center, class Shape, class Y, class Rstd, class Dy,
          class Put>
__device__ __forceinline__ void normalize_bwd_rows(const Grid& grid, Y y, Rstd rstd, Dy dy,
                                                   Put put) {
    extern __shared__ __align__(16) char bytes[];
    A* const shared = reinterpret_cast<A*>(bytes);
    typedef Team<Warps> T;
    for (int64_t r = T::first(grid); r < Shape::rows; r += T::step(grid)) {
        const auto v = y(r);
        const auto g = dy(r);
        const auto out = put(r);
        const A scale = rstd(r), n = static_cast<A>(Shape::n);
        A shift = A(0);
        if constexpr (Center)
            shift = scalar::div(team_tree<SumOf<A>, A, Warps, Group>(g, Shape::n, shared), n);
        const auto f = [](A a, A b) { return a * b; };
        const A slope = scalar::div(
            team_tree<SumOf<A>, A, Warps, Group>(mapped<A>(f, g, v), Shape::n, shared), n);
        T::sync();
        for (int64_t i = T::rank(); i < Shape::n; i += T::size)
            out(i, scale * ((g(i) - shift) - v(i) * slope));
    }
}

/// `put`: of the logits, where they are made here and stored.
template <class A, int Warps, int Group, class Shape, class Make, class Labels, class Loss,
          class Most, class Sum, class Put>
__device__ __forceinline__ void cross_entropy_rows(const Grid& grid, Make make, Labels labels,
                                                   Loss loss, Most set_most, Sum set_sum, Put put) {
    extern __shared__ __align__(16) char bytes[];
    A* const shared = reinterpret_cast<A*>(bytes);
    typedef Team<Warps> T;
    for (int64_t r = T::first(grid); r < Shape::rows; r += T::step(grid)) {
        const auto row = make(r);
        const A most = team_tree<MaxOf<A>, A, Warps, Group>(row, Shape::n, shared);
        const A sum = exp_sum<A, Warps, Group>(row, Shape::n, most, shared);
        if (T::rank() == 0) {
            const int64_t label = labels(r);
            const A nan = static_cast<A>(scalar::from_bits(0x7fc00000u));
            loss(r, label >= 0 && label < Shape::n
                        ? scalar::cross_entropy_loss(row(label), most, scalar::log(sum))
                        : nan);
            set_most(r, most);
            set_sum(r, sum);
        }
        if constexpr (Put::stores) {
            const auto out = put(r);
            T::sync();
            for (int64_t i = T::rank(); i < Shape::n; i += T::size) out(i, A(0));
        }
    }
}

/// A warp takes `Lot` elements a lane of one row, whose share is divided out once; of rows shorter
/// than that a thread takes an element.
template <class A, class Shape, class Make, class Labels, class Most, class Sum, class Put>
__device__ __forceinline__ void cross_entropy_grad(const Grid& grid, Make make, Labels labels,
                                                   Most most, Sum sum, Put put, A scale) {
    constexpr int Lot = Shape::n >= 128 ? 4 : 1;
    constexpr int64_t span = Lot > 1 ? 32 * Lot : 1, units = (Shape::n + span - 1) / span;
    const int64_t thread = int64_t(grid.block) * grid.threads + grid.thread(),
                  step = int64_t(grid.blocks) * grid.threads;
    const int lane = Lot > 1 ? threadIdx.x & 31 : 0;
    for (int64_t u = Lot > 1 ? thread / 32 : thread; u < Shape::rows * units;
         u += Lot > 1 ? step / 32 : step) {
        const int64_t r = u / units, first = (u - r * units) * span + lane, label = labels(r);
        const bool known = label >= 0 && label < Shape::n;
        const A largest = A(most(r)), total = A(sum(r)), share = scalar::div(scale, total);
        const auto row = make(r);
        const auto out = put(r);
        A x[Lot];
#pragma unroll
        for (int j = 0; j < Lot; j++) x[j] = first + 32 * j < Shape::n ? row(first + 32 * j) : A(0);
#pragma unroll
        for (int j = 0; j < Lot; j++) {
            const int64_t i = first + 32 * j;
            const A grad = scalar::cross_entropy_grad_of_label(x[j], largest,
                                                               i == label ? total : A(0), share);
            if (i < Shape::n) out(i, known ? grad : A(0));
        }
    }
}

}  // namespace aicf
