#include "core/run/backend.h"
#include "harness.h"
#include "kernels/cuda/codegen.h"

namespace aicf::harness {

namespace {

View view_of(ValueId id, const Dims& shape) {
    View view;
    view.value = id;
    view.shape = shape;
    view.strides = contiguous_strides(shape);
    return view;
}

/// An op of f32[4, 6] to `result`, alone.
LoweredOp op_of(const LoweredDef& def, const Dims& result) {
    LoweredOp op{&def, {view_of(0, {4, 6})}, {view_of(1, result)}};
    for (const AttrDef& attr : def.attrs) op.attrs.set(attr.name, attr.fallback);
    if (op.attrs.find("axes")) op.attrs.set("axes", std::vector<int64_t>{1});
    return op;
}

/// The same behind an exponential, as a region.
LoweredOp region_of(const LoweredDef& def, const Dims& result) {
    const LoweredOp alone = op_of(def, result);
    LoweredOp op{region_def(), alone.inputs, alone.outputs};
    op.inner = {view_of(2, {4, 6})};
    op.body = {{find_lowered("exp"), {0}, {2}}, {&def, {2}, {1}, alone.attrs}};
    return op;
}

template <class Make>
bool refused(const LoweredOp& op, const Make& make) {
    try {
        make(op);
    } catch (const Error& error) {
        const std::string_view text = error.what();
        return error.kind() == ErrorKind::unsupported && text.starts_with(title(op)) &&
               text.find("f32[4, 6]") != text.npos && text.find("; need ") != text.npos;
    }
    return false;
}

}  // namespace

uint64_t run_families() {
    const auto backend = open_backend({});
    const Target& cpu = backend->target();
    const cuda::Limits limits{132, 9};
    const struct {
        const char* like;
        Dims result;
    } kinds[] = {{"reduce_max", {4}}, {"reduce_sum", {4}}, {"softmax", {4, 6}}, {"relu", {4, 6}}};
    for (const auto& [like, result] : kinds) {
        LoweredDef odd = *find_lowered(like);
        const auto check_kind = [&](const LoweredOp& op, bool known) {
            const auto on_cpu = [&](const LoweredOp& one) { cpu.select(one); };
            const auto on_cuda = [&](const LoweredOp& one) { cuda::kernel_text(one, limits); };
            expect(refused(op, on_cpu) != known, "families: ", title(op), " on the cpu");
            expect(refused(op, on_cuda) != known, "families: ", title(op), " on cuda");
            expect(cpu.block_bytes(op).has_value() == known, "families: bytes of ", title(op));
            expect(op.body.empty() || cpu.fits(op) == known, "families: room for ", title(op));
        };
        const bool row = std::string_view(like) == "softmax";  // an exponential stays outside
        check_kind(op_of(odd, result), true);
        if (!row) check_kind(region_of(odd, result), true);
        odd.name = cat(like, "_of_nobody");
        check_kind(op_of(odd, result), false);
        check_kind(region_of(odd, result), false);
    }
    return 1;
}

}  // namespace aicf::harness
