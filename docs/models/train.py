"""Trains the model of docs/models.md: writes model.txt, golden.ndjson and
feed.ndjson, which is what LightGBM gives the records of the page's feed.

    pip install lightgbm && python3 docs/models/train.py   (and zstd, to unpack)

Who likes what, learned from the bundled network. A like is an example of a
post or comment that its viewer liked; what those the viewer follows had said in
the month before are examples of what the viewer left alone. A feature here is
what the feature of the same name in the page's spec computes, with the counters
of that moment; the golden rows say of what record, viewer and instant. The
network is made up, so that there is little to learn from it.
"""
import json
import math
import pathlib
import random
import subprocess
from datetime import datetime, timezone

import lightgbm
import numpy

HERE = pathlib.Path(__file__).parent
SAMPLE = HERE.parent.parent / "internal" / "sample" / "data"
HOUR, DAY = 3600.0, 86400.0
VERBS = {"post": 0, "comment": 1, "share": 2, "like": 3}
LANGUAGES = {"en": 0, "es": 1, "zh": 2, "pt": 3, "de": 4, "ru": 5, "fr": 6, "ar": 7, "ko": 8, "id": 9}


def lines(name):
    text = subprocess.run(["zstd", "-dcq", SAMPLE / name], check=True, capture_output=True).stdout
    return [json.loads(line) for line in text.splitlines()]


def seconds(record):
    at = datetime.strptime(record["created_at"], "%Y-%m-%dT%H:%M:%S.%fZ")
    return at.replace(tzinfo=timezone.utc).timestamp()


def bucketize(x, bounds):
    return float(sum(b <= x for b in bounds))


def features(record, likes, comments, viewer, as_of):
    age = as_of - seconds(record)
    text = record.get("text", "")
    fresh = lambda half: 2.0 ** -(age / half)
    return {
        "age_hours": age / HOUR,
        "age_bucket": bucketize(age, [HOUR, 6 * HOUR, DAY, 7 * DAY]),
        "fresh_hour": fresh(HOUR),
        "fresh_day": fresh(DAY),
        "fresh_week": fresh(7 * DAY),
        "likes": math.log1p(likes),
        "comments": math.log1p(comments),
        "fresh_likes": fresh(DAY) * math.log1p(likes),
        "likes_a_day": likes / max(age / DAY, 1.0),
        "comments_a_day": comments / max(age / DAY, 1.0),
        "talk": comments / (likes + comments) if likes + comments else math.nan,
        "discussed": bucketize(comments, [1, 3, 10]),
        "verb": float(VERBS.get(record["verb"], -1)),
        "language": float(LANGUAGES.get(record.get("language", ""), -1)),
        "same_language": float(viewer["language"] != "" and record.get("language", "") == viewer["language"]),
        "same_country": float(viewer["country"] != "" and record.get("country", "") == viewer["country"]),
        "text_length": math.log1p(len(text)),
        "photo": float(text.startswith("a photo in ")),
        "audience": float(len(record.get("about", []))),
        "to_viewer": float(viewer["id"] in record.get("about", [])),
    }


def examples():
    records = lines("activity.ndjson.zst")
    follows = {m["member"]: m["follows"] for m in lines("follows.ndjson.zst")}
    viewers = {m: {"id": m, "language": "", "country": ""} for m in follows}
    said, by, likes, comments = {}, {}, {}, {}
    for r in records:  # oldest first
        thread = (r["object"], r.get("text", ""))
        if r["verb"] == "like":
            likes.setdefault(thread, []).append(seconds(r))
            continue
        said.setdefault(thread, r)
        by.setdefault(r["actor"], []).append(r)
        if r["verb"] == "comment":
            comments.setdefault(r["object"], []).append(seconds(r))
        if r.get("language"):
            viewers[r["actor"]] = {"id": r["actor"], "language": r["language"], "country": r.get("country", "")}

    def at(r, viewer, now):
        liked = sum(t < now for t in likes.get((r["object"], r.get("text", "")), []))
        below = sum(seconds(r) < t < now for t in comments.get(r["object"], []))
        below = min(below, r.get("comments", 0))
        of = {"record": {**r, "likes": liked, "comments": below}, "viewer": viewer, "as_of": round(now * 1000)}
        return features(r, liked, below, viewer, now), of

    chance = random.Random(1)
    for like in records:
        r = said.get((like["object"], like.get("text", ""))) if like["verb"] == "like" else None
        if r is None:
            continue
        viewer, now = viewers[like["actor"]], seconds(like)
        yield *at(r, viewer, now), 1.0
        left = [x for f in follows[viewer["id"]] for x in by.get(f, []) if now - 30 * DAY < seconds(x) < now and x is not r]
        for x in chance.sample(left, min(4, len(left))):
            yield *at(x, viewer, now), 0.0


def main():
    rows, questions, labels = zip(*examples())
    names = list(rows[0])
    x = numpy.array([list(r.values()) for r in rows])
    params = {
        "objective": "binary", "num_leaves": 12, "learning_rate": 0.1, "min_data_in_leaf": 20, "min_data_per_group": 20, "max_cat_to_onehot": 1,
        "deterministic": True, "force_row_wise": True, "num_threads": 1, "seed": 1, "verbosity": -1,
    }
    data = lightgbm.Dataset(x, numpy.array(labels), feature_name=names, categorical_feature=["verb", "language"])
    model = lightgbm.train(params, data, num_boost_round=25)
    model.save_model(HERE / "model.txt", importance_type="gain")
    scores = model.predict(x)
    print(f"{len(x)} examples, {sum(labels):.0f} liked; gain of each feature:")
    for name, gain in sorted(zip(names, model.feature_importance("gain")), key=lambda p: -p[1]):
        print(f"{name:16} {gain:10.1f}")
    with open(HERE / "golden.ndjson", "w") as golden:
        for i in range(0, len(x), max(1, len(x) // 150)):
            row = {n: None if math.isnan(v) else v for n, v in zip(names, x[i].tolist())}
            golden.write(json.dumps({"features": row, "score": float(scores[i]), **questions[i]}) + "\n")
    with open(HERE / "feed.ndjson", "w") as feed:
        for r, row in feed_of("member:9", datetime(2010, 11, 26, tzinfo=timezone.utc).timestamp()):
            feed.write(json.dumps({"id": r["id"], "score": model.predict([list(row.values())])[0]}) + "\n")


def feed_of(member, as_of):
    """The posts and comments of a fortnight on the timelines of those a member follows."""
    viewer = {"id": member, "language": "en", "country": ""}
    follows = next(set(m["follows"]) for m in lines("follows.ndjson.zst") if m["member"] == member)
    for r in lines("activity.ndjson.zst"):
        if r["verb"] in ("post", "comment") and follows & {r["actor"], *r.get("about", [])} and seconds(r) >= as_of - 14 * DAY:
            yield r, features(r, r.get("likes", 0), r.get("comments", 0), viewer, as_of)


main()
