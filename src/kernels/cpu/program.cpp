#include "kernels/cpu/program.h"

#include <algorithm>
#include <cstring>

namespace aicf::cpu {

namespace {

const InstrDef* find_instr(const Table& table, std::string_view name, DType in, DType out) {
    for (int i = 0; i < table.instr_count; i++) {
        const InstrDef& def = table.instrs[i];
        if (name == def.name && def.in == in && def.out == out) return &def;
    }
    return nullptr;
}

std::vector<double> step_scalars(const LoweredDef& def, const Attrs& attrs) {
    std::vector<double> scalars;
    for (const AttrDef& attr : def.attrs)
        if (const Attr* given = attrs.find(attr.name))
            if (const auto* number = std::get_if<double>(given)) scalars.push_back(*number);
    return scalars;
}

std::vector<DType> inner_dtypes(const LoweredOp& op) {
    std::vector<DType> dtypes;
    for (const View& view : op.inner) dtypes.push_back(view.dtype);
    return dtypes;
}

class Builder {
  public:
    Builder(const Table& table, const LoweredOp& op) : table_(table), op_(op) {
        if (anchor(op).gemm) {
            product_ = op.body[0].outputs[0];
            row_ = op.outputs[0].shape[op.outputs[0].shape.rank() - 1];
        }
        for (const View& view : op.inputs)
            // A and B do not step through the space; no instruction reads them.
            views_.push_back(product_ >= 0 && views_.size() < 2 ? &none_ : &view);
        inputs_ = static_cast<int>(views_.size());
        for (const View& view : op.outputs) views_.push_back(&view);
        find_space(op.outputs[0].shape);
    }

    Builder(const Table& table, const LoweredOp& op, const ProgramSpace& space)
        : table_(table),
          op_(op),
          inputs_(static_cast<int>(op.inputs.size())),
          given_(space.given),
          tiles_(false),
          rows_(space.any_start) {
        for (const View* view : space.views) views_.push_back(view ? view : &none_);
        find_space(space.shape);
    }

    bool build(std::vector<ProgramStep> steps, const std::vector<DType>& temps) {
        join_pairs(steps, temps);
        for (int i = 0; i < static_cast<int>(views_.size()); i++) {
            if (!tiles_ && views_[i] == &none_) {
                held_.push_back({none_.dtype});
                continue;
            }
            const int slot = add_slot(views_[i]->dtype);
            slots_[slot].operand = static_cast<int16_t>(i);
            slots_[slot].output =
                i >= inputs_ && (writes(steps, i) || product_ >= 0 || names(given_, i));
            held_.push_back({views_[i]->dtype, slot});
        }
        for (DType dtype : temps) held_.push_back({dtype});
        // A product that no output holds lies where the first output will.
        if (product_ >= 0 && held_[product_].slot < 0) held_[product_].slot = inputs_;
        for (size_t i = 0; i < steps.size(); i++)
            for (const auto* numbers : {&steps[i].inputs, &steps[i].outputs})
                for (int number : *numbers) held_[number].last = static_cast<int>(i);
        for (size_t k = 0; k < given_.size(); k++) {
            const int number = given_[k];
            if (!reads(steps, number) && !writes(steps, number) && held_[number].slot < 0) continue;
            const int slot = add_slot(held_[number].dtype);
            slots_[slot].mode = SlotMode::given;
            slots_[slot].buffer = static_cast<int64_t>(k);
            if (writes(steps, number)) held_[number].last = static_cast<int>(steps.size());
            if (held_[number].slot >= 0)  // an output, too
                add_cast(held_[number].slot, slot, held_[number].dtype);
            else
                held_[number].slot = slot;
        }
        for (size_t i = 0; i < steps.size(); i++)
            if (!add_step(steps[i], static_cast<int>(i))) return false;
        return slots_.size() <= kMaxSlots;
    }

