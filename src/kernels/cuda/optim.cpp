// The small ops around an optimizer's update: one thread, or one block.
#include "kernels/cuda/codegen.h"

namespace aicf::cuda {

KernelText small_text(const LoweredOp& op, int) {
    const std::string& name = op.def->name;
    const BlockLayout layout(op);
    KernelText text;
    text.include = "optim.cuh";
    text.name = name;
    text.threads = 32;
    if (name == "step_inc") {
        text.body =
            entry_head(op, layout, 32) +
            "    if (blockIdx.x == 0 && threadIdx.x == 0) *y0 = scalar::add(*x0, int32_t(1));\n}\n";
        return text;
    }
    if (name == "bias_corr") {
        text.body =
            entry_head(op, layout, 32) +
            "    if (blockIdx.x != 0) return;\n    if (threadIdx.x == 0) bias_corr(y0, x1, *x0);\n"
            "    if (threadIdx.x == 1) bias_corr(y1, x2, *x0);\n}\n";
        return text;
    }
    const View &x = op.inputs[0], &ring = op.inputs[1], &to = op.outputs[0];
    const int64_t row = element_count(x.shape), keep = ring.shape[0];
    text.threads = row * keep > 1024 ? 1024 : 256;
    text.body = place_struct("@_X", x.shape, x.strides) +
                place_struct("@_From", ring.shape, ring.strides) +
                place_struct("@_To", to.shape, to.strides);
    const std::string element = raw_type(ring.dtype);
    text.body +=
        cat("extern \"C\" __global__ void __launch_bounds__(", text.threads,
            ") @(const __grid_constant__ Block<", layout.bytes, "> block) {\n    ring_push<", keep,
            ", ", row, ", @_X, @_From, @_To>(block.ptr<", element, ">(", layout.operand[3],
            "), block.ptr<int64_t>(", layout.operand[4], "), block.ptr<const ", element, ">(",
            layout.operand[0], "), block.ptr<const ", element, ">(", layout.operand[1],
            "), block.ptr<const int64_t>(", layout.operand[2], "));\n}\n");
    return text;
}

}  // namespace aicf::cuda
