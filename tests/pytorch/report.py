"""Compares steps of this project with PyTorch's on the real images, and writes `benches/results/pytorch.md`.

For seeds 0, 1 and 2: ten steps of LeNet on 1, 2 and 3 devices, three steps of ResNet-18 on one device; beside them
PyTorch's float32 against its own float64, which is the rounding that PyTorch itself has. The commands are those of
README.md here. And how noisy the book's own run is: LeNet's test accuracy after ten epochs in PyTorch, with four seeds.

Run in the root of the project: `pip install torch safetensors numpy`, then
`python tests/pytorch/report.py --data DIR`. It takes minutes.
"""

import argparse
import contextlib
import io
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

import networks
from compare import compare_folders
from multiple_gpus import get_params, init_params, train_batch
from real_steps import read_split

HERE = Path(__file__).parent
STEPS = {
    "lenet": "scratch --limit-train 2560 --epochs 1 --lr 0.05",
    "resnet18": "concise --limit-train 96 --epochs 1 --lr 0.001 --batch-size 32",
}
HEAD = """# The same steps as PyTorch's

- `python tests/pytorch/report.py --data DIR`, PyTorch {version}, Fashion-MNIST
- losses: the largest relative difference of a step's loss
- parameters: the largest difference after the last step, relative to the largest value; running statistics included
- update: the distance between both results, relative to how far training moved the parameters

| network | seed | PyTorch's float32 beside | losses | parameters | update |
|---|--:|---|--:|--:|--:|
"""

SEEDS = """
## LeNet as in the book, in PyTorch

Ten epochs, minibatches of 256, learning rate 0.2: test accuracy.

| seed | last epoch | best epoch |
|--:|--:|--:|
"""


def run(*words):
    subprocess.run([str(word) for word in words], check=True, stdout=subprocess.DEVNULL)


def pytorch(network, seed, data, out, *more):
    init = ["--default-init"] if network == "resnet18" else []
    script = [sys.executable, HERE / "real_steps.py", "--network", network, "--seed", seed]
    run(*script, *init, "--data", data, "--out", out, *more)
    return out


def ours(network, gpus, data, theirs, out):
    program, *options = STEPS[network].split()
    init = theirs / "init.safetensors"
    command = [Path("target/release") / program, *options, "--device", "cpu", "--no-shuffle"]
    run(*command, "--limit-test", 100, "--gpus", gpus, "--init", init, "--data", data, "--out", out)
    return out


def row(network, seed, name, a, b):
    with contextlib.redirect_stdout(io.StringIO()):
        found = compare_folders(a, b)
    losses, model, update = (found[key] for key in ("losses", "model", "update"))
    return f"| {network} | {seed} | {name} | {losses:.1e} | {model:.1e} | {update:.1e} |\n"


def accuracies(seed, data):
    """LeNet's test accuracy after each of the book's ten epochs."""
    (X, y), (X_test, y_test) = read_split(data, "train"), read_split(data, "t10k")
    params = get_params(init_params(seed), "cpu")
    for _ in range(10):
        for batch in torch.randperm(len(X)).split(256):
            train_batch(X[batch], y[batch], [params], ["cpu"], lr=0.2)
        with torch.no_grad():
            right = [networks.lenet(x, params).argmax(1) for x in X_test.split(1000)]
        yield (torch.cat(right) == y_test).double().mean().item()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    data = parser.parse_args().data
    report = HEAD.format(version=torch.__version__)
    run("cargo", "build", "--quiet", "--release", "-p", "scratch", "-p", "concise")
    for network, devices in [("lenet", [1, 2, 3]), ("resnet18", [1])]:
        for seed in range(3):
            with tempfile.TemporaryDirectory() as folder:
                folder = Path(folder)
                theirs = pytorch(network, seed, data, folder / "float32")
                double = pytorch(network, seed, data, folder / "float64", "--float64")
                report += row(network, seed, "its float64", theirs, double)
                for k in devices:
                    name = f"this project, {k} device" + "s" * (k > 1)
                    out = ours(network, k, data, theirs, folder / f"ours-{k}")
                    report += row(network, seed, name, theirs, out)
    report += SEEDS
    for seed in range(4):
        accs = list(accuracies(seed, data))
        report += f"| {seed} | {accs[-1]:.3f} | {max(accs):.3f} |\n"
    (HERE.parents[1] / "benches/results/pytorch.md").write_text(report)


if __name__ == "__main__":
    main()
