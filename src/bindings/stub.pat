_core.Array.__dlpack_c_exchange_api__:
    __dlpack_c_exchange_api__: object

# It raises; for a type checker there is none.
_core.Array.__getattr__:

_core.Array.__hash__:
    __hash__: None  # type: ignore[assignment]

# What the stub generator leaves out: it takes a class of module "aicf" for somebody else's.
_core.__suffix__:
    class Error(Exception): ...

    class GraphError(Error, ValueError): ...

    class ShapeError(Error, ValueError): ...

    class DTypeError(Error, TypeError): ...

    class DeviceUnavailable(Error, RuntimeError): ...

    class DeviceLost(Error, RuntimeError): ...

    class OutOfMemory(Error, MemoryError): ...

    class CaptureError(Error, RuntimeError): ...

    class StaleOutput(Error, RuntimeError): ...
    class BadValue(Error, ValueError):
        kind: str
        node: int | None
        op: str | None
        source: str | None
        layer: str | None
        value: int
        name: str
        index: tuple[int, ...] | None
        number: float | None

    class FormatError(Error, ValueError): ...

    class Unsupported(Error, NotImplementedError): ...

    class InternalError(Error, RuntimeError): ...
