// The locks of a Step.
#pragma once

#include <algorithm>

#include "core/base/interrupt.h"
#include "core/graph/custom.h"
#include "core/run/step.h"

namespace aicf {

/// Locks all machines of a Step, in address order to avoid deadlock. Allocates nothing, since
/// destructors use it.
class Locks {
  public:
    using Machines = std::vector<std::shared_ptr<Machine>>;
    Locks(Machine& mine, const Machines& others)
        : mine_(mine),
          others_(others),
          place_(std::count_if(others.begin(), others.end(),
                               [&](const auto& other) { return other.get() < &mine; })) {
        refuse_in_host_call();
        try {
            for (; held_ <= std::ssize(others_); held_++) at(held_).lock();
        } catch (...) {
            let_go();
            throw;
        }
    }
    ~Locks() { let_go(); }
    Locks(const Locks&) = delete;
    Locks& operator=(const Locks&) = delete;

  private:
    /// The Step's own machine in its place among the others, which are sorted.
    ForkMutex& at(ptrdiff_t i) {
        if (i == place_) return mine_.lock;
        return others_[static_cast<size_t>(i < place_ ? i : i - 1)]->lock;
    }
    void let_go() {
        while (held_ > 0) at(--held_).unlock();
    }

    Machine& mine_;
    const Machines& others_;
    const ptrdiff_t place_;
    ptrdiff_t held_ = 0;
};

/// Holds the locks; synchronizes the other machines' streams before, the Step's own after.
class Turn {
  public:
    Turn(Machine& mine, const std::vector<std::shared_ptr<Machine>>& others)
        : locks_(mine, others), mine_(mine), alone_(others.empty()) {
        for (const auto& other : others) other->backend->synchronize();
    }
    ~Turn() {
        if (alone_) return;
        try {
            mine_.backend->synchronize();
        } catch (...) {  // the next call raises it again
        }
    }

  private:
    const Uninterrupted quiet_;
    const Locks locks_;
    Machine& mine_;
    const bool alone_;
};

}  // namespace aicf
