// Casters of standard types whose way from Python may throw: nanobind's own are noexcept, so that
// memory running out in one of them would end the process. What throws here reaches the caller of
// the bound function as every other exception does.
//
// nb::try_cast is noexcept whatever the caster; for strings there is text_of().
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/detail/nb_dict.h>
#include <nanobind/stl/detail/nb_list.h>
#include <nanobind/stl/string_view.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace aicf {

/// The text of a str that UTF-8 can hold; false for anything else.
bool text_of(nanobind::handle object, std::string& text);
/// How Python prints an object.
std::string repr_of(nanobind::handle object);
/// After a call into Python that gave nothing: false, so that an argument is refused, but where
/// memory ran out that error.
bool misfit();

}  // namespace aicf

namespace nanobind::detail {

/// One part of an argument on its way in: false where it is of another kind.
template <class T, class Caster>
bool take(Caster& caster, handle from, uint32_t flags, cleanup_list* cleanup) {
    return caster.from_python(from, flags_for_local_caster<T>(flags), cleanup) &&
           caster.template can_cast<T>();
}

/// Calls act(item) for each item of a sequence that is no text, until it returns false.
template <class Act>
bool each_item(handle sequence, const Act& act) {
    PyObject* const from = sequence.ptr();
    if (PyUnicode_Check(from) || PyBytes_Check(from) || !PySequence_Check(from)) return false;
    const Py_ssize_t size = PySequence_Size(from);
    if (size < 0) return aicf::misfit();
    for (Py_ssize_t i = 0; i < size; i++) {
        const object item = steal(PySequence_GetItem(from, i));
        if (!item) return aicf::misfit();
        if (!act(item)) return false;
    }
    return true;
}

template <>
struct type_caster<std::string> {
    NB_TYPE_CASTER(std::string, const_name("str"))

    bool from_python(handle from, uint32_t, cleanup_list*) { return aicf::text_of(from, value); }
    static handle from_cpp(const std::string& text, rv_policy, cleanup_list*) noexcept {
        return PyUnicode_FromStringAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
    }
};

template <class T>
struct type_caster<std::vector<T>> : list_caster<std::vector<T>, T> {
    bool from_python(handle from, uint32_t flags, cleanup_list* cleanup) {
        this->value.clear();
        return each_item(from, [&](handle item) {
            make_caster<T> caster;
            if (!take<T>(caster, item, flags, cleanup)) return false;
            this->value.push_back(caster.operator cast_t<T>());
            return true;
        });
    }
};

template <class First, class Second>
struct type_caster<std::pair<First, Second>> {
    using Pair = std::pair<First, Second>;
    NB_TYPE_CASTER(Pair, const_name("tuple[") +
                             concat(make_caster<First>::Name, make_caster<Second>::Name) +
                             const_name("]"))

    bool from_python(handle from, uint32_t flags, cleanup_list* cleanup) {
        make_caster<First> first;
        make_caster<Second> second;
        int taken = 0;
        const bool fits = each_item(from, [&](handle item) {
            taken++;
            return taken == 1   ? take<First>(first, item, flags, cleanup)
                   : taken == 2 ? take<Second>(second, item, flags, cleanup)
                                : false;
        });
        if (!fits || taken != 2) return false;
        value = Pair(first.operator cast_t<First>(), second.operator cast_t<Second>());
        return true;
    }
    template <class Source>
    static handle from_cpp(Source&& pair, rv_policy policy, cleanup_list* cleanup) noexcept {
        PyObject* items[2] = {};
        items[0] =
            make_caster<First>::from_cpp(forward_like_<Source>(pair.first), policy, cleanup).ptr();
        if (items[0])
            items[1] =
                make_caster<Second>::from_cpp(forward_like_<Source>(pair.second), policy, cleanup)
                    .ptr();
        return NB_CALL(tuple_new)(items, 2);
    }
};

template <class Key, class T>
struct type_caster<std::map<Key, T>> : dict_caster<std::map<Key, T>, Key, T> {
    bool from_python(handle from, uint32_t flags, cleanup_list* cleanup) {
        this->value.clear();
        if (!PyMapping_Check(from.ptr()) || PySequence_Check(from.ptr())) return false;
        const object items = steal(PyMapping_Items(from.ptr()));
        if (!items) return aicf::misfit();
        return each_item(items, [&](handle item) {
            make_caster<std::pair<Key, T>> caster;
            if (!take<std::pair<Key, T>>(caster, item, flags, cleanup)) return false;
            this->value.insert(std::move(caster.value));
            return true;
        });
    }
};

template <class T>
struct remove_opt_mono<std::optional<T>> : remove_opt_mono<T> {};
template <class T>
struct has_arg_defaults<std::optional<T>> : std::true_type {};
template <class T>
struct type_caster<std::optional<T>> {
    NB_TYPE_CASTER(std::optional<T>, optional_name(make_caster<T>::Name))

    bool from_python(handle from, uint32_t flags, cleanup_list* cleanup) {
        value.reset();
        if (from.is_none()) return true;
        make_caster<T> caster;
        if (!take<T>(caster, from, flags, cleanup)) return false;
        value.emplace(caster.operator cast_t<T>());
        return true;
    }
    template <class Source>
    static handle from_cpp(Source&& found, rv_policy policy, cleanup_list* cleanup) noexcept {
        if (!found) return none().release();
        return make_caster<T>::from_cpp(forward_like_<Source>(*found), policy, cleanup);
    }
};

}  // namespace nanobind::detail
