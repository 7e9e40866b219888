#include "kernels/cuda/cublaslt.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <map>
#include <mutex>

#include "core/base/fork.h"
#include "kernels/cuda/codegen.h"
#include "kernels/cuda/library.h"

namespace aicf::cuda {

namespace {

// ---- the library's interface, equal in CUDA 12 and 13 -------------------------------------------

using Handle = void*;      // of the library on a device
using Descriptor = void*;  // of a product, a matrix or what a heuristic should prefer
using Algorithm = std::array<uint64_t, 8>;
struct Found {
    Algorithm algorithm = {};
    size_t workspace = 0;
    int status = 0;
    float waves = 0;
    int reserved[4] = {};
};
static_assert(sizeof(Found) == 96);

/// X(name, arguments): the functions that are used; all return 0 for success.
#define AICF_CUBLASLT(X)                                                                          \
    X(Create, (Handle * handle))                                                                  \
    X(MatmulDescCreate, (Descriptor * made, int compute, int scale))                              \
    X(MatmulDescDestroy, (Descriptor one))                                                        \
    X(MatmulDescSetAttribute, (Descriptor one, int which, const void* value, size_t bytes))       \
    X(MatrixLayoutCreate,                                                                         \
      (Descriptor * made, int type, uint64_t rows, uint64_t columns, int64_t step))               \
    X(MatrixLayoutDestroy, (Descriptor one))                                                      \
    X(MatrixLayoutSetAttribute, (Descriptor one, int which, const void* value, size_t bytes))     \
    X(MatmulPreferenceCreate, (Descriptor * made))                                                \
    X(MatmulPreferenceDestroy, (Descriptor one))                                                  \
    X(MatmulPreferenceSetAttribute, (Descriptor one, int which, const void* value, size_t bytes)) \
    X(MatmulAlgoGetHeuristic,                                                                     \
      (Handle handle, Descriptor product, Descriptor a, Descriptor b, Descriptor c, Descriptor d, \
       Descriptor preference, int most, Found* found, int* count))                                \
    X(MatmulAlgoCheck, (Handle handle, Descriptor product, Descriptor a, Descriptor b,            \
                        Descriptor c, Descriptor d, const Algorithm* algorithm, Found* result))   \
    X(Matmul, (Handle handle, Descriptor product, const void* alpha, const void* a,               \
               Descriptor a_layout, const void* b, Descriptor b_layout, const void* beta,         \
               const void* c, Descriptor c_layout, void* d, Descriptor d_layout,                  \
               const Algorithm* algorithm, void* workspace, size_t bytes, CUstream stream))

// Numbers of cublasLt.h and library_types.h.
constexpr int kFloat = 0, kHalf = 2, kBrain = 14;  // CUDA_R_...
// CUBLAS_COMPUTE_32F, and with operands rounded to 16 bits or tf32.
constexpr int kCompute = 68, kComputeHalf = 74, kComputeBrain = 75, kComputeTf32 = 77;
constexpr int kTransposeFirst = 3, kTransposeSecond = 4;  // CUBLASLT_MATMUL_DESC_TRANSA, ..B
constexpr int kBatchCount = 5, kBatchStep = 6;            // CUBLASLT_MATRIX_LAYOUT_...
constexpr int kMostWorkspace = 1, kSchemes = 3;           // CUBLASLT_MATMUL_PREF_...
constexpr int kLeastAlign[] = {5, 6, 7, 8};               // the same, of a, b, c and d
constexpr uint32_t kSumsInFloat = 2;                      // of cuts: ..._SCHEME_COMPUTE_TYPE
constexpr int kNoMemory = 3, kInvalid = 7, kOtherArch = 8, kNotSupported = 15;

struct Library {
#define AICF_MEMBER(name, arguments) int(*name) arguments = nullptr;
    AICF_CUBLASLT(AICF_MEMBER)
#undef AICF_MEMBER
    size_t (*GetVersion)() = nullptr;
    std::string path, version;
    std::map<const Gpu*, Handle> handles;  // for good
};

std::string version_text(size_t version) {
    return cat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

bool open_library(Library& lt, const std::string& path) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (!library) return false;
    bool complete = true;
    const auto load = [&](auto& function, const char* symbol) {
        function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, symbol));
        complete &= function != nullptr;
    };
    load(lt.GetVersion, "cublasLtGetVersion");
#define AICF_LOAD(name, arguments) load(lt.name, "cublasLt" #name);
    AICF_CUBLASLT(AICF_LOAD)
#undef AICF_LOAD
    if (!complete) return false;
    lt.path = path;
    lt.version = version_text(lt.GetVersion());
    return true;
}

