// Which reduction kernel fits a shape: a warp, a block or many blocks a result, results in columns,
// or chains. All follow the order that the op declares.
#include "core/abi/reduce.h"

#include <algorithm>

#include "kernels/cuda/rows.h"
#include "kernels/cuda/thresholds.h"

namespace aicf::cuda {

namespace {

struct Reducer {
    std::string_view name, operation;
    bool ordered, mean;
};
#define AICF_ROW(name, op, mean) {#name, #op, reducers::op::ordered, mean},
constexpr Reducer kReducers[] = {AICF_REDUCTIONS(AICF_ROW){"mse_loss", "Sum", true, true}};
#undef AICF_ROW

const Reducer* find_reducer(std::string_view name) {
    const auto at = std::find_if(std::begin(kReducers), std::end(kReducers),
                                 [&](const Reducer& reducer) { return reducer.name == name; });
    return at == std::end(kReducers) ? nullptr : at;
}

/// What an op reduces: itself, or with a body one step of it.
struct Reduction {
    const LoweredDef* def;
    const Attrs* attrs;
    size_t at = 0;  // the step; those before it make its elements
    DType dtype{};
    Dims from, to;           // shapes
    std::vector<char> kept;  // by axis of `from`
    std::vector<int> order;  // its kept axes as rows count them, the last fastest
    Dims kept_shape, reduced_shape;
    int64_t rows = 1, n = 1;
};

/// The sizes of axes in some order.
Dims in_order(const std::vector<int>& axes, const Dims& sizes) {
    Dims result;
    for (int axis : axes) result.push(sizes[axis]);
    return result;
}

Reduction reduction_of(const LoweredOp& op) {
    Reduction r{op.def, &op.attrs};
    const View *x = op.inputs.data(), *y = op.outputs.data();
    if (!op.body.empty()) {
        r.at = anchor_step(op);
        const RegionStep& step = op.body[r.at];
        r.def = step.def;
        r.attrs = &step.attrs;
        x = &op.operand(step.inputs[0]);
        y = &op.operand(step.outputs[0]);
    }
    r.dtype = x->dtype;
    r.from = x->shape;
    r.to = y->shape;
    const bool all = r.def->name == "mse_loss";
    r.kept.assign(static_cast<size_t>(r.from.rank()), !all);
    if (!all)
        for (int64_t axis : r.attrs->ints("axes"))
            r.kept[static_cast<size_t>(axis < 0 ? axis + r.from.rank() : axis)] = 0;
    for (int d = 0; d < r.from.rank(); d++) {
        const bool kept = r.kept[static_cast<size_t>(d)];
        if (kept)
            r.order.push_back(d);
        else
            r.reduced_shape.push(r.from[d]);
        (kept ? r.rows : r.n) *= r.from[d];
    }
    r.kept_shape = in_order(r.order, r.from);
    return r;
}

/// The strides of a view's kept or reduced axes.
Dims strides_of(const Reduction& r, const View& view, bool kept) {
    if (kept) return in_order(r.order, view.strides);
    Dims strides;
    for (int d = 0; d < r.from.rank(); d++)
        if (!r.kept[static_cast<size_t>(d)]) strides.push(view.strides[d]);
    return strides;
}

/// Rows as they lie in memory, where a row is long enough for its result to be stored anywhere.
void order_rows(Reduction& r, const View& x) {
    constexpr int64_t kLongRow = 64;  // bytes
    if (r.n * dtype_size(x.dtype) < kLongRow) return;
    for (int d : r.order)
        if (x.strides[d] <= 0 && r.from[d] > 1) return;
    std::stable_sort(r.order.begin(), r.order.end(),
                     [&](int a, int b) { return x.strides[a] > x.strides[b]; });
    r.kept_shape = in_order(r.order, r.from);
}

const char* accumulator(DType dtype, bool ordered) {
    switch (dtype) {
        case DType::f64:
            return "double";
        case DType::i64:
            return ordered ? "uint64_t" : "int64_t";
        default:
            return !is_integer(dtype) ? "float" : ordered ? "uint32_t" : "int32_t";
    }
}

/// The elements of row r: @_Make{block}(r), in terms of type `a`.
std::string elements_text(const LoweredOp& op, const Reduction& r, const BlockLayout& layout,
                          const std::vector<int>& read, const std::string& a, bool across,
                          bool once) {
    std::string text;
    for (int k : read) {
        const View& view = op.inputs[static_cast<size_t>(k)];
        text += place_struct(cat("@_In", k), r.kept_shape, strides_of(r, view, true)) +
                place_struct(cat("@_Elem", k), r.reduced_shape, strides_of(r, view, false));
    }
    const std::string value = !op.body.empty()  ? operand_text(op, op.body[r.at].inputs[0])
                              : read.size() > 1 ? "(a0[j] - a1[j]) * (a0[j] - a1[j])"  // mse_loss
                                                : "a0[j]";
    return text + row_struct(op, layout, "", read, steps_between(0, r.at), value, a,
                             across ? "@_In" : "", -1, once ? ", true, Loads::once" : ", true");
}

/// A sum by a count; by a power of two as a product, which has the same bits and needs no division.
std::string mean_of(const char* total, const std::string& a, int64_t n) {
    const bool exact = n > 0 && (n & (n - 1)) == 0 && (a == "float" || a == "double");
    return exact ? cat(total, " * (", a, "(1) / ", a, "(", n, "))")
                 : cat("scalar::div(", total, ", ", a, "(", n, "))");
}

/// What becomes of result r: @_Put{block}(r, v).
std::string put_text(const LoweredOp& op, const Reduction& r, const BlockLayout& layout, bool mean,
                     const std::string& a) {
    std::string text, load, store;
    std::vector<int> axes;  // of results, which may have no place for what is reduced
    for (int d : r.order)
        axes.push_back(r.to.rank() == r.from.rank()
                           ? d
                           : static_cast<int>(std::count(r.kept.begin(), r.kept.begin() + d, 1)));
    const auto at = [&](const std::string& name, const View& view) {
        if (view.shape.rank() == 0)
            return name + "[0]";  // a number of an update, or the one result
        text += place_struct("@_" + name, in_order(axes, r.to), in_order(axes, view.strides));
        return cat(name, "[@_", name, "::at(r)]");
    };
    const auto pointer = [&](const char* kind, size_t k, size_t operand, const View& view) {
        load += cat("        auto* ", *kind == 'c' ? "x" : "y", k, " = block.template ptr<", kind,
                    cuda_type(view.dtype), ">(", layout.operand[operand], ");\n");
    };
    if (!op.body.empty())
        for (int k : inputs_of(op, steps_between(r.at + 1, op.body.size()))) {
            const auto in = static_cast<size_t>(k);
            const View& view = op.inputs[in];
            pointer("const ", in, in, view);
            load += cat("        const Wide<", cuda_type(view.dtype), "> a", k, "[1] = {widen(",
                        at(cat("x", k), view), ")};\n");
        }
    for (size_t k = 0; k < op.outputs.size(); k++) {
        const View& view = op.outputs[k];
        const char* type = cuda_type(view.dtype);
        pointer("", k, op.inputs.size() + k, view);
        load += cat("        Wide<", type, "> r", k, "[1];\n");
        store += cat("        ", at(cat("y", k), view), " = narrow<", type, ">(r", k, "[j]);\n");
    }
    const std::string formula =
        op.body.empty() ? cat("r0[j] = rounded<", cuda_type(op.outputs[0].dtype), ">(v[j]);")
                        : body_formula(op, layout, load, steps_between(r.at, op.body.size()));
    return text + cat("struct @_Put {\n    const @_Block& block;\n    __device__ __forceinline__ "
                      "void operator()(int64_t r, ",
                      a, " total) const {\n        constexpr int j = 0;\n        const ", a,
                      " v[1] = {", mean ? mean_of("total", a, r.n) : "total", "};\n", load,
                      "            ", formula, "\n", store, "    }\n};\n");
}

/// Whether neighbouring results come from elements side by side.
bool in_columns(const LoweredOp& op, const Reduction& r, const std::vector<int>& read) {
    std::vector<const View*> views;
    for (int k : read) views.push_back(&op.inputs[static_cast<size_t>(k)]);
    const View& x = *largest_view(views);
    const int fast = fast_axis(x);
    if (fast < 0 || !r.kept[static_cast<size_t>(fast)] || x.strides[fast] != 1) return false;
    for (int d = fast + 1; d < r.from.rank(); d++)
        if (r.kept[static_cast<size_t>(d)] && r.from[d] > 1) return false;
    return true;
}

/// How many results side by side a thread takes: those of so many bytes of the narrowest operand,
/// and of no more than `room` of the widest.
int64_t across_of(const LoweredOp& op, const Reduction& r, const std::vector<int>& read,
                  int64_t bytes, int64_t room = 8) {
    int64_t least = 8, most = 1, v = 1;
    for (int k : read) {
        const View& view = op.inputs[static_cast<size_t>(k)];
        const int64_t step = place_step(r.kept_shape, strides_of(r, view, true));
        if (step < 0) return 1;
        if (step == 0) continue;
        least = std::min(least, dtype_size(view.dtype));
        most = std::max(most, dtype_size(view.dtype));
    }
    // Four are what operands that lie otherwise are known to share.
    while (v * least < bytes && v * most < room && v < 4 && r.rows % (2 * v) == 0) v *= 2;
    return v;
}

/// How threads take the chunks of tall columns (reduce_tall).
struct Tall {
    int64_t v = 1;      // results side by side that are a thread's, 4 bytes of the narrowest input
    int64_t width = 0;  // threads side by side; 0: columns are not tall
    int64_t threads = 256, lot = 32, stage = 1;
    int64_t strips = 0, pieces = 0;
};

Tall tall_of(const LoweredOp& op, const Reduction& r, const std::vector<int>& read, int64_t chunk,
             int64_t a_size, const Limits& limits) {
    Tall tall;
    const int64_t chunks = chunk ? (r.n + chunk - 1) / chunk : 0;
    if (chunks < 2 || r.rows < kWarp || r.rows * r.n < kTallWork || !in_columns(op, r, read))
        return tall;
    int64_t bytes = 0;
    tall.v = across_of(op, r, read, 4);
    for (int k : read) bytes += tall.v * dtype_size(op.inputs[static_cast<size_t>(k)].dtype);
    // About 128 bytes of a thread are on their way; long bodies are not repeated often.
    while (tall.lot > 8 && (tall.lot * bytes > 192 || r.at > 4)) tall.lot /= 2;
    tall.width = std::clamp(power_of_two_from((r.rows + tall.v - 1) / tall.v), kWarp, kTallWidth);
    tall.strips = (r.rows + tall.width * tall.v - 1) / (tall.width * tall.v);
    const auto pieces = [&] { return ceil_div(chunks, tall.threads / tall.width); };
    while (tall.threads > tall.width * tall.v &&
           tall.strips * pieces() < 2 * int64_t{limits.processors})
        tall.threads /= 2;
    tall.pieces = pieces();
    // In 32 KB of shared memory, which every device has beside what else a kernel holds.
    tall.stage = std::min(power_of_two_from(chunks),
                          kChainChunk * kWarp * 4 / (tall.width * tall.v * a_size));
    return tall;
}

}  // namespace

bool is_reduction(const LoweredDef& def) { return find_reducer(def.name) != nullptr; }

std::string column_sum_text(const LoweredOp& op, const BlockLayout& layout, bool twos) {
    const Reduction r = reduction_of(op);
    const std::string a = accumulator(r.dtype, true);
    const std::vector<size_t> steps = steps_between(0, r.at);
    const std::string value = op.body.empty() ? "a0[j]" : operand_text(op, op.body[r.at].inputs[0]);
    return terms_text("@_terms", op, layout, column_sum_reads(op), steps, value, a, twos) +
           put_text(op, r, layout, false, a);
}

std::string total_text(const LoweredOp& op, const BlockLayout& layout) {
    const Reduction r = reduction_of(op);
    const Reducer& reducer = *find_reducer(r.def->name);
    return put_text(op, r, layout, reducer.mean, accumulator(r.dtype, reducer.ordered));
}

std::vector<int> column_sum_reads(const LoweredOp& op) {
    return op.body.empty() ? std::vector<int>{0}
                           : inputs_of(op, steps_between(0, anchor_step(op) + 1));
}

namespace {

/// The kernel of a reduction: text() chooses a form by the shape, each form sets its launch.
class ReduceText {
  public:
    ReduceText(const LoweredOp& op, const Limits& limits)
        : op_(op),
          limits_(limits),
          r_(reduction_of(op)),
          reducer_(*find_reducer(r_.def->name)),
          a_(accumulator(r_.dtype, reducer_.ordered)),
          layout_(op) {
        const std::string order = reducer_.ordered ? r_.attrs->text("order") : "tree";
        if (order.starts_with("chain(")) chunk_ = std::atoll(order.c_str() + 6);
        a_size_ = a_ == "double" || a_.ends_with("64_t") ? 8 : 4;
        if (op.body.empty())
            for (size_t k = 0; k < op.inputs.size(); k++) read_.push_back(static_cast<int>(k));
        else
            read_ = inputs_of(op, steps_between(0, r_.at + 1));
        leaves_ = ceil_div(r_.n, kTreeLeaf);
        enough_ = 4 * int64_t{limits.processors};
        columns_ = in_columns(op, r_, read_);
    }

