#!/usr/bin/env bash
# The paper's table on the largest slice of LIDC nodules. Usage: run.sh CROPS.npz OUT (a folder outside the repository).
# Run it again to go on after an interruption; WORKERS=4 runs four rows at a time.
set -euo pipefail
crops=$(realpath "$1")
phiseg=$(cd "$(dirname "$0")/../.." && pwd)/.venv/bin/phiseg
mkdir -p "$2" && cd "$2"

if [ ! -d data ]; then
  "$phiseg" prepare arrays "$crops" data --window -1000 400 --size 64 --classes background nodule \
    --centred-on nodule --modality CT --plane axial
  "$phiseg" data split data --hold-out val --fractions 85,15,0 --seed 0 # the file's val is reported; val is now a part of train
fi
"$phiseg" experiment table1 --data data --out table1 --steps 3000 --workers "${WORKERS:-2}" \
  --rows 'all/*' 'one/phiseg-small/*' 'one/probunet-small/*' 'one/phiseg-l1-small/*' 'one/unet-small/*' \
  --augment.quarter_turns true --train.validation_samples 8 --train.validate_every 500
