// Ops along one axis that go by position: gather and scatter, searches, sorting, running products
// and maxima. Included once per instruction set; see isa.cpp. No standard-library templates here.

namespace aicf::cpu::AICF_ISA {

/// Runs fn<E>, or fn<A, E> with the type that sums are in, for elements of a dtype.
#define AICF_BY_NUMBER(dtype, fn) \
    by_number(DType(dtype), [&](auto e) { fn<decltype(e)>(args, begin, end); })
#define AICF_BY_SUM(dtype, fn)                                                \
    by_number(DType(dtype), [&](auto e) {                                     \
        fn<typename SumOf<decltype(e)>::type, decltype(e)>(args, begin, end); \
    })

AICF_INLINE int line_axis(const ArgBlock& args) { return static_cast<int>(args.scalar(0).i); }

// ---- by index -----------------------------------------------------------------------------------

int64_t gather_units(const ArgBlock& args, int) {
    return count_of(args.out(0), 0, args.out(0).rank) > 0 ? output_rows(args.out(0)) : 0;
}

template <class T>
void gather_rows(const ArgBlock& args, int64_t begin, int64_t end) {
    const Operand &x = args.in(0), &indices = args.in(1), &y = args.out(0);
    const int axis = line_axis(args), last = y.rank - 1;
    const bool zero = args.scalar(1).i != 0 || !(kFloats & dtype_bit(DType(y.dtype)));
    const T missing = static_cast<T>(element_bits(DType(y.dtype), zero ? 0.0 : __builtin_nan("")));
    const int64_t n = x.shape()[axis], step = x.strides()[axis];
    for (int64_t row = begin; row < end; row++) {
        int64_t from = 0, to = 0, at = 0, left = row;
        for (int d = last - 1; d >= 0; d--) {
            const int64_t next = left / y.shape()[d], k = left - next * y.shape()[d];
            from += d == axis ? 0 : k * x.strides()[d];
            to += k * y.strides()[d];
            at += k * indices.strides()[d];
            left = next;
        }
        const int64_t beside = axis == last ? 0 : x.strides()[last];
        for (int64_t j = 0; j < y.shape()[last]; j++) {
            const int64_t index = index_at(indices, at + j * indices.strides()[last]);
            static_cast<T*>(y.ptr)[to + j * y.strides()[last]] =
                index >= 0 && index < n
                    ? static_cast<const T*>(x.ptr)[from + j * beside + index * step]
                    : missing;
        }
    }
}

void gather_run(const ArgBlock& args, int64_t begin, int64_t end, int, int) {
    switch (element_size(DType(args.out(0).dtype))) {
        case 8:
            return gather_rows<uint64_t>(args, begin, end);
        case 4:
            return gather_rows<uint32_t>(args, begin, end);
        case 2:
            return gather_rows<uint16_t>(args, begin, end);
        default:
            return gather_rows<uint8_t>(args, begin, end);
    }
}

int64_t result_lines(const ArgBlock& args, int) {
    return beside_units(args.out(0), line_axis(args));
}

/// Sums that fit no element are held for so many places at a time.
constexpr int64_t kHeldSums = 1024;

/// What a place has of a line in which it may have several chunks.
template <class A>
struct ChunkedSum {
    A before, sum;
    int64_t seen;
};

/// Whether sums are in chunks: of floats, of which a place may have more than one's.
bool sums_in_chunks(const ArgBlock& args) {
    return (kFloats & dtype_bit(DType(args.out(0).dtype))) &&
           args.in(0).shape()[line_axis(args)] > args.scalar(2).i;
}

uint64_t scatter_add_workspace(const ArgBlock& args, int threads) {
    const auto size = static_cast<uint64_t>(args.out(0).shape()[line_axis(args)]);
    return sums_in_chunks(args) ? sizeof(ChunkedSum<double>) * size * uint64_t(threads) : 0;
}

template <class A, class E>
void scatter_add_chunks(const ArgBlock& args, int64_t begin, int64_t end, int thread) {
    const Operand &x = args.in(0), &indices = args.in(1), &y = args.out(0);
    const int axis = line_axis(args);
    const int64_t n = x.shape()[axis], size = y.shape()[axis], step = y.strides()[axis],
                  chunk = args.scalar(2).i;
    auto* const sums = static_cast<ChunkedSum<A>*>(args.workspace) + size * thread;
    for (int64_t line = begin; line < end; line++) {
        const E* from = static_cast<const E*>(x.ptr) + place_beside(x, line, axis);
        const int64_t at = place_beside(indices, line, axis);
        E* to = static_cast<E*>(y.ptr) + place_beside(y, line, axis);
        for (int64_t j = 0; j < size; j++) sums[j] = {A(0), A(0), 0};
        for (int64_t i = 0; i < n; i++) {
            const int64_t index = index_at(indices, at + i * indices.strides()[axis]);
            if (index < 0 || index >= size) continue;
            ChunkedSum<A>& own = sums[index];
            if (own.seen == chunk) own = {own.before + own.sum, A(0), 0};
            own.sum = own.sum + widen(from[i * x.strides()[axis]]);
            own.seen++;
        }
        for (int64_t j = 0; j < size; j++) put(to + j * step, sums[j].before + sums[j].sum);
    }
}

template <class A, class E>
void scatter_add_lines(const ArgBlock& args, int64_t begin, int64_t end) {
    const Operand &x = args.in(0), &indices = args.in(1), &y = args.out(0);
    const int axis = line_axis(args);
    const int64_t n = x.shape()[axis], size = y.shape()[axis], step = y.strides()[axis];
    for (int64_t line = begin; line < end; line++) {
        const E* from = static_cast<const E*>(x.ptr) + place_beside(x, line, axis);
        const int64_t at = place_beside(indices, line, axis);
        E* to = static_cast<E*>(y.ptr) + place_beside(y, line, axis);
        if constexpr (sizeof(A) == sizeof(E)) {
            for (int64_t j = 0; j < size; j++) to[j * step] = E(0);
            for (int64_t i = 0; i < n; i++) {
                const int64_t index = index_at(indices, at + i * indices.strides()[axis]);
                if (index < 0 || index >= size) continue;
                E& sum = to[index * step];
                sum = static_cast<E>(static_cast<A>(sum) +
                                     static_cast<A>(from[i * x.strides()[axis]]));
            }
        } else {
            A sums[kHeldSums];
            for (int64_t first = 0; first < size; first += kHeldSums) {
                const int64_t held = min64(kHeldSums, size - first);
                for (int64_t j = 0; j < held; j++) sums[j] = A(0);
                for (int64_t i = 0; i < n; i++) {
                    const int64_t index = index_at(indices, at + i * indices.strides()[axis]);
                    if (index < first || index >= first + held) continue;
                    A& sum = sums[index - first];
                    sum = sum + widen(from[i * x.strides()[axis]]);
                }
                for (int64_t j = 0; j < held; j++) put(to + (first + j) * step, sums[j]);
            }
        }
    }
}

void scatter_add_run(const ArgBlock& args, int64_t begin, int64_t end, int, int thread) {
    if (sums_in_chunks(args))
        AICF_BY_FLOAT(args.out(0).dtype, scatter_add_chunks, args, begin, end, thread)
    AICF_BY_SUM(args.out(0).dtype, scatter_add_lines);
}

void scatter_last_run(const ArgBlock& args, int64_t begin, int64_t end, int, int) {
    const Operand &indices = args.in(0), &y = args.out(0);
    const int axis = line_axis(args);
    const int64_t size = y.shape()[axis], step = y.strides()[axis];
    for (int64_t line = begin; line < end; line++) {
        const int64_t at = place_beside(indices, line, axis);
        int64_t* to = static_cast<int64_t*>(y.ptr) + place_beside(y, line, axis);
        for (int64_t j = 0; j < size; j++) to[j * step] = -1;
        for (int64_t i = 0; i < indices.shape()[axis]; i++) {
            const int64_t index = index_at(indices, at + i * indices.strides()[axis]);
            if (index >= 0 && index < size) to[index * step] = i;
        }
    }
}

// ---- by order -----------------------------------------------------------------------------------

template <class E>
AICF_INLINE uint64_t key_at(const E* x, int64_t at, bool descending) {
    return sort_key(widen(x[at]), descending);
}

int64_t search_units(const ArgBlock& args, int) {
    return count_of(args.out(0), 0, args.out(0).rank);
}

template <class E>
void search_results(const ArgBlock& args, int64_t begin, int64_t end) {
    const Operand &sorted = args.in(0), &x = args.in(1), &y = args.out(0);
    const bool right = args.scalar(0).i != 0;
    const int last = y.rank - 1;
    for (int64_t i = begin; i < end; i++) {
        const E* line =
            static_cast<const E*>(sorted.ptr) + place_of(sorted, i / y.shape()[last], last);
        const uint64_t key = key_at(static_cast<const E*>(x.ptr), place_of(x, i, x.rank), false);
        int64_t low = 0, high = sorted.shape()[last];
        while (low < high) {
            const int64_t mid = (low + high) / 2;
            const uint64_t other = key_at(line, mid * sorted.strides()[last], false);
            const bool before = other < key || (right && other == key);
            low = before ? mid + 1 : low;
            high = before ? high : mid;
        }
        static_cast<int64_t*>(y.ptr)[place_of(y, i, y.rank)] = low;
    }
}

void search_run(const ArgBlock& args, int64_t begin, int64_t end, int, int) {
    AICF_BY_NUMBER(args.in(0).dtype, search_results);
}

int64_t runs_of(const ArgBlock& args, int64_t run) {
    return (args.in(0).shape()[line_axis(args)] + run - 1) / run;
}

int64_t argsort_units(const ArgBlock& args, int) {
    return beside_units(args.in(0), line_axis(args)) * runs_of(args, kSortRun);
}

struct SortItem {
    uint64_t key;
    int64_t at;
};

/// Stable: of equal keys the left comes first.
AICF_INLINE void merge_items(const SortItem* left, const SortItem* right, const SortItem* end,
                             SortItem* to) {
    const SortItem* const middle = right;
    while (left < middle && right < end) *to++ = right->key < left->key ? *right++ : *left++;
    while (left < middle) *to++ = *left++;
    while (right < end) *to++ = *right++;
}

/// The sorted items: `items` or `other`.
const SortItem* sorted_items(SortItem* items, SortItem* other, int64_t n) {
    constexpr int64_t kInserted = 16;
    for (int64_t first = 0; first < n; first += kInserted)
        for (int64_t i = first + 1; i < min64(first + kInserted, n); i++) {
            const SortItem item = items[i];
            int64_t j = i;
            for (; j > first && item.key < items[j - 1].key; j--) items[j] = items[j - 1];
            items[j] = item;
        }
    for (int64_t run = kInserted; run < n; run *= 2) {
        for (int64_t first = 0; first < n; first += 2 * run)
            merge_items(items + first, items + min64(first + run, n),
                        items + min64(first + 2 * run, n), other + first);
        SortItem* const done = other;
        other = items;
        items = done;
    }
    return items;
}

template <class E>
void argsort_runs(const ArgBlock& args, int64_t begin, int64_t end) {
    const Operand &x = args.in(0), &y = args.out(0);
    const int axis = line_axis(args);
    const bool descending = args.scalar(1).i != 0;
    const int64_t runs = runs_of(args, kSortRun);
    SortItem items[kSortRun], other[kSortRun];
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t line = unit / runs, first = (unit - line * runs) * kSortRun,
                      n = min64(kSortRun, x.shape()[axis] - first);
        const E* from = static_cast<const E*>(x.ptr) + place_beside(x, line, axis);
        for (int64_t i = 0; i < n; i++)
            items[i] = {key_at(from, (first + i) * x.strides()[axis], descending), first + i};
        const SortItem* sorted = sorted_items(items, other, n);
        int64_t* to = static_cast<int64_t*>(y.ptr) + place_beside(y, line, axis);
        for (int64_t i = 0; i < n; i++) to[(first + i) * y.strides()[axis]] = sorted[i].at;
    }
}

