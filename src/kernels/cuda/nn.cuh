// Rows of softmax and losses.
//
// What a kernel reads and writes are functions. Of elements, make(r) is row r, whose element i is
// row(i), made anew each time; put(r)(i, v) does what is left to do with element i of the result,
// after the team's last reading of other elements. Of what a row has one of: get(r) and set(r, v).
#pragma once

#include "rows.cuh"

namespace aicf {

/// V elements from y on, side by side; `Together`: in one store.
template <int V, bool Together, class E, class C>
__device__ __forceinline__ void store_across(E* y, const C (&a)[V]) {
    Pack<E, V> pack;
#pragma unroll
    for (int j = 0; j < V; j++) pack.at[j] = narrow<E>(a[j]);
    if constexpr (Together) {
        *reinterpret_cast<Pack<E, V>*>(y) = pack;
    } else {
#pragma unroll
        for (int j = 0; j < V; j++) y[j] = pack.at[j];
    }
}

template <int V, bool Together, class E>
__device__ __forceinline__ void store_across(E* y, const Two<E> (&a)[V / 2]) {
    if constexpr (Together) {
        Pack<uint32_t, V / 2> words;
#pragma unroll
        for (int j = 0; j < V / 2; j++) words.at[j] = a[j].word;
        *reinterpret_cast<Pack<uint32_t, V / 2>*>(y) = words;
    } else {
#pragma unroll
        for (int j = 0; j < V; j++) y[j].bits = uint16_t(a[j / 2].word >> 16 * (j % 2));
    }
}

/// Words of 16 bytes stay one store, which the compiler cuts where stores one by one follow.
template <int V, bool Together, class E>
__device__ __forceinline__ void store_words(E* y, const Words<E, V>& all) {
#if __CUDA_ARCH__ >= 900
    if constexpr (Together && V == 8) {
        asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(y), "r"(all.words.at[0]),
                     "r"(all.words.at[1]), "r"(all.words.at[2]), "r"(all.words.at[3])
                     : "memory");
        return;
    }
#endif
    all.store(y, V, Together);
}
/// V elements that are rounded to E.
template <int V, bool Together, class E, class C>
__device__ __forceinline__ void store_beside(E* y, const C (&a)[V]) {
    if constexpr (is_16_bit<E>)
        store_words<V, Together>(y, Words<E, V>::of(a));
    else
        store_across<V, Together>(y, a);
}

template <int V, bool Together, class E>
__device__ __forceinline__ void store_twos(E* y, const Two<E> (&a)[V / 2]) {
    store_words<V, Together>(y, Words<E, V>::of(a));
}
/// load_some and store_some in pairs; `Lasting`: as load_lasting().
template <int V, class Elem, class E, bool Lasting = false>
__device__ __forceinline__ void load_pairs(Two<E> (&a)[V / 2], const E* x, int64_t i) {
    if constexpr (Elem::step == 1) {
        const E* const from = x + Elem::at(i);
        Words<E, V> words;
        words.template load<Lasting>(from, V, aligned_for<V>(from));
        words.twos(a);
    } else {
#pragma unroll
        for (int j = 0; j < V / 2; j++)
            a[j].word = x[Elem::at(i + 2 * j)].bits | uint32_t{x[Elem::at(i + 2 * j + 1)].bits}
                                                          << 16;
    }
}
template <int V, class Elem, class E>
__device__ __forceinline__ void store_pairs(E* y, const Two<E> (&a)[V / 2], int64_t i) {
    if constexpr (Elem::step == 1) {
        E* const to = y + Elem::at(i);
        Words<E, V>::of(a).store(to, V, aligned_for<V>(to));
    } else {
#pragma unroll
        for (int j = 0; j < V; j++)
            y[Elem::at(i + j)].bits = uint16_t(a[j / 2].word >> 16 * (j % 2));
    }
}

/// A result that nobody wants.
struct Nowhere {
    template <class A>
    __device__ __forceinline__ void operator()(int64_t, A) const {}
};

