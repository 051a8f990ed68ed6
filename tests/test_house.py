"""The rules of the house that no linter knows, each with a sample that breaks it.

A rule is a function from a module to its faults. `RULES` says where each holds
and what it must refuse; a rule whose bad sample passes is itself a failure.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

#: One process reads all modules, once.
pytestmark = pytest.mark.xdist_group("house")

ROOT = Path(__file__).resolve().parent.parent
LONGEST_MODULE = 400
LONGEST_FUNCTION = 40
EMPTY_NAMES = {
    "utils",
    "util",
    "helpers",
    "helper",
    "common",
    "manager",
    "managers",
    "base",
    "handler",
    "handlers",
}
#: What reads the time of day. `time.monotonic` is no clock: it only measures.
CLOCKS = re.compile(
    r"^(datetime\.)?(datetime|date)\.(now|utcnow|today)$|^(django\.utils\.)?timezone\.now$"
    r"|^time\.(time|time_ns|localtime|gmtime|ctime|strftime)$"
)


@dataclass(frozen=True, slots=True)
class Module:
    """One Python file: its path from the root, its text and its tree."""

    path: str
    text: str

    @property
    def tree(self) -> ast.Module:
        return parse(self.text)

    @property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All of the tree: most rules look through it."""
        return walked(self.text)

    @property
    def name(self) -> str:
        return Path(self.path).stem


@cache
def parse(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except SystemError:
        # CPython 3.11 counts the depth of all parsers in one place: another thread's can spoil it once.
        return ast.parse(text)


@cache
def walked(text: str) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(parse(text)))


