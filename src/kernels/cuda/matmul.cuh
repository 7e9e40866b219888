// C = A B in the order chain(Chunk): an accumulator takes k by fma in ascending order from +0, the
// chunk results are added in ascending order. Shape says the sizes and strides of one product and
// where the operands of batch b begin, and to which type, As, they are rounded first; put(batch, i,
// j, v) takes neighbours v of row i from column j.
#pragma once

#include "copies.cuh"

namespace aicf {

/// An f32 with the mantissa that tensor cores take.
struct Tf32 {
    uint32_t bits;
};
__device__ __forceinline__ float widen(Tf32 x) { return scalar::from_bits(x.bits); }

/// scalar::f32_to_tf32 but for the 13 bits that tensor cores do not read. (Before 9.0 no
/// instruction rounds ties to even.)
__device__ __forceinline__ void round_word(uint32_t& word) {
    const float x = scalar::from_bits(word);
#if __CUDA_ARCH__ >= 900
    asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(word) : "f"(x));
#else
    word = x != x ? 0x7fffffffu : word + 0xfffu + (word >> 13 & 1u);
#endif
}

template <class As, class E>
__device__ __forceinline__ As rounded_to(E x) {
    if constexpr (same_type<As, E>)
        return x;
    else if constexpr (same_type<As, Tf32>)
        return Tf32{scalar::bits(scalar::f32_to_tf32(x))};
    else
        return narrow<As>(x);
}
template <class As, class E>
__device__ __forceinline__ Wide<E> operand(E x) {
    return widen(rounded_to<As>(x));
}

/// V neighbours as they are stored, 16 bytes at a time, or one for all of them (Step 0).
template <class E, int V, int Step>
struct Neighbours {
    static constexpr int count = Step ? V : 1,
                         per = count * int(sizeof(E)) < 16 ? count : 16 / int(sizeof(E));
    Pack<E, per> part[count / per];
    __device__ __forceinline__ void load(const E* from) {
#pragma unroll
        for (int x = 0; x < count / per; x++)
            part[x] = reinterpret_cast<const Pack<E, per>*>(from)[x];
    }
    __device__ __forceinline__ void store(E* to) const {
#pragma unroll
        for (int x = 0; x < count / per; x++) reinterpret_cast<Pack<E, per>*>(to)[x] = part[x];
    }
    __device__ __forceinline__ void widened(Wide<E> (&to)[V]) const {
#pragma unroll
        for (int j = 0; j < V; j++) to[j] = widen(part[Step * j / per].at[Step * j % per]);
    }
    __device__ __forceinline__ void narrowed(const Wide<E> (&from)[V]) {
#pragma unroll
        for (int j = 0; j < V; j++) part[j / per].at[j % per] = narrow<E>(from[j]);
    }
};

/// acc takes `Lot` terms. Nothing stands between the loads, so that they are all under way at once.
/// That the pointers are restricted changes no instruction, but halves the optimizer's time.
template <int Lot, class Shape, class A, class E>
__device__ __forceinline__ void add_lot(A& acc, const E* __restrict__ a, const E* __restrict__ b) {
#pragma unroll
    for (int p = 0; p < Lot; p++)
        acc = scalar::fma(A(operand<typename Shape::As>(a[p * Shape::a_col])),
                          A(operand<typename Shape::As>(b[p * Shape::b_row])), acc);
}
/// Count terms, which the compiler knows: there is no loop for what is not there.
template <int64_t Count, class Shape, class A, class E>
__device__ __forceinline__ void add_terms(A& acc, const E* a, const E* b) {
    constexpr int Lot = lot_of(Count, 48, 64), lots = int(Count / Lot), rest = int(Count % Lot);
#pragma unroll 1
    for (int i = 0; i < lots; i++) {
        add_lot<Lot, Shape>(acc, a, b);
        a += Lot * Shape::a_col;
        b += Lot * Shape::b_row;
    }
    if constexpr (rest > 0) add_lot<rest, Shape>(acc, a, b);
}

