// Attention, softmax(q k^T scale) v, whose scores are never materialised, and its gradients, which
// recompute the weights from two row statistics.
#include <cmath>
#include <limits>

#include "core/graph/op.h"

namespace aicf {

namespace {

constexpr int64_t kLargestHead = 256;
constexpr int kMask = 3, kGradientMask = 7;  // the mask operand

/// q [B, H, T, D]; k and v [B, G, S, D] for G groups of heads; a mask broadcastable to [B, H, T,
/// S].
void check_heads(const InferContext& c, int mask) {
    for (int i = 0; i < 3; i++) {
        c.need_rank(i, 4);
        c.need_float(i);
        c.need_same_dtype(0, i);
    }
    if (c.dtype(0) == DType::f64)
        c.dtype_error(c.describe(0), "; need float32, float16 or bfloat16");
    const Dims &q = c.shape(0), &k = c.shape(1);
    if (!(k == c.shape(2)) || q[0] != k[0] || q[3] != k[3] || k[1] < 1 || q[1] % k[1] != 0)
        c.shape_error(c.describe_all(),
                      "; need q[B, H, T, D], k[B, G, S, D] and v[B, G, S, D] with H a multiple of "
                      "G");
    if (q[3] < 1 || q[3] > kLargestHead)
        c.shape_error(c.describe(0), "; need heads of 1 to ", kLargestHead);
    const double scale = c.attrs.number("scale");
    if (!(scale > 0) || scale == std::numeric_limits<double>::infinity())
        c.value_error("scale is ", scale, "; need a positive number");
    if (c.count() <= mask) return;
    c.need_dtype(mask, DType::boolean);
    c.need_rank(mask, 4);
    const Dims scores{q[0], q[1], q[2], k[2]};
    for (int d = 0; d < 4; d++)
        if (c.shape(mask)[d] != scores[d] && c.shape(mask)[d] != 1)
            c.shape_error(c.describe(mask), "; need what broadcasts to ", to_string(scores));
}

Type row_numbers(const InferContext& c) {
    return {DType::f32, {c.shape(0)[0], c.shape(0)[1], c.shape(0)[2]}};
}

/// The type of a result shaped like an operand; with the attribute "inside", [B, T, H, D] instead
/// of [B, H, T, D].
Type result_like(const InferContext& c, int i) {
    Dims shape = c.shape(i);
    if (c.attrs.find("inside") && c.attrs.flag("inside")) std::swap(shape[1], shape[2]);
    return {c.dtype(i), shape};
}

std::vector<Type> infer_attention(const InferContext& c) {
    check_heads(c, kMask);
    return {result_like(c, 0), row_numbers(c), row_numbers(c)};
}

void check_gradient(const InferContext& c) {
    check_heads(c, kGradientMask);
    for (int i = 3; i < 6; i++) {
        c.need_dtype(i, DType::f32);
        if (!(c.shape(i) == row_numbers(c).shape))
            c.shape_error(c.describe(i), ", ", c.describe(0), "; need one number a row of q");
    }
    c.need_same_dtype(0, 6);
    if (!(c.shape(6) == c.shape(0)))
        c.shape_error(c.describe(6), ", ", c.describe(0), "; need equal shapes");
}

std::vector<Type> infer_attention_bwd(const InferContext& c) {
    check_gradient(c);
    return {result_like(c, 0), result_like(c, 1), result_like(c, 2)};
}
std::vector<Type> infer_attention_dq(const InferContext& c) {
    check_gradient(c);
    return {result_like(c, 0)};
}
std::vector<Type> infer_attention_dkv(const InferContext& c) {
    check_gradient(c);
    return {result_like(c, 1), result_like(c, 2)};
}

Attrs lowered_attrs(const LowerContext& c, bool inside) {
    return {{"scale", c.attrs().number("scale")},
            {"causal", c.attrs().flag("causal")},
            {"order", cat("chain(", kAttentionChain, ")")},
            {"inside", inside}};
}

/// Whether the layout is [B, T, H, D], as projections write it. Results then have it too, so that
/// the next projection reads contiguous rows.
bool heads_inside(const View& view) {
    return view.shape[1] > 1 && view.shape[2] > 1 && view.strides[1] < view.strides[2];
}
/// The storage of a result; `inside`: laid out as [B, T, H, D].
View result(LowerContext& c, int output, bool inside) {
    if (!inside) return c.out(output);
    const Type& type = c.out_type(output);
    const Dims& shape = type.shape;
    const View transposed =
        c.temp({type.dtype, {shape[0], shape[2], shape[1], shape[3]}}, "heads_inside");
    c.alias(output, permute_view(transposed, {0, 2, 1, 3}));
    return transposed;
}

void add_mask(LowerContext& c, std::vector<View>& inputs, int mask) {
    if (c.inputs() <= mask) return;
    const Dims &q = inputs[0].shape, &k = inputs[1].shape;
    inputs.push_back(broadcast_view(c.in(mask), {q[0], q[1], q[2], k[2]}));
}

void lower_attention(LowerContext& c) {
    std::vector<View> inputs = {c.in(0), c.in(1), c.in(2)};
    add_mask(c, inputs, kMask);
    const bool inside = heads_inside(inputs[0]);
    const View o = result(c, 0, inside);
    c.op("attention", inputs, {o, c.out(1), c.out(2)}, lowered_attrs(c, inside));
}

void lower_attention_bwd(LowerContext& c) {
    std::vector<View> inputs;
    for (int i = 0; i < 7; i++) inputs.push_back(c.in(i));
    add_mask(c, inputs, kGradientMask);
    const bool queries = c.used(0), keys = c.used(1) || c.used(2), inside = heads_inside(inputs[0]),
               keys_inside = heads_inside(inputs[1]);
    std::vector<View> results;
    if (queries) results.push_back(result(c, 0, inside));
    if (keys)
        for (int output : {1, 2}) results.push_back(result(c, output, keys_inside));
    if (queries && keys && inside == keys_inside) {
        c.op("attention_grads", inputs, results, lowered_attrs(c, inside));
        return;
    }
    if (queries) c.op("attention_dq", inputs, {results[0]}, lowered_attrs(c, inside));
    if (keys)
        c.op("attention_dkv", inputs, {results.end()[-2], results.end()[-1]},
             lowered_attrs(c, keys_inside));
}

Var summed_rows(Var v, bool keep) {
    return emit("Sum", {v}, {{"axes", std::vector<int64_t>{3}}, {"keepdims", keep}});
}

void attention_grad(GradContext& g) {
    if (!g.dy()) return;
    const auto wide = [](Var v) {
        return v.type().dtype == DType::f32
                   ? v
                   : emit("Cast", {v}, {{"dtype", std::string(dtype_name(DType::f32))}});
    };
    const Var delta = summed_rows(wide(g.out()) * wide(g.dy()), false);
    std::vector<Var> inputs = {g.in(0), g.in(1), g.in(2), g.out(1), g.out(2), delta, g.dy()};
    if (g.inputs() > kMask) inputs.push_back(g.in(kMask));
    const auto grads = g.emit_all("AttentionBwd", inputs, g.attrs());
    for (int i = 0; i < 3; i++) g.set(i, grads[i]);
}

// ---- second derivatives

Var transposed(Var v) {
    return emit("Transpose", {v}, {{"axes", std::vector<int64_t>{0, 1, 3, 2}}});
}
Var product(Var a, Var b) { return emit("MatMul", {a, b}); }
/// The gradient of y = softmax(x): y (dy - sum(y dy)).
Var softmax_slope(Var y, Var dy) { return emit("SoftmaxBwd", {y, dy}, {{"axis", int64_t(-1)}}); }
/// Repeats each group for its heads; and the transpose, the sum over a group's heads.
Var repeat_groups(Var v, int64_t heads) {
    const Dims shape = v.shape();
    if (shape[1] == heads) return v;
    const Dims split{shape[0], shape[1], heads / shape[1], shape[2], shape[3]};
    return reshape(broadcast_to(reshape(v, {shape[0], shape[1], 1, shape[2], shape[3]}), split),
                   {shape[0], heads, shape[2], shape[3]});
}
Var sum_groups(Var v, int64_t groups) {
    const Dims shape = v.shape();
    if (shape[1] == groups) return v;
    const Dims split{shape[0], groups, shape[1] / groups, shape[2], shape[3]};
    return emit("Sum", {reshape(v, split)},
                {{"axes", std::vector<int64_t>{2}}, {"keepdims", false}});
}

/// The attention weights, materialised.
Var weights_of(GradContext& g, Var q, Var k, double scale) {
    Var scores = product(q, transposed(k)) * scale;
    const Var hidden = number_like(scores, -std::numeric_limits<double>::infinity());
    if (g.attrs().flag("causal")) {
        const int64_t rows = scores.shape()[2], columns = scores.shape()[3];
        std::vector<char> seen(static_cast<size_t>(rows * columns));
        for (int64_t i = 0; i < rows; i++)
            for (int64_t j = 0; j < columns; j++)
                seen[static_cast<size_t>(i * columns + j)] = j <= i;
        Graph& graph = *scores.graph;
        const Var mask{&graph, graph.constant({DType::boolean, {rows, columns}}, std::move(seen))};
        scores = emit("Where", {mask, scores, hidden});
    }
    if (g.inputs() > kGradientMask) scores = emit("Where", {g.in(kGradientMask), scores, hidden});
    return emit("Softmax", {scores}, {{"axis", int64_t(-1)}, {"masked", true}});
}

/// The gradient of dq = scale S k, dk = scale S^T q, dv = P^T dy, where P are the weights and S = P
/// (dy v^T - delta) the gradients of the scores. Row statistics and delta are treated as functions
/// of the other operands, so they get no gradient of their own.
void attention_bwd_grad(GradContext& g) {
    const double scale = g.attrs().number("scale");
    const int64_t heads = g.in(0).shape()[1], groups = g.in(1).shape()[1];
    const Var q = g.in(0), k = repeat_groups(g.in(1), heads), v = repeat_groups(g.in(2), heads),
              dy = g.in(6);
    const Var p = weights_of(g, q, k, scale), dp = product(dy, transposed(v));
    const auto sum = [](Var a, Var b) { return a ? (b ? a + b : a) : b; };
    const auto cotangent = [&](int i) {  // the gradient of a result, for all heads
        return g.dy(i) ? repeat_groups(g.dy(i), heads) : Var{};
    };
    const Var uq = cotangent(0), uk = cotangent(1), uv = cotangent(2);
    Var to_slopes{}, to_p{}, to_dp{};
    if (uq) to_slopes = product(uq, transposed(k)) * scale;
    if (uk) to_slopes = sum(to_slopes, product(q, transposed(uk)) * scale);
    if (to_slopes) {
        to_dp = softmax_slope(p, to_slopes);
        to_p = to_slopes * (dp - summed_rows(dp * p, true)) - dp * summed_rows(to_slopes * p, true);
    }
    if (uv) to_p = sum(to_p, product(dy, transposed(uv)));
    if (!to_p) return;
    const Var to_scores = softmax_slope(p, to_p);
    const Var slopes = uq || uk ? softmax_slope(p, dp) : Var{};
    if (g.needs(0)) {
        Var part = product(to_scores, k) * scale;
        if (uk) part = part + product(slopes, uk) * scale;
        g.set(0, part);
    }
    if (g.needs(1)) {
        Var part = product(transposed(to_scores), q) * scale;
        if (uq) part = part + product(transposed(slopes), uq) * scale;
        g.set(1, sum_groups(part, groups));
    }
    if (g.needs(2) && to_dp) g.set(2, sum_groups(product(transposed(to_dp), dy), groups));
    if (g.needs(6)) {
        Var part = to_dp ? product(to_dp, v) : Var{};
        if (uv) part = sum(part, product(p, uv));
        g.set(6, part);
    }
}

double score_flops(const LoweredOp& op, double products) {
    const Dims &q = op.inputs[0].shape, &k = op.inputs[1].shape;
    double seen = static_cast<double>(q[2]) * static_cast<double>(k[2]);
    if (op.attrs.flag("causal")) seen /= 2;
    return products * 2 * seen * static_cast<double>(q[0] * q[1] * q[3]);
}

}  // namespace

int64_t attention_block(int64_t size) { return size > 128 ? 64 : 128; }

std::string attention_order(const LoweredOp& op, int tensor_cores) {
    if (tensor_cores < 8 || dtype_size(op.inputs[0].dtype) != 2)
        return cat("chain(", kAttentionChain, ")");
    return cat(tensor_order(tensor_cores, false), "(", attention_block(op.inputs[0].shape[3]), ")");
}

void define_attention_ops() {
    const std::vector<AttrDef> attrs = {{"scale", 1.0, true}, {"causal", false}};
    std::vector<AttrDef> lowered = attrs;
    lowered.push_back({"order",
                       cat("chain(", kAttentionChain, ")"),
                       false,
                       {cat("chain(", kAttentionChain, ")"), "mma16(c)", "mma16.smN(c)"}});
    lowered.push_back({"inside", false});
    define(OpDef{.name = "Attention",
                 .fn = "scaled_dot_product_attention",
                 .inputs = {"q", "k", "v", "mask?"},
                 .outputs = {"attention_out", "top", "sum"},
                 .attrs = attrs,
                 .infer = infer_attention,
                 .grad = attention_grad,
                 .lower = lower_attention,
                 .storage = Storage::product});
    define(LoweredDef{.name = "attention",
                      .inputs = {"q", "k", "v", "mask?"},
                      .outputs = {"o", "top", "sum"},
                      .attrs = lowered,
                      .infer = infer_attention,
                      .alone = true,
                      .attention = true,
                      .flops = [](const LoweredOp& op) { return score_flops(op, 2); }});
    const std::vector<std::string> operands = {"q", "k", "v", "top", "sum", "delta", "dy", "mask?"};
    define(OpDef{.name = "AttentionBwd",
                 .fn = "scaled_dot_product_attention_bwd",
                 .inputs = operands,
                 .outputs = {"dq", "dk", "dv"},
                 .attrs = attrs,
                 .infer = infer_attention_bwd,
                 .grad = attention_bwd_grad,
                 .lower = lower_attention_bwd,
                 .storage = Storage::product,
                 .wide = {3, 4, 5}});
    define(LoweredDef{.name = "attention_dq",
                      .inputs = operands,
                      .outputs = {"dq"},
                      .attrs = lowered,
                      .infer = infer_attention_dq,
                      .alone = true,
                      .attention = true,
                      .flops = [](const LoweredOp& op) { return score_flops(op, 3); }});
    define(LoweredDef{.name = "attention_dkv",
                      .inputs = operands,
                      .outputs = {"dk", "dv"},
                      .attrs = lowered,
                      .infer = infer_attention_dkv,
                      .alone = true,
                      .attention = true,
                      .flops = [](const LoweredOp& op) { return score_flops(op, 4); }});
    define(LoweredDef{.name = "attention_grads",
                      .inputs = operands,
                      .outputs = {"dq", "dk", "dv"},
                      .attrs = lowered,
                      .infer = infer_attention_bwd,
                      .alone = true,
                      .attention = true,
                      .flops = [](const LoweredOp& op) { return score_flops(op, 7); }});
}

}  // namespace aicf
