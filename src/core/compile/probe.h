// Graphs that look at the values of another graph, and have no effect.
#pragma once

#include <optional>

#include "core/graph/ir.h"

namespace aicf {

/// Makes a graph compute these values alone: its outputs, named by their position. It writes no
/// param and no state, and has no ring. Where one of the outputs of a node with effects is wanted,
/// the others are outputs too, behind those.
void probe(Graph& graph, const std::vector<ValueId>& values);

/// Where the first NaN, infinity or index out of range is made.
struct Finding {
    enum Kind : uint8_t { nan, infinity, index } kind;
    int node;       // the one that makes it or takes the index; -1: the value is an input or a leaf
    ValueId value;  // that holds it
};

/// Numbers that tell of each value of a graph whether all of it is finite, and of each node that
/// takes rows by number whether all numbers are in range.
class Checks {
  public:
    enum class Of : uint8_t { all, computed_indices };
    /// Makes the graph compute these numbers alone, each an output of one f32.
    explicit Checks(Graph& graph, Of of = Of::all);
    size_t numbers() const { return count_; }
    /// The first in the order of leaves and then of nodes; a NaN or an infinity of which a node's
    /// operands, constants and attributes have some already was made before it, or is meant.
    std::optional<Finding> find(const std::vector<float>& numbers) const;
    const Graph& graph() const { return graph_; }  // as it was

  private:
    ValueId largest(Graph& graph, ValueId value) const;
    ValueId outside(Graph& graph, const Node& node) const;
    ValueId as_given(ValueId id) const;

    Graph graph_;
    std::vector<int> of_value_, of_node_;  // positions among the numbers; -1: none
    size_t count_ = 0;
};

}  // namespace aicf
