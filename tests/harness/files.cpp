// Files of compiled steps, damaged or not: what loads must run without a fault.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <map>

#include "harness.h"

namespace aicf::harness {

namespace {

constexpr double kMostWork = 1e7;

std::string fate_of(const std::vector<char>& bytes) {
    // A block of its own, so that a read behind it is seen.
    const std::unique_ptr<char[]> block(new char[bytes.size()]);
    std::copy(bytes.begin(), bytes.end(), block.get());
    try {
        const Executable file({block.get(), bytes.size()}, "file");
        if (file.plan().device != Device::cpu) return "other device";
        Step step(file, {});
        const Cost cost = step.plan().cost();
        if (cost.flops > kMostWork || cost.bytes > 100 * kMostWork) return "loaded";
        step.run({});
        step.replay(2);
        for (const Lowered::Output& output : step.plan().outputs) step.read_output(output);
        return "run";
    } catch (const Error& error) {
        expect(error.kind() == ErrorKind::format || error.kind() == ErrorKind::out_of_memory,
               "a file met ", error.what());
        return error.kind() == ErrorKind::format ? "FormatError" : "OutOfMemory";
    } catch (const std::bad_alloc&) {
        return "OutOfMemory";
    }
}

}  // namespace

/// `pack`: files one after the other, each behind its size in 8 bytes.
uint64_t run_files(const char* pack) {
    std::ifstream in(pack, std::ios::binary);
    std::map<std::string, int> tally;
    int number = 0;
    for (uint64_t size = 0; in.read(reinterpret_cast<char*>(&size), sizeof size); number++) {
        std::vector<char> bytes(size);
        in.read(bytes.data(), static_cast<std::streamsize>(size));
        expect(in.good(), "the pack ends inside file ", number);
        std::fprintf(stderr, "file %d\n", number);
        tally[fate_of(bytes)]++;
    }
    Sum sum;
    for (const auto& [fate, count] : tally) {
        std::fprintf(stderr, "%s %d\n", fate.c_str(), count);
        sum.add(static_cast<uint64_t>(count));
    }
    return sum.value();
}

}  // namespace aicf::harness
