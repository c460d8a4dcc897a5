"""Where the programs of others live that our tests run: npm packages, installed beside the checkout from package-lock.json here.

Before us: nothing; a machine with `node` and `npm`. After us: conformance/run.py, clients/, and the reference server of bench/. The lock holds
versions and hashes and no address: which registry is used is the machine's own business. Not here: a fallback without npm; who cannot install
cannot run these."""

import hashlib
import shutil
import subprocess
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = HERE.parents[2] / "anabranch-node-cache"
INSTALL_TIMEOUT_S = 300


class NoNode(RuntimeError):
    """There is no node or no npm on the PATH."""


def ensure() -> Path:
    """The folder with node_modules, installed now if the lock has changed since the last time."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        raise NoNode("node and npm must be on the PATH for the public suite, the npm client and the reference server")
    lock = (HERE / "package-lock.json").read_bytes() + (HERE / "package.json").read_bytes()
    stamp = CACHE / f".installed-{hashlib.sha256(lock).hexdigest()[:16]}"
    if not stamp.exists():
        CACHE.mkdir(exist_ok=True)
        for old in CACHE.glob(".installed-*"):
            old.unlink()
        for name in ("package.json", "package-lock.json"):
            shutil.copy(HERE / name, CACHE / name)
        print(f"installing npm packages into {CACHE}", flush=True)
        # No install scripts: the packages that have one come with built binaries, and code that runs at install time is code nobody pinned.
        command = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"]
        subprocess.run(command, cwd=CACHE, check=True, timeout=INSTALL_TIMEOUT_S)
        stamp.touch()
    return CACHE


def stage(script: Path) -> Path:
    """A copy of one of our scripts beside node_modules: an ES module finds its imports from where it lies, and the checkout has none."""
    target = ensure() / script.name
    if not target.exists() or target.read_bytes() != script.read_bytes():
        shutil.copy(script, target)
    return target
