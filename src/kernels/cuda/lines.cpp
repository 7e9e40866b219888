// Ops along one axis that go by position: gather, scatter, searches, sorting, running products.
#include <algorithm>

#include "core/abi/sort.h"
#include "kernels/cuda/codegen.h"

namespace aicf::cuda {

namespace {

constexpr std::string_view kLineOps[] = {
    "gather",  "scatter_add", "scatter_last", "searchsorted", "argsort",      "argsort_merge",
    "cumprod", "cumarg",      "recurrence",   "ctc_paths",    "ctc_paths_bwd"};

const char* yes_no(bool yes) { return yes ? "true" : "false"; }

Dims without(Dims dims, int axis) {
    dims.erase(axis);
    return dims;
}

/// The struct @_<name> of where the lines of an operand begin, added to the text, and the type of
/// these lines.
std::string line_of(std::string& text, const char* name, const View& view, int axis) {
    text += place_struct(cat("@_", name), without(view.shape, axis), without(view.strides, axis));
    return cat("LineOf<@_", name, ", ", view.strides[axis], ">");
}

/// The kernel of scatter_add or scatter_last that sorts the positions first.
class SortedScatterText {
  public:
    SortedScatterText(const LoweredOp& op, const Limits& limits, int axis)
        : op_(op),
          limits_(limits),
          axis_(axis),
          last_(op.def->name == "scatter_last"),
          rest_(without(y_.shape, axis)),
          from_(without(x_.strides, axis)),
          to_(without(y_.strides, axis)),
          lines_(element_count(rest_)),
          shared_(!last_ && shares_indices()),
          sorted_{shared_ ? 1 : lines_, x_.shape[axis], y_.shape[axis]} {
        sorted_.chunk = last_ ? 0 : kChainChunk;
        sorted_.zero = true;
        sorted_.part = dtype_size(y_.dtype) == 8 ? 8 : 4;
        if (!shared_) return;
        vector_ = vector_of(dtype_size(y_.dtype), rest_, {from_, to_},
                            {x_.strides[axis], y_.strides[axis]});
        lanes_ = lanes_of(lines_, vector_);
        sorted_.width = lines_;
        sorted_.tiles = (lines_ + lanes_ - 1) / lanes_;
    }

    /// Whether there are positions enough to be worth it.
    bool fits() const { return worth_sorting(sorted_, limits_); }

    void write(KernelText& text) const {
        const BlockLayout layout(op_);
        text.includes = {"own_rows.cuh", "lines.cuh"};
        const std::string line = line_of(text.body, "B", op_.inputs.back(), axis_);
        const int64_t n = sorted_.n;
        const std::string index =
            sorted_.lines == 1 ? cat(line, "::at(0, p)")
                               : cat(line, "::at(uint32_t(p) / ", n, "u, uint32_t(p) % ", n, "u)");
        text.body += order_struct(text, sorted_, index, limits_);
        const std::string sums = shared_ ? rows(text.body) : numbers(text.body);
        text.body += body_head(op_, layout) + order_body(layout, sums);
    }

  private:
    /// Whether all lines have one line of indices.
    bool shares_indices() const {
        const Dims keys = without(op_.inputs.back().strides, axis_);
        bool shared = lines_ > 1 && rest_.rank() > 0;
        for (int d = 0; d < rest_.rank(); d++) shared &= rest_[d] == 1 || keys[d] == 0;
        return shared;
    }

    /// The statement that sums what all lines have at a position as a row.
    std::string rows(std::string& text) const {
        text += cat("struct @_P : Line<", x_.strides[axis_], "> {};\nstruct @_R {\n    static ",
                    "constexpr int64_t step = ", y_.strides[axis_], ";\n};\n") +
                place_struct("@_D", rest_, from_) + place_struct("@_E", rest_, to_);
        return row_sums(sorted_, "x1", sum_type(y_.dtype), vector_, lanes_, limits_);
    }

