#!/usr/bin/env bash
# A first run on a machine with a GPU, which may have no Rust, no network and little time. first-run.md says what each
# part costs, and what to do when it fails.
#
#   .ci/first-run.sh prepare      builds the pack where there is Rust, and puts it into .gpu
#   .ci/first-run.sh run          on the machine with the GPU: a smoke test, what is right, how fast it is
#   .ci/first-run.sh again PART…  on the machine with the GPU: only these parts
#   .ci/first-run.sh triage       on the machine with the GPU: what helps to mend it elsewhere
#
# `prepare` needs the CUDA toolkit (CUDA_HOME). FASHION_MNIST_DIR is the folder of the four IDX files; without it the
# images are synthetic. The other commands leave their logs in the folder OUT and print a summary. Each part has a limit,
# and none begins after BUDGET seconds.
# shellcheck disable=SC2094 # logs are appended to from both ends of a pipe
set -uo pipefail
cd "$(dirname "$0")/.." || exit

# ==== where there is Rust ============================================================================================

pack=target/gpu-run # what is in the archive

# The kernels as text, so that the driver can translate each alone. Those that are never loaded are left out.
kernels_as_text() {
  local built=${CARGO_TARGET_DIR:-target}/gpu-pack/release/build ptx name
  newest() { find "$built" -path "*/$1-*/out" -prune -printf '%T@ %p\n' | sort -g | tail -1 | cut -d' ' -f2-; }
  rm -rf "$pack/ptx"
  mkdir -p "$pack/ptx"
  cp "$(newest data-parallel-functional)"/*.ptx "$pack/ptx"
  for ptx in "$(newest candle-kernels)"/*.ptx; do
    name=$(basename "$ptx" .ptx)
    [[ $name == quantized* ]] || cp "$ptx" "$pack/ptx/candle_${name%%-*}.ptx"
  done
}

# The functions that the programs load from each library: those that cudarc knows and whose names are in a program.
symbols() {
  local cudarc module library symbol
  cudarc=$(find "${CARGO_HOME:-$HOME/.cargo}"/registry/src -maxdepth 2 -name 'cudarc-*' | sort -V | tail -1)
  mkdir -p "$pack/symbols"
  for library in cuda cublas curand cudnn; do
    module=${library/cuda/driver}
    grep -oE 'load::<_F>\("[A-Za-z0-9_]+"' "$cudarc/src/$module/sys/mod.rs" | cut -d'"' -f2 | sort -u |
      while read -r symbol; do
        if grep -qaF "$symbol" "$pack/xtask"; then echo "$symbol"; fi
      done > "$pack/symbols/$library.symbols"
  done
}

# Libraries that stand before CUDA's own and count the host's time in them. The functions are those of `symbols`.
host_profile() {
  local library
  mkdir -p "$pack/profile"
  for library in cuda cublas cudnn; do
    sed 's/.*/F(&)/' "$pack/symbols/$library.symbols" > "$pack/profile/$library.functions"
    "${CC:-cc}" -O1 -shared -fPIC -DLIBRARY="\"$library\"" -DFUNCTIONS="\"$PWD/$pack/profile/$library.functions\"" \
      -o "$pack/profile/lib$library.so" .ci/host-profile.c -ldl
  done
}

# What the CPU gives: a LeNet that has learned something, then steps of both networks, which `programs` does again.
on_the_cpu() {
  local data=$1 k
  mkdir -p "$pack/cpu"
  "$pack/scratch" --data "$data" --device cpu --epochs 2 --limit-test 1000 --overwrite --out "$pack/cpu/init" | tail -1
  cp "$pack/cpu/init/model.safetensors" "$pack/cpu/lenet.safetensors"
  for k in 1 2; do
    "$pack/scratch" --data "$data" --device cpu --gpus $k "${lenet_steps[@]}" --init "$pack/cpu/lenet.safetensors" \
      --overwrite --out "$pack/cpu/scratch-$k" | tail -1
    "$pack/concise" --data "$data" --device cpu --gpus $k "${resnet_steps[@]}" \
      --overwrite --out "$pack/cpu/concise-$k" | tail -1
  done
  rm -rf "$pack/cpu/init" "$pack"/cpu/*/*.safetensors "$pack"/cpu/*/*.svg # the losses are enough
}
lenet_steps=(--batch-size 256 --limit-train 5120 --limit-test 256 --epochs 1 --lr 0.1)
resnet_steps=(--batch-size 64 --limit-train 640 --limit-test 64 --epochs 1 --lr 0.01)