    KernelText text() {
        text_.includes = {"rows.cuh"};
        if (limits_.one_block) {
            describe(false, false);
            return chunk_ ? threads() : warps_of_one_block();
        }
        if (chunk_) {
            const Tall tall = tall_of(op_, r_, read_, chunk_, a_size_, limits_);
            describe(tall.width > 0, true);
            return tall.width > 0 ? tall_columns(tall) : chain();
        }
        const Wide wide = wide_columns();
        if (leaves_ == 1 && !columns_) order_rows(r_, largest());
        const Team team = team_of(a_, r_.n, r_.rows, limits_, narrow());
        const int lots =
            std::min(lots_of(r_.rows * team.lanes, limits_.processors), 16 / team.lanes);
        // Of short rows, several of which are on their way at once, ordinary loads are quicker.
        const bool brief = leaves_ == 1 && !columns_ && team.warps == 1 && lots > 1;
        describe(wide.results > 1, !brief);
        if (leaves_ > 0 && r_.rows >= kColumns && columns_) {
            text_.includes = {"columns.cuh"};
            return r_.n <= kFewTerms ? few() : wide.few ? few_across(wide) : columns(wide);
        }
        if (brief) return short_rows(team, lots);
        if (leaves_ <= kWarpLeaves) return rows(team);
        if (team.side > 0 && holds_leaves() &&
            r_.rows * leaves_ >= 2 * kFullWarps * limits_.processors)
            return rows(team);
        if (r_.rows >= enough_ / 2 || leaves_ < kSplitLeaves) return blocks();
        return holds_leaves() ? pieces() : split();
    }

