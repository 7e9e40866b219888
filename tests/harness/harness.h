// Drives the core and the CPU kernels without Python, so that a sanitizer sees nothing else. Every
// buffer is a heap block of exactly the bytes that a tensor spans.
#pragma once

#include <cstring>

#include "core/run/eager.h"
#include "core/run/step.h"

namespace aicf::harness {

/// InternalError unless it holds.
template <class... Parts>
void expect(bool holds, const Parts&... parts) {
    if (!holds) raise(ErrorKind::internal, parts...);
}

class Random {
  public:
    explicit Random(uint64_t seed) : state_(seed) {}
    uint64_t next() {  // splitmix64
        uint64_t z = state_ += 0x9E3779B97F4A7C15u;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
        z = (z ^ z >> 27) * 0x94D049BB133111EBu;
        return z ^ z >> 31;
    }
    int64_t below(int64_t n) { return static_cast<int64_t>(next() % static_cast<uint64_t>(n)); }
    bool one_in(int64_t n) { return below(n) == 0; }
    double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }

  private:
    uint64_t state_;
};

/// FNV-1a of 8-byte words; NaNs of a dtype count as one.
class Sum {
  public:
    void add(uint64_t word) { sum_ = (sum_ ^ word) * 0x100000001b3u ^ sum_ >> 29; }
    void add(DType dtype, const char* element);
    uint64_t value() const { return sum_; }

  private:
    uint64_t sum_ = 0xcbf29ce484222325u;
};

/// A tensor with a block of its own.
struct Block {
    TensorRef tensor;
    char* bytes = nullptr;
    int64_t size = 0;
};
/// `first`: bytes before the first element.
Block make_block(DType dtype, const Dims& shape, const Dims& strides, int64_t first, int64_t size);
Block c_order(const Type& type);
/// Random elements of every size, sometimes a special one; `hard`: often.
void fill(Block& block, Random& random, bool hard);
/// The address of every element, in C order.
template <class Fn>
void each_element(const TensorRef& tensor, Fn fn) {
    const int64_t count = element_count(tensor.shape), item = dtype_size(tensor.dtype);
    Dims at(tensor.shape.rank(), 0);
    for (int64_t i = 0; i < count; i++) {
        int64_t offset = 0;
        for (int k = 0; k < at.rank(); k++) offset += at[k] * tensor.strides[k];
        fn(static_cast<char*>(tensor.data) + offset * item, i);
        for (int k = at.rank(); k-- > 0 && ++at[k] == tensor.shape[k];) at[k] = 0;
    }
}

/// Runs every lowered op of a file on drawn layouts; returns the sum of all results.
uint64_t run_ops(const char* file, int examples);
/// Builds and runs graphs in every way that must give the same bits; returns their sum.
uint64_t run_graphs();
/// Ops that no kernel family knows must be refused, alone and in regions, by every backend.
uint64_t run_families();
/// Many threads on independent, sharing and common Steps.
uint64_t run_threads(int threads, int steps);

/// Loads and runs the files of a pack; returns the sum of their fates.
uint64_t run_files(const char* pack);

/// A training step of a small perceptron, its optimizer included.
Graph perceptron(int64_t batch, int64_t width);

}  // namespace aicf::harness
