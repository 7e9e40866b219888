#include "core/compile/indices.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <unordered_map>

#include "core/graph/custom.h"

namespace aicf {

namespace {

struct Span {
    int64_t low, high;
};

/// Loads an integer of a dtype.
int64_t load(DType dtype, const char* at) {
    const auto as = [&](auto number) {
        std::memcpy(&number, at, sizeof number);
        return int64_t{number};
    };
    switch (dtype) {
#define AICF_LOAD(dtype, type) \
    case DType::dtype:         \
        return as(type());
        AICF_INTEGERS(AICF_LOAD)
#undef AICF_LOAD
        default:
            return as(uint8_t());
    }
}

Span span_of_all(DType dtype) {
    const auto [low, high] = range_of(dtype);
    return {low, high};
}

class Tracing {
  public:
    explicit Tracing(const Graph& graph) : graph_(graph), of_value_(graph.values.size()) {}

    IndexUses uses() {
        IndexUses found;
        const std::vector<char> live = live_nodes(graph_);
        for (const Node& node : graph_.nodes) {
            if (!live[node.id] || !node.op) continue;
            if (node.op->rows)
                add(node.inputs[static_cast<size_t>(node.op->indices)], rows_of(node), node,
                    nullptr, found);
            if (const Attr* body = node.attrs.find("body"); body && node.op_name == "Scan")
                add_body(**std::get_if<Body>(body), node, found);
        }
        return found;
    }

  private:
    struct Elements {
        View view;
        bool ignores = false;
        int64_t ignored = 0;
        bool reordered = false;  // all elements, in another order
    };

    int64_t rows_of(const Node& node) const {
        return node.op->rows(graph_.value(node.inputs[0]).type.shape, node.attrs);
    }

    /// The index uses of a loop's body, mapped to its operands: a whole operand, or a part of one
    /// that is contiguous in a leaf.
    void add_body(const Graph& body, const Node& loop, IndexUses& found) {
        const int64_t carries = loop.attrs.integer("carries");
        const int64_t slices = loop.attrs.integer("slices");
        for (const IndexUse& use : Tracing(body).uses().leaves) {
            const Value& operand = body.value(use.leaf);
            if (operand.role != Role::input || operand.id < carries) continue;
            const ValueId id = loop.inputs[static_cast<size_t>(operand.id)];
            const View part = without_repeats(use.view);
            if (element_count(part.shape) == element_count(operand.type.shape) && !use.ignores) {
                add(id, use.rows, loop, &use, found);
                continue;
            }
            auto elements = elements_of(id, use.rows);
            if (!elements || elements->reordered || (elements->ignores && use.ignores) ||
                !is_contiguous(elements->view.shape, elements->view.strides) ||
                in_range(id, use.rows))
                continue;
            View& view = elements->view;
            view.offset += part.offset;
            view.shape = part.shape;
            view.strides = part.strides;
            if (operand.id < carries + slices) {  // one slice a turn
                view.shape.insert(0, loop.attrs.integer("length"));
                view.strides.insert(0, element_count(operand.type.shape));
            }
            if (use.ignores) elements->ignores = true, elements->ignored = use.ignored;
            add_elements(*elements, use.rows, loop, &use, found);
        }
    }

    /// Drops axes of size 1 or stride 0.
    static View without_repeats(View view) {
        for (int axis = view.shape.rank(); axis-- > 0;)
            if (view.strides[axis] == 0 || view.shape[axis] == 1) {
                view.shape.erase(axis);
                view.strides.erase(axis);
            }
        return view;
    }

    /// Whether range analysis proves all elements in range.
    bool in_range(ValueId id, int64_t rows) {
        const auto span = span_of(id, kDeepest);
        return span && span->low >= 0 && span->high < rows;
    }

