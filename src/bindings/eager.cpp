// The one eager door: a lowered op on the caller's tensors, and what a schema says.
#include "core/run/eager.h"

#include <memory_resource>

#include "bindings/bindings.h"
#include "bindings/eager.h"

namespace aicf {

const LoweredDef& lowered_def(const std::string& name) {
    if (const LoweredDef* def = find_lowered(name)) return *def;
    std::string close;
    for (const LoweredDef* def : all_lowered())
        if (name.size() > 2 && def->name.find(name.substr(0, 3)) != std::string::npos)
            close += (close.empty() ? ", such as " : ", ") + def->name;
    raise(ErrorKind::graph, "op_call: there is no lowered op \"", name,
          "\"; need a name of aicf.OpKind", close);
}

namespace {

void check_list(const LoweredDef& def, nb::handle list, const char* kind) {
    if (!nb::isinstance<nb::list>(list) && !nb::isinstance<nb::tuple>(list))
        raise(ErrorKind::graph, def.name, ": ", kind, " is a ",
              nb::cast<std::string>(nb::str(nb::type_name(list.type()))),
              "; need a list or tuple of tensors");
}

/// The operands of a call, inputs first, with the objects whose memory they are. What a few take
/// comes from no allocator.
class Operands {
  public:
    Operands(const LoweredDef& def, nb::handle inputs, nb::handle outputs) : def_(def) {
        tensors_.reserve(kFew);
        objects_.reserve(kFew);
        add(inputs);
        inputs_ = objects_.size();
        add(outputs);
    }

    /// The stream a call runs on if it is a GPU's: the one given, else the outputs' framework's
    /// current one; the legacy default where that is not known.
    intptr_t stream_for(std::optional<intptr_t> given) const {
        constexpr intptr_t legacy = 1;
        if (given) return *given ? *given : legacy;
        if (inputs_ == objects_.size()) return legacy;
        if (tensors_[inputs_].stream) return *tensors_[inputs_].stream;
        return work_stream(objects_[inputs_]).value_or(legacy);
    }

    /// Makes them ready for use on `stream`: what its framework does on that one now comes before
    /// anyway. Once code of a user's may have run, nothing is used that nobody holds.
    void import_on(intptr_t stream) {
        bool ran = false;
        for (size_t i = 0; i < objects_.size(); i++)
            if (tensors_[i].stream != stream) {
                import(i, stream);
                ran = true;
            }
        for (size_t i = 0; ran && i < objects_.size(); i++)
            if (!tensors_[i].owner) import(i, stream);
    }

    Tensors inputs() const { return Tensors(tensors_).first(inputs_); }
    Tensors outputs() const { return Tensors(tensors_).subspan(inputs_); }

  private:
    static constexpr size_t kFew = 8;

    void add(nb::handle list) {
        const bool tuple = PyTuple_CheckExact(list.ptr());
        if (!tuple && !PyList_CheckExact(list.ptr())) {
            for (nb::handle object : list) add_one(object);
            return;
        }
        for (Py_ssize_t i = 0; i < (tuple ? PyTuple_Size(list.ptr()) : PyList_Size(list.ptr()));
             i++)
            add_one(tuple ? PyTuple_GetItem(list.ptr(), i) : PyList_GetItem(list.ptr(), i));
    }
    void add_one(nb::handle object) {
        objects_.push_back(nb::borrow(object));
        TensorRef& ref = tensors_.emplace_back();
        if (!peek_tensor(object, ref, known_)) ref = {};
    }

    [[gnu::noinline]] void import(size_t i, intptr_t stream) {  // it is rarely needed
        const nb::handle object = objects_[i];
        const bool written = i >= inputs_;
        const std::string where = cat(def_.name, ": ", written ? "output " : "input ",
                                      operand_name(written ? def_.outputs : def_.inputs,
                                                   static_cast<int>(written ? i - inputs_ : i)));
        if (written && is_step_output(object))
            raise(ErrorKind::graph, where,
                  " is an output of a step, of which only copies are handed out; need a tensor of "
                  "your own (bind it to the output)");
        ImportOptions options;
        options.allow_copy = false;
        options.consumer_stream = stream;
        const std::optional<intptr_t> now = work_stream(object);
        tensors_[i] = import_tensor(object, where.c_str(), options);
        tensors_[i].stream = now;
    }

    const LoweredDef& def_;
    alignas(TensorRef) char room_[kFew * (sizeof(TensorRef) + sizeof(nb::object))];
    std::pmr::monotonic_buffer_resource memory_{room_, sizeof room_};
    std::pmr::vector<TensorRef> tensors_{&memory_};
    std::pmr::vector<nb::object> objects_{&memory_};
    size_t inputs_ = 0;
    CurrentStream known_;
};

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

nb::object eager_call(const LoweredDef& def, nb::handle inputs, nb::handle outputs,
                      const Attrs& attrs, nb::handle stream, SyncPolicy sync) {
    check_list(def, inputs, "inputs");
    check_list(def, outputs, "outputs");
    const std::optional<intptr_t> asked = stream_of(stream);
    Operands operands(def, inputs, outputs);
    const intptr_t on = operands.stream_for(asked);
    operands.import_on(on);
    const Tensors in = operands.inputs(), out = operands.outputs();
    const Device device = out.empty() ? Device{} : out[0].device;
    const bool cpu = device.kind == Device::cpu;
    if (asked && cpu)
        raise(ErrorKind::graph, "op_call: stream is ", *asked,
              ", the outputs are on the cpu, which has none; need stream=None");
    {
        GilRelease release;
        op_call(def, in, out, attrs, sync, cpu ? std::nullopt : std::optional(on));
    }
    return sync == SyncPolicy::event ? nb::cast(to_string(device)) : nb::none();
}

void bind_eager(nb::module_& m) {
    m.def(
        "op_call",
        [](const std::string& op, nb::handle inputs, nb::handle outputs, const nb::dict& attrs,
           nb::handle stream, const std::string& sync) {
            const LoweredDef& def = lowered_def(op);
            const SyncPolicy policy = parse_sync(sync, "op_call");
            return eager_call(def, inputs, outputs, to_attrs(attrs), stream, policy);
        },
        nb::arg("op"), nb::arg("inputs").none(), nb::arg("outputs").none(), nb::arg("attrs"),
        nb::arg("stream").none(), nb::arg("sync"),
        nb::sig("def op_call(op: str, inputs: object | None, outputs: object | None, attrs: dict, "
                "stream: object | None, sync: str) -> str | None"),
        "Runs one lowered op on the caller's tensors, and says of sync=\"event\" where; "
        "aicf.op_call is its public face.");
    m.def("quick_op_call", &quick_op_call, nb::arg("checked"), nb::arg("kind"), nb::arg("event"),
          nb::arg("placed"),
          "What aicf.op_call is: `checked`, behind a look at what the usual arguments are.");
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
