// What a param, state or constant value holds before the first step.
#pragma once

#include <cstdint>

#include "core/graph/ir.h"

namespace aicf {

/// Writes elements [begin, end) of a value that is not given by data; they depend on (seed, name,
/// index) alone. `to`: where element `begin` goes.
void write_initial(const Value& value, uint64_t seed, int64_t begin, int64_t end, char* to);

/// Random numbers `first` to `first + count - 1` of a key: a + (b - a) * uniform, or
/// a + b * normal, each from the first words of the block of its index.
using DrawFn = void (*)(bool normal, float a, float b, uint64_t key, uint64_t first, int64_t count,
                        float* to);
/// To be called before the first Step is compiled.
void register_draw(DrawFn draw);

}  // namespace aicf
