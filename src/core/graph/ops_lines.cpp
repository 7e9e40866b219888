// Ops along one axis that depend on positions: gather and its gradient, search, sort, scans. A line
// is the elements along the axis at one index of the others.
#include "core/abi/sort.h"
#include "core/graph/op.h"

namespace aicf {

namespace {

bool is_index(DType dtype) { return dtype == DType::i32 || dtype == DType::i64; }

int axis_of(const InferContext& c, int rank) {
    return static_cast<int>(c.axis(c.attrs.integer("axis"), rank));
}

void need_number(const InferContext& c, int i) {
    if (c.dtype(i) == DType::boolean)
        c.dtype_error(c.describe(i), "; need a number dtype (cast it)");
}

void need_indices(const InferContext& c, int i) {
    if (!is_index(c.dtype(i))) c.dtype_error(c.describe(i), "; need indices as int32 or int64");
}

/// Checks that operands a and b agree in all axes but this one.
void need_same_lines(const InferContext& c, int axis) {
    bool fits = c.shape(0).rank() == c.shape(1).rank();
    for (int i = 0; fits && i < c.shape(0).rank(); i++)
        fits = i == axis || c.shape(0)[i] == c.shape(1)[i];
    if (!fits)
        c.shape_error("shapes differ: ", c.describe_all(), "; need equal sizes but for axis ",
                      axis);
}

Dims resized(const InferContext& c, Dims shape, int axis) {
    const int64_t size = c.attrs.integer("size");
    if (size < 0) c.shape_error("size is ", size, "; need size >= 0");
    shape[axis] = size;
    return shape;
}

/// The lowered op of the same attributes, whose axis is not negative.
void lower_line(LowerContext& c) {
    Attrs attrs = c.attrs();
    if (attrs.integer("axis") < 0) attrs.set("axis", attrs.integer("axis") + c.in(0).shape.rank());
    std::vector<View> inputs;
    for (int i = 0; i < c.inputs(); i++) inputs.push_back(c.in(i));
    c.op(c.def().lowered, std::move(inputs), {c.out()}, attrs);
}

/// `more`: what the lowered op has beside the attributes of the op.
void define_line(OpDef op, const std::string& lowered, const char* result,
                 const std::vector<AttrDef>& more = {}) {
    LoweredDef low;
    low.name = lowered;
    low.inputs = op.inputs;
    low.outputs = {result};
    low.attrs = op.attrs;
    low.attrs.insert(low.attrs.end(), more.begin(), more.end());
    low.infer = op.infer;
    low.portable = true;
    if (op.fn.empty()) op.fn = lowered;
    op.outputs = {lowered + "_out"};
    op.lowered = lowered;
    if (!op.lower) op.lower = lower_line;
    define(std::move(op));
    define(std::move(low));
}

// ---- by index -----------------------------------------------------------------------------------

// Gather(x, indices; axis) -> x[.., indices[.., i, ..], ..]. Outside the line it makes NaN, 0 for
// integers and where `zero` is set.
std::vector<Type> infer_gather(const InferContext& c) {
    const int axis = axis_of(c, c.shape(0).rank());
    need_indices(c, 1);
    need_same_lines(c, axis);
    return {{c.dtype(0), c.shape(1)}};
}

// ScatterAdd(x, indices; axis, size) -> lines of `size`: at each place the sum of the x whose index
// says it, in ascending position, in chunks that start from 0. What lies outside is left out.
std::vector<Type> infer_scatter_add(const InferContext& c) {
    const int axis = axis_of(c, c.shape(0).rank());
    need_number(c, 0);
    need_indices(c, 1);
    if (!(c.shape(0) == c.shape(1)))
        c.shape_error("shapes differ: ", c.describe_all(), "; need one index an element");
    return {{c.dtype(0), resized(c, c.shape(0), axis)}};
}

// ScatterLast(indices; axis, size) -> at each place the last position whose index says it, or -1.
std::vector<Type> infer_scatter_last(const InferContext& c) {
    const int axis = axis_of(c, c.shape(0).rank());
    need_indices(c, 0);
    return {{DType::i64, resized(c, c.shape(0), axis)}};
}

int64_t line_size(const Dims& shape, const Attrs& attrs) {
    const int64_t axis = attrs.integer("axis");
    return shape[static_cast<int>(axis < 0 ? axis + shape.rank() : axis)];
}

int64_t given_size(const Dims&, const Attrs& attrs) { return attrs.integer("size"); }

void define_by_index() {
    const AttrDef axis = {"axis", int64_t(0), true}, size = {"size", int64_t(0), true};
    define_line({.name = "Gather",
                 .inputs = {"x", "indices"},
                 .attrs = {axis, {"zero", false}},
                 .infer = infer_gather,
                 .grad =
                     [](GradContext& g) {
                         g.set(0, emit("ScatterAdd", {g.dy(), g.in(1)},
                                       {{"axis", g.attrs().integer("axis")},
                                        {"size", line_size(g.in(0).shape(), g.attrs())}}));
                     },
                 .indices = 1,
                 .rows = line_size},
                "gather", "y");
    define_line({.name = "ScatterAdd",
                 .inputs = {"x", "indices"},
                 .attrs = {axis, size},
                 .infer = infer_scatter_add,
                 .grad =
                     [](GradContext& g) {
                         g.set(0, emit("Gather", {g.dy(), g.in(1)},
                                       {{"axis", g.attrs().integer("axis")}, {"zero", true}}));
                     },
                 .indices = 1,
                 .rows = given_size},
                "scatter_add", "y", {{"order", chain_order(), false, {chain_order()}}});
    define_line({.name = "ScatterLast",
                 .inputs = {"indices"},
                 .attrs = {axis, size},
                 .infer = infer_scatter_last,
                 .no_grad = "the result is an index",
                 .indices = 0,
                 .rows = given_size},
                "scatter_last", "positions");
}

// ---- by order -----------------------------------------------------------------------------------

// SearchSorted(sorted [.., n], x [.., m]) -> int64: how many of a sorted line lie before each x, or
// with `right` before or at it.
std::vector<Type> infer_search(const InferContext& c) {
    need_number(c, 0);
    c.need_same_dtype(0, 1);
    if (c.shape(0).rank() == 0) c.shape_error(c.describe(0), "; need rank >= 1");
    need_same_lines(c, c.shape(0).rank() - 1);
    return {{DType::i64, c.shape(1)}};
}

// ArgSort: the positions of a line's elements in ascending or descending order; equals keep theirs.
std::vector<Type> infer_argsort(const InferContext& c) {
    axis_of(c, c.shape(0).rank());
    return {{DType::i64, c.shape(0)}};
}

std::vector<Type> infer_argsort_merge(const InferContext& c) {
    c.need_dtype(1, DType::i64);
    if (!(c.shape(0) == c.shape(1)))
        c.shape_error(c.describe_all(), "; need one position an element");
    constexpr int64_t kMost = int64_t{1} << 60;  // twice as much is a number, too
    if (const int64_t run = c.attrs.integer("run"); run < 1 || run > kMost)
        c.shape_error("run is ", run, "; need 1 to 2^60");
    return infer_argsort(c);
}

/// Runs of kSortRun, then merged two by two.
void lower_argsort(LowerContext& c) {
    Attrs attrs = c.attrs();
    const Type& type = c.out_type();
    if (attrs.integer("axis") < 0) attrs.set("axis", attrs.integer("axis") + type.shape.rank());
    const int64_t n = line_size(type.shape, attrs);
    View sorted = n > kSortRun ? c.temp(type, "runs") : c.out();
    c.op("argsort", {c.in(0)}, {sorted}, attrs);
    for (int64_t run = kSortRun; run < n; run *= 2) {
        const View merged = 2 * run < n ? c.temp(type, "runs") : c.out();
        attrs.set("run", run);
        c.op("argsort_merge", {c.in(0), sorted}, {merged}, attrs);
        sorted = merged;
    }
}

// ---- running ------------------------------------------------------------------------------------

std::vector<Type> infer_running(const InferContext& c) {
    axis_of(c, c.shape(0).rank());
    need_number(c, 0);
    return {{c.dtype(0), c.shape(0)}};
}

// CumArg: where the largest element so far lies, the last of equal ones; a NaN counts as largest.
std::vector<Type> infer_running_at(const InferContext& c) {
    return {{DType::i64, infer_running(c)[0].shape}};
}

/// v shifted by one position in scan direction; `value` fills the gap.
Var moved(Var v, int64_t axis, bool reverse, double value) {
    const Dims shape = v.shape();
    const int at = static_cast<int>(axis < 0 ? axis + shape.rank() : axis);
    if (shape[at] < 2) return zeros_like(v) + value;
    Dims start, size = shape, step;
    for (int i = 0; i < shape.rank(); i++) start.push(0), step.push(1);
    Dims later = start;
    later[at] = 1;
    size[at]--;
    const Var kept = emit("Slice", {v},
                          {{"start", (reverse ? later : start).vector()},
                           {"size", size.vector()},
                           {"step", step.vector()}});
    return emit("Pad", {kept},
                {{"shape", shape.vector()},
                 {"start", (reverse ? start : later).vector()},
                 {"step", step.vector()},
                 {"value", value}});
}

// Recurrence: h = a h' + b from place to place, where h' is that of the place before; `lagged`
// takes a of the place before, too.
std::vector<Type> infer_recurrence(const InferContext& c) {
    axis_of(c, c.shape(0).rank());
    if (!is_float(c.dtype(0)) || c.dtype(1) != c.dtype(0))
        c.dtype_error("dtypes are ", c.describe_all(), "; need one float dtype");
    if (!(c.shape(0) == c.shape(1)))
        c.shape_error("shapes differ: ", c.describe_all(), "; need equal shapes");
    return {{c.dtype(0), c.shape(0)}};
}

Var recurrence(Var a, Var b, int64_t axis, bool reverse, bool lagged) {
    return emit("Recurrence", {a, b}, {{"axis", axis}, {"reverse", reverse}, {"lagged", lagged}});
}

/// The gradient is a recurrence in the other direction.
void recurrence_grad(GradContext& g) {
    const int64_t axis = g.attrs().integer("axis");
    const bool reverse = g.attrs().flag("reverse"), lagged = g.attrs().flag("lagged");
    const Var slopes = recurrence(g.in(0), g.dy(), axis, !reverse, !lagged);
    g.set(1, slopes);
    if (!g.needs(0)) return;
    g.set(0, lagged ? moved(slopes, axis, !reverse, 0) * g.out()
                    : slopes * moved(g.out(), axis, reverse, 0));
}

/// The prefix product before a position times the gradient of the suffix: no division, so it is
/// right at zeros, to any order.
void cumprod_grad(GradContext& g) {
    const int64_t axis = g.attrs().integer("axis");
    g.set(0, recurrence(g.in(0), g.dy(), axis, true, true) * moved(g.out(), axis, false, 1));
}

void define_by_order() {
    const AttrDef axis = {"axis", int64_t(0), true}, descending = {"descending", false};
    define_line({.name = "SearchSorted",
                 .inputs = {"sorted", "x"},
                 .attrs = {{"right", false}},
                 .infer = infer_search,
                 .no_grad = "the result is an index",
                 .lower =
                     [](LowerContext& c) {
                         c.op("searchsorted", {c.in(0), c.in(1)}, {c.out()}, c.attrs());
                     }},
                "searchsorted", "y");
    define_line({.name = "ArgSort",
                 .inputs = {"x"},
                 .attrs = {axis, descending},
                 .infer = infer_argsort,
                 .no_grad = "the result is an index",
                 .lower = lower_argsort},
                "argsort", "positions");
    define(LoweredDef{.name = "argsort_merge",  // of runs of `run` positions, two by two
                      .inputs = {"x", "positions"},
                      .outputs = {"merged"},
                      .attrs = {axis, descending, {"run", kSortRun}},
                      .infer = infer_argsort_merge,
                      .portable = true});
    define_line({.name = "CumProd",
                 .inputs = {"x"},
                 .attrs = {axis},
                 .infer = infer_running,
                 .grad = cumprod_grad},
                "cumprod", "y");
    define_line({.name = "Recurrence",
                 .fn = "linear_recurrence",
                 .inputs = {"a", "b"},
                 .attrs = {axis, {"reverse", false}, {"lagged", false}},
                 .infer = infer_recurrence,
                 .grad = recurrence_grad},
                "recurrence", "h");
    define_line({.name = "CumArg",
                 .fn = "cummax, cummin",
                 .inputs = {"x"},
                 .attrs = {axis, {"smallest", false}},
                 .infer = infer_running_at,
                 .no_grad = "the result is an index"},
                "cumarg", "positions");
}

// ---- paths --------------------------------------------------------------------------------------

// CtcPaths(e, skip) -> alpha: of e[t, n, s], the log of what state s says at time t, the log of the
// sum of all paths that begin in state 0 or 1 and are in s at t. A path stays, goes on to the next
// state, or by two to one with skip[n, s].
std::vector<Type> infer_ctc(const InferContext& c) {
    const int last = c.count() - 1;
    const int e = last == 1 ? 0 : 1, skip = e + 1;
    c.need_rank(e, 3);
    c.need_dtype(skip, DType::boolean);
    if (c.dtype(e) != DType::f32 && c.dtype(e) != DType::f64)
        c.dtype_error(c.describe(e), "; need float32 or float64 (cast it)");
    if (!(c.shape(skip) == Dims{c.shape(e)[1], c.shape(e)[2]}))
        c.shape_error(c.describe(skip), ", ", c.describe(e), "; need skip of e's last two axes");
    for (int i : {0, last == 1 ? 0 : 3})
        if (c.dtype(i) != c.dtype(e) || !(c.shape(i) == c.shape(e)))
            c.shape_error("operands differ: ", c.describe_all(), "; need those of e's type");
    return {{c.dtype(e), c.shape(e)}};
}

void define_paths() {
    define(
        OpDef{.name = "CtcPaths",
              .fn = "ctc_loss",
              .inputs = {"e", "skip"},
              .outputs = {"ctc_paths_out"},
              .infer = infer_ctc,
              .grad =
                  [](GradContext& g) {
                      g.set(0, emit("CtcPathsBwd", {g.dy(), g.in(0), g.in(1), g.out()}));
                  },
              .lower = [](LowerContext& c) { c.op("ctc_paths", {c.in(0), c.in(1)}, {c.out()}); }});
    define(OpDef{.name = "CtcPathsBwd",
                 .fn = "ctc_loss",
                 .inputs = {"dy", "e", "skip", "alpha"},
                 .outputs = {"ctc_paths_bwd_out"},
                 .infer = infer_ctc,
                 .no_grad = "no second derivative of ctc_loss is written down",
                 .lower = [](LowerContext& c) {
                     c.op("ctc_paths_bwd", {c.in(0), c.in(1), c.in(2), c.in(3)}, {c.out()});
                 }});
    define(LoweredDef{.name = "ctc_paths",
                      .inputs = {"e", "skip"},
                      .outputs = {"alpha"},
                      .infer = infer_ctc,
                      .portable = true,
                      .flops_per_element = 40});
    define(LoweredDef{.name = "ctc_paths_bwd",
                      .inputs = {"dy", "e", "skip", "alpha"},
                      .outputs = {"de"},
                      .infer = infer_ctc,
                      .portable = true,
                      .flops_per_element = 40});
}

}  // namespace

void define_line_ops() {
    define_by_index();
    define_by_order();
    define_paths();
}

}  // namespace aicf