    std::vector<char> bytes() {
        choose_modes();
        Program program{};
        program.total = 1;
        for (int64_t size : shape_) program.total *= size;
        program.rank = static_cast<int32_t>(shape_.size());
        program.slots = static_cast<int32_t>(slots_.size());
        program.instrs = static_cast<int32_t>(instrs_.size());
        program.rows = rows_;
        program.cross = cross_;
        program.flat = instrs_.size() == 1;
        program.buffer_bytes = buffer_bytes_;
        bool in_place = program.flat;
        for (const Slot& slot : slots_) {
            program.streams |= slot.streams;
            program.flat &= slot.mode == SlotMode::linear || slot.mode == SlotMode::first ||
                            slot.mode == SlotMode::stream;
            in_place &= slot.mode == SlotMode::linear || slot.mode == SlotMode::row ||
                        slot.mode == SlotMode::first || slot.mode == SlotMode::given;
        }
        program.block = in_place ? std::max<int64_t>(program.total, 1) : block_;
        program.unit = kProgramUnit * (rows_ ? kBlock : block_);
        if (cross_ >= 0) program.unit = kTileRows * shape_.back();
        std::copy(shape_.begin(), shape_.end(), program.shape);
        std::vector<int64_t> strides;
        for (const std::vector<int64_t>& one : strides_)
            strides.insert(strides.end(), one.begin(), one.end());
        const size_t slots = sizeof(Slot) * slots_.size(), instrs = sizeof(Instr) * instrs_.size();
        std::vector<char> bytes(sizeof program + slots + instrs + sizeof(int64_t) * strides.size());
        char* at = bytes.data();
        const auto append = [&](const void* from, size_t size) {
            if (size) std::memcpy(at, from, size);
            at += size;
        };
        append(&program, sizeof program);
        append(slots_.data(), slots);
        append(instrs_.data(), instrs);
        append(strides.data(), sizeof(int64_t) * strides.size());
        return bytes;
    }

  private:
    /// Where the value of an operand number lies while the program runs.
    struct Held {
        DType dtype;
        int slot = -1;  // of a temporary: from the step that writes it to the last that reads it
        int wide = -1;  // a 16-bit value in f32
        int last = -1;  // step
    };

    /// The iteration space: the axes of `shape`, merged where every operand steps as one.
    void find_space(const Dims& shape) {
        std::vector<Dims> strides;
        for (const View* view : views_) {
            Dims aligned(shape.rank(), 0);
            const int extra = shape.rank() - view->shape.rank();
            if (view->shape.rank() > 0) {
                if (extra < 0)
                    raise(ErrorKind::internal, "cpu: an operand outranks the iteration space");
                for (int d = 0; d < view->shape.rank(); d++) {
                    check(view->shape[d] == shape[d + extra] || view->shape[d] == 1,
                          "cpu: an operand does not broadcast to the iteration space");
                    if (view->shape[d] == shape[d + extra]) aligned[d + extra] = view->strides[d];
                }
            }
            strides.push_back(aligned);
        }
        strides_.resize(views_.size());
        for (int d = 0; d < shape.rank(); d++) {
            if (shape[d] == 1) continue;
            bool merge = !shape_.empty();
            for (size_t i = 0; merge && i < views_.size(); i++)
                merge = strides_[i].back() == strides[i][d] * shape[d];
            if (merge)
                shape_.back() *= shape[d];
            else
                shape_.push_back(shape[d]);
            for (size_t i = 0; i < views_.size(); i++) {
                if (merge) strides_[i].pop_back();
                strides_[i].push_back(strides[i][d]);
            }
        }
        // Short rows are taken several to a block; a block then holds whole rows.
        const int64_t inner = shape_.empty() ? 1 : shape_.back();
        rows_ |= shape_.size() < 2 || inner >= kWholeRow;
        // Parts of a product begin at one of its rows, or anywhere in rows wider than a cell.
        if (product_ >= 0) rows_ |= inner == 0 || row_ % inner != 0 || row_ > kCellCols;
        block_ =
            rows_ ? kBlock : std::max<int64_t>(1, kBlock / std::max<int64_t>(inner, 1)) * inner;
        if (block_ == 0) block_ = kBlock;  // an empty space
    }

