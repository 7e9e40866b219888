// Op definitions. An OpDef defines an IR op: arity, attributes, shape and dtype inference,
// gradient, lowering. A LoweredDef is the schema of what a backend runs. Both are registered by the
// call list in op.cpp; one block per op, in ops_<family>.cpp.
#pragma once

#include "core/graph/ir.h"

namespace aicf {

// ---- attributes and inference -------------------------------------------------------------------

struct AttrDef {
    std::string name;                       // the last may be "*": any others, numbers and flags
    Attr fallback;                          // default and kind
    bool required = false;                  // no default
    std::vector<std::string> choices = {};  // of a string attribute; "mma16(c)": for any number c
};

/// Fills defaults and checks names, kinds and choices. GraphError naming `where`.
Attrs complete_attrs(const std::vector<AttrDef>& defs, const Attrs& given,
                     const std::string& where);

/// GraphError unless `count` operands fit the schema's names.
void check_arity(const std::vector<std::string>& names, size_t count, const std::string& where);

/// The schema's name of operand i; a trailing "*" name covers all further operands.
std::string operand_name(const std::vector<std::string>& names, int i);

/// What an inference function sees: the operands' types and how errors spell them.
class InferContext {
  public:
    /// `ids`: of the operands, for errors; empty if they have none.
    InferContext(const char* where, const std::vector<std::string>& names, std::vector<Type> inputs,
                 std::span<const ValueId> ids, const Attrs& given)
        : where_(where), names_(names), inputs_(std::move(inputs)), ids_(ids), attrs(given) {}

    int count() const { return static_cast<int>(inputs_.size()); }
    const Type& in(int i) const { return inputs_[i]; }
    const Dims& shape(int i) const { return inputs_[i].shape; }
    DType dtype(int i) const { return inputs_[i].dtype; }
    const char* where() const { return where_; }
    std::string describe(int i) const;  // "a is %3 f32[64, 128]"
    std::string describe_all() const;

    template <class... Parts>
    [[noreturn]] void value_error(const Parts&... parts) const {
        raise(ErrorKind::graph, where_, ": ", parts...);
    }
    template <class... Parts>
    [[noreturn]] void shape_error(const Parts&... parts) const {
        raise(ErrorKind::shape, where_, ": ", parts...);
    }
    template <class... Parts>
    [[noreturn]] void dtype_error(const Parts&... parts) const {
        raise(ErrorKind::dtype, where_, ": ", parts...);
    }
    void need_rank(int i, int rank) const;
    void need_float(int i) const;
    void need_dtype(int i, DType dtype) const;
    void need_same_dtype(int i, int j) const;
    /// NumPy's broadcast of the operands first..last (inclusive).
    Dims broadcast(int first, int last) const;
    /// Axis in [0, rank) from one that may be negative.
    int64_t axis(int64_t given, int rank) const;
    /// Sorted, in [0, rank), without repeats.
    std::vector<int64_t> axes(const std::vector<int64_t>& given, int rank) const;

  private:
    const char* where_;
    const std::vector<std::string>& names_;
    std::vector<Type> inputs_;
    std::span<const ValueId> ids_;

  public:
    const Attrs& attrs;
};

Dims broadcast_shapes(const Dims& a, const Dims& b, const std::string& where);

// ---- gradients ----------------------------------------------------------------------------------

/// A value in a gradient rule's formulas.
struct Var {
    Graph* graph = nullptr;
    ValueId id = kNone;
    explicit operator bool() const { return id != kNone; }
    Type type() const { return graph->value(id).type; }  // a copy: emitting may move the values
    Dims shape() const { return type().shape; }
};
Var emit(const std::string& op, const std::vector<Var>& inputs, const Attrs& attrs = {});
Var operator+(Var a, Var b);
Var operator-(Var a, Var b);
Var operator*(Var a, Var b);
Var operator/(Var a, Var b);
Var operator-(Var a);
Var operator*(Var a, double number);
Var operator+(Var a, double number);
Var sum_to(Var v, const Dims& shape);  // undoes a broadcast
Var reshape(Var v, const Dims& shape);
Var broadcast_to(Var v, const Dims& shape);
Var zeros_like(Var v);
Var number_like(Var v, double number);   // of rank 0
std::optional<double> number_of(Var v);  // of a rank-0 constant of floats

class GradContext {
  public:
    GradContext(Graph& graph, const Node& node, std::vector<ValueId> output_grads,
                std::vector<char> needed);
    Var in(int i) const { return {&graph_, node_.inputs[i]}; }
    Var out(int i = 0) const { return {&graph_, node_.outputs[i]}; }
    int inputs() const { return static_cast<int>(node_.inputs.size()); }
    Var dy(int i = 0) const { return {&graph_, output_grads_[i]}; }  // empty: no gradient flows
    bool dy_is_one(int i = 0) const;  // the seed of backward(), so multiplying by it is skipped
    bool needs(int i) const { return i < inputs() && needed_[i]; }
    const Attrs& attrs() const { return node_.attrs; }
    const OpDef& op() const { return *node_.op; }
    /// Calls the user's rule of a custom_gradient or custom_op.
    std::vector<ValueId> own_rule() const;
    /// The gradient of input i; summed down to the input's shape when it was broadcast.
    void set(int i, Var grad);
    std::vector<Var> emit_all(const std::string& op, const std::vector<Var>& inputs,
                              const Attrs& attrs = {}) const;
    const std::vector<ValueId>& result() const { return result_; }

