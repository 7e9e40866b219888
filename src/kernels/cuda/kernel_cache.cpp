#include "kernels/cuda/kernel_cache.h"

#include <algorithm>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "kernels/cuda/disk_cache.h"
#include "kernels/cuda/nvrtc.h"
#include "kernels/cuda/sources.h"

namespace aicf::cuda {

namespace {

constexpr uint32_t kPlainShared = 48 << 10;  // bytes of shared memory a block gets unasked

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

std::shared_ptr<LoadedKernel> loaded_kernel(const KernelText& text) {
    const std::string includes = joined(text.includes);
    const std::string symbol =
        cat("aicf_", text.name.substr(0, 80), "_", sha256(cat(includes, text.body)).substr(0, 16));
    std::string program = cat(includes, "namespace aicf {\n", replaced(text.body, symbol), "}\n");
    return std::make_shared<LoadedKernel>(
        LoadedKernel{symbol, text.name, std::move(program), text.shared, nullptr});
}

std::vector<std::shared_ptr<LoadedKernel>> distinct(
    std::vector<std::shared_ptr<LoadedKernel>> kernels) {
    // Products on tiles keep the compiler busiest; they are known by their shared memory.
    const auto order = [](const auto& kernel) {
        return std::tuple(-int64_t{kernel->shared}, std::string_view(kernel->symbol));
    };
    std::sort(kernels.begin(), kernels.end(),
              [&](const auto& a, const auto& b) { return order(a) < order(b); });
    const auto same = [](const auto& a, const auto& b) { return a->symbol == b->symbol; };
    kernels.erase(std::unique(kernels.begin(), kernels.end(), same), kernels.end());
    return kernels;
}

std::vector<std::string> cached_cubins(const std::vector<std::string>& programs,
                                       const std::string& arch) {
    const std::string target =
        cat("arch ", arch, "\n", compile_key(), "\nsources ", sources_digest(), "\n");
    std::vector<std::string> cubins(programs.size()), missing, keys;
    std::vector<size_t> places;
    for (size_t i = 0; i < programs.size(); i++) {
        std::string key = target + programs[i];
        if (std::optional<std::string> stored = load_cached(key)) {
            cubins[i] = std::move(*stored);
            continue;
        }
        missing.push_back(programs[i]);
        keys.push_back(std::move(key));
        places.push_back(i);
    }
    if (missing.empty()) return cubins;
    std::vector<std::string> made =
        compile_cuda(std::move(missing), arch,
                     [keys](size_t i, const std::string& cubin) { store_cached(keys[i], cubin); });
    for (size_t i = 0; i < places.size(); i++) cubins[places[i]] = std::move(made[i]);
    trim_cache();
    return cubins;
}

std::shared_ptr<LoadedKernel> KernelCache::request(const KernelText& text) {
    auto kernel = loaded_kernel(text);
    std::lock_guard guard(lock_);
    return known_.emplace(kernel->symbol, kernel).first->second;
}

void KernelCache::load(const std::vector<std::shared_ptr<LoadedKernel>>& kernels) {
    std::vector<std::shared_ptr<LoadedKernel>> missing;
    {
        std::lock_guard guard(lock_);
        for (const auto& kernel : kernels)
            if (!kernel->function) missing.push_back(kernel);
    }
    if (missing.empty()) return;
    missing = distinct(std::move(missing));
    std::vector<std::string> programs;
    for (const auto& kernel : missing) programs.push_back(kernel->program);
    // NVRTC may take seconds, in which a signal's handler may compile too: no lock is held.
    const std::vector<std::string> cubins = cached_cubins(programs, gpu_.arch());
    const Scope scope(gpu_);
    std::lock_guard guard(lock_);
    for (size_t i = 0; i < missing.size(); i++)
        if (!missing[i]->function) load(*missing[i], cubins[i]);
}

void KernelCache::load(LoadedKernel& kernel, const std::string& cubin) {
    const Driver& cu = driver();
    CUmodule module = nullptr;  // stays loaded: its kernel may be asked for again
    AICF_CU(cu, cuModuleLoadData, &module, cubin.data());
    try {
        CUfunction function = nullptr;
        AICF_CU(cu, cuModuleGetFunction, &function, module, kernel.symbol.c_str());
        if (kernel.shared > kPlainShared) {
            AICF_CU(cu, cuFuncSetAttribute, function,
                    CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                    static_cast<int>(kernel.shared));
            AICF_CU(cu, cuFuncSetAttribute, function,
                    CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 100);
        }
        AICF_CU(cu, cuFuncLoad, function);
        kernel.function = function;
    } catch (...) {
        cu.cuModuleUnload(module);
        throw;
    }
}

KernelCache& kernel_cache(Gpu& gpu) {
    static std::mutex lock;
    static std::map<int, std::unique_ptr<KernelCache>> all;
    std::lock_guard guard(lock);
    auto& cache = all[gpu.device.index];
    if (!cache) cache = std::make_unique<KernelCache>(gpu);
    return *cache;
}

}  // namespace aicf::cuda
