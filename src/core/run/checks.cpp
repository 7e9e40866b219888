// Checks before a step runs: indices in inputs and memory must be in range.
#include "core/run/watch.h"

namespace aicf {

namespace {

[[noreturn]] void refuse(const IndexUse& use, const Value& leaf, const TensorRef& content,
                         std::vector<int64_t> index, const char* doing, const char* kept) {
    int64_t offset = 0;
    for (size_t axis = 0; axis < index.size(); axis++)
        offset += index[axis] * content.strides[static_cast<int>(axis)];
    BadValue::Fault fault;
    fault.kind = Finding::index;
    fault.node = use.node;
    fault.value = leaf.id;
    fault.op = use.op;
    fault.source = use.source;
    fault.name = leaf.name;
    fault.found = true;
    fault.index = std::move(index);
    fault.integer = integer_at(content, offset);
    const std::string range =
        use.rows ? cat("; need 0 to ", use.rows - 1) : std::string("; there are no rows");
    throw BadValue(
        fault, cat(doing, ": node ", use.node, " ", use.op, " (", use.source, ") takes ",
                   use.operand, " %", leaf.id, " ", to_string(leaf.type), " \"", leaf.name,
                   "\", which hold ", fault.integer, " at ", to_string(Dims(fault.index)), range,
                   use.ignores ? cat(", or ", use.ignored) : std::string(), kept));
}

}  // namespace

void Step::check_constants() const {
    for (const IndexUse& use : plan_.indices) {
        const Value& value = plan_.values[use.leaf];
        if (value.role != Role::constant || value.init.kind != Init::data) continue;
        TensorRef content;
        content.data = const_cast<char*>(value.init.bytes->data());
        content.dtype = value.type.dtype;
        content.shape = value.type.shape;
        content.strides = contiguous_strides(content.shape);
        if (auto index = refused_element(use, content))
            refuse(use, value, content, std::move(*index), "compile", "");
    }
}

/// The tensor in host memory. A device tensor is copied on a separate stream, which waits for its
/// producer but not for running steps.
TensorRef Step::on_host(const TensorRef& tensor) {
    if (tensor.device.kind == Device::cpu) return tensor;
    if (!beside_) beside_ = open_backend(device());
    const auto bytes =
        static_cast<uint64_t>(element_count(tensor.shape) * dtype_size(tensor.dtype));
    if (tensor.stream) beside_->order_after(*tensor.stream);
    const void* from = tensor.data;
    std::shared_ptr<void> packed;
    if (!is_contiguous(tensor.shape, tensor.strides)) {
        packed = beside_->allocate(std::max<uint64_t>(bytes, 1));
        beside_->gather(packed.get(), tensor);
        from = packed.get();
    }
    TensorRef copy = tensor;
    std::shared_ptr<char[]> host(new char[bytes + 1]);
    if (bytes) beside_->download(host.get(), from, bytes);
    copy.data = host.get();
    copy.owner = host;
    copy.device = {};
    copy.strides = contiguous_strides(copy.shape);
    return copy;
}

/// Raises if an input has an index out of range, before any is copied in.
void Step::check_indices(const Inputs& inputs) {
    if (plan_.indices.empty()) return;
    in_range_.resize(plan_.indices.size(), 0);
    for (const auto& [id, tensor] : inputs) {
        std::optional<TensorRef> content;
        for (size_t i = 0; i < plan_.indices.size(); i++) {
            const IndexUse& use = plan_.indices[i];
            if (use.leaf != id || plan_.values[id].role != Role::input) continue;
            if (!content) content = on_host(tensor);
            if (auto index = refused_element(use, *content))
                refuse(use, plan_.values[id], *content, std::move(*index), "step",
                       "; the step has not run");
            in_range_[i] = !cells_.at(id)->bound;
        }
    }
}

/// The number of steps before the first with an input index out of range. Bound inputs are checked
/// by call.
int64_t Step::in_range_until(const Inputs& stacked, int64_t begin, int64_t steps) {
    in_range_.resize(plan_.indices.size(), 0);
    for (const auto& [id, tensor] : stacked)
        for (size_t i = 0; i < plan_.indices.size(); i++) {
            const IndexUse& use = plan_.indices[i];
            if (use.leaf != id || plan_.values[id].role != Role::input) continue;
            if (cells_.at(id)->bound) return 0;
            TensorRef part = tensor;
            part.data =
                static_cast<char*>(part.data) + begin * part.strides[0] * dtype_size(part.dtype);
            part.shape[0] = steps;
            TensorRef one = part = on_host(part);
            one.shape.erase(0);
            one.strides.erase(0);
            for (int64_t step = 0; step < steps; step++) {
                one.data =
                    static_cast<char*>(part.data) + step * part.strides[0] * dtype_size(part.dtype);
                if (refused_element(use, one)) steps = step;
            }
            in_range_[i] = 1;
        }
    return steps;
}

/// Checks what may have changed: bound inputs, params and states. Returns whether a step writes
/// indices that the next one reads.
bool Step::check_standing() {
    if (plan_.indices.empty()) return false;
    in_range_.resize(plan_.indices.size(), 0);
    bool changes = false;
    for (size_t i = 0; i < plan_.indices.size(); i++) {
        const IndexUse& use = plan_.indices[i];
        const Value& value = plan_.values[use.leaf];
        if (value.role == Role::constant || plan_.places[use.leaf].storage == kNone) continue;
        if (value.role == Role::input && in_range_[i] && !cells_.at(use.leaf)->bound) continue;
        for (const Assign& assign : plan_.assigns) changes |= assign.target == use.leaf;
        TensorRef content = view_locked(use.leaf);
        if (device().kind != Device::cpu) content = read_locked(use.leaf);
        if (auto index = refused_element(use, content))
            refuse(use, value, content, std::move(*index), "step", "; the step has not run");
        in_range_[i] = value.role == Role::input && !cells_.at(use.leaf)->bound;
    }
    return changes;
}

}  // namespace aicf
