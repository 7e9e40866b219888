#include "kernels/cuda/row_teams.h"

#include <algorithm>

#include "core/graph/region.h"
#include "kernels/cuda/thresholds.h"

namespace aicf::cuda {

namespace {

/// The row ops, and how often their kernels read rows of elements, all operands together, where
/// they neither hold nor keep them; of norms without a mean.
constexpr std::pair<std::string_view, int64_t> kPasses[] = {
    {"softmax", 3},        {"softmax_bwd", 4},
    {"log_softmax", 3},    {"log_softmax_bwd", 3},
    {"normalize", 2},      {"normalize_bwd", 4},
    {"cross_entropy", 2},  {"cross_entropy_grad", 1},
    {"normalize_axes", 2}, {"normalize_axes_bwd", 4},
    {"normalize_mean", 2}};

int64_t passes_of(const LoweredOp& op, const RowOp& row) {
    int64_t count = 0;
    for (const auto& [name, passes] : kPasses)
        if (name == row.def->name) count = passes;
    if (row.def->name.starts_with("normalize")) return count + row.attrs->flag("center");
    if (row.def->name != "cross_entropy") return count;
    // Logits that are made here and stored are another pass, as is their gradient.
    const auto results = row.operands.begin() + row.takes;
    for (size_t k = op.inputs.size(); k < op.inputs.size() + op.outputs.size(); k++)
        if (std::find(results, row.operands.end(), static_cast<int>(k)) == row.operands.end())
            return count + 1;
    return count;
}

/// A block that streams rows keeps them where that saves it kKeptSaved readings and a processor's
/// shared memory has the room, by two blocks where it has it twice: then one moves elements while
/// the other computes.
void keep_rows(Team& team, const LoweredOp& op, const RowOp& row, int64_t rows,
               const Limits& limits) {
    if (limits.one_block || limits.most_warps < 32 || team.warps < kRowWarps) return;
    if ((limits.major != 9 && limits.major != 10) || !team.type.starts_with("StreamerOf<float"))
        return;
    int64_t count = 0;
    for (int position = 0; position < row.takes; position++) count += row.elements(position);
    if (passes_of(op, row) - count < kKeptSaved) return;
    const int64_t bytes = kept_bytes(row.n, dtype_size(row.x->dtype), count);
    if (bytes > kKeptShared) return;
    team.kept = bytes;
    team.resident = rows > limits.processors && bytes <= kHalfShared ? 2 : 1;
    team.warps = static_cast<int>(32 / team.resident);
    team.type = cat("KeeperOf<float, ", row.n, ", ", team.warps, ", ", cuda_type(row.x->dtype),
                    ", ", count, ">");
}

}  // namespace

bool is_row_op(const LoweredDef& def) {
    return std::any_of(std::begin(kPasses), std::end(kPasses),
                       [&](const auto& passes) { return passes.first == def.name; });
}

bool losses_alone(const LoweredOp& op, const RowOp& row, const Limits& limits) {
    return limits.major >= 8 && row.def->name == "cross_entropy" && !loss_region(op) &&
           passes_of(op, row) == 2 && row.axes == 1 &&
           row.operands[0] < static_cast<int>(op.inputs.size()) && is_16_bit(row.x->dtype) &&
           row.x->strides[row.axis] == 1;
}

RowOp row_op_of(const LoweredOp& op) {
    RowOp row{op.def, &op.attrs, {}};
    if (op.body.empty()) {
        row.takes = static_cast<int>(op.inputs.size());
        for (size_t k = 0; k < op.inputs.size() + op.outputs.size(); k++)
            row.operands.push_back(static_cast<int>(k));
    } else {
        row.at = loss_region(op) ? loss_step(op) : anchor_step(op);
        const RegionStep& step = op.body[row.at];
        row.def = step.def;
        row.attrs = &step.attrs;
        row.takes = static_cast<int>(step.inputs.size());
        row.operands = step.inputs;
        row.operands.insert(row.operands.end(), step.outputs.begin(), step.outputs.end());
    }
    row.x = &op.operand(row.operands[static_cast<size_t>(row.def->rows[0])]);
    row.axis = row_axis(*row.attrs, row.x->shape.rank());
    row.axes = row.attrs->find("row_axes") ? static_cast<int>(row.attrs->integer("row_axes")) : 1;
    row.n = 1;
    row.others = row.x->shape;
    for (int axis = row.axis; axis >= row.first(); axis--) {
        row.n *= row.x->shape[axis];
        row.others.erase(axis);
    }
    return row;
}

std::vector<int> row_reads(const LoweredOp& op, const RowOp& row, int position) {
    const int number = row.operands[static_cast<size_t>(position)];
    const std::vector<size_t> steps = steps_for(op, 0, row.at, {number});
    return steps.empty() ? std::vector<int>{number} : inputs_of(op, steps);
}

Team row_team(const LoweredOp& op, const RowOp& row, const Limits& limits) {
    const int64_t rows = element_count(row.others);
    bool narrow = false, wide = false;  // some elements side by side have 16 bits, some have more
    for (const auto* views : {&op.inputs, &op.outputs})
        for (const View& view : *views) {
            if (view.shape.rank() != row.x->shape.rank()) continue;
            narrow =
                narrow || (is_16_bit(view.dtype) && row.axes == 1 && view.strides[row.axis] == 1);
            wide = wide || (!is_16_bit(view.dtype) && view.strides[row.axis] != 0);
        }
    Team team = team_of(wide_type(row.x->dtype), row.n, rows, limits, narrow);
    // Two pieces of a short row to a lane, where rows are enough for half as many lanes: it
    // exchanges less to join them.
    Team half = team;
    half.lanes /= 2;
    if (team.side == 8 && row.n > 4 * team.side && row.n <= kTreeLanes &&
        half.units(rows) > kSoonWarps * limits.processors) {
        // Four to a lane for losses alone, where no lane then has fewer.
        if (row.n > 12 * half.lanes && losses_alone(op, row, limits)) half.lanes /= 2;
        half.type = cat("HolderOf<", wide_type(row.x->dtype), ", ", row.n, ", ", half.lanes,
                        ", 1, false, 8>");
        team = half;
    }
    // A leaf to half a warp of a block, so that a lane has 16 bytes; of softmax and gradients it is
    // no faster.
    const std::string_view name = row.def->name;
    const bool halves = name == "normalize" || name == "normalize_mean" || name == "cross_entropy";
    if (halves && narrow && !wide && team.side == 4 && row.n % 8 == 0 && team.warps > 1 &&
        2 * team.warps <= ceil_div(row.n, kTreeLeaf)) {
        team.side = 8;
        team.type = cat("HolderOf<", wide_type(row.x->dtype), ", ", row.n, ", 16, ", team.warps,
                        ", false, 8>");
    }
    keep_rows(team, op, row, rows, limits);
    return team;
}

Team copying_team(const RowOp& row, int side, int64_t beside, bool tells, const Limits& limits) {
    const int64_t leaves = ceil_div(row.n, kTreeLeaf);
    Team team;
    if (limits.one_block || limits.most_warps < 32 || (limits.major != 9 && limits.major != 10) ||
        limits.processors < 2 || leaves <= kHeldLeaves || leaves > kCopiedLeaves)
        return team;
    team.side = side;
    team.lanes = static_cast<int>(kTreeLanes / side);
    // A warp has two leaves, of which a lane has 32 elements.
    team.blocks = 2;
    const int64_t warps = ceil_div(leaves, 2 * team.blocks), threads = 32 * warps;
    team.warps = static_cast<int>(warps * team.blocks);
    team.resident = static_cast<int>(std::max<int64_t>(1, kCopyingWarps / warps));
    const int64_t slot = 64 * threads, most = std::min(kKeptShared, kShared / team.resident - 1024),
                  numbers = 4 * 2 * team.warps + 8;  // bytes of what leaves come to, a barrier
    int64_t each = 32 / side * beside, head = 0;     // of a thread's pieces
    const auto fill = [&](int64_t slots, int64_t bytes) {
        team.slots = static_cast<int>(slots);
        head = ceil_div(bytes, 128) * 128;
        team.kept = head + slots * slot + each * threads;
        return team.kept <= most;
    };
    team.tells = tells && team.resident == 1 && warps <= kToldWarps &&
                 fill(kToldRows, 4 * numbers + 64 + 8 * kToldRows * warps);
    if (!team.tells && !fill(kCopiedRows, 2 * numbers)) {
        each = 0;
        fill(kCopiedRows, 2 * numbers);
    }
    team.results = head / 4;
    team.type = cat(team.tells ? "TellerOf<float, " : "CopierOf<float, ", row.n, ", ", team.lanes,
                    ", ", team.warps, ", ", side, ", ", cuda_type(row.x->dtype), ", ", team.slots,
                    ", ", team.blocks, ", ", each, ">");
    return team;
}

KeptTeam kept_team(const LoweredOp& op, const RowOp& row, const Limits& limits) {
    // Of softmax in float16 some registers would be spilled.
    const bool softmax =
        op.body.empty() && op.def->name == "softmax" && op.inputs[0].dtype == DType::bf16;
    if ((!softmax && !loss_region(op)) || limits.one_block || limits.most_warps < 32) return {};
    if ((limits.major != 9 && limits.major != 10) || limits.processors < 2 || row.axes > 1)
        return {};
    if (row.at > 1 || (row.at == 1 && op.body[0].def->name != "cast")) return {};
    const View &x = op.inputs[static_cast<size_t>(row_reads(op, row, 0)[0])],
               &gradient = softmax ? op.outputs[0] : op.operand(op.body.back().outputs[0]);
    const int64_t leaves = ceil_div(row.n, kTreeLeaf);
    if (!is_16_bit(x.dtype) || x.strides[row.axis] != 1 || gradient.strides[row.axis] != 1 ||
        row.n % 4 != 0 || leaves <= kHeldLeaves || row.n > kKeptTerms)
        return {};
    for (const View& view : op.inputs)  // which functions of the gradient read side by side
        if (view.shape == x.shape && view.strides[row.axis] != 0 && view.strides[row.axis] != 1)
            return {};
    // Two blocks of a processor are at different rows, so that one computes while another waits.
    KeptTeam team;
    team.blocks = team.resident = leaves <= 2 * kKeptTurns * kKeptWarps ? 2 : 1;
    team.warps = team.blocks == 2 ? kKeptWarps : ceil_div(leaves, kKeptTurns);
    const int64_t each = team.warps * team.blocks, turns = ceil_div(leaves, each),
                  most = (turns - 1) * team.warps +
                         std::min(team.warps, leaves - (turns - 1) * each);  // of a block
    team.bytes = 4 * (most * kTreeLeaf + 2 * each * ((turns + 2) / 2 * 2 + 1)) + 32;
    team.type = cat("KeptTeam<", team.warps, ", ", team.blocks, ", ",
                    x.dtype == DType::bf16 ? "true>, " : "false>, ");
    return team;
}

FilledTeam filled_team(const RowOp& row, int64_t rows, const Limits& limits) {
    if (limits.one_block || limits.most_warps < 32 || (limits.major != 9 && limits.major != 10))
        return {};
    const int64_t leaves = ceil_div(row.n, kTreeLeaf);
    if (leaves <= kHeldLeaves || leaves > 128) return {};
    FilledTeam team;
    team.bytes = 4 * row.n + 16 * leaves + 16;
    if (team.bytes > kKeptShared) return {};
    team.resident = rows > limits.processors && team.bytes <= kHalfShared ? 2 : 1;
    team.warps = ceil_div(leaves, ceil_div(leaves, 32 / team.resident));
    return team;
}

FilledTeam filled_losses(const RowOp& row, int64_t rows, const Limits& limits) {
    if (limits.one_block || limits.most_warps < 32 || (limits.major != 9 && limits.major != 10))
        return {};
    const int64_t leaves = ceil_div(row.n, kTreeLeaf);
    if (row.n < kFilledLeaves * kTreeLeaf || leaves > 128 || row.n % 8 != 0) return {};
    // Of those that fill a processor, better by several blocks, the one of which a scheduler has
    // least to do: leaves, of which it gets four at a time or one.
    FilledTeam best;
    double least = 0;
    // Of short rows two or three warps have four leaves each where four warps would not.
    for (int64_t warps = row.n < kFilledQuads * kTreeLeaf ? 2 : 4; warps <= 32;
         warps += warps < 4 ? 1 : 4) {
        FilledTeam team;
        team.warps = warps;
        team.bytes = 2 * row.n + 8 * (leaves + warps + 4);
        if (team.bytes > kKeptShared) return {};
        const int64_t room = (kKeptShared + 1024) / (team.bytes + 1024);
        team.resident =
            static_cast<int>(std::min({32 / warps, room, ceil_div(rows, limits.processors)}));
        if (team.resident * warps < kFilledWarps) continue;
        const int64_t lots = row.n / (4 * kTreeLeaf * warps), rest = leaves - 4 * lots * warps;
        const double alone = team.resident == 1 ? 1.2 : 1.0,
                     takes = alone * (static_cast<double>(lots * warps) +
                                      1.15 * static_cast<double>(ceil_div(rest, 4)));
        if (best.warps == 0 || takes < least) best = team, least = takes;
    }
    const int64_t blocks = best.resident * limits.processors;
    if (leaves <= kHeldLeaves && rows < kAheadRows * blocks) return {};
    return best;
}

bool spreads_rows(const LoweredOp& op, const Limits& limits) {
    // Blocks that stream few rows leave processors idle, which a copy has all to itself.
    const RowOp row = row_op_of(op);
    const Team team = row_team(op, row, limits);
    return team.side > 0 || team.kept > 0 || element_count(row.others) >= limits.processors;
}

int64_t row_warps(const LoweredOp& op, const Limits& limits) {
    const RowOp row = row_op_of(op);
    return row_team(op, row, limits).units(element_count(row.others));
}

}  // namespace aicf::cuda
