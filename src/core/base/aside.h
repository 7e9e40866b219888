// Uninterruptible library calls on a helper thread, so that signals are handled meanwhile.
#pragma once

#include <atomic>
#include <functional>

namespace aicf {

/// Runs `work` on a helper thread while this one polls; on this one if no thread can be started. If
/// poll() throws, so does this: `given_up` becomes true and the work finishes detached, so it must
/// own all that it uses. GraphError in a child forked meanwhile. `watch` is called about every 2
/// ms.
void run_aside(std::function<void(const std::atomic<bool>& given_up)> work, void (*watch)());
/// Abandons and joins all such work, before libraries are unloaded at exit. No work can be started
/// afterwards.
void finish_asides();

}  // namespace aicf
