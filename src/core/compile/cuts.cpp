// Sums of cuts: what a small gradient is cut into along k, or along the rows that it sums, is added
// by the update that alone reads it. Its blocks then need not wait for each other, and the update
// waits for them anyhow.
#include <algorithm>

#include "core/compile/passes.h"
#include "core/graph/region.h"

namespace aicf {

namespace {

// Cuts at most, those of sums for which an update alone waits; results of all of a product, columns
// of a sum.
constexpr int64_t kMostCuts = 64, kFewCuts = 16, kProductResults = 1 << 18, kSumColumns = 128;

int64_t chunk_of(const std::string& order) {
    const size_t at = order.find('(');
    return at == std::string::npos ? 0 : std::atoll(order.c_str() + at + 1);
}

/// An axis of a view as two, of which the second has `inner` elements.
View split_axis(const View& view, int axis, int64_t inner) {
    View result = view;
    result.shape[axis] = inner;
    result.shape.insert(axis, view.shape[axis] / inner);
    result.strides.insert(axis, view.strides[axis] * inner);
    return result;
}

/// An op that leaves its cuts [cuts, ...], and what their sum is rounded to on the way to float32.
struct Cut {
    LoweredOp op;
    int64_t count = 0;
    std::optional<View> narrow;  // in 16 bits
};

class SumsOfCuts {
  public:
    SumsOfCuts(Lowered& lowered, const Target& target)
        : lowered_(lowered),
          target_(target),
          producer_(lowered.values.size(), -1),
          reads_(lowered.values.size(), 0),
          kept_(lowered.values.size(), 0),
          gone_(lowered.values.size(), 0) {
        for (size_t i = 0; i < lowered.ops.size(); i++) {
            for (const View& view : lowered.ops[i].inputs) reads_[at(view.value)]++;
            for (const View& view : lowered.ops[i].outputs)
                producer_[at(view.value)] = static_cast<int>(i);
        }
        for (const Lowered::Output& output : lowered.outputs) kept_[at(output.value)] = 1;
        for (const Assign& assign : lowered.assigns) kept_[at(assign.source)] = 1;
    }

    void run() {
        for (LoweredOp& op : lowered_.ops) {
            if (!several_updates(op)) continue;
            const bool waits = take_all(op, true) > 0;
            most_of_sum_ = waits ? kMostCuts : kFewCuts;
            take_all(op, false);
        }
        // As where a gradient is never stored (fuse_updates).
        const auto& grads = lowered_.param_grads;
        if (std::any_of(grads.begin(), grads.end(),
                        [&](const auto& pair) { return gone_[at(pair.second)] != 0; }))
            lowered_.param_grads.clear();
    }

  private:
    /// Behind a sum a lone update would be an epilogue.
    static bool several_updates(const LoweredOp& op) {
        return std::count_if(op.body.begin(), op.body.end(),
                             [](const RegionStep& step) { return step.def->numbers > 0; }) > 1;
    }
    /// Of the updates in an op those whose gradients products make, or sums; how many took cuts.
    int take_all(LoweredOp& op, bool products) {
        int count = 0;
        for (size_t i = 0; i < op.body.size(); i++) {
            if (!op.body[i].def->optimizer || op.body[i].def->numbers <= 0) continue;
            const size_t more = take(op, i, products);
            count += more > 0;
            i += more;
        }
        return count;
    }
    static size_t at(ValueId id) { return static_cast<size_t>(id); }

