// The checks of a plan, from the plan alone.
#include <algorithm>
#include <utility>

#include "core/base/interrupt.h"
#include "core/compile/paths.h"
#include "core/compile/plan.h"
#include "core/compile/plan_memory.h"

namespace aicf {

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
