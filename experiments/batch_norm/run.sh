#!/usr/bin/env bash
# Which batch norm statistics should a model sample with? Trains the same network with the same seed under each answer
# and scores it on the validation split. Usage: run.sh OUT [MODEL] (OUT: a folder outside the repository; resumable).
set -euo pipefail
repo=$(cd "$(dirname "$0")/../.." && pwd)
phiseg=$repo/.venv/bin/phiseg
mkdir -p "$1" && cd "$1"

[ -d data ] || "$phiseg" prepare phantom lesion data --size 64 --num-cases 500 --seed 0
score() { # MODEL NAME SETTING...
  local model=$1 name=$1-$2
  shift 2
  "$phiseg" train "$model" --data data --out "$name" --resume --train.steps 400 --train.validate_every 200 "$@"
  [ -d "$name-eval" ] || "$phiseg" evaluate "$name" --data data --split val --num-samples 50 --method "$name" --out "$name-eval"
}
for model in ${2:-phiseg-small probunet-small}; do
  for statistics in running both recalibrated; do
    score $model $statistics --train.norm_statistics $statistics
  done
  score $model group --model.norm group
done
for model in ${2:-phiseg-small probunet-small}; do
  "$phiseg" compare $model-{running,both,recalibrated,group}-eval --out $model-report --overwrite
done
