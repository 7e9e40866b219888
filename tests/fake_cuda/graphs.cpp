// Graphs of the driver for tests: an edge for every data hazard, launches of their nodes in the
// order in which these were added.
#include <chrono>
#include <cstddef>
#include <cstdlib>

#include "core/abi/abi.h"
#include "state.h"

using namespace fake;

namespace {

std::vector<emulated::Bytes> written_by(const Node& node) {
    std::vector<emulated::Bytes> written;
    for (const Span& span : spans_of(node.block.data()))
        if (span.write)
            written.push_back({reinterpret_cast<char*>(span.begin), span.end - span.begin});
    return written;
}

bool conflict(const Span& a, const Span& b) {
    return (a.write || b.write) && a.begin < b.end && b.begin < a.end;
}

/// Two nodes that touch the same bytes, one of them writing, are joined by a path of edges.
void check_hazards(const Graph& graph) {
    const size_t count = graph.nodes.size();
    std::vector<std::vector<bool>> after(count, std::vector<bool>(count));
    std::map<CUgraphNode, size_t> place;
    std::vector<std::vector<Span>> spans(count);
    for (size_t i = 0; i < count; i++) {
        const Node& node = *reinterpret_cast<Node*>(graph.nodes[i]);
        place[graph.nodes[i]] = i;
        for (CUgraphNode wait : node.waits) {
            const size_t w = place.at(wait);
            after[i][w] = true;
            for (size_t k = 0; k < w; k++) after[i][k] = after[i][k] || after[w][k];
        }
        if (!node.block.empty()) spans[i] = spans_of(node.block.data());
        for (size_t k = 0; k < i; k++) {
            if (after[i][k]) continue;
            for (const Span& a : spans[i])
                for (const Span& b : spans[k])
                    if (conflict(a, b)) broken("two nodes share memory without an edge");
        }
    }
}

}  // namespace

