// The softmax family and cross entropy: which team takes a row.
#include <algorithm>

#include "kernels/cuda/codegen.h"

namespace aicf::cuda {

namespace {

/// Rows along `axis`: where each operand's rows and elements lie.
std::string shape_struct(const LoweredOp& op, int64_t rows, int64_t n, int axis) {
    std::string text, types;
    int k = 0;
    for (const auto* views : {&op.inputs, &op.outputs})
        for (const View& view : *views) {
            Dims shape = view.shape, strides = view.strides;
            int64_t step = 0;
            if (shape.rank() == op.inputs[0].shape.rank()) {
                step = strides[axis];
                shape.erase(axis);
                strides.erase(axis);
            }
            text += place_struct(cat("@_Row", k), shape, strides);
            types += cat("    typedef @_Row", k, " Row", k, ";\n    typedef Line<", step, "> Elem",
                         k, ";\n");
            k++;
        }
    return text + cat("struct @_Shape {\n", types, "    static constexpr int64_t rows = ", rows,
                      ", n = ", n, ";\n};\n");
}

}  // namespace

KernelText row_text(const LoweredOp& op, int processors) {
    const std::string& name = op.def->name;
    const bool entropy = name.starts_with("cross_entropy"), norm = name.starts_with("normalize");
    const View& x = op.inputs[0];
    const int rank = x.shape.rank();
    int64_t axis = entropy ? 1 : norm ? rank - 1 : op.attrs.integer("axis");
    if (axis < 0) axis += rank;
    const int64_t n = x.shape[static_cast<int>(axis)];
    Dims others = x.shape;
    others.erase(static_cast<int>(axis));
    const int64_t rows = n || norm ? element_count(others) : 0;  // an empty row has its rstd too
    const std::string a = wide_type(x.dtype);
    const int64_t leaves = (n + kTreeLeaf - 1) / kTreeLeaf;
    const BlockLayout layout(op);

    KernelText text;
    text.includes = {"nn.cuh"};
    text.name = cat(name, "_", dtype_abbrev(x.dtype));
    text.body = shape_struct(op, rows, n, static_cast<int>(axis));
    if (name == "cross_entropy_grad") {
        text.blocks = std::min<int64_t>((rows * n + 255) / 256, int64_t{processors} * 16);
        text.body += body_head(op, layout);
        text.body +=
            cat("    cross_entropy_grad<", a, ", @_Shape>(grid, y0, x0, x1, x2, scalar::cast<", a,
                ">(block.number(", layout.scalars, ")));\n}\n");
        return text;
    }
    const bool warp = leaves <= 2;
    const int64_t group = [&] {
        int64_t p = 1;
        while (p * 1024 < leaves) p *= 2;
        return p;
    }();
    int64_t warps = 1;
    while (warps < 8 && warps < leaves) warps *= 2;
    text.threads = warp ? static_cast<int>(32 * std::clamp<int64_t>(rows, 1, 8))
                        : static_cast<int>(32 * warps);
    text.blocks = warp ? (rows + 7) / 8 : rows;
    text.shared = warp ? 0
                       : static_cast<uint32_t>((leaves + group - 1) / group *
                                               dtype_size(a == "double" ? DType::f64 : DType::f32));
    const std::string team = cat("<", a, ", ", warp ? 1 : warps, ", ", group, ", ");
    text.body += body_head(op, layout);
    const std::string log = name.starts_with("log_") ? "true" : "false";
    if (norm) {
        const std::string call =
            cat(team, op.attrs.flag("center") ? "true" : "false", ", @_Shape>(");
        const std::string eps = cat(", scalar::cast<", a, ">(block.number(", layout.scalars, "))");
        text.body += name == "normalize"
                         ? cat("    normalize_rows", call, "grid, y0, y1, x0", eps, ");\n}\n")
                         : cat("    normalize_bwd_rows", call, "grid, y0, x0, x1, x2);\n}\n");
    } else if (name == "cross_entropy")
        text.body += cat("    cross_entropy_rows", team, "@_Shape>(grid, y0, y1, x0, x1);\n}\n");
    else if (name.ends_with("_bwd"))
        text.body += cat("    softmax_bwd_rows", team, log, ", @_Shape>(grid, y0, x0, x1);\n}\n");
    else
        text.body += cat("    softmax_rows", team, log, ", @_Shape>(grid, y0, x0);\n}\n");
    return text;
}

}  // namespace aicf::cuda
