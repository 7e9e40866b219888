#include "kernels/cpu/fused_programs.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/program.h"

namespace aicf::cpu {

namespace {

/// Where the program begins; 0: some instruction does not exist.
uint32_t append_program(FusedPrograms& all, const Table& table, const LoweredOp& op,
                        const std::vector<ProgramStep>& steps, const ProgramSpace& space) {
    const std::vector<char> bytes = build_program(table, op, steps, space);
    if (bytes.empty()) return 0;
    all.programs.push_back(static_cast<uint32_t>(all.bytes.size()));
    all.bytes.insert(all.bytes.end(), bytes.begin(), bytes.end());
    return all.programs.back();
}

/// A reduction and the steps around it: a program makes the elements, unless they are an input, and
/// another takes the results.
class ReductionBuilder {
  public:
    ReductionBuilder(const Table& table, const LoweredOp& op)
        : table_(table),
          op_(op),
          at_(anchor_step(op)),
          reduction_(op.body[at_]),
          x_(op.operand(reduction_.inputs[0])),
          y_(op.operand(reduction_.outputs[0])),
          inputs_(static_cast<int>(op.inputs.size())) {}

    FusedPrograms build() {
        set_head();
        all_.bytes.resize(sizeof head_);
        if (head_.operand < 0 && !add_elements()) return {};
        if (!add_results()) return {};
        std::memcpy(all_.bytes.data(), &head_, sizeof head_);
        return std::move(all_);
    }

  private:
    bool is_reduced(int axis) const { return head_.axes >> axis & 1; }

    void set_head() {
        const int rank = x_.shape.rank(), made = reduction_.inputs[0];
        head_.results = element_count(y_.shape);
        head_.dtype = x_.dtype;
        head_.size = static_cast<int32_t>(dtype_size(x_.dtype));
        head_.reducer = *reducer_of(*reduction_.def);
        head_.operand = made < inputs_ ? made : -1;
        for (int64_t axis : reduction_.attrs.ints("axes"))
            head_.axes |= 1 << (axis < 0 ? axis + rank : axis);
        if (const Attr* order = reduction_.attrs.find("order"))
            if (const auto& text = std::get<std::string>(*order); text.starts_with("chain("))
                head_.chain = std::atoll(text.c_str() + 6);
        head_.n = 1;
        for (int d = 0; d < rank; d++)
            if (is_reduced(d)) head_.n *= x_.shape[d];
    }
    /// The axes of the elements, outermost first: those kept and then those reduced. Where
    /// neighbours lie along the last one kept, it comes last, and vectors run over results: the
    /// head's width says of how many.
    std::vector<int64_t> choose_axes(const std::vector<ProgramStep>& steps) {
        std::vector<const View*> read;
        for (int i = 0; i < inputs_; i++)
            if (reads(steps, i)) read.push_back(&op_.inputs[i]);
        std::vector<int64_t> axes, reduced;
        for (int d = 0; d < x_.shape.rank(); d++) (is_reduced(d) ? reduced : axes).push_back(d);
        const int fast = fast_axis(*largest_view(read));
        auto kept = std::ssize(axes);  // without trailing axes of one element
        while (kept > 0 && x_.shape[static_cast<int>(axes[kept - 1])] == 1) kept--;
        if (kept > 0 && axes[kept - 1] == fast && head_.n > 1) head_.width = x_.shape[fast];
        axes.insert(head_.width ? axes.begin() + kept - 1 : axes.end(), reduced.begin(),
                    reduced.end());
        return axes;
    }
    bool add_elements() {
        const std::vector<ProgramStep> steps = program_steps(op_, 0, at_);
        const std::vector<int64_t> axes = choose_axes(steps);
        std::vector<View> permuted(op_.inputs.size());
        std::vector<const View*> views(op_.inputs.size() + op_.outputs.size(), nullptr);
        for (int i = 0; i < inputs_; i++)
            if (reads(steps, i)) {
                permuted[i] = permute_view(op_.inputs[i], axes);
                views[i] = &permuted[i];
            }
        head_.elements =
            append_program(all_, table_, op_, steps,
                           {permute_view(x_, axes).shape, views, {reduction_.inputs[0]}, false});
        return head_.elements > 0;
    }
    bool add_results() {
        const std::vector<ProgramStep> steps = program_steps(op_, at_ + 1, op_.body.size());
        std::vector<const View*> views(op_.inputs.size() + op_.outputs.size(), nullptr);
        for (int i = 0; i < static_cast<int>(views.size()); i++)
            if (i >= inputs_ || reads(steps, i)) views[i] = &op_.operand(i);
        head_.taken = append_program(all_, table_, op_, steps,
                                     {y_.shape, views, {reduction_.outputs[0]}, true});
        return head_.taken > 0;
    }

