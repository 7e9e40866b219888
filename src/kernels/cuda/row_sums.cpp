// The gradient of a norm with sums over rows beside it: what row_sums.cuh reads and writes.
#include <algorithm>
#include <set>

#include "core/graph/region.h"
#include "kernels/cuda/row_teams.h"
#include "kernels/cuda/thresholds.h"

namespace aicf::cuda {

namespace {

/// The kernel of a norm's gradient with sums over rows beside it (row_sums.cuh).
class RowSumsText {
  public:
    RowSumsText(const LoweredOp& group, const Limits& limits)
        : group_(group),
          limits_(limits),
          op_(group.members[0]),
          row_(row_op_of(op_)),
          rows_(element_count(row_.others)),
          leaves_(ceil_div(row_.n, kTreeLeaf)),
          sums_(std::ssize(group.members) - 1),
          stored_(cuda_type(row_.def->name == "normalize_bwd" &&
                                    op_.operand(row_.operands[2]).dtype == row_.x->dtype
                                ? row_.x->dtype
                                : DType::f32)) {}

    bool fits() {
        if (limits_.one_block || (limits_.major != 9 && limits_.major != 10)) return false;
        if (row_.def->name != "normalize_bwd" || sums_ < 1 ||
            wide_type(row_.x->dtype) != std::string("float"))
            return false;
        if (row_.axis != row_.x->shape.rank() - 1 || row_.n % 4 != 0 || row_.n < kSumsTerms ||
            leaves_ > kSumsLeaves || rows_ < kTreeLeaf ||
            rows_ * row_.n < kSumsWork * (dtype_size(row_.x->dtype) / 2))
            return false;
        if (!std::all_of(group_.members.begin() + 1, group_.members.end(),
                         [&](const LoweredOp& sum) { return is_sum(sum); }))
            return false;
        for (size_t i = 0; i < op_.body.size() && i < row_.at; i++)
            if (op_.body[i].outputs[0] < static_cast<int>(op_.inputs.size() + op_.outputs.size()))
                return false;  // what the rows are made of is stored, too
        if (leaves_ > kWarpLeaves ? !choose_blocks()
                                  : !(copies() && choose(true)) && !choose(false))
            return false;
        const std::vector<int> all = read();
        return std::all_of(all.begin(), all.end(),
                           [&](int k) { return side_by_side(op_.inputs[static_cast<size_t>(k)]); });
    }

    KernelText text() {
        check(fits(), "cuda: sums beside a row op of another form");
        const BlockLayout layout(group_);
        text_.includes = {blocks_ ? "row_sums_blocks.cuh" : "row_sums.cuh"};
        text_.begins = !blocks_;
        text_.name = cat(kernel_stem(op_), "_sums_", dtype_abbrev(row_.x->dtype));
        for (size_t k = 0; k < group_.members.size(); k++) part(k);
        rows(layout);
        ends(layout);
        const std::string first = member(1, layout);
        text_.body += body_head();
        std::string parts;
        for (int64_t k = 1; k <= sums_; k++)
            parts += cat(k > 1 ? ", " : "", member(static_cast<size_t>(k), layout),
                         ".template ptr<float>(16)");
        text_.body += cat("    float* const parts[] = {", parts, "};\n");
        text_.body +=
            cat("    normalize_bwd_", blocks_ ? "block_" : "", "sums<float, ", team_, ", ",
                row_.attrs->flag("center") ? "true" : "false", ", ", sums_, ", ", parts_, ", ",
                text_.threads - (led_ ? kWarp : 0), ", ", stored_,
                behind_ ? ", true, " : ", false, ", slots_,
                !blocks_ ? ""
                : led_   ? ", true"
                         : ", false",
                ", @_0_Shape>(grid, parts, ", first, ".template ptr<uint32_t>(",
                BlockLayout(group_.members[1]).tail, "), @_Make{block}, @_0_One1{",
                member(0, layout), "}, @_0_Put{", member(0, layout), "}, @_Ends{block});\n}\n");
        return text_;
    }

  private:
    static std::string member(size_t k, const BlockLayout& layout) {
        return cat("block.template part<@_", k, "_Bytes>(", layout.parts[k], ")");
    }

