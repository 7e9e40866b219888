// The softmax family and cross entropy: which team takes a row, and what it reads and writes.
#include <algorithm>

#include "core/graph/region.h"
#include "kernels/cuda/codegen.h"
#include "kernels/cuda/thresholds.h"

namespace aicf::cuda {

namespace {

/// What an op does to rows: by itself, or with a body one step of it.
struct RowOp {
    const LoweredDef* def;
    const Attrs* attrs;
    std::vector<int> operands;  // of the step, inputs first
    int takes = 0;              // how many of them are inputs
    size_t at = 0;              // the step
    const View* x = nullptr;
    int axis = 0;
    Dims others;  // the shape of x without the axis
    int64_t n = 0;

    bool elements(int position) const {
        return std::find(def->rows.begin(), def->rows.end(), position) != def->rows.end();
    }
};

RowOp row_op_of(const LoweredOp& op) {
    RowOp row{op.def, &op.attrs, {}};
    if (op.body.empty()) {
        row.takes = static_cast<int>(op.inputs.size());
        for (size_t k = 0; k < op.inputs.size() + op.outputs.size(); k++)
            row.operands.push_back(static_cast<int>(k));
    } else {
        row.at = anchor_step(op) - (loss_region(op) ? 1 : 0);
        const RegionStep& step = op.body[row.at];
        row.def = step.def;
        row.attrs = &step.attrs;
        row.takes = static_cast<int>(step.inputs.size());
        row.operands = step.inputs;
        row.operands.insert(row.operands.end(), step.outputs.begin(), step.outputs.end());
    }
    row.x = &op.operand(row.operands[static_cast<size_t>(row.def->rows[0])]);
    row.axis = row_axis(*row.attrs, row.x->shape.rank());
    row.n = row.x->shape[row.axis];
    row.others = row.x->shape;
    row.others.erase(row.axis);
    return row;
}

Team row_team(const LoweredOp& op, const RowOp& row, const Limits& limits) {
    const int64_t rows = element_count(row.others);
    bool narrow = false;
    for (const auto* views : {&op.inputs, &op.outputs})
        for (const View& view : *views)
            narrow = narrow || (is_16_bit(view.dtype) && view.shape.rank() == row.x->shape.rank() &&
                                view.strides[row.axis] == 1);
    return team_of(wide_type(row.x->dtype), row.n, rows, limits, narrow);
}

/// The warps of a block that keeps a row of logits (cross_entropy_kept); 0: it doesn't. It takes
/// all of a processor's shared memory.
int kept_warps(const LoweredOp& op, const RowOp& row, const Limits& limits) {
    if (!loss_region(op) || limits.one_block || limits.most_warps < 32) return 0;
    if (limits.major != 9 && limits.major != 10) return 0;
    const View &x = op.inputs[0], &gradient = op.operand(op.body.back().outputs[0]);
    const int64_t leaves = ceil_div(row.n, kTreeLeaf);
    if (!is_16_bit(x.dtype) || x.strides[row.axis] != 1 || gradient.strides[row.axis] != 1 ||
        row.n % 4 != 0 || leaves <= kHeldLeaves || row.n > kKeptTerms)
        return 0;
    return static_cast<int>(std::max(ceil_div(leaves, kKeptTurns), kKeptWarps));
}

/// The kernel of a row op: where its operands lie, functions of its text that stand for them, and
/// the call of a kernel of nn.cuh that takes these.
class RowText {
  public:
    RowText(const LoweredOp& op, const Limits& limits)
        : op_(op),
          limits_(limits),
          row_(row_op_of(op)),
          name_(row_.def->name),
          a_(wide_type(row_.x->dtype)),
          layout_(op),
          inputs_(static_cast<int>(op.inputs.size())),
          outer_(inputs_ + static_cast<int>(op.outputs.size())),
          norm_(name_.starts_with("normalize")),
          kept_(kept_warps(op, row_, limits)),
          // An empty row of a norm has its rstd too.
          rows_(row_.n || norm_ ? element_count(row_.others) : 0) {}