def dotted(node: ast.AST) -> str:
    """`a.b.c` for an attribute chain; empty for anything else."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        owner = dotted(node.value)
        return f"{owner}.{node.attr}" if owner else f"?.{node.attr}"
    return "?"


def imports(module: Module) -> Iterator[tuple[int, str]]:
    """Every imported name with its line: `from a import b` gives `a.b`."""
    for node in module.nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


# --- The rules ----------------------------------------------------------------


def stays_short(module: Module) -> Iterator[str]:
    lines = len(module.text.splitlines())
    if lines > LONGEST_MODULE:
        yield f"{lines} lines, more than {LONGEST_MODULE}"
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > LONGEST_FUNCTION:
                yield f"{node.lineno}: {node.name} has {lines} lines, more than {LONGEST_FUNCTION}"


def says_what_lives_here(module: Module) -> Iterator[str]:
    lines = (ast.get_docstring(module.tree) or "").splitlines()
    if not 1 <= len(lines) <= 9:
        yield f"its docstring has {len(lines)} lines instead of a few"


def is_named_for_a_noun(module: Module) -> Iterator[str]:
    if module.name in EMPTY_NAMES:
        yield f"{module.name!r} says nothing"


def takes_no_row_lock(module: Module) -> Iterator[str]:
    for node in module.nodes:
        if isinstance(node, ast.Attribute) and node.attr == "select_for_update":
            yield f"{node.lineno}: select_for_update belongs in services/locks.py"


def opens_no_transaction(module: Module) -> Iterator[str]:
    for line, name in imports(module):
        if name.startswith("django.db.transaction"):
            yield f"{line}: transactions belong in services"
    for node in module.nodes:
        if isinstance(node, ast.Attribute) and dotted(node.value).split(".")[-1] == "transaction":
            yield f"{node.lineno}: {dotted(node)} belongs in services"


def reaches_no_table(module: Module) -> Iterator[str]:
    for node in module.nodes:
        if isinstance(node, ast.Attribute) and node.attr in ("objects", "_default_manager", "_base_manager"):
            yield f"{node.lineno}: .{node.attr} belongs in queries and services"


def calls_no_driver(module: Module) -> Iterator[str]:
    for line, name in imports(module):
        if name.split(".")[0] == "pynvml":
            yield f"{line}: only agents/nvml*.py and agents/simulator.py know pynvml"


def reads_no_clock(module: Module) -> Iterator[str]:
    for node in module.nodes:
        if not isinstance(node, ast.Call):
            continue
        without_argument = dotted(node.func) in ("timezone.localtime", "timezone.localdate") and not node.args
        if without_argument or CLOCKS.match(dotted(node.func)):
            yield f"{node.lineno}: {dotted(node.func)} instead of queries/clock.py"
    for line, name in imports(module):
        if name in ("time.time", "django.utils.timezone.now", "time.time_ns"):
            yield f"{line}: {name} instead of queries/clock.py"


def hides_no_time(module: Module) -> Iterator[str]:
    for node in module.nodes:
        if isinstance(node, ast.keyword) and node.arg in ("auto_now", "auto_now_add", "db_default"):
            yield f"{node.value.lineno}: {node.arg} sets what `now` should"


def acts_without_signals(module: Module) -> Iterator[str]:
    for line, name in imports(module):
        if re.match(r"django\.(db\.models\.signals|dispatch)(\.|$)", name):
            yield f"{line}: {name}: no signals as control flow"


def names_no_place(module: Module) -> Iterator[str]:
    """Machine paths and package indexes are nobody's business but the machine's."""
    for number, line in enumerate(module.text.splitlines(), 1):
        if re.search(r"(?<![\w.])/(work|root)/|pypi\.(org|io)|python[h]osted|registry\.npmjs", line):
            yield f"{number}: names a machine's path or a package index"


@dataclass(frozen=True, slots=True)
class Rule:
    """Where a rule holds, and a module (path, text) that it must refuse."""

    holds: Callable[[Module], Iterator[str]]
    where: str
    bad: str
    bad_path: str = "pool/core/sample.py"
    except_for: str = r"^$"

    def covers(self, path: str) -> bool:
        return bool(re.match(self.where, path)) and not re.match(self.except_for, path)


CODE = r"(portal|pool|agents|bench|tests)/|manage\.py"
PRODUCT = r"(portal|pool|agents|bench)/"
MIGRATIONS = r"pool/migrations/"
RULES = [
    Rule(stays_short, CODE, "x = 1\n" * (LONGEST_MODULE + 1), except_for=MIGRATIONS),
    Rule(stays_short, CODE, "def f():\n" + "    x = 1\n" * LONGEST_FUNCTION, except_for=MIGRATIONS),
    Rule(says_what_lives_here, CODE, "x = 1\n", except_for=rf"{MIGRATIONS}|.*__init__\.py"),
    Rule(is_named_for_a_noun, CODE, "", "pool/core/utils.py"),
    Rule(takes_no_row_lock, PRODUCT, "rows.select_for_update()", except_for=r"pool/services/locks\.py"),
    Rule(opens_no_transaction, PRODUCT, "from django.db import transaction", except_for=r"pool/services/"),
    Rule(opens_no_transaction, PRODUCT, "db.transaction.atomic()", except_for=r"pool/services/"),
    Rule(reaches_no_table, r"portal/", "models.Gpu.objects.all()", "portal/web/sample.py"),
    Rule(
        calls_no_driver,
        CODE,
        "import pynvml",
        except_for=r"agents/(nvml(_[a-z]+)?|simulator)\.py|tests/agents/",
    ),
    Rule(reads_no_clock, r"(portal|pool)/", "at = datetime.now(UTC)", except_for=r"pool/queries/clock\.py"),
    Rule(reads_no_clock, r"(portal|pool)/", "at = timezone.now()", except_for=r"pool/queries/clock\.py"),
    Rule(
        reads_no_clock, r"(portal|pool)/", "day = timezone.localdate()", except_for=r"pool/queries/clock\.py"
    ),
    Rule(reads_no_clock, r"(portal|pool)/", "from time import time", except_for=r"pool/queries/clock\.py"),
    Rule(hides_no_time, r"pool/", "at = DateTimeField(auto_now=True)", "pool/models/sample.py"),
    Rule(acts_without_signals, r"pool/", "from django.db.models.signals import post_save"),
    Rule(names_no_place, CODE, "HOME = '/ro' 'ot/x'".replace("' '", "")),
]


@cache
def modules() -> list[Module]:
    folders = ("portal", "pool", "agents", "bench", "tests")
    files = [
        ROOT / "manage.py",
        *(file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))),
    ]
    return [Module(str(file.relative_to(ROOT)), file.read_text()) for file in files]


def label(rule: Rule) -> str:
    return f"{rule.holds.__name__}-{RULES.index(rule)}"


@pytest.mark.parametrize("rule", RULES, ids=label)
def test_every_module_keeps_the_rule(rule: Rule) -> None:
    faults = [f"{m.path}: {fault}" for m in modules() if rule.covers(m.path) for fault in rule.holds(m)]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize("rule", RULES, ids=label)
def test_the_rule_refuses_its_bad_sample(rule: Rule) -> None:
    assert rule.covers(rule.bad_path)
    assert list(rule.holds(Module(rule.bad_path, rule.bad)))


@pytest.mark.parametrize("rule", RULES, ids=label)
def test_the_rule_lets_an_honest_module_pass(rule: Rule) -> None:
    honest = (
        '"""Says what lives here."""\n\nfrom time import monotonic\n\n\ndef f():\n    return monotonic()\n'
    )
    assert not list(rule.holds(Module("pool/core/periods.py", honest)))


# --- Every decision has its test ----------------------------------------------


def without_test(layer: Path, tests: Path) -> list[str]:
    """Modules of a layer that have no test file of their name."""
    names = [file.stem for file in layer.glob("*.py") if not file.name.startswith("__")]
    return sorted(name for name in names if not (tests / f"test_{name}.py").exists())


@pytest.mark.parametrize("layer", ["core", "queries", "services"])
def test_every_module_of_the_layer_has_its_test_file(layer: str) -> None:
    assert not without_test(ROOT / "pool" / layer, ROOT / "tests" / layer)


def test_a_module_without_test_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "layer").mkdir()
    (tmp_path / "tests").mkdir()
    for name in ("layer/__init__.py", "layer/period.py", "layer/quota.py", "tests/test_period.py"):
        (tmp_path / name).touch()
    assert without_test(tmp_path / "layer", tmp_path / "tests") == ["quota"]


# --- The core is pure ---------------------------------------------------------

IMPORT_ALL = """
import importlib, pkgutil, sys
for name in sys.argv[2].split(","):
    sys.modules[name] = None
