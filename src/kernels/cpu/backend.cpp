// Binds kernels and replays flat lists of bound calls.
#include "kernels/cpu/backend.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif
#ifdef AICF_KERNEL_LIBRARY
#include <dlfcn.h>
#endif
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>

#include "core/base/float_mode.h"
#include "core/base/pool.h"
#include "core/compile/families.h"
#include "core/run/backend.h"
#include "core/run/init.h"
#include "kernels/cpu/families.h"
#include "kernels/cpu/program.h"

namespace aicf::cpu {

namespace {

// ---- instruction sets ---------------------------------------------------------------------------

struct Isa {
    const char* name;
    void (*fill)(Table&);
    bool usable;
};

#ifdef AICF_KERNEL_LIBRARY
/// The file that holds the code at an address. The linker tells the name it was given, which is
/// wrong after a chdir where it is relative; the system's list of what is mapped has the whole.
std::string file_of(const void* code) {
    Dl_info told = {};
    std::string path;
    if (dladdr(code, &told) && told.dli_fname) path = told.dli_fname;
    if (path.starts_with('/')) return path;
    const std::unique_ptr<FILE, int (*)(FILE*)> maps(std::fopen("/proc/self/maps", "re"), fclose);
    char line[8192];
    while (maps && std::fgets(line, sizeof line, maps.get())) {
        uintptr_t begin = 0, end = 0;
        int at = 0;
        const auto here = reinterpret_cast<uintptr_t>(code);
        std::sscanf(line, "%" SCNxPTR "-%" SCNxPTR " %*s %*s %*s %*s %n", &begin, &end, &at);
        if (here < begin || here >= end || line[at] != '/') continue;
        path = line + at;
        return path.substr(0, path.find('\n'));
    }
    return path;
}

/// Kernels are libraries beside the one this code is in, of which a process loads one.
void fill_from_library(const char* isa, Table& table) {
    std::string path = file_of(reinterpret_cast<const void*>(&fill_from_library));
    path = cat(path.substr(0, path.rfind('/') + 1), "libaicf_cpu_", isa, AICF_KERNEL_LIBRARY);
    void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);  // for good
    if (!library) {
        const char* const said = dlerror();
        const std::string problem = said ? said : "out of memory";  // which leaves no text
        const bool memory = problem.find("memory") != std::string::npos;
        raise(memory ? ErrorKind::out_of_memory : ErrorKind::device_unavailable,
              "device: the cpu's kernels do not load: ", problem, "; need ",
              memory ? "more memory" : "that library as it was built with this one");
    }
    const auto fill = reinterpret_cast<FillTable>(dlsym(library, "aicf_fill_table"));
    if (!fill || !fill(table, kTableStamp))
        raise(ErrorKind::device_unavailable, "device: the cpu's kernels in ", path,
              " are of another version; need those built with this library");
}
#define AICF_FILL(isa) [](Table& table) { fill_from_library(#isa, table); }
#else
#define AICF_FILL(isa) isa::fill_table
#endif

struct Chosen {
    Table table;
    const char* name;
};

Chosen* choose() {
    std::vector<Isa> sets;
#if defined(AICF_HAS_baseline)
    sets.push_back({"baseline", AICF_FILL(baseline), true});
#endif
#if defined(__x86_64__)
    __builtin_cpu_init();
    [[maybe_unused]] const bool v3 =
        __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
        __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("f16c");
    [[maybe_unused]] const bool v4 =
        v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512cd");
#endif
#if defined(AICF_HAS_avx2)
    sets.push_back({"avx2", AICF_FILL(avx2), v3});
#endif
#if defined(AICF_HAS_avx512)
    sets.push_back({"avx512", AICF_FILL(avx512), v4});
#endif
    const char* wanted = std::getenv("AICF_CPU_ISA");
    const Isa* best = nullptr;
    for (const Isa& isa : sets)
        if (isa.usable && (!wanted || !*wanted || std::string_view(wanted) == isa.name))
            best = &isa;
    if (!best) {
        std::string usable;
        for (const Isa& isa : sets)
            if (isa.usable) usable += cat(usable.empty() ? "" : ", ", isa.name);
        raise(ErrorKind::device_unavailable, "device: AICF_CPU_ISA is \"", wanted ? wanted : "",
              "\", which this machine or build does not have; need one of ", usable);
    }
    auto chosen = std::make_unique<Chosen>();
    chosen->name = best->name;
    best->fill(chosen->table);
#if defined(__x86_64__)
    chosen->table.quick_memory = __builtin_cpu_is("amd");
#endif
    return chosen.release();  // lives as long as the process
}

const Chosen& chosen() {
    static const Chosen* const once = choose();
    return *once;
}

double estimate_ns(const LoweredOp& op) {
    const Cost cost = cost_of(op);
    return cost.bytes * 0.1 + cost.flops * (anchor(op).gemm ? 0.02 : 0.1);
}

struct KernelCall {
    const CpuKernel* code;
    const ArgBlock* args;
    int threads;
    int64_t units[kMaxPhases];
};

void fill_tail(const BoundKernel& kernel, ArgBlock& args) {
    char* const end = reinterpret_cast<char*>(&args) + args.tail + kernel.tail_bytes;
    if (!kernel.program.empty())
        std::memcpy(end - kernel.program.size(), kernel.program.data(), kernel.program.size());
    if (kernel.code.prepare) kernel.code.prepare(args);
}

/// Does something with each call that an op comes to: one, or of a group one a member.
template <class Act>
void each_call(const Kernel& base, const ArgBlock& args, const Act& act) {
    const auto& kernel = static_cast<const BoundKernel&>(base);
    for (const Kernel::Part& part : kernel.parts)
        each_call(
            *part.kernel,
            *reinterpret_cast<const ArgBlock*>(static_cast<const char*>(args.tail_ptr()) + part.at),
            act);
    if (!kernel.parts.empty()) return;
    KernelCall call{&kernel.code, &args, kernel.threads, {}};
    for (int phase = 0; phase < kernel.code.phases; phase++)
        call.units[phase] = kernel.code.units(args, phase);
    act(call);
}

void run_call(const KernelCall& call, int threads) {
    for (int phase = 0; phase < call.code->phases; phase++) {
        const int64_t units = call.units[phase];
        if (units == 0) continue;
        if (threads < 2 || call.threads < 2 || units < 2) {
            call.code->run(*call.args, 0, units, phase, 0);
            continue;
        }
        struct Share {
            const KernelCall* call;
            int phase;
        } share{&call, phase};
        run_parallel(
            [](const void* context, int64_t begin, int64_t end, int thread) {
                const auto& at = *static_cast<const Share*>(context);
                at.call->code->run(*at.call->args, begin, end, at.phase, thread);
            },
            &share, units, std::min(threads, call.threads));
    }
}

class CpuCaptured : public Captured {
  public:
    explicit CpuCaptured(std::vector<BoundOp> ops) : ops_(std::move(ops)) {
        for (const BoundOp& op : ops_) {
            one_by_one_ |= static_cast<const BoundKernel&>(*op.kernel).host;
            each_call(*op.kernel, *op.args,
                      [&](const KernelCall& call) { calls_.push_back(call); });
        }
    }
    int64_t launch(int64_t times) override {
        const FloatMode mode;
        const int threads = cpu_threads();
        if (one_by_one_) times = std::min<int64_t>(times, 1);  // a call that raises ends the next
        for (int64_t i = 0; i < times; i++)
            for (const KernelCall& call : calls_) run_call(call, threads);
        return times;
    }
    void rebind(int op, const ArgBlock& args) override {
        ArgBlock& held = *ops_[static_cast<size_t>(op)].args;
        if (&held != &args) std::memcpy(&held, &args, args.bytes);
    }
    std::vector<Launch> trace() const override {
        std::vector<Launch> launches;
        for (const BoundOp& op : ops_) launches.push_back({op.op, op.kernel->name});
        return launches;
    }

