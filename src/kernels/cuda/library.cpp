#include "kernels/cuda/library.h"

#include <dirent.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <mutex>

namespace aicf::cuda {

namespace {

std::mutex folders_lock;
std::vector<std::string> search_folders;

bool fits(int major, int driver_major) {
    return major >= 12 && (driver_major == 0 || major <= driver_major);
}

/// Files of a folder that are the library, newest major first.
void add_files(std::vector<std::string>& paths, const std::string& folder, const std::string& name,
               int driver_major) {
    std::vector<std::pair<int, std::string>> found;
    if (DIR* dir = opendir(folder.c_str())) {
        while (const dirent* entry = readdir(dir)) {
            const std::string file = entry->d_name;
            if (!file.starts_with(name)) continue;
            const int major = std::atoi(file.c_str() + name.size());
            if (fits(major, driver_major)) found.emplace_back(-major, folder + "/" + file);
        }
        closedir(dir);
    }
    std::sort(found.begin(), found.end());
    for (auto& [major, path] : found) paths.push_back(std::move(path));
}

/// Folders from which this process has mapped such files already.
std::vector<std::string> mapped_folders(const std::string& name) {
    std::vector<std::string> folders;
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        const size_t path = line.find('/'), file = line.rfind("/" + name);
        if (path == std::string::npos || file == std::string::npos) continue;
        const std::string folder = line.substr(path, file - path);
        if (std::find(folders.begin(), folders.end(), folder) == folders.end())
            folders.push_back(folder);
    }
    return folders;
}

}  // namespace

void set_library_folders(std::vector<std::string> folders) {
    std::lock_guard guard(folders_lock);
    search_folders = std::move(folders);
}

std::vector<std::string> library_files(const std::string& name,
                                       const std::vector<std::string>& wheels, int driver_major) {
    std::vector<std::string> folders = mapped_folders(name);
    {
        std::lock_guard guard(folders_lock);
        for (const std::string& base : search_folders)
            for (const std::string& inside : wheels) folders.push_back(base + "/nvidia/" + inside);
    }
    std::vector<std::string> homes;
    for (const char* variable : {"CUDA_HOME", "CUDA_PATH"})
        if (const char* home = std::getenv(variable)) homes.push_back(home);
    homes.push_back("/usr/local/cuda");
    for (const std::string& home : homes)
        for (const char* inside : {"/lib64", "/lib", "/extras/CUPTI/lib64"})
            folders.push_back(home + inside);
    std::vector<std::string> paths;
    for (const std::string& folder : folders) add_files(paths, folder, name, driver_major);
    for (int major : {13, 12})
        if (fits(major, driver_major)) paths.push_back(name + std::to_string(major));
    return paths;
}

}  // namespace aicf::cuda
