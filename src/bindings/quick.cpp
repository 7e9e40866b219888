// aicf.op_call for the usual kinds of argument: no frame of Python, no tuple, no dict.
#include <cstddef>
#include <string_view>

#include "bindings/eager.h"

#if PY_VERSION_HEX < 0x030c0000
#include <structmember.h>
#define Py_T_PYSSIZET T_PYSSIZET
#define Py_READONLY READONLY
#endif

namespace aicf {

namespace {

constexpr const char* kNames[] = {"op", "inputs", "outputs", "attrs", "stream", "sync"};
constexpr int kArguments = 6, kNeeded = 3;

/// A name or member of OpKind that was met, and its op.
struct Met {
    PyObject* op;
    const LoweredDef* def;
};
constexpr size_t kMet = 64;

struct Quick {
    PyObject_HEAD vectorcallfunc call;
    PyObject *dict, *checked, *kind, *event, *placed;
    PyObject* names[kArguments];  // interned
    Met met[kMet];

    /// The arguments in order; false where a closer look is due.
    bool take(PyObject** given, PyObject* const* args, size_t count, PyObject* named) const {
        if (count > kArguments) return false;
        for (size_t i = 0; i < count; i++) given[i] = args[i];
        const Py_ssize_t more = named ? PyTuple_Size(named) : 0;
        for (Py_ssize_t i = 0; i < more; i++) {
            PyObject* const name = PyTuple_GetItem(named, i);
            int at = 0;
            while (at < kArguments && names[at] != name) at++;
            if (at == kArguments || given[at]) return false;
            given[at] = args[count + static_cast<size_t>(i)];
        }
        for (int i = 0; i < kNeeded; i++)
            if (!given[i]) return false;
        for (int i = kNeeded; i < kArguments; i++)
            if (given[i] == Py_None && i + 1 < kArguments) given[i] = nullptr;
        return !given[3] || PyDict_CheckExact(given[3]);
    }

    const LoweredDef* def_of(PyObject* op) {
        const auto place = reinterpret_cast<uintptr_t>(op);
        Met& one = met[(place >> 4 ^ place >> 10) % kMet];
        if (one.op == op) return one.def;
        nb::object name = nb::borrow(op);
        if (reinterpret_cast<PyObject*>(Py_TYPE(op)) == kind)
            name = name.attr("_value_");
        else if (!PyUnicode_CheckExact(op))
            return nullptr;
        std::string text;
        if (!text_of(name, text)) return nullptr;
        const LoweredDef& def = lowered_def(text);
        const nb::object before = nb::steal(one.op);
        one = {nb::borrow(op).release().ptr(), &def};
        return &def;
    }

    static bool sync_of(PyObject* given, SyncPolicy& sync) {
        sync = SyncPolicy::full;
        if (!given) return true;
        Py_ssize_t size = 0;
        const char* text =
            PyUnicode_CheckExact(given) ? PyUnicode_AsUTF8AndSize(given, &size) : nullptr;
        if (!text) return PyErr_Clear(), false;
        sync = parse_sync({text, static_cast<size_t>(size)}, "op_call");
        return true;
    }

    /// Null where a closer look is due.
    nb::object run(PyObject* const* given) {
        SyncPolicy sync;
        const LoweredDef* const def = def_of(given[0]);
        if (!def || !sync_of(given[5], sync)) return {};
        const Attrs attrs = given[3] ? to_attrs(nb::borrow<nb::dict>(given[3])) : Attrs();
        nb::object device =
            eager_call(*def, given[1], given[2], attrs, given[4] ? given[4] : Py_None, sync);
        return device.is_none() ? device : nb::handle{event}(device);
    }

