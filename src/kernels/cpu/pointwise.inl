// Elementwise instructions, and the interpreter that runs programs of them (see kernels.h).
// Included once per instruction set; see isa.cpp. No standard-library templates here.

namespace aicf::cpu::AICF_ISA {

template <class T>
constexpr DType dtype_of = DType::boolean;
template <>
constexpr DType dtype_of<float> = DType::f32;
template <>
constexpr DType dtype_of<double> = DType::f64;
#define AICF_DTYPE(dtype, type) \
    template <>                 \
    constexpr DType dtype_of<type> = DType::dtype;
AICF_INTEGERS(AICF_DTYPE)
#undef AICF_DTYPE

// Functions such as exp are as quick as memory only in the widest vectors.
#if defined(__AVX512F__)
constexpr bool kWide = true;
#else
constexpr bool kWide = false;
#endif

// ---- instructions -------------------------------------------------------------------------------

// An output may lie exactly on an input: element i is read before it is written, in any width.
#define AICF_LOOP _Pragma("GCC ivdep") for (int64_t i = 0; i < n; i++)

// What else a loop does with a result before it stores it: nothing, or one op more, whose other
// operand is z.
struct Alone {
    template <class T>
    static AICF_INLINE T call(T v, const T*, int64_t) {
        return v;
    }
};
template <class G>
struct Then {
    template <class T>
    static AICF_INLINE T call(T v, const T* z, int64_t i) {
        return G::call(v, z[i]);
    }
};
template <class G>
struct From {
    template <class T>
    static AICF_INLINE T call(T v, const T* z, int64_t i) {
        return G::call(z[i], v);
    }
};

template <class F, class T, class End>
struct Unary {
    static AICF_INLINE void run(int64_t n, T* y, const T* x, const T* z) {
        AICF_LOOP y[i] = End::call(F::call(x[i]), z, i);
    }
};

template <class F, class T, class R, int Scalars>
void map1(int64_t n, void* const* at, const Scalar* s) {
    R* y = static_cast<R*>(at[0]);
    const T* x = static_cast<const T*>(at[1]);
    if constexpr (Scalars == 0 && dtype_of<T> == dtype_of<R>) {
        Unary<F, T, Alone>::run(n, y, x, nullptr);
    } else if constexpr (Scalars == 0) {
        AICF_LOOP y[i] = F::call(x[i]);
    } else if constexpr (Scalars == 1) {
        const T p = scalar::cast<T>(s[0].f);
        AICF_LOOP y[i] = F::call(x[i], p);
    } else {
        const T p = scalar::cast<T>(s[0].f), q = scalar::cast<T>(s[1].f);
        AICF_LOOP y[i] = F::call(x[i], p, q);
    }
}

template <class F, class T, class R, int Scalars>
void map2(int64_t n, void* const* at, const Scalar* s) {
    R* y = static_cast<R*>(at[0]);
    const T *a = static_cast<const T*>(at[1]), *b = static_cast<const T*>(at[2]);
    if constexpr (Scalars == 0) {
        AICF_LOOP y[i] = F::call(a[i], b[i]);
    } else if constexpr (Scalars == 1) {
        const T p = scalar::cast<T>(s[0].f);
        AICF_LOOP y[i] = F::call(a[i], b[i], p);
    } else {
        const T p = scalar::cast<T>(s[0].f), q = scalar::cast<T>(s[1].f);
        AICF_LOOP y[i] = F::call(a[i], b[i], p, q);
    }
}

template <class F, class T, class A>
void map3(int64_t n, void* const* at, const Scalar*) {
    T* y = static_cast<T*>(at[0]);
    const A* a = static_cast<const A*>(at[1]);
    const T *b = static_cast<const T*>(at[2]), *c = static_cast<const T*>(at[3]);
    AICF_LOOP y[i] = F::call(a[i], b[i], c[i]);
}

// Two instructions as one: F, and what End says.
template <class F, class T, int Arity, class End>
void map_pair(int64_t n, void* const* at, const Scalar*) {
    T* y = static_cast<T*>(at[0]);
    const T *a = static_cast<const T*>(at[1]), *b = static_cast<const T*>(at[2]);
    if constexpr (Arity == 1) {
        Unary<F, T, End>::run(n, y, a, b);
    } else {
        const T* z = static_cast<const T*>(at[3]);
        AICF_LOOP y[i] = End::call(F::call(a[i], b[i]), z, i);
    }
}

template <class F, class T, int Arity, int Scalars, class R, class First>
void add_instr(Table& table, const char* name, DType in, DType out, bool quick = true) {
    InstrFn fn = nullptr;
    if constexpr (Arity == 1)
        fn = map1<F, T, R, Scalars>;
    else if constexpr (Arity == 2)
        fn = map2<F, T, R, Scalars>;
    else
        fn = map3<F, T, First>;
    table.add(InstrDef{name, in, out, 1, Arity, Scalars, 0, fn, quick});
}

// Which types a row of AICF_POINTWISE is compiled for, by its kind.
template <class F, int Arity, int Scalars>
struct Row {
    Table& table;
    const char* name;
    template <class T>
    void same(bool quick = true) const {
        add_instr<F, T, Arity, Scalars, T, T>(table, name, dtype_of<T>, dtype_of<T>, quick);
    }
    template <class T>
    void to_bool() const {
        add_instr<F, T, Arity, Scalars, bool, T>(table, name, dtype_of<T>, DType::boolean);
    }
    template <class T>
    void chosen() const {
        add_instr<F, T, Arity, Scalars, T, bool>(table, name, dtype_of<T>, dtype_of<T>);
    }
    void flt(bool quick = kWide) const {
        same<float>(quick);
        same<double>(quick);
    }
    void whole() const {
#define AICF_SAME(dtype, type) same<type>();
        AICF_INTEGERS(AICF_SAME)
#undef AICF_SAME
    }
    void num() const {
        flt(true);
        whole();
    }
    void test() const {
        to_bool<float>();
        to_bool<double>();
    }
    void logic() const { to_bool<bool>(); }
    void cmp() const {
        test();
#define AICF_TO_BOOL(dtype, type) to_bool<type>();
        AICF_INTEGERS(AICF_TO_BOOL)
#undef AICF_TO_BOOL
        logic();
    }
    void select() const {
        chosen<float>();
        chosen<double>();
#define AICF_CHOSEN(dtype, type) chosen<type>();
        AICF_INTEGERS(AICF_CHOSEN)
#undef AICF_CHOSEN
        chosen<bool>();
    }
    void any() const {
        num();
        same<bool>();
    }
};

#define AICF_ROW(fn, arity, kind, scalars)     \
    struct fn##_fn {                           \
        template <class... A>                  \
        static AICF_INLINE auto call(A... a) { \
            return scalar::fn(a...);           \
        }                                      \
    };