    void add_elements(const Elements& elements, int64_t rows, const Node& node,
                      const IndexUse* inside, IndexUses& found) const {
        const View& view = elements.view;
        const bool seen =
            std::any_of(found.leaves.begin(), found.leaves.end(), [&](const IndexUse& use) {
                const View& other = use.view;
                return use.leaf == view.value && use.rows == rows &&
                       use.ignores == elements.ignores && use.ignored == elements.ignored &&
                       other.offset == view.offset && other.shape == view.shape &&
                       other.strides == view.strides;
            });
        if (seen) return;
        IndexUse use{view.value, view, rows, elements.ignores, elements.ignored, node.id};
        use.op = inside ? inside->op : node.op_name;
        use.source = inside ? inside->source : node.where;
        use.operand = inside ? inside->operand : operand_name(node.op->inputs, node.op->indices);
        found.leaves.push_back(std::move(use));
    }

    /// Records that `node`, or the use `inside` its body, indexes by the elements of `id`.
    void add(ValueId id, int64_t rows, const Node& node, const IndexUse* inside, IndexUses& found) {
        const Type& type = graph_.value(id).type;
        if (element_count(type.shape) == 0) return;
        if (in_range(id, rows)) return;
        if (const auto elements = elements_of(id, rows)) {
            add_elements(*elements, rows, node, inside, found);
            return;
        }
        if (inside) return;
        const bool seen = std::any_of(found.computed.begin(), found.computed.end(), [&](int at) {
            const Node& other = graph_.nodes[at];
            return other.inputs[static_cast<size_t>(other.op->indices)] == id &&
                   rows_of(other) == rows;
        });
        if (!seen && !from_host_call(id)) found.computed.push_back(node.id);
    }

    const Node* maker(ValueId id) const {
        const int producer = graph_.value(id).producer;
        return producer < 0 ? nullptr : &graph_.nodes[producer];
    }

    /// The leaf elements of which a value is a view; empty if it is computed.
    std::optional<Elements> elements_of(ValueId id, int64_t rows) const {
        const Node* node = maker(id);
        const Value& value = graph_.value(id);
        if (!node) {
            if (value.role == Role::temp || value.type.dtype == DType::boolean) return std::nullopt;
            return Elements{whole_view(value)};
        }
        if (node->op_name == "Where") return without_ignored(*node, rows);
        const bool widens = node->op_name == "Cast" && widening(node->inputs[0], id);
        if (!node->op || !(node->op->is_view || node->op->detaches || widens)) return std::nullopt;
        auto elements = elements_of(node->inputs[0], rows);
        if (!elements) return elements;
        View& view = elements->view;
        if (elements->reordered) {
            if (node->op_name == "Slice") return std::nullopt;
        } else if (node->op_name == "Transpose") {
            view = permute_view(view, node->attrs.ints("axes"));
        } else if (node->op_name == "BroadcastTo") {
            view = broadcast_view(view, value.type.shape);
        } else if (node->op_name == "Reshape") {
            if (const auto shaped = reshape_view(view, value.type.shape))
                view = *shaped;
            else
                elements->reordered = true;
        } else if (node->op_name == "Slice") {
            for (int i = 0; i < view.shape.rank(); i++) {
                view.offset += node->attrs.ints("start")[static_cast<size_t>(i)] * view.strides[i];
                view.strides[i] *= node->attrs.ints("step")[static_cast<size_t>(i)];
            }
            view.shape = value.type.shape;
        } else if (!(node->op->detaches || widens)) {
            return std::nullopt;
        }
        return elements;
    }

    /// Matches where(x != ignored, x, a valid index).
    std::optional<Elements> without_ignored(const Node& node, int64_t rows) const {
        const Node* test = maker(node.inputs[0]);
        const auto instead = number_of(node.inputs[2]);
        if (!test || test->op_name != "Ne" || !instead || *instead < 0 || *instead >= rows)
            return std::nullopt;
        const auto ignored = number_of(test->inputs[1]);
        if (!ignored || test->inputs[0] != node.inputs[1]) return std::nullopt;
        auto elements = elements_of(node.inputs[1], rows);
        if (!elements || elements->ignores) return std::nullopt;
        elements->ignores = true;
        elements->ignored = *ignored;
        return elements;
    }

