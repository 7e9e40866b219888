// Movement ops: the same elements, seen through another shape. They lower to a view; `copy` appears
// only where no view can say it.
#include <algorithm>
#include <numeric>

#include "core/op.h"

namespace aicf {

namespace {

Dims checked_shape(const InferContext& c) {
    const Dims shape(c.attrs.ints("shape"));
    for (int64_t size : shape)
        if (size < 0) c.shape_error("shape ", to_string(shape), " has a negative size; need sizes >= 0");
    return shape;
}

std::vector<Type> infer_reshape(const InferContext& c) {
    const Dims shape = checked_shape(c);
    if (element_count(shape) != element_count(c.shape(0)))
        c.shape_error(c.describe(0), ", ", element_count(c.shape(0)), " elements; shape ", to_string(shape),
                      " has ", element_count(shape), "; need equal counts");
    return {{c.dtype(0), shape}};
}

std::vector<Type> infer_broadcast_to(const InferContext& c) {
    const Dims shape = checked_shape(c);
    const std::string text = cat("broadcast_to: ", c.describe(0), ", shape is ", to_string(shape));
    if (!(broadcast_shapes(c.shape(0), shape, text) == shape))
        raise(ErrorKind::shape, text, "; need every size of shape to be the operand's or the operand's to be 1");
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
        c.shape_error(c.describe(0), ", axes are ", to_string(Attrs{{"axes", axes}}), "; need each of 0 to ",
                      rank - 1, " once");
    Dims shape;
    for (int64_t axis : axes) shape.push(c.shape(0)[static_cast<int>(axis)]);
    return {{c.dtype(0), shape}};
}

}  // namespace

void define_movement_ops() {
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
                     }});
    define(OpDef{.name = "Transpose",
                 .fn = "transpose",
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
                 .lower = [](LowerContext& c) { c.alias(0, permute_view(c.in(0), c.attrs().ints("axes"))); }});
    define(OpDef{.name = "BroadcastTo",
                 .fn = "broadcast_to",
                 .inputs = {"x"},
                 .outputs = {"broadcast_out"},
                 .attrs = {{"shape", std::vector<int64_t>(), true}},
                 .infer = infer_broadcast_to,
                 .grad = [](GradContext& g) { g.set(0, g.dy()); },  // set() sums it down
                 .lower = [](LowerContext& c) { c.alias(0, broadcast_view(c.in(0), c.out_type().shape)); }});
}

}  // namespace aicf
