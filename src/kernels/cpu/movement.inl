// copy: the same elements between any two layouts, as raw bytes.
// Included once per instruction set; see isa.cpp. No standard-library templates here.

namespace aicf::cpu::AICF_ISA {

AICF_INLINE int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }

/// The axes of a copy, merged where both sides step as one; the last is the one walked innermost.
struct CopyPlan {
    int64_t total;
    int32_t rank, size;  // size: of an element
    int32_t cross;       // axis along which `from` is contiguous when the last is not; -1: none
    int32_t pad;
    int64_t shape[kMaxDims], to[kMaxDims], from[kMaxDims];
};

void plan_copy(CopyPlan& p, const int64_t* to, const int64_t* from, const int64_t* shape, int rank,
               int size) {
    p.total = 1;
    p.rank = 0;
    p.size = size;
    p.cross = -1;
    for (int d = 0; d < rank; d++) {
        p.total *= shape[d];
        if (shape[d] == 1) continue;
        const int last = p.rank - 1;
        if (last >= 0 && p.to[last] == to[d] * shape[d] && p.from[last] == from[d] * shape[d]) {
            p.shape[last] *= shape[d];
            p.to[last] = to[d];
            p.from[last] = from[d];
        } else {
            p.shape[p.rank] = shape[d];
            p.to[p.rank] = to[d];
            p.from[p.rank++] = from[d];
        }
    }
    const int last = p.rank - 1;
    if (last > 0 && p.to[last] == 1 && p.from[last] != 1 && p.from[last] != 0)
        for (int d = 0; d < last; d++)
            if (p.from[d] == 1) p.cross = d;
}

template <int Bytes>
struct RawOf;
template <>
struct RawOf<1> {
    typedef uint8_t type;
};
template <>
struct RawOf<2> {
    typedef uint16_t __attribute__((aligned(1), may_alias)) type;
};
template <>
struct RawOf<4> {
    typedef uint32_t __attribute__((aligned(1), may_alias)) type;
};
template <>
struct RawOf<8> {
    typedef uint64_t __attribute__((aligned(1), may_alias)) type;
};

/// Four rows of four 4-byte elements, turned.
template <class U>
AICF_INLINE void turn_4x4(const U* const* from, U* const* to) {
    typedef int32_t V __attribute__((vector_size(16), aligned(1), may_alias));
    typedef int32_t M __attribute__((vector_size(16)));
    const V a = *reinterpret_cast<const V*>(from[0]), b = *reinterpret_cast<const V*>(from[1]);
    const V c = *reinterpret_cast<const V*>(from[2]), d = *reinterpret_cast<const V*>(from[3]);
    const V ab0 = __builtin_shuffle(a, b, M{0, 4, 1, 5}),
            ab1 = __builtin_shuffle(a, b, M{2, 6, 3, 7});
    const V cd0 = __builtin_shuffle(c, d, M{0, 4, 1, 5}),
            cd1 = __builtin_shuffle(c, d, M{2, 6, 3, 7});
    *reinterpret_cast<V*>(to[0]) = __builtin_shuffle(ab0, cd0, M{0, 1, 4, 5});
    *reinterpret_cast<V*>(to[1]) = __builtin_shuffle(ab0, cd0, M{2, 3, 6, 7});
    *reinterpret_cast<V*>(to[2]) = __builtin_shuffle(ab1, cd1, M{0, 1, 4, 5});
    *reinterpret_cast<V*>(to[3]) = __builtin_shuffle(ab1, cd1, M{2, 3, 6, 7});
}

