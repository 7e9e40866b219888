// What wgmma.cuh is written with: which operands the copy engine can read, and the struct Layout.
#include "kernels/cuda/codegen.h"

namespace aicf::cuda {

std::optional<MappedOperand> mapped_operand(const LoweredOp& op, int input, int k_axis, int box) {
    constexpr int64_t unit = 8, most = int64_t{1} << 31;  // 16 bytes; what a map counts with
    const View& view = op.inputs[static_cast<size_t>(input)];
    const int rank = view.shape.rank(), k = rank - 2 + k_axis, own = rank - 1 - k_axis;
    Dims shape, strides;
    for (int d = 0; d < rank - 2; d++) {
        shape.push(view.shape[d]);
        strides.push(view.strides[d]);
    }
    const Iteration batch(shape, {strides});
    const bool along_k = view.strides[k] == 1;
    const int inner = along_k ? k : own, outer = along_k ? own : k;
    const int64_t batch_step = batch.shape.rank() ? batch.strides[0][0] : 0;
    if (dtype_size(view.dtype) != 2 || batch.shape.rank() > 1 || view.strides[inner] != 1)
        return std::nullopt;
    for (int64_t step : {view.strides[outer], batch_step, view.offset})
        if (step < 0 || step % unit != 0 || step >= most) return std::nullopt;
    if (view.strides[outer] < view.shape[inner] || view.shape[inner] >= most ||
        view.shape[outer] >= most)
        return std::nullopt;
    const bool batched = batch_step != 0;
    return MappedOperand{
        {input, view.dtype, view.shape[inner], view.shape[outer], batched ? batch.shape[0] : 1,
         view.strides[outer], batched ? batch_step : view.strides[outer], along_k ? box : 64},
        along_k,
        batched};
}

MappedOperand rounded_operand(const LoweredOp& op, int input, int k_axis, int box, DType type,
                              int planes) {
    const View& view = op.inputs[static_cast<size_t>(input)];
    const int rank = view.shape.rank();
    const int64_t k = view.shape[rank - 2 + k_axis], own = view.shape[rank - 1 - k_axis];
    bool batched = false;
    int64_t batches = 1;
    for (int d = 0; d < rank - 2; d++) batched = batched || view.strides[d] != 0;
    for (int d = 0; batched && d < rank - 2; d++) batches *= view.shape[d];
    const auto unit = static_cast<int64_t>(16 / dtype_size(type));
    const int64_t step = ceil_div(k, unit) * unit;
    return MappedOperand{
        {TensorMap::workspace, type, k, own, planes * batches, step, own * step, box},
        true,
        batched};
}

std::string rounded_struct(const std::string& name, const std::string& batch, const std::string& as,
                           const MappedOperand& operand, int planes, const View& view, int k_axis) {
    const int rank = view.shape.rank();
    const auto number = [](const char* of, int64_t value) { return cat(", ", of, " = ", value); };
    return cat("struct ", name, " {\n    typedef ", batch, " Batch;\n    typedef ", as,
               " As;\n    static constexpr int64_t k = ", operand.map.inner,
               number("own", operand.map.outer), number("batches", operand.map.batches / planes),
               number("pitch", operand.map.outer_step),
               number("k_step", view.strides[rank - 2 + k_axis]),
               number("own_step", view.strides[rank - 1 - k_axis]), ";\n};\n");
}

uint32_t WgmmaLayout::shared() const {
    constexpr int warp = 16 * 272, barriers = 16, queue = 48;  // bytes: of a warp, of a stage, once
    const int once = writers ? rows * columns * 2 + 2 * barriers : rows / 16 * warp + queue;
    return static_cast<uint32_t>(stages * ((rows + columns) * 128 + barriers) + once);
}

std::string layout_struct(const std::string& name, const WgmmaLayout& layout, DType type) {
    const int sums = layout.columns / 2;
    std::string list, operands;
    for (int x = 0; x < sums; x++) {
        list += cat(x ? ", %" : "%", x);
        operands += cat(x ? ", \"+f\"(d[From + " : "\"+f\"(d[From + ", x, "])");
    }
    const bool tf32 = type == DType::f32;
    const char* kind = tf32 ? "tf32" : type == DType::f16 ? "f16" : "bf16";
    const auto across = [](bool along_k) { return along_k ? ", 0" : ", 1"; };
    const auto flag = [](bool value) { return value ? "true" : "false"; };
    const auto number = [](const char* of, int64_t value) { return cat(", ", of, " = ", value); };
    return cat("struct ", name, " {\n    static constexpr int rows = ", layout.rows,
               number("columns", layout.columns), number("depth", layout.depth),
               number("stages", layout.stages), number("pair", layout.pair),
               number("parts", layout.parts), number("adders", layout.adders),
               number("round", layout.round), number("shared", layout.shared()),
               layout.writers ? number("writers", layout.writers) : "",
               ";\n    static constexpr bool holds = ", flag(layout.holds),
               ", own = ", flag(layout.own), ", a_along_k = ", flag(layout.a_along_k),
               ", b_along_k = ", flag(layout.b_along_k), ", a_batched = ", flag(layout.a_batched),
               ", b_batched = ", flag(layout.b_batched),
               ";\n    template <int From, int Count>\n    __device__ __forceinline__ static void "
               "step(float (&d)[Count], uint64_t a, uint64_t b, bool add) {\n        asm "
               "volatile(\"{\\n.reg .pred "
               "p;\\nsetp.ne.b32 p, %",
               sums + 2, ", 0;\\n\"\n            \"wgmma.mma_async.sync.aligned.m64n",
               layout.columns, tf32 ? "k8" : "k16", ".f32.", kind, ".", kind, " {", list, "}, %",
               sums, ", %", sums + 1, ", p, 1, 1", tf32 ? "" : across(layout.a_along_k),
               tf32 ? "" : across(layout.b_along_k), ";\\n}\"\n            : ", operands,
               "\n            : \"l\"(a), \"l\"(b), \"r\"(int(add)));\n    }\n};\n");
}

}  // namespace aicf::cuda
