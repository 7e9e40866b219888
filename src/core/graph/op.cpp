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
void define_attention_ops();
void define_line_ops();
void define_random_ops();
void define_optim_ops();
void define_custom_ops();
void define_loop_ops();
void define_regions();

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
        define_attention_ops();
        define_line_ops();
        define_random_ops();
        define_optim_ops();
        define_custom_ops();
        define_loop_ops();
        define_regions();
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
    if (rank == 0)
        shape_error("axis ", given, " is out of range: ", describe_all(),
                    "; need rank >= 1: it has no axes");
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

double view_bytes(const View& view) {
    auto bytes = static_cast<double>(dtype_size(view.dtype));
    for (int i = 0; i < view.shape.rank(); i++)
        if (view.strides[i] != 0 || view.shape[i] == 0) bytes *= static_cast<double>(view.shape[i]);
    return bytes;
}

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

}  // namespace aicf
