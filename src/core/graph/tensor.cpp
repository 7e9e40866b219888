#include "core/graph/tensor.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "core/base/near.h"

namespace aicf {

namespace {

struct DTypeInfo {
    const char* name;
    const char* abbrev;
    int64_t size;
};
constexpr DTypeInfo kInfo[kDTypes] = {
    {"float32", "f32", 4}, {"float64", "f64", 8}, {"float16", "f16", 2}, {"bfloat16", "bf16", 2},
    {"int32", "i32", 4},   {"int64", "i64", 8},   {"uint8", "u8", 1},    {"bool", "bool", 1},
    {"int8", "i8", 1},     {"int16", "i16", 2}};

const DTypeInfo& info(DType dtype) { return kInfo[static_cast<int>(dtype)]; }

}  // namespace

int64_t dtype_size(DType dtype) { return info(dtype).size; }
const char* dtype_name(DType dtype) { return info(dtype).name; }
const char* dtype_abbrev(DType dtype) { return info(dtype).abbrev; }
bool is_float(DType dtype) { return dtype <= DType::bf16; }

bool is_16_bit(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; }
DType compute_dtype(DType dtype) { return is_16_bit(dtype) ? DType::f32 : dtype; }
bool holds(DType dtype, double number) {
    if (is_float(dtype)) return true;
    const auto [low, high] = range_of(dtype);
    return number >= static_cast<double>(low) && number < static_cast<double>(high) + 1 &&
           number == std::floor(number);
}
std::pair<int64_t, int64_t> range_of(DType dtype) {
    switch (dtype) {
#define AICF_RANGE(dtype, type) \
    case DType::dtype:          \
        return {std::numeric_limits<type>::min(), std::numeric_limits<type>::max()};
        AICF_INTEGERS(AICF_RANGE)
#undef AICF_RANGE
        default:
            return {0, 1};
    }
}
bool is_integer(DType dtype) { return !is_float(dtype) && dtype != DType::boolean; }

std::string dtype_names() {
    std::string names;
    for (const DTypeInfo& one : kInfo) names += cat(names.empty() ? "" : ", ", one.name);
    return names;
}

DType parse_dtype(std::string_view name, std::string_view where) {
    std::string_view bare = name;
    if (bare.starts_with("torch.")) bare.remove_prefix(6);
    for (int i = 0; i < kDTypes; i++)
        if (bare == kInfo[i].name || bare == kInfo[i].abbrev) return static_cast<DType>(i);
    if (bare.starts_with("complex"))
        raise(ErrorKind::dtype, where, ": ", name,
              " numbers are not offered; need their real and imaginary parts as two values");
    std::vector<std::string> names;
    for (const DTypeInfo& one : kInfo) names.emplace_back(one.name);
    raise(ErrorKind::dtype, where, ": unknown dtype \"", name, "\"", is_it(bare, names),
          "; need one of ", dtype_names());
}

Dims::Dims(std::initializer_list<int64_t> values) {
    for (int64_t value : values) push(value);
}

Dims::Dims(const std::vector<int64_t>& values) {
    for (int64_t value : values) push(value);
}

Dims::Dims(int rank, int64_t value) {
    for (int i = 0; i < rank; i++) push(value);
}

void Dims::push(int64_t value) {
    if (rank_ == kMaxDims) raise(ErrorKind::shape, "shape: more than 8 dimensions; need at most 8");
    values_[rank_++] = value;
}

void Dims::erase(int axis) {
    std::copy(values_ + axis + 1, values_ + rank_, values_ + axis);
    values_[--rank_] = 0;
}

void Dims::insert(int axis, int64_t value) {
    push(0);
    std::copy_backward(values_ + axis, values_ + rank_ - 1, values_ + rank_);
    values_[axis] = value;
}

bool Dims::operator==(const Dims& other) const {
    return rank_ == other.rank_ && std::equal(begin(), end(), other.begin());
}

int64_t element_count(const Dims& shape) {
    int64_t count = 1;
    bool fits = true;
    for (int64_t size : shape) {
        if (size == 0) return 0;
        fits &= !__builtin_mul_overflow(count, size, &count);
    }
    return fits ? count : INT64_MAX;
}

Dims contiguous_strides(const Dims& shape) {
    Dims strides(shape.rank(), 1);
    for (int i = shape.rank() - 2; i >= 0; i--)
        strides[i] = strides[i + 1] * std::max<int64_t>(shape[i + 1], 1);
    return strides;
}

bool is_contiguous(const Dims& shape, const Dims& strides) {
    if (element_count(shape) == 0) return true;
    int64_t expected = 1;
    for (int i = shape.rank() - 1; i >= 0; i--) {
        if (shape[i] != 1 && strides[i] != expected) return false;
        expected *= shape[i];
    }
    return true;
}

std::string to_string(const Dims& shape) {
    std::string text = "[";
    for (int i = 0; i < shape.rank(); i++) text += cat(i ? ", " : "", shape[i]);
    return text + "]";
}

std::string type_string(DType dtype, const Dims& shape) {
    return dtype_abbrev(dtype) + to_string(shape);
}

namespace {

std::atomic<const char*> kind_names[kMostKinds] = {"cpu", "cuda"};
std::atomic<int> kinds = 2;

}  // namespace

Device::Kind add_device_kind(const char* name) {
    const int kind = kinds++;
    check(kind < kMostKinds, "device: too many kinds");
    kind_names[kind] = name;
    return static_cast<Device::Kind>(kind);
}

const char* kind_name(Device::Kind kind) { return kind_names[kind]; }

std::string to_string(Device device) {
    return device.kind == Device::cpu ? "cpu" : cat(kind_name(device.kind), ":", device.index);
}

float half_to_float(uint16_t bits) {
    const uint32_t sign = uint32_t(bits & 0x8000) << 16, exponent = (bits >> 10) & 31;
    const uint32_t mantissa = bits & 0x3ff;
    if (exponent == 31) return std::bit_cast<float>(sign | 0x7f800000 | mantissa << 13);
    if (exponent == 0) {
        const float magnitude = float(mantissa) * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t float_to_half(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value), magnitude = bits & 0x7fffffff;
    const uint16_t sign = uint16_t(bits >> 16 & 0x8000);
    if (magnitude > 0x7f800000) return uint16_t(sign | 0x7e00);
    if (magnitude >= 0x477ff000) return uint16_t(sign | 0x7c00);  // rounds to infinity
    if (magnitude < 0x38800000)                                   // subnormal: one exact product
        return uint16_t(sign | uint16_t(std::nearbyintf(std::fabs(value) * 0x1p24f)));
    return uint16_t(sign | (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13);
}

float bfloat_to_float(uint16_t bits) { return std::bit_cast<float>(uint32_t(bits) << 16); }

uint16_t float_to_bfloat(float value) {
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    if (std::isnan(value)) return uint16_t(bits >> 16 | 0x40);
    return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace aicf
