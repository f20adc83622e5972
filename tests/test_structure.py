"""How much a reader has to hold in mind: what stands behind a mixer, how far `x` travels, no two files in a circle.

`python tests/test_structure.py` prints the numbers.
"""

import ast
import functools
import sys
from pathlib import Path

import torch
from every_mixer import mixer_of

ROOT = Path(__file__).parents[1]
PACKAGES = ("benchmarks", "kernels", "mixerlab", "mixers", "models", "sweeps", "tasks", "training")
MIXERS = ("attn", "parallax", "gdn", "mamba", "mesa")
LENGTH = 41


def modules():
    """The file of every module of ours, by its name."""
    found = {}
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            parts = parts if parts[0] == "mixerlab" else ("mixerlab", *parts)
            found[".".join(parts).removesuffix(".__init__")] = path
    return found


MODULES = modules()


@functools.cache
def imports(name):
    """The modules of ours that a module names in an import, in functions too; a package, if it is asked for a name."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            found |= {full if full in MODULES else node.module for full in names.values()}
    return found & set(MODULES) - {name, "mixerlab"}


def behind(name):
    """The module and all that it imports, directly or not."""
    found, waiting = set(), {name}
    while waiting:
        one = waiting.pop()
        found.add(one)
        waiting |= imports(one) - found
    return found


def circles():
    """Pairs of modules that each stand behind the other."""
    reached = {name: behind(name) - {name} for name in MODULES}
    return {(one, other) for one in MODULES for other in reached[one] if one < other and one in reached[other]}


def stays(mixer, x):
    """The files that whoever follows `x` through `mixer` opens, in order, also to return, until nothing is left to do.

    They go into each function of ours that is given a tensor of the length of `x` and gives one back.
    """
    assert x.shape[1] == LENGTH
    calls = [([], False, "")]  # not left yet: the calls inside, whether it was given such a tensor, its file

    def has_length(value):
        if isinstance(value, tuple | list):
            return any(has_length(item) for item in value)
        return isinstance(value, torch.Tensor) and LENGTH in value.shape

    def follow(frame, event, result):
        code = frame.f_code
        if event == "call":
            names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
            path = Path(code.co_filename)
            of_a_library = "site-packages" in path.parts  # of a virtual environment in the checkout
            ours = path.is_relative_to(ROOT) and not of_a_library and not code.co_name.startswith("<")
            given = ours and any(has_length(frame.f_locals[name]) for name in names)
            calls.append(([], given, str(path.relative_to(ROOT)) if given else ""))
        elif event == "return" and len(calls) > 1:
            inside, given, file = calls.pop()
            if not given:
                calls[-1][0].extend(inside)
            elif has_length(result):
                calls[-1][0].append((file, inside))

    sys.setprofile(follow)
    try:
        mixer(x)
    finally:
        sys.setprofile(None)

    entered, last = [], 0

    def walk(file, inside):
        nonlocal last
        entered.append(file)
        last = len(entered)
        for call in inside:
            walk(*call)
            entered.append(file)

    for call in calls[0][0]:
        walk(*call)
    return [file for number, file in enumerate(entered[:last]) if number == 0 or file != entered[number - 1]]


def stays_of(name):
    return stays(mixer_of(name, 32), torch.randn(2, LENGTH, 32))


def test_behind_attention_is_what_attention_needs():
    found = behind("mixerlab.mixers.attn")
    assert len(found) <= 22
    assert not [name for name in found if "gate" in name or "convol" in name or "scan" in name]


def test_modules_behind_a_name_are_counted():
    """Through functions that import late, and not through a package of which only a module is asked for."""
    found = behind("mixerlab.mixers.attn")
    assert {"mixerlab.kernels.fused.linear.triton_kernels", "mixerlab.mixers.base"} <= found
    assert "mixerlab.kernels.fused" not in found
    assert "mixerlab.mixers.gates" in behind("mixerlab.mixers.gdn")


def test_x_is_in_few_files_on_its_way_through_parallax():
    found = stays_of("parallax")
    assert {"mixers/parallax.py", "kernels/fused/linear/__init__.py", "kernels/parallax/reference.py"} <= set(found)
    assert len(found) <= 12, found


def test_no_two_files_import_each_other():
    assert not circles()


def main():
    for name in MIXERS:
        files = stays_of(name)
        print(f"{name}: {len(behind(f'mixerlab.mixers.{name}'))} modules behind it, {len(files)} stays of x:", *files)
    print("circles:", *sorted(circles()), sep="\n")


if __name__ == "__main__":
    main()