  private:
    const View& largest() const {
        std::vector<const View*> views;
        for (int k : read_) views.push_back(&op_.inputs[static_cast<size_t>(k)]);
        return *largest_view(views);
    }
    /// Whether 16 bytes of an operand are eight neighbours of a row.
    bool narrow() const {
        const int fast = fast_axis(largest());
        return fast >= 0 && !r_.kept[static_cast<size_t>(fast)] &&
               std::any_of(read_.begin(), read_.end(), [&](int k) {
                   const View& view = op_.inputs[static_cast<size_t>(k)];
                   return is_16_bit(view.dtype) && view.strides[fast] == 1;
               });
    }
    /// Threads that have results of a tree side by side.
    struct Wide {
        int64_t results = 1;  // of a thread
        bool few = false;     // and all of their lanes
        int64_t beside = 1;   // so many threads
    };
    Wide wide_columns() const {
        Wide wide;
        if (r_.n > kFewTerms && r_.rows >= kColumns && r_.at <= 4 && columns_) {
            const int64_t threads = kFewThreads * limits_.processors;
            wide.results = across_of(op_, r_, read_, 16, 16);
            wide.few = r_.n <= kTreeLanes && wide.results > 1 && r_.rows / wide.results >= threads;
            if (!wide.few && r_.rows >= kWideColumns) wide.results = across_of(op_, r_, read_, 8);
        }
        wide.beside = std::min(kWarp, power_of_two_from(ceil_div(r_.rows, wide.results)));
        if (r_.rows < kWideColumns) {
            if (leaves_ < enough_) wide.results = 1;
        } else if (!wide.few) {
            while (wide.results > 1 && r_.rows / (kWarp * wide.results) * leaves_ < enough_ / 2)
                wide.results /= 2;
        }
        return wide;
    }

