// What the instruction-set units hand to the backend. Included by both sides, so nothing here may
// emit code: an inline function compiled for AVX-512 could be the one the linker keeps for all.
#pragma once

#include "core/abi/reduce.h"
#include "kernels/cpu/thresholds.h"

namespace aicf::cpu {

AICF_HD constexpr uint32_t dtype_bit(DType dtype) { return 1u << static_cast<int>(dtype); }
constexpr uint32_t kFloats =
    dtype_bit(DType::f32) | dtype_bit(DType::f64) | dtype_bit(DType::f16) | dtype_bit(DType::bf16);
#define AICF_BIT(dtype, type) | dtype_bit(DType::dtype)
constexpr uint32_t kNumbers = kFloats AICF_INTEGERS(AICF_BIT);
#undef AICF_BIT
constexpr uint32_t kAnyDType = kNumbers | dtype_bit(DType::boolean);

constexpr int kMaxPhases = 2;
constexpr int kRowOperands = 5;  // of row ops: inputs and outputs

/// What a row op's kernel works on: the operands of the schema, in memory or held by a thread.
struct RowCall {
    const void* plan;            // RowPlan of rows.inl
    void* at[kRowOperands];      // the first element; null: of a result that nobody wants
    int64_t skip[kRowOperands];  // elements of the operand that lie before it
    DType dtype[kRowOperands];
    const Scalar* scalars;  // of the op
};
/// Rows [begin, end).
using RowFn = void (*)(const RowCall& call, int64_t begin, int64_t end);

/// A kernel runs in phases, one after the other; a phase consists of units that any threads may
/// share out in any way without changing a bit.
struct CpuKernel {
    const char* op;   // lowered name
    uint32_t dtypes;  // of the first input
    void (*run)(const ArgBlock& args, int64_t begin, int64_t end, int phase, int thread);
    int64_t (*units)(const ArgBlock& args, int phase);
    uint64_t (*workspace)(const ArgBlock& args, int threads) = nullptr;
    uint32_t tail_bytes = 0;
    void (*prepare)(ArgBlock& args) = nullptr;  // fills the tail; pointers may not be set yet
    int phases = 1;
    RowFn rows = nullptr;  // of a row op: what `run` calls
};

// ---- programs -----------------------------------------------------------------------------------
//
// Every elementwise op is a program: instructions on contiguous arrays, interpreted over blocks of
// the iteration space. A single op on contiguous operands is a program of one instruction and one
// block; 16-bit types add conversions around it; a fusion is only a longer program.

#if defined(__x86_64__)
constexpr bool kStreams = true;  // there are stores that leave the caches alone
#else
constexpr bool kStreams = false;
#endif
constexpr int kMaxSlots = 48;
constexpr int kMaxInstrOperands = 15;

/// at: outputs, then inputs.
using InstrFn = void (*)(int64_t n, void* const* at, const Scalar* scalars);

struct InstrDef {
    const char* name;
    DType in, out;  // `in` is the type computed in; f16 and bf16 meet only conversions
    uint8_t outputs, inputs, scalars;
    uint16_t first_only;  // inputs of which only element 0 is read
    InstrFn fn;
    bool quick = true;  // takes less time than its result on the way to memory
};

enum class SlotMode : uint8_t {
    buffer,  // of the block
    linear,  // an operand contiguous in the iteration space: used in place
    stream,  // such a result, more than a cache holds: buffered, then written past the caches
    row,     // contiguous within a row, and blocks stay within rows: used in place
    once,    // the same for every block: gathered at the start
    gather,  // gathered (or scattered) for each block
    tile,    // gathered for a tile of rows, turned on the way
    first,   // only element 0 is read
    given,   // a temporary that lies where the caller says, block by block
};

struct Slot {
    char* ptr;
    int64_t buffer;   // byte offset of the block buffer; of `given`: which of those given
    int16_t operand;  // of the argument block; -1: none
    SlotMode mode;
    bool output;
    bool streams;  // `stream`, or `linear` where an input lies there too
    int16_t size;  // of an element
};
static_assert(sizeof(Slot) == 24);

struct Instr {
    InstrFn fn;
    Scalar scalars[2];
    uint8_t operands;
    uint8_t slot[kMaxInstrOperands];
};
static_assert(sizeof(Instr) == 40);

/// The tail of a program's argument block; Slot[slots], Instr[instrs] and the strides of every
/// operand follow.
struct Program {
    int64_t total, unit, block;  // elements: all, of a unit of work, of a block at most
    int64_t buffer_bytes;
    int32_t rank, slots, instrs;
    int32_t cross;  // the axis along which `tile` operands are contiguous; -1: there are none
    bool flat;      // one instruction, every operand used in place or streamed
    bool rows;      // blocks stay within a row
    bool streams;   // some result may be streamed
    // Slots, as bits: by how a block finds them; whose lines are asked for before they are written;
    // and which it takes from their buffers to memory. Set when the pointers are.
    uint64_t linear, row, gathered, fetched, leaving;
    int64_t shape[kMaxDims];
    AICF_HD const Slot* slot() const { return reinterpret_cast<const Slot*>(this + 1); }
    AICF_HD Slot* slot() { return reinterpret_cast<Slot*>(this + 1); }
    AICF_HD const Instr* instr() const { return reinterpret_cast<const Instr*>(slot() + slots); }
    AICF_HD Instr* instr() { return reinterpret_cast<Instr*>(slot() + slots); }
    AICF_HD const int64_t* strides(const Slot& of) const {
        return reinterpret_cast<const int64_t*>(instr() + instrs) + of.operand * rank;
    }
};
static_assert(sizeof(Program) <= 192 && kMaxSlots <= 64);

// ---- fused reductions ---------------------------------------------------------------------------
//
// A program makes the elements that are reduced, a tile at a time, in the order (results, n) or,
// with a width, (results / width, n, width); another takes the results. Behind the plan of
// reduce_loops.inl, the tail holds this and then the programs.

#define AICF_NAME(name, ...) name,
enum class Reducer : uint8_t { AICF_REDUCTIONS(AICF_NAME) };
#undef AICF_NAME

struct FusedReduce {
    int64_t results, n;        // n elements make one result
    int64_t width;             // 0: the elements of a result lie side by side
    int64_t chain, axes;       // as the scalars of a reduction
    int32_t operand;           // the input that is reduced; -1: its elements are made
    uint32_t elements, taken;  // where the programs begin, in bytes from here
    int32_t size;              // of an element
    DType dtype;
    Reducer reducer;
};

// ---- fused row ops ------------------------------------------------------------------------------
//
// A unit is some rows: one program makes what the row op reads of them, another takes what it
// writes. Values that pass from one to another and have no storage are held by the thread, in its
// part of the workspace. Behind RowPlan, the tail holds this and then the programs.

constexpr int kMaxHeld = 8;

struct FusedRows {
    RowFn run;
    int32_t operand[kRowOperands];  // of the row op: an operand of the block, a held value behind
                                    // all those, or -1 where nobody wants the result
    int32_t scalars;                // where in the block those of the row op begin
    int32_t axis, like;             // an operand of the block in the shape of the elements
    int32_t operands, held;
    uint32_t before, after;  // where the programs begin, in bytes from here; 0: there is none
    int32_t size[kMaxHeld];  // of an element
    DType dtype[kRowOperands];
};

// ---- batches ------------------------------------------------------------------------------------
//
// An optimizer's update is a batch: instructions on arrays of their own sizes. Those on numbers
// alone come first, in a phase of their own; the others may run in any order.

struct BatchInstr {
    InstrFn fn;
    int64_t n;        // elements
    uint16_t moving;  // operands with n elements; the others are numbers
    uint8_t operands, size;
    uint8_t operand[kMaxInstrOperands];  // of the block; behind those: numbers in the workspace
};

/// The tail of a batch's argument block; BatchInstr[instrs] follow.
struct Batch {
    int32_t instrs, numbers;  // all; those on numbers alone
    AICF_HD const BatchInstr* instr() const {
        return reinterpret_cast<const BatchInstr*>(this + 1);
    }
};

// ---- what one instruction set offers ------------------------------------------------------------

/// Copies elements of `size` bytes between any strides (counted in elements); no alignment needed.
/// As core/run/init.h says.
using DrawFn = void (*)(bool normal, float a, float b, uint64_t key, uint64_t first, int64_t count,
                        float* to);
using StridedCopyFn = void (*)(void* to, const int64_t* to_strides, const void* from,
                               const int64_t* from_strides, const int64_t* shape, int rank,
                               int size);

struct Table {
    CpuKernel kernels[64];
    int kernel_count = 0;
    InstrDef instrs[480];
    int instr_count = 0;
    bool quick_memory = false;  // it takes less time than arithmetic of a flop to a byte
    void (*run_program)(const ArgBlock& args, int64_t begin, int64_t end, int phase, int thread);
    void (*run_batch)(const ArgBlock& args, int64_t begin, int64_t end, int phase, int thread);
    StridedCopyFn strided_copy;
    DrawFn draw;
    AICF_HD void add(const CpuKernel& kernel) { kernels[kernel_count++] = kernel; }
    AICF_HD void add(const InstrDef& instr) { instrs[instr_count++] = instr; }
};

/// What a library of kernels and its caller must agree on.
constexpr uint64_t kTableStamp =
    sizeof(Table) << 32 | sizeof(FusedRows) << 20 | sizeof(Program) << 8 | sizeof(Operand);
/// Of a library of kernels: fills the table, unless it has another stamp.
using FillTable = bool (*)(Table& table, uint64_t stamp);

namespace baseline {
void fill_table(Table& table);
}
#if defined(__x86_64__)
namespace avx2 {
void fill_table(Table& table);
}
namespace avx512 {
void fill_table(Table& table);
}
#endif

}  // namespace aicf::cpu
