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

}  // namespace

int64_t shared_bytes(const Limits& limits) {
    return limits.major >= 9 ? 227 << 10 : limits.major == 8 ? 99 << 10 : 48 << 10;
}

int64_t clustered_processors(const Limits& limits, int64_t blocks) {
    const int64_t processors = std::max(limits.processors, 1);
    return blocks > 2 ? std::max(processors * 10 / 11, blocks) : processors;
}

Limits one_block(const Limits& limits) {
    Limits own = limits;
    own.processors = 1;
    own.one_block = true;
    return own;
}

std::string by_warps(int begin, int end, int warps, const std::string& statement) {
    if (warps == 0) return statement;
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

bool Teams::waits(const Times& times, size_t member, int stage) const {
    const int begin = times.stages[member] ? times.stages[member] : times.count;
    return begin == stage || times.ends[member] == stage;
}

std::string Teams::barrier(const Times& times, int stage) const {
    int waiting = main;
    for (size_t m = 0; m < of.size(); m++)
        if (times.aside(m) && waits(times, m, stage)) waiting += of[m].second - of[m].first;
    // With more stages than barriers in hardware, no member is aside and all wait at each;
    // where rows are carried the last barrier is one of its own, for some warps come to it
    // early.
    constexpr int kBarriers = 15;  // number 0 is __syncthreads()'s
    const bool last = carriers && stage == times.count;
    if (last) waiting += carriers;
    const int number = last ? kBarriers : 1 + (stage - 1) % (kBarriers - (carriers > 0));
    return cat(waiting > main ? "meet_at(" : "wait_for(", number, ", ", 32 * waiting, ");\n");
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
    const auto call = [&](size_t m, int warps) {
        const auto [begin, end] = teams.of[m];
        const std::string unit =
            ahead[m] ? cat("ahead", m)
                     : cat("Grid{warp - ", begin, "u, ", end - begin, "u, 32u, warp * 32u}");
        return "            " +
               by_warps(begin, end, warps,
                        cat("{  // node ", op.members[m].node, ": ", title(op.members[m]),
                            "\n                @_", m, "_body(@_", m, "_Block{block, ", counter,
                            ", base}, ", unit, ");\n            }\n"));
    };
    const auto barrier = [&](int stage) { return "            " + teams.barrier(times, stage); };
    // A branch for those that wait at every barrier, and one for each member beside them: warps
    // look at nothing that others do.
    const bool beside = teams.warps + teams.carriers > teams.main;
    std::string steps = beside ? cat("        if (warp < ", teams.main, "u) {\n") : "        {\n";
    for (int stage = 0; stage < times.count; stage++) {
        steps += cat("            // stage ", stage, "\n");
        for (size_t m = 0; m < op.members.size(); m++)
            if (times.stages[m] == stage && !times.aside(m)) steps += call(m, teams.main);
        steps += barrier(stage + 1);
    }
    for (size_t m = 0; m < op.members.size(); m++) {
        if (!times.aside(m)) continue;
        const auto [begin, end] = teams.of[m];
        steps += cat("        } else if (warp < ", end, "u) {\n");
        for (int stage = 0; stage < times.count; stage++) {
            if (times.stages[m] == stage) steps += call(m, 0);
            if (teams.waits(times, m, stage + 1)) steps += barrier(stage + 1);
        }
    }
    if (teams.carriers) steps += "        } else {\n" + barrier(times.count);
    return steps + "        }\n";
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

namespace {

/// The kernel of a step in one block: operands come to shared memory before the first slice, the
/// members run over each slice stage by stage, results leave after the last one.
class BlockText {
  public:
    BlockText(const LoweredOp& op, const Limits& limits)
        : BlockText(op, limits, blocks_of(op, limits)) {}

    KernelText text() {
        const std::vector<bool> ahead =
            add_members(text_, op_, places_, teams_, limits_, "int64_t slice",
                        [&](size_t operand) { return pointer(operand); });
        set_launch();
        copy_operands();
        copy_next_slice();
        keep_last_slice();
        text_.body += body_head() + entry(ahead);
        return text_;
    }

  private:
    BlockText(const LoweredOp& op, const Limits& limits, const std::vector<int64_t>& blocks)
        : op_(op),
          limits_(limits),
          times_(op, blocks),
          places_(op, times_, shared_bytes(limits)),
          teams_(op, times_, blocks),
          tail_(op),
          copies_(places_, teams_.warps) {}

    /// Where an operand begins in global memory, that of this slice if each slice has its own.
    std::string pointer(size_t operand) const {
        const std::vector<int64_t>& fed = op_.attrs.ints("fed");
        const bool each = std::binary_search(fed.begin(), fed.end(), static_cast<int64_t>(operand));
        return cat("block.template ptr<T>(", at_operand(operand), ") + ",
                   each ? cat("slice * ", element_count(op_.inputs[operand].shape), "ll + ") : "");
    }
    std::string global(const View& view, const char* type) const {
        return cat("block.ptr<", type, ">(", at_operand(places_.operand.at(view.value)), ")");
    }
    /// Where the kernel's block, the tail, has an operand's address.
    uint32_t at_operand(size_t operand) const {
        return tail_.operands + 8 * static_cast<uint32_t>(operand);
    }
    std::string shared(const View& view) const {
        return cat("shared + ", places_.shared.at(view.value));
    }
    bool is_shared(const View& view) const {
        return places_.shared.contains(view.value) && bytes_of(view);
    }

    void set_launch() {
        text_.name = cat("block_of_", op_.members.size());
        text_.threads = 32 * teams_.warps;
        text_.shared = static_cast<uint32_t>(places_.bytes);
    }
    void copy_operands() {
        const std::vector<int64_t>& fed = op_.attrs.ints("fed");
        for (size_t i = 0; i < op_.inputs.size(); i++) {
            const View& view = op_.inputs[i];
            if (!is_shared(view)) continue;
            const std::string to = shared(view), from = global(view, "const char");
            if (std::binary_search(fed.begin(), fed.end(), static_cast<int64_t>(i)) &&
                copies_.by16(view)) {
                early_ += copies_.in_by16("        ", view, to, from);
                late_ += copies_.in("        ", view, to, from);
            } else {
                in_ += copies_.in("    ", view, to, from);
            }
        }
        for (const View& view : op_.outputs)
            if (is_shared(view))
                out_ += copies_.out("    ", view, global(view, "char"), shared(view));
        const std::string begin = "    begin_kernel();\n";
        if (!early_.empty())
            in_ = cat("    const bool early = block.integer(", SequenceTail::early,
                      ") != 0;\n    if (early) {\n", early_, "    }\n", begin,
                      "    if (!early) {\n", late_, "    }\n", in_);
        text_.begins = !early_.empty();
    }
    /// Inputs in shared memory of which each slice has its own.
    std::vector<const View*> fed_views() const {
        std::vector<const View*> views;
        for (const int64_t in : op_.attrs.ints("fed"))
            if (const View& view = op_.inputs[static_cast<size_t>(in)]; is_shared(view))
                views.push_back(&view);
        return views;
    }
    /// Where there is room, the next slice's inputs arrive in a buffer of their own while steps run
    /// on this one's; else they are copied when those are done.
    void copy_next_slice() {
        const std::vector<const View*> fed = fed_views();
        int64_t end = round_up(places_.bytes);
        for (const View* view : fed) end += round_up(bytes_of(*view));
        const bool room = end <= shared_bytes(limits_);
        if (room && !fed.empty()) text_.shared = static_cast<uint32_t>(end);
        int64_t buffer = round_up(places_.bytes);
        for (const View* view : fed) {
            const std::string held = shared(*view), arriving = cat("shared + ", buffer),
                              next = cat(global(*view, "const char"), " + (slice + 1) * ",
                                         bytes_of(*view), "ll");
            if (room) {
                prefetch_ += copies_.dense_in("            ", *view, arriving, next);
                next_ += copies_.spread("            ", *view, held, arriving);
            } else {
                next_ += copies_.in("            ", *view, held, next);
            }
            buffer += round_up(bytes_of(*view));
        }
        if (!prefetch_.empty())
            prefetch_ = cat("        if (slice + 1 < slices) {\n", prefetch_,
                            "        }\n        commit_copies();\n");
        if (!next_.empty())
            next_ = cat("        if (slice + 1 < slices) {\n", next_,
                        "            finish_copies();\n        }\n");
    }
    /// Where it is said where to: what later launches read, or reads of the input.
    void keep_last_slice() {
        uint32_t number = SequenceTail::kept;
        for (const int64_t in : op_.attrs.ints("fed")) {
            const View& view = op_.inputs[static_cast<size_t>(in)];
            const std::string to = cat("kept", in);
            if (bytes_of(view))
                keep_ += cat(
                    "            if (char* const ", to, " = block.ptr<char>(", number, ")) {\n",
                    is_shared(view) ? copies_.out("                ", view, to, shared(view))
                                    : copies_.dense_out("                ", view, to,
                                                        cat(global(view, "const char"),
                                                            " + slice * ", bytes_of(view), "ll")),
                    "            }\n");
            number += 8;
        }
        if (!keep_.empty())
            keep_ = cat("        if (slice + 1 == slices) {\n", keep_, "        }\n");
    }
    std::string entry(const std::vector<bool>& ahead) const {
        return cat(
            "    extern __shared__ __align__(16) char shared[];\n"
            "    const uint32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0);\n",
            ahead_text(teams_, ahead), in_,
            "    finish_copies();\n    const int64_t steps = block.integer(", SequenceTail::steps,
            "), slices = block.integer(", SequenceTail::slices,
            ");\n#pragma unroll 1\n    for (int64_t slice = 0; slice < slices; "
            "slice++) {\n",
            prefetch_, keep_,
            "#pragma unroll 1\n    for (int64_t step = 0; step < steps; step++) {\n",
            stages_text(op_, times_, teams_, ahead, "slice"), "    }\n    finish_copies();\n",
            next_, "    }\n", out_, "}\n");
    }

    const LoweredOp& op_;
    const Limits& limits_;
    const Times times_;
    const Places places_;
    const Teams teams_;
    const SequenceTail tail_;
    Copies copies_;
    KernelText text_;
    std::string in_, early_, late_, out_, prefetch_, keep_, next_;
};

}  // namespace

bool block_brings_fed(const LoweredOp& op, const Limits& limits) {
    if (!std::all_of(op.members.begin(), op.members.end(), of_warps)) return false;
    const Places places(op, Times(op, blocks_of(op, limits)), shared_bytes(limits));
    const std::vector<int64_t>& fed = op.attrs.ints("fed");
    return std::all_of(fed.begin(), fed.end(), [&](int64_t in) {
        const View& view = op.inputs[static_cast<size_t>(in)];
        return places.shared.contains(view.value) || !bytes_of(view);
    });
}

KernelText block_text(const LoweredOp& op, const Limits& limits) {
    return BlockText(op, limits).text();
}

}  // namespace aicf::cuda
