#!/usr/bin/env bash
# The paper's four methods on cells that up to ten drawings outline, some of them missing. Usage: run.sh CELLS.npz OUT
# (a folder outside the repository). Run it again to go on after an interruption; WORKERS=4 runs four rows at a time.
set -euo pipefail
cells=$(realpath "$1")
phiseg=$(cd "$(dirname "$0")/../.." && pwd)/.venv/bin/phiseg
mkdir -p "$2" && cd "$2"

[ -d data ] || "$phiseg" prepare arrays "$cells" data --classes background cell --seed 0
"$phiseg" experiment table1 --data data --out table1 --steps 600 --workers "${WORKERS:-2}" \
  --methods probunet-small phiseg-l1-small phiseg-small unet-small --rows 'all/*' 'one/unet-small/*' \
  --augment.quarter_turns true --train.batch_size 4 --train.validation_samples 8 --train.validate_every 200
