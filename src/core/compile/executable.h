// A compiled step as a file: a plan, what its values begin with and the code of its kernels.
// docs/format.md describes the bytes.
#pragma once

#include <string_view>

#include "core/compile/plan.h"

namespace aicf {

constexpr uint32_t kFileFormat = 5;  // how the file is laid out
/// What ops mean, how their sums are ordered and what an argument block holds: a plan of another
/// one might run, and give other numbers.
constexpr uint32_t kContract = 3;

/// How an op of a file is run; a reader refuses those it does not know.
enum class LaunchKind : uint8_t { kernel, copy, foreign, collective, loop };

/// The file in pieces, which hold their bytes; the content of params and states is that of the
/// plan's initial values.
struct FilePiece {
    const char* data = nullptr;
    size_t bytes = 0;
    std::shared_ptr<const void> owner;
};
std::vector<FilePiece> write_executable(const Plan& plan, uint64_t seed, const Target& target);

/// A file that was read and checked as far as that needs no target. FormatError for whatever is
/// wrong with it; `bytes` must outlive it.
class Executable {
  public:
    Executable(std::string_view bytes, std::string where);
    const Plan& plan() const { return plan_; }  // without kernels
    uint64_t seed() const { return seed_; }
    /// The plan with kernels of the target, which has verified. `shared`: as of make_plan.
    Plan finish(const Target& target, const std::vector<std::string>& shared = {}) const;

  private:
    std::string where_;
    uint64_t seed_ = 0;
    std::vector<int64_t> rooms_;  // bytes of the ops' scratch
    Plan plan_;
    std::string_view kernels_, code_;
};

/// Whatever of a plan no inference sees: ids, places inside their regions, views inside their
/// storage, bodies that kernels can follow. Tells of the first fault; empty: none.
std::string structure_problem(const Plan& plan);

}  // namespace aicf
