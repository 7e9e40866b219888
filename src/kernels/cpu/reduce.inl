// The reductions as kernels, alone and with the programs of a fused op, by the loops of
// reduce_loops.inl. Included once per instruction set; see isa.cpp. No standard-library templates
// here.

namespace aicf::cpu::AICF_ISA {

// ---- the kernel ---------------------------------------------------------------------------------

template <class E, class A>
AICF_INLINE void finish(E* to, A value, bool mean, int64_t n) {
    if constexpr (scalar::is_float<A>)
        if (mean) value = scalar::div(value, static_cast<A>(n));
    put(to, value);
}

/// The programs of a fused reduction, as one thread runs them: the prologue makes elements, the
/// epilogue takes results.
struct Fused {
    const FusedReduce* head;
    char *tile, *held, *scratch;           // elements made; results of a unit; column_scratch
    char **element_slots, **result_slots;  // as run_range wants them

    AICF_INLINE bool made(const ReducePlan& p) const {
        return head->operand < 0 && p.reduced.total > 0;
    }

    AICF_INLINE const Program& program(uint32_t at) const {
        return *reinterpret_cast<const Program*>(reinterpret_cast<const char*>(head) + at);
    }
    static void run(const Program& p, char** at, int64_t pos, int64_t stop, char* given,
                    int64_t size) {
        int slot = 0;
        while (p.slot()[slot].mode != SlotMode::given) slot++;
        run_range(p, at, pos, stop,
                  [&](int64_t block) { at[slot] = given + (block - pos) * size; });
    }
    /// Elements [pos, pos + n); `at`: where in the tile, in elements.
    template <class E>
    const E* make(int64_t pos, int64_t n, int64_t at = 0) const {
        const Program& p = program(head->elements);
        const int64_t slack = p.rows ? 0 : pos % p.shape[p.rank - 1];
        E* to = reinterpret_cast<E*>(tile) + at;
        run(p, element_slots, pos - slack, pos + n, reinterpret_cast<char*>(to), sizeof(E));
        return to + slack;
    }
    template <class E>
    void take(int64_t result, int64_t n) const {
        run(program(head->taken), result_slots, result, result + n, held, sizeof(E));
    }
};

constexpr int kRowSlots = 8;
constexpr int64_t kSlack = 128;  // what is made may have to begin earlier, with a short row

/// Rows of a strip that are made at once: a power of two, so that none is made twice in a leaf.
AICF_INLINE int64_t rows_at_once(const ReducePlan& p) {
    int64_t many = p.strips > 1 ? 1 : kTreeLanes / 2;
    while (many > 1 && many * p.strip > kMadeAtOnce) many /= 2;
    return many;
}

/// Elements that a tile of them takes.
AICF_INLINE int64_t made_columns(const ReducePlan& p) {
    return p.strip > kStrip ? kRowSlots * (rows_at_once(p) * p.strip + kSlack)
                            : kTreeLeaf * p.strip + kSlack;
}

/// The rows of a strip: in memory, made a leaf at a time where they are short, or else some at a
/// time for each of the places of a leaf that are read side by side.
template <class E>
struct Rows {
    const E* x;
    int64_t step;
    const Fused* fused = nullptr;          // null: row r lies at x + r * step
    int64_t pos = 0, count = 0, many = 0;  // of elements in their program's space
    bool whole = false;                    // a leaf at a time
    int64_t slot_size = 0, first[kRowSlots] = {}, until[kRowSlots] = {};
    const E* at[kRowSlots] = {};

    AICF_INLINE bool apart() const { return fused && !whole; }
    /// What is asked for next are rows [r, r + n), a leaf at most.
    AICF_INLINE void begin(int64_t r, int64_t n) {
        if (fused && !apart()) x = fused->template make<E>(pos + r * step, n * step) - r * step;
    }
    /// A row stays until a later one of its slot is asked for. `end`: where rows end.
    AICF_INLINE const E* row(int slot, int64_t r, int64_t end) {
        if (!apart()) return x + r * step;
        if (r >= until[slot]) {
            const int64_t n = min64(many, end - r);
            first[slot] = r;
            until[slot] = r + n;
            at[slot] =
                fused->template make<E>(pos + r * step, n > 1 ? n * step : count, slot * slot_size);
        }
        return at[slot] + (r - first[slot]) * step;
    }
};

/// Units of a reduction. `fused`: null where the operands are the first ones and the results are
/// stored as they come.
template <class Op, class E, class A>
struct Reduction {
    const ReducePlan& p;
    const Fused* fused;
    bool mean, made;  // made: a program makes the elements
    const E* x;
    E* y;
    A* parts;   // [groups][results]
    int64_t n;  // elements of a result

