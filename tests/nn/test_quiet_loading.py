"""Output of transformers while it loads, which is suppressed, and afterwards."""

import subprocess
import sys

import pytest

from services.nn.loading import quiet_loading, transformers

transformers()  # as the services import it, without accelerate

from transformers.utils import logging  # noqa: E402


def test_bars_and_warnings_are_off_inside_and_as_before_outside(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.get_logger("transformers.loading")
    before = logging.is_progress_bar_enabled(), logging.get_verbosity()
    with quiet_loading():
        logger.warning("what nobody asked for")
        assert not logging.is_progress_bar_enabled()
    assert (logging.is_progress_bar_enabled(), logging.get_verbosity()) == before
    with pytest.raises(OSError, match="missing"), quiet_loading():
        raise OSError("missing")
    assert (logging.is_progress_bar_enabled(), logging.get_verbosity()) == before
    assert "nobody" not in capsys.readouterr().err


@pytest.mark.process
def test_transformers_is_imported_in_the_same_way_if_its_output_is_suppressed_first() -> None:
    program = "from services.nn.loading import quiet_loading, transformers\nwith quiet_loading(): transformers()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
