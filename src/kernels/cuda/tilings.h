// Tiles of products on a GPU, and the model of their cycles that says which come first: no choice
// changes a bit.
#pragma once

#include <string>
#include <vector>

#include "kernels/cuda/codegen.h"

namespace aicf::cuda {

/// A tiled kernel: a block computes m x n with tiles of depth k, a thread or a warp part_m x
/// part_n.
struct Tiling {
    int m, n, k, stages, part_m, part_n, threads;
    int resident;         // blocks a processor holds
    double share, alone;  // cycles a step of k costs: of a full processor, and at the least
    int pair = 0;         // of wgmma: blocks that share a tile of B
    double start = 0;     // cycles a unit costs beside its steps
    bool own = false;     // of wgmma: each warpgroup has tiles of its own
    int writers = 0;      // of wgmma: warpgroups that take what follows the product
    int wide = 1;         // of wgmma: blocks that share a tile of A
    bool narrow = false;  // of wgmma: for products of 16-bit operands alone
    bool whole = false;   // takes all of k, where most processors have a tile then

    /// Whether a block has registers for the sum of the cuts it has done; where A goes through
    /// registers as words, too, 192 columns leave none.
    bool holds(int64_t cuts, bool words) const {
        return pair && (alternates() ? cuts <= 16 : n <= 192 && !words);
    }
    /// And for those of the next cut beside it; each cut is text of its own then.
    bool alternates() const { return n <= 128; }
};

inline constexpr Tiling kScalar[] = {
    {128, 128, 8, 2, 8, 16, 128, 2, 145, 165, 0, 9000},
    {64, 128, 16, 2, 8, 8, 128, 3, 75, 88, 0, 1000},
    {64, 64, 16, 2, 8, 4, 128, 4, 44, 50},
    {64, 32, 16, 2, 4, 4, 128, 4, 27, 27, 0, 1300, false, 0, 1, false, true},
    {32, 32, 16, 2, 4, 4, 64, 8, 15.4, 38, 0, 800}};
// The same, of which two groups of a block's threads take a chunk of k each: a k takes `share`
// cycles of each group.
inline constexpr Tiling kPairTile = {64, 64, 16, 2, 8, 4, 128, 4, 43, 50};
// Of near.cuh: a k takes `alone` cycles and `share` for each group of threads on a processor.
inline constexpr Tiling kNear[] = {
    {8, 16, 32, 4, 2, 2, 32, 16, 4.4, 14}, {16, 16, 32, 4, 2, 2, 64, 8, 6.2, 20},
    {16, 32, 32, 4, 2, 2, 128, 4, 15, 13}, {16, 32, 32, 3, 4, 4, 32, 8, 8.8, 20},
    {32, 32, 32, 3, 4, 2, 128, 4, 18, 22}, {32, 64, 32, 3, 4, 4, 128, 3, 26, 32},
    {32, 32, 32, 2, 8, 4, 32, 8, 10, 40}};
// Of near_mma.cuh, whose groups have the warps of a tile each: a k takes `alone` cycles of a warp,
// `share` of a processor for each group.
inline constexpr Tiling kNearMma[] = {
    {16, 16, 32, 8, 16, 16, 32, 8, 1.1, 5}, {16, 32, 32, 8, 16, 32, 32, 8, 1.5, 10},
    {32, 32, 32, 8, 32, 32, 32, 4, 2, 8},   {32, 32, 32, 8, 16, 16, 128, 4, 4.3, 4},
    {32, 64, 32, 4, 32, 32, 64, 4, 4, 8},   {64, 32, 32, 4, 32, 32, 64, 4, 4, 8},
    {64, 64, 32, 4, 32, 32, 128, 2, 11, 8}, {64, 64, 32, 4, 16, 32, 256, 2, 20, 20}};
// Of a member of a chain: two warps have the columns of 16 rows, so that others need not wait; of
// blocks that leave processors without one, fewer rows; of many rows of words, a warp has them all.
inline constexpr Tiling kChainTile = {64, 64, 32, 4, 16, 32, 256, 2, 11, 8};
inline constexpr Tiling kShortChainTile = {32, 64, 32, 4, 16, 32, 128, 4, 11, 8};
inline constexpr Tiling kLongChainTile = {64, 64, 32, 4, 16, 64, 128, 3, 11, 8};
inline constexpr Tiling kDouble[] = {{64, 64, 8, 2, 8, 4, 128, 2, 98, 120}};
inline constexpr Tiling kTensor[] = {{128, 256, 32, 4, 64, 64, 256, 1, 38, 40, 0, 6000},
                                     {128, 128, 32, 4, 64, 64, 128, 2, 20, 22, 0, 4000},
                                     {64, 64, 64, 4, 32, 32, 128, 3, 8, 9, 0, 2800}};
inline constexpr Tiling kWgmma[] = {
    {128, 256, 64, 4, 64, 256, 384, 1, 18.5, 18.5, 1, 4280},
    {128, 256, 64, 4, 64, 256, 384, 1, 18.35, 18.35, 2, 4000},
    {128, 192, 64, 4, 64, 192, 384, 1, 13.7, 13.7, 1, 4600},
    {128, 128, 64, 6, 64, 128, 384, 1, 9.75, 9.75, 1, 2300},
    {128, 128, 64, 6, 64, 128, 384, 1, 9.75, 9.75, 2, 2400},
    {128, 128, 64, 6, 128, 128, 384, 1, 9.75, 9.75, 1, 4600, true},
    {128, 128, 64, 6, 128, 128, 384, 1, 9.75, 9.75, 2, 4800, true},
    {128, 128, 64, 6, 64, 128, 640, 1, 9.75, 9.75, 1, 1200, false, 2},
    {128, 128, 64, 6, 64, 128, 640, 1, 9.75, 9.75, 2, 1400, false, 2},
    {128, 192, 64, 4, 64, 192, 512, 1, 13.7, 13.7, 1, 700, false, 1},
    {128, 64, 64, 7, 64, 64, 384, 1, 7.5, 7.5, 1, 1400},
    {64, 128, 64, 6, 64, 128, 256, 1, 7.0, 7.0, 1, 2050},
    {64, 128, 64, 7, 64, 128, 256, 1, 5.9, 5.9, 2, 3000},
    {64, 64, 64, 5, 64, 64, 256, 2, 4.2, 6.5, 1, 1400},
    {64, 64, 64, 13, 64, 64, 256, 1, 3.0, 3.0, 2, 5000, false, 0, 1, true},
    {64, 96, 64, 10, 64, 96, 256, 1, 3.85, 3.85, 4, 5000, false, 0, 1, true},
    {128, 128, 64, 6, 64, 128, 384, 1, 9.4, 9.4, 2, 2400, false, 0, 2, true},
    {128, 160, 64, 5, 64, 160, 384, 1, 12.9, 12.9, 2, 4600, false, 0, 1, true},
    {128, 160, 64, 5, 64, 160, 384, 1, 12.4, 12.4, 4, 4600, false, 0, 1, true},
    {128, 160, 64, 5, 64, 160, 384, 1, 12.4, 12.4, 2, 4600, false, 0, 4, true}};
// Of limbs.cuh, whose ring holds a limb of both operands in each place.
inline constexpr Tiling kLimbs[] = {{128, 128, 64, 6, 64, 128, 384, 1, 62, 62, 1, 2300},
                                    {128, 128, 64, 6, 64, 128, 384, 1, 61.5, 61.5, 2, 4000},
                                    {64, 128, 64, 8, 64, 128, 256, 1, 40.5, 40.5, 1, 1500},
                                    {64, 128, 64, 8, 64, 128, 256, 1, 41, 41, 2, 3000},
                                    {64, 64, 64, 5, 64, 64, 256, 2, 19.5, 36, 1, 1400},
                                    {64, 64, 64, 5, 64, 64, 256, 2, 19.5, 36, 2, 2800}};
// Of tf32 a step of k takes as many cycles as two of 16-bit operands.
inline constexpr double kWgmmaTf32 = 2;
// Of the copies that wgmma reads, at most.
inline constexpr int64_t kRoundedBytes = int64_t{1} << 30;
inline constexpr Tiling kTf32[] = {{128, 128, 32, 4, 64, 32, 256, 1, 40, 44, 0, 3500},
                                   {64, 64, 32, 4, 32, 32, 128, 3, 16, 26, 0, 1800}};

/// How wgmma reads operands: where they lie; where they lie, for the transpose of the product, so
/// that what wgmma takes along k alone is A; B copied along k; both copied, in the type it takes.
enum class Reads { lying, turned, right_copied, copied };

/// A tiling with a cut of k, and what they take.
struct Choice {
    const Tiling* tiling = nullptr;
    int64_t tiles = 0, parts = 1;
    int64_t blocks = 0, slots = 0;  // slots: results of tiles that the workspace holds
    bool thin = false;              // straight from memory
    Reads reads = Reads::lying;     // by wgmma
    bool words = false;             // whose first operand goes through registers
    int groups = 0;                 // of threads, by near.cuh; 0: another kernel
    bool pairs = false;             // two groups of threads by larger tiles
    bool boxes = false;             // whose operands the copy engine brings, by near_boxes.cuh
    bool shares = true;             // can be a member of a group, if it is small enough
    // Of parts by wgmma: turns in which the sums of a tile are added, tiles of a round.
    int64_t adders = 0, round = 0;
    int64_t run = 0;      // cuts of a block, by wgmma_runs.cuh; 0: another kernel
    int64_t cluster = 0;  // blocks that share a tile's cuts or chunks; 0: another kernel
    // Of copies: what there is of before products are made, 0: all; the rest comes beside them.
    int64_t first_rows = 0, first_columns = 0, first_terms = 0;
    double cycles = 0;
};

/// What the model knows of a product.
struct Problem {
    int64_t batches, m, n, k;
    int64_t grain;      // k is cut at multiples of this
    bool tensor;        // on tensor cores: a unit takes one cut of k, or all
    int64_t size;       // bytes of a sum
    int64_t moved = 0;  // bytes read and written where wgmma reads copies of operands
    Reads reads = Reads::lying;
    bool words = false;       // A goes through registers
    double rate = 1;          // of wgmma: a step's cycles, in those of 16-bit operands
    double after = 0;         // instructions for each result of what follows the product
    bool hands_over = false;  // of wgmma: what follows can be done by warps of their own
    bool narrows = false;     // f32 becomes 16 bits as mma.sync's tiles load it
    int64_t element = 4;      // bytes of an operand's
    bool boxes = false;       // operands that the copy engine can read for near_boxes.cuh
    bool across = false;      // of those, B lies across k
    bool pairs = false;       // operands of f32: two blocks can be a cluster
    bool limbs = false;       // copies are three planes
};

/// Every cut of k that a tiling allows.
void add_choices(const Tiling& t, const Problem& p, const Limits& limits,
                 std::vector<Choice>& choices);
/// Runs of cuts by wgmma_runs.cuh, where whole tiles leave processors idle.
void add_runs(const Tiling& t, const Problem& p, const Limits& limits,
              std::vector<Choice>& choices);
/// Clusters that share the cuts of a tile by wgmma_cluster.cuh, where tiles are few.
void add_clusters(const Tiling& t, const Problem& p, const Limits& limits,
                  std::vector<Choice>& choices);
/// Bytes of what a block of near_boxes.cuh reads, with a barrier for each box of 128 bytes along k,
/// which is cut at multiples of `cut`.
int64_t box_room(const Tiling& t, int64_t k, int64_t cut, int64_t element);
/// Two groups of a block that take a chunk of a tile each, where there are two.
void add_pairs(const Problem& p, const Limits& limits, std::vector<Choice>& choices);
/// Those of near.cuh, and of near_mma.cuh and near_boxes.cuh.
void add_near(const Problem& p, const Limits& limits, std::vector<Choice>& choices);
void add_near_mma(const Problem& p, const Limits& limits, std::vector<Choice>& choices);
/// Makes those of near_mma.cuh no faster than wgmma's. Of 16 bits 128x256x256 took an H200 2.1 us
/// by wgmma, 3.2 by near_mma.cuh, 128x1024x1024 4.6 and 6.3, 512x512x128 2.2 and 3.1; of at most 16
/// rows they keep their place. Of tf32 that lies along k 512 cubed took an H100 6.5 us and 8.1; of
/// fewer results those of near_mma.cuh come first, whose tiles can be members of a group.
void rank_near(const Problem& p, std::vector<Choice>& choices);
/// Stages of near.cuh's rings: those of several groups of threads are as many as there is room for.
/// Bytes of a block's shared memory, with the sums that do not lie where operands were.
int chain_stages(const Tiling& t, int64_t groups, int64_t chunks, int64_t depth);
int64_t chain_room(const Tiling& t, int64_t groups, int64_t chunks, int stages, int64_t stage);
/// Stages of near_mma.cuh's rings that shared memory has room for: more than four where a group's
/// run of k, `depth`, is then on its way at once. `element`: bytes of an operand's.
int near_stages(const Tiling& t, int64_t groups, int64_t cuts, int64_t depth, int64_t element);
/// As candidates are named.
std::string name_of(const Choice& choice);

}  // namespace aicf::cuda
