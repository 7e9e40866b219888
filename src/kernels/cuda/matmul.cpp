// Which gemm fits a shape. Those of f32 and f64 take k in the order the op declares, so the choice
// changes no bit; tensor cores have an order of their own, fixed by the shape and the device.
#include <algorithm>

#include "kernels/cuda/codegen.h"

namespace aicf::cuda {

namespace {

/// A tiled kernel: a block computes m x n with tiles of depth k, a thread or a warp part_m x
/// part_n.
struct Tiling {
    int m, n, k, stages, part_m, part_n, threads;
    int resident;         // blocks a processor holds
    double share, alone;  // cycles a step of k costs: of a full processor, and at the least
};

constexpr Tiling kScalar[] = {{128, 128, 16, 2, 8, 8, 256, 2, 171, 190},
                              {64, 64, 16, 3, 8, 4, 128, 4, 49, 60},
                              {32, 32, 32, 4, 4, 4, 64, 8, 20, 35}};
constexpr Tiling kDouble[] = {{64, 64, 16, 2, 8, 4, 128, 2, 98, 120}};
constexpr Tiling kTensor[] = {{128, 256, 32, 4, 64, 64, 256, 1, 38, 40},
                              {128, 128, 32, 4, 64, 64, 128, 2, 20, 22},
                              {64, 64, 64, 4, 32, 32, 128, 3, 8, 9}};

struct Choice {
    const Tiling* tiling = nullptr;
    int64_t tiles = 0, parts = 1, slots = 0;  // slots: results a tile leaves in the workspace
    double cycles = 0;
};

struct Problem {
    int64_t batches, m, n, k;
    int64_t grain;    // k is cut at multiples of this
    bool each_grain;  // the result of each grain is kept apart, not that of each part
    int64_t size;     // bytes of a sum
};

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

/// The fastest by a model of waves: parts of k fill the device, joining them costs their bytes.
template <size_t Count>
Choice choose(const Tiling (&tilings)[Count], const Problem& p, const Target& target) {
    constexpr int64_t most_bytes = 64 << 20;
    constexpr double arrival = 3000, join_bytes = 32;  // cycles; bytes a cycle and processor
    const int64_t processors = std::max(target.processors, 1), grains = ceil_div(p.k, p.grain);
    Choice best;
    for (const Tiling& t : tilings) {
        const int64_t tiles = p.batches * ceil_div(p.m, t.m) * ceil_div(p.n, t.n);
        for (int64_t wanted = 1; wanted <= std::min<int64_t>(grains, 64); wanted *= 2) {
            const int64_t run = ceil_div(grains, wanted), parts = ceil_div(grains, run);
            const int64_t slots = p.each_grain ? grains : parts;
            const int64_t tile_bytes = slots * t.m * t.n * p.size;
            if (parts > 1 && tiles * tile_bytes > most_bytes) break;
            const auto depth = static_cast<double>(std::min(run * p.grain, p.k));
            const int64_t units = tiles * parts;
            double cycles =
                depth *
                std::max(static_cast<double>(ceil_div(units, processors)) * t.share,
                         static_cast<double>(ceil_div(units, processors * t.resident)) * t.alone);
            if (parts > 1)
                cycles += arrival + static_cast<double>(ceil_div(tiles, processors) * tile_bytes) /
                                        join_bytes;
            if (!best.tiling || cycles < best.cycles) best = {&t, tiles, parts, slots, cycles};
        }
    }
    return best;
}

}  // namespace

KernelText gemm_text(const LoweredOp& op, const Target& target) {
    const View &a = op.inputs[0], &b = op.inputs[1], &c = op.outputs[0];
    const int rank = c.shape.rank();
    const int64_t m = c.shape[rank - 2], n = c.shape[rank - 1], k = a.shape[rank - 1];
    const std::string order = op.attrs.text("order");
    if (!order.starts_with("chain("))
        raise(ErrorKind::unsupported, "cuda: gemm: its order is ", order, "; need chain(c)");
    const int64_t chunk = std::atoll(order.c_str() + 6);
    int64_t batches = 1;
    for (int d = 0; d < rank - 2; d++) batches *= c.shape[d];
    const BlockLayout layout(op);
    KernelText text;
    text.include = "matmul.cuh";
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
    batch_struct("@_C", c);
    const auto number = [](const char* name, int64_t value) {
        return cat("    static constexpr int64_t ", name, " = ", value, ";\n");
    };
    text.body +=
        cat("struct @_Shape {\n    typedef @_A A;\n    typedef @_B B;\n    typedef @_C C;\n",
            number("m", m), number("n", n), number("k", k), number("batches", batches),
            number("chunk", chunk), number("a_row", a.strides[rank - 2]),
            number("a_col", a.strides[rank - 1]), number("b_row", b.strides[rank - 2]),
            number("b_col", b.strides[rank - 1]), number("c_row", c.strides[rank - 2]),
            number("c_col", c.strides[rank - 1]), "};\n");
    const std::string wide = wide_type(c.dtype);
    const std::string stem = cat("gemm_", dtype_abbrev(c.dtype), "_");
    const bool half = c.dtype == DType::f16 || c.dtype == DType::bf16;
    // Asynchronous copies and their large tiles begin with 8.0.
    const bool tiled =
        target.major >= 8 && chunk % 32 == 0 && k >= 32 && m * n >= 64 && m * n * k >= 1 << 17;
    if (!tiled) {
        const int64_t chunks = std::max<int64_t>(ceil_div(k, chunk), 1);
        int64_t slices = 1;
        while (slices < 8 && slices < chunks) slices *= 2;
        text.name = stem + "small";
        text.threads = static_cast<int>(32 * slices);
        text.blocks = (batches * m * n + 31) / 32;
        text.body += entry_head(op, layout, text.threads);
        text.body += cat("    gemm_small<", wide, ", ", slices, ", @_Shape>(y0, x0, x1);\n}\n");
        return text;
    }
    const int64_t size = c.dtype == DType::f64 ? 8 : 4;
    const Problem problem{batches, m, n, k, half ? 128 : chunk, !half, size};
    const Choice choice = half       ? choose(kTensor, problem, target)
                          : size > 4 ? choose(kDouble, problem, target)
                                     : choose(kScalar, problem, target);
    const Tiling& t = *choice.tiling;
    text.name = cat(stem, t.m, "x", t.n);
    text.threads = t.threads;
    text.blocks = choice.tiles * choice.parts;
    if (choice.parts > 1) {
        text.name += cat("_", choice.parts);
        text.workspace = static_cast<uint64_t>(choice.tiles * choice.slots * t.m * t.n * size);
        text.counters = static_cast<int>(choice.tiles);
    }
    int64_t shared = int64_t{t.stages} * t.k * (t.m + t.n) * 2;
    if (!half) {
        shared = t.stages * t.k * (t.m + t.n + 8) * size;
        const bool stored_totals =
            choice.parts == 1 && k > chunk && t.part_m * t.part_n * size > 128;
        if (stored_totals) shared += t.m * t.n * size;
    }
    text.shared = static_cast<uint32_t>(shared);
    text.body += entry_head(op, layout, text.threads, false, t.resident);
    if (half) text.include = "mma.cuh";
    text.body += cat(
        "    ", half ? "gemm_mma<" : "gemm_tiled<", t.m, ", ", t.n, ", ", t.part_m, ", ", t.part_n,
        ", ", t.k, ", ", t.stages, ", ", choice.parts, ", @_Shape>(y0, x0, x1, ",
        choice.parts > 1 ? cat("block.ptr<", wide, ">(16), block.ptr<uint32_t>(", layout.tail, ")")
                         : cat("(", wide, "*)nullptr, (uint32_t*)nullptr"),
        ");\n}\n");
    return text;
}

}  // namespace aicf::cuda
