// Long rows of 16 bits that the blocks of a cluster hold in registers, while their next ones are
// copied to shared memory, where each thread reads what it has copied itself. Of a part of a row
// that leaves the room for what all rows are made with, which is read once.
#pragma once

#include "copies.cuh"
#include "kept_rows.cuh"

namespace aicf {

/// A team of `Warps` warps of `Blocks` blocks whose rows are stored as E, of which `Slots` are
/// copied or on their way. Threads keep so many bytes `Beside` them, for all rows.
///
/// Beyond what nn.cuh says, of row = make(r): row.own() is where the elements lie that are copied;
/// row.beside<V, Together>(i) reads what else makes elements i to i + V - 1, row.with(some, copy)
/// adds those that have come.
template <class A, int64_t N, int Lanes, int Warps, int V, class E, int Slots, int Blocks,
          int Beside>
struct CopierOf : HolderOf<A, N, Lanes, Warps / Blocks, false, V, Blocks> {
    typedef HolderOf<A, N, Lanes, Warps / Blocks, false, V, Blocks> Holder;
    typedef typename Holder::Row Row;
    static constexpr bool copies = true;
    static constexpr int threads = 32 * Warps / Blocks, pieces = Row::turns * Row::lines,
                         apart = threads * V, span = pieces * apart;  // of pieces, of slots
    // In shared memory: what leaves come to, of two reductions in turn; barriers; copies.
    static constexpr int places = Row::turns * Row::together;
    static constexpr int head = 2 * places * int(sizeof(A)) + RowCluster<Blocks>::bytes;
    static constexpr int beside = Beside;
    static_assert(sizeof(A) == 4 && sizeof(E) == 2 && N % V == 0 && Slots > 1);
    RowCluster<Blocks> cluster;

    __device__ __forceinline__ explicit CopierOf(A* shared)
        : Holder{shared}, cluster(shared + 2 * places) {}
    /// body(r, true, x) for the team's rows.
    template <int64_t Rows, class Make, class Body>
    __device__ __forceinline__ static void each_copied(const Grid& grid, const Make& make,
                                                       const Body& body) {
        typedef typename RowNumber<(Rows < (1 << 30))>::type Number;
        typedef typename decltype(make(0))::template Some<V> Some;
        extern __shared__ __align__(16) char bytes[];
        E* const first = reinterpret_cast<E*>(bytes + head) + V * threadIdx.x;
        constexpr auto rows = Number(Rows);
        const auto step = Number(grid.blocks / Blocks);
        auto r = Number(grid.block / Blocks);
#pragma unroll 1
        for (int slot = 0; slot < Slots; slot++)
            fill(first + slot * span, make, r + slot * step, rows);
        for (E* slot = first; r < rows; r += step) {
            const auto row = make(r);
            Row x = {};
            Some some[pieces];
            if (row.template beside_together<V>())
                each_piece<Row>([&](int k, int i) { some[k] = row.template beside<V, true>(i); });
            else
                each_piece<Row>([&](int k, int i) { some[k] = row.template beside<V, false>(i); });
            wait_copies<Slots - 1>();
            each_piece<Row>([&](int k, int) {
                row.with(some[k], slot + k * apart);
                row.open(some[k], x.a[k / Row::lines][k % Row::lines]);
            });
            fill(slot, make, r + Slots * step, rows);
            slot = slot == first + (Slots - 1) * span ? first : slot + span;
            body(r, true, x);
        }
    }
    /// What a thread keeps for its pieces.
    template <class T>
    __device__ __forceinline__ static void keep(int k, const T& some) {
        typedef PartOf<T> Part;
#pragma unroll
        for (int p = 0; p < Part::count; p++)
            *Part::at(beside_rows(), k * Part::count + p) =
                reinterpret_cast<const typename Part::Words*>(&some)[p];
    }
    template <class T>
    __device__ __forceinline__ static T kept(int k) {
        typedef PartOf<T> Part;
        T some;
#pragma unroll
        for (int p = 0; p < Part::count; p++)
            reinterpret_cast<typename Part::Words*>(&some)[p] =
                *Part::at(beside_rows(), k * Part::count + p);
        return some;
    }
    /// Every thread of the team gets the result.
    template <class Op>
    __device__ __forceinline__ A reduce(const Row& row) {
        A v[Row::turns];
        row.template leaf_results<Op>(v);
        A* const all = this->shared + cluster.side() * places;
#pragma unroll
        for (int turn = 0; turn < Row::turns; turn++)
            if (threadIdx.x % Lanes == 0) all[Row::leaf_of(turn)] = v[turn];
        cluster.template tell<1, places / Blocks>(all);
        return join_leaves<Op, Row::leaves>(all);
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
        static_assert(pieces * int(sizeof(T)) <= Beside);
        typedef Pack<typename WordOf<size>::type, size == 16 ? 2 : 1> Words;
        __device__ __forceinline__ static Words* at(char* room, int part) {
            return reinterpret_cast<Words*>(room) + part * threads + threadIdx.x;
        }
    };
    __device__ __forceinline__ static char* beside_rows() {
        extern __shared__ __align__(16) char bytes[];
        return bytes + head + Slots * span * int(sizeof(E));
    }
    /// Asks for a row where its team is done with another; is called for each, there or not.
    template <class Make, class Number>
    __device__ __forceinline__ static void fill(E* slot, const Make& make, Number r, Number rows) {
        if (r < rows) {
            const E* const x = make(r).own();
            if (aligned_for<V>(x))
                each_piece<Row>([&](int k, int i) {
                    copy_async<2 * V, decltype(make(r))::lasting>(slot + k * apart, x + i);
                });
            else
#pragma unroll 2  // more would take registers that others need
                for (int j = 0; j < V; j++)
                    each_piece<Row>([&](int k, int i) { slot[k * apart + j] = x[i + j]; });
        }
        commit_copies();
    }
};

}  // namespace aicf
