// Optimizer updates: elementwise instructions whose numbers are rank-0 operands, and the small ops
// around them. Included once per instruction set; see isa.cpp. No standard-library templates here.

namespace aicf::cpu::AICF_ISA {

template <class T>
void sgd_step(int64_t n, void* const* at, const Scalar*) {
    T* out = static_cast<T*>(at[0]);
    const T *p = static_cast<const T*>(at[1]), *grad = static_cast<const T*>(at[2]);
    const T lr = *static_cast<const T*>(at[3]);
    AICF_LOOP out[i] = scalar::sgd_p(p[i], grad[i], lr);
}

template <class T>
void adam_step(int64_t n, void* const* at, const Scalar*) {
    T *p_out = static_cast<T*>(at[0]), *m_out = static_cast<T*>(at[1]),
      *v_out = static_cast<T*>(at[2]);
    const T *p = static_cast<const T*>(at[3]), *grad = static_cast<const T*>(at[4]);
    const T *m = static_cast<const T*>(at[5]), *v = static_cast<const T*>(at[6]);
    const auto number = [&](int i) { return *static_cast<const T*>(at[i]); };
    const T bc1_inv = number(7), bc2_inv = number(8), lr = number(9), beta1 = number(10),
            beta2 = number(11), eps = number(12);
    AICF_LOOP {
        const T mi = scalar::adam_m(m[i], grad[i], beta1),
                vi = scalar::adam_v(v[i], grad[i], beta2);
        p_out[i] = scalar::adam_p(p[i], mi, vi, bc1_inv, bc2_inv, lr, eps);
        m_out[i] = mi;
        v_out[i] = vi;
    }
}

/// adam_step of p keep and grad scale.
template <class T>
void scaled_adam_step(int64_t n, void* const* at, const Scalar*) {
    T *p_out = static_cast<T*>(at[0]), *m_out = static_cast<T*>(at[1]),
      *v_out = static_cast<T*>(at[2]);
    const T *p = static_cast<const T*>(at[3]), *grad = static_cast<const T*>(at[4]);
    const T *m = static_cast<const T*>(at[5]), *v = static_cast<const T*>(at[6]);
    const auto number = [&](int i) { return *static_cast<const T*>(at[i]); };
    const T bc1_inv = number(7), bc2_inv = number(8), lr = number(9), beta1 = number(10),
            beta2 = number(11), eps = number(12), keep = number(13), scale = number(14);
    AICF_LOOP {
        const T g = scalar::mul(grad[i], scale), mi = scalar::adam_m(m[i], g, beta1),
                vi = scalar::adam_v(v[i], g, beta2);
        p_out[i] = scalar::adam_p(scalar::mul(p[i], keep), mi, vi, bc1_inv, bc2_inv, lr, eps);
        m_out[i] = mi;
        v_out[i] = vi;
    }
}

/// sgd_step of grad scale; of a scale of 0 nothing changes.
template <class T>
void guarded_sgd_step(int64_t n, void* const* at, const Scalar*) {
    T* out = static_cast<T*>(at[0]);
    const T *p = static_cast<const T*>(at[1]), *grad = static_cast<const T*>(at[2]);
    const T lr = *static_cast<const T*>(at[3]), scale = *static_cast<const T*>(at[4]);
    AICF_LOOP {
        const T kept = p[i], moved = scalar::sgd_p(kept, scalar::mul(grad[i], scale), lr);
        out[i] = scale != T(0) ? moved : kept;
    }
}

/// scaled_adam_step; of a scale of 0 nothing changes.
template <class T>
void guarded_adam_step(int64_t n, void* const* at, const Scalar* numbers) {
    if (*static_cast<const T*>(at[14]) != T(0)) return scaled_adam_step<T>(n, at, numbers);
    for (int k = 0; k < 3; k++) {
        T* out = static_cast<T*>(at[k]);
        const T* kept = static_cast<const T*>(at[k == 0 ? 3 : 4 + k]);
        AICF_LOOP out[i] = kept[i];
    }
}

int64_t one_unit(const ArgBlock&, int phase) { return phase == 0 ? 1 : 0; }

void step_inc_run(const ArgBlock& args, int64_t begin, int64_t end, int, int) {
    if (begin >= end) return;
    const int32_t step = *static_cast<const int32_t*>(args.in(0).ptr);
    *static_cast<int32_t*>(args.out(0).ptr) = scalar::add(step, int32_t(1));
}

template <class A, class E>
AICF_INLINE void bias_corr(const ArgBlock& args, int i, int32_t step) {
    const double beta = static_cast<double>(widen(*static_cast<const E*>(args.in(1 + i).ptr)));
    put(static_cast<E*>(args.out(i).ptr), static_cast<A>(scalar::bias_corr(beta, step)));
}

void bias_corr_run(const ArgBlock& args, int64_t begin, int64_t end, int, int) {
    if (begin >= end) return;
    const int32_t step = *static_cast<const int32_t*>(args.in(0).ptr);
    for (int i = 0; i < 2; i++) switch (DType(args.in(1).dtype)) {
            case DType::f32:
                bias_corr<float, float>(args, i, step);
                break;
            case DType::f64:
                bias_corr<double, double>(args, i, step);
                break;
            case DType::f16:
                bias_corr<float, F16>(args, i, step);
                break;
            case DType::bf16:
                bias_corr<float, BF16>(args, i, step);
                break;
            default:
                break;
        }
}

/// ring' = ring with x at `position` modulo its length, position' = position + 1.
void ring_push_run(const ArgBlock& args, int64_t begin, int64_t end, int, int) {
    if (begin >= end) return;
    const Operand &x = args.in(0), &ring = args.in(1), &to = args.out(0);
    const int size = element_size(DType(ring.dtype));
    const int64_t keep = ring.shape()[0], position = *static_cast<const int64_t*>(args.in(2).ptr);
    if (ring.ptr != to.ptr)
        strided_copy(to.ptr, to.strides(), ring.ptr, ring.strides(), ring.shape(), ring.rank, size);
    if (keep > 0) {
        const int64_t at = (position % keep + keep) % keep;
        strided_copy(static_cast<char*>(to.ptr) + at * to.strides()[0] * size, to.strides() + 1,
                     x.ptr, x.strides(), x.shape(), x.rank, size);
    }
    *static_cast<int64_t*>(args.out(1).ptr) = scalar::add(position, int64_t{1});
}

// Of a batch: instructions on one number.
void step_inc(int64_t, void* const* at, const Scalar*) {
    *static_cast<int32_t*>(at[0]) = scalar::add(*static_cast<const int32_t*>(at[1]), int32_t(1));
}
template <class T>
void bias_corr(int64_t, void* const* at, const Scalar*) {
    const int32_t step = *static_cast<const int32_t*>(at[2]);
    for (int i = 0; i < 2; i++)
        *static_cast<T*>(at[i]) = static_cast<T>(
            scalar::bias_corr(static_cast<double>(*static_cast<const T*>(at[3 + i])), step));
}

AICF_INLINE void run_instr(const ArgBlock& args, const BatchInstr& instr, int64_t pos, int64_t n) {
    const int operands = args.inputs + args.outputs;
    void* at[kMaxInstrOperands];
    for (int i = 0; i < instr.operands; i++) {
        const int k = instr.operand[i];
        at[i] = k < operands ? args.operand(k).ptr
                             : static_cast<char*>(args.workspace) + 8 * (k - operands);
        if (instr.moving >> i & 1) at[i] = static_cast<char*>(at[i]) + pos * instr.size;
    }
    instr.fn(n, at, nullptr);
}

void run_batch(const ArgBlock& args, int64_t begin, int64_t end, int phase, int) {
    const Batch& batch = *static_cast<const Batch*>(args.tail_ptr());
    const BatchInstr* instr = batch.instr();
    if (phase == 0) {
        for (int k = 0; k < batch.numbers; k++) run_instr(args, instr[k], 0, 1);
        return;
    }
    int64_t first = 0;  // unit of the instruction's first element
    for (int k = batch.numbers; k < batch.instrs && first < end; k++) {
        const int64_t n = instr[k].n, units = (n + kBatchUnit - 1) / kBatchUnit;
        const int64_t pos = begin > first ? (begin - first) * kBatchUnit : 0,
                      stop = min64(n, (end - first) * kBatchUnit);
        if (pos < stop) run_instr(args, instr[k], pos, stop - pos);
        first += units;
    }
}

void register_optim(Table& table) {
    constexpr uint16_t kAdamNumbers = 0x3f0, kScaledNumbers = 0xff0, kSgdNumbers = 0x4,
                       kGuardedSgdNumbers = 0xc;  // inputs of which element 0 is read
    table.add(InstrDef{"sgd_step", DType::f32, DType::f32, 1, 3, 0, kSgdNumbers, sgd_step<float>});
    table.add(InstrDef{"sgd_step", DType::f64, DType::f64, 1, 3, 0, kSgdNumbers, sgd_step<double>});
    table.add(
        InstrDef{"adam_step", DType::f32, DType::f32, 3, 10, 0, kAdamNumbers, adam_step<float>});
    table.add(
        InstrDef{"adam_step", DType::f64, DType::f64, 3, 10, 0, kAdamNumbers, adam_step<double>});
    table.add(InstrDef{"scaled_adam_step", DType::f32, DType::f32, 3, 12, 0, kScaledNumbers,
                       scaled_adam_step<float>});
    table.add(InstrDef{"scaled_adam_step", DType::f64, DType::f64, 3, 12, 0, kScaledNumbers,
                       scaled_adam_step<double>});
    table.add(InstrDef{"guarded_sgd_step", DType::f32, DType::f32, 1, 4, 0, kGuardedSgdNumbers,
                       guarded_sgd_step<float>});
    table.add(InstrDef{"guarded_sgd_step", DType::f64, DType::f64, 1, 4, 0, kGuardedSgdNumbers,
                       guarded_sgd_step<double>});
    table.add(InstrDef{"guarded_adam_step", DType::f32, DType::f32, 3, 12, 0, kScaledNumbers,
                       guarded_adam_step<float>});
    table.add(InstrDef{"guarded_adam_step", DType::f64, DType::f64, 3, 12, 0, kScaledNumbers,
                       guarded_adam_step<double>});
    table.add(InstrDef{"step_inc", DType::i32, DType::i32, 1, 1, 0, 0, step_inc});
    table.add(InstrDef{"bias_corr", DType::f32, DType::f32, 2, 3, 0, 0, bias_corr<float>});
    table.add(InstrDef{"bias_corr", DType::f64, DType::f64, 2, 3, 0, 0, bias_corr<double>});
    table.run_batch = run_batch;
    table.add(CpuKernel{"step_inc", dtype_bit(DType::i32), step_inc_run, one_unit});
    table.add(CpuKernel{"bias_corr", dtype_bit(DType::i32), bias_corr_run, one_unit});
    table.add(CpuKernel{"ring_push", kAnyDType, ring_push_run, one_unit});
}

}  // namespace aicf::cpu::AICF_ISA
