// What is ordered behind what: of each stream how far it knows that the others have come, by
// events, by the host that waited, and by the legacy default stream, which waits for all and all
// for it but those that are made non-blocking. Memory of the pool is used behind its allocation and
// given back behind all uses. Copies come behind what they would spoil, as does what the host
// writes to memory that they read.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <map>
#include <set>

namespace fake {

using Clock = std::map<uint64_t, uint64_t>;  // by stream, how many of its commands

inline void join(Clock& into, const Clock& other) {
    for (const auto& [stream, commands] : other) into[stream] = std::max(into[stream], commands);
}
inline bool holds(const Clock& clock, uint64_t stream, uint64_t command) {
    const auto at = clock.find(stream);
    return command == 0 || (at != clock.end() && at->second >= command);
}

class Order {
  public:
    /// Another one may have had this handle.
    void create(CUstream stream, bool blocking) {
        ids_[stream] = ++last_;
        if (!blocking) apart_.insert(last_);
    }
    void create(CUevent event) { events_.erase(event); }

    /// A command: where it stands, after what. Nothing orders it behind a default stream's later
    /// commands.
    const Clock& command(CUstream stream) {
        const uint64_t id = id_of(stream);
        Clock& own = streams_[id];
        join(own, host_);
        if (id == kLegacy)
            for (const auto& [other, clock] : streams_) {
                if (other != id && !apart_.count(other)) join(own, clock);
            }
        else if (!apart_.count(id))
            join(own, streams_[kLegacy]);
        own[id]++;
        return own;
    }
    void record(CUevent event, CUstream stream) { events_[event] = command(stream); }
    void wait(CUstream stream, CUevent event) {
        command(stream);
        join(streams_[id_of(stream)], events_[event]);
    }
    /// An executable graph is launched once more: behind its last launch, on whatever stream. False
    /// where that was another one.
    bool begin(CUgraphExec graph, CUstream stream) {
        command(stream);
        const auto last = graphs_.find(graph);
        if (last == graphs_.end()) return true;
        join(streams_[id_of(stream)], last->second.behind);
        return last->second.stream == id_of(stream);
    }
    void end(CUgraphExec graph, CUstream stream) {
        graphs_[graph] = {id_of(stream), command(stream)};
    }
    void destroy(CUgraphExec graph) { graphs_.erase(graph); }
    void host_waits(CUstream stream) { join(host_, command(stream)); }
    void host_waits(CUevent event) { join(host_, events_[event]); }
    void host_waits() {
        for (const auto& [stream, clock] : streams_) join(host_, clock);
    }

    void allocate(uintptr_t at, size_t bytes, CUstream stream) {
        const uint64_t command_number = command(stream).at(id_of(stream));
        blocks_[at] = {bytes, id_of(stream), command_number, {}};
        std::erase_if(copies_, [&](const Copy& one) { return one.overlaps(at, bytes); });
    }
    /// A copy that reads or writes device memory: false where one that it spoils, or that spoils
    /// it, may still be under way.
    bool copy(uintptr_t at, size_t bytes, bool writes, CUstream stream) {
        return behind(command(stream), {at, bytes, writes, id_of(stream)});
    }
    /// One of a host's memory, which the host has written before, or reads when it has waited:
    /// false where an earlier copy may still have used it then.
    bool host_copy(uintptr_t at, size_t bytes, CUstream stream) {
        command(stream);
        return behind(host_, {at, bytes, true, id_of(stream)});
    }
    /// False where the memory may not be there yet.
    bool use(uintptr_t at, CUstream stream) {
        auto block = blocks_.upper_bound(at);
        if (block == blocks_.begin()) return true;
        --block;
        if (at >= block->first + block->second.bytes) return true;
        const Clock& clock = command(stream);
        block->second.uses[id_of(stream)] = clock.at(id_of(stream));
        return holds(clock, block->second.stream, block->second.made);
    }
    /// The same of memory that one command has at a time: false where another may still use it.
    bool borrow(uintptr_t at, CUstream stream) {
        const auto block = blocks_.find(at);
        const Clock before = block == blocks_.end() ? Clock{} : block->second.uses;
        if (!use(at, stream)) return false;
        const Clock& clock = streams_[id_of(stream)];
        return std::all_of(before.begin(), before.end(),
                           [&](const auto& use) { return holds(clock, use.first, use.second); });
    }
    /// False where another stream may still use it.
    bool free(uintptr_t at, CUstream stream) { return free_behind(at, command(stream)); }
    /// The same by the host, for which the driver does not wait.
    bool free(uintptr_t at) { return free_behind(at, host_); }

  private:
    static constexpr uint64_t kLegacy = 0;
    struct Block {
        size_t bytes;
        uint64_t stream, made;  // by which, and its command
        Clock uses;
    };
    struct Copy {
        uintptr_t at;
        size_t bytes;
        bool writes;
        uint64_t stream, command = 0;
        bool overlaps(uintptr_t other, size_t length) const {
            return at < other + length && other < at + bytes;
        }
    };
    bool behind(const Clock& known, Copy copy) {
        const bool clear = std::all_of(copies_.begin(), copies_.end(), [&](const Copy& before) {
            return !(copy.writes || before.writes) || !before.overlaps(copy.at, copy.bytes) ||
                   holds(known, before.stream, before.command);
        });
        copy.command = streams_[copy.stream][copy.stream];
        copies_.push_back(copy);
        if (copies_.size() > 256) copies_.pop_front();
        return clear;
    }
    uint64_t id_of(CUstream stream) {
        if (!stream || stream == CU_STREAM_LEGACY) return kLegacy;
        const auto [at, fresh] = ids_.emplace(stream, last_ + 1);
        if (fresh) last_++;
        return at->second;
    }
    bool free_behind(uintptr_t at, const Clock& clock) {
        const auto block = blocks_.find(at);
        if (block == blocks_.end()) return true;
        const Clock uses = block->second.uses;
        blocks_.erase(block);
        return std::all_of(uses.begin(), uses.end(),
                           [&](const auto& use) { return holds(clock, use.first, use.second); });
    }

    std::map<CUstream, uint64_t> ids_;
    uint64_t last_ = kLegacy;
    std::set<uint64_t> apart_;  // neither wait for the legacy default stream nor it for them
    std::map<uint64_t, Clock> streams_;
    std::map<CUevent, Clock> events_;
    struct Launch {
        uint64_t stream;
        Clock behind;
    };
    std::map<CUgraphExec, Launch> graphs_;  // the last one of each
    Clock host_;
    std::map<uintptr_t, Block> blocks_;  // of the pool
    std::deque<Copy> copies_;            // the last ones
};

}  // namespace fake
