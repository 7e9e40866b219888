// Makes the plan of a lowered graph: kernels, a place for every value, waits.
#include <algorithm>
#include <climits>
#include <set>
#include <utility>

#include "core/base/interrupt.h"
#include "core/compile/lanes.h"
#include "core/compile/plan.h"
#include "core/compile/plan_memory.h"

namespace aicf {

namespace {

class Planner {
  public:
    Planner(const Lowered& lowered, const Target& target, const std::vector<std::string>& shared,
            const OnStage& done)
        : lowered_(lowered), shared_(lowered.values.size(), 0) {
        const std::set<std::string_view> elsewhere(shared.begin(), shared.end());
        for (const Value& value : lowered.values)
            if (is_leaf(value)) shared_[value.id] = elsewhere.contains(value.name);
        plan_.name = lowered.name;
        plan_.device = target.kind();
        plan_.values = lowered.values;
        plan_.outputs = lowered.outputs;
        plan_.assigns = lowered.assigns;
        plan_.places.resize(lowered.values.size());
        for (const LoweredOp& op : lowered.ops) {
            poll();
            if (!op.loop) {
                plan_.ops.push_back({op, target.select(op), 0, 0, 0, {}});
                continue;
            }
            auto body = std::make_shared<const Plan>(make_plan(*op.loop, target, {}));
            plan_.ops.push_back({op, loop_kernel(op, *body), 0, 0, 0, {}, body});
        }
        tell(done, "select");
        find_live_ranges();
        place_leaves();
        place_outputs();
        for (PlannedOp& op : plan_.ops) {
            op.counters = bytes(Segment::counters);
            bytes(Segment::counters) =
                add_bytes(op.counters, align_up(static_cast<int64_t>(op.kernel->counter_bytes)));
        }
        place_temps(target.lanes());
    }
    Plan plan_;

  private:
    int64_t& bytes(Segment segment) { return plan_.segment_bytes[static_cast<int>(segment)]; }

    void find_live_ranges() {
        first_.assign(lowered_.values.size(), INT_MAX);
        last_.assign(lowered_.values.size(), -1);
        for (int i = 0; i < static_cast<int>(lowered_.ops.size()); i++) {
            for (const View& view : lowered_.ops[i].inputs) last_[view.value] = i;
            for (const View& view : lowered_.ops[i].outputs) {
                first_[view.value] = std::min(first_[view.value], i);
                last_[view.value] = std::max(last_[view.value], i);
            }
        }
    }

    void put(ValueId id, Segment segment, int64_t offset) {
        plan_.places[id] = {segment, offset, byte_count(lowered_.values[id].type), id};
    }
    void append(ValueId id, Segment segment) {
        put(id, segment, bytes(segment));
        bytes(segment) = add_bytes(bytes(segment), aligned_bytes(id));
    }
    int64_t aligned_bytes(ValueId id) const {
        const int64_t bytes = byte_count(lowered_.values[id].type);
        if (bytes > kMostBytes) too_large();
        return align_up(bytes);
    }
    /// Params get one layout, repeated by grads and each moment slot; the rest are appended in id
    /// order.
    void place_leaves() {
        std::vector<int64_t> layout(lowered_.values.size(), -1);
        int64_t params = 0;
        bool any_own = false;
        int slots = 0;
        for (const Value& value : lowered_.values) {
            if (value.role == Role::param) {
                layout[value.id] = params;
                params = add_bytes(params, aligned_bytes(value.id));
                any_own |= !shared_[value.id];
            }
            if (value.moment_of != kNone && !shared_[value.id])
                slots = std::max(slots, value.moment_slot + 1);
        }
        bytes(Segment::params) = any_own ? params : 0;
        for (int slot = 0; slot < slots; slot++)
            bytes(Segment::moments) = add_bytes(bytes(Segment::moments), params);
        bytes(Segment::grads) = lowered_.param_grads.empty() ? 0 : params;
        for (const Value& value : lowered_.values) {
            const ValueId id = value.id;
            if (value.role == Role::param)
                put(id, Segment::params, layout[id]);
            else if (value.moment_of != kNone)
                put(id, Segment::moments, value.moment_slot * params + layout[value.moment_of]);
            else if (value.role == Role::state && !shared_[id])
                append(id, Segment::state);
            else if (value.role == Role::ring)
                append(id, Segment::outputs);
            else if (value.role == Role::input && !shared_[id])
                append(id, Segment::inputs);
            else if (value.role == Role::constant && last_[id] >= 0)
                append(id, Segment::constants);
            if (shared_[id])
                plan_.places[id] = {value.role == Role::param   ? Segment::params
                                    : value.role == Role::input ? Segment::inputs
                                                                : Segment::state,
                                    -1, byte_count(value.type), id};
        }
        std::vector<char> taken(lowered_.values.size(), 0);  // two optimizers may update one param
        for (auto [param, grad] : lowered_.param_grads)
            if (lowered_.values[grad].role == Role::temp && plan_.places[grad].storage == kNone &&
                lowered_.values[grad].type == lowered_.values[param].type &&
                !std::exchange(taken[param], 1))
                put(grad, Segment::grads, layout[param]);
    }

