"""JSON schemas at random, small enough that any answer to them is short."""

from __future__ import annotations

from random import Random
from typing import Any

PATTERNS = ("^[a-z]{2,5}$", "^(red|green)-[0-9]{1,3}$", "^[A-Z][a-z]?$", "^x*y$")
FORMATS = ("date", "uuid", "ipv4", "time", "email")
NAMES = ("name", "age", "a b", "ünï", 'quo"te', "back\\slash", "", "x", "$ref")


def random_schema(random: Random) -> dict[str, Any]:
    """An object at the top, as OpenAI wants it, or anything."""
    made = _object(random, 2) if random.random() < 0.6 else _any(random, 2)
    if random.random() < 0.3:
        made = {
            "$defs": {"part": _scalar(random)},
            "type": "array",
            "items": {"anyOf": [{"$ref": "#/$defs/part"}, _any(random, 1)]},
            "maxItems": 3,
        }
    return made


def _any(random: Random, depth: int) -> dict[str, Any]:
    if depth and random.random() < 0.6:
        return random.choice((_object, _array, _tuple, _either))(random, depth)
    return _scalar(random)


def _scalar(random: Random) -> dict[str, Any]:
    return random.choice((_integer, _number, _string, _string, _listed, _plain))(random)


def _plain(random: Random) -> dict[str, Any]:
    return {"type": random.choice(("boolean", "null"))}


def _integer(random: Random) -> dict[str, Any]:
    low = random.randint(-1000, 1000)
    bounds = {"minimum": low, random.choice(("maximum", "exclusiveMaximum")): low + 1 + low % 77}
    return {"type": "integer", **bounds}


def _number(random: Random) -> dict[str, Any]:
    low = random.randint(-50, 50)
    return {"type": "number", "exclusiveMinimum": low, "maximum": low + random.choice((1, 2.5, 40))}


def _string(random: Random) -> dict[str, Any]:
    return {
        "type": "string",
        **random.choice(
            (
                {"maxLength": random.randint(0, 9)},
                {"minLength": 2, "maxLength": 2 + random.randint(0, 4)},
                {"pattern": random.choice(PATTERNS)},
                {"format": random.choice(FORMATS[:4])},
            )
        ),
    }


def _listed(random: Random) -> dict[str, Any]:
    values = [None, True, 0, -1.5, "", "déjà vu", [1, "a"], {"k": [None]}]
    if random.random() < 0.3:
        return {"const": random.choice(values)}
    return {"enum": random.sample(values, random.randint(1, 4))}


def _object(random: Random, depth: int) -> dict[str, Any]:
    names = random.sample(NAMES, random.randint(0, 4))
    properties = {name: _any(random, depth - 1) for name in names}
    required = [name for name in names if random.random() < 0.6]
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def _array(random: Random, depth: int) -> dict[str, Any]:
    least = random.randint(0, 2)
    bounds = {"minItems": least, "maxItems": least + random.randint(0, 2)}
    return {"type": "array", "items": _any(random, depth - 1), **bounds}


def _tuple(random: Random, depth: int) -> dict[str, Any]:
    parts = [_any(random, depth - 1) for _ in range(random.randint(1, 3))]
    return {"type": "array", "prefixItems": parts, "items": False, "minItems": len(parts)}


def _either(random: Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [_any(random, depth - 1) for _ in range(random.randint(1, 3))]}
