#include "core/compile/target.h"

#include <algorithm>
#include <new>

#include "core/compile/families.h"
#include "core/compile/memory.h"

namespace aicf {

namespace {

/// `rank`: of the operand whose axes an attribute names.
void pack_attrs(const LoweredDef& schema, const Attrs& attrs, int rank,
                std::vector<Scalar>& scalars) {
    for (const AttrDef& def : schema.attrs) {
        if (def.name == "*") break;
        const Attr& attr = *attrs.find(def.name);
        Scalar scalar{.i = 0};
        if (const auto* flag = std::get_if<bool>(&attr)) scalar.i = *flag;
        if (const auto* integer = std::get_if<int64_t>(&attr)) scalar.i = *integer;
        if (def.name == "axis" && scalar.i < 0) scalar.i += rank;  // kernels count from the front
        if (const auto* number = std::get_if<double>(&attr)) scalar.f = *number;
        const auto* list = std::get_if<std::vector<int64_t>>(&attr);
        if (list && def.name != "axes") {
            for (size_t i = 0; i < kMaxDims; i++)
                scalars.push_back({.i = i < list->size() ? (*list)[i] : 0});
            continue;
        }
        if (list)
            for (int64_t axis : *list) scalar.i |= int64_t{1} << (axis < 0 ? axis + rank : axis);
        if (const auto* text = std::get_if<std::string>(&attr)) {
            const auto choice = std::find(def.choices.begin(), def.choices.end(), *text);
            if (const size_t open = text->find('('); def.name == "order")
                scalar.i = open == std::string::npos     ? 0
                           : text->starts_with("chain(") ? std::atoll(text->c_str() + open + 1)
                                                         : -std::atoll(text->c_str() + open + 1);
            else if (choice != def.choices.end())
                scalar.i = choice - def.choices.begin();
        }
        scalars.push_back(scalar);
    }
    if (schema.attrs.empty() || schema.attrs.back().name != "*") return;
    const auto declared = [&](const std::string& name) {
        return std::any_of(schema.attrs.begin(), schema.attrs.end(),
                           [&](const AttrDef& def) { return def.name == name; });
    };
    for (const auto& [name, attr] : attrs.items()) {
        if (declared(name)) continue;
        Scalar scalar{.i = 0};
        if (const auto* flag = std::get_if<bool>(&attr)) scalar.i = *flag;
        if (const auto* integer = std::get_if<int64_t>(&attr)) scalar.i = *integer;
        if (const auto* number = std::get_if<double>(&attr)) scalar.f = *number;
        scalars.push_back(scalar);
    }
}

}  // namespace

void Target::write(const Kernels&, std::string&, std::string&) const {}

Kernels Target::read(const std::vector<const LoweredOp*>& ops, std::string_view records,
                     std::string_view code, const std::string& where) const {
    if (!records.empty() || !code.empty())
        raise(ErrorKind::format, where, ": it holds ", records.size() + code.size(),
              " bytes of kernels; need none, for they are in this library");
    Kernels kernels;
    for (const LoweredOp* op : ops) {
        if (is_foreign(*op))
            raise(ErrorKind::format, where, ": candidate \"", op->candidate,
                  "\" is a library's, which this device does not call");
        kernels.push_back(select(*op));
    }
    return kernels;
}

std::vector<Scalar> pack_scalars(const LoweredOp& op) {
    std::vector<Scalar> scalars;
    const int rank = op.inputs.empty() ? 0 : op.inputs[0].shape.rank();
    pack_attrs(*op.def, op.attrs, rank, scalars);
    for (const RegionStep& step : op.body)
        pack_attrs(*step.def, step.attrs, op.operand(step.inputs[0]).shape.rank(), scalars);
    return scalars;
}

namespace {

/// The offsets of an argument block.
struct Layout {
    std::vector<const View*> views;  // inputs first
    std::vector<uint32_t> at;        // by view
    std::vector<Scalar> scalars;
    uint32_t scalars_at = 0, tail_at = 0, total = 0;

