"""`python -m bench`: runs every benchmark, one after the other; fails if one misses a goal.

A benchmark is a module here whose docstring begins with the command that runs it.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def benchmarks() -> list[str]:
    """The modules that are benchmarks, by name."""
    found = [path for path in sorted(HERE.glob("*.py")) if not path.name.startswith("__")]
    return [path.stem for path in found if _begins(path).startswith(f"`python -m bench.{path.stem}`")]


def _begins(path: Path) -> str:
    return ast.get_docstring(ast.parse(path.read_text())) or ""


def main() -> int:
    """Each prints its figures as JSON lines; 1 if any missed a goal or could not be run."""
    failed = [
        name
        for name in benchmarks()
        if subprocess.run([sys.executable, "-m", f"bench.{name}"], cwd=HERE.parent, check=False).returncode
    ]
    if failed:
        print(f"Missed: {', '.join(failed)}.", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
