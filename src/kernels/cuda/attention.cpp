// Attention and its gradients: which kernel takes them, and how their operands lie.
#include <algorithm>

#include "kernels/cuda/codegen.h"
#include "kernels/cuda/thresholds.h"

namespace aicf::cuda {

namespace {

/// How the rows of an operand lie, [batch, head, row, column] or without columns: a struct.
/// `inside`: it is [batch, row, head, column].
std::string head_struct(const char* name, const View& view, bool inside) {
    const int rank = view.shape.rank();
    return cat(
        "struct @_", name, " {\n    static constexpr int64_t row = ", view.strides[inside ? 1 : 2],
        ", col = ", rank > 3 ? view.strides[3] : 0,
        ";\n    __device__ __forceinline__ static int64_t at(int64_t batch, int64_t head) {\n"
        "        return batch * ",
        view.strides[0], "ll + head * ", view.strides[inside ? 2 : 1], "ll;\n    }\n};\n");
}

/// What a kernel makes, or some blocks of one: of queries the gradient, of keys and values theirs,
/// or all of them.
enum class Part { forward, queries, keys, joint };
std::vector<Part> parts_of(const LoweredOp& op) {
    const std::string& name = op.def->name;
    if (name == "attention") return {Part::forward};
    if (name == "attention_dq") return {Part::queries};
    if (name == "attention_dkv") return {Part::keys};
    return {Part::queries, Part::keys};
}

/// What the operands of a part of an op are called in the kernel.
struct Named {
    const View* view;
    size_t at;
    const char *type, *name;
};

std::vector<Named> operands_of(const LoweredOp& op, Part part) {
    std::vector<const char*> types = {"Q", "K", "V"}, results = {"O", "Most", "Sum"};
    if (part != Part::forward) types.insert(types.end(), {"Most", "Sum", "Delta", "Dy"});
    if (op.inputs.size() > types.size()) types.push_back("Mask");
    if (part == Part::queries) results = {"Dq"};
    if (part == Part::keys) results = {"Dk", "Dv"};
    if (part == Part::joint) results = {"Dq", "Dk", "Dv"};
    std::vector<Named> all;
    for (size_t k = 0; k < types.size(); k++) all.push_back({&op.inputs[k], k, types[k], types[k]});
    const size_t first = part == Part::keys ? op.outputs.size() - 2 : 0;
    for (size_t k = 0; k < results.size(); k++)
        all.push_back(
            {&op.outputs[first + k], op.inputs.size() + first + k, results[k], results[k]});
    return all;
}

/// How the copy engine reads the rows of an operand by boxes of 64 columns, and the struct's two
/// functions that say where a head begins; none where it cannot.
struct HeadMap {
    TensorMap map;
    std::string places;
};
std::optional<HeadMap> head_map(const LoweredOp& op, int input, const char* name, int box) {
    constexpr int64_t unit = 8, most = int64_t{1} << 31;  // 16 bytes; what a map counts with
    const View& view = op.inputs[static_cast<size_t>(input)];
    const int64_t batches = view.shape[0], heads = view.shape[1], rows = view.shape[2],
                  d = view.shape[3], b = view.strides[0], h = view.strides[1], r = view.strides[2];
    if (dtype_size(view.dtype) != 2 || d % 64 != 0 || view.strides[3] != 1 || rows < 1)
        return std::nullopt;
    for (int64_t step : {b, h, r, view.offset})
        if (step < 0 || step % unit != 0 || step >= most) return std::nullopt;
    if (rows >= most || batches * heads >= most || r < d) return std::nullopt;
    const auto places = [&](const std::string& x, const std::string& z) {
        const auto place = [&](const char* of, const std::string& arguments,
                               const std::string& value) {
            return cat("    __device__ __forceinline__ static int ", name, of, "(", arguments,
                       ") {\n        return int(", value, ");\n    }\n");
        };
        return place("_x", "int64_t head", x) + place("_z", "int64_t batch, int64_t head", z);
    };
    // Heads one after the other as batches are, or inside a line.
    if (heads == 1 || batches == 1 || b == h * heads) {
        const int64_t step = heads == 1 ? b : h;
        if (batches * heads == 1 || step >= d)
            return HeadMap{{input, view.dtype, d, rows, batches * heads, r,
                            batches * heads == 1 ? r : step, box},
                           places("0", cat("batch * ", heads, " + head"))};
    }
    const int64_t line = (heads - 1) * h + d;
    if (line > r || (batches > 1 && b < 1)) return std::nullopt;
    return HeadMap{{input, view.dtype, line, rows, batches, r, batches == 1 ? r : b, box},
                   places(cat("head * ", h), batches == 1 ? "0" : "batch")};
}

/// A function that multiplies 64 rows by wgmma: `a` and `b` are what it is called with and what the
/// instruction says of them.
std::string step_text(const char* name, int columns, DType type, bool held, bool across,
                      bool own_across = false) {
    const int sums = columns / 2;
    std::string list, operands;
    for (int x = 0; x < sums; x++) {
        list += cat(x ? ", %" : "%", x);
        operands += cat(x ? ", \"+f\"(d[" : "\"+f\"(d[", x, "])");
    }
    const char* kind = type == DType::f16 ? "f16" : "bf16";
    std::string first = cat("%", sums), values = "\"l\"(a)";
    int next = sums + 1;
    if (held) {
        first = cat("{%", sums, ", %", sums + 1, ", %", sums + 2, ", %", sums + 3, "}");
        values = "\"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3])";
        next = sums + 4;
    }
    return cat("    __device__ __forceinline__ static void ", name, "(float (&d)[", sums, "], ",
               held ? "const uint32_t (&a)[4]" : "uint64_t a",
               ", uint64_t b, bool add) {\n        asm volatile(\"{\\n.reg .pred p;\\nsetp.ne.b32 "
               "p, %",
               next + 1, ", 0;\\n\"\n            \"wgmma.mma_async.sync.aligned.m64n", columns,
               "k16.f32.", kind, ".", kind, " {", list, "}, ", first, ", %", next, ", p, 1, 1",
               held         ? ""
               : own_across ? ", 1"
                            : ", 0",
               across ? ", 1" : ", 0", ";\\n}\"\n            : ", operands,
               "\n            : ", values, ", \"l\"(b), \"r\"(int(add)));\n    }\n");
}

/// Whether rows of a result lie so that a lane stores two neighbours at once, wherever it begins.
bool stores_pairs(const View& view) {
    bool pairs = view.strides[3] == 1 && view.offset % 2 == 0;
    for (int axis = 0; axis < 3; axis++) pairs = pairs && view.strides[axis] % 2 == 0;
    return pairs;
}

/// How the tiles of heads are dealt to the blocks of a persistent grid, as TileTurn has it.
struct Deal {
    int64_t cohort, blocks;  // heads that are dealt together
};

/// What the busiest block of a deal has to do. `costs`: of the tiles of a head, the longest first.
int64_t busiest_of(const Deal& deal, const std::vector<int64_t>& costs, int64_t heads) {
    const auto tiles = static_cast<int64_t>(costs.size());
    std::vector<int64_t> loads(static_cast<size_t>(deal.blocks));
    for (int64_t unit = 0; unit < tiles * heads; unit++) {
        const int64_t round = unit / deal.blocks, at = unit % deal.blocks,
                      first = unit / (tiles * deal.cohort) * deal.cohort;
        loads[static_cast<size_t>(round % 2 ? deal.blocks - 1 - at : at)] +=
            costs[static_cast<size_t>(unit % (tiles * deal.cohort) /
                                      std::min(deal.cohort, heads - first))];
    }
    return *std::max_element(loads.begin(), loads.end());
}

/// The deal whose busiest block has least to do. `fits`: of how many heads the L2 cache has what
/// their tiles read in common; cohorts of more, up to `most`, are taken where they save a percent.
Deal deal(const std::vector<int64_t>& costs, int64_t heads, int64_t fits, int64_t most,
          int processors) {
    constexpr int64_t looked_at = 1 << 16, all_cohorts = 1 << 20;
    const auto tiles = static_cast<int64_t>(costs.size());
    const int64_t units = tiles * heads, all = std::max(processors, 1);
    if (costs.front() == costs.back() || units > looked_at)
        return {std::clamp(ceil_div(2 * all, tiles), int64_t{1}, fits), std::min(units, all)};
    Deal best{};
    int64_t least = INT64_MAX;
    const auto after = [&](int64_t cohort) {
        const int64_t step = units * most > all_cohorts ? std::max<int64_t>(cohort / 8, 1) : 1;
        return std::min(most, cohort + step);
    };
    for (const int64_t blocks : {all, std::max(all / tiles * tiles, all / 2)})
        for (int64_t cohort = 1, last = 0; last < most; last = cohort, cohort = after(cohort)) {
            const Deal one{cohort, std::min(units, blocks)};
            const int64_t busiest = busiest_of(one, costs, heads) * (cohort > fits ? 101 : 100);
            if (busiest < least) {
                least = busiest;
                best = one;
            }
        }
    return best;
}

/// What the tiles of `rows` rows of a head cost, the longest first, in blocks of `block` others.
std::vector<int64_t> tile_costs(const LoweredOp& op, int64_t rows, int64_t block, bool of_keys) {
    const int64_t t = op.inputs[0].shape[2], s = op.inputs[1].shape[2];
    const bool causal = op.attrs.flag("causal");
    // Where not all tiles are full, the forward's first is not.
    const int64_t first =
        op.def->name == "attention" ? ceil_div(t, int64_t{64}) * 64 - ceil_div(t, rows) * rows : 0;
    std::vector<int64_t> costs;
    if (of_keys)
        for (int64_t j = 0; j < s; j += rows)
            costs.push_back(1 + ceil_div(causal ? std::max<int64_t>(t - j, 0) : t, block));
    else
        for (int64_t i = first; i < t; i += rows)
            costs.insert(costs.begin(), 1 + ceil_div(causal ? std::min(i + rows, s) : s, block));
    return costs;
}

/// How the kernels of 9.0 whose warps have roles take an op: a tile is rows of queries, or of keys
/// for the gradient of these, and goes through the others block by block.
struct Roles {
    int groups;  // warpgroups that multiply, each 64 rows of a tile
    int rows() const { return 64 * groups; }
    int block;
    int boxes;            // of 64 columns a row
    int stages, seconds;  // of the rings: of keys or queries; of values or gradients
    int owns, slopes;  // of all gradients: of so many tiles keys are there, of so many turns slopes
    bool ahead;        // of gradients: registers hold the scores of the next block, too
    std::vector<HeadMap> maps;  // of queries, keys, values and the gradient of the result
};

/// For heads of 64 or 128 columns without a mask; none for others.
std::optional<Roles> roles_of(const LoweredOp& op, const Limits& limits, Part part) {
    const bool forward = part == Part::forward, joint = part == Part::joint,
               of_keys = joint || part == Part::keys;
    const View &q = op.inputs[0], &k = op.inputs[1];
    const int64_t d = q.shape[3], t = q.shape[2], s = k.shape[2];
    if (limits.major != 9 || op.inputs.size() > (forward ? 3 : 7) || (d != 64 && d != 128) ||
        t < kRolesRows || s < kRolesRows)
        return std::nullopt;
    for (const View& result : op.outputs)
        if (result.shape.rank() == 4 && !stores_pairs(result)) return std::nullopt;
    Roles roles{};
    roles.groups = forward && d == 64 ? 3 : 2;
    roles.block = forward || (joint && d == 64) ? 128 : 64;
    roles.boxes = static_cast<int>(d / 64);
    roles.ahead = d == 64 && !joint;
    roles.slopes = d == 64 ? 1 : 2;
    roles.owns = d == 64 ? 2 : 1;
    // With scores ahead three blocks are held at a time, and one passed over between each two.
    roles.stages = !forward ? (roles.ahead ? 5 : 3) : roles.ahead ? 4 : 2;
    // Keys are held for three blocks by the gradient of queries, values for one.
    const bool uneven = part == Part::queries && !roles.ahead;
    if (uneven) roles.stages = 4;
    roles.seconds = uneven || (joint && d == 64) ? 2 : roles.stages;
    const int of_q = of_keys ? roles.block : roles.rows(),
              of_k = of_keys ? roles.rows() : roles.block;
    const auto add = [&](int input, const char* name, int box) {
        auto map = head_map(op, input, name, box);
        if (map) roles.maps.push_back(std::move(*map));
        return map.has_value();
    };
    if (!add(0, "q", of_q) || !add(1, "k", of_k) || !add(2, "v", of_k) ||
        (!forward && !add(6, "dy", of_q)))
        return std::nullopt;
    const int64_t heads = q.shape[0] * (of_keys ? k : q).shape[1];
    if (ceil_div(of_keys ? s : t, roles.rows()) * heads >= INT32_MAX) return std::nullopt;
    return roles;
}

Deal deal_of(const LoweredOp& op, const Limits& limits, Part part, const Roles& roles) {
    constexpr int64_t sharing = 6;
    const int64_t cached = part == Part::forward ? kFarBytes : kCachedBytes;
    const bool of_keys = part != Part::forward && part != Part::queries;
    const View &q = op.inputs[0], &k = op.inputs[1];
    const int64_t others = of_keys ? q.shape[2] * (q.shape[1] / k.shape[1]) : k.shape[2],
                  heads = q.shape[0] * (of_keys ? k : q).shape[1],
                  bytes = std::max<int64_t>(4 * q.shape[3] * others, 1),
                  fits = std::clamp(cached / bytes, int64_t{1}, heads);
    // Forward keys and values may fill the cache; what does not fit is read once for all tiles of a
    // head that are at work at a time: six are enough. Causal, forward, TFLOP/s by cohorts on an
    // H100: 16384 positions, 32 heads of 64: 5 384, 8 385, 10 397, 20 403, 32 382; 16 heads of 128:
    // 1 535, 16 551; on an H200: 4096 positions, 64 heads of 128: 11 485, 22 503, 32 458. Gradients
    // lose by it: 16384 positions, 32 heads of 64: 3 338, 11 320, 22 307, 32 325.
    const int64_t most =
        part == Part::forward ? std::clamp(limits.processors / sharing, fits, heads) : fits;
    return deal(tile_costs(op, roles.rows(), roles.block, of_keys), heads, fits, most,
                limits.processors);
}

/// Tiles of a head at work at a time where one kernel makes all gradients: the fewer the shorter
/// heads are, since each begins behind the one before. Causal, TFLOP/s on an H200 by heads of a
/// cohort, heads of 64: 1024 positions 16 120, 66 314, 132 327, two kernels, of seven products,
/// 276; 4096 positions 16 326, 33 373, 44 387, 66 401, two kernels 319; 16384 positions 16 428, 32
/// 416, two kernels 327. Heads of 128: 1024 positions 16 187, 66 347, two kernels 341; 4096
/// positions 16 389, 33 440, two kernels 401.
int64_t joint_sharing(const LoweredOp& op) {
    const int64_t boxes = op.inputs[0].shape[3] / 64,
                  tiles = ceil_div(op.inputs[1].shape[2], int64_t{128});
    return std::clamp(tiles * boxes / 16, boxes, int64_t{8});
}

/// Whether one kernel may take all gradients, in five products.
bool may_be_joint(const LoweredOp& op, const Limits& limits) {
    return op.def->name == "attention_grads" && roles_of(op, limits, Part::joint).has_value();
}

/// Where it adds the gradients of queries between two tiles of keys: for so many heads of keys at a
/// time, for so many of queries each blocks of rows.
struct JointSums {
    int64_t cohort, slots, blocks, bytes;
};
JointSums joint_sums(const LoweredOp& op, const Limits& limits) {
    const Roles roles = *roles_of(op, limits, Part::joint);
    const View &q = op.inputs[0], &k = op.inputs[1];
    const int64_t blocks = ceil_div(q.shape[2], roles.block),
                  tiles = ceil_div(k.shape[2], roles.rows()), share = q.shape[1] / k.shape[1],
                  heads = q.shape[0] * k.shape[1], all = std::max(limits.processors, 1);
    const int64_t cohort = std::clamp(all / joint_sharing(op), int64_t{1}, heads);
    // A head waits for one that came so many before: for none at work.
    const int64_t slots = std::min(heads, std::max(2 * cohort, ceil_div(3 * all, tiles))) * share;
    return {cohort, slots, blocks, slots * blocks * roles.boxes * roles.block * 64 * 4};
}

bool may_have_roles(const LoweredOp& op, const Limits& limits) {
    const std::vector<Part> parts = parts_of(op);
    return std::all_of(parts.begin(), parts.end(),
                       [&](Part part) { return roles_of(op, limits, part).has_value(); });
}

/// The kernel of attention or of its gradients, or the part of one.
class AttentionText {
  public:
    /// `maps`: how many other parts have in the argument block.
    AttentionText(const LoweredOp& op, const Limits& limits, Part part, size_t maps)
        : op_(op),
          limits_(limits),
          part_(part),
          maps_(static_cast<int>(maps)),
          name_(part == Part::forward   ? "attention"
                : part == Part::queries ? "attention_dq"
                : part == Part::keys    ? "attention_dkv"
                                        : "attention_grads"),
          layout_(op),
          type_(op.inputs[0].dtype),
          t_(op.inputs[0].shape[2]),
          s_(op.inputs[1].shape[2]),
          d_(op.inputs[0].shape[3]),
          forward_(part == Part::forward),
          of_keys_(part == Part::keys || part == Part::joint),
          chain_(op.attrs.text("order").starts_with("chain(")) {}