    /// The statement that sums, or finds the last position of, each element of the result.
    std::string numbers(std::string& text) const {
        element_struct(text, "@_T", "Y", y_);
        if (last_) return sorted_first("x0", "last_positions<@_O, @_T>(grid, order, y0);\n");
        element_struct(text, "@_P", "A", x_);
        return sorted_first("x1", cat("sum_numbers<", sum_type(y_.dtype),
                                      ", @_O, @_P, @_T>(grid, order, y0, x0);\n"));
    }

    /// Where element i of all lines of an operand lies: a struct `name`.
    void element_struct(std::string& text, const char* name, const char* operand,
                        const View& view) const {
        const std::string type = line_of(text, operand, view, axis_);
        const int64_t length = view.shape[axis_];
        text += cat("struct ", name,
                    " {\n    __device__ __forceinline__ static int64_t at(uint32_t i) { ",
                    "return ", type, "::at(",
                    lines_ == 1 ? std::string("0, i") : cat("i / ", length, "u, i % ", length, "u"),
                    "); }\n};\n");
    }

    const LoweredOp& op_;
    const Limits& limits_;
    const int axis_;
    const bool last_;
    const View &x_ = op_.inputs[0], &y_ = op_.outputs[0];
    const Dims rest_, from_, to_;  // of y, x and y without the axis: shape, strides
    const int64_t lines_;
    const bool shared_;  // shares_indices, and their elements are summed
    Sorted sorted_;
    int64_t vector_ = 1, lanes_ = 1;  // of a row that is shared
};

/// The kernel of an op on lines.
class LineText {
  public:
    LineText(const LoweredOp& op, const Limits& limits)
        : op_(op),
          limits_(limits),
          name_(op.def->name),
          count_(element_count(y_.shape)),
          layout_(op) {}

    KernelText text() {
        text_.includes = {"lines.cuh"};
        text_.name = cat(name_, "_", dtype_abbrev(op_.inputs[0].dtype));
        if (count_ == 0)
            text_.blocks = 0;
        else if (name_.starts_with("ctc_paths"))
            ctc_paths();
        else
            along_axis();
        return text_;
    }

  private:
    int64_t blocks_for(int64_t threads) const {
        return std::min<int64_t>((threads + 255) / 256, int64_t{limits_.processors} * 64);
    }
    const char* flag(const char* attr) const { return yes_no(op_.attrs.flag(attr)); }

    /// The type of an operand on [times, members, states], or [members, states].
    static std::string states_of(const View& view) {
        const int last = view.shape.rank() - 1;
        return cat(", StatesOf<", last < 2 ? 0 : view.strides[0], ", ", view.strides[last - 1],
                   ", ", view.strides[last], ">");
    }
    /// A block a member of the batch.
    void ctc_paths() {
        const int64_t states = y_.shape[2];
        std::string operands;
        for (const View& view : op_.inputs) operands += states_of(view);
        operands += states_of(y_);
        text_.threads = static_cast<int>(std::min<int64_t>((states + 31) / 32 * 32, 256));
        text_.blocks = std::min<int64_t>(y_.shape[1], int64_t{limits_.processors} * 64);
        text_.body +=
            body_head(op_, layout_) +
            cat("    ", name_, "<", y_.shape[0], ", ", y_.shape[1], ", ", states, operands,
                ">(grid, y0", op_.inputs.size() == 2 ? ", x0, x1" : ", x0, x1, x2, x3", ");\n}\n");
    }

    void along_axis() {
        const int rank = y_.shape.rank();
        axis_ = name_ == "searchsorted" ? rank - 1 : static_cast<int>(op_.attrs.integer("axis"));
        if (name_.starts_with("scatter"))
            if (const SortedScatterText sorted(op_, limits_, axis_); sorted.fits())
                return sorted.write(text_);
        int64_t inner = 1;
        for (int d = axis_ + 1; d < rank; d++) inner *= y_.shape[d];
        const int64_t size = y_.shape[axis_];
        lines_ = count_ / size;
        n_ = op_.inputs[0].shape[axis_];
        each_ = cat("PlaceOf<", inner, ", ", size, ", ", count_, ">, ", count_, ", ", n_);
        for (size_t k = 0; k < op_.inputs.size(); k++)
            operands_ += line_of(text_.body, k == 0 ? "A" : "B", op_.inputs[k], axis_) + ", ";
        operands_ += line_of(text_.body, "Y", y_, axis_);
        call();
    }

