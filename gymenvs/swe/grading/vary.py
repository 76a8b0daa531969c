"""Values that are another: what an object is compared with once more, to see whether it equals those as well.

Sent into the sandbox beside `guard`; see there for what it may use. `near` gives values that nothing but their content
tells from the one a test asks for: the same type, sign and length, a letter for a letter. `far` gives values that no
tolerance and no pattern takes for the same. A container is varied in all that it holds (64 places of a longer one).
"""

import datetime
import os

NOTHING = object()  # no value: there is none to vary, or no way to
_MOST, _TRIES = 64, 8
_LOWER = "abcdefghijklmnopqrstuvwxyz"
_CLASSES = (_LOWER, _LOWER.upper(), "123456789", "!#$%&*+-./:;<=>?@^_|~")
_urandom = os.urandom


def below(number):
    """A whole number from 0 to `number` - 1 that no code under test foresees."""
    return int.from_bytes(_urandom(8), "big") % number


def shuffled(values):
    values = list(values)
    for at in range(len(values) - 1, 0, -1):
        other = below(at + 1)
        values[at], values[other] = values[other], values[at]
    return values


def near(value, opens):
    """Groups of values, each with how many of it nobody equals but who equals any of that kind. `opens(kind)`: whether
    a copy of an object of the class may be made and altered.

    Of eight values three are enough: who answers at random, to escape being asked for all, is caught as well.
    """
    kind = type(value)
    if kind is bool:
        return [([not value], 1)]
    if value is None or value is Ellipsis or value is NotImplemented:
        return [([other], 1) for other in (2 + below(900), _word(), [_word()])]
    found: list = []
    for _ in range(_TRIES * _TRIES):
        other = _another(value, opens, far=False)
        if other is NOTHING:
            return []
        if kind is not int or other not in found:
            found.append(other)
        if len(found) == _TRIES:
            break
    return [(found, min(3, len(found)))]


def far(value, opens):
    return _another(value, opens, far=True)


def _another(value, opens, far, depth=0):
    kind = type(value)
    if kind in _PLAIN:
        return _PLAIN[kind](value, far)
    if depth > 20:
        return NOTHING
    for base in kind.__mro__:
        if base in _CONTAINERS:
            return _container(value, kind, base, opens, far, depth)
        make = _MADE.get((base.__module__, base.__name__))
        if make is not None:
            try:
                return make(value, far)
            except Exception:
                return NOTHING
    return _object(value, kind, opens, far, depth) if opens(kind) else NOTHING


# -- single values


