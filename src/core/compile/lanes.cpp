#include "core/compile/lanes.h"

#include <algorithm>

namespace aicf {

LongestPaths longest_paths(const std::vector<std::vector<int>>& waits) {
    LongestPaths paths{std::vector<int>(waits.size(), 0), std::vector<int>(waits.size(), -1)};
    for (int op = static_cast<int>(waits.size()) - 1; op >= 0; op--)
        for (int wait : waits[op])
            if (paths.length[op] + 1 >= paths.length[wait]) {  // ties: the first in the list
                paths.length[wait] = paths.length[op] + 1;
                paths.next[wait] = op;
            }
    return paths;
}

std::vector<bool> on_critical_path(const std::vector<std::vector<int>>& waits,
                                   const std::vector<int64_t>& takes) {
    std::vector<int64_t> from_start(waits.size(), 0), to_end(waits.size(), 0);  // without the op
    for (size_t op = 0; op < waits.size(); op++)
        for (int wait : waits[op])
            from_start[op] = std::max(from_start[op], from_start[wait] + takes[wait]);
    for (size_t op = waits.size(); op-- > 0;)
        for (int wait : waits[op]) to_end[wait] = std::max(to_end[wait], to_end[op] + takes[op]);
    std::vector<int64_t> length;  // of the longest path through an op
    for (size_t op = 0; op < waits.size(); op++)
        length.push_back(from_start[op] + takes[op] + to_end[op]);
    const auto longest = std::max_element(length.begin(), length.end());
    std::vector<bool> found;
    for (int64_t each : length) found.push_back(each == *longest);
    return found;
}

Lanes::Lanes(const std::vector<std::vector<int>>& waits, int most)
    : most_(static_cast<size_t>(most)), lane_(waits.size()), position_(waits.size()) {
    assign_lanes(waits, most);
    const int ops = static_cast<int>(waits.size());
    after_.resize(before_.size());
    for (int op = 0; op < ops; op++)
        for (int lane = 0; lane < count(); lane++) after(op, lane) = size(lane);
    for (int op = ops - 1; op >= 0; op--) {
        const int own = lane_[op];
        if (after(op, own) == position_[op] + 1) after(op, own) = position_[op];
        for (int wait : waits[op])
            for (int lane = 0; lane < count(); lane++)
                after(wait, lane) = std::min(after(wait, lane), after(op, lane));
    }
}

/// Greedy: an op extends the lane whose last op is ordered before it, of several the latest such
/// op. A lane whose last op has a later successor on its longest path is reserved for that one.
void Lanes::assign_lanes(const std::vector<std::vector<int>>& waits, int most) {
    const int ops = static_cast<int>(waits.size());
    const std::vector<int> successor = longest_paths(waits).next;
    std::vector<int> ends;
    before_.assign(waits.size() * most_, 0);
    for (int op = 0; op < ops; op++) {
        for (int wait : waits[op])
            for (int lane = 0; lane < count(); lane++)
                before(op, lane) = std::max(before(op, lane), before(wait, lane));
        int own = -1;
        for (int lane = 0; lane < std::min(count(), most - 1); lane++)
            if (before(op, lane) == size(lane) && successor[ends[lane]] <= op &&
                (own < 0 || ends[lane] > ends[own]))
                own = lane;
        if (own < 0) {
            own = std::min(count(), most - 1);
            if (own == count()) {
                sizes_.push_back(0);
                ends.push_back(-1);
            }
        }
        lane_[op] = own;
        position_[op] = sizes_[own]++;
        ends[own] = op;
        if (before(op, own) == position_[op]) before(op, own)++;
    }
}

Lanes::Span Lanes::concurrent(int lane, int first, const std::vector<int>& ops) const {
    Span span{before_[cell(first, lane)], 0};
    if (lane_[first] == lane) span.begin = std::min(span.begin, position_[first]);
    for (int op : ops) {
        span.end = std::max(span.end, after_[cell(op, lane)]);
        if (lane_[op] == lane) span.end = std::max(span.end, position_[op] + 1);
    }
    return span;
}

LaneAllocator::LaneAllocator(const Lanes& lanes) : lanes_(lanes) {
    for (int lane = 0; lane < lanes.count(); lane++) {
        live_.emplace_back(lanes.size(lane));
        defs_.emplace_back(lanes.size(lane));
    }
}

// Two live ranges may intersect if and only if the definition of one may run inside the other.
int64_t LaneAllocator::first_fit_offset(const LiveRange& range, int64_t bytes) const {
    std::vector<const RangeSet*> taken;
    const int at = lanes_.position(range.first);
    live_[lanes_.lane(range.first)].find(at, at, taken);
    for (int lane = 0; lane < lanes_.count(); lane++) {
        const auto [begin, end] = lanes_.concurrent(lane, range.first, range.ops);
        if (begin < end) defs_[lane].find(begin, end - 1, taken);
    }
    return first_fit(taken, bytes);
}

void LaneAllocator::take(const LiveRange& range, int64_t begin, int64_t end) {
    const int at = lanes_.position(range.first);
    defs_[lanes_.lane(range.first)].take(at, at, begin, end);
    for (int lane = 0; lane < lanes_.count(); lane++) {
        const auto span = lanes_.concurrent(lane, range.first, range.ops);
        if (span.begin < span.end) live_[lane].take(span.begin, span.end - 1, begin, end);
    }
}

}  // namespace aicf
