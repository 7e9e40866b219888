// What the kernels of reductions and row ops are given of rows (rows.cuh): how their elements are
// made, and who takes them.
#pragma once

#include "kernels/cuda/codegen.h"

namespace aicf::cuda {

/// Who takes a row of n elements (rows.cuh); `narrow`: some of 16 bits lie side by side in memory.
struct Team {
    std::string type;  // HolderOf, CopierOf, TellerOf, StreamerOf or KeeperOf<...>
    int lanes = 32, warps = 1;
    int64_t results = 0;  // in the block's shared memory, of type `a`
    int side = 0;         // elements that a thread has side by side where registers hold the row
    int64_t kept = 0;     // bytes of shared memory that the block keeps rows in, all else included
    int resident = 1;     // such blocks of a processor
    int blocks = 1;       // that share a row
    int slots = 0;        // of rows that are copied ahead, to shared memory
    bool tells = false;   // its warps tell each other what a row comes to while they are at another

    /// The warps that so many rows keep busy, where a row is one's at most.
    int64_t units(int64_t rows) const { return (rows * lanes + 31) / 32; }
};
Team team_of(const std::string& a, int64_t n, int64_t rows, const Limits& limits,
             bool narrow = false);
/// The elements of row r in terms of type `a`, as @_Make<name>{block}(r): `value`, once some steps
/// are done that read some inputs. Of input k the row begins at @_In<k>::at(r) and its elements lie
/// as @_Elem<k> says. `beside`: also several elements as they are stored, as across<V> loads and
/// open<V> makes them, those of rows side by side (@_In) or of one row (@_Elem). `own`: the input
/// whose elements lie elsewhere by then, as filled_rows.cuh has them; -1: none. `reads`: further
/// arguments of RowOf.
std::string row_struct(const LoweredOp& op, const BlockLayout& layout, const std::string& name,
                       const std::vector<int>& read, const std::vector<size_t>& steps,
                       const std::string& value, const std::string& a,
                       const std::string& beside = "", int own = -1, const char* reads = "");
/// A function `name`<V>(block, a..., v): V elements in terms of type `a`, `value` once some steps
/// are done, from those of the inputs that they read. `twos`: two to an instruction where they have
/// 16 bits, as `name`<V, Out>, Out what two become (twos.cuh).
std::string terms_text(const std::string& name, const LoweredOp& op, const BlockLayout& layout,
                       const std::vector<int>& read, const std::vector<size_t>& steps,
                       const std::string& value, const std::string& a, bool twos = false);
/// Whether steps have a form of two elements at a time.
bool in_twos(const LoweredOp& op, const std::vector<size_t>& steps);
/// Of how many elements that are read at once all rows along an axis of stride 1 begin at one
/// place; 0: of none.
int64_t alike(const View& view);

}  // namespace aicf::cuda
