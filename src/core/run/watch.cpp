#include "core/run/watch.h"

#include <cmath>
#include <cstring>

#include "core/graph/op.h"

namespace aicf {

namespace {

/// A twin Step: shares all cells, and `stored` removes the effects of its graph.
Step::Options beside(const Step& step, std::function<void(Graph&)> stored) {
    Step::Options options;
    options.device = step.device();
    options.capture = step.captured();
    options.share = {&step};
    options.share_inputs = true;
    options.compile = step.compiled();
    options.compile.check_indices = false;
    options.compile.stored = std::move(stored);
    return options;
}

std::function<void(Graph&)> probing(std::vector<ValueId> values) {
    return [values = std::move(values)](Graph& graph) { probe(graph, values); };
}

double number_at(const TensorRef& tensor, int64_t i) {
    const auto as = [&]<class T>(T) {
        T element;
        std::memcpy(&element, static_cast<const char*>(tensor.data) + i * int64_t{sizeof(T)},
                    sizeof(T));
        return element;
    };
    switch (tensor.dtype) {
        case DType::f64:
            return as(double());
        case DType::f16:
            return half_to_float(as(uint16_t()));
        case DType::bf16:
            return bfloat_to_float(as(uint16_t()));
        default:
            return as(float());
    }
}

/// The position of the first element of the kind found (an index: outside [0, rows)); -1: none.
int64_t find_element(const TensorRef& tensor, Finding::Kind kind, int64_t rows) {
    const int64_t count = element_count(tensor.shape);
    for (int64_t i = 0; i < count; i++) {
        if (kind == Finding::index) {
            const int64_t number = integer_at(tensor, i);
            if (number < 0 || number >= rows) return i;
        } else if (const double x = number_at(tensor, i);
                   kind == Finding::nan ? std::isnan(x) : std::isinf(x)) {
            return i;
        }
    }
    return -1;
}

std::vector<int64_t> place_of(int64_t element, const Dims& shape) {
    std::vector<int64_t> place(static_cast<size_t>(shape.rank()));
    for (int axis = shape.rank(); axis-- > 0; element /= shape[axis])
        place[static_cast<size_t>(axis)] = element % shape[axis];
    return place;
}

}  // namespace

// ---- watchers ----------------------------------------------------------------------------------

void Watcher::run(Step& twin) {
    if (twin.captured_)
        twin.replay_locked(1, {});
    else
        twin.run_locked({});
}

/// All outputs in one transfer, except those in other segments.
std::vector<float> Watcher::numbers(Step& twin, size_t count) {
    Backend& backend = *twin.machine_->backend;
    constexpr int kOutputs = static_cast<int>(Segment::outputs);
    std::vector<char> all(static_cast<size_t>(twin.plan_.segment_bytes[kOutputs]));
    backend.synchronize();
    if (!all.empty()) backend.download(all.data(), twin.segments_[kOutputs].get(), all.size());
    std::vector<float> result(count);
    for (size_t i = 0; i < count; i++) {
        const ValueId id = twin.plan_.outputs[i].value;
        const Place& place = twin.plan_.places[id];
        if (place.segment == Segment::outputs)
            std::memcpy(&result[i], all.data() + place.offset, sizeof(float));
        else
            backend.download(&result[i], twin.address(id), sizeof(float));
    }
    return result;
}

// ---- taps --------------------------------------------------------------------------------------

Tap::Tap(const Step& step, Graph graph, std::vector<ValueId> values)
    : twin_(std::move(graph), beside(step, probing(std::move(values)))) {}

void Tap::look(uint64_t step) {
    run(twin_);
    step_ = step;
}

void Tap::explain(const Finding&) { raise(ErrorKind::internal, "tap: it refuses no step"); }

TensorRef Tap::read(size_t i) {
    if (step_ == 0)
        raise(ErrorKind::graph, "tap: no step has run since it was made; need one first");
    return twin_.read_output(twin_.output(std::to_string(i)));
}

// ---- traps -------------------------------------------------------------------------------------

Trap::Trap(const Step& step, Graph graph, std::vector<std::string> layers, Checks::Of of)
    : graph_(graph),
      layers_(std::move(layers)),
      twin_(std::move(graph), beside(step, [this, of](Graph& stored) {
                checks_ = std::make_unique<Checks>(stored, of);
            })) {}

void Trap::look(uint64_t) {
    run(twin_);
    if (const auto finding = checks_->find(numbers(twin_, checks_->numbers())))
        throw Refused{*this, *finding};
}

void Trap::explain(const Finding& finding) {
    Step::Options options = beside(twin_, probing({finding.value}));
    options.capture = false;
    try {
        Step again(graph_, options);
        again.run({}, {}, SyncPolicy::full);
        const TensorRef content = again.read_output(again.output("0"));
        throw described(finding, &content);
    } catch (const BadValue&) {
        throw;
    } catch (const Error& error) {  // no memory for the value: the rest is known without it
        if (error.kind() != ErrorKind::out_of_memory) throw;
    }
    throw described(finding, nullptr);
}

/// Reported in terms of the user's graph; math "mixed" adds nodes and casts.
BadValue Trap::described(const Finding& finding, const TensorRef* content) const {
    const Graph& stored = checks_->graph();
    const Value& value = stored.value(finding.value);
    const Node* node = finding.node < 0 ? nullptr : &stored.nodes[finding.node];
    BadValue::Fault fault;
    fault.kind = finding.kind;
    fault.value = value.id;
    fault.name = value.name;
    if (node) {
        fault.op = node->op_name;
        fault.source = node->where;
        ValueId made = node->outputs[0];
        if (made >= std::ssize(graph_.values)) made = node->inputs[0];  // a cast
        if (made < std::ssize(graph_.values)) fault.node = graph_.value(made).producer;
    }
    if (fault.node >= 0 && fault.node < std::ssize(layers_))
        fault.layer = layers_[static_cast<size_t>(fault.node)];
    const bool index = finding.kind == Finding::index;
    const int64_t rows =
        index ? node->op->rows(stored.value(node->inputs[0]).type.shape, node->attrs) : 0;
    if (const int64_t at = content ? find_element(*content, finding.kind, rows) : -1; at >= 0) {
        fault.found = true;
        fault.index = place_of(at, content->shape);
        if (index)
            fault.integer = integer_at(*content, at);
        else
            fault.number = number_at(*content, at);
    }
    std::string held = finding.kind == Finding::nan ? "NaN" : "inf";
    if (index)
        held = fault.found ? std::to_string(fault.integer) : "a number out of range";
    else if (held == "inf" && std::signbit(fault.number))
        held = "-inf";
    if (fault.found) held += " at " + to_string(Dims(fault.index));
    const std::string what = cat(stored.describe(value.id), " \"", value.name, "\"");
    const char* const kept = "; the step has not run";
    if (!node)
        return {fault, cat("step: ", role_name(value.role), " ", what, " holds ", held,
                           "; need finite numbers", kept)};
    const std::string maker =
        cat(fault.node < 0 ? std::string("math \"mixed\" by a") : cat("node ", fault.node), " ",
            fault.op, " (", fault.source,
            fault.layer.empty() ? std::string() : cat(", layer \"", fault.layer, "\""), ")");
    if (index)
        return {
            fault,
            cat("step: ", maker, " takes ", operand_name(node->op->inputs, node->op->indices), " ",
                what, ", which hold ", held,
                rows ? cat("; need 0 to ", rows - 1) : std::string("; there are no rows"), kept)};
    return {fault, cat("step: ", maker, " makes ", held, " of ", what,
                       ", from finite operands; need finite numbers", kept)};
}

}  // namespace aicf
