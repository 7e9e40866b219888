// The device interface: memory, streams, launches, capture. Core knows nothing else of a device.
#pragma once

#include <optional>

#include "core/compile/target.h"

namespace aicf {

class Backend;
/// Fills the members' argument blocks from the group's operands.
void finish_parts(Backend& backend, const Kernel& kernel, ArgBlock& args, void* counters);

/// One op with its argument block.
struct BoundOp {
    std::shared_ptr<const Kernel> kernel;
    std::string op;                  // lowered name
    std::shared_ptr<ArgBlock> args;  // 64-byte aligned
    std::vector<int> waits = {};
    std::shared_ptr<const void> code = {};  // from load()
};

/// The replayable form of a list of bound ops.
class Captured {
  public:
    virtual ~Captured() = default;
    /// Enqueues between one and `times` runs; returns how many.
    virtual int64_t launch(int64_t times) = 0;
    virtual void rebind(int op, const ArgBlock& args) = 0;
    /// Whether this is one launch that can run many steps, each on the next slice of fed operands;
    /// and that launch, which leaves the last slice where the operand lies. By operand, the address
    /// of its contiguous slices.
    using Operands = std::vector<std::pair<int, const void*>>;
    virtual bool loops_over() const { return false; }
    virtual void launch_over(const Operands&, int64_t) {}
    /// Whether it reads fed operands no more than once; and that launch for one step, of slices
    /// that nothing enqueued writes.
    virtual bool reads_once() const { return false; }
    virtual void launch_staged(const Operands&) {}
    struct Launch {
        std::string op, kernel;
    };
    virtual std::vector<Launch> trace() const = 0;  // read back from the captured form
};

/// The launch configuration.
struct LaunchSize {
    int64_t blocks, threads;  // on a CPU: 1 block of the threads that share the op
    int64_t shared;           // bytes of shared memory a block
};

double steady_seconds();  // of the host's steady clock

/// A list of bound ops run with a timer around each.
class Timed {
  public:
    virtual ~Timed() = default;
    struct Span {
        double begin, end;  // seconds
    };
    /// One timed run: its interval on the host's steady clock, and each op's relative to its begin.
    /// No ops if the device gave no times.
    struct Run {
        Span whole;
        std::vector<Span> ops;
        const char* clock;  // what timed it
    };
    /// Runs the list between one and `times` times; synchronous.
    virtual std::vector<Run> run(int64_t times) = 0;
    /// Why a better clock was not used; empty: unknown or none.
    virtual std::string problem() const { return ""; }
};

/// One op in the form that is quickest to enqueue again and again on one stream. It may be
/// destroyed while the device runs it, and is before its backend.
class Repeated {
  public:
    virtual ~Repeated() = default;
    /// Enqueues the op that it was made of. `moved`: the block has changed since that, or since the
    /// last run that did not fail.
    virtual void run(const BoundOp& op, bool moved) = 0;
};

/// Work on streams that others made, numbered as in DLPack. One may be gone as soon as they have it
/// back: what is to come behind work on it is told by a mark that was made at once. There is one
/// mark: what is marked comes behind what was marked before. No stream: the backend's own.
class OtherStreams {
  public:
    virtual ~OtherStreams() = default;
    virtual void run_on(intptr_t stream, const BoundOp& op) = 0;  // enqueues one op
    /// The same many times, while the stream is not captured; nullptr where run_on() is as good, or
    /// there is no memory for more.
    virtual std::unique_ptr<Repeated> repeat_on(intptr_t stream, const BoundOp& op) = 0;
    virtual void mark(std::optional<intptr_t> stream) = 0;  // what it holds now
    /// Its later work waits for the mark; so must what is marked, before it is enqueued.
    virtual void follow(std::optional<intptr_t> stream) = 0;
    virtual void wait_for_mark() = 0;            // the host waits
    virtual void wait_for(intptr_t stream) = 0;  // the host waits for all it holds
    /// The number of the capture that records what `stream` gets; 0: none does.
    virtual uint64_t capture_of(intptr_t stream) = 0;
    /// Memory of zeros, there for whatever is enqueued or captured from now on.
    virtual std::shared_ptr<void> zeros(uint64_t bytes) = 0;
};

/// Thread safety: load, finish_args, capture, allocate and clear may be called while another thread
/// runs a Step of the same machine; all else requires the machine's lock.
class Backend {
  public:
    virtual ~Backend() = default;
    virtual Device device() const = 0;
    virtual const Target& target() const = 0;  // the compiler's view of it
    /// Candidates for an op that are what a library of this device does (is_foreign()), the best
    /// first; at most so many. DeviceUnavailable where the library is not installed.
    virtual std::vector<std::string> foreign_candidates(const LoweredOp&, int) { return {}; }
    /// Loads kernels and sets their attributes, so that replay does no first-use work. Returns
    /// BoundOp::code by kernel.
    virtual std::vector<std::shared_ptr<const void>> load(const Kernels& kernels) {
        return std::vector<std::shared_ptr<const void>>(kernels.size());
    }
    /// Fills the backend tail of a block whose addresses are set; again after a rebind. `counters`:
    /// the kernel's counter_bytes.
    virtual void finish_args(const Kernel& kernel, ArgBlock& args, void* counters) = 0;

