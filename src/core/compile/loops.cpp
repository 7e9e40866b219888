// Loops in a plan: the scratch layout of a body, and the flat order of kernels, bodies included.
#include "core/compile/memory.h"
#include "core/compile/plan.h"

namespace aicf {

std::shared_ptr<const Kernel> loop_kernel(const LoweredOp& op, const Plan& body) {
    auto kernel = std::make_shared<Kernel>();
    kernel->name = "loop";
    kernel->workspace_bytes = static_cast<uint64_t>(loop_scratch(op, body).bytes);
    kernel->counter_bytes =
        static_cast<uint64_t>(body.segment_bytes[static_cast<int>(Segment::counters)]);
    return kernel;
}

Kernels Plan::kernels() const {
    Kernels all;
    for (const PlannedOp& planned : ops)
        if (planned.body)
            for (auto& kernel : planned.body->kernels()) all.push_back(std::move(kernel));
        else
            all.push_back(planned.kernel);
    return all;
}

std::vector<const LoweredOp*> kernel_ops(const Plan& plan) {
    std::vector<const LoweredOp*> all;
    for (const PlannedOp& planned : plan.ops)
        if (planned.body)
            for (const LoweredOp* op : kernel_ops(*planned.body)) all.push_back(op);
        else
            all.push_back(&planned.op);
    return all;
}

namespace {

void take_kernels(Plan& plan, const Kernels& kernels, size_t& next) {
    for (PlannedOp& planned : plan.ops) {
        if (!planned.body) {
            planned.kernel = kernels.at(next++);
            continue;
        }
        Plan body = *planned.body;
        take_kernels(body, kernels, next);
        planned.kernel = loop_kernel(planned.op, body);
        planned.body = std::make_shared<const Plan>(std::move(body));
    }
}

}  // namespace

void give_kernels(Plan& plan, const Kernels& kernels) {
    size_t next = 0;
    take_kernels(plan, kernels, next);
    check(next == kernels.size(), "plan: there are more kernels than ops");
}

LoopScratch loop_scratch(const LoweredOp& op, const Plan& body) {
    LoopScratch scratch{{}, align_up(body.segment_bytes[static_cast<int>(Segment::temps)])};
    const LoopShape shape(op.attrs);
    for (size_t i = 0; i < shape.history.size(); i++) {
        scratch.carries.push_back(shape.history[i] ? -1 : scratch.bytes);
        if (shape.history[i]) continue;
        const int64_t bytes = byte_count(body.values[body.outputs[i].value].type);
        if (bytes > kMostBytes / 2 - kArenaAlign - scratch.bytes / 2)
            raise(ErrorKind::out_of_memory, "plan: a loop takes more than ", kMostBytes,
                  " bytes; need smaller values");
        scratch.bytes = scratch.bytes + 2 * align_up(bytes);
    }
    return scratch;
}

}  // namespace aicf
