// Horizontal fusion: multi-tensor optimizer updates, and groups of small independent ops.
#include "core/compile/group.h"

#include <climits>
#include <limits>

#include "core/graph/region.h"

namespace aicf {

namespace {

// ---- optimizers ---------------------------------------------------------------------------------

/// Bytes of an operand in an argument block: its offset, address, sizes and strides.
size_t operand_bytes(const View& view) {
    return 4 + sizeof(Operand) + 16 * static_cast<size_t>(view.shape.rank());
}

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

bool number_update(const LoweredOp& op) {
    return op.def->optimizer && op.def->numbers == 0 && op.body.empty();
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

// ---- horizontal fusion --------------------------------------------------------------------------

bool small(const LoweredOp& op, const GroupLimits& limits) {
    const Cost cost = cost_of(op);
    return cost.bytes <= limits.bytes && cost.flops <= limits.flops;
}

/// Small ops of one topological level, which are independent, share a launch. So do, of any size,
/// casts of params, on a GPU of inputs too, updates, sums read by updates and small ops alone, and
/// products read by updates alone that leave room for each other: fused they take no longer than
/// apart. Copies and the like that nothing waits for do so as far as updates would.
class HorizontalFusion : Groups {
  public:
    HorizontalFusion(Lowered& lowered, const Target& target) : Groups(lowered, target) {
        for (const Value& value : lowered.values) {
            is_param_.push_back(value.role == Role::param);
            is_leaf_.push_back(is_leaf(value));
        }
    }
    void run() {
        constexpr size_t kTries = 4;
        find_unread();
        const std::vector<int> level = levels();
        std::vector<size_t> bytes(ops_.size(), 0);  // by the first op of a group
        const int many = level.empty() ? 0 : 1 + *std::max_element(level.begin(), level.end());
        std::vector<std::vector<int>> heads(kKinds * static_cast<size_t>(many));  // by level, kind
        for (int at = 0; at < static_cast<int>(ops_.size()); at++) {
            poll();
            const Kind kind = kind_of(at);
            if (ops_[at].def->alone || kind == Kind::none) continue;
            const size_t own = bytes_in_group(ops_[at]);
            if (own == 0) continue;
            std::vector<int>& known =
                heads[kKinds * static_cast<size_t>(level[at]) + static_cast<size_t>(kind)];
            const size_t oldest = known.size() < kTries ? 0 : known.size() - kTries;
            bool joined = false;
            for (size_t i = known.size(); i-- > oldest && !joined;) {
                const int head = known[i];
                // No path leaves a level and comes back to it.
                joined =
                    bytes[head] + own <= kMaxGroupBytes && apart(at, head) && together(at, head);
                if (!joined) continue;
                std::vector<int> merged = std::move(members_[head]);
                merged.push_back(at);
                join(head, at, std::move(merged));
                bytes[head] += own;
            }
            if (joined) continue;
            known.push_back(at);
            bytes[at] = sizeof(ArgBlock) + 2 * 64 + own;  // the block, and what it is rounded up by
        }
        for (int at = 0; at < static_cast<int>(ops_.size()); at++) join_product(at, level, bytes);
        emit();
    }

  private:
    enum class Kind { small, cast, sum, update, product, move, none };
    static constexpr size_t kKinds = 6;
    Kind kind_of(int at) const {
        const LoweredOp& op = ops_[at];
        if (op.def == group_def() || op.def == chain_def()) return Kind::none;
        if (unread_[static_cast<size_t>(at)]) return Kind::sum;
        if (updates_behind(op)) return Kind::update;
        const bool casts = op.def->name == "cast";
        if (casts && machine_.pace() && is_leaf_[op.inputs[0].value]) return Kind::cast;
        if (small(op, machine_.group_limits())) return Kind::small;
        if (casts && is_param_[op.inputs[0].value]) return Kind::cast;
        if (anchor(op).optimizer && !op.body.empty()) return Kind::update;
        if (anchor(op).gemm && weight_gradient(op) && machine_.leaves_room(op))
            return Kind::product;
        if (last_move(at)) return Kind::move;
        return late_sum(at) ? Kind::sum : Kind::none;
    }

    /// What is over in a moment and on no path of a step that matters: scalars of updates, a loss.
    bool is_minor(int at) const {
        const LoweredOp& op = ops_[at];
        return numbers_region(op) || (small(op, machine_.group_limits()) && anchor(op).streams &&
                                      elements(op.outputs[0]) == 1 && successors_[at].empty());
    }

    /// A single number of what is there when a step begins: the launch of casts has room for it.
    bool is_early(int at) const {
        const LoweredOp& op = ops_[at];
        return predecessors_[at].empty() && small(op, machine_.group_limits()) &&
               std::all_of(op.outputs.begin(), op.outputs.end(),
                           [](const View& out) { return elements(out) == 1; });
    }

    /// A scalar of updates that wait for cuts anyhow, while it could be made; made of what others'
    /// launches make.
    bool waits_for_cuts(int at) const {
        const auto adds = [&](int update) {
            const LoweredOp& op = ops_[update];
            return std::any_of(op.body.begin(), op.body.end(),
                               [&](const RegionStep& step) { return adds_cuts(op, step); });
        };
        const auto shares = [&](int other) { return members_[group_[other]].size() > 1; };
        return number_update(ops_[at]) && !successors_[at].empty() &&
               std::all_of(successors_[at].begin(), successors_[at].end(), adds) &&
               std::all_of(predecessors_[at].begin(), predecessors_[at].end(), shares);
    }

    /// A group of minor ops shares the launch of a product, or of casts, behind what they wait for,
    /// and before what waits for them: as a launch of their own they would be a branch.
    void join_product(int at, const std::vector<int>& level, std::vector<size_t>& bytes) {
        const std::vector<int>& own = members_[at];
        // A number alone is one of updates apart, which stand beside products anyhow.
        const bool number =
            own.size() == 1 && ops_[own[0]].body.empty() && ops_[own[0]].def->numbers == 0;
        const auto all = [&](auto is) { return std::all_of(own.begin(), own.end(), is); };
        const bool minor = all([&](int member) { return is_minor(member); }),
                   early = all([&](int member) { return is_early(member); });
        const auto stands_beside = [&](int host) {
            return number ? members_[host].size() > 1 && waits_for_cuts(own[0]) : minor;
        };
        if (!machine_.pace() || own.empty() || !(number || minor || early)) return;
        int first = 0, end = INT_MAX;  // levels
        size_t size = 0;
        for (int member : own) {
            first = std::max(first, level[member]);
            for (int next : successors_[member]) end = std::min(end, level[next]);
            size += bytes_in_group(ops_[member]);
        }
        for (int host = static_cast<int>(ops_.size()); host-- > 0;) {
            if (level[host] < first || level[host] >= end || members_[host].empty() ||
                group_[host] == at ||
                !(kind_of(host) == Kind::cast ||
                  (stands_beside(host) && machine_.takes_beside(ops_[host]))) ||
                !std::all_of(
                    own.begin(), own.end(),
                    [&](int member) { return apart(member, host) && together(member, host); }))
                continue;
            const size_t taken = members_[host].size() > 1
                                     ? bytes[host]
                                     : sizeof(ArgBlock) + 2 * 64 + bytes_in_group(ops_[host]);
            if (taken + size > kMaxGroupBytes) continue;
            bytes[host] = taken + size;
            std::vector<int> merged;
            std::merge(own.begin(), own.end(), members_[host].begin(), members_[host].end(),
                       std::back_inserter(merged));
            join(host, at, std::move(merged));
            return;
        }
    }

    /// A product that updates alone wait for.
    bool weight_gradient(const LoweredOp& op) const {
        return std::all_of(op.outputs.begin(), op.outputs.end(), [&](const View& out) {
            const auto& readers = readers_[out.value];
            return !kept_[out.value] && !readers.empty() &&
                   std::all_of(readers.begin(), readers.end(),
                               [&](int reader) { return anchor(ops_[reader]).optimizer; });
        });
    }

    /// A copy, or a concat of what is there, whose parts nothing here could write.
    bool last_move(int at) const {
        const LoweredOp& op = ops_[at];
        return machine_.pace() && op.body.empty() && successors_[at].empty() &&
               (op.def->name == "copy" ||
                (op.def->name == "concat" && predecessors_[at].empty())) &&
               elements(op.outputs[0]) < machine_.group_limits().update_elements;
    }

    static int64_t elements(const View& view) { return element_count(view.shape); }

    /// Small reductions for which none of the step waits, a loss, go with later sums where these
    /// are large: small ops stand beside few of those.
    void find_unread() {
        unread_.assign(ops_.size(), 0);
        std::vector<int> found;
        int sums = 0;
        for (int at = 0; at < static_cast<int>(ops_.size()); at++) {
            const Kind kind = kind_of(at);
            sums += kind == Kind::sum;
            if (kind == Kind::small && anchor(ops_[at]).streams && successors_[at].empty())
                found.push_back(at);
        }
        for (int at : found) unread_[static_cast<size_t>(at)] = machine_.pace() && sums > 1;
    }

    /// A reduction to fewer elements, for which updates and small ops alone wait.
    bool late_sum(int at) const {
        constexpr int64_t kFewer = 4;
        const LoweredOp& op = ops_[at];
        if (!anchor(op).streams) return false;
        int64_t most = 0;
        for (const View& out : op.outputs) {
            most = std::max(most, elements(out));
            const auto& readers = readers_[out.value];
            if (kept_[out.value] || readers.empty() ||
                !std::all_of(readers.begin(), readers.end(), [&](int reader) {
                    return anchor(ops_[reader]).optimizer ||
                           small(ops_[reader], machine_.group_limits());
                }))
                return false;
        }
        return std::any_of(op.inputs.begin(), op.inputs.end(),
                           [&](const View& view) { return elements(view) >= kFewer * most; });
    }

    /// Whether what it reads is there until an update reads it: it may wait as long.
    bool reads_gradients(int at) const {
        return std::all_of(ops_[at].inputs.begin(), ops_[at].inputs.end(), [&](const View& view) {
            const auto& readers = readers_[view.value];
            return elements(view) == 1 ||
                   std::any_of(readers.begin(), readers.end(),
                               [&](int reader) { return anchor(ops_[reader]).optimizer; });
        });
    }

    /// The topological level of each op, moved later for some sums so that they share a launch: one
    /// that reads the operand of a row op goes to the level after that op, one of other elements to
    /// the next such level, one of a gradient, or a scalar one, to the level before its first
    /// reader.
    std::vector<int> levels() const {
        constexpr int kNear = 4;
        const int count = static_cast<int>(ops_.size());
        const auto behind = [&](const std::vector<int>& least) {
            std::vector<int> level(ops_.size(), 0);
            for (int at = 0; at < count; at++) {
                level[at] = std::max(level[at], least[at]);
                for (int next : successors_[at]) level[next] = std::max(level[next], level[at] + 1);
            }
            return level;
        };
        std::vector<int> least(ops_.size(), 0), others;
        const std::vector<int> first = behind(least);
        std::vector<char> taken(ops_.size() + 1, 0);  // by level: sums stand there
        for (int at = 0; at < count; at++) {
            const Kind kind = kind_of(at);
            const bool number = kind == Kind::small && anchor(ops_[at]).streams &&
                                elements(ops_[at].outputs[0]) == 1;
            if (kind != Kind::sum && !number) continue;
            if (number || reads_gradients(at)) {
                int until = INT_MAX;
                for (int next : successors_[at]) until = std::min(until, first[next]);
                if (until != INT_MAX) least[at] = until - 1;
                continue;
            }
            for (const View& view : ops_[at].inputs)
                for (int other : readers_[view.value])
                    if (producer_[view.value] >= 0 && !anchor(ops_[other]).rows.empty())
                        least[at] = std::max(least[at], std::min(first[other], first[at]) + 1);
            if (least[at] > 0)
                taken[static_cast<size_t>(std::max(least[at], first[at]))] = 1;
            else
                others.push_back(at);
        }
        std::erase_if(others, [&](int at) {
            for (int level = first[at]; level <= std::min(first[at] + kNear, count); level++)
                if (taken[static_cast<size_t>(level)]) {
                    least[at] = level;
                    return true;
                }
            return false;
        });
        if (machine_.pace()) {
            wait_for_last(first, least);
            gather(others, behind(least), least);
        }
        return behind(least);
    }

    /// What values take on each level, from the one that writes them to the last that reads them.
    class Room {
      public:
        Room(const std::vector<LoweredOp>& ops, const std::vector<int>& producer,
             const std::vector<int>& level)
            : from_(producer.size(), INT_MAX), last_(producer.size(), -1), bytes_(producer.size()) {
            for (size_t at = 0; at < ops.size(); at++)
                for (const auto* views : {&ops[at].inputs, &ops[at].outputs})
                    for (const View& view : *views) {
                        if (producer[view.value] < 0) continue;
                        from_[view.value] = std::min(from_[view.value], level[at]);
                        last_[view.value] = std::max(last_[view.value], level[at]);
                        bytes_[view.value] = std::max(bytes_[view.value], view_bytes(view));
                    }
            for (const int l : level) taken_.resize(std::max(taken_.size(), size_t(l) + 1));
            for (size_t value = 0; value < from_.size(); value++) add(value, from_[value]);
            most_ = taken_.empty() ? 0 : *std::max_element(taken_.begin(), taken_.end());
        }
        /// Keeps a value up to a level, unless more would be taken at a time than now.
        bool keep(ValueId value, int level) {
            const int first = last_[value] + 1;
            if (last_[value] < 0 || first > level) return true;
            for (int l = first; l <= level; l++)
                if (taken_[static_cast<size_t>(l)] + bytes_[value] > most_) return false;
            last_[value] = level;
            add(static_cast<size_t>(value), first);
            return true;
        }

      private:
        void add(size_t value, int first) {
            for (int l = first; l <= last_[value]; l++)
                taken_[static_cast<size_t>(l)] += bytes_[value];
        }
        std::vector<int> from_, last_;       // by value: levels
        std::vector<double> bytes_, taken_;  // by value; by level
        double most_ = 0;
    };

    /// Sums wait for those behind them, until something reads them, where what they read has room
    /// so long.
    void gather(std::vector<int> sums, const std::vector<int>& first,
                std::vector<int>& least) const {
        Room room(ops_, producer_, first);
        std::stable_sort(sums.begin(), sums.end(),
                         [&](int a, int b) { return first[a] < first[b]; });
        std::vector<int> waiting;
        int until = INT_MAX;
        const auto keeps = [&](int sum, int level) {
            return std::all_of(ops_[sum].inputs.begin(), ops_[sum].inputs.end(),
                               [&](const View& view) { return room.keep(view.value, level); });
        };
        for (int at : sums) {
            const int level = first[at];
            if (level > until || !std::all_of(waiting.begin(), waiting.end(),
                                              [&](int sum) { return keeps(sum, level); })) {
                waiting.clear();
                until = INT_MAX;
            }
            waiting.push_back(at);
            for (int next : successors_[at]) until = std::min(until, first[next] - 1);
            for (int sum : waiting) least[sum] = level;
        }
    }

    /// Updates that may begin in the last twentieth of a step wait for the last one, those that are
    /// epilogues anyhow: they are few and small.
    void wait_for_last(const std::vector<int>& first, std::vector<int>& least) const {
        int last = 0;
        const auto each = [&](const auto& update) {
            for (int at = 0; at < static_cast<int>(ops_.size()); at++)
                if (kind_of(at) == Kind::update && successors_[at].empty()) update(at);
        };
        each([&](int at) { last = std::max(last, first[at]); });
        each([&](int at) {
            if (first[at] >= last - last / 20 || updates_behind(ops_[at])) least[at] = last;
        });
    }

    /// Bytes a member adds to a group's argument block: its own block, and its operands once more;
    /// 0: it has no kernel.
    size_t bytes_in_group(const LoweredOp& op) const {
        size_t bytes = machine_.block_bytes(op).value_or(0);
        for (const auto* views : {&op.inputs, &op.outputs})
            for (const View& view : *views) bytes += bytes > 0 ? operand_bytes(view) : 0;
        return bytes;
    }

    /// Whether there is no WAR hazard on a param or state between an op and a group.
    bool apart(int op, int group) const {
        const auto inside = [&](int other) { return other >= 0 && group_[other] == group; };
        for (const View& view : ops_[op].outputs)
            if (const ValueId target = target_[view.value]; target != kNone)
                if (std::any_of(readers_[target].begin(), readers_[target].end(), inside))
                    return false;
        for (const View& view : ops_[op].inputs)
            if (const ValueId next = next_of_[view.value]; next != kNone)
                if (inside(producer_[next])) return false;
        return true;
    }

    /// Numbers that a step begins with, wherever they stand, come behind what takes longer.
    LoweredOp compose(const std::vector<int>& members, int, int) const override {
        std::vector<int> order = members;
        if (machine_.pace())
            std::stable_partition(order.begin(), order.end(),
                                  [&](int member) { return !is_early(member); });
        return group_of(ops_, order);
    }

    std::vector<char> is_param_, is_leaf_;  // by value
    std::vector<char> unread_;              // by op: sums
};

}  // namespace

LoweredOp group_of(const std::vector<LoweredOp>& ops, const std::vector<int>& members) {
    LoweredOp result;
    result.def = group_def();
    result.node = ops[members.back()].node;
    for (int member : members) {
        for (const View& view : ops[member].inputs)
            if (find_view(result.inputs, view) < 0) result.inputs.push_back(view);
        for (const View& view : ops[member].outputs) result.outputs.push_back(view);
        result.members.push_back(ops[member]);
    }
    return result;
}

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
void fuse_horizontally(Lowered& lowered, const Target& target) {
    HorizontalFusion(lowered, target).run();
}
void fuse_scalars(Lowered& lowered, const Target& target) { ScalarPrologue(lowered, target).run(); }

}  // namespace aicf
