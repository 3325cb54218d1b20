"""Tells the variants of units as a broker deals them: assign.py RULE.json FEED < units, one a line.

With --json behind the feed each line is somebody, as JSON: {"id": "member:42", "value": 7, "outside": true}.
The value is that of the layer's attribute, and left out where the layer divides viewers or entities; outside
says that the rule's targeting, a condition in CEL, does not take them, which is for you to judge."""
import json
import sys


def murmur3(data: bytes, h: int = 0) -> int:
    """MurmurHash3_x86_32 (Austin Appleby, SMHasher), seed h."""
    def scramble(k):
        k = k * 0xCC9E2D51 & 0xFFFFFFFF
        return (k << 15 | k >> 17) * 0x1B873593 & 0xFFFFFFFF
    whole = len(data) & ~3
    for i in range(0, whole, 4):
        h ^= scramble(int.from_bytes(data[i:i + 4], "little"))
        h = ((h << 13 | h >> 19) * 5 + 0xE6546B64) & 0xFFFFFFFF
    h ^= scramble(int.from_bytes(data[whole:], "little")) ^ len(data)
    h = (h ^ h >> 16) * 0x85EBCA6B & 0xFFFFFFFF
    h = (h ^ h >> 13) * 0xC2B2AE35 & 0xFFFFFFFF
    return h ^ h >> 16


def unit_of(value) -> str:
    """The unit that an attribute's value is; "" for one that is in no layer, as a number that is not whole."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)) and abs(float(value)) <= 2 ** 53 and float(value).is_integer():
        return str(int(float(value)))
    return ""


def assign(rule: dict, feed: str, id: str, unit: str, outside: bool = False) -> str:
    """The variant on a feed of who has an id, and a unit that falls into a slot; "" for none.

    The unit is the id, or in a layer of an attribute unit_of its value."""
    if feed not in rule["feeds"]:
        return ""
    slot = murmur3(f"{rule['salt']}/{unit}".encode()) % 10000 if 0 < len(unit.encode()) <= 512 else -1
    within = lambda slots: any(s["from"] <= slot <= s["to"] for s in slots)
    if id:
        if id in rule.get("elsewhere", {}).get(feed, []):
            return ""
        if id in rule.get("forced", {}) and not within(rule.get("taken", {}).get(feed, [])):
            return rule["forced"][id]
    if outside or not within(rule["slots"]):
        return ""
    draw = murmur3(f"{rule['salt']}/{rule['experiment']}/{unit}".encode()) % 10000
    for arm in rule["arms"]:
        draw -= arm["weight"]
        if draw < 0:
            return arm["variant"]


def asked(rule: dict, line: str, as_json: bool) -> tuple:
    """Whom a line is about: their id, their unit, and whether the targeting does not take them."""
    who = json.loads(line, parse_int=float) if as_json else {"id": line, "value": line}
    id, by_id = who.get("id", ""), rule["unit"] in ("viewer", "entity")
    if not as_json and not by_id:
        id = ""
    return id, id if by_id else unit_of(who.get("value")), who.get("outside", False)


if __name__ == "__main__":
    rule = json.load(open(sys.argv[1], encoding="utf-8"))
    for line in open(sys.stdin.fileno(), encoding="utf-8", newline="\n"):
        print(assign(rule, sys.argv[2], *asked(rule, line.rstrip("\n"), "--json" in sys.argv)))
