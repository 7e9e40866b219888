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

std::string update_formula(const LoweredDef& def, const std::string& type,
                           const std::vector<std::string>& in,
                           const std::vector<std::string>& out) {
    const auto r = [&](size_t k) { return cat(type, "(", in[k], ")"); };
    if (def.name == "sgd_step")
        return cat(out[0], " = scalar::sgd_p(", in[0], ", ", in[1], ", ", r(2), ");");
    const auto adam = [&](const std::string& p, const std::string& grad) {
        return cat(out[1], " = scalar::adam_m(", in[2], ", ", grad, ", ", r(7), "); ", out[2],
                   " = scalar::adam_v(", in[3], ", ", grad, ", ", r(8), "); ", out[0],
                   " = scalar::adam_p(", p, ", ", out[1], ", ", out[2], ", ", r(4), ", ", r(5),
                   ", ", r(6), ", ", r(9), ");");
    };
    if (def.name == "adam_step") return adam(in[0], in[1]);
    if (def.name == "guarded_sgd_step")
        return cat(out[0], " = ", r(3), " != ", type, "(0) ? scalar::sgd_p(", r(0),
                   ", scalar::mul(", r(1), ", ", r(3), "), ", r(2), ") : ", r(0), ";");
    const bool guarded = def.name == "guarded_adam_step";
    check(guarded || def.name == "scaled_adam_step", "cuda: an update without a formula");
    const std::string scaled = cat("const ", type, " g = scalar::mul(", r(1), ", ", r(11), "); ",
                                   adam(cat("scalar::mul(", r(0), ", ", r(10), ")"), "g"));
    if (!guarded) return scaled;
    return cat(scaled, " if (", r(11), " == ", type, "(0)) { ", out[0], " = ", in[0], "; ", out[1],
               " = ", in[2], "; ", out[2], " = ", in[3], "; }");
}

std::string update_formula(const LoweredDef& def) {
    std::vector<std::string> in, out;
    for (size_t k = 0; k < def.inputs.size(); k++)
        in.push_back(static_cast<int>(k) < def.numbers ? cat("a", k, "[j]") : cat("u", k));
    for (size_t k = 0; k < def.outputs.size(); k++) out.push_back(cat("r", k, "[j]"));
    return update_formula(def, "R", in, out);
}

std::string each_update(const std::string& width, const std::string& formula) {
    const std::string exact = "scalar::adam_p(",
                      loop = cat("#pragma unroll\n        for (int j = 0; j < ", width,
                                 "; j++) {\n            ");
    const size_t at = formula.find(exact);
    if (width == "1" || at == std::string::npos) return cat(loop, formula, "\n        }\n");
    std::string near = formula;
    near.replace(at, exact.size(), "scalar::adam_p_near(near, ");
    return cat("        bool near = true;\n", loop, near, "\n        }\n        if (!near) {\n",
               loop, formula, "\n        }\n        }\n");
}

namespace {

/// The steps on numbers: every block makes them for itself in a form all its threads read. What
/// others read too is stored by the block that ends last, when none reads the old step any more.
struct ScalarPrologue {
    std::string make, store;
    int held = 0;

