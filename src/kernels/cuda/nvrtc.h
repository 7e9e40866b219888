// NVRTC, found and loaded at first use.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace aicf::cuda {

/// Folders that may hold an `nvidia` package folder (Python's sys.path), searched for the library.
void set_nvrtc_folders(std::vector<std::string> folders);

struct NvrtcInfo {
    std::string path;  // "" where none was found
    int major = 0, minor = 0;
    std::string problem;  // why there is none
};
/// Finds NVRTC: what the process has loaded already, wheel folders, CUDA_HOME, the soname. The
/// newest whose major version does not exceed the driver's (without one: any) wins within a place.
const NvrtcInfo& nvrtc_info();

/// Compiles programs of CUDA C++ to cubins for `arch` ("sm_90a"), on all processors while this
/// thread polls. DeviceUnavailable where there is no NVRTC, InternalError with the log where our
/// source does not compile. `done`: called on any thread for each program that is, even after this
/// one gave up, so it must own what it uses.
std::vector<std::string> compile_cuda(std::vector<std::string> sources, const std::string& arch,
                                      std::function<void(size_t, const std::string& cubin)> done);
/// What NVRTC and its assembler say of a program that compiles.
std::string compile_log(const std::string& source, const std::string& arch);
/// What the binary depends on beside source and arch.
std::string compile_key();

}  // namespace aicf::cuda
