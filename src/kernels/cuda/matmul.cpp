// Texts of products, by the kernels that gemm.h ranks.
#include <algorithm>
#include <array>
#include <climits>
#include <utility>

#include "core/graph/region.h"
#include "kernels/cuda/codegen.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/tilings.h"

namespace aicf::cuda {

std::string rounded_type(const std::string& math, DType dtype) {
    return math == "tf32"    ? "Tf32"
           : math == "fp16"  ? "Half"
           : math == "bf16"  ? "Brain"
           : math == "fp32x" ? "scalar::Limbs"
                             : cuda_type(dtype);
}

/// Of a product in one block, rows and columns that a thread makes: the most reuse with which every
/// thread of 8 warps has some. Of long sums two rows though fewer threads have any: loads take
/// longer than multiplications.
static std::array<int, 2> thread_tile(int64_t batches, int64_t m, int64_t n, int64_t k) {
    constexpr int64_t kLong = 32;
    std::array<int, 2> best = {1, 1};
    for (int rows : {1, 2, 4})
        for (int columns : {1, 2, 4})
            if (m % rows == 0 && n % columns == 0 &&
                batches * m * n >= int64_t{256} * rows * columns &&
                rows * columns * (best[0] + best[1]) > best[0] * best[1] * (rows + columns))
                best = {rows, columns};
    if (best == std::array{1, 1} && m % 2 == 0 && k >= kLong) best = {2, 1};
    return best;
}

/// Cycles that one processor takes for a product by tiles of rows x columns: each four terms of k
/// are 16 bytes a row, which all threads of a warp read alike, and as many a column, which they do
/// not; a multiplication is an instruction of a quarter of the processor. Few warps hide neither
/// behind the other, so they add up, and 40 cycles are waited, as turns of recurrent layers of 32
/// to 128 features show on an H200.
static double tile_cycles(int64_t batches, int64_t m, int64_t n, int64_t k, int rows, int columns) {
    const int64_t warps = ceil_div(batches * (m / rows) * (n / columns), 32);
    const double loads = static_cast<double>(warps) * (rows + 4 * columns),
                 sums = static_cast<double>(ceil_div(warps, 4)) * 4 * rows * columns;
    constexpr double kWait = 40, kStart = 200;
    return kStart + static_cast<double>(ceil_div(k, 4)) * (loads + sums + kWait);
}

/// The same for a turn of a loop: the tile that takes the fewest cycles.
static std::array<int, 2> turn_tile(int64_t batches, int64_t m, int64_t n, int64_t k) {
    constexpr std::array<int, 2> kTiles[] = {{1, 1}, {1, 2}, {2, 1}, {2, 2}, {4, 1},
                                             {4, 2}, {2, 4}, {4, 4}, {8, 2}};
    std::array<int, 2> best = {1, 1};
    const auto cycles = [&](const std::array<int, 2>& tile) {
        return tile_cycles(batches, m, n, k, tile[0], tile[1]);
    };
    for (const auto& tile : kTiles)
        if (m % tile[0] == 0 && n % tile[1] == 0 && cycles(tile) < cycles(best)) best = tile;
    return best;
}

double turn_cycles(const LoweredOp& op) {
    const Gemm gemm(op);
    const std::array<int, 2> tile = turn_tile(gemm.batches, gemm.m, gemm.n, gemm.k);
    return tile_cycles(gemm.batches, gemm.m, gemm.n, gemm.k, tile[0], tile[1]) *
           (gemm.size == 8 ? 2 : 1);
}

/// Bytes of a step of k of an operand in shared memory, by near_run.cuh: `side` lines of k, or
/// lines across it.
static int64_t step_bytes(const Tiling& t, int64_t element, int side, int64_t step) {
    return element * (step == 1 ? t.k * (side + (element == 4 ? 4 : 8)) : side * (t.k + 8));
}

LinkRoom link_room(const LoweredOp& op) {
    const Gemm gemm(op);
    const Tiling& t = kChainTile;
    const auto element = static_cast<int64_t>(dtype_size(gemm.a.dtype));
    const int64_t steps = ceil_div(gemm.k, t.k);
    return {steps * step_bytes(t, element, t.part_m, gemm.a.strides[0]),
            steps * step_bytes(t, element, t.n, gemm.b.strides[1])};
}

bool holds_rows(const LoweredOp& op) {
    const View& a = op.inputs[0];
    return a.shape[1] % kChainTile.k == 0 && a.strides[1] == 1 && a.strides[0] != 1;
}

std::string inner_cell(const char* type, const char* how) {
    return cat("reinterpret_cast<", how, type, "*>(this->inner) + inner_place(row, col)");
}

std::string squares_store(size_t output) {
    return cat("        leave_squares(reinterpret_cast<float*>(this->inner), row, col, r", output,
               ");\n");
}

namespace {

std::string number_text(const char* name, int64_t value) {
    return cat("    static constexpr int64_t ", name, " = ", value, ";\n");
}
std::string flag_text(const char* name, bool value) {
    return cat("    static constexpr bool ", name, " = ", value ? "true" : "false", ";\n");
}

/// What becomes of V neighbours of a row of a product, which are stored or taken through a body.
struct PutText {
    std::string read, read_members;       // what is read before, where that is so: of an element
    std::string numbers, number_members;  // and of all of them
    std::string load, store;
};

/// The kernel of a product: @_Shape says what it multiplies, @_Put what follows, and a function of
/// one of the sources does the rest.
class ProductText : Gemm {
  public:
    ProductText(const LoweredOp& of, const Limits& limits)
        : Gemm(of),
          limits_(limits),
          layout_(of),
          wide_(wide_type(c.dtype)),
          tile_(limits.turns ? turn_tile(batches, m, n, k) : thread_tile(batches, m, n, k)) {
        text_.includes = {"matmul.cuh"};
        text_.name =
            cat(kernel_stem(op), "_", dtype_abbrev(a.dtype), "_", math == "fp32" ? "" : math + "_");
    }

