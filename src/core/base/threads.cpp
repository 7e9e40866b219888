#include "core/base/threads.h"

#if defined(__linux__)
#include <sched.h>
#endif

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "core/base/float_mode.h"
#include "core/base/fork.h"

namespace aicf {

int processors() {
    int count = static_cast<int>(std::thread::hardware_concurrency());
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) count = CPU_COUNT(&set);
#endif
    return std::max(count, 1);
}

void in_parallel(size_t count, const std::function<void(size_t)>& job) {
    const int born = forks();
    std::atomic<size_t> next = 0;
    const std::unique_ptr<std::atomic<bool>[]> done(new std::atomic<bool>[count]());
    std::mutex lock;
    std::exception_ptr error;
    const auto work = [&] {
        const FloatMode mode;
        try {
            for (size_t i = next++; i < count; i = next++) {
                job(i);
                done[i] = true;
            }
        } catch (...) {
            next = count;
            const std::lock_guard guard(lock);
            if (!error) error = std::current_exception();
        }
    };
    const size_t most = std::min(static_cast<size_t>(processors()), count);
    auto helpers = std::make_unique<std::vector<std::thread>>();
    try {
        while (helpers->size() + 1 < most) helpers->emplace_back(work);
    } catch (...) {  // as many as can be started
    }
    work();
    if (forks() != born) {  // a signal handler forked: the helpers remain in the parent
        [[maybe_unused]] const auto* const kept = helpers.release();
        if (error) std::rethrow_exception(error);
        for (size_t i = 0; i < count; i++)
            if (!done[i]) job(i);
        return;
    }
    for (std::thread& helper : *helpers) helper.join();
    if (error) std::rethrow_exception(error);
}

}  // namespace aicf
