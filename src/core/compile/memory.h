// Byte ranges over the course of a step: hazards between accesses, contents, and free space over
// live ranges.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace aicf {

constexpr int64_t kMostBytes = int64_t{1} << 58;  // of any region, so that no sum of them overflows

/// A byte range that one op reads or writes. Spaces are separate address spaces.
struct MemoryAccess {
    int space;
    int64_t begin, end;
    bool write;
    bool conflicts(const MemoryAccess& other) const {
        return space == other.space && begin < other.end && other.begin < end &&
               (write || other.write);
    }
};

/// The last writer of each byte and its readers since, updated op by op in list order.
class HazardTracker {
  public:
    /// Records the accesses of `op` and returns the earlier ops with which they form a hazard (RAW,
    /// WAR or WAW), descending. Hazards already implied by an intervening writer may be left out.
    std::vector<int> record(int op, const std::vector<MemoryAccess>& accesses);

  private:
    struct ByteRange {
        int64_t end;
        int writer;                // -1: none yet
        std::vector<int> readers;  // since that write
    };
    using RangeMap = std::map<int64_t, ByteRange>;  // by begin, disjoint
    static void split(RangeMap& ranges, int64_t at);
    static void update(RangeMap& ranges, int op, const MemoryAccess& access);
    std::map<int, RangeMap> spaces_;
};

/// Which value each byte holds.
class Contents {
  public:
    void write(const MemoryAccess& at, int value);
    bool holds(const MemoryAccess& at, int value) const;
    /// A value that some of these bytes hold; -1: none.
    int overlapping(const MemoryAccess& at) const;

  private:
    struct Held {
        int64_t end;
        int value;
    };
    std::map<std::pair<int, int64_t>, Held> held_;  // by space and begin, disjoint
};

/// Sorted, disjoint, coalesced byte ranges.
class RangeSet {
  public:
    void add(int64_t begin, int64_t end);
    const std::vector<std::pair<int64_t, int64_t>>& list() const { return list_; }

  private:
    std::vector<std::pair<int64_t, int64_t>> list_;
};
/// The lowest offset at which `bytes` are free in all of the sets.
int64_t first_fit(const std::vector<const RangeSet*>& lists, int64_t bytes);

/// A segment tree over time: which bytes are taken at which moments.
class TimeTree {
  public:
    explicit TimeTree(int moments);
    void take(int first, int last, int64_t begin, int64_t end);
    /// Appends the sets whose union is what is taken at some moment in [first, last]; valid until
    /// the next take.
    void find(int first, int last, std::vector<const RangeSet*>& found) const;

  private:
    /// A node: bytes taken over its whole interval by ranges stored at this node, and bytes taken
    /// at any moment of it by ranges stored at it or below.
    struct TreeNode {
        RangeSet through, within;
    };
    template <class Visit>
    void walk(std::size_t node, int begin, int end, int first, int last, const Visit& visit) const;

    int moments_ = 1;              // a power of two
    std::vector<TreeNode> nodes_;  // a binary tree, the root at 1
};

}  // namespace aicf
