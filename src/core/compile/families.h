// The kinds of kernels that a backend has, as a list: the first family that matches an op makes its
// kernel, and what none matches is an error.
#pragma once

#include "core/graph/op.h"

namespace aicf {

/// `Made`: what becomes of an op. `Machine`: what of the machine the choice rests on.
template <class Made, class Machine>
struct KernelFamily {
    const char* name;
    bool (*matches)(const LoweredOp& op, const Machine& machine);
    Made (*emit)(const LoweredOp& op, const Machine& machine);
    /// Names of the kernels to choose from, the one that `emit` takes by itself first; null: there
    /// is one.
    std::vector<std::string> (*candidates)(const LoweredOp& op, const Machine& machine) = nullptr;
};

/// Null where no family matches.
template <class Made, class Machine>
const KernelFamily<Made, Machine>* find_family(
    std::type_identity_t<std::span<const KernelFamily<Made, Machine>>> families,
    const LoweredOp& op, const Machine& machine) {
    for (const auto& family : families)
        if (family.matches(op, machine)) return &family;
    return nullptr;
}

/// Unsupported: `target` has no kernel for the op; need what would be right.
[[noreturn]] void no_kernel(const LoweredOp& op, const char* target, const char* need);

}  // namespace aicf
