#include "core/run/eager.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <utility>

#include "core/base/float_mode.h"
#include "core/base/fork.h"
#include "core/graph/custom.h"

namespace aicf {

namespace {

// ---- overlap ------------------------------------------------------------------------------------

/// A term step * count with 0 <= count <= most.
struct Term {
    int64_t step, most;
};

/// Bounded subset-sum: can the terms add up to a target? Depth first over steps in descending
/// order, pruned by range and gcd of the rest. Nested strides, as of slices of one array, leave one
/// candidate per level.
class Sums {
  public:
    explicit Sums(std::vector<Term> terms) {
        std::erase_if(terms, [](const Term& term) { return term.step == 0 || term.most == 0; });
        std::sort(terms.begin(), terms.end(),
                  [](const Term& a, const Term& b) { return a.step > b.step; });
        for (const Term& term : terms)
            if (!terms_.empty() && terms_.back().step == term.step)
                terms_.back().most += term.most;
            else
                terms_.push_back(term);
        range_.assign(terms_.size() + 1, 0);
        divisor_.assign(terms_.size() + 1, 0);
        for (size_t k = terms_.size(); k-- > 0;) {
            range_[k] = range_[k + 1] + __int128{terms_[k].step} * terms_[k].most;
            divisor_[k] = std::gcd(terms_[k].step, divisor_[k + 1]);
        }
    }

    bool reach(__int128 target) { return search(0, target); }

  private:
    bool search(size_t k, __int128 target) {
        if (target == 0) return true;
        if (target < 0 || target > range_[k] || target % divisor_[k] != 0) return false;
        if (budget_-- <= 0) return true;
        const Term& term = terms_[k];
        const __int128 rest = target - range_[k + 1];
        const __int128 least = rest > 0 ? (rest + term.step - 1) / term.step : 0;
        for (__int128 count = std::min<__int128>(term.most, target / term.step); count >= least;
             count--) {
            if (search(k + 1, target - count * term.step)) return true;
            if (budget_ <= 0) return true;
        }
        return false;
    }

