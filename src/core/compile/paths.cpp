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
    // Two consecutive jumps of equal length are joined (skew-binary jump pointers).
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

Reachability::Reachability(size_t count)
    : before_(count), after_(count), reach_(count, -1), dead_(count, -1), met_(count, 0) {}

void Reachability::add_wait(int op) {
    direct_.push_back(op);
    frontier_.push_back(op);
    std::push_heap(frontier_.begin(), frontier_.end());
    reach_[op] = at_;
}

/// Whether the current op is reachable by what is marked, or by the forest of its latest
/// predecessors.
bool Reachability::reaches(int op) const {
    constexpr size_t kTries = 4;
    if (reach_[op] == at_) return true;
    for (size_t i = 0; i < std::min(direct_.size(), kTries); i++)
        if (known_.above(op, direct_[i])) return true;
    return false;
}

/// Bidirectional search, a step of each in turn: forward from `op`, backward from the current op,
/// latest first.
bool Reachability::ordered_after(int op) {
    if (direct_.empty()) return false;
    if (reaches(op)) return true;
    question_++;
    queue_.assign(1, op);
    for (size_t first = 0;; first++) {
        if (first == queue_.size()) {
            for (int met : queue_) dead_[met] = at_;
            return false;
        }
        for (int to : after_[queue_[first]]) {
            if (reach_[to] == at_) return true;
            if (to > direct_.front() || dead_[to] == at_ || met_[to] == question_) continue;
            if (reaches(to)) return true;
            met_[to] = question_;
            queue_.push_back(to);
        }
        if (frontier_.empty() || frontier_.front() <= op) return reach_[op] == at_;
        std::pop_heap(frontier_.begin(), frontier_.end());
        const int last = frontier_.back();
        frontier_.pop_back();
        for (int earlier : before_[last]) {
            if (reach_[earlier] == at_) continue;
            reach_[earlier] = at_;
            frontier_.push_back(earlier);
            std::push_heap(frontier_.begin(), frontier_.end());
        }
        if (reach_[op] == at_) return true;
    }
}

void Reachability::finish_op() {
    for (int op : direct_) after_[op].push_back(at_);
    known_.add(direct_);
    before_[at_] = std::move(direct_);
    direct_.clear();
    frontier_.clear();
    at_++;
}

}  // namespace aicf
