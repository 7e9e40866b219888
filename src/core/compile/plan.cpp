#include "core/compile/plan.h"

#include <algorithm>
#include <array>
#include <climits>
#include <map>
#include <set>
#include <utility>

#include "core/base/interrupt.h"
#include "core/compile/lanes.h"
#include "core/compile/memory.h"
#include "core/compile/paths.h"

namespace aicf {

namespace {

constexpr const char* kSegmentNames[kSegments] = {
    "params", "grads", "moments", "state", "inputs", "outputs", "temps", "constants", "counters"};

MemoryAccess scratch_of(const PlannedOp& planned) {
    return {static_cast<int>(Segment::temps), planned.scratch,
            planned.scratch + static_cast<int64_t>(planned.kernel->workspace_bytes), true};
}

MemoryAccess access_of(const Plan& plan, ValueId id, bool write) {
    const Place& place = plan.places[id];
    const int space =
        place.offset < 0 ? kSegments + place.storage : static_cast<int>(place.segment);
    const int64_t begin = std::max<int64_t>(place.offset, 0);
    return {space, begin, begin + place.bytes, write};
}

std::vector<MemoryAccess> accesses(const Plan& plan, const PlannedOp& planned) {
    std::vector<MemoryAccess> result;
    for (const View& view : planned.op.inputs) result.push_back(access_of(plan, view.value, false));
    for (const View& view : planned.op.outputs) result.push_back(access_of(plan, view.value, true));
    if (planned.scratch >= 0) result.push_back(scratch_of(planned));
    return result;
}

[[noreturn]] void too_large() {
    raise(ErrorKind::out_of_memory, "plan: it takes more than ", kMostBytes,
          " bytes; need smaller values");
}
int64_t sum(int64_t a, int64_t b) {
    if (a > kMostBytes - b) too_large();
    return a + b;
}

/// Computes the waits: for each op, the transitive reduction of its hazards with earlier ops.
void order_ops(Plan& plan) {
    Reachability order(plan.ops.size());
    HazardTracker memory;
    for (size_t i = 0; i < plan.ops.size(); i++) {
        poll();
        std::vector<int>& waits = plan.ops[i].waits;
        waits.clear();
        for (int op : memory.record(static_cast<int>(i), accesses(plan, plan.ops[i]))) {
            if (order.ordered_after(op)) continue;
            order.add_wait(op);
            waits.push_back(op);
        }
        order.finish_op();
        std::reverse(waits.begin(), waits.end());
    }
}

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
                sum(op.counters, align_up(static_cast<int64_t>(op.kernel->counter_bytes)));
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
        bytes(segment) = sum(bytes(segment), aligned_bytes(id));
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
                params = sum(params, aligned_bytes(value.id));
                any_own |= !shared_[value.id];
            }
            if (value.moment_of != kNone && !shared_[value.id])
                slots = std::max(slots, value.moment_slot + 1);
        }
        bytes(Segment::params) = any_own ? params : 0;
        for (int slot = 0; slot < slots; slot++)
            bytes(Segment::moments) = sum(bytes(Segment::moments), params);
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
            plan_.temps_without_reuse = sum(plan_.temps_without_reuse, temp.space);
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
            result.all = std::max(result.all, sum(offset, temp.space));
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
        const int64_t most = sum(found.all, growth);
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
            if (sum(offset, temp.space) > most) {
                offset = first_fit_in(list, temp);
                result.extra_waits = true;
            }
            take(list, temp, offset);
            if (temp.space) apart.take(temp.live, offset, offset + temp.space);
            result.offsets.push_back(offset);
            result.all = std::max(result.all, sum(offset, temp.space));
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

const char* segment_name(Segment segment) { return kSegmentNames[static_cast<int>(segment)]; }

int64_t Plan::peak_bytes() const {
    int64_t sum = 0;
    for (int64_t bytes : segment_bytes) sum += bytes;
    return sum;
}

Cost Plan::cost() const {
    Cost sum;
    for (const PlannedOp& planned : ops) sum += cost_of(planned.op);
    return sum;
}

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

