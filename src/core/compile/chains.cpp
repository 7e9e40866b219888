// Chains: products of narrow layers over many rows, each of the one before it, in one launch.
#include "core/compile/group.h"
#include "core/graph/region.h"

namespace aicf {

namespace {

bool made_by(const LoweredOp& op, const View& view) {
    return std::any_of(op.outputs.begin(), op.outputs.end(), [&](const View& out) {
        return out.value == view.value && same_layout(out, view);
    });
}

bool product_fits(const LoweredOp& op, const Target& target) {
    return anchor(op).gemm && target.fits_chain(op);
}

/// A function that stands between two links, a loss's gradient above all, joins the first one's
/// epilogue though others read that one's result, too: else the second waited for a launch.
class Between : Groups {
  public:
    using Groups::Groups;
    void run() {
        for (int at = 0; at < static_cast<int>(ops_.size()); at++) {
            const LoweredOp& op = ops_[at];
            if (!op.members.empty() || !anchor(op).pointwise || !leads_to_link(op)) continue;
            for (const View& view : op.inputs)
                if (const int from = producer_[view.value];
                    from >= 0 && product_fits(ops_[from], machine_) && made_by(ops_[from], view) &&
                    members_[group_[from]].size() == 1 &&
                    merge(group_[from], group_[at], product_region, INT_MAX) == Merge::done)
                    break;
        }
        emit();
    }

  private:
    bool leads_to_link(const LoweredOp& op) const {
        for (const View& out : op.outputs)
            for (int reader : readers_[out.value])
                if (ops_[reader].inputs[0].value == out.value &&
                    product_fits(ops_[reader], machine_))
                    return true;
        return false;
    }
    /// The product is summed where the first output lies.
    LoweredOp compose(const std::vector<int>& members, int a, int b) const override {
        LoweredOp op = Groups::compose(members, a, b);
        const auto of_product = [&](const View& view) {
            return view.dtype == op.operand(op.body[0].outputs[0]).dtype;
        };
        const auto found = std::find_if(op.outputs.begin(), op.outputs.end(), of_product);
        if (found == op.outputs.end() || found == op.outputs.begin()) return op;
        const int first = static_cast<int>(op.inputs.size()),
                  last = first + static_cast<int>(found - op.outputs.begin());
        std::rotate(op.outputs.begin(), found, found + 1);
        for (RegionStep& step : op.body)
            for (auto* numbers : {&step.inputs, &step.outputs})
                for (int& number : *numbers)
                    if (number >= first && number <= last)
                        number = number == last ? first : number + 1;
        return op;
    }
};

class Chains : Groups {
  public:
    using Groups::Groups;
    void run() {
        for (int at = 0; at < static_cast<int>(ops_.size()); at++) {
            if (!product_fits(ops_[at], machine_)) continue;
            for (const View& view : ops_[at].inputs)
                if (const int from = producer_[view.value];
                    from >= 0 && group_[from] != group_[at] && product_fits(ops_[from], machine_) &&
                    merge(group_[from], group_[at], row_chain, INT_MAX) == Merge::done)
                    break;
        }
        for (int at = 0; at < static_cast<int>(ops_.size()); at++) take_cast(at);
        emit();
    }

  private:
    /// A cast of what a chain takes as its rows joins it.
    void take_cast(int at) {
        const LoweredOp& op = ops_[at];
        if (op.def->name != "cast" || !op.body.empty() || !machine_.fits_chain(op)) return;
        for (int reader : readers_[op.outputs[0].value])
            if (members_[group_[reader]].size() > 1 && anchor(ops_[reader]).gemm &&
                same_layout(ops_[reader].inputs[0], op.outputs[0]) &&
                ops_[reader].inputs[0].value == op.outputs[0].value &&
                merge(group_[at], group_[reader], row_chain, INT_MAX) == Merge::done)
                return;
    }
    /// What only members read, but as rows, has no storage where blocks have room for it.
    LoweredOp compose(const std::vector<int>& members, int, int) const override {
        LoweredOp chain = chain_of(members, true);
        return chain.inner.empty() || machine_.fits(chain) ? chain : chain_of(members, false);
    }

    bool stays(const View& view, const std::vector<int>& members) const {
        const auto& readers = readers_[view.value];
        return !kept_[view.value] && !readers.empty() &&
               std::all_of(readers.begin(), readers.end(), [&](int reader) {
                   return std::find(members.begin(), members.end(), reader) != members.end() &&
                          ops_[reader].inputs[0].value != view.value;
               });
    }

    LoweredOp chain_of(const std::vector<int>& members, bool inner) const {
        LoweredOp chain;
        chain.def = chain_def();
        chain.node = ops_[members.back()].node;
        for (int member : members)
            for (const View& view : ops_[member].outputs)
                (inner && stays(view, members) ? chain.inner : chain.outputs).push_back(view);
        for (int member : members) {
            for (const View& view : ops_[member].inputs)
                if (find_view(chain.inputs, view) < 0 && find_view(chain.outputs, view) < 0 &&
                    find_view(chain.inner, view) < 0)
                    chain.inputs.push_back(view);
            chain.members.push_back(ops_[member]);
        }
        return chain;
    }
};

}  // namespace

void fuse_chains(Lowered& lowered, const Target& target) {
    if (std::none_of(lowered.ops.begin(), lowered.ops.end(),
                     [&](const LoweredOp& op) { return product_fits(op, target); }))
        return;
    Between(lowered, target).run();
    Chains(lowered, target).run();
}

}  // namespace aicf
