#!/usr/bin/env bash
# The paper's four methods on both phantoms, whose true floor is known. Usage: run.sh OUT (a folder outside the
# repository). Run it again to go on after an interruption; WORKERS=4 runs four rows at a time.
set -euo pipefail
phiseg=$(cd "$(dirname "$0")/../.." && pwd)/.venv/bin/phiseg
mkdir -p "$1" && cd "$1"

for kind in lesion zones; do
  [ -d $kind ] || "$phiseg" prepare phantom $kind $kind --size 64 --num-cases 600 --seed 0
  "$phiseg" experiment table1 --data $kind --out table1-$kind --steps 600 --workers "${WORKERS:-2}" \
    --methods probunet-small phiseg-l1-small phiseg-small unet-small --rows 'all/*' 'one/unet-small/*' \
    --train.validation_samples 8 --train.validate_every 200
done