AICF_POINTWISE(AICF_ROW)
#undef AICF_ROW
#define AICF_ROW(fn, arity)                    \
    struct fn##_16_fn {                        \
        template <class... A>                  \
        static AICF_INLINE auto call(A... a) { \
            return scalar::fn##_16(a...);      \
        }                                      \
    };
AICF_POINTWISE_16(AICF_ROW)
#undef AICF_ROW

// Two functions in two passes: a processor looks ahead over a fixed count of operations, and a long
// chain of them for each element leaves it too few elements to work on at once. Passes are short,
// so that it reads ahead while it computes.

template <class End>
struct Unary<exp_fn, float, End> {
    static AICF_INLINE void run(int64_t n, float* y, const float* x, const float* z) {
        alignas(64) float r[kPass];
        alignas(64) uint32_t e[kPass];
        for (int64_t b = 0; b < n; b += kPass, x += kPass, y += kPass) {
            const int64_t m = min64(kPass, n - b);
            for (int64_t i = 0; i < m; i++) {
                const scalar::ExpReduced v = scalar::exp_begin(x[i]);
                r[i] = v.r;
                e[i] = v.e;
            }
            _Pragma("GCC ivdep") for (int64_t i = 0; i < m; i++) y[i] =
                End::call(scalar::exp_end(x[i], {r[i], e[i]}), z, b + i);
        }
    }
};

