// Initial contents of params, states and constants.
#pragma once

#include <cstdint>

#include "core/graph/ir.h"

namespace aicf {

/// Writes elements [begin, end) of a generated value, functions of (seed, name, index). `to`: the
/// address of element `begin`.
void write_initial(const Value& value, uint64_t seed, int64_t begin, int64_t end, char* to);

/// Random numbers [first, first + count) of a key: a + (b - a) * uniform, or a + b * normal, each
/// from the first words of the Philox block of its index.
using DrawFn = void (*)(bool normal, float a, float b, uint64_t key, uint64_t first, int64_t count,
                        float* to);
/// To be called before the first Step is compiled.
void register_draw(DrawFn draw);

}  // namespace aicf