prepare() {
  set -e
  local toolkit=${CUDA_HOME:-/usr/local/cuda}
  if [ ! -x "$toolkit/bin/nvcc" ]; then
    echo "error: $toolkit/bin/nvcc is missing; set CUDA_HOME to the folder of the CUDA toolkit"
    exit 2
  fi
  CUDA_COMPUTE_CAP=80 .ci/gpu-pack "$pack"
  kernels_as_text
  symbols
  host_profile
  rm -rf .gpu
  mkdir -p .gpu
  local data=synthetic program
  if [ -n "${FASHION_MNIST_DIR:-}" ]; then
    data=.gpu/data
    mkdir "$data"
    cp "$FASHION_MNIST_DIR"/*ubyte* "$data"
  fi
  on_the_cpu "$data"
  # one archive with one dictionary: the programs share most of their contents
  tar -C "$pack" -cf - . | xz -T1 -6 --lzma2=dict=64MiB > .gpu/pack.tar.xz

  echo "== what it needs there"
  for program in "$pack"/{scratch,concise,xtask,tests-*}; do
    printf '%s: %s MiB, %s, %s\n' "$(basename "$program")" "$(($(stat -c %s "$program") >> 20))" \
      "$(objdump -T "$program" | grep -o 'GLIBC_[0-9.]*' | sort -V | tail -1)" \
      "$(ldd "$program" | awk '{ print $1 }' | tr '\n' ' ')"
  done
  grep -h '^\.target\|^\.version' "$pack"/ptx/*.ptx | sort | uniq -c
  "$pack/scratch" --device cuda --data synthetic 2>&1 | tail -1 || true # without a driver: a line that names libcuda
  du -sh .gpu/*
  echo "next: copy this folder with .gpu, without target, to the machine with the GPU; there: .ci/first-run.sh run"
}

# ==== on the machine with the GPU ====================================================================================

find_everything() {
  export OUT=${OUT:-/tmp/out}
  BUDGET=${BUDGET:-380}
  mkdir -p "$OUT" /tmp/links
  summary=$OUT/summary.txt
  : > "$summary"
  data=$([ -d .gpu/data ] && echo .gpu/data || echo synthetic)
  p=${PACK:-/tmp/pack}
  python=$(command -v python3)
  # PyTorch's wheels have the libraries; else they are where cuDNN is
  N=$("$python" -c 'import nvidia; print(list(nvidia.__path__)[0])' 2> /dev/null)
  [ -n "$N" ] || N=$(dirname "$(dirname "$(dirname "$(find / -xdev -name libcudnn.so.9 2> /dev/null | head -1)")")")
  ln -sf "$N/nccl/lib/libnccl.so.2" /tmp/links/libnccl.so # cudarc looks for this name
  export LD_LIBRARY_PATH=$N/cu13/lib:$N/cudnn/lib:/tmp/links${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
  LD_LIBRARY_PATH+=:/usr/local/nvidia/lib64
  export CUDA_CACHE_PATH=/tmp/jit CUDA_CACHE_MAXSIZE=4294967296 # the driver translates kernels once for all processes
  export TORCHINDUCTOR_CACHE_DIR=/tmp/inductor TRITON_CACHE_DIR=/tmp/triton TORCHINDUCTOR_COMPILE_THREADS=4
  export PYTHONUNBUFFERED=1
  local tool found
  for tool in compute-sanitizer ncu; do
    command -v $tool > /dev/null && continue
    found=$(find /usr/local /opt -name $tool -type f -perm -u+x 2> /dev/null | head -1)
    [ -n "$found" ] && PATH=$PATH:$(dirname "$found")
  done
  unpack .gpu/pack.tar.xz "$p"
}
unpack() { # ARCHIVE FOLDER
  mkdir -p "$2"
  [ -e "$2/xtask" ] || tar -C "$2" -xJf "$1" || "$python" - "$@" << 'PY'
import sys, tarfile
tarfile.open(sys.argv[1], "r:xz").extractall(sys.argv[2], filter="data")
PY
}

facts() {
  date
  uname -a
  ldd --version | head -1
  nproc
  free -g | head -2
  nvidia-smi --format=csv \
    --query-gpu=name,driver_version,memory.total,memory.used,clocks.sm,clocks.max.sm,power.limit,compute_cap
  echo "LD_LIBRARY_PATH $LD_LIBRARY_PATH"
  find "$N"/cu13/lib "$N"/cudnn/lib -name '*.so*' | grep -E 'cublas|cudnn|curand|nvrtc|cudart'
  ldconfig -p | grep -E 'libcuda|ptxjit' # the driver; without libnvidia-ptxjitcompiler it translates no kernel
  find / -xdev \( -name 'libcuda.so*' -o -name 'libnvidia-ptxjitcompiler*' \) 2> /dev/null
  command -v ncu compute-sanitizer nvcc
  "$python" -c 'import torch as t, numpy; print("torch", t.__version__, t.version.cuda, t.backends.cudnn.version())'
  ls -l "$p"
  ldd "$p/xtask"
}

# ---- how a part runs ------------------------------------------------------------------------------------------------

note() { printf '%s\n' "$*" | tee -a "$summary"; }
at() { printf '%3d s' "$SECONDS"; }
left() { echo $((BUDGET - SECONDS)); }
within() { # LIMIT: it, or what is left of the budget
  if [ "$(left)" -lt "$1" ]; then left; else echo "$1"; fi
}

# Runs a command with a limit. Its output goes to the log when it ends, so parts at the same time do not mix; `last` is
# the file with it.
part() { # NAME LIMIT LOG COMMAND…
  local name=$1 limit log=$OUT/$3 status begin=$SECONDS
  limit=$(within "$2")
  shift 3
  last=/dev/null
  if [ "$limit" -lt 5 ]; then
    note "$(at)  SKIPPED $name: no time left"
    return 1
  fi
  last=$(mktemp /tmp/said.XXXXXX)
  timeout -k 5 "$limit" "$@" > "$last" 2>&1
  status=$?
  { printf '\n#### %s (%s, %s s): %s\n' "$name" "$status" "$((SECONDS - begin))" "$*"; cat "$last"; } >> "$log"
  case $status in
    0) note "$(at)  ok      $name ($((SECONDS - begin)) s)" ;;
    124 | 137) note "$(at)  TIMEOUT $name ($limit s); last: $(tail -c 300 "$last" | tail -1)" ;;
    *)
      note "$(at)  FAILED  $name ($status, $((SECONDS - begin)) s):" \
        "$(grep -aE 'error|panicked|Error|failed to' "$last" | tail -1 | cut -c1-300)"
      ;;
  esac
  return $status
}

# ---- what is right --------------------------------------------------------------------------------------------------

smoke() { # an epoch of 2 steps by each program: all the way from libcuda to a loss
  local small=(--device cuda --gpus 1 --data synthetic --epochs 1)
  part smoke-lenet 60 right.log "$p/scratch" "${small[@]}" --limit-train 512 --limit-test 256 &&
    part smoke-resnet 60 right.log "$p/concise" "${small[@]}" --limit-train 32 --limit-test 16 --batch-size 16
}

probe() {
  part probe 100 probe.log "$python" .ci/probe.py "$p/symbols" "$p/ptx"
  grep -aF '**' "$last" | head -15 | cut -c1-260 | tee -a "$summary"
}

# A test in a process of its own: where a GPU failed in one test, it fails in all later ones of the same process.
one_test() { # FILE TEST LIMIT
  local file=$1 test=$2 limit status begin=$SECONDS said
  limit=$(within "$3")
  if [ "$limit" -lt 5 ]; then
    echo "not 0 $test" >> /tmp/tests
    note "         SKIPPED $test: no time left"
    return
  fi
  said=$(mktemp /tmp/said.XXXXXX)
  timeout -k 5 "$limit" "$file" --ignored --exact "$test" > "$said" 2>&1
  status=$?
  { printf '\n#### %s: %s (%s s)\n' "$test" "$status" "$((SECONDS - begin))"; cat "$said"; } >> "$OUT/operations.log"
  if [ $status = 0 ]; then
    echo "ok $((SECONDS - begin)) $test" >> /tmp/tests
  else
    echo "not $((SECONDS - begin)) $test" >> /tmp/tests
    [ $status -lt 124 ] || status="TIMEOUT $limit s"
    note "         FAILED $test ($status): $(grep -aE -A3 'panicked at' "$said" | tr '\n' ' ' | cut -c1-300)"
  fi
  rm -f "$said"
}
# The GPU tests, several at a time, by their names.
tests() { # AT_A_TIME LIMIT GREP_OPTIONS…
  local at_a_time=$1 limit=$2 file test
  shift 2
  : > /tmp/tests
  # a test blocks a stream: with the eight queues that a driver has by default, another stream may wait behind it
  export CUDA_DEVICE_MAX_CONNECTIONS=32
  for file in "$p"/tests-*; do
    while read -r test; do
      while [ "$(jobs -rp | wc -l)" -ge "$at_a_time" ]; do wait -n; done
      one_test "$file" "$test" "$limit" &
    done < <("$file" --ignored --list on_a_gpu 2> /dev/null | sed -n 's/: test$//p' | grep "$@")
  done
  wait
  unset CUDA_DEVICE_MAX_CONNECTIONS
  note "$(at)  tests: $(grep -c ^ok /tmp/tests) pass, $(grep -c ^not /tmp/tests) do not;" \
    "the slowest: $(sort -k2 -rn /tmp/tests | head -3 | cut -d' ' -f2- | tr '\n' ';')"
}
operations() { tests 6 150 -v 'gpu.*memory'; }
memory_tests() { tests 1 60 'gpu.*memory'; } # they take all memory, so they run alone

right() { # LeNet 20 steps, ResNet-18 a step, k = 1, 2, 3, in f32 and bf16, beside the CPU
  part beside-the-cpu 110 right.log "$p/xtask" gpu-check --only right --out /tmp/right
  grep -a '^|' /tmp/right/gpu.md 2> /dev/null | grep -aF 'no**' | cut -c1-200 | tee -a "$summary"
}

same() { # NAME CPU GPU BAR: the losses of two runs, step by step
  paste -d, "$2/steps.csv" "$3/steps.csv" | awk -F, -v name="$1" -v bar="$4" '
    NR > 1 { d = $4 - $8; d = (d < 0 ? -d : d) / $4; if (!(d <= worst)) { worst = d; step = NR - 1 } }
    END { printf "         %s %s: %d steps, at most %.1e apart (step %d, bar %s)\n",
          (NR > 1 && worst < bar + 0) ? "same  " : "APART ", name, NR - 1, worst, step, bar }' | tee -a "$summary"
}
beside() { # PROGRAM PRECISION K BAR OPTIONS…: a run beside what the CPU gave when the pack was made
  local program=$1 precision=$2 k=$3 bar=$4 name=$1-$2-$3
  shift 4
  part "$name" 40 right.log "$p/$program" --data "$data" --device cuda --gpus "$k" --precision "$precision" "$@" \
    --check-replicas --overwrite --out "/tmp/runs/$name" && same "$name" "$p/cpu/$program-$k" "/tmp/runs/$name" "$bar"
}
# Both programs with 1 and 2 replicas in each arithmetic. Steps of ResNet-18 make rounding larger: on the CPU alone,
# initial parameters that are moved by half a unit in the last place move a loss by up to 2% within these ten steps. So
# its bars are wide, wider for TF32, which moves every product. `right` compares a single step.
programs() {
  local precision k bars
  for precision in f32 tf32 bf16; do
    case $precision in f32) bars=(1e-4 3e-2) ;; tf32) bars=(1e-2 6e-2) ;; *) bars=(5e-2 1e-1) ;; esac
    for k in 1 2; do
      beside scratch $precision $k "${bars[0]}" "${lenet_steps[@]}" --init "$p/cpu/lenet.safetensors"
      beside concise $precision $k "${bars[1]}" "${resnet_steps[@]}"
    done
  done
}

memcheck() { # a step of each network
  local what
  while read -ra what; do
    part "memcheck-$(IFS=-; echo "${what[*]}")" 120 memcheck.log \
      compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 9 \
      "$p/xtask" contend-gpu --replicas "${what[2]}" --precision "${what[3]}" steps "${what[@]:0:2}" < <(echo 1)
    note "         $(grep -a 'ERROR SUMMARY' "$last" | tail -1)"
  done << 'STEPS'
lenet 64 1 tf32
resnet18 16 1 bf16
lenet 64 2 bf16
STEPS
}

# ---- how fast it is -------------------------------------------------------------------------------------------------

job() { # the real work: LeNet ten epochs, ResNet-18 three
  local options=(--data "$data" --device cuda --overwrite)
  part "LeNet, 10 epochs" 60 speed.log "$p/scratch" "${options[@]}" --gpus 1 --out /tmp/runs/lenet
  tail -3 "$last" | cut -c1-200 | tee -a "$summary"
  part "LeNet, 10 epochs, 2 replicas" 60 speed.log "$p/scratch" "${options[@]}" --gpus 2 --out /tmp/runs/lenet2
  tail -1 "$last" | cut -c1-200 | tee -a "$summary"
  part "ResNet-18, 3 epochs" 60 speed.log "$p/concise" "${options[@]}" --gpus 1 --epochs 3 --out /tmp/runs/resnet
  tail -3 "$last" | cut -c1-200 | tee -a "$summary"
}

steps_of() { # NETWORK: how many fill about a second
  if [ "$1" = lenet ]; then echo 2000; else echo 100; fi
}
# The milliseconds of a step, the median of three times STEPS, after 30 to warm up.
step_ms() { # LABEL LIMIT STEPS COMMAND…
  local label=$1 limit steps=$3 ms
  limit=$(within "$2")
  shift 3
  if [ "$limit" -lt 8 ]; then
    note "         $label: no time left"
    return
  fi
  printf '\n#### %s: %s\n' "$label" "$*" >> "$OUT/speed.log"
  ms=$(printf '30\n%s\n%s\n%s\n' "$steps" "$steps" "$steps" | timeout -k 5 "$limit" "$@" 2>> "$OUT/speed.log" |
    tee -a "$OUT/speed.log" | sed 1,2d | sort -g | sed -n 2p)
  note "$(at)  $(printf '%-44s %9s ms a step' "$label" "${ms:-FAILED: $(tail -1 "$OUT/speed.log" | cut -c1-150)}")"
}
ours_speed() {
  local network precision k
  for network in lenet resnet18; do
    for precision in tf32 bf16 f32; do
      for k in 1 2; do
        [ "$precision-$k" = f32-2 ] || step_ms "ours, $network 256, $precision, k = $k" 30 "$(steps_of $network)" \
          "$p/xtask" contend-gpu --replicas $k --precision $precision steps $network 256
      done
    done
  done
  for network in lenet resnet18; do
    part "alone-$network" 20 speed.log "$p/xtask" contend-gpu --replicas 1 --precision tf32 alone $network 256
    note "         MiB, and ms for which a step keeps the host busy: $(tail -1 "$last")"
  done
}

# Does it help to time cuDNN's algorithms, beside its first choice? In turns.
first_choice() {
  local turn network precision by
  for turn in 1 2; do
    for network in lenet resnet18; do
      for precision in tf32 bf16; do
        for by in "" --deterministic; do
          step_ms "turn $turn, $network 256, $precision, ${by:-timed}" 20 "$(steps_of $network)" \
            "$p/xtask" contend-gpu --replicas 1 --precision $precision $by steps $network 256
        done
      done
    done
  done
}

# Steps of this pack and of others, whose archives are OLD, in turns.
against() {
  local archive turn network precision from
  local packs=("$p")
  for archive in ${OLD:?archives of other packs}; do
    from=/tmp/packs/$(basename "$archive" .tar.xz)
    unpack "$archive" "$from"
    packs+=("$from")
  done
  for turn in 1 2; do
    while read -r network precision; do
      for from in "${packs[@]}"; do
        step_ms "turn $turn, $network 256, $precision, $from" 40 "$(steps_of "$network")" \
          "$from/xtask" contend-gpu --replicas 1 --precision "$precision" steps "$network" 256
      done
    done << 'STEPS'
lenet tf32
resnet18 tf32
resnet18 bf16
STEPS
  done
}

# What keeps the host busy in a step, by function of CUDA's libraries. `SKIP` seconds load and choose.
host() {
  local network precision library
  for library in cuda cublas cudnn; do
    export "REAL_$library=$("$python" - "$library" << 'PY'
import ctypes, sys
ctypes.CDLL(f"lib{sys.argv[1]}.so")
print(next(line.split()[-1] for line in open("/proc/self/maps") if f"lib{sys.argv[1]}.so" in line))
PY
    )"
    local real=REAL_$library
    [ -n "${!real}" ] || { note "         lib$library.so is not found"; return; }
  done
  export SKIP=5
  while read -r network precision; do
    LD_LIBRARY_PATH=$p/profile:$LD_LIBRARY_PATH part "host-$network-$precision" 30 kernels.log \
      "$p/xtask" contend-gpu --replicas 1 --precision "$precision" steps "$network" 256 \
      < <(for _ in 1 2 3 4 5 6 7 8; do steps_of "$network"; done)
    grep -a '^host:' "$last" | sort -k2 -rn | head -9 | tee -a "$summary"
  done << 'STEPS'
lenet tf32
resnet18 tf32
resnet18 bf16
STEPS
}

torch() { # MODE NETWORK LIMIT
  step_ms "PyTorch $1, $2 256" "$3" "$(steps_of "$2")" "$python" benches/pytorch_gpu.py "$1" steps "$2" 256
}
torch_speed() {
  torch eager lenet 40
  torch graph lenet 40
  torch eager resnet18 40
  torch eager-tuned resnet18 40
}
torch_compiled() {
  torch compile lenet 70
  torch compile resnet18 90
  torch compile-bf16 resnet18 90
}
compile_warm() { # fills the caches of torch.compile while something else is tried; `warming` has the processes
  local mode network
  warming=()
  while read -r mode network; do
    timeout 160 "$python" benches/pytorch_gpu.py "$mode" steps "$network" 256 < <(echo 3) > "/tmp/$mode-$network" 2>&1 &
    warming+=($!)
  done << 'MODES'
compile lenet
compile resnet18
compile-bf16 resnet18
MODES
}

# The time of each kernel of about two steps, without what is before them. With cuDNN's first choices: where ncu slows
# launches down, timing would choose others than usual.
kernels_of() { # NETWORK PRECISION SKIP COUNT STEPS
  part "kernels-$1-$2" 60 kernels.log ncu --clock-control none --cache-control none --metrics gpu__time_duration.sum --csv \
    --print-units base --launch-skip "$3" --launch-count "$4" \
    "$p/xtask" contend-gpu --replicas 1 --precision "$2" --deterministic steps "$1" 256 < <(echo "$5")
  "$python" - "$last" << 'PY' | tee -a "$summary"
import collections, csv, sys
lines = [line for line in open(sys.argv[1], errors="replace") if line.startswith('"')]
total, count = collections.Counter(), collections.Counter()
for row in csv.DictReader(lines):
    if row.get("Metric Name") == "gpu__time_duration.sum":
        name = row["Kernel Name"].split("(")[0][-70:]
        total[name] += float(row["Metric Value"].replace(",", ""))
        count[name] += 1
for name, ns in total.most_common(14):
    print(f"         {ns / 1e3:9.1f} us in {count[name]:3d} launches: {name}")
PY
}
kernels() {
  kernels_of lenet tf32 3000 70 200
  kernels_of resnet18 tf32 9000 600 40
  kernels_of resnet18 bf16 9000 600 40
}

# The machine's CPU, while the GPU has nothing to do: ours and PyTorch on 1 to 16 threads, medians of single steps.
cores_ms() { # LABEL STEPS COMMAND…
  local label=$1 steps=$2 ms
  shift 2
  if [ "$(left)" -lt 10 ]; then
    note "         $label: no time left"
    return
  fi
  ms=$(printf '2\n%s\n' "$steps" | timeout -k 5 25 "$@" 2>> "$OUT/speed.log" | tee -a "$OUT/speed.log" | tail -1 |
    tr ' ' '\n' | grep . | sort -g | awk '{ a[NR] = $1 } END { print a[int((NR + 1) / 2)] }')
  note "$(at)  $(printf '%-44s %9s ms a step' "$label" "${ms:-FAILED}")"
}
cpu_cores() {
  local network batch threads k steps
  while read -r network batch; do
    for threads in 1 2 4 8 16; do
      [ "$threads" -le "$(nproc)" ] || continue
      if [ "$network" = lenet ]; then steps=$((20 * threads)); else steps=$((1 + threads)); fi
      cores_ms "CPU, ours, $network $batch, $threads threads" "$steps" \
        "$p/xtask" contend --replicas 1 --threads "$threads" "$network" "$batch"
      cores_ms "CPU, PyTorch channels_last, $network $batch, $threads threads" "$steps" \
        "$python" benches/pytorch_step.py eager-channels_last "$threads" "$network" "$batch"
    done
    for k in 2 4; do
      cores_ms "CPU, ours, $network $batch, $k replicas, all threads" 20 \
        "$p/xtask" contend --replicas $k --threads "$(nproc)" "$network" "$batch"
    done
  done << 'WORK'
lenet 256
resnet18 64
WORK
}

# ---- when it fails --------------------------------------------------------------------------------------------------

triage() {
  local program small=(--device cuda --gpus 1 --data synthetic --limit-train 512 --limit-test 256 --epochs 1)
  probe
  for program in scratch xtask tests-operations; do
    part "start-$program" 10 right.log "$p/$program" --help
  done
  part libraries 30 right.log env LD_DEBUG=libs "$p/scratch" "${small[@]}"
  grep -aE 'calling init.*(cuda|cudnn|cublas|nvrtc|nvidia)|cannot open|error:' "$last" | sed 's/^ *[0-9]*:[ \t]*//' |
    sort -u | tail -25 | cut -c1-200 | tee -a "$summary"
  part backtrace 30 right.log env RUST_BACKTRACE=1 CUDNN_LOGLEVEL_DBG=2 CUDNN_LOGDEST_DBG=stderr \
    CUDA_LAUNCH_BLOCKING=1 "$p/scratch" "${small[@]}"
  tail -25 "$last" | cut -c1-200 | tee -a "$summary"
}

