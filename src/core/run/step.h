// A compiled training step: the plan, its memory and its captured form.
#pragma once

#include <atomic>
#include <chrono>
#include <ctime>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/fork.h"
#include "core/compile/compile.h"
#include "core/compile/executable.h"
#include "core/run/backend.h"
#include "core/run/launches.h"
#include "core/run/watcher.h"

namespace aicf {

/// Shared by Steps with common storage: one stream and one lock, hence one order of effects.
struct Machine {
    ForkMutex lock;
    std::unique_ptr<Backend> backend;
    uint64_t bindings = 0;  // number of bind() calls; a Step that lags patches its addresses
};

/// The storage of one leaf; sharing Steps hold the same cell.
struct Cell {
    char* data = nullptr;
    int64_t bytes = 0;
    std::shared_ptr<void> owner;
    std::atomic<bool> bound = false;  // to a caller's tensor
    bool read_only = false;
    /// The cells of every Step that holds this one; no two cells of a Step may overlap.
    struct StepCell {
        std::string name;
        std::weak_ptr<Cell> cell;
        uint32_t align = 1;  // alignment of its memory in bytes
        std::string reader;  // the kernel that requires it
    };
    struct StepCells {
        std::vector<StepCell> cells;
    };
    std::vector<std::weak_ptr<const StepCells>> step_cells;
};

class Step {
  public:
    using Names = std::map<std::string, std::string>;
    /// A Step whose params and states are shared: all of equal names, or only these, by (name here,
    /// name there).
    struct Shared {
        const Step* step;
        std::optional<Names> names = {};
        Shared(const Step* other) : step(other) {}
        Shared(const Step* other, Names only) : step(other), names(std::move(only)) {}
    };
    struct Options {
        Device device;
        uint64_t seed = 0;
        bool capture = true;
        std::vector<Shared> share;
        bool share_inputs = false;  // inputs too
        CompileOptions compile = {};
    };
    Step(Graph graph, const Options& options);
    /// From a plan whose kernels are built.
    Step(Plan plan, const Options& options);
    /// From a file, which determines seed and kernels; the other options are these.
    Step(const Executable& file, const Options& options);
    ~Step();
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;
    using Inputs = std::vector<std::pair<ValueId, TensorRef>>;

    /// Runs the captured form, ordered after the work so far on `stream` and before later work
    /// there. Returns the number of steps run so far, as do call and run.
    uint64_t replay(int64_t times, std::optional<intptr_t> stream = {});
    void capture();
    void reset();  // drops the captured form
    bool captured() const;
    void synchronize();
    /// Between two of many runs: waits for those before the last call of this.
    void pace();
    /// How many steps to run between two of them: some 10 ms' worth, from what was measured.
    std::atomic<int64_t> piece = 1;

    /// Exports the step. `state`: with the current params and states, else the graph's initial
    /// ones.
    std::vector<FilePiece> write_file(bool state);

    const Plan& plan() const { return plan_; }
    Device device() const { return machine_->backend->device(); }
    const Value* find_leaf(std::string_view name) const;            // null: there is none
    const std::vector<ValueId>& inputs() const { return inputs_; }  // in the graph's order
    std::vector<const Value*> needed_inputs() const;                // those some op reads
    std::vector<Captured::Launch> trace() const;
    uint64_t generation() const { return generation_; }  // steps run so far
    /// The stages of compilation and the CPU seconds of each.
    const std::vector<std::pair<std::string, double>>& stages() const { return stages_; }

    /// The cell of a param or state.
    const void* storage(ValueId id) const { return cells_.at(id).get(); }
    const Value& leaf(std::string_view name) const;  // input, param or state; GraphError otherwise
    const Lowered::Output& output(std::string_view name) const;
    /// Copies tensors of equal shape and dtype into inputs, params or states; all or none.
    void write(const Inputs& values);
    /// Copies the inputs in and runs one step, under one lock. Every input that an op reads must be
    /// given or bound.
    uint64_t call(const Inputs& inputs, std::optional<intptr_t> stream = {});
    using Time = std::chrono::steady_clock::time_point;
    /// Equivalent to one call per slice of inputs stacked along a leading axis of steps, from
    /// `begin` on. Once the time is up no more steps begin, but for the first. Returns how many
    /// there were, and as call.
    std::pair<int64_t, uint64_t> call_many(const Inputs& stacked, int64_t begin, int64_t steps,
                                           Time until = Time::max(),
                                           std::optional<intptr_t> stream = {});
    /// Runs op by op instead of the captured form; missing inputs keep their content.
    uint64_t run(const Inputs& inputs, std::optional<intptr_t> stream = {},
                 SyncPolicy sync = SyncPolicy::none);
    /// Timed launches, and why no better clock was used.
    struct Profiled {
        std::vector<Timed::Run> runs;
        std::string problem;
    };
    /// Runs `times` steps with each launch timed; synchronous. `inputs`: as call; `eager`: as run;
    /// else as replay.
    Profiled profile(int64_t times, const Inputs* inputs, std::optional<intptr_t> stream = {},
                     bool eager = false);
    std::vector<LaunchSize> launch_sizes() const;  // by op of the plan; of a loop the largest
    /// Registers a watcher, weakly: it is called before each step.
    void watch(const std::shared_ptr<Watcher>& watcher);
    const CompileOptions& compiled() const { return compiled_; }  // of one that has a graph
    /// Replaces the storage of an input, output, param or state by the caller's tensor.
    void bind(ValueId id, const TensorRef& to) { bind(Inputs{{id, to}}); }
    void bind(const Inputs& tensors);  // all or none
    ValueId bindable(std::string_view name) const;
    /// The live storage of a leaf or output.
    TensorRef view(ValueId id) const;  // for a caller that holds no lock
    /// A contiguous copy in host memory. Of a ring: the last steps, oldest first.
    TensorRef read(ValueId id);
    std::vector<TensorRef> read(const std::vector<ValueId>& ids);  // of one moment
    TensorRef read_output(const Lowered::Output& output);
    /// A copy on the device, in stream order; of a ring as above.
    TensorRef snapshot(const Lowered::Output& output);
    /// Likewise for a snapshot, and its copy in host memory.
    TensorRef snapshot(const TensorRef& taken);
    TensorRef read(const TensorRef& taken);
    /// See Backend.
    std::shared_ptr<void> lend(std::shared_ptr<void> memory, intptr_t stream);

