// Suggestions for misspelt names.
#pragma once

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>
#include <vector>

namespace aicf {

/// Edit distance, with transpositions.
inline size_t edits_between(std::string_view a, std::string_view b) {
    std::vector<size_t> before, last(b.size() + 1), now(b.size() + 1);
    for (size_t j = 0; j <= b.size(); j++) last[j] = j;
    for (size_t i = 1; i <= a.size(); i++) {
        now[0] = i;
        for (size_t j = 1; j <= b.size(); j++) {
            now[j] = std::min({last[j] + 1, now[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                now[j] = std::min(now[j], before[j - 2] + 1);
        }
        before = std::move(last);
        last = now;
    }
    return last[b.size()];
}

/// ` (is it "loss"?)` for the nearest of `known`; empty if none is near.
inline std::string is_it(std::string_view word, const std::vector<std::string>& known) {
    constexpr size_t kLongest = 64;  // longer names are not typed
    const std::string* found = nullptr;
    size_t least = std::max<size_t>(1, word.size() / 3) + 1;
    for (const std::string& other : known) {
        if (word.size() > kLongest || other.size() > kLongest || other == word) continue;
        const auto alike = [](char a, char b) {
            return std::tolower(static_cast<unsigned char>(a)) ==
                   std::tolower(static_cast<unsigned char>(b));
        };
        const bool same = std::equal(word.begin(), word.end(), other.begin(), other.end(), alike);
        const size_t edits = same ? 0 : edits_between(word, other);
        if (edits >= least || edits >= std::max(word.size(), other.size())) continue;
        least = edits;
        found = &other;
    }
    return found ? " (is it \"" + *found + "\"?)" : std::string();
}

}  // namespace aicf
