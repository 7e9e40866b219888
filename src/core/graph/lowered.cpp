// Views, the lowering context, and the verifier of lowered lists.
#include <algorithm>
#include <map>

#include "core/base/interrupt.h"
#include "core/graph/op.h"

namespace aicf {

// ---- views -------------------------------------------------------------------------------------

bool View::whole(const Type& type) const {
    return offset == 0 && dtype == type.dtype && is_contiguous(shape, strides) &&
           element_count(shape) == element_count(type.shape);
}

View whole_view(const Value& value) {
    return {value.id, value.type.dtype, value.type.shape, contiguous_strides(value.type.shape), 0};
}

View broadcast_view(const View& view, const Dims& shape) {
    View result = view;
    result.shape = shape;
    result.strides = Dims(shape.rank(), 0);
    const int extra = shape.rank() - view.shape.rank();
    for (int i = 0; i < view.shape.rank(); i++)
        if (view.shape[i] == shape[i + extra]) result.strides[i + extra] = view.strides[i];
    return result;
}

View permute_view(const View& view, const std::vector<int64_t>& axes) {
    View result = view;
    for (int i = 0; i < view.shape.rank(); i++) {
        result.shape[i] = view.shape[static_cast<int>(axes[i])];
        result.strides[i] = view.strides[static_cast<int>(axes[i])];
    }
    return result;
}

View transpose_view(const View& view, int a, int b) {
    View result = view;
    std::swap(result.shape[a], result.shape[b]);
    std::swap(result.strides[a], result.strides[b]);
    return result;
}

std::optional<View> reshape_view(const View& view, const Dims& shape) {
    View result = view;
    result.shape = shape;
    result.strides = contiguous_strides(shape);
    if (element_count(shape) == 0 || is_contiguous(view.shape, view.strides)) return result;
    // Coalesce adjacent axes, then split each coalesced axis into the new sizes.
    std::vector<std::pair<int64_t, int64_t>> runs;  // (size, stride)
    for (int i = 0; i < view.shape.rank(); i++) {
        if (view.shape[i] == 1) continue;
        if (!runs.empty() && runs.back().second == view.shape[i] * view.strides[i])
            runs.back() = {runs.back().first * view.shape[i], view.strides[i]};
        else
            runs.push_back({view.shape[i], view.strides[i]});
    }
    size_t run = 0;
    int64_t left = runs.empty() ? 1 : runs[0].first;
    for (int i = 0; i < shape.rank(); i++) {
        if (shape[i] == 1) continue;
        if (left == 1) left = runs[++run].first;
        if (left % shape[i]) return std::nullopt;
        left /= shape[i];
        result.strides[i] = left * runs[run].second;
    }
    return result;
}

std::string chain_order(int64_t chunk) { return cat("chain(", chunk, ")"); }

// ---- what a rule sees --------------------------------------------------------------------------

LowerContext::LowerContext(Lowered& lowered, const Graph& graph, const Node& node,
                           std::vector<char>& used, const Mode& mode)
    : lowered_(lowered), graph_(graph), node_(node), used_(used), mode_(mode) {}

View LowerContext::out(int i) const { return lowered_.views[node_.outputs[i]]; }

ValueId append_value(Lowered& lowered, const Type& type, const std::string& name) {
    Value value;
    value.id = static_cast<ValueId>(lowered.values.size());
    value.name = name;
    value.type = type;
    lowered.values.push_back(value);
    lowered.views.push_back(whole_view(value));
    return value.id;
}

View LowerContext::temp(const Type& type, const std::string& name) {
    return lowered_.views[append_value(lowered_, type, name)];
}

View LowerContext::copy_of(const View& view) {
    const View packed = temp({view.dtype, view.shape}, "packed");
    op("copy", {view}, {packed});
    return packed;
}

void LowerContext::op(const std::string& name, std::vector<View> inputs, std::vector<View> outputs,
                      const Attrs& attrs) {
    const LoweredDef* def = find_lowered(name);
    if (!def) raise(ErrorKind::internal, "lower: ", node_.op_name, " lowers to unknown op ", name);
    for (int position : def->contiguous)
        if (position < static_cast<int>(inputs.size()))
            if (View& view = inputs[position]; !is_contiguous(view.shape, view.strides))
                view = copy_of(view);
    lowered_.ops.push_back({def, std::move(inputs), std::move(outputs),
                            complete_attrs(def->attrs, attrs, def->name),
                            node_.given >= 0 ? node_.given : node_.id});
}

Lowered LowerContext::body(const Graph& graph) const {
    return mode_.lower(graph, mode_.math, mode_.tensor_cores);
}

View LowerContext::constant(const Value& like) {
    const View view = temp(like.type, like.name);
    Value& value = lowered_.values[view.value];
    value.role = Role::constant;
    value.init = like.init;
    return view;
}

void LowerContext::loop(std::shared_ptr<const Lowered> body, std::vector<View> inputs,
                        std::vector<View> outputs, const Attrs& attrs) {
    for (View& view : inputs)
        if (!is_contiguous(view.shape, view.strides)) view = copy_of(view);
    op("loop", std::move(inputs), std::move(outputs), attrs);
    lowered_.ops.back().loop = std::move(body);
}

// ---- the list's checks -------------------------------------------------------------------------

namespace {

/// A part of a value written by one op: columns [at, end) of all rows, which have `row` elements.
struct Part {
    int64_t row, at, end;
};
std::optional<Part> part_of(const View& view, const Type& type) {
    const int64_t all = element_count(type.shape), count = element_count(view.shape);
    if (view.dtype != type.dtype || view.offset < 0 || count == 0) return std::nullopt;
    std::vector<std::pair<int64_t, int64_t>> runs;  // (stride, size)
    for (int d = 0; d < view.shape.rank(); d++) {
        if (view.strides[d] < 0) return std::nullopt;
        if (view.shape[d] > 1) runs.emplace_back(view.strides[d], view.shape[d]);
    }
    std::sort(runs.begin(), runs.end());
    std::vector<std::pair<int64_t, int64_t>> merged = {{1, 1}};
    for (const auto& [stride, size] : runs) {
        int64_t reach = 0;
        if (__builtin_mul_overflow(merged.back().first, merged.back().second, &reach) ||
            stride < reach)
            return std::nullopt;
        if (stride == reach)
            merged.back().second *= size;
        else
            merged.emplace_back(stride, size);
    }
    if (merged.size() > 2) return std::nullopt;
    const int64_t row = merged.size() == 2 ? merged[1].first : all,
                  rows = merged.size() == 2 ? merged[1].second : 1;
    if (all % rows != 0 || all / rows != row || view.offset > row - merged[0].second)
        return std::nullopt;
    return Part{row, view.offset, view.offset + merged[0].second};
}

/// The disjoint parts of a value written so far.
class Written {
  public:
    /// False if it overlaps another.
    bool add(const Part& part) {
        if (parts_.empty()) row_ = part.row;
        const auto behind = parts_.lower_bound(part.at);
        if (part.row != row_ || (behind != parts_.end() && behind->first < part.end) ||
            (behind != parts_.begin() && std::prev(behind)->second > part.at))
            return false;
        parts_.emplace(part.at, part.end);
        count_ += part.end - part.at;
        return true;
    }
    bool whole() const { return count_ == row_; }

