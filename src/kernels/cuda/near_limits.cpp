// Limits of operands below which several functions of a region hold that near.h has forms of.
#include <algorithm>
#include <map>
#include <optional>

#include "core/graph/region.h"
#include "kernels/cuda/codegen.h"

namespace aicf::cuda {

namespace {

/// The limit below which |operand| scale + shift stays below `most`.
std::string limit_text(const std::string& most, const std::string& scale,
                       const std::string& shift) {
    if (scale.empty() && shift.empty()) return most;
    return cat("scalar::near_limit(", most, ", ", scale.empty() ? "1.0f" : scale, ", ",
               shift.empty() ? "0.0f" : shift, ")");
}

std::string smaller_of(const std::string& one, const std::string& other) {
    return one.empty() ? other : cat("scalar::at_most(", one, ", ", other, ")");
}

/// |value| <= |operand| scale + shift, but for roundings, as long as |operand| <= finite, where no
/// value before it overflows; texts, empty for 1, 0 and any operand.
struct Bound {
    int operand;
    std::string scale, shift, finite;

    /// The limit of the operand below which the value is below `most`.
    std::string limit(const std::string& most) const {
        return smaller_of(finite, limit_text(most, scale, shift));
    }
};

class Bounds {
  public:
    Bounds(const LoweredOp& op, const std::vector<bool>& one) : op_(op), one_(one) {}

    /// Of a value that follows from one operand by sums and products with numbers for all elements.
    std::optional<Bound> of(int number) const {
        if (op_.operand(number).dtype != DType::f32) return {};
        if (is_input(number))
            return one_[number] ? std::nullopt : std::optional(Bound{number, "", "", ""});
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
            if (name != "mul") {
                bound->shift =
                    bound->shift.empty() ? size : cat("(", bound->shift, " + ", size, ")");
                return bound;
            }
            // What is multiplied may be larger than the product.
            if (!bound->scale.empty() || !bound->shift.empty())
                bound->finite = bound->limit("0x1p100f");
            for (std::string* text : {&bound->scale, &bound->shift})
                if (text == &bound->scale && text->empty())
                    *text = size;
                else if (!text->empty())
                    *text += cat(" * ", size);
            return bound;
        }
        return {};
    }
    /// Of what a value is less the square of.
    std::optional<Bound> below_zero_of(int number) const {
        const RegionStep* const step = maker(number);
        if (!step || step->def->name != "neg") return {};
        const RegionStep* const square = maker(step->inputs[0]);
        if (!square || square->def->name != "mul" || square->inputs[0] != square->inputs[1])
            return {};
        return of(square->inputs[0]);
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

NearLimits near_limits(const LoweredOp& op, const std::vector<bool>& one, bool normal) {
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
        std::string& own = limits[bound->operand];
        own = smaller_of(own, bound->limit(found->second));
        all.steps.push_back(i);
    }
    bool some = false;
    // An exponential of what is below 0 asks for nothing but that it be no NaN, which it is not
    // where what it is the square of is finite.
    for (size_t i = 0; i < op.body.size(); i++) {
        if (op.body[i].def->name != "exp") continue;
        const std::optional<Bound> bound = bounds.below_zero_of(op.body[i].inputs[0]);
        if (!bound || !limits.contains(bound->operand)) continue;
        if (normal || !bound->scale.empty() || !bound->shift.empty()) {
            std::string& own = limits[bound->operand];
            own = smaller_of(own, bound->limit(normal ? "9.3f" : "0x1p60f"));
        }
        all.steps.push_back(i);
        some = true;
    }
    if (normal ? !some : all.steps.size() <= limits.size()) return {};
    const char* const most_of = normal ? "least" : "most";
    for (const auto& [operand, limit] : limits) {
        all.limits += cat("    const float ", most_of, operand, " = ", limit, ";\n");
        all.checks +=
            cat("near &= scalar::abs(a", operand, "[j]) <= ", most_of, operand, ";\n            ");
    }
    return all;
}

}  // namespace aicf::cuda
