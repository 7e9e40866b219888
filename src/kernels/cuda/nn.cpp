// The softmax family, norms and cross entropy: what a kernel of rows reads and writes.
#include <algorithm>
#include <set>

#include "core/graph/region.h"
#include "kernels/cuda/row_teams.h"
#include "kernels/cuda/thresholds.h"

namespace aicf::cuda {

namespace {

/// The kernel of a row op: where its operands lie, functions of its text that stand for them, and
/// the call of a kernel of nn.cuh that takes these.
class RowText {
  public:
    /// `leaves`: blocks add the losses of whole leaves, as adds_leaves() says they can.
    RowText(const LoweredOp& op, const Limits& limits, bool leaves = false)
        : op_(op),
          limits_(limits),
          row_(row_op_of(op)),
          name_(row_.def->name),
          a_(wide_type(row_.x->dtype)),
          layout_(op),
          leaves_(leaves),
          inputs_(static_cast<int>(op.inputs.size())),
          outer_(inputs_ + static_cast<int>(op.outputs.size())),
          norm_(name_.starts_with("normalize")),
          kept_(kept_team(op, row_, limits)),
          alone_(losses_alone(op, row_, limits)),
          filled_(filled()),
          // An empty row of a norm has its rstd too.
          rows_(row_.n || norm_ ? element_count(row_.others) : 0),
          team_(row_team(op, row_, limits)),
          ahead_(ahead()) {
        if (const Team team = copying(); team.slots > 0) {
            team_ = team;
            ahead_ = true;
        }
        if (leaves_) {
            team_.lanes = leaf_lanes();
            team_.side = 8;
            team_.type = cat("HolderOf<", a_, ", ", row_.n, ", ", team_.lanes, ", 1, false, 8>");
        }
    }

    KernelText text() {
        text_.includes = {alone_ && (filled_.warps || ahead_)  ? "loss_rows.cuh"
                          : filled_.warps                      ? "filled_rows.cuh"
                          : kept_.warps                        ? "kept_rows.cuh"
                          : team_.tells                        ? "told_rows.cuh"
                          : team_.slots                        ? "copied_rows.cuh"
                          : name_.starts_with("cross_entropy") ? "losses.cuh"
                                                               : "nn.cuh"};
        text_.name = cat(kernel_stem(op_), "_", dtype_abbrev(row_.x->dtype));
        operands();
        put();
        text_.body += cat("struct @_Shape {\n    static constexpr int64_t rows = ", rows_,
                          ", n = ", row_.n, ";\n", many(), "};\n", body_head());
        if (name_ == "cross_entropy_grad" && row_.n > kTreeLeaf)
            long_loss_gradient();
        else if (kept_.warps)
            kept_rows();
        else if (filled_.warps)
            filled_rows();
        else
            rows();
        return text_;
    }

    /// Whether losses alone are a mean's, whose leaves the blocks add that make them: of short rows
    /// that the copy engine brings, and enough of them to keep all processors busy.
    bool adds_leaves() const {
        if (!alone_ || !ahead_ || (limits_.major != 9 && limits_.major != 10)) return false;
        if (rows_ % kTreeLeaf != 0 || leaf_lanes() == 0 || own_of(0, 8) < 0) return false;
        const int64_t leaves = rows_ / kTreeLeaf, all = kLeafBlocks * limits_.processors;
        return kLeafShare * leaves >= (kLeafShare - 1) * ceil_div(leaves, all) * all &&
               4 * leaves <= leaf_bytes();
    }

    std::string parts() {
        filled_ = {};  // another team takes the rows
        for (int number = 0; number < outer_; number++) place(number);
        for (int position = 0; position < row_.takes; position++) {
            const int number = row_.operands[static_cast<size_t>(position)];
            if (!row_.elements(position)) {
                one(position, number, true);
                continue;
            }
            const std::vector<size_t> steps = steps_for(op_, 0, row_.at, {number});
            text_.body += terms_text(cat("@_terms", position), op_, layout_, reads(position), steps,
                                     operand_text(op_, number), a_,
                                     is_16_bit(row_.x->dtype) && in_twos(op_, steps));
        }
        put();
        return text_.body + cat("struct @_Shape {\n    static constexpr int64_t rows = ", rows_,
                                ", n = ", row_.n, ";\n};\n");
    }

  private:
    std::vector<int> reads(int position) const { return row_reads(op_, row_, position); }

    /// How the kernel spells operand `number`.
    std::string pointer(int number) const {
        return cat("block.template ptr<", number < inputs_ ? "const " : "",
                   cuda_type(op_.operand(number).dtype), ">(",
                   layout_.operand[static_cast<size_t>(number)], ")");
    }

    /// The number that is the first attribute of a step, in the row's type.
    std::string number_of(size_t step) const {
        int at = layout_.scalars;
        for (size_t i = 0; i < step; i++) at += 8 * static_cast<int>(op_.body[i].def->attrs.size());
        return cat(", scalar::cast<", a_, ">(block.number(", at, "))");
    }

