#include "core/compile/executable.h"

#include <algorithm>
#include <array>

#include "core/base/bytes.h"
#include "core/compile/memory.h"

namespace aicf {

namespace {

constexpr std::string_view kMagic = "AICFSTEP";
constexpr size_t kAlign = 64, kHeaderBytes = 64, kEntryBytes = 32;

enum class Section : uint32_t { plan = 1, kernels, code, constants, state };
constexpr std::array kSections = {Section::plan, Section::kernels, Section::code,
                                  Section::constants, Section::state};
constexpr const char* kSectionNames[] = {"plan", "kernels", "code", "constants", "state"};
constexpr size_t index_of(Section section) { return static_cast<size_t>(section) - 1; }

// Serialised by number: append only.
static_assert(static_cast<int>(DType::boolean) == 7 && static_cast<int>(DType::i16) == 9);
static_assert(kDTypes == 10);
static_assert(static_cast<int>(Role::ring) == 5);
static_assert(static_cast<int>(Init::data) == 5);
static_assert(static_cast<int>(Device::cuda) == 1);
static_assert(static_cast<int>(LaunchKind::loop) == 4);
constexpr size_t kRoles = 6, kInits = 6, kDevices = 2, kLaunchKinds = 5, kAttrTypes = 5;
constexpr int kMostLoops = 8;  // nested

size_t round_up(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

/// A streaming checksum over 8-byte words; any single changed word changes it.
class Checksum {
  public:
    void add(std::string_view bytes) {
        total_ += bytes.size();
        size_t at = 0;
        for (; filled_ != 0 && at < bytes.size(); at++) put(bytes[at]);
        for (; at + 8 <= bytes.size(); at += 8) {
            uint64_t word = 0;
            std::memcpy(&word, bytes.data() + at, 8);
            mix(word);
        }
        for (; at < bytes.size(); at++) put(bytes[at]);
    }
    uint64_t sum() {
        while (filled_ != 0) put('\0');
        mix(total_);
        return sum_;
    }

  private:
    void put(char byte) {
        word_ |= uint64_t{static_cast<uint8_t>(byte)} << 8 * filled_;
        if (++filled_ < 8) return;
        mix(word_);
        word_ = 0;
        filled_ = 0;
    }
    void mix(uint64_t word) {
        sum_ = (sum_ ^ word) * 0x100000001b3u;
        sum_ = sum_ << 29 | sum_ >> 35;
    }
    uint64_t sum_ = 0xcbf29ce484222325u, total_ = 0, word_ = 0;
    int filled_ = 0;
};

uint64_t checksum(std::string_view bytes) {
    Checksum sum;
    sum.add(bytes);
    return sum.sum();
}

/// A digest of the schema of an op.
uint64_t schema_digest(const LoweredDef& def) {
    std::string text = def.name;
    const auto names = [&](const std::vector<std::string>& list) {
        for (const std::string& name : list) text += cat(";", name);
        text += "|";
    };
    const auto numbers = [&](const std::vector<int>& list) {
        for (int number : list) text += cat(number, ",");
        text += "|";
    };
    names(def.inputs);
    names(def.outputs);
    for (const AttrDef& attr : def.attrs) {
        text += cat(attr.name, ":", attr.fallback.index(), attr.required);
        names(attr.choices);
    }
    for (auto [out, in] : def.inplace) text += cat(out, "<", in, ",");
    numbers(def.contiguous);
    numbers(def.rows);
    text += cat(def.pointwise, def.reduction, def.gemm, def.optimizer, def.random, def.streams,
                def.numbers);
    return checksum(text);
}

// ---- records: each struct once, for writing and reading ----------------------------------------

/// What a file's header and an entry of its table of sections say.
struct Header {
    uint32_t format = kFileFormat, contract = kContract;
    uint64_t bytes = 0;  // of the file
    uint32_t sections = kSections.size(), none = 0;
    uint64_t sum = 0;  // of the table
};
struct Entry {
    uint32_t kind = 0, none = 0;
    uint64_t offset = 0, bytes = 0, sum = 0;
};

template <class Io>
void fields(Io& io, Entry& entry) {
    io.numbers(entry.kind, entry.none, entry.offset, entry.bytes, entry.sum);
}

/// The header of a plan record.
struct Head {
    std::string arch;
    int32_t processors = 0;
    uint64_t seed = 0;
    std::vector<int64_t> scratch_sizes;  // by op, as read
};

struct Schemas {
    std::vector<const LoweredDef*> defs;
};

/// The file section of a value's initial content.
Section home_of(const Value& value) {
    return value.role == Role::constant ? Section::constants : Section::state;
}

template <class Io>
void fields(Io& io, Dims& dims) {
    auto rank = static_cast<uint8_t>(dims.rank());
    io.number(rank);
    if constexpr (Io::kReads) {
        if (rank > kMaxDims) io.fail("a shape has rank ", rank, "; need at most ", kMaxDims);
        dims = {};
        for (int i = 0; i < rank; i++) {
            int64_t size = 0;
            io.number(size);
            dims.push(size);
        }
    } else {
        for (int i = 0; i < rank; i++) io.number(dims[i]);
    }
}

template <class Io>
void fields(Io& io, View& view) {
    io.number(view.value);
    io.choice(view.dtype, kDTypes, "a dtype");
    fields(io, view.shape);
    fields(io, view.strides);
    io.number(view.offset);
}

template <class Io>
void fields(Io& io, Attr& attr) {
    auto type = static_cast<uint8_t>(attr.index());
    io.number(type);
    const auto one = [&](auto value, const auto& take) {
        using T = decltype(value);
        if constexpr (!Io::kReads) value = std::get<T>(attr);
        take(value);
        if constexpr (Io::kReads) attr = Attr(std::move(value));
    };
    const auto number = [&](auto& value) { io.number(value); };
    if (type == 0) return one(false, [&](bool& value) { io.flag(value); });
    if (type == 1) return one(int64_t{0}, number);
    if (type == 2) return one(double{0}, number);
    if (type == 3) return one(std::string(), [&](std::string& value) { io.text(value); });
    if (type >= kAttrTypes)
        if constexpr (Io::kReads)
            io.fail("an attribute has type ", type, "; need one below ", kAttrTypes);
    one(std::vector<int64_t>(), [&](std::vector<int64_t>& values) {
        io.list(values, [](Io& each, int64_t& value) { each.number(value); });
    });
}

template <class Io>
void fields(Io& io, Attrs& attrs) {
    auto items = attrs.items();
    io.list(items, [](Io& each, auto& item) {
        each.text(item.first);
        fields(each, item.second);
    });
    if constexpr (Io::kReads) {
        attrs = {};
        for (auto& [name, attr] : items) {
            if (attrs.find(name)) io.fail("attribute \"", name, "\" stands twice");
            attrs.set(name, std::move(attr));
        }
    }
}

template <class Io>
void fields(Io& io, const LoweredDef*& def, Schemas& schemas) {
    uint32_t index = 0;
    if constexpr (!Io::kReads) {
        const auto at = std::find(schemas.defs.begin(), schemas.defs.end(), def);
        index = static_cast<uint32_t>(at - schemas.defs.begin());
    }
    io.number(index);
    if constexpr (Io::kReads) {
        if (index >= schemas.defs.size())
            io.fail("op number ", index, "; the file names ", schemas.defs.size());
        def = schemas.defs[index];
    }
}

template <class Io>
void fields(Io& io, RegionStep& step, Schemas& schemas) {
    fields(io, step.def, schemas);
    const auto number = [](Io& each, int& value) { each.number(value); };
    io.list(step.inputs, number);
    io.list(step.outputs, number);
    fields(io, step.attrs);
    io.number(step.node);
}

template <class Io>
void fields(Io& io, LoweredOp& op, Schemas& schemas, bool member = false) {
    const auto view = [](Io& each, View& value) { fields(each, value); };
    fields(io, op.def, schemas);
    io.list(op.inputs, view);
    io.list(op.outputs, view);
    fields(io, op.attrs);
    io.number(op.node);
    io.list(op.body, [&](Io& each, RegionStep& step) { fields(each, step, schemas); });
    io.list(op.inner, view);
    io.text(op.candidate);
    if (member) return;  // members do not nest
    io.list(op.members, [&](Io& each, LoweredOp& one) { fields(each, one, schemas, true); });
}

template <class Io>
void lists(Io& io, Plan& plan, Schemas& schemas, std::vector<int64_t>& scratch_sizes, int depth);

template <class Io>
void fields(Io& io, PlannedOp& planned, Schemas& schemas, std::vector<int64_t>& scratch_sizes,
            int depth) {
    auto kind = LaunchKind::kernel;
    if constexpr (!Io::kReads)
        kind = planned.body             ? LaunchKind::loop
               : is_foreign(planned.op) ? LaunchKind::foreign
                                        : LaunchKind::kernel;
    io.choice(kind, kLaunchKinds, "a launch");
    if constexpr (Io::kReads) {
        if (kind == LaunchKind::copy || kind == LaunchKind::collective)
            io.fail("a launch is of kind ", static_cast<int>(kind),
                    "; this version runs kernels, foreign ones and loops");
        if (depth == kMostLoops)
            io.fail("more than ", kMostLoops, " loops stand inside each other");
    }
    fields(io, planned.op, schemas);
    if constexpr (Io::kReads)
        if (is_foreign(planned.op) != (kind == LaunchKind::foreign))
            io.fail("a launch of kind ", static_cast<int>(kind), " has candidate \"",
                    planned.op.candidate, "\"; need a library's for a foreign one alone");
    io.numbers(planned.counters, planned.scratch);
    int64_t room = 0;
    if constexpr (!Io::kReads) room = static_cast<int64_t>(planned.kernel->workspace_bytes);
    io.number(room);
    if constexpr (Io::kReads) {
        if (room < 0 || room > kMostBytes)
            io.fail("an op's scratch has ", room, " bytes; need at most ", kMostBytes);
        scratch_sizes.push_back(room);
    }
    io.number(planned.lane);
    io.list(planned.waits, [](Io& each, int& wait) { each.number(wait); });
    if (kind != LaunchKind::loop) return;
    Plan body;
    if constexpr (!Io::kReads) body = *planned.body;
    lists(io, body, schemas, scratch_sizes, depth + 1);
    if constexpr (Io::kReads) planned.body = std::make_shared<const Plan>(std::move(body));
}

template <class Io>
void fields(Io& io, Value& value) {
    io.text(value.name);
    io.choice(value.type.dtype, kDTypes, "a dtype");
    fields(io, value.type.shape);
    io.choice(value.role, kRoles, "a role");
    io.number(value.producer);
    io.choice(value.init.kind, kInits, "an initial content");
    io.numbers(value.init.a, value.init.b, value.moment_of, value.moment_slot);
}

template <class Io>
void fields(Io& io, Place& place) {
    io.choice(place.segment, kSegments, "a region");
    io.numbers(place.offset, place.bytes, place.storage);
}

template <class Io>
void fields(Io& io, Lowered::Output& output) {
    io.text(output.name);
    io.numbers(output.value, output.keep, output.ring, output.position);
}

template <class Io>
void fields(Io& io, IndexUse& use) {
    io.number(use.leaf);
    fields(io, use.view);
    io.number(use.rows);
    io.flag(use.ignores);
    io.numbers(use.ignored, use.node);
    io.text(use.op);
    io.text(use.source);
    io.text(use.operand);
}

template <class Io>
void fields(Io& io, Head& head, Plan& plan, Schemas& schemas) {
    io.choice(plan.device, kDevices, "a device");
    io.text(head.arch);
    io.numbers(head.processors, head.seed);
    io.text(plan.name);
    io.text(plan.math);
    io.flag(plan.deterministic);
    io.number(plan.temps_without_reuse);
    io.list(schemas.defs, [](Io& each, const LoweredDef*& def) {
        std::string name = Io::kReads ? std::string() : def->name;
        uint64_t digest = Io::kReads ? 0 : schema_digest(*def);
        each.text(name);
        each.number(digest);
        if constexpr (Io::kReads) {
            def = find_lowered(name);
            if (!def || schema_digest(*def) != digest)
                each.fail("op \"", name, "\" is ", def ? "another one" : "unknown",
                          " in this version of aicf; export the step again with it");
        }
    });
    lists(io, plan, schemas, head.scratch_sizes, 0);
    io.list(plan.indices, [](Io& each, IndexUse& use) { fields(each, use); });
}

/// The fields that a plan and a loop body share.
template <class Io>
void lists(Io& io, Plan& plan, Schemas& schemas, std::vector<int64_t>& scratch_sizes, int depth) {
    io.list(plan.values, [](Io& each, Value& value) { fields(each, value); });
    io.list(plan.places, [](Io& each, Place& place) { fields(each, place); });
    io.list(plan.ops,
            [&](Io& each, PlannedOp& op) { fields(each, op, schemas, scratch_sizes, depth); });
    io.list(plan.outputs, [](Io& each, Lowered::Output& output) { fields(each, output); });
    io.list(plan.assigns, [](Io& each, Assign& assign) {
        each.number(assign.target);
        each.number(assign.source);
    });
    std::vector<int64_t> regions(plan.segment_bytes, plan.segment_bytes + kSegments);
    io.list(regions, [](Io& each, int64_t& bytes) { each.number(bytes); });
    if constexpr (Io::kReads) {
        if (regions.size() != kSegments)
            io.fail("it has ", regions.size(), " regions; need ", kSegments);
        std::copy(regions.begin(), regions.end(), plan.segment_bytes);
        for (size_t i = 0; i < plan.values.size(); i++) plan.values[i].id = static_cast<ValueId>(i);
    }
}

/// Collects the schemas of an op, its steps and members.
void note(Schemas& schemas, const LoweredOp& op) {
    const auto add = [&](const LoweredDef* def) {
        if (std::find(schemas.defs.begin(), schemas.defs.end(), def) == schemas.defs.end())
            schemas.defs.push_back(def);
    };
    add(op.def);
    for (const RegionStep& step : op.body) add(step.def);
    for (const LoweredOp& member : op.members) note(schemas, member);
    if (op.loop)
        for (const LoweredOp& inside : op.loop->ops) note(schemas, inside);
}

/// Rebuilds the lowered list from a plan, loop bodies included.
Lowered list_of(Plan& plan) {
    Lowered lowered;
    for (PlannedOp& planned : plan.ops) {
        if (planned.body) {
            Plan body = *planned.body;
            planned.op.loop = std::make_shared<const Lowered>(list_of(body));
            planned.body = std::make_shared<const Plan>(std::move(body));
        }
        lowered.ops.push_back(planned.op);
    }
    lowered.values = plan.values;
    lowered.outputs = plan.outputs;
    lowered.assigns = plan.assigns;
    return lowered;
}

}  // namespace

// ---- writing -----------------------------------------------------------------------------------

namespace {

FilePiece piece_of(std::string text) {
    const auto held = std::make_shared<const std::string>(std::move(text));
    return {held->data(), held->size(), held};
}

/// Zeros up to the next multiple of kAlign; where that is.
size_t pad(std::vector<FilePiece>& pieces, size_t bytes) {
    static const std::string zeros(kAlign, '\0');
    if (const size_t more = round_up(bytes) - bytes)
        pieces.push_back({zeros.data(), more, nullptr});
    return round_up(bytes);
}

/// The contents of each section, in their order.
typedef std::array<std::vector<FilePiece>, kSections.size()> SectionPieces;

/// Initial contents, each from a multiple of kAlign on.
void put_data(SectionPieces& sections, std::vector<Value>& values,
              const std::vector<Place>& places) {
    size_t bytes[kSections.size()] = {};
    for (Value& value : values) {
        // A value without a place is never read.
        if (places[static_cast<size_t>(value.id)].storage == kNone) value.init = {};
        if (value.init.kind != Init::data) continue;
        const size_t home = index_of(home_of(value));
        const auto& data = value.init.bytes;
        bytes[home] = pad(sections[home], bytes[home]) + data->size();
        sections[home].push_back({data->data(), data->size(), data});
    }
}

/// The sections behind a header's room; their table, and the bytes of the file.
std::vector<FilePiece> in_file(const SectionPieces& sections, std::string& table, size_t& end) {
    std::vector<FilePiece> file;
    ByteWriter entries(table);
    end = round_up(kHeaderBytes + kEntryBytes * kSections.size());
    for (size_t i = 0; i < kSections.size(); i++) {
        Entry entry{static_cast<uint32_t>(kSections[i]), 0, end};
        Checksum sum;
        for (const FilePiece& piece : sections[i]) {
            sum.add({piece.data, piece.bytes});
            entry.bytes += piece.bytes;
            file.push_back(piece);
        }
        entry.sum = sum.sum();
        fields(entries, entry);
        end = pad(file, end + entry.bytes);
    }
    return file;
}

}  // namespace

std::vector<FilePiece> write_executable(const Plan& plan, uint64_t seed, const Target& target) {
    if (plan.device >= kDevices)
        raise(ErrorKind::unsupported, "export: the step is for ", kind_name(plan.device),
              ", which files do not know; need one for cpu or cuda");
    SectionPieces sections;
    Plan copy = plan;
    put_data(sections, copy.values, copy.places);
    Head head{target.arch(), target.processors(), seed, {}};
    Schemas schemas;
    for (const PlannedOp& planned : plan.ops) note(schemas, planned.op);
    std::string record, kernels, code;
    ByteWriter writer(record);
    fields(writer, head, copy, schemas);
    target.write(plan.kernels(), kernels, code);
    sections[index_of(Section::plan)].push_back(piece_of(std::move(record)));
    sections[index_of(Section::kernels)].push_back(piece_of(std::move(kernels)));
    sections[index_of(Section::code)].push_back(piece_of(std::move(code)));

    std::string table, begin(kMagic);
    Header header;
    std::vector<FilePiece> file = in_file(sections, table, header.bytes);
    header.sum = checksum(table);
    ByteWriter first(begin);
    first.numbers(header.format, header.contract, header.bytes, header.sections, header.none,
                  header.sum);
    begin.resize(kHeaderBytes, '\0');
    begin += table;
    begin.resize(round_up(begin.size()), '\0');
    file.insert(file.begin(), piece_of(std::move(begin)));
    return file;
}

// ---- reading -----------------------------------------------------------------------------------

namespace {

/// Reports errors of graph checks as FormatError.
template <class Act>
auto as_format(const std::string& where, const Act& act) {
    try {
        return act();
    } catch (const Error& error) {
        switch (error.kind()) {
            case ErrorKind::format:
            case ErrorKind::out_of_memory:
            case ErrorKind::device_unavailable:
            case ErrorKind::device_lost:
            case ErrorKind::unsupported:
            case ErrorKind::internal:
                throw;
            default:
                raise(ErrorKind::format, where, ": ", error.what());
        }
    }
}

void need_zeros(const ByteReader& reader, std::string_view padding, size_t at) {
    if (padding.find_first_not_of('\0') != std::string_view::npos)
        reader.fail("bytes from ", at, " on mean nothing; need zeros");
}

Header read_header(ByteReader& reader, std::string_view file) {
    if (file.substr(0, kMagic.size()) != kMagic)
        reader.fail("it does not begin with ", kMagic, "; need a file that Step.export wrote");
    reader.take(kMagic.size());
    Header header;
    reader.numbers(header.format, header.contract);
    if (header.format != kFileFormat || header.contract != kContract)
        reader.fail("it has format ", header.format, " and contract ", header.contract,
                    ", this version of aicf ", kFileFormat, " and ", kContract,
                    "; export the step again with this version");
    reader.numbers(header.bytes, header.sections, header.none, header.sum);
    const size_t end = reader.at();
    need_zeros(reader, reader.take(kHeaderBytes - end), end);
    if (header.none != 0 || header.bytes != file.size() || header.sections != kSections.size())
        reader.fail("it says ", header.bytes, " bytes and ", header.sections, " sections; it has ",
                    file.size(), " and needs ", kSections.size());
    return header;
}

/// The contents of the sections, once header, table, places and checksums are right.
std::array<std::string_view, kSections.size()> read_sections(std::string_view file,
                                                             const std::string& where) {
    ByteReader reader(file, where);
    const Header header = read_header(reader, file);
    const std::string_view table = reader.take(kEntryBytes * kSections.size());
    if (checksum(table) != header.sum) reader.fail("the table of sections is damaged");
    ByteReader entries(table, where);
    std::array<std::string_view, kSections.size()> contents;
    size_t last = reader.at(), at = round_up(last);
    for (size_t i = 0; i < kSections.size(); i++) {
        const char* name = kSectionNames[i];
        Entry entry;
        fields(entries, entry);
        if (entry.kind != static_cast<uint32_t>(kSections[i]) || entry.none != 0)
            reader.fail("section ", i, " is of kind ", entry.kind, "; need ", name);
        if (at > file.size() || entry.offset != at || entry.bytes > file.size() - at)
            reader.fail("section ", name, " has ", entry.bytes, " bytes at ", entry.offset,
                        "; need them inside the file's ", file.size(), ", from ", at, " on");
        need_zeros(reader, file.substr(last, at - last), last);
        contents[i] = file.substr(at, entry.bytes);
        if (checksum(contents[i]) != entry.sum) reader.fail("section ", name, " is damaged");
        last = at + entry.bytes;
        at = round_up(last);
    }
    if (at != file.size()) reader.fail("it has ", file.size(), " bytes; need ", at);
    need_zeros(reader, file.substr(last), last);
    return contents;
}

/// The initial contents of values, from the sections that hold them.
void read_data(std::vector<Value>& values, ByteReader constants, ByteReader state) {
    for (Value& value : values) {
        if (value.init.kind != Init::data) continue;
        ByteReader& home = home_of(value) == Section::state ? state : constants;
        const int64_t size = byte_count(value.type);
        if (size < 0) home.fail("%", value.id, " has a negative size");
        home.take(round_up(home.at()) - home.at());
        const std::string_view given = home.take(static_cast<size_t>(size));
        value.init.bytes = std::make_shared<const std::vector<char>>(given.begin(), given.end());
    }
    constants.end();
    state.end();
}

}  // namespace

Executable::Executable(std::string_view file, std::string where) : where_(std::move(where)) {
    const auto contents = read_sections(file, where_);
    const auto section = [&](Section which) { return contents[index_of(which)]; };
    Head head;
    Schemas schemas;
    ByteReader record(section(Section::plan), cat(where_, ": plan"));
    fields(record, head, plan_, schemas);
    record.end();
    seed_ = head.seed;
    scratch_sizes_ = std::move(head.scratch_sizes);
    kernels_ = section(Section::kernels);
    code_ = section(Section::code);
    read_data(plan_.values, {section(Section::constants), cat(where_, ": constants")},
              {section(Section::state), cat(where_, ": state")});
    as_format(where_, [&] {
        if (const std::string problem = structure_problem(plan_); !problem.empty())
            raise(ErrorKind::format, where_, ": ", problem);
        if (const Report report = verify(list_of(plan_)); !report.ok())
            raise(ErrorKind::format, where_, ": the ops do not verify", report.failures());
    });
}

Plan Executable::finish(const Target& target, const std::vector<std::string>& shared) const {
    return as_format(where_, [&] {
        Plan plan = plan_;
        if (!shared.empty()) share_places(plan, shared);
        give_kernels(plan, target.read(kernel_ops(plan), kernels_, code_, where_));
        std::span<const int64_t> scratch_sizes = scratch_sizes_;
        if (target.kind() == Device::cpu)
            fit_kernels(plan, scratch_sizes);  // its kernels were selected again
        if (const Report report = verify(plan); !report.ok())
            raise(ErrorKind::format, where_, ": the plan does not verify", report.failures());
        return plan;
    });
}

}  // namespace aicf
