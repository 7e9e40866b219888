// Ops that compute where to read or write: pad, concat, take, pick, argmax, cumsum.
// Included once per instruction set; see isa.cpp. No standard-library templates here.

namespace aicf::cpu::AICF_ISA {

// ---- places -------------------------------------------------------------------------------------

/// Offset, in elements, of the row-major position `linear` over the first `rank` axes.
AICF_INLINE int64_t place_of(const Operand& o, int64_t linear, int rank) {
    int64_t at = 0;
    for (int d = rank - 1; d >= 0; d--) {
        const int64_t next = linear / o.shape()[d];
        at += (linear - next * o.shape()[d]) * o.strides()[d];
        linear = next;
    }
    return at;
}

AICF_INLINE int64_t count_of(const Operand& o, int begin, int end) {
    int64_t count = 1;
    for (int d = begin; d < end; d++) count *= o.shape()[d];
    return count;
}

AICF_INLINE int64_t index_at(const Operand& indices, int64_t at) {
    return DType(indices.dtype) == DType::i32 ? static_cast<const int32_t*>(indices.ptr)[at]
                                              : static_cast<const int64_t*>(indices.ptr)[at];
}

/// The number as an element of `dtype`, in the low bytes.
AICF_INLINE uint64_t element_bits(DType dtype, double number) {
    uint64_t bits = 0;
    const auto put_bits = [&](auto element) { memcpy(&bits, &element, sizeof element); };
    switch (dtype) {
        case DType::f32:
            put_bits(static_cast<float>(number));
            break;
        case DType::f64:
            put_bits(number);
            break;
        case DType::f16:
            put_bits(scalar::f32_to_half(static_cast<float>(number)));
            break;
        case DType::bf16:
            put_bits(scalar::f32_to_bfloat(static_cast<float>(number)));
            break;
#define AICF_PUT(dtype, type)                 \
    case DType::dtype:                        \
        put_bits(scalar::cast<type>(number)); \
        break;
            AICF_INTEGERS(AICF_PUT)
#undef AICF_PUT
        case DType::boolean:
            put_bits(static_cast<uint8_t>(number != 0));
            break;
    }
    return bits;
}

/// Calls fn with a pointer type of the element's size.
#define AICF_BY_SIZE(dtype, fn)                    \
    switch (element_size(DType(dtype))) {          \
        case 8:                                    \
            return fn<uint64_t>(args, begin, end); \
        case 4:                                    \
            return fn<uint32_t>(args, begin, end); \
        case 2:                                    \
            return fn<uint16_t>(args, begin, end); \
        default:                                   \
            return fn<uint8_t>(args, begin, end);  \
    }

#define AICF_BY_FLOAT(dtype, fn, ...)               \
    switch (DType(dtype)) {                         \
        case DType::f32:                            \
            return fn<float, float>(__VA_ARGS__);   \
        case DType::f64:                            \
            return fn<double, double>(__VA_ARGS__); \
        case DType::f16:                            \
            return fn<float, F16>(__VA_ARGS__);     \
        case DType::bf16:                           \
            return fn<float, BF16>(__VA_ARGS__);    \
        default:                                    \
            return;                                 \
    }

// ---- pad ----------------------------------------------------------------------------------------

AICF_INLINE int64_t output_rows(const Operand& y) {
    return count_of(y, 0, y.rank > 0 ? y.rank - 1 : 0);
}

int64_t pad_units(const ArgBlock& args, int) {
    return count_of(args.out(0), 0, args.out(0).rank) > 0 ? output_rows(args.out(0)) : 0;
}

// Scalars: shape[8], start[8], step[8], value.
template <class T>
void pad_rows(const ArgBlock& args, int64_t begin, int64_t end) {
    const Operand &x = args.in(0), &y = args.out(0);
    const uint64_t bits = element_bits(DType(y.dtype), args.scalar(24).f);
    const T fill = static_cast<T>(bits);
    if (y.rank == 0) {
        *static_cast<T*>(y.ptr) = *static_cast<const T*>(x.ptr);
        return;
    }
    const int last = y.rank - 1;
    const int64_t width = y.shape()[last], count = x.shape()[last];
    const int64_t start = args.scalar(8 + last).i, to_step = y.strides()[last];
    const int64_t step = args.scalar(16 + last).i * to_step, from_step = x.strides()[last];
    int64_t index[kMaxDims];
    for (int64_t d = last - 1, rest = begin; d >= 0; d--) {
        index[d] = rest % y.shape()[d];
        rest /= y.shape()[d];
    }
    for (int64_t row = begin; row < end; row++) {
        T* to = static_cast<T*>(y.ptr);
        const T* from = static_cast<const T*>(x.ptr);
        bool inside = true;
        for (int d = 0; d < last; d++) {
            const int64_t off = index[d] - args.scalar(8 + d).i, gap = args.scalar(16 + d).i,
                          at = gap == 1 ? off : off / gap;
            inside &= at * gap == off && at >= 0 && at < x.shape()[d];
            to += index[d] * y.strides()[d];
            from += at * x.strides()[d];
        }
        for (int d = last - 1; d >= 0 && ++index[d] == y.shape()[d]; d--) index[d] = 0;
        if (inside && step == 1 && from_step == 1) {
            for (int64_t i = 0; i < start; i++) to[i] = fill;
            for (int64_t i = 0; i < count; i++) to[start + i] = from[i];
            for (int64_t i = start + count; i < width; i++) to[i] = fill;
            continue;
        }
        for (int64_t i = 0; i < width; i++) to[i * to_step] = fill;
        for (int64_t i = 0; inside && i < count; i++)
            to[start * to_step + i * step] = from[i * from_step];
    }
}

void pad_run(const ArgBlock& args, int64_t begin, int64_t end, int,
             int){AICF_BY_SIZE(args.out(0).dtype, pad_rows)}

// ---- concat: a unit is an input -----------------------------------------------------------------

int64_t concat_units(const ArgBlock& args, int) {
    return args.inputs;
}

void concat_run(const ArgBlock& args, int64_t begin, int64_t end, int, int) {
    const Operand& y = args.out(0);
    const int axis = static_cast<int>(args.scalar(0).i), size = element_size(DType(y.dtype));
    int64_t at = 0;
    for (int64_t k = 0; k < end; k++) {
        const Operand& x = args.in(static_cast<int>(k));
        if (k >= begin && count_of(x, 0, x.rank) > 0)
            strided_copy(static_cast<char*>(y.ptr) + at * y.strides()[axis] * size, y.strides(),
                         x.ptr, x.strides(), x.shape(), x.rank, size);
        at += x.shape()[axis];
    }
}

// ---- rows of a table ----------------------------------------------------------------------------

int64_t take_units(const ArgBlock& args, int) { return count_of(args.in(1), 0, args.in(1).rank); }

template <class T>
void take_rows(const ArgBlock& args, int64_t begin, int64_t end) {
    const Operand &table = args.in(0), &indices = args.in(1), &y = args.out(0);
    const T missing = static_cast<T>(element_bits(
        DType(y.dtype), (kFloats & dtype_bit(DType(y.dtype))) ? __builtin_nan("") : 0.0));
    const int rest = table.rank - 1;
    const int64_t count = count_of(table, 1, table.rank);
    for (int64_t i = begin; i < end; i++) {
        const int64_t index = index_at(indices, place_of(indices, i, indices.rank));
        T* to = static_cast<T*>(y.ptr) + place_of(y, i, indices.rank);
        const bool inside = index >= 0 && index < table.shape()[0];
        const T* from =
            static_cast<const T*>(table.ptr) + (inside ? index * table.strides()[0] : 0);
        for (int64_t row = 0; row < count;) {  // a run of the last axis
            const int64_t run = rest > 0 ? table.shape()[rest] : 1;
            int64_t t_at = 0, y_at = 0, left = row / run;
            for (int d = rest - 1; d >= 1; d--) {
                const int64_t next = left / table.shape()[d], k = left - next * table.shape()[d];
                t_at += k * table.strides()[d];
                y_at += k * y.strides()[indices.rank + d - 1];
                left = next;
            }
            const int64_t t_step = rest > 0 ? table.strides()[rest] : 0,
                          y_step = rest > 0 ? y.strides()[y.rank - 1] : 0;
            if (inside && t_step == 1 && y_step == 1)
                __builtin_memcpy(to + y_at, from + t_at, static_cast<size_t>(run) * sizeof(T));
            else
                for (int64_t j = 0; j < run; j++)
                    to[y_at + j * y_step] = inside ? from[t_at + j * t_step] : missing;
            row += run;
        }
    }
}

void take_run(const ArgBlock& args, int64_t begin, int64_t end, int,
              int){AICF_BY_SIZE(args.out(0).dtype, take_rows)}

// take_bwd: phase 0 sorts positions by row, stably; phase 1 sums each row's in ascending position.
uint64_t take_bwd_workspace(const ArgBlock& args, int) {
    return 8 *
           static_cast<uint64_t>(args.scalar(0).i + 1 + count_of(args.in(1), 0, args.in(1).rank));
}

int64_t take_bwd_units(const ArgBlock& args, int phase) {
    return phase == 0 ? 1 : args.scalar(0).i;
}

void sort_positions(const ArgBlock& args) {
    const Operand& indices = args.in(1);
    const int64_t rows = args.scalar(0).i, count = count_of(indices, 0, indices.rank);
    int64_t* first =
        static_cast<int64_t*>(args.workspace);  // first[r]: where row r's positions begin
    int64_t* positions = first + rows + 1;
    for (int64_t r = 0; r <= rows; r++) first[r] = 0;
    const auto row_at = [&](int64_t i) {
        return index_at(indices, place_of(indices, i, indices.rank));
    };
    for (int64_t i = 0; i < count; i++) {
        const int64_t r = row_at(i);
        if (r >= 0 && r < rows) first[r + 1]++;
    }
    for (int64_t r = 0; r < rows; r++) first[r + 1] += first[r];
    for (int64_t i = 0; i < count; i++) {
        const int64_t r = row_at(i);
        if (r >= 0 && r < rows) positions[first[r]++] = i;
    }
    for (int64_t r = rows; r > 0; r--) first[r] = first[r - 1];
    first[0] = 0;
}

template <class A, class E>
void take_bwd_rows(const ArgBlock& args, int64_t begin, int64_t end) {
    const Operand &dy = args.in(0), &indices = args.in(1), &y = args.out(0);
    const int64_t rows = args.scalar(0).i,
                  chain = args.scalar(1).i > 0 ? args.scalar(1).i : kChainChunk;
    const int64_t *first = static_cast<const int64_t*>(args.workspace),
                  *positions = first + rows + 1;
    const int64_t width = count_of(y, 1, y.rank);
    A part[kTreeLeaf], total[kTreeLeaf];
    for (int64_t r = begin; r < end; r++)
        for (int64_t at = 0; at < width; at += kTreeLeaf) {
            const int64_t n = min64(kTreeLeaf, width - at), count = first[r + 1] - first[r];
            for (int64_t j = 0; j < n; j++) total[j] = A(0);
            for (int64_t i = 0; i < count; i++) {
                const int64_t base = place_of(dy, positions[first[r] + i], indices.rank);
                if (y.rank == 2) {  // the rows' elements lie evenly
                    const int64_t step = dy.strides()[indices.rank];
                    const E* from = static_cast<const E*>(dy.ptr) + base + at * step;
                    if (i % chain == 0)
                        for (int64_t j = 0; j < n; j++) part[j] = widen(from[j * step]);
                    else if (step == 1)
                        for (int64_t j = 0; j < n; j++) part[j] = part[j] + widen(from[j]);
                    else
                        for (int64_t j = 0; j < n; j++) part[j] = part[j] + widen(from[j * step]);
                } else {
                    for (int64_t j = 0; j < n; j++) {
                        int64_t off = base, left = at + j;
                        for (int d = y.rank - 1; d >= 1; d--) {
                            const int64_t next = left / y.shape()[d];
                            off +=
                                (left - next * y.shape()[d]) * dy.strides()[indices.rank + d - 1];
                            left = next;
                        }
                        const A v = widen(static_cast<const E*>(dy.ptr)[off]);
                        part[j] = i % chain == 0 ? v : part[j] + v;
                    }
                }
                if ((i + 1) % chain == 0 || i + 1 == count)
                    for (int64_t j = 0; j < n; j++)
                        total[j] = i < chain ? part[j] : total[j] + part[j];
            }
            E* to = static_cast<E*>(y.ptr) + r * y.strides()[0];
            if (y.rank == 2) {
                const int64_t step = y.strides()[1];
                for (int64_t j = 0; j < n; j++) put(to + (at + j) * step, total[j]);
                continue;
            }
            for (int64_t j = 0; j < n; j++) {
                int64_t off = 0, left = at + j;
                for (int d = y.rank - 1; d >= 1; d--) {
                    const int64_t next = left / y.shape()[d];
                    off += (left - next * y.shape()[d]) * y.strides()[d];
                    left = next;
                }
                put(to + off, total[j]);
            }
        }
}

void take_bwd_run(const ArgBlock& args, int64_t begin, int64_t end, int phase, int) {
    if (phase == 0) return sort_positions(args);
    AICF_BY_FLOAT(args.out(0).dtype, take_bwd_rows, args, begin, end)
}

// ---- one element of each row --------------------------------------------------------------------

int64_t row_count(const ArgBlock& args, int) { return args.in(0).shape()[0]; }

template <class T>
void pick_rows(const ArgBlock& args, int64_t begin, int64_t end) {
    const Operand &x = args.in(0), &labels = args.in(1), &y = args.out(0);
    const T missing = static_cast<T>(element_bits(DType(y.dtype), __builtin_nan("")));
    for (int64_t i = begin; i < end; i++) {
        const int64_t label = index_at(labels, i * labels.strides()[0]);
        const bool inside = label >= 0 && label < x.shape()[1];
        static_cast<T*>(y.ptr)[i * y.strides()[0]] =
            inside ? static_cast<const T*>(x.ptr)[i * x.strides()[0] + label * x.strides()[1]]
                   : missing;
    }
}

void pick_run(const ArgBlock& args, int64_t begin, int64_t end, int, int) {
    AICF_BY_SIZE(args.out(0).dtype, pick_rows)
}

template <class T>
void pick_bwd_rows(const ArgBlock& args, int64_t begin, int64_t end) {
    const Operand &dy = args.in(0), &labels = args.in(1), &y = args.out(0);
    for (int64_t i = begin; i < end; i++) {
        const int64_t label = index_at(labels, i * labels.strides()[0]);
        T* row = static_cast<T*>(y.ptr) + i * y.strides()[0];
        for (int64_t c = 0; c < y.shape()[1]; c++)
            row[c * y.strides()[1]] =
                c == label ? static_cast<const T*>(dy.ptr)[i * dy.strides()[0]] : T(0);
    }
}

void pick_bwd_run(const ArgBlock& args, int64_t begin, int64_t end, int,
                  int){AICF_BY_SIZE(args.out(0).dtype, pick_bwd_rows)}

// ---- along one axis -----------------------------------------------------------------------------

/// Offset of result `linear` of an operand whose axis `axis` is left out of the count.
AICF_INLINE int64_t place_beside(const Operand& o, int64_t linear, int axis) {
    int64_t at = 0;
    for (int d = o.rank - 1; d >= 0; d--) {
        if (d == axis) continue;
        const int64_t next = linear / o.shape()[d];
        at += (linear - next * o.shape()[d]) * o.strides()[d];
        linear = next;
    }
    return at;
}

int64_t beside_units(const Operand& o, int axis) {
    int64_t count = 1;
    for (int d = 0; d < o.rank; d++)
        if (d != axis) count *= o.shape()[d];
    return count;
}

AICF_INLINE int reduced_axis(const ArgBlock& args) {
    return __builtin_ctzll(static_cast<uint64_t>(args.scalar(0).i));
}

int64_t argmax_units(const ArgBlock& args, int) {
    return beside_units(args.in(0), reduced_axis(args));
}

template <class E>
void argmax_results(const ArgBlock& args, int64_t begin, int64_t end) {
    const Operand &x = args.in(0), &y = args.out(0);
    const int axis = reduced_axis(args);
    const bool kept = y.rank == x.rank;
    for (int64_t r = begin; r < end; r++) {
        const E* from = static_cast<const E*>(x.ptr) + place_beside(x, r, axis);
        int64_t best = 0;
        auto most = widen(*from);
        for (int64_t i = 1; i < x.shape()[axis]; i++) {
            const auto v = widen(from[i * x.strides()[axis]]);
            if (v > most || (v != v && most == most)) {
                most = v;
                best = i;
            }
        }
        static_cast<int64_t*>(y.ptr)[kept ? place_beside(y, r, axis) : place_of(y, r, y.rank)] =
            best;
    }
}

void argmax_run(const ArgBlock& args, int64_t begin, int64_t end, int, int) {
    by_number(DType(args.in(0).dtype),
              [&](auto e) { argmax_results<decltype(e)>(args, begin, end); });
}

int64_t cumsum_units(const ArgBlock& args, int) {
    return beside_units(args.in(0), static_cast<int>(args.scalar(0).i));
}

int64_t chunk_units(const ArgBlock& args, int) {
    const Operand& x = args.in(0);
    const int axis = static_cast<int>(args.scalar(0).i);
    return beside_units(x, axis) * ((x.shape()[axis] + kScanChunk - 1) / kScanChunk);
}

/// A line along the axis in the order of its running sum, and its chunks.
template <class E>
struct ScanLine {
    int64_t n, step;
    E* first;

