#!/usr/bin/env bash
# What matters in PHiSeg's recipe, at equal compute. Usage: run.sh DATA OUT, with DATA the prepared dataset of
# experiments/lidc_maxslice and OUT a folder outside the repository; resumable. Judged on DATA's val, never on its test.
set -euo pipefail
data=$(realpath "$1")
export phiseg=$(cd "$(dirname "$0")/../.." && pwd)/.venv/bin/phiseg data
mkdir -p "$2" && cd "$2"

variant() { # NAME STEPS OVERRIDES...: train, then score the validation split
  name=$1 steps=$2
  shift 2
  [ -f "$name/eval/summary.json" ] && return
  "$phiseg" train phiseg-small --data "$data" --out "$name" --resume --train.steps "$steps" \
    --augment.quarter_turns true --train.validate_every "$steps" --train.checkpoint_every 250 \
    --train.select_by ged_unbiased "$@" > "$name.log" 2>&1
  "$phiseg" evaluate "$name" --data "$data" --split val --num-samples 32 --method "$name" --out "$name/eval" --overwrite \
    >> "$name.log" 2>&1
}
export -f variant

# One line a variant: name, steps, changes. The steps give all of them the operations of the first (torch's flop counter).
xargs -P "${WORKERS:-2}" -I{} bash -c 'variant {}' << 'VARIANTS'
base 1000
base-seed1 1000 --train.seed 1
rotate-180 1000 --augment.rotation_degrees 180 --augment.probability 0.8
rotate-180-seed1 1000 --augment.rotation_degrees 180 --augment.probability 0.8 --train.seed 1
no-crop 1000 --augment.min_crop_fraction 1
no-crop-seed1 1000 --augment.min_crop_fraction 1 --train.seed 1
rotate-180-no-crop 1000 --augment.rotation_degrees 180 --augment.probability 0.8 --augment.min_crop_fraction 1
rotate-180-small-crop 1000 --augment.rotation_degrees 180 --augment.probability 0.8 --augment.min_crop_fraction 0.9
kl-unit 1000 --model.kl_weights unit
kl-reference 1000 --model.kl_weights reference
batch-6 2000 --train.batch_size 6
shared-encoder 1183 --model.shared_encoder true
averaging 1000 --train.averaging 0.998
free-nats 1000 --model.free_nats 0.5
group-norm 1000 --model.norm group
residual 1000 --model.residual true
latents-finest 737 --model.latents_at finest
smooth-logits 1000 --model.upsampling bilinear
no-augmentation 1000 --augment.enabled false
weight-decay 1000 --train.weight_decay 0.05
batch-24 500 --train.batch_size 24
levels-3 808 --model.num_levels 3
contrast 1000 --augment.contrast 0.1 --augment.brightness 0.05
rate-0.006 1000 --train.learning_rate 0.006
warm-up 1000 --train.warmup_steps 100
narrow 1547 --model.channels [8,16,24,32,48,48]
wide 483 --model.channels [24,24,32,48,64,64]
VARIANTS
"$phiseg" compare ./*/eval --out report
