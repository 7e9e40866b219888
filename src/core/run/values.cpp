// Access to values by name: writing, viewing, reading.
#include <algorithm>
#include <cstring>
#include <memory>

#include "core/base/near.h"
#include "core/run/step.h"
#include "core/run/turn.h"

namespace aicf {

const Value* Step::find_leaf(std::string_view name) const {
    const auto at = names_.find(name);
    return at == names_.end() ? nullptr : &plan_.values[at->second];
}

std::vector<const Value*> Step::needed_inputs() const {
    std::vector<const Value*> all;
    for (ValueId id : needed_inputs_) all.push_back(&plan_.values[id]);
    return all;
}

void Step::refuse_name(std::string_view where, std::string_view name, bool outputs) const {
    std::string known;
    std::vector<std::string> names;
    const auto add = [&](std::string_view role, const std::string& other) {
        known += cat(known.empty() ? "" : ", ", role, " ", other);
        names.push_back(other);
    };
    for (const Value& other : plan_.values)
        if (is_leaf(other)) add(role_name(other.role), other.name);
    if (outputs)
        for (const Lowered::Output& output : plan_.outputs) add("output", output.name);
    raise(ErrorKind::graph, where, ": there is no \"", name, "\"", is_it(name, names), "; it has ",
          known.empty() ? "none" : known);
}

const Value& Step::leaf(std::string_view name) const {
    if (const Value* found = find_leaf(name)) return *found;
    refuse_name("step", name, false);
}

const Lowered::Output& Step::output(std::string_view name) const {
    const auto at = output_names_.find(name);
    if (at != output_names_.end()) return plan_.outputs[at->second];
    std::string known;
    std::vector<std::string> names;
    for (const Lowered::Output& output : plan_.outputs) {
        known += (known.empty() ? "" : ", ") + output.name;
        names.push_back(output.name);
    }
    raise(ErrorKind::graph, "step: there is no output \"", name, "\"", is_it(name, names),
          "; it has ", known.empty() ? "none" : known);
}

ValueId Step::bindable(std::string_view name) const {
    if (const auto at = output_names_.find(name); at != output_names_.end()) {
        const Lowered::Output& output = plan_.outputs[at->second];
        if (const Value* other = find_leaf(name))
            raise(ErrorKind::graph, "bind: \"", name, "\" is an output and ",
                  role_name(other->role), " %", other->id, " ", to_string(other->type),
                  "; need another name for one of them");
        if (output.keep != 1)
            raise(ErrorKind::graph, "bind: output \"", name, "\" keeps ", output.keep,
                  " steps in a ring; need an output with keep=1");
        return plan_.places[output.value].storage;
    }
    if (const Value* found = find_leaf(name)) return found->id;
    refuse_name("bind", name, true);
}

void Step::check_fits(const Value& value, const TensorRef& tensor, const char* verb) const {
    if (tensor.dtype != value.type.dtype)
        raise(ErrorKind::dtype, verb, ": ", role_name(value.role), " \"", value.name, "\" got ",
              type_string(tensor.dtype, tensor.shape), "; need ", to_string(value.type),
              value.role == Role::input ? " (cast the array, or compile(cast=True))"
                                        : " (cast the array)");
    if (!(tensor.shape == value.type.shape))
        raise(ErrorKind::shape, verb, ": ", role_name(value.role), " \"", value.name, "\" got ",
              type_string(tensor.dtype, tensor.shape), "; need ", to_string(value.type));
    if (device().kind == Device::cpu && tensor.device.kind != Device::cpu)
        raise(ErrorKind::device_unavailable, verb, ": ", role_name(value.role), " \"", value.name,
              "\" got a tensor on ", to_string(tensor.device),
              ", the step is on cpu; need one in host memory (copy it)");
}

void Step::write(const Inputs& values) {
    for (const auto& [id, tensor] : values) check_fits(plan_.values[id], tensor, "set");
    Turn turn(*machine_, others_);
    Inputs writes;
    for (const auto& [id, tensor] : values) {
        if (!address(id)) continue;
        writes.emplace_back(id, tensor);
        for (const auto& [other, _] : values)  // a later write must not change an earlier source
            if (other != id && address(other)) writes.back().second = apart(tensor, other);
    }
    gather(writes, {});
}

TensorRef Step::view(ValueId id) const {
    const Locks locks(*machine_, others_);
    return view_locked(id);
}

TensorRef Step::view_locked(ValueId id) const {
    const Value& value = plan_.values[id];
    const auto cell = cells_.find(plan_.places[id].storage);
    TensorRef ref;
    ref.data = address(id);
    ref.dtype = value.type.dtype;
    ref.shape = value.type.shape;
    ref.strides = contiguous_strides(ref.shape);
    ref.device = device();
    ref.read_only = true;
    if (cell != cells_.end()) ref.owner = cell->second->owner;
    return ref;
}

TensorRef Step::read_locked(ValueId id) { return to_host(view_locked(id)); }

/// Copies dense device memory to the host after all work.
TensorRef Step::to_host(TensorRef ref) {
    const auto bytes = static_cast<uint64_t>(element_count(ref.shape) * dtype_size(ref.dtype));
    std::shared_ptr<char[]> host(new char[bytes + 1]);
    machine_->backend->synchronize();
    if (bytes) machine_->backend->download(host.get(), ref.data, bytes);
    ref.data = host.get();
    ref.owner = host;
    ref.device = {};
    ref.read_only = false;
    return ref;
}

/// Copies a value, or rows of it, into fresh device memory.
TensorRef Step::snapshot(const Lowered::Output& output) {
    Turn turn(*machine_, others_);
    Backend& backend = *machine_->backend;
    TensorRef now = view_locked(output.value);
    std::vector<int64_t> rows = {0};  // of the ring, oldest first
    if (output.keep > 1) {
        const TensorRef position = read_locked(output.position);
        const int64_t done = *static_cast<const int64_t*>(position.data), keep = output.keep,
                      count = std::clamp<int64_t>(done, 0, keep);
        rows.clear();
        for (int64_t i = 0; i < count; i++) rows.push_back((done - count + i) % keep);
        now.shape[0] = count;
    }
    const int64_t bytes = element_count(now.shape) * dtype_size(now.dtype);
    const auto part = static_cast<uint64_t>(rows.empty() ? 0 : bytes / std::ssize(rows));
    const char* from = static_cast<const char*>(now.data);
    now.owner = backend.allocate(static_cast<uint64_t>(std::max<int64_t>(bytes, 1)));
    now.data = now.owner.get();
    now.read_only = false;
    for (size_t i = 0; part && i < rows.size(); i++)
        backend.copy(static_cast<char*>(now.data) + i * part,
                     from + static_cast<uint64_t>(rows[i]) * part, part);
    return now;
}

std::shared_ptr<void> Step::lend(std::shared_ptr<void> memory, intptr_t stream) {
    Turn turn(*machine_, others_);
    return machine_->backend->lend(std::move(memory), stream);
}

TensorRef Step::snapshot(const TensorRef& taken) {
    Turn turn(*machine_, others_);
    Backend& backend = *machine_->backend;
    const auto bytes = static_cast<uint64_t>(element_count(taken.shape) * dtype_size(taken.dtype));
    TensorRef copy = taken;
    copy.owner = backend.allocate(std::max<uint64_t>(bytes, 1));
    copy.data = copy.owner.get();
    if (bytes) backend.copy(copy.data, taken.data, bytes);
    return copy;
}

TensorRef Step::read(const TensorRef& taken) {
    Turn turn(*machine_, others_);
    return to_host(taken);
}

TensorRef Step::read(ValueId id) {
    Turn turn(*machine_, others_);
    return read_locked(id);
}

std::vector<TensorRef> Step::read(const std::vector<ValueId>& ids) {
    Turn turn(*machine_, others_);
    std::vector<TensorRef> copies;
    for (ValueId id : ids) copies.push_back(read_locked(id));
    return copies;
}

TensorRef Step::read_output(const Lowered::Output& output) {
    Turn turn(*machine_, others_);
    TensorRef ring = read_locked(output.value);
    if (output.keep == 1) return ring;
    const TensorRef position = read_locked(output.position);
    const int64_t done = *static_cast<const int64_t*>(position.data), keep = output.keep;
    const int64_t count = std::clamp<int64_t>(done, 0, keep),
                  row = element_count(ring.shape) / keep * dtype_size(ring.dtype);
    TensorRef last = ring;
    last.shape[0] = count;
    std::shared_ptr<char[]> host(new char[static_cast<size_t>(count * row) + 1]);
    for (int64_t i = 0; i < count; i++)
        std::memcpy(host.get() + i * row,
                    static_cast<char*>(ring.data) + (done - count + i) % keep * row,
                    static_cast<size_t>(row));
    last.data = host.get();
    last.owner = host;
    return last;
}

}  // namespace aicf
