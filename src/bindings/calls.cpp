// What a call of an aicf.function looks like: the key under which its step is found.
#include "bindings/array.h"

namespace aicf {

namespace {

/// Nesting without an end is a RecursionError.
struct Nested {
    Nested() {
        if (Py_EnterRecursiveCall(" in the arguments of a call")) throw nb::python_error();
    }
    ~Nested() { Py_LeaveRecursiveCall(); }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;
};

bool add_part(nb::list& parts, nb::handle tree, nb::list& leaves);

/// A dict, tuple or list: its type, its keys in order, and its parts.
bool add_branch(nb::list& parts, nb::handle tree, nb::list& leaves) {
    nb::list own;
    own.append(nb::handle(reinterpret_cast<PyObject*>(Py_TYPE(tree.ptr()))));
    if (PyDict_CheckExact(tree.ptr())) {
        const nb::list keys = nb::steal<nb::list>(PyDict_Keys(tree.ptr()));
        for (nb::handle key : keys)
            if (!PyUnicode_CheckExact(key.ptr())) return false;
        if (PyList_Sort(keys.ptr()) < 0) throw nb::python_error();
        for (nb::handle key : keys) {
            // Held, as what is asked of it may take it out of the dict.
            const nb::object one = nb::borrow(PyDict_GetItemWithError(tree.ptr(), key.ptr()));
            own.append(key);
            if (!one.is_valid() || !add_part(own, one, leaves)) return false;
        }
    } else {
        for (nb::handle one : nb::borrow<nb::sequence>(tree))
            if (!add_part(own, one, leaves)) return false;
    }
    parts.append(nb::tuple(own));
    return true;
}

/// An array is known by shape and dtype, a float by its type, a bool, int, str or None by what it
/// is; false of what needs a closer look.
bool add_part(nb::list& parts, nb::handle tree, nb::list& leaves) {
    PyObject* const x = tree.ptr();
    if (PyFloat_CheckExact(x)) {
        parts.append(nb::handle(reinterpret_cast<PyObject*>(&PyFloat_Type)));
        leaves.append(tree);
        return true;
    }
    if (x == Py_None || PyBool_Check(x) || PyLong_CheckExact(x) || PyUnicode_CheckExact(x)) {
        parts.append(nb::handle(reinterpret_cast<PyObject*>(Py_TYPE(x))));
        parts.append(tree);
        return true;
    }
    if (PyDict_CheckExact(x) || PyTuple_CheckExact(x) || PyList_CheckExact(x)) {
        const Nested nested;
        return add_branch(parts, tree, leaves);
    }
    const nb::object dtype = nb::getattr(tree, "dtype", nb::object());
    if (!dtype.is_valid()) return false;
    if (PyUnicode_Check(dtype.ptr()) && !nb::isinstance<Array>(tree)) return false;  // of a graph
    const nb::object shape = nb::getattr(tree, "shape", nb::object());
    if (!shape.is_valid()) return false;
    parts.append(shape);
    parts.append(dtype);
    leaves.append(tree);
    return true;
}

/// (key, leaves) of a call; None where arguments have to be looked at one by one.
nb::object call_key(const nb::tuple& args, const nb::dict& named) {
    nb::list parts, leaves;
    for (nb::handle one : args)
        if (!add_part(parts, one, leaves)) return nb::none();
    for (auto [name, one] : named) {
        parts.append(name);
        if (!add_part(parts, one, leaves)) return nb::none();
    }
    return nb::make_tuple(nb::tuple(parts), nb::tuple(leaves));
}

}  // namespace

void bind_calls(nb::module_& m) {
    m.def("call_key", call_key, nb::arg("args"), nb::arg("named"),
          nb::sig("def call_key(args: tuple, named: dict) -> "
                  "tuple[tuple[object, ...], tuple[object, ...]] | None"),
          "What a call is recognised by, and its arrays; None where an argument is none.");
}

}  // namespace aicf
