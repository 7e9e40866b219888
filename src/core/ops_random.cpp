// Random values: Philox-4x32-10 keyed by (seed, stream) and counted by (element, step), so that an
// element's value depends on nothing else. The stream number is fixed when the node is made.
#include "core/op.h"

namespace aicf {

namespace {

constexpr const char* kRandom = "a random value does not depend on its operands smoothly";

void check_counters(const InferContext& c, int first) {
    for (int i = first; i < first + 2; i++) {
        c.need_rank(i, 0);
        c.need_dtype(i, DType::i64);
    }
}

std::vector<Type> infer_random(const InferContext& c) {
    check_counters(c, 0);
    const Dims shape(c.attrs.ints("shape"));
    for (int64_t size : shape)
        if (size < 0)
            c.shape_error("shape ", to_string(shape), " has a negative size; need sizes >= 0");
    const DType dtype = parse_dtype(c.attrs.text("dtype"), c.where());
    if (!is_float(dtype)) c.dtype_error("dtype is ", dtype_name(dtype), "; need a float dtype");
    return {{dtype, shape}};
}

std::vector<Type> infer_dropout(const InferContext& c) {
    c.need_float(0);
    check_counters(c, 1);
    const double p = c.attrs.number("p");
    if (!(p >= 0 && p <= 1)) c.shape_error("p is ", p, "; need a probability in [0, 1]");
    return {{c.dtype(0), c.shape(0)}};
}

void define_random(const std::string& name, const std::string& lowered, double a, double b) {
    const std::vector<AttrDef> attrs = {{"shape", std::vector<int64_t>(), true},
                                        {"dtype", std::string("float32")},
                                        {"a", a},
                                        {"b", b},
                                        {"stream", int64_t(0), true}};
    define(OpDef{.name = name,
                 .fn = lowered,
                 .inputs = {"seed", "step"},
                 .outputs = {lowered + "_out"},
                 .attrs = attrs,
                 .infer = infer_random,
                 .no_grad = kRandom,
                 .lower =
                     [](LowerContext& c) {
                         c.op(c.def().lowered, {c.in(0), c.in(1)}, {c.out()}, c.attrs());
                     },
                 .lowered = lowered});
    define(LoweredDef{.name = lowered,
                      .inputs = {"seed", "step"},
                      .outputs = {"y"},
                      .attrs = attrs,
                      .infer = infer_random,
                      .random = true,
                      .flops_per_element = 30});
}

}  // namespace

void define_random_ops() {
    define_random("RandomUniform", "random_uniform", 0, 1);  // a = low, b = high
    define_random("RandomNormal", "random_normal", 0, 1);    // a = mean, b = deviation
    // y = x / (1 - p) where a uniform number is >= p, else 0. The gradient draws the same numbers
    // again.
    const std::vector<AttrDef> attrs = {{"p", 0.5}, {"stream", int64_t(0), true}};
    define(OpDef{.name = "Dropout",
                 .fn = "dropout",
                 .inputs = {"x", "seed", "step"},
                 .outputs = {"dropout_out"},
                 .attrs = attrs,
                 .infer = infer_dropout,
                 .grad =
                     [](GradContext& g) {
                         g.set(0, emit("Dropout", {g.dy(), g.in(1), g.in(2)}, g.attrs()));
                     },
                 .lower =
                     [](LowerContext& c) {
                         c.op("dropout", {c.in(0), c.in(1), c.in(2)}, {c.out()}, c.attrs());
                     }});
    define(LoweredDef{.name = "dropout",
                      .inputs = {"x", "seed", "step"},
                      .outputs = {"y"},
                      .attrs = attrs,
                      .infer = infer_dropout,
                      .inplace = {{0, 0}},
                      .random = true,
                      .flops_per_element = 30});
}

}  // namespace aicf