    KernelText text() {
        check_order();
        operands();
        if (part_ == Part::joint) {
            jointly(*roles_of(op_, limits_, part_));
            return text_;
        }
        if (!chain_ && op_.candidate == kRolesAttention && may_have_roles(op_, limits_)) {
            with_roles(*roles_of(op_, limits_, part_));
            return text_;
        }
        text_.name = cat(name_, chain_ ? "_chain_" : "_mma_", dtype_abbrev(type_));
        text_.body += cat(body_head(), "    const float scale = float(", number(),
                          "), factor = float(", number(), kPerScale, ");\n");
        const int64_t rows = chain_ ? chain() : tensor_cores();
        text_.body += "}\n";
        const int64_t sides = (of_keys_ ? op_.inputs[1] : op_.inputs[0]).shape[1];
        text_.blocks = std::min<int64_t>(
            ceil_div(of_keys_ ? s_ : t_, rows) * op_.inputs[0].shape[0] * sides, INT32_MAX);
        if (d_ == 0) text_.blocks = 0;
        return text_;
    }

  private:
    static constexpr const char* kPerScale = " * 1.4426950408889634";  // log2(e)

    /// Tensor cores of a device compute one order.
    void check_order() const {
        const std::string own = tensor_order(limits_.major, false);
        const std::string& order = op_.attrs.text("order");
        if (chain_ || (limits_.major >= 8 && order.starts_with(own + "("))) return;
        raise(ErrorKind::unsupported, title(op_), ": order is \"", order,
              "\", a device of compute capability ", limits_.major, ".x computes ",
              limits_.major < 8 ? "none of tensor cores" : own + "(c)", "; need ",
              limits_.major < 8 ? "" : "that, or ", "\"chain(64)\"");
    }