    /// A step and the only one that reads its result become one, where there is an instruction for
    /// both. Every value is rounded as before.
    void join_pairs(std::vector<ProgramStep>& steps, const std::vector<DType>& temps) {
        const auto outer = static_cast<int>(views_.size());
        const auto dtype = [&](int number) {
            return number < outer ? views_[number]->dtype : temps[number - outer];
        };
        std::vector<int> readers(views_.size() + temps.size());
        for (const ProgramStep& step : steps)
            for (int number : step.inputs) readers[number]++;
        for (size_t to = 1; to < steps.size(); to++) {
            const InstrDef* best = nullptr;
            size_t from = 0, other = 0;
            for (size_t i = 0; i < 2 && steps[to].inputs.size() == 2; i++) {
                const int number = steps[to].inputs[i];
                if (number < outer || readers[number] != 1 || names(given_, number)) continue;
                // What is read later must still be there, and an output may lie on an input.
                size_t at = to;
                while (at > 0 && !names(steps[at - 1].outputs, number) &&
                       steps[at - 1].outputs[0] >= outer)
                    at--;
                if (at == 0 || !names(steps[at - 1].outputs, number)) continue;
                const ProgramStep &first = steps[at - 1], &second = steps[to];
                const DType type = dtype(number);
                bool same = dtype(second.outputs[0]) == type;
                for (const auto* numbers : {&first.inputs, &second.inputs})
                    for (int read : *numbers) same &= dtype(read) == type;
                const InstrDef* def =
                    same ? find_instr(table_, pair_name(first.name, second.name, i), type, type)
                         : nullptr;
                if (!def || (best && best->inputs <= def->inputs)) continue;  // a function first
                best = def;
                from = at - 1;
                other = 1 - i;
            }
            if (!best) continue;
            std::vector<int> inputs = steps[from].inputs;
            inputs.push_back(steps[to].inputs[other]);
            steps[to] = {best->name, steps[to].outputs, inputs, {}};
            steps.erase(steps.begin() + static_cast<std::ptrdiff_t>(from));
            to--;
        }
    }
    /// `side`: of the second, where the result of the first is read.
    static std::string pair_name(std::string_view first, std::string_view second, size_t side) {
        const auto plain = [](std::string_view name) { return name == "bias_add" ? "add" : name; };
        return cat(plain(first), " ", second == "sub" && side == 1 ? "from" : plain(second));
    }

    int add_slot(DType dtype) {
        Slot slot{};
        slot.operand = -1;
        slot.size = static_cast<int16_t>(dtype_size(dtype));
        slots_.push_back(slot);
        dtypes_.push_back(dtype);
        return static_cast<int>(slots_.size()) - 1;
    }

    int take_slot(DType dtype) {
        for (size_t i = 0; i < free_.size(); i++) {
            const int slot = free_[i];
            if (slots_[slot].size != dtype_size(dtype)) continue;
            free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(i));
            dtypes_[slot] = dtype;
            return slot;
        }
        return add_slot(dtype);
    }

    void give_slot(int& slot) {
        if (slot >= 0 && slots_[slot].operand < 0) free_.push_back(slot);
        slot = -1;
    }

    void emit(const InstrDef& def, const std::vector<int>& outputs, const std::vector<int>& inputs,
              const std::vector<double>& scalars) {
        Instr instr{};
        instr.fn = def.fn;
        quick_ = def.quick || !instrs_.empty();
        for (size_t i = 0; i < scalars.size() && i < 2; i++) instr.scalars[i].f = scalars[i];
        for (int slot : outputs) instr.slot[instr.operands++] = static_cast<uint8_t>(slot);
        for (size_t i = 0; i < inputs.size(); i++) {
            instr.slot[instr.operands++] = static_cast<uint8_t>(inputs[i]);
            if (!(def.first_only >> i & 1)) whole_.push_back(inputs[i]);
        }
        instrs_.push_back(instr);
    }

    /// Between any two dtypes: in one conversion, or else by way of f32, which rounds once as well.
    /// `in`: of what is read; `to` may be the same slot, whose dtype is the result's by now.
    void add_cast(int to, int from, DType in) {
        const auto find = [&](DType a, DType b) { return find_instr(table_, "cast", a, b); };
        if (const InstrDef* direct = find(in, dtypes_[to])) return emit(*direct, {to}, {from}, {});
        int middle = take_slot(DType::f32);
        const InstrDef* narrowing = find_instr(table_, "narrowing", in, DType::f32);
        emit(narrowing && is_16_bit(dtypes_[to]) ? *narrowing : *find(in, DType::f32), {middle},
             {from}, {});
        emit(*find(DType::f32, dtypes_[to]), {to}, {middle}, {});
        give_slot(middle);
    }

