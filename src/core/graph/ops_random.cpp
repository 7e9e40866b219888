// Random values: Philox-4x32-10 keyed by (seed, stream) and counted by (element, step), so that an
// element's value depends on nothing else. The stream number is fixed when the node is made.
#include <cmath>
#include <limits>

#include "core/abi/scalar.h"
#include "core/graph/op.h"

namespace aicf {

double rounded(DType dtype, double x) {
    const float f = static_cast<float>(x);
    switch (dtype) {
        case DType::f64:
            return x;
        case DType::f32:
            return f;
        case DType::f16:
            return scalar::half_to_f32(scalar::f32_to_half(f));
        default:
            return scalar::bfloat_to_f32(scalar::f32_to_bfloat(f));
    }
}

/// The next smaller number of a dtype.
static double below(DType dtype, double x) {
    constexpr double kLowest = -std::numeric_limits<double>::infinity();
    if (dtype == DType::f64) return std::nextafter(x, kLowest);
    const auto f = static_cast<float>(x);
    if (dtype == DType::f32) return std::nextafter(f, static_cast<float>(kLowest));
    const bool half = dtype == DType::f16;
    uint16_t bits = half ? scalar::f32_to_half(f) : scalar::f32_to_bfloat(f);
    if (f == 0)
        bits = 0x8001;  // the first below zero
    else
        bits = static_cast<uint16_t>(f > 0 ? bits - 1 : bits + 1);
    return half ? scalar::half_to_f32(bits) : scalar::bfloat_to_f32(bits);
}

double last_below(DType dtype, double low, double high) {
    const double last = rounded(dtype, high);
    return std::max(last < high ? last : below(dtype, last), rounded(dtype, low));
}

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

std::vector<Type> infer_normal(const InferContext& c) {
    const double mean = c.attrs.number("a"), deviation = c.attrs.number("b");
    if (!std::isfinite(mean) || !(deviation >= 0) || !std::isfinite(deviation))
        c.value_error("mean is ", mean, ", std is ", deviation, "; need finite numbers, std >= 0");
    return infer_random(c);
}

std::vector<Type> infer_dropout(const InferContext& c) {
    c.need_float(0);
    check_counters(c, 1);
    const double p = c.attrs.number("p");
    if (!(p >= 0 && p <= 1)) c.value_error("p is ", p, "; need a probability in [0, 1]");
    return {{c.dtype(0), c.shape(0)}};
}

std::vector<Type> infer_uniform(const InferContext& c) {
    const double low = c.attrs.number("a"), high = c.attrs.number("b");
    const std::vector<Type> types = infer_random(c);
    const bool wide = types[0].dtype == DType::f64;
    const double range = wide ? high - low : static_cast<float>(high) - static_cast<float>(low);
    if (!(low <= high) || !std::isfinite(range))
        c.value_error("low is ", low, ", high is ", high,
                      "; need low <= high, high - low finite in ", dtype_name(types[0].dtype));
    return types;
}

void lower_random(LowerContext& c) {
    Attrs attrs = c.attrs();
    double last = std::numeric_limits<double>::infinity();
    if (c.def().lowered == "random_uniform")
        last = last_below(parse_dtype(attrs.text("dtype"), "random"), attrs.number("a"),
                          attrs.number("b"));
    attrs.set("last", last);
    c.op(c.def().lowered, {c.in(0), c.in(1)}, {c.out()}, attrs);
}

void define_random(const std::string& name, const std::string& lowered, InferFn infer) {
    std::vector<AttrDef> attrs = {{"shape", std::vector<int64_t>(), true},
                                  {"dtype", std::string("float32")},
                                  {"a", 0.0},
                                  {"b", 1.0},
                                  {"stream", int64_t(0), true}};
    define(OpDef{.name = name,
                 .fn = lowered,
                 .inputs = {"seed", "step"},
                 .outputs = {lowered + "_out"},
                 .attrs = attrs,
                 .infer = infer,
                 .no_grad = kRandom,
                 .lower = lower_random,
                 .lowered = lowered});
    attrs.push_back({"last", 0.0, true});  // no result is larger
    define(LoweredDef{.name = lowered,
                      .inputs = {"seed", "step"},
                      .outputs = {"y"},
                      .attrs = attrs,
                      .infer = infer,
                      .random = true,
                      .flops_per_element = 30});
}

}  // namespace

void define_random_ops() {
    define_random("RandomUniform", "random_uniform", infer_uniform);  // a = low, b = high
    define_random("RandomNormal", "random_normal", infer_normal);     // a = mean, b = deviation
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
                     },
                 .storage = Storage::narrow});
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
