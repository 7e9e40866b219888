#include "core/base/interrupt.h"

#include <chrono>

namespace aicf {

namespace {

using Clock = std::chrono::steady_clock;

thread_local void (*asking)() = nullptr;
thread_local Clock::time_point next_asking;

}  // namespace

Interruptible::Interruptible(void (*ask)()) : before_(asking) {
    asking = ask;
    next_asking = Clock::now();
}

Interruptible::~Interruptible() { asking = before_; }

Uninterrupted::Uninterrupted() : before_(asking) { asking = nullptr; }

Uninterrupted::~Uninterrupted() { asking = before_; }

void poll() {
    if (!asking) return;
    const Clock::time_point now = Clock::now();
    if (now < next_asking) return;
    next_asking = now + std::chrono::milliseconds(20);
    asking();
}

}  // namespace aicf
