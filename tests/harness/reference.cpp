// A third target: every kernel a plain loop over elements, in the orders of abi.h, so a training
// step must have the CPU's bits. Inner values of a region lie in the kernel's scratch, each whole.
#include "reference.h"

#include <algorithm>
#include <functional>

#include "core/abi/scalar.h"
#include "core/compile/families.h"
#include "harness.h"

namespace aicf::harness {

namespace {

// ---- loops --------------------------------------------------------------------------------------

/// What a loop receives: operands with their addresses, and the op's attributes.
struct Call {
    std::vector<TensorRef> in, out;
    const Attrs& attrs;
    const std::vector<Scalar>& scalars;
};
using Loop = std::function<void(const Call&)>;

template <class T>
T& element(const TensorRef& of, const Dims& at) {
    int64_t offset = 0;
    for (int d = 0; d < at.rank(); d++) offset += at[d] * of.strides[d];
    return static_cast<T*>(of.data)[offset];
}
template <class T = float>
T& number(const TensorRef& of) {
    return *static_cast<T*>(of.data);
}

/// Every position of a shape, in C order.
template <class Act>
void each(const Dims& shape, const Act& act) {
    const int64_t count = element_count(shape);
    Dims at(shape.rank(), 0);
    for (int64_t i = 0; i < count; i++) {
        act(at);
        for (int d = at.rank(); d-- > 0 && ++at[d] == shape[d];) at[d] = 0;
    }
}

/// out = function(inputs, scalars), element by element.
template <class Function>
Loop pointwise(Function function) {
    return [function](const Call& call) {
        float p[2] = {};
        for (size_t i = 0; i < call.scalars.size(); i++)
            p[i] = static_cast<float>(call.scalars[i].f);
        each(call.out[0].shape, [&](const Dims& at) {
            float x[3] = {};
            for (size_t i = 0; i < call.in.size(); i++) x[i] = element<float>(call.in[i], at);
            element<float>(call.out[0], at) = function(x, p);
        });
    };
}

template <class T>
void copy(const Call& call) {
    each(call.out[0].shape,
         [&](const Dims& at) { element<T>(call.out[0], at) = element<T>(call.in[0], at); });
}

/// The result of terms[begin, end) as the text beside kTreeLeaf says.
float tree(const std::vector<float>& terms, size_t begin, size_t end) {
    constexpr size_t kLeaf = kTreeLeaf, kLanes = kTreeLanes;
    if (begin == end) return 0;
    if (const size_t leaves = (end - begin + kLeaf - 1) / kLeaf; leaves > 1) {
        size_t left = 1;
        while (2 * left < leaves) left *= 2;
        const size_t middle = begin + left * kLeaf;
        return tree(terms, begin, middle) + tree(terms, middle, end);
    }
    std::vector<float> lanes(kLanes, -0.0f);
    for (size_t i = begin; i < end; i++) {
        float& lane = lanes[(i - begin) % kLanes];
        lane = i - begin < kLanes ? terms[i] : lane + terms[i];
    }
    for (size_t half = kLanes / 2; half > 0; half /= 2)
        for (size_t l = 0; l < half; l++) lanes[l] += lanes[l + half];
    return lanes[0];
}

float chain(const std::vector<float>& terms, size_t chunk) {
    float sum = 0;
    for (size_t begin = 0; begin < terms.size(); begin += chunk) {
        float part = terms[begin];
        for (size_t i = begin + 1; i < std::min(terms.size(), begin + chunk); i++) part += terms[i];
        sum = begin ? sum + part : part;
    }
    return sum;
}

size_t chunk_of(const std::string& order) {
    return order.starts_with("chain(") ? std::stoul(order.substr(6)) : 0;
}
float sum(const std::vector<float>& terms, const std::string& order) {
    const size_t chunk = chunk_of(order);
    return chunk ? chain(terms, chunk) : tree(terms, 0, terms.size());
}

template <bool Mean>
void reduce(const Call& call) {
    const TensorRef& x = call.in[0];
    Dims kept = x.shape, inside(x.shape.rank(), 1);
    for (int64_t axis : call.attrs.get<std::vector<int64_t>>("axes")) {
        const int d = static_cast<int>(axis < 0 ? axis + kept.rank() : axis);
        inside[d] = x.shape[d];
        kept[d] = 1;
    }
    auto* y = static_cast<float*>(call.out[0].data);  // in C order
    each(kept, [&](const Dims& base) {
        std::vector<float> terms;
        each(inside, [&](const Dims& step) {
            Dims at = base;
            for (int d = 0; d < at.rank(); d++) at[d] += step[d];
            terms.push_back(element<float>(x, at));
        });
        const float total = sum(terms, call.attrs.get<std::string>("order"));
        *y++ = Mean ? total / static_cast<float>(terms.size()) : total;
    });
}

void mse_loss(const Call& call) {
    std::vector<float> terms;
    each(call.in[0].shape, [&](const Dims& at) {
        const float d = element<float>(call.in[0], at) - element<float>(call.in[1], at);
        terms.push_back(d * d);
    });
    number(call.out[0]) = tree(terms, 0, terms.size()) / static_cast<float>(terms.size());
}

void gemm(const Call& call) {
    const TensorRef &a = call.in[0], &b = call.in[1];
    const auto chunk = static_cast<int64_t>(chunk_of(call.attrs.get<std::string>("order")));
    const int row = a.shape.rank() - 2, column = row + 1;
    each(call.out[0].shape, [&](const Dims& at) {
        Dims from_a = at, from_b = at;
        float total = 0;
        for (int64_t begin = 0; begin < a.shape[column]; begin += chunk) {
            float part = 0;
            for (int64_t k = begin; k < std::min(a.shape[column], begin + chunk); k++) {
                from_a[column] = from_b[row] = k;
                part = scalar::fma(element<float>(a, from_a), element<float>(b, from_b), part);
            }
            total = begin ? total + part : part;
        }
        element<float>(call.out[0], at) = total;
    });
}

void sgd_step(const Call& call) {
    each(call.out[0].shape, [&](const Dims& at) {
        element<float>(call.out[0], at) = scalar::sgd_p(
            element<float>(call.in[0], at), element<float>(call.in[1], at), number(call.in[2]));
    });
}

void adam_step(const Call& call) {
    const auto n = [&](size_t i) { return number(call.in[i]); };
    each(call.out[0].shape, [&](const Dims& at) {
        const auto x = [&](size_t i) { return element<float>(call.in[i], at); };
        const float m = scalar::adam_m(x(2), x(1), n(7)), v = scalar::adam_v(x(3), x(1), n(8));
        element<float>(call.out[0], at) = scalar::adam_p(x(0), m, v, n(4), n(5), n(6), n(9));
        element<float>(call.out[1], at) = m;
        element<float>(call.out[2], at) = v;
    });
}

void scaled_adam_step(const Call& call) {
    const auto n = [&](size_t i) { return number(call.in[i]); };
    each(call.out[0].shape, [&](const Dims& at) {
        const auto x = [&](size_t i) { return element<float>(call.in[i], at); };
        const float grad = scalar::mul(x(1), n(11));
        const float m = scalar::adam_m(x(2), grad, n(7)), v = scalar::adam_v(x(3), grad, n(8));
        element<float>(call.out[0], at) =
            scalar::adam_p(scalar::mul(x(0), n(10)), m, v, n(4), n(5), n(6), n(9));
        element<float>(call.out[1], at) = m;
        element<float>(call.out[2], at) = v;
    });
}

void guarded_sgd_step(const Call& call) {
    const bool good = number(call.in[3]) != 0;
    each(call.out[0].shape, [&](const Dims& at) {
        const float p = element<float>(call.in[0], at);
        const float grad = scalar::mul(element<float>(call.in[1], at), number(call.in[3]));
        element<float>(call.out[0], at) = good ? scalar::sgd_p(p, grad, number(call.in[2])) : p;
    });
}

void guarded_adam_step(const Call& call) {
    if (number(call.in[11]) != 0) return scaled_adam_step(call);
    each(call.out[0].shape, [&](const Dims& at) {
        for (size_t k = 0; k < 3; k++)
            element<float>(call.out[k], at) = element<float>(call.in[k == 0 ? 0 : k + 1], at);
    });
}

void step_inc(const Call& call) { number<int32_t>(call.out[0]) = number<int32_t>(call.in[0]) + 1; }

void bias_corr(const Call& call) {
    for (size_t i = 0; i < 2; i++)
        number(call.out[i]) = static_cast<float>(scalar::bias_corr(
            static_cast<double>(number(call.in[1 + i])), number<int32_t>(call.in[0])));
}

void ring_push(const Call& call) {
    const TensorRef& ring = call.out[0];
    copy<float>({{call.in[1]}, {ring}, call.attrs, call.scalars});
    const auto position = number<int64_t>(call.in[2]);
    TensorRef row = ring;
    row.data = static_cast<float*>(ring.data) + position % ring.shape[0] * ring.strides[0];
    row.shape.erase(0);
    row.strides.erase(0);
    copy<float>({{call.in[0]}, {row}, call.attrs, call.scalars});
    number<int64_t>(call.out[1]) = position + 1;
}

// ---- families -----------------------------------------------------------------------------------

/// A loop with the numbers of its operands among those of the op: inputs, outputs, inner values.
struct Work {
    Loop loop;
    std::vector<int> inputs, outputs;
    Attrs attrs;
    std::vector<Scalar> scalars;
};
struct ReferenceKernel : Kernel {
    std::vector<Work> loops;
    std::vector<View> inner;
    std::vector<uint64_t> inner_at;  // in the scratch
};

/// Of a lone op: a family makes no more than its loop.
using Family = KernelFamily<Loop, DType>;

bool is(const LoweredOp& op, std::initializer_list<const char*> names) {
    return std::find(names.begin(), names.end(), op.def->name) != names.end();
}

#define AICF_CALL_1_0(f) scalar::f(x[0])
#define AICF_CALL_2_0(f) scalar::f(x[0], x[1])
#define AICF_CALL_3_0(f) scalar::f(x[0], x[1], x[2])
#define AICF_CALL_1_1(f) scalar::f(x[0], p[0])
#define AICF_CALL_2_1(f) scalar::f(x[0], x[1], p[0])
#define AICF_CALL_1_2(f) scalar::f(x[0], p[0], p[1])
#define AICF_CALL_2_2(f) scalar::f(x[0], x[1], p[0], p[1])
#define AICF_LOOP_num(f, arity, scalars)                                                        \
    if (op.def->name == #f)                                                                     \
        return pointwise([]([[maybe_unused]] const float* x, [[maybe_unused]] const float* p) { \
            return AICF_CALL_##arity##_##scalars(f);                                            \
        });
#define AICF_LOOP_flt AICF_LOOP_num
#define AICF_LOOP_cmp(...)
#define AICF_LOOP_logic(...)
#define AICF_LOOP_test(...)
#define AICF_LOOP_select(...)
#define AICF_LOOP_any(...)
#define AICF_LOOP_whole(...)
#define AICF_LOOP(f, arity, kind, scalars) AICF_LOOP_##kind(f, arity, scalars)

/// Of the functions of scalar.h that take floats to a float; null: it is none.
Loop scalar_loop(const LoweredOp& op) {
    AICF_POINTWISE(AICF_LOOP)
    return nullptr;
}

constexpr Family kFamilies[] = {
    {"copy", [](const LoweredOp& op, const DType&) { return is(op, {"copy"}); },
     [](const LoweredOp&, const DType& dtype) -> Loop {
         switch (dtype_size(dtype)) {
             case 1:
                 return copy<uint8_t>;
             case 2:
                 return copy<uint16_t>;
             case 4:
                 return copy<uint32_t>;
             default:
                 return copy<uint64_t>;
         }
     }},
    {"pointwise",
     [](const LoweredOp& op, const DType& dtype) { return dtype == DType::f32 && scalar_loop(op); },
     [](const LoweredOp& op, const DType&) { return scalar_loop(op); }},
    {"reduce",
     [](const LoweredOp& op, const DType& dtype) {
         return dtype == DType::f32 && is(op, {"reduce_sum", "reduce_mean", "mse_loss"});
     },
     [](const LoweredOp& op, const DType&) -> Loop {
         if (is(op, {"mse_loss"})) return mse_loss;
         return is(op, {"reduce_sum"}) ? reduce<false> : reduce<true>;
     }},
    {"matmul",
     [](const LoweredOp& op, const DType& dtype) {
         return dtype == DType::f32 && is(op, {"gemm"}) &&
                chunk_of(op.attrs.get<std::string>("order")) &&
                op.attrs.get<std::string>("math") == "fp32";
     },
     [](const LoweredOp&, const DType&) -> Loop { return gemm; }},
    {"optim",
     [](const LoweredOp& op, const DType& dtype) {
         return dtype == DType::f32 ? is(op, {"sgd_step", "adam_step", "scaled_adam_step",
                                              "guarded_sgd_step", "guarded_adam_step", "ring_push"})
                                    : is(op, {"step_inc", "bias_corr"});
     },
     [](const LoweredOp& op, const DType&) -> Loop {
         if (is(op, {"sgd_step"})) return sgd_step;
         if (is(op, {"adam_step"})) return adam_step;
         if (is(op, {"scaled_adam_step"})) return scaled_adam_step;
         if (is(op, {"guarded_sgd_step"})) return guarded_sgd_step;
         if (is(op, {"guarded_adam_step"})) return guarded_adam_step;
         if (is(op, {"step_inc"})) return step_inc;
         return is(op, {"bias_corr"}) ? bias_corr : ring_push;
     }},
};

std::shared_ptr<ReferenceKernel> make_kernel(const LoweredOp& op) {
    auto kernel = std::make_shared<ReferenceKernel>();
    kernel->name = cat("reference_", op.def->name);
    const auto add = [&](const LoweredOp& lone, std::vector<int> inputs, std::vector<int> outputs) {
        const DType dtype = lone.inputs[0].dtype;
        const Family* family = find_family<Loop, DType>(kFamilies, lone, dtype);
        if (!family) return false;
        kernel->loops.push_back({family->emit(lone, dtype), std::move(inputs), std::move(outputs),
                                 lone.attrs, pack_scalars(lone)});
        return true;
    };
    const auto count = [](size_t first, size_t views) {
        std::vector<int> numbers;
        for (size_t i = 0; i < views; i++) numbers.push_back(static_cast<int>(first + i));
        return numbers;
    };
    if (op.body.empty())
        return add(op, count(0, op.inputs.size()), count(op.inputs.size(), op.outputs.size()))
                   ? kernel
                   : nullptr;
    for (const RegionStep& step : op.body) {
        LoweredOp lone{step.def, {}, {}, step.attrs};
        for (int input : step.inputs) lone.inputs.push_back(op.operand(input));
        for (int output : step.outputs) lone.outputs.push_back(op.operand(output));
        if (!add(lone, step.inputs, step.outputs)) return nullptr;
    }
    kernel->inner = op.inner;
    for (const View& view : op.inner) {
        kernel->inner_at.push_back(kernel->workspace_bytes);
        const auto bytes = static_cast<uint64_t>(byte_count({view.dtype, view.shape}));
        kernel->workspace_bytes += (bytes + 63) / 64 * 64;
    }
    return kernel;
}

class ReferenceTarget : public Target {
  public:
    explicit ReferenceTarget(Device::Kind kind) : kind_(kind) {}
    Device::Kind kind() const override { return kind_; }
    GroupLimits group_limits() const override { return {256 << 10, 1 << 20, 1 << 22}; }
    bool fits(const LoweredOp& region) const override {
        return block_bytes(region).value_or(SIZE_MAX) <= kMaxArgBytes;
    }
    std::optional<size_t> block_bytes(const LoweredOp& op) const override {
        if (!make_kernel(op)) return std::nullopt;
        return block_size(op, 0);
    }
    std::shared_ptr<const Kernel> select(const LoweredOp& op) const override {
        auto kernel = op.members.empty() ? make_kernel(op) : std::make_shared<ReferenceKernel>();
        if (!kernel) no_kernel(op, "the reference", "an op of a plain training step");
        for (const LoweredOp& member : op.members) add_part(*kernel, op, member, select(member));
        return kernel;
    }

  private:
    Device::Kind kind_;
};

// ---- the device ---------------------------------------------------------------------------------

void run_block(const Kernel& base, const ArgBlock& args) {
    for (const Kernel::Part& part : base.parts)
        run_block(*part.kernel, *reinterpret_cast<const ArgBlock*>(
                                    static_cast<const char*>(args.tail_ptr()) + part.at));
    if (!base.parts.empty()) return;
    const auto& kernel = static_cast<const ReferenceKernel&>(base);
    std::vector<TensorRef> operands;
    for (int i = 0; i < args.inputs + args.outputs; i++) {
        const Operand& operand = args.operand(i);
        TensorRef& tensor = operands.emplace_back();
        tensor.data = operand.ptr;
        tensor.dtype = static_cast<DType>(operand.dtype);
        for (int d = 0; d < operand.rank; d++) {
            tensor.shape.push(operand.shape()[d]);
            tensor.strides.push(operand.strides()[d]);
        }
    }
    for (size_t i = 0; i < kernel.inner.size(); i++) {
        TensorRef& tensor = operands.emplace_back();
        tensor.data = static_cast<char*>(args.workspace) + kernel.inner_at[i];
        tensor.dtype = kernel.inner[i].dtype;
        tensor.shape = kernel.inner[i].shape;
        tensor.strides = contiguous_strides(tensor.shape);
    }
    for (const Work& work : kernel.loops) {
        Call call{{}, {}, work.attrs, work.scalars};
        for (int input : work.inputs) call.in.push_back(operands[static_cast<size_t>(input)]);
        for (int output : work.outputs) call.out.push_back(operands[static_cast<size_t>(output)]);
        work.loop(call);
    }
}

class ReferenceCaptured : public Captured {
  public:
    explicit ReferenceCaptured(std::vector<BoundOp> ops) : ops_(std::move(ops)) {}
    int64_t launch(int64_t) override {
        for (const BoundOp& op : ops_) run_block(*op.kernel, *op.args);
        return 1;
    }
    void rebind(int, const ArgBlock&) override {}  // the blocks are the step's own
    std::vector<Launch> trace() const override {
        std::vector<Launch> launches;
        for (const BoundOp& op : ops_) launches.push_back({op.op, op.kernel->name});
        return launches;
    }

  private:
    std::vector<BoundOp> ops_;
};

class ReferenceBackend : public Backend {
  public:
    explicit ReferenceBackend(Device device) : device_(device), target_(device.kind) {}
    Device device() const override { return device_; }
    const Target& target() const override { return target_; }
    void finish_args(const Kernel& kernel, ArgBlock& args, void* counters) override {
        finish_parts(*this, kernel, args, counters);
    }
    std::shared_ptr<void> allocate(uint64_t bytes) override {
        constexpr std::align_val_t align{kArenaAlign};
        return {::operator new(bytes, align), [](void* p) { ::operator delete(p, align); }};
    }
    void clear(void* to, uint64_t bytes) override { std::memset(to, 0, bytes); }
    void upload(void* to, const void* from, uint64_t bytes) override { copy(to, from, bytes); }
    void download(void* to, const void* from, uint64_t bytes) override { copy(to, from, bytes); }
    void copy(void* to, const void* from, uint64_t bytes) override {
        if (bytes) std::memmove(to, from, bytes);
    }
    void gather(void* to, const TensorRef& from) override {
        const int64_t size = dtype_size(from.dtype);
        each_element(from, [&](const char* at, int64_t i) {
            std::memcpy(static_cast<char*>(to) + i * size, at, static_cast<size_t>(size));
        });
    }
    void run(const BoundOp& op) override { run_block(*op.kernel, *op.args); }
    std::unique_ptr<Captured> capture(const std::vector<BoundOp>& ops) override {
        return std::make_unique<ReferenceCaptured>(ops);
    }
    void synchronize() override {}
    void order_after(intptr_t) override {}
    void order_before(intptr_t) override {}
    std::shared_ptr<void> lend(std::shared_ptr<void> memory, intptr_t) override { return memory; }

  private:
    Device device_;
    ReferenceTarget target_;
};

// ---- the test -----------------------------------------------------------------------------------

/// Everything that a step holds after some steps, by name.
using Held = std::vector<std::pair<std::string, std::vector<char>>>;
Held train(const Graph& graph, Device device, const std::vector<std::string>& passes, bool replay) {
    Step::Options options;
    options.device = device;
    options.seed = 3;
    options.compile.passes = passes;
    Step step(graph, options);
    Random random(11);
    for (int i = 0; i < 4; i++) {
        Step::Inputs inputs;
        for (const Value& value : step.plan().values) {
            if (value.role != Role::input) continue;
            Block block = c_order(value.type);
            fill(block, random, false);
            inputs.emplace_back(value.id, block.tensor);
        }
        replay ? step.call(inputs) : step.run(inputs);
    }
    if (replay)
        step.replay(2);
    else
        for (int i = 0; i < 2; i++) step.run({});
    Held held;
    const auto add = [&](const std::string& name, const TensorRef& tensor) {
        const auto* data = static_cast<const char*>(tensor.data);
        held.emplace_back(name, std::vector(data, data + byte_count({tensor.dtype, tensor.shape})));
    };
    for (const Value& value : step.plan().values)
        if (value.role == Role::param || value.role == Role::state)
            add(value.name, step.read(value.id));
    for (const Lowered::Output& output : step.plan().outputs)
        add(output.name, step.read_output(output));
    return held;
}

}  // namespace

uint64_t run_reference() {
    static const Device::Kind kind = add_device_kind("reference");
    register_backend(kind, [](Device device) -> std::unique_ptr<Backend> {
        return std::make_unique<ReferenceBackend>(device);
    });
    const Device reference{kind};
    std::vector<std::string> all;
    for (const Pass& pass : all_passes()) all.push_back(pass.name);
    const Plan plan = compile(perceptron(8, 8), ReferenceTarget(kind), {.passes = all});
    for (const char* words : {"on reference: ", "op=region(gemm", "op=group("})
        expect(to_text(plan).find(words) != std::string::npos, "reference: no ", words, " in ",
               to_text(plan));
    Sum sums;
    for (const Graph& graph : {perceptron(8, 8), perceptron(33, 18), perceptron(260, 20)}) {
        const Held want = train(graph, {}, all, true);
        for (const auto& passes : {all, {}})
            for (bool replay : {true, false}) {
                const Held held = train(graph, reference, passes, replay);
                expect(held.size() == want.size(), "reference: ", held.size(), " values");
                for (size_t i = 0; i < held.size(); i++)
                    expect(held[i] == want[i], "reference: ", held[i].first, " of ", graph.name,
                           " with ", passes.size(), " passes has other bits than the cpu's");
            }
        for (const auto& [name, bytes] : want)
            for (char byte : bytes) sums.add(static_cast<uint8_t>(byte));
    }
    Step step(perceptron(8, 8), {.device = reference});
    try {
        step.write_file(true);
        expect(false, "reference: a file took a step");
    } catch (const Error& error) {
        expect(error.kind() == ErrorKind::unsupported, error.what());
    }
    return sums.value();
}

}  // namespace aicf::harness
