// A loop in one block of threads: what turns hand on stays in shared memory, a few warps bring the
// rows of the turns to come and take those that are done.
#include <algorithm>

#include "kernels/cuda/block.h"

namespace aicf::cuda {

namespace {

/// A turn of a loop in one block.
struct Turn {
    Limits limits;
    LoopShape shape;
    LoweredOp op;
    std::vector<int64_t> blocks;
    Times times;
    Turns turns;
    Places places;

    Turn(const LoweredOp& loop, const Limits& device)
        : limits(device),
          shape(loop.attrs),
          op(sums_in_place(turn_of(loop), shape)),
          blocks(blocks_of(op, with_turns())),
          times(op, blocks),
          turns(turns_of(op, shape)),
          places(op, times, shared_bytes(limits), with_ahead(4)) {
        if (!places.fits) places = Places(op, times, shared_bytes(limits), with_ahead(2));
    }
    bool is_row(size_t operand) const {
        return static_cast<int>(operand) >= shape.carries &&
               static_cast<int>(operand) < shape.carries + shape.slices;
    }
    /// Whether a turn keeps a row of a result.
    bool keeps(size_t result) const {
        return static_cast<int>(result) >= shape.carries || shape.history[result];
    }

  private:
    const Limits& with_turns() {
        limits.turns = true;
        return limits;
    }
    const Turns& with_ahead(int turns_ahead) {
        turns.ahead = turns_ahead;
        return turns;
    }
    static bool reads(const LoweredOp& member, ValueId id) {
        return std::any_of(member.inputs.begin(), member.inputs.end(),
                           [&](const View& view) { return view.value == id; });
    }
    /// A carry that only the op which makes its next content reads, element by element, stays where
    /// it is.
    static LoweredOp sums_in_place(LoweredOp op, const LoopShape& shape) {
        std::vector<int64_t> carried(op.outputs.size(), -1);
        for (size_t k = 0; k < static_cast<size_t>(shape.carries); k++) {
            if (shape.history[k]) continue;
            bool alone = true;
            for (const LoweredOp& member : op.members) {
                if (!reads(member, op.inputs[k].value)) continue;
                const auto pairs = inplace_of(member);
                alone &= std::any_of(pairs.begin(), pairs.end(), [&](const auto& pair) {
                    const View& out = member.outputs[static_cast<size_t>(pair.first)];
                    const View& in = member.inputs[static_cast<size_t>(pair.second)];
                    return out.value == op.outputs[k].value && in.value == op.inputs[k].value &&
                           same_layout(out, in);
                });
            }
            if (alone) carried[k] = static_cast<int64_t>(k);
        }
        op.attrs.set("carried", carried);
        return op;
    }
    static Turns turns_of(const LoweredOp& op, const LoopShape& shape) {
        Turns turns;
        turns.loop = true;
        const auto carries = static_cast<size_t>(shape.carries);
        const std::vector<int64_t>& carried = op.attrs.ints("carried");
        for (size_t k = 0; k < op.outputs.size(); k++) {
            const ValueId id = op.outputs[k].value;
            const bool read = std::any_of(op.members.begin(), op.members.end(),
                                          [&](const LoweredOp& one) { return reads(one, id); });
            if (k >= carries)
                (read ? turns.kept : turns.outside).insert(id);
            else if (carried[k] < 0)
                turns.next.emplace_back(id, op.inputs[k].value);
        }
        for (size_t i = carries; i < carries + static_cast<size_t>(shape.slices); i++)
            turns.rows.insert(op.inputs[i].value);
        return turns;
    }
};

/// The kernel of a loop in one block: while the members run a turn stage by stage, the carriers,
/// warps of their own, fetch rows of later turns and store those of the turn before.
class LoopText {
  public:
    LoopText(const LoweredOp& loop, const Limits& limits)
        : layout_(loop),
          turn_(loop, limits),
          last_(turn_.shape.turns - 1),
          fetched_(fetched_rows()),
          stored_(stored_rows()),
          teams_(teams()),
          by_all_(turn_.places, teams_.warps + teams_.carriers),
          by_carriers_(turn_.places, std::max(teams_.carriers, 1)) {}

    KernelText text() {
        KernelText text;
        const std::vector<bool> ahead =
            add_members(text, turn_.op, turn_.places, teams_, turn_.limits, "int turn",
                        [&](size_t operand) { return pointer(operand); });
        text.name = cat("loop_of_", turn_.op.members.size());
        text.threads = 32 * (teams_.warps + teams_.carriers);
        text.shared = static_cast<uint32_t>(turn_.places.bytes);
        const std::string in = first_copies(), out = last_copies();
        text.body += body_head() +
                     cat("    extern __shared__ __align__(16) char shared[];\n"
                         "    const uint32_t warp = __shfl_sync(~0u, threadIdx.x / 32, 0);\n",
                         ahead_text(teams_, ahead), in,
                         "    finish_copies();\n#pragma unroll 1\n    for (int turn = 0; turn < ",
                         turn_.shape.turns, "; turn++) {\n", carriers_part(),
                         stages_text(turn_.op, turn_.times, teams_, ahead, "turn"),
                         "    }\n    __syncthreads();\n", out, "}\n");
        return text;
    }

