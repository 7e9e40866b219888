// Graph, its report and its reader.
#include <cstring>
#include <set>

#include "bindings/bindings.h"
#include "core/base/float_mode.h"
#include "core/compile/compile.h"
#include "core/compile/passes.h"
#include "core/run/backend.h"

namespace aicf {

Device parse_device(std::string_view text) {
    if (text == "cpu") return {};
    if (text == "cuda") return {Device::cuda, 0};
    if (text.starts_with("cuda:") && text.size() > 5 && text.size() < 9 &&
        text.find_first_not_of("0123456789", 5) == std::string_view::npos)
        return {Device::cuda, std::stoi(std::string(text.substr(5)))};
    raise(ErrorKind::graph, "device: got \"", text,
          "\"; need \"cpu\", \"cuda\" or \"cuda:<index>\"");
}

TensorRef tensor_or_numbers(nb::handle object, DType wanted, const char* where) {
    if (object.is_none() || nb::isinstance<nb::str>(object) ||
        nb::hasattr(object, "_no_data"))  // a Value of a graph
        raise(ErrorKind::dtype, where, ": got ", repr_of(object),
              "; need data: an array, a tensor or numbers");
    return is_tensor(object) ? import_tensor(object, where) : numpy_like(object, wanted, where);
}

std::vector<char> packed_bytes(const TensorRef& tensor) {
    if (tensor.device.kind != Device::cpu)
        raise(ErrorKind::device_unavailable, "init: got a tensor on ", to_string(tensor.device),
              "; need one in host memory");
    const TensorRef packed =
        is_contiguous(tensor.shape, tensor.strides) ? tensor : copy_tensor(tensor);
    std::vector<char> bytes(
        static_cast<size_t>(element_count(packed.shape) * dtype_size(packed.dtype)));
    if (!bytes.empty()) std::memcpy(bytes.data(), packed.data, bytes.size());
    return bytes;
}

namespace {

Attr to_attr(nb::handle object, const std::string& name) {
    if (nb::isinstance<nb::bool_>(object)) return nb::cast<bool>(object);
    if (nb::isinstance<nb::int_>(object)) {
        int overflow = 0;
        const long long value = PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
        if (overflow)
            raise(ErrorKind::graph, "attribute \"", name, "\": ", repr_of(object),
                  " does not fit 64 bits; need a smaller int");
        return static_cast<int64_t>(value);
    }
    if (nb::isinstance<nb::float_>(object)) return nb::cast<double>(object);
    std::string text;
    if (text_of(object, text)) return text;
    if (nb::isinstance<Graph>(object))
        return Body(std::make_shared<const Graph>(nb::cast<const Graph&>(object)));
    if (nb::isinstance<nb::list>(object) || nb::isinstance<nb::tuple>(object)) {
        std::vector<int64_t> list;
        for (nb::handle item : object) {
            int64_t value = 0;
            if (nb::isinstance<nb::bool_>(item) || !nb::try_cast(item, value))
                raise(ErrorKind::graph, "attribute \"", name, "\": its list holds ", repr_of(item),
                      "; need 64-bit integers");
            list.push_back(value);
        }
        return list;
    }
    raise(ErrorKind::graph, "attribute \"", name, "\" is a ",
          nb::cast<std::string>(nb::str(object.type())),
          "; need bool, int, float, str or a list of int");
}

}  // namespace

Attrs to_attrs(const nb::dict& dict) {
    Attrs attrs;
    for (auto [key, value] : dict) {
        std::string name;
        if (!text_of(key, name))
            raise(ErrorKind::graph, "attribute ", repr_of(key), ": need a str as its name");
        attrs.set(name, to_attr(value, name));
    }
    return attrs;
}

namespace {

Dims to_dims(const std::vector<int64_t>& shape, const char* where) {
    if (shape.size() > kMaxDims)
        raise(ErrorKind::shape, where, ": ", shape.size(), " dimensions; need at most ", kMaxDims);
    return Dims(shape);
}

/// ("zeros",), ("constant", v), ("uniform", low, high), ("normal", mean, deviation) or a tensor.
Init to_init(nb::handle spec, const Type& type, const std::string& name) {
    const std::string where = "init of \"" + name + "\"";
    if (!nb::isinstance<nb::tuple>(spec) || nb::len(spec) == 0 ||
        !nb::isinstance<nb::str>(spec[0])) {
        const TensorRef tensor = tensor_or_numbers(spec, type.dtype, where.c_str());
        if (!(Type{tensor.dtype, tensor.shape} == type))
            raise(tensor.dtype == type.dtype ? ErrorKind::shape : ErrorKind::dtype, where, ": got ",
                  type_string(tensor.dtype, tensor.shape), "; need ", to_string(type));
        return {Init::data, 0, 0, std::make_shared<const std::vector<char>>(packed_bytes(tensor))};
    }
    std::string kind;
    if (!text_of(spec[0], kind)) kind = repr_of(spec[0]);
    const auto number = [&](size_t i) {
        double value = 0;
        if (i >= nb::len(spec) || !nb::try_cast(spec[i], value))
            raise(ErrorKind::graph, where, ": kind \"", kind,
                  "\" lacks a number; need what aicf.init makes");
        return value;
    };
    if (kind == "zeros") return {};
    if (kind == "seed") return {Init::seed, 0, 0, {}};
    if (kind == "constant") return {Init::constant, number(1), 0, {}};
    if (kind == "uniform") return {Init::uniform, number(1), number(2), {}};
    if (kind == "normal") return {Init::normal, number(1), number(2), {}};
    raise(ErrorKind::graph, where, ": unknown kind \"", kind,
          "\"; need zeros, constant, uniform or normal");
}

Value read_value(int id, const std::string& name, const std::string& dtype,
                 const std::vector<int64_t>& shape, const std::string& role, nb::handle init,
                 int moment_of, int slot) {
    const std::string where = cat("values[", id, "]");
    Value value;
    value.id = id;
    value.name = name;
    if (shape.size() > kMaxDims)
        raise(ErrorKind::format, where, ": ", shape.size(), " dimensions; need at most ", kMaxDims);
    try {
        value.type = {parse_dtype(dtype, where), Dims(shape)};
    } catch (const Error& error) {
        raise(ErrorKind::format, error.what());
    }
    const std::optional<Role> parsed = parse_role(role);
    if (!parsed)
        raise(ErrorKind::format, where, ": unknown role \"", role,
              "\"; need input, param, state, constant or temp");
    value.role = *parsed;
    if (nb::isinstance<nb::bytes>(init)) {
        const auto bytes = nb::cast<nb::bytes>(init);
        value.init = {
            Init::data, 0, 0,
            std::make_shared<const std::vector<char>>(bytes.c_str(), bytes.c_str() + bytes.size())};
    } else if (!init.is_none()) {
        value.init = to_init(init, value.type, name);
    }
    value.moment_of = moment_of;
    value.moment_slot = slot;
    return value;
}

}  // namespace

void bind_graph(nb::module_& m) {
    nb::class_<Report>(m, "Report", "What verify() found, line by line.")
        .def_prop_ro("ok", &Report::ok, "True when no line failed.")
        .def_prop_ro(
            "lines",
            [](const Report& r) {
                std::vector<std::pair<bool, std::string>> lines;
                for (const ReportLine& line : r.lines)
                    lines.emplace_back(line.ok, "[" + line.area + "] " + line.text);
                return lines;
            },
            "Pairs (ok, text).")
        .def("__bool__", &Report::ok)
        .def("__str__", &Report::text)
        .def("__repr__", &Report::text);

    nb::class_<Graph::Mark>(m, "GraphMark", "How much of a graph was built, for `rollback`.")
        .def_ro("values", &Graph::Mark::values)
        .def_ro("nodes", &Graph::Mark::nodes)
        .def_ro("outputs", &Graph::Mark::outputs)
        .def_ro("assigns", &Graph::Mark::assigns)
        .def_ro("gradients", &Graph::Mark::gradients);
    nb::class_<Stage>(m, "Stage", "A graph before any pass, or after one, and what it costs.")
        .def_ro("name", &Stage::pass)
        .def_ro("keeps_bits", &Stage::keeps_bits)
        .def_ro("text", &Stage::text)
        .def_ro("ops", &Stage::ops)
        .def_prop_ro("bytes_moved",
                     [](const Stage& s) { return static_cast<int64_t>(s.cost.bytes); })
        .def_prop_ro("flops", [](const Stage& s) { return static_cast<int64_t>(s.cost.flops); })
        .def_ro("peak_bytes", &Stage::peak_bytes);

    nb::class_<Graph>(m, "Graph", "The intermediate representation; aicf.Graph is its public face.")
        .def(nb::init<std::string>(), nb::arg("name"))
        .def_rw("where", &Graph::where)
        .def_ro("name", &Graph::name)
        .def("input",
             [](Graph& g, const std::string& name, const std::vector<int64_t>& shape,
                const std::string& dtype) {
                 return g.input(name, {parse_dtype(dtype, "input"), to_dims(shape, "input")});
             })
        .def("param",
             [](Graph& g, const std::string& name, const std::vector<int64_t>& shape,
                const std::string& dtype, nb::object init) {
                 const Type type{parse_dtype(dtype, "param"), to_dims(shape, "param")};
                 return g.param(name, type, to_init(init, type, name));
             })
        .def("state",
             [](Graph& g, const std::string& name, const std::vector<int64_t>& shape,
                const std::string& dtype, nb::object init) {
                 const Type type{parse_dtype(dtype, "state"), to_dims(shape, "state")};
                 return g.state(name, type, to_init(init, type, name));
             })
        .def(
            "constant",
            [](Graph& g, nb::handle object, std::optional<std::string> dtype) {
                const TensorRef tensor = tensor_or_numbers(
                    object, dtype ? parse_dtype(*dtype, "constant") : DType::f32, "constant");
                return g.constant({tensor.dtype, tensor.shape}, packed_bytes(tensor));
            },
            nb::arg("array").none(), nb::arg("dtype") = nb::none())
        .def(
            "scalar",
            [](Graph& g, const std::string& dtype, double number) {
                return g.scalar(parse_dtype(dtype, "constant"), number);
            },
            nb::call_guard<FloatMode>())
        .def(
            "emit",
            [](Graph& g, const std::string& op, const std::vector<ValueId>& inputs,
               const nb::dict& attrs,
               const std::string& name) { return g.emit(op, inputs, to_attrs(attrs), name); },
            nb::arg("op"), nb::arg("inputs"), nb::arg("attrs") = nb::dict(), nb::arg("name") = "",
            nb::call_guard<FloatMode>())
        .def("assign", &Graph::assign)
        .def("output", &Graph::output)
        .def("mark_moment", &Graph::mark_moment)
        .def("mark", &Graph::mark)
        .def("rollback", &Graph::rollback)
        .def("placeholder",
             [](Graph& g, const std::vector<int64_t>& shape, const std::string& dtype) {
                 return g.placeholder({parse_dtype(dtype, "scan"), to_dims(shape, "scan")});
             })
        .def("cut_body",
             [](Graph& g, const std::string& where, const Graph::Mark& mark,
                const std::vector<ValueId>& inputs, const std::vector<ValueId>& outputs) {
                 const Cut made = cut_body(g, where, mark, inputs, outputs);
                 return std::pair(Graph(*made.body), made.captured);
             })
        .def("append_body",
             [](Graph& g, const Graph& body, const std::vector<ValueId>& inputs) {
                 return append_body(g, body, inputs);
             })
        .def("results",
             [](const Graph& g) {
                 std::vector<std::pair<std::vector<int64_t>, std::string>> types;
                 for (const GraphOutput& output : g.outputs) {
                     const Type& type = g.value(output.value).type;
                     types.emplace_back(type.shape.vector(), dtype_name(type.dtype));
                 }
                 return types;
             })
        .def("assigned", &Graph::assigned)
        .def("free_stream", &Graph::free_stream)
        .def(
            "content",
            [](const Graph& g, ValueId id) -> std::optional<nb::bytes> {
                const Value& value = g.value(id);
                if (value.role != Role::constant) return std::nullopt;
                const std::vector<char>& bytes = *value.init.bytes;
                return nb::bytes(bytes.data(), bytes.size());
            },
            nb::arg("id"), "The bytes of a constant, in C order; None of others.")
        .def(
            "initial_number",
            [](const Graph& g, ValueId id, bool said) -> std::optional<double> {
                const Init& init = g.value(id).init;
                if (init.kind == Init::constant) return init.a;
                if (init.kind == Init::zeros && !said) return 0;
                return std::nullopt;
            },
            nb::arg("id"), nb::arg("said") = false,
            "What all elements begin with; `said`: none where that is the zero of nothing said.")
        .def(
            "backward",
            [](Graph& g, ValueId loss, const std::vector<ValueId>& wrt, ValueId seed, bool record,
               const nb::callable& own_rule) {
                const OwnRule rule = [&](ValueId result, const std::vector<ValueId>& dys) {
                    return nb::cast<std::vector<ValueId>>(own_rule(result, dys));
                };
                return backward(g, loss, wrt, seed, record, &rule);
            },
            nb::arg("loss"), nb::arg("wrt"), nb::arg("seed"), nb::arg("record"),
            nb::arg("own_rule"), nb::call_guard<FloatMode, Signals>())
        .def(
            "backward_all",
            [](Graph& g, const std::vector<ValueId>& results, const std::vector<ValueId>& seeds,
               const std::vector<ValueId>& wrt) { return backward(g, results, seeds, wrt); },
            nb::arg("results"), nb::arg("seeds"), nb::arg("wrt"),
            nb::call_guard<FloatMode, Signals>(),
            "Of several results, each with the gradient that reaches it.")
        .def("reached_params", &reached_params)
        .def("sources", [](const Graph& g, ValueId value, const std::vector<ValueId>& known,
                           const Graph::Mark& mark) { return sources(g, value, known, mark); })
        .def("find",
             [](const Graph& g, std::string_view name) {
                 const Value* v = g.find(name);
                 return v ? v->id : kNone;
             })
        .def("shape",
             [](const Graph& g, ValueId id) {
                 return nb::tuple(nb::cast(g.value(id).type.shape.vector()));
             })
        .def(
            "dtype",
            [](const Graph& g, ValueId id) { return python_dtype(g.value(id).type.dtype); },
            nb::sig("def dtype(self, arg: int, /) -> str"))
        .def("role", [](const Graph& g, ValueId id) { return role_name(g.value(id).role); })
        .def("value_name", [](const Graph& g, ValueId id) { return g.value(id).name; })
        .def("describe", &Graph::describe)
        .def("leaves",
             [](const Graph& g, const std::string& role) {
                 std::vector<ValueId> ids;
                 for (const Value& value : g.values)
                     if (role_name(value.role) == role) ids.push_back(value.id);
                 return ids;
             })
        .def(
            "verify", [](const Graph& g) { return verify(g); }, nb::call_guard<Signals>())
        .def("to_json", [](const Graph& g) { return to_json(g); })
        .def("op_names",
             [](const Graph& g) {
                 std::set<std::string> names;
                 for (const Node& node : g.nodes) names.insert(node.op_name);
                 return std::vector<std::string>(names.begin(), names.end());
             })
        .def("nodes_since",
             [](const Graph& g, const Graph::Mark& mark) {
                 return "[" + nodes_json(g, mark.nodes) + "]";
             })
        .def("to_text", [](const Graph& g) { return to_text(g); })
        .def("to_dot", [](const Graph& g) { return to_dot(g); })
        .def(
            "stages",
            [](const Graph& g, const std::vector<std::string>& names, const std::string& device,
               const std::string& math) {
                const auto backend = open_backend(parse_device(device));
                CompileOptions options;
                options.passes = names;
                options.math = math;
                return trace_passes(g, backend->target(), options);
            },
            nb::arg("passes"), nb::arg("device") = "cpu", nb::arg("math") = "fp32",
            nb::call_guard<FloatMode, Signals>())
        .def(
            "lower_text",
            [](const Graph& g, const std::string& math) {
                CompileOptions options;
                options.math = math;
                return to_text(rewrite(g, open_backend({})->target(), options));
            },
            nb::arg("math") = "fp32", nb::call_guard<FloatMode, Signals>())
        .def(
            "lower_json",
            [](const Graph& g) { return to_json(rewrite(g, open_backend({})->target(), {})); },
            nb::call_guard<FloatMode, Signals>());

    nb::class_<GraphReader>(m, "GraphReader",
                            "Rebuilds a graph from the pieces of a file, checking each.")
        .def(nb::init<std::string, bool>(), nb::arg("name"), nb::arg("strict"))
        .def(
            "value",
            [](GraphReader& r, int id, const std::string& name, const std::string& dtype,
               const std::vector<int64_t>& shape, const std::string& role, nb::handle init,
               int moment_of, int slot) {
                r.value(read_value(id, name, dtype, shape, role, init, moment_of, slot));
            },
            nb::arg("id"), nb::arg("name"), nb::arg("dtype"), nb::arg("shape"), nb::arg("role"),
            nb::arg("init").none(), nb::arg("moment_of"), nb::arg("slot"))
        .def(
            "node",
            [](GraphReader& r, const std::string& op, std::vector<ValueId> inputs,
               std::vector<ValueId> outputs, const nb::dict& attrs, int forward,
               const std::string& where) {
                r.node(op, std::move(inputs), std::move(outputs), to_attrs(attrs), forward, where);
            },
            nb::call_guard<FloatMode>())
        .def("output", &GraphReader::output)
        .def("assign", &GraphReader::assign)
        .def(
            "gradient",
            [](GraphReader& r, ValueId loss, ValueId value, ValueId grad, ValueId seed) {
                r.gradient({loss, value, grad, seed});
            },
            nb::arg("loss"), nb::arg("value"), nb::arg("grad"), nb::arg("seed") = kNone)
        .def("finish", &GraphReader::finish, nb::call_guard<Signals>());

    m.def(
        "op_names",
        [] {
            std::vector<std::string> names;
            for (const OpDef* def : all_ops()) names.push_back(def->name);
            return names;
        },
        "Names of all IR ops.");
    m.def(
        "lowered_names",
        [] {
            std::vector<std::string> names;
            for (const LoweredDef* def : all_lowered()) names.push_back(def->name);
            return names;
        },
        "Names of all lowered ops.");
    m.def(
        "pointwise_ops",
        [] {
            std::vector<std::string> names;
            for (const OpDef* def : all_ops())
                if (const LoweredDef* low = find_lowered(def->lowered); low && low->pointwise)
                    names.push_back(def->name);
            return names;
        },
        "Names of the IR ops that make one element of one element of each operand.");
    m.def(
        "op_grad",
        [](const std::string& name) -> std::string {
            const OpDef* def = find_op(name);
            if (!def) raise(ErrorKind::graph, "op_grad: unknown op \"", name, "\"");
            return def->grad ? "" : def->no_grad;
        },
        "Empty when the op has a gradient, else the written reason why not.");
    m.def(
        "pass_names",
        [] {
            std::vector<std::string> names;
            for (const Pass& pass : all_passes()) names.push_back(pass.name);
            return names;
        },
        "The default pass list, in order.");
    m.def("narrow_any_size", &narrow_any_size, nb::arg("any"),
          "For tests: whether \"mixed\" takes products of any size in 16 bits, so that small ones "
          "reach these kernels. Returns what it was.");
    m.def("simplify_rules", &simplify_rules,
          "Name and reason of each rewrite of the pass simplify.");
}

}  // namespace aicf