    /// Where the rows of an operand begin, @_In<number>, and, where it holds elements, how these
    /// lie, @_Elem<number>.
    void place(int number) {
        const View& view = op_.operand(number);
        Dims shape = view.shape, strides = view.strides;
        if (shape.rank() == row_.x->shape.rank()) {
            Dims sizes, steps;
            for (int axis = row_.first(); axis <= row_.axis; axis++) {
                sizes.push(shape[row_.first()]);
                steps.push(strides[row_.first()]);
                shape.erase(row_.first());
                strides.erase(row_.first());
            }
            const std::string name = cat("@_Elem", number);
            text_.body += row_.axes > 1 ? place_struct(name, sizes, steps)
                                        : cat("typedef Line<", steps[0], "> ", name, ";\n");
        }
        text_.body += place_struct(cat("@_In", number), shape, strides);
    }

    /// The functions that stand for the operands of the row op, and the call's arguments.
    void operands() {
        for (int number = 0; number < outer_; number++) place(number);
        bool put = false;
        for (int position = 0; position < static_cast<int>(row_.operands.size()); position++) {
            const int number = row_.operands[static_cast<size_t>(position)];
            const bool input = position < row_.takes;
            if (row_.elements(position) && input) {
                elements(position, number);
            } else if (row_.elements(position)) {
                arguments_ += ", @_Put{block}";
                put = true;
            } else if (number >= outer_) {
                arguments_ += ", Nowhere{}";
            } else {
                one(position, number, input);
            }
        }
        if (!put) arguments_ += ", @_Put{block}";
    }

    /// The elements of an input's rows; of one that lies in memory they are read as they are.
    void elements(int position, int number) {
        const std::vector<size_t> steps = steps_for(op_, 0, row_.at, {number});
        text_.body += row_struct(op_, layout_, std::to_string(position),
                                 steps.empty() ? std::vector<int>{number} : inputs_of(op_, steps),
                                 steps, operand_text(op_, number), a_,
                                 kept_.warps || ahead_ || filled_.warps ? "@_Elem" : "",
                                 filled_.warps ? own_of(position, 8)
                                 : team_.slots ? own_of(position, team_.side)
                                 : leaves_     ? own_of(position, 8)
                                               : -1,
                                 loads(position).c_str());
        arguments_ += cat(", @_Make", position, "{block}");
    }

    /// How a row's inputs are loaded, as RowOf has it, in 16 bits where it is not as the compiler
    /// likes. Softmax of rows that a warp reads ahead by 8 bytes waits less where loads stand apart
    /// from each other; norms without a mean, of rows that a block holds, and those of rows that
    /// are copied ahead have the second cache write what they make before it gives up what others
    /// read.
    std::string loads(int position) const {
        if (limits_.one_block || limits_.major < 9 || kept_.warps || filled_.warps) return "";
        for (int k : reads(position))
            if (!is_16_bit(op_.inputs[static_cast<size_t>(k)].dtype)) return "";
        if (ahead_ && name_ == "softmax" && team_.warps == 1 && team_.side == 4)
            return ", true, Loads::here";
        const bool held = name_ == "normalize" && !row_.attrs->flag("center") && team_.warps > 1 &&
                          team_.side > 0;
        const bool lasts =
            (held || team_.slots > 0) && rows_ * row_.n >= kLastingTerms * limits_.processors;
        return lasts ? ", true, Loads::lasting" : "";
    }

    /// Of kernels that make exponentials: whether instructions are what they wait for, and whether
    /// elements are bfloat16 numbers.
    std::string many() const {
        if (norm_ || name_.ends_with("_bwd")) return "";
        const bool set = rows_ * row_.n >= kManyTerms * limits_.processors;
        return cat(
            "    static constexpr bool many = ", set ? "true" : "false", ";\n",
            "    static constexpr bool narrow = ", row_.x->dtype == DType::bf16 ? "true" : "false",
            ";\n    typedef ", exps_type(row_.x->dtype), " Exps;\n");
    }