    /// Where the elements of result r begin, and where it goes: of a fused op to the unit's others.
    AICF_INLINE void place(int64_t r, int64_t first, int64_t* from, int64_t* to) const {
        if (!made) place_result(p, r, from, to);
        if (fused) *to = r - first;
    }
    AICF_INLINE void store(int64_t group, int64_t r, int64_t to, A value) const {
        if (p.groups > 1)
            parts[group * p.results + r] = value;
        else
            finish(y + to, value, mean, n);
    }
    AICF_INLINE void done(int64_t first, int64_t count) const {
        if (fused && count > 0) fused->take<E>(first, count);
    }

    /// The second phase: joins what the groups left of each result.
    void join_groups(int64_t begin, int64_t end) const {
        const int64_t first = begin * kJoined, stop = min64(end * kJoined, p.results);
        for (int64_t block = first; block < stop; block += kJoined) {
            const int64_t last = min64(block + kJoined, stop);
            for (int64_t r = block; r < last; r++) {
                Tree<Op, Simd<A, 0>> tree;
                for (int64_t g = 0; g < p.groups; g++) tree.push(parts[g * p.results + r]);
                int64_t from = 0, to = 0;
                place(r, block, &from, &to);
                finish(y + to, tree.result(), mean, n);
            }
            done(block, last - block);
        }
    }

    /// A strip of neighbouring results, their elements [first, stop).
    AICF_INLINE void column_unit(int64_t block, int64_t group, int64_t first, int64_t stop,
                                 A* scratch, A* strip) const {
        const int64_t width = p.kept[p.kept_rank - 1], row = block / p.strips;
        const int64_t c0 = (block - row * p.strips) * p.strip, c1 = min64(width, c0 + p.strip);
        const int64_t result = row * width + c0, count = c1 - c0;
        if (c0 >= c1) return;
        int64_t from = 0, to = 0;
        place(result, result, &from, &to);
        Rows<E> rows{x + from, p.reduced.stride[0]};
        if (made) {
            rows.step = width;
            rows.fused = fused;
            rows.pos = row * n * width + c0;
            rows.count = count;
            rows.whole = p.strip <= kStrip;
            rows.many = rows_at_once(p);
            rows.slot_size = rows.many * p.strip + kSlack;
        }
        reduce_columns<Op, E, A>(rows, p.ascending, p.chain, count, first, stop, scratch, strip);
        const int64_t step = fused ? 1 : p.to[p.kept_rank - 1];
        for (int64_t i = 0; i < count; i++) store(group, result + i, to + i * step, strip[i]);
        if (p.groups == 1) done(result, count);
    }

    /// Results one after the other, their elements [first, stop).
    AICF_INLINE void row_unit(int64_t block, int64_t group, int64_t first, int64_t stop) const {
        const int64_t unit = block * p.strip, last = min64(p.results, unit + p.strip);
        int64_t r = unit;
        const bool tiled = made && n > 0 && n < kTile;  // all elements of the unit at once
        const E* const from = tiled ? fused->make<E>(r * n, (last - r) * n) : x;
        if (p.bundles) r = bundled_rows(from, unit, last);
        if constexpr (same_bits<E, A>)
            if (!made && p.reduced.dense && p.chain == 0 && first < stop)
                r = dense_rows(group, unit, r, last, first, stop);
        for (; r < last; r++) one_row(from, tiled, group, unit, r, first, stop);
        if (p.groups == 1) done(unit, last - unit);
    }

    /// Short rows, several to a vector; returns where it stopped.
    AICF_INLINE int64_t bundled_rows(const E* from, int64_t unit, int64_t last) const {
        alignas(64) A t[kShortRow * kBundle<A>], results[kBundle<A>];
        int64_t at[kBundle<A>], to[kBundle<A>];
        const int64_t step = p.reduced.rank ? p.reduced.stride[0] : 0;
        int64_t r = unit;
        for (; last - r >= kBundle<A> / 4; r += kBundle<A>) {
            const int count = int(min64(kBundle<A>, last - r));
            for (int i = 0; i < count; i++) {
                at[i] = (r + i - unit) * n;
                place(r + i, unit, &at[i], &to[i]);
            }
            load_bundle(t, from, at, count, step, n);
            bundle_leaf<Op>(t, n, results);
            for (int i = 0; i < count; i++) finish(y + to[i], results[i], mean, n);
        }
        return r;
    }