    virtual std::shared_ptr<void> allocate(uint64_t bytes) = 0;  // 256-byte aligned; OutOfMemory
    virtual void clear(void* to, uint64_t bytes) = 0;            // to zero
    virtual void upload(void* to, const void* from, uint64_t bytes) = 0;  // host to device
    virtual void download(void* to, const void* from,
                          uint64_t bytes) = 0;  // device to host, complete on return
    virtual void copy(void* to, const void* from, uint64_t bytes) = 0;  // on the device
    /// Prepares a tensor so that gather() allocates nothing for it.
    virtual TensorRef ready(TensorRef from) { return from; }
    /// Packs a tensor of any strides, on this device or the host, into C order at `to`. Host memory
    /// may be reused when the call returns, device memory after what is enqueued.
    virtual void gather(void* to, const TensorRef& from) = 0;
    struct Copy {
        char* to;
        TensorRef from;
        int64_t room;        // bytes at `to` that belong to this value, padding included
        const void* memory;  // the allocation they lie in: no copy may go beyond it
    };
    /// Likewise for several tensors.
    virtual void gather(const std::vector<Copy>& copies) {
        for (const Copy& copy : copies) gather(copy.to, copy.from);
    }
    /// Host memory as the next launch can read it, without a copy on the device; empty where there
    /// is none for these tensors, or where a copy comes cheaper.
    virtual std::vector<const void*> staged(const std::vector<TensorRef>&) { return {}; }
    virtual void run(const BoundOp& op) = 0;  // enqueues one op
    virtual std::unique_ptr<Captured> capture(const std::vector<BoundOp>& ops) = 0;
    /// For profiling; `ops` and their captured form outlive it. By default each op is run and
    /// waited for.
    virtual std::unique_ptr<Timed> timed(const std::vector<BoundOp>& ops, Captured* captured);
    virtual LaunchSize launch_size(const Kernel&) const { return {1, 1, 0}; }
    /// How many steps of so many launches one captured form should hold.
    virtual int64_t steps_at_once(size_t) const { return 1; }
    virtual void synchronize() = 0;
    /// Waits for what was enqueued before the last call of this, so that little is enqueued ahead.
    virtual void pace() {}
    /// Orders later work of ours after what `stream` holds now; and later work on `stream` after
    /// ours. Both are asynchronous. Streams are numbered as in DLPack: 1 is the legacy default, 2
    /// the per-thread default.
    virtual void order_after(intptr_t stream) = 0;
    virtual void order_before(intptr_t stream) = 0;
    /// Memory for a reader on `stream`: ordered after our work, freed after the reader's.
    virtual std::shared_ptr<void> lend(std::shared_ptr<void> memory, intptr_t stream) = 0;
    virtual OtherStreams* other_streams() { return nullptr; }  // none: run() runs at once
};

/// What a call waits for before it returns.
enum class SyncPolicy : uint8_t {
    none,   // nothing: the work is enqueued in stream order
    event,  // nothing, but the caller can wait for it later
    full,   // until the work is complete
};
SyncPolicy parse_sync(std::string_view name, const char* where);  // GraphError unless one of these

/// Backends register a factory by device kind; each Step gets a backend with its own stream.
using BackendMaker = std::unique_ptr<Backend> (*)(Device device);
void register_backend(Device::Kind kind, BackendMaker maker);
std::unique_ptr<Backend> open_backend(Device device);

}  // namespace aicf