    /// What all forms share: elements, what becomes of results, the shape.
    void describe(bool across, bool once) {
        text_.body = elements_text(op_, r_, layout_, read_, a_, across, once) +
                     put_text(op_, r_, layout_, reducer_.mean, a_);
        // Long bodies are not repeated for all elements of a leaf that a thread takes.
        text_.body +=
            cat("struct @_Shape {\n    static constexpr int64_t rows = ", r_.rows, ", n = ", r_.n,
                ";\n    static constexpr int unroll = ", r_.at > 4 ? 1 : 3, ";\n};\n");
    }
    /// A call of a kernel, whose first template arguments are the reducer and its type.
    template <class... Arguments>
    void call(const char* kernel, const char* values, const Arguments&... arguments) {
        text_.body += body_head();
        if (text_.workspace) text_.body += cat("    auto* parts = block.ptr<", a_, ">(16);\n");
        if (text_.counters)
            text_.body += cat("    auto* counters = block.ptr<uint32_t>(", layout_.tail, ");\n");
        text_.body += cat("    ", kernel, "<ReducerOf<reducers::", reducer_.operation, ", ", a_,
                          ">, ", a_, ", ", arguments..., ", @_Shape>(grid, ", values,
                          "@_Make{block}, @_Put{block});\n}\n");
    }
    void call_rows(const std::string& team) { call("reduce_rows", "", team); }
    KernelText named(const char* form) {
        text_.name = cat(kernel_stem(op_), "_", dtype_abbrev(r_.dtype), "_", form);
        if (r_.rows == 0) text_.blocks = 0;
        return text_;
    }
    /// Memory for `pieces` parts of each result, whose last block of a strip adds them.
    void leave_parts(int64_t pieces, int64_t strips) {
        text_.workspace = static_cast<uint64_t>(pieces * r_.rows * a_size_);
        text_.counters = static_cast<int>(strips);
    }
    std::string parts(int64_t pieces) const {
        return pieces > 1 ? "parts, counters, " : cat("(", a_, "*)nullptr, (uint32_t*)nullptr, ");
    }

