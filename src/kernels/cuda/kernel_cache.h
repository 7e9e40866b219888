// Compiled kernels of this process, one cache a GPU, over the cache on disk.
#pragma once

#include <map>
#include <mutex>

#include "kernels/cuda/codegen.h"
#include "kernels/cuda/driver.h"

namespace aicf::cuda {

/// A kernel on its way to being loaded: KernelCache::load sets `function`.
struct LoadedKernel {
    std::string symbol, name;
    std::set<std::string> includes;
    std::string body;
    uint32_t shared = 0;  // dynamic, bytes
    CUfunction function = nullptr;
};

class KernelCache {
  public:
    explicit KernelCache(Gpu& gpu) : gpu_(gpu) {}
    /// The kernel of this text; known texts are shared.
    std::shared_ptr<LoadedKernel> request(const KernelText& text);
    /// Loads those of a step's kernels that are not loaded yet: from the step's whole program where
    /// the disk has it, else from one program of the missing ones, compiled if need be.
    void load(const std::vector<std::shared_ptr<LoadedKernel>>& kernels);

  private:
    Gpu& gpu_;
    std::mutex lock_;
    std::map<std::string, std::shared_ptr<LoadedKernel>> known_;
};
KernelCache& kernel_cache(Gpu& gpu);

/// A text as a kernel with its own symbol, and a program of several.
std::shared_ptr<LoadedKernel> loaded_kernel(const KernelText& text);
std::string program_text(const std::vector<std::shared_ptr<LoadedKernel>>& kernels);
/// Takes from disk, or compiles.
std::string cached_cubin(const std::string& program, const std::string& arch);

}  // namespace aicf::cuda
