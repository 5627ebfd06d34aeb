"""Jobs' logs: copied once, without secrets, bounded, and read by position."""

import pytest

from services import deletion, experiments, job_logs, leases, log_cuts
from services.cluster import Cluster
from services.database import Database
from services.errors import NotFound
from services.job_logs import KEPT_BYTES, MOST_COPIED_BYTES, PART_BYTES
from services.log_parts import LogPart
from services.ray_requests import ClusterUnreachable
from services.states import ExperimentState
from services.tables import Experiment, ExperimentAttempt
from tests.services.simulated_job import begun, spec


def whole(database: Database, identifier: str) -> bytes:
    piece = job_logs.end(database, identifier)
    found, place = b"", piece.kept_from
    while place < piece.end_byte:
        part = job_logs.read(database, identifier, first_byte=place, length=100_000)
        assert part.first_byte == place
        found += part.data
        place += len(part.data)
    return found


class FakeCluster(Cluster):
    """Knows some logs."""

    def __init__(self, logs: dict[str, str]) -> None:
        self.logs = logs
        self.asked: list[str] = []
        self.away = False
        self.slow: set[str] = set()
        """Of which no answer comes in time."""

    def log(self, job_id: str, first_byte: int = 0, most: int = MOST_COPIED_BYTES) -> LogPart | None:
        self.asked.append(job_id)
        if self.away or job_id in self.slow:
            raise ClusterUnreachable("gone")
        if job_id not in self.logs:
            return None
        told = self.logs[job_id].encode()
        begin = min(max(first_byte, len(told) - most), len(told))
        return LogPart(begin, told[begin:])


def test_a_log_is_copied_line_by_line_once_and_to_its_end(database: Database) -> None:
    identifier, lease, _ = begun(database)
    cluster = FakeCluster({identifier: "one\ntwo\nhal"})
    assert job_logs.copy_all(database, cluster) == 1
    assert whole(database, identifier) == b"one\ntwo\n"
    assert job_logs.copy_all(database, cluster) == 0
    cluster.logs[identifier] += "f\nthree"
    job_logs.copy_all(database, cluster)
    assert whole(database, identifier) == b"one\ntwo\nhalf\n"
    leases.finish(database, lease, ExperimentState.CANCELLED)
    job_logs.copy_all(database, cluster)
    assert whole(database, identifier) == b"one\ntwo\nhalf\nthree"
    assert job_logs.end(database, identifier).is_complete
    asked = len(cluster.asked)
    job_logs.copy_all(database, cluster)
    assert len(cluster.asked) == asked


def test_a_cluster_that_is_gone_leaves_what_was_copied(database: Database) -> None:
    identifier, lease, _ = begun(database)
    cluster = FakeCluster({identifier: "one\n"})
    job_logs.copy_all(database, cluster)
    cluster.away = True
    assert job_logs.copy_all(database, cluster) == 0
    cluster.away, cluster.logs = False, {}
    leases.finish(database, lease, ExperimentState.LOST)
    job_logs.copy_all(database, cluster)
    assert whole(database, identifier) == b"one\n"
    assert job_logs.end(database, identifier).is_complete


def test_a_cluster_that_answers_nothing_is_not_asked_for_every_log(database: Database) -> None:
    ids = [begun(database)[0] for _ in range(job_logs.MOST_UNANSWERED + 4)]
    cluster = FakeCluster(dict.fromkeys(ids, "one\n"))
    cluster.away = True
    assert job_logs.copy_all(database, cluster) == 0
    assert len(cluster.asked) == job_logs.MOST_UNANSWERED
    cluster.away = False
    assert job_logs.copy_all(database, cluster) == len(ids)


def test_logs_that_take_too_long_keep_no_others_back(database: Database) -> None:
    ids = [begun(database)[0] for _ in range(4 * job_logs.MOST_UNANSWERED)]
    cluster = FakeCluster(dict.fromkeys(ids, "one\n"))
    cluster.slow = set(ids[::2])
    assert job_logs.copy_all(database, cluster) == len(ids) // 2
    assert sorted(cluster.asked) == sorted(ids)


def test_two_processes_that_copy_the_same_copy_it_once(database: Database) -> None:
    identifier, _, _ = begun(database)
    assert job_logs.store(database, identifier, 1, LogPart(0, b"one\ntwo\n"), ended=False)
    assert not job_logs.store(database, identifier, 1, LogPart(0, b"one\n"), ended=False)
    assert not job_logs.store(database, identifier, 1, LogPart(0, b"one\ntwo\n"), ended=False)
    assert whole(database, identifier) == b"one\ntwo\n"


