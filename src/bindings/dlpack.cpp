// Taking tensors in by DLPack, buffers and Python numbers.
#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>

#include "bindings/dlpack_parts.h"
#include "bindings/interpreter.h"
#include "core/base/float_mode.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace aicf {

namespace {

constexpr int kMaxRoutes = 64;

/// How to import the objects of one type.
struct Route {
    nb::object type;    // kept alive, so that no other type takes its address
    nb::object is_neg;  // PyTorch's method, else empty
    const DLPackExchangeAPI* api = nullptr;
    bool own = false;        // is our Array, or derived from it
    bool tensor = false;     // has __dlpack__
    bool buffer = false;     // has the buffer protocol
    bool ndarray = false;    // is NumPy's, or derived from it
    bool immutable = false;  // may never be written, whatever its capsule says
};

/// Looked up once; never freed, as the interpreter is gone before static objects are.
struct Python {
    nb::object ndarray, empty, asarray, dtypes[kDTypes], names[kDTypes];
    Route routes[kMaxRoutes];
    int count = 0;
};

Python* python_made = nullptr;

Python& python() {
    static Python* instance = [] {
        auto made = std::make_unique<Python>();
        nb::module_ numpy = nb::module_::import_("numpy");
        made->ndarray = numpy.attr("ndarray");
        made->empty = numpy.attr("empty");
        made->asarray = numpy.attr("asarray");
        for (int i = 0; i < kDTypes; i++)
            if (auto dtype = static_cast<DType>(i); dtype != DType::bf16)
                made->dtypes[i] = numpy.attr("dtype")(dtype_name(dtype));
        return python_made = made.release();
    }();
    return *instance;
}

}  // namespace

void forget_types() {
    if (!python_made) return;
    for (Route& route : python_made->routes) route = {};  // no type may outlive its module
    for (nb::object& name : python_made->names) name.reset();
    python_made->count = kMaxRoutes;
}

nb::object python_dtype(DType dtype) {
    nb::object& made = python().names[static_cast<int>(dtype)];
    if (!made.is_valid())
        made = nb::module_::import_("aicf.dtypes").attr("DType")(dtype_name(dtype));
    return made;
}

std::string str_of(nb::handle object) {
    nb::str text(object);
    const char* utf8 = text.c_str();
    if (!utf8) PyErr_Clear();
    return utf8 ? utf8 : "?";
}

std::string type_of(nb::handle object) { return str_of(nb::type_name(object.type())); }