/// One thread an element, `Slices` chunks of k at a time: for products too small to fill tiles.
template <class A, int Slices, class Shape, class E, class Put>
__device__ __forceinline__ void gemm_small(const Grid& grid, const Put& put, const E* a,
                                           const E* b) {
    constexpr int64_t chunks = (Shape::k + Shape::chunk - 1) / Shape::chunk,
                      count = Shape::batches * Shape::m * Shape::n;
    __shared__ A held[Slices][32];
    const int x = threadIdx.x & 31, slice = Slices == 1 ? 0 : threadIdx.x / 32;
    for (int64_t first = int64_t(grid.block) * 32; first < count;
         first += int64_t(grid.blocks) * 32) {
        const int64_t u = first + x < count ? first + x : count - 1;
        const int64_t batch = u / (Shape::m * Shape::n), at = u - batch * (Shape::m * Shape::n);
        const int64_t i = at / Shape::n, j = at - i * Shape::n;
        const E* const ap = a + Shape::A::at(batch) + i * Shape::a_row;
        const E* const bp = b + Shape::B::at(batch) + j * Shape::b_col;
        A total = A(0);
        for (int64_t round = 0; round < chunks; round += Slices) {
            const int64_t begin = (round + slice) * Shape::chunk;
            A acc = A(0);
            const E* const ak = ap + begin * Shape::a_col;
            const E* const bk = bp + begin * Shape::b_row;
            if constexpr (Shape::k >= Shape::chunk)
                if (begin + Shape::chunk <= Shape::k) add_terms<Shape::chunk, Shape>(acc, ak, bk);
            if constexpr (Shape::k % Shape::chunk > 0)
                if (begin < Shape::k && begin + Shape::chunk > Shape::k)
                    add_terms<Shape::k % Shape::chunk, Shape>(acc, ak, bk);
            if constexpr (Slices == 1) {
                total = round == 0 ? acc : total + acc;
            } else {
                held[slice][x] = acc;
                __syncthreads();
                if (slice == 0)
                    for (int s = 0; s < Slices && round + s < chunks; s++)
                        total = round + s == 0 ? held[0][x] : total + held[s][x];
                __syncthreads();
            }
        }
        const A one[1] = {total};
        if (slice == 0 && first + x < count) put(batch, i, j, one);
    }
}

/// How far apart a thread's columns lie: neighbours, or, where k runs along the rows of b, so that
/// neighbouring threads read neighbouring rows, which lie in banks of their own.
template <int C, class Shape>
constexpr int column_step = C > 1 && Shape::b_row == 1 ? int(Shape::n) / C : 1;

/// `Lot` terms of the sums of R x C results: their operands, and what they add.
template <class A, int R, int C, int Lot, class Shape>
struct Terms {
    A a[Lot][R], b[Lot][C];
    template <class E>
    __device__ __forceinline__ void load(const E* from_a, const E* from_b) {
        typedef typename Shape::As As;
#pragma unroll
        for (int q = 0; q < Lot; q++) {
#pragma unroll
            for (int r = 0; r < R; r++)
                a[q][r] = A(operand<As>(from_a[r * Shape::a_row + q * Shape::a_col]));
#pragma unroll
            for (int c = 0; c < C; c++)
                b[q][c] = A(operand<As>(
                    from_b[c * column_step<C, Shape> * Shape::b_col + q * Shape::b_row]));
        }
    }
    __device__ __forceinline__ void add(A (&acc)[R][C]) const {
#pragma unroll
        for (int q = 0; q < Lot; q++)
#pragma unroll
            for (int r = 0; r < R; r++)
#pragma unroll
                for (int c = 0; c < C; c++) acc[r][c] = scalar::fma(a[q][r], b[q][c], acc[r][c]);
    }
};

/// One chunk of `Count` terms. A lot is on its way while the one before is added: the loop stays
/// one, so that no load moves behind the sum that waits for it.
template <int Count, int Lot, class A, int R, int C, class Shape, class E>
__device__ __forceinline__ void add_chunk(A (&acc)[R][C], const E* a, const E* b) {
    constexpr int lots = Count / Lot, rest = Count % Lot;
    if constexpr (lots > 0) {
        Terms<A, R, C, Lot, Shape> terms;
        terms.load(a, b);
#pragma unroll 2  // so that a lot need not move to where the one before it was
        for (int i = 1; i < lots; i++) {
            a += Lot * Shape::a_col;
            b += Lot * Shape::b_row;
            Terms<A, R, C, Lot, Shape> next;
            next.load(a, b);
            terms.add(acc);
            terms = next;
        }
        terms.add(acc);
    }
    if constexpr (rest > 0) {
        Terms<A, R, C, rest, Shape> terms;
        terms.load(lots > 0 ? a + Lot * Shape::a_col : a, lots > 0 ? b + Lot * Shape::b_row : b);
        terms.add(acc);
    }
}

/// R x C results of a product, which a thread makes: where they are in it, and how far from the
/// first element of each operand its own lie.
struct ThreadTile {
    uint32_t a, b, batch, row, column;
    bool any;
};
template <int R, int C, class Shape>
constexpr uint32_t thread_tiles =
    uint32_t(Shape::batches) * (uint32_t(Shape::m) / R) * (uint32_t(Shape::n) / C);
