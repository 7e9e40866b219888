#include "kernels/cuda/backend.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "kernels/cuda/disk_cache.h"
#include "kernels/cuda/graph.h"
#include "kernels/cuda/kernel_cache.h"
#include "kernels/cuda/nvrtc.h"

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

/// The family of product_order(), of a compute capability; of one that is not known yet as well,
/// as mma.sync is an instruction of every later one.
int tensor_cores_of(int major) { return major < 8 ? 0 : major; }

constexpr uint32_t kMapAlign = 16;  // of what a tensor map shows, in bytes

/// Writes a map of an operand where it lies now.
void encode(const TensorMap& map, const ArgBlock& args, char* to) {
    static_assert(sizeof(CUtensorMap) == kMapBytes);
    constexpr cuuint64_t size = 2;
    const void* const from = args.in(map.input).ptr;
    if (reinterpret_cast<uintptr_t>(from) % kMapAlign != 0)  // of a cell that was bound before
        raise(ErrorKind::unsupported, "gemm: operand ", map.input ? "b" : "a", " begins ",
              reinterpret_cast<uintptr_t>(from) % kMapAlign, " bytes behind a multiple of ",
              kMapAlign,
              "; need a tensor at such an address, or candidates= naming a kernel without wgmma");
    const auto wide = [](int64_t x) { return static_cast<cuuint64_t>(x); };
    const cuuint64_t sizes[] = {wide(map.inner), wide(map.outer), wide(map.batches)};
    const cuuint64_t steps[] = {wide(map.outer_step) * size, wide(map.batch_step) * size};
    const cuuint32_t box[] = {64, static_cast<cuuint32_t>(map.box), 1}, each[] = {1, 1, 1};
    CUtensorMap encoded;
    AICF_CU(driver(), cuTensorMapEncodeTiled, &encoded,
            map.dtype == DType::f16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                    : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            3, const_cast<void*>(from), sizes, steps, box, each, CU_TENSOR_MAP_INTERLEAVE_NONE,
            CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
            CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    std::memcpy(to, &encoded, sizeof encoded);
}

class CudaBackend : public Backend {
  public:
    explicit CudaBackend(Device device) : gpu_(gpu(device.index)), cache_(kernel_cache(gpu_)) {
        const NvrtcInfo& nvrtc = nvrtc_info();
        if (nvrtc.path.empty())
            raise(ErrorKind::device_unavailable, to_string(device), ": ", nvrtc.problem);
        stream_ = std::make_shared<Stream>(gpu_);
    }

    Device device() const override { return gpu_.device; }
    int tensor_cores() const override { return tensor_cores_of(gpu_.compute_major); }

    std::vector<std::string> candidates(const LoweredOp& op) override {
        return cuda::candidates(op, {gpu_.processors, gpu_.compute_major});
    }

    std::shared_ptr<const Kernel> select(const LoweredOp& op) override {
        const KernelText text = kernel_text(op, {gpu_.processors, gpu_.compute_major});
        auto kernel = kernel_of(text, op);
        for (size_t k = 0; k < op.members.size(); k++)
            add_part(*kernel, op, op.members[k], kernel_of(text.parts[k], op.members[k]));
        if (text.blocks) kernel->loaded = cache_.request(text);
        return kernel;
    }

    void load(const std::vector<std::shared_ptr<const Kernel>>& kernels) override {
        std::vector<std::shared_ptr<LoadedKernel>> all;
        for (const auto& kernel : kernels)
            if (const auto& loaded = static_cast<const CudaKernel&>(*kernel).loaded)
                all.push_back(loaded);
        cache_.load(all);
    }

    void finish_args(const Kernel& base, ArgBlock& args) override {
        const auto& kernel = static_cast<const CudaKernel&>(base);
        check(args.bytes == kernel.block_bytes,
              "cuda: an argument block is not laid out as its kernel was generated for");
        finish_parts(*this, kernel, args);
        if (!kernel.parts.empty()) return;
        void* counters = kernel.counters.get();
        char* const tail = reinterpret_cast<char*>(&args) + args.tail;
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
            stream_->ready_stage();
            return whole ? std::move(from) : packed(from);
        }
        if (!whole && from.device == gpu_.device) packer(nullptr, from);
        return from;
    }

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

    void run(const BoundOp& op) override {
        const auto& kernel = static_cast<const CudaKernel&>(*op.kernel);
        if (!kernel.loaded) return;
        const Driver& cu = driver();
        const Scope scope(gpu_);
        void* parameters[] = {op.args.get()};
        const CUresult result =
            cu.cuLaunchKernel(kernel.loaded->function, kernel.blocks, 1, 1, kernel.threads, 1, 1,
                              kernel.shared, stream_->handle(), parameters, nullptr);
        if (result != CUDA_SUCCESS)  // no text is made for a launch that goes well
            check_call(result, cat("the launch of ", op.op, " (", kernel.name, ")").c_str());
    }

    std::unique_ptr<Captured> capture(const std::vector<BoundOp>& ops) override {
        return std::make_unique<CapturedGraph>(stream_, ops);
    }

  private:
    /// How a text is launched, and what it needs beside its operands.
    std::shared_ptr<CudaKernel> kernel_of(const KernelText& text, const LoweredOp& op) {
        auto kernel = std::make_shared<CudaKernel>();
        kernel->name = text.name;
        kernel->workspace_bytes = text.workspace;
        kernel->tail_bytes = tail_bytes(op);
        kernel->maps = text.maps;
        for (const TensorMap& map : text.maps) {
            kernel->align.resize(std::max<size_t>(kernel->align.size(), map.input + size_t{1}));
            kernel->align[static_cast<size_t>(map.input)] = kMapAlign;
        }
        kernel->blocks = static_cast<unsigned>(std::min<int64_t>(text.blocks, INT32_MAX));
        kernel->threads = static_cast<unsigned>(text.threads);
        kernel->shared = text.shared;
        kernel->block_bytes = static_cast<uint32_t>(BlockLayout(op).bytes);
        if (text.blocks && text.counters) {
            const uint64_t bytes = 4 * static_cast<uint64_t>(text.counters);
            kernel->counters = stream_->allocate(bytes);
            stream_->clear(kernel->counters.get(), bytes);
        }
        return kernel;
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
        bound.kernel = select(op);
        load({bound.kernel});
        bound.op = "copy";
        bound.args = pack_args(op, *bound.kernel, {from.data, to}, nullptr);
        finish_args(*bound.kernel, *bound.args);
        constexpr size_t kMost = 16;
        if (packers_.size() == kMost) packers_.erase(packers_.begin());
        packers_.push_back(std::move(bound));
        return packers_.back();
    }

    Gpu& gpu_;
    KernelCache& cache_;
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
    cuda::set_nvrtc_folders(std::move(folders));
}

