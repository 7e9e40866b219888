#include "core/compile/plan.h"

#include <algorithm>
#include <set>

#include "core/compile/paths.h"
#include "core/compile/plan_memory.h"

namespace aicf {

namespace {

constexpr const char* kSegmentNames[kSegments] = {
    "params", "grads", "moments", "state", "inputs", "outputs", "temps", "constants", "counters"};

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

void too_large() {
    raise(ErrorKind::out_of_memory, "plan: it takes more than ", kMostBytes,
          " bytes; need smaller values");
}

int64_t add_bytes(int64_t a, int64_t b) {
    if (a > kMostBytes - b) too_large();
    return a + b;
}

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
            state = add_bytes(place.offset = state, align_up(place.bytes));
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
        counters = add_bytes(counters, align_up(static_cast<int64_t>(op.kernel->counter_bytes)));
        if (op.kernel->workspace_bytes > static_cast<uint64_t>(kMostBytes)) too_large();
        const auto wanted = static_cast<int64_t>(op.kernel->workspace_bytes);
        if (wanted == 0) {
            op.scratch = 0;
        } else if (wanted > given) {
            op.scratch = end;
            temps = std::max(temps, add_bytes(end, align_up(wanted)));
            moved = true;
        }
    }
    temps = std::min(temps, most_bytes(plan)[static_cast<size_t>(Segment::temps)]);
    if (moved) order_ops(plan);
}

}  // namespace aicf