  private:
    int64_t row_ = 0, count_ = 0;
    std::map<int64_t, int64_t> parts_;  // end by begin, disjoint
};

class LoweredVerifier {
  public:
    explicit LoweredVerifier(const Lowered& lowered)
        : lowered_(lowered), defined_(lowered.values.size(), 0) {
        for (const Value& value : lowered.values) defined_[value.id] = value.role != Role::temp;
    }

    Report report() {
        for (at_ = 0; at_ < lowered_.ops.size(); at_++) {
            poll();
            const LoweredOp& op = lowered_.ops[at_];
            check_reads(op);
            for (const View& view : op.outputs) check_write(view);
            check_types(op);
        }
        check_ends();
        if (report_.ok())
            report_.pass("lowered", cat("list OK: ", lowered_.ops.size(),
                                        " ops, single writer, use after define, types"));
        return std::move(report_);
    }

  private:
    void fail(const std::string& text) {
        report_.fail("lowered", cat("op ", at_, " ", lowered_.ops[at_].def->name, ": ", text));
    }
    void check_reads(const LoweredOp& op) {
        for (const View& view : op.inputs)
            if (!defined_[view.value]) fail(cat("reads %", view.value, " before any op wrote it"));
    }
    /// A value is written whole by one op, or in disjoint parts by several.
    void check_write(const View& view) {
        const Type& type = lowered_.values[view.value].type;
        if (defined_[view.value])
            fail(cat("writes %", view.value, ", which has a writer or is a leaf"));
        if (view.whole(type)) {
            defined_[view.value] = 1;
            if (parts_.contains(view.value))
                fail(cat("writes %", view.value, ", of which another op writes a part"));
            return;
        }
        const std::optional<Part> part = part_of(view, type);
        Written& written = parts_[view.value];
        if (!part || !written.add(*part))
            fail(cat("writes elements of %", view.value, " from ", view.offset, " by ",
                     to_string(view.strides),
                     "; need a part of each of its rows that nobody else writes"));
        defined_[view.value] = part && written.whole();
    }
    void check_types(const LoweredOp& op) {
        try {
            const std::vector<Type> types = infer_lowered(op);
            for (size_t k = 0; k < op.outputs.size(); k++)
                if (k >= types.size() || types[k].dtype != op.outputs[k].dtype ||
                    element_count(types[k].shape) != element_count(op.outputs[k].shape))
                    fail(cat("output ", k, " is ",
                             type_string(op.outputs[k].dtype, op.outputs[k].shape), "; need ",
                             k < types.size() ? to_string(types[k]) : "no such output"));
        } catch (const Error& error) {
            fail(error.what());
        }
    }
    void check_ends() {
        for (const Assign& assign : lowered_.assigns)
            if (!defined_[assign.source])
                report_.fail("lowered", cat("assign %", assign.target, " = %", assign.source,
                                            ": nothing writes the source"));
        for (const Lowered::Output& output : lowered_.outputs)
            if (!defined_[output.value])
                report_.fail("lowered", cat("output \"", output.name, "\" is %", output.value,
                                            ", which nothing writes"));
    }

    const Lowered& lowered_;
    Report report_;
    size_t at_ = 0;              // the op that is checked
    std::vector<char> defined_;  // by value, whether all of it is written
    std::map<ValueId, Written> parts_;
};

}  // namespace

Report verify(const Lowered& lowered) { return LoweredVerifier(lowered).report(); }

}  // namespace aicf