CudaInfo cuda_info() {
    CudaInfo info;
    info.problem = cuda::driver_problem();
    if (info.problem.empty()) {
        try {
            const int version = cuda::driver().version;
            info.driver = cat("CUDA ", version / 1000, ".", version % 1000 / 10);
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
    const cuda::DiskCacheInfo cache = cuda::disk_cache_info();
    info.cache = cache.folder.empty() ? cache.problem : cache.folder;
    info.cache_entries = cache.entries;
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

uint64_t clear_cuda_cache() { return cuda::clear_disk_cache(); }

namespace {

cuda::Target target_of(int processors, const std::string& arch) {
    const int compute = arch.starts_with("sm_") ? std::atoi(arch.c_str() + 3) : 0;
    if (compute < 70)
        raise(ErrorKind::graph, "cuda: arch is \"", arch, "\"; need one as sm_80 or sm_90a");
    return {processors, compute / 10};
}

}  // namespace

std::vector<std::string> cuda_candidates(const LoweredOp& op, int processors,
                                         const std::string& arch) {
    return cuda::candidates(op, target_of(processors, arch));
}

std::vector<std::string> cuda_programs(const std::vector<LoweredOp>& ops, int processors,
                                       const std::string& arch) {
    const cuda::Target target = target_of(processors, arch);
    std::vector<std::shared_ptr<cuda::LoadedKernel>> kernels;
    for (const LoweredOp& op : ops) {
        const cuda::KernelText text = cuda::kernel_text(op, target);
        if (text.blocks) kernels.push_back(cuda::loaded_kernel(text));
    }
    std::vector<std::string> programs;
    for (const auto& kernel : cuda::distinct(std::move(kernels)))
        programs.push_back(kernel->program);
    return programs;
}

std::vector<std::string> cuda_cubins(const std::vector<std::string>& programs,
                                     const std::string& arch) {
    return cuda::cached_cubins(programs, arch);
}

std::string cuda_log(const std::string& program, const std::string& arch) {
    return cuda::compile_log(program, arch);
}

int cuda_tensor_cores(const std::string& arch) {
    return cuda::tensor_cores_of(target_of(0, arch).major);
}

}  // namespace aicf