namespace {

/// The current Python error as ours; what is not about the tensor (KeyboardInterrupt, MemoryError)
/// stays itself.
[[noreturn]] void raise_python(const char* where, nb::handle object) {
    nb::python_error error;
    if (!error.matches(PyExc_Exception) || error.matches(PyExc_MemoryError)) throw error;
    std::string said = str_of(error.value());
    raise(ErrorKind::unsupported, where, ": this ", type_of(object),
          " cannot be exported: ", said.substr(0, said.find('\n')));  // PyTorch adds its C++ stack
}

Route make_route(nb::handle object) {
    nb::handle type = object.type();
    Route route;
    route.type = nb::borrow(type);
    std::string module = str_of(nb::getattr(type, "__module__", nb::str("")));
    route.tensor =
        nb::hasattr(type, "__dlpack__") && module != "numpy.ma";  // an export would lose the mask
    if (!route.tensor) return route;
    route.ndarray = nb::isinstance(object, python().ndarray);
    route.buffer = PyObject_CheckBuffer(object.ptr());
    route.immutable = module.starts_with("jax") || module.starts_with("tensorflow");
    if (nb::hasattr(type, "is_neg") && nb::hasattr(type, "resolve_neg"))
        route.is_neg = type.attr("is_neg");
    nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
    if (!PyCapsule_IsValid(capsule.ptr(), kExchangeApi)) return route;
    route.api =
        static_cast<const DLPackExchangeAPI*>(PyCapsule_GetPointer(capsule.ptr(), kExchangeApi));
    while (route.api && route.api->version.major > kDLPackMajor) route.api = route.api->previous;
    if (route.api && route.api->version.major != kDLPackMajor) route.api = nullptr;
    route.own = route.api == &exchange_table;
    return route;
}

/// The route of a known type; else of a new one, made in `scratch`.
const Route& find_route(nb::handle object, Route& scratch) {
    Python& py = python();
    nb::handle type = object.type();
    for (int i = 0; i < py.count; i++)
        if (py.routes[i].type.ptr() == type.ptr()) return py.routes[i];
    scratch = make_route(object);
    if (!scratch.tensor || py.count == kMaxRoutes) return scratch;
    return py.routes[py.count++] = scratch;
}

/// To C order, from strides in bytes and any alignment.
void copy_strided(char*& to, const char* from, const Dims& shape, const int64_t* byte_strides,
                  int64_t item, int axis = 0) {
    bool rows = axis < shape.rank();
    int64_t size = rows ? shape[axis] : 1, stride = rows ? byte_strides[axis] : item;
    if (axis + 1 < shape.rank()) {
        for (int64_t i = 0; i < size; i++)
            copy_strided(to, from + i * stride, shape, byte_strides, item, axis + 1);
    } else if (stride == item) {
        memcpy(to, from, size * item);
        to += size * item;
    } else {
        for (int64_t i = 0; i < size; i++, to += item)  // a known size is one move, not a call
            item == 4 ? memcpy(to, from + i * stride, 4) : memcpy(to, from + i * stride, item);
    }
}

void copy_into(void* to, const TensorRef& ref) {
    int64_t item = dtype_size(ref.dtype);
    Dims bytes = ref.strides;
    for (int i = 0; i < bytes.rank(); i++) bytes[i] *= item;
    char* out = static_cast<char*>(to);
    if (!ref.data) return;  // no elements
    if (is_contiguous(ref.shape, ref.strides))
        memcpy(out, ref.data, element_count(ref.shape) * item);
    else
        copy_strided(out, static_cast<const char*>(ref.data), ref.shape, bytes.begin(), item);
}

void check_rank(int rank, const char* where) {
    if (rank < 0 || rank > kMaxDims)
        raise(ErrorKind::shape, where, ": got ", rank, " dimensions; need 0 to ", kMaxDims);
}

/// Refuses more elements than can be counted, and those beyond either end of the addresses.
void check_span(const TensorRef& ref, const int64_t* byte_strides, const char* where) {
    __int128 low = reinterpret_cast<uintptr_t>(ref.data), high = low;
    for (int i = 0; i < ref.shape.rank(); i++) {
        const __int128 far = static_cast<__int128>(ref.shape[i] - 1) * byte_strides[i];
        (far < 0 ? low : high) += far;
    }
    if (element_count(ref.shape) > INT64_MAX / 16)  // their bytes are counted in 64 bits
        raise(ErrorKind::shape, where, ": ", type_string(ref.dtype, ref.shape),
              " has more than 2**63 / 16 elements; need fewer");
    if (low < 0 || high > static_cast<__int128>(UINTPTR_MAX) - dtype_size(ref.dtype))
        raise(ErrorKind::format, where, ": ", type_string(ref.dtype, ref.shape),
              " elements beyond the end of memory; need a tensor that lies in it");
}

/// Fills shape, strides and data; copies where strides in elements cannot say where the data is.
void place(TensorRef& ref, void* data, int rank, const int64_t* shape, const int64_t* byte_strides,
           const char* where, const ImportOptions& options) {
    check_rank(rank, where);
    int64_t item = dtype_size(ref.dtype);
    bool empty = false, odd = reinterpret_cast<uintptr_t>(data) % item != 0;
    Dims strides;
    for (int i = 0; i < rank; i++) {
        if (shape[i] < 0)
            raise(ErrorKind::format, where, ": axis ", i, " has size ", shape[i],
                  "; need 0 or more");
        empty |= shape[i] == 0;
        odd |= shape[i] > 1 && byte_strides[i] % item != 0;
        ref.shape.push(shape[i]);
        strides.push(shape[i] > 1 ? byte_strides[i] / item : 1);
    }
    if (!data && !empty)
        raise(ErrorKind::format, where, ": ", to_string(ref.shape), " elements at a NULL pointer");
    ref.strides = empty ? contiguous_strides(ref.shape) : strides;
    ref.data = data;
    if (!empty) check_span(ref, byte_strides, where);
    if (!odd || empty) return;
    const char* need = "; need an aligned tensor whose strides are whole elements";
    if (!options.allow_copy || ref.device.kind != Device::cpu)
        raise(ErrorKind::unsupported, where, ": unaligned ", type_string(ref.dtype, ref.shape),
              need);
    TensorRef copied = empty_tensor(ref.dtype, ref.shape);
    char* to = static_cast<char*>(copied.data);
    copy_strided(to, static_cast<const char*>(data), ref.shape, byte_strides, item);
    copied.read_only = true;
    ref = std::move(copied);
}

std::string text(DLDataType type) {
    static const char* names[] = {"int", "uint", "float", "opaque", "bfloat", "complex", "bool"};
    std::string name = type.code < 7
                           ? cat(names[type.code], int{type.bits})
                           : cat("the ", int{type.bits}, "-bit DLPack type ", int{type.code});
    return type.lanes == 1 ? name : cat(name, " in ", int{type.lanes}, " lanes");
}

std::string need_dtype() { return cat("; need one of ", dtype_names(), "; cast it"); }

DType dtype_of(DLDataType type, const char* where) {
    for (int i = 0; i < kDTypes; i++) {
        const auto dtype = static_cast<DType>(i);
        const DLDataType known = dl_dtype(dtype);
        if (type.code == known.code && type.bits == known.bits && type.lanes == 1) return dtype;
    }
    raise(ErrorKind::dtype, where, ": got ", text(type), need_dtype());
}

Device device_of(DLDevice device, const char* where) {
    if (device.type == kDLCPU || device.type == kDLCUDAHost) return {Device::cpu, 0};
    if (device.type == kDLCUDA || device.type == kDLCUDAManaged) return {Device::cuda, device.id};
    raise(ErrorKind::device_unavailable, where, ": got a tensor on DLPack device type ",
          int{device.type}, "; need one on the CPU or a CUDA device");
}

}  // namespace