def test_secrets_are_not_kept_even_if_they_arrive_in_pieces(database: Database) -> None:
    identifier, _, _ = begun(database)
    text = f"token gw_{'a' * 16}_{'S' * 43} of postgresql://u:hunter22@h/d\n"
    for length in range(0, len(text) + 1, 7):
        job_logs.store(database, identifier, 1, LogPart(0, text[:length].encode()), ended=False)
    job_logs.store(database, identifier, 1, LogPart(0, text.encode()), ended=True)
    kept = whole(database, identifier)
    assert b"SSSS" not in kept
    assert b"hunter22" not in kept
    assert kept.count(b"[secret]") == 2


SECRETS = {
    "an API key": ("gw_abcdefghijklmnop_{}", ""),
    "a group's token": ("gg_{}", ""),
    "a password in a URL": ("postgresql://user:{}", "@host/db"),
    "a header": ("Authorization: Bearer {}", ""),
    "a header over two lines": ("Authorization: Bearer\n    {}", ""),
    "a setting": ('"secret" : "{}', '"'),
}
"""What stands around a secret."""
SECRET = "Q7xK2mZ9vR4tW8yB3nL6pD5sF1gH0jCuEoXiAzTq"


def parts_of(text: str) -> list[str]:
    """Pieces of the secret that are long enough to be no accident."""
    return [
        SECRET[begin : begin + 3] for begin in range(len(SECRET) - 2) if SECRET[begin : begin + 3] in text
    ]


def take(text: str, first: int, *, ended: bool) -> tuple[int, str]:
    """How far a log of one-byte characters is taken, and what."""
    log = LogPart(0, text.encode())
    found = log_cuts.taken(log, first, log.end_byte, ended=ended)
    assert found.begin_byte == first
    return found.end_byte, found.text


BURST = PART_BYTES // 2 + 1
"""So many times two characters are more than one part."""


