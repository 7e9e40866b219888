"""Writes the tables of figures on the pages, from what stands in bench/results.

    python bench/tables.py

A table lies between `<!-- table: NAME -->` and `<!-- end of table -->`; NAME is a function below.
"""

import json
from pathlib import Path
from statistics import geometric_mean

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("README.md", "docs/performance.md", "docs/experiments.md")

SMALL, LARGE = "8-8-8 b64 mse", "784-512-512-10 b128 ce"
NAMES = {
    f"{SMALL}, aicf call": "step 8-8-8, batch 64, MSE, Adam",
    f"{SMALL}, aicf replay(100)": "the same, `replay(100)`",
    f"{LARGE}, aicf call": "step 784-512-512-10, batch 128, cross-entropy, Adam",
    f"{LARGE}, aicf replay(100)": "the same, `replay(100)`",
    "character transformer": "step of `examples/char_transformer.py`",
    SMALL: "8-8-8, batch 64, MSE, Adam",
    LARGE: "784-512-512-10, batch 128, cross-entropy, Adam",
}


PEERS = {
    "numpy": "NumPy",
    "jax": "JAX",
    "jax jit": "JAX `jit`",
    "jax scan(100)": "JAX `scan` of 100",
    "torch": "PyTorch",
    "torch.compile": "`torch.compile`",
    "torch.compile whole step": "PyTorch, the whole step compiled",
    "torch fused": "PyTorch, fused",
    "OpenBLAS (numpy)": "OpenBLAS (NumPy)",
    "oneDNN (torch)": "oneDNN (PyTorch)",
    "MKL (torch)": "MKL (PyTorch)",
    "copy": "a copy of as many bytes",
    "aicf without": "aicf without the pass `rows`",
}


def load(name):
    return json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text())


def runs(name):
    """A file holds a run, or several."""
    found = load(name)
    return found if isinstance(found, list) else [found]


def short(number):
    return f"{number:.0f}" if number >= 100 else f"{number:.1f}"


