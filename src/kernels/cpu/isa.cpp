// Every CPU kernel, compiled once per instruction set into a namespace of its name (AICF_ISA).
// No standard-library template may be used below: its code would be shared between the sets.
#include <stdint.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "core/abi/mma_step.h"
#include "core/abi/paths.h"
#include "core/abi/philox.h"
#include "core/abi/scalar.h"
#include "core/abi/softmax.h"
#include "core/abi/sort.h"
#include "kernels/cpu/kernels.h"

#define AICF_INLINE inline __attribute__((always_inline))

// Each uses what those above it define.
// clang-format off
#include "kernels/cpu/movement.inl"
#include "kernels/cpu/pointwise.inl"
#include "kernels/cpu/tree.inl"
#include "kernels/cpu/reduce_loops.inl"
#include "kernels/cpu/reduce.inl"
#include "kernels/cpu/rows.inl"
#include "kernels/cpu/nn.inl"
#include "kernels/cpu/indexed.inl"
#include "kernels/cpu/windows.inl"
#include "kernels/cpu/lines.inl"
#include "kernels/cpu/optim.inl"
#include "kernels/cpu/random.inl"
#include "kernels/cpu/tile.inl"
#include "kernels/cpu/matmul.inl"
#include "kernels/cpu/steps.inl"
#include "kernels/cpu/gemm.inl"
#include "kernels/cpu/attention.inl"
// clang-format on

namespace aicf::cpu::AICF_ISA {

void fill_table(Table& table) {
    register_pointwise(table);
    register_movement(table);
    register_reduce(table);
    register_nn(table);
    register_indexed(table);
    register_windows(table);
    register_lines(table);
    register_optim(table);
    register_random(table);
    register_attention(table);
    table.add(CpuKernel{"gemm", kFloats, gemm_run, gemm_units, gemm_workspace});
    table.add(CpuKernel{"fused_gemm", kFloats, fused_gemm_run, gemm_units, gemm_workspace});
}

}  // namespace aicf::cpu::AICF_ISA

#ifdef AICF_KERNEL_LIBRARY
extern "C" __attribute__((visibility("default"))) bool aicf_fill_table(aicf::cpu::Table& table,
                                                                       uint64_t stamp) {
    if (stamp != aicf::cpu::kTableStamp) return false;
    aicf::cpu::AICF_ISA::fill_table(table);
    return true;
}
#endif
