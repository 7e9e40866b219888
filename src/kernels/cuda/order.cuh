// Which positions each row of a result takes, in ascending order, and sums over them: what it costs
// follows the positions and the results, not one times the other. Blocks first sort the positions,
// a piece of the rows at a time, until no piece is left; who waits for others has taken none that
// it did not sort, so that blocks need not run together.
#pragma once

#include "prelude.cuh"

namespace aicf {

/// Positions [begin, end) of the sorted ones.
struct Found {
    uint32_t begin, end;
};

// The struct O that says what is sorted: of `lines` lines of `n` positions each, position p has the
// key `index(p)` of [0, size); row line * size + key takes it. A piece is `piece` rows. `found`,
// `positions`, `list`, `slots`, `arrivals`, `parts` are bytes of the workspace where these lie;
// `chunk` of a row's positions are added up at a time, all of them where it is 0.

/// The work of blocks that share counters: [0] the next piece, [1] sorted pieces, [2] slots that
/// rows of several chunks have, [3] blocks that are done with all of it.
template <class O>
struct Order {
    char* room;
    uint32_t* counters;
    __device__ __forceinline__ Found* found() const {
        return reinterpret_cast<Found*>(room + O::found);
    }
    __device__ __forceinline__ uint32_t* positions() const {
        return reinterpret_cast<uint32_t*>(room + O::positions);
    }
    __device__ __forceinline__ uint64_t* list() const {
        return reinterpret_cast<uint64_t*>(room + O::list);
    }
    /// Of each chunk of a row with several: the row, and which of its chunks.
    __device__ __forceinline__ Found* slots() const {
        return reinterpret_cast<Found*>(room + O::slots);
    }
    __device__ __forceinline__ uint32_t* arrivals() const {
        return reinterpret_cast<uint32_t*>(room + O::arrivals);
    }
};

/// Sorts positions stably: `entries` hold a row of the piece and a position each, by ascending
/// position; cursor[row] is where the row's next one goes. By one warp.
__device__ __forceinline__ void place_entries(uint32_t* positions, uint32_t* cursor,
                                              const uint64_t* entries, uint32_t count) {
    constexpr int kLots = 4;
    const uint32_t lane = threadIdx.x & 31;
    for (uint32_t at = 0; at < count; at += 32 * kLots) {
        uint64_t lot[kLots];
#pragma unroll
        for (int k = 0; k < kLots; k++) {
            const uint32_t i = at + 32 * k + lane;
            lot[k] = i < count ? entries[i] : ~uint64_t(0);
        }
#pragma unroll
        for (int k = 0; k < kLots; k++) {
            if (at + 32 * k >= count) break;
            const bool mine = at + 32 * k + lane < count;
            const auto row = static_cast<uint32_t>(lot[k] >> 32);
            const uint32_t alike = __match_any_sync(0xffffffffu, row);
            const uint32_t before = __popc(alike & ((1u << lane) - 1));
            uint32_t to = 0;
            if (mine) to = cursor[row] + before;
            __syncwarp();
            if (mine && before == 0) cursor[row] += __popc(alike);
            __syncwarp();
            if (mine) positions[to] = static_cast<uint32_t>(lot[k]);
        }
    }
}

/// Looks through positions [first, last) for those of rows [row0, row0 + rows): calls `hit` with
/// how many of them were before, the entry and the row, and counts those of rows below in `below`.
/// By a warp; returns how many there were.
template <class O, class I, class Hit>
__device__ __forceinline__ uint32_t look_through(const I* indices, int64_t first, int64_t last,
                                                 int64_t row0, uint32_t rows, uint32_t& below,
                                                 Hit hit) {
    constexpr int kLots = 8;
    const uint32_t lane = threadIdx.x & 31;
    uint32_t hits = 0;
    for (int64_t at = first; at < last; at += 32 * kLots) {
        int64_t index[kLots];
#pragma unroll
        for (int k = 0; k < kLots; k++) {
            const int64_t p = at + 32 * k + lane;
            index[k] = p < last ? int64_t(indices[O::index(p)]) : -1;
        }
#pragma unroll
        for (int k = 0; k < kLots; k++) {
            const auto p = static_cast<uint32_t>(at + 32 * k + lane);
            const bool inside = index[k] >= 0 && index[k] < O::size;
            const int64_t row =
                (O::lines == 1 ? 0 : int64_t(p / uint32_t(O::n)) * O::size) + index[k] - row0;
            below += inside && row < 0;
            const bool mine = inside && row >= 0 && row < rows;
            const uint32_t all = __ballot_sync(0xffffffffu, mine);
            if (mine)
                hit(hits + __popc(all & ((1u << lane) - 1)), uint64_t(row) << 32 | p,
                    static_cast<uint32_t>(row));
            hits += __popc(all);
        }
    }
    return hits;
}

template <class O, int MostWarps, int Held, class I>
__device__ __forceinline__ void sort_piece(const Grid& grid, const Order<O>& order, int64_t piece,
                                           const I* indices) {
    extern __shared__ __align__(16) char order_room[];
    auto* const held = reinterpret_cast<uint64_t*>(order_room);  // of each warp
    auto* const cursor = reinterpret_cast<uint32_t*>(held + MostWarps * Held);
    uint32_t *const hits_of = cursor + O::piece, *const below_of = hits_of + MostWarps,
                    *const scanned = below_of + MostWarps;
    const uint32_t t = grid.thread(), lane = t & 31, warp = t / 32, warps = grid.threads / 32;
    const int64_t row0 = piece * O::piece, row1 = row0 + O::piece < O::lines * O::size
                                                      ? row0 + O::piece
                                                      : O::lines * O::size;
    const auto rows = static_cast<uint32_t>(row1 - row0);
    const int64_t line0 = row0 / O::size, line1 = (row1 - 1) / O::size + 1;
    const int64_t begin = line0 * O::n, end = line1 * O::n;
    const int64_t each = (end - begin + warps * 32 - 1) / (warps * 32) * 32;
    const int64_t first = begin + warp * each, last = first + each < end ? first + each : end;
    for (uint32_t r = t; r < rows; r += grid.threads) cursor[r] = 0;
    __syncthreads();
    uint32_t below = 0, nothing = 0;
    const uint32_t hits = look_through<O>(indices, first, last, row0, rows, below,
                                          [&](uint32_t i, uint64_t entry, uint32_t row) {
                                              if (i < Held) held[warp * Held + i] = entry;
                                              atomicAdd(cursor + row, 1u);
                                          });
    for (int step = 16; step > 0; step /= 2) below += __shfl_xor_sync(0xffffffffu, below, step);
    if (lane == 0) hits_of[warp] = hits, below_of[warp] = below;
    __syncthreads();
    auto base = static_cast<uint32_t>(begin);
    uint32_t before = 0, total = 0, most = 0;
    for (uint32_t w = 0; w < warps; w++) {
        base += below_of[w];
        before += w < warp ? hits_of[w] : 0;
        total += hits_of[w];
        most = hits_of[w] > most ? hits_of[w] : most;
    }
    if (most > Held)
        look_through<O>(
            indices, first, last, row0, rows, nothing,
            [&](uint32_t i, uint64_t entry, uint32_t) { order.list()[base + before + i] = entry; });
    // Where each row begins.
    const uint32_t share = (rows + grid.threads - 1) / grid.threads, own = t * share;
    uint32_t sum = 0;
    for (uint32_t r = own; r < own + share && r < rows; r++) sum += cursor[r];
    uint32_t upto = sum;
    for (uint32_t step = 1; step < 32; step *= 2) {
        const uint32_t other = __shfl_up_sync(0xffffffffu, upto, step);
        if (lane >= step) upto += other;
    }
    if (lane == 31) scanned[warp] = upto;
    __syncthreads();
    uint32_t at = base + upto - sum;
    for (uint32_t w = 0; w < warp; w++) at += scanned[w];
    for (uint32_t r = own; r < own + share && r < rows; r++) {
        const uint32_t count = cursor[r];
        order.found()[row0 + r] = Found{at, at + count};
        cursor[r] = at;
        at += count;
        if constexpr (O::chunk > 0)
            if (count > O::chunk) {
                const auto chunks = static_cast<uint32_t>((count + O::chunk - 1) / O::chunk);
                const uint32_t slot = atomicAdd(order.counters + 2, chunks);
                for (uint32_t c = 0; c < chunks; c++)
                    order.slots()[slot + c] = Found{static_cast<uint32_t>(row0 + r), c};
                for (int64_t tile = 0; tile < O::tiles; tile++)
                    order.arrivals()[slot * O::tiles + tile] = 0;
            }
    }
    __syncthreads();
    if (warp == 0) {
        if (most > Held)
            place_entries(order.positions(), cursor, order.list() + base, total);
        else
            for (uint32_t w = 0; w < warps; w++)
                place_entries(order.positions(), cursor, held + w * Held, hits_of[w]);
    }
}

/// Sorts until all pieces are.
template <class O, int MostWarps, int Held, class I>
__device__ __forceinline__ void sort_positions(const Grid& grid, const Order<O>& order,
                                               const I* indices) {
    constexpr int64_t pieces = (O::lines * O::size + O::piece - 1) / O::piece;
    __shared__ uint32_t taken;
    for (;;) {
        if (grid.thread() == 0) taken = atomicAdd(order.counters, 1u);
        __syncthreads();
        const int64_t piece = taken;
        if (piece >= pieces) break;
        sort_piece<O, MostWarps, Held>(grid, order, piece, indices);
        __threadfence();
        __syncthreads();
        if (grid.thread() == 0) atomicAdd(order.counters + 1, 1u);
    }
    if (grid.thread() == 0) wait_count(order.counters + 1, uint32_t(pieces));
    __syncthreads();
    __threadfence();
}

/// The last block to come leaves the counters as it found them.
template <class O>
__device__ __forceinline__ void leave(const Grid& grid, const Order<O>& order) {
    __syncthreads();
    if (grid.thread() != 0 || atomicAdd(order.counters + 3, 1u) != grid.blocks - 1) return;
    for (int k = 0; k < 4; k++) order.counters[k] = 0;
}

// ---- rows of a table ----------------------------------------------------------------------------

/// Vectors of V elements at Lots positions from h on, of which `count` exist.
template <int V, int Lots, class From, class E>
__device__ __forceinline__ void read_lots(Pack<E, V> (&lot)[Lots], const E* x,
                                          const uint32_t* positions, uint32_t h, uint32_t count) {
    uint32_t at[Lots];
#pragma unroll
    for (int k = 0; k < Lots; k++) at[k] = uint32_t(k) < count ? positions[h + k] : 0;
#pragma unroll
    for (int k = 0; k < Lots; k++)
        if (uint32_t(k) < count) lot[k] = *reinterpret_cast<const Pack<E, V>*>(x + From::at(at[k]));
}

template <int V, class E, class A>
__device__ __forceinline__ void add_vector(A (&sum)[V], const Pack<E, V>& x, bool first) {
#pragma unroll
    for (int j = 0; j < V; j++) {
        const A v = static_cast<A>(widen(x.at[j]));
        sum[j] = first ? v : static_cast<A>(sum[j] + v);
    }
}

template <int V, class E, class A>
__device__ __forceinline__ void store_vector(E* y, const A (&sum)[V]) {
    Pack<E, V> out;
#pragma unroll
    for (int j = 0; j < V; j++) out.at[j] = narrow<E>(sum[j]);
    *reinterpret_cast<Pack<E, V>*>(y) = out;
}

/// y[row, w] = the sum of x[position, w] over the row's positions, in chunks that are added up in
/// ascending order. `Lanes` threads take V elements each of some rows, or of a chunk of one.
template <class A, int V, int Lanes, int64_t Width, class O, class From, class Elem, class To,
          class Place, class E>
__device__ __forceinline__ void sum_rows(const Grid& grid, const Order<O>& order, E* y,
                                         const E* x) {
    constexpr int run = 8, lots = 4, many = 8;
    constexpr int64_t tiles = (Width + Lanes * V - 1) / (Lanes * V), rows = O::size;
    const Found* const found = order.found();
    const uint32_t* const positions = order.positions();
    const uint32_t lane = grid.thread() % Lanes;
    const int64_t teams = int64_t(grid.blocks) * grid.threads / Lanes,
                  team = (int64_t(grid.block) * grid.threads + grid.thread()) / Lanes;
    // Rows of several chunks, chunk by chunk; who comes last adds these up.
    auto* const parts = reinterpret_cast<A*>(order.room + O::parts);
    const uint32_t slots = *static_cast<const volatile uint32_t*>(order.counters + 2);
    const uint32_t warp_lane = threadIdx.x & 31;
    const uint32_t mates = (Lanes == 32 ? ~0u : ((1u << (Lanes & 31)) - 1))
                           << (warp_lane / Lanes * Lanes);
    for (int64_t u = team; u < slots * tiles; u += teams) {
        const auto slot = static_cast<uint32_t>(u / tiles);
        const int64_t tile = u - slot * tiles, w = tile * Lanes * V + lane * V;
        const bool mine = w < Width;
        const Found at = order.slots()[slot];  // a row, and which of its chunks
        const Found all = found[at.begin];
        const uint32_t begin = all.begin + at.end * uint32_t(O::chunk), left = all.end - begin,
                       count = left < O::chunk ? left : uint32_t(O::chunk);
        const E* const from = x + Elem::at(mine ? w : 0);
        A sum[V] = {};
        for (uint32_t h = 0; h < count; h += many) {
            Pack<E, V> lot[many];
            read_lots<V, many, From>(lot, from, positions + begin, h, count - h);
#pragma unroll
            for (int k = 0; k < many; k++)
                if (h + k < count) add_vector(sum, lot[k], h + k == 0);
        }
        A* const part = parts + int64_t(slot) * Width + (mine ? w : 0);
        if (mine)
#pragma unroll
            for (int j = 0; j < V; j++) part[j] = sum[j];
        __threadfence();
        __syncwarp(mates);
        const uint32_t chunks = (all.end - all.begin + uint32_t(O::chunk) - 1) / uint32_t(O::chunk),
                       slot0 = slot - at.end;
        uint32_t come = 0;
        if (lane == 0) come = atomicAdd(order.arrivals() + slot0 * O::tiles + tile, 1u);
        come = __shfl_sync(mates, come, 0, Lanes);
        if (come != chunks - 1 || !mine) continue;
        __threadfence();
        const A* other = parts + int64_t(slot0) * Width + w;
        for (uint32_t c = 0; c < chunks; c++, other += Width)
#pragma unroll
            for (int j = 0; j < V; j++) {
                const A v = __ldcg(other + j);
                sum[j] = c == 0 ? v : sum[j] + v;
            }
        store_vector(y + int64_t(at.begin) * To::step + Place::at(w), sum);
    }
    // Some rows one after another; what they sum is on its way across the ends of rows.
    typedef Counter<(rows / run + 1) * tiles> N;
    for (int64_t u = team; u < (rows + run - 1) / run * tiles; u += teams) {
        const int64_t w = int64_t(N(u) % N(tiles)) * Lanes * V + lane * V;
        if (w >= Width) continue;
        int64_t row = int64_t(N(u) / N(tiles)) * run;
        const int64_t stop = row + run < rows ? row + run : rows;
        const E* const from = x + Elem::at(w);
        E* to = y + row * To::step + Place::at(w);
        const uint32_t end = found[stop - 1].end;
        Found own = found[row];
        A sum[V] = {};
        const auto next = [&] {
            to += To::step;
            if (++row < stop) own = found[row];
        };
        const auto pass_chunks = [&] {
            while (O::chunk > 0 && row < stop && own.end - own.begin > O::chunk) next();
        };
        const auto finish = [&] {
            store_vector(to, sum);
#pragma unroll
            for (int j = 0; j < V; j++) sum[j] = A(0);
            next();
            pass_chunks();
        };
        pass_chunks();
        uint32_t h = own.begin;
        while (row < stop && h < end) {
            Pack<E, V> lot[lots];
            read_lots<V, lots, From>(lot, from, positions, h, end - h);
#pragma unroll
            for (int k = 0; k < lots; k++) {
                if (h + k >= end) continue;
                while (row < stop && own.end <= h + k) finish();
                if (row < stop && own.begin <= h + k)
                    add_vector(sum, lot[k], O::chunk > 0 && h + k == own.begin);
            }
            h += lots;
            if (row < stop && h < own.begin) h = own.begin;
        }
        while (row < stop) finish();
    }
}

// ---- lines --------------------------------------------------------------------------------------

/// Sums of more are taken by a warp, whose lanes read and whose every lane adds.
constexpr uint32_t kLongSum = 32;

/// Line l of y at j: the sum, from 0, of what the positions of row l * size + j have in x.
template <class A, class O, class X, class Y, class E>
__device__ __forceinline__ void sum_lines(const Grid& grid, const Order<O>& order, E* y,
                                          const E* x) {
    constexpr int64_t rows = O::lines * O::size;
    typedef Counter<rows> N;
    const uint32_t* const positions = order.positions();
    const uint32_t lane = threadIdx.x & 31;
    const auto value = [&](uint32_t h) {
        const uint32_t p = positions[h];
        const uint32_t line = O::lines == 1 ? 0 : p / uint32_t(O::n);
        return static_cast<A>(widen(x[X::at(line, p - line * uint32_t(O::n))]));
    };
    const int64_t first = int64_t(grid.block) * grid.threads + grid.thread();
    for (int64_t r = first; r - lane < rows; r += int64_t(grid.blocks) * grid.threads) {
        const Found own = r < rows ? order.found()[r] : Found{0, 0};
        const bool is_long = own.end - own.begin > kLongSum;
        A sum = A(0);
        if (!is_long) {
            for (uint32_t h = own.begin; h < own.end; h += 4) {
                A lot[4];
#pragma unroll
                for (int k = 0; k < 4; k++) lot[k] = h + k < own.end ? value(h + k) : A(0);
#pragma unroll
                for (int k = 0; k < 4; k++)
                    if (h + k < own.end) sum = static_cast<A>(sum + lot[k]);
            }
        }
        for (uint32_t rest = __ballot_sync(0xffffffffu, is_long); rest != 0; rest &= rest - 1) {
            const int owner = __ffs(rest) - 1;
            const uint32_t begin = __shfl_sync(0xffffffffu, own.begin, owner),
                           end = __shfl_sync(0xffffffffu, own.end, owner);
            A total = A(0), coming = value(begin + lane);  // there are more than a warp's
            for (uint32_t h = begin; h < end; h += 32) {
                const A held = coming;
                if (h + 32 + lane < end) coming = value(h + 32 + lane);
                const uint32_t count = end - h < 32 ? end - h : 32;
#pragma unroll 8
                for (uint32_t k = 0; k < count; k++)
                    total = static_cast<A>(total + __shfl_sync(0xffffffffu, held, k));
            }
            if (int(lane) == owner) sum = total;
        }
        if (r < rows) {
            const N line = N(r) / N(O::size);
            y[Y::at(line, N(r) - line * N(O::size))] = narrow<E>(sum);
        }
    }
}

/// Line l of y at j: the last position of row l * size + j, or -1.
template <class O, class Y>
__device__ __forceinline__ void last_of_lines(const Grid& grid, const Order<O>& order, int64_t* y) {
    constexpr int64_t rows = O::lines * O::size;
    typedef Counter<rows> N;
    for (int64_t r = int64_t(grid.block) * grid.threads + grid.thread(); r < rows;
         r += int64_t(grid.blocks) * grid.threads) {
        const Found own = order.found()[r];
        const N line = N(r) / N(O::size);
        y[Y::at(line, N(r) - line * N(O::size))] =
            own.begin < own.end ? int64_t(order.positions()[own.end - 1] % uint32_t(O::n)) : -1;
    }
}

}  // namespace aicf
