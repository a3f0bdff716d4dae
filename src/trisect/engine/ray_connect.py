"""Connecting to Ray: a cluster of this process alone on loopback, or one that is there and asks for a token."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from trisect.core.errors import StudyError
from trisect.core.extras import need_extra
from trisect.core.files import digest

# before ray is imported: nothing is reported to anybody, no line of Ray's comes between ours (what it says of nodes that
# are gone it prints whatever log_to_driver says), and a cluster of one's own is reached from this machine alone
ALWAYS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".*",
}
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # of Ray's switches the one that keeps its ports on 127.0.0.1
TOKEN = "RAY_AUTH_TOKEN"
MODE = "RAY_AUTH_MODE"
KNOCK = 120.0  # seconds that a cluster has to turn a wrong token away


def check_address(address: str | None) -> None:
    """Raise StudyError for a cluster that anybody who reaches its port could give code to run."""
    if address is not None and os.environ.get(MODE) != "token":
        raise StudyError(
            f"--address {address} was given without a token.",
            f"Whoever reaches a port of a Ray cluster can run code on all of it; {MODE} is {os.environ.get(MODE)!r}.",
            f"Start every node, and this command, with {MODE}=token and one token (ray get-auth-token --generate), "
            "behind a firewall: docs/how-to/ray.md.",
        )


def check_asks(address: str) -> None:
    """Raise StudyError for a cluster that lets a wrong token in, or that cannot be asked.

    Another process asks: Ray keeps the first token that a process shows.
    """
    status = [sys.executable, "-P", "-m", "ray.scripts.scripts", "status", "--address", address]
    wrong = os.environ | {MODE: "token", TOKEN: secrets.token_hex(32)}
    try:
        asked = subprocess.run(status, env=wrong, stdin=subprocess.DEVNULL, capture_output=True, timeout=KNOCK)
    except subprocess.TimeoutExpired as error:
        raise _not_reached(address, TimeoutError(f"it does not answer within {KNOCK:.0f} seconds")) from error
    said = asked.stderr.decode(errors="replace").strip()
    if asked.returncode == 0:
        raise StudyError(
            f"The cluster at {address} asks for no token.",
            "It let a wrong one in: whoever reaches one of its ports can run code on all of it.",
            f"Stop it, and start every node with {MODE}=token and one token: docs/how-to/ray.md.",
        )
    if "AuthenticationError" not in said:
        raise _not_reached(address, ConnectionError(said.splitlines()[-1] if said else "it gives no reason"))


@cache
def _token() -> str:
    """The token of clusters of one's own: one for the whole process, since Ray keeps the first that a process shows."""
    return secrets.token_hex(32)


@contextmanager
def connected(address: str | None, cores: int, store_bytes: int | None = None) -> Iterator[None]:
    """Ray, while the context lasts: at `address` ('auto' or HOST:PORT), else a cluster of `cores` cores of this machine.

    Raises StudyError where it cannot be reached or started.
    """
    need_extra("ray", "ray", "--engine ray")
    check_address(address)
    own = {} if address is not None else LOOPBACK | {MODE: "token", TOKEN: _token()}
    with _environment(ALWAYS | own), _own_folder() as folder:
        import ray
        from ray.exceptions import RayError

        if ray.is_initialized():
            known = "A process is connected to one cluster at a time."
            raise StudyError("This process is connected to Ray already.", known, "Call ray.shutdown() before.")
        if address is not None:
            check_asks(address)
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "critical", "configure_logging": True}
        more: dict[str, Any] = {"address": address}
        if address is None:
            more = {"address": "local", "num_cpus": cores, "include_dashboard": False, "_temp_dir": folder}
            more |= {"object_store_memory": store_bytes} if store_bytes is not None else {}
        try:
            ray.init(**quiet, **more)
            if address is None:
                _check_loopback(ray.nodes())
            yield
        except (OSError, RuntimeError, ValueError, RayError) as error:
            raise _not_reached(address, error) from error
        finally:
            with suppress(Exception):
                ray.shutdown()


@contextmanager
def _own_folder() -> Iterator[str]:
    """A folder for the files of a cluster of one's own (Ray's sockets need a short path); those of killed processes are removed."""
    base = Path(tempfile.gettempdir())
    ours = f"trisect-ray-{_host()}"
    for old in base.glob(f"{ours}-*-*"):
        process = old.name.split("-")[3]
        if process.isdigit() and not _runs(int(process)):
            shutil.rmtree(old, ignore_errors=True)  # those of other users stay: they cannot be removed
    with tempfile.TemporaryDirectory(prefix=f"{ours}-{os.getpid()}-", ignore_cleanup_errors=True) as folder:
        yield folder


def _host() -> str:
    """Where the numbers of processes are this process's: others, on another machine or in another container, may share the folder."""
    marks = [socket.gethostname()]
    with suppress(OSError):  # where there is no Linux
        marks += [os.readlink("/proc/self/ns/pid"), Path("/proc/sys/kernel/random/boot_id").read_text()]
    return digest(" ".join(marks), 3)  # short, as Ray's sockets need it


def _runs(process: int) -> bool:
    if os.name == "nt":  # where signal 0 is one
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _check_loopback(nodes: list[dict[str, Any]]) -> None:
    """Raise StudyError where Ray, imported before with other settings, is open to other machines."""
    if places := [node["NodeManagerAddress"] for node in nodes if not node["NodeManagerAddress"].startswith("127.")]:
        known = "Ray was imported before, with settings of its own."
        raise StudyError(f"Ray opened ports at {places[0]}.", known, "Call trisect before ray is imported.")


def _not_reached(address: str | None, error: Exception) -> StudyError:
    words = str(error).strip().splitlines()
    return StudyError(
        f"Ray at {address} cannot be reached." if address else "Ray cannot be started.",
        f"{type(error).__name__}: {words[0] if words else 'it gives no reason'}",
        "Look whether 'ray status' works on this machine, with the same Ray, Python and token: docs/how-to/ray.md."
        if address
        else "Look for free memory and space for temporary files, or leave out --engine ray.",
    )


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Environment variables while the context lasts; those that are set already stay as they are."""
    fresh = {name: value for name, value in values.items() if name not in os.environ or name in (MODE, TOKEN)}
    before = {name: os.environ.get(name) for name in fresh}
    os.environ.update(fresh)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
