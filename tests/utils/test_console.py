"""What is written on a terminal, and when there is none any more."""

import io
import logging
import os
import sys

import pytest

from flcore.utils import console
from flcore.utils.errors import UsageError, report


@pytest.fixture
def prepare(monkeypatch):
    """``prepare(stream)``: standard output is this stream, and made to last; afterwards all is as it was."""

    def make(stream):
        monkeypatch.setattr(sys, "stderr", sys.stderr)
        monkeypatch.setenv("MPLBACKEND", "module://a_notebook")
        monkeypatch.setattr(sys, "stdout", stream)
        console.prepare()

    return make


def test_a_closed_pipe_ends_nothing_and_is_told_once(prepare, capsys):
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w", encoding="ascii") as nobody:
        prepare(nobody)
        for number in range(3):
            print("line", number)
        sys.stdout.flush()
    assert capsys.readouterr().err.count("note: standard output is lost (Broken pipe)") == 1


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_behind_standard_output_is_told_when_it_is_noticed(prepare, capsys):
    with open("/dev/full", "w", encoding="utf-8") as full:
        prepare(full)
        print("line")
        assert "No space left on device" in capsys.readouterr().err


def test_standard_output_that_the_caller_closed_is_nowhere(prepare):
    prepare(None)
    print("line", file=sys.stdout)
    sys.stdout.close()


def test_signs_that_the_terminal_lacks_are_replaced(prepare):
    content = io.BytesIO()
    prepare(io.TextIOWrapper(content, encoding="gbk"))
    print("± 1 ‡ ü −2")
    assert content.getvalue().decode("gbk") == "± 1 ++ ü -2\n"  # gbk has the first


def test_a_log_has_everything_also_from_before_it_was_named(tmp_path, capsys):
    log = logging.getLogger("flcore.test")
    with console.messages() as shown:
        log.info("early")
        shown.choose(logging.WARNING, tmp_path / "new" / "a.log")
        log.debug("detail")
        log.warning("größer")
        report(UsageError("no such thing"))
    lines = (tmp_path / "new" / "a.log").read_text(encoding="utf-8").splitlines()
    assert [line.split(" ", 2)[2] for line in lines] == [
        "INFO early",
        "DEBUG detail",
        "WARNING größer",
        "INFO error: no such thing",
    ]
    assert capsys.readouterr() == ("early\n", "größer\nerror: no such thing\n")


def test_a_log_that_cannot_be_written_is_refused_and_one_that_breaks_given_up(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    log = logging.getLogger("flcore.test")
    with console.messages() as shown, pytest.raises(UsageError, match="--log .* cannot be written: "):
        shown.choose(logging.INFO, tmp_path / "file" / "a.log")
    if os.path.exists("/dev/full"):
        with console.messages() as shown:
            os.symlink("/dev/full", tmp_path / "full.log")
            shown.choose(logging.INFO, tmp_path / "full.log")
            log.info("one")
            log.info("two")
        printed = capsys.readouterr()
        assert printed.out == "one\ntwo\n" and printed.err.count("full.log is lost (No space left on device)") == 1
