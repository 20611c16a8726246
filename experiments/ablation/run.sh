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
base 1500
base-seed1 1500 --train.seed 1
rate-0.001 1500 --train.learning_rate 0.001
rate-0.006 1500 --train.learning_rate 0.006
embedding-64 923 --model.embedding_channels 64
batch-6 3000 --train.batch_size 6
batch-24 750 --train.batch_size 24
averaging 1500 --train.averaging 0.998
kl-unit 1500 --model.kl_weights unit
kl-reference 1500 --model.kl_weights reference
latents-finest 1108 --model.latents_at finest
levels-3 1213 --model.num_levels 3
levels-6 1103 --model.num_levels 6
latent-4 1489 --model.latent_channels 4
latent-1 1506 --model.latent_channels 1
group-norm 1500 --model.norm group
blocks-2 1770 --model.blocks_per_level 2
wide 725 --model.channels [24,24,32,48,64,64]
narrow 2322 --model.channels [8,16,24,32,48,48]
rotate-180 1500 --augment.rotation_degrees 180 --augment.probability 0.8
no-augmentation 1500 --augment.enabled false
VARIANTS
"$phiseg" compare ./*/eval --out report
