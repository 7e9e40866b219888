// Taps and traps of a step.
#include "core/run/watch.h"

#include "bindings/bindings.h"
#include "core/base/float_mode.h"
#include "core/compile/indices.h"

namespace aicf {

struct TapHandle {
    std::shared_ptr<Tap> tap;
};
struct TrapHandle {
    std::shared_ptr<Trap> trap;
};

namespace {

/// The graph as it was when the step was compiled.
Graph as_of(const Graph& graph, const Graph::Mark& mark) {
    Graph copy = graph;
    copy.rollback(mark);
    return copy;
}

const char* kind_of(Finding::Kind kind) {
    return kind == Finding::nan ? "nan" : kind == Finding::infinity ? "infinity" : "index";
}

}  // namespace

bool set_bad_value(const Error& error, PyObject* type) {
    const auto* bad = dynamic_cast<const BadValue*>(&error);
    if (!bad) return false;
    const BadValue::Fault& fault = bad->fault;
    try {
        nb::object raised = nb::handle(type)(error.what());
        const auto set = [&](const char* name, bool known, nb::object is) {
            raised.attr(name) = known ? is : nb::none();
        };
        const bool by_node = !fault.op.empty();
        set("kind", true, nb::cast(kind_of(fault.kind)));
        set("node", fault.node >= 0, nb::cast(fault.node));
        set("op", by_node, nb::cast(fault.op));
        set("source", by_node, nb::cast(fault.source));
        set("layer", by_node, nb::cast(fault.layer));
        set("value", true, nb::cast(fault.value));
        set("name", true, nb::cast(fault.name));
        set("index", fault.found, nb::tuple(nb::cast(fault.index)));
        set("number", fault.found,
            fault.kind == Finding::index ? nb::cast(fault.integer) : nb::cast(fault.number));
        PyErr_SetObject(type, raised.ptr());
    } catch (nb::python_error& inner) {
        inner.restore();
    }
    return true;
}

void bind_watch(nb::module_& m) {
    nb::class_<TapHandle>(m, "Tap", "Values of a step; aicf.watch.Tap is its public face.")
        .def(
            "__init__",
            [](TapHandle* self, Step& step, const Graph& graph, const Graph::Mark& mark,
               const std::vector<ValueId>& values) {
                Graph copy = as_of(graph, mark);
                for (ValueId id : values) copy.value(id);
                std::shared_ptr<Tap> tap;
                {
                    const GilRelease release;
                    const Signals signals;
                    tap = std::make_shared<Tap>(step, std::move(copy), values);
                    step.watch(tap);
                }
                new (self) TapHandle{std::move(tap)};
            },
            nb::arg("step"), nb::arg("graph"), nb::arg("mark"), nb::arg("values"))
        .def(
            "read",
            [](const TapHandle& handle, size_t i) {
                TensorRef content;
                {
                    const GilRelease release;
                    content = handle.tap->read(i);
                }
                return nb::steal(dlpack_hooks.from_tensor_ref(std::move(content)));
            },
            nb::arg("i"), nb::sig("def read(self, i: int) -> Array"))
        .def_prop_ro("step", [](const TapHandle& handle) { return handle.tap->step(); });
    nb::class_<TrapHandle>(m, "Trap", "Checks of a step; aicf.watch.Trap is its public face.")
        .def(
            "__init__",
            [](TrapHandle* self, Step& step, const Graph& graph, const Graph::Mark& mark,
               const std::vector<std::string>& layers, bool indices) {
                Graph copy = as_of(graph, mark);
                std::shared_ptr<Trap> trap;
                {
                    const GilRelease release;
                    const Signals signals;
                    trap = std::make_shared<Trap>(
                        step, std::move(copy), layers,
                        indices ? Checks::Of::computed_indices : Checks::Of::all);
                    step.watch(trap);
                }
                new (self) TrapHandle{std::move(trap)};
            },
            nb::arg("step"), nb::arg("graph"), nb::arg("mark"), nb::arg("layers"),
            nb::arg("indices"));
    m.def(
        "tap_graph",
        [](const Graph& graph, const std::vector<ValueId>& values) {
            Graph copy = graph;
            for (ValueId id : values) copy.value(id);
            probe(copy, values);
            return copy;
        },
        nb::arg("graph"), nb::arg("values"), "The graph that a tap of these values runs.");
    m.def(
        "trap_graph",
        [](const Graph& graph) {
            Graph copy = graph;
            const Checks checks(copy);
            return copy;
        },
        nb::arg("graph"), nb::call_guard<FloatMode>(), "The graph that a trap runs.");
    m.def(
        "computes_indices", [](const Graph& graph) { return !index_uses(graph).computed.empty(); },
        nb::arg("graph"),
        "Whether a step has to compute what it takes rows by to know that it is in range.");
}

}  // namespace aicf
