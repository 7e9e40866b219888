// Long rows in 16 bits that a block keeps in shared memory as they are stored. Each warp has leaves
// of its own: when it is done with one of a row, it asks for that of the block's next row, which
// comes while others are still at theirs. N is a multiple of 8.
//
// Beyond what nn.cuh says, of row = make(r): row.own() is where the elements lie that are brought;
// row.beside<V, Together>(i) reads what else makes elements i to i + V - 1, row.with(some, kept)
// adds those that have come to `kept`. Of out = put(r): out.beside<V, Together>(i) reads what
// out.finish<V, Together>(i, v, some) takes to store them.
#pragma once

#include "copies.cuh"
#include "kept_rows.cuh"

namespace aicf {

template <class A, int N, int Warps, class E, int Rows, int Sums>
struct FilledRows {
    static constexpr int leaves = (N + int(kTreeLeaf) - 1) / int(kTreeLeaf),
                         turns = (leaves + Warps - 1) / Warps, lines = 4;
    static_assert(sizeof(E) == 2 && N % 8 == 0 && leaves <= 128 && Warps <= 32);
    static constexpr int sums_of = Sums;
    E* const rows;
    A* const sums;  // of leaves, of two reductions in turn, so that one barrier does for each
    int side = 0;
    const E* next[Rows];  // rows that are to come, or none

    __device__ __forceinline__ explicit FilledRows(char* shared)
        : rows(reinterpret_cast<E*>(shared)), sums(reinterpret_cast<A*>(rows + N * Rows)) {}

