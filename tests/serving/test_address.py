"""A3: an address is one server's, from before it loads anything; what an ended server leaves does not keep it."""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Iterator
from multiprocessing.synchronize import Barrier, Event

import pytest
from click.testing import CliRunner

from tests.serving.running import Running
from vgg16gpu.cli import cli
from vgg16gpu.errors import InputError
from vgg16gpu_serving.address import reserved

SPAWN = multiprocessing.get_context("spawn")
LOOPBACK = "127.0.0.1"


@pytest.fixture
def port() -> Iterator[int]:
    """One that was free a moment ago."""
    with socket.socket() as found:
        found.bind((LOOPBACK, 0))
        return found.getsockname()[1]


def compete(port: int, together: Barrier, goes_on: Event, told: multiprocessing.Queue) -> None:
    together.wait(60)
    try:
        with reserved(LOOPBACK, port) as address:
            told.put(str(address))
            goes_on.wait(60)
    except InputError as error:
        told.put(str(error))


def test_a3_of_many_that_start_at_once_one_has_the_address(port: int) -> None:
    count = 2
    together, goes_on, told = SPAWN.Barrier(count), SPAWN.Event(), SPAWN.Queue()
    processes = [SPAWN.Process(target=compete, args=(port, together, goes_on, told)) for _ in range(count)]
    for process in processes:
        process.start()
    found = sorted(told.get(timeout=90) for _ in processes)
    goes_on.set()
    for process in processes:
        process.join(60)
    refused = f"--host '{LOOPBACK}' --port {port}: Address already in use; choose others"
    assert found == sorted([f"{LOOPBACK}:{port}", *[refused] * (count - 1)])


@pytest.mark.parametrize(("first", "second"), [(LOOPBACK, "0.0.0.0"), ("0.0.0.0", LOOPBACK), ("localhost", LOOPBACK)])
def test_a3_an_address_that_holds_another_is_taken_with_it(port: int, first: str, second: str) -> None:
    with reserved(first, port), pytest.raises(InputError, match="already in use"), reserved(second, port):
        pass


def test_a3_it_is_free_again_afterwards_and_while_old_connections_end(port: int) -> None:
    with reserved(LOOPBACK, port), socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)  # as a front end
        server.bind((LOOPBACK, port))
        server.listen()
        with socket.create_connection((LOOPBACK, port)) as client:
            server.accept()[0].close()  # the server's end waits for a minute now
            assert client.recv(1) == b""
    with reserved(LOOPBACK, port):
        pass
    with socket.create_server((LOOPBACK, 0)) as other:  # of a program that shares nothing
        number = other.getsockname()[1]
        with socket.create_connection((LOOPBACK, number)) as client:
            other.accept()[0].close()
            assert client.recv(1) == b""
        with pytest.raises(InputError, match="already in use"), reserved(LOOPBACK, number):
            pass
    with reserved(LOOPBACK, number):
        pass


@pytest.mark.parametrize(
    ("host", "port"), [("256.0.0.1", 0), ("a" * 100 + ".example", 0), ("192.0.2.1", 8000), ("", -1)]
)
def test_what_is_no_address_is_a_line(host: str, port: int) -> None:
    with pytest.raises(InputError, match="choose others") as refused, reserved(host, port):
        pass
    assert "\n" not in str(refused.value)


def test_a3_a_second_server_is_refused_before_it_loads_a_model(server: Running) -> None:
    """It names a model that does not exist, and says that the address is taken."""
    done = CliRunner().invoke(cli, ["serve", "missing.onnx", "--port", str(server.port)])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == f"vgg16gpu: --host '127.0.0.1' --port {server.port}: Address already in use; choose others\n"
