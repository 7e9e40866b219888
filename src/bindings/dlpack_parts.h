// What taking tensors in and giving them out by DLPack have in common.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "bindings/dlpack.h"

namespace aicf {

constexpr char kVersioned[] = "dltensor_versioned", kUnversioned[] = "dltensor";
constexpr char kExchangeApi[] = "dlpack_exchange_api";
constexpr size_t kAlign = 64;  // less makes JAX copy what it imports

extern DLPackExchangeAPI exchange_table;  // our own

DLDataType dl_dtype(DType dtype);
std::string str_of(nanobind::handle object);
std::string type_of(nanobind::handle object);
/// How Python prints it, cut short.
std::string shown(nanobind::handle object);
/// What stands for a whole number; false for anything else and for what 64 bits do not hold.
bool to_int(nanobind::handle object, int64_t& number);
/// A tuple of two ints: a version, or a device's type and number.
std::optional<std::pair<int64_t, int64_t>> two_ints(nanobind::handle object);

TensorRef describe(const DLTensor& tensor, std::shared_ptr<void> owner, const char* where,
                   const ImportOptions& options);
/// Takes a managed tensor: from here on its deleter runs once, when the last TensorRef goes.
template <class Managed>
TensorRef adopt(Managed* managed, const char* where, const ImportOptions& options);

}  // namespace aicf
