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

/// Finds the values to pad: those of rows of 16, 32, ... words, as far as all members can read them
/// so. Operands that an update goes through element by element are padded alike or not at all.
class PaddingSearch {
  public:
    PaddingSearch(const LoweredOp& op, const Turns& turns) : op_(op), turns_(turns) {}

    Paddings find() {
        add_candidates();
        do {
            changed_ = false;
            drop_unequal_pairs();
            for (const LoweredOp& member : op_.members) {
                drop_unreadable(member);
                if (is_update(anchor(member))) drop_unequal_operands(member);
            }
        } while (changed_);
        return result_;
    }

  private:
    void add_candidates() {
        for (const auto* views : {&op_.inputs, &op_.outputs, &op_.inner})
            for (const View& view : *views)
                if (!turns_.outside.contains(view.value) && view.shape.rank() == 2 &&
                    view.shape[0] > 1 && view.shape[1] % 16 == 0 && view.shape[1] > 0 &&
                    dtype_size(view.dtype) == 4)
                    result_[view.value] = {view.shape[0], view.shape[1], view.shape[1] + 4};
    }
    void drop(ValueId id) { changed_ |= result_.erase(id) > 0; }
    std::optional<Padding> padding(ValueId id) const {
        const auto at = result_.find(id);
        return at == result_.end() ? std::nullopt : std::optional(at->second);
    }
    void drop_unequal(const std::vector<ValueId>& ids) {
        const auto alike = [&](ValueId id) { return padding(id) == padding(ids[0]); };
        if (std::all_of(ids.begin(), ids.end(), alike)) return;
        for (const ValueId id : ids) drop(id);
    }

    /// Of values that follow each other in one place.
    void drop_unequal_pairs() {
        for (const auto& [to, from] : turns_.next) drop_unequal({to, from});
        for (size_t k = 0; k < op_.outputs.size(); k++)
            if (const int64_t in = op_.attrs.ints("carried")[k]; in >= 0)
                drop_unequal({op_.outputs[k].value, op_.inputs[static_cast<size_t>(in)].value});
    }
    void drop_unreadable(const LoweredOp& member) {
        const bool update = is_update(anchor(member));
        for (const auto* views : {&member.inputs, &member.outputs})
            for (const View& view : *views)
                if (const auto found = padding(view.value); found && !padded(view, *found, update))
                    drop(view.value);
    }
    /// Of the tensors of each update.
    void drop_unequal_operands(const LoweredOp& member) {
        const auto tensors = static_cast<size_t>(anchor(member).numbers);
        if (member.body.empty()) {
            std::vector<ValueId> ids;
            for (size_t k = 0; k < std::min(tensors, member.inputs.size()); k++)
                ids.push_back(member.inputs[k].value);
            for (const View& view : member.outputs) ids.push_back(view.value);
            drop_unequal(ids);
        }
        for (const RegionStep& step : member.body) {
            std::vector<ValueId> ids;
            for (size_t k = 0; k < std::min(tensors, step.inputs.size()); k++)
                ids.push_back(member.operand(step.inputs[k]).value);
            for (const int number : step.outputs) ids.push_back(member.operand(number).value);
            drop_unequal(ids);
        }
    }

    const LoweredOp& op_;
    const Turns& turns_;
    Paddings result_;
    bool changed_ = false;
};

/// Finds room in shared memory for the values of a sequence, the largest first: operands for all
/// its stages, inner values from their first use to their last.
class Placement {
  public:
    Placement(Places& places, const LoweredOp& op, const Times& times, int64_t room,
              const Turns& turns)
        : places_(places),
          op_(op),
          times_(times),
          room_(room),
          turns_(turns),
          taken_(times.count) {}

    /// False where a value finds no room that cannot stay in global memory.
    bool run() {
        number_operands();
        find_uses();
        add_slots();
        sort_values();
        for (const View* view : required_)
            if (!place(*view)) return false;
        for (const View* view : optional_) place(*view);
        for (auto [out, in] : places_.carried)
            if (const auto at = places_.shared.find(in); at != places_.shared.end())
                places_.shared[out] = at->second;
        return true;
    }

