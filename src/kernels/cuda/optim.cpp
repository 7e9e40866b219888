// Optimizer updates, and the small ops around them: one thread, or one block.
#include <algorithm>
#include <map>

#include "kernels/cuda/codegen.h"
#include "kernels/cuda/thresholds.h"

namespace aicf::cuda {

bool is_update(const LoweredDef& def) {
    return def.name == "sgd_step" || def.name == "adam_step" || def.name == "scaled_adam_step" ||
           def.name == "guarded_sgd_step" || def.name == "guarded_adam_step";
}
bool is_scalar_update(const LoweredDef& def) {
    return def.name == "step_inc" || def.name == "bias_corr";
}
bool is_small(const LoweredDef& def) { return is_scalar_update(def) || def.name == "ring_push"; }

std::string update_formula(const LoweredDef& def) {
    if (def.name == "sgd_step") return "r0[j] = scalar::sgd_p(a0[j], a1[j], R(u2));";
    const auto adam = [](const char* p, const char* grad) {
        return cat("r1[j] = scalar::adam_m(a2[j], ", grad,
                   ", R(u7)); r2[j] = scalar::adam_v(a3[j], ", grad,
                   ", R(u8)); r0[j] = scalar::adam_p(", p,
                   ", r1[j], r2[j], R(u4), R(u5), R(u6), R(u9));");
    };
    if (def.name == "adam_step") return adam("a0[j]", "a1[j]");
    if (def.name == "guarded_sgd_step")
        return "r0[j] = R(u3) != R(0) ? scalar::sgd_p(R(a0[j]), scalar::mul(R(a1[j]), R(u3)), "
               "R(u2)) : R(a0[j]);";
    const bool guarded = def.name == "guarded_adam_step";
    check(guarded || def.name == "scaled_adam_step", "cuda: an update without a formula");
    const std::string scaled =
        "const R g = scalar::mul(R(a1[j]), R(u11)); " + adam("scalar::mul(R(a0[j]), R(u10))", "g");
    if (!guarded) return scaled;
    return scaled + " if (R(u11) == R(0)) { r0[j] = a0[j]; r1[j] = a2[j]; r2[j] = a3[j]; }";
}

namespace {

/// The steps on numbers: every block makes them for itself in a form all its threads read. What
/// others read too is stored by the block that ends last, when none reads the old step any more.
struct Numbers {
    std::string make, store;
    int held = 0;

    Numbers(const LoweredOp& op) {
        for (const RegionStep& step : op.body) {
            if (!is_scalar_update(*step.def)) continue;
            if (step.def->name == "step_inc") {
                make += cat("    const int32_t v", step.outputs[0], " = scalar::add(",
                            spell(op, step.inputs[0]), ", int32_t(1));\n");
            } else {
                check(step.def->name == "bias_corr", "cuda: a scalar update without a formula");
                for (int i = 0; i < 2; i++) {
                    const std::string name = cat("v", step.outputs[i]);
                    make += cat("    __shared__ R h", name, ";\n    if (threadIdx.x == ", 32 * i,
                                ") bias_corr(&h", name, ", &", spell(op, step.inputs[1 + i]), ", ",
                                spell(op, step.inputs[0]), ");\n    const R& ", name, " = h", name,
                                ";\n");
                }
                held += 2;
            }
            for (int number : step.outputs)
                if (const int out = number - static_cast<int>(op.inputs.size());
                    out < static_cast<int>(op.outputs.size()))
                    store += cat("        *y", out, " = v", number, ";\n");
        }
    }

