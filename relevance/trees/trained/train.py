#!/usr/bin/env python3
"""Trains small models on synthetic data with whatever of LightGBM and XGBoost
is installed, and stores what the library itself predicts for nasty rows.

    python train.py OUT [PATTERN [ROWS]]

writes OUT/LIBRARY-VERSION/NAME.txt, .json or .ubj, the model, and NAME.want,
for the names that the pattern matches. train.sh runs it for many versions.
"""

import json
import os
import re
import sys
import warnings

import numpy as np

warnings.filterwarnings("ignore")
out_dir = sys.argv[1]
pattern = re.compile(sys.argv[2] if len(sys.argv) > 2 else "")
ROWS = int(sys.argv[3]) if len(sys.argv) > 3 else 400


def data(seed=1, categories=0):
    """Six columns: plain, with many zeros, small integers, with holes, huge and
    tiny, and either a category or plain."""
    r = np.random.RandomState(seed)
    x = np.empty((ROWS, 6))
    x[:, 0] = r.normal(size=ROWS)
    x[:, 1] = np.where(r.rand(ROWS) < 0.5, 0, r.normal(size=ROWS))
    x[:, 2] = r.randint(-3, 8, ROWS)
    x[:, 3] = np.where(r.rand(ROWS) < 0.3, np.nan, r.normal(size=ROWS))
    x[:, 4] = r.choice([-1, 1], ROWS) * np.exp(r.uniform(-20, 20, ROWS))
    x[:, 5] = r.randint(0, categories, ROWS) if categories else r.rand(ROWS)
    x = np.array([[float("%.4g" % v) for v in row] for row in x])
    effect = r.normal(size=max(categories, 1))
    y = x[:, 0] + np.sin(3 * x[:, 1]) + 0.3 * x[:, 2] + np.where(np.isnan(x[:, 3]), 1.5, x[:, 3]) + np.tanh(x[:, 4])
    y += 2 * effect[x[:, 5].astype(int)] if categories else x[:, 5]
    return x, y + 0.1 * r.normal(size=ROWS), r


def nasty(x, thresholds, single, categories):
    """Rows on and beside the thresholds, and rows of odd values."""
    r = np.random.RandomState(7)
    pick = lambda: x[r.randint(len(x))].copy()
    rows = [pick() for _ in range(12)]
    r.shuffle(thresholds)
    kind = np.float32 if single else np.float64
    for feature, t in thresholds[:10]:
        with np.errstate(over="ignore"):
            t = kind(t)
            for v in (t, np.nextafter(t, kind(-np.inf)), np.nextafter(t, kind(np.inf))):
                if np.isfinite(v):
                    row = pick()
                    row[feature] = v
                    rows.append(row)
            if single:  # doubles that become the threshold when rounded
                row = pick()
                row[feature] = np.nextafter(np.float64(t), np.inf)
                rows.append(row)
    odd = [0.0, -0.0, np.nan, 1e-36, -1e-36, 1e-35, float(np.float32(1e-35)), -float(np.float32(1e-35)), 1e-34, 1e30, -1e30]
    odd += [3.5e-46, 1e-45, 16777217.0] if single else [np.inf, -np.inf, 1e300, -1e300, 1e301, 5e-324]
    rows += [np.full(6, v) for v in odd]
    for i in range(8):
        row = pick()
        row[r.randint(6)] = odd[r.randint(len(odd))]
        rows.append(row)
    if categories:
        for c in (-1, -0.5, 0.5, 1.9, -0.0, categories - 1, categories, categories + 40, 1e6, 16777215, 16777216, 2147483647, 2147483648, -2147483649, 1e10, np.nan):
            row = pick()
            row[5] = c
            rows.append(row)
    return np.array(rows)


def write(name, model, suffix, rows, raw, pred, leaves):
    """Stores a model and what it predicts: a line a row of what goes in, raw
    scores, scores, leaves."""
    n = len(rows)
    with open(os.path.join(path, name + suffix), "wb") as f:
        f.write(model)
    columns = [np.asarray(v, np.float64).reshape(n, -1) for v in (rows, raw, pred)]
    with open(os.path.join(path, name + ".want"), "w") as f:
        for i in range(n):
            parts = [" ".join(short(v) for v in c[i]) for c in columns]
            parts.append(" ".join(str(int(v)) for v in np.asarray(leaves).reshape(n, -1)[i]) if leaves is not None else "")
            f.write("|".join(parts) + "\n")
    print(name, n, "rows")