    const Table& table_;
    const LoweredOp& op_;
    const size_t at_;
    const RegionStep& reduction_;
    const View &x_, &y_;
    const int inputs_;
    FusedReduce head_{};
    FusedPrograms all_;
};

/// A row op and the steps around it: a program makes what it reads, another takes what it writes.
class RowsBuilder {
  public:
    RowsBuilder(const Table& table, const LoweredOp& op)
        : table_(table),
          op_(op),
          at_(anchor_step(op)),
          row_(op.body[at_]),
          x_(op.operand(row_.inputs[row_.def->rows[0]])),
          inputs_(static_cast<int>(op.inputs.size())),
          outer_(inputs_ + static_cast<int>(op.outputs.size())),
          before_(program_steps(op, 0, at_)),
          after_(program_steps(op, at_ + 1, op.body.size())) {}

    FusedPrograms build() {
        head_.axis = row_axis(row_.attrs, x_.shape.rank());
        for (size_t i = 0; i < at_; i++)
            head_.scalars += static_cast<int32_t>(op_.body[i].def->attrs.size());
        head_.run = find_code();
        if (!head_.run || !hold_values()) return {};
        set_operands();
        all_.bytes.resize(sizeof head_);
        if (!add_program(before_, head_.before) || !add_program(after_, head_.after)) return {};
        std::memcpy(all_.bytes.data(), &head_, sizeof head_);
        return std::move(all_);
    }

  private:
    RowFn find_code() const {
        for (int i = 0; i < table_.kernel_count; i++)
            if (const CpuKernel& code = table_.kernels[i];
                row_.def->name == code.op && (code.dtypes & dtype_bit(x_.dtype)) && code.rows)
                return code.rows;
        return nullptr;
    }
    /// Whether a value passes between the programs and the row op; a result that the row op has one
    /// of a row does not.
    bool passes(int number) const {
        if (writes(before_, number) && (names(row_.inputs, number) || reads(after_, number)))
            return true;
        for (size_t k = 0; k < row_.outputs.size(); k++)
            if (row_.outputs[k] == number &&
                names(row_.def->rows, static_cast<int>(row_.inputs.size() + k)))
                return true;
        return false;
    }
    /// Values that pass and have no storage are held by the thread; false where it would hold too
    /// much.
    bool hold_values() {
        int64_t bytes = 0;  // of an element
        const int end = outer_ + static_cast<int>(op_.inner.size());
        for (int number = outer_; number < end; number++) {
            if (!passes(number)) continue;
            if (held_.size() == kMaxHeld) return false;
            const int64_t size = dtype_size(op_.operand(number).dtype);
            head_.size[held_.size()] = static_cast<int32_t>(size);
            bytes += size;
            held_.push_back(number);
        }
        head_.held = static_cast<int32_t>(held_.size());
        return bytes * x_.shape[head_.axis] <= kNearBytes;
    }
    void set_operands() {
        for (const auto* numbers : {&row_.inputs, &row_.outputs})
            for (int number : *numbers) {
                const auto at = std::find(held_.begin(), held_.end(), number) - held_.begin();
                head_.dtype[head_.operands] = op_.operand(number).dtype;
                head_.operand[head_.operands++] = number < outer_ ? number
                                                  : at < std::ssize(held_)
                                                      ? outer_ + static_cast<int>(at)
                                                      : -1;
            }
    }
    /// The rows' axis comes last.
    std::vector<int64_t> order_axes() const {
        std::vector<int64_t> axes;
        for (int d = 0; d < x_.shape.rank(); d++)
            if (d != head_.axis) axes.push_back(d);
        axes.push_back(head_.axis);
        return axes;
    }
    bool add_program(const std::vector<ProgramStep>& steps, uint32_t& begin) {
        if (steps.empty()) return true;
        const std::vector<int64_t> axes = order_axes();
        std::vector<View> permuted(static_cast<size_t>(outer_));
        std::vector<const View*> views(static_cast<size_t>(outer_), nullptr);
        for (int i = 0; i < outer_; i++)
            if (reads(steps, i) || writes(steps, i)) {
                permuted[i] = permute_view(op_.operand(i), axes);
                views[i] = &permuted[i];
                head_.like = i;
            }
        begin = append_program(all_, table_, op_, steps,
                               {permute_view(x_, axes).shape, views, held_, false});
        return begin > 0;
    }

    const Table& table_;
    const LoweredOp& op_;
    const size_t at_;
    const RegionStep& row_;
    const View& x_;
    const int inputs_, outer_;  // operands from outer_ on are a step's own
    const std::vector<ProgramStep> before_, after_;
    std::vector<int> held_;
    FusedRows head_{};
    FusedPrograms all_;
};

}  // namespace

FusedPrograms build_reduction(const Table& table, const LoweredOp& op) {
    return ReductionBuilder(table, op).build();
}
FusedPrograms build_rows(const Table& table, const LoweredOp& op) {
    return RowsBuilder(table, op).build();
}

}  // namespace aicf::cpu
