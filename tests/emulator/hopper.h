// The instructions of 9.0 alone: clusters, barriers in shared memory, the copy engine, products of
// warpgroups. Copies are done at once. Where turns are shuffled, half of the groups of products are
// made as late as they may be, their sums no numbers till then: a kernel finds itself out that
// reads sums too early, or too early changes what products read.
#pragma once

namespace ptx {

// ---- clusters and barriers ----------------------------------------------------------------------

struct Nothing {
} inline nothing;
struct Rank {
} inline cluster_ctarank;

inline void mov_u32(u32& to, Rank) { to = self().rank; }
inline void mov_u32(u32& to, u32 from) { to = from; }
/// An address of another block: its rank in the highest bits.
inline void mapa_shared__cluster_u32(u32& to, u32 at, u32 rank) { to = at | (rank + 1) << 24; }
inline char* cluster_at(u32 address) {
    const u32 rank = address >> 24;
    return rank ? self().cluster[rank - 1] + (address & 0xffffff) : shared_at(address);
}
inline void barrier_cluster_arrive_release_aligned() { self().sends = false; }
inline void barrier_cluster_arrive_relaxed_aligned() {}
inline void barrier_cluster_wait_acquire_aligned() { emulated_api.cluster_barrier(true); }
inline void barrier_cluster_wait_aligned() { emulated_api.cluster_barrier(true); }
inline void bar_arrive(u32 id, u32 threads) { emulated_api.barrier(id, threads, false); }
inline void setp_ne_b32(bool& to, u32 a, u32 b) { to = a != b; }
inline void setp_ne_u32(bool& to, u32 a, u32 b) { to = a != b; }
inline void setmaxnreg_dec_sync_aligned_u32(u32 count) { self().registers = count; }
inline void setmaxnreg_inc_sync_aligned_u32(u32 count) { self().registers = count; }
inline void fence_mbarrier_init_release_cluster() {}
inline void fence_proxy_async_shared__cta() {}
inline void fence_proxy_async_global() {}
inline void prefetch_tensormap(const void*) {}

/// A barrier in shared memory, 8 bytes.
struct Phases {
    u32 pending : 16, all : 15, phase : 1;
    int bytes;  // under way
};
EMULATED_UNWATCHED inline void come(u32 barrier, u32 arrivals, int bytes) {
    auto& at = *reinterpret_cast<Phases*>(cluster_at(barrier));
    at.bytes += bytes;
    at.pending -= arrivals;
    if (at.pending || at.bytes) return;
    at.phase ^= 1;
    at.pending = at.all;
    emulated_api.ended(barrier);
}
inline void arrive(u32 barrier, int expected) {
    emulated_api.released(barrier);
    come(barrier, 1, expected);
}
/// Of a copy that a barrier counts.
inline void land(u32 to, u32 bytes, u32 barrier) {
    emulated_api.brought(to, bytes, barrier);
    come(barrier, 0, -static_cast<int>(bytes));
}
EMULATED_UNWATCHED inline void mbarrier_init_shared__cta_b64(u32 barrier, u32 count) {
    emulated_api.made(barrier);
    *reinterpret_cast<Phases*>(cluster_at(barrier)) = {count, count, 0, 0};
}
inline void mbarrier_arrive_expect_tx_shared__cta_b64(Nothing, u32 barrier, u32 bytes) {
    arrive(barrier, static_cast<int>(bytes));
}
inline void mbarrier_arrive_shared__cta_b64(Nothing, u32 barrier) { arrive(barrier, 0); }
inline void mbarrier_arrive_shared__cluster_b64(Nothing, u32 barrier) {
    if (barrier >> 24 && (barrier >> 24) - 1 != self().rank) self().sends = true;
    arrive(barrier, 0);
}
inline void elect_sync(Nothing, bool& one, u32) { one = lane() == 0; }
inline void selp_u32(u32& to, u32 a, u32 b, bool first) { to = first ? a : b; }
EMULATED_UNWATCHED inline void mbarrier_test_wait_parity_shared__cta_b64(bool& done, u32 barrier,
                                                                         u32 parity) {
    done = *reinterpret_cast<const volatile u32*>(shared_at(barrier)) >> 31 != parity;
    if (done) emulated_api.acquired(barrier);
}
EMULATED_UNWATCHED inline void mbarrier_try_wait_parity_shared__cta_b64(bool& done, u32 barrier,
                                                                        u32 parity) {
    const auto* word = reinterpret_cast<const volatile u32*>(shared_at(barrier));
    for (;;) {
        const u32 seen = *word;
        if (seen >> 31 != parity) break;
        emulated_api.wait(word, seen);
    }
    done = true;
    emulated_api.acquired(barrier);
}
inline void mbarrier_try_wait_parity_acquire_cluster_shared__cta_b64(bool& done, u32 barrier,
                                                                     u32 parity) {
    mbarrier_try_wait_parity_shared__cta_b64(done, barrier, parity);
}
/// As a copy does, not a thread.
EMULATED_UNWATCHED inline void write(char* to, const void* from, u32 bytes) {
    for (u32 i = 0; i < bytes; i++) to[i] = static_cast<const char*>(from)[i];
}
inline void st_async_shared__cluster_mbarrier__complete_tx__bytes_v4_f32(u32 to, float a, float b,
                                                                         float c, float d,
                                                                         u32 barrier) {
    const float four[] = {a, b, c, d};
    write(cluster_at(to), four, 16);
    land(to, 16, barrier);
}
/// What the sender did before comes before what waits for it.
inline void st_async_shared__cluster_mbarrier__complete_tx__bytes_v2_f32(u32 to, float a, float b,
                                                                         u32 barrier) {
    const float two[] = {a, b};
    emulated_api.released(barrier);
    write(cluster_at(to), two, 8);
    land(to, 8, barrier);
}
inline void st_async_shared__cluster_mbarrier__complete_tx__bytes_b32(u32 to, u32 word,
                                                                      u32 barrier) {
    emulated_api.released(barrier);
    write(cluster_at(to), reinterpret_cast<const char*>(&word), 4);
    land(to, 4, barrier);
}

// ---- copies -------------------------------------------------------------------------------------

/// Where a byte of a tile of lines of 128 or 64 bytes lies: cells of 16 bytes change places within
/// 8 lines.
inline u32 permuted(u32 address, u32 line) {
    return address ^ (address >> 7 & (line / 16 - 1)) << 4;
}

EMULATED_UNWATCHED inline void copy_box(char* to, u32 address, const void* described, int x, int y,
                                        int z) {
    const auto& map = *static_cast<const Map*>(described);
    const u32 line = map.box[0] * map.size;
    for (u32 row = 0; row < map.box[1]; row++)
        for (u32 i = 0; i < map.box[0]; i++) {
            const long long column = static_cast<long long>(x) + i;
            const long long of = static_cast<long long>(y) + row;
            const bool there = column >= 0 && column < static_cast<long long>(map.sizes[0]) &&
                               of >= 0 && of < static_cast<long long>(map.sizes[1]) && z >= 0 &&
                               z < static_cast<long long>(map.sizes[2]);
            char* const at = to + permuted(address + row * line + i * map.size, map.line);
            if (there)
                __builtin_memcpy(at,
                                 map.from + static_cast<u64>(z) * map.steps[1] +
                                     static_cast<u64>(of) * map.steps[0] +
                                     static_cast<u64>(column) * map.size,
                                 map.size);
            else
                __builtin_memset(at, 0, map.size);
            if (map.rounds) {
                u32 word;
                __builtin_memcpy(&word, at, 4);
                word = to_tf32(word);
                __builtin_memcpy(at, &word, 4);
            }
        }
}
inline u32 box_bytes(const void* described) {
    const auto& map = *static_cast<const Map*>(described);
    return map.box[0] * map.box[1] * map.box[2] * map.size;
}
inline void cp_async_bulk_tensor_3d_shared__cluster_global_mbarrier__complete_tx__bytes(
    u32 to, const void* map, int x, int y, int z, u32 barrier) {
    copy_box(self().shared, to, map, x, y, z);
    land(to, box_bytes(map), barrier);
}
inline void
cp_async_bulk_tensor_3d_shared__cluster_global_mbarrier__complete_tx__bytes_multicast__cluster(
    u32 to, const void* map, int x, int y, int z, u32 barrier, u16 mask) {
    for (u32 rank = 0; mask >> rank; rank++) {
        if (!(mask >> rank & 1)) continue;
        copy_box(self().cluster[rank], to, map, x, y, z);
        land(to | (rank + 1) << 24, box_bytes(map), barrier | (rank + 1) << 24);
    }
}
template <class T>
void cp_async_bulk_shared__cluster_global_mbarrier__complete_tx__bytes(u32 to, const T* from,
                                                                       u32 bytes, u32 barrier) {
    __builtin_memcpy(shared_at(to), from, bytes);
    land(to, bytes, barrier);
}
template <class T>
void cp_async_bulk_shared__cluster_global_mbarrier__complete_tx__bytes_L2__cache_hint(
    u32 to, const T* from, u32 bytes, u32 barrier, u64) {
    cp_async_bulk_shared__cluster_global_mbarrier__complete_tx__bytes(to, from, bytes, barrier);
}
inline void ld_shared_v2_b32(u32& a, u32& b, u32 from) { load(from, a, b); }
inline void ld_shared_v4_b32(u32& a, u32& b, u32& c, u32& d, u32 from) { load(from, a, b, c, d); }
inline void st_shared_b32(u32 to, u32 a) { store(to, a); }
template <class T>
void st_global_v4_b32(T* to, u32 a, u32 b, u32 c, u32 d) {
    const u32 words[] = {a, b, c, d};
    __builtin_memcpy(to, words, 16);
}
/// ldmatrix backwards.
inline void stmatrix_sync_aligned_m8n8_x4_shared_b16(u32 line, u32 a, u32 b, u32 c, u32 d) {
    const char* all = exchange(~0u, line);
    const u32 words[] = {a, b, c, d};
    for (u32 tile = 0; tile < 4; tile++)
        store(from_lane<u32>(all, 8 * tile + lane() / 4) + lane() % 4 * 4, words[tile]);
}

// ---- products of warpgroups ---------------------------------------------------------------------

/// One thread's part of a product that is under way.
struct Product {
    Product* next = nullptr;
    u32 group = 0;
    float** sums = nullptr;   // where they belong
    float* values = nullptr;  // till then, of all products that are under way to them
    u32 count = 0;
    virtual void make() = 0;
    virtual ~Product() {}
};
/// What a product is made on: of sums under way those, else a copy of what is there.
inline void begin(Product* product, float* const* d, u32 count) {
    Self& me = self();
    product->group = me.groups;
    product->count = count;
    product->sums = new float*[count];
    for (u32 x = 0; x < count; x++) product->sums[x] = d[x];
    for (auto* one = static_cast<Product*>(me.oldest); one; one = one->next)
        if (one->sums[0] == d[0]) product->values = one->values;
    if (!product->values) {
        product->values = new float[count];
        for (u32 x = 0; x < count; x++) {
            product->values[x] = *d[x];
            *d[x] = __builtin_nanf("");
        }
    }
    if (me.newest)
        static_cast<Product*>(me.newest)->next = product;
    else
        me.oldest = product;
    me.newest = product;
}
/// Makes the products of groups before `end`.
inline void make_before(u32 end) {
    Self& me = self();
    while (me.oldest) {
        auto* const one = static_cast<Product*>(me.oldest);
        if (one->group >= end) return;
        one->make();
        bool more = false;
        for (const Product* other = one->next; other; other = other->next)
            more = more || other->values == one->values;
        if (!more) {
            for (u32 x = 0; x < one->count; x++) *one->sums[x] = one->values[x];
            delete[] one->values;
        }
        me.oldest = one->next;
        if (!me.oldest) me.newest = nullptr;
        delete[] one->sums;
        delete one;
    }
}
inline void make_all() { make_before(~0u); }
/// Whether products of the group at hand are made late, of all lanes alike.
inline bool late() {
    const Self& me = self();
    const u32 order = emulated_api.order;
    const u32 mixed = (me.groups + 1) * 2654435761u + me.thread.x / 128 * 40503u + order * 97u;
    return order && (mixed ^ mixed >> 15) >> 7 & 1;
}

// The lanes of a warp come to these together, and are together when products are made.
inline void wgmma_fence_sync_aligned() { together(); }
inline void wgmma_commit_group_sync_aligned() {
    together();
    self().groups++;
}
inline void wgmma_wait_group_sync_aligned(int newest) {
    together();
    const u32 groups = self().groups, left = static_cast<u32>(newest);
    make_before(groups > left ? groups - left : 0);
    emulated_api.read(groups > left ? groups - left : 0);
    together();
}

/// A tile as its descriptor says: lines of 128 or 64 bytes along k, or along the rows (`across`).
struct Tile {
    u32 begin, leading, eight, line;
    bool across;
    u32 size;  // of an element