    /// The input whose elements of 16 bits a block keeps for those of an operand, which they hold,
    /// where it can, `side` at once: the other inputs lie side by side or are one for the row. -1:
    /// it cannot.
    int own_of(int position, int side) const {
        int own = -1;
        const DType dtype = op_.operand(row_.operands[static_cast<size_t>(position)]).dtype;
        for (int k : reads(position)) {
            const View& view = op_.inputs[static_cast<size_t>(k)];
            if (!beside(view)) return -1;
            if (own < 0 && view.dtype == dtype && is_16_bit(dtype) &&
                view.strides[row_.axis] == 1 && alike(view) % side == 0 && alike(view) > 0)
                own = k;
        }
        return own;
    }
    /// Whether elements of 2 or 4 bytes lie side by side along a row or are one.
    bool beside(const View& view) const {
        const int64_t step = view.strides[row_.axis], size = dtype_size(view.dtype);
        return view.shape.rank() == row_.x->shape.rank() && (size == 2 || size == 4) &&
               (step == 0 || (step == 1 && alike(view) > 0 && alike(view) % 4 == 0));
    }
    /// How blocks have rows that they fill ahead; of no warps: they don't.
    FilledTeam filled() const {
        if (alone_)
            return own_of(0, 8) < 0 ? FilledTeam()
                                    : filled_losses(row_, element_count(row_.others), limits_);
        if ((name_ != "normalize_bwd" && !name_.ends_with("softmax_bwd")) || row_.axes > 1 ||
            a_ != "float" || row_.n % 8 != 0 || !all_beside())
            return {};
        for (int position = 0; position < row_.takes; position++)
            if (row_.elements(position) &&
                (own_of(position, 8) < 0 ||
                 op_.operand(row_.operands[static_cast<size_t>(position)]).dtype != row_.x->dtype))
                return {};
        return filled_team(row_, element_count(row_.others), limits_);
    }
    /// The results that hold elements, and what pointwise steps read on the way to them.
    std::vector<int> put_operands() const {
        std::vector<int> all = stored();
        if (!op_.body.empty())
            for (int k : read_by(steps_for(op_, 0, op_.body.size(), stored()))) all.push_back(k);
        return all;
    }
    bool all_beside() const {
        const std::vector<int> all = put_operands();
        return std::all_of(all.begin(), all.end(), [&](int k) {
            const View& view = op_.operand(k);
            return beside(view) && (k < inputs_ || view.strides[row_.axis] == 1);
        });
    }
    /// Whether what results are made with is the same for all rows.
    bool puts_same() const {
        const std::vector<int> all = put_operands();
        return std::all_of(all.begin(), all.end(), [&](int k) {
            const View& view = op_.operand(k);
            bool same = true;
            for (int axis = 0; axis < view.shape.rank(); axis++)
                same = same && (k >= inputs_ || axis == row_.axis || view.shape[axis] == 1 ||
                                view.strides[axis] == 0);
            return same;
        });
    }
    /// What a norm reads to store `side` elements, as beside_text() has it.
    int64_t beside_bytes(int side) const {
        int64_t bytes = 0, largest = 1;
        for (int k : put_operands()) {
            if (k >= inputs_) continue;
            const View& view = op_.operand(k);
            const int64_t size = dtype_size(view.dtype) * (view.strides[row_.axis] == 0 ? 1 : side);
            bytes = ceil_div(bytes, size) * size + size;
            largest = std::max(largest, size);
        }
        return ceil_div(bytes, largest) * largest;
    }
    /// A team that copies its rows ahead, of a norm of long ones; of no slots: there is none.
    Team copying() const {
        const int number = row_.operands[0];
        if ((name_ != "normalize" && name_ != "normalize_mean") || row_.axes > 1 || a_ != "float" ||
            row_.n % 4 != 0 || !is_16_bit(row_.x->dtype) ||
            (number >= inputs_ && number < outer_) || !all_beside())
            return {};
        bool narrow = true;
        for (const auto* views : {&op_.inputs, &op_.outputs})
            for (const View& view : *views)
                narrow =
                    narrow && (view.shape.rank() != row_.x->shape.rank() || is_16_bit(view.dtype) ||
                               view.strides[row_.axis] == 0 || view.shape[row_.axis] == 1);
        for (int side : {8, 4})
            if ((side == 4 || narrow) && row_.n % side == 0 && own_of(0, side) >= 0)
                return copying_team(row_, side, puts_same() ? beside_bytes(side) : 0,
                                    side == 8 && tells(), limits_);
        return {};
    }

    /// Whether rows that are copied ahead may be told_rows.cuh's: those of a norm without a mean,
    /// as they lie in memory, so many that a counter shares out most of them.
    bool tells() const {
        return name_ == "normalize" && !row_.attrs->flag("center") && puts_same() &&
               steps_for(op_, 0, row_.at, {row_.operands[0]}).empty() &&
               2 * rows_ >= kToldTurns * limits_.processors && rows_ < 1 << 30;
    }

