// Attention and its gradients in the orders of abi.h: a unit is some rows of one head, taken
// against blocks of the others. In the order chain(c) products are those of matmul.inl, in mma16(c)
// steps in integers. Included once per instruction set; see isa.cpp. No standard-library templates
// here.

namespace aicf::cpu::AICF_ISA {
namespace attn {

using mm::Brain;
using mm::ceil_div;
using mm::Half;
using mm::kSame;
using mm::min;

AICF_HD float widen(float x) { return x; }
AICF_HD void narrow(float x, float* to) { *to = x; }

constexpr float kNone = -__builtin_inff();
constexpr int64_t kRows = kAttentionRows;   // of a unit
constexpr int64_t kKeys = kAttentionChain;  // of a block of the others, queries too
constexpr int64_t kLanes = 16;
static_assert(kRows >= kKeys && kKeys % kLanes == 0);

/// The rows of one head of an operand [batch, head, row, column], or without columns.
template <class E>
struct Lines {
    E* at;
    int64_t row, col;
    AICF_HD Lines(const Operand& x, int64_t batch, int64_t head)
        : at(static_cast<E*>(x.ptr) + batch * x.strides()[0] + head * x.strides()[1]),
          row(x.strides()[2]),
          col(x.rank > 3 ? x.strides()[3] : 0) {}
    /// A result, which may be [batch, row, head, column].
    AICF_HD Lines(const Operand& x, int64_t batch, int64_t head, bool inside)
        : at(static_cast<E*>(x.ptr) + batch * x.strides()[0] + head * x.strides()[inside ? 2 : 1]),
          row(x.strides()[inside ? 1 : 2]),
          col(x.strides()[3]) {}
    AICF_HD E& operator()(int64_t r, int64_t c = 0) const { return at[r * row + c * col]; }
};

enum Op { kForward, kDq, kDkv, kGrads };  // kGrads: kDq, then kDkv

struct Sizes {
    int64_t batches, heads, t, d, groups, s, share;
    bool causal, masked, inside;
    int64_t chain;  // c of chain(c), or -c of mma16(c)
    float scale, factor;
    AICF_HD Sizes(const ArgBlock& args, Op op) {
        const int64_t *const q = args.in(0).shape(), *const k = args.in(1).shape();
        batches = q[0], heads = q[1], t = q[2], d = q[3], groups = k[1], s = k[2];
        share = heads / groups;
        scale = float(args.scalar(0).f);
        factor = float(args.scalar(0).f * 1.4426950408889634);
        causal = args.scalar(1).i != 0;
        chain = args.scalar(2).i;
        inside = args.scalar(3).i != 0;
        masked = args.inputs > (op == kForward ? 3 : 7);
    }
    AICF_HD int64_t tiles(Op op) const { return ceil_div(op == kDkv ? s : t, kRows); }
    AICF_HD int64_t units(Op op) const {
        const int64_t queries = batches * heads * tiles(kDq), keys = batches * groups * tiles(kDkv);
        return op == kGrads ? queries + keys : op == kDkv ? keys : queries;
    }
};

/// Which keys the queries of a head see.
struct Seen {
    const Sizes& z;
    const uint8_t* mask;
    int64_t row, col;
    AICF_HD Seen(const Sizes& sizes, const ArgBlock& args, Op op, int64_t batch, int64_t head)
        : z(sizes), mask(nullptr), row(0), col(0) {
        if (!z.masked) return;
        const Lines<const uint8_t> lines(args.in(op == kForward ? 3 : 7), batch, head);
        mask = lines.at, row = lines.row, col = lines.col;
    }
    AICF_HD bool operator()(int64_t query, int64_t key) const {
        return key < z.s && query < z.t && !(z.causal && key > query) &&
               (!mask || mask[query * row + key * col]);
    }
};

// ---- chains -------------------------------------------------------------------------------------

/// Lines as numbers with their steps: where they lie, or copied.
struct Numbers {
    const float* at;
    int64_t row, col;
};
template <class E>
AICF_INLINE Numbers numbers_of(const Lines<const E>& lines, int64_t first, int64_t count, int64_t d,
                               float* room) {
    if constexpr (kSame<E, float>) return {lines.at + first * lines.row, lines.row, lines.col};
    for (int64_t r = 0; r < count; r++)
        for (int64_t c = 0; c < d; c++) room[r * d + c] = widen(lines(first + r, c));
    return {room, d, 1};
}

/// What a thread works with.
struct Room {
    float *scores, *slopes, *part, *acc, *more, *own, *own_too, *other, *other_too;
    char* product;
    AICF_HD static int64_t floats(int64_t d) { return 2 * kRows * kKeys + 7 * kRows * d; }
    AICF_HD static uint64_t product_bytes(int64_t d) {
        const int64_t a = mm::share<float>(kRows, kKeys, d, kChainChunk),
                      b = mm::share<float>(kRows, d, kKeys, kChainChunk);
        const int64_t c = mm::share<float>(kKeys, kRows, d, kChainChunk);
        return uint64_t(mm::max(a, mm::max(b, c)));
    }
    AICF_HD static uint64_t bytes(int64_t d) {
        return (uint64_t(floats(d)) * sizeof(float) + product_bytes(d) + 127) / 64 * 64;
    }
    AICF_HD Room(char* from, int64_t d) {
        float* at =
            reinterpret_cast<float*>((reinterpret_cast<uintptr_t>(from) + 63) & ~uintptr_t(63));
        float** const all_scores_of[] = {&scores, &slopes};
        for (float** one : all_scores_of) *one = at, at += kRows * kKeys;
        float** const all_lines_of[] = {&part, &acc, &more, &own, &own_too, &other, &other_too};
        for (float** one : all_lines_of) *one = at, at += kRows * d;
        product = reinterpret_cast<char*>(at);
    }
};

/// scores[i][j] = line i of a times line j of b.
void chain_scores(const Numbers& a, const Numbers& b, int64_t rows, int64_t keys, int64_t d,
                  float* scores, int64_t pitch, char* room) {
    mm::product<float, float>(a.at, a.row, a.col, b.at, b.col, b.row, scores, pitch, 1, rows, keys,
                              d, kChainChunk, room);
}

/// acc[i] = acc[i] * step[i] + the chain of weights [rows][terms] times lines, of lines of kKeys;
/// `turned`: weights are [terms][rows], of lines of kRows.
void chain_add(const float* weights, bool turned, const Numbers& lines, int64_t rows, int64_t terms,
               int64_t d, const float* step, float* acc, float* part, char* room) {
    mm::product<float, float>(weights, turned ? 1 : kKeys, turned ? kRows : 1, lines.at, lines.row,
                              lines.col, part, d, 1, rows, d, terms, kChainChunk, room);
    for (int64_t i = 0; i < rows; i++) {
        float* const a = acc + i * d;
        const float *const p = part + i * d, by = step ? step[i] : 1.0f;
        if (by == 1.0f)
#pragma GCC ivdep
            for (int64_t c = 0; c < d; c++) a[c] = a[c] + p[c];
        else
#pragma GCC ivdep
            for (int64_t c = 0; c < d; c++) a[c] = a[c] * by + p[c];
    }
}

template <class E>
void store_lines(const float* acc, int64_t rows, int64_t d, const float* factor, float scale,
                 const Lines<E>& to, int64_t first) {
    for (int64_t i = 0; i < rows; i++) {
        const float by = factor ? factor[i] : scale;
        for (int64_t c = 0; c < d; c++) narrow(acc[i * d + c] * by + 0.0f, &to(first + i, c));
    }
}

/// Of so many numbers, whole lanes.
AICF_INLINE float largest_of(const float* x, int64_t count) {
    float most[kLanes];
    for (int l = 0; l < kLanes; l++) most[l] = x[l];
    for (int64_t j = kLanes; j < count; j += kLanes)
        for (int l = 0; l < kLanes; l++) most[l] = scalar::maximum(most[l], x[j + l]);
    for (int64_t half = kLanes / 2; half > 0; half /= 2)
        for (int l = 0; l < half; l++) most[l] = scalar::maximum(most[l], most[l + half]);
    return most[0];
}

template <class E>
void forward_chain(const ArgBlock& args, const Sizes& z, int64_t batch, int64_t head, int64_t i0,
                   char* workspace) {
    const Lines<const E> q(args.in(0), batch, head), k(args.in(1), batch, head / z.share),
        v(args.in(2), batch, head / z.share);
    const Lines<E> o(args.out(0), batch, head, z.inside);
    const Lines<float> tops(args.out(1), batch, head), sums(args.out(2), batch, head);
    const Seen seen(z, args, kForward, batch, head);
    const Room room(workspace, z.d);
    const int64_t rows = min(kRows, z.t - i0), d = z.d;
    const Numbers queries = numbers_of(q, i0, rows, d, room.own);
    float top[kRows], step[kRows], total[kRows][kLanes];
    for (int64_t i = 0; i < rows; i++) {
        top[i] = kNone;
        for (int l = 0; l < kLanes; l++) total[i][l] = 0;
        for (int64_t c = 0; c < d; c++) room.acc[i * d + c] = 0;
    }
    const int64_t end = z.causal ? min(z.s, i0 + rows) : z.s;
    for (int64_t j0 = 0; j0 < end; j0 += kKeys) {
        const int64_t keys = min(kKeys, z.s - j0);
        chain_scores(queries, numbers_of(k, j0, keys, d, room.other), rows, keys, d, room.scores,
                     kKeys, room.product);
        for (int64_t i = 0; i < rows; i++) {
            float* const s = room.scores + i * kKeys;
            const int64_t query = i0 + i;
            // Of keys that are seen one after the other, those up to the next whole lanes.
            const int64_t seen_keys = z.causal ? mm::max(min(keys, query - j0 + 1), 0) : keys,
                          lanes = ceil_div(seen_keys, kLanes) * kLanes;
            if (lanes == 0) {
                for (int64_t j = 0; j < keys; j++) s[j] = 0;
                step[i] = 1.0f;
                continue;
            }
            for (int64_t j = seen_keys; j < lanes; j++) s[j] = kNone;
            if (z.masked)
                for (int64_t j = 0; j < seen_keys; j++) s[j] = seen(query, j0 + j) ? s[j] : kNone;
            const float next = scalar::maximum(top[i],
                                               scalar::weight_top(largest_of(s, lanes), z.factor)),
                        used = next == kNone ? 0.0f : next;
            step[i] = scalar::weight_step(top[i], next);
            top[i] = next;
            const float factor = z.factor;
#pragma GCC ivdep
            for (int64_t j = 0; j < lanes; j++)
                s[j] = scalar::weight(scalar::fma(s[j], factor, -used));
            for (int64_t j = seen_keys; j < mm::max(lanes, keys); j++) s[j] = 0;
            if (z.masked)
                for (int64_t j = 0; j < seen_keys; j++) s[j] = seen(query, j0 + j) ? s[j] : 0.0f;
            for (int l = 0; l < kLanes; l++) total[i][l] = total[i][l] * step[i];
            for (int64_t j = 0; j < lanes; j += kLanes)
                for (int l = 0; l < kLanes; l++) total[i][l] = total[i][l] + s[j + l];
        }
        chain_add(room.scores, false, numbers_of(v, j0, keys, d, room.other), rows, keys, d, step,
                  room.acc, room.part, room.product);
    }
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t half = kLanes / 2; half > 0; half /= 2)
            for (int l = 0; l < half; l++) total[i][l] = total[i][l] + total[i][l + half];
        tops(i0 + i) = top[i];
        sums(i0 + i) = total[i][0];
        step[i] = scalar::weight_share(top[i], total[i][0]);
    }
    store_lines(room.acc, rows, d, step, 1.0f, o, i0);
}

