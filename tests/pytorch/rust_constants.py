"""Prints what the two `*_steps.py` measured as Rust constants.

Every number is PyTorch's in float64, to 12 digits, so that two machines print the same. The
comment beside it says how far PyTorch's own float32 run was from it, on one thread: with another
number of threads or another CPU that distance is another one, up to ten times. A tolerance well
below it cannot be held by any float32 implementation; how far training moved a tensor is what the
tolerance has to stay well below.

It refuses to format: pipe it through `rustfmt --edition 2024`.
"""

import torch


def header(what, script):
    """The `//!` lines that every file of constants opens with."""
    print(f"//! {what}")
    print("//!")
    print(f"//! Printed by `tests/pytorch/{script}` with torch {torch.__version__}: run it again")
    print("//! instead of editing. The numbers are PyTorch's in float64; the comments say how far")
    print("//! PyTorch's own float32, on one thread, is from them (largest absolute difference).")


def literal(values):
    """Nested lists of floats as a Rust literal."""
    if isinstance(values, list):
        return "[" + ", ".join(literal(v) for v in values) + "]"
    text = f"{values:.12g}"
    return text if "." in text or "e" in text else text + ".0"


def array(doc, name, f64, f32):
    """One `pub const` array of any rank, from its float64 and its float32 twin."""
    f64, f32 = torch.as_tensor(f64, dtype=torch.float64), torch.as_tensor(f32, dtype=torch.float64)
    kind = "f64"
    for length in reversed(f64.shape):
        kind = f"[{kind}; {length}]"
    print(f"\n/// {doc}\n///\n/// float32 is at most {distance(f64, f32):.1e} away.")
    print(f"pub const {name}: {kind} = {literal(f64.tolist())};")


def tensors(doc, name, start, f64, f32, ends):
    """Name, sum, first three and (with `ends` 2) last three elements of each named tensor."""
    kind = ", [f64; 3]" * ends
    print(f"\n/// {doc}\npub const {name}: [(&str, f64{kind}); {len(f64)}] = [")
    for key in f64:
        first, exact, single = (state[key].double().flatten() for state in (start, f64, f32))
        sums = abs((exact.sum() - single.sum()).item())
        moved, off = distance(first, exact), distance(exact, single)
        print(f"// moved by at most {moved:.1e}; ", end="")
        print(f"float32: the sum {sums:.1e}, an element at most {off:.1e} away")
        parts = [exact.sum().item(), exact[:3].tolist(), exact[-3:].tolist()][: 1 + ends]
        print(f'("{key}", ' + ", ".join(literal(p) for p in parts) + "),")
    print("];")


def distance(a, b):
    """The largest absolute difference."""
    return (a - b).abs().max().item()