    KernelText text() {
        text_.includes = {"nn.cuh"};
        text_.name = cat(kernel_stem(op_), "_", dtype_abbrev(row_.x->dtype));
        operands();
        put();
        text_.body += cat("struct @_Shape {\n    static constexpr int64_t rows = ", rows_,
                          ", n = ", row_.n, ";\n};\n", body_head());
        if (name_ == "cross_entropy_grad" && row_.n > kTreeLeaf)
            long_loss_gradient();
        else if (kept_)
            kept_loss();
        else
            rows();
        return text_;
    }

  private:
    /// How the kernel spells operand `number`.
    std::string pointer(int number) const {
        return cat("block.template ptr<", number < inputs_ ? "const " : "",
                   cuda_type(op_.operand(number).dtype), ">(",
                   layout_.operand[static_cast<size_t>(number)], ")");
    }

    /// The number that is the first attribute of a step, in the row's type.
    std::string number_of(size_t step) const {
        int at = layout_.scalars;
        for (size_t i = 0; i < step; i++) at += 8 * static_cast<int>(op_.body[i].def->attrs.size());
        return cat(", scalar::cast<", a_, ">(block.number(", at, "))");
    }

    /// Where the rows of an operand begin, @_In<number>, and, where it holds elements, how these
    /// lie, @_Elem<number>.
    void place(int number) {
        const View& view = op_.operand(number);
        Dims shape = view.shape, strides = view.strides;
        if (shape.rank() == row_.x->shape.rank()) {
            text_.body += cat("typedef Line<", strides[row_.axis], "> @_Elem", number, ";\n");
            shape.erase(row_.axis);
            strides.erase(row_.axis);
        }
        text_.body += place_struct(cat("@_In", number), shape, strides);
    }

    /// The functions that stand for the operands of the row op, and the call's arguments.
    void operands() {
        for (int number = 0; number < outer_; number++) place(number);
        bool put = false;
        for (int position = 0; position < static_cast<int>(row_.operands.size()); position++) {
            const int number = row_.operands[static_cast<size_t>(position)];
            const bool input = position < row_.takes;
            if (row_.elements(position) && input) {
                elements(position, number);
            } else if (row_.elements(position)) {
                arguments_ += ", @_Put{block}";
                put = true;
            } else if (number >= outer_) {
                arguments_ += ", Nowhere{}";
            } else {
                one(position, number, input);
            }
        }
        if (!put) arguments_ += ", @_Put{block}";
    }

    /// The elements of an input's rows; of one that lies in memory they are read as they are.
    void elements(int position, int number) {
        const std::vector<size_t> steps = steps_for(op_, 0, row_.at, {number});
        text_.body += row_struct(op_, layout_, std::to_string(position),
                                 steps.empty() ? std::vector<int>{number} : inputs_of(op_, steps),
                                 steps, operand_text(op_, number), a_, kept_ ? "@_Elem" : "");
        arguments_ += cat(", @_Make", position, "{block}");
    }

    /// An operand of one number a row.
    void one(int position, int number, bool input) {
        const std::string at = cat(pointer(number), "[@_In", number, "::at(r)]");
        text_.body += cat("struct @_One", position, " {\n    const @_Block& block;\n");
        if (input)
            text_.body +=
                cat("    __device__ __forceinline__ auto operator()(int64_t r) const {\n"
                    "        return widen(",
                    at, ");\n    }\n};\n");
        else
            text_.body += cat("    __device__ __forceinline__ void operator()(int64_t r, ", a_,
                              " v) const {\n        ", at, " = narrow<",
                              cuda_type(op_.operand(number).dtype), ">(v);\n    }\n};\n");
        arguments_ += cat(", @_One", position, "{block}");
    }

