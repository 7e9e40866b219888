// Incremental reachability in a DAG whose nodes are added in topological order.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace aicf {

/// A spanning forest of the DAG with ancestor queries in logarithmic time. An ancestor reaches its
/// descendants; the converse need not hold, so it is a quick sufficient test.
class Forest {
  public:
    /// Adds the next node as a child of its deepest predecessor, which gives it the most ancestors;
    /// without predecessors it is a root.
    void add(std::span<const int> above);
    /// Whether `upper` is `lower` or an ancestor of it.
    bool above(int upper, int lower) const;

  private:
    std::vector<int> parents_, jumps_, depths_;  // a jump skips many generations
};

/// Answers whether an op is already ordered after another, so that only the edges of the transitive
/// reduction are kept. Predecessors of an op are given in descending order.
class Reachability {
  public:
    explicit Reachability(size_t count);

    /// Adds the edge from `op` to the current op.
    void add_wait(int op);
    /// Whether a path leads from `op` to the current op by the edges so far. Valid only if all
    /// edges from ops after `op` were added, and asked in descending order.
    bool ordered_after(int op);
    /// Makes the next op the current one.
    void finish_op();

  private:
    bool reaches(int op) const;

    Forest known_;  // each op below a predecessor
    std::vector<std::vector<int>> before_, after_;
    std::vector<int> direct_;    // direct predecessors of the current op
    std::vector<int> frontier_;  // a max-heap: the backward search, not yet expanded
    // By op, the op or query that marked it last: that op is reachable from it; that op is known
    // not to be; the query's forward search visited it.
    std::vector<int> reach_, dead_, met_;
    std::vector<int> queue_;
    int at_ = 0, question_ = 0;
};

}  // namespace aicf
