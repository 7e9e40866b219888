// Kernel selection: a backend lists its families, and the first that matches an op makes its
// kernel.
#pragma once

#include "core/graph/op.h"

namespace aicf {

/// `Made`: the backend's kernel type. `Machine`: the machine properties that selection depends on.
template <class Made, class Machine>
struct KernelFamily {
    const char* name;
    bool (*matches)(const LoweredOp& op, const Machine& machine);
    Made (*emit)(const LoweredOp& op, const Machine& machine);
    /// Names of alternative kernels, the default of `emit` first; null: there is one.
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

/// Raises Unsupported: `target` has no kernel for the op. `need`: what would be right.
[[noreturn]] void no_kernel(const LoweredOp& op, const char* target, const char* need);

}  // namespace aicf