template <int R, int C, class Shape>
__device__ __forceinline__ ThreadTile thread_tile(uint32_t u) {
    constexpr uint32_t rows = uint32_t(Shape::m) / R, columns = uint32_t(Shape::n) / C;
    const uint32_t batch = Shape::batches == 1 ? 0 : u / (rows * columns),
                   at = u - batch * (rows * columns);
    const uint32_t i = at / columns * R, j = at % columns * (column_step<C, Shape> == 1 ? C : 1);
    return {uint32_t(Shape::A::at(batch) + int64_t(i) * Shape::a_row),
            uint32_t(Shape::B::at(batch) + int64_t(j) * Shape::b_col),
            batch,
            i,
            j,
            u < thread_tiles<R, C, Shape>};
}
/// The one of a thread that makes no more than one, worked out before a loop.
template <int R, int C, class Shape>
__device__ __forceinline__ ThreadTile thread_tile_ahead(const Grid& grid) {
    const ThreadTile tile = thread_tile<R, C, Shape>(grid.block * 32 + (threadIdx.x & 31));
    return {in_register(tile.a),
            in_register(tile.b),
            Shape::batches == 1 ? 0 : in_register(tile.batch),
            in_register(tile.row),
            in_register(tile.column),
            tile.any};
}
/// Their operands lie near: in shared memory.
template <class A, int R, int C, class Shape, class E, class Put>
__device__ __forceinline__ void gemm_thread(const ThreadTile& tile, const Put& put, const E* a,
                                            const E* b) {
    constexpr int k = int(Shape::k), chunk = Shape::chunk < k ? int(Shape::chunk) : k,
                  chunks = k ? k / chunk : 0, rest = k ? k % chunk : 0,
                  step = column_step<C, Shape>;
    constexpr int Lot = lot_of(chunk, R * C < 4 ? 5 : 3, R * C < 4 ? 8 : 4);
    const int i = int(tile.row), j = int(tile.column);
    const E* ap = a + int(tile.a);
    const E* bp = b + int(tile.b);
    A total[R][C] = {};
    if constexpr (chunks > 0) add_chunk<chunk, Lot, A, R, C, Shape>(total, ap, bp);
#pragma unroll 1
    for (int p = 1; p < chunks + (rest > 0); p++) {
        ap += chunk * Shape::a_col;
        bp += chunk * Shape::b_row;
        A acc[R][C] = {};
        if (rest == 0 || p < chunks)
            add_chunk<chunk, Lot, A, R, C, Shape>(acc, ap, bp);
        else if constexpr (rest > 0)
            add_chunk<rest, Lot, A, R, C, Shape>(acc, ap, bp);
#pragma unroll
        for (int r = 0; r < R; r++)
#pragma unroll
            for (int c = 0; c < C; c++) total[r][c] = total[r][c] + acc[r][c];
    }
#pragma unroll
    for (int r = 0; r < R; r++)
        if constexpr (step == 1) {
            put(tile.batch, i + r, j, total[r]);
        } else {
#pragma unroll
            for (int c = 0; c < C; c++) {
                const A one[1] = {total[r][c]};
                put(tile.batch, i + r, j + c * step, one);
            }
        }
}
template <class A, int R, int C, class Shape, class E, class Put>
__device__ __forceinline__ void gemm_threads(const Grid& grid, const Put& put, const E* a,
                                             const E* b) {
#pragma unroll 1
    for (uint32_t u = grid.block * 32 + (threadIdx.x & 31); u < thread_tiles<R, C, Shape>;
         u += grid.blocks * 32)
        gemm_thread<A, R, C, Shape>(thread_tile<R, C, Shape>(u), put, a, b);
}

// ---- tiles --------------------------------------------------------------------------------------

/// What block u works on: one of the pieces of k of one tile. The tiles of neighbouring blocks lie
/// in groups of 8 tile rows, or columns, so that those running together share more of both
/// operands.
template <class Shape, int BM, int BN, bool Columns = false>
struct Piece {
    static constexpr int64_t rows = (Shape::m + BM - 1) / BM, cols = (Shape::n + BN - 1) / BN,
                             tiles = Shape::batches * rows * cols;
    int64_t tile, batch, i0, j0;
    int part;
    __device__ __forceinline__ explicit Piece(int64_t u) {
        constexpr auto grouped = uint32_t(Columns ? cols : rows),
                       along = uint32_t(Columns ? rows : cols);
        part = int(u / tiles);
        tile = u % tiles;
        batch = tile / (rows * cols);
        const auto cell = static_cast<uint32_t>(tile % (rows * cols));
        const uint32_t first = cell / (8 * along) * 8, at = cell % (8 * along);
        const uint32_t high = grouped - first < 8 ? grouped - first : 8;
        const uint32_t one = first + at % high, other = at / high;
        i0 = int64_t(Columns ? other : one) * BM;
        j0 = int64_t(Columns ? one : other) * BN;
    }
};

