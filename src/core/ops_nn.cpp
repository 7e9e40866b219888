// Losses.
#include <algorithm>

#include "core/op.h"

namespace aicf {

namespace {

std::vector<Type> infer_mse(const InferContext& c) {
    c.need_float(0);
    c.need_same_dtype(0, 1);
    if (!(c.shape(0) == c.shape(1))) c.shape_error("shapes differ: ", c.describe_all(), "; need equal shapes");
    return {{c.dtype(0), {}}};
}

std::vector<Type> infer_mse_grad(const InferContext& c) {
    infer_mse(c);
    return {{c.dtype(0), c.shape(0)}};
}

double mse_scale(const Dims& shape) { return 2.0 / static_cast<double>(std::max<int64_t>(element_count(shape), 1)); }

// CrossEntropy(logits [N, C], labels [N]) -> loss [], lse [N], the log of each row's sum of exp.
void check_classes(const InferContext& c) {
    c.need_rank(0, 2);
    c.need_float(0);
    c.need_rank(1, 1);
    if (c.dtype(1) != DType::i32 && c.dtype(1) != DType::i64)
        c.dtype_error(c.describe(1), "; need class labels as int32 or int64");
    if (c.shape(0)[0] != c.shape(1)[0])
        c.shape_error("row counts differ: ", c.describe(0), ", ", c.describe(1), "; need one label a row");
    if (c.shape(0)[1] == 0) c.shape_error(c.describe(0), " has no classes; need at least 1");
}

std::vector<Type> infer_cross_entropy(const InferContext& c) {
    check_classes(c);
    return {{c.dtype(0), {}}, {c.dtype(0), {c.shape(0)[0]}}};
}

std::vector<Type> infer_cross_entropy_rows(const InferContext& c) {
    check_classes(c);
    const Type row{c.dtype(0), {c.shape(0)[0]}};
    return {row, row};
}

std::vector<Type> infer_cross_entropy_grad(const InferContext& c) {
    check_classes(c);
    c.need_same_dtype(0, 2);
    if (!(c.shape(2) == Dims{c.shape(0)[0]})) c.shape_error(c.describe_all(), "; need one lse a row");
    return {{c.dtype(0), c.shape(0)}};
}

void lower_cross_entropy(LowerContext& c) {
    const View lse = c.out(1), rows = c.temp(c.out_type(1), "row_loss");
    c.op("cross_entropy", {c.in(0), c.in(1)}, {rows, lse}, {{"order", std::string("tree")}});
    if (c.used(0))
        c.op("reduce_mean", {rows}, {c.out(0)},
             {{"axes", std::vector<int64_t>{0}}, {"keepdims", false}, {"order", std::string("tree")}});
}

}  // namespace

void define_nn_ops() {
    define(OpDef{.name = "MseLoss",
                 .fn = "mse_loss",
                 .inputs = {"y", "t"},
                 .outputs = {"mse_loss_out"},
                 .infer = infer_mse,
                 .grad =
                     [](GradContext& g) {
                         Var grad = emit("MseGrad", {g.in(0), g.in(1)});
                         if (!g.dy_is_one()) grad = grad * g.dy();
                         g.set(0, grad);
                         if (g.needs(1)) g.set(1, -grad);
                     },
                 .lower =
                     [](LowerContext& c) {
                         c.op("mse_loss", {c.in(0), c.in(1)}, {c.out()}, {{"order", std::string("tree")}});
                     }});
    define(LoweredDef{.name = "mse_loss",
                      .inputs = {"y", "t"},
                      .outputs = {"loss"},
                      .attrs = {{"order", std::string("tree")}},
                      .infer = infer_mse,
                      .reduction = true,
                      .flops_per_element = 3});
    define(OpDef{.name = "MseGrad",
                 .fn = "mse_grad",
                 .inputs = {"y", "t"},
                 .outputs = {"mse_grad_out"},
                 .infer = infer_mse_grad,
                 .no_grad = "second derivatives are not offered",
                 .lower =
                     [](LowerContext& c) {
                         c.op("mse_grad", {c.in(0), c.in(1)}, {c.out()}, {{"scale", mse_scale(c.type(0).shape)}});
                     }});

    define(OpDef{.name = "CrossEntropy",
                 .fn = "cross_entropy",
                 .inputs = {"logits", "labels"},
                 .outputs = {"cross_entropy_out", "lse"},
                 .infer = infer_cross_entropy,
                 .grad =
                     [](GradContext& g) {
                         if (!g.dy()) return;
                         Var grad = emit("CrossEntropyGrad", {g.in(0), g.in(1), g.out(1)});
                         if (!g.dy_is_one()) grad = grad * g.dy();
                         g.set(0, grad);
                     },
                 .lower = lower_cross_entropy});
    define(LoweredDef{.name = "cross_entropy",
                      .inputs = {"logits", "labels"},
                      .outputs = {"row_loss", "lse"},
                      .attrs = {{"order", std::string("tree")}},
                      .infer = infer_cross_entropy_rows,
                      .reduction = true,
                      .flops_per_element = 15});
    // (softmax(logits) - onehot(labels)) / N; a row whose label is out of range is zero.
    define(OpDef{.name = "CrossEntropyGrad",
                 .fn = "cross_entropy_grad",
                 .inputs = {"logits", "labels", "lse"},
                 .outputs = {"cross_entropy_grad_out"},
                 .infer = infer_cross_entropy_grad,
                 .no_grad = "second derivatives are not offered",
                 .lower =
                     [](LowerContext& c) {
                         const double rows = static_cast<double>(std::max<int64_t>(c.type(0).shape[0], 1));
                         c.op("cross_entropy_grad", {c.in(0), c.in(1), c.in(2)}, {c.out()}, {{"scale", 1.0 / rows}});
                     }});
    define(LoweredDef{.name = "cross_entropy_grad",
                      .inputs = {"logits", "labels", "lse"},
                      .outputs = {"dlogits"},
                      .attrs = {{"scale", 0.0, true}},
                      .infer = infer_cross_entropy_grad,
                      .inplace = {{0, 0}},
                      .flops_per_element = 15});
}

}  // namespace aicf
