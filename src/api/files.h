// Files as Python's `files` takes them: regular ones, read by parts, replaced whole.
#pragma once

#include <sys/stat.h>

#include <functional>
#include <string>

namespace aicf::runtime {

/// A regular file that is read from its begin on.
class Source {
  public:
    explicit Source(const std::string& path);  // OSError; FormatError for what is no regular file
    ~Source();
    Source(const Source&) = delete;
    Source& operator=(const Source&) = delete;
    size_t size() const { return static_cast<size_t>(status_.st_size); }
    const std::string& where() const { return where_; }  // as errors begin
    void read(char* to, size_t bytes);                   // FormatError if they are not there
    void check_unchanged() const;                        // FormatError if others wrote meanwhile

  private:
    std::string path_, where_;
    int fd_ = -1;
    struct stat status_ = {};
};

using Put = std::function<void(const char* from, size_t bytes)>;
/// Writes a file beside the target and renames it, as Python's save does: links are followed to
/// their file, an existing file keeps its mode and owner, and is left whole if writing fails.
void replace(const std::string& path, const std::function<void(const Put&)>& write);

}  // namespace aicf::runtime
