// A stream with its staging memory; what it allocated keeps it alive.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>

#include "kernels/cuda/driver.h"

namespace aicf::cuda {

class UploadRing;

class Stream : public std::enable_shared_from_this<Stream> {
  public:
    explicit Stream(Gpu& gpu);
    ~Stream();
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;

    CUstream handle() const { return stream_; }
    Gpu& gpu() const { return gpu_; }
    /// As take(); freed in the stream's order.
    std::shared_ptr<void> allocate(uint64_t bytes);
    /// Makes what an upload of so many bytes needs, if it is not there.
    void ready_upload(uint64_t bytes);
    /// Host to device; `from` may be reused when the call returns.
    void upload(void* to, const void* from, uint64_t bytes);
    /// Fewer bytes the driver takes up as the copy is enqueued, from memory that is not pinned: of
    /// 32 KiB from pinned memory a graph behind it begins 9 us later (H200). From here on a ring is
    /// quicker: a call of 128-128-128-10 with 64 KiB takes 20.6 us for 23.3.
    static constexpr uint64_t kInline = 64 << 10;
    /// Several parts by one copy, which writes what lies between them too: in ascending order, of
    /// at most so many bytes.
    struct Part {
        uint64_t at;  // bytes behind where the first goes
        const void* from;
        uint64_t bytes;
    };
    void upload(void* to, std::span<const Part> parts);
    /// Pinned memory of so many bytes for what is enqueued next, at most a half of the staging
    /// memory.
    char* staged(uint64_t bytes);
    /// Device to host, complete on return.
    void download(void* to, const void* from, uint64_t bytes);
    void copy(void* to, const void* from, uint64_t bytes);
    void clear(void* to, uint64_t bytes);
    void synchronize();
    /// Waits for what was enqueued before the last call of this.
    void pace();
    void order_after(intptr_t other);   // our work from here on waits for what `other` holds now
    void order_before(intptr_t other);  // what `other` gets from here on waits for our work
    /// What a stream holds now, behind what was marked before; none: ours. It is recorded at once,
    /// as `other` may be destroyed, but for those that last.
    void mark(std::optional<intptr_t> other);
    /// What it gets from here on waits for the mark, which is ready to be made then.
    void follow(std::optional<intptr_t> other);
    void wait_for_mark();
    void wait_for(intptr_t other);
    uint64_t capture_of(intptr_t other);  // 0: what `other` gets is not captured
    /// Zeroed and there when the call returns, also while a stream is captured.
    std::shared_ptr<void> zeros(uint64_t bytes);
    /// As order_after for one of the two default streams; another may have been destroyed since, so
    /// that the host waits for all work.
    void settle(intptr_t other);

  private:
    void order(CUstream first, CUstream then);
    CUstream handle_of(std::optional<intptr_t> other) const {
        return other ? reinterpret_cast<CUstream>(*other) : stream_;
    }
    bool lasts(CUstream one) const { return one == stream_ || one == CU_STREAM_LEGACY; }

    void ready_stage();
    /// The next stretch of pinned memory, of at most kHalf bytes, that no copy in flight uses.
    char* stage(uint64_t bytes);

    Gpu& gpu_;
    CUstream stream_ = nullptr;
    CUevent order_ = nullptr, mark_ = nullptr;
    bool marked_ = false;      // since wait_for_mark()
    CUstream late_ = nullptr;  // on which the mark is still to be recorded
    std::mutex order_lock_;    // tensors that were lent come back on any thread
    char inline_[kInline];     // of a copy that the driver has taken up when the call returns
    char* pinned_ = nullptr;
    uint64_t used_ = 0;     // of both halves
    CUevent left_[2] = {};  // recorded when a half was left
    bool pending_[2] = {};
    CUevent paced_[2] = {};
    int pace_ = 0;                      // the event that the next pace() records
    std::unique_ptr<UploadRing> ring_;  // of uploads of kInline bytes and more
};

}  // namespace aicf::cuda
