#!/usr/bin/env bash
# Train PHiSeg in 3-D on LIDC nodules, and score it on the nodules that lidc-nodule, a 2-D model, is scored on.
# Usage: run.sh SLICES.npz VOLUMES.npz OUT (a folder outside the repository). Run it again to resume; with another
# number of steps (STEPS), use another OUT.
set -euo pipefail
slices=$(realpath "$1") volumes=$(realpath "$2")
root=$(cd "$(dirname "$0")/../.." && pwd)
here=$root/experiments/lidc_volumes_3d
bin=${BIN:-$root/.venv/bin}
mkdir -p "$3" && cd "$3"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
steps=${STEPS:-4000} # 30 minutes on one core with AVX-512

if [ ! -d data ]; then
  "$bin/python" "$here/volumes.py" "$slices" "$volumes" volumes.npz
  "$bin/phiseg" prepare arrays volumes.npz data --volumes --rescale 5.4901960784 -1000 --window -1000 400 --size 64 \
    --classes background nodule --centred-on nodule --modality CT --plane axial
  rm volumes.npz
fi
"$bin/phiseg" train phiseg3d-small --data data --out run --resume --train.steps "$steps" --train.validate_every "$steps" \
  --train.patch_size '[8, 64, 64]' --augment.quarter_turns true --augment.rotation_degrees 180 --augment.probability 0.8 \
  --model.norm group --model.presence true --train.annotations_per_image 4 --train.validation_samples 8
if [ ! -f 3d.csv ]; then
  "$bin/python" "$root/experiments/lidc_volumes/score.py" run/model "$volumes" --out 3d.part.csv \
    --num-samples "${SAMPLES:-64}"
  mv 3d.part.csv 3d.csv
fi
cp "$root/experiments/lidc_volumes/results/nodules.csv" 2d.csv
"$bin/python" "$here/compare.py" data 2d.csv 3d.csv | tee nodules.md
