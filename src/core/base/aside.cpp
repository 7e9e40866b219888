#include "core/base/aside.h"

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/base/error.h"
#include "core/base/fork.h"
#include "core/base/interrupt.h"

namespace aicf {

namespace {

struct Aside {
    std::function<void(const std::atomic<bool>&)> work;
    std::atomic<bool> given_up = false;
    bool left = false;  // abandoned by its caller; guarded by the registry's lock
    std::mutex lock;
    std::condition_variable ended;
    bool done = false;
    std::exception_ptr error;
    std::thread thread;

    void run() {
        std::exception_ptr caught;
        try {
            work(given_up);
        } catch (...) {
            caught = std::current_exception();
        }
        const std::lock_guard guard(lock);
        error = std::move(caught);
        done = true;
        ended.notify_all();
    }
    bool ended_now() {
        const std::lock_guard guard(lock);
        return done;
    }
};

struct Asides {
    const int born = forks();
    std::mutex lock;
    bool closing = false;
    std::vector<std::shared_ptr<Aside>> all;  // running, or abandoned and not yet joined

    void add(const std::shared_ptr<Aside>& aside) {
        const std::lock_guard guard(lock);
        if (closing)
            raise(ErrorKind::graph,
                  "compile: the process is ending; need a compile that is over before");
        std::erase_if(all, [](const auto& other) {
            if (!other->left || !other->ended_now()) return false;
            other->thread.join();
            return true;
        });
        all.push_back(aside);
    }
    void remove(const std::shared_ptr<Aside>& aside) {
        const std::lock_guard guard(lock);
        std::erase(all, aside);
    }
    void leave(Aside& aside) {
        const std::lock_guard guard(lock);
        aside.left = true;
    }
};

/// Never destroyed, since threads may outlive static objects. A forked child, which has none of the
/// threads, starts afresh.
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

}  // namespace

void run_aside(std::function<void(const std::atomic<bool>& given_up)> work, void (*watch)()) {
    Asides& known = asides();
    const auto aside = std::make_shared<Aside>();
    aside->work = std::move(work);
    known.add(aside);
    try {
        aside->thread = std::thread([aside] { aside->run(); });
    } catch (...) {
        known.remove(aside);
        return aside->work(aside->given_up);
    }
    try {
        std::unique_lock guard(aside->lock);
        while (!aside->ended.wait_for(guard, std::chrono::milliseconds(2),
                                      [&] { return aside->done; })) {
            guard.unlock();
            watch();
            poll();
            if (known.born != forks()) raise_forked();
            guard.lock();
        }
    } catch (...) {
        if (known.born != forks()) {  // the thread is the parent's: neither joined nor destroyed
            [[maybe_unused]] const auto* const kept = new std::shared_ptr<Aside>(aside);
            throw;
        }
        aside->given_up = true;
        known.leave(*aside);
        throw;
    }
    known.remove(aside);
    aside->thread.join();
    if (aside->error) std::rethrow_exception(aside->error);
}

void finish_asides() {
    Asides& known = asides();
    std::vector<std::shared_ptr<Aside>> ending;
    {
        const std::lock_guard guard(known.lock);
        known.closing = true;
        ending = known.all;
    }
    for (const auto& aside : ending) aside->given_up = true;
    for (const auto& aside : ending) {
        std::unique_lock guard(aside->lock);
        aside->ended.wait(guard, [&] { return aside->done; });
    }
    const std::lock_guard guard(known.lock);
    for (const auto& aside : ending)
        if (aside->left && aside->thread.joinable()) aside->thread.join();
}

}  // namespace aicf
