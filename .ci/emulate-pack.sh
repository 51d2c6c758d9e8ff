#!/usr/bin/env bash
# Runs the programs of `.ci/first-run.sh prepare`, with the kernels of NVIDIA's compiler inside, on emulated GPUs. No
# Rust is compiled: the emulation loads the same kernels, made by g++, in place of NVIDIA's.
# .ci/emulate-pack.sh COMMAND…    for example: .ci/emulate-pack.sh .ci/first-run.sh again operations
# The first call compiles the kernels. The emulation's settings are in cuda-emulation/README.md.
set -euo pipefail
cd "$(dirname "$0")/.."
here=$PWD/.ci/cuda-emulation root=$PWD/target/emulated-pack pack=target/gpu-run
[ -d "$pack/ptx" ] || { echo "error: $pack/ptx is missing; run .ci/first-run.sh prepare first"; exit 2; }

# What the emulated driver looks for: a hash of the text that it is given (FNV-1a, as in driver.cpp).
name_of() {
  python3 - "$1" << 'PY'
import sys
hash = 14695981039346656037
for byte in open(sys.argv[1], "rb").read():
    hash = (hash ^ byte) * 1099511628211 % 2**64
print(f"{hash:016x}")
PY
}

# The source of a kernel's text, and what NVIDIA's compiler was told.
source_of() {
  local functional=crates/data-parallel-functional/src/cuda
  case $1 in
    candle_*) echo "$candle/${1#candle_}.cu" ;;
    *_bf16) echo "$functional/${1%_bf16}.cu -DREAL=__nv_bfloat16" ;;
    *_f32) echo "$functional/${1%_f32}.cu -DREAL=float" ;;
  esac
}

sum=$(cat "$here"/* "$pack"/ptx/* | cksum)
if [ "$(cat "$root/made" 2> /dev/null)" != "$sum" ]; then
  rm -rf "$root"
  mkdir -p "$root"/{lib,kernels,map}
  g++ -std=c++17 -O3 -march=native -U_FORTIFY_SOURCE -fPIC -shared -pthread -o "$root/lib/libcuda.so" "$here"/*.cpp -ldl
  for library in cublas cublasLt cudnn curand cudart nccl nvrtc; do
    ln -s libcuda.so "$root/lib/lib$library.so"
  done
  candle=$(find "${CARGO_HOME:-$HOME/.cargo}"/registry/src -maxdepth 2 -name 'candle-kernels-*' | sort -V | tail -1)/src
  for ptx in "$pack"/ptx/*.ptx; do
    name=$(basename "$ptx" .ptx)
    read -ra source <<< "$(source_of "$name")"
    EMULATE=1 "$here/nvcc" --ptx "${source[@]}" -o "$root/kernels/$name.ptx"
    cp "$root/kernels/$name.ptx" "$root/map/$(name_of "$ptx")"
  done
  echo "$sum" > "$root/made"
fi
export LD_LIBRARY_PATH=$root/lib EMULATED_MAP=$root/map
exec "$@"
