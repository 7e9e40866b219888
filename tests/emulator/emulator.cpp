#include "emulator.h"

#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "api.h"
#include "core/abi/mma_step.h"
#include "races.h"

namespace emulated {

namespace {

constexpr size_t kStack = 128 << 10, kStatic = kShared - kDynamic;
constexpr size_t kFence = 4096;  // bytes behind a block's that must stay as they are
constexpr char kUnwritten = '\xcb';

[[noreturn]] void broken(const std::string& what) {
    std::fprintf(stderr, "emulator: %s\n", what.c_str());
    std::abort();
}

// ---- fibers -------------------------------------------------------------------------------------

#if defined(__x86_64__)
/// Keeps what a call must keep on the stack, and goes on where `to` was left.
extern "C" void emulated_switch(void** from, void* to);
asm(R"(
.text
.globl emulated_switch
.hidden emulated_switch
.type emulated_switch, @function
emulated_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
.size emulated_switch, .-emulated_switch
)");
struct Context {
    void* stack = nullptr;

    void begin(char* room, size_t bytes, void (*with)()) {
        auto* top = reinterpret_cast<void**>(room + bytes / 64 * 64);
        *--top = nullptr;  // so that `with` finds the stack as after a call
        *--top = reinterpret_cast<void*>(with);
        stack = top - 6;
    }
    void go_to(Context& other) { emulated_switch(&stack, other.stack); }
};
#else
struct Context {
    ucontext_t held = {};

    void begin(char* room, size_t bytes, void (*with)()) {
        getcontext(&held);
        held.uc_stack.ss_sp = room;
        held.uc_stack.ss_size = bytes;
        makecontext(&held, with, 0);
    }
    void go_to(Context& other) { swapcontext(&held, &other.held); }
};
#endif

struct Copy {
    u32 to;
    const void* from;
    u32 room, bytes;
    bool landed = false;
};

/// What a product of a group reads.
struct Reading {
    u32 at, bytes, group;
};

struct Cluster;
struct Block;
struct Fiber {
    Self self;
    Context context;
    Block* block = nullptr;
    bool done = false;
    const volatile u32* word = nullptr;  // goes on once it no longer is `seen`
    u32 seen = 0;
    const volatile u32* looked_at = nullptr;  // last
    u32 looked = 0;
    std::vector<Copy> copies;               // of no group yet
    std::vector<std::vector<Copy>> groups;  // under way, and those before that have arrived
    size_t landed = 0;                      // how many of them
    Known known;
    std::vector<Reading> readings;  // of products under way
    u32 waits = 0;                  // for products
};

struct Barrier {
    u32 come = 0, turn = 0;
    Gathered gathered;
    Seen seen[2];  // by turn