/// Of queries against keys: their weights in `scores`, and slopes, these times what reaches them
/// less its mean.
template <class E>
AICF_INLINE void slopes_chain(const Sizes& z, const Seen& seen, const Numbers& queries,
                              const Numbers& keys, const Numbers& values, const Numbers& upstream,
                              int64_t i0, int64_t rows, int64_t j0, int64_t count, const float* top,
                              const float* share, const float* mean, int64_t pitch,
                              const Room& room) {
    chain_scores(queries, keys, rows, count, z.d, room.scores, pitch, room.product);
    chain_scores(upstream, values, rows, count, z.d, room.slopes, pitch, room.product);
    for (int64_t i = 0; i < rows; i++) {
        float *const p = room.scores + i * pitch, *const s = room.slopes + i * pitch;
        const float by = share[i], less = mean[i], factor = z.factor,
                    used = top[i] == kNone ? 0.0f : top[i];
#pragma GCC ivdep
        for (int64_t j = 0; j < count; j++)
            p[j] = scalar::weight(scalar::fma(p[j], factor, -used)) * by;
        if (z.masked)
            for (int64_t j = 0; j < count; j++) p[j] = seen(i0 + i, j0 + j) ? p[j] : 0.0f;
        else if (z.causal)
            for (int64_t j = mm::max(i0 + i - j0 + 1, 0); j < count; j++) p[j] = 0;
#pragma GCC ivdep
        for (int64_t j = 0; j < count; j++) s[j] = p[j] * (s[j] - less);
    }
}

