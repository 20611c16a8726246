#!/usr/bin/env bash
# Which batch norm statistics should a model sample with? Usage: run.sh OUT (a folder outside the repository; resumable).
# Trains models that keep running averages, and scores the same weights with these and with recalibrated statistics.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
bin=$here/../../.venv/bin
mkdir -p "$1" && cd "$1"

[ -d data ] || "$bin/phiseg" prepare phantom lesion data --size 64 --num-cases 500 --seed 0
runs=()
for model in phiseg-small probunet-small; do
  settings=(--train.learning_rate 0.001) # the recipes' settings when the table was made
  [ $model = phiseg-small ] && settings+=(--model.embedding_channels 64)
  for budget in "200 constant" "400 cosine"; do
    read -r steps schedule <<< "$budget"
    run=$model-$steps-$schedule
    runs+=("$run")
    "$bin/phiseg" train $model --data data --out "$run" --resume --train.steps "$steps" --train.schedule "$schedule" \
      --train.validate_every 200 --train.norm_statistics running "${settings[@]}"
  done
done
"$bin/python" "$here/measure.py" data cases.csv "${runs[@]}" | tee table.md
