// The interface that a custom op's sources are written against, for C++ compilers and NVRTC. An
// author writes
//     AICF_FN void run(const Args& args, int64_t unit)
// where the generated Args has a Tensor for each input and output and a number for each attribute,
// by their names. It may call the functions of scalar.h.
#pragma once

#include "core/abi/scalar.h"

#ifdef __CUDACC_RTC__
#define AICF_FN __device__ __forceinline__
#else
#define AICF_FN static inline
#endif

namespace aicf {

/// 16-bit elements: float when read, rounded to nearest even when written.
struct Float16 {
    uint16_t bits;
    Float16() = default;
    AICF_HD Float16(float x) : bits(scalar::f32_to_half(x)) {}
    AICF_HD operator float() const { return scalar::half_to_f32(bits); }
};
struct BFloat16 {
    uint16_t bits;
    BFloat16() = default;
    AICF_HD BFloat16(float x) : bits(scalar::f32_to_bfloat(x)) {}
    AICF_HD operator float() const { return scalar::bfloat_to_f32(bits); }
};

template <class T, int Rank>
struct Tensor {
    T* data;                                                           // element [0, 0, ...]
    int64_t size;                                                      // elements
    int64_t shape[Rank > 0 ? Rank : 1], strides[Rank > 0 ? Rank : 1];  // in elements
    static constexpr int rank = Rank;
    /// Element i in C order; the tensor must be contiguous.
    AICF_HD T& operator[](int64_t i) const { return data[i]; }
    /// The element at one index per axis.
    template <class... Index>
    AICF_HD T& at(Index... index) const {
        static_assert(sizeof...(index) == Rank, "one index for each axis");
        const int64_t each[] = {static_cast<int64_t>(index)..., 0};
        int64_t offset = 0;
        for (int d = 0; d < Rank; d++) offset += each[d] * strides[d];
        return data[offset];
    }
};

}  // namespace aicf