    /// A sum over all axes but the last, of what the row op reads, in the order of the tree.
    bool is_sum(const LoweredOp& sum) const {
        const Attrs& attrs = anchor_attrs(sum);
        if (anchor(sum).name != "reduce_sum" || attrs.text("order") != "tree") return false;
        const size_t at = sum.body.empty() ? 0 : anchor_step(sum);
        const View& x = sum.body.empty() ? sum.inputs[0] : sum.operand(sum.body[at].inputs[0]);
        std::vector<int64_t> axes = attrs.ints("axes");
        for (int64_t& axis : axes) axis = axis < 0 ? axis + x.shape.rank() : axis;
        std::sort(axes.begin(), axes.end());
        if (!(x.shape == row_.x->shape) || std::ssize(axes) != x.shape.rank() - 1 || axes.empty() ||
            axes.back() != x.shape.rank() - 2 || wide_type(x.dtype) != std::string("float"))
            return false;
        const std::vector<int> reads = column_sum_reads(sum);
        for (size_t k = 0; k < sum.inputs.size(); k++)
            if (std::find(reads.begin(), reads.end(), static_cast<int>(k)) == reads.end() ||
                find_view(op_.inputs, sum.inputs[k]) < 0)
                return false;
        for (size_t i = 0; i < at; i++)  // what is summed is stored nowhere else
            if (sum.body[i].outputs[0] < static_cast<int>(sum.inputs.size() + sum.outputs.size()))
                return false;
        return true;
    }

    bool narrow() const { return stored_ != "float"; }

    /// Whether some elements have 4 bytes.
    bool wide() const {
        const std::vector<int> all = read();
        return std::any_of(all.begin(), all.end(), [&](int k) {
            const View& view = op_.inputs[static_cast<size_t>(k)];
            return !is_16_bit(view.dtype) && view.strides[row_.axis] != 0;
        });
    }

    /// Whether all rows are made from the same elements of it, which differ.
    bool same_for_all(const View& view) const {
        for (int axis = 0; axis < row_.axis; axis++)
            if (view.strides[axis] != 0) return false;
        return view.strides[row_.axis] != 0;
    }

    bool side_by_side(const View& view) const {
        const int last = view.shape.rank() - 1;
        if (!(view.shape == row_.x->shape)) return false;
        return view.strides[last] == 0 ||
               (view.strides[last] == 1 && alike(view) % side_ == 0 && alike(view) > 0);
    }

    /// The inputs of the row op that make elements, ascending.
    std::vector<int> read() const {
        std::set<int> all;
        for (int position = 0; position < row_.takes; position++)
            if (row_.elements(position))
                for (int k : row_reads(op_, row_, position)) all.insert(k);
        for (size_t m = 1; m < group_.members.size(); m++)
            for (const View& view : group_.members[m].inputs)
                all.insert(find_view(op_.inputs, view));
        return {all.begin(), all.end()};
    }

