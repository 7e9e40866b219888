// Limits of operands below which several functions of a region hold that near.h has forms of.
#include <algorithm>
#include <map>
#include <optional>

#include "core/graph/region.h"
#include "kernels/cuda/codegen.h"

namespace aicf::cuda {

namespace {

/// |value| <= |operand| scale + shift, but for roundings; texts, empty for 1 and 0.
struct Bound {
    int operand;
    std::string scale, shift;
};

class Bounds {
  public:
    Bounds(const LoweredOp& op, const std::vector<bool>& one) : op_(op), one_(one) {}

    /// Of a value that follows from one operand by sums and products with numbers for all elements.
    std::optional<Bound> of(int number) const {
        if (op_.operand(number).dtype != DType::f32) return {};
        if (is_input(number))
            return one_[number] ? std::nullopt : std::optional(Bound{number, "", ""});
        const RegionStep* const step = maker(number);
        if (!step) return {};
        const std::string& name = step->def->name;
        if (name == "neg") return of(step->inputs[0]);
        if (name != "mul" && name != "add" && name != "sub") return {};
        for (int side : {0, 1}) {
            const int other = step->inputs[1 - side];
            if (!is_input(other) || !one_[other] || op_.operand(other).dtype != DType::f32)
                continue;
            std::optional<Bound> bound = of(step->inputs[side]);
            if (!bound) continue;
            const std::string size = cat("scalar::abs(u", other, ")");
            if (name != "mul")
                bound->shift =
                    bound->shift.empty() ? size : cat("(", bound->shift, " + ", size, ")");
            else
                for (std::string* text : {&bound->scale, &bound->shift})
                    if (text == &bound->scale && text->empty())
                        *text = size;
                    else if (!text->empty())
                        *text += cat(" * ", size);
            return bound;
        }
        return {};
    }
    /// The operand whose square, or that of a sum or product of it, a value is less; -1: of none.
    int below_zero_of(int number) const {
        const RegionStep* const step = maker(number);
        if (!step || step->def->name != "neg") return -1;
        const RegionStep* const square = maker(step->inputs[0]);
        if (!square || square->def->name != "mul" || square->inputs[0] != square->inputs[1])
            return -1;
        const std::optional<Bound> bound = of(square->inputs[0]);
        return bound ? bound->operand : -1;
    }

  private:
    bool is_input(int number) const { return number < static_cast<int>(op_.inputs.size()); }
    const RegionStep* maker(int number) const {
        for (const RegionStep& step : op_.body)
            if (step.outputs[0] == number) return &step;
        return nullptr;
    }
    const LoweredOp& op_;
    const std::vector<bool>& one_;
};

}  // namespace

NearLimits near_limits(const LoweredOp& op, const std::vector<bool>& one) {
    static const std::map<std::string, std::string> most = {
        {"sin", "65536.0f"}, {"cos", "65536.0f"}, {"sigmoid", "86.0f"}};
    const Bounds bounds(op, one);
    NearLimits all;
    std::map<int, std::string> limits;
    for (size_t i = 0; i < op.body.size(); i++) {
        const auto found = most.find(op.body[i].def->name);
        if (found == most.end()) continue;
        const std::optional<Bound> bound = bounds.of(op.body[i].inputs[0]);
        if (!bound) continue;
        const std::string limit = bound->scale.empty() && bound->shift.empty()
                                      ? found->second
                                      : cat("scalar::near_limit(", found->second, ", ",
                                            bound->scale.empty() ? "1.0f" : bound->scale, ", ",
                                            bound->shift.empty() ? "0.0f" : bound->shift, ")");
        std::string& own = limits[bound->operand];
        own = own.empty() ? limit : cat("scalar::at_most(", own, ", ", limit, ")");
        all.steps.push_back(i);
    }
    // An exponential of what is below 0 asks for nothing but that it be no NaN.
    for (size_t i = 0; i < op.body.size(); i++)
        if (op.body[i].def->name == "exp" &&
            limits.contains(bounds.below_zero_of(op.body[i].inputs[0])))
            all.steps.push_back(i);
    if (all.steps.size() <= limits.size()) return {};
    for (const auto& [operand, limit] : limits) {
        all.limits += cat("    const float most", operand, " = ", limit, ";\n");
        all.checks +=
            cat("near &= scalar::abs(a", operand, "[j]) <= most", operand, ";\n            ");
    }
    return all;
}

}  // namespace aicf::cuda