  private:
    std::vector<BoundOp> ops_;
    std::vector<KernelCall> calls_;
    bool one_by_one_ = false;
};

/// How many threads may share the calls of an op.
int threads_of(const Kernel& kernel) {
    int most = static_cast<const BoundKernel&>(kernel).threads;
    for (const Kernel::Part& part : kernel.parts) most = std::max(most, threads_of(*part.kernel));
    return std::min(most, cpu_threads());
}

std::atomic<uint64_t> held = 0, most_held = 0;  // bytes

/// The memory of the machine in bytes; without end where nobody tells.
uint64_t machine_bytes() {
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGE_SIZE);
    return pages > 0 && page > 0 ? static_cast<uint64_t>(pages) * static_cast<uint64_t>(page)
                                 : UINT64_MAX;
}
constexpr uint64_t kHugePage = 2 << 20;

class CpuTarget : public Target {
  public:
    Device::Kind kind() const override { return Device::cpu; }

    GroupLimits group_limits() const override { return {256 << 10, 1 << 20, 1 << 22, 0, 0}; }
    bool fits(const LoweredOp& region) const override {
        return worth_fusing(region) && block_bytes(region).value_or(SIZE_MAX) <= kMaxArgBytes;
    }

    std::optional<size_t> block_bytes(const LoweredOp& op) const override {
        const auto kernel = make_kernel(chosen().table, op);
        if (!kernel) return std::nullopt;
        return block_size(op, kernel->tail_bytes);
    }

