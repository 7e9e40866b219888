// Where the values of a step or a turn in one block of threads lie, and when its members run.
#include <algorithm>
#include <optional>

#include "core/compile/memory.h"
#include "kernels/cuda/block.h"

namespace aicf::cuda {

namespace {

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
Paddings find_paddings(const LoweredOp& op, const Turns& turns) {
    Paddings result;
    std::vector<std::pair<ValueId, ValueId>> alike_pairs = turns.next;  // one place, two values
    for (size_t k = 0; k < op.outputs.size(); k++)
        if (const int64_t in = op.attrs.ints("carried")[k]; in >= 0)
            alike_pairs.emplace_back(op.outputs[k].value, op.inputs[static_cast<size_t>(in)].value);
    for (const auto* views : {&op.inputs, &op.outputs, &op.inner})
        for (const View& view : *views)
            if (!turns.outside.contains(view.value) && view.shape.rank() == 2 &&
                view.shape[0] > 1 && view.shape[1] % 16 == 0 && view.shape[1] > 0 &&
                dtype_size(view.dtype) == 4)
                result[view.value] = {view.shape[0], view.shape[1], view.shape[1] + 4};
    for (bool again = true; again;) {
        again = false;
        for (const auto& [to, from] : alike_pairs) {
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

}  // namespace

Times::Times(const LoweredOp& op, const std::vector<int64_t>& blocks) : stages(stages_of(op)) {
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
/// The first stage that reads what a member writes, or writes over what it reads.
int Times::needed_at(const LoweredOp& op, size_t member) const {
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

Places::Places(const LoweredOp& op, const Times& times, int64_t room, const Turns& turns)
    : Places(op, times, room, turns, find_paddings(op, turns)) {
    const auto lies_here = [&](const auto& one) { return shared.contains(one.first); };
    if (!fits || !std::all_of(paddings.begin(), paddings.end(), lies_here))
        *this = Places(op, times, room, turns, {});
}

int64_t Places::bytes_of(const View& whole) const {
    const auto at = paddings.find(whole.value);
    return at == paddings.end() ? cuda::bytes_of(whole)
                                : at->second.rows * at->second.pitch * dtype_size(whole.dtype);
}

LoweredOp Places::moved(LoweredOp member) const {
    const bool update = is_update(anchor(member));
    for (auto* views : {&member.inputs, &member.outputs})
        for (View& view : *views)
            if (const auto at = paddings.find(view.value); at != paddings.end())
                view = *padded(view, at->second, update);
    return member;
}

bool Places::all_stay(const LoweredOp& member) const {
    const auto stays = [&](const View& view) {
        return shared.contains(view.value) && !slots.contains(view.value);
    };
    return std::all_of(member.inputs.begin(), member.inputs.end(), stays) &&
           std::all_of(member.outputs.begin(), member.outputs.end(), stays);
}

Places::Places(const LoweredOp& op, const Times& times, int64_t room, const Turns& turns,
               Paddings wanted)
    : paddings(std::move(wanted)) {
    const std::vector<int64_t>& to = op.attrs.ints("carried");
    for (size_t k = 0; k < op.inputs.size(); k++) operand[op.inputs[k].value] = k;
    for (size_t k = 0; k < op.outputs.size(); k++) {
        operand[op.outputs[k].value] = op.inputs.size() + k;
        if (to[k] >= 0) carried[op.outputs[k].value] = op.inputs[static_cast<size_t>(to[k])].value;
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
                use.by_far &= !turns.loop && (is_update(kind) || is_small(kind));
            }
    }
    for (auto [out, in] : carried)  // one place, two values
        if (uses.contains(out) && uses.contains(in))
            uses[in].by_far = uses[in].by_far && uses[out].by_far;
    const auto turning = [&](ValueId id, const View& view, int many, int phase) {
        slots[id] = {round_up(bytes_of(view)), many, phase};
    };
    for (const View& view : op.inputs)
        if (turns.rows.contains(view.value)) turning(view.value, view, turns.ahead, 0);
    for (const View& view : op.outputs)
        if (turns.kept.contains(view.value)) turning(view.value, view, 2, 1);
    for (const View& view : op.inputs)
        for (auto [out, in] : turns.next)
            if (in == view.value) {
                turning(in, view, 2, 0);
                turning(out, view, 2, 1);
                carried[out] = in;
            }
    const int count = times.count;
    TimeTree taken(count);
    const auto place = [&](const View& view, int first, int last) {
        std::vector<const RangeSet*> found;
        taken.find(first, last, found);
        const auto many = slots.find(view.value);
        const int64_t size =
                          round_up(bytes_of(view)) * (many == slots.end() ? 1 : many->second.count),
                      at = first_fit(found, size);
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
    std::set<ValueId> handed_on;
    for (auto [out, in] : carried) handed_on.insert(in);
    for (const View& view : op.inner) near.push_back(&view);
    for (const auto* views : {&op.inputs, &op.outputs})
        for (const View& view : *views)
            if (!carried.contains(view.value) && !turns.outside.contains(view.value) &&
                (!turns.loop || uses.contains(view.value) || handed_on.contains(view.value)))
                (use_of(&view).by_far && !turns.loop ? far : near).push_back(&view);
    const auto larger = [&](const View* a, const View* b) { return bytes_of(*a) > bytes_of(*b); };
    std::stable_sort(near.begin(), near.end(), larger);
    std::stable_sort(far.rbegin(), far.rend(), larger);
    for (const View* view : near) {
        const bool inner = !operand.contains(view->value);
        if (!place(*view, inner ? use_of(view).first : 0, inner ? use_of(view).last : count - 1))
            return;
    }
    for (const View* view : far) place(*view, 0, count - 1);
    for (auto [out, in] : carried)
        if (const auto at = shared.find(in); at != shared.end()) shared[out] = at->second;
    fits = true;
}

}  // namespace aicf::cuda