/// The exponential of an element of a row; x is `most` at most, so neither has to be kept below
/// what overflows. Not of NaN, of which the sum is NaN where `most` is not finite.
template <class Exps, class A>
__device__ __forceinline__ A exp_below(A x, A most) {
    if constexpr (same_type<Exps, scalar::RowExps<float>>) {
        const uint32_t low = scalar::bits(-104.0f), u = scalar::bits(x - most);
        const auto v = scalar::exp_reduce(scalar::from_bits(u < low ? u : low));
        return scalar::scale_down(scalar::exp_parts(v, 0.0f).hi, v.e);
    } else {
        return Exps::of(most)(x);
    }
}
/// The bits of x - most, 0 or less, of which the greatest are the least number's; what they are at
/// most where no exponential, nor what is made of one, need be scaled down in steps.
__device__ __forceinline__ uint32_t below(float x, float most) { return scalar::bits(x - most); }
constexpr uint32_t kNearBits = 0xc2680000u;  // of -58: e^-58 > 2^-84
/// Whether elements of a row are, of which the one furthest from `most` has such bits.
template <class Exps>
__device__ __forceinline__ bool is_near(uint32_t furthest, float most) {
    return furthest <= kNearBits && Exps::has_near(most);
}
template <class Exps, int V>
__device__ __forceinline__ bool are_near(const float (&x)[V], float most) {
    float least = most;
#pragma unroll
    for (int j = 0; j < V; j++) least = scalar::at_most(x[j], least);
    return is_near<Exps>(below(least, most), most);
}

template <class A, class Team, class Row>
__device__ __forceinline__ A sum_where(Team& team, const Row& exps, A most) {
    return scalar::row_sum(most, team.template reduce<SumOf<A>>(exps));
}
template <class Exps, class A>
struct ExpsBelow {
    A most;
    template <int V>
    __device__ __forceinline__ void operator()(A (&x)[V]) const {
        if constexpr (same_type<A, float> && V > 1)
            if (are_near<Exps>(x, most)) {
                const Exps exps = Exps::of(most);
#pragma unroll
                for (int j = 0; j < V; j++) x[j] = exps.near(x[j]);
                return;
            }
#pragma unroll
        for (int j = 0; j < V; j++) x[j] = exp_below<Exps>(x[j], most);
    }
};
/// Whether a team looks first if exponentials are near: where instructions are what it waits for.
/// Rows that are few or read again for each pass are waited for themselves.
template <class A, class Team, class Shape>
constexpr bool looks = same_type<A, float> && (Team::keeps || (Team::holds && Shape::many));

/// `near`: whether all of a thread's are, where it looks.
template <bool Looks, class Exps, class A, class Team, class Row>
__device__ __forceinline__ auto exps_of(Team& team, const Row& x, A most, bool& near) {
    if constexpr (Looks && !Team::holds) {
        return team.alter(x, ExpsBelow<Exps, A>{most});
    } else {
        if constexpr (Looks) {
            A least = most;
            team.visit(x, [&](A v) { least = scalar::at_most(v, least); });
            near = is_near<Exps>(below(least, most), most);
            if (near) {
                const Exps exps = Exps::of(most);
                return team.map(x, [exps](A v) { return exps.near(v); });
            }
        }
        return team.map(x, [most](A v) { return exp_below<Exps>(v, most); });
    }
}

