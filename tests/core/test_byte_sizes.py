import pytest

from services.core.byte_sizes import binary_size, parse_bytes


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("24GiB", 24 * 1024**3),
        ("24 GiB", 24 * 1024**3),
        ("1.5Gi", 3 * 1024**3 // 2),
        ("80GB", 80 * 1000**3),
        ("80G", 80 * 1000**3),
        ("512kB", 512_000),
        ("512KiB", 512 * 1024),
        ("1000", 1000),
        ("1000B", 1000),
    ],
)
def test_a_size_is_read_as_it_is_written(text: str, num_bytes: int) -> None:
    assert parse_bytes(text) == num_bytes


@pytest.mark.parametrize("text", ["", "much", "0", "-1GiB", "24XiB", "GiB", "24i", "24 gib"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a size such as 24GiB"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("num_bytes", "shown"),
    [(500, "500 bytes"), (512 * 1024, "512 KiB"), (4608, "4.5 KiB"), (13_476_831_232, "12.6 GiB"), (1024**3, "1 GiB")],
)
def test_a_size_is_shown_with_at_most_one_digit_behind_the_point(num_bytes: int, shown: str) -> None:
    assert binary_size(num_bytes) == shown