    std::string number() const { return cat("block.number(", layout_.scalars, ")"); }

    /// How the operands lie, the op's shape, and the operands as arguments of a call.
    void operands() {
        const View &q = op_.inputs[0], &k = op_.inputs[1];
        const bool masked = op_.inputs.size() > (forward_ ? 3u : 7u),
                   inside = op_.attrs.flag("inside");
        const int64_t heads = q.shape[1], groups = k.shape[1];
        std::string shape = cat(
            "struct @_Shape {\n    static constexpr int64_t batches = ", q.shape[0],
            ", heads = ", heads, ", share = ", groups ? heads / groups : 1, ", t = ", t_,
            ", s = ", s_, ";\n    static constexpr int d = ", d_,
            ";\n    static constexpr bool causal = ", op_.attrs.flag("causal") ? "true" : "false",
            ", masked = ", masked ? "true" : "false", ";\n");
        for (const Named& one : operands_of(op_, part_)) {
            const bool input = one.at < op_.inputs.size();
            text_.body +=
                head_struct(one.type, *one.view, inside && !input && one.view->shape.rank() == 4);
            shape += cat("    typedef @_", one.type, " ", one.type, ";\n");
            (input ? reads_ : results_) +=
                cat("block.ptr<", input ? "const " : "", cuda_type(one.view->dtype), ">(",
                    layout_.operand[one.at], "), ");
        }
        if (!masked) {
            reads_ += "(const bool*)nullptr, ";
            shape += "    typedef @_Q Mask;\n";  // named, never read
        }
        text_.body += shape + "};\n";
    }

