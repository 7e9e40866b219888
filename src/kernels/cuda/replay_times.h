// Replays of a captured graph as they are, with when each of their kernels ran.
#pragma once

#include "kernels/cuda/cupti.h"
#include "kernels/cuda/graph.h"

namespace aicf::cuda {

/// By CUPTI where it can be attached, otherwise by events in a graph of its own.
class ReplayTimes : public Timed {
  public:
    /// `captured` may be null.
    ReplayTimes(std::shared_ptr<Stream> stream, const std::vector<BoundOp>& ops,
                CapturedGraph* captured);

    std::vector<Run> run(int64_t times) override;
    std::string problem() const override { return problem_; }

  private:
    bool traced(int64_t times, std::vector<Run>& runs);

    std::shared_ptr<Stream> stream_;
    const std::vector<BoundOp>& ops_;
    CapturedGraph* captured_;
    const TracingHold hold_;
    std::unique_ptr<TimedGraph> events_;
    std::string problem_;
};

/// By time and op, from when to when each ran, in seconds of the steady clock, of the kernels of
/// one launch of a graph in which the ops are `times` times. Empty where `records`, in any order,
/// are not exactly these. An op begins no earlier than what it waits for has ended: before that it
/// gets ready.
std::vector<std::vector<Timed::Span>> spans_of(const std::vector<BoundOp>& ops, int times,
                                               std::vector<KernelRecord> records, double start);

}  // namespace aicf::cuda
