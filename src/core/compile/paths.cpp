#include "core/compile/paths.h"

#include <algorithm>

namespace aicf {

void Forest::add(std::span<const int> above) {
    int parent = -1;
    for (int other : above)
        if (parent < 0 || depths_[other] > depths_[parent]) parent = other;
    parents_.push_back(parent);
    if (parent < 0) {
        jumps_.push_back(-1);
        depths_.push_back(0);
        return;
    }
    // Where two jumps in a row are of one length, the next spans both (skew binary numbers).
    const int first = jumps_[parent], second = first < 0 ? -1 : jumps_[first];
    const bool both =
        second >= 0 && depths_[parent] - depths_[first] == depths_[first] - depths_[second];
    jumps_.push_back(both ? second : parent);
    depths_.push_back(depths_[parent] + 1);
}

bool Forest::above(int upper, int lower) const {
    while (lower > upper) lower = jumps_[lower] >= upper ? jumps_[lower] : parents_[lower];
    return lower == upper;
}

Order::Order(size_t count)
    : before_(count), after_(count), reach_(count, -1), dead_(count, -1), met_(count, 0) {}

void Order::wait(int op) {
    now_.push_back(op);
    behind_.push_back(op);
    std::push_heap(behind_.begin(), behind_.end());
    reach_[op] = at_;
}

/// Whether one of the paths at hand leads from `op` to what the next op waits for.
bool Order::leads(int op) const {
    constexpr size_t kTries = 4;
    if (reach_[op] == at_) return true;
    for (size_t i = 0; i < std::min(now_.size(), kTries); i++)
        if (known_.above(op, now_[i])) return true;
    return false;
}

/// From both ends by turns: on from `op`, and back from what the next op waits for, nearest first.
bool Order::waits(int op) {
    if (now_.empty()) return false;
    if (leads(op)) return true;
    question_++;
    open_.assign(1, op);
    for (size_t first = 0;; first++) {
        if (first == open_.size()) {
            for (int met : open_) dead_[met] = at_;
            return false;
        }
        for (int to : after_[open_[first]]) {
            if (reach_[to] == at_) return true;
            if (to > now_.front() || dead_[to] == at_ || met_[to] == question_) continue;
            if (leads(to)) return true;
            met_[to] = question_;
            open_.push_back(to);
        }
        if (behind_.empty() || behind_.front() <= op) return reach_[op] == at_;
        std::pop_heap(behind_.begin(), behind_.end());
        const int last = behind_.back();
        behind_.pop_back();
        for (int earlier : before_[last]) {
            if (reach_[earlier] == at_) continue;
            reach_[earlier] = at_;
            behind_.push_back(earlier);
            std::push_heap(behind_.begin(), behind_.end());
        }
        if (reach_[op] == at_) return true;
    }
}

void Order::next() {
    for (int op : now_) after_[op].push_back(at_);
    known_.add(now_);
    before_[at_] = std::move(now_);
    now_.clear();
    behind_.clear();
    at_++;
}

}  // namespace aicf
