#include "core/run/init.h"

#include <algorithm>
#include <cstring>

#include "core/abi/philox.h"
#include "core/base/interrupt.h"
#include "core/base/threads.h"
#include "core/graph/op.h"

namespace aicf {

namespace {

constexpr int64_t kBlock = 4096;      // elements between two questions whether to go on
constexpr int64_t kShare = 16 << 10;  // elements worth a thread's while

/// Element i in the type that the dtype's arithmetic has.
double number_at(const Init& init, uint64_t key, int64_t i, double first, double last) {
    const float a = static_cast<float>(init.a), b = static_cast<float>(init.b);
    if (init.kind == Init::uniform) {
        const Philox4 words = philox(static_cast<uint64_t>(i), 0, key);
        return std::clamp<double>(a + (b - a) * uniform_from(words.word[0]), first, last);
    }
    if (init.kind == Init::normal)
        return a + b * normal_from(philox(static_cast<uint64_t>(i), 0, key), 0);
    return init.a;
}

}  // namespace

void write_initial(const Value& value, uint64_t seed, char* to) {
    const Init& init = value.init;
    const DType dtype = value.type.dtype;
    const int64_t count = element_count(value.type.shape), size = dtype_size(dtype);
    uint64_t key =
        0xcbf29ce484222325u;  // FNV-1a of the name, so that values do not depend on order
    for (char c : value.name) key = (key ^ static_cast<uint8_t>(c)) * 0x100000001b3u;
    key ^= seed * 0x9E3779B97F4A7C15u;
    const bool uniform = init.kind == Init::uniform;
    const double first = uniform ? rounded(dtype, init.a) : 0;
    const double last = uniform ? last_below(dtype, init.a, init.b) : 0;
    const auto fill = [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) {
            if (i % kBlock == 0) poll();
            const double number = number_at(init, key, i, first, last);
            char* at = to + i * size;
            const auto put = [&](auto element) { std::memcpy(at, &element, sizeof element); };
            switch (dtype) {
                case DType::f32:
                    put(static_cast<float>(number));
                    break;
                case DType::f64:
                    put(number);
                    break;
                case DType::f16:
                    put(float_to_half(static_cast<float>(number)));
                    break;
                case DType::bf16:
                    put(float_to_bfloat(static_cast<float>(number)));
                    break;
                case DType::i32:
                    put(static_cast<int32_t>(number));
                    break;
                case DType::i64:
                    put(init.kind == Init::seed ? static_cast<int64_t>(seed)
                                                : static_cast<int64_t>(number));
                    break;
                case DType::u8:
                case DType::boolean:
                    put(static_cast<uint8_t>(number));
                    break;
            }
        }
    };
    if (count <= kShare) return fill(0, count);
    in_parallel(static_cast<size_t>((count + kShare - 1) / kShare), [&](size_t share) {
        const int64_t begin = static_cast<int64_t>(share) * kShare;
        fill(begin, std::min(begin + kShare, count));
    });
}

}  // namespace aicf
