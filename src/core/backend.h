// The door to a device. Core knows nothing else of a device than these two classes.
#pragma once

#include "core/plan.h"

namespace aicf {

/// A kernel chosen for one lowered op and its operands' types and strides. Backends derive from it.
struct Kernel {
    virtual ~Kernel() = default;
    std::string name;              // "gemm_f32", as traces and dumps print it
    uint64_t workspace_bytes = 0;  // lent for the call
    uint32_t tail_bytes = 0;       // room the backend wants at the end of the argument block
    std::vector<uint32_t> align;   // by input, bytes it begins at a multiple of, beyond its element
    /// Of a group: its members' kernels, whose argument blocks lie in the tail of its own.
    struct Part {
        LoweredOp op;
        std::shared_ptr<const Kernel> kernel;
        std::vector<int> operands;  // by the member's operand: that of the group
        uint32_t at;                // bytes into the tail
        uint64_t workspace;         // bytes into the group's
    };
    std::vector<Part> parts;
};
class Backend;
/// Gives the kernel of a group its next part.
void add_part(Kernel& kernel, const LoweredOp& group, const LoweredOp& member,
              std::shared_ptr<const Kernel> chosen);
/// Fills the parts' blocks from the group's own operands.
void finish_parts(Backend& backend, const Kernel& kernel, ArgBlock& args);

/// One op with its addresses: the block a kernel receives.
struct BoundOp {
    std::shared_ptr<const Kernel> kernel;
    std::string op;                  // lowered name
    std::shared_ptr<ArgBlock> args;  // 64-byte aligned
    std::vector<int> waits;
};

/// The replayable form of a list of bound ops.
class Captured {
  public:
    virtual ~Captured() = default;
    /// Enqueues one run or several, at most `times`; returns how many.
    virtual int64_t launch(int64_t times) = 0;
    virtual void rebind(int op, const ArgBlock& args) = 0;
    struct Launch {
        std::string op, kernel;
    };
    virtual std::vector<Launch> trace() const = 0;  // read back from what is really held
};

/// What compiles (candidates, select, load, finish_args, capture, allocate, clear) may be called
/// while another thread runs a Step of the same machine; all else wants the machine's lock.
class Backend {
  public:
    virtual ~Backend() = default;
    virtual Device device() const = 0;
    /// The family of the device's tensor cores, as product_order() takes it.
    virtual int tensor_cores() const { return 0; }
    /// Names of the kernels that could run an op, the one it would choose first; empty where there
    /// is no choice. LoweredOp::candidate tells select() which.
    virtual std::vector<std::string> candidates(const LoweredOp&) { return {}; }
    /// The kernel of an op, not yet loaded; Unsupported when none fits.
    virtual std::shared_ptr<const Kernel> select(const LoweredOp& op) = 0;
    /// Does before any run what first use of these kernels would do: compiling, loading,
    /// attributes.
    virtual void load(const std::vector<std::shared_ptr<const Kernel>>&) {}
    /// Fills the backend's tail of a block whose pointers are set; again after a rebind.
    virtual void finish_args(const Kernel& kernel, ArgBlock& args) = 0;

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
    virtual void run(const BoundOp& op) = 0;  // enqueues one op
    virtual std::unique_ptr<Captured> capture(const std::vector<BoundOp>& ops) = 0;
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

/// Packs an op's operands and attributes into a block; `addresses` gives each operand's first
/// element.
std::shared_ptr<ArgBlock> pack_args(const LoweredOp& op, const Kernel& kernel,
                                    const std::vector<void*>& addresses, void* workspace);
/// The attributes of an op as the scalars a kernel receives, in schema order: numbers as they are,
/// the list "axes" as a bit mask, any other list as eight scalars, order "tree" as 0, "chain(c)" as
/// c and "mma16(c)" and its like as -c, a choice as its index. Those of a fused op's steps follow,
/// in their order.
std::vector<Scalar> pack_scalars(const LoweredOp& op);

}  // namespace aicf
