#include "kernels/cpu/program.h"

#include <algorithm>
#include <cstring>

namespace aicf::cpu {

namespace {

bool is_16_bit(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; }
DType compute_dtype(DType dtype) { return is_16_bit(dtype) ? DType::f32 : dtype; }

const InstrDef* find_instr(const Table& table, std::string_view name, DType in, DType out) {
    for (int i = 0; i < table.instr_count; i++) {
        const InstrDef& def = table.instrs[i];
        if (name == def.name && def.in == in && def.out == out) return &def;
    }
    return nullptr;
}

class Builder {
  public:
    Builder(const Table& table, const LoweredOp& op) : table_(table) {
        for (const View& view : op.inputs) views_.push_back(&view);
        inputs_ = static_cast<int>(views_.size());
        for (const View& view : op.outputs) views_.push_back(&view);
        find_space(op.outputs[0].shape);
    }

    bool build(const std::vector<ProgramStep>& steps, const std::vector<DType>& temps) {
        for (size_t i = 0; i < views_.size(); i++) {
            const int slot = add_slot(views_[i]->dtype);
            slots_[slot].operand = static_cast<int16_t>(i);
            slots_[slot].output = static_cast<int>(i) >= inputs_;
        }
        for (DType dtype : temps) add_slot(dtype);
        for (const ProgramStep& step : steps)
            if (!add_step(step)) return false;
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
            program.flat &= slot.mode == SlotMode::linear || slot.mode == SlotMode::first;
            in_place &= slot.mode == SlotMode::linear || slot.mode == SlotMode::row ||
                        slot.mode == SlotMode::first;
        }
        program.block = in_place ? std::max<int64_t>(program.total, 1) : block_;
        program.unit = rows_ ? 4096 : block_ * 8;
        if (cross_ >= 0) program.unit = kTileRows * shape_.back();
        std::copy(shape_.begin(), shape_.end(), program.shape);
        std::vector<char> bytes(sizeof program + sizeof(Slot) * slots_.size() +
                                sizeof(Instr) * instrs_.size());
        std::memcpy(bytes.data(), &program, sizeof program);
        std::memcpy(bytes.data() + sizeof program, slots_.data(), sizeof(Slot) * slots_.size());
        std::memcpy(bytes.data() + sizeof program + sizeof(Slot) * slots_.size(), instrs_.data(),
                    sizeof(Instr) * instrs_.size());
        return bytes;
    }

  private:
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
        rows_ = shape_.size() < 2 || inner >= 128;
        block_ =
            rows_ ? kBlock : std::max<int64_t>(1, kBlock / std::max<int64_t>(inner, 1)) * inner;
        if (block_ == 0) block_ = kBlock;  // an empty space
    }

    int add_slot(DType dtype) {
        Slot slot{};
        slot.operand = -1;
        slot.size = static_cast<int32_t>(dtype_size(dtype));
        slots_.push_back(slot);
        dtypes_.push_back(dtype);
        return static_cast<int>(slots_.size()) - 1;
    }

    void emit(const InstrDef& def, const std::vector<int>& outputs, const std::vector<int>& inputs,
              const std::vector<double>& scalars) {
        Instr instr{};
        instr.fn = def.fn;
        for (size_t i = 0; i < scalars.size() && i < 2; i++) instr.scalars[i].f = scalars[i];
        for (int slot : outputs) instr.slot[instr.operands++] = static_cast<uint8_t>(slot);
        for (size_t i = 0; i < inputs.size(); i++) {
            instr.slot[instr.operands++] = static_cast<uint8_t>(inputs[i]);
            if (!(def.first_only >> i & 1)) whole_.push_back(inputs[i]);
        }
        instrs_.push_back(instr);
    }

    /// Between any two dtypes: in one conversion, or else by way of f32.
    void add_cast(int to, int from) {
        const auto find = [&](DType in, DType out) { return find_instr(table_, "cast", in, out); };
        if (const InstrDef* direct = find(dtypes_[from], dtypes_[to]))
            return emit(*direct, {to}, {from}, {});
        const int middle = add_slot(DType::f32);
        emit(*find(dtypes_[from], DType::f32), {middle}, {from}, {});
        emit(*find(DType::f32, dtypes_[to]), {to}, {middle}, {});
    }