    std::shared_ptr<const Kernel> select(const LoweredOp& op) const override {
        if (op.members.empty()) return finish(op, make_kernel(chosen().table, op));
        if (is_one_block(op) || op.def == chain_def())  // which only a file can ask for
            raise(ErrorKind::format, title(op),
                  ": the cpu has no kernel for it; need a file for cuda");
        auto kernel = std::make_shared<BoundKernel>();
        for (const LoweredOp& member : op.members) {
            auto part = select(member);
            kernel->name += (kernel->name.empty() ? "" : "+") + part->name;
            add_part(*kernel, op, member, std::move(part));
        }
        return kernel;
    }

    /// Kernels are selected again from their ops, but for those that no other machine can make.
    void write(const Kernels& kernels, std::string& records, std::string& code) const override {
        for (const auto& kernel : kernels)
            if (static_cast<const BoundKernel&>(*kernel).from_here)
                raise(ErrorKind::unsupported, "export: ", kernel->name,
                      " is of a custom_op, whose ",
                      "code for the cpu is this machine's alone; need a step for cuda, whose file ",
                      "holds its kernels, or ops of aicf's");
        Target::write(kernels, records, code);
    }

  private:
    static std::shared_ptr<const Kernel> finish(const LoweredOp& op,
                                                const std::shared_ptr<BoundKernel>& kernel) {
        if (!kernel) no_kernel(op, "the cpu", "other dtypes (cast the operands)");
        if (estimate_ns(op) > kParallelNs) kernel->threads = cpu_threads();
        if (kernel->code.workspace) {
            const std::vector<void*> addresses(op.inputs.size() + op.outputs.size(), nullptr);
            const auto args = pack_args(op, *kernel, addresses, nullptr);
            fill_tail(*kernel, *args);
            kernel->workspace_bytes = kernel->code.workspace(*args, kernel->threads);
        }
        return kernel;
    }
};

const CpuTarget& cpu_target() {
    static const CpuTarget target;
    return target;
}

class CpuBackend : public Backend {
  public:
    Device device() const override { return {}; }
    const Target& target() const override { return cpu_target(); }

    void finish_args(const Kernel& kernel, ArgBlock& args, void* counters) override {
        const auto& bound = static_cast<const BoundKernel&>(kernel);
        finish_parts(*this, kernel, args, counters);
        if (!kernel.parts.empty()) return;
        fill_tail(bound, args);
        for (uint32_t at : bound.programs) bind_program(args, at);
    }

