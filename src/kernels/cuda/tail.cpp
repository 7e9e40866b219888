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

/// How a product rounds; of chains "fp32x" does as "fp32" does.
static std::string chain_math(const RegionStep& product) {
    const std::string& math = product.attrs.text("math");
    return math == "fp32x" ? "fp32" : math;
}

/// Whether the logits' product is a chain or has the step of this device's tensor cores, of which
/// only that of 9.0 takes its terms in any order.
static bool known_order(const RegionStep& product, const Limits& limits) {
    const std::string &order = product.attrs.text("order"), &math = product.attrs.text("math");
    if (order.starts_with("chain(")) return true;
    return limits.major == 9 && math != "fp32x" &&
           order.starts_with(tensor_order(limits.major, math == "tf32") + "(");
}

bool tail_fits(const LoweredOp& op, const Limits& limits) {
    if (op.body.empty() || !tail_region(op) || limits.one_block || limits.major < 8) return false;
    const View &x = op.inputs[0], &w = op.inputs[1];
    const TailSteps steps = tail_steps(op);
    if (!known_order(op.body[0], limits)) return false;
    if (steps.product < op.body.size()) {
        const RegionStep& back = op.body[steps.product];
        if (!back.attrs.text("order").starts_with("chain(")) return false;
    }
    if (x.strides[1] != 1 || w.strides[0] != 1) return false;
    const Tail tail(op, limits);
    if (tail.m < 1 || tail.m > kTailRows || tail.n < 1 || tail.n > kTailClasses || tail.k < 4 ||
        tail.m * tail.k > kTailFeatures || tail.chunk % 4 != 0 || tail.shared > kTailShared)
        return false;
    if (steps.product == op.body.size()) return true;
    const std::string& order = op.body[steps.product].attrs.text("order");
    return std::atoll(order.c_str() + order.find('(') + 1) >= tail.n;
}

namespace {

/// The kernel of a network's end: @_Tail says what it reads and writes of a row or an element.
class TailText {
  public:
    TailText(const LoweredOp& op, const Limits& limits)
        : op_(op),
          limits_(limits),
          tail_(op, limits),
          layout_(op),
          inputs_(static_cast<int>(op.inputs.size())),
          outer_(inputs_ + static_cast<int>(op.outputs.size())),
          back_(tail_.steps.product < op.body.size()) {}

    KernelText text() const {
        KernelText text;
        text.includes = {"tail.cuh"};
        text.begins = true;
        text.name = cat("fused_gemm_cross_entropy", back_ ? "_gemm" : "", "_",
                        dtype_abbrev(op_.inputs[0].dtype), math() == "fp32" ? "" : "_" + math());
        text.threads = kTailThreads;
        text.resident = 2;  // no more blocks, so that registers need not be saved for others
        text.blocks = std::min<int64_t>(ceil_div(tail_.m, tail_.rows),
                                        text.resident * int64_t{std::max(limits_.processors, 1)});
        text.shared = static_cast<uint32_t>(tail_.shared);
        text.body = cat("struct @_Tail {\n    const @_Block& block;\n", sizes(), logit(), labels(),
                        of_a_row(), gradient(), back_ ? product() : "", "};\n", entry());
        return text;
    }

  private:
    std::string math() const { return chain_math(op_.body[0]); }
    std::string back_math() const {
        return back_ ? chain_math(op_.body[tail_.steps.product]) : math();
    }
    bool tensor() const { return !op_.body[0].attrs.text("order").starts_with("chain("); }
    const RegionStep& loss() const { return op_.body[tail_.steps.loss]; }
    std::string pointer(int number) const {
        return cat("block.ptr<", number < inputs_ ? "const " : "",
                   cuda_type(op_.operand(number).dtype), ">(",
                   layout_.operand[static_cast<size_t>(number)], ")");
    }
    static std::string function(const char* head, const std::string& body) {
        return cat("    __device__ __forceinline__ ", head, " {\n", body, "    }\n");
    }
    static std::string place(const View& view, const char* col = "col") {
        return cat("row * int64_t(", view.strides[0], ") + ", col, " * int64_t(", view.strides[1],
                   ")");
    }

