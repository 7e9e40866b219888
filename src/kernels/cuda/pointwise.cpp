// Elementwise kernels: pointwise functions of scalar.h, casts, copies and optimizer updates.
#include <algorithm>
#include <map>
#include <set>

#include "core/abi/scalar.h"
#include "core/graph/region.h"
#include "kernels/cuda/codegen.h"
#include "kernels/cuda/thresholds.h"

namespace aicf::cuda {

namespace {

// Where warps take lots in turns: threads of a block, of which a processor has one, and vectors.
constexpr int kTurnThreads = 1024, kTurnVectors = 4;
constexpr int64_t kLotOperands = 4;       // of two vectors of each, what registers hold
constexpr double kLotInstructions = 128;  // of an element, up to which a loop's are worth sparing
// Instructions of an element from which on a thread asks for two vectors at once; threads and
// blocks of a processor then, of 16 bits and of float32.
constexpr double kPairInstructions = 13, kWidePairInstructions = 16;
constexpr int kPairResident = 8, kWidePairThreads = 128, kWidePairResident = 12;

/// How the elements of an operand are reached in the merged iteration space.
enum class Reach { uniform, dense, inner, along, each };

struct Access {
    Reach reach = Reach::dense;
    /// Of `inner`, 0 or 1, and of `along`: vectors lie within lines, the latter's anyhow.
    int64_t step = 0;
};

Access access_of(const Iteration& space, size_t k, int width) {
    const Dims& strides = space.strides[k];
    const int rank = space.shape.rank();
    if (std::all_of(strides.begin(), strides.end(), [](int64_t s) { return s == 0; }))
        return {Reach::uniform, 0};
    if (is_contiguous(space.shape, strides)) return {Reach::dense, 1};
    const int64_t step = strides[rank - 1];
    if (width == 1 || space.shape[rank - 1] % width != 0) return {Reach::each, 0};
    bool aligned = step == 1;
    for (int d = 0; d + 1 < rank; d++) aligned &= strides[d] % width == 0;
    return {step == 0 || aligned ? Reach::inner : Reach::along, step};
}

/// Whether a function has a form for operands and a result of 16 bits.
bool has_form_16(const LoweredDef& def) {
    static const std::set<std::string> names = {
#define AICF_ROW(fn, arity) #fn,
        AICF_POINTWISE_16(AICF_ROW)
#undef AICF_ROW
    };
    return names.contains(def.name);
}

/// Whether a function has one for operand and result of bfloat16, with the same bits.
bool has_form_brain(const LoweredDef& def) {
    static const std::set<std::string> names = {
#define AICF_ROW(fn) #fn,
        AICF_POINTWISE_BRAIN(AICF_ROW)
#undef AICF_ROW
    };
    return names.contains(def.name);
}

/// The call of scalar.h that computes one step, its operands spelt as given. `scalar_at` is where
/// the block holds the step's numbers; `first` is how many numbers came before them.
std::string call_text(const LoweredDef& def, const std::vector<std::string>& operands, DType in,
                      DType out, int scalar_at, int first, std::string& before) {
    if (def.name == "copy") return operands[0];
    if (def.name == "cast" && (out == DType::f16 || out == DType::bf16))
        return cat("scalar::narrowing(", operands[0], ")");
    if (def.name == "cast") return cat("scalar::cast<", wide_type(out), ">(", operands[0], ")");
    const bool brain = in == DType::bf16 && out == DType::bf16 && has_form_brain(def);
    std::string call = cat("scalar::", def.name,
                           brain                                ? "_brain("
                           : is_16_bit(out) && has_form_16(def) ? "_16("
                                                                : "(");
    for (size_t k = 0; k < operands.size(); k++) call += (k ? ", " : "") + operands[k];
    for (int s = 0; s < static_cast<int>(def.attrs.size()); s++) {
        before += cat("    const ", wide_type(in), " s", first + s, " = scalar::cast<",
                      wide_type(in), ">(block.number(", scalar_at + 8 * (first + s), "));\n");
        call += cat(", s", first + s);
    }
    return call + ")";
}

/// The statements that compute r0, r1, ... of one element from a0, a1, ...
std::string formula(const LoweredOp& op, const BlockLayout& layout, std::string& before) {
    if (is_update(*op.def)) return update_formula(*op.def);
    if (!op.body.empty()) return body_formula(op, layout, before, steps_between(0, op.body.size()));
    std::vector<std::string> operands;
    for (size_t k = 0; k < op.inputs.size(); k++) operands.push_back(cat("a", k, "[j]"));
    // Of `where` the last operand says the type: a choice, not the condition.
    return cat("r0[j] = ",
               call_text(*op.def, operands, op.inputs.back().dtype, op.outputs[0].dtype,
                         layout.scalars, 0, before),
               ";");
}

/// Whether all that differs between elements is one number of 16 bits, and so much is made of it
/// that a table of its 65,536 values is sooner made and looked into (table.cuh).
bool worth_table(const LoweredOp& op, const std::vector<Access>& access, const Limits& limits) {
    if (limits.one_block || limits.most_warps < 32) return false;
    if (limits.major != 9 && limits.major != 10) return false;  // its shared memory
    const auto function = [](const LoweredDef* def) { return is_function(*def); };
    if (op.body.empty() ? !function(op.def)
                        : !std::all_of(op.body.begin(), op.body.end(),
                                       [&](const RegionStep& step) { return function(step.def); }))
        return false;
    if (op.outputs.size() != 1 || !is_16_bit(op.outputs[0].dtype)) return false;
    int varying = 0;
    for (size_t k = 0; k < op.inputs.size(); k++) {
        if (access[k].reach == Reach::uniform) continue;
        if (access[k].reach != Reach::dense || !is_16_bit(op.inputs[k].dtype)) return false;
        varying++;
    }
    const auto count = static_cast<double>(element_count(op.outputs[0].shape));
    return varying == 1 && access.back().reach == Reach::dense &&
           (instructions_of(op) - kTableInstructions) * count > kTableWork;
}

}  // namespace

bool is_function(const LoweredDef& def) {
    static const std::set<std::string> names = {"copy", "cast",
#define AICF_ROW(fn, arity, kind, scalars) #fn,
                                                AICF_POINTWISE(AICF_ROW)
#undef AICF_ROW
    };
    return def.pointwise && names.contains(def.name);
}

std::string operand_text(const LoweredOp& op, int number) {
    const int inputs = static_cast<int>(op.inputs.size()),
              outputs = static_cast<int>(op.outputs.size());
    return number < inputs             ? cat("a", number, "[j]")
           : number < inputs + outputs ? cat("r", number - inputs, "[j]")
                                       : cat("t", number - inputs - outputs);
}

std::vector<size_t> steps_between(size_t first, size_t last) {
    std::vector<size_t> steps;
    for (size_t i = first; i < last; i++) steps.push_back(i);
    return steps;
}

std::vector<size_t> steps_for(const LoweredOp& op, size_t first, size_t last,
                              std::vector<int> values) {
    std::vector<size_t> steps;
    for (size_t i = last; i-- > first;) {
        const RegionStep& step = op.body[i];
        if (std::find_first_of(values.begin(), values.end(), step.outputs.begin(),
                               step.outputs.end()) == values.end())
            continue;
        steps.insert(steps.begin(), i);
        if (step.def->pointwise)
            values.insert(values.end(), step.inputs.begin(), step.inputs.end());
    }
    return steps;
}

std::vector<int> inputs_of(const LoweredOp& op, const std::vector<size_t>& steps) {
    std::vector<int> list;
    for (int k = 0; k < static_cast<int>(op.inputs.size()); k++)
        for (size_t i : steps)
            if (const auto& in = op.body[i].inputs;
                std::find(in.begin(), in.end(), k) != in.end()) {
                list.push_back(k);
                break;
            }
    return list;
}

/// An update behind what makes its gradient.
static std::string update_step(const LoweredOp& op, const RegionStep& step,
                               const std::vector<std::string>& operands) {
    std::vector<std::string> results;
    for (int number : step.outputs) results.push_back(operand_text(op, number));
    return update_formula(*step.def, cuda_type(op.operand(step.outputs[0]).dtype), operands,
                          results);
}

std::string body_formula(const LoweredOp& op, const BlockLayout& layout, std::string& before,
                         const std::vector<size_t>& steps) {
    const int outer = static_cast<int>(op.inputs.size() + op.outputs.size());
    std::string text;
    int scalars = 0;
    for (size_t i = 0; i < op.body.size(); i++) {
        const RegionStep& step = op.body[i];
        const int numbers = scalars;
        scalars += static_cast<int>(step.def->attrs.size());
        if (std::find(steps.begin(), steps.end(), i) == steps.end()) continue;
        std::vector<std::string> operands;
        for (int number : step.inputs) operands.push_back(operand_text(op, number));
        if (step.def->numbers > 0) {
            text += "\n            " + update_step(op, step, operands);
            continue;
        }
        const DType from = op.operand(step.inputs.back()).dtype,
                    to = op.operand(step.outputs[0]).dtype;
        const std::string call = step.def->pointwise ? call_text(*step.def, operands, from, to,
                                                                 layout.scalars, numbers, before)
                                                     : "v[j]";
        // Each value is rounded to its dtype, as if it had been stored; one that no step reads is
        // rounded where it is stored.
        const auto reads = [&](const RegionStep& other) {
            return std::find(other.inputs.begin(), other.inputs.end(), step.outputs[0]) !=
                   other.inputs.end();
        };
        const bool rounds = !is_16_bit(to) || std::any_of(op.body.begin(), op.body.end(), reads);
        text += cat(text.empty() ? "" : "\n            ",
                    step.outputs[0] < outer ? "" : "const auto ", operand_text(op, step.outputs[0]),
                    " = ", rounds ? cat("rounded<", cuda_type(to), ">(") : "(", call, ");");
    }
    return text;
}

namespace {

/// The kernel of a pointwise op: a loop over vectors of `width_` elements, or a table.
class PointwiseText {
  public:
    PointwiseText(const LoweredOp& op, const Limits& limits)
        : op_(op),
          limits_(limits),
          out_(op.outputs[0]),
          update_(is_update(*op.def)),
          raw_(op.def->name == "copy"),
          count_(element_count(out_.shape)),
          views_(views_of(op)),
          space_(out_.shape, strides()),
          layout_(op) {
        int64_t largest = 1;
        for (const View* view : views_) largest = std::max(largest, dtype_size(view->dtype));
        // Wide accesses while the operands of a fused op still fit the registers.
        const int64_t reach = views_.size() > 8 ? 4 : 8;
        width_ = count_ < kSmall ? 1 : static_cast<int>(std::min(16 / largest, reach));
    }

