// What an op is. An OpDef is the whole meaning of one IR op: arity, attributes, shape and dtype
// inference, gradient, lowering. A LoweredDef is the schema of what a backend runs. Both are
// registered by the call list in op.cpp; one block per op, in ops_<family>.cpp.
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
    /// `ids`: of the operands, as errors spell them; none where they have no ids.
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

/// A value while a gradient rule writes formulas.
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
    Var dy(int i = 0) const { return {&graph_, output_grads_[i]}; }  // empty: none reaches it
    bool dy_is_one(int i = 0) const;  // the seed of backward(), so a product by it is dropped
    bool needs(int i) const { return i < inputs() && needed_[i]; }
    const Attrs& attrs() const { return node_.attrs; }
    const OpDef& op() const { return *node_.op; }
    /// What the user's own rule of a custom_gradient or custom_op makes of the results' gradients.
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
    std::vector<RegionStep> body = {};    // of a region: what it computes, in order
    std::vector<View> inner = {};         // of a region, sequence or block_loop: no storage
    std::vector<LoweredOp> members = {};  // of a group, sequence or block_loop: share a launch
    std::string candidate = {};           // which of a backend's kernels; empty: its own choice
    /// Of a loop: what each turn does. Its operands are the values that are inputs, in their order,
    /// and its results the outputs.
    std::shared_ptr<const Lowered> loop = {};
    const View& operand(int number) const;
};