    KernelText text() {
        if (!limits_.one_block && !limits_.chain) choose();
        add_shape();
        add_put();
        if (limits_.one_block) {
            add_threads();
        } else if (limits_.chain) {
            add_link();
        } else if (!choice_) {
            add_small();
        } else {
            text_.name += name_of(*choice_);
            add_chosen();
        }
        return std::move(text_);
    }

  private:
    /// The candidate that the op names, or the first.
    void choose() {
        choices_ = choices(limits_);
        check_order(limits_, !choices_.empty());
        if (choices_.empty()) return;
        const auto named = [&](const Choice& one) { return name_of(one) == op.candidate; };
        auto found = op.candidate.empty() ? choices_.begin()
                                          : std::find_if(choices_.begin(), choices_.end(), named);
        // One that is faster alone may be none that a member can have.
        if (found == choices_.end() && limits_.most_warps < 32) found = choices_.begin();
        check(found != choices_.end(), "cuda: a product's kernel is none of its candidates");
        choice_ = &*found;
    }

    void add_chosen() {
        const Choice& choice = *choice_;
        if (choice.thin)
            add_thin();
        else if (choice.boxes)
            add_near_boxes();
        else if (choice.groups)
            tensor ? add_near_mma() : add_near();
        else if (choice.tiling->pair)
            add_roles();
        else if (choice.pairs)
            add_pairs();
        else
            add_tiles();
    }

    // ---- what it multiplies, and what follows ---------------------------------------------------

    void add_place(const char* name, const View& view) {
        Dims shape, strides;
        for (int d = 0; d < rank - 2; d++) {
            shape.push(view.shape[d]);
            strides.push(view.strides[d]);
        }
        text_.body += place_struct(name, shape, strides);
    }

    void add_shape() {
        add_place("@_A", a);
        add_place("@_B", b);
        text_.body += cat(
            "struct @_Shape {\n    typedef @_A A;\n    typedef @_B B;\n", number_text("m", m),
            number_text("n", n), number_text("k", k), number_text("batches", batches),
            number_text("chunk", chunk), number_text("a_row", a.strides[rank - 2]),
            number_text("a_col", a.strides[rank - 1]), number_text("b_row", b.strides[rank - 2]),
            number_text("b_col", b.strides[rank - 1]), "    typedef ", rounded_type(math, a.dtype),
            " As;\n};\n");
    }

    bool is_inner(size_t at) const { return limits_.inner == static_cast<int>(at); }

    /// An update's operands are many: those of several places are read before any is stored. What
    /// follows a product in small tiles is read before it, too.
    bool reads_before() const { return updates_behind(op) || (choice_ && choice_->groups > 0); }

    /// A pointer to where the row's neighbours lie, whose places are a struct from then on.
    std::string at_row(const std::string& name, const View& view) {
        add_place(("@_" + name).c_str(), view);
        return cat(name, " + @_", name, "::at(batch) + row * int64_t(", view.strides[rank - 2],
                   ") + col * int64_t(", view.strides[rank - 1], ")");
    }

    /// What is known of a row's neighbours in one block.
    std::string known(const View& view) const {
        if (!limits_.one_block) return "Row::nothing";
        bool aligned = view.strides[rank - 1] == 1 && view.offset % tile_[1] == 0;
        for (int d = 0; d < rank - 1; d++) aligned &= view.strides[d] % tile_[1] == 0;
        return aligned ? "Row::aligned" : "Row::whole";
    }

