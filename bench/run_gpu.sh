#!/bin/sh
# Installs this tree on a GPU machine without network, checks it there and times it.
# Results go to $OUT, or to bench/results. PARTS says what runs: any of "verify bench test sanitize".
set -u
cd "$(dirname "$0")/.."
out=${OUT:-bench/results}
mkdir -p "$out"
status=0
python3 -m pip install -q --no-build-isolation --no-deps . || exit 1
parts=${PARTS:-verify bench test sanitize}
wanted() { case " $parts " in *" $1 "*) ;; *) return 1 ;; esac; }
if wanted verify; then
    python3 -m aicf verify --device cuda >"$out/verify.txt" 2>&1 || status=1
    tail -n 25 "$out/verify.txt"
fi
if wanted bench; then
    python3 bench/gpu.py --out "$out" --peers || status=1
    python3 bench/peers_gpu.py --out "$out" || status=1
fi
if wanted test; then
    python3 -m pytest -m gpu -q ${PYTEST_OPTIONS:-} ${TESTS:-tests} >"$out/pytest.txt" 2>&1 || status=1
    tail -n 60 "$out/pytest.txt"
fi
slice="sizes0 and (integers or special) or training or states or joins or optimizers or softmax"
if wanted sanitize; then  # products, reductions, fused kernels, whole steps
    for tool in memcheck racecheck; do
        compute-sanitizer --tool $tool --target-processes all --error-exitcode 9 \
            python3 -m pytest -m gpu -q ${PYTEST_OPTIONS:-} tests/test_cuda_gemm.py \
            tests/test_verify.py tests/test_passes.py tests/test_math_modes.py \
            tests/test_row_fusion.py -k "${SLICE:-$slice}" \
            >"$out/$tool.txt" 2>&1 || status=1
        grep -hE "ERROR SUMMARY|RACECHECK SUMMARY| passed| failed" "$out/$tool.txt" | sort | uniq -c
    done
fi
exit $status