    static std::string spell(const LoweredOp& op, int number) {
        return number < static_cast<int>(op.inputs.size()) ? cat("(*x", number, ")")
                                                           : cat("v", number);
    }
};

}  // namespace

KernelText updates_text(const LoweredOp& op, const Limits& limits) {
    const RegionStep& like = op.body[anchor_step(op)];
    const DType dtype = op.operand(like.outputs[0]).dtype;
    const int tensors = like.def->numbers, results = static_cast<int>(like.outputs.size());
    int64_t total = 0;
    for (const RegionStep& step : op.body)
        if (is_update(*step.def)) total += element_count(op.operand(step.outputs[0]).shape);
    const int64_t width = total < kSmall ? 1 : 16 / dtype_size(dtype);

    std::map<int, int> wide_of;  // by what a cast makes: what it is made of
    for (const RegionStep& step : op.body)
        if (step.def->name == "cast") wide_of[step.outputs[0]] = step.inputs[0];
    // Each warp belongs to one tensor; a thread takes `width` elements of it.
    const BlockLayout layout(op);
    std::string choose;
    int64_t warps = 0;
    const int inputs = static_cast<int>(op.inputs.size());
    for (const RegionStep& step : op.body) {
        if (!is_update(*step.def)) continue;
        const int64_t n = element_count(op.operand(step.outputs[0]).shape),
                      count = (n + 32 * width - 1) / (32 * width);
        choose +=
            cat("    if (warp >= ", warps, " && warp < ", warps + count, ") {\n        i = (t - ",
                32 * warps, ") * ", width, "; n = ", n, ";\n        ");
        for (int k = 0; k < tensors; k++) {
            const auto narrow = wide_of.find(step.inputs[k]);
            choose += narrow == wide_of.end() ? cat("p", k, " = x", step.inputs[k], "; ")
                                              : cat("narrow = x", narrow->second, "; ");
        }
        for (int k = 0; k < results; k++)
            choose += cat("q", k, " = y", step.outputs[k] - inputs, "; ");
        choose += "\n    }\n";
        warps += count;
    }
    const Numbers numbers(op);
    KernelText text;
    text.includes = {"optim.cuh"};
    text.name = cat(kernel_stem(op), "_", dtype_abbrev(dtype));
    text.threads = warps <= 32 ? static_cast<int>(32 * std::max<int64_t>(warps, 2)) : 256;
    text.blocks = std::max<int64_t>((32 * warps + text.threads - 1) / text.threads,
                                    numbers.make.empty() ? 0 : 1);

    const std::string type = cuda_type(dtype);
    // A null pointer would lie in no shared memory, and the others then as far as is known neither.
    const auto first = [&](int number) -> std::string {
        if (!limits.one_block || number >= inputs + static_cast<int>(op.outputs.size()))
            return "nullptr";
        return number < inputs ? cat("x", number) : cat("y", number - inputs);
    };
    std::string pointers, load, store, wide = "true";
    for (int k = 0; k < tensors; k++) {
        pointers += cat("    const R* p", k, " = ", first(like.inputs[static_cast<size_t>(k)]),
                        ";\n    R a", k, "[", width, "] = {};\n");
        load += cat(k == kGradient && !wide_of.empty() ? "        if (p1)\n    " : "",
                    "        load_dense<", width, ", R>(a", k, ", p", k, ", i, n, wide);\n");
        if (width > 1) wide += cat(" && aligned16(p", k, ")");
    }
    if (!wide_of.empty()) {
        const char* from = cuda_type(op.operand(wide_of.begin()->second).dtype);
        pointers += cat("    const ", from, "* narrow = nullptr;\n");
        load +=
            cat("        if (narrow) {\n            float wider[", width,
                "];\n            load_dense<", width, ", ", from,
                ">(wider, narrow, i, n, wide);\n#pragma unroll\n            for (int j = 0; j < ",
                width, "; j++) a", kGradient, "[j] = wider[j];\n        }\n");
        if (width > 1) wide += " && aligned16(narrow)";
    }
    for (int k = 0; k < results; k++) {
        pointers += cat("    R* q", k, " = ", first(like.outputs[static_cast<size_t>(k)]),
                        ";\n    R r", k, "[", width, "];\n");
        store += cat("        store_dense<", width, ">(q", k, ", r", k, ", i, n, wide);\n");
        if (width > 1) wide += cat(" && aligned16(q", k, ")");
    }
    // As warps that stand for blocks, which may be fewer than that, they take turns.
    const std::string head =
        limits.one_block
            ? cat("    for (int t = int(grid.block * 32 + grid.thread()); t < ", 32 * warps,
                  "; t += int(grid.blocks) * 32) {\n    const int warp = t / 32;\n")
            : "    const int64_t t = int64_t(grid.block) * grid.threads + threadIdx.x, warp = t / "
              "32;\n";
    check(!limits.one_block || numbers.make.empty(), "cuda: numbers of updates in one block");
    if (limits.one_block) text.threads = 32, text.blocks = warps;
    std::string formula;
    for (size_t k = static_cast<size_t>(tensors); k < like.inputs.size(); k++)
        formula += cat("        const R u", k, " = ", Numbers::spell(op, like.inputs[k]), ";\n");
    formula += cat("#pragma unroll\n        for (int j = 0; j < ", width, "; j++) {\n            ",
                   update_formula(*like.def), "\n        }\n");
    text.ahead = limits.near && warps <= limits.team && width == 1 && wide_of.empty() &&
                 dtype_size(dtype) >= 4;
    if (text.ahead) {
        // Of a thread's one element only the places differ from tensor to tensor.
        std::string members, places, loads, stores;
        const auto add = [&](const char* name, int k) {
            members += cat(members.empty() ? "" : ", ", name, k);
            places += cat(", in_register(shared_address(", name, k, " + i))");
        };
        for (int k = 0; k < tensors; k++) {
            add("p", k);
            loads += cat("        const R a", k, "[1] = {*near_at<const R>(ahead.p", k, ")};\n");
        }
        for (int k = 0; k < results; k++) {
            add("q", k);
            loads += cat("        R r", k, "[1];\n");
            stores += cat("        *near_at<R>(ahead.q", k, ") = r", k, "[0];\n");
        }
        text.body = cat("struct @_Ahead {\n    bool any;\n    uint32_t ", members, ";\n};\n",
                        ahead_head(), pointers_of(op, layout), "    typedef ", type,
                        " R;\n    const int t = int(grid.block * 32 + grid.thread()), warp = t / "
                        "32;\n",
                        pointers, "    int i = 0, n = 0;\n", choose, "    return {i < n", places,
                        "};\n}\n", ahead_body_head(), pointers_of(op, layout), "    typedef ", type,
                        " R;\n    if (ahead.any) {\n", loads, formula, stores, "    }\n}\n");
        return text;
    }
    text.body = body_head(op, layout);
    text.body += cat("    typedef ", type, " R;\n", head, pointers, "    ",
                     limits.one_block ? "int" : "int64_t", " i = 0, n = 0;\n", choose,
                     "    const bool wide = ", wide, ";\n    if (i < n) {\n", load, "    }\n",
                     numbers.make, numbers.held ? "    __syncthreads();\n" : "",
                     "    if (i < n) {\n", formula, store, "    }\n    (void)wide;\n");
    if (limits.one_block) text.body += "    }\n";
    if (!numbers.store.empty()) {
        text.counters = 1;
        text.body += cat("    if (arrive_last(block.ptr<uint32_t>(", layout.tail,
                         "), grid.blocks) && threadIdx.x == 0) {\n", numbers.store, "    }\n");
    }
    text.body += "}\n";
    return text;
}

KernelText small_text(const LoweredOp& op, const Limits& limits) {
    const std::string& name = op.def->name;
    const BlockLayout layout(op);
    KernelText text;
    text.includes = {"optim.cuh"};
    text.name = name;
    text.threads = 32;
    if (name == "step_inc") {
        text.body = body_head(op, layout) +
                    "    if (grid.block == 0 && grid.thread() == 0) *y0 = scalar::add(*x0, "
                    "int32_t(1));\n}\n";
        return text;
    }
    if (name == "bias_corr") {
        text.body = body_head(op, layout) +
                    "    if (grid.block != 0) return;\n    if (grid.thread() == 0) bias_corr(y0, "
                    "x1, *x0);\n"
                    "    if (grid.thread() == 1) bias_corr(y1, x2, *x0);\n}\n";
        return text;
    }
    check(name == "ring_push", "cuda: a small op without a kernel");
    const View &x = op.inputs[0], &ring = op.inputs[1], &to = op.outputs[0];
    const int64_t row = element_count(x.shape), keep = ring.shape[0];
    text.threads = limits.one_block ? 32 : row * keep > 1024 ? 1024 : 256;
    text.body = place_struct("@_X", x.shape, x.strides) +
                place_struct("@_From", ring.shape, ring.strides) +
                place_struct("@_To", to.shape, to.strides);
    const std::string element = raw_type(ring.dtype);
    text.body += body_head() + cat("    if (grid.block != 0) return;\n    ring_push<", keep, ", ",
                                   row, ", @_X, @_From, @_To>(grid, block.ptr<", element, ">(",
                                   layout.operand[3], "), block.ptr<int64_t>(", layout.operand[4],
                                   "), block.ptr<const ", element, ">(", layout.operand[0],
                                   "), block.ptr<const ", element, ">(", layout.operand[1],
                                   "), block.ptr<const int64_t>(", layout.operand[2], "));\n}\n");
    return text;
}

}  // namespace aicf::cuda
