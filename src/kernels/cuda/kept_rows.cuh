// Long rows in 16 bits that a block's registers hold as they are stored, or those of a cluster's
// blocks, while their exponentials lie in shared memory: a row is read once, an exponential made
// once. A block goes on to its next row, which comes in the place of what it is done with. N is a
// multiple of 4; neighbours lie side by side in what is read and written.
#pragma once

#include "losses.cuh"
#include "row_clusters.cuh"

namespace aicf {

/// body(i, line) for the fours of a row of N that are a thread's in a turn: leaves go round the
/// warps of all its blocks.
template <int Warps, int N, int Blocks = 1, class Body>
__device__ __forceinline__ void each_line(int turn, const Body& body) {
    constexpr int span = Blocks * Warps * int(kTreeLeaf);
    const int warp = RowExchange<Warps, Blocks, 1>::warp(),
              first = turn * span + warp * int(kTreeLeaf) + 4 * int(threadIdx.x & 31);
#pragma unroll
    for (int line = 0; line < 4; line++) {
        const int i = first + line * int(kTreeLanes);
        if ((turn + 1) * span <= N || i < N) body(i, line);
    }
}
/// body(i, turn, line) for those of all turns.
template <int Warps, int N, int Blocks, class Body>
__device__ __forceinline__ void each_four(const Body& body) {
    constexpr int span = Blocks * Warps * int(kTreeLeaf);
#pragma unroll
    for (int turn = 0; turn < (N + span - 1) / span; turn++)
        each_line<Warps, N, Blocks>(turn, [&](int i, int line) { body(i, turn, line); });
}

/// What `Count` leaves come to, 128 at most, of(leaf) each, joined by each warp.
template <class Op, int Count, class Of>
__device__ __forceinline__ auto join_leaves_of(const Of& of) {
    static_assert(Count <= 128);
    const int lane = threadIdx.x & 31;
    decltype(of(0)) part[4];
#pragma unroll
    for (int c = 0; c < 4; c++) part[c] = 4 * lane + c < Count ? of(4 * lane + c) : Op::missing();
    auto all = Op::join(Op::join(part[0], part[1]), Op::join(part[2], part[3]));
#pragma unroll
    for (int d = 1; d < 32; d *= 2) all = Op::join(all, __shfl_xor_sync(0xffffffffu, all, d));
    return all;
}

template <class Op, int Count, class A>
__device__ __forceinline__ A join_leaves(const A* of_leaf) {
    return join_leaves_of<Op, Count>([=](int leaf) { return of_leaf[leaf]; });
}

/// So that what was made of x is made again.
template <class T>
__device__ __forceinline__ void keep_stored(T& x) {
    static_assert(sizeof(T) == 8);
#ifdef __CUDACC_RTC__
    asm volatile("" : "+l"(reinterpret_cast<uint64_t&>(x)));
#endif
}

/// Warps of each of `Blocks` blocks that keep a row. `Narrow`: what is stored is bfloat16.
template <int Warps, int Blocks, bool Narrow>
struct KeptTeam {
    static constexpr int warps = Warps, blocks = Blocks;
    static constexpr bool narrow = Narrow;
};

/// What a block keeps of a row of N whose fours are stored as `Four`.
template <class A, class Team, int N, class Four, class Exps>
struct KeptRows {
    static constexpr int Warps = Team::warps, Blocks = Team::blocks;
    static constexpr int leaves = (N + int(kTreeLeaf) - 1) / int(kTreeLeaf),
                         turns = (leaves + Warps * Blocks - 1) / (Warps * Blocks), lines = 4;
    static constexpr int each_turn = Warps * Blocks,  // leaves
        last = leaves - (turns - 1) * each_turn,      // of the last turn
        room = ((turns - 1) * Warps + (last < Warps ? last : Warps)) * int(kTreeLeaf),
                         told = (turns + 2) / 2 * 2;  // a leaf's sum of each turn, and the ticket
    static_assert(N % 4 == 0 && leaves <= 128 && each_turn <= 32 && sizeof(A) == 4);
    A* const exps;  // of which each thread touches its own alone
    const RowExchange<Warps, Blocks, told> sums;
    const RowExchange<Warps, Blocks, 1> largest;
    Four x[turns][lines];
    uint32_t number = 0;  // of the row
    uint32_t ticket = 0;  // of the row after the next, by a counter
    uint32_t low = 0;     // the turns of which some of this thread's exponentials are not near

