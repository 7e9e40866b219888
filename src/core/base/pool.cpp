#include "core/base/pool.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>
#include <thread>
#include <utility>

#include "core/base/error.h"
#include "core/base/float_mode.h"
#include "core/base/fork.h"
#include "core/base/threads.h"

namespace aicf {

namespace {

constexpr int kMaxThreads = 256;
constexpr int kChunks = 2;  // for each thread; more would pack a product's operands anew
constexpr size_t kStackBytes = 4 << 20;  // a block of many operands takes more than musl's default
constexpr auto kSpin = std::chrono::microseconds(200);

void relax() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

/// A number whose change one thread waits for: a spin, then sleep. It never yields: on a shared
/// processor a yield gives up a whole time slice, where a sleeper keeps its claim and comes back at
/// once.
class alignas(64) Signal {
  public:
    uint64_t load() const { return value_.load(std::memory_order_acquire); }
    /// Sets the number without a word to who waits.
    void reset(uint64_t value) { value_.store(value, std::memory_order_relaxed); }

    void set(uint64_t value) {
        value_.store(value);
        wake();
    }

    /// Takes one off; the last one wakes who waits.
    void count_down() {
        if (value_.fetch_sub(1) == 1) wake();
    }

    /// Whether the number became as wanted within the time of a spin.
    template <class Wanted>
    bool spin(Wanted wanted) const {
        using std::chrono::steady_clock;
        if (wanted(load())) return true;
        for (const auto end = steady_clock::now() + kSpin; steady_clock::now() < end;)
            for (int i = 0; i < 64; i++) {
                if (wanted(load())) return true;
                relax();
            }
        return false;
    }

    template <class Wanted>
    void sleep(Wanted wanted) {
        std::unique_lock lock(mutex_);
        sleeps_.store(true);  // before the number is read once more: see wake()
        changed_.wait(lock, [&] { return wanted(value_.load()); });
        sleeps_.store(false, std::memory_order_relaxed);
    }

  private:
    /// After a change of the number: who does not sleep yet will see the change.
    void wake() {
        if (!sleeps_.load()) return;
        mutex_.lock();  // until a sleeper on its way is asleep
        mutex_.unlock();
        changed_.notify_one();
    }

    std::atomic<uint64_t> value_{0};
    std::atomic<bool> sleeps_{false};
    std::mutex mutex_;
    std::condition_variable changed_;
};

/// The processors that a thread may use, and the one it has. Where the system does not say, nothing
/// is equal and nothing changes.
#if defined(__linux__)
class Processors {
  public:
    static int here() { return sched_getcpu(); }
    explicit Processors(pthread_t thread) {
        known_ = pthread_getaffinity_np(thread, sizeof set_, &set_) == 0;
    }
    Processors() = default;
    bool known() const { return known_; }
    bool operator==(const Processors& other) const {
        return known_ && other.known_ && CPU_EQUAL(&set_, &other.set_);
    }
    /// Without one of several.
    Processors without(int processor) const {
        Processors rest = *this;
        CPU_CLR(processor, &rest.set_);
        rest.known_ = known_ && CPU_COUNT(&rest.set_) > 0;
        return rest;
    }
    bool give(pthread_t thread) const {
        return known_ && pthread_setaffinity_np(thread, sizeof set_, &set_) == 0;
    }

  private:
    cpu_set_t set_{};
    bool known_ = false;
};
#else
class Processors {
  public:
    static int here() { return -1; }
    explicit Processors(pthread_t) {}
    Processors() = default;
    bool known() const { return false; }
    bool operator==(const Processors&) const { return false; }
    Processors without(int) const { return *this; }
    bool give(pthread_t) const { return false; }
};
#endif

/// Runs a region at a time: its units in chunks that whoever is there claims, one by one. A worker
/// that is late, or has no processor just then, finds its share done by the others.
class Pool {
  public:
    const int born = forks();