    std::string sizes() const {
        const auto number = [](const char* name, int64_t value) {
            return cat("    static constexpr int64_t ", name, " = ", value, ";\n");
        };
        return number("m", tail_.m) + number("n", tail_.n) + number("k", tail_.k) +
               number("chunk", tail_.chunk) + number("pitch", tail_.pitch) +
               number("x_step", op_.inputs[0].strides[0]) +
               number("w_step", op_.inputs[1].strides[1]) +
               "    static constexpr bool back = " + (back_ ? "true" : "false") +
               ", tensor = " + (tensor() ? "true" : "false") + ";\n    typedef " +
               rounded_type(math(), op_.inputs[0].dtype) + " As;\n    typedef " +
               rounded_type(back_math(), op_.inputs[0].dtype) + " BackAs;\n    typedef " +
               exps_type(op_.operand(loss().inputs[0]).dtype) + " Exps;\n";
    }
    /// An element of the logits, of the product's sum and what else it is made of.
    std::string logit() const {
        std::string members, read, load, before;
        for (int k : inputs_of(op_, steps_between(1, tail_.steps.loss))) {
            const View& view = op_.inputs[static_cast<size_t>(k)];
            members += cat("        Wide<", cuda_type(view.dtype), "> a", k, ";\n");
            read += cat("        of.a", k, " = widen(", pointer(k), "[", place(view), "]);\n");
            load += cat("        const Wide<", cuda_type(view.dtype), "> a", k, "[1] = {of.a", k,
                        "};\n");
        }
        const std::string formula =
            body_formula(op_, layout_, before, steps_between(0, tail_.steps.loss));
        return cat("    struct OfLogit {\n", members, "    };\n") +
               function("OfLogit of_logit(int64_t row, int64_t col) const",
                        cat("        OfLogit of;\n", read, "        return of;\n")) +
               function(
                   "float logit(const OfLogit& of, float total) const",
                   cat("        const float v[1] = {total};\n        constexpr int j = 0;\n",
                       before, load, "            ", formula, "\n        (void)j;\n        return ",
                       operand_text(op_, loss().inputs[0]), ";\n"));
    }
    std::string labels() const {
        const int at = loss().inputs[1];
        return function("int64_t label(int64_t row) const",
                        cat("        return ", pointer(at), "[row * int64_t(",
                            op_.operand(at).strides[0], ")];\n"));
    }
    /// What a row has one of.
    std::string of_a_row() const {
        constexpr const char* names[] = {"loss", "most", "sum"};
        std::string all;
        for (size_t y = 0; y < 3; y++) {
            const int to = loss().outputs[y];
            all += function(cat("void ", names[y], "(int64_t row, float v) const").c_str(),
                            to < outer_ ? cat("        ", pointer(to), "[row * int64_t(",
                                              op_.operand(to).strides[0], ")] = v;\n")
                                        : "");
        }
        return all;
    }
    /// As it is kept, and where it is stored.
    std::string gradient() const {
        const int to = op_.body[tail_.steps.gradient].outputs[0];
        return function(
                   "static float kept(float v)",
                   cat("        return rounded<", cuda_type(op_.operand(to).dtype), ">(v);\n")) +
               function("void grad(int64_t row, int64_t i, float v) const",
                        to < outer_
                            ? cat("        ", pointer(to), "[", place(op_.operand(to), "i"),
                                  "] = narrow<", cuda_type(op_.operand(to).dtype), ">(v);\n")
                            : "");
    }
    /// What becomes of V neighbours of a row of the second product.
    std::string product() const {
        const size_t end = op_.body.size(), first = tail_.steps.product;
        const std::vector<size_t> steps = steps_between(first, end);
        std::string loads, stores, before;
        for (int k : inputs_of(op_, steps_between(first + 1, end))) {
            const View& view = op_.inputs[static_cast<size_t>(k)];
            const char* type = cuda_type(view.dtype);
            if (k == 0) {  // which lies here
                loads +=
                    cat("        Wide<", type,
                        "> a0[V];\n#pragma unroll\n        for (int c = 0; c < V; c++) a0[c] = "
                        "here[c];\n");
                continue;
            }
            loads += cat("        Wide<", type, "> a", k, "[V];\n        load_row<V, ",
                         view.strides[1], ", ", type, ", Row::nothing>(a", k, ", ", pointer(k),
                         " + ", place(view), ", left);\n");
        }
        for (size_t i : steps)
            for (int y : op_.body[i].outputs) {
                if (y >= outer_) continue;
                const View& view = op_.operand(y);
                loads += cat("        Wide<", cuda_type(view.dtype), "> r", y - inputs_, "[V];\n");
                stores += cat("        store_row<V, ", view.strides[1], ", Row::nothing>(",
                              pointer(y), " + ", place(view), ", r", y - inputs_, ", left);\n");
            }
        const std::string formula = body_formula(op_, layout_, before, steps);
        return "    template <int V>\n" +
               function(
                   "void operator()(int64_t row, int64_t col, const float (&v)[V], const float* "
                   "here) "
                   "const",
                   cat("        const int64_t left = ", tail_.k, " - col;\n", before, loads,
                       "#pragma unroll\n        for (int j = 0; j < V; j++) {\n            ",
                       formula, "\n        }\n", stores));
    }
    std::string entry() const {
        int scalars = layout_.scalars;  // behind those of the steps up to the loss
        for (size_t i = 0; i <= tail_.steps.loss; i++)
            scalars += 8 * static_cast<int>(op_.body[i].def->attrs.size());
        int64_t lanes = 1;
        while (4 * lanes < tail_.n) lanes *= 2;
        return body_head() + cat("    loss_tail<", kTailThreads, ", ", tail_.rows, ", ", lanes,
                                 ">(grid, @_Tail{block}, ", pointer(0), ", ", pointer(1),
                                 ", scalar::cast<float>(block.number(", scalars, ")));\n}\n");
    }

    const LoweredOp& op_;
    const Limits& limits_;
    const Tail tail_;
    const BlockLayout layout_;
    const int inputs_, outer_;  // operands from outer_ on are a step's own
    const bool back_;           // the product behind the gradient is there
};

}  // namespace

KernelText tail_text(const LoweredOp& op, const Limits& limits) {
    return TailText(op, limits).text();
}

}  // namespace aicf::cuda