    void place_outputs() {
        for (const Lowered::Output& output : lowered_.outputs)
            if (plan_.places[output.value].storage == kNone) append(output.value, Segment::outputs);
        for (const Assign& assign : lowered_.assigns) {
            plan_.places[assign.source] = plan_.places[assign.target];
            plan_.places[assign.source].storage = assign.target;
        }
    }

    /// In-place sharing: an output takes the storage of a temporary whose live range ends at its
    /// op, where the op's definition allows it. With lanes, only if all other accesses are already
    /// ordered before the op, so that reuse adds no edge.
    void share_in_place(const Lanes* lanes) {
        std::vector<std::vector<int>> users;
        if (lanes) users = find_users();
        std::vector<ValueId> storage(lowered_.values.size());
        for (size_t i = 0; i < storage.size(); i++) storage[i] = static_cast<ValueId>(i);
        for (int i = 0; i < static_cast<int>(lowered_.ops.size()); i++) {
            const LoweredOp& op = lowered_.ops[i];
            std::vector<ValueId> taken;
            for (auto [out, in] : inplace_of(op)) {
                if (in >= static_cast<int>(op.inputs.size())) continue;
                const View &from = op.inputs[in], &to = op.outputs[out];
                const ValueId root = storage[from.value];
                if (plan_.places[to.value].storage != kNone || storage[to.value] != to.value)
                    continue;
                if (lowered_.values[root].role != Role::temp || plan_.places[root].storage != kNone)
                    continue;
                if (last_[root] != i || !same_layout(from, to) ||
                    byte_count(lowered_.values[root].type) !=
                        byte_count(lowered_.values[to.value].type))
                    continue;
                bool clear = std::find(taken.begin(), taken.end(), root) == taken.end();
                for (int j = 0; j < static_cast<int>(op.inputs.size()); j++)
                    if (j != in && storage[op.inputs[j].value] == root)
                        clear &= anchor(op).pointwise && may_overwrite(op, out, j);
                if (lanes)
                    for (int user : users[root]) clear &= user == i || lanes->comes_before(user, i);
                if (!clear) continue;
                if (lanes)
                    users[root].insert(users[root].end(), users[to.value].begin(),
                                       users[to.value].end());
                storage[to.value] = root;
                taken.push_back(root);
                last_[root] = std::max(last_[root], last_[to.value]);
            }
        }
        for (size_t i = 0; i < storage.size(); i++)
            if (storage[i] != static_cast<ValueId>(i))
                plan_.places[i] = {Segment::temps, -1, 0, storage[i]};
    }

    /// A temporary, or the scratch of an op.
    struct Temp {
        ValueId value;  // kNone: scratch
        int64_t bytes, space;
        int first, last;  // in the list
        LaneAllocator::LiveRange live;
    };

    /// By storage, the ops that access it.
    std::vector<std::vector<int>> find_users() const {
        std::vector<std::vector<int>> users(lowered_.values.size());
        for (int i = 0; i < static_cast<int>(lowered_.ops.size()); i++)
            for (const auto* views : {&lowered_.ops[i].inputs, &lowered_.ops[i].outputs})
                for (const View& view : *views) {
                    const ValueId storage = plan_.places[view.value].storage;
                    std::vector<int>& all = users[storage == kNone ? view.value : storage];
                    if (all.empty() || all.back() != i) all.push_back(i);
                }
        return users;
    }

