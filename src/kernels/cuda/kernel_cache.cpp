#include "kernels/cuda/kernel_cache.h"

#include <algorithm>
#include <set>

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
    const std::string symbol = cat("aicf_", text.name.substr(0, 80), "_",
                                   sha256(cat(joined(text.includes), text.body)).substr(0, 16));
    return std::make_shared<LoadedKernel>(LoadedKernel{
        symbol, text.name, text.includes, replaced(text.body, symbol), text.shared, nullptr});
}

std::string program_text(const std::vector<std::shared_ptr<LoadedKernel>>& kernels) {
    std::set<std::string> includes;
    std::map<std::string, std::string> bodies;  // in an order that does not depend on the graph's
    for (const auto& kernel : kernels) {
        includes.insert(kernel->includes.begin(), kernel->includes.end());
        bodies.emplace(kernel->symbol, kernel->body);
    }
    std::string text = joined(includes) + "namespace aicf {\n";
    for (const auto& [symbol, body] : bodies) text += body;
    return text + "}\n";
}

namespace {

std::string key_of(const std::string& program, const std::string& arch) {
    return cat("arch ", arch, "\n", compile_key(), "\nsources ", sources_digest(), "\n", program);
}

}  // namespace

std::string cached_cubin(const std::string& program, const std::string& arch) {
    const std::string key = key_of(program, arch);
    if (std::optional<std::string> stored = load_cached(key)) return std::move(*stored);
    std::string cubin = compile_cuda(program, arch);
    store_cached(key, cubin);
    return cubin;
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
    // NVRTC may take seconds, in which a signal's handler may compile too: no lock is held.
    const std::string arch = gpu_.arch();
    std::optional<std::string> cubin;
    if (missing.size() < kernels.size()) cubin = load_cached(key_of(program_text(kernels), arch));
    if (!cubin) cubin = cached_cubin(program_text(missing), arch);
    const Driver& cu = driver();
    const Scope scope(gpu_);
    std::lock_guard guard(lock_);
    std::erase_if(missing, [](const auto& kernel) { return kernel->function; });
    if (missing.empty()) return;  // loaded by another thread meanwhile
    std::vector<CUfunction> functions(missing.size());
    CUmodule module = nullptr;  // stays loaded: its kernels may be asked for again
    AICF_CU(cu, cuModuleLoadData, &module, cubin->data());
    try {
        for (size_t i = 0; i < missing.size(); i++) {
            AICF_CU(cu, cuModuleGetFunction, &functions[i], module, missing[i]->symbol.c_str());
            if (missing[i]->shared > kPlainShared) {
                AICF_CU(cu, cuFuncSetAttribute, functions[i],
                        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                        static_cast<int>(missing[i]->shared));
                AICF_CU(cu, cuFuncSetAttribute, functions[i],
                        CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 100);
            }
            AICF_CU(cu, cuFuncLoad, functions[i]);
        }
    } catch (...) {
        cu.cuModuleUnload(module);
        throw;
    }
    for (size_t i = 0; i < missing.size(); i++) missing[i]->function = functions[i];
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