    std::vector<Term> terms_;
    std::vector<__int128> range_;  // suffix sums of the terms' maxima
    std::vector<int64_t> divisor_;
    int64_t budget_ = 100000;
};

/// The byte range of a tensor, relative to its data pointer.
struct Extent {
    int64_t low = 0, high = 0;
};

/// Empty if element offsets overflow 64 bits.
std::optional<Extent> extent_of(const TensorRef& tensor) {
    Extent extent{0, dtype_size(tensor.dtype) - 1};
    for (int i = 0; i < tensor.shape.rank(); i++) {
        int64_t span = 0;
        int64_t& end = tensor.strides[i] < 0 ? extent.low : extent.high;
        if (__builtin_mul_overflow(tensor.shape[i] - 1, tensor.strides[i], &span) ||
            __builtin_mul_overflow(span, dtype_size(tensor.dtype), &span) ||
            __builtin_add_overflow(end, span, &end))
            return std::nullopt;
    }
    return extent;
}

bool is_empty(const Dims& shape) { return std::find(shape.begin(), shape.end(), 0) != shape.end(); }

std::vector<Term> steps_of(const TensorRef& tensor, int64_t unit) {
    std::vector<Term> terms;
    for (int i = 0; i < tensor.shape.rank(); i++)
        terms.push_back({std::abs(tensor.strides[i]) * unit, tensor.shape[i] - 1});
    return terms;
}

}  // namespace

bool overlaps(const TensorRef& a, const TensorRef& b) {
    if (is_empty(a.shape) || is_empty(b.shape)) return false;
    const auto in_a = extent_of(a), in_b = extent_of(b);
    if (!in_a || !in_b) return true;
    const auto at = [](const TensorRef& tensor, int64_t offset) {
        return __int128{reinterpret_cast<intptr_t>(tensor.data)} + offset;
    };
    const __int128 last_b = at(b, in_b->high), first_a = at(a, in_a->low);
    if (last_b < first_a || at(a, in_a->high) < at(b, in_b->low)) return false;
    // Byte offset from a's first byte plus offset back from b's last byte equals the distance
    // between them.
    std::vector<Term> terms = steps_of(a, dtype_size(a.dtype));
    for (const Term& term : steps_of(b, dtype_size(b.dtype))) terms.push_back(term);
    terms.push_back({1, dtype_size(a.dtype) - 1 + dtype_size(b.dtype) - 1});
    return Sums(std::move(terms)).reach(last_b - first_a);
}

bool overlaps_itself(const TensorRef& tensor) {
    if (is_contiguous(tensor.shape, tensor.strides) || is_empty(tensor.shape)) return false;
    std::vector<Term> axes = steps_of(tensor, 1);
    std::erase_if(axes, [](const Term& axis) { return axis.most == 0; });
    std::sort(axes.begin(), axes.end(),
              [](const Term& a, const Term& b) { return a.step > b.step; });
    for (size_t k = 0; k < axes.size(); k++) {
        // Two elements first differ in axis k: the other axes must cancel their distance along it.
        if (axes[k].step == 0) return true;
        __int128 others = 0;
        std::vector<Term> terms = {{axes[k].step, axes[k].most - 1}};
        for (size_t j = k + 1; j < axes.size(); j++) {
            others += __int128{axes[j].step} * axes[j].most;
            terms.push_back({axes[j].step, 2 * axes[j].most});
        }
        if (axes[k].step <= others &&
            Sums(std::move(terms)).reach(__int128{axes[k].step} * axes[k].most + others))
            return true;
    }
    return false;
}

// ---- checks -------------------------------------------------------------------------------------

namespace {

std::string describe(const TensorRef& tensor) { return type_string(tensor.dtype, tensor.shape); }

/// "[6, 1]" as Python writes a layout.
std::string layout(const TensorRef& tensor) {
    return cat(describe(tensor), " with strides ", to_string(tensor.strides));
}

Attrs call_attrs(const LoweredDef& def, const Attrs& attrs, Tensors inputs) {
    Attrs complete = complete_attrs(def.attrs, attrs, def.name);
    const Attr* axis = complete.find("axis");
    const auto own = [](const AttrDef& attr) { return attr.name == "axis"; };
    if (!axis || inputs.empty() || std::none_of(def.attrs.begin(), def.attrs.end(), own))
        return complete;
    if (const auto* given = std::get_if<int64_t>(axis)) {  // kernels count axes from the front
        const int64_t rank = inputs[0].shape.rank();
        if (*given < 0 && *given >= -rank) complete.set("axis", *given + rank);
    }
    return complete;
}

void check_sizes(const LoweredDef& def, const std::string& name, const TensorRef& tensor) {
    int64_t bytes = 16;  // of the largest element, twice
    for (int64_t size : tensor.shape)
        if (size && __builtin_mul_overflow(bytes, size, &bytes))
            raise(ErrorKind::shape, def.name, ": ", name, " is ", describe(tensor),
                  ", of more than 2**63 bytes; need fewer elements");
    if (tensor.data && !is_empty(tensor.shape) && !extent_of(tensor))
        raise(ErrorKind::shape, def.name, ": ", name, " is ", layout(tensor),
              ", which reach beyond 64 bits; need smaller strides");
}

struct Call {
    const LoweredDef& def;
    const Tensors inputs, outputs;

    std::string input(size_t i) const { return operand_name(def.inputs, static_cast<int>(i)); }
    std::string output(size_t i) const { return operand_name(def.outputs, static_cast<int>(i)); }

