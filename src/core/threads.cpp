#include "core/threads.h"

#if defined(__linux__)
#include <sched.h>
#endif

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include "core/float_mode.h"

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
    std::atomic<size_t> next = 0;
    std::mutex lock;
    std::exception_ptr error;
    const auto work = [&] {
        const FloatMode mode;
        try {
            for (size_t i = next++; i < count; i = next++) job(i);
        } catch (...) {
            next = count;
            const std::lock_guard guard(lock);
            error = std::current_exception();
        }
    };
    const size_t most = std::min(static_cast<size_t>(processors()), count);
    std::vector<std::thread> helpers;
    try {
        while (helpers.size() + 1 < most) helpers.emplace_back(work);
    } catch (...) {  // as many as can be had
    }
    work();
    for (std::thread& helper : helpers) helper.join();
    if (error) std::rethrow_exception(error);
}

}  // namespace aicf
