#!/usr/bin/env bash
# The paper's table on every annotated slice of LIDC nodules. OUT is outside the repository; run again to resume.
#   run.sh search SLICES.npz OUT    learning rates and schedules of every stochastic method, 1,000 steps, scored on validation
#   run.sh 64 SLICES.npz OUT        all rows, 64 x 64 pixels
#   run.sh 128 SLICES.npz OUT       PHiSeg, PHiSeg L=1 and Prob. U-Net, 128 x 128 pixels
# MINUTES=60 is the budget of a row on one core. The first run measures the steps of every method in this time and needs an
# idle machine. ROWS='all/phiseg-small/0 ...' selects rows (regime/method/seed). SETTINGS='--train.precision bf16-mixed'
# are options of all trainings, SCORING='--precision bfloat16' those of all evaluations. SAMPLES='16 100' evaluates with 16
# and with 100 samples, in folders of their own. Afterwards, add the evaluations to the benchmark with ../benchmark/rows.py.
# On a GPU, the full network of the paper:
#   ROWS='all/phiseg-reference/0 all/phiseg-l1/0 all/probunet/0' MINUTES=1440 run.sh 128 SLICES.npz OUT
set -euo pipefail
part=$1
slices=$(realpath "$2")
here=$(cd "$(dirname "$0")" && pwd)
phiseg=$here/../../.venv/bin/phiseg python=$here/../../.venv/bin/python
mkdir -p "$3" && cd "$3"
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} # one core for each row

size=64
[ "$part" = 128 ] && size=128
if [ ! -d "data$size" ]; then
  "$phiseg" prepare arrays "$slices" "data$size" --rescale 5.4901960784 -1000 --window -1000 400 --size "$size" \
    --classes background nodule --centred-on nodule --modality CT --plane axial
  "$phiseg" data split "data$size" --read "$here/../benchmark/splits/lidc-slices.json"
fi

augment="--augment.rotation_degrees 180 --augment.probability 0.8 --augment.quarter_turns true --augment.flip_vertical true"
last="--train.validate_every 1000000" # validate once: the model of the last step is reported, and no row is selected by its scores

rows() { # ROWS...: train and evaluate rows with the steps of the budget
  mkdir -p "steps$size" "runs$size"
  for row in ${ROWS:-$@}; do
    IFS=/ read -r regime method seed <<< "$row"
    name=$regime-$method-seed$seed expert="" settings=${SETTINGS:-}
    [ "$regime" = one ] && expert="--train.annotator 0"
    # One more resolution than at 64 x 64, so that the coarsest latent has 2 x 2 pixels at both sizes.
    case "$size/$method" in 128/*-small) settings="$settings --model.channels [16,16,24,32,48,48,48]" ;; esac
    if [ ! -f "steps$size/$method" ]; then
      "$python" "$here/../budget.py" "${MINUTES:-60}" "$method" "data$size" $augment $settings > steps.part
      mv steps.part "steps$size/$method"
    fi
    "$phiseg" train "$method" --data "data$size" --out "runs$size/$name" --resume --train.seed "$seed" \
      --train.steps "$(cat "steps$size/$method")" $augment $last --train.validation_samples 2 $expert $settings
    for samples in ${SAMPLES:-100}; do
      out=evals$size-$samples/$name
      mkdir -p "evals$size-$samples"
      [ -d "$out" ] || "$phiseg" evaluate "runs$size/$name" --data "data$size" --num-samples "$samples" \
        ${SCORING:-} --out "$out"
    done
  done
}

case "$part" in
search)
  small="phiseg-small probunet-small phiseg-l1-small ssn-small hprobunet-small cvae-small mcdropout-small ensemble-small \
    multihead-small flow-ssn-small mose-small ccdm-small"
  for rate in 0.001 0.003; do
    for schedule in cosine constant; do
      "$phiseg" experiment table1 --data data64 $augment --out "search/$rate-$schedule" --methods ${METHODS:-$small} \
        --regimes all --steps "${STEPS:-1000}" --split val --num-samples 16 --train.learning_rate "$rate" \
        --train.schedule "$schedule" $last
    done
  done
  ;;
64)
  rows all/{phiseg,probunet,phiseg-l1,hprobunet,ssn,cvae,mcdropout,ensemble,multihead,flow-ssn,mose,ccdm}-small/0 \
    one/{phiseg,phiseg-l1,probunet,unet}-small/0 all/{phiseg,probunet,ssn}-small/{1,2}
  ;;
128)
  rows all/{phiseg,phiseg-l1,probunet}-small/0
  ;;
esac
