// A network's end of few classes, from its last product to the gradient before it, in one launch.
#include <algorithm>

#include "core/graph/region.h"
#include "kernels/cuda/codegen.h"
#include "kernels/cuda/thresholds.h"

namespace aicf::cuda {

namespace {

constexpr int kTailThreads = 256;

struct Tail {
    TailSteps steps;
    int64_t m, n, k, chunk, pitch, rows = 1;  // rows: of a block at a time
    int64_t shared;                           // bytes

    Tail(const LoweredOp& op, const Limits& limits) : steps(tail_steps(op)) {
        const View &x = op.inputs[0], &w = op.inputs[1];
        m = x.shape[0];
        k = x.shape[1];
        n = w.shape[1];
        const std::string& order = op.body[0].attrs.text("order");
        chunk = std::atoll(order.c_str() + order.find('(') + 1);
        // Lines whose fours lie in different banks, of neighbours.
        pitch = ceil_div(k, 4) * 4;
        if (pitch % 8 == 0) pitch += 4;
        while (rows < 8 && ceil_div(m, rows) > 2 * std::max(limits.processors, 1)) rows *= 2;
        shared =
            4 * ((n + rows) * pitch + (ceil_div(k, std::max<int64_t>(chunk, 1)) + 2) * rows * n);
    }
};

}  // namespace

bool tail_fits(const LoweredOp& op, const Limits& limits) {
    if (op.body.empty() || !tail_region(op) || limits.one_block || limits.major < 8) return false;
    const View &x = op.inputs[0], &w = op.inputs[1];
    const TailSteps steps = tail_steps(op);
    for (const RegionStep& step : op.body)
        if (step.def->gemm &&
            (!step.attrs.text("order").starts_with("chain(") || step.attrs.text("math") != "fp32"))
            return false;
    if (x.strides[1] != 1 || w.strides[0] != 1) return false;
    const Tail tail(op, limits);
    if (tail.m < 1 || tail.m > kTailRows || tail.n < 1 || tail.n > kTailClasses || tail.k < 4 ||
        tail.m * tail.k > kTailFeatures || tail.chunk % 4 != 0 || tail.shared > kTailShared)
        return false;
    if (steps.product == op.body.size()) return true;
    const std::string& order = op.body[steps.product].attrs.text("order");
    return std::atoll(order.c_str() + order.find('(') + 1) >= tail.n;
}

KernelText tail_text(const LoweredOp& op, const Limits& limits) {
    const Tail tail(op, limits);
    const BlockLayout layout(op);
    const int inputs = static_cast<int>(op.inputs.size()),
              outer = inputs + static_cast<int>(op.outputs.size());
    const auto [at, second] = tail.steps;
    const RegionStep &loss = op.body[at], &grad = op.body[at + 1];
    const bool back = second < op.body.size();
    const auto pointer = [&](int number) {
        return cat("block.ptr<", number < inputs ? "const " : "",
                   cuda_type(op.operand(number).dtype), ">(",
                   layout.operand[static_cast<size_t>(number)], ")");
    };
    const auto number = [](const char* name, int64_t value) {
        return cat("    static constexpr int64_t ", name, " = ", value, ";\n");
    };
    const std::string device = "    __device__ __forceinline__ ";

    KernelText text;
    text.includes = {"tail.cuh"};
    text.name = cat("fused_gemm_cross_entropy", back ? "_gemm" : "", "_f32");
    text.threads = kTailThreads;
    text.blocks =
        std::min<int64_t>(ceil_div(tail.m, tail.rows), int64_t{2} * std::max(limits.processors, 1));
    text.shared = static_cast<uint32_t>(tail.shared);
    text.body = cat("struct @_Tail {\n    const @_Block& block;\n", number("m", tail.m),
                    number("n", tail.n), number("k", tail.k), number("chunk", tail.chunk),
                    number("pitch", tail.pitch), number("x_step", op.inputs[0].strides[0]),
                    number("w_step", op.inputs[1].strides[1]),
                    "    static constexpr bool back = ", back ? "true" : "false", ";\n");
    // An element of the logits.
    const std::vector<size_t> before_loss = steps_between(0, at);
    std::string load, before;
    for (int k : inputs_of(op, steps_between(1, at))) {
        const View& view = op.inputs[static_cast<size_t>(k)];
        load += cat("        const Wide<", cuda_type(view.dtype), "> a", k, "[1] = {widen(",
                    pointer(k), "[row * int64_t(", view.strides[0], ") + col * int64_t(",
                    view.strides[1], ")])};\n");
    }
    std::string formula = body_formula(op, layout, before, before_loss);
    text.body += cat(device,
                     "float logit(int64_t row, int64_t col, float total) const {\n        const "
                     "float v[1] = {total};\n        constexpr int j = 0;\n",
                     before, load, "            ", formula, "\n        (void)j;\n        return ",
                     operand_text(op, loss.inputs[0]), ";\n    }\n");
    // What a row has one of, and its gradient.
    const View& labels = op.inputs[static_cast<size_t>(loss.inputs[1])];
    text.body += cat(device, "int64_t label(int64_t row) const {\n        return ",
                     pointer(loss.inputs[1]), "[row * int64_t(", labels.strides[0], ")];\n    }\n");
    constexpr const char* names[] = {"loss", "most", "sum"};
    for (size_t y = 0; y < 3; y++) {
        const int to = loss.outputs[y];
        text.body += cat(device, "void ", names[y], "(int64_t row, float v) const {\n");
        if (to < outer)
            text.body += cat("        ", pointer(to), "[row * int64_t(", op.operand(to).strides[0],
                             ")] = v;\n");
        text.body += "    }\n";
    }
    const int to = grad.outputs[0];
    text.body += cat(device, "void grad(int64_t row, int64_t i, float v) const {\n");
    if (to < outer)
        text.body += cat("        ", pointer(to), "[row * int64_t(", op.operand(to).strides[0],
                         ") + i * int64_t(", op.operand(to).strides[1], ")] = v;\n");
    text.body += "    }\n";
    // What becomes of V neighbours of a row of the second product.
    if (back) {
        const std::vector<size_t> steps = steps_between(second, op.body.size());
        std::string loads, stores, ahead;
        const auto place = [&](const View& view) {
            return cat(" + row * int64_t(", view.strides[0], ") + col * int64_t(", view.strides[1],
                       ")");
        };
        for (int k : inputs_of(op, steps_between(second + 1, op.body.size()))) {
            const View& view = op.inputs[static_cast<size_t>(k)];
            const char* type = cuda_type(view.dtype);
            loads += cat("        Wide<", type, "> a", k, "[V];\n        load_row<V, ",
                         view.strides[1], ", ", type, ", Row::nothing>(a", k, ", ", pointer(k),
                         place(view), ", left);\n");
        }
        for (size_t i : steps)
            for (int y : op.body[i].outputs) {
                if (y >= outer) continue;
                const View& view = op.operand(y);
                const char* type = cuda_type(view.dtype);
                loads += cat("        Wide<", type, "> r", y - inputs, "[V];\n");
                stores += cat("        store_row<V, ", view.strides[1], ", Row::nothing>(",
                              pointer(y), place(view), ", r", y - inputs, ", left);\n");
            }
        formula = body_formula(op, layout, ahead, steps);
        text.body += cat("    template <int V>\n", device,
                         "void operator()(int64_t, int64_t row, int64_t col, const float (&v)[V]) "
                         "const {\n        const int64_t left = ",
                         tail.k, " - col;\n", ahead, loads,
                         "#pragma unroll\n        for (int j = 0; j < V; j++) {\n            ",
                         formula, "\n        }\n", stores, "    }\n");
    }
    text.body += "};\n";
    int scalars = layout.scalars;
    for (size_t i = 0; i <= at; i++) scalars += 8 * static_cast<int>(op.body[i].def->attrs.size());
    int64_t lanes = 1;
    while (4 * lanes < tail.n) lanes *= 2;
    text.body += body_head() + cat("    loss_tail<", kTailThreads, ", ", tail.rows, ", ", lanes,
                                   ">(grid, @_Tail{block}, ", pointer(0), ", ", pointer(1),
                                   ", scalar::cast<float>(block.number(", scalars, ")));\n}\n");
    return text;
}

}  // namespace aicf::cuda