/// A tile of B x B elements by way of a buffer, so that both sides move whole cache lines.
template <class U, int B>
AICF_INLINE void transpose_tile(U* to, int64_t to_row, const U* from, int64_t from_row) {
    U tile[B * B];
    for (int i = 0; i < B; i += 4)
        for (int j = 0; j < B; j += 4) {
            const U* x = from + i * from_row + j;
            U* y = tile + j * B + i;
            if constexpr (sizeof(U) == 4) {
                const U* const four[4] = {x, x + from_row, x + 2 * from_row, x + 3 * from_row};
                U* const turned[4] = {y, y + B, y + 2 * B, y + 3 * B};
                turn_4x4(four, turned);
            } else {
                for (int a = 0; a < 4; a++)
                    for (int b = 0; b < 4; b++) y[b * B + a] = x[a * from_row + b];
            }
        }
    for (int j = 0; j < B; j++) __builtin_memcpy(to + j * to_row, tile + j * B, B * sizeof(U));
}

/// to[j * to_row + i] = from[i * from_row + j], j < rows, i < cols.
template <class U>
__attribute__((noinline)) void transpose(U* to, int64_t to_row, const U* from, int64_t from_row,
                                         int64_t rows, int64_t cols) {
    constexpr int B = sizeof(U) < 8 ? kTurned : kTurned / 2;
    const auto edge = [&](int64_t i0, int64_t i1, int64_t j0, int64_t j1) {
        int64_t i = i0;
        for (; i + 4 <= i1; i += 4) {
            int64_t j = j0;
            for (; j + 4 <= j1; j += 4)
                transpose_tile<U, 4>(to + j * to_row + i, to_row, from + i * from_row + j,
                                     from_row);
            for (; j < j1; j++)
                for (int64_t k = i; k < i + 4; k++) to[j * to_row + k] = from[k * from_row + j];
        }
        for (; i < i1; i++)
            for (int64_t j = j0; j < j1; j++) to[j * to_row + i] = from[i * from_row + j];
    };
    for (int64_t i = 0; i < cols; i += B)
        for (int64_t j = 0; j < rows; j += B) {
            if (i + B <= cols && j + B <= rows)
                transpose_tile<U, B>(to + j * to_row + i, to_row, from + i * from_row + j,
                                     from_row);
            else
                edge(i, min64(i + B, cols), j, min64(j + B, rows));
        }
}

void transpose_bytes(char* to, int64_t to_row, const char* from, int64_t from_row, int64_t rows,
                     int64_t cols, int size) {
    const auto run = [&](auto element) {
        typedef decltype(element) U;
        transpose(reinterpret_cast<U*>(to), to_row, reinterpret_cast<const U*>(from), from_row,
                  rows, cols);
    };
    switch (size) {
        case 1:
            return run(uint8_t());
        case 2:
            return run(uint16_t());
        case 4:
            return run(uint32_t());
        default:
            return run(uint64_t());
    }
}

template <class U>
void copy_row(U* to, int64_t to_step, const U* from, int64_t from_step, int64_t n) {
    if (to_step == 1 && from_step == 1) {
        if (n * int64_t(sizeof(U)) >= 32) {
            memmove(to, from, size_t(n) * sizeof(U));
        } else {
            for (int64_t i = 0; i < n; i++) to[i] = from[i];
        }
    } else if (to_step == 1 && from_step == 0) {
        const U value = *from;
        for (int64_t i = 0; i < n; i++) to[i] = value;
    } else {
        for (int64_t i = 0; i < n; i++) to[i * to_step] = from[i * from_step];
    }
}

/// Slices [begin, end) along the first axis.
template <class U>
void copy_slices(const CopyPlan& p, void* to_ptr, const void* from_ptr, int64_t begin,
                 int64_t end) {
    if (p.total == 0 || begin >= end) return;
    U* to = static_cast<U*>(to_ptr);
    const U* from = static_cast<const U*>(from_ptr);
    const int last = p.rank - 1;
    if (last < 0) {
        *to = *from;
        return;
    }
    if (p.rank == 1)
        return copy_row(to + begin * p.to[0], p.to[0], from + begin * p.from[0], p.from[0],
                        end - begin);
    int64_t shape[kMaxDims];
    for (int d = 0; d < p.rank; d++) shape[d] = p.shape[d];
    shape[0] = end - begin;
    to += begin * p.to[0];
    from += begin * p.from[0];
    const int64_t rows = p.cross >= 0 ? shape[p.cross] : 1;
    if (p.cross >= 0) shape[p.cross] = 1;  // walked inside the transpose
    int64_t index[kMaxDims] = {};
    for (;;) {
        if (p.cross >= 0)
            transpose<U>(to, p.to[p.cross], from, p.from[last], rows, shape[last]);
        else
            copy_row(to, p.to[last], from, p.from[last], shape[last]);
        int d = last - 1;
        for (; d >= 0; d--) {
            to += p.to[d];
            from += p.from[d];
            if (++index[d] < shape[d]) break;
            to -= shape[d] * p.to[d];
            from -= shape[d] * p.from[d];
            index[d] = 0;
        }
        if (d < 0) return;
    }
}

