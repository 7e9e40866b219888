// Arrays and outputs that come out of a step.
#include "bindings/array.h"

namespace aicf {

namespace {

Device device_of(const Array& array) { return array.step ? array.step->device() : Device{}; }

/// The tensor where it lies, all work on it done: a live leaf, or a copy of an output.
TensorRef dlpack_ref(const Array& array) {
    if (!array.step || (array.leaf == kNone && device_of(array).kind == Device::cpu))
        return array.read();
    if (array.apart()) {
        GilRelease release;
        array.step->synchronize();
        return array.tensor;
    }
    if (array.leaf == kNone) {
        TensorRef copy = array.snapshot();
        GilRelease release;
        array.step->synchronize();
        return copy;
    }
    GilRelease release;
    array.step->synchronize();
    return array.step->view(array.leaf);
}

nb::object to_dlpack(const Array& array, const ExportRequest& request) {
    const bool live = array.step && array.leaf != kNone;
    if (device_of(array).kind == Device::cpu) {
        TensorRef ref = dlpack_ref(array);
        return export_capsule(request.copied && (live || !array.step) ? copy_tensor(ref) : ref,
                              request);
    }
    if (request.to_host) return export_capsule(array.read(), request);
    TensorRef ref;
    if (live && !request.copied) {
        GilRelease release;
        ref = array.step->view(array.leaf);
    } else {
        ref = array.snapshot();
    }
    if (request.stream != -1) {
        GilRelease release;
        ref.owner = array.step->lend(std::move(ref.owner), request.stream);
    }
    return export_capsule(std::move(ref), request);
}

bool array_hook(PyObject* object, TensorRef* out) {
    if (!nb::isinstance<Array>(nb::handle(object))) return false;
    *out = dlpack_ref(object_of<Array>(object));
    return true;
}

PyObject* array_from_hook(TensorRef ref) { return nb::cast(array_of(ref)).release().ptr(); }

/// One element as a Python number; of an output that keeps steps none is the one.
nb::object item(const Array& a, const char* asked) {
    if (!a.apart() && a.leaf == kNone && a.step->output(a.output).keep > 1)
        raise(ErrorKind::shape, asked, " of output \"", a.output, "\", which keeps the last ",
              a.step->output(a.output).keep,
              " steps, oldest first; need one of them, the newest is [-1]");
    if (element_count(a.type().shape) != 1)
        raise(ErrorKind::shape, asked, " of an Array ", to_string(a.type()),
              "; need one element, or numpy()");
    return to_numpy(a.read(), true).attr("item")();
}

/// What print() shows: the contents, as NumPy writes them.
nb::str printed(const Array& a) { return nb::str(to_numpy(a.read(), true)); }

/// A copy in host memory.
Array host_copy(const Array& a) { return array_of(a.step ? a.read() : copy_tensor(a.tensor)); }

/// An operation of Python with a NumPy copy for the Array: what the other operand is decides as
/// it does beside NumPy's arrays.
nb::object with_numpy(const Array& a, nb::handle other, bool reversed,
                      PyObject* (*operation)(PyObject*, PyObject*)) {
    const nb::object own = to_numpy(a.read(), true);
    const nb::object its = nb::isinstance<Array>(other)
                               ? to_numpy(object_of<Array>(other).read(), true)
                               : nb::borrow(other);
    PyObject* result = reversed ? operation(its.ptr(), own.ptr()) : operation(own.ptr(), its.ptr());
    if (!result) throw nb::python_error();
    return nb::steal(result);
}

PyObject* power(PyObject* a, PyObject* b) { return PyNumber_Power(a, b, Py_None); }
template <int kind>
PyObject* compared(PyObject* a, PyObject* b) {
    return PyObject_RichCompare(a, b, kind);
}

struct Operator {
    const char* name;
    PyObject* (*operation)(PyObject*, PyObject*);
};

const Operator kCompared[] = {
    {"eq", compared<Py_EQ>}, {"ne", compared<Py_NE>}, {"lt", compared<Py_LT>},
    {"le", compared<Py_LE>}, {"gt", compared<Py_GT>}, {"ge", compared<Py_GE>},
};

const Operator kBinary[] = {
    {"add", PyNumber_Add},
    {"sub", PyNumber_Subtract},
    {"mul", PyNumber_Multiply},
    {"truediv", PyNumber_TrueDivide},
    {"floordiv", PyNumber_FloorDivide},
    {"mod", PyNumber_Remainder},
    {"divmod", PyNumber_Divmod},
    {"pow", power},
    {"matmul", PyNumber_MatrixMultiply},
    {"and", PyNumber_And},
    {"or", PyNumber_Or},
    {"xor", PyNumber_Xor},
    {"lshift", PyNumber_Lshift},
    {"rshift", PyNumber_Rshift},
};

// Of NumPy's arrays; what changes one in place or shows its memory is left out, for it would be
// that of a copy.
const char* const kMethods[] = {
    "all",     "any",          "argmax",    "argmin",   "argsort", "astype",   "clip",
    "conj",    "cumprod",      "cumsum",    "diagonal", "dot",     "flatten",  "max",
    "mean",    "min",          "nonzero",   "prod",     "ravel",   "repeat",   "reshape",
    "round",   "searchsorted", "squeeze",   "std",      "sum",     "swapaxes", "take",
    "tobytes", "trace",        "transpose", "var",      "view",
};

/// TypeError where an option has PyTorch's name.
void check_options(const char* method, const nb::kwargs& named) {
    for (auto [theirs, ours] : {std::pair{"dim", "axis"}, std::pair{"keepdim", "keepdims"}})
        if (named.contains(theirs))
            throw nb::type_error(cat("aicf.Array.", method, ": there is no argument \"", theirs,
                                     "\" (is it \"", ours, "\"?)")
                                     .c_str());
}

/// What an Array has of NumPy's arrays.
void bind_numpy(nb::class_<Array>& array) {
    const auto operators = [&array](const Operator& one, bool reversed) {
        const std::string name = cat("__", reversed ? "r" : "", one.name, "__");
        array.def(
            name.c_str(),
            [operation = one.operation, reversed](const Array& a, nb::handle other) {
                return with_numpy(a, other, reversed, operation);
            },
            nb::arg("other").none(),
            nb::sig(cat("def ", name, "(self, other: object, /) -> typing.Any").c_str()));
    };
    for (const Operator& one : kCompared) operators(one, false);
    for (const Operator& one : kBinary) {
        operators(one, false);
        operators(one, true);
    }
    array.attr("__hash__") = nb::none();  // equality compares elements
    for (const char* unary : {"__neg__", "__pos__", "__abs__", "__invert__", "tolist"})
        array.def(
            unary,
            [unary](const Array& a, const nb::args& rest, const nb::kwargs& named) {
                refuse_rest(unary, "none", rest, named);
                return nb::object(to_numpy(a.read(), true).attr(unary)());
            },
            nb::arg("rest"), nb::arg("named"),
            nb::sig(cat("def ", unary, "(self) -> typing.Any").c_str()));
    array.def(
        "__contains__",
        [](const Array& a, nb::handle element) {
            return nb::object(to_numpy(a.read(), true).attr("__contains__")(element));
        },
        nb::arg("element").none(), nb::sig("def __contains__(self, element: object, /) -> bool"));
    for (const char* method : kMethods)
        array.def(
            method,
            [method](const Array& a, const nb::args& args, const nb::kwargs& named) {
                check_options(method, named);
                return nb::object(to_numpy(a.read(), true).attr(method)(*args, **named));
            },
            nb::sig(cat("def ", method, "(self, *args: object, **kwargs: object) -> typing.Any")
                        .c_str()),
            "NumPy's, of a copy.");
    for (const char* part : {"T", "flat", "imag", "mT", "real"})
        array.def_prop_ro(
            part,
            [part](const Array& a) { return nb::object(to_numpy(a.read(), true).attr(part)); },
            nb::sig(cat("def ", part, "(self) -> typing.Any").c_str()), "NumPy's, of a copy.");
    array.def_prop_ro(
        "size", [](const Array& a) { return element_count(a.type().shape); },
        "How many elements it has.");
    array.def_prop_ro(
        "itemsize", [](const Array& a) { return dtype_size(a.type().dtype); },
        "Bytes of an element.");
    array.def_prop_ro(
        "nbytes", [](const Array& a) { return byte_count(a.type()); }, "Bytes of all elements.");
    array.def(
        "__format__",
        [](const Array& a, const nb::str& spec) {
            const bool one = a.type().shape.rank() == 0;
            if (nb::len(spec) == 0) return nb::object(printed(a));
            const nb::object value =
                one ? nb::object(item(a, "format()")) : to_numpy(a.read(), true);
            return nb::object(value.attr("__format__")(spec));
        },
        nb::sig("def __format__(self, spec: str, /) -> str"));
    array.def(
        "__getattr__",
        [](const Array&, const nb::str& name) -> nb::object {
            // NumPy asks for many such names, and one (2.4's __array_wrap__) may not fail
            // otherwise.
            if (std::string_view(name.c_str()).starts_with("_")) {
                PyErr_Format(PyExc_AttributeError, "aicf.Array has no attribute '%U'", name.ptr());
                throw nb::python_error();
            }
            const std::string near = nb::cast<std::string>(
                nb::module_::import_("aicf.arguments")
                    .attr("is_it")(
                        name, nb::module_::import_("builtins").attr("dir")(nb::type<Array>())));
            throw nb::attribute_error(cat("aicf.Array has no attribute '", name.c_str(), "'", near,
                                          "; need numpy(), or what it has of NumPy's arrays")
                                          .c_str());
        },
        nb::arg("name"));
}

bool has_output(const Outputs& o, nb::handle name) {
    std::string text;
    if (!text_of(name, text)) return false;
    const auto& outputs = o.step->plan().outputs;
    return std::any_of(outputs.begin(), outputs.end(),
                       [&](const auto& output) { return output.name == text; });
}

nb::list output_names(const Outputs& o) {
    nb::list names;
    for (const auto& output : o.step->plan().outputs) names.append(output.name);
    return names;
}

}  // namespace

Array array_of(const TensorRef& tensor) {
    Array array;
    array.tensor = tensor;
    return array;
}

Outputs outputs_of(nb::handle self, Step& step, uint64_t generation) {
    return {nb::borrow(self), &step, generation};
}

Array output_array(const Outputs& o, nb::handle name) {
    Array result;
    result.owner = o.owner;
    result.step = o.step;
    result.output = name_of(name);
    o.step->output(result.output);
    result.generation = o.generation;
    return result;
}

Array kept(const Array& a) {
    if (device_of(a).kind == Device::cpu) return host_copy(a);
    Array result;
    result.owner = a.owner;
    result.step = a.step;
    result.tensor = a.snapshot();
    return result;
}

std::string name_of(nb::handle object) {
    std::string name;
    if (!text_of(object, name)) name = repr_of(object);
    return name;
}

bool is_step_output(nb::handle object) {
    if (!nb::isinstance<Array>(object)) return false;
    const Array& array = object_of<Array>(object);
    return array.step && array.leaf == kNone;
}

void bind_array(nb::module_& m) {
    dlpack_hooks.as_tensor_ref = array_hook;
    dlpack_hooks.from_tensor_ref = array_from_hook;

    nb::class_<Array> array(m, "Array",
                            "A tensor that a step hands out: NumPy and DLPack read it. It compares "
                            "as NumPy's, element by element; bool() needs one element.");
    array
        .def_prop_ro(
            "shape", [](const Array& a) { return nb::tuple(nb::cast(a.type().shape.vector())); },
            "The extent of each axis; of an output that keeps steps, how many it has first.")
        .def_prop_ro(
            "dtype", [](const Array& a) { return python_dtype(a.type().dtype); },
            nb::sig("def dtype(self) -> str"),
            "NumPy's name of it, or \"bfloat16\"; it equals the dtypes of NumPy, PyTorch and JAX.")
        .def_prop_ro(
            "device",
            [](const Array& a) { return to_string(a.step ? a.step->device() : a.tensor.device); },
            "\"cpu\" or \"cuda:<index>\".")
        .def_prop_ro(
            "ndim", [](const Array& a) { return a.type().shape.rank(); }, "How many axes it has.")
        .def(
            "numpy", [](const Array& a) { return to_numpy(a.read(), true); },
            nb::sig("def numpy(self) -> numpy.ndarray"),
            "A NumPy copy; bfloat16 comes as float32, which is exact. Raises StaleOutput for an "
            "output of an earlier step.")
        .def(
            "__array__",
            [](const Array& a, nb::handle dtype, nb::handle copy, const nb::args& rest,
               const nb::kwargs& named) {
                refuse_rest("__array__", "dtype and copy", rest, named);
                if (optional_bool(copy, "__array__: copy") == false)
                    throw nb::value_error(
                        "aicf.Array: NumPy needs a copy; use copy=None or copy=True");
                nb::object result = to_numpy(a.read(), true);
                return dtype.is_none() ? result : result.attr("astype")(dtype);
            },
            nb::arg("dtype").none() = nb::none(), nb::arg("copy").none() = nb::none(),
            nb::arg("rest"), nb::arg("named"),
            nb::sig("def __array__(self, dtype: object | None = None, copy: object | None = None) "
                    "-> object"))
        .def("_keep", kept,
             "A copy that later runs leave alone, on the step's device and in the order of its "
             "work: nothing waits.")
        .def("copy", bare<Array>("copy", host_copy), nb::sig("def copy(self) -> Array"),
             "An Array that owns a copy in host memory.")
        .def(
            "item",
            [](const Array& a, const nb::args& at) {
                if (at.size() == 0) return item(a, "item()");
                return nb::object(to_numpy(a.read(), true).attr("item")(*at));
            },
            nb::sig("def item(self, *at: int) -> typing.Any"),
            "The one element, or that at an index, as a Python number. Raises ShapeError when "
            "there are more.")
        .def("__float__",
             [](const Array& a) { return nb::cast<double>(nb::float_(item(a, "float()"))); })
        .def("__int__", [](const Array& a) { return nb::int_(item(a, "int()")); })
        .def("__bool__", [](const Array& a) { return nb::bool_(item(a, "bool()")); })
        .def(
            "__index__",
            [](const Array& a) {
                const bool one = a.type().shape.rank() == 0;
                nb::object number = one ? item(a, "index()") : nb::none();
                if (!PyLong_CheckExact(number.ptr()))
                    throw nb::type_error(cat("aicf.Array ", to_string(a.type()),
                                             " is no index; need a whole number of rank 0")
                                             .c_str());
                return number;
            },
            nb::sig("def __index__(self) -> int"))
        .def(
            "__round__",
            [](const Array& a, nb::handle digits) {
                return nb::object(item(a, "round()").attr("__round__")(digits));
            },
            nb::arg("ndigits").none() = nb::none(),
            nb::sig("def __round__(self, ndigits: object | None = None) -> typing.Any"))
        .def("__getitem__",
             [](const Array& a, nb::handle key) {
                 return nb::object(to_numpy(a.read(), true)[key]);
             })
        .def(
            "__setitem__",
            [](const Array& a, nb::handle, nb::handle) {
                const std::string name =
                    a.leaf == kNone ? std::string() : a.step->plan().values[a.leaf].name;
                raise(ErrorKind::graph, "Array: elements of ",
                      name.empty() ? "what a step hands out" : cat("\"", name, "\""),
                      " cannot be assigned, reading makes a copy; ",
                      name.empty()
                          ? "change what numpy() gives"
                          : cat("assign the whole, as in step.params[\"", name, "\"] = array"));
            },
            nb::arg("key").none(), nb::arg("value").none(),
            nb::sig("def __setitem__(self, key: object, value: object, /) -> None"))
        .def(
            "__iter__", [](const Array& a) { return nb::iter(to_numpy(a.read(), true)); },
            nb::sig("def __iter__(self) -> collections.abc.Iterator[typing.Any]"))
        .def("__len__",
             [](const Array& a) {
                 if (a.type().shape.rank() == 0)
                     throw nb::type_error("aicf.Array: len() of a rank-0 array");
                 return a.type().shape[0];
             })
        .def("__copy__", host_copy, nb::sig("def __copy__(self) -> Array"))
        .def(
            "__deepcopy__", [](const Array& a, nb::handle) { return host_copy(a); },
            nb::arg("memo"), nb::sig("def __deepcopy__(self, memo: object) -> Array"))
        .def(
            "__reduce__",
            [](const Array& a) {
                return nb::object(to_numpy(a.read(), true).attr("__reduce__")());
            },
            nb::sig("def __reduce__(self) -> tuple[typing.Any, ...]"),
            "What pickle keeps: a NumPy array.")
        .def(
            "__jax_array__",
            [](const Array& a) {
                const nb::object jax = nb::module_::import_("jax.dlpack");
                return nb::object(jax.attr("from_dlpack")(kept(a)));
            },
            nb::sig("def __jax_array__(self) -> typing.Any"), "A copy, on the device of the step.")
        .def("__repr__",
             [](const Array& a) {
                 return cat("aicf.Array(", to_string(a.type()), ", ",
                            to_string(a.step ? a.step->device() : a.tensor.device), ")");
             })
        .def("__str__", printed)
        .def(
            "__dlpack__",
            [](const Array& a, const nb::args& rest, nb::handle stream, nb::handle max_version,
               nb::handle dl_device, nb::handle copy, const nb::kwargs& named) {
                refuse_rest("__dlpack__", "stream, max_version, dl_device and copy by name", rest,
                            named);
                const bool read_only = a.step && a.leaf != kNone;
                return to_dlpack(a, export_request(device_of(a), read_only, stream, max_version,
                                                   dl_device, copy));
            },
            nb::arg("rest"), nb::arg("stream").none() = nb::none(),
            nb::arg("max_version").none() = nb::none(), nb::arg("dl_device").none() = nb::none(),
            nb::arg("copy").none() = nb::none(), nb::arg("named"),
            nb::sig("def __dlpack__(self, *, stream: object | None = None, max_version: object | "
                    "None = None, dl_device: object | None = None, copy: object | None = None) -> "
                    "object"))
        .def("__dlpack_device__",
             bare<Array>("__dlpack_device__",
                         [](const Array& a) { return dlpack_device(device_of(a)); }),
             nb::sig("def __dlpack_device__(self) -> tuple"));
    array.attr("__dlpack_c_exchange_api__") = exchange_api_capsule();
    bind_numpy(array);

    nb::class_<Outputs>(m, "Outputs", "The outputs of one run, by name.")
        .def("__getitem__", &output_array, nb::arg("name").none(),
             nb::sig("def __getitem__(self, name: str, /) -> Array"))
        .def("__len__", [](const Outputs& o) { return o.step->plan().outputs.size(); })
        .def("__contains__", &has_output, nb::arg("name").none(),
             nb::sig("def __contains__(self, name: object, /) -> bool"))
        .def(
            "__iter__", [](const Outputs& o) { return nb::iter(output_names(o)); },
            nb::sig("def __iter__(self) -> collections.abc.Iterator[str]"))
        .def("_ipython_key_completions_", output_names,
             nb::sig("def _ipython_key_completions_(self) -> list[str]"))
        .def("__repr__",
             [](const Outputs& o) {
                 std::string text;
                 for (const auto& output : o.step->plan().outputs)
                     text += cat(text.empty() ? "" : ", ", output.name, " ",
                                 to_string(output_array(o, nb::cast(output.name)).type()));
                 return cat("aicf.Outputs(", text, ")");
             })
        .def("keys", bare<Outputs>("keys", output_names), nb::sig("def keys(self) -> list[str]"),
             "The names, in the order of the graph.")
        .def("values",
             bare<Outputs>("values",
                           [](const Outputs& o) {
                               nb::list arrays;
                               for (nb::handle name : output_names(o))
                                   arrays.append(output_array(o, name));
                               return arrays;
                           }),
             nb::sig("def values(self) -> list[Array]"), "The Arrays, in the order of the graph.")
        .def("items",
             bare<Outputs>("items",
                           [](const Outputs& o) {
                               nb::list items;
                               for (nb::handle name : output_names(o))
                                   items.append(nb::make_tuple(name, output_array(o, name)));
                               return items;
                           }),
             nb::sig("def items(self) -> list[tuple[str, Array]]"),
             "Pairs (name, Array), in the order of the graph.")
        .def(
            "get",
            [](const Outputs& o, nb::handle name, nb::handle instead, const nb::args& rest,
               const nb::kwargs& named) {
                refuse_rest("get", "name and default", rest, named);
                return has_output(o, name) ? nb::cast(output_array(o, name)) : nb::borrow(instead);
            },
            nb::arg("name").none() = nb::none(), nb::arg("default").none() = nb::none(),
            nb::arg("rest"), nb::arg("named"),
            nb::sig("def get(self, name: object | None, default: object | None = None) -> object"),
            "The Array of that name, or `default`.");
}

}  // namespace aicf