    void add_operand(PutText& put, size_t x) {
        const bool reads = reads_before();
        const View& view = op.inputs[x];
        const char* type = cuda_type(view.dtype);
        const std::string pointer = cat("        const auto* x", x, " = ",
                                        is_inner(x) ? inner_cell(type, "const ")
                                                    : cat("block.template ptr<const ", type, ">(",
                                                          layout_.operand[x], ")"),
                                        ";\n"),
                          declared = cat("        Wide<", type, "> a", x, "[V];\n");
        if (view.shape.rank() == 0) {
            if (!reads) {
                put.load += pointer + declared +
                            cat("        for (auto& a : a", x, ") a = widen(*x", x, ");\n");
                return;
            }
            put.numbers += pointer + cat("        of.a", x, " = widen(*x", x, ");\n");
            put.number_members += cat("        Wide<", type, "> a", x, ";\n");
            put.load += declared + cat("        for (auto& a : a", x, ") a = of.a", x, ";\n");
            return;
        }
        const std::string loaded =
            cat("        load_row", reads ? "_far" : "", "<V, ", view.strides[rank - 1], ", ", type,
                reads ? "" : cat(", ", known(view)), ">(", reads ? "to." : "", "a", x, ", ",
                is_inner(x) ? cat("x", x) : at_row(cat("x", x), view), ", left);\n");
        if (reads) {
            put.read += pointer + loaded;
            put.read_members += declared;
            put.load += cat("        const auto& a", x, " = from.a", x, ";\n");
        } else {
            put.load += pointer + declared + loaded;
        }
    }

    void add_result(PutText& put, size_t y) {
        const size_t at = op.inputs.size() + y;
        const View& view = op.outputs[y];
        const char* type = cuda_type(view.dtype);
        if (is_inner(at) && limits_.squares) {
            put.load += cat("        float r", y, "[V];\n");
            put.store += squares_store(y);
            return;
        }
        put.load +=
            cat("        auto* y", y, " = ",
                is_inner(at) ? inner_cell(type)
                             : cat("block.template ptr<", type, ">(", layout_.operand[at], ")"),
                ";\n        Wide<", type, "> r", y, "[V];\n");
        put.store +=
            cat("        store_row<V, ", view.strides[rank - 1], ", ", known(view), ">(",
                is_inner(at) ? cat("y", y) : at_row(cat("y", y), view), ", r", y, ", left);\n");
    }

    void add_put() {
        PutText put;
        for (size_t x = 2; x < op.inputs.size(); x++) add_operand(put, x);
        for (size_t y = 0; y < op.outputs.size(); y++) add_result(put, y);
        const bool updates = updates_behind(op), reads = reads_before();
        // Beside tensor cores a thread has no registers to interleave elements of Adam, where
        // 784-512-512 gains nothing by it; in fp32 its step with 128 rows takes an H100 35.6 us
        // for 36.2.
        constexpr int64_t enough = 1 << 14;
        const bool interleaves = updates && !tensor && m * n >= enough;
        const std::string body =
            op.body.empty() ? "r0[j] = v[j];"
                            : body_formula(op, layout_, put.load, steps_between(0, op.body.size()));
        const std::string head = "(int64_t batch, int64_t row, int64_t col, const T (&v)[V]",
                          left = cat("        const int64_t left = ", n, " - col;\n"),
                          inlined = "    __device__ __forceinline__ void ";
        text_.body +=
            cat("struct @_Put {\n    const @_Block& block;\n",
                limits_.inner < 0 ? "" : "    char* inner;\n", flag_text("updates", updates));
        if (!limits_.one_block && !limits_.chain)
            for (const auto& [name, bit] :
                 {std::pair{"a", kLateA}, {"b", kLateB}, {"rest", kLateRest}})
                text_.body +=
                    cat("    __device__ __forceinline__ bool ", name, "_is_late() const { return ",
                        "block.word(", layout_.tail + int(kLateAt), ") & ", bit, "; }\n");
        if (reads)
            text_.body +=
                cat("    struct Numbers {\n", put.number_members, "    };\n    template <int V>\n",
                    "    struct Read {\n", put.read_members,
                    "    };\n    __device__ __forceinline__ Numbers ",
                    "numbers() const {\n        Numbers of;\n", put.numbers,
                    "        return of;\n    }\n", "    template <int V>\n", inlined,
                    "read(Read<V>& to, int64_t batch, int64_t row, int64_t col) const {\n", left,
                    put.read, "    }\n    template <int V, class T>\n", inlined, "operator()", head,
                    ") const {\n        Read<V> from;\n        read(from, batch, row, col);\n",
                    "        (*this)(batch, row, col, v, from, numbers());\n    }\n");
        text_.body += cat(
            "    template <int V, class T>\n", inlined, "operator()", head,
            reads ? ", const Read<V>& from, const Numbers& of" : "", ") const {\n", left, put.load,
            interleaves ? each_update("V", body)
                        : cat("#pragma unroll\n        for (int j = 0; j < V; j++) {\n"
                              "            ",
                              body, "\n        }\n"),
            put.store, "    }\n};\n");
    }