    /// The team, whose rows come to shared memory or to registers, and into how many parts a leaf's
    /// rows are cut: so many that all processors have some to do, and that what waits has room in
    /// shared memory.
    bool choose(bool to_shared) {
        int64_t lanes = 32, pieces = ceil_div(row_.n, kTreeLanes);
        const bool few = row_.n <= 2 * kTreeLanes;
        side_ = few && row_.n % 8 == 0 && !wide() ? 8 : 4;
        if (leaves_ == 1) {
            lanes = 1;
            while (lanes * side_ < std::min(row_.n, kTreeLanes)) lanes *= 2;
            // Two pieces a thread take fewer exchanges, and instructions, of an element.
            if (to_shared && lanes * side_ == row_.n && lanes > 1) lanes /= 2;
            pieces = ceil_div(row_.n, lanes * side_);
            team_ = cat("HolderOf<float, ", row_.n, ", ", lanes, ", 1, false, ", side_, ">");
        } else {
            team_ = cat("HolderOf<float, ", row_.n, ", 32, 1>");
        }
        const int64_t each = pieces * side_;
        text_.threads = kThreads;
        int64_t registers = 255;
        if (to_shared) {
            if (each <= kSumsElements) registers = 128;
            if (each <= kSumsElements && lanes == 32) text_.threads = 2 * kThreads;
        } else {
            // What is on its way of elements of 4 bytes takes as many registers again. With one sum
            // of a row and one of columns a fourth block has room (a norm without a mean of
            // 1048576x64 took an H200 177 us with its gradients for 187; with a mean 197 for 194).
            const bool slim = sums_ == 1 && !row_.attrs->flag("center");
            const int64_t taken = wide() ? each * 3 / 2 : each;
            if (taken <= 16) registers = taken > 8 ? 128 : slim ? 64 : 80;
        }
        text_.resident = static_cast<int>(kSumsRegisters / (registers * text_.threads));
        slots_ = to_shared ? 1 : 0;
        if (to_shared)
            while (2 * slots_ <= kSumsSlots &&
                   2 * slots_ * text_.resident * coming_rows(lanes) <= kSumsComing)
                slots_ *= 2;
        const int64_t teams = text_.threads / lanes,
                      wait = sums_ * each * text_.threads * 4,  // bytes of a subtree
            coming = to_shared ? coming_bytes(lanes, pieces) : 0;
        behind_ = narrow() && leaves_ > 1 && !to_shared;
        double best = 0;  // the share of blocks' time that is work
        for (int64_t parts = 1; teams * parts <= kTreeLanes; parts *= 2) {
            int64_t levels = 0;
            while (teams * parts << levels < kTreeLanes) levels++;
            const int64_t held =
                              std::max({levels * wait, teams > 1 ? teams * sums_ * row_.n * 4 : 0,
                                        int64_t{4} * text_.threads}),
                          shared = held + coming, units = ceil_div(rows_, kTreeLeaf) * parts,
                          teams_of_all = int64_t{limits_.processors} * text_.resident;
            const double share = static_cast<double>(units) /
                                 static_cast<double>(ceil_div(units, teams_of_all) * teams_of_all);
            if (shared * text_.resident > kSumsShared || share < 1.25 * best) continue;
            best = share;
            parts_ = parts;
            units_ = units;
            text_.shared = static_cast<uint32_t>(shared);
            text_.blocks = std::min(units, teams_of_all);
        }
        return best > 0;
    }

    /// The same of rows that blocks hold, or clusters of blocks, a warp a leaf.
    bool choose_blocks() {
        blocks_ = leaves_ > kBlockLeaves;
        text_.cluster = leaves_ <= kBlockLeaves  ? 1
                        : leaves_ <= kPairLeaves ? 2
                        : leaves_ <= kQuadLeaves ? 4
                                                 : 8;
        const int64_t warps = ceil_div(leaves_, text_.cluster);
        team_ = cat("HolderOf<float, ", row_.n, ", 32, ", warps,
                    text_.cluster > 1 ? cat(", false, 4, ", text_.cluster) : "", ">");
        text_.threads = static_cast<int>(kWarp * warps);
        text_.resident = static_cast<int>(kSumsRegisters / ((wide() ? 255 : 128) * text_.threads));
        if (text_.resident < 1 || limits_.processors < text_.cluster) return false;
        slots_ = blocks_ && copies() ? kBlockSlots : 0;
        behind_ = narrow();
        // One more warp puts what there is one of for all of a row, and joins what leaves come to.
        led_ = slots_ > 0 && text_.cluster > 2 && ceil_div(warps, 4) * 4 - warps >= kIdleSchedulers;
        const int64_t count = row_.attrs->flag("center") ? 2 : 1,        // sums of a row
            wait = sums_ * 64 * text_.threads,                           // bytes of a subtree
            shown = 4 * count * ceil_div(warps * text_.cluster, 4) * 4,  // of a row's leaves
            coming = slots_ * warps * kTreeLeaf * copied_size() +
                     (led_ ? slots_ * (8 * warps + 2 * beside_size()) + 8 : 0),
                      clusters = clustered_processors(limits_, text_.cluster) * text_.resident /
                                 text_.cluster;
        units_ = 0;
        double best = 0;  // the share of clusters' time that is work
        for (int64_t parts = 1; parts < kTreeLanes; parts *= 2) {
            int64_t levels = 0;
            while (parts << levels < kTreeLanes) levels++;
            // Four rows in turn each have what leaves come to, a barrier, and in clusters a second
            // one and the sums.
            const int64_t shared = 4 * shown + (blocks_ ? 96 : 32) + coming + levels * wait,
                          units = ceil_div(rows_, kTreeLeaf) * parts;
            const double share = static_cast<double>(units) /
                                 static_cast<double>(ceil_div(units, clusters) * clusters);
            // Large clusters are few: each has some units, or the last ones would wait for one.
            const bool few = text_.cluster > 2 && units_ < kClusterUnits * clusters;
            if (shared * text_.resident > kSumsShared || (!few && share < 1.25 * best)) continue;
            best = share;
            parts_ = parts;
            units_ = units;
            text_.shared = static_cast<uint32_t>(shared);
            text_.blocks = std::min(units, clusters) * text_.cluster;
        }
        if (led_) text_.threads += kWarp;
        return best > 0;
    }