    /// The op's results that hold elements.
    std::vector<int> stored() const {
        std::vector<int> all;
        for (int k = inputs_; k < outer_; k++) {
            const auto at = std::find(row_.operands.begin() + row_.takes, row_.operands.end(), k);
            if (at == row_.operands.end() ||
                row_.elements(static_cast<int>(at - row_.operands.begin())))
                all.push_back(k);
        }
        return all;
    }

    /// The inputs that pointwise steps read.
    std::vector<int> read_by(const std::vector<size_t>& steps) const {
        std::vector<int> read;
        for (size_t i : steps)
            if (op_.body[i].def->pointwise)
                for (int k : inputs_of(op_, {i}))
                    if (std::find(read.begin(), read.end(), k) == read.end()) read.push_back(k);
        return read;
    }

    /// A field of @_Put::Row that points at row r of an operand; how load_some and store_some are
    /// told what lies there.
    std::string field(int number, const std::string& name) {
        const char* type = cuda_type(op_.operand(number).dtype);
        fields_ += cat("        ", number < inputs_ ? "const " : "", type, "* ", name, ";\n");
        begins_ += cat(", ", pointer(number), " + @_In", number, "::at(r)");
        return cat("<V, @_Elem", number, ", ", type, ">(");
    }

    /// Several elements of result y<k>, stored at once as they come.
    static std::string across(int k, const std::string& a) {
        return cat("        template <int V>\n        __device__ __forceinline__ bool together() ",
                   "const {\n            return aligned_for<V>(y", k,
                   ");\n        }\n        template <int V, bool Together>\n"
                   "        __device__ __forceinline__ void across(int64_t i, const ",
                   a, " (&v)[V]) const {\n            store_across<V, Together>(y", k,
                   " + i, v);\n        }\n");
    }

    /// What is left to do with element i of row r of the result: @_Put{block}(r)(i, v).
    void put() {
        const std::vector<int> results = stored();
        // Whether what the row op makes is stored as it is.
        const bool direct = op_.body.empty() || loss_region(op_);
        const std::vector<size_t> steps =
            direct ? std::vector<size_t>() : steps_for(op_, 0, op_.body.size(), results);
        std::string before, load, store;
        for (int k : read_by(steps))
            load += cat("            Wide<", cuda_type(op_.operand(k).dtype), "> a", k,
                        "[V];\n            load_some", field(k, cat("x", k)), "a", k, ", x", k,
                        ", i);\n");
        for (int number : results) {
            const int k = number - inputs_;
            load +=
                cat("            Wide<", cuda_type(op_.operand(number).dtype), "> r", k, "[V];\n");
            store += cat("            store_some", field(number, cat("y", k)), "y", k, ", r", k,
                         ", i);\n");
        }
        const std::string formula = !direct ? body_formula(op_, layout_, before, steps)
                                    : results.empty()
                                        ? ""
                                        : cat("r", results[0] - inputs_, "[j] = v[j];");
        if (kept_) fields_ += across(results[0] - inputs_, a_);
        put_struct(!results.empty(), before + load, formula, store);
    }
    void put_struct(bool stores, const std::string& load, const std::string& formula,
                    const std::string& store) {
        const std::string head = "        __device__ __forceinline__ void ";
        text_.body +=
            cat("struct @_Put {\n    static constexpr bool stores = ", stores ? "true" : "false",
                ";\n    const @_Block& block;\n    struct Row {\n        const @_Block& block;\n",
                fields_, "        template <int V>\n", head, "some(int64_t i, const ", a_,
                " (&v)[V]) const {\n", load,
                "#pragma unroll\n            for (int j = 0; j < V; j++) {\n            ", formula,
                "\n            }\n", store, "        }\n", head, "operator()(int64_t i, ", a_,
                " total) const {\n            const ", a_,
                " v[1] = {total};\n            some(i, v);\n        }\n    };\n    __device__ "
                "__forceinline__ Row operator()(int64_t r) const {\n        return {block",
                begins_, "};\n    }\n};\n");
    }