/// The numbers of rows [i0, i0 + rows) of a head: top, share and mean.
struct RowNumbers {
    float top[kRows], share[kRows], mean[kRows];
    AICF_HD RowNumbers(const ArgBlock& args, int64_t batch, int64_t head, int64_t i0,
                       int64_t rows) {
        const Lines<const float> tops(args.in(3), batch, head), sums(args.in(4), batch, head),
            deltas(args.in(5), batch, head);
        for (int64_t i = 0; i < rows; i++) {
            top[i] = tops(i0 + i);
            share[i] = scalar::weight_share(top[i], sums(i0 + i));
            mean[i] = deltas(i0 + i);
        }
    }
};

/// The number of dk among the outputs: behind dq where one op makes all.
AICF_HD int first_of_keys(const ArgBlock& args) { return args.outputs > 2 ? 1 : 0; }

template <class E>
void dq_chain(const ArgBlock& args, const Sizes& z, int64_t batch, int64_t head, int64_t i0,
              char* workspace) {
    const Lines<const E> q(args.in(0), batch, head), k(args.in(1), batch, head / z.share),
        v(args.in(2), batch, head / z.share), dy(args.in(6), batch, head);
    const Seen seen(z, args, kDq, batch, head);
    const Room room(workspace, z.d);
    const int64_t rows = min(kRows, z.t - i0), d = z.d;
    const Numbers queries = numbers_of(q, i0, rows, d, room.own),
                  upstream = numbers_of(dy, i0, rows, d, room.own_too);
    const RowNumbers numbers(args, batch, head, i0, rows);
    for (int64_t x = 0; x < rows * d; x++) room.acc[x] = 0;
    const int64_t end = z.causal ? min(z.s, i0 + rows) : z.s;
    for (int64_t j0 = 0; j0 < end; j0 += kKeys) {
        const int64_t count = min(kKeys, z.s - j0);
        const Numbers keys = numbers_of(k, j0, count, d, room.other),
                      values = numbers_of(v, j0, count, d, room.other_too);
        slopes_chain<E>(z, seen, queries, keys, values, upstream, i0, rows, j0, count, numbers.top,
                        numbers.share, numbers.mean, kKeys, room);
        chain_add(room.slopes, false, keys, rows, count, d, nullptr, room.acc, room.part,
                  room.product);
    }
    store_lines(room.acc, rows, d, nullptr, z.scale, Lines<E>(args.out(0), batch, head, z.inside),
                i0);
}

