// Structural checks of a plan from an untrusted file, beyond type inference.
#include <algorithm>
#include <set>

#include "core/base/interrupt.h"
#include "core/compile/executable.h"
#include "core/compile/memory.h"
#include "core/graph/region.h"

namespace aicf {

namespace {

/// Thrown at the first fault.
struct Problem {
    std::string text;
};
template <class... Parts>
[[noreturn]] void fail(const Parts&... parts) {
    throw Problem{cat(parts...)};
}

void check_sizes(const Dims& shape, const std::string& what) {
    int64_t bytes = 16;
    for (int64_t size : shape)
        if (size < 0 || (size > 0 && __builtin_mul_overflow(bytes, size, &bytes)))
            fail(what, " has shape ", to_string(shape), ", negative or of more than 2**63 bytes");
}

class Structure {
  public:
    explicit Structure(const Plan& plan) : plan_(plan) {}

    void check() const {
        if (plan_.places.size() != plan_.values.size())
            fail("it has ", plan_.values.size(), " values and ", plan_.places.size(), " places");
        check_values();
        check_places();
        for (size_t i = 0; i < plan_.ops.size(); i++) {
            poll();
            const PlannedOp& planned = plan_.ops[i];
            const std::string where = cat("op ", i, " ", planned.op.def->name);
            check_op(planned.op, where, true);
            if ((planned.op.def == loop_def()) != (planned.body != nullptr))
                fail(where, " is a loop without a body, or a body without a loop");
            if (planned.body) check_loop(planned, where);
            if (planned.scratch < 0 || planned.scratch > kMostBytes || planned.counters < 0 ||
                planned.counters > kMostBytes)
                fail(where, " has scratch at ", planned.scratch, " and counters at ",
                     planned.counters, "; need offsets of at most ", kMostBytes);
            int last = -1;
            for (int wait : planned.waits) {
                if (wait <= last || wait >= static_cast<int>(i))
                    fail(where, " waits for op ", wait, "; need ops before it, ascending");
                last = wait;
            }
        }
        check_ends();
        for (const IndexUse& use : plan_.indices) {
            const std::string where = cat("what node ", use.node, " takes rows by");
            const Value& leaf = value(use.leaf, where);
            if ((!is_leaf(leaf) && leaf.role != Role::constant) || !is_integer(leaf.type.dtype) ||
                use.view.value != use.leaf || use.rows < 0)
                fail(where, " is %", use.leaf, ", one of ", use.rows,
                     " rows; need an input, param, state or constant of integers");
            check_view(use.view, where);
        }
    }

  private:
    bool exists(ValueId id) const {
        return id >= 0 && static_cast<size_t>(id) < plan_.values.size();
    }
    const Value& value(ValueId id, const std::string& where) const {
        if (!exists(id)) fail(where, " names %", id, "; there are ", plan_.values.size());
        return plan_.values[id];
    }

    void check_values() const {
        std::set<std::string_view> names;
        std::set<std::pair<ValueId, int>> moments;
        for (const Value& v : plan_.values) {
            const std::string what = cat(role_name(v.role), " %", v.id);
            check_sizes(v.type.shape, what);
            if (is_leaf(v) && (v.name.empty() || !names.insert(v.name).second))
                fail(what, " is named \"", v.name, "\", as another is, or not at all");
            const bool begins = v.role == Role::param || v.role == Role::state ||
                                (v.role == Role::constant && plan_.places[v.id].storage != kNone);
            if (begins) {
                if (const std::string problem = init_problem(v.init, v.type, v.role);
                    !problem.empty())
                    fail(what, " has ", problem);
            } else if (v.init.kind != Init::zeros) {
                fail(what, " has an initial content; need none");
            }
            if (v.moment_of == kNone) continue;
            if (v.role != Role::state || value(v.moment_of, what).role != Role::param ||
                !(plan_.values[v.moment_of].type == v.type) || v.moment_slot < 0 ||
                v.moment_slot > 7 || !moments.emplace(v.moment_of, v.moment_slot).second)
                fail(what, " is moment ", v.moment_slot, " of %", v.moment_of,
                     "; need a state, a param of its type, and a slot of its own");
        }
    }

