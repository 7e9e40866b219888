#include "kernels/cuda/kernel_cache.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>

#include "core/base/disk_cache.h"
#include "core/base/fork.h"
#include "core/base/interrupt.h"
#include "core/base/threads.h"
#include "kernels/cuda/nvrtc.h"
#include "kernels/cuda/sources.h"

namespace aicf::cuda {

namespace {

// Bytes of shared memory that a block gets unasked, and what its body may have declared of them.
constexpr uint32_t kPlainShared = 48 << 10, kDeclaredShared = 8 << 10;

std::string replaced(std::string text, const std::string& symbol) {
    for (size_t at = text.find('@'); at != std::string::npos;
         at = text.find('@', at + symbol.size()))
        text.replace(at, 1, symbol);
    return text;
}

std::string joined(const std::set<std::string>& includes) {
    std::string text;
    for (const std::string& include : includes) text += cat("#include \"", include, "\"\n");
    return text;
}

/// Every embedded source is part of the key: changing one must miss.
const std::string& sources_digest() {
    static const std::string digest = [] {
        std::string all;
        for (const SourceFile& file : source_files()) all += cat(file.name, "\n", file.text);
        return sha256(all);
    }();
    return digest;
}

}  // namespace

std::shared_ptr<KernelCode> kernel_code(const KernelText& text) {
    const std::string includes = joined(text.includes);
    const std::string symbol = cat("aicf_", text.name.substr(0, 80), "_",
                                   sha256(cat(includes, text.author, text.body)).substr(0, 16));
    std::string program =
        cat(includes, text.author, "namespace aicf {\n", replaced(text.body, symbol), "}\n");
    return std::make_shared<KernelCode>(KernelCode{
        symbol, text.name, std::move(program), text.shared, nullptr, symbol, !text.author.empty()});
}

Codes distinct(Codes codes) {
    // What keeps the compiler busy is long text, and products on tiles, which are known by their
    // shared memory: as much as 16 KB more would.
    const auto order = [](const auto& code) {
        const size_t tiles = code->shared >= 8 << 10 ? 16 << 10 : 0;
        const size_t work = code->program.size() + tiles;
        return std::tuple(-static_cast<int64_t>(work), std::string_view(code->key));
    };
    std::sort(codes.begin(), codes.end(),
              [&](const auto& a, const auto& b) { return order(a) < order(b); });
    const auto same = [](const auto& a, const auto& b) { return a->key == b->key; };
    codes.erase(std::unique(codes.begin(), codes.end(), same), codes.end());
    return codes;
}

namespace {

std::string key_of(const std::string& program, const std::string& arch) {
    return cat("arch ", arch, "\n", compile_key(), "\nsources ", sources_digest(), "\n", program);
}

}  // namespace

namespace {

std::atomic<uint64_t> compiled = 0;

/// A program that some thread of this process compiles.
struct Flight {
    const int born = forks();                  // in a forked child nobody compiles it any more
    std::shared_ptr<const std::string> cubin;  // once it is there
    bool given_up = false;
};

/// Of all threads, by key. Never destroyed: work aside may go on while the process ends.
struct Flights {
    ForkMutex lock;
    std::map<std::string, std::shared_ptr<Flight>> open;
};
Flights& flights() {
    static auto* const all = new Flights;
    return *all;
}

/// What one call compiles, of its own: a signal may leave it behind.
struct Task {
    std::vector<std::string> keys, programs;
    std::vector<std::shared_ptr<Flight>> mine;

