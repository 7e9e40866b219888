// What memcheck says of right programs: see docs/architecture.md.
//     nvcc -arch=sm_90 -o memcheck tests/memcheck.cu
//     compute-sanitizer --tool memcheck ./memcheck
// Memory is taken from the driver's pool, used by a graph's kernels and given back, all on one
// stream, on which each graph is launched behind the allocation and before the end. `chain` is not
// reported; `branches`, of kernels that no edge orders, is: used before it is allocated, and after
// it is given back. With --track-stream-ordered-races no neither is.
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>

__global__ void fill(int* y, int value) { y[blockIdx.x * blockDim.x + threadIdx.x] = value; }

void check(cudaError_t error, const char* what) {
    if (error == cudaSuccess) return;
    std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    std::exit(1);
}
#define CHECK(call) check(call, #call)

/// A kernel for each of two parts of the memory, one behind the other or beside it.
void run(bool chain, bool waits, cudaStream_t stream) {
    constexpr int blocks = 64, threads = 256, count = blocks * threads;
    int* memory = nullptr;
    CHECK(cudaMallocAsync(&memory, 2 * count * sizeof(int), stream));
    if (waits) CHECK(cudaStreamSynchronize(stream));
    cudaGraph_t graph;
    CHECK(cudaGraphCreate(&graph, 0));
    cudaGraphNode_t last = nullptr;
    for (int part = 0; part < 2; part++) {
        int* at = memory + part * count;
        int value = part;
        void* arguments[] = {&at, &value};
        cudaKernelNodeParams node = {};
        node.func = reinterpret_cast<void*>(fill);
        node.gridDim = dim3(blocks);
        node.blockDim = dim3(threads);
        node.kernelParams = arguments;
        cudaGraphNode_t made;
        CHECK(cudaGraphAddKernelNode(&made, graph, &last, chain && part ? 1 : 0, &node));
        last = made;
    }
    cudaGraphExec_t exec;
    CHECK(cudaGraphInstantiate(&exec, graph, 0));
    for (int launch = 0; launch < 2; launch++) CHECK(cudaGraphLaunch(exec, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaFreeAsync(memory, stream));
    CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaGraphExecDestroy(exec));
    CHECK(cudaGraphDestroy(graph));
}

int main() {
    cudaStream_t stream;
    CHECK(cudaStreamCreate(&stream));
    for (const bool chain : {true, false})
        for (const bool waits : {true, false}) {
            std::printf("%s%s\n", chain ? "chain" : "branches", waits ? ", waited for" : "");
            std::fflush(stdout);
            run(chain, waits, stream);
        }
    CHECK(cudaStreamDestroy(stream));
    std::printf("done\n");
    return 0;
}
