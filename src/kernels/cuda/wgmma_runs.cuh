// C = A B by wgmma where whole tiles leave processors idle and k has cuts: a block takes a run of
// Layout::run cuts, the last ones of a tile and the first ones of another. The sum of a tile's cuts
// goes from block to block in ascending order, so the bits are those of wgmma.cuh.
#pragma once

#include "wgmma.cuh"

namespace aicf {

/// What a block does of tiles that lie in lines, each line across the shorter axis of C: its own
/// place in the lines that its run is of. Blocks of the same lines read the same operand together.
/// It begins with the first cuts of its last line, for which the block as far into the next run
/// waits.
template <class Layout, class Shape>
struct Run {
    static constexpr int rows = int((Shape::m + Layout::rows - 1) / Layout::rows),
                         columns = int((Shape::n + Layout::columns - 1) / Layout::columns),
                         across = rows < columns ? rows : columns,
                         along = rows < columns ? columns : rows;
    static constexpr int all_steps = int((Shape::k + Layout::depth - 1) / Layout::depth),
                         cut_steps = int(Shape::chunk / Layout::depth),
                         cuts = (all_steps + cut_steps - 1) / cut_steps;
    static constexpr int64_t units = Shape::batches * along * cuts;
    static constexpr uint32_t blocks =
        uint32_t((units + Layout::run - 1) / Layout::run) * uint32_t(across);
    static_assert(cuts > 1 && Shape::chunk % Layout::depth == 0 && units * across < 1 << 30);

