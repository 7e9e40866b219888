// The door to a device: memory, streams, launches, capture. Core knows nothing else of a device.
#pragma once

#include "core/compile/target.h"

namespace aicf {

class Backend;
/// Fills the parts' blocks from the group's own operands.
void finish_parts(Backend& backend, const Kernel& kernel, ArgBlock& args, void* counters);

/// One op with its addresses: the block a kernel receives.
struct BoundOp {
    std::shared_ptr<const Kernel> kernel;
    std::string op;                  // lowered name
    std::shared_ptr<ArgBlock> args;  // 64-byte aligned
    std::vector<int> waits = {};
    std::shared_ptr<const void> code = {};  // as load() gave it
};

/// The replayable form of a list of bound ops.
class Captured {
  public:
    virtual ~Captured() = default;
    /// Enqueues one run or several, at most `times`; returns how many.
    virtual int64_t launch(int64_t times) = 0;
    virtual void rebind(int op, const ArgBlock& args) = 0;
    /// Whether it is one launch that can run many steps, each on a slice of what is fed; and such a
    /// launch. By operand, where its slices lie, one behind the other.
    using Operands = std::vector<std::pair<int, const void*>>;
    virtual bool loops_over() const { return false; }
    virtual void launch_over(const Operands&, int64_t) {}
    struct Launch {
        std::string op, kernel;
    };
    virtual std::vector<Launch> trace() const = 0;  // read back from what is really held
};

/// How one launch is spread over a device.
struct LaunchSize {
    int64_t blocks, threads;  // of a CPU: 1 block of as many threads as may share it
    int64_t shared;           // bytes of shared memory that a block has
};

double steady_seconds();  // of the host's steady clock

/// A list of bound ops that runs with each op timed.
class Timed {
  public:
    virtual ~Timed() = default;
    struct Span {
        double begin, end;  // seconds
    };
    /// One run of the list: from when to when on the host's steady clock, and each op, from that
    /// beginning on. Where the device did not tell, no ops.
    struct Run {
        Span whole;
        std::vector<Span> ops;
        const char* clock;  // what timed it
    };
    /// Runs the list once or several times, at most `times`; complete on return.
    virtual std::vector<Run> run(int64_t times) = 0;
    /// Why a better clock was not used; "" where none is known.
    virtual std::string problem() const { return ""; }
};

/// What starts a Step (load, finish_args, capture, allocate, clear) may be called
/// while another thread runs a Step of the same machine; all else wants the machine's lock.
class Backend {
  public:
    virtual ~Backend() = default;
    virtual Device device() const = 0;
    virtual const Target& target() const = 0;  // what it runs
    /// Finishes before any replay what first use would do: loading, attributes. By kernel what
    /// BoundOp::code holds.
    virtual std::vector<std::shared_ptr<const void>> load(const Kernels& kernels) {
        return std::vector<std::shared_ptr<const void>>(kernels.size());
    }
    /// Fills the backend's tail of a block whose pointers are set; again after a rebind.
    /// `counters`: the kernel's, as many bytes as it says.
    virtual void finish_args(const Kernel& kernel, ArgBlock& args, void* counters) = 0;

    virtual std::shared_ptr<void> allocate(uint64_t bytes) = 0;  // 256-byte aligned; OutOfMemory
    virtual void clear(void* to, uint64_t bytes) = 0;            // to zero
    virtual void upload(void* to, const void* from, uint64_t bytes) = 0;  // host to device
    virtual void download(void* to, const void* from,
                          uint64_t bytes) = 0;  // device to host, complete on return
    virtual void copy(void* to, const void* from, uint64_t bytes) = 0;  // on the device
    /// The tensor in a form that gather takes without asking for memory.
    virtual TensorRef ready(TensorRef from) { return from; }
    /// Packs a tensor of any strides, on this device or the host, into C order at `to`. Host memory
    /// may be reused when the call returns, device memory after what is enqueued.
    virtual void gather(void* to, const TensorRef& from) = 0;
    struct Copy {
        char* to;
        TensorRef from;
        int64_t room;  // bytes from `to` on that belong to this value: with its padding
    };
    /// The same of several at once.
    virtual void gather(const std::vector<Copy>& copies) {
        for (const Copy& copy : copies) gather(copy.to, copy.from);
    }
    virtual void run(const BoundOp& op) = 0;  // enqueues one op
    virtual std::unique_ptr<Captured> capture(const std::vector<BoundOp>& ops) = 0;
    /// For profiles; `ops`, and their captured form if there is one, outlive it. By itself a
    /// backend runs each op and waits for it.
    virtual std::unique_ptr<Timed> timed(const std::vector<BoundOp>& ops, Captured* captured);
    virtual LaunchSize launch_size(const Kernel&) const { return {1, 1, 0}; }
    /// How many steps of so many launches one captured form should hold, to launch them together.
    virtual int64_t steps_at_once(size_t) const { return 1; }
    virtual void synchronize() = 0;
    /// Our work from here on comes after what `stream` holds now; and what `stream` gets from here
    /// on comes after our work. Neither waits on the host. Streams count as DLPack's: 1 is the
    /// legacy default, 2 the per-thread default.
    virtual void order_after(intptr_t stream) = 0;
    virtual void order_before(intptr_t stream) = 0;
    /// Memory for a reader on `stream`: ready there after our work; given back after the reader's.
    virtual std::shared_ptr<void> lend(std::shared_ptr<void> memory, intptr_t stream) = 0;
};

/// What a call waits for before it returns.
enum class SyncPolicy : uint8_t {
    none,   // nothing: the work is enqueued, in the order of the stream
    event,  // nothing, but the caller can wait for it later
    full,   // until the results are there
};
SyncPolicy parse_sync(std::string_view name, const char* where);  // GraphError unless one of these

/// Backends register a maker by device kind; a Step asks for one of its own (its own stream).
using BackendMaker = std::unique_ptr<Backend> (*)(Device device);
void register_backend(Device::Kind kind, BackendMaker maker);
std::unique_ptr<Backend> open_backend(Device device);

}  // namespace aicf