    void check_devices() const {
        const Device device = outputs[0].device;
        const auto other = [&](const std::string& name, const TensorRef& tensor) {
            raise(ErrorKind::device_unavailable, def.name, ": ", name, " is on ",
                  to_string(tensor.device), ", output ", output(0), " on ", to_string(device),
                  "; need one device (copy it there)");
        };
        for (size_t i = 0; i < inputs.size(); i++)
            if (!(inputs[i].device == device)) other(cat("input ", input(i)), inputs[i]);
        for (size_t i = 0; i < outputs.size(); i++)
            if (!(outputs[i].device == device)) other(cat("output ", output(i)), outputs[i]);
    }

    void check_types(const std::vector<Type>& types) const {
        for (size_t i = 0; i < outputs.size(); i++) {
            const TensorRef& got = outputs[i];
            if (got.dtype != types[i].dtype || !(got.shape == types[i].shape))
                raise(got.dtype != types[i].dtype ? ErrorKind::dtype : ErrorKind::shape, def.name,
                      ": output ", output(i), " is ", describe(got), "; need ",
                      to_string(types[i]));
        }
    }

    void check_layouts() const {
        for (int position : def.contiguous) {
            const auto i = static_cast<size_t>(position);
            if (i >= inputs.size() + outputs.size()) continue;
            const bool in = i < inputs.size();
            const TensorRef& tensor = in ? inputs[i] : outputs[i - inputs.size()];
            if (!is_contiguous(tensor.shape, tensor.strides))
                raise(ErrorKind::unsupported, def.name, ": ",
                      in ? input(i) : output(i - inputs.size()), " is ", layout(tensor),
                      "; need C order (copy it)");
        }
    }

    bool may_share(size_t out, size_t in) const {
        return std::find(def.inplace.begin(), def.inplace.end(),
                         std::pair{static_cast<int>(out), static_cast<int>(in)}) !=
               def.inplace.end();
    }

