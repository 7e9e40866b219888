// Optimizers as ordinary nodes with effects. Every number that may change between steps is an
// operand: a rank-0 value in device memory. Formulas are PyTorch's.
#include "core/graph/op.h"

namespace aicf {

namespace {

constexpr const char* kEffect = "an optimizer's update is not differentiated";

/// Operands [first, count) are scalars: f64 with an f64 param, else f32.
void check_numbers(const InferContext& c, int first) {
    for (int i = first; i < c.count(); i++) {
        c.need_rank(i, 0);
        c.need_dtype(i, c.dtype(0) == DType::f64 ? DType::f64 : DType::f32);
    }
}

/// Operands [0, count) have one float type: the param, its gradient and its moments.
void check_alike(const InferContext& c, int count) {
    c.need_float(0);
    for (int i = 1; i < count; i++) {
        c.need_same_dtype(0, i);
        if (!(c.shape(0) == c.shape(i)))
            c.shape_error("shapes differ: ", c.describe(0), ", ", c.describe(i),
                          "; need equal shapes");
    }
}

std::vector<Type> infer_step_inc(const InferContext& c) {
    c.need_rank(0, 0);
    c.need_dtype(0, DType::i32);
    return {{DType::i32, {}}};
}

std::vector<Type> infer_bias_corr(const InferContext& c) {
    c.need_dtype(0, DType::i32);
    c.need_rank(0, 0);
    c.need_rank(1, 0);
    c.need_rank(2, 0);
    c.need_float(1);
    c.need_same_dtype(1, 2);
    return {{c.dtype(1), {}}, {c.dtype(1), {}}};
}

std::vector<Type> infer_sgd(const InferContext& c) {
    check_alike(c, 2);
    check_numbers(c, 2);
    return {{c.dtype(0), c.shape(0)}};
}

std::vector<Type> infer_adam(const InferContext& c) {
    check_alike(c, 4);
    check_numbers(c, 4);
    const Type type{c.dtype(0), c.shape(0)};
    return {type, type, type};
}

/// An op whose node and kernel have the same operands, each result in place of its source. Operands
/// from `numbers` on are scalars.
void effect(const std::string& name, const std::string& lowered,
            const std::vector<std::string>& inputs, const std::vector<std::string>& outputs,
            InferFn infer, std::vector<std::pair<int, int>> inplace, int numbers, double flops) {
    define(OpDef{.name = name,
                 .fn = lowered,
                 .inputs = inputs,
                 .outputs = outputs,
                 .infer = infer,
                 .no_grad = kEffect,
                 .lower =
                     [](LowerContext& c) {
                         std::vector<View> in, out;
                         for (int i = 0; i < c.inputs(); i++) in.push_back(c.in(i));
                         for (size_t i = 0; i < c.def().outputs.size(); i++)
                             out.push_back(c.out(static_cast<int>(i)));
                         c.op(c.def().lowered, std::move(in), std::move(out));
                     },
                 .lowered = lowered,
                 .effect = true});
    LoweredDef low;
    low.name = lowered;
    low.inputs = inputs;
    low.outputs = outputs;
    low.infer = infer;
    low.inplace = std::move(inplace);
    low.optimizer = true;
    low.numbers = numbers;
    low.flops_per_element = flops;
    define(std::move(low));
}

}  // namespace

void define_optim_ops() {
    // step' = step + 1
    effect("StepInc", "step_inc", {"step"}, {"step"}, infer_step_inc, {{0, 0}}, 0, 1);
    // bc_inv = 1 / (1 - beta^step), beta^step powered in f64
    effect("BiasCorr", "bias_corr", {"step", "beta1", "beta2"}, {"bc1_inv", "bc2_inv"},
           infer_bias_corr, {}, 0, 20);
    // p' = p - lr grad
    effect("SgdStep", "sgd_step", {"p", "grad", "lr"}, {"p"}, infer_sgd, {{0, 0}}, 2, 2);
    // m' = beta1 m + (1 - beta1) grad;  v' = beta2 v + (1 - beta2) grad^2
    // p' = p - lr (m' bc1_inv) / (sqrt(v' bc2_inv) + eps)
    effect("AdamStep", "adam_step",
           {"p", "grad", "m", "v", "bc1_inv", "bc2_inv", "lr", "beta1", "beta2", "eps"},
           {"p", "m", "v"}, infer_adam, {{0, 0}, {1, 2}, {2, 3}}, 4, 15);
    // The same on p * keep and grad * scale: decoupled weight decay and norm clipping.
    effect("ScaledAdamStep", "scaled_adam_step",
           {"p", "grad", "m", "v", "bc1_inv", "bc2_inv", "lr", "beta1", "beta2", "eps", "keep",
            "scale"},
           {"p", "m", "v"}, infer_adam, {{0, 0}, {1, 2}, {2, 3}}, 4, 17);
    // The same, but a scale of 0 keeps everything, whatever the gradient: a step skipped by loss
    // scaling.
    effect("GuardedSgdStep", "guarded_sgd_step", {"p", "grad", "lr", "scale"}, {"p"}, infer_sgd,
           {{0, 0}}, 2, 4);
    effect("GuardedAdamStep", "guarded_adam_step",
           {"p", "grad", "m", "v", "bc1_inv", "bc2_inv", "lr", "beta1", "beta2", "eps", "keep",
            "scale"},
           {"p", "m", "v"}, infer_adam, {{0, 0}, {1, 2}, {2, 3}}, 4, 20);

    // Writes x at the next place of a ring of K and advances the position (outputs kept K steps).
    LoweredDef ring;
    ring.name = "ring_push";
    ring.inputs = {"x", "ring", "position"};
    ring.outputs = {"ring", "position"};
    ring.infer = [](const InferContext& c) -> std::vector<Type> {
        Dims one = c.shape(1);  // of the values it keeps
        if (one.rank() > 0) one.erase(0);
        if (c.shape(1).rank() == 0 || !(one == c.shape(0)))
            c.shape_error(c.describe(0), ", ", c.describe(1), "; need the ring as [K, *x.shape]");
        c.need_same_dtype(0, 1);
        c.need_rank(2, 0);
        c.need_dtype(2, DType::i64);
        return {{c.dtype(1), c.shape(1)}, {c.dtype(2), c.shape(2)}};
    };
    ring.inplace = {{0, 1}, {1, 2}};
    define(std::move(ring));
}

}  // namespace aicf