// Huge angles take a branch, which would keep the whole loop from vectorising.
template <class End, class T, class Reduced, class Reduce, class Fast, class Any>
void map_angles(int64_t n, T* y, const T* x, const T* z, T limit, Reduce reduce, Fast fast,
                Any any) {
    using U = scalar::BitsOf<T>;
    alignas(64) T hi[kPass], lo[kPass];
    alignas(64) U quarter[kPass];
    for (int64_t b = 0; b < n; b += kPass, x += kPass, y += kPass) {
        const int64_t m = min64(kPass, n - b);
        U most = 0;
        for (int64_t i = 0; i < m; i++) {
            const U size = scalar::bits(scalar::abs(x[i]));
            most = size > most ? size : most;
            const Reduced a = reduce(x[i]);
            hi[i] = a.hi;
            lo[i] = a.lo;
            quarter[i] = a.quarter;
        }
        if (most <= scalar::bits(limit)) {
            _Pragma("GCC ivdep") for (int64_t i = 0; i < m; i++) y[i] =
                End::call(fast(x[i], Reduced{hi[i], lo[i], quarter[i]}), z, b + i);
        } else {
            for (int64_t i = 0; i < m; i++) y[i] = End::call(any(x[i]), z, b + i);
        }
    }
}

#define AICF_ANGLE(fn, T, Reduced, reduce, limit)                                 \
    template <class End>                                                          \
    struct Unary<fn##_fn, T, End> {                                               \
        static void run(int64_t n, T* y, const T* x, const T* z) {                \
            map_angles<End, T, scalar::Reduced>(                                  \
                n, y, x, z, scalar::limit, [](T v) { return scalar::reduce(v); }, \
                [](T v, scalar::Reduced a) { return scalar::fn##_fast(v, a); },   \
                [](T v) { return scalar::fn(v); });                               \
        }                                                                         \
    };
AICF_ANGLE(sin, float, Angle, reduce_half, kSinFastLimit)
AICF_ANGLE(cos, float, Angle, reduce_fast, kSinFastLimit)
AICF_ANGLE(sin, double, Angle64, reduce_fast, kSinFastLimit64)
AICF_ANGLE(cos, double, Angle64, reduce_fast, kSinFastLimit64)
AICF_ANGLE(tan, double, Angle64, reduce_fast, kSinFastLimit64)
#undef AICF_ANGLE
template <class End>
struct Unary<tan_fn, float, End> {
    static void run(int64_t n, float* y, const float* x, const float* z) {
        double wide[kPass];
        for (int64_t b = 0; b < n; b += kPass, x += kPass, y += kPass) {
            const int64_t m = min64(kPass, n - b);
            for (int64_t i = 0; i < m; i++) wide[i] = x[i];
            Unary<tan_fn, double, Alone>::run(m, wide, wide, nullptr);
            for (int64_t i = 0; i < m; i++) y[i] = End::call(static_cast<float>(wide[i]), z, b + i);
        }
    }
};

// ---- pairs --------------------------------------------------------------------------------------

// A function or a plain op, and what adds, subtracts or multiplies its result, in one loop: its
// result is not stored and read again. Named by both; program.cpp looks for them by name.
template <class F, class T, int Arity>
void add_pairs(Table& table, const char* add, const char* sub, const char* from, const char* mul,
               bool quick = true) {
    const auto one = [&](const char* name, InstrFn fn) {
        table.add(InstrDef{name, dtype_of<T>, dtype_of<T>, 1, Arity + 1, 0, 0, fn, quick});
    };
    one(add, map_pair<F, T, Arity, Then<add_fn>>);
    one(sub, map_pair<F, T, Arity, Then<sub_fn>>);
    one(from, map_pair<F, T, Arity, From<sub_fn>>);
    one(mul, map_pair<F, T, Arity, Then<mul_fn>>);
}
#define AICF_PAIRS(fn, T, arity, quick) \
    add_pairs<fn##_fn, T, arity>(table, #fn " add", #fn " sub", #fn " from", #fn " mul", quick)

void register_pairs(Table& table) {
    AICF_PAIRS(neg, float, 1, true);
    AICF_PAIRS(neg, double, 1, true);
    AICF_PAIRS(add, float, 2, true);
    AICF_PAIRS(add, double, 2, true);
    AICF_PAIRS(sub, float, 2, true);
    AICF_PAIRS(sub, double, 2, true);
    AICF_PAIRS(mul, float, 2, true);
    AICF_PAIRS(mul, double, 2, true);
    AICF_PAIRS(sqrt, float, 1, kWide);
    AICF_PAIRS(exp, float, 1, kWide);
    AICF_PAIRS(log, float, 1, kWide);
    AICF_PAIRS(sin, float, 1, kWide);
    AICF_PAIRS(cos, float, 1, kWide);
    AICF_PAIRS(tanh, float, 1, kWide);
    AICF_PAIRS(sigmoid, float, 1, kWide);
}
#undef AICF_PAIRS

// ---- casts --------------------------------------------------------------------------------------

