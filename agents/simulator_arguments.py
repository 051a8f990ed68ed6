"""Arguments of the simulated C functions as ctypes hands them over, read and filled in."""

from __future__ import annotations

import ctypes
from typing import Any

from agents.simulator_driver import Failure, Ret


def number(argument: Any) -> int:
    """A plain int, or a ctypes integer by value."""
    return int(getattr(argument, "value", argument))


def target(argument: Any) -> Any:
    """What a pointer argument points to; NULL is INVALID_ARGUMENT.

    A struct by value is a TypeError here; the real driver would take its bytes
    for an address and end the process.
    """
    if argument is None:
        raise Failure(Ret.INVALID_ARGUMENT)
    if isinstance(argument, ctypes.Array):
        return argument
    if not hasattr(argument, "_obj"):
        raise TypeError(f"{type(argument).__name__} by value where the driver takes a pointer")
    return argument._obj


def put(argument: Any, value: int) -> None:
    """Write an integer through a pointer."""
    target(argument).value = value


def put_handle(argument: Any, handle: int) -> None:
    """Write a handle through a pointer."""
    ctypes.c_void_p.from_buffer(target(argument)).value = handle


def put_handles(array: Any, count: Any, handles: list[int]) -> None:
    """Fill the caller's array, whose length the driver is not told, and say how many."""
    if array is None:
        raise Failure(Ret.INVALID_ARGUMENT)
    for place, handle in enumerate(handles):
        array[place] = pointer(handle, array._type_)
    put(count, len(handles))


def pointer(handle: int, kind: Any) -> Any:
    """A handle as the pointer type that a struct or an array has for it."""
    return ctypes.cast(ctypes.c_void_p(handle), kind)


def put_pointer(struct: Any, field: str, handle: int) -> None:
    setattr(struct, field, pointer(handle, type(getattr(struct, field))))


def put_text(buffer: Any, length: Any, value: str) -> None:
    """Write a string and its end into the caller's buffer."""
    if len(value) >= number(length):
        raise Failure(Ret.INSUFFICIENT_SIZE)
    target(buffer).value = value.encode()


def versioned(argument: Any, *versions: int) -> Any:
    """A struct that says its version first; another than these is ARGUMENT_VERSION_MISMATCH."""
    struct = target(argument)
    if struct.version not in versions:
        raise Failure(Ret.ARGUMENT_VERSION_MISMATCH)
    return struct
