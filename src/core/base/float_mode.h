// The floating-point environment of a thread.
#pragma once

#include <cfenv>
#include <cstdint>

namespace aicf {

/// RAII: IEEE 754 defaults (round to nearest, subnormals, no traps), then the caller's mode again,
/// which torch.set_flush_denormal or a library linked with -ffast-math may have changed. Compilers
/// do not see arithmetic depend on the mode, so computation must be in a function called from the
/// scope, not inlined into it.
class FloatMode {
  public:
    FloatMode() : found_(read()) {
        if (changed()) write(kDefault);
    }
    ~FloatMode() {
        if (changed()) write(found_);
    }
    FloatMode(const FloatMode&) = delete;
    FloatMode& operator=(const FloatMode&) = delete;

  private:
    bool changed() const { return (found_ & kMode) != kDefault; }

#if defined(__x86_64__)
    static constexpr uint64_t kDefault = 0x1f80, kMode = 0xffc0;  // of MXCSR; the rest are flags
    static uint64_t read() { return __builtin_ia32_stmxcsr(); }
    static void write(uint64_t mode) { __builtin_ia32_ldmxcsr(static_cast<uint32_t>(mode)); }
#elif defined(__aarch64__)
    static constexpr uint64_t kDefault = 0, kMode = ~uint64_t{0};  // of FPCR
    static uint64_t read() {
        uint64_t mode;
        __asm__ volatile("mrs %0, fpcr" : "=r"(mode)::"memory");
        return mode;
    }
    static void write(uint64_t mode) { __asm__ volatile("msr fpcr, %0" ::"r"(mode) : "memory"); }
#else  // rounding is all that the standard names
    static constexpr uint64_t kDefault = FE_TONEAREST, kMode = ~uint64_t{0};
    static uint64_t read() { return static_cast<uint64_t>(std::fegetround()); }
    static void write(uint64_t mode) { std::fesetround(static_cast<int>(mode)); }
#endif

    const uint64_t found_;
};

}  // namespace aicf
