// A stream with its staging memory; what it allocated keeps it alive.
#pragma once

#include <memory>

#include "kernels/cuda/driver.h"

namespace aicf::cuda {

class Stream : public std::enable_shared_from_this<Stream> {
  public:
    explicit Stream(Gpu& gpu);
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    CUstream handle() const { return stream_; }
    Gpu& gpu() const { return gpu_; }
    /// From the device's stream-ordered pool; OutOfMemory after one trim and retry. Freed in the
    /// stream's order.
    std::shared_ptr<void> allocate(uint64_t bytes);
    /// Host to device; `from` may be reused when the call returns.
    void upload(void* to, const void* from, uint64_t bytes);
    /// Device to host, complete on return.
    void download(void* to, const void* from, uint64_t bytes);
    void copy(void* to, const void* from, uint64_t bytes);
    void clear(void* to, uint64_t bytes);
    void synchronize();

  private:
    /// The next stretch of pinned memory, at most `wanted` bytes, that no copy in flight reads.
    char* stage(uint64_t wanted, uint64_t* got);

    Gpu& gpu_;
    CUstream stream_ = nullptr;
    char* pinned_ = nullptr;
    uint64_t used_ = 0;     // of both halves
    CUevent left_[2] = {};  // recorded when a half was left
    bool pending_[2] = {};
};

}  // namespace aicf::cuda
