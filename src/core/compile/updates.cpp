// Updates of an optimizer: those of many tensors as one op, and the numbers that they read.
#include <climits>
#include <limits>

#include "core/compile/group.h"

namespace aicf {

namespace {

/// Updates of tensors in f32 or f64 that share a launch, whole in memory.
bool tensor_update(const LoweredOp& op, const Target& target) {
    const DType dtype = op.outputs[0].dtype;
    if (!op.def->optimizer || op.def->numbers <= 0 || !op.body.empty() || is_16_bit(dtype) ||
        element_count(op.outputs[0].shape) >= target.group_limits().update_elements)
        return false;
    const auto packed = [](const View& view) { return is_contiguous(view.shape, view.strides); };
    return std::all_of(op.inputs.begin(), op.inputs.end(), packed) &&
           std::all_of(op.outputs.begin(), op.outputs.end(), packed);
}

/// Tensors are updated side by side, so a step may wait for scalar steps, and for what makes its
/// gradient, alone.
bool updates_side_by_side(const LoweredOp& op) {
    std::vector<char> made(op.inputs.size() + op.outputs.size() + op.inner.size(), 0);
    for (size_t i = 0; i < op.body.size(); i++) {
        for (int number : op.body[i].inputs)
            if (made[number]) return false;
        for (int number : op.body[i].outputs)
            made[number] = op.body[i].def->optimizer && op.body[i].def->numbers > 0;
    }
    return true;
}

/// Updates in the order in which they may begin.
struct Waiting {
    double ready, work;  // microseconds from the start of the step; behind the launch
};

/// Where to cut such a list into launches one behind the other, so that the last ends soonest; each
/// launch more is to save one's time at least, and waits for no more than makes a difference.
/// Ascending: by cut the first update behind it.
std::vector<size_t> best_cuts(const std::vector<Waiting>& updates, double launch) {
    constexpr size_t kMost = 4, kMany = 512;  // launches; updates
    const size_t count = updates.size();
    if (count < 2 || count > kMany) return {};
    std::vector<double> work(count + 1, 0);  // of those before
    for (size_t i = 0; i < count; i++) work[i + 1] = work[i] + updates[i].work;
    struct Best {
        double end = std::numeric_limits<double>::infinity();  // in microseconds
        size_t begin = 0;                                      // of its last launch
    };
    std::vector<std::vector<Best>> best(kMost, std::vector<Best>(count + 1));
    const auto try_last = [&](size_t launches, double free, size_t begin, size_t end) {
        const double ends =
            std::max(free, updates[end - 1].ready) + launch + work[end] - work[begin];
        if (Best& known = best[launches][end]; ends < known.end - launch / 4) known = {ends, begin};
    };
    for (size_t end = 1; end <= count; end++) try_last(0, 0, 0, end);
    for (size_t launches = 1; launches < kMost; launches++)
        for (size_t end = launches + 1; end <= count; end++)
            for (size_t begin = launches; begin < end; begin++)
                if (updates[begin - 1].ready < updates[begin].ready)
                    try_last(launches, best[launches - 1][begin].end, begin, end);
    size_t launches = 0;
    for (size_t more = 1; more < kMost; more++)
        if (best[more][count].end + launch * static_cast<double>(more - launches) <
            best[launches][count].end)
            launches = more;
    std::vector<size_t> cuts;
    for (size_t end = count; launches > 0; launches--)
        cuts.push_back(end = best[launches][end].begin);
    std::reverse(cuts.begin(), cuts.end());
    return cuts;
}

/// Multi-tensor apply: updates with the same numbers become one op. What only makes an update's
/// gradient from 16 bits, or adds its two parts, joins it, so that the update reads those. Where
/// ops run side by side, those whose gradients are there early are an op of their own if that ends
/// the step sooner: they run beside the products that the others wait for.
class MultiTensorApply : Groups {
  public:
    using Groups::Groups;
    void run() {
        // First, while argument blocks have room: a gradient that is never materialised saves more
        // than a launch.
        for (size_t at = 0; at < ops_.size(); at++) take_gradient(static_cast<int>(at));
        std::map<std::string, std::vector<int>> families;
        for (size_t at = 0; at < ops_.size(); at++)
            if (tensor_update(ops_[at], machine_))
                families[numbers_of(ops_[at])].push_back(static_cast<int>(at));
        cut_.assign(ops_.size(), {});
        find_numbers();
        if (const std::optional<Pace> pace = machine_.pace()) cut(families, *pace);
        for (auto& [numbers, family] : families) {
            size_t least = SIZE_MAX;  // that any of them adds to a block
            for (const int at : family) least = std::min(least, growth(at));
            std::vector<Launch> launches(static_cast<size_t>(cut_[family.back()].launch) + 1);
            for (const int at : family) {
                auto launch = static_cast<size_t>(cut_[at].launch);
                while (!place(at, least, launches[launch], launch + 1 == launches.size())) launch++;
            }
        }
        emit();
        // Flattened tensors take the least room in the argument block.
        for (LoweredOp& op : ops_)
            if (!op.body.empty() && anchor(op).optimizer)
                for (auto* views : {&op.inputs, &op.outputs, &op.inner})
                    for (View& view : *views)
                        if (view.shape.rank() > 1) {
                            view.shape = {element_count(view.shape)};
                            view.strides = {1};
                        }
    }

