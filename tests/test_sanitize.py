"""The harness under the sanitizers, in a form short enough for every run: no optimization, the
baseline kernels, each row of the op table once. tests/sanitize.py runs the whole."""

import pytest
import sanitize

QUICK = [  # what takes long to compile and finds little in C++ without raw pointers stays out
    "-DCMAKE_BUILD_TYPE=Debug",
    "-DCMAKE_UNITY_BUILD=ON",
    "-DCMAKE_UNITY_BUILD_BATCH_SIZE=0",
    "-DAICF_CPU_ISAS=baseline",
]
KINDS = {
    "address": "address,signed-integer-overflow,shift,bounds,alignment,float-cast-overflow",
    "thread": "thread",
}
MISSING = sanitize.missing()


@pytest.mark.slow
@pytest.mark.timeout(1200)  # it builds the library
@pytest.mark.skipif(bool(MISSING), reason=MISSING)
@pytest.mark.parametrize("kind", KINDS)
def test_harness(kind, tmp_path):
    harness = sanitize.build_harness(KINDS[kind], tmp_path, 2, *QUICK)
    with pytest.raises(RuntimeError, match=f"{kind.capitalize()}Sanitizer"):
        sanitize.run([harness, "misuse"])
    ops = tmp_path / "ops.txt"
    ops.write_text("\n".join(sanitize.op_lines(full=False)) + "\n")
    parts = [["threads", 16, 100]]
    if kind == "address":
        parts = [["families"], ["reference"], ["graphs"], ["threads", 4, 30]]
    for part in [["ops", ops, 2], *parts]:
        assert len(sanitize.run([harness, *part]).strip()) == 16


def test_a_report_is_an_error(tmp_path):
    """Whatever the process that wrote it ended with; those of runs before do not count."""
    report = tmp_path / "report.17"
    report.write_text("of a run before")
    with sanitize.reports_in(tmp_path):
        pass
    with pytest.raises(RuntimeError, match="data race"), sanitize.reports_in(tmp_path):
        report.write_text("data race")
    with (
        pytest.raises(RuntimeError, match="ended with 66\ndata race"),
        sanitize.reports_in(tmp_path),
    ):
        report.write_text("data race")
        raise RuntimeError("ended with 66")
