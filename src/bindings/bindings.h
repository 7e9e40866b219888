// What the binding files share. Translation only: not one decision about an op is taken here.
#pragma once

#include <nanobind/nanobind.h>

#include "bindings/casters.h"
#include "bindings/dlpack.h"
#include "bindings/interpreter.h"
#include "core/base/interrupt.h"
#include "core/compile/compile.h"
#include "core/graph/ir.h"

namespace aicf {

namespace nb = nanobind;

struct Array;
struct Outputs;
class Step;
struct TapHandle;
struct TrapHandle;

/// How an object of a bound class enters. One whose __init__ never ran, or raised, and one of
/// another class are refused in words of ours; in a list they are no match.
template <class T>
class ObjectCaster : public nb::detail::type_caster_base<T> {
    using Base = nb::detail::type_caster_base<T>;

  public:
    bool from_python(nb::handle given, uint32_t flags, nb::detail::cleanup_list* list) noexcept {
        constexpr auto kBuilding = static_cast<uint32_t>(nb::detail::cast_flags::construct) |
                                   static_cast<uint32_t>(nb::detail::cast_flags::trusted);
        given_ = given;
        const bool building = (flags & kBuilding) != 0;
        const bool odd =
            nb::inst_check(given) && nb::inst_ready(given) == building && nb::isinstance<T>(given);
        half_ = odd && !building;
        again_ = odd && building;
        found_ = !odd && !given.is_none() && Base::from_python(given, flags, list);
        return found_ || again_ || !building;
    }
    template <class U>
    bool can_cast() const noexcept {
        return found_;
    }
    operator T*() { return require(), Base::operator T*(); }
    operator T&() { return require(), Base::operator T&(); }
    operator T&&() { return require(), Base::operator T&&(); }

  private:
    void require() const {
        if (found_) return;
        const std::string name = nb::borrow<nb::str>(nb::type<T>().attr("__name__")).c_str();
        if (again_)
            raise(ErrorKind::graph, name, ": __init__ of one that is made already; need a new one");
        if (half_)
            raise(ErrorKind::graph, name, ": this one was never made, its __init__ did not run or ",
                  "raised; need what aicf returned");
        const nb::str type = nb::type_name(given_.type());
        throw nb::type_error(cat("got a ", type.c_str(), "; need an aicf.", name).c_str());
    }
    nb::handle given_;
    bool found_ = false, half_ = false, again_ = false;
};

/// The object behind a handle, refused as above.
template <class T>
T& object_of(nb::handle given) {
    ObjectCaster<T> caster;
    caster.from_python(given, 0, nullptr);
    return caster;
}

/// TypeError for arguments that a function takes none of.
void refuse_rest(const char* function, const char* takes, const nb::args& rest,
                 const nb::kwargs& named);

/// A method that takes no arguments, in words of ours where it is given some.
template <class T, class Body>
auto bare(const char* name, Body body) {
    return [name, body](T& self, const nb::args& rest, const nb::kwargs& named) {
        refuse_rest(name, "no arguments", rest, named);
        return body(self);
    };
}

/// A name as the caller wrote it, or how Python prints what no name can be.
std::string name_of(nb::handle object);

void bind_errors(nb::module_& m);
void bind_array(nb::module_& m);
void bind_graph(nb::module_& m);
void bind_step(nb::module_& m);
void bind_watch(nb::module_& m);
void bind_calls(nb::module_& m);
void bind_eager(nb::module_& m);
void bind_custom(nb::module_& m);
void bind_cuda(nb::module_& m);

/// Lets signal handlers, Ctrl-C's above all, end a long call of core.
struct Signals {
    const Interruptible watch{check_signals};
};

/// "cpu", "cuda", "cuda:1"; GraphError otherwise.
Device parse_device(std::string_view text);
/// Any tensor, or numbers that take `wanted`.
TensorRef tensor_or_numbers(nb::handle object, DType wanted, const char* where);
/// Attributes from Python; GraphError for what an attribute cannot be.
Attrs to_attrs(const nb::dict& dict);
/// A stream of any framework, or its number as DLPack counts them; none for None.
std::optional<intptr_t> stream_of(nb::handle object);
/// Its class in Python.
PyObject* error_class(ErrorKind kind);
/// Sets the Python error of the exception that is handled, if it is one of core's; else throws it.
void set_core_error();
/// Sets the error that a BadValue is in Python; false for any other exception.
bool set_bad_value(const Error& error, PyObject* type);
/// True for an Array that is an output of a step: what enters as a tensor is a copy of it.
bool is_step_output(nb::handle object);
std::vector<char> packed_bytes(const TensorRef& tensor);  // host tensor, C order

}  // namespace aicf

namespace nanobind::detail {
template <>
struct type_caster<aicf::Array> : aicf::ObjectCaster<aicf::Array> {};
template <>
struct type_caster<aicf::Outputs> : aicf::ObjectCaster<aicf::Outputs> {};
template <>
struct type_caster<aicf::Step> : aicf::ObjectCaster<aicf::Step> {};
template <>
struct type_caster<aicf::TapHandle> : aicf::ObjectCaster<aicf::TapHandle> {};
template <>
struct type_caster<aicf::TrapHandle> : aicf::ObjectCaster<aicf::TrapHandle> {};
template <>
struct type_caster<aicf::Graph> : aicf::ObjectCaster<aicf::Graph> {};
template <>
struct type_caster<aicf::Graph::Mark> : aicf::ObjectCaster<aicf::Graph::Mark> {};
template <>
struct type_caster<aicf::Stage> : aicf::ObjectCaster<aicf::Stage> {};
template <>
struct type_caster<aicf::GraphReader> : aicf::ObjectCaster<aicf::GraphReader> {};
template <>
struct type_caster<aicf::Report> : aicf::ObjectCaster<aicf::Report> {};
}  // namespace nanobind::detail
