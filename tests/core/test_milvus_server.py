"""The messages of the tests' own Milvus after a start that failed."""

from tests.core.milvus_server import first_lines_of_the_crash

STACKS = "".join(f"goroutine {number} [select]:\nmain.work()\n" for number in range(1_000))


def test_of_a_crash_the_reason_is_shown_and_not_the_stacks_behind_it() -> None:
    output = f"[WARN] no session yet\nterminate called: bad_alloc\nSIGABRT: abort\nPC=0x0 m=0\n\n{STACKS}"
    shown = first_lines_of_the_crash(output)
    assert shown.startswith("[WARN] no session yet\nterminate called: bad_alloc\nSIGABRT: abort\n")
    assert "goroutine 900" not in shown


def test_of_an_end_without_a_crash_the_last_lines_are_shown() -> None:
    assert first_lines_of_the_crash("first\n" * 100 + "etcd: address already in use\n").endswith("already in use")
