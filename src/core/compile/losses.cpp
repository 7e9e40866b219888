// Losses in the launches that make what they are of. Of a chain's rows: the member that makes a
// prediction leaves the sums of its squares, too, a number for 1,024 elements, so that no launch
// reads prediction and target again. Of classes: the mean of the rows' losses.
#include <algorithm>
#include <climits>

#include "core/compile/group.h"
#include "core/graph/region.h"

namespace aicf {

namespace {

size_t at(int index) { return static_cast<size_t>(index); }

/// A member that makes a prediction, and what is to become of it.
struct Found {
    size_t chain = 0, member = 0;
    int prediction = -1, target = -1;  // an output of the member, an operand
    bool swapped = false;              // the loss names the target first
};

class ChainLosses {
  public:
    ChainLosses(Lowered& lowered, const Target& target) : lowered_(lowered), target_(target) {}

    void run() {
        for (size_t i = 0; i < lowered_.ops.size(); i++) {
            if (lowered_.ops[i].def->name != "mse_loss" || !lowered_.ops[i].body.empty()) continue;
            if (const std::optional<Found> found = find(lowered_.ops[i])) take(i, *found);
        }
    }

  private:
    std::optional<Found> find(const LoweredOp& loss) const {
        for (size_t c = 0; c < lowered_.ops.size(); c++) {
            const LoweredOp& chain = lowered_.ops[c];
            if (chain.def != chain_def() || sums_squares(chain.members.back())) continue;
            for (size_t m = 0; m < chain.members.size(); m++)
                for (const bool swapped : {false, true}) {
                    const LoweredOp& member = chain.members[m];
                    const int made = find_view(member.outputs, loss.inputs[swapped ? 1 : 0]),
                              read = find_view(member.inputs, loss.inputs[swapped ? 0 : 1]);
                    if (made >= 0 && read > 1 && takes(member.outputs[at(made)]))
                        return Found{c, m, made, read, swapped};
                }
        }
        return std::nullopt;
    }
    static bool takes(const View& made) {
        return made.dtype == DType::f32 && is_contiguous(made.shape, made.strides) &&
               element_count(made.shape) % kSubtree == 0;
    }

    View fresh(const Dims& shape, const char* name) {
        return lowered_.views[at(append_value(lowered_, {DType::f32, shape}, name))];
    }

    /// Whether others read a prediction: what then writes it still does.
    bool stays(ValueId value, const LoweredOp& loss, const LoweredOp& chain) const {
        const auto is = [&](const View& view) { return view.value == value; };
        const auto reads = [&](const LoweredOp& op) {
            return &op != &loss && std::any_of(op.inputs.begin(), op.inputs.end(), is);
        };
        return std::any_of(lowered_.ops.begin(), lowered_.ops.end(), reads) ||
               std::any_of(chain.members.begin(), chain.members.end(), reads) ||
               std::any_of(lowered_.outputs.begin(), lowered_.outputs.end(),
                           [&](const auto& output) { return output.value == value; }) ||
               std::any_of(lowered_.assigns.begin(), lowered_.assigns.end(),
                           [&](const Assign& assign) { return assign.source == value; });
    }

    void take(size_t i, const Found& found) {
        LoweredOp chain = lowered_.ops[found.chain];
        LoweredOp& member = chain.members[found.member];
        const View prediction = member.outputs[at(found.prediction)];
        const bool stored = stays(prediction.value, lowered_.ops[i], lowered_.ops[found.chain]);
        const View squares = fresh(prediction.shape, "squares");
        const int node = lowered_.ops[i].node;
        add_squares(member, found, stored, squares, node);
        LoweredOp sums;
        sums.def = find_lowered("subtree_sums");
        sums.node = node;
        sums.inputs = {squares};
        sums.outputs = {fresh({element_count(squares.shape) / kSubtree}, "sums")};
        if (!stored)
            std::erase_if(chain.outputs,
                          [&](const View& view) { return view.value == prediction.value; });
        chain.outputs.push_back(sums.outputs[0]);
        chain.inner.push_back(squares);
        chain.members.push_back(sums);
        if (!target_.fits(chain)) return;
        LoweredOp mean;
        mean.def = find_lowered("subtree_mean");
        mean.node = node;
        mean.inputs = sums.outputs;
        mean.outputs = lowered_.ops[i].outputs;
        lowered_.ops[found.chain] = std::move(chain);
        lowered_.ops[i] = std::move(mean);
    }

    /// The squares as the last output of a member, in which the prediction is an inner value unless
    /// it is stored.
    void add_squares(LoweredOp& member, const Found& found, bool stored, const View& squares,
                     int node) {
        const LoweredOp old = member;
        const int inputs = static_cast<int>(old.inputs.size()),
                  outputs = static_cast<int>(old.outputs.size()),
                  results = outputs + (stored ? 1 : 0),
                  last = inputs + results + static_cast<int>(old.inner.size());
        const auto number = [&](int from) {
            const int out = from - inputs;
            if (out < 0 || (stored && out < outputs)) return from;
            if (out >= outputs) return from + results - outputs;
            return out == found.prediction ? last : out < found.prediction ? from : from - 1;
        };
        if (!stored) {
            member.outputs.erase(member.outputs.begin() + found.prediction);
            member.inner.push_back(old.outputs[at(found.prediction)]);
        }
        member.outputs.push_back(squares);
        for (RegionStep& step : member.body)
            for (auto* numbers : {&step.inputs, &step.outputs})
                for (int& one : *numbers) one = number(one);
        member.inner.push_back(fresh(squares.shape, "difference"));
        const int difference = inputs + results + static_cast<int>(member.inner.size()) - 1;
        const int made = number(inputs + found.prediction);
        std::vector<int> two = {made, found.target};
        if (found.swapped) std::swap(two[0], two[1]);
        const RegionStep steps[] = {
            {find_lowered("sub"), two, {difference}, {}, node},
            {find_lowered("mul"), {difference, difference}, {inputs + results - 1}, {}, node}};
        const auto maker =
            std::find_if(member.body.begin(), member.body.end(), [&](const RegionStep& step) {
                return std::count(step.outputs.begin(), step.outputs.end(), made) > 0;
            });
        member.body.insert(maker + 1, std::begin(steps), std::end(steps));
    }

    Lowered& lowered_;
    const Target& target_;
};

/// Cross entropy and the mean of the rows' losses, where nothing else waits for either: the mean is
/// then no launch of its own, which others could share.
class LossMeans : Groups {
  public:
    using Groups::Groups;
    void run() {
        for (int at = 0; at < static_cast<int>(ops_.size()); at++) {
            const int losses = row_losses(ops_[at]);
            if (losses < 0) continue;
            const auto& means = readers_[ops_[at].outputs[static_cast<size_t>(losses)].value];
            if (means.size() == 1 && waits_alone(at, means.front()))
                merge(group_[at], group_[means.front()], loss_chain, INT_MAX);
        }
        emit();
    }

  private:
    bool waits_alone(int loss, int mean) const {
        const auto& behind = successors_[loss];
        return std::all_of(behind.begin(), behind.end(), [&](int next) { return next == mean; });
    }
    LoweredOp compose(const std::vector<int>& members, int, int) const override {
        LoweredOp chain = group_of(ops_, members);
        chain.def = chain_def();
        std::erase_if(chain.inputs,
                      [&](const View& view) { return find_view(chain.outputs, view) >= 0; });
        return chain;
    }
};

}  // namespace

void fuse_losses(Lowered& lowered, const Target& target) {
    ChainLosses(lowered, target).run();
    LossMeans(lowered, target).run();
}

}  // namespace aicf