    bool add_step(const ProgramStep& step, int at) {
        if (step.outputs.size() + step.inputs.size() > kMaxInstrOperands) return false;
        const bool cast = step.name == "cast";
        const InstrDef* def = nullptr;
        if (!cast) {
            const DType in = held_[step.inputs.back()].dtype, out = held_[step.outputs[0]].dtype;
            if (is_16_bit(out)) def = find_instr(table_, step.name + "_16", DType::f32, DType::f32);
            if (!def) def = find_instr(table_, step.name, compute_dtype(in), compute_dtype(out));
            if (!def || def->inputs != step.inputs.size() || def->outputs != step.outputs.size())
                return false;
        }
        std::vector<int> inputs, outputs;
        for (int number : step.inputs) {
            Held& value = held_[number];
            if (!cast && is_16_bit(value.dtype) && value.wide < 0) {
                value.wide = take_slot(DType::f32);
                add_cast(value.wide, value.slot, value.dtype);
            }
            inputs.push_back(!cast && is_16_bit(value.dtype) ? value.wide : value.slot);
        }
        // An element is read before it is written, so results may lie where operands end.
        release(step.inputs, at);
        for (int number : step.outputs) {
            Held& value = held_[number];
            if (value.slot < 0) value.slot = take_slot(value.dtype);
            outputs.push_back(!cast && is_16_bit(value.dtype) ? take_slot(DType::f32) : value.slot);
        }
        if (cast)
            add_cast(outputs[0], inputs[0], held_[step.inputs[0]].dtype);
        else
            emit(*def, outputs, inputs, step.scalars);
        for (size_t i = 0; i < outputs.size(); i++)
            if (const int slot = held_[step.outputs[i]].slot; slot != outputs[i]) {
                add_cast(slot, outputs[i], DType::f32);
                give_slot(outputs[i]);
            }
        release(step.outputs, at);
        return true;
    }

    void release(const std::vector<int>& numbers, int at) {
        for (int number : numbers)
            if (held_[number].last <= at) {
                give_slot(held_[number].slot);
                give_slot(held_[number].wide);
            }
    }

    /// An input that is contiguous along another axis than the innermost is read tile by tile.
    void choose_cross() {
        const int inner = static_cast<int>(shape_.size()) - 1;
        for (int i = 0; tiles_ && rows_ && cross_ < 0 && product_ < 0 && i < inputs_; i++)
            for (int d = 0; d < inner; d++)
                if (strides_[i][d] == 1 && shape_[d] >= kTileRows && strides_[i][inner] > 1)
                    cross_ = d;
        if (cross_ >= 0) block_ = kTileBlock;
    }

    /// Results larger than the caches are written past them, unless a fused op reads them soon.
    void choose_stream() {
        if (!kStreams || !quick_ || !tiles_ || product_ >= 0) return;
        if (table_.quick_memory)
            if (const Cost cost = cost_of(op_); cost.flops >= cost.bytes) return;
        total_ = 1;
        for (int64_t size : shape_) total_ *= size;
        if (!rows_ || cross_ >= 0 || shape_.empty() ||
            std::none_of(slots_.begin(), slots_.end(), [&](const Slot& s) { return large(s); }))
            return;
        const int64_t most = instrs_.size() == 1 ? kStreamOne : kStreamBlock;
        const int64_t row = shape_.back(), parts = (row + most - 1) / most;
        block_ = ((row + parts - 1) / parts + 63) / 64 * 64;  // no row ends in a short one
    }
    bool large(const Slot& slot) const {
        return slot.output && total_ * slot.size >= kStreamedBytes;
    }

