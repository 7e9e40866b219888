// The CUDA driver, loaded at first use into one table. Nothing of CUDA is linked.
#pragma once

#include <cuda.h>

#include <memory>
#include <string>

#include "core/graph/tensor.h"

namespace aicf::cuda {

/// X(name, exported symbol): what every supported driver (550 or newer) has.
#define AICF_CUDA_DRIVER(X)                                                 \
    X(cuInit, cuInit)                                                       \
    X(cuDriverGetVersion, cuDriverGetVersion)                               \
    X(cuDeviceGetCount, cuDeviceGetCount)                                   \
    X(cuDeviceGet, cuDeviceGet)                                             \
    X(cuDeviceGetName, cuDeviceGetName)                                     \
    X(cuDeviceGetAttribute, cuDeviceGetAttribute)                           \
    X(cuDeviceGetDefaultMemPool, cuDeviceGetDefaultMemPool)                 \
    X(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain)                   \
    X(cuCtxPushCurrent, cuCtxPushCurrent_v2)                                \
    X(cuCtxPopCurrent, cuCtxPopCurrent_v2)                                  \
    X(cuCtxGetCurrent, cuCtxGetCurrent)                                     \
    X(cuCtxSynchronize, cuCtxSynchronize)                                   \
    X(cuCtxGetStreamPriorityRange, cuCtxGetStreamPriorityRange)             \
    X(cuGetErrorName, cuGetErrorName)                                       \
    X(cuGetErrorString, cuGetErrorString)                                   \
    X(cuMemGetInfo, cuMemGetInfo_v2)                                        \
    X(cuMemAllocAsync, cuMemAllocAsync)                                     \
    X(cuMemFreeAsync, cuMemFreeAsync)                                       \
    X(cuMemPoolTrimTo, cuMemPoolTrimTo)                                     \
    X(cuMemPoolGetAttribute, cuMemPoolGetAttribute)                         \
    X(cuMemAllocHost, cuMemAllocHost_v2)                                    \
    X(cuMemFreeHost, cuMemFreeHost)                                         \
    X(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2)                              \
    X(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2)                              \
    X(cuMemcpyDtoDAsync, cuMemcpyDtoDAsync_v2)                              \
    X(cuMemsetD8Async, cuMemsetD8Async)                                     \
    X(cuStreamCreate, cuStreamCreate)                                       \
    X(cuStreamDestroy, cuStreamDestroy_v2)                                  \
    X(cuStreamSynchronize, cuStreamSynchronize)                             \
    X(cuStreamWaitEvent, cuStreamWaitEvent)                                 \
    X(cuStreamBeginCapture, cuStreamBeginCapture_v2)                        \
    X(cuStreamEndCapture, cuStreamEndCapture)                               \
    X(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode) \
    X(cuEventCreate, cuEventCreate)                                         \
    X(cuEventDestroy, cuEventDestroy_v2)                                    \
    X(cuEventRecord, cuEventRecord)                                         \
    X(cuEventSynchronize, cuEventSynchronize)                               \
    X(cuEventElapsedTime, cuEventElapsedTime)                               \
    X(cuModuleLoadData, cuModuleLoadData)                                   \
    X(cuModuleUnload, cuModuleUnload)                                       \
    X(cuModuleGetFunction, cuModuleGetFunction)                             \
    X(cuFuncSetAttribute, cuFuncSetAttribute)                               \
    X(cuFuncLoad, cuFuncLoad)                                               \
    X(cuLaunchKernel, cuLaunchKernel)                                       \
    X(cuLaunchKernelEx, cuLaunchKernelEx)                                   \
    X(cuTensorMapEncodeTiled, cuTensorMapEncodeTiled)                       \
    X(cuGraphCreate, cuGraphCreate)                                         \
    X(cuGraphDestroy, cuGraphDestroy)                                       \
    X(cuGraphAddKernelNode, cuGraphAddKernelNode_v2)                        \
    X(cuGraphAddEmptyNode, cuGraphAddEmptyNode)                             \
    X(cuGraphAddChildGraphNode, cuGraphAddChildGraphNode)                   \
    X(cuGraphAddEventRecordNode, cuGraphAddEventRecordNode)                 \
    X(cuGraphAddDependencies, cuGraphAddDependencies_v2)                    \
    X(cuGraphGetNodes, cuGraphGetNodes)                                     \
    X(cuGraphNodeGetType, cuGraphNodeGetType)                               \
    X(cuGraphKernelNodeGetParams, cuGraphKernelNodeGetParams_v2)            \
    X(cuGraphKernelNodeSetAttribute, cuGraphKernelNodeSetAttribute)         \
    X(cuGraphInstantiate, cuGraphInstantiateWithFlags)                      \
    X(cuGraphExecDestroy, cuGraphExecDestroy)                               \
    X(cuGraphExecKernelNodeSetParams, cuGraphExecKernelNodeSetParams_v2)    \
    X(cuGraphExecChildSetParams, cuGraphExecChildGraphNodeSetParams)        \
    X(cuGraphUpload, cuGraphUpload)                                         \
    X(cuGraphLaunch, cuGraphLaunch)

struct Driver {
#define AICF_MEMBER(name, symbol) decltype(&::symbol) name = nullptr;
    AICF_CUDA_DRIVER(AICF_MEMBER)
#undef AICF_MEMBER
    /// cuStreamGetCaptureInfo as it is exported by that name; headers stand for later forms of it.
    CUresult(CUDAAPI* capture_info)(CUstream, CUstreamCaptureStatus*, cuuint64_t*) = nullptr;
    int version = 0;  // 13000 for CUDA 13.0
};

/// Loads and initialises the driver at the first call; DeviceUnavailable naming what was found and
/// what is needed, DeviceLost once a device has failed.
const Driver& driver();
/// 13000 for CUDA 13.0; 0 where there is no usable driver.
int driver_version();
/// "" where driver() would succeed, otherwise why it would not.
std::string driver_problem();

/// Raises the typed error of a failed call; `call` names it.
[[noreturn]] void raise_driver_error(CUresult result, const char* call);
inline void check_call(CUresult result, const char* call) {
    if (result != CUDA_SUCCESS) raise_driver_error(result, call);
}
#define AICF_CU(driver, call, ...) ::aicf::cuda::check_call((driver).call(__VA_ARGS__), #call)

/// One GPU of this process: its primary context, retained for good.
struct Gpu {
    Device device;
    CUdevice handle = 0;
    CUcontext context = nullptr;
    CUmemoryPool pool = nullptr;
    std::string name;
    int compute_major = 0, compute_minor = 0, processors = 0, max_shared = 0;
    std::string arch() const;  // "sm_90a"
};
/// Bytes of the device, and of its stream-ordered pool.
struct PoolUse {
    uint64_t total = 0, free = 0, used = 0, reserved = 0, peak = 0;
};
PoolUse pool_use(const Gpu& gpu);
/// Memory of the device's pool, there for what is enqueued on `stream` from now on; OutOfMemory
/// after one trim and retry.
CUdeviceptr take(const Gpu& gpu, uint64_t bytes, CUstream stream);
/// DeviceUnavailable unless the device exists.
Gpu& gpu(int index);
int gpu_count();

/// Makes a GPU's context current while it lives, and restores what was current before.
class Scope {
  public:
    explicit Scope(const Gpu& target);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

  private:
    const Driver& driver_;
    bool pushed_ = false;
};

/// Lets this thread load code, allocate and wait while a stream of somebody's is captured: what a
/// driver else refuses, and ends the capture for.
class CaptureAside {
  public:
    CaptureAside();
    ~CaptureAside();
    CaptureAside(const CaptureAside&) = delete;
    CaptureAside& operator=(const CaptureAside&) = delete;

  private:
    const Driver& driver_;
    CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace aicf::cuda