namespace {

/// By segment, an upper bound of its size: the sum of its values; for temporaries and counters,
/// which are shared, the largest end.
std::array<int64_t, kSegments> most_bytes(const Plan& plan) {
    std::array<int64_t, kSegments> most = {};
    const auto add = [](int64_t a, int64_t b) { return a > kMostBytes - b ? kMostBytes : a + b; };
    const auto of = [&](Segment segment) -> int64_t& { return most[static_cast<size_t>(segment)]; };
    const auto reach = [&](Segment segment, int64_t begin, int64_t bytes) {
        of(segment) = std::max(of(segment), add(begin, align_up(bytes)));
    };
    int64_t params = 0;  // the layout that grads and moments repeat
    int slots = 0;
    for (const Value& value : plan.values) {
        const Place& place = plan.places[value.id];
        if (value.role == Role::param) params = add(params, align_up(place.bytes));
        if (value.moment_of != kNone) slots = std::max(slots, value.moment_slot + 1);
        if (place.storage != value.id || place.offset < 0) continue;
        if (place.segment == Segment::temps)
            reach(Segment::temps, place.offset, place.bytes);
        else
            of(place.segment) = add(of(place.segment), align_up(place.bytes));
    }
    std::set<ValueId> elsewhere;  // outputs that an assign moved to its target's place
    for (const Lowered::Output& output : plan.outputs)
        if (const Place& place = plan.places[output.value];
            place.segment != Segment::outputs && elsewhere.insert(output.value).second)
            of(Segment::outputs) = add(of(Segment::outputs), align_up(place.bytes));
    for (Segment segment : {Segment::params, Segment::grads}) reach(segment, 0, params);
    for (int64_t slot = 0, all = 0; slot < slots; slot++) {
        all = add(all, params);
        reach(Segment::moments, 0, all);
    }
    for (const PlannedOp& planned : plan.ops) {
        const Kernel& kernel = *planned.kernel;
        if (kernel.workspace_bytes)
            reach(Segment::temps, planned.scratch, static_cast<int64_t>(kernel.workspace_bytes));
        if (kernel.counter_bytes)
            reach(Segment::counters, planned.counters, static_cast<int64_t>(kernel.counter_bytes));
    }
    return most;
}

}  // namespace

void share_places(Plan& plan, const std::vector<std::string>& shared) {
    const std::set<std::string_view> names(shared.begin(), shared.end());
    constexpr Segment kinds[] = {Segment::params, Segment::moments, Segment::state};
    int64_t kept[kSegments] = {}, state = 0;
    for (const Value& value : plan.values) {
        Place& place = plan.places[value.id];
        if (place.storage != value.id || place.offset < 0) continue;
        if ((value.role == Role::param || value.role == Role::state) && names.contains(value.name))
            place = {value.role == Role::param ? Segment::params : Segment::state, -1, place.bytes,
                     value.id};
        else if (place.segment == Segment::state)
            state = sum(place.offset = state, align_up(place.bytes));
        kept[static_cast<int>(place.segment)] += place.offset >= 0;
    }
    for (Place& place : plan.places)
        if (const ValueId storage = place.storage; storage != kNone) {
            place = plan.places[storage];
            place.storage = storage;
        }
    for (Segment segment : kinds)
        if (!kept[static_cast<int>(segment)]) plan.segment_bytes[static_cast<int>(segment)] = 0;
    plan.segment_bytes[static_cast<int>(Segment::state)] = state;
}

void fit_kernels(Plan& plan, std::span<const int64_t>& scratch_sizes) {
    int64_t &counters = plan.segment_bytes[static_cast<int>(Segment::counters)] = 0,
            &temps = plan.segment_bytes[static_cast<int>(Segment::temps)];
    const int64_t end = align_up(temps);
    bool moved = false;
    for (size_t i = 0; i < plan.ops.size(); i++) {
        PlannedOp& op = plan.ops[i];
        const int64_t given = scratch_sizes[0];
        scratch_sizes = scratch_sizes.subspan(1);
        if (op.body) {
            auto body = std::make_shared<Plan>(*op.body);
            fit_kernels(*body, scratch_sizes);
            op.kernel = loop_kernel(op.op, *body);
            op.body = std::move(body);
        }
        op.counters = counters;
        counters = sum(counters, align_up(static_cast<int64_t>(op.kernel->counter_bytes)));
        if (op.kernel->workspace_bytes > static_cast<uint64_t>(kMostBytes)) too_large();
        const auto wanted = static_cast<int64_t>(op.kernel->workspace_bytes);
        if (wanted == 0) {
            op.scratch = 0;
        } else if (wanted > given) {
            op.scratch = end;
            temps = std::max(temps, sum(end, align_up(wanted)));
            moved = true;
        }
    }
    temps = std::min(temps, most_bytes(plan)[static_cast<size_t>(Segment::temps)]);
    if (moved) order_ops(plan);
}

Plan make_plan(const Lowered& lowered, const Target& target, const std::vector<std::string>& shared,
               const OnStage& done) {
    Plan plan = std::move(Planner(lowered, target, shared, done).plan_);
    tell(done, "plan");
    return plan;
}