  private:
    struct Head {  // the first op of a group
        int op;
        size_t refused;  // bytes of the smallest update that the group was too large for
    };
    struct Launch {
        bool begun = false;
        std::vector<Head> heads;  // of groups that may have room for more
    };

    /// Updates by what they share, in the order in which launches take them.
    using Families = std::map<std::string, std::vector<int>>;

    /// Numbers the launches of the families that are worth several, from the time when what an
    /// update waits for is done if nothing else is in the way, and sorts them by it.
    void cut(Families& families, const Pace& pace) {
        const auto several = [](const auto& family) { return family.second.size() > 1; };
        if (std::none_of(families.begin(), families.end(), several)) return;
        std::vector<double> ready(ops_.size(), 0), end(ops_.size(), 0);
        for (int at = 0; at < static_cast<int>(ops_.size()); at++) {
            for (int from : predecessors_[at]) ready[at] = std::max(ready[at], end[from]);
            end[at] = ready[at] + pace.launch + machine_.microseconds(ops_[at]);
        }
        for (auto& [numbers, family] : families) {
            std::vector<int> order = family;
            std::stable_sort(order.begin(), order.end(),
                             [&](int a, int b) { return ready[a] < ready[b]; });
            std::vector<Waiting> updates;
            for (int at : order) updates.push_back({ready[at], machine_.microseconds(ops_[at])});
            int launch = 0, last = 0;
            const std::vector<size_t> cuts = best_cuts(updates, pace.launch);
            for (size_t i = 0; !cuts.empty() && i < order.size(); i++) {
                if (i == 0 || std::find(cuts.begin(), cuts.end(), i) != cuts.end()) launch++;
                for (int member : members_[group_[order[i]]])
                    for (int from : predecessors_[member])
                        if (group_[from] != group_[member] && !made_of_leaves_[from])
                            last = std::max(last, from);
                cut_[order[i]] = {launch, last + launch};
            }
            several_ |= launch > 0;
            if (launch > 0) family = order;
        }
    }

    /// One of several launches stands behind what it waits for, and behind those before it: the
    /// first makes the numbers for all. What those are made of stands where nothing waits for it.
    int stands_at(int group) const override {
        int last = 0;
        bool numbers = several_;
        for (int member : members_[group]) {
            last = std::max(last, cut_[member].last);
            numbers &= made_of_leaves_[member] != 0;
        }
        return numbers ? 0 : last > 0 ? last : Groups::stands_at(group);
    }

