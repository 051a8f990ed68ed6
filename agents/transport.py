"""The way to Redis for a node whose Redis user may touch only its own keys.

kombu's Redis transport without its emulation of acknowledgements: the sweep
for lost messages needs a Lua script, which a node may not run, and the
portal's Command row does that work.
"""

from __future__ import annotations

import ssl
from typing import Any
from urllib.parse import urlsplit

from kombu.transport import TRANSPORT_ALIASES
from kombu.transport import redis as kombu_redis

PATH = "agents.transport:Transport"

#: kombu lets the scheme of a `name+socket://` URL beat `broker_transport`, so the
#: transport needs a scheme of its own for Redis behind a unix socket.
SCHEME = "gpupool"
TRANSPORT_ALIASES[SCHEME] = PATH


class Channel(kombu_redis.Channel):
    """Keeps no copy of a taken message in Redis and never puts one back.

    Without `ack_emulation` the channel's QoS is kombu's plain one, whose
    `restore_visible` does nothing, and an acknowledgement is local: were it a
    command to Redis, a connection lost in that moment would leave a message
    unacknowledged for ever, and a prefetch of 1 would take no other.
    """

    ack_emulation = False
    do_restore = False


class Transport(kombu_redis.Transport):
    Channel = Channel


def settings(broker_url: str, node: str, ca_file: str | None = None) -> dict[str, Any]:
    """The Celery settings with which `node` reaches the broker.

    Takes `redis://USER:PASSWORD@HOST:PORT/DB`, `rediss://` (TLS, the certificate
    is checked, by `ca_file` or the system's authorities) and `redis+socket://USER:PASSWORD@/PATH?virtual_host=DB`.
    User and password are percent-encoded. ValueError on any other scheme.
    """
    scheme = urlsplit(broker_url).scheme
    if scheme not in ("redis", "rediss", "redis+socket"):
        raise ValueError(f"broker_url: unknown scheme {scheme!r}")
    found: dict[str, Any] = {
        "broker_url": broker_url,
        "broker_transport": PATH,
        "broker_transport_options": {
            "global_keyprefix": f"node:{node}:",
            # A broker that went silent must not hold the worker longer than this.
            "socket_timeout": 5.0,
            "socket_connect_timeout": 5.0,
            "health_check_interval": 5,
        },
    }
    if scheme == "redis+socket":
        found["broker_url"] = broker_url.replace("redis+", f"{SCHEME}+", 1)
    if scheme == "rediss":
        # kombu turns TLS on by scheme only where it also chose the transport by it.
        found["broker_use_ssl"] = {"ssl_cert_reqs": ssl.CERT_REQUIRED, "ssl_check_hostname": True}
        if ca_file is not None:
            found["broker_use_ssl"]["ssl_ca_certs"] = ca_file
    return found
