// Windows over the last two axes: fold, max pooling and its gradient.
// Included once per instruction set; see isa.cpp. No standard-library templates here.

namespace aicf::cpu::AICF_ISA {

/// kernel, stride, dilation of (rows, columns): three lists of eight scalars.
struct WindowGeometry {
    int64_t kernel[2], stride[2], dilation[2];
};

AICF_INLINE WindowGeometry window_geometry(const ArgBlock& args) {
    WindowGeometry g;
    for (int i = 0; i < 2; i++) {
        g.kernel[i] = args.scalar(i).i;
        g.stride[i] = args.scalar(8 + i).i;
        g.dilation[i] = args.scalar(16 + i).i;
    }
    return g;
}

/// Which window holds image position `at` as its kernel position k; -1 when none does.
AICF_INLINE int64_t window_of(int64_t at, int64_t k, int64_t stride, int64_t dilation,
                              int64_t windows) {
    const int64_t off = at - k * dilation;
    return off >= 0 && off % stride == 0 && off / stride < windows ? off / stride : -1;
}

int64_t plane_units(const ArgBlock& args, int) {
    const Operand& y = args.out(0);
    return count_of(y, 0, y.rank) > 0 ? count_of(y, 0, y.rank - 2) : 0;
}

/// Windows whose position k lies in image columns [begin, end): [first, last).
AICF_INLINE void windows_between(int64_t begin, int64_t end, int64_t off, int64_t stride,
                                 int64_t windows, int64_t* first, int64_t* last) {
    *first = begin > off ? (begin - off + stride - 1) / stride : 0;
    *last = end > off ? (end - off + stride - 1) / stride : 0;
    if (*last > windows) *last = windows;
}

constexpr int64_t kFoldColumns = 256;

/// A row of an image, made of windows that overlap: an element's terms are added by ascending
/// kernel position.
template <class A, class E>
struct FoldRow {
    const WindowGeometry& g;
    const int64_t *ws, *wn;  // of the windows: kernel row, kernel column, row, column
    const E* from;
    E* to;
    int64_t to_step;