    /// Marks single numbers that are made of such and of what is there when a step begins.
    void find_numbers() {
        made_of_leaves_.assign(ops_.size(), 0);
        for (int at = 0; at < static_cast<int>(ops_.size()); at++) {
            const auto known = [&](int from) { return made_of_leaves_[from] != 0; };
            const auto number = [](const View& view) { return element_count(view.shape) == 1; };
            const auto all = [](const auto& range, const auto& is) {
                return std::all_of(range.begin(), range.end(), is);
            };
            made_of_leaves_[at] = all(ops_[at].inputs, number) && all(ops_[at].outputs, number) &&
                                  all(predecessors_[at], known);
        }
    }

    struct Cut {
        int launch = 0;  // which of several, from 1 on; 0: the only one
        int last = 0;    // it stands behind this op
    };
    std::vector<Cut> cut_;              // by op
    std::vector<char> made_of_leaves_;  // by op
    bool several_ = false;              // whether updates have several launches

    /// An update joins the latest group of a launch that takes it, or begins one: where groups come
    /// after this launch's, only its first.
    bool place(int at, size_t least, Launch& launch, bool last) {
        const size_t bytes = growth(at);
        std::vector<Head>& heads = launch.heads;
        for (size_t i = heads.size(); i-- > 0;) {
            Head& head = heads[i];
            if (bytes >= head.refused) continue;
            const Merge merged = merge(group_[head.op], group_[at], updates_side_by_side, INT_MAX);
            if (merged == Merge::done) return true;
            if (merged != Merge::too_large) continue;
            head.refused = bytes;
            if (bytes <= least) heads.erase(heads.begin() + static_cast<std::ptrdiff_t>(i));
        }
        if (std::exchange(launch.begun, true) && !last) return false;
        heads.push_back({at, SIZE_MAX});
        return true;
    }

    static bool packed(const View& view) { return is_contiguous(view.shape, view.strides); }

    /// Whether all that it does is to widen a gradient of 16 bits, or, of a large one, to add that
    /// or another to one of its own width.
    bool makes_gradient(const LoweredOp& op) const {
        if (op.outputs.size() != 1 || !std::all_of(op.inputs.begin(), op.inputs.end(), packed))
            return false;
        const auto is = [](const LoweredDef& def, const char* name) { return def.name == name; };
        const View& from = op.inputs[0];
        if (op.body.empty() && is(*op.def, "cast")) return is_16_bit(from.dtype);
        if (element_count(op.outputs[0].shape) < machine_.group_limits().update_elements ||
            op.inputs.size() != 2 || op.inputs[0].value == op.inputs[1].value)
            return false;
        if (op.body.empty()) return is(*op.def, "add");
        return op.body.size() == 2 && is(*op.body[0].def, "cast") && is_16_bit(from.dtype) &&
               is(*op.body[1].def, "add") && op.body[1].inputs[0] == op.body[0].outputs[0];
    }

    void take_gradient(int at) {
        const LoweredOp& op = ops_[at];
        if (!op.def->optimizer || op.def->numbers <= 0 || !op.body.empty()) return;
        const View& grad = op.inputs[kGradient];
        const int from = producer_[grad.value];
        if (from < 0 || !makes_gradient(ops_[from]) || members_[group_[from]].size() != 1 ||
            kept_[grad.value] || readers_[grad.value].size() != 1 ||
            !same_layout(grad, ops_[from].outputs[0]) ||
            !std::all_of(op.inputs.begin(), op.inputs.end(), packed) ||
            !std::all_of(op.outputs.begin(), op.outputs.end(), packed))
            return;
        merge(group_[at], group_[from], updates_side_by_side, INT_MAX);
    }