    uint32_t begin, end, place, line;
    int from, to;  // cuts of the tile of this line
    __device__ __forceinline__ explicit Run(uint32_t block)
        : begin(block / across * uint32_t(Layout::run)),
          end(begin + uint32_t(Layout::run) < uint32_t(units) ? begin + uint32_t(Layout::run)
                                                              : uint32_t(units)),
          place(block % across) {
        find();
    }
    __device__ __forceinline__ bool any() const { return end > begin; }
    __device__ __forceinline__ void next() {
        end -= uint32_t(to - from);
        find();
    }
    __device__ __forceinline__ void find() {
        if (!any()) return;
        line = (end - 1) / cuts;
        from = begin > line * cuts ? int(begin - line * cuts) : 0;
        to = int(end - line * cuts);
    }
    __device__ __forceinline__ int64_t batch() const { return line / along; }
    __device__ __forceinline__ int64_t i0() const {
        return int64_t(rows < columns ? place : line % along) * Layout::rows;
    }
    __device__ __forceinline__ int64_t j0() const {
        return int64_t(rows < columns ? line % along : place) * Layout::columns;
    }
    __device__ __forceinline__ static int steps_before(int cut) {
        return cut * cut_steps < all_steps ? cut * cut_steps : all_steps;
    }
};

/// The products of the stage at `as` onto a warpgroup's sums, to which they are added but for the
/// first of a cut.
template <class Layout, int Count>
__device__ __forceinline__ void multiply_stage(float (&to)[Count], uint32_t as, uint32_t group,
                                               bool adds) {
    constexpr int a_step = Layout::a_along_k ? 2 : 128, b_step = Layout::b_along_k ? 2 : 128;
    const uint64_t a = tile_descriptor(as + group * 8192, Layout::a_along_k ? 16 : 8192);
    const uint64_t b = tile_descriptor(as + Layout::rows * 128, Layout::b_along_k ? 16 : 8192);
    begin_products();
#pragma unroll
    for (int k = 0; k < 4; k++)
        Layout::template step<0>(to, a + k * a_step, b + k * b_step, k > 0 || adds);
    commit_products();
}

/// A block computes what its run is of C; see gemm_wgmma. `parts`: sums that each block hands on.
/// Of `counters` the first is the next block's number, the second how many blocks are done, the
/// others how many warps of a block handed their sums on. Numbers are dealt in the order in which
/// blocks begin, and a block waits for one of a smaller number, which runs already and has its sums
/// first of all or after those of one smaller still: blocks need not run together.
template <class Layout, class Shape, class Put, class Ready>
__device__ __forceinline__ void gemm_wgmma_runs(const Grid& grid, const Put& put, const void* map_a,
                                                const void* map_b, float* parts, uint32_t* counters,
                                                const Ready& ready) {
    typedef Ring<Layout> R;
    typedef Run<Layout, Shape> Mine;
    typedef Pack<float, 4> Four;
    constexpr int BM = Layout::rows, BN = Layout::columns, Stages = Layout::stages;
    constexpr int sums = BN / 2, lots = sums / 4, threads = 128 * R::consumers;
    static_assert(Layout::pair == 1 && Layout::parts == 1 && Layout::holds && !Layout::own &&
                  !Layout::words);
    static_assert(Layout::columns % R::depth == 0 || Layout::b_along_k);  // lines of 128 bytes
    extern __shared__ __align__(1024) char ring_room[];
    const uint32_t room = shared_address(ring_room), full = room + R::barriers,
                   empty = full + 8 * Stages;
    auto* const said = reinterpret_cast<volatile uint32_t*>(ring_room + R::queue);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    ready.begin();  // counters and sums lie in the workspace
    if (threadIdx.x == 0) {
        said[0] = atomicAdd(counters, 1u);
        fetch_map(map_a);
        fetch_map(map_b);
        for (int s = 0; s < Stages; s++) {
            init_barrier(full + 8 * s, 1);
            init_barrier(empty + 8 * s, R::readers);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    int stage = 0;
    uint32_t phase = 0;
    const auto next_stage = [&] {
        if (++stage == Stages) stage = 0, phase ^= 1;
    };
    if (warp < 4) {
        if constexpr (R::deals)
            asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(R::producer_registers));
        if (leads_copies(warp)) {
            ready();
            for (Mine run(said[0]); run.any(); run.next()) {
                const int az = Layout::a_batched ? int(run.batch()) : 0,
                          bz = Layout::b_batched ? int(run.batch()) : 0;
                const int i0 = int(run.i0()), j0 = int(run.j0()), last = run.steps_before(run.to);
#pragma unroll 1
                for (int s = run.steps_before(run.from); s < last; s++, next_stage()) {
                    const uint32_t as = room + stage * R::stage_bytes, there = full + 8 * stage;
                    wait_barrier(empty + 8 * stage, phase ^ 1);
                    arrive_expecting(there, R::stage_bytes);
                    copy_tile<R, BM, Layout::a_along_k>(as, map_a, i0, s * R::depth, az, there);
                    copy_tile<R, BN, Layout::b_along_k>(as + R::a_bytes, map_b, j0, s * R::depth,
                                                        bz, there);
                }
            }
        }
        __syncwarp();
    } else {
        if constexpr (R::deals)
            asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(R::consumer_registers));
        const uint32_t mine = threadIdx.x - 128, group = mine / 128;
        const uint32_t mine_room = room + R::staging + (warp - 4) * R::warp_bytes;
        constexpr bool spare = BN <= 128;  // registers
        float total[sums], acc[sums];
        Mine run(said[0]);
        int cut = run.from, left = int(run.end - run.begin), before = 0;
        bool owed = false;  // whether sums that others wait for are on their way to memory
        const auto release = [&](int s) {
            if (lane == 0) arrive_at<1>(empty + 8 * s, 0);
        };
        // Made where it is used: the products need registers.
        const auto handed_by = [&](uint32_t block) {
            uint32_t at = block * uint32_t(lots * threads) + mine;
            asm volatile("" : "+r"(at));
            return reinterpret_cast<Four*>(parts) + at;
        };
        const auto settle = [&] {
            if (!owed) return;
            if (lane == 0) add_release(counters + 2 + said[0], 1u);
            owed = false;
        };
        // The sums of a cut to those before, which are waited for one cut late if there is another.
        const auto add = [&](const float (&now)[sums]) {
            const int late = spare && run.from + 1 < run.to;
            if (run.from > 0 && cut == run.from + late) {
                const uint32_t giver = said[0] - Mine::across;
                if (lane == 0) wait_count(counters + 2 + giver, R::warps);
                __syncwarp();
                const Four* const from = handed_by(giver);
#pragma unroll
                for (int lot = 0; lot < lots; lot++) {
                    const Four four = from[lot * threads];
#pragma unroll
                    for (int y = 0; y < 4; y++)
                        total[4 * lot + y] = (late ? four.at[y] + total[4 * lot + y] : four.at[y]) +
                                             now[4 * lot + y];
                }
            } else {
#pragma unroll
                for (int x = 0; x < sums; x++)
                    total[x] = (cut > run.from ? total[x] : 0) + now[x];  // no cut's is -0
            }
        };
        // What becomes of the sums of a line's last cut here.
        const auto finish = [&] {
            if (run.to < Mine::cuts) {
                Four* const to = handed_by(said[0]);
#pragma unroll
                for (int lot = 0; lot < lots; lot++) {
                    Four four;
#pragma unroll
                    for (int y = 0; y < 4; y++) four.at[y] = total[4 * lot + y];
                    to[lot * threads] = four;
                }
                __syncwarp();
                owed = true;
                return;
            }
            const int64_t j0 = run.j0(),
                          row0 = run.i0() + (warp - 4) / 4 * 64 + (warp - 4) % 4 * 16;
            if constexpr (Put::lines) {
                if (aligned16(put.line(0, 0, 0))) {
                    store_lines(total, mine_room, put.line(run.batch(), row0, j0), Put::step,
                                Shape::m - row0, Shape::n - j0);
                    return;
                }
            }
            put_lines<Shape, R::deals && BN <= 128, BN>(total, mine_room, put, put.packed(),
                                                        run.batch(), row0, j0);
        };
        const auto next_cut = [&] {
            if (++cut < run.to) return;
            finish();
            run.next();
            cut = run.from;
        };
        for (bool first = true; left > 0; left--, first = false) {
            hold(acc);
            wait_barrier(full + 8 * stage, phase);
            multiply_stage<Layout>(acc, room + stage * R::stage_bytes, group, false);
            if (spare && !first) next_cut();  // the line before leaves beside these products
            before = stage;
            next_stage();
            const int steps = run.steps_before(cut + 1) - run.steps_before(cut);
#pragma unroll 1
            for (int s = 1; s < steps; s++, next_stage()) {
                wait_barrier(full + 8 * stage, phase);
                multiply_stage<Layout>(acc, room + stage * R::stage_bytes, group, true);
                wait_products<1>();
                release(before);
                before = stage;
                if (s == 2) settle();
            }
            wait_products<0>();
            hold(acc);
            release(before);
            settle();
            add(acc);
            if (!spare && left > 1) next_cut();
        }
        finish();
        settle();
        // The last block leaves all counters at 0.
        sync_some<1, threads>();
        if (mine == 0) said[1] = atomicAdd(counters + 1, 1u) == Mine::blocks - 1;
        sync_some<1, threads>();
        if (said[1])
            for (uint32_t x = mine; x < Mine::blocks + 2; x += threads) clear_counter(counters + x);
    }
}

}  // namespace aicf