    void check_places() const {
        for (int r = 0; r < kSegments; r++)
            if (plan_.segment_bytes[r] < 0 || plan_.segment_bytes[r] > kMostBytes)
                fail("region ", segment_name(static_cast<Segment>(r)), " has ",
                     plan_.segment_bytes[r], " bytes");
        for (const Value& v : plan_.values) {
            const Place& place = plan_.places[v.id];
            const std::string what = cat("%", v.id, " ", to_string(v.type));
            if (place.storage == kNone) {
                if (v.role != Role::temp && v.role != Role::constant)
                    fail(role_name(v.role), " ", what, " has no place");
                continue;
            }
            if (!exists(place.storage)) fail(what, " lies in %", place.storage);
            if (v.role != Role::temp && place.storage != v.id)
                fail(role_name(v.role), " ", what, " lies in %", place.storage,
                     "; need a place of its own");
            const Place& home = plan_.places[place.storage];
            const int64_t bytes = byte_count(v.type);
            if (home.storage != place.storage || home.segment != place.segment ||
                home.offset != place.offset || home.bytes != place.bytes || bytes > place.bytes ||
                (place.storage == v.id && bytes != place.bytes))
                fail(what, " has ", place.bytes, " bytes of %", place.storage, "; need ", bytes,
                     " where that lies");
            const bool elsewhere = place.offset == -1;
            const Role role = plan_.values[place.storage].role;
            if (elsewhere && role != Role::param && role != Role::state)
                fail(what, " lies in no region; need a param or a state");
            const int64_t end = plan_.segment_bytes[static_cast<int>(place.segment)];
            if (!elsewhere && (place.offset < 0 || place.offset % kArenaAlign != 0 ||
                               place.offset > end || place.bytes > end - place.offset))
                fail(what, " lies at ", place.offset, " of ", end, " bytes of ",
                     segment_name(place.segment));
        }
    }

    /// Checks that a view stays inside its value's storage.
    void check_view(const View& view, const std::string& where) const {
        const Value& v = value(view.value, where);
        if (view.dtype != v.type.dtype || view.shape.rank() != view.strides.rank())
            fail(where, " sees %", v.id, " ", to_string(v.type), " as ",
                 type_string(view.dtype, view.shape));
        check_sizes(view.shape, where);
        __int128 low = view.offset, high = view.offset;
        for (int d = 0; d < view.shape.rank(); d++) {
            const __int128 span = __int128{view.shape[d] - 1} * view.strides[d];
            (span < 0 ? low : high) += span;
        }
        const __int128 count = element_count(v.type.shape);
        const bool empty = element_count(view.shape) == 0;
        if (empty ? view.offset < 0 || view.offset > count : low < 0 || high >= count)
            fail(where, " sees elements of %", v.id, " ", to_string(v.type),
                 " that it does not have");
    }

    void check_attrs(const LoweredDef& def, const Attrs& attrs, const std::string& where) const {
        try {
            if (const Attrs whole = complete_attrs(def.attrs, attrs, def.name); !(whole == attrs))
                fail(where, " has attributes ", to_string(attrs), "; need ", to_string(whole));
        } catch (const Error& error) {
            fail(where, ": ", error.what());
        }
    }

    void check_arity(const std::vector<std::string>& names, size_t count,
                     const std::string& where) const {
        try {
            aicf::check_arity(names, count, where);
        } catch (const Error& error) {
            fail(error.what());
        }
    }