template <class To, class From>
void cast_loop(int64_t n, void* const* at, const Scalar*) {
    To* y = static_cast<To*>(at[0]);
    const From* x = static_cast<const From*>(at[1]);
    AICF_LOOP y[i] = scalar::cast<To>(x[i]);
}

template <class From>
void narrowing_loop(int64_t n, void* const* at, const Scalar*) {
    float* y = static_cast<float*>(at[0]);
    const From* x = static_cast<const From*>(at[1]);
    AICF_LOOP y[i] = scalar::narrowing(x[i]);
}

// The hardware's conversions give the same bits as scalar.h's.
void widen_halves(const uint16_t* x, int64_t n, float* y) {
    int64_t i = 0;
#if defined(__F16C__)
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(y + i,
                         _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i))));
#endif
    for (; i < n; i++) y[i] = scalar::half_to_f32(x[i]);
}
void narrow_halves(const float* x, int64_t n, uint16_t* y) {
    int64_t i = 0;
#if defined(__F16C__)
    for (; i + 8 <= n; i += 8)
        _mm_storeu_si128(reinterpret_cast<__m128i*>(y + i),
                         _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
#endif
    for (; i < n; i++) y[i] = scalar::f32_to_half(x[i]);
}

void widen_half(int64_t n, void* const* at, const Scalar*) {
    widen_halves(static_cast<const uint16_t*>(at[1]), n, static_cast<float*>(at[0]));
}
void narrow_half(int64_t n, void* const* at, const Scalar*) {
    narrow_halves(static_cast<const float*>(at[1]), n, static_cast<uint16_t*>(at[0]));
}
void widen_bfloat(int64_t n, void* const* at, const Scalar*) {
    float* y = static_cast<float*>(at[0]);
    const uint16_t* x = static_cast<const uint16_t*>(at[1]);
    AICF_LOOP y[i] = scalar::bfloat_to_f32(x[i]);
}
void narrow_bfloat(int64_t n, void* const* at, const Scalar*) {
    uint16_t* y = static_cast<uint16_t*>(at[0]);
    const float* x = static_cast<const float*>(at[1]);
    AICF_LOOP y[i] = scalar::f32_to_bfloat(x[i]);
}

template <class From>
void add_casts(Table& table) {
    const auto add = [&](DType to, InstrFn fn) {
        table.add(InstrDef{"cast", dtype_of<From>, to, 1, 1, 0, 0, fn});
    };
    add(DType::f32, cast_loop<float, From>);
    add(DType::f64, cast_loop<double, From>);
#define AICF_ADD(dtype, type) add(DType::dtype, cast_loop<type, From>);
    AICF_INTEGERS(AICF_ADD)
#undef AICF_ADD
    add(DType::boolean, cast_loop<bool, From>);
}

// ---- strided operands ---------------------------------------------------------------------------

template <class U, bool Scatter>
AICF_INLINE void move_row(U* buffer, U* operand, int64_t stride, int64_t n) {
    if constexpr (Scatter) {
        for (int64_t i = 0; i < n; i++) operand[i * stride] = buffer[i];
    } else if (stride == 0) {
        const U value = *operand;
        for (int64_t i = 0; i < n; i++) buffer[i] = value;
    } else if (stride == 1 && n * int64_t(sizeof(U)) >= 64) {
        memcpy(buffer, operand, size_t(n) * sizeof(U));
    } else {
        for (int64_t i = 0; i < n; i++) buffer[i] = operand[i * stride];
    }
}

/// Elements [pos, pos + n) of the iteration space between an operand and a block buffer.
template <class U, bool Scatter>
void move_block(const Program& p, const Slot& slot, int64_t pos, int64_t n, char* to) {
    U* buffer = reinterpret_cast<U*>(to);
    U* operand = reinterpret_cast<U*>(slot.ptr);
    const int inner = p.rank - 1;
    if (inner < 0) return move_row<U, Scatter>(buffer, operand, 0, n);
    const int64_t* strides = p.strides(slot);
    int64_t index[kMaxDims];
    for (int d = inner; d >= 0; d--) {
        const int64_t size = p.shape[d], next = pos / size;
        index[d] = pos - next * size;
        operand += index[d] * strides[d];
        pos = next;
    }
    for (;;) {
        const int64_t run = min64(n, p.shape[inner] - index[inner]);
        move_row<U, Scatter>(buffer, operand, strides[inner], run);
        n -= run;
        if (n == 0) return;
        buffer += run;
        operand -= index[inner] * strides[inner];
        index[inner] = 0;
        for (int d = inner - 1; d >= 0; d--) {
            operand += strides[d];
            if (++index[d] < p.shape[d]) break;
            operand -= p.shape[d] * strides[d];
            index[d] = 0;
        }
    }
}

template <bool Scatter>
void move_block(const Program& p, const Slot& slot, int64_t pos, int64_t n, char* buffer) {
    switch (slot.size) {
        case 1:
            return move_block<uint8_t, Scatter>(p, slot, pos, n, buffer);
        case 2:
            return move_block<uint16_t, Scatter>(p, slot, pos, n, buffer);
        case 4:
            return move_block<uint32_t, Scatter>(p, slot, pos, n, buffer);
        default:
            return move_block<uint64_t, Scatter>(p, slot, pos, n, buffer);
    }
}

/// Repeats the first `period` elements of a buffer until n are filled.
template <class U>
void repeat(U* buffer, int64_t period, int64_t n) {
    typedef U V __attribute__((vector_size(kRepeatedBytes), aligned(1), may_alias));
    constexpr int64_t L = kRepeatedBytes / sizeof(U);
    if (L % period == 0 && n >= L) {
        V v;
        for (int64_t i = 0; i < L; i++) v[i] = buffer[i & (period - 1)];
        int64_t i = 0;
        for (; i + L <= n; i += L) *reinterpret_cast<V*>(buffer + i) = v;
        for (; i < n; i++) buffer[i] = buffer[i - L];
        return;
    }
    for (int64_t done = period; done < n;) {
        const int64_t more = min64(done, n - done);
        memcpy(buffer + done, buffer, size_t(more) * sizeof(U));
        done += more;
    }
}

void repeat(char* buffer, int64_t size, int64_t period, int64_t n) {
    switch (size) {
        case 1:
            return repeat(reinterpret_cast<uint8_t*>(buffer), period, n);
        case 2:
            return repeat(reinterpret_cast<uint16_t*>(buffer), period, n);
        case 4:
            return repeat(reinterpret_cast<uint32_t*>(buffer), period, n);
        default:
            return repeat(reinterpret_cast<uint64_t*>(buffer), period, n);
    }
}

// ---- streamed results ---------------------------------------------------------------------------

/// Copies `bytes` past the caches, where whole lines of memory are written. Another thread may read
/// them after stream_fence().
AICF_INLINE void stream_out(char* to, const char* from, int64_t bytes) {
#if defined(__x86_64__)
    const int64_t head = min64(bytes, -reinterpret_cast<int64_t>(to) & 63);
    if (head > 0) memcpy(to, from, size_t(head));
    int64_t at = head;
    for (; at + 64 <= bytes; at += 64) {
#if defined(__AVX512F__)
        _mm512_stream_si512(reinterpret_cast<__m512i*>(to + at), _mm512_loadu_si512(from + at));
#else
#pragma GCC unroll 4
        for (int i = 0; i < 64; i += 16)
            _mm_stream_si128(reinterpret_cast<__m128i*>(to + at + i),
                             _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + at + i)));
#endif
    }
    if (at < bytes) memcpy(to + at, from + at, size_t(bytes - at));