TensorRef describe(const DLTensor& tensor, std::shared_ptr<void> owner, const char* where,
                   const ImportOptions& options) {
    TensorRef ref;
    ref.device = device_of(tensor.device, where);
    ref.dtype = dtype_of(tensor.dtype, where);
    ref.owner = std::move(owner);
    check_rank(tensor.ndim, where);
    if (tensor.ndim > 0 && !tensor.shape)
        raise(ErrorKind::format, where, ": a tensor without a shape");
    int64_t item = dtype_size(ref.dtype), strides[kMaxDims];
    int64_t dense = item;
    for (int i = tensor.ndim - 1; i >= 0; i--) {
        bool overflow = __builtin_mul_overflow(tensor.strides ? tensor.strides[i] : dense,
                                               tensor.strides ? item : 1, &strides[i]);
        overflow |= __builtin_mul_overflow(dense, std::max<int64_t>(tensor.shape[i], 1), &dense);
        if (overflow && tensor.shape[i] > 1)
            raise(ErrorKind::format, where, ": sizes beyond 64 bits");
    }
    auto data = reinterpret_cast<uintptr_t>(tensor.data);
    if (data && __builtin_add_overflow(data, tensor.byte_offset, &data))
        raise(ErrorKind::format, where, ": byte_offset is ", tensor.byte_offset,
              ", beyond the end of memory; need one inside the tensor");
    place(ref, reinterpret_cast<void*>(data), tensor.ndim, tensor.shape, strides, where, options);
    return ref;
}