    ScalarPrologue(const LoweredOp& op) {
        for (const RegionStep& step : op.body) {
            if (!is_scalar_update(*step.def)) continue;
            if (step.def->name == "step_inc") {
                make += cat("    const int32_t v", step.outputs[0], " = scalar::add(",
                            spell(op, step.inputs[0]), ", int32_t(1));\n");
            } else {
                check(step.def->name == "bias_corr", "cuda: a scalar update without a formula");
                for (int i = 0; i < 2; i++) {
                    const std::string name = cat("v", step.outputs[i]);
                    const char* type = cuda_type(op.operand(step.outputs[i]).dtype);
                    make += cat("    __shared__ ", type, " h", name,
                                ";\n    if (threadIdx.x == ", 32 * i, ") bias_corr(&h", name, ", &",
                                spell(op, step.inputs[1 + i]), ", ", spell(op, step.inputs[0]),
                                ");\n    const ", type, "& ", name, " = h", name, ";\n");
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

namespace {

/// The kernel of the updates of several tensors: each warp belongs to one of them, or of many
/// elements each block, for which all its threads take one way through the tensors. A thread takes
/// `width_` neighbours.
class UpdatesText {
  public:
    UpdatesText(const LoweredOp& op, const Limits& limits)
        : op_(op),
          limits_(limits),
          like_(op.body[anchor_step(op)]),
          dtype_(op.operand(like_.outputs[0]).dtype),
          type_(cuda_type(dtype_)),
          layout_(op),
          prologue_(op),
          inputs_(static_cast<int>(op.inputs.size())),
          tensors_(like_.def->numbers),
          results_(static_cast<int>(like_.outputs.size())) {
        int64_t total = 0;
        for (const RegionStep& step : op.body) {
            if (is_update(*step.def)) total += element_count(op.operand(step.outputs[0]).shape);
            if (step.def->name == "reduce_sum") cuts_of_[step.outputs[0]] = step.inputs[0];
            if (step.def->name == "cast") {
                const bool narrows = is_16_bit(op.operand(step.outputs[0]).dtype);
                (narrows ? rounded_of_ : wide_of_)[step.outputs[0]] = step.inputs[0];
            }
            if (step.def->name != "add") continue;
            sum_of_[step.outputs[0]] = {step.inputs[0], step.inputs[1]};
            also_ |= !wide_of_.contains(step.inputs[0]);
        }
        width_ = total < kSmall ? 1 : 16 / dtype_size(dtype_);
        blocks_ = width_ > 1 && !limits.one_block;
        check(!limits.one_block || prologue_.make.empty(), "cuda: numbers of updates in one block");
    }

    KernelText text() {
        choose_tensors();
        declare_pointers();
        set_launch();
        text_.ahead = limits_.near && units_ <= limits_.team && width_ == 1 && wide_of_.empty() &&
                      sum_of_.empty() && cuts_of_.empty() && dtype_size(dtype_) >= 4;
        if (text_.ahead)
            in_two_parts();
        else
            at_once();
        return text_;
    }

  private:
    /// A tensor's warps or blocks, and what their threads have of it.
    struct Share {
        int64_t first, end;
        std::string text;
    };
    /// Which tensor a warp or block has, and its thread's place in it.
    void choose_tensors() {
        std::vector<Share> shares;
        const int64_t threads = blocks_ ? kThreads : 32;
        for (const RegionStep& step : op_.body) {
            if (!is_update(*step.def)) continue;
            const int64_t n = element_count(op_.operand(step.outputs[0]).shape),
                          count = ceil_div(n, threads * width_);
            std::string text = cat(blocks_ ? cat("first = ", units_)
                                           : cat("i = (t - ", threads * units_, ") * ", width_),
                                   "; n = ", n, ";\n        ");
            for (int k = 0; k < tensors_; k++) text += from(step.inputs[static_cast<size_t>(k)], k);
            for (int k = 0; k < results_; k++)
                text += cat("q", k, " = y", step.outputs[static_cast<size_t>(k)] - inputs_, "; ");
            shares.push_back({units_, units_ + count, std::move(text)});
            units_ += count;
        }
        choose_ = blocks_ ? by_halving(shares, 0, shares.size()) : one_by_one(shares);
    }
    /// Where operand k of an update is read.
    std::string from(int number, int k) const {
        if (const auto sum = sum_of_.find(number); sum != sum_of_.end()) {
            const auto [first, second] = sum->second;
            return (wide_of_.contains(first) ? from(first, k) : cat("also = x", first, "; ")) +
                   from(second, k);
        }
        if (const auto cuts = cuts_of_.find(number); cuts != cuts_of_.end())
            return cat("cuts = x", cuts->second,
                       "; count = ", op_.inputs[static_cast<size_t>(cuts->second)].shape[0], "; ");
        const auto narrow = wide_of_.find(number);
        if (narrow == wide_of_.end()) return cat("p", k, " = x", number, "; ");
        const auto rounded = rounded_of_.find(narrow->second);
        return rounded == rounded_of_.end() ? cat("narrow = x", narrow->second, "; ")
                                            : from(rounded->second, k) + "rounds = true; ";
    }
    static std::string one_by_one(const std::vector<Share>& shares) {
        std::string text;
        for (const Share& share : shares)
            text += cat("    if (warp >= ", share.first, " && warp < ", share.end, ") {\n        ",
                        share.text, "\n    }\n");
        return text;
    }
    static std::string by_halving(const std::vector<Share>& shares, size_t begin, size_t end) {
        if (end - begin == 1) return cat("        ", shares[begin].text, "\n");
        const size_t middle = begin + (end - begin) / 2;
        return cat("    if (grid.block < ", shares[middle].first, ") {\n",
                   by_halving(shares, begin, middle), "    } else {\n",
                   by_halving(shares, middle, end), "    }\n");
    }
    /// A null pointer would lie in no shared memory, and the others then as far as is known
    /// neither.
    std::string start_of(int number) const {
        if (!limits_.one_block || number >= inputs_ + static_cast<int>(op_.outputs.size()))
            return "nullptr";
        return number < inputs_ ? cat("x", number) : cat("y", number - inputs_);
    }
    void declare_pointers() {
        for (int k = 0; k < tensors_; k++) {
            pointers_ +=
                cat("    const R* p", k, " = ", start_of(like_.inputs[static_cast<size_t>(k)]),
                    ";\n    R a", k, "[", width_, "] = {};\n");
            if (width_ > 1) wide_ += cat(" && aligned16(p", k, ")");
        }
        if (!wide_of_.empty()) {
            pointers_ += cat("    const ", narrow_type(), "* narrow = nullptr;\n");
            if (width_ > 1) wide_ += " && aligned16(narrow)";
        }
        if (!cuts_of_.empty()) {
            pointers_ += "    const R* cuts = nullptr;\n    int count = 0;\n";
            if (!rounded_of_.empty()) pointers_ += "    bool rounds = false;\n";
            if (width_ > 1) wide_ += cat(" && aligned16(cuts) && (!cuts || n % ", width_, " == 0)");
        }
        if (also_) {
            pointers_ += "    const R* also = nullptr;\n";
            if (width_ > 1) wide_ += " && aligned16(also)";
        }
        for (int k = 0; k < results_; k++) {
            pointers_ += cat("    R* q", k, " = ", start_of(like_.outputs[static_cast<size_t>(k)]),
                             ";\n    R r", k, "[", width_, "];\n");
            if (width_ > 1) wide_ += cat(" && aligned16(q", k, ")");
        }
    }
    const char* narrow_type() const {
        return cuda_type(op_.operand(wide_of_.begin()->second).dtype);
    }
    /// `of`: the first element, the end, and whether all of a thread may move together. A gradient
    /// of 16 bits is widened as it is read, and added to the other part of a sum.
    std::string load(const std::string& of) const {
        std::string text;
        for (int k = 0; k < tensors_; k++)
            text += cat(k == kGradient && (!wide_of_.empty() || !cuts_of_.empty())
                            ? "        if (p1)\n    "
                            : "",
                        "        load_dense<", width_, ", R>(a", k, ", p", k, ", ", of, ");\n");
        const auto first = [&](const char* type, const char* from, const char* made) {
            text += cat("        if (", from, ") {\n            Wide<", type, "> more[", width_,
                        "];\n            load_dense<", width_, ", ", type, ">(more, ", from, ", ",
                        of, ");\n#pragma unroll\n            for (int j = 0; j < ", width_,
                        "; j++) a", kGradient, "[j] = ", made, ";\n        }\n");
        };
        const char* const sum = "scalar::add(R(more[j]), a1[j])";
        if (!wide_of_.empty())
            first(narrow_type(), "narrow",
                  sum_of_.empty() ? "more[j]" : "p1 ? scalar::add(R(more[j]), a1[j]) : R(more[j])");
        if (also_) first("R", "also", sum);
        return cuts_of_.empty() ? text : text + add_cuts(of);
    }
    /// Sixteen cuts at a time, which leaves registers and keeps the text short.
    std::string add_cuts(const std::string& of) const {
        const int64_t lot = std::max<int64_t>(16 / width_, 1);
        const std::string each = cat("#pragma unroll\n", "for (int j = 0; j < ", width_, "; j++) ");
        return cat(
            "        if (cuts) {\n", each,
            "a1[j] = R(-0.0);\n#pragma unroll 1\n            for (int first = 0; first < count; "
            "first += ",
            lot, ") {\n                R more[", lot, "][", width_,
            "];\n#pragma unroll\n                for (int k = 0; k < ", lot,
            "; k++)\n                    if (first + k < count)\n                        "
            "load_dense<",
            width_, ", R>(more[k], cuts + int64_t(first + k) * n, ", of,
            ");\n#pragma unroll\n                for (int k = 0; k < ", lot,
            "; k++) {\n                    if (first + k >= count) continue;\n", each,
            "a1[j] = scalar::add(a1[j], more[k][j]);\n                }\n            }\n",
            rounded_of_.empty() ? ""
                                : cat("            if (rounds) {\n", each, "a1[j] = rounded<",
                                      narrow_type(), ">(a1[j]);\n            }\n"),
            "        }\n");
    }
    std::string store(const std::string& of) const {
        std::string text;
        for (int k = 0; k < results_; k++)
            text += cat("        store_dense<", width_, ">(q", k, ", r", k, ", ", of, ");\n");
        return text;
    }
    void set_launch() {
        text_.includes = {"optim.cuh"};
        text_.name = cat(kernel_stem(op_), "_", dtype_abbrev(dtype_));
        if (limits_.one_block) {
            text_.threads = 32;
            text_.blocks = units_;
            return;
        }
        text_.threads =
            blocks_ || units_ > 32 ? kThreads : static_cast<int>(32 * std::max<int64_t>(units_, 2));
        text_.blocks = std::max<int64_t>(blocks_ ? units_ : ceil_div(32 * units_, text_.threads),
                                         prologue_.make.empty() ? 0 : 1);
    }
    std::string formula() const {
        std::string text;
        for (size_t k = static_cast<size_t>(tensors_); k < like_.inputs.size(); k++)
            text += cat("        const R u", k, " = ", ScalarPrologue::spell(op_, like_.inputs[k]),
                        ";\n");
        return text + each_update(std::to_string(width_), update_formula(*like_.def));
    }

    /// Places before the first turn of a loop, each turn's update by them: of a thread's one
    /// element only the places differ from tensor to tensor.
    void in_two_parts() {
        std::string members, places, loads, stores;
        const auto add = [&](const char* name, int k) {
            members += cat(members.empty() ? "" : ", ", name, k);
            places += cat(", in_register(shared_address(", name, k, " + i))");
        };
        for (int k = 0; k < tensors_; k++) {
            add("p", k);
            loads += cat("        const R a", k, "[1] = {*near_at<const R>(ahead.p", k, ")};\n");
        }
        for (int k = 0; k < results_; k++) {
            add("q", k);
            loads += cat("        R r", k, "[1];\n");
            stores += cat("        *near_at<R>(ahead.q", k, ") = r", k, "[0];\n");
        }
        const std::string types = cat(pointers_of(op_, layout_), "    typedef ", type_, " R;\n");
        text_.body =
            cat("struct @_Ahead {\n    bool any;\n    uint32_t ", members, ";\n};\n", ahead_head(),
                types, "    const int t = int(grid.block * 32 + grid.thread()), warp = t / 32;\n",
                pointers_, "    int i = 0, n = 0;\n", choose_, "    return {i < n", places,
                "};\n}\n", ahead_body_head(), types, "    if (ahead.any) {\n", loads, formula(),
                stores, "    }\n}\n");
    }
    void at_once() {
        text_.body = body_head(op_, layout_) + cat("    typedef ", type_, " R;\n");
        if (blocks_)
            by_blocks();
        else
            by_warps();
        if (!prologue_.store.empty()) {
            text_.counters = 1;
            text_.body +=
                cat("    if (arrive_last(block.ptr<uint32_t>(", layout_.tail,
                    "), grid.blocks) && threadIdx.x == 0) {\n", prologue_.store, "    }\n");
        }
        text_.body += "}\n";
    }
    std::string numbers() const {
        return prologue_.make + (prologue_.held ? "    __syncthreads();\n" : "");
    }
    void by_warps() {
        // As warps that stand for blocks, which may be fewer than that, they take turns.
        const std::string head =
            limits_.one_block
                ? cat("    for (int t = int(grid.block * 32 + grid.thread()); t < ", 32 * units_,
                      "; t += int(grid.blocks) * 32) {\n    const int warp = t / 32;\n")
                : "    const int64_t t = int64_t(grid.block) * grid.threads + threadIdx.x, warp = "
                  "t / 32;\n";
        text_.body +=
            cat(head, pointers_, "    ", limits_.one_block ? "int" : "int64_t", " i = 0, n = 0;\n",
                choose_, "    const bool wide = ", wide_, ";\n    if (i < n) {\n",
                load("i, n, wide"), "    }\n", numbers(), "    if (i < n) {\n", formula(),
                store("i, n, wide"), "    }\n    (void)wide;\n");
        if (limits_.one_block) text_.body += "    }\n";
    }
    /// All but a tensor's last threads have all of their neighbours, which move together.
    void by_blocks() {
        if (width_ == 4) text_.resident = 5;  // what they need without keeping more at hand
        const std::string all = cat("i, i + ", width_, ", true");
        text_.body += cat(pointers_, "    uint32_t first = 0;\n    int64_t n = 0;\n", choose_,
                          "    const int64_t i = (int64_t(grid.block - first) * ", kThreads,
                          " + threadIdx.x) * ", width_, ";\n    const bool all = i + ", width_,
                          " <= n && ", wide_, ";\n    if (all) {\n", load(all),
                          "    } else if (i < n) {\n", load("i, n, false"), "    }\n", numbers(),
                          "    if (i < n) {\n", formula(), "        if (all) {\n", store(all),
                          "        } else {\n", store("i, n, false"), "        }\n    }\n");
    }

    const LoweredOp& op_;
    const Limits& limits_;
    const RegionStep& like_;  // one of the updates, which are alike
    const DType dtype_;
    const std::string type_;
    const BlockLayout layout_;
    const ScalarPrologue prologue_;
    const int inputs_, tensors_, results_;
    std::map<int, int> wide_of_;                 // by what a cast makes: what it is made of
    std::map<int, std::pair<int, int>> sum_of_;  // by what is added: the two
    std::map<int, int> cuts_of_, rounded_of_;    // by a sum: its cuts; by what it is rounded to: it
    bool also_ = false;                          // the first of some two is as wide
    int64_t width_ = 1;
    bool blocks_ = false;  // a tensor's blocks, or else its warps
    int64_t units_ = 0;    // of either, of all tensors
    std::string choose_, pointers_, wide_ = "true";
    KernelText text_;
};

}  // namespace

KernelText updates_text(const LoweredOp& op, const Limits& limits) {
    return UpdatesText(op, limits).text();
}

KernelText numbers_text(const LoweredOp& op, const Limits&) {
    const BlockLayout layout(op);
    const ScalarPrologue numbers(op);
    KernelText text;
    text.includes = {"optim.cuh"};
    text.name = "numbers";
    text.threads = 64;
    text.body = body_head(op, layout) + "    if (grid.block != 0) return;\n" + numbers.make +
                "    __syncthreads();\n    if (threadIdx.x == 0) {\n" + numbers.store +
                "    }\n}\n";
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
        text.body =
            body_head(op, layout) +
            "    if (grid.block != 0 || grid.thread() > 1) return;\n    const bool second = "
            "grid.thread() == 1;\n    bias_corr(second ? y1 : y0, second ? x2 : x1, "
            "*x0);\n}\n";
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
