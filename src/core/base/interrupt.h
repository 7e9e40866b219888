// Cooperative cancellation: the caller installs a callback that long loops poll.
#pragma once

#include <functional>
#include <string>

namespace aicf {

/// While in scope, poll() on this thread calls `ask`, which may throw to cancel; the innermost
/// counts.
class Interruptible {
  public:
    explicit Interruptible(void (*ask)());
    ~Interruptible();
    Interruptible(const Interruptible&) = delete;
    Interruptible& operator=(const Interruptible&) = delete;

  private:
    void (*const before_)();
};

/// While in scope, poll() on this thread does nothing: for holders of a lock that the callback may
/// wait for.
class Uninterrupted {
  public:
    Uninterrupted();
    ~Uninterrupted();
    Uninterrupted(const Uninterrupted&) = delete;
    Uninterrupted& operator=(const Uninterrupted&) = delete;

  private:
    void (*const before_)();
};

/// Calls the callback at most every 20 ms. May throw, so callers must be exception-safe.
void poll();

/// Called after each stage of a long call.
using OnStage = std::function<void(const std::string&)>;
inline void tell(const OnStage& done, const std::string& stage) {
    if (done) done(stage);
}

}  // namespace aicf