    void check_op(const LoweredOp& op, const std::string& where, bool outermost) const {
        const LoweredDef& def = *op.def;
        for (const View& view : op.inputs) {
            check_view(view, where);
            if (outermost) check_stored(view, where);
        }
        for (const View& view : op.outputs) {
            check_view(view, where);
            if (outermost) check_stored(view, where);
        }
        if (op.inputs.size() + op.outputs.size() == 0) fail(where, " has no operands");
        check_attrs(def, op.attrs, where);
        if (&def == loop_def() && !outermost) fail(where, " is in a group; need it alone");
        for (const LoweredOp& member : op.members)
            check_op(member, cat(where, ": member ", member.def->name), false);
        for (const View& view : op.inner) {
            const std::string inner = cat(where, ": an inner value");
            value(view.value, inner);
            check_sizes(view.shape, inner);
            if (view.shape.rank() != view.strides.rank())
                fail(inner, " has strides of another rank");
        }
        const bool sequence = is_one_block(op);
        if (op.body.empty() == (&def == region_def()) ||
            op.members.empty() == (&def == group_def() || &def == chain_def() || sequence))
            fail(where, " has ", op.body.size(), " steps and ", op.members.size(),
                 " members; need one of them for an op that is nothing else, none for others");
        if (op.body.empty() && !sequence && &def != chain_def() && !op.inner.empty())
            fail(where, " has inner values and no steps");
        if (&def == sequence_def()) check_sequence(op, where);
        if (&def == block_loop_def()) check_block_loop(op, where);
        if (&def == chain_def() && !row_chain(op) && !loss_chain(op))
            fail(where, " has members that are no products of the same rows, nor losses and their ",
                 "mean; need one of these");
        if (&def == chain_def()) check_inferred(op, where);
        if (!op.members.empty() || &def == loop_def()) return;
        if (op.body.empty())
            check_step(def, op.inputs, op.outputs, where);
        else
            check_body(op, where);
    }

    /// Sequences read and write whole values.
    void check_sequence(const LoweredOp& op, const std::string& where) const {
        std::set<ValueId> known;
        for (const auto* views : {&op.inputs, &op.outputs, &op.inner})
            for (const View& view : *views)
                if (!view.whole(value(view.value, where).type) || !known.insert(view.value).second)
                    fail(where, " names %", view.value, " in part or twice");
        check_inferred(op, where);
    }
    void check_inferred(const LoweredOp& op, const std::string& where) const {
        try {
            infer_lowered(op);
        } catch (const Error& error) {
            fail(where, ": ", error.what());
        }
    }

    /// A block_loop's inner values are whole and distinct.
    void check_block_loop(const LoweredOp& op, const std::string& where) const {
        std::set<ValueId> known;
        for (const auto* views : {&op.inputs, &op.outputs})
            for (const View& view : *views) known.insert(view.value);
        for (const View& view : op.inner)
            if (!view.whole(value(view.value, where).type) || !known.insert(view.value).second)
                fail(where, " names %", view.value, " in part or twice");
        check_inferred(op, where);
    }

    void check_stored(const View& view, const std::string& where) const {
        if (plan_.places[view.value].storage == kNone)
            fail(where, " names %", view.value, ", which has no place");
    }

    /// A loop body: operands and results have distinct storage, and no value has initial content.
    void check_loop(const PlannedOp& planned, const std::string& where) const {
        const Plan& body = *planned.body;
        if (const std::string problem = structure_problem(body); !problem.empty())
            fail(where, ": ", problem);
        const LoopShape shape(planned.op.attrs);
        constexpr int64_t kMostTurns = 1 << 24;
        if (shape.turns < 1 || shape.turns > kMostTurns || shape.carries < 0 ||
            static_cast<size_t>(shape.carries) > body.outputs.size())
            fail(where, " has ", shape.turns, " turns and ", shape.carries, " carries");
        for (const Value& v : body.values)
            if (v.role == Role::param || v.role == Role::state || v.role == Role::ring ||
                (v.role == Role::constant && body.places[v.id].storage != kNone))
                fail(where, ": a turn has ", role_name(v.role), " %", v.id);
        std::set<ValueId> results;
        for (const Lowered::Output& output : body.outputs)
            if (body.values[output.value].role != Role::temp || output.keep != 1 ||
                body.places[output.value].segment != Segment::outputs ||
                !results.insert(body.places[output.value].storage).second)
                fail(where, ": result %", output.value, " has no place of its own");
    }

