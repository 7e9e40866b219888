// The plan: where every value lies and what every op waits for. Fixed before the first run.
#pragma once

#include <functional>
#include <map>
#include <span>

#include "core/base/interrupt.h"
#include "core/compile/indices.h"
#include "core/compile/target.h"

namespace aicf {

/// Of a step's memory, in the order of its dump; dumps and files call them regions. params, grads
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
    std::vector<int> waits;  // ops that must be done before; the fewest that say it
    std::shared_ptr<const Plan> body = {};  // of a loop: a turn
};
/// Where the turns of a loop have what they keep, in bytes into its scratch: temporaries first,
/// then by carry two places that they write in turn; -1 for one with a history.
struct LoopRooms {
    std::vector<int64_t> carries;
    int64_t bytes;
};
LoopRooms rooms_of(const LoweredOp& op, const Plan& body);
/// What stands for the kernels of a loop.
std::shared_ptr<const Kernel> loop_kernel(const LoweredOp& op, const Plan& body);

struct Plan {
    std::string name;
    Device::Kind device = Device::cpu;
    std::vector<Value> values;
    std::vector<Place> places;  // by value id
    std::vector<PlannedOp> ops;
    std::vector<Lowered::Output> outputs;
    std::vector<Assign> assigns;
    std::vector<IndexUse> indices;  // what a step looks at before it runs
    int64_t segment_bytes[kSegments] = {};
    int64_t peak_bytes() const;       // all segments: known before the first run, constant after
    Cost cost() const;                // of all ops
    Kernels kernels() const;          // by op; in place of a loop those of its body
    int64_t temps_without_reuse = 0;  // scratch is among them
    std::string math = "fp32";        // as compiled
    bool deterministic = true;
};

/// Of ops by their signature, the names of backends' kernels.
using Candidates = std::map<std::string, std::string>;
/// Names the kernel of each op for which the target has more than one: that in `given`, else the
/// first. GraphError for a name that the target does not know.
void choose_candidates(Lowered& lowered, const Candidates& given, const Target& target);
/// Places every value and asks the target for kernels. `shared` names leaves that live elsewhere.
Plan make_plan(const Lowered& lowered, const Target& target, const std::vector<std::string>& shared,
               const OnStage& done = {});
/// Takes params and states of these names out of the segments: they live elsewhere.
void share_places(Plan& plan, const std::vector<std::string>& shared);
/// The ops of Plan::kernels().
std::vector<const LoweredOp*> kernel_ops(const Plan& plan);
/// Gives a plan its kernels, in the order of Plan::kernels().
void give_kernels(Plan& plan, const Kernels& kernels);
/// Gives kernels that were chosen after the plan was made their counters, and scratch behind the
/// temporaries where they want more than the `rooms` that ops had, of which it takes its own.
void fit_kernels(Plan& plan, std::span<const int64_t>& rooms);
/// Recomputes from the plan alone that no two live values overlap and that waits order every
/// hazard.
Report verify(const Plan& plan);
std::string to_text(const Plan& plan);
std::string to_json(const Plan& plan);

}  // namespace aicf
