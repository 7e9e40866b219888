// What a step or a loop in one block of threads is made of: where values lie, when members run and
// on which warps, and the statements of that.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/compile/target.h"
#include "kernels/cuda/codegen.h"

namespace aicf::cuda {

constexpr int kLeastWarps = 4, kMostWarps = 16;

/// As bodies of warps are asked for.
Limits one_block(const Limits& limits);
inline int64_t round_up(int64_t bytes) { return (bytes + 15) / 16 * 16; }
inline int64_t bytes_of(const View& view) {
    return element_count(view.shape) * dtype_size(view.dtype);
}

/// Where what a turn of a loop reads and makes lies from turn to turn.
struct Turns {
    /// What a turn leaves of a carry, and what it begins with: two places that they take in turn.
    std::vector<std::pair<ValueId, ValueId>> next;
    std::set<ValueId> rows;     // operands of which each turn has a row
    std::set<ValueId> kept;     // results in shared memory of which each turn keeps a row
    std::set<ValueId> outside;  // those that no turn reads: straight to global memory
    int ahead = 2;              // turns whose rows lie in shared memory, a power of two
    bool loop = false;
};

/// Rows of a value that begin further apart in shared memory than they are long, so that threads
/// which read neighbouring rows find them in banks of their own.
struct Padding {
    int64_t rows, length, pitch;  // in elements
    bool operator==(const Padding&) const = default;
};
using Paddings = std::map<ValueId, Padding>;

/// When the members of a sequence run: in a stage, between two barriers; or from it on until
/// another one begins, on warps of their own that do not wait at the barriers between.
struct Times {
    std::vector<int> stages, ends;
    int count = 0;

    /// `blocks`: by member, the warps that have something to do.
    Times(const LoweredOp& op, const std::vector<int64_t>& blocks);
    bool aside(size_t member) const { return ends[member] > stages[member] + 1; }

  private:
    static constexpr int kMostBarriers = 14;  // 16 there are in hardware
    int needed_at(const LoweredOp& op, size_t member) const;
};

/// Where the values of a sequence lie: in shared memory, each at a multiple of 16 bytes, inner ones
/// while they are needed; what is carried where it was. What updates and rings alone touch stays in
/// global memory where it finds no room.
struct Places {
    std::map<ValueId, int64_t> shared;   // bytes from the block's shared memory on
    std::map<ValueId, size_t> operand;   // of inputs and outputs
    std::map<ValueId, ValueId> carried;  // by an output, the input whose next content it is
    /// Of a loop, values that lie elsewhere from turn to turn: `bytes` further on for each of turn
    /// + phase, of so many places.
    struct Slots {
        int64_t bytes;
        int count, phase;
        /// Where that of a turn begins, behind the first one.
        std::string offset(const std::string& turn) const {
            const std::string at = phase ? cat("(", turn, " + ", phase, ")") : turn;
            return cat("(", at, " & ", count - 1, ") * ", bytes);
        }
    };
    std::map<ValueId, Slots> slots;
    Paddings paddings;
    int64_t bytes = 0;
    bool fits = false;

    /// `times`: by member its stage, and the one that it is done before.
    Places(const LoweredOp& op, const Times& times, int64_t room, const Turns& turns = {});

    int64_t bytes_of(const View& whole) const;
    /// A member as its operands lie.
    LoweredOp moved(LoweredOp member) const;
    /// Whether all operands of a member lie in shared memory, in the same place at all times.
    bool all_stay(const LoweredOp& member) const;

  private:
    Places(const LoweredOp& op, const Times& times, int64_t room, const Turns& turns,
           Paddings wanted);
};

/// The member's argument block, as its body asks for it: addresses in shared memory or, as `outer`
/// spells them, in the block of all; numbers as they are. `counter`: which slice or turn it is.
template <class Outer>
std::string places_struct(const std::string& name, const LoweredOp& member, const Places& places,
                          const std::string& counter, const Outer& outer) {
    const BlockLayout layout(member);
    const std::string word = counter.substr(counter.rfind(' ') + 1);
    std::string pointers, numbers;
    for (size_t k = 0; k < member.inputs.size() + member.outputs.size(); k++) {
        const View& view = member.operand(static_cast<int>(k));
        const auto at = places.shared.find(view.value);
        pointers += cat("            case ", layout.operand[k], ":\n                return ");
        if (at != places.shared.end()) {
            const auto slots = places.slots.find(view.value);
            const std::string turned =
                slots == places.slots.end() ? "" : " + " + slots->second.offset(word);
            pointers += cat("held_at<T>(base", turned, ", ", at->second, ", ", view.offset, ");\n");
        } else {
            pointers += cat(outer(places.operand.at(view.value)), view.offset, ";\n");
        }
    }
    const std::vector<Scalar> scalars = pack_scalars(member);
    for (size_t k = 0; k < scalars.size(); k++)
        numbers += cat("            case ", layout.scalars + 8 * static_cast<int>(k),
                       ":\n                return ", scalars[k].i, "ll;\n");
    return cat(
        "struct ", name, " {\n    const @_Block& block;\n    ", counter,
        ";\n    uint32_t base;\n    template <class T>\n    "
        "__device__ __forceinline__ T* ptr(int at) const {\n        switch (at) {\n",
        pointers,
        "            default:\n                return nullptr;\n        }\n    }\n"
        "    __device__ __forceinline__ int64_t integer(int at) const {\n        switch (at) "
        "{\n",
        numbers,
        "            default:\n                return 0;\n        }\n    }\n    __device__ "
        "__forceinline__ double number(int at) const {\n        return "
        "scalar::bit_cast<double>(integer(at));\n    }\n};\n");
}

/// A statement for warps [begin, end) of so many.
std::string by_warps(int begin, int end, int warps, const std::string& statement);

/// The statements by which values come and go, each by some of the block's warps.
class Copies {
  public:
    Copies(const Places& places, int warps) : places_(places), warps_(warps) {}
    using Text = const std::string&;
    std::string in(Text indent, const View& view, Text to, Text from) {
        return indent +
               one("copy_in", view, cat(", ", dtype_size(view.dtype)) + rows(view), to, from);
    }
    /// Of 16 bytes at a time, past the first cache, from where they are aligned so.
    bool by16(const View& view) const {
        const auto at = places_.paddings.find(view.value);
        return bytes_of(view) % 16 == 0 &&
               (at == places_.paddings.end() || at->second.length % 4 == 0);
    }
    std::string in_by16(Text indent, const View& view, Text to, Text from) {
        return indent + one("copy_in_by16", view, rows(view), to, from);
    }
    std::string out(Text indent, const View& view, Text to, Text from) {
        return indent +
               one("copy_out", view, cat(", ", dtype_size(view.dtype)) + rows(view), to, from);
    }
    /// Without the room between rows; and from there to where it is read.
    std::string dense_out(Text indent, const View& view, Text to, Text from) {
        return indent + one("copy_out", view, cat(", ", dtype_size(view.dtype)), to, from);
    }
    std::string dense_in(Text indent, const View& view, Text to, Text from) {
        return indent + one("copy_in", view, cat(", ", dtype_size(view.dtype)), to, from);
    }
    std::string spread(Text indent, const View& view, Text to, Text from) {
        return indent + one("spread", view, rows(view), to, from);
    }