    /// Whether a row has elements of its own of it.
    bool copied(const View& view) const {
        return view.strides[row_.axis] != 0 && !same_for_all(view);
    }
    /// Whether rows can be copied 16 bytes at a time, as the copy engine does, and threads.
    bool copies() const {
        if (!narrow()) return false;
        const std::vector<int> all = read();
        return std::all_of(all.begin(), all.end(), [&](int k) {
            const View& view = op_.inputs[static_cast<size_t>(k)];
            const int64_t size = dtype_size(view.dtype);
            return !copied(view) || (row_.n * size % 16 == 0 && alike(view) * size == 16);
        });
    }
    /// Bytes of a block's rows, one of each team.
    int64_t coming_rows(int64_t lanes) const {
        return text_.threads / lanes * row_.n * copied_size();
    }
    /// Bytes of what is copied of an element.
    int64_t copied_size() const {
        int64_t each = 0;
        for (int k : read())
            if (const View& view = op_.inputs[static_cast<size_t>(k)]; copied(view))
                each += dtype_size(view.dtype);
        return each;
    }
    /// Bytes of what there is one of for all of a row, and of its scale.
    int64_t beside_size() const {
        int64_t each = 4;
        for (int k : read())
            if (const View& view = op_.inputs[static_cast<size_t>(k)];
                !copied(view) && !same_for_all(view))
                each += 8;
        return ceil_div(each, 16) * 16;
    }
    /// Of a block's shared memory, for rows that come, warps' barriers, and what all rows have in
    /// common, of which a thread's share of a piece takes multiples of 16 bytes at most.
    int64_t coming_bytes(int64_t lanes, int64_t pieces) const {
        int64_t same = 0;
        for (int k : read())
            if (const View& view = op_.inputs[static_cast<size_t>(k)]; same_for_all(view))
                same += ceil_div(side_ * dtype_size(view.dtype), 16) * 16;
        return slots_ * coming_rows(lanes) + text_.threads / 32 * ((8 * slots_ + 15) / 16 * 16) +
               pieces * lanes * std::max<int64_t>(same, 16);
    }
    /// Whether rows lie one behind the other.
    bool dense(const View& view) const {
        int64_t apart = row_.n;
        for (int axis = row_.axis - 1; axis >= 0; axis--) {
            if (view.shape[axis] > 1 && view.strides[axis] != apart) return false;
            apart *= view.shape[axis];
        }
        return true;
    }

    /// A member's block, functions and structs; what its sums leave.
    void part(size_t k) {
        const LoweredOp& one = group_.members[k];
        const BlockLayout own(one);
        KernelText part;
        part.name = text_.name;
        std::string body = block_type(own.bytes);
        if (k == 0) {
            body += row_parts(op_, limits_);
        } else {
            body += column_sum_text(one, own, sum_in_twos(one));
            part.workspace = static_cast<uint64_t>(4 * units_ * row_.n);
            part.counters = k == 1 ? 3 : 0;
        }
        text_.body += cat("constexpr int @_", k, "_Bytes = ", own.bytes, ";\n") +
                      replaced(body, "@", cat("@_", k));
        text_.parts.push_back(std::move(part));
    }

