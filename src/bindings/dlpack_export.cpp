// Giving tensors out by DLPack: capsules, what a consumer asks of them, and the C exchange API.
#include "bindings/dlpack_parts.h"

namespace nb = nanobind;

namespace aicf {

DLPackHooks dlpack_hooks;

DLDataType dl_dtype(DType dtype) {
    static constexpr DLTypeCode codes[kDTypes] = {kDLFloat, kDLFloat, kDLFloat, kDLBfloat, kDLInt,
                                                  kDLInt,   kDLUInt,  kDLBool,  kDLInt,    kDLInt};
    return {codes[static_cast<int>(dtype)], static_cast<uint8_t>(8 * dtype_size(dtype)), 1};
}

namespace {

template <class Managed>
struct Export {
    Managed managed;
    TensorRef ref;
};

DLDevice dl_device_of(Device device) {
    return {device.kind == Device::cpu ? kDLCPU : kDLCUDA, device.index};
}

template <class Managed>
Managed* make_managed(TensorRef ref, bool copied) {
    auto* made = new Export<Managed>{{}, std::move(ref)};
    TensorRef& kept = made->ref;
    made->managed.manager_ctx = made;
    made->managed.deleter = [](Managed* self) {
        delete static_cast<Export<Managed>*>(self->manager_ctx);
    };
    made->managed.dl_tensor = {kept.data,
                               dl_device_of(kept.device),
                               kept.shape.rank(),
                               dl_dtype(kept.dtype),
                               &kept.shape[0],
                               &kept.strides[0],
                               0};
    if constexpr (std::is_same_v<Managed, DLManagedTensorVersioned>) {
        made->managed.version = {kDLPackMajor, 1};
        made->managed.flags = (kept.read_only ? kDLReadOnly : 0) | (copied ? kDLIsCopied : 0);
    }
    return &made->managed;
}

/// A capsule that frees the tensor unless a consumer has renamed it.
template <class Managed, const char* name>
nb::object make_capsule(TensorRef ref, bool copied) {
    Managed* managed = make_managed<Managed>(std::move(ref), copied);
    PyObject* capsule = PyCapsule_New(managed, name, [](PyObject* self) {
        if (!PyCapsule_IsValid(self, name)) return;
        auto* unused = static_cast<Managed*>(PyCapsule_GetPointer(self, name));
        unused->deleter(unused);
    });
    if (!capsule) {
        managed->deleter(managed);
        throw nb::python_error();
    }
    return nb::steal(capsule);
}

/// Runs a body of the exchange table: no C++ exception may leave it.
template <class Body>
int guarded(Body body) noexcept {
    try {
        body();
        return 0;
    } catch (const Error& error) {
        dlpack_hooks.set_error ? dlpack_hooks.set_error(error.kind(), error.what())
                               : PyErr_SetString(PyExc_BufferError, error.what());
    } catch (const std::bad_alloc&) {
        dlpack_hooks.set_error ? dlpack_hooks.set_error(ErrorKind::out_of_memory, kNoMemory)
                               : PyErr_SetString(PyExc_MemoryError, kNoMemory);
    } catch (nb::python_error& error) {
        error.restore();
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_BufferError, error.what());
    }
    return -1;
}

int exchange_allocate(DLTensor* prototype, DLManagedTensorVersioned** out, void* context,
                      void (*set_error)(void*, const char*, const char*)) {
    try {
        DLTensor shape = *prototype;  // only its dtype, sizes and device mean something
        shape.data = reinterpret_cast<void*>(kAlign);
        shape.strides = nullptr;
        shape.byte_offset = 0;
        TensorRef wanted = describe(shape, nullptr, "DLPack", {});
        if (wanted.device.kind != Device::cpu)
            raise(ErrorKind::unsupported, "DLPack: only CPU tensors are made here");
        *out =
            make_managed<DLManagedTensorVersioned>(empty_tensor(wanted.dtype, wanted.shape), false);
        return 0;
    } catch (const std::bad_alloc&) {
        set_error(context, "MemoryError", kNoMemory);
        return -1;
    } catch (const std::exception& error) {
        set_error(context, "BufferError", error.what());
        return -1;
    }
}

int exchange_from_object(void* object, DLManagedTensorVersioned** out) {
    return guarded([&] {
        TensorRef ref;
        if (!dlpack_hooks.as_tensor_ref ||
            !dlpack_hooks.as_tensor_ref(static_cast<PyObject*>(object), &ref))
            raise(ErrorKind::dtype, "DLPack: got ", type_of(static_cast<PyObject*>(object)),
                  "; need an aicf.Array");
        *out = make_managed<DLManagedTensorVersioned>(std::move(ref), false);
    });
}

int exchange_to_object(DLManagedTensorVersioned* tensor, void** out) {
    return guarded([&] {
        TensorRef ref = adopt(tensor, "DLPack", {});
        if (!dlpack_hooks.from_tensor_ref)
            raise(ErrorKind::unsupported, "DLPack: no aicf.Array is made from outside");
        *out = dlpack_hooks.from_tensor_ref(std::move(ref));
        if (!*out) throw nb::python_error();
    });
}

/// What is handed out this way is complete: any stream may read it.
int exchange_work_stream(DLDeviceType, int32_t, void** out) {
    *out = nullptr;
    return 0;
}

}  // namespace