    void run(RegionFn fn, const void* context, int64_t units, int threads) {
        if (busy_.test_and_set(std::memory_order_acquire)) return fn(context, 0, units, 0);
        threads = start(threads);
        if (threads < 2) {
            busy_.clear(std::memory_order_release);
            return fn(context, 0, units, 0);
        }
        fn_ = fn;
        context_ = context;
        units_ = units;
        const auto chunks =
            static_cast<uint64_t>(std::min<int64_t>(units, int64_t{threads} * kChunks));
        pending_.reset(chunks);
        region_ = (region_ + 1) & kRegions;
        claims_.store(region_ << 2 * kClaimBits | chunks << kClaimBits, std::memory_order_release);
        keep_away(threads);
        for (int i = 1; i < threads; i++) workers_[i].turn.set(region_);
        work(region_, 0);
        const auto done = [](uint64_t chunks_left) { return chunks_left == 0; };
        if (!pending_.spin(done)) {
            let_go();
            pending_.sleep(done);
        }
        busy_.clear(std::memory_order_release);
    }

  private:
    static constexpr int kClaimBits = 12;
    static constexpr uint64_t kRegions = ~uint64_t{0} >> 2 * kClaimBits;
    static_assert(kMaxThreads * kChunks < 1 << kClaimBits);
    static constexpr int kUnknown = -1;  // processor

    struct alignas(64) Worker {
        Signal turn;                           // the region to take part in
        std::atomic<int> processor{kUnknown};  // where it last took part
        Pool* pool = nullptr;
        pthread_t handle{};
        Processors home, away;  // those it may use; those it has been sent to, if it has
    };

    /// Chunks of the region until none is left. The region's fields hold still while a claimed
    /// chunk of it is pending, and nobody claims one of another region.
    void work(uint64_t region, int thread) {
        constexpr uint64_t kMask = (1 << kClaimBits) - 1;
        uint64_t claims = claims_.load(std::memory_order_acquire);
        for (;;) {
            const uint64_t at = claims & kMask, chunks = claims >> kClaimBits & kMask;
            if (claims >> 2 * kClaimBits != region || at >= chunks) return;
            if (!claims_.compare_exchange_weak(claims, claims + 1, std::memory_order_acq_rel))
                continue;
            const auto chunk = static_cast<int64_t>(at), count = static_cast<int64_t>(chunks);
            fn_(context_, units_ * chunk / count, units_ * (chunk + 1) / count, thread);
            pending_.count_down();
            claims = claims_.load(std::memory_order_acquire);
        }
    }

    /// Keeps workers that were last on the caller's processor off it. The scheduler may leave two
    /// there for tens of milliseconds: to a virtual machine a processor that sleeps looks like one
    /// that its host has taken away.
    void keep_away(int threads) {
        const int here = Processors::here();
        if (here == kUnknown) return;
        for (int i = 1; i < threads; i++) {
            Worker& worker = workers_[i];
            if (worker.processor.load(std::memory_order_relaxed) != here) continue;
            worker.processor.store(kUnknown, std::memory_order_relaxed);  // until it takes part
            const Processors now(worker.handle);
            if (!(now == worker.away)) worker.home = now;  // or somebody else has set them since
            if (!(worker.home == Processors(pthread_self()))) continue;
            const Processors rest = worker.home.without(here);
            if (rest.give(worker.handle)) worker.away = rest;
        }
    }

    /// Lets them use the caller's processor while it sleeps: others may be busy on theirs.
    void let_go() {
        for (Worker* worker = workers_ + 1; worker < workers_ + started_; worker++)
            if (const Processors away = std::exchange(worker->away, {});
                away.known() && away == Processors(worker->handle))
                worker->home.give(worker->handle);
    }

    /// Starts missing workers; returns how many threads there are, the caller included. Once the
    /// system refuses one, no more are asked for.
    int start(int wanted) {
        wanted = std::min(wanted, most_);
        while (started_ < wanted) {
            workers_[started_].pool = this;
            if (!begin(workers_[started_])) return most_ = started_;
            started_++;
        }
        return wanted;
    }

