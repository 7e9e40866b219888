// What a param, state or constant value holds before the first step.
#pragma once

#include <cstdint>

#include "core/graph/ir.h"

namespace aicf {

/// Writes a value that is not given by data; its elements depend on (seed, name, index) alone.
void write_initial(const Value& value, uint64_t seed, char* to);

}  // namespace aicf
