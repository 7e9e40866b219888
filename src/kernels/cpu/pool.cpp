#include "kernels/cpu/pool.h"

#include <pthread.h>
#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <system_error>
#include <thread>

#include "kernels/cpu/backend.h"

namespace aicf::cpu {

namespace {

constexpr int kMaxThreads = 256;
constexpr auto kSpin = std::chrono::microseconds(200);

void relax() {
#if defined(__x86_64__)
    _mm_pause();
#endif
}

#if defined(__linux__)
int processor() { return sched_getcpu(); }

/// Sends a thread that has the caller's processor, `here`, to the others that the caller may use.
/// The scheduler may keep the two there for tens of milliseconds: to a virtual machine a processor
/// that sleeps looks like one that its host has taken away.
void send_away(pthread_t thread, int here) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return;
    CPU_CLR(here, &set);
    if (CPU_COUNT(&set) != 0) pthread_setaffinity_np(thread, sizeof set, &set);
}
#else
int processor() { return -1; }
void send_away(pthread_t, int) {}
#endif

/// A number whose change threads wait for: a spin, then sleep. Nobody yields: on a shared processor
/// a yield gives up a whole time slice, where a sleeper keeps its claim and comes back at once.
class Signal {
  public:
    uint64_t load() const { return value_.load(std::memory_order_acquire); }
    /// Sets the number without a word to those who wait.
    void reset(uint64_t value) { value_.store(value, std::memory_order_relaxed); }

    void set(uint64_t value) {
        value_.store(value);
        wake();
    }

    /// Takes one off; the last one wakes those who wait.
    void count_down() {
        if (value_.fetch_sub(1) == 1) wake();
    }

    /// Waits until the number is another than `old`, and returns it.
    uint64_t await_change(uint64_t old) {
        return await([old](uint64_t now) { return now != old; });
    }

    void await_zero() {
        await([](uint64_t now) { return now == 0; });
    }

  private:
    template <class Done>
    uint64_t await(Done done) {
        const auto start = std::chrono::steady_clock::now();
        do {
            for (int i = 0; i < 64; i++) {
                if (const uint64_t now = load(); done(now)) return now;
                relax();
            }
        } while (std::chrono::steady_clock::now() - start < kSpin);
        std::unique_lock lock(mutex_);
        sleepers_.fetch_add(1);  // before the number is read once more: see wake()
        changed_.wait(lock, [&] { return done(value_.load()); });
        sleepers_.fetch_sub(1);
        return load();
    }

    /// After a change of the number: whoever has not counted as a sleeper yet will see the change.
    void wake() {
        if (sleepers_.load() == 0) return;
        mutex_.lock();  // until a sleeper on its way is asleep
        mutex_.unlock();
        changed_.notify_all();
    }

    alignas(64) std::atomic<uint64_t> value_{0};
    std::atomic<int> sleepers_{0};
    std::mutex mutex_;
    std::condition_variable changed_;
};

/// Runs a region at a time: its units in chunks that whoever is there claims, one by one. A worker
/// that is late, or has no processor just then, finds its share done by the others.
class Pool {
  public:
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
        const int here = processor();
        for (Worker* w = workers_ + 1; w < workers_ + threads && here >= 0; w++)
            if (w->processor.load(std::memory_order_relaxed) == here) send_away(w->handle, here);
        // The count of threads travels with the region's number: workspace is there for so many.
        turn_.set(region_ * kMaxThreads + static_cast<uint64_t>(threads - 1));
        work(region_, 0);
        pending_.await_zero();
        busy_.clear(std::memory_order_release);
    }

  private:
    static constexpr int kChunks = 2;  // for each thread; more would pack a product's operands anew
    static constexpr int kClaimBits = 12;
    static constexpr uint64_t kRegions = ~uint64_t{0} >> 2 * kClaimBits;
    static_assert(kMaxThreads * kChunks < 1 << kClaimBits);

    struct alignas(64) Worker {
        pthread_t handle;
        std::atomic<int> processor{-1};  // where its last chunk began
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

    /// Starts missing workers; returns how many threads there are, the caller included.
    int start(int wanted) {
        wanted = std::min(wanted, kMaxThreads);
        while (started_ < wanted) {
            try {
                std::thread worker(
                    [this, thread = started_, seen = turn_.load()] { serve(thread, seen); });
                workers_[started_].handle = worker.native_handle();
                worker.detach();
            } catch (const std::system_error&) {
                break;
            }
            started_++;
        }
        return std::min(started_, wanted);
    }

    void serve(int thread, uint64_t seen) {
        for (;;) {
            seen = turn_.await_change(seen);
            if (thread > static_cast<int>(seen % kMaxThreads)) continue;
            workers_[thread].processor.store(processor(), std::memory_order_relaxed);
            work(seen / kMaxThreads, thread);
        }
    }

    std::atomic_flag busy_ = ATOMIC_FLAG_INIT;
    int started_ = 1;
    Worker workers_[kMaxThreads];  // the first is whoever calls
    uint64_t region_ = 0;
    RegionFn fn_ = nullptr;
    const void* context_ = nullptr;
    int64_t units_ = 0;
    Signal turn_, pending_;
    alignas(64) std::atomic<uint64_t> claims_{0};  // region, its chunks, those claimed
};

std::atomic<Pool*> the_pool{nullptr};
std::atomic<int> the_threads{0};

/// Workers do not survive a fork: the child forgets the pool and starts another when it needs one.
/// A pool is never destroyed, because its sleeping workers end only with the process.
Pool& pool() {
    if (Pool* found = the_pool.load(std::memory_order_acquire)) return *found;
    static const int registered = pthread_atfork(
        nullptr, nullptr, [] { the_pool.store(nullptr, std::memory_order_release); });
    (void)registered;
    Pool* fresh = new Pool;
    Pool* expected = nullptr;
    if (the_pool.compare_exchange_strong(expected, fresh)) return *fresh;
    delete fresh;
    return *expected;
}

int default_threads() {
    int count = static_cast<int>(std::thread::hardware_concurrency());
#if defined(__linux__)
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) count = CPU_COUNT(&set);
#endif
    if (const char* text = std::getenv("AICF_NUM_THREADS"))
        if (const int wanted = std::atoi(text); wanted > 0) count = std::min(count, wanted);
    return std::clamp(count, 1, kMaxThreads);
}

}  // namespace

int cpu_threads() {
    int count = the_threads.load(std::memory_order_relaxed);
    if (count == 0) the_threads.store(count = default_threads(), std::memory_order_relaxed);
    return count;
}

void set_cpu_threads(int count) {
    the_threads.store(std::clamp(count, 0, kMaxThreads), std::memory_order_relaxed);
}

void run_parallel(RegionFn fn, const void* context, int64_t units, int threads) {
    threads = static_cast<int>(std::min<int64_t>(threads, units));
    if (threads < 2) return fn(context, 0, units, 0);
    pool().run(fn, context, units, threads);
}

}  // namespace aicf::cpu
