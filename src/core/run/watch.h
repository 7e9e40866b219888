// Values of a step that it does not give: a second Step of the same graph without effects, on the
// same inputs, params and states, runs before it.
#pragma once

#include "core/compile/probe.h"
#include "core/run/step.h"

namespace aicf {

/// Reads values of the last step that ran; of one that a trap refused, those that it would have
/// had.
class Tap : public Watcher {
  public:
    Tap(const Step& step, Graph graph, std::vector<ValueId> values);
    bool every() const override { return false; }
    void look(uint64_t step) override;
    [[noreturn]] void explain(const Finding& finding) override;
    /// A copy in host memory of value number i; GraphError where no step has run yet.
    TensorRef read(size_t i);
    uint64_t step() const { return step_; }  // whose values these are; 0: none yet

  private:
    Step twin_;
    std::atomic<uint64_t> step_ = 0;
};

/// What kept a step from running.
struct BadValue : Error {
    struct Fault {
        Finding::Kind kind = Finding::nan;
        int node = -1;           // of the graph; -1: an input, param or state holds it
        ValueId value = kNone;   // that holds it
        std::string op, source;  // of the node
        std::string layer, name;
        bool found = false;          // false: other threads have changed the step since
        std::vector<int64_t> index;  // of the first such element
        double number = 0;           // what it holds
        int64_t integer = 0;         // the same of an index
    };
    BadValue(Fault what, const std::string& text)
        : Error(ErrorKind::bad_value, text), fault(std::move(what)) {}
    Fault fault;
};

/// Keeps steps from running in which a NaN, an infinity or an index out of range would be made.
class Trap : public Watcher {
  public:
    /// `layers`: by node, as errors name them.
    Trap(const Step& step, Graph graph, std::vector<std::string> layers,
         Checks::Of of = Checks::Of::all);
    bool every() const override { return true; }
    void look(uint64_t step) override;
    [[noreturn]] void explain(const Finding& finding) override;

  private:
    BadValue described(const Finding& finding, const TensorRef* content) const;

    const Graph graph_;
    const std::vector<std::string> layers_;
    std::unique_ptr<Checks> checks_;  // made as the twin is compiled
    Step twin_;
};

}  // namespace aicf