    /// Whether rows of 16 bits are read ahead, for teams that take enough of them.
    bool ahead() const {
        if (limits_.one_block || limits_.most_warps < 32) return false;
        const bool norm = name_ == "normalize" || name_ == "normalize_mean";
        if (!norm && name_ != "softmax" && name_ != "log_softmax" && name_ != "cross_entropy")
            return false;
        const Team& team = team_;
        const int number = row_.operands[0];
        if (team.side == 0 || row_.n % team.side != 0 || a_ != "float" ||
            (number >= inputs_ && number < outer_) ||
            (norm && (team.warps > 1 || team.lanes < 32 || !puts_beside(team.side))))
            return false;
        for (int k : reads(0)) {
            const View& view = op_.inputs[static_cast<size_t>(k)];
            const int64_t step = view.strides[row_.axis];
            if (!is_16_bit(view.dtype) || (step != 0 && step != 1) ||
                (step == 1 && (alike(view) == 0 || alike(view) % team.side != 0)))
                return false;
        }
        return rows_ >= kAheadRows * teams_of(team) * ahead_resident(team) * limits_.processors;
    }
    /// Whether what a norm's results are made with is the same for all rows, and all lies beside.
    bool puts_beside(int64_t side) const {
        const std::vector<int> all = put_operands();
        return row_.axes == 1 && all_beside() && puts_same() &&
               std::all_of(all.begin(), all.end(), [&](int k) {
                   const View& view = op_.operand(k);
                   return view.strides[row_.axis] == 0 || alike(view) % side == 0;
               });
    }
    static int64_t teams_of(const Team& team) {  // of a block
        return team.warps > 1 ? 1 : kRowWarps * 32 / team.lanes;
    }
    /// The blocks of a processor that registers have room for, by the elements of a thread.
    int64_t ahead_resident(const Team& team) const {
        const int64_t each = ceil_div(row_.n, team.warps > 1 ? 32 * team.warps : team.lanes),
                      warps = each <= 8    ? 48
                              : each <= 16 ? 32
                              : each <= 24 ? 24
                                           : 16,
                      block = team.warps > 1 ? team.warps : kRowWarps;
        return std::max<int64_t>(warps / block, 1);
    }
    /// As many, or more where these still take many rows each, so that none waits long for the
    /// last; of rows of exponentials in a warp each, few to a warp, so that others are at theirs
    /// meanwhile.
    int64_t ahead_blocks(const Team& team) const {
        constexpr int64_t most = 4;
        const int64_t all = ahead_resident(team) * limits_.processors,
                      few = kAheadRows * teams_of(team);
        if (!norm_ && team.warps == 1) return std::max(all, ceil_div(rows_, few));
        return rows_ >= 2 * most * few * all ? most * all : all;
    }

    /// Whether blocks take their rows by a counter: those of a softmax alone, long enough for the
    /// counter to keep up, where all warps have as many whole leaves, so that a processor has
    /// registers for kCounterWarps.
    bool by_counter(const Team& team) const {
        return ahead_ && name_ == "softmax" && op_.body.empty() && team.warps > 1 &&
               row_.n >= kCounterRow && row_.n % (kTreeLeaf * team.warps) == 0 && rows_ < 1 << 30;
    }

    /// Whether blocks take few rows, so that they end and begin at different times: of a softmax
    /// that is read ahead, where a warp has several rows and a lane two pieces of its own.
    bool is_brief(const Team& team) const {
        return ahead_ && name_ == "softmax" && team.side == 8 && row_.n <= kTreeLanes &&
               row_.n > team.side * team.lanes;
    }

    /// An operand of one number a row.
    void one(int position, int number, bool input) {
        const std::string at = cat(pointer(number), "[@_In", number, "::at(r)]");
        text_.body += cat("struct @_One", position, " {\n    const @_Block& block;\n");
        if (input)
            text_.body +=
                cat("    __device__ __forceinline__ auto operator()(int64_t r) const {\n"
                    "        return widen(",
                    at, ");\n    }\n};\n");
        else
            text_.body += cat("    __device__ __forceinline__ void operator()(int64_t r, ", a_,
                              " v) const {\n        ", at, " = narrow<",
                              cuda_type(op_.operand(number).dtype), ">(v);\n    }\n};\n");
        arguments_ += cat(", @_One", position, "{block}");
    }

    /// The op's results that hold elements.
    std::vector<int> stored() const {
        std::vector<int> all;
        for (int k = inputs_; k < outer_; k++) {
            const auto at = std::find(row_.operands.begin() + row_.takes, row_.operands.end(), k);
            if (at == row_.operands.end() ||
                row_.elements(static_cast<int>(at - row_.operands.begin())))
                all.push_back(k);
        }
        return all;
    }

    /// Whether what the row op makes is stored as it is, or rounded to 16 bits.
    bool stores_directly() const {
        if (op_.body.empty()) return true;
        const size_t last = op_.body.size() - 1;
        if (!loss_region(op_))
            return row_.def->name == "normalize_bwd" && last == row_.at && outer_ == inputs_ + 1;
        const size_t made = row_.at + 1;
        return last == made || (last == made + 1 && op_.body[last].def->name == "cast" &&
                                is_16_bit(op_.operand(op_.body[last].outputs[0]).dtype));
    }

    /// The inputs that pointwise steps read.
    std::vector<int> read_by(const std::vector<size_t>& steps) const {
        std::vector<int> read;
        for (size_t i : steps)
            if (op_.body[i].def->pointwise)
                for (int k : inputs_of(op_, {i}))
                    if (std::find(read.begin(), read.end(), k) == read.end()) read.push_back(k);
        return read;
    }

