// Taps and traps: a twin Step of the same graph without effects, sharing all cells, runs before the
// step.
#pragma once

#include "core/compile/probe.h"
#include "core/run/step.h"

namespace aicf {

/// A tap: reads values of the last step; of a step refused by a trap, those it would have had.
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

/// Why a trap refused a step.
struct BadValue : Error {
    struct Fault {
        Finding::Kind kind = Finding::nan;
        int node = -1;           // of the graph; -1: an input, param or state holds it
        ValueId value = kNone;   // that holds it
        std::string op, source;  // of the node
        std::string layer, name;
        bool found = false;          // false: the step's values have changed since
        std::vector<int64_t> index;  // of the first such element
        double number = 0;           // its value
        int64_t integer = 0;         // its value, if an index
    };
    BadValue(Fault what, const std::string& text)
        : Error(ErrorKind::bad_value, text), fault(std::move(what)) {}
    Fault fault;
};

/// A trap: refuses steps that would compute a NaN, an infinity or an index out of range.
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