DLPackExchangeAPI exchange_table = {
    {kDLPackMajor, 3},  nullptr, exchange_allocate,   exchange_from_object,
    exchange_to_object, nullptr, exchange_work_stream};

std::optional<bool> optional_bool(nb::handle object, const char* what) {
    if (object.is_none()) return std::nullopt;
    if (!PyBool_Check(object.ptr()))
        throw nb::type_error(cat(what, " is ", shown(object), "; need None or a bool").c_str());
    return object.ptr() == Py_True;
}

ExportRequest export_request(Device own, bool read_only, nb::handle stream, nb::handle max_version,
                             nb::handle dl_device, nb::handle copy) {
    const auto pair = [](nb::handle object, const char* name) {
        const auto found = two_ints(object);
        if (!found)
            throw nb::type_error(cat("__dlpack__: ", name, " is ", shown(object),
                                     "; need None or a tuple of two ints")
                                     .c_str());
        return *found;
    };
    const bool told = !stream.is_none();
    int64_t asked = 0;
    if (told && !to_int(stream, asked))
        throw nb::type_error(
            cat("__dlpack__: stream is ", shown(stream), "; need None or an int").c_str());
    ExportRequest request;
    request.versioned =
        !max_version.is_none() && pair(max_version, "max_version").first >= int64_t{kDLPackMajor};
    const DLDevice device = dl_device_of(own);
    if (!dl_device.is_none()) {
        const auto [type, id] = pair(dl_device, "dl_device");
        request.to_host = type == kDLCPU && own.kind != Device::cpu;
        if (!request.to_host && (type != device.type || id != device.id))
            throw nb::buffer_error(
                cat("this Array is on ", to_string(own), "; copy it there first").c_str());
    }
    const std::optional<bool> copies = optional_bool(copy, "__dlpack__: copy");
    const bool must = copies.value_or(false);
    // An older consumer cannot be told that it may not write.
    request.copied = must || request.to_host || (read_only && !request.versioned);
    if (request.copied && !must && copies)
        throw nb::buffer_error("copy=False: this Array can only be given as a copy here");
    if (own.kind == Device::cpu || request.to_host) {
        if (told && asked != -1)
            throw nb::buffer_error("a CPU tensor has no stream; need stream=None");
        return request;
    }
    request.stream = told ? asked : 1;
    if (request.stream == 0 || request.stream < -1)
        throw nb::value_error("stream: need None, -1, 1, 2 or a stream's address");
    return request;
}

nb::object export_capsule(TensorRef ref, const ExportRequest& request) {
    return request.versioned
               ? make_capsule<DLManagedTensorVersioned, kVersioned>(std::move(ref), request.copied)
               : make_capsule<DLManagedTensor, kUnversioned>(std::move(ref), request.copied);
}

nb::tuple dlpack_device(Device own) {
    const DLDevice device = dl_device_of(own);
    return nb::make_tuple(int{device.type}, device.id);
}

nb::object exchange_api_capsule() {
    PyObject* capsule = PyCapsule_New(&exchange_table, kExchangeApi, nullptr);
    if (!capsule) throw nb::python_error();
    return nb::steal(capsule);
}

}  // namespace aicf
