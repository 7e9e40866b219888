// A step in one block of threads: which warps run which op, and what it takes.
#include "kernels/cuda/block.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

namespace aicf::cuda {

namespace {

/// Whether the op's kernel can be one of warps that wait for no other.
bool of_warps(const LoweredOp& op) {
    if (!op.members.empty()) return false;
    const LoweredDef& kind = anchor(op);
    if (kind.gemm) return anchor_attrs(op).text("order").starts_with("chain(");
    for (const RegionStep& step : op.body)
        if (is_scalar_update(*step.def)) return false;
    const bool moves = kind.name == "concat" || kind.name == "pad";
    return moves || is_function(kind) || is_update(kind) || is_reduction(kind) || is_row_op(kind) ||
           is_random(kind) || is_small(kind);
}

/// What each slice brings and shared memory holds.
std::vector<const View*> fed_views(const LoweredOp& op, const Places& places) {
    std::vector<const View*> views;
    for (const int64_t in : op.attrs.ints("fed")) {
        const View& view = op.inputs[static_cast<size_t>(in)];
        if (places.shared.contains(view.value) && bytes_of(view)) views.push_back(&view);
    }
    return views;
}

}  // namespace

int64_t shared_bytes(const Limits& limits) {
    return limits.major >= 9 ? 227 << 10 : limits.major == 8 ? 99 << 10 : 48 << 10;
}

Limits one_block(const Limits& limits) {
    Limits own = limits;
    own.processors = 1;
    own.one_block = true;
    return own;
}

std::string by_warps(int begin, int end, int warps, const std::string& statement) {
    const std::string from = begin ? cat("warp >= ", begin, "u") : "",
                      to = end < warps ? cat("warp < ", end, "u") : "";
    const std::string both = from.empty() || to.empty() ? from + to : from + " && " + to;
    return both.empty() ? statement : cat("if (", both, ") ", statement);
}

std::vector<int64_t> blocks_of(const LoweredOp& op, const Limits& limits) {
    std::vector<int64_t> blocks;
    for (const LoweredOp& member : op.members) {
        const KernelText part = body_text(member, one_block(limits));
        blocks.push_back(std::max<int64_t>(part.blocks * part.threads / 32, 1));
    }
    return blocks;
}

Teams::Teams(const LoweredOp& op, const Times& times, const std::vector<int64_t>& blocks)
    : of(op.members.size()) {
    int64_t beside = 0;
    std::map<int, int64_t> wanted;
    for (size_t m = 0; m < of.size(); m++)
        (times.aside(m) ? beside : wanted[times.stages[m]]) += blocks[m];
    for (auto [stage, all] : wanted)
        main = std::max(main, static_cast<int>(std::min(all, kMostWarps - beside)));
    warps = main;
    for (size_t m = 0; m < of.size(); m++)
        if (times.aside(m))
            of[m] = {warps, warps + blocks[m]}, warps += static_cast<int>(blocks[m]);
    for (int stage = 0; stage < times.count; stage++) share_out(op, times, blocks, stage);
}

std::string Teams::barrier(const Times& times, int stage) const {
    int waiting = main;
    std::string more;
    for (size_t m = 0; m < of.size(); m++) {
        const int begin = times.stages[m] ? times.stages[m] : times.count;
        if (!times.aside(m) || (begin != stage && times.ends[m] != stage)) continue;
        waiting += of[m].second - of[m].first;
        more += cat(" || (warp >= ", of[m].first, "u && warp < ", of[m].second, "u)");
    }
    // With more stages than barriers in hardware, no member is aside and all wait at each;
    // where rows are carried the last barrier is one of its own, for some warps come to it
    // early.
    constexpr int kBarriers = 15;  // number 0 is __syncthreads()'s
    const bool last = carriers && stage == times.count;
    if (last) waiting += carriers, more += cat(" || warp >= ", warps, "u");
    const int number = last ? kBarriers : 1 + (stage - 1) % (kBarriers - (carriers > 0));
    return cat(waiting < warps + carriers ? cat("if (warp < ", main, "u", more, ") ") : "",
               "wait_for(", number, ", ", 32 * waiting, ");\n");
}

void Teams::share_out(const LoweredOp& op, const Times& times, const std::vector<int64_t>& blocks,
                      int stage) {
    std::vector<size_t> members;
    for (size_t m = 0; m < of.size(); m++)
        if (times.stages[m] == stage && !times.aside(m)) members.push_back(m);
    std::vector<int> given(members.size(), 1);
    const auto load = [&](size_t i) { return cost_of(op.members[members[i]]).flops / given[i]; };
    for (int left = main - static_cast<int>(members.size()); left > 0; left--) {
        size_t most = members.size();
        for (size_t i = 0; i < members.size(); i++)
            if (given[i] < blocks[members[i]] && (most == members.size() || load(i) > load(most)))
                most = i;
        if (most == members.size()) break;
        given[most]++;
    }
    int first = 0;
    for (size_t i = 0; i < members.size(); i++) {
        const int begin = first % main;
        first = begin + given[i];
        of[members[i]] = {begin, first};
    }
}

Duration::Duration(const LoweredOp& op, const Times& times, const Limits& limits) {
    constexpr double kLaunch = 1.7, kTerm = 0.008, kStage = 0.25, kRate = 60e3, kTurnRate = 200e3,
                     kRow = 0.045, kCycles = 1755;
    std::vector<double> terms(static_cast<size_t>(times.count), 0);  // by stage
    for (size_t m = 0; m < op.members.size(); m++) {
        const LoweredOp& member = op.members[m];
        const Cost cost = cost_of(member);
        if (limits.turns && anchor(member).gemm) {
            block += turn_cycles(member) / kCycles;
            double& longest = terms[static_cast<size_t>(times.stages[m])];
            longest = std::max(longest, static_cast<double>(terms_of(member)));
        } else {
            block += (cost.flops + cost.bytes) / (limits.turns ? kTurnRate : kRate);
        }
        if (is_row_op(anchor(member)))
            block += kRow * static_cast<double>(row_warps(member, one_block(limits)));
    }
    block += kStage * times.count;
    launches = kLaunch * times.count;
    for (const double longest : terms) launches += kTerm * longest;
}

std::string ahead_text(const Teams& teams, const std::vector<bool>& ahead) {
    std::string text = "    const uint32_t base = in_register(shared_address(shared));\n";
    for (size_t m = 0; m < ahead.size(); m++)
        if (ahead[m])
            text += cat("    const @_", m, "_Ahead ahead", m, " = @_", m, "_ahead(@_", m,
                        "_Block{block, 0, base}, Grid{warp - ", teams.of[m].first, "u, ",
                        teams.of[m].second - teams.of[m].first, "u, 32u, warp * 32u});\n");
    return text;
}

std::string stages_text(const LoweredOp& op, const Times& times, const Teams& teams,
                        const std::vector<bool>& ahead, const std::string& counter) {
    std::string steps;
    for (int stage = 0; stage < times.count; stage++) {
        steps += cat("        // stage ", stage, "\n");
        for (size_t m = 0; m < op.members.size(); m++) {
            if (times.stages[m] != stage) continue;
            const auto [begin, end] = teams.of[m];
            const std::string unit =
                ahead[m] ? cat("ahead", m)
                         : cat("Grid{warp - ", begin, "u, ", end - begin, "u, 32u, warp * 32u}");
            steps += "        " +
                     by_warps(begin, end, teams.warps + teams.carriers,
                              cat("{  // node ", op.members[m].node, ": ", title(op.members[m]),
                                  "\n            @_", m, "_body(@_", m, "_Block{block, ", counter,
                                  ", base}, ", unit, ");\n        }\n"));
        }
        steps += "        " + teams.barrier(times, stage + 1);
    }
    return steps;
}

uint32_t steps_at(const LoweredOp& sequence) {
    return static_cast<uint32_t>(BlockLayout(sequence).tail + 8);
}

bool block_fits(const LoweredOp& op, const Limits& limits) {
    if (!std::all_of(op.members.begin(), op.members.end(), of_warps) ||
        BlockLayout(op).bytes > static_cast<int>(kMaxGroupBytes))
        return false;
    if (op.def == block_loop_def()) return block_loop_fits(op, limits);
    const Times times(op, blocks_of(op, limits));
    if (!Places(op, times, shared_bytes(limits)).fits) return false;
    if (times.count < 2) return false;  // what does not wait shares a launch of many blocks
    const Duration takes(op, times, limits);
    return takes.block < takes.launches;
}

KernelText block_text(const LoweredOp& op, const Limits& limits) {
    const std::vector<int64_t> blocks = blocks_of(op, limits);
    const Times times(op, blocks);
    const Places places(op, times, shared_bytes(limits));
    const BlockLayout layout(op);
    const std::vector<int64_t>& fed_operands = op.attrs.ints("fed");
    KernelText text;
    const Teams teams(op, times, blocks);
    const int warps = teams.warps;
    const auto outer = [&](size_t operand) {
        const bool each = std::binary_search(fed_operands.begin(), fed_operands.end(),
                                             static_cast<int64_t>(operand));
        return cat("block.template ptr<T>(", layout.operand[operand], ") + ",
                   each ? cat("slice * ", element_count(op.inputs[operand].shape), "ll + ") : "");
    };
    const std::vector<bool> ahead_of =
        add_members(text, op, places, teams, limits, "int64_t slice", outer);
    text.name = cat("block_of_", op.members.size());
    text.threads = 32 * warps;
    text.shared = static_cast<uint32_t>(places.bytes);

    const std::string steps = stages_text(op, times, teams, ahead_of, "slice");
    Copies copies(places, warps);
    std::string in, out, ahead, next;
    for (const auto* views : {&op.inputs, &op.outputs})
        for (const View& view : *views) {
            const auto at = places.shared.find(view.value);
            if (at == places.shared.end() || bytes_of(view) == 0) continue;
            const bool input = views == &op.inputs;
            const std::string held = cat("shared + ", at->second),
                              lies = cat("block.ptr<", input ? "const " : "", "char>(",
                                         layout.operand[places.operand.at(view.value)], ")");
            (input ? in : out) +=
                input ? copies.in("    ", view, held, lies) : copies.out("    ", view, lies, held);
        }
    // The next slice of what is fed arrives beside its place while steps run on this one.
    const std::vector<const View*> fed = fed_views(op, places);
    int64_t beside = round_up(places.bytes);
    for (const View* view : fed) beside += round_up(bytes_of(*view));
    const bool room = beside <= shared_bytes(limits);
    if (room && !fed.empty()) text.shared = static_cast<uint32_t>(beside);
    beside = round_up(places.bytes);
    for (const View* view : fed) {
        const std::string held = cat("shared + ", places.shared.at(view->value)),
                          apart = cat("shared + ", beside),
                          lies = cat("block.ptr<const char>(",
                                     layout.operand[places.operand.at(view->value)],
                                     ") + (slice + 1) * ", bytes_of(*view), "ll");
        if (room) {
            ahead += copies.dense_in("            ", *view, apart, lies);
            next += copies.spread("            ", *view, held, apart);
        } else {
            next += copies.in("            ", *view, held, lies);
        }
        beside += round_up(bytes_of(*view));
    }
    if (!ahead.empty())
        ahead = cat("        if (slice + 1 < slices) {\n", ahead,
                    "        }\n        commit_copies();\n");
    if (!next.empty())
        next = cat("        if (slice + 1 < slices) {\n", next, "            finish_copies();\n",
                   "        }\n");
    text.body +=
        body_head() + cat("    extern __shared__ __align__(16) char shared[];\n"
                          "    const uint32_t warp = threadIdx.x / 32;\n",
                          ahead_text(teams, ahead_of), in,
                          "    finish_copies();\n    const int64_t steps = block.integer(",
                          steps_at(op), "), slices = block.integer(", steps_at(op) + 8,
                          ");\n#pragma unroll 1\n    for (int64_t slice = 0; slice < slices; "
                          "slice++) {\n",
                          ahead,
                          "#pragma unroll 1\n    for (int64_t step = 0; step < steps; "
                          "step++) {\n",
                          steps, "    }\n    finish_copies();\n", next, "    }\n", out, "}\n");
    return text;
}

}  // namespace aicf::cuda