    /// The end of a call without roles, from the template argument @_Shape on.
    std::string call_end() const {
        return cat("@_Shape>(grid, ", results_, reads_, "factor", forward_ ? "" : ", scale",
                   ");\n");
    }

    /// The kernel of the order chain(c); the rows that a block takes.
    int64_t chain() {
        // Lines as ChainLines has them.
        const int lots = d_ > kWideHead ? 2 : 4;
        const int64_t padded = (d_ + 3) / 4 * 4, pitch = padded / 4 % 2 ? padded : padded + 4,
                      rows = 16 * lots;
        text_.includes = {"attention_chain.cuh"};
        text_.threads = 256;
        text_.shared =
            static_cast<uint32_t>(4 * (((forward_ ? 1 : 2) * rows + 64) * pitch + rows * (64 + 4)));
        text_.body += cat("    ", name_, "_chain<", lots, ", ", call_end());
        return rows;
    }

    /// The kernel of mma.sync, without roles; the rows that a block takes.
    int64_t tensor_cores() {
        const int64_t width = (d_ + 15) / 16 * 16, pitch = 2 * width + 16;
        const int warps = forward_ && d_ > 64 ? 8 : 4;
        const int64_t other = forward_ ? attention_block(d_) : 64, rows = 16 * warps;
        text_.includes = {"attention.cuh"};
        text_.threads = 32 * warps;
        text_.resident = forward_ && d_ <= 64 ? 3 : warps == 8 || d_ > kWideHead ? 1 : 2;
        text_.shared = static_cast<uint32_t>(forward_ ? (rows + 2 * other) * pitch
                                                      : (2 * rows + 4 * other) * pitch +
                                                            (of_keys_ ? 2 * 8 * other : 0));
        const auto call = [&](const char* parts) {
            text_.body += cat("    ", name_, "_mma<", warps, ", ", other, ", ", parts, call_end());
        };
        if (!of_keys_) {
            call("");
        } else if (d_ <= kWideHead) {
            call("true, true, ");
        } else {  // the sums of both are more than registers hold
            call("false, true, ");
            call("true, false, ");
        }
        return rows;
    }

