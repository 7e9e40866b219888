// Step: how it is compiled, called, read and written.
#include "core/run/step.h"

#include <bit>
#include <chrono>
#include <deque>
#include <iterator>

#include "bindings/array.h"
#include "core/compile/trial.h"

namespace aicf {

namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPiece = std::chrono::milliseconds(10);

/// Runs `times` steps in pieces of 10 to 20 ms, of which at most two are enqueued, so that Ctrl-C
/// is noticed and little is left to run then. `run` gets how many steps and until when it may go
/// on, as steps may take longer than those that `piece` was measured with; it returns how many it
/// ran. What is no number of times goes through as it is.
template <class Run>
void in_pieces(Step& step, std::atomic<int64_t>& piece, int64_t times, Run run) {
    for (bool last = false; !last;) {
        const int64_t size = piece, now = std::min(size, times);
        const auto start = times > 1 ? Clock::now() : Clock::time_point();  // not for a single one
        int64_t ran = 0;
        {
            GilRelease release;
            ran = run(now, start + 5 * kPiece);
            last = ran >= times;
            if (!last) step.pace();
        }
        times -= ran;
        if (!last) {
            const auto took = Clock::now() - start;
            const auto less = std::bit_floor(static_cast<uint64_t>(ran)) / 2;  // a power of two
            if (took < kPiece) piece = 2 * size;
            if (took > 2 * kPiece) piece = std::max<int64_t>(static_cast<int64_t>(less), 1);
        }
        if (PyErr_CheckSignals()) nb::raise_python_error();
    }
}

uint64_t replay(Step& step, int64_t times, std::optional<intptr_t> stream) {
    uint64_t done = 0;
    in_pieces(step, step.piece, times, [&](int64_t n, Clock::time_point) {
        done = step.replay(n, stream);
        return n;
    });
    return done;
}

int64_t times_of(const char* doing, nb::handle n) {
    int64_t times = 0;
    if (!nb::try_cast(n, times))
        raise(ErrorKind::graph, doing, ": n is ", repr_of(n), "; need an int in [0, 2**63)");
    return times;
}

/// Steps of a profile: as float64 of each its begin and end, then those of its launches, NaN where
/// they are not known; the clocks that were used, in their order; why no better one was.
nb::tuple times_of(nb::object outputs, const Step::Profiled& profiled, size_t launches) {
    std::vector<double> numbers;
    std::vector<std::string> clocks;
    for (const Timed::Run& run : profiled.runs) {
        numbers.insert(numbers.end(), {run.whole.begin, run.whole.end});
        for (const Timed::Span& span : run.ops)
            numbers.insert(numbers.end(), {span.begin, span.end});
        if (run.ops.empty()) numbers.insert(numbers.end(), 2 * launches, std::nan(""));
        if (std::find(clocks.begin(), clocks.end(), run.clock) == clocks.end())
            clocks.push_back(run.clock);
    }
    return nb::make_tuple(std::move(outputs),
                          nb::bytes(numbers.data(), numbers.size() * sizeof(double)), clocks,
                          profiled.problem);
}

/// `step`: one that may have been compiled to cast what it is given.
TensorRef import_for(const Value& value, nb::handle object, nb::handle step = {}) {
    const std::string where =
        cat(value.role == Role::input ? "step: input \"" : "set: \"", value.name, "\"");
    TensorRef tensor = tensor_or_numbers(object, value.type.dtype, where.c_str());
    if (step.is_valid() && tensor.dtype != value.type.dtype && tensor.device.kind == Device::cpu &&
        nb::cast<bool>(step.attr("_cast"))) {
        const nb::object whole =
            step.attr("_casted")(value.name, to_numpy(tensor, true), dtype_name(value.type.dtype));
        return tensor_or_numbers(whole, value.type.dtype, where.c_str());
    }
    if (tensor.device.kind != Device::cpu && !nb::isinstance<Array>(object))
        tensor.stream = producer_stream(object, tensor.device);
    return tensor;
}

/// The inputs of a call, and its stream= (of a run also sync=) where no input has that name.
struct CallArguments {
    Step::Inputs inputs;
    std::optional<intptr_t> stream;
    SyncPolicy sync = SyncPolicy::none;
};

/// Inputs by position stand for those of the graph in the order in which it made them.
CallArguments import_inputs(nb::handle self, const char* doing, const nb::args& placed,
                            const nb::kwargs& given, bool syncs = false) {
    const Step& step = object_of<Step>(self);
    CallArguments result;
    result.inputs.reserve(placed.size() + given.size());
    if (placed.size()) {
        const std::vector<ValueId>& inputs = step.inputs();
        if (placed.size() > inputs.size()) {
            std::string names;
            for (const ValueId id : inputs)
                names += (names.empty() ? "" : ", ") + step.plan().values[id].name;
            throw nb::type_error(cat(doing, ": got ", placed.size(),
                                     " inputs by position, the graph has ", inputs.size(),
                                     names.empty() ? "" : ": " + names, "; need at most as many")
                                     .c_str());
        }
        for (size_t i = 0; i < placed.size(); i++) {
            const Value& value = step.plan().values[inputs[i]];
            result.inputs.emplace_back(value.id, import_for(value, nb::handle(placed[i]), self));
        }
    }
    for (auto [key, object] : given) {
        const std::string name = name_of(key);
        if (name == "stream" && !step.find_leaf(name)) {
            result.stream = stream_of(object);
            continue;
        }
        if (syncs && name == "sync" && !step.find_leaf(name)) {
            std::string policy;
            if (!text_of(object, policy)) policy = repr_of(object);
            result.sync = parse_sync(policy, "run");
            continue;
        }
        const Value& value = step.leaf(name);
        for (size_t i = 0; i < placed.size(); i++)
            if (result.inputs[i].first == value.id)
                throw nb::type_error(cat(doing, ": input \"", name, "\" stands at position ", i,
                                         " and is given by name; need it once")
                                         .c_str());
        result.inputs.emplace_back(value.id, import_for(value, object, self));
    }
    return result;
}

/// How many steps inputs with a leading axis of steps are for.
int64_t steps_of(const Step& step, const Step::Inputs& stacked) {
    if (stacked.empty())
        raise(ErrorKind::graph, "run_many: no input is given; need one with a first axis of steps");
    const auto what = [&](const auto& pair) {
        return cat("\"", step.plan().values[pair.first].name, "\" is ",
                   type_string(pair.second.dtype, pair.second.shape));
    };
    for (const auto& pair : stacked) {
        Dims rest = pair.second.shape;
        if (rest.rank() > 0) rest.erase(0);
        const Type& type = step.plan().values[pair.first].type;
        if (pair.second.shape.rank() == 0 || !(rest == type.shape))
            raise(ErrorKind::shape, "run_many: ", what(pair), "; need ", to_string(type),
                  " behind a first axis of steps");
        if (pair.second.shape[0] != stacked[0].second.shape[0])
            raise(ErrorKind::shape, "run_many: ", what(stacked[0]), ", ", what(pair),
                  "; need as many steps of each");
    }
    return stacked[0].second.shape[0];
}

/// The outputs of what `run` runs; made before it, so that nothing fails when it is done.
template <class Run>
nb::typed<nb::object, Outputs> after(nb::handle self, Step& step, Run run) {
    nb::object outputs = nb::cast(outputs_of(self, step, 0));
    nb::inst_ptr<Outputs>(outputs)->generation = run();
    return nb::typed<nb::object, Outputs>(std::move(outputs));
}

/// One call or run with each launch timed.
nb::tuple profiled(nb::handle self, const nb::args& rest, const nb::kwargs& kwargs, bool eager) {
    Step& step = object_of<Step>(self);
    const CallArguments arguments =
        import_inputs(self, eager ? "run" : "step", rest, kwargs, eager);
    Step::Profiled found;
    auto outputs = after(self, step, [&] {
        GilRelease release;
        found = step.profile(1, &arguments.inputs, arguments.stream, eager);
        return step.generation();
    });
    return times_of(nb::cast(std::move(outputs)), found, step.plan().ops.size());
}

/// The bytes of an object that has some, while this lives.
class HeldBytes {
  public:
    explicit HeldBytes(nb::handle object) {
        if (PyObject_GetBuffer(object.ptr(), &buffer_, PyBUF_SIMPLE)) nb::raise_python_error();
    }
    ~HeldBytes() { PyBuffer_Release(&buffer_); }
    HeldBytes(const HeldBytes&) = delete;
    HeldBytes& operator=(const HeldBytes&) = delete;
    std::string_view bytes() const {
        return {static_cast<const char*>(buffer_.buf), static_cast<size_t>(buffer_.len)};
    }

