// run_many: inputs stacked along a leading axis of steps are copied to the device many slices at a
// time, and one launch runs a step on each slice.
#include <algorithm>
#include <set>

#include "core/run/eager.h"
#include "core/run/turn.h"

namespace aicf {

/// A device staging buffer for slices of inputs, and the launch that runs a step on each.
struct Step::Feed {
    struct Part {
        ValueId id;
        int64_t bytes, pitch;  // size of a slice; distance between slices
        char* at;
    };
    std::vector<Part> parts;  // of inputs that an op reads
    int64_t steps = 0;        // capacity in slices
    std::shared_ptr<void> memory;
    Captured::Operands operands;         // of the multi-step launch
    std::unique_ptr<Captured> captured;  // the unrolled steps; null: the plan's own launch
    uint64_t bindings = 0;               // Machine::bindings when captured
};

namespace {

// Sizes of the staging buffer. If a launch takes any number of slices, it is double-buffered: one
// half is filled while the other is used.
constexpr int64_t kMostFed = 4096, kFedBytes = 2 << 20;
constexpr int64_t kMostFedBytes = 4 << 20;  // if the count is fixed: as much is uploaded meanwhile

const TensorRef& tensor_of(const Step::Inputs& inputs, ValueId id) {
    const auto is_it = [&](const auto& pair) { return pair.first == id; };
    return std::find_if(inputs.begin(), inputs.end(), is_it)->second;
}

/// Slices [first, first + count) of an input.
TensorRef slices(const TensorRef& stacked, int64_t first, int64_t count) {
    TensorRef part = stacked;
    part.data = static_cast<char*>(part.data) + first * part.strides[0] * dtype_size(part.dtype);
    part.shape[0] = count;
    return part;
}

TensorRef slice(const TensorRef& stacked, int64_t step) {
    TensorRef one = slices(stacked, step, 1);
    one.shape.erase(0);
    one.strides.erase(0);
    return one;
}

Step::Inputs inputs_at(const Step::Inputs& stacked, int64_t step) {
    Step::Inputs inputs = stacked;
    for (auto& [id, tensor] : inputs) tensor = slice(tensor, step);
    return inputs;
}

}  // namespace

std::pair<int64_t, uint64_t> Step::call_many(const Inputs& stacked, int64_t begin, int64_t steps,
                                             Time until, std::optional<intptr_t> stream) {
    int64_t next = steps > 1 && !watched_ ? run_fed(stacked, begin, steps, until, stream) : 0;
    uint64_t done = generation_;
    for (; next < steps && (next == 0 || Time::clock::now() < until); next++)
        done = call(inputs_at(stacked, begin + next), stream);
    return {next, done};
}

/// A call by one launch that reads the inputs where they are staged; false: nothing has happened.
bool Step::call_staged(const Inputs& inputs, std::optional<intptr_t> stream) {
    if (!captured_ || !captured_->reads_once()) return false;
    std::vector<ValueId> fed;
    std::vector<TensorRef> tensors;
    for (const auto& [id, tensor] : inputs) {
        if (tensor.device.kind != Device::cpu) return false;
        fed.push_back(id);
        tensors.push_back(tensor);
    }
    for (const IndexUse& use : plan_.indices) {  // looked at in what is given, or never
        const bool given = std::find(fed.begin(), fed.end(), use.leaf) != fed.end();
        const bool never = plan_.values[use.leaf].role == Role::constant;
        if (!never && (!given || cells_.at(use.leaf)->bound)) return false;
    }
    const std::vector<int> operands = looping_operands(fed);
    if (operands.empty()) return false;
    check_inputs(inputs);
    follow_bindings();
    const std::vector<const void*> places = machine_->backend->staged(tensors);
    if (places.empty()) return false;
    check_indices(inputs);
    Captured::Operands slices;
    for (size_t k = 0; k < places.size(); k++) slices.emplace_back(operands[k], places[k]);
    if (stream) machine_->backend->order_after(*stream);
    captured_->launch_staged(slices);
    generation_++;
    if (stream) machine_->backend->order_before(*stream);
    return true;
}

/// Runs as many of the first steps as multi-step launches cover; returns how many.
int64_t Step::run_fed(const Inputs& stacked, int64_t begin, int64_t steps, Time until,
                      std::optional<intptr_t> stream) {
    Turn turn(*machine_, others_);
    Backend& backend = *machine_->backend;
    if (!captured_ || backend.steps_at_once(ops_.size()) < 2) return 0;
    check_call(inputs_at(stacked, begin));
    follow_bindings();
    for (const auto& [id, tensor] : stacked)
        if (in_cells(slices(tensor, begin, steps))) return 0;
    const std::vector<char> looked_at = in_range_;
    try {
        steps = std::min(steps, in_range_until(stacked, begin, steps));
        Feed* const feed = steps > 1 ? feed_for(stacked, steps) : nullptr;
        if (!feed || check_standing()) return in_range_ = looked_at, 0;
        if (stream) backend.order_after(*stream);
        return feed_steps(*feed, stacked, begin, steps, until, stream);
    } catch (...) {
        in_range_ = looked_at;
        throw;
    }
}

/// Whether the tensor overlaps the step's own storage, so that a step may change later slices.
bool Step::in_cells(const TensorRef& tensor) const {
    if (!(tensor.device == device())) return false;
    return std::any_of(cells_.begin(), cells_.end(), [&](const auto& pair) {
        TensorRef memory;
        memory.data = pair.second->data;
        memory.dtype = DType::u8;
        memory.shape = {pair.second->bytes};
        memory.strides = {1};
        return memory.data && overlaps(tensor, memory);
    });
}

int64_t Step::feed_steps(const Feed& feed, const Inputs& stacked, int64_t begin, int64_t steps,
                         Time until, std::optional<intptr_t> stream) {
    Backend& backend = *machine_->backend;
    int64_t done = 0, last = 0;  // steps, and those of the last launch
    while (done < steps && (!feed.captured || steps - done >= feed.steps)) {
        if (done && Time::clock::now() >= until) break;
        const int64_t now = std::min(feed.steps, steps - done), first = begin + done;
        std::vector<std::pair<char*, TensorRef>> copies;  // all prepared before the first is made
        for (const Feed::Part& part : feed.parts) {
            const TensorRef& all = tensor_of(stacked, part.id);
            if (part.pitch == part.bytes)
                copies.emplace_back(part.at, backend.ready(slices(all, first, now)));
            for (int64_t i = 0; part.pitch != part.bytes && i < now; i++)
                copies.emplace_back(part.at + i * part.pitch, backend.ready(slice(all, first + i)));
        }
        for (const auto& [to, from] : copies) backend.gather(to, from);
        if (feed.captured)
            feed.captured->launch(1);
        else
            captured_->launch_over(feed.operands, now);
        generation_ += static_cast<uint64_t>(now);
        done += last = now;
    }
    if (!done) return 0;
    // Leave the last step's slice in the inputs.
    std::set<ValueId> fed;
    for (const Feed::Part& part : feed.parts) {
        fed.insert(part.id);
        if (part.bytes && feed.captured)
            backend.copy(address(part.id), part.at + (last - 1) * part.pitch,
                         static_cast<uint64_t>(part.bytes));
    }
    for (const auto& [id, tensor] : stacked)
        if (!fed.contains(id)) backend.gather(address(id), slice(tensor, begin + done - 1));
    release(stacked, stream);
    if (stream) backend.order_before(*stream);
    return done;
}

/// The multi-step launch, made on first use; null if these inputs or so few steps have none.
Step::Feed* Step::feed_for(const Inputs& stacked, int64_t steps) {
    std::vector<Feed::Part> parts;
    int64_t bytes = 0;
    for (const auto& [id, tensor] : stacked) {
        if (std::find(needed_inputs_.begin(), needed_inputs_.end(), id) == needed_inputs_.end())
            continue;
        const int64_t size =
            element_count(plan_.values[id].type.shape) * dtype_size(plan_.values[id].type.dtype);
        parts.push_back({id, size, size, nullptr});
        bytes += size;
    }
    std::vector<ValueId> fed;
    for (const Feed::Part& part : parts) fed.push_back(part.id);
    const std::vector<int> operands = looping_operands(fed);
    const bool loops = !operands.empty();
    const int64_t most = loops ? std::min(kMostFed, kFedBytes / std::max<int64_t>(bytes, 1))
                               : std::min(machine_->backend->steps_at_once(ops_.size()),
                                          kMostFedBytes / std::max<int64_t>(bytes, 1));
    if (most < 2 || steps < (loops ? 2 : most)) return nullptr;
    const auto alike = [](const Feed::Part& a, const Feed::Part& b) { return a.id == b.id; };
    if (feed_ && feed_->bindings == seen_bindings_ && feed_->captured.operator bool() != loops &&
        std::equal(parts.begin(), parts.end(), feed_->parts.begin(), feed_->parts.end(), alike))
        return feed_.get();
    auto feed = std::make_shared<Feed>();
    feed->steps = most;
    feed->bindings = seen_bindings_;
    int64_t room = 0;
    for (Feed::Part& part : parts) {
        // Kernels use 16-byte accesses for operands aligned to 16 bytes.
        if (!loops) part.pitch = (part.bytes + 15) / 16 * 16;
        room += align_up(most * part.pitch);
    }
    feed->memory = machine_->backend->allocate(static_cast<uint64_t>(std::max<int64_t>(room, 1)));
    auto* at = static_cast<char*>(feed->memory.get());
    for (Feed::Part& part : parts) {
        part.at = at;
        at += align_up(most * part.pitch);
    }
    feed->parts = std::move(parts);
    if (loops)
        for (size_t k = 0; k < operands.size(); k++)
            feed->operands.emplace_back(operands[k], feed->parts[k].at);
    else
        feed->captured = machine_->backend->capture(ops_over(*feed));
    feed_ = std::move(feed);
    return feed_.get();
}

/// By input, its operand of the single launch that can run many steps; empty if the plan is no such
/// launch or has other fed inputs.
std::vector<int> Step::looping_operands(const std::vector<ValueId>& fed) const {
    std::vector<int> operands;
    if (!captured_->loops_over()) return operands;
    const LoweredOp& op = plan_.ops[0].op;
    const std::vector<int64_t>& sliced = op.attrs.ints("fed");
    if (sliced.size() != fed.size()) return operands;
    for (const ValueId id : fed)
        for (const int64_t in : sliced)
            if (op.inputs[static_cast<size_t>(in)].value == id)
                operands.push_back(static_cast<int>(in));
    return operands.size() == fed.size() ? operands : std::vector<int>();
}

/// The step's launches, repeated for each slice.
std::vector<BoundOp> Step::ops_over(const Feed& feed) const {
    const int count = static_cast<int>(ops_.size());
    std::vector<char> waited_for(ops_.size(), 0);
    for (const BoundOp& op : ops_)
        for (int wait : op.waits) waited_for[static_cast<size_t>(wait)] = 1;
    std::vector<BoundOp> all;
    for (int64_t step = 0; step < feed.steps; step++) {
        const int first = static_cast<int>(step) * count;
        for (size_t i = 0; i < ops_.size(); i++) {
            BoundOp op = ops_[i];
            if (auto args = args_over(feed, i, step)) op.args = std::move(args);
            for (int& wait : op.waits) wait += first;
            for (int end = 0; step > 0 && ops_[i].waits.empty() && end < count; end++)
                if (!waited_for[static_cast<size_t>(end)]) op.waits.push_back(first - count + end);
            all.push_back(std::move(op));
        }
    }
    return all;
}

/// The argument block of a launch for one slice; null if it reads none.
std::shared_ptr<ArgBlock> Step::args_over(const Feed& feed, size_t number, int64_t step) const {
    const Launch& launch = launches_[number];
    const LoweredOp& outer = plan_.ops[static_cast<size_t>(launch.op)].op;
    const ArgBlock& now = *ops_[number].args;
    std::vector<void*> addresses;
    bool reads = false;
    for (int k = 0; k < now.inputs + now.outputs; k++) {
        const Source& source = launch.sources[static_cast<size_t>(k)];
        addresses.push_back(now.operand(k).ptr);
        if (source.operand < 0) continue;
        const View& view = outer.operand(source.operand);
        for (const Feed::Part& part : feed.parts) {
            if (plan_.places[view.value].storage != part.id) continue;
            addresses.back() =
                part.at + step * part.pitch + view.offset * dtype_size(view.dtype) + source.bytes;
            reads = true;
        }
    }
    if (!reads) return nullptr;
    const PlannedOp& planned = *launch.planned;
    auto args = pack_args(planned.op, *planned.kernel, addresses, now.workspace);
    machine_->backend->finish_args(*planned.kernel, *args, counters(launch));
    return args;
}

}  // namespace aicf
