// Which gemm fits a shape. All take k in the order the op declares, so the choice changes no bit.
#include <algorithm>

#include "kernels/cuda/codegen.h"

namespace aicf::cuda {

KernelText gemm_text(const LoweredOp& op, int processors) {
    const View &a = op.inputs[0], &b = op.inputs[1], &c = op.outputs[0];
    const int rank = c.shape.rank();
    const int64_t m = c.shape[rank - 2], n = c.shape[rank - 1], k = a.shape[rank - 1];
    const std::string order = op.attrs.text("order");
    if (!order.starts_with("chain("))
        raise(ErrorKind::unsupported, "cuda: gemm: its order is ", order, "; need chain(c)");
    const int64_t chunk = std::atoll(order.c_str() + 6);
    int64_t batches = 1;
    for (int d = 0; d < rank - 2; d++) batches *= c.shape[d];
    const BlockLayout layout(op);
    KernelText text;
    text.include = "matmul.cuh";
    const auto batch_struct = [&](const char* name, const View& view) {
        Dims shape, strides;
        for (int d = 0; d < rank - 2; d++) {
            shape.push(view.shape[d]);
            strides.push(view.strides[d]);
        }
        text.body += place_struct(name, shape, strides);
    };
    batch_struct("@_A", a);
    batch_struct("@_B", b);
    batch_struct("@_C", c);
    const auto number = [](const char* name, int64_t value) {
        return cat("    static constexpr int64_t ", name, " = ", value, ";\n");
    };
    text.body +=
        cat("struct @_Shape {\n    typedef @_A A;\n    typedef @_B B;\n    typedef @_C C;\n",
            number("m", m), number("n", n), number("k", k), number("batches", batches),
            number("chunk", chunk), number("a_row", a.strides[rank - 2]),
            number("a_col", a.strides[rank - 1]), number("b_row", b.strides[rank - 2]),
            number("b_col", b.strides[rank - 1]), number("c_row", c.strides[rank - 2]),
            number("c_col", c.strides[rank - 1]), "};\n");
    const std::string wide = wide_type(c.dtype);
    const auto tiles = [&](int64_t bm, int64_t bn) {
        return batches * ((m + bm - 1) / bm) * ((n + bn - 1) / bn);
    };
    const std::string stem = cat("gemm_", dtype_abbrev(c.dtype), "_");
    constexpr int64_t depth = 16;
    const bool tiled =
        chunk % depth == 0 && k >= depth && m >= 32 && n >= 32 && m * n * k >= (1 << 20);
    if (!tiled) {
        const int64_t chunks = std::max<int64_t>((k + chunk - 1) / chunk, 1);
        int64_t slices = 1;
        while (slices < 8 && slices < chunks) slices *= 2;
        text.name = stem + "small";
        text.threads = static_cast<int>(32 * slices);
        text.blocks = (batches * m * n + 31) / 32;
        text.body += entry_head(op, layout, text.threads);
        text.body += cat("    gemm_small<", wide, ", ", slices, ", @_Shape>(y0, x0, x1);\n}\n");
        return text;
    }
    const bool large =
        c.dtype != DType::f64 && m >= 128 && n >= 128 && tiles(128, 128) >= processors;
    const int side = large ? 128 : 64;
    text.name = cat(stem, side, "x", side);
    text.blocks = tiles(side, side);
    text.body += entry_head(op, layout, text.threads);
    text.body += cat("    gemm_tiled<", wide, ", ", side, ", ", side, ", ", depth,
                     ", @_Shape>(y0, x0, x1);\n}\n");
    return text;
}

}  // namespace aicf::cuda
