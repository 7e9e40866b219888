#include "kernels/cuda/rows.h"

#include <algorithm>
#include <set>

#include "kernels/cuda/thresholds.h"

namespace aicf::cuda {

namespace {

/// The text of row_struct: @_Row<name>, whose methods make elements of a row, and @_Make<name>.
class RowStruct {
  public:
    RowStruct(const LoweredOp& op, const BlockLayout& layout, const std::string& a,
              const std::string& beside, int own, const char* reads)
        : op_(op), layout_(layout), a_(a), beside_(beside), own_(own), reads_(reads) {}

    /// An input that the row's elements are made from.
    void read(int k) {
        const View& view = op_.inputs[static_cast<size_t>(k)];
        const char* e = cuda_type(view.dtype);
        const std::string wide = cat("Wide<", e, ">"),
                          type = cat("RowOf<", wide, ", ", e, ", @_Elem", k, ", ", alike(view),
                                     reads_, ">");
        fields_ += cat("    ", type, " x", k, ";\n");
        list(makes_, cat(type, "(block.template ptr<const ", e, ">(",
                         layout_.operand[static_cast<size_t>(k)], ") + @_In", k, "::at(r))"));
        list(params_, cat("const ", wide, " (&a", k, ")[V]"));
        list(operands_, cat("a", k));
        load_one_ += cat("        const ", wide, " a", k, "[1] = {x", k, "(i)};\n");
        load_some_ += cat("        ", wide, " a", k, "[V];\n        x", k,
                          ".template some<V, Aligned>(i, a", k, ");\n");
        aligned_ += cat(" && x", k, ".template aligned<V>()");
        if (!beside_.empty()) read_stored(k, e, wide);
    }

    /// The two structs, once all inputs are read.
    std::string text(const std::string& name, const std::vector<size_t>& steps,
                     const std::string& value) const {
        return cat(
            "struct @_Row", name, " {\n    const @_Block& block;\n", fields_,
            make_text(steps, value), load_text(), beside_.empty() ? "" : stored_text(steps.empty()),
            own_ < 0 ? "" : own_text(steps.empty()), "};\nstruct @_Make", name,
            " {\n    const @_Block& block;\n    __device__ __forceinline__ @_Row", name,
            " operator()(int64_t r) const {\n        return {block, ", makes_, "};\n    }\n};\n");
    }

  private:
    static void list(std::string& to, const std::string& item) {
        to += (to.empty() ? "" : ", ") + item;
    }

    void read_stored(int k, const char* e, const std::string& wide) {
        const std::string side = cat(beside_, k);
        stored_ += cat("        Stored<", e, ", ", side, "::step == 0 ? 1 : V> x", k, ";\n");
        together_ += cat(" && x", k, ".template together<V, ", side, ">()");
        const std::string load = cat("x", k, ".template across<V, ", side, ", Together>(i)");
        list(loads_, load);
        list(others_, k == own_ ? "{}" : load);
        words_ = cat("    template <int V>\n    __device__ __forceinline__ Words<", e,
                     ", V> words(const Some<V>& some) const {\n        Two<", e,
                     "> a[V / 2];\n        some.x", k, ".twos(a);\n        return Words<", e,
                     ", V>::of(a);\n    }\n");
        if (k != own_) others_together_ += cat(" && x", k, ".template together<V, ", side, ">()");
        open_ +=
            cat("        ", wide, " a", k, "[V];\n#pragma unroll\n        for (int j = 0; j < V; ",
                "j++) a", k, "[j] = widen(some.x", k, "[", side, "::step == 0 ? 0 : j]);\n");
    }

    /// make<V>: V elements of the row from those of its inputs.
    std::string make_text(const std::vector<size_t>& steps, const std::string& value) const {
        std::string before, results;
        const std::string formula = body_formula(op_, layout_, before, steps);
        for (size_t i : steps)  // a value that is stored elsewhere, too
            if (const int k = op_.body[i].outputs[0] - static_cast<int>(op_.inputs.size());
                k < static_cast<int>(op_.outputs.size()))
                results +=
                    cat("        Wide<", cuda_type(op_.outputs[static_cast<size_t>(k)].dtype),
                        "> r", k, "[V];\n");
        return cat("    template <int V>\n    __device__ __forceinline__ void make(", params_, ", ",
                   a_, " (&v)[V]) const {\n", before, results,
                   "#pragma unroll\n        for (int j = 0; j < V; j++) {\n            ", formula,
                   "\n            v[j] = static_cast<", a_, ">(", value, ");\n        }\n    }\n");
    }