#else
    memcpy(to, from, size_t(bytes));
#endif
}
AICF_INLINE void stream_fence() {
#if defined(__x86_64__)
    _mm_sfence();
#endif
}

// ---- the interpreter ----------------------------------------------------------------------------

/// Points every slot at its buffer and fills those that no block changes.
AICF_INLINE void start_slots(const Program& p, char* buffers, char** at) {
    for (int s = 0; s < p.slots; s++) {
        const Slot& slot = p.slot()[s];
        at[s] = slot.mode == SlotMode::first ? slot.ptr : buffers + slot.buffer;
        if (slot.mode != SlotMode::once) continue;
        const int64_t n = min64(p.block, p.total),
                      period = p.strides(slot)[p.rank - 1] == 0 ? 1 : p.shape[p.rank - 1];
        move_block<false>(p, slot, 0, period, at[s]);
        repeat(at[s], slot.size, period, n);
    }
}

AICF_INLINE int next_slot(uint64_t& slots) {
    const int slot = __builtin_ctzll(slots);
    slots &= slots - 1;
    return slot;
}

/// One block of n elements from `pos` on, whose place in the iteration space is `index`.
AICF_INLINE void run_block(const Program& p, char** at, const int64_t* index, int64_t pos,
                           int64_t n) {
    const Slot* slots = p.slot();
    const Instr* instrs = p.instr();
    for (uint64_t left = p.linear; left;) {
        const int s = next_slot(left);
        at[s] = slots[s].ptr + pos * slots[s].size;
    }
    for (uint64_t left = p.row; left;) {
        const int s = next_slot(left);
        const int64_t* strides = p.strides(slots[s]);
        int64_t offset = 0;
        for (int d = 0; d < p.rank; d++) offset += index[d] * strides[d];
        at[s] = slots[s].ptr + offset * slots[s].size;
    }
    for (uint64_t left = p.gathered; left;) {
        const int s = next_slot(left);
        move_block<false>(p, slots[s], pos, n, at[s]);
    }
    for (uint64_t left = p.fetched; left;) {
        const int s = next_slot(left);
        for (int64_t i = 0; i < n * slots[s].size; i += 64) __builtin_prefetch(at[s] + i, 1);
    }
    for (int k = 0; k < p.instrs; k++) {
        const Instr& instr = instrs[k];
        void* operands[kMaxInstrOperands];
        for (int i = 0; i < instr.operands; i++) operands[i] = at[instr.slot[i]];
        instr.fn(n, operands, instr.scalars);
    }
    for (uint64_t left = p.leaving; left;) {
        const int s = next_slot(left);
        const Slot& slot = slots[s];
        if (slot.mode == SlotMode::stream)
            stream_out(slot.ptr + pos * slot.size, at[s], n * slot.size);
        else
            move_block<true>(p, slot, pos, n, at[s]);
    }
}

