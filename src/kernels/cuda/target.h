// What a GPU can run, known without one: kernels as text, how they are launched, their code.
#pragma once

#include "core/compile/target.h"
#include "kernels/cuda/kernel_cache.h"

namespace aicf::cuda {

constexpr uint32_t kMapAlign = 16;  // of what a tensor map shows, in bytes

struct LibraryProduct;  // cublaslt.h

struct CudaKernel : Kernel {
    std::shared_ptr<KernelCode> code;  // null: nothing to do, or what a library does
    std::shared_ptr<const LibraryProduct> product;
    unsigned blocks = 1, threads = 1, shared = 0;
    uint32_t block_bytes = 0;
    int64_t nanoseconds = 0;  // that it takes by the model, its launch included
    uint32_t tail_at = 0;     // of a sequence: byte of its block where its tail begins, else 0
    std::vector<int> fed;     // of a sequence: inputs of which each slice has its own
    bool brings_fed = false;  // to shared memory, once
    std::vector<TensorMap> maps;
    std::vector<int> early;  // inputs that it may read before what it waits for is done
    bool asks = false;       // it reads early, but for what its block says is late (kLateAt)
};

class CudaTarget : public Target {
  public:
    CudaTarget(Limits limits, std::string arch) : limits_(limits), arch_(std::move(arch)) {}
    Device::Kind kind() const override { return Device::cuda; }
    int lanes() const override { return 16; }
    /// Kernels run side by side anyhow: above, whoever waits for an op should not wait for others
    /// too. From 4 Mi elements on a launch of its own costs an update nothing, and making the
    /// numbers again in every block costs it 15 % (Adam on an H200). Products of 10^9 operations
    /// have better kernels without updates behind them (nets of 512 at 1024 rows on an H100).
    GroupLimits group_limits() const override {
        return {256 << 10, 1 << 20, 1 << 22, 1 << 22, 8e8};
    }
    /// Measured on an H200: a plain edge of a graph, and what all processors move through L2.
    std::optional<Pace> pace() const override { return Pace{0.93, 23e3 * limits_.processors}; }
    double microseconds(const LoweredOp& op) const override;
    int tensor_cores() const override;
    std::vector<std::string> candidates(const LoweredOp& op) const override;
    bool takes_foreign(const LoweredOp& op) const override;
    bool fits(const LoweredOp& region) const override;
    bool sums_beside(const LoweredOp& group) const override {
        return cuda::sums_beside(group, limits_);
    }
    bool fits_chain(const LoweredOp& op) const override { return chain_fits(op, limits_); }
    bool adds_wide(const LoweredOp& op) const override {
        return gemm_adds_wide(op, limits_) && !fits_chain(op);
    }
    bool leaves_room(const LoweredOp& op) const override { return gemm_leaves_room(op, limits_); }
    bool takes_update(const LoweredOp& op) const override {
        return anchor(op).gemm ? gemm_takes_update(op, limits_) : is_reduction(anchor(op));
    }
    bool updates_alike(const LoweredOp& op) const override {
        return gemm_updates_alike(op, limits_);
    }
    bool takes_beside(const LoweredOp& op) const override { return gemm_in_group(op, limits_); }
    bool joins_cuts(const LoweredOp& op) const override { return gemm_joins_cuts(op, limits_); }
    bool spreads(const LoweredOp& op) const override { return spreads_rows(op, limits_); }
    bool fits_block(const LoweredOp& op) const override { return block_fits(op, limits_); }
    std::optional<size_t> block_bytes(const LoweredOp& op) const override;
    std::shared_ptr<const Kernel> select(const LoweredOp& op) const override;
    void build(const Kernels& kernels) const override;
    std::string arch() const override { return arch_; }
    int processors() const override { return limits_.processors; }
    void write(const Kernels& kernels, std::string& records, std::string& code) const override;
    Kernels read(const std::vector<const LoweredOp*>& ops, std::string_view records,
                 std::string_view code, const std::string& where) const override;

  private:
    int64_t nanoseconds(const LoweredOp& op) const;
    std::shared_ptr<CudaKernel> foreign_kernel(const LoweredOp& op) const;

    const Limits limits_;
    const std::string arch_;
};

/// Gives a kernel what follows from its op and its maps: its block, how operands are aligned.
void complete(CudaKernel& kernel, const LoweredOp& op, const Limits& limits);
/// The codes of kernels that have something to do.
Codes codes_of(const Kernels& kernels);

}  // namespace aicf::cuda
