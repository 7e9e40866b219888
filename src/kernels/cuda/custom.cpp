// The kernel of a custom op: its author's `run` for each unit, by a thread or by a block.
#include "core/graph/custom.h"

#include <algorithm>

#include "core/graph/text.h"
#include "kernels/cuda/codegen.h"

namespace aicf::cuda {

namespace {

std::string list(const Dims& numbers) {
    std::string text;
    for (int64_t number : numbers) text += cat(text.empty() ? "" : ", ", number);
    return cat("{", text.empty() ? "0" : text, "}");
}

std::string literal(const Attr& value) {
    if (const auto* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
    if (const auto* integer = std::get_if<int64_t>(&value))
        return cat("static_cast<int64_t>(", static_cast<uint64_t>(*integer), "ull)");
    return number_text(std::get<double>(value));
}

}  // namespace

KernelText custom_text(const LoweredOp& op, const Limits& limits) {
    const CustomOp& custom = custom_op(op);
    if (custom.cuda.empty())
        raise(ErrorKind::unsupported, title(op), ": it has no source for a GPU; need cuda=, or ",
              "device=\"cpu\"");
    const BlockLayout layout(op);
    const int64_t units = custom_units(op), most = 32 * std::max(limits.processors, 1);
    const bool blocks = custom.threads > 1;
    KernelText text;
    text.name = cat(custom.name, "_", dtype_abbrev(op.outputs[0].dtype));
    text.includes = {"prelude.cuh", "core/abi/custom.h"};
    text.author = aicf::custom_text(op, custom, true);
    text.threads = blocks ? custom.threads : 256;
    text.blocks = std::min(blocks ? units : (units + 255) / 256, most);
    text.body = body_head() + "    const Args args{\n";
    const auto tensor = [&](const View& view, const char* type, int offset) {
        text.body +=
            cat("        {block.ptr<", type, ">(", offset, "), ", element_count(view.shape), ", ",
                list(view.shape), ", ", list(view.strides), "},\n");
    };
    for (size_t i = 0; i < op.inputs.size(); i++)
        tensor(op.inputs[i], cat("const ", custom_type(op.inputs[i].dtype)).c_str(),
               layout.operand[i]);
    for (size_t i = 0; i < op.outputs.size(); i++)
        tensor(op.outputs[i], custom_type(op.outputs[i].dtype),
               layout.operand[op.inputs.size() + i]);
    for (const CustomAttr& attr : custom_attrs(op))
        text.body += cat("        ", literal(attr.value), ",\n");
    text.body += cat("    };\n    const int64_t units = ", units, ";\n");
    text.body += blocks
                     ? "    for (int64_t unit = grid.block; unit < units; unit += grid.blocks) {\n"
                       "        ::run(args, unit);\n        __syncthreads();\n    }\n}\n"
                     : "    const int64_t step = int64_t(grid.blocks) * grid.threads;\n"
                       "    for (int64_t unit = int64_t(grid.block) * grid.threads + "
                       "threadIdx.x; unit < units; unit += step)\n"
                       "        ::run(args, unit);\n}\n";
    return text;
}

}  // namespace aicf::cuda