    KernelText threads() {
        text_.threads = 32;
        text_.blocks = (r_.rows + 31) / 32;
        call("reduce_threads", "", chunk_);
        return named("threads");
    }
    KernelText warps_of_one_block() {
        const Team team = team_of(a_, r_.n, r_.rows, limits_);
        text_.threads = 32;
        text_.blocks = team.units(r_.rows);
        call_rows(team.type);
        return named("warps");
    }
    KernelText tall_columns(const Tall& tall) {
        const int64_t across = tall.width * tall.v;
        text_.threads = static_cast<int>(tall.threads);
        text_.blocks = tall.strips * tall.pieces;
        text_.shared = static_cast<uint32_t>(tall.stage * across * a_size_);
        leave_parts(ceil_div(r_.n, chunk_), tall.strips);
        call("reduce_tall", "parts, counters, ", chunk_, ", ", tall.v, ", ", tall.width, ", ",
             tall.threads / tall.width, ", ", tall.lot, ", ", tall.stage);
        return named("tall");
    }
    KernelText chain() {
        const int64_t chunks = std::max<int64_t>(ceil_div(r_.n, chunk_), 1);
        // In 32 KB of shared memory, which every device has beside what else a kernel holds.
        const int64_t most =
            std::clamp<int64_t>(std::min(r_.n, chunk_), 1, kChainChunk * 4 / a_size_);
        // Neighbours in memory are a warp's: results, or elements of few results.
        const int64_t width = std::min<int64_t>(power_of_two_from(r_.rows), columns_ ? 32 : 4);
        const int64_t strips = ceil_div(r_.rows, width);
        text_.blocks = strips * chunks;
        text_.shared = static_cast<uint32_t>(most * width * a_size_);
        text_.threads = 32 * std::min(limits_.most_warps, kGroupThreads / 32);
        if (chunks > 1) leave_parts(chunks, strips);
        call("reduce_chain", parts(chunks).c_str(), chunk_, ", ", most, ", ", width, ", ",
             text_.threads);
        return named("chain");
    }
    KernelText few() {
        const int lots =
            std::min<int>(lots_of(r_.rows, limits_.processors),
                          static_cast<int>(std::max<int64_t>(kFewTerms / 2 / r_.n, 1)));
        text_.blocks = std::min<int64_t>(ceil_div(r_.rows, kThreads * lots), INT32_MAX);
        call("reduce_few", "", lots);
        return named("few");
    }
    KernelText few_across(const Wide& wide) {
        text_.blocks = std::min<int64_t>(ceil_div(r_.rows, kThreads * wide.results), INT32_MAX);
        text_.resident = 2;  // which leaves room for what is on its way
        call("reduce_few_across", "", wide.results);
        return named("few");
    }
    KernelText columns(const Wide& wide) {
        const int64_t width =
            wide.results > 1 ? wide.beside * wide.results
                             : std::clamp<int64_t>(power_of_two_from(r_.rows), kColumns, kWarp);
        const int64_t strips = ceil_div(r_.rows, width);
        int64_t pieces = std::clamp<int64_t>(enough_ / strips, 1, leaves_);
        const int64_t span = power_of_two_from(ceil_div(leaves_, pieces)) * kTreeLeaf;
        pieces = ceil_div(r_.n, span);
        text_.blocks = strips * pieces;
        if (pieces > 1) leave_parts(pieces, strips);
        if (wide.results == 1) {
            call("reduce_columns", parts(pieces).c_str(), width, ", ", span);
            return named("columns");
        }
        text_.resident = 4;  // all of them, where there are as many as are enough
        int64_t bytes = 0;   // of neighbours; what is on its way leaves room for sums
        for (int k : read_)
            bytes += wide.results * dtype_size(op_.inputs[static_cast<size_t>(k)].dtype);
        const int64_t lot = std::min<int64_t>(bytes > 4 ? 2 : 4, wide.beside / 2);
        call("reduce_wide_columns", parts(pieces).c_str(), wide.results, ", ", lot, ", ",
             wide.beside, ", ", span);
        return named("columns");
    }
    KernelText short_rows(const Team& team, int lots) {
        text_.blocks =
            std::min<int64_t>(ceil_div(r_.rows * team.lanes, kThreads * lots), INT32_MAX);
        const std::string type =
            team.side == 4 ? cat("HolderOf<", a_, ", ", r_.n, ", ", team.lanes, ", 1>") : team.type;
        call("reduce_short", "", type, ", ", team.lanes, ", ", lots);
        return named("short");
    }
    KernelText rows(const Team& team) {
        const int64_t warps = team.units(r_.rows);
        text_.blocks = team.warps > 1 ? r_.rows : ceil_div(warps, kRowWarps);
        text_.threads = static_cast<int>(
            32 * (team.warps > 1 ? team.warps : std::clamp<int64_t>(warps, 1, kRowWarps)));
        text_.shared = static_cast<uint32_t>(team.results * a_size_);
        call_rows(team.type);
        return named("warps");
    }
    /// Whether registers have room for two leaves of a warp, which are read at once.
    bool holds_leaves() const {
        return read_.size() == 1 && r_.at <= 4 && a_size_ == 4 && limits_.most_warps >= kRowWarps;
    }
    KernelText pieces() {
        // Two leaves of a warp at a time; many blocks, since all wait for the last ones.
        const int64_t span = power_of_two_from(std::max<int64_t>(
                          {kPieceLeaves, ceil_div(leaves_ * r_.rows, 16 * enough_),
                           ceil_div(leaves_, kPieces)})),
                      count = ceil_div(leaves_, span);
        text_.blocks = r_.rows * count;
        leave_parts(count, r_.rows);
        text_.threads = 32 * kRowWarps;
        text_.shared = static_cast<uint32_t>(std::max(count, 2 * kPieceLeaves) * a_size_);
        call("reduce_pieces", "parts, counters, ",
             cat("HolderOf<", a_, ", ", kPieceLeaves * kTreeLeaf, ", 32, ", kRowWarps, ">"), ", ",
             span / kPieceLeaves);
        return named("pieces");
    }
    KernelText split() {
        // Each piece is worth at least 16 leaves, and the last block joins at most 4096 of them.
        const int64_t span = power_of_two_from(std::max<int64_t>(
            {kPieceLeaves, ceil_div(leaves_ * r_.rows, 8 * enough_), ceil_div(leaves_, kPieces)}));
        const int64_t pieces = ceil_div(leaves_, span),
                      group = std::max<int64_t>(span / kGroupLeaves, 1);
        text_.blocks = r_.rows * pieces;
        leave_parts(pieces, r_.rows);
        text_.shared = static_cast<uint32_t>(std::max(pieces, span / group) * a_size_);
        call("reduce_split", "parts, counters, ", group, ", ", span * kTreeLeaf);
        return named("split");
    }
    KernelText blocks() {
        const int64_t group = power_of_two_from(ceil_div(leaves_, kGroupLeaves));
        text_.blocks = r_.rows;
        text_.threads = static_cast<int>(
            32 * std::min<int64_t>(
                     {power_of_two_from(leaves_), r_.rows < enough_ ? 32 : 8, limits_.most_warps}));
        text_.shared = static_cast<uint32_t>(ceil_div(leaves_, group) * a_size_);
        call_rows(cat("StreamerOf<", a_, ", ", r_.n, ", ", text_.threads / 32, ", ", group, ">"));
        return named("blocks");
    }

    const LoweredOp& op_;
    const Limits& limits_;
    Reduction r_;
    const Reducer& reducer_;
    const std::string a_;  // the type of sums
    const BlockLayout layout_;
    std::vector<int> read_;  // inputs of the elements
    int64_t chunk_ = 0;      // of chain(c); 0: a tree, or no order
    int64_t a_size_ = 0, leaves_ = 0;
    int64_t enough_ = 0;  // blocks that fill the device
    bool columns_ = false;
    KernelText text_;
};

}  // namespace

KernelText subtree_mean_text(const LoweredOp& op, const Limits&) {
    KernelText text;
    const int64_t count = op.inputs[0].shape[0];
    text.name = "subtree_mean_f32";
    text.includes = {"reduce.cuh"};
    text.blocks = 1;
    text.shared = static_cast<uint32_t>(count * 4);
    text.body = body_head(op, BlockLayout(op)) +
                cat("    mean_of_subtrees<", count, ", ", kSubtree, ">(grid, y0, x0);\n}\n");
    return text;
}

KernelText reduce_text(const LoweredOp& op, const Limits& limits) {
    return ReduceText(op, limits).text();
}

}  // namespace aicf::cuda
