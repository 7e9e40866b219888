// A cuBLASLt for tests that has no GPU: computes products on the host, in an order of its own, in
// what it gives the driver's stream to run. It takes three algorithms, of which the last needs
// scratch, and ends the process where a caller breaks the interface. FAKE_CUBLASLT_VERSION is its
// version; FAKE_CUBLASLT_REFUSES makes it refuse every algorithm that it is asked to check.
#include <cuda.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "core/abi/formats.h"

namespace {

[[noreturn]] void broken(const char* what) {
    std::fprintf(stderr, "fake cublasLt: %s\n", what);
    std::abort();
}

struct Algorithm {
    uint64_t data[8];
};
struct Found {
    Algorithm algorithm;
    size_t workspace;
    int status;
    float waves;
    int reserved[4];
};
struct Product {
    int compute, transposed[2] = {};
};
struct Matrix {
    int type;
    uint64_t rows, columns;
    int64_t step, batch_step = 0;
    int32_t batches = 1;

    float at(const void* from, int64_t batch, uint64_t row, uint64_t column) const {
        const int64_t i =
            batch * batch_step + static_cast<int64_t>(column) * step + static_cast<int64_t>(row);
        if (type == 0) return static_cast<const float*>(from)[i];
        const uint16_t bits = static_cast<const uint16_t*>(from)[i];
        return type == 2 ? aicf::scalar::half_to_f32(bits) : aicf::scalar::bfloat_to_f32(bits);
    }
    void put(void* to, int64_t batch, uint64_t row, uint64_t column, float value) const {
        const int64_t i =
            batch * batch_step + static_cast<int64_t>(column) * step + static_cast<int64_t>(row);
        if (type == 0)
            static_cast<float*>(to)[i] = value;
        else
            static_cast<uint16_t*>(to)[i] =
                type == 2 ? aicf::scalar::f32_to_half(value) : aicf::scalar::f32_to_bfloat(value);
    }
};
struct Preference {
    uint64_t workspace = 0;
    uint32_t align[4] = {256, 256, 256, 256}, schemes = 7;
};

constexpr uint64_t kMagic = 0xa1607, kAlgorithms = 3, kScratch = 1 << 16;
size_t scratch_of(const Algorithm& algorithm) {
    return algorithm.data[1] == kAlgorithms - 1 ? kScratch : 0;
}
bool known(const Algorithm& algorithm) {
    return algorithm.data[0] == kMagic && algorithm.data[1] < kAlgorithms;
}

struct Call {
    Product product;
    Matrix a, b, d;
    const void *from_a, *from_b;
    void *to, *workspace;
    Algorithm algorithm;
};

/// From the last term to the first, so that sums that round are not ours.
void run(void* data) {
    const Call& call = *static_cast<const Call*>(data);
    const bool ta = call.product.transposed[0], tb = call.product.transposed[1];
    const uint64_t terms = ta ? call.a.rows : call.a.columns;
    if (const size_t bytes = scratch_of(call.algorithm)) std::memset(call.workspace, 0xee, bytes);
    std::vector<float> a(call.d.rows * terms), b(call.d.columns * terms);  // k by k
    for (int64_t batch = 0; batch < call.d.batches; batch++) {
        for (size_t i = 0; i < a.size(); i++) {
            const uint64_t row = i / terms, k = i % terms;
            a[i] = call.a.at(call.from_a, batch, ta ? k : row, ta ? row : k);
        }
        for (size_t i = 0; i < b.size(); i++) {
            const uint64_t column = i / terms, k = i % terms;
            b[i] = call.b.at(call.from_b, batch, tb ? column : k, tb ? k : column);
        }
        for (uint64_t column = 0; column < call.d.columns; column++)
            for (uint64_t row = 0; row < call.d.rows; row++) {
                float sum = 0;
                for (uint64_t k = terms; k-- > 0;)
                    sum += a[row * terms + k] * b[column * terms + k];
                call.d.put(call.to, batch, row, column, sum);
            }
    }
}

int number(const char* name, int otherwise) {
    const char* text = std::getenv(name);
    return text ? std::atoi(text) : otherwise;
}

bool fit(const Product& product, const Matrix& a, const Matrix& b, const Matrix& d) {
    const auto rows = [](const Matrix& m, bool t) { return t ? m.columns : m.rows; };
    const auto columns = [](const Matrix& m, bool t) { return t ? m.rows : m.columns; };
    for (const Matrix* m : {&a, &b, &d})
        if (m->step < static_cast<int64_t>(m->rows) || m->batches != d.batches) return false;
    return product.compute >= 68 && a.type == b.type && rows(a, product.transposed[0]) == d.rows &&
           columns(b, product.transposed[1]) == d.columns &&
           columns(a, product.transposed[0]) == rows(b, product.transposed[1]);
}

template <class T>
T read(const void* from, size_t bytes) {
    if (bytes != sizeof(T)) broken("an attribute of another size");
    T value;
    std::memcpy(&value, from, sizeof value);
    return value;
}

}  // namespace