    void with_roles(const Roles& roles) {
        text_.name = cat(name_, "_wgmma_", dtype_abbrev(type_));
        text_.includes = {forward_ ? "attention_wgmma.cuh" : "attention_bwd_wgmma.cuh"};
        text_.threads = 128 * (roles.groups + 1);
        const Deal dealt = deal_of(op_, limits_, part_, roles);
        text_.blocks = dealt.blocks;
        for (const HeadMap& one : roles.maps) text_.maps.push_back(one.map);
        text_.shared = static_cast<uint32_t>(forward_ ? forward_room(roles) : gradient_room(roles));
        text_.body += roles_struct(roles, dealt.cohort) + body_head();
        text_.body += cat("    ", name_, "_wgmma<@_Layout, @_Shape, ", cuda_type(type_), ">(grid, ",
                          results_, numbers_and_maps(roles), "float(", number(), kPerScale, ")",
                          forward_ ? "" : cat(", float(", number(), ")"), ");\n}\n");
    }
    std::string numbers_and_maps(const Roles& roles) const {
        std::string text;
        if (!forward_)
            for (size_t input : {3, 4, 5})
                text += cat("block.ptr<const float>(", layout_.operand[input], "), ");
        for (int k = 0; k < static_cast<int>(roles.maps.size()); k++)
            text += cat("block.bytes + ",
                        layout_.tail + int(kTailBytes) + (maps_ + k) * int(kMapBytes), ", ");
        return text;
    }