namespace {

/// As describe(), of a tensor that has nothing unusual; else false.
bool place_plain(TensorRef& ref, const DLTensor& tensor) {
    constexpr int64_t kMost = int64_t{1} << 31;  // elements, and of a stride
    if (tensor.device.type != kDLCUDA) return false;
    if (tensor.ndim < 0 || tensor.ndim > kMaxDims || !tensor.data) return false;
    if (tensor.ndim > 0 && (!tensor.shape || !tensor.strides)) return false;
    int found = 0;
    for (; found < kDTypes; found++) {
        const DLDataType known = dl_dtype(static_cast<DType>(found));
        if (tensor.dtype.code == known.code && tensor.dtype.bits == known.bits) break;
    }
    if (found == kDTypes || tensor.dtype.lanes != 1) return false;
    ref.dtype = static_cast<DType>(found);
    ref.device = {Device::cuda, tensor.device.id};
    int64_t count = 1;
    for (int i = 0; i < tensor.ndim; i++) {
        const int64_t size = tensor.shape[i], stride = tensor.strides[i];
        if (size <= 0 || size > kMost || stride > kMost || stride < -kMost) return false;
        if ((count *= size) > kMost) return false;
        ref.shape.push(size);
        ref.strides.push(size > 1 ? stride : 1);
    }
    const uintptr_t at = reinterpret_cast<uintptr_t>(tensor.data) + tensor.byte_offset;
    ref.data = reinterpret_cast<void*>(at);
    return at % static_cast<uintptr_t>(dtype_size(ref.dtype)) == 0;
}

}  // namespace

template <class Managed>
TensorRef adopt(Managed* managed, const char* where, const ImportOptions& options) {
    std::shared_ptr<void> owner(managed, [](Managed* mine) {
        if (mine->deleter) with_python([&] { mine->deleter(mine); });
    });
    bool read_only = false;
    if constexpr (std::is_same_v<Managed, DLManagedTensorVersioned>) {
        if (managed->version.major != kDLPackMajor)
            raise(ErrorKind::unsupported, where, ": got DLPack version ", managed->version.major,
                  ".", managed->version.minor, "; need ", kDLPackMajor, ".x");
        read_only = managed->flags & kDLReadOnly;
    }
    TensorRef ref = describe(managed->dl_tensor, std::move(owner), where, options);
    ref.read_only |= read_only;
    return ref;
}

template TensorRef adopt(DLManagedTensorVersioned*, const char*, const ImportOptions&);

namespace {

struct BufferOwner {
    Py_buffer view{};
    ~BufferOwner() {
        if (view.obj) with_python([&] { PyBuffer_Release(&view); });
    }
};

/// The dtype of a buffer in native byte order: struct's format characters.
std::optional<DType> parse_format(const char* format, int64_t item) {
    constexpr bool little = std::endian::native == std::endian::little;
    if (!format) return DType::u8;
    if (*format == '@' || *format == '=' || *format == (little ? '<' : '>')) format++;
    if (!*format || format[1]) return std::nullopt;
    static constexpr std::string_view letters = "fde?Bbh";
    static constexpr DType dtypes[] = {DType::f32, DType::f64, DType::f16, DType::boolean,
                                       DType::u8,  DType::i8,  DType::i16};
    if (size_t at = letters.find(*format); at != letters.npos) return dtypes[at];
    bool whole = *format == 'i' || *format == 'l' || *format == 'q';
    if (!whole) return std::nullopt;
    return item == 8 ? DType::i64 : DType::i32;
}

/// Through the buffer protocol, as `as` where given; false where the object has no buffer of a
/// known dtype.
bool from_buffer(nb::handle object, std::optional<DType> as, TensorRef& ref, const char* where,
                 const ImportOptions& options) {
    auto owner = std::make_shared<BufferOwner>();
    Py_buffer& view = owner->view;
    if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_STRIDES | PyBUF_FORMAT)) {
        view.obj = nullptr;
        if (PyErr_ExceptionMatches(PyExc_MemoryError)) throw nb::python_error();
        PyErr_Clear();
        return false;
    }
    std::optional<DType> dtype = as ? as : parse_format(view.format, view.itemsize);
    if (!dtype) return false;
    static_assert(sizeof(Py_ssize_t) == sizeof(int64_t));
    ref.dtype = *dtype;
    ref.read_only = view.readonly;
    ref.owner = std::move(owner);
    place(ref, view.buf, view.ndim, reinterpret_cast<int64_t*>(view.shape),
          reinterpret_cast<int64_t*>(view.strides), where, options);
    return true;
}