/// A quotient by a sum of 0.7 or more, or NaN, of which the inverse is divided out: where no
/// remainder could round, by the steps of a division.
__device__ __forceinline__ float share_near(float v, float inverse, float sum) {
    const float q = v * inverse;
    return scalar::fma(scalar::fma(-q, sum, v), inverse, q);
}
/// The same once it is rounded to bfloat16, by a sum below 2^16 and of v from 2^-84 on: what `rest`
/// adds to the inverse makes up for a rounding of the quotient before, near all of the places where
/// that would move the last one.
__device__ __forceinline__ float share_brain(float v, float inverse, float rest) {
    return scalar::fma(v, inverse, v * rest);
}
template <class Exps>
struct SharesBelow {
    float most, sum, inverse;
    template <int V>
    __device__ __forceinline__ void operator()(float (&x)[V]) const {
        if (V > 1 && are_near<Exps>(x, most)) {
            const Exps exps = Exps::of(most);
#pragma unroll
            for (int j = 0; j < V; j++) x[j] = share_near(exps.near(x[j]), inverse, sum);
        } else {
#pragma unroll
            for (int j = 0; j < V; j++) x[j] = scalar::div(exp_below<Exps>(x[j], most), sum);
        }
    }
};
/// Exponentials of x by their sum; `near` as exps_of has it.
template <bool Looks, class Shape, class A, class Team, class Row, class Made>
__device__ __forceinline__ auto shares_of(Team& team, const Row& x, const Made& exps, A most, A sum,
                                          bool near) {
    if constexpr (Looks && !Team::holds) {
        return team.alter(x, SharesBelow<typename Shape::Exps>{most, sum, scalar::reciprocal(sum)});
    } else {
        if constexpr (Looks && Shape::narrow) {
            if (near) {
                const A inverse = scalar::reciprocal(sum),
                        rest = scalar::fma(-sum, inverse, A(1)) * inverse;
                return team.map(exps, [=](A v) { return share_brain(v, inverse, rest); });
            }
        }
        if constexpr (same_type<A, float> && Team::holds) {
            uint32_t least = ~0u;  // of what lies above 0
            if (!near)
                team.visit(exps, [&](A v) {
                    const uint32_t u = scalar::bits(v) - 1;
                    least = u < least ? u : least;
                });
            if (least >= scalar::bits(0x1p-100f) - 1) {
                const A inverse = scalar::reciprocal(sum);
                return team.map(exps, [=](A v) { return share_near(v, inverse, sum); });
            }
        }
        return team.map(exps, [sum](A v) { return scalar::div(v, sum); });
    }
}

/// v / N; by a power of two as a product, which has the same bits.
template <int64_t N, class A>
__device__ __forceinline__ A by_count(A v) {
    if constexpr (N > 0 && (N & (N - 1)) == 0)
        return v * (A(1) / static_cast<A>(N));
    else
        return scalar::div(v, static_cast<A>(N));
}

/// The largest element. `Narrow`: all are bfloat16 numbers.
template <class A, bool Narrow, class Team, class Row>
__device__ __forceinline__ A most_of(Team& team, const Row& x) {
#if __CUDA_ARCH__ >= 800
    if constexpr (Narrow && Team::pairs) return team.largest_brain(x);
#endif
    return team.template reduce<MaxOf<A>>(x);
}

template <class A, bool Log, bool Masked, bool Looks, class Shape, class Team, class Row, class Put>
__device__ __forceinline__ void softmax_row(Team& team, const Row& x, int64_t r, bool mine,
                                            const Put& put) {
    typedef typename Shape::Exps Exps;
    A most = most_of<A, Shape::narrow>(team, x);
    if constexpr (Masked) most = scalar::masked_most(most);
    bool near = false;
    const auto exps = exps_of<Looks, Exps>(team, x, most, near);
    A sum = sum_where(team, exps, most);
    if constexpr (Masked) sum = scalar::masked_sum(sum);
    if constexpr (Log) {
        const A log_sum = Exps::log_sum(most, sum);
        const auto y = team.map(x, [=](A v) { return (v - most) - log_sum; });
        if (mine) team.put(y, put(r));
    } else {
        const auto y = shares_of<Looks, Shape>(team, x, exps, most, sum, near);
        if (mine) team.put(y, put(r));
    }
}
/// Masked: a row of -inf alone is 0. Ahead: the threads of blocks that read a row while they are at
/// the one before it, or 0; these may take rows by a counter.
template <class A, class Team, bool Log, bool Masked, int Ahead, class Shape, class Make, class Put,
          class Order = InTurn>
__device__ __forceinline__ void softmax_rows(const Grid& grid, Make make, Put put,
                                             Order order = {}) {
    extern __shared__ __align__(16) char bytes[];
    Team team{reinterpret_cast<A*>(bytes)};
    constexpr bool Looks = looks<A, Team, Shape>;
    if constexpr (Ahead > 0)
        each_ahead<Team, Shape::rows, Ahead>(
            grid, make,
            [&](int64_t r, bool mine, const typename Team::Row& x) {
                softmax_row<A, Log, Masked, Looks, Shape>(team, x, r, mine, put);
            },
            order);
    else
        Team::template each<Shape::rows>(grid, [&](int64_t r, bool mine) {
            softmax_row<A, Log, Masked, Looks, Shape>(team, team.take(make(r)), r, mine, put);
        });
}

