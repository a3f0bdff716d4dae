"""Connect to Ray: the cluster of RAY_ADDRESS, if RAY_AUTH_MODE is token, else a cluster of this process on loopback."""

from __future__ import annotations

import logging
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from trisect.core.errors import StudyError, require_extra

ALWAYS = {  # before ray is imported
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is reported to anybody
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEDUP_LOGS_SKIP_REGEX": ".*",  # what Ray says of nodes that are gone it prints whatever log_to_driver says
    "RAY_grpc_client_keepalive_time_ms": "10000",  # a link that is cut without a word is noticed within a minute
    "RAY_grpc_client_keepalive_timeout_ms": "20000",
    "RAY_task_oom_retries": "0",  # a job that Ray ends for want of memory is lost as any other
}
LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}  # of Ray's switches the one that keeps its ports on 127.0.0.1
# a cluster that does not answer is tried three times of 40 seconds, without Ray's own lines about each
CONNECTING = {"RAY_NUM_REDIS_GET_RETRIES": "3", "RAY_BACKEND_LOG_LEVEL": "fatal"}
ADDRESS = "RAY_ADDRESS"
TOKEN = "RAY_AUTH_TOKEN"
MODE = "RAY_AUTH_MODE"
WITH_TOKEN = (
    f"Start every node, and this command, with {MODE}=token and one token (ray get-auth-token --generate), behind a "
    "firewall: docs/how-to/ray.md."
)
OWN_TOKEN = secrets.token_hex(32)  # of clusters of our own: Ray keeps the first that a process shows


def cluster_address() -> str | None:
    """The cluster of the environment, or None. Raises StudyError unless RAY_AUTH_MODE is token.

    Anybody who reaches a port of a cluster without one could give it code to run.
    """
    address = os.environ.get(ADDRESS, "")
    if address in ("", "local"):
        return None
    if os.environ.get(MODE) != "token":
        reason = (
            f"Whoever reaches a port of a Ray cluster can run code on all of it; {MODE} is {os.environ.get(MODE)!r}."
        )
        raise StudyError(f"{ADDRESS} is {address}, and there is no token.", reason, WITH_TOKEN)
    return address


@contextmanager
def open_ray(cores: int, gpus: int = 0) -> Iterator[str | None]:
    """Ray in a context: at the yielded address, else a cluster on this machine.

    Raises StudyError where it cannot be reached or started.
    """
    require_extra("ray", "ray", "--engine ray")
    address = cluster_address()
    with ExitStack() as stack:
        stack.callback(_restore, dict(os.environ))
        os.environ.update({**ALWAYS, **(CONNECTING if address else LOOPBACK), **os.environ})
        if address is None:
            os.environ.update({MODE: "token", TOKEN: OWN_TOKEN})
        import ray
        from ray.exceptions import RayError

        if ray.is_initialized():
            reason = "A process is connected to one cluster at a time."
            raise StudyError("This process is connected to Ray already.", reason, "Call ray.shutdown() before.")
        if address is not None:
            place: dict[str, Any] = {"address": address}
        else:  # sockets need a short path
            short = tempfile.TemporaryDirectory(prefix="trisect-ray-", ignore_cleanup_errors=True)
            place = {"address": "local", "num_cpus": cores, "num_gpus": gpus, "include_dashboard": False}
            place["_temp_dir"] = stack.enter_context(short)
        stack.callback(ray.shutdown)
        try:
            ray.init(log_to_driver=False, logging_level=logging.CRITICAL, configure_logging=True, **place)
        except (OSError, RuntimeError, ValueError, RayError) as error:
            raise _connection_error(address, error) from error
        opened = [node["NodeManagerAddress"] for node in ray.nodes()] if address is None else []
        if not all(place.startswith("127.") for place in opened):
            reason = "Ray was imported before, with settings of its own."
            raise StudyError(f"Ray opened ports at {opened[0]}.", reason, "Call trisect before ray is imported.")
        yield address


def _restore(before: dict[str, str]) -> None:
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ.update(before)


def _connection_error(address: str | None, error: Exception) -> StudyError:
    words = str(error).strip().splitlines()
    reason = f"{type(error).__name__}: {words[0] if words else 'it gives no reason'}"
    if address is None:
        todo = "Look for free memory and space for temporary files, or leave out --engine ray."
        return StudyError("Ray cannot be started.", reason, todo)
    todo = "Look whether 'ray status' works on this machine, with the same Ray, Python and token: docs/how-to/ray.md."
    return StudyError(f"Ray at {address} cannot be reached.", reason, todo)
