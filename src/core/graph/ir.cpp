#include "core/graph/ir.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "core/graph/op.h"

namespace aicf {

// ---- attributes --------------------------------------------------------------------------------

const Attr* Attrs::find(std::string_view name) const {
    for (const auto& [key, attr] : items_)
        if (key == name) return &attr;
    return nullptr;
}

void Attrs::set(std::string_view name, Attr value) {
    for (auto& [key, attr] : items_)
        if (key == name) {
            attr = std::move(value);
            return;
        }
    items_.emplace_back(name, std::move(value));
}

bool Attrs::operator==(const Attrs& other) const {
    const auto same = [](const auto& a, const auto& b) {
        const auto *x = std::get_if<double>(&a.second), *y = std::get_if<double>(&b.second);
        if (a.first != b.first) return false;
        return x && y ? std::bit_cast<uint64_t>(*x) == std::bit_cast<uint64_t>(*y)
                      : a.second == b.second;
    };
    return std::equal(items_.begin(), items_.end(), other.items_.begin(), other.items_.end(), same);
}

namespace {

constexpr const char* kRoleNames[] = {"input", "param", "state", "constant", "temp", "ring"};
constexpr const char* kAttrKinds[] = {"bool", "int", "float", "str", "list of ints", "graph"};

/// An int is accepted where a float is declared; nothing else converts.
std::optional<Attr> as_kind(const Attr& given, const Attr& like) {
    if (given.index() == like.index()) return given;
    if (std::holds_alternative<double>(like) && std::holds_alternative<int64_t>(given))
        return Attr(static_cast<double>(std::get<int64_t>(given)));
    return std::nullopt;
}

}  // namespace

const char* role_name(Role role) { return kRoleNames[static_cast<int>(role)]; }

std::optional<Role> parse_role(std::string_view name) {
    for (int i = 0; i < static_cast<int>(Role::ring); i++)  // never in a file
        if (name == kRoleNames[i]) return static_cast<Role>(i);
    return std::nullopt;
}

bool is_leaf(const Value& value) {
    return value.role == Role::input || value.role == Role::param || value.role == Role::state;
}

namespace {

/// Matches a choice that ends in "(c)", where c stands for any number.
bool is_choice(const std::string& text, const std::string& choice) {
    if (!choice.ends_with("(c)")) return text == choice;
    constexpr size_t kMostDigits = 15;
    size_t at = 0;
    for (size_t i = 0; i < choice.size(); i++) {
        if (choice[i] != 'N' && i + 2 != choice.size()) {
            if (at == text.size() || text[at++] != choice[i]) return false;
            continue;
        }
        const size_t end = std::min(text.find_first_not_of("0123456789", at), text.size());
        if (end == at || end - at > kMostDigits || text[at] == '0') return false;
        at = end;
    }
    return at == text.size();
}

}  // namespace

Attrs complete_attrs(const std::vector<AttrDef>& defs, const Attrs& given,
                     const std::string& where) {
    const bool any = !defs.empty() && defs.back().name == "*";
    for (const auto& [name, attr] : given.items()) {
        auto known = [&](const AttrDef& def) { return def.name == name; };
        if (std::none_of(defs.begin(), defs.end(), known)) {
            if (any && attr.index() <= 2) continue;  // bool, integer or float
            std::string names;
            for (const AttrDef& def : defs) names += (names.empty() ? "" : ", ") + def.name;
            raise(ErrorKind::graph, where, ": unknown attribute \"", name, "\"; need one of {",
                  names, "}");
        }
    }
    Attrs result;
    for (const AttrDef& def : defs) {
        if (any && &def == &defs.back()) break;
        const Attr* attr = given.find(def.name);
        if (!attr && def.required)
            raise(ErrorKind::graph, where, ": attribute \"", def.name,
                  "\" is missing; it has no default");
        if (!attr) {
            result.set(def.name, def.fallback);
            continue;
        }
        std::optional<Attr> converted = as_kind(*attr, def.fallback);
        if (!converted)
            raise(ErrorKind::graph, where, ": attribute \"", def.name, "\" is a ",
                  kAttrKinds[attr->index()], "; need a ", kAttrKinds[def.fallback.index()]);
        if (!def.choices.empty()) {
            const auto& text = std::get<std::string>(*converted);
            const auto fits = [&](const std::string& choice) { return is_choice(text, choice); };
            if (std::none_of(def.choices.begin(), def.choices.end(), fits)) {
                std::string names;
                for (const auto& choice : def.choices)
                    names += (names.empty() ? "" : ", ") + choice;
                raise(ErrorKind::graph, where, ": ", def.name, " is \"", text, "\"; need one of ",
                      names);
            }
        }
        result.set(def.name, std::move(*converted));
    }
    for (const auto& [name, attr] : given.items())
        if (any && !result.find(name)) result.set(name, attr);
    return result;
}

// ---- building ----------------------------------------------------------------------------------

namespace {

bool is_number(const Value& value) {
    return value.role == Role::constant && value.type.shape.rank() == 0 && value.init.bytes;
}

std::string number_key(DType dtype, const std::vector<char>& bytes) {
    return static_cast<char>(dtype) + std::string(bytes.begin(), bytes.end());
}

/// Reserves capacity, so that appending cannot throw.
template <class T>
void make_room(std::vector<T>& list, size_t more) {
    static_assert(std::is_nothrow_move_constructible_v<T>);
    const size_t wanted = list.size() + more;
    if (wanted > list.capacity()) list.reserve(std::max(wanted, 2 * list.capacity()));
}

/// Removes a key's entry if it has this value.
template <class Map>
void forget(Map& map, const typename Map::key_type& key, int entry) {
    if (const auto at = map.find(key); at != map.end() && at->second == entry) map.erase(at);
}

}  // namespace

// Strong exception guarantee: capacity first, then the index, then the non-throwing append.

ValueId Graph::add_value(Value value) {
    const ValueId id = value.id = static_cast<ValueId>(values.size());
    make_room(values, 1);
    if (is_leaf(value)) index_.leaves.emplace(value.name, id);
    if (is_number(value))
        index_.numbers.emplace(number_key(value.type.dtype, *value.init.bytes), id);
    values.push_back(std::move(value));
    return id;
}

void Graph::add_node(Node node) {
    make_room(nodes, 1);
    note_stream(node);
    nodes.push_back(std::move(node));
}

void Graph::note_stream(const Node& node) {
    if (const Attr* attr = node.attrs.find("stream"))  // of an unknown op, any kind
        if (const auto* stream = std::get_if<int64_t>(attr); stream && *stream < INT64_MAX)
            index_.free_stream = std::max(index_.free_stream, *stream + 1);
    if (const Attr* attr = node.attrs.find("body"))
        if (const auto* body = std::get_if<Body>(attr); body && *body)
            index_.free_stream = std::max(index_.free_stream, (*body)->free_stream());
}

void Graph::add_output(GraphOutput output) {
    make_room(outputs, 1);
    index_.outputs.emplace(output.name, static_cast<int>(outputs.size()));
    outputs.push_back(std::move(output));
}

void Graph::add_assign(const Assign& assign) {
    make_room(assigns, 1);
    index_.assigns.emplace(assign.target, static_cast<int>(assigns.size()));
    assigns.push_back(assign);
}

std::string init_problem(const Init& init, const Type& type, Role role) {
    const auto numbers = [&](const char* need) {
        return cat("initial numbers ", init.a, ", ", init.b, " for ", to_string(type), "; need ",
                   need);
    };
    const bool random = init.kind == Init::uniform || init.kind == Init::normal;
    if (role == Role::constant && init.kind != Init::data) return "a constant without its content";
    if (random && !is_float(type.dtype)) return numbers("a float dtype for random numbers");
    if (init.kind == Init::uniform && (!(init.a <= init.b) || !std::isfinite(init.b - init.a)))
        return numbers("finite low <= high");
    if (init.kind == Init::normal &&
        !(std::isfinite(init.a) && init.b >= 0 && std::isfinite(init.b)))
        return numbers("a finite mean and std >= 0");
    if (init.kind == Init::constant && !holds(type.dtype, init.a))
        return numbers("a whole number that the dtype holds");
    if (init.kind == Init::seed && !(type == Type{DType::i64, {}}))
        return cat("the seed as content of ", to_string(type), "; need i64[]");
    if (init.kind != Init::data) return "";
    if (!init.bytes || static_cast<int64_t>(init.bytes->size()) != byte_count(type))
        return cat("content of ", init.bytes ? init.bytes->size() : 0, " bytes; need ",
                   byte_count(type), " for ", to_string(type));
    const auto truth = [](char byte) { return byte == 0 || byte == 1; };
    if (type.dtype == DType::boolean && !std::all_of(init.bytes->begin(), init.bytes->end(), truth))
        return cat("a byte of ", to_string(type), " that is neither 0 nor 1; need bools");
    return "";
}

ValueId Graph::leaf(Role role, const std::string& value_name, const Type& type, const Init& init) {
    const std::string at = cat(role_name(role), " \"", value_name, "\"");
    if (value_name.empty()) raise(ErrorKind::graph, role_name(role), ": empty name; need a name");
    if (const Value* other = find(value_name))
        raise(ErrorKind::graph, at, ": the name is taken by ", role_name(other->role), " ",
              describe(other->id),
              "; need a name of its own, or a new Graph where this code runs again");
    int64_t count = 1;
    for (int64_t size : type.shape) {
        if (size < 0)
            raise(ErrorKind::shape, at, ": shape ", to_string(type.shape),
                  " has a negative size; need sizes >= 0");
        if (size && __builtin_mul_overflow(count, size, &count))
            raise(ErrorKind::shape, at, ": shape ", to_string(type.shape),
                  " has more than 2**63 elements; need fewer");
    }
    if (count > INT64_MAX / 16)
        raise(ErrorKind::shape, at, ": shape ", to_string(type.shape),
              " is too large; need less than 2**63 bytes");
    if (init.kind == Init::data && static_cast<int64_t>(init.bytes->size()) != byte_count(type))
        raise(ErrorKind::shape, at, ": the initial value has ", init.bytes->size(), " bytes; need ",
              to_string(type));
    if (const std::string problem = init_problem(init, type, role); !problem.empty())
        raise(ErrorKind::graph, at, ": ", problem);
    Value value;
    value.name = value_name;
    value.type = type;
    value.role = role;
    value.init = init;
    return add_value(std::move(value));
}

ValueId Graph::input(const std::string& value_name, const Type& type) {
    return leaf(Role::input, value_name, type, {});
}

ValueId Graph::param(const std::string& value_name, const Type& type, const Init& init) {
    return leaf(Role::param, value_name, type, init);
}

ValueId Graph::state(const std::string& value_name, const Type& type, const Init& init) {
    return leaf(Role::state, value_name, type, init);
}

ValueId Graph::constant(const Type& type, std::vector<char> bytes, const std::string& value_name) {
    check(static_cast<int64_t>(bytes.size()) == byte_count(type),
          "constant: byte count does not fit the type");
    Value value;
    value.name = value_name.empty() ? "const" : value_name;
    value.type = type;
    value.role = Role::constant;
    value.init = {Init::data, 0, 0, std::make_shared<const std::vector<char>>(std::move(bytes))};
    return add_value(std::move(value));
}

std::vector<char> number_bytes(DType dtype, double number) {
    std::vector<char> bytes(static_cast<size_t>(dtype_size(dtype)));
    auto put = [&](auto element) { std::memcpy(bytes.data(), &element, sizeof element); };
    switch (dtype) {
        case DType::f32:
            put(static_cast<float>(number));
            break;
        case DType::f64:
            put(number);
            break;
        case DType::f16:
            put(float_to_half(static_cast<float>(number)));
            break;
        case DType::bf16:
            put(float_to_bfloat(static_cast<float>(number)));
            break;
        default: {
            if (number != std::floor(number) || std::fabs(number) > 9e18)
                raise(ErrorKind::dtype, "constant: ", number,
                      " is not a whole number; the other operand is ", dtype_name(dtype),
                      ", cast it to a float type");
            const auto whole = static_cast<int64_t>(number);
            const auto [low, high] = range_of(dtype);
            if (whole < low || whole > high)
                raise(ErrorKind::dtype, "constant: ", whole, " does not fit ", dtype_name(dtype),
                      "; need a value in [", low, ", ", high, "]");
            switch (dtype) {
#define AICF_PUT(dtype, type)          \
    case DType::dtype:                 \
        put(static_cast<type>(whole)); \
        break;
                AICF_INTEGERS(AICF_PUT)
#undef AICF_PUT
                default:
                    put(static_cast<uint8_t>(whole));
            }
        }
    }
    return bytes;
}

ValueId Graph::scalar(DType dtype, double number, const std::string& value_name) {
    std::vector<char> bytes = number_bytes(dtype, number);
    const auto known = index_.numbers.find(number_key(dtype, bytes));
    if (known != index_.numbers.end()) return known->second;
    return constant({dtype, {}}, std::move(bytes), value_name);
}

const Value& Graph::value(ValueId id) const {
    if (id < 0 || id >= static_cast<ValueId>(values.size()))
        raise(ErrorKind::graph, "graph \"", name, "\": there is no value %", id, "; it has ",
              values.size(), " values");
    return values[id];
}

const Value* Graph::find(std::string_view value_name) const {
    const auto at = index_.leaves.find(std::string(value_name));
    return at == index_.leaves.end() ? nullptr : &values[at->second];
}

std::string Graph::describe(ValueId id) const {
    return cat("%", id, " ", to_string(value(id).type));
}

std::vector<ValueId> Graph::emit(const std::string& op, const std::vector<ValueId>& inputs,
                                 const Attrs& attrs, const std::string& value_name) {
    const OpDef* def = find_op(op);
    if (!def) raise(ErrorKind::graph, "graph \"", name, "\": unknown op \"", op, "\"");
    Node node;
    node.id = static_cast<int>(nodes.size());
    node.op = def;
    node.op_name = def->name;
    node.inputs = inputs;
    node.attrs = complete_attrs(def->attrs, attrs, def->fn);
    node.forward = differentiating;
    node.where = where;
    check_arity(def->inputs, inputs.size(), def->fn);
    std::vector<Type> types;
    for (ValueId id : inputs) types.push_back(value(id).type);
    const InferContext context(def->fn.c_str(), def->inputs, std::move(types), inputs, node.attrs);
    const std::vector<Type> results = def->infer(context);
    for (const Type& type : results) {
        int64_t bytes = 16;
        for (int64_t size : type.shape)
            if (size && __builtin_mul_overflow(bytes, size, &bytes))
                raise(ErrorKind::shape, def->fn, ": the result ", to_string(type),
                      " has more than 2**63 bytes; need fewer");
    }
    std::vector<Value> made(results.size());
    for (size_t i = 0; i < results.size(); i++) {
        made[i].id = static_cast<ValueId>(values.size() + i);
        made[i].name = !value_name.empty() && i == 0
                           ? value_name
                           : operand_name(def->outputs, static_cast<int>(i));
        made[i].type = results[i];
        made[i].producer = node.id;
        node.outputs.push_back(made[i].id);
    }
    std::vector<ValueId> outputs_made = node.outputs;
    make_room(values, made.size());
    make_room(nodes, 1);
    for (Value& value : made) values.push_back(std::move(value));  // nothing below throws
    add_node(std::move(node));
    return outputs_made;
}

void Graph::assign(ValueId target, ValueId source) {
    const Value& to = value(target);
    const Value& from = value(source);
    const std::string where_text = cat("assign to \"", to.name, "\"");
    if (to.role != Role::param && to.role != Role::state)
        raise(ErrorKind::graph, where_text, ": target is ", describe(target), ", of role ",
              role_name(to.role), "; need a param or a state");
    if (const ValueId other = assigned(target); other != kNone)
        raise(ErrorKind::graph, where_text, ": already assigned from %", other,
              "; a target is assigned once: need one minimize of the losses' sum, or one value");
    if (from.type.dtype != to.type.dtype)
        raise(ErrorKind::dtype, where_text, ": source is ", describe(source), ", target is ",
              describe(target), "; need equal dtypes (cast the source)");
    if (!(from.type.shape == to.type.shape))
        raise(ErrorKind::shape, where_text, ": source is ", describe(source), ", target is ",
              describe(target), "; need equal shapes");
    add_assign({target, source});
}

void Graph::output(const std::string& output_name, ValueId id, int keep) {
    value(id);
    if (const auto other = index_.outputs.find(output_name); other != index_.outputs.end())
        raise(ErrorKind::graph, "output \"", output_name, "\": the name is taken by %",
              outputs[static_cast<size_t>(other->second)].value, "; need a name of its own");
    if (keep < 1 || keep > 1 << 20)
        raise(ErrorKind::graph, "output \"", output_name, "\": keep is ", keep,
              "; need 1 to 1048576 steps");
    add_output({output_name, id, keep});
}

void Graph::mark_moment(ValueId state, ValueId param, int slot) {
    if (value(state).role != Role::state || value(param).role != Role::param ||
        !(value(state).type == value(param).type))
        raise(ErrorKind::graph, "mark_moment: ", describe(state), " of ", describe(param),
              "; need a state and a param of one type");
    values[state].moment_of = param;
    values[state].moment_slot = slot;
}

void Graph::rollback(const Mark& to) {
    if (to.values > values.size() || to.nodes > nodes.size() || to.outputs > outputs.size() ||
        to.assigns > assigns.size() || to.gradients > gradients.size())
        raise(ErrorKind::graph, "rollback: the mark is of a larger graph; need one of this graph");
    for (size_t i = values.size(); i-- > to.values;) {
        if (is_leaf(values[i])) forget(index_.leaves, values[i].name, values[i].id);
        if (is_number(values[i]))
            forget(index_.numbers, number_key(values[i].type.dtype, *values[i].init.bytes),
                   values[i].id);
    }
    for (size_t i = outputs.size(); i-- > to.outputs;)
        forget(index_.outputs, outputs[i].name, static_cast<int>(i));
    for (size_t i = assigns.size(); i-- > to.assigns;)
        forget(index_.assigns, assigns[i].target, static_cast<int>(i));
    values.resize(to.values);
    if (nodes.size() > to.nodes) {
        nodes.resize(to.nodes);
        index_.free_stream = 0;
        for (const Node& node : nodes) note_stream(node);
    }
    outputs.resize(to.outputs);
    assigns.resize(to.assigns);
    gradients.resize(to.gradients);
}

ValueId Graph::assigned(ValueId target) const {
    const auto at = index_.assigns.find(target);
    return at == index_.assigns.end() ? kNone : assigns[static_cast<size_t>(at->second)].source;
}

std::vector<char> live_nodes(const Graph& graph) {
    std::vector<char> wanted(graph.values.size(), 0), live(graph.nodes.size(), 0);
    for (const GraphOutput& output : graph.outputs) wanted[output.value] = 1;
    for (const Assign& assign : graph.assigns) wanted[assign.source] = 1;
    for (size_t n = graph.nodes.size(); n-- > 0;) {
        const Node& node = graph.nodes[n];
        for (ValueId id : node.outputs) live[n] |= wanted[id];
        if (live[n])
            for (ValueId id : node.inputs) wanted[id] = 1;
    }
    return live;
}

}  // namespace aicf
