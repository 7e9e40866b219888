// Long rows of 16 bits that the blocks of a cluster hold in registers, while their next ones are
// copied to shared memory, where each thread reads what it has copied itself. Of a part of a row
// that leaves the room for what all rows are made with, which is read once.
#pragma once

#include "copies.cuh"
#include "kept_rows.cuh"

namespace aicf {

/// What each of `Threads` threads keeps for its pieces of all rows: `Room` bytes of each, from
/// `Place` in shared memory on.
template <int Threads, int Pieces, int Room, int Place>
struct BesideRows {
    template <class T>
    __device__ __forceinline__ static void keep(int k, const T& some) {
        typedef PartOf<T> Part;
#pragma unroll
        for (int p = 0; p < Part::count; p++)
            *Part::at(k * Part::count + p) =
                reinterpret_cast<const typename Part::Words*>(&some)[p];
    }
    template <class T>
    __device__ __forceinline__ static T kept(int k) {
        typedef PartOf<T> Part;
        T some;
#pragma unroll
        for (int p = 0; p < Part::count; p++)
            reinterpret_cast<typename Part::Words*>(&some)[p] = *Part::at(k * Part::count + p);
        return some;
    }

  private:
    /// What lies in one place of T, of 16 bytes at most: neighbouring threads' side by side.
    template <class T>
    struct PartOf {
        static constexpr int size = sizeof(T) % 16 == 0  ? 16
                                    : sizeof(T) % 8 == 0 ? 8
                                    : sizeof(T) % 4 == 0 ? 4
                                                         : 2,
                             count = int(sizeof(T)) / size;
        static_assert(Pieces * int(sizeof(T)) <= Room);
        typedef Pack<typename WordOf<size>::type, size == 16 ? 2 : 1> Words;
        __device__ __forceinline__ static Words* at(int part) {
            extern __shared__ __align__(16) char bytes[];
            return reinterpret_cast<Words*>(bytes + Place) + part * Threads + threadIdx.x;
        }
    };
};

/// What the leaves of a row come to, of which each warp of a cluster has told its own.
template <class Op, class Row, int Lanes, class A>
__device__ __forceinline__ A join_told(const A* told) {
    constexpr int own = Row::own, turns = Row::turns, each = 32 / Lanes;  // of a block, of a warp
    return join_leaves_of<Op, Row::leaves>([=](int leaf) {
        const int block = leaf / (own * turns), turn = leaf / own % turns, at = leaf % own;
        return told[(block * own / each + at / each) * (turns * each) + turn * each + at % each];
    });
}

/// A team of `Warps` warps of `Blocks` blocks whose rows are stored as E, of which `Slots` are
/// copied or on their way. Threads keep so many bytes `Beside` them, for all rows.
///
/// Beyond what nn.cuh says, of row = make(r): row.own() is where the elements lie that are copied,
/// which are the row's if it is `direct`; row.beside<V, Together>(i) reads what else makes elements
/// i to i + V - 1, row.with(some, copy) adds those that have come. Elements behind a row's end are
/// -0, which changes no sum and whose square changes none: no one asks for each if it is there.
template <class A, int64_t N, int Lanes, int Warps, int V, class E, int Slots, int Blocks,
          int Beside>
struct CopierOf : HolderOf<A, N, Lanes, Warps / Blocks, false, V, Blocks> {
    typedef HolderOf<A, N, Lanes, Warps / Blocks, false, V, Blocks> Holder;
    typedef typename Holder::Row Row;
    static constexpr bool copies = true;
    static constexpr int threads = 32 * Warps / Blocks, pieces = Row::turns * Row::lines,
                         apart = threads * V, span = pieces * apart;  // of pieces, of slots
    static constexpr int each = 32 / Lanes;                           // leaves of a warp at a time
    typedef RowExchange<Warps / Blocks, Blocks, Row::turns * each> Exchange;
    // In shared memory: what leaves come to; copies, whose lines are memory's (from 816 bytes on
    // layer norm of 4096x50304 took an H200 245 us for 219).
    static constexpr int head = (Exchange::bytes + 127) / 128 * 128, beside = Beside;
    typedef BesideRows<threads, pieces, Beside, head + Slots * span* int(sizeof(E))> Kept;
    static_assert(sizeof(A) == 4 && sizeof(E) == 2 && N % V == 0 && Slots > 1);
    const Exchange exchange;
    uint32_t turn = 0;

