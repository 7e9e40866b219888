// Compiled kernels of this process, one cache a GPU, over the cache on disk.
#pragma once

#include <map>
#include <mutex>

#include "kernels/cuda/codegen.h"
#include "kernels/cuda/driver.h"

namespace aicf::cuda {

/// The code of one kernel: a program of its own, whose entry has a symbol that is its alone.
struct KernelCode {
    std::string symbol, name, program;
    uint32_t shared = 0;                       // dynamic, bytes
    std::shared_ptr<const std::string> cubin;  // once built
    /// What caches of a process know it by: the symbol, which says the text; of code from a file,
    /// whose maker is not known, the content as well.
    std::string key = symbol;
    bool custom = false;                           // it holds text of a user's own
    bool stored() const { return key != symbol; }  // in a file
};
std::shared_ptr<KernelCode> kernel_code(const KernelText& text);
using Codes = std::vector<std::shared_ptr<KernelCode>>;
/// Each code once, in the order to compile them in: what takes longest first.
Codes distinct(Codes codes);
/// Takes what is not yet built from the process, from disk, or compiles it, as many at a time as
/// there are processors.
void build(const Codes& codes, const std::string& arch);
/// The cubins of programs, from disk or compiled. What another thread compiles is waited for.
std::vector<std::string> cached_cubins(const std::vector<std::string>& programs,
                                       const std::string& arch);

/// How many programs this process has compiled.
uint64_t compiled_programs();

struct LoadedKernel {
    std::shared_ptr<const std::string> cubin;  // for other devices of this architecture
    CUfunction function = nullptr;
};

class KernelCache {
  public:
    explicit KernelCache(Gpu& gpu) : gpu_(gpu) {}
    /// By code: its kernel on this GPU; codes of one key are loaded once.
    std::vector<std::shared_ptr<const LoadedKernel>> load(const Codes& codes);

  private:
    CUfunction load(const KernelCode& code);
    Gpu& gpu_;
    std::mutex lock_;
    std::map<std::string, std::shared_ptr<const LoadedKernel>> known_;  // by key
};
KernelCache& kernel_cache(Gpu& gpu);

}  // namespace aicf::cuda
