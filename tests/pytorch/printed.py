"""What the two `*_steps.py` measured, as JSON.

Every number is PyTorch's in float64, to 12 digits, so that two machines print the same. Beside it
stands how far PyTorch's own float32 run was from it (`float32`, the largest absolute difference),
on one thread: with another number of threads or another CPU that distance is another one, up to ten
times. A tolerance well below it cannot be held by any float32 implementation; how far training
moved a tensor (`moved`) is what the tolerance has to stay well below.
"""

import json

import torch


def array(f64, f32):
    """An array of any rank, from its float64 and its float32 twin."""
    f64, f32 = torch.as_tensor(f64, dtype=torch.float64), torch.as_tensor(f32, dtype=torch.float64)
    return {"float64": digits(f64.tolist()), "float32": distance(f64, f32)}


def tensors(start, f64, f32, ends):
    """Sum, first three and (with `ends` 2) last three elements of each named tensor."""
    found = {}
    for key in f64:
        first, exact, single = (state[key].double().flatten() for state in (start, f64, f32))
        found[key] = {
            "sum": digits(exact.sum().item()),
            "ends": digits(exact[[0, 1, 2, -3, -2, -1]].tolist()[: 3 * ends]),
            "moved": distance(first, exact),
            "float32": [distance(exact.sum(), single.sum()), distance(exact, single)],
        }
    return found


def steps(run):
    """Of `run(dtype)`, which returns losses and the tensors before and after: the losses, and six elements of each tensor."""
    f64, f32 = run(torch.float64), run(torch.float32)
    return {"losses": array(f64[0], f32[0]), "tensors": tensors(f64[1], f64[2], f32[2], ends=2)}


def digits(values):
    """Nested lists of floats, to 12 digits."""
    if isinstance(values, list):
        return [digits(value) for value in values]
    return float(f"{values:.12g}")


def distance(a, b):
    """The largest absolute difference, to two digits."""
    return float(f"{(a - b).abs().max().item():.1e}")


def show(**found):
    print(json.dumps({"from": f"torch {torch.__version__}"} | found, indent=1))