extern "C" {

CUresult cuGraphCreate(CUgraph* graph, unsigned) {
    MAY_FAIL;
    *graph = reinterpret_cast<CUgraph>(new Graph);
    graphs.insert(*graph);
    return CUDA_SUCCESS;
}
CUresult cuGraphDestroy(CUgraph graph) {
    LOCK;
    if (!graphs.erase(graph)) broken("a graph destroyed twice");
    auto* held = reinterpret_cast<Graph*>(graph);
    for (CUgraphNode node : held->nodes) delete reinterpret_cast<Node*>(node);
    delete held;
    return CUDA_SUCCESS;
}
static CUresult add_node(CUgraphNode* to, CUgraph graph, const CUgraphNode* waits, size_t count,
                         Node* node) {
    auto* held = reinterpret_cast<Graph*>(graph);
    for (size_t i = 0; i < count; i++) {
        bool known = false;
        for (CUgraphNode other : held->nodes) known |= other == waits[i];
        if (!known) broken("an edge from a node of another graph");
        node->waits.push_back(waits[i]);
    }
    *to = reinterpret_cast<CUgraphNode>(node);
    held->nodes.push_back(*to);
    return CUDA_SUCCESS;
}
static void keep_block(Node* node, const CUDA_KERNEL_NODE_PARAMS* params) {
    const char* block = static_cast<const char*>(params->kernelParams[0]);
    uint32_t bytes;
    std::memcpy(&bytes, block, 4);
    node->params = *params;
    node->block.assign(block, block + bytes);
    // A fault for a test: products of this name do not know what they must not read early.
    const char* forgets = std::getenv("FAKE_CUDA_NOTHING_LATE");
    if (forgets && functions.at(params->func).find(forgets) != std::string::npos)
        std::memset(node->block.data() + read<uint32_t>(block + offsetof(aicf::ArgBlock, tail)) + 8,
                    0, sizeof(uint32_t));
    blocks.push_back(node->block);
    check_block(block);
}
CUresult cuGraphAddKernelNode_v2(CUgraphNode* to, CUgraph graph, const CUgraphNode* waits,
                                 size_t count, const CUDA_KERNEL_NODE_PARAMS* params) {
    MAY_FAIL;
    if (!functions.count(params->func)) broken("a node of no function");
    if (!params->gridDimX || !params->blockDimX) broken("a node of size 0");
    auto* node = new Node{CU_GRAPH_NODE_TYPE_KERNEL, {}, {}, {}, nullptr};
    keep_block(node, params);
    return add_node(to, graph, waits, count, node);
}
CUresult cuGraphAddEmptyNode(CUgraphNode* to, CUgraph graph, const CUgraphNode* waits,
                             size_t count) {
    MAY_FAIL;
    return add_node(to, graph, waits, count,
                    new Node{CU_GRAPH_NODE_TYPE_EMPTY, {}, {}, {}, nullptr});
}
CUresult cuGraphAddEventRecordNode(CUgraphNode* to, CUgraph graph, const CUgraphNode* waits,
                                   size_t count, CUevent event) {
    MAY_FAIL;
    if (!events.count(event)) broken("a node of a dead event");
    return add_node(to, graph, waits, count,
                    new Node{CU_GRAPH_NODE_TYPE_EVENT_RECORD, {}, {}, {}, event});
}
CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode* from, const CUgraphNode* to,
                                   const CUgraphEdgeData* edges, size_t count) {
    MAY_FAIL;
    auto* held = reinterpret_cast<Graph*>(graph);
    const auto known = [&](CUgraphNode node) {
        return std::count(held->nodes.begin(), held->nodes.end(), node) == 1;
    };
    for (size_t i = 0; i < count; i++) {
        if (!known(from[i]) || !known(to[i])) broken("an edge between nodes of another graph");
        auto *first = reinterpret_cast<Node*>(from[i]), *second = reinterpret_cast<Node*>(to[i]);
        if (edges && edges[i].type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC &&
            (first->type != CU_GRAPH_NODE_TYPE_KERNEL ||
             second->type != CU_GRAPH_NODE_TYPE_KERNEL ||
             edges[i].from_port != CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC))
            broken("a programmatic edge that is not between kernels");
        if (edges && edges[i].type == CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC) {
            early++;
            second->early = from[i];
        }
        second->waits.push_back(from[i]);
    }
    return CUDA_SUCCESS;
}
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode* nodes, size_t* count) {
    LOCK;
    auto* held = reinterpret_cast<Graph*>(graph);
    if (nodes)
        for (size_t i = 0; i < held->nodes.size() && i < *count; i++) nodes[i] = held->nodes[i];
    *count = held->nodes.size();
    return CUDA_SUCCESS;
}
CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType* type) {
    *type = reinterpret_cast<Node*>(node)->type;
    return CUDA_SUCCESS;
}
CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS* params) {
    *params = reinterpret_cast<Node*>(node)->params;
    return CUDA_SUCCESS;
}
CUresult cuGraphKernelNodeSetAttribute(CUgraphNode node, CUkernelNodeAttrID which,
                                       const CUkernelNodeAttrValue* value) {
    MAY_FAIL;
    auto* held = reinterpret_cast<Node*>(node);
    if (held->type != CU_GRAPH_NODE_TYPE_KERNEL) broken("a priority of what is no kernel");
    if (which != CU_KERNEL_NODE_ATTRIBUTE_PRIORITY || value->priority < -5 || value->priority > 0)
        broken("an attribute that the driver does not know");
    held->priority = value->priority;
    urgent++;
    return CUDA_SUCCESS;
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags) {
    MAY_FAIL;
    NOT_IN_CAPTURE("a graph instantiated");
    if (!graphs.count(graph)) broken("a dead graph instantiated");
    for (CUgraphNode node : reinterpret_cast<Graph*>(graph)->nodes)
        if (reinterpret_cast<Node*>(node)->priority &&
            !(flags & CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY))
            broken("a priority that its graph does not use");
    check_hazards(*reinterpret_cast<Graph*>(graph));
    auto* copy = new std::map<CUgraphNode, Node>;
    auto& nodes = orders[reinterpret_cast<CUgraphExec>(copy)];
    for (CUgraphNode node : reinterpret_cast<Graph*>(graph)->nodes) {
        (*copy)[node] = *reinterpret_cast<Node*>(node);
        nodes.push_back(node);
    }
    *exec = reinterpret_cast<CUgraphExec>(copy);
    execs.insert(*exec);
    exec_ids[*exec] = ++last_exec_id;
    return CUDA_SUCCESS;
}
CUresult cuGraphExecDestroy(CUgraphExec exec) {
    LOCK;
    NOT_IN_CAPTURE("an executable graph destroyed");
    if (!execs.erase(exec)) broken("an executable graph destroyed twice");
    order.destroy(exec);
    orders.erase(exec);
    exec_ids.erase(exec);
    delete reinterpret_cast<std::map<CUgraphNode, Node>*>(exec);
    return CUDA_SUCCESS;
}
CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                           const CUDA_KERNEL_NODE_PARAMS* params) {
    MAY_FAIL;
    keep_block(&reinterpret_cast<std::map<CUgraphNode, Node>*>(exec)->at(node), params);
    return CUDA_SUCCESS;
}
CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    MAY_FAIL;
    NEED_CONTEXT;
    if (!streams.count(stream) || captures.count(stream)) broken("a capture on such a stream");
    if (mode != CU_STREAM_CAPTURE_MODE_RELAXED) broken("a capture that other threads may break");
    CUgraph graph = reinterpret_cast<CUgraph>(new Graph);
    graphs.insert(graph);
    captures[stream] = {~cuuint64_t{0}, graph};
    return CUDA_SUCCESS;
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph) {
    LOCK;
    const auto held = captures.find(stream);
    if (held == captures.end()) broken("the end of no capture");
    *graph = held->second.graph;
    if (!*graph) broken("the end of another's capture");
    captures.erase(held);
    return CUDA_SUCCESS;
}
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn call, void* data) {
    LOCK;
    if (!streams.count(stream)) broken("a call on a dead stream");
    if (const auto held = captures.find(stream); held != captures.end())
        reinterpret_cast<Graph*>(held->second.graph)->calls.emplace_back(call, data);
    else
        call(data);
    return CUDA_SUCCESS;
}
CUresult cuGraphAddChildGraphNode(CUgraphNode* to, CUgraph graph, const CUgraphNode* waits,
                                  size_t count, CUgraph child) {
    MAY_FAIL;
    if (!graphs.count(child)) broken("a node of a dead graph");
    auto* node = new Node{CU_GRAPH_NODE_TYPE_GRAPH, {}, {}, {}, nullptr};
    node->calls = reinterpret_cast<Graph*>(child)->calls;
    return add_node(to, graph, waits, count, node);
}
CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph child) {
    MAY_FAIL;
    Node& held = reinterpret_cast<std::map<CUgraphNode, Node>*>(exec)->at(node);
    const auto& calls = reinterpret_cast<Graph*>(child)->calls;
    if (held.type != CU_GRAPH_NODE_TYPE_GRAPH || held.calls.size() != calls.size())
        return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    held.calls = calls;
    return CUDA_SUCCESS;
}
CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) {
    MAY_FAIL;
    NOT_IN_CAPTURE("a graph uploaded");
    if (!execs.count(exec) || !lives(stream)) broken("an upload of a dead graph");
    if (captures.count(stream)) broken("an upload on a stream that is captured");
    return CUDA_SUCCESS;
}
CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
    MAY_FAIL;
    NEED_CONTEXT;
    if (!execs.count(exec) || !lives(stream)) broken("a launch of a dead graph");
    if (captures.count(stream)) broken("a graph in the capture of a stream");
    crossings += !order.begin(exec, stream);
    const auto& nodes = *reinterpret_cast<std::map<CUgraphNode, Node>*>(exec);
    const auto real_now = [] {
        return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                         std::chrono::system_clock::now().time_since_epoch())
                                         .count());
    };
    std::vector<const char*> symbols;
    std::vector<uint64_t> begins, ends;
    const uint64_t start = real_now();
    const std::vector<emulated::Bytes> none;
    for (CUgraphNode node : orders[exec]) {
        const Node& held = nodes.at(node);
        if (held.type == CU_GRAPH_NODE_TYPE_KERNEL) {
            const uint64_t begin = real_now();
            check_size(held.params.func, held.params.gridDimX, held.params.blockDimX,
                       held.params.sharedMemBytes);
            check_block(held.block.data());
            use_block(held.block.data(), stream);
            run_kernel(held.params.func, held.params.gridDimX, held.params.blockDimX,
                       held.params.sharedMemBytes, held.block.data(),
                       held.early ? written_by(nodes.at(held.early)) : none);
            last_blocks[stream] = held.block;
            symbols.push_back(functions.at(held.params.func).c_str());
            // It got ready while the one before it still ran.
            begins.push_back(begins.empty() ? start : begin - (begin - begins.back()) / 2);
            ends.push_back(real_now());
        }
        for (const auto& [call, data] : held.calls) call(data);
        if (held.event) {
            if (!events.count(held.event)) broken("a dead event recorded by a graph");
            const auto now = std::chrono::steady_clock::now().time_since_epoch();
            recorded[held.event] = std::chrono::duration<double, std::milli>(now).count();
        }
    }
    order.end(exec, stream);
    if (watch && !symbols.empty())
        watch(exec_ids.at(exec), symbols.size(), symbols.data(), begins.data(), ends.data());
    return CUDA_SUCCESS;
}

}  // extern "C"
