// Ops that may run side by side, and memory for what lives while they do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/compile/memory.h"

namespace aicf {

/// By op the longest way from it to the end of the step, in ops, and the next op on that way: -1
/// where nothing waits for it.
struct Ways {
    std::vector<int> length, next;
};
Ways longest_ways(const std::vector<std::vector<int>>& waits);
/// By op whether a longest way from the start of the step to its end leads over it.
std::vector<bool> on_longest_way(const std::vector<std::vector<int>>& waits);

/// The ops of a list in lanes. In a lane each op comes after the one before it, by what they wait
/// for; where the lanes do not suffice, the last takes the others, in the order of the list.
class Lanes {
  public:
    /// `waits`: by op the earlier ones it waits for.
    Lanes(const std::vector<std::vector<int>>& waits, int most);

    int lane(int op) const { return lane_[op]; }
    int position(int op) const { return position_[op]; }
    int size(int lane) const { return sizes_[lane]; }
    int count() const { return static_cast<int>(sizes_.size()); }
    /// Whether the one is known to come before the other.
    bool comes_before(int op, int other) const {
        return op != other && position_[op] < before_[cell(other, lane_[op])];
    }
    /// Positions in a lane, `end` not included.
    struct Span {
        int begin, end;
    };
    /// The ops of a lane that may run between the start of `first` and the end of all of `ops`,
    /// which come after it or are it: those neither before the one nor after all the others.
    Span beside(int lane, int first, const std::vector<int>& ops) const;

  private:
    void share_out(const std::vector<std::vector<int>>& waits, int most);
    size_t cell(int op, int lane) const {
        return static_cast<size_t>(op) * most_ + static_cast<size_t>(lane);
    }
    int& before(int op, int lane) { return before_[cell(op, lane)]; }
    int& after(int op, int lane) { return after_[cell(op, lane)]; }

    size_t most_;
    std::vector<int> lane_, position_, sizes_;
    // By op and lane: how many ops from the lane's begin on come before it or are it; from where
    // on in the lane all come after it or are it.
    std::vector<int> before_, after_;
};

/// Memory for values that live beside ops in lanes.
class LaneRoom {
  public:
    explicit LaneRoom(const Lanes& lanes);
    /// A value that `first` makes and `ops` touch, `first` among them.
    struct Life {
        int first;
        std::vector<int> ops;
    };
    /// The lowest offset where no value lies with which this one may be alive at once.
    int64_t lowest(const Life& life, int64_t bytes) const;
    void take(const Life& life, int64_t begin, int64_t end);

  private:
    const Lanes& lanes_;
    std::vector<Room> alive_, made_;  // by lane: while what may run, and at what makes it
};

}  // namespace aicf