    __device__ __forceinline__ explicit KeptRows(char* shared)
        : exps(reinterpret_cast<A*>(shared)),
          sums{shared + 4 * room},
          largest{sums.room + sums.bytes} {
        sums.begin();
        largest.begin();
        barriers_made<Blocks>();
    }
    template <class Body>
    __device__ __forceinline__ static void each(const Body& body) {
        each_four<Warps, N, Blocks>(body);
    }
    template <class Body>
    __device__ __forceinline__ static void each_of(int turn, const Body& body) {
        each_line<Warps, N, Blocks>(turn, body);
    }
    /// Of the warp in all blocks.
    __device__ __forceinline__ static int warp() { return decltype(largest)::warp(); }
    __device__ __forceinline__ static bool leads() { return decltype(largest)::leads(); }
    /// Where exponential i of the row lies, which this block has in a turn.
    __device__ __forceinline__ A* at(int i, int turn) const {
        return exps +
               (i - (turn * (Blocks - 1) + decltype(largest)::rank()) * Warps * int(kTreeLeaf));
    }
    __device__ __forceinline__ static Two<Brain> two(const Four& four, int k) {
        return {reinterpret_cast<const uint32_t*>(&four)[k]};
    }

    template <class Row>
    __device__ __forceinline__ void load(const Row& row) {
        if (row.template together<4>()) {
            each([&](int i, int turn, int line) {
                x[turn][line] = row.template across<4, true>(i);
            });
            return;
        }
#pragma unroll
        for (int turn = 0; turn < turns; turn++) {
            each_of(turn,
                    [&](int i, int line) { x[turn][line] = row.template across<4, false>(i); });
            __syncwarp();  // or all elements would have registers of their own
        }
    }
    /// Tells the largest element of the warp's, of this row or of the next.
    template <class Row>
    __device__ __forceinline__ void tell_largest(const Row& row, uint32_t of) {
        A most = MaxOf<A>::missing();
        if constexpr (Team::narrow) {
            Two<Brain> all = {0xff80ff80u};
            each([&](int, int turn, int line) {
                all =
                    aicf::largest(all, aicf::largest(two(x[turn][line], 0), two(x[turn][line], 1)));
            });
            most = MaxOf<A>::join(scalar::from_bits(all.word << 16),
                                  scalar::from_bits(all.word & 0xffff0000u));
        } else {
            each([&](int, int turn, int line) {
                A v[4];
                row.template open<4>(x[turn][line], v);
#pragma unroll
                for (int c = 0; c < 4; c++) most = MaxOf<A>::join(most, v[c]);
            });
        }
        most = of_warp<MaxOf<A>>(most);
        if (threadIdx.x % 32 == 0) *largest.own(of) = most;
        largest.tell(of);
    }
    __device__ __forceinline__ A most() const {
        const int lane = threadIdx.x & 31;
        const A* const all = largest.told(number);
        return of_warp<MaxOf<A>>(lane < each_turn ? all[lane] : MaxOf<A>::missing());
    }
    /// Makes exponentials, which are kept, and tells their sums; the next row is asked for if it is
    /// `here`.
    template <class Row>
    __device__ __forceinline__ void tell_sums(const Row& row, A most, const Row& next, bool here) {
        // Or they might stay widened from the first pass to the second.
        each([&](int, int turn, int line) { keep_stored(x[turn][line]); });
        low = 0;
#pragma unroll
        for (int turn = 0; turn < turns; turn++) {
            const A sum = turn_sum(row, turn, most, next, here);
            if (threadIdx.x % 32 == 0) sums.own(number)[turn] = sum;
            __syncwarp();  // so that what comes next is asked for now, not behind the last turn
        }
        if (leads()) sums.own(number)[turns] = scalar::from_bits(ticket);
        sums.tell(number);
    }
    __device__ __forceinline__ A sum(A most) const {
        const A* const all = sums.told(number);
        return scalar::row_sum(most, join_leaves_of<SumOf<A>, leaves>([&](int leaf) {
                                   return all[leaf % each_turn * told + leaf / each_turn];
                               }));
    }
    /// The ticket, once the sum is known: the first of all warps, which leads, has told it.
    __device__ __forceinline__ uint32_t told_ticket() const {
        return scalar::bits(sums.all(number)[turns]);
    }

