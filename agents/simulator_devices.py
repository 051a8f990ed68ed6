"""The device files and kernel tables of a simulated machine, in a root folder of its own.

The files are empty: nothing can be opened through them, but what hands them out finds them.
"""

from __future__ import annotations

from pathlib import Path

#: As on a machine with the driver loaded; the numbers of NVIDIA's later groups are given out at load.
_DEVICES = """Character devices:
  1 mem
  5 /dev/tty
  5 /dev/ptmx
 10 misc
136 pts
195 nvidia
195 nvidiactl
234 nvidia-caps
235 nvidia-uvm
236 nvidia-caps-imex-channels

Block devices:
259 blkext
"""
_CARDS, _INSTANCES, _PARTS = 32, 15, 8


def lay_out(root: Path, cards: int) -> None:
    """Write them where they are missing."""
    if (root / "proc/devices").exists():
        return
    caps = root / "proc/driver/nvidia-caps"
    caps.mkdir(parents=True, exist_ok=True)
    (caps / "mig-minors").write_text(_minors())
    files = root / "dev"
    files.mkdir(parents=True, exist_ok=True)
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", *(f"nvidia{n}" for n in range(cards))):
        (files / name).touch()
    (root / "proc/devices").write_text(_DEVICES)


def _minors() -> str:
    """The driver counts all capabilities through: of each card, each instance with its eight parts."""
    names = ["config", "monitor"]
    for card in range(_CARDS):
        for gi in range(_INSTANCES):
            names.append(f"gpu{card}/gi{gi}/access")
            names += [f"gpu{card}/gi{gi}/ci{ci}/access" for ci in range(_PARTS)]
    return "".join(f"{name} {number}\n" for number, name in enumerate(names, 1))