extern "C" {

size_t cublasLtGetVersion() { return static_cast<size_t>(number("FAKE_CUBLASLT_VERSION", 130100)); }
int cublasLtCreate(void** handle) {
    *handle = new char;
    return 0;
}
int cublasLtMatmulDescCreate(Product** made, int compute, int scale) {
    if (scale != 0) broken("a scale that is no float");
    *made = new Product{compute};
    return 0;
}
int cublasLtMatmulDescDestroy(Product* one) {
    delete one;
    return 0;
}
int cublasLtMatmulDescSetAttribute(Product* one, int which, const void* value, size_t bytes) {
    if (which != 3 && which != 4) return 7;
    one->transposed[which - 3] = read<int32_t>(value, bytes);
    return 0;
}
int cublasLtMatrixLayoutCreate(Matrix** made, int type, uint64_t rows, uint64_t columns,
                               int64_t step) {
    *made = new Matrix{type, rows, columns, step};
    return 0;
}
int cublasLtMatrixLayoutDestroy(Matrix* one) {
    delete one;
    return 0;
}
int cublasLtMatrixLayoutSetAttribute(Matrix* one, int which, const void* value, size_t bytes) {
    if (which == 5)
        one->batches = read<int32_t>(value, bytes);
    else if (which == 6)
        one->batch_step = read<int64_t>(value, bytes);
    else
        return 7;
    return 0;
}
int cublasLtMatmulPreferenceCreate(Preference** made) {
    *made = new Preference;
    return 0;
}
int cublasLtMatmulPreferenceDestroy(Preference* one) {
    delete one;
    return 0;
}
int cublasLtMatmulPreferenceSetAttribute(Preference* one, int which, const void* value,
                                         size_t bytes) {
    if (which == 1)
        one->workspace = read<uint64_t>(value, bytes);
    else if (which == 3)
        one->schemes = read<uint32_t>(value, bytes);
    else if (which >= 5 && which <= 8)
        one->align[which - 5] = read<uint32_t>(value, bytes);
    else
        return 7;
    return 0;
}
int cublasLtMatmulAlgoGetHeuristic(void*, const Product* product, const Matrix* a, const Matrix* b,
                                   const Matrix* c, const Matrix* d, const Preference* preference,
                                   int most, Found* found, int* count) {
    if (!fit(*product, *a, *b, *d) || c != d) return 7;
    for (uint32_t align : preference->align)
        if (align > 16) broken("a preference of more than the 16 bytes that operands have");
    *count = 0;
    for (uint64_t i = 0; i < kAlgorithms && *count < most; i++) {
        Found one = {{{kMagic, i}}, 0, 0, 1, {}};
        one.workspace = scratch_of(one.algorithm);
        if (one.workspace <= preference->workspace) found[(*count)++] = one;
    }
    return 0;
}
int cublasLtMatmulAlgoCheck(void*, const Product* product, const Matrix* a, const Matrix* b,
                            const Matrix*, const Matrix* d, const Algorithm* algorithm,
                            Found* found) {
    if (!fit(*product, *a, *b, *d)) return 7;
    if (!known(*algorithm) || number("FAKE_CUBLASLT_REFUSES", 0)) return 15;
    *found = {*algorithm, scratch_of(*algorithm), 0, 1, {}};
    return 0;
}
int cublasLtMatmul(void*, const Product* product, const void* alpha, const void* from_a,
                   const Matrix* a, const void* from_b, const Matrix* b, const void* beta,
                   const void*, const Matrix*, void* to, const Matrix* d,
                   const Algorithm* algorithm, void* workspace, size_t bytes, CUstream stream) {
    if (!algorithm) broken("a product whose algorithm would be found by a heuristic");
    if (*static_cast<const float*>(alpha) != 1 || *static_cast<const float*>(beta) != 0)
        broken("a product that is scaled");
    for (const void* at : {from_a, from_b, static_cast<const void*>(to)})
        if (reinterpret_cast<uintptr_t>(at) % 16) broken("an operand that is not aligned");
    if (!fit(*product, *a, *b, *d) || !known(*algorithm) || bytes < scratch_of(*algorithm) ||
        (bytes && !workspace))
        return 7;
    // The driver that this process has already.
    static const auto launch = reinterpret_cast<decltype(&cuLaunchHostFunc)>(
        dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuLaunchHostFunc"));
    if (!launch) broken("a driver that runs nothing on the host");
    auto* const call = new Call{*product, *a, *b, *d, from_a, from_b, to, workspace, *algorithm};
    return launch(stream, run, call) == CUDA_SUCCESS ? 0 : 13;  // the graph may keep the call
}

}  // extern "C"