    /// Lets an update add the cuts of its gradient; how many steps come before it.
    size_t take(LoweredOp& update, size_t step, bool products) {
        const int inputs = static_cast<int>(update.inputs.size());
        const auto uses = [&](int number) {
            return std::count_if(update.body.begin(), update.body.end(), [&](const RegionStep& s) {
                return std::count(s.inputs.begin(), s.inputs.end(), number) > 0;
            });
        };
        const int gradient = update.body[step].inputs[kGradient];
        int from = gradient;
        const auto cast = std::find_if(update.body.begin(), update.body.end(), [&](const auto& s) {
            return s.def->name == "cast" && s.outputs[0] == gradient;
        });
        if (from >= inputs && cast != update.body.end()) from = cast->inputs[0];
        if (from >= inputs || uses(from) != 1 || uses(gradient) != 1) return 0;
        const View& view = update.inputs[at(from)];
        const ValueId value = view.value;
        if (kept_[at(value)] || reads_[at(value)] != 1 || producer_[at(value)] < 0 ||
            update.operand(gradient).dtype != DType::f32)
            return 0;
        LoweredOp& maker = lowered_.ops[at(producer_[at(value)])];
        if (maker.outputs.size() != 1 || maker.outputs[0].offset != view.offset ||
            !is_contiguous(view.shape, view.strides) ||
            !is_contiguous(maker.outputs[0].shape, maker.outputs[0].strides) ||
            element_count(maker.outputs[0].shape) != element_count(view.shape))
            return 0;
        if (anchor(maker).gemm != products) return 0;
        const std::optional<Cut> cut = products ? product(maker) : sum(maker);
        if (!cut || !target_.block_bytes(cut->op)) return 0;
        LoweredOp now = update;
        const size_t more = add(now, step, from, *cut);
        if (!target_.fits(now)) return 0;
        maker = cut->op;
        gone_[at(value)] = 1;
        update = std::move(now);
        return more;
    }

    View fresh(const Dims& shape) {
        return lowered_.views[at(append_value(lowered_, {DType::f32, shape}, "cuts"))];
    }

    /// Of a product on tensor cores that leaves such sums in its workspace otherwise.
    std::optional<Cut> product(const LoweredOp& op) {
        const View &a = op.inputs[0], &c = op.outputs[0];
        if (!op.body.empty() || c.shape.rank() != 2 || !is_16_bit(c.dtype) ||
            !target_.joins_cuts(op))
            return std::nullopt;
        const int64_t k = a.shape[1], chunk = chunk_of(op.attrs.text("order"));
        if (chunk < 1 || k % chunk != 0 || k / chunk > kMostCuts ||
            k / chunk * element_count(c.shape) > kProductResults)
            return std::nullopt;
        Cut cut{op, k / chunk, c};
        const auto batched = [&](const View& view, int axis) {  // [cuts, ...] of its own two axes
            View result = split_axis(view, axis, chunk);
            if (axis == 1) {
                std::swap(result.shape[0], result.shape[1]);
                std::swap(result.strides[0], result.strides[1]);
            }
            return result;
        };
        cut.op.inputs = {batched(a, 1), batched(op.inputs[1], 0)};
        cut.op.candidate.clear();
        cut.op.def = find_lowered("gemm_f32");
        Dims shape = c.shape;
        shape.insert(0, cut.count);
        cut.op.outputs = {fresh(shape)};
        return cut;
    }

