#include "core/run/backend.h"

#include <atomic>
#include <chrono>
#include <cstring>

namespace aicf {

namespace {

std::atomic<BackendMaker> makers[kMostKinds];  // by Device::Kind

class OneByOne : public Timed {
  public:
    OneByOne(Backend& backend, const std::vector<BoundOp>& ops) : backend_(backend), ops_(ops) {}
    std::vector<Run> run(int64_t) override {
        const double start = steady_seconds();
        Run run = {{start, start}, {}, "steady clock"};
        run.ops.reserve(ops_.size());
        for (const BoundOp& op : ops_) {
            const double begin = steady_seconds();
            backend_.run(op);
            backend_.synchronize();
            run.ops.push_back({begin - start, steady_seconds() - start});
        }
        run.whole.end = steady_seconds();
        return {std::move(run)};
    }

  private:
    Backend& backend_;
    const std::vector<BoundOp>& ops_;
};

}  // namespace

void register_backend(Device::Kind kind, BackendMaker maker) { makers[kind] = maker; }

std::unique_ptr<Backend> open_backend(Device device) {
    const BackendMaker maker = makers[device.kind];
    if (!maker)
        raise(ErrorKind::device_unavailable, "device: ", to_string(device),
              " is not available: this build of aicf has no backend for it; need cpu");
    return maker(device);
}

double steady_seconds() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration<double>(now).count();
}

std::unique_ptr<Timed> Backend::timed(const std::vector<BoundOp>& ops, Captured*) {
    return std::make_unique<OneByOne>(*this, ops);
}

SyncPolicy parse_sync(std::string_view name, const char* where) {
    if (name == "none") return SyncPolicy::none;
    if (name == "event") return SyncPolicy::event;
    if (name == "full") return SyncPolicy::full;
    raise(ErrorKind::graph, where, ": sync is \"", name,
          "\"; need one of \"none\", \"event\", \"full\"");
}

void finish_parts(Backend& backend, const Kernel& kernel, ArgBlock& args, void* counters) {
    for (const Kernel::Part& part : kernel.parts) {
        std::vector<void*> addresses;
        for (int operand : part.operands)
            addresses.push_back(operand < 0 ? nullptr : args.operand(operand).ptr);
        const auto block = pack_args(part.op, *part.kernel, addresses,
                                     static_cast<char*>(args.workspace) + part.workspace);
        backend.finish_args(
            *part.kernel, *block,
            part.kernel->counter_bytes ? static_cast<char*>(counters) + part.counters : nullptr);
        std::memcpy(reinterpret_cast<char*>(&args) + args.tail + part.at, block.get(),
                    block->bytes);
    }
}

}  // namespace aicf
