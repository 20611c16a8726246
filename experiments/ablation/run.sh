#!/usr/bin/env bash
# What matters in PHiSeg's recipe, at equal compute. Usage: run.sh DATA OUT, with DATA the dataset data64 that
# experiments/lidc_slices/run.sh prepares, and OUT a folder outside the repository. Run it again to resume.
# Variants are scored on DATA's val, never on its test. Networks compute in bfloat16.
set -euo pipefail
export data=$(realpath "$1")
export phiseg=$(cd "$(dirname "$0")/../.." && pwd)/.venv/bin/phiseg
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} # one core for each variant
mkdir -p "$2" && cd "$2"

variant() { # NAME STEPS SETTINGS...: train, then score the validation split
  name=$1 steps=$2
  shift 2
  [ -f "evals/$name/summary.json" ] && return
  "$phiseg" train phiseg-small --data "$data" --out "runs/$name" --resume --train.steps "$steps" \
    --augment.rotation_degrees 180 --augment.probability 0.8 --augment.quarter_turns true --augment.flip_vertical true \
    --train.validate_every 1000000 --train.validation_samples 2 --train.precision bf16-mixed "$@" > "$name.log" 2>&1
  "$phiseg" evaluate "runs/$name" --data "$data" --split val --num-samples 32 --precision bfloat16 --method "$name" \
    --out "evals/$name" >> "$name.log" 2>&1
}
export -f variant

# One line per variant: name, steps, changes. With these steps, all have the operations of the first (torch's FLOP counter).
xargs -P "${WORKERS:-2}" -I{} bash -c 'variant {}' << 'VARIANTS'
default 1000
default-seed1 1000 --train.seed 1
default-seed2 1000 --train.seed 2
no-rotation 1000 --augment.rotation_degrees 0
no-augmentation 1000 --augment.enabled false
kl-unit 1000 --model.kl_weights unit
kl-reference 1000 --model.kl_weights reference
shared-encoder 1183 --model.shared_encoder true
group-norm 1000 --model.norm group
latents-finest 737 --model.latents_at finest
levels-3 808 --model.num_levels 3
VARIANTS
"$phiseg" compare evals/* --out report