    bool widening(ValueId from, ValueId to) const {
        const DType a = graph_.value(from).type.dtype, b = graph_.value(to).type.dtype;
        return is_integer(a) && is_integer(b) && held(b, span_of_all(a));
    }

    /// The number that all elements of a constant equal, if there is one.
    std::optional<int64_t> number_of(ValueId id) const {
        const Node* node = maker(id);
        if (node && node->op && (node->op->is_view || node->op_name == "Cast"))
            return is_integer(graph_.value(id).type.dtype) ? number_of(node->inputs[0])
                                                           : std::nullopt;
        if (node) return std::nullopt;
        const auto span = constant_span(graph_.value(id));
        return span && span->low == span->high ? std::optional(span->low) : std::nullopt;
    }

    static std::optional<Span> constant_span(const Value& value) {
        const int64_t count = element_count(value.type.shape);
        if (value.role != Role::constant || !is_integer(value.type.dtype) || count == 0)
            return std::nullopt;
        if (value.init.kind == Init::zeros) return Span{0, 0};
        if (value.init.kind != Init::data || !value.init.bytes) return std::nullopt;
        Span span{INT64_MAX, INT64_MIN};
        for (int64_t i = 0; i < count; i++) {
            const int64_t number =
                load(value.type.dtype, value.init.bytes->data() + i * dtype_size(value.type.dtype));
            span = {std::min(span.low, number), std::max(span.high, number)};
        }
        return span;
    }

    /// Interval analysis: bounds of an integer value's elements for any inputs.
    std::optional<Span> span_of(ValueId id, int deep) {
        if (deep == 0) return std::nullopt;
        auto& known = of_value_[static_cast<size_t>(id)];
        if (!known) known = made_span(id, deep);
        return *known;
    }

    std::optional<Span> made_span(ValueId id, int deep) {
        const Value& value = graph_.value(id);
        if (value.type.dtype == DType::boolean) return Span{0, 1};
        const Node* node = maker(id);
        if (!node) return leaf_span(value);
        if (!node->op) return std::nullopt;
        if (const auto span = position_span(*node)) return span;
        if (!is_integer(value.type.dtype)) return std::nullopt;
        const std::string& name = node->op_name;
        const auto of = [&](size_t i) { return span_of(node->inputs[i], deep - 1); };
        if (node->op->is_view || node->op->detaches) return of(0);
        // Rows without a source are 0.
        if (name == "Take" || name == "Gather") return joined(of(0), Span{0, 0});
        if (name == "Sum") return sum_span(*node, of(0), value.type.dtype);
        if (name == "Cast") {
            const DType from = graph_.value(node->inputs[0]).type.dtype;
            const auto span =
                is_float(from) ? truncated(bounds_of(node->inputs[0], deep - 1)) : of(0);
            return span && held(value.type.dtype, *span) ? span : std::nullopt;
        }
        if (name == "Where") {
            const auto rest = remainder_span(*node, deep);
            return rest ? rest : joined(of(1), of(2));
        }
        if (name == "Clip") {
            const Span range{static_cast<int64_t>(node->attrs.number("lo")),
                             static_cast<int64_t>(node->attrs.number("hi"))};
            return range.low <= range.high ? std::optional(range) : std::nullopt;
        }
        if (node->inputs.size() != 2) return std::nullopt;
        const auto a = of(0), b = of(1);
        return pair_span(name, value.type.dtype, a, b);
    }

    /// Bounds of an input or a constant.
    static std::optional<Span> leaf_span(const Value& value) {
        if (const auto span = constant_span(value)) return span;
        const bool narrow = is_integer(value.type.dtype) && dtype_size(value.type.dtype) < 4;
        return narrow ? std::optional(span_of_all(value.type.dtype)) : std::nullopt;
    }