    /// @_Make{block}(r): what the elements of row r are made from.
    void rows(const BlockLayout& layout) {
        const BlockLayout own(op_);
        std::string fields, together, makes, opens;
        std::string stored[2], loads[2];  // of rows, and what is the same for all of them
        std::string beside, beside_loads, copies, with;
        int64_t before = 0;  // bytes
        bool in_line = true;
        const auto comma = [](const std::string& text) { return text.empty() ? "" : ", "; };
        for (int k : read()) {
            const View& view = op_.inputs[static_cast<size_t>(k)];
            const char* e = cuda_type(view.dtype);
            const bool same = same_for_all(view);
            const std::string type = cat("Stored<", e, ", @_0_Elem", k, "::step == 0 ? 1 : V>");
            fields += cat("    const ", e, "* x", k, ";\n");
            stored[same] += cat("        ", type, " x", k, ";\n");
            loads[same] += cat(comma(loads[same]), type, "::template load<Together>(x", k,
                               " + @_0_Elem", k, "::at(i))");
            if (copied(view)) {
                const int64_t size = dtype_size(view.dtype);
                copies += cat("        body(x", k, ", ", size, ", ", before, ");\n");
                with += cat(comma(with), type, "::template load<true>(reinterpret_cast<const ", e,
                            "*>(place(", size, ", ", before, ")))");
                before += size;
                in_line = in_line && dense(view);
            } else if (!same) {
                beside += cat("        Stored<", e, ", 1> x", k, ";\n");
                beside_loads +=
                    cat(comma(beside_loads), "Stored<", e, ", 1>::template load<true>(x", k, ")");
                with += cat(comma(with), "beside.x", k);
            }
            together += cat(" && (@_0_Elem", k, "::step == 0 || aligned_for<V>(x", k, "))");
            makes += cat(", ", member(0, layout), ".template ptr<const ", e, ">(",
                         own.operand[static_cast<size_t>(k)], ") + @_0_In", k, "::at(r)");
            opens += cat(
                "        Wide<", e, "> a", k, "[V];\n#pragma unroll\n        for (int j = 0; ",
                "j < V; j++) a", k, "[j] = widen(", same ? "same" : "some", ".x", k, "[@_0_Elem", k,
                "::step == 0 ? 0 : j]);\n        Twos<", e, "> b", k, "[V / 2];\n        twos_of(",
                same ? "same" : "some", ".x", k, ", b", k, ");\n");
        }
        text_.body += cat(
            "struct @_Row {\n    static constexpr int copied = ", before,
            ";\n    static constexpr bool in_line = ", in_line ? "true" : "false",
            ";\n    const @_Block& block;\n", fields, "    template <int V>\n    struct Some {\n",
            stored[0], "    };\n    template <int V>\n    struct Same {\n", stored[1],
            "    };\n    struct Beside {\n", beside,
            "    };\n    template <int V>\n    __device__ __forceinline__ bool together() const {\n"
            "        return true",
            together,
            ";\n    }\n    template <int V, bool Together>\n    __device__ __forceinline__ Some<V> "
            "across(int64_t i) const {\n        return {",
            loads[0],
            "};\n    }\n    template <int V, bool Together>\n    __device__ __forceinline__ "
            "Same<V> alike(int64_t i) const {\n        return {",
            loads[1],
            "};\n    }\n    __device__ __forceinline__ Beside beside() const {\n        return {",
            beside_loads,
            "};\n    }\n    template <class Body>\n    __device__ __forceinline__ void "
            "each_copied(const Body& body) const {\n",
            copies,
            "    }\n    template <int V, class Place>\n    __device__ __forceinline__ Some<V> "
            "with(const Place& place, const Beside& beside) const {\n        return {",
            with,
            "};\n    }\n    template <int V>\n    __device__ __forceinline__ void open(const "
            "Some<V>& some, const Same<V>& same, ",
            piece_type(), "y", piece_end(), ", ", piece_type(), "dy", piece_end(),
            ", float (&terms)[", sums_, "][V]) const {\n", opens, calls(layout),
            "    }\n};\nstruct @_Make {\n    const @_Block& block;\n    __device__ "
            "__forceinline__ @_Row operator()(int64_t r) const {\n        return {block",
            makes, "};\n    }\n};\n");
    }
    std::string piece_type() const {
        return narrow() ? cat("Words<", stored_, ", V>& ") : "float (&";
    }
    std::string piece_end() const { return narrow() ? "" : ")[V]"; }

