// Long calls into a library that asks nobody, kept from the way of a signal.
#pragma once

#include <atomic>
#include <functional>

namespace aicf {

/// Does `work` on a thread of its own while this one polls; on this one where there is no other to
/// be had. Where poll() throws, so does this: `given_up` turns true, and the work goes on to its
/// end by itself, so it must own all that it uses.
void run_aside(std::function<void(const std::atomic<bool>& given_up)> work);
/// Waits for what was given up: before the process ends, its libraries may not go.
void finish_given_up();

}  // namespace aicf
