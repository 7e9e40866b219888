#include "kernels/cuda/replay_times.h"

#include <algorithm>
#include <map>
#include <set>

namespace aicf::cuda {

namespace {

constexpr size_t kMostKernels = 1 << 14;  // that are launched before their records are read

using Records = ReplayTimes::Records;

const std::string& symbol_of(const BoundOp& op) {
    return static_cast<const CudaKernel&>(*op.kernel).code->symbol;
}

/// The records of one time by op: each the first op of its symbol whose waits have their records.
/// Empty where they are not the ops'.
Records by_symbol(const std::vector<BoundOp>& ops, const KernelRecord* const* first, size_t count) {
    Records taken(ops.size(), nullptr);
    const auto ready = [&](size_t op) {
        return std::all_of(ops[op].waits.begin(), ops[op].waits.end(), [&](int wait) {
            const auto at = static_cast<size_t>(wait);
            return taken[at] || !ops[at].code;
        });
    };
    for (size_t i = 0; i < count; i++) {
        size_t op = 0;
        while (op < ops.size() && (taken[op] || !ops[op].code ||
                                   symbol_of(ops[op]) != *first[i]->symbol || !ready(op)))
            op++;
        if (op == ops.size()) return {};
        taken[op] = first[i];
    }
    return taken;
}

/// By time and op the records of a launch of a graph in which the ops are `times` times; null for
/// an op that launches nothing. Empty where they are not exactly these.
std::vector<Records> match(const std::vector<BoundOp>& ops, int times, Records records) {
    std::vector<const BoundOp*> launched;
    for (const BoundOp& op : ops)
        if (op.code) launched.push_back(&op);
    const size_t count = launched.size();
    if (records.size() != count * static_cast<size_t>(times)) return {};
    std::sort(records.begin(), records.end(),
              [](const auto* a, const auto* b) { return a->node < b->node; });
    bool by_node = true;
    for (size_t i = 0; i < records.size(); i++)
        by_node &= *records[i]->symbol == symbol_of(*launched[i % count]);
    if (!by_node)
        std::stable_sort(records.begin(), records.end(),
                         [](const auto* a, const auto* b) { return a->begin < b->begin; });
    std::vector<Records> runs;
    for (size_t first = 0; first < records.size(); first += count) {
        const KernelRecord* const* next = records.data() + first;
        Records taken;
        if (by_node) {
            for (const BoundOp& op : ops) taken.push_back(op.code ? *next++ : nullptr);
        } else {
            taken = by_symbol(ops, next, count);
        }
        if (taken.empty()) return {};
        runs.push_back(std::move(taken));
    }
    return runs;
}

/// From when to when each op ran in a run that began at `start`, on a clock that is `early`. An op
/// begins no earlier than what it waits for has ended: before that it gets ready.
std::vector<Timed::Span> spans_of(const std::vector<BoundOp>& ops, const Records& taken,
                                  double start, double early) {
    std::vector<Timed::Span> spans;
    for (size_t op = 0; op < ops.size(); op++) {
        double begin = start;
        for (int wait : ops[op].waits)
            begin = std::max(begin, spans[static_cast<size_t>(wait)].end);
        double end = begin;
        if (taken[op]) {
            begin = std::max(begin, taken[op]->begin + early);
            end = std::max(begin, taken[op]->end + early);
        }
        spans.push_back({begin, end});
    }
    return spans;
}

}  // namespace

ReplayTimes::ReplayTimes(std::shared_ptr<Stream> stream, const std::vector<BoundOp>& ops,
                         CapturedGraph* captured)
    : stream_(std::move(stream)), ops_(ops), captured_(captured) {
    if (!captured_) problem_ = "it traces replays of a captured step alone";
    for (const BoundOp& op : ops)
        if (static_cast<const CudaKernel&>(*op.kernel).product && captured_) {
            captured_ = nullptr;
            problem_ = "how many kernels a product by cublasLt is, is not known";
        }
}

std::vector<Timed::Run> ReplayTimes::run(int64_t times) {
    std::vector<Run> runs;
    if (captured_ && !events_ && traced(times, runs)) return runs;
    if (!events_) events_ = std::make_unique<TimedGraph>(stream_, ops_);
    return events_->run(times);
}

bool ReplayTimes::traced(int64_t times, std::vector<Run>& runs) {
    const auto kernels = static_cast<size_t>(
        std::count_if(ops_.begin(), ops_.end(), [](const BoundOp& op) { return op.code; }));
    if (kernels == 0) return false;
    std::vector<std::pair<CUgraphExec, int>> launches;
    int64_t count = 0;
    Span whole = {};
    std::vector<KernelRecord> records;
    const bool done = trace_kernels(
        [&] {
            whole.begin = steady_seconds();
            while (count < times && static_cast<size_t>(count) * kernels < kMostKernels) {
                const int64_t left = captured_->loops() ? 1 : times - count;
                const auto launch = captured_->launched(left);
                try {
                    captured_->launch_nodes(left);
                } catch (...) {
                    if (count == 0) throw;
                    break;  // what was launched counts; the next one meets it again
                }
                launches.push_back(launch);
                count += launch.second;
            }
            stream_->synchronize();
            whole.end = steady_seconds();
            return kernels * static_cast<size_t>(count);
        },
        records);
    if (!done) {
        problem_ = tracing_problem();
        return false;
    }
    const std::vector<Records> taken = matched(launches, records);
    if (taken.empty()) {
        problem_ = cat("CUPTI told of ", records.size(), " kernels, which are not ", count,
                       " times the ", kernels, " of this step");
        give_up_tracing(problem_);
        runs.assign(static_cast<size_t>(count), Run{whole, {}, "cupti"});
        return true;
    }
    // The two clocks agree to microseconds, but no kernel ran before its launch.
    double begin = whole.begin, early = 0;
    for (const KernelRecord* record : taken.front())
        if (record) early = std::max(early, begin - record->begin);
    for (const Records& run : taken) {
        Run& timed = runs.emplace_back(Run{{begin, begin}, {}, "cupti"});
        timed.ops = spans_of(ops_, run, begin, early);
        for (Span& span : timed.ops) {
            timed.whole.end = std::max(timed.whole.end, span.end);
            span = {span.begin - begin, span.end - begin};
        }
        begin = timed.whole.end;  // the next run begins when all of this one has ended
    }
    return true;
}

/// The records of each run, or none. Other threads may have launched others meanwhile, before too:
/// the launches are looked for from the last on.
std::vector<ReplayTimes::Records> ReplayTimes::matched(
    const std::vector<std::pair<CUgraphExec, int>>& launches,
    const std::vector<KernelRecord>& records) const {
    std::map<uint32_t, Records> groups;  // by launch
    std::set<uint32_t> graphs;
    for (const KernelRecord& record : records) {
        groups[record.correlation].push_back(&record);
        graphs.insert(record.graph);
    }
    std::vector<std::vector<Records>> found;
    auto group = groups.rbegin();
    for (auto launch = launches.rbegin(); launch != launches.rend(); ++launch) {
        const uint32_t id = traced_id(launch->first);
        const bool known = graphs.contains(id);
        std::vector<Records> runs;
        for (; group != groups.rend() && runs.empty(); ++group)
            if (!known || group->second.front()->graph == id)
                runs = match(ops_, launch->second, std::move(group->second));
        if (runs.empty()) return {};
        found.push_back(std::move(runs));
    }
    std::vector<Records> all;
    for (auto runs = found.rbegin(); runs != found.rend(); ++runs)
        std::move(runs->begin(), runs->end(), std::back_inserter(all));
    return all;
}

}  // namespace aicf::cuda
