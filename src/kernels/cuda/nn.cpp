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

/// How the kernel spells operand `number` of an op.
std::string pointer_text(const LoweredOp& op, const BlockLayout& layout, int number) {
    const bool input = number < static_cast<int>(op.inputs.size());
    return cat("block.template ptr<", input ? "const " : "", cuda_type(op.operand(number).dtype),
               ">(", layout.operand[static_cast<size_t>(number)], ")");
}

/// Where the rows of an operand begin, @_In<number>, and, where it holds elements, how these lie,
/// @_Elem<number>.
std::string place_text(const LoweredOp& op, const RowOp& row, int number) {
    const View& view = op.operand(number);
    Dims shape = view.shape, strides = view.strides;
    std::string text;
    if (shape.rank() == row.x->shape.rank()) {
        text = cat("typedef Line<", strides[row.axis], "> @_Elem", number, ";\n");
        shape.erase(row.axis);
        strides.erase(row.axis);
    }
    return text + place_struct(cat("@_In", number), shape, strides);
}

/// What is left to do with element i of row r of the result: @_Put{block}(r)(i, v). `kept`: several
/// are stored as they come, too.
std::string put_text(const LoweredOp& op, const RowOp& row, const BlockLayout& layout,
                     const std::string& a, bool kept) {
    const auto inputs = static_cast<int>(op.inputs.size()),
               outputs = static_cast<int>(op.outputs.size());
    std::vector<int> stored;  // those that hold elements
    for (int k = inputs; k < inputs + outputs; k++) {
        const auto at = std::find(row.operands.begin() + row.takes, row.operands.end(), k);
        if (at == row.operands.end() || row.elements(static_cast<int>(at - row.operands.begin())))
            stored.push_back(k);
    }
    const bool direct = op.body.empty() || loss_region(op);  // what the row op makes is stored
    const std::vector<size_t> steps =
        direct ? std::vector<size_t>() : steps_for(op, 0, op.body.size(), stored);
    std::vector<int> read;
    for (size_t i : steps)
        if (op.body[i].def->pointwise)
            for (int k : inputs_of(op, {i}))
                if (std::find(read.begin(), read.end(), k) == read.end()) read.push_back(k);

    std::string before, fields, begins, load, store;
    const auto field = [&](int number, const std::string& name) {
        fields += cat("        ", number < inputs ? "const " : "",
                      cuda_type(op.operand(number).dtype), "* ", name, ";\n");
        begins += cat(", ", pointer_text(op, layout, number), " + @_In", number, "::at(r)");
        return cat("<V, @_Elem", number, ", ", cuda_type(op.operand(number).dtype), ">(");
    };
    for (int k : read)
        load +=
            cat("            Wide<", cuda_type(op.operand(k).dtype), "> a", k,
                "[V];\n            load_some", field(k, cat("x", k)), "a", k, ", x", k, ", i);\n");
    for (int number : stored) {
        const int k = number - inputs;
        load += cat("            Wide<", cuda_type(op.operand(number).dtype), "> r", k, "[V];\n");
        store +=
            cat("            store_some", field(number, cat("y", k)), "y", k, ", r", k, ", i);\n");
    }
    const std::string formula = !direct          ? body_formula(op, layout, before, steps)
                                : stored.empty() ? ""
                                                 : cat("r", stored[0] - inputs, "[j] = v[j];");
    const std::string head = "        __device__ __forceinline__ void ";
    if (kept)
        fields +=
            cat("        template <int V>\n        __device__ __forceinline__ bool together() ",
                "const {\n            return aligned_for<V>(y", stored[0] - inputs,
                ");\n        }\n        template <int V, bool Together>\n", head,
                "across(int64_t i, const ", a, " (&v)[V]) const {\n            ",
                "store_across<V, Together>(y", stored[0] - inputs, " + i, v);\n        }\n");
    return cat(
        "struct @_Put {\n    static constexpr bool stores = ", stored.empty() ? "false" : "true",
        ";\n    const @_Block& block;\n    struct Row {\n        const @_Block& block;\n", fields,
        "        template <int V>\n", head, "some(int64_t i, const ", a, " (&v)[V]) const {\n",
        before, load, "#pragma unroll\n            for (int j = 0; j < V; j++) {\n            ",
        formula, "\n            }\n", store, "        }\n", head, "operator()(int64_t i, ", a,
        " total) const {\n            const ", a,
        " v[1] = {total};\n            some(i, v);\n        }\n    };\n    __device__ "
        "__forceinline__ Row operator()(int64_t r) const {\n        return {block",
        begins, "};\n    }\n};\n");
}

