#include "kernels/cuda/graph.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "core/compile/lanes.h"
#include "kernels/cuda/cublaslt.h"

namespace aicf::cuda {

namespace {

CUDA_KERNEL_NODE_PARAMS node_params(const BoundOp& op, void** parameters) {
    const auto& kernel = static_cast<const CudaKernel&>(*op.kernel);
    CUDA_KERNEL_NODE_PARAMS params = {};
    params.func = function_of(op);
    params.gridDimX = kernel.blocks;
    params.gridDimY = params.gridDimZ = 1;
    params.blockDimX = kernel.threads;
    params.blockDimY = params.blockDimZ = 1;
    params.sharedMemBytes = kernel.shared;
    params.kernelParams = parameters;
    return params;
}

CUgraphNode add_node(CUgraph graph, const BoundOp& op, const std::string& where) {
    const Driver& cu = driver();
    CUgraphNode node = nullptr;
    if (static_cast<const CudaKernel&>(*op.kernel).product) {
        const auto child = product_graph(op, *op.args);
        check_call(cu.cuGraphAddChildGraphNode(&node, graph, nullptr, 0, child.get()),
                   where.c_str());
    } else if (op.code) {
        const auto& kernel = static_cast<const CudaKernel&>(*op.kernel);
        void* parameters[] = {passed_of(kernel, *op.args)};
        const CUDA_KERNEL_NODE_PARAMS params = node_params(op, parameters);
        check_call(cu.cuGraphAddKernelNode(&node, graph, nullptr, 0, &params), where.c_str());
    } else {
        check_call(cu.cuGraphAddEmptyNode(&node, graph, nullptr, 0), where.c_str());
    }
    return node;
}

void add_edge(CUgraph graph, CUgraphNode from, CUgraphNode to, const CUgraphEdgeData& edge,
              const std::string& where) {
    check_call(driver().cuGraphAddDependencies(graph, &from, &to, &edge, 1), where.c_str());
}

/// Never throws: it may be what follows the error of a lost device, which has nothing to take.
void give_back(const Gpu& gpu, CUgraph graph, CUgraphExec exec,
               const std::vector<CUevent>& events = {}) {
    try {
        const Driver& cu = driver();
        const Scope scope(gpu);
        const CaptureAside aside;
        if (exec) cu.cuGraphExecDestroy(exec);
        if (graph) cu.cuGraphDestroy(graph);
        for (CUevent event : events) cu.cuEventDestroy(event);
    } catch (...) {
    }
}

const CudaKernel& kernel_of(const BoundOp& op) {
    return static_cast<const CudaKernel&>(*op.kernel);
}
/// Whether it launches a kernel of ours.
bool launches(const BoundOp& op) { return op.code && !kernel_of(op).product; }
unsigned blocks_of(const BoundOp& op) { return kernel_of(op).blocks; }

/// The bytes from an operand's first element to its last.
std::pair<const char*, const char*> bytes_of(const Operand& operand) {
    const auto size = dtype_size(static_cast<DType>(operand.dtype));
    const auto* from = static_cast<const char*>(operand.ptr);
    const char* to = from + size;
    for (int d = 0; d < operand.rank; d++) {
        if (operand.shape()[d] == 0) return {from, from};
        const int64_t span =
            (operand.shape()[d] - 1) * operand.strides()[d] * static_cast<int64_t>(size);
        (span < 0 ? from : to) += span;
    }
    return {from, to};
}
bool writes(const BoundOp& op, const Operand& operand) {
    const auto [first, last] = bytes_of(operand);
    for (int out = 0; out < op.args->outputs; out++) {
        const auto [from, to] = bytes_of(op.args->out(out));
        if (from < last && first < to) return true;
    }
    return false;
}
/// Whether an op writes what the next reads before it is done, whatever its block says.
bool writes_early(const BoundOp& op, const BoundOp& next) {
    const std::vector<int>& early = kernel_of(next).early;
    return std::any_of(early.begin(), early.end(),
                       [&](int in) { return writes(op, next.args->in(in)); });
}
/// Whether a product's blocks would crowd where blocks of the op before end first, and take so long
/// that this costs more than the edge: of 1.9 blocks a processor 1024 cubed in float32 took an H100
/// 68 us for 54, the step of 1024-1024-1024-10 with 128 rows 99 for 86.
bool crowds(const CudaKernel& next, int processors) {
    constexpr int64_t least = 8000;  // nanoseconds
    return next.asks && next.blocks > static_cast<unsigned>(processors) && next.nanoseconds > least;
}

/// The blocks of products that an op's block holds: its own, or those of the members of a group.
std::vector<ArgBlock*> asking(const BoundOp& op, ArgBlock& args) {
    const CudaKernel& kernel = kernel_of(op);
    if (kernel.asks) return {&args};
    std::vector<ArgBlock*> found;
    for (const Kernel::Part& part : kernel.parts)
        if (static_cast<const CudaKernel&>(*part.kernel).asks)
            found.push_back(
                reinterpret_cast<ArgBlock*>(reinterpret_cast<char*>(&args) + args.tail + part.at));
    return found;
}
/// What each of them must not read before `op`, which runs before it, is done.
std::vector<uint32_t> late_of(const BoundOp& op, const BoundOp& next) {
    std::vector<uint32_t> late;
    for (const ArgBlock* block : asking(next, *next.args)) {
        uint32_t found = 0;
        for (int in = 0; in < block->inputs; in++)  // numbers are read late anyhow
            if (block->in(in).rank > 0 && writes(op, block->in(in)))
                found |= in == 0 ? kLateA : in == 1 ? kLateB : kLateRest;
        late.push_back(found);
    }
    return late;
}

/// Ops that run alone: each other one ends before it begins, or begins when it is done. Up to it
/// nothing else is left that no op waits for, nor from it on anything that waits for none.
std::vector<char> run_alone(const std::vector<std::vector<int>>& waits,
                            const std::vector<std::vector<size_t>>& after) {
    std::vector<char> alone(waits.size(), 1), closed(waits.size(), 0);
    size_t open = 0;
    for (size_t i = 0; i < waits.size(); i++) {
        open++;
        for (int wait : waits[i]) open -= !std::exchange(closed[static_cast<size_t>(wait)], 1);
        alone[i] = open == 1;
    }
    open = 0;
    closed.assign(waits.size(), 0);
    for (size_t i = waits.size(); i-- > 0;) {
        open++;
        for (size_t next : after[i]) open -= !std::exchange(closed[next], 1);
        alone[i] = alone[i] && open == 1;
    }
    return alone;
}

}  // namespace

void write_tail(const CudaKernel& kernel, ArgBlock& args) {
    char* const block = reinterpret_cast<char*>(&args);
    char* const tail = block + kernel.tail_at;
    std::memset(tail, 0, kernel.tail_bytes);
    reinterpret_cast<ArgBlock*>(tail)->bytes = kernel.tail_bytes;
    const int64_t numbers[] = {1, 1, 0};
    std::memcpy(tail + SequenceTail::steps, numbers, sizeof numbers);
    char* to = tail + SequenceTail::kept + sizeof(void*) * kernel.fed.size();
    for (int k = 0; k < args.inputs + args.outputs; k++, to += sizeof(void*))
        std::memcpy(to, &args.operand(k).ptr, sizeof(void*));
}

// The gap between two launches is some 1 us longer than that between two nodes (H200).
int64_t times_at_once(size_t launches) {
    constexpr int64_t kNodes = 64, kTimes = 16;
    return std::clamp<int64_t>(kNodes / std::max<int64_t>(static_cast<int64_t>(launches), 1), 1,
                               kTimes);
}

CapturedGraph::CapturedGraph(std::shared_ptr<Stream> stream, const std::vector<BoundOp>& ops)
    : stream_(std::move(stream)), ops_(ops) {
    const Scope scope(stream_->gpu());
    many_.times = static_cast<int>(times_at_once(ops_.size()));
    loops_ = ops_.size() == 1 && ops_[0].code && kernel_of(ops_[0]).tail_at;
    if (loops_) many_.times = 1;  // of a launch that runs many steps
    find_order();
    without_graph_ = goes_without_graph();
    try {
        build(one_);
        if (many_.times > 1) build(many_);
    } catch (...) {
        destroy();
        throw;
    }
}

CapturedGraph::~CapturedGraph() { destroy(); }

/// Whether a plan is one kernel that is better launched without its graph. The device begins it
/// some 2 us earlier so, while the host takes some 1 us longer (H200), which one that moves so much
/// hides. What runs before it may be anything, so it must read nothing before that is done. Its
/// blocks start wherever blocks of the kernel before end first, which can leave processors with
/// uneven shares. In a kernel of up to 20 us that costs less than is gained (softmax of 16384x768
/// takes 14.7 us for 17.0). A longer one must have many blocks, or as many on each processor: a
/// cumsum of 16384x8192 by 512 blocks took 348 us for 306. Nor may several blocks fill a
/// processor's shared memory: a layer norm of 4096x50304 took 341 us for 313.
bool CapturedGraph::goes_without_graph() const {
    constexpr int64_t least = 4000, brief = 20000;  // nanoseconds
    constexpr unsigned many = 5, filling = 64 << 10;
    if (ops_.size() != 1 || early_[0] != 0) return false;
    const CudaKernel& kernel = kernel_of(ops_[0]);
    if (!kernel.early.empty() || !asking(ops_[0], *ops_[0].args).empty()) return false;
    const auto processors = static_cast<unsigned>(stream_->gpu().processors);
    const bool even = kernel.blocks >= many * processors || kernel.blocks % processors == 0;
    const bool fills = kernel.blocks > processors && kernel.shared > filling;
    return kernel.nanoseconds >= least && (kernel.nanoseconds <= brief || (even && !fills));
}

/// Where ops run side by side, those on the way through the step that takes longest come first.
/// From 9.0 on a kernel gets ready while the one that it waits for still runs (begin_kernel()), if
/// neither waits or is waited for by others, and the one that it waits for writes nothing that this
/// one reads early. Its blocks take room then: where others run beside, at most half.
void CapturedGraph::find_order() {
    std::vector<std::vector<int>> waits;
    std::vector<int64_t> takes;
    std::vector<std::vector<size_t>> after(ops_.size());
    for (size_t i = 0; i < ops_.size(); i++) {
        waits.push_back(ops_[i].waits);
        takes.push_back(kernel_of(ops_[i]).nanoseconds);
        if (waits[i].empty()) starts_.push_back(i);
        for (int wait : waits[i]) after[static_cast<size_t>(wait)].push_back(i);
    }
    for (size_t i = 0; i < ops_.size(); i++)
        if (after[i].empty()) ends_.push_back(i);
    urgent_ = on_critical_path(waits, takes);
    if (!std::count(urgent_.begin(), urgent_.end(), false)) urgent_.clear();
    early_.assign(ops_.size(), -1);
    late_.assign(ops_.size(), {});
    if (stream_->gpu().compute_major < 9) return;
    const std::vector<char> alone = run_alone(waits, after);
    const bool row = !std::count(alone.begin(), alone.end(), 0);
    const auto room = static_cast<unsigned>(stream_->gpu().processors) / 2;
    for (size_t i = 0; i < ops_.size(); i++) {
        const bool end = after[i].empty();  // the starts of the next time wait for it
        const std::vector<size_t>& next = end ? starts_ : after[i];
        if (next.size() != 1 || (end ? ends_.size() : waits[next[0]].size()) != 1) continue;
        if (!launches(ops_[i]) || !launches(ops_[next[0]])) continue;
        const unsigned blocks = blocks_of(ops_[i]) + blocks_of(ops_[next[0]]);
        const bool by_itself = row || (!end && alone[i] && alone[next[0]]);
        if ((by_itself || blocks <= room) && !writes_early(ops_[i], ops_[next[0]]) &&
            !crowds(kernel_of(ops_[next[0]]), stream_->gpu().processors))
            early_[i] = static_cast<int>(next[0]);
        if (early_[i] >= 0) late_[next[0]] = late_of(ops_[i], ops_[next[0]]);
    }
}

void CapturedGraph::build(Run& run) {
    const Driver& cu = driver();
    AICF_CU(cu, cuGraphCreate, &run.graph, 0);
    for (int time = 0; time < run.times; time++)
        for (size_t op = 0; op < ops_.size(); op++) {
            add(run, op);
            join(run);
        }
    AICF_CU(cu, cuGraphInstantiate, &run.exec, run.graph,
            urgent_.empty() ? 0 : CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY);
    AICF_CU(cu, cuGraphUpload, run.exec, stream_->handle());
}

void CapturedGraph::add(Run& run, size_t op) {
    const Driver& cu = driver();
    const std::string where = where_of(op);
    write_late(op, *ops_[op].args);
    run.nodes.push_back(add_node(run.graph, ops_[op], where));
    if (!launches(ops_[op]) || urgent_.empty() || !urgent_[op]) return;
    int least = 0, greatest = 0;
    AICF_CU(cu, cuCtxGetStreamPriorityRange, &least, &greatest);
    CUkernelNodeAttrValue value = {};
    value.priority = greatest;
    check_call(cu.cuGraphKernelNodeSetAttribute(run.nodes.back(), CU_KERNEL_NODE_ATTRIBUTE_PRIORITY,
                                                &value),
               where.c_str());
}

/// Adds the edges to the last node; the starts of a time wait for the ends of the one before.
void CapturedGraph::join(Run& run) {
    const size_t node = run.nodes.size() - 1, op = node % ops_.size(), first = node - op;
    std::vector<size_t> waits;
    for (int wait : ops_[op].waits) waits.push_back(first + static_cast<size_t>(wait));
    if (waits.empty() && first > 0)
        for (size_t end : ends_) waits.push_back(first - ops_.size() + end);
    for (size_t wait : waits) {
        CUgraphEdgeData edge = {};
        const size_t from = wait % ops_.size();
        if (early_[from] == static_cast<int>(op)) {
            edge.type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
            edge.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC;
        }
        add_edge(run.graph, run.nodes[wait], run.nodes[node], edge, where_of(op));
    }
}

/// Says in an op's block what of its operands the one before may still write.
void CapturedGraph::write_late(size_t op, ArgBlock& args) const {
    if (late_[op].empty()) return;
    const std::vector<ArgBlock*> blocks = asking(ops_[op], args);
    for (size_t i = 0; i < blocks.size(); i++)
        std::memcpy(reinterpret_cast<char*>(blocks[i]) + blocks[i]->tail + kLateAt, &late_[op][i],
                    sizeof(uint32_t));
}

std::string CapturedGraph::where_of(size_t op) const {
    return cat("capture of op ", op, " ", ops_[op].op);
}

void CapturedGraph::destroy() {
    for (const Run* run : {&one_, &many_}) give_back(stream_->gpu(), run->graph, run->exec);
}

/// The one launch of a plan that can run many steps.
void CapturedGraph::launch_loop(int64_t steps, int64_t slices, const Operands& operands,
                                bool staged) {
    const Scope scope(stream_->gpu());
    const BoundOp& op = ops_[0];
    const CudaKernel& kernel = kernel_of(op);
    looped_.resize((kernel.tail_bytes + sizeof(Chunk) - 1) / sizeof(Chunk));
    char* const tail = reinterpret_cast<char*>(looped_.data());
    std::memcpy(tail, passed_of(kernel, *op.args), kernel.tail_bytes);
    const int64_t numbers[] = {steps, slices, staged};
    std::memcpy(tail + SequenceTail::steps, numbers, sizeof numbers);
    auto** const kept = reinterpret_cast<const void**>(tail + SequenceTail::kept);
    auto** const operand_at = kept + kernel.fed.size();
    for (auto [operand, at] : operands) {
        const auto fed = std::find(kernel.fed.begin(), kernel.fed.end(), operand);
        kept[fed - kernel.fed.begin()] = std::exchange(operand_at[operand], at);
    }
    launch_kernel(tail);
}

/// The one launch of a plan. From 9.0 on it gets ready while what the stream holds before it runs.
/// The host takes less to launch its graph, but a step of a short kernel takes 0.9 us more by that
/// (H200).
void CapturedGraph::launch_kernel(void* block) {
    const Driver& cu = driver();
    const BoundOp& op = ops_[0];
    const CudaKernel& kernel = kernel_of(op);
    CUlaunchAttribute early = {};
    early.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    early.value.programmaticStreamSerializationAllowed = 1;
    CUlaunchConfig config = {};
    config.gridDimX = kernel.blocks;
    config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = kernel.threads;
    config.blockDimY = config.blockDimZ = 1;
    config.sharedMemBytes = kernel.shared;
    config.hStream = stream_->handle();
    config.attrs = &early;
    config.numAttrs = stream_->gpu().compute_major < 9 ? 0 : 1;
    void* parameters[] = {block};
    check_launch(cu.cuLaunchKernelEx(&config, function_of(op), parameters, nullptr), op);
}

bool CapturedGraph::reads_once() const { return loops_ && kernel_of(ops_[0]).brings_fed; }

int64_t CapturedGraph::launch(int64_t times) {
    // So that a caller who is interrupted stops soon.
    constexpr int64_t kMostSteps = 4096;
    if (loops_) {
        launch_loop(std::min(times, kMostSteps), 1, {}, false);
        return std::min(times, kMostSteps);
    }
    if (without_graph_ && times < many_.times) {
        const Scope scope(stream_->gpu());
        launch_kernel(passed_of(kernel_of(ops_[0]), *ops_[0].args));
        return 1;
    }
    return launch_nodes(times);
}

int64_t CapturedGraph::launch_nodes(int64_t times) {
    const Driver& cu = driver();
    const Scope scope(stream_->gpu());
    const auto [exec, runs] = launched(times);
    AICF_CU(cu, cuGraphLaunch, exec, stream_->handle());
    return runs;
}

std::pair<CUgraphExec, int> CapturedGraph::launched(int64_t times) const {
    const Run& run = many_.exec && times >= many_.times ? many_ : one_;
    return {run.exec, run.times};
}

void CapturedGraph::rebind(int op, const ArgBlock& args) {
    const BoundOp& bound = ops_[static_cast<size_t>(op)];
    if (!bound.code) return;
    const Driver& cu = driver();
    const Scope scope(stream_->gpu());
    const auto each = [&](const auto& set) {
        for (const Run* run : {&one_, &many_})
            for (size_t i = static_cast<size_t>(op); i < run->nodes.size(); i += ops_.size())
                set(run->exec, run->nodes[i]);
    };
    if (kernel_of(bound).product) {
        const auto child = product_graph(bound, args);
        return each([&](CUgraphExec exec, CUgraphNode node) {
            AICF_CU(cu, cuGraphExecChildSetParams, exec, node, child.get());
        });
    }
    write_late(static_cast<size_t>(op), const_cast<ArgBlock&>(args));
    void* parameters[] = {passed_of(kernel_of(bound), args)};
    const CUDA_KERNEL_NODE_PARAMS params = node_params(bound, parameters);
    each([&](CUgraphExec exec, CUgraphNode node) {
        AICF_CU(cu, cuGraphExecKernelNodeSetParams, exec, node, &params);
    });
}

std::vector<Captured::Launch> CapturedGraph::trace() const {
    const Driver& cu = driver();
    const Scope scope(stream_->gpu());
    size_t count = 0;
    AICF_CU(cu, cuGraphGetNodes, one_.graph, nullptr, &count);
    std::vector<CUgraphNode> held(count);
    if (count) AICF_CU(cu, cuGraphGetNodes, one_.graph, held.data(), &count);
    const std::set<CUgraphNode> there(held.begin(), held.end());
    std::map<CUfunction, std::string> names;
    for (const BoundOp& op : ops_)
        if (launches(op)) names[function_of(op)] = op.kernel->name;
    std::vector<Launch> launches;
    for (size_t i = 0; i < ops_.size(); i++) {
        if (!there.contains(one_.nodes[i])) continue;
        CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
        AICF_CU(cu, cuGraphNodeGetType, one_.nodes[i], &type);
        std::string name = ops_[i].kernel->name;
        if (type == CU_GRAPH_NODE_TYPE_KERNEL) {
            CUDA_KERNEL_NODE_PARAMS params = {};
            AICF_CU(cu, cuGraphKernelNodeGetParams, one_.nodes[i], &params);
            const auto known = names.find(params.func);
            name = known == names.end() ? "unknown" : known->second;
        }
        launches.push_back({ops_[i].op, name});
    }
    return launches;
}

// ---- one kernel --------------------------------------------------------------------------------

LaunchGraph::LaunchGraph(const Gpu& gpu, CUstream stream, const BoundOp& op)
    : gpu_(gpu), stream_(stream), code_(op.code) {
    const Driver& cu = driver();
    const Scope scope(gpu_);
    const CaptureAside aside;
    try {
        check_launch(cu.cuGraphCreate(&graph_, 0), op);
        node_ = add_node(graph_, op, launch_of(op));
        check_launch(cu.cuGraphInstantiate(&exec_, graph_, 0), op);
        check_launch(cu.cuGraphUpload(exec_, stream_), op);
    } catch (...) {
        give_back(gpu_, graph_, exec_);
        throw;
    }
}

LaunchGraph::~LaunchGraph() { give_back(gpu_, graph_, exec_); }

/// Launches that are enqueued already keep their parameters.
void LaunchGraph::run(const BoundOp& op, bool moved) {
    const Driver& cu = driver();
    const Scope scope(gpu_);
    if (moved) {
        void* parameters[] = {passed_of(kernel_of(op), *op.args)};
        const CUDA_KERNEL_NODE_PARAMS params = node_params(op, parameters);
        check_launch(cu.cuGraphExecKernelNodeSetParams(exec_, node_, &params), op);
    }
    check_launch(cu.cuGraphLaunch(exec_, stream_), op);
}

// ---- timed -------------------------------------------------------------------------------------

TimedGraph::TimedGraph(std::shared_ptr<Stream> stream, const std::vector<BoundOp>& ops)
    : stream_(std::move(stream)) {
    const Scope scope(stream_->gpu());
    try {
        build(ops);
    } catch (...) {
        destroy();
        throw;
    }
}

TimedGraph::~TimedGraph() { destroy(); }

void TimedGraph::build(const std::vector<BoundOp>& ops) {
    const Driver& cu = driver();
    AICF_CU(cu, cuGraphCreate, &graph_, 0);
    CUgraphNode last = nullptr;
    for (size_t i = 0; i <= ops.size(); i++) {
        const std::string where =
            cat("profile of op ", i, " ", i < ops.size() ? ops[i].op : "(none)");
        const auto follow = [&](CUgraphNode node) {
            if (last) add_edge(graph_, last, node, {}, where);
            last = node;
        };
        CUevent event = nullptr;
        AICF_CU(cu, cuEventCreate, &event, CU_EVENT_DEFAULT);
        events_.push_back(event);
        CUgraphNode record = nullptr;
        check_call(cu.cuGraphAddEventRecordNode(&record, graph_, nullptr, 0, event), where.c_str());
        follow(record);
        if (i < ops.size()) follow(add_node(graph_, ops[i], where));
    }
    AICF_CU(cu, cuGraphInstantiate, &exec_, graph_, 0);
    AICF_CU(cu, cuGraphUpload, exec_, stream_->handle());
    stream_->synchronize();  // an upload is no part of the first step
}

void TimedGraph::destroy() { give_back(stream_->gpu(), graph_, exec_, events_); }

std::vector<Timed::Run> TimedGraph::run(int64_t) {
    const Driver& cu = driver();
    const Scope scope(stream_->gpu());
    Run run = {{steady_seconds(), 0}, {}, "events"};
    run.ops.reserve(events_.size());
    AICF_CU(cu, cuGraphLaunch, exec_, stream_->handle());
    stream_->synchronize();
    run.whole.end = steady_seconds();
    double at = 0;
    for (size_t i = 0; i + 1 < events_.size(); i++) {
        float milliseconds = 0;
        AICF_CU(cu, cuEventElapsedTime, &milliseconds, events_[i], events_[i + 1]);
        const double begin = at;
        at += static_cast<double>(milliseconds) * 1e-3;
        run.ops.push_back({begin, at});
    }
    // The clocks have no common zero: the last launch ends when the host knows that it has.
    const double begin = std::max(run.whole.end - run.whole.begin - at, 0.0);
    for (Span& span : run.ops) {
        span.begin += begin;
        span.end += begin;
    }
    return {std::move(run)};
}

}  // namespace aicf::cuda
