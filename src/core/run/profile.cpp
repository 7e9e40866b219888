// Profiling: a step with each launch timed.
#include <algorithm>

#include "core/run/step.h"
#include "core/run/turn.h"

namespace aicf {

namespace {

/// The intervals of the plan's ops, from those of its launches.
std::vector<Timed::Span> spans_by_op(const std::vector<Timed::Span>& spans,
                                     const std::vector<Launch>& launches) {
    std::vector<Timed::Span> by_op;
    for (size_t i = 0; i < spans.size(); i++) {
        const auto op = static_cast<size_t>(launches[i].op);
        if (op == by_op.size()) {
            by_op.push_back(spans[i]);
            continue;
        }
        by_op[op].begin = std::min(by_op[op].begin, spans[i].begin);
        by_op[op].end = std::max(by_op[op].end, spans[i].end);
    }
    return by_op;
}

}  // namespace

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
            const int64_t left = times - std::ssize(found.runs), most = check_standing() ? 1 : left;
            const int64_t unseen = watching.empty() ? most : std::min(most, look(watching, left));
            backend.synchronize();  // exclude earlier work
            auto some = timed->run(unseen);
            generation_ += some.size();
            for (Timed::Run& run : some) run.ops = spans_by_op(run.ops, launches_);
            std::move(some.begin(), some.end(), std::back_inserter(found.runs));
        }
        found.problem = timed->problem();
        if (stream) backend.order_before(*stream);
        return found;
    });
}

std::vector<LaunchSize> Step::launch_sizes() const {
    std::vector<LaunchSize> sizes;
    for (size_t i = 0; i < ops_.size(); i++) {
        const LaunchSize size = machine_->backend->launch_size(*ops_[i].kernel);
        const auto op = static_cast<size_t>(launches_[i].op);
        if (op == sizes.size())
            sizes.push_back(size);
        else if (size.blocks * size.threads > sizes[op].blocks * sizes[op].threads)
            sizes[op] = size;
    }
    return sizes;
}

}  // namespace aicf
