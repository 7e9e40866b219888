// The intermediate representation: a graph of nodes over values, in single-assignment form.
//
// A value has one producer (a node) or none (inputs, params, states, constants). A param or state
// stands for its content at the start of the step; `assigns` says what it is at the start of the
// next one. Ids are positions and are never reused.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "core/graph/tensor.h"

namespace aicf {

struct OpDef;
using ValueId = int32_t;
constexpr ValueId kNone = -1;

class Graph;
/// The body of a loop; immutable, since nodes share it.
using Body = std::shared_ptr<const Graph>;

/// An attribute. Copies are made outside the variant and moved in: if a copy throws inside it, g++
/// 12 destroys an object that was never constructed.
struct Attr : std::variant<bool, int64_t, double, std::string, std::vector<int64_t>, Body> {
    Attr() = default;
    Attr(bool value) : variant(value) {}
    Attr(int value) : variant(int64_t{value}) {}
    Attr(int64_t value) : variant(value) {}
    Attr(double value) : variant(value) {}
    Attr(const char* value) : Attr(std::string(value)) {}
    Attr(std::string value) : variant(std::move(value)) {}
    Attr(std::vector<int64_t> value) : variant(std::move(value)) {}
    Attr(Body value) : variant(std::move(value)) {}
    Attr(const Attr& other) : variant() {
        std::visit([this](auto copy) { variant::operator=(std::move(copy)); }, other);
    }
    Attr(Attr&&) noexcept = default;
    Attr& operator=(Attr other) noexcept {
        variant::operator=(static_cast<variant&&>(other));
        return *this;
    }
};

/// Attributes by name, in the order their op declares them.
class Attrs {
  public:
    Attrs() = default;
    Attrs(std::initializer_list<std::pair<std::string, Attr>> items) : items_(items) {}

    const Attr* find(std::string_view name) const;
    void set(std::string_view name, Attr value);
    template <class T>
    const T& get(std::string_view name) const {
        const Attr* attr = find(name);
        if (!attr || !std::holds_alternative<T>(*attr))
            raise(ErrorKind::internal, "attrs: \"", name, "\" is missing or of another kind");
        return std::get<T>(*attr);
    }
    bool flag(std::string_view name) const { return get<bool>(name); }
    int64_t integer(std::string_view name) const { return get<int64_t>(name); }
    double number(std::string_view name) const { return get<double>(name); }
    const std::string& text(std::string_view name) const { return get<std::string>(name); }
    const std::vector<int64_t>& ints(std::string_view name) const {
        return get<std::vector<int64_t>>(name);
    }
    const auto& items() const { return items_; }
    bool operator==(const Attrs& other) const;  // numbers by their bits

  private:
    std::vector<std::pair<std::string, Attr>> items_;
};
std::string to_string(const Attrs& attrs);  // {"lr": 0.001, "axes": [0]} as in the dump

/// ring: a buffer of an output's last values; made by lowering, in no graph.
enum class Role : uint8_t { input, param, state, constant, temp, ring };
const char* role_name(Role role);
std::optional<Role> parse_role(std::string_view name);

/// The initial content of a param or state. Random kinds are functions of (seed, value name,
/// element index).
struct Init {
    enum Kind : uint8_t { zeros, constant, uniform, normal, seed, data } kind = zeros;
    double a = 0, b = 0;  // constant: value; uniform: low, high; normal: mean, deviation; seed: the
                          // compile seed itself
    std::shared_ptr<const std::vector<char>> bytes;  // data: the elements, C order
};

struct Type {
    DType dtype = DType::f32;
    Dims shape;
    bool operator==(const Type&) const = default;
};
inline std::string to_string(const Type& type) { return type_string(type.dtype, type.shape); }
inline int64_t byte_count(const Type& type) {  // in C order; INT64_MAX for more than that
    int64_t bytes = 0;
    const bool over =
        __builtin_mul_overflow(element_count(type.shape), dtype_size(type.dtype), &bytes);
    return over ? INT64_MAX : bytes;
}

struct Value {
    ValueId id = kNone;
    std::string name;
    Type type;
    Role role = Role::temp;
    int producer = -1;          // node id
    Init init;                  // param, state, constant
    ValueId moment_of = kNone;  // the param of which this state is an optimizer moment ...
    int moment_slot = 0;        // ... its first, second, ...
};
bool is_leaf(const Value& value);  // an input, a param or a state

struct Node {
    int id = -1;
    const OpDef* op = nullptr;  // null: a loaded file named an op we do not have
    std::string op_name;
    std::vector<ValueId> inputs, outputs;
    Attrs attrs;
    int forward = -1;   // for a node made by a gradient rule: the node it differentiates
    int given = -1;     // in a rewritten graph: the original node
    std::string where;  // the user's file:line
};

struct GraphOutput {
    std::string name;
    ValueId value = kNone;
    int keep = 1;
};
struct Assign {
    ValueId target = kNone, source = kNone;
};
struct Gradient {  // d loss / d value
    ValueId loss = kNone, value = kNone, grad = kNone;
    ValueId seed = kNone;  // the caller's gradient of the loss; kNone: 1
};

/// The user's rule of a custom_gradient or custom_op: operand gradients (kNone: none) from its
/// first result and the gradients of its results (kNone: no gradient flows).
using OwnRule =
    std::function<std::vector<ValueId>(ValueId result, const std::vector<ValueId>& dys)>;

class Graph {
  public:
    explicit Graph(std::string graph_name) : name(std::move(graph_name)) {}