template <class E>
void dkv_chain(const ArgBlock& args, const Sizes& z, int64_t batch, int64_t group, int64_t j0,
               char* workspace) {
    const Lines<const E> k(args.in(1), batch, group), v(args.in(2), batch, group);
    const Room room(workspace, z.d);
    const int64_t count = min(kRows, z.s - j0), d = z.d;
    const Numbers keys = numbers_of(k, j0, count, d, room.own),
                  values = numbers_of(v, j0, count, d, room.own_too);
    for (int64_t x = 0; x < count * d; x++) room.acc[x] = room.more[x] = 0;
    for (int64_t head = group * z.share; head < (group + 1) * z.share; head++) {
        const Lines<const E> q(args.in(0), batch, head), dy(args.in(6), batch, head);
        const Seen seen(z, args, kDkv, batch, head);
        for (int64_t i0 = z.causal ? j0 : 0; i0 < z.t; i0 += kKeys) {
            const int64_t rows = min(kKeys, z.t - i0);
            const Numbers queries = numbers_of(q, i0, rows, d, room.other),
                          upstream = numbers_of(dy, i0, rows, d, room.other_too);
            const RowNumbers numbers(args, batch, head, i0, rows);
            slopes_chain<E>(z, seen, queries, keys, values, upstream, i0, rows, j0, count,
                            numbers.top, numbers.share, numbers.mean, kRows, room);
            chain_add(room.scores, true, upstream, count, rows, d, nullptr, room.more, room.part,
                      room.product);
            chain_add(room.slopes, true, queries, count, rows, d, nullptr, room.acc, room.part,
                      room.product);
        }
    }
    store_lines(room.acc, count, d, nullptr, z.scale,
                Lines<E>(args.out(first_of_keys(args)), batch, group, z.inside), j0);
    store_lines(room.more, count, d, nullptr, 1.0f,
                Lines<E>(args.out(first_of_keys(args) + 1), batch, group, z.inside), j0);
}

