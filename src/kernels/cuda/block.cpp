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

    Places(const LoweredOp& op, const std::vector<int>& stages, int64_t room)
        : Places(op, stages, room, find_paddings(op)) {
        const auto lies_here = [&](const auto& one) { return shared.contains(one.first); };
        if (!fits || !std::all_of(paddings.begin(), paddings.end(), lies_here))
            *this = Places(op, stages, room, {});
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
    Places(const LoweredOp& op, const std::vector<int>& stages, int64_t room, Paddings wanted)
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
                    Use& use = uses.emplace(view.value, Use{stages[m], stages[m]}).first->second;
                    use.last = std::max(use.last, stages[m]);
                    use.by_far &= is_update(kind) || is_small(kind);
                }
        }
        for (auto [out, in] : carried)  // one place, two values
            if (uses.contains(out) && uses.contains(in))
                uses[in].by_far = uses[in].by_far && uses[out].by_far;
        const int count = stages.empty() ? 1 : *std::max_element(stages.begin(), stages.end()) + 1;
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
                          const BlockLayout& sequence) {
    const BlockLayout layout(member);
    std::string pointers, numbers;
    for (size_t k = 0; k < member.inputs.size() + member.outputs.size(); k++) {
        const View& view = member.operand(static_cast<int>(k));
        const auto at = places.shared.find(view.value);
        pointers += cat("            case ", layout.operand[k], ":\n                return ");
        if (at != places.shared.end())
            pointers += cat("held_at<T>(shared, ", at->second, ", ", view.offset, ");\n");
        else
            pointers +=
                cat("block.template ptr<T>(", sequence.operand[places.operand.at(view.value)],
                    ") + ", view.offset, ";\n");
    }
    const std::vector<Scalar> scalars = pack_scalars(member);
    for (size_t k = 0; k < scalars.size(); k++)
        numbers += cat("            case ", layout.scalars + 8 * static_cast<int>(k),
                       ":\n                return ", scalars[k].i, "ll;\n");
    return cat(
        "struct ", name,
        " {\n    const @_Block& block;\n    template <class T>\n    "
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

std::string replaced(std::string text, const std::string& from, const std::string& to) {
    for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
        text.replace(at, from.size(), to);
    return text;
}

/// How many warps each of the members of a stage gets: those with more to do more, but no more than
/// they have blocks.
std::vector<int> shared_out(const std::vector<double>& work, const std::vector<int64_t>& blocks,
                            int warps) {
    std::vector<int> given(work.size(), 1);
    for (int left = warps - static_cast<int>(work.size()); left > 0; left--) {
        size_t most = work.size();
        for (size_t i = 0; i < work.size(); i++)
            if (given[i] < blocks[i] &&
                (most == work.size() || work[i] / given[i] > work[most] / given[most]))
                most = i;
        if (most == work.size()) break;
        given[most]++;
    }
    return given;
}

/// A statement for warps [begin, end) of so many.
std::string by_warps(int begin, int end, int warps, const std::string& statement) {
    const std::string from = begin ? cat("warp >= ", begin, "u") : "",
                      to = end < warps ? cat("warp < ", end, "u") : "";
    const std::string both = from.empty() || to.empty() ? from + to : from + " && " + to;
    return both.empty() ? statement : cat("if (", both, ") ", statement);
}

}  // namespace

uint32_t steps_at(const LoweredOp& sequence) {
    return static_cast<uint32_t>(BlockLayout(sequence).tail + 8);
}

bool block_fits(const LoweredOp& op, const Limits& limits) {
    if (!std::all_of(op.members.begin(), op.members.end(), of_warps) ||
        BlockLayout(op).bytes > static_cast<int>(kMaxGroupBytes))
        return false;
    const std::vector<int> stages = stages_of(op);
    if (!Places(op, stages, shared_bytes(limits)).fits) return false;
    // Measured on an H200: a launch in a graph takes 1.7 us, a barrier and the start of a stage
    // 0.15, and one processor does some 60 flops a nanosecond in tiles of threads.
    constexpr double kLaunch = 1.7, kStage = 0.15, kFlops = 60e3;
    const int count = *std::max_element(stages.begin(), stages.end()) + 1;
    return kStage * count + cost_of(op).flops / kFlops < kLaunch * count;
}

KernelText block_text(const LoweredOp& op, const Limits& limits) {
    Limits own = limits;
    own.processors = 1;
    own.one_block = true;
    const std::vector<int> stages = stages_of(op);
    const Places places(op, stages, shared_bytes(limits));
    const BlockLayout layout(op);
    KernelText text;
    text.includes = {"block.cuh"};
    std::vector<int64_t> blocks;  // of warps, by member
    std::map<int, int64_t> wanted;
    for (size_t m = 0; m < op.members.size(); m++) {
        const LoweredOp member = places.moved(op.members[m]);
        const KernelText part = body_text(member, own);
        check(!part.workspace && !part.counters && !part.shared && part.maps.empty(),
              "cuda: an op in one block that is no kernel of warps");
        text.includes.insert(part.includes.begin(), part.includes.end());
        const std::string name = cat("@_", m);
        text.body +=
            places_struct(name + "_Block", member, places, layout) + replaced(part.body, "@", name);
        blocks.push_back(std::max<int64_t>(part.blocks * part.threads / 32, 1));
        wanted[stages[m]] += blocks[m];
    }
    int warps = kLeastWarps;
    for (auto [stage, all] : wanted)
        warps = std::max(warps, static_cast<int>(std::min<int64_t>(all, kMostWarps)));
    text.threads = 32 * warps;
    text.shared = static_cast<uint32_t>(places.bytes);

    std::string steps;
    for (auto [stage, all] : wanted) {
        std::vector<size_t> members;
        std::vector<double> work;
        std::vector<int64_t> most;
        for (size_t m = 0; m < op.members.size(); m++) {
            if (stages[m] != stage) continue;
            members.push_back(m);
            work.push_back(cost_of(op.members[m]).flops);
            most.push_back(blocks[m]);
        }
        const std::vector<int> given = shared_out(work, most, warps);
        steps += cat(stage ? "        __syncthreads();\n" : "", "        // stage ", stage, "\n");
        int first = 0;
        for (size_t i = 0; i < members.size(); i++) {
            const size_t m = members[i];
            const int begin = first % warps, end = begin + given[i];
            steps +=
                "        " +
                by_warps(begin, end, warps,
                         cat("{  // node ", op.members[m].node, ": ", title(op.members[m]),
                             "\n            @_", m, "_body(@_", m, "_Block{block}, Grid{warp - ",
                             begin, "u, ", given[i], "u, 32u, warp * 32u});\n        }\n"));
            first = end;
        }
    }
    text.name = cat("block_of_", op.members.size());
    std::string in, out;
    int turn = 0;
    const auto copy = [&](const char* name, const View& view, const std::string& arguments) {
        const int64_t bytes = bytes_of(view);
        const auto count = static_cast<int>(std::clamp<int64_t>((bytes + 127) / 128, 1, warps));
        turn = turn + count > warps ? 0 : turn;
        const int begin = std::exchange(turn, turn + count), end = begin + count;
        const auto rows = places.paddings.find(view.value);
        const std::string padding =
            rows == places.paddings.end()
                ? ""
                : cat(", ", 4 * rows->second.length, ", ", 4 * rows->second.pitch);
        return "    " + by_warps(begin, end, warps,
                                 cat(name, "<", bytes, ", ", count, padding, ">(", arguments,
                                     ", warp - ", begin, "u);\n"));
    };
    for (const auto* views : {&op.inputs, &op.outputs})
        for (const View& view : *views) {
            const auto at = places.shared.find(view.value);
            if (at == places.shared.end() || bytes_of(view) == 0) continue;
            const bool input = views == &op.inputs;
            const std::string held = cat("shared + ", at->second),
                              lies = cat("block.ptr<", input ? "const " : "", "char>(",
                                         layout.operand[places.operand.at(view.value)], ")");
            (input ? in : out) += input ? copy("copy_in", view, held + ", " + lies)
                                        : copy("copy_out", view, lies + ", " + held);
        }
    text.body +=
        body_head() + cat("    extern __shared__ __align__(16) char shared[];\n"
                          "    const uint32_t warp = threadIdx.x / 32;\n",
                          in, "    finish_copies();\n    const int64_t steps = block.integer(",
                          steps_at(op),
                          ");\n#pragma unroll 1\n    for (int64_t step = 0; step < steps; "
                          "step++) {\n",
                          steps, "        __syncthreads();\n    }\n", out, "}\n");
    return text;
}

}  // namespace aicf::cuda
