#!/usr/bin/env bash
# From DICOM to volumes: predict every annotated nodule of LIDC-IDRI scans and compare with its readers in three dimensions.
# Usage: run.sh LIDC MODEL OUT, with LIDC a folder as the archive ships it, MODEL a model folder or a bundled name, and OUT
# a folder outside the repository.
set -euo pipefail
lidc=$(realpath "$1") model=$2
[ -d "$model" ] && model=$(realpath "$model")
here=$(cd "$(dirname "$0")" && pwd)
bin=$here/../../.venv/bin
mkdir -p "$3" && cd "$3"

[ -d data ] || "$bin/phiseg" prepare lidc "$lidc" data --size 128
"$bin/python" "$here/nodules.py" points data scans points.csv "$lidc"
"$bin/phiseg" predict "$model" scans --points points.csv --num-samples 100 --out pred
"$bin/python" "$here/nodules.py" compare data points.csv pred | tee result.md
"$bin/python" "$here/figures.py" data points.csv scans pred figures