/// Blocks of elements [pos, stop), the slots started; `before` is called with where each begins.
/// Where blocks hold whole rows, pos begins one.
template <class Before>
AICF_INLINE void run_range(const Program& p, char** at, int64_t pos, int64_t stop, Before before) {
    const int inner = p.rank - 1;
    int64_t index[kMaxDims] = {};
    if (!p.rows || inner < 0) {
        for (int64_t n; pos < stop; pos += n) {
            n = min64(p.block, stop - pos);
            before(pos);
            run_block(p, at, index, pos, n);
        }
        return;
    }
    for (int64_t d = inner, rest = pos; d >= 0; d--) {
        index[d] = rest % p.shape[d];
        rest /= p.shape[d];
    }
    for (int64_t n; pos < stop; pos += n) {
        n = min64(min64(p.block, stop - pos), p.shape[inner] - index[inner]);
        before(pos);
        run_block(p, at, index, pos, n);
        index[inner] += n;
        for (int d = inner; d > 0 && index[d] == p.shape[d]; d--) {
            index[d] = 0;
            index[d - 1]++;
        }
    }
}

void run_range(const Program& p, char** at, int64_t pos, int64_t stop) {
    run_range(p, at, pos, stop, [](int64_t) {});
}

void run_blocks(const Program& p, int64_t pos, int64_t stop) {
    char* buffers = static_cast<char*>(__builtin_alloca_with_align(size_t(p.buffer_bytes), 512));
    char* at[kMaxSlots];
    start_slots(p, buffers, at);
    run_range(p, at, pos, stop);
    if (p.streams) stream_fence();
}

/// A unit is kTileRows neighbours along the cross axis, all other outer axes fixed.
void run_tiles(const Program& p, int64_t begin, int64_t end) {
    char* buffers = static_cast<char*>(__builtin_alloca_with_align(size_t(p.buffer_bytes), 512));
    char *at[kMaxSlots], *tiles[kMaxSlots];
    start_slots(p, buffers, at);
    for (int s = 0; s < p.slots; s++) tiles[s] = at[s];
    const int inner = p.rank - 1;
    const int64_t groups = (p.shape[p.cross] + kTileRows - 1) / kTileRows;
    for (int64_t u = begin; u < end; u++) {
        int64_t index[kMaxDims] = {}, rest = u / groups;
        for (int d = inner - 1; d >= 0; d--) {
            if (d == p.cross) continue;
            index[d] = rest % p.shape[d];
            rest /= p.shape[d];
        }
        const int64_t r0 = u % groups * kTileRows, r1 = min64(r0 + kTileRows, p.shape[p.cross]);
        for (int64_t c = 0; c < p.shape[inner]; c += p.block) {
            const int64_t n = min64(p.block, p.shape[inner] - c);
            index[inner] = c;
            index[p.cross] = r0;
            for (int s = 0; s < p.slots; s++) {
                const Slot& slot = p.slot()[s];
                if (slot.mode != SlotMode::tile) continue;
                const int64_t* strides = p.strides(slot);
                int64_t offset = 0;
                for (int d = 0; d <= inner; d++) offset += index[d] * strides[d];
                transpose_bytes(tiles[s], p.block, slot.ptr + offset * slot.size, strides[inner],
                                r1 - r0, n, slot.size);
            }
            for (int64_t r = r0; r < r1; r++) {
                index[p.cross] = r;
                int64_t pos = 0;
                for (int d = 0; d <= inner; d++) pos = pos * p.shape[d] + index[d];
                for (int s = 0; s < p.slots; s++)
                    if (p.slot()[s].mode == SlotMode::tile)
                        at[s] = tiles[s] + (r - r0) * p.block * p.slot()[s].size;
                run_block(p, at, index, pos, n);
            }
        }
    }
    if (p.streams) stream_fence();
}

