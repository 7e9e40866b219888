#include "core/base/fork.h"

#include <pthread.h>

#include "core/base/error.h"

namespace aicf {

namespace {
std::atomic<int> the_forks{0};
}

void at_fork(void (*act)()) {
    if (pthread_atfork(nullptr, nullptr, act) != 0)
        raise(ErrorKind::out_of_memory, "fork: no memory for what a child has to do");
}

void count_forks() {
    at_fork([] { the_forks++; });
}

int forks() { return the_forks.load(std::memory_order_relaxed); }

void raise_forked() {
    raise(ErrorKind::graph,
          "fork: another thread was using this when the process was forked, and that thread is not "
          "in the child; need a fork while nothing runs, or a step that is compiled in the child");
}

void ForkMutex::lock() {
    const int mine = forks();
    for (int found = kFree; !holder_.compare_exchange_weak(found, mine, std::memory_order_acquire);
         found = kFree) {
        if (found != kFree && found != mine) raise_forked();
        if (found == mine) holder_.wait(mine, std::memory_order_relaxed);
    }
}

void ForkMutex::unlock() {
    holder_.store(kFree);  // sequentially consistent with the waiter count that notify reads
    holder_.notify_one();
}

}  // namespace aicf
