#include "races.h"

#include <algorithm>
#include <utility>

namespace emulated {

namespace {

void raise(Clock& to, const Clock& from) {
    for (size_t i = 0; i < to.size(); i++) to[i] = std::max(to[i], from[i]);
}

}  // namespace

void Known::take(const Seen& other) {
    if (!other || other == seen) return;
    bool whole = true;
    for (size_t i = 0; i < seen->size(); i++) whole &= (*seen)[i] <= (*other)[i];
    if (whole) {
        seen = other;
        return;
    }
    const auto both = std::make_shared<Clock>(*seen);
    raise(*both, *other);
    seen = both;
}

void Products::seen_by(Known& lane, u32 at) {
    if (lane.seen != before || step != at) {
        before = lane.seen;
        step = at;
        const auto clock = std::make_shared<Clock>(*before);
        (*clock)[id] = at;
        behind = clock;
    }
    lane.seen = behind;
}

void Gathered::add(Known& one) {
    if (!clock_)
        clock_ = std::make_shared<Clock>(*one.seen);
    else if (one.seen != last_)
        raise(*clock_, *one.seen);
    last_ = one.seen;
    (*clock_)[one.id] = one.step++;
}
void Gathered::add(u32 id, u32 step, size_t ids) {
    if (!clock_) clock_ = std::make_shared<Clock>(ids);
    (*clock_)[id] = std::max((*clock_)[id], step);
}

Shadow::Word& Shadow::word(u32 at) {
    if (words_.size() <= at) words_.resize(at + 1024);
    Word& found = words_[at];
    if (std::exchange(found.age, age_) != age_) found.records.clear();
    return found;
}

const Shadow::Record* Shadow::touch(const Known& by, u32 at, u32 bytes, Record as) {
    for (u32 end = at + bytes; at < end; at = (at | 3) + 1) {
        const u32 here = std::min((at | 3) + 1, end) - at;
        as.bytes = static_cast<unsigned char>(((1u << here) - 1) << at % 4);
        auto& records = word(at / 4).records;
        for (Record& one : records) {
            if (!(one.bytes & as.bytes)) continue;
            const bool sees = one.step != kUnderWay &&
                              one.step <= (one.id == by.id ? by.step : (*by.seen)[one.id]);
            if (!sees && (one.access != as.access || one.access == kWrite)) {
                found_ = one;
                return &found_;
            }
            // Who sees this access sees one that it came behind, too.
            if (sees && (as.access == kWrite || one.access == as.access))
                one.bytes &= static_cast<unsigned char>(~as.bytes);
        }
        std::erase_if(records, [](const Record& one) { return !one.bytes; });
        const auto same = std::find_if(records.begin(), records.end(), [&](const Record& one) {
            return one.id == as.id && one.step == as.step && one.access == as.access;
        });
        if (same == records.end())
            records.push_back(as);
        else
            same->bytes |= as.bytes;
    }
    return nullptr;
}

void Shadow::finish(u32 id, u32 at, u32 bytes, u32 step) {
    for (u32 w = at / 4; w < (at + bytes + 3) / 4; w++)
        for (Record& one : word(w).records)
            if (one.id == id && one.step == kUnderWay) one.step = step;
}

}  // namespace emulated
