"""`python -m bench`: every benchmark, one after the other; 1 if one missed its goal."""

from __future__ import annotations

import subprocess
import sys

ALL = ("bench.book", "bench.demo", "bench.agent", "bench.decide")


def main() -> int:
    codes = [subprocess.run([sys.executable, "-m", name], check=False).returncode for name in ALL]
    return max(codes)


if __name__ == "__main__":
    sys.exit(main())
