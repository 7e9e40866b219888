// A product as the GPU's kernels take it, and which of them can compute it. All take k in the order
// that the op declares, so the choice changes no bit.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "kernels/cuda/codegen.h"
#include "kernels/cuda/tilings.h"

namespace aicf::cuda {

/// Whether its blocks can be a member's of a group.
bool fits_group(const Choice& choice);

/// A product of operand shapes that gemm takes, and how it is to be computed.
struct Gemm {
    const Attrs& attrs;
    const View &a, &b, &c;
    const std::string& math;
    int rank;
    int64_t m, n, k, chunk, batches = 1, size;  // size: bytes of a sum
    bool tf32, limbs, tensor;                   // tensor: by the order
    std::optional<DType> copied_as;             // what wgmma reads, where it is not the operands'
    const LoweredOp& op;

    explicit Gemm(const LoweredOp& of);

    /// How wgmma reads the operands for a tiling. `words`: the first one goes through registers.
    struct Reading {
        Reads reads;
        bool words;
        MappedOperand first, second;
        bool copies() const { return reads == Reads::right_copied || reads == Reads::copied; }
    };
    /// All ways in which it can. It takes tf32 along k alone, or through registers, which tiles
    /// that are narrow, of one warpgroup each or of two blocks do not have; 16 bits of f32 are
    /// copies.
    std::vector<Reading> readings(const Tiling& t) const;
    Reading reading(const Tiling& t, Reads how) const;
    /// A copy of an operand in the workspace, along k, in the type that wgmma takes.
    MappedOperand copy(int input, const Tiling& t) const;
    int planes() const { return limbs ? 3 : 1; }
    static uint64_t copy_bytes(const TensorMap& map) { return (map_bytes(map) + 255) / 256 * 256; }
    static uint64_t map_bytes(const TensorMap& map) {
        return static_cast<uint64_t>(map.batches * map.batch_step) * dtype_size(map.dtype);
    }
    int64_t copied(Reads how) const;
    /// Bytes that copying them reads and writes.
    int64_t moved(Reads how) const;

    /// Instructions for each result of what follows the product: those of the functions, and some
    /// to round and to read.
    double after() const;

    /// The side of few rows, 0 or 1, where thin.cuh reads the other straight from memory: on tensor
    /// cores up to 8; in chains up to 4, and k lies side by side.
    std::optional<int> thin_side(const Limits& limits) const;

    /// Unsupported for an order that the device, or the kernel without tiles, does not compute.
    void check_order(const Limits& limits, bool tiled) const;

    /// What an update behind the product takes, in which a thread waits for one element after the
    /// other; tiles of mma.cuh would read what it needs by pairs.
    void add_update(const Limits& limits, std::vector<Choice>& choices) const;

    void add_wgmma(const Tiling& t, const Problem& problem, const Limits& limits,
                   std::vector<Choice>& found) const;

    /// Empty where the kernel without tiles serves: asynchronous copies, and the large tiles they
    /// allow, begin with 8.0.
    std::vector<Choice> choices(const Limits& limits) const;
};

}  // namespace aicf::cuda
