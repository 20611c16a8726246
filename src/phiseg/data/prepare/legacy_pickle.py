"""Read an untrusted pickle that contains only NumPy arrays, numbers, text and plain containers.

A pickle is a program for a virtual machine. This unpickler restricts the machine:

- It supports only the instructions for plain values, containers and calls, not those for classes, extensions and
  persistent objects.
- Calls reach only replacements of the few functions that occur in pickles of NumPy. A replacement validates its
  arguments and creates an inert value. The file calls no function of NumPy, and no `__setstate__` except ours.
- No read is longer than the file, keys of dicts are text or integers, and bytes are not copied more often than they
  occur in the file. Memory is therefore bounded by a multiple of the file size.

It is based on the unpickler written in Python, because the one in C allocates memory for any memo number in a file.
"""

import math
import pickle
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, ClassVar, NoReturn

import numpy as np
from numpy.typing import NDArray

from phiseg.core.errors import DataError
from phiseg.data.prepare.arrays_npz import is_unicode

_PLAIN_TYPE = re.compile(r"[<>=|]?([?]|b1|[iu][1248]|f[248]|[SU]\d{1,4})")


class PickledArray:
    """An array in a pickle."""

    def __init__(self) -> None:
        self.values: NDArray[Any] = np.empty(0)

    def __setstate__(self, state: Any) -> None:
        """Set the array from the state written by NumPy: (version, shape, type, Fortran order, bytes)."""
        _demand(isinstance(state, tuple) and len(state) == 5, "an array")
        _, shape, dtype, fortran, data = state
        self.values = _array(data, dtype, shape, "F" if fortran else "C")


class _Type:
    """A NumPy type in a pickle."""

    def __init__(self, name: str) -> None:
        self.dtype = np.dtype(name)

    def __setstate__(self, state: Any) -> None:
        """Set the byte order, the only state of a plain type."""
        _demand(isinstance(state, tuple) and len(state) >= 5, "a type")
        _, order, subtype, names, fields = state[:5]
        order = _text(order)
        _demand(order in ("<", ">", "=", "|"), "a type of an unusual byte order")
        _demand(subtype is None and names is None and fields is None, "a type with fields")
        self.dtype = self.dtype.newbyteorder(order)


class _StandIn:
    """Immutable replacement of a function or class in a pickle."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)

    def __setstate__(self, state: Any) -> NoReturn:
        raise pickle.UnpicklingError("it changes a function")


def load(path: Path) -> Any:
    """Return the contents of a pickle, with arrays as `PickledArray`.

    The file is read into memory once. Protocols 0 to 5, Python 2 and 3, and NumPy 1 and 2 are supported.

    Raises:
        DataError: the file is damaged or contains other objects. No code in the file is executed.
    """
    try:
        with path.open("rb") as file:
            return _Unpickler(_BoundedReader(file, path.stat().st_size), path.stat().st_size).load()
    except FileNotFoundError:
        raise DataError(f"{path} does not exist; check the name") from None
    except (
        pickle.UnpicklingError,
        OSError,
        EOFError,
        ValueError,
        TypeError,
        KeyError,
        IndexError,
        AttributeError,
        ArithmeticError,
        AssertionError,
        struct.error,
        RecursionError,
        MemoryError,
    ) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(
            f"{path} is not a pickle of NumPy arrays and plain containers ({reason}); "
            "download it again from a trusted source"
        ) from None


class _BoundedReader:
    """A file that rejects reads beyond its end."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file = file
        self._left = size

    def read(self, length: int) -> bytes:
        if not 0 <= length <= self._left:
            raise EOFError("unexpected end of file")
        self._left -= length
        return self._file.read(length)

    def readline(self) -> bytes:
        line = self._file.readline()
        self._left -= len(line)
        return line


