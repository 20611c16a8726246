#!/usr/bin/env bash
# 2-D and 3-D models on a phantom whose true distribution of volumes is known, with equal training time.
#   run.sh OUT          all rows; OUT is a folder outside the repository
#   run.sh OUT norms    normalisations of PHiSeg 3-D, 1,000 steps each, on the validation volumes
# Run it again to resume. MINUTES=15 is the training budget of a row on one core.
set -euo pipefail
shopt -s inherit_errexit # a failure inside $(...) ends the script
here=$(cd "$(dirname "$0")" && pwd)
bin=${BIN:-$here/../../.venv/bin}
mkdir -p "$1" && cd "$1"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}

[ -d volumes ] || "$bin/phiseg" prepare phantom lesion3d volumes --size 32 --num-cases "${CASES:-400}" --seed 0
[ -d slices ] || "$bin/python" "$here/slices.py" volumes slices

minutes=${MINUTES:-15}
train() { # NAME RECIPE DATA SETTINGS...: the number of steps is that of the budget
  [ -f "steps-$1" ] || "$bin/python" "$here/../budget.py" "$minutes" "${@:2}" > "steps-$1.part"
  [ -f "steps-$1" ] || mv "steps-$1.part" "steps-$1"
  "$bin/phiseg" train "$2" --data "$3" --out "runs/$1" --resume --train.steps "$(cat "steps-$1")" \
    --train.validate_every 1000000 --train.validation_samples 4 "${@:4}"
}
# One resolution and one level fewer than in the recipes, because images are half as large.
channels="--model.channels [16,16,24,32,48]" levels="--model.num_levels 4"
# Patches as deep as the deepest volumes, so that batch norm describes whole volumes.
whole="--train.batch_size 2 --train.patch_size [24,32,32]"
if [ "${2:-}" = norms ]; then
  for norm in batch:0.003 group:0.003 none:0.001; do
    name=${norm%:*}
    "$bin/phiseg" train phiseg3d-small --data volumes --out "norms/$name" --resume --train.steps 1000 \
      --train.validate_every 1000 --train.validation_samples 4 $channels $levels $whole \
      --model.norm "$name" --train.learning_rate "${norm#*:}"
    [ -d "norms/val-$name" ] || "$bin/phiseg" sample "norms/$name/model" --data volumes --split val --num-samples 32 \
      --out "norms/val-$name"
  done
  "$bin/python" "$here/truth.py" volumes val norms/val-* --out norms.csv
  exit
fi
train slices phiseg-small slices $channels $levels
train context phiseg-small slices --model.context 1 $channels $levels
train probunet3d probunet3d-small volumes $channels $whole --model.norm batch
train phiseg3d phiseg3d-small volumes $channels $levels $whole --model.norm batch

mkdir -p samples
slicewise() { # MODEL SPLIT NUMBER LENGTH
  out=samples/$2-$1-$4.npz
  [ -f "$out" ] || "$bin/python" "$here/slicewise.py" "runs/$1/model" volumes "$out" --split "$2" --num-samples "$3" --noise-length "$4"
}
best() { # MODEL: the length with the lowest CRPS on the validation volumes
  for length in 0 2 4 8 inf; do slicewise "$1" val 32 $length; done
  "$bin/python" "$here/truth.py" volumes val samples/val-"$1"-*.npz --out "lengths-$1.csv" > "lengths-$1.md"
  "$bin/python" "$here/truth.py" --best "lengths-$1.csv"
}
length_slices=$(best slices) length_context=$(best context)
for length in 0 inf "$length_slices"; do slicewise slices test 100 "$length"; done
slicewise context test 100 "$length_context"
for model in probunet3d phiseg3d; do
  [ -d "samples/test-$model" ] || "$bin/phiseg" sample "runs/$model/model" --data volumes --split test --num-samples 100 \
    --out "samples/test-$model"
done
"$bin/python" "$here/truth.py" volumes test samples/test-* --out volumes.csv | tee volumes.md
for samples in samples/test-*; do
  name=$(basename "$samples" .npz)
  [ -d "evals/$name" ] || "$bin/phiseg" score "$samples" --data volumes --split test --out "evals/$name"
done
"$bin/phiseg" compare evals/* --out table
