#include "kernels/cuda/replay_times.h"

#include <algorithm>
#include <map>

namespace aicf::cuda {

namespace {

const std::string& symbol_of(const BoundOp& op) {
    return static_cast<const CudaKernel&>(*op.kernel).code->symbol;
}

/// The records of one time by op: each the first op of its symbol whose waits have their records.
/// Null for an op that launches nothing. False where they are not the ops'.
bool take_by_symbol(const std::vector<BoundOp>& ops, const KernelRecord* begin,
                    const KernelRecord* end, std::vector<const KernelRecord*>& taken) {
    taken.assign(ops.size(), nullptr);
    const auto ready = [&](size_t op) {
        return std::all_of(ops[op].waits.begin(), ops[op].waits.end(), [&](int wait) {
            const auto at = static_cast<size_t>(wait);
            return taken[at] || !ops[at].code;
        });
    };
    for (const KernelRecord* record = begin; record != end; record++) {
        size_t op = 0;
        while (op < ops.size() &&
               (taken[op] || !ops[op].code || symbol_of(ops[op]) != record->symbol || !ready(op)))
            op++;
        if (op == ops.size()) return false;
        taken[op] = record;
    }
    return true;
}

/// Whether the records, in the order of the nodes, are the ops in theirs, one time after another.
bool in_node_order(const std::vector<const BoundOp*>& launched,
                   const std::vector<KernelRecord>& records) {
    for (size_t i = 0; i < records.size(); i++)
        if (records[i].symbol != symbol_of(*launched[i % launched.size()])) return false;
    return true;
}

}  // namespace

std::vector<std::vector<Timed::Span>> spans_of(const std::vector<BoundOp>& ops, int times,
                                               std::vector<KernelRecord> records, double start) {
    std::vector<const BoundOp*> launched;
    for (const BoundOp& op : ops)
        if (op.code) launched.push_back(&op);
    const auto runs = static_cast<size_t>(times);
    if (records.size() != launched.size() * runs) return {};
    std::sort(records.begin(), records.end(),
              [](const auto& a, const auto& b) { return a.node < b.node; });
    const bool by_node = in_node_order(launched, records);
    if (!by_node)
        std::stable_sort(records.begin(), records.end(),
                         [](const auto& a, const auto& b) { return a.begin < b.begin; });
    // The two clocks agree to microseconds, but no kernel ran before its launch.
    double early = 0;
    for (const KernelRecord& record : records) early = std::max(early, start - record.begin);
    std::vector<std::vector<Timed::Span>> spans(runs);
    std::vector<const KernelRecord*> taken;
    for (size_t run = 0; run < runs; run++) {
        const KernelRecord* first = records.data() + run * launched.size();
        if (by_node) {
            taken.clear();
            for (const BoundOp& op : ops) taken.push_back(op.code ? first++ : nullptr);
        } else if (!take_by_symbol(ops, first, first + launched.size(), taken)) {
            return {};
        }
        double last = start;
        for (size_t op = 0; op < ops.size(); op++) {
            double begin = start;
            for (int wait : ops[op].waits)
                begin = std::max(begin, spans[run][static_cast<size_t>(wait)].end);
            double end = begin;
            if (taken[op]) {
                begin = std::max(begin, taken[op]->begin + early);
                end = std::max(begin, taken[op]->end + early);
            }
            spans[run].push_back({begin, end});
            last = std::max(last, end);
        }
        start = last;  // the next time begins when all of this one has ended
    }
    return spans;
}

ReplayTimes::ReplayTimes(std::shared_ptr<Stream> stream, const std::vector<BoundOp>& ops,
                         CapturedGraph* captured)
    : stream_(std::move(stream)), ops_(ops), captured_(captured) {
    if (!captured_) problem_ = "a step that is not captured has no replays";
}

std::vector<Timed::Run> ReplayTimes::run(int64_t times) {
    std::vector<Run> runs;
    if (captured_ && !events_ && traced(times, runs)) return runs;
    if (!events_) events_ = std::make_unique<TimedGraph>(stream_, ops_);
    return events_->run(times);
}

bool ReplayTimes::traced(int64_t times, std::vector<Run>& runs) {
    const auto [exec, count] = captured_->launched(times);
    const auto kernels = static_cast<size_t>(
        std::count_if(ops_.begin(), ops_.end(), [](const BoundOp& op) { return op.code; }));
    if (kernels == 0) return false;
    std::vector<KernelRecord> records;
    Span whole = {};
    const bool done = trace_kernels(
        [&] {
            whole.begin = steady_seconds();
            captured_->launch(times);
            stream_->synchronize();
            whole.end = steady_seconds();
            return kernels * static_cast<size_t>(count);
        },
        records);
    if (!done) {
        problem_ = tracing_problem();
        return false;
    }
    // Other threads may have launched others meanwhile; this launch is the last of its graph.
    const uint32_t graph = traced_id(exec);
    const bool known = graph && std::any_of(records.begin(), records.end(),
                                            [&](const auto& r) { return r.graph == graph; });
    std::map<uint32_t, std::vector<KernelRecord>> launches;
    for (KernelRecord& record : records)
        if (!known || record.graph == graph)
            launches[record.correlation].push_back(std::move(record));
    std::vector<std::vector<Span>> spans;
    for (auto launch = launches.rbegin(); launch != launches.rend() && spans.empty(); ++launch)
        spans = spans_of(ops_, count, std::move(launch->second), whole.begin);
    if (spans.empty()) {
        problem_ = cat("CUPTI told of ", records.size(), " kernels in ", launches.size(),
                       " launches, none of them ", count, " times the ", kernels, " of this step");
        give_up_tracing(problem_);
    }
    double begin = whole.begin;
    for (int i = 0; i < count; i++) {
        Run& run = runs.emplace_back(Run{{begin, whole.end}, {}, "cupti"});
        if (spans.empty()) continue;
        run.ops = std::move(spans[static_cast<size_t>(i)]);
        run.whole.end = begin;
        for (Span& span : run.ops) {
            run.whole.end = std::max(run.whole.end, span.end);
            span = {span.begin - begin, span.end - begin};
        }
        begin = run.whole.end;
    }
    return true;
}

}  // namespace aicf::cuda
