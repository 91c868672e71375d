"""Says of each JSON line [conversation, turn, name, ordinal, document] what Python makes of it.

Prints one JSON line for each: {"verdict": "taken", "canonical": ..., "key": ...} for an object
that can be carried, else {"verdict": "broken"} for what is no JSON and {"verdict": "refused"} for
JSON that cannot be carried without loss. Nothing here knows how callonce reads JSON.
"""

import hashlib
import json
import math
import sys

sys.set_int_max_str_digits(0)

LEVELS_MAX = 120
DIGITS_MAX = 4300


class Reader:
    """The standard library's reader, which is asked to tell what it would pass over."""

    def __init__(self):
        self.refused = False
        self.broken = False

    def pairs(self, pairs):
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            self.refused = True
        if any(name.startswith("$serde_json::private::") for name in names):
            self.refused = True
        return dict(pairs)

    def constant(self, name):
        self.broken = True  # NaN and Infinity are no JSON.

    def integer(self, digits):
        if len(digits.lstrip("-")) > DIGITS_MAX:
            self.refused = True
        return int(digits)

    def float(self, digits):
        value = float(digits)
        if math.isinf(value):
            self.refused = True
        return value

    def read(self, document):
        return json.loads(
            document,
            object_pairs_hook=self.pairs,
            parse_constant=self.constant,
            parse_int=self.integer,
            parse_float=self.float,
        )


def is_utf8(value):
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
        return True
    except UnicodeEncodeError:
        return False


def levels(value):
    if isinstance(value, dict):
        return 1 + max(map(levels, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(levels, value), default=0)
    return 0


def judge(conversation, turn, name, ordinal, document):
    reader = Reader()
    try:
        value = reader.read(document)
    except json.JSONDecodeError:
        return {"verdict": "broken"}
    if reader.broken:
        return {"verdict": "broken"}
    whole = isinstance(value, dict) and is_utf8(value) and levels(value) <= LEVELS_MAX
    if reader.refused or not whole:
        return {"verdict": "refused"}
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    material = f"{conversation}|{turn}|{name}|{ordinal}|{canonical}"
    key = hashlib.sha256(material.encode()).hexdigest()[:32]
    return {"verdict": "taken", "canonical": canonical, "key": key}


for line in sys.stdin:
    print(json.dumps(judge(*json.loads(line))))
