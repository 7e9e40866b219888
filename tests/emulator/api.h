// Between a kernel and what runs it.
#pragma once

namespace emulated {

using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

struct Index {
    u32 x, y, z;
};
/// What a running thread sees of the launch, with the memory of its block: kDynamic bytes for what
/// the launch asks for, then what the text declares. Of its cluster the memory of each block.
struct Self {
    Index thread, block, threads, blocks;
    char* shared;
    char* const* cluster;
    u32 rank;  // in the cluster
    // Products of its warpgroup under way, the oldest first, and the groups committed so far.
    void *oldest, *newest;
    u32 groups;
    u32 registers;  // that its warp asked for; 0: it has those that it began with
    bool sends;     // arrived in other blocks since it last released to its cluster
};
constexpr u32 kDynamic = 256 << 10, kShared = kDynamic + (64 << 10);

/// What the emulator does for a kernel.
struct Api {
    Self* self;
    /// Comes to a barrier of `threads` threads (0: all there are), and waits for the others or not.
    void (*barrier)(u32 id, u32 threads, bool waits);
    /// All threads of the block: whether any brings true.
    bool (*any)(bool one);
    /// Until all threads of the cluster have come.
    void (*cluster_barrier)(bool orders);
    /// Until a word is not what was seen.
    void (*wait)(const volatile u32* at, u32 seen);
    /// What each lane of a warp brings, 64 bytes apart, when all lanes of the mask have come;
    /// `orders`: what they did before comes before what they do then.
    const char* (*exchange)(u32 mask, const void* mine, u32 bytes, bool orders);
    /// A copy into shared memory is begun, the rest of the room zeros; those so far are a group;
    /// all groups but the newest few have arrived. None does before it is waited for.
    void (*copy)(u32 to, const void* from, u32 room, u32 bytes);
    void (*commit)();
    void (*arrived)(u32 newest);
    /// The kernel waits for the one before it, which had begun it early.
    void (*settled)();
    /// A word was read, which others may be about to change.
    void (*looked)(const volatile u32* at, u32 seen);
    /// An instruction for global memory alone takes it: one in shared memory ends the run.
    void (*global)(const void* at);
    /// sum + a b over 8 words of two f16 (0), two bf16 (1) or a tf32 (2), as a tensor core adds.
    float (*mma)(int kind, float sum, const u32* a, const u32* b);
    u32 order;  // what shuffles turns; 0: nothing does

    // What finds races (races.h), where kernels are compiled so that they say what they touch.
    /// A read (0), a write (1) or an atomic access (2) of shared memory, from `where` on.
    void (*touched)(const void* at, u32 bytes, u32 access, const void* where);
    /// A barrier in shared memory is made, arrived at, seen to be over; its phase ends.
    void (*made)(u32 barrier);
    void (*released)(u32 barrier);
    void (*acquired)(u32 barrier);
    void (*ended)(u32 barrier);
    /// A copy has come that a barrier counts.
    void (*brought)(u32 to, u32 bytes, u32 barrier);
    /// A product reads from now on; those of groups before `end` no longer do.
    void (*reads)(const void* at, u32 bytes);
    void (*read)(u32 end);
};

/// What the driver writes into a tensor map: lines of sizes[0] elements of `size` bytes, `steps`
/// bytes apart, in boxes.
struct Map {
    const char* from;
    u64 sizes[3], steps[2];
    u32 box[3], size;
    bool rounds;  // f32 to tf32
    u32 line;     // bytes of one that is permuted
};

}  // namespace emulated
