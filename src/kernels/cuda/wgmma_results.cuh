// How results of wgmma leave: sums that lanes hold as its tiles have them go through a warp's
// shared memory to whole lines, or to what follows the product.
#pragma once

#include "copy_engine.cuh"
#include "matmul.cuh"

namespace aicf {

/// The most columns, of at most `most`, that divide all and are themselves whole units.
__device__ constexpr int load_width(int all, int most, int unit) {
    int loads = (all + most - 1) / most;
    while (all % loads != 0 || all / loads % unit != 0) loads++;
    return all / loads;
}

/// A warp's 16 rows of sums to lines in memory of which `rows` and `columns` exist, by way of
/// shared memory: 16 bytes a lane, of which a whole number exist of a line. (The copy engine stores
/// lines more slowly, and loads wait for it.)
template <class E, int Count>
__device__ __forceinline__ void store_lines(const float (&sums)[Count], uint32_t room, E* to,
                                            int64_t step, int64_t rows, int64_t columns) {
    constexpr int all = 2 * Count, per = 16 / int(sizeof(E));
    constexpr int width =
        load_width(all, 256 / int(sizeof(E)), 2 * per);  // of one load of the room
    constexpr int pitch = width * int(sizeof(E)) + 16, packs = 16 * width / per;
    const int lane = threadIdx.x % 32;
    asm volatile("" : "+r"(room));  // no address is made before the products, which need registers
#pragma unroll
    for (int first = 0; first < all; first += width) {
        if constexpr (sizeof(E) == 2) {
#pragma unroll
            for (int x = 0; x < width; x += 16) {
                const float* const of = &sums[(first + x) / 2];
                asm volatile(
                    "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(
                        room + lane % 16 * pitch + (x + lane / 16 * 8) * 2),
                    "r"(narrow_two<E>(of[0], of[1])), "r"(narrow_two<E>(of[2], of[3])),
                    "r"(narrow_two<E>(of[4], of[5])), "r"(narrow_two<E>(of[6], of[7]))
                    : "memory");
            }
        } else {
#pragma unroll
            for (int x = 0; x < width; x += 8)
#pragma unroll
                for (int high = 0; high < 2; high++)
                    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(
                                     room + (8 * high + lane / 4) * pitch + (x + lane % 4 * 2) * 4),
                                 "f"(sums[(first + x) / 2 + 2 * high]),
                                 "f"(sums[(first + x) / 2 + 2 * high + 1])
                                 : "memory");
        }
        __syncwarp();
#pragma unroll 4
        for (int x = lane; x < packs; x += 32) {
            constexpr int line = width / per;
            const int row = x / line, column = x % line * per;
            uint32_t word[4];
            asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(word[0]), "=r"(word[1]), "=r"(word[2]), "=r"(word[3])
                         : "r"(room + row * pitch + column * int(sizeof(E)))
                         : "memory");
            if (row < rows && first + column < columns)
                asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to + row * step +
                                                                              first + column),
                             "r"(word[0]), "r"(word[1]), "r"(word[2]), "r"(word[3])
                             : "memory");
        }
        __syncwarp();
    }
}

