// Step, its outputs and the arrays that come out of it.
#include "core/run/step.h"

#include <chrono>
#include <iterator>

#include "bindings/bindings.h"

namespace aicf {

/// A tensor of a step: an output of one generation, a live param or state, or (no step) a copy.
struct Array {
    nb::object owner;  // the Python Step, kept alive
    Step* step = nullptr;
    ValueId leaf = kNone;
    std::string output;
    uint64_t generation = 0;
    TensorRef tensor;  // of a copy

    Type type() const {
        if (!step) return {tensor.dtype, tensor.shape};
        if (leaf != kNone) return step->plan().values[leaf].type;
        const Lowered::Output& out = step->output(output);
        Type type = step->plan().values[out.value].type;
        if (out.keep > 1)
            type.shape[0] = std::min<int64_t>(static_cast<int64_t>(generation), out.keep);
        return type;
    }
    /// A copy in host memory, made now.
    TensorRef read() const {
        if (!step) return tensor;
        if (leaf != kNone) {
            GilRelease release;
            return step->read(leaf);
        }
        return fresh([&] { return step->read_output(step->output(output)); });
    }
    /// A copy on the step's device, in the order of its work.
    TensorRef snapshot() const {
        if (leaf == kNone) return fresh([&] { return step->snapshot(step->output(output)); });
        GilRelease release;
        return step->snapshot({"", leaf});
    }

