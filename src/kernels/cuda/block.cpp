// A step in one block of threads: where its values lie, which warps run which op, and when.
#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "core/compile/memory.h"
#include "core/compile/target.h"
#include "kernels/cuda/codegen.h"

namespace aicf::cuda {

namespace {

constexpr int kLeastWarps = 4, kMostWarps = 16;

/// Shared memory that a block may have, in bytes.
int64_t shared_bytes(const Limits& limits) {
    return limits.major >= 9 ? 227 << 10 : limits.major == 8 ? 99 << 10 : 48 << 10;
}

/// Whether the op's kernel can be one of warps that wait for no other.
bool of_warps(const LoweredOp& op) {
    if (!op.members.empty()) return false;
    const LoweredDef& kind = anchor(op);
    if (kind.gemm) return anchor_attrs(op).text("order").starts_with("chain(");
    for (const RegionStep& step : op.body)
        if (is_scalar_update(*step.def)) return false;
    return is_function(kind) || is_update(kind) || is_reduction(kind) || is_row_op(kind) ||
           is_random(kind) || is_small(kind);
}

int64_t round_up(int64_t bytes) { return (bytes + 15) / 16 * 16; }
int64_t bytes_of(const View& view) { return element_count(view.shape) * dtype_size(view.dtype); }

/// Rows of a value that begin further apart in shared memory than they are long, so that threads
/// which read neighbouring rows find them in banks of their own.
struct Padding {
    int64_t rows, length, pitch;  // in elements
    bool operator==(const Padding&) const = default;
};
using Paddings = std::map<ValueId, Padding>;

/// A view of a padded value; nothing where it runs across the ends of rows. `whole`: elements may
/// be taken in any order, padding among them.
std::optional<View> padded(const View& view, const Padding& padding, bool whole) {
    const auto [rows, length, pitch] = padding;
    View result = view;
    if (whole && view.offset == 0 && is_contiguous(view.shape, view.strides) &&
        element_count(view.shape) == rows * length) {
        result.shape = {rows * pitch};
        result.strides = {1};
        return result;
    }
    int64_t column = view.offset % length;
    result.offset = view.offset / length * pitch + column;
    if (view.offset < 0) return std::nullopt;
    for (int d = 0; d < view.shape.rank(); d++) {
        const int64_t stride = view.strides[d];
        if (view.shape[d] <= 1 || stride == 0) continue;
        if (stride < 0) return std::nullopt;
        if (stride % length == 0)
            result.strides[d] = stride / length * pitch;
        else
            column += (view.shape[d] - 1) * stride;
    }
    if (column >= length) return std::nullopt;
    return result;
}

/// Values of rows of 16, 32, ... words, as far as all members can read them so. Those that an
/// update takes element by element are padded alike or not at all.
Paddings find_paddings(const LoweredOp& op) {
    Paddings result;
    for (const auto* views : {&op.inputs, &op.outputs, &op.inner})
        for (const View& view : *views)
            if (view.shape.rank() == 2 && view.shape[0] > 1 && view.shape[1] % 16 == 0 &&
                view.shape[1] > 0 && dtype_size(view.dtype) == 4)
                result[view.value] = {view.shape[0], view.shape[1], view.shape[1] + 4};
    for (bool again = true; again;) {
        again = false;
        for (size_t k = 0; k < op.outputs.size(); k++) {  // one place, two values
            const int64_t in = op.attrs.ints("carried")[k];
            if (in < 0) continue;
            const ValueId from = op.inputs[static_cast<size_t>(in)].value, to = op.outputs[k].value;
            if (result.contains(from) != result.contains(to) ||
                (result.contains(from) && !(result[from] == result[to]))) {
                result.erase(from);
                result.erase(to);
                again = true;
            }
        }
        for (const LoweredOp& member : op.members) {
            const bool update = is_update(anchor(member));
            std::vector<std::vector<const View*>> alike;  // by update step
            const auto note = [&](const View& view) {
                const auto at = result.find(view.value);
                if (at == result.end() || padded(view, at->second, update)) return;
                result.erase(at);
                again = true;
            };
            for (const View& view : member.inputs) note(view);
            for (const View& view : member.outputs) note(view);
            if (!update) continue;
            const auto add = [&](const std::vector<int>& numbers, size_t count) {
                for (size_t k = 0; k < std::min(count, numbers.size()); k++)
                    alike.back().push_back(&member.operand(numbers[k]));
            };
            const auto numbers = static_cast<size_t>(anchor(member).numbers);
            if (member.body.empty()) {
                alike.emplace_back();
                for (size_t k = 0; k < member.inputs.size() && k < numbers; k++)
                    alike.back().push_back(&member.inputs[k]);
                for (const View& view : member.outputs) alike.back().push_back(&view);
            }
            for (const RegionStep& step : member.body) {
                alike.emplace_back();
                add(step.inputs, numbers);
                add(step.outputs, step.outputs.size());
            }
            for (const auto& views : alike) {
                const auto of = [&](const View* view) {
                    const auto at = result.find(view->value);
                    return at == result.end() ? Padding{0, 0, 0} : at->second;
                };
                if (std::all_of(views.begin(), views.end(),
                                [&](const View* view) { return of(view) == of(views[0]); }))
                    continue;
                for (const View* view : views) again |= result.erase(view->value) > 0;
            }
        }
    }
    return result;
}

/// When the members of a sequence run: in a stage, between two barriers; or from it on until
/// another one begins, on warps of their own that do not wait at the barriers between.
struct Times {
    std::vector<int> stages, ends;
    int count = 0;

