// The GIL, up to the end of the interpreter and on any thread.
//
// A thread that asks for the GIL of a closing interpreter is ended by it, even inside a destructor,
// and all with it. So once it closes only the closing thread still enters: what others hold of
// Python is leaked, and a thread that would go back into Python waits for good.
#pragma once

#include <nanobind/nanobind.h>

namespace aicf {

/// Runs `release` with the GIL, on any thread, unless the interpreter closes.
void with_python(void (*release)(void* of), void* of);
template <class Release>
void with_python(Release release) {
    with_python([](void* of) { (*static_cast<Release*>(of))(); }, &release);
}

/// Lets go of the GIL while it lives.
class GilRelease {
  public:
    GilRelease();
    ~GilRelease();
    GilRelease(const GilRelease&) = delete;
    GilRelease& operator=(const GilRelease&) = delete;

  private:
    PyThreadState* state_;
};

/// Throws the error of a Python signal handler that is due, with or without the GIL; in the main
/// thread alone, as Python has it.
void check_signals();

/// Prepares for the end of the interpreter, which calls `last` with the GIL; called once, at
/// import.
void watch_exit(void (*last)());

}  // namespace aicf
