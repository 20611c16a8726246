#!/usr/bin/env bash
# Train and score lidc-nodule, the bundled model. Usage: run.sh SLICES.npz VOLUMES.npz OUT (outside the repository).
# Run it again to resume. The two trainings take about two hours together on one core with bfloat16 instructions.
# Without them, use PRECISION=32-true, which takes about twice as long.
set -euo pipefail
slices=$(realpath "$1") volumes=$(realpath "$2")
root=$(cd "$(dirname "$0")/../.." && pwd)
phiseg=$root/.venv/bin/phiseg python=$root/.venv/bin/python
mkdir -p "$3" && cd "$3"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
crop="--window -1000 400 --size 64 --classes background nodule --centred-on nodule --modality CT --plane axial"

# 1. Data: all annotated slices (to score), and the same with slices beyond the ends of 32 nodules (to train).
if [ ! -d slices ]; then
  "$phiseg" prepare arrays "$slices" slices.part $crop --rescale 5.4901960784 -1000 --overwrite
  "$phiseg" data split slices.part --hold-out val --fractions 90,10,0 --seed 0 # the file's val is reported as test
  mv slices.part slices
fi
if [ ! -d margins ]; then
  "$python" "$root/experiments/lidc_slices/with_margins.py" "$slices" "$volumes" margins.npz
  "$phiseg" prepare arrays margins.npz margins $crop
fi
[ -f everyone/splits.json ] || "$python" "$root/experiments/lidc_nodule/splits.py" slices margins everyone

# 2. Train on a part of the patients, and score.
train="--resume --model.context 1 --model.presence true --model.channels [32,32,32,64,64,64] --train.annotations_per_image 4
  --train.validation_samples 8 --train.precision ${PRECISION:-bf16-mixed}"
"$phiseg" train phiseg --data margins --out chosen --train.steps 12000 --train.validate_every 3000 \
  --train.learning_rate 0.002 --train.warmup_steps 200 $train
"$phiseg" evaluate chosen --data slices --split test --num-samples 100 --out chosen-eval --overwrite
"$python" "$root/experiments/lidc_volumes/score.py" chosen "$volumes" --noise-length 5 --noise-shared 0.2 --store

# 3. Bundled weights: continue on all patients but five.
"$phiseg" train phiseg --data everyone --out bundled --train.initial_weights chosen --train.learning_rate 0.0007 \
  --train.steps 2000 --train.validate_every 2000 $train