    /// `blocks`: by member, the warps that have something to do.
    Times(const LoweredOp& op, const std::vector<int64_t>& blocks) : stages(stages_of(op)) {
        std::map<int, int64_t> wanted;
        for (size_t m = 0; m < stages.size(); m++) {
            count = std::max(count, stages[m] + 1);
            ends.push_back(stages[m] + 1);
            wanted[stages[m]] += blocks[m];
        }
        if (count > kMostBarriers) return;
        // Numbers of an optimizer take long and one warp; others go where warps are left.
        constexpr int64_t kFew = 2;
        int64_t beside = 0;
        for (const bool numbers : {true, false})
            for (size_t m = 0; m < op.members.size(); m++) {
                const int end = needed_at(op, m);
                if (is_scalar_update(*op.members[m].def) != numbers || blocks[m] > kFew ||
                    end - stages[m] < 2)
                    continue;
                wanted[stages[m]] -= blocks[m];
                int64_t most = 0;
                for (auto [stage, all] : wanted) most = std::max(most, all);
                if (!numbers && most + beside + blocks[m] > kMostWarps) {
                    wanted[stages[m]] += blocks[m];
                    continue;
                }
                ends[m] = end;
                beside += blocks[m];
            }
    }
    bool aside(size_t member) const { return ends[member] > stages[member] + 1; }

  private:
    static constexpr int kMostBarriers = 14;  // 16 there are in hardware
    /// The first stage that reads what a member writes, or writes over what it reads.
    int needed_at(const LoweredOp& op, size_t member) const {
        const std::vector<int64_t>& carried = op.attrs.ints("carried");
        const auto among = [](const std::vector<View>& views, ValueId id) {
            return std::any_of(views.begin(), views.end(),
                               [&](const View& view) { return view.value == id; });
        };
        const LoweredOp& own = op.members[member];
        int stage = count;
        for (size_t m = 0; m < op.members.size(); m++) {
            bool waits = false;
            for (const View& view : op.members[m].inputs) waits |= among(own.outputs, view.value);
            for (size_t k = 0; k < op.outputs.size() && m != member; k++)
                waits |= carried[k] >= 0 && among(op.members[m].outputs, op.outputs[k].value) &&
                         among(own.inputs, op.inputs[static_cast<size_t>(carried[k])].value);
            if (waits) stage = std::min(stage, stages[m]);
        }
        return stage;
    }
};

/// Where the values of a sequence lie: in shared memory, each at a multiple of 16 bytes, inner ones
/// while they are needed; what is carried where it was. What updates and rings alone touch stays in
/// global memory where it finds no room.
struct Places {
    std::map<ValueId, int64_t> shared;   // bytes from the block's shared memory on
    std::map<ValueId, size_t> operand;   // of inputs and outputs
    std::map<ValueId, ValueId> carried;  // by an output, the input whose next content it is
    Paddings paddings;
    int64_t bytes = 0;
    bool fits = false;

