// Argument blocks of a step's launches, and patching them after a bind.
#include "core/run/step.h"
#include "core/run/turn.h"

namespace aicf {

/// Builds all argument blocks from a snapshot of the cells' addresses; returns owners that keep
/// that memory alive. Later binds are patched.
std::vector<std::shared_ptr<void>> Step::bind_ops(std::vector<std::shared_ptr<const void>> code) {
    std::vector<std::shared_ptr<void>> held;
    std::map<ValueId, char*> data;
    {
        const Locks locks(*machine_, others_);
        seen_bindings_ = bindings();
        for (const auto& [id, cell] : cells_) {
            held.push_back(cell->owner);
            data.emplace(id, cell->data);
        }
    }
    const auto now = [&](const View& view) {
        const auto at = data.find(plan_.places[view.value].storage);
        return (at == data.end() ? address(view.value) : at->second) +
               view.offset * dtype_size(view.dtype);
    };
    auto* const temps = static_cast<char*>(segments_[static_cast<int>(Segment::temps)].get());
    launches_ = launches_of(plan_);
    ops_.reserve(launches_.size());
    for (const Launch& launch : launches_) {
        const PlannedOp& planned = *launch.planned;
        const LoweredOp& outer = plan_.ops[static_cast<size_t>(launch.op)].op;
        std::vector<void*> addresses;
        for (const Source& source : launch.sources)
            addresses.push_back((source.operand < 0 ? temps : now(outer.operand(source.operand))) +
                                source.bytes);
        void* const scratch = planned.kernel->workspace_bytes ? temps + launch.scratch : nullptr;
        auto args = pack_args(planned.op, *planned.kernel, addresses, scratch);
        machine_->backend->finish_args(*planned.kernel, *args, counters(launch));
        ops_.push_back({planned.kernel, planned.op.def->name, std::move(args), launch.waits,
                        code[static_cast<size_t>(launch.kernel)]});
    }
    return held;
}

void* Step::counters(const Launch& launch) const {
    auto* base = static_cast<char*>(segments_[static_cast<int>(Segment::counters)].get());
    return base ? base + launch.counters : nullptr;
}

/// Patches addresses changed by bind(), here or in a sharing Step. After a failure the next run
/// continues.
void Step::follow_bindings() {
    const uint64_t now = bindings();
    if (now == seen_bindings_) return;
    stale_.resize(ops_.size(), 0);
    for (size_t i = 0; i < ops_.size(); i++) {
        ArgBlock& args = *ops_[i].args;
        const Launch& launch = launches_[i];
        const LoweredOp& outer = plan_.ops[static_cast<size_t>(launch.op)].op;
        for (int k = 0; k < args.inputs + args.outputs; k++) {
            const Source& source = launch.sources[static_cast<size_t>(k)];
            if (source.operand < 0) continue;  // scratch never moves
            const View& view = outer.operand(source.operand);
            void* at = address(view.value) + view.offset * dtype_size(view.dtype) + source.bytes;
            auto& operand = const_cast<Operand&>(args.operand(k));
            stale_[i] |= operand.ptr != at;
            operand.ptr = at;
        }
        if (!stale_[i]) continue;
        machine_->backend->finish_args(*ops_[i].kernel, args, counters(launch));
        if (captured_) captured_->rebind(static_cast<int>(i), args);
        stale_[i] = 0;
    }
    seen_bindings_ = now;
}

}  // namespace aicf
