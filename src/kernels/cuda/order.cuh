// Which positions each row of a result takes, in ascending order, and sums over them: what it costs
// follows the positions and the results, not one times the other, wherever the positions lead. It
// is a stable radix sort, by some bits of the row at a time. Blocks take tasks of a phase until
// there are none and wait for those that others have taken, so that blocks need not run together.
#pragma once

#include "prelude.cuh"

namespace aicf {

/// Positions [begin, end) of the sorted ones; read and written by one access.
struct alignas(8) Found {
    uint32_t begin, end;
};

// The struct O that says what is sorted: of `lines` lines of `n` positions each, position p has the
// key `index(p)` of [0, size); row line * size + key takes it. A pass sorts by `bits` bits of the
// row, of which there are `passes` times as many; a tile is `tile` positions, blocks have at most
// `warps`, a task finds `bound` rows, or sorts those of `split` rows where that is above 0: then
// there is one pass. `found`, `first`, `second`, `counts`, `totals`, `kept`,
// `slots`, `arrivals`, `parts` are bytes of the workspace where these lie; `chunk` of a row's
// positions are added up at a time, from +0 where `zero` is set, else from the first; where `chunk`
// is 0 none are. Of own_rows.cuh: how many positions a block keeps in `here`, else 0; `once` if
// there is a block for each task.

/// A row and a position of it; read and written by one access.
struct alignas(8) Entry {
    uint32_t position, row;
};

/// The work of blocks that share counters: [0] slots that rows of several chunks have, [1] blocks
/// that are done with all of it; then two a phase: the next task, and how many are done.
template <class O>
struct Order {
    char* room;
    uint32_t* counters;
    static constexpr int64_t rows = O::lines * O::size, count = O::lines * O::n;
    static constexpr int64_t sort_tiles = (count + O::tile - 1) / O::tile;
    static constexpr int phases = (O::split > 0 ? 0 : 3 * O::passes) + 1;
    static constexpr uint32_t tasks =
        O::split > 0 ? (rows - 1) / (O::split > 0 ? O::split : 1) + 1 : 0;
    static constexpr int used = O::here > 0 ? 6 : 2 + 2 * phases;  // counters
    template <class T>
    __device__ __forceinline__ T* at(int64_t byte) const {
        return reinterpret_cast<T*>(room + byte);
    }
    __device__ __forceinline__ Found* found() const { return at<Found>(O::found); }
    /// What so many passes have sorted.
    template <int Passes = O::passes>
    __device__ __forceinline__ Entry* entries() const {
        return at<Entry>(Passes % 2 ? O::first : O::second);
    }
    /// The positions of rows, sorted; how many rows have.
    __device__ __forceinline__ uint32_t position(uint32_t h) const { return entries()[h].position; }
    __device__ __forceinline__ uint32_t* kept() const { return at<uint32_t>(O::kept); }
    /// Of each digit, how often it is in each tile, in those before later on; in all of them.
    __device__ __forceinline__ uint32_t* counts() const { return at<uint32_t>(O::counts); }
    __device__ __forceinline__ uint32_t* totals() const { return at<uint32_t>(O::totals); }
    /// Of each chunk of a row with several: the row, and which of its chunks.
    __device__ __forceinline__ Found* slots() const { return at<Found>(O::slots); }
    __device__ __forceinline__ uint32_t* arrivals() const { return at<uint32_t>(O::arrivals); }
};

/// The bits that a pass sorts by.
template <class O, int Pass>
struct DigitOf {
    static constexpr int shift = Pass * O::bits;
    static constexpr uint32_t count =
        Pass + 1 < O::passes ? 1u << O::bits : uint32_t((Order<O>::rows - 1) >> shift) + 1;
    __device__ __forceinline__ static uint32_t of(uint32_t row) {
        return Pass + 1 < O::passes ? (row >> shift) & ((1u << O::bits) - 1) : row >> shift;
    }
};

constexpr uint32_t kNoDigit = ~0u;
constexpr int kSortLots = 8;  // elements that a lane has at a time

/// Shared memory of a block that sorts: which of a tile's elements of each digit come before those
/// of a warp, and in the last line how many there are; where the next one of each digit goes.
template <uint32_t Digits, int Warps>
struct SortRoom {
    uint32_t base[Digits], scanned[Warps];
    uint16_t before[Warps + 1][Digits];
};

template <class Room>
__device__ __forceinline__ Room& sort_room() {
    extern __shared__ __align__(16) char order_room[];
    return *reinterpret_cast<Room*>(order_room);
}

/// Runs tasks [0, tasks) of a phase, each by some block, and waits until all of them are done.
template <class O, class Run>
__device__ __forceinline__ void each_task(const Grid& grid, const Order<O>& order, int phase,
                                          uint32_t tasks, Run run) {
    __shared__ uint32_t taken;
    uint32_t* const counter = order.counters + 2 + 2 * phase;
    for (;;) {
        if (grid.thread() == 0) taken = atomicAdd(counter, 1u);
        __syncthreads();
        const uint32_t task = taken;
        if (task >= tasks) break;
        run(task);
        __syncthreads();
        if (grid.thread() == 0) add_release(counter + 1, 1u);
    }
    if (grid.thread() == 0) wait_count(counter + 1, tasks);
    __syncthreads();
}

/// Elements at h, h + step, ... before `end`, of which a lane has kSortLots; the digits of those
/// that no row takes are kNoDigit.
template <int Pass, class O, class I>
__device__ __forceinline__ void load_entries(const Order<O>& order, const I* indices, uint32_t h,
                                             uint32_t step, uint32_t end, Entry (&entry)[kSortLots],
                                             uint32_t (&digit)[kSortLots]) {
    if constexpr (Pass == 0) {
        int64_t index[kSortLots];
#pragma unroll
        for (int k = 0; k < kSortLots; k++) {
            const uint32_t p = h + k * step;
            index[k] = p < end ? int64_t(indices[O::index(p)]) : -1;
        }
#pragma unroll
        for (int k = 0; k < kSortLots; k++) {
            const uint32_t p = h + k * step, line = O::lines == 1 ? 0 : p / uint32_t(O::n);
            const bool inside = index[k] >= 0 && index[k] < O::size;
            entry[k] = Entry{p, line * uint32_t(O::size) + uint32_t(index[k])};
            digit[k] = inside ? DigitOf<O, Pass>::of(entry[k].row) : kNoDigit;
        }
    } else {
#pragma unroll
        for (int k = 0; k < kSortLots; k++)
            entry[k] = h + k * step < end ? order.template entries<Pass>()[h + k * step] : Entry{};
#pragma unroll
        for (int k = 0; k < kSortLots; k++)
            digit[k] = h + k * step < end ? DigitOf<O, Pass>::of(entry[k].row) : kNoDigit;
    }
}

/// How many elements of [first, end) have each digit, in `base`. `load(h, step, entry, digit)` says
/// what lies at h, h + step, ...
template <uint32_t Digits, class Room, class Load>
__device__ __forceinline__ void count_digits(const Grid& grid, Room& room, uint32_t first,
                                             uint32_t end, Load load) {
    const uint32_t t = grid.thread(), lane = t & 31, threads = grid.threads;
    for (uint32_t d = t; d < Digits; d += threads) room.base[d] = 0;
    __syncthreads();
    for (uint32_t at = first; at < end; at += kSortLots * threads) {
        Entry entry[kSortLots];
        uint32_t digit[kSortLots];
        load(at + t, threads, entry, digit);
#pragma unroll
        for (int k = 0; k < kSortLots; k++) {
            const uint32_t alike = __match_any_sync(0xffffffffu, digit[k]);
            if (digit[k] != kNoDigit && (alike & ((1u << lane) - 1)) == 0)
                atomicAdd(room.base + digit[k], uint32_t(__popc(alike)));
        }
    }
    __syncthreads();
}

/// Numbers of all digits become the sums of those before; returns that of all.
template <uint32_t Digits, class Room>
__device__ __forceinline__ uint32_t sum_before(const Grid& grid, Room& room) {
    const uint32_t t = grid.thread(), lane = t & 31, warp = t / 32, warps = grid.threads / 32;
    const uint32_t share = (Digits + grid.threads - 1) / grid.threads, own = t * share;
    uint32_t sum = 0;
    for (uint32_t d = own; d < own + share && d < Digits; d++) sum += room.base[d];
    uint32_t upto = sum;
    for (uint32_t step = 1; step < 32; step *= 2) {
        const uint32_t other = __shfl_up_sync(0xffffffffu, upto, step);
        if (lane >= step) upto += other;
    }
    if (lane == 31) room.scanned[warp] = upto;
    __syncthreads();
    uint32_t at = upto - sum, all = 0;
    for (uint32_t w = 0; w < warps; w++) {
        at += w < warp ? room.scanned[w] : 0;
        all += room.scanned[w];
    }
    for (uint32_t d = own; d < own + share && d < Digits; d++) {
        const uint32_t own_count = room.base[d];
        room.base[d] = at;
        at += own_count;
    }
    __syncthreads();
    return all;
}

/// Elements of [first, end) to where `base` says that those of each digit go, by ascending
/// position.
template <uint32_t Digits, class Room, class Load>
__device__ __forceinline__ void place_digits(const Grid& grid, Room& room, uint32_t first,
                                             uint32_t end, Entry* to, Load load) {
    const uint32_t t = grid.thread(), lane = t & 31, warp = t / 32, warps = grid.threads / 32;
    uint16_t* const own = room.before[warp];
    for (uint32_t at = first; at < end; at += kSortLots * grid.threads) {
        for (uint32_t d = lane; d < Digits; d += 32) own[d] = 0;
        Entry entry[kSortLots];
        uint32_t digit[kSortLots], rank[kSortLots];
        load(at + warp * kSortLots * 32 + lane, 32, entry, digit);
        __syncwarp();
#pragma unroll
        for (int k = 0; k < kSortLots; k++) {
            const bool mine = digit[k] != kNoDigit;
            const uint32_t alike = __match_any_sync(0xffffffffu, digit[k]);
            const uint32_t before = __popc(alike & ((1u << lane) - 1));
            const uint32_t count = mine ? own[digit[k]] : 0;
            rank[k] = count + before;
            __syncwarp();
            if (mine && before == 0) own[digit[k]] = uint16_t(count + __popc(alike));
            __syncwarp();
        }
        __syncthreads();
        for (uint32_t d = t; d < Digits; d += grid.threads) {
            uint32_t sum = 0;
            for (uint32_t w = 0; w < warps; w++) {
                const uint32_t count = room.before[w][d];
                room.before[w][d] = uint16_t(sum);
                sum += count;
            }
            room.before[warps][d] = uint16_t(sum);
        }
        __syncthreads();
#pragma unroll
        for (int k = 0; k < kSortLots; k++)
            if (digit[k] != kNoDigit) to[room.base[digit[k]] + own[digit[k]] + rank[k]] = entry[k];
        __syncthreads();
        for (uint32_t d = t; d < Digits; d += grid.threads) room.base[d] += room.before[warps][d];
    }
    __syncthreads();
}

/// A pass, tile by tile.
template <int Pass, class O, class I>
__device__ __forceinline__ void sort_pass(const Grid& grid, const Order<O>& order,
                                          const I* indices) {
    constexpr uint32_t digits = DigitOf<O, Pass>::count, tiles = uint32_t(Order<O>::sort_tiles);
    auto& room = sort_room<SortRoom<digits, O::warps>>();
    const uint32_t t = grid.thread(), lane = t & 31, warp = t / 32, warps = grid.threads / 32;
    const auto end_of = [&](uint32_t tile) {
        const uint32_t all = Pass == 0 ? uint32_t(Order<O>::count) : *order.kept();
        const uint32_t end = (tile + 1) * uint32_t(O::tile);
        return end < all ? end : all;
    };
    uint32_t end = 0;
    const auto load = [&](uint32_t h, uint32_t step, Entry(&entry)[kSortLots],
                          uint32_t (&digit)[kSortLots]) {
        load_entries<Pass>(order, indices, h, step, end, entry, digit);
    };
    each_task(grid, order, 3 * Pass, tiles, [&](uint32_t tile) {
        end = end_of(tile);
        count_digits<digits>(grid, room, tile * uint32_t(O::tile), end, load);
        for (uint32_t d = t; d < digits; d += grid.threads)
            order.counts()[int64_t(d) * tiles + tile] = room.base[d];
    });
    each_task(grid, order, 3 * Pass + 1, (digits + warps - 1) / warps, [&](uint32_t task) {
        const uint32_t d = task * warps + warp;
        if (d >= digits) return;
        uint32_t* const counts = order.counts() + int64_t(d) * tiles;
        uint32_t sum = 0;
        for (uint32_t first = 0; first < tiles; first += 32 * kSortLots) {
            uint32_t lot[kSortLots];
#pragma unroll
            for (int k = 0; k < kSortLots; k++) {
                const uint32_t tile = first + 32 * k + lane;
                lot[k] = tile < tiles ? counts[tile] : 0;
            }
#pragma unroll
            for (int k = 0; k < kSortLots; k++) {
                const uint32_t tile = first + 32 * k + lane;
                uint32_t upto = lot[k];
                for (uint32_t step = 1; step < 32; step *= 2) {
                    const uint32_t other = __shfl_up_sync(0xffffffffu, upto, step);
                    if (lane >= step) upto += other;
                }
                if (tile < tiles) counts[tile] = sum + upto - lot[k];
                sum += __shfl_sync(0xffffffffu, upto, 31);
            }
        }
        if (lane == 0) order.totals()[d] = sum;
    });
    each_task(grid, order, 3 * Pass + 2, tiles, [&](uint32_t tile) {
        for (uint32_t d = t; d < digits; d += grid.threads) room.base[d] = order.totals()[d];
        __syncthreads();
        const uint32_t all = sum_before<digits>(grid, room);
        if (Pass == 0 && tile == 0 && t == 0) *order.kept() = all;
        for (uint32_t d = t; d < digits; d += grid.threads)
            room.base[d] += order.counts()[int64_t(d) * tiles + tile];
        __syncthreads();
        end = end_of(tile);
        place_digits<digits>(grid, room, tile * uint32_t(O::tile), end,
                             order.template entries<Pass + 1>(), load);
    });
    if constexpr (Pass + 1 < O::passes) sort_pass<Pass + 1>(grid, order, indices);
}

/// The first of sorted elements [low, high) whose row is no less.
__device__ __forceinline__ uint32_t first_of_row(const Entry* entries, uint32_t low, uint32_t high,
                                                 int64_t row) {
    while (low < high) {
        const uint32_t mid = (low + high) / 2;
        const bool less = entries[mid].row < row;
        low = less ? mid + 1 : low;
        high = less ? high : mid;
    }
    return low;
}

/// Where the elements of a row lie, of each thread; slots for the chunks of those that have
/// several.
template <class O>
__device__ __forceinline__ void keep_found(const Order<O>& order, bool mine, int64_t row, Found own,
                                           uint32_t lane) {
    if (mine) order.found()[row] = own;
    if constexpr (O::chunk > 0) {
        const uint32_t chunks =
            mine ? uint32_t((own.end - own.begin + O::chunk - 1) / uint32_t(O::chunk)) : 0;
        uint32_t slot = 0;
        if (chunks > 1) slot = atomicAdd(order.counters, chunks);
        for (uint32_t rest = __ballot_sync(0xffffffffu, chunks > 1); rest != 0; rest &= rest - 1) {
            const int owner = __ffs(rest) - 1;
            const uint32_t first = __shfl_sync(0xffffffffu, slot, owner),
                           count = __shfl_sync(0xffffffffu, chunks, owner),
                           which = __shfl_sync(0xffffffffu, uint32_t(row), owner);
            for (uint32_t c = lane; c < count; c += 32) order.slots()[first + c] = {which, c};
            for (uint32_t tile = lane; tile < O::tiles; tile += 32)
                order.arrivals()[first * uint32_t(O::tiles) + tile] = 0;
        }
    }
}

/// Finds the sorted elements of each row.
template <class O>
__device__ __forceinline__ void find_rows(const Grid& grid, const Order<O>& order, uint32_t task) {
    struct Room {
        uint32_t begin[O::bound + 1];
    };
    auto& room = sort_room<Room>();
    const uint32_t t = grid.thread();
    const int64_t row0 = int64_t(task) * O::bound, left = Order<O>::rows - row0;
    const uint32_t rows = left < O::bound ? uint32_t(left) : O::bound;
    const Entry* const entries = order.entries();
    if (t < 2)
        room.begin[t * rows] = first_of_row(entries, 0, *order.kept(), row0 + int64_t(t) * rows);
    __syncthreads();
    const uint32_t low = room.begin[0], high = room.begin[rows];
    for (uint32_t r = t + 1; r < rows; r += grid.threads)
        room.begin[r] = first_of_row(entries, low, high, row0 + r);
    __syncthreads();
    for (uint32_t r0 = 0; r0 < rows; r0 += grid.threads) {
        const uint32_t r = r0 + t;
        const Found own = r < rows ? Found{room.begin[r], room.begin[r + 1]} : Found{high, high};
        keep_found(order, r < rows, row0 + r, own, t & 31);
    }
}

/// Sorts the positions of some rows out of all those of their lines: where positions are few that
/// is sooner done, by all blocks at once, than passes whose blocks wait for each other. What lies
/// before the lines keeps its room, so that no block needs to know how many of those count.
template <class O, class I>
__device__ __noinline__ void split_rows(const Grid& grid, const Order<O>& order, const I* indices,
                                        uint32_t task) {
    constexpr uint32_t digits = O::split;
    auto& room = sort_room<SortRoom<digits, O::warps>>();
    __shared__ uint32_t offset;
    const uint32_t t = grid.thread(), row0 = task * digits, left = uint32_t(Order<O>::rows) - row0,
                   rows = left < digits ? left : digits;
    const uint32_t first = row0 / uint32_t(O::size) * uint32_t(O::n),
                   end = ((row0 + rows - 1) / uint32_t(O::size) + 1) * uint32_t(O::n);
    uint32_t below = 0;
    const auto load = [&](uint32_t h, uint32_t step, Entry(&entry)[kSortLots],
                          uint32_t (&digit)[kSortLots]) {
        load_entries<0>(order, indices, h, step, end, entry, digit);
#pragma unroll
        for (int k = 0; k < kSortLots; k++) {
            below += digit[k] < row0;
            digit[k] = digit[k] - row0 < rows ? digit[k] - row0 : kNoDigit;
            entry[k] = Entry{h + k * step, row0 + digit[k]};
        }
    };
    if (t == 0) offset = first;
    count_digits<digits>(grid, room, first, end, load);
    if (below != 0) atomicAdd(&offset, below);
    const uint32_t kept = sum_before<digits>(grid, room);
    for (uint32_t r0 = 0; r0 < digits; r0 += grid.threads) {
        const uint32_t r = r0 + t;
        const uint32_t begin = r < rows ? room.base[r] : 0,
                       upto = r + 1 < rows ? room.base[r + 1] : kept;
        keep_found(order, r < rows, row0 + r, Found{offset + begin, offset + upto}, t & 31);
    }
    place_digits<digits>(grid, room, first, end, order.entries() + offset, load);
}

/// Sorts the positions and finds those of each row.
template <class O, class I>
__device__ __forceinline__ void sort_positions(const Grid& grid, const Order<O>& order,
                                               const I* indices) {
    const auto tasks_of = [](int64_t some) { return uint32_t((Order<O>::rows + some - 1) / some); };
    if constexpr (O::split > 0) {
        each_task(grid, order, 0, tasks_of(O::split),
                  [&](uint32_t task) { split_rows(grid, order, indices, task); });
    } else {
        sort_pass<0>(grid, order, indices);
        each_task(grid, order, Order<O>::phases - 1, tasks_of(O::bound),
                  [&](uint32_t task) { find_rows(grid, order, task); });
    }
}

/// The last block to come leaves the counters as it found them.
template <class O>
__device__ __forceinline__ void leave(const Grid& grid, const Order<O>& order) {
    __syncthreads();
    const uint32_t blocks = O::once ? Order<O>::tasks : grid.blocks;
    if (grid.thread() != 0 || add_acq_rel(order.counters + 1, 1u) != blocks - 1) return;
    for (int k = 0; k < Order<O>::used; k++) clear_counter(order.counters + k);
}

/// What a slot stands for: elements [begin, begin + count) of a row, whose slots begin at `first`.
struct Chunk {
    uint32_t row, begin, count, first, chunks;
};
template <class O>
__device__ __forceinline__ Chunk chunk_of(const Order<O>& order, uint32_t slot) {
    const Found at = order.slots()[slot];  // a row, and which of its chunks
    const Found all = order.found()[at.begin];
    const uint32_t begin = all.begin + at.end * uint32_t(O::chunk), left = all.end - begin;
    return {at.begin, begin, left < O::chunk ? left : uint32_t(O::chunk), slot - at.end,
            (all.end - all.begin + uint32_t(O::chunk) - 1) / uint32_t(O::chunk)};
}

// ---- rows of a table ----------------------------------------------------------------------------

/// Vectors of V elements at Lots positions from h on, of which `count` exist.
template <int V, int Lots, class From, class O, class E>
__device__ __forceinline__ void read_lots(Pack<E, V> (&lot)[Lots], const E* x,
                                          const Order<O>& order, uint32_t h, uint32_t count) {
    uint32_t at[Lots];
#pragma unroll
    for (int k = 0; k < Lots; k++) at[k] = uint32_t(k) < count ? order.position(h + k) : 0;
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

/// The lanes of a warp that are a thread's team of Lanes.
template <int Lanes>
__device__ __forceinline__ uint32_t mates_of() {
    return (Lanes == 32 ? ~0u : ((1u << (Lanes & 31)) - 1)) << ((threadIdx.x & 31) / Lanes * Lanes);
}

/// A tile of a chunk of a row that has several; who comes last adds these up.
template <class A, int V, int Lanes, int64_t Width, class From, class Elem, class To, class Place,
          class O, class E>
__device__ __forceinline__ void sum_slot(const Grid& grid, const Order<O>& order, E* y, const E* x,
                                         uint32_t slot, uint32_t tile) {
    constexpr int words = V * int(sizeof(A)) / 4, many = words > 2 ? 4 : 8,
                  ahead = words > 2 ? 16 / words : 8;
    typedef Counter<(Width + Lanes * V - 1) / (Lanes * V) * Lanes * V> At;
    auto* const parts = reinterpret_cast<A*>(order.room + O::parts);
    const uint32_t lane = grid.thread() % Lanes, mates = mates_of<Lanes>();
    const At w = (At(tile) * Lanes + lane) * V;
    const bool mine = Width % (Lanes * V) == 0 || w < At(Width);
    const E* const from = x + Elem::at(mine ? w : 0);
    Chunk own = chunk_of(order, slot);
    const uint32_t end = own.begin + own.count;
    A sum[V] = {};
    for (uint32_t h = own.begin; h < end; h += many) {
        Pack<E, V> lot[many];
        read_lots<V, many, From>(lot, from, order, h, end - h);
#pragma unroll
        for (int k = 0; k < many; k++)
            if (h + k < end) add_vector(sum, lot[k], !O::zero && h + k == own.begin);
    }
    A* const part = parts + int64_t(slot) * Width + w;
    if (mine)
#pragma unroll
        for (int j = 0; j < V; j++) part[j] = sum[j];
    own = chunk_of(order, slot);  // anew: the loop has no registers for the rest of it
    __syncwarp(mates);
    uint32_t come = 0;
    if (lane == 0) come = add_acq_rel(order.arrivals() + own.first * O::tiles + tile, 1u);
    come = __shfl_sync(mates, come, 0, Lanes);
    __syncwarp(mates);
    if (come != own.chunks - 1 || !mine) return;
    const A* other = parts + int64_t(own.first) * Width + w;
    for (uint32_t c0 = 0; c0 < own.chunks; c0 += ahead, other += ahead * Width) {
        A lot[ahead][V];
#pragma unroll
        for (int k = 0; k < ahead; k++)
#pragma unroll
            for (int j = 0; j < V; j++)
                if (c0 + k < own.chunks) lot[k][j] = __ldcg(other + k * Width + j);
#pragma unroll
        for (int k = 0; k < ahead; k++)
#pragma unroll
            for (int j = 0; j < V; j++)
                if (c0 + k < own.chunks)
                    sum[j] = c0 + k == 0 ? lot[k][j] : static_cast<A>(sum[j] + lot[k][j]);
    }
    store_vector(y + int64_t(own.row) * To::step + Place::at(w), sum);
}

/// y[row, w] = the sum of x[position, w] over the row's positions, in chunks that are added up in
/// ascending order. `Lanes` threads take V elements each of some rows, or of a chunk of one.
template <class A, int V, int Lanes, int64_t Width, class O, class From, class Elem, class To,
          class Place, class E>
__device__ __forceinline__ void sum_rows(const Grid& grid, const Order<O>& order, E* y,
                                         const E* x) {
    constexpr int run = 8, lots = 4;
    constexpr int64_t tiles = (Width + Lanes * V - 1) / (Lanes * V), rows = O::size;
    // Of the first element that a thread takes; of pieces of work, and a step beyond.
    typedef Counter<tiles * Lanes * V> At;
    constexpr int64_t most_slots = 2 * (Order<O>::count / O::chunk) + 1, most_step = 1 << 24;
    const Found* const found = order.found();
    const uint32_t lane = grid.thread() % Lanes;
    const auto teams = uint32_t(grid.step() / Lanes), team = uint32_t(grid.begin() / Lanes);
    // Rows of several chunks, chunk by chunk.
    const uint32_t slots = *static_cast<const volatile uint32_t*>(order.counters);
    typedef Counter<most_slots * tiles + most_step> S;
    for (S u = team; u < slots * S(tiles); u += teams) {
        const auto slot = static_cast<uint32_t>(u / S(tiles));
        sum_slot<A, V, Lanes, Width, From, Elem, To, Place>(
            grid, order, y, x, slot, static_cast<uint32_t>(u - slot * S(tiles)));
    }
    // Some rows one after another; what they sum is on its way across the ends of rows.
    typedef Counter<(rows / run + 1) * tiles + most_step> N;
    for (N u = team; u < N((rows + run - 1) / run * tiles); u += teams) {
        const At w = (At(u % N(tiles)) * Lanes + lane) * V;
        if (Width % (Lanes * V) != 0 && w >= At(Width)) continue;
        auto row = static_cast<uint32_t>(u / N(tiles)) * run;
        const uint32_t stop = row + run < uint32_t(rows) ? row + run : uint32_t(rows);
        const E* const from = x + Elem::at(w);
        E* to = y + int64_t(row) * To::step + Place::at(w);
        const uint32_t end = found[stop - 1].end;
        Found own = found[row];
        A sum[V] = {};
        const auto next = [&] {
            to += To::step;
            if (++row < stop) own = found[row];
        };
        const auto pass_chunks = [&] {
            while (row < stop && own.end - own.begin > O::chunk) next();
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
            read_lots<V, lots, From>(lot, from, order, h, end - h);
#pragma unroll
            for (int k = 0; k < lots; k++) {
                if (h + k >= end) continue;
                while (row < stop && own.end <= h + k) finish();
                if (row < stop && own.begin <= h + k)
                    add_vector(sum, lot[k], !O::zero && h + k == own.begin);
            }
            h += lots;
            if (row < stop && h < own.begin) h = own.begin;
        }
        while (row < stop) finish();
    }
}

// ---- rows of one number -------------------------------------------------------------------------

/// Sums of more are taken by a warp.
constexpr uint32_t kLongSum = 32;

/// The sum of numbers [begin, end) in ascending order, by a warp and in each of its lanes: they
/// read, and all of them add.
template <bool Zero, class A, class Value>
__device__ __forceinline__ A warp_sum(uint32_t begin, uint32_t end, Value value) {
    constexpr int lots = 8;
    const uint32_t lane = threadIdx.x & 31;
    A sum = A(0);
    for (uint32_t at = begin; at < end; at += 32 * lots) {
        A lot[lots];
#pragma unroll
        for (int k = 0; k < lots; k++)
            lot[k] = at + 32 * k + lane < end ? value(at + 32 * k + lane) : A(0);
#pragma unroll
        for (int k = 0; k < lots; k++) {
            const uint32_t first = at + 32 * k;
            if (first >= end) break;
            const uint32_t count = end - first < 32 ? end - first : 32;
            const bool fresh = !Zero && first == begin;
            if (fresh) sum = __shfl_sync(0xffffffffu, lot[k], 0);
            if (count == 32 && !fresh) {
#pragma unroll 8
                for (int i = 0; i < 32; i++)
                    sum = static_cast<A>(sum + __shfl_sync(0xffffffffu, lot[k], i));
            } else {
                for (uint32_t i = fresh; i < count; i++)
                    sum = static_cast<A>(sum + __shfl_sync(0xffffffffu, lot[k], i));
            }
        }
    }
    return sum;
}

/// y at To::at(row) = the sum of what the row's positions have at From::at(position), in chunks
/// that are added up in ascending order.
template <class A, class O, class From, class To, class E>
__device__ __forceinline__ void sum_numbers(const Grid& grid, const Order<O>& order, E* y,
                                            const E* x) {
    constexpr int64_t rows = Order<O>::rows;
    const uint32_t lane = grid.thread() & 31;
    const int64_t first = int64_t(grid.block) * grid.threads + grid.thread(),
                  threads = int64_t(grid.blocks) * grid.threads;
    const auto value = [&](uint32_t h) {
        return static_cast<A>(widen(x[From::at(order.position(h))]));
    };
    auto* const parts = reinterpret_cast<A*>(order.room + O::parts);
    const uint32_t slots = *static_cast<const volatile uint32_t*>(order.counters);
    for (int64_t slot = first / 32; slot < slots; slot += threads / 32) {
        const Chunk own = chunk_of(order, static_cast<uint32_t>(slot));
        const A sum = warp_sum<O::zero, A>(own.begin, own.begin + own.count, value);
        uint32_t come = 0;
        if (lane == 0) {
            parts[slot] = sum;
            come = add_acq_rel(order.arrivals() + own.first, 1u);
        }
        if (__shfl_sync(0xffffffffu, come, 0) != own.chunks - 1) continue;
        __syncwarp();
        const A total = warp_sum<false, A>(own.first, own.first + own.chunks,
                                           [&](uint32_t c) { return __ldcg(parts + c); });
        if (lane == 0) y[To::at(own.row)] = narrow<E>(total);
    }
    for (int64_t r = first; r - lane < rows; r += threads) {
        const Found own = r < rows ? order.found()[r] : Found{0, 0};
        const uint32_t count = own.end - own.begin;
        const bool is_long = count > kLongSum && count <= O::chunk;
        A sum = A(0);
        if (count <= kLongSum) {
            for (uint32_t h = own.begin; h < own.end; h += 4) {
                A lot[4];
#pragma unroll
                for (int k = 0; k < 4; k++) lot[k] = h + k < own.end ? value(h + k) : A(0);
#pragma unroll
                for (int k = 0; k < 4; k++)
                    if (h + k < own.end)
                        sum =
                            !O::zero && h + k == own.begin ? lot[k] : static_cast<A>(sum + lot[k]);
            }
        }
        for (uint32_t rest = __ballot_sync(0xffffffffu, is_long); rest != 0; rest &= rest - 1) {
            const int owner = __ffs(rest) - 1;
            const A total = warp_sum<O::zero, A>(__shfl_sync(0xffffffffu, own.begin, owner),
                                                 __shfl_sync(0xffffffffu, own.end, owner), value);
            if (int(lane) == owner) sum = total;
        }
        if (r < rows && count <= O::chunk) y[To::at(r)] = narrow<E>(sum);
    }
}

/// y at To::at(row) = the row's last position in its line, or -1.
template <class O, class To>
__device__ __forceinline__ void last_positions(const Grid& grid, const Order<O>& order,
                                               int64_t* y) {
    for (int64_t r = int64_t(grid.block) * grid.threads + grid.thread(); r < Order<O>::rows;
         r += int64_t(grid.blocks) * grid.threads) {
        const Found own = order.found()[r];
        y[To::at(r)] =
            own.begin < own.end ? int64_t(order.position(own.end - 1) % uint32_t(O::n)) : -1;
    }
}

}  // namespace aicf