    void end() {
        come = 0;
        seen[turn++ % 2] = gathered.all();
    }
};

/// Where lanes of a warp hand each other something.
struct Meeting {
    u32 mask = 0;
    Barrier all;
    alignas(64) char brought[2][32][64];
};

struct Cluster {
    std::vector<char*> shared;
    std::vector<Block*> blocks;
    Barrier all;
    u32 threads = 0;
    u32 ids = 0;  // of threads and of barriers in memory
    Seen nothing;
};

struct Block {
    std::vector<Fiber> fibers;
    std::shared_ptr<Cluster> cluster;
    std::vector<size_t> order;  // of their turns
    Barrier barriers[16];
    bool any[2] = {};  // of what threads bring to the first one, by turn
    std::vector<std::vector<std::unique_ptr<Meeting>>> warps;
    char* shared = nullptr;
    char* stacks = nullptr;
    u32 left = 0;
    u32 first_id = 0;
    std::unordered_map<u32, Mailbox> mailboxes;
    std::vector<Products> products;  // by warp
    Shadow shadow;
};

struct Launch {
    const Kernel* kernel;
    const void* block;
    Api* api;
    Size size;
    size_t fenced;             // bytes of shared memory, those behind what it asks for too
    const u32* static_shared;  // bytes that it has so far been seen to have
};

Context scheduler;
Fiber* current = nullptr;
Launch launch;

void wait_for(const volatile u32* word, u32 seen) {
    current->word = word;
    current->seen = seen;
    current->context.go_to(scheduler);
}

void start_fiber() {
    launch.kernel->entry(launch.block);
    current->done = true;
    current->context.go_to(scheduler);
}

// ---- what kernels call --------------------------------------------------------------------------

/// Whether races are looked for.
const bool watches = std::getenv("EMULATED_RACES") != nullptr;

void come(Barrier& at, u32 wanted, bool waits, bool orders = true) {
    current->looked_at = nullptr;  // what is read behind a barrier is another loop's
    const u32 turn = at.turn;
    if (orders && watches) at.gathered.add(current->known);
    if (++at.come >= wanted)
        at.end();
    else if (waits)
        wait_for(&at.turn, turn);
    if (waits && orders && watches) current->known.take(at.seen[turn % 2]);
}
void barrier(u32 id, u32 threads, bool waits) {
    if (id >= 16 || threads % 32) broken("a barrier that there is not");
    Block& block = *current->block;
    come(block.barriers[id], threads ? threads : block.left, waits);
}
bool any(bool one) {
    Block& block = *current->block;
    const Barrier& at = block.barriers[0];
    bool& all = block.any[at.turn % 2];
    all = one || (at.come > 0 && all);
    barrier(0, 0, true);
    return all;
}
void cluster_barrier(bool orders) {
    Cluster& cluster = *current->block->cluster;
    come(cluster.all, cluster.threads, true, orders);
}

const char* exchange(u32 mask, const void* mine, u32 bytes, bool orders) {
    const u32 lane = current->self.thread.x % 32;
    if (!(mask >> lane & 1)) broken("a lane that is not of the mask it names");
    auto& meetings = current->block->warps[current->self.thread.x / 32];
    auto found = std::find_if(meetings.begin(), meetings.end(),
                              [&](const auto& one) { return one->mask == mask; });
    if (found == meetings.end()) {
        meetings.push_back(std::make_unique<Meeting>());
        meetings.back()->mask = mask;
        found = meetings.end() - 1;
    }
    Meeting& at = **found;
    auto* const all = at.brought[at.all.turn % 2];
    std::memcpy(all[lane], mine, bytes);
    const u32 threads = current->self.threads.x, first = current->self.thread.x / 32 * 32;
    const u32 there = threads - first >= 32 ? ~0u : (1u << (threads - first)) - 1;
    come(at.all, static_cast<u32>(__builtin_popcount(mask & there)), true, orders);
    return all[0];
}

// ---- races --------------------------------------------------------------------------------------

constexpr u32 kMailboxes = 96;  // of a block
/// Of a block's threads, barriers in memory and warps.
u32 ids_of(u32 threads) { return threads + kMailboxes + (threads + 31) / 32; }
const char* const kAccesses[] = {"is read", "is written", "is changed"};

auto& files = *new std::map<void*, int>;  // of libraries

/// Where that is in a kernel's text, if it was compiled with -g: functions, the innermost first.
std::string place_of(const void* where) {
    Dl_info info;
    if (!where || !dladdr(where, &info)) return "a copy";
    std::string text;
    for (const auto& [library, file] : files) {
        const void* entry = dlsym(library, "emulated_api");
        Dl_info own;
        if (!dladdr(entry, &own) || own.dli_fbase != info.dli_fbase) continue;
        char command[200];
        std::snprintf(command, sizeof command, "addr2line -f -i -s -C -e /proc/%d/fd/%d %#zx",
                      getpid(), file,
                      static_cast<size_t>(static_cast<const char*>(where) -
                                          static_cast<const char*>(info.dli_fbase)) -
                          1);
        FILE* lines = popen(command, "r");
        char line[4000];
        for (int i = 0; lines && i < 12 && std::fgets(line, sizeof line, lines); i++) {
            const std::string one(line, std::strcspn(line, "\n"));
            text += i % 2 ? " (" + one + ")\n        "
                          : one.substr(0, std::min(one.find('('), size_t{160}));
        }
        if (lines) pclose(lines);
    }
    return text;
}
std::string name_of(u32 id, u32 per) {
    const u32 threads = launch.size.threads, at = id % per;
    return (at < threads ? "thread " + std::to_string(at)
            : at < threads + kMailboxes
                ? "copies of barrier " + std::to_string(at - threads)
                : "products of warp " + std::to_string(at - threads - kMailboxes)) +
           " of block " + std::to_string(id / per) + " of the cluster";
}
void touch(Block& block, const Known& by, u32 at, u32 bytes, Shadow::Record as) {
    const Shadow::Record* other = block.shadow.touch(by, at, bytes, as);
    if (!other) return;
    const u32 per = ids_of(launch.size.threads);
    broken("a race in " + launch.kernel->name + "\n  byte " + std::to_string(at) +
           " of shared memory " + kAccesses[as.access] + " by " + name_of(as.id, per) +
           (as.step == Shadow::kUnderWay ? " till it waits" : "") + "\n    at " +
           place_of(as.where) + "\n  and " + kAccesses[other->access] + " by " +
           name_of(other->id, per) + (other->step == Shadow::kUnderWay ? " till it waits" : "") +
           "\n    at " + place_of(other->where));
}
void touched(const void* at, u32 bytes, u32 access, const void* where) {
    if (!watches) return;
    const Known& by = current->known;
    touch(*current->block, by,
          static_cast<u32>(static_cast<const char*>(at) - current->self.shared), bytes,
          {by.id, by.step, where, 0, static_cast<unsigned char>(access)});
}
Block& block_of(u32 address) {
    const u32 rank = address >> 24;
    return rank ? *current->block->cluster->blocks[rank - 1] : *current->block;
}
Mailbox& mailbox_at(u32 barrier) {
    Block& block = block_of(barrier);
    const auto [at, made] = block.mailboxes.try_emplace(barrier & 0xffffff);
    if (made) {
        at->second.id =
            block.first_id + launch.size.threads + static_cast<u32>(block.mailboxes.size()) - 1;
        if (block.mailboxes.size() > kMailboxes) broken("more barriers in memory than are watched");
    }
    return at->second;
}
void made(u32 barrier) {
    if (!watches) return;
    Mailbox& at = mailbox_at(barrier);
    at.gathered.all();
    at.done = nullptr;
}
void released(u32 barrier) {
    if (watches) mailbox_at(barrier).gathered.add(current->known);
}
void acquired(u32 barrier) {
    if (watches) current->known.take(mailbox_at(barrier).done);
}
void ended(u32 barrier) {
    if (!watches) return;
    Mailbox& at = mailbox_at(barrier);
    at.done = at.gathered.all();
}
void brought(u32 to, u32 bytes, u32 barrier) {
    if (!watches) return;
    Mailbox& at = mailbox_at(barrier);
    touch(block_of(to), current->known, to & 0xffffff, bytes,
          {at.id, ++at.step, __builtin_return_address(0), 0, kWrite});
    at.gathered.add(at.id, at.step, current->block->cluster->ids);
}
Products& products_of() { return current->block->products[current->self.thread.x / 32]; }
void reads(const void* at, u32 bytes) {
    // Attention makes products of what lies there, where none follow, whose sums it does not use:
    // its products are watched by their values alone.
    if (!watches || launch.kernel->name.find("attention") != std::string::npos) return;
    const auto place = static_cast<u32>(static_cast<const char*>(at) - current->self.shared);
    current->readings.push_back({place, bytes, current->self.groups});
    touch(*current->block, current->known, place, bytes,
          {products_of().id, Shadow::kUnderWay, __builtin_return_address(0), 0, kRead});
}
void read(u32 end) {
    if (!watches) return;
    const u32 step = ++current->waits;
    std::erase_if(current->readings, [&](const Reading& one) {
        if (one.group >= end) return false;
        current->block->shadow.finish(products_of().id, one.at, one.bytes, step);
        return true;
    });
    products_of().seen_by(current->known, step);
}

// ---- copies -------------------------------------------------------------------------------------

void global(const void* at) {
    const auto* const to = static_cast<const char*>(at);
    if (static_cast<u64>(to - current->self.shared) < kShared)
        broken("an access of global memory by an address in shared memory");
}
void copy(u32 to, const void* from, u32 room, u32 bytes) {
    if (bytes) global(from);
    if (to % room || (bytes && reinterpret_cast<uintptr_t>(from) % room) || bytes > room)
        broken("a copy of " + std::to_string(room) + " bytes that is not aligned");
    current->copies.push_back({to, from, room, bytes});
    if (watches)
        touch(*current->block, current->known, to, room,
              {current->known.id, Shadow::kUnderWay, __builtin_return_address(0), 0, kWrite});
}
void land(Fiber& fiber, std::vector<Copy>& copies) {
    for (Copy& one : copies) {
        if (std::exchange(one.landed, true)) continue;
        std::memcpy(fiber.self.shared + one.to, one.from, one.bytes);
        std::memset(fiber.self.shared + one.to + one.bytes, 0, one.room - one.bytes);
    }
}
void commit() { current->groups.push_back(std::move(current->copies)), current->copies.clear(); }
void arrived(u32 newest) {
    auto& groups = current->groups;
    for (size_t& at = current->landed; groups.size() > at + newest; at++) {
        if (watches)
            for (const Copy& one : groups[at])
                current->block->shadow.finish(current->known.id, one.to, one.room,
                                              current->known.step);
        land(*current, groups[at]);
        groups[at].clear();
    }
}

void looked(const volatile u32* at, u32 seen) {
    if (current->looked_at == at && current->looked == seen) wait_for(at, seen);
    current->looked_at = at;
    current->looked = seen;
}

/// What the kernel before wrote, kept here while a cluster that has not waited for it finds NaN.
class Unsettled {
  public:
    void begin(const std::vector<Bytes>& written) {
        written_ = written;
        size_t bytes = 0;
        for (const Bytes& one : written) bytes += one.count;
        kept_.resize(bytes);
        left_ = bytes ? kMost / bytes : 0;
    }
    void hide() {
        if (!left_) return;
        left_--;
        char* to = kept_.data();
        for (const Bytes& one : written_) {
            std::memcpy(to, one.from, one.count);
            to += one.count;
            std::memset(one.from, 0xff, one.count);
        }
        hidden_ = true;
    }
    void show() {
        if (!std::exchange(hidden_, false)) return;
        const char* from = kept_.data();
        for (const Bytes& one : written_) {
            std::memcpy(one.from, from, one.count);
            from += one.count;
        }
    }
    bool hidden() const { return hidden_; }

