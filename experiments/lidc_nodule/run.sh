#!/usr/bin/env bash
# Train and score lidc-nodule, a model that comes with phiseg. Usage: run.sh DATA OUT, with DATA the prepared dataset of
# experiments/lidc_maxslice and OUT a folder outside the repository; resumable. WORKERS trainings run at a time.
set -euo pipefail
data=$(realpath "$1")
export phiseg=$(cd "$(dirname "$0")/../.." && pwd)/.venv/bin/phiseg data
mkdir -p "$2" && cd "$2"

seq 0 1 | xargs -P "${WORKERS:-2}" -I{} bash -c \
  '"$phiseg" train phiseg --data "$data" --out seed-{} --resume --train.seed {} --train.select_by ged_unbiased > seed-{}.log 2>&1'
"$phiseg" combine seed-0 seed-1 --out lidc-nodule --half --overwrite
"$phiseg" calibrate lidc-nodule --data "$data" | tee calibration.txt
"$phiseg" evaluate lidc-nodule --data "$data" --split test --num-samples 100 --method "2 PHiSegs" --out ensemble-eval --overwrite
"$phiseg" evaluate lidc-nodule --data "$data" --split test --num-samples 100 --method "2 PHiSegs, uncalibrated" \
  --uncalibrated --out uncalibrated-eval --overwrite
"$phiseg" evaluate seed-0 --data "$data" --split test --num-samples 100 --method "one PHiSeg" --out one-eval --overwrite
"$phiseg" compare ensemble-eval uncalibrated-eval one-eval --out report --overwrite

# The best rival with the time of one PHiSeg: a step of it takes 0.905 of the time on the same core.
"$phiseg" train probunet-small --data "$data" --out rival --resume --train.steps 11050 --train.validate_every 1105 \
  --train.select_by ged_unbiased --augment.rotation_degrees 180 --augment.probability 0.8 --augment.quarter_turns true
"$phiseg" evaluate rival --data "$data" --split test --num-samples 100 --method "Prob. U-Net, same time" --out rival-eval --overwrite
"$phiseg" compare one-eval ensemble-eval rival-eval --out rival-report --overwrite
