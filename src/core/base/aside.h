// Long calls into a library that asks nobody, kept from the way of a signal.
#pragma once

#include <atomic>
#include <functional>

namespace aicf {

/// Does `work` on a thread of its own while this one polls; on this one where there is no other to
/// be had. Where poll() throws, so does this: `given_up` turns true, and the work goes on to an end
/// by itself, so it must own all that it uses. GraphError in the child of a fork meanwhile.
/// `watch` is called every other millisecond.
void run_aside(std::function<void(const std::atomic<bool>& given_up)> work, void (*watch)());
/// Gives up all that runs and waits for it, whoever began it: before the process ends, for its
/// libraries may not go. Nothing is begun any more.
void finish_asides();

}  // namespace aicf
