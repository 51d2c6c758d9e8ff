"""Compares two output folders: were these the same steps?

Makes a report and an exit status: 0 when the folders agree, 1 when they do not, 2 for a wrong
command line. It measures

- `steps.csv`: the largest relative difference of two losses;
- `model.safetensors`: for each tensor the largest absolute difference; the largest of all, relative
  to the largest magnitude in A's model, has to be within the tolerance;
- `logits.safetensors`, where both have it, in the same way;
- the update, where A has `init.safetensors`: |B - A| / |A - init| over all trained values together
  (Euclidean norms). It is what shows a model that was hardly trained, or trained otherwise.

Integers (the counters of batch normalization) have to be equal.
With `--network resnet18` both models also have to pass `load_state_dict(strict=True)`.

Run: `pip install torch safetensors numpy`, then `python compare.py A B`

It refuses folders without both files, models with different names, shapes or kinds of number,
different numbers of steps, and anything that is not finite.
"""

import argparse
import csv
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file

import networks


def read_losses(folder):
    """The loss column of `steps.csv`, as float64."""
    with open(folder / "steps.csv", newline="") as file:
        values = [float(row["loss"]) for row in csv.DictReader(file)]
    if not values:
        sys.exit(f"{folder / 'steps.csv'}: no steps in it")
    return {"losses": torch.tensor(values, dtype=torch.float64)}


def check_alike(file, a, b):
    """Stops unless both have the same names, shapes, kinds of number, and all are finite."""
    if a.keys() != b.keys():
        only = sorted(a.keys() - b.keys()), sorted(b.keys() - a.keys())
        sys.exit(f"{file}: only in A {only[0]}, only in B {only[1]}")
    for name, one in a.items():
        other = b[name]
        if one.shape != other.shape:
            sys.exit(f"{file}: {name} is {list(one.shape)} in A, {list(other.shape)} in B")
        if one.is_floating_point() != other.is_floating_point():
            sys.exit(f"{file}: {name} is {one.dtype} in A, {other.dtype} in B")
        if not (one.isfinite().all() and other.isfinite().all()):
            sys.exit(f"{file}: {name} is not finite")
        if not one.is_floating_point() and not torch.equal(one, other):
            sys.exit(f"{file}: {name} is {one.tolist()} in A, {other.tolist()} in B")


def floats(tensors):
    """The entries that are not counters, as float64."""
    return {k: v.double() for k, v in tensors.items() if v.is_floating_point()}


def compare_losses(a, b):
    """Prints the losses side by side; the largest relative difference."""
    check_alike("steps.csv", a, b)
    off = ((a["losses"] - b["losses"]) / a["losses"]).abs()
    print(f"steps.csv: the losses of {len(off)} steps in A and B, relative difference")
    for one, other, relative in zip(a["losses"], b["losses"], off):
        print(f"  {one:.6f}  {other:.6f}  {relative:.1e}")
    return off.max().item()


def compare_tensors(file, a, b, start=None):
    """Prints a line for each tensor; the largest difference relative to the largest magnitude."""
    check_alike(file, a, b)
    a, b = floats(a), floats(b)
    off = {name: (a[name] - b[name]).abs().max().item() for name in a}
    print(f"\n{file}: largest difference" + (", how far training moved it" if start else ""))
    for name in a:
        moved = f"  {(a[name] - start[name].double()).abs().max():.1e}" if start else ""
        print(f"  {name:34} {off[name]:.1e}{moved}")
    worst = max(off, key=off.get)
    scale = max(one.abs().max().item() for one in a.values())
    print(f"  largest of all: {worst}, {off[worst]:.1e}; largest magnitude {scale:.1e}")
    return off[worst] / scale


def compare_updates(a, b, start):
    """The distance of the models, relative to how far training moved A's."""

    def norm(x, y):
        trained = [name for name in floats(a) if ".running_" not in name]
        return sum((x[n].double() - y[n].double()).square().sum().item() for n in trained) ** 0.5

    return norm(a, b) / norm(a, start)


def compare_folders(a, b):
    """The measured differences by name; prints the details."""
    models = [load_file(folder / "model.safetensors") for folder in (a, b)]
    init = a / "init.safetensors"
    start = load_file(init) if init.exists() else None
    found = {"losses": compare_losses(read_losses(a), read_losses(b))}
    found["model"] = compare_tensors("model.safetensors", *models, start)
    logits = [folder / "logits.safetensors" for folder in (a, b)]
    if all(path.exists() for path in logits):
        found["logits"] = compare_tensors("logits.safetensors", *map(load_file, logits))
    if start:
        found["update"] = compare_updates(*models, start)
    for name in {"logits", "update"} - found.keys():
        print(f"\n{name}: not compared, its file is not there")
    return found


def check_loads(path):
    """Stops unless PyTorch's ResNet-18 takes the model."""
    try:
        networks.resnet18().load_state_dict(load_file(path), strict=True)
    except RuntimeError as error:
        sys.exit(f"{path}: {error}")
    print(f"{path}: load_state_dict(strict=True) takes it")


def arguments():
    """The command line."""
    first, _, rest = __doc__.partition("\n")
    parser = argparse.ArgumentParser(
        description=first, epilog=rest, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("a", type=Path, metavar="A", help="the reference, made by real_steps.py")
    parser.add_argument("b", type=Path, metavar="B", help="the run to check")
    parser.add_argument("--network", choices=("lenet", "resnet18"), default="lenet")
    parser.add_argument("--tolerance", type=float, default=1e-4, help="default 1e-4")
    parser.add_argument("--update-tolerance", type=float, default=0.1, help="default 0.1")
    args = parser.parse_args()
    for path in (f / n for f in (args.a, args.b) for n in ("steps.csv", "model.safetensors")):
        if not path.exists():
            parser.error(f"{path} is missing")
    return args


def main():
    args = arguments()
    if args.network == "resnet18":
        check_loads(args.a / "model.safetensors")
        check_loads(args.b / "model.safetensors")
    differs = False
    for name, value in compare_folders(args.a, args.b).items():
        tolerance = args.update_tolerance if name == "update" else args.tolerance
        # Not `value > tolerance`: nothing may pass by not being a number.
        within = value <= tolerance
        differs |= not within
        print(f"{name}: {'agree' if within else 'DIFFER'}, {value:.1e} (tolerance {tolerance:.1e})")
    sys.exit(differs)


if __name__ == "__main__":
    main()