    bool add_step(const ProgramStep& step) {
        if (step.outputs.size() + step.inputs.size() > kMaxInstrOperands) return false;
        if (step.name == "cast") {
            add_cast(step.outputs[0], step.inputs[0]);
            return true;
        }
        const InstrDef* def =
            find_instr(table_, step.name, compute_dtype(dtypes_[step.inputs.back()]),
                       compute_dtype(dtypes_[step.outputs[0]]));
        if (!def || def->inputs != step.inputs.size() || def->outputs != step.outputs.size())
            return false;
        std::vector<int> inputs = step.inputs, outputs = step.outputs;
        for (int& slot : inputs)
            if (is_16_bit(dtypes_[slot])) {
                const int wide = add_slot(DType::f32);
                add_cast(wide, slot);
                slot = wide;
            }
        for (int& slot : outputs)
            if (is_16_bit(dtypes_[slot])) slot = add_slot(DType::f32);
        emit(*def, outputs, inputs, step.scalars);
        for (size_t i = 0; i < outputs.size(); i++)
            if (outputs[i] != step.outputs[i]) add_cast(step.outputs[i], outputs[i]);
        return true;
    }

    /// An input that is contiguous along another axis than the innermost is read tile by tile.
    void choose_cross() {
        const int inner = static_cast<int>(shape_.size()) - 1;
        for (int i = 0; rows_ && cross_ < 0 && i < inputs_; i++)
            for (int d = 0; d < inner; d++)
                if (strides_[i][d] == 1 && shape_[d] >= kTileRows && strides_[i][inner] > 1)
                    cross_ = d;
        if (cross_ >= 0) block_ = kTileBlock;
    }

    void choose_modes() {
        choose_cross();
        const int inner = static_cast<int>(shape_.size()) - 1;
        for (size_t s = 0; s < slots_.size(); s++) {
            Slot& slot = slots_[s];
            slot.mode = SlotMode::buffer;
            if (slot.operand >= 0) {
                const std::vector<int64_t>& strides = strides_[slot.operand];
                std::copy(strides.begin(), strides.end(), slot.strides);
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
    std::vector<const View*> views_;
    int inputs_ = 0;
    std::vector<int64_t> shape_;
    std::vector<std::vector<int64_t>> strides_;
    bool rows_ = true;
    int cross_ = -1;
    int64_t block_ = kBlock, buffer_bytes_ = 0;
    std::vector<Slot> slots_;
    std::vector<DType> dtypes_;
    std::vector<Instr> instrs_;
    std::vector<size_t> whole_;  // slots of which more than element 0 is read
};

}  // namespace

std::vector<char> build_program(const Table& table, const LoweredOp& op,
                                const std::vector<ProgramStep>& steps,
                                const std::vector<DType>& temps) {
    Builder builder(table, op);
    if (!builder.build(steps, temps)) return {};
    return builder.bytes();
}

std::vector<char> build_program(const Table& table, const LoweredOp& op) {
    bool known = false;
    for (int i = 0; i < table.instr_count && !known; i++)
        known = op.def->name == table.instrs[i].name;
    if (!known || op.inputs.empty() || op.outputs.empty()) return {};
    ProgramStep step{op.def->name, {}, {}, {}};
    const int inputs = static_cast<int>(op.inputs.size());
    for (int i = 0; i < inputs; i++) step.inputs.push_back(i);
    for (int i = 0; i < static_cast<int>(op.outputs.size()); i++)
        step.outputs.push_back(inputs + i);
    for (const AttrDef& def : op.def->attrs)
        if (const Attr* attr = op.attrs.find(def.name))
            if (const auto* number = std::get_if<double>(attr)) step.scalars.push_back(*number);
    return build_program(table, op, {step}, {});
}

void bind_program(ArgBlock& args) {
    Program& program = *reinterpret_cast<Program*>(reinterpret_cast<char*>(&args) + args.tail);
    for (int s = 0; s < program.slots; s++) {
        Slot& slot = program.slot()[s];
        if (slot.operand >= 0) slot.ptr = static_cast<char*>(args.operand(slot.operand).ptr);
    }
}

}  // namespace aicf::cpu