package = importlib.import_module(sys.argv[1])
for module in pkgutil.walk_packages(package.__path__, sys.argv[1] + "."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
"""


def import_all(package: str, blocked: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Import each module of a package while some others cannot be imported."""
    call = [sys.executable, "-c", IMPORT_ALL, package, blocked]
    return subprocess.run(call, cwd=folder, capture_output=True, text=True, check=False)


def test_the_core_imports_where_django_is_blocked() -> None:
    done = import_all("pool.core", "django,rest_framework,celery,redis,psycopg,pynvml", ROOT)
    assert done.returncode == 0, done.stderr


def test_the_agents_import_where_django_and_numpy_are_blocked() -> None:
    done = import_all("agents", "django,rest_framework,psycopg,numpy,portal", ROOT)
    assert done.returncode == 0, done.stderr


def test_a_core_that_imports_django_is_found(tmp_path: Path) -> None:
    (tmp_path / "impure").mkdir()
    (tmp_path / "impure/__init__.py").touch()
    (tmp_path / "impure/periods.py").write_text("import django\n")
    assert "django" in import_all("impure", "django", tmp_path).stderr


# --- The lock -----------------------------------------------------------------


def lock_faults(text: str) -> list[str]:
    """Lines of a lock file that name a host, and packages without a hash."""
    faults = [line for line in text.splitlines() if "://" in line or line.startswith("-")]
    blocks = re.split(r"\n(?=[a-z0-9])", text.strip())
    return faults + [block.splitlines()[0] for block in blocks if "--hash=sha256:" not in block]


def test_the_lock_has_hashes_and_names_no_host() -> None:
    assert not lock_faults((ROOT / "requirements.lock").read_text())


@pytest.mark.parametrize(
    "bad", ["--index-url x\n", "a==1 \\\n  --hash=sha256:0\nb==2\n", "a @ https://host/a.whl"]
)
def test_a_lock_that_names_a_host_or_lacks_a_hash_is_found(bad: str) -> None:
    assert lock_faults(bad)
