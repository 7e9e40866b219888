#include "kernels/cuda/thresholds.h"

#include "kernels/cuda/backend.h"
#include "kernels/cuda/codegen.h"

namespace aicf {

namespace {

/// The longest rows that are kept together in so many bytes.
int64_t longest_kept(int64_t size, int64_t rows, int64_t room) {
    int64_t n = room / (size * rows);
    while (cuda::kept_bytes(n, size, rows) > room) n--;
    return n;
}

}  // namespace

std::vector<CudaThreshold> cuda_thresholds() {
    using namespace cuda;
    std::vector<CudaThreshold> all;
    for (int64_t size : {2, 4, 8}) {
        const auto add = [&](const char* quantity, std::initializer_list<int64_t> values) {
            for (int64_t value : values) all.push_back({size, quantity, value});
        };
        for (const auto& [rows, columns, depth] : gemm_tiles(size)) {
            add("gemm.rows", {rows});
            add("gemm.columns", {columns});
        }
        if (size < 8) {
            add("gemm.rows", {size == 2 ? kThinRows : kThinChainRows, kThinWide});
            add("gemm.columns", {size == 2 ? kThinRows : kThinChainRows, kThinWide});
        }
        add("gemm.terms", {kTiledTerms, kShortChunk, kChainChunk, 2 * kChainChunk, kShortTerms});
        add("gemm.results", {kTiledResults, kShortResults});
        add("gemm.work", {kTiledWork});
        if (size == 4) {
            add("gemm.terms", {kNearTerms});
            add("gemm.work", {kNearWork});
        }
        if (size == 2) {
            add("gemm.work", {kRolesWork});
            for (const auto& [rows, columns, depth] : roles_tiles()) {
                add("roles.rows", {rows});
                add("roles.columns", {columns});
                add("roles.terms", {depth});
            }
        }
        add("program.elements", {kWarp, kThreads, kSmall});
        add("reduce.terms", {kTreeLanes, kTreeLeaf, kWarpLeaves * kTreeLeaf, 4 * kTreeLeaf,
                             kSplitLeaves * kTreeLeaf});
        add("reduce.results", {kRowWarps});
        add("columns.terms", {kFewTerms, kTreeLanes, kTreeLeaf, 2 * kTreeLeaf, kChainChunk});
        add("columns.width", {kColumns, 2 * kColumns, kWarp, 2 * kWarp});
        add("rows.terms", {kTreeLanes, kTreeLeaf, kWarpLeaves * kTreeLeaf, kRowWarps * kTreeLeaf});
        for (int64_t lanes = 1; lanes < kWarp; lanes *= 2)
            for (const char* what : {"rows.terms", "reduce.terms"}) add(what, {4 * lanes});
        for (const int64_t leaves : {int64_t{kHeldWarps}, kHeldLeaves})
            add("rows.terms", {leaves * kTreeLeaf});
        if (size == 2)
            add("rows.terms", {kCounterRow, kBlockLeaves * kTreeLeaf, kPairLeaves * kTreeLeaf,
                               kQuadLeaves * kTreeLeaf, kSumsLeaves * kTreeLeaf, kKeptTerms,
                               kFilledLeaves * kTreeLeaf, 2 * kKeptTurns * kKeptWarps * kTreeLeaf,
                               2 * kCopyingWarps * kTreeLeaf, kCopiedLeaves * kTreeLeaf});
        for (int64_t rows : {1, 2})
            for (const int64_t room : {kHalfShared, kKeptShared})
                if (size < 8) add("rows.terms", {longest_kept(size, rows, room)});
        add("rows.rows", {kRowWarps});
        add("take_bwd.terms", {kLookedThrough, kChainChunk, kSortTile, kSplitPositions});
        add("cumsum.terms", {kLineTerms, kScanChunk, 2 * kScanChunk});
    }
    return all;
}

}  // namespace aicf
