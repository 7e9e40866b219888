"""Results of pytest-benchmark as one small JSON file: --benchmark-json=bench/results/name.json."""

import datetime
import importlib.metadata
import os
import platform

import aicf
from aicf import _core


def versions():
    found = {"aicf": aicf.__version__}
    for name in ("numpy", "torch", "jax"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def pytest_benchmark_generate_json(config, benchmarks, include_data, machine_info, commit_info):
    rows = []
    for bench in benchmarks:
        stats = bench.stats
        row = {"group": bench.group, "row": bench.params.get("peer", bench.name)}
        row |= bench.extra_info
        row |= {"median_s": stats.median, "iqr_s": stats.iqr, "rounds": stats.rounds}
        rows.append(row)
    return {
        "command": "python -m pytest bench",
        "date": datetime.date.today().isoformat(),
        "cpu": machine_info.get("cpu", {}).get("brand_raw", platform.processor()),
        "cores": os.cpu_count(),
        "kernels": _core.cpu_isa(),
        "versions": versions(),
        "rows": rows,
    }