    void choose_modes() {
        choose_cross();
        choose_stream();
        const int inner = static_cast<int>(shape_.size()) - 1;
        for (size_t s = 0; s < slots_.size(); s++) {
            Slot& slot = slots_[s];
            if (slot.mode == SlotMode::given) continue;
            slot.mode = SlotMode::buffer;
            if (slot.operand >= 0) {
                const std::vector<int64_t>& strides = strides_[slot.operand];
                bool linear = true, outer_fixed = true;
                int64_t expected = 1;
                for (int d = inner; d >= 0; d--) {
                    linear &= strides[d] == expected;
                    expected *= shape_[d];
                    if (d < inner || rows_) outer_fixed &= strides[d] == 0;
                }
                const bool read_whole =
                    slot.output || std::find(whole_.begin(), whole_.end(), s) != whole_.end();
                slot.mode = !read_whole                                  ? SlotMode::first
                            : linear                                     ? SlotMode::linear
                            : rows_ && inner >= 0 && strides[inner] == 1 ? SlotMode::row
                            : outer_fixed && !slot.output                ? SlotMode::once
                                                                         : SlotMode::gather;
                if (slot.mode == SlotMode::gather && !slot.output && cross_ >= 0 &&
                    strides[cross_] == 1)
                    slot.mode = SlotMode::tile;
                slot.streams = large(slot) && slot.mode == SlotMode::linear;
                if (slot.streams) slot.mode = SlotMode::stream;
            }
            if (slot.mode != SlotMode::linear && slot.mode != SlotMode::row &&
                slot.mode != SlotMode::first) {
                slot.buffer = buffer_bytes_;
                buffer_bytes_ += block_ * slot.size * (slot.mode == SlotMode::tile ? kTileRows : 1);
                buffer_bytes_ = (buffer_bytes_ + 63) / 64 * 64;
            }
        }
    }

    const Table& table_;
    const LoweredOp& op_;
    std::vector<const View*> views_;
    View none_;
    int inputs_ = 0, product_ = -1;
    std::vector<int> given_;
    bool tiles_ = true;
    int64_t row_ = 0;  // elements of a row of the product
    std::vector<int64_t> shape_;
    std::vector<std::vector<int64_t>> strides_;
    bool rows_ = false;
    bool quick_ = true;  // or of several instructions
    int64_t total_ = 0;  // elements, where results may be streamed
    int cross_ = -1;
    int64_t block_ = kBlock, buffer_bytes_ = 0;
    std::vector<Held> held_;
    std::vector<Slot> slots_;
    std::vector<DType> dtypes_;  // by slot
    std::vector<int> free_;      // slots of temporaries that nobody reads any more
    std::vector<Instr> instrs_;
    std::vector<size_t> whole_;  // slots of which more than element 0 is read
};

}  // namespace

bool reads(const std::vector<ProgramStep>& steps, int number) {
    return std::any_of(steps.begin(), steps.end(),
                       [&](const ProgramStep& step) { return names(step.inputs, number); });
}
bool writes(const std::vector<ProgramStep>& steps, int number) {
    return std::any_of(steps.begin(), steps.end(),
                       [&](const ProgramStep& step) { return names(step.outputs, number); });
}

std::vector<ProgramStep> program_steps(const LoweredOp& op, size_t first, size_t last) {
    std::vector<ProgramStep> steps;
    for (size_t i = first; i < last; i++)
        steps.push_back({op.body[i].def->name, op.body[i].outputs, op.body[i].inputs,
                         step_scalars(*op.body[i].def, op.body[i].attrs)});
    return steps;
}

bool is_instruction(const Table& table, std::string_view name) {
    return std::any_of(table.instrs, table.instrs + table.instr_count,
                       [&](const InstrDef& instr) { return name == instr.name; });
}

std::optional<Reducer> reducer_of(const LoweredDef& def) {
#define AICF_NAME(name, ...) #name,
    constexpr const char* kReducers[] = {AICF_REDUCTIONS(AICF_NAME)};
#undef AICF_NAME
    const auto at = std::find(std::begin(kReducers), std::end(kReducers), def.name);
    if (at == std::end(kReducers)) return std::nullopt;
    return static_cast<Reducer>(at - std::begin(kReducers));
}

std::vector<char> build_program(const Table& table, const LoweredOp& op,
                                const std::vector<ProgramStep>& steps,
                                const std::vector<DType>& temps) {
    Builder builder(table, op);
    if (!builder.build(steps, temps)) return {};
    return builder.bytes();
}

std::vector<char> build_program(const Table& table, const LoweredOp& op,
                                const std::vector<ProgramStep>& steps, const ProgramSpace& space) {
    Builder builder(table, op, space);
    if (!builder.build(steps, inner_dtypes(op))) return {};
    return builder.bytes();
}

