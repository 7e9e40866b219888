#include "files.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "aicf/aicf.h"
#include "core/base/error.h"

namespace aicf::runtime {

namespace {

[[noreturn]] void fail(const char* doing, const std::string& path) {
    throw Error("OSError", cat(doing, " \"", path, "\": ", std::strerror(errno)));
}

/// A file descriptor, closed at the end.
struct File {
    int fd;
    ~File() {
        if (fd >= 0) ::close(fd);
    }
};

void write_all(int fd, const char* from, size_t bytes, const std::string& path) {
    for (size_t at = 0; at < bytes;) {
        const ssize_t put = ::write(fd, from + at, bytes - at);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) fail("save", path);
        at += static_cast<size_t>(put);
    }
}

}  // namespace

Source::Source(const std::string& path) : path_(path), where_(cat("load \"", path, "\"")) {
    File file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    if (file.fd < 0 || ::fstat(file.fd, &status_)) fail("load", path);
    if (!S_ISREG(status_.st_mode)) raise(ErrorKind::format, where_, ": need a regular file");
    std::swap(fd_, file.fd);
}

Source::~Source() { ::close(fd_); }

void Source::read(char* to, size_t bytes) {
    for (size_t at = 0; at < bytes;) {
        const ssize_t got = ::read(fd_, to + at, bytes - at);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) fail("load", path_);
        if (got == 0) raise(ErrorKind::format, where_, ": it became shorter");
        at += static_cast<size_t>(got);
    }
}

void Source::check_unchanged() const {
    struct stat now = {};
    if (::fstat(fd_, &now)) fail("load", path_);
    const auto same = [](const timespec& a, const timespec& b) {
        return a.tv_sec == b.tv_sec && a.tv_nsec == b.tv_nsec;
    };
    if (now.st_size != status_.st_size || !same(now.st_mtim, status_.st_mtim))
        raise(ErrorKind::format, where_, ": it was written to while it was read");
}

void replace(const std::string& path, const std::function<void(const Put&)>& write) {
    struct stat old = {};
    const bool exists = ::stat(path.c_str(), &old) == 0;
    if (exists && !S_ISREG(old.st_mode))
        throw Error("OSError", cat("save \"", path, "\": it exists and is no regular file"));
    std::string target = path;
    if (char* const real = exists ? ::realpath(path.c_str(), nullptr) : nullptr) {
        target = real;
        std::free(real);
    }
    std::string beside;
    int fd = -1;
    std::random_device random;
    for (int tries = 0; fd < 0 && tries < 100; tries++) {
        beside = cat(target, ".", random(), ".tmp");
        fd = ::open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (fd < 0 && errno != EEXIST) break;
    }
    if (fd < 0) fail("save", path);
    const File file{fd};
    try {
        write([&](const char* from, size_t bytes) { write_all(fd, from, bytes, path); });
        if (exists && (old.st_uid != ::geteuid() || old.st_gid != ::getegid()))
            (void)!::fchown(fd, old.st_uid, old.st_gid);  // a wish: not everyone may
        if ((exists && ::fchmod(fd, old.st_mode & 07777)) || ::fsync(fd) ||
            ::rename(beside.c_str(), target.c_str()))
            fail("save", path);
    } catch (...) {
        ::unlink(beside.c_str());
        throw;
    }
    const size_t slash = target.rfind('/');
    const std::string folder = slash == std::string::npos ? "." : target.substr(0, slash + 1);
    const File held{::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    if (held.fd >= 0) ::fsync(held.fd);
}

}  // namespace aicf::runtime
