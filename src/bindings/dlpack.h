// DLPack, both ways: the ABI structs and the translation between them, Python objects and
// TensorRef.
//
// Every function here needs the GIL; a TensorRef made here may be dropped on any thread, with or
// without it.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <optional>

#include "core/graph/tensor.h"

namespace aicf {

// The documented C ABI of DLPack 1.3 (dmlc/dlpack, Apache-2.0), declared anew.

constexpr uint32_t kDLPackMajor = 1;
constexpr uint64_t kDLReadOnly = 1, kDLIsCopied = 2;  // DLManagedTensorVersioned::flags

enum DLDeviceType : int32_t { kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3, kDLCUDAManaged = 13 };
enum DLTypeCode : uint8_t {
    kDLInt = 0,
    kDLUInt = 1,
    kDLFloat = 2,
    kDLBfloat = 4,
    kDLComplex = 5,
    kDLBool = 6
};

struct DLPackVersion {
    uint32_t major, minor;
};
struct DLDevice {
    DLDeviceType type;
    int32_t id;
};
struct DLDataType {
    uint8_t code, bits;
    uint16_t lanes;
};
struct DLTensor {
    void* data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t* shape;
    int64_t* strides;  // in elements; NULL (before 1.2) is C order
    uint64_t byte_offset;
};
struct DLManagedTensor {
    DLTensor dl_tensor;
    void* manager_ctx;
    void (*deleter)(DLManagedTensor*);
};
struct DLManagedTensorVersioned {
    DLPackVersion version;
    void* manager_ctx;
    void (*deleter)(DLManagedTensorVersioned*);
    uint64_t flags;
    DLTensor dl_tensor;
};

/// What a type offers as `__dlpack_c_exchange_api__`: exchange without a call into Python.
/// The functions return 0, or -1 with a Python error set; none of them synchronises.
struct DLPackExchangeAPI {
    DLPackVersion version;
    DLPackExchangeAPI* previous;  // an older major version, or NULL
    int (*allocate)(DLTensor* prototype, DLManagedTensorVersioned** out, void* error_context,
                    void (*set_error)(void* error_context, const char* kind, const char* message));
    int (*from_object)(void* object, DLManagedTensorVersioned** out);
    int (*to_object)(DLManagedTensorVersioned* tensor, void** out);  // takes `tensor`
    int (*view_object)(void* object, DLTensor* out);                 // may be NULL
    int (*current_work_stream)(DLDeviceType type, int32_t id, void** out);
};

static_assert(sizeof(void*) == 8);
static_assert(sizeof(DLDevice) == 8 && sizeof(DLDataType) == 4 && sizeof(DLPackVersion) == 8);
static_assert(sizeof(DLTensor) == 48 && offsetof(DLTensor, ndim) == 16);
static_assert(offsetof(DLTensor, shape) == 24 && offsetof(DLTensor, byte_offset) == 40);
static_assert(sizeof(DLManagedTensor) == 64 && offsetof(DLManagedTensor, deleter) == 56);
static_assert(sizeof(DLManagedTensorVersioned) == 80);
static_assert(offsetof(DLManagedTensorVersioned, deleter) == 16);
static_assert(offsetof(DLManagedTensorVersioned, dl_tensor) == 32);
static_assert(sizeof(DLPackExchangeAPI) == 56 && offsetof(DLPackExchangeAPI, allocate) == 16);

/// How this layer reaches the Array class, which it does not know; set once by the class's binding.
struct DLPackHooks {
    /// False where `object` is no Array; may throw Error. Must be set before the table is shown.
    bool (*as_tensor_ref)(PyObject* object, TensorRef* out) = nullptr;
    /// A new Array.
    PyObject* (*from_tensor_ref)(TensorRef ref) = nullptr;
    /// Sets the current Python error; BufferError without it.
    void (*set_error)(ErrorKind kind, const char* text) = nullptr;
};
extern DLPackHooks dlpack_hooks;

struct ImportOptions {
    /// Where a CUDA tensor will be used, as the array API standard counts streams: 1 the legacy
    /// default, 2 the per-thread default, above that a handle, -1 no ordering wanted; 0 leaves it
    /// to the producer (its default).
    intptr_t consumer_stream = 0;
    /// Whether CPU data that no TensorRef can describe (unaligned, odd strides) is copied, as
    /// read-only, or refused.
    bool allow_copy = true;
};

/// Lets go of all types that this layer knows, at the end of the interpreter.
void forget_types();

/// What Python sees of a dtype: a str that equals the dtypes of other libraries.
nanobind::object python_dtype(DType dtype);

/// True for what import_tensor takes: an Array of ours, or any object whose type has `__dlpack__`.
bool is_tensor(nanobind::handle object);

/// Views a tensor of any framework. A PyTorch tensor that requires grad enters by its data.
/// Arrays of JAX and TensorFlow come back read-only: those libraries rely on it but cannot always
/// say so.
TensorRef import_tensor(nanobind::handle object, const char* where,
                        const ImportOptions& options = {});

/// The stream on which the object's framework works now (0 = NULL stream), where its exchange API
/// can tell.
std::optional<intptr_t> producer_stream(nanobind::handle object, Device device);
/// The same of a tensor of a GPU, 1 for the legacy default one; empty for any other object.
std::optional<intptr_t> work_stream(nanobind::handle object);
/// A framework's current stream, asked once for several tensors.
struct CurrentStream {
    const DLPackExchangeAPI* of = nullptr;
    int32_t device = 0;
    intptr_t stream = 0;
};
/// A tensor of a GPU by its type's exchange API, which orders nothing, with its framework's current
/// stream (1: the legacy default), which `known` holds where no code of a user's has run since.
/// That of PyTorch has no owner: `object` keeps it. False where import_tensor() has to take it.
bool peek_tensor(nanobind::handle object, TensorRef& ref, CurrentStream& known);

/// A new CPU tensor from Python numbers and nested lists of them, which take the dtype `wanted`
/// (int and float for a float, int for an integer in range, bool for bool), or from NumPy scalars,
/// which must have it already (a float64 scalar is a Python float).
TensorRef numpy_like(nanobind::handle object, DType wanted, const char* where);

/// True, False or, for None, nothing; TypeError naming `what` for anything else.
std::optional<bool> optional_bool(nanobind::handle object, const char* what);

/// What the arguments of `__dlpack__(*, stream, max_version, dl_device, copy)` ask of a tensor on
/// `own`; BufferError where they cannot be had.
struct ExportRequest {
    intptr_t stream = -1;  // of the consumer, as in ImportOptions
    bool versioned = false, copied = false, to_host = false;
};
ExportRequest export_request(Device own, bool read_only, nanobind::handle stream,
                             nanobind::handle max_version, nanobind::handle dl_device,
                             nanobind::handle copy);
nanobind::object export_capsule(TensorRef ref, const ExportRequest& request);
/// The value of `__dlpack_device__()`.
nanobind::tuple dlpack_device(Device own);
/// The value of `Array.__dlpack_c_exchange_api__`.
nanobind::object exchange_api_capsule();

/// A fresh NumPy array with a copy of a CPU tensor; bfloat16 becomes float32, which is exact.
nanobind::object to_numpy(const TensorRef& ref, bool writable);

/// A C-ordered, 64-byte-aligned CPU tensor, uninitialised, and a copy of a CPU tensor in one.
TensorRef empty_tensor(DType dtype, const Dims& shape);
TensorRef copy_tensor(const TensorRef& ref);

}  // namespace aicf
