// Graph rewrites, as an ordered list one can read and switch.
#pragma once

#include "core/base/interrupt.h"
#include "core/compile/target.h"

namespace aicf {

struct Pass {
    std::string name;
    bool keeps_bits;           // true: every state and output byte is the same with and without it
    void (*on_graph)(Graph&);  // one of the two is null
    void (*on_lowered)(Lowered&, const Target&);
};
const std::vector<Pass>& all_passes();  // in the order of "default"

/// What stands for what while a pass rewrites a graph. Ids stay; readers move.
class Substitution {
  public:
    explicit Substitution(const Graph& graph);
    ValueId operator[](ValueId id) const {
        return id < static_cast<ValueId>(now_.size()) ? now_[id] : id;
    }
    void replace(ValueId from, ValueId to) { now_[from] = to; }
    /// To be called node by node, in their order.
    void rename(Node& node) const;
    /// Outputs, assigns and gradients, after the nodes.
    void finish(Graph& graph) const;

  private:
    std::vector<ValueId> now_;
};

/// By value id: whether a gradient names it as its loss or value. A pass keeps the one dependent on
/// the other.
std::vector<char> linked_values(const Graph& graph);

/// Activations and gradients become bfloat16; changes bits, so compile's math asks for it
/// (mixed.cpp).
void store_in_16_bits(Graph& graph);
/// Computes what depends on constants alone (fold.cpp).
void fold_constants(Graph& graph);
/// Computes a graph that reads constants alone: the bytes of its outputs, in their order. Compiling
/// runs nothing, so whoever runs steps registers this.
using Evaluator = std::vector<std::vector<char>> (*)(const Graph& graph);
void register_evaluator(Evaluator evaluator);

/// Rewrites of single nodes that keep every bit (simplify.cpp).
void simplify(Graph& graph);
/// (rewrite, why no bit changes), in the order of the table.
std::vector<std::pair<std::string, std::string>> simplify_rules();
/// Takes reshapes, transposes and casts away around reductions (simplify.cpp).
void bare_reductions(Graph& graph);

/// Pointwise ops take the shape of the product whose result they read in another one (prepare.cpp).
void follow_products(Lowered& lowered);
/// Each reader of a cast from 16 bits to float32 that can join one gets one of its own
/// (prepare.cpp).
void widen_for_each(Lowered& lowered);
/// Those that joined nobody are made once again (prepare.cpp).
void widen_once(Lowered& lowered);

/// Epilogue fusion of products: pointwise ops join the product they follow (fuse.cpp).
void fuse_products(Lowered& lowered, const Target& target);
/// Prologue and epilogue fusion of reductions: pointwise ops join the reduction that reads their
/// results alone, and the one they read (fuse.cpp).
void fuse_reductions(Lowered& lowered, const Target& target);
/// The same around ops on rows, softmax and its like (fuse.cpp).
void fuse_rows(Lowered& lowered, const Target& target);
/// Vertical fusion: pointwise ops that feed each other become one op (fuse.cpp).
void fuse_pointwise(Lowered& lowered, const Target& target);
/// Multi-output fusion: pointwise ops that read the same elements become one op (fuse.cpp).
void fuse_outputs(Lowered& lowered, const Target& target);
/// Multi-tensor apply: the updates of an optimizer become one op (group.cpp).
void fuse_updates(Lowered& lowered, const Target& target);
/// Loops that one block of threads does sooner than their turns' launches take become one launch
/// (sequence.cpp).
void fuse_tails(Lowered& lowered, const Target& target);
void fuse_loops(Lowered& lowered, const Target& target);
/// Single-block fusion: a step that one block of threads does sooner than its ops' launches take
/// becomes one sequence (sequence.cpp).
void fuse_step(Lowered& lowered, const Target& target);
/// Scalar prologue: what makes an optimizer's numbers joins its updates (group.cpp).
void fuse_scalars(Lowered& lowered, const Target& target);
/// Horizontal fusion: small ops that do not wait for each other share a launch (group.cpp).
void fuse_horizontally(Lowered& lowered, const Target& target);

/// What a concat joins is written where it lies in the result (parts.cpp).
void write_parts(Lowered& lowered);

/// The named passes in the given order; GraphError for a name that does not exist.
std::vector<const Pass*> select_passes(const std::vector<std::string>& names);

}  // namespace aicf