    /// A field of @_Put::Row that points at row r of an operand; how load_some and store_some are
    /// told what lies there.
    std::string field(int number, const std::string& name) {
        const char* type = cuda_type(op_.operand(number).dtype);
        if (is_one(number)) {
            fields_ += cat("        ", type, " ", name, ";\n");
            begins_ += cat(", ", pointer(number), "[@_In", number, "::at(r)]");
        } else {
            fields_ += cat("        ", number < inputs_ ? "const " : "", type, "* ", name, ";\n");
            begins_ += cat(", ", pointer(number), " + @_In", number, "::at(r)");
        }
        return cat("<V, @_Elem", number, ", ", type);
    }
    /// Whether an operand of functions of a loss's gradient is one number for a row, which is read
    /// once: stores of the gradient might change it, for all that a compiler knows.
    bool is_one(int number) const {
        return number < inputs_ && op_.operand(number).strides[row_.axis] == 0 && loss_region(op_);
    }
    /// Where @_Put::Row has operand `number`.
    std::string place_of(int number) const { return cat(is_one(number) ? "&x" : "x", number); }

    /// Several elements of result y<k>, stored at once as they come.
    std::string across(int k) const {
        return cat("        template <int V>\n        __device__ __forceinline__ bool together() ",
                   "const {\n            return aligned_for<V>(y", k, ");\n        }\n",
                   across_head(), "            store_", kept_.warps ? "across" : "beside",
                   "<V, Together>(y", k, " + i, v);\n        }\n");
    }
    std::string across_head() const {
        return cat("        template <int V, bool Together>\n        __device__ __forceinline__ ",
                   "void across(int64_t i, const ", a_, " (&v)[V]) const {\n");
    }

    /// What is left to do with element i of row r of the result: @_Put{block}(r)(i, v).
    void put() {
        const std::vector<int> results = stored();
        const bool direct = stores_directly();
        const std::vector<size_t> steps =
            direct ? std::vector<size_t>() : steps_for(op_, 0, op_.body.size(), results);
        const std::vector<int> read = read_by(steps);
        std::string before;
        const std::string formula = !direct ? body_formula(op_, layout_, before, steps)
                                    : results.empty()
                                        ? ""
                                        : cat("r", results[0] - inputs_, "[j] = v[j];");
        const bool lasting = loads(0).ends_with("lasting");
        const auto some = [&](bool pairs) {
            const std::string type = pairs ? "            Two<" : "            Wide<",
                              count = pairs ? "[V / 2];\n" : "[V];\n",
                              name = pairs ? "_pairs" : "_some";
            std::string load = before, store;
            for (int k : read)
                load +=
                    cat(type, cuda_type(op_.operand(k).dtype), "> a", k, count, "            load",
                        name, field(k, cat("x", k)), pairs && lasting ? ", true>(a" : ">(a", k,
                        ", ", place_of(k), ", i);\n");
            for (int number : results) {
                const int k = number - inputs_;
                load += cat(type, cuda_type(op_.operand(number).dtype), "> r", k, count);
                store += cat("            store", name, field(number, cat("y", k)), ">(y", k, ", r",
                             k, ", i);\n");
            }
            return cat(load, "#pragma unroll\n            for (int j = 0; j < V",
                       pairs ? " / 2" : "", "; j++) {\n            ", formula, "\n            }\n",
                       store);
        };
        std::string text = some(false);
        if (!direct && in_pairs(read, results)) {
            fields_ = begins_ = "";
            const char* e = cuda_type(row_.x->dtype);
            text =
                cat("            if constexpr (V % 2 == 0) {\n            const auto& all = v;\n"
                    "            {\n            Two<",
                    e, "> v[V / 2];\n            Words<", e, ", V>::of(all).twos(v);\n", some(true),
                    "            }\n", "            } else {\n", text, "            }\n");
        }
        const bool whole = filled_.warps || (ahead_ && norm_);
        spans_ = direct && !whole && results.size() == 1 && row_.axes == 1 &&
                 op_.operand(results[0]).strides[row_.axis] == 1 &&
                 is_16_bit(op_.operand(results[0]).dtype);
        if (spans_ || (kept_.warps && direct)) fields_ += across(results[0] - inputs_);
        if (whole || (kept_.warps && !direct))
            fields_ += beside_text(read, results, before, formula);
        if (kept_.warps && !direct)
            fields_ += cat(across_head(), "            finish<V, Together>(i, v, ",
                           "beside<V, Together>(i));\n        }\n");
        put_struct(!results.empty(), text);
    }
    void put_struct(bool stores, const std::string& some) {
        const std::string head = "        __device__ __forceinline__ void ";
        text_.body +=
            cat("struct @_Put {\n    static constexpr bool stores = ", stores ? "true" : "false",
                ", same = ", norm_ && puts_same() ? "true" : "false",
                ";\n    const @_Block& block;\n    struct Row {\n        const @_Block& block;\n",
                "        static constexpr bool spans = ", spans_ ? "true" : "false", ";\n", fields_,
                "        template <int V>\n", head, "some(int64_t i, const ", a_,
                " (&v)[V]) const {\n", some, "        }\n", head, "operator()(int64_t i, ", a_,
                " total) const {\n            const ", a_,
                " v[1] = {total};\n            some(i, v);\n        }\n    };\n    __device__ "
                "__forceinline__ Row operator()(int64_t r) const {\n        return {block",
                begins_, "};\n    }\n};\n");
    }