  private:
    std::string rows(const View& view) const {
        const auto at = places_.paddings.find(view.value);
        if (at == places_.paddings.end()) return "";
        return cat(", ", 4 * at->second.length, ", ", 4 * at->second.pitch);
    }
    std::string one(const char* name, const View& view, Text more, Text to, Text from) {
        const int64_t bytes = bytes_of(view);
        const auto count = static_cast<int>(std::clamp<int64_t>((bytes + 127) / 128, 1, warps_));
        turn_ = turn_ + count > warps_ ? 0 : turn_;
        const int begin = std::exchange(turn_, turn_ + count), end = begin + count;
        return by_warps(begin, end, warps_,
                        cat(name, "<", bytes, ", ", count, more, ">(", to, ", ", from, ", warp - ",
                            begin, "u);\n"));
    }

    const Places& places_;
    const int warps_;
    int turn_ = 0;  // the first warp that has nothing to copy yet
};

/// By member, the most warps that have something to do.
std::vector<int64_t> blocks_of(const LoweredOp& op, const Limits& limits);

/// Which warps run a member: of those of a stage, ones with more to do get more, but none more than
/// it has blocks.
struct Teams {
    int main = kLeastWarps, warps = 0;  // those that wait at every barrier, and all
    int carriers = 0;  // behind them, warps that bring and take rows and wait at the last barrier
    std::vector<std::pair<int, int>> of;  // by member, from which on, and to which

    Teams(const LoweredOp& op, const Times& times, const std::vector<int64_t>& blocks);

    /// The one before a stage; the last one comes before the first of the next step.
    std::string barrier(const Times& times, int stage) const;
    /// Whether the warps of a member beside the stages come to it.
    bool waits(const Times& times, size_t member, int stage) const;

  private:
    void share_out(const LoweredOp& op, const Times& times, const std::vector<int64_t>& blocks,
                   int stage);
};

/// Microseconds of a sequence: of its members on one processor, and of launches in a graph.
/// Measured on an H200: a launch takes 1.7 us, a barrier and the start of a stage 0.25; one
/// processor does some 60 flops a nanosecond in tiles of threads, moves some 60 bytes, and takes
/// 0.045 us for a warp's rows of softmax or a norm, a few hundred instructions. Of a turn, products
/// on one processor are counted in cycles and other members move 200 bytes or flops a nanosecond;
/// products in launches take 8 ns for each term of a sum, the cycles of near.cuh's tiles.
struct Duration {
    double block = 0, launches = 0;

    Duration(const LoweredOp& op, const Times& times, const Limits& limits);
};

/// The bodies of members, each with its places, and what they include; by member whether the body
/// takes what is worked out ahead.
template <class Outer>
std::vector<bool> add_members(KernelText& text, const LoweredOp& op, const Places& places,
                              const Teams& teams, const Limits& limits, const std::string& counter,
                              const Outer& outer) {
    text.includes = {"block.cuh"};
    std::vector<bool> ahead;
    for (size_t m = 0; m < op.members.size(); m++) {
        const LoweredOp member = places.moved(op.members[m]);
        Limits own = one_block(limits);
        own.team = teams.of[m].second - teams.of[m].first;
        own.near = places.all_stay(member);
        const KernelText part = body_text(member, own);
        check(!part.workspace && !part.counters && !part.shared && part.maps.empty(),
              "cuda: an op in one block that is no kernel of warps");
        text.includes.insert(part.includes.begin(), part.includes.end());
        const std::string name = cat("@_", m);
        text.body += places_struct(name + "_Block", member, places, counter, outer) +
                     replaced(part.body, "@", name);
        ahead.push_back(part.ahead);
    }
    return ahead;
}
/// The statements before the loop of steps or turns: the address of shared memory, and what bodies
/// take that is worked out ahead.
std::string ahead_text(const Teams& teams, const std::vector<bool>& ahead);
/// The statements of all stages, with the barriers behind them.
std::string stages_text(const LoweredOp& op, const Times& times, const Teams& teams,
                        const std::vector<bool>& ahead, const std::string& counter);

/// Whether a block_loop's turns find room and take less time than their launches.
bool block_loop_fits(const LoweredOp& loop, const Limits& limits);

}  // namespace aicf::cuda
