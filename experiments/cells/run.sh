#!/usr/bin/env bash
# The paper's four methods on cells that up to ten drawings outline, some of them missing. Usage: run.sh CELLS.npz OUT
# (a folder outside the repository). Run it again to resume. WORKERS=2 trains two rows at a time, MINUTES=5 is the
# training budget of a row on one core.
set -euo pipefail
cells=$(realpath "$1")
phiseg=$(cd "$(dirname "$0")/../.." && pwd)/.venv/bin/phiseg
mkdir -p "$2" && cd "$2"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} # one core for each row

[ -d data ] || "$phiseg" prepare arrays "$cells" data --classes background cell --seed 0
"$phiseg" experiment table1 --data data --out table1 --minutes "${MINUTES:-5}" --workers "${WORKERS:-2}" \
  --methods probunet-small phiseg-l1-small phiseg-small unet-small --rows 'all/*' 'one/unet-small/*' \
  --augment.quarter_turns true --train.batch_size 4 --train.validation_samples 8
