// A call of one lowered op from Python.
#pragma once

#include "bindings/bindings.h"
#include "core/run/backend.h"

namespace aicf {

/// GraphError for a name that no lowered op has.
const LoweredDef& lowered_def(const std::string& name);
/// Runs an op on the caller's tensors; of SyncPolicy::event the device, else None.
nb::object eager_call(const LoweredDef& def, nb::handle inputs, nb::handle outputs,
                      const Attrs& attrs, nb::handle stream, SyncPolicy sync);

/// The callable before `checked`, the function of that signature which checks its arguments: it
/// takes the usual kinds of argument itself. `kind` is the enum of ops, `event` makes what a call
/// with sync="event" returns, and `placed` adds the user's line to an error.
nb::object quick_op_call(nb::object checked, nb::object kind, nb::object event, nb::object placed);

}  // namespace aicf
