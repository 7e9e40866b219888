// Checkpoints as Python's Step.save and load know them: safetensors.
#pragma once

#include <string>
#include <vector>

#include "core/graph/tensor.h"
#include "files.h"

namespace aicf::runtime {

struct NamedType {
    std::string name;
    DType dtype = DType::f32;
    Dims shape;
};

/// All that comes before the tensors, which follow in this order.
std::string safetensors_header(const std::vector<NamedType>& tensors);

/// The bytes of the wanted tensors, in their order. Nothing but the header is read of a file that
/// holds anything else. FormatError; GraphError, DTypeError or ShapeError where the file is sound
/// and other tensors are wanted.
std::vector<std::vector<char>> read_safetensors(Source& source,
                                                const std::vector<NamedType>& wanted);

}  // namespace aicf::runtime
