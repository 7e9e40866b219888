// What a fork does to locks and threads: only the thread that forked lives on in the child.
#pragma once

#include <atomic>

namespace aicf {

/// Calls `act` in the child of every fork from now on.
void at_fork(void (*act)());
/// Makes forks() count; once, when the module is loaded.
void count_forks();
/// How many forks lie between this process and the one that loaded the module.
int forks();

/// GraphError: what was under way stayed behind in the parent.
[[noreturn]] void raise_forked();

/// A mutex that throws where its holder stayed behind in the parent: no one will ever let go.
class ForkMutex {
  public:
    void lock();
    void unlock();

  private:
    static constexpr int kFree = -1;
    std::atomic<int> holder_{kFree};  // else forks() in the holder's process
};

}  // namespace aicf