/// The list of lowered ops of a graph. `values` begins with the graph's own, same ids; lowering and
/// passes append.
struct Lowered {
    std::string name;
    std::vector<Value> values;
    std::vector<LoweredOp> ops;
    std::vector<View> views;  // by value id: where an IR value lies (movement ops move nothing)
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
    /// What lower() was called with, and itself, for bodies.
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
    View copy_of(const View& view);                        // packed into fresh storage
    Lowered body(const Graph& graph) const;
    /// A constant of the list.
    View constant(const Value& like);
    /// A loop whose turns are `body`, of operands that lie in C order.
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

/// What a loop's attributes say of its operands and results: `carries` of each come first, and what
/// a turn leaves is what the next one begins with; then `slices` operands of which each turn takes
/// its row, and others that all turns read whole. Results behind the carries have a row a turn, and
/// so have carries in `histories`: what each turn leaves, its first operand being the beginning.
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
/// A new value of the list, with storage of its own.
ValueId append_value(Lowered& lowered, const Type& type, const std::string& name);
View broadcast_view(const View& view, const Dims& shape);
View permute_view(const View& view, const std::vector<int64_t>& axes);
View transpose_view(const View& view, int a, int b);
std::optional<View> reshape_view(const View& view, const Dims& shape);  // empty: needs a copy
/// The nearest number of a float dtype.
double rounded(DType dtype, double x);
/// The largest number of the dtype that a uniform number in [low, high) may be: rounding must not
/// reach `high`.
double last_below(DType dtype, double low, double high);
std::string chain_order(int64_t chunk = kChainChunk);  // "chain(256)"
/// The order of a product's sums: of its shape and types, and of the family of tensor cores that it
/// may use (the major of their compute capability; 0: none), alone.
std::string product_order(const LoweredOp& op, int tensor_cores);
std::vector<std::string> product_orders();  // all of them, as choices
/// The same of attention, and the keys that its kernels on tensor cores take together, by the size
/// of a head.
std::string attention_order(const LoweredOp& op, int tensor_cores);
int64_t attention_block(int64_t size);
/// "mma16", of tf32 "mma8", with the name of a family where it is not that of 9.0.
std::string tensor_order(int tensor_cores, bool tf32);
/// Elements of an axis that one window spans: axis `axis` of operand 0 must hold `size` >= that
/// many.
int64_t window_extent(const InferContext& c, int which, int axis, int64_t size);

// ---- definitions --------------------------------------------------------------------------------

using InferFn = std::vector<Type> (*)(const InferContext&);
using GradFn = void (*)(GradContext&);
using LowerFn = void (*)(LowerContext&);

/// What math = "mixed" makes of an op of f32 operands (mixed.cpp).
enum class Storage : uint8_t {
    wide,    // stays in f32
    narrow,  // in 16 bits where all it reads is
    product  // in 16 bits
};

struct OpDef {
    std::string name;                 // "Linear"
    std::string fn;                   // the user's word for it, in errors: "linear"
    std::vector<std::string> inputs;  // names; "b?" optional, "xs*" one or more
    std::vector<std::string> outputs;
    std::vector<AttrDef> attrs = {};
    InferFn infer = nullptr;
    GradFn grad = nullptr;
    std::string no_grad = {};  // why there is none; exactly one of grad and no_grad is given
    LowerFn lower = nullptr;
    std::string lowered = {};  // the one lowered op of a pointwise op
    bool effect = false;       // its outputs are new states: each must be assigned or read
    Storage storage = Storage::wide;
    std::vector<int> wide = {};  // inputs that are f32 under "mixed", whatever the storage
    bool shows = false;          // its output is elements of its one input: it makes none
    bool detaches = false;       // no gradient passes, whatever follows
    /// Of an op that takes rows by number: the operand that holds the numbers, and how many rows
    /// there are.
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
    bool streams = false;  // of a reduction: it takes each element of its one operand once
    /// Of an op on the rows along one axis: which operands hold elements, inputs first; of the
    /// others each row has one. Elements of a result depend on the row's elements alone.
    std::vector<int> rows = {};
    /// The same bits on every backend and in every mode, so that a compiler may compute it: a
    /// product's belong to its mode, random numbers to states.
    bool portable = false;
    bool alone = false;            // shares no launch with others
    bool attention = false;        // attention, or a gradient of it
    int numbers = -1;              // of an optimizer: operands from this one on are rank-0 numbers
    double flops_per_element = 1;  // of the largest operand
    double (*flops)(const LoweredOp&) = nullptr;
};
Cost cost_of(const LoweredOp& op);
/// What each step of a body costs; an operand counts where it is read or written first.
std::vector<Cost> step_costs(const LoweredOp& op);
Cost cost_of(const Lowered& lowered);
/// (output, input) pairs that may share storage. Of a region, no step after the one that writes the
/// output may read the input, and its anchor writes over what its own schema pairs; of optimizer
/// updates, which may run side by side, no other step may read it. A product or a reduction with a
/// body writes while parts of it still read. In a group no other member may read the input.
std::vector<std::pair<int, int>> inplace_of(const LoweredOp& op);

// ---- regions ------------------------------------------------------------------------------------
//
// A region is one op made of steps. Its anchor, the step that is not pointwise, says what it is; a
// region of pointwise steps alone has none, one of an optimizer's updates has several, of one kind.

// A sequence is one op made of members that run one after another in one launch: its inputs and
// outputs are whole values, each once, and its inner values, which members hand to each other, get
// no storage. "carried" names, by output, the input whose next content it is, or -1; "fed" the
// inputs that a caller gives, of which a launch of many steps may be given one a step.

/// The op of every region, of every group and of every sequence.
const LoweredDef* region_def();
const LoweredDef* group_def();
const LoweredDef* sequence_def();
/// By member of a sequence, how many barriers come before it: it waits for what makes its operands,
/// and for whoever reads what it is written over.
std::vector<int> stages_of(const LoweredOp& sequence);
/// The op of every loop.
const LoweredDef* loop_def();

// A block_loop is a loop in one launch: its members are what each turn does, one after another. Its
// inner values are, in their order, what a turn sees of each input, what it makes of each output,
// and what members hand to each other; whole values, each once, without storage.

/// The op of every loop in one launch.
const LoweredDef* block_loop_def();
/// A turn of it as a sequence of those inner values.
LoweredOp turn_of(const LoweredOp& block_loop);
/// Whether members have no kernels of their own: of a sequence or a block_loop.
bool is_one_block(const LoweredOp& op);
/// The definition that says what kind of op it is: its own; of a region its anchor's, or that of
/// its first step where all are pointwise.
const LoweredDef& anchor(const LoweredOp& op);
/// Where the (last) anchor of a region stands; the number of steps where all are pointwise.
size_t anchor_step(const LoweredOp& op);
/// The attributes of an op, of a region those of its anchor.
const Attrs& anchor_attrs(const LoweredOp& op);
constexpr int kGradient = 1;  // which input of an optimizer's update of a tensor is its gradient
/// What a step is for.
enum class StepRole : uint8_t {
    prologue,  // makes elements before the anchor; every step where there is no anchor
    anchor,
    epilogue,  // takes results of the anchor
    scalar     // makes numbers that an optimizer's updates read
};
StepRole step_role(const LoweredOp& op, size_t step);
/// The steps of a role, ascending.
std::vector<size_t> steps_of(const LoweredOp& op, StepRole role);
/// How people read it: "gemm", "region(gemm, relu)", "group(sum, exp)".
std::string title(const LoweredOp& op);
/// How kernels call an op: "gemm", "fused", "fused_gemm".
std::string kernel_stem(const LoweredOp& op);

/// The axis along which a row op's rows lie: the attribute "axis", or else the last.
int row_axis(const Attrs& attrs, int rank);
/// Whether output `out` may be written where input `in` lies: a pair above, element upon element.
bool may_overwrite(const LoweredOp& op, int out, int in);
/// Bytes of a view, broadcast axes counted once.
double view_bytes(const View& view);
/// Whether two views step through a storage alike.
bool same_layout(const View& a, const View& b);
/// The axis along which the neighbours of a view lie closest; -1: they are all one element.
int fast_axis(const View& view);
/// The one that holds the most bytes.
const View* largest_view(const std::vector<const View*>& views);
/// The position of a view of the same elements as the same dtype; -1: none.
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
/// The same of a whole op; of a region it checks step by step, of a loop all that a turn does.
std::vector<Type> infer_lowered(const LoweredOp& op);
std::vector<Type> infer_loop(const LoweredOp& op);
/// Checks what stands around the members of a block_loop.
std::vector<Type> infer_block_loop(const LoweredOp& op);

/// `math`: of the products of f32, one of gemm's choices; under "mixed" they are left as they are.
/// `tensor_cores`: as product_order() takes them.
Lowered lower(const Graph& graph, const std::string& math = "fp32", int tensor_cores = 0);
/// By op: whether it is a call of the host or one waits for it; empty where there is none.
std::vector<char> before_host_calls(const Lowered& lowered);
/// Moves those before all else, which is never fused with them: a call that raises does so
/// before a param or a state is written, unless it reads what one becomes.
void host_calls_first(Lowered& lowered);
/// SSA, operand types and in-place rules of a lowered list. Run after lowering and each pass.
Report verify(const Lowered& lowered);
/// An op by what it computes on which types and strides, without ids: "gemm {...} (f32[8, 8], ...".
std::string signature(const LoweredOp& op);
std::string to_text(const Lowered& lowered);
std::string to_json(const Lowered& lowered);

}  // namespace aicf
