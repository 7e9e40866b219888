// A chain cover of the dependence graph (lanes), and memory allocation under that partial order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/compile/memory.h"

namespace aicf {

/// By op, the length in edges of the longest path from it to the end of the step, and the next op
/// on that path (-1: it has no successor).
struct LongestPaths {
    std::vector<int> length, next;
};
LongestPaths longest_paths(const std::vector<std::vector<int>>& waits);
/// By op, whether it lies on a critical path, given what each op takes.
std::vector<bool> on_critical_path(const std::vector<std::vector<int>>& waits,
                                   const std::vector<int64_t>& takes);

/// Partitions the ops into chains of the dependence order. Each op of a lane depends, transitively,
/// on the one before it; only in the last lane, which takes what fits in no other, is the order
/// that of the list alone.
class Lanes {
  public:
    /// `waits`: by op, its direct predecessors. `most`: the maximal number of lanes.
    Lanes(const std::vector<std::vector<int>>& waits, int most);

    int lane(int op) const { return lane_[op]; }
    int position(int op) const { return position_[op]; }
    int size(int lane) const { return sizes_[lane]; }
    int count() const { return static_cast<int>(sizes_.size()); }
    /// Whether `other` depends on `op`, directly or transitively.
    bool comes_before(int op, int other) const {
        return op != other && position_[op] < before_[cell(other, lane_[op])];
    }
    /// Positions in a lane: [begin, end).
    struct Span {
        int begin, end;
    };
    /// The ops of a lane that may run while a value is live: those that are neither ordered before
    /// its definition `first` nor after all its uses `ops`.
    Span concurrent(int lane, int first, const std::vector<int>& ops) const;

  private:
    void assign_lanes(const std::vector<std::vector<int>>& waits, int most);
    size_t cell(int op, int lane) const {
        return static_cast<size_t>(op) * most_ + static_cast<size_t>(lane);
    }
    int& before(int op, int lane) { return before_[cell(op, lane)]; }
    int& after(int op, int lane) { return after_[cell(op, lane)]; }

    size_t most_;
    std::vector<int> lane_, position_, sizes_;
    // By op and lane: the length of the lane's prefix that is ordered before the op or is it; the
    // first position from which on all are ordered after the op or are it.
    std::vector<int> before_, after_;
};

/// First-fit allocation where live ranges are partially ordered: values that may be live at the
/// same time in some legal schedule get disjoint bytes.
class LaneAllocator {
  public:
    explicit LaneAllocator(const Lanes& lanes);
    /// A value: the op that defines it, and all ops that access it, `first` among them.
    struct LiveRange {
        int first;
        std::vector<int> ops;
    };
    /// The lowest offset that overlaps no value whose live range may intersect this one's.
    int64_t first_fit_offset(const LiveRange& range, int64_t bytes) const;
    void take(const LiveRange& range, int64_t begin, int64_t end);

  private:
    const Lanes& lanes_;
    std::vector<TimeTree> live_, defs_;  // by lane, over positions: whole live ranges; definitions
};

}  // namespace aicf
