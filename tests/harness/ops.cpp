#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "harness.h"

namespace aicf::harness {

namespace {

/// "op|name=value;...|f32[2,3];...|f32[2];..." as tests/sanitize.py writes it.
struct Line {
    const LoweredDef* def = nullptr;
    Attrs attrs;
    std::vector<Type> inputs, outputs;
};

std::vector<std::string> split(const std::string& text, char by) {
    std::vector<std::string> parts;
    std::istringstream stream(text);
    for (std::string part; std::getline(stream, part, by);) parts.push_back(part);
    return parts;
}

std::vector<int64_t> integers(const std::string& text) {
    std::vector<int64_t> list;
    for (const std::string& part : split(text, ',')) list.push_back(std::stoll(part));
    return list;
}

Attr parse_attr(const Attr& kind, const std::string& text) {
    if (std::holds_alternative<bool>(kind)) return text == "1";
    if (std::holds_alternative<int64_t>(kind)) return int64_t{std::stoll(text)};
    if (std::holds_alternative<double>(kind)) return std::stod(text);
    if (std::holds_alternative<std::string>(kind)) return text;
    return integers(text);
}

std::vector<Type> parse_types(const std::string& text) {
    std::vector<Type> types;
    for (const std::string& part : split(text, ';')) {
        const size_t open = part.find('[');
        types.push_back({parse_dtype(part.substr(0, open), "ops"),
                         Dims(integers(part.substr(open + 1, part.size() - open - 2)))});
    }
    return types;
}

Line parse_line(const std::string& text) {
    const std::vector<std::string> fields = split(text, '|');
    expect(fields.size() == 4, "ops: a line of ", fields.size(), " fields: ", text);
    Line line;
    line.def = find_lowered(fields[0]);
    expect(line.def != nullptr, "ops: there is no op ", fields[0]);
    for (const std::string& part : split(fields[1], ';')) {
        const size_t equals = part.find('=');
        const std::string name = part.substr(0, equals);
        for (const AttrDef& def : line.def->attrs)
            if (def.name == name)
                line.attrs.set(name, parse_attr(def.fallback, part.substr(equals + 1)));
    }
    line.inputs = parse_types(fields[2]);
    line.outputs = parse_types(fields[3]);
    return line;
}

/// Any order of the axes, gaps, either direction, stride 0 for inputs; mostly without a byte before
/// the first element or behind the last.
Block draw_block(const Type& type, bool input, Random& random) {
    const int rank = type.shape.rank();
    std::vector<int> order(static_cast<size_t>(rank));
    for (int i = 0; i < rank; i++) order[static_cast<size_t>(i)] = i;
    if (random.one_in(2))
        for (int i = rank; i > 1; i--)
            std::swap(order[static_cast<size_t>(i - 1)],
                      order[static_cast<size_t>(random.below(i))]);
    static const int64_t steps[] = {1, 1, 1, 1, -1, 2, -3};
    Dims strides(rank, 0);
    int64_t unit = 1, low = 0, high = 0;
    for (size_t i = order.size(); i-- > 0;) {
        const int axis = order[i];
        if (input && random.one_in(5)) continue;
        strides[axis] = unit * steps[random.below(std::size(steps))];
        const int64_t last = std::max<int64_t>(type.shape[axis] - 1, 0);
        (strides[axis] < 0 ? low : high) += strides[axis] * last;
        unit = std::abs(strides[axis]) * (last + 1);
    }
    const int64_t before = random.one_in(3) ? random.below(4) : 0;
    const int64_t behind = random.one_in(3) ? random.below(3) : 0;
    const int64_t item = dtype_size(type.dtype);
    const int64_t elements = element_count(type.shape) ? high - low + 1 : 0;
    return make_block(type.dtype, type.shape, strides, (before - low) * item,
                      (before + elements + behind) * item);
}

std::vector<char> packed(const TensorRef& tensor) {
    const auto item = static_cast<size_t>(dtype_size(tensor.dtype));
    std::vector<char> bytes(static_cast<size_t>(element_count(tensor.shape)) * item);
    each_element(tensor, [&](const char* at, int64_t i) {
        std::memcpy(&bytes[static_cast<size_t>(i) * item], at, item);
    });
    return bytes;
}

uint64_t sum_of(const std::vector<Block>& blocks) {
    Sum sum;
    for (const Block& block : blocks)
        each_element(block.tensor,
                     [&](const char* at, int64_t) { sum.add(block.tensor.dtype, at); });
    return sum.value();
}

/// The block's bytes with every element cleared: what no op may touch.
std::vector<char> around(const Block& block) {
    std::vector<char> bytes(block.bytes, block.bytes + block.size);
    each_element(block.tensor, [&](const char* at, int64_t) {
        std::memset(&bytes[static_cast<size_t>(at - block.bytes)], 0,
                    static_cast<size_t>(dtype_size(block.tensor.dtype)));
    });
    return bytes;
}

std::vector<TensorRef> tensors(const std::vector<Block>& blocks) {
    std::vector<TensorRef> list;
    for (const Block& block : blocks) list.push_back(block.tensor);
    return list;
}

uint64_t run_line(const Line& line, const std::string& text, Random& random) {
    const bool hard = random.one_in(3);
    std::vector<Block> inputs, plain_inputs, outputs, plain_outputs;
    for (const Type& type : line.inputs) {
        inputs.push_back(draw_block(type, true, random));
        fill(inputs.back(), random, hard);
        plain_inputs.push_back(c_order(type));
        const std::vector<char> bytes = packed(inputs.back().tensor);
        if (!bytes.empty()) std::memcpy(plain_inputs.back().bytes, bytes.data(), bytes.size());
    }
    std::set<int> shared;
    for (size_t o = 0; o < line.outputs.size(); o++) {
        outputs.push_back(draw_block(line.outputs[o], false, random));
        plain_outputs.push_back(c_order(line.outputs[o]));
        for (const auto& [out, in] : line.def->inplace) {
            const auto i = static_cast<size_t>(in);
            if (out != static_cast<int>(o) || i >= inputs.size() || shared.contains(in) ||
                !(line.inputs[i] == line.outputs[o]) || overlaps_itself(inputs[i].tensor) ||
                !random.one_in(3))
                continue;
            outputs.back() = inputs[i];
            shared.insert(in);
        }
    }
    std::vector<std::vector<char>> untouched, kept;
    for (const Block& block : outputs) untouched.push_back(around(block));
    for (const Block& block : inputs) kept.emplace_back(block.bytes, block.bytes + block.size);

    op_call(*line.def, tensors(inputs), tensors(outputs), line.attrs, SyncPolicy::full, {});
    op_call(*line.def, tensors(plain_inputs), tensors(plain_outputs), line.attrs, SyncPolicy::full,
            {});
    for (size_t o = 0; o < outputs.size(); o++)
        expect(around(outputs[o]) == untouched[o], "ops: wrote beside output ", o, " of ", text);
    for (size_t i = 0; i < inputs.size(); i++)
        expect(shared.contains(static_cast<int>(i)) ||
                   std::equal(kept[i].begin(), kept[i].end(), inputs[i].bytes),
               "ops: wrote input ", i, " of ", text);
    const uint64_t sum = sum_of(plain_outputs);
    expect(sum_of(outputs) == sum, "ops: the bits depend on the layout: ", text);
    return sum;
}

}  // namespace

uint64_t run_ops(const char* file, int examples) {
    std::ifstream stream(file);
    std::set<std::string> seen;
    Random random(1);
    Sum sum;
    for (std::string text; std::getline(stream, text);) {
        const Line line = parse_line(text);
        seen.insert(line.def->name);
        for (int i = 0; i < examples; i++) sum.add(run_line(line, text, random));
    }
    for (const LoweredDef* def : all_lowered())
        expect(def == region_def() || def == group_def() || def == loop_def() ||
                   def == sequence_def() || def == block_loop_def() || def == chain_def() ||
                   def->name.starts_with("normalize_axes") ||  // GPUs' alone
                   def->name == "normalize_mean" || def->name == "gemm_f32" ||
                   def->name.starts_with("subtree_") || def->name.starts_with("custom_") ||
                   def->name == "host_call" || seen.contains(def->name),
               "ops: ", file, " has no line of ", def->name);
    return sum.value();
}

}  // namespace aicf::harness
