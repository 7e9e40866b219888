// Compiled kernels of this process, one cache a GPU, over the cache on disk.
#pragma once

#include <map>
#include <mutex>

#include "kernels/cuda/codegen.h"
#include "kernels/cuda/driver.h"

namespace aicf::cuda {

/// A kernel on its way to being loaded: `function` is set by compile_pending().
struct LoadedKernel {
    std::string symbol, name, include, body;
    CUfunction function = nullptr;
};

class KernelCache {
  public:
    explicit KernelCache(Gpu& gpu) : gpu_(gpu) {}
    /// The kernel of this text; known texts are shared, new ones wait to be compiled together.
    std::shared_ptr<const LoadedKernel> request(const KernelText& text);
    /// Compiles all that waits as one program, or takes it from disk, and loads it.
    void compile_pending();

  private:
    Gpu& gpu_;
    std::mutex lock_;
    std::map<std::string, std::shared_ptr<LoadedKernel>> known_;
    std::vector<std::shared_ptr<LoadedKernel>> pending_;
};
KernelCache& kernel_cache(Gpu& gpu);

/// A text as a kernel with its own symbol, and a program of several.
std::shared_ptr<LoadedKernel> loaded_kernel(const KernelText& text);
std::string program_text(const std::vector<std::shared_ptr<LoadedKernel>>& kernels);
/// Compiles, or takes from disk.
std::string cached_cubin(const std::string& program, const std::string& arch);

}  // namespace aicf::cuda
