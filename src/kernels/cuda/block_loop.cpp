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

}  // namespace

bool block_loop_fits(const LoweredOp& loop, const Limits& limits) {
    const Turn turn(loop, limits);
    if (!turn.places.fits) return false;
    const Duration takes(turn.op, turn.times, turn.limits);
    return takes.block < takes.launches;
}

KernelText block_loop_text(const LoweredOp& op, const Limits& limits) {
    const Turn turn(op, limits);
    const auto& [own_limits, shape, own, blocks, times, turns, places] = turn;
    const BlockLayout layout(op);
    const int64_t last = shape.turns - 1;
    const auto row_of = [&](const std::string& turn_text) {
        return cat("int64_t(", shape.reverse ? cat(last, " - (", turn_text, ")") : turn_text, ")");
    };
    KernelText text;
    Teams teams(own, times, blocks);
    const auto outer = [&](size_t operand) {
        const size_t result = operand - op.inputs.size();
        const bool row = operand < op.inputs.size() ? turn.is_row(operand) : turn.keeps(result);
        return cat("block.template ptr<T>(", layout.operand[operand], ") + ",
                   row ? cat(row_of("turn"), " * ",
                             element_count(own.operand(static_cast<int>(operand)).shape), "ll + ")
                       : "");
    };
    const std::vector<bool> ahead_of =
        add_members(text, own, places, teams, own_limits, "int turn", outer);
    constexpr int64_t kCarried = 4096;  // bytes of rows in a turn that are worth a warp
    int64_t rows = 0;
    std::vector<const View*> fetched, kept;
    for (const View& view : own.inputs)
        if (turns.rows.contains(view.value) && places.shared.contains(view.value) && bytes_of(view))
            fetched.push_back(&view), rows += bytes_of(view);
    for (size_t k = 0; k < own.outputs.size(); k++)
        if (const View& view = own.outputs[k];
            turn.keeps(k) && places.shared.contains(view.value) && bytes_of(view))
            kept.push_back(&view), rows += bytes_of(view);
    if (rows) teams.carriers = static_cast<int>(std::clamp<int64_t>(rows / kCarried, 1, 4));
    const int warps = teams.warps + teams.carriers;
    text.name = cat("loop_of_", own.members.size());
    text.threads = 32 * warps;
    text.shared = static_cast<uint32_t>(places.bytes);

    const auto slot_of = [&](const View& view, const std::string& turn_text) {
        const auto slots = places.slots.find(view.value);
        return cat("shared + ", places.shared.at(view.value),
                   slots == places.slots.end() ? "" : " + " + slots->second.offset(turn_text));
    };
    const auto lies = [&](const View& view, bool input) {
        return cat("block.ptr<", input ? "const " : "", "char>(",
                   layout.operand[places.operand.at(view.value)], ")");
    };
    const auto row_at = [&](const View& view, bool input, const std::string& turn_text) {
        return cat(lies(view, input), " + ", row_of(turn_text), " * ", bytes_of(view), "ll");
    };
    Copies all(places, warps), carried(places, std::max(teams.carriers, 1));
    std::string in, fetch, keep, out;
    for (size_t i = 0; i < own.inputs.size(); i++) {
        const View& view = own.inputs[i];
        if (!turn.is_row(i) && places.shared.contains(view.value) && bytes_of(view))
            in += all.in("    ", view, slot_of(view, "0"), lies(view, true));
    }
    const int ahead = turns.ahead - 1;
    for (int at = 0; at < ahead && at <= last; at++)
        for (const View* view : fetched)
            in += all.in("    ", *view, slot_of(*view, cat(at)), row_at(*view, true, cat(at)));
    for (const View* view : fetched)
        fetch += carried.in("                ", *view, slot_of(*view, cat("(turn + ", ahead, ")")),
                            row_at(*view, true, cat("turn + ", ahead)));
    for (const View* view : kept) {
        keep += carried.out("                ", *view, row_at(*view, false, "turn - 1"),
                            slot_of(*view, "(turn - 1)"));
        out += all.out("    ", *view, row_at(*view, false, cat(last)), slot_of(*view, cat(last)));
    }
    for (size_t k = 0; k < static_cast<size_t>(shape.carries); k++)
        if (const View& view = own.outputs[k]; !turn.keeps(k) && bytes_of(view))
            out += all.out("    ", view, lies(view, false), slot_of(view, cat(last)));
    // Rows of the turns to come arrive while this one runs; what the one before made leaves.
    std::string carry;
    if (!fetch.empty())
        carry += cat("            if (turn + ", ahead, " < ", shape.turns, ") {\n", fetch,
                     "            }\n            commit_copies();\n");
    if (!keep.empty()) carry += cat("            if (turn > 0) {\n", keep, "            }\n");
    if (!fetch.empty()) carry += cat("            wait_copies<", ahead - 1, ">();\n");
    if (!carry.empty())
        carry = cat("        if (warp >= ", teams.warps,
                    "u) {\n            const uint32_t warp = threadIdx.x / 32 - ", teams.warps,
                    "u;\n", carry, "        }\n");
    text.body +=
        body_head() + cat("    extern __shared__ __align__(16) char shared[];\n"
                          "    const uint32_t warp = threadIdx.x / 32;\n",
                          ahead_text(teams, ahead_of), in,
                          "    finish_copies();\n#pragma unroll 1\n    for (int turn = 0; turn < ",
                          shape.turns, "; turn++) {\n", carry,
                          stages_text(own, times, teams, ahead_of, "turn"),
                          "    }\n    __syncthreads();\n", out, "}\n");
    return text;
}

}  // namespace aicf::cuda
