"""Tells the variants of units as a broker deals them: assign.py RULE.json FEED < units, one a line.

With --json behind the feed each line is the value of an attribute, as JSON."""
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


def assign(rule: dict, feed: str, unit: str) -> str:
    """The variant of a unit on a feed; "" for none."""
    if feed not in rule["feeds"]:
        return ""
    if rule["unit"] in ("viewer", "entity"):
        if unit in rule.get("elsewhere", {}).get(feed, []):
            return ""
        if unit in rule.get("forced", {}):
            return rule["forced"][unit]
    slot = murmur3(f"{rule['salt']}/{unit}".encode()) % 10000
    if not 0 < len(unit.encode()) <= 512 or not any(s["from"] <= slot <= s["to"] for s in rule["slots"]):
        return ""
    draw = murmur3(f"{rule['salt']}/{rule['experiment']}/{unit}".encode()) % 10000
    for arm in rule["arms"]:
        draw -= arm["weight"]
        if draw < 0:
            return arm["variant"]


if __name__ == "__main__":
    rule = json.load(open(sys.argv[1], encoding="utf-8"))
    for line in open(sys.stdin.fileno(), encoding="utf-8", newline="\n"):
        text = line.rstrip("\n")
        print(assign(rule, sys.argv[2], unit_of(json.loads(text, parse_int=float)) if "--json" in sys.argv else text))
