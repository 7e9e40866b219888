// The one eager door: a lowered op on the caller's tensors, and what a schema says.
#include "core/run/eager.h"

#include "bindings/bindings.h"

namespace aicf {

namespace {

const LoweredDef& lowered_def(const std::string& name) {
    if (const LoweredDef* def = find_lowered(name)) return *def;
    std::string close;
    for (const LoweredDef* def : all_lowered())
        if (name.size() > 2 && def->name.find(name.substr(0, 3)) != std::string::npos)
            close += (close.empty() ? ", such as " : ", ") + def->name;
    raise(ErrorKind::graph, "op_call: there is no lowered op \"", name,
          "\"; need a name of aicf.OpKind", close);
}

/// The operands of a call, with the objects whose memory they are.
struct Operands {
    std::vector<TensorRef> tensors;
    std::vector<nb::object> objects;
};

void check_list(const LoweredDef& def, nb::handle list, const char* kind) {
    if (!nb::isinstance<nb::list>(list) && !nb::isinstance<nb::tuple>(list))
        raise(ErrorKind::graph, def.name, ": ", kind, " is a ",
              nb::cast<std::string>(nb::str(nb::type_name(list.type()))),
              "; need a list or tuple of tensors");
}

/// Ready for use on `stream`: what its framework does on that one now comes before anyway.
Operands import_operands(const LoweredDef& def, nb::handle list,
                         const std::vector<std::string>& names, bool written, intptr_t stream) {
    Operands operands;
    const auto count = nb::len(list);
    operands.tensors.reserve(count);
    operands.objects.reserve(count);
    int i = 0;
    for (nb::handle object : list) {
        TensorRef& ref = operands.tensors.emplace_back();
        operands.objects.push_back(nb::borrow(object));
        const int place = i++;
        if (peek_tensor(object, ref) && ref.stream == stream) continue;
        const std::string where =
            cat(def.name, ": ", written ? "output " : "input ", operand_name(names, place));
        if (written && is_step_output(object))
            raise(ErrorKind::graph, where,
                  " is an output of a step, of which only copies are handed out; need a tensor of "
                  "your own (bind it to the output)");
        ImportOptions options;
        options.allow_copy = false;
        options.consumer_stream = stream;
        const std::optional<intptr_t> now = work_stream(object);
        ref = import_tensor(object, where.c_str(), options);
        ref.stream = now;
    }
    return operands;
}

/// The stream a call runs on if it is a GPU's: the one given, else the outputs' framework's current
/// one; the legacy default where that is not known.
intptr_t stream_for(std::optional<intptr_t> given, nb::handle outputs) {
    constexpr intptr_t legacy = 1;
    if (given) return *given ? *given : legacy;
    return nb::len(outputs) ? work_stream(nb::object(outputs[0])).value_or(legacy) : legacy;
}

nb::dict schema(const LoweredDef& def) {
    nb::list attrs;
    for (const AttrDef& attr : def.attrs) {
        const nb::object fallback =
            attr.required
                ? nb::none()
                : std::visit(
                      [](const auto& value) -> nb::object {
                          if constexpr (std::is_same_v<std::decay_t<decltype(value)>, Body>)
                              return nb::none();
                          else
                              return nb::cast(value);
                      },
                      attr.fallback);
        attrs.append(nb::make_tuple(attr.name, fallback, attr.required, attr.choices));
    }
    nb::dict result;
    result["inputs"] = def.inputs;
    result["outputs"] = def.outputs;
    result["attrs"] = attrs;
    result["inplace"] = def.inplace;
    result["contiguous"] = def.contiguous;
    result["pointwise"] = def.pointwise;
    result["reduction"] = def.reduction;
    result["random"] = def.random;
    return result;
}

}  // namespace

void bind_eager(nb::module_& m) {
    m.def(
        "op_call",
        [](const std::string& op, nb::handle inputs, nb::handle outputs, const nb::dict& attrs,
           nb::handle stream, const std::string& sync) -> nb::object {
            const LoweredDef& def = lowered_def(op);
            const SyncPolicy policy = parse_sync(sync, "op_call");
            const Attrs given = to_attrs(attrs);
            check_list(def, inputs, "inputs");
            check_list(def, outputs, "outputs");
            const std::optional<intptr_t> asked = stream_of(stream);
            const intptr_t on = stream_for(asked, outputs);
            const Operands in = import_operands(def, inputs, def.inputs, false, on),
                           out = import_operands(def, outputs, def.outputs, true, on);
            const Device device = out.tensors.empty() ? Device{} : out.tensors[0].device;
            const bool cpu = device.kind == Device::cpu;
            if (asked && cpu)
                raise(ErrorKind::graph, "op_call: stream is ", *asked,
                      ", the outputs are on the cpu, which has none; need stream=None");
            {
                GilRelease release;
                op_call(def, in.tensors, out.tensors, given, policy,
                        cpu ? std::nullopt : std::optional(on));
            }
            return policy == SyncPolicy::event ? nb::cast(to_string(device)) : nb::none();
        },
        nb::arg("op"), nb::arg("inputs").none(), nb::arg("outputs").none(), nb::arg("attrs"),
        nb::arg("stream").none(), nb::arg("sync"),
        nb::sig("def op_call(op: str, inputs: object | None, outputs: object | None, attrs: dict, "
                "stream: object | None, sync: str) -> str | None"),
        "Runs one lowered op on the caller's tensors, and says of sync=\"event\" where; "
        "aicf.op_call is its public face.");
    m.def(
        "eager_synchronize",
        [](const std::string& device) {
            const Device parsed = parse_device(device);
            GilRelease release;
            eager_synchronize(parsed);
        },
        nb::arg("device"), "Waits for every op_call on the device.");
    m.def(
        "eager_close",
        [] {
            nb::gil_scoped_release release;
            try {
                eager_close();
            } catch (...) {  // a lost device, when the process ends anyway
            }
        },
        "Gives back what eager calls hold on every device; called when the interpreter ends.");
    nb::module_::import_("atexit").attr("register")(m.attr("eager_close"));
    m.def(
        "workspace_bytes",
        [](const std::string& op,
           const std::vector<std::pair<std::vector<int64_t>, std::string>>& inputs,
           const nb::dict& attrs, const std::string& device) {
            const LoweredDef& def = lowered_def(op);
            std::vector<TensorRef> in;
            for (const auto& [shape, dtype] : inputs) {
                TensorRef ref;
                ref.dtype = parse_dtype(dtype, def.name);
                if (shape.size() > kMaxDims)
                    raise(ErrorKind::shape, def.name, ": got ", shape.size(),
                          " dimensions; need at most ", kMaxDims);
                ref.shape = Dims(shape);
                for (int64_t size : shape)
                    if (size < 0)
                        raise(ErrorKind::shape, def.name, ": shape ", to_string(ref.shape),
                              " has a negative size; need sizes >= 0");
                in.push_back(std::move(ref));
            }
            const Attrs given = to_attrs(attrs);
            const Device parsed = parse_device(device);
            GilRelease release;
            return workspace_bytes(def, in, given, parsed);
        },
        nb::arg("op"), nb::arg("inputs"), nb::arg("attrs"), nb::arg("device"),
        "Bytes an op borrows during a call; aicf.workspace_bytes is its public face.");
    m.def(
        "lowered_schema", [](const std::string& op) { return schema(lowered_def(op)); },
        nb::arg("op"), "What a lowered op takes and gives: operands, attributes, in-place pairs.");
}

}  // namespace aicf
