// Composite ops: regions and sequences, whose parts depend on each other, and groups of independent
// members.
#include "core/graph/region.h"

#include <algorithm>
#include <map>
#include <set>

#include "core/graph/text.h"

namespace aicf {

namespace {

std::vector<Type> infer_body(const InferContext& c) {
    raise(ErrorKind::graph, c.where(), ": it has no body; need the steps it computes");
}

}  // namespace

void define_regions() {
    define(
        LoweredDef{.name = "region", .inputs = {"xs*"}, .outputs = {"ys*"}, .infer = infer_body});
    define(LoweredDef{.name = "group", .inputs = {"xs*"}, .outputs = {"ys*"}, .infer = infer_body});
    define(LoweredDef{.name = "chain", .inputs = {"xs*"}, .outputs = {"ys*"}, .infer = infer_body});
    define(
        LoweredDef{.name = "sequence",
                   .inputs = {"xs*"},
                   .outputs = {"ys*"},
                   .attrs = {{"carried", std::vector<int64_t>{}}, {"fed", std::vector<int64_t>{}}},
                   .infer = infer_body});
}

const LoweredDef* region_def() {
    static const LoweredDef* const def = find_lowered("region");
    return def;
}

const LoweredDef* group_def() {
    static const LoweredDef* const def = find_lowered("group");
    return def;
}

const LoweredDef* chain_def() {
    static const LoweredDef* const def = find_lowered("chain");
    return def;
}

const LoweredDef* sequence_def() {
    static const LoweredDef* const def = find_lowered("sequence");
    return def;
}

LoweredOp turn_of(const LoweredOp& op) {
    LoweredOp turn;
    turn.def = sequence_def();
    turn.node = op.node;
    const auto results = op.inner.begin() + std::ssize(op.inputs);
    const auto between = results + std::ssize(op.outputs);
    turn.inputs.assign(op.inner.begin(), results);
    turn.outputs.assign(results, between);
    turn.inner.assign(between, op.inner.end());
    turn.members = op.members;
    turn.attrs = {{"carried", std::vector<int64_t>(op.outputs.size(), -1)},
                  {"fed", std::vector<int64_t>()}};
    return turn;
}

bool is_one_block(const LoweredOp& op) {
    return op.def == sequence_def() || op.def == block_loop_def();
}

std::vector<int> stages_of(const LoweredOp& sequence) {
    const std::vector<int64_t>& carried = sequence.attrs.ints("carried");
    std::map<ValueId, ValueId> replaces;  // by a carried output: the input it overwrites
    for (size_t k = 0; k < carried.size() && k < sequence.outputs.size(); k++)
        if (carried[k] >= 0 && carried[k] < static_cast<int64_t>(sequence.inputs.size()))
            replaces[sequence.outputs[k].value] =
                sequence.inputs[static_cast<size_t>(carried[k])].value;
    std::map<ValueId, int> written,
        read;  // the first stage after its definition; the last stage that reads it
    std::vector<int> stages;
    for (const LoweredOp& member : sequence.members) {
        int stage = 0;
        for (const View& view : member.inputs)
            if (const auto at = written.find(view.value); at != written.end())
                stage = std::max(stage, at->second);
        for (const View& view : member.outputs)
            if (const auto over = replaces.find(view.value); over != replaces.end())
                if (const auto at = read.find(over->second); at != read.end())
                    stage = std::max(stage, at->second + 1);
        for (const View& view : member.inputs) {
            int& last = read[view.value];
            last = std::max(last, stage);
        }
        for (const View& view : member.outputs) written[view.value] = stage + 1;
        stages.push_back(stage);
    }
    return stages;
}

size_t anchor_step(const LoweredOp& op) {
    const auto last = [&](bool (*anchors)(const RegionStep&)) {
        return std::find_if(op.body.rbegin(), op.body.rend(), anchors);
    };
    const auto updates = [](const RegionStep& step) { return step.def->numbers > 0; };
    auto at = op.body.rend();
    if (std::count_if(op.body.begin(), op.body.end(), updates) <= 1)  // one may be an epilogue
        at = last(
            [](const RegionStep& step) { return !step.def->pointwise && !step.def->optimizer; });
    if (at == op.body.rend()) at = last(updates);
    return at == op.body.rend() ? op.body.size() : static_cast<size_t>(op.body.rend() - at) - 1;
}

const LoweredDef& anchor(const LoweredOp& op) {
    if (op.body.empty()) return *op.def;
    const size_t at = anchor_step(op);
    return *op.body[at < op.body.size() ? at : 0].def;
}

const Attrs& anchor_attrs(const LoweredOp& op) {
    const size_t at = anchor_step(op);
    return at < op.body.size() ? op.body[at].attrs : op.attrs;
}

StepRole step_role(const LoweredOp& op, size_t step) {
    const LoweredDef& def = *op.body[step].def;
    if (def.numbers == 0) return StepRole::scalar;
    if (!def.pointwise && (!def.optimizer || anchor(op).optimizer)) return StepRole::anchor;
    return step < anchor_step(op) ? StepRole::prologue : StepRole::epilogue;
}

std::vector<size_t> steps_of(const LoweredOp& op, StepRole role) {
    std::vector<size_t> steps;
    for (size_t i = 0; i < op.body.size(); i++)
        if (step_role(op, i) == role) steps.push_back(i);
    return steps;
}

bool plain_product(const View& a, const View& b, const Dims& result) {
    if (a.shape.rank() == 0 || b.shape.rank() == 0) return false;
    Dims shape = a.shape;
    shape[shape.rank() - 1] = b.shape[b.shape.rank() - 1];
    return result == shape;
}

size_t loss_step(const LoweredOp& op) {
    const auto named = [](const RegionStep& step) { return step.def->name == "cross_entropy"; };
    return static_cast<size_t>(std::find_if(op.body.begin(), op.body.end(), named) -
                               op.body.begin());
}

bool loss_region(const LoweredOp& op) {
    const size_t at = loss_step(op);
    if (at + 2 > op.body.size()) return false;
    const int first = static_cast<int>(op.inputs.size()),
              inner = first + static_cast<int>(op.outputs.size());
    const RegionStep &loss = op.body[at], &grad = op.body[at + 1];
    if (grad.def->name != "cross_entropy_grad" || loss.inputs.size() != 2 ||
        loss.outputs.size() != 3)
        return false;
    const int logits = loss.inputs[0], labels = loss.inputs[1];
    if (labels >= first || (logits >= first && logits < inner) ||
        grad.inputs != std::vector<int>{logits, labels, loss.outputs[1], loss.outputs[2]})
        return false;
    // Of what is made of elements only the last lies in memory.
    const Dims& shape = op.operand(logits).shape;
    for (size_t i = 0; i < op.body.size(); i++) {
        if (i == at) continue;
        const RegionStep& step = op.body[i];
        const int result = step.outputs.at(0);
        const bool last = i + 1 == op.body.size();
        if (last ? result < first || result >= inner : result < inner) return false;
        if (i == at + 1) continue;
        if (!step.def->pointwise || step.outputs.size() != 1) return false;
        for (int number : step.inputs)
            if (!(op.operand(number).shape == shape)) return false;
    }
    return true;
}

bool updates_behind(const LoweredOp& op) {
    return !op.body.empty() && op.body.back().def->numbers > 0 && !anchor(op).optimizer;
}

bool update_region(const LoweredOp& op) {
    if (!updates_behind(op)) return false;
    const LoweredDef& kind = anchor(op);
    const size_t at = anchor_step(op);
    const RegionStep& update = op.body.back();
    const int inputs = static_cast<int>(op.inputs.size()),
              inner = inputs + static_cast<int>(op.outputs.size());
    int made = op.body[at].outputs[0];
    if (kind.gemm ? !product_region(op) : !kind.streams) return false;
    const bool casts = at + 3 == op.body.size() && op.body[at + 1].def->name == "cast" &&
                       op.body[at + 1].inputs[0] == made;
    if (at + (casts ? 3 : 2) != op.body.size() || made < inner) return false;
    if (casts) made = op.body[at + 1].outputs[0];
    for (size_t k = 0; k < update.inputs.size(); k++)
        if (k == kGradient ? update.inputs[k] != made : update.inputs[k] >= inputs) return false;
    return made >= inner;
}

bool adds_cuts(const LoweredOp& op, const RegionStep& step) {
    if (step.def->name != "reduce_sum" || step.inputs.size() != 1 || step.inputs[0] < 0 ||
        step.inputs[0] >= static_cast<int>(op.inputs.size()) ||
        step.outputs[0] < static_cast<int>(op.inputs.size() + op.outputs.size()))
        return false;
    const View &cuts = op.operand(step.inputs[0]), &sum = op.operand(step.outputs[0]);
    return cuts.dtype == DType::f32 && cuts.shape.rank() == 2 && cuts.shape[0] >= 1 &&
           cuts.shape[0] <= kChainChunk && is_contiguous(cuts.shape, cuts.strides) &&
           sum.shape.rank() == 1 && is_contiguous(sum.shape, sum.strides) &&
           step.attrs.ints("axes") == std::vector<int64_t>{0} && !step.attrs.flag("keepdims") &&
           step.attrs.text("order") == chain_order();
}

bool numbers_region(const LoweredOp& op) {
    return !op.body.empty() && std::all_of(op.body.begin(), op.body.end(),
                                           [](const auto& step) { return step.def->numbers == 0; });
}

/// A product first, of operands that no other step reads, nor itself what writes the first output.
static bool product_first(const LoweredOp& op) {
    const RegionStep& gemm = op.body[0];
    if (!gemm.def->gemm || gemm.inputs != std::vector<int>{0, 1}) return false;
    const int product = gemm.outputs[0], first = static_cast<int>(op.inputs.size());
    bool written = false;
    for (size_t i = 1; i < op.body.size(); i++) {
        const RegionStep& step = op.body[i];
        for (int number : step.inputs)
            if (number < 2 || (written && product != first && number == product)) return false;
        for (int number : step.outputs) written |= number == first;
    }
    return true;
}

bool product_region(const LoweredOp& op) {
    return product_first(op) &&
           (updates_behind(op) || op.outputs[0].dtype == op.operand(op.body[0].outputs[0]).dtype);
}

bool widened_product(const LoweredOp& op) {
    if (op.body.size() < 2 || op.outputs.size() != 1 || op.outputs[0].dtype != DType::f32 ||
        !product_first(op) || !is_16_bit(op.operand(op.body[0].outputs[0]).dtype))
        return false;
    const auto inputs = static_cast<int>(op.inputs.size());
    const RegionStep *last = &op.body.back(), *cast = last;
    if (last->outputs[0] != inputs) return false;
    if (last->def->name == "add") {
        cast = last - 1;
        const int made = cast->outputs[0], other = last->inputs[last->inputs[0] == made];
        if ((last->inputs[0] != made && last->inputs[1] != made) || other >= inputs) return false;
    }
    return cast->def->name == "cast" && is_16_bit(op.operand(cast->inputs[0]).dtype);
}

bool sums_squares(const LoweredOp& member) {
    return member.body.empty() && member.members.empty() && member.def->name == "subtree_sums";
}

bool row_chain(const LoweredOp& op) {
    if (op.def != chain_def() || op.members.size() < 2) return false;
    const auto rows_of = [](const View& view) {
        return view.shape.rank() == 2 ? view.shape[0] : -1;
    };
    std::vector<View> made;
    const int64_t rows = rows_of(op.members[0].outputs[0]);
    for (const LoweredOp& member : op.members) {
        if (&member == &op.members.back() && sums_squares(member)) {
            if (find_view(made, member.inputs[0]) < 0) return false;
            continue;
        }
        const bool casts = member.body.empty() && member.def->name == "cast";
        if (!casts && (!anchor(member).gemm || (!member.body.empty() && !product_region(member))))
            return false;
        for (size_t k = 0; k < member.inputs.size(); k++)
            for (const View& before : made)
                if (before.value == member.inputs[k].value &&
                    (k == 1 || !same_layout(before, member.inputs[k])))
                    return false;
        for (const View& out : member.outputs) {
            if (rows_of(out) != rows || rows < 1) return false;
            made.push_back(out);
        }
    }
    return true;
}

int row_losses(const LoweredOp& loss) {
    if (!loss.members.empty() || loss.loop) return -1;
    const bool region = !loss.body.empty() && loss_region(loss);
    if (!region && anchor(loss).name != "cross_entropy") return -1;
    const auto inputs = static_cast<int>(loss.inputs.size());
    int number = inputs;
    if (!loss.body.empty())
        number = loss.body[region ? loss_step(loss) : anchor_step(loss)].outputs.at(0);
    const int output = number - inputs;
    return output >= 0 && output < static_cast<int>(loss.outputs.size()) ? output : -1;
}

bool loss_chain(const LoweredOp& op) {
    if (op.def != chain_def() || op.members.size() != 2 || !op.inner.empty()) return false;
    const LoweredOp &loss = op.members[0], &mean = op.members[1];
    const int output = row_losses(loss);
    if (output < 0 || !mean.members.empty() || anchor(mean).name != "reduce_mean") return false;
    const View& rows = loss.outputs[static_cast<size_t>(output)];
    const Attrs& attrs = anchor_attrs(mean);
    if (rows.shape.rank() != 1 || rows.shape[0] < 1 || rows.offset != 0 ||
        !is_contiguous(rows.shape, rows.strides) || attrs.text("order") != "tree" ||
        attrs.ints("axes") != std::vector<int64_t>{0} || (!mean.body.empty() && anchor_step(mean)))
        return false;
    const int read = mean.body.empty() ? 0 : mean.body[0].inputs.at(0);
    for (size_t k = 0; k < mean.inputs.size(); k++) {
        const auto same = [&](const View& made) { return made.value == mean.inputs[k].value; };
        if (static_cast<int>(k) == read
                ? !same(rows) || !same_layout(mean.inputs[k], rows)
                : std::any_of(loss.outputs.begin(), loss.outputs.end(), same))
            return false;
    }
    return read < static_cast<int>(mean.inputs.size());
}

TailSteps tail_steps(const LoweredOp& op) {
    const auto named = [](const RegionStep& step) { return step.def->name == "cross_entropy"; };
    const auto loss = std::find_if(op.body.begin(), op.body.end(), named);
    const auto at = static_cast<size_t>(loss - op.body.begin());
    const bool casts = at + 2 < op.body.size() && op.body[at + 2].def->name == "cast" &&
                       op.body[at + 2].inputs == op.body[at + 1].outputs;
    const size_t gradient = casts ? at + 2 : at + 1;
    return {at, gradient, std::min(gradient + 1, op.body.size())};
}

/// Whether the steps before the loss are a product and functions of it, which make the logits.
/// Marks what they make.
static bool makes_logits(const LoweredOp& op, size_t loss, const Dims& shape,
                         std::vector<char>& made) {
    const int inner = static_cast<int>(op.inputs.size() + op.outputs.size());
    const DType dtype = op.inputs[0].dtype;
    for (size_t i = 0; i < loss; i++) {
        const RegionStep& step = op.body[i];
        if (i > 0 && !step.def->pointwise) return false;
        for (int number : step.inputs)
            if (i > 0 && number < inner && (number < 2 || !(op.operand(number).shape == shape)))
                return false;
        for (int number : step.outputs) {
            const DType own = op.operand(number).dtype;
            if (number < inner || (own != DType::f32 && own != dtype)) return false;
            made[static_cast<size_t>(number)] = 1;
        }
    }
    return op.operand(op.body[loss].inputs.at(0)).dtype == DType::f32;
}

/// Whether the loss and its gradient are those of rows of the same logits and labels; a gradient in
/// f32 is not kept beside its cast.
static bool takes_losses(const LoweredOp& op, const TailSteps& steps) {
    const int inputs = static_cast<int>(op.inputs.size()),
              inner = inputs + static_cast<int>(op.outputs.size());
    const RegionStep &loss = op.body[steps.loss], &grad = op.body[steps.loss + 1],
                     &end = op.body[steps.gradient];
    if (&end != &grad &&
        (grad.outputs.at(0) < inner || op.operand(end.outputs.at(0)).dtype != op.inputs[0].dtype))
        return false;
    return grad.def->name == "cross_entropy_grad" && loss.inputs.size() == 2 &&
           loss.inputs[0] == op.body[steps.loss - 1].outputs[0] && loss.inputs[1] >= 2 &&
           loss.inputs[1] < inputs && loss.outputs.size() == 3 && row_axis(loss.attrs, 2) == 1 &&
           row_axis(grad.attrs, 2) == 1 &&
           grad.inputs ==
               std::vector<int>{loss.inputs[0], loss.inputs[1], loss.outputs[1], loss.outputs[2]};
}

bool tail_region(const LoweredOp& op) {
    if (op.body.size() < 3 || !op.body[0].def->gemm || op.inputs.size() < 3) return false;
    const TailSteps steps = tail_steps(op);
    if (steps.loss == 0 || steps.loss + 2 > op.body.size() ||
        op.body[0].inputs != std::vector<int>{0, 1})
        return false;
    const int inputs = static_cast<int>(op.inputs.size()),
              inner = inputs + static_cast<int>(op.outputs.size());
    const View &x = op.inputs[0], &weight = op.inputs[1];
    const Dims& shape = op.operand(op.body[0].outputs[0]).shape;
    if ((x.dtype != DType::f32 && !is_16_bit(x.dtype)) || weight.dtype != x.dtype ||
        shape.rank() != 2 || !plain_product(x, weight, shape))
        return false;
    std::vector<char> made(static_cast<size_t>(inner) + op.inner.size(), 0);
    if (!makes_logits(op, steps.loss, shape, made) || !takes_losses(op, steps)) return false;
    if (steps.product == op.body.size()) return true;
    const RegionStep& product = op.body[steps.product];
    if (!product.def->gemm || product.inputs.size() != 2 ||
        product.inputs[0] != op.body[steps.gradient].outputs.at(0) || product.inputs[1] >= inputs)
        return false;
    const View& transposed = op.inputs[static_cast<size_t>(product.inputs[1])];
    if (transposed.value != weight.value || transposed.offset != weight.offset ||
        transposed.shape.rank() != 2 || transposed.strides[0] != weight.strides[1] ||
        transposed.strides[1] != weight.strides[0] || transposed.shape[0] != weight.shape[1] ||
        transposed.shape[1] != weight.shape[0])
        return false;
    const Dims& result = op.operand(product.outputs[0]).shape;
    for (size_t i = steps.product + 1; i < op.body.size(); i++) {
        const RegionStep& step = op.body[i];
        if (!step.def->pointwise) return false;
        for (int number : step.inputs)
            if (!(op.operand(number).shape == result) || made[static_cast<size_t>(number)])
                return false;
    }
    return true;
}

std::string title(const LoweredOp& op) {
    const auto name = [](const auto& part) { return part.def->name; };
    if (op.loop) return cat(op.def->name, " x ", op.attrs.integer("turns"));
    const std::string parts = op.body.empty() ? joined(op.members, name) : joined(op.body, name);
    if (op.def == block_loop_def())
        return cat(op.def->name, " x ", op.attrs.integer("turns"), "(", parts, ")");
    const Attr* const own = op.attrs.find("op");  // a custom op's name
    if (own) return cat(op.def->name, " ", std::get<std::string>(*own));
    return op.def->name + (parts.empty() ? "" : cat("(", parts, ")"));
}

std::string kernel_stem(const LoweredOp& op) {
    if (const Attr* const own = op.attrs.find("op")) return std::get<std::string>(*own);
    if (op.body.empty()) return op.def->name;
    return anchor(op).pointwise ? "fused" : "fused_" + anchor(op).name;
}

// ---- inference ---------------------------------------------------------------------------------

namespace {

/// The operands of a group are those of its members, which are independent; of a chain they read
/// results of those before them, too, some of which are inner values.
std::vector<Type> infer_group(const LoweredOp& op) {
    std::vector<View> results = op.outputs;
    if (op.def == chain_def()) results.insert(results.end(), op.inner.begin(), op.inner.end());
    std::vector<Type> outputs(results.size());
    std::vector<char> written(results.size(), 0);
    for (const LoweredOp& member : op.members) {
        const std::string where = cat(op.def->name, ": member ", member.def->name);
        for (const View& view : member.inputs) {
            const int made = op.def == chain_def() ? find_view(results, view) : -1;
            if (find_view(op.inputs, view) < 0 && (made < 0 || !written[made]))
                raise(ErrorKind::graph, where, " reads %", view.value,
                      ", which is no operand of the ", op.def->name, "; need one that is");
        }
        const std::vector<Type> types = infer_lowered(member);
        for (size_t k = 0; k < member.outputs.size(); k++) {
            const int at = find_view(results, member.outputs[k]);
            if (at < 0 || written[at] || k >= types.size())
                raise(ErrorKind::graph, where, " writes %", member.outputs[k].value,
                      "; need a result of the ", op.def->name, ", written once");
            written[at] = 1;
            outputs[at] = types[k];
        }
    }
    for (size_t k = 0; k < written.size(); k++)
        if (!written[k]) raise(ErrorKind::graph, op.def->name, ": no member writes output ", k);
    outputs.resize(op.outputs.size());
    return outputs;
}

/// Members read inputs of the sequence and results of earlier members.
std::vector<Type> infer_sequence(const LoweredOp& op) {
    std::set<ValueId> known;
    for (const View& view : op.inputs) known.insert(view.value);
    std::map<ValueId, Type> made;
    for (const LoweredOp& member : op.members) {
        const std::string where = cat(op.def->name, ": member ", member.def->name);
        for (const View& view : member.inputs)
            if (!known.contains(view.value))
                raise(ErrorKind::graph, where, " reads %", view.value,
                      ", which is no input and no member before it writes; need one of these");
        const std::vector<Type> types = infer_lowered(member);
        for (size_t k = 0; k < member.outputs.size(); k++) {
            const ValueId id = member.outputs[k].value;
            if (!known.insert(id).second || k >= types.size())
                raise(ErrorKind::graph, where, " writes %", id,
                      ", an input or already written; need another value");
            made[id] = types[k];
        }
    }
    std::vector<Type> outputs;
    for (const auto* views : {&op.outputs, &op.inner})
        for (const View& view : *views) {
            const auto at = made.find(view.value);
            if (at == made.end())
                raise(ErrorKind::graph, op.def->name, ": no member writes %", view.value);
            if (views == &op.outputs) outputs.push_back(at->second);
            made.erase(at);
        }
    if (!made.empty())
        raise(ErrorKind::graph, op.def->name, ": a member writes %", made.begin()->first,
              ", which is no output and no inner value; need it to be one");
    const std::vector<int64_t>& carried = op.attrs.ints("carried");
    if (carried.size() != op.outputs.size())
        raise(ErrorKind::graph, op.def->name, ": carried has ", carried.size(),
              " entries; need one an output, of ", op.outputs.size());
    std::set<int64_t> taken;
    for (size_t k = 0; k < carried.size(); k++) {
        if (carried[k] == -1) continue;
        const auto in = static_cast<size_t>(carried[k]);
        if (carried[k] < -1 || in >= op.inputs.size() || !taken.insert(carried[k]).second ||
            !same_layout(op.outputs[k], op.inputs[in]))
            raise(ErrorKind::graph, op.def->name, ": output ", k, " is carried to operand ",
                  carried[k], "; need an input of its layout, named once");
    }
    int64_t last = -1;
    for (const int64_t in : op.attrs.ints("fed")) {
        if (in <= last || in >= std::ssize(op.inputs) || taken.contains(in))
            raise(ErrorKind::graph, op.def->name, ": operand ", in, " is said to be fed; need ",
                  "inputs that nothing is carried to, ascending");
        last = in;
    }
    return outputs;
}

}  // namespace

std::vector<Type> infer_lowered(const LoweredOp& op) {
    if (op.def == sequence_def()) return infer_sequence(op);
    if (op.def == block_loop_def()) {
        const std::vector<Type> types = infer_block_loop(op);
        infer_sequence(turn_of(op));
        return types;
    }
    if (!op.members.empty()) return infer_group(op);
    if (op.loop) return infer_loop(op);
    std::vector<Type> inputs;
    if (op.body.empty()) {
        for (const View& view : op.inputs) inputs.push_back({view.dtype, view.shape});
        return infer_lowered(*op.def, inputs, op.attrs);
    }
    const int count = static_cast<int>(op.inputs.size() + op.outputs.size() + op.inner.size());
    std::vector<char> known(count, 0);
    std::fill_n(known.begin(), op.inputs.size(), 1);
    for (const RegionStep& step : op.body) {
        const std::string where = cat(op.def->name, ": step ", step.def->name);
        inputs.clear();
        for (int i : step.inputs) {
            if (i < 0 || i >= count || !known[i])
                raise(ErrorKind::graph, where, " reads operand ", i, ", which no step before it ",
                      "writes; need one of ", count, " operands");
            inputs.push_back({op.operand(i).dtype, op.operand(i).shape});
        }
        const std::vector<Type> types = infer_lowered(*step.def, inputs, step.attrs);
        check(types.size() == step.outputs.size(),
              "region: a step has the wrong number of outputs");
        for (size_t k = 0; k < types.size(); k++) {
            const int i = step.outputs[k];
            if (i < 0 || i >= count || known[i])
                raise(ErrorKind::graph, where, " writes operand ", i,
                      ", an input or already written; need an output or inner value");
            known[i] = 1;
            const View& view = op.operand(i);
            if (!(types[k] == Type{view.dtype, view.shape}))
                raise(ErrorKind::graph, where, " gives ", to_string(types[k]), " for operand ", i,
                      ", which is ", type_string(view.dtype, view.shape), "; need equal types");
        }
    }
    std::vector<Type> outputs;
    for (size_t k = 0; k < op.outputs.size(); k++) {
        if (!known[op.inputs.size() + k])
            raise(ErrorKind::graph, op.def->name, ": no step writes output ", k);
        outputs.push_back({op.outputs[k].dtype, op.outputs[k].shape});
    }
    return outputs;
}

// ---- storage and cost ---------------------------------------------------------------------------

const View& LoweredOp::operand(int number) const {
    auto at = static_cast<size_t>(number);
    if (at < inputs.size()) return inputs[at];
    at -= inputs.size();
    return at < outputs.size() ? outputs[at] : inner.at(at - outputs.size());
}

std::vector<std::pair<int, int>> inplace_of(const LoweredOp& op) {
    std::vector<std::pair<int, int>> pairs;
    if (op.def == block_loop_def()) return pairs;
    if (op.def == sequence_def()) {
        const std::vector<int64_t>& carried = op.attrs.ints("carried");
        for (size_t k = 0; k < carried.size(); k++)
            if (carried[k] >= 0)
                pairs.emplace_back(static_cast<int>(k), static_cast<int>(carried[k]));
        return pairs;
    }
    for (const LoweredOp& member : op.members)
        for (auto [out, in] : inplace_of(member)) {
            if (in >= static_cast<int>(member.inputs.size())) continue;
            const View& from = member.inputs[in];
            const auto reads = [&](const LoweredOp& other) {
                return &other != &member &&
                       std::any_of(other.inputs.begin(), other.inputs.end(),
                                   [&](const View& view) { return view.value == from.value; });
            };
            if (std::none_of(op.members.begin(), op.members.end(), reads))
                pairs.emplace_back(find_view(op.outputs, member.outputs[out]),
                                   find_view(op.inputs, from));
        }
    if (!op.members.empty()) return pairs;
    if (op.body.empty()) return op.def->inplace;
    const LoweredDef& kind = anchor(op);
    const bool of_elements = !kind.gemm && !kind.streams;  // as its pointwise steps are
    if (!of_elements && !updates_behind(op)) return pairs;
    const int inputs = static_cast<int>(op.inputs.size()),
              outputs = static_cast<int>(op.outputs.size()),
              steps = static_cast<int>(op.body.size());
    std::vector<int> first(inputs, steps), last(inputs, -1);  // steps that read an input
    for (int s = 0; s < steps; s++)
        for (int in : op.body[s].inputs)
            if (in < inputs) first[in] = std::min(first[in], s), last[in] = s;
    for (int s = 0; s < steps; s++) {
        const RegionStep& step = op.body[s];
        for (size_t k = 0; k < step.outputs.size(); k++) {
            const int out = step.outputs[k] - inputs;
            if (out >= outputs) continue;
            for (int in = 0; of_elements && step.def->pointwise && in < inputs; in++)
                if (last[in] <= s) pairs.emplace_back(out, in);
            for (auto [to, from] : step.def->inplace)
                if (const int in = step.inputs[from];
                    !step.def->pointwise && to == static_cast<int>(k) && in < inputs &&
                    last[in] == s && (first[in] == s || !kind.optimizer))
                    pairs.emplace_back(out, in);
        }
    }
    return pairs;
}

std::vector<Cost> step_costs(const LoweredOp& op) {
    std::vector<Cost> costs(op.body.size());
    std::vector<bool> counted(op.inputs.size() + op.outputs.size());
    for (size_t s = 0; s < op.body.size(); s++) {
        const RegionStep& step = op.body[s];
        int64_t elements = 0;
        for (const auto* numbers : {&step.inputs, &step.outputs})
            for (int number : *numbers) {
                const auto at = static_cast<size_t>(number);
                elements = std::max(elements, element_count(op.operand(number).shape));
                if (at >= counted.size() || counted[at]) continue;  // inner, or counted
                counted[at] = true;
                costs[s].bytes += view_bytes(op.operand(number));
            }
        if (!step.def->flops)  // the anchor is counted below
            costs[s].flops = static_cast<double>(elements) * step.def->flops_per_element;
    }
    if (op.body.empty()) return costs;
    if (tail_region(op)) {
        for (size_t s = 0; s < op.body.size(); s++) {
            const RegionStep& step = op.body[s];
            if (!step.def->flops) continue;
            LoweredOp alone;
            alone.def = step.def;
            alone.attrs = step.attrs;
            for (int number : step.inputs) alone.inputs.push_back(op.operand(number));
            for (int number : step.outputs) alone.outputs.push_back(op.operand(number));
            costs[s].flops = step.def->flops(alone);
        }
        return costs;
    }
    const LoweredDef& kind = anchor(op);
    if (kind.flops) costs.at(anchor_step(op)).flops = kind.flops(op);
    return costs;
}

Cost cost_of(const LoweredOp& op) {
    Cost cost;
    if (op.loop) {
        cost = cost_of(*op.loop);
        const auto turns = static_cast<double>(op.attrs.integer("turns"));
        return {cost.flops * turns, cost.bytes * turns};
    }
    for (const LoweredOp& member : op.members) cost += cost_of(member);
    if (op.def == block_loop_def()) {
        const auto turns = static_cast<double>(op.attrs.integer("turns"));
        return {cost.flops * turns, cost.bytes * turns};
    }
    if (op.def == chain_def()) {  // what one member hands to the next is not read
        cost.bytes = 0;
        for (const auto* views : {&op.inputs, &op.outputs})
            for (const View& view : *views) cost.bytes += view_bytes(view);
        return cost;
    }
    for (const Cost& own : step_costs(op)) cost += own;
    if (!op.members.empty() || !op.body.empty()) return cost;
    double largest = 0;
    for (const auto* views : {&op.inputs, &op.outputs})
        for (const View& view : *views) {
            cost.bytes += view_bytes(view);
            largest = std::max(largest, static_cast<double>(element_count(view.shape)));
        }
    cost.flops = op.def->flops ? op.def->flops(op) : largest * op.def->flops_per_element;
    return cost;
}

Cost cost_of(const Lowered& lowered) {
    Cost sum;
    for (const LoweredOp& op : lowered.ops) sum += cost_of(op);
    return sum;
}

bool within(const LoweredOp& region, const RegionLimits& limits) {
    const LoweredDef& kind = anchor(region);
    double flops = 0;
    for (size_t step : steps_of(region, StepRole::prologue))
        flops += region.body[step].def->flops_per_element;
    return region.inputs.size() + region.outputs.size() <=
               (kind.gemm ? limits.product_operands : limits.operands) &&
           region.body.size() <= (kind.gemm ? limits.product_steps : limits.steps) &&
           (kind.rows.empty() || flops <= limits.row_flops);
}

}  // namespace aicf
