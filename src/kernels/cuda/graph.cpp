#include "kernels/cuda/graph.h"

#include <algorithm>

namespace aicf::cuda {

namespace {

CUDA_KERNEL_NODE_PARAMS node_params(const CudaKernel& kernel, void** parameters) {
    CUDA_KERNEL_NODE_PARAMS params = {};
    params.func = kernel.loaded->function;
    params.gridDimX = kernel.blocks;
    params.gridDimY = params.gridDimZ = 1;
    params.blockDimX = kernel.threads;
    params.blockDimY = params.blockDimZ = 1;
    params.sharedMemBytes = kernel.shared;
    params.kernelParams = parameters;
    return params;
}

const CudaKernel& kernel_of(const BoundOp& op) {
    return static_cast<const CudaKernel&>(*op.kernel);
}

}  // namespace

CapturedGraph::CapturedGraph(std::shared_ptr<Stream> stream, const std::vector<BoundOp>& ops)
    : stream_(std::move(stream)), ops_(ops) {
    const Scope scope(stream_->gpu());
    try {
        build();
    } catch (...) {
        destroy();
        throw;
    }
}

CapturedGraph::~CapturedGraph() {
    try {
        const Scope scope(stream_->gpu());
        destroy();
    } catch (const Error&) {  // the device is lost: nothing to give back
    }
}

void CapturedGraph::build() {
    const Driver& cu = driver();
    AICF_CU(cu, cuGraphCreate, &graph_, 0);
    // From 9.0 on a kernel gets ready while those it waits for still run (begin_kernel()), where
    // there is room for both; elsewhere its blocks would stand in the way of others.
    const auto early = [&](const BoundOp& first, const BoundOp& second) {
        const CudaKernel &from = kernel_of(first), &to = kernel_of(second);
        return stream_->gpu().compute_major >= 9 && from.loaded && to.loaded &&
               from.blocks + to.blocks <= static_cast<unsigned>(stream_->gpu().processors);
    };
    for (const BoundOp& op : ops_) {
        const std::string where = cat("capture of op ", nodes_.size(), " ", op.op);
        const bool kernel = kernel_of(op).loaded != nullptr;
        CUgraphNode node = nullptr;
        if (kernel) {
            void* parameters[] = {op.args.get()};
            const CUDA_KERNEL_NODE_PARAMS params = node_params(kernel_of(op), parameters);
            check_call(cu.cuGraphAddKernelNode(&node, graph_, nullptr, 0, &params), where.c_str());
        } else {
            check_call(cu.cuGraphAddEmptyNode(&node, graph_, nullptr, 0), where.c_str());
        }
        nodes_.push_back(node);
        for (int wait : op.waits) {
            CUgraphEdgeData edge = {};
            if (early(ops_[static_cast<size_t>(wait)], op)) {
                edge.type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
                edge.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC;
            }
            const CUgraphNode from = nodes_[static_cast<size_t>(wait)];
            check_call(cu.cuGraphAddDependencies(graph_, &from, &node, &edge, 1), where.c_str());
        }
    }
    AICF_CU(cu, cuGraphInstantiate, &exec_, graph_, 0);
    AICF_CU(cu, cuGraphUpload, exec_, stream_->handle());
}

void CapturedGraph::destroy() {
    const Driver& cu = driver();
    if (exec_) cu.cuGraphExecDestroy(exec_);
    if (graph_) cu.cuGraphDestroy(graph_);
    exec_ = nullptr;
    graph_ = nullptr;
}

void CapturedGraph::launch(int64_t times) {
    const Driver& cu = driver();
    const Scope scope(stream_->gpu());
    for (int64_t i = 0; i < times; i++) AICF_CU(cu, cuGraphLaunch, exec_, stream_->handle());
}

void CapturedGraph::rebind(int op, const ArgBlock& args) {
    const BoundOp& bound = ops_[static_cast<size_t>(op)];
    if (!kernel_of(bound).loaded) return;
    const Driver& cu = driver();
    const Scope scope(stream_->gpu());
    void* parameters[] = {const_cast<ArgBlock*>(&args)};
    const CUDA_KERNEL_NODE_PARAMS params = node_params(kernel_of(bound), parameters);
    AICF_CU(cu, cuGraphExecKernelNodeSetParams, exec_, nodes_[static_cast<size_t>(op)], &params);
}

std::vector<Captured::Launch> CapturedGraph::trace() const {
    const Driver& cu = driver();
    const Scope scope(stream_->gpu());
    size_t count = 0;
    AICF_CU(cu, cuGraphGetNodes, graph_, nullptr, &count);
    std::vector<CUgraphNode> held(count);
    if (count) AICF_CU(cu, cuGraphGetNodes, graph_, held.data(), &count);
    std::vector<Launch> launches;
    for (size_t i = 0; i < nodes_.size(); i++) {
        if (std::find(held.begin(), held.end(), nodes_[i]) == held.end()) continue;
        CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
        AICF_CU(cu, cuGraphNodeGetType, nodes_[i], &type);
        std::string name = ops_[i].kernel->name;
        if (type == CU_GRAPH_NODE_TYPE_KERNEL) {
            CUDA_KERNEL_NODE_PARAMS params = {};
            AICF_CU(cu, cuGraphKernelNodeGetParams, nodes_[i], &params);
            name = "unknown";
            for (const BoundOp& op : ops_)
                if (kernel_of(op).loaded && kernel_of(op).loaded->function == params.func)
                    name = op.kernel->name;
        }
        launches.push_back({ops_[i].op, name});
    }
    return launches;
}

}  // namespace aicf::cuda
