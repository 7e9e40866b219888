#include "kernels/cuda/stream.h"

#include <algorithm>
#include <cstring>

#include "kernels/cuda/upload_ring.h"

namespace aicf::cuda {

namespace {

constexpr uint64_t kHalf = 2 << 20;  // of the staging memory

CUdeviceptr address(const void* pointer) { return reinterpret_cast<CUdeviceptr>(pointer); }

}  // namespace

Stream::Stream(Gpu& gpu) : gpu_(gpu) {
    const Driver& cu = driver();
    const Scope scope(gpu_);
    // A blocking stream: ordered with the legacy default stream, where most producers work.
    AICF_CU(cu, cuStreamCreate, &stream_, CU_STREAM_DEFAULT);
}

Stream::~Stream() {
    try {
        const Driver& cu = driver();
        const Scope scope(gpu_);
        ring_.reset();
        cu.cuStreamSynchronize(stream_);
        for (CUevent event : {order_, mark_, left_[0], left_[1], paced_[0], paced_[1]})
            if (event) cu.cuEventDestroy(event);
        if (pinned_) cu.cuMemFreeHost(pinned_);
        cu.cuStreamDestroy(stream_);
    } catch (...) {  // the device is lost or belongs to the parent process: nothing to
                     // give back
    }
}

std::shared_ptr<void> Stream::allocate(uint64_t bytes) {
    const CUdeviceptr memory = take(gpu_, bytes, stream_);
    return {reinterpret_cast<void*>(memory), [self = shared_from_this()](void* pointer) {
                try {
                    const Driver& table = driver();
                    const Scope inner(self->gpu_);
                    table.cuMemFreeAsync(address(pointer), self->stream_);
                } catch (...) {
                }
            }};
}

void Stream::ready_upload(uint64_t bytes) {
    if (bytes >= kInline && !ring_) ring_ = std::make_unique<UploadRing>(gpu_, stream_);
}

void Stream::ready_stage() {
    if (pinned_) return;
    const Driver& cu = driver();
    const Scope scope(gpu_);
    for (CUevent& event : left_)
        if (!event) AICF_CU(cu, cuEventCreate, &event, CU_EVENT_DISABLE_TIMING);
    void* memory = nullptr;
    AICF_CU(cu, cuMemAllocHost, &memory, 2 * kHalf);
    pinned_ = static_cast<char*>(memory);
}

char* Stream::stage(uint64_t bytes) {
    check(bytes <= kHalf, "cuda: more than a half of the staging memory");
    const Driver& cu = driver();
    ready_stage();
    const int half = static_cast<int>(used_ / kHalf);
    if ((kHalf - used_ % kHalf) / 256 * 256 < bytes) {
        AICF_CU(cu, cuEventRecord, left_[half], stream_);
        pending_[half] = true;
        const int next = 1 - half;
        if (pending_[next]) AICF_CU(cu, cuEventSynchronize, left_[next]);
        pending_[next] = false;
        used_ = static_cast<uint64_t>(next) * kHalf;
    }
    char* at = pinned_ + used_;
    // The last byte stays free, so that the offset never leaves the half it counts in.
    used_ = std::min((used_ + bytes + 255) / 256 * 256, (used_ / kHalf + 1) * kHalf - 1);
    return at;
}

void Stream::upload(void* to, const void* from, uint64_t bytes) {
    if (bytes < kInline) {
        const Part whole{0, from, bytes};
        return upload(to, {&whole, 1});
    }
    ready_upload(bytes);
    ring_->upload(address(to), static_cast<const char*>(from), bytes);
}

void Stream::upload(void* to, std::span<const Part> parts) {
    const Driver& cu = driver();
    const Scope scope(gpu_);
    const uint64_t bytes = parts.back().at + parts.back().bytes;
    if (bytes == 0) return;
    check(bytes <= kInline, "cuda: parts of a copy that are too many bytes");
    for (const Part& part : parts)
        if (part.bytes) std::memcpy(inline_ + part.at, part.from, part.bytes);
    AICF_CU(cu, cuMemcpyHtoDAsync, address(to), inline_, bytes, stream_);
}

char* Stream::staged(uint64_t bytes) {
    const Scope scope(gpu_);
    return stage(bytes);
}

void Stream::download(void* to, const void* from, uint64_t bytes) {
    const Driver& cu = driver();
    const Scope scope(gpu_);
    if (bytes > kHalf) {
        AICF_CU(cu, cuMemcpyDtoHAsync, to, address(from), bytes, stream_);
        AICF_CU(cu, cuStreamSynchronize, stream_);
        return;
    }
    char* staged = stage(bytes);
    AICF_CU(cu, cuMemcpyDtoHAsync, staged, address(from), bytes, stream_);
    AICF_CU(cu, cuStreamSynchronize, stream_);
    std::memcpy(to, staged, bytes);
}

void Stream::copy(void* to, const void* from, uint64_t bytes) {
    const Driver& cu = driver();
    const Scope scope(gpu_);
    AICF_CU(cu, cuMemcpyDtoDAsync, address(to), address(from), bytes, stream_);
}

void Stream::clear(void* to, uint64_t bytes) {
    const Driver& cu = driver();
    const Scope scope(gpu_);
    AICF_CU(cu, cuMemsetD8Async, address(to), 0, bytes, stream_);
}

void Stream::order(CUstream first, CUstream then) {
    const Driver& cu = driver();
    const Scope scope(gpu_);
    std::lock_guard guard(order_lock_);
    if (!order_) AICF_CU(cu, cuEventCreate, &order_, CU_EVENT_DISABLE_TIMING);
    AICF_CU(cu, cuEventRecord, order_, first);
    AICF_CU(cu, cuStreamWaitEvent, then, order_, 0);
}

void Stream::order_after(intptr_t other) { order(reinterpret_cast<CUstream>(other), stream_); }
void Stream::order_before(intptr_t other) { order(stream_, reinterpret_cast<CUstream>(other)); }

void Stream::mark(std::optional<intptr_t> other) {
    const Driver& cu = driver();
    const Scope scope(gpu_);
    const CUstream at = handle_of(other);
    if (!lasts(at)) AICF_CU(cu, cuEventRecord, mark_, at);
    late_ = lasts(at) ? at : nullptr;
    marked_ = true;
}

void Stream::follow(std::optional<intptr_t> other) {
    const CUstream then = handle_of(other);
    if (!mark_) {
        const Scope scope(gpu_);
        AICF_CU(driver(), cuEventCreate, &mark_, CU_EVENT_DISABLE_TIMING);
    }
    if (!marked_ || (late_ && lasts(then))) return;  // ours and the legacy one are ordered
    const Driver& cu = driver();
    const Scope scope(gpu_);
    if (late_) AICF_CU(cu, cuEventRecord, mark_, late_);
    late_ = nullptr;
    // Also of the stream that holds the mark: a new one may have got the handle of a destroyed one.
    AICF_CU(cu, cuStreamWaitEvent, then, mark_, 0);
}

void Stream::wait_for_mark() {
    if (!marked_) return;
    const Driver& cu = driver();
    const Scope scope(gpu_);
    if (late_)
        AICF_CU(cu, cuStreamSynchronize, late_);
    else
        AICF_CU(cu, cuEventSynchronize, mark_);
    marked_ = false;
    late_ = nullptr;
}

void Stream::wait_for(intptr_t other) {
    const Driver& cu = driver();
    const Scope scope(gpu_);
    AICF_CU(cu, cuStreamSynchronize, reinterpret_cast<CUstream>(other));
}

uint64_t Stream::capture_of(intptr_t other) {
    if (reinterpret_cast<CUstream>(other) == CU_STREAM_LEGACY) return 0;  // it cannot be captured
    const Driver& cu = driver();
    const Scope scope(gpu_);
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t number = 0;
    check_call(cu.capture_info(reinterpret_cast<CUstream>(other), &status, &number),
               "cuStreamGetCaptureInfo");
    return status == CU_STREAM_CAPTURE_STATUS_NONE ? 0 : number;
}

void Stream::pace() {
    const Driver& cu = driver();
    const Scope scope(gpu_);
    for (CUevent& event : paced_)
        if (!event) AICF_CU(cu, cuEventCreate, &event, CU_EVENT_DISABLE_TIMING);
    AICF_CU(cu, cuEventRecord, paced_[pace_], stream_);
    pace_ = 1 - pace_;
    AICF_CU(cu, cuEventSynchronize, paced_[pace_]);  // at once, if it was never recorded
}

std::shared_ptr<void> Stream::zeros(uint64_t bytes) {
    const Scope scope(gpu_);
    const CaptureAside aside;
    std::shared_ptr<void> memory = allocate(bytes);
    clear(memory.get(), bytes);
    synchronize();
    return memory;
}

void Stream::settle(intptr_t other) {
    if (other == 1 || other == 2) return order_after(other);
    const Driver& cu = driver();
    const Scope scope(gpu_);
    AICF_CU(cu, cuCtxSynchronize);
}

void Stream::synchronize() {
    const Driver& cu = driver();
    const Scope scope(gpu_);
    AICF_CU(cu, cuStreamSynchronize, stream_);
}

}  // namespace aicf::cuda