    /// Element i, and some<V>: elements from i on.
    std::string load_text() const {
        return cat("    __device__ __forceinline__ ", a_, " operator()(int64_t i) const {\n",
                   load_one_, "        ", a_, " v[1];\n        make<1>(", operands_,
                   ", v);\n        return v[0];\n    }\n    template <int V>\n    __device__ "
                   "__forceinline__ bool aligned() const {\n        return true",
                   aligned_,
                   ";\n    }\n    template <int V, bool Aligned = false>\n    __device__ "
                   "__forceinline__ void some(int64_t i, ",
                   a_, " (&v)[V]) const {\n", load_some_, "        make<V>(", operands_,
                   ", v);\n    }\n");
    }

    /// across<V>, which loads elements as they are stored, and open<V>, which computes with them.
    std::string stored_text(bool direct) const {
        return cat("    template <int V>\n    struct Some {\n", stored_,
                   "    };\n    template <int V>\n    __device__ __forceinline__ bool "
                   "together() const {\n        return true",
                   together_,
                   ";\n    }\n    template <int V, bool Together>\n    __device__ "
                   "__forceinline__ Some<V> across(int64_t i) const {\n        return {",
                   loads_,
                   "};\n    }\n    template <int V>\n    __device__ __forceinline__ "
                   "void open(const Some<V>& some, ",
                   a_, " (&v)[V]) const {\n", open_, "        make<V>(", operands_,
                   ", v);\n    }\n", direct ? words_ : "");
    }

    /// What FilledRows takes of a row; `direct`: elements are those of the input.
    std::string own_text(bool direct) const {
        const char* e = cuda_type(op_.inputs[static_cast<size_t>(own_)].dtype);
        return cat("    static constexpr bool direct = ", direct ? "true" : "false",
                   ", lasting = decltype(x", own_,
                   ")::lasting;\n    __device__ __forceinline__ const ", e,
                   "* own() const { return x", own_,
                   ".x; }\n    template <int V>\n    __device__ __forceinline__ bool "
                   "beside_together() const {\n        return true",
                   others_together_,
                   ";\n    }\n    template <int V, bool Together>\n    __device__ "
                   "__forceinline__ Some<V> beside(int64_t i) const {\n        return {",
                   others_,
                   "};\n    }\n    template <int V>\n    __device__ __forceinline__ static "
                   "void with(Some<V>& some, const ",
                   e, "* kept) {\n        some.x", own_, " = Stored<", e,
                   ", V>::template load<true>(kept);\n    }\n");
    }

