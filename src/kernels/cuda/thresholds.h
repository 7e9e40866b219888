// Every size at which a CUDA kernel goes another way, but for the tiles of products. The kernels'
// texts take their constants from here; cuda_thresholds() lists them by what they are compared
// with.
#pragma once

#include "core/abi/abi.h"

namespace aicf::cuda {

// A product with fewer results or multiplications has no tiles, nor on tensor cores one of fewer
// terms.
constexpr int64_t kTiledTerms = 32, kTiledResults = 64, kTiledWork = 1 << 17;
constexpr int64_t kNearTerms = 8, kNearWork = 1 << 16;  // of f32, for near.cuh
// Rows up to which the other side goes through rings of warps, and of that at least.
constexpr int64_t kThinRows = 8, kThinChainRows = 4, kThinWide = 64;
// Of a tail_region: classes, rows, features of all rows, and bytes of shared memory at most. Of
// 2^20 features it takes 8 us more than its launches do on an H200.
constexpr int64_t kTailClasses = 32, kTailRows = 2048, kTailFeatures = 1 << 19,
                  kTailShared = 96 << 10;
// Of a chain: rows, and of each product terms and columns at most.
constexpr int64_t kChainRows = 1024, kMostChainRows = 1 << 16, kChainTerms = 256,
                  kChainColumns = 64;
constexpr int64_t kChainMembers = 16;
constexpr int64_t kPairRows = 1 << 15;   // of a chain in words, up to which two warps share 16
constexpr int64_t kRolesWork = 1 << 22;  // multiplications from which on warps may have roles

// Bytes that each half of the L2 cache of 9.0 holds, and above which nothing of an operand stays in
// either.
constexpr int64_t kCachedBytes = 24 << 20, kFarBytes = 48 << 20;

constexpr int64_t kRolesRows = 64;     // of attention, from which on warps may have roles
constexpr int64_t kRolesLength = 256;  // from which on they are the first choice
constexpr int64_t kWideHead = 128;     // above which a gradient's sums are more than registers hold
// Of one kernel for all gradients, the shortest positions that it was faster for, where it was
// timed, of heads of 64 and of 128; bytes of its sums at most to be the first choice.
constexpr int64_t kJointLength = 1024, kJointLengthWide = 4096, kJointBytes = int64_t{1} << 30;

constexpr int64_t kSmall = 32768;       // elements below which one a thread spreads the work best
constexpr int kThreads = 256;           // of a block of a program
constexpr int64_t kMostThreads = 2048;  // of a processor

// Instructions of an element for each byte that it moves: from about 11 on an H100 waits for them,
// and from here on they are worth a loop over as many blocks of a processor.
constexpr double kHeavyWork = 6;
constexpr int64_t kHeavyBlocks = 64;
constexpr int64_t kLotBlocks = 16;  // of a processor, from which on they take lots of vectors
// Of functions of 16 bits: instructions of an element, about as many as pass while it is moved, and
// of all elements those beyond that from which on a table is worth its making (it took an H100
// 7 us); a block's threads.
constexpr double kTableInstructions = 28, kTableWork = 5 << 25;
constexpr int kTableThreads = 1024;

constexpr int64_t kWarp = 32;
constexpr int64_t kWarpLeaves = 2;   // of a row, up to which a warp takes it
constexpr int64_t kHeldLeaves = 32;  // of a row of 4 bytes, up to which registers hold it
constexpr int kHeldWarps = 16;       // of a block whose registers hold a row, at most
// A row of logits in 16 bits that registers hold while its exponentials lie in shared memory:
// leaves of a warp at most; warps of each block where two share a row, which they do of up to 2
// kKeptTurns kKeptWarps leaves; elements at most.
constexpr int64_t kKeptTurns = 5, kKeptWarps = 10, kKeptTerms = 56 * 1024;
// Of losses alone of rows that blocks fill ahead: leaves of a row at least, from which on blocks
// have four warps at least; warps of a processor.
constexpr int64_t kFilledLeaves = 8, kFilledQuads = 16, kFilledWarps = 16;
// Readings of a row that keeping it in shared memory saves at least: what one alone would read
// again comes from the cache as fast (norms of 4096x50304 without a mean took 354 us for 320).
// Bytes that a block which keeps rows may have, and each of two of a processor; of so many rows of
// n elements of some bytes, and what their leaves come to.
constexpr int64_t kKeptSaved = 2, kKeptShared = 227 << 10, kHalfShared = (228 << 10) / 2 - 1024;
constexpr int64_t kept_bytes(int64_t n, int64_t size, int64_t rows) {
    return ((n + kTreeLeaf - 1) / kTreeLeaf * 4 + 15) / 16 * 16 + (n * size + 15) / 16 * 16 * rows;
}
// Of rows that are copied to shared memory ahead: leaves of a row at most, rows of a team, warps
// that a processor has the registers for, bytes of its shared memory.
constexpr int64_t kCopiedLeaves = 128, kCopiedRows = 2, kCopyingWarps = 24, kShared = 228 << 10;
// Of those that warps of a norm without a mean tell each other of: rows of a team; warps of a block
// at most, whose threads then have 72 registers; rows of a cluster at least, of which it takes six
// in turn (an H200 took 62 of 50304 elements in 198 us by a counter and in 221 in turn, for 207 as
// the other norms take theirs).
constexpr int64_t kToldRows = 3, kToldWarps = 28, kToldTurns = 32;
// Elements of a processor from which on instructions are what teams that hold rows wait for.
constexpr int64_t kManyTerms = 32 * 1024;
// Elements of a processor, in 16 bits, from which on rows that blocks hold stay in the second cache
// for longer than what is made of them, of which it could not have kept half anyhow: on an H200
// 132 MiB.
constexpr int64_t kLastingTerms = 1 << 19;
constexpr int64_t kAheadRows = 4;  // of a team, from which on it reads them ahead
// Elements of such rows that a counter shares out, at least, and warps of a processor that take
// them.
constexpr int64_t kCounterRow = 4096, kCounterWarps = 32;
// Of losses whose mean is added by the last block of the kernel that makes them: rows at most, and
// blocks of a processor, each of which waits at its end until what it has stored is seen by others.
constexpr int64_t kLossRows = 1 << 16, kLossBlocks = 8;
// Of losses alone whose mean's leaves are added by the blocks that make them: lanes that may have a
// row, of so many pieces of 8 elements each; blocks of a processor, of which some may have one leaf
// less than others, in all one of so many.
constexpr int kLeafLanes[] = {1, 4};
constexpr int64_t kLeafPieces = 8, kLeafBlocks = 4, kLeafShare = 10;
// Of softmax of rows that lanes hold in two pieces: warps of a block, rows of a team.
constexpr int64_t kBriefWarps = 4, kBriefRows = 3;
// Sums over rows beside a norm's gradient: elements of a row at least, its leaves at most, above
// which of them two, four and eight blocks hold a row (16384x8192 took 382 us for 393), elements of
// all rows at least, of float32 twice as many (1024x1024 took 17.2 us for 13.7); registers and
// bytes of shared memory of a processor that blocks share.
constexpr int64_t kSumsTerms = 32, kSumsLeaves = 128, kSumsWork = 1 << 20;
constexpr int64_t kBlockLeaves = 8, kPairLeaves = 32, kQuadLeaves = 64;
// Of rows that clusters hold, those that come to shared memory; of clusters of four and eight
// blocks, units of work of each at least; of a processor's four schedulers those that have a warp
// less than another, at least, where one more warp gains (4096x50304, of 13 warps, took an H200
// 624 us for 674, 4096x49152, of 12, 595 for 574, 3276x61440, of 15, 638 for 639).
constexpr int64_t kBlockSlots = 2, kClusterUnits = 8, kIdleSchedulers = 2;
// Of those whose rows a warp takes, or a part of one, and which come to shared memory: elements of
// a thread up to which 16 warps of a processor have the registers; rows of a team at most, and
// bytes of a processor, that are on their way (96 KB of 16384x768 took 42.5 us for the 41.6 of 48
// KB, 32 KB of 65536x1024 187.9 for the 179.4 of 64 KB, 96 KB 183.7).
constexpr int64_t kSumsElements = 24, kSumsSlots = 4, kSumsComing = 64 << 10;
constexpr int64_t kSumsRegisters = 65536, kSumsShared = 224 << 10;
constexpr int64_t kFullWarps = 32;      // of a processor, from which on a warp takes two leaves
constexpr int64_t kSoonWarps = 8;       // of a processor, up to which they exchange more, sooner
constexpr int64_t kRowWarps = 8;        // of a block that takes a row, or rows of a block
constexpr int64_t kGroupLeaves = 1024;  // of a row, above which a block takes them in groups
constexpr int64_t kColumns = 8;         // results at least that columns are worth it for
constexpr int64_t kWideColumns = 64;    // results from which on threads take some side by side
constexpr int64_t kTallWork = 1 << 21;  // elements of chains from which on threads take columns
constexpr int64_t kTallWidth = 64;      // threads side by side then, at most
constexpr int64_t kFewTerms = 32;       // of a column, up to which a thread takes it
constexpr int64_t kFewThreads = 512;    // of a processor, from which on it takes all lanes of some
constexpr int64_t kSplitLeaves = 64;    // of a row, from which on it is cut where there are few
constexpr int64_t kPieceLeaves = 16, kPieces = 4096;  // of a piece at least, of a row at most

constexpr int64_t kLineTerms = 64;  // of a running sum, from which on a warp brings them
constexpr int kLineWarps = 8;       // of a processor, from which on a warp takes several lines

// Positions that rows take are looked through by every row up to so many, sorted from there on: by
// blocks of so many threads, that many positions at a time, by at most so many bits of the row;
// where rows begin is looked for that many at a time. Up to so many, blocks sort those of their own
// rows, at most as many as are looked for at a time.
constexpr int64_t kLookedThrough = 64;
constexpr int kSortThreads = 512;
constexpr int64_t kSortTile = 4096;
constexpr int64_t kSplitPositions = 32768;
constexpr int64_t kSortBits = 10;
constexpr int64_t kBoundRows = 1024;
// Positions that a block keeps of its rows, where these have half as many on average: no row then
// has more than one chunk of its sum.
constexpr int64_t kOwnPositions = 256;

}  // namespace aicf::cuda