class _Unpickler(pickle._Unpickler):
    """An unpickler for plain values, containers and calls."""

    stack: list[Any]
    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]
    read: Callable[[int], bytes]

    def __init__(self, file: _BoundedReader, size: int) -> None:
        super().__init__(file, fix_imports=False, encoding="bytes")
        self._copies_left = size
        reconstruct, scalar, frombuffer = _StandIn(_reconstruct), _StandIn(_scalar), _StandIn(_frombuffer)
        self._known = {
            ("numpy", "ndarray"): _NDARRAY,
            ("numpy", "dtype"): _StandIn(_make_type),
            ("_codecs", "encode"): _StandIn(self._encode),
        }
        for builtins in ("__builtin__", "builtins"):  # Python 2 and 3
            self._known[builtins, "bytes"] = _StandIn(_no_bytes)
        for core in ("numpy.core", "numpy._core"):  # NumPy 1 and 2
            self._known[f"{core}.multiarray", "_reconstruct"] = reconstruct
            self._known[f"{core}.multiarray", "scalar"] = scalar
            self._known[f"{core}.numeric", "_frombuffer"] = frombuffer

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._known:
            raise pickle.UnpicklingError(f"it names {module[:60]!r}, {name[:60]!r}")
        return self._known[module, name]

    def load_build(self) -> None:
        state = self.stack.pop()
        thing = self.stack[-1]
        _demand(isinstance(thing, PickledArray | _Type), "a state of something else than an array or a type")
        thing.__setstate__(state)

    def load_reduce(self) -> None:
        arguments = self.stack.pop()
        call = self.stack[-1]
        _demand(isinstance(call, _StandIn) and isinstance(arguments, tuple), "a call of something else")
        self.stack[-1] = call(*arguments)

    def load_bytearray8(self) -> None:
        (length,) = struct.unpack("<Q", self.read(8))
        self.append(self.read(length))  # the base class allocates memory before it reads

    def load_setitem(self) -> None:
        value = self.stack.pop()
        key = self.stack.pop()
        self._put([key, value])

    def load_setitems(self) -> None:
        self._put(self.pop_mark())

    def load_dict(self) -> None:
        items = self.pop_mark()
        self.append({})
        self._put(items)

    def load_append(self) -> None:
        value = self.stack.pop()
        self._extend([value])

    def load_appends(self) -> None:
        self._extend(self.pop_mark())

    def _put(self, items: list[Any]) -> None:
        """Add alternating keys and values. Keys must be simple, because hashing a nested tuple can take forever."""
        target = self.stack[-1]
        _demand(type(target) is dict and len(items) % 2 == 0, "a broken dict")
        for key, value in zip(items[::2], items[1::2], strict=True):
            _demand(type(key) in (str, bytes, int), "a dict with unsupported keys")
            target[_text(key)] = value

    def _extend(self, values: list[Any]) -> None:
        target = self.stack[-1]
        _demand(type(target) is list, "a broken list")
        target.extend(values)

    def _encode(self, text: Any, encoding: Any) -> bytes:
        """Replace `_codecs.encode`, which protocol 2 uses for bytes."""
        _demand(isinstance(text, str) and encoding in ("latin1", "latin-1"), "text in another encoding")
        self._copies_left -= len(text)
        _demand(self._copies_left >= 0, "the same bytes many times over")
        return bytes(text, "latin1")

    _CALLS = (pickle.GLOBAL, pickle.STACK_GLOBAL, pickle.REDUCE, pickle.BUILD)
    _CONTAINERS = (
        *(pickle.MARK, pickle.POP, pickle.POP_MARK, pickle.STOP, pickle.PROTO, pickle.FRAME),
        *(pickle.DICT, pickle.EMPTY_DICT, pickle.SETITEM, pickle.SETITEMS),
        *(pickle.LIST, pickle.EMPTY_LIST, pickle.APPEND, pickle.APPENDS),
        *(pickle.TUPLE, pickle.EMPTY_TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3),
        *(pickle.PUT, pickle.BINPUT, pickle.LONG_BINPUT, pickle.MEMOIZE),
        *(pickle.GET, pickle.BINGET, pickle.LONG_BINGET),
    )
    _VALUES = (
        *(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.INT, pickle.BININT, pickle.BININT1, pickle.BININT2),
        *(pickle.LONG, pickle.LONG1, pickle.LONG4, pickle.FLOAT, pickle.BINFLOAT),
        *(pickle.STRING, pickle.BINSTRING, pickle.SHORT_BINSTRING),
        *(pickle.UNICODE, pickle.BINUNICODE, pickle.SHORT_BINUNICODE, pickle.BINUNICODE8),
        *(pickle.BINBYTES, pickle.SHORT_BINBYTES, pickle.BINBYTES8, pickle.BYTEARRAY8),
    )
    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {
        code[0]: pickle._Unpickler.dispatch[code[0]] for code in (*_CALLS, *_CONTAINERS, *_VALUES)
    } | {
        pickle.BUILD[0]: load_build,
        pickle.REDUCE[0]: load_reduce,
        pickle.BYTEARRAY8[0]: load_bytearray8,
        pickle.SETITEM[0]: load_setitem,
        pickle.SETITEMS[0]: load_setitems,
        pickle.DICT[0]: load_dict,
        pickle.APPEND[0]: load_append,
        pickle.APPENDS[0]: load_appends,
    }


