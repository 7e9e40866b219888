// Ops of a user's own: their sources enter, their callbacks are called.
#include "core/graph/custom.h"

#include "bindings/bindings.h"
#include "kernels/cpu/backend.h"

namespace aicf {

namespace {

PyObject* host_caller = nullptr;  // of python/aicf/custom.py; borrowed from its module

/// (address, bytes, shape, dtype) of an operand.
nb::tuple operand_of(const Operand& operand) {
    nb::list shape;
    int64_t count = 1;
    for (int d = 0; d < operand.rank; d++) {
        shape.append(operand.shape()[d]);
        count *= operand.shape()[d];
    }
    const auto dtype = static_cast<DType>(operand.dtype);
    return nb::make_tuple(reinterpret_cast<uintptr_t>(operand.ptr), count * dtype_size(dtype),
                          nb::tuple(shape), dtype_name(dtype));
}

void call_host(const ArgBlock& args) {
    const nb::gil_scoped_acquire gil;
    nb::list inputs, outputs, numbers;
    for (int i = 0; i < args.inputs; i++) inputs.append(operand_of(args.in(i)));
    for (int i = 0; i < args.outputs; i++) outputs.append(operand_of(args.out(i)));
    const auto end = (args.tail - args.scalars) / sizeof(Scalar);  // it is rounded up
    for (int i = kHostAttrsScalar; i < static_cast<int>(end); i++)
        numbers.append(nb::make_tuple(args.scalar(i).i, args.scalar(i).f));
    nb::borrow(host_caller)(args.scalar(kHostKeyScalar).i, inputs, outputs, numbers);
}

}  // namespace

void bind_custom(nb::module_& m) {
    m.def(
        "define_custom",
        [](const std::string& digest, const std::string& name, const std::string& cpu,
           const std::string& cuda, std::vector<std::string> inputs,
           std::vector<std::string> outputs, int threads) {
            define_custom(digest,
                          {name, cpu, cuda, std::move(inputs), std::move(outputs), threads});
        },
        nb::arg("digest"), nb::arg("name"), nb::arg("cpu"), nb::arg("cuda"), nb::arg("inputs"),
        nb::arg("outputs"), nb::arg("threads"), "Makes the sources of a custom op known.");
    m.def(
        "set_host_caller",
        [](nb::handle caller) {
            host_caller = caller.ptr();  // which its module keeps
            cpu::set_host_call(call_host);
        },
        nb::arg("caller"), "What runs the callbacks of custom ops.");
}

}  // namespace aicf