ForkMutex library_lock;

/// With `library_lock` held.
Library& library_once() {
    static Library& lt = *new Library;  // for good
    const int driver_major = driver_version() / 1000;
    if (lt.path.empty())
        for (const std::string& path :
             library_files("libcublasLt.so.", {"cu13/lib", "cublas/lib"}, driver_major))
            if (open_library(lt, path)) break;
    if (lt.path.empty())
        raise(ErrorKind::device_unavailable,
              "cublasLt: none was found in the process, beside this package, under CUDA_HOME or by "
              "its soname; need one for CUDA ",
              driver_major, " or older: pip install ",
              driver_major < 13 ? "nvidia-cublas-cu12" : "nvidia-cublas",
              ", or kernels of ours alone (cublaslt=False)");
    return lt;
}

void check_library(int status, const char* call) {
    if (status == 0) return;
    raise(status == kNoMemory ? ErrorKind::out_of_memory
          : status == kInvalid || status == kOtherArch || status == kNotSupported
              ? ErrorKind::unsupported
              : ErrorKind::internal,
          "cublasLt: ", call, " returned status ", status,
          "; need kernels of ours alone (cublaslt=False)");
}
#define AICF_LT(library, call, ...) check_library((library).call(__VA_ARGS__), "cublasLt" #call)

/// The library with its handle on a device, whose context is current.
std::pair<const Library*, Handle> library_on(const Gpu& gpu) {
    const std::lock_guard guard(library_lock);
    Library& lt = library_once();
    const auto [at, fresh] = lt.handles.try_emplace(&gpu, nullptr);
    if (!at->second) AICF_LT(lt, Create, &at->second);
    return {&lt, at->second};
}

}  // namespace

// ---- products ----------------------------------------------------------------------------------

