// A compiled step as a file: plan, initial contents and kernel code. docs/format.md describes the
// bytes.
#pragma once

#include <string_view>

#include "core/compile/plan.h"

namespace aicf {

constexpr uint32_t kFileFormat = 6;  // how the file is laid out
/// What ops mean, how their sums are ordered and what an argument block holds: a plan of another
/// one might run, and give other numbers.
constexpr uint32_t kContract = 10;

/// The kind of an op record; readers refuse unknown kinds.
enum class LaunchKind : uint8_t { kernel, copy, foreign, collective, loop };

/// A piece of a serialised plan. Params and states are written with the plan's initial content.
struct FilePiece {
    const char* data = nullptr;
    size_t bytes = 0;
    std::shared_ptr<const void> owner;
};
std::vector<FilePiece> write_executable(const Plan& plan, uint64_t seed, const Target& target);

/// A parsed file, checked as far as possible without a target. FormatError if damaged; `bytes` must
/// outlive it.
class Executable {
  public:
    Executable(std::string_view bytes, std::string where);
    const Plan& plan() const { return plan_; }  // without kernels
    uint64_t seed() const { return seed_; }
    /// The verified plan with the target's kernels. `shared`: as in make_plan.
    Plan finish(const Target& target, const std::vector<std::string>& shared = {}) const;

  private:
    std::string where_;
    uint64_t seed_ = 0;
    std::vector<int64_t> scratch_sizes_;  // bytes of the ops' scratch
    Plan plan_;
    std::string_view kernels_, code_;
};

/// Structural checks beyond type inference: ids, places within segments, views within storage,
/// well-formed bodies. The first fault; empty: none.
std::string structure_problem(const Plan& plan);

}  // namespace aicf