  private:
    static constexpr size_t kMost = 512 << 20;  // bytes that are kept in a launch, so that it ends
    std::vector<Bytes> written_;
    std::vector<char> kept_;
    size_t left_ = 0;  // clusters
    bool hidden_ = false;
};
auto& unsettled = *new Unsettled;
/// Copies that were begun before may arrive before.
void settled() {
    if (unsettled.hidden())
        for (Block* block : current->block->cluster->blocks)
            for (Fiber& fiber : block->fibers) {
                for (size_t at = fiber.landed; at < fiber.groups.size(); at++)
                    land(fiber, fiber.groups[at]);
                land(fiber, fiber.copies);
            }
    unsettled.show();
}

/// A line of an operand. Products that follow each other mostly have the same.
template <int Count, int Exponent, int Fraction>
struct Line {
    typedef std::conditional_t<Count == 8, u32, uint16_t> Word;
    Word words[Count] = {};
    aicf::scalar::MmaTerm terms[Count];

    Line() { open(); }
    void open() {
        for (int i = 0; i < Count; i++)
            terms[i] =
                aicf::scalar::mma_term<Exponent, Fraction>(Count == 8 ? words[i] >> 13 : words[i]);
    }
    const aicf::scalar::MmaTerm* of(const u32* line) {
        if (std::memcmp(words, line, sizeof words)) {
            std::memcpy(words, line, sizeof words);
            open();
        }
        return terms;
    }
};
template <int Count, int Exponent, int Fraction>
float mma_of(float sum, const u32* a, const u32* b) {
    static Line<Count, Exponent, Fraction> rows[2], column;  // a thread's rows take turns
    static u32 turn = 0;
    return aicf::scalar::mma_step<Count>(sum, rows[turn++ % 2].of(a), column.of(b));
}
float mma(int kind, float sum, const u32* a, const u32* b) {
    return kind == 2   ? mma_of<8, 8, 10>(sum, a, b)
           : kind == 1 ? mma_of<16, 8, 7>(sum, a, b)
                       : mma_of<16, 5, 10>(sum, a, b);
}

// ---- launches -----------------------------------------------------------------------------------

std::mt19937_64& shuffler() {
    static std::mt19937_64 made(std::strtoull(std::getenv("EMULATED_ORDER") ?: "0", nullptr, 10));
    return made;
}
std::vector<size_t> order_of(size_t count) {
    static const char* seed = std::getenv("EMULATED_ORDER");
    std::vector<size_t> order(count);
    for (size_t i = 0; i < count; i++) order[i] = i;
    if (seed && std::strcmp(seed, "0")) std::shuffle(order.begin(), order.end(), shuffler());
    return order;
}

char* map(size_t bytes) {
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) broken("no memory for a block");
    return static_cast<char*>(memory);
}

/// Blocks that have ended leave their memory to the next.
auto& idle = *new std::vector<std::unique_ptr<Block>>;

std::unique_ptr<Block> start_block(u32 index, const std::shared_ptr<Cluster>& cluster) {
    const u32 threads = launch.size.threads;
    std::unique_ptr<Block> block;
    for (auto& one : idle)
        if (one->fibers.size() == threads) {
            block = std::move(one);
            std::swap(one, idle.back());
            idle.pop_back();
            break;
        }
    if (!block) {
        block = std::make_unique<Block>();
        block->fibers.resize(threads);
        block->warps.resize((threads + 31) / 32);
        block->shared = map(kDynamic + kStatic);
        block->stacks = map(kStack * threads);
    }
    std::memset(block->shared, kUnwritten, launch.fenced);
    std::memset(block->shared + kDynamic, kUnwritten, *launch.static_shared);
    for (Barrier& one : block->barriers) one = {};
    for (auto& warp : block->warps) warp.clear();
    block->order = order_of(threads);
    block->left = threads;
    block->cluster = cluster;
    cluster->shared.push_back(block->shared);
    cluster->blocks.push_back(block.get());
    block->first_id = (static_cast<u32>(cluster->blocks.size()) - 1) * ids_of(threads);
    block->mailboxes.clear();
    block->shadow.clear();
    block->products.assign((threads + 31) / 32, {});
    for (u32 w = 0; w < block->products.size(); w++)
        block->products[w].id = block->first_id + threads + kMailboxes + w;
    for (u32 t = 0; t < threads; t++) {
        Fiber& fiber = block->fibers[t];
        fiber = {};
        fiber.block = block.get();
        fiber.known = {block->first_id + t, 1, cluster->nothing};
        fiber.self = {{t, 0, 0},
                      {index, 0, 0},
                      {threads, 1, 1},
                      {launch.size.blocks, 1, 1},
                      block->shared,
                      cluster->shared.data(),
                      static_cast<u32>(cluster->shared.size() - 1),
                      nullptr,
                      nullptr,
                      0,
                      0,
                      false};
        fiber.context.begin(block->stacks + kStack * t, kStack, start_fiber);
    }
    return block;
}

/// One turn of each thread that need not wait; whether there was one.
bool advance(Block& block) {
    bool any = false;
    for (size_t t : block.order) {
        Fiber& fiber = block.fibers[t];
        if (fiber.done || (fiber.word && *fiber.word == fiber.seen)) continue;
        any = true;
        fiber.word = nullptr;
        current = &fiber;
        launch.api->self = &fiber.self;
        scheduler.go_to(fiber.context);
        if (!fiber.done) continue;
        if (fiber.self.oldest) broken("a thread ended before products that it began");
        if (fiber.self.sends)
            broken("a thread ended without releasing what it sent to its cluster");
        block.left--;
        // Those that still are there are all that a barrier waits for.
        if (Barrier& all = block.barriers[0]; all.come && all.come == block.left) all.end();
    }
    return any;
}

/// A warp waits for the registers that it asks for until others have given back as many: a block
/// has no more than it began with, which is what a processor has for its threads, in eights.
void check_registers(const Block& block) {
    const auto threads = static_cast<u32>(block.fibers.size());
    const u32 begun = std::min(65536 / threads / 8 * 8, 255u);
    u32 asked = 0, had = 0;
    bool dealt = false;
    for (u32 t = 0; t < threads; t += 32) {
        const u32 registers = block.fibers[t].self.registers;
        dealt = dealt || registers;
        asked += registers ? registers : begun;
        had += begun;
    }
    if (dealt && asked > had)
        broken("warps ask for " + std::to_string(asked) + " registers a lane together, there are " +
               std::to_string(had));
}

void end_block(std::unique_ptr<Block> block) {
    check_registers(*block);
    for (size_t at = launch.size.shared; at < launch.fenced; at++)
        if (block->shared[at] != kUnwritten)
            broken("byte " + std::to_string(at) + " of shared memory is written, there are " +
                   std::to_string(launch.size.shared));
    idle.push_back(std::move(block));
}

std::string waits_of(const Block& block) {
    std::string text;
    for (const Fiber& fiber : block.fibers)
        if (!fiber.done && text.size() < 400) text += " " + std::to_string(fiber.self.thread.x);
    return "block " + std::to_string(block.fibers[0].self.block.x) + ": threads" + text;
}

}  // namespace