    /// All gradients by blocks of keys, which hand sums of queries on to one another.
    void jointly(const Roles& roles) {
        text_.name = cat(name_, "_joint_wgmma_", dtype_abbrev(type_));
        text_.includes = {"attention_grads_wgmma.cuh"};
        text_.threads = 128 * (roles.groups + 1);
        const View &q = op_.inputs[0], &k = op_.inputs[1];
        const JointSums sums = joint_sums(op_, limits_);
        text_.blocks = std::min(ceil_div(s_, roles.rows()) * q.shape[0] * k.shape[1],
                                int64_t{std::max(limits_.processors, 1)});
        text_.workspace = static_cast<uint64_t>(sums.bytes);
        text_.counters = static_cast<int>(2 + sums.slots * sums.blocks);
        for (const HeadMap& one : roles.maps) text_.maps.push_back(one.map);
        text_.shared = static_cast<uint32_t>(joint_room(roles));
        text_.body += roles_struct(
            roles, sums.cohort,
            cat("    static constexpr uint32_t slots = ", sums.slots, ", slopes = ", roles.slopes,
                ", owns = ", roles.owns, ";\n", step_text("queries", 64, type_, false, true, true),
                step_text("keys", static_cast<int>(d_), type_, false, true)));
        text_.body += cat(body_head(), "    attention_grads_wgmma<@_Layout, @_Shape, ",
                          cuda_type(type_), ">(grid, ", results_, numbers_and_maps(roles),
                          "block.ptr<float>(16), block.ptr<uint32_t>(", layout_.tail, "), float(",
                          number(), kPerScale, "), float(", number(), "));\n}\n");
    }