/// Where 16 rows of 64 sums lie on their way through put(), in cells of 16 bytes, the odd ones
/// behind the even ones, that are permuted so that what lanes touch together meets no bank twice.
__device__ __forceinline__ uint32_t cell_at(uint32_t room, int row, int cell) {
    return room + row * 256 + cell % 2 * 128 + 16 * (cell / 2 ^ (row & 3) ^ cell % 2 * 4);
}
/// A lane's four sums of the x-th 8 columns, of rows lane / 4 and 8 below, to their cells.
__device__ __forceinline__ void leave_sums(const float* four, uint32_t room, int x) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int high = 0; high < 2; high++)
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(
                         cell_at(room, 8 * high + lane / 4, 2 * x + lane % 4 / 2) + lane % 2 * 8),
                     "f"(four[2 * high]), "f"(four[2 * high + 1])
                     : "memory");
}
/// Of a warp's cells 4 Lots rows, 8 neighbours a lane: what put() reads beside the sums, and the
/// sums through put().
template <int Lots, class Shape, class Put>
struct Rows {
    typename Put::Operands operands[Lots];
    int64_t batch, row, column, end;
    __device__ __forceinline__ bool there(int x) const {
        return row + 4 * x < Shape::m && column < end;
    }
    __device__ __forceinline__ Rows(const Put& put, int64_t in, int64_t row0, int64_t col0,
                                    int64_t col_end)
        : batch(in),
          row(row0 + threadIdx.x % 32 / 8),
          column(col0 + threadIdx.x % 8 * 8),
          end(col_end) {
#pragma unroll
        for (int x = 0; x < Lots; x++)
            if (there(x)) operands[x] = put.operands(batch, row + 4 * x, column);
    }
    /// `first`: which of the cells' rows is row0.
    __device__ __forceinline__ void finish(const Put& put, uint32_t room, int first) const {
        float sums[Lots][8];
#pragma unroll
        for (int x = 0; x < Lots; x++)
#pragma unroll
            for (int y = 0; y < 2; y++)
                asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                             : "=f"(sums[x][4 * y]), "=f"(sums[x][4 * y + 1]),
                               "=f"(sums[x][4 * y + 2]), "=f"(sums[x][4 * y + 3])
                             : "r"(cell_at(room, first + 4 * x + int(threadIdx.x % 32 / 8),
                                           int(threadIdx.x % 8 * 2) + y))
                             : "memory");
#pragma unroll
        for (int x = 0; x < Lots; x++)
            if (there(x)) put.finish(operands[x], batch, row + 4 * x, column, sums[x]);
    }
};

/// The first of a warp's 16 rows of a transposed tile: 8 lie together, and 8 are 16 below. Of each
/// 8 a lane's two rows are neighbours.
__device__ __forceinline__ uint32_t turned_row(uint32_t warp) {
    return warp / 2 * 32 + warp % 2 * 8;
}
/// Where 64 columns of such rows lie on their way through put(), four rows of one in 16 bytes.
__device__ __forceinline__ uint32_t turned_at(uint32_t room, int column, int four) {
    return room + column * 64 + (four ^ column / 2 & 3) * 16;
}
/// A lane's four sums of the x-th 8 columns, as leave_sums().
__device__ __forceinline__ void leave_turned(const float* four, uint32_t room, int x) {
    const int lane = threadIdx.x % 32, at = lane / 8 % 2 * 2 + lane / 16;
#pragma unroll
    for (int y = 0; y < 2; y++)
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(
                         turned_at(room, 8 * x + lane % 4 * 2 + y, at) + lane / 4 % 2 * 8),
                     "f"(four[y]), "f"(four[2 + y])
                     : "memory");
}
/// Hands them to put(): rows from row0 of the product's, columns from col0.
template <class Shape, class Put>
__device__ __forceinline__ void put_turned(uint32_t room, const Put& put, int64_t batch,
                                           int64_t row0, int64_t col0) {
    const int lane = threadIdx.x % 32;
    const int64_t j = col0 + lane % 4 / 2 * 16 + lane % 2 * 4;
    __syncwarp();
#pragma unroll 4
    for (int row = lane / 4; row < 64; row += 8) {
        float some[4];
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(some[0]), "=f"(some[1]), "=f"(some[2]), "=f"(some[3])
                     : "r"(turned_at(room, row, lane % 4))
                     : "memory");
        if (row0 + row < Shape::m && j < Shape::n) put(batch, row0 + row, j, some);
    }
    __syncwarp();
}

