// Instructions that functions take of an element on a GPU, as counted in machine code of 9.0.
#include <map>

#include "core/abi/scalar.h"
#include "core/graph/region.h"
#include "kernels/cuda/codegen.h"

namespace aicf::cuda {

namespace {

/// Of float32, of float32 for a result of 16 bits, and of bfloat16 alone, where it has such forms.
struct Counts {
    double wide, narrow = 0, brain = 0;
};

const Counts* counts_of(const std::string& name) {
    static const std::map<std::string, Counts> known = {
        {"exp", {19, 0, 5}},
        {"expm1", {21}},
        {"exp2", {49}},
        {"log", {29}},
        {"log1p", {53}},
        {"log2", {133}},
        {"log10", {133}},
        {"sqrt", {9}},
        {"rsqrt", {29}},
        {"div", {12}},
        {"pow", {108}},
        {"hypot", {68}},
        {"sin", {17, 0, 11}},
        {"cos", {31, 0, 13}},
        {"tan", {160}},
        {"asin", {171}},
        {"acos", {180}},
        {"atan", {142}},
        {"atan2", {175}},
        {"sinh", {132}},
        {"cosh", {126}},
        {"tanh", {23, 0, 13}},
        {"asinh", {213}},
        {"acosh", {180}},
        {"atanh", {168}},
        {"sigmoid", {21, 0, 9}},
        {"silu", {34, 0, 11}},
        {"gelu_tanh", {54, 21}},
        {"gelu_erf", {41, 30}},
        {"erf", {33}},
        {"softplus", {31}},
        {"elu", {25}},
        {"maximum", {6}},
        {"minimum", {6}},
        {"fmod", {40}},
        {"floor_divide", {46}},
        {"silu_bwd", {32}},
        {"gelu_tanh_bwd", {38, 27}},
        {"gelu_erf_bwd", {46, 34}},
        {"softplus_bwd", {22}},
        {"elu_bwd", {25}},
    };
    const auto found = known.find(name);
    return found == known.end() ? nullptr : &found->second;
}

double instructions(const LoweredDef& def, DType in, DType out) {
    const Counts* const counts = counts_of(def.name);
    const bool brain = in == DType::bf16 && out == DType::bf16;
    const double wide = !counts                                ? def.flops_per_element
                        : brain && counts->brain > 0           ? counts->brain
                        : is_16_bit(out) && counts->narrow > 0 ? counts->narrow
                                                               : counts->wide;
    // Twice as many, each of which takes two turns.
    return in == DType::f64 || out == DType::f64 ? 4 * wide : wide;
}

}  // namespace

double instructions_of(const LoweredOp& op) {
    if (op.body.empty())
        return instructions(*op.def,
                            op.inputs.empty() ? op.outputs[0].dtype : op.inputs.back().dtype,
                            op.outputs[0].dtype);
    double sum = 0;
    for (const RegionStep& step : op.body)
        sum += instructions(*step.def, op.operand(step.inputs.back()).dtype,
                            op.operand(step.outputs[0]).dtype);
    return sum;
}

}  // namespace aicf::cuda