  private:
    Graph& graph_;
    Node node_;  // a copy: emitting may move the graph's nodes
    std::vector<ValueId> output_grads_;
    std::vector<char> needed_;
    std::vector<ValueId> result_;
};

// ---- lowering -----------------------------------------------------------------------------------

/// An operand of a lowered op: part of a value's storage.
struct View {
    ValueId value = kNone;
    DType dtype = DType::f32;
    Dims shape, strides;
    int64_t offset = 0;                  // elements
    bool whole(const Type& type) const;  // the value's full storage in C order
};

struct LoweredDef;
struct Lowered;

/// One step of a region. Operands are numbered: the op's inputs, its outputs, its inner values.
struct RegionStep {
    const LoweredDef* def = nullptr;
    std::vector<int> inputs, outputs;
    Attrs attrs;
    int node = -1;
};

struct LoweredOp {
    const LoweredDef* def = nullptr;
    std::vector<View> inputs, outputs;
    Attrs attrs;
    int node = -1;                        // IR node it came from
    std::vector<RegionStep> body = {};    // of a region: its steps, in order
    std::vector<View> inner = {};         // of a region, sequence or block_loop: no storage
    std::vector<LoweredOp> members = {};  // of a group, sequence or block_loop
    std::string candidate = {};           // kernel by name; empty: the backend's default
    /// Of a loop: the body. Its inputs, in order, are the loop's operands, its outputs the results.
    std::shared_ptr<const Lowered> loop = {};
    const View& operand(int number) const;
};
/// How candidates begin that are no kernels of ours, but what a library does.
constexpr std::string_view kForeign = "cublasLt ";
inline bool is_foreign(std::string_view candidate) { return candidate.starts_with(kForeign); }
inline bool is_foreign(const LoweredOp& op) { return is_foreign(op.candidate); }

/// The list of lowered ops of a graph. `values` begins with the graph's own, same ids; lowering and
/// passes append.
struct Lowered {
    std::string name;
    std::vector<Value> values;
    std::vector<LoweredOp> ops;
    std::vector<View>
        views;  // by value id: the IR value's storage (movement ops only change the view)
    struct Output {
        std::string name;
        ValueId value = kNone;  // the value that holds it, alone and in C order
        int keep = 1;
        ValueId ring = kNone, position = kNone;  // keep > 1
    };
    std::vector<Output> outputs;
    std::vector<Assign> assigns;  // source's storage becomes target's
    std::vector<std::pair<ValueId, ValueId>>
        param_grads;  // (param, the gradient its optimizer reads)
};

class LowerContext {
  public:
    /// The arguments of lower(), and itself, to lower bodies.
    struct Mode {
        const std::string& math;
        int tensor_cores;
        Lowered (*lower)(const Graph&, const std::string&, int);
    };
    LowerContext(Lowered& lowered, const Graph& graph, const Node& node, std::vector<char>& used,
                 const Mode& mode);
    int inputs() const { return static_cast<int>(node_.inputs.size()); }
    int outputs() const { return static_cast<int>(node_.outputs.size()); }
    // a copy: new values may move the views
    View in(int i) const { return lowered_.views[node_.inputs[i]]; }
    const Type& type(int i) const { return graph_.value(node_.inputs[i]).type; }
    const Type& out_type(int i = 0) const { return graph_.value(node_.outputs[i]).type; }
    bool used(int i) const { return used_[node_.outputs[i]]; }
    const Attrs& attrs() const { return node_.attrs; }
    const OpDef& def() const { return *node_.op; }
    View out(int i = 0) const;                             // the output's own storage
    View temp(const Type& type, const std::string& name);  // fresh storage
    View copy_of(const View& view);                        // contiguous, in fresh storage
    Lowered body(const Graph& graph) const;
    /// A constant of the lowered list.
    View constant(const Value& like);
    /// Appends a loop with this body; non-contiguous operands are copied.
    void loop(std::shared_ptr<const Lowered> body, std::vector<View> inputs,
              std::vector<View> outputs, const Attrs& attrs);
    void alias(int i, const View& view) { lowered_.views[node_.outputs[i]] = view; }
    void op(const std::string& name, std::vector<View> inputs, std::vector<View> outputs,
            const Attrs& attrs = {});

