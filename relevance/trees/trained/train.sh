#!/bin/sh
# Makes models.tar.zst anew: a virtual environment for each version of each
# library, in a temporary directory; a few minutes and 3 GB. Of old versions it
# takes the models whose meaning has changed since. The old ones need Python
# 3.11 at most.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

train() { # VERSION PATTERN OTHERS: of a library, with what it needs
	python3 -m venv "$work/venv"
	"$work/venv/bin/pip" install -q $1 $3
	"$work/venv/bin/python" "$here/train.py" "$work/out" "$2"
	rm -rf "$work/venv"
}

train lightgbm==4.7.0 '' 'scikit-learn scipy numpy'
train xgboost==3.2.0 '' 'scikit-learn scipy numpy'

old='scikit-learn<1.3 scipy<1.12 numpy<1.24'
train lightgbm==2.2.3 '^(binary|rf|zero_as_missing|no_missing|multiclass|categories_20|categories_missing)$' "$old"
train lightgbm==3.3.5 '^(binary|linear|categories_20|categories_missing)$' "$old"
train xgboost==1.0.2 '^(squarederror|logitraw_base|dart|softprob|gblinear_logistic)$' "$old"
train xgboost==1.3.3 '^(logitraw_base|dart)$' "$old"
train xgboost==1.6.2 '^(squarederror|categories_20|categories_one_hot|categories_missing)$' "$old"
train xgboost==1.7.6 '^(dart|softmax|categories_20|categories_missing)$' "$old"
train xgboost==2.1.4 '^(quantile|categories_softprob|softprob_vector)$' "$old"

cd "$work/out"
tar --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -c ./* | zstd -19 --long -f -o "$here/models.tar.zst"
