// The contract between the compiler and a kernel, read by the C++ compiler and by NVRTC.
//
// Argument block. A kernel receives one packed block: a header, one Operand per input and output
// (inputs first) with as many dimensions as that operand really has, the op's attributes as 8-byte
// scalars in the order its schema declares them, and a 64-byte-aligned tail that belongs to the
// backend. Strides count elements and may be zero or negative. Device and stream are given at the
// launch, not in the block. A kernel never allocates, synchronises, prints or returns a status.
//
// Summation orders. Every reduction that rounds follows one of these orders, fixed by its lowered
// op's `order` attribute, so that no tile, thread count, vector width or backend changes a bit.
//   chain(c)  Elements (for a product: k) are taken in ascending index inside chunks of c; a chunk
//             starts from its first term, that of a product by fma and of scatter_add by addition
//             from +0, and the chunk results are added in ascending order.
//   tree      The n elements, in row-major order of the reduced axes, are cut into leaves of 512.
//             Inside a leaf, lane l of 128 adds elements l, l+128, l+256, l+384 in that order; the
//             lanes are then halved: l += l+64, l += l+32, ... l += l+1. Leaves are joined by
//             T[a,b) = T[a,a+p) + T[a+p,b), p the largest power of two below b-a. A missing element
//             counts as -0, which changes no sum; the sum of no elements is +0.
//   mma16(c)  Of products on tensor cores: k ascends in steps of 16 (tf32: mma8(c), of 8) from +0
//             inside cuts of c, the last one filled with +0; a step is mma_step() of mma_step.h.
//             The results of cuts are added in ascending order, in f32. mma16.sm80(c) and its like
//             are the same of another family of tensor cores, whose step is its own.
//   limbs(c)  Of products of f32 on tensor cores, c = 64: each operand is three bfloat16, its limbs
//             (f32_to_limbs). k ascends in pieces of c, the last one filled up with +0 to a
//             multiple of 16. In each a sum takes, from +0 and by mma_step(), the products of limbs
//             2 0, 0 2, 1 1, 1 0, 0 1 and 0 0, one pair after the other, k ascending in steps
//             of 16. The results of pieces are added in ascending order, in f32.
// Running sums (cumsum) add in ascending position, from the end where they are reversed. Where
// there
//   are few long lines (kScanLines, kScanChunk) a line is cut into chunks: a result is the running
//   sum inside its chunk, added to the running sum of the totals of the chunks before, which is
//   made in the same way.
// Attention  takes the keys of a row in blocks of c, in ascending order, c of its own `order`:
//   chain(c)  A score is a chain over the columns. A weight is 2^(score log2(e) scale - top), where
//             top is the whole number above the largest such exponent so far; where it moves, sums
//             are multiplied by a power of two. 16 lanes add the weights, lane l of keys l, l + 16,
//             ... of each block, and are halved; to each result is added, after each block, the
//             chain of its products. Of gradients the same: blocks of keys for dq, of queries (of
//             one head after the other) for dk and dv, of weights times 1 / sum.
//   mma16(c)  The same by steps of mma_step() over 16 columns, keys or queries, from +0, one block
//             after the other; top stays until it would rise by more than 8. Weights, weight_16(),
//             and slopes are rounded to the operands' type before they are multiplied; the sum is
//             of weights so rounded, by such steps. Gradients' are 2^(... - top - log2(sum)).
//   Masked keys weigh 0, so blocks of masked keys may be skipped. (If k, v or scores are not
//   finite, whether masked keys give NaN is unspecified.)
#pragma once

#ifdef __CUDACC_RTC__
using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long long;
using uint64_t = unsigned long long;
#define AICF_HD __host__ __device__ __forceinline__
#else
#include <cstdint>
#define AICF_HD inline __attribute__((always_inline))
#endif

namespace aicf {

constexpr int kMaxDims = 8;
constexpr int64_t kChainChunk = 256;  // c of every chain(c) that lowering writes, except
// products with few results, whose chunks of k a large device computes in parallel, and few enough
// terms that one block holds all partial sums.
constexpr int64_t kShortChunk = 128, kShortResults = 1 << 17, kShortTerms = 1024;
constexpr int64_t kScanChunk = 1024, kScanLines = 4096;  // a running sum is chunked if lines are
// longer than the first and fewer than the second
constexpr int64_t kAttentionChain = 64;  // c of attention
constexpr int64_t kLimbTerms = 64;       // c of limbs(c)
constexpr int64_t kTreeLeaf = 512;
constexpr int64_t kTreeLanes = 128;
constexpr uint32_t kMaxArgBytes = 4096;
/// Of a group, which nests its members' blocks, and of the updates of several tensors. (CUDA 12.1
/// and newer allow 32764.)
constexpr uint32_t kMaxGroupBytes = 16384;

enum class DType : uint8_t { f32, f64, f16, bf16, i32, i64, u8, boolean, i8, i16 };
constexpr int kDTypes = 10;
/// Those of whole numbers: X(dtype, its type in C++).
#define AICF_INTEGERS(X) \
    X(i32, int32_t)      \
    X(i64, int64_t)      \
    X(u8, uint8_t)       \
    X(i8, int8_t)        \
    X(i16, int16_t)

/// gemm's `math`: the products of f32 by fma, or of operands rounded to that type, or of all their
/// digits on tensor cores (fp32x), summed in f32.
enum class MathMode : uint8_t { fp32, tf32, fp16, bf16, fp32x };

struct Operand {
    void* ptr;
    int32_t dtype;
    int32_t rank;
    // int64_t shape[rank], strides[rank] follow
    AICF_HD const int64_t* shape() const { return reinterpret_cast<const int64_t*>(this + 1); }
    AICF_HD const int64_t* strides() const { return shape() + rank; }
};

union Scalar {
    int64_t i;
    double f;
};

struct ArgBlock {
    uint32_t bytes;  // the whole block, tail included
    uint16_t inputs, outputs;
    uint32_t scalars;  // byte offset of Scalar[]
    uint32_t tail;     // byte offset of the backend's own part
    void* workspace;
    uint64_t workspace_bytes;
    // uint32_t at[inputs + outputs]: byte offsets of the operands, padded to 8 bytes

    AICF_HD const uint32_t* at() const { return reinterpret_cast<const uint32_t*>(this + 1); }
    AICF_HD const Operand& operand(int i) const {
        return *reinterpret_cast<const Operand*>(reinterpret_cast<const char*>(this) + at()[i]);
    }
    AICF_HD const Operand& in(int i) const { return operand(i); }
    AICF_HD const Operand& out(int i) const { return operand(inputs + i); }
    AICF_HD const Scalar& scalar(int i) const {
        return reinterpret_cast<const Scalar*>(reinterpret_cast<const char*>(this) + scalars)[i];
    }
    AICF_HD const void* tail_ptr() const { return reinterpret_cast<const char*>(this) + tail; }
};

}  // namespace aicf