bool is_host(const void* image) {
    Elf64_Ehdr head;
    std::memcpy(&head, image, sizeof head);
    return head.e_machine != 190;  // that of CUDA
}

void* load(const void* image) {
    Elf64_Ehdr head;
    std::memcpy(&head, image, sizeof head);
    const size_t bytes = head.e_shoff + size_t{head.e_shnum} * head.e_shentsize;
    const int file = memfd_create("kernels", 0);
    if (write(file, image, bytes) != static_cast<ssize_t>(bytes)) broken("no room for a library");
    void* library = dlopen(("/proc/self/fd/" + std::to_string(file)).c_str(), RTLD_NOW);
    if (!library) broken(dlerror());
    files[library] = file;  // while it is open no other library has its name
    *static_cast<Api*>(dlsym(library, "emulated_api")) = {
        nullptr,  barrier,
        any,      cluster_barrier,
        wait_for, exchange,
        copy,     commit,
        arrived,  settled,
        looked,   global,
        mma,      static_cast<u32>(std::strtoul(std::getenv("EMULATED_ORDER") ?: "0", nullptr, 10)),
        touched,  made,
        released, acquired,
        ended,    brought,
        reads,    read};
    return library;
}
void unload(void* library) {
    dlclose(library);
    close(files.at(library));
    files.erase(library);
}

