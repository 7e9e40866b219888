// A step with each of its launches timed.
#include <algorithm>

#include "core/run/step.h"
#include "core/run/turn.h"

namespace aicf {

Step::Profiled Step::profile(int64_t times, const Inputs* inputs, std::optional<intptr_t> stream,
                             bool eager) {
    if (times < 0) raise(ErrorKind::graph, "profile: n is ", times, "; need n >= 0");
    Backend& backend = *machine_->backend;
    return watched([&](const Watchers& watching) {
        Profiled found;
        Turn turn(*machine_, others_);
        if (inputs && !eager) {
            take(*inputs, stream);
        } else {
            if (inputs) check_inputs(*inputs);
            follow_bindings();
            if (stream) backend.order_after(*stream);
            if (inputs) gather(*inputs, stream);
        }
        const auto timed = backend.timed(ops_, eager ? nullptr : captured_.get());
        while (std::ssize(found.runs) < times) {
            const int64_t left = times - std::ssize(found.runs);
            const int64_t unseen = watching.empty() ? left : look(watching, left);
            backend.synchronize();  // what was enqueued before is no part of it
            auto some = timed->run(unseen);
            generation_ += some.size();
            std::move(some.begin(), some.end(), std::back_inserter(found.runs));
        }
        found.problem = timed->problem();
        if (stream) backend.order_before(*stream);
        return found;
    });
}

std::vector<LaunchSize> Step::launch_sizes() const {
    std::vector<LaunchSize> sizes;
    for (const BoundOp& op : ops_) sizes.push_back(machine_->backend->launch_size(*op.kernel));
    return sizes;
}

}  // namespace aicf
