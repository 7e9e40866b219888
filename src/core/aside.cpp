#include "core/aside.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/fork.h"
#include "core/interrupt.h"

namespace aicf {

namespace {

struct Aside {
    std::function<void()> work;
    std::atomic<bool> given_up = false;
    std::mutex lock;
    std::condition_variable ended;
    bool done = false;
    std::exception_ptr error;
    std::thread thread;

    void run() {
        std::exception_ptr caught;
        try {
            work();
        } catch (...) {
            caught = std::current_exception();
        }
        const std::lock_guard guard(lock);
        error = std::move(caught);
        done = true;
        ended.notify_one();
    }
};

struct Asides {
    const int born = forks();
    std::mutex lock;
    std::vector<std::shared_ptr<Aside>> all;  // that run, or were given up and not yet joined
};

/// Never destroyed, as threads may come late; a forked child, which has none of them, begins anew.
Asides& asides() {
    static std::atomic<Asides*> known{nullptr};
    Asides* found = known.load();
    while (!found || found->born != forks()) {
        auto* const fresh = new Asides;
        if (known.compare_exchange_strong(found, fresh)) return *fresh;
        delete fresh;
    }
    return *found;
}

void forget(const std::shared_ptr<Aside>& aside) {
    Asides& known = asides();
    const std::lock_guard guard(known.lock);
    std::erase(known.all, aside);
}

}  // namespace

void run_aside(std::function<void()> work, void (*watch)()) {
    const auto aside = std::make_shared<Aside>();
    aside->work = std::move(work);
    {
        Asides& known = asides();
        const std::lock_guard guard(known.lock);
        known.all.push_back(aside);
    }
    try {
        aside->thread = std::thread([aside] { aside->run(); });
    } catch (...) {
        forget(aside);
        return aside->work();
    }
    try {
        std::unique_lock guard(aside->lock);
        while (!aside->ended.wait_for(guard, std::chrono::milliseconds(2),
                                      [&] { return aside->done; })) {
            guard.unlock();
            watch();
            poll();
            guard.lock();
        }
    } catch (...) {
        aside->given_up = true;
        throw;
    }
    forget(aside);
    aside->thread.join();
    if (aside->error) std::rethrow_exception(aside->error);
}

void finish_given_up() {
    std::vector<std::shared_ptr<Aside>> ending;
    {
        Asides& known = asides();
        const std::lock_guard guard(known.lock);
        for (const auto& aside : known.all)
            if (aside->given_up) ending.push_back(aside);
        for (const auto& aside : ending) std::erase(known.all, aside);
    }
    for (const auto& aside : ending) aside->thread.join();
}

}  // namespace aicf