    Tile(u64 descriptor, bool turned, u32 bytes)
        : begin((descriptor & 0x3fff) << 4),
          leading((descriptor >> 16 & 0x3fff) << 4),
          eight((descriptor >> 32 & 0x3fff) << 4),
          line(descriptor >> 62 == 2 ? 64 : 128),
          across(turned),
          size(bytes) {}
    const char* at(u32 row, u32 k) const {
        const u32 per = line / size;
        const u32 offset =
            across ? row / per * leading + row % per * size + k / 8 * eight + k % 8 * line
                   : row / 8 * eight + row % 8 * line + k * size;
        return self().shared + permuted(begin + offset, line);
    }
    /// That a product reads so many rows until it is waited for; each thread says it of its share.
    void reads(u32 rows) const {
        const u32 per = 16 / size, first = self().thread.x % 128;
        if (across)
            for (u32 i = first; i < rows / per * (32 / size); i += 128)
                emulated_api.reads(at(i % (rows / per) * per, i / (rows / per)), 16);
        else
            for (u32 i = first; i < 2 * rows; i += 128)
                emulated_api.reads(at(i / 2, i % 2 * per), 16);
    }
    /// The 8 words that a row has of 32 bytes along k.
    EMULATED_UNWATCHED void row_of(u32 row, u32 (&words)[8]) const {
        char* to = reinterpret_cast<char*>(words);
        for (u32 k = 0; k < 32 / size; k++) __builtin_memcpy(to + k * size, at(row, k), size);
    }
};

/// This thread's part of 64 rows by N columns: as mma's, for every 8 columns.
template <int N, int Kind, class Row>
void add_products(float* values, const Row& row_of, u64 b, bool adds, bool across) {
    const Tile tile(b, across, Kind == 2 ? 4 : 2);
    u32 rows[2][8];
    for (u32 high = 0; high < 2; high++) row_of(high, rows[high]);
    for (u32 x = 0; x < N / 8; x++)
        for (u32 odd = 0; odd < 2; odd++) {
            u32 column[8];
            tile.row_of(8 * x + lane() % 4 * 2 + odd, column);
            for (u32 high = 0; high < 2; high++) {
                float& sum = values[4 * x + 2 * high + odd];
                sum = emulated_api.mma(Kind, adds ? sum : 0.0f, rows[high], column);
            }
        }
}
template <int N, int Kind>
struct TileProduct : Product {
    u64 a, b;
    bool adds, a_across, b_across;
    void make() override {
        const Tile tile(a, a_across, Kind == 2 ? 4 : 2);
        const u32 first = self().thread.x / 32 % 4 * 16 + lane() / 4;
        add_products<N, Kind>(
            values, [&](u32 high, u32(&words)[8]) { tile.row_of(first + 8 * high, words); }, b,
            adds, b_across);
    }
};
/// Of rows from registers, as mma has them: the assembler leaves those alone that a product reads,
/// whatever becomes of the variables.
template <int N, int Kind>
struct HeldProduct : Product {
    u32 a[4];
    u64 b;
    bool adds, b_across;
    void make() override {
        struct Mine {
            u32 a[4];
        };
        const char* all = exchange(~0u, Mine{{a[0], a[1], a[2], a[3]}});
        add_products<N, Kind>(
            values,
            [&](u32 high, u32(&words)[8]) {
                for (u32 w = 0; w < 8; w++)
                    words[w] = from_lane<Mine>(all, lane() / 4 * 4 + w % 4).a[w / 4 * 2 + high];
            },
            b, adds, b_across);
    }
};
template <int N, int Kind>
void products(float* const (&d)[N / 2], u64 a, u64 b, bool adds, int, int, int a_across = 0,
              int b_across = 0) {
    auto* const product = new TileProduct<N, Kind>;
    product->a = a;
    product->b = b;
    product->adds = adds;
    product->a_across = a_across;
    product->b_across = b_across;
    Tile(a, a_across, Kind == 2 ? 4 : 2).reads(64);
    Tile(b, b_across, Kind == 2 ? 4 : 2).reads(N);
    begin(product, d, N / 2);
    if (!late()) make_all();
}
template <int N, int Kind>
void products(float* const (&d)[N / 2], const u32* const (&a)[4], u64 b, bool adds, int, int,
              int b_across = 0) {
    auto* const product = new HeldProduct<N, Kind>;
    for (u32 w = 0; w < 4; w++) product->a[w] = *a[w];
    product->b = b;
    product->adds = adds;
    product->b_across = b_across;
    Tile(b, b_across, Kind == 2 ? 4 : 2).reads(N);
    begin(product, d, N / 2);
    if (!late()) make_all();
}

}  // namespace ptx
