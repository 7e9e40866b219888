// Compiled kernels of this process, one cache a GPU, over the cache on disk.
#pragma once

#include <map>
#include <mutex>

#include "kernels/cuda/codegen.h"
#include "kernels/cuda/driver.h"

namespace aicf::cuda {

/// A kernel on its way to being loaded: KernelCache::load sets `function`.
struct LoadedKernel {
    std::string symbol, name, program;
    uint32_t shared = 0;  // dynamic, bytes
    CUfunction function = nullptr;
};

class KernelCache {
  public:
    explicit KernelCache(Gpu& gpu) : gpu_(gpu) {}
    /// The kernel of this text; known texts are shared.
    std::shared_ptr<LoadedKernel> request(const KernelText& text);
    /// Loads those that are not loaded yet.
    void load(const std::vector<std::shared_ptr<LoadedKernel>>& kernels);

  private:
    void load(LoadedKernel& kernel, const std::string& cubin);
    Gpu& gpu_;
    std::mutex lock_;
    std::map<std::string, std::shared_ptr<LoadedKernel>> known_;
};
KernelCache& kernel_cache(Gpu& gpu);

/// A text as a program of its own, whose one kernel has a symbol that is its alone.
std::shared_ptr<LoadedKernel> loaded_kernel(const KernelText& text);
/// Each kernel once, in the order to compile them in: what takes longest first.
std::vector<std::shared_ptr<LoadedKernel>> distinct(
    std::vector<std::shared_ptr<LoadedKernel>> kernels);
/// Takes each program from disk or compiles it, as many at a time as there are processors.
std::vector<std::string> cached_cubins(const std::vector<std::string>& programs,
                                       const std::string& arch);

}  // namespace aicf::cuda