    /// What two updates must share: the op, the dtype and the numbers.
    static std::string numbers_of(const LoweredOp& op) {
        std::string key = cat(op.def->name, " ", dtype_name(op.outputs[0].dtype));
        for (size_t i = static_cast<size_t>(op.def->numbers); i < op.inputs.size(); i++) {
            const View& view = op.inputs[i];
            key += cat(" ", view.value, " ", dtype_size(view.dtype), " ", to_string(view.shape),
                       " ", to_string(view.strides), " ", view.offset);
        }
        return key;
    }

    /// Bytes of an argument block that an update adds at the least: its operands that no other
    /// update has.
    size_t growth(int at) const {
        const LoweredOp& op = ops_[at];
        const auto update = [&](int other) { return other != at && ops_[other].def->optimizer; };
        size_t bytes = 8 * pack_scalars(op).size();
        for (size_t i = 0; i < static_cast<size_t>(op.def->numbers); i++) {
            const ValueId id = op.inputs[i].value;
            const auto same = [&](const View& view) { return view.value == id; };
            const auto& readers = readers_[id];
            if (std::count_if(op.inputs.begin(), op.inputs.end(), same) == 1 &&
                !(producer_[id] >= 0 && update(producer_[id])) &&
                std::none_of(readers.begin(), readers.end(), update))
                bytes += operand_bytes(op.inputs[i]);
        }
        for (const View& view : op.outputs)
            if (kept_[view.value]) bytes += operand_bytes(view);
        return bytes;
    }
};

/// Scalar prologue: what makes an optimizer's numbers joins the updates that read them, unless it
/// shares a launch with others already; at the end of a step a launch of its own is waited for.
class ScalarPrologue : Groups {
  public:
    using Groups::Groups;
    void run() {
        std::vector<int> updates;
        for (int at = 0; at < static_cast<int>(ops_.size()); at++)
            if (anchor(ops_[at]).numbers > 0 &&
                (ops_[at].body.empty() ? tensor_update(ops_[at], machine_) : quick(ops_[at])))
                updates.push_back(at);
        // Where ops run side by side, others that read the numbers wait for the one that may begin
        // first.
        if (machine_.pace())
            std::stable_sort(updates.begin(), updates.end(),
                             [&](int a, int b) { return waits_until(a) < waits_until(b); });
        for (int at : updates)
            while (joins(at)) {  // its own numbers may follow
            }
        emit();
    }

  private:
    /// The last op that it waits for but for numbers.
    int waits_until(int at) const {
        int last = -1;
        for (int from : predecessors_[at])
            if (!number_update(ops_[from])) last = std::max(last, from);
        return last;
    }
    /// Whether others that read its numbers need not wait long for them.
    bool quick(const LoweredOp& op) const {
        return std::all_of(op.outputs.begin(), op.outputs.end(), [&](const View& view) {
            return element_count(view.shape) < machine_.group_limits().update_elements;
        });
    }

    bool joins(int at) {
        for (int member : members_[group_[at]])
            for (const View& view : ops_[member].inputs)
                if (const int from = producer_[view.value];
                    from >= 0 && number_update(ops_[from]) && group_[from] != group_[at] &&
                    members_[group_[from]].size() == 1 &&
                    merge(group_[at], group_[from], updates_side_by_side, INT_MAX) == Merge::done)
                    return true;
        return false;
    }
};

}  // namespace

void fuse_updates(Lowered& lowered, const Target& target) {
    MultiTensorApply(lowered, target).run();
    // If a gradient is never materialised, the segment of gradients in param order is dropped.
    std::vector<char> inner(lowered.values.size(), 0);
    for (const LoweredOp& op : lowered.ops)
        for (const View& view : op.inner) inner[view.value] = 1;
    if (std::any_of(lowered.param_grads.begin(), lowered.param_grads.end(),
                    [&](const auto& pair) { return inner[pair.second] != 0; }))
        lowered.param_grads.clear();
}
void fuse_scalars(Lowered& lowered, const Target& target) { ScalarPrologue(lowered, target).run(); }

}  // namespace aicf