    /// With the user's line, where it is an error of arguments.
    void place_error() const {
        bool ours = false;
        for (const ErrorKind one : {ErrorKind::graph, ErrorKind::shape, ErrorKind::dtype})
            ours |= PyErr_ExceptionMatches(error_class(one)) != 0;
        if (!ours) return;
        nb::python_error error;
        nb::handle{placed}(error.value());
        error.restore();
    }
};

PyObject* call(PyObject* self, PyObject* const* args, size_t count, PyObject* named) {
    Quick& quick = *reinterpret_cast<Quick*>(self);
    PyObject* given[kArguments] = {};
    try {
        if (quick.take(given, args, static_cast<size_t>(PyVectorcall_NARGS(count)), named)) {
            try {
                if (nb::object result = quick.run(given); result.is_valid())
                    return result.release().ptr();
            } catch (nb::python_error& error) {
                error.restore();
                quick.place_error();
                return nullptr;
            } catch (...) {
                set_core_error();
                quick.place_error();
                return nullptr;
            }
        }
        return PyObject_Vectorcall(quick.checked, args, count, named);
    } catch (nb::python_error& error) {
        error.restore();
    } catch (const std::exception& error) {
        PyErr_SetString(PyExc_RuntimeError, error.what());
    }
    return nullptr;
}

template <class Act>
int each(Quick& quick, Act act) {
    PyObject** const all[] = {&quick.dict, &quick.checked, &quick.kind, &quick.event,
                              &quick.placed};
    for (PyObject** one : all)
        if (int stop = act(*one)) return stop;
    for (PyObject*& name : quick.names)
        if (int stop = act(name)) return stop;
    for (Met& one : quick.met)
        if (int stop = act(one.op)) return stop;
    return 0;
}

int traverse(PyObject* self, visitproc visit, void* arg) {
    Py_VISIT(Py_TYPE(self));
    return each(*reinterpret_cast<Quick*>(self),
                [&](PyObject* one) { return one ? visit(one, arg) : 0; });
}

int clear(PyObject* self) {
    return each(*reinterpret_cast<Quick*>(self), [](PyObject*& one) {
        Py_CLEAR(one);
        return 0;
    });
}

void dealloc(PyObject* self) {
    const nb::object type = nb::steal(reinterpret_cast<PyObject*>(Py_TYPE(self)));
    PyObject_GC_UnTrack(self);
    clear(self);
    PyObject_GC_Del(self);
}

/// As functions are: found again by its name.
PyObject* reduce(PyObject* self, PyObject*) { return PyObject_GetAttrString(self, "__qualname__"); }

/// What has it is a routine to inspect and pydoc; there is no instance to bind.
PyObject* unbound(PyObject* self, PyObject*, PyObject*) { return nb::borrow(self).release().ptr(); }

PyMemberDef members[] = {
    {"__vectorcalloffset__", Py_T_PYSSIZET, offsetof(Quick, call), Py_READONLY, nullptr},
    {"__dictoffset__", Py_T_PYSSIZET, offsetof(Quick, dict), Py_READONLY, nullptr},
    {nullptr, 0, 0, 0, nullptr}};
PyGetSetDef attributes[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict, nullptr, nullptr},
    {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyMethodDef methods[] = {{"__reduce__", reduce, METH_NOARGS, nullptr},
                         {nullptr, nullptr, 0, nullptr}};
PyType_Slot slots[] = {{Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                       {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                       {Py_tp_clear, reinterpret_cast<void*>(clear)},
                       {Py_tp_dealloc, reinterpret_cast<void*>(dealloc)},
                       {Py_tp_descr_get, reinterpret_cast<void*>(unbound)},
                       {Py_tp_members, members},
                       {Py_tp_getset, attributes},
                       {Py_tp_methods, methods},
                       {0, nullptr}};
PyType_Spec spec = {"aicf._core.Quick", sizeof(Quick), 0,
                    Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, slots};

}  // namespace

nb::object quick_op_call(nb::object checked, nb::object kind, nb::object event, nb::object placed) {
    const nb::object type = nb::steal(PyType_FromSpec(&spec));
    if (!type.is_valid()) throw nb::python_error();
    nb::object made =
        nb::steal(PyType_GenericAlloc(reinterpret_cast<PyTypeObject*>(type.ptr()), 0));
    if (!made.is_valid()) throw nb::python_error();
    Quick& quick = *reinterpret_cast<Quick*>(made.ptr());
    quick.call = call;
    quick.checked = checked.release().ptr();
    quick.kind = kind.release().ptr();
    quick.event = event.release().ptr();
    quick.placed = placed.release().ptr();
    for (int i = 0; i < kArguments; i++)
        if (!(quick.names[i] = PyUnicode_InternFromString(kNames[i]))) throw nb::python_error();
    return made;
}

}  // namespace aicf