    // ---- without tiles --------------------------------------------------------------------------

    void add_threads() {
        const auto [tile_rows, tile_columns] = tile_;
        text_.name += "threads";
        text_.threads = 32;
        text_.blocks = (batches * (m / tile_rows) * (n / tile_columns) + 31) / 32;
        const std::string shape = cat(tile_rows, ", ", tile_columns, ", @_Shape>(");
        text_.ahead = text_.blocks <= limits_.team;
        if (text_.ahead)
            text_.body +=
                cat("typedef ThreadTile @_Ahead;\n", ahead_head(), "    return thread_tile_ahead<",
                    shape, "grid);\n}\n", ahead_body_head(), pointers_of(op, layout_),
                    "    if (ahead.any) gemm_thread<", wide_, ", ", shape,
                    "ahead, @_Put{block}, x0, x1);\n}\n");
        else
            text_.body += cat(body_head(op, layout_), "    gemm_threads<", wide_, ", ", shape,
                              "grid, @_Put{block}, x0, x1);\n}\n");
    }

    void add_small() {
        const int64_t chunks = std::max<int64_t>(ceil_div(k, chunk), 1);
        int64_t slices = 1;
        while (slices < 8 && slices < chunks) slices *= 2;
        text_.name += "small";
        text_.threads = static_cast<int>(32 * slices);
        text_.blocks = (batches * m * n + 31) / 32;
        text_.body += cat(body_head(op, layout_), "    gemm_small<", wide_, ", ", slices,
                          ", @_Shape>(grid, @_Put{block}, x0, x1);\n}\n");
    }

    /// Adds a member of a chain (chain.cuh): @_weights and @_body, which says whether it left its
    /// output `kept` for the next one.
    void add_link() {
        const int kept = limits_.kept;
        const Tiling& t = *limits_.chain;
        text_.includes = {"chain.cuh"};
        text_.threads = t.threads;
        text_.resident = t.resident;
        text_.blocks = ceil_div(m, t.m);
        const auto own = static_cast<size_t>(std::max(kept, 0));
        const char* type = cuda_type(op.outputs[own].dtype);
        const int64_t line = t.k + 8;
        text_.body +=
            cat("struct @_Link : @_Put {\n    ", type,
                "* room;\n    __device__ __forceinline__ @_Link(const ",
                "@_Block& block, char* room, char* inner) : @_Put{block",
                limits_.inner < 0 ? "" : ", inner", "}, room(reinterpret_cast<", type,
                "*>(room)) {}\n    static constexpr bool keeps = ",
                kept >= 0 && packs_eights(op) ? "true" : "false",
                ", squares = ", limits_.squares ? "true" : "false",
                ";\n    __device__ __forceinline__ ", type,
                "* kept(uint32_t row, uint32_t col) const {\n        return room + col / ", t.k,
                " * ", t.part_m * line, " + row % ", t.part_m, " * ", line, " + col % ", t.k,
                ";\n    }\n", packed_text(op, layout_, false, limits_), "};\n");
        const std::string tiles = cat(t.m, ", ", t.n, ", ");
        const std::string element = cuda_type(a.dtype);
        text_.body +=
            cat("__device__ __forceinline__ void @_weights(const @_Block& block, char* to) {\n"
                "    fetch_weights<",
                tiles, t.k, ", ", t.threads, ", @_Shape>(to, block.ptr<const ", element, ">(",
                layout_.operand[1], "));\n}\n");
        text_.body +=
            cat("template <class Next>\n__device__ __forceinline__ bool @_body(const @_Block& "
                "block, const "
                "Grid& grid, bool held, char* rows, const char* weights, float* sums, char* inner, "
                "const Next& next) {\n"
                "    return chain_link<",
                tiles, t.k, ", ", t.n / t.part_n, ", @_Shape>(grid, @_Link(block, rows, ",
                limits_.squares ? "reinterpret_cast<char*>(sums)" : "inner", "), block.ptr<const ",
                element, ">(", layout_.operand[0], "), held, reinterpret_cast<", element,
                "*>(rows), reinterpret_cast<const ", element, "*>(weights), sums, next",
                limits_.squares ? ", reinterpret_cast<float*>(inner)" : "", ");\n}\n");
        text_.name += "link";
    }

