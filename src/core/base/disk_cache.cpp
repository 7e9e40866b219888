#include "core/base/disk_cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#include "core/base/error.h"

namespace aicf {

namespace {

constexpr char kEntryMagic[8] = {'A', 'I', 'C', 'F', 'C', 'U', 'B', '\n'};
constexpr uint32_t kEntryFormat = 1;
constexpr uint64_t kMostOfFolder = 512ull << 20;  // of the folder
constexpr uint64_t kLargestEntry = 256ull << 20;
constexpr uint64_t kBetweenTrims = 16ull << 20;  // bytes written by a process
constexpr const char *kSuffix = ".cubin", *kTemporary = ".writing.";
constexpr int64_t kAbandonedSeconds = 3600;  // an older temporary has no writer

// ---- SHA-256 (FIPS 180-4) ----------------------------------------------------------------------

constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

void absorb(uint32_t (&h)[8], const unsigned char* block) {
    uint32_t w[64];
    for (int i = 0; i < 16; i++)
        w[i] = uint32_t(block[4 * i]) << 24 | uint32_t(block[4 * i + 1]) << 16 |
               uint32_t(block[4 * i + 2]) << 8 | block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        const uint32_t a = w[i - 15], b = w[i - 2];
        w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ a >> 3) + w[i - 7] +
               (std::rotr(b, 17) ^ std::rotr(b, 19) ^ b >> 10);
    }
    uint32_t s[8];
    std::copy(h, h + 8, s);
    for (int i = 0; i < 64; i++) {
        const uint32_t e = s[4], a = s[0];
        const uint32_t t1 = s[7] + (std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25)) +
                            ((e & s[5]) ^ (~e & s[6])) + kRound[i] + w[i];
        const uint32_t t2 = (std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22)) +
                            ((a & s[1]) ^ (a & s[2]) ^ (s[1] & s[2]));
        for (int k = 7; k > 0; k--) s[k] = s[k - 1];
        s[4] += t1;
        s[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++) h[i] += s[i];
}

// ---- the folder --------------------------------------------------------------------------------

void warn_once(const std::string& text) {
    static std::atomic<bool> warned = false;
    if (!warned.exchange(true))
        std::fprintf(stderr, "aicf: the kernel cache on disk is not used: %s\n", text.c_str());
}

struct File {
    int fd = -1;
    explicit File(int descriptor) : fd(descriptor) {}
    ~File() {
        if (fd >= 0) close(fd);
    }
    File(const File&) = delete;
    File& operator=(const File&) = delete;
};

std::string wanted_folder() {
    if (const char* own = std::getenv("AICF_CACHE_DIR")) return own;
    if (const char* xdg = std::getenv("XDG_CACHE_HOME"); xdg && *xdg == '/')
        return std::string(xdg) + "/aicf";
    if (const char* home = std::getenv("HOME"); home && *home == '/')
        return std::string(home) + "/.cache/aicf";
    return "";
}

/// Makes the folder and its parents, then checks the opened one: it must be ours and not writable
/// by others.
int open_folder(std::string& problem) {
    const std::string path = wanted_folder();
    if (path.empty()) {
        problem = "neither AICF_CACHE_DIR nor XDG_CACHE_HOME nor HOME names a folder";
        return -1;
    }
    for (size_t at = path.find('/', 1); at != std::string::npos; at = path.find('/', at + 1))
        mkdir(path.substr(0, at).c_str(), 0700);
    mkdir(path.c_str(), 0700);
    const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat status = {};
    if (fd < 0 || fstat(fd, &status) != 0) {
        problem = cat(path, " cannot be opened: ", std::strerror(errno));
        if (fd >= 0) close(fd);
        return -1;
    }
    if (status.st_uid != geteuid() || (status.st_mode & 0022) != 0) {
        problem =
            cat(path, " belongs to another user or can be written by one; need 0700 and this user");
        close(fd);
        return -1;
    }
    return fd;
}

bool read_all(int fd, char* to, size_t size) {
    while (size > 0) {
        const ssize_t got = read(fd, to, size);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        to += got;
        size -= static_cast<size_t>(got);
    }
    return true;
}

bool write_all(int fd, const char* from, size_t size) {
    while (size > 0) {
        const ssize_t put = write(fd, from, size);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return false;
        from += put;
        size -= static_cast<size_t>(put);
    }
    return true;
}

template <class T>
void append(std::string& to, T number) {
    char bytes[sizeof number];
    std::memcpy(bytes, &number, sizeof number);
    to.append(bytes, sizeof number);
}

constexpr size_t kEntryDigest = 64;

/// The header of an entry; payload and a digest of all before it follow.
std::string entry_head(const std::string& key, uint64_t payload_size) {
    std::string bytes(kEntryMagic, sizeof kEntryMagic);
    append(bytes, kEntryFormat);
    append(bytes, static_cast<uint64_t>(key.size()));
    append(bytes, payload_size);
    return bytes + key;
}

/// The payload of an open entry. A foreign file or wrong header is rejected before anything of the
/// file's size is allocated.
std::optional<std::string> read_entry(int fd, const std::string& key) {
    struct stat status = {};
    if (fd < 0 || fstat(fd, &status) != 0 || !S_ISREG(status.st_mode) ||
        status.st_uid != geteuid() || (status.st_mode & 0022) != 0)
        return std::nullopt;
    const auto size = static_cast<uint64_t>(status.st_size);
    std::string bytes = entry_head(key, 0);
    const size_t head = bytes.size();
    if (size < head + kEntryDigest || size > kLargestEntry || !read_all(fd, bytes.data(), head) ||
        bytes != entry_head(key, size - head - kEntryDigest))
        return std::nullopt;
    bytes.resize(size);
    if (!read_all(fd, &bytes[head], size - head)) return std::nullopt;
    const std::string_view whole = bytes;
    if (whole.substr(size - kEntryDigest) != sha256(whole.substr(0, size - kEntryDigest)))
        return std::nullopt;
    bytes.resize(size - kEntryDigest);
    bytes.erase(0, head);
    return bytes;
}

