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

/// The replacement of each value while a pass rewrites a graph: readers are redirected, ids stay.
class Substitution {
  public:
    explicit Substitution(const Graph& graph);
    ValueId operator[](ValueId id) const {
        return id < static_cast<ValueId>(now_.size()) ? now_[id] : id;
    }
    void replace(ValueId from, ValueId to) { now_[from] = to; }
    /// To be called for each node, in topological order.
    void rename(Node& node) const;
    /// Outputs, assigns and gradients, after the nodes.
    void finish(Graph& graph) const;

  private:
    std::vector<ValueId> now_;
};

/// Whether a view covers its value in C order (copies.cpp).
bool covers(const View& view, const Type& type);

/// By value id, whether a gradient record names it as loss or value; passes must keep the loss
/// dependent on the value.
std::vector<char> linked_values(const Graph& graph);

/// Activations and gradients become bfloat16; changes bits, so compile's math asks for it
/// (mixed.cpp).
void store_in_16_bits(Graph& graph);
/// For tests: whether it takes products of any size, so that small ones reach the kernels of 16
/// bits. Returns what it was.
bool narrow_any_size(bool any);
/// Constant folding (fold.cpp).
void fold_constants(Graph& graph);
/// Evaluates a graph of constants: the bytes of its outputs, in order. Compiling cannot run ops, so
/// the runtime registers this.
using Evaluator = std::vector<std::vector<char>> (*)(const Graph& graph);
void register_evaluator(Evaluator evaluator);

/// Algebraic simplification, bit for bit (simplify.cpp).
void simplify(Graph& graph);
/// (rewrite, why no bit changes), in the order of the table.
std::vector<std::pair<std::string, std::string>> simplify_rules();
/// Removes reshapes, transposes and casts around reductions (simplify.cpp).
void simplify_reductions(Graph& graph);

/// Pointwise ops that read a product's result reshaped take the product's shape (prepare.cpp).
void adopt_product_shapes(Lowered& lowered, const Target& target);
/// Clones a cast from 16 bits to float32 for each reader that can fuse it (prepare.cpp).
void clone_upcasts(Lowered& lowered);
/// Merges the clones that were not fused (prepare.cpp).
void merge_upcasts(Lowered& lowered);

/// Epilogue fusion of products: pointwise ops join the product they follow (fuse.cpp).
void fuse_products(Lowered& lowered, const Target& target);
/// Prologue and epilogue fusion of reductions (fuse.cpp).
void fuse_reductions(Lowered& lowered, const Target& target);
/// Norms of rows that a copy brings together take them where they are (row_views.cpp). Pointwise
/// ops around them go through their elements in the order of the rows, until restore_order.
void spread_rows(Lowered& lowered, const Target& target);
void restore_order(Lowered& lowered);
/// Prologue and epilogue fusion of row ops, softmax and its like (fuse.cpp).
void fuse_rows(Lowered& lowered, const Target& target);
/// Vertical fusion of pointwise producers and consumers (fuse.cpp).
void fuse_pointwise(Lowered& lowered, const Target& target);
/// Multi-output fusion: pointwise ops that read the same view become one op (fuse.cpp).
void fuse_outputs(Lowered& lowered, const Target& target);
/// Multi-tensor apply: the updates of an optimizer become one op (updates.cpp).
void fuse_updates(Lowered& lowered, const Target& target);
/// The last product, its loss and their gradients as one op (fuse.cpp).
void fuse_tails(Lowered& lowered, const Target& target);
/// Loops that are faster in one thread block become one launch (sequence.cpp).
void fuse_loops(Lowered& lowered, const Target& target);
/// Single-block fusion: a step that is faster in one thread block becomes one sequence
/// (sequence.cpp).
void fuse_step(Lowered& lowered, const Target& target);
/// Products of the same rows, each of the one before it, become one launch (chains.cpp).
void fuse_chains(Lowered& lowered, const Target& target);
/// A chain adds the squares of a loss that is taken of its rows (losses.cpp).
void fuse_losses(Lowered& lowered, const Target& target);
/// What small gradients are cut into is added by the updates that read them (cuts.cpp).
void leave_cuts(Lowered& lowered, const Target& target);
/// Scalar prologue: the ops that compute an optimizer's scalars join its updates (updates.cpp).
void fuse_scalars(Lowered& lowered, const Target& target);
/// A norm's gradient and the sums over rows beside it become one kernel (row_sums.cpp).
void fuse_row_sums(Lowered& lowered, const Target& target);
/// Epilogue fusion of updates: of a small net each joins what makes its gradient
/// (update_epilogues.cpp).
void fuse_update_epilogues(Lowered& lowered, const Target& target);
/// Horizontal fusion: small independent ops share a launch (horizontal.cpp).
void fuse_horizontally(Lowered& lowered, const Target& target);

/// Copy elision: what is copied is made or read where the copy would be (copies.cpp).
void elide_copies(Lowered& lowered, const Target& target);
/// Concat elision: producers write into the concat's result (concats.cpp).
void elide_concats(Lowered& lowered);

/// The named passes in the given order; GraphError for a name that does not exist.
std::vector<const Pass*> select_passes(const std::vector<std::string>& names);

}  // namespace aicf