# ==== the whole ======================================================================================================

run() {
  local whole=$BUDGET
  note "== smoke"
  if ! smoke; then
    note "== triage: the programs do not run here"
    BUDGET=$((SECONDS + 120))
    triage
    return
  fi
  note "== what is right (at the same time; no times count here)"
  BUDGET=$((SECONDS + 170 < whole ? SECONDS + 170 : whole)) # the times below need what is left
  compile_warm
  local together=()
  operations & together+=($!)
  right & together+=($!)
  programs & together+=($!)
  memcheck & together+=($!)
  probe
  wait "${together[@]}"
  kill "${warming[@]}" 2> /dev/null # those that are not done
  wait
  BUDGET=$whole
  memory_tests
  note "== how fast (alone on the GPU)"
  job
  ours_speed
  torch_speed
  kernels
  torch_compiled
}

mode=${1:-}
[ $# -eq 0 ] || shift
case $mode in
  prepare) prepare; exit ;;
  run | again | triage) ;;
  *) sed -n '2,/shellcheck/{/shellcheck/d;s/^# \{0,1\}//;p}' "$0"; exit 2 ;;
esac
find_everything
note "== facts"
facts > "$OUT/facts.log" 2>&1
sed -n '/^name,/,+1p' "$OUT/facts.log" | tail -1 | tee -a "$summary"
grep -E '^torch|ptxjit' "$OUT/facts.log" | head -3 | tee -a "$summary"
case $mode in
  again) for name in "$@"; do note "== $name"; "$name"; done ;;
  *) "$mode" ;;
esac
printf '\n\n==== summary (%s s) ====\n' "$SECONDS"
head -c 11000 "$summary"