    std::vector<Temp> find_temps() {
        std::vector<Temp> temps;
        std::vector<std::vector<int>> users = find_users();
        for (const Value& value : lowered_.values) {
            const ValueId id = value.id;
            if (value.role != Role::temp || first_[id] == INT_MAX ||
                plan_.places[id].storage != kNone)
                continue;
            temps.push_back({id,
                             byte_count(value.type),
                             aligned_bytes(id),
                             first_[id],
                             last_[id],
                             {first_[id], std::move(users[id])}});
            put(id, Segment::temps, -1);
        }
        for (int i = 0; i < static_cast<int>(plan_.ops.size()); i++)
            if (const uint64_t wanted = plan_.ops[i].kernel->workspace_bytes) {
                if (wanted > static_cast<uint64_t>(kMostBytes)) too_large();
                const auto bytes = static_cast<int64_t>(wanted);
                temps.push_back({kNone, bytes, align_up(bytes), i, i, {i, {i}}});
                plan_.ops[i].scratch = -1;
            }
        plan_.temps_without_reuse = 0;
        for (const Temp& temp : temps)
            plan_.temps_without_reuse = add_bytes(plan_.temps_without_reuse, temp.space);
        std::stable_sort(temps.begin(), temps.end(),
                         [](const Temp& a, const Temp& b) { return a.bytes > b.bytes; });
        resolve_aliases();
        return temps;
    }

    /// Copies the place of a storage to the values that share it in place.
    void resolve_aliases() {
        for (Place& place : plan_.places)
            if (place.segment == Segment::temps && place.storage != kNone) {
                const ValueId storage = place.storage;
                place = plan_.places[storage];
                place.storage = storage;
            }
    }

    struct Layout {
        std::vector<int64_t> offsets;  // by temporary
        int64_t all = 0;               // total bytes
        bool extra_waits = true;       // reuse may add edges to the partial order
    };

    /// First fit, with live ranges as intervals of the list.
    Layout layout_by_list(const std::vector<Temp>& temps) const {
        Layout result;
        TimeTree list(static_cast<int>(plan_.ops.size()));
        for (const Temp& temp : temps) {
            poll();
            const int64_t offset = first_fit_in(list, temp);
            take(list, temp, offset);
            result.offsets.push_back(offset);
            result.all = std::max(result.all, add_bytes(offset, temp.space));
        }
        return result;
    }
    static int64_t first_fit_in(const TimeTree& list, const Temp& temp) {
        std::vector<const RangeSet*> taken;
        if (temp.space) list.find(temp.first, temp.last, taken);
        return first_fit(taken, temp.space);
    }
    static void take(TimeTree& list, const Temp& temp, int64_t offset) {
        if (temp.space) list.take(temp.first, temp.last, offset, offset + temp.space);
    }

    /// First fit, largest first. With lanes, live ranges follow the partial order, so that reuse
    /// adds no edge between ops that could run concurrently; this may cost kGrowth percent or kFree
    /// bytes more than list order, whichever is larger. What would exceed that falls back to list
    /// order.
    void place_temps(int most_lanes) {
        const std::vector<Place> places = plan_.places;
        const std::vector<int> last = last_;
        const auto restart = [&] {
            plan_.places = places;
            last_ = last;
        };
        share_in_place(nullptr);
        std::vector<Temp> temps = find_temps();
        const Layout found = layout_by_list(temps);
        const int64_t growth = std::max(kFree, (plan_.peak_bytes() + found.all) / 100 * kGrowth);
        const int64_t most = add_bytes(found.all, growth);
        const auto try_lanes = [&](bool in_place) {
            restart();
            if (in_place) share_in_place(nullptr);
            temps = find_temps();
            order_ops(plan_);
            std::vector<std::vector<int>> waits;
            for (const PlannedOp& op : plan_.ops) waits.push_back(op.waits);
            const Lanes lanes(waits, most_lanes);
            if (!in_place) {
                restart();
                share_in_place(&lanes);
                temps = find_temps();
            }
            // Fallbacks to list order start at the limit and fill gaps badly, so the total may
            // exceed `most`; then a lower limit for the partial order is tried.
            for (const int64_t part : {growth, growth / 2, growth / 4, int64_t{0}}) {
                const Layout apart = layout_by_lanes(temps, lanes, found.all + part);
                if (apart.all > most) continue;
                apply(temps, apart);
                for (size_t i = 0; i < plan_.ops.size(); i++)
                    plan_.ops[i].lane = lanes.lane(static_cast<int>(i));
                if (apart.extra_waits) order_ops(plan_);
                return true;
            }
            return false;
        };
        if (most_lanes > 1 && !temps.empty() && (try_lanes(false) || try_lanes(true))) return;
        restart();
        share_in_place(nullptr);
        apply(find_temps(), found);
        order_ops(plan_);
    }

