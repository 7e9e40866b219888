#include "kernels/cuda/backend.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/disk_cache.h"
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/library.h"
#include "kernels/cuda/nvrtc.h"
#include "kernels/cuda/replay_times.h"

namespace aicf {

namespace cuda {

namespace {

/// A host tensor of any strides in C order.
TensorRef packed(const TensorRef& from) {
    const auto size = static_cast<size_t>(dtype_size(from.dtype));
    const int64_t count = element_count(from.shape);
    std::shared_ptr<char[]> bytes(new char[static_cast<size_t>(count) * size + 1]);
    const int rank = from.shape.rank();
    int64_t index[kMaxDims] = {}, offset = 0;
    for (int64_t i = 0; i < count; i++) {
        std::memcpy(bytes.get() + static_cast<size_t>(i) * size,
                    static_cast<const char*>(from.data) + offset * static_cast<int64_t>(size),
                    size);
        for (int d = rank - 1; d >= 0; d--) {
            offset += from.strides[d];
            if (++index[d] < from.shape[d]) break;
            offset -= from.shape[d] * from.strides[d];
            index[d] = 0;
        }
    }
    TensorRef result = from;
    result.data = bytes.get();
    result.strides = contiguous_strides(from.shape);
    result.owner = std::move(bytes);
    return result;
}

/// Writes a map of an operand where it lies now.
void encode(const TensorMap& map, const ArgBlock& args, char* to) {
    static_assert(sizeof(CUtensorMap) == kMapBytes);
    const cuuint64_t size = dtype_size(map.dtype);
    const bool scratch = map.input == TensorMap::workspace;
    const void* const from =
        scratch ? static_cast<char*>(args.workspace) + map.from : args.in(map.input).ptr;
    if (reinterpret_cast<uintptr_t>(from) % kMapAlign != 0)  // of a cell that was bound before
        raise(ErrorKind::unsupported, "cuda: operand ", map.input,
              " of a kernel that reads by the copy engine begins ",
              reinterpret_cast<uintptr_t>(from) % kMapAlign, " bytes behind a multiple of ",
              kMapAlign,
              "; need a tensor at such an address, or candidates= naming a kernel without wgmma or "
              "boxes");
    const auto wide = [](int64_t x) { return static_cast<cuuint64_t>(x); };
    const cuuint64_t sizes[] = {wide(map.inner), wide(map.outer), wide(map.batches)};
    const cuuint64_t steps[] = {wide(map.outer_step) * size, wide(map.batch_step) * size};
    const cuuint32_t line = static_cast<cuuint32_t>(map.line) / static_cast<cuuint32_t>(size);
    const cuuint32_t box[] = {line, static_cast<cuuint32_t>(map.box), 1}, each[] = {1, 1, 1};
    CUtensorMap encoded;
    AICF_CU(driver(), cuTensorMapEncodeTiled, &encoded,
            map.dtype == DType::f32   ? CU_TENSOR_MAP_DATA_TYPE_TFLOAT32  // rounds
            : map.dtype == DType::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                      : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            3, const_cast<void*>(from), sizes, steps, box, each, CU_TENSOR_MAP_INTERLEAVE_NONE,
            map.line == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B,
            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    std::memcpy(to, &encoded, sizeof encoded);
}

class CudaBackend : public Backend, OtherStreams {
  public:
    explicit CudaBackend(Device device)
        : gpu_(gpu(device.index)), target_({gpu_.processors, gpu_.compute_major}, gpu_.arch()) {
        const CaptureAside aside;
        stream_ = std::make_shared<Stream>(gpu_);
    }

    Device device() const override { return gpu_.device; }
    const Target& target() const override { return target_; }
    std::vector<std::string> foreign_candidates(const LoweredOp& op, int most) override {
        return library_candidates(gpu_, op, most);
    }

    std::vector<std::shared_ptr<const void>> load(const Kernels& kernels) override {
        const auto loaded = kernel_cache(gpu_).load(codes_of(kernels));
        std::vector<std::shared_ptr<const void>> code(kernels.size());
        size_t next = 0;
        for (size_t i = 0; i < kernels.size(); i++) {
            const auto& kernel = static_cast<const CudaKernel&>(*kernels[i]);
            if (kernel.code) code[i] = loaded[next++];
            if (kernel.product) code[i] = load_product(gpu_, *kernel.product);
        }
        return code;
    }

    void finish_args(const Kernel& base, ArgBlock& args, void* counters) override {
        const auto& kernel = static_cast<const CudaKernel&>(base);
        check(args.bytes == kernel.block_bytes,
              "cuda: an argument block is not laid out as its kernel was generated for");
        check(counters || !kernel.counter_bytes, "cuda: a kernel without its counters");
        finish_parts(*this, kernel, args, counters);
        if (!kernel.parts.empty()) return;
        if (kernel.product) return check_operands(args);
        char* const tail = reinterpret_cast<char*>(&args) + args.tail;
        if (kernel.tail_at) return write_tail(kernel, args);
        std::memcpy(tail, &counters, sizeof counters);
        if (kernel.maps.empty()) return;
        const Scope scope(gpu_);
        for (size_t i = 0; i < kernel.maps.size(); i++)
            encode(kernel.maps[i], args, tail + kTailBytes + i * kMapBytes);
    }

    std::shared_ptr<void> allocate(uint64_t bytes) override { return stream_->allocate(bytes); }
    void clear(void* to, uint64_t bytes) override { stream_->clear(to, bytes); }
    void upload(void* to, const void* from, uint64_t bytes) override {
        stream_->upload(to, from, bytes);
    }
    void download(void* to, const void* from, uint64_t bytes) override {
        stream_->download(to, from, bytes);
    }
    void copy(void* to, const void* from, uint64_t bytes) override {
        stream_->copy(to, from, bytes);
    }
    void synchronize() override { stream_->synchronize(); }
    void pace() override { stream_->pace(); }
    void order_after(intptr_t stream) override { stream_->order_after(stream); }
    void order_before(intptr_t stream) override { stream_->order_before(stream); }
    std::shared_ptr<void> lend(std::shared_ptr<void> memory, intptr_t stream) override {
        stream_->order_before(stream);
        void* at = memory.get();
        return {at, [held = std::move(memory), ours = stream_, stream](void*) mutable {
                    try {
                        ours->settle(stream);
                    } catch (...) {  // the device is lost: nothing reads any more
                    }
                    held.reset();
                }};
    }

    TensorRef ready(TensorRef from) override {
        const bool whole = is_contiguous(from.shape, from.strides);
        if (from.device.kind == Device::cpu) {
            stream_->ready_upload(
                static_cast<uint64_t>(element_count(from.shape) * dtype_size(from.dtype)));
            return whole ? std::move(from) : packed(from);
        }
        if (!whole && from.device == gpu_.device) packer(nullptr, from);
        return from;
    }

    using Backend::gather;
    void gather(void* to, const TensorRef& from) override {
        const auto bytes =
            static_cast<uint64_t>(element_count(from.shape) * dtype_size(from.dtype));
        if (bytes == 0) return;
        const bool whole = is_contiguous(from.shape, from.strides);
        if (from.device.kind == Device::cpu)
            return stream_->upload(to, whole ? from.data : packed(from).data, bytes);
        if (!(from.device == gpu_.device))
            raise(ErrorKind::device_unavailable, "step: got a tensor on ", to_string(from.device),
                  ", the step is on ", to_string(gpu_.device), "; need one device (copy it)");
        if (whole) {
            stream_->copy(to, from.data, bytes);
        } else {
            run(packer(to, from));
        }
    }

    void gather(const std::vector<Copy>& copies) override {
        constexpr int64_t kJoined =
            Stream::kInline - 1;  // a copy of its own costs some 2 us (H200)
        std::vector<const Copy*> joined;
        std::vector<Stream::Part> parts;
        joined.reserve(copies.size());  // before the first copy: a failure leaves all as it is
        parts.reserve(copies.size());
        for (const Copy& copy : copies) {
            const bool whole = is_contiguous(copy.from.shape, copy.from.strides);
            if (copy.from.device.kind == Device::cpu && whole && copy.room <= kJoined)
                joined.push_back(&copy);
            else
                gather(copy.to, copy.from);
        }
        std::sort(joined.begin(), joined.end(),
                  [](const Copy* a, const Copy* b) { return a->to < b->to; });
        for (size_t i = 0, end = 0; i < joined.size(); i = end) {
            int64_t room = 0;
            parts.clear();
            for (end = i;
                 end < joined.size() && joined[end]->to == joined[i]->to + room &&
                 joined[end]->memory == joined[i]->memory && room + joined[end]->room <= kJoined;
                 end++) {
                const TensorRef& from = joined[end]->from;
                const auto bytes =
                    static_cast<uint64_t>(element_count(from.shape) * dtype_size(from.dtype));
                parts.push_back({static_cast<uint64_t>(room), from.data, bytes});
                room += joined[end]->room;
            }
            stream_->upload(joined[i]->to, parts);
        }
    }

    std::vector<const void*> staged(const std::vector<TensorRef>& tensors) override {
        constexpr int64_t kMost = 64 << 10;  // bytes that one block takes over from the host
        int64_t all = 0;
        const auto room = [](const TensorRef& from) {
            return (element_count(from.shape) * dtype_size(from.dtype) + 15) / 16 * 16;
        };
        for (const TensorRef& from : tensors) {
            if (from.device.kind != Device::cpu || !is_contiguous(from.shape, from.strides))
                return {};
            all += room(from);
        }
        if (all > kMost || all == 0) return {};
        std::vector<const void*> places;
        places.reserve(tensors.size());
        char* at = stream_->staged(static_cast<uint64_t>(all));
        for (const TensorRef& from : tensors) {
            std::memcpy(at, from.data,
                        static_cast<size_t>(element_count(from.shape) * dtype_size(from.dtype)));
            places.push_back(at);
            at += room(from);
        }
        return places;
    }

    void run(const BoundOp& op) override { launch(op, stream_->handle()); }

    OtherStreams* other_streams() override { return this; }
    void run_on(intptr_t stream, const BoundOp& op) override {
        launch(op, reinterpret_cast<CUstream>(stream));
    }
    std::unique_ptr<Repeated> repeat_on(intptr_t stream, const BoundOp& op) override {
        auto* const on = reinterpret_cast<CUstream>(stream);
        const auto& kernel = static_cast<const CudaKernel&>(*op.kernel);
        // Between kernels of others a graph leaves the device some 1 us more (H200): one that moves
        // so much that the device takes longer than the host goes without.
        constexpr int64_t least = 8000;  // nanoseconds
        // The per-thread default is a stream of each thread's.
        if (!op.code || kernel.product || kernel.nanoseconds >= least || on == CU_STREAM_PER_THREAD)
            return nullptr;
        try {
            return std::make_unique<LaunchGraph>(gpu_, on, op);
        } catch (const Error& error) {
            if (error.kind() != ErrorKind::out_of_memory) throw;
            return nullptr;
        }
    }
    void mark(std::optional<intptr_t> stream) override { stream_->mark(stream); }
    void follow(std::optional<intptr_t> stream) override { stream_->follow(stream); }
    void wait_for_mark() override { stream_->wait_for_mark(); }
    void wait_for(intptr_t stream) override { stream_->wait_for(stream); }
    uint64_t capture_of(intptr_t stream) override { return stream_->capture_of(stream); }
    std::shared_ptr<void> zeros(uint64_t bytes) override { return stream_->zeros(bytes); }

    std::unique_ptr<Captured> capture(const std::vector<BoundOp>& ops) override {
        return std::make_unique<CapturedGraph>(stream_, ops);
    }
    std::unique_ptr<Timed> timed(const std::vector<BoundOp>& ops, Captured* captured) override {
        return std::make_unique<ReplayTimes>(stream_, ops, static_cast<CapturedGraph*>(captured));
    }
    int64_t steps_at_once(size_t launches) const override { return times_at_once(launches); }
    LaunchSize launch_size(const Kernel& base) const override {
        const auto& kernel = static_cast<const CudaKernel&>(base);
        if (!kernel.code) return {0, 0, 0};  // nothing to launch, or what a library does
        return {kernel.blocks, kernel.threads, kernel.shared};
    }

  private:
    void launch(const BoundOp& op, CUstream stream) {
        const auto& kernel = static_cast<const CudaKernel&>(*op.kernel);
        if (!op.code) return;
        const Driver& cu = driver();
        const Scope scope(gpu_);
        if (kernel.product) return run_product(op, *op.args, stream);
        void* parameters[] = {passed_of(kernel, *op.args)};
        check_launch(cu.cuLaunchKernel(function_of(op), kernel.blocks, 1, 1, kernel.threads, 1, 1,
                                       kernel.shared, stream, parameters, nullptr),
                     op);
    }

    /// The copy of a strided device tensor into C order at `to`.
    const BoundOp& packer(void* to, const TensorRef& from) {
        for (BoundOp& known : packers_) {
            const Operand& x = known.args->in(0);
            if (x.dtype != static_cast<int>(from.dtype) || x.rank != from.shape.rank() ||
                !std::equal(from.shape.begin(), from.shape.end(), x.shape()) ||
                !std::equal(from.strides.begin(), from.strides.end(), x.strides()))
                continue;
            const_cast<Operand&>(known.args->in(0)).ptr = from.data;
            const_cast<Operand&>(known.args->out(0)).ptr = to;
            return known;
        }
        const LoweredOp op = copy_op(from.dtype, from.shape, from.strides);
        BoundOp bound;
        bound.kernel = target_.select(op);
        bound.op = "copy";
        bound.code = load({bound.kernel})[0];
        bound.args = pack_args(op, *bound.kernel, {from.data, to}, nullptr);
        finish_args(*bound.kernel, *bound.args, nullptr);
        constexpr size_t kMost = 16;
        if (packers_.size() == kMost) packers_.erase(packers_.begin());
        packers_.push_back(std::move(bound));
        return packers_.back();
    }

    Gpu& gpu_;
    const CudaTarget target_;
    std::shared_ptr<Stream> stream_;
    std::vector<BoundOp> packers_;  // of strided inputs, one for each layout met
};

}  // namespace

}  // namespace cuda

void register_cuda_backend() {
    register_backend(Device::cuda, [](Device device) -> std::unique_ptr<Backend> {
        return std::make_unique<cuda::CudaBackend>(device);
    });
}

void set_cuda_search_path(std::vector<std::string> folders) {
    cuda::set_library_folders(std::move(folders));
}

CudaInfo cuda_info() {
    CudaInfo info;
    info.problem = cuda::driver_problem();
    if (info.problem.empty()) {
        try {
            const int version = cuda::driver().version;
            info.driver = cat(version / 1000, ".", version % 1000 / 10);
            const int count = cuda::gpu_count();
            for (int i = 0; i < count; i++) {
                const cuda::Gpu& gpu = cuda::gpu(i);
                const cuda::PoolUse use = cuda::pool_use(gpu);
                info.devices.push_back({to_string(gpu.device), gpu.name, gpu.arch(), gpu.processors,
                                        use.total, use.free, use.used, use.reserved, use.peak});
            }
            if (count == 0) info.problem = "the NVIDIA driver shows no device; need one";
        } catch (const Error& error) {
            info.problem = error.what();
        }
    }
    const cuda::NvrtcInfo& nvrtc = cuda::nvrtc_info();
    if (!nvrtc.path.empty())
        info.nvrtc = cat(nvrtc.major, ".", nvrtc.minor, " at ", nvrtc.path);
    else if (info.problem.empty())
        info.problem = nvrtc.problem;
    info.cupti = cuda::tracing_file();
    const DiskCacheInfo cache = disk_cache_info();
    info.cache = cache.folder.empty() ? cache.problem : cache.folder;
    info.cache_entries = cache.entries;
    info.compiled = cuda::compiled_programs();
    info.cache_bytes = cache.bytes;
    return info;
}

std::string cuda_problem() {
    const std::string problem = cuda::driver_problem();
    if (!problem.empty()) return problem;
    try {
        if (cuda::gpu_count() == 0) return "the NVIDIA driver shows no device; need one";
        cuda::gpu(0);
        return cuda::nvrtc_info().problem;
    } catch (const Error& error) {
        return error.what();
    }
}

std::shared_ptr<void> hold_cuda_tracing() { return std::make_shared<cuda::TracingHold>(); }

uint64_t clear_cuda_cache() { return clear_disk_cache(); }

}  // namespace aicf
