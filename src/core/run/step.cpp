#include "core/run/step.h"

#include <algorithm>
#include <cmath>
#include <ctime>
#include <memory>
#include <mutex>

#include "core/base/float_mode.h"
#include "core/base/threads.h"
#include "core/run/eager.h"
#include "core/run/init.h"
#include "core/run/turn.h"

namespace aicf {

namespace {

/// Guards cells' memory across Steps, for bind and overlap checks. Lock order: after all machines'
/// locks.
ForkMutex binding_lock;

/// What a cell was before a bind.
struct Former {
    Cell* cell;
    std::shared_ptr<void> owner;
    char* data;
    bool bound, read_only;
};

}  // namespace

OnStage Step::stages_from(std::clock_t& last) {
    last = std::clock();
    return [this, &last](const std::string& name) {
        const std::clock_t now = std::clock();
        stages_.emplace_back(name, static_cast<double>(now - last) / CLOCKS_PER_SEC);
        last = now;
        poll();
    };
}

Step::Step(const Executable& file, const Options& options) : seed_(file.seed()) {
    const FloatMode mode;
    std::clock_t last = 0;
    const OnStage stage = stages_from(last);
    if (file.plan().device != options.device.kind)
        raise(ErrorKind::unsupported, "load_step: the file holds a step for ",
              kind_name(file.plan().device), ", the device is ", to_string(options.device),
              "; export one that was compiled for it");
    share_cells(options, file.plan().values);
    std::vector<std::string> shared;
    for (const auto& [id, cell] : cells_) shared.push_back(file.plan().values[id].name);
    plan_ = file.finish(machine_->backend->target(), shared);
    check_aligned(plan_);
    stage("kernels");
    start(options, stage);
    for (Value& value : plan_.values) value.init.bytes.reset();  // uploaded already
}

std::vector<FilePiece> Step::write_file(bool state) {
    Plan plan = plan_;
    std::vector<ValueId> held;
    for (const Value& value : plan.values) {
        const bool changes = value.role == Role::param || value.role == Role::state;
        const bool dropped = value.init.kind == Init::data && !value.init.bytes &&
                             plan.places[value.id].storage != kNone;  // see Step of a file
        if (changes ? state : dropped)
            held.push_back(value.id);
        else if (dropped)
            raise(ErrorKind::graph, "export: the step is from a file, and ", role_name(value.role),
                  " \"", value.name, "\" no longer has what it began with; need state=True, or ",
                  "a copy of that file");
    }
    std::vector<TensorRef> now = read(held);
    for (size_t i = 0; i < held.size(); i++) {
        const auto* data = static_cast<const char*>(now[i].data);
        Value& value = plan.values[held[i]];
        value.init = {
            Init::data, 0, 0,
            std::make_shared<const std::vector<char>>(data, data + byte_count(value.type))};
        now[i] = {};
    }
    return write_executable(plan, seed_, machine_->backend->target());
}

/// Joins the machine of the Steps to share with, and their cells.
void Step::share_cells(const Options& options, const std::vector<Value>& values) {
    for (const Shared& shared : options.share)
        if (!machine_) machine_ = shared.step->machine_;
    if (!machine_) {
        machine_ = std::make_shared<Machine>();
        machine_->backend = open_backend(options.device);
    }
    for (const auto& [other, names] : options.share)
        if (!(other->device() == options.device))
            raise(ErrorKind::graph, "compile: share= holds a step on ", to_string(other->device()),
                  ", this one is for ", to_string(options.device), "; need one device");
    for (const auto& [step, names] : options.share) {
        const Step* other = step;
        if (other->machine_ != machine_) others_.push_back(other->machine_);
        others_.insert(others_.end(), other->others_.begin(), other->others_.end());
        for (const Value& value : values) {
            const auto shares = [&](const Value& leaf) {
                return leaf.role == Role::param || leaf.role == Role::state ||
                       (leaf.role == Role::input && options.share_inputs);
            };
            if (!shares(value) || (names && !names->contains(value.name))) continue;
            const Value* theirs = other->find_leaf(names ? names->at(value.name) : value.name);
            if (!theirs || !shares(*theirs)) continue;
            if (!(theirs->type == value.type))
                raise(theirs->type.dtype == value.type.dtype ? ErrorKind::shape : ErrorKind::dtype,
                      "compile: shared \"", value.name, "\" is ", to_string(theirs->type),
                      " there and ", to_string(value.type), " here; need equal shape and dtype");
            const auto& cell = other->cells_.at(theirs->id);
            if (cells_.emplace(value.id, cell).first->second != cell)
                raise(ErrorKind::graph, "compile: share= holds two steps with a \"", value.name,
                      "\" of their own; need one of them to share it with the other");
        }
    }
    std::sort(others_.begin(), others_.end());
    others_.erase(std::unique(others_.begin(), others_.end()), others_.end());
    std::erase(others_, machine_);
}

/// Allocates memory and builds the launches.
void Step::start(const Options& options, const OnStage& stage) {
    std::vector<char> read(plan_.values.size(), 0);
    for (const PlannedOp& planned : plan_.ops)
        for (const View& view : planned.op.inputs) read[view.value] = 1;
    for (const Value& value : plan_.values) {
        if (!is_leaf(value)) continue;
        names_.emplace(value.name, value.id);
        if (value.role == Role::input) inputs_.push_back(value.id);
        if (value.role == Role::input && read[value.id]) needed_inputs_.push_back(value.id);
    }
    for (size_t i = 0; i < plan_.outputs.size(); i++)
        output_names_.emplace(plan_.outputs[i].name, i);
    check_constants();
    allocate();
    stage("allocate");
    auto code = machine_->backend->load(plan_.kernels());
    stage("load");
    // Keep the cells' current memory alive until everything built from its addresses exists.
    const std::vector<std::shared_ptr<void>> held = bind_ops(std::move(code));
    stage("bind");
    // Not yet published, so no lock is needed.
    if (options.capture) captured_ = machine_->backend->capture(ops_);
    stage("capture");
}

/// Bound memory is the caller's, who may reuse it once released; so wait for running work.
Step::~Step() {
    const auto bound = [](const auto& cell) { return cell.second->bound.load(); };
    if (std::none_of(cells_.begin(), cells_.end(), bound)) return;
    try {
        synchronize();
    } catch (...) {  // the device is lost, so nothing is running
    }
}

// ---- memory ------------------------------------------------------------------------------------

char* Step::address(ValueId id) const {
    const Place& place = plan_.places[id];
    const auto cell = cells_.find(place.storage);
    if (cell != cells_.end()) return cell->second->data;
    auto* base = static_cast<char*>(segments_[static_cast<int>(place.segment)].get());
    return base ? base + place.offset : nullptr;
}

void Step::allocate() {
    Backend& backend = *machine_->backend;
    for (int r = 0; r < kSegments; r++)
        if (plan_.segment_bytes[r])
            segments_[r] = backend.allocate(static_cast<uint64_t>(plan_.segment_bytes[r]));
    for (Segment segment : {Segment::grads, Segment::moments, Segment::state, Segment::inputs,
                            Segment::outputs, Segment::params, Segment::counters}) {
        const int r = static_cast<int>(segment);
        if (plan_.segment_bytes[r])
            backend.clear(segments_[r].get(), static_cast<uint64_t>(plan_.segment_bytes[r]));
    }
    const auto own = [&](ValueId id) {
        const Place& place = plan_.places[id];
        auto cell = std::make_shared<Cell>();
        cell->bytes = place.bytes;
        const bool elsewhere = place.offset < 0;  // belonged to a Step not present: allocate
        if (elsewhere && place.bytes) {
            cell->owner = backend.allocate(static_cast<uint64_t>(place.bytes));
            backend.clear(cell->owner.get(), static_cast<uint64_t>(place.bytes));
            cell->data = static_cast<char*>(cell->owner.get());
        } else if (!elsewhere) {
            cell->owner = segments_[static_cast<int>(place.segment)];
            cell->data =
                cell->owner ? static_cast<char*>(cell->owner.get()) + place.offset : nullptr;
        }
        cells_.emplace(id, cell);
    };
    std::vector<const Value*> fresh;
    for (const Value& value : plan_.values) {
        if (value.role == Role::temp || plan_.places[value.id].storage == kNone ||
            cells_.contains(value.id))
            continue;
        own(value.id);
        fresh.push_back(&value);
    }
    fill(fresh, seed_);
    for (const Lowered::Output& output : plan_.outputs) {
        const ValueId storage = plan_.places[output.value].storage;
        if (!cells_.contains(storage)) own(storage);
    }
    join_cells();
}

/// By storage, the largest alignment that a kernel requires, and that kernel; loop bodies included.
static std::map<ValueId, std::pair<uint32_t, const Kernel*>> wanted_alignment(const Plan& plan) {
    std::map<ValueId, std::pair<uint32_t, const Kernel*>> wanted;
    const auto note = [&](const View& view, uint32_t wants, const Kernel* kernel) {
        auto& [align, reader] = wanted[plan.places[view.value].storage];
        if (wants <= align) return;
        align = wants;
        reader = kernel;
    };
    for (const PlannedOp& planned : plan.ops) {
        for (size_t i = 0; i < planned.kernel->align.size(); i++)
            note(planned.op.inputs[i], planned.kernel->align[i], planned.kernel.get());
        if (!planned.body) continue;
        const auto inside = wanted_alignment(*planned.body);
        const std::vector<ValueId> operands = loop_inputs(planned.body->values);
        for (size_t i = 0; i < operands.size(); i++)
            if (const auto at = inside.find(operands[i]); at != inside.end())
                note(planned.op.inputs[i], at->second.first, at->second.second);
    }
    return wanted;
}

/// Raises Unsupported if a shared cell is bound to memory misaligned for a kernel. Later binds are
/// checked when blocks are built.
void Step::check_aligned(const Plan& plan) const {
    const std::lock_guard lock(binding_lock);
    for (const auto& [id, wanted] : wanted_alignment(plan)) {
        const auto [align, reader] = wanted;
        const auto cell = cells_.find(id);
        if (!reader || cell == cells_.end()) continue;
        if (const auto behind = reinterpret_cast<uintptr_t>(cell->second->data) % align)
            raise(ErrorKind::unsupported, "compile: shared \"", plan.values[id].name,
                  "\" is bound to memory that begins ", behind, " bytes behind a multiple of ",
                  align, ", where ", reader->name, " reads it; need a tensor at such an address ",
                  "(copy it), or candidates= that names another kernel");
    }
}

/// Registers this Step with its cells; GraphError if two that other Steps bound overlap.
void Step::join_cells() {
    const std::lock_guard lock(binding_lock);
    auto mine = std::make_shared<Cell::StepCells>();
    std::vector<std::pair<const Cell*, ValueId>> order;
    auto aligned = wanted_alignment(plan_);
    for (const auto& [id, cell] : cells_) {
        const auto [align, reader] = aligned[id];
        mine->cells.push_back({plan_.values[id].name, cell, std::max(align, 1u),
                               reader ? reader->name : std::string()});
        if (cell->data && cell->bytes) order.emplace_back(cell.get(), id);
    }
    std::sort(order.begin(), order.end(),
              [](const auto& a, const auto& b) { return a.first->data < b.first->data; });
    for (size_t i = 1; i < order.size(); i++)
        if (order[i].first->data < order[i - 1].first->data + order[i - 1].first->bytes)
            raise(ErrorKind::graph, "compile: shared \"", plan_.values[order[i].second].name,
                  "\" and \"", plan_.values[order[i - 1].second].name,
                  "\" are bound to memory that overlaps; need storage of its own for each");
    for (const auto& [id, cell] : cells_) {
        std::erase_if(cell->step_cells,
                      [](const auto& step_cells) { return step_cells.expired(); });
        cell->step_cells.push_back(mine);
    }
    step_cells_ = mine;
}

/// Writes initial contents, in parallel, uploading each part as it is generated.
void Step::fill(const std::vector<const Value*>& values, uint64_t seed) {
    constexpr int64_t kPart = 64 << 10;  // elements
    struct Part {
        const Value* value;
        int64_t begin, end;
    };
    const auto upload = [&](char* to, const char* from, int64_t bytes) {
        const Locks locks(*machine_, others_);
        machine_->backend->upload(to, from, static_cast<uint64_t>(bytes));
    };
    std::vector<Part> parts;
    int64_t elements = 0;
    for (const Value* value : values) {
        const Init& init = value->init;
        const int64_t count = element_count(value->type.shape);
        const bool zero = init.kind == Init::zeros ||
                          (init.kind == Init::constant && init.a == 0 && !std::signbit(init.a));
        if (count == 0 || (zero && value->role != Role::constant)) continue;  // segments are zeroed
        if (init.kind == Init::data) {
            upload(address(value->id), init.bytes->data(), std::ssize(*init.bytes));
            continue;
        }
        for (int64_t begin = 0; begin < count; begin += kPart)
            parts.push_back({value, begin, std::min(begin + kPart, count)});
        elements += count;
    }
    const auto write = [&](size_t i) {
        const auto [value, begin, end] = parts[i];
        const int64_t size = dtype_size(value->type.dtype), bytes = (end - begin) * size;
        const auto made = std::make_unique_for_overwrite<char[]>(static_cast<size_t>(bytes));
        write_initial(*value, seed, begin, end, made.get());
        upload(address(value->id) + begin * size, made.get(), bytes);
    };
    if (elements > kPart) return in_parallel(parts.size(), write);
    for (size_t i = 0; i < parts.size(); i++) write(i);
}

uint64_t Step::bindings() const {
    uint64_t now = machine_->bindings;
    for (const auto& other : others_) now += other->bindings;
    return now;
}

void Step::bind(const Inputs& tensors) {
    std::vector<Former> formers;  // old memory is freed after unlocking
    std::vector<std::shared_ptr<Cell>> looked_at;
    formers.reserve(tensors.size());
    Turn turn(*machine_, others_);
    const std::lock_guard lock(binding_lock);
    try {
        for (const auto& [id, to] : tensors) {
            check_bind(id, to, looked_at);
            machine_->backend->synchronize();
            Cell& cell = *cells_.at(id);
            formers.push_back({&cell, to.owner, cell.data, cell.bound, cell.read_only});
            cell.owner.swap(formers.back().owner);
            cell.data = static_cast<char*>(to.data);
            cell.bound = true;
            cell.read_only = to.read_only;
        }
    } catch (...) {  // all or none
        for (; !formers.empty(); formers.pop_back()) {
            Former& former = formers.back();
            former.cell->owner.swap(former.owner);
            former.cell->data = former.data;
            former.cell->bound = former.bound;
            former.cell->read_only = former.read_only;
        }
        throw;
    }
    machine_->bindings++;
    for (const auto& other : others_) other->bindings++;  // their Steps hold the same cells
}

/// Raises if a tensor cannot replace a value's storage.
void Step::check_bind(ValueId id, const TensorRef& to,
                      std::vector<std::shared_ptr<Cell>>& looked_at) const {
    const Value& value = plan_.values[id];
    check_fits(value, to, "bind");
    if (!is_contiguous(to.shape, to.strides))
        raise(ErrorKind::shape, "bind: \"", value.name, "\" got strides ", to_string(to.strides),
              " for shape ", to_string(to.shape), "; need C order (copy it)");
    if (!(to.device == device()))
        raise(ErrorKind::device_unavailable, "bind: \"", value.name, "\" got a tensor on ",
              to_string(to.device), ", the step is on ", to_string(device()), "; need one device");
    if (to.read_only && value.role != Role::input)
        raise(ErrorKind::graph, "bind: \"", value.name,
              "\" got a read-only tensor, the step writes it; need a writable one");
    if (reinterpret_cast<uintptr_t>(to.data) % static_cast<uintptr_t>(dtype_size(to.dtype)))
        raise(ErrorKind::shape, "bind: \"", value.name,
              "\" is not aligned to its element; need an aligned tensor");
    const Cell& cell = *cells_.at(id);
    const auto* begin = static_cast<const char*>(to.data);
    for (const auto& step : cell.step_cells) {
        const auto step_cells = step.lock();
        if (!step_cells) continue;
        for (const auto& [name, weak, align, reader] : step_cells->cells) {
            const auto other = weak.lock();
            looked_at.push_back(other);  // maybe the last reference: freed after unlocking
            if (const auto behind = reinterpret_cast<uintptr_t>(begin) % align;
                other.get() == &cell && behind)
                raise(ErrorKind::unsupported, "bind: \"", value.name, "\" got memory that begins ",
                      behind, " bytes behind a multiple of ", align, ", where ", reader,
                      " reads it; need a tensor at such an address (copy it), or a step compiled "
                      "with candidates= that names another kernel");
            if (other && other.get() != &cell && other->data &&
                begin < other->data + other->bytes && other->data < begin + cell.bytes)
                raise(ErrorKind::graph, "bind: \"", value.name, "\" got memory that \"", name,
                      step_cells == step_cells_ ? "\"" : "\" of a Step that shares it",
                      " lies in; need storage of its own");
        }
    }
}

// ---- running -----------------------------------------------------------------------------------

void Step::watch(const std::shared_ptr<Watcher>& watcher) {
    const Locks locks(*machine_, others_);
    std::erase_if(watchers_, [](const auto& other) { return other.expired(); });
    watchers_.insert(watcher->every() ? watchers_.begin() : watchers_.end(), watcher);
    watched_ = true;
    piece = 1;  // steps take longer now
}

Step::Watchers Step::watchers() const {
    Watchers all;
    const Locks locks(*machine_, others_);
    for (const auto& watcher : watchers_)
        if (auto owned = watcher.lock()) all.push_back(std::move(owned));
    return all;
}

/// Calls the watchers for the next step; there is at least one. Returns how many of `left` steps
/// may run before the next call.
int64_t Step::look(const Watchers& watching, int64_t left) const {
    bool every = false;
    std::optional<Watcher::Refused> refused;
    for (const auto& watcher : watching) {
        every |= watcher->every();
        if (left > 1 && !watcher->every() && !refused) continue;
        try {
            watcher->look(generation_ + 1);
        } catch (const Watcher::Refused& why) {
            if (!refused) refused.emplace(why);
        }
    }
    if (refused) throw *refused;
    return every || left == 1 ? 1 : left - 1;
}

void Step::run_locked(const Watchers& watching) {
    follow_bindings();
    check_standing();
    if (!watching.empty()) look(watching, 1);
    for (const BoundOp& op : ops_) machine_->backend->run(op);
    generation_++;
}

void Step::replay_locked(int64_t times, const Watchers& watching) {
    if (!captured_)
        raise(ErrorKind::capture, "replay: the step is not captured; call capture() first");
    follow_bindings();
    const bool changes = check_standing();
    for (int64_t done = 0; times > 0; times -= done) {
        if (changes && done > 0) check_standing();
        const int64_t unseen = changes ? 1 : times;
        done =
            captured_->launch(watching.empty() ? unseen : std::min(unseen, look(watching, times)));
        generation_ += static_cast<uint64_t>(done);
    }
}

/// The tensor, or a copy if it overlaps the storage of `to` other than identically.
TensorRef Step::apart(const TensorRef& from, ValueId to) {
    const TensorRef target = view_locked(to);
    if (!(from.device == target.device) || !overlaps(from, target) ||
        (from.data == target.data && is_contiguous(from.shape, from.strides)))
        return from;
    Backend& backend = *machine_->backend;
    TensorRef copy = from;
    copy.owner =
        backend.allocate(static_cast<uint64_t>(element_count(from.shape) * dtype_size(from.dtype)));
    copy.data = copy.owner.get();
    copy.strides = contiguous_strides(from.shape);
    backend.gather(copy.data, from);
    return copy;
}

/// Copies inputs in.
void Step::gather(const Inputs& inputs, std::optional<intptr_t> stream) {
    Backend& backend = *machine_->backend;
    check_indices(inputs);
    std::vector<Backend::Copy> copies;  // all prepared before the first is made: all or none
    for (const auto& [id, tensor] : inputs) {
        const Cell& cell = *cells_.at(plan_.places[id].storage);
        const bool own = cell.owner == segments_[static_cast<int>(Segment::inputs)];
        copies.push_back({cell.data, backend.ready(apart(tensor, id)),
                          own ? align_up(cell.bytes) : cell.bytes, cell.owner.get()});
    }
    backend.gather(copies);
    release(inputs, stream);
}

/// Makes it safe for the caller to overwrite or free device tensors that were copied in: their
/// framework's stream waits for the copies. If that is unknown, the caller's `stream` waits for the
/// step; without one the host waits.
void Step::release(const Inputs& inputs, std::optional<intptr_t> stream) {
    Backend& backend = *machine_->backend;
    std::vector<intptr_t> streams;
    bool unknown = false;
    for (const auto& [id, tensor] : inputs) {
        if (tensor.device.kind == Device::cpu) continue;
        unknown |= !tensor.stream && !stream;
        if (tensor.stream && tensor.stream != stream &&
            std::find(streams.begin(), streams.end(), *tensor.stream) == streams.end())
            streams.push_back(*tensor.stream);
    }
    if (unknown) return backend.synchronize();
    for (intptr_t other : streams) backend.order_before(other);
}

uint64_t Step::run(const Inputs& inputs, std::optional<intptr_t> stream, SyncPolicy sync) {
    return watched([&](const Watchers& watching) -> uint64_t {
        Turn turn(*machine_, others_);
        check_inputs(inputs);
        follow_bindings();  // may throw, so before an input is written
        if (stream) machine_->backend->order_after(*stream);
        gather(inputs, stream);
        run_locked(watching);
        if (stream) machine_->backend->order_before(*stream);
        if (sync == SyncPolicy::full) machine_->backend->synchronize();
        return generation_;
    });
}

uint64_t Step::replay(int64_t times, std::optional<intptr_t> stream) {
    if (times < 0) raise(ErrorKind::graph, "replay: n is ", times, "; need n >= 0");
    return watched([&](const Watchers& watching) -> uint64_t {
        Turn turn(*machine_, others_);
        if (stream) machine_->backend->order_after(*stream);
        if (times) replay_locked(times, watching);
        if (stream) machine_->backend->order_before(*stream);
        return generation_;
    });
}

void Step::capture() {
    Turn turn(*machine_, others_);
    follow_bindings();
    captured_ = machine_->backend->capture(ops_);
    feed_.reset();
}

void Step::reset() {
    Turn turn(*machine_, others_);
    machine_->backend->synchronize();
    feed_.reset();
    captured_.reset();
}

bool Step::captured() const {
    const Locks locks(*machine_, others_);
    return captured_ != nullptr;
}

void Step::synchronize() {
    Turn turn(*machine_, others_);
    machine_->backend->synchronize();
}

void Step::pace() {
    Turn turn(*machine_, others_);
    machine_->backend->pace();
}

std::vector<Captured::Launch> Step::trace() const {
    const Locks locks(*machine_, others_);
    if (!captured_)
        raise(ErrorKind::capture, "trace: the step is not captured; call capture() first");
    std::vector<Captured::Launch> all = captured_->trace(), by_op;
    int last = -1;
    for (size_t i = 0; i < all.size() && i < launches_.size(); i++) {
        const PlannedOp& planned = plan_.ops[static_cast<size_t>(launches_[i].op)];
        if (!planned.body)
            by_op.push_back(std::move(all[i]));
        else if (launches_[i].op != last)
            by_op.push_back({planned.op.def->name, planned.kernel->name});
        last = launches_[i].op;
    }
    return by_op;
}

void Step::check_inputs(const Inputs& inputs) const {
    for (const auto& [id, tensor] : inputs) {
        const Value& value = plan_.values[id];
        if (value.role != Role::input)
            raise(ErrorKind::graph, "step: \"", value.name, "\" is a ", role_name(value.role),
                  ", not an input; write to step.params or step.state, or use set or bind");
        check_fits(value, tensor, "step");
        if (cells_.at(id)->read_only)
            raise(ErrorKind::graph, "step: input \"", value.name,
                  "\" is bound to a read-only tensor; leave it out, or bind a writable one");
    }
}

/// Checks the inputs of a call, and that none is missing.
void Step::check_call(const Inputs& inputs) const {
    check_inputs(inputs);
    for (ValueId id : needed_inputs_) {
        const auto given = [id = id](const auto& pair) { return pair.first == id; };
        if (!cells_.at(id)->bound && std::none_of(inputs.begin(), inputs.end(), given))
            raise(ErrorKind::graph, "step: input \"", plan_.values[id].name, "\" ",
                  to_string(plan_.values[id].type),
                  " is missing; give it, bind it, or use replay() to run on what stands there");
    }
}

/// Common prologue of calls.
void Step::take(const Inputs& inputs, std::optional<intptr_t> stream) {
    check_call(inputs);
    follow_bindings();  // may throw, so before an input is written
    if (stream) machine_->backend->order_after(*stream);
    gather(inputs, stream);
}

uint64_t Step::call(const Inputs& inputs, std::optional<intptr_t> stream) {
    return watched([&](const Watchers& watching) -> uint64_t {
        Turn turn(*machine_, others_);
        if (watching.empty() && call_staged(inputs, stream)) return generation_;
        take(inputs, stream);
        if (captured_)
            replay_locked(1, watching);
        else
            run_locked(watching);
        if (stream) machine_->backend->order_before(*stream);
        return generation_;
    });
}

}  // namespace aicf