/// Carries tiles of an operand, Size long, from one to the next along k: Rows of its own axis by BK
/// of k. A thread loads its share of a tile into registers while the one before is in use, and
/// stores it to shared memory as [k][row], rounded to As and as wide as sums. (cp.async would copy
/// four bytes at a time where k lies side by side.)
template <int Rows, int BK, int Threads, int64_t Size, int64_t RowStep, int64_t KStep, class As,
          class E, int Groups = 1>
struct Carrier {
    typedef Wide<E> A;
    static constexpr int pitch = Rows + 4, count = Rows * BK / Threads;
    // What is loaded as one: four rows, or four terms of k.
    static constexpr bool rows_side_by_side = RowStep == 1 && KStep % 4 == 0 && Size % 4 == 0,
                          terms_side_by_side = KStep == 1 && RowStep % 4 == 0,
                          fours = rows_side_by_side || terms_side_by_side;
    // Lanes of a line along k, or along the rows; elements of each.
    static constexpr bool lines_along_k = !rows_side_by_side && KStep == 1;
    static constexpr int each = fours ? 4 : 1, line = (lines_along_k ? BK : Rows) / each;
    static_assert(Threads % line == 0 && count % each == 0);
    const E* from;  // this thread's first element of the next tile
    int rows;       // of the operand, from its row on
    E held[count];

    __device__ __forceinline__ Carrier(const E* tile, int64_t rows_left)
        : from(tile + first_row() * RowStep + first_term() * KStep),
          rows(rows_left < Rows ? int(rows_left) - first_row() : Rows),
          held{} {}
    /// This thread's number in its group.
    __device__ __forceinline__ static uint32_t own() {
        return Groups == 1 ? threadIdx.x : threadIdx.x % Threads;
    }
    __device__ __forceinline__ static int first_row() {
        return lines_along_k ? own() / line : own() % line * each;
    }
    __device__ __forceinline__ static int first_term() {
        return lines_along_k ? own() % line * each : own() / line;
    }
    /// Where element x of a share lies, from the first on.
    __device__ __forceinline__ static int row(int x) {
        return lines_along_k ? x / each * (Threads / line) : x % each;
    }
    __device__ __forceinline__ static int term(int x) {
        return lines_along_k ? x % each : x / each * (Threads / line);
    }
    __device__ __forceinline__ bool has_row(int x) const {
        return Size % Rows == 0 || row(x) < rows;
    }
    /// Whether load() may; of the operand's tile or of all that follow it.
    __device__ __forceinline__ static bool aligned(const E* tile) {
        return !fours || aligned_for<4>(tile);
    }

    /// Loads this thread's share of a tile whose terms all exist.
    __device__ __forceinline__ void load() {
#pragma unroll
        for (int x = 0; x < count; x += each)
            if (has_row(x)) {
                const auto some = *reinterpret_cast<const Pack<E, each>*>(from + row(x) * RowStep +
                                                                          term(x) * KStep);
#pragma unroll
                for (int y = 0; y < each; y++) held[x + y] = some.at[y];
            }
    }
    /// The same past the first cache.
    __device__ __forceinline__ void load_early() {
#pragma unroll
        for (int x = 0; x < count; x += each)
            if (has_row(x)) {
                const auto some = load_far(reinterpret_cast<const Pack<E, each>*>(
                    from + row(x) * RowStep + term(x) * KStep));
#pragma unroll
                for (int y = 0; y < each; y++) held[x + y] = some.at[y];
            }
    }
    /// One by one, of a tile of which `depth` terms exist; what does not exist stays as it is.
    __device__ __forceinline__ void load_some(int64_t depth) {
#pragma unroll
        for (int x = 0; x < count; x++)
            if (has_row(x) && first_term() + term(x) < depth)
                held[x] = from[row(x) * RowStep + term(x) * KStep];
    }
    __device__ __forceinline__ void store(A* tile) const {
        A* const to = tile + first_term() * pitch + first_row();
        const auto one = [this](int x) { return operand<As>(held[x]); };
        if constexpr (rows_side_by_side) {
#pragma unroll
            for (int x = 0; x < count; x += 4)
                *reinterpret_cast<Pack<A, 4>*>(to + term(x) * pitch) =
                    Pack<A, 4>{one(x), one(x + 1), one(x + 2), one(x + 3)};
        } else {
#pragma unroll
            for (int x = 0; x < count; x++) to[term(x) * pitch + row(x)] = one(x);
        }
    }
};