// ---- steps of tensor cores ----------------------------------------------------------------------

using Term = scalar::MmaTerm;
constexpr int kDepth = 16;
constexpr Term kZero{0, scalar::kMmaNever};

AICF_HD int64_t whole_steps(int64_t n) { return ceil_div(n, kDepth) * kDepth; }

/// Lines [first, first + count) of rows, of which those from `left` on and columns from d on are 0:
/// [count][whole_steps(d)], or turned, [d][count].
template <class E>
void decode_lines(const Lines<const E>& lines, int64_t first, int64_t count, int64_t left,
                  int64_t d, bool turned, Term* to) {
    const int64_t width = whole_steps(d);
    for (int64_t r = 0; r < count; r++)
        for (int64_t c = 0; c < (turned ? d : width); c++)
            to[turned ? c * count + r : r * width + c] =
                r < left && c < d ? mm::mma_term(lines(first + r, c)) : kZero;
}
/// sums[i][j] after steps over lines i of a and j of b, of `terms` each.
void add_steps(const Term* a, const Term* b, int64_t rows, int64_t columns, int64_t terms,
               float* sums, int64_t pitch) {
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) {
            float sum = sums[i * pitch + j];
            for (int64_t p = 0; p < terms; p += kDepth)
                sum = scalar::mma_step<kDepth>(sum, a + i * terms + p, b + j * terms + p);
            sums[i * pitch + j] = sum;
        }
}
template <class E>
Term rounded_term(float x) {
    E narrowed;
    mm::narrow(x, &narrowed);
    return mm::mma_term(narrowed);
}

constexpr int64_t kMostBlock = 128;

struct StepRoom {
    Term *own, *own_too, *other, *other_too, *weights, *slopes, *turned, *turned_too;
    float *scores, *more, *acc, *acc_too;
    AICF_HD static uint64_t bytes(int64_t d) {
        const int64_t width = whole_steps(d);
        return uint64_t(2 * kRows + 4 * kMostBlock) * uint64_t(width) * sizeof(Term) +
               2 * kRows * kMostBlock * (sizeof(Term) + sizeof(float)) +
               2 * kRows * uint64_t(width) * sizeof(float) + 128;
    }
    AICF_HD StepRoom(char* from, int64_t d) {
        const int64_t width = whole_steps(d);
        Term* at =
            reinterpret_cast<Term*>((reinterpret_cast<uintptr_t>(from) + 63) & ~uintptr_t(63));
        Term** const all_lines_own[] = {&own, &own_too};
        for (Term** one : all_lines_own) *one = at, at += kRows * width;
        Term** const all_lines_other[] = {&other, &other_too, &turned, &turned_too};
        for (Term** one : all_lines_other) *one = at, at += kMostBlock * width;
        Term** const all_products[] = {&weights, &slopes};
        for (Term** one : all_products) *one = at, at += kRows * kMostBlock;
        float* number = reinterpret_cast<float*>(at);
        float** const all_pairs[] = {&scores, &more};
        for (float** one : all_pairs) *one = number, number += kRows * kMostBlock;
        float** const all_sums_of[] = {&acc, &acc_too};
        for (float** one : all_sums_of) *one = number, number += kRows * width;
    }
};

