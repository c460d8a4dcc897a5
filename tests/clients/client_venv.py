"""Where the PyPI client lives: a virtual environment of its own beside the checkout, made from requirements.txt here when it is first needed.

Before us: a Python with pip, the one that runs the tests. After us: run.py, which starts pypi_client.py with `python()`. The client must not meet our
own packages: it is a stranger, and its httpx is its own business. As with node_cache.py, the lock holds versions and hashes and no address."""

import fcntl
import hashlib
import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
VENV = HERE.parents[2] / "anabranch-clients-venv"
LOCK = HERE / "requirements.txt"
INSTALL_TIMEOUT_S = 300


def python() -> Path:
    """Its interpreter, with the packages installed now if the lock, or our own Python, has changed since the last time."""
    made_of = LOCK.read_bytes() + sys.version.encode() + sys.base_prefix.encode()
    stamp = VENV / f".installed-{hashlib.sha256(made_of).hexdigest()[:16]}"
    interpreter = VENV / "bin" / "python"
    if not stamp.exists():
        with VENV.with_name(f".{VENV.name}.lock").open("w") as guard:
            fcntl.flock(guard, fcntl.LOCK_EX)  # two clones may share the environment, and start at the same time
            if not stamp.exists():
                _make(interpreter)
                stamp.touch()
    return interpreter


def _make(interpreter: Path) -> None:
    print(f"installing the PyPI client into {VENV}", flush=True)
    # Without a pip of its own (--clear removes old stamps too): ours installs into it, which also works where ensurepip is packaged separately.
    _run([sys.executable, "-m", "venv", "--clear", "--without-pip", str(VENV)])
    install = [sys.executable, "-m", "pip", "--python", str(interpreter), "install", "--quiet", "--disable-pip-version-check"]
    _run([*install, "--no-deps", "--only-binary", ":all:", "--require-hashes", "-r", str(LOCK)])


def _run(command: list[str]) -> None:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    subprocess.run(command, check=True, timeout=INSTALL_TIMEOUT_S, env=env)