/// to[x] = from[x * Step], in groups of four that lie together.
template <int Step, int Count, class E>
__device__ __forceinline__ void read_fours(E (&to)[Count], const E* from) {
#pragma unroll
    for (int x = 0; x < Count; x += 4) {
        const auto four = *reinterpret_cast<const Pack<E, 4>*>(from + x * Step);
#pragma unroll
        for (int y = 0; y < 4; y++) to[x + y] = four.at[y];
    }
}

/// There and back along the rows, column by column: of the two operands the instruction before had
/// one too, which then needs no read of the registers. Three reads take two cycles.
template <int TM, int TN, class E>
__device__ __forceinline__ void add_products(E (&acc)[TM][TN], const E (&a)[TM], const E (&b)[TN]) {
#pragma unroll
    for (int z = 0; z < TN; z++)
#pragma unroll
        for (int y = 0; y < TM; y++) {
            const int x = z % 2 ? TM - 1 - y : y;
            acc[x][z] = scalar::fma(a[x], b[z], acc[x][z]);
        }
}

/// Calls visit(lot, sums) for each group of four sums of a thread that move together. They are
/// rows of one column in the order 1, 0, 3, 2: what moves together lies in neighbouring registers,
/// so sums of even rows are in odd ones, while a[x], read in rows 0, 1, 2, 3, is in an even one for
/// an even row. Two reads from registers that are both even, or odd, take two cycles.
template <int TM, int TN, class E, class Visit>
__device__ __forceinline__ void each_four(E (&acc)[TM][TN], const Visit& visit) {
#pragma unroll
    for (int lot = 0; lot < TM * TN / 4; lot++) {
        const int x = lot / TN * 4, z = lot % TN;
        E* const sums[4] = {&acc[x + 1][z], &acc[x][z], &acc[x + 3][z], &acc[x + 2][z]};
        visit(lot, sums);
    }
}

/// Leaves a chunk's sums at `to`, a group of four every Stride.
template <int Stride, int TM, int TN, class E>
__device__ __forceinline__ void leave_chunk(Pack<E, 4>* to, E (&acc)[TM][TN]) {
    each_four(acc, [&](int lot, E* const(&sums)[4]) {
        Pack<E, 4> four;
#pragma unroll
        for (int y = 0; y < 4; y++) four.at[y] = *sums[y];
        to[lot * Stride] = four;
    });
}

/// acc = what leave_chunk() left at `from` + acc.
template <int Stride, int TM, int TN, class E>
__device__ __forceinline__ void add_to_chunk(const Pack<E, 4>* from, E (&acc)[TM][TN]) {
    each_four(acc, [&](int lot, E* const(&sums)[4]) {
        const Pack<E, 4> four = from[lot * Stride];
#pragma unroll
        for (int y = 0; y < 4; y++) *sums[y] = four.at[y] + *sums[y];
    });
}

/// Adds what leave_chunk() left of every chunk, in ascending order.
template <int Stride, int TM, int TN, class E, class From>
__device__ __forceinline__ void add_chunks(E (&sum)[TM][TN], int chunks, const From& part_of) {
    for (int chunk = 0; chunk < chunks; chunk++) {
        const Pack<E, 4>* const from = part_of(chunk);
        each_four(sum, [&](int lot, E* const(&sums)[4]) {
            const Pack<E, 4> four = from[lot * Stride];
#pragma unroll
            for (int y = 0; y < 4; y++) *sums[y] = chunk == 0 ? four.at[y] : *sums[y] + four.at[y];
        });
    }
}

/// Hands a thread's results to `put`; its first one is that of row i0, column j0.
template <class Shape, int TM, int TN, class E, class Put>
__device__ __forceinline__ void put_tile(const Put& put, int64_t batch, int64_t i0, int64_t j0,
                                         const E (&sum)[TM][TN]) {
    constexpr int V = 16 / sizeof(E);
#pragma unroll
    for (int x = 0; x < TM; x++) {
        const int64_t i = i0 + x / 4 * 32 + x % 4;
#pragma unroll
        for (int z = 0; z < TN; z += V) {
            const int64_t j = j0 + z / 4 * 16 + z % 4;
            E some[V];
#pragma unroll
            for (int v = 0; v < V; v++) some[v] = sum[x][z + v];
            if (i < Shape::m && j < Shape::n) put(batch, i, j, some);
        }
    }
}

/// Fours of a tile that a thread takes together, from number `first` on and Threads apart, with
/// what is read of them: an update's operands are many.
template <int BM, int BN, int Threads, class Put>
struct TileLot {
    static constexpr int V = 4, across = BN / V, all = BM * across,
                         each = (all + Threads - 1) / Threads, most = Put::updates ? 2 : 4,
                         size = each < most ? each : most, step = size * Threads;
    typename Put::template Read<V> from[size];

