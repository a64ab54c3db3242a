"""Three processes: a writer, a replica that follows its folder, and one that follows its address; each is killed."""

import signal

import pytest
from command import wait_for
from serving import save_run

from stress.replicas import ADDRESS, FOLDER, WRITER, Trio, has_item, is_connected

pytestmark = pytest.mark.extended
BOTH = FOLDER, ADDRESS


@pytest.fixture
def trio(tmp_path):
    save_run(tmp_path / "one")
    three = Trio(tmp_path)
    try:
        for name in (WRITER, *BOTH):
            three.start(name)
        yield three
    finally:
        three.close()


def hide(trio, item):
    trio.clients[WRITER].delete(f"/v1/items/{item}").raise_for_status()


def gone(trio, item, *names):
    return not any(has_item(trio.clients[name], item) for name in names)


def says_connected(client):
    (line,) = [line for line in client.get("/metrics").text.splitlines() if line.startswith("beamtree_writer_conn")]
    assert client.get("/readyz").status_code == 200
    return (is_connected(client), float(line.split()[1]))


def test_a_hidden_item_is_gone_from_every_replica_whoever_is_killed(trio):
    hide(trio, "i1")
    wait_for(lambda: gone(trio, "i1", *BOTH))

    for number, killed in enumerate(BOTH, start=2):
        (other,) = {*BOTH} - {killed}
        trio.kill(killed)
        hide(trio, f"i{number}")
        wait_for(lambda number=number, other=other: gone(trio, f"i{number}", other))
        trio.start(killed)
        assert gone(trio, f"i{number}", killed)  # at its first answer
        assert gone(trio, "i1", killed)

    for client in trio.replicas.values():
        wait_for(lambda client=client: says_connected(client) == (True, 1))
    trio.kill(WRITER)
    for client in trio.replicas.values():
        wait_for(lambda client=client: says_connected(client) == (False, 0))
        assert has_item(client, "i4")
    assert gone(trio, "i1", *BOTH)

    trio.kill(FOLDER)
    trio.start(FOLDER)  # the folder is enough
    assert gone(trio, "i1", FOLDER)
    assert gone(trio, "i3", FOLDER)
    assert says_connected(trio.clients[FOLDER]) == (False, 0)
    trio.kill(ADDRESS)
    trio.launch(ADDRESS)  # it answers when it has the changes, not before
    trio.start(WRITER)
    hide(trio, "i4")
    trio.connect(ADDRESS)
    wait_for(lambda: gone(trio, "i4", *BOTH))
    assert all(gone(trio, f"i{number}", *BOTH, WRITER) for number in (1, 2, 3))
    for client in trio.replicas.values():
        wait_for(lambda client=client: says_connected(client) == (True, 1))

    for process in trio.processes.values():
        process.send_signal(signal.SIGTERM)
    assert [process.wait(60) for process in trio.processes.values()] == [0, 0, 0]