    Layout(const LoweredOp& op, size_t tail_bytes) : scalars(pack_scalars(op)) {
        for (const View& view : op.inputs) views.push_back(&view);
        for (const View& view : op.outputs) views.push_back(&view);
        const auto round = [](size_t bytes, size_t to) {
            return static_cast<uint32_t>((bytes + to - 1) / to * to);
        };
        scalars_at = round(sizeof(ArgBlock) + 4 * views.size(), 8);
        for (const View* view : views) {
            at.push_back(scalars_at);
            scalars_at += static_cast<uint32_t>(sizeof(Operand) + 16 * view->shape.rank());
        }
        tail_at = round(scalars_at + 8 * scalars.size(), 64);
        total = round(tail_at + tail_bytes, 64);
    }
};

}  // namespace

size_t block_size(const LoweredOp& op, size_t tail_bytes) { return Layout(op, tail_bytes).total; }

uint32_t most_block_bytes(const LoweredOp& op) {
    return op.members.empty() && !anchor(op).optimizer ? kMaxArgBytes : kMaxGroupBytes;
}

std::shared_ptr<ArgBlock> pack_args(const LoweredOp& op, const Kernel& kernel,
                                    const std::vector<void*>& addresses, void* workspace) {
    const auto [views, at, scalars, scalars_at, tail_at, total] = Layout(op, kernel.tail_bytes);
    const uint32_t most = most_block_bytes(op);
    if (total > most)
        raise(ErrorKind::unsupported, op.def->name, ": its argument block takes ", total,
              " bytes; at most ", most, " fit, use fewer operands");
    std::shared_ptr<ArgBlock> block(
        static_cast<ArgBlock*>(::operator new(total, std::align_val_t(64))),
        [](ArgBlock* p) { ::operator delete(p, std::align_val_t(64)); });
    auto* base = reinterpret_cast<char*>(block.get());
    std::fill(base, base + total, 0);
    *block = {total,
              static_cast<uint16_t>(op.inputs.size()),
              static_cast<uint16_t>(op.outputs.size()),
              scalars_at,
              tail_at,
              workspace,
              kernel.workspace_bytes};
    std::copy(at.begin(), at.end(), reinterpret_cast<uint32_t*>(block.get() + 1));
    for (size_t i = 0; i < views.size(); i++) {
        const View& view = *views[i];
        auto* operand = reinterpret_cast<Operand*>(base + at[i]);
        *operand = {addresses[i], static_cast<int32_t>(view.dtype), view.shape.rank()};
        auto* sizes = reinterpret_cast<int64_t*>(operand + 1);
        std::copy(view.shape.begin(), view.shape.end(), sizes);
        std::copy(view.strides.begin(), view.strides.end(), sizes + view.shape.rank());
    }
    std::copy(scalars.begin(), scalars.end(), reinterpret_cast<Scalar*>(base + scalars_at));
    return block;
}

void add_part(Kernel& kernel, const LoweredOp& group, const LoweredOp& member,
              std::shared_ptr<const Kernel> chosen) {
    Kernel::Part part{member,
                      std::move(chosen),
                      {},
                      kernel.tail_bytes,
                      kernel.workspace_bytes,
                      kernel.counter_bytes};
    const auto inputs = static_cast<int>(group.inputs.size());
    const auto made = [&](const View& view) {  // -1: an inner value
        const int out = find_view(group.outputs, view);
        return out >= 0 ? inputs + out : -1;
    };
    for (const View& view : member.inputs) {
        const int in = find_view(group.inputs, view);  // or made by a member before it
        part.operands.push_back(in >= 0 ? in : made(view));
    }
    for (const View& view : member.outputs) part.operands.push_back(made(view));
    for (size_t i = 0; i < part.kernel->align.size(); i++) {
        const int in = part.operands[i];
        if (in < 0 || in >= inputs) continue;
        const auto at = static_cast<size_t>(in);
        kernel.align.resize(std::max(kernel.align.size(), at + 1));
        kernel.align[at] = std::max(kernel.align[at], part.kernel->align[i]);
    }
    const std::vector<void*> none(part.operands.size(), nullptr);
    kernel.tail_bytes += pack_args(member, *part.kernel, none, nullptr)->bytes;
    const auto add = [](uint64_t& sum, uint64_t bytes) {
        constexpr auto align = static_cast<uint64_t>(kArenaAlign),
                       most = static_cast<uint64_t>(kMostBytes);
        if (sum > most || bytes > most - sum)
            raise(ErrorKind::out_of_memory, "plan: a group takes more than ", most,
                  " bytes; need smaller values");
        sum += (bytes + align - 1) / align * align;
    };
    add(kernel.workspace_bytes, part.kernel->workspace_bytes);
    add(kernel.counter_bytes, part.kernel->counter_bytes);
    kernel.parts.push_back(std::move(part));
}

void no_kernel(const LoweredOp& op, const char* target, const char* need) {
    std::string operands;
    for (const auto* views : {&op.inputs, &op.outputs}) {
        if (!operands.empty()) operands += " -> ";
        for (size_t i = 0; i < views->size(); i++)
            operands += cat(i ? ", " : "", type_string((*views)[i].dtype, (*views)[i].shape));
    }
    raise(ErrorKind::unsupported, title(op), ": ", target, " has no kernel for ", operands,
          "; need ", need);
}

}  // namespace aicf