  private:
    struct Use {
        int first, last;           // stages
        bool only_updates = true;  // no op but updates and rings touches it
    };
    Use use_of(ValueId id) const {
        const auto at = uses_.find(id);
        return at == uses_.end() ? Use{0, times_.count - 1} : at->second;
    }

    void number_operands() {
        const std::vector<int64_t>& carried = op_.attrs.ints("carried");
        for (size_t k = 0; k < op_.inputs.size(); k++) places_.operand[op_.inputs[k].value] = k;
        for (size_t k = 0; k < op_.outputs.size(); k++) {
            const ValueId out = op_.outputs[k].value;
            places_.operand[out] = op_.inputs.size() + k;
            if (carried[k] >= 0)
                places_.carried[out] = op_.inputs[static_cast<size_t>(carried[k])].value;
        }
    }
    void find_uses() {
        for (size_t m = 0; m < op_.members.size(); m++) {
            const LoweredOp& member = op_.members[m];
            const bool update = is_update(anchor(member)) || is_small(anchor(member));
            for (const auto* views : {&member.inputs, &member.outputs})
                for (const View& view : *views) {
                    const int last = times_.ends[m] - 1;
                    Use& use = uses_.emplace(view.value, Use{times_.stages[m], last}).first->second;
                    use.last = std::max(use.last, last);
                    use.only_updates &= update;
                }
        }
        for (auto [out, in] : places_.carried)  // one place, two values
            if (uses_.contains(out) && uses_.contains(in))
                uses_[in].only_updates &= uses_[out].only_updates;
    }
    /// Of rows, and of the two contents of a carry.
    void add_slots() {
        const auto add = [&](ValueId id, const View& view, int count, int phase) {
            places_.slots[id] = {round_up(places_.bytes_of(view)), count, phase};
        };
        for (const View& view : op_.inputs)
            if (turns_.rows.contains(view.value)) add(view.value, view, turns_.ahead, 0);
        for (const View& view : op_.outputs)
            if (turns_.kept.contains(view.value)) add(view.value, view, 2, 1);
        for (const View& view : op_.inputs)
            for (auto [out, in] : turns_.next)
                if (in == view.value) {
                    add(in, view, 2, 0);
                    add(out, view, 2, 1);
                    places_.carried[out] = in;
                }
    }
    void sort_values() {
        std::set<ValueId> handed_on;
        for (auto [out, in] : places_.carried) handed_on.insert(in);
        for (const View& view : op_.inner) required_.push_back(&view);
        for (const auto* views : {&op_.inputs, &op_.outputs})
            for (const View& view : *views) {
                const ValueId id = view.value;
                if (places_.carried.contains(id) || turns_.outside.contains(id) ||
                    (turns_.loop && !uses_.contains(id) && !handed_on.contains(id)))
                    continue;
                (use_of(id).only_updates && !turns_.loop ? optional_ : required_).push_back(&view);
            }
        const auto larger = [&](const View* a, const View* b) {
            return places_.bytes_of(*a) > places_.bytes_of(*b);
        };
        std::stable_sort(required_.begin(), required_.end(), larger);
        std::stable_sort(optional_.rbegin(), optional_.rend(), larger);  // most of them find room
    }
    bool place(const View& view) {
        const bool inner = !places_.operand.contains(view.value);
        const Use use = inner ? use_of(view.value) : Use{0, times_.count - 1};
        std::vector<const RangeSet*> found;
        taken_.find(use.first, use.last, found);
        const auto slots = places_.slots.find(view.value);
        const int count = slots == places_.slots.end() ? 1 : slots->second.count;
        const int64_t size = round_up(places_.bytes_of(view)) * count, at = first_fit(found, size);
        if (at + size > room_) return false;
        if (size) taken_.take(use.first, use.last, at, at + size);
        places_.shared[view.value] = at;
        places_.bytes = std::max(places_.bytes, at + size);
        return true;
    }

    Places& places_;
    const LoweredOp& op_;
    const Times& times_;
    const int64_t room_;
    const Turns& turns_;
    std::map<ValueId, Use> uses_;
    std::vector<const View*> required_, optional_;  // in shared memory, in the order of placing
    TimeTree taken_;                                // bytes, by stage
};

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
    : Places(op, times, room, turns, PaddingSearch(op, turns).find()) {
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
    fits = Placement(*this, op, times, room, turns).run();
}

}  // namespace aicf::cuda