def _demand(holds: bool, what: str) -> None:
    if not holds:
        raise pickle.UnpicklingError(f"it contains {what}")


def _text(value: Any) -> Any:
    """Return bytes (text in Python 2) as text, and other values unchanged."""
    return value.decode("latin1") if isinstance(value, bytes) else value


def _refuse(*_: Any) -> NoReturn:
    raise pickle.UnpicklingError("it creates an array in an unusual way")


_NDARRAY = _StandIn(_refuse)


def _reconstruct(kind: Any, shape: Any, code: Any) -> PickledArray:
    """Replace `_reconstruct` of NumPy; the array is filled by its state."""
    _demand(kind is _NDARRAY and shape == (0,) and code in (b"b", "b"), "an array of an unusual class")
    return PickledArray()


def _no_bytes() -> bytes:
    """Replace `bytes()`, which protocol 2 uses for empty bytes."""
    return b""


def _make_type(name: Any, *_: Any) -> _Type:
    """Replace `numpy.dtype(name, align, copy)`."""
    name = _text(name)
    plain = isinstance(name, str) and len(name) < 10 and _PLAIN_TYPE.fullmatch(name)
    _demand(bool(plain), "an array of Python objects or of an unusual type")
    return _Type(name)


def _scalar(kind: Any, data: Any) -> Any:
    """Replace `scalar` of NumPy; return a number or text as a Python object."""
    return _array(data, kind, (), "C").item()


def _frombuffer(data: Any, kind: Any, shape: Any, order: Any, axis_order: Any = None) -> PickledArray:
    """Replace `_frombuffer` of NumPy, which protocol 5 uses for arrays (since NumPy 2.4 with permuted axes)."""
    array = PickledArray()
    array.values = _array(data, kind, shape, order)
    if axis_order is not None:
        fits = isinstance(axis_order, tuple) and all(type(axis) is int for axis in axis_order)
        _demand(fits and sorted(axis_order) == [*range(array.values.ndim)], "an array with invalid axes")
        array.values = array.values.transpose(axis_order)
    return array


def _array(data: Any, kind: Any, shape: Any, order: Any) -> NDArray[Any]:
    _demand(isinstance(kind, _Type), "an array without a type")
    dtype: np.dtype[Any] = kind.dtype
    _demand(isinstance(data, bytes), "an array without bytes")
    lengths = shape if isinstance(shape, tuple) and len(shape) <= 8 else (-1,)
    fits = all(type(length) is int and length >= 0 for length in lengths)
    fits = fits and dtype.itemsize > 0 and math.prod(lengths) * dtype.itemsize == len(data)
    _demand(fits, "an array whose bytes do not match its shape")
    flat: NDArray[Any] = np.frombuffer(data, dtype=dtype)
    _demand(is_unicode(flat), "text that is not Unicode")
    return flat.reshape(lengths, order="F" if order in ("F", b"F") else "C")