template <class E>
void forward_steps(const ArgBlock& args, const Sizes& z, int64_t batch, int64_t head, int64_t i0,
                   char* workspace) {
    const Lines<const E> q(args.in(0), batch, head), k(args.in(1), batch, head / z.share),
        v(args.in(2), batch, head / z.share);
    const Lines<E> o(args.out(0), batch, head, z.inside);
    const Lines<float> tops(args.out(1), batch, head), sums(args.out(2), batch, head);
    const Seen seen(z, args, kForward, batch, head);
    const StepRoom room(workspace, z.d);
    const int64_t rows = min(kRows, z.t - i0), d = z.d, block = -z.chain;
    const float scale = scalar::weight_scale(z.factor);
    decode_lines(q, i0, rows, rows, d, false, room.own);
    float top[kRows], total[kRows];
    Term ones[kMostBlock];
    for (int64_t j = 0; j < block; j++) ones[j] = rounded_term<E>(1.0f);
    for (int64_t i = 0; i < rows; i++) {
        top[i] = kNone;
        total[i] = 0;
        for (int64_t c = 0; c < d; c++) room.acc[i * d + c] = 0;
    }
    const int64_t end = z.causal ? min(z.s, i0 + rows) : z.s;
    for (int64_t j0 = 0; j0 < end; j0 += block) {
        const int64_t left = min(block, z.s - j0);
        decode_lines(k, j0, block, left, d, false, room.other);
        decode_lines(v, j0, block, left, d, true, room.turned);
        for (int64_t x = 0; x < rows * block; x++) room.scores[x] = 0;
        add_steps(room.own, room.other, rows, block, whole_steps(d), room.scores, block);
        for (int64_t i = 0; i < rows; i++) {
            const float* const s = room.scores + i * block;
            float most = kNone;
            for (int64_t j = 0; j < block; j++)
                if (seen(i0 + i, j0 + j)) most = scalar::maximum(most, s[j]);
            const float next = scalar::weight_rise(top[i], scalar::weight_top(most, z.factor)),
                        start = scalar::weight_start(next == kNone ? 0.0f : -next),
                        step = scalar::weight_step(top[i], next);
            top[i] = next;
            total[i] = total[i] * step;
            for (int64_t c = 0; c < d; c++) room.acc[i * d + c] = room.acc[i * d + c] * step;
            for (int64_t j = 0; j < block; j++) {
                const float w = scalar::weight_16<kSame<E, Half>>(s[j], scale, start);
                room.weights[i * block + j] = rounded_term<E>(seen(i0 + i, j0 + j) ? w : 0.0f);
            }
            add_steps(room.weights + i * block, ones, 1, 1, block, total + i, 1);
        }
        add_steps(room.weights, room.turned, rows, d, block, room.acc, d);
    }
    for (int64_t i = 0; i < rows; i++) {
        tops(i0 + i) = top[i];
        sums(i0 + i) = total[i];
        top[i] = scalar::weight_share(top[i], total[i]);
    }
    store_lines(room.acc, rows, d, top, 1.0f, o, i0);
}

/// The weights and slopes of a query's row against a key.
template <class E>
AICF_INLINE void slope_steps(const Sizes& z, const Seen& seen, int64_t query, int64_t key,
                             float start, float mean, float score, float reaching, Term* weight,
                             Term* slope) {
    float w = scalar::weight_16<kSame<E, Half>>(score, scalar::weight_scale(z.factor), start);
    if (!seen(query, key)) w = 0;
    *weight = rounded_term<E>(w);
    *slope = rounded_term<E>(w * (reaching - mean));
}