    /// The call of a kernel, whose template arguments end with ", ".
    void call(const std::string& kernel, const std::string& own, const std::string& number = "") {
        text_.body +=
            cat("    ", kernel, "<", a_, ", ", own, "@_Shape>(grid", arguments_, number, ");\n}\n");
    }

    /// Whether all steps that make the results of elements are sums and products of 16 bits, two in
    /// an instruction; of what is made again for both, those before the row op, too.
    bool in_pairs(const std::vector<int>& read, const std::vector<int>& results) const {
        if (op_.body.empty() || !is_16_bit(row_.x->dtype) || limits_.major < 9) return false;
        for (const auto* all : {&read, &results})
            for (int k : *all)
                if (op_.operand(k).dtype != row_.x->dtype) return false;
        static const std::set<std::string> names = {"add", "bias_add", "sub", "mul"};
        for (size_t i : steps_for(op_, 0, op_.body.size(), results))
            if (op_.body[i].def->pointwise &&
                (!names.contains(op_.body[i].def->name) ||
                 op_.operand(op_.body[i].outputs[0]).dtype != row_.x->dtype))
                return false;
        return true;
    }
    /// What blocks that fill or read rows ahead take of @_Put: reads of some elements, then stores.
    std::string beside_text(const std::vector<int>& read, const std::vector<int>& results,
                            const std::string& before, const std::string& formula) const {
        std::string some, together, loads, opens, stores;
        const bool pairs = in_pairs(read, results);
        for (int k : read) {
            const char* e = cuda_type(op_.operand(k).dtype);
            const std::string step = cat("@_Elem", k, "::step"),
                              type = cat("Stored<", e, ", ", step, " == 0 ? 1 : V>");
            some += cat("            ", type, " x", k, ";\n");
            together += cat(" && (", step, " == 0 || aligned_for<V>(", place_of(k), "))");
            loads += cat(loads.empty() ? "" : ", ", type, "::template load<Together>(", place_of(k),
                         " + @_Elem", k, "::at(i))");
            opens += pairs ? cat("            Two<", e, "> a", k, "[V / 2];\n            some.x", k,
                                 ".twos(a", k, ");\n")
                           : cat("            Wide<", e, "> a", k, "[V];\n#pragma unroll\n",
                                 "            for (int j = 0; j < V; j++) a", k,
                                 "[j] = widen(some.x", k, "[", step, " == 0 ? 0 : j]);\n");
        }
        for (int number : results) {
            const int k = number - inputs_;
            together += cat(" && aligned_for<V>(y", k, ")");
            const char* e = cuda_type(op_.operand(number).dtype);
            opens += cat("            ", pairs ? "Two<" : "Wide<", e, "> r", k,
                         pairs ? "[V / 2];\n" : "[V];\n");
            stores += cat("            store_",
                          kept_.warps ? "across"
                          : pairs     ? "twos"
                                      : "beside",
                          "<V, Together>(y", k, " + i, r", k, ");\n");
        }
        if (pairs)
            opens =
                cat("            Two<", cuda_type(row_.x->dtype), "> v[V / 2];\n            Words<",
                    cuda_type(row_.x->dtype), ", V>::of(all).twos(v);\n", opens);
        const std::string head = "        __device__ __forceinline__ ";
        return cat("        template <int V>\n        struct Some {\n", some,
                   "        };\n        template <int V>\n", head,
                   "bool together() const {\n            return true", together,
                   ";\n        }\n        template <int V, bool Together>\n", head,
                   "Some<V> beside(int64_t i) const {\n            return {", loads,
                   "};\n        }\n        template <int V, bool Together>\n", head,
                   "void finish(int64_t i, const ", a_, " (&", pairs ? "all" : "v",
                   ")[V], const Some<V>& some) const {\n", before, opens,
                   "#pragma unroll\n            for (int j = 0; j < V", pairs ? " / 2" : "",
                   "; j++) {\n            ", formula, "\n            }\n", stores, "        }\n");
    }

    /// The gradient of a loss's long rows: each thread has elements of its own.
    void long_loss_gradient() {
        const int64_t lot = row_.n < kRowWarps * kTreeLeaf ? 2 : 4;
        const int64_t threads = rows_ * ceil_div(row_.n, kTreeLanes * lot) * 32;
        text_.blocks = std::min<int64_t>((threads + 255) / 256, int64_t{limits_.processors} * 16);
        call("cross_entropy_grad", cat(lot, ", "), number_of(row_.at));
    }

