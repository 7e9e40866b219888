#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "core/base/fork.h"
#include "core/base/pool.h"
#include "harness.h"
#include "kernels/cpu/backend.h"
#include "reference.h"

namespace aicf::harness {

void Sum::add(DType dtype, const char* element) {
    uint64_t word = 0;
    std::memcpy(&word, element, static_cast<size_t>(dtype_size(dtype)));
    const auto is_nan = [&](uint64_t infinity, uint64_t sign) { return (word & ~sign) > infinity; };
    if ((dtype == DType::f32 && is_nan(0x7f800000, 0x80000000)) ||
        (dtype == DType::f64 && is_nan(0x7ff0000000000000, 0x8000000000000000)) ||
        (dtype == DType::f16 && is_nan(0x7c00, 0x8000)) ||
        (dtype == DType::bf16 && is_nan(0x7f80, 0x8000)))
        word = ~uint64_t{0};
    add(word);
}

Block make_block(DType dtype, const Dims& shape, const Dims& strides, int64_t first, int64_t size) {
    Block block;
    std::shared_ptr<char[]> memory(new char[static_cast<size_t>(size)]);
    std::memset(memory.get(), 0xA5, static_cast<size_t>(size));
    block.bytes = memory.get();
    block.size = size;
    block.tensor.data = memory.get() + first;
    block.tensor.dtype = dtype;
    block.tensor.shape = shape;
    block.tensor.strides = strides;
    block.tensor.owner = memory;
    return block;
}

Block c_order(const Type& type) {
    return make_block(type.dtype, type.shape, contiguous_strides(type.shape), 0,
                      element_count(type.shape) * dtype_size(type.dtype));
}

namespace {

double draw_number(Random& random, bool hard) {
    static const double special[] = {0.0,
                                     -0.0,
                                     1.0,
                                     -1.0,
                                     1e-45,
                                     -1e-39,
                                     6e-8,
                                     65504.0,
                                     3.4e38,
                                     -3.4e38,
                                     1e30,
                                     5e-324,
                                     __builtin_inf(),
                                     -__builtin_inf(),
                                     __builtin_nan("")};
    if (hard && random.one_in(4)) return special[random.below(std::size(special))];
    const double number = 4 * random.unit() - 2;
    return random.one_in(hard ? 4 : 50)
               ? std::ldexp(number, static_cast<int>(random.below(60)) - 30)
               : number;
}

int64_t draw_integer(Random& random, bool hard) {
    static const int64_t special[] = {INT64_MIN, INT32_MIN, -1, 255, INT32_MAX, INT64_MAX};
    if (random.one_in(hard ? 4 : 20)) return special[random.below(std::size(special))];
    return random.below(9) - 1;
}

}  // namespace

void fill(Block& block, Random& random, bool hard) {
    each_element(block.tensor, [&](char* at, int64_t) {
        const auto put = [&](auto element) { std::memcpy(at, &element, sizeof element); };
        const double number = draw_number(random, hard);
        const int64_t whole = draw_integer(random, hard);
        switch (block.tensor.dtype) {
            case DType::f32:
                return put(static_cast<float>(number));
            case DType::f64:
                return put(number);
            case DType::f16:
                return put(float_to_half(static_cast<float>(number)));
            case DType::bf16:
                return put(float_to_bfloat(static_cast<float>(number)));
#define AICF_PUT(dtype, type) \
    case DType::dtype:        \
        return put(static_cast<type>(whole));
                AICF_INTEGERS(AICF_PUT)
#undef AICF_PUT
            case DType::boolean:
                return put(static_cast<uint8_t>(whole & 1));
        }
    });
}

}  // namespace aicf::harness

/// A race, then a read behind a block: what the sanitizers must report, so that silence is proof.
static void misuse() {
    using namespace aicf;
    int count = 0;
    std::thread other([&] { count++; });
    count++;
    other.join();
    const auto block = harness::c_order({DType::u8, {5}});
    const volatile char* behind = block.bytes + block.size;
    std::printf("%d %d\n", count, *behind);
}

/// harness misuse | families | reference | ops FILE EXAMPLES | graphs | threads THREADS STEPS |
/// files PACK
int main(int argc, char** argv) {
    using namespace aicf;
    const std::string_view what = argc > 1 ? argv[1] : "";
    try {
        count_forks();
        cpu::register_cpu_backend();
        register_evaluator(evaluate);
        if (what == "misuse") {
            misuse();
            return 0;
        }
        uint64_t first = 0;
        for (int threads : {1, 3}) {
            set_cpu_threads(threads);
            uint64_t sum = 0;
            if (what == "ops" && argc == 4) {
                sum = harness::run_ops(argv[2], std::atoi(argv[3]));
            } else if (what == "families" && argc == 2) {
                sum = harness::run_families();
            } else if (what == "reference" && argc == 2) {
                sum = harness::run_reference();
            } else if (what == "graphs" && argc == 2) {
                sum = harness::run_graphs();
            } else if (what == "threads" && argc == 4) {
                sum = harness::run_threads(std::atoi(argv[2]), std::atoi(argv[3]));
            } else if (what == "files" && argc == 3) {
                sum = harness::run_files(argv[2]);
            } else {
                std::fprintf(
                    stderr,
                    "usage: harness misuse | families | reference | ops FILE EXAMPLES | graphs | "
                    "threads N STEPS | files PACK\n");
                return 2;
            }
            if (threads == 1) first = sum;
            harness::expect(sum == first, "1 and ", threads, " threads give other bits");
        }
        eager_close();
        harness::expect(cpu::cpu_memory().first == 0,
                        "memory is still held: ", cpu::cpu_memory().first, " bytes");
        std::printf("%016llx\n", static_cast<unsigned long long>(first));
        return 0;
    } catch (const Error& error) {
        std::fprintf(stderr, "harness: %s\n", error.what());
        return 1;
    }
}
