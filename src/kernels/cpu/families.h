// The kernel families of the CPU: which code runs a lowered op, with which programs.
#pragma once

#include "core/compile/target.h"
#include "kernels/cpu/kernels.h"

namespace aicf::cpu {

struct BoundKernel : Kernel {
    CpuKernel code;
    std::vector<char> program;       // the end of the tail: behind what `prepare` fills
    std::vector<uint32_t> programs;  // in the tail: those with pointers to operands
    int threads = 1;
    bool from_here = false;  // made on this machine of what no file holds
    bool host = false;       // it calls the host: one run is done before the next is begun
};

/// Makes the kernel of a custom op or a call of the host; null in a program that calls no
/// set_host_call(), whose linker leaves all that out.
using CustomMaker = std::shared_ptr<BoundKernel> (*)(const LoweredOp& op);
extern CustomMaker make_custom;

/// The kernel of an op but for its threads and workspace; null where there is none.
std::shared_ptr<BoundKernel> make_kernel(const Table& table, const LoweredOp& op);
/// Whether a region is small enough to be quicker than its parts.
bool worth_fusing(const LoweredOp& region);

}  // namespace aicf::cpu
