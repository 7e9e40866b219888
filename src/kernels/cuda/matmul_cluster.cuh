// Products by the tiles of matmul.cuh whose chunks of k clusters of two blocks share, or groups of
// a block's threads: all are there when any adds, so each adds its share of a tile.
#pragma once

#include "copy_engine.cuh"
#include "matmul.cuh"

namespace aicf {

/// Adds what blocks left at `sums` of a thread's lots from `first` on, chunk by chunk, and hands
/// them to `put`; `place` is their tile.
template <class Pairs, int TN, int Lots, int Share, int Chunks, class Shape, class Place, class Put>
__device__ __forceinline__ void put_share(const Put& put, const Place& place,
                                          const Pack<float, 4>* sums, int first) {
    constexpr int V = 4, some = 8, threads = Pairs::threads;  // neighbours, chunks at a time
    static_assert(Share % V == 0 && TN % V == 0);
#pragma unroll 1
    for (int lot = first; lot < first + Share; lot += V) {
        const int x = lot / TN * 4, z = lot % TN;
        float total[4][V];
#pragma unroll
        for (int v = 0; v < V; v++) {
#pragma unroll
            for (int begin = 0; begin < Chunks; begin += some) {
                Pack<float, 4> of[some];
#pragma unroll
                for (int c = 0; c < some && begin + c < Chunks; c++)
                    of[c] = sums[((begin + c) * Lots + lot + v) * threads];
#pragma unroll
                for (int c = 0; c < some && begin + c < Chunks; c++)
#pragma unroll
                    for (int y = 0; y < 4; y++) {
                        float& one = total[y ^ 1][v];  // as each_four() has them
                        one = begin + c ? one + of[c].at[y] : of[c].at[y];
                    }
            }
        }
#pragma unroll
        for (int y = 0; y < 4; y++) {
            const int64_t i = place.i0 + Pairs::row() + x / 4 * 32 + y,
                          j = place.j0 + Pairs::col() + z / 4 * 16;
            if (i < Shape::m && j < Shape::n) put(place.batch, i, j, total[y]);
        }
    }
}

/// A block computes a run of chunks of BM x BN and leaves the result of each in `parts`. Half of
/// the tile is added by the first block of a cluster, or the second, whose cluster comes last.
template <int BM, int BN, int TM, int TN, int BK, int Parts, class Shape, class Put>
__device__ __forceinline__ void gemm_tiled_cluster(const Grid& grid, const Put& put, const float* a,
                                                   const float* b, float* parts,
                                                   uint32_t* counters) {
    typedef Piece<Shape, BM, BN> Place;
    typedef TilePairs<BM, BN, TM, TN, BK, Shape, float> Pairs;
    constexpr int threads = Pairs::threads, lots = TM * TN / 4, rest = int(Shape::k % BK);
    constexpr int chunks = int((Shape::k + Shape::chunk - 1) / Shape::chunk),
                  run = (chunks + Parts - 1) / Parts;
    static_assert(Shape::chunk % BK == 0 && (Parts - 1) * run < chunks && Parts % 2 == 0);
    static_assert(Place::tiles * Parts < 1 << 30);
    extern __shared__ __align__(16) char shared[];
    const uint32_t rank = cluster_rank();
    const Place place(grid.block / 2);  // its part: which cluster
    const int first = (2 * place.part + int(rank)) * run;
    Pack<float, 4>* const sums = reinterpret_cast<Pack<float, 4>*>(parts) +
                                 place.tile * chunks * lots * threads + threadIdx.x;
    const int64_t begin = first * Shape::chunk, left = Shape::k - begin,
                  terms = left < run * Shape::chunk ? left : run * Shape::chunk;
    Pairs pairs(reinterpret_cast<float*>(shared),
                a + Shape::A::at(place.batch) + place.i0 * Shape::a_row + begin * Shape::a_col,
                b + Shape::B::at(place.batch) + place.j0 * Shape::b_col + begin * Shape::b_row,
                Shape::m - place.i0, Shape::n - place.j0, terms);
    pairs.begin(reinterpret_cast<float*>(shared), put);
    const int count = int((terms + Shape::chunk - 1) / Shape::chunk);
#pragma unroll 1
    for (int chunk = 0; chunk < count; chunk++) {
        float acc[TM][TN] = {};
        const int64_t depth = terms - chunk * Shape::chunk;
        const int whole = int((depth < Shape::chunk ? depth : Shape::chunk) / BK);
#pragma unroll 1
        for (int s = 0; s < whole; s++) pairs.add_tile(acc);
        if constexpr (rest > 0)
            if (depth < Shape::chunk) pairs.template add_rest<rest>(acc);
        leave_chunk<threads>(sums + (first + chunk) * (lots * threads), acc);
    }
    sync_cluster();
    if constexpr (Parts > 2)
        if (!arrive_last(counters + place.tile * 2 + rank, Parts / 2)) return;
    put_share<Pairs, TN, lots, lots / 2, chunks, Shape>(put, place, sums, int(rank) * (lots / 2));
}

/// The same of f32 where each of `Groups` groups of a block's threads takes a chunk: their sums
/// meet in shared memory, where each group adds those of its share of the tile.
template <int BM, int BN, int TM, int TN, int BK, int Groups, class Shape, class Put>
__device__ __forceinline__ void gemm_tiled_groups(const Grid& grid, const Put& put, const float* a,
                                                  const float* b) {
    typedef Piece<Shape, BM, BN> Place;
    typedef TilePairs<BM, BN, TM, TN, BK, Shape, float, Groups> Pairs;
    constexpr int threads = Pairs::threads, lots = TM * TN / 4, rest = int(Shape::k % BK),
                  share = lots / Groups < 4 ? 4 : lots / Groups;
    static_assert(Shape::chunk % BK == 0 && lots % share == 0);
    static_assert((Groups - 1) * Shape::chunk < Shape::k && Shape::k <= Groups * Shape::chunk);
    extern __shared__ __align__(16) char shared[];
    const int group = threadIdx.x / threads;
    float* const room = reinterpret_cast<float*>(shared) + group * 2 * Pairs::size;
    auto* const sums = reinterpret_cast<Pack<float, 4>*>(reinterpret_cast<float*>(shared) +
                                                         Groups * 2 * Pairs::size) +
                       threadIdx.x % threads;
    for (uint32_t u = grid.block; u < Place::tiles; u += grid.blocks) {
        const Place place(u);
        const int64_t begin = group * Shape::chunk, left = Shape::k - begin,
                      terms = left < Shape::chunk ? left : Shape::chunk;
        Pairs pairs(room,
                    a + Shape::A::at(place.batch) + place.i0 * Shape::a_row + begin * Shape::a_col,
                    b + Shape::B::at(place.batch) + place.j0 * Shape::b_col + begin * Shape::b_row,
                    Shape::m - place.i0, Shape::n - place.j0, terms);
        pairs.begin(room, put);
        float acc[TM][TN] = {};
        const int whole = int(terms / BK);
#pragma unroll 1
        for (int s = 0; s < whole; s++) pairs.add_tile(acc);
        if constexpr (rest > 0)
            if (terms < Shape::chunk) pairs.template add_rest<rest>(acc);
        leave_chunk<threads>(sums + group * (lots * threads), acc);
        __syncthreads();
        if (group * share < lots)
            put_share<Pairs, TN, lots, share, Groups, Shape>(put, place, sums, group * share);
        __syncthreads();  // the next tile goes where this one was read
    }
}

}  // namespace aicf
