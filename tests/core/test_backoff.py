from services.core.backoff import backoff_s


def test_waits_double_from_the_first_up_to_the_longest() -> None:
    assert [backoff_s(failures, 0.5, 3) for failures in range(1, 6)] == [0.5, 1, 2, 3, 3]


def test_however_many_failures_there_were_the_wait_is_the_longest() -> None:
    assert backoff_s(100_000, 0.5, 30) == 30