    /// Preconditions of kernels on operands.
    void check_step(const LoweredDef& def, const std::vector<View>& inputs,
                    const std::vector<View>& outputs, const std::string& where) const {
        check_arity(def.inputs, inputs.size(), where);
        check_arity(def.outputs, outputs.size(), where);
        const auto at = [&](size_t i) -> const View& {
            return i < inputs.size() ? inputs[i] : outputs[i - inputs.size()];
        };
        for (int position : def.contiguous)
            if (const auto i = static_cast<size_t>(position);
                i < inputs.size() + outputs.size() && !is_contiguous(at(i).shape, at(i).strides))
                fail(where, ": operand ", i, " has strides ", to_string(at(i).strides),
                     "; need C order");
        if (def.pointwise)
            for (size_t i = 0; i < inputs.size() + outputs.size(); i++)
                if (!(at(i).shape == outputs[0].shape))
                    fail(where, ": operand ", i, " has shape ", to_string(at(i).shape), "; need ",
                         to_string(outputs[0].shape));
    }

    void check_body(const LoweredOp& op, const std::string& where) const {
        if (op.inputs.empty() || op.outputs.empty()) fail(where, " has no inputs, or no outputs");
        const size_t count = op.inputs.size() + op.outputs.size() + op.inner.size();
        if (count > kMostOperands || op.body.size() > kMostSteps)
            fail(where, " has ", count, " operands and ", op.body.size(), " steps; need at most ",
                 kMostOperands);
        if (op.def != region_def()) fail(where, " has a body; need a region");
        for (const RegionStep& step : op.body) {
            const std::string at = cat(where, ": step ", step.def->name);
            if (step.def == region_def() || step.def == group_def() || step.def == chain_def() ||
                step.def == sequence_def())
                fail(at, " has no body; need another op");
            check_attrs(*step.def, step.attrs, at);
            std::vector<View> views[2];
            for (int which = 0; which < 2; which++)
                for (int number : which == 0 ? step.inputs : step.outputs) {
                    if (number < 0 || static_cast<size_t>(number) >= count)
                        fail(at, " names operand ", number, "; there are ", count);
                    views[which].push_back(op.operand(number));
                }
            check_step(*step.def, views[0], views[1], at);
        }
        if (anchor(op).optimizer) return check_update(op, where);
        if (loss_region(op) || tail_region(op)) return;
        const size_t core = anchor_step(op);
        for (size_t i = 0; i < op.body.size(); i++)
            if (i != core && !op.body[i].def->pointwise &&
                !(i + 1 == op.body.size() && update_region(op)))
                fail(where, ": step ", op.body[i].def->name,
                     " is not pointwise; need one such step at most, of tensors");
        const LoweredDef* of = core < op.body.size() ? op.body[core].def : nullptr;
        if (of && !of->gemm && !of->streams && of->rows.empty())
            fail(where, " is around ", of->name,
                 "; need a product, a reduction, an op on rows or updates");
        if (!of)
            check_shapes(op, 0, op.outputs[0].shape, where);
        else if (of->gemm)
            check_product(op, where);
        else
            check_around(op, core, where);
    }

    /// Whether an operand is a number of an update behind another op.
    static bool update_number(const LoweredOp& op, int operand) {
        if (!updates_behind(op)) return false;
        const std::vector<int>& inputs = op.body.back().inputs;
        return std::find(inputs.begin() + op.body.back().def->numbers, inputs.end(), operand) !=
               inputs.end();
    }

    /// A pointwise region: all steps and outputs have one shape, but for an update's numbers.
    void check_shapes(const LoweredOp& op, size_t first, const Dims& shape,
                      const std::string& where) const {
        const size_t inputs = op.inputs.size();
        for (size_t i = first; i < inputs + op.outputs.size() + op.inner.size(); i++)
            if (const View& view = op.operand(static_cast<int>(i));
                !(view.shape == shape) && !update_number(op, static_cast<int>(i)))
                fail(where, ": operand ", i, " has shape ", to_string(view.shape), "; need ",
                     to_string(shape));
    }

    void check_product(const LoweredOp& op, const std::string& where) const {
        if (!product_region(op) && !widened_product(op))
            fail(where, " is no region of a product; need it first, of operands 0 and 1, which no ",
                 "other step reads, its dtype that of the first output unless updates or a wider "
                 "sum follow, and "
                 "no step that reads it ",
                 "behind the one that writes that output");
        const Dims& shape = op.operand(op.body[0].outputs[0]).shape;
        check_shapes(op, 2, shape, where);
        if (!plain_product(op.inputs[0], op.inputs[1], shape))
            fail(where, " has a product of shape ", to_string(shape), ", unlike its factors");
    }