  private:
    /// What `read` reads, unless another step has run meanwhile.
    template <class Read>
    TensorRef fresh(Read read) const {
        if (generation == 0)
            raise(ErrorKind::graph, "output \"", output,
                  "\": no step has run yet; give the step its inputs first");
        TensorRef copy;
        uint64_t before = 0, after = 0;
        {
            GilRelease release;
            before = step->generation();
            copy = read();
            after = step->generation();
        }
        if (before != generation || after != generation)
            raise(ErrorKind::stale_output, "output \"", output, "\": it belongs to step ",
                  generation, ", the step has run ", after,
                  " times since; read or copy() it before the next run, use output(keep=K), or "
                  "bind storage of your own");
        return copy;
    }
};

struct Outputs {
    nb::object owner;
    Step* step;
    uint64_t generation;
};

namespace {

Array array_of(const TensorRef& tensor) {
    Array array;
    array.tensor = tensor;
    return array;
}

Device device_of(const Array& array) { return array.step ? array.step->device() : Device{}; }

/// The tensor where it lies, all work on it done: a live leaf, or a copy of an output.
TensorRef dlpack_ref(const Array& array) {
    if (!array.step || (array.leaf == kNone && device_of(array).kind == Device::cpu))
        return array.read();
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

/// Runs `times` steps in pieces of some 20 ms, so that Ctrl-C is noticed; what is no number of
/// times goes through as it is.
template <class Run>
void in_pieces(int64_t times, Run run) {
    using clock = std::chrono::steady_clock;
    int64_t chunk = 1;
    do {
        const int64_t now = std::min(chunk, times);
        const auto start = clock::now();
        {
            GilRelease release;
            run(times < 0 ? times : now);
        }
        times -= now;
        if (clock::now() - start < std::chrono::milliseconds(20)) chunk *= 2;
        if (PyErr_CheckSignals()) nb::raise_python_error();
    } while (times > 0);
}

uint64_t replay(Step& step, int64_t times, std::optional<intptr_t> stream) {
    uint64_t done = 0;
    in_pieces(times, [&](int64_t n) { done = step.replay(n, stream); });
    return done;
}

int64_t times_of(const char* doing, nb::handle n) {
    int64_t times = 0;
    if (!nb::try_cast(n, times))
        raise(ErrorKind::graph, doing, ": n is ", repr_of(n), "; need an int in [0, 2**63)");
    return times;
}

/// Steps of a profile: as float64 of each its begin and end, then those of its launches, NaN where
/// they are not known; the clocks that were used, in their order; why no better one was.
nb::tuple times_of(nb::object outputs, const Step::Profiled& profiled, size_t launches) {
    std::vector<double> numbers;
    std::vector<std::string> clocks;
    for (const Timed::Run& run : profiled.runs) {
        numbers.insert(numbers.end(), {run.whole.begin, run.whole.end});
        for (const Timed::Span& span : run.ops)
            numbers.insert(numbers.end(), {span.begin, span.end});
        if (run.ops.empty()) numbers.insert(numbers.end(), 2 * launches, std::nan(""));
        if (std::find(clocks.begin(), clocks.end(), run.clock) == clocks.end())
            clocks.push_back(run.clock);
    }
    return nb::make_tuple(std::move(outputs),
                          nb::bytes(numbers.data(), numbers.size() * sizeof(double)), clocks,
                          profiled.problem);
}

TensorRef import_for(const Value& value, nb::handle object) {
    TensorRef tensor = tensor_or_numbers(object, value.type.dtype, value.name.c_str());
    if (tensor.device.kind != Device::cpu && !nb::isinstance<Array>(object))
        tensor.stream = producer_stream(object, tensor.device);
    return tensor;
}

/// A name as the caller wrote it, or how Python prints what no name can be.
std::string name_of(nb::handle object) {
    std::string name;
    if (!text_of(object, name)) name = repr_of(object);
    return name;
}

/// The inputs of a call, and its stream= (of a run also sync=) where no input has that name.
struct CallArguments {
    Step::Inputs inputs;
    std::optional<intptr_t> stream;
    SyncPolicy sync = SyncPolicy::none;
};

CallArguments import_inputs(const Step& step, const nb::kwargs& given, bool syncs = false) {
    CallArguments result;
    result.inputs.reserve(given.size());
    for (auto [key, object] : given) {
        const std::string name = name_of(key);
        if (name == "stream" && !step.find_leaf(name)) {
            result.stream = stream_of(object);
            continue;
        }
        if (syncs && name == "sync" && !step.find_leaf(name)) {
            std::string policy;
            if (!text_of(object, policy)) policy = repr_of(object);
            result.sync = parse_sync(policy, "run");
            continue;
        }
        const Value& value = step.leaf(name);
        result.inputs.emplace_back(value.id, import_for(value, object));
    }
    return result;
}

/// How many steps inputs with a leading axis of steps are for.
int64_t steps_of(const Step& step, const Step::Inputs& stacked) {
    if (stacked.empty())
        raise(ErrorKind::graph, "run_many: no input is given; need one with a first axis of steps");
    const auto what = [&](const auto& pair) {
        return cat("\"", step.plan().values[pair.first].name, "\" is ",
                   type_string(pair.second.dtype, pair.second.shape));
    };
    for (const auto& pair : stacked) {
        Dims rest = pair.second.shape;
        if (rest.rank() > 0) rest.erase(0);
        const Type& type = step.plan().values[pair.first].type;
        if (pair.second.shape.rank() == 0 || !(rest == type.shape))
            raise(ErrorKind::shape, "run_many: ", what(pair), "; need ", to_string(type),
                  " behind a first axis of steps");
        if (pair.second.shape[0] != stacked[0].second.shape[0])
            raise(ErrorKind::shape, "run_many: ", what(stacked[0]), ", ", what(pair),
                  "; need as many steps of each");
    }
    return stacked[0].second.shape[0];
}

/// Step i of inputs with a leading axis of steps.
Step::Inputs inputs_at(const Step::Inputs& stacked, int64_t i) {
    Step::Inputs inputs = stacked;
    for (auto& [id, tensor] : inputs) {
        tensor.data =
            static_cast<char*>(tensor.data) + i * tensor.strides[0] * dtype_size(tensor.dtype);
        tensor.shape.erase(0);
        tensor.strides.erase(0);
    }
    return inputs;
}

/// One element as a Python number.
nb::object item(const Array& a, const char* asked) {
    if (element_count(a.type().shape) != 1)
        raise(ErrorKind::shape, asked, " of an Array ", to_string(a.type()),
              "; need one element, or numpy()");
    return to_numpy(a.read(), true).attr("item")();
}

bool has_output(const Outputs& o, nb::handle name) {
    std::string text;
    if (!text_of(name, text)) return false;
    const auto& outputs = o.step->plan().outputs;
    return std::any_of(outputs.begin(), outputs.end(),
                       [&](const auto& output) { return output.name == text; });
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

nb::list output_names(const Outputs& o) {
    nb::list names;
    for (const auto& output : o.step->plan().outputs) names.append(output.name);
    return names;
}

Outputs outputs_of(nb::handle self, Step& step, uint64_t generation) {
    return {nb::borrow(self), &step, generation};
}

/// A method that takes no arguments, in words of ours where it is given some.
template <class T, class Body>
auto bare(const char* name, Body body) {
    return [name, body](T& self, const nb::args& rest, const nb::kwargs& named) {
        refuse_rest(name, "no arguments", rest, named);
        return body(self);
    };
}

/// The outputs of what `run` runs; made before it, so that nothing fails when it is done.
template <class Run>
nb::typed<nb::object, Outputs> after(nb::handle self, Step& step, Run run) {
    nb::object outputs = nb::cast(outputs_of(self, step, 0));
    nb::inst_ptr<Outputs>(outputs)->generation = run();
    return nb::typed<nb::object, Outputs>(std::move(outputs));
}

/// One call or run with each launch timed.
nb::tuple profiled(nb::handle self, const nb::kwargs& kwargs, bool eager) {
    Step& step = object_of<Step>(self);
    const CallArguments arguments = import_inputs(step, kwargs, eager);
    Step::Profiled found;
    auto outputs = after(self, step, [&] {
        GilRelease release;
        found = step.profile(1, &arguments.inputs, arguments.stream, eager);
        return step.generation();
    });
    return times_of(nb::cast(std::move(outputs)), found, step.plan().ops.size());
}

/// The bytes of an object that has some, while this lives.
class HeldBytes {
  public:
    explicit HeldBytes(nb::handle object) {
        if (PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_SIMPLE)) nb::raise_python_error();
    }
    ~HeldBytes() { PyBuffer_Release(&buffer_); }
    HeldBytes(const HeldBytes&) = delete;
    HeldBytes& operator=(const HeldBytes&) = delete;
    std::string_view bytes() const {
        return {static_cast<const char*>(buffer_.buf), static_cast<size_t>(buffer_.len)};
    }

  private:
    Py_buffer buffer_;
};

}  // namespace

void refuse_rest(const char* function, const char* takes, const nb::args& rest,
                 const nb::kwargs& named) {
    const size_t count = rest.size() + (named.is_valid() ? named.size() : 0);
    if (count)
        throw nb::type_error(
            cat(function, ": got ", count, " arguments too many; it takes ", takes).c_str());
}

std::optional<intptr_t> stream_of(nb::handle object) {
    if (object.is_none()) return std::nullopt;
    nb::object number = nb::borrow(object);
    if (nb::hasattr(object, "__cuda_stream__"))  // (version, handle)
        number = nb::object(object.attr("__cuda_stream__")()[1]);
    else if (nb::hasattr(object, "cuda_stream"))
        number = object.attr("cuda_stream");
    else if (nb::hasattr(object, "ptr"))
        number = object.attr("ptr");
    intptr_t stream = -1;
    if (nb::isinstance<nb::bool_>(number) || !nb::try_cast(number, stream) || stream < 0)
        raise(ErrorKind::graph, "stream: got ", repr_of(object),
              "; need a CUDA stream of any framework or its handle as an int >= 0");
    return stream;
}

bool is_step_output(nb::handle object) {
    if (!nb::isinstance<Array>(object)) return false;
    const Array& array = object_of<Array>(object);
    return array.step && array.leaf == kNone;
}

void bind_step(nb::module_& m) {
    watch_exit();
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
            "dtype", [](const Array& a) { return dtype_name(a.type().dtype); },
            "NumPy's name of it, or \"bfloat16\".")
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
        .def("copy",
             bare<Array>("copy",
                         [](const Array& a) {
                             return array_of(a.step ? a.read() : copy_tensor(a.tensor));
                         }),
             nb::sig("def copy(self) -> Array"), "An Array that owns a copy in host memory.")
        .def(
            "item", [](const Array& a) { return item(a, "item()"); },
            nb::sig("def item(self) -> object"),
            "The one element as a Python number. Raises ShapeError when there are more.")
        .def("__float__",
             [](const Array& a) { return nb::cast<double>(nb::float_(item(a, "float()"))); })
        .def("__int__", [](const Array& a) { return nb::int_(item(a, "int()")); })
        .def("__bool__", [](const Array& a) { return nb::bool_(item(a, "bool()")); })
        .def("__getitem__",
             [](const Array& a, nb::handle key) {
                 return nb::object(to_numpy(a.read(), true)[key]);
             })
        .def("__len__",
             [](const Array& a) {
                 if (a.type().shape.rank() == 0)
                     throw nb::type_error("aicf.Array: len() of a rank-0 array");
                 return a.type().shape[0];
             })
        .def("__repr__",
             [](const Array& a) {
                 return cat("aicf.Array(", to_string(a.type()), ", ",
                            to_string(a.step ? a.step->device() : a.tensor.device), ")");
             })
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
    for (const char* compare : {"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__"})
        array.def(
            compare,
            [compare](const Array& a, nb::handle other) {
                return nb::object(to_numpy(a.read(), true).attr(compare)(other));
            },
            nb::arg("other").none(),
            nb::sig(cat("def ", compare,
                        "(self, other: object, /) -> "
                        "typing.Any")
                        .c_str()));
    array.attr("__hash__") = nb::none();  // equality compares elements
    for (const char* binary :
         {"__add__", "__sub__", "__mul__", "__truediv__", "__floordiv__", "__mod__", "__pow__",
          "__matmul__", "__radd__", "__rsub__", "__rmul__", "__rtruediv__", "__rfloordiv__",
          "__rmod__", "__rpow__", "__rmatmul__"})
        array.def(
            binary,
            [binary](const Array& a, nb::handle other) {
                return nb::object(to_numpy(a.read(), true).attr(binary)(other));
            },
            nb::arg("other").none(),
            nb::sig(cat("def ", binary, "(self, other: object, /) -> typing.Any").c_str()));
    for (const char* unary : {"__neg__", "__pos__", "__abs__", "tolist"})
        array.def(
            unary,
            [unary](const Array& a, const nb::args& rest, const nb::kwargs& named) {
                refuse_rest(unary, "none", rest, named);
                return nb::object(to_numpy(a.read(), true).attr(unary)());
            },
            nb::arg("rest"), nb::arg("named"),
            nb::sig(cat("def ", unary, "(self) -> typing.Any").c_str()));
    for (const char* reduction : {"sum", "mean", "std", "min", "max", "argmin", "argmax", "any",
                                  "all", "reshape", "astype"})
        array.def(
            reduction,
            [reduction](const Array& a, const nb::args& args, const nb::kwargs& named) {
                return nb::object(to_numpy(a.read(), true).attr(reduction)(*args, **named));
            },
            nb::sig(cat("def ", reduction, "(self, *args: object, **kwargs: object) -> typing.Any")
                        .c_str()),
            "NumPy's, of a copy.");
    array.def(
        "__format__",
        [](const Array& a, const nb::str& spec) {
            const bool one = a.type().shape.rank() == 0;
            const nb::object shown = nb::len(spec) == 0 ? nb::object(nb::find(a))
                                     : one              ? nb::object(item(a, "format()"))
                                                        : to_numpy(a.read(), true);
            return nb::len(spec) == 0 ? nb::object(nb::str(shown))
                                      : nb::object(shown.attr("__format__")(spec));
        },
        nb::sig("def __format__(self, spec: str, /) -> str"));