def short(v):
    s = repr(float(v))
    return s[:-2] if s.endswith(".0") else s


# ---------------------------------------------------------------- LightGBM

def lightgbm_thresholds(text):
    found, features = [], []
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key == "split_feature":
            features = [int(v) for v in value.split()]
        elif key == "threshold":
            found += list(zip(features, [float(v) for v in value.split()]))
    return found


def lightgbm_models(lgb):
    old = lgb.__version__ < "3"
    new = lgb.__version__ >= "4"

    def train(name, params, categories=0, rounds=5, label=None, group=None, change=None, custom=None):
        if not pattern.search(name):
            return
        x, target, r = data(categories=categories)
        if change is not None:
            change(x)
        if label is not None:
            target = label(target, r)
        p = dict(num_leaves=6, min_data_in_leaf=5, verbosity=-1, num_threads=1, seed=3, deterministic=True)
        p.update(params)
        if old:
            p.pop("deterministic")
        try:
            d = lgb.Dataset(x, target, categorical_feature=[5] if categories else "auto", group=group, free_raw_data=False, params=dict(p))
            more = {}
            if custom and new:
                p["objective"] = custom
            elif custom:
                p["objective"], more = "none", dict(fobj=custom)
            b = lgb.train(p, d, num_boost_round=rounds, **more)
            text = b.model_to_string()
            temp = os.path.join(path, "temp")
            rows = nasty(x, lightgbm_thresholds(text), False, categories)
            with open(temp, "w") as f:
                f.write(text)
            b = lgb.Booster(model_file=temp)  # as others would load it
            os.remove(temp)
            wants = (b.predict(rows, raw_score=True), b.predict(rows), b.predict(rows, pred_leaf=True))
            write(name, text.encode(), ".txt", rows, *wants)
            if name in ("rf", "linear", "single_leaf", "categories_20", "zero_as_missing", "no_missing", "multiclass"):
                write(name + "_dump", json.dumps(b.dump_model()).encode(), ".json", rows, *wants)
        except Exception as e:  # this version lacks it
            print("SKIP", name, repr(e)[:150])

    positive = lambda y, r: np.exp(y / 4)
    binary = lambda y, r: (y > 1).astype(int)
    share = lambda y, r: 1 / (1 + np.exp(-y))
    three = lambda y, r: np.digitize(y, [0, 2])
    grades = lambda y, r: np.clip(np.digitize(y, [0, 1, 2, 3]), 0, 4)

    for o in ("regression", "regression_l1", "huber", "fair", "quantile", "mape"):
        train(o, dict(objective=o))
    for o in ("poisson", "gamma", "tweedie"):
        train(o, dict(objective=o), label=positive)
    train("regression_sqrt", dict(objective="regression", reg_sqrt=True))
    train("l1_sqrt", dict(objective="l1", reg_sqrt=True))
    train("huber_sqrt", dict(objective="huber", reg_sqrt=True))
    train("binary", dict(objective="binary"), label=binary)
    train("binary_sigmoid", dict(objective="binary", sigmoid=0.7, is_unbalance=True), label=binary)
    train("cross_entropy", dict(objective="cross_entropy"), label=share)
    train("cross_entropy_lambda", dict(objective="cross_entropy_lambda"), label=share)
    train("multiclass", dict(objective="multiclass", num_class=3), label=three)
    train("multiclassova", dict(objective="multiclassova", num_class=3, sigmoid=1.3), label=three)
    train("multiclass_rf", dict(objective="multiclass", num_class=3, boosting="rf", bagging_freq=1, bagging_fraction=0.7, feature_fraction=0.8), label=three)
    # A class without a row, and one that nearly all rows have.
    train("multiclass_empty", dict(objective="multiclass", num_class=4), label=lambda y, r: np.where(y > 4, 2, 0))
    train("lambdarank", dict(objective="lambdarank"), label=grades, group=[20] * (ROWS // 20))
    train("rank_xendcg", dict(objective="rank_xendcg"), label=grades, group=[20] * (ROWS // 20))
    train("dart", dict(objective="regression", boosting="dart", drop_rate=0.5), rounds=8)
    train("goss", dict(objective="binary", boosting="goss"), label=binary)
    train("rf", dict(objective="regression", boosting="rf", bagging_freq=1, bagging_fraction=0.7), rounds=7)
    train("rf_binary", dict(objective="binary", boosting="rf", bagging_freq=1, bagging_fraction=0.7), label=binary, rounds=7)
    train("linear", dict(objective="regression", linear_tree=True))
    train("linear_binary", dict(objective="binary", linear_tree=True, linear_lambda=0.1), label=binary)
    train("linear_single_leaf", dict(objective="regression", linear_tree=True, min_data_in_leaf=ROWS - 10))
    train("linear_categories", dict(objective="regression", linear_tree=True, min_data_per_group=5, cat_smooth=1), categories=20)
    for n in (3, 20, 40, 100):
        train("categories_%d" % n, dict(objective="regression", min_data_per_group=2, cat_smooth=1, cat_l2=1, num_leaves=8), categories=n)
    train("categories_one_hot", dict(objective="regression", max_cat_to_onehot=50), categories=20)
    holes = lambda x: x.__setitem__((slice(0, 60), 5), np.nan)
    train("categories_missing", dict(objective="regression", min_data_per_group=2, cat_smooth=1), categories=20, change=holes)
    train("categories_zero_missing", dict(objective="regression", min_data_per_group=2, cat_smooth=1, zero_as_missing=True), categories=20, change=holes)
    train("categories_no_missing", dict(objective="regression", min_data_per_group=2, cat_smooth=1, use_missing=False), categories=20, change=holes)
    train("sparse_categories", dict(objective="regression", min_data_per_group=1, cat_smooth=1), categories=3, change=lambda x: x.__setitem__((slice(None), 5), x[:, 5] * 1000))
    train("zero_as_missing", dict(objective="regression", zero_as_missing=True, num_leaves=15))
    train("no_missing", dict(objective="regression", use_missing=False, num_leaves=15))
    train("monotone", dict(objective="regression", monotone_constraints=[1, 0, 1, 0, -1, 0]))
    train("single_leaf", dict(objective="regression", min_data_in_leaf=ROWS - 10))
    train("single_leaf_binary", dict(objective="binary", min_data_in_leaf=ROWS - 10), label=binary)
    train("one_round", dict(objective="regression"), rounds=1)
    train("deep", dict(objective="regression", num_leaves=ROWS * 5 // 8, min_data_in_leaf=1, min_sum_hessian_in_leaf=0), rounds=2)
    train("infinite", dict(objective="regression", num_leaves=15), change=lambda x: (x.__setitem__((slice(0, 50), 0), np.inf), x.__setitem__((slice(50, 90), 1), -np.inf), x.__setitem__((slice(100, 200), 2), 1e301)))
    train("integers", dict(objective="regression", num_leaves=15), change=lambda x: x.__setitem__((slice(None), 0), np.round(x[:, 0])))
    train("near_zero", dict(objective="regression", num_leaves=20, min_data_in_bin=1, min_data_in_leaf=1), change=lambda x: x.__setitem__((slice(None), 0), np.sign(x[:, 0]) * np.where(np.abs(x[:, 0]) > 1, 1e-35, 1e-37)))
    train("extra_trees", dict(objective="regression", extra_trees=True, path_smooth=2.0))
    train("custom", dict(), custom=lambda score, d: (score - d.get_label(), np.ones_like(score)))


# ----------------------------------------------------------------- XGBoost

def xgboost_thresholds(model):
    learner = json.loads(model.replace(b":NaN", b":null").replace(b"[NaN", b"[null").replace(b",NaN", b",null"))["learner"]
    booster = learner["gradient_booster"]
    trees = booster.get("gbtree", booster).get("model", {}).get("trees", [])
    found = []
    for t in trees:
        for left, feature, value in zip(t["left_children"], t["split_indices"], t["split_conditions"]):
            if left >= 0 and value is not None:
                found.append((feature, value))
    return found


def xgboost_models(xgb):
    version = tuple(int(v) for v in xgb.__version__.split(".")[:2])
    if version < (1, 0):
        raise SystemExit("before 1.0 there is no JSON")

    def train(name, params, rounds=5, label=None, categories=0, change=None, group=None, bounds=None, formats=("json",)):
        if not pattern.search(name):
            return
        x, target, r = data(categories=categories)
        if change is not None:
            change(x)
        if label is not None:
            target = label(target, r)
        p = dict(max_depth=3, eta=0.4, nthread=1, seed=3, verbosity=0)
        p.update(params)
        try:
            matrix = lambda v, y=None: xgb.DMatrix(v, y, **(dict(feature_types=["q"] * 5 + ["c"], enable_categorical=True) if categories else {}))
            d = matrix(x, target)
            if group:
                d.set_group(group)
            if bounds:
                low, high = bounds(target)
                d.set_float_info("label_lower_bound", low)
                d.set_float_info("label_upper_bound", high)
            b = xgb.train(p, d, num_boost_round=rounds)
            temp = os.path.join(path, "temp.json")
            b.save_model(temp)
            model = open(temp, "rb").read()
            rows = nasty(x, xgboost_thresholds(model), True, categories)
            fresh = xgb.Booster({"nthread": 1}, model_file=temp)  # as others would load it
            os.remove(temp)
            m = matrix(rows)
            raw, pred = fresh.predict(m, output_margin=True), fresh.predict(m)
            leaves = None if p.get("booster") == "gblinear" else fresh.predict(m, pred_leaf=True)
            write(name, model, ".json", rows, raw, pred, leaves)
            if "ubj" in formats and version >= (1, 6):
                write(name + "_ubj", bytes(b.save_raw("ubj")), ".ubj", rows, raw, pred, leaves)
        except Exception as e:  # this version lacks it
            print("SKIP", name, repr(e)[:300].replace("\n", " "))

    positive = lambda y, r: np.exp(y / 4)
    binary = lambda y, r: (y > 1).astype(int)
    share = lambda y, r: 1 / (1 + np.exp(-y))
    three = lambda y, r: np.digitize(y, [0, 2])
    grades = lambda y, r: np.clip(np.digitize(y, [0, 1, 2, 3]), 0, 4)
    both = ("json", "ubj")

    train("squarederror", dict(objective="reg:squarederror"), formats=both)
    train("squarederror_base", dict(objective="reg:squarederror", base_score=2.5), formats=both)
    train("squaredlogerror", dict(objective="reg:squaredlogerror"), label=positive)
    train("pseudohuber", dict(objective="reg:pseudohubererror"))
    train("absolute", dict(objective="reg:absoluteerror"))
    train("quantile", dict(objective="reg:quantileerror", quantile_alpha=0.7))
    train("expectile", dict(objective="reg:expectileerror", expectile_alpha=0.7))
    train("quantile_two", dict(objective="reg:quantileerror", quantile_alpha=[0.3, 0.7]))
    train("reg_logistic", dict(objective="reg:logistic"), label=share)
    train("reg_logistic_base", dict(objective="reg:logistic", base_score=0.2), label=share)
    train("gamma", dict(objective="reg:gamma"), label=positive)
    train("gamma_base", dict(objective="reg:gamma", base_score=2), label=positive)
    train("tweedie", dict(objective="reg:tweedie"), label=positive)
    train("poisson", dict(objective="count:poisson"), label=positive)
    train("poisson_base", dict(objective="count:poisson", base_score=1.7), label=positive)
    train("cox", dict(objective="survival:cox"), label=lambda y, r: np.where(r.rand(len(y)) < 0.3, -1, 1) * np.exp(y / 4))
    train("aft", dict(objective="survival:aft", aft_loss_distribution="normal"), label=positive, bounds=lambda y: (y, y * 1.5))
    train("logistic", dict(objective="binary:logistic"), label=binary, formats=both)
    train("logistic_base", dict(objective="binary:logistic", base_score=0.3), label=binary)
    train("logistic_zero", dict(objective="binary:logistic"), label=lambda y, r: np.zeros(len(y)))
    train("logitraw", dict(objective="binary:logitraw"), label=binary)
    train("logitraw_base", dict(objective="binary:logitraw", base_score=0.3), label=binary)
    train("hinge", dict(objective="binary:hinge"), label=binary)
    train("softprob", dict(objective="multi:softprob", num_class=3), label=three, formats=both)
    train("softprob_base", dict(objective="multi:softprob", num_class=3, base_score=0.8), label=three)
    train("softmax", dict(objective="multi:softmax", num_class=3), label=three)
    train("softprob_parallel", dict(objective="multi:softprob", num_class=3, num_parallel_tree=3, subsample=0.7), label=three, rounds=2)
    train("softprob_vector", dict(objective="multi:softprob", num_class=3, multi_strategy="multi_output_tree", tree_method="hist"), label=three, rounds=2)
    for o in ("pairwise", "ndcg", "map"):
        train("rank_" + o, dict(objective="rank:" + o), label=grades if o != "map" else binary, group=[20] * (ROWS // 20))
    train("rf", dict(objective="reg:squarederror", num_parallel_tree=6, subsample=0.7, eta=1), rounds=1)
    train("dart", dict(objective="reg:squarederror", booster="dart", rate_drop=0.5, one_drop=1), rounds=8, formats=both)
    train("dart_base", dict(objective="binary:logistic", booster="dart", rate_drop=0.5, one_drop=1, base_score=0.3), rounds=8, label=binary)
    train("dart_softprob", dict(objective="multi:softprob", booster="dart", num_class=3, rate_drop=0.5, one_drop=1), rounds=4, label=three)
    train("gblinear", dict(objective="reg:squarederror", booster="gblinear", updater="coord_descent", eta=0.1), formats=both, change=lambda x: x.__setitem__((slice(None), 4), np.tanh(x[:, 4])))
    train("gblinear_logistic", dict(objective="binary:logistic", booster="gblinear", updater="coord_descent", base_score=0.4), label=binary, change=lambda x: x.__setitem__((slice(None), 4), np.tanh(x[:, 4])))
    train("gblinear_softprob", dict(objective="multi:softprob", booster="gblinear", updater="coord_descent", num_class=3), label=three, change=lambda x: x.__setitem__((slice(None), 4), np.tanh(x[:, 4])))
    for method in ("exact", "approx", "hist"):
        train("method_" + method, dict(objective="reg:squarederror", tree_method=method))
    for n in (3, 20, 40, 100):
        train("categories_%d" % n, dict(objective="reg:squarederror", tree_method="hist", max_cat_to_onehot=1, max_depth=4), categories=n, formats=both if n == 40 else ("json",))
    train("categories_one_hot", dict(objective="reg:squarederror", tree_method="hist", max_cat_to_onehot=50), categories=20)
    holes = lambda x: x.__setitem__((slice(0, 60), 5), np.nan)
    train("categories_missing", dict(objective="reg:squarederror", tree_method="hist", max_cat_to_onehot=1), categories=20, change=holes)
    train("categories_softprob", dict(objective="multi:softprob", num_class=3, tree_method="approx", max_cat_to_onehot=1), categories=20, label=three)
    train("monotone", dict(objective="reg:squarederror", monotone_constraints="(1,0,1,0,-1,0)", tree_method="hist"))
    train("lossguide", dict(objective="reg:squarederror", tree_method="hist", grow_policy="lossguide", max_leaves=12, max_depth=0))
    train("pruned", dict(objective="reg:squarederror", gamma=20, tree_method="exact"))
    train("single_leaf", dict(objective="reg:squarederror", gamma=1e9))
    train("single_leaf_logistic", dict(objective="binary:logistic", gamma=1e9), label=binary)
    train("deep", dict(objective="reg:squarederror", max_depth=14, min_child_weight=0, reg_lambda=0), rounds=2)
    train("many", dict(objective="reg:squarederror", max_depth=2, eta=0.05), rounds=60)
    train("float_edges", dict(objective="reg:squarederror"), change=lambda x: x.__setitem__((slice(None), 0), 16777216 + np.round(x[:, 0] * 3)))
    train("two_targets", dict(objective="reg:squarederror"), label=lambda y, r: np.stack([y, -y], 1))


for module, models in (("lightgbm", lightgbm_models), ("xgboost", xgboost_models)):
    try:
        library = __import__(module)
    except ImportError:
        continue
    path = os.path.join(out_dir, "%s-%s" % (module, library.__version__))
    os.makedirs(path, exist_ok=True)
    models(library)