    /// Softmax, or a loss with its gradient, in blocks that keep rows.
    void kept_rows() {
        text_.threads = static_cast<int>(32 * kept_.warps);
        text_.cluster = kept_.blocks;
        text_.resident = kept_.resident;
        const int64_t teams = int64_t{limits_.processors} * kept_.resident / kept_.blocks;
        text_.blocks = kept_.blocks * std::min(rows_, teams);
        text_.shared = static_cast<uint32_t>(kept_.bytes);
        if (name_ == "softmax")
            call("softmax_kept", cat(kept_.type, row_.attrs->flag("masked") ? "true, " : "false, "),
                 order());
        else
            call("cross_entropy_kept", kept_.type, cat(number_of(row_.at + 1), order()));
    }
    /// How blocks that go on to further rows come by them: by a counter, as long as it counts them.
    std::string order() {
        if (rows_ >= 1 << 30) return ", InTurn{}";
        text_.counters = 1;
        return cat(", ByCounter{block.template ptr<uint32_t>(", layout_.tail, ")}");
    }

    /// Gradients in blocks that fill rows ahead.
    void filled_rows() {
        text_.threads = static_cast<int>(32 * filled_.warps);
        text_.resident = filled_.resident;
        text_.blocks = std::min<int64_t>(rows_, int64_t{limits_.processors} * filled_.resident);
        text_.shared = static_cast<uint32_t>(filled_.bytes);
        if (alone_) {
            text_.counters = 1;
            return call("cross_entropy_filled",
                        cat(filled_.warps, ", ", cuda_type(row_.x->dtype), ", "),
                        cat(", block.template ptr<uint32_t>(", layout_.tail, ")"));
        }
        const bool log = name_.starts_with("log_"), set = norm_ ? row_.attrs->flag("center") : log;
        call((log ? name_.substr(4) : name_) + "_filled",
             cat(filled_.warps, ", ", cuda_type(row_.x->dtype), set ? ", true, " : ", false, "),
             order());
    }
    /// Where a norm's mean goes, and its number.
    std::string last_of_norm() const {
        return (name_ == "normalize_mean" ? "" : ", Nowhere{}") + number_of(row_.at);
    }

    /// The lanes that have a row whose losses' leaves blocks add, in so many pieces; 0: it has
    /// another number of them.
    int leaf_lanes() const {
        for (int lanes : kLeafLanes)
            if (row_.n == 8 * kLeafPieces * lanes) return lanes;
        return 0;
    }
    /// Of shared memory: the next rows, their barriers, and the losses of two leaves.
    int64_t leaf_bytes() const {
        return kRowWarps * (2 * kWarp / leaf_lanes() * row_.n + 8) + 2 * 4 * kTreeLeaf;
    }
    void leaf_rows() {
        text_.threads = static_cast<int>(32 * kRowWarps);
        text_.resident = static_cast<int>(kLeafBlocks);
        text_.blocks = std::min(rows_ / kTreeLeaf, kLeafBlocks * limits_.processors);
        text_.shared = static_cast<uint32_t>(leaf_bytes());
        text_.workspace = static_cast<uint64_t>(4 * (rows_ / kTreeLeaf));
        call("cross_entropy_leaves",
             cat(team_.type, ", ", text_.threads, ", ", cuda_type(row_.x->dtype), ", "),
             ", block.template ptr<float>(16)");
    }

    /// A team of lanes or warps a row.
    void rows() {
        if (leaves_) return leaf_rows();
        const Team& team = team_;
        const int64_t units = team.units(rows_);
        const bool brief = is_brief(team);
        const int64_t warps = brief ? kBriefWarps : kRowWarps;
        text_.threads = team.warps > 1
                            ? 32 * team.warps
                            : static_cast<int>(32 * std::clamp<int64_t>(units, 1, warps));
        text_.blocks = team.warps > 1 ? rows_ : ceil_div(units, warps);
        text_.shared = static_cast<uint32_t>(team.results *
                                             dtype_size(a_ == "double" ? DType::f64 : DType::f32));
        if (team.slots > 0) {
            text_.threads = 32 * team.warps / team.blocks;
            text_.cluster = team.blocks;
            const int64_t clusters = int64_t{limits_.processors} * team.resident / team.blocks;
            text_.blocks = team.blocks * std::min(rows_, clusters);
        } else if (brief)
            text_.blocks = ceil_div(text_.blocks, kBriefRows);
        else if (ahead_)
            text_.blocks = std::min(text_.blocks, ahead_blocks(team));
        if (ahead_ && norm_) text_.resident = static_cast<int>(ahead_resident(team));
        if (by_counter(team)) {
            text_.resident = static_cast<int>(kCounterWarps / team.warps);
            text_.blocks = std::min(rows_, text_.resident * int64_t{limits_.processors});
        }
        if (team.kept) {
            text_.shared = static_cast<uint32_t>(team.kept);
            text_.resident = team.resident;
            if (team.slots == 0)
                text_.blocks =
                    std::min<int64_t>(rows_, int64_t{limits_.processors} * team.resident);
        }
        const std::string type = team.type + ", ";
        if (team.tells) return call("normalize_told", type, last_of_norm() + order());
        if (loss_region(op_))
            return call("cross_entropy_with_grad", cat(type, ahead_ ? text_.threads : 0, ", "),
                        number_of(row_.at + 1));
        if (alone_ && ahead_ && team.warps == 1) {
            const bool late = row_.n > kTreeLeaf;
            if (late) {
                text_.resident = row_.n <= 24 * kWarp ? 6 : 5;
                text_.blocks =
                    std::min(ceil_div(units, warps),
                             std::max(text_.blocks, text_.resident * int64_t{limits_.processors}));
            }
            return call("cross_entropy_ahead",
                        cat(type, text_.threads, ", ", cuda_type(row_.x->dtype),
                            late ? ", true, " : ", false, "));
        }
        if (name_ == "cross_entropy_grad")
            return call("cross_entropy_grad_rows", type, number_of(row_.at));
        const bool softmax = !norm_ && name_ != "cross_entropy", log = name_.starts_with("log_");
        const auto flag = [](bool set) { return set ? "true, " : "false, "; };
        std::string flags;
        const std::string ahead = cat(ahead_ ? text_.threads : 0, ", ");
        if (softmax) flags += flag(log);
        if (softmax && !name_.ends_with("_bwd"))
            flags += flag(!log && row_.attrs->flag("masked")) + ahead;
        if (name_ == "cross_entropy") flags += ahead;
        if (norm_) flags += flag(row_.attrs->flag("center"));
        const bool back = name_.ends_with("_bwd");
        const std::string kernel = norm_ ? back ? "normalize_bwd" : "normalize"
                                   : log ? name_.substr(4)
                                         : name_;
        if (norm_ && ahead_) flags += ahead;
        const std::string end = norm_ && !back ? last_of_norm() : by_counter(team) ? order() : "";
        call(kernel + (norm_ && ahead_ ? "_ahead" : "_rows"), type + flags, end);
    }

