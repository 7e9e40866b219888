// Matrix products. Everything lowers to one op, gemm, over strided operands: a transpose is a
// stride pattern and a broadcast batch axis has stride 0.
#include <algorithm>
#include <cstdlib>
#include <limits>

#include "core/graph/op.h"

namespace aicf {

namespace {

std::vector<Type> infer_linear(const InferContext& c) {
    for (int i = 0; i < c.count(); i++) c.need_float(i);
    for (int i = 1; i < c.count(); i++) c.need_same_dtype(0, i);
    if (c.shape(0).rank() < 1) c.shape_error(c.describe(0), ", of rank 0; need rank >= 1");
    c.need_rank(1, 2);
    const int last = c.shape(0).rank() - 1;
    if (c.shape(0)[last] != c.shape(1)[1])
        c.shape_error("inner sizes differ: ", c.describe(0), ", ", c.describe(1),
                      "; need x.shape[-1] == W.shape[1] (W is (out, in))");
    if (c.count() == 3) {
        c.need_rank(2, 1);
        if (c.shape(2)[0] != c.shape(1)[0])
            c.shape_error("bias differs: ", c.describe(1), ", ", c.describe(2),
                          "; need b.shape[0] == W.shape[0]");
    }
    Dims shape = c.shape(0);
    shape[last] = c.shape(1)[0];
    return {{c.dtype(0), shape}};
}

ProductSizes linear_sizes(const Dims& x, const Dims& w) {
    int64_t rows = 1;
    for (int i = 0; i + 1 < x.rank(); i++) rows *= x[i];
    return {1, rows, w[0], w[1]};
}

/// Flattens the leading axes of x; copies only if strides cannot express it.
View as_matrix(LowerContext& c, const View& view) {
    const int rank = view.shape.rank();
    int64_t rows = 1;
    for (int i = 0; i + 1 < rank; i++) rows *= view.shape[i];
    const Dims matrix{rows, view.shape[rank - 1]};
    std::optional<View> result = reshape_view(view, matrix);
    return result ? *result : *reshape_view(c.copy_of(view), matrix);
}

Attrs gemm_attrs() { return {{"order", chain_order()}}; }

void lower_linear(LowerContext& c) {
    const View x = as_matrix(c, c.in(0)), wt = transpose_view(c.in(1), 0, 1), out = c.out();
    const View y = *reshape_view(out, {x.shape[0], wt.shape[1]});
    if (c.inputs() == 2) return c.op("gemm", {x, wt}, {y}, gemm_attrs());
    const View product = c.temp({y.dtype, y.shape}, "gemm_out");
    c.op("gemm", {x, wt}, {product}, gemm_attrs());
    c.op("bias_add", {product, broadcast_view(c.in(2), y.shape)}, {y});
}

// LinearBwd(x, W, dy) -> dx, dW, db: dx = dy W, dW = dy^T x, db = sum of dy over rows.
std::vector<Type> infer_linear_bwd(const InferContext& c) {
    for (int i = 0; i < 3; i++) c.need_float(i);
    c.need_same_dtype(0, 1);
    c.need_same_dtype(0, 2);
    c.need_rank(1, 2);
    const int last = c.shape(0).rank() - 1;
    Dims shape = c.shape(0);
    if (last >= 0) shape[last] = c.shape(1)[0];
    if (last < 0 || c.shape(0)[last] != c.shape(1)[1] || !(c.shape(2) == shape))
        c.shape_error("shapes do not fit: ", c.describe_all(),
                      "; need x[..., in], W[out, in], dy[..., out]");
    return {{c.dtype(0), c.shape(0)}, {c.dtype(1), c.shape(1)}, {c.dtype(1), {c.shape(1)[0]}}};
}

void lower_linear_bwd(LowerContext& c) {
    const View x = as_matrix(c, c.in(0)), dy = as_matrix(c, c.in(2));
    if (c.used(0)) c.op("gemm", {dy, c.in(1)}, {*reshape_view(c.out(0), x.shape)}, gemm_attrs());
    if (c.used(1)) c.op("gemm", {transpose_view(dy, 0, 1), x}, {c.out(1)}, gemm_attrs());
    if (c.used(2))  // bias gradients have an order of products
        c.op("reduce_sum", {dy}, {c.out(2)},
             {{"axes", std::vector<int64_t>{0}}, {"keepdims", false}, {"order", chain_order()}});
}

/// The gradient of dx = dy W, dW = dy^T x and db from their gradients u, V and w: dy V for x, dy^T
/// u for W, u W^T + x V^T + w for dy.
void linear_bwd_grad(GradContext& g) {
    const Var x = g.in(0), w = g.in(1), dy = g.in(2);
    const auto products = [&](Var a, Var b) { return g.emit_all("LinearBwd", {a, b, dy}); };
    if (g.needs(0) && g.dy(1)) g.set(0, products(x, g.dy(1))[0]);
    if (g.needs(1) && g.dy(0)) g.set(1, products(g.dy(0), w)[1]);
    if (!g.needs(2)) return;
    Var sum{};
    const auto add = [&](Var v) { sum = sum ? sum + v : v; };
    if (g.dy(0)) add(emit("Linear", {g.dy(0), w}));
    if (g.dy(1) && g.dy(2)) add(emit("Linear", {x, g.dy(1), g.dy(2)}));
    if (g.dy(1) && !g.dy(2)) add(emit("Linear", {x, g.dy(1)}));
    if (!g.dy(1) && g.dy(2)) add(broadcast_to(g.dy(2), dy.shape()));
    g.set(2, sum);
}

/// Operands of rank 1 get an axis, as in NumPy: a[K] is a row, b[K] a column.
std::vector<Type> infer_matmul(const InferContext& c) {
    c.need_float(0);
    c.need_float(1);
    c.need_same_dtype(0, 1);
    Dims a = c.shape(0), b = c.shape(1);
    const bool row = a.rank() == 1, column = b.rank() == 1;
    if (a.rank() == 0 || b.rank() == 0) c.shape_error(c.describe_all(), "; need rank >= 1");
    if (row) a.insert(0, 1);
    if (column) b.insert(1, 1);
    if (a[a.rank() - 1] != b[b.rank() - 2])
        c.shape_error("inner sizes differ: ", c.describe_all(), "; need a.shape[", row ? 0 : 1,
                      "] == b.shape[0]",
                      a.rank() > 2 || b.rank() > 2 ? ", counted in the last two axes" : "");
    const int64_t m = a[a.rank() - 2], n = b[b.rank() - 1];
    for (Dims* dims : {&a, &b})
        for (int i = 0; i < 2; i++) dims->erase(dims->rank() - 1);
    Dims shape =
        broadcast_shapes(a, b, cat("matmul: batch axes do not broadcast: ", c.describe_all()));
    if (!row) shape.push(m);
    if (!column) shape.push(n);
    return {{c.dtype(0), shape}};
}

/// One matrix b multiplies the rows of all matrices of a.
ProductSizes matmul_sizes(const Dims& a, const Dims& b) {
    const int of_a = a.rank(), of_b = b.rank();
    ProductSizes sizes{1, of_a > 1 ? a[of_a - 2] : 1, of_b > 1 ? b[of_b - 1] : 1, a[of_a - 1]};
    for (int i = 1; i <= std::max(of_a, of_b) - 2; i++) {
        const int64_t own = i <= of_a - 2 ? a[of_a - 2 - i] : 1;
        (of_b > 2 ? sizes.batches : sizes.m) *= std::max(own, i <= of_b - 2 ? b[of_b - 2 - i] : 1);
    }
    return sizes;
}

/// The operand with its batch axes broadcast to `batch`.
View batched(View view, const Dims& batch) {
    const int rank = view.shape.rank();
    Dims shape = batch;
    shape.push(view.shape[rank - 2]);
    shape.push(view.shape[rank - 1]);
    return broadcast_view(view, shape);
}

void lower_matmul(LowerContext& c) {
    View a = c.in(0), b = c.in(1), y = c.out();
    const bool row = a.shape.rank() == 1, column = b.shape.rank() == 1;
    const auto add_axis = [](View& view, int axis) {
        view.shape.insert(axis, 1);
        view.strides.insert(axis, 0);
    };
    if (row) add_axis(a, 0);
    if (row) add_axis(y, y.shape.rank() - (column ? 0 : 1));
    if (column) add_axis(b, 1);
    if (column) add_axis(y, y.shape.rank());
    Dims batch = y.shape;
    for (int i = 0; i < 2; i++) batch.erase(batch.rank() - 1);
    c.op("gemm", {batched(a, batch), batched(b, batch)}, {y}, gemm_attrs());
}

void matmul_grad(GradContext& g) {
    Var a = g.in(0), b = g.in(1), dy = g.dy();
    const bool row = a.shape().rank() == 1, column = b.shape().rank() == 1;
    const auto with_axis = [](Var v, int axis) {
        Dims shape = v.shape();
        shape.insert(axis, 1);
        return reshape(v, shape);
    };
    const auto transposed = [](Var v) {
        std::vector<int64_t> axes;
        for (int i = 0; i < v.shape().rank(); i++) axes.push_back(i);
        std::swap(axes[axes.size() - 1], axes[axes.size() - 2]);
        return emit("Transpose", {v}, {{"axes", axes}});
    };
    if (row) a = with_axis(a, 0);
    if (column) b = with_axis(b, 1);
    if (row) dy = with_axis(dy, dy.shape().rank() - (column ? 0 : 1));
    if (column) dy = with_axis(dy, dy.shape().rank());
    const auto without_axis = [](Var grad, Dims with, Dims plain) {
        return reshape(sum_to(grad, with), plain);
    };
    if (g.needs(0))
        g.set(0, without_axis(emit("MatMul", {dy, transposed(b)}), a.shape(), g.in(0).shape()));
    if (g.needs(1))
        g.set(1, without_axis(emit("MatMul", {transposed(a), dy}), b.shape(), g.in(1).shape()));
}

/// Cost model: approximate clocks of an sm_90 processor per tile and 64 of k.
struct Tile {
    int64_t m, n, clocks;
};
constexpr Tile kTiles[] = {{128, 256, 1100}, {128, 128, 600}, {64, 64, 400}};

/// Where k is cut: so that the parts of the tiles fill 132 processors, whatever device comes, and
/// after 512 steps at the latest, for sums that are cut toward zero drift. By a model of waves of
/// tiles; the fewest cuts of those that come within a twentieth of the best.
int64_t cut_of(int64_t batches, int64_t m, int64_t n, int64_t k, bool tf32) {
    constexpr int64_t processors = 132, least = 128, start = 1500, join = 2500;
    const int64_t most = 512 * (tf32 ? 8 : 16);
    const auto up = [](int64_t a, int64_t b) { return (a + b - 1) / b; };
    const auto cycles = [&](int64_t parts) {
        int64_t best = std::numeric_limits<int64_t>::max();
        for (const Tile& tile : kTiles) {
            const int64_t units = batches * up(m, tile.m) * up(n, tile.n) * parts;
            const int64_t unit = up(up(k, parts), 64) * tile.clocks * (tf32 ? 2 : 1) + start;
            best = std::min(best, up(units, processors) * unit + (parts > 1 ? join : 0));
        }
        return best;
    };
    const int64_t fewest = up(k, most), last = std::max<int64_t>(fewest, k < 8192 ? 8 : 16);
    const int64_t whole = cycles(1);  // a block may also compute its cuts serially
    const auto at_best = [&](int64_t cuts) { return std::min(whole, cycles(cuts)); };
    int64_t best = whole, chosen = fewest;
    for (int64_t cuts = fewest; cuts <= last; cuts++) best = std::min(best, at_best(cuts));
    while (at_best(chosen) > best + best / 20) chosen++;
    return std::max(up(up(k, chosen), 64) * 64, least);
}

const std::vector<std::string> kMathModes = {"fp32", "tf32", "fp16", "bf16",
                                             "fp32x"};  // as MathMode

/// Raises unless the order of tensor cores is one of products of these operands in this math.
void check_order(const InferContext& c, const std::string& math, const std::string& order) {
    if (c.dtype(0) == DType::f64 || (c.dtype(0) == DType::f32 && math == "fp32"))
        c.dtype_error("order is \"", order, "\", ", c.describe_all(),
                      "; need 16-bit operands or a math of tensor cores, or \"", chain_order(),
                      "\"");
    const std::string step = math == "tf32" ? "mma8" : math == "fp32x" ? "limbs" : "mma16";
    if (!order.starts_with(step) || (math == "fp32x" && order != limb_order()) ||
        std::atoll(order.c_str() + order.find('(') + 1) % 64 != 0)
        raise(ErrorKind::graph, "gemm: order is \"", order, "\"; need ",
              math == "fp32x" ? limb_order() : step + "(c) of a multiple of 64");
}

/// gemm: C[..., M, N] = A[..., M, K] B[..., K, N], batch axes already equal.
std::vector<Type> infer_gemm(const InferContext& c) {
    c.need_float(0);
    c.need_same_dtype(0, 1);
    if (const std::string& math = c.attrs.text("math"); math != "fp32" && c.dtype(0) != DType::f32)
        c.dtype_error("math is \"", math, "\", ", c.describe_all(),
                      "; need float32 operands, or \"fp32\"");
    if (const std::string& order = c.attrs.text("order"); order.starts_with("chain(")) {
        if (order != chain_order() && order != chain_order(kShortChunk))
            raise(ErrorKind::graph, "gemm: order is \"", order, "\"; need \"", chain_order(),
                  "\" or \"", chain_order(kShortChunk), "\"");
    } else {
        check_order(c, c.attrs.text("math"), order);
    }
    const Dims &a = c.shape(0), &b = c.shape(1);
    const int rank = a.rank();
    if (rank < 2 || b.rank() != rank) c.shape_error(c.describe_all(), "; need equal ranks >= 2");
    if (a[rank - 1] != b[rank - 2])
        c.shape_error("inner sizes differ: ", c.describe_all(),
                      "; need a.shape[-1] == b.shape[-2]");
    for (int i = 0; i < rank - 2; i++)
        if (a[i] != b[i])
            c.shape_error("batch sizes differ: ", c.describe_all(), "; need equal batch axes");
    Dims shape = a;
    shape[rank - 1] = b[rank - 1];
    return {{c.dtype(0), shape}};
}

/// The same of 16-bit operands, with its sums as they are.
std::vector<Type> infer_gemm_f32(const InferContext& c) {
    std::vector<Type> types = infer_gemm(c);
    if (!is_16_bit(c.dtype(0))) c.dtype_error(c.describe_all(), "; need 16-bit operands");
    types[0].dtype = DType::f32;
    return types;
}

double gemm_flops(const LoweredOp& op) {
    const Dims& a = op.inputs[0].shape;
    return 2.0 * static_cast<double>(element_count(op.outputs[0].shape)) *
           static_cast<double>(a[a.rank() - 1]);
}

}  // namespace

std::vector<std::string> product_orders() {
    return {"chain(c)", "mma16(c)", "mma8(c)", "mma16.smN(c)", "mma8.smN(c)", "limbs(c)"};
}

std::string tensor_order(int tensor_cores, bool tf32) {
    return cat(tf32 ? "mma8" : "mma16", tensor_cores == 9 ? "" : cat(".sm", tensor_cores, "0"));
}

std::string limb_order() { return cat("limbs(", kLimbTerms, ")"); }

/// Whether a product of f32 is large enough for six on tensor cores, and copies, to take less time
/// than its own multiplications: on an H100 512 cubed takes 14.8 us so and 11.4 in a chain, 640
/// cubed 19.6 and 21.2.
static bool gains_by_limbs(int64_t batches, int64_t m, int64_t n, int64_t k) {
    constexpr int64_t work = 3 << 26, work_of_one = 1 << 22, side = 64;
    return m >= side && n >= side && k >= side && m * n * k >= work_of_one &&
           batches * m * n * k >= work;
}

namespace {

/// What an order follows from.
struct Sizes {
    int64_t batches = 1, m, n, k;
    bool wide;  // operands of more than 16 bits

