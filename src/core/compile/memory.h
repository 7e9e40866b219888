// Stretches of memory over the course of a step: who touched them last, and where there is room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace aicf {

constexpr int64_t kMostBytes = int64_t{1} << 58;  // of any region, so that no sum of them overflows

/// A stretch of memory one op touches. Equal offsets in two spaces have nothing to do with each
/// other.
struct Touch {
    int space;
    int64_t begin, end;
    bool write;
    bool conflicts(const Touch& other) const {
        return space == other.space && begin < other.end && other.begin < end &&
               (write || other.write);
    }
};

/// What touched each byte last, while ops come one after another.
class LastTouches {
  public:
    /// Of the ops before that `op` conflicts with, enough that all others come before one of them
    /// if each op waits for what it was told; descending.
    std::vector<int> meet(int op, const std::vector<Touch>& touches);

  private:
    struct Stretch {
        int64_t end;
        int writer;                // -1: none yet
        std::vector<int> readers;  // since it was written
    };
    using Stretches = std::map<int64_t, Stretch>;  // by their begin, disjoint
    static void cut(Stretches& stretches, int64_t at);
    static void note(Stretches& stretches, int op, const Touch& touch);
    std::map<int, Stretches> spaces_;
};

/// Which value lies in each byte.
class Contents {
  public:
    void write(const Touch& at, int value);
    bool holds(const Touch& at, int value) const;
    /// A value that lies in some of these bytes; -1: none.
    int meets(const Touch& at) const;

  private:
    struct Held {
        int64_t end;
        int value;
    };
    std::map<std::pair<int, int64_t>, Held> held_;  // by space and begin, disjoint
};

/// Taken stretches, ascending and apart.
class Taken {
  public:
    void add(int64_t begin, int64_t end);
    const std::vector<std::pair<int64_t, int64_t>>& list() const { return list_; }

  private:
    std::vector<std::pair<int64_t, int64_t>> list_;
};
/// The lowest offset at which `bytes` are free in all of the lists.
int64_t lowest_free(const std::vector<const Taken*>& lists, int64_t bytes);

/// What is taken when, over a list of moments.
class Room {
  public:
    explicit Room(int moments);
    void take(int first, int last, int64_t begin, int64_t end);
    /// Adds what is taken at some moment from `first` to `last`; valid until the next take.
    void find(int first, int last, std::vector<const Taken*>& found) const;

  private:
    /// Of a range of moments: what is taken through all of it by values noted for the whole range,
    /// and at some moment by any noted for it or a part of it.
    struct Range {
        Taken through, within;
    };
    template <class Visit>
    void walk(std::size_t range, int begin, int end, int first, int last, const Visit& visit) const;

    int moments_ = 1;            // a power of two
    std::vector<Range> ranges_;  // a binary tree, the root at 1
};

}  // namespace aicf
