"""The rules that hold the house together, read from the sources themselves."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainmem.buckets import BUCKETS
from trainmem.device import devices
from trainmem.job import LEVERS, Offload, Optimizer, Precision, ShardingMode

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT / "shared" / "trainmem"
SPACE = ROOT / "space"
BACKEND = ROOT / "backend" / "trainmem_backend"


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def sources(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def test_shared_is_standard_library_only() -> None:
    optional = {"trainmem_backend", "huggingface_hub"}
    for path in sources(SHARED):
        foreign = set(imports(path)) - set(sys.stdlib_module_names) - {"trainmem"} - optional
        assert not foreign, f"{path.relative_to(ROOT)} imports {foreign}"


def test_importing_shared_brings_nothing_heavy_along() -> None:
    code = (
        "import sys, trainmem.estimate, trainmem.verdict, trainmem.cli.estimate\n"
        "print([m for m in ('torch', 'gradio', 'pandas', 'altair', 'numpy', 'transformers') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "[]"


@pytest.mark.parametrize("folder", [SPACE])
def test_the_app_never_imports_torch(folder: Path) -> None:
    for path in sources(folder):
        assert not {"torch", "transformers", "peft", "bitsandbytes", "trainmem_backend"} & set(
            imports(path)
        ), path


def test_only_the_backend_imports_torch() -> None:
    for path in [*sources(SHARED), *sources(SPACE)]:
        assert "torch" not in set(imports(path)), path


UNTRUSTED = re.compile(r"pickle\.loads?\(|torch\.load\(|trust_remote_code\s*=\s*True|weights_only")


def test_no_file_from_outside_is_unpickled_or_trusted() -> None:
    for path in [*sources(SHARED), *sources(SPACE), *sources(BACKEND)]:
        assert not UNTRUSTED.search(path.read_text(encoding="utf-8")), path


def test_the_app_does_no_memory_arithmetic() -> None:
    """Bytes are multiplied and divided in shared/trainmem only; a page may scale pixels, not memory."""
    pattern = re.compile(r"_bytes\s*[*/]|[*/]\s*\w*_bytes\b|1\s*<<\s*30|1024\s*\*\*|2\s*\*\*\s*30|1e9")
    for path in sources(SPACE):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            code = line.partition("#")[0]
            assert not pattern.search(code), f"{path.relative_to(ROOT)}:{number}: {line.strip()}"


def test_advice_on_the_allocator_says_one_thing() -> None:
    """The variable was renamed; only one place may say how to set it, and which torch reads the old name."""
    setting = re.compile(r"PYTORCH_\w*ALLOC_CONF=")
    places = {
        path.relative_to(ROOT).as_posix()
        for path in [*sources(SHARED), *sources(SPACE), *sources(BACKEND)]
        if setting.search(path.read_text(encoding="utf-8"))
    }
    # the second writes PyTorch's own message
    assert places == {"shared/trainmem/allocator/settings.py", "shared/trainmem/allocator/oom.py"}


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_the_papers_are_there(name: str) -> None:
    assert (ROOT / name).stat().st_size > 300


def test_every_lever_bucket_and_device_is_documented() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8") + (ROOT / "docs" / "levers.md").read_text(
        encoding="utf-8"
    )
    names = [
        *LEVERS, *(value for allowed in LEVERS.values() for value in allowed), *BUCKETS,
        *Precision.__args__, *Optimizer.__args__, *ShardingMode.__args__, *Offload.__args__,
        *(device.name for device in devices()),
    ]  # fmt: skip
    missing = [name for name in names if f"`{name}`" not in text]
    assert not missing


def test_the_readme_is_generated() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "tools.readme", "--check"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_changelog_knows_this_version() -> None:
    from trainmem import __version__

    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_nothing_personal_in_the_tree() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    pattern = re.compile(
        rb"/home/(?!user\b)[a-z]|/root/|/Users/[a-z]|/work/|pypi\.org|files\.pythonhosted|deb\.debian|registry\.npmjs"
    )
    for name in filter(None, listed.stdout.split(b"\0")):
        path = ROOT / name.decode()
        if (
            path.suffix in (".gz", ".png", ".pickle", ".parquet")
            or path == Path(__file__)
            or "snapshot" in path.name  # stacks with paths, to be shortened, are what those tests are about
            or not path.is_file()
        ):
            continue
        found = pattern.search(path.read_bytes())
        assert found is None, f"{name.decode()}: {found.group() if found else ''}"


def test_public_names_exist() -> None:
    import importlib
    import pkgutil

    import trainmem

    for info in pkgutil.walk_packages(trainmem.__path__, "trainmem."):
        if ".snapshot.child" in info.name or info.name.endswith("__main__"):
            continue
        module = importlib.import_module(info.name)
        for name in getattr(module, "__all__", []):
            assert hasattr(module, name), f"{info.name}.{name}"
