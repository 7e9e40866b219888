// Runs steps that Python's Step.export wrote, without Python and without a compiler.
//
//     auto step = aicf::runtime::Step::load("train.aicf");
//     step.set("x", x.data(), x.size() * sizeof(float));
//     step.run();
//     step.read("loss", &loss, sizeof loss);
//
// Every call may throw aicf::runtime::Error, a call on a Step that was moved from too. A Step is
// one machine: threads that call it take turns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#define AICF_API __attribute__((visibility("default")))

namespace aicf::runtime {

/// What is wrong, with both values, and what would be right.
class AICF_API Error : public std::runtime_error {
  public:
    Error(std::string kind, const std::string& text);
    ~Error() override;
    /// The name of Python's class: "FormatError", "ShapeError", "OutOfMemory", ...
    const std::string& kind() const noexcept { return kind_; }

  private:
    std::string kind_;
};

/// A named value of a step.
struct Tensor {
    std::string name;
    std::string dtype;  // "float32", "bfloat16", "int64", ...
    std::vector<int64_t> shape;
    size_t bytes = 0;  // in C order
};

class AICF_API Step {
  public:
    /// `device`: "cpu" or "cuda:<index>", of the kind the step was compiled for; empty: the first.
    static Step load(const std::string& path, const std::string& device = "");
    Step(Step&& other) noexcept;
    Step& operator=(Step&& other) noexcept;
    ~Step();

    /// In the order of the graph. Of an output that keeps several steps the shape begins with how
    /// many there are now.
    std::vector<Tensor> inputs() const;
    std::vector<Tensor> outputs() const;
    std::vector<Tensor> params() const;
    std::vector<Tensor> states() const;
    std::string device() const;
    uint64_t steps_run() const;

    /// Copies elements in C order into an input, a param or a state; `bytes` must be its size.
    void set(const std::string& name, const void* elements, size_t bytes);
    /// Runs the step on the inputs as they stand, `times` times; each input that the step reads
    /// must have been set. A GPU may still be at work when it returns.
    void run(int64_t times = 1);
    /// Copies an output, a param or a state out, once all that runs is done.
    void read(const std::string& name, void* elements, size_t bytes) const;
    /// Writes params and states as safetensors, as Python's Step.save does: the file is there whole
    /// or not at all.
    void save_state(const std::string& path) const;
    /// Reads what save_state or Python's Step.save wrote: exactly the step's params and states, or
    /// nothing is changed.
    void load_state(const std::string& path);

  private:
    struct Impl;
    explicit Step(std::unique_ptr<Impl> impl);
    Impl& impl() const;
    std::unique_ptr<Impl> impl_;
};

}  // namespace aicf::runtime
