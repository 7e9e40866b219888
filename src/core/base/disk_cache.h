// Compiled programs on disk: one file an entry, named by the SHA-256 of its key.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace aicf {

/// SHA-256 as 64 hexadecimal digits.
std::string sha256(std::string_view bytes);

struct DiskCacheInfo {
    std::string folder;  // "" where there is none
    std::string problem;
    uint64_t entries = 0, bytes = 0;
};
DiskCacheInfo disk_cache_info();
uint64_t clear_disk_cache();  // entries removed

/// The payload stored under `key`; nothing on any doubt about the file.
std::optional<std::string> load_cached(const std::string& key);
/// Best effort: a failure leaves no trace but one warning on stderr a process.
void store_cached(const std::string& key, const std::string& payload);
/// Keeps the folder below its size, and removes what killed writers left: the first time in a
/// process, then once it has written much more.
void trim_cache();

}  // namespace aicf
