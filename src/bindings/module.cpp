// The extension module: errors first, then the classes.
#include "bindings/bindings.h"
#include "core/abi/philox.h"
#include "core/base/fork.h"
#include "core/base/pool.h"
#include "core/run/backend.h"
#include "core/run/step.h"
#include "kernels/cpu/backend.h"

namespace aicf {

namespace {

struct PythonError {
    ErrorKind kind;
    const char* name;
    PyObject* builtin;
    const char* doc;
};

PyObject* error_classes[16] = {};

void set_error(ErrorKind kind, const char* text) {
    PyErr_SetString(error_classes[static_cast<int>(kind)], text);
}

/// Error.__init__: a message is as short from Python as it is from here.
PyObject* init_error(PyObject* self, PyObject* args) {
    try {
        nb::list texts;
        for (nb::handle arg : nb::borrow<nb::tuple>(args)) {
            std::string text;
            constexpr Py_ssize_t kShort = 512;  // in UTF-8 below the limit: no copy, so no failure
            if (nb::isinstance<nb::str>(arg) && PyUnicode_GetLength(arg.ptr()) > kShort &&
                text_of(arg, text))
                texts.append(abridged(text));
            else
                texts.append(arg);
        }
        nb::handle(PyExc_BaseException).attr("__init__")(nb::handle(self), *nb::tuple(texts));
        Py_RETURN_NONE;
    } catch (nb::python_error& error) {
        error.restore();
    } catch (const std::exception&) {
        set_error(ErrorKind::out_of_memory, kNoMemory);
    }
    return nullptr;
}
PyMethodDef error_init = {"__init__", init_error, METH_VARARGS, nullptr};

}  // namespace

PyObject* error_class(ErrorKind kind) { return error_classes[static_cast<int>(kind)]; }

void set_core_error() {
    try {
        throw;
    } catch (const Error& error) {
        if (!set_bad_value(error, error_classes[static_cast<int>(ErrorKind::bad_value)]))
            set_error(error.kind(), error.what());
    } catch (const std::bad_alloc&) {
        set_error(ErrorKind::out_of_memory, kNoMemory);
    }
}

void bind_errors(nb::module_& m) {
    PyObject* base = PyErr_NewExceptionWithDoc("aicf.Error", "Base of every error aicf raises.",
                                               PyExc_Exception, nullptr);
    m.attr("Error") = nb::borrow(base);
    nb::handle(base).attr("__init__") =
        nb::steal(PyDescr_NewMethod(reinterpret_cast<PyTypeObject*>(base), &error_init));
    const PythonError kinds[] = {
        {ErrorKind::graph, "GraphError", PyExc_ValueError,
         "A graph, a name or a call that means nothing."},
        {ErrorKind::shape, "ShapeError", PyExc_ValueError, "Sizes that do not fit."},
        {ErrorKind::dtype, "DTypeError", PyExc_TypeError,
         "Element types that do not fit; nothing is cast silently."},
        {ErrorKind::device_unavailable, "DeviceUnavailable", PyExc_RuntimeError,
         "No such device, or no usable driver."},
        {ErrorKind::device_lost, "DeviceLost", PyExc_RuntimeError,
         "The device failed; this process cannot use it again."},
        {ErrorKind::out_of_memory, "OutOfMemory", PyExc_MemoryError, "An allocation failed."},
        {ErrorKind::capture, "CaptureError", PyExc_RuntimeError,
         "A step that is not, or cannot be, captured."},
        {ErrorKind::stale_output, "StaleOutput", PyExc_RuntimeError,
         "An output read after a later step replaced it."},
        {ErrorKind::bad_value, "BadValue", PyExc_ValueError,
         "A NaN, an infinity or an index out of range, which kept a step from running. `kind`: "
         "\"nan\", \"infinity\" or \"index\"; `node`, `op`, `source`, `layer`: the node that makes "
         "it "
         "or takes the index, by its id in the graph, or None where an input, param or state holds "
         "it; `value`, `name`: what holds it; `index`, `number`: the first such element and what "
         "it "
         "is, or None where another thread has changed the step since."},
        {ErrorKind::format, "FormatError", PyExc_ValueError,
         "A file that is not what it claims to be."},
        {ErrorKind::unsupported, "Unsupported", PyExc_NotImplementedError,
         "A true limit of this backend."},
        {ErrorKind::internal, "InternalError", PyExc_RuntimeError,
         "A broken invariant of aicf itself; please report it."},
    };
    for (const PythonError& kind : kinds) {
        const std::string full = std::string("aicf.") + kind.name;
        nb::tuple bases = nb::make_tuple(nb::borrow(base), nb::borrow(kind.builtin));
        PyObject* type = PyErr_NewExceptionWithDoc(full.c_str(), kind.doc, bases.ptr(), nullptr);
        error_classes[static_cast<int>(kind.kind)] = type;
        m.attr(kind.name) = nb::borrow(type);
    }
    nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
        try {
            std::rethrow_exception(pointer);
        } catch (...) {
            set_core_error();
        }
    });
    dlpack_hooks.set_error = set_error;
}

}  // namespace aicf