    ValueId input(const std::string& value_name, const Type& type);
    ValueId param(const std::string& value_name, const Type& type, const Init& init);
    ValueId state(const std::string& value_name, const Type& type, const Init& init);
    ValueId constant(const Type& type, std::vector<char> bytes, const std::string& value_name = "");
    /// A rank-0 constant, one per (dtype, number); `value_name` only names a new one.
    ValueId scalar(DType dtype, double number, const std::string& value_name = "");

    /// Appends a node: attributes get their defaults, shapes and dtypes are inferred. Raises at
    /// once.
    std::vector<ValueId> emit(const std::string& op, const std::vector<ValueId>& inputs,
                              const Attrs& attrs = {}, const std::string& value_name = "");
    /// Says what a param or state holds at the start of the next step; once per target.
    void assign(ValueId target, ValueId source);
    void output(const std::string& output_name, ValueId value, int keep);
    /// Marks `state` as an optimizer's moment of `param`, so that the plan lays them out alike.
    void mark_moment(ValueId state, ValueId param, int slot);

    /// A checkpoint of the graph. Building only appends, so `rollback` truncates.
    struct Mark {
        size_t values, nodes, outputs, assigns, gradients;
    };
    Mark mark() const {
        return {values.size(), nodes.size(), outputs.size(), assigns.size(), gradients.size()};
    }
    void rollback(const Mark& to);
    /// A value without producer that stands for an operand of a body under construction.
    ValueId placeholder(const Type& type);

    const Value& value(ValueId id) const;
    const Value* find(std::string_view value_name) const;  // inputs, params, states
    ValueId assigned(ValueId target) const;                // its next content; kNone: unchanged
    /// The random stream number after the largest in use.
    int64_t free_stream() const { return index_.free_stream; }
    std::string describe(ValueId id) const;  // "%3 f32[64, 128]"

    std::string name;
    std::vector<Value> values;
    std::vector<Node> nodes;
    std::vector<GraphOutput> outputs;
    std::vector<Assign> assigns;
    std::vector<Gradient> gradients;
    std::string where;                  // the user's line, set before each call that builds
    ValueId seed_one = kNone;           // the seed of the running backward, if it is 1
    int differentiating = -1;           // the node whose gradient rule is running
    const OwnRule* own_rule = nullptr;  // called by the running backward; null: none
    bool loose = false;                 // read from a file and not verified

    // These append without checks.
    ValueId add_value(Value value);  // gives it the next id
    void add_node(Node node);
    void add_output(GraphOutput output);
    void add_assign(const Assign& assign);

  private:
    /// Lookup tables of the graph, which keep building linear. On equal keys the first is kept.
    struct Index {
        std::unordered_map<std::string, ValueId> leaves;   // inputs, params, states by name
        std::unordered_map<std::string, ValueId> numbers;  // rank-0 constants by dtype and bytes
        std::unordered_map<std::string, int> outputs;      // positions by name
        std::unordered_map<ValueId, int> assigns;          // positions by target
        int64_t free_stream = 0;
    };
    void note_stream(const Node& node);
    Index index_;

