// What a chain keeps for gradients of its own functions.
#include <algorithm>
#include <array>

#include "core/graph/region.h"
#include "kernels/cuda/codegen.h"

namespace aicf::cuda {

namespace {

/// A function's gradient, dy times what is made of x alone, in f32: that for x in 16 bits, or f32.
struct Slope {
    const char* gradient;
    LoweredDef narrow, wide;
};

LoweredDef slope_def(const char* name) {
    LoweredDef def;
    def.name = name;
    def.pointwise = true;
    return def;
}

const LoweredDef* slope_of(const LoweredDef& gradient, DType dtype) {
    static const std::array<Slope, 3> slopes = {
        {{"silu_bwd", slope_def("silu_slope"), slope_def("silu_slope")},
         {"gelu_tanh_bwd", slope_def("gelu_tanh_slope_16"), slope_def("gelu_tanh_slope")},
         {"gelu_erf_bwd", slope_def("gelu_erf_slope_16"), slope_def("gelu_erf_slope")}}};
    for (const Slope& one : slopes)
        if (gradient.name == one.gradient) return is_16_bit(dtype) ? &one.narrow : &one.wide;
    return nullptr;
}

/// The slope that all who read a value take of it, of a member; null: another, or not only that.
const LoweredDef* slope_of(const LoweredOp& member, int operand, DType dtype) {
    const LoweredDef* found = nullptr;
    for (const RegionStep& step : member.body) {
        if (!std::count(step.inputs.begin(), step.inputs.end(), operand)) continue;
        const LoweredDef* const slope = slope_of(*step.def, dtype);
        if (!slope || (found && found != slope) || step.inputs[0] != operand ||
            step.inputs[1] == operand || member.operand(step.outputs[0]).dtype != dtype)
            return nullptr;
        found = slope;
    }
    return found;
}

/// A member that leaves the slope where it left the value, which it still has.
void leave_slope(LoweredOp& member, int output, const LoweredDef& slope) {
    const int number = static_cast<int>(member.inputs.size()) + output,
              own = static_cast<int>(member.inputs.size() + member.outputs.size() +
                                     member.inner.size());
    member.inner.push_back(member.outputs[static_cast<size_t>(output)]);
    for (RegionStep& step : member.body)
        for (auto* numbers : {&step.inputs, &step.outputs})
            std::replace(numbers->begin(), numbers->end(), number, own);
    member.body.push_back({&slope, {own}, {number}, {}, member.node});
    member.outputs[static_cast<size_t>(output)].dtype = DType::f32;
}

void take_slope(LoweredOp& member, int input) {
    static const LoweredDef* const product = find_lowered("mul");
    for (RegionStep& step : member.body)
        if (std::count(step.inputs.begin(), step.inputs.end(), input)) step.def = product;
    member.inputs[static_cast<size_t>(input)].dtype = DType::f32;
}

}  // namespace

LoweredOp with_slopes(const LoweredOp& chain) {
    LoweredOp made = chain;
    for (View& view : made.inner) {
        const LoweredDef* slope = nullptr;
        bool all = true;
        int writer = -1, output = -1;
        std::vector<std::pair<size_t, int>> readers;
        for (size_t k = 0; k < made.members.size(); k++) {
            const LoweredOp& member = made.members[k];
            if (const int at = find_view(member.outputs, view); at >= 0)
                writer = static_cast<int>(k), output = at;
            const int at = find_view(member.inputs, view);
            if (at < 0) continue;
            const LoweredDef* const own = slope_of(member, at, view.dtype);
            all = all && own && (!slope || slope == own);
            slope = own;
            readers.emplace_back(k, at);
        }
        if (!slope || !all || writer < 0 || made.members[static_cast<size_t>(writer)].body.empty())
            continue;
        leave_slope(made.members[static_cast<size_t>(writer)], output, *slope);
        for (const auto& [member, input] : readers) take_slope(made.members[member], input);
        view.dtype = DType::f32;
    }
    return made;
}

}  // namespace aicf::cuda
