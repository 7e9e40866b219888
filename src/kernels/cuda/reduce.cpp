// Which reduction kernel fits a shape: a warp, a block or many blocks a result, results in columns,
// or chains. All follow the order that the op declares.
#include <algorithm>

#include "kernels/cuda/codegen.h"

namespace aicf::cuda {

namespace {

struct Sizes {
    int64_t rows = 1, n = 1;
    Dims kept, kept_in, kept_out, reduced, reduced_in;
};

Sizes sizes_of(const LoweredOp& op) {
    const View &x = op.inputs[0], &y = op.outputs[0];
    Sizes s;
    const bool all = op.def->name == "mse_loss";
    std::vector<char> hit(static_cast<size_t>(x.shape.rank()), all);
    if (!all)
        for (int64_t axis : op.attrs.ints("axes"))
            hit[static_cast<size_t>(axis < 0 ? axis + x.shape.rank() : axis)] = 1;
    const bool keepdims = !all && op.attrs.flag("keepdims");
    for (int d = 0, o = 0; d < x.shape.rank(); d++) {
        if (hit[static_cast<size_t>(d)]) {
            s.n *= x.shape[d];
            s.reduced.push(x.shape[d]);
            s.reduced_in.push(x.strides[d]);
            o += keepdims;
        } else {
            s.rows *= x.shape[d];
            s.kept.push(x.shape[d]);
            s.kept_in.push(x.strides[d]);
            s.kept_out.push(y.strides[o++]);
        }
    }
    return s;
}

const char* accumulator(DType dtype, bool sum) {
    switch (dtype) {
        case DType::f64:
            return "double";
        case DType::i32:
            return sum ? "uint32_t" : "int32_t";
        case DType::i64:
            return sum ? "uint64_t" : "int64_t";
        case DType::u8:
            return sum ? "uint32_t" : "int32_t";
        default:
            return "float";
    }
}

int64_t power_of_two_from(int64_t n) {
    int64_t p = 1;
    while (p < n) p *= 2;
    return p;
}

}  // namespace

KernelText reduce_text(const LoweredOp& op, int processors) {
    const std::string& name = op.def->name;
    const bool mse = name == "mse_loss", mean = mse || name == "reduce_mean";
    const bool sum = mean || name == "reduce_sum";
    const std::string order = sum ? op.attrs.text("order") : "tree";
    const int64_t chunk = order.starts_with("chain(") ? std::atoll(order.c_str() + 6) : 0;
    const DType dtype = op.inputs[0].dtype;
    const std::string a = accumulator(dtype, sum), e = cuda_type(dtype);
    const int64_t a_size = a == "double" || a.ends_with("64_t") ? 8 : 4;
    const std::string operation = cat(sum                    ? "SumOp"
                                      : name == "reduce_max" ? "MaxOp"
                                                             : "MinOp",
                                      "<", a, ">");
    const std::string averaged = mean ? "true" : "false";
    const Sizes s = sizes_of(op);
    const BlockLayout layout(op);

    KernelText text;
    text.includes = {"reduce.cuh"};
    text.body = place_struct("@_In", s.kept, s.kept_in) +
                place_struct("@_Out", s.kept, s.kept_out) +
                place_struct("@_Elem", s.reduced, s.reduced_in);
    if (mse) text.body += place_struct("@_Other", s.reduced, op.inputs[1].strides);
    text.body +=
        cat("struct @_Shape {\n    typedef @_In In;\n    typedef @_Out Out;\n    typedef @_Elem "
            "Elem;\n",
            "    static constexpr int64_t rows = ", s.rows, ", n = ", s.n, ";\n};\n");
    const std::string row = cat("RowOf<", a, ", ", e, ", @_Elem>(x0 + @_In::at(r))");
    const std::string make = mse ? cat("[&](int64_t) { return mapped<", a, ">([](", a, " p, ", a,
                                       " q) { return (p - q) * (p - q); }, RowOf<", a, ", ", e,
                                       ", @_Elem>(x0), RowOf<", a, ", ", e, ", @_Other>(x1)); }")
                                 : cat("[&](int64_t r) { return ", row, "; }");
    const auto entry = [&](const std::string& call) {
        text.body += body_head(op, layout);
        if (text.workspace) text.body += cat("    auto* parts = block.ptr<", a, ">(16);\n");
        if (text.counters)
            text.body += cat("    auto* counters = block.ptr<uint32_t>(", layout.tail, ");\n");
        text.body += cat("    ", call, ";\n}\n");
    };
    const auto finished = [&](const char* shape) {
        text.name = cat(name, "_", dtype_abbrev(dtype), "_", shape);
        if (s.rows == 0) text.blocks = 0;
        return text;
    };

    if (chunk) {
        const int64_t chunks = (s.n + chunk - 1) / chunk;
        text.threads = static_cast<int>(32 * std::clamp<int64_t>(power_of_two_from(chunks), 1, 32));
        text.blocks = (s.rows + 31) / 32;
        entry(cat("reduce_chain<", a, ", ", averaged, ", ", chunk, ", @_Shape>(grid, y0, x0)"));
        return finished("chain");
    }
    const int64_t leaves = (s.n + kTreeLeaf - 1) / kTreeLeaf;
    const Iteration kept(s.kept, {s.kept_in}), reduced(s.reduced, {s.reduced_in});
    const bool columns =
        !mse && leaves > 0 && s.rows >= 8 && kept.shape.rank() > 0 &&
        kept.strides[0][kept.shape.rank() - 1] == 1 &&
        (reduced.shape.rank() == 0 || reduced.strides[0][reduced.shape.rank() - 1] != 1);
    const int64_t enough = 4 * int64_t{processors};  // blocks that fill the device
    if (columns) {
        const int64_t strips = (s.rows + 31) / 32;
        int64_t pieces = std::clamp<int64_t>(enough / strips, 1, leaves);
        const int64_t span = power_of_two_from((leaves + pieces - 1) / pieces) * kTreeLeaf;
        pieces = (s.n + span - 1) / span;
        text.blocks = strips * pieces;
        if (pieces > 1) {
            text.workspace = static_cast<uint64_t>(pieces * s.rows * a_size);
            text.counters = static_cast<int>(strips);
        }
        entry(cat("reduce_columns<", operation, ", ", a, ", ", averaged, ", ", span,
                  ", @_Shape>(grid, y0, x0, ",
                  pieces > 1 ? "parts, counters)" : cat("(", a, "*)nullptr, (uint32_t*)nullptr)")));
        return finished("columns");
    }
    if (leaves <= 2) {
        text.blocks = (s.rows + 7) / 8;
        if (s.rows < 8) text.threads = static_cast<int>(32 * std::max<int64_t>(s.rows, 1));
        entry(cat("reduce_warps<", operation, ", ", a, ", ", averaged, ", @_Shape>(grid, y0, ",
                  make, ")"));
        return finished("warps");
    }
    if (s.rows < enough / 2 && leaves >= 64) {
        // Each piece is worth at least 16 leaves, and the last block joins at most 4096 of them.
        int64_t span = power_of_two_from(std::max<int64_t>(
            {16, (leaves * s.rows + 8 * enough - 1) / (8 * enough), (leaves + 4095) / 4096}));
        const int64_t pieces = (leaves + span - 1) / span,
                      group = std::max<int64_t>(span / 1024, 1);
        text.blocks = s.rows * pieces;
        text.workspace = static_cast<uint64_t>(s.rows * pieces * a_size);
        text.counters = static_cast<int>(s.rows);
        text.shared = static_cast<uint32_t>(std::max(pieces, span / group) * a_size);
        entry(cat("reduce_split<", operation, ", ", a, ", ", averaged, ", ", group, ", ",
                  span * kTreeLeaf, ", @_Shape>(grid, y0, parts, counters, ", make, ")"));
        return finished("split");
    }
    const int64_t group = power_of_two_from((leaves + 1023) / 1024);
    text.blocks = s.rows;
    text.threads = static_cast<int>(
        32 * std::min<int64_t>(power_of_two_from(leaves), s.rows < enough ? 32 : 8));
    text.shared = static_cast<uint32_t>((leaves + group - 1) / group * a_size);
    entry(cat("reduce_blocks<", operation, ", ", a, ", ", averaged, ", ", group,
              ", @_Shape>(grid, y0, ", make, ")"));
    return finished("blocks");
}

}  // namespace aicf::cuda
