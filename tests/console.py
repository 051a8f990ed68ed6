"""A Django process of a test's own, kept open: for what no door offers, without a start for each snippet."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

#: Snippets are lines of JSON on stdin; what they print, or how they fail, are lines on the old stdout.
_LOOP = """
import contextlib, io, json, sys, traceback
import django
from django.core.management import call_command
from django.db import connection
django.setup()
for line in sys.stdin:
    said, error = io.StringIO(), ""
    with contextlib.redirect_stdout(said):
        try:
            exec(json.loads(line), {"__name__": "console", "call_command": call_command})
        except BaseException:
            error = traceback.format_exc()
        connection.close()  # the database may be restarted before the next one
    print(json.dumps([said.getvalue(), error]), flush=True)
"""


class Console:
    """Runs Python in the settings that `environment` gives; its own words go to `log`."""

    def __init__(self, environment: Mapping[str, str], log: Path) -> None:
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _LOOP],
                env=dict(environment),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                start_new_session=True,
            )

    def run(self, code: str) -> str:
        """What the snippet prints. AssertionError with its traceback when it fails."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(code) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise AssertionError(f"the console ended with status {self._process.wait()}")
        said, error = json.loads(answer)
        if error:
            raise AssertionError(error)
        return str(said)

    def manage(self, *arguments: str) -> str:
        """manage.py with these arguments."""
        return self.run(f"call_command(*{list(arguments)!r})")

    def close(self) -> None:
        process = self._process
        assert process.stdin
        assert process.stdout
        process.stdin.close()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
