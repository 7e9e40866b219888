// What wgmma.cuh is written with: which operands the copy engine can read, the struct Layout, and
// how eight results at a time are taken through a body.
#include "kernels/cuda/codegen.h"

namespace aicf::cuda {

namespace {
constexpr int64_t kEight = 8;  // neighbours that a lane takes together

/// Boxes of tiles of `rows`: along k each share is one; across k they lie side by side, or a share
/// is some lines of each.
void set_box(MappedOperand& of, int rows, int shares) {
    TensorMap& map = of.map;
    map.box = rows / shares;
    if (of.along_k) return;
    const auto depth = static_cast<int>(128 / dtype_size(map.dtype));
    map.line = rows % depth == 0 ? 128 : 64;
    map.box = rows * 128 / map.line / depth % shares == 0 ? depth : depth / shares;
}
}  // namespace

std::optional<MappedOperand> mapped_operand(const LoweredOp& op, int input, int k_axis, int rows,
                                            int shares) {
    constexpr int64_t most = int64_t{1} << 31;  // what a map counts with
    const View& view = op.inputs[static_cast<size_t>(input)];
    const auto size = static_cast<int64_t>(dtype_size(view.dtype)), unit = 16 / size;
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
    if (size > 4 || batch.shape.rank() > 1 || view.strides[inner] != 1) return std::nullopt;
    for (int64_t step : {view.strides[outer], batch_step, view.offset})
        if (step < 0 || step % unit != 0 || step >= most) return std::nullopt;
    if (view.strides[outer] < view.shape[inner] || view.shape[inner] >= most ||
        view.shape[outer] >= most)
        return std::nullopt;
    const bool batched = batch_step != 0;
    MappedOperand found{
        {input, view.dtype, view.shape[inner], view.shape[outer], batched ? batch.shape[0] : 1,
         view.strides[outer], batched ? batch_step : view.strides[outer]},
        along_k,
        batched};
    set_box(found, rows, shares);
    return found;
}

MappedOperand rounded_operand(const LoweredOp& op, int input, int k_axis, int rows, int shares,
                              DType type, int planes) {
    const View& view = op.inputs[static_cast<size_t>(input)];
    const int rank = view.shape.rank(), k = rank - 2 + k_axis, own = rank - 1 - k_axis;
    bool batched = false;
    int64_t batches = 1;
    for (int d = 0; d < rank - 2; d++) batched = batched || view.strides[d] != 0;
    for (int d = 0; batched && d < rank - 2; d++) batches *= view.shape[d];
    const bool along_k = type == DType::f32 || view.strides[k] == 1 || view.strides[own] != 1;
    const int64_t inner = view.shape[along_k ? k : own], outer = view.shape[along_k ? own : k];
    const auto unit = static_cast<int64_t>(16 / dtype_size(type));
    const int64_t step = ceil_div(inner, unit) * unit;
    MappedOperand found{
        {TensorMap::workspace, type, inner, outer, planes * batches, step, outer * step},
        along_k,
        batched};
    set_box(found, rows, shares);
    return found;
}

std::string rounded_struct(const std::string& name, const std::string& batch, const std::string& as,
                           const MappedOperand& operand, int planes, const View& view, int k_axis,
                           int64_t lines, int64_t terms) {
    const int rank = view.shape.rank(), k = rank - 2 + k_axis, own = rank - 1 - k_axis;
    const auto number = [](const char* of, int64_t value) { return cat(", ", of, " = ", value); };
    return cat("struct ", name, " {\n    typedef ", batch, " Batch;\n    typedef ", as,
               " As;\n    static constexpr int64_t inner = ", operand.map.inner,
               number("outer", operand.map.outer), number("batches", operand.map.batches / planes),
               number("pitch", operand.map.outer_step),
               number("first_lines", operand.along_k ? lines : terms),
               number("first_depth", operand.along_k ? terms : lines),
               number("inner_step", view.strides[operand.along_k ? k : own]),
               number("outer_step", view.strides[operand.along_k ? own : k]), ";\n};\n");
}

uint32_t WgmmaLayout::shared() const {
    constexpr int warp = 16 * 272, barriers = 16, queue = 48;  // bytes: of a warp, of a stage, once
    const int once = cluster   ? rows * columns * 4 + rows / 16 * columns / 32 * 8
                     : writers ? rows * columns * 2 + 2 * barriers
                               : rows / 16 * warp + queue;
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
    const std::string first =  // a descriptor, or the words of a lane
        layout.words ? cat("{%", sums, ", %", sums + 1, ", %", sums + 2, ", %", sums + 3, "}")
                     : cat("%", sums);
    const int second = layout.words ? sums + 4 : sums + 1;
    const char* kind = tf32 ? "tf32" : type == DType::f16 ? "f16" : "bf16";
    const auto across = [](bool along_k) { return along_k ? ", 0" : ", 1"; };
    const auto flag = [](bool value) { return value ? "true" : "false"; };
    const auto number = [](const char* of, int64_t value) { return cat(", ", of, " = ", value); };
    return cat(
        "struct ", name, " {\n    static constexpr int rows = ", layout.rows,
        number("columns", layout.columns), number("depth", layout.depth),
        number("stages", layout.stages), number("pair", layout.pair), number("wide", layout.wide),
        number("parts", layout.parts), number("adders", layout.adders),
        number("round", layout.round), number("shared", layout.shared()),
        layout.writers ? number("writers", layout.writers) : "",
        layout.run ? number("run", layout.run) : "",
        layout.cluster ? number("cluster", layout.cluster) : "",
        ";\n    static constexpr bool holds = ", flag(layout.holds), ", own = ", flag(layout.own),
        ", words = ", flag(layout.words), ", a_along_k = ", flag(layout.a_along_k),
        ", b_along_k = ", flag(layout.b_along_k), ", a_batched = ", flag(layout.a_batched),
        ", b_batched = ", flag(layout.b_batched), ", turned = ", flag(layout.turned),
        ";\n    template <int From, int Count>\n    __device__ __forceinline__ static void "
        "step(float (&d)[Count], ",
        layout.words ? "const uint32_t (&a)[4]" : "uint64_t a",
        ", uint64_t b, bool add) {\n        asm volatile(\"{\\n.reg .pred "
        "p;\\nsetp.ne.b32 p, %",
        second + 1, ", 0;\\n\"\n            \"wgmma.mma_async.sync.aligned.m64n", layout.columns,
        tf32 ? "k8" : "k16", ".f32.", kind, ".", kind, " {", list, "}, ", first, ", %", second,
        ", p, 1, 1", tf32 || layout.words ? "" : across(layout.a_along_k),
        tf32 ? "" : across(layout.b_along_k), ";\\n}\"\n            : ", operands,
        "\n            : ",
        layout.words ? "\"r\"(a[0]), \"r\"(a[1]), \"r\"(a[2]), \"r\"(a[3])" : "\"l\"(a)",
        ", \"l\"(b), \"r\"(int(add)));\n    }\n};\n");
}

bool packs_eights(const LoweredOp& op) {
    const int rank = op.outputs[0].shape.rank();
    const auto lies = [&](const View& view, bool output) {
        const int64_t step = view.strides[rank - 1];
        bool packs = step == 1 || (step == 0 && !output);
        for (int d = 0; step == 1 && d < rank - 1; d++)
            packs = packs && (view.shape[d] == 1 || view.strides[d] % kEight == 0);
        return packs;
    };
    bool packs = op.outputs[0].shape[rank - 1] % kEight == 0;
    for (size_t x = 2; x < op.inputs.size(); x++) packs = packs && lies(op.inputs[x], false);
    for (const View& view : op.outputs) packs = packs && lies(view, true);
    return packs;
}

std::string packed_text(const LoweredOp& op, const BlockLayout& layout, bool useless,
                        const Limits& limits) {
    const int rank = op.outputs[0].shape.rank();
    const bool packs = !useless && packs_eights(op);
    int64_t bytes = 0;
    std::string members, loads, before, stores, aligned = "true";
    const auto add = [&](const View& view, size_t at, bool output) {
        const int64_t step = view.strides[rank - 1];
        const char* type = cuda_type(view.dtype);
        const size_t k = output ? at - op.inputs.size() : at;
        const bool inner = limits.inner == static_cast<int>(at);
        const std::string name = cat(output ? "y" : "x", k),
                          pointer = inner ? inner_cell(type, output ? "" : "const ")
                                          : cat("this->block.template ptr<", output ? "" : "const ",
                                                type, ">(", layout.operand[at], ")"),
                          type_of = view.strides[rank - 2] >= 0 &&
                                            view.shape[rank - 2] * view.strides[rank - 2] <
                                                int64_t{1} << 31
                                        ? "uint32_t"
                                        : "int64_t",
                          place = inner ? ""
                                        : cat(" + @_", name, "::at(batch) + (", type_of, "(row) * ",
                                              type_of, "(", view.strides[rank - 2], ") + ", type_of,
                                              "(col) * ", type_of, "(", step, "))");
        // Two of 16 bits to a word; of others as many as 16 bytes hold.
        const bool words = dtype_size(view.dtype) == 2 && step == 1;
        const std::string stored = words ? cat("Words<", type, ", ", kEight, ">")
                                         : cat("Neighbours<", type, ", ", kEight, ", ", step, ">"),
                          whole = words ? cat(", ", kEight, ", true") : "";
        if (step && !inner) aligned += cat(" && aligned16(", pointer, ")");
        const char* wide = wide_type(view.dtype);
        if (output && inner && limits.squares) {
            before += cat("        float r", k, "[V];\n");
            stores += squares_store(k);
        } else if (output) {
            before += cat("        ", wide, " r", k, "[V];\n");
            stores += words ? cat("        ", stored, "::of(r", k, ").store(")
                            : cat("        ", stored, " all", k, ";\n        all", k, ".narrowed(r",
                                  k, ");\n        all", k, ".store(");
            stores += cat(pointer, place, whole, ");\n");
            if (static_cast<int>(k) == limits.kept)
                stores += words ? cat("        ", stored, "::of(r", k,
                                      ").store(this->kept(row, col)", whole, ");\n")
                                : cat("        all", k, ".store(this->kept(row, col));\n");
        } else {
            bytes += (step ? kEight : 1) * dtype_size(view.dtype);
            members += cat("        ", stored, " ", name, ";\n");
            loads += cat("        all.", name, ".load(", pointer, place, whole, ");\n");
            before += cat("        ", wide, " a", k, "[V];\n        from.", name,
                          words ? ".open(a" : ".widened(a", k, ");\n");
        }
    };
    for (size_t x = 2; x < op.inputs.size(); x++) add(op.inputs[x], x, false);
    for (size_t y = 0; y < op.outputs.size(); y++) add(op.outputs[y], op.inputs.size() + y, true);
    constexpr int64_t few = 48;  // bytes that a thread has registers for several times over
    const std::string head = cat("    static constexpr bool packs = ", packs ? "true" : "false",
                                 ", few = ", bytes <= few ? "true" : "false",
                                 ";\n    __device__ __forceinline__ bool packed() const { return ",
                                 packs ? aligned : "false", "; }\n");
    if (!packs) return head;
    const std::string at = "int64_t batch, int64_t row, int64_t col";
    const std::string body =
        op.body.empty() ? "r0[j] = v[j];"
                        : body_formula(op, layout, before, steps_between(0, op.body.size()));
    return cat(head, "    struct Operands {\n", members,
               "    };\n    __device__ __forceinline__ Operands operands(", at,
               ") const {\n        Operands all;\n", loads,
               "        return all;\n    }\n    template <class T>\n    __device__ __forceinline__ "
               "void finish(const Operands& from, ",
               at, ", const T (&v)[", kEight, "]) const {\n        constexpr int V = ", kEight,
               ";\n", before, "#pragma unroll\n        for (int j = 0; j < V; j++) {\n            ",
               body, "\n        }\n", stores, "    }\n");
}

}  // namespace aicf::cuda