    /// Bounds of an op whose results are positions along an axis of its first operand.
    std::optional<Span> position_span(const Node& node) const {
        const std::string& name = node.op_name;
        const auto along = [&](int64_t axis) {
            const Dims& shape = graph_.value(node.inputs[0]).type.shape;
            return shape[static_cast<int>(axis < 0 ? axis + shape.rank() : axis)];
        };
        if (name == "SearchSorted") return Span{0, along(-1)};
        int64_t size = 1;
        if (name == "ArgMax")
            for (int64_t axis : node.attrs.ints("axes")) size *= along(axis);
        else if (name == "ArgSort" || name == "CumArg" || name == "ScatterLast")
            size = along(node.attrs.integer("axis"));
        else
            return std::nullopt;
        return Span{name == "ScatterLast" ? -1 : 0, std::max<int64_t>(size, 1) - 1};
    }

    /// Bounds of an op of two operands, from theirs.
    static std::optional<Span> pair_span(const std::string& name, DType dtype,
                                         const std::optional<Span>& a,
                                         const std::optional<Span>& b) {
        if (name == "Maximum" && (a || b)) return bounded(dtype, a, b, true);
        if (name == "Minimum" && (a || b)) return bounded(dtype, a, b, false);
        if (!a || !b) return std::nullopt;
        Span span{};
        bool over = true;
        if (name == "Add")
            over = __builtin_add_overflow(a->low, b->low, &span.low) ||
                   __builtin_add_overflow(a->high, b->high, &span.high);
        else if (name == "Sub")
            over = __builtin_sub_overflow(a->low, b->high, &span.low) ||
                   __builtin_sub_overflow(a->high, b->low, &span.high);
        else if (name == "Mul" && a->low >= 0 && b->low >= 0)
            over = __builtin_mul_overflow(a->low, b->low, &span.low) ||
                   __builtin_mul_overflow(a->high, b->high, &span.high);
        else if (name == "FloorDivide" && a->low >= 0 && b->low > 0)
            return Span{0, a->high / b->low};
        return !over && held(dtype, span) ? std::optional(span) : std::nullopt;
    }

    struct Bounds {
        double low, high;
    };
    /// Bounds of a float value's elements, NaN apart.
    std::optional<Bounds> bounds_of(ValueId id, int deep) {
        const Value& value = graph_.value(id);
        const Node* node = maker(id);
        if (deep == 0) return std::nullopt;
        if (!is_float(value.type.dtype)) {
            const auto span = span_of(id, deep);
            constexpr int64_t kExact = int64_t{1} << 24;
            if (!span || span->low < -kExact || span->high > kExact) return std::nullopt;
            return Bounds{static_cast<double>(span->low), static_cast<double>(span->high)};
        }
        if (!node || !node->op) return node ? std::nullopt : float_of(value);
        const auto of = [&](size_t i) { return bounds_of(node->inputs[i], deep - 1); };
        const std::string& name = node->op_name;
        if (node->op->is_view || node->op->detaches) return of(0);
        if (name == "Clip") {
            const Bounds range{node->attrs.number("lo"), node->attrs.number("hi")};
            return range.low <= range.high ? std::optional(range) : std::nullopt;
        }
        if (name == "Cast")
            return is_float(graph_.value(node->inputs[0]).type.dtype) ? std::nullopt : of(0);
        if (name == "Floor") {
            const auto x = of(0);
            return x ? std::optional(Bounds{std::floor(x->low), std::floor(x->high)}) : x;
        }
        if (name != "Mul") return std::nullopt;
        const auto a = of(0), b = of(1);
        if (!a || !b || a->low < 0 || b->low < 0) return std::nullopt;
        return Bounds{0, std::ceil(a->high * b->high)};  // rounding does not pass a whole number
    }

    /// Bounds of a scalar float constant.
    static std::optional<Bounds> float_of(const Value& value) {
        if (value.role != Role::constant || value.init.kind != Init::data || !value.init.bytes ||
            element_count(value.type.shape) != 1)
            return std::nullopt;
        double number = 0;
        if (value.type.dtype == DType::f64) {
            std::memcpy(&number, value.init.bytes->data(), sizeof number);
        } else if (value.type.dtype == DType::f32) {
            float narrow = 0;
            std::memcpy(&narrow, value.init.bytes->data(), sizeof narrow);
            number = narrow;
        } else {
            return std::nullopt;
        }
        if (!std::isfinite(number)) return std::nullopt;
        return Bounds{number, number};
    }