    void add_thin() {
        const int side = *thin_side(limits_);
        const View &few = side ? b : a, &many = side ? a : b;
        const int k_axis = side ? rank - 1 : rank - 2, own = side ? rank - 2 : rank - 1;
        // Of lines across k a longer ring, and one that begins early, took longer: 1x4096x4096 of
        // bfloat16 an H100 8.8 us for 7.8.
        const bool along_k = many.strides[k_axis] == 1, begins = along_k && side == 0;
        const int64_t rows = std::min(m, n), count = std::max(m, n), cuts = ceil_div(k, chunk);
        const int64_t step = many.strides[along_k ? own : k_axis];
        const int64_t thin_row = few.strides[side ? rank - 1 : rank - 2],
                      thin_col = few.strides[side ? rank - 2 : rank - 1];
        const auto pack = static_cast<int64_t>(16 / dtype_size(a.dtype));
        const auto place = [&](const char* name, bool first) {
            return cat("    __device__ __forceinline__ static int64_t ", name,
                       "(int64_t batch) { return @_", first ? "A" : "B", "::at(batch); }\n");
        };
        // A warp takes 32 wide rows, or 16 where else half of the processors had no block, or where
        // a cut is all of k and single warps cannot ask for as much as the memory brings. Chains
        // of float32 have 8 and twice the warps then, which have less to do one after the other:
        // 1x1024x4096 takes an H200 6.2 us for 9.9.
        const int64_t blocks_of_32 = batches * ceil_div(count, 32);
        const bool few_blocks = 2 * blocks_of_32 <= limits_.processors,
                   fewer_blocks = 4 * blocks_of_32 <= limits_.processors && along_k && !tensor;
        int64_t slices =
            std::min<int64_t>({cuts, limits_.most_warps, few_blocks && !tensor ? 16 : 8});
        const bool single_warps = along_k && slices == 1 && blocks_of_32 >= 3 * limits_.processors;
        const bool of_16 = single_warps || (few_blocks && (along_k || !tensor));
        const int64_t lines = fewer_blocks ? 8 : of_16 ? 16 : 32;
        // A ring of each warp, that together keep the memory busy, beside sums.
        constexpr int64_t least = 4, sums = 8 << 10;
        const int64_t element = dtype_size(a.dtype), depth = along_k ? 128 / element : 32;
        const int64_t stage = depth * element * (lines + rows);
        const auto fits = [&](int64_t warps) {
            return warps * least * stage <= shared_bytes(limits_) - sums;
        };
        while (slices > 1 && !fits(slices)) slices /= 2;
        text_.body += cat(
            "struct @_Thin {\n", number_text("rows", rows), number_text("lines", lines),
            number_text("wide", count), number_text("wide_step", step),
            number_text("thin_row", thin_row), number_text("thin_col", thin_col),
            flag_text("along_k", along_k), flag_text("begins", begins),
            flag_text("packs", step % pack == 0 && (along_k || count % pack == 0)),
            flag_text("thin_packs", thin_col == 1 && (rows == 1 || thin_row % pack == 0)),
            place("thin_at", !side), place("wide_at", side),
            "    template <class P, class T>\n    __device__ __forceinline__ static void put(const "
            "P& to, int64_t batch, int64_t t, int64_t w, const T (&v)[1]) {\n        to(batch, ",
            side ? "w, t" : "t, w", ", v);\n    }\n};\n");
        // Blocks of up to 8 warps, small enough that all processors have two.
        constexpr int64_t room = 96 << 10, alone = 200 << 10;
        int64_t groups = std::max<int64_t>(8 / slices, 1);
        const auto blocks = [&] { return batches * ceil_div(count, lines * groups); };
        while (groups > 1 && (blocks() < 2 * limits_.processors || !fits(groups * slices)))
            groups /= 2;
        text_.threads = static_cast<int>(32 * groups * slices);
        check(text_.threads <= 32 * limits_.most_warps,
              "cuda: a thin product of more threads than a group has");
        text_.blocks = blocks();
        text_.includes = {"thin.cuh"};
        const int64_t ring = std::min(begins && text_.blocks <= limits_.processors ? alone : room,
                                      shared_bytes(limits_) - sums);
        const int64_t stages = std::clamp<int64_t>(ring / (groups * slices * stage), least, 12);
        text_.shared = static_cast<uint32_t>(groups * slices * stages * stage);
        text_.resident = 2;  // which leaves a thread the registers that it needs
        text_.begins = begins;
        text_.body += body_head(op, layout_);
        text_.body += cat("    gemm_thin_", tensor ? "mma<" : "chain<", "@_Thin, ", groups, ", ",
                          slices, ", ", stages, ", @_Shape>(grid, @_Put{block}, x",
                          side ? "1, x0" : "0, x1", ");\n}\n");
    }

    // ---- by small tiles -------------------------------------------------------------------------

    /// Gradients of weights run beside other launches, if they leave processors idle, or other
    /// members, if they do not: a ring of two leaves room for more blocks. (The step of
    /// 128-128-128-10 with 1,024 rows took an H200 35.6 us, 33.4 so.)
    int most_stages(const Choice& choice) const {
        constexpr int all = 8, few = 2;  // groups; stages
        const bool member = limits_.most_warps < 32,
                   fills = 2 * choice.blocks >= limits_.processors;
        return choice.groups == all && a.strides[rank - 2] == 1 && member == fills ? few : INT_MAX;
    }