/// NumPy arrays whose dtype has no buffer format we know: ml_dtypes' bfloat16, else an error.
TensorRef from_extension_array(nb::handle object, const char* where, const ImportOptions& options) {
    std::string dtype = str_of(object.attr("dtype"));
    TensorRef ref;
    if (dtype == "bfloat16" &&
        from_buffer(object.attr("view")("uint16"), DType::bf16, ref, where, options))
        return ref;
    raise(ErrorKind::dtype, where, ": got ", dtype, need_dtype());
}

/// Through the exchange API, which orders no streams: false where the producer has to.
bool from_exchange(nb::handle object, const Route& route, TensorRef& ref, const char* where,
                   const ImportOptions& options) {
    DLManagedTensorVersioned* managed = nullptr;
    if (route.api->from_object(object.ptr(), &managed)) raise_python(where, object);
    if (!managed)
        raise(ErrorKind::format, where, ": ", type_of(object), " exported no tensor at all");
    ref = adopt(managed, where, options);
    if (ref.device.kind == Device::cpu || options.consumer_stream == -1) return true;
    void* now = nullptr;
    if (route.api->current_work_stream(kDLCUDA, ref.device.index, &now))
        raise_python(where, object);
    auto number = [](intptr_t stream) { return stream ? stream : 1; };
    return number(reinterpret_cast<intptr_t>(now)) == number(options.consumer_stream);
}

}  // namespace

bool to_int(nb::handle object, int64_t& number) {
    if (PyBool_Check(object.ptr())) return false;
    const nb::object whole = nb::steal(PyNumber_Index(object.ptr()));
    if (!whole.is_valid()) return PyErr_Clear(), false;
    int overflow = 0;
    number = PyLong_AsLongLongAndOverflow(whole.ptr(), &overflow);
    return overflow == 0;
}

std::optional<std::pair<int64_t, int64_t>> two_ints(nb::handle object) {
    PyObject* o = object.ptr();
    std::pair<int64_t, int64_t> found;
    if (!PyTuple_Check(o) || PyTuple_Size(o) != 2 || !to_int(PyTuple_GetItem(o, 0), found.first) ||
        !to_int(PyTuple_GetItem(o, 1), found.second))
        return std::nullopt;
    return found;
}

std::string shown(nb::handle object) {
    nb::object text = nb::steal(PyObject_Repr(object.ptr()));
    if (!text.is_valid()) {
        PyErr_Clear();
        return "a " + type_of(object);
    }
    std::string found = str_of(text);
    return found.size() > 100 ? found.substr(0, 100) + "..." : found;
}

namespace {

nb::object call_dlpack(nb::handle object, const char* where, const ImportOptions& options) {
    nb::object method = object.attr("__dlpack__");
    nb::dict keywords, none;
    if (nb::hasattr(object, "__dlpack_device__")) {
        nb::object device = object.attr("__dlpack_device__")();
        const auto said = two_ints(device);
        if (!said)
            raise(ErrorKind::format, where, ": __dlpack_device__ of ", type_of(object),
                  " returned ", shown(device), "; need a tuple (device type, device id)");
        const int64_t type = said->first;
        // Some producers order nothing unless told a stream; the legacy one orders all of ours.
        if (type == kDLCUDA || type == kDLCUDAManaged)
            none["stream"] = keywords["stream"] =
                options.consumer_stream ? options.consumer_stream : 1;
    }
    keywords["max_version"] = nb::make_tuple(kDLPackMajor, 1);
    try {
        return method(**keywords);
    } catch (nb::python_error& error) {
        if (!error.matches(PyExc_TypeError)) throw;
    }
    return method(**none);  // from before DLPack 1.0
}

TensorRef from_capsule(nb::handle object, const char* where, const ImportOptions& options) {
    nb::object capsule;
    try {
        capsule = call_dlpack(object, where, options);
    } catch (nb::python_error& error) {
        error.restore();
        raise_python(where, object);
    }
    if (PyCapsule_IsValid(capsule.ptr(), kVersioned)) {
        auto* managed =
            static_cast<DLManagedTensorVersioned*>(PyCapsule_GetPointer(capsule.ptr(), kVersioned));
        PyCapsule_SetName(capsule.ptr(), "used_dltensor_versioned");
        return adopt(managed, where, options);
    }
    if (PyCapsule_IsValid(capsule.ptr(), kUnversioned)) {
        auto* managed =
            static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), kUnversioned));
        PyCapsule_SetName(capsule.ptr(), "used_dltensor");
        return adopt(managed, where, options);
    }
    raise(ErrorKind::format, where, ": __dlpack__ of ", type_of(object),
          " returned no unused DLPack capsule");
}