    /// The call of a kernel, whose template arguments end with ", ".
    void call(const std::string& kernel, const std::string& own, const std::string& number = "") {
        text_.body +=
            cat("    ", kernel, "<", a_, ", ", own, "@_Shape>(grid", arguments_, number, ");\n}\n");
    }

    /// The gradient of a loss's long rows: each thread has elements of its own.
    void long_loss_gradient() {
        const int64_t lot = row_.n < kRowWarps * kTreeLeaf ? 2 : 4;
        const int64_t threads = rows_ * ceil_div(row_.n, kTreeLanes * lot) * 32;
        text_.blocks = std::min<int64_t>((threads + 255) / 256, int64_t{limits_.processors} * 16);
        call("cross_entropy_grad", cat(lot, ", "), number_of(row_.at));
    }

    /// A loss with its gradient in blocks that keep a row of logits.
    void kept_loss() {
        text_.threads = 32 * kept_;
        text_.blocks = std::min<int64_t>(rows_, limits_.processors);
        const int64_t leaves = ceil_div(row_.n, kTreeLeaf);
        text_.shared = static_cast<uint32_t>(dtype_size(DType::f32) * (row_.n + leaves + kept_));
        call("cross_entropy_kept", cat(kept_, ", "), number_of(row_.at + 1));
    }

    /// A team of lanes or warps a row.
    void rows() {
        const Team team = row_team(op_, row_, limits_);
        const int64_t units = team.units(rows_);
        text_.threads = team.warps > 1
                            ? 32 * team.warps
                            : static_cast<int>(32 * std::clamp<int64_t>(units, 1, kRowWarps));
        text_.blocks = team.warps > 1 ? rows_ : (units + kRowWarps - 1) / kRowWarps;
        text_.shared = static_cast<uint32_t>(team.results *
                                             dtype_size(a_ == "double" ? DType::f64 : DType::f32));
        const std::string type = team.type + ", ";
        if (loss_region(op_)) return call("cross_entropy_with_grad", type, number_of(row_.at + 1));
        if (name_ == "cross_entropy_grad")
            return call("cross_entropy_grad_rows", type, number_of(row_.at));
        const bool softmax = !norm_ && name_ != "cross_entropy", log = name_.starts_with("log_");
        const auto flag = [](bool set) { return set ? "true, " : "false, "; };
        std::string flags;
        if (softmax) flags += flag(log);
        if (softmax && !name_.ends_with("_bwd")) flags += flag(!log && row_.attrs->flag("masked"));
        if (norm_) flags += flag(row_.attrs->flag("center"));
        call((log ? name_.substr(4) : name_) + "_rows", type + flags,
             name_ == "normalize" ? number_of(row_.at) : "");
    }

    const LoweredOp& op_;
    const Limits& limits_;
    const RowOp row_;
    const std::string& name_;
    const std::string a_;  // the type of terms
    const BlockLayout layout_;
    const int inputs_, outer_;  // how many inputs, and inputs and results
    const bool norm_;
    const int kept_;  // kept_warps
    const int64_t rows_;
    std::string arguments_;        // of the call
    std::string fields_, begins_;  // of @_Put::Row, and what they are made from
    KernelText text_;
};

constexpr std::string_view kNames[] = {"softmax",         "softmax_bwd",       "log_softmax",
                                       "log_softmax_bwd", "normalize",         "normalize_bwd",
                                       "cross_entropy",   "cross_entropy_grad"};

}  // namespace

bool is_row_op(const LoweredDef& def) {
    return std::find(std::begin(kNames), std::end(kNames), def.name) != std::end(kNames);
}

int64_t row_warps(const LoweredOp& op, const Limits& limits) {
    const RowOp row = row_op_of(op);
    return row_team(op, row, limits).units(element_count(row.others));
}

KernelText row_text(const LoweredOp& op, const Limits& limits) {
    return RowText(op, limits).text();
}

}  // namespace aicf::cuda