std::atomic<uint64_t> written_here = 0, next_trim = 0;  // bytes, by this process

/// Entries of the folder, least recently used first.
struct Entry {
    std::string name;
    uint64_t bytes;
    timespec used;
};
std::vector<Entry> entries_of(int folder, bool temporary = false) {
    std::vector<Entry> entries;
    const int again = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR* dir = again >= 0 ? fdopendir(again) : nullptr;
    if (!dir) {
        if (again >= 0) close(again);
        return entries;
    }
    while (const dirent* entry = readdir(dir)) {
        const std::string name = entry->d_name;
        struct stat status = {};
        if (temporary ? !name.starts_with(kTemporary) : !name.ends_with(kSuffix)) continue;
        if (fstatat(folder, name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 ||
            !S_ISREG(status.st_mode))
            continue;
        entries.push_back({name, static_cast<uint64_t>(status.st_size), status.st_mtim});
    }
    closedir(dir);
    std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
        return a.used.tv_sec != b.used.tv_sec ? a.used.tv_sec < b.used.tv_sec
                                              : a.used.tv_nsec < b.used.tv_nsec;
    });
    return entries;
}

void evict(int folder) {
    for (const Entry& entry : entries_of(folder, true))
        if (time(nullptr) - entry.used.tv_sec > kAbandonedSeconds)
            unlinkat(folder, entry.name.c_str(), 0);
    std::vector<Entry> entries = entries_of(folder);
    uint64_t sum = 0;
    for (const Entry& entry : entries) sum += entry.bytes;
    for (const Entry& entry : entries) {
        if (sum <= kMostOfFolder) return;
        if (unlinkat(folder, entry.name.c_str(), 0) == 0) sum -= entry.bytes;
    }
}

}  // namespace

std::string sha256(std::string_view bytes) {
    uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                     0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
    size_t at = 0;
    for (; at + 64 <= bytes.size(); at += 64) absorb(h, data + at);
    unsigned char tail[128] = {};
    const size_t rest = bytes.size() - at, length = rest < 56 ? 64 : 128;
    std::memcpy(tail, data + at, rest);
    tail[rest] = 0x80;
    const uint64_t bits = uint64_t(bytes.size()) * 8;
    for (int i = 0; i < 8; i++)
        tail[length - 1 - static_cast<size_t>(i)] = static_cast<unsigned char>(bits >> (8 * i));
    for (size_t block = 0; block < length; block += 64) absorb(h, tail + block);
    std::string text;
    for (uint32_t word : h) {
        char hex[9];
        std::snprintf(hex, sizeof hex, "%08x", word);
        text += hex;
    }
    return text;
}

std::optional<std::string> load_cached(const std::string& key) {
    std::string problem;
    const File folder(open_folder(problem));
    if (folder.fd < 0) {
        warn_once(problem);
        return std::nullopt;
    }
    const std::string name = sha256(key) + kSuffix;
    const File file(
        openat(folder.fd, name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    std::optional<std::string> payload = read_entry(file.fd, key);
    if (payload) futimens(file.fd, nullptr);  // the time of use, for eviction
    return payload;
}

void store_cached(const std::string& key, const std::string& payload) {
    std::string problem;
    const File folder(open_folder(problem));
    if (folder.fd < 0) return warn_once(problem);
    static std::atomic<unsigned> counter = 0;
    timespec now = {};
    clock_gettime(CLOCK_REALTIME, &now);  // process ids recur after a restart
    const std::string name = sha256(key) + kSuffix;
    const std::string temporary =
        cat(kTemporary, getpid(), ".", now.tv_sec, ".", now.tv_nsec, ".", counter++);
    bool done = false;
    {
        const File file(openat(folder.fd, temporary.c_str(),
                               O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
        if (file.fd >= 0) {
            std::string bytes = entry_head(key, payload.size()) + payload;
            bytes += sha256(bytes);
            done = write_all(file.fd, bytes.data(), bytes.size());
            written_here += bytes.size();
        }
        done = done && renameat(folder.fd, temporary.c_str(), folder.fd, name.c_str()) == 0;
        if (!done) warn_once(cat(wanted_folder(), " cannot be written: ", std::strerror(errno)));
    }
    if (!done) unlinkat(folder.fd, temporary.c_str(), 0);
}

void trim_cache() {
    if (written_here < next_trim) return;  // scanning many entries is slow
    next_trim = written_here + kBetweenTrims;
    std::string problem;
    const File folder(open_folder(problem));
    if (folder.fd >= 0) evict(folder.fd);
}

DiskCacheInfo disk_cache_info() {
    DiskCacheInfo info;
    const File folder(open_folder(info.problem));
    if (folder.fd < 0) return info;
    info.folder = wanted_folder();
    for (const Entry& entry : entries_of(folder.fd)) {
        info.entries++;
        info.bytes += entry.bytes;
    }
    return info;
}

uint64_t clear_disk_cache() {
    std::string problem;
    const File folder(open_folder(problem));
    uint64_t removed = 0;
    if (folder.fd >= 0)
        for (const Entry& entry : entries_of(folder.fd))
            removed += unlinkat(folder.fd, entry.name.c_str(), 0) == 0;
    return removed;
}

}  // namespace aicf