    /// Rows whose elements lie side by side, several streams at a time where they are long.
    AICF_INLINE int64_t dense_rows(int64_t group, int64_t unit, int64_t r, int64_t last,
                                   int64_t first, int64_t stop) const {
        int64_t from = 0, to = 0;
        for (; kDrawsAbreast && p.streamed && n >= kTile && r + kAbreast <= last; r += kAbreast) {
            const A* rows[kAbreast];
            A values[kAbreast];
            int64_t put_at[kAbreast];
            for (int i = 0; i < kAbreast; i++) {
                place(r + i, unit, &from, &put_at[i]);
                rows[i] = reinterpret_cast<const A*>(x + from);
            }
            trees_abreast<Op>(rows, n, values);
            for (int i = 0; i < kAbreast; i++) finish(y + put_at[i], values[i], mean, n);
        }
        for (; r < last; r++) {
            place(r, unit, &from, &to);
            store(group, r, to,
                  dense_tree<Op>(reinterpret_cast<const A*>(x + from) + first, stop - first,
                                 p.streamed));
        }
        return r;
    }

    AICF_INLINE void one_row(const E* elements, bool tiled, int64_t group, int64_t unit, int64_t r,
                             int64_t first, int64_t stop) const {
        int64_t from = (r - unit) * n, to = 0;
        place(r, unit, &from, &to);
        const E* piece = nullptr;
        int64_t have = 0, until = 0;  // what of the row the tile holds
        const auto row = [&](int64_t at, int64_t count, A* buffer) {
            if (!made || tiled) return fetch<A>(p.reduced, elements + from, at, count, buffer);
            if (at + count > until) {
                have = at;
                until = min64(stop, at + kTile);
                piece = fused->make<E>(r * n + at, until - at);
            }
            return fetch<A>(p.reduced, piece, at - have, count, buffer);
        };
        store(group, r, to, reduce_row<Op, A>(row, first, stop, p.chain));
    }
};

template <class Op, class E, class A>
void reduce_units(const ArgBlock& args, int64_t begin, int64_t end, int phase, bool mean = false,
                  const Fused* fused = nullptr) {
    const ReducePlan& p = reduce_plan(args);
    const bool made = fused && fused->head->operand < 0;
    const E* const x =
        made ? nullptr : static_cast<const E*>(args.in(fused ? fused->head->operand : 0).ptr);
    E* const y = static_cast<E*>(fused ? fused->held : args.out(0).ptr);
    const Reduction<Op, E, A> reduction = {
        p, fused, mean, made, x, y, static_cast<A*>(args.workspace), p.reduced.total};
    if (phase == 1) return reduction.join_groups(begin, end);
    A* scratch = nullptr;
    if (p.columns)
        scratch = static_cast<A*>(
            made ? static_cast<void*>(fused->scratch)
                 : __builtin_alloca_with_align(
                       sizeof(A) * size_t(column_scratch(p, p.ascending) + p.strip), 512));
    A* const strip = scratch + (p.columns ? column_scratch(p, p.ascending) : 0);
    for (int64_t u = begin; u < end; u++) {
        const int64_t block = u / p.groups, group = u - block * p.groups;
        const int64_t first = group * p.group, stop = min64(reduction.n, first + p.group);
        if (p.columns)
            reduction.column_unit(block, group, first, stop, scratch, strip);
        else
            reduction.row_unit(block, group, first, stop);
    }
}

/// What elements of type E are joined as; integers of an ordered reduction wrap.
template <class Op, class E>
struct AccumulatorOf {
    typedef typename ComputeOf<E>::type A;
    static AICF_INLINE auto type() {
        if constexpr (scalar::is_float<A>)
            return A();
        else if constexpr (Op::ordered)
            return typename scalar::Bits < sizeof(E) < 4 ? 4 : sizeof(E) > ::type();
        else if constexpr (sizeof(E) < 4)
            return int32_t();
        else
            return A();
    }
};

template <class Op, bool Mean>
void reduce_typed(DType dtype, const ArgBlock& args, int64_t begin, int64_t end, int phase,
                  const Fused* fused) {
    by_number(dtype, [&](auto element) {
        typedef decltype(element) E;
        typedef decltype(AccumulatorOf<Op, E>::type()) A;
        if constexpr (!Mean || scalar::is_float<A>)
            reduce_units<Op, E, A>(args, begin, end, phase, Mean, fused);
    });
}

template <class Op, bool Mean>
void reduce_run(const ArgBlock& args, int64_t begin, int64_t end, int phase, int) {
    reduce_typed<Op, Mean>(DType(args.in(0).dtype), args, begin, end, phase, nullptr);
}

AICF_INLINE const FusedReduce& fused_head(const ArgBlock& args) {
    return *reinterpret_cast<const FusedReduce*>(&reduce_plan(args) + 1);
}

void fused_reduce_prepare(ArgBlock& args) {
    ReducePlan& p = *const_cast<ReducePlan*>(&reduce_plan(args));
    const FusedReduce& head = fused_head(args);
    p.chain = head.chain;
    if (head.operand >= 0) return plan_operand(p, args.in(head.operand), head.axes, false, nullptr);
    p.results = head.results;
    walk_start(p.reduced);
    walk_axis(p.reduced, head.n, 1);
    p.columns = head.width > 0;
    p.kept_rank = p.columns;
    p.kept[0] = head.width;
    const int64_t size = head.size < 4 ? 4 : head.size;
    plan_units(p, size, kWideStripBytes / size);  // long runs of elements
}

/// What a thread holds: a unit's results, elements, column_scratch(), the programs' buffers.
struct FusedMemory {
    int64_t held, tile, scratch, taken, elements;
    explicit FusedMemory(const ArgBlock& args) {
        const ReducePlan& p = reduce_plan(args);
        const Fused fused{&fused_head(args)};
        const int64_t size = fused.head->size;
        const auto round = [](int64_t bytes) { return (bytes + 63) / 64 * 64; };
        const int64_t results = !p.columns                          ? kTile
                                : p.groups > 1 && p.strip < kJoined ? kJoined
                                                                    : p.strip;
        held = round(results * size);
        tile =
            !fused.made(p) ? 0 : round((p.columns ? made_columns(p) : 2 * kTile + kSlack) * size);
        scratch = round(fused.made(p) && p.columns
                            ? (size < 4 ? 4 : size) * (column_scratch(p, true) + p.strip)
                            : 0);
        taken = round(fused.program(fused.head->taken).buffer_bytes);
        elements = fused.made(p) ? round(fused.program(fused.head->elements).buffer_bytes) : 0;
    }
    AICF_INLINE int64_t all() const { return held + tile + scratch + taken + elements; }
};

/// Of the parts that the groups of a reduction make.
uint64_t reduce_workspace(const ArgBlock& args, int) {
    const ReducePlan& p = reduce_plan(args);
    return p.groups > 1 ? uint64_t(p.groups * p.results + 7) / 8 * 64 : 0;
}

uint64_t fused_reduce_workspace(const ArgBlock& args, int threads) {
    return reduce_workspace(args, 1) + uint64_t(FusedMemory(args).all()) * uint64_t(threads);
}

void fused_reduce_run(const ArgBlock& args, int64_t begin, int64_t end, int phase, int thread) {
    const ReducePlan& p = reduce_plan(args);
    Fused fused{&fused_head(args)};
    const FusedMemory bytes(args);
    char *element_slots[kMaxSlots], *result_slots[kMaxSlots];
    fused.held =
        static_cast<char*>(args.workspace) + reduce_workspace(args, 1) + thread * bytes.all();
    fused.tile = fused.held + bytes.held;
    fused.scratch = fused.tile + bytes.tile;
    fused.result_slots = result_slots;
    fused.element_slots = element_slots;
    char* const buffers = fused.scratch + bytes.scratch;
    start_slots(fused.program(fused.head->taken), buffers, result_slots);
    if (fused.made(p))
        start_slots(fused.program(fused.head->elements), buffers + bytes.taken, element_slots);
    switch (fused.head->reducer) {
#define AICF_CASE(name, op, mean) \
    case Reducer::name:           \
        return reduce_typed<reducers::op, mean>(fused.head->dtype, args, begin, end, phase, &fused);
        AICF_REDUCTIONS(AICF_CASE)
#undef AICF_CASE
    }
}

int64_t reduce_unit_count(const ArgBlock& args, int phase) {
    const ReducePlan& p = reduce_plan(args);
    if (phase == 0) return p.units;
    return p.groups > 1 ? (p.results + kJoined - 1) / kJoined : 0;
}

template <class Op>
void reduce_prepare(ArgBlock& args) {
    ReducePlan& p = *const_cast<ReducePlan*>(&reduce_plan(args));
    p.chain = Op::ordered ? args.scalar(2).i : 0;
    plan_operand(p, args.in(0), args.scalar(0).i, args.scalar(1).i, &args.out(0));
}

void register_reduce(Table& table) {
    const auto add = [&](const char* op, uint32_t dtypes, auto run, auto prepare,
                         decltype(CpuKernel::workspace) workspace = reduce_workspace) {
        table.add(CpuKernel{op, dtypes, run, reduce_unit_count, workspace, sizeof(ReducePlan),
                            prepare, 2});
    };
#define AICF_ADD(name, op, mean)                                          \
    add(#name, mean ? kFloats : kNumbers, reduce_run<reducers::op, mean>, \
        reduce_prepare<reducers::op>);
    AICF_REDUCTIONS(AICF_ADD)
#undef AICF_ADD
    add("fused_reduce", kAnyDType, fused_reduce_run, fused_reduce_prepare, fused_reduce_workspace);
}

}  // namespace aicf::cpu::AICF_ISA