    /// Of a sum over rows by chunks, alone or before casts.
    std::optional<Cut> sum(const LoweredOp& op) {
        const RegionStep alone{op.def, {0}, {1}, op.attrs, op.node};
        const RegionStep& step = op.body.empty() ? alone : op.body[0];
        const View& x = op.inputs[0];
        if (step.def->name != "reduce_sum" || op.inputs.size() != 1 || x.shape.rank() != 2 ||
            step.inputs != std::vector<int>{0} || step.attrs.flag("keepdims") ||
            step.attrs.ints("axes") != std::vector<int64_t>{0} ||
            !step.attrs.text("order").starts_with("chain("))
            return std::nullopt;
        const int64_t n = x.shape[0], chunk = chunk_of(step.attrs.text("order"));
        if (chunk < 1 || n % chunk != 0 || n / chunk < 2 || n / chunk > most_of_sum_ ||
            x.shape[1] > kSumColumns)
            return std::nullopt;
        const View& result = op.outputs[0];
        const View& made = op.operand(step.outputs[0]);
        if (!op.body.empty() &&
            (op.body.size() != 2 || op.body[1].def->name != "cast" ||
             op.body[1].inputs[0] != step.outputs[0] || op.body[1].outputs[0] != 1 ||
             result.dtype != DType::f32 || !is_16_bit(made.dtype)))
            return std::nullopt;
        if (made.dtype != x.dtype || (!is_16_bit(made.dtype) && made.dtype != DType::f32))
            return std::nullopt;
        Cut cut;
        cut.count = n / chunk;
        cut.op.node = op.node;
        cut.op.inputs = {split_axis(x, 0, chunk)};
        cut.op.outputs = {fresh({cut.count, x.shape[1]})};
        Attrs attrs = step.attrs;
        attrs.set("axes", std::vector<int64_t>{1});
        if (!is_16_bit(x.dtype)) {
            cut.op.def = step.def;
            cut.op.attrs = attrs;
            return cut;
        }
        cut.narrow = made;
        cut.op.def = region_def();
        cut.op.inner = {fresh(cut.op.inputs[0].shape)};
        cut.op.body = {{find_lowered("cast"), {0}, {2}, cast_to("float32"), op.node},
                       {step.def, {2}, {1}, attrs, step.node}};
        return cut;
    }

    static Attrs cast_to(const char* dtype) { return {{"dtype", std::string(dtype)}}; }

    /// The sum of the cuts, in ascending order, rounded as it was, before an update's step.
    size_t add(LoweredOp& update, size_t step, int from, const Cut& cut) {
        const int gradient = update.body[step].inputs[kGradient];
        const int outer = static_cast<int>(update.inputs.size() + update.outputs.size());
        const Dims flat = {element_count(update.inputs[at(from)].shape)};
        View cuts = cut.op.outputs[0];
        cuts.shape = {cut.count, flat[0]};
        cuts.strides = {flat[0], 1};
        const View before = update.inputs[at(from)];
        update.inputs[at(from)] = cuts;
        const auto inner = [&](View view) {
            view.shape = flat;
            view.strides = {1};
            view.offset = 0;
            update.inner.push_back(view);
            return outer + static_cast<int>(update.inner.size()) - 1;
        };
        const int node = update.body[step].node;
        std::vector<RegionStep> steps;
        const int total = inner(fresh(flat));
        steps.push_back(
            {find_lowered("reduce_sum"),
             {from},
             {total},
             {{"axes", std::vector<int64_t>{0}}, {"keepdims", false}, {"order", chain_order()}},
             node});
        int made = total;
        if (cut.narrow) {
            made = inner(*cut.narrow);
            steps.push_back({find_lowered("cast"),
                             {total},
                             {made},
                             cast_to(dtype_name(cut.narrow->dtype)),
                             node});
        }
        if (gradient == from && cut.narrow) {  // which was widened before
            const int wide = inner(before);
            steps.push_back({find_lowered("cast"), {made}, {wide}, cast_to("float32"), node});
            made = wide;
        }
        if (gradient == from)
            update.body[step].inputs[kGradient] = made;
        else
            for (RegionStep& s : update.body)
                if (s.outputs[0] == gradient) s.inputs[0] = made;
        const auto place =
            std::find_if(update.body.begin(), update.body.end(), [&](const RegionStep& s) {
                return std::count(s.inputs.begin(), s.inputs.end(), made) > 0;
            });
        update.body.insert(place, steps.begin(), steps.end());
        return steps.size();
    }

    Lowered& lowered_;
    const Target& target_;
    std::vector<int> producer_, reads_;  // by value
    int64_t most_of_sum_ = kFewCuts;
    std::vector<char> kept_, gone_;  // by value; gone: gradients that are not stored now
};

}  // namespace

void leave_cuts(Lowered& lowered, const Target& target) {
    if (target.pace()) SumsOfCuts(lowered, target).run();
}

}  // namespace aicf
