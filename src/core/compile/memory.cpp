#include "core/compile/memory.h"

#include <algorithm>
#include <functional>

namespace aicf {

// ---- hazards -----------------------------------------------------------------------

/// Splits the range that contains `at` there.
void HazardTracker::split(RangeMap& ranges, int64_t at) {
    auto after = ranges.lower_bound(at);
    if (after == ranges.begin()) return;
    auto& [begin, before] = *std::prev(after);
    if (before.end <= at || begin == at) return;
    ranges.emplace_hint(after, at, before);
    before.end = at;
}

void HazardTracker::update(RangeMap& ranges, int op, const MemoryAccess& access) {
    split(ranges, access.begin);
    split(ranges, access.end);
    auto at = ranges.lower_bound(access.begin);
    if (access.write) {
        while (at != ranges.end() && at->first < access.end) at = ranges.erase(at);
        ranges.emplace_hint(at, access.begin, ByteRange{access.end, op, {}});
        return;
    }
    int64_t from = access.begin;
    for (; at != ranges.end() && at->first < access.end; ++at) {
        if (from < at->first) ranges.emplace_hint(at, from, ByteRange{at->first, -1, {op}});
        at->second.readers.push_back(op);
        from = at->second.end;
    }
    if (from < access.end) ranges.emplace_hint(at, from, ByteRange{access.end, -1, {op}});
}

std::vector<int> HazardTracker::record(int op, const std::vector<MemoryAccess>& accesses) {
    std::vector<int> hazards;
    for (const MemoryAccess& access : accesses) {
        if (access.begin == access.end) continue;
        RangeMap& ranges = spaces_[access.space];
        auto at = ranges.upper_bound(access.begin);
        if (at != ranges.begin() && std::prev(at)->second.end > access.begin) --at;
        for (; at != ranges.end() && at->first < access.end; ++at) {
            const ByteRange& range = at->second;
            if (range.writer >= 0) hazards.push_back(range.writer);
            if (access.write)
                hazards.insert(hazards.end(), range.readers.begin(), range.readers.end());
        }
    }
    for (const bool write : {false, true})
        for (const MemoryAccess& access : accesses)
            if (access.write == write && access.begin != access.end)
                update(spaces_[access.space], op, access);
    std::sort(hazards.begin(), hazards.end(), std::greater<>());
    hazards.erase(std::unique(hazards.begin(), hazards.end()), hazards.end());
    return hazards;
}

// ---- contents -----------------------------------------------------------------------------

int Contents::overlapping(const MemoryAccess& at) const {
    if (at.begin == at.end) return -1;
    auto after = held_.lower_bound({at.space, at.end});
    if (after == held_.begin()) return -1;
    const auto& [where, held] = *std::prev(after);
    return where.first == at.space && held.end > at.begin ? held.value : -1;
}

void Contents::write(const MemoryAccess& at, int value) {
    if (at.begin == at.end) return;
    auto next = held_.lower_bound({at.space, at.begin});
    if (next != held_.begin()) {
        const auto before = std::prev(next);
        if (before->first.first == at.space && before->second.end > at.begin) held_.erase(before);
    }
    while (next != held_.end() && next->first < std::pair(at.space, at.end))
        next = held_.erase(next);
    held_.emplace_hint(next, std::pair(at.space, at.begin), Held{at.end, value});
}

bool Contents::holds(const MemoryAccess& at, int value) const {
    if (at.begin == at.end) return true;
    const auto held = held_.find({at.space, at.begin});
    return held != held_.end() && held->second.value == value;
}

// ---- free space -----------------------------------------------------------------------

void RangeSet::add(int64_t begin, int64_t end) {
    const auto first =
        std::lower_bound(list_.begin(), list_.end(), begin,
                         [](const auto& one, int64_t at) { return one.second < at; });
    auto last = first;
    for (; last != list_.end() && last->first <= end; ++last) {
        begin = std::min(begin, last->first);
        end = std::max(end, last->second);
    }
    if (first == last) {
        list_.insert(first, {begin, end});
        return;
    }
    *first = {begin, end};
    list_.erase(first + 1, last);
}

TimeTree::TimeTree(int moments) {
    while (moments_ < moments) moments_ *= 2;
    nodes_.resize(2 * static_cast<size_t>(moments_));
}

/// Visits the nodes whose interval intersects [first, last], top down, not below those it covers.
template <class Visit>
void TimeTree::walk(size_t node, int begin, int end, int first, int last,
                    const Visit& visit) const {
    if (last < begin || end <= first) return;
    const bool covered = first <= begin && end <= last + 1;
    visit(node, covered);
    if (covered) return;
    const int middle = begin + (end - begin) / 2;
    walk(2 * node, begin, middle, first, last, visit);
    walk(2 * node + 1, middle, end, first, last, visit);
}

void TimeTree::take(int first, int last, int64_t begin, int64_t end) {
    walk(1, 0, moments_, first, last, [&](size_t node, bool covered) {
        nodes_[node].within.add(begin, end);
        if (covered) nodes_[node].through.add(begin, end);
    });
}

void TimeTree::find(int first, int last, std::vector<const RangeSet*>& found) const {
    walk(1, 0, moments_, first, last, [&](size_t node, bool covered) {
        const RangeSet& taken = covered ? nodes_[node].within : nodes_[node].through;
        if (!taken.list().empty()) found.push_back(&taken);
    });
}

int64_t first_fit(const std::vector<const RangeSet*>& lists, int64_t bytes) {
    using Iterator = std::vector<std::pair<int64_t, int64_t>>::const_iterator;
    std::vector<std::pair<Iterator, Iterator>> taken;
    for (const RangeSet* list : lists) taken.emplace_back(list->list().begin(), list->list().end());
    int64_t offset = 0;
    for (bool moved = true; moved;) {
        moved = false;
        for (auto& [at, end] : taken) {
            at = std::lower_bound(at, end, offset,
                                  [](const auto& one, int64_t from) { return one.second <= from; });
            for (; at != end && at->first < offset + bytes; ++at) {
                offset = at->second;
                moved = true;
            }
        }
    }
    return offset;
}

}  // namespace aicf
