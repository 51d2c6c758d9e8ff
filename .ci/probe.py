"""What the driver, its compiler and cuDNN do here, without the project's programs: a part of first-run.sh.

probe.py LISTS FOLDER    LISTS: a folder with NAME.symbols, the functions that the programs load from library NAME.
                         FOLDER: *.ptx, the kernels of the programs.
It prints a line for each thing that is not as expected, and tables. It needs numpy, and no PyTorch.
"""

import ctypes as c
import os
import sys
import time
from pathlib import Path

P, I, F, S = c.c_void_p, c.c_int, c.c_float, c.c_size_t
START = time.time()


def say(*words):
    print(f"{time.time() - START:6.1f} s ", *words, flush=True)


# -- libraries, by the names that the programs use ------------------------------------------------------------
NAMES = {
    "cuda": ["libcuda.so", "libcuda.so.1"],
    "cublas": ["libcublas.so", "libcublas.so.13"],
    "cublasLt": ["libcublasLt.so", "libcublasLt.so.13"],
    "curand": ["libcurand.so", "libcurand.so.10"],
    "cudnn": ["libcudnn.so", "libcudnn.so.9"],
    "nvrtc": ["libnvrtc.so", "libnvrtc.so.13"],
    "nccl": ["libnccl.so"],
}


