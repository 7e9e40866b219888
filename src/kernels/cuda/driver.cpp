#include "kernels/cuda/driver.h"

#include <dlfcn.h>

#include <atomic>
#include <mutex>

#include "core/base/fork.h"

namespace aicf::cuda {

namespace {

constexpr int kOldestDriver = 12040;  // CUDA 12.4, driver 550

std::atomic<int> lost = 0;  // the error that lost the device

struct Loaded {
    Driver table;
    std::string problem;
    bool ready = false;
    int born = 0;  // forks() of the process that started it
};

std::string version_text(int version) { return cat(version / 1000, ".", version % 1000 / 10); }

void load(Loaded& loaded) {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        const char* why = dlerror();
        loaded.problem = cat("no NVIDIA driver: ", why ? why : "libcuda.so.1 did not load",
                             "; need driver 550 or newer (CUDA ", version_text(kOldestDriver), ")");
        return;
    }
    Driver& table = loaded.table;
    std::string missing;
#define AICF_LOAD(name, symbol)                                                   \
    table.name = reinterpret_cast<decltype(table.name)>(dlsym(library, #symbol)); \
    if (!table.name && missing.empty()) missing = #symbol;
    AICF_CUDA_DRIVER(AICF_LOAD)
#undef AICF_LOAD
    constexpr const char* info = "cuStreamGetCaptureInfo";
    table.capture_info = reinterpret_cast<decltype(table.capture_info)>(dlsym(library, info));
    if (!table.capture_info && missing.empty()) missing = info;
    if (table.cuDriverGetVersion) table.cuDriverGetVersion(&table.version);
    if (!missing.empty() || table.version < kOldestDriver) {
        loaded.problem =
            cat("the NVIDIA driver is too old: it is for CUDA ", version_text(table.version),
                missing.empty() ? "" : " and lacks ", missing, "; need driver 550 or newer (CUDA ",
                version_text(kOldestDriver), ")");
        return;
    }
    const CUresult result = table.cuInit(0);
    if (result != CUDA_SUCCESS) {
        const char *name = nullptr, *text = nullptr;
        table.cuGetErrorName(result, &name);
        table.cuGetErrorString(result, &text);
        loaded.problem = cat("the NVIDIA driver (CUDA ", version_text(table.version),
                             ") does not start: ", name ? name : "unknown error", text ? ", " : "",
                             text ? text : "", "; need a working device");
        return;
    }
    loaded.born = forks();
    loaded.ready = true;
}

/// Lives as long as the process, as all that a Step in a global needs at its end.
Loaded& loaded_once() {
    static Loaded& loaded = *[] {
        auto fresh = std::make_unique<Loaded>();
        load(*fresh);
        return fresh.release();
    }();
    return loaded;
}

/// After these no call on the context succeeds again.
bool is_sticky(CUresult result) {
    switch (result) {
        case CUDA_ERROR_ILLEGAL_ADDRESS:
        case CUDA_ERROR_LAUNCH_FAILED:
        case CUDA_ERROR_LAUNCH_TIMEOUT:
        case CUDA_ERROR_ASSERT:
        case CUDA_ERROR_HARDWARE_STACK_ERROR:
        case CUDA_ERROR_ILLEGAL_INSTRUCTION:
        case CUDA_ERROR_MISALIGNED_ADDRESS:
        case CUDA_ERROR_INVALID_ADDRESS_SPACE:
        case CUDA_ERROR_INVALID_PC:
        case CUDA_ERROR_ECC_UNCORRECTABLE:
        case CUDA_ERROR_NVLINK_UNCORRECTABLE:
        case CUDA_ERROR_CONTEXT_IS_DESTROYED:
        case CUDA_ERROR_EXTERNAL_DEVICE:
            return true;
        default:
            return false;
    }
}

std::string error_text(CUresult result) {
    const Driver& table = loaded_once().table;
    const char *name = nullptr, *text = nullptr;
    if (table.cuGetErrorName) table.cuGetErrorName(result, &name);
    if (table.cuGetErrorString) table.cuGetErrorString(result, &text);
    return cat(name ? name : "an unknown error", " (", static_cast<int>(result), ")",
               text ? ": " : "", text ? text : "");
}

}  // namespace

const Driver& driver() {
    const Loaded& loaded = loaded_once();
    if (!loaded.ready) raise(ErrorKind::device_unavailable, "cuda: ", loaded.problem);
    if (loaded.born != forks())
        raise(
            ErrorKind::device_unavailable,
            "cuda: this process was forked from one that had started the driver, whose contexts do "
            "not survive a fork; need a process that was spawned (multiprocessing \"spawn\")");
    if (const int code = lost)
        raise(ErrorKind::device_lost, "cuda: the device failed with ",
              error_text(static_cast<CUresult>(code)), "; need a new process");
    return loaded.table;
}

int driver_version() { return loaded_once().ready ? loaded_once().table.version : 0; }

std::string driver_problem() { return loaded_once().problem; }

void raise_driver_error(CUresult result, const char* call) {
    if (is_sticky(result)) {
        int none = 0;
        lost.compare_exchange_strong(none, static_cast<int>(result));
        raise(ErrorKind::device_lost, "cuda: ", call, " met ", error_text(result),
              "; the device cannot be used again in this process, need a new one");
    }
    if (result == CUDA_ERROR_OUT_OF_MEMORY)
        raise(ErrorKind::out_of_memory, "cuda: ", call, " found no memory; need a smaller step");
    if (result == CUDA_ERROR_NO_DEVICE || result == CUDA_ERROR_INVALID_DEVICE ||
        result == CUDA_ERROR_DEVICE_UNAVAILABLE)
        raise(ErrorKind::device_unavailable, "cuda: ", call, " met ", error_text(result),
              "; need a device");
    raise(ErrorKind::internal, "cuda: ", call, " met ", error_text(result));
}

// ---- devices -----------------------------------------------------------------------------------

std::string Gpu::arch() const {
    // The suffix unlocks the instructions that only this very generation has.
    return cat("sm_", compute_major, compute_minor, compute_major >= 9 ? "a" : "");
}

int gpu_count() {
    int count = 0;
    AICF_CU(driver(), cuDeviceGetCount, &count);
    return count;
}

Gpu& gpu(int index) {
    constexpr int kMostDevices = 64;
    static std::mutex lock;
    static Gpu* all[kMostDevices];  // for good
    const Driver& cu = driver();
    std::lock_guard guard(lock);
    const int count = gpu_count();
    if (index < 0 || index >= count || index >= kMostDevices)
        raise(ErrorKind::device_unavailable, "cuda:", index, ": there ",
              count == 1 ? "is " : "are ", count, count == 1 ? " device" : " devices",
              "; need an index below ", count);
    if (all[index]) return *all[index];
    auto made = std::make_unique<Gpu>();
    made->device = {Device::cuda, index};
    AICF_CU(cu, cuDeviceGet, &made->handle, index);
    char name[256] = {};
    AICF_CU(cu, cuDeviceGetName, name, sizeof name, made->handle);
    made->name = name;
    const auto attribute = [&](int* to, CUdevice_attribute which) {
        AICF_CU(cu, cuDeviceGetAttribute, to, which, made->handle);
    };
    attribute(&made->compute_major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    attribute(&made->compute_minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    attribute(&made->processors, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    attribute(&made->max_shared, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    if (made->compute_major < 7)
        raise(ErrorKind::device_unavailable, "cuda:", index, ": ", made->name,
              " has compute capability ", made->compute_major, ".", made->compute_minor,
              "; need 7.0 or newer");
    AICF_CU(cu, cuDeviceGetDefaultMemPool, &made->pool, made->handle);
    AICF_CU(cu, cuDevicePrimaryCtxRetain, &made->context, made->handle);
    all[index] = made.release();
    return *all[index];
}

PoolUse pool_use(const Gpu& gpu) {
    const Driver& cu = driver();
    const Scope scope(gpu);
    size_t free = 0, total = 0;
    AICF_CU(cu, cuMemGetInfo, &free, &total);
    PoolUse use;
    use.free = free;
    use.total = total;
    const auto attribute = [&](CUmemPool_attribute which) {
        cuuint64_t value = 0;
        AICF_CU(cu, cuMemPoolGetAttribute, gpu.pool, which, &value);
        return static_cast<uint64_t>(value);
    };
    use.used = attribute(CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
    use.reserved = attribute(CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    use.peak = attribute(CU_MEMPOOL_ATTR_USED_MEM_HIGH);
    return use;
}

CUdeviceptr take(const Gpu& gpu, uint64_t bytes, CUstream stream) {
    const Driver& cu = driver();
    const Scope scope(gpu);
    CUdeviceptr memory = 0;
    CUresult result = cu.cuMemAllocAsync(&memory, bytes, stream);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        AICF_CU(cu, cuCtxSynchronize);  // what other streams have freed comes back as well
        AICF_CU(cu, cuMemPoolTrimTo, gpu.pool, 0);
        result = cu.cuMemAllocAsync(&memory, bytes, stream);
    }
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        const PoolUse use = pool_use(gpu);
        raise(ErrorKind::out_of_memory, to_string(gpu.device), ": asked for ", bytes, " bytes, ",
              use.free, " of ", use.total, " are free and ", use.reserved,
              " reserved by the pool; need a smaller step or a freed one");
    }
    check_call(result, "cuMemAllocAsync");
    return memory;
}

Scope::Scope(const Gpu& target) : driver_(driver()) {
    CUcontext current = nullptr;
    AICF_CU(driver_, cuCtxGetCurrent, &current);
    if (current == target.context) return;
    AICF_CU(driver_, cuCtxPushCurrent, target.context);
    pushed_ = true;
}

Scope::~Scope() {
    CUcontext popped = nullptr;
    if (pushed_) driver_.cuCtxPopCurrent(&popped);
}

CaptureAside::CaptureAside() : driver_(driver()) {
    AICF_CU(driver_, cuThreadExchangeStreamCaptureMode, &mode_);
}

CaptureAside::~CaptureAside() { driver_.cuThreadExchangeStreamCaptureMode(&mode_); }

}  // namespace aicf::cuda