    KernelText text() {
        set_launch();
        for (size_t k = 0; k < views_.size(); k++) add_operand(k);
        const std::string compute = formula(op_, layout_, before_);
        if (worth_table(op_, access_, limits_))
            look_up(compute);
        else if (const int vectors = vectors_of_lot(); vectors > 0)
            loop_of_lots(compute, vectors);
        else
            loop(compute);
        return text_;
    }

  private:
    static std::vector<const View*> views_of(const LoweredOp& op) {
        std::vector<const View*> views;
        for (const auto* list : {&op.inputs, &op.outputs})
            for (const View& view : *list) views.push_back(&view);
        return views;
    }
    std::vector<Dims> strides() const {
        std::vector<Dims> strides;
        for (const View* view : views_)
            // An optimizer's numbers have rank 0: the same one for all elements.
            strides.push_back(update_ && view->shape.rank() == 0 ? Dims(out_.shape.rank(), 0)
                                                                 : view->strides);
        return strides;
    }
    std::string type(size_t k) const {
        return raw_ ? raw_type(views_[k]->dtype) : cuda_type(views_[k]->dtype);
    }

    void set_launch() {
        const DType in = op_.inputs.empty() ? out_.dtype : op_.inputs.back().dtype;
        text_.name = update_ ? cat(op_.def->name, "_", dtype_abbrev(out_.dtype))
                             : cat(kernel_stem(op_), "_", dtype_abbrev(in));
        if (op_.def->name == "cast") text_.name += cat("_", dtype_abbrev(out_.dtype));
        text_.includes = {"prelude.cuh"};
        text_.threads = static_cast<int>(
            std::min<int64_t>(kThreads, std::max<int64_t>(ceil_div(count_, 32) * 32, 32)));
        // Where memory bounds a kernel, each block's first loads are what keeps it busy; where
        // arithmetic does, more blocks only repeat what comes before the loop.
        const double bytes = cost_of(op_).bytes / static_cast<double>(std::max<int64_t>(count_, 1));
        heavy_ = instructions_of(op_) > kHeavyWork * bytes;
        text_.blocks = std::min<int64_t>(ceil_div(count_, int64_t{kThreads} * width_),
                                         heavy_ ? kHeavyBlocks * limits_.processors : 1 << 30);
    }