  private:
    Py_buffer buffer_;
};

/// What a value is to hold: a tensor, or the bytes of one in C order, which `held` keeps.
TensorRef tensor_or_bytes(const Value& value, nb::handle object, std::deque<HeldBytes>& held) {
    if (!nb::isinstance<nb::bytes>(object) && !PyMemoryView_Check(object.ptr()))
        return import_for(value, object);
    const std::string_view bytes = held.emplace_back(object).bytes();
    const auto size = static_cast<size_t>(byte_count(value.type));
    if (bytes.size() != size)
        raise(ErrorKind::shape, "\"", value.name, "\": got ", bytes.size(), " bytes; need ", size);
    TensorRef tensor;
    tensor.dtype = value.type.dtype;
    tensor.shape = value.type.shape;
    tensor.strides = contiguous_strides(tensor.shape);
    tensor.data = const_cast<char*>(bytes.data());  // it is read alone
    return tensor;
}

/// Replayed steps with each launch timed.
nb::tuple profiled_replay(nb::handle self, nb::handle n, nb::handle stream) {
    Step& step = object_of<Step>(self);
    const int64_t times = times_of("profile", n);
    const std::optional<intptr_t> ordered = stream_of(stream);
    Step::Profiled all;
    auto outputs = after(self, step, [&] {
        std::atomic<int64_t> piece = 1;  // of its own: launches that are timed take longer
        in_pieces(step, piece, times, [&](int64_t now, Clock::time_point) {
            auto some = step.profile(now, nullptr, ordered);
            std::move(some.runs.begin(), some.runs.end(), std::back_inserter(all.runs));
            all.problem = std::move(some.problem);
            return now;
        });
        return step.generation();
    });
    return times_of(nb::cast(std::move(outputs)), all, step.plan().ops.size());
}

}  // namespace

