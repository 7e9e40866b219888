// How a long call is given up: who starts one says whom to ask, and its loops ask now and then.
#pragma once

#include <functional>
#include <string>

namespace aicf {

/// While it lives, poll() on this thread asks this one, the innermost. `ask` may throw.
class Interruptible {
  public:
    explicit Interruptible(void (*ask)());
    ~Interruptible();
    Interruptible(const Interruptible&) = delete;
    Interruptible& operator=(const Interruptible&) = delete;

  private:
    void (*const before_)();
};

/// While it lives, poll() on this thread asks nobody: for who holds a lock that the one asked may
/// be waiting for.
class Uninterrupted {
  public:
    Uninterrupted();
    ~Uninterrupted();
    Uninterrupted(const Uninterrupted&) = delete;
    Uninterrupted& operator=(const Uninterrupted&) = delete;

  private:
    void (*const before_)();
};

/// Asks if the last time is 20 ms ago. For loops over the parts of a graph: where it throws, all
/// that was begun must undo itself.
void poll();

/// Told of each part of a long call when it is done; the parts follow each other.
using OnStage = std::function<void(const std::string&)>;
inline void tell(const OnStage& done, const std::string& stage) {
    if (done) done(stage);
}

}  // namespace aicf
