// Every size at which a CPU kernel goes another way. The kernels take their constants from here;
// thresholds() lists them by what they are compared with, and the tests draw shapes around each.
#pragma once

#include "core/abi/abi.h"

namespace aicf::cpu {

// ---- by instruction set -------------------------------------------------------------------------

struct Widths {
    int vector;     // bytes
    int main_rows;  // of accumulators that the registers hold under strips of two vectors,
    int slim_rows;  // and of one
    int square;     // bytes of a vector whose 16-byte lanes are turned in registers
};
namespace baseline {
constexpr Widths kWidths{16, 6, 8, 16};
}
namespace avx2 {
constexpr Widths kWidths{32, 6, 12, 32};
}
namespace avx512 {
constexpr Widths kWidths{64, 14, 14, 32};
}

// ---- products -----------------------------------------------------------------------------------

// So few rows need a strip of four vectors to hide the latency of fma, one row a strip of eight.
constexpr int kWideRows = 3, kWideVectors = 4, kVectorVectors = 8;
constexpr int kThin = 8;            // terms at most that are held in registers, all of them
constexpr int64_t kThinRows = 8;    // rows at least that this is worth it for,
constexpr int64_t kThinStrips = 4;  // and strips at most
constexpr int kDotGroups = 4;       // vectors of columns that a row meets at once
// A panel of k, the last one with what would be a panel of few terms; elements of a block of A and
// of B, for 4-byte elements.
constexpr int64_t kPanel = 256, kFewTerms = 32, kBlockA = 65536, kBlockB = 524288;
constexpr int64_t kResidentBytes = 24576;  // of B that stay in a 32 KB cache beside A and C
// Up to so many tiles of rows, packing a strip of B costs more than it saves; but a cache keeps few
// of the rows that lie whole pages apart (or all at one place).
constexpr int64_t kFewTiles = 12, kPageBytes = 4096;
constexpr int64_t kPackedColumns = 128;    // of B, above which A is packed
constexpr int64_t kPackedElements = 8192;  // of a panel of B, above which it is packed
constexpr int64_t kFarBytes = 2 << 20;     // of B, above which its lines are asked for ahead
// A product is shared out in cells of at least so many rows and columns, as far as it has them, and
// of so many multiplications.
constexpr int64_t kCellRows = 48, kCellCols = 64, kCellStep = 16, kCellWork = 1 << 19;
constexpr int64_t kConvertRows = 96, kConvertCols = 512;  // block of f32 sums behind a 16-bit C

// ---- attention ----------------------------------------------------------------------------------

constexpr int64_t kAttentionRows = 128;  // that are taken against a block of others

// ---- programs -----------------------------------------------------------------------------------

constexpr int kBlock = 512;             // elements of a block buffer
constexpr int64_t kProgramUnit = 8;     // blocks
constexpr int64_t kWholeRow = 128;      // elements: from here on blocks stay within a row
constexpr int kPass = 128;              // elements that a function of two passes takes at once
constexpr int64_t kRepeatedBytes = 32;  // of a period, up to which it is repeated in a register
constexpr int kTileRows = 16, kTileBlock = 256;
// More than a cache holds: elements that are read, bytes that are written.
constexpr int64_t kStreamed = 4 << 20, kStreamedBytes = 16 << 20;
// Elements of a block whose results are streamed, or few less, of one instruction and of several:
// the processor reads and computes the next while this one is on its way to memory.
constexpr int kStreamOne = 128, kStreamBlock = 256;
constexpr int64_t kBatchUnit = 4096;   // elements of an update
constexpr int64_t kRandomUnit = 4096;  // elements

// ---- copies -------------------------------------------------------------------------------------

constexpr int64_t kCopyBytes = 16384;  // of a unit
constexpr int64_t kCopySlices = 64;    // of a unit, in whole, where the first axis is turned
constexpr int kTurned = 16;            // rows of a tile; half as many of 8-byte elements

// ---- reductions ---------------------------------------------------------------------------------

constexpr int64_t kTile = 4096;        // elements that rows are taken in
constexpr int64_t kGroupWork = 65536;  // elements of a group of a reduction that is cut
constexpr int64_t kFewUnits = 16;      // units below which one is
constexpr int64_t kJoined = 256;       // results to a unit that joins groups
constexpr int64_t kFarLeaves = 4;      // of a stream before another begins
constexpr int kAbreast = 4;            // streams
constexpr int64_t kShares = 8;         // so many threads are enough for what memory yields
constexpr int64_t kShortRow = kTreeLanes;
constexpr int kBundleBytes = 64;  // of one element of the rows of a bundle; a quarter is worth one
// Neighbouring results of a reduction to a unit: where the elements lie in memory, few or many, and
// the bytes where they are made.
constexpr int64_t kStrip = 64, kWideStrip = 256, kWideStripBytes = 4096;
constexpr int64_t kManyStrips = 16, kManyLeaves = 16;  // from here on they are many
constexpr int64_t kMadeAtOnce = 2 * kBlock;            // elements of the rows of a strip

// ---- rows ---------------------------------------------------------------------------------------

constexpr int64_t kRowGrain = 1024;                     // elements to a unit of rows
constexpr int64_t kRowUnit = 2048, kMaxRowUnit = 8192;  // of a fused one, where rows are shorter
constexpr int64_t kRowUnits = 32;          // for threads to share, where there are more
constexpr int64_t kMseGroup = 65536;       // elements to a unit: whole subtrees
constexpr int64_t kNearBytes = 256 << 10;  // of a fused row, what a thread holds of it at most

// ---- threads ------------------------------------------------------------------------------------

/// Below this much work, waking the other threads costs more than it saves.
constexpr int64_t kParallelNs = 20000;

}  // namespace aicf::cpu
