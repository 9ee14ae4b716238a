"""All processes meet before JAX starts: process 0 waits at the coordinator's address, where the others name themselves.

JAX's own start ends a process that waits in vain with a trace of C++ frames and names nobody. This meeting is bounded,
in whatever order the processes start, and what is wrong (who is missing, who runs other code) is told to all of them.

    process I -> 0    one line of JSON: who I is and what it is about to run
    0 -> process I    one line of JSON: nothing wrong, or the error that all of them end with
"""

import contextlib
import json
import selectors
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from meshtrain.errors import InputError, PeerError
from meshtrain.run.processes.environment import ThisProcess

GREETING = "meshtrain meeting 1"
RETRY = 0.2  # seconds between two attempts to reach process 0
PART = 1 << 16  # bytes that are received at once
LIMIT = 1 << 24  # bytes of a line that a process says of itself: a config may name thousands of paths

Card = dict[str, Any]  # what a process says of itself
CARD = {"is", "process", "count", "host", "facts"}


def meet(me: ThisProcess, facts: Mapping[str, Any]) -> None:
    """Returns when all have come and all their facts are the same.

    PeerError, naming them, where some do not come within `me.wait` seconds; InputError where their facts differ, naming
    the odd host, or where the address cannot be used.
    """
    card: Card = {"is": GREETING, "process": me.index, "count": me.count, "host": me.host, "facts": dict(facts)}
    deadline = time.monotonic() + me.wait
    if me.is_first:
        _receive_all(me, card, deadline)
    else:
        _visit(me, card, deadline)


def odd_ones(cards: Sequence[Card]) -> str | None:
    """The first fact in which processes differ, as an error's text: what most say, and who says otherwise."""
    for name in cards[0]["facts"]:
        values = [card["facts"].get(name) for card in cards]
        usual = max(values, key=lambda value: (values.count(value), value == values[0]))
        odd = [card for card, value in zip(cards, values, strict=True) if value != usual]
        if odd:
            others = "; ".join(f"{_name(card)} has {card['facts'].get(name)}" for card in odd[:4])
            more = f" and {len(odd) - 4} more" if len(odd) > 4 else ""
            num = len(cards) - len(odd)
            return (
                f"{name}: the processes do not start the same run: {num} of {len(cards)} have {usual}, but"
                f" {others}{more}. All must have the same code, versions, config and flags."
            )
    return None


def _receive_all(me: ThisProcess, card: Card, deadline: float) -> None:
    """Process 0's side."""
    cards: dict[int, Card] = {0: card}
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(_listen(me))
        visitors: list[socket.socket] = []
        waiting: dict[int, socket.socket] = {}
        problem: str | None = None
        for connection, visitor in _visits(server, deadline):
            stack.callback(connection.close)
            visitors.append(connection)
            index = visitor["process"]
            if index in waiting and _has_gone(waiting[index]):
                del cards[index]  # it ended, and this is its next start
            problem = _refusal(visitor, cards, me)
            if problem:
                break
            cards[index], waiting[index] = visitor, connection
            if len(cards) == me.count:
                for gone in [index for index, other in waiting.items() if _has_gone(other)]:
                    del cards[gone], waiting[gone]  # it ended since, and its next start is waited for
            if len(cards) == me.count:
                break
        everybody = [cards[index] for index in sorted(cards)]
        missing = [index for index in range(me.count) if index not in cards]
        lost = problem is None and bool(missing)
        if lost:
            problem = _missing(missing, everybody, me)
        problem = problem or odd_ones(everybody)
        answer = json.dumps({"error": problem, "lost": lost}).encode() + b"\n"
        for connection in visitors:
            with contextlib.suppress(OSError):
                connection.settimeout(10)
                connection.sendall(answer)
    if problem:
        raise (PeerError if lost else InputError)(problem)


def _visit(me: ThisProcess, card: Card, deadline: float) -> None:
    """The other processes' side: asks until process 0 answers."""
    reason = "nothing answers there"
    while (left := deadline - time.monotonic()) > 0:
        try:
            with socket.create_connection(_split(me.coordinator), timeout=min(left, 10)) as connection:
                connection.sendall(json.dumps(card).encode() + b"\n")
                connection.settimeout(left + 10)  # process 0 waits as long, and its answer names who is missing
                line = _line(connection)
            if not line:
                reason = "process 0 closed the connection without an answer"
            else:
                answer = json.loads(line)
                if not isinstance(answer, dict):
                    raise ValueError("no answer of a meeting")
                if answer.get("error"):
                    raise (PeerError if answer.get("lost") else InputError)(answer["error"])
                return
        except socket.gaierror:
            reason = f"the name {_split(me.coordinator)[0]} is not known here"
        except (ValueError, RecursionError):
            raise InputError(f"{_source(me)}: something that is not a meshtrain process answers there.") from None
        except OSError as error:
            reason = f"nothing answers there ({error.strerror or error})"
        time.sleep(RETRY)
    raise PeerError(
        f"{me} waited {me.wait:.0f} s for process 0 at {_source(me)}: {reason}. Is process 0 started, is this its host"
        " and its port, and is the port open between the hosts? --wait SECONDS waits longer."
    )