    /// An anchored region: prologue steps feed the anchor, epilogue steps read its results.
    void check_around(const LoweredOp& op, size_t core, const std::string& where) const {
        const RegionStep& step = op.body[core];
        const int inputs = static_cast<int>(op.inputs.size()),
                  outer = inputs + static_cast<int>(op.outputs.size());
        const bool streams = step.def->streams;
        const auto has = [](const std::vector<int>& list, int number) {
            return std::find(list.begin(), list.end(), number) != list.end();
        };
        const auto elements = [&](size_t position) {
            return streams ? position == 0 : has(step.def->rows, static_cast<int>(position));
        };
        const size_t first = streams ? 0 : static_cast<size_t>(step.def->rows[0]);
        if (first >= step.inputs.size()) fail(where, " has no elements");
        const Dims& before = op.operand(step.inputs[first]).shape;
        const Dims& behind = streams ? op.operand(step.outputs[0]).shape : before;
        std::set<int> made;  // by the prologue
        for (size_t s = 0; s < op.body.size(); s++) {
            if (s == core) continue;
            for (const auto* numbers : {&op.body[s].inputs, &op.body[s].outputs})
                for (int number : *numbers)
                    if (!(op.operand(number).shape == (s < core ? before : behind)) &&
                        !update_number(op, number))
                        fail(where, ": operand ", number, " has shape ",
                             to_string(op.operand(number).shape), "; need ",
                             to_string(s < core ? before : behind));
            if (s < core)
                for (int number : op.body[s].outputs) {
                    made.insert(number);
                    if (streams && number < outer)
                        fail(where, ": a step before the reduction writes an output");
                }
            else if (streams)
                for (int number : op.body[s].inputs)
                    if (made.contains(number)) fail(where, ": elements are read after them");
        }
        for (size_t k = 0; k < step.inputs.size(); k++) {
            const int number = step.inputs[k];
            if (made.contains(number) && !elements(k))
                fail(where, ": a step makes operand ", k, " of ", step.def->name,
                     ", which is none of its elements");
        }
        if (streams && (core > 0) != made.contains(step.inputs[0]))
            fail(where, ": the steps before the reduction do not make its elements");
        if (streams && step.inputs[0] >= inputs && core == 0)
            fail(where, ": nothing makes the elements of the reduction");
        for (size_t k = 0; k < step.outputs.size(); k++)
            for (size_t s = core + 1; s < op.body.size(); s++)
                if (!streams && has(op.body[s].inputs, step.outputs[k]) &&
                    !elements(step.inputs.size() + k))
                    fail(where, ": a step takes a result that ", step.def->name,
                         " has one a row of");
        for (int number = outer; number < outer + static_cast<int>(op.inner.size()); number++)
            for (size_t k = 0; k < step.outputs.size(); k++)
                if (!streams && step.outputs[k] == number && elements(step.inputs.size() + k) &&
                    !(op.operand(number).shape == before))
                    fail(where, ": a result that is held has another shape");
    }

    /// Whether a cast or a sum of two parts makes a gradient from operands; a cast, too, from a sum
    /// of cuts, which it rounds to 16 bits, and from that.
    static bool makes_gradient(const LoweredOp& op, const RegionStep& step,
                               const std::set<int>& made, const std::set<int>& sums) {
        const int outer = static_cast<int>(op.inputs.size() + op.outputs.size());
        const bool cast = step.def->name == "cast";
        const View& to = op.operand(step.outputs[0]);
        const auto reads = [&](int number) {
            const View& view = op.operand(number);
            const bool there = number < outer || (cast ? sums : made).contains(number);
            return there && (cast || !sums.contains(number)) &&
                   is_contiguous(view.shape, view.strides) &&
                   element_count(view.shape) == element_count(to.shape);
        };
        const bool narrow = is_16_bit(op.operand(step.inputs[0]).dtype),
                   rounds = sums.contains(step.inputs[0]) && is_16_bit(to.dtype);
        return step.outputs[0] >= outer && is_contiguous(to.shape, to.strides) &&
               std::all_of(step.inputs.begin(), step.inputs.end(), reads) &&
               (!cast || narrow != rounds);
    }

