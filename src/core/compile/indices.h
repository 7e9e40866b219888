// Static analysis of indices: which elements of inputs, params, states and constants a step uses as
// indices, and their bounds, so that they can be checked before it writes anything.
#pragma once

#include "core/graph/op.h"

namespace aicf {

/// Elements of a leaf or constant that a node uses as indices.
struct IndexUse {
    ValueId leaf = kNone;
    View view;             // which elements
    int64_t rows = 0;      // each must be in [0, rows) ...
    bool ignores = false;  // ... or equal `ignored`
    int64_t ignored = 0;
    int node = -1;  // of the graph
    std::string op, source, operand;
};

struct IndexUses {
    std::vector<IndexUse> leaves;
    std::vector<int> computed;  // nodes whose indices are computed and not provably in range
};
IndexUses index_uses(const Graph& graph);

/// The position of the first out-of-range element in C order. `content`: the leaf in host memory,
/// with any strides.
std::optional<std::vector<int64_t>> refused_element(const IndexUse& use, const TensorRef& content);
int64_t integer_at(const TensorRef& tensor, int64_t element);  // of i32, i64, u8

}  // namespace aicf
