// What the binding files share. Translation only: not one decision about an op is taken here.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include "bindings/dlpack.h"
#include "core/ir.h"

namespace aicf {

namespace nb = nanobind;

void bind_errors(nb::module_& m);
void bind_graph(nb::module_& m);
void bind_step(nb::module_& m);
void bind_eager(nb::module_& m);
void bind_cuda(nb::module_& m);

/// "cpu", "cuda", "cuda:1"; GraphError otherwise.
Device parse_device(std::string_view text);
/// Any tensor, or numbers that take `wanted`.
TensorRef tensor_or_numbers(nb::handle object, DType wanted, const char* where);
/// Attributes from Python; GraphError for what an attribute cannot be.
Attrs to_attrs(const nb::dict& dict);
/// A stream of any framework, or its number as DLPack counts them; none for None.
std::optional<intptr_t> stream_of(nb::handle object);
/// True for an Array that is an output of a step: what enters as a tensor is a copy of it.
bool is_step_output(nb::handle object);
std::vector<char> packed_bytes(const TensorRef& tensor);  // host tensor, C order

}  // namespace aicf