    void add_near() {
        const Choice& choice = *choice_;
        const Tiling& t = *choice.tiling;
        const auto floats = [&](int side, int64_t step) {
            return step == 1 ? t.k * (side + 4) : side * (t.k + 4);
        };
        const int64_t stage =
            4 * (floats(t.m, a.strides[rank - 2]) + floats(t.n, b.strides[rank - 1]));
        const int64_t chunks = ceil_div(k, chunk),
                      depth = std::min(k, ceil_div(chunks, int64_t{choice.groups}) * chunk);
        const int stages =
            std::min(chain_stages(t, choice.groups, chunks, depth), most_stages(choice));
        text_.includes = {"near.cuh"};
        text_.begins = true;
        text_.threads = t.threads * choice.groups;
        text_.blocks = choice.blocks;
        text_.shared = static_cast<uint32_t>(chain_room(t, choice.groups, chunks, stages, stage));
        text_.body += body_head(op, layout_);
        text_.body += cat("    gemm_near<", t.m, ", ", t.n, ", ", t.part_m, ", ", t.part_n, ", ",
                          choice.groups, ", ", stages,
                          ", @_Shape>(grid, @_Put{block}, x0, x1);\n"
                          "}\n");
    }

    void add_near_mma() {
        const Choice& choice = *choice_;
        const Tiling& t = *choice.tiling;
        const auto element = static_cast<int64_t>(dtype_size(a.dtype));
        const int64_t cuts = ceil_div(k, chunk);
        const int64_t depth = std::min(k, ceil_div(cuts, int64_t{choice.groups}) * chunk);
        const int stages = near_stages(t, choice.groups, cuts, depth, element);
        const int64_t stage = step_bytes(t, element, t.m, a.strides[rank - 2]) +
                              step_bytes(t, element, t.n, b.strides[rank - 1]);
        const bool in_place = ceil_div(cuts, choice.groups) == 1;
        const int64_t sums = choice.groups > 1 && !in_place ? 4 * cuts * t.m * (t.n + 8) : 0;
        text_.includes = {"near_mma.cuh"};
        text_.begins = true;
        text_.threads = t.threads * choice.groups;
        text_.blocks = choice.blocks;
        text_.shared = static_cast<uint32_t>(choice.groups * stages * stage + sums);
        text_.body += body_head(op, layout_);
        text_.body +=
            cat("    gemm_near_mma<", t.m, ", ", t.n, ", ", t.part_m, ", ", t.part_n, ", ", t.k,
                ", ", choice.groups, ", ", stages, ", @_Shape>(grid, @_Put{block}, x0, x1);\n}\n");
    }

    void add_near_boxes() {
        const Choice& choice = *choice_;
        const Tiling& t = *choice.tiling;
        const MappedOperand first = *mapped_operand(op, 0, 1, t.m),
                            second = *mapped_operand(op, 1, 0, t.n);
        const auto flag = [](bool value) { return value ? ", true" : ", false"; };
        text_.includes = {"near_boxes.cuh"};
        text_.begins = true;
        text_.threads = t.threads * choice.groups;
        text_.blocks = choice.blocks;
        text_.maps = {first.map, second.map};
        text_.shared =
            static_cast<uint32_t>(box_room(t, k, chunk, static_cast<int64_t>(dtype_size(a.dtype))));
        text_.body += body_head(op, layout_);
        text_.body +=
            cat("    gemm_near_boxes<", t.m, ", ", t.n, flag(second.along_k), flag(first.batched),
                flag(second.batched), ", @_Shape>(grid, @_Put{block}, block.bytes + ",
                layout_.tail + int(kTailBytes), ", block.bytes + ",
                layout_.tail + int(kTailBytes + kMapBytes), ");\n}\n");
    }

    // ---- by large tiles -------------------------------------------------------------------------

    /// Sums of parts of a chain are added in lots where some are made much earlier than others: of
    /// 768x768x4096 TN an H200 took 109.9 us so, 119.1 with all at the end; of 512x512x4096, whose
    /// parts all run together, 63.5 and 56.9.
    int64_t parts_of_lot() const {
        constexpr int64_t few = 4, turns = 2;
        const Choice& choice = *choice_;
        return choice.tiles * choice.parts >
                       turns * choice.tiling->resident * std::max(limits_.processors, 1)
                   ? few
                   : choice.parts;
    }