    __device__ __forceinline__ explicit CopierOf(A* shared)
        : Holder{shared}, exchange{reinterpret_cast<char*>(shared)} {
        exchange.begin();
        barriers_made<Blocks>();
    }
    /// body(r, true, x) for the team's rows.
    template <int64_t Rows, class Make, class Body>
    __device__ __forceinline__ static void each_copied(const Grid& grid, const Make& make,
                                                       const Body& body) {
        typedef typename RowNumber<(Rows < (1 << 30))>::type Number;
        typedef typename decltype(make(0))::template Some<V> Some;
        constexpr bool direct = decltype(make(0))::direct;
        extern __shared__ __align__(16) char bytes[];
        E* const first = reinterpret_cast<E*>(bytes + head) + V * threadIdx.x;
        constexpr auto rows = Number(Rows);
        const auto step = Number(grid.blocks / Blocks);
        auto r = Number(grid.block / Blocks);
#pragma unroll 1
        for (int slot = 0; slot < Slots; slot++) {
            if constexpr (direct) clear(first + slot * span);
            fill(first + slot * span, make, r + slot * step, rows);
        }
        for (E* slot = first; r < rows; r += step) {
            const auto row = make(r);
            Row x;
            Some some[pieces];
            const auto open = [&](int k) {
                row.with(some[k], slot + k * apart);
                row.open(some[k], x.a[k / Row::lines][k % Row::lines]);
            };
            if constexpr (direct) {
                wait_copies<Slots - 1>();
#pragma unroll
                for (int k = 0; k < pieces; k++) open(k);
            } else {
                if (row.template beside_together<V>())
                    each_piece<Row>(
                        [&](int k, int i) { some[k] = row.template beside<V, true>(i); });
                else
                    each_piece<Row>(
                        [&](int k, int i) { some[k] = row.template beside<V, false>(i); });
                wait_copies<Slots - 1>();
#pragma unroll
                for (int k = 0; k < pieces; k++)
#pragma unroll
                    for (int c = 0; c < V; c++) x.a[k / Row::lines][k % Row::lines][c] = A(-0.0f);
                each_piece<Row>([&](int k, int) { open(k); });
            }
            fill(slot, make, r + Slots * step, rows);
            slot = slot == first + (Slots - 1) * span ? first : slot + span;
            body(r, true, x);
        }
    }
    /// x - mean; behind the row's end 0.
    __device__ __forceinline__ static Row off(Row x, A mean) {
#pragma unroll
        for (int k = 0; k < pieces; k++) {
            A(&piece)[V] = x.a[k / Row::lines][k % Row::lines];
            const A own = Row::has(Row::first(k / Row::lines, k % Row::lines)) ? mean : A(-0.0f);
#pragma unroll
            for (int c = 0; c < V; c++) piece[c] = piece[c] - own;
        }
        return x;
    }
    /// Every thread of the team gets the sum.
    template <class Op>
    __device__ __forceinline__ A reduce(const Row& row) {
        static_assert(same_type<Op, SumOf<A>>);
        A v[Row::turns];
        row.template leaf_results<Op, true>(v);
#pragma unroll
        for (int t = 0; t < Row::turns; t++)
            if (threadIdx.x % Lanes == 0)
                exchange.own(turn)[t * each + threadIdx.x % 32 / Lanes] = v[t];
        exchange.tell(turn);
        return join_told<Op, Row, Lanes>(exchange.told(turn++));
    }

  private:
    /// What lies behind the row's end in a slot, where nothing is copied to.
    __device__ __forceinline__ static void clear(E* slot) {
        if (Row::whole) return;
        for (int k = 0; k < pieces; k++)
            if (!Row::has(Row::first(k / Row::lines, k % Row::lines)))
                for (int j = 0; j < V; j++) slot[k * apart + j].bits = 0x8000;
    }
    /// Asks for a row where its team is done with another; is called for each, there or not.
    template <class Make, class Number>
    __device__ __forceinline__ static void fill(E* slot, const Make& make, Number r, Number rows) {
        constexpr bool lasting = decltype(make(r))::lasting;
        if (r < rows) {
            const E* const x = make(r).own();
            if (aligned_for<V>(x))
                each_piece<Row>(
                    [&](int k, int i) { copy_async<2 * V, lasting>(slot + k * apart, x + i); });
            else
#pragma unroll 2  // more would take registers that others need
                for (int j = 0; j < V; j++)
                    each_piece<Row>([&](int k, int i) { slot[k * apart + j] = x[i + j]; });
        }
        commit_copies();
    }
};

}  // namespace aicf