def table(head, rows, sides="l"):
    """Words stand left, numbers right: `sides` has a letter a column, r where none."""
    rule = ["---:" if side == "r" else "---" for side in sides.ljust(len(head), "r")]
    lines = [head, rule, *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def source(run, rest=""):
    device = run.get("device") or f"{run['cpu']}, {run['cores']} cores, {run['kernels']} kernels"
    return f"{device}; {run['date']}; `{run['command']}`{rest}"


def median(row):
    return next(iter(row["us"].values()))  # ours stands first


def latest(name, sections, threads):
    """The row and the run of each case; of a case that a file holds twice, the later run's."""
    cases, used = {}, {}
    for run in runs(name):
        for row in run["rows"]:
            if row["section"] in sections and row["threads"] == threads:
                cases[row["case"]], used[row["case"]] = row, run
    return cases, used


def compared(name, sections, threads):
    """A row for each case and peer."""
    cases, used = latest(name, sections, threads)
    rows = []
    for case in sorted(cases, key=lambda case: sections.index(cases[case]["section"])):
        row = cases[case]
        what = (NAMES.get(case, case), short(median(row)))  # beside the first peer that is shown
        for peer, (middle, low, high) in row["ratio"].items():
            if peer == "aicf op_call":
                continue
            spread = f"{middle:.2f} [{low:.2f} .. {high:.2f}]"
            rows.append((*what, PEERS.get(peer, peer), spread))
            what = ("", "")
    said = sorted({source(run) for run in used.values()})
    lines = "\n".join(f"- {text}" for text in said)
    return f"{lines}\n\n" + table(("", "aicf, µs", "peer", "ratio"), rows, "lrlr")


STEPS, PIECES = ["small", "large", "transformer"], ["gemm", "pointwise", "sums", "rows", "adam"]


def steps_epyc():
    return compared("cpu", STEPS, 1)


def steps_epyc_2():
    return compared("cpu", STEPS, 2)


def steps_xeon():
    return compared("cpu_xeon", STEPS, 1)


def pieces_epyc():
    return compared("cpu", PIECES, 1)


def pieces_xeon():
    return compared("cpu_xeon", PIECES, 1)


def scaling():
    return compared("cpu", ["scaling"], 2)


def functions(run):
    rows = [
        (row["case"], short(median(row)), *(f"{m:.2f} [{a:.2f} .. {b:.2f}]" for m, a, b in ratios))
        for row in run["rows"]
        for ratios in [row["ratio"].values()]
    ]
    head = ("", "aicf, µs", "ratio, PyTorch", "ratio, `torch.compile`")
    note = f"; {run['note']}" if run["note"] else ""
    return source(run, note) + "\n\n" + table(head, rows)


def functions_epyc():
    return functions(load("functions"))


def functions_xeon():
    return functions(load("functions_xeon"))


def functions_gpu():
    return functions(load("functions_gpu"))


def gpu_rows():
    run = load("train_step_h200")
    return run, {(row["config"], row["row"]): row for row in run["rows"]}


def steps_h200():
    run, found = gpu_rows()
    names = dict.fromkeys(name for _, name in found)
    rows = [
        (
            name,
            *(
                f"{found[c, name]['us']:.1f} ± {found[c, name]['iqr_us']:.1f}"
                for c in (SMALL, LARGE)
            ),
        )
        for name in names
    ]
    return source(run) + "\n\n" + table(("µs a step", NAMES[SMALL], NAMES[LARGE]), rows)


def mixed_gpu():
    run = load("mixed_gpu")
    rows = [
        (row["config"], f"{row['ours_us']:.0f}", f"{row['torch_us']:.0f}", f"{row['ratio']:.2f}")
        for row in run["rows"]
    ]
    head = ("", "aicf, µs a step", "PyTorch, µs", "ratio")
    return source(run) + "\n\n" + table(head, rows)


def attention_gpu():
    return attention(load("attention_gpu"))


def attention_h100():
    return attention(load("attention_h100"))


def attention(run):
    peers = ("cuDNN", "flash", "deterministic")
    rows = [
        (
            f"heads of {row['head']}, {row['length']} positions, {row['pass']}",
            *(
                f"{row['tflop_s'][name]:.0f}" if name in row["tflop_s"] else "–"
                for name in ("aicf", "aicf mma.sync", *peers)
            ),
            *(f"{row['ratio'][name][0]:.2f}" if name in row["ratio"] else "–" for name in peers),
        )
        for row in sorted(run["rows"], key=lambda row: (row["head"], row["length"]))
    ]
    head = ("TFLOP/s", "aicf", "aicf by `mma.sync`", "cuDNN", "FlashAttention", "deterministic")
    head += ("ratio, cuDNN", "ratio, FlashAttention", "ratio, deterministic")
    note = f"; {run['note']}" if run.get("note") else ""
    return source(run, note) + "\n\n" + table(head, rows)


def gpt2_gpu():
    run = load("gpt2_gpu")
    rows = [
        (
            str(row["rows"]),
            *(f"{row['ms'][name]:.2f}" for name in ("aicf", "torch")),
            *(f"{row['tokens_per_s'][name] / 1e3:.0f}" for name in ("aicf", "torch")),
            f"{row['peak_bytes'] / 1e9:.2f}",
            f"{row['peer_peak_bytes'] / 1e9:.2f}",
        )
        for row in run["rows"]
    ]
    head = ("rows of 1024 tokens", "aicf, ms", "PyTorch, ms", "aicf, K tokens/s")
    head += ("PyTorch, K tokens/s", "aicf, peak GB", "PyTorch, peak GB")
    return source(run) + "\n\n" + table(head, rows)


def gpt2_losses_gpu():
    run = load("gpt2_losses_gpu")
    known = {"aicf": "aicf", "compiled": "PyTorch compiled", "op by op": "PyTorch op by op"}
    names = [name for name in known if name in run["rows"][0]["losses"][0]]
    rows = []
    for number, losses in enumerate(run["rows"][0]["losses"]):
        for count in (10, len(losses["float32"])):
            cells = []
            for name in names:
                pairs = zip(losses[name][:count], losses["float32"], strict=False)
                far = [abs(a - b) for a, b in pairs]
                cells.append(f"{sum(far) / count:.5f} ({max(far):.5f})")
            rows.append((str(number + 1), f"first {count}", *cells))
    head = ("tokens", "losses", *(known[name] for name in names))
    return source(run) + "\n\n" + table(head, rows)


def small_steps_gpu():
    run = load("small_steps_gpu")
    rows = []
    for row in run["rows"]:
        best = "block" if "block" in row["ops"] else "launches"

        def us(form, what, row=row):
            return f"{row[f'{form} {what}']['us']:.2f}" if f"{form} {what}" in row else "–"

        times = [us(form, what) for form in ("block", "launches") for what in ("one", "many")]
        rows.append(
            (row["net"], us("least", "one"), *times, us(best, "call"), us(best, "stack"))
        )  # fmt: skip
    counts = ("`replay(1)`", "`replay(1000)`")
    forms = (f"{form}, {count}" for form in ("one block", "launches") for count in counts)
    head = ("µs a step", f"an addition, {counts[0]}", *forms, "call", "`run_many`")
    return source(run) + "\n\n" + table(head, rows)


def update_epilogues_gpu():
    run = load("update_epilogues_gpu")
    rows = []
    for row in sorted(run["rows"], key=lambda row: row["us"]["without"] / row["us"]["with"]):
        us, launches = row["us"], row["launches"]
        net = f"{row['net']} b{row['rows']} {row['math']}"
        rows.append(
            (net, *(f"{us[form]:.1f} ({launches[form]})" for form in ("with", "without")),
             f"{us['without'] / us['with']:.2f}")
        )  # fmt: skip
    head = ("µs a step (launches)", "updates as epilogues", "updates apart", "ratio")
    return source(run) + "\n\n" + table(head, rows)


def sweep_steps_gpu():
    run = load("sweep_steps_gpu")
    rows = [
        (row["config"], *(f"{row[form]['us']:.1f}" for form in ("fp32", "tf32", "jax scan")),
         *(f"{row['ratio'][math]:.2f}" for math in ("fp32", "tf32")))
        for row in run["rows"]
    ]  # fmt: skip
    head = ("µs a step", "fp32", "tf32", "JAX `scan`", "ratio, fp32", "ratio, tf32")
    return source(run) + "\n\n" + table(head, rows)


def loops_h200():
    run = load("loops_h200")
    forms = ("block", "launches", "torch", "jax")
    rows = sorted(run["rows"], key=lambda row: row["torch"]["us"] / row["block"]["us"])
    rows = [
        (row["case"], *(f"{row[form]['us'] / row['turns']:.2f}" for form in forms)) for row in rows
    ]
    head = ("µs a time step", "aicf", "aicf, launches", "PyTorch (cuDNN)", "JAX `scan`")
    return source(run) + "\n\n" + table(head, rows)


def of_copy(run, row):
    """The time of a copy of each pass's bytes over that of the row; of an older file, which has no
    such times, the row's rate over that of a copy of 2 GB."""
    if "copy_us" in row:
        return row["copy_us"] / row["us"]["aicf"]
    return row["tb_s"]["aicf"] / run["copy_tb_s"]


def rows(run):
    peer = "torch.compile"
    more = {"issue_us": "of issue", "near_us": "in L2"}
    more = {of: title for of, title in more.items() if all(of in row for row in run["rows"])}
    rows = [
        (
            row["case"].replace("|", "\\|"),
            *(short(row["us"][name]) for name in ("aicf", peer)),
            f"{row['tb_s']['aicf']:.2f}",
            f"{of_copy(run, row):.2f}",
            *(f"{row[of] / row['us']['aicf']:.2f}" for of in more),
            f"{row['ratio'][peer][0]:.2f}",
        )
        for row in run["rows"]
    ]
    head = ("", "aicf, µs", "PyTorch, µs", "aicf, TB/s", "of a copy")
    head += (*more.values(), "ratio")
    about = f"; a copy of 2 GB moves {run['copy_tb_s']:.2f} TB/s"
    return source(run, about) + "\n\n" + table(head, rows)


def rows_gpu():
    return rows(load("rows_gpu"))


def rows_h200():
    return rows(load("rows_h200"))


def chains_gpu():
    return rows(load("chains_gpu"))


def products_gpu():
    run = load("products_gpu")
    rows = [
        (row["case"], f"{row['us']:.1f}", *(f"{row[of]:.0f}" for of in ("tflops", "torch_tflops")),
         f"{middle:.2f}")
        for row in sorted(run["rows"], key=lambda row: row["ratio"][0])
        for middle in row["ratio"][:1]
    ]  # fmt: skip
    head = ("M×N×K, layouts, math", "aicf, µs", "aicf, TFLOP/s", "PyTorch, TFLOP/s", "ratio")
    return source(run, f"; {run['note']}") + "\n\n" + table(head, rows)


def compile_h200():
    run = load("compile_h200")
    rows = [
        (
            name,
            one["cold"]["launches"],
            *(f"{one[kind]['compile']:.3f}" for kind in ("cold", "warm")),
        )
        for name, one in run["models"].items()
    ]
    head = ("", "launches", "nothing on disk, s", "kernels on disk, s")
    return (
        source(run, f"; {run['cores']} cores, medians of {run['rounds']}")
        + "\n\n"
        + table(head, rows)
    )


def memory_h200():
    run = load("bandwidth_h200")
    names = {
        "scale": "a·x",
        "sum": "sum of all",
        "sin_chain": "sin(a·x + b)",
        "adam": "Adam",
        "dot": "dot product",
    }
    rows = [(name, f"{run[f'{key}_tb_s']:.2f}") for key, name in names.items()]
    about = f"{run['device']}; {run['date']}; {run['command']}"
    return about + "\n\n" + table(("", "TB/s"), rows)


def search(name):
    run = load(name)
    rows = []
    for row in run["rows"]:
        middle, low, high = row["ratio"]
        ratio = "" if row["name"] == "aicf" else f"{middle:.2f} [{low:.2f} .. {high:.2f}]"
        rows.append((row["name"], f"{row['s']:.2f}", f"{row['us']:.1f}", ratio))
    head = ("", "s", "µs a step", "ratio")
    return source(run, f"; {run['note']}" if "note" in run else "") + "\n\n" + table(head, rows)


def sweep_cpu():
    return search("sweep")


def sweep_gpu():
    return search("sweep_gpu")


def where(run):
    """Device and date in few words."""
    device = run.get("device") or run["cpu"]
    for long in ("NVIDIA ", " 80GB HBM3", "(R)", " Processor"):
        device = device.replace(long, "")
    return f"{device}, {run['date'].split(';')[0]}"


def fastest(rows):
    """Of each case the ratio beside the fastest of the other libraries."""
    for row in rows:
        others = [peer for peer in row["ratio"] if peer != "copy" and "aicf" not in peer]
        if others:
            yield min(row["ratio"][peer][0] for peer in others), row["case"]


def glance():
    """The front of docs/performance.md: a row for each area and peer, with its slowest case."""
    rows = []

    def add(what, peer, used, ratios):
        ratios = sorted((ratio, case.replace("|", "\\|")) for ratio, case in ratios)
        worst, case = ratios[0]
        slow = sum(ratio < 0.97 for ratio, _ in ratios)
        mean = geometric_mean(ratio for ratio, _ in ratios)
        places = "; ".join(sorted({where(run) for run in used}))
        count = f"{len(ratios)} ({slow})"
        rows.append((what, peer, places, count, f"{mean:.2f}", case, f"{worst:.2f}"))

    run = load("sweep_steps_gpu")
    for math in ("fp32", "tf32"):
        what = f"[Training steps of 19 nets, {math}](#widths-and-batches)"
        add(what, "JAX `scan`, tf32", [run], [(r["ratio"][math], r["config"]) for r in run["rows"]])
    run = load("mixed_gpu")
    what = "[MLP with GELU, 16 bits](#mlps-in-mixed-precision)"
    peer = "PyTorch, compiled, in a CUDA graph"
    add(what, peer, [run], [(r["ratio"], r["config"]) for r in run["rows"]])
    run = load("gpt2_gpu")
    steps = [(r["ms"]["torch"] / r["ms"]["aicf"], f"{r['rows']} rows") for r in run["rows"]]
    add("[GPT-2 124M, 16 bits](#gpt-2-124m)", peer, [run], steps)
    run = load("loops_h200")
    for peer, known in (("torch", "cuDNN"), ("jax", "JAX `scan`")):
        cases = [(r[peer]["us"] / r["block"]["us"], r["case"]) for r in run["rows"]]
        add("[Recurrent layers](#recurrent-layers)", known, [run], cases)
    run = load("products_gpu")
    for math in ("bfloat16", "bf16", "tf32", "float32", "fp32x"):
        cases = [
            (r["ratio"][0], r["case"].removesuffix(f" {math}"))
            for r in run["rows"]
            if r["case"].endswith(f" {math}")
        ]
        peer = {"fp32x": "PyTorch (cuBLAS), float32"}.get(math, "PyTorch (cuBLAS)")
        add(f"[Products, {math}](#products)", peer, [run], cases)
    run = load("attention_gpu")
    for way, peer, known in (
        ("forward", "cuDNN", "cuDNN"),
        ("backward", "cuDNN", "cuDNN, order not fixed"),
        ("backward", "deterministic", "PyTorch, deterministic"),
    ):
        cases = [
            (r["ratio"][peer][0], f"heads of {r['head']}, {r['length']} positions")
            for r in run["rows"]
            if r["pass"] == way
        ]
        add(f"[Attention, {way}](#attention)", known, [run], cases)
    peer = "torch.compile"
    for name, section, what in (
        ("rows_gpu", "rows", "[Softmax, norms, losses](#softmax-norms-losses-and-sums)"),
        ("rows_gpu", "sums", "[Sums](#softmax-norms-losses-and-sums)"),
        ("chains_gpu", "chains", "[Pointwise functions](#pointwise-functions)"),
        ("rows_h200", "adam", "[Optimizers](#optimizers)"),
        ("rows_h200", "moves", "[Concat, embedding, index_add](#indexing-and-scans)"),
        ("rows_h200", "scans", "[Scans and argmax](#indexing-and-scans)"),
    ):
        run = load(name)
        cases = [(r["ratio"][peer][0], r["case"]) for r in run["rows"] if r["section"] == section]
        add(what, f"`{peer}`", [run], cases)
    run = load("functions_gpu")
    peer = "the faster of PyTorch and `torch.compile`"
    add("[Common functions, GPU](#common-functions)", peer, [run], fastest(run["rows"]))
    for name in ("cpu", "cpu_xeon"):
        for what, sections in (
            ("[Training steps, CPU](#training-steps-on-a-cpu)", STEPS),
            ("[Products, functions, sums, CPU](#products-sums-and-functions-on-a-cpu)", PIECES),
        ):
            cases, used = latest(name, sections, 1)
            add(what, "the fastest peer", used.values(), fastest(cases.values()))
    for name in ("functions", "functions_xeon"):
        run = load(name)
        what = "[Common functions, CPU](#common-functions-on-a-cpu)"
        add(what, peer, [run], fastest(run["rows"]))
    head = ("", "peer", "device, date", "rows (under 0.97)", "mean", "slowest row", "its ratio")
    return table(head, rows, "lllrrl")


def headline():
    """The README's: medians of a step, in µs."""
    cpu = runs("cpu")[0]  # the one of all sections
    rows = []
    for case in (f"{SMALL}, aicf call", f"{LARGE}, aicf call", "character transformer"):
        row = next(r for r in cpu["rows"] if r["case"] == case and r["threads"] == 1)
        torch = row["us"].get("torch.compile whole step", row["us"]["torch.compile"])
        jax = short(row["us"]["jax jit"]) if "jax jit" in row["us"] else "–"
        rows.append((NAMES[case], "CPU", short(median(row)), jax, short(torch)))
    run, found = gpu_rows()
    for config in (SMALL, LARGE):
        peers = ("aicf replay()", "jax jit", "torch compiled step in a CUDA graph")
        rows.append(
            ("step " + NAMES[config], "H200", *(short(found[config, name]["us"]) for name in peers))
        )
    about = [
        f"CPU: {cpu['cpu']} with {cpu['cores']} cores, one thread, {cpu['date']}, medians of "
        f"{cpu['rounds']} rounds.",
        f"H200: {run['date']}, inputs on the GPU, JAX in tf32, the others in float32.",
    ]
    head = ("µs a step", "", "aicf", "JAX `jit`", "PyTorch, compiled")
    return table(head, rows, "ll") + "\n\n" + "\n".join(about)


def filled(text):
    """A page's text with its tables as the results say."""
    parts = text.split("<!-- table: ")
    for i, part in enumerate(parts[1:], 1):
        name, _, rest = part.partition(" -->")
        after = rest.partition("<!-- end of table -->")[2]
        parts[i] = f"{name} -->\n\n{globals()[name]()}\n\n<!-- end of table -->{after}"
    return "<!-- table: ".join(parts)


if __name__ == "__main__":
    for page in PAGES:
        path = ROOT / page
        path.write_text(filled(path.read_text()))