    /// body(turn, there) for all turns; `there`: the warp has a leaf in it.
    template <class Body>
    __device__ __forceinline__ static void each_turn(const Body& body) {
#pragma unroll 1
        for (int turn = 0; turn < turns; turn++)
            body(turn,
                 (turn + 1) * Warps <= leaves || turn * Warps + int(threadIdx.x / 32) < leaves);
    }
    /// Asks for a leaf of each row of `next`, which all of the warp are done with the place of; is
    /// called for each turn.
    __device__ __forceinline__ void fill(int turn, bool there) const {
        if (there && next[0] != nullptr)
#pragma unroll
            for (int slot = 0; slot < Rows; slot++) fill_one(turn, rows + N * slot, next[slot]);
        commit_copies();
    }
    /// Waits for the leaf of a turn, where those of later ones may be on their way.
    template <int Turn = 0>
    __device__ __forceinline__ static void wait(int turn) {
        if (turn == Turn)
            wait_copies<turns - 1 - Turn>();
        else if constexpr (Turn + 1 < turns)
            wait<Turn + 1>(turn);
        if (Turn == 0) __syncwarp();
    }
    /// What else makes a row's leaf.
    template <class Row>
    __device__ __forceinline__ static void beside(int turn, const Row& row,
                                                  typename Row::template Some<4> (&some)[lines]) {
        if (row.template beside_together<4>())
            each_line<Warps, N>(
                turn, [&](int i, int line) { some[line] = row.template beside<4, true>(i); });
        else
            each_line<Warps, N>(
                turn, [&](int i, int line) { some[line] = row.template beside<4, false>(i); });
    }
    /// What `row` makes of elements that have come to row `slot`; they stay there where they are
    /// others.
    template <class Row>
    __device__ __forceinline__ void open(int slot, int i, const Row& row,
                                         typename Row::template Some<4>& some, A (&v)[4]) const {
        E* const kept = rows + N * slot + i;
        row.with(some, kept);
        row.template open<4>(some, v);
        if constexpr (!Row::direct) *reinterpret_cast<Pack<E, 4>*>(kept) = as_stored<E>(v);
    }
    __device__ __forceinline__ void again(int slot, int i, A (&v)[4]) const {
        KeptRow<A, E>{rows + N * slot}.some(i, v);
    }
    __device__ __forceinline__ static void fill_one(int turn, E* kept, const E* x) {
        const int first =
            (turn * Warps + int(threadIdx.x / 32)) * int(kTreeLeaf) + 8 * int(threadIdx.x & 31);
        if (aligned_for<8>(x)) {
#pragma unroll
            for (int i = first; i < first + int(kTreeLeaf); i += 256)
                if (i < N) copy_async<16>(kept + i, x + i);
            return;
        }
        for (int i = first; i < first + int(kTreeLeaf) && i < N; i += 256)
            for (int j = 0; j < 8; j++) kept[i + j] = x[i + j];
    }
    /// Adds up a leaf's terms(i, line, t) for each of the row's sums.
    template <class Terms>
    __device__ __forceinline__ void add(int turn, const Terms& terms) const {
        A s[Sums][4];
#pragma unroll
        for (int sum = 0; sum < Sums; sum++)
#pragma unroll
            for (int c = 0; c < 4; c++) s[sum][c] = SumOf<A>::missing();
        each_line<Warps, N>(turn, [&](int i, int line) {
            A t[Sums][4];
            terms(i, line, t);
#pragma unroll
            for (int sum = 0; sum < Sums; sum++)
#pragma unroll
                for (int c = 0; c < 4; c++)
                    s[sum][c] = line == 0 ? t[sum][c] : SumOf<A>::join(s[sum][c], t[sum][c]);
        });
#pragma unroll
        for (int sum = 0; sum < Sums; sum++) {
            const A of_leaf = join_lanes<SumOf<A>, 32>(s[sum]);
            if (threadIdx.x % 32 == 0)
                sums[(side * Sums + sum) * leaves + turn * Warps + int(threadIdx.x / 32)] = of_leaf;
        }
    }
    /// Sums of all leaves.
    __device__ __forceinline__ void total(A (&all)[Sums]) {
        __syncthreads();
#pragma unroll
        for (int s = 0; s < Sums; s++)
            all[s] = join_leaves<SumOf<A>, leaves>(sums + (side * Sums + s) * leaves);
        side ^= 1;
    }
    template <bool Together, class Out>
    __device__ __forceinline__ static void finish(int turn, const Out& out,
                                                  const A (&v)[lines][4]) {
        typedef decltype(out.template beside<4, Together>(0)) Some;
        constexpr int lot = sizeof(Some) > 8 ? 2 : lines;  // lines that are read at once
#pragma unroll
        for (int first = 0; first < lines; first += lot) {
            Some some[lot];
            each_line<Warps, N>(turn, [&](int i, int line) {
                if (line / lot == first / lot)
                    some[line % lot] = out.template beside<4, Together>(i);
            });
            each_line<Warps, N>(turn, [&](int i, int line) {
                if (line / lot == first / lot)
                    out.template finish<4, Together>(i, v[line], some[line % lot]);
            });
        }
    }
    /// Stores result(i, v) of a row, leaf by leaf, in whose place the next comes.
    template <class Out, class Result>
    __device__ __forceinline__ void put(const Out& out, const Result& result) const {
        const bool together = out.template together<4>();
        each_turn([&](int turn, bool there) {
            A v[lines][4];
            if (there) each_line<Warps, N>(turn, [&](int i, int line) { result(i, v[line]); });
            __syncwarp();
            fill(turn, there);
            if (there && together)
                finish<true>(turn, out, v);
            else if (there)
                finish<false>(turn, out, v);
        });
    }
};

/// body(rows, r) for the rows of a block, of which rows.next says where the next lie, of what each
/// of `make` brings.
template <class Rows, int64_t Count, class Body, class Order, class... Make>
__device__ __forceinline__ void each_filled(const Grid& grid, const Body& body, const Order& order,
                                            const Make&... make) {
    typedef typename RowNumber<(Count < (1 << 30))>::type Number;
    extern __shared__ __align__(16) char bytes[];
    Rows rows(bytes);
    constexpr auto count = Number(Count);
    const auto step = Number(grid.blocks);
    const auto ask = [&](Number r) {
        int slot = 0;
        ((rows.next[slot++] = r < count ? make(r).own() : nullptr), ...);
    };
    auto r = Number(grid.block);
    ask(r);
    Rows::each_turn([&](int turn, bool there) { rows.fill(turn, there); });
    auto* const given = reinterpret_cast<uint32_t*>(rows.sums + 2 * Rows::sums_of * Rows::leaves);
    for (Number after = r + step; r < count;) {
        ask(after);
        uint32_t ticket = 0;
        if constexpr (Order::counts)
            if (threadIdx.x == 0) ticket = atomicAdd(order.counter, 1u);
        body(rows, r);
        r = after;
        if constexpr (Order::counts) {
            if (threadIdx.x == 0) {
                *given = ticket;
                if (ticket == uint32_t(count) - 1) clear_counter(order.counter);
            }
            __syncthreads();  // and another behind the row's sums, before it is written again
            after = 2 * step + Number(*given);
        } else {
            after += step;
        }
    }
}

/// Of rows y and dy: sums of some terms(y, dy), and of each two elements what result(y, dy, sums)
/// says.
template <class A, int Warps, class E, int Sums, class Shape, class Y, class Dy, class Put,
          class Order, class Terms, class Result>
__device__ __forceinline__ void two_filled(const Grid& grid, Y y, Dy dy, Put put,
                                           const Order& order, const Terms& terms,
                                           const Result& result) {
    typedef FilledRows<A, int(Shape::n), Warps, E, 2, Sums> Rows;
    const auto one = [&](Rows& rows, int64_t r) {
        const auto of_y = y(r);
        const auto of_dy = dy(r);
        A sums[Sums];
        Rows::each_turn([&](int turn, bool there) {
            if (!there) return;
            typename decltype(y(0))::template Some<4> of_y_some[Rows::lines];
            typename decltype(dy(0))::template Some<4> of_dy_some[Rows::lines];
            Rows::beside(turn, of_y, of_y_some);
            Rows::beside(turn, of_dy, of_dy_some);
            Rows::wait(turn);
            rows.add(turn, [&](int i, int line, A(&t)[Sums][4]) {
                A v[4], g[4];
                rows.open(0, i, of_y, of_y_some[line], v);
                rows.open(1, i, of_dy, of_dy_some[line], g);
#pragma unroll
                for (int sum = 0; sum < Sums; sum++)
#pragma unroll
                    for (int c = 0; c < 4; c++) t[sum][c] = terms(sum, v[c], g[c]);
            });
        });
        rows.total(sums);
        const auto of_row = result(r, sums);
        rows.put(put(r), [&](int i, A(&v)[4]) {
            A g[4];
            rows.again(0, i, v);
            rows.again(1, i, g);
#pragma unroll
            for (int c = 0; c < 4; c++) v[c] = of_row(v[c], g[c]);
        });
    };
    each_filled<Rows, Shape::rows>(grid, one, order, y, dy);
}

template <class A, int Warps, class E, bool Log, class Shape, class Y, class Dy, class Put,
          class Order>
__device__ __forceinline__ void softmax_bwd_filled(const Grid& grid, Y y, Dy dy, Put put,
                                                   Order order) {
    two_filled<A, Warps, E, 1, Shape>(
        grid, y, dy, put, order, [](int, A v, A g) { return Log ? g : v * g; },
        [](int64_t, const A(&sums)[1]) {
            const A sum = sums[0];
            return [=](A v, A g) {
                return Log ? scalar::log_softmax_bwd(v, g, sum) : scalar::softmax_bwd(v, g, sum);
            };
        });
}

template <class A, int Warps, class E, bool Center, class Shape, class Y, class Rstd, class Dy,
          class Put, class Order>
__device__ __forceinline__ void normalize_bwd_filled(const Grid& grid, Y y, Rstd rstd, Dy dy,
                                                     Put put, Order order) {
    constexpr int sums = Center ? 2 : 1;
    two_filled<A, Warps, E, sums, Shape>(
        grid, y, dy, put, order, [](int s, A v, A g) { return s == 0 ? g * v : g; },
        [&](int64_t r, const A(&all)[sums]) {
            const A scale = rstd(r), slope = by_count<Shape::n>(all[0]),
                    shift = Center ? by_count<Shape::n>(all[sums - 1]) : A(0);
            return [=](A v, A g) { return scale * ((g - shift) - v * slope); };
        });
}

}  // namespace aicf