    ValueId leaf(Role role, const std::string& value_name, const Type& type, const Init& init);
};

/// Why an initial content does not fit a type and role; empty: it fits.
std::string init_problem(const Init& init, const Type& type, Role role);

/// The bytes of a number in a dtype; DTypeError where an integer type does not hold it.
std::vector<char> number_bytes(DType dtype, double number);

/// By node id, whether an output or assign depends on the node.
std::vector<char> live_nodes(const Graph& graph);

// ---- verify ------------------------------------------------------------------------------------

struct ReportLine {
    bool ok = true;
    std::string area;  // "ir"
    std::string text;
};
struct Report {
    std::vector<ReportLine> lines;
    bool ok() const;
    void fail(const std::string& area, const std::string& text) {
        lines.push_back({false, area, text});
    }
    void pass(const std::string& area, const std::string& text) {
        lines.push_back({true, area, text});
    }
    std::string failures() const;  // the first failing lines, each after a newline
    /// GraphError with the failing lines unless ok.
    void require(const std::string& where) const;
    std::string text() const;  // "[OK] [ir] topo OK: ..." line by line
};

Report verify(const Graph& graph);

// ---- autodiff ----------------------------------------------------------------------------------

/// Appends the nodes that compute d loss / d wrt and returns the values in the order of `wrt`.
/// `loss` has rank 0 unless `seed` gives its gradient. With `record` the loss must depend on every
/// `wrt` and the results are kept in graph.gradients; without, independent ones are zero.
std::vector<ValueId> backward(Graph& graph, ValueId loss, std::span<const ValueId> wrt,
                              ValueId seed = kNone, bool record = true,
                              const OwnRule* own_rule = nullptr);
/// Likewise for several results with a seed each, unrecorded.
std::vector<ValueId> backward(Graph& graph, std::span<const ValueId> results,
                              std::span<const ValueId> seeds, std::span<const ValueId> wrt);
/// The float values other than `known` on which a value depends through nodes appended since
/// `mark`: those from before it, and leaves.
std::vector<ValueId> sources(const Graph& graph, ValueId value, std::span<const ValueId> known,
                             const Graph::Mark& mark);
/// The float params `loss` depends on, in the order they were made.
std::vector<ValueId> reached_params(const Graph& graph, ValueId loss);

// ---- bodies ------------------------------------------------------------------------------------
//
// A body is a graph whose operands are its first values, all inputs, and whose results are its
// outputs. It has no params or states; random nodes take seed and counter as operands.

/// Outlines the nodes appended since `mark` that compute `outputs` from the placeholders `inputs`
/// into a body, and removes the rest. Values from before the mark become further operands
/// (`captured`); scalars are copied, and constants made since stay in the graph. Errors name
/// `where`.
struct Cut {
    Body body;
    std::vector<ValueId> captured;  // the further operands
};
Cut cut_body(Graph& graph, const std::string& where, const Graph::Mark& mark,
             std::span<const ValueId> inputs, std::span<const ValueId> outputs);
/// Inlines a body with these operands; returns its results.
std::vector<ValueId> append_body(Graph& graph, const Graph& body, std::span<const ValueId> inputs);
/// The number of a body's operands.
int operands_of(const Graph& body);
/// Why a graph cannot be a body; empty: it can.
std::string body_problem(const Graph& body);

// ---- dumps -------------------------------------------------------------------------------------

std::string to_text(const Graph& graph);
std::string to_json(const Graph& graph);
std::string nodes_json(const Graph& graph, size_t first);  // nodes from `first` on, as a list
std::string to_dot(const Graph& graph);

/// Rebuilds a graph piece by piece from a file; every call may raise FormatError.
/// `strict` refuses an op or attribute this build does not know; otherwise verify reports it.
class GraphReader {
  public:
    GraphReader(std::string name, bool strict) : graph_(std::move(name)), strict_(strict) {}
    void value(Value value);
    void node(const std::string& op, std::vector<ValueId> inputs, std::vector<ValueId> outputs,
              Attrs attrs, int forward, const std::string& where);
    void output(const std::string& name, ValueId value, int keep);
    void assign(ValueId target, ValueId source);
    void gradient(const Gradient& gradient);
    Graph finish();

  private:
    void known(ValueId id, const std::string& where) const;
    Graph graph_;
    bool strict_;
};

}  // namespace aicf
