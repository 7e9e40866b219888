// Reductions over any set of axes, and the row-wise softmax family built on the same sums.
#include <algorithm>

#include "core/graph/op.h"

namespace aicf {

namespace {

Dims reduced_shape(const InferContext& c, const std::vector<int64_t>& axes, bool keepdims) {
    Dims shape;
    for (int i = 0; i < c.shape(0).rank(); i++) {
        const bool reduced = std::find(axes.begin(), axes.end(), i) != axes.end();
        if (!reduced) shape.push(c.shape(0)[i]);
        if (reduced && keepdims) shape.push(1);
    }
    return shape;
}

std::vector<Type> infer_reduce(const InferContext& c) {
    if (c.dtype(0) == DType::boolean)
        c.dtype_error(c.describe(0), "; need a number dtype (cast it)");
    const auto axes = c.axes(c.attrs.ints("axes"), c.shape(0).rank());
    return {{c.dtype(0), reduced_shape(c, axes, c.attrs.flag("keepdims"))}};
}

std::vector<Type> infer_mean(const InferContext& c) {
    c.need_float(0);
    return infer_reduce(c);
}

std::vector<Type> infer_extremum(const InferContext& c) {
    const std::vector<Type> types = infer_reduce(c);
    for (int64_t axis : c.axes(c.attrs.ints("axes"), c.shape(0).rank()))
        if (c.shape(0)[static_cast<int>(axis)] == 0)
            c.shape_error(c.describe(0), ": axis ", axis,
                          " has size 0, which has no largest or smallest element; "
                          "need size >= 1");
    return types;
}

std::vector<Type> infer_rows(const InferContext& c) {  // softmax family: along one axis
    for (int i = 0; i < c.count(); i++) c.need_float(i);
    for (int i = 1; i < c.count(); i++) {
        c.need_same_dtype(0, i);
        if (!(c.shape(0) == c.shape(i))) c.shape_error(c.describe_all(), "; need equal shapes");
    }
    c.axis(c.attrs.integer("axis"), c.shape(0).rank());
    return {{c.dtype(0), c.shape(0)}};
}

/// Broadcasts a gradient over the reduced axes.
Var spread(GradContext& g, Var v) {
    Dims kept = g.in(0).shape();
    for (int64_t axis : g.attrs().ints("axes"))
        kept[static_cast<int>(axis < 0 ? axis + kept.rank() : axis)] = 1;
    return broadcast_to(reshape(v, kept), g.in(0).shape());
}

double reduced_count(GradContext& g) {  // 1 where there is nothing to reduce
    const double count = static_cast<double>(element_count(g.in(0).shape())) /
                         static_cast<double>(std::max<int64_t>(element_count(g.out().shape()), 1));
    return std::max(count, 1.0);
}

void extremum_grad(GradContext& g) {  // ties share equally, as amax does
    Var hit = emit("Cast", {emit("Eq", {g.in(0), spread(g, g.out())})},
                   {{"dtype", dtype_name(g.in(0).type().dtype)}});
    Var ties = emit("Sum", {hit}, g.attrs());
    g.set(0, hit * spread(g, g.dy() / ties));
}

/// dy times the product of the other elements: y / x if no element is 0. With one or two zeros it
/// is written as a polynomial in them, so that the second derivative is right.
void prod_grad(GradContext& g) {
    const Var x = g.in(0), none = zeros_like(x), one = none + 1.0, zero = emit("Eq", {x, none});
    const Attrs dtype = {{"dtype", dtype_name(x.type().dtype)}};
    const auto over = [&](const char* op, Var v) {
        return spread(g, emit(op, {std::move(v)}, g.attrs()));
    };
    const auto where = [](Var test, Var yes, Var no) {
        return emit("Where", {std::move(test), std::move(yes), std::move(no)});
    };
    const Var zeros = over("Sum", emit("Cast", {zero}, dtype));
    const Var rest = where(zero, one, x), others = over("Prod", rest);
    const Var lost = over("Sum", where(zero, x, none));  // 0, the sum of the zeros
    const Var of_one = where(zero, others, lost * others / rest);
    const Var of_two = where(zero, (lost - x) * others, none);
    const Var left = where(emit("Eq", {zeros, one + 1.0}), of_two, none);
    const Var some = where(emit("Eq", {zeros, one}), of_one, left);
    const Var slope = where(emit("Eq", {zeros, none}), others / rest, some);
    g.set(0, spread(g, g.dy()) * slope);
}

void reduction(const std::string& name, const std::string& fn, const std::string& lowered,
               InferFn infer, GradFn grad, bool ordered) {
    const std::vector<AttrDef> attrs = {{"axes", std::vector<int64_t>(), true},
                                        {"keepdims", false}};
    define(OpDef{
        .name = name,
        .fn = fn,
        .inputs = {"x"},
        .outputs = {fn + "_out"},
        .attrs = attrs,
        .infer = infer,
        .grad = grad,
        .lower = [](LowerContext& c) { c.op(c.def().lowered, {c.in(0)}, {c.out()}, c.attrs()); },
        .lowered = lowered});
    LoweredDef low;
    low.name = lowered;
    low.inputs = {"x"};
    low.outputs = {"y"};
    low.attrs = attrs;
    if (ordered)
        low.attrs.push_back({"order", std::string("tree"), false, {"tree", chain_order()}});
    low.infer = infer;
    low.reduction = low.streams = true;
    low.portable = true;
    define(std::move(low));
}

/// Defines a softmax-like op and its gradient op (y, dy), whose own gradient rule is `second`.
void row_op(const std::string& name, const std::string& lowered, GradFn grad, GradFn second,
            const std::vector<AttrDef>& own = {}) {
    const AttrDef axis = {"axis", int64_t(-1)},
                  order = {"order", std::string("tree"), false, {"tree"}};
    std::vector<AttrDef> attrs = {axis};
    attrs.insert(attrs.end(), own.begin(), own.end());
    LoweredDef low;
    low.name = lowered;
    low.inputs = {"x"};
    low.outputs = {"y"};
    low.attrs = attrs;
    low.attrs.push_back(order);
    low.infer = infer_rows;
    low.inplace = {{0, 0}};
    low.reduction = true;
    low.rows = {0, 1};
    low.portable = true;
    low.flops_per_element = 15;
    define(low);
    low.name = lowered + "_bwd";
    low.inputs = {"y", "dy"};
    low.attrs = {axis, order};
    low.inplace = {{0, 0}, {0, 1}};
    low.rows = {0, 1, 2};
    low.flops_per_element = 5;
    define(low);
    const LowerFn lower = [](LowerContext& c) {
        std::vector<View> inputs;
        for (int i = 0; i < c.inputs(); i++) inputs.push_back(c.in(i));
        c.op(c.def().lowered, std::move(inputs), {c.out()}, c.attrs());
    };
    OpDef op{.name = name,
             .fn = lowered,
             .inputs = {"x"},
             .outputs = {lowered + "_out"},
             .attrs = attrs,
             .infer = infer_rows,
             .grad = grad,
             .lower = lower,
             .lowered = lowered};
    define(op);
    op.name += "Bwd";
    op.fn += "_bwd";
    op.inputs = {"y", "dy"};
    op.attrs = {axis};
    op.grad = second;
    op.lowered += "_bwd";
    define(std::move(op));
}

/// A row sum or mean, kept for broadcasting.
Var over_row(const char* op, Var v, int64_t axis) {
    return emit(op, {std::move(v)}, {{"axes", std::vector<int64_t>{axis}}, {"keepdims", true}});
}

/// The gradient of y (dy - sum(dy y)), which is self-adjoint in dy.
void softmax_bwd_grad(GradContext& g) {
    const int64_t axis = g.attrs().integer("axis");
    const Var y = g.in(0), dy = g.in(1);
    if (g.needs(0))
        g.set(0, g.dy() * (dy - over_row("Sum", dy * y, axis)) -
                     dy * over_row("Sum", g.dy() * y, axis));
    if (g.needs(1)) g.set(1, emit("SoftmaxBwd", {y, g.dy()}, g.attrs()));
}

/// The gradient of dy - exp(y) sum(dy).
void log_softmax_bwd_grad(GradContext& g) {
    const int64_t axis = g.attrs().integer("axis");
    const Var part = g.dy() * emit("Exp", {g.in(0)});
    if (g.needs(0)) g.set(0, -(part * over_row("Sum", g.in(1), axis)));
    if (g.needs(1)) g.set(1, g.dy() - over_row("Sum", part, axis));
}

std::vector<Type> infer_argmax(const InferContext& c) {
    if (c.attrs.ints("axes").size() != 1) c.shape_error(c.describe(0), "; need one axis");
    return {{DType::i64, infer_extremum(c)[0].shape}};
}

std::vector<Type> infer_cumsum(const InferContext& c) {
    c.axis(c.attrs.integer("axis"), c.shape(0).rank());
    if (c.dtype(0) == DType::boolean)
        c.dtype_error(c.describe(0), "; need a number dtype (cast it)");
    return {{c.dtype(0), c.shape(0)}};
}

int64_t chunks_of(int64_t terms) { return (terms + kScanChunk - 1) / kScanChunk; }

/// chunk_sums(x; axis, reverse) -> sums of chunks of kScanChunk along the axis, in scan order, in
/// the accumulation dtype.
std::vector<Type> infer_chunk_sums(const InferContext& c) {
    const Type running = infer_cumsum(c)[0];
    const int axis = static_cast<int>(c.attrs.integer("axis"));
    Dims shape = running.shape;
    shape[axis] = chunks_of(shape[axis]);
    return {{compute_dtype(running.dtype), shape}};
}

/// cumsum_chunks(x, before; axis, reverse) -> y: running sums within chunks, plus the total of all
/// earlier chunks from `before`, the scan of the totals.
std::vector<Type> infer_cumsum_chunks(const InferContext& c) {
    const Type sums = infer_chunk_sums(c)[0];
    c.need_dtype(1, sums.dtype);
    if (!(c.shape(1) == sums.shape)) c.shape_error(c.describe_all(), "; need totals of chunks");
    return infer_cumsum(c);
}

/// Few long lines: a three-phase scan, recursive in the totals.
void lower_cumsum(LowerContext& c, const View& x, const View& y, const Attrs& attrs) {
    const int axis = static_cast<int>(attrs.integer("axis"));
    const int64_t terms = x.shape[axis];
    if (terms <= kScanChunk || element_count(x.shape) / terms >= kScanLines)
        return c.op("cumsum", {x}, {y}, attrs);
    Type sums{compute_dtype(x.dtype), x.shape};
    sums.shape[axis] = chunks_of(terms);
    const View totals = c.temp(sums, "chunk_sums"), before = c.temp(sums, "before");
    c.op("chunk_sums", {x}, {totals}, attrs);
    lower_cumsum(c, totals, before, {{"axis", attrs.integer("axis")}, {"reverse", false}});
    c.op("cumsum_chunks", {x, before}, {y}, attrs);
}

// Normalize(x; eps, center) -> y, rstd over the last axis: y = (x - mean) rstd, rstd = 1 /
// sqrt(mean((x - mean)^2) + eps), of 16-bit rows in f32; without center the mean is taken as 0.
// NormalizeBwd: dx = rstd (dy - mean(dy) - y mean(dy y)). Lowered, a row may be the last row_axes.
Dims row_shape(const InferContext& c) {
    c.need_float(0);
    const int64_t axes = c.attrs.find("row_axes") ? c.attrs.integer("row_axes") : 1;
    Dims shape = c.shape(0);
    if (axes < 1 || shape.rank() < axes)
        c.shape_error(c.describe(0), " and rows of ", axes, " axes; need those of 1 to its rank");
    for (int64_t k = 1; k <= axes; k++) shape[static_cast<int>(shape.rank() - k)] = 1;
    return shape;
}

std::vector<Type> infer_normalize(const InferContext& c) {
    const Dims rows = row_shape(c);
    return {{c.dtype(0), c.shape(0)}, {compute_dtype(c.dtype(0)), rows}};
}

std::vector<Type> infer_normalize_mean(const InferContext& c) {
    std::vector<Type> types = infer_normalize(c);
    types.push_back(types[1]);
    return types;
}

std::vector<Type> infer_normalize_bwd(const InferContext& c) {
    const Dims rows = row_shape(c);
    c.need_dtype(1, compute_dtype(c.dtype(0)));
    c.need_same_dtype(0, 2);
    if (!(c.shape(1) == rows) || !(c.shape(2) == c.shape(0)))
        c.shape_error(c.describe_all(), "; need y and dy alike and one rstd a row");
    return {{c.dtype(0), c.shape(0)}};
}

Var cast_like(Var v, Var like) {
    const DType dtype = like.type().dtype;
    return v.type().dtype == dtype ? v : emit("Cast", {v}, {{"dtype", dtype_name(dtype)}});
}

/// The gradient of y and of rstd = (var + eps)^-1/2, whose derivative is -rstd^2 y / n.
void normalize_grad(GradContext& g) {
    const Var y = g.out(0), rstd = g.out(1);
    Var grad{};
    if (g.dy(0)) grad = emit("NormalizeBwd", {y, rstd, g.dy(0)}, g.attrs());
    if (g.dy(1)) {
        const double n = static_cast<double>(y.shape()[y.shape().rank() - 1]);
        const Var part = g.dy(1) * rstd * rstd * (-1.0 / std::max(n, 1.0));
        const Var of_rstd = cast_like(part * cast_like(y, rstd), y);
        grad = grad ? grad + of_rstd : of_rstd;
    }
    if (grad) g.set(0, grad);
}

/// The gradient of rstd (dy - mean(dy) - y mean(dy y)), which is self-adjoint in dy.
void normalize_bwd_grad(GradContext& g) {
    const Var rstd = g.in(1);
    const Var y = cast_like(g.in(0), rstd), dy = cast_like(g.in(2), rstd),
              d = cast_like(g.dy(), rstd);
    const auto mean = [](Var v) { return over_row("Mean", std::move(v), -1); };
    if (g.needs(0) || g.needs(1)) {
        const Var along = mean(dy * y);
        if (g.needs(0)) g.set(0, cast_like(-(rstd * (d * along + dy * mean(d * y))), g.in(0)));
        Var rest = dy - y * along;
        if (g.attrs().flag("center")) rest = rest - mean(dy);
        if (g.needs(1)) g.set(1, over_row("Sum", d * rest, -1));
    }
    if (g.needs(2)) g.set(2, emit("NormalizeBwd", {g.in(0), rstd, g.dy()}, g.attrs()));
}

void define_scans_and_norms() {
    const std::vector<AttrDef> one_axis = {{"axes", std::vector<int64_t>(), true},
                                           {"keepdims", false}};
    define(OpDef{
        .name = "ArgMax",
        .fn = "argmax",
        .inputs = {"x"},
        .outputs = {"argmax_out"},
        .attrs = one_axis,
        .infer = infer_argmax,
        .no_grad = "the result is an index",
        .lower = [](LowerContext& c) { c.op("reduce_argmax", {c.in(0)}, {c.out()}, c.attrs()); }});
    define(LoweredDef{.name = "reduce_argmax",
                      .inputs = {"x"},
                      .outputs = {"y"},
                      .attrs = one_axis,
                      .infer = infer_argmax,
                      .reduction = true,
                      .portable = true});
    const std::vector<AttrDef> scan = {{"axis", int64_t(0), true}, {"reverse", false}};
    define(OpDef{.name = "CumSum",
                 .fn = "cumsum",
                 .inputs = {"x"},
                 .outputs = {"cumsum_out"},
                 .attrs = scan,
                 .infer = infer_cumsum,
                 .grad =
                     [](GradContext& g) {
                         g.set(0, emit("CumSum", {g.dy()},
                                       {{"axis", g.attrs().integer("axis")},
                                        {"reverse", !g.attrs().flag("reverse")}}));
                     },
                 .lower =
                     [](LowerContext& c) {
                         Attrs attrs = c.attrs();
                         if (attrs.integer("axis") < 0)
                             attrs.set("axis", attrs.integer("axis") + c.out_type().shape.rank());
                         lower_cumsum(c, c.in(0), c.out(), attrs);
                     }});
    define(LoweredDef{.name = "cumsum",
                      .inputs = {"x"},
                      .outputs = {"y"},
                      .attrs = scan,
                      .infer = infer_cumsum,
                      .portable = true});
    define(LoweredDef{.name = "chunk_sums",
                      .inputs = {"x"},
                      .outputs = {"sums"},
                      .attrs = scan,
                      .infer = infer_chunk_sums,
                      .portable = true});
    define(LoweredDef{.name = "cumsum_chunks",
                      .inputs = {"x", "before"},
                      .outputs = {"y"},
                      .attrs = scan,
                      .infer = infer_cumsum_chunks,
                      .portable = true});
    const std::vector<AttrDef> norm = {{"eps", 1e-5}, {"center", true}};
    std::vector<AttrDef> ordered = norm;
    ordered.push_back({"order", std::string("tree"), false, {"tree"}});
    define(OpDef{.name = "Normalize",
                 .fn = "normalize",
                 .inputs = {"x"},
                 .outputs = {"normalize_out", "rstd"},
                 .attrs = norm,
                 .infer = infer_normalize,
                 .grad = normalize_grad,
                 .lower = [](LowerContext& c) {
                     c.op("normalize", {c.in(0)}, {c.out(0), c.out(1)}, c.attrs());
                 }});
    define(OpDef{.name = "NormalizeBwd",
                 .fn = "normalize_bwd",
                 .inputs = {"y", "rstd", "dy"},
                 .outputs = {"normalize_bwd_out"},
                 .attrs = norm,
                 .infer = infer_normalize_bwd,
                 .grad = normalize_bwd_grad,
                 .lower = [](LowerContext& c) {
                     c.op("normalize_bwd", {c.in(0), c.in(1), c.in(2)}, {c.out()}, c.attrs());
                 }});
    LoweredDef forward{.name = "normalize",
                       .inputs = {"x"},
                       .outputs = {"y", "rstd"},
                       .attrs = ordered,
                       .infer = infer_normalize,
                       .reduction = true,
                       .rows = {0, 1},
                       .portable = true,
                       .flops_per_element = 8};
    LoweredDef back{.name = "normalize_bwd",
                    .inputs = {"y", "rstd", "dy"},
                    .outputs = {"dx"},
                    .attrs = ordered,
                    .infer = infer_normalize_bwd,
                    .inplace = {{0, 2}},
                    .reduction = true,
                    .rows = {0, 2, 3},
                    .portable = true,
                    .flops_per_element = 8};
    // With the mean, which y is made again from.
    LoweredDef with_mean = forward;
    with_mean.name = "normalize_mean";
    with_mean.outputs.push_back("mean");
    with_mean.infer = infer_normalize_mean;
    with_mean.portable = false;
    define(with_mean);
    for (LoweredDef* def : {&forward, &back}) {
        define(*def);
        def->name.insert(std::string("normalize").size(), "_axes");
        def->attrs.push_back({"row_axes", int64_t{1}});
        def->portable = false;
        define(*def);
    }
}

// subtree_sums(x) -> sums of its elements in C order by kSubtree, as the tree adds them;
// subtree_mean(sums) -> the mean of all these elements, by the rest of the tree. In f32.
std::vector<Type> infer_subtree_sums(const InferContext& c) {
    c.need_dtype(0, DType::f32);
    const int64_t count = element_count(c.shape(0));
    if (count == 0 || count % kSubtree != 0)
        c.shape_error(c.describe(0), "; need a multiple of ", kSubtree, " elements");
    return {{DType::f32, {count / kSubtree}}};
}

std::vector<Type> infer_subtree_mean(const InferContext& c) {
    c.need_dtype(0, DType::f32);
    if (c.shape(0).rank() != 1 || c.shape(0)[0] == 0)
        c.shape_error(c.describe(0), "; need the sums of subtrees");
    return {{DType::f32, {}}};
}

void define_subtrees() {
    define(LoweredDef{.name = "subtree_sums",
                      .inputs = {"x"},
                      .outputs = {"sums"},
                      .infer = infer_subtree_sums,
                      .contiguous = {0, 1},
                      .reduction = true,
                      .portable = true});
    define(LoweredDef{.name = "subtree_mean",
                      .inputs = {"sums"},
                      .outputs = {"mean"},
                      .infer = infer_subtree_mean,
                      .contiguous = {0},
                      .reduction = true,
                      .streams = true,
                      .portable = true});
}

}  // namespace

void define_reduce_ops() {
    define_scans_and_norms();
    define_subtrees();
    reduction(
        "Sum", "sum", "reduce_sum", infer_reduce,
        [](GradContext& g) { g.set(0, spread(g, g.dy())); }, true);
    reduction(
        "Mean", "mean", "reduce_mean", infer_mean,
        [](GradContext& g) { g.set(0, spread(g, g.dy() * (1.0 / reduced_count(g)))); }, true);
    reduction("Max", "max", "reduce_max", infer_extremum, extremum_grad, false);
    reduction("Min", "min", "reduce_min", infer_extremum, extremum_grad, false);
    reduction("Prod", "prod", "reduce_prod", infer_reduce, prod_grad, true);
    // masked: a row of only -inf gives 0.
    row_op("Softmax", "softmax",
           [](GradContext& g) {
               g.set(0,
                     emit("SoftmaxBwd", {g.out(), g.dy()}, {{"axis", g.attrs().integer("axis")}}));
           },
           softmax_bwd_grad, {{"masked", false}});
    row_op(
        "LogSoftmax", "log_softmax",
        [](GradContext& g) { g.set(0, emit("LogSoftmaxBwd", {g.out(), g.dy()}, g.attrs())); },
        log_softmax_bwd_grad);
}

}  // namespace aicf