namespace {

/// A matrix as the library sees it, by columns.
struct Matrix {
    int type = kFloat;
    int64_t rows = 0, columns = 0, step = 0, batch_step = 0;
    bool transposed = false;  // it multiplies with the transpose of what lies there
};

struct Product {
    Matrix first, second, result;  // the transpose of ours: our b, our a
    int64_t batches = 1;
    int compute = kCompute;
};

int type_of(DType dtype) {
    return dtype == DType::f32 ? kFloat : dtype == DType::f16 ? kHalf : kBrain;
}

/// The transpose of a view's matrices; none where neither of its axes lies along memory.
std::optional<Matrix> matrix_of(const View& view, int64_t batch_step) {
    const int rank = view.shape.rank(), row = rank - 2, column = rank - 1;
    const auto size = static_cast<int64_t>(dtype_size(view.dtype));
    if (view.offset * size % kLibraryAlign != 0 || batch_step < 0) return std::nullopt;
    for (const bool transposed : {false, true}) {
        const int inner = transposed ? row : column, outer = transposed ? column : row;
        if (view.strides[inner] == 1 && view.strides[outer] >= view.shape[inner])
            return Matrix{type_of(view.dtype), view.shape[inner], view.shape[outer],
                          view.strides[outer], batch_step,        transposed};
    }
    return std::nullopt;
}

std::optional<Product> product_of(const LoweredOp& op) {
    if (op.def->name != "gemm") return std::nullopt;
    const View &a = op.inputs[0], &b = op.inputs[1], &c = op.outputs[0];
    const std::string& math = op.attrs.text("math");
    if (a.dtype == DType::f64 || math == "fp32x") return std::nullopt;
    Product found;
    // What is none of tensor cores by its size keeps all digits.
    if (math == "tf32" && op.attrs.text("order").starts_with("mma")) found.compute = kComputeTf32;
    if (math == "fp16") found.compute = kComputeHalf;
    if (math == "bf16") found.compute = kComputeBrain;
    const int rank = c.shape.rank();
    Dims shape;
    std::vector<Dims> strides(3);
    for (int d = 0; d < rank - 2; d++) {
        shape.push(c.shape[d]);
        for (size_t i = 0; i < 3; i++) strides[i].push((i == 0 ? a : i == 1 ? b : c).strides[d]);
    }
    const Iteration batch(shape, strides);
    if (batch.shape.rank() > 1) return std::nullopt;
    const bool batched = batch.shape.rank() == 1;
    if (batched) found.batches = batch.shape[0];
    const auto matrix = [&](const View& view, size_t i) {
        return matrix_of(view, batched ? batch.strides[i][0] : 0);
    };
    const auto first = matrix(b, 1), second = matrix(a, 0), result = matrix(c, 2);
    constexpr int64_t most = int64_t{1} << 31;
    if (!first || !second || !result || result->transposed ||
        (batched && result->batch_step < result->step * result->columns))
        return std::nullopt;
    for (const int64_t size : {c.shape[rank - 2], c.shape[rank - 1], a.shape[rank - 1]})
        if (size < 1 || size >= most) return std::nullopt;
    if (found.batches < 1 || found.batches >= most) return std::nullopt;
    found.first = *first;
    found.second = *second;
    found.result = *result;
    return found;
}

/// Descriptors of a product, destroyed with it.
class Described {
  public:
    Described(const Library& lt, const Product& product) : lt_(lt) {
        try {
            AICF_LT(lt_, MatmulDescCreate, &what, product.compute, kFloat);
            set_transposed(kTransposeFirst, product.first);
            set_transposed(kTransposeSecond, product.second);
            a = layout(product.first, product.batches);
            b = layout(product.second, product.batches);
            c = layout(product.result, product.batches);
        } catch (...) {
            destroy();
            throw;
        }
    }
    ~Described() { destroy(); }
    Described(const Described&) = delete;
    Described& operator=(const Described&) = delete;

    Descriptor what = nullptr, a = nullptr, b = nullptr, c = nullptr;

  private:
    void set_transposed(int which, const Matrix& matrix) {
        const int32_t value = matrix.transposed;  // CUBLAS_OP_N and CUBLAS_OP_T
        AICF_LT(lt_, MatmulDescSetAttribute, what, which, &value, sizeof value);
    }
    Descriptor layout(const Matrix& matrix, int64_t batches) {
        Descriptor made = nullptr;
        AICF_LT(lt_, MatrixLayoutCreate, &made, matrix.type, static_cast<uint64_t>(matrix.rows),
                static_cast<uint64_t>(matrix.columns), matrix.step);
        made_.push_back(made);
        if (batches > 1) {
            const auto count = static_cast<int32_t>(batches);
            AICF_LT(lt_, MatrixLayoutSetAttribute, made, kBatchCount, &count, sizeof count);
            AICF_LT(lt_, MatrixLayoutSetAttribute, made, kBatchStep, &matrix.batch_step,
                    sizeof matrix.batch_step);
        }
        return made;
    }
    void destroy() {
        for (Descriptor one : made_) lt_.MatrixLayoutDestroy(one);
        if (what) lt_.MatmulDescDestroy(what);
    }

    const Library& lt_;
    std::vector<Descriptor> made_;
};

constexpr std::string_view kHex = "0123456789abcdef";

std::string hex_of(const Algorithm& algorithm) {
    std::string text;
    for (const uint64_t word : algorithm)
        for (int shift = 60; shift >= 0; shift -= 4) text += kHex[word >> shift & 15];
    return text;
}

}  // namespace

