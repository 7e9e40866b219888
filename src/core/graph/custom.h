// Ops of a user's own: what of them no graph holds, and the text that their sources stand in.
#pragma once

#include <optional>

#include "core/graph/op.h"

namespace aicf {

/// The sources of a custom op. A graph names it by a digest of all this, so that a graph, a cache
/// or a file never means another op of the same name.
struct CustomOp {
    std::string name, cpu, cuda;               // an identifier; C++, CUDA C++: empty where none
    std::vector<std::string> inputs, outputs;  // names
    int threads = 1;  // of a GPU's block that share a unit; 1: each thread has units of its own
};
/// Makes a custom op known to this process; of one digest the first.
void define_custom(const std::string& digest, CustomOp op);
/// GraphError where nobody has defined it. Lives as long as the process.
const CustomOp& custom_op(const LoweredOp& op);

/// How deep in calls of the host this thread is: nothing that waits for a step may run there.
int& in_host_call();
/// GraphError inside a call of the host.
void refuse_in_host_call();

bool is_custom(const LoweredDef& def);     // by sources
bool is_host_call(const LoweredDef& def);  // by a callback of the host

/// Where its attributes lie among the scalars of an argument block.
constexpr int kHostKeyScalar = 1, kUnitAxesScalar = 2 + kMaxDims;
constexpr int kHostAttrsScalar = 4 + kMaxDims;  // those that its author has declared, from here on
/// How many units its work consists of: the places along some first axes of the first output.
int64_t custom_units(const LoweredOp& op);
/// The attributes that its author has declared, with where they lie among the scalars.
struct CustomAttr {
    std::string name;
    Attr value;
    int scalar;
};
std::vector<CustomAttr> custom_attrs(const LoweredOp& op);
/// What sources call elements of a dtype.
const char* custom_type(DType dtype);
/// `struct Args`, and its author's text with a name for errors behind it. What the compiler meets
/// there has the author's line numbers.
std::string custom_text(const LoweredOp& op, const CustomOp& custom, bool cuda);

}  // namespace aicf
