#include "kernels/cpu/families.h"

#include <algorithm>

#include "core/compile/families.h"
#include "core/graph/custom.h"
#include "core/graph/region.h"
#include "kernels/cpu/fused_programs.h"
#include "kernels/cpu/program.h"

namespace aicf::cpu {

CustomMaker make_custom = nullptr;

namespace {

using Bound = std::shared_ptr<BoundKernel>;

// ---- what a kernel is made of -------------------------------------------------------------------

/// Units of a program, and of a batch of them.
int64_t program_units(const ArgBlock& args, int) {
    const Program& program = *static_cast<const Program*>(args.tail_ptr());
    if (program.total == 0) return 0;
    if (program.cross < 0) return (program.total + program.unit - 1) / program.unit;
    const int64_t rows = program.shape[program.cross], inner = program.shape[program.rank - 1];
    return program.total / (rows * inner) * ((rows + kTileRows - 1) / kTileRows);
}

int64_t batch_units(const ArgBlock& args, int phase) {
    const Batch& batch = *static_cast<const Batch*>(args.tail_ptr());
    if (phase == 0) return batch.numbers > 0;
    int64_t units = 0;
    for (int k = batch.numbers; k < batch.instrs; k++)
        units += (batch.instr()[k].n + kBatchUnit - 1) / kBatchUnit;
    return units;
}

DType dtype_of(const LoweredOp& op) {
    return (op.inputs.empty() ? op.outputs : op.inputs)[0].dtype;
}

const CpuKernel* find_code(const Table& table, const std::string& name, DType dtype) {
    for (int i = 0; i < table.kernel_count; i++)
        if (const CpuKernel& code = table.kernels[i];
            name == code.op && (code.dtypes & dtype_bit(dtype)))
            return &code;
    return nullptr;
}

Bound named(const LoweredOp& op, DType dtype) {
    auto kernel = std::make_shared<BoundKernel>();
    kernel->name = cat(kernel_stem(op), "_", dtype_abbrev(dtype));
    return kernel;
}

/// Of code in the table; null where it has none for the dtype.
Bound of_table(const LoweredOp& op, const Table& table, const std::string& name) {
    const CpuKernel* code = find_code(table, name, dtype_of(op));
    if (!code) return nullptr;
    Bound kernel = named(op, dtype_of(op));
    kernel->code = *code;
    kernel->tail_bytes = code->tail_bytes;
    return kernel;
}

/// Puts programs behind what the code keeps in the tail; null where an instruction is missing.
Bound with_programs(Bound kernel, FusedPrograms built) {
    if (!kernel || built.bytes.empty()) return nullptr;
    for (uint32_t at : built.programs) kernel->programs.push_back(kernel->code.tail_bytes + at);
    kernel->program = std::move(built.bytes);
    kernel->code.tail_bytes += static_cast<uint32_t>(kernel->program.size());
    kernel->tail_bytes = kernel->code.tail_bytes;
    return kernel;
}

/// The order of a product, if a CPU computes it.
void check_order(const LoweredOp& op) {
    const std::string& order = anchor_attrs(op).text("order");
    if (order.find(".sm") != std::string::npos)
        raise(ErrorKind::unsupported, title(op), ": order is \"", order,
              "\", the step of a family of tensor cores that the cpu does not compute; "
              "need mma16(c) or mma8(c), those of \"sm_90\"");
}

// ---- the families -------------------------------------------------------------------------------

bool alone(const LoweredOp& op) { return op.body.empty(); }

using Family = KernelFamily<Bound, Table>;

constexpr Family kFamilies[] = {
    {"matmul",
     [](const LoweredOp& op, const Table&) {
         return anchor(op).gemm &&
                (alone(op) || (!tail_region(op) && !updates_behind(op) && !widened_product(op)));
     },
     [](const LoweredOp& op, const Table& table) {
         check_order(op);
         if (alone(op)) return of_table(op, table, "gemm");
         return with_programs(of_table(op, table, "fused_gemm"), {build_program(table, op), {0}});
     }},
    {"reduce with programs",
     [](const LoweredOp& op, const Table&) {
         return !alone(op) && anchor(op).streams && reducer_of(anchor(op)) && !updates_behind(op);
     },
     [](const LoweredOp& op, const Table& table) {
         return with_programs(of_table(op, table, "fused_reduce"), build_reduction(table, op));
     }},
    {"rows with programs",
     [](const LoweredOp& op, const Table&) {
         return !alone(op) && !anchor(op).rows.empty() && !loss_region(op) && !tail_region(op);
     },
     [](const LoweredOp& op, const Table& table) {
         return with_programs(of_table(op, table, "fused_rows"), build_rows(table, op));
     }},
    {"updates",
     [](const LoweredOp& op, const Table&) {
         const auto update = [](const RegionStep& step) { return step.def->optimizer; };
         return !alone(op) && std::all_of(op.body.begin(), op.body.end(), update);
     },
     [](const LoweredOp& op, const Table& table) {
         Bound kernel = named(op, op.outputs.back().dtype);
         kernel->code = {"fused", 0, table.run_batch, batch_units};
         kernel->code.phases = 2;
         kernel->workspace_bytes = 8 * op.inner.size();
         return with_programs(std::move(kernel), {build_batch(table, op), {}});
     }},
    {"custom",
     [](const LoweredOp& op, const Table&) { return is_custom(*op.def) || is_host_call(*op.def); },
     [](const LoweredOp& op, const Table&) {
         if (!make_custom)
             raise(ErrorKind::unsupported, title(op), ": this program compiles no sources and has ",
                   "no Python; need the package, or a step for cuda, whose file holds its kernels");
         return make_custom(op);
     }},
    {"one op",  // of a family's file, whose name is the op's
     [](const LoweredOp& op, const Table& table) {
         return alone(op) && find_code(table, op.def->name, dtype_of(op));
     },
     [](const LoweredOp& op, const Table& table) {
         check(op.def->name != "copy" || op.inputs[0].shape == op.outputs[0].shape,
               "cpu: a copy between shapes");
         return of_table(op, table, op.def->name);
     }},
    {"program",
     [](const LoweredOp& op, const Table& table) {
         return alone(op) ? is_instruction(table, op.def->name) : anchor(op).pointwise;
     },
     [](const LoweredOp& op, const Table& table) {
         Bound kernel = named(op, dtype_of(op));
         kernel->code = {"fused", 0, table.run_program, program_units};
         return with_programs(std::move(kernel), {build_program(table, op), {0}});
     }},
};

}  // namespace

Bound make_kernel(const Table& table, const LoweredOp& op) {
    const Family* family = find_family<Bound, Table>(kFamilies, op, table);
    return family ? family->emit(op, table) : nullptr;
}

bool worth_fusing(const LoweredOp& region) {
    // A row is one thread's work: what costs more than 8 flops an element is shared out among all.
    constexpr RegionLimits kLimits{16, 32, 12, 9, 8};
    return anchor(region).optimizer ||
           (region.members.empty() && within(region, kLimits) && !tail_region(region));
}

}  // namespace aicf::cpu