struct LibraryProduct {
    std::string version, arch;
    int processors = 0;
    uint64_t workspace = 0;
    Algorithm algorithm = {};
    Product product;

    /// The candidate: "cublasLt 13.1.0 sm_90a 132 33554432 0123...".
    std::string text() const {
        return cat(kForeign, version, " ", arch, " ", processors, " ", workspace, " ",
                   hex_of(algorithm));
    }
};

namespace {

/// What LibraryProduct::text() makes, and nothing else.
bool read(std::string_view text, LibraryProduct& to) {
    if (!text.starts_with(kForeign)) return false;
    text.remove_prefix(kForeign.size());
    std::array<std::string_view, 5> words;
    for (std::string_view& word : words) {
        word = text.substr(0, text.find(' '));
        text.remove_prefix(std::min(text.size(), word.size() + 1));
    }
    const auto number = [](std::string_view word, auto& value, int base = 10) {
        const char* const end = word.data() + word.size();
        const auto [at, error] = std::from_chars(word.data(), end, value, base);
        return error == std::errc() && at == end;
    };
    to.version = words[0];
    to.arch = words[1];
    bool whole = text.empty() && words[4].size() == 16 * to.algorithm.size() &&
                 number(words[2], to.processors) && number(words[3], to.workspace) &&
                 to.workspace <= kLibraryWorkspace;
    for (size_t i = 0; whole && i < to.algorithm.size(); i++)
        whole = number(words[4].substr(16 * i, 16), to.algorithm[i], 16);
    return whole;
}

struct LoadedProduct {
    LoadedProduct(const Gpu& on, const Library& lt, Handle by, const LibraryProduct& of)
        : gpu(on), library(lt), handle(by), product(of), described(lt, of.product) {}
    const Gpu& gpu;
    const Library& library;
    const Handle handle;
    const LibraryProduct product;
    const Described described;
};

}  // namespace

std::shared_ptr<const LibraryProduct> library_product(const LoweredOp& op) {
    auto found = std::make_shared<LibraryProduct>();
    if (!read(op.candidate, *found) || op.candidate != found->text())
        raise(ErrorKind::graph, "cublasLt: candidate \"", op.candidate,
              "\" says no algorithm; need one as Step.plan.candidates has it");
    const auto product = product_of(op);
    if (!product)
        raise(ErrorKind::graph, "cublasLt: ", title(op),
              " is no product that the library computes here; need another candidate");
    found->product = *product;
    return found;
}

void check_device(const LibraryProduct& product, const std::string& arch, int processors) {
    if (product.arch == arch && product.processors == processors) return;
    raise(ErrorKind::unsupported, "cublasLt: a product's algorithm is of ", product.arch, " with ",
          product.processors, " processors, this device is ", arch, " with ", processors,
          "; need such a device, or the step compiled for this one");
}

uint64_t workspace_of(const LibraryProduct& product) { return product.workspace; }

std::string name_of(const LibraryProduct& product) { return cat(kForeign, product.version); }

std::vector<std::string> library_candidates(const Gpu& gpu, const LoweredOp& op, int limit) {
    const Scope scope(gpu);
    const auto [library, handle] = library_on(gpu);
    const Library& lt = *library;
    LibraryProduct one;
    if (const auto product = product_of(op))
        one.product = *product;
    else
        return {};
    one.version = lt.version;
    one.arch = gpu.arch();
    one.processors = gpu.processors;
    const Described described(lt, one.product);
    Descriptor preference = nullptr;
    AICF_LT(lt, MatmulPreferenceCreate, &preference);
    const std::shared_ptr<void> held(preference, lt.MatmulPreferenceDestroy);
    const auto prefer = [&](int which, auto value) {
        AICF_LT(lt, MatmulPreferenceSetAttribute, preference, which, &value, sizeof value);
    };
    prefer(kMostWorkspace, kLibraryWorkspace);
    prefer(kSchemes, kSumsInFloat);
    for (const int which : kLeastAlign) prefer(which, kLibraryAlign);
    std::vector<Found> found(static_cast<size_t>(limit));
    int count = 0;
    const int status = lt.MatmulAlgoGetHeuristic(
        handle, described.what, described.a, described.b, described.c, described.c, preference,
        static_cast<int>(found.size()), found.data(), &count);
    if (status == kInvalid || status == kOtherArch || status == kNotSupported) return {};
    check_library(status, "cublasLtMatmulAlgoGetHeuristic");
    std::vector<std::string> names;
    for (const Found& each : found) {
        if (count-- <= 0) break;
        if (each.status != 0 || each.workspace > kLibraryWorkspace) continue;
        one.algorithm = each.algorithm;
        one.workspace = each.workspace;
        names.push_back(one.text());
    }
    return names;
}