/// True for what could be the imaginary parts of complex numbers: they lie two elements apart.
bool may_be_part(const TensorRef& ref) {
    for (int i = 0; i < ref.shape.rank(); i++)
        if (ref.shape[i] > 1 && ref.strides[i] % 2) return false;
    return is_float(ref.dtype);
}

/// PyTorch exports a lazily negated view (`x.conj().imag`) without its sign.
void refuse_negative(nb::handle object, const Route& route, const char* where) {
    if (nb::cast<bool>(route.is_neg(object)))
        raise(ErrorKind::unsupported, where,
              ": got a view with the negative bit set; need tensor.resolve_neg()");
}

/// Copies Python numbers, row by row, to where `wanted` elements stand; false at anything but a
/// number.
bool fill(nb::handle object, DType wanted, const Dims& shape, int axis, char*& to,
          const char* where) {
    PyObject* o = object.ptr();
    bool list = PyList_Check(o);
    if (axis < shape.rank()) {
        Py_ssize_t size = list ? PyList_Size(o) : PyTuple_Check(o) ? PyTuple_Size(o) : -1;
        if (size != shape[axis])
            raise(ErrorKind::shape, where, ": rows of different lengths; need a regular nesting");
        for (Py_ssize_t i = 0; i < size; i++)
            if (!fill(list ? PyList_GetItem(o, i) : PyTuple_GetItem(o, i), wanted, shape, axis + 1,
                      to, where))
                return false;
        return true;
    }
    if (list || PyTuple_Check(o))
        raise(ErrorKind::shape, where, ": rows of different depths; need a regular nesting");
    bool truth = PyBool_Check(o), whole = PyLong_Check(o) && !truth, real = PyFloat_Check(o);
    if (!truth && !whole && !real) return false;
    if (!(is_float(wanted) ? whole || real : is_integer(wanted) ? whole : truth))
        raise(ErrorKind::dtype, where, ": got a Python ",
              truth   ? "bool"
              : whole ? "int"
                      : "float",
              ", need ", dtype_name(wanted), "; cast it");
    auto put = [&to](auto value) {
        memcpy(to, &value, sizeof value);
        to += sizeof value;
    };
    if (!is_float(wanted)) {
        int overflow = 0;
        long long value = PyLong_AsLongLongAndOverflow(o, &overflow);
        const auto [low, high] = range_of(wanted);
        if (overflow || value < low || value > high)
            raise(ErrorKind::dtype, where, ": ", str_of(object), " does not fit ",
                  dtype_name(wanted), "; need ", low, " to ", high);
        switch (wanted) {
#define AICF_PUT(dtype, type)          \
    case DType::dtype:                 \
        put(static_cast<type>(value)); \
        break;
            AICF_INTEGERS(AICF_PUT)
#undef AICF_PUT
            default:
                put(value != 0);
        }
        return true;
    }
    double value = real ? PyFloat_AsDouble(o) : PyLong_AsDouble(o);
    if (PyErr_Occurred()) {
        PyErr_Clear();
        raise(ErrorKind::dtype, where, ": an int too large for ", dtype_name(wanted),
              "; need one that it holds");
    }
    if (wanted == DType::f64) put(value);
    if (wanted == DType::f32) put(static_cast<float>(value));
    if (wanted == DType::f16) put(float_to_half(static_cast<float>(value)));
    if (wanted == DType::bf16) put(float_to_bfloat(static_cast<float>(value)));
    return true;
}

}  // namespace

