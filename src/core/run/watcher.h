// Who looks at the steps of a Step before they run.
#pragma once

#include "core/compile/probe.h"

namespace aicf {

class Step;

class Watcher {
  public:
    virtual ~Watcher() = default;
    /// False: sees the last of the steps that one call runs, be it one that was refused.
    virtual bool every() const = 0;
    /// Sees the inputs and the state that step number `step` will have, while the locks are held.
    /// Throws Refused to keep it from running.
    virtual void look(uint64_t step) = 0;
    struct Refused {
        Watcher& by;
        Finding finding;
    };
    /// Says why, when the locks are given back.
    [[noreturn]] virtual void explain(const Finding& finding) = 0;

  protected:
    // Of a Step of the same machine, whose locks are held.
    static void run(Step& twin);
    static std::vector<float> numbers(Step& twin, size_t count);  // its outputs, of one f32 each
};

}  // namespace aicf