/// Hands what lies in a warp's cells to put(), 4 neighbours at a time, of columns before `end`.
template <class Shape, class Put>
__device__ __forceinline__ void put_fours(uint32_t room, const Put& put, int64_t batch,
                                          int64_t row0, int64_t col0, int64_t end) {
    const int lane = threadIdx.x % 32;
    __syncwarp();
#pragma unroll(Put::packs ? 1 : 4)
    for (int row = 0; row < 16; row += 2) {
        float some[4];
        asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                     : "=f"(some[0]), "=f"(some[1]), "=f"(some[2]), "=f"(some[3])
                     : "r"(cell_at(room, row + lane / 16, lane % 16))
                     : "memory");
        const int64_t i = row0 + row + lane / 16, j = col0 + lane % 16 * 4;
        if (i < Shape::m && j < end) put(batch, i, j, some);
    }
    __syncwarp();
}
/// The same, 8 at a time where they lie together in all that it reads and writes (packed). Ahead:
/// there are registers for the operands of 8 rows, and for those of the next 8.
template <class Shape, bool Ahead, class Put>
__device__ __forceinline__ void put_cells(uint32_t room, const Put& put, bool packed, int64_t batch,
                                          int64_t row0, int64_t col0, int64_t end = Shape::n) {
    if constexpr (Put::packs) {
        if (packed) {
            if constexpr (Ahead) {
                const Rows<2, Shape, Put> upper(put, batch, row0, col0, end),
                    lower(put, batch, row0 + 8, col0, end);
                __syncwarp();
                upper.finish(put, room, 0);
                lower.finish(put, room, 8);
            } else {
                __syncwarp();
#pragma unroll 1
                for (int row = 0; row < 16; row += 4)
                    Rows<1, Shape, Put>(put, batch, row0 + row, col0, end).finish(put, room, row);
            }
            __syncwarp();
            return;
        }
    }
    put_fours<Shape>(room, put, batch, row0, col0, end);
}
/// A warp's sums of 16 rows of `Columns` through put(), and of 16 rows each 64 below; Turned: of
/// the transpose.
template <class Shape, bool Ahead, int Columns, bool Turned = false, int Count, class Put>
__device__ __forceinline__ void put_lines(const float (&sums)[Count], uint32_t room, const Put& put,
                                          bool packed, int64_t batch, int64_t row0, int64_t col0) {
    asm volatile("" : "+r"(room));  // no address is made before the products, which need registers
    const auto leave = [&](int piece) {
#pragma unroll
        for (int of = 0; of < 2 * Count; of += 64) {  // registers have no index
            if (of != piece) continue;
#pragma unroll
            for (int x = 0; x < 8 && of / 8 + x < Count / 4; x++)
                (Turned ? leave_turned : leave_sums)(&sums[(of / 8 + x) * 4], room, x);
        }
    };
    const auto row_of = [&](int piece) { return row0 + piece / Columns * 64; };
    const auto column_of = [&](int piece) { return col0 + piece % Columns; };
    // Of a last piece half as wide, the other columns are another block's.
    static_assert(Columns % 64 == 0 || (!Turned && 2 * Count == Columns));
    const int64_t end = Columns % 64 != 0 && col0 + Columns < Shape::n ? col0 + Columns : Shape::n;
    constexpr int halves = (2 * Count + 63) / 64 * 2;
    constexpr bool ahead = Ahead && Put::few;
    if constexpr (Put::packs && ahead) {
        if (packed) {  // the operands of 8 rows come while those before go through put()
            Rows<2, Shape, Put> now(put, batch, row0, col0, end);
#pragma unroll 1
            for (int half = 0; half < halves; half++) {
                const int next = half + 1 < halves ? half + 1 : half;
                if (half % 2 == 0) {
                    leave(half * 32);
                    __syncwarp();
                }
                const int piece = next / 2 * 64;
                const Rows<2, Shape, Put> then(put, batch, row_of(piece) + next % 2 * 8,
                                               column_of(piece), end);
                now.finish(put, room, half % 2 * 8);
                now = then;
                if (half % 2) __syncwarp();
            }
            return;
        }
    }
#pragma unroll 1
    for (int piece = 0; piece < 2 * Count; piece += 64) {
        leave(piece);
        if constexpr (Turned)
            put_turned<Shape>(room, put, batch, column_of(piece), row_of(piece));
        else
            put_cells<Shape, false>(room, put, !ahead && packed, batch, row_of(piece),
                                    column_of(piece), end);
    }
}

}  // namespace aicf