    __device__ __forceinline__ static bool there(int u, int rows, int cols) {
        return u < all && u / across < rows && u % across * V < cols;
    }
    __device__ __forceinline__ void read(const Put& put, int first, int64_t batch, int64_t row,
                                         int64_t col, int rows, int cols) {
#pragma unroll
        for (int x = 0; x < size; x++)
            if (const int u = first + x * Threads; there(u, rows, cols))
                put.read(from[x], batch, row + u / across, col + u % across * V);
    }
    /// Of value(i, j, v), which makes four of row i from column j on.
    template <class T, class Value>
    __device__ __forceinline__ void store(const Put& put, const typename Put::Numbers& numbers,
                                          int first, int64_t batch, int64_t row, int64_t col,
                                          int rows, int cols, const Value& value) const {
#pragma unroll
        for (int x = 0; x < size; x++)
            if (const int u = first + x * Threads; there(u, rows, cols)) {
                T v[V];
                value(u / across, u % across * V, v);
                put(batch, row + u / across, col + u % across * V, v, from[x], numbers);
            }
    }
};

/// Hands a tile whose sums lie in shared memory to `put`, whose operands are read and written 16
/// bytes at a time in the order of memory: from the lot that begins at `first` on. What a thread
/// reads of a lot is under way before it stores any, and of an update's first before the kernel
/// waits, unless the one before may write it.
template <int BM, int BN, int Threads, class T, class Put, class Value>
__device__ __forceinline__ void put_sums(const Put& put, int first, int64_t batch, int64_t row,
                                         int64_t col, int rows, int cols, const Value& value) {
    typedef TileLot<BM, BN, Threads, Put> Lot;
    if (!Put::updates || put.rest_is_late()) begin_kernel();
#pragma unroll 1
    for (; first < Lot::all; first += Lot::step) {
        Lot lot;
        lot.read(put, first, batch, row, col, rows, cols);
        begin_kernel();
        lot.template store<T>(put, put.numbers(), first, batch, row, col, rows, cols, value);
    }
}
/// The same where the first lot's operands are on their way already.
template <int BM, int BN, int Threads, class T, class Put, class Value>
__device__ __forceinline__ void put_sums(const Put& put, const TileLot<BM, BN, Threads, Put>& lot,
                                         int64_t batch, int64_t row, int64_t col, int rows,
                                         int cols, const Value& value) {
    typedef TileLot<BM, BN, Threads, Put> Lot;
    lot.template store<T>(put, put.numbers(), threadIdx.x, batch, row, col, rows, cols, value);
    if constexpr (Lot::each > Lot::size)
        put_sums<BM, BN, Threads, T>(put, threadIdx.x + Lot::step, batch, row, col, rows, cols,
                                     value);
}

/// Four neighbours of the sums of `Count` tiles, in ascending order; at(c) is where those of tile c
/// lie.
template <int Count, class At>
__device__ __forceinline__ void add_fours(float (&v)[4], const At& at) {
    const auto four = [=](int c) { return *reinterpret_cast<const Pack<float, 4>*>(at(c)); };
    auto sum = four(0);
#pragma unroll
    for (int c = 1; c < Count; c++) {
        const auto next = four(c);
#pragma unroll
        for (int y = 0; y < 4; y++) sum.at[y] = sum.at[y] + next.at[y];
    }
#pragma unroll
    for (int y = 0; y < 4; y++) v[y] = sum.at[y];
}

/// The tiles of both operands from which a block computes BM x BN and a thread TM x TN of it: two
/// of each, BK deep, one in use and one being stored. Groups: of a block, each of which has its
/// own.
template <int BM, int BN, int TM, int TN, int BK, class Shape, class E, int Groups = 1>
struct TilePairs {
    static constexpr int threads = BM / TM * (BN / TN), tile_a = BK * (BM + 4),
                         size = BK * (BM + BN + 8);
    typedef Wide<E> A;
    typedef typename Shape::As As;
    typedef Carrier<BM, BK, threads, Shape::m, Shape::a_row, Shape::a_col, As, E, Groups> CarrierA;
    typedef Carrier<BN, BK, threads, Shape::n, Shape::b_col, Shape::b_row, As, E, Groups> CarrierB;
    CarrierA a;
    CarrierB b;
    bool aligned;
    int64_t left;          // terms that are not loaded
    const A *rows, *cols;  // what this thread reads of the tiles in use
    A* free;               // where the next ones go
    int turn = size;
    A av[2][TM], bv[2][TN];

