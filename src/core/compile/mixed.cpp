// compile's math = "mixed": activations and gradients are stored as bfloat16.
//
// Products take 16-bit operands. Movement and pointwise ops on paths between products, fed by
// products and params alone, compute in 16 bits. Sums, losses, norms, params, states, outputs, and
// values only these read, are float32. Every change of dtype is a Cast node. bfloat16 has the range
// of float32, so gradients need no scaling. Where no product gains by it, all stays float32.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "core/compile/passes.h"

namespace aicf {

namespace {

constexpr DType kWide = DType::f32, kNarrow = DType::bf16;

std::atomic<bool> any_size = false;

/// Whether a product gains by 16 bits, whatever the device: a small one waits for its operands, one
/// of few rows reads little but what would be cast, again where no cache holds it. Steps of three
/// layers take an H100 in float32 and in 16 bits, us: 256 wide with 96 rows 19.0 and 20.4, with 128
/// 19.6 and 17.7; 384 with 64 21.2 and 21.9; 512 with 48 25.4 and 21.5; 1024 with 16 36.5 and 37.8,
/// with 24 44.9 and 40.9; 1536 with 16 111 and 81; 4096 with 16 495 and 510.
bool gains(const ProductSizes& of) {
    constexpr int64_t many_rows = 128, least_of_many = 1 << 23, least = 3 << 22;
    constexpr int64_t few_rows = 16, least_of_few = 1 << 25, large_weights = 1 << 24;
    const int64_t work = of.batches * of.m * of.n * of.k;
    if (of.batches > 1 || of.m >= many_rows) return work >= least_of_many;
    if (of.m > few_rows) return work >= least;
    return work >= least_of_few && of.n * of.k < large_weights;
}

/// Whether one of a graph's products does, by which the others have neighbours in 16 bits. Those of
/// a product's gradient count as that product, whether or not a result needs it.
bool gains_by_16_bits(const Graph& graph) {
    const std::vector<char> live = live_nodes(graph);
    return std::any_of(graph.nodes.begin(), graph.nodes.end(), [&](const Node& node) {
        if (!live[node.id] || node.op->storage != Storage::product) return false;
        if (!node.op->sizes) return true;
        const bool of_gradient = node.forward >= 0 && graph.nodes[node.forward].op->sizes;
        const Node& product = of_gradient ? graph.nodes[node.forward] : node;
        const auto type = [&](int k) { return graph.value(product.inputs[k]).type; };
        return type(0).dtype == kWide && gains(product.op->sizes(type(0).shape, type(1).shape));
    });
}

class Narrowing {
  public:
    explicit Narrowing(Graph& graph)
        : graph_(graph),
          was_wide_(graph.values.size(), 0),
          small_(graph.values.size(), 0),
          keep_wide_(graph.values.size(), 0),
          wanted_(graph.values.size(), 0),
          of_param_(graph.values.size(), 0),
          copy_(graph.values.size(), kNone) {
        for (const Value& value : graph.values) {
            was_wide_[value.id] = value.type.dtype == kWide;
            of_param_[value.id] = value.role == Role::param;
        }
        for (const Gradient& gradient : graph.gradients) keep_wide_[gradient.loss] = 1;
        for (const Assign& assign : graph.assigns) keep_wide_[assign.source] = 1;
        const std::vector<char> live = live_nodes(graph);
        for (size_t i = graph.nodes.size(); i-- > 0;) {
            const Node& node = graph.nodes[i];
            if (!live[node.id] || node.op->storage == Storage::wide) continue;
            const bool element = node.op->storage == Storage::narrow;
            if (element && !any(keep_wide_, node.outputs) && !any(wanted_, node.outputs)) continue;
            std::vector<char>& mark =
                element && any(keep_wide_, node.outputs) ? keep_wide_ : wanted_;
            for (size_t k = 0; k < node.inputs.size(); k++)
                (stays_wide(node, k) ? keep_wide_ : mark)[node.inputs[k]] = 1;
        }
        find_narrow_alone(live);
    }

    void run() {
        std::vector<Node> nodes = std::move(graph_.nodes);
        graph_.nodes.clear();
        std::vector<int> place(nodes.size(), -1);
        for (Node& node : nodes) {
            if (node.forward >= 0) node.forward = place[node.forward];
            graph_.where = node.where;
            given_ = node.given = node.id;
            settle(node);
            place[node.given] = node.id = static_cast<int>(graph_.nodes.size());
            for (ValueId id : node.outputs) graph_.values[id].producer = node.id;
            graph_.nodes.push_back(std::move(node));
        }
        for (GraphOutput& output : graph_.outputs) output.value = as(output.value, kWide);
        for (Assign& assign : graph_.assigns) assign.source = as(assign.source, kWide);
        for (Gradient& gradient : graph_.gradients) {
            gradient.grad = as(gradient.grad, graph_.value(gradient.value).type.dtype);
            if (gradient.seed != kNone)
                gradient.seed = as(gradient.seed, graph_.value(gradient.loss).type.dtype);
        }
    }

  private:
    /// Casts move through views: an upcast towards its consumer, a downcast towards its producer.
    /// The rounding is the same, and the cast can be fused there.
    bool moves_narrow(const Node& node) const {
        if (!node.op->is_view || !was_wide_[node.inputs[0]]) return false;
        const Value& from = graph_.value(node.inputs[0]);
        if (element_count(graph_.value(node.outputs[0]).type.shape) >
            element_count(from.type.shape))
            return false;
        if (from.type.dtype == kNarrow) return true;
        // Not across the forward pass: the cast copy would stay live until the backward pass.
        return narrow_alone_[node.outputs[0]] && from.producer >= 0 &&
               (node.forward >= 0) == (graph_.nodes[from.producer].forward >= 0);
    }