def _number(value, far):
    if far:
        return value + 2**41 + below(2**40)
    other = value + (1 + below(max(9, abs(value) // 2))) * (1 if below(2) else -1)
    return other if (other > 0) == (value >= 0) and other else 2 * value - other or value + 1


def _float(value, far):
    if far or value != value or abs(value) > 1e15:
        return float(2**41 + below(2**40))
    if value == int(value):
        return float(_number(int(value), False))
    text = repr(value)
    places = len(text.partition(".")[2]) if "e" not in text else 12
    other = round(value * (1.1 + below(800) / 1000), places)
    return other if other != value else value + (1 if value > 0 else -1)


def _complex(value, far):
    return complex(_float(value.real, far), _float(value.imag, far))


def _word():
    return "".join(_LOWER[below(26)] for _ in range(3 + below(4)))


def _text(value, far):
    if far:
        return "~" + _urandom(6).hex()
    places = [at for at, one in enumerate(value) if one.isalnum()] or [
        at for at, one in enumerate(value) if not one.isspace()
    ]
    if not places:
        return _word()
    number = (len(places), len(places), len(places), 1 + len(places) // 2, 1)[below(5)]
    other = list(value)
    for at in shuffled(places)[:number]:
        other[at] = _letter(value[at])
    return "".join(other)


def _letter(one):
    for known in _CLASSES:
        if one in known or (one == "0" and known[0] == "1"):
            other = known[below(len(known))]
            return other if other != one else known[(known.index(one) + 1) % len(known)]
    for _ in range(_TRIES):
        other = chr((ord(one) + 1 + below(6)) % 0x10000)
        if other.isalpha() == one.isalpha() and other.casefold() != one.casefold() and other.isprintable():
            return other
    return "x"


def _bytes(value, far):
    text = value.decode("latin-1")
    other = _text(text, far)
    return other.encode("latin-1") if all(ord(one) < 256 for one in other) else value + b"x"


_PLAIN = {
    int: _number,
    float: _float,
    complex: _complex,
    str: _text,
    bytes: _bytes,
    bytearray: lambda value, far: bytearray(_bytes(bytes(value), far)),
    bool: lambda value, far: NOTHING if far else not value,
    range: lambda value, far: range(value.start, value.stop + value.step * (1 + below(4)), value.step),
    type(None): lambda value, far: NOTHING,
}


# -- other values of the standard library


def _date(value, far):
    days = (30000 if far else 1) + below(300)
    try:
        return value + datetime.timedelta(days=days)
    except OverflowError:
        return value - datetime.timedelta(days=days)


def _time(value, far):
    return value.replace(hour=(value.hour + 1 + below(22)) % 24)


def _member(value, far):
    others = [one for one in type(value) if one is not value]
    return NOTHING if far or not others else others[below(len(others))]


_MADE = {
    ("datetime", "date"): _date,  # of a datetime as well
    ("datetime", "time"): _time,
    ("datetime", "timedelta"): lambda value, far: value + datetime.timedelta(days=1 + below(20) + 9999 * far),
    ("decimal", "Decimal"): lambda value, far: value + _number(int(value), far) - int(value),
    ("fractions", "Fraction"): lambda value, far: value + _number(int(value), far) - int(value),
    ("enum", "Enum"): _member,
    ("uuid", "UUID"): lambda value, far: type(value)(int=value.int ^ (1 + below(2**40))),
    ("pathlib", "PurePath"): lambda value, far: value.with_name(_text(value.name, far)),
}


# -- containers and objects


def _container(value, kind, base, opens, far, depth):
    if kind is not base and (_in_python(kind, "__eq__") or kind.__module__ == "typing"):
        return _object(value, kind, opens, far, depth)
    if base is dict:
        keys = list(dict.keys(value))
        other = _copied(dict, kind, value)
        changed = [dict.__getitem__(value, key) for key in keys]
        if not _vary(changed, opens, far, depth) or not keys:
            dict.__setitem__(other, _word(), 1 + below(90))
        for key, inner in zip(keys, changed):  # noqa: B905  Python before 3.10 has no `strict`
            dict.__setitem__(other, key, inner)
        return other
    items = list(base.__iter__(value))
    if base in (set, frozenset):
        known = set(items)
        new = _fresh(items[below(len(items))], known, opens, far, depth) if items else _word()
        try:
            return base((*items[1:], new)) if new is not NOTHING and new not in known else NOTHING
        except TypeError:
            return NOTHING
    if not _vary(items, opens, far, depth):
        items.append(1 + below(90) if depth or not items else items[below(len(items))])
    return tuple.__new__(kind, items) if base is tuple else _copied(base, kind, items)


def _copied(base, kind, value):
    other = base.__new__(kind)
    if base is dict:
        for key in dict.keys(value):
            dict.__setitem__(other, key, dict.__getitem__(value, key))
    else:
        base.extend(other, value)
    return other


def _vary(items, opens, far, depth):
    """Puts other values in the places of a list; how many. None of them stood there: order may not count."""
    known = {one for one in items if type(one) in _PLAIN and type(one) is not bytearray}
    places = range(len(items))
    count = 0
    for at in places if len(items) <= _MOST else shuffled(places)[:_MOST]:
        other = _fresh(items[at], known, opens, far, depth)
        if other is not NOTHING:
            items[at], count = other, count + 1
    return count


def _fresh(value, known, opens, far, depth):
    other = NOTHING
    for _ in range(_TRIES):
        other = _another(value, opens, far, depth + 1)
        if type(other) not in _PLAIN or type(other) in (bool, bytearray) or other not in known:
            break
    return other


def _object(value, kind, opens, far, depth):
    """A copy of an object whose attributes are others. No code of its class runs for it."""
    try:
        other = object.__new__(kind)
    except TypeError:
        return NOTHING
    names, slots = attributes(value)
    held = list(names.items())
    changed = [inner for _, inner in held] + [get(value) for get, _ in slots]
    if not _vary(changed, opens, far, depth):
        return NOTHING
    space = attributes(other)[0]
    for (name, _), inner in zip(held, changed):  # noqa: B905  as above
        space[name] = inner
    for (_, put), inner in zip(slots, changed[len(held) :]):  # noqa: B905  as above
        put(other, inner)
    return other


_GETSET, _MEMBER = type(type(lambda: 0).__dict__["__code__"]), type(type(lambda: 0).__dict__["__globals__"])
_mro, _names = type.__dict__["__mro__"].__get__, type.__dict__["__dict__"].__get__


def attributes(value):
    """(the object's own dictionary, [(get, put)] of the slots that are filled), past all code of its class."""
    space: dict = {}
    slots: list = []
    for base in _mro(type(value)):
        names = _names(base)
        own = names.get("__dict__")
        if type(own) is _GETSET and not space:
            try:
                space = own.__get__(value)
            except (AttributeError, TypeError):
                space = {}
        for member in list(names.values()):
            if type(member) is _MEMBER:
                try:
                    member.__get__(value)
                except (AttributeError, TypeError):
                    continue
                slots.append((member.__get__, member.__set__))
    return space, slots


def _in_python(kind, method):
    """Whether the class takes the method from a body that is no built-in class's."""
    for base in _mro(kind):
        if method in _names(base):
            return isinstance(_names(base)[method], type(lambda: 0))
    return False


def _deque():
    from collections import deque

    return deque


_CONTAINERS = frozenset((list, tuple, set, frozenset, dict, _deque()))
