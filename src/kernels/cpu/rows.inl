// Where ops over rows have the rows of their operands, and how they are shared out.
// Included once per instruction set; see isa.cpp. No standard-library templates here.

namespace aicf::cpu::AICF_ISA {

struct RowPlan {
    int64_t rows, n, grain;  // grain: rows to a unit
    int32_t rank, operands;
    int64_t shape[kMaxDims];
    Walk walk[kRowOperands];
    int64_t stride[kRowOperands][kMaxDims];
};

AICF_INLINE const RowPlan& row_plan(const ArgBlock& args) {
    return *static_cast<const RowPlan*>(args.tail_ptr());
}

/// The rows of the first operand, along `axis`.
void plan_rows(RowPlan& p, const Operand& x, int64_t axis) {
    p.rows = 1;
    p.rank = p.operands = 0;
    for (int d = 0; d < x.rank; d++) {
        if (d == axis) continue;
        p.rows *= x.shape()[d];
        p.shape[p.rank++] = x.shape()[d];
    }
    p.n = x.shape()[axis];
    p.grain = p.n == 0 ? kRowGrain : p.n < kRowGrain ? (kRowGrain + p.n - 1) / p.n : 1;
}

/// Where the next operand has its rows; null: they are held, one after the other.
void plan_row_operand(RowPlan& p, const Operand* operand, int64_t axis) {
    const int o = p.operands++;
    const bool one = operand && operand->rank == p.rank;  // it has no such axis
    walk_start(p.walk[o]);
    walk_axis(p.walk[o], p.n, !operand ? 1 : one ? 0 : operand->strides()[axis]);
    int64_t step = p.n;
    for (int d = p.rank - 1; d >= 0; d--) {
        p.stride[o][d] = operand ? operand->strides()[d + (!one && d >= axis)] : step;
        step *= p.shape[d];
    }
}

void plan_whole(ArgBlock& args, int64_t axis) {
    RowPlan& p = *const_cast<RowPlan*>(&row_plan(args));
    plan_rows(p, args.in(0), axis);
    for (int o = 0; o < args.inputs + args.outputs; o++)
        plan_row_operand(p, &args.operand(o), axis);
}

void row_prepare(ArgBlock& args) {  // the first scalar is the axis
    const int64_t axis = args.scalar(0).i;
    plan_whole(args, axis < 0 ? axis + args.in(0).rank : axis);
}
void last_prepare(ArgBlock& args) { plan_whole(args, args.in(0).rank - 1); }

int64_t row_units(const ArgBlock& args, int) {
    const RowPlan& p = row_plan(args);
    return (p.rows + p.grain - 1) / p.grain;  // empty rows too: normalize has a result for each
}

template <RowFn Rows>
void run_rows(const ArgBlock& args, int64_t begin, int64_t end, int, int) {
    const RowPlan& p = row_plan(args);
    RowCall call{};
    call.plan = &p;
    call.scalars = &args.scalar(0);
    for (int o = 0; o < p.operands; o++) {
        call.at[o] = args.operand(o).ptr;
        call.dtype[o] = DType(args.operand(o).dtype);
    }
    Rows(call, begin * p.grain, min64(end * p.grain, p.rows));
}

AICF_INLINE const RowPlan& row_plan(const RowCall& call) {
    return *static_cast<const RowPlan*>(call.plan);
}

/// Where each of a kernel's N operands has row `row`, in elements.
template <int N>
AICF_INLINE void place_row(const RowCall& call, int64_t row, int64_t (&at)[N]) {
    const RowPlan& p = row_plan(call);
    for (int o = 0; o < N; o++) at[o] = (p.rank == 1 ? row * p.stride[o][0] : 0) - call.skip[o];
    for (int d = p.rank == 1 ? -1 : p.rank - 1; d >= 0; d--) {
        const int64_t next = row / p.shape[d], index = row - next * p.shape[d];
        for (int o = 0; o < N; o++) at[o] += index * p.stride[o][d];
        row = next;
    }
}

/// Where they have `count` rows from `row` on; what is past them repeats the first.
template <int N, int R>
AICF_INLINE void place_bundle(const RowCall& call, int64_t row, int count, int64_t (&at)[N][R]) {
    const RowPlan& p = row_plan(call);
    if (p.rank == 1) {
        for (int o = 0; o < N; o++) {
            const int64_t step = p.stride[o][0], from = row * step - call.skip[o];
            for (int i = 0; i < R; i++) at[o][i] = from + (i < count ? i * step : 0);
        }
        return;
    }
    for (int i = 0; i < R; i++) {
        int64_t one[N];
        place_row(call, row + (i < count ? i : 0), one);
        for (int o = 0; o < N; o++) at[o][i] = one[o];
    }
}

AICF_INLINE int64_t walk_step(const Walk& w) { return w.rank ? w.stride[0] : 0; }

/// Stores n elements of a block at `pos` of the walk.
template <class A, class E>
AICF_INLINE void store_block(const Walk& w, E* base, int64_t pos, int64_t n, const A* v) {
    const int64_t step = walk_step(w);
    E* y = base + pos * step;
    if (step == 1)
        narrow_row(v, n, y);
    else
        for (int64_t i = 0; i < n; i++) put(y + i * step, v[i]);
}

}  // namespace aicf::cpu::AICF_ISA