void argsort_run(const ArgBlock& args, int64_t begin, int64_t end, int, int) {
    AICF_BY_NUMBER(args.in(0).dtype, argsort_runs);
}

template <class E>
void merge_runs(const ArgBlock& args, int64_t begin, int64_t end) {
    const Operand &x = args.in(0), &positions = args.in(1), &y = args.out(0);
    const int axis = line_axis(args);
    const bool descending = args.scalar(1).i != 0;
    const int64_t run = args.scalar(2).i, parts = runs_of(args, kSortRun), n = x.shape()[axis];
    for (int64_t unit = begin; unit < end; unit++) {
        const int64_t line = unit / parts, first = (unit - line * parts) * kSortRun,
                      last = min64(first + kSortRun, n);
        const E* from = static_cast<const E*>(x.ptr) + place_beside(x, line, axis);
        const int64_t* at =
            static_cast<const int64_t*>(positions.ptr) + place_beside(positions, line, axis);
        int64_t* to = static_cast<int64_t*>(y.ptr) + place_beside(y, line, axis);
        const auto place = [&](int64_t i) { return at[i * positions.strides()[axis]]; };
        const auto key = [&](int64_t i) {  // positions may be anyone's
            const int64_t p = place(i), inside = p >= 0 && p < n ? p : 0;
            return key_at(from, inside * x.strides()[axis], descending);
        };
        for (int64_t out = first; out < last;) {  // a stretch of one pair of runs
            const int64_t pair = out / (2 * run) * (2 * run), middle = min64(pair + run, n),
                          stop = min64(pair + 2 * run, n), upto = min64(stop, last),
                          done = out - pair, right_size = stop - middle;
            // how many of the left run stand before `out`
            int64_t low = done > right_size ? done - right_size : 0, high = min64(done, run);
            high = min64(high, middle - pair);
            while (low < high) {
                const int64_t mid = (low + high) / 2;
                if (key(middle + (done - 1 - mid)) < key(pair + mid))
                    high = mid;
                else
                    low = mid + 1;
            }
            int64_t left = pair + low, right = middle + (done - low);
            for (; out < upto; out++) {
                const bool take_right = left == middle || (right < stop && key(right) < key(left));
                to[out * y.strides()[axis]] = take_right ? place(right++) : place(left++);
            }
        }
    }
}

