#!/bin/sh
# Installs this tree on a GPU machine without network, checks it there and times it.
# Results go to $OUT, or to bench/results.
set -u
cd "$(dirname "$0")/.."
out=${OUT:-bench/results}
mkdir -p "$out"
status=0
python3 -m pip install -q --no-build-isolation --no-deps . || exit 1
python3 -m aicf verify --device cuda >"$out/verify.txt" 2>&1 || status=1
tail -n 25 "$out/verify.txt"
python3 bench/gpu.py --out "$out" --peers || status=1
python3 bench/peers_gpu.py --out "$out" || status=1
python3 -m pytest -m gpu -q ${PYTEST_OPTIONS:-} tests >"$out/pytest.txt" 2>&1 || status=1
tail -n 60 "$out/pytest.txt"
exit $status