    const LoweredOp& op_;
    const Limits& limits_;
    const RowOp row_;
    const std::string& name_;
    const std::string a_;  // the type of terms
    const BlockLayout layout_;
    const bool leaves_;
    const int inputs_, outer_;  // how many inputs, and inputs and results
    const bool norm_;
    const KeptTeam kept_;
    const bool alone_;
    FilledTeam filled_;
    const int64_t rows_;
    Team team_;
    bool ahead_;                   // rows are read while their team is at the one before
    std::string arguments_;        // of the call
    std::string fields_, begins_;  // of @_Put::Row, and what they are made from
    bool spans_ = false;           // it stores neighbours of its one result as they come
    KernelText text_;
};

}  // namespace

std::string row_parts(const LoweredOp& op, const Limits& limits) {
    return RowText(op, limits).parts();
}

KernelText row_text(const LoweredOp& op, const Limits& limits) {
    return RowText(op, limits).text();
}

bool loss_chain_fits(const LoweredOp& chain, const Limits& limits) {
    if (limits.one_block || !loss_chain(chain)) return false;
    const LoweredOp& loss = chain.members[0];
    if (RowText(loss, limits).adds_leaves()) return true;
    if (element_count(row_op_of(loss).others) > kLossRows) return false;
    return row_text(loss, limits).blocks <= kLossBlocks * limits.processors;
}

KernelText loss_chain_text(const LoweredOp& chain, const Limits& limits) {
    check(loss_chain_fits(chain, limits), "cuda: losses and a mean of another form");
    const LoweredOp &loss = chain.members[0], &mean = chain.members[1];
    const BlockLayout layout(chain), own(loss), last(mean);
    const auto losses = static_cast<size_t>(row_losses(loss));
    const View& rows = loss.outputs[losses];
    const char* a = wide_type(rows.dtype);
    const bool leaves = RowText(loss, limits).adds_leaves();
    KernelText text = RowText(loss, limits, leaves).text(), part = text, total;
    total.name = "mean";
    total.counters = 1;
    text.counters = 0;  // those of its parts, as is the workspace
    text.workspace = 0;
    text.name += "_mean";
    text.shared = std::max(text.shared, static_cast<uint32_t>(ceil_div(rows.shape[0], kTreeLeaf) *
                                                              dtype_size(rows.dtype)));
    const std::string at_loss = cat("block.part<", own.bytes, ">(", layout.parts[0], ")"),
                      at_mean = cat("block.part<", last.bytes, ">(", layout.parts[1], ")");
    const std::string add =
        leaves ? cat("add_leaves<", a, ", ", rows.shape[0] / kTreeLeaf, ">(grid, ", at_loss,
                     ".ptr<const ", a, ">(16), ")
               : cat("add_losses<", a, ", ", rows.shape[0], ">(grid, ", at_loss, ".ptr<const ", a,
                     ">(", own.operand[loss.inputs.size() + losses], "), ");
    text.body = replaced(block_type(own.bytes) + part.body, "@", "@_0") +
                replaced(block_type(last.bytes) + total_text(mean, last), "@", "@_1") +
                body_head() +
                cat("    @_0_body(", at_loss, ", grid);\n    ", add, at_mean, ".ptr<uint32_t>(",
                    last.tail, "), @_1_Put{", at_mean, "});\n}\n");
    part.body = total.body = "";
    text.parts = {part, total};
    return text;
}

}  // namespace aicf::cuda