    explicit Sizes(const LoweredOp& op) {
        const View &a = op.inputs[0], &c = op.outputs[0];
        const int rank = c.shape.rank();
        m = c.shape[rank - 2], n = c.shape[rank - 1], k = a.shape[rank - 1];
        for (int d = 0; d < rank - 2; d++) batches *= c.shape[d];
        wide = dtype_size(a.dtype) != 2;
    }
};

/// Whether a product is one of tensor cores. Below about 2^17 multiplications they are no faster
/// than fma. In tf32 operands are rounded first, so it takes 2^22 over all batches (64 cubed took
/// an H100 2.4 us, 2.2 by fma; a step with products of 128 cubed 20.0 us, 19.3), or rows enough to
/// share a launch with its neighbours (chains).
bool takes_tensor_cores(const Sizes& of, const std::string& math) {
    constexpr int64_t least = 1 << 17, least_tf32 = 1 << 22, many_rows = 1024;
    const int64_t work = of.m * of.n * of.k;
    return (math != "fp32" || !of.wide) && math != "fp32x" && of.k >= 32 && of.m * of.n >= 64 &&
           work >= least &&
           (math != "tf32" || of.m >= many_rows || of.batches * work >= least_tf32);
}

/// Whether results are so few that a GPU computes pieces of k side by side.
bool has_short_pieces(const Sizes& of) {
    return of.k > kShortChunk && of.k <= kShortTerms && of.batches * of.m * of.n <= kShortResults;
}

}  // namespace

std::string product_order(const LoweredOp& op, int tensor_cores) {
    const std::string& math = op.attrs.text("math");
    const Sizes of(op);
    const auto& [batches, m, n, k, wide] = of;
    if (math == "fp32x" && tensor_cores == 9 && gains_by_limbs(batches, m, n, k))
        return limb_order();
    if (tensor_cores < 8 || !takes_tensor_cores(of, math))
        return chain_order(has_short_pieces(of) ? kShortChunk : kChainChunk);
    const bool tf32 = math == "tf32";
    const int64_t cut = tf32 && has_short_pieces(of)
                            ? kShortChunk
                            : cut_of(std::max<int64_t>(batches, 1), m, n, k, tf32);
    return cat(tensor_order(tensor_cores, tf32), "(", cut, ")");
}

void set_product_order(LoweredOp& op, int tensor_cores) {
    const std::string order = product_order(op, tensor_cores), math = op.attrs.text("math");
    op.attrs.set("order", order);
    if ((math == "fp32x" && order != limb_order()) ||
        (math == "tf32" && !takes_tensor_cores(Sizes(op), math)))
        op.attrs.set("math", std::string("fp32"));
}

void define_matmul_ops() {
    define(OpDef{.name = "Linear",
                 .fn = "linear",
                 .inputs = {"x", "W", "b?"},
                 .outputs = {"linear_out"},
                 .attrs = {{"bias", true}, {"layout", std::string("y = x @ W^T + b")}},
                 .infer = infer_linear,
                 .grad =
                     [](GradContext& g) {
                         auto grads = g.emit_all("LinearBwd", {g.in(0), g.in(1), g.dy()});
                         for (int i = 0; i < g.inputs(); i++) g.set(i, grads[i]);
                     },
                 .lower = lower_linear,
                 .storage = Storage::product,
                 .sizes = linear_sizes});
    define(OpDef{.name = "LinearBwd",
                 .fn = "linear_bwd",
                 .inputs = {"x", "W", "dy"},
                 .outputs = {"dx", "dW", "db"},
                 .infer = infer_linear_bwd,
                 .grad = linear_bwd_grad,
                 .lower = lower_linear_bwd,
                 .storage = Storage::product,
                 .sizes = linear_sizes});
    define(OpDef{.name = "MatMul",
                 .fn = "matmul",
                 .inputs = {"a", "b"},
                 .outputs = {"matmul_out"},
                 .infer = infer_matmul,
                 .grad = matmul_grad,
                 .lower = lower_matmul,
                 .storage = Storage::product,
                 .sizes = matmul_sizes});
    define(LoweredDef{.name = "gemm",
                      .inputs = {"a", "b"},
                      .outputs = {"c"},
                      .attrs = {{"order", chain_order(), false, product_orders()},
                                {"math", std::string("fp32"), false, kMathModes}},
                      .infer = infer_gemm,
                      .gemm = true,
                      .flops = gemm_flops});
    define(LoweredDef{.name = "gemm_f32",
                      .inputs = {"a", "b"},
                      .outputs = {"c"},
                      .attrs = {{"order", chain_order(), false, product_orders()},
                                {"math", std::string("fp32"), false, kMathModes}},
                      .infer = infer_gemm_f32,
                      .gemm = true,
                      .flops = gemm_flops});
}

}  // namespace aicf
