#!/usr/bin/env bash
# The paper's four methods on both phantoms, whose true floor is known. Usage: run.sh OUT (a folder outside the
# repository). Run it again to resume. WORKERS=2 trains two rows at a time, MINUTES=5 is the training budget of a row on
# one core.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
bin=$here/../../.venv/bin
mkdir -p "$1" && cd "$1"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} # one core for each row

for kind in lesion zones; do
  [ -d $kind ] || "$bin/phiseg" prepare phantom $kind $kind --size 64 --num-cases 600 --seed 0
  "$bin/phiseg" experiment table1 --data $kind --out table1-$kind --minutes "${MINUTES:-5}" --workers "${WORKERS:-2}" \
    --methods probunet-small phiseg-l1-small phiseg-small unet-small --rows 'all/*' 'one/unet-small/*' \
    --train.validation_samples 8
  "$bin/python" "$here/perfect.py" $kind $kind perfect-$kind.csv.gz | tee perfect-$kind.txt
done
