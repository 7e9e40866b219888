#include "core/compile/memory.h"

#include <algorithm>
#include <functional>

namespace aicf {

// ---- who touched it last -----------------------------------------------------------------------

/// Makes a stretch that spans `at` two.
void LastTouches::cut(Stretches& stretches, int64_t at) {
    auto after = stretches.lower_bound(at);
    if (after == stretches.begin()) return;
    auto& [begin, before] = *std::prev(after);
    if (before.end <= at || begin == at) return;
    stretches.emplace_hint(after, at, before);
    before.end = at;
}

void LastTouches::note(Stretches& stretches, int op, const Touch& touch) {
    cut(stretches, touch.begin);
    cut(stretches, touch.end);
    auto at = stretches.lower_bound(touch.begin);
    if (touch.write) {
        while (at != stretches.end() && at->first < touch.end) at = stretches.erase(at);
        stretches.emplace_hint(at, touch.begin, Stretch{touch.end, op, {}});
        return;
    }
    int64_t from = touch.begin;
    for (; at != stretches.end() && at->first < touch.end; ++at) {
        if (from < at->first) stretches.emplace_hint(at, from, Stretch{at->first, -1, {op}});
        at->second.readers.push_back(op);
        from = at->second.end;
    }
    if (from < touch.end) stretches.emplace_hint(at, from, Stretch{touch.end, -1, {op}});
}

std::vector<int> LastTouches::meet(int op, const std::vector<Touch>& touches) {
    std::vector<int> met;
    for (const Touch& touch : touches) {
        if (touch.begin == touch.end) continue;
        Stretches& stretches = spaces_[touch.space];
        auto at = stretches.upper_bound(touch.begin);
        if (at != stretches.begin() && std::prev(at)->second.end > touch.begin) --at;
        for (; at != stretches.end() && at->first < touch.end; ++at) {
            const Stretch& stretch = at->second;
            if (stretch.writer >= 0) met.push_back(stretch.writer);
            if (touch.write) met.insert(met.end(), stretch.readers.begin(), stretch.readers.end());
        }
    }
    for (const bool write : {false, true})
        for (const Touch& touch : touches)
            if (touch.write == write && touch.begin != touch.end)
                note(spaces_[touch.space], op, touch);
    std::sort(met.begin(), met.end(), std::greater<>());
    met.erase(std::unique(met.begin(), met.end()), met.end());
    return met;
}

// ---- what it holds -----------------------------------------------------------------------------

int Contents::meets(const Touch& at) const {
    if (at.begin == at.end) return -1;
    auto after = held_.lower_bound({at.space, at.end});
    if (after == held_.begin()) return -1;
    const auto& [where, held] = *std::prev(after);
    return where.first == at.space && held.end > at.begin ? held.value : -1;
}

void Contents::write(const Touch& at, int value) {
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

bool Contents::holds(const Touch& at, int value) const {
    if (at.begin == at.end) return true;
    const auto held = held_.find({at.space, at.begin});
    return held != held_.end() && held->second.value == value;
}

// ---- where there is room -----------------------------------------------------------------------

void Taken::add(int64_t begin, int64_t end) {
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

Room::Room(int moments) {
    while (moments_ < moments) moments_ *= 2;
    ranges_.resize(2 * static_cast<size_t>(moments_));
}

/// Visits the ranges that moments first..last meet, from the root; not below those they cover.
template <class Visit>
void Room::walk(size_t range, int begin, int end, int first, int last, const Visit& visit) const {
    if (last < begin || end <= first) return;
    const bool covered = first <= begin && end <= last + 1;
    visit(range, covered);
    if (covered) return;
    const int middle = begin + (end - begin) / 2;
    walk(2 * range, begin, middle, first, last, visit);
    walk(2 * range + 1, middle, end, first, last, visit);
}

void Room::take(int first, int last, int64_t begin, int64_t end) {
    walk(1, 0, moments_, first, last, [&](size_t range, bool covered) {
        ranges_[range].within.add(begin, end);
        if (covered) ranges_[range].through.add(begin, end);
    });
}

void Room::find(int first, int last, std::vector<const Taken*>& found) const {
    walk(1, 0, moments_, first, last, [&](size_t range, bool covered) {
        const Taken& taken = covered ? ranges_[range].within : ranges_[range].through;
        if (!taken.list().empty()) found.push_back(&taken);
    });
}

int64_t lowest_free(const std::vector<const Taken*>& lists, int64_t bytes) {
    using Iterator = std::vector<std::pair<int64_t, int64_t>>::const_iterator;
    std::vector<std::pair<Iterator, Iterator>> taken;
    for (const Taken* list : lists) taken.emplace_back(list->list().begin(), list->list().end());
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