    bool sum_in_twos(const LoweredOp& sum) const {
        return narrow() && in_twos(sum, steps_between(0, sum.body.empty() ? 0 : anchor_step(sum)));
    }
    std::string calls(const BlockLayout& layout) const {
        std::string text;
        const auto call = [&](const std::string& name, size_t k, const std::vector<int>& reads,
                              bool twos, const std::string& to) {
            text += cat("        @_", k, "_", name, "<V>(", member(k, layout));
            for (int number : reads) text += cat(twos ? ", b" : ", a", number);
            text += cat(", ", to, ");\n");
        };
        for (int position : {0, 2}) {
            const int number = row_.operands[static_cast<size_t>(position)];
            const bool twos = narrow() && in_twos(op_, steps_for(op_, 0, row_.at, {number}));
            const std::string to = position ? "dy" : "y", made = cat("made_", to);
            if (narrow())
                text += twos ? cat("        Two<", stored_, "> ", made, "[V / 2];\n")
                             : cat("        float ", made, "[V];\n");
            call(cat("terms", position), 0, row_reads(op_, row_, position), twos,
                 narrow() ? made : to);
            if (narrow())
                text += cat("        ", to, " = Words<", stored_, ", V>::of(", made, ");\n");
        }
        for (size_t k = 1; k < group_.members.size(); k++) {
            std::vector<int> reads;
            for (int number : column_sum_reads(group_.members[k]))
                reads.push_back(
                    find_view(op_.inputs, group_.members[k].inputs[static_cast<size_t>(number)]));
            const bool twos = sum_in_twos(group_.members[k]);
            const std::string to = cat("terms[", k - 1, "]"), made = cat("sum", k);
            if (twos) text += cat("        Both ", made, "[V / 2];\n");
            call("terms", k, reads, twos, twos ? made : to);
            if (twos)
                text += cat("#pragma unroll\n        for (int j = 0; j < V; j++) ", to,
                            "[j] = j % 2 ? ", made, "[j / 2].high : ", made, "[j / 2].low;\n");
        }
        return text;
    }

    /// @_Ends{block}: put<k>(column, total) of the sums.
    void ends(const BlockLayout& layout) {
        std::string text;
        for (size_t k = 1; k < group_.members.size(); k++)
            text += cat("        if constexpr (Which == ", k - 1, ") @_", k, "_Put{",
                        member(k, layout), "}(column, total);\n");
        text_.body +=
            cat("struct @_Ends {\n    const @_Block& block;\n    template <int Which>\n"
                "    __device__ __forceinline__ void put(int64_t column, float total) "
                "const {\n",
                text, "    }\n};\n");
    }

    const LoweredOp& group_;
    const Limits& limits_;
    const LoweredOp& op_;  // the row op
    const RowOp row_;
    const int64_t rows_, leaves_, sums_;
    const std::string stored_;  // the type of what is kept of a row's elements
    std::string team_;
    int64_t side_ = 4, parts_ = 1, units_ = 0;
    int64_t slots_ = 0;    // of rows that come to shared memory
    bool led_ = false;     // by one more warp of a block
    bool blocks_ = false;  // of a cluster hold rows, by the kernel of wide ones
    bool behind_ = false;  // a row's gradient is made after the sums of the next
    KernelText text_;
};

}  // namespace

bool sums_beside(const LoweredOp& group, const Limits& limits) {
    return group.def == group_def() && group.members.size() > 1 &&
           is_row_op(anchor(group.members[0])) && RowSumsText(group, limits).fits();
}

KernelText row_sums_text(const LoweredOp& group, const Limits& limits) {
    return RowSumsText(group, limits).text();
}

}  // namespace aicf::cuda