// The extension keeps one state for the whole process, so a second interpreter is refused before
// it touches that state.
#define PyInit__core init_in_main_interpreter
NB_MODULE(_core, m) {
    m.doc() = "The compiler and runtime of aicf. Use the package `aicf`, not this module.";
    aicf::count_forks();
    aicf::cpu::register_cpu_backend();
    aicf::register_evaluator(aicf::evaluate);
    aicf::bind_errors(m);
    aicf::bind_graph(m);
    aicf::bind_array(m);
    aicf::bind_step(m);
    aicf::bind_watch(m);
    aicf::bind_calls(m);
    aicf::bind_eager(m);
    aicf::bind_custom(m);
#ifdef AICF_CUDA
    aicf::bind_cuda(m);
#endif
    m.def(
        "set_num_threads",
        [](nanobind::handle count, const nanobind::args& rest, const nanobind::kwargs& named) {
            aicf::refuse_rest("set_num_threads", "count", rest, named);
            int threads = 0;
            if (nanobind::isinstance<nanobind::bool_>(count) ||
                !nanobind::try_cast(count, threads) || threads < 0)
                aicf::raise(aicf::ErrorKind::graph, "set_num_threads: count is ",
                            aicf::repr_of(count), "; need an int >= 0");
            aicf::set_cpu_threads(threads);
        },
        nanobind::arg("count").none() = nanobind::none(), nanobind::arg("rest"),
        nanobind::arg("named"), nanobind::sig("def set_num_threads(count: int) -> None"),
        "Use at most `count` threads of the CPU backend; 0 returns to the default.");
    m.def("cpu_isa", &aicf::cpu::cpu_isa,
          "The instruction set the CPU kernels in use were built for.");
    m.def("cpu_memory", &aicf::cpu::cpu_memory,
          "Bytes that Steps hold in host memory, and the most they ever held.");
    m.def(
        "cpu_thresholds",
        [] {
            nanobind::list all;
            for (const aicf::cpu::Threshold& one : aicf::cpu::thresholds())
                all.append(nanobind::make_tuple(one.set, one.size, one.quantity, one.value));
            return all;
        },
        nanobind::sig("def cpu_thresholds() -> list[tuple[str, int, str, int]]"),
        "Sizes at which CPU kernels go another way: (instruction set, bytes of an element, what is "
        "compared, value).");
    m.def(
        "num_threads",
        [](const nanobind::args& rest, const nanobind::kwargs& named) {
            aicf::refuse_rest("num_threads", "no arguments", rest, named);
            return aicf::cpu_threads();
        },
        nanobind::sig("def num_threads() -> int"), "Threads the CPU backend uses.");
    m.def(
        "philox",
        [](uint64_t counter_low, uint64_t counter_high, uint64_t key) {
            const aicf::Philox4 words = aicf::philox(counter_low, counter_high, key);
            return nanobind::make_tuple(words.word[0], words.word[1], words.word[2], words.word[3]);
        },
        nanobind::arg("counter_low"), nanobind::arg("counter_high"), nanobind::arg("key"),
        "The four words of Philox-4x32-10, the generator of every random op.");
}
#undef PyInit__core

extern "C" NB_EXPORT PyObject* PyInit__core(void);
extern "C" PyObject* PyInit__core(void) {
    if (PyInterpreterState_GetID(PyInterpreterState_Get()) == 0) return init_in_main_interpreter();
    PyErr_SetString(PyExc_ImportError,
                    "aicf: a subinterpreter cannot import it, because it has one state for the "
                    "whole process; import it in the main interpreter");
    return nullptr;
}
