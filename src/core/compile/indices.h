// Which elements of inputs, params, states and constants a step takes rows by, and how many rows
// there are: known from the graph alone, so that they can be looked at before anything is written.
#pragma once

#include "core/graph/op.h"

namespace aicf {

/// Elements of a leaf or constant that a node takes rows by.
struct IndexUse {
    ValueId leaf = kNone;
    View view;             // which elements
    int64_t rows = 0;      // each must be in [0, rows) ...
    bool ignores = false;  // ... or be the number that counts for nothing
    int64_t ignored = 0;
    int node = -1;  // of the graph
    std::string op, source, operand;
};

struct IndexUses {
    std::vector<IndexUse> leaves;
    std::vector<int>
        computed;  // nodes whose numbers are neither such elements nor sure to be right
};
IndexUses index_uses(const Graph& graph);

/// The first element of `content`, in its order, that a use refuses: its position in the leaf.
/// `content`: host memory with the shape of the leaf, of any strides.
std::optional<std::vector<int64_t>> refused_element(const IndexUse& use, const TensorRef& content);
int64_t integer_at(const TensorRef& tensor, int64_t element);  // of i32, i64, u8

}  // namespace aicf