namespace {

/// Simulates a plan op by op: every read must find its value in memory.
class PlanVerifier {
  public:
    explicit PlanVerifier(const Plan& plan) : plan_(plan), order_(plan.ops.size()) {}

    Report report() {
        if (!check_private_memory()) return std::move(report_);
        check_sizes();
        write_leaves();
        for (size_t i = 0; i < plan_.ops.size(); i++) {
            poll();
            check_waits(i);
            check_reads(i);
            check_overwrites(i);
            check_scratch(i);
            if (plan_.ops[i].body) check_loop(i);
            write_results(plan_.ops[i]);
        }
        check_counters();
        check_end();
        if (report_.ok())
            report_.pass("plan", cat("memory OK: no two live values overlap, ", plan_.ops.size(),
                                     " ops ordered, peak ", plan_.peak_bytes(), " bytes"));
        return std::move(report_);
    }

  private:
    template <class... Parts>
    void fail(const Parts&... parts) {
        report_.fail("plan", cat(parts...));
    }
    MemoryAccess access(ValueId id) const { return access_of(plan_, id, true); }
    bool holds(ValueId id) const { return memory_.holds(access(id), id); }
    std::string title_of(size_t i) const { return cat("op ", i, " ", plan_.ops[i].op.def->name); }

    /// Checks that each op's scratch and counters lie in their segments. False where computing
    /// their ends might overflow.
    bool check_private_memory() {
        bool bounded = true;
        const auto inside = [](int64_t at, uint64_t bytes, int64_t all) {
            return at >= 0 && at % kArenaAlign == 0 && at <= all &&
                   bytes <= static_cast<uint64_t>(all - at);
        };
        const auto small = [](int64_t at, uint64_t bytes) {
            return bytes == 0 || (static_cast<uint64_t>(at) <= static_cast<uint64_t>(kMostBytes) &&
                                  bytes <= static_cast<uint64_t>(kMostBytes));
        };
        const int64_t temps = plan_.segment_bytes[static_cast<int>(Segment::temps)],
                      counters = plan_.segment_bytes[static_cast<int>(Segment::counters)];
        for (size_t i = 0; i < plan_.ops.size(); i++) {
            const PlannedOp& planned = plan_.ops[i];
            const uint64_t scratch = planned.kernel->workspace_bytes,
                           counted = planned.kernel->counter_bytes;
            if (scratch ? !inside(planned.scratch, scratch, temps) : planned.scratch > kMostBytes)
                fail(title_of(i), " has ", scratch, " bytes of scratch at ", planned.scratch,
                     " of ", temps, " bytes of temporaries; need a multiple of ", kArenaAlign,
                     " among them");
            if (!inside(planned.counters, counted, counters))
                fail(title_of(i), " has ", counted, " bytes of counters at ", planned.counters,
                     " of ", counters, "; need a multiple of ", kArenaAlign, " among them");
            bounded &= small(planned.scratch, scratch) && small(planned.counters, counted);
        }
        return bounded;
    }
    void check_sizes() {
        const auto most = most_bytes(plan_);
        for (int r = 0; r < kSegments; r++)
            if (plan_.segment_bytes[r] > most[r])
                fail("region ", segment_name(static_cast<Segment>(r)), " has ",
                     plan_.segment_bytes[r], " bytes; need at most the ", most[r],
                     " of what lies in it");
    }
    void write_leaves() {
        for (const Value& value : plan_.values)
            if (value.role != Role::temp && plan_.places[value.id].storage != kNone) {
                if (const ValueId other = memory_.overlapping(access(value.id)); other != kNone)
                    fail("%", value.id, " and %", other, " share storage");
                memory_.write(access(value.id), value.id);
            }
    }