void refuse_rest(const char* function, const char* takes, const nb::args& rest,
                 const nb::kwargs& named) {
    const size_t count = rest.size() + (named.is_valid() ? named.size() : 0);
    if (count)
        throw nb::type_error(
            cat(function, ": got ", count, " arguments too many; it takes ", takes).c_str());
}

/// A graph as a device would run it, before kernels are chosen.
struct Trials {
    Trials(Graph graph, Device device, const CompileOptions& options)
        : backend(open_backend(device)),
          lowered(rewrite(std::move(graph), backend->target(), options)) {}
    std::unique_ptr<Backend> backend;
    Lowered lowered;
    Kernels built;  // held, that trials need not compile them again
};

std::optional<intptr_t> stream_of(nb::handle object) {
    if (object.is_none()) return std::nullopt;
    nb::object number = nb::borrow(object);
    if (nb::hasattr(object, "__cuda_stream__"))  // (version, handle)
        number = nb::object(object.attr("__cuda_stream__")()[1]);
    else if (nb::hasattr(object, "cuda_stream"))
        number = object.attr("cuda_stream");
    else if (nb::hasattr(object, "ptr"))
        number = object.attr("ptr");
    intptr_t stream = -1;
    if (nb::isinstance<nb::bool_>(number) || !nb::try_cast(number, stream) || stream < 0)
        raise(ErrorKind::graph, "stream: got ", repr_of(object),
              "; need a CUDA stream of any framework or its handle as an int >= 0");
    return stream;
}

