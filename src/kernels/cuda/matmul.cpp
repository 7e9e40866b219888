// Texts of products, by the kernels that gemm.h ranks.
#include <algorithm>
#include <array>
#include <utility>

#include "core/graph/region.h"
#include "kernels/cuda/codegen.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/thresholds.h"
#include "kernels/cuda/tilings.h"

namespace aicf::cuda {

std::string rounded_type(const std::string& math, DType dtype) {
    return math == "tf32"    ? "Tf32"
           : math == "fp16"  ? "Half"
           : math == "bf16"  ? "Brain"
           : math == "fp32x" ? "scalar::Limbs"
                             : cuda_type(dtype);
}

std::vector<std::string> gemm_candidates(const LoweredOp& op, const Limits& limits) {
    std::vector<std::string> names;
    for (const Choice& choice : Gemm(op).choices(limits)) names.push_back(name_of(choice));
    return names;
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

int64_t terms_of(const LoweredOp& op) { return Gemm(op).k; }

double gemm_cycles(const LoweredOp& op, const Limits& limits) {
    const std::vector<Choice> choices = Gemm(op).choices(limits);
    for (const Choice& choice : choices)
        if (op.candidate.empty() || name_of(choice) == op.candidate) return choice.cycles;
    return 0;
}

static bool is_one_product(const LoweredOp& op) {
    return op.members.empty() && anchor(op).gemm && (op.body.empty() || product_region(op));
}

/// Those that decide whether a product shares a launch: it takes a cluster for its chunks alone.
static std::vector<Choice> shared_choices(const LoweredOp& op, const Limits& limits) {
    std::vector<Choice> choices = Gemm(op).choices(limits);
    std::erase_if(choices, [](const Choice& one) { return one.cluster && !one.tiling->pair; });
    return choices;
}

bool gemm_in_group(const LoweredOp& op, const Limits& limits) {
    if (!is_one_product(op)) return false;
    const std::vector<Choice> choices = shared_choices(op, limits);
    return choices.empty() || (!choices[0].thin && fits_group(choices[0]));
}

bool gemm_takes_update(const LoweredOp& op, const Limits& limits) {
    if (!is_one_product(op)) return false;
    const Gemm gemm(op);
    std::vector<Choice> choices = shared_choices(op, limits);
    if (choices.empty()) return true;
    // Of 16 bits small tiles always come behind those of warps with roles, which are too large for
    // a group, but no product gains by these what a launch for its update costs.
    const bool narrow = is_16_bit(gemm.a.dtype);
    if (!narrow && (choices[0].thin || !fits_group(choices[0]))) return false;
    gemm.add_update(limits, choices);
    std::erase_if(choices, [](const Choice& one) { return one.thin || !fits_group(one); });
    return !choices.empty();
}

bool gemm_joins_cuts(const LoweredOp& op, const Limits& limits) {
    if (!op.members.empty() || !op.def->gemm) return false;
    const Gemm gemm(op);
    const std::vector<Choice> choices = gemm.choices(limits);
    return gemm.tensor && !choices.empty() && choices[0].parts > 1 &&
           gemm.m * gemm.n * gemm.chunk >= kTiledWork;
}

bool gemm_adds_wide(const LoweredOp& op, const Limits& limits) {
    constexpr int64_t turns = 2;  // what a block's last tile moves is waited for
    if (!is_one_product(op)) return false;
    const Gemm gemm(op);
    const std::vector<Choice> choices = gemm.choices(limits);
    return is_16_bit(gemm.a.dtype) && !choices.empty() && choices[0].tiling->pair > 0 &&
           choices[0].tiles >= turns * limits.processors;
}

bool gemm_leaves_room(const LoweredOp& op, const Limits& limits) {
    constexpr int64_t share = 4;
    if (!is_one_product(op)) return false;
    const std::vector<Choice> choices = shared_choices(op, limits);
    return !choices.empty() && !choices[0].thin && fits_group(choices[0]) &&
           choices[0].blocks * share <= limits.processors;
}

/// Bytes of a step of k of an operand in shared memory, by near_run.cuh: `side` lines of k, or
/// lines across it.
static int64_t step_bytes(const Tiling& t, int64_t element, int side, int64_t step) {
    return element * (step == 1 ? t.k * (side + (element == 4 ? 4 : 8)) : side * (t.k + 8));
}

/// Adds the kernel of near_mma.cuh.
static void add_near_mma(KernelText& text, const LoweredOp& op, const BlockLayout& layout,
                         const Choice& choice) {
    const Gemm gemm(op);
    const Tiling& t = *choice.tiling;
    const auto element = static_cast<int64_t>(dtype_size(gemm.a.dtype));
    const int64_t cuts = ceil_div(gemm.k, gemm.chunk);
    const int64_t depth = std::min(gemm.k, ceil_div(cuts, int64_t{choice.groups}) * gemm.chunk);
    const int stages = near_stages(t, choice.groups, cuts, depth, element);
    const int64_t stage = step_bytes(t, element, t.m, gemm.a.strides[gemm.rank - 2]) +
                          step_bytes(t, element, t.n, gemm.b.strides[gemm.rank - 1]);
    const bool in_place = ceil_div(cuts, choice.groups) == 1;
    const int64_t sums = choice.groups > 1 && !in_place ? 4 * cuts * t.m * (t.n + 8) : 0;
    text.includes = {"near_mma.cuh"};
    text.begins = true;
    text.threads = t.threads * choice.groups;
    text.blocks = choice.blocks;
    text.shared = static_cast<uint32_t>(choice.groups * stages * stage + sums);
    text.body += body_head(op, layout);
    text.body +=
        cat("    gemm_near_mma<", t.m, ", ", t.n, ", ", t.part_m, ", ", t.part_n, ", ", t.k, ", ",
            choice.groups, ", ", stages, ", @_Shape>(grid, @_Put{block}, x0, x1);\n}\n");
}

/// Adds the kernel of near_boxes.cuh.
static void add_near_boxes(KernelText& text, const LoweredOp& op, const BlockLayout& layout,
                           const Choice& choice) {
    const Gemm gemm(op);
    const Tiling& t = *choice.tiling;
    const MappedOperand a = *mapped_operand(op, 0, 1, t.m), b = *mapped_operand(op, 1, 0, t.n);
    const auto flag = [](bool value) { return value ? ", true" : ", false"; };
    text.includes = {"near_boxes.cuh"};
    text.begins = true;
    text.threads = t.threads * choice.groups;
    text.blocks = choice.blocks;
    text.maps = {a.map, b.map};
    text.shared = static_cast<uint32_t>(
        box_room(t, gemm.k, gemm.chunk, static_cast<int64_t>(dtype_size(gemm.a.dtype))));
    text.body += body_head(op, layout);
    text.body += cat("    gemm_near_boxes<", t.m, ", ", t.n, flag(b.along_k), flag(a.batched),
                     flag(b.batched), ", @_Shape>(grid, @_Put{block}, block.bytes + ",
                     layout.tail + int(kTailBytes), ", block.bytes + ",
                     layout.tail + int(kTailBytes + kMapBytes), ");\n}\n");
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

/// Adds a member of a chain (chain.cuh): @_weights and @_body, which says whether it left its
/// output `kept` for the next one.
static void add_link(KernelText& text, const LoweredOp& op, const BlockLayout& layout,
                     const Limits& limits) {
    const Gemm gemm(op);
    const int kept = limits.kept;
    const Tiling& t = *limits.chain;
    text.includes = {"chain.cuh"};
    text.threads = t.threads;
    text.resident = t.resident;
    text.blocks = ceil_div(gemm.m, t.m);
    const auto own = static_cast<size_t>(std::max(kept, 0));
    const char* type = cuda_type(op.outputs[own].dtype);
    const int64_t line = t.k + 8;
    text.body += cat(
        "struct @_Link : @_Put {\n    ", type,
        "* room;\n    __device__ __forceinline__ @_Link(const ",
        "@_Block& block, char* room, char* inner) : @_Put{block", limits.inner < 0 ? "" : ", inner",
        "}, room(reinterpret_cast<", type, "*>(room)) {}\n    static constexpr bool keeps = ",
        kept >= 0 && packs_eights(op) ? "true" : "false",
        ", squares = ", limits.squares ? "true" : "false", ";\n    __device__ __forceinline__ ",
        type, "* kept(uint32_t row, uint32_t col) const {\n        return room + col / ", t.k,
        " * ", t.part_m * line, " + row % ", t.part_m, " * ", line, " + col % ", t.k, ";\n    }\n",
        packed_text(op, layout, false, limits), "};\n");
    const std::string tiles = cat(t.m, ", ", t.n, ", ");
    const std::string element = cuda_type(gemm.a.dtype);
    text.body +=
        cat("__device__ __forceinline__ void @_weights(const @_Block& block, char* to) {\n"
            "    fetch_weights<",
            tiles, t.k, ", ", t.threads, ", @_Shape>(to, block.ptr<const ", element, ">(",
            layout.operand[1], "));\n}\n");
    text.body += cat(
        "template <class Next>\n__device__ __forceinline__ bool @_body(const @_Block& block, const "
        "Grid& grid, bool held, char* rows, const char* weights, float* sums, char* inner, "
        "const Next& next) {\n"
        "    return chain_link<",
        tiles, t.k, ", ", t.n / t.part_n, ", @_Shape>(grid, @_Link(block, rows, ",
        limits.squares ? "reinterpret_cast<char*>(sums)" : "inner", "), block.ptr<const ", element,
        ">(", layout.operand[0], "), held, reinterpret_cast<", element,
        "*>(rows), reinterpret_cast<const ", element, "*>(weights), sums, next",
        limits.squares ? ", reinterpret_cast<float*>(inner)" : "", ");\n}\n");
}

KernelText gemm_text(const LoweredOp& op, const Limits& limits) {
    const Gemm gemm(op);
    const auto& [attrs, a, b, c, math, rank, m, n, k, chunk, batches, size, tf32, limbs, tensor,
                 copied_as, same] = gemm;
    const bool fused = !op.body.empty();
    const BlockLayout layout(op);
    KernelText text;
    text.includes = {"matmul.cuh"};
    const auto batch_struct = [&](const char* name, const View& view) {
        Dims shape, strides;
        for (int d = 0; d < rank - 2; d++) {
            shape.push(view.shape[d]);
            strides.push(view.strides[d]);
        }
        text.body += place_struct(name, shape, strides);
    };
    batch_struct("@_A", a);
    batch_struct("@_B", b);
    const auto number = [](const char* name, int64_t value) {
        return cat("    static constexpr int64_t ", name, " = ", value, ";\n");
    };
    text.body +=
        cat("struct @_Shape {\n    typedef @_A A;\n    typedef @_B B;\n", number("m", m),
            number("n", n), number("k", k), number("batches", batches), number("chunk", chunk),
            number("a_row", a.strides[rank - 2]), number("a_col", a.strides[rank - 1]),
            number("b_row", b.strides[rank - 2]), number("b_col", b.strides[rank - 1]),
            "    typedef ", rounded_type(math, a.dtype), " As;\n};\n");
    const std::string wide = wide_type(c.dtype);
    // What becomes of V neighbours of a row of the product: stored, or taken through the body.
    const auto at_row = [&](const std::string& name, const View& view) {
        batch_struct(("@_" + name).c_str(), view);
        return cat(name, " + @_", name, "::at(batch) + row * int64_t(", view.strides[rank - 2],
                   ") + col * int64_t(", view.strides[rank - 1], ")");
    };
    const std::array<int, 2> tile =
        limits.turns ? turn_tile(batches, m, n, k) : thread_tile(batches, m, n, k);
    const auto known = [&](const View& view) -> std::string {
        if (!limits.one_block) return "Row::nothing";
        bool aligned = view.strides[rank - 1] == 1 && view.offset % tile[1] == 0;
        for (int d = 0; d < rank - 1; d++) aligned &= view.strides[d] % tile[1] == 0;
        return aligned ? "Row::aligned" : "Row::whole";
    };
    const bool tiled = !limits.one_block && !limits.chain;
    const std::vector<Choice> choices = tiled ? gemm.choices(limits) : std::vector<Choice>();
    if (tiled) gemm.check_order(limits, !choices.empty());
    const auto named = [&](const Choice& one) { return name_of(one) == op.candidate; };
    auto found = op.candidate.empty() ? choices.begin()
                                      : std::find_if(choices.begin(), choices.end(), named);
    // One that is faster alone may be none that a member can have.
    if (found == choices.end() && limits.most_warps < 32) found = choices.begin();
    check(choices.empty() || found != choices.end(),
          "cuda: a product's kernel is none of its candidates");
    // An update's operands are many: those of several places are read before any is stored. What
    // follows a product in small tiles is read before it, too.
    const bool updates = updates_behind(op),
               reads = updates || (found != choices.end() && found->groups > 0);
    // Beside tensor cores a thread has no registers to interleave elements of Adam, where
    // 784-512-512 gains nothing by it; in fp32 its step with 128 rows takes an H100 35.6 us
    // for 36.2.
    constexpr int64_t enough = 1 << 14;
    const bool interleaves = !gemm.tensor && m * n >= enough;
    std::string read, read_members, numbers, number_members, load, store;
    for (size_t x = 2; x < op.inputs.size(); x++) {
        const View& view = op.inputs[x];
        const char* type = cuda_type(view.dtype);
        const bool inner = limits.inner == static_cast<int>(x);
        const std::string pointer = cat("        const auto* x", x, " = ",
                                        inner ? inner_cell(type, "const ")
                                              : cat("block.template ptr<const ", type, ">(",
                                                    layout.operand[x], ")"),
                                        ";\n"),
                          declared = cat("        Wide<", type, "> a", x, "[V];\n");
        if (view.shape.rank() == 0) {
            if (!reads) {
                load += pointer + declared +
                        cat("        for (auto& a : a", x, ") a = widen(*x", x, ");\n");
                continue;
            }
            numbers += pointer + cat("        of.a", x, " = widen(*x", x, ");\n");
            number_members += cat("        Wide<", type, "> a", x, ";\n");
            load += declared + cat("        for (auto& a : a", x, ") a = of.a", x, ";\n");
            continue;
        }
        const std::string loaded =
            cat("        load_row", reads ? "_far" : "", "<V, ", view.strides[rank - 1], ", ", type,
                reads ? "" : cat(", ", known(view)), ">(", reads ? "to." : "", "a", x, ", ",
                inner ? cat("x", x) : at_row(cat("x", x), view), ", left);\n");
        if (reads) {
            read += pointer + loaded;
            read_members += declared;
            load += cat("        const auto& a", x, " = from.a", x, ";\n");
        } else {
            load += pointer + declared + loaded;
        }
    }
    for (size_t y = 0; y < op.outputs.size(); y++) {
        const View& view = op.outputs[y];
        const char* type = cuda_type(view.dtype);
        const bool inner = limits.inner == static_cast<int>(op.inputs.size() + y);
        if (inner && limits.squares) {
            load += cat("        float r", y, "[V];\n");
            store += squares_store(y);
            continue;
        }
        load += cat("        auto* y", y, " = ",
                    inner ? inner_cell(type)
                          : cat("block.template ptr<", type, ">(",
                                layout.operand[op.inputs.size() + y], ")"),
                    ";\n        Wide<", type, "> r", y, "[V];\n");
        store += cat("        store_row<V, ", view.strides[rank - 1], ", ", known(view), ">(",
                     inner ? cat("y", y) : at_row(cat("y", y), view), ", r", y, ", left);\n");
    }
    const std::string body =
        fused ? body_formula(op, layout, load, steps_between(0, op.body.size())) : "r0[j] = v[j];";
    const std::string put = "(int64_t batch, int64_t row, int64_t col, const T (&v)[V]",
                      left = cat("        const int64_t left = ", n, " - col;\n"),
                      inlined = "    __device__ __forceinline__ void ";
    text.body += cat("struct @_Put {\n    const @_Block& block;\n",
                     limits.inner < 0 ? "" : "    char* inner;\n",
                     "    static constexpr bool updates = ", updates ? "true" : "false", ";\n");
    if (!limits.one_block && !limits.chain)
        for (const auto& [name, bit] : {std::pair{"a", kLateA}, {"b", kLateB}, {"rest", kLateRest}})
            text.body +=
                cat("    __device__ __forceinline__ bool ", name, "_is_late() const { return ",
                    "block.word(", layout.tail + int(kLateAt), ") & ", bit, "; }\n");
    if (reads)
        text.body += cat(
            "    struct Numbers {\n", number_members, "    };\n    template <int V>\n",
            "    struct Read {\n", read_members, "    };\n    __device__ __forceinline__ Numbers ",
            "numbers() const {\n        Numbers of;\n", numbers, "        return of;\n    }\n",
            "    template <int V>\n", inlined,
            "read(Read<V>& to, int64_t batch, int64_t row, int64_t col) const {\n", left, read,
            "    }\n    template <int V, class T>\n", inlined, "operator()", put,
            ") const {\n        Read<V> from;\n        read(from, batch, row, col);\n",
            "        (*this)(batch, row, col, v, from, numbers());\n    }\n");
    text.body +=
        cat("    template <int V, class T>\n", inlined, "operator()", put,
            reads ? ", const Read<V>& from, const Numbers& of" : "", ") const {\n", left, load,
            updates && interleaves
                ? each_update("V", body)
                : cat("#pragma unroll\n        for (int j = 0; j < V; j++) {\n            ", body,
                      "\n        }\n"),
            store, "    }\n};\n");
    const std::string stem =
        cat(kernel_stem(op), "_", dtype_abbrev(a.dtype), "_", math == "fp32" ? "" : math + "_");
    if (limits.one_block) {
        const auto [tile_rows, tile_columns] = tile;
        text.name = stem + "threads";
        text.threads = 32;
        text.blocks = (batches * (m / tile_rows) * (n / tile_columns) + 31) / 32;
        const std::string shape = cat(tile_rows, ", ", tile_columns, ", @_Shape>(");
        text.ahead = text.blocks <= limits.team;
        if (text.ahead)
            text.body +=
                cat("typedef ThreadTile @_Ahead;\n", ahead_head(), "    return thread_tile_ahead<",
                    shape, "grid);\n}\n", ahead_body_head(), pointers_of(op, layout),
                    "    if (ahead.any) gemm_thread<", wide, ", ", shape,
                    "ahead, @_Put{block}, x0, x1);\n}\n");
        else
            text.body += cat(body_head(op, layout), "    gemm_threads<", wide, ", ", shape,
                             "grid, @_Put{block}, x0, x1);\n}\n");
        return text;
    }
    if (limits.chain) {
        add_link(text, op, layout, limits);
        text.name = stem + "link";
        return text;
    }
    if (choices.empty()) {
        const int64_t chunks = std::max<int64_t>(ceil_div(k, chunk), 1);
        int64_t slices = 1;
        while (slices < 8 && slices < chunks) slices *= 2;
        text.name = stem + "small";
        text.threads = static_cast<int>(32 * slices);
        text.blocks = (batches * m * n + 31) / 32;
        text.body += body_head(op, layout);
        text.body += cat("    gemm_small<", wide, ", ", slices,
                         ", @_Shape>(grid, @_Put{block}, x0, x1);\n}\n");
        return text;
    }
    const Choice& choice = *found;
    if (choice.thin) {
        const int side = *gemm.thin_side(limits);
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
        const auto flag = [](const char* name, bool value) {
            return cat("    static constexpr bool ", name, " = ", value ? "true" : "false", ";\n");
        };
        const auto place = [&](const char* name, bool first) {
            return cat("    __device__ __forceinline__ static int64_t ", name,
                       "(int64_t batch) { return @_", first ? "A" : "B", "::at(batch); }\n");
        };
        text.body += cat(
            "struct @_Thin {\n", number("rows", rows), number("wide", count),
            number("wide_step", step), number("thin_row", thin_row), number("thin_col", thin_col),
            flag("along_k", along_k), flag("begins", begins),
            flag("far",
                 batches * count * k * static_cast<int64_t>(dtype_size(a.dtype)) > kFarBytes),
            flag("packs", step % pack == 0 && (along_k || count % pack == 0)),
            flag("thin_packs", thin_col == 1 && (rows == 1 || thin_row % pack == 0)),
            place("thin_at", !side), place("wide_at", side),
            "    template <class P, class T>\n    __device__ __forceinline__ static void put(const "
            "P& to, int64_t batch, int64_t t, int64_t w, const T (&v)[1]) {\n        to(batch, ",
            side ? "w, t" : "t, w", ", v);\n    }\n};\n");
        // Blocks of up to 8 warps, small enough that all processors have two.
        constexpr int64_t lines = 32, room = 96 << 10, alone = 200 << 10;
        const int64_t slices = std::min<int64_t>(cuts, 8);
        int64_t groups = std::max<int64_t>(8 / slices, 1);
        const auto blocks = [&] { return batches * ceil_div(count, lines * groups); };
        while (groups > 1 && blocks() < 2 * limits.processors) groups /= 2;
        text.name = stem + name_of(choice);
        text.threads = static_cast<int>(32 * groups * slices);
        check(text.threads <= kGroupThreads,
              "cuda: a thin product of more threads than a group has");
        text.blocks = blocks();
        text.includes = {"thin.cuh"};
        // A ring of each warp, that together keep the memory busy.
        const int64_t stage = 128 * (lines + rows) / (along_k ? 1 : 2);
        const int64_t ring = begins && text.blocks <= limits.processors ? alone : room;
        const int64_t stages = std::clamp<int64_t>(ring / (groups * slices * stage), 4, 12);
        text.shared = static_cast<uint32_t>(groups * slices * stages * stage);
        text.resident = 2;  // which leaves a thread the registers that it needs
        text.begins = begins;
        text.body += body_head(op, layout);
        text.body += cat("    gemm_thin_", tensor ? "mma<" : "chain<", "@_Thin, ", groups, ", ",
                         slices, ", ", stages, ", @_Shape>(grid, @_Put{block}, x",
                         side ? "1, x0" : "0, x1", ");\n}\n");
        return text;
    }
    const Tiling& t = *choice.tiling;
    if (choice.groups && tensor) {
        if (choice.boxes)
            add_near_boxes(text, op, layout, choice);
        else
            add_near_mma(text, op, layout, choice);
        text.name = stem + name_of(choice);
        return text;
    }
    if (choice.groups) {
        const auto floats = [&](int side, int64_t step) {
            return step == 1 ? t.k * (side + 4) : side * (t.k + 4);
        };
        const int64_t stage =
            4 * (floats(t.m, a.strides[rank - 2]) + floats(t.n, b.strides[rank - 1]));
        const int64_t chunks = ceil_div(k, chunk),
                      depth = std::min(k, ceil_div(chunks, int64_t{choice.groups}) * chunk);
        const int stages = chain_stages(t, choice.groups, chunks, depth);
        text.name = stem + name_of(choice);
        text.includes = {"near.cuh"};
        text.begins = true;
        text.threads = t.threads * choice.groups;
        text.blocks = choice.blocks;
        text.shared = static_cast<uint32_t>(chain_room(t, choice.groups, chunks, stages, stage));
        text.body += body_head(op, layout);
        text.body += cat("    gemm_near<", t.m, ", ", t.n, ", ", t.part_m, ", ", t.part_n, ", ",
                         choice.groups, ", ", stages,
                         ", @_Shape>(grid, @_Put{block}, x0, x1);\n"
                         "}\n");
        return text;
    }
    text.name = stem + name_of(choice);
    text.threads = t.threads;
    text.resident = t.resident;
    text.blocks = choice.blocks;
    text.workspace = static_cast<uint64_t>(choice.slots * t.m * t.n * size);
    if (choice.run) text.counters = static_cast<int>(choice.blocks + 2);
    if (choice.parts > 1) text.counters = static_cast<int>(choice.tiles + (choice.adders ? 2 : 0));
    const std::string room =
        cat(choice.slots ? cat("block.ptr<", wide, ">(16), ") : cat("(", wide, "*)nullptr, "),
            text.counters ? cat("block.ptr<uint32_t>(", layout.tail, ")") : "(uint32_t*)nullptr");
    if (t.pair) {
        Gemm::Reading reading = gemm.reading(t, choice.reads);
        MappedOperand &first = reading.first, &second = reading.second;
        // Copies lie behind the sums of parts.
        const uint64_t sums = (text.workspace + 255) / 256 * 256;
        for (TensorMap* map : {&first.map, &second.map})
            if (map->input == TensorMap::workspace) map->from += sums;
        const DType type = second.map.dtype;
        text.includes = {limbs              ? "limbs.cuh"
                         : reading.copies() ? "rounded.cuh"
                         : t.writers        ? "wgmma_writers.cuh"
                         : choice.run       ? "wgmma_runs.cuh"
                         : choice.cluster   ? "wgmma_cluster.cuh"
                                            : "wgmma.cuh"};
        text.cluster = choice.cluster ? static_cast<int>(choice.cluster) : t.pair * t.wide;
        text.maps = {first.map, second.map};
        const bool turned = reading.reads == Reads::turned;
        const WgmmaLayout roles{t.m,
                                t.n,
                                static_cast<int>(128 / dtype_size(type)),
                                t.stages - (choice.cluster ? 1 : 0),  // sums arrive there
                                t.pair,
                                t.wide,
                                choice.parts,
                                choice.adders,
                                choice.round,
                                t.holds(ceil_div(k, chunk), reading.words),
                                t.own,
                                reading.words,
                                first.along_k,
                                second.along_k,
                                first.batched,
                                second.batched,
                                t.writers,
                                choice.run,
                                choice.cluster,
                                turned};
        text.shared = roles.shared();
        text.body += layout_struct("@_Layout", roles, type);
        // Results that the copy engine can store as they are, whole 16 bytes at a time.
        const auto whole = static_cast<int64_t>(16 / dtype_size(c.dtype));
        bool lines = !fused && !turned && n % whole == 0 && c.strides[rank - 1] == 1;
        for (int d = 0; d < rank - 1; d++) lines = lines && c.strides[d] % whole == 0;
        text.body += cat("struct @_Lines : @_Put {\n    static constexpr bool lines = ",
                         lines ? "true" : "false", ";\n");
        if (lines)
            text.body +=
                cat(number("step", c.strides[rank - 2]), "    __device__ __forceinline__ ",
                    cuda_type(c.dtype), "* line(int64_t batch, int64_t row, int64_t col) const {\n",
                    "        return block.template ptr<", cuda_type(c.dtype), ">(",
                    layout.operand[op.inputs.size()], ") + @_y0::at(batch) + row * step + col;\n",
                    "    }\n");
        text.body += packed_text(op, layout, turned || (lines && choice.parts == 1)) + "};\n";
        text.begins = !reading.copies();
        std::string ready = cat("Present{(block.word(", layout.tail + int(kLateAt), ") & ",
                                kLateA | kLateB, ") != 0}"),
                    copy;
        if (reading.copies()) {
            const bool right = reading.reads == Reads::right_copied;
            const std::string as = rounded_type(math, a.dtype);
            text.body += right ? "typedef Uncopied @_CopyA;\n"
                               : rounded_struct("@_CopyA", "@_A", as, first, gemm.planes(), a, 1);
            text.body += rounded_struct("@_CopyB", "@_B", as, second, gemm.planes(), b, 0);
            const std::string pieces =
                cat("<@_CopyA, @_CopyB, ", t.threads / 32, ", ", text.blocks, ">");
            const std::string counters =
                cat("block.ptr<uint32_t>(", layout.tail, ") + ", text.counters);
            const auto operand = [&](int x) {
                return cat("block.ptr<const float>(", layout.operand[static_cast<size_t>(x)], ")");
            };
            const auto copy_at = [&](const TensorMap& map) {
                return cat("block.ptr<", limbs ? "Brain" : as, ">(16) + ",
                           map.from / dtype_size(type));
            };
            text.counters += 3;
            text.workspace = second.map.from + Gemm::map_bytes(second.map);
            copy = cat("    round_operands", pieces, "(", operand(0), ", ", operand(1), ", ",
                       right ? cat("(", as, "*)nullptr") : copy_at(first.map), ", ",
                       copy_at(second.map), ", ", counters, ");\n");
            ready = cat("Rounded<Pieces", pieces, "::count>{", counters, ", grid.blocks}");
        }
        text.body += body_head() + copy;
        const bool sums_in_memory = !limbs && !t.writers && !choice.cluster;
        text.body += cat("    ",
                         limbs            ? "gemm_limbs"
                         : t.writers      ? "gemm_wgmma_writers"
                         : choice.run     ? "gemm_wgmma_runs"
                         : choice.cluster ? "gemm_wgmma_cluster"
                                          : "gemm_wgmma",
                         "<@_Layout, @_Shape", limbs ? ", @_CopyA, @_CopyB" : "",
                         ">(grid, @_Lines{{block}}, block.bytes + ", layout.tail + int(kTailBytes),
                         ", block.bytes + ", layout.tail + int(kTailBytes + kMapBytes),
                         sums_in_memory ? ", " + room : "", ", ", ready, ");\n}\n");
        return text;
    }
    int64_t shared = int64_t{t.stages} * t.k * (t.m + t.n) * (tf32 ? 4 : 2);
    if (!tensor)  // padded tiles, and the sum of the chunks so far
        shared = (int64_t{t.stages} * t.k * (t.m + t.n + 8) +
                  (choice.parts == 1 || updates) * t.m * t.n) *
                 size;
    text.shared = static_cast<uint32_t>(shared);
    text.body += body_head(op, layout);
    if (tensor) text.includes = {"mma.cuh"};
    if (choice.cluster) {
        text.includes = {"matmul_cluster.cuh"};
        text.cluster = static_cast<int>(choice.cluster);
        text.counters = static_cast<int>(choice.tiles * choice.cluster);
    }
    text.body += cat("    ",
                     tensor           ? "gemm_mma<"
                     : choice.cluster ? "gemm_tiled_cluster<"
                                      : "gemm_tiled<",
                     t.m, ", ", t.n, ", ", t.part_m, ", ", t.part_n, ", ", t.k, ", ",
                     tensor ? cat(t.stages, ", ") : "", choice.parts,
                     ", @_Shape>(grid, @_Put{block}, x0, x1, ", room, ");\n}\n");
    return text;
}

}  // namespace aicf::cuda