void argsort_merge_run(const ArgBlock& args, int64_t begin, int64_t end, int, int) {
    AICF_BY_NUMBER(args.in(0).dtype, merge_runs);
}

// ---- running ------------------------------------------------------------------------------------

template <class A, class E>
void cumprod_lines(const ArgBlock& args, int64_t begin, int64_t end) {
    const Operand &x = args.in(0), &y = args.out(0);
    const int axis = line_axis(args);
    for (int64_t line = begin; line < end; line++) {
        const E* from = static_cast<const E*>(x.ptr) + place_beside(x, line, axis);
        E* to = static_cast<E*>(y.ptr) + place_beside(y, line, axis);
        A product = A(1);
        for (int64_t i = 0; i < x.shape()[axis]; i++) {
            product = scalar::mul(product, static_cast<A>(widen(from[i * x.strides()[axis]])));
            put(to + i * y.strides()[axis], product);
        }
    }
}

void cumprod_run(const ArgBlock& args, int64_t begin, int64_t end, int, int) {
    AICF_BY_SUM(args.out(0).dtype, cumprod_lines);
}

template <class A, class E>
void recurrence_lines(const ArgBlock& args, int64_t begin, int64_t end) {
    const Operand &a = args.in(0), &b = args.in(1), &y = args.out(0);
    const int axis = line_axis(args);
    const bool reverse = args.scalar(1).i != 0, lagged = args.scalar(2).i != 0;
    const int64_t n = y.shape()[axis];
    for (int64_t line = begin; line < end; line++) {
        const E* factors = static_cast<const E*>(a.ptr) + place_beside(a, line, axis);
        const E* terms = static_cast<const E*>(b.ptr) + place_beside(b, line, axis);
        E* to = static_cast<E*>(y.ptr) + place_beside(y, line, axis);
        A h = A(0);
        for (int64_t k = 0; k < n; k++) {
            const int64_t i = reverse ? n - 1 - k : k, before = reverse ? i + 1 : i - 1;
            A term = static_cast<A>(widen(terms[i * b.strides()[axis]]));
            if (k > 0) {
                const int64_t of = lagged ? before : i;
                const A product =
                    static_cast<A>(static_cast<A>(widen(factors[of * a.strides()[axis]])) * h);
                term = static_cast<A>(product + term);
            }
            h = term;
            put(to + i * y.strides()[axis], h);
        }
    }
}

