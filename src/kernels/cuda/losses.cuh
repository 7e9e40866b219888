// Cross entropy of rows, with its gradient or either alone, and the mean of losses.
#pragma once

#include "nn.cuh"

namespace aicf {

/// What the loss of a row is made of.
template <class A>
struct LossParts {
    A most, sum;
};
template <class A, class Shape, class Team, class Row>
__device__ __forceinline__ LossParts<A> loss_parts(Team& team, const Row& x) {
    const A most = most_of<A, Shape::narrow>(team, x);
    bool near = false;
    typedef typename Shape::Exps Exps;
    return {most, sum_where(team, exps_of<looks<A, Team, Shape>, Exps>(team, x, most, near), most)};
}
/// The element of a row that its label names, or NaN.
template <class A, class Shape, class Make>
__device__ __forceinline__ A element_of_label(const Make& make, int64_t r, int64_t label) {
    return label >= 0 && label < Shape::n ? make(r)(label)
                                          : static_cast<A>(scalar::from_bits(0x7fc00000u));
}
template <class A, class Exps, class Loss, class Most, class Sum>
__device__ __forceinline__ void store_loss(const LossParts<A>& parts, int64_t r, A of_label,
                                           const Loss& loss, const Most& set_most,
                                           const Sum& set_sum) {
    loss(r, Exps::loss(of_label, parts.most, parts.sum));
    set_most(r, parts.most);
    set_sum(r, parts.sum);
}
/// Losses that lanes make together, each that of one row; element(r) is the one that the label of
/// row r names.
template <class A, class Shape, class Element, class Loss, class Most, class Sum>
struct LaneLosses {
    typedef typename RowNumber<(Shape::rows < (1 << 30))>::type Number;
    const Element& element;
    const Loss& loss;
    const Most& set_most;
    const Sum& set_sum;
    int turn = 0;     // the lane that takes the next row
    Number row = -1;  // this lane's, or none
    LossParts<A> parts = {A(0), A(0)};

