// What a fork does to locks and threads: only the thread that forked lives on in the child.
#pragma once

#include <atomic>
#include <mutex>

namespace aicf {

/// Makes forks() count; once, when the module is loaded.
void count_forks();
/// How many forks lie between this process and the one that loaded the module.
int forks();

/// A mutex that throws where its holder stayed behind in the parent: no one will ever let go.
class ForkMutex {
  public:
    void lock();
    void unlock() {
        holder_.store(kNobody, std::memory_order_relaxed);
        mutex_.unlock();
    }

  private:
    static constexpr int kNobody = -1;
    std::mutex mutex_;
    std::atomic<int> holder_{kNobody};  // forks() in the holder's process
};

}  // namespace aicf
