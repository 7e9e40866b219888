#include "core/paths.h"

#include <algorithm>

namespace aicf {

Forest::Forest(std::span<const int> parents) {
    const size_t count = parents.size();
    std::vector<int> size(count, 1), next(count, 0);
    for (size_t i = count; i-- > 0;)
        if (parents[i] >= 0) size[static_cast<size_t>(parents[i])] += size[i];
    int roots = 0;
    for (size_t i = 0; i < count; i++) {  // children follow their parent, each with all of its own
        int& from = parents[i] >= 0 ? next[static_cast<size_t>(parents[i])] : roots;
        enter_.push_back(from);
        leave_.push_back(from + size[i]);
        next[i] = from + 1;
        from += size[i];
    }
}

Order::Order(std::span<const int> parents)
    : known_(parents),
      before_(parents.size()),
      after_(parents.size()),
      reach_(parents.size(), -1),
      dead_(parents.size(), -1),
      met_(parents.size(), 0) {}

void Order::wait(int op) {
    now_.push_back(op);
    behind_.push_back(op);
    std::push_heap(behind_.begin(), behind_.end());
    reach_[op] = at_;
}

/// From both ends by turns: on from `op`, and back from what the next op waits for, nearest first.
bool Order::waits(int op) {
    if (now_.empty()) return false;
    const auto leads = [&](int from) {
        constexpr size_t kTries = 4;
        if (reach_[from] == at_) return true;
        for (size_t i = 0; i < std::min(now_.size(), kTries); i++)
            if (known_.above(from, now_[i])) return true;
        return false;
    };
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
    before_[at_] = std::move(now_);
    now_.clear();
    behind_.clear();
    at_++;
}

}  // namespace aicf
