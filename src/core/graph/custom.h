// Custom ops: their definitions, which no graph holds, and the program text around their sources.
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
/// Registers a custom op in this process; the first of one digest is kept.
void define_custom(const std::string& digest, CustomOp op);
/// GraphError if not registered. Lives as long as the process.
const CustomOp& custom_op(const LoweredOp& op);

/// This thread's depth of host callbacks, in which nothing may wait for a step.
int& in_host_call();
/// GraphError inside a call of the host.
void refuse_in_host_call();

bool is_custom(const LoweredDef& def);     // by sources
bool is_host_call(const LoweredDef& def);  // by a callback of the host

/// Positions of its attributes among an argument block's scalars.
constexpr int kHostKeyScalar = 1, kUnitAxesScalar = 2 + kMaxDims;
constexpr int kHostAttrsScalar = 4 + kMaxDims;  // the first declared attribute
/// The number of work units: the product of some leading axes of the first output.
int64_t custom_units(const LoweredOp& op);
/// The declared attributes, with their positions among the scalars.
struct CustomAttr {
    std::string name;
    Attr value;
    int scalar;
};
std::vector<CustomAttr> custom_attrs(const LoweredOp& op);
/// The name of an element type in sources.
const char* custom_type(DType dtype);
/// The program: `struct Args`, then the user's source with #line directives, so that compiler
/// errors have the user's line numbers.
std::string custom_text(const LoweredOp& op, const CustomOp& custom, bool cuda);

}  // namespace aicf