    /// An optimizer region: tensor updates, what makes their gradients (upcasts, sums of two parts,
    /// or of cuts, which may be rounded to 16 bits), and shared scalar steps.
    void check_update(const LoweredOp& op, const std::string& where) const {
        const int outer = static_cast<int>(op.inputs.size() + op.outputs.size());
        std::set<int> made, sums;  // sums: of cuts, and what they are cast to
        for (const RegionStep& step : op.body) {
            const std::string at = cat(where, ": step ", step.def->name);
            const bool cuts = step.def->name == "reduce_sum", cast = step.def->name == "cast";
            if (cuts || cast || step.def->name == "add") {
                const int from = step.inputs[0];
                if (!(cuts ? adds_cuts(op, step) : makes_gradient(op, step, made, sums)) ||
                    !made.insert(step.outputs[0]).second)
                    fail(at, " is beside updates; need one of a gradient",
                         cuts   ? "'s cuts [cuts, elements] in float32"
                         : cast ? " in 16 bits"
                                : "",
                         ", in C order");
                if (cuts || (cast && sums.contains(from))) sums.insert(step.outputs[0]);
                continue;
            }
            if (!step.def->optimizer) fail(at, " is beside updates; need one of an optimizer");
            const auto inputs = static_cast<int>(step.inputs.size());
            const int numbers = step.def->numbers;
            for (int k = 0; k < inputs + static_cast<int>(step.outputs.size()); k++) {
                const int number = k < inputs ? step.inputs[k] : step.outputs[k - inputs];
                const View& view = op.operand(number);
                const bool tensor = numbers > 0 && (k >= inputs || k < numbers);
                const bool grad = k == kGradient && numbers > 0 && made.contains(number);
                if (tensor
                        ? (number >= outer && !grad) || !is_contiguous(view.shape, view.strides) ||
                              element_count(view.shape) !=
                                  element_count(op.operand(step.outputs[0]).shape)
                        : view.shape.rank() != 0)
                    fail(at, ": operand ", k, " is ", type_string(view.dtype, view.shape),
                         "; need ", tensor ? "a tensor as the others, in C order" : "a number");
            }
        }
    }

    void check_ends() const {
        std::set<std::string_view> names;
        for (const Lowered::Output& output : plan_.outputs) {
            const std::string what = cat("output \"", output.name, "\"");
            const Value& v = value(output.value, what);
            if (!names.insert(output.name).second || output.keep < 1)
                fail(what, " is named twice or keeps ", output.keep, " steps");
            if (plan_.places[v.id].storage == kNone) fail(what, " has no place");
            const bool ring = output.keep > 1;
            if (ring ? output.ring != output.value || v.role != Role::ring ||
                           v.type.shape.rank() == 0 || v.type.shape[0] != output.keep ||
                           !(value(output.position, what).type == Type{DType::i64, {}}) ||
                           plan_.values[output.position].role != Role::ring
                     : output.ring != kNone || output.position != kNone)
                fail(what, " keeps ", output.keep, " steps in %", output.ring, " at %",
                     output.position);
        }
        std::set<ValueId> targets;
        for (const Assign& assign : plan_.assigns) {
            const std::string what = cat("assign %", assign.target, " = %", assign.source);
            const Value &to = value(assign.target, what), &from = value(assign.source, what);
            if ((to.role != Role::param && to.role != Role::state && to.role != Role::ring) ||
                from.role != Role::temp || plan_.places[from.id].storage != to.id ||
                byte_count(to.type) != byte_count(from.type) || !targets.insert(to.id).second)
                fail(what, ": need a value that lies where a param or state does, once");
        }
    }

    const Plan& plan_;
};

}  // namespace

std::string structure_problem(const Plan& plan) {
    try {
        Structure(plan).check();
    } catch (const Problem& problem) {
        return problem.text;
    }
    return "";
}

}  // namespace aicf