    /// The call of a kernel: a thread takes an element of the result, or a line.
    void call() {
        const char* sums = sum_type(y_.dtype);
        if (name_ == "gather") return gather();
        if (name_ == "argsort") return argsort();
        if (name_ == "scatter_add")
            return elements(", x0, x1", sums, ", ", each_, ", ", kChainChunk);
        if (name_ == "scatter_last") return elements(", x0", each_);
        if (name_ == "searchsorted") return elements(", x0, x1", each_, ", ", flag("right"));
        if (name_ == "argsort_merge")
            return elements(", x0, x1", each_, ", ", op_.attrs.integer("run"), ", ",
                            flag("descending"));
        const std::string lines = cat(lines_, ", ", n_);
        if (name_ == "recurrence")
            return whole_lines(", x0, x1", sums, ", ", lines, ", ", flag("reverse"), ", ",
                               flag("lagged"));
        if (name_ == "cumprod") return whole_lines(", x0", sums, ", ", lines);
        whole_lines(", x0", lines, ", ", flag("smallest"));
    }
    template <class... Own>
    void elements(const std::string& given, const Own&... own) {
        launch(blocks_for(count_), given, own...);
    }
    template <class... Own>
    void whole_lines(const std::string& given, const Own&... own) {
        launch(blocks_for(lines_), given, own...);
    }
    /// `own`: the template arguments before the operands; `given`: what comes after the result.
    template <class... Own>
    void launch(int64_t blocks, const std::string& given, const Own&... own) {
        text_.blocks = blocks;
        text_.body += cat(body_head(op_, layout_, name_ == "gather"), "    ", name_, "<", own...,
                          ", ", operands_, ">(grid, y0", given, ");\n}\n");
    }

    void gather() {
        const bool zero = op_.attrs.flag("zero") || !is_float(y_.dtype);
        const int lots = lots_of(count_, limits_.processors);
        launch(
            std::min<int64_t>((count_ + 256 * lots - 1) / (256 * lots), INT32_MAX),
            cat(", x0, block.ptr<const ", cuda_type(op_.inputs[1].dtype), ">(", layout_.operand[1],
                "), ", element_literal(y_.dtype, zero ? 0.0 : __builtin_nan(""))),
            each_, ", ", lots);
    }

    /// A block a run of a line.
    void argsort() {
        int width = 2;
        while (width < std::min(n_, kSortRun)) width *= 2;
        text_.shared = static_cast<uint32_t>(12 * width);
        launch(std::min<int64_t>(lines_ * ((n_ + kSortRun - 1) / kSortRun),
                                 int64_t{limits_.processors} * 64),
               ", x0", lines_, ", ", n_, ", ", width, ", ", flag("descending"));
    }

    const LoweredOp& op_;
    const Limits& limits_;
    const std::string& name_;
    const View& y_ = op_.outputs[0];
    const int64_t count_;
    const BlockLayout layout_;
    int axis_ = 0;
    int64_t lines_ = 0, n_ = 0;
    std::string each_;      // template arguments of kernels that take elements of the result
    std::string operands_;  // and those of lines
    KernelText text_;
};

}  // namespace

bool is_line_op(const LoweredDef& def) {
    return std::find(std::begin(kLineOps), std::end(kLineOps), def.name) != std::end(kLineOps);
}

KernelText line_text(const LoweredOp& op, const Limits& limits) {
    return LineText(op, limits).text();
}

}  // namespace aicf::cuda
