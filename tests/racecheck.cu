// What racecheck says of right programs: see docs/architecture.md.
//     nvcc -gencode=arch=compute_90a,code=sm_90a -o racecheck tests/racecheck.cu
//     compute-sanitizer --tool racecheck ./racecheck
// `nothing` is wrong. `groups` is reported by 2025.3.1, not by 2026.4; `one_lane` by both, which is
// why each lane arrives for itself in attention's kernels.
#include <cstdint>
#include <cstdio>

__shared__ int held[2304];

__device__ uint32_t address(const void* p) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}
__device__ void init(uint64_t* barrier, int count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address(barrier)), "r"(count));
}
__device__ void arrive(uint64_t* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address(barrier)) : "memory");
}
__device__ void wait(uint64_t* barrier, int parity) {
    asm volatile(
        "{\n.reg .pred done;\nagain:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@done bra over;\nbra again;\nover:\n}" ::"r"(address(barrier)),
        "r"(parity)
        : "memory");
}

/// Nothing orders these.
__global__ void nothing(int* y) {
    held[threadIdx.x] = threadIdx.x;
    y[threadIdx.x] = held[(threadIdx.x + 33) % 256];
}

/// Groups of 256 threads, each with a barrier of its own, of which the last has less to do than the
/// others and waits for them at the block's.
__global__ void groups(int* y) {
    const int group = threadIdx.x / 256, t = threadIdx.x % 256;
    int v = threadIdx.x;
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < (group == 2 ? 1 : 6); i++) {
            int* const own = held + 768 + group * 512 + i % 2 * 256;
            own[t] = v;
            asm volatile("bar.sync %0, 256;" ::"r"(1 + group) : "memory");
            v += own[(t + 33) % 256];
        }
        held[threadIdx.x] = v;
        __syncthreads();
        for (int other = 0; other < 3; other++) v += held[other * 256 + (t + 65) % 256];
        __syncthreads();
    }
    y[threadIdx.x] = v;
}

/// Eight warps read what the ninth tells them, and one lane of each says that all have.
__global__ void one_lane(int* y) {
    __shared__ uint64_t full, empty;
    if (threadIdx.x == 0) init(&full, 32), init(&empty, 8);
    __syncthreads();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int v = 0;
    for (int i = 0; i < 8; i++)
        if (warp == 8) {
            wait(&empty, i % 2 ^ 1);
            held[lane] = i;
            arrive(&full);
        } else {
            wait(&full, i % 2);
            v += held[(lane + i) % 32];
            __syncwarp();
            if (lane == 0) arrive(&empty);
        }
    y[threadIdx.x] = v;
}

int main() {
    int* y;
    cudaMalloc(&y, 4096);
    nothing<<<24, 256>>>(y);
    groups<<<24, 768>>>(y);
    one_lane<<<24, 288>>>(y);
    puts(cudaGetErrorString(cudaDeviceSynchronize()));
}
