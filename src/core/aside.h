// Long calls into a library that asks nobody, kept from the way of a signal.
#pragma once

#include <functional>

namespace aicf {

/// Does `work` on a thread of its own while this one polls; on this one where there is no other to
/// be had. Where poll() throws, so does this, and the work goes on to its end by itself: it must
/// own all that it uses.
/// `watch` is called meanwhile, every other millisecond.
void run_aside(std::function<void()> work, void (*watch)());
/// Waits for what was given up: before the process ends, its libraries may not go.
void finish_given_up();

}  // namespace aicf