  private:
    /// Says which names there are; `outputs`: those of outputs too.
    [[noreturn]] void refuse_name(std::string_view where, std::string_view name,
                                  bool outputs) const;
    void share_cells(const Options& options, const std::vector<Value>& values);
    OnStage stages_from(std::clock_t& last);
    void start(const Options& options, const OnStage& stage);
    char* address(ValueId id) const;
    void* counters(const Launch& launch) const;
    void allocate();
    void fill(const std::vector<const Value*>& values, uint64_t seed);
    void check_aligned(const Plan& plan) const;
    void join_cells();
    std::vector<std::shared_ptr<void>> bind_ops(std::vector<std::shared_ptr<const void>> code);
    void follow_bindings();
    void check_bind(ValueId id, const TensorRef& to,
                    std::vector<std::shared_ptr<Cell>>& looked_at) const;
    void check_fits(const Value& value, const TensorRef& tensor, const char* verb) const;
    void check_inputs(const Inputs& inputs) const;
    void check_call(const Inputs& inputs) const;
    void take(const Inputs& inputs, std::optional<intptr_t> stream);
    bool call_staged(const Inputs& inputs, std::optional<intptr_t> stream);
    void gather(const Inputs& inputs, std::optional<intptr_t> stream);
    void release(const Inputs& inputs, std::optional<intptr_t> stream);
    struct Feed;
    int64_t run_fed(const Inputs& stacked, int64_t begin, int64_t steps, Time until,
                    std::optional<intptr_t> stream);
    int64_t feed_steps(const Feed& feed, const Inputs& stacked, int64_t begin, int64_t steps,
                       Time until, std::optional<intptr_t> stream);
    Feed* feed_for(const Inputs& stacked, int64_t steps);
    std::vector<int> looping_operands(const std::vector<ValueId>& fed) const;
    std::vector<BoundOp> ops_over(const Feed& feed) const;
    std::shared_ptr<ArgBlock> args_over(const Feed& feed, size_t number, int64_t step) const;
    bool in_cells(const TensorRef& tensor) const;
    int64_t in_range_until(const Inputs& stacked, int64_t begin, int64_t steps);
    void check_constants() const;
    void check_indices(const Inputs& inputs);
    bool check_standing();
    TensorRef on_host(const TensorRef& tensor);
    TensorRef view_locked(ValueId id) const;
    TensorRef read_locked(ValueId id);
    TensorRef to_host(TensorRef ref);
    uint64_t bindings() const;
    TensorRef apart(const TensorRef& from, ValueId to);
    using Watchers = std::vector<std::shared_ptr<Watcher>>;
    Watchers watchers() const;
    /// Runs code that takes the locks, and reports a watcher's refusal only after they are
    /// released, as are last references to watchers.
    template <class Run>
    auto watched(const Run& run) const {
        if (!watched_) return run(Watchers());
        const Watchers watching = watchers();
        try {
            return run(watching);
        } catch (const Watcher::Refused& refused) {
            refused.by.explain(refused.finding);
            throw;
        }
    }
    int64_t look(const Watchers& watching, int64_t left) const;
    void run_locked(const Watchers& watching);
    void replay_locked(int64_t times, const Watchers& watching);
    friend class Watcher;  // runs a twin without taking its locks

    Plan plan_;
    uint64_t seed_ = 0;
    CompileOptions compiled_;
    std::shared_ptr<Machine> machine_;
    std::vector<std::shared_ptr<Machine>> others_;  // of Steps this one shares with; sorted
    std::shared_ptr<void> segments_[kSegments];
    std::map<ValueId, std::shared_ptr<Cell>> cells_;     // leaves and outputs
    std::shared_ptr<const Cell::StepCells> step_cells_;  // the same cells, for bind in other Steps
    std::map<std::string, ValueId, std::less<>> names_;  // inputs, params, states
    std::map<std::string, size_t, std::less<>> output_names_;
    std::vector<std::pair<std::string, double>> stages_;
    std::vector<ValueId> inputs_;
    std::vector<ValueId> needed_inputs_;  // those some op reads
    std::vector<Launch> launches_;
    std::vector<BoundOp> ops_;  // by launch
    std::unique_ptr<Captured> captured_;
    std::shared_ptr<Feed> feed_;  // staging of the last call_many
    uint64_t seen_bindings_ = 0;
    std::vector<char> stale_;          // by launch: its block has outdated addresses
    std::vector<char> in_range_;       // by index use: the current input was checked
    std::unique_ptr<Backend> beside_;  // copies device indices to the host
    std::atomic<uint64_t> generation_ = 0;
    std::vector<std::weak_ptr<Watcher>> watchers_;  // called before every step
    std::atomic<bool> watched_ = false;             // whether there ever was one
};

/// The Evaluator of constant folding: runs a graph of constants as a Step on the CPU.
std::vector<std::vector<char>> evaluate(const Graph& graph);

}  // namespace aicf