    /// Bounds after a cast to an integer, where NaN becomes 0.
    static std::optional<Span> truncated(const std::optional<Bounds>& x) {
        constexpr double kMost = 1 << 24;
        if (!x || x->low < -kMost || x->high > kMost) return std::nullopt;
        return Span{std::min<int64_t>(static_cast<int64_t>(x->low), 0),
                    std::max<int64_t>(static_cast<int64_t>(x->high), 0)};
    }

    std::optional<Span> sum_span(const Node& node, const std::optional<Span>& each,
                                 DType dtype) const {
        const int64_t all = element_count(graph_.value(node.inputs[0]).type.shape),
                      sums = std::max<int64_t>(
                          element_count(graph_.value(node.outputs[0]).type.shape), 1);
        Span sum{};
        if (!each || each->low < 0 || __builtin_mul_overflow(all / sums, each->high, &sum.high) ||
            !held(dtype, sum))
            return std::nullopt;
        return sum;
    }

    /// Bounds of a % b as composed: b is added to a remainder of the other sign.
    std::optional<Span> remainder_span(const Node& where, int deep) {
        const auto made = [&](ValueId id, const char* name) {
            const Node* node = maker(id);
            return node && node->op_name == name ? node : nullptr;
        };
        const ValueId rest = where.inputs[2];
        const Node* const fmod = made(rest, "Fmod");
        const Node* const sum = made(where.inputs[1], "Add");
        const Node* const across = made(where.inputs[0], "LogicalAnd");
        const Node* const differ = across ? made(across->inputs[1], "LogicalXor") : nullptr;
        const Node* const below = differ ? made(differ->inputs[0], "Lt") : nullptr;
        if (!fmod || !sum || !below || sum->inputs[0] != rest ||
            sum->inputs[1] != fmod->inputs[1] || below->inputs[0] != rest ||
            number_of(below->inputs[1]) != 0)
            return std::nullopt;
        const auto by = span_of(fmod->inputs[1], deep - 1);
        return by && by->low > 0 ? std::optional(Span{0, by->high - 1}) : std::nullopt;
    }

    static bool held(DType dtype, const Span& span) {
        const Span most = span_of_all(dtype);
        return span.low >= most.low && span.high <= most.high;
    }

    static std::optional<Span> joined(const std::optional<Span>& a, const std::optional<Span>& b) {
        if (!a || !b) return std::nullopt;
        return Span{std::min(a->low, b->low), std::max(a->high, b->high)};
    }

    /// Bounds of a maximum or minimum, also if only one operand is bounded.
    static Span bounded(DType dtype, const std::optional<Span>& a, const std::optional<Span>& b,
                        bool larger) {
        const Span any = span_of_all(dtype);
        const Span x = a.value_or(any), y = b.value_or(any);
        if (larger) return {std::max(x.low, y.low), std::max(x.high, y.high)};
        return {std::min(x.low, y.low), std::min(x.high, y.high)};
    }

    /// Whether a value depends on a host callback; a check would call it once more.
    bool from_host_call(ValueId id) const {
        std::vector<ValueId> left = {id};
        std::vector<char> seen(graph_.values.size(), 0);
        while (!left.empty()) {
            const Node* node = maker(left.back());
            left.pop_back();
            if (!node) continue;
            if (node->op_name == "HostCall") return true;
            for (ValueId input : node->inputs)
                if (!seen[static_cast<size_t>(input)]++) left.push_back(input);
        }
        return false;
    }