@contextlib.contextmanager
def _listen(me: ThisProcess) -> Iterator[socket.socket]:
    """A listening socket on every address of this host, as JAX's own service will have it; InputError if impossible."""
    port = _split(me.coordinator)[1]
    family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET
    try:
        server = socket.create_server(("", port), family=family, backlog=4096, dualstack_ipv6=family == socket.AF_INET6)
    except OSError as error:
        raise InputError(
            f"{_source(me)}: process 0 cannot listen on port {port} of {me.host}: {error.strerror}. Another program (or"
            f" a run that has not ended) has it; another port would work, for example --coordinator"
            f" {_split(me.coordinator)[0]}:{free_port()}."
        ) from None
    with server:
        yield server


def _visits(server: socket.socket, deadline: float) -> Iterator[tuple[socket.socket, Card]]:
    """Each connection that sends a whole line in time, in order of arrival; what is no process of ours is dropped."""
    heard: dict[socket.socket, bytes] = {}  # of connections whose line is not whole
    with selectors.DefaultSelector() as selector, contextlib.ExitStack() as stack:
        stack.callback(lambda: list(map(socket.socket.close, heard)))
        selector.register(server, selectors.EVENT_READ)
        while (left := deadline - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                if key.fileobj is server:
                    try:
                        connection, _ = server.accept()
                    except OSError:  # it has gone again
                        continue
                    heard[connection] = b""
                    selector.register(connection, selectors.EVENT_READ)
                    continue
                connection = key.fileobj  # type: ignore[assignment]
                try:
                    part = connection.recv(PART)
                except OSError:
                    part = b""
                heard[connection] += part
                if part and b"\n" not in part and len(heard[connection]) < LIMIT:
                    continue
                selector.unregister(connection)
                card = _read_card(heard.pop(connection))
                if card is None:
                    connection.close()
                else:
                    yield connection, card


def _read_card(line: bytes) -> Card | None:
    try:
        card = json.loads(line)
    except (ValueError, RecursionError):
        return None
    ours = isinstance(card, dict) and card.get("is") == GREETING
    return card if ours and set(card) == CARD and type(card["process"]) is int and type(card["facts"]) is dict else None


def _has_gone(connection: socket.socket) -> bool:
    """Whether the other end is closed; whoever waits for an answer says nothing more."""
    try:
        return not connection.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False
    except OSError:
        return True


def _refusal(card: Card, cards: Mapping[int, Card], me: ThisProcess) -> str | None:
    """Why a process that came cannot take part."""
    index = card["process"]
    if card["count"] != me.count:
        return (
            f"--processes: process 0 on {me.host} expects {me.count} processes, but process {index} on {card['host']}"
            f" was told of {card['count']}; both must be told the same number."
        )
    if index in cards:
        return (
            f"--process: two processes say that they are process {index}: one on {cards[index]['host']} and one on"
            f" {card['host']}; each of the {me.count} needs a number of its own."
        )
    return None


def _missing(missing: Sequence[int], came: Sequence[Card], me: ThisProcess) -> str:
    names = ", ".join(map(str, missing[:16])) + (f" and {len(missing) - 16} more" if len(missing) > 16 else "")
    plural, dots = "es" * (len(missing) > 1), " ..." * (len(came) > 4)
    return (
        f"process{plural} {names} of {me.count} did not come to {_source(me)} within {me.wait:.0f} s; {len(came)} did:"
        f" {', '.join(_name(card) for card in came[:4])}{dots}. Look at the logs of the missing: were they started, and"
        " with this address? --wait SECONDS waits longer."
    )


def free_port() -> int:
    """A port of this machine that is free at the moment."""
    with socket.create_server(("", 0)) as probe:
        return int(probe.getsockname()[1])


def _name(card: Card) -> str:
    return f"process {card['process']} on {card['host']}"


def _source(me: ThisProcess) -> str:
    return f"{me.coordinator} ({me.sources.get('coordinator', 'the coordinator')})"


def _split(address: str | None) -> tuple[str, int]:
    host, _, port = (address or "").rpartition(":")
    return host.strip("[]"), int(port)


def _line(connection: socket.socket) -> bytes:
    line = b""
    while not line.endswith(b"\n") and (part := connection.recv(PART)):
        line += part
    return line