    /// 16 neighbouring lanes read 8 groups of rows and 2 of columns: no bank twice.
    __device__ __forceinline__ static int row() {
        const int lane = threadIdx.x % 32, warp = CarrierA::own() / 32;
        return warp % (BM / (8 * TM)) * (8 * TM) + lane / 2 % 8 * 4;
    }
    __device__ __forceinline__ static int col() {
        const int lane = threadIdx.x % 32, warp = CarrierA::own() / 32;
        return warp / (BM / (8 * TM)) * (4 * TN) + (lane / 16 * 2 + lane % 2) * 4;
    }

    /// Of operands from_a and from_b on, which have `high` rows, `wide` columns and `terms`.
    __device__ __forceinline__ TilePairs(A* room, const E* from_a, const E* from_b, int64_t high,
                                         int64_t wide, int64_t terms)
        : a(from_a, high),
          b(from_b, wide),
          aligned(CarrierA::aligned(from_a) && CarrierB::aligned(from_b)),
          left(terms),
          rows(room + row()),
          cols(room + tile_a + col()),
          free(room + size) {}
    /// Whether a tile that the kernel before does not write is on its way before this one waits for
    /// it; more sums leave no registers for that.
    static constexpr bool begins = sizeof(E) == 4 && TM * TN <= 32;
    /// Brings the first ones.
    template <class Put>
    __device__ __forceinline__ void begin(A* room, const Put& put) {
        if constexpr (begins)
            load_early(put);
        else
            load();
        store(room);
        load();
        wait();
        read(0, 0);
    }
    template <class Put>
    __device__ __forceinline__ void load_early(const Put& put) {
        if (!aligned || left < BK) {
            begin_kernel();
            return load();
        }
        const bool a_late = put.a_is_late(), b_late = put.b_is_late();
        if (!a_late) a.load_early();
        if (!b_late) b.load_early();
        begin_kernel();
        if (a_late) a.load();
        if (b_late) b.load();
        go_on();
    }
    __device__ __forceinline__ static void wait() {
        if constexpr (Groups == 1)
            __syncthreads();
        else
            wait_for(1 + threadIdx.x / threads, threads);
    }
    __device__ __forceinline__ void load() {
        if (aligned && left >= BK) {
            a.load();
            b.load();
        } else {
            a.load_some(left);
            b.load_some(left);
        }
        go_on();
    }
    __device__ __forceinline__ void go_on() {
        left -= BK;
        a.from += BK * Shape::a_col;
        b.from += BK * Shape::b_row;
    }
    __device__ __forceinline__ void store(A* to) const {
        a.store(to);
        b.store(to + tile_a);
    }
    __device__ __forceinline__ void read(int set, int p) {
        read_fours<8>(av[set], rows + p * (BM + 4));
        read_fours<4>(bv[set], cols + p * (BN + 4));
    }
    /// Adds the products of a tile, and brings the one behind the next; the first operands of the
    /// next are read when it returns.
    __device__ __forceinline__ void add_tile(A (&acc)[TM][TN]) {
#pragma unroll
        for (int p = 0; p < BK; p++) {
            if (p + 1 == BK) {
                wait();
                rows += turn;
                cols += turn;
                free -= turn;
                turn = -turn;
            }
            read((p + 1) & 1, (p + 1) % BK);
            if (p == 0) {
                store(free);
                load();
            }
            add_products(acc, av[p & 1], bv[p & 1]);
        }
    }
    /// Of the last tile, which has but Rest terms: adding a zero could change the sign of another.
    template <int Rest>
    __device__ __forceinline__ void add_rest(A (&acc)[TM][TN]) {
#pragma unroll 1
        for (int p = 0; p < Rest; p++) {
            read(0, p);
            add_products(acc, av[0], bv[0]);
        }
    }
};

/// A block computes BM x BN, a thread TM x TN of it in groups of four, from tiles of depth BK in
/// shared memory. With Parts > 1 a block takes a run of chunks and leaves the result of each in
/// `parts`. Lots of parts are added one after the other, the first ones while others are made: by
/// the block that comes last to a lot, once those before are added, in ascending order.
/// Otherwise the sum of the chunks so far lies in shared memory: registers hold larger tiles then.
template <int BM, int BN, int TM, int TN, int BK, int Parts, int Lot, class Shape, class E,
          class Put>
