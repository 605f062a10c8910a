"""What JSON values must look like to be worked with: a type, a list of one shape, an object of named or of any keys."""

from collections.abc import Iterator
from typing import Any


def faults(value: object, shape: Any, name: str) -> Iterator[str]:  # noqa: ANN401 - shapes nest
    """Yield what keeps a value from having a shape, in clauses that name the place and never a value.

    Parameters
    ----------
    shape
        A type; ``[shape]``, a list of it; ``{key: shape, ...}``, an object with these keys and perhaps more;
        ``{...: shape}``, an object with any keys.
    name
        What to call the value.
    """
    if isinstance(shape, type):
        if not isinstance(value, shape) or (isinstance(value, bool) and shape is not bool):
            yield f"{name} is no {shape.__name__}"
    elif isinstance(shape, list) and isinstance(value, list):
        for place, one in enumerate(value):
            yield from faults(one, shape[0], f"{name}[{place}]")
    elif isinstance(shape, dict) and isinstance(value, dict):
        yield from _members(value, shape, name)
    else:
        yield f"{name} is no {'list' if isinstance(shape, list) else 'object'}"


def _members(value: dict[str, object], shape: dict[Any, Any], name: str) -> Iterator[str]:
    expected = dict.fromkeys(value, shape[...]) if ... in shape else shape
    missing = sorted(expected.keys() - value.keys())
    if missing:
        yield f"{name} lacks {', '.join(missing)}"
    for key in expected.keys() & value.keys():
        yield from faults(value[key], expected[key], f"{name}.{key}")