    /// Bytes of shared memory, as AttentionRoom has them.
    static int64_t forward_room(const Roles& roles) {
        const int64_t box = 128 * 128, ones = roles.boxes == 1 ? 2048 : box,
                      value = roles.boxes * box + (roles.boxes == 1 ? 0 : ones);
        return 2 * roles.boxes * roles.rows() * 128 + roles.stages * (roles.boxes * box + value) +
               (roles.boxes == 1 ? ones : 0) + 8 * (4 + 4 * roles.stages) +
               (roles.stages >= 4 ? 8 * 2 * roles.rows() : 0) + 4 * 16;
    }
    /// And as GradientRoom has them.
    static int64_t gradient_room(const Roles& roles) {
        return 4 * roles.boxes * roles.rows() * 128 +
               (roles.stages + roles.seconds) * roles.boxes * roles.block * 128 +
               roles.stages * 8 * roles.block + 8 * (4 + 2 * (roles.stages + roles.seconds));
    }

    /// And as JointRoom has them.
    static int64_t joint_room(const Roles& roles) {
        return 2 * roles.owns * roles.boxes * roles.rows() * 128 +
               (roles.stages + roles.seconds) * roles.boxes * roles.block * 128 +
               roles.slopes * roles.rows() * roles.block * 2 + roles.boxes * roles.block * 256 +
               roles.stages * 8 * roles.block + 16 + 8 * (13 + 2 * (roles.stages + roles.seconds));
    }

