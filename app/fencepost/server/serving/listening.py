"""The listening socket: bound before anything else is started, so that a busy port costs nothing."""

import errno
import ipaddress
import socket

_BACKLOG = 2048


class ListenError(Exception):
    """The gateway cannot listen there. The message is one line: what is wrong, and what to do."""


def listen(host: str, port: int, *, allow_remote: bool, prefix: str = "") -> socket.socket:
    """Bind a TCP socket and listen on it. `port` 0 takes a free one. Raises ListenError, which names the options by
    `prefix`: `admin-` for those of the admin port.

    An address that other machines can reach needs `allow_remote`, and that needs authentication (identity_wiring.py).
    """
    family, address = _resolve(host, port, prefix)
    if not allow_remote and not _is_loopback(address[0]):
        raise ListenError(
            f"{host} can be reached from other machines: listen on 127.0.0.1, or give --allow-remote"
            " (FENCEPOST_ALLOW_REMOTE=true), with authentication"
        )
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        # Two sockets may bind one port with SO_REUSEADDR as long as neither listens: this is the real test.
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ListenError(_explain(error, host, port, prefix)) from error
    return listener


def base_url(listener: socket.socket) -> str:
    """Return the URL at which a browser on this machine finds the gateway."""
    host, port = listener.getsockname()[:2]
    if ipaddress.ip_address(host.partition("%")[0]).is_unspecified:
        host = "::1" if listener.family == socket.AF_INET6 else "127.0.0.1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _options(name: str, prefix: str) -> tuple[str, str]:
    return f"--{prefix}{name}", f"FENCEPOST_{prefix}{name}".upper().replace("-", "_")


def _resolve(host: str, port: int, prefix: str) -> tuple[socket.AddressFamily, tuple[str, int]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        named = ", ".join(_options("host", prefix))
        raise ListenError(f"the address {host!r} ({named}) is not known: {error}") from error
    # A name such as localhost has several; IPv4 first, as the clients of a local service expect.
    found.sort(key=lambda entry: entry[0] != socket.AF_INET)
    family, _, _, _, address = found[0]
    return family, (str(address[0]), int(address[1]))


def _is_loopback(host: str) -> bool:
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback


def _explain(error: OSError, host: str, port: int, prefix: str) -> str:
    another = f"choose another with {' or '.join(_options('port', prefix))}"
    match error.errno:
        case errno.EADDRINUSE:
            return f"port {port} on {host} is in use by another process; {another}"
        case errno.EACCES:
            return f"port {port} on {host} needs privileges that this user does not have; {another}"
        case errno.EADDRNOTAVAIL:
            named = " or ".join(_options("host", prefix))
            return f"{host} is no address of this machine; choose another with {named}"
        case _:
            return f"cannot listen on port {port} of {host}: {error.strerror}"
