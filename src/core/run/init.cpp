#include "core/run/init.h"

#include <algorithm>
#include <cstring>

#include "core/base/error.h"
#include "core/base/interrupt.h"
#include "core/graph/op.h"

namespace aicf {

namespace {

DrawFn registered = nullptr;

/// The key of a value's random numbers: FNV-1a of the name, so that they do not depend on order.
uint64_t key_of(const std::string& name, uint64_t seed) {
    uint64_t key = 0xcbf29ce484222325u;
    for (char c : name) key = (key ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
    return key ^ seed * 0x9E3779B97F4A7C15u;
}

/// number(i): element i in the type that the dtype's arithmetic has.
template <class Number>
void put_all(DType dtype, int64_t count, char* to, const Number& number) {
    const auto put = [&](auto convert) {
        for (int64_t i = 0; i < count; i++) {
            const auto element = convert(number(i));
            std::memcpy(to + i * static_cast<int64_t>(sizeof element), &element, sizeof element);
        }
    };
    switch (dtype) {
        case DType::f32:
            return put([](double x) { return static_cast<float>(x); });
        case DType::f64:
            return put([](double x) { return x; });
        case DType::f16:
            return put([](double x) { return float_to_half(static_cast<float>(x)); });
        case DType::bf16:
            return put([](double x) { return float_to_bfloat(static_cast<float>(x)); });
#define AICF_PUT(dtype, type) \
    case DType::dtype:        \
        return put([](double x) { return static_cast<type>(x); });
            AICF_INTEGERS(AICF_PUT)
#undef AICF_PUT
        case DType::boolean:
            return put([](double x) { return static_cast<uint8_t>(x); });
    }
}

}  // namespace

void register_draw(DrawFn draw) { registered = draw; }

void write_initial(const Value& value, uint64_t seed, int64_t begin, int64_t end, char* to) {
    const Init& init = value.init;
    const DType dtype = value.type.dtype;
    const int64_t size = dtype_size(dtype);
    if (init.kind == Init::seed && dtype == DType::i64) {
        for (int64_t i = begin; i < end; i++, to += size) std::memcpy(to, &seed, sizeof seed);
        return;
    }
    const bool uniform = init.kind == Init::uniform;
    if (!uniform && init.kind != Init::normal)
        return put_all(dtype, end - begin, to, [&](int64_t) { return init.a; });
    check(registered, "compile: no backend draws random numbers");
    const uint64_t key = key_of(value.name, seed);
    const double first = uniform ? rounded(dtype, init.a) : 0;
    const double last = uniform ? last_below(dtype, init.a, init.b) : 0;
    constexpr int64_t kBlock = 1024;
    alignas(64) float drawn[kBlock];
    for (int64_t at = begin, count; at < end; at += count, to += count * size) {
        poll();
        count = std::min(kBlock, end - at);
        registered(!uniform, static_cast<float>(init.a), static_cast<float>(init.b), key,
                   static_cast<uint64_t>(at), count, drawn);
        if (uniform)
            put_all(dtype, count, to,
                    [&](int64_t i) { return std::clamp<double>(drawn[i], first, last); });
        else
            put_all(dtype, count, to, [&](int64_t i) { return double{drawn[i]}; });
    }
}

}  // namespace aicf