    /// `times`: by member its stage, and the one that it is done before.
    Places(const LoweredOp& op, const Times& times, int64_t room)
        : Places(op, times, room, find_paddings(op)) {
        const auto lies_here = [&](const auto& one) { return shared.contains(one.first); };
        if (!fits || !std::all_of(paddings.begin(), paddings.end(), lies_here))
            *this = Places(op, times, room, {});
    }

    int64_t bytes_of(const View& whole) const {
        const auto at = paddings.find(whole.value);
        return at == paddings.end() ? cuda::bytes_of(whole)
                                    : at->second.rows * at->second.pitch * dtype_size(whole.dtype);
    }
    /// A member as its operands lie.
    LoweredOp moved(LoweredOp member) const {
        const bool update = is_update(anchor(member));
        for (auto* views : {&member.inputs, &member.outputs})
            for (View& view : *views)
                if (const auto at = paddings.find(view.value); at != paddings.end())
                    view = *padded(view, at->second, update);
        return member;
    }

  private:
    Places(const LoweredOp& op, const Times& times, int64_t room, Paddings wanted)
        : paddings(std::move(wanted)) {
        const std::vector<int64_t>& to = op.attrs.ints("carried");
        for (size_t k = 0; k < op.inputs.size(); k++) operand[op.inputs[k].value] = k;
        for (size_t k = 0; k < op.outputs.size(); k++) {
            operand[op.outputs[k].value] = op.inputs.size() + k;
            if (to[k] >= 0)
                carried[op.outputs[k].value] = op.inputs[static_cast<size_t>(to[k])].value;
        }
        struct Use {
            int first, last;     // stages
            bool by_far = true;  // no op but updates and rings touches it
        };
        std::map<ValueId, Use> uses;
        for (size_t m = 0; m < op.members.size(); m++) {
            const LoweredDef& kind = anchor(op.members[m]);
            for (const auto* views : {&op.members[m].inputs, &op.members[m].outputs})
                for (const View& view : *views) {
                    const int last = times.ends[m] - 1;
                    Use& use = uses.emplace(view.value, Use{times.stages[m], last}).first->second;
                    use.last = std::max(use.last, last);
                    use.by_far &= is_update(kind) || is_small(kind);
                }
        }
        for (auto [out, in] : carried)  // one place, two values
            if (uses.contains(out) && uses.contains(in))
                uses[in].by_far = uses[in].by_far && uses[out].by_far;
        const int count = times.count;
        Room taken(count);
        const auto place = [&](const View& view, int first, int last) {
            std::vector<const Taken*> found;
            taken.find(first, last, found);
            const int64_t size = round_up(bytes_of(view)), at = lowest_free(found, size);
            if (at + size > room) return false;
            if (size) taken.take(first, last, at, at + size);
            shared[view.value] = at;
            bytes = std::max(bytes, at + size);
            return true;
        };
        std::vector<const View*> near, far;
        const auto use_of = [&](const View* view) {
            const auto at = uses.find(view->value);
            return at == uses.end() ? Use{0, count - 1} : at->second;
        };
        for (const View& view : op.inner) near.push_back(&view);
        for (const auto* views : {&op.inputs, &op.outputs})
            for (const View& view : *views)
                if (!carried.contains(view.value))
                    (use_of(&view).by_far ? far : near).push_back(&view);
        const auto larger = [&](const View* a, const View* b) {
            return bytes_of(*a) > bytes_of(*b);
        };
        std::stable_sort(near.begin(), near.end(), larger);
        std::stable_sort(far.rbegin(), far.rend(), larger);
        for (const View* view : near) {
            const bool inner = !operand.contains(view->value);
            if (!place(*view, inner ? use_of(view).first : 0,
                       inner ? use_of(view).last : count - 1))
                return;
        }
        for (const View* view : far) place(*view, 0, count - 1);
        for (auto [out, in] : carried)
            if (const auto at = shared.find(in); at != shared.end()) shared[out] = at->second;
        fits = true;
    }
};

/// The member's argument block, as its body asks for it: addresses in shared memory or in the
/// sequence's block, numbers as they are.
std::string places_struct(const std::string& name, const LoweredOp& member, const Places& places,
                          const LoweredOp& sequence) {
    const BlockLayout layout(member), outer(sequence);
    const std::vector<int64_t>& fed = sequence.attrs.ints("fed");
    std::string pointers, numbers;
    for (size_t k = 0; k < member.inputs.size() + member.outputs.size(); k++) {
        const View& view = member.operand(static_cast<int>(k));
        const auto at = places.shared.find(view.value);
        pointers += cat("            case ", layout.operand[k], ":\n                return ");
        if (at != places.shared.end())
            pointers += cat("held_at<T>(shared, ", at->second, ", ", view.offset, ");\n");
        else {
            const size_t operand = places.operand.at(view.value);
            pointers += cat("block.template ptr<T>(", outer.operand[operand], ") + ");
            if (std::binary_search(fed.begin(), fed.end(), static_cast<int64_t>(operand)))
                pointers += cat("slice * ", element_count(sequence.inputs[operand].shape), "ll + ");
            pointers += cat(view.offset, ";\n");
        }
    }
    const std::vector<Scalar> scalars = pack_scalars(member);
    for (size_t k = 0; k < scalars.size(); k++)
        numbers += cat("            case ", layout.scalars + 8 * static_cast<int>(k),
                       ":\n                return ", scalars[k].i, "ll;\n");
    return cat(
        "struct ", name,
        " {\n    const @_Block& block;\n    int64_t slice;\n    template <class T>\n    "
        "__device__ __forceinline__ T* ptr(int at) const {\n        extern __shared__ "
        "__align__(16) char shared[];\n        switch (at) {\n",
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
std::string by_warps(int begin, int end, int warps, const std::string& statement) {
    const std::string from = begin ? cat("warp >= ", begin, "u") : "",
                      to = end < warps ? cat("warp < ", end, "u") : "";
    const std::string both = from.empty() || to.empty() ? from + to : from + " && " + to;
    return both.empty() ? statement : cat("if (", both, ") ", statement);
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

/// The statements by which values come and go, each by some of the block's warps.
class Copies {
  public:
    Copies(const Places& places, int warps) : places_(places), warps_(warps) {}
    using Text = const std::string&;
    std::string in(Text indent, const View& view, Text to, Text from) {
        return indent +
               one("copy_in", view, cat(", ", dtype_size(view.dtype)) + rows(view), to, from);
    }
    std::string out(Text indent, const View& view, Text to, Text from) {
        return indent +
               one("copy_out", view, cat(", ", dtype_size(view.dtype)) + rows(view), to, from);
    }
    /// In without the room between rows; and from there to where it is read.
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

Limits one_block(const Limits& limits) {
    Limits own = limits;
    own.processors = 1;
    own.one_block = true;
    return own;
}

/// By member, the most warps that have something to do.
std::vector<int64_t> blocks_of(const LoweredOp& op, const Limits& limits) {
    std::vector<int64_t> blocks;
    for (const LoweredOp& member : op.members) {
        const KernelText part = body_text(member, one_block(limits));
        blocks.push_back(std::max<int64_t>(part.blocks * part.threads / 32, 1));
    }
    return blocks;
}

/// Which warps run a member: of those of a stage, ones with more to do get more, but none more than
/// it has blocks.
struct Teams {
    int main = kLeastWarps, warps = 0;    // those that wait at every barrier, and all
    std::vector<std::pair<int, int>> of;  // by member, from which on, and to which

    Teams(const LoweredOp& op, const Times& times, const std::vector<int64_t>& blocks)
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

    /// The one before a stage; the last one comes before the first of the next step.
    std::string barrier(const Times& times, int stage) const {
        int waiting = main;
        std::string more;
        for (size_t m = 0; m < of.size(); m++) {
            const int begin = times.stages[m] ? times.stages[m] : times.count;
            if (!times.aside(m) || (begin != stage && times.ends[m] != stage)) continue;
            waiting += of[m].second - of[m].first;
            more += cat(" || (warp >= ", of[m].first, "u && warp < ", of[m].second, "u)");
        }
        // With more stages than barriers in hardware, no member is aside and all wait at each.
        constexpr int kBarriers = 15;  // number 0 is __syncthreads()'s
        return cat(waiting < warps ? cat("if (warp < ", main, "u", more, ") ") : "", "wait_for(",
                   1 + (stage - 1) % kBarriers, ", ", 32 * waiting, ");\n");
    }

  private:
    void share_out(const LoweredOp& op, const Times& times, const std::vector<int64_t>& blocks,
                   int stage) {
        std::vector<size_t> members;
        for (size_t m = 0; m < of.size(); m++)
            if (times.stages[m] == stage && !times.aside(m)) members.push_back(m);
        std::vector<int> given(members.size(), 1);
        const auto load = [&](size_t i) {
            return cost_of(op.members[members[i]]).flops / given[i];
        };
        for (int left = main - static_cast<int>(members.size()); left > 0; left--) {
            size_t most = members.size();
            for (size_t i = 0; i < members.size(); i++)
                if (given[i] < blocks[members[i]] &&
                    (most == members.size() || load(i) > load(most)))
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
};

}  // namespace

uint32_t steps_at(const LoweredOp& sequence) {
    return static_cast<uint32_t>(BlockLayout(sequence).tail + 8);
}

bool block_fits(const LoweredOp& op, const Limits& limits) {
    if (!std::all_of(op.members.begin(), op.members.end(), of_warps) ||
        BlockLayout(op).bytes > static_cast<int>(kMaxGroupBytes))
        return false;
    const Times times(op, blocks_of(op, limits));
    if (!Places(op, times, shared_bytes(limits)).fits) return false;
    if (times.count < 2) return false;  // what does not wait shares a launch of many blocks
    // Measured on an H200: a launch in a graph takes 1.7 us, a barrier and the start of a stage
    // 0.25; one processor does some 60 flops a nanosecond in tiles of threads, moves some 60 bytes,
    // and takes 0.045 us for a warp's rows of softmax or a norm, a few hundred instructions.
    constexpr double kLaunch = 1.7, kStage = 0.25, kRate = 60e3, kRow = 0.045;
    const Cost cost = cost_of(op);
    double work = (cost.flops + cost.bytes) / kRate;
    for (const LoweredOp& member : op.members)
        if (is_row_op(anchor(member)))
            work += kRow * static_cast<double>(row_warps(member, one_block(limits)));
    return kStage * times.count + work < kLaunch * times.count;
}

KernelText block_text(const LoweredOp& op, const Limits& limits) {
    const std::vector<int64_t> blocks = blocks_of(op, limits);
    const Times times(op, blocks);
    const Places places(op, times, shared_bytes(limits));
    const BlockLayout layout(op);
    const size_t members = op.members.size();
    KernelText text;
    text.includes = {"block.cuh"};
    for (size_t m = 0; m < members; m++) {
        const LoweredOp member = places.moved(op.members[m]);
        const KernelText part = body_text(member, one_block(limits));
        check(!part.workspace && !part.counters && !part.shared && part.maps.empty(),
              "cuda: an op in one block that is no kernel of warps");
        text.includes.insert(part.includes.begin(), part.includes.end());
        const std::string name = cat("@_", m);
        text.body +=
            places_struct(name + "_Block", member, places, op) + replaced(part.body, "@", name);
    }
    const Teams teams(op, times, blocks);
    const int warps = teams.warps;
    text.name = cat("block_of_", members);
    text.threads = 32 * warps;
    text.shared = static_cast<uint32_t>(places.bytes);

    std::string steps;
    for (int stage = 0; stage < times.count; stage++) {
        steps += cat("        // stage ", stage, "\n");
        for (size_t m = 0; m < members; m++) {
            if (times.stages[m] != stage) continue;
            const auto [begin, end] = teams.of[m];
            steps +=
                "        " + by_warps(begin, end, warps,
                                      cat("{  // node ", op.members[m].node, ": ",
                                          title(op.members[m]), "\n            @_", m, "_body(@_",
                                          m, "_Block{block, slice}, Grid{warp - ", begin, "u, ",
                                          end - begin, "u, 32u, warp * 32u});\n        }\n"));
        }
        steps += "        " + teams.barrier(times, stage + 1);
    }
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
                          in, "    finish_copies();\n    const int64_t steps = block.integer(",
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