void recurrence_run(const ArgBlock& args, int64_t begin, int64_t end, int, int) {
    AICF_BY_SUM(args.out(0).dtype, recurrence_lines);
}

template <class E>
void cumarg_lines(const ArgBlock& args, int64_t begin, int64_t end) {
    const Operand &x = args.in(0), &y = args.out(0);
    const int axis = line_axis(args);
    const bool smallest = args.scalar(1).i != 0;
    for (int64_t line = begin; line < end; line++) {
        const E* from = static_cast<const E*>(x.ptr) + place_beside(x, line, axis);
        int64_t* to = static_cast<int64_t*>(y.ptr) + place_beside(y, line, axis);
        int64_t best = 0;
        for (int64_t i = 0; i < x.shape()[axis]; i++) {
            const auto v = widen(from[i * x.strides()[axis]]),
                       most = widen(from[best * x.strides()[axis]]);
            const bool reaches = smallest ? v <= most : v >= most;
            best = v != v || (reaches && most == most) ? i : best;
            to[i * y.strides()[axis]] = best;
        }
    }
}

void cumarg_run(const ArgBlock& args, int64_t begin, int64_t end, int, int) {
    AICF_BY_NUMBER(args.in(0).dtype, cumarg_lines);
}

// ---- paths --------------------------------------------------------------------------------------

