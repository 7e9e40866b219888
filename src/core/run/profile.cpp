// A step with each of its launches timed.
#include <chrono>

#include "core/run/step.h"
#include "core/run/turn.h"

namespace aicf {

static double seconds_now() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

std::vector<Step::Profiled> Step::profile(int64_t times, const Inputs* inputs,
                                          std::optional<intptr_t> stream) {
    if (times < 0) raise(ErrorKind::graph, "profile: n is ", times, "; need n >= 0");
    Backend& backend = *machine_->backend;
    std::vector<Profiled> steps;
    Turn turn(*machine_, others_);
    if (inputs) {
        take(*inputs, stream);
    } else {
        follow_bindings();
        if (stream) backend.order_after(*stream);
    }
    const auto timed = backend.timed(ops_);
    for (int64_t i = 0; i < times; i++) {
        Profiled& step = steps.emplace_back();
        step.launches.resize(ops_.size());
        backend.synchronize();  // what was enqueued before is no part of it
        step.begin = seconds_now();
        timed->run(step.launches.data());
        step.end = seconds_now();
        generation_++;
    }
    if (stream) backend.order_before(*stream);
    return steps;
}

std::vector<LaunchSize> Step::launch_sizes() const {
    std::vector<LaunchSize> sizes;
    for (const BoundOp& op : ops_) sizes.push_back(machine_->backend->launch_size(*op.kernel));
    return sizes;
}

}  // namespace aicf
