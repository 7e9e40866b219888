// Losses.
#include <algorithm>
#include <numeric>

#include "core/graph/op.h"

namespace aicf {

namespace {

std::vector<Type> infer_mse(const InferContext& c) {
    c.need_float(0);
    c.need_same_dtype(0, 1);
    if (!(c.shape(0) == c.shape(1)))
        c.shape_error("shapes differ: ", c.describe_all(), "; need equal shapes");
    return {{c.dtype(0), {}}};
}

std::vector<Type> infer_mse_grad(const InferContext& c) {
    infer_mse(c);
    return {{c.dtype(0), c.shape(0)}};
}

double mse_scale(const Dims& shape) {
    return 2.0 / static_cast<double>(std::max<int64_t>(element_count(shape), 1));
}

// CrossEntropy(logits [N, C], labels [N]) -> loss [], and of each row its largest logit, most [N],
// and sum [N] of exp(logit - most), for 16-bit logits of what softmax.h has in its place. They are
// kept as two, in f32 for 16-bit logits: most + log(sum) would lose digits of the sum to a large
// `most`.
void check_classes(const InferContext& c) {
    c.need_rank(0, 2);
    c.need_float(0);
    c.need_rank(1, 1);
    if (c.dtype(1) != DType::i32 && c.dtype(1) != DType::i64)
        c.dtype_error(c.describe(1), "; need class labels as int32 or int64");
    if (c.shape(0)[0] != c.shape(1)[0])
        c.shape_error("row counts differ: ", c.describe(0), ", ", c.describe(1),
                      "; need one label a row");
    if (c.shape(0)[1] == 0) c.shape_error(c.describe(0), " has no classes; need at least 1");
}

Type row_type(const InferContext& c) { return {compute_dtype(c.dtype(0)), {c.shape(0)[0]}}; }

std::vector<Type> infer_cross_entropy(const InferContext& c) {
    check_classes(c);
    return {{c.dtype(0), {}}, row_type(c), row_type(c)};
}

std::vector<Type> infer_cross_entropy_rows(const InferContext& c) {
    check_classes(c);
    return {row_type(c), row_type(c), row_type(c)};
}

std::vector<Type> infer_cross_entropy_grad(const InferContext& c) {
    check_classes(c);
    for (int i = 2; i < 4; i++) {
        c.need_dtype(i, row_type(c).dtype);
        if (!(c.shape(i) == row_type(c).shape))
            c.shape_error(c.describe_all(), "; need one most and one sum a row");
    }
    return {{c.dtype(0), c.shape(0)}};
}

void lower_cross_entropy(LowerContext& c) {
    const View rows = c.temp(c.out_type(1), "row_loss");
    c.op("cross_entropy", {c.in(0), c.in(1)}, {rows, c.out(1), c.out(2)},
         {{"order", std::string("tree")}});
    if (!c.used(0)) return;
    const bool rounds = rows.dtype != c.out_type().dtype;
    const View mean = rounds ? c.temp({rows.dtype, {}}, "mean_loss") : c.out(0);
    c.op("reduce_mean", {rows}, {mean},
         {{"axes", std::vector<int64_t>{0}}, {"keepdims", false}, {"order", std::string("tree")}});
    if (rounds)
        c.op("cast", {mean}, {c.out(0)}, {{"dtype", std::string(dtype_name(c.out_type().dtype))}});
}

int64_t second_size(const Dims& shape, const Attrs&) { return shape[1]; }

bool is_index(DType dtype) { return dtype == DType::i32 || dtype == DType::i64; }

// Take(table [n, ...], indices) -> [indices..., ...]: rows by index; a row outside [0, n) is NaN (0
// for integers).
std::vector<Type> infer_take(const InferContext& c) {
    if (c.shape(0).rank() < 1) c.shape_error(c.describe(0), "; need rank >= 1");
    if (!is_index(c.dtype(1))) c.dtype_error(c.describe(1), "; need indices as int32 or int64");
    Dims shape = c.shape(1);
    for (int i = 1; i < c.shape(0).rank(); i++) shape.push(c.shape(0)[i]);
    return {{c.dtype(0), shape}};
}

std::vector<Type> infer_take_bwd(const InferContext& c) {
    c.need_float(0);
    if (!is_index(c.dtype(1))) c.dtype_error(c.describe(1), "; need indices as int32 or int64");
    const int lead = c.shape(1).rank();
    bool fits = c.shape(0).rank() >= lead;
    for (int i = 0; fits && i < lead; i++) fits = c.shape(0)[i] == c.shape(1)[i];
    if (!fits || c.attrs.integer("rows") < 0)
        c.shape_error(c.describe_all(), "; need dy[indices..., ...]");
    Dims shape{c.attrs.integer("rows")};
    for (int i = lead; i < c.shape(0).rank(); i++) shape.push(c.shape(0)[i]);
    return {{c.dtype(0), shape}};
}

/// Rows of dy; zeros where an index is out of range.
void take_bwd_grad(GradContext& g) {
    const Dims indices = g.in(1).shape(), dy = g.in(0).shape();
    const int64_t count = element_count(indices);
    Dims lines{count}, rows{count};
    for (int i = indices.rank(); i < dy.rank(); i++) {
        lines.push(1);
        rows.push(dy[i]);
    }
    const Var each = broadcast_to(reshape(g.in(1), lines), rows);
    g.set(0, reshape(emit("Gather", {g.dy(), each}, {{"axis", int64_t(0)}, {"zero", true}}), dy));
}

// Pick(x [N, C], labels [N]) -> x[i, labels[i]]; NaN where the label is out of range.
std::vector<Type> infer_pick(const InferContext& c) {
    check_classes(c);
    return {{c.dtype(0), {c.shape(0)[0]}}};
}

std::vector<Type> infer_pick_bwd(const InferContext& c) {
    c.need_rank(0, 1);
    c.need_float(0);
    c.need_rank(1, 1);
    if (!is_index(c.dtype(1)))
        c.dtype_error(c.describe(1), "; need class labels as int32 or int64");
    if (!(c.shape(0) == c.shape(1)) || c.attrs.integer("classes") < 1)
        c.shape_error(c.describe_all(), "; need one label a row");
    return {{c.dtype(0), {c.shape(0)[0], c.attrs.integer("classes")}}};
}

// ---- second derivatives

/// Mask of the indices in [0, count).
Var in_range(Var indices, int64_t count) {
    const Var first = emit("Ge", {indices, zeros_like(indices)});
    if (!holds(indices.type().dtype, static_cast<double>(count)))
        return first;  // all of the dtype's are
    return emit("LogicalAnd",
                {first, emit("Lt", {indices, number_like(indices, static_cast<double>(count))})});
}

/// v where `inside`, which has its leading axes, else 0.
Var kept(Var inside, Var v) {
    Dims shape = inside.shape();
    while (shape.rank() < v.shape().rank()) shape.push(1);
    return emit("Where", {reshape(inside, shape), v, zeros_like(v)});
}

/// The gradient of (softmax(logits) - onehot(labels)) / N by the logits; `most` and `sum` are
/// treated as functions of these.
void cross_entropy_grad_grad(GradContext& g) {
    const Dims shape = g.in(0).shape();
    const Attrs axis = {{"axis", int64_t(1)}};
    const Var y = emit("Softmax", {g.in(0)}, axis);
    const Var grad = emit("SoftmaxBwd", {y, g.dy()}, axis) *
                     (1.0 / static_cast<double>(std::max<int64_t>(shape[0], 1)));
    g.set(0, kept(in_range(g.in(1), shape[1]), grad));
}

/// Gathers the elements that the windows selected.
void max_pool_bwd_grad(GradContext& g) {
    if (!g.needs(2)) return;
    const Dims image = g.in(0).shape(), pooled = g.in(2).shape();
    const int rank = image.rank();
    const int64_t height = image[rank - 2], width = image[rank - 1],
                  size = g.attrs().ints("kernel")[0] * g.attrs().ints("kernel")[1],
                  count = pooled[rank - 2] * pooled[rank - 1];
    int64_t planes = 1;
    for (int i = 0; i + 2 < rank; i++) planes *= image[i];
    const auto windows = [&](Var v) {  // [planes, positions in the kernel, windows]
        v = emit("Windows", {reshape(v, {planes, height, width})}, g.attrs());
        return reshape(v, {planes, size, count});
    };
    std::vector<int64_t> places(static_cast<size_t>(size));
    std::iota(places.begin(), places.end(), 0);
    const char* bytes = reinterpret_cast<const char*>(places.data());
    Graph& graph = *g.dy().graph;
    const Var place{&graph, graph.constant({DType::i64, {size, 1}},
                                           {bytes, bytes + places.size() * sizeof(int64_t)})};
    const Attrs along = {{"axes", std::vector<int64_t>{1}}, {"keepdims", true}};
    const Var first = emit("Eq", {emit("ArgMax", {windows(g.in(0))}, along), place});
    const Var all = windows(g.dy());
    g.set(2, reshape(emit("Sum", {emit("Where", {first, all, zeros_like(all)})}, along), pooled));
}

// MaxPool(windows of x): over [..., H, W] with a kernel, stride, dilation; the first of equal
// elements takes the gradient.
std::vector<Type> infer_max_pool(const InferContext& c) {
    c.need_float(0);
    Dims shape = c.shape(0);
    const int rank = shape.rank();
    if (rank < 2) c.shape_error(c.describe(0), "; need rank >= 2");
    for (const char* name : {"kernel", "stride", "dilation"})
        if (c.attrs.ints(name).size() != 2 || c.attrs.ints(name)[0] < 1 ||
            c.attrs.ints(name)[1] < 1)
            c.shape_error(name, " is ", to_string(Dims(c.attrs.ints(name))),
                          "; need two sizes >= 1");
    for (int i = 0; i < 2; i++) {
        const int64_t extent = window_extent(c, i, rank - 2 + i, shape[rank - 2 + i]);
        shape[rank - 2 + i] = (shape[rank - 2 + i] - extent) / c.attrs.ints("stride")[i] + 1;
    }
    return {{c.dtype(0), shape}};
}

std::vector<Type> infer_max_pool_bwd(const InferContext& c) {
    const Dims pooled = infer_max_pool(c)[0].shape;
    for (int i = 1; i < 3; i++) {
        c.need_same_dtype(0, i);
        if (!(c.shape(i) == pooled))
            c.shape_error(c.describe_all(), "; need y and dy as pooled from x");
    }
    return {{c.dtype(0), c.shape(0)}};
}

void define_indexed_ops() {
    define(OpDef{.name = "Take",
                 .fn = "take",
                 .inputs = {"table", "indices"},
                 .outputs = {"take_out"},
                 .infer = infer_take,
                 .grad =
                     [](GradContext& g) {
                         g.set(0,
                               emit("TakeBwd", {g.dy(), g.in(1)}, {{"rows", g.in(0).shape()[0]}}));
                     },
                 .lower = [](LowerContext& c) { c.op("take", {c.in(0), c.in(1)}, {c.out()}); },
                 .indices = 1,
                 .rows = [](const Dims& table, const Attrs&) { return table[0]; }});
    define(LoweredDef{.name = "take",
                      .inputs = {"table", "indices"},
                      .outputs = {"y"},
                      .infer = infer_take,
                      .portable = true});
    define(OpDef{.name = "TakeBwd",
                 .fn = "take_bwd",
                 .inputs = {"dy", "indices"},
                 .outputs = {"take_bwd_out"},
                 .attrs = {{"rows", int64_t(0), true}},
                 .infer = infer_take_bwd,
                 .grad = take_bwd_grad,
                 .lower =
                     [](LowerContext& c) {
                         Attrs attrs = c.attrs();
                         attrs.set("order", chain_order());
                         c.op("take_bwd", {c.in(0), c.in(1)}, {c.out()}, attrs);
                     },
                 .indices = 1,
                 .rows = [](const Dims&, const Attrs& attrs) { return attrs.integer("rows"); }});
    define(LoweredDef{
        .name = "take_bwd",  // each row sums its dy in ascending position of the index
        .inputs = {"dy", "indices"},
        .outputs = {"dtable"},
        .attrs = {{"rows", int64_t(0), true}, {"order", chain_order(), false, {chain_order()}}},
        .infer = infer_take_bwd,
        .reduction = true,
        .portable = true});
    define(OpDef{.name = "Pick",
                 .fn = "pick",
                 .inputs = {"x", "labels"},
                 .outputs = {"pick_out"},
                 .infer = infer_pick,
                 .grad =
                     [](GradContext& g) {
                         g.set(0, emit("PickBwd", {g.dy(), g.in(1)},
                                       {{"classes", g.in(0).shape()[1]}}));
                     },
                 .lower = [](LowerContext& c) { c.op("pick", {c.in(0), c.in(1)}, {c.out()}); },
                 .indices = 1,
                 .rows = second_size});
    define(LoweredDef{.name = "pick",
                      .inputs = {"x", "labels"},
                      .outputs = {"y"},
                      .infer = infer_pick,
                      .portable = true});
    define(OpDef{
        .name = "PickBwd",
        .fn = "pick_bwd",
        .inputs = {"dy", "labels"},
        .outputs = {"pick_bwd_out"},
        .attrs = {{"classes", int64_t(0), true}},
        .infer = infer_pick_bwd,
        .grad =
            [](GradContext& g) {
                const Var inside = in_range(g.in(1), g.attrs().integer("classes"));
                g.set(0, kept(inside, emit("Pick", {g.dy(), g.in(1)})));
            },
        .lower =
            [](LowerContext& c) { c.op("pick_bwd", {c.in(0), c.in(1)}, {c.out()}, c.attrs()); },
        .indices = 1,
        .rows = [](const Dims&, const Attrs& attrs) { return attrs.integer("classes"); }});
    define(LoweredDef{.name = "pick_bwd",
                      .inputs = {"dy", "labels"},
                      .outputs = {"dx"},
                      .attrs = {{"classes", int64_t(0), true}},
                      .infer = infer_pick_bwd,
                      .portable = true});
    const std::vector<AttrDef> window = {{"kernel", std::vector<int64_t>(), true},
                                         {"stride", std::vector<int64_t>{1, 1}},
                                         {"dilation", std::vector<int64_t>{1, 1}}};
    define(
        OpDef{.name = "MaxPool",
              .fn = "max_pool2d",
              .inputs = {"x"},
              .outputs = {"max_pool_out"},
              .attrs = window,
              .infer = infer_max_pool,
              .grad =
                  [](GradContext& g) {
                      g.set(0, emit("MaxPoolBwd", {g.in(0), g.out(), g.dy()}, g.attrs()));
                  },
              .lower = [](LowerContext& c) { c.op("max_pool", {c.in(0)}, {c.out()}, c.attrs()); },
              .storage = Storage::narrow});
    define(LoweredDef{.name = "max_pool",
                      .inputs = {"x"},
                      .outputs = {"y"},
                      .attrs = window,
                      .infer = infer_max_pool,
                      .reduction = true,
                      .portable = true});
    define(OpDef{.name = "MaxPoolBwd",
                 .fn = "max_pool2d_bwd",
                 .inputs = {"x", "y", "dy"},
                 .outputs = {"max_pool_bwd_out"},
                 .attrs = window,
                 .infer = infer_max_pool_bwd,
                 .grad = max_pool_bwd_grad,
                 .lower =
                     [](LowerContext& c) {
                         c.op("max_pool_bwd", {c.in(0), c.in(1), c.in(2)}, {c.out()}, c.attrs());
                     },
                 .storage = Storage::narrow});
    define(LoweredDef{.name = "max_pool_bwd",
                      .inputs = {"x", "y", "dy"},
                      .outputs = {"dx"},
                      .attrs = window,
                      .infer = infer_max_pool_bwd,
                      .reduction = true,
                      .portable = true});
}

}  // namespace

void define_nn_ops() {
    define_indexed_ops();
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
                         c.op("mse_loss", {c.in(0), c.in(1)}, {c.out()},
                              {{"order", std::string("tree")}});
                     }});
    define(LoweredDef{.name = "mse_loss",
                      .inputs = {"y", "t"},
                      .outputs = {"loss"},
                      .attrs = {{"order", std::string("tree"), false, {"tree"}}},
                      .infer = infer_mse,
                      .reduction = true,
                      .portable = true,
                      .flops_per_element = 3});
    define(OpDef{.name = "MseGrad",
                 .fn = "mse_grad",
                 .inputs = {"y", "t"},
                 .outputs = {"mse_grad_out"},
                 .infer = infer_mse_grad,
                 .grad =
                     [](GradContext& g) {
                         const Var grad = g.dy() * mse_scale(g.in(0).shape());
                         g.set(0, grad);
                         if (g.needs(1)) g.set(1, -grad);
                     },
                 .lower =
                     [](LowerContext& c) {
                         c.op("mse_grad", {c.in(0), c.in(1)}, {c.out()},
                              {{"scale", mse_scale(c.type(0).shape)}});
                     }});

    define(OpDef{.name = "CrossEntropy",
                 .fn = "cross_entropy",
                 .inputs = {"logits", "labels"},
                 .outputs = {"cross_entropy_out", "most", "sum"},
                 .infer = infer_cross_entropy,
                 .grad =
                     [](GradContext& g) {
                         if (!g.dy()) return;
                         Var grad =
                             emit("CrossEntropyGrad", {g.in(0), g.in(1), g.out(1), g.out(2)});
                         if (!g.dy_is_one()) grad = grad * g.dy();
                         g.set(0, grad);
                     },
                 .lower = lower_cross_entropy,
                 .indices = 1,
                 .rows = second_size});
    define(LoweredDef{.name = "cross_entropy",
                      .inputs = {"logits", "labels"},
                      .outputs = {"row_loss", "most", "sum"},
                      .attrs = {{"order", std::string("tree"), false, {"tree"}}},
                      .infer = infer_cross_entropy_rows,
                      .reduction = true,
                      .rows = {0},
                      .portable = true,
                      .flops_per_element = 15});
    // (softmax(logits) - onehot(labels)) / N; a row whose label is out of range is zero.
    define(OpDef{.name = "CrossEntropyGrad",
                 .fn = "cross_entropy_grad",
                 .inputs = {"logits", "labels", "most", "sum"},
                 .outputs = {"cross_entropy_grad_out"},
                 .infer = infer_cross_entropy_grad,
                 .grad = cross_entropy_grad_grad,
                 .lower =
                     [](LowerContext& c) {
                         const double rows =
                             static_cast<double>(std::max<int64_t>(c.type(0).shape[0], 1));
                         c.op("cross_entropy_grad", {c.in(0), c.in(1), c.in(2), c.in(3)}, {c.out()},
                              {{"scale", 1.0 / rows}});
                     },
                 .indices = 1,
                 .rows = second_size});
    define(LoweredDef{.name = "cross_entropy_grad",
                      .inputs = {"logits", "labels", "most", "sum"},
                      .outputs = {"dlogits"},
                      .attrs = {{"scale", 0.0, true}},
                      .infer = infer_cross_entropy_grad,
                      .inplace = {{0, 0}},
                      .rows = {0, 4},
                      .portable = true,
                      .flops_per_element = 15});
}

}  // namespace aicf
