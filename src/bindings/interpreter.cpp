#include "bindings/interpreter.h"

#include <atomic>
#include <chrono>
#include <exception>
#include <thread>

#include "core/base/fork.h"

namespace nb = nanobind;

namespace aicf {

namespace {

std::atomic<bool> closing{false};  // set by atexit
std::atomic<bool> forked{false};   // this process is a child of one that imported aicf
std::atomic<int> entered{0};       // threads that want or hold the GIL by with_python, GilRelease
std::thread::id closing_thread;
void (*at_end)() = nullptr;

/// Whether a thread other than this one is inside Python.
bool other_threads() {
    PyObject* current = PySys_GetObject("_current_frames");
    const nb::object frames = nb::steal(current ? PyObject_CallNoArgs(current) : nullptr);
    if (!frames.is_valid()) return PyErr_Clear(), false;
    for (nb::handle thread : frames)
        if (PyLong_AsUnsignedLong(thread.ptr()) != PyThread_get_thread_ident()) return true;
    return false;
}

PyObject* on_exit(PyObject*, PyObject*) {
    closing_thread = std::this_thread::get_id();
    closing = true;
    PyThreadState* state = PyEval_SaveThread();
    for (int ms = 0; entered && ms < 1000; ms++)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    PyEval_RestoreThread(state);
    // Threads that no longer run, stopped here or left behind by a fork, never let go of what they
    // hold: that is no leak of ours.
    if (forked || other_threads()) nb::set_leak_warnings(false);
    at_end();
    Py_RETURN_NONE;
}

}  // namespace

void with_python(void (*release)(void* of), void* of) {
    entered++;
    if (!closing || std::this_thread::get_id() == closing_thread)
        if (nb::detail::cleanup_guard guard{}; guard) release(of);
    entered--;
}

GilRelease::GilRelease() : state_(PyEval_SaveThread()) {}

GilRelease::~GilRelease() {
    entered++;
    if (closing && std::this_thread::get_id() != closing_thread) {
        entered--;
        for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    }
    PyEval_RestoreThread(state_);
    entered--;
}

void check_signals() {
    std::exception_ptr error;
    with_python([&] {
        if (PyErr_CheckSignals()) error = std::make_exception_ptr(nb::python_error());
    });
    if (error) std::rethrow_exception(error);
}

void watch_exit(void (*last)()) {
    at_end = last;
    at_fork([] {
        entered = 0;
        closing = false;
        forked = true;
    });
    static PyMethodDef exit_method = {"aicf_on_exit", on_exit, METH_NOARGS, nullptr};
    nb::module_::import_("atexit").attr("register")(
        nb::steal(PyCFunction_New(&exit_method, nullptr)));
}

}  // namespace aicf
