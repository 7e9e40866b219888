// Root mean square norms of long rows of 16 bits that the blocks of a cluster have in shared
// memory, where the copy engine brings each warp its part of the next rows. The warps tell each
// other what a row comes to while they are at the row before it, so that none waits for another,
// and a counter gives each cluster its rows.
#pragma once

#include "copied_rows.cuh"

namespace aicf {

/// A team of `Warps` warps of `Blocks` blocks whose rows are stored as E, of which `Slots` have
/// come or are on their way, as CopierOf has it. A warp's leaves lie side by side.
template <class A, int64_t N, int Lanes, int Warps, int V, class E, int Slots, int Blocks,
          int Beside>
struct TellerOf : HolderOf<A, N, Lanes, Warps / Blocks, false, V, Blocks> {
    typedef HolderOf<A, N, Lanes, Warps / Blocks, false, V, Blocks> Holder;
    typedef typename Holder::Row Row;
    static constexpr int warps = Warps / Blocks, threads = 32 * warps, slots = Slots,
                         lines = Row::lines, each = 32 / Lanes,  // leaves of a warp
        span = each * int(kTreeLeaf);                            // its elements
    typedef RowExchange<warps, Blocks, each, 4> Sums;
    typedef RowExchange<1, Blocks, 1, 4> Tickets;
    static constexpr int barriers = Sums::bytes + Tickets::bytes,
                         head = (barriers + 8 * Slots * warps + 127) / 128 * 128,
                         end = head + Slots * warps * span * int(sizeof(E)), beside = Beside;
    typedef BesideRows<threads, lines, Beside, end> Kept;
    static_assert(sizeof(A) == 4 && sizeof(E) == 2 && N % 8 == 0 && V == 8 && Row::turns == 1);
    const Sums sums;
    const Tickets tickets;  // of the first warp of each block, of which the leader's counts
    E* const own;           // the warp's part of slot 0
    const uint32_t barrier0;

    __device__ __forceinline__ explicit TellerOf(char* shared)
        : Holder{nullptr},
          sums{shared},
          tickets{shared + Sums::bytes},
          own(reinterpret_cast<E*>(shared + head) + int(threadIdx.x) / 32 * span),
          barrier0(shared_address(shared) + barriers + int(threadIdx.x) / 32 * 8 * Slots) {
        sums.begin();
        tickets.begin();
        if (threadIdx.x % 32 == 0)
            for (int s = 0; s < Slots; s++) init_barrier(barrier0 + 8 * s, 1);
        clear();
        barriers_made<Blocks>();
    }
    /// Where the warp's elements begin, how many there are.
    __device__ __forceinline__ static int begin() {
        return Row::leaf_of(0) / each * each * int(kTreeLeaf);
    }
    __device__ __forceinline__ static int count() {
        const int left = int(N) - begin();
        return Row::whole || left > span ? span : left > 0 ? left : 0;
    }
    __device__ __forceinline__ E* slot(uint32_t number) const {
        return own + number % Slots * (warps * span);
    }
    /// For the `number`-th row, whose slot all of the warp are done with.
    template <class Made>
    __device__ __forceinline__ void ask(const Made& row, uint32_t number) const {
        if (count() == 0) return;
        const uint32_t barrier = barrier0 + number % Slots * 8;
        const E* const from = row.own() + begin();
        E* const to = slot(number);
        if (aligned_for<8>(from)) {
            if (!elected()) return;
            const uint32_t bytes = uint32_t(sizeof(E)) * count();
            arrive_expecting(barrier, bytes);
            if constexpr (Made::lasting)
                copy_lasting_bytes(shared_address(to), from, bytes, barrier);
            else
                copy_kept_bytes(shared_address(to), from, bytes, barrier);
            return;
        }
        // Each thread copies what it will read.
#pragma unroll 1
        for (int line = 0; line < lines; line++)
            if (const int i = Row::first(0, line); Row::has(i))
#pragma unroll
                for (int j = 0; j < V; j++) to[i - begin() + j] = from[i - begin() + j];
        if (elected()) arrive_at<1>(barrier, 0);
    }
    __device__ __forceinline__ void wait(uint32_t number) const {
        if (count() > 0) wait_barrier(barrier0 + number % Slots * 8, number / Slots % 2);
    }
    /// body(line, v) for the pieces of a row that has come.
    template <class Made, class Body>
    __device__ __forceinline__ void read(const Made& row, uint32_t number, const Body& body) const {
        typedef typename Made::template Some<V> Some;
        const E* const from = slot(number) - begin();
#pragma unroll
        for (int line = 0; line < lines; line++) {
            Some some;
            A v[V];
            row.with(some, from + Row::first(0, line));
            row.open(some, v);
            body(line, v);
        }
    }
    /// Tells what the squares of the warp's elements come to, once these have come.
    template <class Made>
    __device__ __forceinline__ void tell_squares(const Made& row, uint32_t number) const {
        wait(number);
        A s[V];
        read(row, number, [&](int line, const A(&v)[V]) {
#pragma unroll
            for (int c = 0; c < V; c++) s[c] = line == 0 ? v[c] * v[c] : s[c] + v[c] * v[c];
        });
        const A sum = join_lanes<SumOf<A>, Lanes>(s);
        if (threadIdx.x % Lanes == 0) sums.own(number)[threadIdx.x % 32 / Lanes] = sum;
        sums.tell(number);
    }
    __device__ __forceinline__ A squares(uint32_t number) const {
        return join_told<SumOf<A>, Row, Lanes>(sums.told(number));
    }