    static bool begin(Worker& worker) {
        pthread_attr_t attributes;
        if (pthread_attr_init(&attributes) != 0) return false;
        pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
        pthread_attr_setstacksize(&attributes, kStackBytes);
        // Signals are for the program's own threads, but those that the thread itself causes.
        sigset_t blocked, before;
        sigfillset(&blocked);
        for (int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS})
            sigdelset(&blocked, own);
        pthread_sigmask(SIG_SETMASK, &blocked, &before);
        const auto entry = [](void* self) -> void* {
            static_cast<Worker*>(self)->pool->serve(*static_cast<Worker*>(self));
        };
        const int error = pthread_create(&worker.handle, &attributes, entry, &worker);
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        pthread_attr_destroy(&attributes);
        return error == 0;
    }

    [[noreturn]] void serve(Worker& worker) {
        const FloatMode mode;
        const int thread = static_cast<int>(&worker - workers_);
        for (uint64_t seen = 0;;) {
            const auto told = [&](uint64_t region) { return region != seen; };
            if (!worker.turn.spin(told)) worker.turn.sleep(told);
            seen = worker.turn.load();
            if (const int here = Processors::here();
                worker.processor.load(std::memory_order_relaxed) != here)
                worker.processor.store(here, std::memory_order_relaxed);
            work(seen, thread);
        }
    }

    std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
    int started_ = 1, most_ = kMaxThreads;
    Worker workers_[kMaxThreads];  // the first is whoever calls
    uint64_t region_ = 0;
    RegionFn fn_ = nullptr;
    const void* context_ = nullptr;
    int64_t units_ = 0;
    Signal pending_;                               // chunks of the region that are not done
    alignas(64) std::atomic<uint64_t> claims_{0};  // region, its chunks, those claimed
};

std::atomic<Pool*> the_pool{nullptr};
std::atomic<int> the_threads{0};

/// Workers do not survive a fork: the child starts another pool when it needs one. A pool is never
/// destroyed, because its sleeping workers end only with the process. None where there is no memory
/// for it: a step that has begun must not fail.
Pool* pool() {
    Pool* found = the_pool.load(std::memory_order_acquire);
    while (!found || found->born != forks()) {
        auto* const fresh = new (std::nothrow) Pool;
        if (!fresh || the_pool.compare_exchange_strong(found, fresh)) return fresh;
        delete fresh;
    }
    return found;
}

int default_threads() {
    int count = processors();
    if (const char* text = std::getenv("AICF_NUM_THREADS"); text && *text) {
        int64_t wanted = 0;
        const char* end = text + std::strlen(text);
        const auto [at, error] = std::from_chars(text, end, wanted);
        if (error != std::errc() || at != end || wanted < 1)
            raise(ErrorKind::graph, "cpu: AICF_NUM_THREADS is \"", text,
                  "\"; need an integer >= 1");
        count = static_cast<int>(std::min<int64_t>(count, wanted));
    }
    return std::clamp(count, 1, kMaxThreads);
}

}  // namespace

int cpu_threads() {
    int count = the_threads.load(std::memory_order_relaxed);
    if (count != 0) return count;
    const int found = default_threads();  // set_cpu_threads may come first
    return the_threads.compare_exchange_strong(count, found) ? found : count;
}

void set_cpu_threads(int count) {
    the_threads.store(std::clamp(count, 0, kMaxThreads), std::memory_order_relaxed);
}

void run_parallel(RegionFn fn, const void* context, int64_t units, int threads) {
    threads = static_cast<int>(std::min<int64_t>(threads, units));
    Pool* const workers = threads < 2 ? nullptr : pool();
    if (!workers) return fn(context, 0, units, 0);
    workers->run(fn, context, units, threads);
}

}  // namespace aicf
