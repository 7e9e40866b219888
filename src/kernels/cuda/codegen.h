// From a lowered op to the CUDA C++ of one kernel, specialised to its shapes and strides.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "core/graph/op.h"

namespace aicf::cuda {

/// A tensor map that a kernel finds in the tail of its argument block: an input, or what lies in
/// its workspace, as lines of inner elements, outer of them in each of some batches, copied `line`
/// bytes by box elements at a time, permuted within 8 lines of 128 bytes, or of 64.
struct TensorMap {
    static constexpr int workspace = -1;  // as the input
    int input;
    DType dtype;                                            // of 16 bits, or f32
    int64_t inner, outer, batches, outer_step, batch_step;  // steps in elements
    int box = 0;
    uint64_t from = 0;  // byte of the workspace where it begins
    int line = 128;
};

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
constexpr int64_t power_of_two_from(int64_t n) {
    int64_t p = 1;
    while (p < n) p *= 2;
    return p;
}

constexpr int kGroupThreads = 256;  // of a group's blocks; the more, the fewer registers each has

/// Threads of a processor, of a launch with updates behind products: 128 registers each, so that
/// tiles of 64x64 of a layer of 1024 run at once (with 168 its step took an H200 10 us more).
constexpr int64_t kUpdateThreads = 512;
constexpr int64_t kTensorUpdateThreads = 640;  // the same, where tensor cores make the gradients
constexpr int64_t kNarrowUpdateThreads = 384;  // where 16 bits are multiplied without: none spill

/// One kernel as text, with how it is launched. "@" in `body` stands for the entry's symbol. The
/// text defines `void @_body(const Block<n>&, const Grid&)`, right for any number of blocks with no
/// fewer threads in all; those of at most kGroupThreads, of which products on tensor cores and of
/// few rows are, may count on their blocks. An entry alone makes it a kernel.
struct KernelText {
    std::string name;                // "relu_f32", as traces print it
    std::set<std::string> includes;  // the family's source: "reduce.cuh"
    std::string body;
    std::string author = {};  // of a custom op: text of its author, in which "@" is what it says
    int64_t blocks = 1;       // 0: nothing to do
    int threads = 256;
    int bound = 0;           // threads that the registers are dealt out for; 0: as launched
    int resident = 1;        // blocks that a processor shall hold
    uint32_t shared = 0;     // bytes
    uint64_t workspace = 0;  // bytes
    int counters = 0;        // words that are 0 before and after each run
    int cluster = 1;         // neighbouring blocks that run together
    std::vector<TensorMap> maps = {};
    std::vector<KernelText> parts = {};  // of a group: its members', bodies without an entry
    /// In one block: the body takes an @_Ahead for its Grid, which `@_ahead(block, grid)` makes
    /// before the first step.
    bool ahead = false;
    bool begins = false;  // the body says begin_kernel(), after what it reads before
};

struct Tiling;

/// What of a device the choice of a kernel rests on.
struct Limits {
    int processors = 0, major = 0;  // of the compute capability
    /// For a step in one block: bodies whose blocks are warps, which wait for no other.
    bool one_block = false, turns = false;  // turns: of a loop, where products read less
    /// In one block: the warps that run the body, 0 where that is not known yet; whether its
    /// operands stay where they are in shared memory.
    int team = 0;
    bool near = false;
    /// A product as a member of a chain: in tiles of all columns, these. `kept`: the output that it
    /// leaves in shared memory for the next one; -1: none.
    const Tiling* chain = nullptr;
    int kept = -1;
    /// The operand of such a member, outputs behind inputs, that lies in the warp's shared memory
    /// alone, 8 neighbours of a lane together; -1: none.
    int inner = -1;
    bool squares = false;  // of a loss, which such a member adds and stores in its place
    /// Of a block whose body counts on its threads, as a member of a group can on kGroupThreads.
    int most_warps = 32;
};
/// Shared memory that a block may have, in bytes.
int64_t shared_bytes(const Limits& limits);
/// Processors that run clusters of so many blocks at once. Of more than two some stay idle: an H100
/// of 132 runs 30 of four, and 15 of eight.
int64_t clustered_processors(const Limits& limits, int64_t blocks);

/// The kernel of an op; Unsupported when none fits.
KernelText kernel_text(const LoweredOp& op, const Limits& limits);
/// The same without an entry, of an op that is no group (families.cpp).
KernelText body_text(const LoweredOp& op, const Limits& limits);
/// Names of the kernels of an op, the one that kernel_text takes by itself first; empty for one.
std::vector<std::string> candidates(const LoweredOp& op, const Limits& limits);
/// Whether some family has kernels for the op.
bool has_kernel(const LoweredOp& op, const Limits& limits);
/// Whether a region is small enough to be quicker than its parts.
bool worth_fusing(const LoweredOp& region);
/// A copy from any strides into C order, as an op without a plan.
LoweredOp copy_op(DType dtype, const Dims& shape, const Dims& strides);

// ---- what the families write with ---------------------------------------------------------------

constexpr uint32_t kTailBytes = 64;  // holds the address of the counters, or a number of steps,
constexpr uint32_t kLateAt = 8;      // and of a product what it must not read early (kLate...)
// What the kernel before may write: the operands of a product, or another tensor that it reads.
constexpr uint32_t kLateA = 1, kLateB = 2, kLateRest = 4;
constexpr uint32_t kMapBytes = 128;
constexpr uint32_t kAttentionMaps = 4;  // of queries, keys, values and the result's gradient
/// The room an op's kernel has at the end of its block, of a product with two maps.
uint32_t tail_bytes(const LoweredOp& op);
/// The tail of a sequence, which its kernel gets alone: a tenth of the block, whose shapes stand in
/// the text. It is a block itself, without operands.
struct SequenceTail {
    explicit SequenceTail(const LoweredOp& op);
    // Where it holds how many steps a launch runs on each slice; on how many slices; whether fed
    // inputs may be read before what the launch waits for is done (1, else 0); by fed input, whose
    // slices lie one behind the other, where the last one is to be kept (null: nowhere); and the
    // address of each operand.
    static constexpr uint32_t steps = sizeof(ArgBlock), slices = steps + 8, early = slices + 8,
                              kept = early + 8;
    uint32_t operands, bytes;
};

/// Where pack_args puts things, by the same rule.
struct BlockLayout {
    explicit BlockLayout(const LoweredOp& op);
    std::vector<int> operand;  // byte offsets, inputs first
    int scalars = 0, tail = 0, bytes = 0;
    std::vector<int> parts;  // of a group: where its members' blocks begin
};

const char* cuda_type(DType dtype);  // as stored: "float", "Half", ...
const char* wide_type(DType dtype);
const char* sum_type(DType dtype);  // as computed: "float" for 16-bit types
const char* raw_type(DType dtype);  // same size, no meaning
/// The exponentials of softmax.h of rows of such elements.
std::string exps_type(DType dtype);

/// A struct named `name` with `at(i)`: the offset of element i of a shape in row-major order.
std::string place_struct(const std::string& name, const Dims& shape, const Dims& strides);
/// Its `step`: how far apart elements i to i + 3 lie, i a multiple of 4, where that is 0 or 1; else
/// -1.
int64_t place_step(const Dims& shape, const Dims& strides);
/// A text with another in the place of each `from`.
std::string replaced(std::string text, const std::string& from, const std::string& to);
/// The head of a body, and one with a pointer per operand: x0, x1, ... of the inputs, y0, ... of
/// outputs.
std::string body_head();
/// Those of a body that takes what is worked out ahead, and of the function that makes that.
std::string ahead_body_head();
std::string ahead_head();
/// Names the type of a body's argument block, @_Block.
std::string block_type(int bytes);
std::string body_head(const LoweredOp& op, const BlockLayout& layout, bool raw = false);
std::string pointers_of(const LoweredOp& op, const BlockLayout& layout, bool raw = false);

/// The statements of some steps of a body for element j: operands a0[j], ..., results r0[j], ...,
/// inner values t0, ..., numbers defined in `before`; the step that is not pointwise is v[j].
std::string body_formula(const LoweredOp& op, const BlockLayout& layout, std::string& before,
                         const std::vector<size_t>& steps);
/// Steps [first, last), and of those the ones that some values need.
std::vector<size_t> steps_between(size_t first, size_t last);
std::vector<size_t> steps_for(const LoweredOp& op, size_t first, size_t last,
                              std::vector<int> values);
/// The inputs that steps read, ascending.
std::vector<int> inputs_of(const LoweredOp& op, const std::vector<size_t>& steps);
/// How the statements spell an operand.
std::string operand_text(const LoweredOp& op, int number);
/// The statement that updates one element: tensors a0, ... to r0, ..., numbers u<operand> as R.
std::string update_formula(const LoweredDef& def);
/// A loop over `width` elements j of a formula. Where it has a step of Adam that is without
/// branches, so that the elements' chains interleave; the few whose numbers forbid that are done
/// again.
std::string each_update(const std::string& width, const std::string& formula);
/// The same with operands and results spelled as given, computed in `type`.
std::string update_formula(const LoweredDef& def, const std::string& type,
                           const std::vector<std::string>& in, const std::vector<std::string>& out);

/// What order.cuh sorts, the positions of `lines` lines of n by rows of which each line has `size`;
/// sums of `width` numbers a row in chunks, taken by `tiles` teams, of `part` bytes each.
struct Sorted {
    int64_t lines, n, size, chunk = 0, width = 1, tiles = 1, part = 4;
    bool zero = false;  // chunks start from +0, not from their first term
};
/// Whether there are enough positions for it, and few enough to be counted.
bool worth_sorting(const Sorted& sorted, const Limits& limits);
/// The struct @_O, `index` being where position p's key lies, and how the kernel is launched; the
/// statements of its body, of which `sums` make the result.
std::string order_struct(KernelText& text, const Sorted& sorted, const std::string& index,
                         const Limits& limits);
std::string order_body(const BlockLayout& layout, const std::string& sums);
/// `sums` of `order`, once positions are sorted by what lies in `keys`.
std::string sorted_first(const std::string& keys, const std::string& sums);
/// Sums rows, v elements at a time by so many lanes: positions lie at @_P and their elements at
/// @_D, rows of the result @_R::step apart and theirs at @_E.
std::string row_sums(const Sorted& sorted, const std::string& keys, const std::string& a, int64_t v,
                     int64_t lanes, const Limits& limits);
int64_t lanes_of(int64_t width, int64_t v);
/// How many elements of a shape move together: they lie side by side in all operands, whose lines
/// and the places `at` of elements are whole such vectors.
int vector_of(int64_t size, const Dims& shape, const std::vector<Dims>& operands,
              std::initializer_list<int64_t> at = {});
/// Of so many vectors, how many a thread takes at a time: more than one where that many threads
/// are there still.
int lots_of(int64_t vectors, int processors);

/// A number as an element of `dtype`, spelled in its raw type.
std::string element_literal(DType dtype, double number);

/// Merges axes that all operands step through as one and drops those of size 1.
struct Iteration {
    Dims shape;
    std::vector<Dims> strides;
    Iteration(const Dims& full, const std::vector<Dims>& operands);
};

// Of each family: whether it has a kernel for what a definition means, and the kernel.

/// Of the steps of a region whose functions have forms in near.h, those that hold where operands
/// stay below limits of their own: fewer comparisons for each element.
struct NearLimits {
    std::vector<size_t> steps;
    std::string limits, checks;  // for the head of a body; for each element, of `near`, `largest`
    std::string below = "1u";    // what `largest`, 0 at first, is to be below in the end
};
/// `one`: which operands are one number for all elements. `normal`: those below which exponentials
/// of what is below 0 are normal numbers, too; none where there is none.
NearLimits near_limits(const LoweredOp& op, const std::vector<bool>& one, bool normal);
/// Instructions of an element of a pointwise op or region, about.
double instructions_of(const LoweredOp& op);
bool is_function(const LoweredDef& def);       // of scalar.h, or a copy or cast
bool is_update(const LoweredDef& def);         // of a tensor
bool is_scalar_update(const LoweredDef& def);  // of numbers
bool is_reduction(const LoweredDef& def);
bool is_row_op(const LoweredDef& def);
/// The warps that the rows of a row op keep busy in one block.
int64_t row_warps(const LoweredOp& op, const Limits& limits);
bool spreads_rows(const LoweredOp& op, const Limits& limits);  // Target::spreads
bool is_attention(const LoweredDef& def);
/// Candidates of attention: warps with roles, or without.
constexpr const char *kRolesAttention = "wgmma", *kPlainAttention = "mma",
                     *kJointAttention = "wgmma_joint";
std::vector<std::string> attention_candidates(const LoweredOp& op, const Limits& limits);
bool is_indexed(const LoweredDef& def);
bool is_line_op(const LoweredDef& def);
bool is_random(const LoweredDef& def);
bool is_small(const LoweredDef& def);

KernelText pointwise_text(const LoweredOp& op, const Limits& limits);
KernelText reduce_text(const LoweredOp& op, const Limits& limits);
KernelText subtree_mean_text(const LoweredOp& op, const Limits& limits);  // the rest of a tree
KernelText row_text(const LoweredOp& op, const Limits& limits);  // softmax, cross entropy, norms
KernelText gemm_text(const LoweredOp& op, const Limits& limits);
/// A group of a row op's gradient and sums of columns of what it reads, in one kernel: whether
/// there is one that is quicker than their launches, and the kernel.
bool sums_beside(const LoweredOp& group, const Limits& limits);
/// Whether a product can be a member of a chain; whether a chain can run (chain.cpp).
bool chain_fits(const LoweredOp& op, const Limits& limits);
/// The same of a loss_chain: whether the last block of the first member's kernel adds the losses,
/// or what blocks have added of them.
bool loss_chain_fits(const LoweredOp& chain, const Limits& limits);
KernelText loss_chain_text(const LoweredOp& chain, const Limits& limits);
KernelText chain_text(const LoweredOp& op, const Limits& limits);
/// Bytes of shared memory that a member of a chain needs for the rows of a warp, and for its
/// weights; whether the one before it can have left its rows there.
struct LinkRoom {
    int64_t rows, weights;
};
LinkRoom link_room(const LoweredOp& op);
bool holds_rows(const LoweredOp& op);
/// The address of a lane's 8 neighbours of an inner value of a chain.
std::string inner_cell(const char* type, const char* how = "");
/// Leaves such neighbours of an output where the warp adds them.
std::string squares_store(size_t output);
KernelText row_sums_text(const LoweredOp& group, const Limits& limits);
/// Of a sum over rows that such a kernel makes: @_terms<V>(block, a..., v), V terms side by side of
/// the inputs that it reads, as terms_text has it, and @_Put{block}(column, total).
std::string column_sum_text(const LoweredOp& op, const BlockLayout& layout, bool twos);
/// What becomes of what a reduction joins, as its kernels have it: @_Put{block}(r, total).
std::string total_text(const LoweredOp& op, const BlockLayout& layout);
std::vector<int> column_sum_reads(const LoweredOp& op);
/// A tail_region's (tail.cpp), and whether it is quicker than its launches.
KernelText tail_text(const LoweredOp& op, const Limits& limits);
bool tail_fits(const LoweredOp& op, const Limits& limits);
/// Cycles of one processor for a product in a turn of a loop; the terms of its sums.
double turn_cycles(const LoweredOp& op);
int64_t terms_of(const LoweredOp& op);
/// Cycles of a product in a launch, by its candidate or else the first; 0 where no tiles fit.
double gemm_cycles(const LoweredOp& op, const Limits& limits);
/// Whether each cut of a product along k is one for tensor cores by itself.
bool gemm_joins_cuts(const LoweredOp& op, const Limits& limits);
/// Whether warps with roles multiply 16 bits, each block several tiles.
bool gemm_adds_wide(const LoweredOp& op, const Limits& limits);
/// A chain whose inner values that gradients alone read are what multiplies those: worked out once,
/// where the value is made. The bits are the same.
LoweredOp with_slopes(const LoweredOp& chain);
/// Whether a product can be a member of a group, and has blocks for a quarter of the processors at
/// most.
bool gemm_leaves_room(const LoweredOp& op, const Limits& limits);
/// Whether the kernel of a product by tiles can be a member's of a group.
bool gemm_in_group(const LoweredOp& op, const Limits& limits);
/// And one with an update behind it.
bool gemm_takes_update(const LoweredOp& op, const Limits& limits);
/// And whether that changes nothing of how it is made.
bool gemm_updates_alike(const LoweredOp& op, const Limits& limits);
std::vector<std::string> gemm_candidates(const LoweredOp& op, const Limits& limits);
/// What operands of a product are rounded to before they are multiplied.
std::string rounded_type(const std::string& math, DType dtype);
/// Rows, columns and depth of the tiles of products of elements of `size` bytes, and of those whose
/// warps have roles; blocks that share a tile count as one.
std::vector<std::array<int, 3>> gemm_tiles(int64_t size);
std::vector<std::array<int, 3>> roles_tiles();
/// What wgmma.cuh wants of an operand of a product: where the copy engine can read it, its map for
/// tiles of `rows` that `shares` blocks bring in equal parts. `k_axis`: which of its last two axes
/// is k.
struct MappedOperand {
    TensorMap map;
    bool along_k, batched;
};
std::optional<MappedOperand> mapped_operand(const LoweredOp& op, int input, int k_axis, int rows,
                                            int shares = 1);
/// What a kernel of wgmma.cuh is written for, as its Layout says there; and the struct.
struct WgmmaLayout {
    int rows, columns, depth, stages, pair, wide;
    int64_t parts, adders, round;
    bool holds, own, words, a_along_k, b_along_k, a_batched, b_batched;
    int writers = 0;          // warpgroups of wgmma_writers.cuh
    int64_t run = 0;          // cuts of a block of wgmma_runs.cuh
    int64_t cluster = 0;      // blocks that share a tile's cuts, of wgmma_cluster.cuh
    bool turned = false;      // operands and result are those of the transpose
    uint32_t shared() const;  // bytes
};
std::string layout_struct(const std::string& name, const WgmmaLayout& layout, DType type);
/// Whether 8 neighbours lie together, 16 bytes of all that an op with a product reads beside it and
/// writes but for what there is one of a row.
bool packs_eights(const LoweredOp& op);
/// What a Put of wgmma.cuh has for 8 neighbours that lie together, 16 bytes of all that it reads
/// and writes but for what there is one of a row. Where sizes or strides forbid it, or it has no
/// use, that alone. Of a member of a chain the output `kept` goes to this->kept(row, col), too.
std::string packed_text(const LoweredOp& op, const BlockLayout& layout, bool useless,
                        const Limits& limits = {});
/// A copy of an operand, rounded to 16 bits or, in f32, to tf32, that a kernel makes in its
/// workspace: its map, and the struct that rounded.cuh makes it by, `as` its type there.
/// `planes`: how many of them lie one behind the other, as batches of the map. Of so many of its
/// lines of k, and terms of each, there are copies before products are made.
MappedOperand rounded_operand(const LoweredOp& op, int input, int k_axis, int rows, int shares,
                              DType type, int planes);
std::string rounded_struct(const std::string& name, const std::string& batch, const std::string& as,
                           const MappedOperand& operand, int planes, const View& view, int k_axis,
                           int64_t lines, int64_t terms);
KernelText attention_text(const LoweredOp& op, const Limits& limits);  // and its gradients
KernelText indexed_text(const LoweredOp& op, const Limits& limits);    // pad, take, windows, scans
KernelText line_text(const LoweredOp& op, const Limits& limits);       // gather, sort, searches
KernelText random_text(const LoweredOp& op, const Limits& limits);
KernelText updates_text(const LoweredOp& op, const Limits& limits);  // several of an optimizer's
KernelText custom_text(const LoweredOp& op, const Limits& limits);   // of sources of a user's own
KernelText small_text(const LoweredOp& op, const Limits& limits);  // step_inc, bias_corr, ring_push
KernelText numbers_text(const LoweredOp& op, const Limits& limits);  // scalars of updates

// A step in one block (block.cpp).

/// Whether the values of a sequence, or of a turn of a block_loop, find room in one block's shared
/// memory, its members have kernels of warps, and it takes less time than their launches.
bool block_fits(const LoweredOp& op, const Limits& limits);
KernelText block_text(const LoweredOp& sequence, const Limits& limits);
/// Whether it copies each fed input to shared memory and reads it there.
bool block_brings_fed(const LoweredOp& sequence, const Limits& limits);
KernelText block_loop_text(const LoweredOp& loop, const Limits& limits);

}  // namespace aicf::cuda
