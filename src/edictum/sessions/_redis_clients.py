"""Clients of redis-py: for one server, for a cluster, and for a server that Sentinel names."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, urlencode, urlunsplit

from redis.asyncio import ConnectionPool, Redis, RedisCluster
from redis.asyncio.connection import parse_url
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.credentials import CredentialProvider
from redis.exceptions import RedisError

from edictum.errors import EdictumConfigError
from edictum.sessions._addresses import Address, Credentials, get_credentials, read_address

_SENTINEL_S = 0.5  # how long one of several sentinels may take before the next is asked


class _Rotating(CredentialProvider):
    """Asks for credentials with every connection."""

    def __init__(self, credentials: Credentials, user: str | None) -> None:
        self._credentials = credentials
        self._user = user

    async def get_credentials_async(self) -> tuple[str] | tuple[str, str]:
        user, password = await get_credentials(self._credentials, self._user)
        return (password,) if user is None else (user, password)


class RedisClients:
    """Connects to a URL. Retries and timeouts are left to the sender.

    ``redis+sentinel://one,two,three/service/0`` names sentinels and the service that they watch.
    ``decodes``: answers are text.
    """

    def __init__(self, url: str, credentials: Credentials | None, *, decodes: bool = True) -> None:
        has_sentinels = url.partition(":")[0].endswith("+sentinel")
        address = read_address(url, 26379 if has_sentinels else 6379)
        self._is_tls = address.parts.scheme.startswith(("rediss", "valkeys"))
        is_socket = address.parts.scheme == "unix"  # the path is that of a file then
        path = "" if is_socket else address.parts.path.strip("/")
        self._service, _, database = path.partition("/") if has_sentinels else ("", "", path)
        self._check(address, database, has_sentinels)
        self.name = f"{address.parts.scheme}://{address.shown}{address.parts.path}"
        self._sentinels = address.hosts
        query = dict(parse_qsl(address.parts.query))
        self._sentinel_options = {
            name: query.pop(f"sentinel_{name}")
            for name in ("username", "password")
            if f"sentinel_{name}" in query
        }
        self._options: dict[str, Any] = {
            "decode_responses": decodes,
            "protocol": 2,
            "retry": Retry(NoBackoff(), 0),
            "socket_timeout": None,
            "socket_connect_timeout": None,
        }
        if self._is_tls and not {"ssl_check_hostname", "ssl_cert_reqs"} & query.keys():
            self._options["ssl_check_hostname"] = True  # redis-py before 6 does not by itself
        signed_in, at, hosts = address.parts.netloc.rpartition("@")
        if credentials is not None:
            self._options["credential_provider"] = _Rotating(credentials, address.user)
            signed_in = at = ""
        place = f"{signed_in}{at}{hosts.partition(',')[0]}"
        scheme = "unix" if is_socket else "rediss" if self._is_tls else "redis"
        path = address.parts.path if is_socket else f"/{database}"
        self._url = urlunsplit((scheme, place, path, urlencode(query), ""))
        self._try_options()

    def _check(self, address: Address, database: str, has_sentinels: bool) -> None:
        if not has_sentinels and len(address.hosts) > 1:
            raise EdictumConfigError(
                "A Redis URL names several hosts.",
                hint="Name one node of a cluster, or sentinels: redis+sentinel://h1,h2/service.",
            )
        if has_sentinels and not self._service:
            raise EdictumConfigError(
                "A Sentinel URL names no service.",
                hint="Write redis+sentinel://host1,host2/service, and /0 for a database.",
            )
        if database and not database.isdecimal():
            raise EdictumConfigError(
                f"A Redis URL names the database {database!r}.", hint="Use a number: /0."
            )

    def _try_options(self) -> None:
        """Refuse options that redis-py cannot read before the first connection."""
        try:
            pool: Any = ConnectionPool.from_url(self._url, **self._options)
            pool.make_connection()
        except (RedisError, ValueError, TypeError, AttributeError) as exc:
            raise EdictumConfigError(
                f"The URL of the store {self.name} cannot be used: {exc}",
                hint="Beside lease, ttl, wait, allow_eviction and password_file it may have the"
                " options that redis-py's documentation lists.",
            ) from exc

    def make(self) -> Any:
        """Return a client of the server."""
        if not self._service:
            return Redis.from_url(self._url, **self._options)
        options: dict[str, Any] = {**parse_url(self._url), **self._options}
        for name in ("host", "port", "connection_class"):
            options.pop(name, None)
        tls = {name: it for name, it in options.items() if name.startswith("ssl")}
        make_sentinels: Any = Sentinel  # redis-py has no types for it
        sentinels = make_sentinels(
            self._sentinels,
            sentinel_kwargs={
                "socket_timeout": _SENTINEL_S,
                "socket_connect_timeout": _SENTINEL_S,
                "retry": Retry(NoBackoff(), 0),
                **({"ssl": True} if self._is_tls else {}),
                **tls,
                **self._sentinel_options,
            },
        )
        if self._is_tls:
            options["ssl"] = True
        return sentinels.master_for(self._service, redis_class=Redis, **options)

    def make_for_cluster(self) -> Any:
        """Return a client that finds the other nodes of its cluster by asking the server."""
        return RedisCluster.from_url(self._url, **self._options)


def all_clients(client: Any) -> list[Any]:
    """Return a client together with those of the sentinels that it asks."""
    pool = getattr(client, "connection_pool", None)
    manager = getattr(pool, "sentinel_manager", None)
    return [client, *(manager.sentinels if manager is not None else ())]
