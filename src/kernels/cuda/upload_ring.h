// Uploads of much from the host, beside what a stream runs: several threads copy to pinned memory,
// a stream of the ring's own copies on to the device, and in order with the other work there is
// only a copy within the device.
#pragma once

#include <cstdint>

#include "kernels/cuda/driver.h"

namespace aicf::cuda {

class UploadRing {
  public:
    /// For work on `stream`, which must outlive the ring. OutOfMemory.
    UploadRing(Gpu& gpu, CUstream stream);
    ~UploadRing();
    UploadRing(const UploadRing&) = delete;
    UploadRing& operator=(const UploadRing&) = delete;

    /// `from` may be reused when the call returns.
    void upload(CUdeviceptr to, const char* from, uint64_t bytes);

  private:
    void next_half();
    void destroy(const Driver& cu);

    Gpu& gpu_;
    const CUstream stream_;
    CUstream copies_ = nullptr;
    char* pinned_ = nullptr;     // two halves
    CUdeviceptr device_ = 0;     // two halves, alike
    int half_ = 0;               // the one in use
    uint64_t used_ = 0;          // bytes of it
    CUevent arrived_ = nullptr;  // what copies_ holds
    CUevent read_[2] = {};       // by half: nothing reads its pinned memory any more
    CUevent taken_[2] = {};      // by half: nothing reads its device memory any more
};

}  // namespace aicf::cuda