  private:
    bool is_shared(const View& view) const {
        return turn_.places.shared.contains(view.value) && bytes_of(view);
    }
    std::vector<const View*> fetched_rows() const {
        std::vector<const View*> rows;
        for (const View& view : turn_.op.inputs)
            if (turn_.turns.rows.contains(view.value) && is_shared(view)) rows.push_back(&view);
        return rows;
    }
    std::vector<const View*> stored_rows() const {
        std::vector<const View*> rows;
        for (size_t k = 0; k < turn_.op.outputs.size(); k++)
            if (const View& view = turn_.op.outputs[k]; turn_.keeps(k) && is_shared(view))
                rows.push_back(&view);
        return rows;
    }
    Teams teams() const {
        constexpr int64_t kCarried = 4096;  // bytes of rows in a turn that are worth a warp
        Teams teams(turn_.op, turn_.times, turn_.blocks);
        int64_t bytes = 0;
        for (const auto* rows : {&fetched_, &stored_})
            for (const View* view : *rows) bytes += bytes_of(*view);
        if (bytes) teams.carriers = static_cast<int>(std::clamp<int64_t>(bytes / kCarried, 1, 4));
        return teams;
    }

    std::string row_number(const std::string& turn) const {
        return cat("int64_t(", turn_.shape.reverse ? cat(last_, " - (", turn, ")") : turn, ")");
    }
    /// Where an operand begins in global memory, this turn's row if each turn has its own.
    std::string pointer(size_t operand) const {
        const size_t inputs = turn_.op.inputs.size();
        const bool row = operand < inputs ? turn_.is_row(operand) : turn_.keeps(operand - inputs);
        return cat(
            "block.template ptr<T>(", layout_.operand[operand], ") + ",
            row ? cat(row_number("turn"), " * ",
                      element_count(turn_.op.operand(static_cast<int>(operand)).shape), "ll + ")
                : "");
    }
    std::string global(const View& view, const char* type) const {
        return cat("block.ptr<", type, ">(", layout_.operand[turn_.places.operand.at(view.value)],
                   ")");
    }
    std::string global_row(const View& view, const char* type, const std::string& turn) const {
        return cat(global(view, type), " + ", row_number(turn), " * ", bytes_of(view), "ll");
    }
    std::string shared(const View& view, const std::string& turn) const {
        const auto slots = turn_.places.slots.find(view.value);
        return cat("shared + ", turn_.places.shared.at(view.value),
                   slots == turn_.places.slots.end() ? "" : " + " + slots->second.offset(turn));
    }

    /// Turns whose rows are under way or there while one runs.
    int ahead() const { return turn_.turns.ahead - 1; }
    /// Before the first turn: all that no turn has a row of, and the rows of the first turns.
    std::string first_copies() {
        std::string in;
        for (size_t i = 0; i < turn_.op.inputs.size(); i++)
            if (const View& view = turn_.op.inputs[i]; !turn_.is_row(i) && is_shared(view))
                in += by_all_.in("    ", view, shared(view, "0"), global(view, "const char"));
        for (int at = 0; at < ahead() && at <= last_; at++)
            for (const View* view : fetched_)
                in += by_all_.in("    ", *view, shared(*view, cat(at)),
                                 global_row(*view, "const char", cat(at)));
        return in;
    }
    /// In a turn, on the carriers: the rows of a later one, and of the one before.
    std::string carriers_part() {
        std::string fetch, store, part;
        for (const View* view : fetched_)
            fetch += by_carriers_.in("                ", *view,
                                     shared(*view, cat("(turn + ", ahead(), ")")),
                                     global_row(*view, "const char", cat("turn + ", ahead())));
        for (const View* view : stored_)
            store +=
                by_carriers_.out("                ", *view, global_row(*view, "char", "turn - 1"),
                                 shared(*view, "(turn - 1)"));
        if (!fetch.empty())
            part += cat("            if (turn + ", ahead(), " < ", turn_.shape.turns, ") {\n",
                        fetch, "            }\n            commit_copies();\n");
        if (!store.empty()) part += cat("            if (turn > 0) {\n", store, "            }\n");
        if (!fetch.empty()) part += cat("            wait_copies<", ahead() - 1, ">();\n");
        if (part.empty()) return part;
        return cat("        if (warp >= ", teams_.warps,
                   "u) {\n            const uint32_t warp = threadIdx.x / 32 - ", teams_.warps,
                   "u;\n", part, "        }\n");
    }
    /// After the last turn: its rows, and the carries that it leaves.
    std::string last_copies() {
        std::string out;
        for (const View* view : stored_)
            out += by_all_.out("    ", *view, global_row(*view, "char", cat(last_)),
                               shared(*view, cat(last_)));
        for (size_t k = 0; k < static_cast<size_t>(turn_.shape.carries); k++)
            if (const View& view = turn_.op.outputs[k]; !turn_.keeps(k) && bytes_of(view))
                out += by_all_.out("    ", view, global(view, "char"), shared(view, cat(last_)));
        return out;
    }

    const BlockLayout layout_;
    const Turn turn_;
    const int64_t last_;                               // turn
    const std::vector<const View*> fetched_, stored_;  // rows in shared memory, of each turn
    const Teams teams_;
    Copies by_all_, by_carriers_;
};

}  // namespace

bool block_loop_fits(const LoweredOp& loop, const Limits& limits) {
    const Turn turn(loop, limits);
    if (!turn.places.fits) return false;
    const Duration takes(turn.op, turn.times, turn.limits);
    return takes.block < takes.launches;
}

KernelText block_loop_text(const LoweredOp& op, const Limits& limits) {
    return LoopText(op, limits).text();
}

}  // namespace aicf::cuda