    void land(size_t i, std::shared_ptr<const std::string> cubin) {
        const std::lock_guard guard(flights().lock);
        mine[i]->given_up = !cubin;
        mine[i]->cubin = std::move(cubin);
        const auto at = flights().open.find(keys[i]);
        if (at != flights().open.end() && at->second == mine[i]) flights().open.erase(at);
    }
    ~Task() {
        try {
            for (size_t i = 0; i < mine.size(); i++)
                if (!mine[i]->cubin) land(i, nullptr);
        } catch (...) {  // a child whose parent forked just then: nobody waits
        }
    }
};

/// What a thread makes of a flight; null: it gave up.
std::shared_ptr<const std::string> wait_for(const Flight& flight) {
    for (;;) {
        {
            const std::lock_guard guard(flights().lock);
            if (flight.cubin || flight.given_up) return flight.cubin;
        }
        poll();
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
}

}  // namespace

uint64_t compiled_programs() { return compiled; }

std::vector<std::string> cached_cubins(const std::vector<std::string>& programs,
                                       const std::string& arch) {
    std::vector<std::string> cubins(programs.size()), keys;
    std::vector<size_t> missing;
    for (size_t i = 0; i < programs.size(); i++) {
        keys.push_back(key_of(programs[i], arch));
        if (std::optional<std::string> stored = load_cached(keys[i]))
            cubins[i] = std::move(*stored);
        else
            missing.push_back(i);
    }
    if (missing.empty()) return cubins;
    if (nvrtc_info().path.empty())
        raise(ErrorKind::device_unavailable, "cuda: ", nvrtc_info().problem);
    while (!missing.empty()) {  // again: what another thread was to compile and gave up
        const auto task = std::make_shared<Task>();
        std::vector<std::pair<size_t, std::shared_ptr<Flight>>> awaited;
        {
            const std::lock_guard guard(flights().lock);
            for (size_t i : missing) {
                std::shared_ptr<Flight>& flight = flights().open[keys[i]];
                if (!flight || flight->born != forks()) {
                    flight = std::make_shared<Flight>();
                    task->mine.push_back(flight);
                    task->keys.push_back(keys[i]);
                    task->programs.push_back(programs[i]);
                }
                awaited.emplace_back(i, flight);
            }
        }
        if (!task->mine.empty())
            run_compiler([task, arch](const std::atomic<bool>& given_up) {
                const size_t count = task->programs.size();
                in_parallel(count + (count == 1 ? 1 : 0), [&](size_t i) {
                    if (given_up) return;
                    if (i == count) return prepare_compiler();
                    // Who compiled it may have been done between the two questions.
                    std::optional<std::string> cubin = load_cached(task->keys[i]);
                    if (!cubin) {
                        cubin = compile_cuda(task->programs[i], arch);
                        compiled++;
                        store_cached(task->keys[i], *cubin);
                    }
                    task->land(i, std::make_shared<const std::string>(std::move(*cubin)));
                });
                trim_cache();
            });
        missing.clear();
        for (const auto& [i, flight] : awaited)
            if (const auto cubin = wait_for(*flight))
                cubins[i] = *cubin;
            else
                missing.push_back(i);
    }
    return cubins;
}

namespace {

/// A compiler or a driver that refuses a user's code, or code out of a file, has met no fault of
/// ours.
template <class Act>
auto refusable(bool stored, bool custom, const Act& act) {
    try {
        return act();
    } catch (const Error& error) {
        if (!(stored || custom) || error.kind() != ErrorKind::internal) throw;
        if (!stored) raise(ErrorKind::graph, "custom_op: ", error.what());
        raise(ErrorKind::unsupported, error.what(),
              "; the code is of a file: export the step on this device");
    }
}

}  // namespace

void build(const Codes& codes, const std::string& arch) {
    // What is held by some plan or loaded on some GPU is not asked for again.
    static std::mutex lock;
    static auto& held = *new std::map<std::string, std::weak_ptr<const std::string>>;
    const auto held_as = [&](const KernelCode& code) { return cat(arch, " ", code.key); };
    Codes missing;
    {
        const std::lock_guard guard(lock);
        for (const auto& code : codes) {
            if (code->cubin) continue;
            if (const auto at = held.find(held_as(*code)); at != held.end())
                code->cubin = at->second.lock();
            if (!code->cubin) missing.push_back(code);
        }
    }
    if (missing.empty()) return;
    const Codes each = distinct(missing);
    std::vector<std::string> programs;
    for (const auto& code : each) programs.push_back(code->program);
    const bool stored =
        std::any_of(each.begin(), each.end(), [](const auto& code) { return code->stored(); });
    const bool custom =
        std::any_of(each.begin(), each.end(), [](const auto& code) { return code->custom; });
    std::vector<std::string> cubins =
        refusable(stored, custom, [&] { return cached_cubins(programs, arch); });
    std::map<std::string_view, std::shared_ptr<const std::string>> found;
    for (size_t i = 0; i < each.size(); i++)
        found[each[i]->key] = std::make_shared<const std::string>(std::move(cubins[i]));
    const std::lock_guard guard(lock);
    std::erase_if(held, [](const auto& entry) { return entry.second.expired(); });
    for (const auto& code : missing) {
        if (!code->cubin) code->cubin = found[code->key];
        held[held_as(*code)] = code->cubin;
    }
}

std::vector<std::shared_ptr<const LoadedKernel>> KernelCache::load(const Codes& codes) {
    Codes missing;
    {
        const std::lock_guard guard(lock_);
        for (const auto& code : codes)
            if (!known_.contains(code->key)) missing.push_back(code);
    }
    build(missing, gpu_.arch());
    std::vector<std::shared_ptr<const LoadedKernel>> loaded;
    const std::lock_guard guard(lock_);
    const Scope scope(gpu_);
    for (const auto& code : codes) {
        auto known = known_.find(code->key);
        if (known == known_.end()) {
            auto kernel = std::make_shared<const LoadedKernel>(LoadedKernel{
                code->cubin, refusable(code->stored(), code->custom, [&] { return load(*code); })});
            known = known_.emplace(code->key, std::move(kernel)).first;
        }
        loaded.push_back(known->second);
    }
    return loaded;
}

CUfunction KernelCache::load(const KernelCode& code) {
    const Driver& cu = driver();
    const CaptureAside aside;
    CUmodule module = nullptr;  // stays loaded: its kernel may be asked for again
    AICF_CU(cu, cuModuleLoadData, &module, code.cubin->data());
    try {
        CUfunction function = nullptr;
        AICF_CU(cu, cuModuleGetFunction, &function, module, code.symbol.c_str());
        if (code.shared > kPlainShared - kDeclaredShared)
            AICF_CU(cu, cuFuncSetAttribute, function,
                    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, static_cast<int>(code.shared));
        if (code.shared > kPlainShared)
            AICF_CU(cu, cuFuncSetAttribute, function,
                    CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 100);
        AICF_CU(cu, cuFuncLoad, function);
        return function;
    } catch (...) {
        cu.cuModuleUnload(module);
        throw;
    }
}

KernelCache& kernel_cache(Gpu& gpu) {
    static std::mutex lock;
    static auto& all = *new std::map<int, std::unique_ptr<KernelCache>>;  // for good
    std::lock_guard guard(lock);
    auto& cache = all[gpu.device.index];
    if (!cache) cache = std::make_unique<KernelCache>(gpu);
    return *cache;
}

}  // namespace aicf::cuda
