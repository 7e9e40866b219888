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
        if (planned.body) kind = LaunchKind::loop;
    io.choice(kind, kLaunchKinds, "a launch");
    if constexpr (Io::kReads) {
        if (kind != LaunchKind::kernel && kind != LaunchKind::loop)
            io.fail("a launch is of kind ", static_cast<int>(kind),
                    "; this version runs kernels and loops");
        if (depth == kMostLoops)
            io.fail("more than ", kMostLoops, " loops stand inside each other");
    }
    fields(io, planned.op, schemas);
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

std::vector<FilePiece> write_executable(const Plan& plan, uint64_t seed, const Target& target) {
    if (plan.device >= kDevices)
        raise(ErrorKind::unsupported, "export: the step is for ", kind_name(plan.device),
              ", which files do not know; need one for cpu or cuda");
    struct Content {
        std::vector<FilePiece> pieces;
        size_t bytes = 0;
        uint64_t sum = 0;
    };
    Content contents[kSections.size()];
    const auto content = [&](Section section) -> Content& {
        return contents[static_cast<size_t>(section) - 1];
    };
    static const std::string zeros(kAlign, '\0');
    const auto put = [](std::vector<FilePiece>& pieces, std::string text) {
        auto held = std::make_shared<const std::string>(std::move(text));
        pieces.push_back({held->data(), held->size(), held});
    };
    const auto pad = [](std::vector<FilePiece>& pieces, size_t bytes) {
        if (const size_t more = round_up(bytes) - bytes)
            pieces.push_back({zeros.data(), more, nullptr});
        return round_up(bytes);
    };

    Plan copy = plan;
    Head head{target.arch(), target.processors(), seed, {}};
    Schemas schemas;
    for (const PlannedOp& planned : plan.ops) note(schemas, planned.op);
    for (Value& value : copy.values) {
        // A value without a place is never read.
        if (copy.places[static_cast<size_t>(value.id)].storage == kNone) value.init = {};
        if (value.init.kind != Init::data) continue;
        Content& home = content(home_of(value));
        home.bytes = pad(home.pieces, home.bytes);
        const auto& bytes = value.init.bytes;
        home.pieces.push_back({bytes->data(), bytes->size(), bytes});
        home.bytes += bytes->size();
    }
    std::string record, kernels, code;
    ByteWriter writer(record);
    fields(writer, head, copy, schemas);
    target.write(plan.kernels(), kernels, code);
    put(content(Section::plan).pieces, std::move(record));
    put(content(Section::kernels).pieces, std::move(kernels));
    put(content(Section::code).pieces, std::move(code));

    std::string table;
    ByteWriter entries(table);
    size_t at = round_up(kHeaderBytes + kEntryBytes * kSections.size());
    std::vector<FilePiece> file(1);
    size_t end = at;
    for (Section section : kSections) {
        Content& one = content(section);
        Checksum sum;
        one.bytes = 0;
        for (const FilePiece& piece : one.pieces) {
            sum.add({piece.data, piece.bytes});
            one.bytes += piece.bytes;
        }
        one.sum = sum.sum();
        at = end;
        uint32_t kind = static_cast<uint32_t>(section), none = 0;
        uint64_t offset = at, bytes = one.bytes;
        entries.number(kind);
        entries.number(none);
        entries.number(offset);
        entries.number(bytes);
        entries.number(one.sum);
        file.insert(file.end(), one.pieces.begin(), one.pieces.end());
        end = pad(file, at + one.bytes);
    }
    std::string header(kMagic);
    ByteWriter first(header);
    uint32_t format = kFileFormat, contract = kContract, sections = kSections.size(), none = 0;
    uint64_t bytes = end, sum = checksum(table);
    first.number(format);
    first.number(contract);
    first.number(bytes);
    first.number(sections);
    first.number(none);
    first.number(sum);
    header.resize(kHeaderBytes, '\0');
    header += table;
    header.resize(round_up(header.size()), '\0');
    std::vector<FilePiece> begin;
    put(begin, std::move(header));
    file[0] = begin[0];
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

}  // namespace

Executable::Executable(std::string_view file, std::string where) : where_(std::move(where)) {
    ByteReader header(file, where_);
    if (file.substr(0, kMagic.size()) != kMagic)
        header.fail("it does not begin with ", kMagic, "; need a file that Step.export wrote");
    header.take(kMagic.size());
    uint32_t format = 0, contract = 0, sections = 0, none = 0;
    uint64_t bytes = 0, sum = 0;
    header.number(format);
    header.number(contract);
    if (format != kFileFormat || contract != kContract)
        header.fail("it has format ", format, " and contract ", contract, ", this version of aicf ",
                    kFileFormat, " and ", kContract, "; export the step again with this version");
    header.number(bytes);
    header.number(sections);
    header.number(none);
    header.number(sum);
    const auto clear = [&](std::string_view padding, size_t at) {
        if (padding.find_first_not_of('\0') != std::string_view::npos)
            header.fail("bytes from ", at, " on mean nothing; need zeros");
    };
    clear(header.take(kHeaderBytes - header.at()), header.at());
    if (none != 0 || bytes != file.size() || sections != kSections.size())
        header.fail("it says ", bytes, " bytes and ", sections, " sections; it has ", file.size(),
                    " and needs ", kSections.size());
    const std::string_view table = header.take(kEntryBytes * kSections.size());
    if (checksum(table) != sum) header.fail("the table of sections is damaged");
    ByteReader entries(table, where_);
    std::string_view contents[kSections.size()];
    size_t at = round_up(kHeaderBytes + table.size()), last = kHeaderBytes + table.size();
    for (size_t i = 0; i < kSections.size(); i++) {
        const char* name = kSectionNames[i];
        uint32_t kind = 0;
        uint64_t offset = 0, size = 0, own = 0;
        entries.number(kind);
        entries.number(none);
        entries.number(offset);
        entries.number(size);
        entries.number(own);
        if (kind != static_cast<uint32_t>(kSections[i]) || none != 0)
            header.fail("section ", i, " is of kind ", kind, "; need ", name);
        if (at > file.size() || offset != at || size > file.size() - at)
            header.fail("section ", name, " has ", size, " bytes at ", offset,
                        "; need them inside the file's ", file.size(), ", from ", at, " on");
        clear(file.substr(last, at - last), last);
        contents[i] = file.substr(at, size);
        if (checksum(contents[i]) != own) header.fail("section ", name, " is damaged");
        last = at + size;
        at = round_up(last);
    }
    if (at != file.size()) header.fail("it has ", file.size(), " bytes; need ", at);
    clear(file.substr(last), last);

    Head head;
    Schemas schemas;
    ByteReader record(contents[0], cat(where_, ": plan"));
    fields(record, head, plan_, schemas);
    record.end();
    seed_ = head.seed;
    scratch_sizes_ = std::move(head.scratch_sizes);
    kernels_ = contents[1];
    code_ = contents[2];
    ByteReader data[] = {{contents[3], cat(where_, ": constants")},
                         {contents[4], cat(where_, ": state")}};
    for (Value& value : plan_.values) {
        if (value.init.kind != Init::data) continue;
        ByteReader& home = data[home_of(value) == Section::state];
        const int64_t size = byte_count(value.type);
        if (size < 0) home.fail("%", value.id, " has a negative size");
        home.take(round_up(home.at()) - home.at());
        const std::string_view given = home.take(static_cast<size_t>(size));
        value.init.bytes = std::make_shared<const std::vector<char>>(given.begin(), given.end());
    }
    for (const ByteReader& home : data) home.end();
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