    std::shared_ptr<void> allocate(uint64_t bytes) override {
        // A system that promises more than it has ends the process at the first touch instead.
        if (const uint64_t most = machine_bytes(), now = held; bytes > most || now > most - bytes)
            raise(ErrorKind::out_of_memory, "cpu: cannot allocate ", bytes, " bytes beside the ",
                  now, " that are held; the machine has ", most, ", need a smaller plan");
        const std::align_val_t align{bytes < 2 * kHugePage ? uint64_t{kArenaAlign} : kHugePage};
        void* memory = ::operator new(std::max<uint64_t>(bytes, 1), align, std::nothrow);
        if (!memory)
            raise(ErrorKind::out_of_memory, "cpu: cannot allocate ", bytes,
                  " bytes; need a smaller plan");
#if defined(__linux__)
        // A wish: where it is not granted, pages stay small.
        if (bytes >= 2 * kHugePage) madvise(memory, bytes, MADV_HUGEPAGE);
#endif
        const uint64_t now = held += bytes;
        for (uint64_t seen = most_held; seen < now && !most_held.compare_exchange_weak(seen, now););
        return {memory, [bytes, align](void* p) {
                    ::operator delete(p, align);
                    held -= bytes;
                }};
    }

    void clear(void* to, uint64_t bytes) override { std::memset(to, 0, bytes); }
    void upload(void* to, const void* from, uint64_t bytes) override { copy(to, from, bytes); }
    void download(void* to, const void* from, uint64_t bytes) override { copy(to, from, bytes); }
    void copy(void* to, const void* from, uint64_t bytes) override {
        if (bytes) std::memmove(to, from, bytes);
    }

    using Backend::gather;
    void gather(void* to, const TensorRef& from) override {
        const int64_t count = element_count(from.shape), size = dtype_size(from.dtype);
        if (count == 0) return;
        if (is_contiguous(from.shape, from.strides))
            return copy(to, from.data, static_cast<uint64_t>(count * size));
        const Dims strides = contiguous_strides(from.shape);
        chosen().table.strided_copy(to, strides.begin(), from.data, from.strides.begin(),
                                    from.shape.begin(), from.shape.rank(), static_cast<int>(size));
    }

    void run(const BoundOp& op) override {
        const FloatMode mode;
        each_call(*op.kernel, *op.args,
                  [](const KernelCall& call) { run_call(call, cpu_threads()); });
    }

    std::unique_ptr<Captured> capture(const std::vector<BoundOp>& ops) override {
        return std::make_unique<CpuCaptured>(ops);
    }

    LaunchSize launch_size(const Kernel& kernel) const override {
        return {1, threads_of(kernel), 0};
    }

    void synchronize() override {}
    void order_after(intptr_t) override { no_streams(); }
    void order_before(intptr_t) override { no_streams(); }
    std::shared_ptr<void> lend(std::shared_ptr<void>, intptr_t) override { no_streams(); }

  private:
    [[noreturn]] static void no_streams() {
        raise(ErrorKind::graph, "step: got stream=, the step is on cpu; need none");
    }
};

}  // namespace

void register_cpu_backend() {
    register_draw([](bool normal, float a, float b, uint64_t key, uint64_t first, int64_t count,
                     float* to) { chosen().table.draw(normal, a, b, key, first, count, to); });
    register_backend(Device::cpu, [](Device device) -> std::unique_ptr<Backend> {
        if (device.index != 0)
            raise(ErrorKind::device_unavailable, "device: cpu:", device.index,
                  " is not available; need cpu");
        chosen();
        cpu_threads();  // what the environment asks for is checked before anything runs
        return std::make_unique<CpuBackend>();
    });
}

std::pair<uint64_t, uint64_t> cpu_memory() { return {held, most_held}; }
const char* cpu_isa() { return chosen().name; }

}  // namespace aicf::cpu