    void check_waits(size_t i) {
        std::vector<int> waits = plan_.ops[i].waits;
        std::sort(waits.begin(), waits.end(), std::greater<>());
        for (int wait : waits) order_.add_wait(wait);
        for (int other : hazards_.record(static_cast<int>(i), accesses(plan_, plan_.ops[i])))
            if (!order_.ordered_after(other))
                fail(title_of(i), " meets the memory of ", title_of(static_cast<size_t>(other)),
                     " but does not wait for it");
        order_.finish_op();
    }
    void check_reads(size_t i) {
        for (const View& view : plan_.ops[i].op.inputs)
            if (!holds(view.value))
                fail(title_of(i), " reads %", view.value, ", whose storage was overwritten");
    }
    /// Reports every output that overlaps an input of its op other than by a permitted in-place
    /// pair.
    void check_overwrites(size_t i) {
        const LoweredOp& op = plan_.ops[i].op;
        std::vector<std::pair<int, int>> allowed;
        bool asked = false;
        Contents inputs;
        std::vector<MemoryAccess> read;
        for (const View& view : op.inputs) {
            read.push_back(access(view.value));
            inputs.write(read.back(), view.value);
        }
        for (int out = 0; out < static_cast<int>(op.outputs.size()); out++) {
            const MemoryAccess written = access(op.outputs[out].value);
            if (inputs.overlapping(written) < 0) continue;
            if (!asked) allowed = inplace_of(op);
            asked = true;
            for (int in = 0; in < static_cast<int>(op.inputs.size()); in++)
                if (written.conflicts(read[in]) &&
                    (std::find(allowed.begin(), allowed.end(), std::pair(out, in)) ==
                         allowed.end() ||
                     !same_layout(op.outputs[out], op.inputs[in])))
                    fail(title_of(i), " writes %", op.outputs[out].value, " over %",
                         op.inputs[in].value, ", which it still reads");
        }
    }
    /// An op's scratch overlaps none of its operands.
    void check_scratch(size_t i) {
        const PlannedOp& planned = plan_.ops[i];
        if (!planned.kernel->workspace_bytes) return;
        const MemoryAccess scratch = scratch_of(planned);
        for (const auto* views : {&planned.op.inputs, &planned.op.outputs})
            for (const View& view : *views)
                if (scratch.conflicts(access(view.value)))
                    fail(title_of(i), " has scratch at ", scratch.begin, " to ", scratch.end,
                         ", over its own %", view.value);
    }
    void check_loop(size_t i) {
        const PlannedOp& planned = plan_.ops[i];
        const Report inside = verify(*planned.body);
        for (const ReportLine& line : inside.lines)
            if (!line.ok) report_.fail(line.area, cat("op ", i, " loop: ", line.text));
        if (loop_scratch(planned.op, *planned.body).bytes >
                static_cast<int64_t>(planned.kernel->workspace_bytes) ||
            planned.body->segment_bytes[static_cast<int>(Segment::counters)] >
                static_cast<int64_t>(planned.kernel->counter_bytes))
            fail("op ", i, " loop has less scratch than a turn needs");
    }
    void write_results(const PlannedOp& planned) {
        memory_.write(scratch_of(planned), kNone);
        for (const View& view : planned.op.outputs) memory_.write(access(view.value), view.value);
    }

    void check_counters() {
        for (int64_t next = 0; const PlannedOp& planned : plan_.ops) {
            if (planned.counters < next)
                fail("the counters of ", planned.op.def->name, " lie at ", planned.counters,
                     ", among another op's");
            next = planned.counters + static_cast<int64_t>(planned.kernel->counter_bytes);
            check_parts(*planned.kernel);
        }
    }
    /// The parts of a group have counters and scratch of their own.
    void check_parts(const Kernel& group) {
        const auto check = [&, free = uint64_t{0}](const Kernel::Part& part, const char* what,
                                                   uint64_t at, uint64_t bytes,
                                                   uint64_t all) mutable {
            if (at < free || at > all || bytes > all - at)
                fail("the ", what, " of a ", part.op.def->name, " lies at ", at, " of its group's ",
                     all, " bytes; need a place of its own from ", free, " on");
            free = at + bytes;
        };
        auto counters = check, scratch = check;
        for (const Kernel::Part& part : group.parts) {
            counters(part, "room for counters", part.counters, part.kernel->counter_bytes,
                     group.counter_bytes);
            scratch(part, "scratch", part.workspace, part.kernel->workspace_bytes,
                    group.workspace_bytes);
        }
    }
    /// Outputs, and what the next step reads.
    void check_end() {
        std::vector<ValueId> after(plan_.values.size());  // by value: what its storage holds
        for (size_t i = 0; i < after.size(); i++) after[i] = static_cast<ValueId>(i);
        for (const Assign& assign : plan_.assigns) after[assign.target] = assign.source;
        for (const Lowered::Output& output : plan_.outputs)
            if (!holds(after[output.value]))
                fail("output \"", output.name, "\" is overwritten before the step ends");
        for (const Value& value : plan_.values)
            if (value.role != Role::temp && plan_.places[value.id].storage == value.id &&
                !holds(after[value.id]))
                fail("%", value.id, " does not hold its content when the step ends");
        for (const Assign& assign : plan_.assigns)
            if (!holds(assign.source) ||
                !(access(assign.source).begin == access(assign.target).begin))
                fail("%", assign.target, " does not hold %", assign.source, " when the step ends");
    }

    const Plan& plan_;
    Report report_;
    Contents memory_;
    Reachability order_;
    HazardTracker hazards_;
};

}  // namespace

Report verify(const Plan& plan) { return PlanVerifier(plan).report(); }

}  // namespace aicf