    static constexpr int kDeepest = 64;  // recursion limit of the interval analysis
    const Graph& graph_;
    std::vector<std::optional<std::optional<Span>>> of_value_;
};

/// Whether any of `count` adjacent indices is out of range; branch-free, so it vectorises.
template <class T>
bool any_refused(const char* at, int64_t count, int64_t step, const IndexUse& use) {
    const auto rows = static_cast<uint64_t>(use.rows);
    uint64_t bad = 0;
    if (step == 1 && !use.ignores) {
        for (int64_t i = 0; i < count; i++) {
            T number;
            std::memcpy(&number, at + i * int64_t{sizeof(T)}, sizeof(T));
            bad |= static_cast<uint64_t>(static_cast<int64_t>(number)) >= rows;
        }
        return bad;
    }
    for (int64_t i = 0; i < count; i++) {
        T number;
        std::memcpy(&number, at + i * step * int64_t{sizeof(T)}, sizeof(T));
        const auto wide = static_cast<int64_t>(number);
        bad |= static_cast<uint64_t>(wide) >= rows && !(use.ignores && wide == use.ignored);
    }
    return bad;
}

bool any_refused(DType dtype, const char* at, int64_t count, int64_t step, const IndexUse& use) {
    switch (dtype) {
#define AICF_REFUSED(dtype, type) \
    case DType::dtype:            \
        return any_refused<type>(at, count, step, use);
        AICF_INTEGERS(AICF_REFUSED)
#undef AICF_REFUSED
        default:
            return any_refused<uint8_t>(at, count, step, use);
    }
}

}  // namespace

int64_t integer_at(const TensorRef& tensor, int64_t element) {
    return load(tensor.dtype,
                static_cast<const char*>(tensor.data) + element * dtype_size(tensor.dtype));
}

IndexUses index_uses(const Graph& graph) { return Tracing(graph).uses(); }

std::optional<std::vector<int64_t>> refused_element(const IndexUse& use, const TensorRef& content) {
    if (element_count(use.view.shape) == 0)
        return std::nullopt;  // from a file, its offset may be anything
    const Dims own = contiguous_strides(content.shape);
    const int64_t size = dtype_size(content.dtype);
    const auto* base = static_cast<const char*>(content.data);
    // The address of an element of the leaf, given its C-order position.
    const auto at = [&](int64_t element) {
        int64_t offset = 0;
        for (int axis = 0; axis < own.rank(); axis++) {
            if (content.shape[axis] == 1) continue;
            offset += element / own[axis] * content.strides[axis];
            element %= own[axis];
        }
        return base + offset * size;
    };
    const bool packed = is_contiguous(content.shape, content.strides);
    if (packed && use.view.whole({use.view.dtype, content.shape}) &&
        !any_refused(content.dtype, base, element_count(content.shape), 1, use))
        return std::nullopt;
    // Runs along the last contiguous axis; the other axes count like an odometer.
    Dims shape = use.view.shape, strides = use.view.strides;
    for (int axis = shape.rank(); axis-- > 0;)
        if (strides[axis] == 0 || shape[axis] == 1) {
            shape.erase(axis);
            strides.erase(axis);
        }
    const int rank = shape.rank();
    const int64_t line = rank ? shape[rank - 1] : 1, step = rank ? strides[rank - 1] : 0;
    Dims place(rank, 0);
    for (int64_t offset = use.view.offset;;) {
        if (!packed || any_refused(content.dtype, at(offset), line, step, use))
            for (int64_t i = 0; i < line; i++)
                if (int64_t element = offset + i * step;
                    any_refused(content.dtype, at(element), 1, 1, use)) {
                    std::vector<int64_t> index;
                    for (int axis = 0; axis < own.rank(); axis++) {
                        index.push_back(content.shape[axis] == 1 ? 0 : element / own[axis]);
                        if (content.shape[axis] != 1) element %= own[axis];
                    }
                    return index;
                }
        int axis = rank - 2;
        for (; axis >= 0; axis--) {
            offset += strides[axis];
            if (++place[axis] < shape[axis]) break;
            offset -= strides[axis] * shape[axis];
            place[axis] = 0;
        }
        if (axis < 0) return std::nullopt;
    }
}

}  // namespace aicf