    /// An output must not overlap itself, another output or an input, except an input that the
    /// schema pairs with it and that has the identical layout.
    [[gnu::noinline]] void check_memory() const {
        for (size_t o = 0; o < outputs.size(); o++) {
            const TensorRef& out = outputs[o];
            if (out.read_only)
                raise(ErrorKind::graph, def.name, ": output ", output(o), " ", describe(out),
                      " is read-only; need a writable tensor");
            if (overlaps_itself(out))
                raise(ErrorKind::graph, def.name, ": output ", output(o), " is ", layout(out),
                      ", which puts several elements at one address; need an address for each");
            for (size_t other = 0; other < o; other++)
                if (overlaps(out, outputs[other]))
                    raise(ErrorKind::graph, def.name, ": outputs ", output(other), " ",
                          layout(outputs[other]), " and ", output(o), " ", layout(out),
                          " overlap; need memory of their own");
            for (size_t i = 0; i < inputs.size(); i++) {
                const TensorRef& in = inputs[i];
                const bool exact = in.data == out.data && in.shape == out.shape &&
                                   in.strides == out.strides &&
                                   dtype_size(in.dtype) == dtype_size(out.dtype);
                if ((exact && may_share(o, i)) || !overlaps(out, in)) continue;
                raise(ErrorKind::graph, def.name, ": output ", output(o), " ", layout(out),
                      exact ? " is" : " overlaps", " input ", input(i), " ", layout(in), "; need ",
                      may_share(o, i) ? "exactly its memory, or none of it"
                                      : "memory of its own (this op does not work in place)");
            }
        }
    }
};

View view_of(const TensorRef& tensor) {
    View view;
    view.dtype = tensor.dtype;
    view.shape = tensor.shape;
    view.strides = tensor.strides;
    return view;
}

std::vector<Type> types_of(Tensors tensors) {
    std::vector<Type> types;
    for (const TensorRef& tensor : tensors) types.push_back({tensor.dtype, tensor.shape});
    return types;
}

/// A view without a value. The offset of a product's operand encodes its alignment to 16 bytes, on
/// which kernel selection depends.
int64_t offset_of(const LoweredDef& def, const TensorRef& tensor) {
    if (!def.gemm) return 0;
    return static_cast<int64_t>(reinterpret_cast<uintptr_t>(tensor.data) % 16) /
           dtype_size(tensor.dtype);
}

View placed_view(const LoweredDef& def, const TensorRef& tensor) {
    View view = view_of(tensor);
    view.offset = offset_of(def, tensor);
    return view;
}

LoweredOp as_op(const LoweredDef& def, Tensors inputs, Tensors outputs, Attrs attrs) {
    LoweredOp op{&def, {}, {}, std::move(attrs), -1};
    for (const TensorRef& tensor : inputs) {
        const View view = placed_view(def, tensor);
        op.inputs.push_back(def.pointwise ? broadcast_view(view, outputs[0].shape) : view);
    }
    for (const TensorRef& tensor : outputs) op.outputs.push_back(view_of(tensor));
    return op;
}

}  // namespace

LoweredOp check_call(const LoweredDef& def, Tensors inputs, Tensors outputs, const Attrs& attrs) {
    const Call call{def, inputs, outputs};
    check_arity(def.inputs, inputs.size(), def.name);
    const bool any = !def.outputs.empty() && def.outputs.back().ends_with('*');
    const auto check_count = [&](size_t count) {
        if (outputs.size() != count)
            raise(ErrorKind::graph, def.name, ": got ", outputs.size(), " outputs; need ", count);
    };
    if (!any || outputs.empty()) check_count(def.outputs.size());
    for (size_t i = 0; i < inputs.size(); i++) check_sizes(def, call.input(i), inputs[i]);
    for (size_t i = 0; i < outputs.size(); i++) check_sizes(def, call.output(i), outputs[i]);
    Attrs complete = call_attrs(def, attrs, inputs);
    call.check_devices();
    const std::vector<Type> types = infer_lowered(def, types_of(inputs), complete);
    check_count(types.size());
    call.check_types(types);
    call.check_layouts();
    call.check_memory();
    return as_op(def, inputs, outputs, std::move(complete));
}

// ---- running ------------------------------------------------------------------------------------

namespace {

/// What keeps operands alive. It is let go of where no lock is held: a framework may run a user's
/// code then, which may make a call.
using Owners = std::vector<std::shared_ptr<void>>;

/// Memory that kernels borrow: a workspace, and counters, which each kernel leaves at zero.
struct Scratch {
    std::shared_ptr<void> workspace, counters;
    uint64_t workspace_bytes = 0, counter_bytes = 0;
};

/// Shared by eager calls of one device. Each runs on a stream of its caller's, where the device has
/// streams. What one call must leave to the next, scratch memory and operands that no framework
/// gives back in the order of that stream, goes by the backend's mark: behind it all is done.
struct Desk {
    std::unique_ptr<Backend> backend;
    Scratch scratch;
    /// Of calls that a stream's capture recorded, by the capture and the stream: the graph uses it
    /// whenever it is launched, so it is kept for good.
    std::map<std::pair<uint64_t, intptr_t>, Scratch> captured;
    Owners outgrown;     // scratch memory of captured calls
    Owners held;         // operands of calls up to the mark
    size_t holding = 0;  // of so many calls

    /// A checked call, keyed by everything but addresses; an equal call repeats only checks of
    /// addresses.
    struct Known {
        const LoweredDef* def;
        Attrs attrs;
        std::vector<View> operands;   // inputs first
        std::vector<Extent> extents;  // of them; none where one is empty
        size_t inputs;
        BoundOp bound;                   // with the addresses of its last call
        const void* counters = nullptr;  // of that call
        bool placed = false;
        intptr_t stream = 0;   // of its last call that was not captured
        int64_t in_a_row = 0;  // calls on it, where they did not go by `repeated`
        int64_t often = 8;     // as many are worth `repeated`, which takes what they would save
        std::unique_ptr<Repeated> repeated = {};
        intptr_t repeated_on = 0;  // the stream that it is for; 0: there is none
        bool moved = false;        // whether the block is another than at its last run