/// The functions that stand for the operands of the row op, and the call's arguments.
std::string operands_text(const LoweredOp& op, const RowOp& row, const BlockLayout& layout,
                          const std::string& a, bool kept, std::string& arguments) {
    const auto inputs = static_cast<int>(op.inputs.size()),
               outer = inputs + static_cast<int>(op.outputs.size());
    std::string text;
    for (int number = 0; number < outer; number++) text += place_text(op, row, number);
    bool put = false;
    for (int position = 0; position < static_cast<int>(row.operands.size()); position++) {
        const int number = row.operands[static_cast<size_t>(position)];
        const bool input = position < row.takes;
        const std::string block = cat("    const @_Block& block;\n");
        if (row.elements(position) && input) {
            // One that lies in memory is read as it is.
            const std::vector<size_t> steps = steps_for(op, 0, row.at, {number});
            text += row_struct(op, layout, std::to_string(position),
                               steps.empty() ? std::vector<int>{number} : inputs_of(op, steps),
                               steps, operand_text(op, number), a, kept ? "@_Elem" : "");
            arguments += cat(", @_Make", position, "{block}");
        } else if (row.elements(position)) {
            arguments += ", @_Put{block}";
            put = true;
        } else if (number >= outer) {
            arguments += ", Nowhere{}";
        } else {
            const std::string at =
                cat(pointer_text(op, layout, number), "[@_In", number, "::at(r)]");
            text += cat("struct @_One", position, " {\n", block);
            if (input)
                text +=
                    cat("    __device__ __forceinline__ auto operator()(int64_t r) const {\n"
                        "        return widen(",
                        at, ");\n    }\n};\n");
            else
                text += cat("    __device__ __forceinline__ void operator()(int64_t r, ", a,
                            " v) const {\n        ", at, " = narrow<",
                            cuda_type(op.operand(number).dtype), ">(v);\n    }\n};\n");
            arguments += cat(", @_One", position, "{block}");
        }
    }
    if (!put) arguments += ", @_Put{block}";
    return text + put_text(op, row, layout, a, kept);
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
    const RowOp row = row_op_of(op);
    const std::string& name = row.def->name;
    const bool norm = name.starts_with("normalize");
    const int64_t n = row.n;
    const int64_t rows =
        n || norm ? element_count(row.others) : 0;  // an empty row has its rstd too
    const std::string a = wide_type(row.x->dtype);
    const BlockLayout layout(op);
    int scalars = layout.scalars;
    for (size_t i = 0; i < row.at; i++)
        scalars += 8 * static_cast<int>(op.body[i].def->attrs.size());
    const std::string number = cat(", scalar::cast<", a, ">(block.number(", scalars, "))");

    KernelText text;
    text.includes = {"nn.cuh"};
    text.name = cat(kernel_stem(op), "_", dtype_abbrev(row.x->dtype));
    std::string arguments = "grid";
    const int kept = kept_warps(op, row, limits);
    text.body = operands_text(op, row, layout, a, kept > 0, arguments) +
                cat("struct @_Shape {\n    static constexpr int64_t rows = ", rows, ", n = ", n,
                    ";\n};\n", body_head());
    if (name == "cross_entropy_grad" && n > kTreeLeaf) {
        const int64_t lot = n < kRowWarps * kTreeLeaf ? 2 : 4;
        const int64_t threads = rows * ceil_div(n, kTreeLanes * lot) * 32;
        text.blocks = std::min<int64_t>((threads + 255) / 256, int64_t{limits.processors} * 16);
        text.body += cat("    cross_entropy_grad<", a, ", ", lot, ", @_Shape>(", arguments, number,
                         ");\n}\n");
        return text;
    }
    std::string scale;  // of a loss with its gradient
    if (loss_region(op)) {
        scalars += 8 * static_cast<int>(row.def->attrs.size());
        scale = cat("scalar::cast<", a, ">(block.number(", scalars, "))");
    }
    if (kept) {
        text.threads = 32 * kept;
        text.blocks = std::min<int64_t>(rows, limits.processors);
        const int64_t leaves = ceil_div(n, kTreeLeaf);
        text.shared = static_cast<uint32_t>(dtype_size(DType::f32) * (n + leaves + kept));
        text.body += cat("    cross_entropy_kept<", a, ", ", kept, ", @_Shape>(", arguments, ", ",
                         scale, ");\n}\n");
        return text;
    }
    const Team team = row_team(op, row, limits);
    text.threads = team.warps > 1
                       ? 32 * team.warps
                       : static_cast<int>(32 * std::clamp<int64_t>(team.units(rows), 1, kRowWarps));
    text.blocks = team.warps > 1 ? rows : (team.units(rows) + kRowWarps - 1) / kRowWarps;
    text.shared =
        static_cast<uint32_t>(team.results * dtype_size(a == "double" ? DType::f64 : DType::f32));
    if (loss_region(op)) {
        text.body += cat("    cross_entropy_with_grad<", a, ", ", team.type, ", @_Shape>(",
                         arguments, ", ", scale, ");\n}\n");
        return text;
    }
    if (name == "cross_entropy_grad") {
        text.body += cat("    cross_entropy_grad_rows<", a, ", ", team.type, ", @_Shape>(",
                         arguments, number, ");\n}\n");
        return text;
    }
    const bool softmax = !norm && name != "cross_entropy";
    const bool log = name.starts_with("log_");
    const auto flag = [](bool set) { return set ? "true, " : "false, "; };
    std::string flags;
    if (softmax) flags += flag(log);
    if (softmax && !name.ends_with("_bwd")) flags += flag(!log && row.attrs->flag("masked"));
    if (norm) flags += flag(row.attrs->flag("center"));
    const std::string kernel = log ? name.substr(4) : name;
    text.body += cat("    ", kernel, "_rows<", a, ", ", team.type, ", ", flags, "@_Shape>(",
                     arguments, name == "normalize" ? number : "", ");\n}\n");
    return text;
}

}  // namespace aicf::cuda
