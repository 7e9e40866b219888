#include "core/fork.h"

#include <pthread.h>

#include "core/error.h"

namespace aicf {

namespace {
std::atomic<int> the_forks{0};
}

void count_forks() {
    pthread_atfork(nullptr, nullptr, [] { the_forks++; });
}

int forks() { return the_forks.load(std::memory_order_relaxed); }

void ForkMutex::lock() {
    if (!mutex_.try_lock()) {
        const int holder = holder_.load(std::memory_order_relaxed);
        if (holder != kNobody && holder != forks())
            raise(ErrorKind::graph,
                  "fork: another thread was using this when the process was forked, and that "
                  "thread is not in the child; need a fork while nothing runs, or a step that is "
                  "compiled in the child");
        mutex_.lock();
    }
    holder_.store(forks(), std::memory_order_relaxed);
}

}  // namespace aicf
