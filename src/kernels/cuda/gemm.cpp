// The kernels of a product, ranked, and what fusion and the plan ask of them.
#include "kernels/cuda/gemm.h"

#include <algorithm>

#include "core/graph/region.h"
#include "kernels/cuda/thresholds.h"

namespace aicf::cuda {

namespace {

/// The attribute, but that products of "fp32x" in chains are those of "fp32".
const std::string& math_of(const Attrs& attrs) {
    static const std::string plain = "fp32";
    const std::string& math = attrs.text("math");
    return math == "fp32x" && attrs.text("order").starts_with("chain(") ? plain : math;
}

/// The type in which wgmma reads such operands, if not their own.
std::optional<DType> read_as(const std::string& math) {
    if (math == "fp32") return std::nullopt;  // of "fp32x" limbs are bfloat16
    return math == "tf32" ? DType::f32 : math == "fp16" ? DType::f16 : DType::bf16;
}

}  // namespace

bool fits_group(const Choice& choice) {
    if (choice.thin) return true;
    const Tiling& t = *choice.tiling;
    return t.pair <= 1 && t.wide == 1 && choice.shares && !choice.cluster && !choice.pairs &&
           t.threads * std::max(choice.groups, 1) <= kGroupThreads;
}

Gemm::Gemm(const LoweredOp& of)
    : attrs(anchor_attrs(of)),
      a(of.inputs[0]),
      b(of.inputs[1]),
      c(of.outputs[0]),
      math(math_of(attrs)),
      rank(c.shape.rank()),
      m(c.shape[rank - 2]),
      n(c.shape[rank - 1]),
      k(a.shape[rank - 1]),
      size(a.dtype == DType::f64 ? 8 : 4),
      tf32(math == "tf32"),
      limbs(attrs.text("order").starts_with("limbs(")),
      tensor(limbs || attrs.text("order").starts_with("mma")),
      copied_as(read_as(math)),
      op(of) {
    const std::string& order = attrs.text("order");
    chunk = std::atoll(order.c_str() + order.find('(') + 1);
    for (int d = 0; d < rank - 2; d++) batches *= c.shape[d];
}

std::vector<Gemm::Reading> Gemm::readings(const Tiling& t) const {
    std::vector<Reading> found;
    const bool registers = !t.own && !t.writers && t.pair <= 1 && t.n >= 128;
    const auto a_there = mapped_operand(op, 0, 1, t.m, t.wide),
               b_there = mapped_operand(op, 1, 0, t.n, t.pair);
    const auto add = [&](Reads how, bool words, const MappedOperand& first,
                         const MappedOperand& second) {
        if (!words || registers) found.push_back({how, words, first, second});
    };
    const bool a_lies = a_there && (!copied_as || tf32),
               a_words = tf32 && a_lies && !a_there->along_k,
               b_lies = b_there && (!copied_as || (tf32 && b_there->along_k));
    if (a_lies && b_lies) add(Reads::lying, a_words, *a_there, *b_there);
    if (!copied_as || (a_lies && !a_words && b_lies)) return found;
    const auto fits = [&](Reads how) { return limbs || copied(how) <= kRoundedBytes; };
    if (a_lies && b_there && !b_lies && !a_words)
        add(Reads::turned, true, *mapped_operand(op, 1, 0, t.m),
            *mapped_operand(op, 0, 1, t.n, t.pair));
    const MappedOperand b_copy = copy(1, t);
    if (a_lies && !b_lies && fits(Reads::right_copied))
        add(Reads::right_copied, a_words, *a_there, b_copy);
    MappedOperand b_behind = b_copy;
    const MappedOperand a_copy = copy(0, t);
    b_behind.map.from = copy_bytes(a_copy.map);
    if (fits(Reads::copied)) add(Reads::copied, false, a_copy, b_behind);
    return found;
}

Gemm::Reading Gemm::reading(const Tiling& t, Reads how) const {
    const std::vector<Reading> all = readings(t);
    const auto found =
        std::find_if(all.begin(), all.end(), [&](const Reading& one) { return one.reads == how; });
    check(found != all.end(), "cuda: a product reads its operands in no way that it can");
    return *found;
}

MappedOperand Gemm::copy(int input, const Tiling& t) const {
    return rounded_operand(op, input, 1 - input, input ? t.n : t.m, input ? t.pair : 1, *copied_as,
                           planes());
}

int64_t Gemm::copied(Reads how) const {
    const bool none = !copied_as || how == Reads::lying || how == Reads::turned;
    const auto of = [&](int input) {
        return static_cast<int64_t>(copy_bytes(copy(input, kWgmma[0]).map));
    };
    return none ? 0 : of(1) + (how == Reads::copied ? of(0) : 0);
}

int64_t Gemm::moved(Reads how) const {
    const int64_t bytes = copied(how);
    if (bytes == 0) return 0;
    const auto each = static_cast<int64_t>(dtype_size(*copied_as)) * planes();
    return bytes + bytes / each * static_cast<int64_t>(dtype_size(a.dtype));
}

double Gemm::after() const {
    constexpr double each = 3;
    double sum = 0;
    for (const RegionStep& step : op.body)
        if (!step.def->gemm) sum += step.def->flops_per_element + each;
    return sum;
}

std::optional<int> Gemm::thin_side(const Limits& limits) const {
    const int side = m <= n ? 0 : 1;
    const View& wide = side ? a : b;
    const int64_t k_step = wide.strides[side ? rank - 1 : rank - 2],
                  own_step = wide.strides[side ? rank - 2 : rank - 1];
    const bool fits =
        k % (tensor ? 16 : 8) == 0 && (k_step == 1 || (own_step == 1 && !(tensor && tf32))) &&
        (tensor ? limits.major == 9 && (tf32 || dtype_size(a.dtype) == 2) : a.dtype == DType::f32);
    if (std::min(m, n) > (tensor ? kThinRows : kThinChainRows) || std::max(m, n) < kThinWide ||
        (math != "fp32" && !tf32) || !fits)
        return std::nullopt;
    return side;
}

void Gemm::check_order(const Limits& limits, bool tiled) const {
    if (!tensor) return;
    const std::string &order = attrs.text("order"), name = title(op);
    const std::string own = tensor_order(limits.major, tf32);
    if (limbs && limits.major != 9)
        raise(ErrorKind::unsupported, name, ": order is \"", order,
              "\", a device of compute capability ", limits.major,
              ".x does not compute it; need 9.x, or \"", chain_order(), "\"");
    if (limits.major < 8 || !(limbs || order.starts_with(own + "(")))
        raise(ErrorKind::unsupported, name, ": order is \"", order,
              "\", a device of compute capability ", limits.major, ".x computes ",
              limits.major < 8 ? "none of tensor cores" : own + "(c)", "; need ",
              limits.major < 8 ? "" : "that, or ", "\"", chain_order(), "\"");
    if (!tiled && batches * m * n * k > 0)
        raise(ErrorKind::unsupported, name, ": order is \"", order, "\" for a product of ", m,
              " x ", n, " x ", k, ", too small for tensor cores; need \"", chain_order(), "\", or ",
              kTiledTerms, " terms, ", kTiledResults, " results and ", kTiledWork,
              " multiplications at least");
}

void Gemm::add_update(const Limits& limits, std::vector<Choice>& choices) const {
    constexpr int64_t least = 128;   // threads of a block
    constexpr double element = 420;  // cycles
    // Sums of 32x32 of a warp leave no registers for what an update reads: by tiles of 64x64 of
    // such the step of 1024-1024-1024-10 with 128 rows in tf32 took an H100 76.7 us.
    constexpr int most = 16 * 32;
    if (tensor && limits.major == 9)
        std::erase_if(choices, [](const Choice& choice) {
            return !choice.groups || choice.boxes ||
                   choice.tiling->part_m * choice.tiling->part_n > most;
        });
    // For what an update reads, 128 registers are too few beside sums of 8 rows; tiles of all of k
    // have no form that ends in one.
    std::erase_if(choices, [](const Choice& choice) {
        return (choice.groups && choice.tiling->part_m == 8) ||
               (!choice.thin && choice.tiling->whole);
    });
    const int64_t room = tensor ? kTensorUpdateThreads : kUpdateThreads;
    for (Choice& choice : choices) {
        if (choice.thin) continue;
        const Tiling& t = *choice.tiling;
        const int64_t threads = t.threads * std::max(choice.groups, 1),
                      beside = std::max(room / std::max(threads, least), int64_t{1}),
                      rounds = ceil_div(choice.blocks, std::max(limits.processors, 1) * beside);
        choice.cycles += element * static_cast<double>(rounds * ceil_div(t.m * t.n, threads));
    }
    // Of 16 bits, one cut and many results large tiles read less, and all of them run at once: in
    // "mixed" the steps of 784-512-512-10, 512- and 1024-wide nets with 128 rows took an H100 25.9,
    // 24.0 and 42.6 us for 28.7, 24.7 and 44.6 by tiles of 32x32.
    constexpr int64_t least_results = 1 << 18;
    if (!tensor || !is_16_bit(a.dtype) || k > chunk || 2 * k <= chunk || m * n < least_results)
        return;
    const auto quickest =
        std::min_element(choices.begin(), choices.end(),
                         [](const Choice& x, const Choice& y) { return x.cycles < y.cycles; });
    for (Choice& choice : choices)
        if (!choice.thin && choice.groups == 1 && choice.tiling->m == 64 && choice.tiling->n == 64)
            choice.cycles = std::min(choice.cycles, quickest->cycles - 1);
}

void Gemm::add_wgmma(const Tiling& t, const Problem& problem, const Limits& limits,
                     std::vector<Choice>& found) const {
    if (copied_as && t.narrow) return;
    for (const Reading& reading : readings(t)) {
        Problem of = problem;
        of.reads = reading.reads;
        of.words = reading.words;
        of.moved = moved(reading.reads);
        if (reading.reads == Reads::turned) std::swap(of.m, of.n);
        add_choices(t, of, limits, found);
        if (copied_as) continue;
        add_runs(t, of, limits, found);
        add_clusters(t, of, limits, found);
    }
}

std::vector<Choice> Gemm::choices(const Limits& limits) const {
    std::vector<Choice> found;
    Problem problem{batches, m, n, k, chunk, tensor, size};
    problem.rate = tf32 ? kWgmmaTf32 : 1;
    problem.after = after();
    problem.hands_over = !op.body.empty() && !copied_as && size == 4 && packs_eights(op);
    problem.narrows = copied_as && *copied_as != DType::f32;
    problem.element = static_cast<int64_t>(dtype_size(a.dtype));
    const auto a_there = mapped_operand(op, 0, 1, 16), b_there = mapped_operand(op, 1, 0, 32);
    problem.across = b_there && !b_there->along_k;
    problem.boxes = limits.major == 9 && (is_16_bit(a.dtype) || tf32) && m * n * k >= kRolesWork &&
                    a_there && a_there->along_k && b_there && (tf32 || !problem.across);
    problem.pairs = limits.major == 9 && !tensor && a.dtype == DType::f32;
    const auto add = [&](const auto& tilings) {
        for (const Tiling& t : tilings) add_choices(t, problem, limits, found);
    };
    const bool tiled = k >= (tensor ? kTiledTerms : 1) && m * n * k >= kTiledWork,
               near = !tensor && a.dtype == DType::f32 && math == "fp32" && k >= kNearTerms &&
                      m * n * k >= kNearWork;
    if (batches == 0 || limits.major < 8 || chunk % 32 != 0 || m * n < kTiledResults ||
        !(tiled || near))
        return found;
    if (!tensor) {
        if (tiled) size > 4 ? add(kDouble) : add(kScalar);
        if (tiled && a.dtype == DType::f32) add_pairs(problem, limits, found);
        if (near) add_near(problem, limits, found);
    } else if (limbs) {
        Problem whole = problem;
        whole.grain = k;  // its pieces are added in registers
        whole.reads = Reads::copied;
        whole.limbs = true;
        whole.narrows = false;
        whole.moved = moved(whole.reads);
        for (const Tiling& t : kLimbs)
            if (limits.major == 9) add_choices(t, whole, limits, found);
    } else {
        tf32 ? add(kTf32) : add(kTensor);
        // What is small enough to be a member of a group is not worth them.
        const bool large = m * n * k >= kRolesWork && limits.major == 9;
        for (const Tiling& t : kWgmma)
            if (large) add_wgmma(t, problem, limits, found);
        if (limits.major == 9 && chunk % 64 == 0) add_near_mma(problem, limits, found);
    }
    // No kernel is done before the operands are read; some cycles more but for one that only
    // reads them. Bytes a cycle and processor.
    constexpr double rate = 14, start = 1000;
    const double reading = static_cast<double>(batches * (m + n) * k) *
                           static_cast<double>(dtype_size(a.dtype)) /
                           (rate * std::max(limits.processors, 1));
    const auto sort = [&] {
        std::stable_sort(found.begin(), found.end(),
                         [](const Choice& x, const Choice& y) { return x.cycles < y.cycles; });
    };
    if (!tensor) sort();  // which is quicker where memory is what both wait for
    for (Choice& choice : found)
        choice.cycles = std::max(choice.cycles, reading + choice.tiling->start + start);
    if (tensor && !limbs) rank_near(problem, found);
    if (const auto side = thin_side(limits)) {
        constexpr int64_t kMuch = 1 << 22;  // elements across k, where it begins late
        const bool along_k = (*side ? a : b).strides[*side ? rank - 1 : rank - 2] == 1;
        Choice choice;
        choice.thin = true;
        choice.cycles = reading + start;
        if (!tensor && !along_k && std::max(m, n) * k < kMuch) choice.cycles *= 4;
        found.push_back(choice);
    }
    if (updates_behind(op)) add_update(limits, found);
    if (limits.most_warps < 32 || updates_behind(op))
        std::erase_if(found, [](const Choice& choice) { return !fits_group(choice); });
    sort();
    // Sums of cuts are several products', which share a launch by blocks that a group can have.
    if (op.def->name == "gemm_f32") std::stable_partition(found.begin(), found.end(), fits_group);
    return found;
}

// ---- what is asked of a product -----------------------------------------------------------------

std::vector<std::string> gemm_candidates(const LoweredOp& op, const Limits& limits) {
    std::vector<std::string> names;
    for (const Choice& choice : Gemm(op).choices(limits)) names.push_back(name_of(choice));
    return names;
}

int64_t terms_of(const LoweredOp& op) { return Gemm(op).k; }

double gemm_cycles(const LoweredOp& op, const Limits& limits) {
    const std::vector<Choice> choices = Gemm(op).choices(limits);
    for (const Choice& choice : choices)
        if (op.candidate.empty() || is_foreign(op) || name_of(choice) == op.candidate)
            return choice.cycles;
    return 0;
}

static bool is_one_product(const LoweredOp& op) {
    return op.members.empty() && anchor(op).gemm && (op.body.empty() || product_region(op));
}

/// Those that decide whether a product shares a launch: it takes a cluster, or groups of a block,
/// for its chunks alone.
static std::vector<Choice> shared_choices(const LoweredOp& op, const Limits& limits) {
    std::vector<Choice> choices = Gemm(op).choices(limits);
    std::erase_if(
        choices, [](const Choice& one) { return one.pairs || (one.cluster && !one.tiling->pair); });
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

bool gemm_updates_alike(const LoweredOp& op, const Limits& limits) {
    constexpr int sums = 32;  // of a thread: beside more an update spills
    if (!is_one_product(op)) return false;
    const Gemm gemm(op);
    std::vector<Choice> choices = gemm.choices(limits);
    if (gemm.tensor || choices.empty() || choices[0].thin || !fits_group(choices[0]) ||
        choices[0].tiling->part_m * choices[0].tiling->part_n > sums)
        return false;
    const std::string own = name_of(choices[0]);
    gemm.add_update(limits, choices);
    std::erase_if(choices, [](const Choice& one) { return one.thin || !fits_group(one); });
    const auto first =
        std::min_element(choices.begin(), choices.end(),
                         [](const Choice& x, const Choice& y) { return x.cycles < y.cycles; });
    return first != choices.end() && name_of(*first) == own;
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
    return is_16_bit(gemm.a.dtype) && !choices.empty() && !choices[0].thin &&
           choices[0].tiling->pair > 0 && choices[0].tiles >= turns * limits.processors;
}

bool gemm_leaves_room(const LoweredOp& op, const Limits& limits) {
    constexpr int64_t share = 4;
    if (!is_one_product(op)) return false;
    const std::vector<Choice> choices = shared_choices(op, limits);
    return !choices.empty() && !choices[0].thin && fits_group(choices[0]) &&
           choices[0].blocks * share <= limits.processors;
}

}  // namespace aicf::cuda
