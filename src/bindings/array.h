// What a step hands out: arrays and outputs by name.
#pragma once

#include "bindings/bindings.h"
#include "core/run/step.h"

namespace aicf {

/// A tensor of a step: an output of one generation, a live param or state, or (no step) a copy.
struct Array {
    nb::object owner;  // the Python Step, kept alive
    Step* step = nullptr;
    ValueId leaf = kNone;
    std::string output;
    uint64_t generation = 0;
    TensorRef tensor;  // of a copy; with a step, one on its device

    bool apart() const { return !step || tensor.data; }

    Type type() const {
        if (apart()) return {tensor.dtype, tensor.shape};
        if (leaf != kNone) return step->plan().values[leaf].type;
        const Lowered::Output& out = step->output(output);
        Type type = step->plan().values[out.value].type;
        if (out.keep > 1)
            type.shape[0] = std::min<int64_t>(static_cast<int64_t>(generation), out.keep);
        return type;
    }
    /// A copy in host memory, made now.
    TensorRef read() const {
        if (!step) return tensor;
        if (apart()) {
            GilRelease release;
            return step->read(tensor);
        }
        if (leaf != kNone) {
            GilRelease release;
            return step->read(leaf);
        }
        return fresh([&] { return step->read_output(step->output(output)); });
    }
    /// A copy on the step's device, in the order of its work.
    TensorRef snapshot() const {
        if (apart()) {
            GilRelease release;
            return step->snapshot(tensor);
        }
        if (leaf == kNone) return fresh([&] { return step->snapshot(step->output(output)); });
        GilRelease release;
        return step->snapshot({"", leaf});
    }

  private:
    /// What `read` reads, unless another step has run meanwhile.
    template <class Read>
    TensorRef fresh(Read read) const {
        if (generation == 0)
            raise(ErrorKind::graph, "output \"", output,
                  "\": no step has run yet; give the step its inputs first");
        TensorRef copy;
        uint64_t before = 0, after = 0;
        {
            GilRelease release;
            before = step->generation();
            copy = read();
            after = step->generation();
        }
        if (before != generation || after != generation)
            raise(ErrorKind::stale_output, "output \"", output, "\": it belongs to step ",
                  generation, ", the step has run ", after,
                  " times since; read or copy() it before the next run, use output(keep=K), or "
                  "bind storage of your own");
        return copy;
    }
};

struct Outputs {
    nb::object owner;
    Step* step;
    uint64_t generation;
};

Array array_of(const TensorRef& tensor);
Outputs outputs_of(nb::handle self, Step& step, uint64_t generation);
Array output_array(const Outputs& o, nb::handle name);
/// A copy on the step's device, in the order of its work.
Array kept(const Array& a);

}  // namespace aicf