template <class E>
void dq_steps(const ArgBlock& args, const Sizes& z, int64_t batch, int64_t head, int64_t i0,
              char* workspace) {
    const Lines<const E> q(args.in(0), batch, head), k(args.in(1), batch, head / z.share),
        v(args.in(2), batch, head / z.share), dy(args.in(6), batch, head);
    const Lines<const float> tops(args.in(3), batch, head), sums(args.in(4), batch, head),
        deltas(args.in(5), batch, head);
    const Seen seen(z, args, kDq, batch, head);
    const StepRoom room(workspace, z.d);
    const int64_t rows = min(kRows, z.t - i0), d = z.d, width = whole_steps(d);
    decode_lines(q, i0, rows, rows, d, false, room.own);
    decode_lines(dy, i0, rows, rows, d, false, room.own_too);
    for (int64_t x = 0; x < rows * d; x++) room.acc[x] = 0;
    const int64_t end = z.causal ? min(z.s, i0 + rows) : z.s;
    for (int64_t j0 = 0; j0 < end; j0 += kKeys) {
        const int64_t left = min(kKeys, z.s - j0);
        decode_lines(k, j0, kKeys, left, d, false, room.other);
        decode_lines(v, j0, kKeys, left, d, false, room.other_too);
        decode_lines(k, j0, kKeys, left, d, true, room.turned);
        for (int64_t x = 0; x < rows * kKeys; x++) room.scores[x] = room.more[x] = 0;
        add_steps(room.own, room.other, rows, kKeys, width, room.scores, kKeys);
        add_steps(room.own_too, room.other_too, rows, kKeys, width, room.more, kKeys);
        for (int64_t i = 0; i < rows; i++) {
            const float start =
                            scalar::weight_start(scalar::weight_offset(tops(i0 + i), sums(i0 + i))),
                        mean = deltas(i0 + i);
            for (int64_t j = 0; j < kKeys; j++) {
                const int64_t x = i * kKeys + j;
                slope_steps<E>(z, seen, i0 + i, j0 + j, start, mean, room.scores[x], room.more[x],
                               room.weights + x, room.slopes + x);
            }
        }
        add_steps(room.slopes, room.turned, rows, d, kKeys, room.acc, d);
    }
    store_lines(room.acc, rows, d, nullptr, z.scale, Lines<E>(args.out(0), batch, head, z.inside),
                i0);
}

template <class E>
void dkv_steps(const ArgBlock& args, const Sizes& z, int64_t batch, int64_t group, int64_t j0,
               char* workspace) {
    const Lines<const E> k(args.in(1), batch, group), v(args.in(2), batch, group);
    const StepRoom room(workspace, z.d);
    const int64_t count = min(kRows, z.s - j0), d = z.d, width = whole_steps(d);
    decode_lines(k, j0, count, count, d, false, room.own);
    decode_lines(v, j0, count, count, d, false, room.own_too);
    for (int64_t x = 0; x < count * d; x++) room.acc[x] = room.acc_too[x] = 0;
    for (int64_t head = group * z.share; head < (group + 1) * z.share; head++) {
        const Lines<const E> q(args.in(0), batch, head), dy(args.in(6), batch, head);
        const Lines<const float> tops(args.in(3), batch, head), sums(args.in(4), batch, head),
            deltas(args.in(5), batch, head);
        const Seen seen(z, args, kDkv, batch, head);
        for (int64_t i0 = z.causal ? j0 : 0; i0 < z.t; i0 += kKeys) {
            const int64_t left = min(kKeys, z.t - i0);
            decode_lines(q, i0, kKeys, left, d, false, room.other);
            decode_lines(dy, i0, kKeys, left, d, false, room.other_too);
            decode_lines(q, i0, kKeys, left, d, true, room.turned);
            decode_lines(dy, i0, kKeys, left, d, true, room.turned_too);
            for (int64_t x = 0; x < count * kKeys; x++) room.scores[x] = room.more[x] = 0;
            add_steps(room.own, room.other, count, kKeys, width, room.scores, kKeys);
            add_steps(room.own_too, room.other_too, count, kKeys, width, room.more, kKeys);
            for (int64_t i = 0; i < kKeys; i++) {
                const bool there = i < left;
                const float offset =
                                there ? scalar::weight_offset(tops(i0 + i), sums(i0 + i)) : kNone,
                            start = scalar::weight_start(offset),
                            mean = there ? deltas(i0 + i) : 0.0f;
                for (int64_t j = 0; j < count; j++) {
                    const int64_t x = j * kKeys + i;
                    slope_steps<E>(z, seen, i0 + i, j0 + j, start, mean, room.scores[x],
                                   room.more[x], room.weights + x, room.slopes + x);
                }
            }
            add_steps(room.weights, room.turned_too, count, d, kKeys, room.acc_too, d);
            add_steps(room.slopes, room.turned, count, d, kKeys, room.acc, d);
        }
    }
    store_lines(room.acc, count, d, nullptr, z.scale,
                Lines<E>(args.out(first_of_keys(args)), batch, group, z.inside), j0);
    store_lines(room.acc_too, count, d, nullptr, 1.0f,
                Lines<E>(args.out(first_of_keys(args) + 1), batch, group, z.inside), j0);
}

