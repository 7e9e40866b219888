#include "core/graph/op.h"

#include <algorithm>
#include <map>

namespace aicf {

// One line per family; the call list keeps registration independent of link order.
void define_pointwise_ops();
void define_movement_ops();
void define_reduce_ops();
void define_matmul_ops();
void define_nn_ops();
void define_random_ops();
void define_optim_ops();

namespace {

struct Registry {
    std::map<std::string, OpDef, std::less<>> ops;
    std::map<std::string, LoweredDef, std::less<>> lowered;
    std::vector<const OpDef*> op_list;
    std::vector<const LoweredDef*> lowered_list;
};

Registry*& filling() {
    static Registry* current = nullptr;
    return current;
}

const Registry& registry() {
    static const Registry* const filled = [] {
        auto* fresh = new Registry;  // lives as long as the process: defs are held by pointer
        filling() = fresh;
        define_pointwise_ops();
        define_movement_ops();
        define_reduce_ops();
        define_matmul_ops();
        define_nn_ops();
        define_random_ops();
        define_optim_ops();
        return fresh;
    }();
    return *filled;
}

}  // namespace

void define(OpDef def) {
    check(def.infer && def.lower, "define: an op needs inference and lowering");
    check((def.grad != nullptr) != !def.no_grad.empty(),
          "define: an op needs a gradient or a written none");
    Registry& r = *filling();
    auto [at, fresh] = r.ops.emplace(def.name, std::move(def));
    check(fresh, "define: two ops of one name");
    r.op_list.push_back(&at->second);
}

void define(LoweredDef def) {
    check(def.infer != nullptr, "define: a lowered op needs inference");
    Registry& r = *filling();
    auto [at, fresh] = r.lowered.emplace(def.name, std::move(def));
    check(fresh, "define: two lowered ops of one name");
    r.lowered_list.push_back(&at->second);
}

const OpDef* find_op(std::string_view name) {
    auto at = registry().ops.find(name);
    return at == registry().ops.end() ? nullptr : &at->second;
}

const LoweredDef* find_lowered(std::string_view name) {
    auto at = registry().lowered.find(name);
    return at == registry().lowered.end() ? nullptr : &at->second;
}

const std::vector<const OpDef*>& all_ops() { return registry().op_list; }
const std::vector<const LoweredDef*>& all_lowered() { return registry().lowered_list; }

// ---- inference ---------------------------------------------------------------------------------

std::string operand_name(const std::vector<std::string>& names, int i) {
    const int last = static_cast<int>(names.size()) - 1;
    std::string name = names.empty() ? "x" : names[std::min(i, last)];
    if (name.ends_with('?')) name.pop_back();
    if (name.ends_with('*')) {
        name.pop_back();
        name += cat("[", i - last, "]");
    }
    return name;
}

void check_arity(const std::vector<std::string>& names, size_t count, const std::string& where) {
    size_t least = 0, most = 0;
    for (const std::string& name : names) {
        least += !name.ends_with('?');
        most = name.ends_with('*') ? 256 : most + 1;
    }
    if (count < least || count > most)
        raise(ErrorKind::graph, where, ": got ", count, " operands; need ", least,
              most == least ? "" : cat(" to ", most));
}

std::string InferContext::describe(int i) const {
    return cat(operand_name(names_, i), " is ",
               ids_.empty() ? std::string() : cat("%", ids_[static_cast<size_t>(i)], " "),
               to_string(in(i)));
}

std::string InferContext::describe_all() const {
    std::string text;
    for (int i = 0; i < count(); i++) text += (i ? ", " : "") + describe(i);
    return text;
}

void InferContext::need_rank(int i, int rank) const {
    if (shape(i).rank() != rank)
        shape_error(describe(i), ", of rank ", shape(i).rank(), "; need rank ", rank);
}

void InferContext::need_float(int i) const {
    if (!is_float(dtype(i))) dtype_error(describe(i), "; need a float dtype (cast it)");
}

void InferContext::need_dtype(int i, DType wanted) const {
    if (dtype(i) != wanted)
        dtype_error(describe(i), "; need dtype ", dtype_name(wanted), " (cast it)");
}

void InferContext::need_same_dtype(int i, int j) const {
    if (dtype(i) != dtype(j))
        dtype_error("dtypes differ: ", describe(i), ", ", describe(j),
                    "; need equal dtypes (cast one)");
}

Dims broadcast_shapes(const Dims& a, const Dims& b, const std::string& where) {
    const int rank = std::max(a.rank(), b.rank());
    Dims shape(rank, 1);
    for (int i = 1; i <= rank; i++) {
        const int64_t x = i <= a.rank() ? a[a.rank() - i] : 1,
                      y = i <= b.rank() ? b[b.rank() - i] : 1;
        if (x != y && x != 1 && y != 1)
            raise(ErrorKind::shape, where, "; need sizes equal or 1, counted from the last axis");
        shape[rank - i] = x == 1 ? y : x;
    }
    return shape;
}

Dims InferContext::broadcast(int first, int last) const {
    Dims shape = this->shape(first);
    std::string all = describe(first);
    for (int i = first + 1; i <= last; i++) {
        all += ", " + describe(i);
        shape = broadcast_shapes(shape, this->shape(i),
                                 cat(where_, ": shapes do not broadcast: ", all));
    }
    return shape;
}

int64_t InferContext::axis(int64_t given, int rank) const {
    if (given < -rank || given >= rank)
        shape_error("axis ", given, " is out of range: ", describe_all(), "; need an axis in [",
                    -rank, ", ", rank, ")");
    return given < 0 ? given + rank : given;
}

std::vector<int64_t> InferContext::axes(const std::vector<int64_t>& given, int rank) const {
    std::vector<int64_t> result;
    for (int64_t one : given) result.push_back(axis(one, rank));
    std::sort(result.begin(), result.end());
    if (std::adjacent_find(result.begin(), result.end()) != result.end())
        shape_error("an axis is given twice: ", describe_all(), "; need distinct axes");
    return result;
}

std::vector<Type> infer_lowered(const LoweredDef& def, const std::vector<Type>& inputs,
                                const Attrs& attrs) {
    check_arity(def.inputs, inputs.size(), def.name);
    return def.infer(InferContext(def.name.c_str(), def.inputs, inputs, {}, attrs));
}

std::vector<Type> infer_body(const InferContext& c) {
    raise(ErrorKind::graph, c.where(), ": it has no body; need the steps it computes");
}

namespace {

/// A group takes and gives what its members do, who hand nothing to each other.
std::vector<Type> infer_group(const LoweredOp& op) {
    std::vector<Type> outputs(op.outputs.size());
    std::vector<char> written(op.outputs.size(), 0);
    for (const LoweredOp& member : op.members) {
        const std::string where = cat(op.def->name, ": member ", member.def->name);
        for (const View& view : member.inputs)
            if (find_view(op.inputs, view) < 0)
                raise(ErrorKind::graph, where, " reads %", view.value,
                      ", which is no operand of the group; need one that is");
        const std::vector<Type> types = infer_lowered(member);
        for (size_t k = 0; k < member.outputs.size(); k++) {
            const int at = find_view(op.outputs, member.outputs[k]);
            if (at < 0 || written[at] || k >= types.size())
                raise(ErrorKind::graph, where, " writes %", member.outputs[k].value,
                      "; need a result of the group, written once");
            written[at] = 1;
            outputs[at] = types[k];
        }
    }
    for (size_t k = 0; k < written.size(); k++)
        if (!written[k]) raise(ErrorKind::graph, op.def->name, ": no member writes output ", k);
    return outputs;
}

}  // namespace

std::vector<Type> infer_lowered(const LoweredOp& op) {
    if (!op.members.empty()) return infer_group(op);
    std::vector<Type> inputs;
    if (op.body.empty()) {
        for (const View& view : op.inputs) inputs.push_back({view.dtype, view.shape});
        return infer_lowered(*op.def, inputs, op.attrs);
    }
    const int count = static_cast<int>(op.inputs.size() + op.outputs.size() + op.inner.size());
    std::vector<char> known(count, 0);
    std::fill_n(known.begin(), op.inputs.size(), 1);
    for (const FusedStep& step : op.body) {
        const std::string where = cat(op.def->name, ": step ", step.def->name);
        inputs.clear();
        for (int i : step.inputs) {
            if (i < 0 || i >= count || !known[i])
                raise(ErrorKind::graph, where, " reads operand ", i, ", which no step before it ",
                      "writes; need one of ", count, " operands");
            inputs.push_back({op.operand(i).dtype, op.operand(i).shape});
        }
        const std::vector<Type> types = infer_lowered(*step.def, inputs, step.attrs);
        check(types.size() == step.outputs.size(), "fused: a step has the wrong number of outputs");
        for (size_t k = 0; k < types.size(); k++) {
            const int i = step.outputs[k];
            if (i < 0 || i >= count || known[i])
                raise(ErrorKind::graph, where, " writes operand ", i,
                      ", an input or already written; need an output or inner value");
            known[i] = 1;
            const View& view = op.operand(i);
            if (!(types[k] == Type{view.dtype, view.shape}))
                raise(ErrorKind::graph, where, " gives ", to_string(types[k]), " for operand ", i,
                      ", which is ", type_string(view.dtype, view.shape), "; need equal types");
        }
    }
    std::vector<Type> outputs;
    for (size_t k = 0; k < op.outputs.size(); k++) {
        if (!known[op.inputs.size() + k])
            raise(ErrorKind::graph, op.def->name, ": no step writes output ", k);
        outputs.push_back({op.outputs[k].dtype, op.outputs[k].shape});
    }
    return outputs;
}

const View& LoweredOp::operand(int number) const {
    auto at = static_cast<size_t>(number);
    if (at < inputs.size()) return inputs[at];
    at -= inputs.size();
    return at < outputs.size() ? outputs[at] : inner.at(at - outputs.size());
}

std::vector<std::pair<int, int>> inplace_of(const LoweredOp& op) {
    std::vector<std::pair<int, int>> pairs;
    for (const LoweredOp& member : op.members)
        for (auto [out, in] : inplace_of(member)) {
            if (in >= static_cast<int>(member.inputs.size())) continue;
            const View& from = member.inputs[in];
            const auto reads = [&](const LoweredOp& other) {
                return &other != &member &&
                       std::any_of(other.inputs.begin(), other.inputs.end(),
                                   [&](const View& view) { return view.value == from.value; });
            };
            if (std::none_of(op.members.begin(), op.members.end(), reads))
                pairs.emplace_back(find_view(op.outputs, member.outputs[out]),
                                   find_view(op.inputs, from));
        }
    if (!op.members.empty()) return pairs;
    if (op.body.empty()) return op.def->inplace;
    if (op.def->gemm || op.def->reduction) return pairs;
    const int inputs = static_cast<int>(op.inputs.size()),
              outputs = static_cast<int>(op.outputs.size()),
              steps = static_cast<int>(op.body.size());
    std::vector<int> first(inputs, steps), last(inputs, -1);  // steps that read an input
    for (int s = 0; s < steps; s++)
        for (int in : op.body[s].inputs)
            if (in < inputs) first[in] = std::min(first[in], s), last[in] = s;
    for (int s = 0; s < steps; s++) {
        const FusedStep& step = op.body[s];
        for (size_t k = 0; k < step.outputs.size(); k++) {
            const int out = step.outputs[k] - inputs;
            if (out >= outputs) continue;
            for (int in = 0; step.def->pointwise && in < inputs; in++)
                if (last[in] <= s) pairs.emplace_back(out, in);
            for (auto [to, from] : step.def->inplace)
                if (const int in = step.inputs[from];
                    !step.def->pointwise && to == static_cast<int>(k) && in < inputs &&
                    last[in] == s && (first[in] == s || !op.def->optimizer))
                    pairs.emplace_back(out, in);
        }
    }
    return pairs;
}

size_t core_step(const LoweredOp& op) {
    const auto core = [](const FusedStep& step) { return !step.def->pointwise; };
    return static_cast<size_t>(std::find_if(op.body.begin(), op.body.end(), core) -
                               op.body.begin());
}

int row_axis(const Attrs& attrs, int rank) {
    const int64_t axis = attrs.find("axis") ? attrs.integer("axis") : -1;
    return static_cast<int>(axis < 0 ? axis + rank : axis);
}

bool same_layout(const View& a, const View& b) {
    return a.shape == b.shape && a.strides == b.strides && a.offset == b.offset &&
           dtype_size(a.dtype) == dtype_size(b.dtype);
}

int fast_axis(const View& view) {
    int fast = -1;
    for (int d = 0; d < view.shape.rank(); d++)
        if (view.shape[d] > 1 && view.strides[d] != 0 &&
            (fast < 0 || std::abs(view.strides[d]) <= std::abs(view.strides[fast])))
            fast = d;
    return fast;
}

namespace {

/// Bytes of a view, broadcast axes counted once.
double view_bytes(const View& view) {
    auto bytes = static_cast<double>(dtype_size(view.dtype));
    for (int i = 0; i < view.shape.rank(); i++)
        if (view.strides[i] != 0 || view.shape[i] == 0) bytes *= static_cast<double>(view.shape[i]);
    return bytes;
}

}  // namespace

const View* largest_view(const std::vector<const View*>& views) {
    return *std::max_element(views.begin(), views.end(), [](const View* a, const View* b) {
        return view_bytes(*a) < view_bytes(*b);
    });
}

int find_view(const std::vector<View>& list, const View& view) {
    const auto at = std::find_if(list.begin(), list.end(), [&](const View& other) {
        return other.value == view.value && other.dtype == view.dtype && same_layout(other, view);
    });
    return at == list.end() ? -1 : static_cast<int>(at - list.begin());
}

bool may_overwrite(const LoweredOp& op, int out, int in) {
    const auto pairs = inplace_of(op);
    return std::find(pairs.begin(), pairs.end(), std::pair(out, in)) != pairs.end() &&
           same_layout(op.outputs[out], op.inputs[in]);
}

Cost cost_of(const LoweredOp& op) {
    Cost cost;
    for (const LoweredOp& member : op.members) {
        const Cost own = cost_of(member);
        cost.flops += own.flops;
        cost.bytes += own.bytes;
    }
    if (!op.members.empty()) return cost;
    double largest = 0;
    auto count = [&](const View& view) {
        cost.bytes += view_bytes(view);
        largest = std::max(largest, static_cast<double>(element_count(view.shape)));
    };
    for (const View& view : op.inputs) count(view);
    for (const View& view : op.outputs) count(view);
    cost.flops = op.def->flops ? op.def->flops(op) : largest * op.def->flops_per_element;
    for (const FusedStep& step : op.body) {
        if (step.def->flops) continue;  // the product: counted above
        int64_t elements = 0;
        for (const auto* numbers : {&step.inputs, &step.outputs})
            for (int number : *numbers)
                elements = std::max(elements, element_count(op.operand(number).shape));
        cost.flops += static_cast<double>(elements) * step.def->flops_per_element;
    }
    return cost;
}

Cost cost_of(const Lowered& lowered) {
    Cost sum;
    for (const LoweredOp& op : lowered.ops) sum += cost_of(op);
    return sum;
}

}  // namespace aicf