    ScanLine(const ArgBlock& args, const Operand& o, int64_t line, bool reverse) {
        const int axis = static_cast<int>(args.scalar(0).i);
        n = o.shape()[axis];
        step = reverse ? -o.strides()[axis] : o.strides()[axis];
        first =
            static_cast<E*>(o.ptr) + place_beside(o, line, axis) - (reverse ? (n - 1) * step : 0);
    }
    int64_t chunks() const { return (n + kScanChunk - 1) / kScanChunk; }
    int64_t terms(int64_t chunk) const {
        const int64_t left = n - chunk * kScanChunk;
        return left < kScanChunk ? left : kScanChunk;
    }
};

/// found(i, k, sum) of element i of Lines lines, their running sums from the first on; each waits
/// for its own alone.
template <int Lines, class A, class E, class F>
AICF_INLINE void running_sums(const E* x, int64_t terms, int64_t step, int64_t apart, F found) {
    A sums[Lines];
    for (int k = 0; k < Lines; k++) {
        sums[k] = static_cast<A>(widen(x[k * apart]));
        found(0, k, sums[k]);
    }
    for (int64_t i = 1; i < terms; i++)
        for (int k = 0; k < Lines; k++) {
            sums[k] = static_cast<A>(sums[k] + static_cast<A>(widen(x[i * step + k * apart])));
            found(i, k, sums[k]);
        }
}

template <class A, class E>
void cumsum_results(const ArgBlock& args, int64_t begin, int64_t end) {
    const bool reverse = args.scalar(1).i != 0;
    for (int64_t r = begin; r < end; r++) {
        const ScanLine<const E> x(args, args.in(0), r, reverse);
        const ScanLine<E> y(args, args.out(0), r, reverse);
        if (x.n == 0) return;
        running_sums<1, A>(x.first, x.n, x.step, 0,
                           [&](int64_t i, int, A sum) { put(y.first + i * y.step, sum); });
    }
}

template <int N>
struct Lines {
    static constexpr int count = N;
};

/// run(x, line, chunk, how many) over units of chunks; whole ones of a line by eights.
template <class E, class Run>
AICF_INLINE void each_chunk(const ArgBlock& args, int64_t begin, int64_t end, Run run) {
    const bool reverse = args.scalar(1).i != 0;
    for (int64_t u = begin; u < end;) {
        const int64_t chunks = ScanLine<const E>(args, args.in(0), 0, reverse).chunks(),
                      chunk = u % chunks;
        const ScanLine<const E> x(args, args.in(0), u / chunks, reverse);
        const bool eight = u + 8 <= end && (chunk + 8) * kScanChunk <= x.n;
        eight ? run(x, u / chunks, chunk, Lines<8>()) : run(x, u / chunks, chunk, Lines<1>());
        u += eight ? 8 : 1;
    }
}

template <class A, class E>
void chunk_sums_units(const ArgBlock& args, int64_t begin, int64_t end) {
    typedef typename ComputeOf<E>::type W;
    each_chunk<E>(args, begin, end, [&](auto x, int64_t line, int64_t chunk, auto lines) {
        constexpr int count = decltype(lines)::count;
        A sums[count];
        running_sums<count, A>(x.first + chunk * kScanChunk * x.step, x.terms(chunk), x.step,
                               kScanChunk * x.step, [&](int64_t, int k, A sum) { sums[k] = sum; });
        const ScanLine<W> y(args, args.out(0), line, false);
        for (int k = 0; k < count; k++) put(y.first + (chunk + k) * y.step, sums[k]);
    });
}

template <class A, class E>
void cumsum_chunks_units(const ArgBlock& args, int64_t begin, int64_t end) {
    typedef typename ComputeOf<E>::type W;
    const bool reverse = args.scalar(1).i != 0;
    each_chunk<E>(args, begin, end, [&](auto x, int64_t line, int64_t chunk, auto lines) {
        const ScanLine<const W> before(args, args.in(1), line, false);
        const ScanLine<E> y(args, args.out(0), line, reverse);
        const int64_t at = chunk * kScanChunk, apart = kScanChunk * y.step;
        const bool first = chunk == 0;
        constexpr int count = decltype(lines)::count;
        A from[count];
        for (int k = first; k < count; k++)
            from[k] = static_cast<A>(before.first[(chunk + k - 1) * before.step]);
        running_sums<count, A>(x.first + at * x.step, x.terms(chunk), x.step, kScanChunk * x.step,
                               [&](int64_t i, int k, A sum) {
                                   const A whole =
                                       first && k == 0 ? sum : static_cast<A>(from[k] + sum);
                                   put(y.first + (at + i) * y.step + k * apart, whole);
                               });
    });
}

void cumsum_run(const ArgBlock& args, int64_t begin, int64_t end, int, int) {
    by_number(DType(args.in(0).dtype), [&](auto e) {
        cumsum_results<typename SumOf<decltype(e)>::type, decltype(e)>(args, begin, end);
    });
}

void chunk_sums_run(const ArgBlock& args, int64_t begin, int64_t end, int, int) {
    by_number(DType(args.in(0).dtype), [&](auto e) {
        chunk_sums_units<typename SumOf<decltype(e)>::type, decltype(e)>(args, begin, end);
    });
}

void cumsum_chunks_run(const ArgBlock& args, int64_t begin, int64_t end, int, int) {
    by_number(DType(args.in(0).dtype), [&](auto e) {
        cumsum_chunks_units<typename SumOf<decltype(e)>::type, decltype(e)>(args, begin, end);
    });
}

#undef AICF_BY_SIZE

void register_indexed(Table& table) {
    table.add(CpuKernel{"pad", kAnyDType, pad_run, pad_units});
    table.add(CpuKernel{"concat", kAnyDType, concat_run, concat_units});
    table.add(CpuKernel{"take", kAnyDType, take_run, take_units});
    table.add(CpuKernel{"take_bwd", kFloats, take_bwd_run, take_bwd_units, take_bwd_workspace, 0,
                        nullptr, 2});
    table.add(CpuKernel{"pick", kFloats, pick_run, row_count});
    table.add(CpuKernel{"pick_bwd", kFloats, pick_bwd_run, row_count});
    table.add(CpuKernel{"reduce_argmax", kNumbers, argmax_run, argmax_units});
    table.add(CpuKernel{"cumsum", kNumbers, cumsum_run, cumsum_units});
    table.add(CpuKernel{"chunk_sums", kNumbers, chunk_sums_run, chunk_units});
    table.add(CpuKernel{"cumsum_chunks", kNumbers, cumsum_chunks_run, chunk_units});
}

}  // namespace aicf::cpu::AICF_ISA
