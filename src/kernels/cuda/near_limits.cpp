// Limits of operands below which several functions of a region hold that near.h has forms of.
#include <algorithm>
#include <map>
#include <optional>
#include <set>

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

std::string text_of(double number) { return cat(std::to_string(number), "f"); }

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

/// |value| <= |operand| scale + shift, but for roundings, unless it is NaN; operand -1 for none.
struct Linear {
    int operand;
    double scale, shift;
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

    /// Of a value that follows from one operand alone and from functions that are 1 at most. Each
    /// is worked out once: a value may be read twice by the next one, and so on.
    std::optional<Linear> linear(int number) {
        const auto known = linear_.find(number);
        if (known != linear_.end()) return known->second;
        return linear_[number] = make_linear(number);
    }

  private:
    std::optional<Linear> make_linear(int number) {
        if (op_.operand(number).dtype != DType::f32) return {};
        if (is_input(number))
            return one_[number] ? std::nullopt : std::optional(Linear{number, 1.0, 0.0});
        const RegionStep* const step = maker(number);
        if (!step) return {};
        const std::string& name = step->def->name;
        if (name == "sin" || name == "cos" || name == "tanh" || name == "sigmoid" ||
            (name == "exp" && below_zero_of(step->inputs[0])))
            return Linear{-1, 0.0, 1.0};
        if (name == "neg") return linear(step->inputs[0]);
        if (name != "mul" && name != "add" && name != "sub") return {};
        const std::optional<Linear> a = linear(step->inputs[0]), b = linear(step->inputs[1]);
        if (!a || !b) return {};
        const bool of_both = a->operand >= 0 && b->operand >= 0;
        if (of_both && (name == "mul" || a->operand != b->operand)) return {};
        const int operand = std::max(a->operand, b->operand);
        if (name != "mul") return Linear{operand, a->scale + b->scale, a->shift + b->shift};
        return Linear{operand, a->scale * b->shift + b->scale * a->shift, a->shift * b->shift};
    }
    bool is_input(int number) const { return number < static_cast<int>(op_.inputs.size()); }
    const RegionStep* maker(int number) const {
        for (const RegionStep& step : op_.body)
            if (step.outputs[0] == number) return &step;
        return nullptr;
    }
    const LoweredOp& op_;
    const std::vector<bool>& one_;
    std::map<int, std::optional<Linear>> linear_;  // what linear() has worked out
};

/// e^(-x x) is a normal number for |x| < kNormal. tanh_bounded() takes arguments up to kBounded,
/// which leaves room for roundings. An operand's limit is lowered for its sake to kLowest at most:
/// numbers between the two limits are made twice.
constexpr double kNormal = 9.3, kBounded = 9.4, kLowest = 8.0;

}  // namespace

NearLimits near_limits(const LoweredOp& op, const std::vector<bool>& one, bool normal) {
    static const std::map<std::string, std::string> most = {
        {"sin", "65536.0f"}, {"cos", "65536.0f"}, {"sigmoid", "86.0f"}};
    Bounds bounds(op, one);
    NearLimits all;
    std::map<int, std::string> limits;
    const auto lower = [&](int operand, const std::string& limit) {
        limits[operand] = smaller_of(limits[operand], limit);
    };
    for (size_t i = 0; i < op.body.size(); i++) {
        const auto found = most.find(op.body[i].def->name);
        if (found == most.end()) continue;
        const std::optional<Bound> bound = bounds.of(op.body[i].inputs[0]);
        if (!bound) continue;
        lower(bound->operand, bound->limit(found->second));
        all.steps.push_back(i);
    }
    bool some = false;
    std::set<int> squared;  // operands whose squares are worked out anyway
    // An exponential of what is below 0 asks for nothing but that it be no NaN, which it is not
    // where what it is the square of is finite.
    for (size_t i = 0; i < op.body.size(); i++) {
        if (op.body[i].def->name != "exp") continue;
        const std::optional<Bound> bound = bounds.below_zero_of(op.body[i].inputs[0]);
        if (!bound || !limits.contains(bound->operand)) continue;
        const bool bare = bound->scale.empty() && bound->shift.empty();
        if (normal || !bare)
            lower(bound->operand, bound->limit(normal ? text_of(kNormal) : "0x1p60f"));
        if (normal && bare) squared.insert(bound->operand);
        all.steps.push_back(i);
        some = true;
    }
    if (normal ? !some : all.steps.size() <= limits.size()) return {};
    // A tanh whose argument is small enough where exponentials are normal, or nearly there.
    for (size_t i = 0; normal && i < op.body.size(); i++) {
        if (op.body[i].def->name != "tanh") continue;
        const std::optional<Linear> argument = bounds.linear(op.body[i].inputs[0]);
        if (!argument || (argument->scale > 0.0 && !squared.contains(argument->operand))) continue;
        const double limit = (kBounded - argument->shift) / argument->scale;
        if (limit < kLowest) continue;
        if (limit < kNormal) lower(argument->operand, text_of(limit));
        all.steps.push_back(i);
    }
    const char* const most_of = normal ? "least" : "most";
    // The largest of three numbers takes the device one instruction: half a one for each square.
    const int by_square = squared.empty() ? -1 : *squared.begin();
    for (const auto& [operand, limit] : limits) {
        all.limits += cat("    const float ", most_of, operand, " = ", limit, ";\n");
        const auto value = [&](const char* j) { return cat("a", operand, "[", j, "]"); };
        const auto square = [&](const char* j) {
            return cat("scalar::bits(", value(j), " * ", value(j), ")");
        };
        if (operand == by_square) {
            all.limits +=
                cat("    const uint32_t below = scalar::square_below(", most_of, operand, ");\n");
            all.below = "below";
            all.checks += cat("if (j % 2 == 1) largest = scalar::maximum(scalar::maximum(largest, ",
                              square("j - 1"), "), ", square("j"), ");\n            ");
        } else {
            all.checks += cat("near &= scalar::abs(", value("j"), ") <= ", most_of, operand,
                              ";\n            ");
        }
    }
    return all;
}

}  // namespace aicf::cuda