@pytest.mark.parametrize("burst", ["", "x " * BURST, ("x" * 99 + "\n") * (BURST // 50), "y" * 2 * BURST])
@pytest.mark.parametrize("kind", SECRETS)
def test_no_cut_of_a_log_that_grows_lets_a_secret_through(kind: str, burst: str) -> None:
    before, after = SECRETS[kind]
    text = f"{burst} {before.format(SECRET)}{after} end\nmore\n"
    for cut in range(len(burst), len(text) + 1):
        place, kept = take(text[:cut], 0, ended=False)
        _, rest = take(text, place, ended=True)
        assert not parts_of(kept + rest), cut
        assert (kept + rest).count("[secret]") == 1, cut
        assert (kept + rest).endswith(f"{after} end\nmore\n"), cut


@pytest.mark.parametrize("kind", SECRETS)
def test_no_two_cuts_do(kind: str) -> None:
    before, after = SECRETS[kind]
    text = f"{before.format(SECRET)}{after} end\n"
    for first in range(len(text)):
        for second in range(first, len(text)):
            place, kept = take(text[:first], 0, ended=False)
            place, more = take(text[:second], place, ended=False)
            _, rest = take(text, place, ended=True)
            assert not parts_of(kept + more + rest), (first, second)


@pytest.mark.parametrize("kind", SECRETS)
def test_nor_does_the_end_of_one_experiment_s_share_of_a_job_s_log(kind: str) -> None:
    before, after = SECRETS[kind]
    text = f"a line\n{before.format(SECRET)}{after} end\n"
    for cut in range(len(text) + 1):
        _, its = take(text[:cut], 0, ended=True)
        _, the_next_s = take(text, cut, ended=True)
        assert not parts_of(its), cut
        assert not parts_of(the_next_s), cut


@pytest.mark.parametrize("line", ["a line\n", "words ", "x"])
@pytest.mark.parametrize("kind", SECRETS)
def test_nor_does_a_part_that_begins_in_the_middle_of_one(kind: str, line: str) -> None:
    before, after = SECRETS[kind]
    secret = f"{before.format(SECRET)}{after} end\n"
    text = f"{line * 200}{secret}{line * 400}\nmore\n"
    for begin in range(len(line) * 200, len(line) * 200 + len(secret)):
        part = LogPart(begin, text[begin:].encode())
        found = log_cuts.taken(part, begin, part.end_byte, ended=True)
        assert not parts_of(found.text), begin
        assert found.text.endswith("more\n"), begin
        assert text.endswith(found.text), "what can't be told is left out whole"


def test_a_part_that_is_one_word_of_which_nobody_sees_the_begin_is_left_out(database: Database) -> None:
    part = LogPart(1, SECRET.encode() * 100)
    assert log_cuts.taken(part, 1, part.end_byte, ended=True).text == ""
    identifier, _, _ = begun(database)
    assert job_logs.store(database, identifier, 1, part, ended=False)
    assert whole(database, identifier).startswith(b"[4,000 bytes are left out here")


@pytest.mark.parametrize("kind", SECRETS)
def test_copies_of_a_log_that_grows_see_what_their_beginning_follows_on(
    database: Database, kind: str
) -> None:
    before, after = SECRETS[kind]
    identifier, lease, _ = begun(database)
    text = "word " * 20_000 + f"{before.format(SECRET)}{after} end\nmore\n"
    cluster = FakeCluster({identifier: ""})
    for place in (*range(0, 90_000, 30_000), *range(99_990, len(text), 7), len(text)):
        cluster.logs[identifier] = text[:place]
        job_logs.copy_all(database, cluster)
    leases.finish(database, lease, ExperimentState.CANCELLED)
    job_logs.copy_all(database, cluster)
    kept = whole(database, identifier).decode()
    assert not parts_of(kept)
    assert kept.startswith("word " * 20_000)
    assert kept.endswith(f"[secret]{after} end\nmore\n")


def test_a_burst_that_ends_in_half_a_secret_is_taken_up_to_it(database: Database) -> None:
    identifier, _, _ = begun(database)
    text = ("x" * 99 + "\n") * 700 + f"token sent: gw_abcdefghijklmnop_{SECRET}\n"
    cut = text.index(SECRET) + 5
    job_logs.store(database, identifier, 1, LogPart(0, text[:cut].encode()), ended=False)
    assert whole(database, identifier) == text[: 700 * 100].encode()
    job_logs.store(database, identifier, 1, LogPart(0, text.encode()), ended=True)
    assert not parts_of(whole(database, identifier).decode())


def test_a_line_that_never_ends_is_taken_word_by_word(database: Database) -> None:
    identifier, _, _ = begun(database)
    text = "word " * PART_BYTES
    assert job_logs.store(database, identifier, 1, LogPart(0, f"{text}hal".encode()), ended=False)
    assert whole(database, identifier) == text.encode()
    job_logs.store(database, identifier, 1, LogPart(0, f"{text}half".encode()), ended=True)
    assert whole(database, identifier) == f"{text}half".encode()


def test_only_the_end_of_a_long_log_is_kept_and_positions_stay(database: Database) -> None:
    identifier, _, _ = begun(database)
    line = "x" * 1_022 + "\n"
    text = "".join(f"{number:08d} {line}" for number in range(12_000))
    for share in (0.3, 0.6, 0.601, 1.0):
        job_logs.store(
            database, identifier, 1, LogPart(0, (text[: int(len(text) * share)]).encode()), ended=share == 1.0
        )
    piece = job_logs.end(database, identifier)
    assert piece.end_byte == len(text)
    assert KEPT_BYTES - PART_BYTES <= piece.end_byte - piece.kept_from <= KEPT_BYTES
    kept = whole(database, identifier)
    assert kept == text.encode()[piece.kept_from :]
    tail = job_logs.read(database, identifier, first_byte=-100, length=100)
    assert (tail.data, tail.first_byte) == (text[-100:].encode(), len(text) - 100)
    assert job_logs.read(database, identifier, first_byte=0, length=10).data == b""


def test_of_a_burst_longer_than_what_is_copied_the_end_is_kept_and_how_much_is_left_out(
    database: Database,
) -> None:
    identifier, lease, _ = begun(database)
    cluster = FakeCluster({identifier: "the beginning\n"})
    job_logs.copy_all(database, cluster)
    lines = [f"{number:09d}\n" for number in range(2 * KEPT_BYTES // 10)]
    cluster.logs[identifier] += "".join(lines)
    job_logs.copy_all(database, cluster)
    said, *kept = whole(database, identifier).decode().splitlines(keepends=True)
    assert kept == lines[-len(kept) :]
    left_out = len("".join(lines[: -len(kept)]))
    assert said == f"[{left_out:,} bytes are left out here: more was printed than is copied at once]\n"
    piece = job_logs.end(database, identifier)
    assert piece.end_byte == len(cluster.logs[identifier]), "a byte keeps its position"
    assert KEPT_BYTES - 3 * PART_BYTES <= piece.end_byte - piece.kept_from <= KEPT_BYTES
    cluster.logs[identifier] += "the end\n"
    leases.finish(database, lease, ExperimentState.CANCELLED)
    job_logs.copy_all(database, cluster)
    assert whole(database, identifier).endswith(b"the end\n")


def test_a_burst_that_grows_when_it_is_made_storable_costs_no_more_rows(database: Database) -> None:
    identifier, _, _ = begun(database)
    job_logs.store(
        database, identifier, 1, LogPart(0, (b"\0" * 99 + b"\n") * (KEPT_BYTES // 100)), ended=True
    )
    piece = job_logs.end(database, identifier)
    assert piece.end_byte - piece.kept_from <= KEPT_BYTES
    assert whole(database, identifier).endswith("\ufffd\n".encode())


def test_a_log_of_each_attempt_is_kept_apart_and_goes_with_the_experiment(database: Database) -> None:
    identifier, lease, _ = begun(database)
    job_logs.store(database, identifier, 1, LogPart(0, b"first\n"), ended=False)
    leases.begin_attempt(database, lease)
    job_logs.store(database, identifier, 2, LogPart(0, b"second\n"), ended=False)
    assert job_logs.end(database, identifier).attempt == 2
    assert job_logs.read(database, identifier, 1, first_byte=0, length=10).data == b"first\n"
    leases.finish(database, lease, ExperimentState.CANCELLED)
    experiments.request_delete(database, identifier)
    with pytest.raises(NotFound, match="no experiment"):
        job_logs.end(database, identifier)


def test_what_has_printed_nothing_has_no_log(database: Database) -> None:
    identifier = experiments.submit(database, spec())
    assert job_logs.copy_all(database, FakeCluster({})) == 0
    with pytest.raises(NotFound, match=r"log of experiment.*no job of it has begun"):
        job_logs.end(database, identifier)
    with pytest.raises(NotFound):
        job_logs.attempt_of_run(database, f"{identifier}-r000-a00")


def handed_over(database: Database, job: str) -> str:
    """Another experiment, in the worker group of that Ray job."""
    identifier, _, _ = begun(database)
    with database.write() as session:
        session.get_one(Experiment, identifier).ray_job_id = job
        attempt = session.get_one(ExperimentAttempt, (identifier, 1))
        attempt.ray_job_id, attempt.warm = job, True
    return identifier


def test_a_warm_experiments_log_begins_where_its_rank_says_so_or_where_the_last_one_ended(
    database: Database,
) -> None:
    first, lease, _ = begun(database)
    cluster = FakeCluster({first: f"loading\nghostwatt: making {first}, attempt 1\none\n"})
    leases.finish(database, lease, ExperimentState.CANCELLED)
    job_logs.copy_all(database, cluster)
    second = handed_over(database, first)
    cluster.logs[first] += "two\n"
    job_logs.copy_all(database, cluster)
    third = handed_over(database, first)
    cluster.logs[first] += f"end of two\n(pid=7) ghostwatt: making {third}, attempt 1\nthree\n"
    job_logs.copy_all(database, cluster)
    assert whole(database, first) == f"loading\nghostwatt: making {first}, attempt 1\none\n".encode()
    assert whole(database, second) == b"two\nend of two\n"
    assert job_logs.end(database, second).is_complete
    assert whole(database, third) == f"(pid=7) ghostwatt: making {third}, attempt 1\nthree\n".encode()


def test_a_mark_that_comes_late_leaves_what_is_before_it_to_others(database: Database) -> None:
    first, lease, _ = begun(database)
    cluster = FakeCluster({first: "one\n"})
    leases.finish(database, lease, ExperimentState.CANCELLED)
    second = handed_over(database, first)
    job_logs.copy_all(database, cluster)
    cluster.logs[first] += f"late\nghostwatt: making {second}, attempt 1\ntwo\n"
    job_logs.copy_all(database, cluster)
    assert whole(database, second) == f"ghostwatt: making {second}, attempt 1\ntwo\n".encode()


def test_the_log_of_a_deleted_experiment_does_not_pass_to_the_next_in_its_group(database: Database) -> None:
    first, lease, _ = begun(database)
    cluster = FakeCluster({first: "one\n"})
    leases.finish(database, lease, ExperimentState.CANCELLED)
    second = handed_over(database, first)
    experiments.request_delete(database, first)
    deletion.delete_if_asked(database, first)
    job_logs.copy_all(database, cluster)
    cluster.logs[first] += "two\n"
    job_logs.copy_all(database, cluster)
    assert whole(database, second) == b"two\n"
