// Pointwise ops, with broadcasting. The functions are in core/abi/scalar.h; gradients are
// PyTorch's, ties included.
#include <cmath>

#include "core/graph/op.h"

namespace aicf {

namespace {

// ---- types -------------------------------------------------------------------------------------

std::vector<Type> infer_same(const InferContext& c) {  // numbers of one dtype
    for (int i = 0; i < c.count(); i++)
        if (c.dtype(i) == DType::boolean)
            c.dtype_error(c.describe(i), "; need a number dtype (cast it)");
    for (int i = 1; i < c.count(); i++) c.need_same_dtype(0, i);
    return {{c.dtype(0), c.broadcast(0, c.count() - 1)}};
}

std::vector<Type> infer_float(const InferContext& c) {
    for (int i = 0; i < c.count(); i++) c.need_float(i);
    return infer_same(c);
}

std::vector<Type> need_whole(const InferContext& c, const char* need) {
    for (int i = 0; i < c.count(); i++)
        if (is_float(c.dtype(i)) || c.dtype(i) == DType::boolean)
            c.dtype_error(c.describe(i), "; need an ", need, " dtype (cast it)");
    return infer_same(c);
}
std::vector<Type> infer_bits(const InferContext& c) { return need_whole(c, "integer or bool"); }
std::vector<Type> infer_shift(const InferContext& c) { return need_whole(c, "integer"); }

std::vector<Type> infer_clip(const InferContext& c) {
    for (const char* limit : {"lo", "hi"})
        if (const double value = c.attrs.number(limit);
            !std::isinf(value) && !holds(c.dtype(0), value))
            c.dtype_error("a limit is ", value, ", ", c.describe(0), "; need a whole number that ",
                          dtype_name(c.dtype(0)), " holds (or cast it)");
    return infer_same(c);
}

std::vector<Type> infer_compare(const InferContext& c) {
    c.need_same_dtype(0, 1);
    return {{DType::boolean, c.broadcast(0, 1)}};
}

std::vector<Type> infer_logic(const InferContext& c) {
    for (int i = 0; i < c.count(); i++) c.need_dtype(i, DType::boolean);
    return {{DType::boolean, c.broadcast(0, c.count() - 1)}};
}

std::vector<Type> infer_test(const InferContext& c) {
    c.need_float(0);
    return {{DType::boolean, c.shape(0)}};
}

std::vector<Type> infer_where(const InferContext& c) {
    c.need_dtype(0, DType::boolean);
    c.need_same_dtype(1, 2);
    return {{c.dtype(1), c.broadcast(0, 2)}};
}

std::vector<Type> infer_cast(const InferContext& c) {
    return {{parse_dtype(c.attrs.text("dtype"), "cast"), c.shape(0)}};
}

std::vector<Type> infer_copy(const InferContext& c) { return {{c.dtype(0), c.shape(0)}}; }

// ---- definition --------------------------------------------------------------------------------

void lower_pointwise(LowerContext& c) {
    std::vector<View> inputs;
    for (int i = 0; i < c.inputs(); i++)
        inputs.push_back(broadcast_view(c.in(i), c.out_type().shape));
    c.op(c.def().lowered, std::move(inputs), {c.out()}, c.attrs());
}

void lower_cast(LowerContext& c) {
    if (c.in(0).dtype == c.out_type().dtype)
        c.alias(0, c.in(0));
    else
        lower_pointwise(c);
}

void zero_grad(GradContext&) {}  // the derivative is zero wherever it exists

constexpr const char* kBool = "the result is bool";

struct Options {
    std::vector<AttrDef> attrs = {};
    double flops = 1;
    LowerFn lower = lower_pointwise;
};

void pointwise_kernel(const std::string& lowered, const std::vector<std::string>& inputs,
                      InferFn infer, const Options& options = {}) {
    LoweredDef low;
    low.name = lowered;
    low.inputs = inputs;
    low.outputs = {"y"};
    low.attrs = options.attrs;
    low.infer = infer;
    for (size_t i = 0; i < inputs.size(); i++) low.inplace.push_back({0, static_cast<int>(i)});
    low.pointwise = true;
    low.flops_per_element = options.flops;
    low.portable = true;  // by the rule of scalar.h
    define(std::move(low));
}

void pointwise(const std::string& name, const std::string& lowered,
               const std::vector<std::string>& inputs, InferFn infer, GradFn grad,
               const std::string& no_grad, const Options& options = {}) {
    OpDef op;
    op.name = name;
    op.fn = lowered;
    op.inputs = inputs;
    op.outputs = {lowered + "_out"};
    op.attrs = options.attrs;
    op.infer = infer;
    op.grad = grad;
    op.no_grad = no_grad;
    op.lower = options.lower;
    op.lowered = lowered;
    op.storage = Storage::narrow;
    define(std::move(op));
    pointwise_kernel(lowered, inputs, infer, options);
}

void unary(const std::string& name, const std::string& lowered, GradFn grad,
           const Options& options = {}) {
    pointwise(name, lowered, {"x"}, infer_float, grad, "", options);
}

/// A gradient as one pointwise op of (x or y, dy): accurate, and one kernel.
void derivative(const std::string& name, const std::string& lowered, GradFn grad,
                const Options& options = {}) {
    pointwise(name, lowered, {"x", "dy"}, infer_float, grad, "", options);
}

/// The gradient of f'(x) dy where f' is piecewise constant: linear in dy, the last operand.
void linear_grad(GradContext& g) {
    const int last = g.inputs() - 1;
    if (!g.needs(last)) return;
    std::vector<Var> inputs;
    for (int i = 0; i < last; i++) inputs.push_back(g.in(i));
    inputs.push_back(g.dy());
    g.set(last, emit(g.op().name, inputs, g.attrs()));
}

/// The gradient of f'(x) dy, where f''(x) is `curve(x)`.
template <class Curve>
void curved_grad(GradContext& g, Curve curve) {
    linear_grad(g);
    if (g.needs(0)) g.set(0, g.dy() * g.in(1) * curve(g.in(0)));
}

/// x clamped to [-most, most]; beyond, f'' is 0, but its factors may overflow.
Var within(Var x, double most) { return emit("Clip", {x}, {{"lo", -most}, {"hi", most}}); }

/// The derivative of a sigmoid, accurate at both ends.
Var sigmoid_slope(Var x) { return emit("Sigmoid", {x}) * emit("Sigmoid", {-x}); }

/// f'' of x sigmoid(x).
Var silu_curve(Var x) {
    x = within(x, 1000);
    const Var s = emit("Sigmoid", {x});
    return sigmoid_slope(x) * (x * (s * -2.0 + 1.0) + 2.0);
}

/// f'' of x sigmoid(v), v = 2 sqrt(2 / pi) (x + 0.044715 x^3).
Var gelu_tanh_curve(Var x) {
    constexpr double a = 1.5957691216057308, b = 0.071354816272600249;
    x = within(x, 20);
    const Var x2 = x * x, v = x * (x2 * b + a), dv = x2 * (3 * b) + a;
    const Var slope = sigmoid_slope(v), bent = emit("Sigmoid", {v}) * -2.0 + 1.0;
    return slope * dv * (x * dv * bent + 2.0) + slope * (x2 * (6 * b));
}

/// f'' of x times the normal distribution function.
Var gelu_erf_curve(Var x) {
    x = within(x, 40);
    const Var x2 = x * x;
    return emit("Exp", {x2 * -0.5}) * (x2 * -1.0 + 2.0) * 0.3989422804014327;  // 1 / sqrt(2 pi)
}

void use_x(GradContext& g, const char* op) { g.set(0, emit(op, {g.in(0), g.dy()}, g.attrs())); }
void use_y(GradContext& g, const char* op) { g.set(0, emit(op, {g.out(), g.dy()}, g.attrs())); }

/// 1 / sqrt(1 - x^2)
Var slope_of_arc(Var x) { return emit("Rsqrt", {(-x + 1.0) * (x + 1.0)}); }

// Derivatives composed of differentiable ops.
void define_elementary() {
    static constexpr double ln2 = 0.6931471805599453, ln10 = 2.302585092994046;
    unary("Expm1", "expm1", [](GradContext& g) { g.set(0, g.dy() * (g.out() + 1.0)); }, {{}, 15});
    unary("Exp2", "exp2", [](GradContext& g) { g.set(0, g.dy() * (g.out() * ln2)); }, {{}, 15});
    unary("Log2", "log2", [](GradContext& g) { g.set(0, g.dy() / (g.in(0) * ln2)); }, {{}, 20});
    unary("Log10", "log10", [](GradContext& g) { g.set(0, g.dy() / (g.in(0) * ln10)); }, {{}, 20});
    unary("Tan", "tan", [](GradContext& g) { g.set(0, g.dy() * (g.out() * g.out() + 1.0)); },
          {{}, 40});
    unary("Asin", "asin", [](GradContext& g) { g.set(0, g.dy() * slope_of_arc(g.in(0))); },
          {{}, 40});
    unary("Acos", "acos", [](GradContext& g) { g.set(0, -(g.dy() * slope_of_arc(g.in(0)))); },
          {{}, 40});
    unary("Atan", "atan", [](GradContext& g) { g.set(0, g.dy() / (g.in(0) * g.in(0) + 1.0)); },
          {{}, 40});
    unary("Sinh", "sinh", [](GradContext& g) { g.set(0, g.dy() * emit("Cosh", {g.in(0)})); },
          {{}, 40});
    unary("Cosh", "cosh", [](GradContext& g) { g.set(0, g.dy() * emit("Sinh", {g.in(0)})); },
          {{}, 30});
    unary("Asinh", "asinh",
          [](GradContext& g) {
              g.set(0, g.dy() / emit("Hypot", {g.in(0), zeros_like(g.in(0)) + 1.0}));
          },
          {{}, 60});
    unary("Acosh", "acosh",
          [](GradContext& g) {
              const Var root = emit("Sqrt", {g.in(0) + -1.0}) * emit("Sqrt", {g.in(0) + 1.0});
              g.set(0, g.dy() / root);
          },
          {{}, 60});
    unary("Atanh", "atanh",
          [](GradContext& g) { g.set(0, g.dy() / ((-g.in(0) + 1.0) * (g.in(0) + 1.0))); },
          {{}, 50});
    pointwise("Atan2", "atan2", {"y", "x"}, infer_float,
              [](GradContext& g) {
                  // At the origin, where no derivative exists, all gradients are 0, as in PyTorch.
                  const Var y = g.in(0), zero = number_like(y, 0), one = number_like(y, 1);
                  const Var origin =
                      emit("LogicalAnd", {emit("Eq", {y, zero}), emit("Eq", {g.in(1), zero})});
                  const Var x = emit("Where", {origin, one, g.in(1)});
                  const Var r = emit("Hypot", {y, x});
                  const Var dy = emit("Where", {origin, zero, g.dy() / r});
                  if (g.needs(0)) g.set(0, dy * (x / r));
                  if (g.needs(1)) g.set(1, -(dy * (y / r)));
              },
              "", {{}, 50});
    pointwise("Hypot", "hypot", {"x", "y"}, infer_float,
              [](GradContext& g) {
                  for (int i = 0; i < 2; i++)
                      if (g.needs(i)) g.set(i, g.dy() * (g.in(i) / g.out()));
              },
              "", {{}, 20});
    pointwise("Fmod", "fmod", {"a", "b"}, infer_same,
              [](GradContext& g) {
                  g.set(0, g.dy());
                  if (g.needs(1)) g.set(1, g.dy() * ((g.out() - g.in(0)) / g.in(1)));
              },
              "", {{}, 10});
    pointwise("FloorDivide", "floor_divide", {"a", "b"}, infer_same, zero_grad, "", {{}, 15});
}

}  // namespace

void define_pointwise_ops() {
    const std::vector<std::string> ab = {"a", "b"};
    const auto define_arithmetic = [&](const char* name, const char* lowered, GradFn grad) {
        pointwise(name, lowered, ab, infer_same, grad, "");
    };
    define_arithmetic("Add", "add", [](GradContext& g) {
        g.set(0, g.dy());
        g.set(1, g.dy());
    });
    define_arithmetic("Sub", "sub", [](GradContext& g) {
        g.set(0, g.dy());
        if (g.needs(1)) g.set(1, -g.dy());
    });
    define_arithmetic("Mul", "mul", [](GradContext& g) {
        if (g.needs(0)) g.set(0, g.dy() * g.in(1));
        if (g.needs(1)) g.set(1, g.dy() * g.in(0));
    });
    define_arithmetic("Maximum", "maximum", [](GradContext& g) {
        if (g.needs(0)) g.set(0, emit("MaximumBwd", {g.in(0), g.in(1), g.dy()}));
        if (g.needs(1)) g.set(1, emit("MaximumBwd", {g.in(1), g.in(0), g.dy()}));
    });
    define_arithmetic("Minimum", "minimum", [](GradContext& g) {
        if (g.needs(0)) g.set(0, emit("MinimumBwd", {g.in(0), g.in(1), g.dy()}));
        if (g.needs(1)) g.set(1, emit("MinimumBwd", {g.in(1), g.in(0), g.dy()}));
    });
    for (auto [name, lowered] :
         {std::pair{"MaximumBwd", "maximum_bwd"}, {"MinimumBwd", "minimum_bwd"}})
        pointwise(name, lowered, {"a", "b", "dy"}, infer_float, linear_grad, "");
    pointwise(
        "Div", "div", ab, infer_float,
        [](GradContext& g) {
            if (g.needs(0)) g.set(0, g.dy() / g.in(1));
            if (g.needs(1)) g.set(1, -(g.dy() * g.out() / g.in(1)));
        },
        "");
    pointwise("Pow", "pow", ab, infer_float,
              [](GradContext& g) {
                  Var a = g.in(0), b = g.in(1);
                  const std::optional<double> number = number_of(b);
                  if (g.needs(0) && number != 0.0) {  // b = 0 gives 0 also where a = 0
                      Var zero = zeros_like(b);
                      Var less = number ? number_like(b, *number - 1) : b + -1.0;
                      Var slope = b * emit("Pow", {a, less});
                      g.set(0, g.dy() * emit("Where", {emit("Eq", {b, zero}), zero, slope}));
                  }
                  if (g.needs(1)) {  // 0 ** b is flat in b for b >= 0
                      Var zero = zeros_like(g.out());
                      Var flat = emit("LogicalAnd", {emit("Eq", {a, zeros_like(a)}),
                                                     emit("Ge", {b, zeros_like(b)})});
                      g.set(1, g.dy() * emit("Where", {flat, zero, g.out() * emit("Log", {a})}));
                  }
              },
              "", {{}, 20});

    pointwise("Neg", "neg", {"x"}, infer_same, [](GradContext& g) { g.set(0, -g.dy()); }, "");
    pointwise(
        "Abs", "abs", {"x"}, infer_same,
        [](GradContext& g) { g.set(0, g.dy() * emit("Sign", {g.in(0)})); }, "");
    pointwise("Sign", "sign", {"x"}, infer_same, zero_grad, "");
    pointwise("ReLU", "relu", {"x"}, infer_same, [](GradContext& g) { use_y(g, "ReluBwd"); }, "");
    unary("Floor", "floor", zero_grad);
    unary("Round", "round", zero_grad);
    unary("Exp", "exp", [](GradContext& g) { g.set(0, g.dy() * g.out()); }, {{}, 10});
    unary("Log", "log", [](GradContext& g) { g.set(0, g.dy() / g.in(0)); }, {{}, 10});
    unary("Log1p", "log1p", [](GradContext& g) { g.set(0, g.dy() / (g.in(0) + 1.0)); }, {{}, 15});
    define_elementary();
    unary("Sqrt", "sqrt", [](GradContext& g) { g.set(0, g.dy() / (g.out() * 2.0)); });
    unary("Rsqrt", "rsqrt", [](GradContext& g) { g.set(0, g.dy() * (g.out() / g.in(0)) * -0.5); });
    unary("Sin", "sin", [](GradContext& g) { g.set(0, g.dy() * emit("Cos", {g.in(0)})); },
          {{}, 15});
    unary("Cos", "cos", [](GradContext& g) { g.set(0, -(g.dy() * emit("Sin", {g.in(0)}))); },
          {{}, 15});
    unary("Erf", "erf",
          [](GradContext& g) {
              const double slope = 1.1283791670955126;  // 2 / sqrt(pi)
              g.set(0, g.dy() * emit("Exp", {-(g.in(0) * g.in(0))}) * slope);
          },
          {{}, 20});
    unary("Tanh", "tanh", [](GradContext& g) { use_y(g, "TanhBwd"); }, {{}, 15});
    unary("Sigmoid", "sigmoid", [](GradContext& g) { use_y(g, "SigmoidBwd"); }, {{}, 12});
    unary("SiLU", "silu", [](GradContext& g) { use_x(g, "SiluBwd"); }, {{}, 12});
    unary("GeluTanh", "gelu_tanh", [](GradContext& g) { use_x(g, "GeluTanhBwd"); }, {{}, 20});
    unary("GeluErf", "gelu_erf", [](GradContext& g) { use_x(g, "GeluErfBwd"); }, {{}, 20});
    unary("Softplus", "softplus", [](GradContext& g) { use_x(g, "SoftplusBwd"); }, {{}, 20});
    const Options slope = {{{"slope", 0.01}}, 1}, alpha = {{{"alpha", 1.0}}, 10};
    const Options range = {{{"lo", 0.0, true}, {"hi", 0.0, true}}, 2};
    unary("LeakyReLU", "leaky_relu", [](GradContext& g) { use_x(g, "LeakyReluBwd"); }, slope);
    unary("ELU", "elu", [](GradContext& g) { use_x(g, "EluBwd"); }, alpha);
    pointwise(
        "Clip", "clip", {"x"}, infer_clip, [](GradContext& g) { use_x(g, "ClipBwd"); }, "", range);
    derivative("ReluBwd", "relu_bwd", linear_grad);
    derivative("TanhBwd", "tanh_bwd",
               [](GradContext& g) { curved_grad(g, [](Var y) { return y * -2.0; }); }, {{}, 3});
    derivative("SigmoidBwd", "sigmoid_bwd",
               [](GradContext& g) { curved_grad(g, [](Var y) { return y * -2.0 + 1.0; }); },
               {{}, 3});
    derivative("SiluBwd", "silu_bwd", [](GradContext& g) { curved_grad(g, silu_curve); }, {{}, 15});
    derivative("GeluTanhBwd", "gelu_tanh_bwd",
               [](GradContext& g) { curved_grad(g, gelu_tanh_curve); }, {{}, 25});
    derivative("GeluErfBwd", "gelu_erf_bwd", [](GradContext& g) { curved_grad(g, gelu_erf_curve); },
               {{}, 30});
    derivative("SoftplusBwd", "softplus_bwd", [](GradContext& g) { curved_grad(g, sigmoid_slope); },
               {{}, 12});
    derivative("LeakyReluBwd", "leaky_relu_bwd", linear_grad, slope);
    derivative(
        "EluBwd", "elu_bwd",
        [](GradContext& g) {
            curved_grad(g, [&](Var x) {
                const Var zero = zeros_like(x), one = zero + 1.0;
                const Attrs attrs = {{"alpha", g.attrs().number("alpha")}};
                const Var left = emit("EluBwd", {x, one}, attrs);  // alpha exp(x) where x < 0
                return emit("Where", {emit("Ge", {x, zero}), zero, left});
            });
        },
        alpha);
    derivative("ClipBwd", "clip_bwd", linear_grad, range);

    for (auto [name, lowered] : {std::pair{"Eq", "eq"},
                                 {"Ne", "ne"},
                                 {"Lt", "lt"},
                                 {"Le", "le"},
                                 {"Gt", "gt"},
                                 {"Ge", "ge"}})
        pointwise(name, lowered, ab, infer_compare, nullptr, kBool);
    for (auto [name, lowered] : {std::pair{"LogicalAnd", "logical_and"},
                                 {"LogicalOr", "logical_or"},
                                 {"LogicalXor", "logical_xor"}})
        pointwise(name, lowered, ab, infer_logic, nullptr, kBool);
    const char* const whole = "the result is a whole number";
    for (auto [name, lowered] : {std::pair{"BitwiseAnd", "bitwise_and"},
                                 {"BitwiseOr", "bitwise_or"},
                                 {"BitwiseXor", "bitwise_xor"}})
        pointwise(name, lowered, ab, infer_bits, nullptr, whole);
    for (auto [name, lowered] : {std::pair{"BitwiseLeftShift", "bitwise_left_shift"},
                                 {"BitwiseRightShift", "bitwise_right_shift"}})
        pointwise(name, lowered, ab, infer_shift, nullptr, whole);
    pointwise("LogicalNot", "logical_not", {"x"}, infer_logic, nullptr, kBool);
    pointwise("IsNan", "isnan", {"x"}, infer_test, nullptr, kBool);
    pointwise(
        "Where", "where", {"condition", "a", "b"}, infer_where,
        [](GradContext& g) {
            Var zero = zeros_like(g.dy());
            if (g.needs(1)) g.set(1, emit("Where", {g.in(0), g.dy(), zero}));
            if (g.needs(2)) g.set(2, emit("Where", {g.in(0), zero, g.dy()}));
        },
        "");
    pointwise("Cast", "cast", {"x"}, infer_cast,
              [](GradContext& g) {
                  g.set(0, emit("Cast", {g.dy()}, {{"dtype", dtype_name(g.in(0).type().dtype)}}));
              },
              "", {{{"dtype", std::string(), true}}, 1, lower_cast});

    // Pointwise kernels that other families lower to.
    pointwise_kernel("copy", {"x"}, infer_copy);
    pointwise_kernel("bias_add", {"x", "b"}, infer_same);
    pointwise_kernel("mse_grad", {"y", "t"}, infer_float, {{{"scale", 0.0, true}}, 2});
}

}  // namespace aicf
