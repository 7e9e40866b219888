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
    using Records = std::vector<const KernelRecord*>;

  private:
    bool traced(int64_t times, std::vector<Run>& runs);
    std::vector<Records> matched(const std::vector<std::pair<CUgraphExec, int>>& launches,
                                 const std::vector<KernelRecord>& records) const;

    std::shared_ptr<Stream> stream_;
    const std::vector<BoundOp>& ops_;
    CapturedGraph* captured_;
    const TracingHold hold_;
    std::unique_ptr<TimedGraph> events_;
    std::string problem_;
};

}  // namespace aicf::cuda