    /// The struct @_Layout of a kernel with roles.
    std::string roles_struct(const Roles& roles, int64_t cohort,
                             const std::string& more = "") const {
        std::string text =
            cat("struct @_Layout {\n    static constexpr int boxes = ", roles.boxes,
                forward_ ? cat(", groups = ", roles.groups) : cat(", block = ", roles.block),
                ", stages = ", roles.stages,
                ", producer_registers = ", forward_ ? (roles.groups == 3 ? 32 : 24) : 40,
                ", consumer_registers = ",
                !forward_           ? 232
                : roles.groups == 3 ? 160
                                    : 240,
                ";\n    static constexpr uint32_t cohort = ", cohort, ";\n");
        if (!forward_)
            text +=
                cat("    static constexpr int seconds = ", roles.seconds,
                    ";\n    static constexpr bool ahead = ", roles.ahead ? "true" : "false", ";\n");
        text += more;
        for (const HeadMap& one : roles.maps) text += one.places;
        const int columns = static_cast<int>(d_) + (forward_ ? 8 : 0);
        return text + step_text("scores", forward_ ? 64 : roles.block, type_, false, false) +
               step_text("values", columns, type_, true, true) + "};\n";
    }

    const LoweredOp& op_;
    const Limits& limits_;
    const Part part_;
    const int maps_;
    const std::string name_;
    const BlockLayout layout_;
    const DType type_;
    const int64_t t_, s_, d_;               // rows of queries and of keys, and their columns
    const bool forward_, of_keys_, chain_;  // of_keys: the gradient whose rows are keys
    std::string results_, reads_;           // arguments of a call
    KernelText text_;
};

/// All gradients in one launch: blocks that make those of keys, and those of queries, which begin
/// where the first have ended. (The other way round the compiler lets no two products of the first
/// run at a time.)
KernelText gradients_text(const LoweredOp& op, const Limits& limits) {
    KernelText text = AttentionText(op, limits, Part::keys, 0).text();
    const KernelText queries = AttentionText(op, limits, Part::queries, text.maps.size()).text();
    check(text.threads == queries.threads, "cuda: parts of attention_grads have unlike threads");
    text.name.replace(0, std::string_view("attention_dkv").size(), "attention_grads");
    text.body =
        cat("typedef @_Block @_0_Block;\ntypedef @_Block @_1_Block;\n",
            replaced(text.body, "@", "@_0"), replaced(queries.body, "@", "@_1"), body_head(),
            "    if (grid.block < ", text.blocks, "u)\n        @_0_body(block, Grid{grid.block, ",
            text.blocks, "u, grid.threads});\n    else\n        @_1_body(block, Grid{grid.block - ",
            text.blocks, "u, ", queries.blocks, "u, grid.threads});\n}\n");
    text.maps.insert(text.maps.end(), queries.maps.begin(), queries.maps.end());
    text.blocks += queries.blocks;
    text.shared = std::max(text.shared, queries.shared);
    text.resident = std::min(text.resident, queries.resident);
    return text;
}

}  // namespace

bool is_attention(const LoweredDef& def) { return def.attention; }

std::vector<std::string> attention_candidates(const LoweredOp& op, const Limits& limits) {
    if (op.attrs.text("order").starts_with("chain(") || !may_have_roles(op, limits)) return {};
    std::vector<std::string> names = {kRolesAttention, kPlainAttention};
    if (op.inputs[0].shape[2] < kRolesLength || op.inputs[1].shape[2] < kRolesLength)
        std::swap(names[0], names[1]);
    if (!may_be_joint(op, limits)) return names;
    const View &q = op.inputs[0], &k = op.inputs[1];
    const int64_t length = q.shape[3] == 64 ? kJointLength : kJointLengthWide;
    const bool first = op.attrs.flag("causal") && q.shape[2] >= length && k.shape[2] >= length &&
                       q.shape[0] * k.shape[1] >= limits.processors / joint_sharing(op) &&
                       joint_sums(op, limits).bytes <= kJointBytes;
    names.insert(first ? names.begin() : names.end(), kJointAttention);
    return names;
}

KernelText attention_text(const LoweredOp& op, const Limits& limits) {
    if (op.candidate == kJointAttention && may_be_joint(op, limits))
        return AttentionText(op, limits, Part::joint, 0).text();
    const std::vector<Part> parts = parts_of(op);
    return parts.size() == 1 ? AttentionText(op, limits, parts[0], 0).text()
                             : gradients_text(op, limits);
}

}  // namespace aicf::cuda