TensorRef empty_tensor(DType dtype, const Dims& shape) {
    bool none = std::find(shape.begin(), shape.end(), 0) != shape.end(), overflow = false;
    uint64_t bytes = none ? 0 : dtype_size(dtype);
    for (int64_t size : shape) overflow |= __builtin_mul_overflow(bytes, size, &bytes);
    TensorRef ref;
    ref.dtype = dtype;
    ref.shape = shape;
    if (!overflow) ref.data = std::aligned_alloc(kAlign, (bytes / kAlign + 1) * kAlign);
    if (!ref.data)
        raise(ErrorKind::out_of_memory, "no memory for a copy of ", type_string(dtype, shape));
    ref.strides = contiguous_strides(shape);
    ref.owner.reset(ref.data, std::free);
    return ref;
}

TensorRef copy_tensor(const TensorRef& ref) {
    check(ref.device.kind == Device::cpu, "copy_tensor: not a CPU tensor");
    TensorRef copied = empty_tensor(ref.dtype, ref.shape);
    copy_into(copied.data, ref);
    return copied;
}

bool is_tensor(nb::handle object) {
    Route scratch;
    return find_route(object, scratch).tensor;
}

TensorRef import_tensor(nb::handle object, const char* where, const ImportOptions& options) {
    TensorRef ref;
    Route scratch;
    const Route& route = find_route(object, scratch);
    if (route.own && dlpack_hooks.as_tensor_ref(object.ptr(), &ref)) return ref;
    if (!route.tensor)
        raise(ErrorKind::dtype, where, ": got ", type_of(object),
              "; need a tensor: an object with __dlpack__");
    if (route.buffer && from_buffer(object, {}, ref, where, options)) {
        ref.read_only |= route.immutable;
        return ref;
    }
    if (route.ndarray) return from_extension_array(object, where, options);
    if (!route.api || !from_exchange(object, route, ref, where, options)) {
        nb::object source = nb::borrow(object);
        if (route.is_neg)
            source = object.attr("detach")();  // __dlpack__ refuses one that requires grad
        ref = from_capsule(source, where, options);
    }
    if (route.is_neg && may_be_part(ref)) refuse_negative(object, route, where);
    ref.read_only |= route.immutable;
    return ref;
}

std::optional<intptr_t> work_stream(nb::handle object) {
    Route scratch;
    const Route& route = find_route(object, scratch);
    if (!route.api || route.own) return std::nullopt;
    DLTensor seen;
    if (route.api->view_object) {
        if (route.api->view_object(object.ptr(), &seen)) return PyErr_Clear(), std::nullopt;
    } else {
        DLManagedTensorVersioned* managed = nullptr;
        if (route.api->from_object(object.ptr(), &managed)) return PyErr_Clear(), std::nullopt;
        if (!managed) return std::nullopt;
        seen = managed->dl_tensor;
        if (managed->deleter) managed->deleter(managed);
    }
    void* now = nullptr;
    if (seen.device.type != kDLCUDA) return std::nullopt;
    if (route.api->current_work_stream(kDLCUDA, seen.device.id, &now))
        return PyErr_Clear(), std::nullopt;
    const auto stream = reinterpret_cast<intptr_t>(now);
    return stream ? stream : 1;
}

