#include "kernels/cpu/thresholds.h"

#include "kernels/cpu/backend.h"

namespace aicf::cpu {

namespace {

/// Those of one instruction set, for elements of `size` bytes.
void list(std::vector<Threshold>& all, const char* set, const Widths& widths, int64_t size) {
    const auto add = [&](const char* quantity, std::initializer_list<int64_t> values) {
        for (int64_t value : values) all.push_back({set, size, quantity, value});
    };
    const int64_t lanes = widths.vector / size, square = widths.square / size;
    const int64_t block_a = kBlockA * 4 / size, block_b = kBlockB * 4 / size;
    add("gemm.rows", {kWideRows, kThinRows, widths.main_rows, widths.slim_rows, kCellRows,
                      kFewTiles * widths.main_rows, block_a / kPanel, 2 * block_a / kPanel});
    add("gemm.columns", {lanes / 2, lanes, 2 * lanes, kThinStrips * lanes, kWideVectors * lanes,
                         kVectorVectors * lanes, square, kDotGroups * square, kCellStep, kCellCols,
                         kPackedColumns, block_b / kPanel});
    add("gemm.terms",
        {kThin, 16 / size, 64 / size, kPanel / 2, kPanel, kPanel + kFewTerms, kShortChunk,
         kChainChunk, 2 * kChainChunk, kShortTerms, kChainChunk + kPanel + kFewTerms});
    add("gemm.strip", {kResidentBytes / size});
    add("gemm.panel", {kPackedElements});
    add("gemm.b_bytes", {kFarBytes});
    add("gemm.row_bytes", {kPageBytes});
    add("gemm.work", {kCellWork});
    add("gemm.ns", {kParallelNs});

    add("program.elements", {kPass, kBlock, kProgramUnit * kBlock});
    add("program.row", {kRepeatedBytes / size, kStreamOne, kWholeRow, kStreamBlock, kBlock,
                        kProgramUnit * kBlock});
    add("program.turned_rows", {kTileRows, 2 * kTileRows});
    add("program.turned_row", {kTileBlock, 2 * kTileBlock});
    add("program.bytes_streamed", {kStreamedBytes});
    add("program.ns", {kParallelNs});
    add("update.elements", {kBatchUnit, 2 * kBatchUnit});
    add("random.elements", {kBlock, kRandomUnit});

    add("copy.bytes", {kCopyBytes});
    add("copy.slices", {kCopySlices});
    add("copy.turned_rows", {4, size < 8 ? kTurned : kTurned / 2});
    add("copy.turned_row", {4, size < 8 ? kTurned : kTurned / 2});

    add("reduce.terms", {kTreeLanes, kShortRow, kTreeLeaf, 2 * kTreeLeaf, kTile, kGroupWork,
                         kAbreast * kFarLeaves * kTreeLeaf});
    add("reduce.results", {kBundleBytes / size / 4, kBundleBytes / size, kFewUnits});
    add("columns.terms", {kTreeLanes / 2, kTreeLanes, kTreeLeaf, 2 * kTreeLeaf, kChainChunk,
                          kManyLeaves * kTreeLeaf});
    add("columns.width", {16 / size, lanes / 2, lanes, kStrip, kJoined, kWideStrip, kMadeAtOnce / 2,
                          kWideStripBytes / size, kPageBytes / size});
    add("columns.results", {kManyStrips * kWideStrip});
    add("columns.elements", {kGroupWork});

    add("rows.terms", {kShortRow, kTreeLeaf, kRowGrain, kRowUnit, kMaxRowUnit});
    add("rows.rows", {kBundleBytes / size / 4, kBundleBytes / size});
    add("rows.elements", {kRowGrain, kRowUnits * kRowUnit, kRowUnits * kMaxRowUnit});
    add("mse.elements", {kTreeLeaf, kMseGroup});
    add("take_bwd.terms", {kChainChunk});
    add("cumsum.terms", {kScanChunk, 2 * kScanChunk});
    add("take_bwd.width", {kTreeLeaf});
    if (size == 4) {  // many megabytes, whatever an element's size; 16-bit sums are of f32
        add("program.elements_streamed", {kStreamed});
        add("reduce.streamed", {kStreamed});
        all.push_back({set, 2, "gemm.rows", kConvertRows});
        all.push_back({set, 2, "gemm.columns", kConvertCols});
    }
}

}  // namespace

std::vector<Threshold> thresholds() {
    std::vector<Threshold> all;
    for (int64_t size : {4, 8}) {
        list(all, "baseline", baseline::kWidths, size);
#if defined(__x86_64__)
        list(all, "avx2", avx2::kWidths, size);
        list(all, "avx512", avx512::kWidths, size);
#endif
    }
    return all;
}

}  // namespace aicf::cpu
