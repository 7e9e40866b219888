// A plan's kernels in a file: how they are launched, their code and the text it was made from.
#include <algorithm>
#include <map>

#include "core/base/bytes.h"
#include "core/base/disk_cache.h"
#include "core/compile/memory.h"
#include "kernels/cuda/nvrtc.h"
#include "kernels/cuda/target.h"

namespace aicf::cuda {

namespace {

constexpr int32_t kNoCode = -1;  // of a kernel that has nothing to do
constexpr unsigned kMostThreads = 1024;
constexpr uint32_t kMostShared = 1 << 20;

template <class Io>
void fields(Io& io, TensorMap& map) {
    io.number(map.input);
    io.choice(map.dtype, kDTypes, "a dtype");
    io.numbers(map.inner, map.outer, map.batches, map.outer_step, map.batch_step, map.box, map.line,
               map.from);
}

/// What of a kernel its op does not say; of a group also that of its parts.
template <class Io>
void fields(Io& io, CudaKernel& kernel) {
    io.text(kernel.name);
    io.numbers(kernel.workspace_bytes, kernel.counter_bytes, kernel.blocks, kernel.threads,
               kernel.shared);
    io.list(kernel.maps, [](Io& each, TensorMap& map) { fields(each, map); });
}

struct StoredCode {
    KernelCode code;
    uint64_t program = 0, cubin = 0;  // bytes of each, one after the other
};

template <class Io>
void fields(Io& io, StoredCode& stored) {
    io.text(stored.code.symbol);
    io.text(stored.code.name);
    io.numbers(stored.code.shared, stored.program, stored.cubin);
}

/// Whether what a map shows of the workspace lies in it.
bool fits_workspace(const TensorMap& map, uint64_t bytes) {
    const uint64_t size = dtype_size(map.dtype), most = bytes / size;
    const auto lines = static_cast<uint64_t>(map.outer),
               batches = static_cast<uint64_t>(map.batches);
    const auto step = static_cast<uint64_t>(map.outer_step),
               all = static_cast<uint64_t>(map.batch_step);
    const auto within = [&](uint64_t count, uint64_t each) {
        return each <= most && count <= most / each;
    };
    return step >= static_cast<uint64_t>(map.inner) && within(lines, step) && lines * step <= all &&
           within(batches, all) && map.from <= bytes && batches * all * size <= bytes - map.from;
}

/// What the launch of an op asks of the driver and of its argument block.
void check_launch(ByteReader& io, const CudaKernel& kernel, const LoweredOp& op) {
    if (kernel.threads > kMostThreads || kernel.shared > kMostShared ||
        kernel.blocks > static_cast<unsigned>(INT32_MAX))
        io.fail(op.def->name, " is launched as ", kernel.blocks, " blocks of ", kernel.threads,
                " threads and ", kernel.shared, " bytes");
    constexpr auto most = static_cast<uint64_t>(kMostBytes);
    if (kernel.workspace_bytes > most || kernel.counter_bytes > most)
        io.fail(op.def->name, " takes ", kernel.workspace_bytes, " bytes of scratch and ",
                kernel.counter_bytes, " of counters; need at most ", most);
    for (const TensorMap& map : kernel.maps) {
        const bool scratch = map.input == TensorMap::workspace;
        const bool known =
            scratch || (map.input >= 0 && map.input < static_cast<int>(op.inputs.size()) &&
                        map.dtype == op.inputs[map.input].dtype);
        if (!known || !(is_16_bit(map.dtype) || map.dtype == DType::f32) || map.inner < 1 ||
            map.outer < 1 || map.batches < 1 || map.box < 1 ||
            (map.line != 128 && map.line != 64) ||
            (scratch && !fits_workspace(map, kernel.workspace_bytes)))
            io.fail(op.def->name, " has a map of operand ", map.input, " that is none");
    }
    if (!kernel.maps.empty() && kTailBytes + kernel.maps.size() * kMapBytes > kernel.tail_bytes)
        io.fail(op.def->name, " has ", kernel.maps.size(), " maps; its block has room for fewer");
}

std::shared_ptr<CudaKernel> read_kernel(ByteReader& io, const LoweredOp& op, const Limits& limits) {
    auto kernel = std::make_shared<CudaKernel>();
    fields(io, *kernel);
    complete(*kernel, op, limits);
    check_launch(io, *kernel, op);
    return kernel;
}

}  // namespace

void CudaTarget::write(const Kernels& kernels, std::string& records, std::string& code) const {
    build(kernels);
    const Codes each = distinct(codes_of(kernels));
    std::vector<StoredCode> codes;
    std::map<std::string_view, int32_t> numbers;
    for (const auto& one : each) {
        numbers[one->key] = static_cast<int32_t>(codes.size());
        codes.push_back({*one, one->program.size(), one->cubin->size()});
        code += one->program;
        code += *one->cubin;
    }
    ByteWriter io(records);
    std::string arch = arch_;
    io.text(arch);
    io.list(codes, [](ByteWriter& to, StoredCode& stored) { fields(to, stored); });
    for (const auto& base : kernels) {
        CudaKernel kernel = static_cast<const CudaKernel&>(*base);
        int32_t number = kernel.code ? numbers.at(kernel.code->key) : kNoCode;
        if (!kernel.parts.empty()) kernel.workspace_bytes = kernel.counter_bytes = 0;  // the parts'
        fields(io, kernel);
        for (const Kernel::Part& part : kernel.parts) {
            CudaKernel copy = static_cast<const CudaKernel&>(*part.kernel);
            fields(io, copy);
        }
        io.number(number);
    }
}

Kernels CudaTarget::read(const std::vector<const LoweredOp*>& ops, std::string_view records,
                         std::string_view code, const std::string& where) const {
    ByteReader io(records, cat(where, ": kernels")), bytes(code, cat(where, ": code"));
    std::string arch;
    io.text(arch);
    const bool ours = arch == arch_;
    if (!ours && nvrtc_info().path.empty())
        raise(ErrorKind::unsupported, where, ": its code is for ", arch, ", this device is ", arch_,
              ", and ", nvrtc_info().problem, " (to compile it again)");
    std::vector<StoredCode> stored;
    io.list(stored, [](ByteReader& from, StoredCode& one) { fields(from, one); });
    Codes codes;
    for (StoredCode& one : stored) {
        one.code.program = bytes.take(one.program);
        const std::string_view cubin = bytes.take(one.cubin);
        if (ours) one.code.cubin = std::make_shared<const std::string>(cubin);
        one.code.key = cat(one.code.symbol, " ", sha256(cat(one.code.program, cubin)));
        codes.push_back(std::make_shared<KernelCode>(std::move(one.code)));
    }
    bytes.end();
    Kernels kernels;
    for (const LoweredOp* op : ops) {
        auto kernel = read_kernel(io, *op, limits_);
        if (is_foreign(*op)) {  // which says all that its record does
            if (!takes_foreign(*op))
                io.fail(op->def->name, " has candidate \"", op->candidate,
                        "\", which says no product of a library's");
            const auto made = foreign_kernel(*op);
            if (kernel->workspace_bytes != made->workspace_bytes || kernel->counter_bytes != 0 ||
                !kernel->maps.empty())
                io.fail(op->def->name, " is not recorded as its candidate says");
            kernel = made;
        }
        for (const LoweredOp& member : op->members)
            if (op->def == group_def() || op->def == chain_def())
                add_part(*kernel, *op, member, read_kernel(io, member, limits_));
        int32_t number = kNoCode;
        io.number(number);
        if (number < kNoCode || number >= static_cast<int32_t>(codes.size()) ||
            (kernel->product && number != kNoCode))
            io.fail("a kernel has code ", number, "; there are ", codes.size());
        if (number != kNoCode) {
            kernel->code = codes[static_cast<size_t>(number)];
            if (kernel->blocks == 0 || kernel->threads == 0 ||
                kernel->code->shared < kernel->shared)
                io.fail(kernel->name, " is launched as ", kernel->blocks, " blocks of ",
                        kernel->threads, " threads");
        }
        kernel->nanoseconds = nanoseconds(*op);
        kernels.push_back(std::move(kernel));
    }
    io.end();
    return kernels;
}

}  // namespace aicf::cuda
