// The NVIDIA GPU behind core's door to a device.
#pragma once

#include <string>
#include <vector>

#include "core/run/backend.h"

namespace aicf {

/// Makes "cuda" a device kind; the driver is not touched before a step asks for it.
void register_cuda_backend();
/// Python's sys.path, where wheels may have brought NVRTC.
void set_cuda_search_path(std::vector<std::string> folders);

struct GpuInfo {
    std::string device, name, arch;  // "cuda:0", "NVIDIA H200", "sm_90a"
    int multiprocessors = 0;
    uint64_t total_bytes = 0, free_bytes = 0;                     // of the device
    uint64_t used_bytes = 0, reserved_bytes = 0, peak_bytes = 0;  // of its memory pool
};

struct CudaInfo {
    std::string problem;       // why no device can be used; "" if one can
    std::string driver;        // the CUDA that it is for: "13.0"
    std::string nvrtc, cupti;  // what was found
    std::vector<GpuInfo> devices;
    std::string cache;  // folder of compiled kernels
    uint64_t cache_entries = 0, cache_bytes = 0;
    uint64_t compiled = 0;  // programs, by this process
};
CudaInfo cuda_info();
/// Why "auto" does not mean cuda:0 here; "" where it does.
std::string cuda_problem();
uint64_t clear_cuda_cache();
/// While it lives, what profiles attach to the process stays attached from profile to profile.
std::shared_ptr<void> hold_cuda_tracing();

/// A size at which kernels go another way: `value` of `quantity`, on elements of `size` bytes.
struct CudaThreshold {
    int64_t size;
    std::string quantity;
    int64_t value;
};
std::vector<CudaThreshold> cuda_thresholds();

/// A GPU to compile for, which need not be there: its multiprocessors and its architecture, as
/// "sm_90a". GraphError for another spelling.
std::unique_ptr<const Target> cuda_target(int processors, const std::string& arch);
/// The CUDA C++ programs of such a target's kernels, one each, and the cubins of programs.
std::vector<std::string> cuda_programs(const Kernels& kernels);
std::vector<std::string> cuda_cubins(const std::vector<std::string>& programs,
                                     const std::string& arch);
/// What the compiler says of a program that it takes: registers, spills, what it serialized.
std::string cuda_log(const std::string& program, const std::string& arch);
/// A program as the compiler gets it.
std::string cuda_source(const std::string& program);

}  // namespace aicf
