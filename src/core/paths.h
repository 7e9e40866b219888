// What comes before what in a list of ops, without looking at every pair.
#pragma once

#include <span>
#include <vector>

namespace aicf {

/// A forest over the positions of a list, every parent before its children.
class Forest {
  public:
    explicit Forest(std::span<const int> parents);  // -1: a root
    /// Whether `upper` is `lower` or one of its ancestors.
    bool above(int upper, int lower) const {
        return enter_[upper] <= enter_[lower] && enter_[lower] < leave_[upper];
    }

  private:
    std::vector<int> enter_, leave_;
};

/// Ops in the order of a list, each with the earlier ones it waits for.
class Order {
  public:
    /// `parents`: of each op an earlier one that it is known to wait for, if not directly; or -1.
    /// The nearest makes for short answers.
    explicit Order(std::span<const int> parents);

    /// The next op is to wait for `op`; ask `waits` for all later ones before.
    void wait(int op);
    /// Whether the next op waits for `op` by what it waits for already. To be asked in descending
    /// order.
    bool waits(int op);
    /// The next op is complete.
    void next();

  private:
    const Forest known_;
    std::vector<std::vector<int>> before_, after_;
    std::vector<int> now_;           // what the next op waits for
    std::vector<int> behind_;        // a heap: what lies before those, not yet looked at
    // By op, what it was marked for last: waited for by that op, leading to nothing that this op
    // waits for; met by that question.
    std::vector<int> reach_, dead_, met_;
    std::vector<int> open_;
    int at_ = 0, question_ = 0;
};

}  // namespace aicf