  private:
    template <class Op>
    __device__ __forceinline__ static A of_warp(A v) {
#pragma unroll
        for (int d = 16; d > 0; d /= 2) v = Op::join(v, __shfl_xor_sync(0xffffffffu, v, d));
        return v;
    }
    /// Those of a leaf. A thread looks first if all of its are near.
    template <class Row>
    __device__ __forceinline__ A turn_sum(const Row& row, int turn, A most, const Row& next,
                                          bool here) {
        A v[lines][4] = {}, s[4];
        uint32_t furthest = 0;
        Two<Brain> all = {0x7f807f80u};
        each_of(turn, [&](int i, int line) {
            row.template open<4>(x[turn][line], v[line]);
            if constexpr (Team::narrow)
                all = smallest(all, smallest(two(x[turn][line], 0), two(x[turn][line], 1)));
            if (here) x[turn][line] = next.template across<4, true>(i);
            if constexpr (!Team::narrow) {
#pragma unroll
                for (int c = 0; c < 4; c++) {
                    const uint32_t u = below(v[line][c], most);
                    furthest = u > furthest ? u : furthest;
                }
            }
        });
        if constexpr (Team::narrow) {
            const A a = scalar::from_bits(all.word << 16),
                    b = scalar::from_bits(all.word & 0xffff0000u);
            furthest = below(a < b ? a : b, most);
        }
        if (is_near<Exps>(furthest, most)) {
            const auto exps = Exps::of(most);
            each_of(turn, [&](int, int line) {
#pragma unroll
                for (int c = 0; c < 4; c++) v[line][c] = exps.near(v[line][c]);
            });
        } else {
            low |= 1u << turn;
            each_of(turn, [&](int, int line) {
#pragma unroll
                for (int c = 0; c < 4; c++) v[line][c] = exp_below<Exps>(v[line][c], most);
            });
        }
#pragma unroll
        for (int c = 0; c < 4; c++) s[c] = SumOf<A>::missing();
        each_of(turn, [&](int i, int line) { keep(i, turn, line, v[line], s); });
        return join_lanes<SumOf<A>, 32>(s);
    }
    __device__ __forceinline__ void keep(int i, int turn, int line, const A (&v)[4],
                                         A (&s)[4]) const {
        *reinterpret_cast<Pack<A, 4>*>(at(i, turn)) = {v[0], v[1], v[2], v[3]};
#pragma unroll
        for (int c = 0; c < 4; c++) s[c] = line == 0 ? v[c] : SumOf<A>::join(s[c], v[c]);
    }
};

/// Those of Shape that make(r) stands for.
template <class A, class Team, class Shape, class Make>
struct KeptOf {
    typedef decltype(static_cast<Make*>(nullptr)->operator()(0)) Row;
    typedef KeptRows<A, Team, int(Shape::n), typename Row::template Some<4>, typename Shape::Exps>
        Rows;
};
/// begin(r, row, number), and, once what it is to the row is known, end(kept, r, most, sum, begun)
/// for the rows of a cluster. By a counter it begins with two rows of its own, and with each it
/// asks for the one after the next, so that the counter is asked once for each row. The largest
/// element of the next row is told while the sums of this one are on their way.
template <class A, class Team, bool Masked, class Shape, class Make, class Begin, class End,
          class Order>
__device__ __forceinline__ uint32_t each_kept(const Grid& grid, const Make& make,
                                              const Begin& begin, const End& end,
                                              const Order& order) {
    typedef typename RowNumber<(Shape::rows < (1 << 30))>::type Number;
    extern __shared__ __align__(16) char bytes[];
    typename KeptOf<A, Team, Shape, Make>::Rows kept(bytes);
    constexpr auto rows = Number(Shape::rows);
    const auto step = Number(grid.blocks / Team::blocks);
    bool here = false;  // the row is on its way
    auto r = Number(grid.block / Team::blocks);
    for (Number after = r + step; r < rows; kept.number++) {
        const auto row = make(r);
        if (!here) {
            kept.load(row);
            kept.tell_largest(row, kept.number);
        }
        const auto next = make(after < rows ? after : r);
        here = after < rows && next.template together<4>();
        if constexpr (Order::counts)
            if (kept.leads()) kept.ticket = atomicAdd(order.counter, 1u);
        const auto begun = begin(r, row, kept.number);
        A most = kept.most();
        if constexpr (Masked) most = scalar::masked_most(most);
        kept.tell_sums(row, most, next, here);
        if (here) kept.tell_largest(next, kept.number + 1);
        A sum = kept.sum(most);
        if constexpr (Masked) sum = scalar::masked_sum(sum);
        end(kept, r, most, sum, begun);
        if constexpr (Order::counts)
            if (kept.leads() && kept.ticket == uint32_t(rows) - 1) clear_counter(order.counter);
        r = after;
        after = Order::counts ? 2 * step + Number(kept.told_ticket()) : after + step;
    }
    return kept.number;
}

template <bool Together, class Kept, class Out, class A>
__device__ __forceinline__ void put_shares(const Kept& kept, const Out& out, A share) {
    Kept::each([&](int i, int turn, int) {
        const Pack<A, 4> exp = *reinterpret_cast<const Pack<A, 4>*>(kept.at(i, turn));
        A v[4];
#pragma unroll
        for (int c = 0; c < 4; c++) v[c] = exp.at[c] * share;
        out.template across<4, Together>(i, v);
    });
}

/// cross_entropy_with_grad of such rows.
template <class A, class Team, class Shape, class Make, class Labels, class Loss, class Most,
          class Sum, class Put, class Order>
__device__ __forceinline__ void cross_entropy_kept(const Grid& grid, Make make, Labels labels,
                                                   Loss loss, Most set_most, Sum set_sum, Put put,
                                                   A scale, Order order) {
    typedef KeptOf<A, Team, Shape, Make> Of;
    typedef typename Of::Row Row;
    // What the first warp's lanes make losses of, together: of registers there are few.
    struct OwnLoss {
        LossParts<A> parts;
        A of_label;
        uint32_t row;
    };
    __shared__ OwnLoss losses[32];
    OwnLoss& own = losses[threadIdx.x % 32];
    const auto makes = [](uint32_t number) {
        return Of::Rows::warp() == 0 && threadIdx.x % 32 == number % 32;
    };
    const auto store = [&](uint32_t count) {
        if (Of::Rows::warp() == 0 && threadIdx.x % 32 < count)
            store_loss<A, typename Shape::Exps>(own.parts, own.row, own.of_label, loss, set_most,
                                                set_sum);
    };
    const auto begin = [&](int64_t r, const Row&, uint32_t number) {
        const int64_t named = labels(r);
        const int label = named >= 0 && named < Shape::n ? int(named) : -1;
        // Read before its gradient takes its place.
        if (makes(number)) own.of_label = element_of_label<A, Shape>(make, r, label);
        return label;
    };
    const auto end = [&](typename Of::Rows& kept, int64_t r, A most, A sum, int label) {
        const auto out = put(r);
        constexpr int warps = Team::warps * Team::blocks;
        if (const int leaf = label / int(kTreeLeaf);
            label >= 0 && leaf % warps == kept.warp() &&
            label % int(kTreeLanes) / 4 == int(threadIdx.x & 31))
            *kept.at(label, leaf / warps) -= sum;
        const A share = scalar::div(scale, sum), zeros[4] = {};
        if (label < 0)
            kept.each([&](int i, int, int) { out.template across<4, false>(i, zeros); });
        else if (out.template together<4>())
            put_shares<true>(kept, out, share);
        else
            put_shares<false>(kept, out, share);
        if (makes(kept.number)) {
            own.parts = {most, sum};
            own.row = uint32_t(r);
        }
        if (kept.number % 32 == 31) store(32);
    };
    store(each_kept<A, Team, false, Shape>(grid, make, begin, end, order) % 32);
}

/// Near: what kept.low says of the turn.
template <bool Together, bool Near, class Team, class Kept, class Out, class A>
__device__ __forceinline__ void put_turn(const Kept& kept, int turn, const Out& out, A sum,
                                         A inverse, A rest) {
    Kept::each_of(turn, [&](int i, int) {
        const Pack<A, 4> exp = *reinterpret_cast<const Pack<A, 4>*>(kept.at(i, turn));
        A v[4];
        if constexpr (Near) {
#pragma unroll
            for (int c = 0; c < 4; c++)
                v[c] = Team::narrow ? share_brain(exp.at[c], inverse, rest)
                                    : share_near(exp.at[c], inverse, sum);
        } else {
#pragma unroll
            for (int c = 0; c < 4; c++) v[c] = scalar::div(exp.at[c], sum);
        }
        out.template across<4, Together>(i, v);
    });
}
template <bool Together, class Team, class Kept, class Out, class A>
__device__ __forceinline__ void put_quotients(const Kept& kept, const Out& out, A sum) {
    const A inverse = scalar::reciprocal(sum), rest = scalar::fma(-sum, inverse, A(1)) * inverse;
#pragma unroll
    for (int turn = 0; turn < Kept::turns; turn++)
        if (!(kept.low >> turn & 1))
            put_turn<Together, true, Team>(kept, turn, out, sum, inverse, rest);
        else
            put_turn<Together, false, Team>(kept, turn, out, sum, inverse, rest);
}

/// softmax_rows of such rows.
template <class A, class Team, bool Masked, class Shape, class Make, class Put, class Order>
__device__ __forceinline__ void softmax_kept(const Grid& grid, Make make, Put put, Order order) {
    typedef KeptOf<A, Team, Shape, Make> Of;
    typedef typename Of::Row Row;
    const auto begin = [](int64_t, const Row&, uint32_t) { return 0; };
    const auto end = [&](typename Of::Rows& kept, int64_t r, A, A sum, int) {
        const auto out = put(r);
        if (out.template together<4>())
            put_quotients<true, Team>(kept, out, sum);
        else
            put_quotients<false, Team>(kept, out, sum);
    };
    each_kept<A, Team, Masked, Shape>(grid, make, begin, end, order);
}

}  // namespace aicf
