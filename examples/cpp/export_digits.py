"""Writes the digits' training step as digits.aicf and the images as digits.txt.

    python examples/cpp/export_digits.py [--out FOLDER]

A line of digits.txt is an image: 64 numbers from 0 to 16, then its digit. Needs scikit-learn.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import digits

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", type=Path, default=Path("."))
folder = parser.parse_args().out
data = digits.load_data()
lines = np.column_stack([data.train_x * 16, data.train_y]).astype(int)
np.savetxt(folder / "digits.txt", lines, fmt="%d")
step = digits.train_graph(digits.BATCH).compile(device="cpu", seed=digits.SEED)
step.export(folder / "digits.aicf")
