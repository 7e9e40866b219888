#include "kernels/cuda/target.h"

#include <algorithm>
#include <charconv>

#include "core/graph/region.h"
#include "kernels/cuda/backend.h"
#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/nvrtc.h"
#include "kernels/cuda/sources.h"

namespace aicf {

namespace cuda {

namespace {

/// How a text is launched, and what it needs beside its operands.
std::shared_ptr<CudaKernel> kernel_of(const KernelText& text, const LoweredOp& op,
                                      const Limits& limits) {
    auto kernel = std::make_shared<CudaKernel>();
    kernel->name = text.name;
    kernel->workspace_bytes = text.workspace;
    kernel->maps = text.maps;
    kernel->blocks = static_cast<unsigned>(std::min<int64_t>(text.blocks, INT32_MAX));
    kernel->threads = static_cast<unsigned>(text.threads);
    kernel->shared = text.shared;
    complete(*kernel, op, limits);
    if (text.blocks) kernel->counter_bytes = 4 * static_cast<uint64_t>(text.counters);
    return kernel;
}

}  // namespace

void complete(CudaKernel& kernel, const LoweredOp& op, const Limits& limits) {
    kernel.tail_bytes = tail_bytes(op);
    kernel.block_bytes = static_cast<uint32_t>(BlockLayout(op).bytes);
    if (op.def == sequence_def()) {
        kernel.tail_at = kernel.block_bytes - kernel.tail_bytes;
        for (const int64_t in : op.attrs.ints("fed")) kernel.fed.push_back(static_cast<int>(in));
        kernel.brings_fed = block_brings_fed(op, limits);
    }
    // The end of a net reads its weights early, where that is by whole 16 bytes.
    const auto is_tail = [](const LoweredOp& one) {
        return one.members.empty() && !one.body.empty() && tail_region(one);
    };
    const auto reads_early = [&](const LoweredOp& one) {
        if (!is_tail(one)) return;
        const int at = find_view(op.inputs, one.inputs[1]);
        check(at >= 0, "cuda: what a kernel reads early is no operand of its op");
        kernel.early.push_back(at);
    };
    reads_early(op);
    if (op.def == group_def())
        for (const LoweredOp& member : op.members) reads_early(member);
    kernel.asks = op.members.empty() && anchor(op).gemm && !is_tail(op);
    for (const TensorMap& map : kernel.maps) {
        if (map.input < 0 || map.input >= static_cast<int>(op.inputs.size())) continue;
        kernel.align.resize(std::max<size_t>(kernel.align.size(), map.input + size_t{1}));
        kernel.align[static_cast<size_t>(map.input)] = kMapAlign;
    }
}

// Of a family that is not known yet as well: mma.sync is an instruction of every later one.
int CudaTarget::tensor_cores() const { return limits_.major < 8 ? 0 : limits_.major; }

double CudaTarget::microseconds(const LoweredOp& op) const {
    constexpr double cycles = 1755;  // in a microsecond
    const double moved = cost_of(op).bytes / pace()->bytes;
    const bool product =
        op.members.empty() && anchor(op).gemm && (op.body.empty() || !tail_region(op));
    return product ? std::max(moved, gemm_cycles(op, limits_) / cycles) : moved;
}

int64_t CudaTarget::nanoseconds(const LoweredOp& op) const {
    return static_cast<int64_t>(1e3 * (pace()->launch + microseconds(op)));
}

std::vector<std::string> CudaTarget::candidates(const LoweredOp& op) const {
    return cuda::candidates(op, limits_);
}

bool CudaTarget::fits(const LoweredOp& region) const {
    if (region.def == chain_def())
        return block_bytes(region).value_or(SIZE_MAX) <= size_t{kMaxGroupBytes};
    // Updates, whose tensors are many, name more.
    const size_t operands = region.inputs.size() + region.outputs.size() + region.inner.size();
    return worth_fusing(region) && operands <= kMostOperands && region.body.size() <= kMostSteps &&
           block_bytes(region).value_or(SIZE_MAX) <=
               (region.members.empty() ? most_block_bytes(region) : kMaxArgBytes);
}

std::optional<size_t> CudaTarget::block_bytes(const LoweredOp& op) const {
    if (!has_kernel(op, limits_)) return std::nullopt;
    return static_cast<size_t>(BlockLayout(op).bytes);
}

bool CudaTarget::takes_foreign(const LoweredOp& op) const {
    try {
        return library_product(op) != nullptr;
    } catch (const Error& error) {
        if (error.kind() != ErrorKind::graph) throw;
        return false;
    }
}

std::shared_ptr<CudaKernel> CudaTarget::foreign_kernel(const LoweredOp& op) const {
    auto kernel = std::make_shared<CudaKernel>();
    kernel->product = library_product(op);
    check_device(*kernel->product, arch_, limits_.processors);
    kernel->name = name_of(*kernel->product);
    kernel->workspace_bytes = workspace_of(*kernel->product);
    complete(*kernel, op, limits_);
    kernel->asks = false;
    kernel->align.assign(op.inputs.size(), kLibraryAlign);
    kernel->nanoseconds = nanoseconds(op);
    return kernel;
}

std::shared_ptr<const Kernel> CudaTarget::select(const LoweredOp& op) const {
    if (is_foreign(op)) return foreign_kernel(op);
    const KernelText text = kernel_text(op, limits_);
    auto kernel = kernel_of(text, op, limits_);
    for (size_t k = 0; k < text.parts.size(); k++)
        add_part(*kernel, op, op.members[k], kernel_of(text.parts[k], op.members[k], limits_));
    if (text.blocks) kernel->code = kernel_code(text);
    kernel->nanoseconds = nanoseconds(op);
    return kernel;
}

void CudaTarget::build(const Kernels& kernels) const { cuda::build(codes_of(kernels), arch_); }

Codes codes_of(const Kernels& kernels) {
    Codes codes;
    for (const auto& kernel : kernels)
        if (const auto& code = static_cast<const CudaKernel&>(*kernel).code) codes.push_back(code);
    return codes;
}

}  // namespace cuda

std::unique_ptr<const Target> cuda_target(int processors, const std::string& arch) {
    int compute = 0;
    const char* const end = arch.data() + arch.size();
    const char* rest = end;
    if (arch.starts_with("sm_")) rest = std::from_chars(arch.data() + 3, end, compute).ptr;
    const bool suffix = end - rest == 1 && (*rest == 'a' || *rest == 'f');
    if (compute < 70 || compute > 999 || (rest != end && !suffix) || arch == "sm_90")
        raise(ErrorKind::graph, "cuda: arch is \"", arch, "\"; need one as sm_80 or sm_90a");
    return std::make_unique<cuda::CudaTarget>(cuda::Limits{processors, compute / 10}, arch);
}

std::vector<std::string> cuda_programs(const Kernels& kernels) {
    std::vector<std::string> programs;
    for (const auto& code : cuda::distinct(cuda::codes_of(kernels)))
        programs.push_back(code->program);
    return programs;
}

std::vector<std::string> cuda_cubins(const std::vector<std::string>& programs,
                                     const std::string& arch) {
    return cuda::cached_cubins(programs, arch);
}

std::string cuda_source(const std::string& program) { return cuda::with_sources(program); }

std::string cuda_log(const std::string& program, const std::string& arch) {
    const auto log = std::make_shared<std::string>();
    cuda::run_compiler(
        [=](const std::atomic<bool>&) { cuda::compile_cuda(program, arch, log.get()); });
    return *log;
}

}  // namespace aicf
