// Movement ops: the same elements in another shape. They lower to views; `copy` appears only where
// strides cannot express one.
#include <algorithm>
#include <numeric>

#include "core/graph/op.h"

namespace aicf {

namespace {

Dims checked_shape(const InferContext& c) {
    const Dims shape(c.attrs.ints("shape"));
    for (int64_t size : shape)
        if (size < 0)
            c.shape_error("shape ", to_string(shape), " has a negative size; need sizes >= 0");
    return shape;
}

std::vector<Type> infer_reshape(const InferContext& c) {
    const Dims shape = checked_shape(c);
    if (element_count(shape) != element_count(c.shape(0)))
        c.shape_error(c.describe(0), ", ", element_count(c.shape(0)), " elements; shape ",
                      to_string(shape), " has ", element_count(shape), "; need equal counts");
    return {{c.dtype(0), shape}};
}

std::vector<Type> infer_broadcast_to(const InferContext& c) {
    const Dims shape = checked_shape(c);
    const std::string text = cat("broadcast_to: ", c.describe(0), ", shape is ", to_string(shape));
    if (!(broadcast_shapes(c.shape(0), shape, text) == shape))
        raise(ErrorKind::shape, text,
              "; need every size of shape to be the operand's or the operand's to be 1");
    return {{c.dtype(0), shape}};
}

std::vector<Type> infer_transpose(const InferContext& c) {
    const std::vector<int64_t>& axes = c.attrs.ints("axes");
    const int rank = c.shape(0).rank();
    std::vector<int64_t> sorted = axes;
    std::sort(sorted.begin(), sorted.end());
    std::vector<int64_t> every(static_cast<size_t>(rank));
    std::iota(every.begin(), every.end(), 0);
    if (sorted != every)
        c.shape_error(c.describe(0), ", axes are ", to_string(Dims(axes)), "; need each of 0 to ",
                      rank - 1, " once");
    Dims shape;
    for (int64_t axis : axes) shape.push(c.shape(0)[static_cast<int>(axis)]);
    return {{c.dtype(0), shape}};
}

std::vector<Type> infer_slice(const InferContext& c) {
    const auto &start = c.attrs.ints("start"), &size = c.attrs.ints("size"),
               &step = c.attrs.ints("step");
    const auto rank = static_cast<size_t>(c.shape(0).rank());
    if (start.size() != rank || size.size() != rank || step.size() != rank)
        c.shape_error(c.describe(0), "; need one start, size and step an axis");
    for (size_t i = 0; i < rank; i++) {
        const int64_t extent = c.shape(0)[static_cast<int>(i)];
        int64_t last = 0;
        const bool overflow = __builtin_mul_overflow(size[i] - 1, step[i], &last) ||
                              __builtin_add_overflow(last, start[i], &last);
        if (size[i] < 0 || step[i] == 0 ||
            (size[i] > 0 &&
             (overflow || start[i] < 0 || start[i] >= extent || last < 0 || last >= extent)))
            c.shape_error("axis ", i, " from ", start[i], ", ", size[i], " elements by ", step[i],
                          ": ", c.describe(0), "; need elements inside [0, ", extent,
                          ") and a step that is not 0");
    }
    return {{c.dtype(0), Dims(size)}};
}

// Pad: an output of `shape` filled with `value`, with x at start + i * step of each axis.
std::vector<Type> infer_pad(const InferContext& c) {
    const Dims shape = checked_shape(c);
    const auto &start = c.attrs.ints("start"), &step = c.attrs.ints("step");
    const int rank = c.shape(0).rank();
    if (shape.rank() != rank || static_cast<int>(start.size()) != rank ||
        static_cast<int>(step.size()) != rank)
        c.shape_error(c.describe(0), ", shape is ", to_string(shape),
                      "; need one size, start and step an axis");
    for (int i = 0; i < rank; i++) {
        const int64_t count = c.shape(0)[i];
        int64_t last = 0;
        const bool overflow = __builtin_mul_overflow(count - 1, step[i], &last) ||
                              __builtin_add_overflow(last, start[i], &last);
        if (step[i] == 0 || (count > 0 && (overflow || start[i] < 0 || start[i] >= shape[i] ||
                                           last < 0 || last >= shape[i])))
            c.shape_error("axis ", i, " from ", start[i], " by ", step[i], ": ", c.describe(0),
                          " does not fit ", to_string(shape), "; need every element inside");
    }
    if (const double value = c.attrs.number("value"); !holds(c.dtype(0), value))
        c.dtype_error("value is ", value, ", ", c.describe(0), "; need a whole number that ",
                      dtype_name(c.dtype(0)), " holds (or cast it)");
    return {{c.dtype(0), shape}};
}

std::vector<Type> infer_concat(const InferContext& c) {
    const int axis = static_cast<int>(c.axis(c.attrs.integer("axis"), c.shape(0).rank()));
    Dims shape = c.shape(0);
    for (int k = 1; k < c.count(); k++) {
        c.need_same_dtype(0, k);
        bool fits = c.shape(k).rank() == shape.rank();
        for (int i = 0; fits && i < shape.rank(); i++)
            fits = i == axis || c.shape(k)[i] == c.shape(0)[i];
        if (!fits)
            c.shape_error("shapes differ: ", c.describe(0), ", ", c.describe(k),
                          "; need equal sizes but for axis ", axis);
        shape[axis] += c.shape(k)[axis];
    }
    return {{c.dtype(0), shape}};
}

void concat_grad(GradContext& g) {
    const int axis = static_cast<int>((g.attrs().integer("axis") + g.out().shape().rank()) %
                                      g.out().shape().rank());
    int64_t at = 0;
    for (int k = 0; k < g.inputs(); k++) {
        const Dims& shape = g.in(k).shape();
        std::vector<int64_t> start(static_cast<size_t>(shape.rank()), 0), step(start.size(), 1);
        start[axis] = at;
        at += shape[axis];
        if (g.needs(k))
            g.set(k, emit("Slice", {g.dy()},
                          {{"start", start}, {"size", shape.vector()}, {"step", step}}));
    }
}

// Windows: [..., H, W] -> [..., kh, kw, oh, ow], every kernel position as an axis of its own; a
// view.
Dims window_shape(const InferContext& c, const Dims& image) {
    Dims shape = image;
    const int rank = image.rank();
    if (rank < 2 || rank > kMaxDims - 2)
        c.shape_error(c.describe(0), "; need rank 2 to ", kMaxDims - 2);
    for (const char* name : {"kernel", "stride", "dilation"})
        if (c.attrs.ints(name).size() != 2 || c.attrs.ints(name)[0] < 1 ||
            c.attrs.ints(name)[1] < 1)
            c.shape_error(name, " is ", to_string(Dims(c.attrs.ints(name))),
                          "; need two sizes >= 1");
    for (int i = 0; i < 2; i++) {
        const int64_t kernel = c.attrs.ints("kernel")[i];
        const int64_t size = image[rank - 2 + i], extent = window_extent(c, i, rank - 2 + i, size);
        shape[rank - 2 + i] = kernel;
        shape.push((size - extent) / c.attrs.ints("stride")[i] + 1);
    }
    return shape;
}

std::vector<Type> infer_windows(const InferContext& c) {
    return {{c.dtype(0), window_shape(c, c.shape(0))}};
}

void lower_windows(LowerContext& c) {
    View view = c.in(0);
    const int rank = view.shape.rank();
    const auto &stride = c.attrs().ints("stride"), &dilation = c.attrs().ints("dilation");
    for (int i = 0; i < 2; i++) view.strides.push(view.strides[rank - 2 + i] * stride[i]);
    for (int i = 0; i < 2; i++) view.strides[rank - 2 + i] *= dilation[i];
    view.shape = c.out_type().shape;
    c.alias(0, view);
}

std::vector<Type> infer_fold(const InferContext& c) {
    c.need_float(0);
    const Dims shape = checked_shape(c);
    if (!(window_shape(c, shape) == c.shape(0)))
        c.shape_error(c.describe(0), ", shape is ", to_string(shape),
                      "; need the windows of that shape");
    return {{c.dtype(0), shape}};
}

std::vector<Type> infer_custom_gradient(const InferContext& c) {
    c.need_float(0);
    if (const int64_t count = c.attrs.integer("count"); count < 1 || count >= c.count())
        c.value_error("count is ", count, " of ", c.count() - 1, " operands; need 1 or more");
    return {{c.dtype(0), c.shape(0)}};
}

/// Raises where a gradient by an operand is asked for that the user's backward does not give.
void refuse_others(const GradContext& g, int first, int last) {
    for (int i = first; i < last; i++)
        if (g.needs(i))
            raise(ErrorKind::graph, "backward: the function of custom_gradient also uses \"",
                  g.in(i).graph->value(g.in(i).id).name,
                  "\", of which its backward gives no gradient; pass it as an argument, or detach "
                  "it");
}

// CustomGradient(y, xs...) -> y, with the user's gradient rule for the first `count` of xs; the
// others are further values that y depends on.
void custom_gradient_grad(GradContext& g) {
    const int64_t count = g.attrs().integer("count");
    refuse_others(g, 1 + static_cast<int>(count), g.inputs());
    const std::vector<ValueId> grads = g.own_rule();
    check(std::ssize(grads) == count, "custom_gradient: one gradient an operand");
    for (int i = 0; i < count; i++)
        if (grads[i] != kNone) g.set(1 + i, {g.in(0).graph, grads[i]});
}

// KeptGradient(ys..., xs..., others...) -> ys. The same inside a body, where Python cannot be
// called: the rule is traced into the attribute `body`, which maps the gradients of the float ys
// and the last `captured` operands to the gradients of the xs listed in `gives`. Operands between
// are further values that the ys depend on.
struct Kept {
    int results, count, captured;
    const Body& body;
    explicit Kept(const Attrs& attrs)
        : results(static_cast<int>(attrs.integer("results"))),
          count(static_cast<int>(attrs.integer("count"))),
          captured(static_cast<int>(attrs.integer("captured"))),
          body(attrs.get<Body>("body")) {}
};

std::vector<Type> infer_kept_gradient(const InferContext& c) {
    const Kept kept(c.attrs);
    if (!kept.body) c.value_error("it has no body; need one");
    if (const std::string problem = body_problem(*kept.body); !problem.empty())
        c.value_error("the body cannot be one: ", problem, "; need that outside");
    if (kept.results < 1 || kept.count < 1 || kept.captured < 0 ||
        kept.captured > c.count() - kept.results - kept.count)
        c.value_error(kept.results, " results, ", kept.count, " arguments and ", kept.captured,
                      " operands of the body, of ", c.count(),
                      "; need at least one, and these to "
                      "fit");
    std::vector<Type> given;
    for (int i = 0; i < kept.results; i++)
        if (is_float(c.dtype(i))) given.push_back(c.in(i));
    for (int i = c.count() - kept.captured; i < c.count(); i++) given.push_back(c.in(i));
    const std::vector<int64_t>& gives = c.attrs.ints("gives");
    bool fits = operands_of(*kept.body) == std::ssize(given) &&
                std::ssize(kept.body->outputs) == std::ssize(gives);
    for (size_t i = 0; fits && i < given.size(); i++) fits = kept.body->values[i].type == given[i];
    for (size_t k = 0; fits && k < gives.size(); k++)
        fits = gives[k] >= 0 && gives[k] < kept.count &&
               kept.body->value(kept.body->outputs[k].value).type ==
                   c.in(kept.results + static_cast<int>(gives[k]));
    if (!fits)
        c.value_error(
            "the body does not take the gradients of the results and what else it "
            "reads, or gives no gradients of the arguments; need these types");
    std::vector<Type> types;
    for (int i = 0; i < kept.results; i++) types.push_back(c.in(i));
    return types;
}

void kept_gradient_grad(GradContext& g) {
    const Kept kept(g.attrs());
    Graph& graph = *g.in(0).graph;
    refuse_others(g, kept.results + kept.count, g.inputs() - kept.captured);
    std::vector<ValueId> operands;
    for (int i = 0; i < kept.results; i++)
        if (is_float(g.in(i).type().dtype))
            operands.push_back(g.dy(i) ? g.dy(i).id : zeros_like(g.in(i)).id);
    for (int i = g.inputs() - kept.captured; i < g.inputs(); i++) operands.push_back(g.in(i).id);
    const std::vector<ValueId> grads = append_body(graph, *kept.body, operands);
    const std::vector<int64_t> gives = g.attrs().ints("gives");
    for (size_t k = 0; k < gives.size(); k++)
        g.set(kept.results + static_cast<int>(gives[k]), {&graph, grads[k]});
}

const std::vector<AttrDef> kWindowAttrs = {{"kernel", std::vector<int64_t>(), true},
                                           {"stride", std::vector<int64_t>{1, 1}},
                                           {"dilation", std::vector<int64_t>{1, 1}}};

}  // namespace

int64_t window_extent(const InferContext& c, int which, int axis, int64_t size) {
    const int64_t kernel = c.attrs.ints("kernel")[which],
                  dilation = c.attrs.ints("dilation")[which];
    int64_t extent = 0;
    const bool overflow = __builtin_mul_overflow(kernel - 1, dilation, &extent) ||
                          __builtin_add_overflow(extent, 1, &extent);
    if (overflow || size < extent)
        c.shape_error(c.describe(0), ": axis ", axis, " has size ", size, ", the window spans ",
                      kernel, " elements ", dilation,
                      " apart; need it to fit (pad x, or a smaller kernel)");
    return extent;
}

void define_movement_ops() {
    using Ints = std::vector<int64_t>;
    define(OpDef{.name = "Slice",
                 .fn = "slice",
                 .inputs = {"x"},
                 .outputs = {"slice_out"},
                 .attrs = {{"start", Ints(), true}, {"size", Ints(), true}, {"step", Ints(), true}},
                 .infer = infer_slice,
                 .grad =
                     [](GradContext& g) {
                         g.set(0, emit("Pad", {g.dy()},
                                       {{"shape", g.in(0).shape().vector()},
                                        {"start", g.attrs().ints("start")},
                                        {"step", g.attrs().ints("step")}}));
                     },
                 .lower =
                     [](LowerContext& c) {
                         View view = c.in(0);
                         view.shape = c.out_type().shape;
                         const bool empty = element_count(view.shape) == 0;
                         for (int i = 0; i < view.shape.rank(); i++) {
                             if (!empty)
                                 view.offset += c.attrs().ints("start")[i] * view.strides[i];
                             view.strides[i] *= c.attrs().ints("step")[i];
                         }
                         c.alias(0, view);
                     },
                 .storage = Storage::narrow,
                 .is_view = true});
    define(OpDef{.name = "Pad",
                 .fn = "pad",
                 .inputs = {"x"},
                 .outputs = {"pad_out"},
                 .attrs = {{"shape", Ints(), true},
                           {"start", Ints(), true},
                           {"step", Ints(), true},
                           {"value", 0.0}},
                 .infer = infer_pad,
                 .grad =
                     [](GradContext& g) {
                         g.set(0, emit("Slice", {g.dy()},
                                       {{"start", g.attrs().ints("start")},
                                        {"size", g.in(0).shape().vector()},
                                        {"step", g.attrs().ints("step")}}));
                     },
                 .lower = [](LowerContext& c) { c.op("pad", {c.in(0)}, {c.out()}, c.attrs()); },
                 .storage = Storage::narrow});
    define(LoweredDef{.name = "pad",
                      .inputs = {"x"},
                      .outputs = {"y"},
                      .attrs = {{"shape", Ints(), true},
                                {"start", Ints(), true},
                                {"step", Ints(), true},
                                {"value", 0.0}},
                      .infer = infer_pad,
                      .portable = true});
    define(OpDef{.name = "Concat",
                 .fn = "concat",
                 .inputs = {"xs*"},
                 .outputs = {"concat_out"},
                 .attrs = {{"axis", int64_t(0)}},
                 .infer = infer_concat,
                 .grad = concat_grad,
                 .lower =
                     [](LowerContext& c) {
                         std::vector<View> inputs;
                         for (int i = 0; i < c.inputs(); i++) inputs.push_back(c.in(i));
                         const int64_t axis = c.attrs().integer("axis"),
                                       rank = c.out_type().shape.rank();
                         c.op("concat", std::move(inputs), {c.out()},
                              {{"axis", axis < 0 ? axis + rank : axis}});
                     },
                 .storage = Storage::narrow});
    define(LoweredDef{.name = "concat",
                      .inputs = {"xs*"},
                      .outputs = {"y"},
                      .attrs = {{"axis", int64_t(0)}},
                      .infer = infer_concat,
                      .portable = true});
    define(OpDef{.name = "Detach",
                 .fn = "detach",
                 .inputs = {"x"},
                 .outputs = {"detach_out"},
                 .infer = [](const InferContext& c) -> std::vector<Type> {
                     return {{c.dtype(0), c.shape(0)}};
                 },
                 .grad = [](GradContext&) {},  // stops the gradient
                 .lower = [](LowerContext& c) { c.alias(0, c.in(0)); },
                 .storage = Storage::narrow,
                 .detaches = true});
    define(OpDef{.name = "CustomGradient",
                 .fn = "custom_gradient",
                 .inputs = {"y", "xs*"},
                 .outputs = {"custom_gradient_out"},
                 .attrs = {{"count", int64_t(0), true}},
                 .infer = infer_custom_gradient,
                 .grad = custom_gradient_grad,
                 .lower = [](LowerContext& c) { c.alias(0, c.in(0)); },
                 .storage = Storage::narrow});
    define(OpDef{.name = "KeptGradient",
                 .fn = "custom_gradient",
                 .inputs = {"operands*"},
                 .outputs = {"results*"},
                 .attrs = {{"results", int64_t(1), true},
                           {"count", int64_t(1), true},
                           {"captured", int64_t(0), true},
                           {"gives", std::vector<int64_t>(), true},
                           {"body", Body(), true}},
                 .infer = infer_kept_gradient,
                 .grad = kept_gradient_grad,
                 .lower = [](LowerContext& c) {
                     for (int i = 0; i < c.outputs(); i++) c.alias(i, c.in(i));
                 }});
    define(OpDef{.name = "Windows",
                 .fn = "windows",
                 .inputs = {"x"},
                 .outputs = {"windows_out"},
                 .attrs = kWindowAttrs,
                 .infer = infer_windows,
                 .grad =
                     [](GradContext& g) {
                         Attrs attrs = g.attrs();
                         attrs.set("shape", g.in(0).shape().vector());
                         g.set(0, emit("Fold", {g.dy()}, attrs));
                     },
                 .lower = lower_windows,
                 .storage = Storage::narrow});
    // Fold: the sum of all window elements that are views of one element of x, in ascending window
    // position.
    std::vector<AttrDef> fold_attrs = kWindowAttrs;
    fold_attrs.push_back({"shape", Ints(), true});
    define(OpDef{.name = "Fold",
                 .fn = "fold",
                 .inputs = {"windows"},
                 .outputs = {"fold_out"},
                 .attrs = fold_attrs,
                 .infer = infer_fold,
                 .grad =
                     [](GradContext& g) {
                         Attrs attrs;
                         for (const char* name : {"kernel", "stride", "dilation"})
                             attrs.set(name, g.attrs().ints(name));
                         g.set(0, emit("Windows", {g.dy()}, attrs));
                     },
                 .lower = [](LowerContext& c) { c.op("fold", {c.in(0)}, {c.out()}, c.attrs()); },
                 .storage = Storage::narrow});
    define(LoweredDef{.name = "fold",
                      .inputs = {"windows"},
                      .outputs = {"x"},
                      .attrs = fold_attrs,
                      .infer = infer_fold,
                      .portable = true});
    define(OpDef{.name = "Reshape",
                 .fn = "reshape",
                 .inputs = {"x"},
                 .outputs = {"reshape_out"},
                 .attrs = {{"shape", std::vector<int64_t>(), true}},
                 .infer = infer_reshape,
                 .grad = [](GradContext& g) { g.set(0, reshape(g.dy(), g.in(0).shape())); },
                 .lower =
                     [](LowerContext& c) {
                         const Dims& shape = c.out_type().shape;
                         std::optional<View> view = reshape_view(c.in(0), shape);
                         if (!view) view = reshape_view(c.copy_of(c.in(0)), shape);
                         c.alias(0, *view);
                     },
                 .storage = Storage::narrow,
                 .is_view = true});
    define(OpDef{
        .name = "Transpose",
        .fn = "permute",
        .inputs = {"x"},
        .outputs = {"transpose_out"},
        .attrs = {{"axes", std::vector<int64_t>(), true}},
        .infer = infer_transpose,
        .grad =
            [](GradContext& g) {
                const auto& axes = g.attrs().ints("axes");
                std::vector<int64_t> inverse(axes.size());
                for (size_t i = 0; i < axes.size(); i++) inverse[axes[i]] = static_cast<int64_t>(i);
                g.set(0, emit("Transpose", {g.dy()}, {{"axes", inverse}}));
            },
        .lower = [](LowerContext& c) { c.alias(0, permute_view(c.in(0), c.attrs().ints("axes"))); },
        .storage = Storage::narrow,
        .is_view = true});
    define(OpDef{
        .name = "BroadcastTo",
        .fn = "broadcast_to",
        .inputs = {"x"},
        .outputs = {"broadcast_out"},
        .attrs = {{"shape", std::vector<int64_t>(), true}},
        .infer = infer_broadcast_to,
        .grad = [](GradContext& g) { g.set(0, g.dy()); },  // set() sums it down
        .lower = [](LowerContext& c) { c.alias(0, broadcast_view(c.in(0), c.out_type().shape)); },
        .storage = Storage::narrow,
        .is_view = true});
}

}  // namespace aicf
