#!/usr/bin/env bash
# The paper's table on every annotated slice of LIDC nodules. Usage: run.sh 64|128 SLICES.npz OUT (outside the repository).
# Run it again to resume. WORKERS=2 trains two rows at a time, MINUTES=60 is the budget of a row on one core.
# On a GPU, the full network of the paper: METHODS="phiseg-reference phiseg-l1 probunet" MINUTES=1440 run.sh 128 SLICES.npz OUT
set -euo pipefail
size=$1
slices=$(realpath "$2")
phiseg=$(cd "$(dirname "$0")/../.." && pwd)/.venv/bin/phiseg
mkdir -p "$3" && cd "$3"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} # one core for each row

if [ ! -d "data$size" ]; then
  "$phiseg" prepare arrays "$slices" "data$size" --rescale 5.4901960784 -1000 --window -1000 400 --size "$size" \
    --classes background nodule --centred-on nodule --modality CT --plane axial
  "$phiseg" data split "data$size" --hold-out val --fractions 90,10,0 --seed 0 # the file's val is reported as test
fi

augment="--augment.rotation_degrees 180 --augment.probability 0.8 --augment.quarter_turns true --augment.flip_vertical true"
common="--data data$size --minutes ${MINUTES:-60} --workers ${WORKERS:-2} $augment --train.validation_samples 8"
if [ "$size" = 64 ]; then
  "$phiseg" experiment table1 $common --out table64 --rows 'all/*' 'one/phiseg-small/*' 'one/phiseg-l1-small/*' \
    'one/probunet-small/*' 'one/unet-small/*'
  "$phiseg" experiment table1 $common --out table64 --seeds 0 1 2 --methods phiseg-small probunet-small cvae-small --regimes all
else
  # One more resolution than at 64 x 64, so that the coarsest latent has 2 x 2 pixels at both sizes.
  methods=${METHODS:-phiseg-small phiseg-l1-small probunet-small}
  case "$methods" in *-small*) deeper="--model.channels [16,16,24,32,48,48,48]" ;; *) deeper="" ;; esac
  "$phiseg" experiment table1 $common --out table128 --methods $methods --regimes all $deeper
fi