        /// Whether each output is writable and in a range of bytes of its own: overlaps_itself() is
        /// settled by the layout, and no overlaps() need be asked.
        bool is_apart(Tensors in, Tensors out) const {
            if (extents.empty()) return false;
            const auto ends = [&](size_t i) {
                const TensorRef& tensor = i < in.size() ? in[i] : out[i - in.size()];
                const __int128 at = reinterpret_cast<intptr_t>(tensor.data);
                return std::pair{at + extents[i].low, at + extents[i].high};
            };
            for (size_t o = 0; o < out.size(); o++) {
                if (out[o].read_only) return false;
                const auto [low, high] = ends(in.size() + o);
                for (size_t i = 0; i < in.size() + o; i++)
                    if (const auto other = ends(i); other.first <= high && low <= other.second)
                        return false;
            }
            return true;
        }
    };
    std::vector<Known> known;    // the most recent, round robin
    std::vector<uint64_t> keys;  // key_of() each
    size_t next = 0;

    static uint64_t key_of(const LoweredDef& def, Tensors inputs, Tensors outputs) {
        uint64_t key = reinterpret_cast<uintptr_t>(&def) + inputs.size();
        const auto add = [&key](int64_t x) {
            key = (key + static_cast<uint64_t>(x)) * 0x9e3779b97f4a7c15;
        };
        for (const Tensors tensors : {inputs, outputs})
            for (const TensorRef& tensor : tensors) {
                add(static_cast<int64_t>(tensor.dtype) + (int64_t{tensor.shape.rank()} << 8) +
                    (offset_of(def, tensor) << 16));
                for (int i = 0; i < tensor.shape.rank(); i++) {
                    add(tensor.shape[i]);
                    add(tensor.strides[i]);
                }
            }
        return key;
    }

    Known* find(uint64_t key, const LoweredDef& def, Tensors inputs, Tensors outputs,
                const Attrs& attrs) {
        const auto alike = [&](const TensorRef& tensor, const View& view) {
            return view.dtype == tensor.dtype && view.shape == tensor.shape &&
                   view.strides == tensor.strides && view.offset == offset_of(def, tensor);
        };
        const auto is_it = [&](const Known& one) {
            return one.def == &def && one.inputs == inputs.size() &&
                   one.operands.size() == inputs.size() + outputs.size() &&
                   std::equal(inputs.begin(), inputs.end(), one.operands.begin(), alike) &&
                   std::equal(outputs.begin(), outputs.end(),
                              one.operands.begin() + static_cast<ptrdiff_t>(inputs.size()),
                              alike) &&
                   one.attrs == attrs;
        };
        for (size_t i = 0; i < keys.size(); i++)
            if (keys[i] == key && is_it(known[i])) return &known[i];
        return nullptr;
    }
    Known& keep(uint64_t key, Known one) {
        constexpr size_t kMost = 64;
        keys.reserve(kMost);
        known.reserve(kMost);
        if (known.size() < kMost) {
            keys.push_back(key);
            return known.emplace_back(std::move(one));
        }
        const size_t at = next++ % kMost;
        keys[at] = key;
        return known[at] = std::move(one);
    }

    /// Waits; returns what was held.
    [[nodiscard]] Owners synchronize() {
        if (OtherStreams* const others = backend->other_streams()) others->wait_for_mark();
        holding = 0;
        return std::exchange(held, {});
    }