int64_t ctc_units(const ArgBlock& args, int) {
    const Operand& alpha = args.out(0);
    return alpha.shape()[0] * alpha.shape()[2] > 0 ? alpha.shape()[1] : 0;
}

template <class F>
States<F> ctc_states(const Operand& x, int64_t t, int64_t n) {
    const int64_t* const step = x.strides();
    if (t < 0 || t >= x.shape()[0]) return {nullptr, 0};
    return {static_cast<F*>(x.ptr) + t * step[0] + n * step[1], step[2]};
}
AICF_INLINE States<const bool> ctc_skips(const Operand& x, int64_t n) {
    return {static_cast<const bool*>(x.ptr) + n * x.strides()[0], x.strides()[1]};
}

template <class F>
void ctc_lines(const ArgBlock& args, int64_t begin, int64_t end) {
    const Operand &e = args.in(0), &alpha = args.out(0);
    for (int64_t n = begin; n < end; n++) {
        const States<const bool> skip = ctc_skips(args.in(1), n);
        for (int64_t t = 0; t < e.shape()[0]; t++) {
            const States<const F> said = ctc_states<const F>(e, t, n),
                                  before = ctc_states<const F>(alpha, t - 1, n);
            const States<F> to = ctc_states<F>(alpha, t, n);
            for (int64_t s = 0; s < e.shape()[2]; s++)
                to[s] = ctc_path<F>(before, said[s], skip[s], s);
        }
    }
}

template <class F>
void ctc_bwd_lines(const ArgBlock& args, int64_t begin, int64_t end) {
    const Operand &e = args.in(1), &alpha = args.in(3), &de = args.out(0);
    for (int64_t n = begin; n < end; n++) {
        const States<const bool> skip = ctc_skips(args.in(2), n);
        for (int64_t t = e.shape()[0] - 1; t >= 0; t--) {
            const States<const F> dy = ctc_states<const F>(args.in(0), t, n),
                                  paths = ctc_states<const F>(alpha, t, n),
                                  slopes = ctc_states<const F>(de, t + 1, n),
                                  said = ctc_states<const F>(e, t + 1, n),
                                  next = ctc_states<const F>(alpha, t + 1, n);
            const States<F> to = ctc_states<F>(de, t, n);
            for (int64_t s = 0; s < e.shape()[2]; s++)
                to[s] = ctc_slope<F>(dy[s], paths[s], slopes, said, next, skip, s, e.shape()[2]);
        }
    }
}

void ctc_run(const ArgBlock& args, int64_t begin, int64_t end, int, int) {
    if (DType(args.out(0).dtype) == DType::f32) return ctc_lines<float>(args, begin, end);
    ctc_lines<double>(args, begin, end);
}

void ctc_bwd_run(const ArgBlock& args, int64_t begin, int64_t end, int, int) {
    if (DType(args.out(0).dtype) == DType::f32) return ctc_bwd_lines<float>(args, begin, end);
    ctc_bwd_lines<double>(args, begin, end);
}

#undef AICF_BY_NUMBER
#undef AICF_BY_SUM

void register_lines(Table& table) {
    table.add(CpuKernel{"gather", kAnyDType, gather_run, gather_units});
    table.add(
        CpuKernel{"scatter_add", kNumbers, scatter_add_run, result_lines, scatter_add_workspace});
    table.add(CpuKernel{"scatter_last", kNumbers, scatter_last_run, result_lines});
    table.add(CpuKernel{"searchsorted", kNumbers, search_run, search_units});
    table.add(CpuKernel{"argsort", kAnyDType, argsort_run, argsort_units});
    table.add(CpuKernel{"argsort_merge", kAnyDType, argsort_merge_run, argsort_units});
    table.add(CpuKernel{"cumprod", kNumbers, cumprod_run, result_lines});
    table.add(CpuKernel{"recurrence", kFloats, recurrence_run, result_lines});
    table.add(CpuKernel{"cumarg", kNumbers, cumarg_run, result_lines});
    constexpr uint32_t wide = dtype_bit(DType::f32) | dtype_bit(DType::f64);
    table.add(CpuKernel{"ctc_paths", wide, ctc_run, ctc_units});
    table.add(CpuKernel{"ctc_paths_bwd", wide, ctc_bwd_run, ctc_units});
}

}  // namespace aicf::cpu::AICF_ISA
