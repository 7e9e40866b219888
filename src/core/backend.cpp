#include "core/backend.h"

#include <atomic>

namespace aicf {

namespace {

std::atomic<BackendMaker> makers[2];  // by Device::Kind

}  // namespace

void register_backend(Device::Kind kind, BackendMaker maker) { makers[kind] = maker; }

std::unique_ptr<Backend> open_backend(Device device) {
    const BackendMaker maker = makers[device.kind];
    if (!maker)
        raise(ErrorKind::device_unavailable, "device: ", to_string(device),
              " is not available: this build of aicf has no backend for it; need cpu");
    return maker(device);
}

SyncPolicy parse_sync(std::string_view name, const char* where) {
    if (name == "none") return SyncPolicy::none;
    if (name == "event") return SyncPolicy::event;
    if (name == "full") return SyncPolicy::full;
    raise(ErrorKind::graph, where, ": sync is \"", name,
          "\"; need one of \"none\", \"event\", \"full\"");
}

}  // namespace aicf