/// A gradient takes the last rows first: the second cache may still hold these of what ran before.
/// Blocks that keep rows have no register for it.
template <class Team, class Shape>
__device__ __forceinline__ int64_t turned(int64_t r) {
    return Team::keeps ? r : Shape::rows - 1 - r;
}

template <class A, class Team, bool Log, class Shape, class Y, class Dy, class Put>
__device__ __forceinline__ void softmax_bwd_rows(const Grid& grid, Y y, Dy dy, Put put) {
    extern __shared__ __align__(16) char bytes[];
    Team team{reinterpret_cast<A*>(bytes)};
    Team::template each<Shape::rows>(grid, [&](int64_t q, bool mine) {
        const int64_t r = turned<Team, Shape>(q);
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

template <class A, class Team, bool Center, class Shape, class Make, class Put, class Rstd,
          class Mean>
__device__ __forceinline__ void normalize_rows(const Grid& grid, Make make, Put put, Rstd set_rstd,
                                               Mean set_mean, A eps) {
    extern __shared__ __align__(16) char bytes[];
    Team team{reinterpret_cast<A*>(bytes)};
    Team::template each<Shape::rows>(grid, [&](int64_t r, bool mine) {
        const auto x = team.take(make(r));
        A mean = A(0);
        if constexpr (Center) mean = by_count<Shape::n>(team.template reduce<SumOf<A>>(x));
        const A sum = team.template reduce<SumOf<A>>(
            team.map(x, [mean](A v) { return (v - mean) * (v - mean); }));
        const A scale = scalar::div(A(1), scalar::sqrt(by_count<Shape::n>(sum) + eps));
        const auto y = team.map(x, [=](A v) { return (v - mean) * scale; });
        if (mine) team.put(y, put(r));
        if (mine && team.leads()) {
            set_rstd(r, scale);
            set_mean(r, mean);
        }
    });
}

/// What some pieces of a row of results are stored with: of out = put(r), out.beside<V,
/// Together>(i) reads what out.finish<V, Together>(i, v, some) takes to store elements i to i + V
/// - 1.
template <class Row, class Out, int Lot>
struct Beside {
    static constexpr int V = Row::side, lines = Row::lines, pieces = Row::turns * lines;
    typedef decltype(static_cast<Out*>(nullptr)->template beside<V, true>(0)) Some;
    Some some[Lot];

    template <class Body>
    __device__ __forceinline__ static void each_of(int first, const Body& body) {
        each_piece<Row>([&](int k, int i) {
            if (k / Lot == first / Lot) body(k, i);
        });
    }
    __device__ __forceinline__ void read(const Out& out, int first, bool together) {
        if (together)
            each_of(first, [&](int k, int i) { some[k % Lot] = out.template beside<V, true>(i); });
        else
            each_of(first, [&](int k, int i) { some[k % Lot] = out.template beside<V, false>(i); });
    }
    __device__ __forceinline__ void finish(const Out& out, int first, bool together,
                                           const Row& y) const {
        if (together)
            each_of(first, [&](int k, int i) {
                out.template finish<V, true>(i, y.a[k / lines][k % lines], some[k % Lot]);
            });
        else
            each_of(first, [&](int k, int i) {
                out.template finish<V, false>(i, y.a[k / lines][k % lines], some[k % Lot]);
            });
    }
    /// What all rows are stored with, to where the team keeps it; and a row of results with that,
    /// or with what is read for it alone.
    template <class Team>
    __device__ __forceinline__ void keep(const Out& out) {
        const bool together = out.template together<V>();
#pragma unroll
        for (int first = 0; first < pieces; first += Lot) {
            read(out, first, together);
            for (int k = first; k < first + Lot && k < pieces; k++)
                Team::Kept::keep(k, some[k - first]);
        }
    }
    template <class Team, bool Kept>
    __device__ __forceinline__ void store(const Out& out, const Row& y) {
        // Asked once for all pieces, which then do not wait for each other.
        if (out.template together<V>())
            store_pieces<Team, Kept>(out, true, y);
        else
            store_pieces<Team, Kept>(out, false, y);
    }

  private:
    template <class Team, bool Kept>
    __device__ __forceinline__ void store_pieces(const Out& out, bool together, const Row& y) {
#pragma unroll
        for (int first = 0; first < pieces; first += Lot) {
            if constexpr (Kept) {
#pragma unroll
                for (int k = first; k < first + Lot && k < pieces; k++)
                    some[k - first] = Team::Kept::template kept<Some>(k);
            } else {
                read(out, first, together);
            }
            finish(out, first, together, y);
        }
    }
};
/// The same of rows that are read ahead, by blocks of so many threads. What results of all rows are
/// stored with, if it is the same, Put::same, stays in registers or where a team that copies rows
/// keeps it, if there is the room; else it is read for each row.
template <class A, class Team, bool Center, int Threads, class Shape, class Make, class Put,
          class Rstd, class Mean>
__device__ __forceinline__ void normalize_ahead(const Grid& grid, Make make, Put put, Rstd set_rstd,
                                                Mean set_mean, A eps) {
    extern __shared__ __align__(16) char bytes[];
    Team team{reinterpret_cast<A*>(bytes)};
    typedef typename Team::Row Row;
    typedef decltype(put(0)) Out;
    typedef typename Beside<Row, Out, 1>::Some Some;
    constexpr int pieces = Row::turns * Row::lines, size = pieces * int(sizeof(Some));
    constexpr bool kept = Put::same && size <= Team::beside,
                   once = !Team::copies && Put::same && size <= 32;
    // Of a team that copies rows, a few pieces at a time: its registers hold rows.
    constexpr int few = sizeof(Some) < 32 ? 32 / int(sizeof(Some)) : 1,
                  lot = !Team::copies || few > pieces ? pieces : few;
    Beside<Row, Out, lot> beside;
    const bool whole = !Team::copies && put(0).template together<Row::side>();
    if constexpr (once) beside.read(put(0), 0, whole);
    if constexpr (kept) beside.template keep<Team>(put(0));
    each_ahead<Team, Shape::rows, Threads>(grid, make, [&](int64_t r, bool mine, const Row& x) {
        const Out out = put(r);
        A mean = A(0);
        if constexpr (Center) mean = by_count<Shape::n>(team.template reduce<SumOf<A>>(x));
        Row off = x;
        if constexpr (Center) off = team.off(x, mean);
        const A sum = team.template reduce<SumOf<A>>(team.map(off, [](A v) { return v * v; }));
        const A scale = scalar::div(A(1), scalar::sqrt(by_count<Shape::n>(sum) + eps));
        const Row y = team.map(off, [=](A v) { return v * scale; });
        if constexpr (Team::copies) {
            beside.template store<Team, kept>(out, y);
        } else {
            if (!once) beside.read(out, 0, whole);
            if (mine) beside.finish(out, 0, whole, y);
        }
        if (mine && team.leads()) {
            set_rstd(r, scale);
            set_mean(r, mean);
        }
    });
}

template <class A, class Team, bool Center, class Shape, class Y, class Rstd, class Dy, class Put>
__device__ __forceinline__ void normalize_bwd_rows(const Grid& grid, Y y, Rstd rstd, Dy dy,
                                                   Put put) {
    extern __shared__ __align__(16) char bytes[];
    Team team{reinterpret_cast<A*>(bytes)};
    Team::template each<Shape::rows>(grid, [&](int64_t q, bool mine) {
        const int64_t r = turned<Team, Shape>(q);
        const auto v = team.take(y(r));
        const auto g = team.take(dy(r));
        const A scale = rstd(r);
        A shift = A(0);
        if constexpr (Center) shift = by_count<Shape::n>(team.template reduce<SumOf<A>>(g));
        const A slope = by_count<Shape::n>(
            team.template reduce<SumOf<A>>(team.combine(g, v, [](A a, A b) { return a * b; })));
        const auto dx =
            team.combine(g, v, [=](A a, A b) { return scale * ((a - shift) - b * slope); });
        if (mine) team.put(dx, put(r));
    });
}

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
/// Lanes of a warp that has several rows have no register to keep what a loss is made of.
template <class Team, int Threads>
__device__ __forceinline__ constexpr int keep_losses() {
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
    typedef LossLanes<Team, keep_losses<Team, Ahead>()> Lanes;
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