    /// Blocks of the chosen tiles, with room for the sums of parts; how it is handed on.
    std::string add_blocks() {
        const Choice& choice = *choice_;
        const Tiling& t = *choice.tiling;
        text_.threads = t.threads;
        text_.resident = t.resident;
        text_.blocks = choice.blocks;
        text_.workspace = static_cast<uint64_t>(choice.slots * t.m * t.n * size);
        if (choice.run) text_.counters = static_cast<int>(choice.blocks + 2);
        if (choice.parts > 1)
            text_.counters = static_cast<int>(
                choice.tiles * (tensor ? 1 : ceil_div(choice.parts, parts_of_lot())) +
                (choice.adders ? 2 : 0));
        return cat(
            choice.slots ? cat("block.ptr<", wide_, ">(16), ") : cat("(", wide_, "*)nullptr, "),
            text_.counters ? cat("block.ptr<uint32_t>(", layout_.tail, ")") : "(uint32_t*)nullptr");
    }

    void add_tiles() {
        const Choice& choice = *choice_;
        const Tiling& t = *choice.tiling;
        const std::string room = add_blocks();
        int64_t shared = int64_t{t.stages} * t.k * (t.m + t.n) * (tf32 ? 4 : 2);
        if (!tensor)  // padded tiles, and the sum of the chunks so far
            shared = (int64_t{t.stages} * t.k * (t.m + t.n + 8) +
                      (choice.parts == 1 || updates_behind(op)) * t.m * t.n) *
                     size;
        text_.shared = static_cast<uint32_t>(shared);
        text_.begins = !tensor && a.dtype == DType::f32 && t.part_m * t.part_n <= 32;
        if (tensor) text_.includes = {"mma.cuh"};
        if (choice.cluster) {
            text_.includes = {"matmul_cluster.cuh"};
            text_.cluster = static_cast<int>(choice.cluster);
            text_.counters = static_cast<int>(choice.tiles * choice.cluster);
        }
        text_.body += cat(body_head(op, layout_), "    ",
                          tensor           ? "gemm_mma<"
                          : choice.cluster ? "gemm_tiled_cluster<"
                                           : "gemm_tiled<",
                          t.m, ", ", t.n, ", ", t.part_m, ", ", t.part_n, ", ", t.k, ", ",
                          tensor ? cat(t.stages, ", ") : "", choice.parts,
                          tensor || choice.cluster ? "" : cat(", ", parts_of_lot()),
                          ", @_Shape>(grid, @_Put{block}, x0, x1, ", room, ");\n}\n");
    }

    /// Whose two groups take a chunk each.
    void add_pairs() {
        const Tiling& t = *choice_->tiling;
        text_.includes = {"matmul_cluster.cuh"};
        text_.threads = 2 * t.threads;
        text_.resident = t.resident / 2;
        text_.blocks = choice_->blocks;
        text_.shared = static_cast<uint32_t>(
            8 * (int64_t{t.stages} * t.k * (t.m + t.n + 8) + int64_t{t.m} * t.n));
        text_.begins = true;
        text_.body +=
            cat(body_head(op, layout_), "    gemm_tiled_groups<", t.m, ", ", t.n, ", ", t.part_m,
                ", ", t.part_n, ", ", t.k, ", 2, @_Shape>(grid, @_Put{block}, x0, x1);\n}\n");
    }

    /// The source and the function of a kernel whose warps have roles.
    std::pair<const char*, const char*> roles_source(bool copies) const {
        if (limbs) return {"limbs.cuh", "gemm_limbs"};
        if (choice_->tiling->writers) return {"wgmma_writers.cuh", "gemm_wgmma_writers"};
        if (choice_->run) return {"wgmma_runs.cuh", "gemm_wgmma_runs"};
        if (choice_->cluster) return {"wgmma_cluster.cuh", "gemm_wgmma_cluster"};
        return {copies ? "rounded.cuh" : "wgmma.cuh", "gemm_wgmma"};
    }