std::vector<char> build_program(const Table& table, const LoweredOp& op) {
    if (op.inputs.empty() || op.outputs.empty()) return {};
    std::vector<ProgramStep> steps;
    const std::vector<DType> temps = inner_dtypes(op);
    for (const RegionStep& step : op.body)
        if (!step.def->gemm)
            steps.push_back(
                {step.def->name, step.outputs, step.inputs, step_scalars(*step.def, step.attrs)});
    if (op.body.empty()) {
        if (!is_instruction(table, op.def->name)) return {};
        steps.push_back({op.def->name, {}, {}, step_scalars(*op.def, op.attrs)});
        const int inputs = static_cast<int>(op.inputs.size());
        for (int i = 0; i < inputs; i++) steps[0].inputs.push_back(i);
        for (int i = 0; i < static_cast<int>(op.outputs.size()); i++)
            steps[0].outputs.push_back(inputs + i);
    }
    return build_program(table, op, steps, temps);
}

std::vector<char> build_batch(const Table& table, const LoweredOp& op) {
    Batch batch{static_cast<int32_t>(op.body.size()), 0};
    std::vector<BatchInstr> instrs[2];  // on numbers, on tensors
    for (const RegionStep& step : op.body) {
        const View& out = op.operand(step.outputs[0]);
        const InstrDef* def =
            find_instr(table, step.def->name, op.operand(step.inputs.back()).dtype, out.dtype);
        if (!def) return {};
        BatchInstr instr{};
        instr.fn = def->fn;
        instr.n = element_count(out.shape);
        instr.size = static_cast<uint8_t>(dtype_size(out.dtype));
        const int tensors = static_cast<int>(step.outputs.size()) + step.def->numbers;
        for (const auto* numbers : {&step.outputs, &step.inputs})
            for (int number : *numbers) {
                if (step.def->numbers > 0 && instr.operands < tensors)
                    instr.moving |= static_cast<uint16_t>(1u << instr.operands);
                instr.operand[instr.operands++] = static_cast<uint8_t>(number);
            }
        instrs[step.def->numbers > 0].push_back(instr);
    }
    batch.numbers = static_cast<int32_t>(instrs[0].size());
    std::vector<char> bytes(sizeof batch + sizeof(BatchInstr) * op.body.size());
    std::memcpy(bytes.data(), &batch, sizeof batch);
    char* at = bytes.data() + sizeof batch;
    for (const auto& list : instrs) {
        if (!list.empty()) std::memcpy(at, list.data(), sizeof(BatchInstr) * list.size());
        at += sizeof(BatchInstr) * list.size();
    }
    return bytes;
}

void bind_program(ArgBlock& args, uint32_t at) {
    Program& program = *reinterpret_cast<Program*>(reinterpret_cast<char*>(&args) + args.tail + at);
    Slot* const slots = program.slot();
    program.linear = program.row = program.gathered = program.fetched = program.leaving = 0;
    for (Slot* slot = slots; slot < slots + program.slots; slot++)
        if (slot->operand >= 0) slot->ptr = static_cast<char*>(args.operand(slot->operand).ptr);
    for (int s = 0; s < program.slots; s++) {
        Slot& slot = slots[s];
        const bool read = std::any_of(slots, slots + program.slots, [&](const Slot& other) {
            return other.operand >= 0 && !other.output && other.ptr == slot.ptr;
        });
        // What is read lies in the caches.
        if (slot.streams) slot.mode = read ? SlotMode::linear : SlotMode::stream;
        const uint64_t bit = uint64_t{1} << s;
        if (slot.mode == SlotMode::linear) program.linear |= bit;
        if (slot.mode == SlotMode::row) program.row |= bit;
        if (slot.mode == SlotMode::gather && !slot.output) program.gathered |= bit;
        if (slot.mode == SlotMode::linear && slot.output && !read && program.total >= kStreamed)
            program.fetched |= bit;
        if (slot.mode == SlotMode::stream || (slot.mode == SlotMode::gather && slot.output))
            program.leaving |= bit;
    }
}

}  // namespace aicf::cpu
