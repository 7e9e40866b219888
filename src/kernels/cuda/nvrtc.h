// NVRTC, found and loaded at first use.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <vector>

namespace aicf::cuda {

struct NvrtcInfo {
    std::string path;  // "" where none was found
    int major = 0, minor = 0;
    std::string problem;  // why there is none
};
/// Finds NVRTC: what the process has loaded already, wheel folders, CUDA_HOME, the soname. The
/// newest whose major version does not exceed the driver's (without one: any) wins within a place.
const NvrtcInfo& nvrtc_info();

/// Compiles CUDA C++ to a cubin for `arch` ("sm_90a"). DeviceUnavailable where there is no NVRTC,
/// InternalError with the log where our source does not compile. `log`: receives, with what the
/// assembler reports of each kernel, that of a source that does.
std::string compile_cuda(const std::string& source, const std::string& arch,
                         std::string* log = nullptr);
/// Gets ready what two programs at a time will need; the first time that takes 0.05 s.
void prepare_compiler();
/// Does work that calls compile_cuda() on another thread, while this one polls and keeps the
/// process's signal handlers. As run_aside().
void run_compiler(std::function<void(const std::atomic<bool>& given_up)> work);
/// What the binary depends on beside source and arch.
std::string compile_key();

}  // namespace aicf::cuda