    /// term(windows) of each kernel row that meets image row h.
    template <class Term>
    AICF_INLINE void kernel_rows(int64_t h, Term term) const {
        for (int64_t i = 0; i < g.kernel[0]; i++) {
            const int64_t off = h - i * g.dilation[0],  // a division would take longer than a row
                oh = g.stride[0] != 1 ? window_of(h, i, g.stride[0], g.dilation[0], wn[2])
                     : off < wn[2]    ? off
                                      : -1;
            if (oh >= 0) term(from + i * ws[0] + oh * ws[2]);
        }
    }
    /// Of windows one column apart.
    AICF_INLINE void element(int64_t h, int64_t c) const {
        A sum = A(0);
        kernel_rows(h, [&](const E* row) {
            for (int64_t j = 0; j < g.kernel[1]; j++) {
                const int64_t ow = c - j * g.dilation[1];
                if (ow >= 0 && ow < wn[3]) sum = sum + widen(row[j * ws[1] + ow * ws[3]]);
            }
        });
        put(to + c * to_step, sum);
    }
    /// Neighbours that each kernel column meets, of windows that lie side by side.
    template <class S>
    AICF_INLINE void vector(int64_t h, int64_t c) const {
        auto sum = S::splat(A(0));
        kernel_rows(h, [&](const E* row) {
            for (int64_t j = 0; j < g.kernel[1]; j++)
                sum = sum + S::load(row + j * (ws[1] - g.dilation[1]) + c);
        });
        A sums[S::lanes];
        S::get(sum, sums);
        for (int l = 0; l < S::lanes; l++) put(to + (c + l) * to_step, sums[l]);
    }
    /// Columns [c, stop) of windows any number of columns apart.
    void part(int64_t h, int64_t c, int64_t stop) const {
        A sums[kFoldColumns];
        for (int64_t k = 0; k < stop - c; k++) sums[k] = A(0);
        kernel_rows(h, [&](const E* row) {
            for (int64_t j = 0; j < g.kernel[1]; j++) {
                const int64_t off = j * g.dilation[1];
                int64_t first, last;
                windows_between(c, stop, off, g.stride[1], wn[3], &first, &last);
                A* const at = sums + (off - c);
                for (int64_t ow = first; ow < last; ow++)
                    at[ow * g.stride[1]] =
                        at[ow * g.stride[1]] + widen(row[j * ws[1] + ow * ws[3]]);
            }
        });
        for (int64_t k = c; k < stop; k++) put(to + k * to_step, sums[k - c]);
    }
};

template <class A, class E>
void fold_planes(const ArgBlock& args, int64_t begin, int64_t end) {
    typedef Simd<A, kVectorBytes> S;
    const Operand &w = args.in(0), &x = args.out(0);
    const WindowGeometry g = window_geometry(args);
    const int lead = x.rank - 2;
    const int64_t *ws = w.strides() + lead, *wn = w.shape() + lead, *xs = x.strides() + lead;
    const int64_t columns = x.shape()[lead + 1];
    // Columns [all, most) are met by each kernel column.
    const int64_t all = (g.kernel[1] - 1) * g.dilation[1], most = min64(wn[3], columns);
    const bool vectors = g.stride[1] == 1 && ws[3] == 1 && most - all >= S::lanes;
    for (int64_t plane = begin; plane < end; plane++) {
        const E* from = static_cast<const E*>(w.ptr) + place_of(w, plane, lead);
        E* const to = static_cast<E*>(x.ptr) + place_of(x, plane, lead);
        for (int64_t h = 0; h < x.shape()[lead]; h++) {
            const FoldRow<A, E> fold{g, ws, wn, from, to + h * xs[0], xs[1]};
            if (!vectors) {
                for (int64_t c = 0; c < columns; c += kFoldColumns)
                    fold.part(h, c, min64(c + kFoldColumns, columns));
                continue;
            }
            for (int64_t c = 0; c < all; c++) fold.element(h, c);
            for (int64_t c = all; c < most; c += S::lanes)
                fold.template vector<S>(h, min64(c, most - S::lanes));
            for (int64_t c = most; c < columns; c++) fold.element(h, c);
        }
    }
}

void fold_run(const ArgBlock& args, int64_t begin, int64_t end, int, int) {
    AICF_BY_FLOAT(args.out(0).dtype, fold_planes, args, begin, end)
}

/// Position in the kernel of a window's first largest element; the first NaN if there is one.
template <class A, class E>
AICF_INLINE int64_t largest_in(const E* window, const WindowGeometry& g, const int64_t* xs,
                               A* value) {
    int64_t best = 0;
    A most = widen(*window);
    for (int64_t i = 0; i < g.kernel[0]; i++)
        for (int64_t j = 0; j < g.kernel[1]; j++) {
            const A v = widen(window[i * g.dilation[0] * xs[0] + j * g.dilation[1] * xs[1]]);
            if (v > most || (v != v && most == most)) {
                most = v;
                best = i * g.kernel[1] + j;
            }
        }
    *value = most;
    return best;
}

constexpr int64_t kPooled = 64;  // windows, or positions of a kernel, that a thread has at hand

/// Compares one position of the kernel, number `at`, in `count` windows; `element(k)` is what
/// window k has there.
template <class A, class I, class Element>
AICF_INLINE void compare_position(int64_t count, I at, A* most, I* best, Element element) {
    _Pragma("GCC ivdep") for (int64_t k = 0; k < count; k++) {
        const A v = widen(element(k)), m = most[k];
        const bool larger = (v > m) | ((v != v) & (m == m));
        most[k] = larger ? v : m;
        best[k] = larger ? at : best[k];
    }
}

/// The same as largest_in of `count` windows of a row, at most kPooled, from the first one
/// on: each position of the kernel is compared in all of them, without a branch.
template <class A, class E>
void largest_of_row(const E* window, int64_t count, const WindowGeometry& g, const int64_t* xs,
                    A* most, typename IntOf<A>::type* best) {
    typedef scalar::BitsOf<E> Bits;
    const int64_t step = g.stride[1] * xs[1];
    for (int64_t k = 0; k < count; k++) {
        most[k] = widen(window[k * step]);
        best[k] = 0;
    }
    for (int64_t i = 0; i < g.kernel[0]; i++)
        for (int64_t j = i == 0; j < g.kernel[1]; j++) {
            const E* row = window + i * g.dilation[0] * xs[0] + j * g.dilation[1] * xs[1];
            const auto at = typename IntOf<A>::type(i * g.kernel[1] + j);
            if (step == 1) {
                compare_position(count, at, most, best, [=](int64_t k) { return row[k]; });
            } else if (step == 2 && xs[1] == 1 && g.kernel[1] > 1) {
                // Both of two neighbours are read and one is kept, for a loop that reads every
                // other element takes its last ones apart. Both lie inside the window.
                const E* pairs = row - (j > 0);
                const Bits left = j > 0 ? Bits(0) : Bits(-1), right = Bits(~left);
                compare_position(count, at, most, best, [=](int64_t k) {
                    const auto a = scalar::bit_cast<Bits>(pairs[2 * k]),
                               b = scalar::bit_cast<Bits>(pairs[2 * k + 1]);
                    return scalar::bit_cast<E>(Bits((a & left) | (b & right)));
                });
            } else {
                compare_position(count, at, most, best, [=](int64_t k) { return row[k * step]; });
            }
        }
}

template <class A, class E>
void max_pool_planes(const ArgBlock& args, int64_t begin, int64_t end) {
    const Operand &x = args.in(0), &y = args.out(0);
    const WindowGeometry g = window_geometry(args);
    const int lead = x.rank - 2;
    const int64_t *xs = x.strides() + lead, *ys = y.strides() + lead;
    const int64_t columns = y.shape()[lead + 1];
    A most[kPooled];
    typename IntOf<A>::type best[kPooled];
    for (int64_t plane = begin; plane < end; plane++) {
        const E* from = static_cast<const E*>(x.ptr) + place_of(x, plane, lead);
        E* to = static_cast<E*>(y.ptr) + place_of(y, plane, lead);
        for (int64_t h = 0; h < y.shape()[lead]; h++)
            for (int64_t c = 0; c < columns; c += kPooled) {
                const int64_t count = min64(kPooled, columns - c);
                largest_of_row<A>(from + h * g.stride[0] * xs[0] + c * g.stride[1] * xs[1], count,
                                  g, xs, most, best);
                E* row = to + h * ys[0] + c * ys[1];
                for (int64_t k = 0; k < count; k++) put(row + k * ys[1], most[k]);
            }
    }
}

void max_pool_run(const ArgBlock& args, int64_t begin, int64_t end, int, int) {
    AICF_BY_FLOAT(args.out(0).dtype, max_pool_planes, args, begin, end)
}

/// Each image element has the gradients of the windows whose first largest element it is, added by
/// ascending position in the window: those of later windows first.
template <class A, class E>
void max_pool_bwd_planes(const ArgBlock& args, int64_t begin, int64_t end) {
    const Operand &x = args.in(0), &dy = args.in(2), &dx = args.out(0);
    const WindowGeometry g = window_geometry(args);
    const int lead = x.rank - 2;
    const int64_t *xs = x.strides() + lead, *ds = dy.strides() + lead, *dn = dy.shape() + lead,
                  *os = dx.strides() + lead;
    const int64_t rows = x.shape()[lead], columns = x.shape()[lead + 1];
    // Where a position of the kernel lies; few of them in a table, since a division takes longer.
    const auto place = [&](int64_t position) {
        const int64_t i = position / g.kernel[1], j = position - i * g.kernel[1];
        return i * g.dilation[0] * os[0] + j * g.dilation[1] * os[1];
    };
    int64_t places[kPooled];
    const bool tabled = g.kernel[0] * g.kernel[1] <= kPooled;
    for (int64_t p = 0; tabled && p < g.kernel[0] * g.kernel[1]; p++) places[p] = place(p);
    for (int64_t plane = begin; plane < end; plane++) {
        const E* image = static_cast<const E*>(x.ptr) + place_of(x, plane, lead);
        const E* grad = static_cast<const E*>(dy.ptr) + place_of(dy, plane, lead);
        E* to = static_cast<E*>(dx.ptr) + place_of(dx, plane, lead);
        if constexpr (sizeof(A) == sizeof(E)) {  // sums lie where they belong
            for (int64_t h = 0; h < rows; h++)
                for (int64_t c = 0; c < columns; c++) to[h * os[0] + c * os[1]] = E(0);
            for (int64_t oh = dn[0] - 1; oh >= 0; oh--)
                for (int64_t stop = dn[1]; stop > 0; stop -= kPooled) {
                    const int64_t first = stop > kPooled ? stop - kPooled : 0;
                    const int64_t h = oh * g.stride[0], c = first * g.stride[1];
                    A most[kPooled];
                    typename IntOf<A>::type best[kPooled];
                    largest_of_row<A>(image + h * xs[0] + c * xs[1], stop - first, g, xs, most,
                                      best);
                    const E* from = grad + oh * ds[0] + first * ds[1];
                    E* row = to + h * os[0] + c * os[1];
                    for (int64_t k = stop - first; k-- > 0;) {
                        E* at = row + k * g.stride[1] * os[1] +
                                (tabled ? places[best[k]] : place(best[k]));
                        *at = *at + from[k * ds[1]];
                    }
                }
            continue;
        }
        for (int64_t h = 0; h < rows; h++)
            for (int64_t c = 0; c < columns; c++) {
                A sum = A(0);
                for (int64_t i = 0; i < g.kernel[0]; i++) {
                    const int64_t oh = window_of(h, i, g.stride[0], g.dilation[0], dn[0]);
                    if (oh < 0) continue;
                    for (int64_t j = 0; j < g.kernel[1]; j++) {
                        const int64_t ow = window_of(c, j, g.stride[1], g.dilation[1], dn[1]);
                        if (ow < 0) continue;
                        A value;
                        const int64_t best = largest_in<A>(
                            image + oh * g.stride[0] * xs[0] + ow * g.stride[1] * xs[1], g, xs,
                            &value);
                        if (best == i * g.kernel[1] + j)
                            sum = sum + widen(grad[oh * ds[0] + ow * ds[1]]);
                    }
                }
                put(to + h * os[0] + c * os[1], sum);
            }
    }
}

void max_pool_bwd_run(const ArgBlock& args, int64_t begin, int64_t end, int, int) {
    AICF_BY_FLOAT(args.out(0).dtype, max_pool_bwd_planes, args, begin, end)
}

void register_windows(Table& table) {
    table.add(CpuKernel{"fold", kFloats, fold_run, plane_units});
    table.add(CpuKernel{"max_pool", kFloats, max_pool_run, plane_units});
    table.add(CpuKernel{"max_pool_bwd", kFloats, max_pool_bwd_run, plane_units});
}

}  // namespace aicf::cpu::AICF_ISA
