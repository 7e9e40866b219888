// Element types, shapes and tensor descriptions.
#pragma once

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/abi/abi.h"
#include "core/base/error.h"

namespace aicf {

int64_t dtype_size(DType dtype);
const char* dtype_name(DType dtype);    // NumPy's: "float32", "bfloat16", "bool"
const char* dtype_abbrev(DType dtype);  // the dump's: "f32", "bf16", "bool"
bool is_float(DType dtype);
bool is_16_bit(DType dtype);             // f16, bf16
DType compute_dtype(DType dtype);        // accumulation dtype: f32 for 16 bits
bool holds(DType dtype, double number);  // an integer type: exactly; a float type rounds any
bool is_integer(DType dtype);
/// The least and the largest number of an integer type or bool.
std::pair<int64_t, int64_t> range_of(DType dtype);
std::string dtype_names();  // of all, as an error lists them
/// NumPy's names, the abbreviations, and both with a "torch." prefix; else DTypeError naming
/// `where`.
DType parse_dtype(std::string_view name, std::string_view where);

/// Up to kMaxDims sizes, strides or axes, stored in place.
class Dims {
  public:
    Dims() = default;
    Dims(std::initializer_list<int64_t> values);
    explicit Dims(const std::vector<int64_t>& values);
    Dims(int rank, int64_t value);

    int rank() const { return rank_; }
    int64_t& operator[](int i) { return values_[i]; }
    int64_t operator[](int i) const { return values_[i]; }
    const int64_t* begin() const { return values_; }
    const int64_t* end() const { return values_ + rank_; }
    void push(int64_t value);
    void erase(int axis);
    void insert(int axis, int64_t value);
    bool operator==(const Dims& other) const;
    std::vector<int64_t> vector() const { return {begin(), end()}; }

  private:
    int64_t values_[kMaxDims] = {};
    int rank_ = 0;
};

int64_t element_count(const Dims& shape);  // 1 for rank 0; INT64_MAX for more than that
Dims contiguous_strides(const Dims& shape);
/// Dense in C order; axes of size 1 and empty tensors always qualify.
bool is_contiguous(const Dims& shape, const Dims& strides);
std::string to_string(const Dims& shape);             // "[64, 8]"
std::string type_string(DType dtype, const Dims& s);  // "f32[64, 8]"

struct Device {
    /// The kinds that files and DLPack can name; a backend may add its own.
    enum Kind : uint8_t { cpu, cuda } kind = cpu;
    int index = 0;
    bool operator==(const Device&) const = default;
};
constexpr int kMostKinds = 8;
/// Adds a kind, in this process only. `name` must live as long.
Device::Kind add_device_kind(const char* name);
const char* kind_name(Device::Kind kind);  // "cpu", "cuda"
std::string to_string(Device device);      // "cpu", "cuda:0"

/// A tensor somewhere: what enters and leaves through DLPack and op_call.
struct TensorRef {
    void* data = nullptr;  // first element
    DType dtype = DType::f32;
    Dims shape, strides;  // strides in elements
    Device device;
    bool read_only = false;
    std::shared_ptr<void> owner;  // keeps `data` alive
    /// The current stream of the tensor's framework; empty if unknown.
    std::optional<intptr_t> stream = {};
};

float half_to_float(uint16_t bits);
uint16_t float_to_half(float value);  // nearest even
float bfloat_to_float(uint16_t bits);
uint16_t float_to_bfloat(float value);  // nearest even

}  // namespace aicf
