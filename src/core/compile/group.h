// Grouping of ops into one, for vertical and horizontal fusion.
//
// Invariant: groups are convex, no path of the dependence graph leaves one and comes back, so that
// the graph of groups is acyclic. Edges are def-use pairs and WAR hazards: from readers of a param
// or state to the writer of its next content. A value that is read outside its group, an output or
// a next content is an output of the fused op; others are never materialised.
#pragma once

#include <algorithm>
#include <map>
#include <optional>

#include "core/base/interrupt.h"
#include "core/compile/passes.h"
#include "core/compile/paths.h"
#include "core/compile/target.h"

namespace aicf {

/// Adjacency lists in CSR form, in the order of the given pairs.
class Lists {
  public:
    Lists() = default;
    Lists(size_t keys, const std::vector<std::pair<int, int>>& pairs)
        : begin_(keys + 2, 0), items_(pairs.size()) {
        for (auto [key, item] : pairs) begin_[key + 2]++;
        for (size_t key = 2; key < begin_.size(); key++) begin_[key] += begin_[key - 1];
        for (auto [key, item] : pairs) items_[begin_[key + 1]++] = item;
    }
    std::span<const int> operator[](int key) const {
        return {items_.data() + begin_[key], items_.data() + begin_[key + 1]};
    }

  private:
    std::vector<int> begin_, items_;
};

/// Whether an upcast is added to elements of its width, nothing else reads it, and the sum is
/// stored, since several ops read it. `readers`: by value, ascending.
template <class Readers>
bool makes_stored_sum(const LoweredOp& upcast, const std::vector<LoweredOp>& ops,
                      const Readers& readers) {
    const View& wide = upcast.outputs[0];
    const auto& alone = readers[wide.value];
    if (alone.empty() || alone.front() != alone.back()) return false;
    const LoweredOp& add = ops[static_cast<size_t>(alone.front())];
    const auto& all = readers[add.outputs[0].value];
    return add.def->name == "add" && add.inputs[0].value != add.inputs[1].value && !all.empty() &&
           all.front() != all.back() &&
           std::all_of(add.inputs.begin(), add.inputs.end(), [&](const View& view) {
               return is_contiguous(view.shape, view.strides) &&
                      element_count(view.shape) == element_count(wide.shape);
           });
}

/// Bytes of an operand in an argument block: its offset, address, sizes and strides.
size_t operand_bytes(const View& view);

/// A step of an optimizer on its numbers alone.
bool number_update(const LoweredOp& op);

/// A group of independent members, each with operands of its own.
LoweredOp group_of(const std::vector<LoweredOp>& ops, const std::vector<int>& members);

/// A partition of the ops into groups, each to become one op.
class Groups {
  public:
    Groups(Lowered& lowered, const Target& target);

  protected:
    enum class Merge { done, forbidden, too_large };
    /// Merges two groups, unless `means` finds the region illegal, it would overwrite an operand it
    /// still reads, the target refuses it, or a cycle would arise. `last`: ops after it are still
    /// ungrouped, which bounds the search for cycles.
    Merge merge(int a, int b, bool (*means)(const LoweredOp&), int last);
    /// Whether both groups or neither precede host calls.
    bool together(int a, int b) const {
        return before_.empty() || before_[members_[a].front()] == before_[members_[b].front()];
    }
    void join(int a, int b, std::vector<int> merged);

    /// The list again, each group at its place, unless it waits for something there: a sum joined
    /// by a cast that stood far behind it keeps none of its elements waiting.
    void emit();

    /// Whose place in the list a group takes: its anchor's or else its last member's.
    virtual int stands_at(int group) const;
    /// The op of some members, all those of groups a and b: a region, if nothing else.
    virtual LoweredOp compose(const std::vector<int>& members, int a, int b) const {
        return region(members, a, b);
    }
    /// Whether group `reader` reads results of group `from` only with the layout they were written
    /// in.
    bool whole_reads(int reader, int from) const;
    ~Groups() = default;

    std::vector<LoweredOp>& ops_;
    const Target& machine_;
    Lists successors_, predecessors_;        // by op
    std::vector<int> producer_;              // by value: the op that writes it
    Lists readers_;                          // by value
    std::vector<int> group_;                 // by op
    std::vector<std::vector<int>> members_;  // by group, ascending
    std::vector<char> kept_;                 // by value: an output or a next content
    std::vector<ValueId> target_;            // by value: whose next content it is
    std::vector<ValueId> next_of_;           // by value: its next content

  private:
    /// Whether the op would write a param or state that one of its steps still reads (WAR).
    bool overwrites(const LoweredOp& op) const;
    /// Sufficient test for a path between two groups, by the spanning forest.
    bool known_path(int from, int to) const;
    /// Whether a path leads from group a to group b through a third group: merging them would
    /// create a cycle. Bidirectional search.
    bool makes_cycle(int a, int b, int last);
    LoweredOp region(const std::vector<int>& members, int a, int b) const;

    Forest known_;  // spanning forest of the dependence graph
    std::vector<char> before_;
    std::vector<int> seen_;  // by group
    int now_ = 0;
};

}  // namespace aicf
