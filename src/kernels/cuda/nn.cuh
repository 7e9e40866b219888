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
constexpr uint32_t kNearBits = 0xc2660000u;  // of -57.5: e^-57.5 / sqrt(2) > 2^-84
/// Whether a row whose furthest element from `most` has these bits takes the short form.
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
/// The same once it is rounded to bfloat16, by a sum below 2^17 and of v from 2^-84 on: what `rest`
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

}  // namespace aicf