    /// How operand k is reached. Results are stored where they are, never one for many.
    Access access(size_t k) const {
        Access how = access_of(space_, k, width_);
        if (k >= op_.inputs.size() && how.reach != Reach::dense && how.reach != Reach::along)
            how.reach = how.reach == Reach::inner && how.step == 1 ? Reach::along
                        : count_ > 1                               ? Reach::each
                                                                   : Reach::dense;
        return how;
    }
    /// The loads of an operand into a<k>, or what stores r<k>.
    void add_operand(size_t k) {
        const bool output = k >= op_.inputs.size();
        const Access how = access(k);
        access_.push_back(how);
        const std::string index = std::to_string(output ? k - op_.inputs.size() : k),
                          pointer = (output ? "y" : "x") + index;
        flat_ &= how.reach == Reach::dense || how.reach == Reach::uniform;
        if (how.reach == Reach::inner || how.reach == Reach::along || how.reach == Reach::each)
            text_.body += place_struct(cat("@_", pointer), space_.shape, space_.strides[k]);
        if (width_ > 1 &&
            (how.reach == Reach::dense || (how.reach == Reach::inner && how.step == 1)))
            wide_ += cat(" && aligned16(", pointer, ")");
        if (how.reach == Reach::uniform && !output)
            before_ += cat("    const auto u", index, " = widen(*x", index, ");\n");
        load_ +=
            cat("        Wide<", type(k), "> ", output ? "r" : "a", index, "[", width_, "];\n");
        if (output)
            store_ += store_text(how, index);
        else
            load_ += load_text(how, index, type(k));
    }
    /// The same of lots of `vectors` vectors, `apart` from each other, of operands that are all
    /// dense or one number.
    std::pair<std::string, std::string> lot_text(int vectors, int apart) const {
        std::string loads, stores;
        const std::string sizes = cat(width_, ", ", vectors, ", ", apart);
        for (size_t k = 0; k < views_.size(); k++) {
            const bool output = k >= op_.inputs.size();
            const size_t index = output ? k - op_.inputs.size() : k;
            const std::string name = cat(output ? "r" : "a", index);
            loads += cat("            Wide<", type(k), "> ", name, "[", width_ * vectors, "];\n");
            if (output)
                stores +=
                    cat("            store_lots<", sizes, ">(y", index, " + i, ", name, ");\n");
            else if (access_[k].reach == Reach::uniform)
                loads += cat("            for (auto& a : ", name, ") a = u", index, ";\n");
            else
                loads += cat("            load_lots<", sizes, ", ", type(k), ">(", name, ", x",
                             index, " + i);\n");
        }
        return {loads, stores};
    }
    std::string load_text(Access how, const std::string& k, const std::string& type) const {
        const std::string at = cat("x", k, " + @_x", k, "::at(i), ");
        switch (how.reach) {
            case Reach::uniform:
                return cat("        for (auto& a : a", k, ") a = u", k, ";\n");
            case Reach::dense:
                return cat("        load_dense<", width_, ", ", type, ">(a", k, ", x", k,
                           ", i, n, wide);\n");
            case Reach::inner:
                return cat("        load_inner<", width_, ", ", how.step, ", ", type, ">(a", k,
                           ", ", at, "wide);\n");
            case Reach::along:
                return cat("        load_row<", width_, ", ", how.step, ", ", type,
                           ", Row::whole>(a", k, ", ", at, width_, ");\n");
            case Reach::each:
                break;
        }
        return cat("        load_each<", width_, ", @_x", k, ", ", type, ">(a", k, ", x", k,
                   ", i, n);\n");
    }
    std::string store_text(Access how, const std::string& k) const {
        if (how.reach == Reach::dense)
            return cat("        store_dense<", width_, ">(y", k, ", r", k, ", i, n, wide);\n");
        if (how.reach == Reach::along)
            return cat("        store_row<", width_, ", ", how.step, ", Row::whole>(y", k, " + @_y",
                       k, "::at(i), r", k, ", ", width_, ");\n");
        return cat("        store_each<", width_, ", @_y", k, ">(y", k, ", r", k, ", i, n);\n");
    }