    /// Whether only products read a value, directly or through views.
    void find_narrow_alone(const std::vector<char>& live) {
        narrow_alone_ = wanted_;
        for (const GraphOutput& output : graph_.outputs) narrow_alone_[output.value] = 0;
        for (const Assign& assign : graph_.assigns) narrow_alone_[assign.source] = 0;
        for (const Gradient& gradient : graph_.gradients)
            for (ValueId id : {gradient.loss, gradient.value, gradient.grad}) narrow_alone_[id] = 0;
        for (size_t i = graph_.nodes.size(); i-- > 0;) {
            const Node& node = graph_.nodes[i];
            if (!live[node.id] || (node.op->is_view && narrow_alone_[node.outputs[0]])) continue;
            for (size_t k = 0; k < node.inputs.size(); k++)
                if (node.op->storage != Storage::product || stays_wide(node, k))
                    narrow_alone_[node.inputs[k]] = 0;
        }
    }

    /// Chooses a node's compute dtype and casts its operands and results.
    void settle(Node& node) {
        bool any_small = false, all_small = true, rounds = true, of_params = true;
        for (ValueId id : node.inputs) {
            if (!was_wide_[id]) continue;
            any_small |= small_[id];
            of_params &= of_param_[id];
            if (small_[id] || of_param_[id] || fits(id)) continue;
            all_small = false;
            rounds &= is_number(id);  // not exact in 16 bits: compute in f32 and round the result
        }
        Storage storage = node.op->storage;
        if (storage == Storage::narrow &&
            (any(keep_wide_, node.outputs) || !any(wanted_, node.outputs)))
            storage = Storage::wide;
        const bool moved = moves_narrow(node);
        const bool narrow = storage == Storage::product || moved ||
                            (storage == Storage::narrow && any_small && all_small);
        for (size_t k = 0; k < node.inputs.size(); k++)
            node.inputs[k] = as(node.inputs[k], narrow && !stays_wide(node, k) ? kNarrow : kWide);

        std::vector<Type> types;
        for (ValueId id : node.inputs) types.push_back(graph_.value(id).type);
        const InferContext context(node.op->fn.c_str(), node.op->inputs, std::move(types),
                                   node.inputs, node.attrs);
        const std::vector<Type> results = node.op->infer(context);
        for (size_t i = 0; i < node.outputs.size(); i++) {
            const ValueId id = node.outputs[i];
            graph_.values[id].type = results[i];
            small_[id] =
                was_wide_[id] && (results[i].dtype == kNarrow ||
                                  (!moved && storage == Storage::narrow && any_small && rounds));
            of_param_[id] = of_params && node.op->is_view;
        }
    }

    static bool stays_wide(const Node& node, size_t input) {
        const auto& wide = node.op->wide;
        return std::find(wide.begin(), wide.end(), static_cast<int>(input)) != wide.end();
    }

    static bool any(const std::vector<char>& marks, const std::vector<ValueId>& ids) {
        return std::any_of(ids.begin(), ids.end(), [&](ValueId id) { return marks[id]; });
    }

    bool is_number(ValueId id) const {
        const Value& value = graph_.value(id);
        return value.role == Role::constant && value.type.shape.rank() == 0;
    }

    float number(ValueId id) const {
        float x = 0;
        std::memcpy(&x, graph_.value(id).init.bytes->data(), sizeof x);
        return x;
    }

    /// A scalar that bfloat16 represents exactly.
    bool fits(ValueId id) const {
        if (!is_number(id)) return false;
        const float x = number(id);
        return bfloat_to_float(float_to_bfloat(x)) == x;
    }

    /// The rewritten counterpart of a value, in the wanted dtype if it is f32 or bfloat16.
    ValueId as(ValueId id, DType dtype) {
        if (!was_wide_[id] || graph_.value(id).type.dtype == dtype) return id;
        ValueId& copy = copy_[id];
        if (copy != kNone) return copy;
        if (is_number(id)) return copy = graph_.scalar(dtype, number(id));
        // The cast belongs to the backward pass if its operand does.
        const int producer = graph_.value(id).producer;
        graph_.differentiating = producer < 0 ? -1 : graph_.nodes[producer].forward;
        copy = graph_.emit("Cast", {id}, {{"dtype", dtype_name(dtype)}})[0];
        graph_.nodes.back().given = producer < 0 ? given_ : graph_.nodes[producer].given;
        graph_.differentiating = -1;
        return copy;
    }

    Graph& graph_;
    int given_ = -1;  // the node being rewritten, in the original graph
    // By value of the original graph.
    std::vector<char> was_wide_;      // of dtype f32
    std::vector<char> small_;         // stored as kNarrow
    std::vector<char> keep_wide_;     // a loss, or reaches a state
    std::vector<char> wanted_;        // reaches a product
    std::vector<char> narrow_alone_;  // all readers take 16 bits
    std::vector<char> of_param_;      // a param or a view of one
    std::vector<ValueId> copy_;       // its cast to the other dtype
};

}  // namespace

void store_in_16_bits(Graph& graph) {
    if (any_size || gains_by_16_bits(graph)) Narrowing(graph).run();
}

bool narrow_any_size(bool any) { return any_size.exchange(any); }

}  // namespace aicf
