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
    for (const BoundOp& op : ops_) {
        std::vector<CUgraphNode> waits;
        for (int wait : op.waits) waits.push_back(nodes_[static_cast<size_t>(wait)]);
        CUgraphNode node = nullptr;
        CUresult result;
        if (kernel_of(op).loaded) {
            void* parameters[] = {op.args.get()};
            const CUDA_KERNEL_NODE_PARAMS params = node_params(kernel_of(op), parameters);
            result = cu.cuGraphAddKernelNode(&node, graph_, waits.data(), waits.size(), &params);
        } else {
            result = cu.cuGraphAddEmptyNode(&node, graph_, waits.data(), waits.size());
        }
        check_call(result, cat("capture of op ", nodes_.size(), " ", op.op).c_str());
        nodes_.push_back(node);
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