Kernel kernel_of(void* library, const char* name) {
    const std::string wanted = std::string("emulated_") + name;
    void* const entry = dlsym(library, wanted.c_str());
    void* const cluster = dlsym(library, (wanted + "_cluster").c_str());
    if (!entry || !cluster) broken("no kernel " + wanted);
    return {library, reinterpret_cast<void (*)(const void*)>(entry),
            reinterpret_cast<unsigned (*)()>(cluster)(), name};
}

size_t static_shared(const Kernel& kernel) {
    return *static_cast<const u32*>(dlsym(kernel.library, "emulated_static_shared"));
}

void run(const Kernel& kernel, const void* block, Size size, const std::vector<Bytes>& written) {
    void* const library = kernel.library;
    auto* api = static_cast<Api*>(dlsym(library, "emulated_api"));
    const auto* declared = static_cast<const u32*>(dlsym(library, "emulated_static_shared"));
    launch = {&kernel, block, api, size, std::min<size_t>(size.shared + kFence, kDynamic),
              declared};
    if (size.shared > kDynamic) broken("more shared memory than there is");
    if (size.blocks % kernel.cluster) broken("blocks that are no whole clusters");
    const std::vector<size_t> order = order_of(size.blocks / kernel.cluster);
    std::vector<std::unique_ptr<Block>> running;
    unsettled.begin(written);
    for (size_t next = 0; next < order.size() || !running.empty();) {
        bool any = false;
        for (auto& one : running) any |= advance(*one);
        for (size_t i = 0; i < running.size();) {
            if (running[i]->left) {
                i++;
            } else {
                end_block(std::move(running[i]));
                running.erase(running.begin() + static_cast<ptrdiff_t>(i));
            }
        }
        if (any) continue;
        if (next < order.size()) {
            const auto cluster = std::make_shared<Cluster>();
            cluster->shared.reserve(kernel.cluster);
            cluster->threads = kernel.cluster * size.threads;
            cluster->ids = kernel.cluster * ids_of(size.threads);
            cluster->nothing = std::make_shared<Clock>(cluster->ids);
            for (u32 i = 0; i < kernel.cluster; i++)
                running.push_back(
                    start_block(static_cast<u32>(order[next]) * kernel.cluster + i, cluster));
            next++;
            unsettled.show();
            if (running.size() == kernel.cluster) unsettled.hide();  // others have waited
        } else if (!running.empty()) {
            broken("all threads wait: " + waits_of(*running[0]));
        }
    }
    unsettled.show();
    if (*declared > kStatic) broken("more static shared memory than there is");
}

}  // namespace emulated
