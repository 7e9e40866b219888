// Prepares fusion: pointwise ops take the shape of the product they read, and upcasts are cloned
// for each reader.
#include <algorithm>
#include <map>

#include "core/compile/group.h"
#include "core/graph/region.h"

namespace aicf {

namespace {

bool contiguous(const View& view) { return is_contiguous(view.shape, view.strides); }

/// A cast from 16 bits to float32: exact and cheap, so it may be rematerialised.
bool is_upcast(const LoweredOp& op) {
    return op.def->name == "cast" && op.body.empty() && is_16_bit(op.inputs[0].dtype) &&
           op.outputs[0].dtype == DType::f32;
}

/// Ops that can have pointwise prologues.
bool accepts_prologue(const LoweredOp& op) {
    return op.members.empty() && !op.loop &&
           (op.def->pointwise || op.def->streams || !op.def->rows.empty() || op.def->optimizer);
}

/// By value, the ops that read it, ascending, each once.
std::vector<std::vector<int>> readers_of(const Lowered& lowered) {
    std::vector<std::vector<int>> readers(lowered.values.size());
    for (int i = 0; i < static_cast<int>(lowered.ops.size()); i++)
        for (const View& view : lowered.ops[static_cast<size_t>(i)].inputs)
            if (auto& list = readers[static_cast<size_t>(view.value)];
                list.empty() || list.back() != i)
                list.push_back(i);
    return readers;
}

void replace_operand(LoweredOp& op, ValueId from, ValueId to) {
    for (View& view : op.inputs)
        if (view.value == from) view.value = to;
}

}  // namespace

void adopt_product_shapes(Lowered& lowered, const Target& target) {
    struct Made {
        const View* view = nullptr;  // as a product or its epilogue writes it
        size_t product = 0;
        bool widened = false;
    };
    const auto readers = readers_of(lowered);
    std::vector<Made> made(lowered.values.size());
    for (size_t at = 0; at < lowered.ops.size(); at++) {
        LoweredOp& op = lowered.ops[at];
        if (op.def->gemm && op.body.empty()) {
            made[static_cast<size_t>(op.outputs[0].value)] = {&op.outputs[0], at};
            continue;
        }
        if (!op.def->pointwise || op.outputs.size() != 1 || op.def->name == "copy") continue;
        View& out = op.outputs[0];
        Made like;
        for (const View& view : op.inputs)
            if (const Made& from = made[static_cast<size_t>(view.value)]; from.view && !like.view)
                like = from;
        if (!like.view) continue;
        const bool widens = is_upcast(op) && target.adds_wide(lowered.ops[like.product]) &&
                            makes_stored_sum(op, lowered.ops, readers);
        const bool whole =
            contiguous(out) && std::all_of(op.inputs.begin(), op.inputs.end(), [&](const View& v) {
                return contiguous(v) && element_count(v.shape) == element_count(out.shape) &&
                       (widens || dtype_size(v.dtype) >= dtype_size(out.dtype));
            });
        const Dims shape = like.view->shape, strides = like.view->strides;
        if (whole && !(shape == out.shape) && contiguous(*like.view) &&
            element_count(shape) == element_count(out.shape))
            for (auto* views : {&op.inputs, &op.outputs})
                for (View& view : *views) view.shape = shape, view.strides = strides;
        if (shape == out.shape && !like.widened)
            made[static_cast<size_t>(out.value)] = {&out, like.product, widens};
    }
}

void clone_upcasts(Lowered& lowered) {
    std::vector<char> kept(lowered.values.size(), 0);
    for (const Lowered::Output& output : lowered.outputs)
        kept[static_cast<size_t>(output.value)] = 1;
    for (const Assign& assign : lowered.assigns) kept[static_cast<size_t>(assign.source)] = 1;
    const auto readers = readers_of(lowered);
    std::vector<std::vector<LoweredOp>> before(lowered.ops.size());  // by op: its clones
    for (size_t i = 0; i < lowered.ops.size(); i++) {
        poll();
        const LoweredOp op = lowered.ops[i];  // a copy: append_value moves the values
        if (!is_upcast(op)) continue;
        const ValueId made = op.outputs[0].value;
        const std::vector<int>& all = readers[static_cast<size_t>(made)];
        const auto fusable = [&](int reader) {
            return accepts_prologue(lowered.ops[static_cast<size_t>(reader)]);
        };
        // One reader keeps the original cast: preferably an update, since param_grads names its
        // gradient.
        int keeper = -1;
        if (!kept[static_cast<size_t>(made)] && !all.empty() &&
            std::all_of(all.begin(), all.end(), fusable)) {
            const auto update = std::find_if(all.begin(), all.end(), [&](int reader) {
                return lowered.ops[static_cast<size_t>(reader)].def->optimizer;
            });
            keeper = update == all.end() ? all.front() : *update;
        }
        for (int reader : all) {
            if (!fusable(reader) || reader == keeper) continue;
            LoweredOp again = op;
            again.outputs[0].value =
                append_value(lowered, lowered.values[static_cast<size_t>(made)].type, "wide");
            replace_operand(lowered.ops[static_cast<size_t>(reader)], made, again.outputs[0].value);
            before[static_cast<size_t>(reader)].push_back(std::move(again));
        }
    }
    std::vector<LoweredOp> ops;
    for (size_t i = 0; i < lowered.ops.size(); i++) {
        for (LoweredOp& one : before[i]) ops.push_back(std::move(one));
        ops.push_back(std::move(lowered.ops[i]));
    }
    lowered.ops = std::move(ops);
}

void merge_upcasts(Lowered& lowered) {
    const auto readers = readers_of(lowered);
    std::map<ValueId, std::vector<const LoweredOp*>> known;  // by source
    std::vector<char> kept(lowered.values.size(), 0), gone(lowered.ops.size(), 0);
    for (const Lowered::Output& output : lowered.outputs)
        kept[static_cast<size_t>(output.value)] = 1;
    for (const Assign& assign : lowered.assigns) kept[static_cast<size_t>(assign.source)] = 1;
    for (const auto& [param, grad] : lowered.param_grads) kept[static_cast<size_t>(grad)] = 1;
    for (size_t i = 0; i < lowered.ops.size(); i++) {
        const LoweredOp& op = lowered.ops[i];
        if (!is_upcast(op)) continue;
        auto& casts = known[op.inputs[0].value];
        const auto same = std::find_if(casts.begin(), casts.end(), [&](const LoweredOp* other) {
            View out = other->outputs[0];
            out.value = op.outputs[0].value;
            return same_layout(op.inputs[0], other->inputs[0]) && same_layout(op.outputs[0], out) &&
                   op.outputs[0].shape == out.shape;
        });
        if (same == casts.end() || kept[static_cast<size_t>(op.outputs[0].value)]) {
            casts.push_back(&op);
            continue;
        }
        const ValueId from = op.outputs[0].value, to = (*same)->outputs[0].value;
        for (int reader : readers[static_cast<size_t>(from)])
            replace_operand(lowered.ops[static_cast<size_t>(reader)], from, to);
        gone[i] = 1;
    }
    size_t left = 0;
    for (size_t i = 0; i < lowered.ops.size(); i++)
        if (!gone[i]) {
            if (left != i) lowered.ops[left] = std::move(lowered.ops[i]);
            left++;
        }
    lowered.ops.resize(left);
}

}  // namespace aicf
