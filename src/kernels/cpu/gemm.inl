// The kernels gemm and fused_gemm: operands of any strides and types, shared out in cells, each one
// product of matmul.inl or steps.inl. Included once per instruction set; see isa.cpp. No
// standard-library templates here.

namespace aicf::cpu::AICF_ISA {
namespace mm {

// Units are the cells of a grid over one C, numbered across its shorter side first, for every
// batch; a run of units is at most three rectangles of C, each computed as one product.
struct CellGrid {
    int64_t m, n, k, batches, rows, cols;  // rows, cols: size of a cell
    bool down;                             // numbered down the columns first
    int64_t across() const { return ceil_div(n, cols); }
    int64_t along() const { return ceil_div(m, rows); }
    int64_t cells() const { return across() * along(); }
};

inline CellGrid cells_of(const ArgBlock& args) {
    const Operand &a = args.in(0), &c = args.out(0);
    const int d = c.rank;
    CellGrid g{
        c.shape()[d - 2], c.shape()[d - 1], a.shape()[a.rank - 1], 1, kCellRows, kCellCols, false};
    for (int i = 0; i < d - 2; ++i) g.batches *= c.shape()[i];
    g.down = g.n > g.m;
    // A cell is worth some ten microseconds, so that sharing it out pays.
    while (g.rows * g.cols * max(g.k, 1) < kCellWork && (g.rows < g.m || g.cols < g.n)) {
        int64_t& side = g.rows < g.m && (g.rows <= g.cols || g.cols >= g.n) ? g.rows : g.cols;
        side *= 2;
    }
    // Cells of one size, so that shares of equal count are equal work.
    g.rows = max(ceil_div(g.m, max(ceil_div(g.m, g.rows), 1)), 1);
    const int64_t even = ceil_div(g.n, max(ceil_div(g.n, g.cols), 1));
    g.cols = max(ceil_div(even, kCellStep) * kCellStep, kCellStep);
    return g;
}

template <class T, class S, class D>
void rectangle(const Operand& a, const Operand& b, const Operand& c, int64_t batch, int64_t i0,
               int64_t i1, int64_t j0, int64_t j1, int64_t chunk, char* workspace) {
    if (i0 >= i1 || j0 >= j1) return;
    const int d = c.rank;
    const int64_t *as = a.strides(), *bs = b.strides(), *cs = c.strides(), k = a.shape()[d - 1];
    const S* ap = static_cast<const S*>(a.ptr) + i0 * as[d - 2];
    const S* bp = static_cast<const S*>(b.ptr) + j0 * bs[d - 1];
    D* cp = static_cast<D*>(c.ptr) + i0 * cs[d - 2] + j0 * cs[d - 1];
    for (int i = d - 3; i >= 0; --i) {
        const int64_t at = batch % c.shape()[i];
        batch /= c.shape()[i];
        ap += at * as[i], bp += at * bs[i], cp += at * cs[i];
    }
    const int64_t m = i1 - i0, n = j1 - j0;
    if constexpr (kSame<S, AsLimbs>) {
        return limbs_of(
            ap, as[d - 2], as[d - 1], bp, bs[d - 2], bs[d - 1], m, n, k, workspace,
            [&](int64_t i, int64_t j, float sum) { cp[i * cs[d - 2] + j * cs[d - 1]] = sum; });
    } else if constexpr (!kSame<S, T>) {
        if (chunk < 0)
            return steps_of(ap, as[d - 2], as[d - 1], bp, bs[d - 2], bs[d - 1], m, n, k, -chunk,
                            workspace, [&](int64_t i, int64_t j, float sum) {
                                D* const to = cp + i * cs[d - 2] + j * cs[d - 1];
                                if constexpr (kSame<D, float>)
                                    *to = sum;
                                else
                                    narrow(sum, to);
                            });
    }
    if constexpr (kSame<S, AsLimbs>) {
    } else if constexpr (sizeof(D) == sizeof(T)) {
        product<T, S>(ap, as[d - 2], as[d - 1], bp, bs[d - 2], bs[d - 1], cp, cs[d - 2], cs[d - 1],
                      m, n, k, chunk, workspace);
    } else {
        T* const sums = reinterpret_cast<T*>(workspace);  // rounded once, after the last chunk
        char* const rest = workspace + kConvertRows * kConvertCols * sizeof(T);
        for (int64_t j = 0; j < n; j += kConvertCols) {
            const int64_t nb = min(kConvertCols, n - j);
            for (int64_t i = 0; i < m; i += kConvertRows) {
                const int64_t mb = min(kConvertRows, m - i);
                product<T, S>(ap + i * as[d - 2], as[d - 2], as[d - 1], bp + j * bs[d - 1],
                              bs[d - 2], bs[d - 1], sums, nb, 1, mb, nb, k, chunk, rest);
                for (int64_t y = 0; y < mb; ++y)
                    for (int64_t x = 0; x < nb; ++x)
                        narrow(sums[y * nb + x], cp + (i + y) * cs[d - 2] + (j + x) * cs[d - 1]);
            }
        }
    }
}

/// The pointwise steps behind a product, run over each part of C as soon as it is there.
struct Epilogue {
    const Program* program;
    char** slots;
    void run(const CellGrid& g, int64_t batch, int64_t i0, int64_t i1, int64_t j0,
             int64_t j1) const {
        const int64_t row = batch * g.m;
        if (i0 >= i1 || j0 >= j1) return;
        if (j0 == 0 && j1 == g.n)
            return run_range(*program, slots, (row + i0) * g.n, (row + i1) * g.n);
        for (int64_t i = i0; i < i1; ++i)
            run_range(*program, slots, (row + i) * g.n + j0, (row + i) * g.n + j1);
    }
};

template <class T, class S, class D>
void run(const ArgBlock& args, const CellGrid& g, int64_t begin, int64_t end, char* workspace,
         const Epilogue* after) {
    const Operand &a = args.in(0), &b = args.in(1), &c = args.out(0);
    const int64_t chunk = args.scalar(0).i, cells = g.cells(),
                  inner = g.down ? g.along() : g.across();
    while (begin < end) {
        const int64_t batch = begin / cells, first = begin % cells,
                      last = min(cells, first + end - begin);
        begin += last - first;
        for (int64_t u = first; u < last;) {
            // As many whole lines of cells as follow, or else the part of one line.
            const int64_t o0 = u / inner, at = u % inner;
            const int64_t o1 = o0 + (at == 0 ? max((last - u) / inner, 1) : 1);
            const int64_t stop = min(inner, at + last - u);
            const int64_t r0 = g.down ? at : o0, r1 = g.down ? stop : o1;
            const int64_t c0 = g.down ? o0 : at, c1 = g.down ? o1 : stop;
            const int64_t i0 = r0 * g.rows, i1 = min(g.m, r1 * g.rows), j0 = c0 * g.cols,
                          j1 = min(g.n, c1 * g.cols);
            rectangle<T, S, D>(a, b, c, batch, i0, i1, j0, j1, chunk, workspace);
            if (after) after->run(g, batch, i0, i1, j0, j1);
            u = (o1 - 1) * inner + stop;
        }
    }
}

}  // namespace mm

// The gemm kernel: in(0) = A [..., M, K], in(1) = B [..., K, N], out(0) = C [..., M, N] of equal
// rank, batch axes already broadcast by stride 0; scalar(0).i = c of chain(c) or -c of mma16(c),
// mma8(c) and limbs(c), scalar(1).i a MathMode. 16-bit A and B give a 16-bit C.
int64_t gemm_units(const ArgBlock& args, int phase) {
    const mm::CellGrid g = mm::cells_of(args);
    return phase == 0 && g.m > 0 && g.n > 0 ? g.batches * g.cells() : 0;
}

uint64_t gemm_workspace(const ArgBlock& args, int threads) {
    const mm::CellGrid g = mm::cells_of(args);
    const int64_t chunk = args.scalar(0).i;
    if (chunk < 0)
        return uint64_t(threads) * (2 * mm::kStepTile * mm::kStepTerms * sizeof(scalar::MmaTerm));
    switch (DType(args.out(0).dtype)) {
        case DType::f32:
            return uint64_t(threads) * mm::share<float>(g.m, g.n, g.k, chunk);
        case DType::f64:
            return uint64_t(threads) * mm::share<double>(g.m, g.n, g.k, chunk);
        default:
            return uint64_t(threads) * (mm::share<float>(g.m, g.n, g.k, chunk) +
                                        kConvertRows * kConvertCols * sizeof(float));
    }
}

void run_gemm(const ArgBlock& args, int64_t begin, int64_t end, int thread,
              const mm::Epilogue* after) {
    const mm::CellGrid g = mm::cells_of(args);
    char* const workspace =
        static_cast<char*>(args.workspace) + uint64_t(thread) * gemm_workspace(args, 1);
    switch (DType(args.out(0).dtype)) {
        case DType::f32:
            switch (static_cast<MathMode>(args.scalar(1).i)) {
                case MathMode::fp32:
                    return mm::run<float, float, float>(args, g, begin, end, workspace, after);
                case MathMode::tf32:
                    return mm::run<float, mm::AsTf32, float>(args, g, begin, end, workspace, after);
                case MathMode::fp16:
                    return mm::run<float, mm::AsHalf, float>(args, g, begin, end, workspace, after);
                case MathMode::bf16:
                    return mm::run<float, mm::AsBrain, float>(args, g, begin, end, workspace,
                                                              after);
                case MathMode::fp32x:
                    if (args.scalar(0).i > 0)
                        return mm::run<float, float, float>(args, g, begin, end, workspace, after);
                    return mm::run<float, mm::AsLimbs, float>(args, g, begin, end, workspace,
                                                              after);
            }
            return;
        case DType::f64:
            return mm::run<double, double, double>(args, g, begin, end, workspace, after);
        case DType::f16:
            return mm::run<float, mm::Half, mm::Half>(args, g, begin, end, workspace, after);
        case DType::bf16:
            return mm::run<float, mm::Brain, mm::Brain>(args, g, begin, end, workspace, after);
        default:
            return;
    }
}

void gemm_run(const ArgBlock& args, int64_t begin, int64_t end, int phase, int thread) {
    if (phase == 0) run_gemm(args, begin, end, thread, nullptr);
}

// in(0) and in(1) as above, the product where out(0) lies; the tail is a program over all operands.
void fused_gemm_run(const ArgBlock& args, int64_t begin, int64_t end, int phase, int thread) {
    if (phase != 0) return;
    const Program& program = *static_cast<const Program*>(args.tail_ptr());
    char* buffers =
        static_cast<char*>(__builtin_alloca_with_align(size_t(program.buffer_bytes), 512));
    char* slots[kMaxSlots];
    start_slots(program, buffers, slots);
    const mm::Epilogue after{&program, slots};
    run_gemm(args, begin, end, thread, &after);
}

}  // namespace aicf::cpu::AICF_ISA
