"""What docs/supported.md states of the suites that are counted; a test each holds it to what is."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "supported.md"


def stated(name):
    """(right, of) in the row of the table of suites that begins with `name`."""
    row = re.search(
        rf"^\| {re.escape(name)}[^|]*\| ([\d,]+) \| ([\d,]+) \|", PAGE.read_text(), re.M
    )
    return tuple(int(number.replace(",", "")) for number in row.groups())