  private:
    /// What lies behind the row's end, where nothing is copied to, is -0, whose square changes no
    /// sum.
    __device__ __forceinline__ void clear() const {
        for (int s = 0; s < Slots; s++)
            for (int i = count() + threadIdx.x % 32; i < span; i += 32) slot(s)[i].bits = 0x8000;
        __syncwarp();
    }
};

/// normalize_rows without a mean, of such rows. A cluster begins with `known` rows in turn; each
/// that follows comes by a ticket, for which the counter is asked at one row. It is told at the
/// next and taken two rows after that, so that nobody waits for it.
template <class A, class Team, class Shape, class Make, class Put, class Rstd, class Mean>
__device__ __forceinline__ void normalize_told(const Grid& grid, Make make, Put put, Rstd set_rstd,
                                               Mean, A eps, ByCounter order) {
    extern __shared__ __align__(16) char bytes[];
    typedef typename Team::Row Row;
    typedef decltype(put(0)) Out;
    typedef typename Beside<Row, Out, 1>::Some Some;
    typedef int Number;
    constexpr int lines = Row::lines, V = Row::side, slots = Team::slots, known = slots + 3,
                  few = sizeof(Some) < 32 ? 32 / int(sizeof(Some)) : 1,
                  lot = few > lines ? lines : few;  // pieces that are stored at a time
    constexpr bool kept = Team::beside > 0;
    static_assert(slots == 3 && Shape::rows < (1 << 30) && Put::same);
    const Team team{bytes};
    constexpr auto rows = Number(Shape::rows);
    const Number step = grid.blocks / Team::blocks, first = grid.block / Team::blocks;
    Number row[slots];  // the one that the team is at, and those that come
#pragma unroll
    for (int s = 0; s < slots; s++) {
        row[s] = first + s * step;
        if (row[s] < rows) team.ask(make(row[s]), s);
    }
    Beside<Row, Out, lot> beside;
    if constexpr (kept) beside.template keep<Team>(put(0));
    if (row[0] < rows) team.tell_squares(make(row[0]), 0);
    uint32_t ticket = 0;
    for (uint32_t number = 0; row[0] < rows; number++) {
        const Number r = row[0];
        Number coming = first + (number + slots) * step;
        if (number >= known - slots)
            coming =
                known * step + Number(scalar::bits(*team.tickets.told(number - (known - slots))));
        // It is asked for with the row after the next; where there is none the other block may have
        // left, which nothing may be sent to.
        if (threadIdx.x < 32 && number > 0 && row[2] < rows) {
            if (threadIdx.x == 0) *team.tickets.own(number - 1) = scalar::from_bits(ticket);
            team.tickets.tell(number - 1);
        }
        if (team.leads()) ticket = atomicAdd(order.counter, 1u);
        Row x;
        team.read(make(r), number, [&](int line, const A(&v)[V]) {
#pragma unroll
            for (int c = 0; c < V; c++) x.a[0][line][c] = v[c];
        });
        __syncwarp();
        row[0] = row[1], row[1] = row[2], row[2] = coming;
        if (coming < rows) team.ask(make(coming), number);
        if (row[0] < rows) team.tell_squares(make(row[0]), number + 1);
        const A scale =
            scalar::div(A(1), scalar::sqrt(by_count<Shape::n>(team.squares(number)) + eps));
        const Row y = team.map(x, [=](A v) { return v * scale; });
        beside.template store<Team, kept>(put(r), y);
        if (team.leads()) {
            set_rstd(r, scale);
            if (ticket == uint32_t(rows) - 1) clear_counter(order.counter);
        }
    }
}

}  // namespace aicf
