// Horizontal fusion: small independent ops, and others that take no longer together, as one launch.
#include <climits>

#include "core/compile/group.h"
#include "core/graph/region.h"

namespace aicf {

namespace {

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

void fuse_horizontally(Lowered& lowered, const Target& target) {
    HorizontalFusion(lowered, target).run();
}

}  // namespace aicf
