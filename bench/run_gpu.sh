#!/bin/sh
# Installs this tree on a GPU machine without network, checks it there and times it.
# Results go to $OUT, or to bench/results. PARTS says what runs: any of "verify bench builds compile
# test sanitize"; "builds" times this build beside that of the sources in the folder BASE.
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
if wanted builds; then
    other=$(mktemp -d)
    python3 -m pip install -q --no-build-isolation --no-deps --target "$other/site" "$BASE" || exit 1
    printf '#!/bin/sh\nPYTHONPATH=%s exec python3 "$@"\n' "$other/site" >"$other/python"
    chmod +x "$other/python"
    python3 bench/builds.py "$other/python" --device cuda --rounds 7 --json "$out/builds.json" || status=1
fi
if wanted compile; then
    python3 bench/compile_cuda.py --json "$out/compile.json" || status=1
fi
if wanted test; then
    python3 -m pytest -m gpu -q -p no:benchmark ${PYTEST_OPTIONS:-} ${TESTS:-tests} >"$out/pytest.txt" 2>&1 || status=1
    tail -n 60 "$out/pytest.txt"
fi
if wanted sanitize; then  # graphs and products of every kind
    python3 tests/slice_gpu.py --tools ${TOOLS:-racecheck memcheck synccheck} --out "$out/sanitizer" \
        --sanitizer "${SANITIZER:-compute-sanitizer}" --seconds "${SLICE_SECONDS:-1800}" || status=1
fi
exit $status
