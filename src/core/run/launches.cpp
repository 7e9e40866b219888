#include "core/run/launches.h"

#include <algorithm>

#include "core/base/interrupt.h"

namespace aicf {

namespace {

constexpr int64_t kMostLaunches = 1 << 20;  // each takes about a kilobyte on the host

class LaunchUnroller {
  public:
    explicit LaunchUnroller(const Plan& plan) {
        for (size_t i = 0; i < plan.ops.size(); i++) {
            const PlannedOp& planned = plan.ops[i];
            op_ = static_cast<int>(i);
            std::vector<Source> sources;
            for (size_t k = 0; k < planned.op.inputs.size() + planned.op.outputs.size(); k++)
                sources.push_back({static_cast<int>(k), 0});
            std::vector<int> waits;
            for (int wait : planned.waits) {
                const std::vector<int>& ends = done_[static_cast<size_t>(wait)];
                waits.insert(waits.end(), ends.begin(), ends.end());
            }
            std::sort(waits.begin(), waits.end());
            waits.erase(std::unique(waits.begin(), waits.end()), waits.end());
            done_.push_back(add(planned, std::move(sources), {planned.scratch, planned.counters},
                                std::move(waits)));
        }
    }
    std::vector<Launch> list;

  private:
    struct At {
        int64_t scratch, counters;
    };

    /// Appends the launches of an op; returns its last ones, on which successors wait.
    std::vector<int> add(const PlannedOp& planned, std::vector<Source> sources, const At& at,
                         std::vector<int> waits) {
        if (planned.body) return unroll(planned, sources, at, std::move(waits));
        const int index = static_cast<int>(list.size());
        list.push_back({&planned, op_, kernel_++, std::move(sources), at.scratch, at.counters,
                        std::move(waits)});
        return {index};
    }

    /// Unrolls a loop. Each turn waits for all of the previous one.
    std::vector<int> unroll(const PlannedOp& planned, const std::vector<Source>& outer,
                            const At& at, std::vector<int> waits) {
        const Plan& body = *planned.body;
        const LoopShape shape(planned.op.attrs);
        const LoopScratch scratch = loop_scratch(planned.op, body);
        std::vector<int> input(body.values.size(), -1), result(body.values.size(), -1);
        const std::vector<ValueId> inputs = loop_inputs(body.values);
        for (size_t k = 0; k < inputs.size(); k++)
            input[static_cast<size_t>(inputs[k])] = static_cast<int>(k);
        for (size_t k = 0; k < body.outputs.size(); k++)
            result[static_cast<size_t>(body.places[body.outputs[k].value].storage)] =
                static_cast<int>(k);
        const auto bytes_of = [&](ValueId id) { return byte_count(body.values[id].type); };
        const auto offset_by = [](const Source& source, int64_t bytes) {
            return Source{source.operand, source.bytes + bytes};
        };
        const auto results = [&](int k) { return outer[inputs.size() + static_cast<size_t>(k)]; };
        /// The storage of carry k after a turn.
        const auto carried = [&](int k, int64_t turn) {
            const int64_t bytes = bytes_of(body.outputs[static_cast<size_t>(k)].value);
            if (shape.history[static_cast<size_t>(k)])
                return offset_by(results(k), shape.row(turn) * bytes);
            if (turn == shape.turns - 1) return results(k);
            const int64_t second =
                turn % 2 ? (bytes + kArenaAlign - 1) / kArenaAlign * kArenaAlign : 0;
            return Source{-1, at.scratch + scratch.carries[static_cast<size_t>(k)] + second};
        };
        const auto where = [&](ValueId id, int64_t turn) {
            const Place& place = body.places[id];
            if (const int k = input[static_cast<size_t>(place.storage)]; k >= 0) {
                if (k < shape.carries && turn > 0) return carried(k, turn - 1);
                const Source& source = outer[static_cast<size_t>(k)];
                const bool slice = k >= shape.carries && k < shape.carries + shape.slices;
                return slice ? offset_by(source, shape.row(turn) * bytes_of(place.storage))
                             : source;
            }
            if (const int k = result[static_cast<size_t>(place.storage)]; k >= 0)
                return k < shape.carries
                           ? carried(k, turn)
                           : offset_by(results(k), shape.row(turn) * bytes_of(place.storage));
            return Source{-1, at.scratch + place.offset};
        };
        const int first_kernel = kernel_;
        for (int64_t turn = 0; turn < shape.turns; turn++) {
            poll();
            kernel_ = first_kernel;
            std::vector<std::vector<int>> done;
            std::vector<char> ended(body.ops.size(), 1);
            for (const PlannedOp& inside : body.ops) {
                std::vector<Source> sources;
                for (const auto* views : {&inside.op.inputs, &inside.op.outputs})
                    for (const View& view : *views)
                        sources.push_back(offset_by(where(view.value, turn),
                                                    view.offset * dtype_size(view.dtype)));
                std::vector<int> before = inside.waits.empty() ? waits : std::vector<int>();
                for (int wait : inside.waits) {
                    const std::vector<int>& ends = done[static_cast<size_t>(wait)];
                    before.insert(before.end(), ends.begin(), ends.end());
                    ended[static_cast<size_t>(wait)] = 0;
                }
                std::sort(before.begin(), before.end());
                before.erase(std::unique(before.begin(), before.end()), before.end());
                done.push_back(add(inside, std::move(sources),
                                   {at.scratch + inside.scratch, at.counters + inside.counters},
                                   std::move(before)));
            }
            waits.clear();
            for (size_t i = 0; i < done.size(); i++)
                if (ended[i]) waits.insert(waits.end(), done[i].begin(), done[i].end());
        }
        return waits;
    }

    std::vector<std::vector<int>> done_;  // by op of the plan, its last launches
    int op_ = 0, kernel_ = 0;
};

}  // namespace

namespace {

/// At most kMostLaunches + 1.
int64_t count_of(const Plan& plan) {
    int64_t count = 0;
    for (const PlannedOp& planned : plan.ops) {
        const int64_t turns = planned.body ? LoopShape(planned.op.attrs).turns : 1,
                      each = planned.body ? count_of(*planned.body) : 1;
        if (each > (kMostLaunches - count) / turns) return kMostLaunches + 1;
        count += each * turns;
    }
    return count;
}

}  // namespace

std::vector<Launch> launches_of(const Plan& plan) {
    if (count_of(plan) > kMostLaunches)
        raise(ErrorKind::unsupported, "step: the turns of its loops launch more than ",
              kMostLaunches, " kernels; need fewer turns, or several steps");
    return std::move(LaunchUnroller(plan).list);
}

}  // namespace aicf
