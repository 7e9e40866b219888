#include "kernels/cuda/nvtx.h"

#include <dlfcn.h>

#include "core/base/error.h"

namespace aicf::cuda {

Nvtx::Nvtx(const std::string& path) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // for good: tools hold it too
    if (library) {
        push_ = reinterpret_cast<decltype(push_)>(dlsym(library, "nvtxRangePushA"));
        pop_ = reinterpret_cast<decltype(pop_)>(dlsym(library, "nvtxRangePop"));
    }
    if (!library || !push_ || !pop_)
        raise(ErrorKind::unsupported, "nvtx: ", path, " is no library of NVTX 3 as functions");
}

}  // namespace aicf::cuda