    /// Lets a kernel borrow what the calls before it have borrowed.
    const Scratch& lend(const Kernel& kernel, OtherStreams* others) {
        const auto renew = [&](std::shared_ptr<void>& memory, uint64_t& has, uint64_t wanted,
                               bool zero) {
            if (has >= wanted) return;
            if (others) others->follow(std::nullopt);
            has = 0;
            memory.reset();
            auto fresh = backend->allocate(wanted);
            if (zero) backend->clear(fresh.get(), wanted);
            if (others) others->mark(std::nullopt);
            memory = std::move(fresh);
            has = wanted;
        };
        renew(scratch.workspace, scratch.workspace_bytes, kernel.workspace_bytes, false);
        renew(scratch.counters, scratch.counter_bytes, kernel.counter_bytes, true);
        return scratch;
    }
    const Scratch& lend_captured(const Kernel& kernel, OtherStreams& others, uint64_t capture,
                                 intptr_t stream) {
        Scratch& own = captured[{capture, stream}];
        const auto grow = [&](std::shared_ptr<void>& memory, uint64_t& has, uint64_t wanted) {
            if (has >= wanted) return;
            outgrown.reserve(outgrown.size() + 1);
            auto zeros = others.zeros(wanted);
            if (memory) outgrown.push_back(std::move(memory));
            memory = std::move(zeros);
            has = wanted;
        };
        grow(own.workspace, own.workspace_bytes, kernel.workspace_bytes);
        grow(own.counters, own.counter_bytes, kernel.counter_bytes);
        return own;
    }

    /// Fills the block of a call with its addresses.
    void place(Known& one, Tensors inputs, Tensors outputs, const Scratch& borrowed) {
        ArgBlock& args = *one.bound.args;
        const Kernel& kernel = *one.bound.kernel;
        bool moved = !one.placed;
        const auto put = [&moved](auto*& at, void* now) {
            moved |= at != now;
            at = now;
        };
        int i = 0;
        for (const Tensors tensors : {inputs, outputs})
            for (const TensorRef& tensor : tensors)
                put(const_cast<Operand&>(args.operand(i++)).ptr, tensor.data);
        put(args.workspace, kernel.workspace_bytes ? borrowed.workspace.get() : nullptr);
        void* const counters = kernel.counter_bytes ? borrowed.counters.get() : nullptr;
        put(one.counters, counters);
        if (!moved) return;
        one.placed = false;
        one.moved = true;
        backend->finish_args(kernel, args, counters);
        one.placed = true;
    }
    /// Enqueues a call that is not captured: one that comes often on a stream by a form for that
    /// stream alone, so that no other one waits for it. Where there is none, or another stream has
    /// taken it, twice as many calls come before the next.
    static void enqueue(intptr_t stream, Known& one, OtherStreams& others) {
        if (one.repeated_on != stream) {
            one.in_a_row = one.stream == stream ? one.in_a_row + 1 : 1;
            one.stream = stream;
            std::unique_ptr<Repeated> made;
            if (one.in_a_row >= one.often) {
                made = others.repeat_on(stream, one.bound);
                one.in_a_row = 0;
                one.often *= 2;
            }
            if (!made) return others.run_on(stream, one.bound);
            one.repeated = std::move(made);
            one.repeated_on = stream;
            one.moved = false;
        }
        one.stream = stream;
        one.repeated->run(one.bound, one.moved);
        one.moved = false;
    }
    [[nodiscard]] Owners run_on(intptr_t stream, Known& one, Tensors inputs, Tensors outputs,
                                SyncPolicy sync, OtherStreams& others);
};

/// Where the desk of a device is, which is made at its first call. Never destroyed, since a device
/// may be gone before static destructors run.
struct DeskHolder {
    const Device device;
    DeskHolder* const next;
    std::mutex lock;  // of the desk as well
    std::shared_ptr<Desk> desk = {};

