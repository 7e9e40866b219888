// What compiling asks of a machine: which kernels it has. A target needs no device and keeps
// nothing between two questions.
#pragma once

#include "core/graph/op.h"

namespace aicf {

constexpr int64_t kArenaAlign = 256;
inline int64_t align_up(int64_t bytes) {
    return (bytes + kArenaAlign - 1) / kArenaAlign * kArenaAlign;
}

/// A kernel chosen for one lowered op and its operands' types and strides. Targets derive from it;
/// nothing in it belongs to a device.
struct Kernel {
    virtual ~Kernel() = default;
    std::string name;              // "gemm_f32", as traces and dumps print it
    uint64_t workspace_bytes = 0;  // scratch for the call
    uint64_t counter_bytes = 0;    // of its own: 0 before the first run, and after each
    uint32_t tail_bytes = 0;       // room the backend wants at the end of the argument block
    std::vector<uint32_t> align;   // by input, bytes it begins at a multiple of, beyond its element
    /// Of a group: its members' kernels, whose argument blocks lie in the tail of its own.
    struct Part {
        LoweredOp op;
        std::shared_ptr<const Kernel> kernel;
        std::vector<int> operands;  // by the member's operand: that of the group
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
};

class Target {
  public:
    virtual ~Target() = default;
    virtual Device::Kind kind() const = 0;
    /// How many ops that do not wait for each other it is worth keeping apart in memory.
    virtual int lanes() const { return 1; }
    virtual GroupLimits group_limits() const = 0;
    /// The family of the tensor cores, as product_order() takes it.
    virtual int tensor_cores() const { return 0; }
    /// Names of the kernels that could run an op, the one it would choose first; empty where there
    /// is no choice. LoweredOp::candidate tells select() which.
    virtual std::vector<std::string> candidates(const LoweredOp&) const { return {}; }
    /// Whether a region is one kernel here, and one that is worth having.
    virtual bool fits(const LoweredOp& region) const = 0;
    /// Whether a sequence or block_loop is one kernel here, of one block, and quicker than its
    /// members' launches.
    virtual bool fits_block(const LoweredOp&) const { return false; }
    /// Bytes of the argument block of an op, alone or in a group; none where there is no kernel.
    virtual std::optional<size_t> block_bytes(const LoweredOp& op) const = 0;
    /// Unsupported when no kernel fits.
    virtual std::shared_ptr<const Kernel> select(const LoweredOp& op) const = 0;
    /// Compiles the code of all kernels, which may take seconds.
    virtual void build(const Kernels&) const {}

    /// What a file says of the machine it was made for.
    virtual std::string arch() const { return ""; }
    virtual int processors() const { return 0; }
    /// What a file keeps of kernels that are built: records and code. Nothing: they are selected
    /// again from their ops.
    virtual void write(const Kernels&, std::string& records, std::string& code) const;
    /// The kernels of ops, as write() said; FormatError naming `where`.
    virtual Kernels read(const std::vector<const LoweredOp*>& ops, std::string_view records,
                         std::string_view code, const std::string& where) const;
};

/// Gives the kernel of a group its next part.
void add_part(Kernel& kernel, const LoweredOp& group, const LoweredOp& member,
              std::shared_ptr<const Kernel> chosen);

/// Bytes of an op's argument block with so many at its end for the backend.
size_t block_size(const LoweredOp& op, size_t tail_bytes);
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