void run_program(const ArgBlock& args, int64_t begin, int64_t end, int, int) {
    const Program& p = *static_cast<const Program*>(args.tail_ptr());
    if (p.cross >= 0) return run_tiles(p, begin, end);
    int64_t pos = begin * p.unit;
    const int64_t stop = min64(end * p.unit, p.total);
    if (pos >= stop) return;
    if (!p.flat) return run_blocks(p, pos, stop);
    const Slot* slots = p.slot();
    const Instr& instr = *p.instr();
    char* buffers = static_cast<char*>(__builtin_alloca_with_align(size_t(p.buffer_bytes), 512));
    bool streams = false;
    for (int s = 0; p.streams && s < p.slots; s++) streams |= slots[s].mode == SlotMode::stream;
    const int64_t block = streams ? p.block : stop - pos;
    for (int64_t n; pos < stop; pos += n) {
        n = min64(block, stop - pos);
        void* operands[kMaxInstrOperands];
        for (int i = 0; i < instr.operands; i++) {
            const Slot& slot = slots[instr.slot[i]];
            operands[i] = slot.mode == SlotMode::first    ? slot.ptr
                          : slot.mode == SlotMode::stream ? buffers + slot.buffer
                                                          : slot.ptr + pos * slot.size;
        }
        instr.fn(n, operands, instr.scalars);
        for (int s = 0; streams && s < p.slots; s++)
            if (const Slot& slot = slots[s]; slot.mode == SlotMode::stream)
                stream_out(slot.ptr + pos * slot.size, buffers + slot.buffer, n * slot.size);
    }
    if (streams) stream_fence();
}

void register_pointwise(Table& table) {
#define AICF_ROW(fn, arity, kind, scalars) Row<fn##_fn, arity, scalars>{table, #fn}.kind();
    AICF_POINTWISE(AICF_ROW)
#undef AICF_ROW
#define AICF_ROW(fn, arity) Row<fn##_16_fn, arity, 0>{table, #fn "_16"}.template same<float>(false);
    AICF_POINTWISE_16(AICF_ROW)
#undef AICF_ROW
    add_casts<float>(table);
    add_casts<double>(table);
#define AICF_ADD(dtype, type) add_casts<type>(table);
    AICF_INTEGERS(AICF_ADD)
#undef AICF_ADD
    add_casts<bool>(table);
    table.add(InstrDef{"narrowing", DType::f64, DType::f32, 1, 1, 0, 0, narrowing_loop<double>});
    table.add(InstrDef{"narrowing", DType::i32, DType::f32, 1, 1, 0, 0, narrowing_loop<int32_t>});
    table.add(InstrDef{"narrowing", DType::i64, DType::f32, 1, 1, 0, 0, narrowing_loop<int64_t>});
    table.add(InstrDef{"cast", DType::f16, DType::f32, 1, 1, 0, 0, widen_half});
    table.add(InstrDef{"cast", DType::bf16, DType::f32, 1, 1, 0, 0, widen_bfloat});
    table.add(InstrDef{"cast", DType::f32, DType::f16, 1, 1, 0, 0, narrow_half});
    table.add(InstrDef{"cast", DType::f32, DType::bf16, 1, 1, 0, 0, narrow_bfloat});
    register_pairs(table);
    table.run_program = run_program;
}

}  // namespace aicf::cpu::AICF_ISA
