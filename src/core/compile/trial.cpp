#include "core/compile/trial.h"

#include <map>

namespace aicf {

namespace {

/// Calls `take(list, op)` for every op with its own kernel, in loops and groups too.
template <class Take>
void each_op(const Lowered& lowered, const Take& take) {
    for (const LoweredOp& op : lowered.ops) {
        if (op.loop) {
            each_op(*op.loop, take);
            continue;
        }
        take(lowered, op);
        if (is_one_block(op)) continue;  // its members have no kernels of their own
        for (const LoweredOp& member : op.members) take(lowered, member);
    }
}

/// Appends `op` on fresh values.
void add_copy(Lowered& trial, const Lowered& from, const LoweredOp& op, const std::string& name) {
    LoweredOp copy = op;
    copy.node = -1;
    copy.candidate = name;
    std::map<ValueId, ValueId> renamed;
    const auto own = [&](View& view, Role role) {
        const auto [at, fresh] = renamed.emplace(view.value, kNone);
        if (fresh) {
            Value value;
            value.id = at->second = static_cast<ValueId>(trial.values.size());
            value.type = from.values[static_cast<size_t>(view.value)].type;
            value.role = role;
            if (role == Role::param) {
                value.name = cat("x", value.id);
                if (is_float(value.type.dtype)) value.init = {Init::uniform, -1, 1, {}};
            }
            trial.views.push_back({value.id, value.type.dtype, value.type.shape,
                                   contiguous_strides(value.type.shape), 0});
            trial.values.push_back(std::move(value));
        }
        view.value = at->second;
    };
    for (View& view : copy.inputs) own(view, Role::param);
    for (View& view : copy.outputs) own(view, Role::temp);
    for (View& view : copy.inner) own(view, Role::temp);
    trial.ops.push_back(std::move(copy));
}

}  // namespace

std::vector<Choice> choices_of(const Lowered& lowered, const Target& target) {
    std::vector<Choice> choices;
    std::map<std::string, size_t> known;
    each_op(lowered, [&](const Lowered& list, const LoweredOp& op) {
        const std::vector<std::string> names = target.candidates(op);
        if (names.size() < 2) return;
        const auto [at, fresh] = known.emplace(signature(op), choices.size());
        if (fresh) {
            Choice choice{at->first, title(op), names, 0, cost_of(op), 0};
            for (const auto* views : {&op.inputs, &op.outputs})
                for (const View& view : *views)
                    choice.operand_bytes +=
                        byte_count(list.values[static_cast<size_t>(view.value)].type);
            choices.push_back(std::move(choice));
        }
        choices[at->second].ops++;
    });
    return choices;
}

Plan trial_plan(const Lowered& lowered, const std::string& wanted, const std::string& name,
                int copies, const Target& target) {
    Lowered trial;
    trial.name = "trial";
    each_op(lowered, [&](const Lowered& list, const LoweredOp& op) {
        if (!trial.ops.empty() || target.candidates(op).size() < 2 || signature(op) != wanted)
            return;
        for (int i = 0; i < copies; i++) add_copy(trial, list, op, name);
    });
    check(!trial.ops.empty(), "tune: no op has this signature");
    Candidates chosen;
    chosen[wanted] = name;
    choose_candidates(trial, chosen, target);
    verify(trial).require("tune");
    Plan plan = make_plan(trial, target, {});
    for (size_t i = 0; i < plan.ops.size(); i++) {  // serialise all ops
        plan.ops[i].lane = 0;
        plan.ops[i].waits.clear();
        if (i) plan.ops[i].waits.push_back(static_cast<int>(i) - 1);
    }
    verify(plan).require("tune");
    target.build(plan.kernels());
    return plan;
}

Kernels build_trials(const Lowered& lowered, const Wanted& wanted, const Target& target) {
    std::map<std::string, LoweredOp> ops;
    each_op(lowered, [&](const Lowered&, const LoweredOp& op) {
        if (target.candidates(op).size() > 1) ops.emplace(signature(op), op);
    });
    Kernels kernels;
    for (const auto& [wanted_signature, name] : wanted) {
        const auto at = ops.find(wanted_signature);
        check(at != ops.end(), "tune: no op has this signature");
        at->second.candidate = name;
        kernels.push_back(target.select(at->second));
    }
    target.build(kernels);
    return kernels;
}

}  // namespace aicf