namespace {

void bind_trials(nb::module_& m) {
    nb::class_<Trials>(m, "Trials", "The ops of a graph for which a device has several kernels.")
        .def(
            "__init__",
            [](Trials* self, const Graph& graph, const std::string& device,
               const std::vector<std::string>& passes, const std::string& math, int tensor_cores) {
                CompileOptions options;
                options.passes = passes;
                options.math = math;
                options.tensor_cores = tensor_cores;
                Graph copy = graph;
                const GilRelease release;
                const Signals signals;
                new (self) Trials(std::move(copy), parse_device(device), options);
            },
            nb::arg("graph"), nb::arg("device"), nb::arg("passes"), nb::arg("math"),
            nb::arg("tensor_cores"))
        .def_prop_ro(
            "choices",
            [](const Trials& trials) {
                nb::list all;
                for (const Choice& one : choices_of(trials.lowered, trials.backend->target()))
                    all.append(nb::make_tuple(one.signature, one.title, one.names, one.ops,
                                              one.cost.flops, one.operand_bytes));
                return all;
            },
            nb::sig("def choices(self) -> list[tuple[str, str, list[str], int, float, int]]"),
            "Signature, title, kernels, number of ops, operations and bytes of operands.")
        .def(
            "build",
            [](Trials& trials, const Wanted& wanted) {
                const GilRelease release;
                const Signals signals;
                Kernels built = build_trials(trials.lowered, wanted, trials.backend->target());
                trials.built.insert(trials.built.end(), built.begin(), built.end());
            },
            nb::arg("wanted"), "Compiles kernels, by (signature, name), side by side.")
        .def(
            "foreign",
            [](const Trials& trials, const std::string& wanted, int most) {
                const GilRelease release;
                const Signals signals;
                for (const LoweredOp& op : trials.lowered.ops)
                    if (!op.loop && signature(op) == wanted)
                        return trials.backend->foreign_candidates(op, most);
                return std::vector<std::string>();
            },
            nb::arg("signature"), nb::arg("most"),
            "Candidates by the device's library, for an op that is a launch of its own; at most so "
            "many.");
}

/// A step from a trial, a graph or a file, and its file.
void bind_making(nb::class_<Step>& type) {
    type.def(
            "__init__",
            [](Step* self, const Trials& trials, const std::string& signature,
               const std::string& kernel, int copies, const std::vector<Step*>& share) {
                const GilRelease release;
                const Signals signals;
                Step::Options options;
                options.device = trials.backend->device();
                options.share.assign(share.begin(), share.end());
                new (self) Step(
                    trial_plan(trials.lowered, signature, kernel, copies, trials.backend->target()),
                    options);
            },
            nb::arg("trials"), nb::arg("signature"), nb::arg("kernel"), nb::arg("copies"),
            nb::arg("share"))
        .def(
            "__init__",
            [](Step* self, const Graph& graph, const std::string& device, uint64_t seed,
               bool capture, const std::vector<Step*>& share,
               const std::vector<std::string>& passes, const std::string& math, bool deterministic,
               const Candidates& candidates, int tensor_cores, bool check_indices,
               const std::vector<std::pair<Step*, Step::Names>>& held) {
                Step::Options options;
                options.device = parse_device(device);
                options.seed = seed;
                options.capture = capture;
                options.share.assign(share.begin(), share.end());
                for (const auto& [other, names] : held) options.share.emplace_back(other, names);
                options.compile.passes = passes;
                options.compile.math = math;
                options.compile.deterministic = deterministic;
                options.compile.candidates = candidates;
                options.compile.tensor_cores = tensor_cores;
                options.compile.check_indices = check_indices;
                Graph copy = graph;  // what other threads append is not for this step
                const GilRelease release;
                const Signals signals;
                new (self) Step(std::move(copy), options);
            },
            nb::arg("graph"), nb::arg("device"), nb::arg("seed"), nb::arg("capture"),
            nb::arg("share"), nb::arg("passes"), nb::arg("math"), nb::arg("deterministic"),
            nb::arg("candidates"), nb::arg("tensor_cores"), nb::arg("check_indices"),
            nb::arg("held"))
        .def(
            "__init__",
            [](Step* self, nb::handle file, const std::string& where, nb::handle device,
               bool capture, const std::vector<Step*>& share) {
                const HeldBytes held(file);  // which nobody changes or frees meanwhile
                Step::Options options;
                options.capture = capture;
                options.share.assign(share.begin(), share.end());
                const bool given = !device.is_none();
                if (given) options.device = parse_device(nb::cast<std::string>(device));
                const GilRelease release;
                const Signals signals;
                const Executable executable(held.bytes(), where);
                if (!given) options.device.kind = executable.plan().device;
                new (self) Step(executable, options);
            },
            nb::arg("file"), nb::arg("where"), nb::arg("device").none(), nb::arg("capture"),
            nb::arg("share"))
        .def(
            "_export",
            [](Step& s, bool state) {
                std::vector<FilePiece> pieces;
                {
                    const GilRelease release;
                    pieces = s.write_file(state);
                }
                nb::list all;
                for (FilePiece& piece : pieces) {
                    all.append(nb::bytes(piece.data, piece.bytes));
                    piece = {};  // two copies of one piece at most
                }
                return all;
            },
            nb::arg("state"));
}

/// What runs it.
void bind_calls(nb::class_<Step>& type) {
    type.def(
            "__call__",
            [](nb::handle self, const nb::args& rest, const nb::kwargs& kwargs) {
                Step& step = object_of<Step>(self);
                const CallArguments arguments = import_inputs(self, "step", rest, kwargs);
                return after(self, step, [&] {
                    GilRelease release;
                    return step.call(arguments.inputs, arguments.stream);
                });
            },
            nb::sig("def __call__(self, *inputs: object, **named: object) -> Outputs"),
            "Copies the inputs in, by name or in the order in which the graph made them, runs one "
            "step and returns its outputs. stream= (of any "
            "framework, or its handle): the step comes after what the stream holds, and what the "
            "stream gets later comes after the step; nothing waits on the host.")
        .def(
            "_call_one",
            [](nb::handle self, const nb::tuple& inputs, nb::handle output, bool copy) {
                Step& step = object_of<Step>(self);
                const CallArguments arguments =
                    import_inputs(self, "step", nb::borrow<nb::args>(inputs), nb::kwargs());
                Array one = output_array(outputs_of(self, step, 0), output);
                {
                    GilRelease release;
                    one.generation = step.call(arguments.inputs, {});
                }
                return copy ? kept(one) : one;
            },
            nb::arg("inputs"), nb::arg("output"), nb::arg("copy"),
            "The output of a call with these inputs, without the Outputs that hold it.")
        .def(
            "replay",
            [](nb::handle self, nb::handle n, nb::handle stream) {
                Step& step = object_of<Step>(self);
                const int64_t times = times_of("replay", n);
                const std::optional<intptr_t> ordered = stream_of(stream);
                return after(self, step, [&] { return replay(step, times, ordered); });
            },
            nb::arg("n").none() = 1, nb::arg("stream").none() = nb::none(),
            nb::sig("def replay(self, n: int = 1, stream: object | None = None) -> Outputs"),
            "Runs the captured step n times on the inputs as they stand. On a GPU it returns while "
            "the last of them run, up to 40 ms of work; Ctrl-C ends it between two steps. stream: "
            "as in a call, but for that wait.")
        .def(
            "run_many",
            [](nb::handle self, const nb::args& rest, const nb::kwargs& kwargs) {
                Step& step = object_of<Step>(self);
                const CallArguments arguments = import_inputs(self, "run_many", rest, kwargs);
                const int64_t steps = steps_of(step, arguments.inputs);
                return after(self, step, [&] {
                    uint64_t done = step.generation();
                    int64_t next = 0;
                    in_pieces(step, step.piece, steps, [&](int64_t n, Clock::time_point until) {
                        const auto [ran, now] =
                            step.call_many(arguments.inputs, next, n, until, arguments.stream);
                        done = now;
                        next += ran;
                        return ran;
                    });
                    return done;
                });
            },
            nb::sig("def run_many(self, *inputs: object, **named: object) -> Outputs"),
            "Calls the step once for each element of a leading axis, which every input given has; "
            "outputs are those of the last step, of one that keeps steps those it keeps. The same "
            "bits as the calls; Ctrl-C ends it between two steps.")
        .def(
            "run",
            [](nb::handle self, const nb::args& rest, const nb::kwargs& kwargs) {
                Step& step = object_of<Step>(self);
                const CallArguments arguments = import_inputs(self, "run", rest, kwargs, true);
                return after(self, step, [&] {
                    GilRelease release;
                    return step.run(arguments.inputs, arguments.stream, arguments.sync);
                });
            },
            nb::sig("def run(self, *inputs: object, **named: object) -> Outputs"),
            "Runs the same ops one by one, without the captured form.");
}

/// Its captured form, device and outputs.
void bind_control(nb::class_<Step>& type) {
    type.def("capture",
             bare<Step>("capture",
                        [](Step& s) {
                            const GilRelease release;
                            s.capture();
                        }),
             nb::sig("def capture(self) -> None"), "Builds the replayable form again.")
        .def("reset",
             bare<Step>("reset",
                        [](Step& s) {
                            const GilRelease release;
                            s.reset();
                        }),
             nb::sig("def reset(self) -> None"), "Drops the captured form; state stays.")
        .def("synchronize",
             bare<Step>("synchronize",
                        [](Step& s) {
                            const GilRelease release;
                            s.synchronize();
                        }),
             nb::sig("def synchronize(self) -> None"), "Waits until all enqueued work is done.")
        .def_prop_ro(
            "captured",
            [](const Step& s) {
                const GilRelease release;
                return s.captured();
            },
            "Whether a captured form is held.")
        .def_prop_ro(
            "device", [](const Step& s) { return to_string(s.device()); },
            "\"cpu\" or \"cuda:<index>\".")
        .def_prop_ro(
            "outputs",
            [](nb::handle self) {
                Step& step = object_of<Step>(self);
                return outputs_of(self, step, step.generation());
            },
            "The outputs of the last step.")
        .def_prop_ro("steps_run", &Step::generation, "Steps run so far.");
}

/// What runs it with each launch timed.
void bind_profiles(nb::class_<Step>& type) {
    type.def("_profile", &profiled_replay,
             nb::sig("def _profile(self, n: object = 1, stream: object = None) -> "
                     "tuple[Outputs, bytes, list[str], str]"),
             nb::arg("n").none() = 1, nb::arg("stream").none() = nb::none(),
             "As replay, with each launch timed: the outputs, the times, what timed them and why "
             "nothing better did.")
        .def(
            "_profile_call",
            [](nb::handle self, const nb::args& rest, const nb::kwargs& kwargs) {
                return profiled(self, rest, kwargs, false);
            },
            nb::sig("def _profile_call(self, *inputs: object, **named: object) -> "
                    "tuple[Outputs, bytes, list[str], str]"),
            "As a call; what it returns as _profile.")
        .def(
            "_profile_run",
            [](nb::handle self, const nb::args& rest, const nb::kwargs& kwargs) {
                return profiled(self, rest, kwargs, true);
            },
            nb::sig("def _profile_run(self, *inputs: object, **named: object) -> "
                    "tuple[Outputs, bytes, list[str], str]"),
            "As run; what it returns as _profile.");
}

/// What its plan says.
void bind_dumps(nb::class_<Step>& type) {
    type.def("_launch_sizes",
             [](const Step& s) {
                 std::vector<std::vector<int64_t>> sizes;
                 for (const LaunchSize& size : s.launch_sizes())
                     sizes.push_back({size.blocks, size.threads, size.shared});
                 return sizes;
             })
        .def("_trace",
             [](const Step& s) {
                 const GilRelease release;
                 std::vector<std::pair<std::string, std::string>> list;
                 for (const Captured::Launch& launch : s.trace())
                     list.emplace_back(launch.op, launch.kernel);
                 return list;
             })
        .def("_stages", &Step::stages)
        .def("_plan_text", [](const Step& s) { return to_text(s.plan()); })
        .def("_plan_json", [](const Step& s) { return to_json(s.plan()); })
        .def(
            "_plan_report",
            [](const Step& s, const std::map<size_t, int64_t>& scratch) {
                if (scratch.empty()) return verify(s.plan());
                Plan plan = s.plan();
                for (const auto& [op, at] : scratch) plan.ops.at(op).scratch = at;
                return verify(plan);
            },
            nb::arg("scratch") = std::map<size_t, int64_t>(),
            "What the check says of the plan, with the scratch of ops, by number, moved.")
        .def("_leaves", [](const Step& s, const std::string& role) {
            std::vector<std::string> names;
            for (const Value& value : s.plan().values)
                if (role_name(value.role) == role) names.push_back(value.name);
            return names;
        });
}

/// Its leaves: read, written and bound.
void bind_contents(nb::class_<Step>& type) {
    type.def("_array",
             [](nb::handle self, const std::string& name) {
                 Array result;
                 result.owner = nb::borrow(self);
                 result.step = &object_of<Step>(self);
                 result.leaf = result.step->leaf(name).id;
                 return result;
             })
        .def("_storage",
             [](const Step& s, const std::string& name) {
                 return reinterpret_cast<uintptr_t>(s.storage(s.leaf(name).id));
             })
        .def(
            "_write",
            [](Step& s, const std::string& name, nb::handle object) {
                const Value& value = s.leaf(name);
                const TensorRef tensor = import_for(value, object);
                GilRelease release;
                s.write({{value.id, tensor}});
            },
            nb::arg("name"), nb::arg("tensor").none())
        .def("_read_all",
             [](Step& s, const std::vector<std::string>& names) {
                 std::vector<TensorRef> copies;
                 {
                     GilRelease release;
                     std::vector<ValueId> ids;
                     for (const std::string& name : names) ids.push_back(s.leaf(name).id);
                     copies = s.read(ids);
                 }
                 std::vector<Array> arrays;
                 for (const TensorRef& copy : copies) arrays.push_back(array_of(copy));
                 return arrays;
             })
        .def("_write_all",
             [](Step& s, const nb::dict& values) {
                 Step::Inputs writes;
                 std::deque<HeldBytes> held;
                 for (auto [key, object] : values) {
                     const Value& value = s.leaf(name_of(key));
                     writes.emplace_back(value.id, tensor_or_bytes(value, object, held));
                 }
                 GilRelease release;
                 s.write(writes);
             })
        .def(
            "_bind",
            [](Step& s, const nb::dict& given) {
                Step::Inputs tensors;
                for (auto [key, object] : given) {
                    const std::string name = name_of(key);
                    const ValueId id = s.bindable(name);
                    if (is_step_output(object))
                        raise(ErrorKind::graph, "bind: \"", name,
                              "\" got an output of a step, which is read as a copy; need a tensor");
                    ImportOptions options;
                    options.allow_copy = false;
                    tensors.emplace_back(
                        id, import_tensor(object, cat("bind: \"", name, "\"").c_str(), options));
                }
                GilRelease release;
                s.bind(tensors);
            },
            nb::arg("tensors"));
}

}  // namespace

void bind_step(nb::module_& m) {
    watch_exit(forget_types);
    bind_trials(m);
    nb::class_<Step> type(m, "Step", "A compiled step; aicf.Step is its public face.");
    bind_making(type);
    bind_calls(type);
    bind_control(type);
    bind_profiles(type);
    bind_dumps(type);
    bind_contents(type);
}

}  // namespace aicf