  private:
    Lowered& lowered_;
    const Graph& graph_;
    const Node& node_;
    std::vector<char>& used_;
    const Mode mode_;
};

/// The signature of a loop. Operands: `carries` (loop-carried values), `slices` (each turn reads
/// its row), then invariants, which every turn reads whole. Results: the carries after the last
/// turn, then stacked results with a row a turn. A carry in `histories` is stacked as well: it
/// keeps its value after each turn, and its operand is the initial value.
struct LoopShape {
    int64_t turns;
    int carries, slices;
    bool reverse;
    std::vector<char> history;  // by carry
    explicit LoopShape(const Attrs& attrs);
    /// The row of a turn.
    int64_t row(int64_t turn) const { return reverse ? turns - 1 - turn : turn; }
};
/// The ids of a loop's operands inside its body.
std::vector<ValueId> loop_inputs(const std::vector<Value>& values);

View whole_view(const Value& value);
/// Appends a value with storage of its own.
ValueId append_value(Lowered& lowered, const Type& type, const std::string& name);
View broadcast_view(const View& view, const Dims& shape);
View permute_view(const View& view, const std::vector<int64_t>& axes);
View transpose_view(const View& view, int a, int b);
std::optional<View> reshape_view(const View& view, const Dims& shape);  // empty: needs a copy
/// The nearest number of a float dtype.
double rounded(DType dtype, double x);
/// The largest number of the dtype below `high`, to which uniform numbers in [low, high) are
/// clamped, since rounding could reach `high`.
double last_below(DType dtype, double low, double high);
/// Elements of a subtree of "tree" that a launch may leave for another one to join.
constexpr int64_t kSubtree = 2 * kTreeLeaf;
std::string chain_order(int64_t chunk = kChainChunk);  // "chain(256)"
std::string limb_order();                              // "limbs(64)"
/// The summation order of a product. A function of its shape, types and the tensor-core family
/// (major of the compute capability; 0: none) only.
std::string product_order(const LoweredOp& op, int tensor_cores);
/// Sets it. "fp32x" becomes the "fp32" that it is where it has no limbs; "tf32" becomes "fp32", on
/// every device, where by their sizes tensor cores gain nothing.
void set_product_order(LoweredOp& op, int tensor_cores);
std::vector<std::string> product_orders();  // all of them, as choices
/// The same for attention; and the keys per block of its tensor-core kernels, by head size.
std::string attention_order(const LoweredOp& op, int tensor_cores);
int64_t attention_block(int64_t size);
/// "mma16", for tf32 "mma8", with the family's name unless it is 9.0.
std::string tensor_order(int tensor_cores, bool tf32);
/// Extent of a window along an axis of operand 0, checked to be at most `size`.
int64_t window_extent(const InferContext& c, int which, int axis, int64_t size);

// ---- definitions --------------------------------------------------------------------------------

using InferFn = std::vector<Type> (*)(const InferContext&);
using GradFn = void (*)(GradContext&);
using LowerFn = void (*)(LowerContext&);

/// How math = "mixed" stores an op's f32 results (mixed.cpp).
enum class Storage : uint8_t {
    wide,    // f32
    narrow,  // 16 bits if all operands are
    product  // 16 bits
};

/// What a product multiplies: m x k by k x n.
struct ProductSizes {
    int64_t batches, m, n, k;
};

struct OpDef {
    std::string name;                 // "Linear"
    std::string fn;                   // the user's word for it, in errors: "linear"
    std::vector<std::string> inputs;  // names; "b?" optional, "xs*" one or more
    std::vector<std::string> outputs;
    std::vector<AttrDef> attrs = {};
    InferFn infer = nullptr;
    GradFn grad = nullptr;
    std::string no_grad = {};  // why not; exactly one of grad and no_grad is given
    LowerFn lower = nullptr;
    std::string lowered = {};  // the one lowered op of a pointwise op
    bool effect = false;       // its outputs are new states: each must be assigned or read
    Storage storage = Storage::wide;
    std::vector<int> wide = {};  // inputs that stay f32 under "mixed"
    /// Of a product of operands 0 and 1, or its gradient: what the product multiplies.
    ProductSizes (*sizes)(const Dims& first, const Dims& second) = nullptr;
    bool is_view = false;   // a view: its output is elements of its one input
    bool detaches = false;  // stops gradients
    /// Of an indexing op: the operand that holds the indices, and their bound.
    int indices = -1;
    int64_t (*rows)(const Dims& first, const Attrs& attrs) = nullptr;  // first: operand 0's shape
};

struct Cost {
    double flops = 0, bytes = 0;
    Cost& operator+=(const Cost& other) {
        flops += other.flops;
        bytes += other.bytes;
        return *this;
    }
};

/// The schema of a lowered op. Any strides and offsets are allowed for every operand unless
/// `contiguous` names it; an output never overlaps an input unless `inplace` pairs them.
struct LoweredDef {
    std::string name;                          // "gemm"
    std::vector<std::string> inputs, outputs;  // names; "?" and "*" as in OpDef
    std::vector<AttrDef> attrs = {};
    /// Types of the outputs; checks the operands. Null: the pointwise rule by `pointwise_kind`.
    InferFn infer = nullptr;
    std::vector<std::pair<int, int>> inplace = {};  // (output, input) that may share storage
    std::vector<int> contiguous = {};               // operand positions, inputs first
    bool pointwise = false, reduction = false, gemm = false, optimizer = false;
    bool random = false;
    bool streams = false;  // of a reduction: it reads each element of its one operand once
    /// Of a row op: the operands that hold elements of rows along one axis, inputs first; the
    /// others are row statistics, one number a row. Rows are independent.
    std::vector<int> rows = {};
    /// Same bits on every backend and in every mode, so it can be constant-folded. Not products,
    /// whose bits depend on the mode, nor random numbers.
    bool portable = false;
    bool alone = false;      // never in a group
    bool attention = false;  // attention, or a gradient of it
    int numbers = -1;  // of an optimizer: operands from this one on are scalars; 0: a scalar step
    double flops_per_element = 1;  // of the largest operand
    double (*flops)(const LoweredOp&) = nullptr;
};
Cost cost_of(const LoweredOp& op);
/// The cost of each step of a body; an operand is charged to the first step that accesses it.
std::vector<Cost> step_costs(const LoweredOp& op);
Cost cost_of(const Lowered& lowered);
/// (output, input) pairs that may share storage. Region: no step after the one that writes the
/// output reads the input, and the anchor's pairs are those of its schema. Optimizer updates, which
/// run concurrently: no other step reads the input. Product or reduction with a body: those of an
/// update behind it alone, since blocks write while others still read. Group: no other member reads
/// the input.
std::vector<std::pair<int, int>> inplace_of(const LoweredOp& op);

// ---- regions ------------------------------------------------------------------------------------
//
// A region is a fused op with a body of steps. Its anchor is the step that is not pointwise; a
// pointwise region has none, one of optimizer updates several of one kind. Behind a product or a
// reduction that makes its gradient a lone update is an epilogue; several may add cuts of theirs.

// A sequence is a list of members run in order by one launch of one thread block. Its inputs and
// outputs are whole values, each once; intermediates are inner values without storage. "carried":
// by output, the input whose next content it is, or -1. "fed": inputs given by the caller, of which
// a launch of many steps takes a slice a step.

// A chain is a list of members run in order by one launch, each of whose blocks takes the same rows
// of all: a member reads no other rows of what members before it made. All results leave it.

/// The schemas of regions, groups, chains and sequences.
const LoweredDef* region_def();
const LoweredDef* group_def();
const LoweredDef* chain_def();
const LoweredDef* sequence_def();
/// By member of a sequence, its stage, the number of barriers before it: the longest path of RAW
/// dependences, and of WAR dependences on what it overwrites.
std::vector<int> stages_of(const LoweredOp& sequence);
/// The schema of loops.
const LoweredDef* loop_def();

// A block_loop is a loop in one launch of one thread block; its members are the ops of a turn.
// Inner values, in order: a turn's view of each input, its part of each output, and intermediates;
// whole values, each once, without storage.

/// The schema of block_loops.
const LoweredDef* block_loop_def();
/// One turn as a sequence over the inner values.
LoweredOp turn_of(const LoweredOp& block_loop);
/// Whether an op is a sequence or block_loop, whose members have no kernels of their own.
bool is_one_block(const LoweredOp& op);
/// The schema that determines an op's kind: of a region its anchor's, or its first step's if all
/// are pointwise; else its own.
const LoweredDef& anchor(const LoweredOp& op);
/// The index of the last anchor step; the number of steps if all are pointwise.
size_t anchor_step(const LoweredOp& op);
/// The attributes of an op, of a region those of its anchor.
const Attrs& anchor_attrs(const LoweredOp& op);
constexpr int kGradient = 1;  // the input of a tensor update that is its gradient
/// The part of a region that a step belongs to.
enum class StepRole : uint8_t {
    prologue,  // before the anchor; every step of a pointwise region
    anchor,
    epilogue,  // after the anchor
    scalar     // computes scalars of optimizer updates
};
StepRole step_role(const LoweredOp& op, size_t step);
/// The steps of a role, ascending.
std::vector<size_t> steps_of(const LoweredOp& op, StepRole role);
/// A readable name: "gemm", "region(gemm, relu)", "group(sum, exp)".
std::string title(const LoweredOp& op);
/// The stem of kernel names: "gemm", "fused", "fused_gemm".
std::string kernel_stem(const LoweredOp& op);

/// A row op's axis: the attribute "axis", else the last.
int row_axis(const Attrs& attrs, int rank);
/// Whether output `out` may be written over input `in`: paired by inplace_of, with the same layout.
bool may_overwrite(const LoweredOp& op, int out, int in);
/// Bytes of a view, broadcast axes counted once.
double view_bytes(const View& view);
/// Whether two views address a storage identically.
bool same_layout(const View& a, const View& b);
/// The axis with the smallest non-zero stride; -1: there is none.
int fast_axis(const View& view);
/// The view with the most bytes.
const View* largest_view(const std::vector<const View*>& views);
/// The position of an identical view in the list; -1: none.
int find_view(const std::vector<View>& list, const View& view);

/// Registration, called once by op.cpp's list.
void define(OpDef def);
void define(LoweredDef def);
const OpDef* find_op(std::string_view name);
const LoweredDef* find_lowered(std::string_view name);
const std::vector<const OpDef*>& all_ops();
const std::vector<const LoweredDef*>& all_lowered();
/// Checks a lowered op against its schema and returns the outputs' types.
std::vector<Type> infer_lowered(const LoweredDef& def, const std::vector<Type>& inputs,
                                const Attrs& attrs);
/// Likewise for a whole op, with the steps of regions and bodies of loops.
std::vector<Type> infer_lowered(const LoweredOp& op);
std::vector<Type> infer_loop(const LoweredOp& op);
/// Checks the signature of a block_loop, not its members.
std::vector<Type> infer_block_loop(const LoweredOp& op);

/// `math`: gemm's attribute for f32 products; under "mixed" they stay f32. `tensor_cores`: see
/// product_order().
Lowered lower(const Graph& graph, const std::string& math = "fp32", int tensor_cores = 0);
/// By op, whether it is a host call or one depends on it; empty if there is no host call.
std::vector<char> before_host_calls(const Lowered& lowered);
/// Moves those ops to the front; others are never fused with them. So a host call that raises does
/// so before params and states are written, unless it reads their next content.
void host_calls_first(Lowered& lowered);
/// SSA, operand types and in-place rules of a lowered list. Run after lowering and each pass.
Report verify(const Lowered& lowered);
/// A key of an op by its attributes, operand types and strides, without ids: "gemm {...} (f32[8,
/// 8], ...".
std::string signature(const LoweredOp& op);
std::string to_text(const Lowered& lowered);
std::string to_json(const Lowered& lowered);

}  // namespace aicf