    __device__ __forceinline__ LaneLosses(const Element& element, const Loss& loss,
                                          const Most& set_most, const Sum& set_sum)
        : element(element), loss(loss), set_most(set_most), set_sum(set_sum) {}
    __device__ __forceinline__ void take(int64_t r, const LossParts<A>& of) {
        row = Number(r);
        parts = of;
    }
    /// Goes on to the next of so many lanes.
    __device__ __forceinline__ void next(int lanes) {
        if (++turn == lanes) store();
    }
    __device__ __forceinline__ void store() {
        if (row >= 0)
            store_loss<A, typename Shape::Exps>(parts, row, element(row), loss, set_most, set_sum);
        row = -1;
        turn = 0;
    }
};
/// The lanes of a team, among so many threads, that make its losses together; 0: its first thread
/// makes each of them.
template <class Team, int Threads>
struct LossLanes {
    static constexpr int count = Team::count(Threads) == 1 ? 32 : Threads / Team::count(Threads);
    __device__ __forceinline__ static int own() {
        return Team::count(Threads) == 1 ? threadIdx.x : threadIdx.x % count;
    }
};
template <class Team>
struct LossLanes<Team, 0> {
    static constexpr int count = 1;
    __device__ __forceinline__ static int own() { return Team::leads() ? 0 : 1; }
};
/// The threads among which a team's lanes make losses together, or 0: lanes of a warp that has
/// several rows have no register to keep what a loss is made of.
template <class Team, int Threads>
__device__ __forceinline__ constexpr int loss_threads() {
    if constexpr (Threads > 0)
        return LossLanes<Team, Threads>::count == 32 ? Threads : 0;
    else
        return 0;
}
/// `put`: of the logits, where they are made here and stored. Of rows that are read ahead the
/// losses wait until each lane of the team has one to make.
template <class A, class Team, int Ahead, class Shape, class Make, class Labels, class Loss,
          class Most, class Sum, class Put>
__device__ __forceinline__ void cross_entropy_rows(const Grid& grid, Make make, Labels labels,
                                                   Loss loss, Most set_most, Sum set_sum, Put put) {
    extern __shared__ __align__(16) char bytes[];
    Team team{reinterpret_cast<A*>(bytes)};
    if constexpr (Ahead > 0) {
        typedef LossLanes<Team, Ahead> Lanes;
        const auto element = [&](int64_t r) {
            return element_of_label<A, Shape>(make, r, labels(r));
        };
        LaneLosses<A, Shape, decltype(element), Loss, Most, Sum> losses(element, loss, set_most,
                                                                        set_sum);
        each_ahead<Team, Shape::rows, Ahead>(
            grid, make, [&](int64_t r, bool mine, const typename Team::Row& x) {
                const LossParts<A> parts = loss_parts<A, Shape>(team, x);
                if (mine && Lanes::own() == losses.turn) losses.take(r, parts);
                losses.next(Lanes::count);
            });
        losses.store();
    } else {
        Team::template each<Shape::rows>(grid, [&](int64_t r, bool mine) {
            const auto x = team.take(make(r));
            const LossParts<A> parts = loss_parts<A, Shape>(team, x);
            if (mine && team.leads())
                store_loss<A, typename Shape::Exps>(parts, r,
                                                    element_of_label<A, Shape>(make, r, labels(r)),
                                                    loss, set_most, set_sum);
            if constexpr (Put::stores) {
                Team::sync();  // the label's element is read before logits take its place
                if (mine) team.put(team.map(x, [](A) { return A(0); }), put(r));
            }
        });
    }
}

/// What becomes of the elements of a row of logits: its part of the gradient.
template <class A, class Shape, bool Looks, class Out>
struct GradientRow {
    static constexpr bool spans = false;
    static constexpr int64_t N = Shape::n;
    typedef typename Shape::Exps Exps;
    typedef typename RowNumber<(N < (1 << 30))>::type Number;
    Out out;
    A most, sum, share;
    Number label;  // or -1
    __device__ __forceinline__ GradientRow(const Out& out, A most, A sum, A share, int64_t label)
        : out(out),
          most(most),
          sum(sum),
          share(share),
          label(label >= 0 && label < N ? Number(label) : Number(-1)) {}
    __device__ __forceinline__ A of(int64_t i, A v) const {
        const A exp = exp_below<Exps>(v, most);
        const A grad = (exp - (Number(i) == label ? sum : A(0))) * share;
        return label >= 0 ? grad : A(0);
    }
    template <int V>
    __device__ __forceinline__ void some(int64_t i, const A (&v)[V]) const {
        A grad[V];
        const Number at = label - Number(i);  // a bit of the label's own
        const uint32_t own = at >= 0 && at < V ? 1u << int(at) : 0u;
        if (label >= 0) {  // or a choice for each element
#pragma unroll
            for (int j = 0; j < V; j++) grad[j] = Looks ? v[j] : exp_below<Exps>(v[j], most);
            if constexpr (Looks) ExpsBelow<Exps, A>{most}(grad);
#pragma unroll
            for (int j = 0; j < V; j++) {
                if (own >> j & 1) grad[j] -= sum;
                grad[j] *= share;
            }
        } else {
#pragma unroll
            for (int j = 0; j < V; j++) grad[j] = A(0);
        }
        out.some(i, grad);
    }
    __device__ __forceinline__ void operator()(int64_t i, A v) const { out(i, of(i, v)); }
};

/// What becomes of the exponentials of a row's logits: its part of the gradient.
template <class A, int64_t N, class Out>
struct ShareRow {
    static constexpr bool spans = Out::spans;
    typedef typename RowNumber<(N < (1 << 30))>::type Number;
    Out out;
    A sum, share;
    Number label;  // or -1
    template <int V>
    __device__ __forceinline__ void shares(int64_t i, const A (&exps)[V], A (&grad)[V]) const {
        const Number at = label - Number(i);  // a bit of the label's own
        const uint32_t own = at >= 0 && at < V ? 1u << int(at) : 0u;
        if (label >= 0) {  // or a choice for each element
#pragma unroll
            for (int j = 0; j < V; j++) {
                grad[j] = exps[j];
                if (own >> j & 1) grad[j] -= sum;
                grad[j] *= share;
            }
        } else {
#pragma unroll
            for (int j = 0; j < V; j++) grad[j] = A(0);
        }
    }
    template <int V>
    __device__ __forceinline__ bool together() const {
        return out.template together<V>();
    }
    template <int V, bool Together>
    __device__ __forceinline__ void across(int64_t i, const A (&exps)[V]) const {
        A grad[V];
        shares(i, exps, grad);
        out.template across<V, Together>(i, grad);
    }
    template <int V>
    __device__ __forceinline__ void some(int64_t i, const A (&exps)[V]) const {
        A grad[V];
        shares(i, exps, grad);
        out.some(i, grad);
    }
    __device__ __forceinline__ void operator()(int64_t i, A exp) const {
        const A exps[1] = {exp};
        some(i, exps);
    }
};

/// Cross entropy and its gradient, which `put` takes and which may lie where the logits do.
template <class A, class Team, int Ahead, class Shape, class Make, class Labels, class Loss,
          class Most, class Sum, class Put>
__device__ __forceinline__ void cross_entropy_with_grad(const Grid& grid, Make make, Labels labels,
                                                        Loss loss, Most set_most, Sum set_sum,
                                                        Put put, A scale) {
    extern __shared__ __align__(16) char bytes[];
    Team team{reinterpret_cast<A*>(bytes)};
    typedef decltype(team.take(make(0))) Row;
    typedef LossLanes<Team, loss_threads<Team, Ahead>()> Lanes;
    A of_label = A(0);
    const auto element = [&](int64_t) { return of_label; };
    LaneLosses<A, Shape, decltype(element), Loss, Most, Sum> losses(element, loss, set_most,
                                                                    set_sum);
    const auto one = [&](int64_t r, bool mine, const Row& x) {
        const auto out = put(r);  // and what it reads of the row
        constexpr bool Looks = looks<A, Team, Shape>;
        const A most = most_of<A, Shape::narrow>(team, x);
        bool near = false;
        const auto exps = exps_of<Looks, typename Shape::Exps>(team, x, most, near);
        const A sum = sum_where(team, exps, most);
        const int64_t label = labels(r);
        if (mine && Lanes::own() == losses.turn) {
            of_label = element_of_label<A, Shape>(make, r, label);
            losses.take(r, {most, sum});
        }
        Team::sync();  // the element is read before its gradient takes its place
        const A share = scalar::div(scale, sum);
        if constexpr (Team::holds) {
            typedef ShareRow<A, Shape::n, decltype(put(r))> Shares;
            const bool known = label >= 0 && label < Shape::n;
            if (mine)
                team.put(exps,
                         Shares{out, sum, share, typename Shares::Number(known ? label : -1)});
        } else if (mine) {
            team.put(x,
                     GradientRow<A, Shape, Looks, decltype(put(r))>(out, most, sum, share, label));
        }
        losses.next(Lanes::count);
    };
    if constexpr (Ahead > 0) {
        each_ahead<Team, Shape::rows, Ahead>(grid, make, one);
        losses.store();
    } else {
        Team::template each<Shape::rows>(
            grid, [&](int64_t r, bool mine) { one(r, mine, team.take(make(r))); });
    }
}

/// Short rows, by the teams that hold them.
template <class A, class Team, class Shape, class Make, class Labels, class Most, class Sum,
          class Put>
__device__ __forceinline__ void cross_entropy_grad_rows(const Grid& grid, Make make, Labels labels,
                                                        Most most, Sum sum, Put put, A scale) {
    Team::template each<Shape::rows>(grid, [&](int64_t r, bool mine) {
        const auto x = Team::take(make(r));
        const A total = A(sum(r));
        const auto out = put(r);
        if (mine)
            Team::put(x, GradientRow<A, Shape, looks<A, Team, Shape>, decltype(put(r))>(
                             out, A(most(r)), total, scalar::div(scale, total), labels(r)));
    });
}

/// A warp takes `Lot` times four elements a lane of one row, whose share is divided out once.
template <class A, int Lot, class Shape, class Make, class Labels, class Most, class Sum, class Put>
__device__ __forceinline__ void cross_entropy_grad(const Grid& grid, Make make, Labels labels,
                                                   Most most, Sum sum, Put put, A scale) {
    constexpr int64_t n = Shape::n, span = 128 * Lot, units = (n + span - 1) / span;
    typedef Counter<Shape::rows * units> Number;
    const int64_t thread = int64_t(grid.block) * grid.threads + grid.thread(),
                  step = int64_t(grid.blocks) * grid.threads;
    for (int64_t u = thread / 32; u < Shape::rows * units; u += step / 32) {
        const int64_t r = Number(u) / Number(units),
                      first = (u - r * units) * span + 4 * (threadIdx.x & 31);
        const auto row = make(r);
        const A total = A(sum(r));
        const auto out = put(r);
        const GradientRow<A, Shape, false, decltype(put(r))> grad(
            out, A(most(r)), total, scalar::div(scale, total), labels(r));
        A x[Lot][4];
        const auto has = [&](int k) { return first + 128 * k + 4 <= n; };
        // Without a branch, so that all are on their way.
        const auto at = [&](int k) { return has(k) ? first + 128 * k : n / 4 * 4 - 4; };
        if (row.template aligned<4>())
#pragma unroll
            for (int k = 0; k < Lot; k++) row.template some<4, true>(at(k), x[k]);
        else
#pragma unroll
            for (int k = 0; k < Lot; k++) row.some(at(k), x[k]);
#pragma unroll
        for (int k = 0; k < Lot; k++) {
            const int64_t i = first + 128 * k;
            if (has(k))
                grad.some(i, x[k]);
            else if (n % 4 != 0)
                for (int j = 0; j < 3 && i + j < n; j++) grad(i + j, row(i + j));
        }
    }
}

// ---- the mean of losses -------------------------------------------------------------------------

/// The sum of `Count` numbers that a kernel's blocks have stored side by side, in the tree's order,
/// by the last of them to come here: put(0, sum). `counter` is 0 before and after.
template <class A, int64_t Count, class Put>
__device__ __forceinline__ void add_losses(const Grid& grid, const A* losses, uint32_t* counter,
                                           Put put) {
    typedef SumOf<A> Op;
    constexpr int leaves = int((Count + kTreeLeaf - 1) / kTreeLeaf), whole = int(Count / kTreeLeaf),
                  Lot = 2;  // leaves of a warp that are on their way together
    extern __shared__ __align__(16) char bytes[];
    A* const sums = reinterpret_cast<A*>(bytes);
    if (!arrive_last_unshared(counter, grid.blocks)) return;
    const int warps = int(grid.threads) / 32, warp = int(threadIdx.x) / 32,
              lane = int(threadIdx.x & 31);
#pragma unroll 1
    for (int first = warp; first < whole; first += Lot * warps) {
        Pack<A, 4> x[Lot][4];
#pragma unroll
        for (int k = 0; k < Lot; k++) {
            const int leaf = first + k * warps < whole ? first + k * warps : first;
#pragma unroll
            for (int line = 0; line < 4; line++)
                x[k][line] = *reinterpret_cast<const Pack<A, 4>*>(
                    losses + leaf * int(kTreeLeaf) + line * int(kTreeLanes) + 4 * lane);
        }
#pragma unroll
        for (int k = 0; k < Lot; k++) {
            A s[4];
#pragma unroll
            for (int c = 0; c < 4; c++) {
                s[c] = x[k][0].at[c];
#pragma unroll
                for (int line = 1; line < 4; line++) s[c] = Op::join(s[c], x[k][line].at[c]);
            }
            const A sum = join_lanes<Op, 32>(s);
            if (lane == 0 && first + k * warps < whole) sums[first + k * warps] = sum;
        }
    }
    if constexpr (whole < leaves)
        if (warp == whole % warps) {
            typedef RowOf<A, A, Line<1>, 16 / int(sizeof(A))> Row;
            const A sum = leaf<Op, A, false>(Row(losses), int64_t(whole) * kTreeLeaf,
                                             Count - int64_t(whole) * kTreeLeaf);
            if (lane == 0) sums[whole] = sum;
        }
    join_shared<Op>(sums, leaves, int(grid.threads));
    if (threadIdx.x == 0) put(0, sums[0]);
}

}  // namespace aicf