// ---- units --------------------------------------------------------------------------------------

template <Op Which>
int64_t units(const ArgBlock& args, int phase) {
    return phase == 0 ? Sizes(args, Which).units(Which) : 0;
}

AICF_HD uint64_t room_bytes(const Sizes& z) {
    return z.chain < 0 ? StepRoom::bytes(z.d) : Room::bytes(z.d);
}
template <Op Which>
uint64_t workspace(const ArgBlock& args, int threads) {
    return uint64_t(threads) * room_bytes(Sizes(args, Which));
}

template <Op Which, class E>
void run_units(const ArgBlock& args, const Sizes& z, int64_t begin, int64_t end, char* room) {
    if constexpr (Which == kGrads) {
        const int64_t queries = z.units(kDq);
        if (begin < queries) run_units<kDq, E>(args, z, begin, min(end, queries), room);
        if (end > queries)
            run_units<kDkv, E>(args, z, begin > queries ? begin - queries : 0, end - queries, room);
        return;
    }
    const int64_t tiles = z.tiles(Which), heads = Which == kDkv ? z.groups : z.heads;
    for (int64_t u = begin; u < end; u++) {
        const int64_t batch = u / tiles / heads, head = u / tiles % heads,
                      first = u % tiles * kRows;
        if constexpr (!kSame<E, float>) {
            if (z.chain < 0) {
                if constexpr (Which == kForward)
                    forward_steps<E>(args, z, batch, head, first, room);
                else if constexpr (Which == kDq)
                    dq_steps<E>(args, z, batch, head, first, room);
                else
                    dkv_steps<E>(args, z, batch, head, first, room);
                continue;
            }
        }
        if constexpr (Which == kForward)
            forward_chain<E>(args, z, batch, head, first, room);
        else if constexpr (Which == kDq)
            dq_chain<E>(args, z, batch, head, first, room);
        else
            dkv_chain<E>(args, z, batch, head, first, room);
    }
}

template <Op Which>
void run(const ArgBlock& args, int64_t begin, int64_t end, int phase, int thread) {
    if (phase != 0) return;
    const Sizes z(args, Which);
    char* const room = static_cast<char*>(args.workspace) + uint64_t(thread) * room_bytes(z);
    switch (DType(args.in(0).dtype)) {
        case DType::f32:
            return run_units<Which, float>(args, z, begin, end, room);
        case DType::f16:
            return run_units<Which, Half>(args, z, begin, end, room);
        case DType::bf16:
            return run_units<Which, Brain>(args, z, begin, end, room);
        default:
            return;
    }
}

}  // namespace attn

void register_attention(Table& table) {
    constexpr uint32_t types =
        dtype_bit(DType::f32) | dtype_bit(DType::f16) | dtype_bit(DType::bf16);
    using namespace attn;
    table.add(CpuKernel{"attention", types, run<kForward>, units<kForward>, workspace<kForward>});
    table.add(CpuKernel{"attention_dq", types, run<kDq>, units<kDq>, workspace<kDq>});
    table.add(CpuKernel{"attention_dkv", types, run<kDkv>, units<kDkv>, workspace<kDkv>});
    table.add(CpuKernel{"attention_grads", types, run<kGrads>, units<kGrads>, workspace<kGrads>});
}

}  // namespace aicf::cpu::AICF_ISA
