// A plan as one CUDA graph, built node by node: a kernel node an op, an edge a wait.
#pragma once

#include "core/run/backend.h"
#include "kernels/cuda/stream.h"
#include "kernels/cuda/target.h"

namespace aicf::cuda {

/// Of an op that has something to do.
inline CUfunction function_of(const BoundOp& op) {
    return static_cast<const LoadedKernel*>(op.code.get())->function;
}

/// What the kernel gets of its argument block.
inline void* passed_of(const CudaKernel& kernel, const ArgBlock& args) {
    auto* const block = reinterpret_cast<const char*>(&args);
    return const_cast<char*>(block + kernel.tail_at);
}

inline std::string launch_of(const BoundOp& op) {
    return cat("the launch of ", op.op, " (", op.kernel->name, ")");
}
inline void check_launch(CUresult result, const BoundOp& op) {  // no text of one that goes well
    if (result != CUDA_SUCCESS) raise_driver_error(result, launch_of(op).c_str());
}

/// The tail of a sequence for one step on one slice, which is not kept.
void write_tail(const CudaKernel& kernel, ArgBlock& args);

/// How often a plan of so many launches stands in a graph of many steps.
int64_t times_at_once(size_t launches);

class CapturedGraph : public Captured {
  public:
    CapturedGraph(std::shared_ptr<Stream> stream, const std::vector<BoundOp>& ops);
    ~CapturedGraph() override;
    CapturedGraph(const CapturedGraph&) = delete;
    CapturedGraph& operator=(const CapturedGraph&) = delete;

    int64_t launch(int64_t times) override;
    /// The same by a graph in any case: tools tell its kernels apart by their nodes.
    int64_t launch_nodes(int64_t times);
    /// Whether a launch may run many steps: launch(1) runs one.
    bool loops() const { return loops_; }
    /// What that many steps launch, at most: the graph, and how many times the plan is in it.
    std::pair<CUgraphExec, int> launched(int64_t times) const;
    void rebind(int op, const ArgBlock& args) override;
    bool loops_over() const override { return loops_; }
    void launch_over(const Operands& slices, int64_t steps) override {
        launch_loop(1, steps, slices, false);
    }
    bool reads_once() const override;
    void launch_staged(const Operands& slices) override { launch_loop(1, 1, slices, true); }
    std::vector<Launch> trace() const override;

  private:
    /// The plan as many times as it says, one after the other.
    struct Run {
        int times = 1;
        std::vector<CUgraphNode> nodes;  // by op, for each time
        CUgraph graph = nullptr;
        CUgraphExec exec = nullptr;
    };
    struct alignas(64) Chunk {
        char bytes[64];
    };
    void launch_loop(int64_t steps, int64_t slices, const Operands& operands, bool staged);
    void launch_kernel(void* block);
    bool goes_without_graph() const;
    void find_order();
    void build(Run& run);
    void add(Run& run, size_t op);
    void join(Run& run);
    void write_late(size_t op, ArgBlock& args) const;
    std::string where_of(size_t op) const;
    void destroy();

    std::shared_ptr<Stream> stream_;
    std::vector<BoundOp> ops_;
    std::vector<size_t> starts_, ends_;  // the ops that wait for none, and those none waits for
    std::vector<int> early_;             // by op: the one that gets ready while it runs; -1: none
    std::vector<std::vector<uint32_t>> late_;  // by op: late_of() the one before it
    std::vector<bool> urgent_;  // by op: before what runs beside it; empty: all alike
    Run one_, many_;
    bool without_graph_ = false;  // goes_without_graph()
    bool loops_ = false;          // the plan is one launch that can run many steps
    std::vector<Chunk> looped_;   // what the last such launch was given
};

/// A kernel as a graph of one node, of which a launch takes the host 2 us for 4 (H200). Launches of
/// a graph wait for one another on whatever streams, so each is for one stream handle; a later
/// stream that gets the same handle may use it.
class LaunchGraph : public Repeated {
  public:
    LaunchGraph(const Gpu& gpu, CUstream stream, const BoundOp& op);
    ~LaunchGraph() override;
    LaunchGraph(const LaunchGraph&) = delete;
    LaunchGraph& operator=(const LaunchGraph&) = delete;

    void run(const BoundOp& op, bool moved) override;

  private:
    const Gpu& gpu_;
    const CUstream stream_;
    const std::shared_ptr<const void> code_;  // there as long as the graph
    CUgraph graph_ = nullptr;
    CUgraphNode node_ = nullptr;
    CUgraphExec exec_ = nullptr;
};

/// The same ops as a chain in their order, an event before each and behind the last.
class TimedGraph : public Timed {
  public:
    TimedGraph(std::shared_ptr<Stream> stream, const std::vector<BoundOp>& ops);
    ~TimedGraph() override;
    TimedGraph(const TimedGraph&) = delete;
    TimedGraph& operator=(const TimedGraph&) = delete;

    std::vector<Run> run(int64_t times) override;

  private:
    void build(const std::vector<BoundOp>& ops);
    void destroy();

    std::shared_ptr<Stream> stream_;
    std::vector<CUevent> events_;
    CUgraph graph_ = nullptr;
    CUgraphExec exec_ = nullptr;
};

}  // namespace aicf::cuda
