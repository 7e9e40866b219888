// What wgmma.cuh is written with: which operands the copy engine can read, and the struct Way.
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

std::string way_struct(const std::string& name, const Way& way, DType type) {
    const int sums = way.columns / 2;
    std::string list, operands;
    for (int x = 0; x < sums; x++) {
        list += cat(x ? ", %" : "%", x);
        operands += cat(x ? ", \"+f\"(d[" : "\"+f\"(d[", x, "])");
    }
    const char* kind = type == DType::f16 ? "f16" : "bf16";
    const auto flag = [](bool value) { return value ? "true" : "false"; };
    return cat(
        "struct ", name, " {\n    static constexpr int rows = ", way.rows,
        ", columns = ", way.columns, ", stages = ", way.stages, ", pair = ", way.pair,
        ", parts = ", way.parts, ";\n    static constexpr bool a_along_k = ", flag(way.a_along_k),
        ", b_along_k = ", flag(way.b_along_k), ", a_batched = ", flag(way.a_batched),
        ", b_batched = ", flag(way.b_batched),
        ";\n    __device__ __forceinline__ static void step(float (&d)[", sums,
        "], uint64_t a, uint64_t b, bool add) {\n        asm volatile(\"{\\n.reg .pred "
        "p;\\nsetp.ne.b32 p, %",
        sums + 2, ", 0;\\n\"\n            \"wgmma.mma_async.sync.aligned.m64n", way.columns,
        "k16.f32.", kind, ".", kind, " {", list, "}, %", sums, ", %", sums + 1, ", p, 1, 1, ",
        way.a_along_k ? 0 : 1, ", ", way.b_along_k ? 0 : 1, ";\\n}\"\n            : ", operands,
        "\n            : \"l\"(a), \"l\"(b), \"r\"(int(add)));\n    }\n};\n");
}

}  // namespace aicf::cuda
