// Products in the orders of tensor cores of abi.h: their steps in integers, of operands of 16 bits,
// of tf32 and of limbs. Included once per instruction set; see isa.cpp. No standard-library
// templates here.

namespace aicf::cpu::AICF_ISA {
namespace mm {

AICF_HD scalar::MmaTerm mma_term(Half x) { return scalar::mma_half(x.bits); }
AICF_HD scalar::MmaTerm mma_term(Brain x) { return scalar::mma_bfloat(x.bits); }
AICF_HD scalar::MmaTerm mma_term(AsTf32 x) {
    return scalar::mma_tf32(scalar::bits(scalar::f32_to_tf32(x.x)));
}
AICF_HD scalar::MmaTerm mma_term(AsHalf x) { return scalar::mma_half(scalar::f32_to_half(x.x)); }
AICF_HD scalar::MmaTerm mma_term(AsBrain x) {
    return scalar::mma_bfloat(scalar::f32_to_bfloat(x.x));
}

constexpr int64_t kStepTile = 16, kStepTerms = 512;  // a tile of C, and of k at a time

// Lines of a tile, `steps` whole steps of terms each; what is past k is +0.
template <class S>
void decode(const S* s, int64_t step, int64_t k_step, int64_t lines, int64_t k, int64_t padded,
            scalar::MmaTerm* to) {
    for (int64_t x = 0; x < lines; ++x)
        for (int64_t p = 0; p < padded; ++p)
            to[x * kStepTerms + p] =
                p < k ? mma_term(s[x * step + p * k_step]) : scalar::MmaTerm{0, scalar::kMmaNever};
}

// product() in the order mma16(cut), of tf32 mma8(cut).
template <class S, class Store>
void steps_of(const S* a, int64_t a_row, int64_t a_col, const S* b, int64_t b_row, int64_t b_col,
              int64_t m, int64_t n, int64_t k, int64_t cut, void* workspace, const Store& put) {
    constexpr int kDepth = kSame<S, AsTf32> ? 8 : 16;
    auto* const as = static_cast<scalar::MmaTerm*>(workspace);
    auto* const bs = as + kStepTile * kStepTerms;
    for (int64_t j0 = 0; j0 < n; j0 += kStepTile) {
        const int64_t nb = min(kStepTile, n - j0);
        for (int64_t i0 = 0; i0 < m; i0 += kStepTile) {
            const int64_t mb = min(kStepTile, m - i0);
            float total[kStepTile * kStepTile] = {};
            for (int64_t c0 = 0; c0 < k; c0 += cut) {
                const int64_t end = c0 + min(cut, k - c0);
                float acc[kStepTile * kStepTile] = {};
                for (int64_t p0 = c0; p0 < end; p0 += kStepTerms) {
                    const int64_t kb = min(kStepTerms, end - p0);
                    const int64_t padded = ceil_div(kb, kDepth) * kDepth;
                    decode(a + i0 * a_row + p0 * a_col, a_row, a_col, mb, kb, padded, as);
                    decode(b + j0 * b_col + p0 * b_row, b_col, b_row, nb, kb, padded, bs);
                    for (int64_t i = 0; i < mb; ++i)
                        for (int64_t j = 0; j < nb; ++j) {
                            float sum = acc[i * kStepTile + j];
                            for (int64_t p = 0; p < padded; p += kDepth)
                                sum = scalar::mma_step<kDepth>(sum, as + i * kStepTerms + p,
                                                               bs + j * kStepTerms + p);
                            acc[i * kStepTile + j] = sum;
                        }
                }
                for (int64_t e = 0; e < kStepTile * kStepTile; ++e)
                    total[e] = c0 == 0 ? acc[e] : total[e] + acc[e];
            }
            for (int64_t i = 0; i < mb; ++i)
                for (int64_t j = 0; j < nb; ++j) put(i0 + i, j0 + j, total[i * kStepTile + j]);
        }
    }
}

// Lines of a tile, a piece of k each, by limbs; what is past k is +0.
inline void decode_limbs(const AsLimbs* s, int64_t step, int64_t k_step, int64_t lines, int64_t k,
                         int64_t padded, scalar::MmaTerm* to) {
    for (int64_t x = 0; x < lines; ++x)
        for (int64_t p = 0; p < padded; ++p) {
            const scalar::Limbs limbs =
                scalar::f32_to_limbs(p < k ? s[x * step + p * k_step].x : 0.0f);
            for (int limb = 0; limb < 3; ++limb)
                to[(limb * kStepTile + x) * kLimbTerms + p] = scalar::mma_bfloat(limbs.at[limb]);
        }
}

// product() in the order limbs(kLimbTerms).
template <class Store>
void limbs_of(const AsLimbs* a, int64_t a_row, int64_t a_col, const AsLimbs* b, int64_t b_row,
              int64_t b_col, int64_t m, int64_t n, int64_t k, void* workspace, const Store& put) {
    constexpr int kDepth = 16;
    static_assert(3 * kLimbTerms <= kStepTerms);
    auto* const as = static_cast<scalar::MmaTerm*>(workspace);
    auto* const bs = as + kStepTile * kStepTerms;
    const auto line = [](const scalar::MmaTerm* of, int limb, int64_t x) {
        return of + (limb * kStepTile + x) * kLimbTerms;
    };
    for (int64_t j0 = 0; j0 < n; j0 += kStepTile) {
        const int64_t nb = min(kStepTile, n - j0);
        for (int64_t i0 = 0; i0 < m; i0 += kStepTile) {
            const int64_t mb = min(kStepTile, m - i0);
            float total[kStepTile * kStepTile] = {};
            for (int64_t p0 = 0; p0 < k; p0 += kLimbTerms) {
                const int64_t kb = min(kLimbTerms, k - p0);
                const int64_t padded = ceil_div(kb, kDepth) * kDepth;
                decode_limbs(a + i0 * a_row + p0 * a_col, a_row, a_col, mb, kb, padded, as);
                decode_limbs(b + j0 * b_col + p0 * b_row, b_col, b_row, nb, kb, padded, bs);
                for (int64_t i = 0; i < mb; ++i)
                    for (int64_t j = 0; j < nb; ++j) {
                        float sum = 0;
                        for (const auto& pair : scalar::kLimbPairs)
                            for (int64_t p = 0; p < padded; p += kDepth)
                                sum = scalar::mma_step<kDepth>(sum, line(as, pair[0], i) + p,
                                                               line(bs, pair[1], j) + p);
                        float& all = total[i * kStepTile + j];
                        all = p0 == 0 ? sum : all + sum;
                    }
            }
            for (int64_t i = 0; i < mb; ++i)
                for (int64_t j = 0; j < nb; ++j) put(i0 + i, j0 + j, total[i * kStepTile + j]);
        }
    }
}

}  // namespace mm
}  // namespace aicf::cpu::AICF_ISA
