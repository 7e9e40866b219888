// What tiles of products take, by a model of their cycles.
#include "kernels/cuda/tilings.h"

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/cuda/thresholds.h"

namespace aicf::cuda {

/// Cycles of blocks that each make one unit: `share` of a full processor, at least `alone`. The
/// first are spread over all processors; of those behind the last full wave a processor that is
/// done early takes as many as it holds, so half a wave takes about as long as a whole one. Of
/// parts that are joined, two or three to a processor, most end before the last ones.
static double in_waves(int64_t units, int64_t processors, int resident, double share, double alone,
                       bool joined) {
    const int64_t room = processors * resident, waves = units / room, rest = units % room;
    const double full = resident * share;
    if (rest == 0) return static_cast<double>(waves) * full;
    const auto most = static_cast<double>(ceil_div(rest, processors));
    const double each =
        joined && most <= 3
            ? (most + static_cast<double>(rest) / static_cast<double>(processors)) / 2
            : most;
    const double last =
        waves > 0 ? full * std::min(1.0, 2 * static_cast<double>(rest) / static_cast<double>(room))
                  : each * share;
    return static_cast<double>(waves) * full + std::max(last, alone);
}

/// Cycles of a unit by wgmma beside its steps. Those of tf32 store f32, for which large tiles wait
/// unless the other warpgroup multiplies meanwhile; of a transpose in pieces of 32 bytes. (On H100s
/// 2048 cubed took 51.4 us by tiles of 128x256, 50.4 by warpgroups of their own, 53.2 transposed;
/// 16384x3072x768 289, 259 and 358.)
static double start_of(const Tiling& t, const Problem& p) {
    constexpr double alternating = 1200;  // of 16 bits, 16384x3072x768 NT: 119 us, 133 by 128x256
    if (t.own && t.pair == 1 && (p.element == 2 || p.narrows) && p.after == 0) return alternating;
    if (p.rate == 1 || !t.pair) return t.start;
    constexpr double least = 1 << 14, stored = 4.5, turned = 3;  // results; of them a cycle
    constexpr double beside = 1200, paired = 3000;
    const auto results = static_cast<double>(t.m * t.n);
    if (t.own) return t.start - (t.pair > 1 ? 0 : beside);
    return t.start + (results < least ? 0 : results / stored) +
           (p.reads == Reads::turned ? results / turned : 0) + (t.pair > 1 ? paired : 0);
}

/// Cycles of a step of k by wgmma, in those that the tiling names. Two blocks of 64 rows take tf32
/// no faster together than each for itself; warpgroups of their own take operands that the cache
/// does not hold more slowly unless two blocks share them (4096 cubed 478 us, 404 so).
static double rate_of(const Tiling& t, const Problem& p) {
    constexpr double low_pair = 1.35, far = 1.12;
    if (p.rate == 1) return 1;
    if (t.pair > 1) return t.m == 64 ? p.rate * low_pair : p.rate;
    return t.own && p.batches * (p.m + p.n) * p.k * p.element > kCachedBytes ? p.rate * far
                                                                             : p.rate;
}

/// Cycles of a step of k of a full processor. Of 16 bits that the cache holds tiles of 64x128 are
/// not worth sharing: 1024x1024x4096 TN took an H100 15.4 us, 18.6 by pairs; what comes from memory
/// is, 128x4096x4096 NT 16.9 and 14.3. Of larger ones pairs are slower, too.
static double share_of(const Tiling& t, const Problem& p) {
    if (!t.pair || t.own || t.writers || t.wide > 1 || t.n != 128 || !(p.element == 2 || p.narrows))
        return t.share;
    if (t.m == 128) return t.pair > 1 ? 10.6 : t.share;
    if (p.batches * (p.m + p.n) * p.k * p.element > kCachedBytes) return t.share;
    return t.pair > 1 ? 6.8 : 5.95;
}

/// Which copies there are before products are made: warps that make none copy the rest beside them,
/// more slowly. It is there when tiles that begin later want rows, or columns, or the first ones
/// the last terms; `unit`: cycles of a tile, `at_once`: blocks that run together.
static void copy_beside(const Tiling& t, const Problem& p, double unit, int64_t at_once,
                        int64_t processors, bool holds, Choice& choice) {
    // Bytes a cycle and processor, beside products and before; cycles until others see them; of
    // less the others wait longer for them than for all.
    constexpr double rate = 6, rate_of_limbs = 3.5, before = 20, seen = 12000, least = 4000;
    constexpr int64_t lot = 128, lines = 8;  // terms; tile rows that go through columns together
    // Warps that copy take registers from those that multiply, who need all for what follows or for
    // the cuts before.
    if (choice.parts > 1 || p.batches > 1 || p.after > 0 || p.rate > 1 || holds) return;
    const bool down = p.m >= p.n;
    const int64_t high = std::max(t.pair, 1) * t.m, wide = t.wide * t.n, size = down ? p.m : p.n,
                  step = lines * (down ? high : wide),
                  blocks = lines * std::max(t.pair, 1) * t.wide *
                           (down ? ceil_div(p.n, wide) : ceil_div(p.m, high));
    const double all = static_cast<double>(p.moved) / static_cast<double>(processors),
                 beside = p.limbs ? rate_of_limbs : rate;
    const double late = std::max(0.0, unit - seen) / (unit + all / beside);
    const int64_t terms =
        ceil_div(static_cast<int64_t>(static_cast<double>(p.k) * (1 - late)), lot) * lot;
    double best = 0;
    const auto take = [&](double part, int64_t rows, int64_t columns, int64_t of_k) {
        if (part * all / before <= std::max(best, least)) return;
        best = part * all / before;
        choice.first_rows = rows, choice.first_columns = columns, choice.first_terms = of_k;
    };
    if (terms < p.k) take(1 - static_cast<double>(terms) / static_cast<double>(p.k), 0, 0, terms);
    const double share = p.reads == Reads::copied
                             ? static_cast<double>(size) / static_cast<double>(p.m + p.n)
                         : down ? 0
                                : 1;  // of what is copied
    for (int64_t first = (size - 1) / step * step; first > 0; first -= step) {
        const double part = share * static_cast<double>(size - first) / static_cast<double>(size);
        const auto turns = static_cast<double>(first / step * blocks / at_once);
        if (part * all / beside + seen > turns * unit) break;
        take(part, down ? first : 0, down ? 0 : first, 0);
    }
}

/// Every tiling and cut of k, the fastest by a model of waves first: parts of k fill the device,
/// joining them costs their bytes.
void add_choices(const Tiling& t, const Problem& p, const Limits& limits,
                 std::vector<Choice>& choices) {
    constexpr int64_t most_bytes = 64 << 20;
    constexpr double arrival = 3000, join_bytes = 32;  // cycles; bytes a cycle and processor
    // Where blocks take turns: for the turns, and of parts that the cache holds or does not hold.
    // Four warps take long to add: by tiles of 64x128 64x4096x4096 NT took an H200 21.7 us in eight
    // parts, 12.9 in one, 1024x1024x4096 TN 43.6 in four, 14.7 in one.
    constexpr double queue = 6000, turn = 2000, turn_of_wide = 7500, moved = 30, moved_far = 10;
    constexpr double between_cuts = 120;  // of a block that takes one after the other
    // Where operands are copied first: for the wait, and bytes read and written.
    constexpr double rounding = 4000, rounded = 24, rounded_far = 16;
    constexpr double words = 500;  // of A through registers, before the first products
    // Of chains where few rows or columns read an operand so large that nothing of it lies near:
    // cycles of a k of tiles that ask for it one short step ahead. conv2d of (8, 32, 32, 32) by 32
    // kernels of 3x3 takes an H100 20.0 us by tiles of 32x32, 18.6 by near.cuh.
    constexpr double far = 16;
    constexpr int64_t far_rows = 32, far_bytes = 4 << 20;
    const int64_t processors = std::max(limits.processors, 1), grains = ceil_div(p.k, p.grain);
    if (t.own && grains > 1) return;  // whose sums so far would take the other's registers
    if (t.writers && (grains > 1 || !p.hands_over)) return;
    const int64_t high = std::max(t.pair, 1), group = high * t.wide;
    if (group > processors) return;  // all blocks of a cluster run at once
    const int64_t tiles =
        p.batches * ceil_div(p.m, t.m * high) * ceil_div(p.n, t.n * t.wide) * group;
    if (t.whole && 2 * tiles <= processors) return;
    const int64_t result = t.m * t.n * p.size;
    const auto useless =
        static_cast<double>(p.m <= t.m ? high : 1);  // blocks of no rows beside one
    const double start = start_of(t, p), each = share_of(t, p) * useless,
                 alone = t.pair && t.resident == 1 ? each : t.alone;
    const int64_t at_once = clustered_processors(limits, group);
    const bool passes = t.k == 8 && std::min(p.m, p.n) <= far_rows &&
                        p.batches * std::max(p.m, p.n) * p.k * p.size >= far_bytes;
    const int64_t most = t.whole ? 1 : p.tensor ? grains : std::min<int64_t>(grains, 64);
    const auto more = [&](int64_t wanted) {  // twice as many parts, then one a cut
        return std::max(std::min(p.tensor ? grains : 2 * wanted, grains), wanted + 1);
    };
    for (int64_t wanted = 1, last = 0; wanted <= most; wanted = more(wanted)) {
        const int64_t run = ceil_div(grains, wanted), parts = ceil_div(grains, run);
        if (parts == std::exchange(last, parts)) continue;
        Choice choice{&t, tiles, parts};
        choice.reads = p.reads;
        choice.words = p.words;
        const int64_t units = tiles * parts, room = processors * t.resident;
        // The sum of the cuts so far, in memory.
        const bool kept = p.tensor && parts == 1 && grains > 1 && !t.holds(grains, p.words);
        // How many clusters of more than two a device runs at once differs: each has one tile.
        choice.blocks = t.pair && group <= 2
                            ? std::min(units, std::max(room / group, int64_t{1}) * group)
                        : kept ? std::min(units, room)
                               : units;
        choice.slots = kept ? choice.blocks : parts > 1 ? tiles * (p.tensor ? parts : grains) : 0;
        const auto depth = static_cast<double>(std::min(run * p.grain, p.k));
        const double seams = t.pair && parts == 1 && !(t.holds(grains, p.words) && t.alternates())
                                 ? static_cast<double>(grains - 1) * between_cuts
                                 : 0;
        const bool copies = t.pair && p.moved > 0;
        constexpr double narrowing = 5;
        const double rate = t.pair ? rate_of(t, p) : p.narrows ? narrowing : 1;
        // What follows issues an instruction a cycle on each quarter of a processor, of one warp
        // alone on it three in four. Of warpgroups with tiles of their own the longer half counts.
        constexpr double lanes = 128, lone = 4.0 / 3;
        const double leave = static_cast<double>(t.m * t.n) * p.after / lanes;
        const auto of = [&](double share) {
            const double steps = depth * share * rate + seams;
            if (t.writers) return std::max(steps + start, 2 * leave);
            if (t.own && p.after > 0) return std::max(steps, (steps + start + leave * lone) / 2);
            return steps + start + leave;
        };
        if (parts > 1 &&
            (choice.slots * result > most_bytes || group > 1 || (t.pair && t.n % 64 != 0)))
            break;
        const bool queued = parts > 1 && t.pair;
        if (p.tensor)
            choice.cycles =
                std::max(static_cast<double>(ceil_div(units, at_once)) * of(each),
                         static_cast<double>(ceil_div(units, at_once * t.resident)) * of(alone));
        else
            choice.cycles = in_waves(units, processors, t.resident, of(t.share),
                                     of(t.alone + (passes && parts == 1 ? far : 0)), parts > 1);
        if (t.own || t.writers) choice.cycles += start + leave * lone;  // of the last one
        if (queued) {
            const int64_t warps = t.m / 16, pieces = warps * (t.n / 64);
            choice.round = std::min(tiles, std::max(choice.blocks / parts, int64_t{1}));
            const int64_t share = ceil_div(pieces * choice.round, choice.blocks);
            choice.adders = ceil_div(pieces, std::clamp<int64_t>(share, 1, warps));
            if (t.m == 64)
                choice.cycles += (t.n > 64 ? turn_of_wide : turn) *
                                 static_cast<double>(ceil_div(units, processors));
            choice.cycles += queue + static_cast<double>(ceil_div(units, processors) * result +
                                                         ceil_div(units * result, processors)) /
                                         (units * result > kCachedBytes ? moved_far : moved);
        } else if (parts > 1)
            choice.cycles += arrival + static_cast<double>(ceil_div(tiles, processors) *
                                                           (choice.slots / tiles) * result) /
                                           join_bytes;
        if (copies) {
            // Few warps have less on its way, and of two blocks each begins by itself.
            constexpr int most_threads = 384;
            constexpr double few = 18, again = 1000;
            const bool few_warps = p.narrows && t.threads * t.resident < most_threads;
            choice.cycles +=
                rounding + (p.narrows ? again * (t.resident - 1) : 0) +
                static_cast<double>(p.moved / processors) / (p.moved > kCachedBytes ? rounded_far
                                                             : few_warps            ? few
                                                                                    : rounded);
            choice.blocks = std::max(room / group, int64_t{1}) * group;  // all of them copy
            copy_beside(t, p, of(each), at_once, processors, grains > 1 && t.holds(grains, p.words),
                        choice);
        }
        if (p.words) choice.cycles += words;
        if (kept)
            choice.cycles +=
                static_cast<double>(ceil_div(tiles, processors) * (grains - 1) * 2 * result) /
                join_bytes;
        choices.push_back(choice);
        // A cluster of two shares what joining takes, where few blocks would do it while others are
        // done, of 128x128 more than its bytes. (64x4096x4096 took an H100 61.0 us by
        // 64x128_8, 58.2 so; 512x512x4096 60.3 and 57.8; by clusters of eight 73; 128x4096x4096 NT
        // an H200 116.7 by 128x128_8, 105.0 so, 114.2 by 64x128_4.)
        constexpr double large = 128 * 128;
        const double meeting = t.m * t.n < large ? 3000 : -12000;
        constexpr int64_t most_tiles = 33;
        if (!p.pairs || parts == 1 || parts % 2 || t.part_m * t.part_n % 32 || tiles > most_tiles ||
            processors < 2)
            continue;
        choice.cluster = 2;
        choice.cycles += meeting - static_cast<double>(grains * result) / (2 * join_bytes);
        choices.push_back(choice);
    }
}

/// When the last of the blocks of wgmma_runs.cuh is done, in cuts, of lines of `cuts` each of which
/// blocks take `run` together: each takes the first cuts of its last line first and hands their sum
/// on; behind the first cut of a line that another began it waits for that one's.
static double end_of_runs(int64_t units, int64_t cuts, int64_t run, double handing) {
    double latest = 0, given = 0;  // given: when the block before has handed its sum on
    for (int64_t begin = 0; begin < units; begin += run) {
        double now = 0, gives = 0;
        for (int64_t end = std::min(begin + run, units); end > begin;) {
            const int64_t line = (end - 1) / cuts * cuts, from = std::max(begin, line);
            now += 1;
            if (from > line) now = std::max(now, given) + handing;
            now += static_cast<double>(end - from - 1);
            if (end < line + cuts) gives = now += handing;
            end = from;
        }
        given = gives;
        latest = std::max(latest, now);
    }
    return latest;
}

void add_runs(const Tiling& t, const Problem& p, const Limits& limits,
              std::vector<Choice>& choices) {
    // Bytes a cycle of sums handed on, and cycles until they are there; cycles between cuts. Steps
    // take longer than those of whole tiles, which leave processors, and power, unused.
    constexpr double handed = 80, arrival = 500, between_cuts = 200, longer = 1.13;
    constexpr int64_t least_terms = 4096;  // of fewer, sums are handed on for too few steps
    const int64_t cuts = ceil_div(p.k, p.grain), processors = std::max(limits.processors, 1);
    if (p.k < least_terms || t.pair != 1 || t.wide > 1 || t.n < 128 || t.n % 64 != 0 || t.own ||
        t.writers || cuts == 1 || !t.holds(cuts, false))
        return;
    const int64_t rows = ceil_div(p.m, t.m), columns = ceil_div(p.n, t.n),
                  across = std::min(rows, columns), lines = p.batches * std::max(rows, columns),
                  groups = processors / across;
    if (groups < 2) return;
    Choice choice{&t, lines * across};
    const auto result = static_cast<double>(t.m * t.n);
    const double cut = static_cast<double>(p.grain) * t.share * longer + between_cuts,
                 handing = (result * static_cast<double>(p.size) / handed + arrival) / cut;
    // Longer runs than fill the device hand a tile on less often.
    auto end = static_cast<double>(ceil_div(choice.tiles, processors) * cuts);
    for (int64_t least = ceil_div(lines * cuts, groups), run = least; run == least || run < cuts;
         run++) {
        const double now = end_of_runs(lines * cuts, cuts, run, handing);
        if (now < end) choice.run = run;
        end = std::min(end, now);
    }
    if (choice.run == 0) return;
    choice.blocks = choice.slots = ceil_div(lines * cuts, choice.run) * across;
    choice.cycles = end * cut + t.start + result * p.after / 128;
    choices.push_back(choice);
}

void add_clusters(const Tiling& t, const Problem& p, const Limits& limits,
                  std::vector<Choice>& choices) {
    // What blocks lie close enough to be a cluster; cycles until sums are there, and all of them.
    constexpr int64_t neighbours = 16, most_blocks = 8, most_cuts = 3;
    constexpr double handing = 700, handed = 2500;
    const int64_t cuts = ceil_div(p.k, p.grain), processors = std::max(limits.processors, 1),
                  tiles = p.batches * ceil_div(p.m, t.m) * ceil_div(p.n, t.n);
    if (t.pair != 1 || t.wide > 1 || t.m != 128 || t.n != 128 || t.own || t.writers ||
        p.grain % t.k != 0)
        return;
    for (int64_t blocks = std::min(cuts, most_blocks); blocks > 1; blocks--) {
        const int64_t room = std::max<int64_t>(processors / neighbours, 1) *
                             (std::min(processors, neighbours) / blocks);
        if (tiles > room || ceil_div(cuts, blocks) > most_cuts) continue;
        Choice choice{&t, tiles};
        choice.cluster = blocks;
        choice.blocks = tiles * blocks;
        double end = 0;  // of the block before
        for (int64_t rank = 0; rank < blocks; rank++) {
            const int64_t from = rank * cuts / blocks * p.grain,
                          to = std::min((rank + 1) * cuts / blocks * p.grain, p.k);
            end = std::max(static_cast<double>(to - from) * t.share, rank ? end + handing : 0);
        }
        // Taken by name alone: of 768x768x4096 and 768x768x8192 TN an H200 took 13.0 and 22.0 us by
        // three, 12.1 and 22.1 by 64x96; of 1024x1024x4096 16.2 by two, 14.7 by 64x128.
        constexpr double behind = 1e9;
        choice.cycles =
            behind + end + handed + t.start + static_cast<double>(t.m * t.n) * p.after / 128;
        choices.push_back(choice);
        return;
    }
}

// Bytes of shared memory that blocks of near.cuh fill at most, and that one is given where it is
// alone: others begin beside it, of its launch or of another. (With 168 KB for 112 of tiles of
// 16x32 by eight groups the step of 256-256-256-10 with 1,024 rows took an H200 50.4 us for 46.3,
// that of 784-512-512-10 with 128, whose blocks are a processor's only ones, 35.3 for 35.2.)
static constexpr int64_t kNearRoom = 224 << 10, kNearAlone = 112 << 10;

void add_pairs(const Problem& p, const Limits& limits, std::vector<Choice>& choices) {
    constexpr double joining = 2000;  // cycles
    constexpr int64_t resident = 2;
    const Tiling& t = kPairTile;
    const int64_t processors = std::max(limits.processors, 1);
    Choice choice{&t, p.batches * ceil_div(p.m, t.m) * ceil_div(p.n, t.n)};
    if (ceil_div(p.k, p.grain) != 2 || 2 * choice.tiles <= processors) return;
    choice.blocks = choice.tiles;
    choice.pairs = true;
    const int64_t each = ceil_div(choice.tiles, processors);
    const auto together = static_cast<double>(2 * std::min(each, resident));
    choice.cycles =
        static_cast<double>(ceil_div(each, resident)) *
        (joining + static_cast<double>(p.grain) * std::max(t.alone, t.share * together));
    choices.push_back(choice);
}

/// Bytes of the sums of a block's groups that do not lie where operands were.
static int64_t near_sums(const Tiling& t, int64_t groups, int64_t chunks) {
    return groups > 1 && groups < chunks ? 4 * chunks * t.m * t.n : 0;
}

int chain_stages(const Tiling& t, int64_t groups, int64_t chunks, int64_t depth) {
    if (groups == 1) return t.stages;
    const auto lines = [&](int64_t side) {
        return std::max(side * (t.k + 4), t.k * (side + 4));  // of k, or across it
    };
    constexpr int64_t few = 2;
    const int64_t beside = std::max<int64_t>(t.resident / groups, 1),
                  least = beside > 1 ? t.stages : few,
                  stages = groups * 4 * (lines(t.m) + lines(t.n)),
                  sums = near_sums(t, groups, chunks);
    const int64_t most = (kNearRoom - sums) / stages,
                  wanted = std::max<int64_t>(
                      (std::min(kNearRoom / beside, kNearAlone) - sums) / stages, least);
    return static_cast<int>(std::min({wanted, most, ceil_div(depth, t.k)}));
}

int64_t chain_room(const Tiling& t, int64_t groups, int64_t chunks, int stages, int64_t stage) {
    return groups * stages * stage + near_sums(t, groups, chunks);
}

/// Tiles of near.cuh, with as many groups as take a chunk of k each, or fewer.
void add_near(const Problem& p, const Limits& limits, std::vector<Choice>& choices) {
    constexpr int64_t most_chunks = 16;  // whose sums lie in shared memory
    constexpr double start = 300;        // cycles before the first operands are there
    constexpr double lone = 45;          // of a k of a warp that has a quarter of a processor
    const int64_t processors = std::max(limits.processors, 1), chunks = ceil_div(p.k, p.grain);
    for (const Tiling& t : kNear)
        for (int groups = 1; groups <= std::min<int64_t>(2 * chunks - 1, 8); groups *= 2) {
            if (groups > 1 && (chunks > most_chunks || groups * t.threads > kGroupThreads))
                continue;
            const int64_t terms = std::min(p.k, ceil_div(chunks, groups) * p.grain);
            if (chain_stages(t, groups, chunks, terms) < 2) continue;
            Choice choice{&t, p.batches * ceil_div(p.m, t.m) * ceil_div(p.n, t.n)};
            choice.blocks = choice.tiles;
            choice.groups = groups;
            const int64_t resident = std::max(t.resident / groups, 1),
                          each = ceil_div(choice.tiles, processors);
            if (t.part_m == 8 && groups == 1) continue;
            const auto depth = static_cast<double>(terms);
            const auto beside = static_cast<double>(std::min(each, resident));
            choice.cycles = static_cast<double>(ceil_div(each, resident)) *
                            (start + depth * std::max(t.alone + t.share * groups * beside,
                                                      t.part_m == 4 && t.threads == 32 ? lone : 0));
            // Of 8x4 results of a thread, whose warps need all of a quarter's registers: where
            // blocks are more than processors, by name alone.
            if (t.part_m == 8 && each > 1) choice.cycles *= 1000;
            choices.push_back(choice);
        }
}

/// Stages of near_mma.cuh's rings that shared memory has room for, beside sums of cuts where those
/// do not lie where a ring was.
int near_stages(const Tiling& t, int64_t groups, int64_t cuts, int64_t depth, int64_t element) {
    constexpr int64_t room = 224 << 10, few = 4;
    const int64_t stage = element * (t.m + t.n) * (t.k + 8),
                  sums = groups > 1 && groups < cuts ? 4 * cuts * t.m * (t.n + 8) : 0;
    const int64_t all = ceil_div(depth, t.k),
                  wanted = all <= t.stages ? std::max(all, few) : std::min<int64_t>(t.stages, few);
    return static_cast<int>(std::min(wanted, (room - sums) / (groups * stage)));
}

constexpr int64_t kBoxRoom = 224 << 10;

int64_t box_room(const Tiling& t, int64_t k, int64_t cut, int64_t element) {
    constexpr int64_t line = 128, barrier = 8;
    const int64_t terms = line / element, before = (k - 1) / cut;
    const int64_t of_cut = ceil_div(std::min(cut, k), terms);
    const int64_t boxes = before * of_cut + ceil_div(k - before * cut, terms);
    return boxes * (t.m + t.n) * line + (before + 1) * of_cut * barrier;  // a whole cut's each
}

/// Cycles of blocks of near_boxes.cuh that read `bytes` each, whose warps take `depth` of k: what
/// all read together takes longest, or what one does, or a warp's products. (On an H100 128x512x784
/// took 2.24 us by tiles of 32x32, 2.50 by 16x32, 2.66 by 16x16; 128x1024x1024 3.40, 4.22 and 6.28;
/// 256x1024x1024 6.53 by 32x32; 128x256x256, of one cut, 2.82, 2.13 and 1.84.) Of tf32 a term takes
/// twice as many products, more where B lies across k, and blocks that fill a processor leave the
/// next launch no room: the step of 784-512-512-10 with 128 rows took an H200 24.4 us by 16x32,
/// 23.3 by 32x32 for the second layer alone, 24.9 for the first alone, 25.0 for the gradient alone.
static double box_cycles(const Tiling& t, const Problem& p, int64_t tiles, int64_t shared,
                         int64_t processors, double bytes, double depth) {
    constexpr double again = 1100, pace = 32, pace_of_one = 70, across = 1.3, alone = 1600;
    const bool narrow = p.element == 2;
    const double start = narrow ? 1900 : 1200, rate = (narrow ? 1 : 2) * (p.across ? across : 1);
    const int64_t beside = kBoxRoom / shared,
                  rounds = ceil_div(ceil_div(tiles, processors), std::max<int64_t>(beside, 1));
    const double all = static_cast<double>(tiles) * bytes / static_cast<double>(processors) / pace,
                 products = depth * (2 + rate * static_cast<double>(t.m * t.n) / 120);
    return start + static_cast<double>(rounds - 1) * again +
           (!narrow && 4 * shared > 3 * kBoxRoom ? alone : 0) +
           std::max({all, bytes / pace_of_one, products});
}

/// The same on tensor cores, each tile with as many groups as take a run of cuts each. Copies from
/// the second cache take longest: `pace` bytes a cycle of a processor. What a ring does not hold at
/// once is waited for. `issue`: cycles of a thread that asks for 16 bytes.
void add_near_mma(const Problem& p, const Limits& limits, std::vector<Choice>& choices) {
    constexpr int64_t most_cuts = 8;
    constexpr double start = 1000, pace = 30, refill = 15, follow = 64, issue = 40;
    const int64_t processors = std::max(limits.processors, 1), cuts = ceil_div(p.k, p.grain);
    const int64_t most_threads = p.m * p.n * p.k >= kRolesWork ? 1024 : kGroupThreads;
    for (const Tiling& t : kNearMma)
        for (int64_t run = 1, last = 0; run <= cuts; run++) {
            const int64_t groups = ceil_div(cuts, run);
            if (groups == std::exchange(last, groups)) continue;
            const int64_t terms = std::min(p.k, run * p.grain);
            const int stages = near_stages(t, groups, cuts, terms, p.element);
            if (cuts > most_cuts || groups * t.threads > most_threads || stages < 2) continue;
            Choice choice{&t, p.batches * ceil_div(p.m, t.m) * ceil_div(p.n, t.n)};
            choice.blocks = choice.tiles;
            choice.groups = static_cast<int>(groups);
            const auto each = static_cast<double>(ceil_div(choice.tiles, processors));
            const auto depth = static_cast<double>(terms),
                       bytes = static_cast<double>((t.m + t.n) * p.k * p.element),
                       copies = bytes / static_cast<double>(16 * t.threads * groups);
            // What follows waits for its operands, two neighbours at a time.
            const double leave = each * static_cast<double>(t.m * t.n) * p.after / follow;
            choice.cycles =
                start + each * std::max(bytes / pace, issue * copies) + leave +
                depth * std::max(t.alone, t.share * each * static_cast<double>(groups)) +
                std::max(0.0, depth - static_cast<double>(stages * t.k)) * refill;
            choices.push_back(choice);
            const int64_t shared = box_room(t, p.k, p.grain, p.element);
            if (!p.boxes || (p.across && t.n % 32 != 0) || groups < cuts || t.threads > 32 ||
                shared > kBoxRoom)
                continue;
            choice.boxes = true;
            choice.shares = p.element == 4;
            choice.cycles =
                box_cycles(t, p, choice.tiles, shared, processors, bytes, depth) + leave;
            choices.push_back(choice);
        }
}

void rank_near(const Problem& p, std::vector<Choice>& choices) {
    constexpr int64_t least_results = 1 << 18, least_rows = 17;
    constexpr double slower = 1.5;  // at most, for a place in a group
    const auto in_place = [](const Choice& choice) {
        return choice.tiling->pair &&
               (choice.reads == Reads::lying || choice.reads == Reads::turned);
    };
    const bool tf32 = p.rate > 1, few = p.m * p.n < least_results;
    if (!tf32 && (p.element > 2 || std::min(p.m, p.n) < least_rows)) return;
    double roles = 0, near = 0;  // the least of each
    for (const Choice& choice : choices)
        if (double& least = choice.groups ? near : roles;
            (choice.groups && (tf32 || !choice.boxes)) || in_place(choice))
            least = least > 0 ? std::min(least, choice.cycles) : choice.cycles;
    if (roles == 0 || near == 0) return;
    if (tf32 && few && (near < roles || near > slower * roles)) return;
    for (Choice& choice : choices) {
        if (!choice.groups || (choice.boxes && !tf32)) continue;
        choice.cycles =
            tf32 && few ? choice.cycles * (roles - 1) / near : std::max(choice.cycles, roles);
    }
}

std::string name_of(const Choice& choice) {
    if (choice.thin) return "thin";
    constexpr const char* reads[] = {"", "_turned", "_right", "_copies"};
    const Tiling& t = *choice.tiling;
    if (choice.groups)
        return cat("near_", t.m, "x", t.n,
                   t.part_m == 4 || (t.part_m == 16 && t.m > 16) ? cat("_t", t.part_m) : "",
                   choice.boxes ? "_boxes" : "", choice.groups > 1 ? cat("_", choice.groups) : "");
    return cat(t.pair ? "wgmma_" : "", t.m, "x", t.n,
               t.own       ? "_own"
               : t.writers ? "_writers"
                           : "",
               t.wide > 1 || t.pair > 2 ? cat("_", t.pair, "by", t.wide)
               : t.pair > 1             ? "_pair"
                                        : "",
               reads[static_cast<size_t>(choice.reads)], choice.run ? "_runs" : "",
               choice.cluster ? cat("_cluster_", choice.cluster) : "",
               choice.pairs ? "_groups_2" : "", choice.parts > 1 ? cat("_", choice.parts) : "");
}

template <size_t Count>
static void add_sizes(const Tiling (&tilings)[Count], std::vector<std::array<int, 3>>& sizes) {
    for (const Tiling& t : tilings) sizes.push_back({t.m * std::max(t.pair, 1), t.n * t.wide, t.k});
}

std::vector<std::array<int, 3>> gemm_tiles(int64_t size) {
    std::vector<std::array<int, 3>> sizes;
    if (size == 8) add_sizes(kDouble, sizes);
    if (size == 4) add_sizes(kScalar, sizes), add_sizes(kNear, sizes);
    if (size == 2) add_sizes(kTensor, sizes);
    return sizes;
}

std::vector<std::array<int, 3>> roles_tiles() {
    std::vector<std::array<int, 3>> sizes;
    add_sizes(kWgmma, sizes);
    return sizes;
}

}  // namespace aicf::cuda