    void add_roles() {
        const Choice& choice = *choice_;
        const Tiling& t = *choice.tiling;
        const std::string room = add_blocks();
        Reading reading = this->reading(t, choice.reads);
        MappedOperand &first = reading.first, &second = reading.second;
        // Copies lie behind the sums of parts.
        const uint64_t sums = (text_.workspace + 255) / 256 * 256;
        for (TensorMap* map : {&first.map, &second.map})
            if (map->input == TensorMap::workspace) map->from += sums;
        const auto [source, function] = roles_source(reading.copies());
        text_.includes = {source};
        text_.cluster = choice.cluster ? static_cast<int>(choice.cluster) : t.pair * t.wide;
        text_.maps = {first.map, second.map};
        const bool turned = reading.reads == Reads::turned;
        const DType type = second.map.dtype;
        const WgmmaLayout roles{.rows = t.m,
                                .columns = t.n,
                                .depth = static_cast<int>(128 / dtype_size(type)),
                                .stages = t.stages - (choice.cluster ? 1 : 0),  // sums arrive there
                                .pair = t.pair,
                                .wide = t.wide,
                                .parts = choice.parts,
                                .adders = choice.adders,
                                .round = choice.round,
                                .holds = t.holds(ceil_div(k, chunk), reading.words),
                                .own = t.own,
                                .words = reading.words,
                                .a_along_k = first.along_k,
                                .b_along_k = second.along_k,
                                .a_batched = first.batched,
                                .b_batched = second.batched,
                                .writers = t.writers,
                                .run = choice.run,
                                .cluster = choice.cluster,
                                .turned = turned};
        text_.shared = roles.shared();
        text_.body += layout_struct("@_Layout", roles, type);
        add_lines(turned);
        text_.begins = !reading.copies();
        std::string ready = cat("Present{(block.word(", layout_.tail + int(kLateAt), ") & ",
                                kLateA | kLateB, ") != 0}"),
                    copy;
        if (reading.copies()) {
            copy = add_copies(reading);
            ready = "ready";
        }
        const bool sums_in_memory = !limbs && !t.writers && !choice.cluster;
        text_.body +=
            cat(body_head(), copy, "    ", function, "<@_Layout, @_Shape",
                limbs ? ", @_CopyA, @_CopyB" : "", ">(grid, @_Lines{{block}}, block.bytes + ",
                layout_.tail + int(kTailBytes), ", block.bytes + ",
                layout_.tail + int(kTailBytes + kMapBytes), sums_in_memory ? ", " + room : "", ", ",
                ready, ");\n}\n");
    }

    /// @_Put, and where results lie that are stored as they are, whole 16 bytes at a time.
    void add_lines(bool turned) {
        const auto whole = static_cast<int64_t>(16 / dtype_size(c.dtype));
        bool lines = op.body.empty() && !turned && n % whole == 0 && c.strides[rank - 1] == 1;
        for (int d = 0; d < rank - 1; d++) lines = lines && c.strides[d] % whole == 0;
        text_.body += cat("struct @_Lines : @_Put {\n", flag_text("lines", lines));
        if (lines)
            text_.body +=
                cat(number_text("step", c.strides[rank - 2]), "    __device__ __forceinline__ ",
                    cuda_type(c.dtype), "* line(int64_t batch, int64_t row, int64_t col) const {\n",
                    "        return block.template ptr<", cuda_type(c.dtype), ">(",
                    layout_.operand[op.inputs.size()], ") + @_y0::at(batch) + row * step + col;\n",
                    "    }\n");
        text_.body += packed_text(op, layout_, turned || (lines && choice_->parts == 1)) + "};\n";
    }

    /// What copies the operands into the workspace before, and says when they are there.
    std::string add_copies(const Reading& reading) {
        const MappedOperand &first = reading.first, &second = reading.second;
        const Tiling& t = *choice_->tiling;
        const bool right = reading.reads == Reads::right_copied;
        const std::string as = rounded_type(math, a.dtype);
        const int64_t rows = choice_->first_rows, columns = choice_->first_columns,
                      terms = choice_->first_terms;
        text_.body += cat("struct @_First {\n", number_text("rows", rows),
                          number_text("columns", columns), number_text("terms", terms), "};\n");
        const auto or_all = [](int64_t some, int64_t all) { return some ? some : all; };
        text_.body += right ? "typedef Uncopied @_CopyA;\n"
                            : rounded_struct("@_CopyA", "@_A", as, first, planes(), a, 1,
                                             or_all(rows, m), or_all(terms, k));
        text_.body += rounded_struct("@_CopyB", "@_B", as, second, planes(), b, 0,
                                     or_all(columns, n), or_all(terms, k));
        const std::string counters =
            cat("block.ptr<uint32_t>(", layout_.tail, ") + ", text_.counters);
        const auto operand = [&](int x) {
            return cat("block.ptr<const float>(", layout_.operand[static_cast<size_t>(x)], ")");
        };
        const auto copy_at = [&](const TensorMap& map) {
            return cat("block.ptr<", limbs ? "Brain" : as, ">(16) + ",
                       map.from / dtype_size(map.dtype));
        };
        text_.counters += 5;
        text_.workspace = second.map.from + map_bytes(second.map);
        return cat("    const Rounded<@_CopyA, @_CopyB, @_First, ", t.threads / 32, ", ",
                   text_.blocks, "> ready{", operand(0), ", ", operand(1), ", ",
                   right ? cat("(", as, "*)nullptr") : copy_at(first.map), ", ",
                   copy_at(second.map), ", ", counters, ", grid.blocks};\n    ready.copy();\n");
    }

    const Limits& limits_;
    const BlockLayout layout_;
    const std::string wide_;         // of a sum
    const std::array<int, 2> tile_;  // of a thread, in one block
    std::vector<Choice> choices_;
    const Choice* choice_ = nullptr;  // null: without tiles
    KernelText text_;
};

}  // namespace

KernelText gemm_text(const LoweredOp& op, const Limits& limits) {
    return ProductText(op, limits).text();
}

}  // namespace aicf::cuda
