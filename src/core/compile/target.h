// The compiler's view of a machine: its kernels and limits. It needs no device and is stateless.
#pragma once

#include "core/graph/op.h"

namespace aicf {

constexpr int64_t kArenaAlign = 256;
inline int64_t align_up(int64_t bytes) {
    return (bytes + kArenaAlign - 1) / kArenaAlign * kArenaAlign;
}

/// A kernel specialised to one lowered op's types and strides. Targets derive from it; it owns
/// nothing on a device.
struct Kernel {
    virtual ~Kernel() = default;
    std::string name;              // "gemm_f32", as traces and dumps print it
    uint64_t workspace_bytes = 0;  // scratch for the call
    uint64_t counter_bytes = 0;    // persistent; zero before and after each run
    uint32_t tail_bytes = 0;       // backend-private end of the argument block
    std::vector<uint32_t> align;   // by input, required alignment beyond its element's
    /// Of a group: a member's kernel, whose argument block is nested in the tail of the group's.
    struct Part {
        LoweredOp op;
        std::shared_ptr<const Kernel> kernel;
        std::vector<int> operands;  // by the member's operand: the group's
        uint32_t at;                // bytes into the tail
        uint64_t workspace;         // bytes into the group's workspace
        uint64_t counters;          // bytes into the group's counters
    };
    std::vector<Part> parts;
};
using Kernels = std::vector<std::shared_ptr<const Kernel>>;

/// Up to which sizes ops share a launch. Those that do are waited for together.
struct GroupLimits {
    double bytes, flops;      // of an op beside others that do not wait for it
    int64_t update_elements;  // an update of fewer joins those by the same numbers
    /// Updates of fewer elements in all join what makes their gradients, if that takes no more
    /// operations than these.
    int64_t epilogue_elements;
    double epilogue_flops;
};

/// How fast launches follow each other where some run beside others.
struct Pace {
    double launch;  // microseconds until an op begins that waits for another
    double bytes;   // a microsecond, from and to memory
};

class Target {
  public:
    virtual ~Target() = default;
    virtual Device::Kind kind() const = 0;
    /// How many ops that do not wait for each other it is worth keeping apart in memory.
    virtual int lanes() const { return 1; }
    virtual GroupLimits group_limits() const = 0;
    /// Nothing where ops run one after the other.
    virtual std::optional<Pace> pace() const { return std::nullopt; }
    /// What an op takes behind its launch, by a model.
    virtual double microseconds(const LoweredOp&) const { return 0; }
    /// The family of the tensor cores, as product_order() takes it.
    virtual int tensor_cores() const { return 0; }
    /// Names of alternative kernels for an op, the default first; empty if there is no choice.
    /// LoweredOp::candidate selects one.
    virtual std::vector<std::string> candidates(const LoweredOp&) const { return {}; }
    /// Whether the op can be what its candidate, a library's (is_foreign()), says: one of those
    /// that the tuner was asked for, which candidates() does not list.
    virtual bool takes_foreign(const LoweredOp&) const { return false; }
    /// Whether a region can be one kernel here, and is profitable.
    virtual bool fits(const LoweredOp& region) const = 0;
    /// Whether a group of a row op and sums over rows of what it reads is one kernel that reads
    /// them once.
    virtual bool sums_beside(const LoweredOp&) const { return false; }
    /// Whether a product of 16 bits can store, in its place, a sum with elements of float32 here:
    /// its launch has time to move them.
    virtual bool adds_wide(const LoweredOp&) const { return false; }
    /// Whether each block of one launch can take its rows through all products of a chain here,
    /// faster than as separate launches; asked of one product, too.
    virtual bool fits_chain(const LoweredOp&) const { return false; }
    /// Whether a product, however large, leaves most of the device to others of its kind in the
    /// same launch.
    virtual bool leaves_room(const LoweredOp&) const { return false; }
    /// Whether what makes a gradient can take the update by it as epilogue here, and in the launch
    /// of others that do.
    virtual bool takes_update(const LoweredOp&) const { return false; }
    /// Whether a product with its update behind it is made as it would be without.
    virtual bool updates_alike(const LoweredOp&) const { return false; }
    /// Whether a product's launch can hold small ops beside it.
    virtual bool takes_beside(const LoweredOp&) const { return false; }
    /// Whether blocks add what others have left in memory of a product's cuts along k, each of
    /// which could be a product by itself.
    virtual bool joins_cuts(const LoweredOp&) const { return false; }
    /// Whether a norm takes rows of several axes where they lie here, faster than a copy of them.
    virtual bool spreads(const LoweredOp&) const { return false; }
    /// Whether a sequence or block_loop can run in one thread block here, faster than as separate
    /// launches.
    virtual bool fits_block(const LoweredOp&) const { return false; }
    /// Bytes of the argument block of an op, alone or in a group; none where there is no kernel.
    virtual std::optional<size_t> block_bytes(const LoweredOp& op) const = 0;
    /// Unsupported when no kernel fits.
    virtual std::shared_ptr<const Kernel> select(const LoweredOp& op) const = 0;
    /// Compiles the code of all kernels, which may take seconds.
    virtual void build(const Kernels&) const {}

    /// The machine that an exported file records.
    virtual std::string arch() const { return ""; }
    virtual int processors() const { return 0; }
    /// Serialises built kernels as records and code. Empty: a reader selects kernels again from the
    /// ops.
    virtual void write(const Kernels&, std::string& records, std::string& code) const;
    /// Deserialises what write() made; FormatError naming `where`.
    virtual Kernels read(const std::vector<const LoweredOp*>& ops, std::string_view records,
                         std::string_view code, const std::string& where) const;
};

/// Appends a member to the kernel of a group.
void add_part(Kernel& kernel, const LoweredOp& group, const LoweredOp& member,
              std::shared_ptr<const Kernel> chosen);

/// Bytes of an op's argument block with a backend tail of `tail_bytes`; at most.
size_t block_size(const LoweredOp& op, size_t tail_bytes);
uint32_t most_block_bytes(const LoweredOp& op);
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
