#!/usr/bin/env bash
# The paper's table on every annotated slice of LIDC nodules. OUT is outside the repository; run again to resume.
#   run.sh search SLICES.npz OUT    learning rates and schedules of every method, 2 minutes each, scored on validation
#   run.sh 64 SLICES.npz OUT        all rows, 64 x 64 pixels
#   run.sh 128 SLICES.npz OUT       PHiSeg, PHiSeg L=1 and Prob. U-Net, 128 x 128 pixels
# MINUTES=60 is the budget of a row on one core. The first run measures the steps of every method in this time and needs an
# idle machine. METHODS='phiseg-small ...' and TRIALS='0.001-cosine ...' select a part of the search, and
# ROWS='all/phiseg-small/0 ...' selects rows (regime/method/seed). SETTINGS='--train.precision bf16-mixed' are options of all
# trainings, SCORING='--precision bfloat16' those of all evaluations. SAMPLES='16 100' evaluates with 16 and with 100 samples,
# in folders of their own. Afterwards, add the evaluations to the benchmark with ../benchmark/rows.py.
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
  "$phiseg" prepare arrays "$slices" "data$size.part" --rescale 5.4901960784 -1000 --window -1000 400 --size "$size" \
    --classes background nodule --centred-on nodule --modality CT --plane axial --overwrite
  "$phiseg" data split "data$size.part" --read "$here/../benchmark/splits/lidc-slices.json"
  mv "data$size.part" "data$size"
fi

augment="--augment.rotation_degrees 180 --augment.probability 0.8 --augment.quarter_turns true --augment.flip_vertical true"
last="--train.validate_every 1000000" # validate once: the model of the last step is reported, and no row is selected by its scores

budget() { # MINUTES METHOD FILE SETTINGS...: write the number of training steps in this time
  "$python" "$here/../budget.py" "$1" "$2" "data$size" $augment "${@:4}" > "$3.part"
  mv "$3.part" "$3"
}

rows() { # ROWS...: train and evaluate rows with the steps of the budget
  mkdir -p "steps$size" "runs$size"
  for row in ${ROWS:-$@}; do
    IFS=/ read -r regime method seed <<< "$row"
    name=$regime-$method-seed$seed expert="" settings=${SETTINGS:-}
    [ "$regime" = one ] && expert="--train.annotator 0"
    # One more resolution than at 64 x 64, so that the coarsest latent has 2 x 2 pixels at both sizes.
    case "$size/$method" in 128/*-small) settings="$settings --model.channels [16,16,24,32,48,48,48]" ;; esac
    [ -f "steps$size/$method" ] || budget "${MINUTES:-60}" "$method" "steps$size/$method" $settings
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

search() { # METHODS...: train every method with each of the settings, and score validation patients
  mkdir -p search/{steps,runs,evals}
  for method in ${METHODS:-$@}; do
    [ -f "search/steps/$method" ] || budget "${MINUTES:-2}" "$method" "search/steps/$method" ${SETTINGS:-}
    for trial in ${TRIALS:-0.001-cosine 0.003-cosine 0.001-constant 0.003-constant}; do
      IFS=- read -r rate schedule <<< "$trial"
      name=$method-$trial
      "$phiseg" train "$method" --data data64 --out "search/runs/$name" --resume --train.steps "$(cat "search/steps/$method")" \
        --train.learning_rate "$rate" --train.schedule "$schedule" $augment $last --train.validation_samples 2 \
        ${SETTINGS:-}
      [ -d "search/evals/$name" ] || "$phiseg" evaluate "search/runs/$name" --data data64 --split val --num-samples 16 \
        ${SCORING:-} --out "search/evals/$name"
    done
  done
}

case "$part" in
search)
  search {phiseg,probunet,phiseg-l1,ssn,hprobunet,cvae,mcdropout,ensemble,multihead,flow-ssn,mose,ccdm}-small
  ;;
64)
  rows all/{phiseg,probunet,phiseg-l1,hprobunet,ssn,cvae,mcdropout,ensemble,multihead,flow-ssn,mose,ccdm}-small/0 \
    one/{phiseg,phiseg-l1,probunet,unet}-small/0 all/{phiseg,probunet,ssn}-small/{1,2}
  ;;
128)
  rows all/{phiseg,phiseg-l1,probunet}-small/0
  ;;
esac