__device__ __forceinline__ void gemm_tiled(const Grid& grid, const Put& put, const E* a, const E* b,
                                           Wide<E>* parts, uint32_t* counters) {
    typedef Wide<E> A;
    typedef Pack<A, 4> Four;
    typedef Piece<Shape, BM, BN> Place;
    typedef TilePairs<BM, BN, TM, TN, BK, Shape, E> Pairs;
    constexpr int threads = Pairs::threads, lots = TM * TN / 4, rest = int(Shape::k % BK);
    constexpr int chunks = int((Shape::k + Shape::chunk - 1) / Shape::chunk),
                  run = (chunks + Parts - 1) / Parts;
    static_assert(Shape::chunk % BK == 0 && (Parts - 1) * run < chunks);
    static_assert(Place::tiles * Parts < 1 << 30);
    extern __shared__ __align__(16) char shared[];
    A* const room = reinterpret_cast<A*>(shared);
    A* const sums = room + 2 * Pairs::size;
    Four* const total = reinterpret_cast<Four*>(sums) + threadIdx.x;

    for (uint32_t u = grid.block; u < Place::tiles * Parts; u += grid.blocks) {
        const Place place(u);
        const int64_t begin = int64_t(place.part) * run * Shape::chunk;
        const int64_t terms =
            Shape::k - begin < run * Shape::chunk ? Shape::k - begin : run * Shape::chunk;
        const auto part_of = [&](int chunk) {
            return reinterpret_cast<Four*>(parts) + (place.tile * chunks + chunk) * lots * threads +
                   threadIdx.x;
        };
        Pairs pairs(room,
                    a + Shape::A::at(place.batch) + place.i0 * Shape::a_row + begin * Shape::a_col,
                    b + Shape::B::at(place.batch) + place.j0 * Shape::b_col + begin * Shape::b_row,
                    Shape::m - place.i0, Shape::n - place.j0, terms);
        pairs.begin(room, put);
        A acc[TM][TN];
        const int count = int((terms + Shape::chunk - 1) / Shape::chunk);
#pragma unroll 1
        for (int chunk = 0; chunk < count; chunk++) {
#pragma unroll
            for (int x = 0; x < TM; x++)
#pragma unroll
                for (int z = 0; z < TN; z++) acc[x][z] = A(0);
            const int64_t depth = terms - chunk * Shape::chunk;
            const int whole = int((depth < Shape::chunk ? depth : Shape::chunk) / BK);
#pragma unroll 1
            for (int s = 0; s < whole; s++) pairs.add_tile(acc);
            if constexpr (rest > 0)
                if (depth < Shape::chunk) pairs.template add_rest<rest>(acc);
            if constexpr (Parts > 1) {
                leave_chunk<threads>(part_of(place.part * run + chunk), acc);
            } else if constexpr (chunks > 1) {
                if (chunk + 1 == count) break;
                if (chunk > 0) add_to_chunk<threads>(total, acc);
                leave_chunk<threads>(total, acc);
            }
        }
        if constexpr (Parts > 1) {
            constexpr int all = (Parts + Lot - 1) / Lot;
            int lot = place.part / Lot;
            for (; lot < all; lot++) {
                const int first = lot * Lot, end = first + Lot < Parts ? first + Lot : Parts;
                const int before = lot > 0;  // the sum so far is one more to come and to add
                if (!arrive_last(counters + place.tile * all + lot, end - first + before)) break;
                const int begin = first * run, stop = end * run < chunks ? end * run : chunks;
                add_chunks<threads>(acc, stop - begin + before, [&](int x) {
                    return part_of(before && x == 0 ? 0 : begin + x - before);
                });
                if (lot + 1 < all) leave_chunk<threads>(part_of(0), acc);
            }
            if (lot < all) continue;
        } else if constexpr (chunks > 1) {
            add_to_chunk<threads>(total, acc);
        } else {  // stored as rows, they would lie in registers by rows
            leave_chunk<threads>(total, acc);
            __syncthreads();
            add_chunks<threads>(acc, 1, [&](int) { return total; });
        }
        if constexpr (Put::updates) {
            __syncthreads();
#pragma unroll
            for (int x = 0; x < TM; x++)
#pragma unroll
                for (int z = 0; z < TN; z++)
                    sums[(Pairs::row() + x / 4 * 32 + x % 4) * BN + Pairs::col() + z / 4 * 16 +
                         z % 4] = acc[x][z];
            __syncthreads();
            const int64_t rows = Shape::m - place.i0, cols = Shape::n - place.j0;
            put_sums<BM, BN, threads, A>(put, threadIdx.x, place.batch, place.i0, place.j0,
                                         rows < BM ? int(rows) : BM, cols < BN ? int(cols) : BN,
                                         [=](int i, int j, A(&v)[4]) {
#pragma unroll
                                             for (int y = 0; y < 4; y++)
                                                 v[y] = sums[i * BN + j + y];
                                         });
        } else {
            put_tile<Shape>(put, place.batch, place.i0 + Pairs::row(), place.j0 + Pairs::col(),
                            acc);
        }
        __syncthreads();  // the next tile goes where this one was read
    }
}

}  // namespace aicf
