#include "core/interrupt.h"

#include <chrono>

namespace aicf {

namespace {

using Clock = std::chrono::steady_clock;

thread_local void (*asked)() = nullptr;
thread_local Clock::time_point next;

}  // namespace

Interruptible::Interruptible(void (*ask)()) : before_(asked) {
    asked = ask;
    next = Clock::now();
}

Interruptible::~Interruptible() { asked = before_; }

Uninterrupted::Uninterrupted() : before_(asked) { asked = nullptr; }

Uninterrupted::~Uninterrupted() { asked = before_; }

void poll() {
    if (!asked) return;
    const Clock::time_point now = Clock::now();
    if (now < next) return;
    next = now + std::chrono::milliseconds(20);
    asked();
}

}  // namespace aicf
