#include "core/compile/lanes.h"

#include <algorithm>

namespace aicf {

Ways longest_ways(const std::vector<std::vector<int>>& waits) {
    Ways ways{std::vector<int>(waits.size(), 0), std::vector<int>(waits.size(), -1)};
    for (int op = static_cast<int>(waits.size()) - 1; op >= 0; op--)
        for (int wait : waits[op])
            if (ways.length[op] + 1 >= ways.length[wait]) {  // the first of the list among equals
                ways.length[wait] = ways.length[op] + 1;
                ways.next[wait] = op;
            }
    return ways;
}

std::vector<bool> on_longest_way(const std::vector<std::vector<int>>& waits) {
    const std::vector<int> ahead = longest_ways(waits).length;
    std::vector<int> length = ahead;  // of the longest way over an op
    std::vector<int> behind(waits.size(), 0);
    for (size_t op = 0; op < waits.size(); op++) {
        for (int wait : waits[op]) behind[op] = std::max(behind[op], behind[wait] + 1);
        length[op] += behind[op];
    }
    const auto longest = std::max_element(length.begin(), length.end());
    std::vector<bool> found;
    for (int each : length) found.push_back(each == *longest);
    return found;
}

Lanes::Lanes(const std::vector<std::vector<int>>& waits, int most)
    : most_(static_cast<size_t>(most)), lane_(waits.size()), position_(waits.size()) {
    share_out(waits, most);
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

/// An op continues the lane whose end comes before it and is nearest. The end of a lane is kept
/// for the one that waits for it and has the longest way to go.
void Lanes::share_out(const std::vector<std::vector<int>>& waits, int most) {
    const int ops = static_cast<int>(waits.size());
    const std::vector<int> heir = longest_ways(waits).next;
    std::vector<int> ends;
    before_.assign(waits.size() * most_, 0);
    for (int op = 0; op < ops; op++) {
        for (int wait : waits[op])
            for (int lane = 0; lane < count(); lane++)
                before(op, lane) = std::max(before(op, lane), before(wait, lane));
        int own = -1;
        for (int lane = 0; lane < std::min(count(), most - 1); lane++)
            if (before(op, lane) == size(lane) && heir[ends[lane]] <= op &&
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

Lanes::Span Lanes::beside(int lane, int first, const std::vector<int>& ops) const {
    Span span{before_[cell(first, lane)], 0};
    if (lane_[first] == lane) span.begin = std::min(span.begin, position_[first]);
    for (int op : ops) {
        span.end = std::max(span.end, after_[cell(op, lane)]);
        if (lane_[op] == lane) span.end = std::max(span.end, position_[op] + 1);
    }
    return span;
}

LaneRoom::LaneRoom(const Lanes& lanes) : lanes_(lanes) {
    for (int lane = 0; lane < lanes.count(); lane++) {
        alive_.emplace_back(lanes.size(lane));
        made_.emplace_back(lanes.size(lane));
    }
}

// Two values may be alive at once where what makes one may run while the other is alive.
int64_t LaneRoom::lowest(const Life& life, int64_t bytes) const {
    std::vector<const Taken*> taken;
    const int at = lanes_.position(life.first);
    alive_[lanes_.lane(life.first)].find(at, at, taken);
    for (int lane = 0; lane < lanes_.count(); lane++) {
        const auto [begin, end] = lanes_.beside(lane, life.first, life.ops);
        if (begin < end) made_[lane].find(begin, end - 1, taken);
    }
    return lowest_free(taken, bytes);
}

void LaneRoom::take(const Life& life, int64_t begin, int64_t end) {
    const int at = lanes_.position(life.first);
    made_[lanes_.lane(life.first)].take(at, at, begin, end);
    for (int lane = 0; lane < lanes_.count(); lane++) {
        const auto span = lanes_.beside(lane, life.first, life.ops);
        if (span.begin < span.end) alive_[lane].take(span.begin, span.end - 1, begin, end);
    }
}

}  // namespace aicf
