// Custom ops: by the user's source code or by a host callback.
#include <algorithm>
#include <map>
#include <memory>
#include <mutex>

#include "core/base/fork.h"
#include "core/graph/custom.h"

namespace aicf {

namespace {

/// Types as a list of integers: for each its dtype, its rank and its sizes.
std::vector<Type> declared_types(const InferContext& c) {
    std::vector<Type> types;
    const std::vector<int64_t>& list = c.attrs.ints("types");
    size_t at = 0;
    const auto next = [&](int64_t most, const char* what) {
        if (at == list.size() || list[at] < 0 || list[at] >= most)
            c.value_error("types has no ", what, " at position ", at,
                          "; need for each output its dtype, its rank and its sizes");
        return list[at++];
    };
    while (at < list.size()) {
        Type type;
        type.dtype = static_cast<DType>(next(kDTypes, "dtype"));
        for (int64_t rank = next(kMaxDims + 1, "rank"); rank > 0; rank--)
            type.shape.push(next(INT64_MAX, "size"));
        types.push_back(type);
    }
    if (types.empty()) c.value_error("types is empty; need at least one output");
    return types;
}

std::vector<Type> infer_custom(const InferContext& c) {
    std::vector<Type> types = declared_types(c);
    const int64_t axes = c.attrs.integer("unit_axes"), rank = types[0].shape.rank();
    if (axes < 0 || axes > rank)
        c.shape_error("unit_axes is ", axes, ", the first output is ", to_string(types[0]),
                      "; need 0 to ", rank);
    return types;
}

/// Calls the user's gradient function.
void custom_grad(GradContext& g) {
    const std::vector<ValueId> grads = g.own_rule();
    check(std::ssize(grads) == g.inputs(), "custom op: one gradient an operand");
    for (int i = 0; i < g.inputs(); i++)
        if (grads[i] != kNone) g.set(i, {g.in(0).graph, grads[i]});
}

void lower_to(LowerContext& c, const char* name) {
    std::vector<View> inputs, outputs;
    for (int i = 0; i < c.inputs(); i++) inputs.push_back(c.in(i));
    for (int i = 0; i < c.outputs(); i++) outputs.push_back(c.out(i));
    c.op(name, std::move(inputs), std::move(outputs), c.attrs());
}

const std::vector<AttrDef> kCustomAttrs = {{"op", std::string(), true},
                                           {"digest", std::string(), true},
                                           {"types", std::vector<int64_t>(), true},
                                           {"unit_axes", int64_t(0), true},
                                           {"strided", false},
                                           {"order", std::string("elementwise")},
                                           {"*", int64_t(0)}};
const std::vector<AttrDef> kHostAttrs = {{"op", std::string(), true},
                                         {"key", int64_t(0), true},
                                         {"types", std::vector<int64_t>(), true},
                                         {"call", int64_t(0), true},
                                         {"cost", std::string(), true},
                                         {"*", int64_t(0)}};

/// All operands of a variadic op.
std::vector<int> all_operands() {
    std::vector<int> all(512);
    for (int i = 0; i < 512; i++) all[static_cast<size_t>(i)] = i;
    return all;
}

}  // namespace

void define_custom_ops() {
    define(OpDef{.name = "CustomOp",
                 .fn = "custom_op",
                 .inputs = {"xs*"},
                 .outputs = {"ys*"},
                 .attrs = kCustomAttrs,
                 .infer = infer_custom,
                 .grad = custom_grad,
                 .lower = [](LowerContext& c) {
                     lower_to(c, c.attrs().flag("strided") ? "custom_strided" : "custom_op");
                 }});
    for (const bool strided : {false, true})
        define(LoweredDef{.name = strided ? "custom_strided" : "custom_op",
                          .inputs = {"xs*"},
                          .outputs = {"ys*"},
                          .attrs = kCustomAttrs,
                          .infer = infer_custom,
                          .contiguous = strided ? std::vector<int>() : all_operands(),
                          .alone = true});
    define(OpDef{.name = "HostCall",
                 .fn = "custom_op",
                 .inputs = {"xs*"},
                 .outputs = {"ys*"},
                 .attrs = kHostAttrs,
                 .infer = declared_types,
                 .grad = custom_grad,
                 .lower = [](LowerContext& c) { lower_to(c, "host_call"); }});
    define(LoweredDef{.name = "host_call",
                      .inputs = {"xs*"},
                      .outputs = {"ys*"},
                      .attrs = kHostAttrs,
                      .infer = declared_types,
                      .contiguous = all_operands(),
                      .alone = true});
}

// ---- what no graph holds -----------------------------------------------------------------------

namespace {

struct Known {
    ForkMutex lock;
    std::map<std::string, std::unique_ptr<const CustomOp>> by_digest;
};
Known& known() {
    static auto* const all =
        new Known;  // never destroyed: kernels may be made until the process ends
    return *all;
}

}  // namespace

void define_custom(const std::string& digest, CustomOp op) {
    auto held = std::make_unique<const CustomOp>(std::move(op));
    const std::lock_guard guard(known().lock);
    known().by_digest.emplace(digest, std::move(held));
}

const CustomOp& custom_op(const LoweredOp& op) {
    const CustomOp* found = nullptr;
    {
        const std::lock_guard guard(known().lock);
        const auto at = known().by_digest.find(op.attrs.text("digest"));
        if (at != known().by_digest.end()) found = at->second.get();
    }
    if (!found)
        raise(ErrorKind::graph, "custom_op ", op.attrs.text("op"), ": nobody has defined it here, ",
              "or with other sources; need the module that defines it to be imported");
    if (found->inputs.size() != op.inputs.size() || found->outputs.size() != op.outputs.size())
        raise(ErrorKind::graph, "custom_op ", found->name, ": got ", op.inputs.size(),
              " operands and ", op.outputs.size(), " results; need ", found->inputs.size(), " and ",
              found->outputs.size());
    return *found;
}

int& in_host_call() {
    thread_local int depth = 0;
    return depth;
}

void refuse_in_host_call() {
    if (in_host_call() > 0)
        raise(ErrorKind::graph, "custom_op: a callback of the host works on a step, or calls ",
              "op_call, while the step that called it runs; need that before or behind the step");
}

bool is_custom(const LoweredDef& def) {
    return def.name == "custom_op" || def.name == "custom_strided";
}
bool is_host_call(const LoweredDef& def) { return def.name == "host_call"; }

int64_t custom_units(const LoweredOp& op) {
    const int64_t axes = op.attrs.integer("unit_axes");
    int64_t units = 1;
    for (int d = 0; d < axes; d++) units *= op.outputs[0].shape[d];
    return units;
}

std::vector<CustomAttr> custom_attrs(const LoweredOp& op) {
    std::vector<CustomAttr> attrs;
    int at = 0;
    for (const AttrDef& def : op.def->attrs)
        if (def.name != "*")
            at += std::holds_alternative<std::vector<int64_t>>(def.fallback) ? kMaxDims : 1;
    const auto declared = [&](const std::string& name) {
        return std::any_of(op.def->attrs.begin(), op.def->attrs.end(),
                           [&](const AttrDef& def) { return def.name == name; });
    };
    for (const auto& [name, value] : op.attrs.items())
        if (!declared(name)) attrs.push_back({name, value, at++});
    return attrs;
}

// ---- text --------------------------------------------------------------------------------------

const char* custom_type(DType dtype) {
    constexpr const char* types[kDTypes] = {"float",   "double",  "aicf::Float16", "aicf::BFloat16",
                                            "int32_t", "int64_t", "uint8_t",       "bool",
                                            "int8_t",  "int16_t"};
    return types[static_cast<int>(dtype)];
}

std::string custom_text(const LoweredOp& op, const CustomOp& custom, bool cuda) {
    std::string text = "namespace scalar = aicf::scalar;\nstruct Args {\n";
    const auto add = [&](const View& view, const std::string& name, const char* constness) {
        text += cat("    aicf::Tensor<", constness, custom_type(view.dtype), ", ",
                    view.shape.rank(), "> ", name, ";\n");
    };
    for (size_t i = 0; i < op.inputs.size(); i++) add(op.inputs[i], custom.inputs[i], "const ");
    for (size_t i = 0; i < op.outputs.size(); i++) add(op.outputs[i], custom.outputs[i], "");
    for (const CustomAttr& attr : custom_attrs(op))
        text += cat("    ",
                    std::holds_alternative<bool>(attr.value)      ? "bool "
                    : std::holds_alternative<int64_t>(attr.value) ? "int64_t "
                                                                  : "double ",
                    attr.name, ";\n");
    return cat(text, "};\n#line 1 \"", custom.name, cuda ? ".cu" : ".cpp", "\"\n",
               cuda ? custom.cuda : custom.cpu, "\n#line 1 \"aicf\"\n");
}

}  // namespace aicf