    static constexpr int64_t kGrowth = 10, kFree = 64 << 20;  // percent of all bytes; bytes

    /// First fit by the partial order; a temporary that would end beyond `most` falls back to list
    /// order.
    Layout layout_by_lanes(const std::vector<Temp>& temps, const Lanes& lanes, int64_t most) const {
        Layout result;
        result.extra_waits = false;
        TimeTree list(static_cast<int>(plan_.ops.size()));
        LaneAllocator apart(lanes);
        for (const Temp& temp : temps) {
            poll();
            int64_t offset = temp.space ? apart.first_fit_offset(temp.live, temp.space) : 0;
            if (add_bytes(offset, temp.space) > most) {
                offset = first_fit_in(list, temp);
                result.extra_waits = true;
            }
            take(list, temp, offset);
            if (temp.space) apart.take(temp.live, offset, offset + temp.space);
            result.offsets.push_back(offset);
            result.all = std::max(result.all, add_bytes(offset, temp.space));
        }
        return result;
    }

    void apply(const std::vector<Temp>& temps, const Layout& places) {
        for (size_t i = 0; i < temps.size(); i++)
            if (temps[i].value == kNone)
                plan_.ops[temps[i].first].scratch = places.offsets[i];
            else
                put(temps[i].value, Segment::temps, places.offsets[i]);
        resolve_aliases();
        bytes(Segment::temps) = places.all;
    }

    const Lowered& lowered_;
    std::vector<char> shared_;  // by value
    std::vector<int> first_, last_;
};

}  // namespace

/// `inside` a loop's body, or of a group's members: a library's call is a launch of its own, on
/// operands that lie as a trial's do.
static void choose_candidates(Lowered& lowered, const Candidates& given, const Target& target,
                              bool in_loop) {
    const auto choose = [&](LoweredOp& op, bool inside) {
        const std::vector<std::string> names = target.candidates(op);
        const auto at = given.empty() ? given.end() : given.find(signature(op));
        if (names.size() > 1) op.candidate = names[0];
        if (at == given.end() || (inside && is_foreign(at->second))) return;
        op.candidate = at->second;
        if (std::find(names.begin(), names.end(), op.candidate) != names.end()) return;
        if (is_foreign(op) && target.takes_foreign(op)) return;
        std::string list;
        for (const std::string& name : names) list += (list.empty() ? "" : ", ") + name;
        raise(ErrorKind::graph, "compile: candidates names \"", op.candidate, "\" for ", at->first,
              "; need ", list.empty() ? "none, as there is one kernel for it" : "one of " + list);
    };
    for (LoweredOp& op : lowered.ops) {
        if (op.loop) {
            Lowered body = *op.loop;
            choose_candidates(body, given, target, true);
            op.loop = std::make_shared<const Lowered>(std::move(body));
            continue;
        }
        choose(op, in_loop);
        if (is_one_block(op)) continue;  // its members have no kernels of their own
        for (LoweredOp& member : op.members) choose(member, true);
    }
}

void choose_candidates(Lowered& lowered, const Candidates& given, const Target& target) {
    choose_candidates(lowered, given, target, false);
}

Plan make_plan(const Lowered& lowered, const Target& target, const std::vector<std::string>& shared,
               const OnStage& done) {
    Plan plan = std::move(Planner(lowered, target, shared, done).plan_);
    tell(done, "plan");
    return plan;
}

}  // namespace aicf
