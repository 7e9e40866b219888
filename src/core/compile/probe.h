// Side-effect-free graphs that read values of another graph.
#pragma once

#include <optional>

#include "core/graph/ir.h"

namespace aicf {

/// Replaces a graph's outputs by these values, named by position, and drops all assigns and rings.
/// If one result of a node with effects is wanted, its others are appended as outputs, since each
/// must be used.
void probe(Graph& graph, const std::vector<ValueId>& values);

/// The first NaN, infinity or index out of range.
struct Finding {
    enum Kind : uint8_t { nan, infinity, index } kind;
    int node;       // that computes it or reads the index; -1: the value is a leaf
    ValueId value;  // that holds it
};

/// A graph of checks: by value, whether it is finite; by indexing node, whether its indices are in
/// range.
class Checks {
  public:
    enum class Of : uint8_t { all, computed_indices };
    /// Replaces the graph's outputs by the check values, one f32 each.
    explicit Checks(Graph& graph, Of of = Of::all);
    size_t numbers() const { return count_; }
    /// The first in order of leaves, then nodes. A node is not blamed if an operand, constant or
    /// attribute of it is non-finite already.
    std::optional<Finding> find(const std::vector<float>& numbers) const;
    const Graph& graph() const { return graph_; }  // before the rewrite

  private:
    ValueId largest(Graph& graph, ValueId value) const;
    ValueId outside(Graph& graph, const Node& node) const;
    ValueId as_given(ValueId id) const;

    Graph graph_;
    std::vector<int> of_value_, of_node_;  // positions among the check values; -1: none
    size_t count_ = 0;
};

}  // namespace aicf
