"""Which code made a result: a hash of the modules that it uses, blind to comments and docstrings."""

import ast
import functools
import hashlib
import sys
from collections.abc import Iterable
from contextlib import suppress
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, resolve_name
from pathlib import Path

import mixerlab
from mixerlab.records.errors import INSTALLED, LIBRARIES

# Our packages whose code can change a result. The others read configs, write records and draw.
COMPUTING = ("mixers", "tasks", "kernels", "models", "training")
Import = tuple[str, str | None]  # a module, and the name that is imported from it


def code_version(*modules: str) -> str:
    """A hash of the source of these modules and of all that they import, directly or not; 12 hex digits.

    Of the source as it was when this process first asked, soon after the import, since that is what runs.

    Imports of the packages in COMPUTING are followed, and from a user's own module those of the user's other modules,
    packages that are installed as editable included. A name that a package's `__init__` only passes on counts as the
    module that defines it, without its neighbours.
    """
    sources: dict[str, _Source] = {}
    waiting = {(name, _located(name)) for name in modules}
    while waiting:
        name, path = waiting.pop()
        if name not in sources:
            sources[name] = _source(path, name)
            found = (_definition(one, path, name) for one in sources[name].imports)
            waiting |= {one for one in found if one is not None}
    return _hash(tuple(sorted((name, source.text) for name, source in sources.items())))


@functools.cache  # a sweep asks for every cell
def _hash(texts: tuple[tuple[str, str], ...]) -> str:
    return hashlib.sha256(repr(list(texts)).encode()).hexdigest()[:12]


class _Source:
    """A module's code without comments and docstrings, all its imports, and names that they bind at the top level."""

    def __init__(self, path: Path, name: str):
        tree = ast.parse(path.read_bytes(), path)
        package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        self.imports: set[Import] = set()
        self.bindings: dict[str, Import] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
                node.body = node.body[1:] or [ast.Pass()]
            elif isinstance(node, ast.Import):
                self.imports |= {(alias.name, None) for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                try:
                    module = resolve_name("." * node.level + (node.module or ""), package)
                except ImportError:  # of a module that tries to be part of a package
                    continue
                self.imports |= {(module, alias.name) for alias in node.names}
                if node in tree.body:
                    self.bindings |= {alias.asname or alias.name: (module, alias.name) for alias in node.names}
        self.text = repr(_content(tree))


def _content(node: object) -> object:
    """A syntax tree without what is empty. `ast.unparse` and `ast.dump` give other text in other versions of Python."""
    if isinstance(node, ast.AST):
        return type(node).__name__, [(k, _content(v)) for k, v in ast.iter_fields(node) if v not in (None, [])]
    return [_content(one) for one in node] if isinstance(node, list) else repr(node)


_read: dict[Path, tuple[ModuleSpec | None, _Source]] = {}


def _source(path: Path, name: str) -> _Source:
    """As it was when it was first asked for since the module was imported, or reloaded, which makes a new spec."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    if path not in _read or (spec is not None and _read[path][0] is not spec):
        _read[path] = spec, _Source(path, name)
    return _read[path][1]


def _definition(imported: Import, importer: Path, importing: str) -> tuple[str, Path] | None:
    """The module that defines what is imported, with its path; None for what is not followed."""
    module, name = imported
    if name is not None and (path := _followed(f"{module}.{name}", importer, importing)) is not None:
        return f"{module}.{name}", path
    if (path := _followed(module, importer, importing)) is None:
        return None
    if name is not None and path.name == "__init__.py":
        bound = _source(path, module).bindings.get(name, imported)
        if bound != imported:  # as it is of a compiled module in the package
            return _definition(bound, path, module)
    return module, path


@functools.cache  # a sweep asks for every cell
def _followed(name: str, importer: Path, importing: str) -> Path | None:
    """The file of module `name` if it belongs to COMPUTING or, as the importing module, to the user."""
    parts = name.split(".")
    if parts[0] == "mixerlab":
        return file_in(mixerlab.__path__, parts[1:]) if parts[1:2] and parts[1] in COMPUTING else None
    if importing.startswith("mixerlab.") or INSTALLED & set(importer.parts) or parts[0] in LIBRARIES:
        return None
    spec = None
    with suppress(ValueError):  # of a module without a spec, such as __main__
        spec = find_spec(parts[0])  # which imports nothing, as it would for what is inside a package
    if spec is None:
        return None
    if (folders := spec.submodule_search_locations) is not None:
        file = file_in(folders, parts[1:])
    else:
        file = Path(spec.origin) if len(parts) == 1 and spec.origin and spec.origin.endswith(".py") else None
    return None if file is None or INSTALLED & set(file.parts) else file


def file_in(folders: Iterable[str | Path], parts: list[str]) -> Path | None:
    """The file of a module in the first of these folders that has one."""
    for folder in folders:
        path = Path(folder).joinpath(*parts)
        for file in (path / "__init__.py", path.with_suffix(".py")):
            if file.is_file():
                return file
    return None


def _located(name: str) -> Path:
    spec = find_spec(name)
    assert spec is not None and spec.origin is not None, f"{name} was found before"
    return Path(spec.origin)
