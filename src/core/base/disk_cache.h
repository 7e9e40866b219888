// On-disk cache of compiled programs: one file per entry, named by the SHA-256 of its key.
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

/// The payload stored under `key`; empty if the file is missing or suspect.
std::optional<std::string> load_cached(const std::string& key);
/// Best effort: a failure only warns, once per process, on stderr.
void store_cached(const std::string& key, const std::string& payload);
/// Evicts to the size limit and removes temporaries of killed writers: once per process, then after
/// every kBetweenTrims bytes written.
void trim_cache();

}  // namespace aicf