    nb::class_<Outputs>(m, "Outputs", "The outputs of one run, by name.")
        .def("__getitem__", &output_array, nb::arg("name").none(),
             nb::sig("def __getitem__(self, name: str, /) -> Array"))
        .def("__len__", [](const Outputs& o) { return o.step->plan().outputs.size(); })
        .def("__contains__", &has_output, nb::arg("name").none(),
             nb::sig("def __contains__(self, name: object, /) -> bool"))
        .def(
            "__iter__", [](const Outputs& o) { return nb::iter(output_names(o)); },
            nb::sig("def __iter__(self) -> collections.abc.Iterator[str]"))
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

    nb::class_<Step>(m, "Step", "A compiled step; aicf.Step is its public face.")
        .def(
            "__init__",
            [](Step* self, const Graph& graph, const std::string& device, uint64_t seed,
               bool capture, const std::vector<Step*>& share,
               const std::vector<std::string>& passes, const std::string& math, bool deterministic,
               const Candidates& candidates, int tensor_cores, bool check_indices) {
                Step::Options options;
                options.device = parse_device(device);
                options.seed = seed;
                options.capture = capture;
                options.share.assign(share.begin(), share.end());
                options.compile.passes = passes;
                options.compile.math = math;
                options.compile.deterministic = deterministic;
                options.compile.candidates = candidates;
                options.compile.tensor_cores = tensor_cores;
                options.compile.check_indices = check_indices;
                Graph copy = graph;  // what other threads append is not for this step
                const GilRelease release;
                const Signals signals;
                new (self) Step(std::move(copy), options);
            },
            nb::arg("graph"), nb::arg("device"), nb::arg("seed"), nb::arg("capture"),
            nb::arg("share"), nb::arg("passes"), nb::arg("math"), nb::arg("deterministic"),
            nb::arg("candidates"), nb::arg("tensor_cores"), nb::arg("check_indices"))
        .def(
            "__init__",
            [](Step* self, nb::handle file, const std::string& where, nb::handle device,
               bool capture, const std::vector<Step*>& share) {
                const HeldBytes held(file);  // which nobody changes or frees meanwhile
                Step::Options options;
                options.capture = capture;
                options.share.assign(share.begin(), share.end());
                const bool given = !device.is_none();
                if (given) options.device = parse_device(nb::cast<std::string>(device));
                const GilRelease release;
                const Signals signals;
                const Executable executable(held.bytes(), where);
                if (!given) options.device.kind = executable.plan().device;
                new (self) Step(executable, options);
            },
            nb::arg("file"), nb::arg("where"), nb::arg("device").none(), nb::arg("capture"),
            nb::arg("share"))
        .def(
            "_export",
            [](Step& s, bool state) {
                std::vector<FilePiece> pieces;
                {
                    const GilRelease release;
                    pieces = s.write_file(state);
                }
                nb::list all;
                for (FilePiece& piece : pieces) {
                    all.append(nb::bytes(piece.data, piece.bytes));
                    piece = {};  // two copies of one piece at most
                }
                return all;
            },
            nb::arg("state"))
        .def(
            "__call__",
            [](nb::handle self, const nb::args& rest, const nb::kwargs& kwargs) {
                Step& step = object_of<Step>(self);
                if (rest.size() != 0)
                    refuse_rest("step", "inputs by name, as in step(x=...)", rest, {});
                const CallArguments arguments = import_inputs(step, kwargs);
                return after(self, step, [&] {
                    GilRelease release;
                    return step.call(arguments.inputs, arguments.stream);
                });
            },
            nb::sig("def __call__(self, **inputs: object) -> Outputs"),
            "Copies the named inputs in, runs one step and returns its outputs. stream= (of any "
            "framework, or its handle): the step comes after what the stream holds, and what the "
            "stream gets later comes after the step; nothing waits on the host.")
        .def(
            "replay",
            [](nb::handle self, nb::handle n, nb::handle stream) {
                Step& step = object_of<Step>(self);
                const int64_t times = times_of("replay", n);
                const std::optional<intptr_t> ordered = stream_of(stream);
                return after(self, step, [&] { return replay(step, times, ordered); });
            },
            nb::arg("n").none() = 1, nb::arg("stream").none() = nb::none(),
            nb::sig("def replay(self, n: int = 1, stream: object | None = None) -> Outputs"),
            "Runs the captured step n times on the inputs as they stand. stream: as in a call.")
        .def(
            "run_many",
            [](nb::handle self, const nb::args& rest, const nb::kwargs& kwargs) {
                Step& step = object_of<Step>(self);
                refuse_rest("run_many", "inputs by name, as in step.run_many(x=...)", rest, {});
                const CallArguments arguments = import_inputs(step, kwargs);
                const int64_t steps = steps_of(step, arguments.inputs);
                return after(self, step, [&] {
                    uint64_t done = step.generation();
                    int64_t next = 0;
                    in_pieces(steps, [&](int64_t n) {
                        for (const int64_t end = next + n; next < end; next++)
                            done = step.call(inputs_at(arguments.inputs, next), arguments.stream);
                    });
                    return done;
                });
            },
            nb::sig("def run_many(self, **inputs: object) -> Outputs"),
            "Calls the step once for each element of a leading axis, which every input given has; "
            "outputs are those of the last step, of one that keeps steps those it keeps. The same "
            "bits as the calls; Ctrl-C ends it between two steps.")
        .def(
            "run",
            [](nb::handle self, const nb::args& rest, const nb::kwargs& kwargs) {
                Step& step = object_of<Step>(self);
                refuse_rest("run", "inputs by name, as in step.run(x=...)", rest, {});
                const CallArguments arguments = import_inputs(step, kwargs, true);
                return after(self, step, [&] {
                    GilRelease release;
                    return step.run(arguments.inputs, arguments.stream, arguments.sync);
                });
            },
            nb::sig("def run(self, **inputs: object) -> Outputs"),
            "Runs the same ops one by one, without the captured form.")
        .def("capture",
             bare<Step>("capture",
                        [](Step& s) {
                            const GilRelease release;
                            s.capture();
                        }),
             nb::sig("def capture(self) -> None"), "Builds the replayable form again.")
        .def("reset",
             bare<Step>("reset",
                        [](Step& s) {
                            const GilRelease release;
                            s.reset();
                        }),
             nb::sig("def reset(self) -> None"), "Drops the captured form; state stays.")
        .def("synchronize",
             bare<Step>("synchronize",
                        [](Step& s) {
                            const GilRelease release;
                            s.synchronize();
                        }),
             nb::sig("def synchronize(self) -> None"), "Waits until all enqueued work is done.")
        .def_prop_ro(
            "captured",
            [](const Step& s) {
                const GilRelease release;
                return s.captured();
            },
            "Whether a captured form is held.")
        .def_prop_ro(
            "device", [](const Step& s) { return to_string(s.device()); },
            "\"cpu\" or \"cuda:<index>\".")
        .def_prop_ro(
            "outputs",
            [](nb::handle self) {
                Step& step = object_of<Step>(self);
                return outputs_of(self, step, step.generation());
            },
            "The outputs of the last step.")
        .def_prop_ro("steps_run", &Step::generation, "Steps run so far.")
        .def(
            "_profile",
            [](nb::handle self, nb::handle n, nb::handle stream) {
                Step& step = object_of<Step>(self);
                const int64_t times = times_of("profile", n);
                const std::optional<intptr_t> ordered = stream_of(stream);
                Step::Profiled all;
                auto outputs = after(self, step, [&] {
                    in_pieces(times, [&](int64_t piece) {
                        auto some = step.profile(piece, nullptr, ordered);
                        std::move(some.runs.begin(), some.runs.end(), std::back_inserter(all.runs));
                        all.problem = std::move(some.problem);
                    });
                    return step.generation();
                });
                return times_of(nb::cast(std::move(outputs)), all, step.plan().ops.size());
            },
            nb::sig("def _profile(self, n: object = 1, stream: object = None) -> "
                    "tuple[Outputs, bytes, list[str], str]"),
            nb::arg("n").none() = 1, nb::arg("stream").none() = nb::none(),
            "As replay, with each launch timed: the outputs, the times, what timed them and why "
            "nothing better did.")
        .def(
            "_profile_call",
            [](nb::handle self, const nb::kwargs& kwargs) { return profiled(self, kwargs, false); },
            nb::sig("def _profile_call(self, **inputs: object) -> "
                    "tuple[Outputs, bytes, list[str], str]"),
            "As a call; what it returns as _profile.")
        .def(
            "_profile_run",
            [](nb::handle self, const nb::kwargs& kwargs) { return profiled(self, kwargs, true); },
            nb::sig("def _profile_run(self, **inputs: object) -> "
                    "tuple[Outputs, bytes, list[str], str]"),
            "As run; what it returns as _profile.")
        .def("_launch_sizes",
             [](const Step& s) {
                 std::vector<std::vector<int64_t>> sizes;
                 for (const LaunchSize& size : s.launch_sizes())
                     sizes.push_back({size.blocks, size.threads, size.shared});
                 return sizes;
             })
        .def("_trace",
             [](const Step& s) {
                 const GilRelease release;
                 std::vector<std::pair<std::string, std::string>> list;
                 for (const Captured::Launch& launch : s.trace())
                     list.emplace_back(launch.op, launch.kernel);
                 return list;
             })
        .def("_stages", &Step::stages)
        .def("_plan_text", [](const Step& s) { return to_text(s.plan()); })
        .def("_plan_json", [](const Step& s) { return to_json(s.plan()); })
        .def(
            "_plan_report",
            [](const Step& s, const std::map<size_t, int64_t>& scratch) {
                if (scratch.empty()) return verify(s.plan());
                Plan plan = s.plan();
                for (const auto& [op, at] : scratch) plan.ops.at(op).scratch = at;
                return verify(plan);
            },
            nb::arg("scratch") = std::map<size_t, int64_t>(),
            "What the check says of the plan, with the scratch of ops, by number, moved.")
        .def("_leaves",
             [](const Step& s, const std::string& role) {
                 std::vector<std::string> names;
                 for (const Value& value : s.plan().values)
                     if (role_name(value.role) == role) names.push_back(value.name);
                 return names;
             })
        .def("_array",
             [](nb::handle self, const std::string& name) {
                 Array result;
                 result.owner = nb::borrow(self);
                 result.step = &object_of<Step>(self);
                 result.leaf = result.step->leaf(name).id;
                 return result;
             })
        .def(
            "_write",
            [](Step& s, const std::string& name, nb::handle object) {
                const Value& value = s.leaf(name);
                const TensorRef tensor = import_for(value, object);
                GilRelease release;
                s.write({{value.id, tensor}});
            },
            nb::arg("name"), nb::arg("tensor").none())
        .def("_read_all",
             [](Step& s, const std::vector<std::string>& names) {
                 std::vector<TensorRef> copies;
                 {
                     GilRelease release;
                     std::vector<ValueId> ids;
                     for (const std::string& name : names) ids.push_back(s.leaf(name).id);
                     copies = s.read(ids);
                 }
                 std::vector<Array> arrays;
                 for (const TensorRef& copy : copies) arrays.push_back(array_of(copy));
                 return arrays;
             })
        .def("_write_all",
             [](Step& s, const nb::dict& values) {
                 Step::Inputs writes;
                 for (auto [key, object] : values) {
                     const Value& value = s.leaf(name_of(key));
                     TensorRef tensor;
                     if (nb::isinstance<nb::bytes>(object)) {
                         const auto bytes = nb::borrow<nb::bytes>(object);
                         tensor = empty_tensor(value.type.dtype, value.type.shape);
                         const auto size = static_cast<size_t>(element_count(tensor.shape) *
                                                               dtype_size(tensor.dtype));
                         if (bytes.size() != size)
                             raise(ErrorKind::shape, "\"", value.name, "\": got ", bytes.size(),
                                   " bytes; need ", size);
                         std::copy(bytes.c_str(), bytes.c_str() + size,
                                   static_cast<char*>(tensor.data));
                     } else {
                         tensor = import_for(value, object);
                     }
                     writes.emplace_back(value.id, std::move(tensor));
                 }
                 GilRelease release;
                 s.write(writes);
             })
        .def(
            "_bind",
            [](Step& s, const nb::dict& given) {
                Step::Inputs tensors;
                for (auto [key, object] : given) {
                    const std::string name = name_of(key);
                    const ValueId id = s.bindable(name);
                    if (is_step_output(object))
                        raise(ErrorKind::graph, "bind: \"", name,
                              "\" got an output of a step, which is read as a copy; need a tensor");
                    ImportOptions options;
                    options.allow_copy = false;
                    tensors.emplace_back(id, import_tensor(object, name.c_str(), options));
                }
                GilRelease release;
                s.bind(tensors);
            },
            nb::arg("tensors"));
}

}  // namespace aicf
