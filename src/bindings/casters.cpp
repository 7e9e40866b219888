#include "bindings/casters.h"

namespace aicf {

namespace nb = nanobind;

bool misfit() {
    if (PyErr_ExceptionMatches(PyExc_MemoryError)) throw nb::python_error();
    PyErr_Clear();
    return false;
}

bool text_of(nb::handle object, std::string& text) {
    if (!PyUnicode_Check(object.ptr())) return false;
    Py_ssize_t size = 0;
    const char* utf8 = PyUnicode_AsUTF8AndSize(object.ptr(), &size);
    if (!utf8) return misfit();
    text.assign(utf8, static_cast<size_t>(size));
    return true;
}

std::string repr_of(nb::handle object) {
    std::string text;
    return text_of(nb::repr(object), text) ? text : "?";
}

}  // namespace aicf