// ---- running -----------------------------------------------------------------------------------

std::shared_ptr<const void> load_product(const Gpu& gpu, const LibraryProduct& product) {
    const Scope scope(gpu);
    const auto [library, handle] = library_on(gpu);
    if (library->version != product.version)
        raise(ErrorKind::unsupported, "cublasLt: a product's algorithm is of version ",
              product.version, ", the library at ", library->path, " is ", library->version,
              "; need that version, or the step compiled with this one");
    auto loaded = std::make_shared<LoadedProduct>(gpu, *library, handle, product);
    const Described& of = loaded->described;
    Found found;
    const int status = library->MatmulAlgoCheck(handle, of.what, of.a, of.b, of.c, of.c,
                                                &product.algorithm, &found);
    if (status == kNoMemory) check_library(status, "cublasLtMatmulAlgoCheck");
    if (status != 0 || found.workspace > product.workspace)
        raise(ErrorKind::unsupported, "cublasLt: ", library->path,
              " refuses a product's algorithm (status ", status, ", ", found.workspace,
              " bytes of scratch for ", product.workspace, "); need the step compiled again");
    return loaded;
}

void check_operands(const ArgBlock& args) {
    for (int k = 0; k < args.inputs + args.outputs; k++)
        if (const auto behind = reinterpret_cast<uintptr_t>(args.operand(k).ptr) % kLibraryAlign)
            raise(ErrorKind::unsupported, "cublasLt: operand ", k, " of a product begins ", behind,
                  " bytes behind a multiple of ", kLibraryAlign,
                  "; need a tensor at such an address, or candidates= naming a kernel of ours");
}

void run_product(const BoundOp& op, const ArgBlock& args, CUstream stream) {
    const auto& loaded = *static_cast<const LoadedProduct*>(op.code.get());
    const Described& of = loaded.described;
    const float one = 1, zero = 0;
    void* const to = args.out(0).ptr;
    AICF_LT(loaded.library, Matmul, loaded.handle, of.what, &one, args.in(1).ptr, of.a,
            args.in(0).ptr, of.b, &zero, to, of.c, to, of.c, &loaded.product.algorithm,
            args.workspace, loaded.product.workspace, stream);
}

std::shared_ptr<CUgraph_st> product_graph(const BoundOp& op, const ArgBlock& args) {
    const Driver& cu = driver();
    const Scope scope(static_cast<const LoadedProduct*>(op.code.get())->gpu);
    // Another thread may be launching on the step's own stream.
    CUstream stream = nullptr;
    AICF_CU(cu, cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
    const std::shared_ptr<CUstream_st> held(stream, cu.cuStreamDestroy);
    AICF_CU(cu, cuStreamBeginCapture, stream, CU_STREAM_CAPTURE_MODE_RELAXED);
    const auto captured = [&] {
        CUgraph graph = nullptr;
        AICF_CU(cu, cuStreamEndCapture, stream, &graph);
        return std::shared_ptr<CUgraph_st>(graph, cu.cuGraphDestroy);
    };
    try {
        run_product(op, args, stream);
    } catch (...) {
        try {
            captured();
        } catch (const Error&) {  // of a capture that was broken off
        }
        throw;
    }
    return captured();
}

}  // namespace aicf::cuda
