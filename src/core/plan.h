// The plan: where every value lies and what every op waits for. Fixed before the first run.
#pragma once

#include <functional>
#include <map>

#include "core/interrupt.h"
#include "core/op.h"

namespace aicf {

class Backend;
struct Kernel;

constexpr int64_t kArenaAlign = 256;

/// Regions in the order of their dump. params, grads and each moment slot hold the same params at
/// equal offsets, so an optimizer or an all-reduce may treat each as one array.
enum class Region : uint8_t {
    params,
    grads,
    moments,
    state,
    inputs,
    outputs,
    temps,
    constants,
    workspace
};
constexpr int kRegions = 9;
const char* region_name(Region region);

struct Place {
    Region region = Region::temps;
    int64_t offset = -1;  // bytes; -1: the value has no storage (unused, or seen through a view)
    int64_t bytes = 0;
    ValueId storage = kNone;  // the value whose storage this is: itself, or what it aliases
};

struct PlannedOp {
    LoweredOp op;
    std::shared_ptr<const Kernel> kernel;  // what the backend selected
    int lane = 0;
    std::vector<int> waits;  // ops that must be done before; the fewest that say it
};

struct Plan {
    std::string name;
    Device device;
    std::vector<Value> values;
    std::vector<Place> places;  // by value id
    std::vector<PlannedOp> ops;
    std::vector<Lowered::Output> outputs;
    std::vector<Assign> assigns;
    int64_t region_bytes[kRegions] = {};
    int64_t peak_bytes() const;  // all regions: known before the first run, constant after
    Cost cost() const;           // of all ops
    int64_t temps_without_reuse = 0;
    std::string math = "fp32";  // as compiled
    bool deterministic = true;
};

/// Of ops by their signature, the names of backends' kernels.
using Candidates = std::map<std::string, std::string>;
/// Names the kernel of each op of which `known` tells more than one: that in `given`, else the
/// first. GraphError for a name that `known` does not hold.
void choose_candidates(Lowered& lowered, const Candidates& given,
                       const std::function<std::vector<std::string>(const LoweredOp&)>& known);
/// Places every value and asks the backend for kernels. `shared` marks params and states that live
/// in another Step (by value id).
Plan make_plan(const Lowered& lowered, Backend& backend, const std::vector<char>& shared,
               const OnStage& done = {});
/// Recomputes from the plan alone that no two live values overlap and that waits order every
/// hazard.
Report verify(const Plan& plan);
std::string to_text(const Plan& plan);
std::string to_json(const Plan& plan);

}  // namespace aicf