bool peek_tensor(nb::handle object, TensorRef& ref, CurrentStream& known) {
    Route scratch;
    const Route& route = find_route(object, scratch);
    if (!route.api || route.own) return false;
    const auto failed = [] { return PyErr_Clear(), false; };
    const auto current = [&](const DLDevice& device) {
        if (device.type != kDLCUDA) return false;
        if (known.of != route.api || known.device != device.id) {
            void* now = nullptr;
            if (route.api->current_work_stream(device.type, device.id, &now)) return failed();
            const auto stream = reinterpret_cast<intptr_t>(now);
            known = {route.api, device.id, stream ? stream : 1};
        }
        ref.stream = known.stream;
        return true;
    };
    if (route.api->view_object && route.is_neg) {  // only PyTorch's are known to be writable
        DLTensor seen;
        if (route.api->view_object(object.ptr(), &seen)) return failed();
        if (!place_plain(ref, seen) || !current(seen.device)) return false;
    } else {
        DLManagedTensorVersioned* managed = nullptr;
        if (route.api->from_object(object.ptr(), &managed)) return failed();
        if (!managed) return false;
        try {
            ref = adopt(managed, "op_call", {});
        } catch (const Error&) {  // to be told with the operand's name
            return false;
        }
        if (ref.device.kind != Device::cuda || !current({kDLCUDA, ref.device.index})) return false;
    }
    if (route.is_neg && may_be_part(ref)) return false;
    ref.read_only |= route.immutable;
    return true;
}

TensorRef numpy_like(nb::handle object, DType wanted, const char* where) {
    Dims shape;
    for (nb::object first = nb::borrow(object);
         PyList_Check(first.ptr()) || PyTuple_Check(first.ptr());) {
        if (shape.rank() == kMaxDims)
            raise(ErrorKind::shape, where, ": lists more than ", kMaxDims,
                  " deep; need at most that");
        shape.push(static_cast<int64_t>(nb::len(first)));
        if (shape[shape.rank() - 1] == 0) break;
        first = first[0];
    }
    TensorRef ref = empty_tensor(wanted, shape);
    char* to = static_cast<char*>(ref.data);
    {
        const FloatMode mode;
        if (fill(object, wanted, shape, 0, to, where)) return ref;
    }
    if (nb::hasattr(object, "mask") && nb::hasattr(object, "filled"))
        raise(ErrorKind::dtype, where,
              ": got a masked array, whose mask would be lost; need it filled");
    nb::object array;
    try {
        array = python().asarray(object);
    } catch (nb::python_error& error) {
        error.restore();
        raise_python(where, object);
    }
    ref = import_tensor(array, where);
    if (ref.dtype != wanted)
        raise(ErrorKind::dtype, where, ": got ", type_string(ref.dtype, ref.shape), ", need ",
              dtype_name(wanted), "; cast it");
    return ref;
}

std::optional<intptr_t> producer_stream(nb::handle object, Device device) {
    Route scratch;
    const Route& route = find_route(object, scratch);
    if (!route.api) return std::nullopt;
    void* stream = nullptr;
    if (route.api->current_work_stream(device.kind == Device::cpu ? kDLCPU : kDLCUDA, device.index,
                                       &stream))
        throw nb::python_error();
    return reinterpret_cast<intptr_t>(stream);
}

nb::object to_numpy(const TensorRef& ref, bool writable) {
    check(ref.device.kind == Device::cpu, "to_numpy: not a CPU tensor");
    bool widen = ref.dtype == DType::bf16;
    nb::object shape = nb::steal(PyTuple_New(ref.shape.rank()));
    if (!shape) throw nb::python_error();
    for (int i = 0; i < ref.shape.rank(); i++) {
        PyObject* size = PyLong_FromLongLong(ref.shape[i]);
        if (!size) throw nb::python_error();
        PyTuple_SetItem(shape.ptr(), i, size);
    }
    nb::object array =
        python().empty(shape, python().dtypes[static_cast<int>(widen ? DType::f32 : ref.dtype)]);
    BufferOwner target;
    if (PyObject_GetBuffer(array.ptr(), &target.view, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS))
        throw nb::python_error();
    copy_into(target.view.buf, ref);
    if (widen) {
        // In place, last element first: each bfloat16 is read before its wider form covers it.
        char* data = static_cast<char*>(target.view.buf);
        for (int64_t i = element_count(ref.shape) - 1; i >= 0; i--) {
            uint16_t bits;
            memcpy(&bits, data + 2 * i, 2);
            float value = bfloat_to_float(bits);
            memcpy(data + 4 * i, &value, 4);
        }
    }
    if (!writable) array.attr("setflags")("write"_a = false);
    return array;
}

}  // namespace aicf