def path_of(name):
    """Where a library that is loaded came from."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return next((line.split()[-1] for line in maps if name in line), "?")


def libraries(lists):
    found = {}
    for name, files in NAMES.items():
        errors = []
        for file in files:
            try:
                found[name] = c.CDLL(file)
                say(f"{name}: {file} is {path_of(f'lib{name}.so')}")
                break
            except OSError as error:
                errors.append(str(error))
        else:
            mark = '' if name == 'nccl' else '** '  # the pack needs no NCCL
            say(f"{mark}{name} cannot be loaded: {'; '.join(errors)}")
        symbols = lists / f"{name}.symbols"
        if name in found and symbols.is_file():
            wanted = symbols.read_text().split()
            missing = [symbol for symbol in wanted if not hasattr(found[name], symbol)]
            say(f"{'** ' if missing else ''}{name}: {len(wanted)} functions, missing: {missing or 'none'}")
    return found


def ok(what, status):
    if status != 0:
        raise RuntimeError(f"{what}: {status}")


# -- the driver ------------------------------------------------------------------------------------------------
class Gpu:
    def __init__(self, cu):
        self.cu = cu
        ok("cuInit", cu.cuInit(0))
        version = I()
        if hasattr(cu, "cuDriverGetVersion"):
            cu.cuDriverGetVersion(c.byref(version))
        device, self.context = I(), P()
        ok("cuDeviceGet", cu.cuDeviceGet(c.byref(device), 0))
        ok("cuDevicePrimaryCtxRetain", cu.cuDevicePrimaryCtxRetain(c.byref(self.context), device))
        ok("cuCtxSetCurrent", cu.cuCtxSetCurrent(self.context))
        self.stream = P()
        ok("cuStreamCreate", cu.cuStreamCreate(c.byref(self.stream), 1))

        def attribute(number):
            value = I()
            cu.cuDeviceGetAttribute(c.byref(value), number, device)
            return value.value

        free, total = S(), S()
        cu.cuMemGetInfo_v2(c.byref(free), c.byref(total))
        say(f"driver: CUDA {version.value}, compute capability {attribute(75)}.{attribute(76)}, memory pools "
            f"{attribute(115)}, {attribute(16)} multiprocessors, {free.value >> 20} of {total.value >> 20} MiB free")

    def alloc(self, n):
        address = c.c_uint64()
        ok("cuMemAllocAsync", self.cu.cuMemAllocAsync(c.byref(address), S(max(n, 16)), self.stream))
        return address.value

    def free(self, address):
        ok("cuMemFreeAsync", self.cu.cuMemFreeAsync(c.c_uint64(address), self.stream))

    def put(self, array):
        address = self.alloc(array.nbytes)
        ok("copy", self.cu.cuMemcpyHtoDAsync_v2(c.c_uint64(address), array.ctypes.data_as(P), S(array.nbytes), self.stream))
        self.wait()
        return address

    def get(self, address, array):
        ok("copy", self.cu.cuMemcpyDtoHAsync_v2(array.ctypes.data_as(P), c.c_uint64(address), S(array.nbytes), self.stream))
        self.wait()
        return array

    def wait(self):
        ok("cuStreamSynchronize", self.cu.cuStreamSynchronize(self.stream))


def modules(gpu, folder):
    """Each file of kernels, translated for this GPU."""
    for file in sorted(folder.glob("*.ptx")):
        text = file.read_bytes() + b"\0"
        module, start = P(), time.time()
        if hasattr(gpu.cu, "cuModuleLoadDataEx"):
            log = c.create_string_buffer(4096)
            keys = (I * 2)(5, 6)  # the log of errors, and its size
            values = (P * 2)(c.cast(log, P), P(4096))
            status = gpu.cu.cuModuleLoadDataEx(c.byref(module), text, 2, keys, values)
            said = log.value.decode(errors="replace").strip()
        else:
            status, said = gpu.cu.cuModuleLoadData(c.byref(module), text), ""
        mark = "** " if status else ""
        say(f"{mark}{file.name}: status {status}, {time.time() - start:.2f} s {said[:300]}")
        if status == 0 and hasattr(gpu.cu, "cuModuleUnload"):
            gpu.cu.cuModuleUnload(module)


# -- cuDNN's convolutions in NHWC, as the project calls them ---------------------------------------------------
class Answer(c.Structure):
    _fields_ = [("algorithm", I), ("status", I), ("time", F), ("memory", S), ("determinism", I), ("math", I),
                ("reserved", I * 3)]


FLOAT, BF16, NHWC = 0, 9, 1
MATH = {0: "default", 1: "tensor", 2: "convert", 3: "fma"}
#        n, c, h, w, outputs, kernel, stride, padding
SHAPES = {
    "lenet 2": (256, 20, 13, 13, 50, 5, 1, 0),
    "resnet 64": (256, 64, 28, 28, 64, 3, 1, 1),
    "resnet 64-128": (256, 64, 28, 28, 128, 3, 2, 1),
    "resnet 1x1/2": (256, 64, 28, 28, 128, 1, 2, 0),
    "resnet 512": (256, 512, 4, 4, 512, 3, 1, 1),
    "odd": (3, 3, 9, 8, 5, 3, 1, 1),
    "1x1 padded": (3, 8, 6, 5, 8, 1, 1, 1),
    "6x6/2": (2, 5, 12, 11, 7, 6, 2, 1),
    "one channel 7x7": (2, 1, 12, 11, 8, 7, 1, 3),
}
MODES = {"f32": (FLOAT, 3), "tf32": (FLOAT, 0), "bf16": (BF16, 1)}
TOLERANCE = {"f32": 1e-5, "tf32": 3e-3, "bf16": 1.5e-2}


def bf16_bits(a, np):
    bits = a.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def widened(bits, np):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def reference(direction, x, w, dy, stride, padding, np):
    n, h, wd, ci = x.shape
    o, kh, kw, _ = w.shape
    oh, ow = dy.shape[1:3]
    padded = np.zeros((n, h + 2 * padding, wd + 2 * padding, ci))
    padded[:, padding:padding + h, padding:padding + wd] = x
    y, dw, dx = np.zeros(dy.shape), np.zeros(w.shape), np.zeros(padded.shape)
    for a in range(kh):
        for b in range(kw):
            rows = slice(a, a + stride * (oh - 1) + 1, stride)
            columns = slice(b, b + stride * (ow - 1) + 1, stride)
            part = padded[:, rows, columns]
            if direction == "forward":
                y += part @ w[:, a, b].T
            elif direction == "filter":
                dw[:, a, b] = np.einsum("nhwo,nhwi->oi", dy, part)
            else:
                dx[:, rows, columns] += dy @ w[:, a, b]
    return {"forward": y, "filter": dw, "data": dx[:, padding:padding + h, padding:padding + wd]}[direction]


def convolutions(gpu, dnn):
    import numpy as np

    version = dnn.cudnnGetVersion
    version.restype = S
    handle = P()
    ok("cudnnCreate", dnn.cudnnCreate(c.byref(handle)))
    ok("cudnnSetStream", dnn.cudnnSetStream(handle, gpu.stream))
    say(f"cuDNN {version()}; each line: shape, arithmetic, direction: algorithm/arithmetic/MiB, ! where not "
        "deterministic; then the error of the first; ms of the first three")
    rng = np.random.default_rng(1)

    def descriptor(create, set_it, *args):
        d = P()
        ok(create, getattr(dnn, create)(c.byref(d)))
        ok(set_it, getattr(dnn, set_it)(d, *args))
        return d

    for name, shape in SHAPES.items():
        for mode, (element, math) in MODES.items():
            for direction in ["forward", "data", "filter"]:
                try:
                    line(gpu, dnn, np, rng, handle, descriptor, name, shape, mode, element, math, direction)
                except Exception as error:  # the others go on
                    say(f"** {name}, {mode}, {direction}: {error}")


def line(gpu, dnn, np, rng, handle, descriptor, name, shape, mode, element, math, direction):
    n, ci, h, w, o, k, stride, padding = shape
    oh, ow = (h + 2 * padding - k) // stride + 1, (w + 2 * padding - k) // stride + 1
    convolution = descriptor("cudnnCreateConvolutionDescriptor", "cudnnSetConvolution2dDescriptor",
                             padding, padding, stride, stride, 1, 1, 1, FLOAT)
    ok("math", dnn.cudnnSetConvolutionMathType(convolution, math))
    weight = descriptor("cudnnCreateFilterDescriptor", "cudnnSetFilter4dDescriptor", element, NHWC, o, ci, k, k)

    def tensors(n):
        make = ("cudnnCreateTensorDescriptor", "cudnnSetTensor4dDescriptor")
        return descriptor(*make, NHWC, element, n, ci, h, w), descriptor(*make, NHWC, element, n, o, oh, ow)

    def calls(n):
        x, y = tensors(n)
        sizes = [n * h * w * ci, o * k * k * ci, n * oh * ow * o]
        return {
            "forward": ("Forward", x, weight, y, sizes),
            "data": ("BackwardData", weight, y, x, [sizes[1], sizes[2], sizes[0]]),
            "filter": ("BackwardFilter", x, y, weight, [sizes[0], sizes[2], sizes[1]]),
        }[direction]

    def offers(n):
        call, a, b, to, _ = calls(n)
        room, count = (Answer * 16)(), I()
        ask = getattr(dnn, f"cudnnGetConvolution{call}Algorithm_v7")
        b_and_to = (b, convolution, to)
        ok("ask", ask(handle, a, *b_and_to, 16, c.byref(count), room))
        return [room[i] for i in range(count.value)]

    def launch(n, offer, addresses, space):
        call, a, b, to, _ = calls(n)
        one, zero = F(1), F(0)
        if mode != "f32":
            dnn.cudnnSetConvolutionMathType(convolution, offer.math)
        run = getattr(dnn, f"cudnnConvolution{call}")
        at = [c.c_uint64(address) for address in addresses]
        return run(handle, c.byref(one), a, at[0], b, at[1], convolution, offer.algorithm, P(space or None),
                   S(offer.memory), c.byref(zero), to, at[2])

    start = time.time()
    all_offers = offers(n)
    asked = (time.time() - start) * 1e3
    works = [f for f in all_offers if f.status == 0 and f.memory <= 1 << 30]
    if mode == "f32":
        works = [f for f in works if f.math in (0, 3)]
    listed = " ".join(f"{f.algorithm}/{MATH.get(f.math, f.math)}/{f.memory >> 20}{'' if f.determinism else '!'}" for f in works)
    eights = mode != "bf16" or (ci % 8 == 0 and o % 8 == 0)  # of others the project asks for no bf16
    none = f"{'** ' if eights else ''}none of {len(all_offers)}, {sorted({f.status for f in all_offers})}"
    text = f"{name}, {mode}, {direction}: {listed or none}; asked {asked:.0f} ms"
    # numbers, on a few examples
    few = min(n, 3)
    offers_few = [f for f in offers(few) if f.status == 0 and (mode != "f32" or f.math in (0, 3))]
    x = rng.standard_normal((few, h, w, ci), dtype=np.float32)
    wt = rng.standard_normal((o, k, k, ci), dtype=np.float32)
    dy = rng.standard_normal((few, oh, ow, o), dtype=np.float32)
    if mode == "bf16":
        x, wt, dy = (widened(bf16_bits(t, np), np) for t in (x, wt, dy))
    of = {"forward": (x, wt, dy), "data": (wt, dy, x), "filter": (x, dy, wt)}[direction]
    expected = reference(direction, x.astype(np.float64), wt.astype(np.float64), dy.astype(np.float64), stride, padding, np)
    stored = (lambda t: bf16_bits(t, np)) if mode == "bf16" else (lambda t: np.ascontiguousarray(t))
    places = [gpu.put(stored(t)) for t in (of[0], of[1], np.ones(of[2].shape, np.float32))]
    refused = []
    for offer in offers_few:
        space = gpu.alloc(offer.memory) if offer.memory else 0
        status = launch(few, offer, places, space)
        if status == 0:
            got = gpu.get(places[2], np.empty(of[2].shape, np.uint16 if mode == "bf16" else np.float32))
            got = widened(got, np) if mode == "bf16" else got
            error = np.abs(got - expected).max() / np.abs(expected).max()
            mark = "" if error < TOLERANCE[mode] or not eights else "** "
            text += f"; {mark}error of {offer.algorithm}: {error:.1e}"
        else:
            refused.append(offer.algorithm)
        if space:
            gpu.free(space)
        if status == 0:
            break
    text += f"; refused when launched: {refused}" if refused else ""
    for place in places:
        gpu.free(place)
    # time
    if n == 256 and works:
        _, _, _, _, sizes = calls(n)
        size = 2 if mode == "bf16" else 4
        places = [gpu.alloc(s * size) for s in sizes]
        for place, s in zip(places, sizes):
            if hasattr(gpu.cu, "cuMemsetD8Async"):
                gpu.cu.cuMemsetD8Async(c.c_uint64(place), c.c_ubyte(0), S(s * size), gpu.stream)
        times = []
        for offer in works[:3]:
            space = gpu.alloc(offer.memory) if offer.memory else 0
            first = launch(n, offer, places, space)
            gpu.wait()
            start = time.time()
            for _ in range(5):
                first = first or launch(n, offer, places, space)
            gpu.wait()
            times.append(f"{(time.time() - start) * 200:.3f}" if first == 0 else f"status {first}")
            if space:
                gpu.free(space)
        for place in places:
            gpu.free(place)
        text += f"; ms {' '.join(times)}"
    say(text)


def main(lists, folder):
    say("LD_LIBRARY_PATH", os.environ.get("LD_LIBRARY_PATH"))
    found = libraries(Path(lists))
    if "cuda" not in found:
        return
    gpu = Gpu(found["cuda"])
    modules(gpu, Path(folder))
    if "cudnn" in found:
        convolutions(gpu, found["cudnn"])


if __name__ == "__main__":
    main(*sys.argv[1:])
