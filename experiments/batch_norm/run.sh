#!/usr/bin/env bash
# Which batch norm statistics should a model sample with? Usage: run.sh OUT (a folder outside the repository; resumable).
# Trains a model while it collects statistics in one way, and scores the same weights with these and with recalibrated ones.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
bin=$here/../../.venv/bin
mkdir -p "$1" && cd "$1"

[ -d data ] || "$bin/phiseg" prepare phantom lesion data --size 64 --num-cases 500 --seed 0
for model in phiseg-small probunet-small; do
  "$bin/phiseg" train $model --data data --out $model --resume --train.steps 400 --train.validate_every 200 \
    --train.norm_statistics running
  "$bin/python" "$here/measure.py" $model data | tee -a results.md
done
