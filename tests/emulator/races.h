// Finds accesses of threads to the same bytes of shared memory, one of them a write, that nothing
// orders: no barrier of both, no barrier in memory that one arrives at and the other waits for, no
// __syncwarp(). What lanes hand each other by shuffles orders nothing. A copy under way is a write
// from its start until it is waited for, a product of a warpgroup a read.
#pragma once

#include <cstddef>
#include <memory>
#include <unordered_map>
#include <vector>

#include "api.h"

namespace emulated {

/// Of each thread of a cluster, of each barrier in whose name copies arrive, and of each warp for
/// its products, which all its lanes wait for together: up to which of their steps is seen.
using Clock = std::vector<u32>;
using Seen = std::shared_ptr<const Clock>;

struct Known {
    u32 id = 0, step = 1;  // of this thread; the step that it is at
    Seen seen;

    void take(const Seen& other);
};

/// The products of a warp: what a lane sees that has waited for them.
struct Products {
    u32 id = 0;
    Seen before, behind;  // of the lane that waited last
    u32 step = 0;

    void seen_by(Known& lane, u32 at);
};

/// What those know who come to a barrier, each of which begins its next step.
class Gathered {
  public:
    void add(Known& one);
    void add(u32 id, u32 step, size_t ids);
    Seen all() {
        last_ = nullptr;
        return std::move(clock_);
    }

  private:
    std::shared_ptr<Clock> clock_;
    Seen last_;
};

/// A barrier in shared memory.
struct Mailbox {
    Gathered gathered;
    Seen done;             // of the phase before
    u32 id = 0, step = 0;  // of the copies that it counts
};

enum Access : u32 { kRead, kWrite, kAtomic };

/// The shared memory of a block: who read and wrote what.
class Shadow {
  public:
    static constexpr u32 kUnderWay = ~0u;  // a step that nobody has seen

    /// Of a block that begins.
    void clear() { age_++; }
    /// An access at a step that is over, or is under way; the other one where there is a race.
    struct Record {
        u32 id, step;
        const void* where;
        unsigned char bytes, access;  // of the word
    };
    const Record* touch(const Known& by, u32 at, u32 bytes, Record as);
    /// What an id had under way there is over.
    void finish(u32 id, u32 at, u32 bytes, u32 step);

  private:
    struct Word {
        u32 age = 0;
        std::vector<Record> records;
    };
    Word& word(u32 at);
    u32 age_ = 0;
    std::vector<Word> words_;
    Record found_ = {};
};

}  // namespace emulated
