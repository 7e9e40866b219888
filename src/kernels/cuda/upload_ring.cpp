#include "kernels/cuda/upload_ring.h"

#include <algorithm>
#include <cstring>

#include "core/base/pool.h"

namespace aicf::cuda {

namespace {

constexpr uint64_t kHalf = 4 << 20;
constexpr uint64_t kPiece = 1 << 20;  // on its way while the host copies the next one

/// As memcpy. One thread moves 8 GB/s that lie in none of its caches, four 34 (host of an H200).
void copy_on_host(char* to, const char* from, uint64_t bytes) {
    constexpr int kMostThreads = 4;
    constexpr uint64_t kUnit = 16 << 10, kShare = 64 << 10;  // bytes
    struct Job {
        char* to;
        const char* from;
        uint64_t bytes;
    } const job{to, from, bytes};
    const auto copy = [](const void* context, int64_t begin, int64_t end, int) {
        const Job& all = *static_cast<const Job*>(context);
        const uint64_t at = static_cast<uint64_t>(begin) * kUnit;
        const uint64_t past = std::min(static_cast<uint64_t>(end) * kUnit, all.bytes);
        std::memcpy(all.to + at, all.from + at, past - at);
    };
    const int threads = std::min({kMostThreads, cpu_threads(), static_cast<int>(bytes / kShare)});
    run_parallel(copy, &job, static_cast<int64_t>((bytes + kUnit - 1) / kUnit), threads);
}

}  // namespace

UploadRing::UploadRing(Gpu& gpu, CUstream stream) : gpu_(gpu), stream_(stream) {
    cpu_threads();  // what the environment asks for is checked before anything is copied
    const Driver& cu = driver();
    const Scope scope(gpu_);
    try {
        device_ = take(gpu_, 2 * kHalf, stream_);
        void* memory = nullptr;
        AICF_CU(cu, cuMemAllocHost, &memory, 2 * kHalf);
        pinned_ = static_cast<char*>(memory);
        AICF_CU(cu, cuStreamCreate, &copies_, CU_STREAM_NON_BLOCKING);
        for (CUevent* event : {&arrived_, &read_[0], &read_[1], &taken_[0], &taken_[1]})
            AICF_CU(cu, cuEventCreate, event, CU_EVENT_DISABLE_TIMING);
        for (int half : {0, 1}) AICF_CU(cu, cuEventRecord, taken_[half], stream_);
        AICF_CU(cu, cuStreamWaitEvent, copies_, taken_[half_], 0);  // the memory is there then
    } catch (...) {
        destroy(cu);
        throw;
    }
}

UploadRing::~UploadRing() {
    try {
        const Scope scope(gpu_);
        destroy(driver());
    } catch (...) {  // the device is lost or belongs to the parent process: nothing to give back
    }
}

void UploadRing::destroy(const Driver& cu) {
    if (copies_) cu.cuStreamSynchronize(copies_);
    for (CUevent event : {arrived_, read_[0], read_[1], taken_[0], taken_[1]})
        if (event) cu.cuEventDestroy(event);
    if (copies_) cu.cuStreamDestroy(copies_);
    if (pinned_) cu.cuMemFreeHost(pinned_);
    if (device_) cu.cuMemFreeAsync(device_, stream_);
}

void UploadRing::next_half() {
    const Driver& cu = driver();
    AICF_CU(cu, cuEventRecord, read_[half_], copies_);
    AICF_CU(cu, cuEventRecord, taken_[half_], stream_);
    half_ = 1 - half_;
    used_ = 0;
    AICF_CU(cu, cuEventSynchronize, read_[half_]);  // of an event never recorded: at once
    AICF_CU(cu, cuStreamWaitEvent, copies_, taken_[half_], 0);
}

void UploadRing::upload(CUdeviceptr to, const char* from, uint64_t bytes) {
    const Driver& cu = driver();
    const Scope scope(gpu_);
    for (uint64_t done = 0; done < bytes;) {
        if (kHalf - used_ < std::min(bytes - done, kPiece)) next_half();
        const uint64_t at = static_cast<uint64_t>(half_) * kHalf + used_;
        const uint64_t all = std::min(bytes - done, kHalf - used_);
        for (uint64_t piece = 0, some = 0; piece < all; piece += some) {
            some = std::min(all - piece, kPiece);
            copy_on_host(pinned_ + at + piece, from + done + piece, some);
            AICF_CU(cu, cuMemcpyHtoDAsync, device_ + at + piece, pinned_ + at + piece, some,
                    copies_);
        }
        AICF_CU(cu, cuEventRecord, arrived_, copies_);
        AICF_CU(cu, cuStreamWaitEvent, stream_, arrived_, 0);
        AICF_CU(cu, cuMemcpyDtoDAsync, to + done, device_ + at, all, stream_);
        used_ = std::min((used_ + all + 255) / 256 * 256, kHalf);
        done += all;
    }
}

}  // namespace aicf::cuda