    Desk& open() {
        if (!desk) {
            auto made = std::make_shared<Desk>();
            made->backend = open_backend(device);
            desk = std::move(made);
        }
        return *desk;
    }
};

struct DeskHolders {
    const int born = forks();
    std::atomic<DeskHolder*> first{nullptr};
};

/// A forked child has its own, since a thread of the parent may have held the locks.
DeskHolders& desk_holders() {
    static std::atomic<DeskHolders*> all{nullptr};
    DeskHolders* found = all.load();
    while (!found || found->born != forks()) {
        auto* const fresh = new DeskHolders;
        if (all.compare_exchange_strong(found, fresh)) return *fresh;
        delete fresh;
    }
    return *found;
}

DeskHolder& holder_of(Device device) {
    DeskHolders& all = desk_holders();
    for (DeskHolder* first = all.first.load();;) {
        for (DeskHolder* one = first; one; one = one->next)
            if (one->device == device) return *one;
        auto made = std::make_unique<DeskHolder>(device, first);
        if (all.first.compare_exchange_strong(first, made.get())) return *made.release();
    }
}

/// A checked call with its kernel, whose block has no addresses yet.
[[gnu::noinline]] Desk::Known checked(Backend& backend, const LoweredDef& def, Tensors inputs,
                                      Tensors outputs, const Attrs& attrs) {
    LoweredOp op = check_call(def, inputs, outputs, attrs);
    Desk::Known result{&def, attrs, {}, {}, inputs.size(), {}};
    for (const Tensors tensors : {inputs, outputs})
        for (const TensorRef& tensor : tensors) {
            result.operands.push_back(placed_view(def, tensor));
            if (const auto extent = extent_of(tensor); extent && !is_empty(tensor.shape))
                result.extents.push_back(*extent);
        }
    if (result.extents.size() != result.operands.size()) result.extents.clear();
    if (def.gemm && !attrs.find("order")) set_product_order(op, backend.target().tensor_cores());
    BoundOp& bound = result.bound;
    bound.kernel = backend.target().select(op);
    bound.op = def.name;
    bound.code = backend.load({bound.kernel})[0];
    const std::vector<void*> nowhere(result.operands.size(), nullptr);
    bound.args = pack_args(op, *bound.kernel, nowhere, nullptr);
    return result;
}

/// What of a checked call is left to check in an equal one.
void check_addresses(const Desk::Known& known, Tensors inputs, Tensors outputs) {
    const Call call{*known.def, inputs, outputs};
    call.check_devices();
    if (!known.is_apart(inputs, outputs)) call.check_memory();
}

/// A call on its caller's stream. Later calls, or the host, wait for one that borrows memory, that
/// holds operands or that has an event: it comes behind all such calls before it, and is marked.
/// Returns what need no longer be held.
Owners Desk::run_on(intptr_t stream, Known& one, Tensors inputs, Tensors outputs, SyncPolicy sync,
                    OtherStreams& others) {
    constexpr size_t kMostHolding = 64;
    const Kernel& kernel = *one.bound.kernel;
    const bool borrows = kernel.workspace_bytes || kernel.counter_bytes;
    if (const uint64_t capture = others.capture_of(stream)) {
        if (sync != SyncPolicy::none)
            raise(ErrorKind::unsupported, one.def->name, ": the stream is captured, and sync is \"",
                  sync == SyncPolicy::full ? "full" : "event",
                  "\"; need sync=\"none\", as nothing runs that could be waited for");
        place(one, inputs, outputs,
              borrows ? lend_captured(kernel, others, capture, stream) : scratch);
        others.run_on(stream, one.bound);
        return {};
    }
    // A framework that works on this stream gives memory back in its order.
    const auto kept = [&](const TensorRef& tensor) {
        return sync != SyncPolicy::full && tensor.owner && tensor.stream != stream;
    };
    const auto add = [&](Tensors tensors) {
        for (const TensorRef& tensor : tensors)
            if (kept(tensor)) held.push_back(tensor.owner);
    };
    const size_t before = held.size();
    const bool waited_for = borrows || sync == SyncPolicy::event ||
                            std::any_of(inputs.begin(), inputs.end(), kept) ||
                            std::any_of(outputs.begin(), outputs.end(), kept);
    place(one, inputs, outputs, lend(kernel, &others));
    if (waited_for) others.follow(stream);
    // Nothing may throw after the first written byte, and what runs must have its operands.
    add(inputs);
    add(outputs);
    enqueue(stream, one, others);
    if (waited_for) others.mark(stream);
    holding += held.size() > before;
    const bool free = holding >= kMostHolding || (sync == SyncPolicy::full && holding);
    return free ? synchronize() : Owners();
}

}  // namespace

void op_call(const LoweredDef& def, Tensors inputs, Tensors outputs, const Attrs& attrs,
             SyncPolicy sync, std::optional<intptr_t> stream) {
    refuse_in_host_call();
    const FloatMode mode;
    if (outputs.empty()) check_call(def, inputs, outputs, attrs);  // refuses
    DeskHolder& holder = holder_of(outputs[0].device);
    constexpr intptr_t legacy = 1;
    const intptr_t on = stream.value_or(0) ? *stream : legacy;
    Owners done;
    std::shared_ptr<Desk> held;  // beyond its lock
    {
        const std::lock_guard guard(holder.lock);
        if (!holder.desk) check_call(def, inputs, outputs, attrs);  // before a device is opened
        Desk& at = holder.open();
        OtherStreams* const others = at.backend->other_streams();
        const uint64_t key = Desk::key_of(def, inputs, outputs);
        Desk::Known* known = at.find(key, def, inputs, outputs, attrs);
        if (known)
            check_addresses(*known, inputs, outputs);
        else
            known = &at.keep(key, checked(*at.backend, def, inputs, outputs, attrs));
        if (!others) {
            at.place(*known, inputs, outputs, at.lend(*known->bound.kernel, nullptr));
            return at.backend->run(known->bound);
        }
        if (sync == SyncPolicy::full) held = holder.desk;
        done = at.run_on(on, *known, inputs, outputs, sync, *others);
    }
    if (held) held->backend->other_streams()->wait_for(on);  // others may call meanwhile
}

void eager_synchronize(Device device) {
    Owners done;
    DeskHolder& holder = holder_of(device);
    const std::lock_guard guard(holder.lock);
    done = holder.open().synchronize();
}

void eager_close() {
    for (DeskHolder* holder = desk_holders().first.load(); holder; holder = holder->next) {
        Owners done;
        std::shared_ptr<Desk> closing;
        const std::lock_guard guard(holder->lock);
        closing.swap(holder->desk);
        if (!closing) continue;
        done = closing->synchronize();
        if (closing->captured.empty()) continue;
        new auto(std::move(closing->captured));  // for good, as its graphs may be launched yet
        new auto(std::move(closing->outgrown));
    }
}

uint64_t workspace_bytes(const LoweredDef& def, Tensors inputs, const Attrs& attrs, Device device) {
    const FloatMode mode;
    check_arity(def.inputs, inputs.size(), def.name);
    std::vector<TensorRef> in(inputs.begin(), inputs.end()), out;
    for (size_t i = 0; i < in.size(); i++) {
        check_sizes(def, operand_name(def.inputs, static_cast<int>(i)), in[i]);
        in[i].strides = contiguous_strides(in[i].shape);
    }
    Attrs complete = call_attrs(def, attrs, in);
    for (const Type& type : infer_lowered(def, types_of(in), complete)) {
        TensorRef ref;
        ref.dtype = type.dtype;
        ref.shape = type.shape;
        ref.strides = contiguous_strides(type.shape);
        check_sizes(def, "the result", ref);
        out.push_back(std::move(ref));
    }
    DeskHolder& holder = holder_of(device);
    const std::lock_guard guard(holder.lock);
    const Desk& at = holder.open();
    LoweredOp op = as_op(def, in, out, std::move(complete));
    if (def.gemm && !attrs.find("order"))
        set_product_order(op, at.backend->target().tensor_cores());
    return at.backend->target().select(op)->workspace_bytes;
}

}  // namespace aicf
