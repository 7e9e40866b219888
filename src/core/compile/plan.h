// The plan: a place for every value and the dependence edges between ops. Fixed before the first
// run.
#pragma once

#include <functional>
#include <map>
#include <span>

#include "core/base/interrupt.h"
#include "core/compile/indices.h"
#include "core/compile/target.h"

namespace aicf {

/// The segments of a step's memory, in dump order; dumps and files call them regions. params, grads
/// and each moment slot hold the same params at equal offsets, so an optimizer or an all-reduce may
/// treat each as one array.
enum class Segment : uint8_t {
    params,
    grads,
    moments,
    state,
    inputs,
    outputs,
    temps,
    constants,
    counters
};
constexpr int kSegments = 9;
const char* segment_name(Segment segment);

struct Place {
    Segment segment = Segment::temps;
    int64_t offset = -1;  // bytes; -1: the value has no storage (unused, or seen through a view)
    int64_t bytes = 0;
    ValueId storage = kNone;  // the value whose storage this is: itself, or what it aliases
};

struct Plan;

struct PlannedOp {
    LoweredOp op;
    std::shared_ptr<const Kernel> kernel;  // what the backend selected
    int64_t counters = 0;                  // bytes into the segment of these
    int64_t scratch = 0;     // the kernel's workspace: bytes into the segment of temporaries
    int lane = 0;            // see Lanes
    std::vector<int> waits;  // direct predecessors, transitively reduced
    std::shared_ptr<const Plan> body = {};  // of a loop: the plan of one turn
};
/// The layout of a loop's scratch: the body's temporaries first, then two buffers for each carry,
/// which turns write alternately. `carries`: offsets in bytes; -1 for a carry with a history, which
/// needs none.
struct LoopScratch {
    std::vector<int64_t> carries;
    int64_t bytes;
};
LoopScratch loop_scratch(const LoweredOp& op, const Plan& body);
/// A placeholder kernel that holds the scratch and counter sizes of a loop.
std::shared_ptr<const Kernel> loop_kernel(const LoweredOp& op, const Plan& body);

struct Plan {
    std::string name;
    Device::Kind device = Device::cpu;
    std::vector<Value> values;
    std::vector<Place> places;  // by value id
    std::vector<PlannedOp> ops;
    std::vector<Lowered::Output> outputs;
    std::vector<Assign> assigns;
    std::vector<IndexUse> indices;  // index operands checked before each run
    int64_t segment_bytes[kSegments] = {};
    int64_t peak_bytes() const;       // all segments; constant over all runs
    Cost cost() const;                // of all ops
    Kernels kernels() const;          // by op; a loop is replaced by its body's
    int64_t temps_without_reuse = 0;  // includes scratch
    std::string math = "fp32";        // as compiled
    bool deterministic = true;
};

/// Kernel names by op signature.
using Candidates = std::map<std::string, std::string>;
/// Sets the candidate of each op for which the target has several kernels: that in `given`, else
/// the target's first. GraphError for a name that the target does not know.
void choose_candidates(Lowered& lowered, const Candidates& given, const Target& target);
/// Selects kernels, allocates every value and computes the waits. `shared` names leaves whose
/// storage belongs to another step.
Plan make_plan(const Lowered& lowered, const Target& target, const std::vector<std::string>& shared,
               const OnStage& done = {});
/// Removes params and states of these names from the segments: their storage belongs to another
/// step.
void share_places(Plan& plan, const std::vector<std::string>& shared);
/// The ops of Plan::kernels().
std::vector<const LoweredOp*> kernel_ops(const Plan& plan);
/// Gives a plan its kernels, in the order of Plan::kernels().
void give_kernels(Plan& plan, const Kernels& kernels);
/// Reallocates counters, and scratch that outgrew its place, for kernels selected again after
/// planning. `scratch_sizes`: what each op had; consumes those of this plan's ops.
void fit_kernels(Plan& plan, std::span<const int64_t>& scratch_sizes);
/// Checks, from the plan alone, that no two live values overlap and that every hazard is ordered by
/// waits.
Report verify(const Plan& plan);
std::string to_text(const Plan& plan);
std::string to_json(const Plan& plan);

}  // namespace aicf
