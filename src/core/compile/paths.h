// What comes before what in a list of ops, without looking at every pair.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace aicf {

/// A forest over the positions of a list, every parent before its children.
class Forest {
  public:
    /// The next position, below one of some earlier ones, the deepest; with none a root. So the
    /// way up is the longest there is, and meets most of what lies above.
    void add(std::span<const int> above);
    /// Whether `upper` is `lower` or one of its ancestors.
    bool above(int upper, int lower) const;

  private:
    std::vector<int> parents_, jumps_, depths_;  // a jump spans many parents
};

/// Ops in the order of a list, each with the earlier ones it waits for.
class Order {
  public:
    explicit Order(size_t count);

    /// The next op is to wait for `op`; called in descending order.
    void wait(int op);
    /// Whether the next op waits for `op` by what it waits for already: that must hold all it will
    /// wait for behind `op`. To be asked in descending order.
    bool waits(int op);
    /// The next op is complete.
    void next();

  private:
    bool leads(int op) const;

    Forest known_;  // each op below one that it waits for
    std::vector<std::vector<int>> before_, after_;
    std::vector<int> now_;     // what the next op waits for
    std::vector<int> behind_;  // a heap: what lies before those, not yet looked at
    // By op, what it was marked for last: waited for by that op, leading to nothing that this op
    // waits for; met by that question.
    std::vector<int> reach_, dead_, met_;
    std::vector<int> open_;
    int at_ = 0, question_ = 0;
};

}  // namespace aicf
