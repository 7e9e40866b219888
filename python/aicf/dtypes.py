"""What the dtype of a value or of a result is: its name, which equals other libraries' dtypes."""

from __future__ import annotations

import numpy as np

_PYTHON = {bool: "bool", int: "int64", float: "float64"}  # as NumPy takes them


class DType(str):
    """A dtype's name, such as "float32". It equals the dtype of that name of NumPy, PyTorch or JAX,
    and the scalar type too: `y.dtype == np.float32`. Its hash is the name's, so look for it in
    sets of names alone."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            return str.__eq__(self, other)
        if isinstance(other, np.dtype):
            return str.__eq__(self, other.name)
        if isinstance(other, type) and issubclass(other, np.generic):  # several are one dtype
            try:
                return str.__eq__(self, np.dtype(other).name)
            except TypeError:  # np.floating and such
                return False
        if isinstance(other, type):  # jax.numpy's too
            return str.__eq__(self, _PYTHON.get(other, other.__name__))
        return type(other).__name__ == "dtype" and str(other) == f"torch.{self}"

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__
