// Fork safety of locks and threads: only the forking thread survives in the child.
#pragma once

#include <atomic>

namespace aicf {

/// Calls `act` in the child of every fork from now on.
void at_fork(void (*act)());
/// Installs the counter of forks(); once, when the module is loaded.
void count_forks();
/// The number of forks between this process and the one that loaded the module.
int forks();

/// Raises GraphError: work under way remained in the parent.
[[noreturn]] void raise_forked();

/// A mutex whose lock() throws in a forked child if a thread of the parent held it, which can never
/// release it.
class ForkMutex {
  public:
    void lock();
    void unlock();

  private:
    static constexpr int kFree = -1;
    std::atomic<int> holder_{kFree};  // else forks() in the holder's process
};

}  // namespace aicf