    const LoweredOp& op_;
    const BlockLayout& layout_;
    const std::string &a_, &beside_;
    const int own_;
    const std::string reads_;
    std::string fields_, makes_;                    // of @_Row, and what @_Make gives them
    std::string params_, operands_;                 // of make<V>
    std::string load_one_, load_some_, aligned_;    // statements; a condition
    std::string stored_, together_, loads_, open_;  // the same of elements as they are stored
    std::string words_;                             // the same of the one input, in pairs
    std::string others_, others_together_;          // of inputs that are not own_
};

}  // namespace

std::string row_struct(const LoweredOp& op, const BlockLayout& layout, const std::string& name,
                       const std::vector<int>& read, const std::vector<size_t>& steps,
                       const std::string& value, const std::string& a, const std::string& beside,
                       int own, const char* reads) {
    RowStruct row(op, layout, a, beside, own, reads);
    for (int k : read) row.read(k);
    return row.text(name, steps, value);
}

bool in_twos(const LoweredOp& op, const std::vector<size_t>& steps) {
    static const std::set<std::string> names = {"add", "bias_add", "sub", "mul", "cast"};
    const auto fits = [&](int number) {
        const DType dtype = op.operand(number).dtype;
        return is_16_bit(dtype) || dtype == DType::f32;
    };
    return std::all_of(steps.begin(), steps.end(), [&](size_t i) {
        const RegionStep& step = op.body[i];
        return names.contains(step.def->name) && fits(step.outputs[0]) &&
               std::all_of(step.inputs.begin(), step.inputs.end(), fits);
    });
}

std::string terms_text(const std::string& name, const LoweredOp& op, const BlockLayout& layout,
                       const std::vector<int>& read, const std::vector<size_t>& steps,
                       const std::string& value, const std::string& a, bool twos) {
    std::string before, params;
    const std::string formula = body_formula(op, layout, before, steps),
                      count = twos ? "[V / 2]" : "[V]";
    for (int k : read)
        params +=
            cat("const ", twos ? "Twos<" : "Wide<",
                cuda_type(op.inputs[static_cast<size_t>(k)].dtype), "> (&a", k, ")", count, ", ");
    const std::string out = twos ? "Out" : a;
    return cat("template <int V", twos ? ", class Out" : "", ">\n__device__ __forceinline__ void ",
               name, "(const @_Block& block, ", params, out, " (&v)", count, ") {\n", before,
               "#pragma unroll\n    for (int j = 0; j < V", twos ? " / 2" : "",
               "; j++) {\n            ", formula, "\n        v[j] = ",
               twos ? cat("in_twos<Out>(", value, ")") : cat("static_cast<", a, ">(", value, ")"),
               ";\n    }\n}\n");
}

int64_t alike(const View& view) {
    const int64_t size = dtype_size(view.dtype);
    int64_t line = size < 2 ? 4 : 16 / size;
    for (int d = 0; d < view.shape.rank(); d++)
        if (view.shape[d] > 1 && view.strides[d] != 1)
            while (line > 0 && view.strides[d] % line != 0) line = line > 4 ? line / 2 : 0;
    return line;
}

Team team_of(const std::string& a, int64_t n, int64_t rows, const Limits& limits, bool narrow) {
    const int64_t leaves = (n + kTreeLeaf - 1) / kTreeLeaf,
                  words = a.ends_with("64_t") || a == "double" ? 2 : 1;
    Team team;
    if (n > 0 && leaves * words <= (limits.one_block ? kWarpLeaves : kHeldLeaves)) {
        if (leaves == 1) {
            const auto lanes = [&](int64_t v) {
                return static_cast<int>(
                    std::min(power_of_two_from(ceil_div(n, v)), kTreeLanes / v));
            };
            team.lanes = lanes(4);
            // 16 bytes of 16 bits, where there are rows enough for half as many lanes.
            if (narrow && n % 8 == 0 && !limits.one_block &&
                team.units(rows) > kSoonWarps * limits.processors) {
                team.lanes = lanes(8);
                team.type = cat("HolderOf<", a, ", ", n, ", ", team.lanes, ", 1, false, 8>");
                team.side = 8;
                return team;
            }
        }
        if (leaves > 1 && !limits.one_block) {
            const bool full = rows * leaves >= 2 * kFullWarps * limits.processors;
            const int64_t most = std::min<int64_t>(kHeldWarps, limits.most_warps),
                          turns = std::max<int64_t>(full ? 2 : 1, ceil_div(leaves, most));
            team.warps = static_cast<int>(ceil_div(leaves, turns));
        }
        team.results = team.warps > 1 ? 2 * leaves : 0;
        team.side = 4;
        // Exchanges wait for each other where few warps share a processor, else for their turn.
        const bool soon = !limits.one_block && words == 1 && leaves == 1 &&
                          team.units(rows) <= kSoonWarps * limits.processors;
        team.type = cat("HolderOf<", a, ", ", n, ", ", team.lanes, ", ", team.warps,
                        soon ? ", true>" : ">");
        return team;
    }
    const int64_t group = power_of_two_from((leaves + kGroupLeaves - 1) / kGroupLeaves);
    if (leaves > kWarpLeaves && !limits.one_block) {
        team.warps = static_cast<int>(std::min<int64_t>(power_of_two_from(leaves), kRowWarps));
        team.results = (leaves + group - 1) / group;
    }
    team.type = cat("StreamerOf<", a, ", ", n, ", ", team.warps, ", ", group, ">");
    return team;
}

}  // namespace aicf::cuda