void copy_slices(const CopyPlan& p, void* to, const void* from, int64_t begin, int64_t end) {
    switch (p.size) {
        case 1:
            return copy_slices<RawOf<1>::type>(p, to, from, begin, end);
        case 2:
            return copy_slices<RawOf<2>::type>(p, to, from, begin, end);
        case 4:
            return copy_slices<RawOf<4>::type>(p, to, from, begin, end);
        default:
            return copy_slices<RawOf<8>::type>(p, to, from, begin, end);
    }
}

void strided_copy(void* to, const int64_t* to_strides, const void* from,
                  const int64_t* from_strides, const int64_t* shape, int rank, int size) {
    CopyPlan p;
    plan_copy(p, to_strides, from_strides, shape, rank, size);
    copy_slices(p, to, from, 0, p.rank ? p.shape[0] : 1);
}

AICF_INLINE int element_size(DType dtype) {
    switch (dtype) {
        case DType::f32:
        case DType::i32:
            return 4;
        case DType::f64:
        case DType::i64:
            return 8;
        case DType::f16:
        case DType::bf16:
        case DType::i16:
            return 2;
        default:
            return 1;
    }
}

void copy_prepare(ArgBlock& args) {
    const Operand &from = args.in(0), &to = args.out(0);
    plan_copy(*const_cast<CopyPlan*>(static_cast<const CopyPlan*>(args.tail_ptr())), to.strides(),
              from.strides(), to.shape(), to.rank, element_size(DType(to.dtype)));
}

AICF_INLINE const CopyPlan& copy_plan(const ArgBlock& args) {
    return *static_cast<const CopyPlan*>(args.tail_ptr());
}

/// First-axis slices to a unit, and whole tiles of a transpose along that axis.
AICF_INLINE int64_t copy_grain(const CopyPlan& p) {
    const int64_t slice = p.total / (p.rank ? p.shape[0] : 1) * p.size;
    const int64_t least = slice > 0 ? (kCopyBytes + slice - 1) / slice : 1;
    return p.cross == 0 ? (least + kCopySlices - 1) / kCopySlices * kCopySlices : least;
}

int64_t copy_units(const ArgBlock& args, int phase) {
    const CopyPlan& p = copy_plan(args);
    if (phase > 0 || p.total == 0) return 0;
    if (p.rank == 0) return 1;
    const int64_t grain = copy_grain(p);
    return (p.shape[0] + grain - 1) / grain;
}

void copy_run(const ArgBlock& args, int64_t begin, int64_t end, int, int) {
    const CopyPlan& p = copy_plan(args);
    if (begin >= end) return;
    if (p.rank == 0) return copy_slices(p, args.out(0).ptr, args.in(0).ptr, 0, 1);
    const int64_t grain = copy_grain(p);
    copy_slices(p, args.out(0).ptr, args.in(0).ptr, begin * grain, min64(end * grain, p.shape[0]));
}

void register_movement(Table& table) {
    table.add(CpuKernel{"copy", kAnyDType, copy_run, copy_units, nullptr, sizeof(CopyPlan),
                        copy_prepare});
    table.strided_copy = strided_copy;
}

}  // namespace aicf::cpu::AICF_ISA
