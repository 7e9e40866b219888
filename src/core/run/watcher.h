// Observers of a Step that run before each step.
#pragma once

#include "core/compile/probe.h"

namespace aicf {

class Step;

class Watcher {
  public:
    virtual ~Watcher() = default;
    /// False: called only for the last step of a call, or the refused one.
    virtual bool every() const = 0;
    /// Called with the locks held, when inputs and state are those of step `step`. Throws Refused
    /// to prevent it.
    virtual void look(uint64_t step) = 0;
    struct Refused {
        Watcher& by;
        Finding finding;
    };
    /// Raises the error, after the locks are released.
    [[noreturn]] virtual void explain(const Finding& finding) = 0;

  protected:
    // For a twin on the same machine, with the locks held.
    static void run(Step& twin);
    static std::vector<float> numbers(Step& twin, size_t count);  // its outputs, of one f32 each
};

}  // namespace aicf