    /// Without strides the size is read from the block, and one binary serves every size.
    std::string size() const {
        const int shape_at = layout_.operand[op_.inputs.size()] + static_cast<int>(sizeof(Operand));
        return flat_ && !limits_.one_block
                   ? cat("block.count<", out_.shape.rank(), ">(", shape_at, ")")
                   : std::to_string(count_);
    }
    void look_up(const std::string& compute) {
        const size_t inputs = op_.inputs.size();
        size_t k = 0;
        while (access_[k].reach != Reach::dense) k++;
        text_.includes = {"table.cuh"};
        text_.threads = kTableThreads;
        text_.blocks = limits_.processors;
        text_.shared = text_.workspace = 2 << 16;
        text_.counters = 3;
        std::string one;
        for (size_t i = 0; i < inputs; i++)
            one += i == k ? cat("        const Wide<", type(i), "> a", i, "[1] = {widen(", type(i),
                                "{static_cast<uint16_t>(bits)})};\n")
                          : cat("        const Wide<", type(i), "> a", i, "[1] = {u", i, "};\n");
        text_.body +=
            body_head(op_, layout_, raw_) + before_ +
            cat("    const auto value = [&](uint32_t bits) {\n        constexpr int j = 0;\n", one,
                "        Wide<", type(inputs), "> r0[1];\n        ", compute,
                "\n        return narrow<", type(inputs), ">(r0[0]).bits;\n    };\n",
                "    look_up<", kTableThreads, ", 4>(grid, &y0->bits, &x", k, "->bits, ", size(),
                ", block.ptr<uint16_t>(16), block.ptr<uint32_t>(", layout_.tail, "), value);\n}\n");
    }
    /// A text of the forms in near.h of functions of f32. It says in `near` and `largest` whether
    /// they hold.
    struct Way {
        std::string compute, below;  // `largest` is below it where the forms hold
    };
    /// Nothing where no function has such a form, or where memory takes longer than any. `normal`:
    /// with exponentials that are normal numbers; nothing where there are none.
    Way taken_near(std::string compute, bool normal = false) {
        if (wide_type(out_.dtype) != std::string("float")) return {};
        std::vector<std::string> names = {"sin", "cos", "sin_brain", "cos_brain"};
        if (op_.body.size() > 3) names.insert(names.end(), {"exp", "sigmoid"});
        const auto taken = compute.size();
        const NearLimits shared = op_.body.size() > 3 ? shared_limits(normal) : NearLimits{};
        if (normal && shared.steps.empty()) return {};
        // Forms that hold by the limits alone.
        static const std::map<std::string, std::string> sure = {{"exp", "exp_normal("},
                                                                {"tanh", "tanh_bounded("}};
        for (size_t i : shared.steps) {
            const std::string& name = op_.body[i].def->name;
            const std::string operand = cat("(", operand_text(op_, op_.body[i].inputs[0]), ")");
            const auto found = sure.find(name);
            const std::string form =
                normal && found != sure.end() ? found->second : name + "_near(within, ";
            compute = replaced(compute, cat("scalar::", name, operand),
                               cat("scalar::", form, operand, ")"));
        }
        for (const std::string& name : names)
            for (size_t at = 0;
                 (at = compute.find(cat("scalar::", name, "("), at)) != std::string::npos;)
                compute.replace(at, name.size() + 9, cat("scalar::", name, "_near(near, "));
        if (compute.size() == taken) return {};
        for (const char* name : {"sin_near", "cos_near", "sin_brain_near", "cos_brain_near",
                                 "exp_near", "exp_normal", "sigmoid_near", "tanh", "tanh_bounded"})
            compute = replaced(compute, cat("scalar::", name, "("),
                               cat("scalar::", name, "(constants, "));
        text_.body += shared.limits;
        if (!shared.steps.empty())
            compute = cat("bool within = true;\n            ", shared.checks, compute);
        return {compute, shared.below};
    }
    NearLimits shared_limits(bool normal) const {
        std::vector<bool> one;
        for (size_t k = 0; k < op_.inputs.size(); k++)
            one.push_back(access_[k].reach == Reach::uniform);
        return near_limits(op_, one, normal);
    }
    static std::string each_of(int width, const std::string& compute) {
        return cat("#pragma unroll\n        for (int j = 0; j < ", width, "; j++) {\n            ",
                   compute, "\n        }\n");
    }
    /// How many vectors a thread takes at a time where a loop's own instructions are worth sparing
    /// and lots are worth a text of their own; else 0.
    int vectors_of_lot() const {
        if (!flat_ || update_ || limits_.one_block || width_ == 1) return 0;
        if (!heavy_) return takes_pairs() ? 2 : 0;
        if (instructions_of(op_) > kLotInstructions) return 0;
        int64_t largest = 1, dense = 0;
        for (size_t k = 0; k < views_.size(); k++) {
            largest = std::max(largest, dtype_size(views_[k]->dtype));
            dense += access_[k].reach == Reach::dense;
        }
        const int vectors = width_ <= 4 && dense <= kLotOperands ? 2 : 1;
        const int64_t lot = int64_t{kThreads} * width_ * vectors;
        const int64_t least = kLotBlocks * limits_.processors * lot,
                      most = int64_t{1} << 31;  // and what turns of all blocks add
        return largest <= 4 && count_ >= least && count_ < most ? vectors : 0;
    }
    /// Whether memory is what a program waits for, but so many instructions pass between its loads
    /// that one vector of a thread on its way would not keep it busy.
    bool takes_pairs() const {
        return reads_one() && dtype_size(out_.dtype) * width_ == 16 &&
               (is_16_bit(out_.dtype) || out_.dtype == DType::f32) &&
               instructions_of(op_) >=
                   (is_16_bit(out_.dtype) ? kPairInstructions : kWidePairInstructions) &&
               count_ < int64_t{1} << 31 &&
               count_ >= kLotBlocks * limits_.processors * kThreads * width_ * 2;
    }
    /// Of a block that takes lots. In float32 small blocks of pairs keep the most on its way.
    int threads_of_lot() const {
        return !heavy_ && out_.dtype == DType::f32 ? kWidePairThreads : kThreads;
    }
    /// Vectors of a lot lie as far apart as the threads reach that make it, a block's or, in turns,
    /// a warp's; what ends within one, or has a large argument, is done vector by vector.
    void loop_of_lots(const std::string& compute, int vectors) {
        text_.body += body_head(op_, layout_, raw_) + before_;
        std::vector<Way> ways;  // the quickest first
        for (const bool normal : {true, false})
            if (Way way = taken_near(compute, normal); !way.compute.empty())
                ways.push_back(std::move(way));
        const bool turns = heavy_ && !ways.empty() && vectors > 1 && reads_one() &&
                           limits_.most_warps >= kTurnThreads / 32;
        if (turns) vectors = kTurnVectors;
        text_.threads = text_.bound = turns ? kTurnThreads : threads_of_lot();
        const int apart = (turns ? 32 : text_.threads) * width_, lot = apart * vectors;
        text_.blocks = ceil_div(count_, int64_t{text_.threads} * width_ * vectors);
        if (heavy_)
            text_.blocks = std::min(text_.blocks, (turns ? 1 : kHeavyBlocks) * limits_.processors);
        else
            text_.resident = out_.dtype == DType::f32 ? kWidePairResident : kPairResident;
        const auto [loads, stores] = lot_text(vectors, apart);
        text_.body +=
            cat("    const uint32_t n = ", size(), ";\n    const bool wide = ", wide_,
                ";\n    const uint32_t whole = wide ? n - ", lot - apart + width_ - 1, "u : 0u;\n");
        if (turns) {
            size_t k = 0;
            while (access_[k].reach != Reach::dense) k++;
            text_.includes = {"turns.cuh"};
            text_.shared = kTurnThreads * (kTurnVectors + 1) * 16;  // turns.cuh says why
            text_.body +=
                cat("    const scalar::Constants constants = held(scalar::Constants());\n",
                    make_text(ways[0].compute),
                    "    extern __shared__ __align__(16) char lots_room[];\n",
                    "    __shared__ uint32_t tickets[32];\n    Turns<", width_, ", ", vectors, ", ",
                    type(k), ", ", type(op_.inputs.size()), "> turns(x", k,
                    ", y0, wide ? n : 0u, grid, tickets, lots_room);\n#pragma unroll 1\n",
                    "    for (uint32_t first; (first = turns.left(make, ", ways[0].below,
                    ")) < n;) {\n", "        const uint32_t i0 = first + grid.thread() % 32 * ",
                    width_, ";\n");
        } else {
            text_.body += cat(ways.empty() ? "" : "    const scalar::Constants constants;\n",
                              "#pragma unroll 1\n    for (uint32_t i0 = grid.block * ", lot,
                              "u + grid.thread() * ", width_, "u; i0 < n; i0 += grid.blocks * ",
                              lot, "u) {\n");
        }
        text_.body += "        if (i0 < whole) {\n";
        if (ways.empty())
            text_.body +=
                cat("            const uint32_t i = i0;\n", loads,
                    each_of(width_ * vectors, compute), stores, "            continue;\n");
        for (size_t k = turns; k < ways.size(); k++)
            text_.body += way_text(k > 0, loads, each_of(width_ * vectors, ways[k].compute),
                                   ways[k].below, stores);
        text_.body += cat("        }\n#pragma unroll 1\n        for (int lot = 0; lot < ", vectors,
                          "; lot++) {\n        const int64_t i = (i0 + lot * ", apart,
                          ") * int64_t(hidden(1));\n        if (i >= n) break;\n", load_,
                          each_of(width_, compute), store_, "        }\n    }\n}\n");
    }
    /// One way to make a lot, if its numbers are near enough. `again`: from its loads on, or
    /// registers would keep what the way before had read.
    static std::string way_text(bool again, const std::string& loads, const std::string& compute,
                                const std::string& below, const std::string& stores) {
        return cat("            {\n            const uint32_t i = i0",
                   again ? " * uint32_t(hidden(1))" : "",
                   ";\n            bool near = true;\n            uint32_t largest = 0;\n", loads,
                   compute, "            if (near && largest < ", below, ") {\n", stores,
                   "            continue;\n            }\n            }\n");
    }
    /// Whether one result follows from one tensor, by vectors of 16 bytes, and numbers: whose
    /// elements, side by side, the registers hold then.
    bool reads_one() const {
        int64_t dense = 0, bytes = 0;
        for (size_t k = 0; k < op_.inputs.size(); k++)
            if (access_[k].reach == Reach::dense) {
                dense++;
                bytes = width_ * dtype_size(views_[k]->dtype);
            }
        return limits_.major >= 8 && op_.outputs.size() == 1 && dense == 1 && bytes == 16;
    }
    /// What makes a vector of the only tensor that is read.
    std::string make_text(const std::string& way) const {
        const size_t inputs = op_.inputs.size();
        std::string numbers, operand;
        for (size_t k = 0; k < inputs; k++)
            if (access_[k].reach == Reach::uniform)
                numbers += cat("        Wide<", type(k), "> a", k, "[", width_,
                               "];\n        for (auto& a : a", k, ") a = u", k, ";\n");
            else
                operand = cat("const Wide<", type(k), "> (&a", k, ")[", width_, "]");
        return cat("    const auto make = [&](bool& near, uint32_t& largest, ", operand, ", Wide<",
                   type(inputs), "> (&r0)[", width_, "]) {\n", numbers, each_of(width_, way),
                   "    };\n");
    }
    void loop(const std::string& compute) {
        text_.bound = kThreads;
        text_.body += body_head(op_, layout_, raw_);
        if (update_) text_.body += cat("    typedef ", wide_type(out_.dtype), " R;\n");
        text_.body += before_;
        text_.body += cat("    const int64_t n = ", size(), ";\n    const bool wide = ", wide_,
                          ";\n    const int64_t step = int64_t(grid.blocks) * grid.threads * ",
                          width_, ";\n");
        const std::string first = cat("(int64_t(grid.block) * grid.threads + grid.thread()) * ",
                                      width_),
                          near = width_ > 1 ? taken_near(compute).compute : std::string();
        if (near.empty()) {
            text_.body += cat("    for (int64_t i = ", first, "; i < n; i += step) {\n", load_,
                              each_of(width_, compute), store_, "    }\n    (void)wide;\n}\n");
            return;
        }
        // Vectors with a large argument are done again, all of them by what suits any: from their
        // loads on, or what is shared were kept in registers until then.
        text_.body += cat("    for (int64_t i0 = ", first,
                          "; i0 < n; i0 += step) {\n        {\n        const int64_t i = i0;\n",
                          "        const scalar::Constants constants;\n        bool near = true;\n",
                          load_, each_of(width_, near), "        if (near) {\n", store_,
                          "        continue;\n        }\n        }\n",
                          "        const int64_t i = i0 * hidden(1);\n", load_,
                          each_of(width_, compute), store_, "    }\n    (void)wide;\n}\n");
    }

    const LoweredOp& op_;
    const Limits& limits_;
    const View& out_;
    const bool update_, raw_;
    const int64_t count_;
    const std::vector<const View*> views_;
    const Iteration space_;
    const BlockLayout layout_;
    int width_ = 1;
    std::vector<Access> access_;
    bool flat_ = true;    // no operand needs its strides
    bool heavy_ = false;  // bound by arithmetic
    std::string wide_ = "true", load_, store_, before_;
    KernelText text_;
};

}  // namespace

KernelText pointwise_text(const LoweredOp& op, const Limits& limits) {
    return PointwiseText(op, limits).text();
}

}  // namespace aicf::cuda
